"""Call something and wait for it no longer than allowed, whatever it does meanwhile.

A plain call runs on an idle daemon thread out of a process-wide list, in a copy of the caller's
context; an awaitable runs on a background event loop. A call that does not come back in time is
abandoned: its thread is lost to the list and dies when the call ends. Python cannot stop a thread,
so C code that keeps the GIL is not released by any of this.
"""

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = [
    "DeadlineExceededError",
    "call_within",
    "end_idle_helpers",
    "start",
    "wait_unless_ended",
    "wait_within",
]

T = TypeVar("T")


class DeadlineExceededError(TimeoutError):
    """A call did not come back in time; tells a deadline from a time-out inside the call."""


# How long a call waits for a busy event loop, at most and at least, before it is moved to a new one.
_LOOP_PATIENCE_SECONDS = 5.0
_SHORT_SECONDS = 0.5
# How often a thread that waits looks whether the program has ended.
_LOOK_SECONDS = 0.5


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Call `function` on a helper thread, in a copy of this thread's context.

    Args:
        seconds: How long to wait for it.
        function: Takes nothing; whatever it raises is raised here, `SystemExit` included.

    Returns:
        What `function` returned.

    Raises:
        DeadlineExceededError: It did not come back in time and was abandoned.

    Example:
        >>> call_within(5.0, lambda: 1 + 1)
        2
    """
    _stop_when_ended()
    call = _Call(function)
    helper = _idle_helper()
    try:
        helper.put(call)
        call.wait(seconds)
    except BaseException:  # timed out, or Ctrl-C while waiting: the helper ends with its call
        helper.put(None)
        raise
    _helpers.append(helper)
    return call.outcome()


def start(function: Callable[[], None]) -> None:
    """Call `function` on a helper thread, in a copy of this thread's context, without waiting for it.

    The helper serves others when the call ends, however late that is, and ends with the process.

    Args:
        function: Takes nothing; nobody learns what it raises.

    Example:
        >>> done = SimpleQueue()
        >>> start(lambda: done.put("done"))
        >>> done.get()
        'done'
    """
    _stop_when_ended()
    helper = _idle_helper()
    helper.put(_Started(function, helper))


def end_idle_helpers() -> None:
    """End the threads that wait for a call; the next call starts a new one."""
    with contextlib.suppress(IndexError):
        while True:
            _helpers.pop().put(None)


def wait_within(seconds: float | None, awaitable: Awaitable[T], depth: int = 0) -> T:
    """Await something on a background loop, in a copy of this thread's context.

    One loop serves all calls, so that an async client that lives in a module keeps working; calls from
    within another one share a loop one level down, since on the same one they could wait for each other for
    ever. Works inside a running loop too, since a background loop has its own thread.

    Args:
        seconds: How long to wait; `None`: for ever. It is counted from when a loop begins it, which
            takes up to 10 s where other calls block theirs.
        awaitable: Coroutine or other awaitable that is not bound to another loop.
        depth: How many calls it is within, where that is more than this thread's context knows.

    Returns:
        What it gave.

    Raises:
        DeadlineExceededError: It was not done in time and was cancelled.

    Example:
        >>> async def answer():
        ...     return 42
        >>> wait_within(5.0, answer())
        42
    """
    return _AsyncCall(awaitable, max(depth, _depth.get())).run(seconds)


def wait_unless_ended(wait: Callable[[float], bool], seconds: float | None) -> bool:
    """Wait, and no longer where Ctrl-C has ended the program: Python would wait for this thread in turn.

    Pools of DSPy, GEPA and users have threads that Python joins at the end, and those wait for calls here.

    Args:
        wait: Waits so many seconds; tells whether what it waits for has come.
        seconds: How long to wait; `None`: for ever.

    Returns:
        Whether it has come.

    Raises:
        KeyboardInterrupt: Ctrl-C has ended the program.

    Example:
        >>> wait_unless_ended(threading.Event().wait, 0.01)
        False
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    left = _LOOK_SECONDS if seconds is None else seconds
    while not wait(min(left, _LOOK_SECONDS)):
        if deadline is not None:
            left = max(deadline - time.monotonic(), 0.0)
            if left == 0.0:
                return False
        _stop_when_ended()
    return True


def _stop_when_ended() -> None:
    # Python notes there what nobody caught, which ends a program. Where there is a prompt, as in a notebook,
    # it ends one line alone; and threads that go on after an ordinary end are left alone.
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        raise KeyboardInterrupt("the program was ended by Ctrl-C")


class _Outcome(Generic[T]):
    """Result or exception of a call, handed from one thread to another once."""

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T
        self._error: BaseException | None = None

    def wait(self, seconds: float | None) -> None:
        done = self._done
        if not wait_unless_ended(
            lambda left: done.acquire(timeout=left), None if seconds is None else max(seconds, 0.0)
        ):
            raise DeadlineExceededError

    def outcome(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # else frame and traceback keep each other, and what was judged, alive


class _Call(_Outcome[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        super().__init__()
        self._function = function
        self._context = contextvars.copy_context()

    def run(self) -> None:
        try:
            self._result = self._context.run(self._function)
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()


class _Started(_Call[None]):
    def __init__(self, function: Callable[[], None], helper: "_Inbox") -> None:
        super().__init__(function)
        self._helper = helper

    def run(self) -> None:
        super().run()
        _helpers.append(self._helper)


# A helper is known by its inbox; None in the inbox ends it.
_Inbox: TypeAlias = "SimpleQueue[_Call[Any] | None]"
_helpers: deque[_Inbox] = deque()


def _idle_helper() -> _Inbox:
    try:
        return _helpers.pop()
    except IndexError:
        inbox: _Inbox = SimpleQueue()
        threading.Thread(target=_serve, args=(inbox,), name="skynet-adapters-call", daemon=True).start()
        return inbox


def _serve(inbox: _Inbox) -> None:
    while (call := inbox.get()) is not None:
        call.run()
        del call  # an idle helper must keep nothing of its last call alive


# How many awaited calls this is within.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("skynet_adapters_depth", default=0)


class _AsyncCall(_Outcome[T]):
    def __init__(self, awaitable: Awaitable[T], depth: int) -> None:
        super().__init__()
        self._awaitable = awaitable
        self._depth = depth
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that may begin it, or has begun it
        self._task: asyncio.Task[None] | None = None

    def run(self, seconds: float | None) -> T:
        try:
            self._begin(seconds)
            self.wait(seconds)
        except BaseException:
            self._withdraw()
            raise
        return self.outcome()

    def _begin(self, seconds: float | None) -> None:
        """Offer it to the loop that serves; where that is busy, to another, and then to one of its own."""
        patience = _LOOP_PATIENCE_SECONDS
        if seconds is not None:
            patience = min(max(seconds / 2, _SHORT_SECONDS), patience)
        self._offer(None)
        if not wait_unless_ended(self._begun.wait, patience):
            self._offer(self._loop)
        if not wait_unless_ended(self._begun.wait, patience):
            self._offer_own()

    def _offer(self, blocked: asyncio.AbstractEventLoop | None) -> None:
        with _loops_lock:  # else the loop might have been closed by the time that it gets this
            self._give_to(_serving_loop(self._depth, blocked))

    def _offer_own(self) -> None:
        loop = _new_loop()
        self._give_to(loop)
        loop.call_soon_threadsafe(_retire, loop)

    def _give_to(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._begun.is_set():
                return
            self._loop = loop
        loop.call_soon_threadsafe(self._accept, loop)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        # A context of its own: another loop may have begun it in the one that it was offered in.
        loop.create_task(self._settle(loop), context=self._context.copy())

    async def _settle(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is not loop or self._begun.is_set():
                return  # it was offered to another one meanwhile, or withdrawn
            self._task = asyncio.current_task()
            self._begun.set()
        _depth.set(self._depth + 1)
        try:
            self._result = await self._awaitable
        except BaseException as error:  # SystemExit would end the loop for everybody
            self._error = error
        finally:
            self._done.release()

    def _withdraw(self) -> None:
        with self._lock:
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # done meanwhile, and its loop closed
                    self._loop.call_soon_threadsafe(self._task.cancel)
            else:
                self._loop = None  # no loop may begin it any more
                if asyncio.iscoroutine(self._awaitable):
                    self._awaitable.close()  # spare the user asyncio's "was never awaited"


# For each depth the loop that serves, above those that were found blocked and will serve again.
_loops: dict[int, list[asyncio.AbstractEventLoop]] = {}
_loops_lock = threading.Lock()
_retired: set[asyncio.AbstractEventLoop] = set()  # those that end


def _serving_loop(depth: int, blocked: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Give the loop that serves; a new one stands in while that is `blocked`. Needs the lock."""
    loops = _loops.setdefault(depth, [])
    if not loops or loops[-1] is blocked:
        if blocked is not None:
            blocked.call_soon_threadsafe(_serve_again, depth, blocked)
        loops.append(_new_loop())
    return loops[-1]


def _serve_again(depth: int, loop: asyncio.AbstractEventLoop) -> None:
    """End those that stood in for a loop, from within it: what lives in a module is bound to the first."""
    with _loops_lock:
        loops = _loops[depth]
        if loop in loops:
            while loops[-1] is not loop:
                stood_in = loops.pop()
                stood_in.call_soon_threadsafe(_retire, stood_in)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=_serve_loop, args=(loop,), name="skynet-adapters-loop", daemon=True).start()
    return loop


def _serve_loop(loop: asyncio.AbstractEventLoop) -> None:
    # A task that raises `SystemExit`, or calls `loop.stop`, ends this for all whose calls are there.
    while loop not in _retired and not loop.is_closed():
        with contextlib.suppress(BaseException):  # whoever awaits that task gets it too
            loop.run_forever()
    _retired.discard(loop)
    loop.close()


def _retire(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop, from within, when nothing is left to do there."""
    left = asyncio.all_tasks(loop)
    if left:
        left.pop().add_done_callback(lambda _: _retire(loop))
    else:
        _retired.add(loop)
        loop.stop()


def _forget_threads() -> None:
    global _loops_lock
    _helpers.clear()
    _loops.clear()
    _loops_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_threads)
