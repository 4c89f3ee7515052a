"""A whole run of `gepa.optimize` in one call.

Built around gepa 0.1.4.
"""

import dataclasses
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Generic, Literal, TypeVar, cast

from gepa import api
from gepa.core.data_loader import DataLoader
from gepa.core.result import GEPAResult

from .errors import DefinitionError, ReflectionBroken, ReflectionError
from .gepa_adapter import GepaAdapter, as_gepa_adapter
from .gepa_cases import as_gepa_dataset
from .gepa_checks import ARGUMENTS, check_gepa_run
from .gepa_reflection import as_reflection_lm
from .gepa_rollouts import GEPA_OPTIONS
from .metric import Metric, ScoreFunction
from .options import MetricOptions, near_match

__all__ = ["OptimizedArtifact", "optimize_artifact"]

A = TypeVar("A", str, dict[str, str])

_gepa: Any = cast("Any", api)  # untyped, as its arguments come by name


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizedArtifact(Generic[A]):
    """What `optimize_artifact` returns.

    Attributes:
        artifact: The best artifact, in the shape of the one that the run began with.
        score: Its mean score on the validation set.
        result: GEPA's own result, with every candidate.
        adapter: The adapter of the run, closed; `adapter.metric.failures` tells what could not be judged.
    """

    artifact: A
    score: float
    result: GEPAResult[Any, Any] = dataclasses.field(repr=False)
    adapter: GepaAdapter[A] = dataclasses.field(repr=False)


def optimize_artifact(
    artifact: A,
    run: Callable[[A, dict[str, Any]], Any],
    score: ScoreFunction | Metric,
    trainset: Iterable[Any],
    valset: Iterable[Any] | None = None,
    *,
    reflection_lm: Any,
    max_workers: int | None = None,
    run_timeout: float | None = 60.0,
    include_expected: bool = False,
    executor: Executor | None = None,
    run_isolation: Literal["process"] | None = None,
    run_memory_limit_mb: float | None = None,
    metric_lm: Any = None,
    **arguments: Any,
) -> OptimizedArtifact[A]:
    """Optimise an artifact with `gepa.optimize`, checked before anything is paid.

    It does what `as_gepa_adapter`, `as_gepa_dataset`, `as_reflection_lm` and `check_gepa_run` do, and
    warns at the end when GEPA found nothing better, and why.

    Args:
        artifact: What is optimised, a text or a dict of named texts.
        run: `run(artifact, input)` gives the output for one case; see `as_gepa_adapter`.
        score: `score(input, output, expected=None)`, or a `Metric`.
        trainset: The cases that GEPA learns from: `Case`s, dicts `{"input": {...}, "expected": {...}}`,
            `dspy.Example`s with inputs set, or a data loader of GEPA.
        valset: The cases that candidates are compared on. `None`: those of `trainset`.
        reflection_lm: The model that writes new texts; see `as_reflection_lm`. `None` only where
            `custom_candidate_proposer` or `reflection_strategy` writes them.
        max_workers: As for `as_gepa_adapter`.
        run_timeout: As for `as_gepa_adapter`.
        include_expected: As for `as_gepa_adapter`.
        executor: As for `as_gepa_adapter`.
        run_isolation: As for `as_gepa_adapter`.
        run_memory_limit_mb: As for `as_gepa_adapter`.
        metric_lm: The model that `llm` asks inside of `score`; `None`: what `models` or `set_models`
            chose, else `reflection_lm`.
        **arguments: Those of `gepa.optimize`, such as `max_metric_calls`, `run_dir`, `seed`, `logger`;
            and the options of `Metric`, such as `score_range`, none of them beside a `Metric`.

    Returns:
        The best artifact, its score, GEPA's result and the adapter.

    Raises:
        DefinitionError: The run cannot work; nothing was paid.
        DataError: A case cannot be used; nothing was paid.
        MetricError: The metric failed on everything.
        ReflectionError: The reflection model never answered.

    Example:
        >>> def run(artifact, input):
        ...     return input["text"].upper() if "capitals" in artifact else input["text"]
        >>> def score(input, output, expected=None):
        ...     right = output == expected["text"]
        ...     return right, {"feedback": "Right." if right else f"Expected {expected['text']!r}."}
        >>> class Quiet:
        ...     def log(self, message): ...
        >>> best = optimize_artifact(
        ...     "Repeat it.",
        ...     run,
        ...     score,
        ...     [{"input": {"text": "hi"}, "expected": {"text": "HI"}}],
        ...     reflection_lm=lambda prompt: "Repeat it in capitals.",
        ...     max_metric_calls=10,
        ...     logger=Quiet(),
        ... )
        >>> best
        OptimizedArtifact(artifact='Repeat it in capitals.', score=1.0)
    """
    options = {name: arguments.pop(name) for name in MetricOptions.__annotations__ if name in arguments}
    _refuse_arguments(arguments)
    reflection = None if reflection_lm is None else as_reflection_lm(reflection_lm)
    adapter = as_gepa_adapter(
        score,
        run,
        artifact=artifact,
        max_workers=max_workers,
        run_timeout=run_timeout,
        include_expected=include_expected,
        executor=executor,
        run_isolation=run_isolation,
        run_memory_limit_mb=run_memory_limit_mb,
        metric_lm=metric_lm,
        reflection_lm=reflection,
        **cast("MetricOptions", options),
    )
    arguments |= {
        "seed_candidate": adapter.seed_candidate,
        "trainset": _as_loader(trainset),
        "valset": None if valset is None else _as_loader(valset),
        "reflection_lm": reflection,
        "callbacks": _with(adapter.callback, arguments.get("callbacks")),
    }
    check_gepa_run(adapter, **arguments)
    with adapter:
        try:
            result: GEPAResult[Any, Any] = _gepa.optimize(adapter=adapter, **arguments)
        except ReflectionBroken as error:
            raise ReflectionError(*error.args) from error.__cause__
    best = cast("dict[str, str]", result.best_candidate)
    return OptimizedArtifact(
        adapter.artifact(best), result.val_aggregate_scores[result.best_idx], result, adapter
    )


# `optimize_artifact` makes them of its own arguments.
_MADE_HERE = {
    "seed_candidate": "artifact",
    "adapter": "run and score",
    "task_lm": "run",
    "evaluator": "score",
}


# How `dspy.GEPA` and `dspy.Evaluate` name what has another name here.
_MEANT = {
    "num_threads": "max_workers",
    "metric": "score",
    "auto": "max_metric_calls",
    "max_full_evals": "max_metric_calls",
    "log_dir": "run_dir",
    "program": "program_artifact(program) as artifact, and program_run(program) as run",
    "student": "program_artifact(program) as artifact, and program_run(program) as run",
}


def _refuse_arguments(arguments: dict[str, Any]) -> None:
    known = {*ARGUMENTS, *MetricOptions.__annotations__, *GEPA_OPTIONS} - set(_MADE_HERE)
    for name in arguments:
        if name in _MADE_HERE:
            raise DefinitionError(f"optimize_artifact makes {name} of {_MADE_HERE[name]}; leave {name} out")
        if name not in known:
            mend = f"; give {_MEANT[name]}" if name in _MEANT else near_match(name, known)
            raise DefinitionError(f"neither gepa.optimize nor Metric has an argument {name!r}{mend}")


def _with(callback: Any, callbacks: Any) -> Any:
    """Add a callback; what is no list stays, for the check to refuse."""
    if callbacks is not None and not isinstance(callbacks, Iterable):
        return callbacks
    return [*cast("Iterable[Any]", callbacks or ()), callback]


def _as_loader(cases: Any) -> Any:
    return cast("Any", cases) if isinstance(cases, DataLoader) else as_gepa_dataset(cases)
