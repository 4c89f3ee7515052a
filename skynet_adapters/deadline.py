"""Call something and wait for it no longer than allowed, whatever it does meanwhile.

A plain call runs on an idle daemon thread out of a process-wide list, in a copy of the caller's
context; an awaitable runs on one background event loop. A call that does not come back in time is
abandoned: its thread is lost to the list and dies when the call ends. Python cannot stop a thread,
so C code that keeps the GIL is not released by any of this.
"""

import asyncio
import contextvars
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["DeadlineExceededError", "call_within", "wait_within"]

T = TypeVar("T")


class DeadlineExceededError(TimeoutError):
    """A call did not come back in time; tells a deadline from a time-out inside the call."""


# How long a call may wait for a busy event loop before it is moved to a new one.
_LOOP_PATIENCE_SECONDS = 5.0


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


def wait_within(seconds: float | None, awaitable: Awaitable[T]) -> T:
    """Await something on the background loop, in a copy of this thread's context.

    One loop serves all calls, so that an async client that lives in a module keeps working; only a
    call from within another one gets a loop of its own. Works inside a running loop too, since the
    background loop has its own thread.

    Args:
        seconds: How long to wait; `None`: for ever.
        awaitable: Coroutine or other awaitable that is not bound to another loop.

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
    return _AsyncCall(awaitable).run(seconds)


class _Outcome(Generic[T]):
    """Result or exception of a call, handed from one thread to another once."""

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T
        self._error: BaseException | None = None

    def wait(self, seconds: float | None) -> None:
        if not self._done.acquire(timeout=-1 if seconds is None else max(seconds, 0.0)):
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


# Set below an awaited call. A further call from there gets a loop of its own: on the shared one, calls
# that wait for each other from different loops could never end.
_below_awaited: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "skynet_adapters_below_awaited", default=False
)


class _AsyncCall(_Outcome[T]):
    def __init__(self, awaitable: Awaitable[T]) -> None:
        super().__init__()
        self._awaitable = awaitable
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._withdrawn = False
        self._loop: asyncio.AbstractEventLoop | None = None  # the one that may begin it, or has begun it
        self._task: asyncio.Task[None] | None = None

    def run(self, seconds: float | None) -> T:
        end = None if seconds is None else time.monotonic() + seconds
        try:
            if _below_awaited.get():
                self._start_own_loop()
            else:
                self._offer(_background_loop())
                patience = _LOOP_PATIENCE_SECONDS if seconds is None else seconds / 2
                if not self._begun.wait(min(patience, _LOOP_PATIENCE_SECONDS)):  # something blocks it
                    self._offer(_background_loop(blocked=self._loop))
            self.wait(None if end is None else end - time.monotonic())
        except BaseException:
            self._withdraw()
            raise
        return self.outcome()

    def _start_own_loop(self) -> None:
        run = functools.partial(self._context.run, asyncio.run, self._settle())
        threading.Thread(target=run, name="skynet-adapters-own-loop", daemon=True).start()

    def _offer(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._begun.is_set():
                return
            self._loop = loop
        loop.call_soon_threadsafe(self._accept, loop)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is not loop or self._begun.is_set():
                return  # it was offered to another one meanwhile, or withdrawn
            self._begun.set()
        self._task = loop.create_task(self._settle(), context=self._context)

    async def _settle(self) -> None:
        with self._lock:
            self._begun.set()
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self._withdrawn:
                self._close()
                return
        _below_awaited.set(True)
        try:
            self._result = await self._awaitable
        except BaseException as error:  # SystemExit would end the loop for everybody
            self._error = error
        finally:
            self._done.release()

    def _withdraw(self) -> None:
        with self._lock:
            self._withdrawn = True
            if self._loop is not None and self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            elif not self._begun.is_set():
                self._loop = None  # no loop may begin it any more
                self._close()

    def _close(self) -> None:
        if asyncio.iscoroutine(self._awaitable):
            self._awaitable.close()  # spare the user asyncio's "was never awaited"


_loop_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _background_loop(blocked: asyncio.AbstractEventLoop | None = None) -> asyncio.AbstractEventLoop:
    """Give the loop that serves; a new one takes over when that is `blocked`."""
    global _loop
    with _loop_lock:
        if _loop is None or _loop is blocked:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="skynet-adapters-loop", daemon=True).start()
        return _loop


def _forget_threads() -> None:
    global _loop, _loop_lock
    _helpers.clear()
    _loop, _loop_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_threads)
