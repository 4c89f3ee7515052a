"""What a rollout took: time, model calls, tokens and US dollars.

The records are frozen and a metric only reads them; whoever runs the rollout sets them, around the
metric's call. What was not measured is `None`, with the reason beside it, and never 0.
"""

import importlib
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

__all__ = [
    "Bill",
    "ModelCall",
    "Observation",
    "Prices",
    "Reader",
    "Recorder",
    "Rollout",
    "ServiceCost",
    "begin_judging",
    "bill_of_judge",
    "end_judging",
    "forget_records",
    "is_in_run",
    "is_lost_thread",
    "observation",
    "observation_now",
    "observed",
    "priced",
    "prices_of_block",
    "recorders",
    "rollout",
    "service_cost",
    "unmeasured",
]

_FIGURES = ("time_ms", "model_calls", "cached_calls", "input_tokens", "output_tokens", "cost_usd")


@dataclass(frozen=True, slots=True)
class Observation:
    """What one rollout took; `None` is "not measured", which is not 0.

    Attributes:
        time_ms: Wall time in milliseconds.
        model_calls: How often a model was asked, cached answers included.
        cached_calls: How many of those were answered from a cache.
        input_tokens: Tokens that the models read.
        output_tokens: Tokens that the models wrote.
        cost_usd: US dollars.
        reasons: Why a figure was not measured, by its name; one for each figure that is `None`.

    Example:
        >>> Observation(time_ms=812.0).reasons["cost_usd"]
        'it was not measured'
    """

    time_ms: float | None = None
    model_calls: int | None = None
    cached_calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    def __post_init__(self) -> None:
        unmeasured = [name for name in _FIGURES if getattr(self, name) is None]
        reasons = {name: self.reasons.get(name, "it was not measured") for name in unmeasured}
        object.__setattr__(self, "reasons", MappingProxyType(reasons))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy can neither be pickled nor deep-copied.
        return type(self), (*(getattr(self, name) for name in _FIGURES), dict(self.reasons))


@dataclass(frozen=True, slots=True)
class ServiceCost:
    """What a rollout's model calls cost.

    Attributes:
        usd: US dollars; `None` is "not measured".
        input_tokens: Tokens that the models read.
        output_tokens: Tokens that the models wrote.
        model_calls: How often a model was asked, cached answers included.
        cached_calls: How many of those were answered from a cache.
        reason: Why `usd` is `None`; else `None`.
    """

    usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    model_calls: int | None = None
    cached_calls: int | None = None
    reason: str | None = None


def unmeasured(why: str, time_ms: float | None = None) -> Observation:
    """Make a record in which nothing was measured, or nothing but the time.

    Args:
        why: The reason, for every figure that is missing.
        time_ms: Wall time in milliseconds.

    Returns:
        The record.

    Example:
        >>> unmeasured("the program ran elsewhere").reasons["time_ms"]
        'the program ran elsewhere'
    """
    return Observation(time_ms=time_ms, reasons=dict.fromkeys(_FIGURES, why))


# --- what the rollout that is judged now took ------------------------------------------------------


class Reader(Protocol):
    """Whose function judges: the `Metric`."""

    name: str

    @property
    def bill(self) -> "Bill":
        """What its own model calls took."""
        ...

    def measurement_was_read(self, measured: bool) -> None:
        """Note it; `measured` is false where nobody measured."""
        ...

    def warn_once(self, topic: str, message: str, *values: object) -> None:
        """Log a warning the first time that `topic` comes up."""
        ...


# The record of the rollout that is judged, and who judges it, innermost first.
_Judged = tuple[Observation | None, tuple[Reader, ...]]
_judged: ContextVar[_Judged | None] = ContextVar("skynet_adapters_judged", default=None)

# The judgements under way in all threads, by the ids of their tokens; adding and discarding are atomic.
_under_way: set[int] = set()
# Set while this package runs a rollout, so that its threads are not taken for lost ones.
_running: ContextVar[bool] = ContextVar("skynet_adapters_running", default=False)

_OUTSIDE = unmeasured(
    "no measured rollout is judged here, as when a metric is called by hand, or in a thread that it started "
    "without contextvars.copy_context().run"
)
_FORGOTTEN = unmeasured("nobody measured this rollout; in DSPy, run it inside `with measuring():`")


def bill_of_judge() -> "Bill | None":
    """Give the bill of the metric that judges now."""
    judged = _judged.get()
    return judged[1][0].bill if judged is not None and judged[1] else None


def is_lost_thread() -> bool:
    """Tell whether a metric judges in another thread, and nothing tells what this one belongs to.

    A thread inherits no context in Python, so that one which a metric starts does not know the metric.
    """
    return bool(_under_way) and _judged.get() is None and not _running.get()


def is_in_run() -> bool:
    """Tell whether this is called from a `run` that this package calls, and from no metric in it."""
    return _running.get() and _judged.get() is None


def forget_records() -> None:
    """Forget a record that `observed` set here, which a program may have left behind to look better."""
    judged = _judged.get()
    if judged is not None and not judged[1]:
        _judged.set(None)


def observation() -> Observation:
    """Give what the rollout that is judged now took.

    Threads that a metric starts itself do not know its rollout: read this before, or start them with
    `contextvars.copy_context().run`.

    Returns:
        A frozen record. Outside of a metric's call nothing in it is measured, and `reasons` say so.

    Example:
        >>> observation().time_ms is None
        True
        >>> with observed(Observation(time_ms=812.0)):
        ...     observation().time_ms
        812.0
    """
    record = _read()
    if record.time_ms is None and record.model_calls is not None:
        for reader in (_judged.get() or _NOBODY)[1]:
            reader.warn_once("time", _NO_TIME, reader.name, record.reasons["time_ms"])
    return record


def _read() -> Observation:
    judged = _judged.get()
    if judged is None:
        return _OUTSIDE
    record, readers = judged
    for reader in readers:
        reader.measurement_was_read(record is not None)
    return record or _FORGOTTEN


_NOBODY: _Judged = (None, ())
_NO_TIME = (
    "metric %r reads what a rollout took, and the time of this one is not known: %s. Rollouts whose time is "
    "known do not compare with it. If the answers were cached before anything was timed, begin with an empty "
    "cache: dspy.configure_cache(enable_disk_cache=False), or disk_cache_dir= a new folder."
)


def service_cost() -> ServiceCost:
    """Give what the model calls of the rollout that is judged now cost.

    Returns:
        A frozen record; `usd` is `None`, with `reason` set, where it was not measured.

    Example:
        >>> with observed(Observation(cost_usd=0.002, model_calls=1)):
        ...     service_cost().usd
        0.002
    """
    now = _read()
    return ServiceCost(
        usd=now.cost_usd,
        input_tokens=now.input_tokens,
        output_tokens=now.output_tokens,
        model_calls=now.model_calls,
        cached_calls=now.cached_calls,
        reason=now.reasons.get("cost_usd"),
    )


def observation_now() -> Observation | None:
    """Give the record of what is judged now without telling a metric that it is read; `None`: not measured.

    Example:
        >>> with observed(Observation(time_ms=812.0)):
        ...     observation_now().time_ms
        812.0
    """
    judged = _judged.get()
    return None if judged is None else judged[0]


@contextmanager
def observed(observation: Observation) -> Generator[None]:
    """Set the record of the rollout that is judged, within this block and this context.

    Args:
        observation: What `observation()` gives inside the block.

    Example:
        >>> with observed(Observation(model_calls=3)):
        ...     service_cost().model_calls
        3
    """
    token = _judged.set((observation, ()))
    try:
        yield
    finally:
        _judged.reset(token)


def begin_judging(reader: Reader, observation: Observation | None) -> Token[Any]:
    """Set the record of the rollout that a metric judges; for `Metric`, on every call.

    Args:
        reader: Is told when the record is read.
        observation: The record; `None`: that of the metric or the block around this one, if there is one.

    Returns:
        What `end_judging` needs, in the same thread.
    """
    outer = _judged.get()
    if outer is None:
        token = _judged.set((observation, (reader,)))
    else:
        token = _judged.set((observation or outer[0], (reader, *outer[1])))
    _under_way.add(id(token))
    return token


def end_judging(token: Token[Any]) -> None:
    """Take back what `begin_judging` set."""
    _under_way.discard(id(token))
    _judged.reset(token)


# --- measuring a rollout that this package runs itself ---------------------------------------------


class Rollout(Protocol):
    """A rollout that is being measured, or was."""

    def leave_out(self, begun: float, ended: float) -> None:
        """Keep a time of its block out of it, from and to a `time.perf_counter()`."""
        ...

    def observation(self) -> Observation:
        """Give what it took, once its block has ended."""
        ...


# US dollars per million tokens, (read, written), for each model.
Prices = Mapping[str, tuple[float, float]]


class Recorder(Protocol):
    """Measures the model calls of a library."""

    def rollout(self) -> AbstractContextManager[Rollout]:
        """Make the block of a rollout."""
        ...

    def prices(self) -> Prices:
        """Give the prices that hold where this is called."""
        ...

    def priced(self, prices: Prices) -> AbstractContextManager[None]:
        """Make a block in which these prices hold, after those of a block around it."""
        ...


# The part of a model library appends its own when it is loaded, so that nothing here knows that library.
recorders: list[Recorder] = []


def prices_of_block() -> Prices:
    """Give the prices that hold where this is called, for `priced` in a thread that does not know them.

    Example:
        >>> prices_of_block()
        {}
    """
    return recorders[-1].prices() if recorders else {}


def priced(prices: Prices) -> AbstractContextManager[None]:
    """Make a block in which these prices hold; those of a block around it go before them.

    Example:
        >>> with priced({}):
        ...     pass
    """
    return recorders[-1].priced(prices) if prices and recorders else nullcontext()


@contextmanager
def rollout() -> Generator[Rollout]:
    """Measure what is done in this block, in the threads too that get this context.

    Yields:
        The rollout. Wall time is always measured; model calls, where they go through DSPy's models.

    Example:
        >>> with rollout() as measured:
        ...     answer = 1 + 1
        >>> measured.observation().time_ms >= 0
        True
    """
    load_parts()
    token = _running.set(True)
    try:
        if recorders:
            with recorders[-1].rollout() as measured:
                yield measured
            return
        timed = _Timed()
        try:
            yield timed
        finally:
            timed.seconds = time.perf_counter() - timed.begun
    finally:
        _running.reset(token)


class _Timed:
    def __init__(self) -> None:
        self.begun, self.seconds, self._left_out = time.perf_counter(), 0.0, 0.0

    def leave_out(self, begun: float, ended: float) -> None:
        self._left_out += ended - begun

    def observation(self) -> Observation:
        why = "no model call was seen; only those of a dspy.LM can be measured"
        return unmeasured(why, time_ms=(self.seconds - self._left_out) * 1e3)


def load_parts() -> None:
    """Load what measures and sets apart DSPy's models, once DSPy is: before that, nothing calls them."""
    if "dspy" in sys.modules and _DSPYS_PART not in sys.modules:
        importlib.import_module(_DSPYS_PART)


_DSPYS_PART = f"{__package__}.dspy_isolation"


# --- bills -----------------------------------------------------------------------------------------


class ModelCall(NamedTuple):
    """One call of a model.

    Attributes:
        model: Its name.
        cached: The answer came from a cache.
        input_tokens: Tokens that the model read; `None` is "not reported".
        output_tokens: Tokens that the model wrote; `None` is "not reported".
        cost_usd: US dollars; `None` is "no price known".
    """

    model: str
    cached: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class Bill:
    """What a metric's own model calls took; cached answers cost nothing.

    Attributes:
        calls: How often a model was asked, cached answers included.
        cached_calls: How many of those were answered from a cache.
        input_tokens: Tokens that the models read.
        output_tokens: Tokens that the models wrote.
        usd: US dollars of the calls whose price is known.
        unpriced_calls: Calls whose price is not known; they are missing in `usd`.

    Example:
        >>> bill = Bill()
        >>> bill.add(ModelCall("openai/gpt-4o-mini", False, 1_000, 20, 0.000162))
        >>> bill
        <Bill: 1 call, 0 cached, 1000 tokens in, 20 out, 0.000162 USD>
    """

    def __init__(self) -> None:
        self.calls = self.cached_calls = self.unpriced_calls = 0
        self.input_tokens = self.output_tokens = 0
        self.usd = 0.0
        self._lock = threading.Lock()

    def add(self, call: ModelCall) -> None:
        """Add a call, from any thread.

        Args:
            call: What it took; the figures of a cached one are not paid again.
        """
        with self._lock:
            self.calls += 1
            if call.cached:
                self.cached_calls += 1
                return
            self.input_tokens += call.input_tokens or 0
            self.output_tokens += call.output_tokens or 0
            if call.cost_usd is None:
                self.unpriced_calls += 1
            else:
                self.usd += call.cost_usd

    def __repr__(self) -> str:
        unknown = f" and {self.unpriced_calls} of unknown price" if self.unpriced_calls else ""
        return (
            f"<Bill: {self.calls} call{'' if self.calls == 1 else 's'}, {self.cached_calls} cached, "
            f"{self.input_tokens} tokens in, {self.output_tokens} out, {self.usd:g} USD{unknown}>"
        )
