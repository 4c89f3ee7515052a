# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What one call of a DSPy model took, by its history, by given prices, and by the first answer to it.

Built around dspy 3.4.1.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import dspy

from . import dspy_first_answers as first_answers
from .errors import DefinitionError
from .measure import ModelCall
from .score import shown

__all__ = ["First", "Reported", "checked_prices", "first_of", "is_known", "reported_by", "request_key"]


class Reported(NamedTuple):
    """What is reported of a call of a model, with the price that DSPy knows."""

    call: ModelCall
    response_model: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Give the names that a price may be given by."""
        return self.call.model, self.call.model.partition("/")[2], self.response_model


def reported_by(entry: Mapping[str, Any]) -> Reported:
    """Read a call from its entry in a model's history, as DSPy writes it."""
    model, usage, cost = str(entry.get("model")), entry.get("usage") or {}, entry.get("cost")
    kept = _counts(entry.get("response"))
    # A hit is marked, or its entry has no usage while the answer itself has (dspy 3.4.1).
    cached = bool(getattr(entry.get("response"), "cache_hit", False)) or (not usage and kept != (None, None))
    read, written = kept if cached else _tokens(usage)
    call = ModelCall(model, cached, read, written, None if cost is None else float(cost))
    return Reported(call, str(entry.get("response_model")))


def _counts(response: Any) -> tuple[int | None, int | None]:
    """Give the tokens that a response itself tells; a call for several answers has several responses."""
    parts = list(response) if isinstance(response, tuple) else [response]
    counts = [_tokens(getattr(part, "usage", None)) for part in parts]
    read, written = ([count[at] for count in counts] for at in (0, 1))
    return _sum(read), _sum(written)


def _tokens(usage: Any) -> tuple[int | None, int | None]:
    def one(*names: str) -> int | None:
        for name in names:
            value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
            if isinstance(value, int):
                return value
        return None

    return one("prompt_tokens", "input_tokens"), one("completion_tokens", "output_tokens")


def _sum(numbers: list[Any]) -> Any:
    return None if not numbers or any(number is None for number in numbers) else sum(numbers)


class First(NamedTuple):
    """What the first real answer to a request took."""

    seconds: float
    reported: Reported


# What is not kept beside the answer in DSPy's cache: the tokens of one that reports none by itself, and
# the times of models that have a cache of their own.
_firsts: OrderedDict[str, First] = OrderedDict()
_MOST_FIRSTS = 100_000
_NOT_IN_THE_KEY = ("api_key", "api_base", "base_url", "cache")


def request_key(lm: Any, inputs: Mapping[str, Any]) -> str | None:
    """Name a request that may be answered from DSPy's cache; `None` where it cannot be."""
    more: dict[str, Any] = inputs.get("kwargs") or {}
    if not more.get("cache", getattr(lm, "cache", False)):
        return None
    request = {**getattr(lm, "kwargs", {}), **more}
    prompt = inputs.get("prompt")
    request |= {"model": lm.model, "model_type": getattr(lm, "model_type", None)}
    request |= {
        "prompt": prompt if isinstance(prompt, str) else repr(prompt),
        "messages": inputs.get("messages"),
    }
    try:
        return dspy.cache.cache_key(
            {name: value for name, value in request.items() if name not in _NOT_IN_THE_KEY}
        )
    except Exception:  # what cannot be named is not cached either
        return None


def is_known(key: str | None) -> bool:
    """Tell whether a first answer to this request is remembered in this process."""
    return key in _firsts


def first_of(key: str | None, seconds: float, reported: Reported) -> First | None:
    """Remember a real answer as the first one, or find that of a cached answer."""
    if key is None:
        return None
    if reported.call.cached:
        kept, known = first_answers.first_seconds(key), _firsts.get(key)
        return known if kept is None else First(kept, reported if known is None else known.reported)
    first = _firsts.setdefault(key, First(seconds, reported))
    while len(_firsts) > _MOST_FIRSTS:
        with contextlib.suppress(KeyError):  # another thread took it
            _firsts.popitem(last=False)
    return first


# --- prices ---------------------------------------------------------------------------------------------


def checked_prices(prices: Any) -> dict[str, tuple[float, float]]:
    """Check what was given as `prices=`.

    Raises:
        DefinitionError: It is no dict of models to pairs of numbers.
    """
    if prices is not None and not isinstance(prices, Mapping):
        raise DefinitionError(f"prices={shown(prices, with_type=False)} cannot be used: it must be {_PRICES}")
    checked: dict[str, tuple[float, float]] = {}
    for model, price in cast("dict[Any, Any]", prices or {}).items():
        pair = [*price] if isinstance(price, tuple | list) else []
        if not isinstance(model, str) or len(pair) != 2 or not all(map(_is_price, pair)):
            raise DefinitionError(
                f"prices={{{model!r}: {shown(price, with_type=False)}}} cannot be used: it must be {_PRICES}"
            )
        checked[model] = (float(pair[0]), float(pair[1]))
    return checked


_PRICES = (
    "a dict of models, each with US dollars per million tokens read and written, such as "
    '{"openai/my-model": (0.15, 0.60)}'
)


def _is_price(number: object) -> bool:
    # Not numbers.Number, since a Decimal is none of Real; a text or a bool would be a slip.
    if isinstance(number, str | bool):
        return False
    try:
        return 0 <= float(cast("Any", number)) < float("inf")
    except (TypeError, ValueError):
        return False
