"""Artifacts: what a run optimises, as a GEPA candidate and as a file.

An artifact is a text, or a dict of named parts, each a text. GEPA's candidates are always dicts, so a
text travels as the one part `"artifact"` and comes back as a text.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from .errors import DataError, DefinitionError
from .score import shown

__all__ = [
    "TEXT_COMPONENT",
    "Artifact",
    "fault_in_parts",
    "load_artifact",
    "save_artifact",
    "to_artifact",
    "to_candidate",
]

Artifact = str | dict[str, str]

A = TypeVar("A", str, dict[str, str])

# The component that stands for an artifact which is one text.
TEXT_COMPONENT = "artifact"

_SHAPE = 'it is a text, or a dict of named texts such as {"instructions": "...", "examples": "..."}'


def to_candidate(artifact: Artifact) -> dict[str, str]:
    """Turn an artifact into a GEPA candidate.

    Args:
        artifact: A text, or a dict of named parts.

    Returns:
        A new dict, component name to text, in the order of the parts. A text is the component
        `"artifact"`.

    Raises:
        DefinitionError: It has another shape: no parts, or a name or part that is no text.

    Example:
        >>> to_candidate("Answer in one word.")
        {'artifact': 'Answer in one word.'}
        >>> to_candidate({"plan": "First plan.", "answer": "Then answer."})
        {'plan': 'First plan.', 'answer': 'Then answer.'}
    """
    if isinstance(artifact, str):
        return {TEXT_COMPONENT: _exact(artifact)}
    fault = fault_in_parts(artifact)
    if fault is not None:
        raise DefinitionError(f"the artifact {fault}; {_SHAPE}")
    return {_exact(name): _exact(text) for name, text in artifact.items()}


def to_artifact(candidate: Mapping[str, str], like: A) -> A:
    """Turn a GEPA candidate back into an artifact.

    Args:
        candidate: Component name to text, with exactly the components that `like` has.
        like: The artifact that the run began with; it tells the shape and the order of the parts.

    Returns:
        A text when `like` is a text, else a new dict of its parts.

    Raises:
        DataError: The candidate has other components than `like`, or one that is no text.
        DefinitionError: `like` is no artifact.

    Example:
        >>> to_artifact({"artifact": "Answer in two words."}, like="Answer in one word.")
        'Answer in two words.'
        >>> to_artifact({"artifact": "Answer."}, like={"plan": "First plan.", "answer": "Then answer."})
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DataError: the candidate lacks the components ['plan', 'answer'] and has \
['artifact'] besides; it must have the components of the artifact
    """
    names = list(to_candidate(like))
    fault = fault_in_parts(candidate)
    if fault is not None:
        raise DataError(f"the candidate {fault}; it must have a text for each of {names}")
    missing = [name for name in names if name not in candidate]
    besides = [name for name in candidate if name not in names]
    if missing or besides:
        faults = [f"lacks the components {missing}"] if missing else []
        faults += [f"has {besides} besides"] if besides else []
        raise DataError(f"the candidate {' and '.join(faults)}; it must have the components of the artifact")
    if isinstance(like, str):
        return _exact(candidate[TEXT_COMPONENT])
    return {name: _exact(candidate[name]) for name in names}


def save_artifact(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write an artifact to a file, from which `load_artifact` gives the same artifact.

    The file is written beside its place and then moved there, so that it is never half of one. Who may
    read or write it stays as it was; a link stays a link to what is replaced.

    Args:
        artifact: A text, or a dict of named parts.
        path: Where to; folders are not made. A name that ends in `.json` gives JSON, a text as a
            JSON string. Any other name gives a plain text file in UTF-8, for a text only.

    Raises:
        DataError: Named parts under a name that does not end in `.json`, a text that UTF-8 cannot
            hold, or a path that no file can have.
        DefinitionError: It is no artifact.
        OSError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_artifact({"plan": "First plan.", "answer": "Then answer."}, folder / "best.json")
        >>> load_artifact(folder / "best.json")
        {'plan': 'First plan.', 'answer': 'Then answer.'}
    """
    path = Path(path)
    if isinstance(getattr(artifact, "artifact", None), str | dict):
        raise DefinitionError(f"{shown(artifact)} is no artifact, but has one: pass its .artifact")
    parts = to_candidate(artifact)
    if _is_json(path):
        data = _json_bytes(parts[TEXT_COMPONENT] if isinstance(artifact, str) else parts)
    elif isinstance(artifact, str):
        data = _text_bytes(parts[TEXT_COMPONENT], path)
    else:
        raise DataError(f"{str(path)!r} cannot hold an artifact of named parts; give a name ending in .json")
    try:
        _replace(path, data)
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise DataError(f"{str(path)!r} cannot be written: {error}; give another path") from error
    except FileNotFoundError:
        folder = str(path.parent)
        raise FileNotFoundError(
            f"{str(path)!r} cannot be written: there is no folder {folder!r}; make it"
        ) from None


def load_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact that `save_artifact` wrote, or that was written by hand.

    Args:
        path: A `.json` file that holds an object of texts or one text, with or without a byte order
            mark, or any other file, which is read as UTF-8 text without change.

    Returns:
        A text, or a dict of named parts.

    Raises:
        DataError: The file cannot be read, or holds no artifact; names the file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "prompt.txt"
        >>> save_artifact("Answer in one word.", file)
        >>> load_artifact(file)
        'Answer in one word.'
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a NUL or a lone surrogate in the path
        raise DataError(f"{str(path)!r} cannot be read: {error}; give another path") from error
    try:
        # Editors on Windows put a mark before JSON, where it says nothing; in a text it may be meant.
        text = data.decode("utf-8-sig" if _is_json(path) else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is no UTF-8 text: {error}; save it as UTF-8") from error
    if not _is_json(path):
        return text
    try:
        artifact = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise DataError(f"the artifact in {str(path)!r} is nested too deeply; {_SHAPE}") from error
    except ValueError as error:
        raise DataError(f"{str(path)!r} is no JSON: {error}") from error
    except DataError as error:
        raise DataError(f"the artifact in {str(path)!r} {error}") from None
    if isinstance(artifact, str):
        return artifact
    fault = fault_in_parts(artifact)
    if fault is not None:
        raise DataError(f"the artifact in {str(path)!r} {fault}; {_SHAPE}")
    return artifact


def fault_in_parts(parts: object) -> str | None:
    """Say what keeps named parts from being an artifact; `None` where nothing does."""
    if not isinstance(parts, Mapping):
        return f"is {shown(parts)}"
    if not parts:
        return "has no parts"
    for name, text in cast("Mapping[object, object]", parts).items():
        if not isinstance(name, str):
            return f"has a part named {shown(name)}, which is no text"
        if not isinstance(text, str):
            return f"has the part {name!r}, which is {shown(text)} and no text"
    return None


def _exact(text: str) -> str:
    """Give the text that a str enum or another subclass is, and not what its `str()` makes of it.

    GEPA pickles candidates, and an object of a class within a function cannot be pickled (gepa 0.1.4).
    """
    return str.__str__(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    parts = dict(pairs)
    if len(parts) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"has the part {twice!r} more than once; keep one, or give the others another name")
    return parts


def _is_json(path: Path) -> bool:
    return path.name.lower().endswith(".json")  # a file called `.json` too, which has no suffix


def _json_bytes(artifact: Artifact) -> bytes:
    try:
        return json.dumps(artifact, ensure_ascii=False, indent=2).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which JSON holds as an escape
        return json.dumps(artifact, indent=2).encode() + b"\n"


def _text_bytes(text: str, path: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{str(path)!r} cannot hold the artifact: {error}; give a name ending in .json, which can"
        ) from error


def _replace(path: Path, data: bytes) -> None:
    path = Path(os.path.realpath(path))  # a link stays where it is
    if path.exists() and not path.is_file():  # a pipe or a device is written to, a folder says what it is
        path.write_bytes(data)
        return
    # Not made of the name of `path`, which may be as long as a name can be.
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    # Opened like this, the umask is the system's to apply; asked for, it would be off for all threads.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):  # there is no such file yet, or nobody has modes here
                shutil.copymode(path, temporary)
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
