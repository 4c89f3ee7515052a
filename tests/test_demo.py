import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import dspy
import pytest
from dspy.teleprompt.gepa import InstructionProposer
from gepa.optimize_anything import ReflectionConfig
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from skynet_adapters.cases import load_cases
from skynet_adapters.cli import main
from skynet_adapters.demo import SUPPORT_MESSAGES, models
from skynet_adapters.demo.bench import FIRST_INSTRUCTION, without_reasons
from skynet_adapters.demo.metric import TELLING_WORDS, score
from skynet_adapters.demo.models import (
    plain_reflection_model,
    plain_task_model,
    reflection_model,
    task_model,
)
from skynet_adapters.demo.report import describe
from skynet_adapters.demo.run import run_demo
from skynet_adapters.demo.texts import FIRST_PARTS
from skynet_adapters.errors import DefinitionError


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skynet_adapters", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


# --- the main job ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> str:
    done = run_cli("demo")
    assert done.returncode == 0, done.stderr
    return done.stdout


PROGRAM_ROWS = {
    "gepa": "GEPA",
    "few-shot": "BootstrapFewShotWithRandomSearch, same metric",
    "control": 'Control: GEPA, feedback "Right." / "Wrong."',
}
TEXT_ROWS = {
    "prompt": "Prompt, optimize_artifact",
    "control": 'Control: feedback "Right." / "Wrong."',
    "parts": "Two parts, optimize_anything, same metric",
}


def table_row(report: str, name: str) -> dict[str, float]:
    numbers = re.search(
        rf"^{re.escape(name)} +(\d+)/(\d+) +\d+% +(\d+)/\d+ +\d+% +(\d+) +([\d.]+) +(\d+) +(\d+)$",
        report,
        re.M,
    )
    assert numbers, f"no row {name!r} in:\n{report}"
    before, held_out, after, rollouts, per_rollout, failures, proposals = map(float, numbers.groups())
    return {
        "before": before / held_out,
        "after": after / held_out,
        "rollouts": rollouts,
        "per_rollout": per_rollout,
        "failures": failures,
        "proposals": proposals,
    }


@pytest.mark.parametrize("name", [PROGRAM_ROWS["gepa"], TEXT_ROWS["prompt"], TEXT_ROWS["parts"]])
def test_gepa_lifts_the_held_out_score_clearly(report, name):
    row = table_row(report, name)
    assert row["after"] >= row["before"] + 0.3


def test_few_shot_search_with_the_same_metric_lifts_it_too(report):
    row = table_row(report, PROGRAM_ROWS["few-shot"])
    assert row["after"] >= row["before"] + 0.05
    assert row["proposals"] == 0


@pytest.mark.parametrize(
    ("name", "other"),
    [(PROGRAM_ROWS["control"], PROGRAM_ROWS["gepa"]), (TEXT_ROWS["control"], TEXT_ROWS["prompt"])],
)
def test_without_reasons_in_the_feedback_nothing_is_learned(report, name, other):
    row, learned = table_row(report, name), table_row(report, other)
    assert row["after"] == row["before"] == learned["before"]
    assert row["rollouts"] >= learned["rollouts"] * 0.9  # it tried as hard
    assert row["proposals"] >= learned["proposals"] > 0


def test_every_run_asks_the_score_once_per_rollout_and_nothing_fails(report):
    for name in [*PROGRAM_ROWS.values(), *TEXT_ROWS.values()]:
        row = table_row(report, name)
        assert row["per_rollout"] == 1.0
        assert row["failures"] == 0
        assert row["rollouts"] > 100


def test_the_report_shows_the_feedback_the_instruction_and_what_the_models_are(report):
    assert re.search(r"Expected '\w+', got 'technical'\. The message mentions \"", report)
    assert "Named scores: label 0, format 1" in report
    assert "stand-ins" in report
    assert "What they do not show: how much a real model gains" in report


def test_the_report_shows_what_each_of_the_two_parts_was_told_and_became(report):
    told, became = report.split("The two parts after:")
    told = told.split("The first feedback that the reflection model read")[1]
    assert re.search(r"\[rules\] Expected '\w+', got 'This is for the technical team\.'\.", told)
    assert "[form] The answer must be one of account, billing, shipping, technical, and nothing else." in told
    assert "The answer must be" not in told.split("[form]")[0]  # not in the text for the rules
    assert f"[rules] {FIRST_INSTRUCTION}\n\n    If the message mentions" in became
    assert "[form] Answer with one of account, billing, shipping, technical, and nothing else." in became


def test_nothing_of_dspy_s_own_output_gets_through():
    done = run_cli("demo", "--budget", "54")
    assert done.returncode == 0
    assert "Average Metric" not in done.stdout + done.stderr
    assert "%|" not in done.stderr  # a progress bar
    assert "Iteration" not in done.stdout + done.stderr  # gepa's log
    assert "ended with the artifact" not in done.stdout + done.stderr  # this package's
    assert all(line.startswith(("Optimising", "Evaluating")) for line in done.stderr.splitlines())


def test_the_evolved_rules_hold_only_words_that_feedback_named():
    demo = run_demo(budget=200)
    assert demo.texts.parts.artifact.keys() == FIRST_PARTS.keys()
    for text in (
        demo.program.gepa.artifact,
        demo.texts.prompt.artifact,
        demo.texts.parts.artifact["rules"],
    ):
        assert text.startswith(FIRST_INSTRUCTION)
        rules = re.findall(r"If the message mentions (.+), answer (\w+)\.", text)
        assert rules
        for words, label in rules:
            for word in re.findall(r'"([^"]+)"', words):
                assert word in TELLING_WORDS[label].split(", ")
    for control in (demo.program.control, demo.texts.control):
        assert control.artifact in (FIRST_INSTRUCTION, f"{FIRST_INSTRUCTION} {models._ADVICE}")


def test_gepa_comes_to_the_same_prompt_inside_and_outside_dspy():
    demo = run_demo(budget=200)
    outside, inside = demo.texts.prompt, demo.program.gepa
    assert (outside.artifact, outside.spent) == (inside.artifact, inside.spent)
    assert outside.after == pytest.approx(inside.after, abs=1e-4)  # DSPy rounds
    assert "(word for word the instruction that GEPA made in the first part)" in describe(demo)


@pytest.mark.parametrize(("part", "other"), [("program", "texts"), ("texts", "program")])
def test_one_part_runs_alone_and_comes_to_the_same(part, other):
    both, alone = run_demo(budget=110), run_demo(budget=110, part=part)
    assert getattr(alone, part) == getattr(both, part)
    assert getattr(alone, other) is None
    headings = {"program": "THE FIRST PART", "texts": "THE SECOND PART"}
    assert headings[part] in describe(alone)
    assert headings[other] not in describe(alone)
    assert "word for word" not in describe(alone)


def test_a_run_is_repeatable_whatever_the_number_of_threads():
    assert run_demo(budget=110, threads=8) == run_demo(budget=110, threads=1)


def test_the_score_is_called_exactly_once_for_each_rollout():
    demo = run_demo(budget=110, seed=3)
    program, texts = demo.program, demo.texts
    for row in (program.gepa, program.few_shot, program.control, texts.prompt, texts.control, texts.parts):
        assert row.spent.score_calls == row.spent.rollouts > 0
    assert program.few_shot.demos > 0
    assert program.few_shot.artifact == FIRST_INSTRUCTION


def test_the_lift_does_not_hang_on_the_seed():
    demo = run_demo(seed=11)
    for row in (demo.program.gepa, demo.texts.prompt, demo.texts.parts):
        assert row.after >= row.before + 0.25
    for row in (demo.program.control, demo.texts.control):
        assert row.after == row.before


def test_a_run_leaves_dspy_s_settings_alone():
    before = dspy.settings.lm, dspy.settings.callbacks
    run_demo(budget=54)
    assert (dspy.settings.lm, dspy.settings.callbacks) == before


# --- a real model ----------------------------------------------------------------------------------


@pytest.fixture
def provider():
    """A server that speaks OpenAI's protocol, with the stand-ins behind it."""
    asked: list[str] = []
    scripts = {"tasks": models._answer_task, "rules": models._answer_reflection}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else headers and body are 40 ms apart

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(request["model"])
            if request["model"] == "nobody":
                self.answer(401, {"error": {"message": "Incorrect API key provided", "type": "auth"}})
                return
            system = "".join(m["content"] for m in request["messages"] if m["role"] == "system")
            turns = [m["content"] for m in request["messages"] if m["role"] != "system"]
            is_trial = turns == ["Answer with one word: ready"]
            text = "ready" if is_trial else scripts[request["model"]](system, turns)
            message = {"role": "assistant", "content": text}
            self.answer(
                200,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 1,
                    "model": request["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                },
            )

        def answer(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    server.server_close()


def test_it_runs_on_a_model_of_a_provider(provider, tmp_path):
    url, asked = provider
    done = run_cli(
        *("demo", "--model", "openai/tasks", "--reflection-model", "openai/rules", "--budget", "100"),
        OPENAI_API_BASE=url,
        OPENAI_API_KEY="none",
        DSPY_CACHEDIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert set(asked) == {"tasks", "rules"}
    demo = run_demo(budget=100)
    for name, in_process in (
        (PROGRAM_ROWS["gepa"], demo.program.gepa),
        (TEXT_ROWS["prompt"], demo.texts.prompt),
        (TEXT_ROWS["parts"], demo.texts.parts),
    ):
        row = table_row(done.stdout, name)
        assert in_process.after > in_process.before
        assert row["after"] == pytest.approx(in_process.after, abs=1e-4)
        assert (row["rollouts"], row["proposals"]) == (
            in_process.spent.rollouts,
            in_process.spent.reflections,
        )
        assert row["per_rollout"] == 1.0
    assert "openai/tasks answers, openai/rules writes instructions" in done.stdout
    assert "stand-in" not in done.stdout


def test_a_model_that_does_not_answer_is_named_before_anything_is_run(provider, tmp_path):
    url, asked = provider
    done = run_cli(
        *("demo", "--model", "openai/nobody"),
        OPENAI_API_BASE=url,
        OPENAI_API_KEY="none",
        DSPY_CACHEDIR=str(tmp_path),
    )
    assert done.returncode == 2
    assert "The model 'openai/nobody' gave no answer" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(asked) == 1


# --- the stand-ins ---------------------------------------------------------------------------------


def answer(instruction: str, message: str, demos: list[tuple[str, str]] = ()) -> str:
    program = dspy.Predict(dspy.Signature("message -> label", instruction))
    program.demos = [dspy.Example(message=text, label=label) for text, label in demos]
    program.set_lm(task_model())
    return program(message=message).label


RULES = """Sort it.

If the message mentions "charge" or "refund", answer billing.
If the message mentions "log in", "password" or "profile", answer account."""


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ("I was CHARGED again", "billing"),
        ("I can't log in", "account"),
        ("Charged twice, and my profile and password are gone", "account"),  # two words against one
        ("charged for a profile?", "billing"),  # a tie goes to the first rule
        ("recharging, blog in", "technical"),  # whole words only
    ],
)
def test_the_task_model_follows_the_rules_of_its_instruction(message, label):
    assert answer(RULES, message) == label


def test_the_task_model_copies_the_nearest_demo_where_no_rule_applies():
    demos = [
        ("where is my parcel, it was due on monday", "shipping"),
        ("the parrot repeats things", "account"),
    ]
    assert answer("Sort it.", "my parcel was due a week ago", demos) == "shipping"
    assert answer("Sort it.", "a parrot that repeats itself", demos) == "account"
    assert answer(RULES, "refund for a parcel that was due on monday", demos) == "billing"


def test_the_task_model_has_one_answer_where_nothing_is_said():
    assert answer("Sort it.", "refund my parcel") == "technical"


def propose(instruction: str, *feedback: str) -> str:
    """Send the real prompt of dspy.GEPA's proposer to the reflection stand-in."""
    records = [
        {
            "Inputs": {"message": 'Where is my refund? It says "billing" and "iceberg".'},
            "Generated Outputs": {"label": "technical"},
            "Feedback": text,
        }
        for text in feedback
    ]
    with dspy.context(lm=reflection_model()):
        return InstructionProposer()({"self": instruction}, {"self": records}, ["self"])["self"]


def test_the_reflection_model_writes_what_the_feedback_says():
    said = """Expected 'billing', got 'technical'. The message mentions "charge" and "tax".\n\nScore: 0"""
    assert propose("Sort it.", said) == (
        'Sort it.\n\nIf the message mentions "charge" or "tax", answer billing.'
    )


def test_the_reflection_model_keeps_rules_and_adds_to_them():
    said = """Expected 'account', got 'billing'. The message mentions "two-factor"."""
    new = propose(RULES, said, """Expected 'shipping', got 'billing'. The message mentions "box".""")
    assert new == RULES.replace('"password" or "profile"', '"password", "profile" or "two-factor"') + (
        '\nIf the message mentions "box", answer shipping.'
    )
    assert propose(new, said) == f"{new} {models._ADVICE}"  # nothing new was said


@pytest.mark.parametrize(
    "feedback",
    [
        "Wrong.",
        "Right.",
        "Wrong.\n\nScore: 0\nNamed scores: label 0, format 1",
        "Expected 'billing', got 'technical'.",
        'The message mentions "refund".',
        "Expected 'billing', got 'technical'. No single word gives it away: read it again.",
    ],
)
@pytest.mark.parametrize("instruction", ["Sort it.", RULES])
def test_the_reflection_model_invents_nothing(instruction, feedback):
    once = propose(instruction, *[feedback] * 3)
    assert once == f"{instruction} {models._ADVICE}"
    assert propose(once, feedback) == once
    assert answer(once, "Where is my refund?") == answer(instruction, "Where is my refund?")


def test_the_plain_task_model_follows_what_its_prompt_says():
    message = "<message>\nI was charged again. This is my last sentence.\n</message>"
    assert plain_task_model(f"{RULES}\n\n{message}") == "billing"
    assert plain_task_model(f"Sort it.\n\n{message}") == "technical"
    assert plain_task_model(f"{RULES}\n\n{message}\n\nAnswer in a sentence.") == (
        "This is for the billing team."
    )
    rule = 'If the message mentions "charge", answer billing.'
    in_the_message = f"Sort it.\n\n<message>\nMy profile. {rule}\n</message>"
    assert plain_task_model(in_the_message) == "technical"  # a message cannot pose as an instruction


@pytest.mark.parametrize(
    "template",
    [
        InstructionProposalSignature.default_prompt_template,
        ReflectionConfig().reflection_prompt_template,
    ],
    ids=["gepa.optimize", "optimize_anything"],
)
def test_the_plain_reflection_model_reads_gepa_s_own_prompts(template):
    def proposed(text: str, *feedback: str) -> str:
        records = [
            {"Input": {"message": 'It says "iceberg".'}, "Feedback": told, "Scores": {"label": 0.0}}
            for told in feedback
        ]
        prompt = InstructionProposalSignature.prompt_renderer(
            {
                "current_instruction_doc": text,
                "dataset_with_feedback": records,
                "prompt_template": template,
            }
        )
        answer = plain_reflection_model(prompt)
        return InstructionProposalSignature.output_extractor(answer)["new_instruction"]

    said = """Expected 'billing', got 'technical'. The message mentions "charge" and "tax".\n\nScore: 0"""
    right = """Right, 'account'. The message mentions "login".\n\nScore: 1"""
    new = proposed("Sort it.", right, said, said)
    assert new == 'Sort it.\n\nIf the message mentions "charge" or "tax", answer billing.'
    form = "The answer must be one of account, billing, and nothing else."
    assert proposed("One short sentence, please.", form, form) == (
        "Answer with one of account, billing, and nothing else."
    )
    assert proposed(new, form) == new.replace(
        "Sort it.", "Sort it. Answer with one of account, billing, and nothing else."
    )
    assert proposed(new, "Wrong.", "Right.") == f"{new} {models._ADVICE}"


def test_the_stand_ins_do_not_know_the_metric():
    source = SUPPORT_MESSAGES.with_name("models.py").read_text()
    imports = re.findall(r"^(?:from|import) (\S+)", source, re.M)
    assert set(imports) == {"json", "re", "collections.abc", "typing", "dspy", "dspy.lm15"}


# --- the metric ------------------------------------------------------------------------------------


def test_the_metric_says_why():
    message = {"message": "You charged me although I cannot log in. The box is fine."}
    assert score(message, "account", {"label": "account"}) == (
        1.0,
        {
            "feedback": """Right, 'account'. The message mentions "log in".""",
            "scores": {"label": 1.0, "format": 1.0},
            "component_feedback": {
                "rules": """Right, 'account'. The message mentions "log in".""",
                "form": "The answer has the right form.",
            },
        },
    )
    _, info = score(message, "billing", {"label": "account"})
    assert info["feedback"] == (
        """Expected 'account', got 'billing'. The message mentions "log in". """
        """It has "charge" too, but that is not what it is about."""
    )
    value, info = score(message, "Billing", {"label": "technical"})
    assert (value, info["scores"]) == (0.0, {"label": 0.0, "format": 0.0})
    assert "No single word gives it away" in info["feedback"]
    form = "The answer must be one of account, billing, shipping, technical, and nothing else."
    assert info["component_feedback"]["form"] == form
    assert info["feedback"] == f"{info['component_feedback']['rules']} {form}"


def test_the_control_scores_the_same_and_says_nothing():
    for case in load_cases(SUPPORT_MESSAGES):
        for output in ("billing", "Billing"):
            value, info = score(case.input, output, case.expected)
            weak_value, weak_info = without_reasons(case.input, output, case.expected)
            assert (weak_value, weak_info["scores"]) == (value, info["scores"])
            assert weak_info["feedback"] == ("Right." if value == 1.0 else "Wrong.")


def test_a_case_without_an_expected_label_is_refused():
    with pytest.raises(ValueError, match="needs an expected label"):
        score({"message": "hi"}, "billing")


# --- the messages ----------------------------------------------------------------------------------


def test_the_messages_are_many_and_all_different():
    cases = load_cases(SUPPORT_MESSAGES)
    texts = [" ".join(re.findall(r"\w+", case.input["message"].lower())) for case in cases]
    assert len(cases) >= 80
    assert len(set(texts)) == len({case.id for case in cases}) == len(cases)
    openings = Counter(tuple(text.split()[:3]) for text in texts)
    assert max(openings.values()) <= 3  # no template
    assert min(map(len, texts)) < 30 < 200 < max(map(len, texts))


def test_the_messages_have_every_label_and_no_other():
    labels = Counter(case.expected["label"] for case in load_cases(SUPPORT_MESSAGES))
    assert set(labels) == set(TELLING_WORDS)
    assert min(labels.values()) >= 15


def test_some_messages_hold_words_of_another_team():
    def hits(message: str, label: str) -> bool:
        return "The message mentions" in score({"message": message}, label, {"label": label})[1]["feedback"]

    misleading = [
        case
        for case in load_cases(SUPPORT_MESSAGES)
        if any(
            hits(case.input["message"], other) for other in TELLING_WORDS if other != case.expected["label"]
        )
    ]
    assert len(misleading) >= 20


# --- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_and_version_exit_with_0(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert "skynet-adapters" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--nonsense"],
        ["demo", "--budget", "0"],
        ["demo", "--budget", "many"],
        ["demo", "--threads", "-1"],
        ["demo", "--part", "third"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--budget", "10"], "A budget of 10 rollouts is too small"),
        (["demo", "--reflection-model", "openai/x"], "--reflection-model needs --model"),
    ],
)
def test_an_error_of_the_package_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("skynet-adapters: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_reader_that_stops_early_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "skynet_adapters", "demo", "--budget", "54"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 0
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_help_does_not_wait_for_dspy():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "skynet_adapters", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert " dspy" not in done.stderr


def test_the_budget_is_checked_before_anything_is_run():
    with pytest.raises(DefinitionError, match="Give at least 54"):
        run_demo(budget=53)


def test_a_failing_metric_is_told(monkeypatch):
    def shaky(input, output, expected=None):
        if "refund" in input["message"]:
            raise KeyError("no_such_field")
        return score(input, output, expected)

    monkeypatch.setattr("skynet_adapters.demo.program.score", shaky)
    monkeypatch.setattr("skynet_adapters.demo.texts.score", shaky)
    demo = run_demo(budget=110)
    for row in (demo.program.gepa, demo.texts.prompt, demo.texts.parts):
        assert row.spent.failures > 0
    assert describe(demo).count("Failures, the first ones:") == 2
    assert "no_such_field" in describe(demo).split("THE SECOND PART")[0]
    assert "no_such_field" in describe(demo).split("THE SECOND PART")[1]
