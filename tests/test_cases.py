"""Cases: what can be read, what is refused and what the refusal says, and how cases are split."""

import copy
import csv
import io
import json
import math
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skynet_adapters.cases import Case, Split, load_cases, split
from skynet_adapters.errors import DataError

NATIVE = {"id": "a", "input": {"text": "hi"}, "expected": {"label": "x"}}
FLAT = [{"text": "one", "label": "x"}, {"text": "two", "label": "y"}]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return write_file


Write = Callable[[str, str | bytes], Path]


def refusal(source: Any, **mapping: Any) -> str:
    """Return the text of the DataError that loading this gives."""
    with pytest.raises(DataError) as caught:
        load_cases(source, **mapping)
    return str(caught.value)


def split_refusal(cases: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        split(cases, **options)
    return str(caught.value)


# --- Case ----------------------------------------------------------------------------------------


def test_a_case_cannot_be_reassigned_and_survives_pickle_and_deepcopy() -> None:
    case = Case("1", {"text": "hi"}, {"label": "x"})
    with pytest.raises(AttributeError):
        case.id = "2"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(case)) == case
    assert copy.deepcopy(case) == case
    assert Case("1", {}).expected is None


def test_reading_cases_imports_neither_pandas_nor_dspy() -> None:
    code = (
        "import sys; from skynet_adapters.cases import load_cases; load_cases([{'input': {}}]); "
        "print([name for name in ('pandas', 'numpy', 'dspy', 'datasets') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# --- The native form -----------------------------------------------------------------------------


def test_native_records_load_from_every_kind_of_source(write: Write) -> None:
    wanted = [Case("a", {"text": "hi"}, {"label": "x"})]
    sources: list[Any] = [
        write("c.jsonl", json.dumps(NATIVE)),
        str(write("upper.JSONL", json.dumps(NATIVE))),
        write("c.json", json.dumps([NATIVE])),
        write("wrapped.json", json.dumps({"cases": [NATIVE]})),
        [NATIVE],
        (record for record in [NATIVE]),
        [MappingProxyType(NATIVE)],
        [OrderedDict(NATIVE)],
        pd.DataFrame([NATIVE]),
    ]
    for source in sources:
        assert load_cases(source) == wanted


def test_a_record_without_id_or_expected_gets_its_position_and_none() -> None:
    assert load_cases([{"input": {"a": 1}}, {"id": None, "input": {}, "expected": None}]) == [
        Case("1", {"a": 1}, None),
        Case("2", {}, None),
    ]


def test_a_record_that_holds_itself_is_refused() -> None:
    record: dict[str, Any] = {"input": {"text": "hi"}}
    record["input"]["record"] = record
    with pytest.raises(DataError, match="record 2 holds itself, or is nested too deeply"):
        load_cases([{"input": {"text": "hi"}}, record])


def test_the_position_counts_records_not_lines(write: Write) -> None:
    path = write("c.jsonl", '\n{"input": {"a": 1}}\n \n\t\n{"input": {"a": 2}}\n\n')
    assert [case.id for case in load_cases(path)] == ["1", "2"]


@pytest.mark.parametrize(("given_id", "text"), [(7, "7"), ("07", "07"), (2.5, "2.5"), (np.int64(3), "3")])
def test_ids_that_are_numbers_become_text(given_id: Any, text: str) -> None:
    assert load_cases([{"id": given_id, "input": {}}])[0].id == text


@pytest.mark.parametrize("wrong", [True, ["a"], {"a": 1}])
def test_an_id_that_is_neither_text_nor_number_is_refused(wrong: Any) -> None:
    text = refusal([{"id": wrong, "input": {}}])
    assert text.startswith("record 1: the id in 'id' is the ")
    assert repr(wrong) in text
    assert "not a text or a number" in text
    assert "id=..." in text


def test_an_id_that_cannot_be_written_or_compared_is_refused() -> None:
    array = np.array([1, 2])
    assert refusal([{"id": array, "input": {}}]).startswith("record 1: the id in 'id' is the ndarray array(")
    assert "is too long a number" in refusal([{"id": 10**5_000, "input": {}}])


def test_a_row_that_cannot_be_read_is_named() -> None:
    class Row(Mapping):
        def __getitem__(self, name: str) -> Any:
            raise OSError("image file is truncated")

        def __iter__(self) -> Iterator[str]:
            return iter(["input"])

        def __len__(self) -> int:
            return 1

    assert refusal([NATIVE, Row()]) == (
        "record 2 cannot be read: OSError('image file is truncated'). Mend it, or leave it out."
    )


def test_an_object_that_raises_when_it_is_asked_passes_as_it_is() -> None:
    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("closed")

    held = Closed()
    assert load_cases([{"input": {"held": held}}])[0].input["held"] is held


def test_an_empty_id_is_refused() -> None:
    assert refusal([NATIVE, {"id": "", "input": {}}]).startswith("record 2: the id in 'id' is empty. Mend it")


def test_other_keys_of_a_native_record_are_not_read() -> None:
    record = {"input": {"q": 1}, "tags": ["a"], "rejected": 1, "selected": 2}
    assert load_cases([record]) == [Case("1", {"q": 1}, None)]


@pytest.mark.parametrize("name", ["Expected", "expeted", "expected_output", "expectation"])
def test_a_misspelt_expected_is_refused_instead_of_lost(write: Write, name: str) -> None:
    path = write("c.jsonl", json.dumps({"input": {"q": 1}, name: {"a": 1}}))
    text = refusal(path)
    assert text.startswith(f'{path}, line 1: there is no "expected", but there is {name!r}.')
    assert f"load_cases({str(path)!r}, expected={{'label': {name!r}}})" in text
    assert load_cases(path, expected=[])[0].expected is None
    assert load_cases(path, expected={"label": name})[0].expected == {"label": {"a": 1}}


def test_a_native_expected_that_is_a_plain_value_is_refused_with_a_call_that_works(write: Write) -> None:
    path = write("c.jsonl", '{"input": {"q": 1}, "expected": "billing"}')
    text = refusal(path)
    assert text.startswith(f'{path}, line 1: "expected" has to be an object of fields or null, ')
    assert "the text 'billing'" in text
    assert f"load_cases({str(path)!r}, expected={{'label': 'expected'}})" in text
    assert load_cases(path, expected={"label": "expected"}) == [Case("1", {"q": 1}, {"label": "billing"})]


@pytest.mark.parametrize(("value", "shown"), [("hi", "the text 'hi'"), (None, "null"), ([1], "the list [1]")])
def test_an_input_that_is_no_object_is_refused_with_a_call_that_works(value: Any, shown: str) -> None:
    records = [{"input": value, "expected": "x"}]
    text = refusal(records)
    assert text.startswith(f'record 1: "input" has to be an object of fields, not {shown}.')
    assert text.endswith("load_cases(records, input='input', expected='expected')")
    assert load_cases(records, input="input", expected="expected") == [
        Case("1", {"input": value}, {"expected": "x"})
    ]


@pytest.mark.parametrize("record", ["text", 3, None, [1, 2]])
def test_a_record_that_is_no_object_is_refused(write: Write, record: Any) -> None:
    path = write("c.jsonl", json.dumps(NATIVE) + "\n" + json.dumps(record))
    text = refusal(path)
    assert text.startswith(f"{path}, line 2: a record has to be an object")
    assert repr(record) in text or "null" in text
    assert "map its columns" in text
    assert refusal([NATIVE, record]).startswith("record 2: a record has to be an object")


def test_names_that_are_not_text_are_refused_wherever_they_are_field_names() -> None:
    assert refusal([{1: "a", "input": {}}]) == (
        "record 1: the name 1 is not text. Rename it, for example to '1'; "
        "metrics and programs ask for fields by text."
    )
    assert refusal([{"input": {2: "a"}}]).startswith("record 1, input: the name 2 is not text.")
    assert refusal([{"input": {}, "expected": {None: "a"}}]).startswith("record 1, expected: the name None")
    assert refusal(pd.DataFrame({0: ["a"]}), input="0").startswith("row 1 of the DataFrame: the name 0")


def test_what_cannot_be_shown_is_refused_like_anything_else() -> None:
    class Unshown:
        def __repr__(self) -> str:
            raise ValueError("not now")

    assert "the Unshown <Unshown instance at " in refusal([Unshown()])
    assert "Rename it, for example to 'Unshown'" in refusal([{Unshown(): "a"}])
    assert "input= is the Unshown <Unshown instance at " in refusal([{"text": "a"}], input=Unshown())


def test_the_loaded_case_does_not_share_its_containers_with_the_given_record() -> None:
    record: dict[str, Any] = {"input": {"tags": ["a"]}, "expected": {"x": {"y": 1}}}
    case = load_cases([record])[0]
    case.input["tags"].append("b")
    case.input["new"] = 1
    assert case.expected is not None
    case.expected["x"]["y"] = 2
    assert record == {"input": {"tags": ["a"]}, "expected": {"x": {"y": 1}}}


# --- Duplicate ids -------------------------------------------------------------------------------


def test_a_second_case_with_one_id_is_refused_naming_both_lines(write: Write) -> None:
    path = write("c.jsonl", '{"id": "x", "input": {}}\n\n{"id": "y", "input": {}}\n{"id": "x", "input": {}}')
    text = refusal(path)
    assert text.startswith(f"{path}, line 4: the id 'x' is already the id of {path}, line 1. Give every case")


def test_a_number_and_the_same_digits_as_text_are_one_id() -> None:
    assert refusal([{"id": 1, "input": {}}, {"id": "1", "input": {}}]).startswith(
        "record 2: the id '1' is already the id of record 1."
    )


def test_an_id_that_meets_a_position_is_refused_and_says_so() -> None:
    later = refusal([{"id": "2", "input": {}}, {"input": {}}])
    assert later.startswith("record 2: the id '2' (its position, since the record has none) is already")
    earlier = refusal([{"input": {}}, {"id": "1", "input": {}}])
    assert "is already the id of record 1 (its position, since the record has none)." in earlier


# --- Flat records and the mapping ----------------------------------------------------------------


def test_a_flat_record_without_mapping_is_refused_with_its_columns_and_the_call(write: Write) -> None:
    path = write("data.csv", "text,category\nhello,greeting\n")
    text = refusal(path)
    call = f"load_cases({str(path)!r}, input='text', expected='category')"
    assert text == (
        f'{path}, line 1: there is no "input", so these are columns, and they need a mapping. '
        f"Columns: 'text', 'category'. Say which are what, for example: {call}"
    )
    assert eval(call, {"load_cases": load_cases}) == [Case("1", {"text": "hello"}, {"category": "greeting"})]


@pytest.mark.parametrize(
    ("record", "mapping", "call"),
    [
        ({"id": 1, "a": 1, "b": 2, "c": 3}, {}, "load_cases(records, input=['a', 'b'], expected='c')"),
        ({"Answer": 1, "a": 1, "b": 2}, {}, "load_cases(records, input=['a', 'b'], expected='Answer')"),
        ({"a": 1}, {}, "load_cases(records, input='a')"),
        ({"a": 1, "b": 2}, {"expected": "a"}, "load_cases(records, input='b', expected='a')"),
        (
            {"k": 9, "a": 1, "b": 2},
            {"expected": {"y": "a"}, "id": "k"},
            "load_cases(records, input='b', expected={'y': 'a'}, id='k')",
        ),
    ],
)
def test_the_call_in_the_refusal_of_a_flat_record_runs(
    record: dict[str, Any], mapping: dict[str, Any], call: str
) -> None:
    assert refusal([record], **mapping).endswith(f"for example: {call}")
    assert len(eval(call, {"load_cases": load_cases, "records": [record]})) == 1


@pytest.mark.parametrize(
    "input_columns",
    ["text", "${data.text}", ["text"], ("${data.text}",), {"text": "text"}, {"text": "${data.text}"}],
)
def test_every_way_to_write_one_column_gives_the_same_case(input_columns: Any) -> None:
    assert load_cases(FLAT, input=input_columns, expected="label") == [
        Case("1", {"text": "one"}, {"label": "x"}),
        Case("2", {"text": "two"}, {"label": "y"}),
    ]


def test_a_mapping_renames_picks_and_takes_ids_from_a_column(write: Write) -> None:
    path = write("c.csv", "key,q,ctx,gold,other\nk1,why?,book,42,z\n")
    cases = load_cases(path, input={"question": "q", "context": "ctx"}, expected={"answer": "gold"}, id="key")
    assert cases == [Case("k1", {"question": "why?", "context": "book"}, {"answer": "42"})]


def test_an_unmapped_expected_is_none_unless_the_record_has_it_in_native_form() -> None:
    assert load_cases(FLAT, input="text")[0].expected is None
    assert load_cases([{"q": 1, "expected_answer": 2}], input="q")[0].expected is None
    assert load_cases([{"q": 1, "expected": {"a": 2}}], input="q") == [Case("1", {"q": 1}, {"a": 2})]
    assert load_cases([{"q": 1, "expected": {"a": 2}}], input="q", expected=[])[0].expected is None
    assert load_cases([{"input": {"q": 1}, "gold": 2}], expected="gold") == [Case("1", {"q": 1}, {"gold": 2})]
    assert load_cases([{"input": {"q": 1}, "key": 2}], id="key") == [Case("2", {"q": 1}, None)]


def test_an_unmapped_expected_column_of_text_is_refused_instead_of_lost(write: Write) -> None:
    path = write("c.csv", "text,expected\nhi,greeting\n")
    text = refusal(path, input="text")
    assert text.startswith(f'{path}, line 2: "expected" has to be an object of fields or null, not the text ')
    assert f"load_cases({str(path)!r}, input=..., expected={{'label': 'expected'}})" in text
    assert "expected=[] leaves it out" in text


def test_a_mapped_expected_value_that_is_missing_stays_visible_as_none() -> None:
    frame = pd.DataFrame({"text": ["a", "b"], "label": ["x", float("nan")]})
    cases = load_cases(frame, input="text", expected="label")
    assert [case.expected for case in cases] == [{"label": "x"}, {"label": None}]


def test_a_dotted_name_reads_nested_values_unless_a_column_is_called_so() -> None:
    nested = [{"q": 1, "answer": {"text": "in", "span": {"start": 3}}}]
    assert load_cases(nested, input="q", expected="${data.answer.text}")[0].expected == {"answer.text": "in"}
    assert load_cases(nested, input="q", expected={"s": "answer.span.start"})[0].expected == {"s": 3}
    exact = [{"q": 1, "answer.text": "out", "answer": {"text": "in"}}]
    assert load_cases(exact, input="q", expected={"a": "${data.answer.text}"})[0].expected == {"a": "out"}


def test_what_lies_within_a_missing_value_is_missing() -> None:
    records = [{"q": 1, "answer": None}]
    assert load_cases(records, input="q", expected={"a": "answer.text"})[0].expected == {"a": None}


def test_a_dotted_name_that_leads_nowhere_says_where_it_ends(write: Write) -> None:
    path = write("c.jsonl", '{"q": 1, "answer": {"text": "in"}, "plain": "p"}')
    absent = refusal(path, input="q", expected="${data.answer.txet}")
    assert absent.startswith(
        f"{path}, line 1: there is no field 'txet' within 'answer', which expected= asks"
    )
    assert "Did you mean 'text'?" in absent
    plain = refusal(path, input="plain.text")
    assert plain.startswith(
        f"{path}, line 1: 'plain.text' (input=) cannot be read, since 'plain' is the text"
    )
    assert "Map 'plain' itself" in plain
    assert "there is no column 'anwser.text'" in refusal(path, input="anwser.text")


def test_a_missing_column_is_refused_with_file_line_near_names_and_columns(write: Write) -> None:
    path = write("c.jsonl", '\n{"text": "a", "label": "x"}\n{"text": "a", "Label": "x"}\n')
    assert refusal(path, input="text", expected="label") == (
        f"{path}, line 3: there is no column 'label', which expected= asks for. Did you mean 'Label'? "
        "There is: 'text', 'Label'. Correct expected=, or add it to the data (null where it is unknown)."
    )


def test_a_missing_column_of_a_csv_file_is_named_with_the_headers_line(write: Write) -> None:
    path = write("c.csv", "\n\ntext,label\na,x\n")
    assert refusal(path, input="texts").startswith(f"{path}, line 3: there is no column 'texts'")
    assert "Did you mean 'text'?" in refusal(path, input="TEXT")
    assert "which id= asks for" in refusal(path, input="text", id="key")


def test_many_columns_are_listed_only_in_part() -> None:
    text = refusal([{f"c{number}": 1 for number in range(25)}], input="zzz")
    assert "'c19' and 5 more." in text
    assert "'c20'" not in text
    assert "Did you mean" not in text


def test_a_mapping_that_names_one_field_twice_is_refused() -> None:
    for twice in (["text", "label", "text"], ["text", "${data.text}"]):
        text = refusal(FLAT, input=twice)
        assert text.startswith("load_cases: input= names the field 'text' twice. Leave one out")


def test_one_field_in_input_and_expected_is_refused_with_a_mapping_that_works() -> None:
    text = refusal(FLAT, input=["text", "label"], expected="label")
    assert text.startswith("load_cases: the field 'label' is named in input= and in expected=.")
    assert "expected={'expected_label': 'label'}" in text
    case = load_cases(FLAT, input=["text", "label"], expected={"expected_label": "label"})[0]
    assert case.expected == {"expected_label": "x"}


@pytest.mark.parametrize(
    "column", ["${run.outputs.text}", "${data.}", "${data.a", "x ${data.a}", "${data.{a}}", "${inputs.a}"]
)
def test_a_reference_to_anything_but_a_data_column_is_refused(column: str) -> None:
    text = refusal(FLAT, input=column)
    assert text.startswith(f"load_cases: input= has {column!r}, which names no data column.")
    assert "Write ${data.COLUMN}" in text


@pytest.mark.parametrize(
    ("mapping", "start", "mend"),
    [
        ({"input": 3}, "load_cases: input= is the number 3.", "a dict {field: column}"),
        ({"input": {"text"}}, "load_cases: input= is the set {'text'}.", "a list of column names"),
        ({"input": []}, "load_cases: input= names no column", "Name at least one"),
        ({"input": {}}, "load_cases: input= names no column", "Name at least one"),
        ({"input": ""}, "load_cases: input= names the column ''.", "such as 'question'"),
        ({"input": ["text", 1]}, "load_cases: input= names the column 1.", "such as 'question'"),
        ({"input": {"a": None}}, "load_cases: input= names the column None.", "such as 'question'"),
        ({"input": {1: "text"}}, "load_cases: input= names the field 1.", "not empty"),
        ({"expected": {"": "label"}}, "load_cases: expected= names the field ''.", "not empty"),
        ({"id": ["text"]}, "load_cases: id= names the column ['text'].", "such as 'question'"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_refused(mapping: dict[str, Any], start: str, mend: str) -> None:
    text = refusal(FLAT, **mapping)
    assert text.startswith(start)
    assert mend in text


def test_a_missing_value_in_the_id_column_is_refused() -> None:
    frame = pd.DataFrame({"key": ["a", None], "text": ["x", "y"]})
    text = refusal(frame, input="text", id="key")
    assert text.startswith("row 2 of the DataFrame: the id in 'key' is empty. Mend it")


# --- Cases given as cases ------------------------------------------------------------------------


def test_cases_pass_through_unchanged() -> None:
    cases = [Case("1", {"a": float("nan")}), Case("2", {})]
    loaded = load_cases(case for case in cases)
    assert [one is other for one, other in zip(loaded, cases, strict=True)] == [True, True]


def test_given_cases_are_refused_when_ids_repeat_or_a_mapping_is_given() -> None:
    assert refusal([Case("1", {}), Case("2", {}), Case("1", {})]).startswith(
        "case 3: the id '1' is already the id of case 1."
    )
    assert "Leave the mapping out" in refusal([Case("1", {})], input="a")
    mixed = refusal([Case("1", {}), {"input": {}}])
    assert mixed.startswith("case 2: this is the object {'input': {}}, but there are `Case` objects")
    assert "Give either cases or records." in mixed
    wrong: Any = 7
    assert refusal([Case(wrong, {})]).startswith("case 1: its id is 7. Make it a text")


# --- JSON ----------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_skipped_in_every_format(write: Write) -> None:
    mark = b"\xef\xbb\xbf"
    native = json.dumps(NATIVE).encode()
    assert load_cases(write("c.jsonl", mark + native))[0].id == "a"
    assert load_cases(write("c.json", mark + b"[" + native + b"]"))[0].id == "a"
    assert load_cases(write("c.csv", mark + b"text\nhi\n"), input="text")[0].input == {"text": "hi"}


def test_a_broken_json_line_is_named_with_line_column_and_mend(write: Write) -> None:
    path = write("c.jsonl", json.dumps(NATIVE) + '\r\n\r\n{"id": "b", "input": {"text": "hi"},}\r\n')
    text = refusal(path)
    assert text.startswith(f"{path}, line 3: this is not a JSON record: ")
    with pytest.raises(json.JSONDecodeError) as said:
        json.loads('{"id": "b", "input": {"text": "hi"},}')
    assert f"{said.value.msg} at column {said.value.colno}. " in text
    assert 'Each line holds one whole object, such as {"id": "1", "input": {"text": "..."}' in text


def test_a_json_list_in_a_jsonl_file_and_the_reverse_name_the_right_suffix(write: Write) -> None:
    as_lines = write("c.jsonl", json.dumps([NATIVE], indent=1))
    assert refusal(as_lines).startswith(f"{as_lines}, line 1: this is not a JSON record")
    assert refusal(as_lines).endswith("a file that is one JSON list is named .json.")
    as_list = write("c.json", json.dumps(NATIVE) + "\n" + json.dumps(NATIVE))
    text = refusal(as_list)
    assert text.startswith(f"{as_list}, line 2: this is not JSON: Extra data at column 1.")
    assert text.endswith("a file with one record on each line is named .jsonl.")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "NaN is not a JSON value (write null for a missing value)"),
        ("-Infinity", "-Infinity is not a JSON value"),
        ("1e999", "the number 1e999 is too large for a float"),
        ('{"a": 1, "b": 2, "a": 3}', "the name 'a' stands twice in one object"),
        ("9" * 5000, "4300"),
        ("[" * 100_000 + "]" * 100_000, "it is nested too deeply"),
    ],
    ids=["NaN", "Infinity", "large float", "repeated name", "long integer", "deep"],
)
def test_what_python_reads_but_would_not_keep_is_refused(write: Write, value: str, said: str) -> None:
    record = f'{{"input": {{"x": {value}}}}}'
    lines = write("c.jsonl", '{"input": {}}\n' + record)
    assert refusal(lines).startswith(f"{lines}, line 2: this is not a JSON record: ")
    assert said in refusal(lines)
    listed = write("c.json", f"[{record}]")
    assert refusal(listed).startswith(f"{listed}: this is not JSON: ")
    assert said in refusal(listed)


@pytest.mark.parametrize("content", ['{"data": []}', '"text"', "3", '{"cases": {"a": 1}}', "null"])
def test_a_json_file_of_another_shape_is_refused(write: Write, content: str) -> None:
    path = write("c.json", content)
    text = refusal(path)
    assert text.startswith(f'{path}: the file has to hold a list of records, or {{"cases": [...]}}')
    assert "Bring it to that shape." in text


def test_a_json_record_is_named_by_its_position(write: Write) -> None:
    path = write("c.json", json.dumps({"cases": [NATIVE, {"id": "b", "input": "text"}]}))
    assert refusal(path).startswith(f'{path}, record 2: "input" has to be an object')


def test_line_separators_within_json_text_do_not_end_a_line(write: Write) -> None:
    text = "a\u2028b\u2029c\x85d"
    path = write("c.jsonl", json.dumps({"input": {"text": text}}, ensure_ascii=False))
    assert load_cases(path) == [Case("1", {"text": text})]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)
native_records = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(min_size=1), "input": json_objects, "expected": st.none() | json_objects}
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda record: record["id"],
)


@given(
    records=native_records,
    ascii_only=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    end=st.sampled_from(["\n", "\r\n", "\n\n", "\n  \n"]),
)
def test_any_records_written_as_jsonl_load_back_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[dict[str, Any]],
    ascii_only: bool,
    mark: bytes,
    end: str,
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "cases.jsonl"
    lines = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    path.write_bytes(mark + end.join(lines).encode("utf-8"))
    loaded = [[case.id, case.input, case.expected] for case in load_cases(path)]
    written = [[record["id"], record["input"], record["expected"]] for record in records]
    # json.dumps as the measure: it tells 1 from 1.0 and True, and sees the order of names; == does neither.
    assert json.dumps(loaded) == json.dumps(written)
    assert load_cases(records) == load_cases(path)


# --- CSV -----------------------------------------------------------------------------------------


def test_csv_values_stay_text(write: Write) -> None:
    path = write("c.csv", "text,label\n1,\n")
    assert load_cases(path, input="text", expected="label") == [Case("1", {"text": "1"}, {"label": ""})]


def test_quoted_line_breaks_and_quotes_are_kept_and_physical_lines_counted(write: Write) -> None:
    path = write("c.csv", 'text,label\r\n"a\r\nb ""c"", d",x\r\n\r\nshort\r\n')
    text = refusal(path, input="text")
    # The row above it takes lines 2 and 3, and line 4 is blank.
    assert text.startswith(f"{path}, line 5: the row that begins here has 1 cells, but the header has 2")
    good = write("good.csv", 'text,label\r\n"a\r\nb ""c"", d",x\r\n')
    assert load_cases(good, input="text")[0].input == {"text": 'a\r\nb "c", d'}


def test_a_second_row_with_one_id_names_the_lines_where_both_rows_begin(write: Write) -> None:
    path = write("c.csv", 'id,text\n1,"a\nb"\n1,c\n')
    text = refusal(path, input="text")
    assert text.startswith(f"{path}, line 4: the id '1' is already the id of {path}, line 2.")


def test_rows_with_too_many_or_too_few_cells_are_refused(write: Write) -> None:
    many = write("many.csv", "text,label\nhello, world,x\n")
    assert refusal(many, input="text") == (
        f"{many}, line 2: the row that begins here has 3 cells, but the header has 2 ('text', 'label'). "
        "Put a cell that holds a comma in quotes."
    )
    few = write("few.csv", "text,label\nhello,x\nhello\n")
    assert refusal(few, input="text").startswith(f"{few}, line 3: the row that begins here has 1 cells")
    assert refusal(few, input="text").endswith("Add the cells that are missing.")


def test_an_empty_row_of_a_spreadsheet_is_refused_rather_than_judged(write: Write) -> None:
    path = write("c.csv", "text,label\nhello,x\n,\n")
    assert refusal(path, input="text").startswith(f"{path}, line 3: every cell of this row is empty")
    assert refusal(path, input="text").endswith("Delete it.")


def test_an_unclosed_quote_is_refused_where_its_row_begins(write: Write) -> None:
    path = write("c.csv", 'text,label\na,x\n"b,y\nc,z\n')
    text = refusal(path, input="text")
    assert text.startswith(f"{path}, line 3: the row that begins here is not CSV: unexpected end of data.")
    assert "double the quotes within it" in text


def test_text_after_a_closing_quote_is_refused(write: Write) -> None:
    path = write("c.csv", 'text,label\n"a"b,x\n')
    assert refusal(path, input="text").startswith(f"{path}, line 2: the row that begins here is not CSV: ")


def test_a_cell_beyond_the_csv_modules_limit_is_refused_with_the_way_to_raise_it(write: Write) -> None:
    path = write("c.csv", "text\n" + "x" * (csv.field_size_limit() + 1) + "\n")
    text = refusal(path, input="text")
    assert text.startswith(f"{path}, line 2: ")
    assert "csv.field_size_limit(10_000_000)" in text


def test_a_header_with_a_repeated_or_an_empty_name_is_refused(write: Write) -> None:
    twice = write("twice.csv", "text,label,text\na,x,b\n")
    assert refusal(twice, input="text") == (
        f"{twice}, line 1: the column 'text' stands twice in the header. Rename or remove one of them."
    )
    index = write("index.csv", pd.DataFrame({"text": ["a"]}).to_csv())
    assert refusal(index, input="text").startswith(f"{index}, line 1: column 1 has no name.")
    assert "index=False" in refusal(index, input="text")
    blank = write("blank.csv", "text, \na,x\n")
    assert refusal(blank, input="text").startswith(f"{blank}, line 1: column 2 has no name.")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_file_with_another_separator_is_refused_with_the_pandas_call(write: Write, separator: str) -> None:
    path = write("c.csv", f"text{separator}label\nhello, you{separator}x\n")
    text = refusal(path, input="text")
    assert text.startswith(f"{path}, line 1: the header ")
    assert f"pandas.read_csv(path, sep={separator!r}, dtype=str)" in text
    frame = pd.read_csv(path, sep=separator, dtype=str)
    assert load_cases(frame, input="text")[0].input == {"text": "hello, you"}


@given(
    header=st.lists(
        # Unmapped columns called id or expected would be read as such.
        st.text(min_size=1).filter(
            lambda name: name.strip() and "${" not in name and name not in ("id", "expected")
        ),
        min_size=2,
        max_size=4,
        unique=True,
    ),
    data=st.data(),
)
def test_any_cells_written_by_the_csv_module_load_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, header: list[str], data: st.DataObject
) -> None:
    cells = st.lists(st.text(), min_size=len(header), max_size=len(header)).filter(any)
    rows = data.draw(st.lists(cells, min_size=1, max_size=4))
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    path = tmp_path_factory.mktemp("csv") / "cases.csv"
    path.write_bytes(out.getvalue().encode("utf-8"))
    numbered = {f"f{number}": name for number, name in enumerate(header)}
    loaded = load_cases(path, input=numbered)
    assert [list(case.input.values()) for case in loaded] == rows


# --- Files that cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.jsonl", ""),
        ("c.jsonl", "\n \n"),
        ("c.json", ""),
        ("c.json", "[]"),
        ("c.json", '{"cases": []}'),
        ("c.csv", ""),
        ("c.csv", "text,label\n"),
        ("c.csv", b"\xef\xbb\xbf"),
    ],
)
def test_a_source_without_records_is_refused(write: Write, name: str, content: str | bytes) -> None:
    path = write(name, content)
    assert refusal(path).startswith(f"{path}: there is no record. Give at least one, such as ")


def test_an_empty_list_and_an_empty_data_frame_are_refused() -> None:
    assert refusal([]).startswith("the given records: there is no record. Give at least one")
    assert refusal(pd.DataFrame({"text": []}), input="text").startswith("the DataFrame: there is no record.")


def test_a_file_that_does_not_exist_is_refused_with_folder_and_near_names(write: Write) -> None:
    near = write("cases.jsonl", "")
    path = near.with_name("case.jsonl")
    text = refusal(path)
    assert text.startswith(f"{path}: there is no such file in {near.parent}. Did you mean 'cases.jsonl'?")
    assert "working directory" in text
    lost = near.parent / "nowhere" / "cases.jsonl"
    assert refusal(lost).startswith(f"{lost}: there is no such file in {lost.parent}. Check the path")


def test_a_relative_path_that_does_not_exist_shows_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal("cases.csv").startswith(f"cases.csv: there is no such file in {tmp_path}.")


def test_a_folder_is_refused_with_the_data_files_in_it(write: Write) -> None:
    folder = write("b.csv", "").parent
    write("a.JSON", "")
    write("notes.txt", "")
    assert refusal(folder) == f"{folder}: this is a folder. Name one file in it; it has 'a.JSON', 'b.csv'."
    empty = folder / "empty.jsonl"
    empty.mkdir()
    assert refusal(empty).endswith("it has no file with '.jsonl', '.json', '.csv'.")


@pytest.mark.parametrize("name", ["c.tsv", "c.xlsx", "c"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(write: Write, name: str) -> None:
    path = write(name, "x")
    text = refusal(path)
    assert text.startswith(f"{path}: the suffix {path.suffix!r} is not one of '.jsonl', '.json', '.csv'.")
    assert "give the DataFrame or a list of dicts" in text


def test_a_path_that_the_system_refuses_is_a_data_error() -> None:
    assert "cannot be read (embedded null byte)" in refusal("a\0.jsonl")
    assert "cannot be read" in refusal("a" * 5000 + ".jsonl")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_file_that_is_not_utf_8_is_refused_with_line_offset_and_a_command(
    write: Write, mark: bytes
) -> None:
    content = mark + b"text\nfine\ncaf\xe9\n"
    path = write("c.csv", content)
    offset = content.index(b"\xe9")
    assert refusal(path, input="text") == (
        f"{path}, line 3: the file is not UTF-8: byte 0xe9 at offset {offset}. Save it as UTF-8, "
        "for example: iconv -f WINDOWS-1252 -t UTF-8 c.csv > utf8_c.csv"
    )


def test_a_utf_16_file_is_recognised(write: Write) -> None:
    path = write("c.csv", "text\nhi\n".encode("utf-16"))
    assert "at offset 0. " in refusal(path)
    assert "iconv -f UTF-16 " in refusal(path)


@pytest.mark.parametrize(
    ("source", "shown"), [(3, "the number 3"), (None, "null cannot be read"), (2.5, "the number 2.5")]
)
def test_a_source_of_another_kind_is_refused(source: Any, shown: str) -> None:
    text = refusal(source)
    assert shown in text
    assert "Give a path to a .jsonl, .json or .csv file" in text


def test_one_dict_is_refused_with_the_way_to_choose_a_split() -> None:
    # `datasets.load_dataset(name)` without `split=` gives a DatasetDict, which is a dict of data sets.
    text = refusal({"train": [NATIVE], "test": [NATIVE]})
    assert text.startswith("load_cases: one dict was given, with 'train', 'test'. Give a list of records;")
    assert 'dataset["train"]' in text


# --- DataFrames and data sets --------------------------------------------------------------------


def test_missing_values_of_a_data_frame_become_none_and_keep_their_field() -> None:
    frame = pd.DataFrame(
        {
            "floats": [1.5, float("nan")],
            "dates": [pd.Timestamp("2024-05-01"), pd.NaT],
            "nullable": pd.array([1, pd.NA], dtype="Int64"),
            "texts": ["a", None],
            "objects": pd.Series([np.float32(0.5), np.float64("nan")], dtype=object),
            "numpy_dates": pd.Series([np.datetime64("2024-05-01"), np.datetime64("NaT")], dtype=object),
        }
    )
    first, second = load_cases(frame, input=list(frame.columns))
    assert second.input == dict.fromkeys(frame.columns)
    assert first.input["dates"] == pd.Timestamp("2024-05-01")
    assert first.input["nullable"] == 1
    assert first.input["texts"] == "a"


@pytest.mark.parametrize(
    ("scalar", "value"),
    [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("a"), "a"), (np.uint8(7), 7)],
)
def test_numpy_scalars_become_python_values_also_within_containers(scalar: Any, value: Any) -> None:
    record = {"input": {"x": scalar, "deep": [{"y": scalar}]}}
    for source in ([record], pd.DataFrame([record])):
        fields = load_cases(source)[0].input
        for found in (fields["x"], fields["deep"][0]["y"]):
            assert found == value
            assert type(found) is type(value)


@pytest.mark.parametrize(
    "missing",
    [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), np.timedelta64("NaT"), pd.NA, pd.NaT],
)
def test_every_kind_of_missing_value_becomes_none_also_within_containers(missing: Any) -> None:
    cases = load_cases([MappingProxyType({"x": missing, "deep": [{"y": missing}]})], input=["x", "deep"])
    assert cases[0].input["x"] is None
    assert cases[0].input["deep"][0]["y"] is None


def test_other_values_pass_as_they_are() -> None:
    array = np.array([1])  # one element: it has .item() too, but is no scalar
    moment = np.datetime64("2024-05-01T00:00:00", "ns")  # its .item() would be an integer
    other: dict[str, Any] = {"array": array, "moment": moment, "tuple": (float("nan"),), "object": object()}
    fields = load_cases([{"input": other}])[0].input
    assert all(fields[name] is value for name, value in other.items())
    assert load_cases([{"input": {"x": math.inf}}])[0].input == {"x": math.inf}


def test_a_list_of_dicts_made_from_a_data_frame_loads_like_the_data_frame() -> None:
    frame = pd.DataFrame({"text": ["a", None], "n": [1, float("nan")]})
    assert load_cases(frame.to_dict("records"), input=["text", "n"]) == load_cases(frame, input=["text", "n"])


def test_the_index_of_a_data_frame_is_not_read() -> None:
    frame = pd.DataFrame({"text": ["a", "b"]}, index=[10, 10])
    assert [case.id for case in load_cases(frame, input="text")] == ["1", "2"]


def test_a_column_that_a_data_frame_has_twice_is_refused() -> None:
    frame = pd.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"])
    assert refusal(frame, input="text") == (
        "the DataFrame: the column 'text' stands twice. Rename or drop one of them."
    )


def test_a_flat_data_frame_without_mapping_and_one_without_the_column_are_refused() -> None:
    frame = pd.DataFrame(FLAT)
    assert refusal(frame).startswith("the DataFrame: there is no ")
    assert refusal(frame).endswith("load_cases(df, input='text', expected='label')")
    assert refusal(frame, input="tex").startswith("the DataFrame: there is no column 'tex'")


class HuggingFaceLike:
    """The surface of `datasets.Dataset` that matters here: `datasets` itself is not installed for it."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    @property
    def column_names(self) -> list[str]:
        return list(self._rows[0])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __getitem__(self, key: int | str) -> Any:
        return self._rows[key] if isinstance(key, int) else [row[key] for row in self._rows]

    def to_dict(self) -> dict[str, list[Any]]:  # by columns, unlike DataFrame.to_dict("records")
        return {name: self[name] for name in self.column_names}

    def to_list(self) -> list[dict[str, Any]]:
        return list(self._rows)


def test_an_object_with_the_surface_of_a_hugging_face_data_set_loads_by_its_rows() -> None:
    rows: list[dict[str, Any]] = [
        {"question": "q1", "answers": {"text": ["a"], "answer_start": [1]}},
        {"question": "q2", "answers": {"text": [], "answer_start": []}},
    ]
    cases = load_cases(HuggingFaceLike(rows), input="question", expected={"texts": "answers.text"})
    assert cases == [
        Case("1", {"question": "q1"}, {"texts": ["a"]}),
        Case("2", {"question": "q2"}, {"texts": []}),
    ]


# --- The shared data -----------------------------------------------------------------------------


@pytest.mark.shared
def test_the_bank_questions_load_and_split_with_every_intent_in_every_part(shared_folder: Path) -> None:
    cases = load_cases(
        shared_folder / "data" / "banking77_test.csv", input="text", expected={"intent": "${data.category}"}
    )
    assert len(cases) == 3080
    parts = split(cases, by="intent")
    assert [len(part) for part in parts] == [1848, 616, 616]
    for part, each in zip(parts, (24, 8, 8), strict=True):
        counts = Counter(case.expected["intent"] for case in part if case.expected)
        assert len(counts) == 77
        assert set(counts.values()) == {each}  # 40 of every intent


# --- split ---------------------------------------------------------------------------------------


def test_a_split_is_the_same_for_one_seed_and_another_for_another() -> None:
    once = split(range(50), seed=3)
    assert isinstance(once, Split)
    assert split(range(50), seed=3) == once
    assert split(range(50), seed=4) != once
    assert split(range(50)) == split(range(50), seed=0)


def test_a_split_stays_the_same_from_release_to_release() -> None:
    # Written down, so that nobody's test set changes unnoticed.
    assert split(range(10), seed=0) == Split([5, 7, 4, 8, 3, 1], [2, 0], [6, 9])


def test_a_split_shuffles_and_leaves_the_given_list_alone() -> None:
    given_list = list(range(100))
    parts = split(given_list)
    assert given_list == list(range(100))
    assert parts.train != sorted(parts.train)
    assert parts.test != sorted(parts.test)


@pytest.mark.parametrize(
    ("count", "shares", "sizes"),
    [
        (10, (0.6, 0.2, 0.2), [6, 2, 2]),
        (4, (0.6, 0.2, 0.2), [2, 1, 1]),
        (7, (0.6, 0.2, 0.2), [4, 2, 1]),  # 4.2, 1.4, 1.4: the earlier part wins the tie
        (100, (0.29, 0.57, 0.14), [29, 57, 14]),  # as floats 28.999999999999996, 56.99999999999999
        (10, (0.5, 0.5, 0), [5, 5, 0]),
        (3, (1, 0, 0), [3, 0, 0]),
        (9, (1 / 3, 1 / 3, 1 / 3), [3, 3, 3]),
        (10, (np.float64(0.8), np.float64(0.1), np.float64(0.1)), [8, 1, 1]),
    ],
)
def test_sizes_are_the_largest_remainders(count: int, shares: tuple[float, ...], sizes: list[int]) -> None:
    train, val, test = shares
    assert [len(part) for part in split(range(count), train=train, val=val, test=test)] == sizes


@given(
    labels=st.lists(st.sampled_from("abcdef"), min_size=20, max_size=120),
    tenths=st.sampled_from([(6, 2, 2), (8, 1, 1), (5, 3, 2), (7, 3, 0), (1, 1, 8)]),
    seed=st.integers(0, 1000),
)
def test_a_stratified_split_loses_nothing_and_gives_every_part_its_share_of_every_label(
    labels: list[str], tenths: tuple[int, int, int], seed: int
) -> None:
    items = list(enumerate(labels))
    train, val, test = (tenth / 10 for tenth in tenths)
    parts = split(items, train=train, val=val, test=test, seed=seed, by=lambda item: item[1])
    assert sorted(parts.train + parts.val + parts.test) == items
    plain = split(items, train=train, val=val, test=test, seed=seed)
    assert [len(part) for part in parts] == [len(part) for part in plain]
    for part, tenth in zip(parts, tenths, strict=True):
        assert abs(len(part) - Fraction(tenth, 10) * len(items)) < 1
        of_label = Counter(label for _, label in part)
        for label, count in Counter(labels).items():
            assert of_label[label] >= count * tenth // 10
            assert of_label[label] <= count * tenth // 10 + 2  # at most two are left over of a label


def test_the_leftovers_of_small_labels_are_spread_over_the_parts() -> None:
    # Three of each label: one is train's whole share, two are left over.
    items = [(label, number) for label in range(50) for number in range(3)]
    parts = split(items, by=lambda item: item[0])
    assert [len(part) for part in parts] == [90, 30, 30]
    most = [max(Counter(label for label, _ in part).values()) for part in parts]
    assert most == [2, 1, 1]


def test_a_stratified_part_is_shuffled_across_labels() -> None:
    items = [(label, number) for label in "ab" for number in range(50)]
    labels = [label for label, _ in split(items, by=lambda item: item[0]).train]
    assert labels[:30] != ["a"] * 30
    assert labels[:30] != ["b"] * 30


def test_a_split_by_name_looks_into_expected_of_cases_and_into_everything_else() -> None:
    import dspy

    labels = ["x", "y"] * 10
    cases = [Case(str(number), {}, {"label": label}) for number, label in enumerate(labels)]
    dicts = [{"number": number, "label": label} for number, label in enumerate(labels)]
    examples = [dspy.Example(number=number, label=label) for number, label in enumerate(labels)]
    by_case = split(cases, by="label")
    by_dict = split(dicts, by="label")
    by_example = split(examples, by="label")
    assert Counter(case.expected["label"] for case in by_case.train if case.expected) == {"x": 6, "y": 6}
    assert [record["number"] for record in by_dict.test] == [int(case.id) for case in by_case.test]
    assert [example.number for example in by_example.test] == [int(case.id) for case in by_case.test]


@pytest.mark.parametrize(
    ("cases", "by", "start", "mend"),
    [
        (
            [Case("7", {}, {"label": "x"})] * 9 + [Case("8", {}, {"Label": "x"})],
            "label",
            "split: case 10 has no field 'label', which by= asks for. Did you mean 'Label'? There is:",
            "Correct by=",
        ),
        (
            [Case("7", {}, None)] * 10,
            "label",
            "split: case 1 ('7') has no expected value to take by='label' from.",
            "leave the case out",
        ),
        (
            [{"a": 1}] * 10,
            "b",
            "split: case 1 has no field 'b', which by= asks for. There is: 'a'.",
            "by=lambda",
        ),
        (
            range(10),
            "b",
            "split: case 1 has no field 'b', which by= asks for. It is the number 0.",
            "by=lambda",
        ),
        (
            [{"a": ["x"]}] * 10,
            "a",
            "split: case 1: its label is the list ['x'], which cannot be grouped.",
            "makes text of it",
        ),
        (range(10), ["a"], "split: by= is the list ['a'].", "Give a field's name, or a function"),
    ],
)
def test_a_label_that_cannot_be_taken_is_refused(cases: Any, by: Any, start: str, mend: str) -> None:
    text = split_refusal(list(cases), by=by)
    assert text.startswith(start)
    assert mend in text


def test_a_part_that_was_asked_for_and_would_be_empty_is_refused_with_a_number_that_is_enough() -> None:
    text = split_refusal(range(3))
    assert text == (
        "split: test=0.2 of 3 cases is no case. Give more cases (5 are enough) or a larger share, "
        "or ask for none: test=0."
    )
    assert [len(part) for part in split(range(5))] == [3, 1, 1]
    assert split_refusal(["only"]).startswith("split: val=0.2 of 1 case is no case.")
    assert split_refusal([]) == "split: there are no cases. Give at least one."


def test_shares_that_do_not_sum_to_one_are_refused_with_what_was_written() -> None:
    text = split_refusal(range(10), train=0.8, val=0.2)
    assert text.startswith("split: train=0.8, val=0.2, test=0.2 sum to 1.2, not to 1. Name all three")
    assert "test=0." in text
    assert "sum to 0.9, not" in split_refusal(range(10), train=0.5)
    assert "sum to 1.0000001, not" in split_refusal(range(10), train=0.6000001)


@pytest.mark.parametrize("share", [-0.1, 60, float("nan"), "0.6", None, True])
def test_a_share_that_is_no_share_is_refused(share: Any) -> None:
    text = split_refusal(range(10), train=share)
    assert text.startswith(f"split: train={share!r} is not a share from 0 to 1 (train=")


@pytest.mark.parametrize("seed", [None, "1", 1.0])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    assert split_refusal(range(10), seed=seed) == (
        f"split: seed={seed!r} is not a whole number. Give one, such as seed=0."
    )
