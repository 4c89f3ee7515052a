"""A metric's file as a `Metric`."""

import ast
import difflib
import importlib.util
import inspect
import os
import re
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

from .code_content import parsed
from .errors import DefinitionError
from .function import is_dspy_metric
from .installed import is_installed
from .metric import Metric, as_metric
from .options import MetricOptions, near_match
from .score import clean_text, shown
from .sibling_imports import PACKAGE_PREFIX, import_apart

__all__ = [
    "check_metric_options",
    "load_metric",
    "load_score",
]


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
    for node in parsed(source).body:
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
