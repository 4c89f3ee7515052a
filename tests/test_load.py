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

OK = (1.0, {"feedback": "OK"})
count = itertools.count()


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
    assert set(done.stdout.split("\n")) - {""} == {str(path)}


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


def test_the_text_of_the_file_changes_it(load):
    assert fingerprint(load(METRIC)) != fingerprint(load(METRIC + "# a comment\n"))


def test_a_helper_in_the_same_file_changes_it(load):
    source = METRIC.replace("1.0,", "helper(),")
    assert fingerprint(load(source + "def helper(): return 1\n")) != fingerprint(
        load(source + "def helper(): return 2\n")
    )


def test_editing_the_file_of_a_loaded_metric_changes_it(load):
    score = load(METRIC)
    before = fingerprint(score)
    path = Path(score.__code__.co_filename)
    path.write_text(path.read_text() + "\n# edited\n")
    assert fingerprint(score) != before


@pytest.mark.parametrize(
    "imports",
    [
        "import words",
        "from words import WORD",
        "import words as w",
        "import os, words",
        "from words import *",
    ],
)
def test_the_text_of_an_imported_sibling_changes_it(load, imports):
    source = f"{imports}\n{METRIC}"
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
    source = f"import words\n{METRIC}"
    one = load(source, {"words.py": "from letters import A", "letters.py": "A = 'a'"})
    other = load(source, {"words.py": "from letters import A", "letters.py": "A = 'b'"})
    assert fingerprint(one) != fingerprint(other)


def test_siblings_that_import_each_other_can_be_digested(load):
    source = f"import words\n{METRIC}"
    one = load(source, {"words.py": "import letters", "letters.py": "import words"})
    assert fingerprint(one) == fingerprint(
        load(source, {"words.py": "import letters", "letters.py": "import words"})
    )


def test_a_module_in_a_folder_below_changes_it(load):
    source = f"from checks.words import WORD\n{METRIC}"
    one, other = (
        load(source, {"checks/__init__.py": "", "checks/words.py": f"WORD = '{word}'"}) for word in "ab"
    )
    assert fingerprint(one) != fingerprint(other)


def test_the_init_of_a_folder_below_changes_it(load):
    source = f"from checks.words import WORD\n{METRIC}"
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
def test_a_sibling_in_the_same_package_changes_it(tmp_path, monkeypatch, imports):
    seen = []
    for word in "ab":
        package = tmp_path / word / "package_of_metrics"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "words.py").write_text(f"WORD = '{word}'")
        (package / "metric.py").write_text(f"{imports}\n{METRIC}")
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
    source = f"try:\n    import broken\nexcept SyntaxError:\n    pass\n{METRIC}"
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

    assert printed("sk-one") == printed("sk-two") != ""


def test_what_goes_on_without_end_has_no_fingerprint():
    class Endless:
        def __reduce_ex__(self, protocol):
            return Endless, (Endless(),)

    thing = Endless()
    with pytest.raises(DefinitionError, match="goes on without end"):
        fingerprint(lambda input, output: thing)
