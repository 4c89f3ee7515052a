"""Copies of what a metric is given, so that it cannot change what it judges."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, cast

__all__ = ["kind_of", "protected"]

_ATOMS = frozenset({str, int, float, bool, type(None), bytes, complex})
_MADE_OF_ITEMS = frozenset({tuple, set})
_Copies = dict[int, Any]  # by the id of what was copied
kind_of: Callable[[Any], Any] = type  # untyped, so that containers of the user stay Any


def protected(value: Any) -> Any:
    """Copy what the user's function gets; what cannot be copied is passed as it is.

    Containers are rebuilt, in a tenth of the time of `copy.deepcopy`; other leaves go through it. What
    stands in several places of `value` is copied once. Only what is nested several hundred levels deep is
    passed as it is, as a whole.

    Example:
        >>> given = {"tags": ["a"], "lock": __import__("threading").Lock()}
        >>> copied = protected(given)
        >>> copied["tags"] is given["tags"], copied["lock"] is given["lock"]
        (False, True)
    """
    kind = kind_of(value)
    if kind in _ATOMS:
        return value
    if kind is dict and _ATOMS.issuperset(map(type, value.values())):  # as most inputs are
        return dict(value)
    try:
        return _copied(value, {})
    except RecursionError:
        return value


def _copied(value: Any, copies: _Copies) -> Any:
    kind = kind_of(value)
    if kind is dict:
        made: Any = dict(value)
        copies[id(value)] = made  # before its items, of which one may be the dict itself
        for key, item in value.items():
            if kind_of(item) not in _ATOMS:
                made[key] = _part(item, copies)
        return made
    if kind is list:
        made = copies[id(value)] = []
        for item in value:
            made.append(_part(item, copies))
        return made
    made = kind([_part(item, copies) for item in value]) if kind in _MADE_OF_ITEMS else _leaf(value, copies)
    copies[id(value)] = made
    return made


def _part(value: Any, copies: _Copies) -> Any:
    if kind_of(value) in _ATOMS:
        return value
    found = copies.get(id(value))
    return _copied(value, copies) if found is None else found


def _leaf(value: Any, copies: _Copies) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, clients, sockets, and what holds one; or nested too deeply
        return _fields_copied(value, copies) if _is_record(value) else value


def _is_record(value: Any) -> bool:
    """Tell what only holds fields: a dataclass, a model of pydantic, an example or prediction of DSPy."""
    kind = kind_of(value)
    return dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields") or hasattr(kind, "with_inputs")


def _fields_copied(value: Any, copies: _Copies) -> Any:
    try:
        made = copy.copy(value)
        for name, item in cast("dict[str, Any]", vars(value)).items():
            vars(made)[name] = _part(item, copies)
    except Exception:
        return value
    return made
