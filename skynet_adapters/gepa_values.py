"""What the reflection model and a saved run get to see of a value: plain data, capped, with images.

Built around gepa 0.1.4.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from gepa.image import Image

from .copies import kind_of
from .errors import ProgramFailedError
from .images import image_url
from .loaded import is_dspys, is_pillows
from .score import Score, clean_text, shown

__all__ = [
    "as_image",
    "defused",
    "for_prompt",
    "images_apart",
    "is_image",
    "is_mapping",
    "output_for_prompt",
    "plain",
    "repr_of",
    "with_images",
]

# What one value may take in a reflection prompt or a saved run.
_MAX_VALUE_CHARS = 10_000
_MAX_DEPTH = 8


def is_mapping(value: Any) -> bool:
    """Tell a mapping, untyped as it comes."""
    return isinstance(value, Mapping)


def plain(value: Any) -> Any:
    """Rebuild a value of texts, numbers, lists and dicts, for GEPA to pickle and compare."""
    return _Plain().whole(value)


def for_prompt(value: Any) -> Any:
    """Rebuild a value for the reflection prompt: images stay, placeholders of GEPA's go."""
    return _Plain(images=True).whole(value)


def output_for_prompt(output: Any, score: Score) -> Any:
    """Rebuild an output for the reflection prompt, which says so where there is none to judge."""
    if output is None and isinstance(score.error, ProgramFailedError):
        return "(no output)"
    return for_prompt(output)


class _Plain:
    """Rebuild a value of texts, numbers, lists and dicts, no longer than is allowed in all.

    GEPA pickles outputs and writes records as markdown with `str`, without any limit (gepa 0.1.4).
    """

    def __init__(self, images: bool = False) -> None:
        self._images = images  # for a prompt: images stay, placeholders go
        self._left = _MAX_VALUE_CHARS

    def whole(self, value: Any) -> Any:
        return self._value(value, 0)

    def _value(self, value: Any, depth: int) -> Any:
        try:
            return self._read(value, depth)
        except (Exception, SystemExit):  # a container of the user's own, an image whose file is closed
            return self._text(shown(value))

    def _read(self, value: Any, depth: int) -> Any:
        self._left -= 4  # a long list of nothing takes its room too
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return float(value)
        if isinstance(value, int) and value.bit_length() <= 1_000:  # `str` refuses very long ones
            return int(value)
        if is_image(value):
            return as_image(value) if self._images else "[image]"
        if isinstance(value, str):
            return self._text(value)
        if depth < _MAX_DEPTH:
            fields = _fields(value)
            if fields is not None:
                return self._dict(fields, depth)
            if isinstance(value, list | tuple | set | frozenset):
                return self._list(cast("Iterable[Any]", value), depth)
        return self._text(repr_of(value))

    def _dict(self, fields: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in fields.items():
            if self._left <= 0:
                made[_free("...", made)] = f"[{len(fields) - len(made)} more left out]"
                break
            name = self._text(key if isinstance(key, str) else repr_of(key))
            made[_free(name, made)] = self._value(item, depth + 1)
        return made

    def _list(self, items: Iterable[Any], depth: int) -> list[Any]:
        made: list[Any] = []
        items = list(items)
        for item in items:
            if self._left <= 0:
                made.append(f"[{len(items) - len(made)} more left out]")
                break
            made.append(self._value(item, depth + 1))
        return made

    def _text(self, text: str) -> str:
        # The exact text: what a subclass carries besides (a parsed page has 3 MB) would be pickled with it,
        # and where the class is a function's own, pickling fails.
        text = clean_text(str.__str__(text), max(self._left, 100))
        self._left -= len(text)
        return defused(text) if self._images else text


def defused(text: str) -> str:
    """Keep a placeholder of GEPA's prompt template out of the texts that a new candidate is made of."""
    return text.replace("<side_info>", "<side info>").replace("<curr_param>", "<curr param>")


def _fields(value: Any) -> Mapping[Any, Any] | None:
    kind = kind_of(value)
    if is_mapping(value):
        return value
    if is_dspys(value, "Example"):  # predictions too
        return value._store
    if dataclasses.is_dataclass(kind):
        return _attributes(value, (field.name for field in dataclasses.fields(kind) if field.repr))
    if hasattr(kind, "_asdict"):  # a named tuple
        return value._asdict()
    return _fields_of_model(value, kind)


def _fields_of_model(model: Any, kind: Any) -> dict[str, Any] | None:
    """Read what pydantic's own `repr` shows, unless it is left out when the model is dumped."""
    declared: Any = getattr(kind, "model_fields", None)
    if kind_of(declared) is not dict:
        return None
    fields: dict[str, Any] = declared | kind.model_computed_fields
    named = (name for name, field in fields.items() if field.repr and not getattr(field, "exclude", None))
    return _attributes(model, named) | (model.__pydantic_extra__ or {})


def _attributes(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Read attributes, of which one that cannot be read does not cost the others."""
    made: dict[str, Any] = {}
    for name in names:
        try:
            made[name] = getattr(value, name)
        except (Exception, SystemExit) as error:
            made[name] = f"({type(error).__name__} when it is read)"
    return made


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Give a taken name a number: 1 and "1" are two keys, and one text."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def repr_of(value: object) -> str:
    """Write a value as `repr` does, whatever its own does."""
    try:
        return repr(value)
    except (Exception, SystemExit):
        return shown(value, with_type=False)


# --- images -----------------------------------------------------------------------------------------


# The whole text: what goes on after the image would be lost in its address. Lines may be wrapped.
_IMAGE_URL = re.compile(r"data:image/[^\s,]{1,90};base64,(?:[\w+/-]{60,}+\r?\n)*[\w+/-]++={0,2}\s*", re.ASCII)


def as_image(value: Any) -> Image | None:
    """Turn what is an image into GEPA's own, which reaches the reflection model as an image.

    Args:
        value: A `gepa.Image`, a `dspy.Image`, an image of Pillow, a text that is a
            `data:image/...;base64,` address and nothing else, or anything else.

    Returns:
        The image; `None` for anything else, and for a file that is not there.

    Example:
        >>> as_image("data:image/png;base64,iVBORw0KGgo=").url
        'data:image/png;base64,iVBORw0KGgo='
        >>> as_image("text") is None
        True
    """
    if not is_image(value):
        return None
    if isinstance(value, Image):
        return value
    return Image(url=str.__str__(image_url(value)))  # the exact text, see `_Plain`


def is_image(value: Any) -> bool:
    """Tell what `as_image` makes an image of."""
    if isinstance(value, str):
        return value.startswith("data:image/") and _IMAGE_URL.fullmatch(value) is not None
    if isinstance(value, Image):
        # GEPA opens the file only when it writes the prompt, and then no text is proposed (gepa 0.1.4).
        return value.path is None or os.path.isfile(value.path)
    return is_dspys(value, "Image") or is_pillows(value)


def _has_image(value: Any, depth: int = 0) -> bool:
    kind = kind_of(value)  # a container of the user's own might raise when read
    if depth < _MAX_DEPTH and kind is dict:
        return any(_has_image(item, depth + 1) for item in value.values())
    if depth < _MAX_DEPTH and kind in (list, tuple):
        return any(_has_image(item, depth + 1) for item in value)
    return is_image(value)


def images_apart(score: Score) -> tuple[Score, dict[str, Any]]:
    """Take the further information that holds images out of what `Score.text` writes."""
    images = {
        key: value for key, value in score.info.items() if key != "component_feedback" and _has_image(value)
    }
    if not images:
        return score, images
    return score._replace(info={key: value for key, value in score.info.items() if key not in images}), images


def with_images(
    record: dict[str, Any], images: Mapping[str, Any], taken: Sequence[str] = ()
) -> dict[str, Any]:
    """Put images into a record under keys of their own, where GEPA finds them."""
    for key, value in images.items():
        key = defused(key)
        if key in record or key in taken or key.endswith("_specific_info"):
            key = f"{key} of the metric"
        record[key] = for_prompt(value)
    return record
