"""Run one case in another process, through any `concurrent.futures.Executor`.

Everything travels as bytes of cloudpickle, so that functions and classes of a notebook do too. What is
imported here is imported by each worker: no target library.
"""

import contextlib
import functools
import logging
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any, cast

import cloudpickle

from .attempt import Ran, attempt
from .deadline import call_within
from .errors import DefinitionError, MetricError
from .redaction import hide_keys_of
from .score import clean_text, shown

__all__ = ["Remote", "checked_executor", "not_run", "ran_there", "run_there"]

_log = logging.getLogger("skynet_adapters")

_pickle: Any = cast("Any", cloudpickle)


def checked_executor(executor: Any, run: object) -> Executor | None:
    """Refuse what cannot run a case elsewhere.

    Raises:
        DefinitionError: `executor` is no executor, or `run` cannot travel.
    """
    if executor is None:
        return None
    if not isinstance(executor, Executor):
        raise DefinitionError(
            f"executor is {shown(executor)}; it must be a concurrent.futures.Executor, such as "
            "ProcessPoolExecutor() or, of a Dask client, client.get_executor(pure=False)"
        )
    try:
        _pickle.dumps(run)
    except Exception as error:
        raise DefinitionError(
            f"run cannot be sent to the workers of executor=: {_said(error)}; make what cannot be pickled, "
            "such as a client or a lock, inside run"
        ) from error
    return executor


class Remote:
    """Hands the cases of one batch to an executor."""

    def __init__(self, executor: Executor, run: object, seconds: float | None) -> None:
        self._executor = executor
        self._seconds = seconds
        self._fixed = _pickle.dumps((run, _current_lm()))

    def submit(self, artifact: Any, input: dict[str, Any]) -> "Future[bytes]":
        """Hand over one case; raises what the executor raises, or pickle where the input cannot travel."""
        case = _pickle.dumps((artifact, input, self._seconds))
        return self._executor.submit(run_there, self._fixed, case)


def run_there(fixed: bytes, case: bytes) -> bytes:
    """Run one case; in a worker.

    Args:
        fixed: The function and DSPy's model, or `None`, pickled.
        case: The artifact, the input and the seconds that it may take, or `None`, pickled.

    Returns:
        The `Ran`, pickled.
    """
    run, lm = _pickle.loads(fixed)
    artifact, input, seconds = _pickle.loads(case)
    call: Callable[[], Any] = functools.partial(run, artifact, input)
    if seconds is not None:
        call = functools.partial(call_within, seconds, call)
    with _lm_set(lm):
        ran = attempt(run, call, seconds)
    try:
        return _pickle.dumps(ran)
    except Exception as error:
        return _pickle.dumps(Ran(None, f"Its output cannot be sent back: {_said(error)}."))


def ran_there(future: "Future[bytes]") -> Ran:
    """Give what came back; a worker that died is a fault of the case.

    Raises:
        MetricError: The executor runs nothing any more.
    """
    try:
        return _pickle.loads(future.result())
    except BaseException as error:
        return not_run(error)


def not_run(error: BaseException) -> Ran:
    """Say that a case could not be run where it was to be run.

    Raises:
        MetricError: Nor can any other, so that the run has to end before it learns from that.
    """
    if isinstance(error, BrokenExecutor):
        raise MetricError(
            f"the executor of executor= is broken, and runs nothing any more: {_said(error)}. A worker of it "
            "died in run, as by os._exit, a crash in C code or too little memory, or could not start. Make a "
            "new executor; one of Dask goes on with other workers, and fails that case alone"
        ) from error
    if isinstance(error, RuntimeError) and "after" in str(error) and "shutdown" in str(error):
        raise MetricError(
            f"the executor of executor= has been shut down: {_said(error)}. Keep it open until the "
            "run has ended, as in `with ProcessPoolExecutor() as executor:` around all of it"
        ) from error
    return Ran(None, f"The executor did not run it: {_said(error)}.")


def _said(error: BaseException) -> str:
    return clean_text(f"{type(error).__name__}: {error}", 1_000).rstrip(".")


def _current_lm() -> Any:
    """Find the model that is set for DSPy here; its keys travel with it."""
    dspy: Any = sys.modules.get("dspy")
    lm = None if dspy is None else dspy.settings.lm
    hide_keys_of(lm)
    try:
        _pickle.dumps(lm)
    except Exception as error:
        _log.warning("%s cannot be sent to the workers of executor=: %s", shown(lm), _said(error))
        return None
    return lm


def _lm_set(lm: Any) -> Any:
    if lm is None:
        return contextlib.nullcontext()
    import dspy

    return cast("Any", dspy).context(lm=lm)
