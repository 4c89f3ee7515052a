"""The evaluator of `optimize_anything`, made of a metric and, where there is one, a `run`.

Built around gepa 0.1.4. Where a line answers one of its quirks, a comment names it.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, Self, Unpack, cast

from .artifacts import TEXT_COMPONENT, Artifact, fault_in_parts, to_artifact, to_candidate
from .attempt import check_artifact
from .errors import DataError, DefinitionError, MetricBroken, MetricError
from .gepa_cases import input_and_expected
from .gepa_rollouts import GEPA_OPTIONS, Job, Raising, Rollouts, Trajectory, artifact_itself
from .gepa_values import defused, for_prompt, images_apart, output_for_prompt, with_images
from .judge_llm import checked_models
from .metric import Metric, ScoreFunction, metric_with
from .options import MetricOptions
from .score import component_texts, own_text

__all__ = ["GepaEvaluator", "as_gepa_evaluator"]


def as_gepa_evaluator(
    score: ScoreFunction | Metric,
    run: Callable[[Any, dict[str, Any]], Any] | None = None,
    *,
    artifact: Artifact | None = None,
    max_workers: int | None = None,
    run_timeout: float | None = 60.0,
    include_expected: bool = False,
    executor: Executor | None = None,
    run_isolation: Literal["process"] | None = None,
    run_memory_limit_mb: float | None = None,
    metric_lm: Any = None,
    reflection_lm: Any = None,
    **options: Unpack[MetricOptions],
) -> "GepaEvaluator":
    r"""Make the evaluator for `optimize_anything` of a metric and, where there is one, a `run`.

    `optimize_anything(seed, evaluator=evaluator, ...)` runs as many cases at once as there are CPUs,
    and without the caller's `dspy.context`. `batch_evaluator=evaluator.batch` runs all cases of a
    batch at once, in the caller's context. By default `optimize_anything` keeps an objective frontier
    too, so a metric with named scores that may fail needs `score_names`.

    What a rollout takes is measured; a price that DSPy does not know is given by making this inside of
    `with measuring(prices=...):`.

    What `run` logs with `gepa.optimize_anything.log` reaches the reflection model. What it and the
    metric print does under `capture_stdio=True` only where they have no limit (`run_timeout=None`,
    `timeout=None`), since with one they run in threads of their own.

    Args:
        score: `score(input, output, expected=None)`, or a `Metric`.
        run: As for `as_gepa_adapter`. `None`: the artifact itself is the output that is judged.
        artifact: What the run begins with, when its shape has to be restored: a text whose seed is
            a dict. `None`: `run` gets what `optimize_anything` gives, which is the seed's shape.
        max_workers: As for `as_gepa_adapter`, in `batch`.
        run_timeout: As for `as_gepa_adapter`.
        include_expected: As for `as_gepa_adapter`.
        executor: As for `as_gepa_adapter`.
        run_isolation: As for `as_gepa_adapter`; what `run` logs in another process is lost.
        run_memory_limit_mb: As for `as_gepa_adapter`.
        metric_lm: As for `as_gepa_adapter`.
        reflection_lm: As for `as_gepa_adapter`.
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        The evaluator. Without a data set `input` is `{}` and `expected` is `None`.

    Raises:
        DefinitionError: `score`, `run`, `artifact` or an option cannot work.

    Example:
        >>> def short(input, output, expected=None):
        ...     return 1 / len(output.split()), {"feedback": f"{len(output.split())} words; use fewer."}
        >>> evaluator = as_gepa_evaluator(short)
        >>> value, side_info = evaluator("Answer in one word.")
        >>> value, side_info["Feedback"]
        (0.25, '4 words; use fewer.\n\nScore: 0.25')
    """
    metric = metric_with(score, options, GEPA_OPTIONS)
    if artifact is not None:
        check_artifact(run, artifact)
    if run is None and executor is not None:
        raise DefinitionError("executor= is where run is called, and there is no run; leave executor out")
    return GepaEvaluator(
        Rollouts(
            metric,
            run or artifact_itself,
            run_timeout,
            max_workers,
            executor,
            checked_models(metric_lm, reflection_lm),
            run_isolation,
            run_memory_limit_mb,
        ),
        artifact,
        include_expected,
        shows_output=run is not None,
    )


class GepaEvaluator:
    """What `as_gepa_evaluator` returns: `evaluator(candidate, example)` and `evaluator.batch(pairs)`.

    Attributes:
        metric: The `Metric`, with its `failures`.
    """

    def __init__(
        self, rollouts: "Rollouts", artifact: Artifact | None, include_expected: bool, shows_output: bool
    ) -> None:
        if artifact is not None:
            to_candidate(artifact)
        self._rollouts = rollouts
        self._raising = Raising(MetricError)
        self._artifact = artifact
        self._include_expected = include_expected
        self._shows_output = shows_output
        self.metric = rollouts.metric

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GepaEvaluator of {self.metric!r}>"

    def close(self) -> None:
        """End the threads and processes that wait for a case; a later case starts new ones."""
        self._rollouts.close()

    # `optimize_anything` passes the case by the name `example`, and only where there is that name.
    def __call__(
        self, candidate: str | Mapping[str, str], example: Any = None
    ) -> tuple[float, dict[str, Any]]:
        """Run and judge a candidate on one case; called by `optimize_anything`.

        Args:
            candidate: A text, or component name to text.
            example: The case; `None` where there is no data set.

        Returns:
            The score and what the reflection model reads.

        Raises:
            DataError: The case or the candidate has another shape.
            MetricError: The metric fails on everything, so that the run has to stop.
        """
        reason = self.metric.broken() if self._raising.has_raised else None
        if reason is not None:  # the run is over, but GEPA's pool has more of these calls in its queue
            raise MetricBroken(f"{reason.rstrip('.')}. Once that is mended, make a new evaluator.")
        with self._raising:
            trajectory = self._rollouts.one(self._job(candidate, example))
        return self._answer(trajectory, candidate)

    def batch(
        self, pairs: Sequence[tuple[str | Mapping[str, str], Any]]
    ) -> list[tuple[float, dict[str, Any]]]:
        """Run and judge many pairs at once; for `optimize_anything(batch_evaluator=...)`.

        Args:
            pairs: Candidate and case.

        Returns:
            For each pair what the evaluator gives for it.

        Raises:
            DataError: A case or a candidate has another shape.
            MetricError: The metric fails on everything, so that the run has to stop.
        """
        with self._raising:
            jobs = [self._job(candidate, example) for candidate, example in pairs]
            trajectories = self._rollouts(jobs)
        return [
            self._answer(trajectory, candidate)
            for (candidate, _), trajectory in zip(pairs, trajectories, strict=True)
        ]

    def _job(self, candidate: str | Mapping[str, str], example: Any) -> "Job":
        input, expected = ({}, None) if example is None else input_and_expected(example)
        return Job(self._shaped(candidate), input, expected)

    def _shaped(self, candidate: str | Mapping[str, str]) -> Artifact:
        shaped = self._in_shape(candidate)
        if self._artifact is None:
            check_artifact(self._rollouts.run, shaped)
        return shaped

    def _in_shape(self, candidate: str | Mapping[str, str]) -> Artifact:
        artifact = self._artifact
        if isinstance(candidate, str) and not isinstance(artifact, Mapping):
            return candidate
        fault = fault_in_parts(candidate)
        if fault is not None:
            wanted = "a text or a dict of named texts" if artifact is None else "a text for each component"
            raise DataError(f"the candidate {fault}; it must be {wanted}")
        parts = dict(cast("Mapping[str, str]", candidate))
        # The refiner of `optimize_anything` adds its own prompt to every candidate that is a dict.
        if not isinstance(artifact, dict) or "refiner_prompt" not in artifact:
            parts.pop("refiner_prompt", None)
        return parts if artifact is None else to_artifact(parts, like=cast("Any", artifact))

    def _answer(
        self, trajectory: Trajectory, candidate: str | Mapping[str, str]
    ) -> tuple[float, dict[str, Any]]:
        score, images = images_apart(trajectory.score)
        is_text = isinstance(candidate, str)
        components = (TEXT_COMPONENT,) if is_text else tuple(candidate)
        texts = component_texts(score)
        self.metric.note_components(texts, components)
        side_info: dict[str, Any] = {}
        if trajectory.input:
            side_info["Input"] = for_prompt(trajectory.input)
        if self._shows_output:
            side_info["Output"] = output_for_prompt(trajectory.output, score)
        if self._include_expected and trajectory.expected is not None:
            side_info["Expected"] = for_prompt(trajectory.expected)
        # GEPA has a name of its own for an artifact that is one text (gepa 0.1.4).
        side_info["Feedback"] = defused(score.text(TEXT_COMPONENT if is_text else None))
        # GEPA takes `scores` for the objectives, shows a component its own part alone, and writes the
        # last three itself.
        side_info = with_images(side_info, images, taken=("scores", "log", "stdout", "stderr"))
        for component in () if is_text else components:
            if own_text(texts, component) is not None:
                side_info[f"{component}_specific_info"] = {"Feedback": defused(score.text(component))}
        self.metric.names_are_read(score.error is not None)
        scores = self.metric.complete(score.scores)
        if scores:
            side_info["scores"] = {defused(name): value for name, value in scores.items()}
        return score.value, side_info
