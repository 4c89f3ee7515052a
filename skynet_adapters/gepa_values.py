"""What the reflection model and a saved run get to see of a value: plain data, capped, with images.

Built around gepa 0.1.4.
"""

import base64
import dataclasses
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from gepa.image import Image

from .score import Score, clean_text, shown

__all__ = [
    "as_image",
    "defused",
    "for_prompt",
    "images_apart",
    "is_dspys",
    "is_image",
    "is_mapping",
    "kind_of",
    "output_for_prompt",
    "plain",
    "repr_of",
    "with_images",
]

# What one value may take in a reflection prompt or a saved run.
_MAX_VALUE_CHARS = 10_000
_MAX_DEPTH = 8

kind_of: Callable[[Any], Any] = type  # untyped, so that containers of the user stay Any


def is_mapping(value: Any) -> bool:
    """Tell a mapping, untyped as it comes."""
    return isinstance(value, Mapping)


def is_dspys(value: object, name: str) -> bool:
    """Tell what is DSPy's without importing it: before it is imported, nothing is."""
    kind = getattr(sys.modules.get("dspy"), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def plain(value: Any) -> Any:
    """Rebuild a value of texts, numbers, lists and dicts, for GEPA to pickle and compare."""
    return _Plain().whole(value)


def for_prompt(value: Any) -> Any:
    """Rebuild a value for the reflection prompt: images stay, placeholders of GEPA's go."""
    return _Plain(images=True).whole(value)


def output_for_prompt(output: Any) -> Any:
    """Rebuild an output for the reflection prompt, which says so where there is none."""
    return "(no output)" if output is None else for_prompt(output)


class _Plain:
    """Rebuild a value of texts, numbers, lists and dicts, no longer than is allowed in all.

    GEPA pickles outputs and writes records as markdown with `str`, without any limit (gepa 0.1.4).
    """

    def __init__(self, images: bool = False) -> None:
        self._images = images  # for a prompt: images stay, placeholders go
        self._left = _MAX_VALUE_CHARS

    def whole(self, value: Any) -> Any:
        try:
            return self._value(value, 0)
        except (Exception, SystemExit):  # a container of the user's own that raises when read
            return self._text(shown(value))

    def _value(self, value: Any, depth: int) -> Any:
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
                made["..."] = f"[{len(fields) - len(made)} more left out]"
                break
            made[self._text(key if isinstance(key, str) else repr_of(key))] = self._value(item, depth + 1)
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
        text = clean_text(text, max(self._left, 100))
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
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if hasattr(kind, "_asdict"):  # a named tuple
        return value._asdict()
    names: Any = getattr(kind, "model_fields", None)  # pydantic
    return {name: getattr(value, name) for name in names} if kind_of(names) is dict else None


def repr_of(value: object) -> str:
    """Write a value as `repr` does, whatever its own does."""
    try:
        return repr(value)
    except (Exception, SystemExit):
        return shown(value, with_type=False)


# --- images -----------------------------------------------------------------------------------------


def as_image(value: Any) -> Image | None:
    """Turn what is an image into GEPA's own, which reaches the reflection model as an image.

    Args:
        value: A `gepa.Image`, a `dspy.Image`, an image of Pillow, a `data:image/...;base64,` text, or
            anything else.

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
    if not _is_pillows(value):
        return Image(url=value if isinstance(value, str) else value.url)
    buffer = io.BytesIO()
    plain = value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else value.convert("RGB")
    plain.save(buffer, format="PNG")
    return Image(base64_data=base64.b64encode(buffer.getvalue()).decode(), media_type="image/png")


def is_image(value: Any) -> bool:
    """Tell what `as_image` makes an image of."""
    if isinstance(value, str):
        return value.startswith("data:image/") and ";base64," in value[:100]
    if isinstance(value, Image):
        # GEPA opens the file only when it writes the prompt, and then no text is proposed (gepa 0.1.4).
        return value.path is None or os.path.isfile(value.path)
    return is_dspys(value, "Image") or _is_pillows(value)


def _is_pillows(value: object) -> bool:
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return isinstance(kind, type) and isinstance(value, kind)


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
