"""Tell what is of a library without importing it: before it is imported, nothing is."""

import sys

__all__ = ["is_dspys", "is_pillows"]


def is_dspys(value: object, name: str) -> bool:
    """Tell an instance of a class of DSPy's, such as `"Example"`.

    Example:
        >>> is_dspys({"question": "2 + 2?"}, "Example")
        False
    """
    return _is_instance_of("dspy", name, value)


def is_pillows(value: object) -> bool:
    """Tell an image of Pillow.

    Example:
        >>> is_pillows("cat.png")
        False
    """
    return _is_instance_of("PIL.Image", "Image", value)


def _is_instance_of(module: str, name: str, value: object) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
