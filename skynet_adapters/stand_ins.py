"""What stands in for a program's output: the expected value, in the forms that an output may have."""

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, cast

from .score import shown

__all__ = ["Perfect", "forms", "perfect_outputs"]

_log = logging.getLogger("skynet_adapters")

# The answer's object and the expected value -> outputs.
Perfect = Callable[[Any, Any], list[Any]]


def perfect_outputs(output: Any, expected: Any, perfect: Perfect | None, answer: Any) -> list[Any]:
    """Give what may be a perfect output: as the target says, else the expected value."""
    if perfect is not None:
        try:
            found = [one for one in perfect(answer, expected) if one is not None]
        except Exception:  # the user's own reader of fields; then there is no such guess
            _log.debug("no perfect output could be made of %s", shown(expected), exc_info=True)
        else:
            if found:
                return found
    fields = list(cast("dict[str, Any]", expected).values()) if isinstance(expected, dict) else []
    value = fields[0] if len(fields) == 1 else cast("Any", expected)
    return [] if value is None else forms(value, output)  # no output at all is never judged


def forms(value: Any, like: Any) -> list[Any]:
    """Give an expected value in the forms that an output may have it in: 3 for the text "3", a dict as JSON.

    Args:
        value: The expected value.
        like: An output that failed; where one of the forms is of its type, there are no others.

    Returns:
        At least one form; `value` itself first, where it is among them.

    Example:
        >>> forms(3, like="three"), forms({"a": 1}, like="{"), forms("3", like=None)
        (['3'], ['{"a": 1}'], ['3', 3])
    """
    found = [value]
    with contextlib.suppress(Exception):  # what JSON cannot hold, or what is no JSON, has no such form
        if isinstance(value, str):
            found.append(json.loads(value))
        else:
            found.append(json.dumps(value, ensure_ascii=False, default=str))
            if not isinstance(value, dict | list | tuple) and str(value) != found[-1]:
                found.append(str(value))
    same = [] if like is None else [form for form in found if type(form) is type(like)]
    return same or found
