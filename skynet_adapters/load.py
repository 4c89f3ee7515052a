"""A metric's file as a `Metric`, and what a metric is made of, as a fingerprint."""

import ast
import contextlib
import copyreg
import difflib
import importlib.util
import inspect
import itertools
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Unpack, cast

from .copies import kind_of
from .digests import digest
from .errors import DefinitionError
from .function import is_dspy_metric
from .installed import is_installed
from .memo import content_key
from .metric import Metric, ScoreFunction, as_metric
from .options import MetricOptions, near_match
from .score import clean_text, shown
from .sibling_imports import PACKAGE_PREFIX, import_apart, plain_module

__all__ = [
    "check_metric_options",
    "fingerprint",
    "load_metric",
    "load_score",
]


def fingerprint(score: ScoreFunction | Metric) -> str:
    """Digest everything of a metric that decides what it answers.

    That is: the function's code, defaults and closure, the file that defines it, the files beside
    it (or below) that those import, a callable object's own state, and of a `Metric` also the
    options that change a score. Installed packages are not looked into.

    Args:
        score: A function, a callable object, a partial, a `Metric`, or what `as_dspy_metric` made, of which
            the fields that it reads count too.

    Returns:
        32 hexadecimal digits; the same in every process for the same metric.

    Raises:
        DefinitionError: It holds something that goes on without end.

    Example:
        >>> def score(input, output, expected=None):
        ...     return float(output == expected["label"]), {"feedback": "..."}
        >>> strict = fingerprint(Metric(score, failure_score=-1.0))
        >>> fingerprint(score) == fingerprint(score), fingerprint(Metric(score)) == strict
        (True, False)
    """
    try:
        return digest(_parts(score, {}), 16).hex()
    except RecursionError:
        raise DefinitionError(
            f"the metric {shown(score)} holds something that goes on without end, such as a Mock; "
            "what it is made of cannot be told"
        ) from None


# What was met already, by id; the objects are kept, since the id of one that is gone is used again.
_Seen = dict[int, object]

# Options that change the numbers or texts; the others decide only when and how often one is asked.
_DECIDING_OPTIONS = ("score_range", "score_names", "failure_score", "max_feedback_chars")


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


def _parts(thing: Any, seen: _Seen) -> Iterator[bytes]:
    decides = _decided_by(thing)
    if decides is not None:
        yield from _value(decides, seen)
        return
    if id(thing) in seen:
        yield f"met {list(seen).index(id(thing))}".encode()
        return
    seen[id(thing)] = thing
    if isinstance(thing, Metric):
        options = thing.options
        yield from _value({name: options[name] for name in _DECIDING_OPTIONS}, seen)
        yield from _parts(thing.score, seen)
    elif inspect.isbuiltin(thing):
        yield f"{plain_module(thing.__module__)}.{thing.__qualname__}".encode()
    elif isinstance(thing, type):
        yield from _type(thing)
    elif inspect.ismethod(thing):
        yield from _parts(thing.__func__, seen)
        yield from _value(thing.__self__, seen)
    elif inspect.isfunction(thing) and is_installed(thing.__code__.co_filename):
        yield f"{plain_module(thing.__module__)}.{thing.__qualname__}".encode()
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
    kind = kind_of(value)
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
    yield f"{plain_module(kind.__module__)}.{kind.__qualname__}".encode()
    for item in items:  # an item of a dict is a pair
        yield b"item"
        yield from _value(item, seen)


def _state(instance: Any, seen: _Seen) -> Iterator[bytes]:
    """Give what an object would be pickled from: its class and its state, slots and arrays included."""
    lasting = _lasting_state(instance)
    if lasting is not None:
        yield from _value(lasting, seen)
        return
    reducer = cast("dict[Any, Any]", copyreg.dispatch_table).get(type(instance))
    try:
        made_from: Any = reducer(instance) if reducer is not None else instance.__reduce_ex__(2)
    except Exception:  # a lock, a client, a socket: its class has to do
        made_from = type(instance).__qualname__, getattr(instance, "__dict__", None)
    for part in [made_from] if isinstance(made_from, str) else made_from:
        yield from _value(list(cast("Iterator[Any]", part)) if isinstance(part, Iterator) else part, seen)


def _lasting_state(instance: Any) -> Any:
    """Give what lasts of a module or model of DSPy, without history, keys and random numbers; else `None`.

    Written for dspy 3.4.1. They are told by their surface, since nothing here knows DSPy.
    """
    kind = kind_of(instance)
    own: dict[str, Any] = getattr(instance, "__dict__", {})
    if not any(base.__module__.startswith("dspy.") for base in kind.__mro__):
        return None
    name = f"{plain_module(kind.__module__)}.{kind.__qualname__}"
    if hasattr(kind, "named_predictors"):
        passing = _OF_A_PREDICTOR if kind.__module__.startswith("dspy.") else _OF_A_MODULE
        state = {item: value for item, value in own.items() if item not in passing}
        return [name, state, getattr(kind, "forward", None)]
    if "model_type" in own and "kwargs" in own:
        settings = {item: value for item, value in own["kwargs"].items() if item != "api_key"}
        return [name, own.get("model"), own["model_type"], settings]
    return None


# Attributes that change whenever a module is called, or that are made anew for each process.
_OF_A_MODULE = {"_compiled", "callbacks", "history"}
_OF_A_PREDICTOR = {*_OF_A_MODULE, "fields", "stage", "traces", "train"}


def _type(kind: Any) -> Iterator[bytes]:
    yield f"{plain_module(kind.__module__)}.{kind.__qualname__}".encode()
    if hasattr(kind, "instructions") and hasattr(kind, "model_fields"):  # a signature of DSPy
        yield str(kind.instructions).encode("utf-8", "surrogatepass")
        for name, field in kind.model_fields.items():
            said = [name, field.annotation, field.metadata, field.json_schema_extra]
            yield repr(said).encode("utf-8", "surrogatepass")


def _code(code: CodeType, seen: _Seen) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant, seen)
        else:
            yield from _value(constant, seen)


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


def _parsed(source: bytes | str) -> ast.Module:
    # Of two threads that parse at once one may get "recursion depth mismatch" (CPython 3.11).
    with _parsing:
        return ast.parse(source)


_parsing = threading.Lock()


def _imported(source: bytes, folder: Path) -> Iterator[Path]:
    try:
        tree = _parsed(source)
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


# --- a metric's file -------------------------------------------------------------------------------


def load_metric(path: str | os.PathLike[str], **options: Unpack[MetricOptions]) -> Metric:
    """Make a `Metric` of the function `score` in a file.

    The file can import the files and packages beside it, also late, from inside a function; those
    stay apart from every other module, so two folders may have files of the same name. A module that
    the program has imported already is the same one to the metric. Each call reads the files anew,
    and gives a metric that shares nothing with an earlier one.

    A metric that was loaded goes to another process by value (cloudpickle), with what its functions
    refer to. What they import only when they run has to be importable there.

    Args:
        path: A Python file, such as `metric.py`. A `REWARD_SPEC` in it is checked too.
        **options: Those of `Metric`.

    Returns:
        The metric. Its name is that of the function, or, where that says only `score`, of the file that
        defines it.

    Raises:
        DefinitionError: There is no such file, it cannot be read or executed, it has no usable
            `score`, its `REWARD_SPEC` is wrong, or an option is. Names file, line and mend.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "metric.py")
        ...     _ = path.write_text('def score(input, output): return 1.0, {"feedback": "Fine."}')
        ...     metric = load_metric(path)
        >>> metric({"text": "hi"}, "hello")
        (1.0, {'feedback': 'Fine.'})
    """
    check_metric_options(options)
    score = load_score(path)
    try:
        return as_metric(score, **options)
    except DefinitionError as error:
        code = getattr(score, "__code__", None)
        if code is not None and Path(code.co_filename).resolve() == Path(path).resolve():
            line = code.co_firstlineno
        else:  # it was imported, or made there
            line = _line_of(_read_source(Path(path)), "score")
        raise DefinitionError(f"{_place(Path(path), line)}: {error}") from None


def check_metric_options(options: MetricOptions) -> None:
    """Refuse a wrong option by itself, so that no metric is blamed for it.

    Raises:
        DefinitionError: One is unknown or cannot work.
    """

    def score(input: Any, output: Any) -> tuple[float, dict[str, str]]:
        return 0.0, {"feedback": ""}

    as_metric(score, **options)


def load_score(path: str | os.PathLike[str]) -> Any:
    """Give what a metric's file calls `score`, as `load_metric` does, before it is a `Metric`.

    Raises:
        DefinitionError: As for `load_metric`, but for signature and options.
    """
    file = Path(path)
    source = _read_source(file)
    module = _executed(file)
    if "REWARD_SPEC" in vars(module):
        from .rewards import read_reward_spec  # here, since pydantic takes a while to import

        try:
            read_reward_spec(module.REWARD_SPEC)
        except DefinitionError as error:
            raise DefinitionError(f"{_place(file, _line_of(source, 'REWARD_SPEC'))}: {error}") from None
    score = getattr(module, "score", None)
    if not callable(score):
        raise DefinitionError(_no_score(file, source, module))
    return score


def _read_source(file: Path) -> str:
    """Read the file only to say what is wrong with it; Python reads it again."""
    if file.is_dir():
        inside = f", such as {file / 'metric.py'}" if (file / "metric.py").is_file() else ""
        raise DefinitionError(f"{file}: this is a folder; give the metric's file in it{inside}")
    if file.suffix != ".py":
        raise DefinitionError(f"{file}: a metric is a Python file; give one whose name ends in .py")
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise DefinitionError(f"{file}: there is no such file{_near_files(file)}") from None
    except OSError as error:
        raise DefinitionError(f"{file}: it cannot be read ({error.strerror})") from None
    try:
        source = importlib.util.decode_source(content)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{_undecodable(file, content, error)}; {_AS_UTF8}") from None
    if "\0" in source:
        raise DefinitionError(
            f"{_place(file, _line_at(content, content.find(0)))}: it holds a NUL; {_AS_UTF8}"
        )
    return source


_AS_UTF8 = "save the file as UTF-8"


def _line_at(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _undecodable(file: Path, content: bytes, error: SyntaxError | UnicodeDecodeError) -> str:
    try:
        content.decode()
    except UnicodeDecodeError as wrong:
        return f"{_place(file, _line_at(content, wrong.start))}: this is not UTF-8"
    return f"{file}: its coding comment is wrong ({error})"


def _executed(file: Path) -> ModuleType:
    file = file.resolve()
    try:
        return import_apart(file)
    except KeyboardInterrupt:
        raise
    except DefinitionError as error:  # our own, of `import skynet`
        raise DefinitionError(f"{file}: {error}") from None
    except BaseException as error:  # a SystemExit of the file too
        raise DefinitionError(_what_it_raised(file, error)) from None


def _what_it_raised(file: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        place, text = _place(Path(error.filename or ""), error.lineno), (error.text or "").strip()
        imported = "" if Path(error.filename or "") == file else f"; {file.name} imports it"
        return f"{place}: this is not valid Python ({error.msg}){': ' if text else ''}{text}{imported}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")]
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(file.parent)]
    inside = [frame for frame in own if not is_installed(frame.filename)]
    frame = inside[-1] if inside else None
    place = _place(Path(frame.filename), frame.lineno) if frame else str(file)
    line = f" at `{frame.line}`" if frame and frame.line else ""
    said = re.sub(rf"\b{PACKAGE_PREFIX}\d+\.", "", clean_text(str(error), 500))
    mend = "mend that line; it runs when the file is loaded"
    if isinstance(error, ModuleNotFoundError):
        mend = f"install that package, or put its file beside {file.name}"
    elif isinstance(error, SystemExit):
        mend = 'put what is for the command line under `if __name__ == "__main__":`'
    return f"{place}: it raised {type(error).__name__}{': ' if said else ''}{said}{line}; {mend}"


def _no_score(file: Path, source: str, module: ModuleType) -> str:
    if "score" in vars(module):
        return (
            f"{_place(file, _line_of(source, 'score'))}: `score` is {shown(module.score)}, no function; "
            "write it as def score(input, output, expected=None)"
        )
    defined = [
        name
        for name, value in vars(module).items()
        if inspect.isroutine(value) and getattr(value, "__module__", None) == module.__name__
    ]
    lower = {name.lower(): name for name in reversed(defined)}
    near = [lower[name] for name in difflib.get_close_matches("score", lower, n=1, cutoff=0.6)]
    near = near or [name for name in defined if "score" in name.lower() or "metric" in name.lower()][:1]
    near = near or (defined if len(defined) == 1 else [])
    of_dspy = [
        name for name, value in vars(module).items() if inspect.isfunction(value) and is_dspy_metric(value)
    ]
    name = next(iter(near or of_dspy), None)
    if name is not None:
        place = f"{_place(file, _line_of(source, name))}: there is no function `score`"
        if name in of_dspy:
            return (
                f"{place}, and {name!r} has the parameters of a DSPy metric; write "
                f"score = from_dspy_metric({name}), with from skynet_adapters import from_dspy_metric"
            )
        return f"{place}; rename {name!r} to it"
    has = f"; it defines {', '.join(defined[:5])}" if defined else ""
    return f"{file}: there is no function `score`{has}; write one, def score(input, output, expected=None)"


def _near_files(file: Path) -> str:
    try:
        names = [other.name for other in file.parent.iterdir() if other.suffix == ".py"]
    except OSError:
        return f", and no folder {file.parent}"
    begins = f"; relative paths begin at {Path.cwd()}" if not file.is_absolute() else ""
    return near_match(file.name, names) or begins


def _place(file: Path, line: int | None) -> str:
    return f"{file}, line {line}" if line else str(file)


def _line_of(source: str, name: str) -> int | None:
    """Find the last top-level statement that gives `name` its value."""
    line = None
    for node in _parsed(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
        else:
            continue
        line = node.lineno if name in names else line
    return line
