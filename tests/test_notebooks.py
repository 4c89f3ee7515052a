"""The notebooks run from the first cell to the last in a fresh kernel, and what they print is true."""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from .model_server import ModelServer

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
FIRST_METRIC = FOLDER / "01_first_metric_in_dspy.ipynb"
GEPA_ARTIFACTS = FOLDER / "02_gepa_artifacts.ipynb"
JUDGE_AND_REWARD = FOLDER / "03_judge_and_reward.ipynb"

# Counted without the metric and without `dspy.Evaluate` or the evaluator, after the notebook's last cell.
RECOUNT = {
    FIRST_METRIC: """
def right(program):
    return sum(program(message=example.message).label == example.label for example in testset)

import json
print(json.dumps({
    "held out": len(testset),
    "seen by optimisers": len({e.message for e in testset} & {e.message for e in trainset + valset}),
    "before": right(program),
    "after": right(better),
    "with demos": right(with_demos),
}))
""",
    GEPA_ARTIFACTS: """
def right(run, artifact):
    return sum(run(artifact, case.input) == case.expected["label"] for case in test)

import json
print(json.dumps({
    "held out": len(test),
    "seen by optimisers": len({c.id for c in test} & {c.id for c in train + val}),
    "before": right(run, PROMPT),
    "after": right(run, best.artifact),
    "parts before": right(run_parts, PARTS),
    "parts after": right(run_parts, found.best_candidate),
}))
""",
}

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("notebooks"),  # each notebook is executed once for all tests of this file
]
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@functools.cache
def executed(path: Path) -> dict[str, Any]:
    """Execute a notebook in a fresh kernel of this interpreter; gives its code cells by their id."""
    notebook = nbformat.read(path, as_version=4)
    if path in RECOUNT:
        notebook.cells.append(nbformat.v4.new_code_cell(RECOUNT[path], id="recount"))
    # The temporary folder holds all that Jupyter reads and writes, so nothing of the machine's counts.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        install = [sys.executable, "-m", "ipykernel", "install", "--prefix", folder, "--name", "fresh"]
        subprocess.run(install, check=True, capture_output=True, timeout=120)
        environment.setenv("JUPYTER_PATH", os.path.join(folder, "share", "jupyter"))
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            environment.setenv(name, os.path.join(folder, name.lower()))
        client = NotebookClient(
            notebook, kernel_name="fresh", timeout=300, resources={"metadata": {"path": folder}}
        )
        client.execute()
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def printed(cell: Any, stream: str = "stdout") -> str:
    """What a cell wrote to a stream."""
    return "".join(output.text for output in cell.outputs if output.get("name") == stream)


def percentage(text: str, label: str) -> int:
    """The number in a line such as `before: 25 %`."""
    found = re.search(rf"^{label}: +(\d+) %", text, re.M)
    assert found, f"no line {label!r} in:\n{text}"
    return int(found[1])


def test_there_is_a_notebook():
    assert FIRST_METRIC in NOTEBOOKS


# --- as they stand in git ------------------------------------------------------------------------


@every_notebook
def test_it_is_short_and_valid(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len(notebook.cells) < 25
    assert all(cell.source.strip() for cell in notebook.cells)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


@every_notebook
def test_it_holds_no_outputs_and_nothing_of_a_machine(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


# --- executed --------------------------------------------------------------------------------------


@every_notebook
def test_every_cell_runs(path):
    cells = executed(path)  # a cell that raises is a CellExecutionError
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))


@every_notebook
def test_only_failing_metrics_write_to_stderr(path):
    loud = [name for name, cell in executed(path).items() if printed(cell, "stderr")]
    # The metrics of that cell tell their number of failures once more when they are collected.
    assert set(loud) - {"recount"} <= {"failures"}


@every_notebook
def test_no_output_holds_a_progress_bar(path):
    assert not [name for name, cell in executed(path).items() if "it/s" in str(cell.outputs)]


def test_the_lift_that_it_prints_is_real():
    cells = executed(FIRST_METRIC)
    counted = json.loads(printed(cells["recount"]))
    assert counted["held out"] > 50
    assert counted["seen by optimisers"] == 0

    after, few_shot = printed(cells["after"]), printed(cells["few-shot-after"])
    told = {
        "before": percentage(after, "before"),
        "after": percentage(after, "after"),
        "with demos": percentage(few_shot, "with demos"),
    }
    assert told == {name: round(100 * counted[name] / counted["held out"]) for name in told}
    assert percentage(few_shot, "before") == told["before"]
    assert told["after"] >= told["before"] + 20
    assert told["with demos"] >= told["before"] + 5


def test_the_instruction_was_learned_from_the_words_of_the_feedback():
    cells = executed(FIRST_METRIC)
    feedback = printed(cells["reflection"])
    words = re.findall(r'The message mentions "(\w+)"', feedback)
    assert words
    assert all(f'"{word}"' in printed(cells["after"]) for word in words)
    assert "Score: 0\nNamed scores: team 0, format 1" in feedback


def test_it_shows_the_mistakes_in_data_and_metrics():
    cells = executed(FIRST_METRIC)
    mistakes = printed(cells["examples"])
    assert "has no inputs set" in mistakes
    assert "lacks the program's inputs ['message']" in mistakes
    failures = printed(cells["failures"])
    found = re.search(r"^(\d+) of (\d+) messages have no judgement", failures, re.M)
    assert found
    assert 0 < int(found[1]) < int(found[2])
    assert "MetricBroken: metric 'broken' failed on each of the first" in failures
    assert "KeyError: 'team'" in failures


def test_one_judgement_is_a_number_a_truth_and_a_text():
    shown = printed(executed(FIRST_METRIC)["judgement"])
    assert "value: 0.0\ntruth: False\ntext:  Expected 'account'" in shown


def test_the_table_of_evaluate_has_numbers():
    tables = [o.data["text/html"] for o in executed(FIRST_METRIC)["before"].outputs if "data" in o]
    assert "[0]" in tables[0]
    assert "Prediction(" not in tables[0]


def test_the_models_are_swapped_in_one_cell():
    notebook = nbformat.read(FIRST_METRIC, as_version=4)
    [cell] = [cell for cell in notebook.cells if "dspy.LM(" in cell.source]
    assert cell.id == "models"
    others = "\n".join(other.source for other in notebook.cells if other is not cell)
    assert not re.search(r"task_model|reflection_model|dspy\.configure", others)
    swapped = cell.source.replace("# ", "")
    names: dict[str, Any] = {}
    exec(swapped.split("dspy.configure")[0], {"dspy": __import__("dspy")}, names)
    assert names["task_lm"].model == "openai/gpt-4.1-mini"
    assert names["reflection_lm"].model == "openai/gpt-5"


# --- GEPA on texts ---------------------------------------------------------------------------------


def test_the_lifts_of_the_texts_are_real():
    cells = executed(GEPA_ARTIFACTS)
    counted = json.loads(printed(cells["recount"]))
    assert counted["held out"] > 50
    assert counted["seen by optimisers"] == 0
    prompt, parts = printed(cells["result"]), printed(cells["parts-result"])
    told = {
        "before": percentage(prompt, "before"),
        "after": percentage(prompt, "after"),
        "parts before": percentage(parts, "before"),
        "parts after": percentage(parts, "after"),
    }
    assert told == {name: round(100 * counted[name] / counted["held out"]) for name in told}
    assert told["after"] >= told["before"] + 20
    assert told["parts after"] >= told["parts before"] + 20
    assert "not judged: 0" in prompt
    assert "candidate 1, from [0]: 0." in prompt


def test_the_check_passes_run_and_score():
    [table] = [o.data["text/html"] for o in executed(GEPA_ARTIFACTS)["check"].outputs if "data" in o]
    assert "keeps the contract: 13 passed" in table


def test_the_prompt_was_learned_from_the_words_that_the_reflection_model_read():
    cells = executed(GEPA_ARTIFACTS)
    read, prompt = printed(cells["reflection"]), printed(cells["result"])
    words = re.findall(r'The message mentions "(\w+)"', read)
    assert words
    assert all(f'"{word}"' in prompt for word in words)
    assert "Score: 0\nNamed scores: team 0, form 1" in read
    assert "# Example 1" in read


def test_failures_are_told_one_by_one_and_a_broken_score_stops_the_run():
    shown = printed(executed(GEPA_ARTIFACTS)["failures"])
    found = re.search(r"^(\d+) cases, (\d+) of them not judged", shown, re.M)
    assert found
    assert 0 < int(found[2]) < int(found[1])
    assert "It raised ConnectionError: the model is overloaded" in shown
    assert "The program gave no output. It returned nothing." in shown
    assert "metric 'hasty_score' raised IndexError" in shown
    assert "MetricError: metric 'broken_score' failed on each of the first" in shown
    assert "KeyError: 'team'" in shown


def test_each_part_was_told_its_own_and_is_saved():
    shown = printed(executed(GEPA_ARTIFACTS)["parts-result"])
    assert re.search(r"^rules <= Expected '\w+', got 'This is for the technical team\.'\.", shown, re.M)
    assert re.search(r"^form <= The answer must be one of account, .* nothing else\.$", shown, re.M)
    assert "saved: True" in shown


def test_one_line_swaps_the_models_of_the_texts_for_real_ones(monkeypatch):
    notebook = nbformat.read(GEPA_ARTIFACTS, as_version=4)
    [cell] = [cell for cell in notebook.cells if "LM(" in cell.source]
    assert cell.id == "models"
    others = "\n".join(other.source for other in notebook.cells if other is not cell)
    assert "plain_" not in others
    names: dict[str, Any] = {}
    exec(cell.source.replace("# TASK_MODEL", "TASK_MODEL"), names)
    [run] = [cell.source for cell in notebook.cells if cell.id == "run"]
    with ModelServer(lambda messages: " billing\n") as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        exec(run.split("\n\n\nrun(")[0], names)
        assert names["run"]("Sort it.", {"message": "I was charged twice."}) == "billing"
        assert names["reflection_lm"].model == "openai/gpt-5"
    [served] = server.served
    assert served.model == "gpt-4.1-mini"
    assert served.messages[-1]["content"] == "Sort it.\n\n<message>\nI was charged twice.\n</message>"


# --- the judge and the reward ----------------------------------------------------------------------


def test_the_judges_own_words_are_the_feedback_and_its_calls_are_on_its_bill():
    shown = printed(executed(JUDGE_AND_REWARD)["judgement"])
    assert shown.startswith("0.0 - FAIL. The reply lacks: charge, refund, second.\n1.0 - PASS.")
    assert "<Bill: 2 calls" in shown


def test_the_check_passes_the_judge_and_warns_of_the_sloppy_metric():
    cells = executed(JUDGE_AND_REWARD)
    [table] = [output.data["text/html"] for output in cells["check"].outputs if "data" in output]
    assert "keeps the contract: 12 passed" in table
    warned = re.findall(r"^([A-Z][\w ]+): ", printed(cells["sloppy"]), re.M)
    assert warned == ["Named scores", "Score range", "Feedback"]


def test_a_reward_blends_what_was_measured():
    cells = executed(JUDGE_AND_REWARD)
    totals = [float(line.split()[0]) for line in printed(cells["blend"]).splitlines()]
    assert totals == [1.0, 0.95, 0.9, 0.85]
    assert "Cost 0: not measured." in printed(cells["blend"])


def test_asking_three_times_costs_three_times_as_much_and_scores_less():
    measured = printed(executed(JUDGE_AND_REWARD)["measured"])
    once, voting = re.findall(r"reward ([\d.]+) % \{'accuracy': ([\d.]+), .*'cost': ([\d.]+)\}", measured)
    assert float(once[0]) > float(voting[0])
    assert once[1] == voting[1]  # the same answers
    assert float(once[2]) == 1.0
    assert float(voting[2]) < 0.6
    assert "US dollars, reference 0.00003 US dollars." in measured


def test_the_models_of_the_judge_are_swapped_in_one_cell():
    notebook = nbformat.read(JUDGE_AND_REWARD, as_version=4)
    [cell] = [cell for cell in notebook.cells if "dspy.LM(" in cell.source]
    assert cell.id == "models"
    swapped = cell.source.replace("# judge_lm", "judge_lm").replace("# task_lm", "task_lm")
    names: dict[str, Any] = {}
    exec(swapped.split("set_models(metric")[0], names)
    assert names["judge_lm"].model == names["task_lm"].model == "openai/gpt-4.1-mini"
