"""Run and judge many cases at once for GEPA, where each keeps its place whatever happens to it."""

import contextvars
import dataclasses
import functools
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, Protocol, cast

from gepa.optimize_anything import LogContext, get_log_context, set_log_context

from .copies import protected
from .deadline import DeadlineExceededError, call_within, wait_within
from .errors import DefinitionError, MetricBroken, MetricError
from .function import told
from .gepa_values import is_dspys
from .metric import Metric
from .score import Score, shown

__all__ = ["Job", "Rollouts", "Trajectory", "stop_when_broken"]

# How many cases run at once when nothing is said: a thread each, and one more while it is called.
_MOST_WORKERS = 256


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


class Rollouts:
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
        """End the threads; one that is used again starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def __call__(self, jobs: Sequence[Job]) -> list[Trajectory]:
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
            stop_when_broken(self.metric)
        return [done[number] for number in range(len(jobs))]

    def _map(self, jobs: Sequence[Job]) -> list[Trajectory | None]:
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

    def _unless_broken(self, job: Job) -> Trajectory | None:
        return None if self.metric.broken() is not None else self.one(job)

    def one(self, job: Job) -> Trajectory:
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

    def _output(self, job: Job) -> Any:
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


class _Run(Protocol):
    def __call__(self, artifact: Any, input: dict[str, Any], /) -> Any: ...


def _checked_run(run: Any) -> _Run:
    if not callable(run):
        raise DefinitionError(f"run is a function run(artifact, input); got {shown(run)}")
    if is_dspys(run, "Module"):  # its signature, `*args, **kwargs`, would pass for any
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
