"""What a metric is made of, as a fingerprint: everything that its code refers to.

A function is followed to the functions, classes and values that its code names, wherever they were defined:
in a script, a notebook or a module. So it is the same function in each of these, and nothing else of a script
counts, such as the call that starts a run.
"""

import collections
import contextlib
import copyreg
import dis
import enum
import functools
import inspect
import itertools
import logging
import os
import random
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, cast

from .code_content import Names, bindings, constants, files_imported, instructions, names_in, syntax_of_file
from .copies import kind_of
from .digests import digest
from .errors import DefinitionError
from .installed import is_installed
from .memo import content_key
from .metric import Metric, ScoreFunction
from .redaction import is_credential
from .score import shown
from .sibling_imports import package_of, plain_module

__all__ = ["fingerprint", "fingerprint_of_parts", "parts_of"]


def fingerprint(score: ScoreFunction | Metric) -> str:
    """Digest everything of a metric that decides what it answers, as far as that can be seen.

    That is: the function's code, defaults, closure, annotations and attributes, and all that its code names:
    functions and classes of your own with all that they name, the values of globals, and the whole file of a
    module of your own that it uses or imports, with the files which that imports. A callable object's
    state counts, and of a `Metric` the options that change a score. Comments, formatting and paths do not
    count, nor does the rest of the file, nor do installed packages.

    Not seen are files, services, settings and environment variables that are read as it runs, and the inside
    of objects that hold a connection, a lock or the like. What the code itself assigns (a counter, a cache)
    does not count; what else changes counts as it is when the fingerprint is taken. Values are read whole: a
    table of 100 MB takes about a second.

    Args:
        score: A function, a callable object, a partial, a `Metric`, or what `as_dspy_metric` made, of which
            the fields that it reads count too.

    Returns:
        32 hexadecimal digits; the same in every process for the same metric and version of Python.

    Raises:
        DefinitionError: It holds something that goes on without end.

    Example:
        >>> def score(input, output, expected=None):
        ...     return float(output == expected["label"]), {"feedback": "..."}
        >>> strict = fingerprint(Metric(score, failure_score=-1.0))
        >>> fingerprint(score) == fingerprint(score), fingerprint(Metric(score)) == strict
        (True, False)
    """
    return fingerprint_of_parts(parts_of(score))


def fingerprint_of_parts(parts: Mapping[str, str]) -> str:
    """Digest the digests of a metric's parts."""
    said = (text.encode("utf-8", "surrogatepass") for part in sorted(parts.items()) for text in part)
    return digest(said, 16).hex()


def parts_of(score: ScoreFunction | Metric) -> dict[str, str]:
    """Digest each part of a metric by itself: its functions, classes, globals, files and options.

    Args:
        score: As for `fingerprint`.

    Returns:
        Digests by the names of the parts, as they can stand in a message.

    Raises:
        DefinitionError: It holds something that goes on without end.

    Example:
        >>> weight = 0.5
        >>> def score(input, output, expected=None):
        ...     return weight, {"feedback": "..."}
        >>> list(parts_of(score))
        ["function 'score'", "global 'weight'", 'the callable itself']
    """
    changing = set[_Global]()
    while True:
        search = _Search(changing)
        try:
            search.run(score)
        except RecursionError:
            raise _endless(score) from None
        if search.changing == changing:  # of those found late the value may have been digested
            return search.parts
        changing = set(search.changing)


def _endless(thing: Any) -> DefinitionError:
    return DefinitionError(
        f"the metric {shown(thing)} holds something that goes on without end, such as a Mock; "
        "what it is made of cannot be told"
    )


# Options that change the numbers or texts; the others decide only when and how often one is asked.
_DECIDING_OPTIONS = ("score_range", "score_names", "failure_score", "max_feedback_chars")

_MOST_NESTED = 100_000

# Of a module; where it lies and what it is called depends on who imports it.
_OF_EVERY_MODULE = frozenset(
    [
        "__annotations__",
        "__builtins__",
        "__cached__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
    ]
)
# What reads globals by a text.
_READS_ANY = frozenset({"eval", "exec", "globals"})
_FINDS_ANY = frozenset({"__subclasses__", "modules"})  # as sys.modules

_ATOMS = frozenset({str, int, float, bool, complex, bytes, type(None), Decimal})
_PLAIN = _ATOMS | {list, tuple, dict}
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque, MappingProxyType)
_CHANGED_IN_PLACE = (dict, list, set, collections.deque)
# What is other after each use, and what decides nothing.
_PASSING = (
    *(Iterator, logging.Logger, logging.LoggerAdapter, random.Random, threading.local),
    type(os.environ),
)

_Global = tuple[int, str]  # the id of a module's names, and one of them


class _Text(bytes):
    """Something that is written down already, among values that are not."""


class _Met(NamedTuple):
    """What was met already, by id; with the object, since the id of one that is gone is used again."""

    number: int
    thing: object


class _LiveError(Exception):
    """An object of an installed package cannot be pickled: it holds a lock, a socket or the like."""


class _Search:
    """Follows a metric to its parts, and digests each of them."""

    def __init__(self, changing: Iterable[_Global]) -> None:
        self.parts: dict[str, str] = {}
        self.changing = set(changing)
        self._labels: dict[object, tuple[str, object]] = {}
        self._times = collections.Counter[str]()
        self._waiting: list[tuple[str, Any]] = []  # labels, and what gives the contents
        self._inside_package = False
        self._is_live = False
        self._sorting: set[int] = set()

    def run(self, score: Any) -> None:
        decides = _decided_by(score)
        while decides is not None:
            score, decides = decides, _decided_by(decides)
        if issubclass(kind_of(score), Metric):
            for name in _DECIDING_OPTIONS:
                self.parts[f"option {name}"] = self._digest([score.options[name]])
            score = score.score
        self.parts["the callable itself"] = self._digest([score])
        while self._waiting:
            label, contents = self._waiting.pop()
            self.parts[label] = self._digest(contents())
        self.parts = dict(sorted(self.parts.items()))

    def _part(self, what: str, key: object, thing: object, contents: Any) -> _Text:
        """Name a part, whose contents are digested once, after what is digested now."""
        found = self._labels.get(key)
        if found is None:
            self._times[what] += 1
            label = what if self._times[what] == 1 else f"{what} ({self._times[what]})"
            found = self._labels[key] = label, thing
            self._waiting.append((label, contents))
        return _text(f"part {found[0]}")

    # --- what a part says ---------------------------------------------------------------------------

    def _digest(self, things: Iterable[Any]) -> str:
        """Digest values by what they say; without recursion, since values may be nested deeply."""
        whole = blake2b(digest_size=16)
        met: dict[int, _Met] = {}
        waiting = [(thing, 0) for thing in reversed(list(things))]
        while waiting:
            thing, depth = waiting.pop()
            if type(thing) is _Text:
                whole.update(len(thing).to_bytes(8, "big") + thing)
                continue
            try:
                said = self._said(thing, met)
            except (RecursionError, _LiveError):
                raise
            except Exception:  # of a class of the user or a package, at any look at it
                self._is_live = True
                said = [_name_of(kind_of(thing))]
            if depth > _MOST_NESTED:
                raise RecursionError
            waiting.extend((part, depth + 1) for part in reversed(said))
        return whole.hexdigest()

    def _said(self, value: Any, met: dict[int, _Met]) -> list[Any]:
        """Give what a value says, as texts and as the values in it."""
        kind = kind_of(value)
        if kind in _ATOMS:
            return [_atom(kind, value)]
        if kind is FunctionType and _is_own_function(value):
            return [self._function(value)]
        if issubclass(kind, type):
            return [self._type(value)]
        if issubclass(kind, ModuleType):
            return self._module(value, frozenset())
        if id(value) in met:
            return [_text(f"met {met[id(value)].number}")]
        met[id(value)] = _Met(len(met), value)
        if kind is FunctionType:
            return self._packages_function(value)
        if kind is MethodType:
            return [_text("method"), value.__func__, value.__self__]
        if kind is BuiltinFunctionType:
            owner = value.__self__
            name = _text(f"{plain_module(value.__module__)}.{value.__qualname__}")
            return [name] if owner is None or kind_of(owner) is ModuleType else [name, owner]
        if kind is MemberDescriptorType:
            return [_text(f"slot {value.__name__}")]
        if kind in (staticmethod, classmethod):
            return [_text(kind.__name__), value.__func__]
        if kind is property:
            return [_text("property"), value.fget, value.fset, value.fdel]
        if kind is functools.partial:
            return [_text("partial"), value.func, value.args, value.keywords, value.__dict__]
        if kind is SimpleNamespace:
            return [_text("namespace"), value.__dict__]
        if issubclass(kind, Metric):
            options = [value.options[name] for name in _DECIDING_OPTIONS]
            return [_text("metric"), *options, value.score]
        if issubclass(kind, enum.Enum):
            return [self._type(kind), _text(str(value.name))]
        if issubclass(kind, _CONTAINERS):
            return self._container(kind, value)
        return self._object(kind, value)

    def _container(self, kind: Any, value: Any) -> list[Any]:
        head: list[Any] = [_text(kind.__name__), _text(str(len(value)))]
        if kind not in _CONTAINERS:
            made = value.default_factory if issubclass(kind, collections.defaultdict) else None
            head = [self._type(kind), *head, _own_items(value), made]
        if issubclass(kind, dict | MappingProxyType):
            pairs: list[Any] = list(value.items())
            if _ATOMS.issuperset(map(type, itertools.chain.from_iterable(pairs))):
                with contextlib.suppress(ValueError):  # a number too long for decimal digits
                    return [*head, _text("\0".join(sorted(map(repr, pairs))))]
            return [*head, *(part for pair in pairs for part in pair)]
        items: list[Any] = list(value)
        unordered = issubclass(kind, set | frozenset)
        if _are_plain(items):
            with contextlib.suppress(ValueError):
                return [*head, _text("\0".join(sorted(map(repr, items)) if unordered else map(repr, items)))]
        if not unordered:
            return [*head, *items]
        if id(value) in self._sorting:
            return [*head, _text("itself")]
        self._sorting.add(id(value))
        try:
            return [*head, *sorted(items, key=self._alone)]
        finally:
            self._sorting.discard(id(value))

    def _alone(self, item: Any) -> str:
        """Digest an item of a set, of which the order is another one in each process."""
        search = _Search(self.changing)
        search._sorting = self._sorting
        search.run(item)
        return fingerprint_of_parts(search.parts)

    # --- functions, classes, modules ------------------------------------------------------------------

    def _function(self, function: Any) -> _Text:
        label = f"function {function.__code__.co_qualname!r}"
        return self._part(label, id(function), function, lambda: self._of_function(function))

    def _packages_function(self, function: Any) -> list[Any]:
        """Give its name, and what is the user's in it, such as the function that it decorates."""
        decides = _decided_by(function)
        if decides is not None:
            return [_text("made for DSPy"), decides]
        cells = [_content(cell) for cell in function.__closure__ or ()]
        held = [*cells, function.__dict__.get("__wrapped__")]
        name = f"{plain_module(function.__globals__.get('__name__'))}.{function.__code__.co_qualname}"
        return [
            _text(name),
            *(one if _is_followed(one) else _name_of(kind_of(one)) for one in held),
            *(part for cell in cells if kind_of(cell) is dict for part in _registered(cell)),
        ]

    def _of_function(self, function: Any) -> list[Any]:
        code = function.__code__
        names = names_in(code)
        space = cast("dict[str, Any]", function.__globals__)
        self.changing.update((id(space), name) for name in names.assigned)
        self.changing.update(
            (id(space), name)
            for name in names.filled
            if issubclass(kind_of(space.get(name)), _CHANGED_IN_PLACE)
        )
        said: list[Any] = [*_code(code), function.__defaults__, function.__kwdefaults__]
        with contextlib.suppress(Exception):  # names that are not there are found out late (Python 3.14)
            said.append(function.__annotations__)
        stored = _stored(code)
        said.append({name: value for name, value in function.__dict__.items() if name not in stored})
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            said.append(_text("counts itself") if f"nonlocal {name}" in stored else _content(cell))
        for name in sorted(names.read - _OF_EVERY_MODULE):
            if name in space:
                said += [_text(name), *self._global(space, name, names.mentioned)]
        if not _READS_ANY.isdisjoint(names.read - space.keys()) or not _FINDS_ANY.isdisjoint(names.mentioned):
            said += self._any_global(space)
        return said + self._imported(function, names)

    def _global(self, space: dict[str, Any], name: str, mentioned: Iterable[str]) -> list[Any]:
        value = space[name]
        kind = kind_of(value)
        key = id(space), name
        if key not in self.changing and (kind is FunctionType or issubclass(kind, type)):
            return [value]
        if issubclass(kind, ModuleType):
            return self._module(value, frozenset(mentioned))
        return [self._part(f"global {name!r}", key, space, lambda: self._of_global(space, name))]

    def _of_global(self, space: dict[str, Any], name: str) -> list[Any]:
        file = _file_of(space)
        value = space[name]
        if (id(space), name) in self.changing:
            registered = _registered(value) if issubclass(kind_of(value), _CHANGED_IN_PLACE) else []
            return [*self._bound(file, name), *registered]
        if type(value) is str and is_credential(name, value):
            return self._bound(file, name)
        folder = Path(file).parent
        if file and isinstance(value, PurePath) and value.is_relative_to(folder):
            value = ["beside the file", *value.relative_to(folder).parts]
        elif file and type(value) is str and value.startswith(f"{folder}{os.sep}"):
            value = ["beside the file", value.removeprefix(f"{folder}{os.sep}")]
        self._is_live = False
        said = self._digest([value])
        return [_text(said), *(self._bound(file, name) if self._is_live else [])]

    def _bound(self, file: str, name: str) -> list[Any]:
        """Give how a global gets its first value, for one whose own says too little or too much."""
        statements, imported = bindings(file, name) if file else (b"", [])
        return [_text(statements), *(self._file(path) for path in imported)]

    def _any_global(self, space: dict[str, Any]) -> list[Any]:
        """Give what code may read by a text: functions, classes and plain values; not a notebook's own."""
        said: list[Any] = []
        for name in sorted(space):
            value = space[name]
            own = kind_of(value) is FunctionType and _is_own_function(value)
            own = own or (issubclass(kind_of(value), type) and _is_own_class(value))
            if own or (not name.startswith("_") and kind_of(value) in _ATOMS):
                said += [_text(name), *self._global(space, name, ())]
        return said

    def _type(self, kind: Any) -> _Text:
        if not _is_own_class(kind) and not _is_signature(kind):
            return _name_of(kind)
        return self._part(f"class {kind.__qualname__!r}", id(kind), kind, lambda: self._of_type(kind))

    def _of_type(self, kind: Any) -> list[Any]:
        own: dict[str, Any] = dict(kind.__dict__)
        said: list[Any] = [type(kind), *kind.__bases__]
        if _is_signature(kind):
            said += [kind.__name__, str(kind.instructions)]
            for name, field in kind.model_fields.items():
                said += [name, field.annotation, repr(field.metadata), field.json_schema_extra]
        elif issubclass(kind, enum.Enum):
            said.append([(name, member.value) for name, member in kind.__members__.items()])
            own = {name: one for name, one in own.items() if kind_of(one) is FunctionType}
        elif hasattr(kind, "__pydantic_fields__"):
            said.append(dict(kind.__pydantic_fields__))
        for name in sorted(own):
            value = own[name]
            dunder = name.startswith("__") and name.endswith("__")
            routine = kind_of(value) in (FunctionType, staticmethod, classmethod, property)
            if name in _OF_EVERY_CLASS or (dunder and not routine and name not in _DECIDING_IN_A_CLASS):
                continue
            if not (_is_signature(kind) and dunder):
                said += [_text(name), value]
        return said

    def _module(self, module: ModuleType, mentioned: frozenset[str]) -> list[Any]:
        """Give a module's name; of one of the user's its file, and what is read of it by name."""
        name = plain_module(getattr(module, "__name__", None))
        space = vars(module)
        key = "module", id(module), mentioned
        if not _is_own_module(module.__name__) or key in self._labels:
            return [_text(f"module {name}")]
        self._labels[key] = "", module
        file = _file_of(space)
        said: list[Any] = [_text("module")]
        if module.__name__ != "__main__" and file:
            said.append(self._file(Path(file)))
        for attribute in sorted((mentioned & space.keys()) - _OF_EVERY_MODULE):
            said += [_text(attribute), *self._global(space, attribute, mentioned)]
        return said

    def _file(self, path: Path) -> _Text:
        path = path.resolve()
        name = path.name if path.name != "__init__.py" else f"{path.parent.name}/{path.name}"
        return self._part(f"file {name}", ("file", path), path, lambda: self._of_file(path))

    def _of_file(self, path: Path) -> list[Any]:
        try:
            said, imported = syntax_of_file(path)
        except OSError:
            return [_text("cannot be read")]
        return [_text(said), *(self._file(other) for other in imported)]

    def _imported(self, function: Any, names: Names) -> list[Any]:
        if not names.imported:
            return []
        files = _file_of(function.__globals__), function.__code__.co_filename
        folders = list(dict.fromkeys(Path(file).parent for file in files if file))
        found = files_imported(names.imported, folders)
        return [self._file(path) for path in dict.fromkeys(path.resolve() for path in found)]

    # --- objects --------------------------------------------------------------------------------------

    def _object(self, kind: Any, value: Any) -> list[Any]:
        """Give what an object would be pickled from: its class and its state, slots and arrays included."""
        if issubclass(kind, _PASSING) or _module_of(kind).startswith("numpy.random"):
            self._is_live = True
            return [self._type(kind)]
        is_array = _module_of(kind).partition(".")[0] in ("numpy", "pandas")
        if is_array and not getattr(getattr(value, "dtype", None), "hasobject", False):
            key = content_key(value)
            if key is not None:
                return [self._type(kind), _text(key)]
        lasting = _lasting_state(value)
        if lasting is not None:
            return [self._type(kind), *lasting]
        if _is_own_class(kind) or self._inside_package:
            return [self._type(kind), *self._state(kind, value)]
        self._inside_package = True
        try:
            return [self._type(kind), _text(self._digest(self._state(kind, value)))]
        except _LiveError:
            self._is_live = True
        finally:
            self._inside_package = False
        # What changes in it as it is used cannot be told from what decides.
        own = _own_items(value)
        held = [
            part
            for name, one in sorted(own.items(), key=lambda item: str(item[0]))
            if _is_followed(one) and not (type(one) is str and is_credential(str(name), one))
            for part in (_text(str(name)), one)
        ]
        return [self._type(kind), _text("live"), *held]

    def _state(self, kind: Any, value: Any) -> list[Any]:
        wrapped = [wrapped] if (wrapped := _own_items(value).get("__wrapped__")) is not None else []
        if hasattr(kind, "__pydantic_fields__"):  # which fields were set is no difference
            return [value.__dict__, value.__pydantic_extra__, value.__pydantic_private__]
        if hasattr(kind, "toDict") and "_store" in _own_items(value):  # DSPy's examples and predictions
            completions = getattr(value, "_completions", None)
            return [value._store, getattr(completions, "_completions", None)]
        reducer = cast("dict[Any, Any]", copyreg.dispatch_table).get(kind)
        try:
            made_from: Any = reducer(value) if reducer is not None else value.__reduce_ex__(2)
        except RecursionError:
            raise
        except Exception:  # a lock, a client, a socket: its class has to do
            if self._inside_package:
                raise _LiveError from None
            if not _is_own_class(kind):
                self._is_live = True
            return [*wrapped, _own_items(value)]
        if isinstance(made_from, str):
            return [*wrapped, _text(made_from)]
        parts = [list(cast("Any", part)) if isinstance(part, Iterator) else part for part in made_from]
        return [*wrapped, *parts]


# --- small questions ----------------------------------------------------------------------------------

# In a class, beside what is not written in it.
_OF_EVERY_CLASS = frozenset({"__annotate_func__", "__dict__", "__module__", "__weakref__", "_abc_impl"})
_DECIDING_IN_A_CLASS = frozenset({"__annotations__", "__dataclass_fields__", "__doc__", "__match_args__"})


_MADE_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _text(said: str | bytes) -> _Text:
    return _Text(said.encode("utf-8", "surrogatepass") if isinstance(said, str) else said)


def _atom(kind: Any, value: Any) -> _Text:
    written = f"{value:x}" if kind is int else repr(value)
    return _text(f"{kind.__name__} {written}")


def _name_of(kind: Any) -> _Text:
    return _text(f"class {plain_module(_module_of(kind))}.{kind.__qualname__}")


def _code(code: Any) -> Iterator[Any]:
    """Give what code does and its constants; of code within it the same."""
    yield _text(instructions(code))
    for constant in constants(code):
        if isinstance(constant, type(code)):
            yield from _code(constant)
        else:
            yield constant


def _stored(code: Any) -> set[str]:
    """Find the attributes and outer variables that code, or code within it, gives a value."""
    found = {
        f"nonlocal {step.argval}" if step.opname == "STORE_DEREF" else step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_ATTR", "STORE_DEREF")
    }
    return found.union(*(_stored(inner) for inner in code.co_consts if isinstance(inner, type(code))))


def _registered(held: Any) -> list[Any]:
    """Give the functions and classes in a container that code fills: a registry has them, a cache has not."""
    if issubclass(kind_of(held), dict):
        return [part for pair in list(held.items()) if _is_definition(pair[1]) for part in pair]
    found = [one for one in list(held) if _is_definition(one)]
    return [frozenset(found)] if issubclass(kind_of(held), set) else found


def _is_definition(value: Any) -> bool:
    return kind_of(value) in (FunctionType, functools.partial) or issubclass(kind_of(value), type)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _text("a cell that is not filled yet")


def _own_items(value: Any) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}


def _file_of(space: Mapping[str, Any]) -> str:
    """Give the user's file that a module's names come from, or an empty text."""
    file: Any = space.get("__file__")
    return file if isinstance(file, str) and file and not is_installed(file) else ""


def _is_own_function(function: Any) -> bool:
    """Tell the user's function; one that `exec` made counts as that, whoever called it."""
    return not is_installed(function.__code__.co_filename)


def _is_own_class(kind: Any) -> bool:
    name = _module_of(kind)
    if name in ("builtins", "types"):  # also of a class that `exec` or `make_dataclass` made
        known = vars(sys.modules[name]).get(kind.__name__)
        return bool(kind.__flags__ & _MADE_IN_PYTHON) and known is not kind
    return bool(name) and _is_own_module(name)


def _module_of(kind: Any) -> str:
    name: Any = kind.__module__
    return name if isinstance(name, str) else ""  # a class of Cython may hold a descriptor there


def _is_of_dspy(kind: Any) -> bool:
    return any(_module_of(base).startswith("dspy.") for base in kind.__mro__)


def _is_own_module(name: Any) -> bool:
    """Tell the user's own module, also one that is not there: its functions came from another process."""
    if not isinstance(name, str) or name == "__main__" or package_of(name):
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    if isinstance(file, str):
        return not is_installed(file)
    return name.partition(".")[0] not in sys.stdlib_module_names | {"builtins"}


def _are_plain(items: list[Any]) -> bool:
    """Tell items that are plain, or rows of what is plain: those are written down at once, which is quick."""
    if not _PLAIN.issuperset(map(type, items)):
        return False
    rows: list[Any] = [item for item in items if type(item) in (list, tuple, dict)]
    rows += [row.values() for row in rows if type(row) is dict]
    return _ATOMS.issuperset(map(type, itertools.chain.from_iterable(rows)))


def _is_followed(value: Any) -> bool:
    """Tell what is followed from an object of a package whose state is not."""
    kind = kind_of(value)
    if kind in _ATOMS or kind in (FunctionType, MethodType, functools.partial) or issubclass(kind, type):
        return True
    return type(value) is _Text or (_is_own_class(kind) and not issubclass(kind, _CONTAINERS))


def _is_signature(kind: Any) -> bool:
    """Tell a signature of DSPy."""
    return _is_of_dspy(kind) and hasattr(kind, "instructions") and hasattr(kind, "model_fields")


def _decided_by(function: Any) -> Any:
    """Give what decides in a function that this package made for DSPy: its metric, and how it reads fields.

    Returns:
        `None` for any other, such as a user's wrapper around one: it may answer otherwise.
    """
    if inspect.isfunction(function) and Path(function.__code__.co_filename).parent == Path(__file__).parent:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError, AttributeError):  # a cell that is not filled yet, or another
                return cell.cell_contents.decided_by
    return None


def _lasting_state(instance: Any) -> list[Any] | None:
    """Give what lasts of a module or model of DSPy, without history, keys and random numbers; else `None`.

    Written for dspy 3.4.1. They are told by their surface, since nothing here knows DSPy.
    """
    kind = kind_of(instance)
    own = _own_items(instance)
    if not _is_of_dspy(kind):
        return None
    if hasattr(kind, "named_predictors"):
        passing = _OF_A_PREDICTOR if _module_of(kind).startswith("dspy.") else _OF_A_MODULE
        state = {item: value for item, value in own.items() if item not in passing}
        return [state, getattr(kind, "forward", None)]
    if "model_type" in own and "kwargs" in own:
        settings = {item: value for item, value in own["kwargs"].items() if item != "api_key"}
        return [own.get("model"), own["model_type"], settings]
    return None


# Attributes that change whenever a module is called, or that are made anew for each process.
_OF_A_MODULE = {"_compiled", "callbacks", "history"}
_OF_A_PREDICTOR = {*_OF_A_MODULE, "fields", "stage", "traces", "train"}
