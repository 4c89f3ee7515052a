"""Artifacts as candidates and as files."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skynet_adapters.artifacts import load_artifact, save_artifact, to_artifact, to_candidate
from skynet_adapters.errors import DataError, DefinitionError

PARTS = {"plan": "First plan.", "answer": "Then answer."}

texts = st.text(st.characters(exclude_categories=()))  # lone surrogates too
artifacts = st.one_of(texts, st.dictionaries(texts, texts, min_size=1))


@given(artifacts)
def test_an_artifact_goes_to_a_candidate_and_back_without_loss(artifact: Any) -> None:
    candidate = to_candidate(artifact)
    back = to_artifact(candidate, like=artifact)
    assert back == artifact
    assert isinstance(back, str) == isinstance(artifact, str)
    assert list(back) == list(artifact)


def test_a_candidate_is_a_new_dict_and_so_is_what_comes_back() -> None:
    candidate = to_candidate(PARTS)
    candidate["plan"] = "Other."
    assert PARTS["plan"] == "First plan."
    back = to_artifact(candidate, like=PARTS)
    back["plan"] = "Third."
    assert candidate["plan"] == "Other."


def test_parts_come_back_in_the_order_of_the_artifact() -> None:
    assert list(to_artifact({"answer": "b", "plan": "a"}, like=PARTS)) == ["plan", "answer"]


def test_a_dict_whose_one_part_is_called_artifact_stays_a_dict() -> None:
    assert to_artifact(to_candidate({"artifact": "x"}), like={"artifact": "y"}) == {"artifact": "x"}


@pytest.mark.parametrize(
    ("artifact", "said"),
    [
        ({}, "has no parts"),
        ({"a": 1}, r"the part 'a', which is 1 \(int\)"),
        ({1: "a"}, r"a part named 1 \(int\)"),
        (None, "is None"),
        (["a"], r"is \['a'\]"),
        (b"a", "is b'a'"),
    ],
)
def test_another_shape_is_refused_with_what_it_is(artifact: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        to_candidate(artifact)
    with pytest.raises(DefinitionError, match=said):
        to_artifact({"artifact": "a"}, like=artifact)
    with pytest.raises(DefinitionError, match=said):
        save_artifact(artifact, "unwritten.json")


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ({"plan": "a"}, r"lacks the components \['answer'\];"),
        ({**PARTS, "refiner_prompt": "c"}, r"has \['refiner_prompt'\] besides"),
        ({**PARTS, "plan": None}, "the part 'plan', which is None"),
        ({}, "has no parts"),
    ],
)
def test_a_candidate_of_another_artifact_is_refused(candidate: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        to_artifact(candidate, like=PARTS)


@given(artifact=artifacts)
def test_json_files_keep_every_artifact(tmp_path_factory: pytest.TempPathFactory, artifact: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "artifact.json"
    save_artifact(artifact, path)
    assert load_artifact(path) == artifact


@pytest.mark.parametrize("text", ["", "a\r\nb\rc\n", "\ufeffmarked", "émoji 😀", '{"plan": "x"}', "a\0b"])
def test_text_files_hold_the_text_and_nothing_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompt.txt"
    save_artifact(text, str(path))
    assert path.read_bytes() == text.encode()
    assert load_artifact(path) == text


def test_json_is_readable_by_people(tmp_path: Path) -> None:
    save_artifact({"plan": "émoji 😀"}, tmp_path / "best.JSON")
    assert (tmp_path / "best.JSON").read_text(encoding="utf-8") == '{\n  "plan": "émoji 😀"\n}\n'


def test_what_a_text_file_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"named parts; give a name ending in \.json"):
        save_artifact(PARTS, tmp_path / "prompt.txt")
    with pytest.raises(DataError, match=r"give a name ending in \.json, which can"):
        save_artifact("a\ud800", tmp_path / "prompt.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("a much longer text than the next one")
    save_artifact("short", path)
    assert [file.name for file in tmp_path.iterdir()] == ["prompt.txt"]
    assert load_artifact(path) == "short"
    with pytest.raises(OSError, match="directory"):
        save_artifact("short", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["prompt.txt"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    save_artifact("a", tmp_path / "prompt.txt")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "prompt.txt")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"{", "is no JSON"),
        ("a.json", b"[]", r"is \[\]"),
        ("a.json", b"{}", "has no parts"),
        ("a.json", b'{"a": 1}', "the part 'a', which is 1"),
        ("a.txt", b"\xff", "is no UTF-8 text"),
        ("a.txt", None, "No such file"),
    ],
)
def test_a_file_without_an_artifact_is_named(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        load_artifact(tmp_path / name)
    assert name in str(caught.value)
