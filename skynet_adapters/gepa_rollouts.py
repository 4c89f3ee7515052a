"""Run and judge many cases at once for GEPA, where each keeps its place whatever happens to it."""

import contextlib
import contextvars
import dataclasses
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

from gepa.optimize_anything import LogContext, get_log_context, set_log_context

from . import measure
from .attempt import Ran, attempt, checked_run, too_late
from .copies import protected
from .deadline import end_idle_helpers, start, wait_unless_ended
from .errors import DefinitionError, MetricBroken, MetricError
from .isolated import RunProcesses, most_processes
from .judge_llm import Models, models, models_of_block
from .measure import Observation, unmeasured
from .metric import Metric
from .options import (
    OPTIONS_OF_MODELS,
    OPTIONS_OF_RUNS,
    checked_isolation,
    checked_memory_limit,
    checked_seconds,
)
from .remote import Remote, checked_executor, not_run, ran_there
from .score import Score, shown

__all__ = ["GEPA_OPTIONS", "Job", "Outcomes", "Raising", "Rollouts", "Trajectory", "artifact_itself"]

# What adapter and evaluator take beside the options of `Metric`.
GEPA_OPTIONS = (*OPTIONS_OF_RUNS, *OPTIONS_OF_MODELS)
# How many cases run at once when nothing is said: a thread each, and one more while it is judged.
_MOST_WORKERS = 256
# And how many at first, so that a metric which fails on everything is not paid a whole data set for.
_MOST_UNPROVEN = 8
# After how many cases it is said that `run` gave no output on any.
_MOST_WITHOUT_OUTPUT = 5
# How long an executor may be silent beyond `run_timeout`: its workers start and import meanwhile.
_EXECUTOR_PATIENCE_SECONDS = 30.0


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


class Job(NamedTuple):
    """What to run: the artifact, and a case's fields."""

    artifact: Any
    input: dict[str, Any]
    expected: dict[str, Any] | None


class Outcomes:
    """What became of the cases of a run, counted.

    Attributes:
        cases: How many there were.
        outputs: How many of them `run` gave an output for.
        judged: How many of them have a judgement.
        first_failure: What happened to the first that has none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin_again()

    def __reduce__(self) -> Any:
        return Outcomes, ()  # a copy has seen nothing yet

    def begin_again(self) -> None:
        """Count from 0 again."""
        self.cases = self.outputs = self.judged = 0
        self.first_failure = ""

    def add(self, ran: Ran, score: Score) -> None:
        """Count one case."""
        with self._lock:
            self.cases += 1
            self.outputs += ran.fault is None
            self.judged += score.error is None
            if score.error is not None and not self.first_failure:
                self.first_failure = str(score.error).rstrip(".")

    def why_nothing_was_judged(self) -> str | None:
        """Tell why no case has a judgement; `None` where one has, or where there was no case."""
        if self.judged or not self.cases:
            return None
        what = "could be judged" if self.outputs else "had an output of run"
        return f"none of the {self.cases} cases {what}, the first because: {self.first_failure}"


class Rollouts:
    """Run and judge cases, many at once."""

    def __init__(
        self,
        metric: Metric,
        run: Any,
        run_timeout: Any,
        max_workers: Any,
        executor: Any = None,
        chosen: Models | None = None,
        run_isolation: Any = None,
        run_memory_limit_mb: Any = None,
    ) -> None:
        self.metric = metric
        self.outcomes = Outcomes()
        self._models = chosen or Models()
        # `optimize_anything` has a pool of its own, whose threads know no block (gepa 0.1.4).
        self._models_when_made = models_of_block()
        self._prices_when_made = measure.prices_of_block()
        self.max_workers = _checked_workers(max_workers)
        seconds = checked_seconds("run_timeout", run_timeout)
        self.run_timeout = None if run is artifact_itself else seconds  # which takes no time
        self._run = checked_run(run, "artifact", "input")
        metric.begin_again()  # a run that this metric stopped is over
        self._executor = checked_executor(executor, run)
        self._processes = self._checked_processes(run_isolation, run_memory_limit_mb, max_workers)

    def _checked_processes(
        self, isolation: Any, memory_limit_mb: Any, max_workers: Any
    ) -> RunProcesses | None:
        limit = checked_memory_limit("run_memory_limit_mb", memory_limit_mb, "run_isolation", isolation)
        if checked_isolation("run_isolation", isolation) is None:
            return None
        if self._run is artifact_itself:
            raise DefinitionError("run_isolation says where run is called, and there is no run; leave it out")
        if self._executor is not None:
            raise DefinitionError("run_isolation and executor both say where run is called; pass one of them")
        self.max_workers = max_workers or most_processes()
        return RunProcesses(self._run, self.max_workers, limit)

    @property
    def run(self) -> Any:
        """The user's function."""
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        # A copy runs its cases itself. Models hold locks and keys.
        return {
            **self.__dict__,
            "_executor": None,
            "_models": Models(),
            "_models_when_made": Models(),
            "lost_models": any(self._models) or any(self._models_when_made),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        lost = state.pop("lost_models")
        self.__dict__.update(state)
        if lost:
            self.metric.warn_once(
                "metric_lm",
                "metric %r was saved with a metric_lm= or reflection_lm=, which is not saved with it; make "
                "its adapter anew, or choose one with set_models(metric_lm=...).",
                self.metric.name,
            )

    def close(self) -> None:
        """End the threads and processes that wait for the next case; a later case starts new ones."""
        end_idle_helpers()
        self.metric.close()
        if self._processes is not None:
            self._processes.end(busy=True)  # else after Ctrl-C they would go on until their time is over

    def __call__(self, jobs: Sequence[Job]) -> list[Trajectory]:
        """Give each job's trajectory, in order.

        Raises:
            MetricError: The metric is broken.
        """
        trajectories = _Batch(self, jobs).trajectories()
        # Only now: a metric that failed on the first to come back may have judged others meanwhile.
        stop_when_broken(self.metric)
        self._warn_without_outputs()
        return trajectories

    def one(self, job: Job) -> Trajectory:
        """Give one job's trajectory; all in this thread where `run` has no limit.

        Raises:
            MetricError: The metric is broken.
        """
        trajectory = self._one(job)
        if trajectory.score.error is not None:
            stop_when_broken(self.metric)
            self._warn_without_outputs()
        return trajectory

    def _warn_without_outputs(self) -> None:
        """Say early that `run` fails on everything; it goes on, since the artifact may be to blame."""
        if self.outcomes.cases >= _MOST_WITHOUT_OUTPUT and not self.outcomes.outputs:
            self.metric.warn_once(
                "no output",
                "%s. The run goes on, since a better artifact may mend that; where run itself is at fault, "
                "stop it and mend run",
                self.outcomes.why_nothing_was_judged(),
            )

    def _one(self, job: Job) -> Trajectory:
        if self._executor is None and (self.run_timeout is None or self._processes is not None):
            return self.judged(job, self.ran(job, _log_context()))
        (trajectory,) = _Batch(self, [job]).trajectories()
        return trajectory

    def remote(self) -> Remote | None:
        """Give what hands cases to the executor, where there is one."""
        return None if self._executor is None else Remote(self._executor, self._run, self.run_timeout)

    def ran(self, job: Job, log: LogContext | None) -> Ran:
        """Run one case in this thread, or in a process that it waits for."""
        if self._processes is not None:
            with self._choosing(Models()), measure.priced(self._prices_when_made):
                return self._processes.ran(job.artifact, job.input, self.run_timeout)
        # A copy, so that `run` cannot change the case.
        call = functools.partial(_logged, log, self._run, job.artifact, protected(job.input))
        known = measure.priced(self._prices_when_made)
        with self._choosing(Models()), known, measure.rollout() as measured:
            ran = attempt(self._run, call, self.run_timeout)
        return ran._replace(observation=measured.observation())

    def judged(self, job: Job, ran: Ran) -> Trajectory:
        """Judge what `run` made of a case."""
        if ran.fault is None:
            with self._choosing(self._models), measure.priced(self._prices_when_made):
                score = self.metric.judge(
                    job.input, ran.output, job.expected, observation=self._observation(ran)
                )
        else:
            score = self.metric.program_failed(job.input, ran.fault)
        self.outcomes.add(ran, score)
        return Trajectory(job.input, ran.output, job.expected, score)

    @property
    def seconds_to_wait(self) -> float | None:
        """How long a batch waits for a case that it has started; a process of its own is always heard of."""
        return None if self._processes is not None else self.run_timeout

    def _choosing(self, given: Models) -> contextlib.AbstractContextManager[None]:
        """Choose what `llm` asks: what is given, else a block around this, else the one at the start."""
        if not any(given) and not any(self._models_when_made):
            return contextlib.nullcontext()
        around = models_of_block()
        before = self._models_when_made if not any(around) else Models()
        return models(
            metric_lm=before.metric_lm if given.metric_lm is None else given.metric_lm,
            reflection_lm=before.reflection_lm if given.reflection_lm is None else given.reflection_lm,
        )

    def _observation(self, ran: Ran) -> Observation:
        if self._run is artifact_itself:
            return unmeasured("the artifact itself is judged, and nothing was run")
        return ran.observation or unmeasured("run was called elsewhere, by executor=")


def artifact_itself(artifact: Any, input: dict[str, Any]) -> Any:
    """Give the artifact: the `run` where it is what is judged."""
    return artifact


class _Rollout:
    """One case under way."""

    def __init__(self, number: int, job: Job, deadline: float | None) -> None:
        self.number = number
        self.job = job
        self.deadline = deadline
        self.future: Future[bytes] | None = None  # where an executor runs it
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Decide what becomes of the case; true for the first who asks."""
        return self._claimed.acquire(blocking=False)

    @property
    def is_claimed(self) -> bool:
        return self._claimed.locked()


class _Batch:
    """Cases that run at once, each on a helper thread, which judges it too.

    This thread waits for them. What does not answer in time it gives up, and the helper then finds the
    case claimed. The helpers are daemons, so nobody waits for them after Ctrl-C either.

    With an executor the cases run there, each within its limit, and are judged here. Since nobody knows
    how long one waits in a queue there, they are given up only when none comes back for so long.
    """

    def __init__(self, rollouts: Rollouts, jobs: Sequence[Job]) -> None:
        self._rollouts = rollouts
        self._jobs = jobs
        self._log = _log_context()
        self._remote = rollouts.remote()
        self._last_sign = time.monotonic()  # when the executor last took or gave a case
        self._waiting = deque(range(len(jobs)))
        self._under_way: dict[int, _Rollout] = {}
        self._limited: deque[_Rollout] = deque()  # those with a deadline, the next one first
        self._came_back: SimpleQueue[tuple[_Rollout, Trajectory | BaseException]] = SimpleQueue()
        self._done: dict[int, Trajectory] = {}

    def trajectories(self) -> list[Trajectory]:
        try:
            while self._waiting or self._under_way:
                self._start_more()
                if self._under_way:
                    self._take_next()
                else:
                    stop_when_broken(self._rollouts.metric)
        finally:
            for rollout in self._under_way.values():  # after an error nothing more is judged
                rollout.claim()
                if rollout.future is not None:
                    rollout.future.cancel()
        return [self._done[number] for number in range(len(self._jobs))]

    def _start_more(self) -> None:
        while self._waiting and len(self._under_way) < self._most():
            # What runs at once runs in any case: which of it comes back first says nothing.
            metric = self._rollouts.metric
            if self._done and (metric.is_on_trial or metric.broken() is not None):
                return
            number = self._waiting.popleft()
            seconds = self._rollouts.seconds_to_wait
            deadline = None if seconds is None else time.monotonic() + seconds
            rollout = self._under_way[number] = _Rollout(number, self._jobs[number], deadline)
            if deadline is not None:
                self._limited.append(rollout)
            if self._remote is None:
                start(functools.partial(self._follow, rollout, self._ran_here))
            else:
                self._hand_over(rollout, self._remote)

    def _most(self) -> int:
        """Tell how many cases may run now: few until one shows that the metric works."""
        rollouts = self._rollouts
        if rollouts.metric.is_proven or (self._done and not rollouts.metric.is_failing):
            return rollouts.max_workers
        return min(rollouts.max_workers, _MOST_UNPROVEN)

    def _ran_here(self, rollout: _Rollout) -> Ran:
        return self._rollouts.ran(rollout.job, self._log)

    def _hand_over(self, rollout: _Rollout, remote: Remote) -> None:
        context = contextvars.copy_context()  # for the judge, whom the executor's own thread starts

        def judge(ran: Callable[[_Rollout], Ran]) -> None:
            self._last_sign = time.monotonic()
            context.run(start, functools.partial(self._follow, rollout, ran))

        try:
            rollout.future = remote.submit(rollout.job.artifact, rollout.job.input)
        except Exception as error:
            ran = not_run(error)
            judge(lambda _: ran)
        else:
            rollout.future.add_done_callback(lambda future: judge(lambda _: ran_there(future)))

    def _follow(self, rollout: _Rollout, run: Callable[[_Rollout], Ran]) -> None:
        """Run and judge one case; on a helper thread."""
        came_back: Trajectory | BaseException
        try:
            ran = run(rollout)
            if not rollout.claim():
                return
            came_back = self._rollouts.judged(rollout.job, ran)
        except BaseException as error:
            came_back = error
        self._came_back.put((rollout, came_back))

    def _take_next(self) -> None:
        while self._limited and self._limited[0].is_claimed:
            self._limited.popleft()
        deadline = self._deadline()
        try:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            rollout, came_back = self._next_back(left)
        except Empty:
            if time.monotonic() < (self._deadline() or 0.0):
                return  # the executor gave a sign meanwhile
            rollout = self._limited.popleft()
            if not rollout.claim():
                return
            if rollout.future is not None:
                rollout.future.cancel()
            came_back = self._rollouts.judged(rollout.job, too_late(self._rollouts.run_timeout or 0.0))
        if isinstance(came_back, BaseException):
            raise came_back
        del self._under_way[rollout.number]
        self._done[rollout.number] = came_back

    def _next_back(self, seconds: float | None) -> "tuple[_Rollout, Trajectory | BaseException]":
        found: list[tuple[_Rollout, Trajectory | BaseException]] = []

        def wait(left: float) -> bool:
            with contextlib.suppress(Empty):
                found.append(self._came_back.get(timeout=left))
            return bool(found)

        if not wait_unless_ended(wait, seconds):
            raise Empty
        return found[0]

    def _deadline(self) -> float | None:
        if not self._limited:
            return None
        if self._remote is None:
            return self._limited[0].deadline
        return self._last_sign + (self._rollouts.run_timeout or 0.0) + _EXECUTOR_PATIENCE_SECONDS


class Raising:
    """Let an error that ends a run pass, and make it one that GEPA cannot go on after the second time.

    With raise_on_exception=False GEPA goes on after an Exception, for ever where its budget does not
    advance (gepa 0.1.4).

    Args:
        *kinds: The errors that this is done with.
    """

    def __init__(self, *kinds: type[Exception]) -> None:
        self._kinds = kinds
        self._raised = False

    @property
    def has_raised(self) -> bool:
        """Whether the last time an error passed."""
        return self._raised

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._raised = False
        elif isinstance(error, self._kinds):
            if self._raised:
                raise MetricBroken(str(error)) from error
            self._raised = True


def stop_when_broken(metric: Metric) -> None:
    """Raise `MetricError` when the metric says that the run has to stop."""
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
        set_log_context(cast("Any", None))  # a helper serves other calls afterwards


def _checked_workers(value: Any) -> int:
    if value is None:
        return _MOST_WORKERS
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise DefinitionError(
        f"max_workers={shown(value, with_type=False)} cannot be used: it must be a whole number, at least 1"
    )
