"""One `score` for GEPA runs outside DSPy: `gepa.optimize` and `optimize_anything`.

Built around gepa 0.1.4. Where a line answers one of its quirks, a comment names it.
"""

import base64
import contextvars
import dataclasses
import functools
import hashlib
import inspect
import io
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, Unpack, cast

from gepa.core.adapter import EvaluationBatch, ProposalFn
from gepa.image import Image
from gepa.optimize_anything import LogContext, get_log_context, set_log_context

from .artifacts import TEXT_COMPONENT, Artifact, to_artifact, to_candidate
from .cases import Case
from .copies import protected
from .deadline import DeadlineExceededError, call_within, wait_within
from .errors import DataError, DefinitionError, MetricBroken, MetricError, SkynetAdaptersError
from .function import told
from .memo import content_key
from .metric import Metric, ScoreFunction, as_metric
from .options import MetricOptions
from .score import Score, clean_text, shown

__all__ = [
    "GepaAdapter",
    "GepaDataset",
    "GepaEvaluator",
    "ReflectionLM",
    "Trajectory",
    "as_gepa_adapter",
    "as_gepa_dataset",
    "as_gepa_evaluator",
    "as_reflection_lm",
]

_log = logging.getLogger("skynet_adapters")

A = TypeVar("A", str, dict[str, str])

# How many cases run at once when nothing is said: a thread each, and one more while it is called.
_MOST_WORKERS = 256
# What one value may take in a reflection prompt or a saved run.
_MAX_VALUE_CHARS = 10_000
_MAX_DEPTH = 8


# --- the adapter of gepa.optimize ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout: a case, what the artifact made of it, and its judgement.

    Attributes:
        input: The case's input fields.
        output: What `run` returned, the object itself; where it raised, what the error carries as
            `output`, or `None`.
        expected: The case's expected fields, or `None`.
        score: The judgement.
    """

    input: dict[str, Any]
    output: Any
    expected: dict[str, Any] | None
    score: Score


def as_gepa_adapter(
    score: ScoreFunction | Metric,
    run: Callable[[A, dict[str, Any]], Any],
    *,
    artifact: A,
    max_workers: int | None = None,
    run_timeout: float | None = 60.0,
    include_expected: bool = False,
    **options: Unpack[MetricOptions],
) -> "GepaAdapter[A]":
    """Make the adapter for `gepa.optimize` of a metric and a function that runs the artifact.

    Each case keeps its place whatever happens to it: a `run` that raises, hangs or returns `None`
    scores the failure score, and the reflection model reads why.

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
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        The adapter. Cases may be `Case`s, dicts `{"input": {...}, "expected": {...}}` or
        `dspy.Example`s with inputs set.

    Raises:
        DefinitionError: `score`, `run`, `artifact` or an option cannot work.

    Example:
        >>> import gepa
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
    return GepaAdapter(
        _Rollouts(as_metric(score, **options), run, run_timeout, max_workers), artifact, include_expected
    )


class GepaAdapter(Generic[A]):
    """What `as_gepa_adapter` returns: GEPA's adapter, and the way from and to the artifact.

    As a context manager it ends its threads at the end, as `close` does.

    Attributes:
        metric: The `Metric`, with its `failures`.
        propose_new_texts: `None`: GEPA's own proposer writes the new texts.
    """

    # GEPA reads it; where it is missing, every proposal fails without a word (gepa 0.1.4).
    propose_new_texts: ProposalFn | None = None

    def __init__(self, rollouts: "_Rollouts", artifact: A, include_expected: bool) -> None:
        self._candidate = to_candidate(artifact)
        self._artifact = artifact
        self._rollouts = rollouts
        self._include_expected = include_expected
        self._stopped = False
        self.metric = rollouts.metric
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
        """End the adapter's threads; one that is used again starts new ones."""
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
        jobs = [
            _Job(self.artifact(candidate), *input_and_expected(case))
            for candidate, batch in items
            for case in batch
        ]
        try:
            rollouts = iter(self._rollouts(jobs))
        except MetricError as error:
            # With raise_on_exception=False GEPA goes on after an Exception, for ever, since its budget
            # does not advance (gepa 0.1.4).
            if self._stopped:
                raise MetricBroken(str(error)) from error
            self._stopped = True
            raise
        self._stopped = False
        return [self._evaluated([next(rollouts) for _ in batch]) for _, batch in items]

    def _evaluated(self, trajectories: list[Trajectory]) -> EvaluationBatch[Trajectory, Any]:
        return EvaluationBatch(
            outputs=[_Plain().whole(trajectory.output) for trajectory in trajectories],
            scores=[trajectory.score.value for trajectory in trajectories],
            trajectories=trajectories,
            objective_scores=self._objective_scores(trajectories),
        )

    def _objective_scores(self, trajectories: list[Trajectory]) -> list[dict[str, float]] | None:
        # Where no case could be judged, GEPA says that objective frontiers need scores, but not how.
        self.metric.names_are_read(any(trajectory.score.error is not None for trajectory in trajectories))
        scores = [self.metric.complete(trajectory.score.scores) for trajectory in trajectories]
        return scores if scores and all(scores) else None

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
        score, images = _images_apart(trajectory.score)
        record: dict[str, Any] = {
            "Inputs": _for_prompt(trajectory.input),
            "Generated Outputs": _output_for_prompt(trajectory),
        }
        if self._include_expected and trajectory.expected is not None:
            record["Expected"] = _for_prompt(trajectory.expected)
        record["Feedback"] = _defused(score.text(component))
        return _with_images(record, images)


# --- the evaluator of optimize_anything -----------------------------------------------------------


def as_gepa_evaluator(
    score: ScoreFunction | Metric,
    run: Callable[[Any, dict[str, Any]], Any] | None = None,
    *,
    artifact: Artifact | None = None,
    max_workers: int | None = None,
    run_timeout: float | None = 60.0,
    include_expected: bool = False,
    **options: Unpack[MetricOptions],
) -> "GepaEvaluator":
    r"""Make the evaluator for `optimize_anything` of a metric and, where there is one, a `run`.

    `optimize_anything(seed, evaluator=evaluator, ...)` runs as many cases at once as there are CPUs,
    and without the caller's `dspy.context`. `batch_evaluator=evaluator.batch` runs all cases of a
    batch at once, in the caller's context. By default `optimize_anything` keeps an objective frontier
    too, so a metric with named scores that may fail needs `score_names`.

    Args:
        score: `score(input, output, expected=None)`, or a `Metric`.
        run: As for `as_gepa_adapter`. `None`: the artifact itself is the output that is judged.
        artifact: What the run begins with, when its shape has to be restored: a text whose seed is
            a dict. `None`: `run` gets what `optimize_anything` gives, which is the seed's shape.
        max_workers: As for `as_gepa_adapter`, in `batch`.
        run_timeout: As for `as_gepa_adapter`.
        include_expected: As for `as_gepa_adapter`.
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
    metric = as_metric(score, **options)
    return GepaEvaluator(
        _Rollouts(metric, run or _itself, run_timeout if run is not None else None, max_workers),
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
        self, rollouts: "_Rollouts", artifact: Artifact | None, include_expected: bool, shows_output: bool
    ) -> None:
        if artifact is not None:
            to_candidate(artifact)
        self._rollouts = rollouts
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
        """End the threads of `batch`; one that is used again starts new ones."""
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
        trajectory = self._rollouts.one(self._job(candidate, example))
        if trajectory.score.error is not None:
            _stop_when_broken(self.metric)
        return self._answer(trajectory)

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
        jobs = [self._job(candidate, example) for candidate, example in pairs]
        return [self._answer(trajectory) for trajectory in self._rollouts(jobs)]

    def _job(self, candidate: str | Mapping[str, str], example: Any) -> "_Job":
        input, expected = ({}, None) if example is None else input_and_expected(example)
        return _Job(self._shaped(candidate), input, expected)

    def _shaped(self, candidate: str | Mapping[str, str]) -> Artifact:
        if isinstance(candidate, str):
            return candidate
        artifact = self._artifact
        parts = dict(candidate)
        # The refiner of `optimize_anything` adds its own prompt to every candidate that is a dict.
        if not isinstance(artifact, dict) or "refiner_prompt" not in artifact:
            parts.pop("refiner_prompt", None)
        return parts if artifact is None else to_artifact(parts, like=cast("Any", artifact))

    def _answer(self, trajectory: Trajectory) -> tuple[float, dict[str, Any]]:
        score, images = _images_apart(trajectory.score)
        side_info: dict[str, Any] = {}
        if trajectory.input:
            side_info["Input"] = _for_prompt(trajectory.input)
        if self._shows_output:
            side_info["Output"] = _output_for_prompt(trajectory)
        if self._include_expected and trajectory.expected is not None:
            side_info["Expected"] = _for_prompt(trajectory.expected)
        side_info["Feedback"] = _defused(score.text())
        # GEPA takes `scores` for the objectives, shows a component its own part alone, and writes the
        # last three itself.
        side_info = _with_images(side_info, images, taken=("scores", "log", "stdout", "stderr"))
        for component in score.info.get("component_feedback", ()):
            side_info[f"{component}_specific_info"] = {"Feedback": _defused(score.text(component))}
        self.metric.names_are_read(score.error is not None)
        scores = self.metric.complete(score.scores)
        if scores:
            side_info["scores"] = scores
        return score.value, side_info


def _itself(artifact: Any, input: dict[str, Any]) -> Any:
    return artifact


# --- the reflection model ---------------------------------------------------------------------------


def as_reflection_lm(model: Any) -> "ReflectionLM":
    """Make the reflection model that GEPA wants: texts or messages in, a text out.

    Args:
        model: A `dspy.LM`, a model's name such as `"openai/gpt-4.1"` (for `dspy.LM`), or a function
            of the prompt that gives a text, plain or async. The prompt is a text, or a list of
            messages where there are images.

    Returns:
        A callable for `reflection_lm=`. An answer that is empty or no text, and whatever the model
        raises, is logged and raised: GEPA itself goes on without a new text. With a `dspy.LM` it
        knows its `total_cost`, which `max_reflection_cost=` asks for.

    Raises:
        DefinitionError: `model` is none of these.

    Example:
        >>> reflection_lm = as_reflection_lm(lambda prompt: [{"text": "Answer in one word."}])
        >>> reflection_lm("Write a better instruction.")
        'Answer in one word.'
    """
    if isinstance(model, str):
        model = _dspy().LM(model)
    if not callable(model):
        raise DefinitionError(
            f"a reflection model is a dspy.LM, a model's name or a function of the prompt; got {shown(model)}"
        )
    return _DspyReflectionLM(model) if _is_dspys(model, "BaseLM") else ReflectionLM(model)


class ReflectionLM:
    """What `as_reflection_lm` returns: a function of the prompt that gives a text or raises."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.name = str(
            getattr(model, "model", None) or getattr(model, "__name__", None) or type(model).__name__
        )

    def __repr__(self) -> str:
        return f"<ReflectionLM {self.name!r}>"

    def __getattr__(self, name: str) -> Any:
        # GEPA's cost limit reads them of a model that counts, such as `gepa.lm.LM`.
        if name in ("total_cost", "total_tokens_in", "total_tokens_out"):
            return getattr(self._model, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        """Ask the model.

        Args:
            prompt: A text, or messages as OpenAI has them.

        Returns:
            The model's text, never empty.

        Raises:
            SkynetAdaptersError: The answer is empty or no text.
        """
        try:
            answer = self._ask(clean_text(prompt) if isinstance(prompt, str) else prompt)
        except Exception as error:
            _log.warning("the reflection model %r raised %s: %s", self.name, type(error).__name__, error)
            raise
        text = _answer_text(answer)
        if not isinstance(text, str) or not text.strip():
            message = (
                f"the reflection model {self.name!r} gave {shown(answer)}, not a text, so nothing new can be "
                "proposed; check its max_tokens (a model that reasons may use them all up), or that the "
                "function returns the text itself"
            )
            _log.warning("%s", message)
            raise SkynetAdaptersError(message)
        return clean_text(text)  # a lone surrogate in it ends the run in GEPA's log file (gepa 0.1.4)

    def _ask(self, prompt: str | list[dict[str, Any]]) -> Any:
        answer = self._model(prompt)
        return wait_within(None, cast("Awaitable[Any]", answer)) if isinstance(answer, Awaitable) else answer


class _DspyReflectionLM(ReflectionLM):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.total_cost = 0.0
        self.total_tokens_in = self.total_tokens_out = 0

    def _ask(self, prompt: str | list[dict[str, Any]]) -> Any:
        calls = _Calls()
        with _dspy().context(caller_modules=[calls]), warnings.catch_warnings():
            # A list of messages is to go with DSPy 3.5; what comes in its place, a `Request`, leaves the
            # model's own temperature and max_tokens out (dspy 3.4.1).
            warnings.filterwarnings("ignore", "Passing OpenAI-style message", DeprecationWarning)
            answer = self._model(prompt) if isinstance(prompt, str) else self._model(messages=prompt)
        for call in calls.history:
            usage: dict[str, Any] = call.get("usage") or {}  # empty for an answer from the cache: no cost
            self.total_tokens_in += int(usage.get("prompt_tokens") or 0)
            self.total_tokens_out += int(usage.get("completion_tokens") or 0)
            self.total_cost += float(call.get("cost") or 0.0) if usage else 0.0
        return answer


def _dspy() -> Any:
    """Import DSPy where it is needed; without it this module is a second quicker to import."""
    import dspy

    return dspy


class _Calls:
    """Receives the history entries of the calls that are made below it, and of no other."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []


def _answer_text(answer: Any) -> Any:
    """Unpack what a model gave: a `dspy.LM` gives a list, of dicts when it reasons too."""
    if _kind(answer) is list and answer:
        answer = answer[0]
    return answer.get("text") if _kind(answer) is dict else answer


_kind: Callable[[Any], Any] = type  # untyped, so that containers of the user stay Any


def _is_dspys(value: object, name: str) -> bool:
    """Tell what is DSPy's without importing it: before it is imported, nothing is."""
    kind = getattr(sys.modules.get("dspy"), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


# --- data sets --------------------------------------------------------------------------------------


def as_gepa_dataset(cases: Iterable[Any]) -> "GepaDataset":
    """Make a data set for `gepa.optimize` whose cases GEPA's cache cannot mix up.

    With `cache_evaluation=True` gepa 0.1.4 takes the third case of the train set for the third of the
    validation set, since both have the number 2. Here ids tell what a case holds, the same in every
    process, so that a run can be resumed.

    Args:
        cases: `Case`s, dicts `{"input": {...}, "expected": {...}}` or `dspy.Example`s.

    Returns:
        A data set for `trainset=` or `valset=`, in the order of the cases.

    Raises:
        DataError: There is no case, or one is of another shape; names its place.

    Example:
        >>> train = as_gepa_dataset([Case("1", {"text": "hi"}), Case("2", {"text": "yo"})])
        >>> val = as_gepa_dataset([Case("3", {"text": "hey"}), Case("2", {"text": "yo"})])
        >>> [a == b for a, b in zip(train.all_ids(), val.all_ids())]
        [False, True]
    """
    return GepaDataset(cases)


class GepaDataset:
    """What `as_gepa_dataset` returns: a data loader of GEPA, with an id for each case."""

    def __init__(self, cases: Iterable[Any]) -> None:
        self._cases: dict[str, Any] = {}
        for number, case in enumerate(cases):
            try:
                key = content_key(*input_and_expected(case))
            except DataError as error:
                raise DataError(f"case {number + 1}: {error}") from None
            # Where there is no content that could be compared, an id that the user gave has to do.
            said = case.id if isinstance(case, Case) else _repr(case)
            digest = hashlib.blake2b(key or said.encode("utf-8", "replace"), digest_size=8).hexdigest()
            self._cases[f"{number:05}-{digest}"] = case
        if not self._cases:
            raise DataError("the data set is empty; there is nothing to evaluate or learn from")

    def __len__(self) -> int:
        return len(self._cases)

    def __repr__(self) -> str:
        return f"<GepaDataset of {len(self)} cases>"

    def all_ids(self) -> list[str]:
        """Give the ids, in the order of the cases; called by GEPA."""
        return list(self._cases)

    def fetch(self, ids: Sequence[str]) -> list[Any]:
        """Give the cases with these ids, in order; called by GEPA."""
        return [self._cases[id] for id in ids]


# --- running and judging ----------------------------------------------------------------------------


class _Job(NamedTuple):
    artifact: Any
    input: dict[str, Any]
    expected: dict[str, Any] | None


class _Rollouts:
    """Run and judge many cases at once, in threads that stay."""

    def __init__(self, metric: Metric, run: Any, run_timeout: Any, max_workers: Any) -> None:
        self.metric = metric
        self._run = _checked_run(run)
        self._run_timeout = _checked_seconds(run_timeout)
        self._max_workers = _checked_workers(max_workers)
        self._start()

    def _start(self) -> None:
        self.metric.begin_again()  # a run that this metric stopped is over
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_pool", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def __call__(self, jobs: Sequence[_Job]) -> list[Trajectory]:
        """Give each job's trajectory, in order.

        Raises:
            MetricError: The metric is broken.
        """
        done: dict[int, Trajectory] = {}
        while len(done) < len(jobs):
            left = [number for number in range(len(jobs)) if number not in done]
            for number, trajectory in zip(left, self._map([jobs[number] for number in left]), strict=True):
                if trajectory is not None:
                    done[number] = trajectory
            # Only now: a metric that failed on the first to come back may have judged others meanwhile.
            _stop_when_broken(self.metric)
        return [done[number] for number in range(len(jobs))]

    def _map(self, jobs: Sequence[_Job]) -> list[Trajectory | None]:
        with self._lock:
            if self._pool is None:  # it starts a thread only when none is idle
                self._pool = ThreadPoolExecutor(self._max_workers, "skynet-adapters-rollout")
            pool = self._pool
        # What would run at once runs in any case: which of it comes back first says nothing.
        futures = [
            pool.submit(
                contextvars.copy_context().run,
                self.one if number < self._max_workers else self._unless_broken,
                job,
            )
            for number, job in enumerate(jobs)
        ]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                error = future.exception() if future.done() else None
                if error is not None:
                    raise error
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _unless_broken(self, job: _Job) -> Trajectory | None:
        return None if self.metric.broken() is not None else self.one(job)

    def one(self, job: _Job) -> Trajectory:
        """Run and judge one case, in this thread."""
        input, expected = job.input, job.expected
        try:
            output = self._output(job)
        except (KeyboardInterrupt, MetricBroken):
            raise
        except DeadlineExceededError:
            what = f"It did not answer within {self._run_timeout:g} s."
            return Trajectory(input, None, expected, self.metric.program_failed(input, what))
        except BaseException as error:  # SystemExit of one case must not end the run either
            score = self.metric.program_failed(input, f"It raised {told(error, self._run)}.")
            return Trajectory(input, _output_so_far(error), expected, score)
        return Trajectory(input, output, expected, self.metric.score_case(input, output, expected))

    def _output(self, job: _Job) -> Any:
        artifact, input = job.artifact, protected(job.input)  # so that `run` cannot change the case
        seconds = self._run_timeout
        if seconds is None:
            left, output = None, self._run(artifact, input)
        else:
            begun = time.monotonic()
            output = call_within(
                seconds, functools.partial(_logged, _log_context(), self._run, artifact, input)
            )
            left = seconds - (time.monotonic() - begun)
        return wait_within(left, cast("Awaitable[Any]", output)) if isinstance(output, Awaitable) else output


def _stop_when_broken(metric: Metric) -> None:
    reason = metric.broken()
    if reason is not None:
        raise MetricError(reason)


def _log_context() -> LogContext | None:
    """Find where `gepa.optimize_anything.log` writes to in this thread."""
    try:
        return get_log_context()
    except RuntimeError:
        return None


def _logged(context: LogContext | None, run: Any, artifact: Any, input: Any) -> Any:
    if context is None:
        return run(artifact, input)
    set_log_context(context)
    try:
        return run(artifact, input)
    finally:
        set_log_context(cast("Any", None))  # this thread serves other calls afterwards


def _output_so_far(error: BaseException) -> Any:
    """Find what an error carries: `subprocess` has `output`, DSPy's parse errors have `lm_response`."""
    for name in ("output", "lm_response"):
        try:
            output = getattr(error, name, None)
        except Exception:  # a property of the user's own
            output = None
        if output is not None and not callable(output):
            return output
    return None


def input_and_expected(case: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Give a case's input and expected fields.

    Args:
        case: A `Case`, a dict `{"input": {...}, "expected": {...}}` or a `dspy.Example`.

    Returns:
        The fields; `None` for `expected` where there is none.

    Raises:
        DataError: It is none of these, or the example has no inputs set.

    Example:
        >>> input_and_expected({"input": {"text": "hi"}})
        ({'text': 'hi'}, None)
    """
    if isinstance(case, Case):
        return case.input, case.expected
    if _is_dspys(case, "Example"):
        return _example_parts(case)
    parts: Mapping[str, Any] = case if _is_mapping(case) else {}
    if not _is_mapping(parts.get("input")):
        raise DataError(
            f'{shown(case)} is no case; it must be a Case, a dict {{"input": {{...}}, "expected": {{...}}}} '
            "with a dict of fields as input, or a dspy.Example"
        )
    return parts["input"], parts.get("expected")


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _example_parts(example: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    fields: dict[str, Any] = example._store
    keys: set[str] | None = example._input_keys
    if keys is None:
        raise DataError(
            f"an example with the fields {list(fields)} has no inputs set; call .with_inputs(...) on it"
        )
    labels = {name: value for name, value in fields.items() if name not in keys and name[:5] != "dspy_"}
    return {name: value for name, value in fields.items() if name in keys}, labels or None


# --- what the reflection model and a saved run get to see -------------------------------------------


def _output_for_prompt(trajectory: Trajectory) -> Any:
    if trajectory.output is None:
        return "(no output)"
    return _for_prompt(trajectory.output)


def _for_prompt(value: Any) -> Any:
    return _Plain(images=True).whole(value)


class _Plain:
    """Rebuild a value of texts, numbers, lists and dicts, no longer than is allowed in all.

    GEPA pickles outputs and writes records as markdown with `str`, without any limit (gepa 0.1.4).
    """

    def __init__(self, images: bool = False) -> None:
        self._images = images  # for a prompt: images stay, placeholders go
        self._left = _MAX_VALUE_CHARS

    def whole(self, value: Any) -> Any:
        try:
            return self._value(value, 0)
        except (Exception, SystemExit):  # a container of the user's own that raises when read
            return self._text(shown(value))

    def _value(self, value: Any, depth: int) -> Any:
        self._left -= 4  # a long list of nothing takes its room too
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int) and value.bit_length() <= 1_000:  # `str` refuses very long ones
            return int(value)
        if is_image(value):
            return as_image(value) if self._images else "[image]"
        if isinstance(value, str):
            return self._text(value)
        if depth < _MAX_DEPTH:
            fields = _fields(value)
            if fields is not None:
                return self._dict(fields, depth)
            if isinstance(value, list | tuple | set | frozenset):
                return self._list(cast("Iterable[Any]", value), depth)
        return self._text(_repr(value))

    def _dict(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in fields.items():
            if self._left <= 0:
                made["..."] = f"[{len(fields) - len(made)} more left out]"
                break
            made[self._text(key if isinstance(key, str) else _repr(key))] = self._value(item, depth + 1)
        return made

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        items = list(items)
        for item in items:
            if self._left <= 0:
                made.append(f"[{len(items) - len(made)} more left out]")
                break
            made.append(self._value(item, depth + 1))
        return made

    def _text(self, text: str) -> str:
        text = clean_text(text, max(self._left, 100))
        self._left -= len(text)
        return _defused(text) if self._images else text


def _defused(text: str) -> str:
    """Keep a placeholder of GEPA's prompt template out of the texts that a new candidate is made of."""
    return text.replace("<side_info>", "<side info>").replace("<curr_param>", "<curr param>")


def _warn_of_placeholder(candidate: Mapping[str, str]) -> None:
    for name, text in candidate.items():
        if "<side_info>" in text:
            part = "the artifact" if name == TEXT_COMPONENT else f"the part {name!r} of the artifact"
            _log.warning(
                "%s has <side_info> in it, which GEPA's reflection prompt replaces by all the feedback; "
                "write it differently",
                part,
            )


def _fields(value: Any) -> Mapping[Any, Any] | None:
    kind = _kind(value)
    if _is_mapping(value):
        return value
    if _is_dspys(value, "Example"):  # predictions too
        return value._store
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if hasattr(kind, "_asdict"):  # a named tuple
        return value._asdict()
    names: Any = getattr(kind, "model_fields", None)  # pydantic
    return {name: getattr(value, name) for name in names} if _kind(names) is dict else None


def _repr(value: object) -> str:
    try:
        return repr(value)
    except (Exception, SystemExit):
        return shown(value, with_type=False)


# --- images -----------------------------------------------------------------------------------------


def as_image(value: Any) -> Image | None:
    """Turn what is an image into GEPA's own, which reaches the reflection model as an image.

    Args:
        value: A `gepa.Image`, a `dspy.Image`, an image of Pillow, a `data:image/...;base64,` text, or
            anything else.

    Returns:
        The image; `None` for anything else, and for a file that is not there.

    Example:
        >>> as_image("data:image/png;base64,iVBORw0KGgo=").url
        'data:image/png;base64,iVBORw0KGgo='
        >>> as_image("text") is None
        True
    """
    if not is_image(value):
        return None
    if isinstance(value, Image):
        return value
    if not _is_pillows(value):
        return Image(url=value if isinstance(value, str) else value.url)
    buffer = io.BytesIO()
    plain = value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else value.convert("RGB")
    plain.save(buffer, format="PNG")
    return Image(base64_data=base64.b64encode(buffer.getvalue()).decode(), media_type="image/png")


def is_image(value: Any) -> bool:
    """Tell what `as_image` makes an image of."""
    if isinstance(value, str):
        return value.startswith("data:image/") and ";base64," in value[:100]
    if isinstance(value, Image):
        # GEPA opens the file only when it writes the prompt, and then no text is proposed (gepa 0.1.4).
        return value.path is None or os.path.isfile(value.path)
    return _is_dspys(value, "Image") or _is_pillows(value)


def _is_pillows(value: object) -> bool:
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return isinstance(kind, type) and isinstance(value, kind)


def _has_image(value: Any, depth: int = 0) -> bool:
    kind = _kind(value)  # a container of the user's own might raise when read
    if depth < _MAX_DEPTH and kind is dict:
        return any(_has_image(item, depth + 1) for item in value.values())
    if depth < _MAX_DEPTH and kind in (list, tuple):
        return any(_has_image(item, depth + 1) for item in value)
    return is_image(value)


def _images_apart(score: Score) -> tuple[Score, dict[str, Any]]:
    """Take the further information that holds images out of what `Score.text` writes."""
    images = {
        key: value for key, value in score.info.items() if key != "component_feedback" and _has_image(value)
    }
    if not images:
        return score, images
    return score._replace(info={key: value for key, value in score.info.items() if key not in images}), images


def _with_images(
    record: dict[str, Any], images: Mapping[str, Any], taken: Sequence[str] = ()
) -> dict[str, Any]:
    for key, value in images.items():
        key = _defused(key)
        if key in record or key in taken or key.endswith("_specific_info"):
            key = f"{key} of the metric"
        record[key] = _for_prompt(value)
    return record


# --- options ----------------------------------------------------------------------------------------


class _Run(Protocol):
    def __call__(self, artifact: Any, input: dict[str, Any], /) -> Any: ...


def _checked_run(run: Any) -> _Run:
    if not callable(run):
        raise DefinitionError(f"run is a function run(artifact, input); got {shown(run)}")
    if _is_dspys(run, "Module"):  # its signature, `*args, **kwargs`, would pass for any
        raise DefinitionError(
            f"run is a function run(artifact, input); got the DSPy program {shown(run)}: pass "
            "program_run(program), and program_artifact(program) as the artifact"
        )
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):  # some functions written in C have none
        return run
    try:
        signature.bind(None, None)
    except TypeError:
        raise DefinitionError(
            f"run cannot be called as run(artifact, input): its signature is {signature}"
        ) from None
    return run


def _checked_seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value):
        return float(value)
    raise DefinitionError(
        f"run_timeout={shown(value, with_type=False)} cannot be used: it must be a finite number of seconds, "
        "above 0; None for no limit"
    )


def _checked_workers(value: Any) -> int:
    if value is None:
        return _MOST_WORKERS
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise DefinitionError(
        f"max_workers={shown(value, with_type=False)} cannot be used: it must be a whole number, at least 1"
    )
