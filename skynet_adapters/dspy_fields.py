# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is read of DSPy's examples and predictions.

Built around dspy 3.4.1.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import dspy

from .errors import DataError, DefinitionError
from .example_fields import inputs_and_labels
from .score import shown

__all__ = ["BESIDE_THE_ANSWER", "Fields", "fields_of", "input_and_labels", "input_keys", "reader"]

Fields = str | Sequence[str] | Callable[[Any], Any]

# Fields that DSPy's modules add to an answer of their own accord.
BESIDE_THE_ANSWER = frozenset({"reasoning", "trajectory"})

# What `inputs()`, `labels()` and `items()` read. They build an Example each, which costs more than all
# the rest here, and `example.items` is a field where a column has that name.
fields_of: Callable[[Any], dict[str, Any]] = operator.attrgetter("_store")
input_keys: Callable[[Any], set[str] | None] = operator.attrgetter("_input_keys")


def input_and_labels(gold: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Give an example's input fields and its other ones; of arguments, as a reward gets them, the first."""
    if not isinstance(gold, dspy.Example):
        return (dict(gold) if isinstance(gold, Mapping) else {"input": gold}), None
    fields, keys = fields_of(gold), input_keys(gold)
    if keys is None:
        return dict(fields), None
    return inputs_and_labels(fields, keys)


def reader(option: str, fields: Any, always_dict: bool = False) -> Callable[[Any], Any] | None:
    """Make the function that reads what a user gave as `output=` or `expected=`.

    Args:
        option: Which of the two, for messages.
        fields: A name, a list of names or a function; `None` gives `None`.
        always_dict: Whether one name gives a dict too.

    Raises:
        DefinitionError: It is something else.
    """
    if fields is None or callable(fields):
        return fields
    if isinstance(fields, str):
        one = functools.partial(_field, option, fields)
        return functools.partial(_fields, option, (fields,)) if always_dict else one
    names: tuple[Any, ...] = tuple(fields) if isinstance(fields, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise DefinitionError(
            f"{option}={fields!r} cannot be used: it is a field's name, a list of names, or a function"
        )
    return functools.partial(_fields, option, names)


def _field(option: str, name: str, holder: Any) -> Any:
    try:
        if isinstance(holder, dspy.Example | Mapping):
            return cast("Any", holder)[name]
        return getattr(holder, name)
    except (KeyError, AttributeError):
        there = list(cast("Any", holder)) if isinstance(holder, dspy.Example | Mapping) else []
        what = "prediction" if option == "output" else "example"
        raise DataError(
            f"the {what} has no field {name!r}, which {option}= asks for; it has {there or shown(holder)}"
        ) from None


def _fields(option: str, names: Sequence[str], holder: Any) -> dict[str, Any]:
    return {name: _field(option, name, holder) for name in names}
