"""Images of any kind, as the URL that a model gets."""

import base64
import io
import mimetypes
import os
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
            of a file, a `data:` or `http(s):` URL, or the path of a file.

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
        return _data_url(_kind_of_bytes(image), image)
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
    raise DataError(
        f"{shown(image)} is no image; give a skynet.Image, a dspy.Image, an image of Pillow, bytes, a data: "
        "or http: URL, or the path of a file"
    )


def _file_url(path: Path) -> str:
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"the image {shown(str(path), with_type=False)} cannot be read: {error}") from None
    return _data_url(mimetypes.guess_type(path.name)[0] or _kind_of_bytes(data), data)


def _kind_of_bytes(data: bytes | bytearray) -> str:
    starts = {b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}
    return f"image/{next((kind for start, kind in starts.items() if data.startswith(start)), 'png')}"


def _data_url(media_type: str, data: bytes | bytearray) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
