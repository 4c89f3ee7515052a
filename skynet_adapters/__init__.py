"""Write one metric, `score(input, output, expected)`; every DSPy optimiser and GEPA run learns from it.

Names are loaded when they are first used, so `import skynet_adapters` loads no target library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cases import Case, Split, load_cases, split
    from .dspy import (
        as_dspy_metric,
        as_dspy_reward,
        check_examples,
        from_dspy_metric,
        from_examples,
        to_examples,
    )
    from .errors import (
        DataError,
        DefinitionError,
        MetricBroken,
        MetricError,
        MetricReturnError,
        MetricTimeoutError,
        ProgramFailedError,
        SkynetAdaptersError,
    )
    from .feedback_score import FeedbackScore
    from .load import fingerprint
    from .metric import Failure, Failures, Metric
    from .score import Score

_MODULE_OF = {
    "Case": "cases",
    "Split": "cases",
    "load_cases": "cases",
    "split": "cases",
    "FeedbackScore": "feedback_score",
    "as_dspy_metric": "dspy",
    "as_dspy_reward": "dspy",
    "from_dspy_metric": "dspy",
    "check_examples": "dspy",
    "from_examples": "dspy",
    "to_examples": "dspy",
    "DataError": "errors",
    "DefinitionError": "errors",
    "MetricBroken": "errors",
    "MetricError": "errors",
    "MetricReturnError": "errors",
    "MetricTimeoutError": "errors",
    "ProgramFailedError": "errors",
    "SkynetAdaptersError": "errors",
    "fingerprint": "load",
    "Failure": "metric",
    "Failures": "metric",
    "Metric": "metric",
    "Score": "score",
}

__all__ = [
    "Case",
    "DataError",
    "DefinitionError",
    "Failure",
    "Failures",
    "FeedbackScore",
    "Metric",
    "MetricBroken",
    "MetricError",
    "MetricReturnError",
    "MetricTimeoutError",
    "ProgramFailedError",
    "Score",
    "SkynetAdaptersError",
    "Split",
    "as_dspy_metric",
    "as_dspy_reward",
    "check_examples",
    "fingerprint",
    "from_dspy_metric",
    "from_examples",
    "load_cases",
    "split",
    "to_examples",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
