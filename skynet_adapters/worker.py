"""What goes on in a worker process: one function is called again and again for the process that started it.

What it is given and what it gives travels as bytes of cloudpickle, so that functions and classes of a
notebook do too. What is imported here is imported by each worker: no target library.
"""

import contextlib
import io
import itertools
import os
import pickle
import re
import signal
import sys
import threading
from collections import ChainMap
from collections.abc import Awaitable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import CodeType
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import cloudpickle

from . import judge_llm, measure
from .attempt import Ran, attempt
from .deadline import wait_within
from .errors import MetricBroken, MetricError, MetricReturnError, ProgramFailedError
from .function import caller, hint, told
from .measure import Bill
from .score import clean_text, shown

__all__ = ["CALL", "MODEL_ANSWER", "Outcome", "RunWork", "ScoreWork", "Work", "packed", "passes_on", "serve"]

_cloudpickle: Any = cast("Any", cloudpickle)

# What the first byte of a message from the parent says.
CALL, MODEL_ANSWER = b"c", b"a"


class Outcome(NamedTuple):
    """What became of a call.

    Attributes:
        value: What the function gave.
        fault: What it did instead, a clause such as "raised ValueError: ...", or `None`.
        error: An error of this package, which is raised in the parent as it is.
        is_last: The process is not fit for another call.
    """

    value: Any = None
    fault: str | None = None
    error: BaseException | None = None
    is_last: bool = False


class Work(Protocol):
    """A function, and how a worker calls it; never raises."""

    def __call__(self, *given: Any, **named: Any) -> Outcome:
        """Call it."""
        ...

    def not_called(self, why: str, is_last: bool) -> Outcome:
        """Say that what it was given cannot be read."""
        ...

    def not_sent(self, why: str) -> Outcome:
        """Say that what it gave cannot be sent to the parent."""
        ...


class ScoreWork:
    """A metric's function.

    Example:
        >>> ScoreWork(lambda input, output: 1 / output, "inverse")({}, 0, None).fault
        'raised ZeroDivisionError: division by zero ...'
    """

    def __init__(self, score: Any, name: str) -> None:
        self._score, self._name = score, name

    def __call__(self, input: Any, output: Any, expected: Any) -> Outcome:
        """Call it, and wait for what is async."""
        try:
            returned = caller(self._score, self._name)(input, output, expected)
            if type(returned) is not tuple and isinstance(returned, Awaitable):
                returned = wait_within(None, cast("Awaitable[Any]", returned))
        except (MetricReturnError, ProgramFailedError, MetricBroken) as error:
            return Outcome(error=type(error)(*error.args))
        except BaseException as error:
            what = f"raised {told(error, self._score, None)}"  # the parent cuts, which knows the keys
            fault = what + hint(error, what, input, expected)
            return Outcome(fault=fault, is_last=isinstance(error, MemoryError))
        return Outcome(returned)

    def not_called(self, why: str, is_last: bool) -> Outcome:
        """Say it of a case."""
        return Outcome(fault=f"was not called: what it is given cannot be read: {why}", is_last=is_last)

    def not_sent(self, why: str) -> Outcome:
        """Say it of what the metric returned."""
        return Outcome(
            error=MetricReturnError(
                f"metric {self._name!r} returned what cannot be sent back from its process: {why}; return "
                "numbers, texts, lists and dicts of them"
            )
        )


class RunWork:
    """A user's `run`.

    Example:
        >>> RunWork(lambda artifact, input: artifact + input["text"])("a", {"text": "b"}).value
        Ran(output='ab', fault=None, observation=None)
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, artifact: Any, input: dict[str, Any]) -> Outcome:
        """Call it, and wait for what is async."""
        memory: list[MemoryError] = []

        def run() -> Any:
            try:
                return self._run(artifact, input)
            except MemoryError as error:
                memory.append(error)
                raise

        try:
            return Outcome(attempt(self._run, run, None, None), is_last=bool(memory))
        except MetricBroken as error:  # of a run inside this one
            return Outcome(error=MetricBroken(*error.args))
        except KeyboardInterrupt as error:  # no Ctrl-C comes here, so it is the function's own
            return Outcome(Ran(None, f"It raised {told(error, self._run)}."))

    def not_called(self, why: str, is_last: bool) -> Outcome:
        """Say it of a case."""
        fault = f"It was not called: what it is given cannot be read: {why}."
        return Outcome(Ran(None, fault), is_last=is_last)

    def not_sent(self, why: str) -> Outcome:
        """Say it of the output."""
        return Outcome(Ran(None, f"Its output cannot be sent back from its process: {why}."))


# --- the environment ------------------------------------------------------------------------------

# What the operating system, Python and numeric libraries need.
_PASSED_ON = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|TMPDIR|TMP|TEMP|PWD|VIRTUAL_ENV|CONDA_PREFIX"
    "|LD_LIBRARY_PATH|DYLD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|DSPY_CACHEDIR|LITELLM_LOCAL_MODEL_COST_MAP"
    "|SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|USERPROFILE|HOMEDRIVE|HOMEPATH|APPDATA|LOCALAPPDATA"
    "|PROGRAMDATA|PROGRAMFILES|NUMBER_OF_PROCESSORS|PROCESSOR_ARCHITECTURE"
    "|PYTHON.*|(LC|XDG|OMP|MKL|OPENBLAS|NUMBA)_.*"
)
_LOOKS_LIKE_A_CREDENTIAL = re.compile("KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH")


def passes_on(name: str) -> bool:
    """Tell whether a worker gets this variable of the environment.

    Example:
        >>> passes_on("PATH"), passes_on("OPENAI_API_KEY"), passes_on("PYTHON_REGISTRY_TOKEN")
        (True, False, False)
    """
    name = name.upper()
    return bool(_PASSED_ON.fullmatch(name)) and not _LOOKS_LIKE_A_CREDENTIAL.search(name)


# --- what travels ---------------------------------------------------------------------------------


def packed(parts: dict[str, Any], *more: Any) -> bytes:
    """Pickle the values of `parts`, and `more`.

    Args:
        parts: What is named in the error.
        *more: What always travels.

    Returns:
        The pickled pair of both, as tuples.

    Raises:
        TypeError: A part cannot be pickled; names it.

    Example:
        >>> packed({"input": {"text": "a", "lock": threading.Lock()}})
        Traceback (most recent call last):
        TypeError: input['lock'], a lock: TypeError: cannot pickle '_thread.lock' object
    """
    try:
        return _dumps((tuple(parts.values()), more))
    except Exception as error:
        raise TypeError(_what_cannot_travel(parts, error)) from None


def _code_reduced(code: CodeType) -> Any:
    make, arguments = _cloudpickle.CloudPickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)


class _Pickler(_cloudpickle.CloudPickler):
    """Keeps the file names of functions, which say where a fault came from; cloudpickle 3.1 drops them."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _code_reduced},
        _cloudpickle.CloudPickler.dispatch_table,
    )


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _what_cannot_travel(parts: dict[str, Any], error: Exception) -> str:
    for name, value in parts.items():
        error_of_part = _fault(value)
        if error_of_part is None:
            continue
        items: Any = ()
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
        elif isinstance(value, list | tuple):
            items = enumerate(cast("list[Any]", value))
        for key, item in items:
            if (fault := _fault(item)) is not None:
                return _told_of(f"{name}[{key!r}]", item, fault)
        return _told_of(name, value, error_of_part)
    return _said(error)


def _told_of(name: str, value: Any, error: Exception) -> str:
    return clean_text(f"{name}, a {type(value).__name__}: {_said(error)}", 1_000)


def _fault(value: Any) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:
        return error
    return None


def _said(error: BaseException) -> str:
    return clean_text(f"{type(error).__name__}: {error}", 1_000).rstrip(".: ")


# --- the process ----------------------------------------------------------------------------------


def serve(connection: Connection, life: Connection) -> None:
    """Load a function, and call it as often as the parent asks, until it closes the connection.

    Args:
        connection: To the parent.
        life: Its other end is open for as long as the parent lives.
    """
    if hasattr(os, "setsid"):
        # Ctrl-C in the terminal is for the parent alone; and what is started here ends with this process.
        os.setsid()
    if sys.platform == "linux":
        _end_with(life)
    for name in list(os.environ):
        if not passes_on(name):
            del os.environ[name]
    sys.argv[1:] = []  # which are the parent's
    parent = _Parent(connection)
    judge_llm.elsewhere = parent.ask
    threading.Thread(target=parent.listen, name="skynet-adapters-parent", daemon=True).start()
    work = _loaded(parent)
    while True:
        outcome = _outcome(work, parent)
        parent.give(outcome, work)
        if outcome.is_last:
            return


def _end_with(life: Connection) -> None:
    """Let the system end this process group when the parent has died; here C code may keep Python's lock."""
    import fcntl  # there is none on Windows

    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO at its end


def _loaded(parent: "_Parent") -> Work:
    try:
        (work, memory_limit_mb), _ = pickle.loads(parent.next_call())
        if memory_limit_mb is not None:
            _limit_memory(memory_limit_mb)
    except BaseException as error:
        parent.send("loaded", f"cannot be loaded in its process: {_said(error)}")
        os._exit(1)
    parent.send("loaded", None)
    return work


def _limit_memory(megabytes: float) -> None:
    import resource  # there is none on Windows

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + int(megabytes * 2**20)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _outcome(work: Work, parent: "_Parent") -> Outcome:
    message = parent.next_call()
    try:
        given, (judged,) = pickle.loads(message)
    except BaseException as error:
        return work.not_called(f"{_said(error)} (in a process of its own)", isinstance(error, MemoryError))
    token = measure.begin_judging(parent, *judged) if judged is not None else None
    outcome = work(*given)
    if token is not None:
        measure.end_judging(token)
    with contextlib.suppress(Exception):
        sys.stdout.flush()  # what is killed later loses what it has printed
    return outcome


class _Parent:
    """The process that started this one; as a `measure.Reader` it learns that a record is read."""

    def __init__(self, connection: Connection) -> None:
        self.name = ""
        self.bill = Bill()  # of models that the function chooses itself, which nobody sees
        self._connection = connection
        self._sending = threading.Lock()
        self._calls: SimpleQueue[bytes] = SimpleQueue()
        self._numbers = itertools.count()
        self._asked: dict[int, SimpleQueue[Any]] = {}
        self._pid = os.getpid()

    def listen(self) -> None:
        """Take what the parent sends, in a thread of its own; end the process when the parent is gone."""
        try:
            while True:
                message = self._connection.recv_bytes()
                kind, rest = message[:1], message[1:]
                if kind == CALL:
                    self._calls.put(rest)
                else:
                    number, answer = pickle.loads(rest)
                    self._asked.pop(number).put(answer)
        except (EOFError, OSError):  # the latter where it left something unread
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
        finally:
            os._exit(1)

    def next_call(self) -> bytes:
        """Wait for what is to be called."""
        return self._calls.get()

    def send(self, kind: str, *what: Any) -> None:
        """Send something, from any thread."""
        self._send(pickle.dumps((kind, *what)))

    def _send(self, message: bytes) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except OSError:  # the function has closed it, or the parent is gone
            os._exit(1)

    def give(self, outcome: Outcome, work: Work) -> None:
        """Send what became of a call, or say why that cannot be sent."""
        if os.getpid() != self._pid:  # the function has forked and returned twice
            os._exit(0)
        try:
            message = _dumps(("done", outcome))
        except BaseException as error:
            why = f"{shown(outcome.value)}: {_said(error)}" if isinstance(error, Exception) else _said(error)
            message = _dumps(("done", work.not_sent(why)))
        self._send(message)

    def ask(self, messages: list[dict[str, Any]]) -> str:
        """Ask the parent's model; raises what the parent's `llm` raises."""
        if os.getpid() != self._pid:
            raise MetricError(
                "llm() was called in a process that a worker process has forked; call it before"
            )
        number, answers = next(self._numbers), SimpleQueue[Any]()
        self._asked[number] = answers
        self.send("ask", number, messages)
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def measurement_was_read(self, measured: bool) -> None:
        """Tell the parent, whose metric it is."""
        self.send("read")

    def warn_once(self, topic: str, message: str, *values: object) -> None:
        """Leave it to the parent, which reads the record for itself when it is told of that."""
