"""Cases for GEPA: what is read of each, and a data set whose ids tell what a case holds.

Built around gepa 0.1.4.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from .cases import Case
from .errors import DataError
from .gepa_values import is_dspys, is_mapping, repr_of
from .memo import content_key
from .score import shown

__all__ = ["GepaDataset", "as_gepa_dataset", "input_and_expected"]


def as_gepa_dataset(cases: Iterable[Any]) -> "GepaDataset":
    """Make a data set for `gepa.optimize` whose cases GEPA's cache cannot mix up.

    With `cache_evaluation=True` gepa 0.1.4 takes the third case of the train set for the third of the
    validation set, since both have the number 2. Here ids tell what a case holds, the same in every
    process, so that a run can be resumed.

    Args:
        cases: `Case`s, dicts `{"input": {...}, "expected": {...}}` or `dspy.Example`s.

    Returns:
        A data set for `trainset=` or `valset=`, in the order of the cases.

    Raises:
        DataError: There is no case, or one is of another shape; names its place.

    Example:
        >>> train = as_gepa_dataset([Case("1", {"text": "hi"}), Case("2", {"text": "yo"})])
        >>> val = as_gepa_dataset([Case("3", {"text": "hey"}), Case("2", {"text": "yo"})])
        >>> [a == b for a, b in zip(train.all_ids(), val.all_ids())]
        [False, True]
    """
    return GepaDataset(cases)


class GepaDataset:
    """What `as_gepa_dataset` returns: a data loader of GEPA, with an id for each case."""

    def __init__(self, cases: Iterable[Any]) -> None:
        self._cases: dict[str, Any] = {}
        given: Any = cases
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise DataError(f"{shown(cast('object', given))} is no list of cases")
        for number, case in enumerate(cases):
            try:
                key = content_key(*input_and_expected(case))
            except DataError as error:
                raise DataError(f"case {number + 1}: {error}") from None
            # Where there is no content that could be compared, an id that the user gave has to do.
            said = case.id if isinstance(case, Case) else repr_of(case)
            digest = hashlib.blake2b(key or said.encode("utf-8", "replace"), digest_size=8).hexdigest()
            self._cases[f"{number:05}-{digest}"] = case
        if not self._cases:
            raise DataError("the data set is empty; there is nothing to evaluate or learn from")

    def __len__(self) -> int:
        return len(self._cases)

    def __repr__(self) -> str:
        return f"<GepaDataset of {len(self)} cases>"

    def all_ids(self) -> list[str]:
        """Give the ids, in the order of the cases; called by GEPA."""
        return list(self._cases)

    def fetch(self, ids: Sequence[str]) -> list[Any]:
        """Give the cases with these ids, in order; called by GEPA."""
        return [self._cases[id] for id in ids]


def input_and_expected(case: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Give a case's input and expected fields.

    Args:
        case: A `Case`, a dict `{"input": {...}, "expected": {...}}` or a `dspy.Example`.

    Returns:
        The fields; `None` for `expected` where there is none.

    Raises:
        DataError: It is none of these, or the example has no inputs set.

    Example:
        >>> input_and_expected({"input": {"text": "hi"}})
        ({'text': 'hi'}, None)
    """
    if isinstance(case, Case):
        return case.input, case.expected
    if is_dspys(case, "Example"):
        return _example_parts(case)
    parts: Mapping[str, Any] = case if is_mapping(case) else {}
    if not is_mapping(parts.get("input")):
        raise DataError(
            f'{shown(case)} is no case; it must be a Case, a dict {{"input": {{...}}, "expected": {{...}}}} '
            "with a dict of fields as input, or a dspy.Example"
        )
    return parts["input"], parts.get("expected")


def _example_parts(example: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    fields: dict[str, Any] = example._store
    keys: set[str] | None = example._input_keys
    if keys is None:
        raise DataError(
            f"an example with the fields {list(fields)} has no inputs set; call .with_inputs(...) on it"
        )
    labels = {name: value for name, value in fields.items() if name not in keys and name[:5] != "dspy_"}
    return {name: value for name, value in fields.items() if name in keys}, labels or None
