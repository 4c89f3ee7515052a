"""Waiting that no slow machine makes fail. No conftest, since tests import from here."""

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

PATIENCE = 60.0  # a bound for what ought to take milliseconds; only a fault reaches it
HANG = 120.0  # how long a hang lasts that nobody ends; longer, so that it does not come back meanwhile


class Release(threading.Event):
    """Ends what hangs. Notes when somebody has waited in vain: then a caller waited for the hang too."""

    waited_in_vain = False

    def wait(self, timeout: float | None = HANG) -> bool:
        is_set = super().wait(timeout)
        self.waited_in_vain |= not is_set
        return is_set


def eventually(condition: Callable[[], Any]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.01)
    return True


def waiting(threads: Iterable[threading.Thread]) -> int:
    """How many of these threads wait for what another thread gives, such as an answer or a judgement."""
    frames, count = sys._current_frames(), 0
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        while frame is not None and frame.f_code.co_name != "wait_unless_ended":
            frame = frame.f_back
        count += frame is not None
    return count


def with_few_paid(answer: Callable[..., Any], few: int, released: Release) -> Callable[..., Any]:
    """Answer so many times at once, and further calls only when the run has ended."""
    numbers = iter(range(sys.maxsize))

    def counted(*arguments: Any) -> Any:
        if next(numbers) >= few:
            released.wait()
        return answer(*arguments)

    return counted


@contextlib.contextmanager
def pools_run_empty() -> Iterator[None]:
    """Wait, at the end, until the pools of threads that were begun in the block have run all they queued."""
    before = set(threading.enumerate())
    yield
    while begun := [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("ThreadPoolExecutor-")
    ]:
        for thread in begun:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} does not end"
