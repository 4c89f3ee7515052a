"""What a rollout took: time, model calls, tokens and US dollars.

The records are frozen and a metric only reads them; whoever runs the rollout sets them, around the
metric's call. What was not measured is `None`, with the reason beside it, and never 0.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

__all__ = ["Observation", "ServiceCost", "observation", "observed", "service_cost"]

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


_judged: ContextVar[Observation | None] = ContextVar("skynet_adapters_observation", default=None)

_OUTSIDE = Observation(
    reasons=dict.fromkeys(_FIGURES, "no rollout is judged here: the metric was called by hand")
)


def observation() -> Observation:
    """Give what the rollout that is judged now took.

    Returns:
        A frozen record. Outside of a metric's call nothing in it is measured, and `reasons` say so.

    Example:
        >>> observation().time_ms is None
        True
        >>> with observed(Observation(time_ms=812.0)):
        ...     observation().time_ms
        812.0
    """
    return _judged.get() or _OUTSIDE


def service_cost() -> ServiceCost:
    """Give what the model calls of the rollout that is judged now cost.

    Returns:
        A frozen record; `usd` is `None`, with `reason` set, where it was not measured.

    Example:
        >>> with observed(Observation(cost_usd=0.002, model_calls=1)):
        ...     service_cost().usd
        0.002
    """
    now = observation()
    return ServiceCost(
        usd=now.cost_usd,
        input_tokens=now.input_tokens,
        output_tokens=now.output_tokens,
        model_calls=now.model_calls,
        cached_calls=now.cached_calls,
        reason=now.reasons.get("cost_usd"),
    )


@contextmanager
def observed(observation: Observation) -> Iterator[None]:
    """Set the record of the rollout that is judged, within this block and this context.

    Args:
        observation: What `observation()` gives inside the block.

    Example:
        >>> with observed(Observation(model_calls=3)):
        ...     service_cost().model_calls
        3
    """
    token = _judged.set(observation)
    try:
        yield
    finally:
        _judged.reset(token)
