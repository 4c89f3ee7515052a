"""Calls that are waited for no longer than allowed, on helper threads and on the background loop."""

import asyncio
import contextlib
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from skynet_adapters.deadline import (
    DeadlineExceededError,
    call_within,
    end_idle_helpers,
    start,
    wait_within,
)
from tests.waiting import HANG, PATIENCE, eventually, waiting

LONG = 60.0  # a patience with a busy loop that would show


@pytest.fixture
def _long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a loop that another call blocks waits so long that it is seen."""
    monkeypatch.setattr("skynet_adapters.deadline._LOOP_PATIENCE_SECONDS", LONG)


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )


# --- call_within ---------------------------------------------------------------------------------


def test_a_call_gives_what_the_function_returned():
    thing = object()
    assert call_within(PATIENCE, lambda: thing) is thing


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()]
)
def test_whatever_the_function_raises_is_raised_here(error):
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        call_within(PATIENCE, fail)
    assert caught.value is error
    assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_the_next_call_works_after_one_that_raised():
    with pytest.raises(SystemExit):
        call_within(PATIENCE, lambda: sys.exit(3))
    assert call_within(PATIENCE, lambda: 1) == 1


def test_a_call_that_hangs_is_given_up_while_it_still_hangs(released):
    ended: list[bool] = []
    with pytest.raises(DeadlineExceededError):
        call_within(0.3, lambda: ended.append(released.wait()))
    assert ended == []


def test_a_deadline_is_told_from_a_time_out_inside_the_call():
    def fail() -> None:
        raise TimeoutError("the server's own")

    with pytest.raises(TimeoutError, match="the server's own") as caught:
        call_within(PATIENCE, fail)
    assert not isinstance(caught.value, DeadlineExceededError)


def test_a_deadline_is_a_time_out_for_those_who_catch_one(released):
    with pytest.raises(TimeoutError):
        call_within(0.05, lambda: released.wait())


def test_the_function_runs_on_a_daemon_thread_that_is_not_the_callers():
    thread = call_within(PATIENCE, threading.current_thread)
    assert thread is not threading.current_thread()
    assert thread.daemon


def test_the_function_sees_the_callers_context_and_cannot_change_it():
    token = variable.set("the caller's")
    try:

        def look() -> str:
            seen = variable.get()
            variable.set("the function's")
            return seen

        assert call_within(PATIENCE, look) == "the caller's"
        assert variable.get() == "the caller's"
    finally:
        variable.reset(token)
    assert call_within(PATIENCE, variable.get) == "unset"


def test_calls_one_after_another_use_one_helper():
    call_within(PATIENCE, int)
    before = threading.active_count()
    threads = {call_within(PATIENCE, threading.get_ident) for _ in range(200)}
    assert len(threads) <= 2
    assert threading.active_count() <= before


def test_calls_at_once_use_no_more_helpers_than_there_are_callers():
    before = threading.active_count()

    def many(_: int) -> None:
        for _ in range(50):
            call_within(PATIENCE, int)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))
    assert threading.active_count() - before <= 8


def test_a_call_inside_a_call_works():
    assert call_within(PATIENCE, lambda: call_within(PATIENCE, lambda: call_within(PATIENCE, int))) == 0


def test_an_abandoned_helper_takes_no_further_call_and_ends_with_its_own(released):
    hanging: list[threading.Thread] = []

    def hang() -> None:
        hanging.append(threading.current_thread())
        released.wait()

    with pytest.raises(DeadlineExceededError):
        call_within(1.0, hang)
    assert hanging[0].is_alive()
    assert hanging[0] not in {call_within(PATIENCE, threading.current_thread) for _ in range(20)}
    released.set()
    hanging[0].join(PATIENCE)
    assert not hanging[0].is_alive()


class Thing:
    """Something that can be held weakly."""


def test_an_idle_helper_keeps_nothing_of_its_last_call_alive():
    thing = Thing()
    gone = weakref.ref(thing)
    assert call_within(PATIENCE, lambda thing=thing: thing) is thing
    del thing
    assert eventually(lambda: gone() is None)


def test_a_call_that_raised_keeps_nothing_alive():
    def fail(thing: Thing) -> None:
        raise ValueError(thing)

    thing = Thing()
    gone = weakref.ref(thing)
    with pytest.raises(ValueError, match="Thing"):
        call_within(PATIENCE, lambda thing=thing: fail(thing))
    del thing
    assert eventually(lambda: gone() is None)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_control_c_ends_the_waiting():
    done = run_script(
        """
        import signal, threading, time
        from skynet_adapters.deadline import call_within, wait_within
        import asyncio

        main = threading.get_ident()
        call = lambda: call_within(600, lambda: time.sleep(600))
        coroutine = lambda: wait_within(600, asyncio.sleep(600))
        for wait in (call, coroutine):
            try:
                threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
                wait()
            except KeyboardInterrupt:
                print("interrupted")
        print("after", call_within(30, lambda: 1))
        """
    )
    assert done.stdout.split("\n")[:3] == ["interrupted", "interrupted", "after 1"], done.stderr
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_has_helpers_and_a_loop_of_its_own():
    done = run_script(
        """
        import asyncio, os, warnings
        from skynet_adapters.deadline import call_within, wait_within

        async def answer():
            await asyncio.sleep(0)
            return 42

        warnings.simplefilter("ignore")
        assert call_within(30, lambda: 1) == 1
        assert wait_within(30, answer()) == 42
        child = os.fork()
        if child == 0:
            fine = call_within(30, lambda: 1) == 1 and wait_within(30, answer()) == 42
            os._exit(0 if fine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert call_within(30, lambda: 1) == 1 and wait_within(30, answer()) == 42
        print("fine")
        """
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert done.returncode == 0


# --- wait_within ---------------------------------------------------------------------------------


async def give(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, int]:
    return asyncio.get_running_loop(), threading.get_ident()


@pytest.mark.parametrize("seconds", [PATIENCE, None])
def test_waiting_gives_what_the_coroutine_returned(seconds):
    thing = object()
    assert wait_within(seconds, give(thing)) is thing


class Later:
    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return "later"


def test_any_awaitable_can_be_waited_for():
    assert wait_within(PATIENCE, Later()) == "later"


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_whatever_the_coroutine_raises_is_raised_here_and_the_loop_lives_on(error):
    async def fail() -> None:
        raise error

    before = wait_within(PATIENCE, loop_and_thread())
    with pytest.raises(type(error)) as caught:
        wait_within(PATIENCE, fail())
    assert caught.value is error
    assert wait_within(PATIENCE, loop_and_thread()) == before


def test_one_loop_on_one_thread_serves_callers_of_all_threads():
    def many(_: int) -> set[Any]:
        return {wait_within(PATIENCE, loop_and_thread()) for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        seen = set().union(*pool.map(many, range(8)))
    assert len(seen) == 1
    assert next(iter(seen))[1] != threading.get_ident()


def test_coroutines_of_several_callers_run_side_by_side():
    arrived = [0]
    all_here = asyncio.Event()

    async def meet() -> str:
        arrived[0] += 1
        if arrived[0] == 8:
            all_here.set()
        await all_here.wait()
        return "met"

    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(wait_within, PATIENCE, meet()) for _ in range(8)]
        assert [wait.result(PATIENCE) for wait in waits] == ["met"] * 8


def test_the_coroutine_sees_the_callers_context_and_cannot_change_it():
    async def look() -> str:
        seen = variable.get()
        variable.set("the coroutine's")
        return seen

    token = variable.set("the caller's")
    try:
        assert wait_within(PATIENCE, look()) == "the caller's"
        assert variable.get() == "the caller's"
    finally:
        variable.reset(token)
    assert wait_within(PATIENCE, look()) == "unset"


def test_a_coroutine_that_hangs_is_given_up_and_cancelled():
    cancelled, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(HANG)
            ended.set()
        finally:
            cancelled.set()

    with pytest.raises(DeadlineExceededError):
        wait_within(0.5, hang())
    assert cancelled.wait(PATIENCE)
    assert not ended.is_set()
    assert wait_within(PATIENCE, give(1)) == 1


async def exit_in_a_task() -> None:
    async def leave() -> None:
        sys.exit("of a task")

    await asyncio.gather(leave(), asyncio.sleep(60))


async def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    sys.exit("of a task")


@pytest.mark.parametrize("harm", [exit_in_a_task, stop_the_loop])
def test_what_ends_the_loop_ends_its_own_call_alone(harm):
    begun, ended = threading.Event(), threading.Event()

    async def neighbour() -> str:
        begun.set()
        while not ended.is_set():
            await asyncio.sleep(0.01)
        return "unharmed"

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_within, PATIENCE, neighbour())
        try:
            assert begun.wait(PATIENCE)
            with pytest.raises(SystemExit, match="of a task"):
                wait_within(PATIENCE, harm())
        finally:
            ended.set()
        assert waiting.result() == "unharmed"
    assert wait_within(PATIENCE, give(1)) == 1


def test_a_time_out_inside_the_coroutine_is_told_from_the_deadline():
    async def hang() -> None:
        await asyncio.wait_for(asyncio.sleep(60), 0.05)

    with pytest.raises(TimeoutError) as caught:
        wait_within(PATIENCE, hang())
    assert not isinstance(caught.value, DeadlineExceededError)


def test_waiting_works_inside_a_running_loop():
    async def main() -> Any:
        return wait_within(PATIENCE, give("inside"))

    assert asyncio.run(main()) == "inside"


def test_a_loop_that_is_blocked_by_one_coroutine_is_left_for_a_new_one(released):
    blocking = threading.Event()

    async def block() -> str:
        blocking.set()
        released.wait()  # as a synchronous client in an async metric does
        return "done"

    old = wait_within(PATIENCE, loop_and_thread())
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(wait_within, 60.0, block())
        assert blocking.wait(PATIENCE)
        new = wait_within(20.0, loop_and_thread())
        assert not blocked.done()
        assert new != old
        # The new loop serves whoever comes next, at once.
        assert wait_within(PATIENCE, loop_and_thread()) == new
        released.set()
        assert blocked.result(PATIENCE) == "done"
    # What lives in a module is bound to the first one, which serves again.
    assert eventually(lambda: wait_within(PATIENCE, loop_and_thread()) == old)


def test_a_loop_that_was_left_ends_with_its_last_call():
    before = set(threading.enumerate())
    blocking, released = threading.Event(), threading.Event()

    async def block() -> int:
        blocking.set()
        released.wait()
        await asyncio.sleep(0.01)
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            blocking.clear()
            released.clear()
            blocked = pool.submit(wait_within, 60.0, block())
            assert blocking.wait(PATIENCE)
            wait_within(4.0, give("moved"))
            released.set()
            assert blocked.result(PATIENCE)
    loops = [thread for thread in threading.enumerate() if thread.name == "skynet-adapters-loop"]
    assert eventually(lambda: sum(thread.is_alive() for thread in loops if thread not in before) <= 1)


def test_a_very_short_time_out_does_not_leave_a_loop_that_is_only_busy(monkeypatch, released):
    monkeypatch.setattr("skynet_adapters.deadline._SHORT_SECONDS", PATIENCE)
    loop = wait_within(PATIENCE, loop_and_thread())
    blocking = threading.Event()
    loops: list[Any] = []

    async def block() -> None:
        blocking.set()
        released.wait()

    async def note() -> None:
        loops.append(await loop_and_thread())

    def ask() -> None:
        with contextlib.suppress(DeadlineExceededError):  # once begun, it may take too long
            wait_within(0.02, note())

    with ThreadPoolExecutor(1) as busy, ThreadPoolExecutor(1) as pool:
        blocked = busy.submit(wait_within, PATIENCE, block())
        assert blocking.wait(PATIENCE)
        asked = pool.submit(ask)
        assert eventually(lambda: waiting(pool._threads) == 1)
        time.sleep(0.2)  # time in which it could leave the loop; the test holds without it
        released.set()
        blocked.result(PATIENCE)
        asked.result(PATIENCE)
    assert loops == [loop]


def test_a_coroutine_that_moved_to_a_new_loop_runs_once(released):
    blocking = threading.Event()
    runs: list[int] = []

    async def block() -> None:
        blocking.set()
        released.wait()

    class Count:  # a coroutine could not be begun twice
        def __await__(self) -> Any:
            runs.append(1)
            yield from asyncio.sleep(0).__await__()
            return len(runs)

    first = wait_within(PATIENCE, loop_and_thread())
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(wait_within, 60.0, block())
        assert blocking.wait(PATIENCE)
        assert wait_within(20.0, Count()) == 1
        released.set()
        blocked.result(PATIENCE)
    # The first loop serves again, and has come by all that it was offered meanwhile.
    assert eventually(lambda: wait_within(PATIENCE, loop_and_thread()) == first)
    assert runs == [1]


def test_a_coroutine_that_finds_two_loops_blocked_gets_one_of_its_own(released):
    blocking = [threading.Event(), threading.Event()]

    async def block(number: int) -> None:
        blocking[number].set()
        released.wait()

    with ThreadPoolExecutor(2) as pool:
        blocked = [pool.submit(wait_within, 60.0, block(0))]
        assert blocking[0].wait(PATIENCE)
        blocked.append(pool.submit(wait_within, 4.0, block(1)))  # moves to another loop, and blocks that
        assert blocking[1].wait(PATIENCE)
        assert wait_within(1.0, give("alone")) == "alone"
        assert not released.is_set()
        released.set()
        for one in blocked:
            one.result(PATIENCE)


def test_work_that_blocks_the_loop_is_timed_from_its_own_begin():
    async def work(number: int) -> int:
        time.sleep(0.1)  # as a synchronous client in an async metric does
        return number

    with ThreadPoolExecutor(16) as pool:  # those that come last wait for longer than they may take
        done = pool.map(lambda number: wait_within(1.0, work(number)), range(16))
        assert list(done) == list(range(16))


def test_waiting_from_the_loop_thread_itself_does_not_deadlock():
    async def outer() -> Any:
        return wait_within(PATIENCE, give("nested")), threading.get_ident()

    value, thread = wait_within(PATIENCE, outer())
    assert value == "nested"
    assert thread != threading.get_ident()


def test_waiting_three_deep_from_loop_threads_does_not_deadlock():
    async def third() -> str:
        return "three deep"

    async def second() -> str:
        return wait_within(PATIENCE, third())

    async def first() -> str:
        return wait_within(PATIENCE, second())

    assert wait_within(PATIENCE, first()) == "three deep"


@pytest.mark.usefixtures("_long_patience")
def test_waiting_three_deep_from_several_threads_does_not_stall():
    async def third() -> str:
        await asyncio.sleep(0.001)
        return "three deep"

    async def second() -> str:
        return wait_within(None, third())

    async def first() -> str:
        return wait_within(None, second())

    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: wait_within(None, first()), range(12))) == {"three deep"}
    # No event tells of a stall: one that waits for a loop which another blocks comes back in the end, when
    # its patience is over. Without a stall this takes milliseconds.
    assert time.monotonic() - begun < LONG


def test_waiting_from_the_loop_thread_again_and_again_does_not_pile_up_threads():
    async def outer() -> Any:
        return wait_within(PATIENCE, give("nested"))

    before = threading.active_count()
    for _ in range(50):
        assert wait_within(PATIENCE, outer()) == "nested"
    assert threading.active_count() - before < 10


def test_a_finished_coroutine_keeps_nothing_alive():
    thing = Thing()
    gone = weakref.ref(thing)
    assert wait_within(PATIENCE, give(thing)) is thing
    del thing
    assert eventually(lambda: gone() is None)


# --- start ---------------------------------------------------------------------------------------


def test_what_is_started_is_not_waited_for_and_sees_the_callers_context(released):
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        released.wait()
        seen.append(variable.get())
        variable.set("changed")
        done.set()

    token = variable.set("mine")
    start(look)
    variable.reset(token)
    assert seen == []
    released.set()
    assert done.wait(PATIENCE)
    assert (seen, variable.get()) == (["mine"], "unset")


def test_a_helper_that_was_started_serves_others_when_it_is_done(released):
    end_idle_helpers()
    threads: list[threading.Thread] = []

    def hang() -> None:
        threads.append(threading.current_thread())
        released.wait()
        raise SystemExit("which nobody learns")

    start(hang)
    other = call_within(PATIENCE, threading.current_thread)
    assert eventually(lambda: threads)
    assert other not in threads
    released.set()

    def at_once(count: int) -> set[threading.Thread]:
        others = call_within(PATIENCE, lambda: at_once(count - 1)) if count > 1 else set()
        return {threading.current_thread(), *others}

    # Helpers that hung in earlier tests may come back meanwhile, and are asked before it.
    assert eventually(lambda: threads[0] in call_within(PATIENCE, lambda: at_once(20)))


def test_idle_helpers_end_when_they_are_told_to():
    helper = call_within(PATIENCE, threading.current_thread)
    end_idle_helpers()
    helper.join(PATIENCE)
    assert not helper.is_alive()
    assert call_within(PATIENCE, lambda: 1) == 1
