"""What a metric is made of, as a fingerprint."""

import ast
import functools
import inspect
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any

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
    for part in _parts(score, set()):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


# Options that change the numbers or texts; the others decide only when and how often one is asked.
_DECIDING_OPTIONS = ("score_range", "score_names", "failure_score", "max_feedback_chars")


def _parts(thing: Any, seen: set[int]) -> Iterator[bytes]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Metric):
        options = thing.__getstate__()["options"]
        yield content_key({name: options[name] for name in _DECIDING_OPTIONS}) or b""
        yield from _parts(thing.score, seen)
    elif isinstance(thing, functools.partial):
        yield from _parts(thing.func, seen)
        for value in (*thing.args, *sorted(thing.keywords.items())):
            yield from _value(value, seen)
    elif inspect.ismethod(thing):
        yield from _parts(thing.__func__, seen)
        yield from _value(thing.__self__, seen)
    elif inspect.isfunction(thing):
        yield from _code(thing.__code__)
        for value in (*(thing.__defaults__ or ()), *sorted((thing.__kwdefaults__ or {}).items())):
            yield from _value(value, seen)
        for cell in thing.__closure__ or ():
            try:
                yield from _value(cell.cell_contents, seen)
            except ValueError:  # a cell that is not filled yet
                yield b"empty cell"
        yield from _files(thing.__code__.co_filename)
    else:
        yield from _parts(type(thing).__call__, seen)
        yield from _value(thing, seen)


def _value(value: Any, seen: set[int]) -> Iterator[bytes]:
    key = content_key(value)
    if key is not None:
        yield key
    elif inspect.isbuiltin(value):
        yield value.__qualname__.encode()
    elif (
        inspect.isfunction(value) or inspect.ismethod(value) or isinstance(value, Metric | functools.partial)
    ):
        yield from _parts(value, seen)
    elif id(value) not in seen:
        # An object: its class, and its own state as far as that can be read.
        seen.add(id(value))
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        for name, item in sorted(getattr(value, "__dict__", {}).items()):
            yield name.encode()
            yield from _value(item, seen)


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode("utf-8", "surrogatepass")


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
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], folder
        elif isinstance(node, ast.ImportFrom):
            base = folder.joinpath(*[".."] * (node.level - 1)) if node.level > 1 else folder
            stem = [node.module] if node.module else []
            names = [*stem, *(".".join([*stem, alias.name]) for alias in node.names)]
        else:
            continue
        for dotted in names:
            target = base.joinpath(*dotted.split("."))
            yield target.with_name(f"{target.name}.py")
            yield target / "__init__.py"
