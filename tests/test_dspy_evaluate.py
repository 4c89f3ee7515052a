"""The metric in the real `dspy.Evaluate`."""

import asyncio
import csv
import gc
import json
import logging
import socket
import subprocess
import sys
import textwrap
import threading
import time
from decimal import Decimal
from fractions import Fraction

import dspy
import numpy as np
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from skynet_adapters import Metric, MetricBroken, as_dspy_metric
from tests.scripted import ScriptedEngine, answering, chat, examples, field_of, scripted_lm
from tests.waiting import HANG, pools_run_empty, with_few_paid


def score(input, output, expected=None):
    right = output == expected["answer"]
    return float(right), {
        "feedback": "Right." if right else f"Expected {expected['answer']!r}, got {output!r}."
    }


class Quick(dspy.Module):
    """A program without a model: gives what a function of the question gives, and counts."""

    def __init__(self, answer=lambda question: dspy.Prediction(answer="A")):
        super().__init__()
        self.answer = answer
        self.calls = []

    def forward(self, question):
        self.calls.append(question)
        return self.answer(question)


def evaluate(metric, program=None, devset=None, threads=8, **options):
    devset = examples(8) if devset is None else devset
    return dspy.Evaluate(devset=devset, metric=metric, num_threads=threads, **options)(
        Quick() if program is None else program
    )


def paid_until_stopped(
    metric, match, few, released, answer=lambda question: dspy.Prediction(answer="A"), threads=8
):
    """How many of 200 programs are paid in all, where only so many answer before the run has been stopped."""
    program = Quick(with_few_paid(answer, few, released))
    with pools_run_empty():
        with pytest.raises(MetricBroken, match=match):
            evaluate(metric, program, examples(200), threads)
        released.set()
    return len(program.calls)


def scores_of(result):
    return [one for _, _, one in result.results]


# --- means, tables, files -------------------------------------------------------------------------


def test_mean_is_the_mean_of_the_scores_under_eight_threads():
    metric = as_dspy_metric(score)
    with dspy.context(lm=answering(lambda question: "A" if question in ("q0", "q3") else "B")):
        result = dspy.Evaluate(devset=examples(8), metric=metric, num_threads=8)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 25.0
    assert metric.metric.calls == 8


def test_mean_of_graded_scores_is_the_same_with_one_thread_and_with_eight():
    def graded(input, output):
        return int(input["question"][1:]) / 8, {"feedback": "Graded."}

    means = [evaluate(as_dspy_metric(graded), threads=threads).score for threads in (1, 8)]
    assert means == [43.75, 43.75]


def test_results_hold_number_and_feedback_of_each_example():
    result = evaluate(as_dspy_metric(score), devset=examples(4, lambda number: "AB"[number % 2]))
    assert [float(one) for one in scores_of(result)] == [1.0, 0.0, 1.0, 0.0]
    assert scores_of(result)[1].feedback == "Expected 'B', got 'A'.\n\nScore: 0"


def test_the_table_titles_its_column_with_the_metrics_name_and_keeps_every_field(capsys):
    metric = as_dspy_metric(score, name="judge")
    devset = examples(3, lambda number: "AAB"[number], judge="the field")
    evaluate(metric, devset=devset, display_table=True)
    table = capsys.readouterr().out
    for title in ("question", "example_answer", "judge", "pred_answer", metric.__name__):
        assert title in table.split()
    assert table.count("the field") == 3
    assert table.count("[1]") == 2
    assert table.count("[0]") == 1


def test_the_table_shows_named_scores_and_failures_as_numbers(capsys):
    def some(input, output):
        if input["question"] == "q1":
            raise ValueError("boom")
        return 0.5, {"feedback": "Half.", "scores": {"format": 1.0}}

    evaluate(as_dspy_metric(some), devset=examples(3), display_table=2)
    table = capsys.readouterr().out
    assert table.count("[0.5]") == 1
    assert table.count("[0]") == 1


def test_the_csv_file_holds_the_number_in_a_column_of_the_metrics_name(tmp_path):
    metric = as_dspy_metric(score, name="judge")
    file = tmp_path / "results.csv"
    devset = examples(3, lambda number: "AAB"[number], judge="the field")
    evaluate(metric, devset=devset, save_as_csv=str(file))
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row[metric.__name__]) for row in rows] == [1.0, 1.0, 0.0]
    assert [row["judge"] for row in rows] == ["the field"] * 3
    assert [row["pred_answer"] for row in rows] == ["A"] * 3


def test_the_json_file_holds_score_and_feedback_also_of_results_that_are_false(tmp_path):
    def some(input, output, expected=None):
        if input["question"] == "q2":
            raise ValueError("boom")
        value, info = score(input, output, expected)
        return value, {**info, "scores": {"format": 1.0}}

    metric = as_dspy_metric(some)
    file = tmp_path / "results.json"
    devset = examples(3, lambda number: "ABA"[number])
    result = evaluate(metric, devset=devset, save_as_json=str(file))
    rows = [row[metric.__name__] for row in json.loads(file.read_text())]
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.0]
    assert [row["feedback"] for row in rows] == [one.feedback for one in scores_of(result)]
    assert "Expected 'B', got 'A'." in rows[1]["feedback"]
    assert "ValueError: boom" in rows[2]["feedback"]
    assert [row["objective_scores"] for row in rows] == [{"format": 1.0}, {"format": 1.0}, {"format": 0.0}]


# --- truth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "threshold", "truth"),
    [(1.0, None, True), (0.9, None, False), (0.0, None, False), (0.5, 0.5, True), (0.4, 0.5, False)],
)
def test_if_metric_of_example_and_prediction_is_honest(value, threshold, truth):
    metric = as_dspy_metric(lambda input, output: (value, {"feedback": "F."}), success_threshold=threshold)
    said = "success" if metric(examples(1)[0], dspy.Prediction(answer="A")) else "no success"
    assert said == ("success" if truth else "no success")


def test_if_metric_is_false_where_the_metric_failed_whatever_the_failure_score():
    def broken(input, output):
        raise ValueError("boom")

    metric = as_dspy_metric(broken, failure_score=1.0)
    assert not metric(examples(1)[0], dspy.Prediction(answer="A"))


@pytest.mark.parametrize("threshold", [None, 0.5, -1])
def test_bootstrapping_makes_demos_only_of_traces_that_the_metric_approves(threshold):
    def some(input, output, expected=None):
        if input["question"] == "q3":
            raise ValueError("boom")
        return (1.0 if input["question"] in ("q1", "q4") else -2.0), {"feedback": "F."}

    compiler = dspy.BootstrapFewShot(
        metric=as_dspy_metric(some),
        metric_threshold=threshold,
        max_bootstrapped_demos=8,
        max_labeled_demos=0,
    )
    with dspy.context(lm=answering(lambda question: "A")):
        compiled = compiler.compile(dspy.Predict("question -> answer"), trainset=examples(6))
    assert [demo["question"] for demo in compiled.demos] == ["q1", "q4"]


# --- a metric that fails --------------------------------------------------------------------------


def test_a_metric_that_raises_on_some_cases_leaves_the_others_alone(caplog):
    def some(input, output, expected=None):
        if input["question"] in ("q2", "q5"):
            raise KeyError("due_date")
        return score(input, output, expected)

    metric = as_dspy_metric(some)
    result = evaluate(metric)
    assert result.score == 75.0
    assert [float(one) for one in scores_of(result)] == [1, 1, 0, 1, 1, 0, 1, 1]
    failed = scores_of(result)[2]
    assert "raised KeyError: 'due_date'" in failed.feedback
    assert 'raise KeyError("due_date")' in failed.feedback
    failures = metric.metric.failures
    assert len(failures) == 2
    assert sorted(failure.case for failure in failures) == [
        "{'question': 'q2'}",
        "{'question': 'q5'}",
    ]
    warned = [record for record in caplog.records if record.name == "skynet_adapters"]
    assert len(warned) == 1
    assert warned[0].levelno == logging.WARNING
    assert "KeyError: 'due_date'" in warned[0].getMessage()


def test_a_closing_warning_counts_the_failures(caplog):
    def some(input, output):
        if input["question"] < "q3":
            raise ValueError("boom")
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(some, name="judge")
    evaluate(metric)
    caplog.clear()
    del metric
    gc.collect()
    assert "metric 'judge': 3 cases have no judgement (3 MetricError)" in caplog.text


def always_raising(input, output, expected=None):
    raise LookupError("no such table: verdicts")


@pytest.mark.parametrize("few", [8, 30, 100])
def test_a_metric_that_always_raises_stops_every_run_by_name_and_pays_for_few_programs(few, released):
    # Its eight threads have begun one program each by then, and nothing of the queue is run afterwards.
    metric = as_dspy_metric(always_raising)
    assert paid_until_stopped(metric, "LookupError: no such table: verdicts", few, released) <= few + 8


def test_a_metric_that_always_raises_stops_a_run_with_a_slow_program_and_pays_for_few(released):
    def slow(question):
        time.sleep(0.01)
        return dspy.Prediction(answer="A")

    metric = as_dspy_metric(always_raising)
    assert paid_until_stopped(metric, "LookupError: no such table: verdicts", 32, released, slow) <= 40


def test_a_metric_that_always_raises_stops_a_run_with_one_thread_after_five_cases():
    program = Quick()
    metric = as_dspy_metric(always_raising)
    with pytest.raises(MetricBroken, match="LookupError: no such table: verdicts") as caught:
        evaluate(metric, program, examples(200), threads=1)
    assert len(program.calls) == 5
    assert metric.metric.calls == 6  # and once with the expected value as output
    assert "stop_after=None" in str(caught.value)


def test_an_evaluation_after_one_that_was_stopped_is_not_disturbed():
    for _ in range(3):
        with pytest.raises(MetricBroken):
            evaluate(as_dspy_metric(always_raising), Quick(), examples(100))
        program = Quick()
        assert evaluate(as_dspy_metric(score), program, examples(50)).score == 100.0
        assert len(program.calls) == 50


def test_a_metric_that_works_again_after_a_stop_is_not_stopped_by_a_later_failure():
    broken = threading.Event()

    def recovering(input, output, expected=None):
        if broken.is_set() or input["question"] == "q1":
            raise ConnectionError("the database is down")
        return score(input, output, expected)

    metric = as_dspy_metric(recovering)
    broken.set()
    with pytest.raises(MetricBroken, match="the database is down"):
        evaluate(metric, threads=1)
    broken.clear()
    assert evaluate(metric, threads=1).score == 87.5


def test_a_first_failure_after_a_stop_does_not_stop_the_next_run():
    down = [True]

    def recovering(input, output, expected=None):
        if down[0] or input["question"] == "q0":
            raise ConnectionError("the database is down")
        return score(input, output, expected)

    metric = as_dspy_metric(recovering)
    with pytest.raises(MetricBroken, match="the database is down"):
        evaluate(metric, threads=1)
    down[0] = False
    assert evaluate(metric, threads=1).score == 87.5


def test_a_broken_metric_that_reads_fields_of_a_text_is_stopped_whatever_the_labels_look_like():
    def reads_a_field(input, output, expected=None):
        return float(output["answer"] == expected["answer"]), {"feedback": "Compared."}

    devset = examples(40, lambda number: "A", topic="letters")
    program = Quick()
    with pytest.raises(MetricBroken, match="string indices must be integers"):
        evaluate(as_dspy_metric(reads_a_field), program, devset, threads=1)
    assert len(program.calls) == 5


@pytest.mark.parametrize(
    ("label", "judge"),
    [
        (3, lambda output, expected: output.strip() == str(expected["answer"])),  # the label is no text
        ("3", lambda output, expected: output + 0 == int(expected["answer"])),  # the output is none
    ],
)
def test_a_program_that_gives_nothing_at_first_does_not_stop_a_metric_whose_labels_are_of_another_type(
    label, judge
):
    answers = iter([None] * 10 + [str(label) if isinstance(label, int) else int(label)] * 10)
    program = Quick(lambda question: dspy.Prediction(answer=next(answers)))
    metric = as_dspy_metric(
        lambda input, output, expected: (judge(output, expected), {"feedback": "Compared."})
    )
    assert evaluate(metric, program, examples(20, lambda number: label), threads=1).score == 50.0


@pytest.mark.parametrize("timeout", [60.0, None])
def test_a_broken_metric_that_a_metric_asks_stops_the_run_and_pays_for_few(timeout, released):
    inner = as_dspy_metric(always_raising)

    def outer(input, output, expected=None):
        example = dspy.Example(**input, **expected).with_inputs(*input)
        return float(inner(example, dspy.Prediction(answer=output))), {"feedback": "Asked."}

    metric = as_dspy_metric(outer, timeout=timeout)
    assert paid_until_stopped(metric, "no such table: verdicts", 32, released) <= 40


def test_an_evaluation_inside_an_async_metric_is_not_held_up(monkeypatch):
    monkeypatch.setattr("skynet_adapters.deadline._LOOP_PATIENCE_SECONDS", 30.0)

    async def inner(input, output, expected=None):
        await asyncio.sleep(0)
        return score(input, output, expected)

    async def outer(input, output, expected=None):
        result = evaluate(as_dspy_metric(inner), devset=examples(4), threads=4)
        return result.score / 100, {"feedback": "Evaluated."}

    metric = as_dspy_metric(outer, timeout=20.0)  # less than a call of the inner one waits for a busy loop
    result = evaluate(metric, devset=examples(3), threads=2)
    assert (result.score, list(metric.failures)) == (100.0, [])


def counts(input, output, expected=None):
    (wanted,) = expected.values()
    return float(int(output) == int(wanted)), {"feedback": "Compared."}


@pytest.mark.parametrize("reader", [None, lambda pred: pred.final])
def test_a_label_of_another_name_than_the_answer_does_not_stop_a_metric(reader):
    answers = iter(["dunno"] * 10 + ["4"] * 10)
    program = Quick(lambda question: dspy.Prediction(final=next(answers)))
    devset = [dspy.Example(question=f"q{n}", gold="4").with_inputs("question") for n in range(20)]
    assert evaluate(as_dspy_metric(counts, output=reader), program, devset, threads=1).score == 50.0


def test_a_label_of_another_type_among_several_fields_does_not_stop_a_metric():
    def reads(input, output, expected=None):
        return float(int(output["answer"].strip()) == expected["answer"]), {"feedback": "Compared."}

    answers = iter(["dunno"] * 10 + ["4 "] * 10)
    program = Quick(lambda question: dspy.Prediction(answer=next(answers), unit="kg"))
    devset = [dspy.Example(question=f"q{n}", answer=4, unit="kg").with_inputs("question") for n in range(20)]
    assert evaluate(as_dspy_metric(reads), program, devset, threads=1).score == 50.0


@pytest.mark.parametrize("judge", [round, lambda output: output + 1])
def test_a_metric_that_reckons_with_texts_is_stopped_though_the_labels_are_numbers(judge):
    program = Quick(lambda question: dspy.Prediction(answer="4"))
    metric = as_dspy_metric(lambda input, output: (judge(output) == 4, {"feedback": "Compared."}))
    with pytest.raises(MetricBroken, match="TypeError"):
        evaluate(metric, program, examples(40, lambda number: 4), threads=1)


def test_a_metric_that_was_stopped_by_one_run_is_not_stopped_at_once_by_another():
    down = [True]

    def recovering(input, output, expected=None):
        if down[0]:
            raise KeyError("k")
        if output == "?":
            raise ValueError("unreadable")
        return score(input, output, expected)

    metric = Metric(recovering)
    for number in range(8):
        metric.score_case({}, f"{number}", {"answer": "A"})
    assert "KeyError" in (metric.broken() or "")
    down[0] = False
    answers = iter("?A" * 10)
    program = Quick(lambda question: dspy.Prediction(answer=next(answers)))
    assert evaluate(as_dspy_metric(metric), program, examples(20), threads=1).score == 50.0


def test_an_async_client_of_a_module_works_in_metrics_and_in_those_that_ask_them():
    limit = asyncio.Semaphore(2)

    async def inner(input, output, expected=None):
        async with limit:
            await asyncio.sleep(0.01)
        return score(input, output, expected)

    asked = Metric(inner)
    for metric in (as_dspy_metric(asked), as_dspy_metric(lambda i, o, e: asked(i, o, e), name="outer")):
        result = evaluate(metric, devset=examples(16))
        assert (result.score, list(metric.failures)) == (100.0, [])


def test_the_result_of_another_metric_is_a_number_where_it_is_a_judgement():
    inner = as_dspy_metric(score)
    broken = as_dspy_metric(always_raising, stop_after=None)

    def asks(one):
        def outer(input, output, expected=None):
            example = dspy.Example(**input, **expected).with_inputs(*input)
            judged = one(example, dspy.Prediction(answer=output))
            return judged, {"feedback": "Asked.", "scores": {"inner": judged}}

        return as_dspy_metric(outer, stop_after=None)

    assert evaluate(asks(inner)).score == 100.0
    failed = asks(broken)(examples(1)[0], dspy.Prediction(answer="A"))
    assert failed.error is not None
    assert "no such table" in failed.feedback


def test_asking_again_for_the_text_counts_no_rollout_also_without_memory():
    metric = as_dspy_metric(always_raising, memo=None)
    devset, prediction = examples(5), dspy.Prediction(answer="A")
    for example in devset[:4]:
        metric(example, prediction, None)
        for _ in range(3):
            assert "no such table" in metric(example, prediction, [], "self", []).feedback
    with pytest.raises(MetricBroken, match="first 5 rollouts"):
        metric(devset[4], prediction, None)


@pytest.mark.parametrize("threads", [1, 8])
def test_a_metric_that_always_raises_does_not_stop_with_stop_after_none(threads):
    metric = as_dspy_metric(always_raising, stop_after=None)
    assert evaluate(metric, devset=examples(30), threads=threads).score == 0.0
    assert (metric.metric.calls, len(metric.metric.failures)) == (30, 30)


def test_stop_after_says_after_how_many_cases():
    program = Quick()
    with pytest.raises(MetricBroken, match="first 3 rollouts"):
        evaluate(as_dspy_metric(always_raising, stop_after=3), program, examples(50), threads=1)
    assert len(program.calls) == 3


def test_a_metric_that_fails_from_the_middle_on_stops_by_max_failures_in_a_row():
    def revoked(input, output):
        if int(input["question"][1:]) >= 20:
            raise PermissionError("key revoked")
        return 1.0, {"feedback": "F."}

    program = Quick()
    with pytest.raises(MetricBroken, match=r"7 times in a row.*key revoked"):
        evaluate(as_dspy_metric(revoked, max_failures_in_a_row=7), program, examples(100), threads=1)
    assert len(program.calls) == 27


def test_a_metric_with_one_success_is_not_stopped():
    def nearly(input, output):
        if input["question"] != "q0":
            raise ValueError("boom")
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(nearly)
    assert evaluate(metric, devset=examples(40), threads=1).score == 2.5
    assert len(metric.metric.failures) == 39


def parsing(input, output, expected=None):
    """Raises on an answer that is no JSON, and works on the expected value."""
    return float(json.loads(output) == json.loads(expected["answer"])), {"feedback": "Parsed."}


@pytest.mark.parametrize("threads", [1, 8])
def test_a_program_whose_answers_do_not_parse_at_first_is_not_stopped(threads):
    program = Quick(lambda question: dspy.Prediction(answer="{" if int(question[1:]) < 40 else '{"a": 1}'))
    metric = as_dspy_metric(parsing)
    result = evaluate(metric, program, examples(50, lambda number: '{"a": 1}'), threads=threads)
    assert result.score == 20.0
    assert len(metric.metric.failures) == 40


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"output": "answer"}, {}),
        ({"output": "answer"}, {"note": "another label"}),
        ({"expected": "answer"}, {"note": "another label"}),
        ({"output": "answer", "expected": ["answer", "note"]}, {"note": "another label"}),
        ({"output": lambda pred: pred.answer}, {"note": "another label"}),
    ],
    ids=["plain", "output", "output-two-labels", "expected-name", "both-named", "output-function"],
)
def test_a_program_whose_answers_never_parse_is_not_stopped(options, more):
    program = Quick(lambda question: dspy.Prediction(answer="{", note="n"))
    metric = as_dspy_metric(parsing, **options)
    devset = examples(20, lambda number: '{"a": 1}', **more)
    assert evaluate(metric, program, devset, threads=1).score == 0.0
    assert len(metric.metric.failures) == 20


@pytest.mark.parametrize(
    "returned",
    [
        0.8,
        (0.8, "Close."),
        (0.8, {}),
        ("0.8", {"feedback": "OK"}),
        (0.8, {"feedback": "OK", "scores": {"a": "high"}}),
        (0.8, {"feedback": None}),
        (0.8, {"feedback": "OK"}, "more"),
        None,
        {"score": 0.8, "feedback": "OK"},
        dspy.Prediction(score=0.8, feedback="OK"),
        (float("nan"), {"feedback": "OK"}),
        (float("inf"), {"feedback": "OK"}),
        (Decimal("NaN"), {"feedback": "OK"}),
        (0.8, {"feedback": "OK", "scores": {"a": float("nan")}}),
    ],
    ids=repr,
)
def test_a_wrong_shape_is_a_failure_of_that_case_alone(returned):
    def some(input, output):
        return returned if input["question"] == "q1" else (1.0, {"feedback": "OK"})

    metric = as_dspy_metric(some)
    result = evaluate(metric)
    assert result.score == 87.5
    failed = scores_of(result)[1]
    assert (failed.score, bool(failed)) == (0.0, False)
    assert "returned" in failed.feedback
    assert [failure.kind for failure in metric.metric.failures] == ["MetricReturnError"]


@pytest.mark.parametrize("returned", [0.8, (0.8, "Close."), (0.8, {}), ("0.8", {"feedback": "OK"})], ids=repr)
def test_a_metric_that_always_returns_a_wrong_shape_stops_the_run_and_shows_the_right_one(returned):
    with pytest.raises(MetricBroken, match=r'return 0\.8, \{"feedback"'):
        evaluate(as_dspy_metric(lambda input, output, expected=None: returned), devset=examples(50))


@pytest.mark.parametrize(
    "number",
    [
        np.float64(0.5),
        np.float32(0.5),
        np.array(0.5),
        Decimal("0.5"),
        Fraction(1, 2),
        0.5,
    ],
    ids=repr,
)
def test_numbers_of_other_types_become_floats(number):
    metric = as_dspy_metric(lambda input, output: (number, {"feedback": "F.", "scores": {"a": number}}))
    result = evaluate(metric)
    assert result.score == 50.0
    one = scores_of(result)[0]
    assert (type(one.score), type(one["objective_scores"]["a"])) == (float, float)
    assert json.loads(json.dumps(one))["score"] == 0.5


@pytest.mark.parametrize("number", [True, np.True_, np.int64(1), 1, np.bool_(1)], ids=repr)
def test_whole_numbers_and_bools_become_floats(number):
    result = evaluate(as_dspy_metric(lambda input, output: (number, {"feedback": "F."})))
    assert result.score == 100.0
    assert [type(one.score) for one in scores_of(result)] == [float] * 8


# --- a program that fails -------------------------------------------------------------------------


def test_a_prediction_that_is_none_is_not_judged():
    metric = as_dspy_metric(score)
    one = metric(examples(1)[0], None)
    assert (one.score, bool(one), metric.metric.calls) == (0.0, False, 0)
    assert "The program gave no output." in one.feedback


def test_a_prediction_that_could_not_be_parsed_is_not_judged():
    metric = as_dspy_metric(score)
    one = metric(examples(1)[0], FailedPrediction(completion_text="{broken"))
    assert (one.score, bool(one), metric.metric.calls) == (0.0, False, 0)
    assert "could not be parsed: {broken" in one.feedback


def test_a_program_that_always_returns_none_does_not_stop_the_run():
    metric = as_dspy_metric(score)
    assert evaluate(metric, Quick(lambda question: None), examples(30)).score == 0.0
    assert metric.metric.calls == 0
    assert {failure.kind for failure in metric.metric.failures} == {"ProgramFailedError"}
    assert len(metric.metric.failures) == 30


def test_a_program_that_returns_none_now_and_then_scores_only_the_rest():
    program = Quick(lambda question: None if question in ("q1", "q2") else dspy.Prediction(answer="A"))
    metric = as_dspy_metric(score)
    assert evaluate(metric, program).score == 75.0
    assert metric.metric.calls == 6


def test_the_metric_is_never_asked_where_the_program_raises():
    def raising(question):
        if question in ("q1", "q2"):
            raise RuntimeError("no answer")
        return dspy.Prediction(answer="A")

    metric = as_dspy_metric(score)
    assert evaluate(metric, Quick(raising)).score == 75.0
    assert (metric.metric.calls, len(metric.metric.failures)) == (6, 0)


def test_a_field_that_is_missing_now_and_then_fails_that_case_alone():
    program = Quick(
        lambda question: dspy.Prediction(**({"reply": "B"} if question == "q3" else {"answer": "A"}))
    )
    metric = as_dspy_metric(score, output="answer")
    result = evaluate(metric, program)
    assert result.score == 87.5
    assert "no field 'answer', which output= asks for; it has ['reply']" in scores_of(result)[3].feedback
    assert len(metric.metric.failures) == 1


@pytest.mark.parametrize("threads", [1, 8])
def test_a_field_that_is_always_missing_stops_the_run_and_says_which(threads, released):
    metric = as_dspy_metric(score, output="label")
    match = r"no field 'label', which output= asks for; it has \['answer'\]"
    few = 5 if threads == 1 else 30
    paid = paid_until_stopped(metric, match, few, released, threads=threads)
    assert paid <= (5 if threads == 1 else few + 8)
    assert metric.metric.calls == 0


def test_an_expected_field_that_is_always_missing_stops_the_run_and_says_which():
    with pytest.raises(MetricBroken, match="the example has no field 'label', which expected= asks for"):
        evaluate(as_dspy_metric(score, expected="label"), devset=examples(100))


def test_an_output_function_that_always_raises_stops_the_run_and_says_why():
    with pytest.raises(MetricBroken, match="label"):
        evaluate(as_dspy_metric(score, output=lambda pred: pred.label), devset=examples(100))


def test_asking_again_for_the_text_of_a_missing_field_counts_no_second_failure():
    metric = as_dspy_metric(score, output="label", stop_after=5)
    kept = [dspy.Prediction(answer="A") for _ in range(4)]
    for example, prediction in zip(examples(4), kept, strict=True):
        metric(example, prediction, None)
        again = metric(example, prediction, [], "self", [])
        assert "no field 'label'" in again.feedback
    assert len(metric.metric.failures) == 4
    with pytest.raises(MetricBroken, match="first 5 rollouts"):
        metric(examples(1)[0], dspy.Prediction(answer="A"), None)


# --- SystemExit, hangs ----------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [60.0, None])
def test_system_exit_in_a_metric_is_a_failure_of_that_case_alone(timeout):
    def leaving(input, output):
        if input["question"] == "q1":
            sys.exit("I am off")
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(leaving, timeout=timeout)
    result = evaluate(metric)
    assert result.score == 87.5
    assert "SystemExit: I am off" in scores_of(result)[1].feedback


def test_system_exit_on_every_case_stops_the_run_by_name():
    def leaving(input, output, expected=None):
        raise SystemExit(3)

    with pytest.raises(MetricBroken, match="SystemExit: 3"):
        evaluate(as_dspy_metric(leaving), devset=examples(50))


@pytest.mark.parametrize("threads", [1, 8])
def test_ctrl_c_inside_a_metric_ends_the_evaluation(threads):
    def interrupted(input, output):
        if input["question"] == "q3":
            raise KeyboardInterrupt
        return 1.0, {"feedback": "F."}

    with pytest.raises(KeyboardInterrupt):
        evaluate(as_dspy_metric(interrupted), devset=examples(8), threads=threads)


class Hang:
    """Ways not to return, each ended by `free`."""

    def __init__(self, kind):
        self.free = threading.Event()
        self.lock = threading.Lock()
        self.lock.acquire()
        self.here, self.there = socket.socketpair()
        self.wait = getattr(self, kind)

    def sleep(self):
        while not self.free.is_set():
            time.sleep(0.01)

    def busy_loop(self):
        while not self.free.is_set():
            pass

    def blocked_socket(self):
        self.here.recv(1)

    def held_lock(self):
        self.lock.acquire()

    def end(self):
        self.free.set()
        self.there.sendall(b"x")
        if self.lock.locked():
            self.lock.release()
        self.there.close()


@pytest.mark.parametrize("kind", ["sleep", "busy_loop", "blocked_socket", "held_lock"])
def test_a_hang_is_released_on_time_while_innocent_calls_go_on(kind):
    hang = Hang(kind)
    seen, ended = [], []

    def hanging(input, output):
        seen.append(dspy.settings.lm)
        if input["question"] == "q3":
            hang.wait()
        ended.append(input["question"])
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(hanging, timeout=2.0)  # the innocent ones take milliseconds
    lm = answering(lambda question: "A")
    try:
        with dspy.context(lm=lm):
            result = evaluate(metric, dspy.Predict("question -> answer"), examples(16))
        innocent = set(ended)
    finally:
        hang.end()
    assert result.score == 93.75
    assert "did not answer within 2 s" in scores_of(result)[3].feedback
    assert [failure.kind for failure in metric.metric.failures] == ["MetricTimeoutError"]
    assert innocent == {f"q{number}" for number in range(16)} - {"q3"}  # nobody waited for the hang to end
    assert seen == [lm] * 16


def test_hangs_on_every_case_stop_the_run_by_name(released):
    def hanging(input, output, expected=None):
        released.wait()
        return 1.0, {"feedback": "F."}

    with pytest.raises(MetricBroken, match=r"did not answer within 0\.2 s"):
        evaluate(as_dspy_metric(hanging, timeout=0.2), devset=examples(100))


@pytest.mark.parametrize("options", [{}, {"timeout": 5.0}, {"timeout": None}], ids=repr)
@pytest.mark.parametrize("threads", [1, 8])
def test_a_judge_inside_the_metric_sees_the_callers_settings(options, threads):
    seen = []

    def judged(input, output):
        seen.append((dspy.settings.lm, dspy.settings.adapter, dspy.settings.max_errors))
        verdict = dspy.Predict("text -> verdict")(text=output).verdict
        return float(verdict == "good"), {"feedback": verdict}

    lm, adapter = scripted_lm(lambda messages: chat(verdict="good")), dspy.ChatAdapter()
    with dspy.context(lm=lm, adapter=adapter, max_errors=77):
        result = evaluate(as_dspy_metric(judged, **options), threads=threads)
    assert result.score == 100.0
    assert seen == [(lm, adapter, 77)] * 8


def test_settings_that_change_between_two_evaluations_reach_the_metric_of_the_second():
    seen = []

    def judged(input, output):
        seen.append(dspy.settings.lm)
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(judged)
    first, second = answering(str), answering(str)
    for lm in (first, second):
        with dspy.context(lm=lm):
            evaluate(metric)
    assert seen == [first] * 8 + [second] * 8


def test_the_interpreter_exits_cleanly_while_metrics_hang(tmp_path):
    script = tmp_path / "hanging.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio, threading, time
            import dspy
            from skynet_adapters import as_dspy_metric

            held = threading.Lock()
            held.acquire()
            innocent = threading.Semaphore(0)

            def score(input, output):
                if input["question"] == "q1":
                    time.sleep(600)
                if input["question"] == "q2":
                    for _ in range(5):  # which would wait for this loop again and again
                        innocent.acquire()
                    while True:
                        pass
                if input["question"] == "q3":
                    held.acquire()
                innocent.release()
                return 1.0, {"feedback": "F."}

            async def ascore(input, output):
                if input["question"] == "q1":
                    await asyncio.sleep(600)
                return 1.0, {"feedback": "F."}

            class Program(dspy.Module):
                def forward(self, question):
                    return dspy.Prediction(answer="A")

            devset = [dspy.Example(question=f"q{n}").with_inputs("question") for n in range(8)]
            for one in (score, ascore):
                metric = as_dspy_metric(one, timeout=1.0)
                print(dspy.Evaluate(devset=devset, metric=metric, num_threads=8)(Program()).score, flush=True)
            """
        )
    )
    # It comes back: two of the hangs never end.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["62.5", "87.5"]
    assert "Traceback" not in done.stderr
    assert "never awaited" not in done.stderr


# --- what the metric gets -------------------------------------------------------------------------


def test_a_metric_that_changes_what_it_gets_changes_nothing_else():
    def vandal(input, output, expected=None):
        seen = json.dumps([input, output, expected])
        input["tags"].append("x")
        input.clear()
        output["items"].append("x")
        output["more"] = "x"
        expected["answer"]["items"].clear()
        expected.clear()
        return 1.0, {"feedback": seen}

    devset = [
        dspy.Example(question="q", tags=["a"], answer={"items": ["b"]}).with_inputs("question", "tags")
        for _ in range(4)
    ]

    class Program(dspy.Module):
        def forward(self, question, tags):
            return dspy.Prediction(answer={"items": ["c"]})

    metric = as_dspy_metric(vandal)
    first = evaluate(metric, Program(), devset)
    second = evaluate(metric, Program(), devset)
    assert first.score == second.score == 100.0
    for example, prediction, one in (*first.results, *second.results):
        assert example.toDict() == {"question": "q", "tags": ["a"], "answer": {"items": ["b"]}}
        assert prediction.toDict() == {"answer": {"items": ["c"]}}
        assert json.loads(one.feedback.split("\n")[0]) == [
            {"question": "q", "tags": ["a"]},
            {"items": ["c"]},
            {"answer": {"items": ["b"]}},
        ]


def test_lone_surrogates_and_nuls_do_no_harm(tmp_path):
    bad = "bad \ud800 and \0"

    def echoing(input, output, expected=None):
        return 0.0, {"feedback": f"Got {output}, not {expected['answer']}", "note": bad}

    file = tmp_path / "results.json"
    program = Quick(lambda question: dspy.Prediction(answer=question))
    devset = [dspy.Example(question=bad, answer=bad).with_inputs("question")]
    result = evaluate(as_dspy_metric(echoing), program, devset, save_as_json=str(file))
    [one] = scores_of(result)
    one.feedback.encode("utf-8")
    assert one.feedback.startswith("Got bad \ufffd and \ufffd, not bad \ufffd and \ufffd\n")
    assert "\0" not in one.feedback
    assert json.loads(file.read_text(encoding="utf-8"))


def test_lone_surrogates_in_what_a_metric_raises_do_no_harm():
    def raising(input, output):
        if input["question"] == "q0":
            raise ValueError("bad \ud800 and \0")
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(raising)
    one = scores_of(evaluate(metric))[0]
    one.feedback.encode("utf-8")
    assert "bad \ufffd and \ufffd" in one.feedback
    for failure in metric.metric.failures:
        (failure.text + failure.case).encode("utf-8")


def test_five_megabytes_of_text_pass_and_their_feedback_is_cut():
    long = "a long story " * 400_000
    seen = []

    def echoing(input, output, expected=None):
        seen.append((len(input["question"]), len(output), len(expected["answer"])))
        return 0.0, {"feedback": f"Begin {output} end."}

    program = Quick(lambda question: dspy.Prediction(answer=question))
    devset = [dspy.Example(question=long, answer=long).with_inputs("question")] * 4
    result = evaluate(as_dspy_metric(echoing), program, devset)
    assert seen == [(len(long),) * 3] * 4
    for one in scores_of(result):
        assert len(one.feedback) < 10_100
        assert one.feedback.startswith("Begin a long story")
        assert "characters left out" in one.feedback
        assert one.feedback.endswith("end.\n\nScore: 0")


def test_five_megabytes_in_an_exception_are_cut():
    def raising(input, output):
        if input["question"] == "q0":
            raise ValueError("x" * 5_000_000)
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(raising)
    assert len(scores_of(evaluate(metric))[0].feedback) < 3_000
    assert all(len(failure.text) < 3_000 for failure in metric.metric.failures)


@pytest.mark.shared
def test_the_exact_match_example_runs_unchanged(shared_metric):
    devset = [dspy.Example(text=f"t{number}", label="billing").with_inputs("text") for number in range(4)]
    lm = scripted_lm(
        lambda messages: chat(label="other" if field_of(messages, "text") == "t1" else "billing")
    )
    metric = as_dspy_metric(shared_metric("exact_match"))
    with dspy.context(lm=lm):
        result = evaluate(metric, dspy.Predict("text -> label"), devset)
    assert result.score == 75.0
    assert scores_of(result)[1].feedback == "Expected 'billing', got 'other'.\n\nScore: 0"
    assert metric.metric.name == "exact_match"


@pytest.mark.shared
def test_the_several_checks_example_runs_unchanged(shared_metric):
    devset = [
        dspy.Example(text=f"t{number}", fields=["name", "date"]).with_inputs("text") for number in range(3)
    ]
    answers = {"t0": '{"name": "A", "date": "today"}', "t1": '{"name": "A"}', "t2": "no JSON"}
    lm = scripted_lm(lambda messages: chat(reply=answers[field_of(messages, "text")]))
    with dspy.context(lm=lm):
        result = evaluate(
            as_dspy_metric(shared_metric("several_checks")), dspy.Predict("text -> reply"), devset
        )
    assert [one.score for one in scores_of(result)] == [1.0, 0.75, 0.0]
    assert [one["objective_scores"] for one in scores_of(result)] == [
        {"format": 1.0, "fields": 1.0},
        {"format": 1.0, "fields": 0.5},
        {"format": 0.0, "fields": 0.0},
    ]
    assert "Missing fields: date." in scores_of(result)[1].feedback
    assert "Output is not valid JSON" in scores_of(result)[2].feedback


# --- which fields are judged ----------------------------------------------------------------------


def seeing(**options):
    """A metric that keeps what it gets in `.seen`."""
    seen = []

    def keep(input, output, expected=None):
        seen.append((input, output, expected))
        return 1.0, {"feedback": "F."}

    metric = as_dspy_metric(keep, **options)
    metric.seen = seen
    return metric


def test_the_metric_gets_inputs_answer_and_labels():
    metric = seeing()
    example = dspy.Example(question="q", hint="h", answer="A", source="s", dspy_uuid="u")
    metric(example.with_inputs("question", "hint"), dspy.Prediction(answer="B"))
    assert metric.seen == [({"question": "q", "hint": "h"}, "B", {"answer": "A", "source": "s"})]


def test_expected_is_none_where_the_example_has_nothing_but_inputs():
    metric = seeing()
    metric(dspy.Example(question="q").with_inputs("question"), dspy.Prediction(answer="B"))
    assert metric.seen == [({"question": "q"}, "B", None)]


def test_reasoning_of_a_chain_of_thought_is_left_out():
    metric = seeing()
    lm = scripted_lm(lambda messages: chat(reasoning="Because.", answer="A"))
    devset = [
        *examples(2),
        dspy.Example(question="q2").with_inputs("question"),
        dspy.Example(question="q3", label="another name").with_inputs("question"),
    ]
    with dspy.context(lm=lm):
        evaluate(metric, dspy.ChainOfThought("question -> answer"), devset, threads=1)
    assert [output for _, output, _ in metric.seen] == ["A"] * 4


def test_reasoning_is_judged_where_it_is_all_there_is_or_asked_for():
    metric = seeing()
    metric(examples(1)[0], dspy.Prediction(reasoning="Because."))
    assert metric.seen[0][1] == "Because."
    asked = seeing(output="reasoning")
    asked(examples(1)[0], dspy.Prediction(reasoning="Because.", answer="A"))
    assert asked.seen[0][1] == "Because."


def test_the_field_that_example_and_prediction_share_is_the_answer_of_a_program_with_several():
    metric = seeing()
    lm = scripted_lm(lambda messages: chat(answer="A", confidence="high"))
    with dspy.context(lm=lm):
        evaluate(metric, dspy.Predict("question -> answer, confidence"), examples(2), threads=1)
    assert [output for _, output, _ in metric.seen] == ["A", "A"]


def test_a_program_with_several_answers_is_judged_on_a_dict_of_them():
    metric = seeing()
    lm = scripted_lm(lambda messages: chat(answer="A", confidence="high"))
    both = examples(1, confidence="low")
    neither = [dspy.Example(question="q1", label="L").with_inputs("question")]
    with dspy.context(lm=lm):
        evaluate(metric, dspy.Predict("question -> answer, confidence"), both + neither, threads=1)
    assert [output for _, output, _ in metric.seen] == [{"answer": "A", "confidence": "high"}] * 2
    assert type(metric.seen[0][1]) is dict


@pytest.mark.parametrize(
    ("output", "judged"),
    [
        ("confidence", "high"),
        (["answer", "confidence"], {"answer": "A", "confidence": "high"}),
        (("confidence",), {"confidence": "high"}),
        (lambda pred: f"{pred.answer}/{pred.confidence}", "A/high"),
    ],
    ids=["name", "list", "tuple", "function"],
)
def test_output_says_what_is_judged(output, judged):
    metric = seeing(output=output)
    program = Quick(lambda question: dspy.Prediction(answer="A", confidence="high", more="m"))
    evaluate(metric, program, examples(2))
    assert [got for _, got, _ in metric.seen] == [judged] * 2


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("answer", {"answer": "A"}),
        (["answer", "source"], {"answer": "A", "source": "s"}),
        (lambda example: {"a": example.answer.lower()}, {"a": "a"}),
        (lambda example: None, None),
    ],
    ids=["name", "list", "function", "function-none"],
)
def test_expected_says_what_is_expected(expected, got):
    metric = seeing(expected=expected)
    evaluate(metric, devset=examples(2, source="s", other="o"))
    assert [given for _, _, given in metric.seen] == [got] * 2


def test_fields_that_are_named_like_methods_are_read_as_fields():
    metric = seeing()
    example = dspy.Example({"get": "g", "inputs": "i", "items": "x", "keys": "k"}).with_inputs(
        "get", "inputs"
    )
    metric(example, dspy.Prediction(items="y"))
    assert metric.seen == [({"get": "g", "inputs": "i"}, "y", {"items": "x", "keys": "k"})]
    named = seeing(output="items", expected="keys")
    named(example, dspy.Prediction(items="y", values="z"))
    assert named.seen[0][1:] == ("y", {"keys": "k"})


def test_a_change_of_shape_is_warned_of_once(caplog):
    metric = seeing(name="judge")
    program = Quick(
        lambda question: dspy.Prediction(**{"answer": "A"} | ({"more": "m"} if question > "q3" else {}))
    )
    devset = [dspy.Example(question=f"q{number}").with_inputs("question") for number in range(8)]
    evaluate(metric, program, devset, threads=1)
    evaluate(metric, program, devset, threads=8)
    warned = [record.getMessage() for record in caplog.records if "output=" in record.getMessage()]
    assert len(warned) == 1
    assert "metric 'judge'" in warned[0]
    assert "the value of 'answer'" in warned[0]
    assert "a dict of all fields" in warned[0]


def test_an_unchanging_shape_and_a_named_output_are_not_warned_of(caplog):
    changing = Quick(
        lambda question: dspy.Prediction(**{"answer": "A"} | ({"more": "m"} if question > "q3" else {}))
    )
    devset = [dspy.Example(question=f"q{number}").with_inputs("question") for number in range(8)]
    evaluate(seeing(output="answer"), changing, devset)
    evaluate(seeing(), Quick(), devset)
    assert "output=" not in caplog.text


def test_a_program_that_returns_a_text_is_judged_on_it(tmp_path):
    metric = as_dspy_metric(score)
    file = tmp_path / "results.json"
    program = Quick(lambda question: "A" if question < "q4" else "B")
    result = evaluate(metric, program, save_as_json=str(file))
    assert result.score == 50.0
    assert "Expected 'A', got 'B'." in scores_of(result)[7].feedback
    assert [row["prediction"] for row in json.loads(file.read_text())] == ["A"] * 4 + ["B"] * 4


def test_a_program_that_returns_a_dict_is_judged_as_one_that_returns_a_prediction():
    metric = as_dspy_metric(score)
    program = Quick(lambda question: {"answer": "A" if question < "q4" else "B", "reasoning": "r"})
    assert evaluate(metric, program).score == 50.0
    several = seeing()
    evaluate(several, Quick(lambda question: {"a": 1, "b": 2}), examples(1))
    assert several.seen[0][1] == {"a": 1, "b": 2}


def test_falsy_answers_are_judged():
    metric = seeing()
    for answer in ("", 0, False, [], {}, None):
        metric(examples(1)[0], dspy.Prediction(answer=answer))
    assert [output for _, output, _ in metric.seen] == ["", 0, False, [], {}, None]


# --- the judge's own calls ------------------------------------------------------------------------


def judged(input, output):
    verdict = dspy.Predict("text -> verdict")(text=output).verdict
    return float(verdict == "good"), {"feedback": f"The judge says {verdict!r}."}


class AsyncEngine:
    """The async side of a scripted engine."""

    def __init__(self, engine):
        self.engine = engine

    async def complete(self, request):
        await asyncio.sleep(0.001)
        return self.engine.complete(request)


def judging(verdict="good"):
    engine = ScriptedEngine(lambda messages: chat(verdict=verdict))
    lm = dspy.LM("scripted/judge", engine=engine, async_engine=AsyncEngine(engine), cache=False)
    lm.prompts = engine.prompts
    return lm


@pytest.mark.parametrize("options", [{}, {"timeout": None}], ids=repr)
def test_judge_calls_go_to_metric_lm(options):
    judge, model = judging(), answering(lambda question: "A")
    with dspy.context(lm=model):
        result = evaluate(
            as_dspy_metric(judged, metric_lm=judge, **options), dspy.Predict("question -> answer")
        )
    assert result.score == 100.0
    assert (len(judge.prompts), len(model.prompts)) == (8, 8)
    assert (len(judge.history), len(model.history)) == (8, 8)


@pytest.mark.parametrize("own", [True, False], ids=["metric_lm", "callers-lm"])
@pytest.mark.parametrize("options", [{}, {"timeout": None}], ids=repr)
def test_judge_calls_stay_out_of_trace_usage_and_history_of_the_program(own, options):
    def both(messages):
        return chat(answer="A") if "[[ ## question ## ]]" in messages[-1]["content"] else chat(verdict="good")

    model, judge = scripted_lm(both), judging()
    metric = as_dspy_metric(judged, metric_lm=judge if own else None, **options)

    class Checked(dspy.Module):
        """Judges its own answer, so that the judge's calls are made inside the program."""

        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question):
            prediction = self.answer(question=question)
            assert metric(examples(1)[0], prediction)
            return prediction

    program = Checked()
    with dspy.context(lm=model, trace=[], track_usage=True):
        prediction = program(question="q0")
        trace = list(dspy.settings.trace)
        assert metric(examples(1)[0], prediction)
        assert len(dspy.settings.trace) == len(trace) == 1
    with dspy.context(lm=model), dspy.track_usage() as tracker:
        assert metric(examples(1)[0], dspy.Prediction(answer="A"))
    assert prediction.get_lm_usage()["scripted/model"]["total_tokens"] == 15
    assert tracker.get_total_tokens() == {}
    assert len(program.history) == len(program.answer.history) == 1
    assert len(judge.prompts) == (3 if own else 0)


def test_the_program_after_a_judge_call_is_traced_and_tracked_again():
    metric = as_dspy_metric(judged, metric_lm=judging())
    with dspy.context(lm=answering(lambda question: "A"), trace=[]), dspy.track_usage() as tracker:
        dspy.Predict("question -> answer")(question="q0")
        metric(examples(1)[0], dspy.Prediction(answer="A"))
        dspy.Predict("question -> answer")(question="q1")
        assert len(dspy.settings.trace) == 2
    assert tracker.get_total_tokens()["scripted/model"]["total_tokens"] == 30


# --- async ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"timeout": None}], ids=repr)
def test_an_async_metric_is_awaited_in_an_evaluation(options):
    seen = []

    async def ajudged(input, output, expected=None):
        seen.append(dspy.settings.lm)
        await asyncio.sleep(0.01)
        verdict = (await dspy.Predict("text -> verdict").acall(text=output)).verdict
        return float(verdict == "good"), {"feedback": f"The judge says {verdict!r}."}

    judge, model = judging(), answering(lambda question: "A")
    metric = as_dspy_metric(ajudged, metric_lm=judge, **options)
    with dspy.context(lm=model):
        result = evaluate(metric, dspy.Predict("question -> answer"), examples(16))
    assert result.score == 100.0
    assert scores_of(result)[0].feedback == "The judge says 'good'.\n\nScore: 1"
    assert (len(judge.prompts), metric.metric.calls) == (16, 16)
    assert seen == [judge] * 16


def test_async_calls_of_one_evaluation_overlap():
    met = []

    async def meeting(input, output):
        met.append(input["question"])
        while len(met) < 8:  # until its time is over, where they follow one another
            await asyncio.sleep(0.01)
        return 1.0, {"feedback": "F."}

    assert evaluate(as_dspy_metric(meeting), devset=examples(8), threads=8).score == 100.0


def test_an_async_metric_works_inside_a_running_loop():
    async def slow(input, output):
        await asyncio.sleep(0.01)
        return 1.0, {"feedback": "F."}

    async def notebook():
        metric = as_dspy_metric(slow)
        return metric(examples(1)[0], dspy.Prediction(answer="A")), evaluate(metric, threads=1).score

    one, mean = asyncio.run(notebook())
    assert (one.score, mean) == (1.0, 100.0)


def test_an_async_metric_that_raises_or_hangs_fails_that_case_alone():
    came_back = []

    async def some(input, output):
        if input["question"] == "q1":
            raise ValueError("boom")
        if input["question"] == "q2":
            await asyncio.sleep(HANG)
            came_back.append(input)
        return 1.0, {"feedback": "F."}

    result = evaluate(as_dspy_metric(some, timeout=1.0))
    assert result.score == 75.0
    assert "ValueError: boom" in scores_of(result)[1].feedback
    assert "did not answer within 1 s" in scores_of(result)[2].feedback
    assert came_back == []


def test_one_metric_object_serves_several_evaluations_and_threads_at_once():
    metric = as_dspy_metric(Metric(score))
    means = {}

    def run(number):
        devset = examples(20, lambda index: "A" if index < number else "B")
        means[number] = evaluate(metric, devset=devset).score

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 5, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert means == {0: 0.0, 5: 25.0, 10: 50.0, 20: 100.0}
    assert metric.metric.calls == 80


def test_a_label_that_the_prediction_does_not_have_does_not_stop_a_run_whose_program_is_bad():
    """The answer that is tried before a stop has the prediction's own fields, and no warning comes of it."""

    def parsing(input, output, expected=None):
        return float(json.loads(output)["a"] == 1), {"feedback": "OK"}

    devset = [
        dspy.Example(question=f"q{number}", answer='{"a": 1}', topic="t").with_inputs("question")
        for number in range(8)
    ]
    metric = as_dspy_metric(parsing)
    with dspy.context(lm=answering(lambda question: "no JSON")):
        result = dspy.Evaluate(devset=devset, metric=metric, num_threads=1)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 0.0
    assert len(metric.failures) == 8


def test_an_example_without_inputs_and_things_that_are_none_are_named(caplog):
    metric = as_dspy_metric(lambda input, output: (1.0, {"feedback": "OK"}))
    assert (
        "no inputs set"
        in metric(dspy.Example(question="q", answer="A"), dspy.Prediction(answer="A")).feedback
    )
    assert "to_examples makes examples" in metric("q", dspy.Prediction(answer="A")).feedback


def test_a_reader_that_exits_does_not_end_the_run():
    metric = as_dspy_metric(lambda input, output: (1.0, {"feedback": "OK"}), output=lambda pred: exit(3))
    result = metric(examples(1)[0], dspy.Prediction(answer="A"))
    assert "the function given as output= raised SystemExit(3)" in result.feedback


def test_example_and_prediction_that_are_swapped_are_told_so():
    metric = as_dspy_metric(lambda input, output, expected=None: (1.0, {"feedback": "F."}))
    example, prediction = examples(1)[0], dspy.Prediction(answer="A")
    assert "swapped; call metric(example, prediction)" in str(metric(prediction, example).error)
    assert "a dspy.Example first, and got the prediction" in str(metric(prediction, prediction).error)
    assert metric(example, prediction).error is None


def test_a_dict_in_place_of_an_example_is_pointed_out_once(caplog):
    def score(input, output, expected=None):
        return float(expected is None), {"feedback": "F."}

    metric = as_dspy_metric(score)
    with dspy.context(lm=answering(lambda question: "A")):  # which has nothing but a dict
        dspy.BestOfN(dspy.Predict("question -> answer"), N=1, reward_fn=metric, threshold=1.0)(question="q")
    assert "in place of a dspy.Example" not in caplog.text
    for _ in range(2):
        metric({"question": "q", "answer": "A"}, dspy.Prediction(answer="A"))
    assert caplog.text.count("in place of a dspy.Example") == 1
