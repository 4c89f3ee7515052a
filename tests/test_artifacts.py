"""Artifacts as candidates and as files."""

import enum
import os
import pickle
import stat
from pathlib import Path
from types import MappingProxyType
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


class Prompt(str, enum.Enum):  # noqa: UP042 - its `str()` is another text
    BRIEF = "Be brief."


def of_a_local_class(text: str) -> Any:
    class Local(str):
        def __str__(self) -> str:
            return "something else"

    return Local(text)


@pytest.mark.parametrize("text", [Prompt.BRIEF, of_a_local_class("Be brief.")], ids=["enum", "local class"])
def test_a_text_of_a_subclass_is_the_text_that_it_holds(tmp_path: Path, text: str) -> None:
    assert to_candidate(text) == {"artifact": "Be brief."}
    assert to_candidate({text: text}) == {"Be brief.": "Be brief."}
    assert to_artifact({"artifact": text}, like="x") == "Be brief."
    assert to_artifact({"a": text}, like={"a": "x"}) == {"a": "Be brief."}
    plain = [to_candidate(text), to_candidate({text: text}), to_artifact({"artifact": text}, like=text)]
    assert pickle.loads(pickle.dumps(plain)) == plain
    for name in ("prompt.txt", "prompt.json"):
        save_artifact(text, tmp_path / name)
        assert load_artifact(tmp_path / name) == "Be brief."


def test_parts_may_come_in_any_mapping(tmp_path: Path) -> None:
    parts: Any = MappingProxyType(PARTS)
    save_artifact(parts, tmp_path / "best.json")
    assert load_artifact(tmp_path / "best.json") == PARTS == to_artifact(PARTS, like=parts)


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


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_the_umask_is_never_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask is of the whole process"))
    save_artifact("a", tmp_path / "prompt.txt")


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    for mode in (0o600, 0o444, 0o664):
        path.touch()
        path.chmod(mode)
        save_artifact(f"{mode}", path)
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (f"{mode}", mode)


@pytest.mark.skipif(os.name != "posix", reason="links may be forbidden elsewhere")
def test_a_link_stays_a_link_to_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, real = tmp_path / "prompt.txt", tmp_path / "elsewhere" / "real.txt"
    real.write_text("old")
    link.symlink_to(real)
    save_artifact("new", link)
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.skipif(os.name != "posix", reason="POSIX's pipes")
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    save_artifact("Be brief.", tmp_path / "pipe")
    assert os.read(reader, 100) == b"Be brief."
    os.close(reader)


@pytest.mark.parametrize("name", [".json", "n" * 251 + ".txt"], ids=["json alone", "as long as may be"])
def test_every_name_that_a_file_may_have_serves(tmp_path: Path, name: str) -> None:
    artifact: Any = PARTS if name == ".json" else "text"
    save_artifact(artifact, tmp_path / name)
    assert load_artifact(tmp_path / name) == artifact


def test_what_holds_an_artifact_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    class Result:
        artifact = "Be brief."

    with pytest.raises(DefinitionError, match=r"is no artifact, but has one: pass its \.artifact"):
        save_artifact(Result(), tmp_path / "best.txt")  # type: ignore
    with pytest.raises(
        FileNotFoundError, match=r"best\.txt' cannot be written: there is no folder '.*nowhere'"
    ):
        save_artifact("Be brief.", tmp_path / "nowhere" / "best.txt")


@pytest.mark.parametrize("path", ["a\0b.json", "a\ud800b.txt"], ids=ascii)
def test_a_path_that_no_file_can_have_is_named(path: str) -> None:
    with pytest.raises(DataError, match=r"cannot be read: .*; give another path"):
        load_artifact(path)
    with pytest.raises(DataError, match=r"cannot be written: .*; give another path"):
        save_artifact("x", path)


def test_json_may_begin_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"plan": "x"}')
    assert load_artifact(tmp_path / "a.json") == {"plan": "x"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"[" * 100_000, "is nested too deeply"),
        ("a.json", b'{"a": "1", "b": "2", "a": "3"}', "the part 'a' more than once"),
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
