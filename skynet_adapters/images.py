"""Images of any kind, as the URL that a model gets."""

import base64
import io
import mimetypes
import os
import re
from pathlib import Path
from typing import Any

from .errors import DataError
from .loaded import is_pillows
from .score import shown

__all__ = ["image_url"]


def image_url(image: Any) -> str:
    r"""Give an image as a URL for a model: the one it has, or a `data:` URL.

    Args:
        image: A `skynet.Image` (that is `gepa.Image`), a `dspy.Image`, an image of Pillow, the bytes
            of a file, a `data:` or `http(s):` URL, or the path of a file. Bytes are known by how they
            begin (PNG, JPEG, GIF, WebP, BMP, TIFF, AVIF, HEIC), files of other formats by their name.

    Returns:
        The URL, as OpenAI's message format wants it.

    Raises:
        DataError: It is no image, or the file is not there.

    Example:
        >>> image_url("https://example.com/cat.png")
        'https://example.com/cat.png'
        >>> image_url(b"\x89PNG\r\n")
        'data:image/png;base64,iVBORw0K'
    """
    if isinstance(image, str) and image.startswith(("data:", "http://", "https://")):
        return image
    if isinstance(image, str | os.PathLike):
        return _file_url(Path(os.fspath(image)))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(image, bytes | bytearray):
        kind = _kind_of_bytes(image)
        if kind is None:
            raise _no_image(image)
        return _data_url(kind, image)
    if is_pillows(image):
        buffer = io.BytesIO()
        plain = image if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else image.convert("RGB")
        plain.save(buffer, format="PNG")
        return _data_url("image/png", buffer.getvalue())
    url, path, data = (getattr(image, name, None) for name in ("url", "path", "base64_data"))
    if isinstance(url, str):
        return url
    if isinstance(path, str):
        return _file_url(Path(path))
    if isinstance(data, str):
        return f"data:{image.media_type};base64,{data}"
    raise _no_image(image)


def _file_url(path: Path) -> str:
    name = shown(str(path), with_type=False)
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"the image {name} cannot be read: {error}") from None
    kind, named = _kind_of_bytes(data), mimetypes.guess_type(path.name)[0] or ""
    if kind is None and data and named.startswith("image/") and named not in _BEGINNINGS:
        kind = named
    if kind is None:
        raise DataError(f"the file {name} holds no image: it begins with {data[:12]!r}; give an image's file")
    return _data_url(kind, data)


# How the files of each format begin; what stands at the dots is a length.
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),  # a WAV begins with RIFF too
    "image/bmp": re.compile(rb"BM....\0\0\0\0", re.DOTALL),
    "image/tiff": re.compile(rb"II\*\0|MM\0\*"),
    "image/avif": re.compile(rb"....ftypavi[fs]", re.DOTALL),
    "image/heic": re.compile(rb"....ftyp(hei[cx]|mif1)", re.DOTALL),
}


def _kind_of_bytes(data: bytes | bytearray) -> str | None:
    return next((kind for kind, begins in _BEGINNINGS.items() if begins.match(data)), None)


def _no_image(given: object) -> DataError:
    return DataError(
        f"{shown(given)} is no image; give a skynet.Image, a dspy.Image, an image of Pillow, bytes, a data: "
        "or http: URL, or the path of a file"
    )


def _data_url(media_type: str, data: bytes | bytearray) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
