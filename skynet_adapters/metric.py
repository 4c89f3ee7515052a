"""`Metric`: the one place where a user's `score` is called."""

import functools
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, Unpack, cast

from .attempt import RETURNED_NOTHING
from .copies import protected
from .deadline import DeadlineExceededError, call_within, wait_within
from .errors import (
    DefinitionError,
    MetricBroken,
    MetricError,
    MetricReturnError,
    MetricTimeoutError,
    ProgramFailedError,
)
from .failures import Failure, Failures, closing_warning
from .function import Ask, ToldError, caller, function_name, hint, is_async, is_made_here, told
from .measure import Bill, Observation, begin_judging, end_judging
from .memo import ContentMemo, RolloutMemo, content_key
from .options import (
    OPTIONS_OF_MODELS,
    OPTIONS_OF_RUNS,
    MetricOptions,
    checked_name,
    checked_options,
    near_match,
)
from .score import Score, clean_text, complete_scores, parse_return, shown, strangers
from .stand_ins import Perfect, perfect_outputs
from .stopping import StopRule

if TYPE_CHECKING:
    from .isolated import ScoreProcesses
    from .memo_store import ScoreStore

__all__ = ["Isolation", "Metric", "ScoreFunction", "as_metric", "isolations", "metric_with"]

_log = logging.getLogger("skynet_adapters")

_NOTHING_YET: Any = object()

# `score(input, output, expected=None)`; keyword names and arity are checked by `Metric`.
ScoreFunction = Callable[..., Any]


class Isolation(Protocol):
    """Keeps what a metric does away from the program that is judged; one for each target library."""

    def enter(self, metric: "Metric", is_awaited: bool) -> Any:
        """Begin, in the thread that asks for the score; returns what `leave` needs.

        Args:
            metric: Whose function is called.
            is_awaited: Whether the call runs on an event loop.
        """
        ...

    def leave(self, token: Any) -> None:
        """End, in the same thread."""
        ...

    def inside(self) -> bool:
        """Tell whether this thread runs on behalf of a metric."""
        ...

    def in_rollout(self) -> bool:
        """Tell whether this is called from a rollout that is measured."""
        ...

    def depth(self) -> int:
        """Tell how many awaited calls of metrics this thread is inside of."""
        ...


# The case's and the answer's own objects; and who reads other fields of them than the target does by itself.
Rollout = tuple[object, object] | tuple[object, object, object]

# Targets append theirs when they are imported, so that nothing here knows them.
isolations: list[Isolation] = []

# Set while a call that others may wait for is under way; a call from inside it must not wait.
_awaited: ContextVar[bool] = ContextVar("skynet_adapters_awaited", default=False)


class Metric:
    """A user's `score`, called the same way for every target.

    Calling a `Metric` gives the pair that the user's function returned and raises `MetricError`
    where there is none, so a `Metric` is itself a valid `score`. `score_case` gives a `Score` and
    never raises.

    Args:
        score: `score(input, output, expected=None)` or `score(input, output)`; plain, async, a
            callable object, a partial or a lambda. Another `Metric` is unwrapped and keeps its
            options.
        name: Shown in messages and tables; `None`: from the function or its file.
        score_range: `(low, high)` that scores lie in; they are normalised to 0..1, and one outside
            is an error. `None`: scores pass as they are.
        score_names: Every name that `"scores"` may hold. `None`: the union of what was seen.
        failure_score: Value of a case without a judgement, on the scale that optimisers see.
        success_threshold: A score counts as success from here on, on the scale that optimisers
            see; `None`: 1.0.
        memo: `"rollout"` judges each rollout once. `"content"` also answers for the same
            `(input, output, expected)` from elsewhere, and so freezes one sample of a judge that is
            not deterministic. `None`: every call judges.
        memo_dir: Folder, made when it is missing, in which the judgements of `memo="content"` outlast the
            process; many processes may share it. They are known by the metric's `fingerprint` and by the
            models that `llm` and DSPy would ask; what else decides, such as a server that the metric asks by
            itself, is for you to know. Failures are not kept, nor what JSON cannot hold. At most the newest
            50,000. `None`: they end with the process.
        timeout: Seconds that one call may take, above 0 and at most 600. `None`: no limit, and the
            function is called in the caller's own thread.
        stop_after: After so many rollouts on which the function failed, without one success ever,
            the run is stopped, unless the function accepts the expected value as output. `None`:
            never.
        max_failures_in_a_row: The run is stopped after so many failures of the function in a row,
            also after successes. `None`: never.
        copy_inputs: Give the function copies, so that it cannot change what it judges. An object that
            both input and output hold arrives as two.
        max_feedback_chars: Longer texts are cut in the middle. `None`: never.
        isolation: `"process"`: the function is called in worker processes, for code that may crash, hang
            or eat the memory, such as code that a model has written. A crash fails its case and no
            other; what takes longer than `timeout` is killed. A worker has the variables of the
            environment that Python and the system need and no others, so no keys; `llm` asks this
            process, on its bill, and `observation` gives the same record. It is no sandbox: files and
            network are yours. Different there: what is kept in module globals is the worker's own, the
            caller's context (`dspy.context`) is absent, and what the function is given and returns has
            to be picklable. `None`: the function is called in this process.
        memory_limit_mb: Megabytes of address space that a worker may take beyond what it has when the
            function is loaded; needs `isolation` and Linux. Beyond it the function gets a
            `MemoryError`. `None`: no limit.

    Attributes:
        failures: What went wrong, a `Failures`.
        calls: How often the user's function was called.
        bill: What the function's own model calls took, a `Bill`.

    Raises:
        DefinitionError: `score` or an option cannot work.

    Example:
        >>> def score(input, output, expected=None):
        ...     right = output == expected["label"]
        ...     return right, {"feedback": "Right." if right else f"Expected {expected['label']!r}."}
        >>> metric = Metric(score)
        >>> metric.score_case({"text": "hi"}, "b", {"label": "a"}).feedback
        "Expected 'a'."
        >>> metric({"text": "hi"}, "a", {"label": "a"})
        (True, {'feedback': 'Right.'})
    """

    # `__init__` cannot tell an option that was passed from its default.
    def __new__(cls, score: object = None, **options: Any) -> Self:
        """Refuse options beside a `Metric`, which has its own."""
        _refuse_options(score, options)
        _refuse_those_of_targets(options)
        _refuse_what_was_made_of_one(score)
        return super().__new__(cls)

    def __init__(  # pyright: ignore[reportInconsistentConstructor]
        self,
        score: ScoreFunction,
        *,
        name: str | None = None,
        score_range: tuple[float, float] | None = None,
        score_names: Iterable[str] | None = None,
        failure_score: float = 0.0,
        success_threshold: float | None = None,
        memo: Literal["rollout", "content"] | None = "rollout",
        memo_dir: str | os.PathLike[str] | None = None,
        timeout: float | None = 60.0,
        stop_after: int | None = 5,
        max_failures_in_a_row: int | None = None,
        copy_inputs: bool = True,
        max_feedback_chars: int | None = 10_000,
        isolation: Literal["process"] | None = None,
        memory_limit_mb: float | None = None,
    ) -> None:
        if isinstance(score, Metric):
            self.__setstate__(score.__getstate__())
            return
        self.score = score
        self.name = function_name(score) if name is None else checked_name(name)
        self._options: dict[str, Any] = {"name": self.name} | checked_options(
            MetricOptions(
                score_range=score_range,
                score_names=score_names,
                failure_score=failure_score,
                success_threshold=success_threshold,
                memo=memo,
                memo_dir=memo_dir,
                timeout=timeout,
                stop_after=stop_after,
                max_failures_in_a_row=max_failures_in_a_row,
                copy_inputs=copy_inputs,
                max_feedback_chars=max_feedback_chars,
                isolation=isolation,
                memory_limit_mb=memory_limit_mb,
            )
        )
        self._start(caller(score, self.name))

    def _start(self, ask: Ask) -> None:
        """Set what is not pickled, and what is read on every call."""
        options = self._options
        self._ask = ask
        self._range = options.get("score_range")
        self._names: tuple[str, ...] | None = options.get("score_names")
        self._timeout = options.get("timeout")
        self._copies = options["copy_inputs"]
        self._limit = options.get("max_feedback_chars")
        self._is_async = is_async(self.score)
        self._inline = self._timeout is None or self._is_async
        self._processes = _processes(self.score, self.name, options)
        self.failure_score = options["failure_score"]
        threshold = options.get("success_threshold")
        self.success_threshold = 1.0 if threshold is None else threshold
        self._rollouts = RolloutMemo[Score]()
        self._recalls = options["memo"] is not None
        self._contents = ContentMemo[Score]() if options["memo"] == "content" else None
        self._with_models = _with_models() if self._contents is not None else None
        self._store = _store(self, options.get("memo_dir"))
        self._seen_names: dict[str, None] = dict.fromkeys(self._names or ())
        self._names_were_read = False
        self.failures = Failures(self)
        self.bill = Bill()
        # Then it is what the program made itself that is judged.
        self.was_made_in_rollout = any(isolation.in_rollout() for isolation in isolations)
        self._lock = threading.Lock()
        self._calls = 0
        self._stop = StopRule(self.name, options.get("stop_after"), options.get("max_failures_in_a_row"))
        self._warned: set[str] = set()
        self._model: str | None = None  # that the metric's own calls went to last
        weakref.finalize(self, closing_warning, self.name, self.failures)

    def close(self) -> None:
        """End the worker processes of `isolation="process"`; a call that comes later starts new ones."""
        if self._processes is not None:
            self._processes.end()

    def __getstate__(self) -> dict[str, Any]:
        """Keep function and options; locks, memories and counters stay behind."""
        return {"score": self.score, "options": dict(self._options)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a metric that has judged nothing yet."""
        Metric.__init__(self, state["score"], **state["options"])

    def __repr__(self) -> str:
        return f"<Metric {self.name!r}: {self.calls} calls, {len(self.failures)} failures>"

    @property
    def calls(self) -> int:
        """How often the user's function was called."""
        return self._calls

    @property
    def options(self) -> dict[str, Any]:
        """The options that it was made with, name to value; a copy."""
        return dict(self._options)

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take."""
        return self._timeout

    def __call__(self, input: Any, output: Any, expected: Any = None) -> tuple[Any, dict[str, Any]]:
        """Give the pair that the user's function returned.

        Args:
            input: The case's input fields, a dict.
            output: What is judged.
            expected: The case's expected value, or `None`.

        Returns:
            The number as the function returned it, and its additional information.

        Raises:
            MetricError: The function raised, timed out or returned another shape, or there is no
                output to judge.
        """
        if hasattr(input, "with_inputs"):
            raise DefinitionError(
                f"metric {self.name!r} was called with a DSPy example; pass as_dspy_metric(metric) to DSPy"
            )
        if output is None:
            raise self.program_failed(input).error or AssertionError
        token = begin_judging(self, None)
        try:
            score, returned = self._asked(input, output, expected)
        finally:
            end_judging(token)
        if score.error is not None:
            self._record(input, score)
            raise score.error
        number, info = returned
        return number, info

    def score_case(
        self, input: Any, output: Any, expected: Any = None, *, observation: Observation | None = None
    ) -> Score:
        """Judge one case; never raises for what the metric does.

        Args:
            input: The case's input fields, a dict.
            output: What the program or artifact gave; `None` means that it gave nothing, and the
                user's function is not called.
            expected: The case's expected value, a dict, or `None`.
            observation: What the rollout took, for a function that reads it; `None`: nobody measured.

        Returns:
            The judgement; with `error` set, and the failure score as value, where there is none.
        """
        if output is None:
            return self.program_failed(input)
        return self.judge(input, output, expected, observation=observation)

    def judge(
        self,
        input: Any,
        output: Any,
        expected: Any,
        *,
        rollout: Rollout | None = None,
        perfect: Perfect | None = None,
        again: bool = False,
        observation: Observation | None = None,
    ) -> Score:
        """Judge an output that is there, `None` included; for targets.

        Args:
            input: See `score_case`.
            output: See `score_case`.
            expected: See `score_case`.
            rollout: The case's and the answer's own objects, and who reads them, for `recall`.
            perfect: Gives, from the answer's object and `expected`, what a perfect answer's output
                may be, none where it cannot tell; asked only before a run is stopped.
            again: This rollout was judged before, so a failure is not counted towards a stop.
            observation: What the rollout took; `None`: nobody measured.

        Returns:
            The judgement, remembered for `recall` when `rollout` is given.
        """
        token = begin_judging(self, observation)
        try:
            fresh, contents, run = True, self._contents, self._stop.run
            if contents is None:
                score = self._judged(input, output, expected)
            else:
                score, fresh = self._judged_by_content(contents, input, output, expected)
                if (
                    self._contents is not contents and not fresh
                ):  # it reads measurements, as came out meanwhile
                    score, fresh = self._judged(input, output, expected), True
            if score.error is not None:
                self._record(input, score)
                counts = fresh and not again and not isinstance(score.error, ProgramFailedError)
                if counts and (rollout is None or self._rollouts.get(*rollout) is None):
                    answer = rollout[1] if rollout is not None else None
                    self._stop.failed(
                        run,
                        str(score.error),
                        lambda: self._works(
                            input, expected, perfect_outputs(output, expected, perfect, answer)
                        ),
                    )
        finally:
            end_judging(token)
        return self._kept(score, rollout)

    def _kept(self, score: Score, rollout: Rollout | None) -> Score:
        # A failure is kept in any case: the same rollout does not count twice towards a stop.
        if rollout is not None and (self._recalls or score.error is not None):
            case, answer, *reading = rollout
            self._rollouts.put(case, answer, score, *reading)
        return score

    def recall(self, case: object, answer: object, reading: object = None) -> Score | None:
        """Give the judgement that was made of this rollout, known by its two objects and who read them."""
        return self._rollouts.get(case, answer, reading) if self._recalls else None

    def program_failed(
        self, input: object, what: str = RETURNED_NOTHING, rollout: Rollout | None = None
    ) -> Score:
        """Give a case without an output the failure score; the user's function is not called.

        Args:
            input: The case's input, for the list of failures.
            what: What the program did, a sentence.
            rollout: As for `judge`.

        Returns:
            A score with a `ProgramFailedError`.
        """
        score = self._failed(
            ProgramFailedError(clean_text(f"The program gave no output. {what}", self._limit))
        )
        self._record(input, score)
        return self._kept(score, rollout)

    def cannot_ask(self, input: object, why: str, *, rollout: Rollout, again: bool = False) -> Score:
        """Fail a case that the target cannot ask the user's function about; it counts towards a stop."""
        score = self._failed(MetricError(clean_text(f"metric {self.name!r}: {why}", self._limit)))
        self._record(input, score)
        if not again and self._rollouts.get(*rollout) is None:
            self._stop.failed(self._stop.run, str(score.error), lambda: None)
        return self._kept(score, rollout)

    def broken(self) -> str | None:
        """Tell why the run has to stop, or `None`; asked by targets after a score with an error."""
        return self._stop.reason()

    def begin_again(self) -> None:
        """Forget the failures that count towards a stop; for targets, when a run begins or was stopped.

        The next run with this metric may come after what was wrong has been mended, such as a key.
        """
        self._stop.begin_again()

    @property
    def has_judged(self) -> bool:
        """Whether the function has ever given a judgement, in a case of a run or on trial."""
        return self._stop.has_succeeded

    @property
    def is_proven(self) -> bool:
        """Whether the function has given a judgement, and nothing says that the run has to stop."""
        return self._stop.has_succeeded and self._stop.reason() is None

    @property
    def is_failing(self) -> bool:
        """Whether the function has failed since the run began, or since it last gave a judgement."""
        return self._stop.row > 0

    @property
    def is_on_trial(self) -> bool:
        """Whether so many rollouts have failed that the function is tried on the expected value, or was."""
        return self._stop.is_on_trial

    def complete(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Give a case a value for each named score that is known by now.

        Returns:
            Name to number; the failure score where the case has none.
        """
        return complete_scores(scores, tuple(self._seen_names), self.failure_score)

    def names_are_read(self, failed: bool) -> None:
        """Note that a case's named scores are read for good; for targets.

        Args:
            failed: The case has no judgement, so that its names come from other cases, if any, and
                they may be needed.
        """
        self._names_were_read = True
        if failed and not self._seen_names and not self._stop.has_succeeded:
            self.warn_once(
                "names",
                "metric %r has judged no case yet, so its named scores, if any, are unknown; where GEPA's "
                "frontier_type is one of objectives, it needs them: pass score_names=[...]",
                self.name,
            )

    def measurement_was_read(self, measured: bool) -> None:
        """Note that the function reads what a rollout took, so that equal contents do not score alike.

        Args:
            measured: Whether there was anything to read.
        """
        if self._contents is not None and self._store is not None:
            self._store.turn_off()
        self._contents = None
        if not measured:
            self.warn_once(
                "measuring",
                "metric %r reads what a rollout took, and nobody measured it; in DSPy, run it inside "
                "`with measuring():` (from skynet_adapters import measuring).",
                self.name,
            )

    # --- the call itself ---------------------------------------------------------------------

    def _judged(self, input: Any, output: Any, expected: Any) -> Score:
        """Ask the user's function about a case of the run, and keep the books."""
        score, _ = self._asked(input, output, expected)
        if score.error is None:
            self._stop.has_succeeded = True
            self._stop.row = 0
            self._note_scores(score)
        return score

    def _note_scores(self, score: Score) -> None:
        if score.scores:
            for name in score.scores:
                if name not in self._seen_names:
                    self._learn_name(name)
        if self._range is None and not 0.0 <= score.value <= 1.0:
            self._warn_of_scale(score.value)

    def _asked(self, input: Any, output: Any, expected: Any) -> tuple[Score, Any]:
        """Ask the user's function; gives a `Score` whatever it does, and what it returned."""
        returned = _NOTHING_YET
        try:
            returned = self._answer(input, output, expected)
            return parse_return(returned, self.name, self._range, self._names, self._limit), returned
        except (KeyboardInterrupt, MetricBroken):
            raise
        except (MetricReturnError, ProgramFailedError) as error:  # the latter of another metric that it asks
            failure: MetricError = type(error)(*error.args)  # a copy, without the frames that hold the case
        except ToldError as error:
            failure = MetricError(f"metric {self.name!r} {error}")
        except DeadlineExceededError:
            failure = MetricTimeoutError(
                f"metric {self.name!r} did not answer within {self._timeout:g} s; "
                "make it quicker, or raise timeout= (at most 600 s)"
            )
        except BaseException as error:  # SystemExit of a metric must not end the run either
            # Raised by the function, or by what it returned when that is read.
            kind = MetricError if returned is _NOTHING_YET else MetricReturnError
            what = f"metric {self.name!r} raised {told(error, self.score)}"
            failure = kind(what + hint(error, what, input, expected))
        return self._failed(failure), None

    def _learn_name(self, name: str) -> None:
        self._seen_names[name] = None
        if self._names_were_read:
            self.warn_once(
                "late name",
                "metric %r gave the named score %r after the named scores of other cases had been read "
                "without it, so those count for nothing in it; pass score_names=[...]",
                self.name,
                name,
            )

    def _answer(self, input: Any, output: Any, expected: Any) -> Any:
        """Call the user's function, with everything around it that protects the run."""
        if self._copies and self._processes is None:  # what goes to another process is a copy
            input, expected = protected(input), protected(expected)
            if type(output) is not str:
                output = protected(output)
        entered: list[tuple[Isolation, Any]] = []
        try:
            for isolation in isolations:
                entered.append((isolation, isolation.enter(self, self._is_async)))
            with self._lock:
                self._calls += 1
            if self._processes is not None:
                return self._processes.ask(input, output, expected, self._timeout)
            if self._inline:
                returned, left = self._ask(input, output, expected), self._timeout
            else:
                returned, left = self._within(input, output, expected)
            if type(cast("object", returned)) is not tuple and isinstance(returned, Awaitable):
                depth = max((isolation.depth() for isolation in isolations), default=0)
                # The first of them is this one.
                returned = wait_within(left, cast("Awaitable[Any]", returned), depth - self._is_async)
            return returned
        finally:
            while entered:
                isolation, token = entered.pop()
                isolation.leave(token)

    def _within(self, input: Any, output: Any, expected: Any) -> tuple[Any, float]:
        """Call the user's function on a helper; gives what it returned and the seconds left."""
        seconds = cast("float", self._timeout)
        begun = time.monotonic()
        returned = call_within(seconds, functools.partial(self._ask, input, output, expected))
        return returned, seconds - (time.monotonic() - begun)

    def _judged_by_content(
        self, contents: ContentMemo[Score], input: Any, output: Any, expected: Any
    ) -> tuple[Score, bool]:
        key = content_key(input, output, expected)
        if key is None:
            return self._judged(input, output, expected), True
        try:
            key = self._with_models(key) if self._with_models is not None else key
        except Exception as error:
            self.warn_once(
                "models",
                'metric %r remembers nothing by memo="content" while its model cannot be told from others '
                "(%s: %s)",
                self.name,
                type(error).__name__,
                clean_text(str(error), 1_000),
            )
            return self._judged(input, output, expected), True
        try:
            return contents.get_or_compute(
                key,
                functools.partial(self._judged_for_others, key, input, output, expected),
                keep=lambda score: score.error is None,
                wait=not _awaited.get() and not any(isolation.inside() for isolation in isolations),
                seconds=self._timeout,
            )
        except TimeoutError:
            return self._failed(
                MetricTimeoutError(
                    f"metric {self.name!r}: another call for the same case took over {self._timeout:g} s"
                )
            ), False

    def _judged_for_others(self, key: bytes, input: Any, output: Any, expected: Any) -> Score:
        store = self._store
        kept = None if store is None else store.get(key)
        if kept is not None:
            self._note_scores(kept)
            return kept
        token = _awaited.set(True)
        try:
            score = self._judged(input, output, expected)
        finally:
            _awaited.reset(token)
        if store is not None and score.error is None and self._contents is not None:
            store.put(key, score)
        return score

    # --- failures ----------------------------------------------------------------------------

    def _failed(self, error: MetricError) -> Score:
        return Score(
            self.failure_score,
            f"No judgement, so that the score only stands in for one: {error}",
            error=error,
        )

    def _record(self, input: object, score: Score) -> None:
        failure = Failure(shown(input, with_type=False), str(score.error), type(score.error).__name__)
        if self.failures.add(failure) == 1:
            _log.warning("%s. Further failures are counted in `failures`.", failure.text.rstrip("."))

    def _works(self, input: Any, expected: Any, outputs: list[Any]) -> bool | None:
        """Try the function on what may be a perfect output; `None` where there is none."""
        if not outputs:
            return None
        return any(self._asked(input, output, expected)[0].error is None for output in outputs)

    def _warn_of_scale(self, value: float) -> None:
        if value > 1.0:
            consequence = (
                "from 1 up everything counts as right, and GEPA (perfect_score=1.0) proposes nothing"
            )
        elif value < self.failure_score:
            consequence = f"a case that fails (failure_score={self.failure_score:g}) beats a poor answer"
        else:
            return
        self.warn_once(
            f"scale {value > 1.0}",
            "metric %r returned %g without score_range: %s. Pass score_range=(low, high), which normalises.",
            self.name,
            value,
            consequence,
        )

    def note_components(
        self, names: Iterable[str], known: Iterable[str], why: str = "no component is called so; there are"
    ) -> None:
        """Warn once of each name in `component_feedback` that no component has; for targets.

        Args:
            names: Those in `component_feedback`.
            known: The names of the components.
            why: How the message goes on, before the known names.
        """
        for name in strangers(names, known):
            self.warn_once(
                f"component {name}",
                "metric %r gave component_feedback for %r, which nobody reads: %s %s%s",
                self.name,
                name,
                why,
                shown([*known], with_type=False),
                near_match(name, known),
            )

    def note_model(self, model: str) -> None:
        """Warn once when the model that the metric's own calls go to changes; for targets."""
        if self._model is not None and self._model != model:
            self.warn_once(
                "model",
                "metric %r asks the model %s here and asked %s before: its model calls go to whichever model "
                "is set where it runs, such as a teacher's. Pass metric_lm= to have one judge.",
                self.name,
                model,
                self._model,
            )
        self._model = model

    def warn_once(self, topic: str, message: str, *values: object) -> None:
        """Log a warning the first time that `topic` comes up on this metric."""
        with self._lock:
            if topic in self._warned:
                return
            self._warned.add(topic)
        _log.warning(message, *values)


def _with_models() -> Callable[[bytes], bytes]:
    from .models_asked import ModelsAsked  # here, since it needs `fingerprints`, which needs this module

    return ModelsAsked().with_models


def _store(metric: Metric, folder: str | None) -> "ScoreStore | None":
    if folder is None:
        return None
    from .memo_store import ScoreStore  # here, as above

    return ScoreStore(folder, metric.name, metric)


def as_metric(score: "ScoreFunction | Metric", **options: Unpack[MetricOptions]) -> Metric:
    """Give the `Metric` itself when `score` is one, else make one.

    Args:
        score: A function or a `Metric`.
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        A metric; the same object for the same `Metric`, so that its memory is shared.

    Raises:
        DefinitionError: Options beside a `Metric`, an unknown option, or as for `Metric`.
    """
    return metric_with(score, options)


def metric_with(
    score: "ScoreFunction | Metric", options: MetricOptions, own_options: Iterable[str] = ()
) -> Metric:
    """Do as `as_metric` does; `own_options` are those that the caller takes, for the message."""
    if isinstance(score, Metric):
        _refuse_options(score, options)
        return score
    _refuse_those_of_targets(options)
    for option in options:
        if option not in MetricOptions.__annotations__:
            known = [*own_options, *MetricOptions.__annotations__]
            meant = near_match(option, known)
            raise DefinitionError(f"unknown option {option!r}{meant or '.'} There are: {', '.join(known)}")
    return Metric(score, **options)


def _refuse_options(score: object, options: Mapping[str, object]) -> None:
    if isinstance(score, Metric) and options:
        first = next(iter(options))
        raise DefinitionError(
            f"{score!r} has its options already; pass {', '.join(options)} where it is made, as in "
            f"Metric(score, {first}=...) or load_metric(path, {first}=...), or pass the function itself here"
        )


def _refuse_what_was_made_of_one(score: object) -> None:
    """Refuse what `as_dspy_metric` and `as_dspy_reward` make; not a function of the user's around one."""
    metric = getattr(score, "metric", None) if inspect.isfunction(score) else None
    if isinstance(metric, Metric) and is_made_here(score):
        name, of = function_name(score), function_name(metric.score)
        raise DefinitionError(
            f"{name!r} was made for DSPy of the score {of!r}; pass {of} itself, or {name}.metric"
        )


def _refuse_those_of_targets(options: Mapping[str, object]) -> None:
    for option in options:
        of_a_run = f"as_gepa_adapter(metric, run, artifact=..., {option}=...)"
        if option in OPTIONS_OF_MODELS:
            raise DefinitionError(
                f"{option} is no option of a metric: it belongs to what adapts the metric, as in "
                f"as_dspy_metric(metric, {option}=...) or {of_a_run}; for a metric alone put "
                f"`with models({option}=...):` around its calls"
            )
        if option in OPTIONS_OF_RUNS:
            raise DefinitionError(f"{option} belongs to a run of GEPA, as in {of_a_run}; leave it out here")


def _processes(score: Any, name: str, options: Mapping[str, Any]) -> "ScoreProcesses | None":
    if options.get("isolation") is None:
        return None
    from .isolated import ScoreProcesses  # with what only this needs

    return ScoreProcesses(score, name, options.get("memory_limit_mb"))
