"""Waiting for what ought to take milliseconds. No conftest, since tests import from here."""

import gc
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 30.0  # a bound for what ought to take milliseconds, on any machine


def eventually(condition: Callable[[], Any]) -> bool:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.01)
    return True
