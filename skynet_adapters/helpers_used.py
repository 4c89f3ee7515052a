"""Which helpers of the `skynet` module a metric uses, found without calling it."""

import builtins
import contextlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .function import without_partials
from .installed import is_installed

__all__ = ["helpers_used"]

_HELPERS = frozenset({"llm", "reward", "observation", "service_cost"})


def helpers_used(score: Any) -> frozenset[str]:
    """Find `llm`, `reward`, `observation` and `service_cost` in a metric and in what it calls.

    Args:
        score: A function, a partial or a callable object.

    Returns:
        The names of those that its code, or that of functions which it refers to, mentions. Imports
        inside of functions count too.

    Example:
        >>> def score(input, output, expected=None):
        ...     from skynet import llm
        ...
        ...     return 1.0, {"feedback": llm("Say why.", input=output)}
        >>> sorted(helpers_used(score))
        ['llm']
    """
    found: set[str] = set()
    waiting: list[Any] = [score]
    met: list[Any] = []
    while waiting:
        thing = waiting.pop()
        if any(thing is other for other in met):
            continue
        met.append(thing)
        # A proxy may raise at any look at it, such as Flask's outside of a request.
        with contextlib.suppress(Exception):
            if _is_helper(thing):
                found.add(thing.__name__)
                continue
            function = _function_of(thing)
            if function is None or (thing is not score and is_installed(function.__code__.co_filename)):
                continue
            names = _names(function.__code__)
            if "skynet" in names:  # imported in the function, or the module itself
                found |= names & _HELPERS
            waiting += _referred(function, names)
    return frozenset(found)


def _is_helper(thing: Any) -> bool:
    module = getattr(thing, "__module__", None)
    return (
        inspect.isfunction(thing)
        and thing.__name__ in _HELPERS
        and str(module).startswith("skynet_adapters.")
    )


def _function_of(thing: Any) -> FunctionType | None:
    thing = without_partials(thing)
    if inspect.ismethod(thing):
        thing = thing.__func__
    elif not inspect.isfunction(thing) and callable(thing) and not isinstance(thing, type):
        thing = type(thing).__call__
    thing = inspect.unwrap(thing) if callable(thing) else thing
    return thing if isinstance(thing, FunctionType) else None


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _referred(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Give what a function's code refers to: globals, what its closure holds, functions of modules."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    for name in names - set(vars(builtins)):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if value.__name__ == "skynet":  # under another name; its helpers load when they are asked for
                yield from (getattr(value, helper) for helper in names & _HELPERS)
            yield from (member for name, member in vars(value).items() if name in names)
        elif callable(value):
            yield value
