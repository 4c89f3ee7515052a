"""A metric that is edited between two processes: when a run goes on, and when a judgement is used again."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from skynet_adapters import DefinitionError, check_run_dir

ROOT = Path(__file__).resolve().parents[1]

# A script as users write them: metric, run and the call in one file.
SCRIPT = """
import os, signal, sys
import words
from skynet_adapters import as_gepa_adapter, check_gepa_run, optimize_artifact

WEIGHT = 40
calls = written = 0

def weighted(length, most=1.0):
    return min(length / WEIGHT, most)

class Judge:
    least = 0.0

    def judge(self, output):
        return max(weighted(len(output)), self.least)

def score(input, output, expected=None):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return Judge().judge(output), {"feedback": f"{words.SAID} {len(output)} letters."}

def run(artifact, input):
    return f"{artifact} {input['n']}"

def reflect(prompt):
    global written
    written += 1
    return "Guess" + " well" * written

class Quiet:
    def log(self, message): ...

if __name__ == "__main__":
    memo = {"memo": "content", "memo_dir": "memo"} if sys.argv[3:] else {}
    cases = [{"input": {"n": n}} for n in range(4)]
    if sys.argv[1] == "optimize_artifact":
        best = optimize_artifact("Guess.", run, score, cases, reflection_lm=reflect, max_metric_calls=40,
                                 run_dir="run", logger=Quiet(), max_workers=1, **memo)
        print(best.result.total_metric_calls, calls)
    else:
        import gepa
        from skynet_adapters import as_gepa_dataset, as_reflection_lm
        adapter = as_gepa_adapter(score, run, artifact="Guess.", max_workers=1, **memo)
        arguments = dict(trainset=as_gepa_dataset(cases), valset=as_gepa_dataset(cases), max_metric_calls=40,
                         seed_candidate=adapter.seed_candidate, reflection_lm=as_reflection_lm(reflect),
                         run_dir="run", logger=Quiet())
        check_gepa_run(adapter, **arguments)
        print(gepa.optimize(adapter=adapter, **arguments).total_metric_calls, calls)
"""
WORDS = "SAID = 'It has'\n"


@pytest.fixture
def ran(tmp_path):
    """Write the script and the file beside it, run it, and give its exit code and what it printed."""

    def ran(script, words, *arguments):
        (tmp_path / "program.py").write_text(script, encoding="utf-8")
        (tmp_path / "words.py").write_text(words, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-B", "program.py", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return ran


@pytest.mark.parametrize("target", ["optimize_artifact", "gepa"])
def test_a_run_goes_on_when_its_script_is_edited_elsewhere_and_not_when_its_metric_is(ran, target):
    assert ran(SCRIPT, WORDS, target, "30")[0] == -9
    edited = SCRIPT.replace("max_metric_calls=40", "max_metric_calls=60") + "\n# a comment\n"
    code, printed, said = ran(edited, WORDS + "# a comment\n", target, "0")
    assert code == 0, said
    in_all, here = map(int, printed.split())
    assert in_all >= 60 > here
    for edit, words, changed in [
        (("/ WEIGHT", "/ 2 / WEIGHT"), WORDS, "function 'weighted' was changed"),
        (("most=1.0", "most=0.9"), WORDS, "function 'weighted' was changed"),
        (("WEIGHT = 40", "WEIGHT = 41"), WORDS, "global 'WEIGHT' was changed"),
        (("least = 0.0", "least = 0.1"), WORDS, "class 'Judge' was changed"),
        (("", ""), "SAID = 'It had'", "file words.py was changed, global 'SAID' was changed"),
    ]:
        code, _, said = ran(edited.replace(*edit, 1), words, target, "0")
        assert code == 1
        assert f"was begun with another metric ({changed}), so that" in said, said


def test_judgements_are_used_again_when_a_script_is_edited_elsewhere_and_not_when_its_metric_is(
    ran, tmp_path
):
    def calls(script):
        code, printed, said = ran(script, WORDS, "optimize_artifact", "0", "memo")
        assert code == 0, said
        shutil.rmtree(tmp_path / "run")
        return int(printed.split()[1])

    assert calls(SCRIPT) > 0
    assert calls(SCRIPT + "\n# a comment\n") == 0
    assert calls(SCRIPT.replace("max_metric_calls=40", "max_metric_calls=38")) == 0
    assert calls(SCRIPT.replace("/ WEIGHT", "/ 2 / WEIGHT")) > 0
    assert calls(SCRIPT) == 0


CELLS = {
    "set-up": "import sys\nfrom skynet_adapters import Metric, check_run_dir, fingerprint\nWEIGHT = 4",
    "helper": "def weighted(length):\n    return min(length / WEIGHT, 1.0)",
    "score": """
        asked = []
        def score(input, output, expected=None):
            asked.append(output)
            return weighted(len(output)), {"feedback": f"{len(output)} letters."}
    """,
    "judge": """
        metric = Metric(score, memo="content", memo_dir="memo")
        check_run_dir(metric, "run")
        open("run/gepa_state.bin", "wb").close()
        print(metric.score_case({}, "ab").value, len(asked), fingerprint(score))
    """,
}
EDITED = {
    "judge again": CELLS["judge"],
    "score again": CELLS["score"].replace("def score", "# A comment.\n        def score"),
    "judge once more": CELLS["judge"],
    "helper again": CELLS["helper"].replace("1.0", "0.25"),
    "judge with the other helper": CELLS["judge"].replace('"run"', '"run2"').replace("run/", "run2/"),
    "refused": """
        try:
            check_run_dir(metric, "run")
        except Exception as error:
            print(error)
    """,
    "global again": "WEIGHT = 16",
    "judge with another global": CELLS["judge"].replace('"run"', '"run3"').replace("run/", "run3/"),
}


@pytest.mark.timeout(300)
def test_an_edit_in_any_cell_of_a_notebook_counts_and_running_a_cell_again_does_not(tmp_path, monkeypatch):
    cells = {name: textwrap.dedent(source) for name, source in (CELLS | EDITED).items()}
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells.values()])
    install = [sys.executable, "-m", "ipykernel", "install", "--prefix", str(tmp_path), "--name", "fresh"]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    NotebookClient(
        notebook, kernel_name="fresh", timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = {
        name: "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for name, cell in zip(cells, notebook.cells, strict=True)
    }
    value, asked, first = printed["judge"].split()
    assert (value, asked) == ("0.5", "1")
    assert printed["judge again"].split() == ["0.5", "1", first]  # not asked again
    assert printed["judge once more"].split() == ["0.5", "0", first]
    value, asked, second = printed["judge with the other helper"].split()
    assert (value, asked) == ("0.25", "1")
    assert "another metric (function 'weighted' was changed)" in printed["refused"]
    value, asked, third = printed["judge with another global"].split()
    assert (value, asked) == ("0.125", "2")
    assert len({first, second, third}) == 3


# --- what is kept of a run -------------------------------------------------------------------------------


def score(input, output, expected=None):
    return 1.0, {"feedback": "Good."}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ({"metric": "0" * 32, "metric_parts": None}, "was begun by another version of skynet-adapters"),
        ({"metric": "0" * 32, "metric_parts": ["a"]}, "was begun by another version of skynet-adapters"),
        ({"metric": 5, "metric_parts": {}}, "another metric (function 'score' is new"),
        (
            {"metric": "0" * 32, "python": "3.1"},
            "was begun with Python 3.1, and code is another one in Python 3.",
        ),
        ({"metric": "0" * 32, "python": None}, "was begun with Python"),
    ],
)
def test_a_folder_of_another_version_is_refused_in_words(tmp_path, edit, said):
    check_run_dir(score, tmp_path)
    (tmp_path / "gepa_state.bin").write_bytes(b"")
    file = tmp_path / "skynet_adapters_run.json"
    kept = json.loads(file.read_text()) | edit
    file.write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))
    with pytest.raises(DefinitionError, match=rf"{re.escape(said)}.* take a new folder"):
        check_run_dir(score, tmp_path)
