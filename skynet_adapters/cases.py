"""Cases: reading data sets, mapping their columns, and splitting them.

A `Case` is what a metric is called with: an id, the input's fields and, where there is one, the
expected value's fields. `load_cases` makes cases of files, lists, DataFrames and data sets; `split`
cuts any list into train, validation and test parts.

Every error of this module is a `DataError` that begins with the place, such as `cases.jsonl, line 3`.
"""

import csv
import difflib
import functools
import io
import itertools
import json
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

from .errors import DataError
from .score import shown

__all__ = ["Case", "Split", "how_to_load", "load_cases", "split"]

_T = TypeVar("_T")

# What `input=` and `expected=` take: a column, some columns, or {field: column}.
_Columns = str | Sequence[str] | Mapping[str, str]

_NATIVE_FORM = '{"id": "1", "input": {"text": "..."}, "expected": {"label": "..."}}'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PROMPT_FLOW_COLUMN = re.compile(r"\$\{data\.([^{}]+)\}")
# Only to make the call that an error shows a likely one; nothing is ever mapped by these names.
_LIKELY_EXPECTED = ("expected", "label", "labels", "category", "answer", "target", "output", "intent")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: what goes in and, where it is known, what should come out.

    Attributes:
        id: Text that is unique within its data set.
        input: The input's fields by name.
        expected: The expected value's fields by name; `None` when the case has none.

    Example:
        >>> case = Case("7", {"text": "My card was charged twice."}, {"label": "billing"})
        >>> case.input["text"]
        'My card was charged twice.'
    """

    id: str
    input: dict[str, Any]
    expected: dict[str, Any] | None = None


def load_cases(
    source: str | os.PathLike[str] | Iterable[Any],
    *,
    input: _Columns | None = None,
    expected: _Columns | None = None,
    id: str | None = None,
) -> list[Case]:
    """Read cases from a file, a list of dicts, a DataFrame or a Hugging Face data set.

    Without a mapping each record has the native form `{"id": ..., "input": {...}, "expected": {...}}`.
    `id` may be left out (the record's position, counted from 1, takes its place) and so may
    `expected` (then it is `None`). Other keys are not read.

    With a mapping the named columns become the fields of `input` and `expected`. A part that is not
    mapped is still read from the record's own key of that name, and from nothing else: with
    `input="text"` alone, `expected` is the record's `"expected"` object, or `None` where there is no
    such key. No column is guessed.

    Values stay what the source holds. The cells of a CSV file are always text (`"1"`, not `1`; an
    empty cell is `""`), and the class labels of a Hugging Face data set are the integers it stores. In
    lists, DataFrames and data sets, missing values (`NaN`, `NaT`, `pandas.NA`) become `None` and stay
    in their field, and numpy scalars become Python values; arrays and other objects pass as they are.

    Args:
        source: A path to a `.jsonl`, `.json` (a list of records, or `{"cases": [...]}`) or `.csv`
            file, in UTF-8; or an iterable of dicts; or a pandas DataFrame, whose index is not read; or
            one split of a Hugging Face data set; or an iterable of `Case`, which are passed through.
        input: The columns of the input: a name, a list of names, or `{field: column}`. A column is
            written `name` or, as in prompt flow, `${data.name}`. `answer.text` reads the field `text`
            within the column `answer` unless a column has the whole dotted name; where `answer` is
            null, so is the field. In a name or a list the field is called as the column, dots
            included. `None`: the record's own `"input"`.
        expected: The columns of the expected value, written as for `input`; an empty list says that
            there is none. `None`: the record's own `"expected"`.
        id: The column of the ids; numbers become text. `None`: the record's own `"id"`, else its
            position.

    Returns:
        The cases, in the order of the source; never an empty list.

    Raises:
        DataError: The source cannot be read, holds no record or a broken one, a column is missing, an
            id stands twice, or the mapping is wrong; the message names the place and the mend.

    Example:
        >>> rows = [{"text": "I was charged twice.", "intent": "billing"}]
        >>> load_cases(rows, input="text", expected={"label": "${data.intent}"})
        [Case(id='1', input={'text': 'I was charged twice.'}, expected={'label': 'billing'})]
    """
    mapping = _Mapping(
        _field_columns("input", input),
        _field_columns("expected", expected),
        None if id is None else _column_name("id", id),
    )
    _check_mapping(mapping)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return _build_cases(_Origin(str(path), repr(str(path))), _read_file(path), mapping)
    if _is_data_frame(source):
        return _build_cases(_Origin("the DataFrame", "df"), _data_frame_records(source), mapping)
    items = _items(source)
    if any(isinstance(item, Case) for item in items):
        return _passed_cases(items, mapping)
    return _build_cases(_Origin("the given records", "records"), _item_records(items), mapping)


def how_to_load(given: Any) -> str:
    """Write the call that makes cases of what was given in their place.

    Args:
        given: Anything; a path, a row of columns, a DataFrame.

    Returns:
        The call, to be shown in a message; empty where `load_cases` could not read it either.

    Example:
        >>> how_to_load({"text": "hi", "label": "greeting"})
        "load_cases(rows, input='text', expected='label')"
        >>> how_to_load("cases.csv")
        "load_cases('cases.csv', input=..., expected=...)"
    """
    if isinstance(given, str | os.PathLike):
        return f"load_cases({str(cast('object', given))!r}, input=..., expected=...)"
    if _is_data_frame(given):
        fields, argument = dict.fromkeys(given.columns), "df"
    elif isinstance(given, Mapping) and given:
        fields, argument = dict(cast("Mapping[Any, Any]", given)), "rows"
    else:
        return ""
    if not fields or not all(isinstance(name, str) for name in fields):
        return ""
    return _example_call(_Record("", "", fields), _Origin("", argument), _Mapping(None, None, None))


class Split(NamedTuple, Generic[_T]):
    """The three parts of a data set.

    Attributes:
        train: What an optimiser learns from.
        val: What it chooses between candidates by.
        test: What nobody looks at until the end.

    Example:
        >>> Split(train=[1, 2, 3], val=[4], test=[5]).val
        [4]
    """

    train: list[_T]
    val: list[_T]
    test: list[_T]


def split(
    cases: Iterable[_T],
    *,
    train: float = 0.6,
    val: float = 0.2,
    test: float = 0.2,
    seed: int = 0,
    by: str | Callable[[_T], Hashable] | None = None,
) -> Split[_T]:
    """Shuffle cases and cut them into train, validation and test parts.

    The same cases in the same order with the same seed give the same parts. Every case lands in
    exactly one part; the sizes are the shares' largest remainders.

    With `by`, each part gets of every label at least its share, rounded down to whole cases. What is
    left over of the labels is spread evenly, so that the sizes are the same as without `by`. A label
    with only one case is in only one part.

    Args:
        cases: `Case`, dicts, `dspy.Example` or anything else; not changed.
        train: Share of the train part, 0 to 1. The three shares must sum to 1.
        val: Share of the validation part; 0 for none.
        test: Share of the test part; 0 for none.
        seed: Seed of the shuffle.
        by: What to stratify by: a function of a case, or a field's name, which is looked up in
            `expected` of a `Case` and as `case[name]` in everything else. `None`: not stratified.

    Returns:
        The three parts, each in shuffled order.

    Raises:
        DataError: The shares do not fit, a part with a share above 0 would be empty, or a case has no
            label to stratify by.

    Example:
        >>> parts = split(range(10), seed=1)
        >>> [len(part) for part in parts]
        [6, 2, 2]
        >>> sorted(parts.train + parts.val + parts.test) == list(range(10))
        True
    """
    if not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        # random.Random(None) would shuffle differently each time and say nothing.
        raise DataError(f"split: seed={seed!r} is not a whole number. Give one, such as seed=0.")
    shares = _check_shares({"train": train, "val": val, "test": test})
    if isinstance(cases, str | os.PathLike):
        raise DataError(
            f"split: {str(cases)!r} is a path. Give the cases in it: split(load_cases({str(cases)!r}))."
        )
    everything = list(cases)
    sizes = _part_sizes(len(everything), shares)
    labels = _labels(everything, by)

    chance = random.Random(seed)
    order = list(range(len(everything)))
    chance.shuffle(order)
    groups: dict[Hashable, list[int]] = {}
    for index in order:
        groups.setdefault(labels[index], []).append(index)

    parts: dict[str, list[int]] = {name: [] for name in shares}
    leftovers: list[int] = []
    for members in groups.values():
        unused = iter(members)
        for name, share in shares.items():
            parts[name].extend(itertools.islice(unused, math.floor(share * len(members))))
        leftovers.extend(unused)
    # The whole shares of the groups never add up to more than a part's size, so none has negative room.
    room = {name: sizes[name] - len(part) for name, part in parts.items()}
    for index, name in zip(leftovers, _evenly(room), strict=True):
        parts[name].append(index)
    for part in parts.values():
        chance.shuffle(part)  # else labels stand in blocks, and so would an optimiser's minibatches
    return Split(**{name: [everything[index] for index in part] for name, part in parts.items()})


# --- Records: what every source is read into -----------------------------------------------------


class _Record(NamedTuple):
    """One record and where it stands."""

    place: str
    columns_place: str  # where its column names stand: a CSV file has them in its header
    fields: Any  # by name, once `_check_record` has seen it


class _Origin(NamedTuple):
    """A source's name in messages, and how it is written in the calls that messages show."""

    name: str
    argument: str


class _Mapping(NamedTuple):
    """The columns of each field; `None` for a part that is not mapped."""

    input: dict[str, str] | None
    expected: dict[str, str] | None
    id: str | None

    @property
    def is_empty(self) -> bool:
        return self.input is None and self.expected is None and self.id is None


def _build_cases(origin: _Origin, records: Iterable[_Record], mapping: _Mapping) -> list[Case]:
    cases: list[Case] = []
    ids = _SeenIds()
    for position, record in enumerate(records, 1):
        _check_record(record)
        name = _own_id(record, mapping.id)
        ids.add(name or str(position), record.place, by_position=name is None)
        fields = _input_fields(record, origin, mapping)
        cases.append(Case(name or str(position), fields, _expected_fields(record, origin, mapping)))
    if not cases:
        raise DataError(
            f"{origin.name}: there is no record. Give at least one, such as {_NATIVE_FORM}, or check that "
            "this is the source you mean."
        )
    return cases


def _passed_cases(items: list[Any], mapping: _Mapping) -> list[Case]:
    if not mapping.is_empty:
        raise DataError(
            "load_cases: input=, expected= and id= map the columns of records, but cases were given. "
            "Leave the mapping out, or give the records that the cases were made of."
        )
    ids = _SeenIds()
    for position, item in enumerate(items, 1):
        place = f"case {position}"
        if not isinstance(item, Case):
            raise DataError(
                f"{place}: this is {_described(item)}, but there are `Case` objects beside it. "
                "Give either cases or records."
            )
        if not isinstance(item.id, str) or not item.id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"{place}: its id is {_shown(item.id)}. Make it a text that is not empty.")
        ids.add(item.id, place)
    return cast("list[Case]", items)


class _SeenIds:
    """The ids so far and where each stands, to refuse the second one."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def add(self, name: str, place: str, *, by_position: bool = False) -> None:
        first = self._places.get(name)
        note = " (its position, since the record has none)" if by_position else ""
        if first is not None:
            raise DataError(
                f"{place}: the id {name!r}{note} is already the id of {first}. "
                "Give every case an id of its own, or name a column that has one for each: id=..."
            )
        self._places[name] = place + note


def _check_record(record: _Record) -> None:
    fields = record.fields
    if not isinstance(fields, Mapping):
        raise DataError(
            f"{record.place}: a record has to be an object (a dict) of fields, not {_described(fields)}. "
            f"Write it as {_NATIVE_FORM}, or as a flat record and map its columns."
        )
    _check_names(record.place, cast("Mapping[Any, Any]", fields))


def _check_names(place: str, fields: Mapping[Any, Any]) -> None:
    for name in fields:
        if not isinstance(name, str):
            raise DataError(
                f"{place}: the name {_shown(name)} is not text. Rename it, for example to "
                f"{_as_text(name)!r}; metrics and programs ask for fields by text."
            )


def _own_id(record: _Record, column: str | None) -> str | None:
    """Return the record's id as text, or `None` when it has none and its position has to do."""
    value = record.fields.get("id") if column is None else _look_up(record, column, "id")
    if value is None and column is None:
        return None
    # bool is an int for Python, but nobody numbers cases True and False.
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal) or value == "":
        # An array cannot be asked whether it is one of two values.
        is_empty = value is None or isinstance(value, str)
        wrong = "empty" if is_empty else f"{_described(value)}, not a text or a number"
        raise DataError(
            f"{record.place}: the id in {column or 'id'!r} is {wrong}. "
            "Mend it, or name a column that has an id in every record: id=..."
        )
    try:
        return str(value)
    except ValueError as error:  # Python writes no number of more than 4,300 digits
        raise DataError(
            f"{record.place}: the id in {column or 'id'!r} is too long a number: {error}"
        ) from None


def _input_fields(record: _Record, origin: _Origin, mapping: _Mapping) -> dict[str, Any]:
    if mapping.input is not None:
        return {field: _look_up(record, column, "input") for field, column in mapping.input.items()}
    if "input" not in record.fields:
        raise DataError(
            f'{record.columns_place}: there is no "input", so these are columns, and they need a mapping. '
            f"Columns: {_listed(record.fields)}. Say which are what, for example: "
            f"{_example_call(record, origin, mapping)}"
        )
    if not isinstance(record.fields["input"], Mapping):
        raise DataError(
            f'{record.place}: "input" has to be an object of fields, not '
            f"{_described(record.fields['input'])}. To take columns as fields: "
            f"{_example_call(record, origin, mapping)}"
        )
    return _native_fields(record, "input")


def _expected_fields(record: _Record, origin: _Origin, mapping: _Mapping) -> dict[str, Any] | None:
    if mapping.expected is not None:
        return {
            field: _look_up(record, column, "expected") for field, column in mapping.expected.items()
        } or None
    value = record.fields.get("expected")
    if value is None:
        if mapping.input is None and "expected" not in record.fields:
            _refuse_misspelt_expected(record, origin)
        return None
    if not isinstance(value, Mapping):
        given = "" if mapping.input is None else "input=..., "
        raise DataError(
            f'{record.place}: "expected" has to be an object of fields or null, not {_described(value)}. '
            f"To take it as a field, name the field that the metric asks for: "
            f"load_cases({origin.argument}, {given}expected={{'label': 'expected'}}); "
            "expected=[] leaves it out."
        )
    return _native_fields(record, "expected")


def _native_fields(record: _Record, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = dict(record.fields[name])
    _check_names(f"{record.place}, {name}", fields)
    return fields


def _refuse_misspelt_expected(record: _Record, origin: _Origin) -> None:
    """Refuse a record whose `"expected"` has another spelling.

    It would load as a case without expected value, and a whole run would be judged without one.
    """
    for name in record.fields:
        folded = name.casefold()
        if folded.startswith("expect") or difflib.get_close_matches(folded, ["expected"], cutoff=0.85):
            raise DataError(
                f'{record.place}: there is no "expected", but there is {name!r}. Rename it, or map it: '
                f"load_cases({origin.argument}, expected={{'label': {name!r}}}); expected=[] leaves it out."
            )


# --- The column mapping --------------------------------------------------------------------------


def _field_columns(option: str, given: Any) -> dict[str, str] | None:
    """Bring every way to write a mapping to {field: column}."""
    if given is None:
        return None
    if isinstance(given, str):
        column = _column_name(option, given)
        return {column: column}
    if isinstance(given, Mapping):
        pairs = list(cast("Mapping[Any, Any]", given).items())
    elif isinstance(given, list | tuple):
        names = [_column_name(option, column) for column in cast("Sequence[Any]", given)]
        pairs: list[tuple[Any, Any]] = list(zip(names, names, strict=True))
    else:
        raise DataError(
            f"load_cases: {option}= is {_described(given)}. Give a column name, a list of column names "
            "or a dict {field: column}."
        )
    for field, _ in pairs:
        if not isinstance(field, str) or not field:
            raise DataError(
                f"load_cases: {option}= names the field {_shown(field)}. Give a text that is not empty."
            )
    for field in _repeated(field for field, _ in pairs):
        raise DataError(
            f"load_cases: {option}= names the field {field!r} twice. Leave one out, or give the "
            f"fields different names: {option}={{field: column, ...}}"
        )
    return {field: _column_name(option, column) for field, column in pairs}


def _column_name(option: str, given: Any) -> str:
    """Return the column of `name` or `${data.name}`."""
    if not isinstance(given, str) or not given:
        raise DataError(
            f"load_cases: {option}= names the column {_shown(given)}. Give a text such as 'question' "
            "or '${data.question}'."
        )
    if "${" not in given:
        return given
    match = _PROMPT_FLOW_COLUMN.fullmatch(given)
    if match is None:
        raise DataError(
            f"load_cases: {option}= has {given!r}, which names no data column. Write ${{data.COLUMN}} or "
            "only the column's name; a run's output is not part of a case, it reaches the metric as `output`."
        )
    return match[1]


def _check_mapping(mapping: _Mapping) -> None:
    if mapping.input is not None and not mapping.input:
        raise DataError(
            "load_cases: input= names no column, so every case would be empty. Name at least one, or "
            'leave input= out when the records have an "input" object.'
        )
    both = [field for field in mapping.input or {} if field in (mapping.expected or {})]
    if both:
        # Inputs and expected values share one namespace in a dspy.Example: one would replace the other.
        raise DataError(
            f"load_cases: the field {both[0]!r} is named in input= and in expected=. Leave it out of one, "
            f"or rename it there, for example expected={{'expected_{both[0]}': "
            f"{(mapping.expected or {})[both[0]]!r}}}."
        )


def _look_up(record: _Record, column: str, option: str) -> Any:
    """Return a column's value; a dotted name is a path unless a column is called just so."""
    if column in record.fields:
        return record.fields[column]
    first, *steps = column.split(".")
    if first not in record.fields or not steps:
        _refuse_missing(record.columns_place, f"no column {column!r}", column, record.fields, option)
    value, path = record.fields[first], first
    for step in steps:
        if value is None:  # what lies within a missing value is missing too
            return None
        if not isinstance(value, Mapping):
            raise DataError(
                f"{record.place}: {column!r} ({option}=) cannot be read, since {path!r} is "
                f"{_described(value)}, not an object. Map {path!r} itself, or mend the record."
            )
        fields = cast("Mapping[Any, Any]", value)
        if step not in fields:
            _refuse_missing(record.place, f"no field {step!r} within {path!r}", step, fields, option)
        value, path = fields[step], f"{path}.{step}"
    return value


def _refuse_missing(place: str, what: str, name: str, known: Iterable[Any], option: str) -> NoReturn:
    names = [str(other) for other in known]
    raise DataError(
        f"{place}: there is {what}, which {option}= asks for. {_did_you_mean(name, names)}"
        f"There is: {_listed(names)}. Correct {option}=, or add it to the data (null where it is unknown)."
    )


def _example_call(record: _Record, origin: _Origin, mapping: _Mapping) -> str:
    """Write a call with a likely mapping of the record's columns, for a message."""
    free: list[str] = [column for column in record.fields if column not in ("id", mapping.id)]
    if mapping.expected is not None:
        wanted = list(mapping.expected.values())
        shown = repr(wanted[0] if list(mapping.expected) == wanted[:1] else mapping.expected)
    else:
        likely = [column for column in free if column.casefold() in _LIKELY_EXPECTED]
        wanted = (likely or free[1:])[-1:]
        shown = repr(wanted[0]) if wanted else None
    inputs = [column for column in free if column not in wanted] or ["..."]
    call = f"load_cases({origin.argument}, input={(inputs if len(inputs) > 1 else inputs[0])!r}"
    call += f", expected={shown}" if shown is not None else ""
    call += f", id={mapping.id!r}" if mapping.id is not None else ""
    return call + ")"


# --- Files ---------------------------------------------------------------------------------------


def _read_file(path: Path) -> Iterator[_Record]:
    readers = {".jsonl": _jsonl_records, ".json": _json_records, ".csv": _csv_records}
    if os.path.isdir(path):  # unlike Path.is_dir() this never raises
        fitting = [name for name in _folder(path) if Path(name).suffix.lower() in readers]
        held = f"it has {_listed(fitting)}" if fitting else f"it has no file with {_listed(readers)}"
        raise DataError(f"{path}: this is a folder. Name one file in it; {held}.")
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: the suffix {path.suffix!r} is not one of {_listed(readers)}. Rename or convert "
            "the file, or read it yourself (pandas can) and give the DataFrame or a list of dicts."
        )
    return reader(path, _read_text(path))


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        _refuse_absent(path)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise DataError(
            f"{path}: the file cannot be read ({error}). Check its path and its rights."
        ) from error
    mark = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    try:
        return content[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = mark + error.start
        line = content.count(b"\n", 0, offset) + 1
        # Windows PowerShell and Excel's "Unicode Text" write UTF-16, which begins with one of these.
        encoding = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        raise DataError(
            f"{path}, line {line}: the file is not UTF-8: byte 0x{content[offset]:02x} at offset {offset}. "
            f"Save it as UTF-8, for example: iconv -f {encoding} -t UTF-8 {path.name} > utf8_{path.name}"
        ) from error


def _refuse_absent(path: Path) -> NoReturn:
    raise DataError(
        f"{path}: there is no such file in {path.parent.absolute()}. "
        f"{_did_you_mean(path.name, _folder(path.parent))}Check the path and the working directory."
    ) from None


def _folder(path: Path) -> list[str]:
    """Return what a folder holds, for a message; nothing when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _jsonl_records(path: Path, text: str) -> Iterator[_Record]:
    # Not splitlines(): it also splits at characters such as U+2028, which may stand inside JSON strings.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            content = _parse_json(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place}: this is not a JSON record: {_json_complaint(error)}. "
                f"Each line holds one whole object, such as {_NATIVE_FORM}; a file that is one JSON list "
                "is named .json."
            ) from error
        yield _Record(place, place, content)


def _json_records(path: Path, text: str) -> Iterator[_Record]:
    shape = f'a list of records, or {{"cases": [...]}}, with records such as {_NATIVE_FORM}'
    if not text.strip():
        return
    try:
        content = _parse_json(text)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(
            f"{path}{line}: this is not JSON: {_json_complaint(error)}. The file holds {shape}; "
            "a file with one record on each line is named .jsonl."
        ) from error
    records = cast("dict[str, Any]", content).get("cases") if isinstance(content, dict) else content
    if not isinstance(records, list):
        held = _described(cast("object", content))
        raise DataError(f"{path}: the file has to hold {shape}, not {held}. Bring it to that shape.")
    for number, record in enumerate(cast("list[Any]", records), 1):
        place = f"{path}, record {number}"
        yield _Record(place, place, record)


class _StrictJsonError(ValueError):
    """Python's parser accepts this, JSON does not, or the data would change in silence."""


def _parse_json(text: str) -> Any:
    return json.loads(
        text, parse_constant=_refuse_constant, parse_float=_finite_float, object_pairs_hook=_unique_names
    )


def _refuse_constant(name: str) -> NoReturn:
    raise _StrictJsonError(f"{name} is not a JSON value (write null for a missing value)")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _StrictJsonError(f"the number {text} is too large for a float (write it as text)")
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name in _repeated(name for name, _ in pairs):
        raise _StrictJsonError(f"the name {name!r} stands twice in one object (one value would be lost)")
    return dict(pairs)


def _json_complaint(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _csv_records(path: Path, text: str) -> Iterator[_Record]:
    # strict: without it an unclosed quote takes the rest of the file into one cell and says nothing.
    # newline="": line breaks inside quotes stay as they are.
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    header_place = ""
    while True:
        # line_num counts the lines read so far: where a row begins, not where its last quoted cell ends.
        place = f"{path}, line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise DataError(
                f"{place}: the row that begins here is not CSV: {error}. {_csv_mend(error)}"
            ) from error
        if row is None:
            return
        if not row:  # a blank line
            continue
        if header is None:
            header, header_place = _check_header(row, place), place
            continue
        _check_cells(row, header, place)
        yield _Record(place, header_place, dict(zip(header, row, strict=True)))


def _csv_mend(error: csv.Error) -> str:
    if "field limit" in str(error):
        return "Call csv.field_size_limit(10_000_000) first, or save the data as JSONL."
    return "Put a cell that holds commas, quotes or line breaks in quotes, and double the quotes within it."


def _check_header(header: list[str], place: str) -> list[str]:
    for position, name in enumerate(header, 1):
        if not name.strip():
            raise DataError(
                f"{place}: column {position} has no name. Name it in the header; when it is the index "
                "that DataFrame.to_csv wrote, write the file with index=False."
            )
    for name in _repeated(header):
        raise DataError(
            f"{place}: the column {name!r} stands twice in the header. Rename or remove one of them."
        )
    for separator in (";", "\t"):
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{place}: the header {_shown(header[0])} seems to be separated by {separator!r}. Save the "
                f"file with commas, or give pandas.read_csv(path, sep={separator!r}, dtype=str)."
            )
    return header


def _check_cells(row: list[str], header: list[str], place: str) -> None:
    if len(row) != len(header):
        many = len(row) > len(header)
        raise DataError(
            f"{place}: the row that begins here has {len(row)} cells, but the header has {len(header)} "
            f"({_listed(header)}). "
            + ("Put a cell that holds a comma in quotes." if many else "Add the cells that are missing.")
        )
    if not any(row):
        raise DataError(
            f"{place}: every cell of this row is empty (spreadsheets leave such rows behind). Delete it."
        )


# --- Values in memory ----------------------------------------------------------------------------


def _items(source: Any) -> list[Any]:
    if isinstance(source, Mapping):
        names = _listed([_as_text(name) for name in cast("Mapping[Any, Any]", source)])
        raise DataError(
            f"load_cases: one dict was given, with {names}. Give a list of records; of a data set with "
            'several splits give one, such as dataset["train"].'
        )
    if not isinstance(source, Iterable):
        raise DataError(
            f"load_cases: {_described(source)} cannot be read as cases. Give a path to a .jsonl, .json or "
            ".csv file, a list of dicts, a DataFrame or a Hugging Face data set."
        )
    return list(cast("Iterable[Any]", source))


def _item_records(items: Iterable[Any]) -> Iterator[_Record]:
    for number, item in enumerate(items, 1):
        place = f"record {number}"
        try:
            # A row of a data set may be some other Mapping than a dict, which reads its files only now.
            fields = dict(cast("Mapping[Any, Any]", item)) if isinstance(item, Mapping) else item
        except Exception as error:
            raise DataError(f"{place} cannot be read: {_shown(error)}. Mend it, or leave it out.") from error
        yield _Record(place, place, _plain_fields(fields, place))


def _is_data_frame(source: Any) -> bool:
    """Tell pandas' DataFrame by its surface, so that pandas is not imported (nor needed)."""
    return all(hasattr(source, name) for name in ("to_dict", "columns", "iloc"))


def _data_frame_records(frame: Any) -> Iterator[_Record]:
    for column in _repeated(frame.columns):  # to_dict would keep only one of them
        raise DataError(
            f"the DataFrame: the column {_shown(column)} stands twice. Rename or drop one of them."
        )
    for number, record in enumerate(frame.to_dict("records"), 1):
        place = f"row {number} of the DataFrame"
        yield _Record(place, "the DataFrame", _plain_fields(record, place))


def _plain_fields(fields: Any, place: str) -> Any:
    try:
        return _plain(fields)
    except RecursionError:
        raise DataError(f"{place} holds itself, or is nested too deeply. Make it plain data.") from None


def _plain(value: Any) -> Any:
    """Return a value with missing values as `None` and numpy scalars as Python values, also within.

    Only exact dicts and lists are entered: other containers belong to somebody and pass as they are.
    """
    kind = cast("type[object]", type(value))
    if kind is dict:
        return {name: _plain(item) for name, item in value.items()}
    if kind is list:
        return [_plain(item) for item in value]
    if kind.__module__.startswith("pandas.") and kind.__name__ in ("NAType", "NaTType"):
        return None  # by name: pandas is not imported here, and its NA refuses to be compared
    numpy_kind = _numpy_kind(value)
    if (kind is float or numpy_kind in ("f", "m", "M")) and value != value:  # so are NaN and numpy's NaT
        return None
    # Numbers and text only: .item() of a datetime64[ns] is an integer of nanoseconds.
    return value.item() if numpy_kind in ("b", "i", "u", "f", "c", "U") else value


def _numpy_kind(value: Any) -> str | None:
    """Return the dtype's letter of a numpy scalar; `None` for everything else, arrays included."""
    try:
        if getattr(value, "shape", None) != ():
            return None
        letter = getattr(getattr(value, "dtype", None), "kind", None)
    except Exception:  # an object of the user's own that raises when it is asked
        return None
    return letter if isinstance(letter, str) else None


# --- Splitting -----------------------------------------------------------------------------------


def _check_shares(given: Mapping[str, Any]) -> dict[str, Fraction]:
    """Return the shares as exact fractions that sum to exactly 1."""
    written = ", ".join(f"{name}={share!r}" for name, share in given.items())
    for name, share in given.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise DataError(f"split: {name}={share!r} is not a share from 0 to 1 ({written}). Correct it.")
    # The decimals as they were written: 0.1 is one tenth, and 10 cases of it are exactly 1.
    shares = {name: Fraction(repr(float(share))) for name, share in given.items()}
    total = sum(shares.values())
    if abs(total - 1) > Fraction(1, 10**9):
        raise DataError(
            f"split: {written} sum to {float(total)!r}, not to 1. Name all three, for example "
            "train=0.8, val=0.2, test=0."
        )
    return {name: share / total for name, share in shares.items()}


def _part_sizes(count: int, shares: Mapping[str, Fraction]) -> dict[str, int]:
    """Cut a count by largest remainder, so that every case has its part; the earlier part wins a tie."""
    if count == 0:
        raise DataError("split: there are no cases. Give at least one.")
    sizes = {name: math.floor(share * count) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: sizes[name] - shares[name] * count)
    for name in by_remainder[: count - sum(sizes.values())]:
        sizes[name] += 1
    for name, share in shares.items():
        if share and not sizes[name]:
            raise DataError(
                f"split: {name}={float(share):g} of {count} {'case' if count == 1 else 'cases'} is no case. "
                f"Give more cases ({math.ceil(1 / share)} are enough) or a larger share, or ask for none: "
                f"{name}=0."
            )
    return sizes


def _labels(cases: Sequence[Any], by: str | Callable[[Any], Hashable] | None) -> list[Hashable]:
    if by is None:
        return [None] * len(cases)
    if not callable(by) and not isinstance(by, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(
            f"split: by= is {_described(by)}. Give a field's name, or a function: by=lambda case: ..."
        )
    labels: list[Hashable] = []
    for position, case in enumerate(cases, 1):
        place = f"split: case {position}"
        label = _field_of(case, by, place) if isinstance(by, str) else by(case)
        try:
            hash(label)
        except TypeError:
            raise DataError(
                f"{place}: its label is {_described(label)}, which cannot be grouped. Give a function that "
                "makes text of it: by=lambda case: ..."
            ) from None
        labels.append(label)
    return labels


def _field_of(case: Any, name: str, place: str) -> Any:
    fields: Any = case.expected if isinstance(case, Case) else case
    if fields is None:
        raise DataError(
            f"{place} ({case.id!r}) has no expected value to take by={name!r} from. Add it, leave the case "
            "out, or give a function: by=lambda case: ..."
        )
    try:
        return fields[name]
    except (KeyError, TypeError, IndexError):
        known = list(map(str, fields.keys())) if hasattr(fields, "keys") else []
        there = f"There is: {_listed(known)}. " if known else f"It is {_described(fields)}. "
        raise DataError(
            f"{place} has no field {name!r}, which by= asks for. {_did_you_mean(name, known)}{there}"
            "Correct by=, or give a function: by=lambda case: ..."
        ) from None


def _evenly(room: Mapping[str, int]) -> Iterator[str]:
    """Yield each name as often as it has room, spread as evenly as whole numbers allow.

    The next place goes to the name that is furthest behind. That never gives a name more than its room.
    """
    total = sum(room.values())
    given = dict.fromkeys(room, 0)
    for step in range(1, total + 1):
        name = max(room, key=lambda name: step * room[name] - given[name] * total)
        given[name] += 1
        yield name


# --- Words for messages --------------------------------------------------------------------------

# A type is named in the words of data files here.
_shown = functools.partial(shown, with_type=False)


def _described(value: object) -> str:
    """Name a value in the words of data files."""
    if value is None:
        return "null"
    words: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "text", dict: "object"}
    return f"the {words.get(type(value), type(value).__name__)} {_shown(value)}"


def _as_text(name: object) -> str:
    try:
        return str(name)
    except Exception:  # of the user's own class
        return type(name).__name__


def _listed(names: Iterable[str], most: int = 20) -> str:
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - most} more" if len(quoted) > most else ""
    return ", ".join(quoted[:most]) + more


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a sentence with the nearest names, whatever their case, or nothing."""
    by_folded = {other.casefold().strip(): other for other in known}
    near = difflib.get_close_matches(name.casefold().strip(), by_folded, n=3)
    return f"Did you mean {' or '.join(repr(by_folded[folded]) for folded in near)}? " if near else ""


def _repeated(names: Iterable[Any]) -> list[Any]:
    return [name for name, count in Counter(names).items() if count > 1]
