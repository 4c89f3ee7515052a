"""`load_metric`: a file becomes a metric, with the files beside it, and what a broken file is told."""

import inspect
import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import cloudpickle
import pytest

from skynet_adapters import DefinitionError, Metric, fingerprint, load_metric
from skynet_adapters.measure import Observation, observed

METRIC = """
def score(input, output, expected=None):
    return float(output == expected["label"]), {"feedback": "OK"}
"""

SAYS = """
from checks import said

def score(input, output, expected=None):
    return 1.0, {"feedback": said()}
"""

REWARD = """
from skynet import reward

REWARD_SPEC = {
    "weights": {"accuracy": 0.7, "speed": 0.2, "cost": 0.1},
    "speed": {"reference": 2000},
    "cost": {"reference": 0.01},
}

def score(input, output, expected=None):
    return reward(REWARD_SPEC, 1.0, "Right.")
"""

count = itertools.count()


@pytest.fixture
def folder(tmp_path):
    """Write files into a new folder and give the path of its metric.py."""

    def write(source=METRIC, **files):
        new = tmp_path / f"folder{next(count)}"
        for name, text in {"metric": source, **files}.items():
            file = new / f"{name.replace('__in__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text), encoding="utf-8")
        return new / "metric.py"

    return write


def says(text):
    return f"def said(): return {text!r}"


def feedback_of(metric):
    score = metric.score_case({}, "a", {"label": "a"})
    assert score.error is None, score.error
    return score.feedback


# --- a file that works ---------------------------------------------------------------------------


def test_score_of_a_file_becomes_a_metric_with_the_files_name(folder):
    path = folder()
    metric = load_metric(path)
    assert isinstance(metric, Metric)
    assert metric.name == "metric"
    assert metric({}, "a", {"label": "a"}) == (1.0, {"feedback": "OK"})


def test_a_path_may_be_a_text_and_relative(folder, monkeypatch):
    monkeypatch.chdir(folder().parent)
    assert feedback_of(load_metric("metric.py")) == "OK"


def test_options_are_those_of_a_metric(folder):
    metric = load_metric(folder(), name="strict", timeout=5, failure_score=-1)
    assert (metric.name, metric.timeout, metric.failure_score) == ("strict", 5.0, -1.0)
    with pytest.raises(DefinitionError, match="unknown option 'time_out'; did you mean 'timeout'"):
        load_metric(folder(), time_out=5)


@pytest.mark.parametrize("make", [lambda path, **options: load_metric(path, **options), Metric])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("metric_lm", r"as in as_dspy_metric\(metric, metric_lm=...\).* put `with models\(metric_lm=...\):`"),
        ("reflection_lm", "reflection_lm is no option of a metric: it belongs to what adapts the metric"),
        (
            "run_timeout",
            r"run_timeout belongs to a run of GEPA, as in as_gepa_adapter\(.*, run_timeout=...\)",
        ),
    ],
)
def test_options_of_a_target_are_told_where_they_belong(folder, make, option, said):
    with pytest.raises(DefinitionError, match=said):
        make(folder() if make is not Metric else lambda input, output: None, **{option: 5})


def test_options_beside_a_loaded_metric_are_told_to_be_given_where_it_is_loaded(folder):
    with pytest.raises(DefinitionError, match=r"timeout=...\) or load_metric\(path, timeout=...\)"):
        Metric(load_metric(folder()), timeout=5)


def test_a_file_with_any_name_can_be_loaded(folder):
    path = folder()
    other = path.rename(path.with_name("2nd metric.v2.py"))
    assert feedback_of(load_metric(other)) == "OK"


def test_a_file_beside_one_that_is_nearly_called_so_is_the_one_that_is_imported(folder):
    path = folder("from my_metric import said\n" + SAYS.partition("said")[2], my_metric=says("the other"))
    assert feedback_of(load_metric(path.rename(path.with_name("my-metric.py")))) == "the other"


def test_the_files_beside_a_metric_are_its_package_s_resources(folder):
    path = folder("""
        from importlib.resources import files

        PROMPT = files(__package__).joinpath("prompt.txt").read_text()

        def score(input, output, expected=None):
            return 1.0, {"feedback": PROMPT}
        """)
    (path.parent / "prompt.txt").write_text("Say why.")
    assert feedback_of(load_metric(path)) == "Say why."


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from judges import score", "judges"),
        ("from judges import exact as score", "exact"),
        (METRIC, "metric"),
    ],
)
def test_a_metric_has_the_name_of_its_function_or_of_the_file_that_defines_it(folder, source, name):
    path = folder(source, judges=METRIC + METRIC.replace("score", "exact"))
    assert load_metric(path).name == name


def test_an_async_score_and_one_with_two_parameters_are_metrics(folder):
    asynchronous = "async def score(input, output): return 1.0, {'feedback': 'async'}"
    assert feedback_of(load_metric(folder(asynchronous))) == "async"


def test_each_load_gives_a_metric_that_shares_nothing(folder):
    path = folder("""
        seen = []

        def score(input, output, expected=None):
            seen.append(output)
            return len(seen), {"feedback": "OK"}
        """)
    first, second = load_metric(path), load_metric(path)
    assert [first({}, "a")[0], first({}, "b")[0], second({}, "c")[0]] == [1, 2, 1]


def test_the_source_of_score_can_be_shown(folder):
    assert inspect.getsource(load_metric(folder()).score) == METRIC.lstrip()


def test_a_fault_names_the_line_of_the_file(folder):
    metric = load_metric(folder('def score(input, output):\n    return input["nope"], {}\n'))
    assert '(metric.py, line 2, in score: return input["nope"], {})' in str(metric.score_case({}, "a").error)


def test_a_dataclass_with_postponed_annotations_finds_its_module(folder):
    path = folder("""
        from __future__ import annotations
        import typing
        from dataclasses import dataclass

        @dataclass
        class Verdict:
            text: str
            parts: list[Part]

        class Part: ...

        def score(input, output, expected=None):
            assert typing.get_type_hints(Verdict)["parts"] == list[Part]
            return 1.0, {"feedback": Verdict("fine", []).text}
        """)
    assert feedback_of(load_metric(path)) == "fine"


# --- the files beside it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "from checks import said",
        "from checks import *",
        "import checks; said = checks.said",
        "import checks as other; said = other.said",
        "from .checks import said",
        "from . import checks; said = checks.said",
    ],
)
def test_a_file_beside_it_can_be_imported_at_the_top_and_late(folder, line):
    at_the_top = f"{line}\n\ndef score(input, output):\n    return 1.0, {{'feedback': said()}}"
    assert feedback_of(load_metric(folder(at_the_top, checks=says("beside")))) == "beside"
    if "*" not in line:
        late = f"def score(input, output):\n    {line}\n    return 1.0, {{'feedback': said()}}"
        assert feedback_of(load_metric(folder(late, checks=says("beside")))) == "beside"


def test_packages_and_files_that_import_each_other_work(folder):
    path = folder(
        "import lib.inner.deep, plain.part\n"
        "def score(input, output):\n"
        "    return 1.0, {'feedback': lib.inner.deep.said() + plain.part.said()}",
        lib__in____init__="",
        lib__in__inner__in____init__="",
        lib__in__inner__in__deep="from ..words import word\nimport top\ndef said(): return word + top.word",
        lib__in__words="word = 'deep '",
        top="word = 'top '",
        plain__in__part=says("plain"),  # a folder without __init__.py
    )
    assert feedback_of(load_metric(path)) == "deep top plain"


@pytest.mark.parametrize("late", [False, True])
def test_files_of_one_name_in_two_folders_stay_apart(folder, late):
    source = SAYS
    if late:
        source = (
            "def score(input, output):\n    from checks import said\n    return 1.0, {'feedback': said()}"
        )
    first, second = (load_metric(folder(source, checks=says(text))) for text in ("first", "second"))
    assert [feedback_of(metric) for metric in (first, second, first)] == ["first", "second", "first"]


def test_a_file_beside_it_comes_before_an_installed_module_of_that_name_only_for_the_metric(folder):
    path = folder(
        "import json\nfrom calendar import said\n"
        "def score(input, output):\n    return 1.0, {'feedback': said() + json.dumps(1)}",
        calendar=says("own "),
    )
    assert feedback_of(load_metric(path)) == "own 1"
    import calendar

    assert calendar.isleap(2024)


def test_nothing_is_left_on_the_path_and_no_file_is_written(folder):
    before = list(sys.path)
    path = folder(SAYS, checks=says("beside"))
    load_metric(path)
    assert sys.path == before
    assert "checks" not in sys.modules
    assert sorted(os.listdir(path.parent)) == ["checks.py", "metric.py"]


def test_an_edited_file_is_read_anew_within_the_same_second(folder):
    path = folder(SAYS, checks=says("old"))
    old = load_metric(path)
    times = os.stat(path.with_name("checks.py"))
    path.with_name("checks.py").write_text(says("new"), encoding="utf-8")
    os.utime(path.with_name("checks.py"), ns=(times.st_atime_ns, times.st_mtime_ns))
    new = load_metric(path)
    assert [feedback_of(old), feedback_of(new)] == ["old", "new"]
    before = fingerprint(new)
    path.write_text(path.read_text("utf-8").replace("1.0", "0.5"), encoding="utf-8")
    edited = load_metric(path)
    assert edited({}, "a")[0] == 0.5
    assert fingerprint(edited) != before


def test_a_module_that_the_program_has_imported_is_the_same_to_the_metric(folder, monkeypatch):
    path = folder(
        "from answers_of_program import Answer\n"
        "def score(input, output):\n    return isinstance(output, Answer), {'feedback': 'OK'}",
        answers_of_program="class Answer: ...",
    )
    monkeypatch.syspath_prepend(str(path.parent))
    import answers_of_program  # pyright: ignore[reportMissingImports]

    try:
        assert load_metric(path)({}, answers_of_program.Answer())[0] is True
    finally:
        del sys.modules["answers_of_program"]


def test_a_folder_named_as_the_helper_module_does_not_hide_it(folder):
    path = folder(REWARD, skynet__in____init__="reward = None", skynet_adapters__in____init__="")
    with observed(Observation(time_ms=1.0, cost_usd=0.0)):
        assert load_metric(path)({}, "a")[0] == 1.0


def test_a_fault_in_a_file_beside_it_names_that_file(folder):
    path = folder("import checks\n" + METRIC, checks="x = 1\nraise ValueError('no key')")
    with pytest.raises(
        DefinitionError, match=r"checks\.py, line 2: it raised ValueError: no key at `raise Val"
    ):
        load_metric(path)
    path = folder("import checks\n" + METRIC, checks="x = 1\ndef f(:\n    pass")
    with pytest.raises(
        DefinitionError, match=r"checks\.py, line 2: this is not valid Python .*metric\.py imp"
    ):
        load_metric(path)


LIMITS = """
import enum
from dataclasses import dataclass
from typing import NamedTuple
from pydantic import BaseModel

class Plain:
    def __init__(self): self.most = 3

class Level(enum.Enum):
    HIGH = 1

class Pair(NamedTuple):
    most: int = 3

@dataclass
class Data:
    most: int = 3

class Model(BaseModel):
    most: int = 3
"""


@pytest.mark.parametrize(
    "limits", ["Plain()", "Plain", "Level.HIGH", "Pair()", "Data()", "Model()", "{'a': [Data()]}"]
)
def test_a_fingerprint_is_the_same_for_every_load_and_knows_the_classes_beside_the_metric(folder, limits):
    def loaded(limits, files=LIMITS):
        source = (
            "from limits import *\n"
            f"def score(input, output, expected=None, limits={limits}):\n    return 1.0, {{}}"
        )
        return fingerprint(load_metric(folder(source, limits=files)))

    edited = LIMITS.replace("3", "5").replace("HIGH = 1", "HIGH = 2")
    assert loaded(limits) == loaded(limits) == loaded(limits, LIMITS + "# a comment\n")
    assert len({loaded(limits), loaded("4"), loaded(limits, edited)}) == 3


# --- other processes -----------------------------------------------------------------------------


IN_A_CHILD = """
import cloudpickle, sys
metric = cloudpickle.load(sys.stdin.buffer)
score = metric.score_case({}, "a", {"label": "a"})
print(score.value, score.feedback, score.error)
"""


def in_a_child(metric):
    child = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD], input=cloudpickle.dumps(metric), capture_output=True, check=True
    )
    return child.stdout.decode().strip()


def test_a_metric_goes_to_another_process_with_what_it_imports(folder, monkeypatch):
    path = folder(
        "import checks\nfrom lib.more import Part\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Verdict:\n    text: str\n\n"
        "def score(input, output, expected=None):\n"
        "    return 1.0, {'feedback': Verdict(checks.said() + Part.name).text}\n",
        checks="import lib.more\n" + says("by value, "),
        lib__in____init__="",
        lib__in__more="class Part:\n    name = 'all of it'",
    )
    metric = load_metric(path)
    path.unlink()  # the child cannot read it
    monkeypatch.chdir("/")
    assert in_a_child(metric) == "1.0 by value, all of it None"


def test_a_metric_with_a_reward_goes_to_another_process(folder):
    assert in_a_child(load_metric(folder(REWARD))).startswith("0.7 Right.\nSpeed 0: not measured")


def test_what_is_imported_late_has_to_be_importable_in_the_other_process(folder):
    late = "def score(input, output):\n    import checks\n    return 1.0, {'feedback': checks.said()}"
    assert "No module named 'checks'" in in_a_child(load_metric(folder(late, checks=says("late"))))


# --- the helper module ---------------------------------------------------------------------------


def other_skynet(tmp_path, text):
    site = tmp_path / "site"
    (site / "skynet").mkdir(parents=True)
    (site / "skynet" / "__init__.py").write_text(text, encoding="utf-8")
    return site


@pytest.mark.parametrize("late", [False, True])
def test_another_distribution_named_skynet_is_named_and_never_executed(folder, tmp_path, late):
    site = other_skynet(tmp_path, "raise SystemExit('executed')")
    line = "from skynet import reward"
    source = METRIC.replace(":\n", f":\n    {line}\n") if late else f"{line}\n{METRIC}"
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from skynet_adapters import load_metric, DefinitionError\n"
        "try:\n"
        f"    print(load_metric({str(folder(source))!r}).score_case({{}}, 'a', {{}}).error)\n"
        "except DefinitionError as error:\n    print(error)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    place = site / "skynet" / "__init__.py"
    assert f"another module than the one of skynet-adapters, from {place}; uninstall" in child.stdout
    assert "executed" not in child.stdout + child.stderr


# --- broken files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def score(input, output:\n    pass", r"metric\.py, line 1: this is not valid Python \("),
        ("x = 1\ny = = 2\n", r"metric\.py, line 2: this is not valid Python \(invalid syntax\): y = = 2"),
        ("def score():\n\tx\n        y", r"metric\.py, line 3: this is not valid Python \("),
        ("import os\n\nos.nothing()", r"line 3: it raised AttributeError: .* at `os.nothing\(\)`; mend that"),
        (
            "import nowhere_to_be_found",
            r"line 1: it raised ModuleNotFoundError: .*; install that package, or",
        ),
        ("import sys\nsys.exit(3)", r"line 2: it raised SystemExit: 3 .*if __name__ == \"__main__\""),
        (
            "def scores(input, output): ...\ndef other(): ...",
            "line 1: there is no function `score`; rename 'scores'",
        ),
        ("def Score(input, output): ...\ndef other(): ...", "line 1: .*rename 'Score' to it"),
        ("x = 1\ndef my_metric(input, output): ...\ndef other(): ...", "line 2: .*rename 'my_metric' to it"),
        ("def judge(input, output): ...", "line 1: .*rename 'judge' to it"),
        ("def one(): ...\ndef two(): ...", r"metric\.py: there is no function `score`; it defines one, two;"),
        ("", r"metric\.py: there is no function `score`; write one, def score\(input, output, exp"),
        ("from math import sqrt", r"metric\.py: there is no function `score`; write one"),
        ("x = 1\nscore = 0.8", r"line 2: `score` is 0.8 \(float\), no function; write it as def score\("),
        ("def score(only): ...", r"line 1: metric 'metric' cannot be called with input, output and expected"),
        (
            "\ndef metric(example, pred, trace=None): ...",
            r"line 2: .*'metric' has the parameters of a DSPy metric; write score = from_dspy_metric\(met",
        ),
        ("def score_it(gold, prediction): ...", r"write score = from_dspy_metric\(score_it\)"),
        (
            "def load(path): ...\ndef check(path): ...\nfrom dspy.evaluate import answer_exact_match",
            r"line 3: .*write score = from_dspy_metric\(answer_exact_match\)",
        ),
        (
            "from dspy.evaluate import answer_exact_match as score",
            r"metric\.py, line 1: .*in a file score = from_dspy_metric\(metric\)",
        ),
        ("\ndef score(example, pred, trace=None): ...", r"line 2: .*parameters of a DSPy metric"),
        ("def score(prediction, expected): ...", r"line 1: .*its first one gets the input"),
        (
            REWARD.replace("2000", "0"),
            r"line 4: the reward spec cannot be used: speed.reference is 0 .*above 0",
        ),
        (
            REWARD.replace('"cost": 0.1', '"costs": 0.1'),
            r"line 4: .*weights.costs is unknown; did you mean 'cost'",
        ),
    ],
)
def test_a_file_that_cannot_be_a_metric_is_told_where_and_what_to_do(folder, source, said):
    path = folder()
    path.write_text(source, encoding="utf-8")
    modules = {name for name in sys.modules if name.startswith("_skynet")}
    with pytest.raises(DefinitionError, match=said) as refused:
        load_metric(path)
    assert str(refused.value).startswith(str(path.parent))
    assert "_skynet_metric" not in str(refused.value)
    if "raised" in said:
        assert {name for name in sys.modules if name.startswith("_skynet")} == modules


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"# ok\n# caf\xe9\n", r"metric\.py, line 2: this is not UTF-8; save the file as UTF-8"),
        ("x = 'é'".encode("utf-16"), "line 1: this is not UTF-8; save the file as UTF-8"),
        (
            b"# coding: nonsense\n",
            "its coding comment is wrong .unknown encoding: nonsense.*; save the file as UTF-8",
        ),
        (b"x = 1\ny = 2\0\n", r"metric\.py, line 2: it holds a NUL; save the file as UTF-8"),
    ],
)
def test_a_file_in_another_encoding_is_told_so(folder, content, said):
    path = folder()
    path.write_bytes(content)
    with pytest.raises(DefinitionError, match=said):
        load_metric(path)


@pytest.mark.parametrize("content", [b"\xef\xbb\xbf# BOM\n", b"# coding: latin-1\n# caf\xe9\n"])
def test_an_encoding_that_the_file_names_is_read(folder, content):
    path = folder()
    path.write_bytes(content + METRIC.encode())
    assert feedback_of(load_metric(path)) == "OK"


def test_a_path_that_is_no_metric_file_is_told_so(folder, tmp_path, monkeypatch):
    path = folder()
    for wrong, said in [
        (path.parent, f"this is a folder; give the metric's file in it, such as {path}"),
        (tmp_path, "this is a folder; give the metric's file in it$"),
        (path.with_name("metrik.py"), "there is no such file; did you mean 'metric.py'"),
        (path.parent / "nowhere" / "metric.py", "there is no such file, and no folder"),
        (path.with_suffix(".txt"), r"a metric is a Python file; give one whose name ends in \.py"),
    ]:
        with pytest.raises(DefinitionError, match=said):
            load_metric(wrong)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DefinitionError, match=f"no such file; relative paths begin at {tmp_path}"):
        load_metric("judge.py")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_told_so(folder):
    path = folder()
    Path(path).chmod(0)
    with pytest.raises(DefinitionError, match="it cannot be read"):
        load_metric(path)


# --- the documents' examples ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call", "value"),
    [
        ("exact_match", ({}, "a", {"label": "a"}), 1.0),
        ("several_checks", ({}, '{"a": 1}', {"fields": ["a", "b"]}), 0.75),
        ("accuracy_speed_cost", ({}, "a", {"label": "a"}), 0.9),
    ],
)
def test_the_example_metrics_load_from_their_files_unchanged(shared_folder, name, call, value):
    metric = load_metric(shared_folder / "metrics" / f"{name}.py")
    with observed(Observation(time_ms=4000.0, cost_usd=0.01)):
        assert metric.score_case(*call).value == pytest.approx(value)
