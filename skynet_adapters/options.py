"""The options of a metric: their names, and what each may be."""

import contextlib
import difflib
import math
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, Literal, TypedDict, cast

from .errors import DefinitionError
from .score import shown

__all__ = [
    "MAX_TIMEOUT_SECONDS",
    "OPTIONS_OF_MODELS",
    "OPTIONS_OF_RUNS",
    "MetricOptions",
    "checked_isolation",
    "checked_memory_limit",
    "checked_name",
    "checked_options",
    "checked_seconds",
    "near_match",
]

MAX_TIMEOUT_SECONDS = 600.0
# As long as Python can wait, and still reckon when that ends.
_MOST_SECONDS = threading.TIMEOUT_MAX / 2


# What `as_*` functions take beside the options of `Metric`: of the models that they choose, and of a `run`.
OPTIONS_OF_MODELS = ("metric_lm", "reflection_lm")
OPTIONS_OF_RUNS = (
    "max_workers",
    "run_timeout",
    "include_expected",
    "executor",
    "run_isolation",
    "run_memory_limit_mb",
)


class MetricOptions(TypedDict, total=False):
    """The keyword options of `Metric`, which everything that makes one takes too."""

    name: str | None
    score_range: tuple[float, float] | None
    score_names: Iterable[str] | None
    failure_score: float
    success_threshold: float | None
    memo: Literal["rollout", "content"] | None
    memo_dir: str | os.PathLike[str] | None
    timeout: float | None
    stop_after: int | None
    max_failures_in_a_row: int | None
    copy_inputs: bool
    max_feedback_chars: int | None
    isolation: Literal["process"] | None
    memory_limit_mb: float | None


def checked_options(options: MetricOptions) -> dict[str, Any]:
    """Check what can be checked before any call.

    Args:
        options: All options of `Metric`, but for the name.

    Returns:
        The same, with numbers as floats and names as a tuple.

    Raises:
        DefinitionError: An option cannot work; names it, shows it and says what it may be.
    """
    given: dict[str, Any] = dict(options)
    return {
        "score_range": _checked_range(given["score_range"]),
        "score_names": None if given["score_names"] is None else _checked_names(given["score_names"]),
        "failure_score": _checked_number("failure_score", given["failure_score"]),
        "success_threshold": _checked_threshold(given["success_threshold"], given["score_range"]),
        "memo": _checked_memo(given["memo"]),
        "memo_dir": _checked_memo_dir(given["memo_dir"], given["memo"]),
        "timeout": checked_seconds("timeout", given["timeout"], MAX_TIMEOUT_SECONDS),
        "stop_after": _checked_count("stop_after", given["stop_after"]),
        "max_failures_in_a_row": _checked_count("max_failures_in_a_row", given["max_failures_in_a_row"]),
        "copy_inputs": _checked_flag("copy_inputs", given["copy_inputs"]),
        "max_feedback_chars": _checked_count("max_feedback_chars", given["max_feedback_chars"], at_least=100),
        "isolation": checked_isolation("isolation", given["isolation"]),
        "memory_limit_mb": checked_memory_limit(
            "memory_limit_mb", given["memory_limit_mb"], "isolation", given["isolation"]
        ),
    }


def checked_isolation(option: str, value: Any) -> Literal["process"] | None:
    """Check an option that says where a function is called.

    Raises:
        DefinitionError: It is neither "process" nor `None`.
    """
    if value not in (None, "process"):
        raise _option_error(option, value, 'it must be "process" or None')
    return value


def checked_memory_limit(option: str, value: Any, isolation_option: str, isolation: object) -> float | None:
    """Check a limit in megabytes, which only a process of its own can have.

    Raises:
        DefinitionError: It is no number above 0, there is no such process, or no such limit on this system.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _option_error(option, value, "it must be a number of megabytes, above 0, or None")
    if isolation is None:
        raise _option_error(option, value, f'it needs {isolation_option}="process"')
    if sys.platform != "linux":
        raise _option_error(
            option, value, f"only Linux holds a process to it, and this is {sys.platform}; leave it out"
        )
    return value


def near_match(name: str, known: Iterable[str]) -> str:
    """Ask whether another name was meant, where one is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _option_error(option: str, value: object, mend: str) -> DefinitionError:
    return DefinitionError(f"{option}={shown(value, with_type=False)} cannot be used: {mend}")


def _checked_number(option: str, value: object) -> float:
    with contextlib.suppress(OverflowError):
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    raise _option_error(option, value, "it must be a finite number")


def checked_name(value: object) -> str:
    """Check a metric's name.

    Raises:
        DefinitionError: It is no text, or empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise _option_error("name", value, "it must be a text")
    return value


def _checked_flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _option_error(option, value, "it must be True or False")
    return value


def _checked_range(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        low, high = (_checked_number("score_range", bound) for bound in value)
    except (TypeError, ValueError):
        raise _option_error("score_range", value, "it must be a pair (low, high), such as (0, 10)") from None
    if low >= high:
        raise _option_error("score_range", value, "low must be below high")
    return low, high


def _checked_threshold(value: object, score_range: object) -> float | None:
    if value is None:
        return None
    threshold = _checked_number("success_threshold", value)
    if score_range is not None and not 0.0 <= threshold <= 1.0:
        raise _option_error(
            "success_threshold", value, "with a score_range it is on the normalised scale, 0 to 1"
        )
    return threshold


def _checked_names(value: Any) -> tuple[str, ...]:
    try:
        names = () if isinstance(value, str) else tuple(value)
    except TypeError:
        names = ()
    if not names or not all(isinstance(name, str) for name in names):
        raise _option_error("score_names", value, 'it must be a list of names, such as ["format", "facts"]')
    return names


def _checked_memo(value: Any) -> Literal["rollout", "content"] | None:
    if value not in (None, "rollout", "content"):
        raise _option_error("memo", value, 'it must be "rollout", "content" or None')
    return value


def checked_seconds(option: str, value: Any, most: float = _MOST_SECONDS) -> float | None:
    """Check a limit in seconds.

    Raises:
        DefinitionError: It is no number above 0, or above `most`.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
        return float(value)
    raise _option_error(
        option,
        value,
        f"it must be a finite number of seconds, above 0 and at most {most:.3g}; None for no limit",
    )


def _checked_memo_dir(value: Any, memo: object) -> str | None:
    if value is None:
        return None
    given: Any = os.fsdecode(cast("Any", value)) if isinstance(value, str | os.PathLike) else None
    if not given:
        raise _option_error("memo_dir", cast("Any", value), "it must be the path of a folder")
    if memo != "content":
        raise _option_error("memo_dir", given, 'it keeps what memo="content" remembers; pass that too')
    folder = os.path.abspath(os.path.expanduser(given))
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise _option_error("memo_dir", given, "there is a file of that name; give a folder")
    return folder


def _checked_count(option: str, value: object, at_least: int = 1) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= at_least):
        return value
    raise _option_error(option, value, f"it must be a whole number, at least {at_least}, or None")
