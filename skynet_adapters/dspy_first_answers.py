# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""How long a model took for an answer, kept beside that answer in DSPy's own cache.

Whether an answer is cached decides how long a call takes, and a cache outlives blocks and processes:
without the first one's time, the program that is evaluated first would lose. So each real call is timed
from `begin` on, measured or not. Callbacks would cost every user of a metric a
millisecond for each rollout, are lost where a program sets its own, and do not know DSPy's cache key.
`execute` and `aexecute` are what every `dspy.BaseLM` calls, by looking them up anew (dspy 3.4.1).
"""

import asyncio
import contextlib
import functools
import importlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import dspy
from dspy.clients import execution
from dspy.clients.backend_selection import select_backend
from dspy.clients.model_metadata import model_info

__all__ = [
    "Answered",
    "answered",
    "begin",
    "first_seconds",
    "forget",
    "is_ready",
    "keep_seconds",
    "make_ready",
    "when_asked",
]


_log = logging.getLogger("skynet_adapters")


class Answered(NamedTuple):
    """How a call of a model was answered.

    Attributes:
        key: The request's name in DSPy's cache; `None`: that cache was not asked.
        cached: The answer came from there.
        seconds: How long it took.
    """

    key: str | None
    cached: bool
    seconds: float


_last: ContextVar[Answered | None] = ContextVar("skynet_adapters_answered", default=None)

# Told of each call of a model before it is made, in the context that makes it.
when_asked: list[Callable[[Any, Any], None]] = []


def forget() -> None:
    """Forget the last call of this context, before the next one."""
    _last.set(None)


def answered() -> Answered | None:
    """Give how the last call of this context was answered; `None` where it was not seen."""
    return _last.get()


def first_seconds(key: str) -> float | None:
    """Give how long the answer took that DSPy's cache keeps for this request; `None`: not known."""
    try:
        seconds = dspy.cache.get(_beside(key))
    except Exception as error:  # of a cache of the user's own
        _log.debug("DSPy's cache did not tell how long an answer took: %r", error)
        return None
    return seconds if isinstance(seconds, float) and 0.0 <= seconds < math.inf else None


def is_ready(lm: Any, call: Any) -> bool:
    """Tell whether what this call of a model would load has been loaded, so that it takes nobody's time."""
    if not _ready:
        return False
    model = str(getattr(lm, "model", ""))
    if model not in _no_litellm and (not call.managed or _is_native(lm, call)):
        _no_litellm.add(model)
    return model in _no_litellm or "litellm" in sys.modules


def make_ready(lm: Any = None, call: Any = None) -> None:
    """Load what the first call of a model loads: DSPy's cache and prices (a second), LiteLLM (several).

    Args:
        lm: The model that is asked; `None`: none yet.
        call: How, as DSPy has prepared it; LiteLLM is loaded only where that call needs it.
    """
    global _ready
    with _loading:
        if not _ready:
            assert dspy.cache is not None  # opened when it is first read
            with contextlib.suppress(Exception):
                model_info("openai", "gpt-4o-mini")
            _ready = True
        if lm is not None and not _is_native(lm, call):
            with contextlib.suppress(ImportError):  # the call itself says so
                importlib.import_module("litellm")


_ready = False
_no_litellm: set[str] = set()  # models that were seen to do without, since finding out takes its time
_loading = threading.Lock()


def _is_native(lm: Any, call: Any) -> bool:
    """Tell whether the call goes without LiteLLM, as far as DSPy knows beforehand."""
    spec = getattr(lm, "_engine_spec", None)
    if not isinstance(spec, str) or not call.managed:
        return True
    try:
        return spec != "litellm" and bool(select_backend(lm, call.legacy).native)
    except Exception:  # the call itself raises it
        return True


def _beside(key: str) -> dict[str, Any]:
    return {"_fn_identifier": "skynet_adapters.first_seconds", "of": key}


def _key(lm: Any, call: Any, asynchronous: bool) -> str | None:
    if not call.cache:
        return None
    try:
        return dspy.cache.cache_key(call.key(lm, asynchronous), execution.IGNORED_CACHE_KEYS)
    except Exception:  # what cannot be named is not cached either
        return None


def _tell(lm: Any, call: Any) -> None:
    for told in when_asked:
        told(lm, call)


def _note(key: str | None, result: Any, begun: float) -> tuple[str, float] | None:
    """Note how a call was answered; gives its name and seconds where they are to be kept."""
    answer = Answered(key, bool(result.cache_hit), time.perf_counter() - begun)
    if key is not None or _last.get() is None:  # else a call inside of this one had the cache
        _last.set(answer)
    return None if key is None or answer.cached else (key, answer.seconds)


def keep_seconds(key: str, seconds: float) -> None:
    """Keep how long an answer took, where `first_seconds` finds it."""
    try:
        dspy.cache.put(_beside(key), seconds)
    except Exception as error:  # the answer is paid, and must not be lost with it
        _log.debug("DSPy's cache did not keep how long an answer took: %r", error)


def _timed(execute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(execute)
    def timed(lm: Any, call: Any) -> Any:
        _tell(lm, call)
        key, begun = _key(lm, call, False), time.perf_counter()
        result = execute(lm, call)
        real = _note(key, result, begun)
        if real is not None:
            keep_seconds(*real)
        return result

    return timed


def _timed_async(aexecute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(aexecute)
    async def timed(lm: Any, call: Any) -> Any:
        _tell(lm, call)
        key, begun = _key(lm, call, True), time.perf_counter()
        result = await aexecute(lm, call)
        real = _note(key, result, begun)
        if real is not None:
            await asyncio.to_thread(keep_seconds, *real)  # it may write to a disk
        return result

    return timed


_begun = False


def begin() -> None:
    """Time each real call from now on; for the first metric, and for whoever measures."""
    global _begun
    with _loading:
        if not _begun:
            execution.execute = _timed(execution.execute)
            execution.aexecute = _timed_async(execution.aexecute)
            _begun = True
