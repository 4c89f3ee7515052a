# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Cases and DSPy's examples, and what is wrong with a data set before anything is paid.

Built around dspy 3.4.1. Where a line answers one of its quirks, a comment names it.
"""

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast, get_args

import dspy

from .cases import Case, Split, how_to_load
from .dspy_fields import fields_of, input_and_labels, input_keys
from .errors import DataError
from .score import shown

__all__ = ["check_examples", "from_examples", "to_examples"]

# Names that no program can be called with: parameters of DSPy's own wrappers.
_KEPT_BY_DSPY = ("self", "instance")
# Keyword arguments that `dspy.Predict` takes for itself and never shows to the model.
_TAKEN_BY_PREDICT = ("signature", "new_signature", "demos", "config", "lm", "_trace")


def to_examples(cases: Iterable[Case]) -> list[dspy.Example]:
    """Turn cases into DSPy examples, with their inputs set.

    Args:
        cases: Their input fields become the example's inputs, their expected fields its labels.

    Returns:
        One example for each case, in order.

    Raises:
        DataError: A field is both input and expected, or has a name that DSPy keeps for itself.

    Example:
        >>> [example] = to_examples([Case("1", {"text": "hi"}, {"label": "greeting"})])
        >>> example.inputs().toDict(), example.labels().toDict()
        ({'text': 'hi'}, {'label': 'greeting'})
    """
    if isinstance(cases, str | os.PathLike | Case | Mapping | Split):
        mend = (
            how_to_load(cases)
            if isinstance(cases, str | os.PathLike)
            else "a list of them, as from load_cases"
        )
        mend = "one part, such as parts.train" if isinstance(cases, Split) else mend
        raise DataError(f"to_examples takes cases, and got {shown(cast('Any', cases))}; give it {mend}")
    return [_example(case) for case in cases]


def from_examples(examples: Iterable[dspy.Example]) -> list[Case]:
    """Turn DSPy examples into cases; the id is the position, counted from 1.

    Args:
        examples: Each with its inputs set (`with_inputs`).

    Returns:
        One case for each example, in order.

    Raises:
        DataError: An example has no inputs set.

    Example:
        >>> import dspy
        >>> from_examples([dspy.Example(text="hi", label="greeting").with_inputs("text")])
        [Case(id='1', input={'text': 'hi'}, expected={'label': 'greeting'})]
    """
    if not isinstance(examples, str | os.PathLike):
        examples = list(examples)
    check_examples(cast("Any", examples), expected=False)
    return [Case(str(number), *input_and_labels(example)) for number, example in enumerate(examples, 1)]


def check_examples(examples: Sequence[dspy.Example], program: Any = None, *, expected: bool = True) -> None:
    """Find what is wrong with a data set before anything is paid.

    DSPy does not say: without `with_inputs`, or with inputs that a module's `forward` refuses,
    `Evaluate` and `dspy.GEPA` give 0.0 without asking the metric; `dspy.Predict` asks the model
    without the field that is missing.

    Args:
        examples: The data set.
        program: A module or function, whose inputs are compared with the examples'; `None`: they are
            not. What a program of your own takes as `**inputs` cannot be known.
        expected: Whether each example must have a field that is no input.

    Raises:
        DataError: The data set is empty, an item is no `dspy.Example`, `with_inputs` is missing or
            names a field that is not there, the program takes other inputs, or there is nothing to
            expect. Names the first example of each fault and counts the others.

    Example:
        >>> import dspy
        >>> check_examples([dspy.Example(question="2 + 2?", answer="4")])
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DataError: 1 example cannot be used.
        - example 1 has no inputs set; call .with_inputs("question", ...) on it (1 such example)
    """
    if isinstance(program, str | type):
        raise DataError(f"program={shown(program)} is no program; give a module, such as dspy.Predict(...)")
    if isinstance(examples, str | os.PathLike):
        call = how_to_load(examples)
        raise DataError(f"{shown(cast('Any', examples))} is no list of examples; give to_examples({call})")
    if not len(examples):
        raise DataError("the data set is empty; there is nothing to evaluate or learn from")
    faults: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for number, example in enumerate(examples, 1):
        found = _fault(example, program, expected)
        if found is not None:
            kind, text = found
            faults.setdefault(kind, []).append(number)
            texts.setdefault(kind, text)
    if faults:
        bad = sum(len(numbers) for numbers in faults.values())
        lines = [
            f"- example {numbers[0]} {texts[kind]} ({_counted(len(numbers), 'such example')})"
            for kind, numbers in faults.items()
        ]
        raise DataError("\n".join([f"{_counted(bad, 'example')} cannot be used.", *lines]))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _fault(example: Any, program: Any, expected: bool) -> tuple[str, str] | None:
    if not isinstance(example, dspy.Example):
        return "type", f"is {shown(example)}, not a dspy.Example; to_examples makes them from cases"
    fields, keys = fields_of(example), input_keys(example)
    if keys is None:
        first = f'"{next(iter(fields))}", ' if fields else ""
        return "inputs", f"has no inputs set; call .with_inputs({first}...) on it"
    absent = sorted(key for key in keys if key not in fields)
    if absent:
        return "absent", f"names {absent} in with_inputs, but its fields are {list(fields)}"
    if not keys:
        return "none", f"has no inputs: with_inputs() was called without names; its fields are {list(fields)}"
    if program is not None:
        wanted, optional, takes_any = _program_inputs(program)
        missing = [name for name in wanted if name not in keys]
        if missing:
            return "missing", f"lacks the program's inputs {missing}; its inputs are {sorted(keys)}"
        unknown = sorted(key for key in keys if key not in wanted and key not in optional)
        if unknown and not takes_any:
            takes = [*wanted, *optional]
            return "unknown", f"has the inputs {unknown}, which the program does not take; it takes {takes}"
    taken = sorted(keys.intersection(_KEPT_BY_DSPY))
    if taken or (_is_dspys_own(program) and (taken := sorted(keys.intersection(_TAKEN_BY_PREDICT)))):
        return "taken", f"has inputs named {taken}, which DSPy keeps for itself; rename them"
    if expected and input_and_labels(example)[1] is None:
        return "labels", "has nothing but inputs, so the metric gets expected=None (expected=False allows it)"
    return None


def _program_inputs(program: Any) -> tuple[list[str], list[str], bool]:
    """Give the names that a program needs, those it may get, and whether it takes any other."""
    dspys_own = _is_dspys_own(program)
    own_call = isinstance(program, dspy.Module) and type(program).__call__ is not dspy.Module.__call__
    forward = _forward(program)
    if forward is None or (own_call and not dspys_own):
        return [], [], True
    parameters = inspect.signature(forward).parameters.values()
    named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    # `MultiChainComparison` names what it makes the signature's other fields of.
    if dspys_own and len(program.predictors()) == 1 and not named:
        fields = cast("Any", program).predictors()[0].signature.input_fields
        wanted = [name for name, field in fields.items() if field.is_required() and not _allows_none(field)]
        return wanted, [name for name in fields if name not in wanted], False
    wanted = [item.name for item in named if item.default is item.empty]
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    return wanted, [item.name for item in named if item.name not in wanted], takes_any


def _is_dspys_own(program: Any) -> bool:
    return isinstance(program, dspy.Module) and type(program).__module__.startswith("dspy.")


def _allows_none(field: Any) -> bool:
    return field.annotation is None or type(None) in get_args(field.annotation)


def _forward(program: Any) -> Any:
    if not isinstance(program, dspy.Module):
        return program if callable(program) else None
    try:
        # Past the warning that `Module` gives where `forward` is read (dspy 3.4.1).
        return object.__getattribute__(program, "forward")
    except AttributeError:
        return None


def _example(case: Any) -> dspy.Example:
    if not isinstance(case, Case):
        call = how_to_load(case) if isinstance(case, Mapping) else "load_cases"
        raise DataError(
            f"to_examples takes cases, and got {shown(case)} among them; {call} makes them of rows"
        )
    if not isinstance(case.input, Mapping) or not isinstance(case.expected, Mapping | None):  # pyright: ignore
        raise DataError(
            f"case {case.id!r}: input and expected are dicts of fields, and got {shown(case.input)} and "
            f"{shown(case.expected)}; write them as Case(id, {{'question': ...}}, {{'answer': ...}})"
        )
    labels = case.expected or {}
    both = [name for name in case.input if name in labels]
    if both:
        raise DataError(
            f"case {case.id!r}: {both[0]!r} is both an input and an expected field, and a dspy.Example "
            "holds each name once; rename one of them"
        )
    for name in (*case.input, *labels):
        if name in _KEPT_BY_DSPY or name.startswith("dspy_"):
            raise DataError(f"case {case.id!r}: DSPy keeps the name {name!r} for itself; rename the field")
    return dspy.Example({**case.input, **labels}).with_inputs(*case.input)
