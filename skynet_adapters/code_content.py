"""What code says, apart from its form: instructions, names and imports, of functions and of whole files."""

import ast
import bisect
import dis
import importlib.util
import itertools
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from .installed import is_installed

__all__ = [
    "Names",
    "bindings",
    "constants",
    "files_imported",
    "instructions",
    "names_in",
    "parsed",
    "syntax_of_file",
]


class Names(NamedTuple):
    """The names in a function's code, and in the functions and classes within it."""

    read: set[str]  # as globals
    assigned: set[str]  # as globals: by `global name`
    filled: set[str]  # globals of which an item is set, or that are changed by a method of theirs
    mentioned: set[str]  # in any way, such as an attribute
    imported: list[ast.stmt]


_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_NO_STEPS = {"CACHE", "EXTENDED_ARG", "NOP", "RESUME"}
_CHANGING = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "extendleft",
        "insert",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "setdefault",
        "update",
    ]
)
# Generators and coroutines; *args and **kwargs.
_FLAGS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200


def instructions(code: CodeType) -> bytes:
    """Write down what code does: neither line numbers nor the file's name count, nor how lines are broken.

    Constants are not in it.

    Example:
        >>> one, other = compile("a = (1 +  b)", "one", "exec"), compile("a = 1 + b  # Sum", "other", "exec")
        >>> instructions(one) == instructions(other)
        True
    """
    # Jumps are counted in steps, since there are more or fewer instructions that are none.
    steps = _steps(code)
    places = [step.offset for step in steps]
    said: list[tuple[str, Any]] = []
    for step in steps:
        if step.opcode in _JUMPS:
            said.append((step.opname, bisect.bisect_left(places, step.argval)))
        else:
            said.append((step.opname, None if step.opcode in dis.hasconst else step.arg))
    tried: Any = getattr(dis.Bytecode(code), "exception_entries", ())
    handled = [
        (*(bisect.bisect_left(places, offset) for offset in (e.start, e.end, e.target)), e.depth, e.lasti)
        for e in tried
    ]
    names = code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _FLAGS
    return repr([said, handled, names, counts]).encode("utf-8", "surrogatepass")


def constants(code: CodeType) -> list[Any]:
    """Give the constants that code loads, in their order, and its docstring.

    Example:
        >>> constants(compile("a = 2.5 * b", "", "exec"))
        [2.5, None]
    """
    loaded = [step.argval for step in _steps(code) if step.opcode in dis.hasconst]
    return loaded + [text for text in code.co_consts[:1] if isinstance(text, str)]


def _steps(code: CodeType) -> list[dis.Instruction]:
    """Give the instructions without those that only its form makes."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NO_STEPS]
    of_lines = {
        number
        for at, step in enumerate(steps)
        if step.opname == "STORE_NAME" and step.argval == "__firstlineno__"  # of a class, from Python 3.13 on
        for number in (at - 1, at)
    }
    return [step for at, step in enumerate(steps) if at not in of_lines]


def names_in(code: CodeType) -> Names:
    """Find the names in code, and in the code within it."""
    found = Names(set(), set(), set(), set(code.co_names), [])
    steps = _steps(code)
    for at, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            found.read.add(step.argval)
            following = steps[at + 1] if at + 1 < len(steps) else step
            if following.opname in ("LOAD_ATTR", "LOAD_METHOD") and following.argval in _CHANGING:
                found.filled.add(step.argval)
        elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.assigned.add(step.argval)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") or [
            one.opname for one in steps[at : at + 2]
        ] == ["COPY", "COPY"]:
            found.filled.update(_indexed(steps, at))
        elif step.opname == "IMPORT_NAME":
            found.imported.append(_import(steps, at))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_in(constant)
            for mine, its in zip(found[:4], inner[:4], strict=True):
                mine |= its
            found.imported.extend(inner.imported)
    if found.mentioned & {"import_module", "__import__"}:  # of a name that may stand in a text
        texts = [text for text in _texts(code) if text.replace(".", "").isidentifier()]
        found.imported.extend(ast.Import([ast.alias(text)]) for text in texts)
    return found


def _texts(code: CodeType) -> Iterator[str]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _texts(constant)
        elif isinstance(constant, str):
            yield constant


def _indexed(steps: list[dis.Instruction], at: int) -> Iterator[str]:
    """Give the global whose item is set at a step: it is loaded before the key."""
    wanted = 1  # on the stack: the key
    for step in reversed(steps[:at]):
        if wanted == 0:
            if step.opname == "LOAD_GLOBAL":
                yield step.argval
            return
        wanted -= dis.stack_effect(step.opcode, step.arg, jump=False)


def _import(steps: list[dis.Instruction], at: int) -> ast.stmt:
    """Write an import as it stood in the source."""
    level, names = steps[at - 2].argval, steps[at - 1].argval
    if level or names:
        return ast.ImportFrom(steps[at].argval or None, [ast.alias(name) for name in names or ()], level)
    return ast.Import([ast.alias(steps[at].argval)])


# --- files ------------------------------------------------------------------------------------------


def parsed(source: bytes | str) -> ast.Module:
    """Parse a file's source."""
    # Of two threads that parse at once one may get "recursion depth mismatch" (CPython 3.11).
    with _parsing:
        return ast.parse(source)


_parsing = threading.Lock()


def syntax_of_file(path: Path) -> tuple[bytes, list[Path]]:
    """Give what a file says without comments and form, and the user's files that it imports."""
    source = path.read_bytes()
    if path.suffix != ".py":
        return source, []
    try:
        tree = parsed(source)
        said = ast.dump(tree).encode("utf-8", "surrogatepass")
    except (SyntaxError, ValueError, RecursionError):
        return source, []
    return said, list(files_imported(ast.walk(tree), [path.parent]))


def files_imported(nodes: Iterable[ast.AST], folders: list[Path]) -> Iterator[Path]:
    """Give the user's files that imports in a file of these folders lead to, without importing anything."""
    roots = list(folders)  # where an absolute import may begin: here, or above the package that this is in
    for folder in folders:
        while (folder / "__init__.py").is_file():
            folder = folder.parent
            roots.append(folder)
    for node in nodes:
        if isinstance(node, ast.Import):
            names, bases = [alias.name for alias in node.names], roots
        elif isinstance(node, ast.ImportFrom):
            bases = (
                [folder.joinpath(*[".."] * (node.level - 1)) for folder in folders] if node.level else roots
            )
            stem = [node.module] if node.module else []
            names = [*stem, *(".".join([*stem, alias.name]) for alias in node.names if alias.name != "*")]
        else:
            continue
        for dotted in names:
            found = [path for base in bases for path in _files_of(base, dotted)]
            if not found and not getattr(node, "level", 0):
                found = [path for base in _elsewhere(dotted) for path in _files_of(base, dotted)]
            yield from found


def _files_of(base: Path, dotted: str) -> Iterator[Path]:
    target = base
    for part in dotted.split("."):
        target = target / part
        for path in (target.with_name(f"{target.name}.py"), target / "__init__.py"):
            if path.is_file() and not is_installed(str(path)):
                yield path


def _elsewhere(dotted: str) -> Iterator[Path]:
    """Give the folder where Python would find a module, when it is not one of Python's own."""
    top = dotted.partition(".")[0]
    if top in sys.stdlib_module_names:
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, AttributeError, ValueError):
        return
    if spec is not None:
        places = spec.submodule_search_locations or [spec.origin or ""]
        yield from (Path(place).parent for place in itertools.islice(places, 1) if place)


def bindings(file: str, name: str) -> tuple[bytes, list[Path]]:
    """Give the statements of a file that give a global its value, and the user's files they import."""
    try:
        tree = parsed(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return b"", []
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        parts: list[Any] = []
        if isinstance(
            node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Import | ast.ImportFrom | ast.Expr
        ):
            parts = [node]
        elif isinstance(node, ast.With | ast.AsyncWith):
            parts = node.items
        elif isinstance(node, ast.For | ast.AsyncFor):
            parts = [node.target, node.iter]
        found += [part for part in parts if any(_binds(inner, name) for inner in ast.walk(part))]
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting.extend(ast.iter_child_nodes(node))
    said = "\n".join(sorted(map(ast.dump, found))).encode("utf-8", "surrogatepass")
    return said, list(files_imported(found, [Path(file).parent]))


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.alias):
        return (node.asname or node.name) == name
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
