"""A user's function: how it is called, what it is called, and where in it a fault came from."""

import contextlib
import functools
import inspect
import linecache
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, cast

from .errors import DefinitionError
from .score import clean_text, shown

__all__ = [
    "MOST_TOLD",
    "Ask",
    "ToldError",
    "caller",
    "function_name",
    "hint",
    "is_async",
    "is_made_here",
    "told",
    "without_partials",
]

Ask = Callable[[Any, Any, Any], Any]  # (input, output, expected) -> what the user's function returns


MOST_TOLD = 2_000  # characters of an error


class ToldError(Exception):
    """What a function did in another process, told there: a clause such as "raised ValueError: ..."."""


def caller(score: Any, name: str) -> Ask:
    """Find out how `score` takes input, output and expected: by position, or by name.

    Raises:
        DefinitionError: It takes them in no way, or it is a DSPy metric.
    """
    if not callable(score):
        is_path = str(score).endswith(".py")
        raise DefinitionError(
            f"a metric is a function score(input, output, expected=None); got {shown(score)}"
            f"{'; load_metric makes a metric of a file' if is_path else ''}"
        )
    signature = _signature(score)
    if signature is None:
        return score
    names = [parameter.name for parameter in signature.parameters.values()]
    if _are_dspys(names):
        raise DefinitionError(
            f"metric {name!r} has the parameters of a DSPy metric, {signature}; pass "
            "from_dspy_metric(metric), in a file score = from_dspy_metric(metric), or write it as "
            "score(input, output, expected=None)"
        )
    if names[:1] == ["artifact"]:
        raise DefinitionError(
            f"metric {name!r} has the parameters of a run, {signature}: are score and run swapped? "
            "A metric is score(input, output, expected=None)"
        )
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    contract = ("input", "output", "expected")
    in_order = tuple(names) == contract[: len(names)]
    by_name = set(names) <= set(contract) and kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if "output" in names and by_name and not in_order:
        return lambda i, o, e: score(**{k: v for k, v in zip(contract, (i, o, e), strict=True) if k in names})
    if names and names[0] in _NAMES_OF_AN_OUTPUT and inspect.Parameter.KEYWORD_ONLY not in kinds:
        raise DefinitionError(
            f"metric {name!r} has the parameters {signature}, and its first one gets the input; "
            "write it as score(input, output, expected=None)"
        )
    ways: tuple[tuple[int, tuple[str, ...], Ask], ...] = (
        (3, (), score),
        (2, ("expected",), lambda i, o, e: score(i, o, expected=e)),
        (2, (), lambda i, o, e: score(i, o)),
        (0, ("input", "output", "expected"), lambda i, o, e: score(input=i, output=o, expected=e)),
        (0, ("input", "output"), lambda i, o, e: score(input=i, output=o)),
    )
    for positional, keywords, call in ways:
        try:
            signature.bind(*[None] * positional, **dict.fromkeys(keywords))
        except TypeError:
            continue
        return call
    raise DefinitionError(
        f"metric {name!r} cannot be called with input, output and expected: its signature is {signature}; "
        "write it as score(input, output, expected=None)"
    )


def is_dspy_metric(function: Any) -> bool:
    """Tell a metric of DSPy's form by the names of its parameters.

    Example:
        >>> is_dspy_metric(lambda example, pred, trace=None: True), is_dspy_metric(lambda input, output: 1)
        (True, False)
    """
    signature = _signature(function)
    names = [] if signature is None else list(signature.parameters)
    return _are_dspys(names) or names in (["example", "prediction"], ["gold", "prediction"])


def _are_dspys(names: list[str]) -> bool:
    return names[2:3] == ["trace"] or names[:2] in (["gold", "pred"], ["example", "pred"])


def _signature(function: Any) -> inspect.Signature | None:
    for follow in (True, False):  # an object that answers to any name wraps others without end
        with contextlib.suppress(TypeError, ValueError):  # some functions written in C have none
            return inspect.signature(function, follow_wrapped=follow)
    return None


_NAMES_OF_AN_OUTPUT = frozenset({"output", "pred", "prediction", "response", "answer", "generated"})


def is_async(score: Any) -> bool:
    """Tell whether calling `score` only makes an awaitable.

    `functools.wraps` is not looked through: a plain function around an async one may run it itself.
    """
    function = without_partials(score)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_method(function))


def without_partials(score: Any) -> Any:
    """Give the function that stands behind `functools.partial` objects."""
    while isinstance(score, functools.partial):
        score = score.func
    return score


def _call_method(instance: Any) -> Any:
    return type(instance).__call__ if callable(instance) else None


def function_name(score: Any) -> str:
    """Name a metric by its function, or by its file where the function's name says nothing."""
    function = without_partials(score)
    name: Any = None
    with contextlib.suppress(Exception):  # attributes of the user's own
        name = function.__name__
    if not isinstance(name, str):
        name = type(function).__name__
    if name in ("score", "<lambda>"):  # the file says more, when there is one
        file = Path(getattr(getattr(function, "__code__", None), "co_filename", ""))
        if file.suffix == ".py" and file.stem not in ("__main__", "__init__") and not file.stem.isdigit():
            name = file.stem if name == "score" else f"{file.stem}_lambda"
    return re.sub(r"\W+", "_", name).strip("_") or "metric"


def told(error: BaseException, function: Any, most_chars: int | None = MOST_TOLD) -> str:
    """Say what was raised, its message, and where in the user's own code it came from.

    Never raises: a broken message must not hide the fault that is being reported.
    """
    try:
        said = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as broken:
        said = f"<its message raises {type(broken).__name__}>"
    try:
        where = _users_frame(error.__traceback__, function)
    except Exception:  # of a callable object whose attributes raise when they are read
        where = ""
    return clean_text(f"{type(error).__name__}{': ' if said else ''}{said}{where}", most_chars)


def _users_frame(trace: TracebackType | None, function: Any) -> str:
    frames = [
        _Frame(frame, line or 0)
        for frame, line in traceback.walk_tb(trace)
        if os.path.dirname(frame.f_code.co_filename) != _PACKAGE
    ]
    function = without_partials(function)
    with contextlib.suppress(ValueError):  # an object that answers to any name wraps others without end
        function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(_call_method(function), "__code__", None)
    own = [frame for frame in frames if code is not None and frame.file == code.co_filename]
    # Where the function ran a text as code, such as the artifact that is optimised, the fault is in there.
    of_texts = [frame for frame in frames if frame not in own and _is_of_a_text(frame)]
    outside = [frame for frame in frames if not _is_a_librarys(frame.file)]
    if not frames:
        return ""
    frame = (of_texts or own or outside or frames)[-1]
    line = linecache.getline(frame.file, frame.line).strip() or _line_of_a_text(frame, frames)
    # Not `Path`, which interns the parts of every name that it sees, also of code that is made at run time.
    file = os.path.basename(frame.file)
    # IPython keeps each cell in a file with a number for a name.
    place = "a notebook cell" if file.removesuffix(".py").isdigit() else file
    return f" ({place}, line {frame.line}, in {frame.code.co_name}{': ' if line else ''}{line})"


class _Frame(NamedTuple):
    """A call that was under way."""

    frame: FrameType
    line: int

    @property
    def code(self) -> CodeType:
        return self.frame.f_code

    @property
    def file(self) -> str:
        return self.code.co_filename


# What Python's own prompts, IPython and doctest call their input.
_INPUTS = ("<stdin", "<python-input", "<ipython-input", "<doctest ")


def _is_of_a_text(frame: _Frame) -> bool:
    """Tell code that `exec` or `eval` ran, and not on behalf of a library."""
    if not frame.file.startswith("<") or frame.file.startswith(("<frozen ", *_INPUTS)):
        return False
    is_generated = frame.code.co_qualname.startswith("__create_fn__")  # the `__init__` of a dataclass
    return not is_generated and not _is_a_librarys(str(frame.frame.f_globals.get("__file__", "")))


_MOST_TEXTS = 20
_LONGEST_TEXT = 200_000


def _line_of_a_text(frame: _Frame, frames: list[_Frame]) -> str:
    """Find a line of code that was run as a text, in the variables of the calls around it."""
    if not _is_of_a_text(frame):
        return ""
    name = frame.code.co_name
    found: dict[str, None] = {}
    for caller in frames:
        if caller.frame.f_code is frame.code:
            break
        for value in caller.frame.f_locals.values():
            texts = cast("dict[Any, Any]", value).values() if type(value) is dict else [value]
            found |= {text: None for text in texts if type(text) is str and len(text) <= _LONGEST_TEXT}
    for text in list(found)[:_MOST_TEXTS]:
        above = _lines_above(text, frame) if name in text or name.startswith("<") else None
        if above is not None:
            return text.splitlines()[frame.line - above - 1].strip()
    return ""


def _lines_above(text: str, frame: _Frame) -> int | None:
    """Tell after how many other lines a text was run; `None` where it is not what was run."""
    for mode in ("exec", "eval"):
        with contextlib.suppress(Exception):  # no code
            waiting: list[Any] = [compile(text, frame.file, mode, dont_inherit=True)]
            while waiting:
                code = waiting.pop()
                first = frame.code.co_firstlineno
                if code.replace(co_firstlineno=first) == frame.code:
                    return first - code.co_firstlineno
                waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
    return None


_PACKAGE = os.path.dirname(__file__)


def is_made_here(function: Any) -> bool:
    """Tell whether a function's code is of this package."""
    code = getattr(function, "__code__", None)
    return code is not None and os.path.dirname(code.co_filename) == _PACKAGE


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def _is_a_librarys(file: str) -> bool:
    # What DSPy raises within a `with` ends in contextlib.py, which is as little the user's (dspy 3.4.1).
    return any(part in file for part in ("site-packages", "dist-packages")) or file.startswith(
        (_STANDARD_LIBRARY, "<frozen ")
    )


def _field_names(fields: Any) -> str:
    return shown(list(cast("Any", fields)) if isinstance(fields, dict) else fields, with_type=False)


def hint(error: BaseException, said: str, input: Any, expected: Any) -> str:
    """Say what the function was given, where that explains why it raised what `told` has said."""
    if isinstance(error, KeyError):
        return f"; input has {_field_names(input)}, expected has {_field_names(expected)}"
    if "No LM is loaded" in said:
        return "; DSPy's modules in a metric ask metric_lm= where that is a dspy.LM or a model's name"
    if expected is None and isinstance(error, TypeError | AttributeError) and "NoneType" in said:
        return "; this case has no expected value (expected=None), as a reward never has"
    return ""
