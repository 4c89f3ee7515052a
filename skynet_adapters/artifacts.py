"""Artifacts: what a run optimises, as a GEPA candidate and as a file.

An artifact is a text, or a dict of named parts, each a text. GEPA's candidates are always dicts, so a
text travels as the one part `"artifact"` and comes back as a text.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast

from .errors import DataError, DefinitionError
from .score import shown

__all__ = ["TEXT_COMPONENT", "Artifact", "load_artifact", "save_artifact", "to_artifact", "to_candidate"]

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
        return {TEXT_COMPONENT: str(artifact)}
    fault = _fault_in_parts(artifact)
    if fault is not None:
        raise DefinitionError(f"the artifact {fault}; {_SHAPE}")
    return dict(artifact)


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
    fault = _fault_in_parts(candidate)
    if fault is not None:
        raise DataError(f"the candidate {fault}; it must have a text for each of {names}")
    missing = [name for name in names if name not in candidate]
    besides = [name for name in candidate if name not in names]
    if missing or besides:
        faults = [f"lacks the components {missing}"] if missing else []
        faults += [f"has {besides} besides"] if besides else []
        raise DataError(f"the candidate {' and '.join(faults)}; it must have the components of the artifact")
    if isinstance(like, str):
        return candidate[TEXT_COMPONENT]
    return {name: candidate[name] for name in names}


def save_artifact(artifact: Artifact, path: str | os.PathLike[str]) -> None:
    """Write an artifact to a file, from which `load_artifact` gives the same artifact.

    The file is written beside its place and then moved there, so that it is never half of one.

    Args:
        artifact: A text, or a dict of named parts.
        path: Where to; folders are not made. A name that ends in `.json` gives JSON, a text as a
            JSON string. Any other name gives a plain text file in UTF-8, for a text only.

    Raises:
        DataError: Named parts under a name that does not end in `.json`, or a text that UTF-8 cannot
            hold.
        DefinitionError: It is no artifact.
        OSError: The file cannot be written.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_artifact({"plan": "First plan.", "answer": "Then answer."}, folder / "best.json")
        >>> load_artifact(folder / "best.json")
        {'plan': 'First plan.', 'answer': 'Then answer.'}
    """
    path = Path(path)
    to_candidate(artifact)
    if _is_json(path):
        data = _json_bytes(artifact)
    elif isinstance(artifact, str):
        data = _text_bytes(artifact, path)
    else:
        raise DataError(f"{str(path)!r} cannot hold an artifact of named parts; give a name ending in .json")
    _replace(path, data)


def load_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact that `save_artifact` wrote, or that was written by hand.

    Args:
        path: A `.json` file that holds an object of texts or one text, or any other file, which is
            read as UTF-8 text without change.

    Returns:
        A text, or a dict of named parts.

    Raises:
        DataError: The file cannot be read, or holds no artifact; names the file.

    Example:
        >>> file = Path(tempfile.mkdtemp()) / "prompt.txt"
        >>> save_artifact("Answer in one word.", file)
        >>> load_artifact(file)
        'Answer in one word.'
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is no UTF-8 text: {error}; save it as UTF-8") from error
    if not _is_json(path):
        return text
    try:
        artifact = json.loads(text)
    except ValueError as error:
        raise DataError(f"{str(path)!r} is no JSON: {error}") from error
    if isinstance(artifact, str):
        return artifact
    fault = _fault_in_parts(artifact)
    if fault is not None:
        raise DataError(f"the artifact in {str(path)!r} {fault}; {_SHAPE}")
    return artifact


def _fault_in_parts(parts: object) -> str | None:
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


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


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
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if os.name == "posix":  # mkstemp lets nobody else read, whatever the user's umask says
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
