"""Import a metric's file and the files beside it, apart from every other module.

Each import gets a package of its own, under a name that no other one has, whose folder is the
metric's. An `import helpers` in a file of that folder is turned to that package, whenever it runs.
So two folders may have files of the same name, an edited file is read anew, `sys.path` stays as it
is, and dataclasses, pydantic models and relative imports find their module in `sys.modules`.
"""

import builtins
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .errors import DefinitionError

__all__ = ["PACKAGE_PREFIX", "check_skynet", "import_apart", "package_of", "plain_module"]

PACKAGE_PREFIX = "_skynet_metric_"
_numbers = itertools.count(1)

# The folder of each package; kept for good, since a function may import late.
_folders: dict[str, Path] = {}

# These have to be the same module for everybody: they hold what a rollout took, and which model judges.
_SHARED = frozenset({"skynet", "skynet_adapters"})


def import_apart(path: Path) -> ModuleType:
    """Execute a Python file as a module of its own; what it raises is raised.

    Args:
        path: The file. Files and packages beside it can be imported by name.

    Returns:
        The new module, another one for each call.
    """
    package = f"{PACKAGE_PREFIX}{next(_numbers)}"
    _folders[package] = path.parent
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    # The loader is for `importlib.resources`, which reads the folder by it; nothing is executed.
    root = ModuleSpec(package, SourceFileLoader(package, str(path.parent / "__init__.py")), is_package=True)
    root.submodule_search_locations = [str(path.parent)]
    sys.modules[package] = importlib.util.module_from_spec(root)
    # As the file is called, so that an import of `my_metric` beside `my-metric.py` finds the other file.
    name = f"{package}." + path.stem.replace(".", "-")  # for a dot would make it a module of another one
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    if spec is None or spec.loader is None:
        raise AssertionError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for other in [other for other in sys.modules if package_of(other) == package]:
            del sys.modules[other]
        raise
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    # Another process knows none of these modules, so their functions travel by value.
    cloudpickle.register_pickle_by_value(sys.modules[package])  # pyright: ignore[reportUnknownMemberType]
    return module


def package_of(module: str) -> str:
    """Give the package that a module was imported apart in, or an empty text."""
    package = module.partition(".")[0]
    return package if package in _folders else ""


def plain_module(name: str | None) -> str | None:
    """Give a module's name as its file would have it, the same for every import of it."""
    package = package_of(name or "")
    return name[len(package) + 1 :] if name and package else name


def check_skynet() -> None:
    """Find out whether `import skynet` gives this package's helper module, without importing it.

    Raises:
        DefinitionError: It gives another one, or there is none; says the mend.

    Example:
        >>> check_skynet()
    """
    mend = (
        "uninstall the distribution named skynet, or rename your own module, and install skynet-adapters anew"
    )
    loaded = sys.modules.get("skynet")
    spec = importlib.util.find_spec("skynet") if loaded is None else loaded.__spec__
    if spec is None:
        raise DefinitionError(f"the helper module skynet cannot be imported (there is none); {mend}")
    file = Path(spec.origin or "")
    # By its text: skynet 1.1 of PyPI, once it is imported, never returns and ignores Ctrl-C.
    if not file.is_file() or "SKYNET_ADAPTERS" not in file.read_text(encoding="utf-8", errors="replace"):
        place = spec.origin or list(spec.submodule_search_locations or ())
        raise DefinitionError(
            f"`import skynet` gives another module than the one of skynet-adapters, from {place}; {mend}"
        )


class _Loader(SourceFileLoader):
    """Reads a source file as it is now, and has its imports look beside it first."""

    def get_code(self, fullname: str) -> CodeType:
        # Without bytecode files: one is taken for current when the file was edited within a second.
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        package = package_of(module.__name__)
        module.__dict__["__builtins__"] = vars(builtins) | {"__import__": _Importer(package)}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of the packages that were made here, and no other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or not package_of(fullname):
            return None
        for folder in path:
            spec = FileFinder(folder, (_Loader, [".py"])).find_spec(fullname)
            if spec is not None:
                return spec
        return None


_finder = _Finder()


class _Importer:
    """The `__import__` of the modules of one folder, and of the functions in them."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._beside: dict[str, bool] = {}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if not level and top == "skynet":
            check_skynet()
        if level or not self._is_beside(top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(f"{self._package}.{name}", globals, locals, fromlist or (), 0)
        return module if fromlist else sys.modules[f"{self._package}.{top}"]

    def _is_beside(self, top: str) -> bool:
        if top not in self._beside:
            self._beside[top] = top not in _SHARED and self._has(top)
        return self._beside[top]

    def _has(self, top: str) -> bool:
        folder = _folders[self._package]
        package = folder / top
        files = [package / "__init__.py", folder / f"{top}.py"]
        own = next((file for file in files if file.is_file()), None)
        loaded = sys.modules.get(top)
        if own is None:  # a folder without __init__.py, which any other module of that name outdoes
            return package.is_dir() and loaded is None and importlib.util.find_spec(top) is None
        # When the program has imported this very file, its classes have to be the same to the metric.
        file = getattr(loaded, "__file__", None)
        return file is None or Path(file).resolve() != own.resolve()
