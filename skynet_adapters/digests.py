"""One digest of several contents."""

from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["digest"]


def digest(parts: Iterable[bytes], size: int, start: bytes = b"") -> bytes:
    """Digest some contents, of which each counts with its length: `ab` and `c` are not `a` and `bc`.

    Args:
        parts: The contents.
        size: How many bytes the digest has.
        start: What comes before all contents, without its length.

    Example:
        >>> digest([b"ab", b"c"], 4) == digest([b"a", b"bc"], 4)
        False
    """
    whole = blake2b(start, digest_size=size)
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()
