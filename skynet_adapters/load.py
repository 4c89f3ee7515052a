"""What a metric is made of, as a fingerprint."""

import ast
import copyreg
import inspect
import itertools
import sysconfig
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any, cast

from .memo import content_key
from .metric import Metric, ScoreFunction

__all__ = ["fingerprint"]


def fingerprint(score: ScoreFunction | Metric) -> str:
    """Digest everything of a metric that decides what it answers.

    That is: the function's code, defaults and closure, the file that defines it, the files beside
    it (or below) that those import, a callable object's own state, and of a `Metric` also the
    options that change a score. Installed packages are not looked into.

    Args:
        score: A function, a callable object, a partial, or a `Metric`.

    Returns:
        32 hexadecimal digits; the same in every process for the same metric.

    Example:
        >>> def score(input, output, expected=None):
        ...     return float(output == expected["label"]), {"feedback": "..."}
        >>> strict = fingerprint(Metric(score, failure_score=-1.0))
        >>> fingerprint(score) == fingerprint(score), fingerprint(Metric(score)) == strict
        (True, False)
    """
    digest = blake2b(digest_size=16)
    for part in _parts(score, {}):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


# What was met already, by id; the objects are kept, since the id of one that is gone is used again.
_Seen = dict[int, object]

# Options that change the numbers or texts; the others decide only when and how often one is asked.
_DECIDING_OPTIONS = ("score_range", "score_names", "failure_score", "max_feedback_chars")


def _parts(thing: Any, seen: _Seen) -> Iterator[bytes]:
    if id(thing) in seen:
        yield f"met {list(seen).index(id(thing))}".encode()
        return
    seen[id(thing)] = thing
    if isinstance(thing, Metric):
        options = thing.__getstate__()["options"]
        yield from _value({name: options[name] for name in _DECIDING_OPTIONS}, seen)
        yield from _parts(thing.score, seen)
    elif inspect.isbuiltin(thing) or isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}".encode()
    elif inspect.ismethod(thing):
        yield from _parts(thing.__func__, seen)
        yield from _value(thing.__self__, seen)
    elif inspect.isfunction(thing) and _is_installed(thing.__code__.co_filename):
        yield f"{thing.__module__}.{thing.__qualname__}".encode()
    elif inspect.isfunction(thing):
        yield from _code(thing.__code__, seen)
        yield from _value([thing.__defaults__, thing.__kwdefaults__], seen)
        for cell in thing.__closure__ or ():
            try:
                yield from _value(cell.cell_contents, seen)
            except ValueError:  # a cell that is not filled yet
                yield b"empty cell"
        yield from _files(thing.__code__.co_filename)
    else:
        if hasattr(thing, "__wrapped__"):  # what a cache stands around
            yield from _parts(thing.__wrapped__, seen)
        if inspect.isfunction(type(thing).__call__):
            yield from _parts(type(thing).__call__, seen)
        yield from _state(thing, seen)


def _value(value: Any, seen: _Seen) -> Iterator[bytes]:
    """Give what a value says; of functions in it, what they are made of."""
    key = content_key(value)
    kind: Any = cast("Any", type)(value)
    if key is not None:
        yield key
    elif callable(value):
        yield from _parts(value, seen)
    elif id(value) in seen:
        yield f"met {list(seen).index(id(value))}".encode()
    else:
        seen[id(value)] = value
        if issubclass(kind, dict):
            yield from _items(kind, value.items(), seen)
        elif issubclass(kind, list | tuple):
            yield from _items(kind, value, seen)
        elif issubclass(kind, set | frozenset):
            yield from sorted(b"".join(_value(item, dict(seen))) for item in value)
        else:
            yield from _state(value, seen)


def _items(kind: Any, items: Iterable[Any], seen: _Seen) -> Iterator[bytes]:
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    for item in items:  # an item of a dict is a pair
        yield b"item"
        yield from _value(item, seen)


def _state(instance: Any, seen: _Seen) -> Iterator[bytes]:
    """Give what an object would be pickled from: its class and its state, slots and arrays included."""
    if callable(getattr(cast("Any", type(instance)), "dump_state", None)):
        yield from _value(_lasting_state(instance), seen)
        return
    reducer = cast("dict[Any, Any]", copyreg.dispatch_table).get(type(instance))
    try:
        made_from: Any = reducer(instance) if reducer is not None else instance.__reduce_ex__(2)
    except Exception:  # a lock, a client, a socket: its class has to do
        made_from = type(instance).__qualname__, getattr(instance, "__dict__", None)
    for part in [made_from] if isinstance(made_from, str) else made_from:
        yield from _value(list(cast("Iterator[Any]", part)) if isinstance(part, Iterator) else part, seen)


def _lasting_state(instance: Any) -> list[Any]:
    """Give what DSPy's modules and models say of themselves: not their history, keys and random numbers.

    A module does not say what its author gave it besides predictors, such as a threshold.
    """
    state = [type(instance).__qualname__, instance.dump_state()]
    if hasattr(instance, "named_predictors"):
        own = cast("dict[str, Any]", vars(instance)).items()
        state.append({name: value for name, value in own if name[:1] != "_" and name not in _OF_A_RUN})
    return state


# Attributes of DSPy's modules that change whenever they are called (dspy 3.4.1).
_OF_A_RUN = {"callbacks", "history", "stage", "traces", "train"}


def _code(code: CodeType, seen: _Seen) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, seen)
        else:
            yield from _value(constant, seen)


def _is_installed(name: str) -> bool:
    """Tell whether a file belongs to Python, an installed package or this one, and so to no metric."""
    return any(Path(name).is_relative_to(folder) for folder in _INSTALLED)


_INSTALLED = (
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
)


def _files(name: str) -> Iterator[bytes]:
    """Give the contents of a source file and of the files in its folder that it imports."""
    first = Path(name)
    waiting, done = [first], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in done or path.suffix != ".py" or not path.is_file():
            continue
        done.add(path)
        source = path.read_bytes()
        yield source
        waiting.extend(sorted(_imported(source, path.parent), reverse=True))


def _imported(source: bytes, folder: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    roots = [folder]  # where an absolute import may begin: here, or above the package that this is in
    while (roots[-1] / "__init__.py").is_file():
        roots.append(roots[-1].parent)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, bases = [alias.name for alias in node.names], roots
        elif isinstance(node, ast.ImportFrom):
            bases = [folder.joinpath(*[".."] * (node.level - 1))] if node.level else roots
            stem = [node.module] if node.module else []
            names = [*stem, *(".".join([*stem, alias.name]) for alias in node.names)]
        else:
            continue
        for base, dotted in itertools.product(bases, names):
            target = base
            for part in dotted.split("."):
                target = target / part
                yield target.with_name(f"{target.name}.py")
                yield target / "__init__.py"
