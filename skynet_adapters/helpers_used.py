"""Which helpers of the `skynet` module a metric uses, found without calling it."""

import builtins
import contextlib
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from .installed import is_installed

__all__ = ["MEASURING", "helpers_used"]

# Those that read what a run took.
MEASURING = frozenset({"reward", "observation", "service_cost"})
_HELPERS = MEASURING | {"llm"}


def helpers_used(score: Any) -> frozenset[str]:
    """Find `llm`, `reward`, `observation` and `service_cost` in a metric and in what it calls.

    Args:
        score: A function, a method, a partial or a callable object.

    Returns:
        The names of those that its code mentions, or the code of what it gets to by the names in it:
        functions, and methods of objects. Imports inside of functions count too. What lies in a list or
        dict is not looked at.

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
    searched: dict[tuple[int, int], Any] = {}  # with the things themselves, so that no id is used again
    while waiting:
        thing = waiting.pop()
        # A proxy may raise at any look at it, such as Flask's outside of a request.
        with contextlib.suppress(Exception):
            if _is_helper(thing):
                found.add(thing.__name__)
                continue
            if isinstance(thing, functools.partial):
                waiting += [thing.func, *thing.args, *thing.keywords.values()]
                continue
            function, owner = _function_of(thing)
            if function is None or (id(function), id(owner)) in searched:
                continue
            searched[id(function), id(owner)] = function, owner
            names = _names(function.__code__)
            roots = [] if owner is None else [owner]
            if thing is score or not is_installed(function.__code__.co_filename):
                if names & {"skynet", "skynet_adapters"}:  # imported in the function, or the module itself
                    found |= names & _HELPERS
                roots += _referred(function, names)
            elif not _is_users(owner):
                continue
            waiting += _reached(roots, names)
    return frozenset(found)


def _is_users(owner: Any) -> bool:
    """Tell an object of the user's own class, whose methods a package calls, as DSPy calls `forward`."""
    kind: Any = owner if isinstance(owner, type) else type(owner)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return not (file and is_installed(file))


def _is_helper(thing: Any) -> bool:
    module = getattr(thing, "__module__", None)
    return (
        inspect.isfunction(thing)
        and thing.__name__ in _HELPERS
        and str(module).startswith("skynet_adapters.")
    )


def _function_of(thing: Any) -> tuple[FunctionType | None, Any]:
    """Give the function that runs when a thing is called, and the object whose method it is."""
    owner = None
    if inspect.ismethod(thing):
        thing, owner = thing.__func__, thing.__self__
    elif not inspect.isfunction(thing) and callable(thing) and not isinstance(thing, type):
        thing, owner = type(thing).__call__, thing
    thing = inspect.unwrap(thing) if callable(thing) else thing
    return (thing, owner) if isinstance(thing, FunctionType) else (None, None)


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _referred(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Give what a function's code refers to: globals, defaults, and what its closure holds."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in names - set(vars(builtins)):
        if name in function.__globals__:
            yield function.__globals__[name]


def _reached(roots: Iterable[Any], names: set[str]) -> list[Any]:
    """Give what code with these names gets to: the roots, their attributes, and the attributes of those."""
    waiting, reached = list(roots), dict[int, Any]()
    while waiting:
        thing = waiting.pop()
        if id(thing) not in reached:
            reached[id(thing)] = thing
            with contextlib.suppress(Exception):
                waiting += _attributes(thing, names)
    return list(reached.values())


def _attributes(thing: Any, names: set[str]) -> Iterator[Any]:
    """Give the attributes of these names, without running a property; methods are bound."""
    if isinstance(thing, ModuleType):
        if thing.__name__ == "skynet":  # under another name; its helpers load when they are asked for
            yield from (getattr(thing, helper) for helper in names & _HELPERS)
        yield from (member for name, member in vars(thing).items() if name in names)
        return
    if isinstance(thing, FunctionType | MethodType):
        return
    if isinstance(thing, type):
        names = names | _WHEN_A_CLASS_IS_CALLED
    else:
        yield from (member for name, member in getattr(thing, "__dict__", {}).items() if name in names)
    for base in inspect.getmro(thing if isinstance(thing, type) else type(thing)):
        for name in names & vars(base).keys():
            member: Any = vars(base)[name]
            # What a property, a static method or a class method was made of.
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            yield MethodType(member, thing) if isinstance(member, FunctionType) else member


_WHEN_A_CLASS_IS_CALLED = frozenset({"__new__", "__init__", "__post_init__", "__call__"})
