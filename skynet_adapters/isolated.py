"""Call a user's function in worker processes, so that what it does there ends there.

One thread of this process asks one worker at a time, through a pipe of its own, and answers what the
function asks `llm` meanwhile, in its own context. So a worker that dies or is killed takes nobody with
it. loky starts the processes: unlike `multiprocessing` it does not run the user's script again.
"""

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import threading
import time
import weakref
from collections import deque
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from . import measure
from .attempt import Ran, too_late
from .deadline import DeadlineExceededError, call_within, start
from .errors import DefinitionError, MetricError
from .function import MOST_TOLD, ToldError
from .judge_llm import llm
from .measure import unmeasured
from .score import clean_text, shown
from .worker import CALL, MODEL_ANSWER, Outcome, RunWork, ScoreWork, Work, packed, passes_on, serve

__all__ = ["Processes", "RunProcesses", "ScoreProcesses", "most_processes"]

# How long a worker may take to begin and to import what the function needs.
_START_SECONDS = 120.0
# How often a call looks whether its worker is alive: a process that was forked there keeps the pipe open.
_LOOK_SECONDS = 0.2
# Bytes that are written without a wait, since a worker has read all before.
_SURELY_TAKEN = 4_000
# Of a fault, with the words around what is told of an error.
_MOST_CHARS = MOST_TOLD + 500
# How long a worker may take to end after its connection has.
_EXIT_SECONDS = 5.0


def most_processes() -> int:
    """Tell how many workers a function has at most when nothing is said; some may wait for models."""
    return max(8, os.cpu_count() or 1)


class Called(NamedTuple):
    """What became of a call, and what it took."""

    outcome: Outcome
    seconds: float
    asked: int  # how often it asked `llm`


class Processes:
    """The workers of one function; they start when they are needed, and serve call after call."""

    def __init__(
        self, what: str, function: Any, work: Work, most: int, memory_limit_mb: float | None
    ) -> None:
        _refuse_without_loky(what)
        try:
            packed({what: function})
        except TypeError as error:
            raise DefinitionError(
                f"{error}; so it cannot be called in a process of its own: make what cannot be pickled, such "
                "as a client or a lock, inside the function"
            ) from None
        self._work, self._most, self.memory_limit_mb = work, most, memory_limit_mb
        self._start_anew()
        _all.add(self)

    def _start_anew(self) -> None:
        self._idle: deque[_Worker] = deque()
        self._busy: set[_Worker] = set()
        self._free = threading.BoundedSemaphore(self._most)
        self._sent: bytes | None = None  # the function, as all its workers get it
        self._ends = 0
        self._ending = threading.Lock()  # for all that `end` changes

    def call(self, given: dict[str, Any], judged: Any, seconds: float | None) -> Called:
        """Call the function in a worker; waits for one that is free.

        Args:
            given: What it gets, in order; the names are for the error.
            judged: The record for `observation()`, in a tuple; `None` where nothing is judged.
            seconds: How long it may take, without the start of a worker; `None`: for ever.

        Raises:
            DeadlineExceededError: It took longer; its process was killed.
            ToldError: Its process ended, or it could not be called.
        """
        try:
            message = packed(given, judged)
        except TypeError as error:
            raise ToldError(
                f"cannot be called in a process of its own, since there is no pickling {error}"
            ) from None
        with self._free:
            ends, worker, is_fit = self._ends, self._taken(), False
            self._busy.add(worker)
            try:
                called = worker.call(message, seconds)
                is_fit = not called.outcome.is_last
            except ToldError as error:  # C code may end where it gets no memory
                raise ToldError(self.with_limit(Outcome(is_last=True), str(error))) from None
            finally:
                self._busy.discard(worker)
                if not (is_fit and self._kept(worker, ends)):
                    worker.kill()
        return called

    def _kept(self, worker: "_Worker", ends: int) -> bool:
        """Keep a worker for the next call, unless it was taken before an end."""
        with self._ending:
            if ends == self._ends:
                self._idle.append(worker)
            return ends == self._ends

    def _taken(self) -> "_Worker":
        """Take an idle worker, or start one."""
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.is_alive() and worker.is_silent():
                    return worker
                worker.kill()  # something that was left running there has ended it
        ends, sent = self._ends, self._sent
        if sent is None:  # only now: a function may refer to what is defined after it
            sent = packed({"function": self._work, "memory_limit_mb": self.memory_limit_mb})
            with self._ending:
                if ends == self._ends:
                    self._sent = sent
        return _Worker(sent)

    def with_limit(self, outcome: Outcome, fault: str) -> str:
        """Say the limit beside what came of it."""
        if not outcome.is_last or self.memory_limit_mb is None:
            return fault
        return f"{fault.rstrip('.')}; its process may take {self.memory_limit_mb:g} MB more than at its start"

    def end(self, busy: bool = False) -> None:
        """End the workers; a later call starts new ones.

        Args:
            busy: Also those that are called now, else when their call is over.
        """
        with self._ending:
            idle, self._idle = self._idle, deque()  # first: who sees the new number takes none of these
            self._ends += 1
            self._sent = None
        with contextlib.suppress(IndexError):
            while True:
                idle.pop().kill()
        for worker in list(self._busy) if busy else ():
            worker.kill()

    def forget(self) -> None:
        """Leave the workers to the process that this one was forked from."""
        for worker in [*self._idle, *self._busy]:
            worker.forget()
        self._start_anew()


class ScoreProcesses:
    """The workers of a metric."""

    def __init__(self, score: Any, name: str, memory_limit_mb: float | None) -> None:
        self._processes = Processes(
            f"metric {name!r}", score, ScoreWork(score, name), most_processes(), memory_limit_mb
        )
        self.end = self._processes.end
        weakref.finalize(self, self.end)

    def ask(self, input: Any, output: Any, expected: Any, seconds: float | None) -> Any:
        """Give what the function returned; raises as `Processes.call`, and the errors of this package."""
        given = {"input": input, "output": output, "expected": expected}
        outcome = self._processes.call(given, (measure.observation_now(),), seconds).outcome
        if outcome.error is not None:
            raise outcome.error
        if outcome.fault is not None:
            fault = clean_text(outcome.fault, _MOST_CHARS)
            raise ToldError(self._processes.with_limit(outcome, fault))
        return outcome.value


class RunProcesses:
    """The workers of a `run`."""

    def __init__(self, run: Any, most: int, memory_limit_mb: float | None) -> None:
        self._fixed = run, most, memory_limit_mb
        self._processes = Processes("run", run, RunWork(run), most, memory_limit_mb)
        self.end = self._processes.end
        weakref.finalize(self, self.end)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy starts workers of its own.
        return RunProcesses, self._fixed

    def ran(self, artifact: Any, input: dict[str, Any], seconds: float | None) -> Ran:
        """Run one case in a worker."""
        with measure.rollout() as measured:
            begun = time.perf_counter()
            try:
                called = self._processes.call({"artifact": artifact, "input": input}, None, seconds)
                measured.leave_out(begun, time.perf_counter() - called.seconds)  # the wait for a worker
            except DeadlineExceededError:
                return too_late(seconds or 0.0)
            except ToldError as error:
                return Ran(None, f"It {error}.")
        if called.outcome.error is not None:
            raise called.outcome.error
        ran: Ran = called.outcome.value
        if ran.fault is not None:
            fault = self._processes.with_limit(called.outcome, clean_text(ran.fault, _MOST_CHARS))
            ran = ran._replace(fault=f"{fault.rstrip('.')}.")
        if called.asked:
            return ran._replace(observation=measured.observation())
        why = "run was called in a process of its own, and only what it asks by skynet.llm is seen from here"
        return ran._replace(observation=unmeasured(why, called.seconds * 1e3))


def _refuse_without_loky(what: str) -> None:
    if importlib.util.find_spec("loky") is None:
        raise DefinitionError(
            f"{what} cannot be called in a process of its own, since loky is not installed: "
            "pip install 'skynet-adapters[isolation]'"
        )


# --- one worker -----------------------------------------------------------------------------------

_starting = threading.Lock()  # `multiprocessing` looks after all its processes whenever one starts
_is_over = False  # the interpreter ends
_living: "set[_Worker]" = set()


class _Worker:
    """A process that calls the function."""

    def __init__(self, fixed: bytes) -> None:
        _end_with_interpreter()
        context = importlib.import_module("loky.backend.context").LokyContext()
        self._lock = threading.Lock()  # for the connection, which several threads answer through
        self._closing = threading.Lock()
        self._is_closed = False
        hidden = {name: "" for name in os.environ if not passes_on(name)}
        try:
            with _starting:
                if _is_over:
                    raise ToldError("was not called, since Python is ending")
                self._connection, there = context.Pipe()
                life, self._life = context.Pipe(duplex=False)  # nothing is sent; it ends with this process
                # Empty, as loky adds to the whole environment; the worker then takes them out.
                self._process = context.Process(target=serve, args=(there, life), env=hidden)
                self._process.start()
                _living.add(self)
                there.close()
                life.close()
        except (OSError, AssertionError) as error:  # the latter in a daemonic process
            raise ToldError(f"was not called, since no process could be started for it: {error}") from error
        try:
            self._send(CALL + fixed)
            _, fault = self._received(time.monotonic() + _START_SECONDS)
        except DeadlineExceededError:
            self.kill()
            raise ToldError(
                f"was not called, since its process was not ready after {_START_SECONDS:g} s"
            ) from None
        except BaseException:
            self.kill()
            raise
        if fault is not None:
            self.kill()
            raise ToldError(fault)

    def call(self, message: bytes, seconds: float | None) -> Called:
        """Call the function there, and answer what it asks meanwhile."""
        begun, asked = time.monotonic(), 0
        if seconds is None or len(message) < _SURELY_TAKEN:
            self._send(CALL + message)
        else:
            call_within(seconds, lambda: self._send(CALL + message))
        while True:
            match self._received(None if seconds is None else begun + seconds):
                case ("done", Outcome() as outcome):
                    return Called(outcome, time.monotonic() - begun, asked)
                case ("read",):
                    measure.observation()  # tells the metrics whose calls this is within
                case ("ask", int() as number, messages):
                    asked += 1
                    start(functools.partial(self._answer, number, messages))
                case other:
                    raise ToldError(f"wrote into the connection of its process: {shown(other)}")

    def _answer(self, number: int, messages: list[dict[str, Any]]) -> None:
        """Ask a model for the function; on a helper thread, in the context of the call."""
        answer: Any
        try:
            answer = llm(messages=messages)
        except BaseException as error:
            answer = error
        try:
            message = pickle.dumps((number, answer))
            pickle.loads(message)  # an error may be made of other arguments than it keeps
        except Exception:
            message = pickle.dumps((number, MetricError(str(answer))))
        with contextlib.suppress(ToldError):  # it has ended meanwhile
            self._send(MODEL_ANSWER + message)

    def _send(self, message: bytes) -> None:
        try:
            with self._lock:
                self._connection.send_bytes(message)
        except (OSError, ValueError):
            raise self._ended() from None

    def _received(self, deadline: float | None) -> tuple[Any, ...]:
        while True:
            left = _LOOK_SECONDS if deadline is None else min(deadline - time.monotonic(), _LOOK_SECONDS)
            is_alive = self.is_alive()  # asked first: its last message may come just before it ends
            try:
                if self._connection.poll(max(left, 0.0)):
                    if deadline is None:
                        message = self._connection.recv_bytes()
                    else:  # its end may never come
                        message = call_within(deadline - time.monotonic(), self._connection.recv_bytes)
                    break
            except DeadlineExceededError:  # which is an OSError
                raise
            except (EOFError, OSError, ValueError):
                raise self._ended() from None
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceededError
            if not is_alive:
                raise self._ended()
        try:
            return pickle.loads(message)
        except Exception as error:
            raise ToldError(
                f"gave what cannot be read outside of its process: {type(error).__name__}: {error}"
            ) from None

    def is_alive(self) -> bool:
        """Tell whether its process lives."""
        return self._process.is_alive()

    def is_silent(self) -> bool:
        """Tell whether nothing came from it, not even the end of its pipe, which comes before its own."""
        try:
            return not self._connection.poll(0)
        except (OSError, ValueError):
            return False

    def kill(self) -> None:
        """End its process now, and what it has started."""
        self._is_closed = True
        _kill(self._process)
        _living.discard(self)
        with self._closing:
            if not self._connection.closed:
                _shut(self._connection)  # whoever writes keeps the lock
                with self._lock:
                    self._connection.close()
                self._life.close()

    def forget(self) -> None:
        """Close this process's copy of the connection; after a fork."""
        self._connection.close()
        self._life.close()

    def _ended(self) -> ToldError:
        """Say how its process ended."""
        code = _exit_code(self._process)
        if self._is_closed:
            return ToldError("was ended, since what it belongs to was closed")
        if code is None:
            return ToldError("closed the connection of its process")
        if code >= 0:
            return ToldError(f"ended its process, with exit code {code}")
        return ToldError(f"ended its process, by {_signal_name(-code)}")


def _kill(process: Any) -> None:
    pid = process.pid
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError):  # the group, or the process before it has one
            os.killpg(pid, signal.SIGKILL)
        if process.is_alive():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    else:
        process.terminate()
    # `join` alone would wait for processes that were forked there too (loky 3.7.0), and the exit code alone
    # for ever where something else takes it.
    until = time.monotonic() + _EXIT_SECONDS
    while process.exitcode is None and time.monotonic() < until and not wait([process.sentinel], 0.005):
        pass


def _exit_code(process: Any) -> int | None:
    """Wait for its exit code; `None` where it lives on or nobody knows it."""
    # Whoever uses `multiprocessing` in this process may take the exit status of all its children, and
    # `join` then returns before there is a code (Python 3.11 and loky 3.7.0).
    until = time.monotonic() + _EXIT_SECONDS
    while (code := process.exitcode) is None and time.monotonic() < until:
        time.sleep(0.005)
    return code


def _shut(connection: Any) -> None:
    """Wake the threads that read or write there: a process that was forked there may keep the other end."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    meaning = {
        "SIGSEGV": "a segmentation fault",
        "SIGABRT": "an abort in C code",
        "SIGKILL": "as the system does when memory runs out",
    }.get(name)
    return f"{name} ({meaning})" if meaning else name


# --- the end --------------------------------------------------------------------------------------

_all: "weakref.WeakSet[Processes]" = weakref.WeakSet()
_registered = False


def _end_with_interpreter() -> None:
    """See to it that no worker outlives this process, nor keeps it."""
    global _registered
    if _registered:
        return
    _registered = True
    Finalize(
        None, _end_all, exitpriority=100
    )  # else `multiprocessing` waits for them where this is its child
    # And `concurrent.futures` joins its threads, such as DSPy's, before `atexit` comes: those that wait for a
    # worker would keep Python from ending for as long as their time-outs.
    register = getattr(threading, "_register_atexit", None) or atexit.register
    with contextlib.suppress(RuntimeError):  # it ends already
        register(_end_all)


def _end_all() -> None:
    global _is_over
    with _starting:
        _is_over = True
    for worker in list(_living):
        worker.kill()


def _forget_all() -> None:
    global _starting, _registered
    _registered = False
    _starting = threading.Lock()
    _living.clear()
    for processes in list(_all):
        processes.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
