"""Write one metric, `score(input, output, expected)`; every DSPy optimiser and GEPA run learns from it.

Names are loaded when they are first used, so `import skynet_adapters` loads no target library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts import load_artifact, save_artifact, to_artifact, to_candidate
    from .cases import Case, Split, load_cases, split
    from .contract import check_contract
    from .contract_report import Check, ContractReport
    from .dspy import (
        DspyMetric,
        DspyReward,
        as_dspy_metric,
        as_dspy_reward,
        check_examples,
        from_dspy_metric,
        from_examples,
        measuring,
        program_artifact,
        program_run,
        to_examples,
        to_program,
    )
    from .errors import (
        DataError,
        DefinitionError,
        MetricBroken,
        MetricError,
        MetricReturnError,
        MetricTimeoutError,
        ProgramFailedError,
        ReflectionBroken,
        ReflectionError,
        SkynetAdaptersError,
    )
    from .failures import Failure, Failures
    from .feedback_score import FeedbackScore
    from .fingerprints import fingerprint
    from .gepa import (
        GepaAdapter,
        GepaEvaluator,
        OptimizedArtifact,
        Trajectory,
        as_gepa_adapter,
        as_gepa_dataset,
        as_gepa_evaluator,
        as_reflection_lm,
        check_gepa_run,
        check_run_dir,
        optimize_artifact,
    )
    from .judge_llm import llm, models, set_models
    from .load import load_metric
    from .measure import Bill, Observation, ServiceCost, observation, observed, service_cost
    from .metric import Metric
    from .rewards import RewardSpec, reward
    from .score import Score

_MODULE_OF = {
    "load_artifact": "artifacts",
    "save_artifact": "artifacts",
    "to_artifact": "artifacts",
    "to_candidate": "artifacts",
    "GepaAdapter": "gepa",
    "GepaEvaluator": "gepa",
    "OptimizedArtifact": "gepa",
    "Trajectory": "gepa",
    "as_gepa_adapter": "gepa",
    "as_gepa_dataset": "gepa",
    "as_gepa_evaluator": "gepa",
    "as_reflection_lm": "gepa",
    "check_gepa_run": "gepa",
    "check_run_dir": "gepa",
    "optimize_artifact": "gepa",
    "Check": "contract_report",
    "ContractReport": "contract_report",
    "check_contract": "contract",
    "Case": "cases",
    "Split": "cases",
    "load_cases": "cases",
    "split": "cases",
    "FeedbackScore": "feedback_score",
    "DspyMetric": "dspy",
    "DspyReward": "dspy",
    "as_dspy_metric": "dspy",
    "as_dspy_reward": "dspy",
    "from_dspy_metric": "dspy",
    "program_artifact": "dspy",
    "program_run": "dspy",
    "to_program": "dspy",
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
    "ReflectionBroken": "errors",
    "ReflectionError": "errors",
    "SkynetAdaptersError": "errors",
    "fingerprint": "fingerprints",
    "load_metric": "load",
    "llm": "judge_llm",
    "models": "judge_llm",
    "set_models": "judge_llm",
    "measuring": "dspy",
    "Bill": "measure",
    "Observation": "measure",
    "ServiceCost": "measure",
    "observation": "measure",
    "observed": "measure",
    "service_cost": "measure",
    "Failure": "failures",
    "Failures": "failures",
    "Metric": "metric",
    "RewardSpec": "rewards",
    "reward": "rewards",
    "Score": "score",
}

__all__ = [
    "Bill",
    "Case",
    "Check",
    "ContractReport",
    "DataError",
    "DefinitionError",
    "DspyMetric",
    "DspyReward",
    "Failure",
    "Failures",
    "FeedbackScore",
    "GepaAdapter",
    "GepaEvaluator",
    "Metric",
    "MetricBroken",
    "MetricError",
    "MetricReturnError",
    "MetricTimeoutError",
    "Observation",
    "OptimizedArtifact",
    "ProgramFailedError",
    "ReflectionBroken",
    "ReflectionError",
    "RewardSpec",
    "Score",
    "ServiceCost",
    "SkynetAdaptersError",
    "Split",
    "Trajectory",
    "as_dspy_metric",
    "as_dspy_reward",
    "as_gepa_adapter",
    "as_gepa_dataset",
    "as_gepa_evaluator",
    "as_reflection_lm",
    "check_contract",
    "check_examples",
    "check_gepa_run",
    "check_run_dir",
    "fingerprint",
    "from_dspy_metric",
    "from_examples",
    "llm",
    "load_artifact",
    "load_cases",
    "load_metric",
    "measuring",
    "models",
    "observation",
    "observed",
    "optimize_artifact",
    "program_artifact",
    "program_run",
    "reward",
    "save_artifact",
    "service_cost",
    "set_models",
    "split",
    "to_artifact",
    "to_candidate",
    "to_examples",
    "to_program",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
