"""`skynet-adapters check`: exit codes, the table, JSON, and what cannot be read."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from skynet_adapters.cli import main

GOOD = """
def score(input, output, expected=None):
    right = output == expected["label"]
    return float(right), {"feedback": "Right." if right else f"Expected {expected['label']!r}."}
"""
JUDGE = """
from skynet import llm

def score(input, output, expected=None):
    return 1.0, {"feedback": llm("Say why.", input=output)}
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Run `check` on a metric; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    (tmp_path / "rows.csv").write_text("text,team,id\nhello,billing,1\n", "utf-8")

    def run(source, *arguments, cases="cases.jsonl"):
        (tmp_path / "metric.py").write_text(textwrap.dedent(source), "utf-8")
        code = main(["check", "metric.py", "--cases", cases, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_good_metric_gives_a_table_and_exit_code_0(check):
    code, out, err = check(GOOD)
    assert (code, err) == (0, "")
    assert out.startswith("metric 'metric' keeps the contract: 12 passed\n")
    assert "ok    Metric return value  a number and a feedback on every case: 1\n" in out


def test_a_warning_keeps_exit_code_0(check):
    code, out, _ = check(GOOD.replace("float(right)", "2.0 * right"))
    assert code == 0
    assert "WARN  Score range" in out


@pytest.mark.parametrize("source", ["def score(input, output): return 0.8", "def scores(): ...", "def ("])
def test_a_metric_that_does_not_keep_the_contract_gives_exit_code_1(check, source):
    code, out, err = check(source)
    assert (code, err) == (1, "")
    assert "\nFAIL  " in out
    assert " does not keep the contract" in out


def test_cases_without_expected_values_give_exit_code_1(check, tmp_path):
    (tmp_path / "inputs.jsonl").write_text('{"input": {"text": "a"}}\n', "utf-8")
    code, out, _ = check(GOOD, cases="inputs.jsonl")
    assert code == 1
    assert out.startswith("metric 'metric' was never called: ")


def test_json_is_the_report_and_nothing_else(check):
    code, out, _ = check("def score(input, output): return 0.8", "--json")
    report = json.loads(out)
    assert code == 1
    assert report["passed"] is False
    assert [check["name"] for check in report["checks"] if check["status"] == "failed"] == [
        "Metric return value"
    ]


def test_what_the_metric_prints_does_not_get_into_the_json(check):
    _, out, err = check(
        "print('loading')\n" + GOOD.replace("    right", "    print('judging')\n    right"), "--json"
    )
    assert json.loads(out)["passed"]
    assert "loading\njudging" in err


NOISY = """
import atexit, os, subprocess, sys
from sys import stdout

atexit.register(lambda: print("at the exit"))

def score(input, output, expected=None):
    subprocess.run([sys.executable, "-c", "print('of a child')"])
    os.write(1, b"of the descriptor\\n")
    print("of a reference", file=stdout)
    return float(output == "b"), {"feedback": "Expected 'b'."}
"""


def test_nothing_that_a_metric_does_gets_into_the_json(tmp_path):
    (tmp_path / "metric.py").write_text(NOISY, "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    command = [
        sys.executable,
        "-m",
        "skynet_adapters",
        "check",
        "metric.py",
        "--cases",
        "cases.jsonl",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"]
    for said in ("of a child", "of the descriptor", "of a reference", "at the exit"):
        assert said in done.stderr


def test_a_program_that_calls_main_has_its_stdout_back(tmp_path):
    (tmp_path / "metric.py").write_text(NOISY, "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    source = (
        "import json, os; from skynet_adapters.cli import main; print('before')\n"
        "code = main(['check', 'metric.py', '--cases', 'cases.jsonl', '--json'])\n"
        "print('after', code, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first, *report, last = done.stdout.splitlines()
    assert (first, last) == ("before", "after 0")
    assert json.loads("\n".join(report))["passed"]
    assert "of a reference" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_is_no_error(tmp_path, closed):
    (tmp_path / "metric.py").write_text(GOOD, "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    command = f"{sys.executable} -m skynet_adapters check metric.py --cases cases.jsonl {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("metric 'metric' keeps" if closed == "2>&-" else "")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    (tmp_path / "metric.py").write_text(GOOD, "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    command = [sys.executable, "-m", "skynet_adapters", "check", "metric.py", "--cases", "cases.jsonl"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == ("", 0)
    process.stderr.close()


def test_a_feedback_that_the_terminal_cannot_show_is_no_error(tmp_path):
    (tmp_path / "metric.py").write_text(GOOD.replace("Expected", "应为"), "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "skynet_adapters", "check", "metric.py", "--cases", "cases.jsonl"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u5e94\u4e3a" in done.stdout


def test_columns_of_a_table_become_fields(check):
    code, out, _ = check(GOOD, "--input", "message=text", "--expected", "label=team", cases="rows.csv")
    assert code == 0
    assert "'billing' scores 1" in out
    assert check(GOOD, "--input", "text", "--expected", "label=team", cases="rows.csv")[0] == 0


def test_options_reach_the_metric(check):
    _, out, _ = check(
        GOOD.replace("float(right)", "10.0 * right"), "--score-range", "0", "10", "--timeout", "5"
    )
    assert "of 5 s" in out
    assert "'b' scores 1, the wrong answer '???' 0" in out


def test_a_judge_needs_a_model(check):
    code, out, _ = check(JUDGE)
    assert code == 1
    assert "FAIL  Models" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "absent.py", "--cases", "cases.jsonl"], "absent.py: there is no such file"),
        (["check", "metrik.py", "--cases", "cases.jsonl"], "no such file; did you mean 'metric.py'?"),
        (["check", ".", "--cases", "cases.jsonl"], "there is no such file; give the metric's file"),
        (["check", "metric.py", "--cases", "absent.jsonl"], "absent.jsonl"),
        (
            ["check", "metric.py", "--cases", "cases.jsonl", "--timeout", "700"],
            "--timeout 700.0 cannot be used: it must be a finite number of seconds, above 0 and at most",
        ),
        (["check", "metric.py", "--cases", "cases.jsonl", "--expected", "nope"], "nope"),
    ],
)
def test_what_cannot_be_read_gives_exit_code_2_and_one_line(check, capsys, arguments, said):
    check(GOOD)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("skynet-adapters: error: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "for example: --input text --expected team\n"),
        (["--input", "txt"], "no column 'txt', which --input asks for. Did you mean 'text'?"),
        (["--input", "text", "--expected", "text"], "in --input and in --expected."),
        (["--input", "text", "--expected", "text"], "for example --expected expected_text=text."),
        (["--input", ""], "error: --input names the field ''."),
        (["--input", "text", "--id", "text"], "name a column that has one for each: --id ..."),
        (["--input", "text", "--metric-lm", ""], "--metric-lm '' cannot be used: give a model's name"),
        (["--input", "text", "--score-range", "3", "1"], "--score-range (3.0, 1.0) cannot be used: low"),
    ],
)
def test_errors_name_the_options_that_were_typed(check, tmp_path, arguments, said):
    (tmp_path / "twice.csv").write_text("text,team,id\nhello,billing,1\nhello,sales,2\n", "utf-8")
    code, out, err = check(GOOD, *arguments, cases="twice.csv")
    assert (code, out) == (2, "")
    assert said in err
    assert not re.search(r"\b(input|expected|id|metric_lm|score_range|timeout)=(?!text)|load_cases", err)


def test_the_report_names_options_and_leaves_what_the_metric_says(check, tmp_path):
    _, out, _ = check(JUDGE)
    assert "choose one with --metric-lm NAME" in " ".join(out.split())
    assert "-> choose one: --metric-lm openai/gpt-4.1-mini\n" in out
    (tmp_path / "inputs.jsonl").write_text('{"input": {"text": "a"}}\n', "utf-8")
    _, out, _ = check(GOOD, cases="inputs.jsonl")
    assert "no case has an expected value, and the command line has no run\n" in out
    _, out, _ = check(GOOD.replace("float(right)", "9.0 * right"))
    assert "pass --score-range LOW HIGH, which normalises" in out
    _, out, _ = check("def score(input, output): raise ValueError('give run= or timeout= here')", "--json")
    seen = {check["name"]: check for check in json.loads(out)["checks"]}["Metric return value"]
    assert "raised ValueError: give run= or timeout= here" in seen["seen"]
    assert "call check_contract(metric, cases, run) in Python" in seen["mend"]


def test_a_column_of_ids_is_named(check):
    _, out, _ = check(GOOD, "--input", "text", "--expected", "label=team", "--id", "team", cases="rows.csv")
    assert "case 'billing' has the same score" in out


@pytest.mark.parametrize(
    "arguments",
    [["check"], ["check", "metric.py"], ["check", "metric.py", "--cases", "c", "--score-range", "1"]],
)
def test_wrong_arguments_give_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_metric_that_asks_no_model_is_checked_without_loading_dspy(tmp_path):
    (tmp_path / "metric.py").write_text(GOOD, "utf-8")
    (tmp_path / "cases.jsonl").write_text('{"input": {"text": "a"}, "expected": {"label": "b"}}\n', "utf-8")
    command = [sys.executable, "-X", "importtime", "-m", "skynet_adapters", "check", "metric.py"]
    done = subprocess.run(
        [*command, "--cases", "cases.jsonl"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "keeps the contract" in done.stdout
    assert " dspy" not in done.stderr.replace("skynet_adapters.dspy", "")
