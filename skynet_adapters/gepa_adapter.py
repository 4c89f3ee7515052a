"""The adapter of `gepa.optimize`, made of a metric and a function that runs the artifact.

Built around gepa 0.1.4. Where a line answers one of its quirks, a comment names it.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, Literal, Self, TypeVar, Unpack

from gepa.core.adapter import EvaluationBatch, ProposalFn

from .artifacts import TEXT_COMPONENT, to_artifact, to_candidate
from .attempt import check_artifact
from .errors import DataError, MetricError
from .gepa_cases import fault_of_cases, input_and_expected
from .gepa_closing import ClosingCallback
from .gepa_rollouts import GEPA_OPTIONS, Job, Raising, Rollouts, Trajectory
from .gepa_values import defused, for_prompt, images_apart, output_for_prompt, plain, with_images
from .judge_llm import checked_models
from .metric import Metric, ScoreFunction, metric_with
from .options import MetricOptions
from .score import component_texts

__all__ = ["GepaAdapter", "as_gepa_adapter"]

_log = logging.getLogger("skynet_adapters")

A = TypeVar("A", str, dict[str, str])


def as_gepa_adapter(
    score: ScoreFunction | Metric,
    run: Callable[[A, dict[str, Any]], Any],
    *,
    artifact: A,
    max_workers: int | None = None,
    run_timeout: float | None = 60.0,
    include_expected: bool = False,
    executor: Executor | None = None,
    run_isolation: Literal["process"] | None = None,
    run_memory_limit_mb: float | None = None,
    metric_lm: Any = None,
    reflection_lm: Any = None,
    **options: Unpack[MetricOptions],
) -> "GepaAdapter[A]":
    """Make the adapter for `gepa.optimize` of a metric and a function that runs the artifact.

    Each case keeps its place whatever happens to it: a `run` that raises, hangs or returns `None`
    scores the failure score, and the reflection model reads why.

    What a rollout takes is measured; a price that DSPy does not know is given by making this inside of
    `with measuring(prices=...):`.

    Args:
        score: `score(input, output, expected=None)`, or a `Metric`.
        run: `run(artifact, input)` gives the output for one case, plain or async. It gets the
            artifact in the shape of `artifact` and a copy of the case's input fields. It is called
            in many threads at once, each with the context (`dspy.context` too) of the thread that
            evaluates.
        artifact: What is optimised, a text or a dict of named texts.
        max_workers: How many cases run at once, at most; `None`: all of a batch, up to 256.
        run_timeout: Seconds that `run` may take for one case; `None`: no limit. The option
            `timeout` is the metric's.
        include_expected: Whether the reflection model sees the cases' expected values.
        executor: Where `run` is called, such as `client.get_executor(pure=False)` of Dask; `None`: in
            threads here. Function, artifact, input and DSPy's current model with its keys travel by
            cloudpickle, and this package has to be installed there; everything else stays here: scores,
            memory, failures, and the caller's context. `run_timeout` holds there as here (the worker
            goes on, what hung runs on in it), and what no longer answers at all is given up 30 s later.
            A worker that dies fails its case where the executor starts another, as Dask does; a
            `ProcessPoolExecutor` is broken by it, and the run ends. What `run` takes there is not
            measured.
        run_isolation: `"process"`: `run` is called in worker processes, up to `max_workers` (`None`: 8, or
            as many as there are CPUs), as `isolation` of `Metric` does with `score`, and never in the same
            ones: a crash fails its case and no other, `run_timeout` kills, and no keys are there; `run`
            asks models with `llm`. Other model calls are not measured. `None`: in threads here.
        run_memory_limit_mb: As `memory_limit_mb` of `Metric`, for `run`.
        metric_lm: The model that `llm` asks inside of `score`, see `set_models`. `None`: what `models`
            chose, around the run or where this is called, or `set_models`.
        reflection_lm: The same, which `llm` asks where there is no metric model.
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        The adapter. Cases may be `Case`s, dicts `{"input": {...}, "expected": {...}}` or
        `dspy.Example`s with inputs set.

    Raises:
        DefinitionError: `score`, `run`, `artifact` or an option cannot work.

    Example:
        >>> import gepa
        >>> from skynet_adapters import Case, as_reflection_lm
        >>> def run(artifact, input):
        ...     return input["text"].upper() if "capitals" in artifact else input["text"]
        >>> def score(input, output, expected=None):
        ...     right = output == expected["text"]
        ...     return right, {"feedback": "Right." if right else f"Expected {expected['text']!r}."}
        >>> cases = [Case("1", {"text": "hi"}, {"text": "HI"}), Case("2", {"text": "yo"}, {"text": "YO"})]
        >>> class Quiet:
        ...     def log(self, message): ...
        >>> with as_gepa_adapter(score, run, artifact="Repeat it.") as adapter:
        ...     result = gepa.optimize(
        ...         adapter.seed_candidate,
        ...         trainset=cases,
        ...         adapter=adapter,
        ...         reflection_lm=as_reflection_lm(lambda prompt: "Repeat it in capitals."),
        ...         max_metric_calls=10,
        ...         logger=Quiet(),
        ...     )
        >>> adapter.artifact(result.best_candidate)
        'Repeat it in capitals.'
    """
    rollouts = Rollouts(
        metric_with(score, options, GEPA_OPTIONS),
        run,
        run_timeout,
        max_workers,
        executor,
        checked_models(metric_lm, reflection_lm),
        run_isolation,
        run_memory_limit_mb,
    )
    check_artifact(run, artifact)
    return GepaAdapter(rollouts, artifact, include_expected)


def needs_named_scores(frontier: object, metric: Metric) -> str:
    """Say what a frontier of objectives lacks."""
    return (
        f"frontier_type={frontier!r} needs named scores, and metric {metric.name!r} gave none so far; return "
        '"scores" beside "feedback", pass score_names=[...], or take frontier_type="instance"'
    )


class GepaAdapter(Generic[A]):
    """What `as_gepa_adapter` returns: GEPA's adapter, and the way from and to the artifact.

    As a context manager it ends idle threads at the end, as `close` does.

    Attributes:
        metric: The `Metric`, with its `failures`.
        callback: For `callbacks=[...]`: warns at the end when no candidate was accepted, or no case could be
            judged, and why.
        frontier_type: GEPA's frontier, once `check_gepa_run` has seen it; `None`: not known.
        seen_scores: The lowest and the highest score so far, without failure scores; `None`: none yet.
        propose_new_texts: `None`: GEPA's own proposer writes the new texts.
    """

    # GEPA reads it; where it is missing, every proposal fails without a word (gepa 0.1.4).
    propose_new_texts: ProposalFn | None = None

    def __init__(self, rollouts: "Rollouts", artifact: A, include_expected: bool) -> None:
        self._candidate = to_candidate(artifact)
        self._artifact = artifact
        self._rollouts = rollouts
        self._include_expected = include_expected
        self._raising = Raising(MetricError, DataError)
        self.metric = rollouts.metric
        self.callback = ClosingCallback(rollouts.outcomes)
        self.seen_scores: tuple[float, float] | None = None
        self.frontier_type: str | None = None
        _warn_of_placeholder(self._candidate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GepaAdapter of {self.metric!r} for {list(self._candidate)}>"

    @property
    def seed_candidate(self) -> dict[str, str]:
        """The artifact as the candidate that `gepa.optimize` begins with."""
        return dict(self._candidate)

    def artifact(self, candidate: Mapping[str, str]) -> A:
        """Turn a candidate, such as the result's best, into an artifact of the given shape.

        Args:
            candidate: Component name to text.

        Returns:
            A text when the artifact was a text, else a dict of its parts.

        Raises:
            DataError: The candidate belongs to another artifact.
        """
        return to_artifact(candidate, like=self._artifact)

    def close(self) -> None:
        """End the threads and processes that wait for a case; a later case starts new ones."""
        self._rollouts.close()

    def evaluate(
        self, batch: Sequence[Any], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Trajectory, Any]:
        """Run and judge a candidate on a batch; called by GEPA.

        Args:
            batch: The cases.
            candidate: Component name to text.
            capture_traces: Whether to give the trajectories.

        Returns:
            Outputs as plain, capped data, scores, and complete named scores where there are any,
            each in the order of the batch.

        Raises:
            DataError: A case or the candidate has another shape.
            MetricError: The metric fails on everything, so that the run has to stop.
        """
        (evaluated,) = self.batch_evaluate([(candidate, batch)])
        return evaluated if capture_traces else dataclasses.replace(evaluated, trajectories=None)

    def batch_evaluate(
        self, items: Sequence[tuple[dict[str, str], Sequence[Any]]]
    ) -> list[EvaluationBatch[Trajectory, Any]]:
        """Run and judge several candidates at once, each on its own batch; called by GEPA.

        Args:
            items: Pairs of candidate and cases.

        Returns:
            What `evaluate` gives for each pair, with trajectories.

        Raises:
            DataError: A case or a candidate has another shape.
            MetricError: The metric fails on everything, so that the run has to stop.
        """
        with self._raising:
            for _, batch in items:
                fault = fault_of_cases(batch)
                if fault is not None:
                    raise DataError(fault)
            jobs = [
                Job(self.artifact(candidate), *input_and_expected(case))
                for candidate, batch in items
                for case in batch
            ]
            rollouts = iter(self._rollouts(jobs))
        return [self._evaluated([next(rollouts) for _ in batch]) for _, batch in items]

    def _evaluated(self, trajectories: list[Trajectory]) -> EvaluationBatch[Trajectory, Any]:
        for trajectory in trajectories:
            self.metric.note_components(component_texts(trajectory.score), self._candidate)
        judged = [trajectory.score.value for trajectory in trajectories if trajectory.score.error is None]
        if judged:
            seen = [*judged, *(self.seen_scores or ())]
            self.seen_scores = min(seen), max(seen)
        return EvaluationBatch(
            outputs=[plain(trajectory.output) for trajectory in trajectories],
            scores=[trajectory.score.value for trajectory in trajectories],
            trajectories=trajectories,
            objective_scores=self._objective_scores(trajectories),
        )

    def _objective_scores(self, trajectories: list[Trajectory]) -> list[dict[str, float]] | None:
        # Where no case could be judged, GEPA says that objective frontiers need scores, but not how.
        failed = any(trajectory.score.error is not None for trajectory in trajectories)
        self.metric.names_are_read(failed and self.frontier_type != "instance")
        scores = [self.metric.complete(trajectory.score.scores) for trajectory in trajectories]
        if all(scores):
            return scores or None
        if self.frontier_type not in (None, "instance"):  # GEPA's own error does not say what to do
            failed_first = next((one for one in trajectories if one.score.error is not None), None)
            why = "" if failed_first is None else f". The first failure: {failed_first.score.error}"
            raise MetricError(f"{needs_named_scores(self.frontier_type, self.metric)}{why}")
        return None

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[Trajectory, Any],
        components_to_update: Sequence[str],
    ) -> dict[str, list[dict[str, Any]]]:
        """Write what the reflection model reads of a batch; called by GEPA.

        Args:
            candidate: The candidate that was evaluated.
            eval_batch: What `evaluate` gave with traces.
            components_to_update: For which components.

        Returns:
            For each component one record for each case, with "Inputs", "Generated Outputs",
            "Expected" when wanted, "Feedback", and the metric's images under their own keys.
        """
        trajectories = eval_batch.trajectories or []
        return {
            component: [self._record(trajectory, component) for trajectory in trajectories]
            for component in components_to_update
        }

    def _record(self, trajectory: Trajectory, component: str) -> dict[str, Any]:
        score, images = images_apart(trajectory.score)
        record: dict[str, Any] = {
            "Inputs": for_prompt(trajectory.input),
            "Generated Outputs": output_for_prompt(trajectory.output, score),
        }
        if self._include_expected and trajectory.expected is not None:
            record["Expected"] = for_prompt(trajectory.expected)
        record["Feedback"] = defused(score.text(component))
        return with_images(record, images)


def _warn_of_placeholder(candidate: Mapping[str, str]) -> None:
    for name, text in candidate.items():
        if "<side_info>" in text:
            part = "the artifact" if name == TEXT_COMPONENT else f"the part {name!r} of the artifact"
            _log.warning(
                "%s has <side_info> in it, which GEPA's reflection prompt replaces by all the feedback; "
                "write it differently",
                part,
            )
