"""Cases for GEPA: what is read of each, and a data set whose ids tell what a case holds.

Built around gepa 0.1.4.
"""

import hashlib
import logging
import pickle
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from .cases import Case, Split, how_to_load
from .errors import DataError
from .example_fields import inputs_and_labels
from .gepa_values import is_mapping
from .loaded import is_dspys
from .memo import content_key
from .score import clean_text, shown

__all__ = ["GepaDataset", "as_gepa_dataset", "fault_of_cases", "input_and_expected"]

_log = logging.getLogger("skynet_adapters")


def as_gepa_dataset(cases: Iterable[Any]) -> "GepaDataset":
    """Make a data set for `gepa.optimize` whose cases GEPA's cache cannot mix up.

    With `cache_evaluation=True` gepa 0.1.4 takes the third case of the train set for the third of the
    validation set, since both have the number 2. Here ids tell what a case holds, the same in every
    process, so that a run can be resumed. A case that holds what cannot even be pickled, such as a lock,
    gets an id that no other data set has, with a warning.

    Args:
        cases: `Case`s, dicts `{"input": {...}, "expected": {...}}`, `dspy.Example`s, or such a data set,
            which is taken as it is.

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
        if isinstance(given, GepaDataset):
            self._cases = dict(given._cases)
            return
        fault = fault_of_cases(given)
        if fault is not None:
            raise DataError(fault)
        unread: list[str] = []
        for number, case in enumerate(cases):
            try:
                parts = input_and_expected(case)
            except DataError as error:
                raise DataError(f"case {number + 1}: {error}") from None
            key = content_key(*parts)
            if key is None:
                key = _pickled(parts, f"case {number + 1}", unread)
            digest = hashlib.blake2b(key, digest_size=8).hexdigest()
            self._cases[f"{number:05}-{digest}"] = case
        if unread:
            _log.warning(
                "%d of %d cases hold what cannot be compared (%s); their ids are new each time, so a run "
                "over them cannot be resumed; put plain data into the cases and open the rest in `run`",
                *(len(unread), len(self._cases), unread[0]),
            )
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


def _pickled(parts: object, name: str, unread: list[str]) -> bytes:
    """Give what tells the content of objects that have no content key, such as Pillow's images.

    An id of the user's would not do: each data set counts its own from 1.
    """
    try:
        return pickle.dumps(parts, protocol=4)
    except Exception as error:
        unread.append(f"{name}: {type(error).__name__}: {clean_text(str(error), 200)}")
        return uuid.uuid4().bytes


def fault_of_cases(cases: Any) -> str | None:
    """Tell why something is no list of cases, and how to make one of it; `None` where it may be one.

    Example:
        >>> fault_of_cases("cases.csv")
        "'cases.csv' (str) is no list of cases; pass load_cases('cases.csv', input=..., expected=...)"
    """
    if isinstance(cases, Split):
        return "a Split is no list of cases, but three; pass its train, and its val as valset"
    call = how_to_load(cases)
    is_listed = isinstance(cases, Iterable) and not isinstance(cases, str | Mapping)
    if is_listed and not call:
        return None
    if isinstance(cases, Mapping):  # a case or a row that is alone
        call = "a list"
    what = "a DataFrame" if is_listed else shown(cast("object", cases))
    return f"{what} is no list of cases{f'; pass {call}' if call else ''}"


def input_and_expected(case: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Give a case's input and expected fields.

    Args:
        case: A `Case`, a dict `{"input": {...}, "expected": {...}}` or a `dspy.Example`.

    Returns:
        The fields; `None` for `expected` where there is none.

    Raises:
        DataError: It is none of these, its parts are no dicts, or the example has no inputs set.

    Example:
        >>> input_and_expected({"input": {"text": "hi"}})
        ({'text': 'hi'}, None)
    """
    if is_dspys(case, "Example") and not is_dspys(case, "Prediction"):
        return _example_parts(case)
    input: Any
    expected: Any
    if isinstance(case, Case):
        input, expected = case.input, case.expected
    else:
        input, expected = (case.get("input"), case.get("expected")) if is_mapping(case) else (None, None)
    if not is_mapping(input):
        call = how_to_load(case) if is_mapping(case) else ""
        raise DataError(
            f'{shown(case)} is no case; it must be a Case, a dict {{"input": {{...}}, "expected": {{...}}}} '
            "with a dict of fields as input, or a dspy.Example"
            + (f". Of rows of columns {call} makes cases" if call else "")
        )
    if expected is not None and not is_mapping(expected):
        raise DataError(
            f"{shown(case)} expects {shown(expected)}; what is expected must be a dict of fields such as "
            '{"answer": ...}, or None'
        )
    return input, expected


def _example_parts(example: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    fields: dict[str, Any] = example._store
    keys: set[str] | None = example._input_keys
    if keys is None:
        raise DataError(
            f"an example with the fields {list(fields)} has no inputs set; call .with_inputs(...) on it"
        )
    return inputs_and_labels(fields, keys)
