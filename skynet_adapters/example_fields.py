"""Which fields of a DSPy example are inputs and which are labels; for gepa's part too, so without DSPy.

Written for dspy 3.4.1.
"""

from collections.abc import Collection, Mapping
from typing import Any

__all__ = ["inputs_and_labels"]


def inputs_and_labels(
    fields: Mapping[str, Any], keys: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Part an example's fields as `inputs()` and `labels()` do, without those that DSPy notes for itself.

    Args:
        fields: All of them, an example's `_store`.
        keys: The names of the inputs, its `_input_keys`.

    Returns:
        The inputs, and the labels; `None` where there are none.

    Example:
        >>> inputs_and_labels({"question": "2 + 2?", "answer": "4", "dspy_uuid": "7"}, {"question"})
        ({'question': '2 + 2?'}, {'answer': '4'})
    """
    inputs: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    for name, value in fields.items():
        if name in keys:
            inputs[name] = value
        elif name[:5] != "dspy_":
            labels[name] = value
    return inputs, labels or None
