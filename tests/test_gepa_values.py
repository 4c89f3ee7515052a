"""What the reflection model and a saved run get to see of a value."""

import base64
import dataclasses
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import pytest
from gepa.image import Image
from PIL import Image as Pillow

from skynet_adapters.gepa_values import for_prompt, is_image, plain

PIXEL = "data:image/png;base64,iVBORw0KGgo="
LONG = "A long question. " * 40 + "THE END"


def of_a_local_class(text: str) -> Any:
    class Local(str):
        def __str__(self) -> str:
            return "something else"

    local: Any = Local(text)
    local.page = "y" * 1_000_000
    return local


@pytest.mark.parametrize("made", [plain, for_prompt])
def test_texts_of_a_subclass_become_the_text_that_they_hold(made: Any) -> None:
    text = of_a_local_class("a")
    value = made({text: [text, {text}], "url": of_a_local_class(PIXEL) if made is for_prompt else "u"})
    assert value["a"] == ["a", ["a"]]
    assert [type(key) for key in value] == [str, str]
    assert len(pickle.dumps(value)) < 1_000


@dataclasses.dataclass
class Settings:
    name: str
    key: str = dataclasses.field(default="SECRET", repr=False)


class Account(pydantic.BaseModel):
    name: str
    key: str = pydantic.Field(default="SECRET", repr=False)
    token: str = pydantic.Field(default="SECRET", exclude=True)


class Open(pydantic.BaseModel, extra="allow"):
    number: int

    @pydantic.computed_field
    @property
    def double(self) -> int:
        return 2 * self.number

    @pydantic.computed_field(repr=False)
    @property
    def hidden(self) -> str:
        return "SECRET"


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (Settings("n"), {"name": "n"}),
        (Account(name="n"), {"name": "n"}),
        ([{"of": Settings("n")}], [{"of": {"name": "n"}}]),
        (Open(number=2, more=[3]), {"number": 2, "double": 4, "more": [3]}),  # type: ignore[call-arg]
    ],
)
def test_the_fields_that_are_shown_are_those_that_their_class_shows(value: Any, seen: Any) -> None:
    assert plain(value) == for_prompt(value) == seen


@dataclasses.dataclass
class Unfilled:
    question: str
    answer: str = dataclasses.field(init=False)


class Faulty(pydantic.BaseModel):
    question: str

    @pydantic.computed_field
    @property
    def answer(self) -> str:
        raise RuntimeError


class Unreadable(Mapping[str, str]):
    def __getitem__(self, key: str) -> str:
        raise RuntimeError

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        return "unreadable"


def test_a_field_that_cannot_be_read_does_not_cost_the_others(tmp_path: Path) -> None:
    Pillow.new("RGB", (4, 4)).save(tmp_path / "a.png")
    closed = Pillow.open(tmp_path / "a.png")
    closed.close()
    seen = for_prompt({"question": LONG, "picture": closed, "rows": [Unreadable(), 1]})
    assert seen["question"] == LONG
    assert "PngImageFile" in seen["picture"]
    assert seen["rows"] == ["unreadable (Unreadable)", 1]
    for made in (plain, for_prompt):
        assert made(Unfilled(LONG)) == {"question": LONG, "answer": "(AttributeError when it is read)"}
        assert made(Faulty(question=LONG)) == {"question": LONG, "answer": "(RuntimeError when it is read)"}


def test_no_key_takes_the_place_of_another() -> None:
    assert plain({1: "a", "1": "b", "1 (2)": "c"}) == {"1": "a", "1 (2)": "b", "1 (2) (2)": "c"}
    assert plain(dict.fromkeys(["a\ud800", "a\udfff"], 1)) == {"a\ufffd": 1, "a\ufffd (2)": 1}
    assert for_prompt({"<side_info>": 1, "<side info>": 2}) == {"<side info>": 1, "<side info> (2)": 2}
    cut = plain({"...": "mine", "long": "x" * 20_000, "more": 1})
    assert cut["..."] == "mine"
    assert cut["... (2)"] == "[1 more left out]"
    json.dumps(cut)


@pytest.mark.parametrize(
    ("text", "image"),
    [
        (PIXEL, True),
        (PIXEL + "\n", True),
        ("data:image/svg+xml;charset=utf-8;base64,PHN2Zy8+", True),
        ("data:image/png;base64," + "a-_/" * 500_000, True),
        ("data:image/png;base64," + base64.encodebytes(bytes(200)).decode(), True),
        (PIXEL + "\n\nHere is the chart you asked for", False),
        (PIXEL + " and more", False),
        ("data:image/png;base64,AAAA is how an image begins", False),
        ("data:image/png;base64,", False),
        ("data:image/png;base64,AAAA\n" + "words " * 100, False),
        ("data:image/png;base64," + "a" * 2_000_000 + "!", False),
        ("data:text/plain;base64,AAAA", False),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else str(value),
)
def test_an_image_is_a_text_that_is_an_image_as_a_whole(text: str, image: bool) -> None:
    assert is_image(text) is image
    assert isinstance(for_prompt(text), Image) is image
    if not image:
        assert for_prompt({"chart": text})["chart"][-5:] == text[-5:]
