# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""How `llm` asks DSPy's models: apart from the program that is judged, and on the metric's bill.

Written for dspy 3.4.1.
"""

import contextlib
import functools
from collections.abc import Generator, Mapping
from typing import Any

import dspy
from dspy.clients._deprecation import adapter_message_call
from dspy.dsp.utils.settings import thread_local_overrides

from .dspy_measuring import INSIDE_METRIC, billed_call, judging, program_asked
from .judge_llm import chosen_models
from .measure import Bill, ModelCall

__all__ = [
    "NOT_THE_PROGRAMS",
    "BilledCalls",
    "apart",
    "ask",
    "bill",
    "carried",
    "carrying",
    "dspys_model",
    "knows_settings",
    "model_behind",
    "model_of_modules",
    "takes_messages",
]

_MODELS = "skynet_adapters_models"


# Where a program's calls leave something, and those of a metric must not.
NOT_THE_PROGRAMS: dict[str, Any] = {"usage_tracker": None, "caller_predict": None, "send_stream": None}


class BilledCalls(list[Any]):
    """Receives what model calls would write into a program's history, and puts it on a bill."""

    bill: Bill  # set right after it was made, since an `__init__` would be paid on every call of a metric

    @property
    def history(self) -> Any:
        """Where DSPy writes entries to: itself."""
        return self

    def append(self, entry: Mapping[str, Any], /) -> None:
        """Take an entry; called by DSPy, in the thread that asked."""
        super().append(entry)
        self.bill.add(billed_call(entry))


@contextlib.contextmanager
def apart(bill: Bill | None, name: str, is_seen: bool) -> Generator[None]:
    """Ask models apart from the program, and put each call on `bill`.

    Args:
        bill: Whose calls they are; `None`: no metric's. Those of a program, or of a metric that it calls
            itself, a rollout counts as its own: what is judged must not hide what it costs.
        name: What is asked; a call of it that DSPy does not see is billed without figures.
        is_seen: DSPy sees the call.
    """
    paid = bill or Bill()
    calls, unseen = BilledCalls(), ModelCall(name)
    calls.bill = paid
    overrides: Any = thread_local_overrides.get() | {
        "trace": [],
        "caller_modules": [calls],
        **NOT_THE_PROGRAMS,
        **({INSIDE_METRIC: bill} if bill is not None else {}),
    }
    token = thread_local_overrides.set(overrides)
    try:
        with judging() if bill is not None else contextlib.nullcontext():
            yield
    except BaseException:
        unseen = ModelCall(name, False, 0, 0, 0.0)  # providers charge nothing for a call that failed
        raise
    finally:
        thread_local_overrides.reset(token)
        if not calls:
            paid.add(unseen)
            if not is_seen:
                program_asked(unseen)


def ask(model: Any, messages: list[dict[str, Any]]) -> Any:
    """Ask a `dspy.LM`, or one by its name."""
    lm = _named(model) if isinstance(model, str) else model
    # DSPy 3.4 warns of a list of messages. What is to come in its place, a `Request`, leaves the model's
    # own temperature and max_tokens out, and `warnings.catch_warnings` is not safe in threads.
    with adapter_message_call(lm, messages):
        return lm(messages=messages)


@functools.lru_cache(maxsize=64)  # its connections stay open between calls
def _named(name: str) -> Any:
    return dspy.LM(name)


def model_of_modules() -> dspy.BaseLM | None:
    """Give the model that DSPy's own modules in a metric ask; `None`: the one that is set where they run."""
    chosen = chosen_models()
    model = chosen.metric_lm
    if model is None and chosen.reflection_lm is not None and dspy.settings.lm is None:
        model = chosen.reflection_lm
    model = model_behind(model)
    if isinstance(model, str):
        return _named(model)
    return model if isinstance(model, dspy.BaseLM) else None


def model_behind(model: Any) -> Any:
    """Give the model that a reflection model of GEPA asks; of others the model itself."""
    while hasattr(type(model), "answer_without_stopping"):
        model = model.decided_by
    return model


def dspys_model() -> dspy.BaseLM | None:
    """Give the model that DSPy's own modules in a metric ask; `None`: none is set."""
    return model_of_modules() or dspy.settings.lm


def takes_messages(model: Any) -> bool:
    """Tell whether it is a model of DSPy's, or the name of one, which `ask` asks."""
    return isinstance(model, str | dspy.BaseLM)


def bill() -> Bill | None:
    """Give the bill of the metric that this thread of DSPy's works for."""
    found = thread_local_overrides.get().get(INSIDE_METRIC)
    return found if isinstance(found, Bill) else None


@contextlib.contextmanager
def carrying(models: Any) -> Generator[None]:
    """Carry what was chosen for a block into DSPy's worker threads, which inherit its settings."""
    overrides: Any = thread_local_overrides.get() | {_MODELS: models}
    token = thread_local_overrides.set(overrides)
    try:
        yield
    finally:
        thread_local_overrides.reset(token)


def knows_settings() -> bool:
    """Tell whether this thread has settings of DSPy's own, as its workers have, and plain threads not."""
    return bool(thread_local_overrides.get())


def carried() -> Any:
    """Give what `carrying` carries here, or `None`."""
    return thread_local_overrides.get().get(_MODELS)
