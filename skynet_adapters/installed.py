"""Tell whose a source file is: a user's, or that of Python, an installed package or this one."""

import sysconfig
from pathlib import Path

__all__ = ["is_installed"]

_FOLDERS = (
    *(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "skynet"),
)


def is_installed(file: str) -> bool:
    """Tell whether a file belongs to Python, an installed package or this one, and so to no metric.

    Example:
        >>> import json
        >>> is_installed(json.__file__), is_installed("metric.py")
        (True, False)
    """
    path = Path(file)
    if file.startswith("<frozen ") or {"site-packages", "dist-packages"} & set(path.parts):
        return True  # as Python holds `os`; and what lies in the user's or the system's own folder
    return any(path.is_relative_to(folder) for folder in _FOLDERS)
