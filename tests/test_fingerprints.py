"""The fingerprint of a metric: what changes it, what does not, and where it can be taken."""

import collections
import copy
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from skynet_adapters import DefinitionError, Metric, fingerprint
from skynet_adapters.fingerprints import parts_of

OK = (1.0, {"feedback": "OK"})
count = itertools.count()
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _no_bytecode_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is edited within a second must not be read from its old bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Write files into a new folder, import its metric.py under a new name and give its `score`."""

    def load_metric(source: str, files: dict[str, str] | None = None) -> Any:
        folder = tmp_path / f"folder{next(count)}"
        for name, text in {"metric.py": source, **(files or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            score = imported(folder / "metric.py").score
        forget_modules_in(folder)
        return score

    return load_metric


def forget_modules_in(folder: Path) -> None:
    """Let the next folder have modules of the same names."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def imported(path: Path, name: str | None = None) -> ModuleType:
    name = name or f"skynet_metric_{next(count)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(source: str, filename: str = "<cell 1>") -> Any:
    """Define `score` as a notebook does: without a file."""
    namespace: dict[str, Any] = {}
    exec(compile(textwrap.dedent(source), filename, "exec"), namespace)
    return namespace["score"]


def made_with(value: Any) -> Any:
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return (1.0, {"feedback": str(value)})

    return score


def with_default(value: Any) -> Any:
    def score(input: Any, output: Any, expected: Any = None, more: Any = value) -> Any:
        return OK

    return score


def with_keyword_default(value: Any) -> Any:
    def score(input: Any, output: Any, expected: Any = None, *, more: Any = value) -> Any:
        return OK

    return score


def with_argument(value: Any) -> Any:
    return functools.partial(takes_more, value)


def with_keyword(value: Any) -> Any:
    return functools.partial(takes_keyword, more=value)


def takes_more(more: Any, input: Any, output: Any, expected: Any = None) -> Any:
    return OK


def takes_keyword(input: Any, output: Any, expected: Any = None, *, more: Any = None) -> Any:
    return OK


def first_check(output: Any) -> bool:
    return bool(output)


def second_check(output: Any) -> bool:
    return not output


METRIC = """
def score(input, output, expected=None):
    return 1.0, {"feedback": "OK"}
"""


# --- its form ------------------------------------------------------------------------------------


def test_a_fingerprint_is_32_hexadecimal_digits():
    assert re.fullmatch(r"[0-9a-f]{32}", fingerprint(made_with(1)))


def test_the_same_metric_has_the_same_fingerprint_again(load):
    score = load(METRIC)
    assert fingerprint(score) == fingerprint(score)


# --- what changes it -----------------------------------------------------------------------------


def test_other_code_changes_it():
    one = compiled("def score(i, o, e=None): return len(o), {'feedback': o}")
    other = compiled("def score(i, o, e=None): return len(i), {'feedback': o}")
    assert fingerprint(one) != fingerprint(other)


def test_another_name_that_is_called_changes_it():
    one = compiled("def score(i, o, e=None): return o.lower(), {}")
    other = compiled("def score(i, o, e=None): return o.upper(), {}")
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"), [("1.0", "2.0"), ("1", "True"), ("'a'", "'b'"), ("(1, 2)", "(1, 3)")]
)
def test_another_constant_changes_it(one, other):
    source = "def score(i, o, e=None): return {}, {{}}"
    assert fingerprint(compiled(source.format(one))) != fingerprint(compiled(source.format(other)))


def test_a_constant_in_an_inner_function_changes_it():
    source = "def score(i, o, e=None): return sorted(o, key=lambda one: {}), {{}}"
    assert fingerprint(compiled(source.format(1))) != fingerprint(compiled(source.format(2)))


HOLDERS = [made_with, with_default, with_keyword_default, with_argument, with_keyword]
HOLDER_IDS = ["closure", "default", "keyword default", "argument of a partial", "keyword of a partial"]


class Slotted:
    __slots__ = ("threshold",)

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold


class Settings:
    def __init__(self, threshold: Any) -> None:
        self.threshold = threshold

    def check(self, output: Any) -> bool:
        return bool(output == self.threshold)


@dataclasses.dataclass
class Options:
    threshold: Any


Named = collections.namedtuple("Named", "threshold")


VALUES = {
    "number": (1, 2),
    "float": (0.5, 0.7),
    "number and its float": (1, 1.0),
    "text": ("a", "b"),
    "none": (None, False),
    "list": ([1], [2]),
    "dict": ({"a": 1}, {"a": 2}),
    "set": ({1}, {2}),
    "dataclass": (Options(1), Options(2)),
    "object": (Settings(1), Settings(2)),
    "object in an object": (Settings(Settings(1)), Settings(Settings(2))),
    "function": (first_check, second_check),
    "method": (Settings(1).check, Settings(2).check),
    "built-in": (max, min),
    "partial": (functools.partial(first_check, output=1), functools.partial(first_check, output=2)),
    "metric": (Metric(made_with(1)), Metric(made_with(2))),
    "class": (Settings, Slotted),
    "list of functions": ([first_check], [second_check]),
    "functions of which one comes twice": (
        [first_check, second_check, first_check],
        [first_check, second_check, second_check],
    ),
    "dict with a function beside a number": (
        {"check": first_check, "weight": 1},
        {"check": first_check, "weight": 2},
    ),
    "list of objects": ([Settings(1)], [Settings(2)]),
    "object with a list of functions": (Settings([first_check]), Settings([second_check])),
    "named tuple": (Named(1), Named(2)),
    "ordered dict": (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    "pattern": (re.compile("a"), re.compile("b")),
    "path": (Path("a.txt"), Path("b.txt")),
    "numpy array": (np.array([1]), np.array([2])),
    "object with slots": (Slotted(0.5), Slotted(0.7)),
}


@pytest.mark.parametrize(("one", "other"), VALUES.values(), ids=VALUES)
def test_another_value_in_the_closure_changes_it(one, other):
    assert fingerprint(made_with(one)) != fingerprint(made_with(other))


@pytest.mark.parametrize("value", [one for one, _ in VALUES.values()], ids=VALUES)
def test_an_equal_value_in_the_closure_does_not_change_it(value):
    assert fingerprint(made_with(value)) == fingerprint(made_with(copy.deepcopy(value)))


@pytest.mark.parametrize("holder", HOLDERS, ids=HOLDER_IDS)
@pytest.mark.parametrize("kind", ["number", "dict", "function"])
def test_another_value_in_closure_default_or_partial_changes_it(holder, kind):
    one, other = VALUES[kind]
    assert fingerprint(holder(one)) != fingerprint(holder(other))
    assert fingerprint(holder(one)) == fingerprint(holder(copy.deepcopy(one)))


def test_a_dataclass_in_the_closure_can_be_digested():
    assert fingerprint(made_with(Options)) == fingerprint(made_with(Options))


@pytest.mark.parametrize(
    "value",
    [
        "textwrap.dedent",
        "json.dumps",
        "dataclasses.make_dataclass('Point', 'x')",
        "pluggy.HookspecMarker('x')",
    ],
)
def test_standard_library_and_installed_packages_are_not_looked_into(tmp_path, value):
    path = tmp_path / "metric.py"
    path.write_text(
        "import dataclasses, json, textwrap, pluggy\n"
        f"def make(value={value}):\n"
        "    def score(input, output, expected=None):\n"
        "        return 1.0, {'feedback': str(value)}\n"
        "    return score\n"
        "score = make()\n"
    )
    script = """
        import importlib.util, sys
        spec = importlib.util.spec_from_file_location("a_metric", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from skynet_adapters import fingerprint
        opened = []
        looking = False

        def note(event, arguments):
            if looking and event == "open":
                opened.append(str(arguments[0]))

        sys.addaudithook(note)
        looking = True
        fingerprint(module.score)
        looking = False
        print("\\n".join(opened))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_an_object_that_holds_itself_can_be_digested():
    loop = Settings(1)
    loop.threshold = loop
    assert fingerprint(made_with(loop)) == fingerprint(made_with(loop))


def test_containers_that_hold_themselves_can_be_digested():
    loop: list[Any] = [1]
    loop.append(loop)
    knot: dict[str, Any] = {}
    knot["self"] = knot
    assert fingerprint(made_with(loop)) == fingerprint(made_with(loop))
    assert fingerprint(made_with(knot)) == fingerprint(made_with(knot))


def test_a_function_that_holds_itself_can_be_digested():
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return OK if output else score(input, 1, expected)

    assert fingerprint(score) == fingerprint(score)


def test_a_closure_that_is_not_filled_yet_can_be_digested():
    def make() -> Any:
        def score(input: Any, output: Any, expected: Any = None) -> Any:
            return later

        first = fingerprint(score)
        later = OK
        return first, fingerprint(score)

    first, second = make()
    assert first != second


def test_a_helper_in_the_same_file_changes_it(load):
    source = METRIC.replace("1.0,", "helper(),")
    assert fingerprint(load(source + "def helper(): return 1\n")) != fingerprint(
        load(source + "def helper(): return 2\n")
    )


def test_the_rest_of_its_file_does_not_change_it(load):
    for more in ("# a comment\n", "\n\n", "OTHER = 1\n", "def other():\n    return 2\n"):
        assert (
            fingerprint(load(METRIC)) == fingerprint(load(more + METRIC)) == fingerprint(load(METRIC + more))
        )


SAYS = """
def score(input, output, expected=None):
    return 1.0, {"feedback": %s}
"""


@pytest.mark.parametrize(
    ("imports", "said"),
    [
        ("import words", "words.WORD"),
        ("from words import WORD", "WORD"),
        ("import words as w", "w.WORD"),
        ("import words as w", "getattr(w, 'W' + 'ORD')"),
        ("import os, words", "words.WORD"),
        ("from words import *", "WORD"),
    ],
)
def test_what_it_uses_of_an_imported_sibling_changes_it(load, imports, said):
    source = f"{imports}\n{SAYS % said}"
    one, other = load(source, {"words.py": "WORD = 'a'"}), load(source, {"words.py": "WORD = 'b'"})
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(load(source, {"words.py": "WORD = 'a'"}))


def test_an_import_within_the_function_counts_too(load):
    source = """
        def score(input, output, expected=None):
            from words import WORD
            return 1.0, {"feedback": WORD}
    """
    assert fingerprint(load(source, {"words.py": "WORD = 'a'"})) != fingerprint(
        load(source, {"words.py": "WORD = 'b'"})
    )


def test_what_a_sibling_imports_changes_it(load):
    source = f"import words\n{SAYS % 'words.A'}"
    one = load(source, {"words.py": "from letters import A", "letters.py": "A = 'a'"})
    other = load(source, {"words.py": "from letters import A", "letters.py": "A = 'b'"})
    assert fingerprint(one) != fingerprint(other)


def test_siblings_that_import_each_other_can_be_digested(load):
    source = f"import words\n{SAYS % 'words'}"
    one = load(source, {"words.py": "import letters", "letters.py": "import words"})
    assert fingerprint(one) == fingerprint(
        load(source, {"words.py": "import letters", "letters.py": "import words"})
    )


def test_a_module_in_a_folder_below_changes_it(load):
    source = f"from checks.words import WORD\n{SAYS % 'WORD'}"
    one, other = (
        load(source, {"checks/__init__.py": "", "checks/words.py": f"WORD = '{word}'"}) for word in "ab"
    )
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "source",
    [
        f"import checks.words\n{SAYS % 'checks.words.WORD'}",
        SAYS % "__import__('checks.words').words.WORD",
        SAYS.replace("    return", "    from checks.words import WORD\n    return") % "WORD",
    ],
)
def test_the_init_of_a_folder_below_changes_it(load, source):
    one, other = (
        load(source, {"checks/__init__.py": f"A = '{word}'", "checks/words.py": "WORD = 'a'"})
        for word in "ab"
    )
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "imports",
    [
        "from .words import WORD",
        "from . import words",
        "from package_of_metrics import words",
        "from package_of_metrics.words import WORD",
        "import package_of_metrics.words",
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_sibling_in_the_same_package_changes_it(tmp_path, monkeypatch, imports, is_late):
    said = "WORD" if imports.endswith("WORD") else imports.split()[-1] + ".WORD"
    source = f"{imports}\n{SAYS % said}"
    if is_late:
        source = SAYS.replace("    return", f"    {imports}\n    return") % said
    seen = []
    for word in "ab":
        package = tmp_path / word / "package_of_metrics"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "words.py").write_text(f"WORD = '{word}'")
        (package / "metric.py").write_text(source)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / word))
            seen.append(fingerprint(importlib.import_module("package_of_metrics.metric").score))
        forget_modules_in(tmp_path)
    assert seen[0] != seen[1]


def test_a_file_beside_it_that_is_not_imported_does_not_change_it(load):
    assert fingerprint(load(METRIC, {"words.py": "WORD = 'a'"})) == fingerprint(
        load(METRIC, {"words.py": "WORD = 'b'"})
    )


def test_an_imported_file_that_is_no_python_does_not_prevent_it(load):
    source = SAYS.replace("    return", "    import broken\n    return") % "broken"
    one, other = load(source, {"broken.py": "def ("}), load(source, {"broken.py": "def )"})
    assert fingerprint(one) != fingerprint(other)


# --- options of a Metric -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"score_range": (0, 10)},
        {"score_names": ["a"]},
        {"failure_score": -1.0},
        {"max_feedback_chars": 200},
        {"max_feedback_chars": None},
    ],
    ids=repr,
)
def test_an_option_that_changes_what_is_answered_changes_it(options):
    score = made_with(1)
    assert fingerprint(Metric(score, **options)) != fingerprint(Metric(score))


@pytest.mark.parametrize(
    "options",
    [
        {"name": "another"},
        {"timeout": 5.0},
        {"timeout": None},
        {"stop_after": None},
        {"max_failures_in_a_row": 3},
        {"memo": None},
        {"copy_inputs": False},
    ],
    ids=repr,
)
def test_an_option_that_does_not_change_what_is_answered_does_not_change_it(options):
    score = made_with(1)
    assert fingerprint(Metric(score, **options)) == fingerprint(Metric(score))


def test_what_a_metric_has_judged_does_not_change_it():
    metric = Metric(made_with(1))
    before = fingerprint(metric)
    metric.score_case({}, "a")
    metric.score_case({}, None)
    assert fingerprint(metric) == before == fingerprint(copy.deepcopy(metric))


# --- kinds of metrics ----------------------------------------------------------------------------


class Judge:
    def __init__(self, threshold: Any) -> None:
        self.threshold = threshold

    def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        return (self.threshold, {"feedback": "OK"})

    def score(self, input: Any, output: Any, expected: Any = None) -> Any:
        return (self.threshold, {"feedback": "OK"})

    def other(self, input: Any, output: Any, expected: Any = None) -> Any:
        return (0.0, {"feedback": "OK"})

    @staticmethod
    def loose(input: Any, output: Any, expected: Any = None) -> Any:
        return OK

    @classmethod
    def of_class(cls, input: Any, output: Any, expected: Any = None) -> Any:
        return OK


@dataclasses.dataclass
class DataJudge:
    threshold: float

    def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        return (self.threshold, {"feedback": "OK"})


class SlottedJudge:
    __slots__ = ("threshold",)

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        return (self.threshold, {"feedback": "OK"})


async def async_score(input: Any, output: Any, expected: Any = None) -> Any:
    return OK


@functools.wraps(async_score)
def wrapped_score(*args: Any) -> Any:
    return OK


KINDS = {
    "function": takes_more,
    "async function": async_score,
    "lambda": lambda input, output: OK,
    "partial": functools.partial(takes_more, 1),
    "partial of a partial": functools.partial(functools.partial(takes_more), 1),
    "callable object": Judge(0.5),
    "callable dataclass": DataJudge(0.5),
    "bound method": Judge(0.5).score,
    "static method": Judge.loose,
    "class method": Judge.of_class,
    "wrapped": wrapped_score,
    "built-in": max,
    "method of a built-in object": "text".startswith,
    "class": Judge,
    "cell of a notebook": compiled("def score(i, o, e=None): return 1.0, {'feedback': 'OK'}"),
    "lru_cache": functools.lru_cache(takes_more),
}


@pytest.mark.parametrize("score", KINDS.values(), ids=KINDS)
def test_every_kind_of_metric_has_a_fingerprint(score):
    assert re.fullmatch(r"[0-9a-f]{32}", fingerprint(score))
    assert fingerprint(score) == fingerprint(score)


def test_metrics_of_different_kinds_and_code_differ():
    kinds = ["async function", "lambda", "callable object", "bound method", "built-in", "cell of a notebook"]
    assert len({fingerprint(KINDS[kind]) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("kind", [Judge, DataJudge, SlottedJudge], ids=lambda kind: kind.__name__)
def test_the_state_of_a_callable_object_changes_it(kind):
    assert fingerprint(kind(0.5)) != fingerprint(kind(0.7))
    assert fingerprint(kind(0.5)) == fingerprint(kind(0.5))


def test_the_state_behind_a_bound_method_changes_it():
    assert fingerprint(Judge(0.5).score) != fingerprint(Judge(0.7).score)
    assert fingerprint(Judge(0.5).score) == fingerprint(Judge(0.5).score)
    assert fingerprint(Judge(0.5).score) != fingerprint(Judge(0.5).other)


def test_lambdas_on_one_line_differ():
    one, other = (lambda i, o: (1.0, {"feedback": "OK"})), (lambda i, o: (2.0, {"feedback": "OK"}))
    assert fingerprint(one) != fingerprint(other)


def test_cells_of_a_notebook_with_the_same_code_have_the_same_fingerprint():
    assert fingerprint(compiled(METRIC, "<cell 1>")) == fingerprint(compiled(METRIC, "<cell 2>"))


def test_built_in_functions_differ():
    assert fingerprint(max) != fingerprint(min)


def test_functions_behind_a_cache_differ():
    one, other = functools.lru_cache(made_with(1)), functools.lru_cache(made_with(2))
    assert fingerprint(one) != fingerprint(other)


# --- the same everywhere -------------------------------------------------------------------------

STABLE = {
    "plain": METRIC,
    "closure": """
        def make(allowed):
            def score(input, output, expected=None):
                return output in allowed, {"feedback": "OK"}
            return score
        score = make({"alpha": 1, "beta": [2.5, None]})
    """,
    "set in the closure": """
        def make(allowed):
            def score(input, output, expected=None):
                return output in allowed, {"feedback": "OK"}
            return score
        score = make({"alpha", "beta", "gamma", "delta"})
    """,
    "set as default": """
        def score(input, output, expected=None, allowed=frozenset({"alpha", "beta", "gamma", "delta"})):
            return output in allowed, {"feedback": "OK"}
    """,
    "set in the code": """
        def score(input, output, expected=None):
            return float(output in {"alpha", "beta", "gamma", "delta"}), {"feedback": "OK"}
    """,
    "set in the code of an inner function": """
        def score(input, output, expected=None):
            right = lambda one: one in {"alpha", "beta", "gamma", "delta"}
            return float(right(output)), {"feedback": "OK"}
    """,
    "set of functions in the closure": """
        def first(output): return 1
        def second(output): return 2
        def third(output): return 3
        def fourth(output): return 4
        def make(checks):
            def score(input, output, expected=None):
                return min(check(output) for check in checks), {"feedback": "OK"}
            return score
        score = make({first, second, third, fourth})
    """,
    "object": """
        class Judge:
            def __init__(self):
                self.allowed = {"alpha", "beta", "gamma", "delta"}
                self.helper = object()
            def score(self, input, output, expected=None):
                return output in self.allowed, {"feedback": "OK"}
        score = Judge().score
    """,
    "object in the closure": """
        import threading
        class Judge:
            def __init__(self):
                self.lock = threading.Lock()
        def make(judge):
            def score(input, output, expected=None):
                return bool(judge), {"feedback": "OK"}
            return score
        score = make(Judge())
    """,
}


@pytest.mark.parametrize("source", STABLE.values(), ids=STABLE)
def test_it_is_the_same_in_every_process(tmp_path, source):
    path = tmp_path / "metric.py"
    path.write_text(textwrap.dedent(source))
    script = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('a_metric', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "from skynet_adapters import fingerprint\n"
        "print(fingerprint(module.score))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script, str(path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert seen == {fingerprint(imported(path, "a_metric").score)}


@pytest.mark.parametrize("source", STABLE.values(), ids=STABLE)
def test_it_survives_a_reload(tmp_path, monkeypatch, source):
    name = f"reloaded_metric_{next(count)}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    before = fingerprint(module.score)
    assert fingerprint(importlib.reload(module).score) == before


def test_it_is_the_same_in_another_folder(load):
    assert fingerprint(load(METRIC)) == fingerprint(load(METRIC))


def test_a_call_does_not_change_it(load):
    score = load(METRIC)
    before = fingerprint(score)
    for _ in range(100):  # Python specialises the bytecode of a function that is called often
        score({}, "a")
    assert fingerprint(score) == before


HOLDS_A_PROGRAM = """
    import sys
    import dspy
    from dspy.evaluate import SemanticF1
    from skynet_adapters import fingerprint, from_dspy_metric

    class Judge(dspy.Module):
        def __init__(self, limit, instructions, model):
            super().__init__()
            self.read = dspy.ChainOfThought(dspy.Signature("answer, wanted -> right: bool", instructions))
            self.read.predict.lm = dspy.LM(model, api_key=KEY)
            self.limit = limit

        def forward(self, example, pred, trace=None):
            return self.limit

    def held(thing):
        def score(input, output, expected=None):
            return thing(example=input, pred=output), {"feedback": "Judged."}
        return score

    class Other(Judge):
        def forward(self, example, pred, trace=None):
            return self.limit + 1

    class Typed(Judge):
        def __init__(self, kind, limit):
            super().__init__(1, "Be strict.", "openai/a")
            signature = dspy.Signature("answer -> score")
            self.read = dspy.Predict(signature.with_updated_fields("score", type_=kind))
            self._limit, self.stage = limit, limit

    class Saved:
        def __init__(self, limit):
            self.limit = limit

        def dump_state(self, path):
            raise OSError(path)

        def __call__(self, example, pred, trace=None):
            return self.limit

    changed = [(1, "Be strict.", "openai/a"), (2, "Be strict.", "openai/a"), (1, "Be kind.", "openai/a")]
    judges = [Judge(*parts) for parts in [*changed, (1, "Be strict.", "openai/b")]]
    judges += [Other(1, "Be strict.", "openai/a"), Typed(float, 1), Typed(int, 1), Typed(int, 2)]
    judges += [Saved(1), Saved(2)]
    metrics = [held(judge) for judge in judges] + [from_dspy_metric(judge) for judge in judges]
    metrics += [from_dspy_metric(SemanticF1()), from_dspy_metric(SemanticF1(threshold=0.5))]
    before = [fingerprint(metric) for metric in metrics]
    judges[0](example=1, pred=2)
    judges[0].history.append({"prompt": "?"})
    judges[0].read.predict.lm.history.append({"prompt": "?"})
    assert [fingerprint(metric) for metric in metrics] == before
    assert len(set(before)) == len(before)
    print(*before)
"""


def test_a_program_or_model_that_a_metric_holds_counts_and_its_history_and_key_do_not():
    def printed(key):
        source = f"KEY = {key!r}\n" + textwrap.dedent(HOLDS_A_PROGRAM)
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("sk-Zx81mQ0pL27v") == printed("sk-9fT3vB6wKq2L") != ""


def test_what_goes_on_without_end_has_no_fingerprint():
    class Endless:
        def __reduce_ex__(self, protocol):
            return Endless, (Endless(),)

    thing = Endless()
    with pytest.raises(DefinitionError, match="goes on without end"):
        fingerprint(lambda input, output: thing)


# --- what its code refers to ----------------------------------------------------------------------------

# A source, a part of it and another one in its place: another metric.
EDITS = {
    "a constant of a helper": ("def score(i, o, e=None): return helper(o)\ndef helper(o): return 1", "1"),
    "a helper of a helper": (
        "def score(i, o, e=None): return a(o)\ndef a(o): return [b(x) for x in o]\ndef b(x): return 1",
        "1",
    ),
    "a global": ("LIMIT = 1\ndef score(i, o, e=None): return len(o) > LIMIT", "1"),
    "a global in an inner function": (
        "LIMIT = 1\ndef score(i, o, e=None): return any(len(x) > LIMIT for x in o)",
        "1",
    ),
    "a global in an inner class": (
        "LIMIT = 1\ndef score(i, o, e=None):\n    class A:\n        limit = LIMIT\n    return A.limit",
        "1",
    ),
    "a global dict of functions": (
        "CHECKS = {'a': lambda o: 1, 'b': lambda o: 2}\ndef score(i, o, e=None): return CHECKS[o](o)",
        "1",
    ),
    "a global set of functions": (
        "CHECKS = {lambda o: 1, lambda o: 2}\ndef score(i, o, e=None): return [one(o) for one in CHECKS]",
        "1",
    ),
    "which of two like functions": (
        "def made(n): return lambda: n\na, b = made(1), made(2)\nALL = [a, b, a]\n"
        "def score(i, o, e=None): return ALL",
        "a, b, a",
        "a, b, b",
    ),
    "a default of a helper": (
        "def score(i, o, e=None): return helper(o)\ndef helper(o, least=1): return least",
        "1",
    ),
    "an attribute of a function": (
        "def score(i, o, e=None): return score.limit\nscore.limit = 1",
        "= 1",
        "= 2",
    ),
    "a global partial": (
        "import functools\ndef helper(n, o): return n\nCHECK = functools.partial(helper, 1)\n"
        "def score(i, o, e=None): return CHECK(o)",
        "1",
    ),
    "a global method": (
        "class A:\n    def check(self, o): return 1\nCHECK = A().check\n"
        "def score(i, o, e=None): return CHECK(o)",
        "1",
    ),
    "a method of a built-in object": (
        "import re\nMATCH = re.compile('1').match\ndef score(i, o, e=None): return MATCH(o)",
        "1",
    ),
    "a class": (
        "class A:\n    def check(self, o): return 1\ndef score(i, o, e=None): return A().check(o)",
        "1",
    ),
    "a base class": (
        "class B:\n    def check(self, o): return 1\nclass A(B): pass\n"
        "def score(i, o, e=None): return A().check(o)",
        "1",
    ),
    "a metaclass": (
        "class M(type):\n    def check(cls, o): return 1\nclass A(metaclass=M): pass\n"
        "def score(i, o, e=None): return A.check(o)",
        "1",
    ),
    "an attribute of a class": ("class A:\n    limit = 1\ndef score(i, o, e=None): return A.limit", "1"),
    "a property": (
        "class A:\n    @property\n    def limit(self): return 1\ndef score(i, o, e=None): return A().limit",
        "1",
    ),
    "a static method": (
        "class A:\n    @staticmethod\n    def limit(): return 1\ndef score(i, o, e=None): return A.limit()",
        "1",
    ),
    "a class method": (
        "class A:\n    @classmethod\n    def limit(cls): return 1\ndef score(i, o, e=None): return A.limit()",
        "1",
    ),
    "the class of a global object": (
        "class A:\n    def check(self, o): return 1\nCHECK = A()\n"
        "def score(i, o, e=None): return CHECK.check(o)",
        "1",
    ),
    "a field of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    limit: int = 1\n"
        "def score(i, o, e=None): return A().limit",
        "1",
    ),
    "the factory of a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n"
        "    limit: list = dataclasses.field(default_factory=lambda: [1])\n"
        "def score(i, o, e=None): return A().limit",
        "1",
    ),
    "a field of a named tuple": (
        "import typing\nclass A(typing.NamedTuple):\n    limit: int = 1\n"
        "def score(i, o, e=None): return A().limit",
        "1",
    ),
    "a field of a pydantic model": (
        "import pydantic\nclass A(pydantic.BaseModel):\n    limit: int = 1\n"
        "def score(i, o, e=None): return A().limit",
        "1",
    ),
    "a validator of a pydantic model": (
        "import pydantic\nclass A(pydantic.BaseModel):\n    limit: int = 0\n"
        "    @pydantic.field_validator('limit')\n    def least(cls, value): return 1\n"
        "def score(i, o, e=None): return A(limit=4).limit",
        "1",
    ),
    "a value of an enum": (
        "import enum\nclass A(enum.Enum):\n    LOW = 1\ndef score(i, o, e=None): return A.LOW.value",
        "1",
    ),
    "an annotation": (
        "import pydantic\n@pydantic.validate_call\ndef helper(o: int): return o\n"
        "def score(i, o, e=None): return helper(o)",
        "int",
        "str",
    ),
    "a function behind a cache": (
        "import functools\n@functools.cache\ndef helper(o): return 1\n"
        "def score(i, o, e=None): return helper(o)",
        "1",
    ),
    "a function behind a package's wrapper": (
        "import contextlib\n@contextlib.contextmanager\ndef helper(o): yield 1\n"
        "def score(i, o, e=None):\n    with helper(o) as said: return said",
        "1",
    ),
    "a decorator": (
        "import functools\ndef twice(function):\n    @functools.wraps(function)\n"
        "    def inner(*given): return function(*given) * 1\n    return inner\n"
        "@twice\ndef score(i, o, e=None): return 3",
        "1",
    ),
    "a decorated function": (
        "import functools\ndef twice(function):\n    @functools.wraps(function)\n"
        "    def inner(*given): return function(*given) * 3\n    return inner\n"
        "@twice\ndef score(i, o, e=None): return 1",
        "1",
    ),
    "the factory of a defaultdict": (
        "import collections\nD = collections.defaultdict(lambda: 1)\n"
        "def score(i, o, e=None): return D.get(o)",
        "1",
    ),
    "an attribute of a dict of one's own": (
        "class D(dict): pass\nD1 = D(a=3)\nD1.limit = 1\ndef score(i, o, e=None): return D1.limit",
        "= 1",
        "= 2",
    ),
    "a coroutine": (
        "async def score(i, o, e=None): return await helper()\nasync def helper(): return 1",
        "1",
    ),
    "which argument is which": ("def score(input, output): return input", "input, output", "output, input"),
    "what is tried": (
        "def score(i, o, e=None):\n"
        "    try:\n        a(o)\n    except ValueError:\n        return 0\n    b(o)",
        "        a(o)\n    except ValueError:\n        return 0\n    b(o)",
        "        a(o)\n        b(o)\n    except ValueError:\n        return 0",
    ),
    "a function for a type": (
        "import functools\n@functools.singledispatch\ndef helper(o): return 3\n"
        "@helper.register(int)\ndef _(o): return 1\ndef score(i, o, e=None): return helper(o)",
        "1",
    ),
    "a class in a registry that its base fills": (
        "ALL = {}\nclass B:\n    def __init_subclass__(cls): ALL[cls.__name__] = cls\n"
        "class A(B):\n    def check(self, o): return 1\ndef score(i, o, e=None): return ALL[o]().check(o)",
        "1",
    ),
    "a function in a list that code fills": (
        "ALL = []\ndef register(function): ALL.append(function)\n@register\ndef helper(o): return 1\n"
        "def score(i, o, e=None): return [one(o) for one in ALL] or register(o)",
        "1",
    ),
    "a class made by a function": (
        "import dataclasses\nA = dataclasses.make_dataclass('A', [('limit', int, 1)])\n"
        "def score(i, o, e=None): return A().limit",
        "1",
    ),
    "a frame": (
        "import pandas\nT = pandas.DataFrame({'a': range(9), 'b': list('abcdefghi')})\n"
        "def score(i, o, e=None): return T.loc[o]",
        "efghi",
        "efghj",
    ),
    "an array of objects": (
        "import numpy\nT = numpy.array([1, 'a', None], dtype=object)\ndef score(i, o, e=None): return T[o]",
        "'a'",
        "'b'",
    ),
    "what a client was made with": (
        "import openai\nC = openai.OpenAI(api_key='sk-Zx81mQ0pL27v', max_retries=1)\n"
        "def score(i, o, e=None): return C.models.list()",
        "=1",
        "=2",
    ),
}


@pytest.mark.parametrize(("source", "part", "other"), [(*one, "7")[:3] for one in EDITS.values()], ids=EDITS)
def test_what_its_code_refers_to_changes_it(source, part, other):
    assert source.count(part) == 1
    before = fingerprint(compiled(source))
    assert fingerprint(compiled(source, "<cell 2>")) == before
    assert fingerprint(compiled(f"# Comment.\n\nother = 1\n{source}\n\ndef more(): return 1")) == before
    assert fingerprint(compiled(source.replace(part, other))) != before


@pytest.mark.parametrize(
    "reads",
    [
        "globals()['help' + 'er']()",
        "eval('help' + 'er()')",
        "getattr(sys.modules[__name__], 'help' + 'er')()",
        "object.__subclasses__()[-1]()",
    ],
)
def test_everything_that_a_text_may_name_changes_it(reads):
    source = f"import sys\ndef score(i, o, e=None): return {reads}\ndef helper(): return 1\nrest = [object()]"
    assert fingerprint(compiled(source)) == fingerprint(compiled(source))
    assert fingerprint(compiled(source)) != fingerprint(compiled(source.replace("1", "2")))


def test_form_does_not_change_it():
    one = "def score(i, o, e=None):\n    while o:\n        pass\n    return min(len(o), 1), {'feedback': 'a'}"
    other = (
        "def score(\n    i,\n    o,\n    e=None,\n):\n\n    while o: pass  # for ever\n\n"
        "    return (\n        min(\n            len(o),\n            1,\n        ),\n"
        '        {"feedback": "a"},\n    )'
    )
    assert fingerprint(compiled(one)) == fingerprint(compiled(other))


STATES = """
    import itertools, logging, random, threading
    import openai

    log = logging.getLogger(__name__)
    LOCK, RANDOM, NUMBERS = threading.Lock(), random.Random(0), itertools.count()
    CLIENT = openai.OpenAI(api_key="sk-Zx81mQ0pL27v", base_url="http://127.0.0.1:1", max_retries=0)
    calls, MODEL, FUNCTION, SEEN, CACHE, COUNTS, LATE = 0, None, None, [], {}, {}, set()

    class Model:
        def __call__(self, output):
            return len(output)

    def made():
        count = 0
        def counted():
            nonlocal count
            count += 1
            return count
        return counted

    COUNTED = made()

    def bumped():
        global bumps
        bumps += 1

    bumps = 0

    def score(input, output, expected=None):
        global calls, MODEL, FUNCTION
        calls, FUNCTION = calls + 1, FUNCTION or (lambda: output)
        print(bumps, bumped())
        MODEL = MODEL or Model()
        SEEN.append(output)
        CACHE[input["n"], output] = MODEL(output)
        COUNTS[output] = COUNTS.get(output, 0) + 1
        COUNTS[f"{output} {input['n']}"] = 0
        COUNTS[f"{output} {input['n']}"] += 1
        LATE.add(output)
        score.last = output
        with LOCK:
            log.info("%s %s %s", next(NUMBERS), RANDOM.random(), COUNTED())
        try:
            CLIENT.models.list()
        except openai.APIConnectionError:
            pass
        return 1.0, {"feedback": "OK"}
"""


def test_what_changes_as_it_runs_does_not_change_it():
    score = compiled(STATES)
    before = fingerprint(score)
    for n in range(3):
        score({"n": n}, "a")
    assert fingerprint(score) == before


def test_of_what_changes_as_it_runs_the_first_value_counts_where_there_is_a_file(load):
    edits = [
        ("", ""),
        ("Random(0)", "Random(1)"),
        (':1"', ':2"'),
        ("calls, MODEL, FUNCTION,", "MODEL, calls, FUNCTION,"),
    ]
    assert len({fingerprint(load(STATES.replace(*edit))) for edit in edits}) == 4


def test_where_a_client_is_imported_from_counts(load):
    source = f"from clients import CLIENT\n{SAYS % 'CLIENT'}"
    client = "import openai\nCLIENT = openai.OpenAI(api_key='sk-Zx81mQ0pL27v', base_url='http://{}')\n"
    one, other = (load(source, {"clients.py": client.format(host)}) for host in "ab")
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(load(source, {"clients.py": client.format("a") + "# comment"}))


def test_a_key_is_no_part_of_it():
    source = "API_KEY = {!r}\ndef score(i, o, e=None): return API_KEY"
    one, other, word = (
        fingerprint(compiled(source.format(key)))
        for key in ("sk-Zx81mQ0pL27v", "sk-9fT3vB6wKq2L", "category")
    )
    assert one == other != word


def test_a_path_beside_its_file_is_the_same_in_another_folder(load):
    source = """
        import os
        from pathlib import Path
        ONE, OTHER = Path(__file__).parent / "a.txt", os.path.join(os.path.dirname(__file__), "b.txt")
        def score(input, output, expected=None):
            return 1.0, {"feedback": ONE.read_text() + open(OTHER).read()}
    """
    assert (
        fingerprint(load(source))
        == fingerprint(load(source))
        != fingerprint(load(source.replace("a.t", "c.t")))
    )


@pytest.mark.parametrize("is_imported", [False, True])
def test_data_that_its_module_read_count_as_they_are(load, is_imported):
    words = 'from pathlib import Path\nWORDS = (Path(__file__).parent / "words.txt").read_text()\n'
    source = f"import words\n{SAYS % 'words.WORDS'}" if is_imported else words + SAYS % "WORDS"
    files = {"words.py": words} if is_imported else {}
    one, other = (load(source, {"words.txt": text, **files}) for text in "ab")
    assert fingerprint(one) == fingerprint(load(source, {"words.txt": "a", **files})) != fingerprint(other)


def test_what_is_nested_deeply_or_holds_itself_can_be_digested():
    source = """
        DEEP = None
        for n in range(20_000):
            DEEP = [DEEP, (n,)]
        class Node:
            def __init__(self, before): self.before, self.after = before, None
        FIRST = node = Node(None)
        for n in range(5_000):
            node.after = node = Node(node)
        FIRST.before = node
        def one(o): return other(o) if DEEP else FIRST
        def other(o): return one(o), BOTH
        BOTH = {one, other, score} if "score" in dir() else {one, other}
        def score(i, o, e=None): return one(o), BOTH
    """
    assert fingerprint(compiled(source)) == fingerprint(compiled(source))
    assert fingerprint(compiled(source)) != fingerprint(compiled(source.replace("(n,)", "(n, 1)")))


def test_an_object_that_cannot_be_looked_at_counts_as_its_class():
    source = """
        class Proxy:
            def __reduce_ex__(self, protocol): raise RuntimeError("outside of a request")
            def __getattribute__(self, name): raise RuntimeError("outside of a request")
        PROXY = Proxy()
        def score(i, o, e=None): return PROXY
    """
    assert fingerprint(compiled(source)) == fingerprint(compiled(source))


def test_a_module_is_the_users_wherever_it_lies(tmp_path, monkeypatch):
    found = []
    for n, text in enumerate(["WORD = 'a'", "WORD = 'b'", "# b\nWORD = 'b'"]):
        name = f"words_elsewhere{n}"
        (tmp_path / f"{n}").mkdir()
        (tmp_path / f"{n}" / "words_elsewhere.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path / f"{n}"))
        source = "def score(i, o, e=None):\n    import words_elsewhere\n    return words_elsewhere.WORD"
        found.append(fingerprint(compiled(source)))
        assert name not in sys.modules
        assert "words_elsewhere" not in sys.modules
    assert found[0] != found[1] == found[2]


# --- the same wherever its function is --------------------------------------------------------------------

EVERYWHERE = """
import collections, dataclasses, enum, functools, logging, re, sys, typing
from pathlib import Path
import pydantic
import words
from words import Level, Rule, strict

log = logging.getLogger(__name__)
RULE, LEVEL, FILE = Rule(0.7), Level.HIGH, Path(__file__).parent / "labels.txt"
CHECKS = {strict, lambda o: 1, lambda o: 2}
FALLBACK = collections.defaultdict(lambda: 0.5)
SEEN = {}

class Answer(pydantic.BaseModel):
    label: typing.Literal["a", "b"] = "a"
    rule: Rule = Rule()

class Mine(enum.Enum):
    A = Answer()

class Check:
    most: typing.ClassVar[set[str]] = {"alpha", "beta", "gamma"}

    def __init__(self, rule: Rule):
        self.rule = rule

    @property
    def limit(self):
        return self.rule.weight

def logged(function):
    @functools.wraps(function)
    def inner(*given, **named):
        log.debug("asked")
        return function(*given, **named)
    return inner

CHECK = Check(RULE)

@logged
def score(input: dict, output: str, expected: dict | None = None):
    import late
    SEEN[output] = words.strict(output, RULE) and late.WORD
    used = LEVEL, FILE, CHECKS, FALLBACK, Mine.A, CHECK.limit, re.match("a", output), __name__
    return float(len(used)), {"feedback": "OK"}

if __name__ == "__main__":
    import cloudpickle
    from skynet_adapters import fingerprint, load_metric
    if sys.argv[1] == "pickle":
        sys.stdout.buffer.write(cloudpickle.dumps(score))
    else:
        before = fingerprint(score)
        score({}, "a")
        import metric
        for one in (score, metric.score, load_metric("metric.py").score):
            assert fingerprint(one) == before
        print(before)
"""
WORDS_EVERYWHERE = """
import dataclasses, enum
class Level(enum.Enum):
    HIGH = 2
@dataclasses.dataclass
class Rule:
    weight: float = 0.5
    words: list = dataclasses.field(default_factory=lambda: ["a"])
def strict(output, rule=Rule()):
    return len(output) > rule.weight
"""


def test_it_is_the_same_as_a_script_a_module_a_file_that_is_loaded_and_a_pickle(tmp_path):
    (tmp_path / "metric.py").write_text(EVERYWHERE)
    (tmp_path / "words.py").write_text(WORDS_EVERYWHERE)
    (tmp_path / "late.py").write_text("WORD = 1")

    def printed(*command, **options):
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            check=True,
            timeout=120,
            stdout=subprocess.PIPE,
            **options,
        ).stdout

    seen = {
        printed("metric.py", "", env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed})
        for seed in "12"
    }
    pickled = printed("metric.py", "pickle", env=os.environ | {"PYTHONPATH": str(ROOT)})
    unpickle = (
        "import cloudpickle, sys\nscore = cloudpickle.load(sys.stdin.buffer)\n"
        "from skynet_adapters import fingerprint\nprint(fingerprint(score))"
    )
    seen.add(printed("-c", unpickle, input=pickled, env=os.environ | {"PYTHONPATH": str(ROOT)}))
    assert len(seen) == 1


# --- its parts ---------------------------------------------------------------------------------------------


def test_its_parts_are_named(load):
    source = f"import words\nLIMIT = 1\nclass A:\n    def b(self): return LIMIT\n{SAYS % '[words.WORD, A]'}"
    metric = Metric(load(source, {"words.py": "WORD = 'a'"}), score_range=(0, 10))
    assert set(parts_of(metric)) == {
        *(
            "class 'A'",
            "file words.py",
            "function 'A.b'",
            "function 'score'",
            "global 'LIMIT'",
            "global 'WORD'",
        ),
        *("option failure_score", "option max_feedback_chars", "option score_names", "option score_range"),
        "the callable itself",
    }
