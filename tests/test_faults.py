"""The table of faults names tests that there are, and the faults that no other file's tests provoke."""

import ast
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import dspy
import pytest

from skynet import llm
from skynet_adapters import (
    Case,
    DefinitionError,
    ReflectionError,
    as_dspy_metric,
    as_gepa_adapter,
    check_run_dir,
    load_artifact,
    optimize_artifact,
    program_artifact,
    program_run,
    save_artifact,
)

from .model_server import ModelServer, RefusedError, in_fields, text_of
from .scripted import answering

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ["where", "fault", "seen in", "score", "what the user reads", "test"]
WHERE = {"metric", "run", "program", "model", "reflection", "data", "process", "disk"}
# What is read is a text (feedback), a warning of the logger, or an error that is raised; or nothing at all.
KINDS = ("text: ", "warning: ", "error: ", "nothing")


# --- the table ------------------------------------------------------------------------------------


def rows() -> list[dict[str, str]]:
    """Read the table of docs/faults.md; a cell's `\\|` is no border."""
    lines = [
        line for line in (ROOT / "docs" / "faults.md").read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[0] == COLUMNS
    assert all(len(row) == len(COLUMNS) for row in cells), [row for row in cells if len(row) != len(COLUMNS)]
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[2:]]


def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_fault_of_the_table_is_proved_by_a_test_that_there_is():
    table = rows()
    assert len(table) >= 40
    assert {row["where"] for row in table} == WHERE
    for row in table:
        assert all(row.values()), row
        assert any(kind in row["what the user reads"] for kind in KINDS), row
        named = re.fullmatch(r"`(tests/test_\w+\.py)::(test_\w+)`", row["test"])
        assert named is not None, row
        file = ROOT / named[1]
        assert file.is_file(), row
        assert named[2] in names_of_tests(file), row
    faults = [(row["where"], row["fault"], row["seen in"]) for row in table]
    assert sorted(set(faults)) == sorted(faults)


# --- models that fail -----------------------------------------------------------------------------


def exact(input: Any, output: Any, expected: Any = None) -> Any:
    right = output == expected["answer"]
    return float(right), {"feedback": "Right." if right else f"Expected {expected['answer']!r}."}


def judged(input: Any, output: Any, expected: Any = None) -> Any:
    verdict = llm(f"Is {output} right for {input['question']}?")
    return float(verdict == "PASS"), {"feedback": verdict}


def data(count: int = 6) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"case-{number}", answer="A").with_inputs("question") for number in range(count)
    ]


def refusing(status: int, otherwise: Any) -> Any:
    """Answer, but refuse one case."""

    def answer(messages: Any) -> str:
        if "case-3" in text_of(messages):
            raise RefusedError(status)
        return otherwise(messages)

    return answer


PROGRAM = dspy.Predict("question -> answer")


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_a_model_that_refuses_one_case_gives_it_a_0_in_evaluate_and_the_metric_is_not_asked(status):
    metric = as_dspy_metric(exact)
    with (
        ModelServer(refusing(status, in_fields(answer="A"))) as server,
        dspy.context(lm=server.lm(num_retries=0)),
    ):
        result = dspy.Evaluate(devset=data(), metric=metric, num_threads=2)(PROGRAM)
    assert [float(score) for _, _, score in result.results] == [1, 1, 1, 0, 1, 1]
    assert (metric.metric.calls, len(metric.failures)) == (5, 0)


@pytest.mark.parametrize(("status", "error"), [(401, "LMAuthError"), (429, "LMRateLimitError"), (500, "LM")])
def test_a_model_that_refuses_one_case_is_told_to_the_reflection_model_of_gepa(status, error):
    adapter = as_gepa_adapter(exact, program_run(PROGRAM), artifact=program_artifact(PROGRAM))
    with (
        ModelServer(refusing(status, in_fields(answer="A"))) as server,
        dspy.context(lm=server.lm(num_retries=0)),
    ):
        batch = adapter.evaluate(data(), adapter.seed_candidate, capture_traces=True)
    assert batch.scores == [1, 1, 1, 0, 1, 1]
    [component] = adapter.seed_candidate
    records = adapter.make_reflective_dataset(adapter.seed_candidate, batch, [component])[component]
    assert f"The program gave no output. It raised {error}" in records[3]["Feedback"]
    assert [failure.kind for failure in adapter.metric.failures] == ["ProgramFailedError"]


def test_a_model_server_that_is_not_there_fails_each_case_and_says_so():
    adapter = as_gepa_adapter(exact, program_run(PROGRAM), artifact=program_artifact(PROGRAM))
    with ModelServer(in_fields(answer="A")) as server:
        lm = server.lm(num_retries=0)
    with dspy.context(lm=lm):  # nobody listens there any more
        batch = adapter.evaluate(data(3), adapter.seed_candidate, capture_traces=True)
    assert batch.scores == [0, 0, 0]
    for trajectory in batch.trajectories:
        assert re.search(r"The program gave no output\. It raised LM\w*Error", trajectory.score.feedback)
    assert adapter.metric.calls == 0


@pytest.mark.parametrize("status", [401, 500])
def test_a_judge_whose_provider_refuses_a_case_is_no_wrong_answer_in_evaluate(status):
    judge = refusing(status, lambda messages: "PASS")
    with ModelServer(judge) as server, dspy.context(lm=answering(lambda question: "A")):
        metric = as_dspy_metric(judged, metric_lm=server.lm(num_retries=0))
        result = dspy.Evaluate(devset=data(), metric=metric, num_threads=2)(PROGRAM)
    scores = [score for _, _, score in result.results]
    assert [float(score) for score in scores] == [1, 1, 1, 0, 1, 1]
    assert [score.error is None for score in scores] == [True, True, True, False, True, True]
    assert "the metric model 'openai/gpt-4o-mini' failed: LM" in scores[3].feedback
    [failure] = metric.failures
    assert (failure.kind, "case-3" in failure.case) == ("MetricError", True)


def refuse(messages: Any) -> str:
    raise RefusedError(401)


CASES = [Case(str(number), {"n": number}, {"answer": "A"}) for number in range(4)]


class Quiet:
    def log(self, message: str) -> None: ...


def optimized(folder: Any = None, runs: list[Any] | None = None, **options: Any) -> Any:
    def run(artifact: str, input: Any) -> str:
        if runs is not None:
            runs.append(input)
        return "A" if artifact == "Good." else "B"

    arguments = {"reflection_lm": lambda prompt: "Good.", "max_metric_calls": 30, "logger": Quiet()}
    return optimize_artifact("Seed.", run, exact, CASES, run_dir=folder, **arguments | options)


def test_a_reflection_model_whose_provider_refuses_stops_the_run_and_is_named():
    with (
        ModelServer(refuse) as server,
        pytest.raises(ReflectionError, match=r"'openai/gpt-4o-mini' was asked 5 times.*: LMAuthError: "),
    ):
        optimized(reflection_lm=server.lm(num_retries=0), max_metric_calls=200)


def test_a_reflection_model_that_refuses_in_dspy_gepa_leaves_the_seed_and_dspy_logs_it(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("dspy"), "propagate", True)
    metric = as_dspy_metric(exact)
    with ModelServer(refuse) as server, dspy.context(lm=answering(lambda question: "B")):
        reflection_lm = server.lm(num_retries=0)
        best = dspy.GEPA(metric=metric, max_metric_calls=20, reflection_lm=reflection_lm).compile(
            PROGRAM, trainset=data(3), valset=data(3)
        )
    assert best.signature.instructions == PROGRAM.signature.instructions
    assert server.refused > 0
    assert re.search(r"reflection failed.*refused", caplog.text)
    assert len(metric.failures) == 0


# --- disks that fail ------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_a_full_disk_leaves_the_artifact_that_was_saved_before_and_nothing_beside_it(tmp_path):
    file = tmp_path / "prompt.txt"
    save_artifact("Answer briefly.", file)
    # A limit on the size of files ends a write as a full disk does, without filling one.
    code = f"""
    import resource
    from skynet_adapters import save_artifact

    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))
    try:
        save_artifact("x" * 100_000, {str(file)!r})
    except OSError as error:
        print("OSError", error.errno)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout.split()[:1] == ["OSError"], done.stderr
    assert load_artifact(file) == "Answer briefly."
    assert os.listdir(tmp_path) == ["prompt.txt"]


@pytest.mark.parametrize("kept", [0, 0.5], ids=["empty", "half"])
def test_a_torn_state_of_a_run_is_named_and_nothing_is_paid(tmp_path, kept):
    assert optimized(tmp_path).artifact == "Good."
    state = tmp_path / "gepa_state.bin"
    whole = state.read_bytes()
    state.write_bytes(whole[: int(len(whole) * kept)])
    runs: list[Any] = []
    with pytest.raises(
        DefinitionError, match=r"gepa_state\.bin.*cannot be read .*(Ran out of input|truncated)"
    ):
        optimized(tmp_path, runs)
    assert runs == []


def test_a_run_dir_that_is_a_file_is_named_and_nothing_is_paid(tmp_path):
    file = tmp_path / "run"
    file.write_text("notes")
    runs: list[Any] = []
    with pytest.raises(DefinitionError, match="run', is a file"):
        optimized(file, runs)
    with pytest.raises(DefinitionError, match="run', is a file"):
        check_run_dir(exact, file)
    assert (runs, file.read_text()) == ([], "notes")
