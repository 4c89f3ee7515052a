"""`check_contract`: what it sees in good and bad metrics, how often it calls them, and its report."""

import asyncio
import datetime
import decimal
import fractions
import functools
import itertools
import json
import logging
import random
import re
import textwrap
import types
import uuid

import dspy
import pytest

import skynet
from skynet_adapters import (
    Case,
    DataError,
    DefinitionError,
    Metric,
    MetricBroken,
    as_dspy_metric,
    check_contract,
    from_dspy_metric,
    models,
    program_artifact,
    program_run,
)
from skynet_adapters.helpers_used import helpers_used
from skynet_adapters.measure import Observation, observed

from .model_server import ModelServer, RefusedError, in_fields
from .scripted import chat, scripted_lm

LABELS = [
    Case("1", {"text": "I was charged twice."}, {"label": "billing"}),
    Case("2", {"text": "My parcel is late."}, {"label": "shipping"}),
    Case("3", {"text": "It crashes."}, {"label": "technical"}),
]
NUMBERS = [Case("1", {"text": "1 + 2"}, {"sum": 3})]
NO_EXPECTED = [Case("1", {"text": "Say hi."})]
NAMES = [
    "Loads",
    "Signature",
    "Metric return value",
    "Named scores",
    "Time",
    "Deterministic",
    "Right above wrong",
    "Score range",
    "Typed outputs",
    "Feedback",
    "Models",
    "Measurements",
]


def good(input, output, expected=None):
    right = output == expected["label"]
    return float(right), {"feedback": "Right." if right else f"Expected {expected['label']!r}."}


def returning(returned):
    return lambda input, output, expected=None: returned


def statuses(report):
    return {check.name: check.status for check in report if check.status not in ("passed", "not tried")}


@pytest.fixture
def file(tmp_path):
    """Write a metric's file and give its path."""

    def write(source, name="metric.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    return write


# --- the return value ----------------------------------------------------------------------------

VALID = {
    "a tuple": '(0.8, {"feedback": "Close. Missing the date."})',
    "a list with named scores": '[1.0, {"feedback": "OK", "scores": {"format": 1.0}}]',
}
INVALID = {
    "a bare number": ("0.8", "returned 0.8 (float), not a pair"),
    "a text for the dict": ('(0.8, "Close.")', "returned 'Close.' (str), as additional information"),
    "no feedback": ("(0.8, {})", "without a `feedback`"),
    "a score that is a text": ('("0.8", {"feedback": "OK"})', "returned '0.8' (str) for the score"),
    "a named score that is a text": (
        '(0.8, {"feedback": "OK", "scores": {"a": "high"}})',
        "returned 'high' (str) for the named score 'a'",
    ),
}


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("returned", VALID.values(), ids=VALID)
def test_a_valid_return_value_passes(returned, from_file, file):
    source = f"def score(input, output, expected=None):\n    return {returned}\n"
    report = check_contract(file(source) if from_file else returning(eval(returned)), LABELS)
    assert report["Metric return value"].status == "passed"
    assert report.passed


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize(("returned", "said"), INVALID.values(), ids=INVALID)
def test_another_shape_fails_at_the_check_named_metric_return_value(returned, said, from_file, file):
    source = f"def score(input, output, expected=None):\n    return {returned}\n"
    report = check_contract(file(source) if from_file else returning(eval(returned)), LABELS)
    assert statuses(report) == {"Metric return value": "failed"}
    assert not report.passed
    assert said in report["Metric return value"].seen
    assert report["Metric return value"].seen.startswith("cases '1', '2', '3': ")
    assert 'return 0.8, {"feedback": ' in report["Metric return value"].mend


@pytest.mark.parametrize("run", [None, lambda input: "billing"], ids=["no run", "run"])
@pytest.mark.parametrize(
    ("poor", "said", "mend"),
    [
        (
            (0.0, "Wrong"),
            "returned 'Wrong' (str), as additional information, not a dict",
            'return 0.8, {"feed',
        ),
        (
            (-3, {"feedback": "-"}),
            "returned -3, outside its score_range=(0, 1)",
            "widen score_range or mend the",
        ),
    ],
)
def test_a_wrong_shape_for_a_wrong_answer_only_fails_too(poor, said, mend, run):
    def score(input, output, expected=None):
        return (1.0, {"feedback": "Right."}) if output != "???" else poor

    check = check_contract(score, LABELS, run, score_range=(0, 1))["Metric return value"]
    assert check.status == "failed"
    assert check.seen == f"case '1', were '???' the output: metric 'test_contract' {said}"
    assert mend in check.mend


def test_a_score_outside_of_its_range_is_told_the_mend_for_that():
    check = check_contract(returning((10, {"feedback": "-"})), LABELS, score_range=(0, 5))[
        "Metric return value"
    ]
    assert check.seen.endswith("returned 10, outside its score_range=(0, 5)")
    assert check.mend == "widen score_range or mend the metric"


# --- a metric that keeps it ----------------------------------------------------------------------


def test_a_good_metric_passes_every_check_with_five_calls():
    report = check_contract(good, LABELS)
    assert [check.name for check in report] == NAMES
    assert {check.status for check in report} == {"passed"}
    assert not any(check.mend for check in report)
    assert (report.calls, report.cases) == (5, ("1", "2", "3"))


def test_a_run_adds_its_check_and_two_calls():
    report = check_contract(good, LABELS, lambda input: "billing")
    assert [check.name for check in report] == [*NAMES[:2], "Run", *NAMES[2:]]
    assert report.passed
    assert report.calls == 6
    assert report["Metric return value"].seen.endswith(": 1, 0, 0")


def test_only_three_cases_are_tried():
    assert check_contract(
        good, LABELS * 1 + [Case(str(n), {}, {"label": "x"}) for n in range(4, 9)]
    ).cases == (
        "1",
        "2",
        "3",
    )


@pytest.mark.parametrize("kind", ["path", "text", "metric", "partial", "callable", "async", "two parameters"])
def test_every_form_of_a_metric_can_be_checked(kind, file):
    class Judge:
        def __call__(self, input, output, expected=None):
            return good(input, output, expected)

    async def later(input, output, expected=None):
        await asyncio.sleep(0)
        return good(input, output, expected)

    path = file(
        "def score(input, output, expected=None):\n"
        "    return output == expected['label'], {'feedback': f'Expected {expected}'}"
    )
    metric = {
        "path": path,
        "text": str(path),
        "metric": Metric(good, timeout=5),
        "partial": functools.partial(good),
        "callable": Judge(),
        "async": later,
        "two parameters": lambda input, output: (
            1.0 if output != "???" else 0.0,
            {"feedback": f"{output!r}"},
        ),
    }[kind]
    report = check_contract(metric, LABELS)
    assert statuses(report) == {}, str(report)


def test_cases_come_in_every_form_that_load_cases_takes(tmp_path):
    records = [{"input": {"text": "a"}, "expected": {"label": "b"}}]
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(records[0]), encoding="utf-8")
    assert check_contract(good, records).passed
    assert check_contract(good, path).passed


def test_options_go_to_the_metric_and_a_metric_keeps_its_own():
    outside = returning((8, {"feedback": "Not so good, since it lacks the date."}))
    assert check_contract(outside, LABELS)["Score range"].status == "warned"
    for report in (
        check_contract(outside, LABELS, score_range=(0, 10)),
        check_contract(Metric(outside, score_range=(0, 10)), LABELS),
    ):
        assert (report["Score range"].status, report["Score range"].seen) == ("passed", "0.8")


def test_nothing_of_the_check_is_left_on_a_metric_or_in_the_log(caplog):
    metric = Metric(returning(8), stop_after=1)
    with caplog.at_level(logging.DEBUG, logger="skynet_adapters"):
        report = check_contract(metric, LABELS)
        check_contract(returning((8, {"feedback": "Great."})), LABELS)
    assert not report.passed
    assert (metric.calls, len(metric.failures), metric.broken()) == (0, 0, None)
    assert caplog.text == ""
    metric.score_case({}, "a")
    assert "returned 8 (int), not a pair" in caplog.text


# --- it loads, and can be called -----------------------------------------------------------------


def test_a_file_that_does_not_load_fails_there_and_nothing_else_is_tried(file, tmp_path):
    broken = file("x = 1\nimport nowhere_to_be_found")
    for path, said in [
        (broken, "line 2: it raised ModuleNotFoundError"),
        (tmp_path / "absent.py", "there is no such file"),
        (tmp_path, "this is a folder"),
    ]:
        report = check_contract(path, LABELS)
        assert statuses(report) == {"Loads": "failed"}
        assert said in report["Loads"].seen
        assert report["Loads"].mend or "no such file" in said
        assert {check.status for check in list(report)[1:]} == {"not tried"}
        assert report.calls == 0


@pytest.mark.parametrize(
    "metric",
    [
        lambda only: (1.0, {}),
        lambda example, pred, trace=None: 1.0,
        lambda prediction, expected: 1.0,
        5,
        None,
    ],
    ids=["one parameter", "of DSPy", "output first", "a number", "None"],
)
def test_a_function_that_cannot_be_called_fails_at_its_signature(metric):
    report = check_contract(metric, LABELS)
    assert statuses(report) == {"Signature": "failed"}


def test_a_file_with_a_wrong_signature_loads_and_fails_at_its_signature(file):
    report = check_contract(file("def score(only): ..."), LABELS)
    assert (report["Loads"].status, report["Signature"].status) == ("passed", "failed")


def test_a_file_that_wants_the_main_thread_loads(file):
    source = "import signal\nsignal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))\n"
    report = check_contract(file(source + "def score(input, output): return 1.0, {'feedback': '-'}"), LABELS)
    assert report["Loads"].status == "passed"


def test_a_file_that_wants_an_event_loop_of_this_thread_loads(file):
    source = (
        "import asyncio\nasyncio.get_running_loop()\ndef score(input, output): return 1.0, {'feedback': '-'}"
    )

    async def check():
        return check_contract(file(source), LABELS)

    assert asyncio.run(check())["Loads"].status == "passed"


def test_a_file_that_raises_is_executed_once(file, tmp_path):
    note = tmp_path / "note.txt"
    source = f"open({str(note)!r}, 'a').write('x')\nraise ValueError('no key')"
    assert "ValueError: no key" in check_contract(file(source), LABELS)["Loads"].seen
    assert note.read_text() == "x"


def test_a_file_that_never_finishes_loading_ends(file, monkeypatch):
    monkeypatch.setattr("skynet_adapters.contract._LOAD_SECONDS", 0.05)
    report = check_contract(file("import time\ntime.sleep(60)"), LABELS)
    assert "was not loaded within 0.05 s" in report["Loads"].seen


# --- what the metric does ------------------------------------------------------------------------


def raising(error):
    def score(input, output, expected=None):
        raise error

    return score


@pytest.mark.parametrize(
    "error", [KeyError("label"), SystemExit(3), MetricBroken("inner"), RecursionError("x")]
)
def test_a_metric_that_raises_fails_and_is_not_raised_through(error):
    report = check_contract(raising(error), LABELS)
    assert report["Metric return value"].status == "failed"
    assert str(error.args[0]) in report["Metric return value"].seen
    assert report["Right above wrong"].status == "not tried"


class Hostile:
    """An object that raises at every look at it."""

    def __getattribute__(self, name):
        raise RuntimeError("outside of a request")

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __eq__ = __hash__ = __bool__ = __len__ = __call__ = __repr__


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (lambda hostile: hostile, "failed"),
        (lambda hostile: (hostile, {"feedback": "-"}), "failed"),
        (lambda hostile: (1.0, hostile), "failed"),
        (lambda hostile: (1.0, {"feedback": hostile}), "failed"),
        (lambda hostile: (1.0, {"feedback": "-", "scores": {"a": hostile}}), "failed"),
        (lambda hostile: (0.5, {"feedback": "-"}), "passed"),
    ],
    ids=["instead of a pair", "score", "dict", "feedback", "named score", "closure"],
)
def test_objects_that_raise_at_every_look_do_not_stop_the_check(answer, status):
    hostile = Hostile()

    def score(input, output, expected=None):
        return answer(hostile)

    for run in (None, lambda input: "billing"):
        report = check_contract(score, LABELS, run)
        assert report["Metric return value"].status == status
        assert str(report)
        assert report._repr_html_()


def test_ctrl_c_passes():
    with pytest.raises(KeyboardInterrupt):
        check_contract(raising(KeyboardInterrupt()), LABELS, timeout=None)


def test_a_metric_that_hangs_is_called_once(released):
    def hangs(input, output, expected=None):
        released.wait()

    report = check_contract(hangs, LABELS, lambda input: "billing", timeout=0.05)
    assert report["Time"].status == "failed"
    assert report["Time"].seen == "case '1': no answer within 0.05 s"
    assert report["Metric return value"].status == "failed"
    assert report.calls == 1


def test_a_hang_on_another_form_of_the_expected_value_is_told(released):
    def hangs(input, output, expected=None):
        if not isinstance(output, dict):
            released.wait()
        return 0.5, {"feedback": "Half of it."}

    report = check_contract(hangs, [Case("1", {}, {"a": "x", "b": "y"})], timeout=0.5)
    assert report["Time"].seen == "case '1': no answer within 0.5 s"
    assert (report.calls, report.passed) == (2, False)


def test_a_hang_on_a_later_case_is_told(released):
    def hangs(input, output, expected=None):
        if output == "shipping":
            released.wait()
        return good(input, output, expected)

    for run in (None, lambda input: "shipping" if "parcel" in input["text"] else "billing"):
        report = check_contract(hangs, LABELS, run, timeout=0.5)
        assert report["Time"].seen == "case '2': no answer within 0.5 s"
        assert "no further one was made" in report["Deterministic"].seen
        assert report.calls == 2


def test_the_metric_is_called_ten_times_at_most():
    def number(input, output, expected=None):
        return 0.5 if output == 3 else 0.0, {"feedback": "Half of it."}

    cases = [Case(str(n), {}, {"a": 1, "b": 2, "c": 3, "d": 4}) for n in range(4)]
    for run in (None, lambda input: 1):
        assert check_contract(number, cases, run).calls == 10


@pytest.mark.parametrize(("seconds", "status"), [(31, "warned"), (29, "passed")])
def test_a_metric_that_needs_most_of_its_time_is_warned_about(seconds, status, monkeypatch):
    clock = types.SimpleNamespace(monotonic=itertools.count(step=seconds).__next__)  # looked at around a call
    monkeypatch.setattr("skynet_adapters.contract_trial.time", clock)
    assert check_contract(good, LABELS, timeout=60)["Time"].status == status


def test_a_metric_that_nothing_ends_is_warned_about():
    assert check_contract(good, LABELS, timeout=None)["Time"].status == "warned"


def test_named_scores_have_to_be_the_same_on_every_case():
    def score(input, output, expected=None):
        names = {"format": 1.0} if output == "billing" else {"format": 1.0, "label": 1.0}
        return 1.0, {"feedback": "OK", "scores": names}

    check = check_contract(score, LABELS)["Named scores"]
    assert (check.status, check.seen) == ("warned", "case '1' lacks label")


def test_a_score_that_changes_is_warned_about():
    chance = random.Random(0)
    check = check_contract(
        lambda input, output, expected=None: (chance.random(), {"feedback": "By chance, 7 of 10."}), LABELS
    )["Deterministic"]
    assert check.status == "warned"
    assert check.seen.startswith("case '1' scored 0.")


def test_a_second_call_is_a_real_one_also_with_a_content_memo():
    calls = iter(range(100))
    metric = Metric(
        lambda input, output, expected=None: (next(calls) / 100, {"feedback": "-"}), memo="content"
    )
    assert check_contract(metric, LABELS)["Deterministic"].status == "warned"


def test_a_judge_that_cannot_be_reached_is_a_fault_of_the_model():
    def score(input, output, expected=None):
        return float(skynet.llm("PASS or FAIL?", input=output) == "PASS"), {"feedback": "As the judge says."}

    def refuse(messages):
        raise RefusedError(401)

    with ModelServer(refuse) as server:
        report = check_contract(score, LABELS, metric_lm=server.lm())
    assert report["Models"].status == "failed"
    assert "the metric model 'openai/gpt-4o-mini' failed: " in report["Models"].seen
    assert report["Models"].mend == "check the model's name, its key, and that it can be reached"
    assert report["Metric return value"].mend == "mend the model or how it is asked, see Models"


def test_answers_from_a_cache_do_not_show_that_a_judge_says_the_same_again():
    def score(input, output, expected=None):
        said = skynet.llm("PASS or FAIL?", input=output)
        return float(said == "PASS"), {"feedback": "As the judge says, of the label."}

    verdicts = itertools.cycle(["PASS", "FAIL"])
    with ModelServer(lambda messages: next(verdicts)) as server:
        cached = check_contract(score, LABELS[:1], metric_lm=server.lm(cache=True))
        fresh = check_contract(score, LABELS[:1], metric_lm=server.lm())
    assert cached["Deterministic"].status == "not tried"
    assert "came from a cache; one with cache=False is asked again" in cached["Deterministic"].seen
    assert "of the answers came from a cache" in cached["Models"].seen
    assert fresh["Deterministic"].status == "warned"
    assert "cache" not in fresh["Models"].seen


def test_other_words_for_the_same_score_pass_and_other_named_scores_do_not():
    calls = iter(range(100))
    words = check_contract(lambda input, output: (1.0, {"feedback": f"{next(calls)}"}), LABELS)[
        "Deterministic"
    ]
    assert (words.status, words.seen[-14:]) == ("passed", "in other words")
    named = check_contract(
        lambda input, output: (1.0, {"feedback": "-", "scores": {"a": next(calls)}}), LABELS
    )["Deterministic"]
    assert "other named scores" in named.seen


# --- right above wrong ---------------------------------------------------------------------------


def test_a_metric_that_is_the_wrong_way_round_fails():
    def error(input, output, expected=None):
        return float(output != expected["label"]), {"feedback": f"The distance to {expected['label']}."}

    report = check_contract(error, LABELS, lambda input: "billing")
    assert statuses(report) == {"Right above wrong": "failed"}
    assert report["Right above wrong"].seen == "'billing' scores 0, the wrong answer '???' 1"
    assert report["Right above wrong"].mend.endswith("turn it round, so that more is better")


@pytest.mark.parametrize("run", [None, lambda input: "other words"], ids=["no run", "run"])
@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ({"banned": "secret"}, lambda output, e: e["banned"] not in output),
        ({"source": "some text"}, lambda output, e: output != e["source"]),
        ({"summary": "a long text"}, lambda output, e: 1 / len(output)),
    ],
)
def test_an_expected_value_that_is_no_answer_is_no_fault(expected, value, run):
    def score(input, output, expected=None):
        return float(value(output, expected)), {"feedback": f"See {expected}, and write it otherwise."}

    report = check_contract(score, [Case("1", {}, expected)], run)
    assert report.passed
    assert report["Right above wrong"].status == "warned"
    assert "this check does not apply" in report["Right above wrong"].mend


def test_a_metric_that_compares_with_the_whole_dict_is_warned_about():
    def forgets(input, output, expected=None):
        return float(str(output) == str(expected)), {"feedback": f"Expected {expected}."}

    report = check_contract(forgets, LABELS)
    assert report["Right above wrong"].seen == "'billing' scores 0, the wrong answer '???' 0"
    assert statuses(report) == {"Right above wrong": "warned"}
    assert "expected['label']" in report["Right above wrong"].mend


def test_a_metric_that_likes_everything_is_warned_about():
    report = check_contract(returning((1.0, {"feedback": "Fine."})), LABELS)
    assert statuses(report) == {"Right above wrong": "warned"}
    assert report["Feedback"].status == "not tried"


def test_a_metric_that_cannot_read_a_poor_answer_is_warned_about():
    def reads(input, output, expected=None):
        return float(int(output) == int(expected["sum"])), {"feedback": f"Expected {expected['sum']}."}

    report = check_contract(reads, [Case("1", {}, {"sum": "3"})])
    assert statuses(report) == {"Right above wrong": "warned"}
    assert "ValueError" in report["Right above wrong"].seen
    assert "not an exception" in report["Right above wrong"].mend


@pytest.mark.parametrize(
    ("expected", "judge"),
    [
        ({"sum": 3}, lambda output, e: output == e["sum"]),
        ({"yes": True}, lambda output, e: output is e["yes"]),
        ({"tags": ["a", "b"]}, lambda output, e: output == e["tags"]),
        ({"tags": ["a", "b"]}, lambda output, e: json.loads(output) == e["tags"]),
        ({"a": 1, "b": 2}, lambda output, e: output == e),
        ({"a": 1, "b": 2}, lambda output, e: json.loads(output) == e),
        ({"label": "x", "why": "because"}, lambda output, e: output == e["label"]),
        ({"label": "x", "why": "because"}, lambda output, e: output == e["why"]),
    ],
)
def test_the_right_answer_is_found_in_the_form_that_the_metric_reads(expected, judge):
    def score(input, output, expected=None):
        try:
            right = judge(output, expected)
        except ValueError:
            right = False
        return float(right), {"feedback": f"Expected {expected}."}

    report = check_contract(score, [Case("1", {}, expected), Case("2", {}, expected)])
    assert report["Right above wrong"].status == "passed", str(report)
    assert report["Metric return value"].seen.endswith(": 1, 1")


def test_without_expected_values_a_run_is_needed():
    def polite(input, output):
        return float("please" in output), {"feedback": "The word 'please' is missing."}

    nothing = check_contract(polite, NO_EXPECTED)
    assert nothing["Metric return value"].status == "not tried"
    assert "run=" in nothing["Metric return value"].mend
    assert nothing.calls == 0
    assert not nothing.passed
    assert str(nothing).splitlines()[0] == "metric 'polite' was never called: 4 passed, 8 not tried"
    run = check_contract(polite, NO_EXPECTED, lambda input: "Hi.")
    assert run["Metric return value"].status == "passed"
    assert run["Right above wrong"].status == "not tried"
    assert run["Feedback"].status == "passed"


# --- score range, types, feedback ----------------------------------------------------------------


@pytest.mark.parametrize(("value", "said"), [(2.0, "perfect_score=1"), (-0.5, "failure_score=0")])
def test_a_score_outside_of_0_to_1_is_warned_about(value, said):
    check = check_contract(returning((value, {"feedback": "Of 7 facts 3 are wrong."})), LABELS)["Score range"]
    assert check.status == "warned"
    assert said in check.seen
    assert "score_range=(low, high)" in check.mend


def test_a_score_outside_of_the_given_range_fails_as_a_return_value():
    report = check_contract(returning((12, {"feedback": "Great."})), LABELS, score_range=(0, 10))
    assert "outside its score_range" in report["Metric return value"].seen


def test_a_number_that_comes_as_a_text_is_not_the_number():
    def exact(input, output, expected=None):
        return float(output == expected["sum"]), {"feedback": f"Expected {expected['sum']!r}."}

    check = check_contract(exact, NUMBERS)["Typed outputs"]
    assert (check.status, check.seen) == ("warned", "3 (int) scores 1, '3' (str) 0")
    check = check_contract(exact, [Case("1", {}, {"sum": "3"})])["Typed outputs"]
    assert (check.status, check.seen) == ("warned", "'3' (str) scores 1, 3 (int) 0")
    check = check_contract(exact, NUMBERS, lambda input: "3")["Typed outputs"]
    assert (check.status, "never equal" in check.seen) == ("warned", True)
    check = check_contract(exact, [Case("1", {}, {"sum": 3, "x": 1})], lambda input: {"sum": "3"})
    assert check["Typed outputs"].status == "warned"


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2025, 3, 3),
        datetime.datetime(2025, 3, 3, 12, 30),
        datetime.time(12, 30),
        decimal.Decimal("0.5"),
        fractions.Fraction(1, 3),
        uuid.UUID(int=5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_expected_value_is_tried_as_the_text_that_a_program_gives(value):
    def exact(input, output, expected=None):
        return float(output == expected["it"]), {"feedback": f"Expected {expected['it']}."}

    def lenient(input, output, expected=None):
        return float(str(output) == str(expected["it"])), {"feedback": f"Expected {expected['it']}."}

    for expected in ({"it": value}, {"it": value, "unit": "none"}):
        whole = len(expected) > 1
        strict = lambda i, o, e, whole=whole: exact(i, o["it"] if whole else o, e)  # noqa: E731
        check = check_contract(strict, [Case("1", {}, expected)])["Typed outputs"]
        assert (check.status, repr(str(value)) in check.seen) == ("warned", True)
        both = lambda i, o, e, whole=whole: lenient(i, o["it"] if whole else o, e)  # noqa: E731
        check = check_contract(both, [Case("1", {}, expected)])["Typed outputs"]
        assert (check.status, repr(str(value)) in check.seen) == ("passed", True)


@pytest.mark.parametrize("year", [2025, 9999, 1])
@pytest.mark.parametrize("kind", [datetime.date, datetime.datetime])
def test_a_wrong_date_is_a_date_and_a_wrong_decimal_a_decimal(kind, year):
    def near(input, output, expected=None):
        days = abs((output - expected["due"]).days) if isinstance(output, kind) else None
        return 0.0 if days is None else 1 / (1 + days), {"feedback": f"{days} days off."}

    def ratio(input, output, expected=None):
        return float(1 / (1 + abs(decimal.Decimal(output) - expected["it"]))), {"feedback": "Off."}

    report = check_contract(near, [Case("1", {}, {"due": kind(year, 3, 3)})])
    assert report["Right above wrong"].status == "passed"
    report = check_contract(ratio, [Case("1", {}, {"it": decimal.Decimal("0.5")})])
    assert report["Right above wrong"].status == "passed"


def test_without_a_run_the_cases_that_have_an_expected_value_are_tried():
    cases = [*(Case(f"no {number}", {"text": "a"}) for number in range(5)), *LABELS]
    report = check_contract(good, cases)
    assert (report.passed, report.cases) == (True, ("1", "2", "3"))
    assert check_contract(good, [*NO_EXPECTED, LABELS[2]]).cases == ("3",)
    assert check_contract(good, NO_EXPECTED).cases == ("1",)
    assert check_contract(good, cases, lambda input: "a").cases == ("no 0", "no 1", "no 2")


def test_a_metric_that_reads_both_types_passes():
    def lenient(input, output, expected=None):
        return float(str(output) == str(expected["sum"])), {"feedback": f"Expected {expected['sum']}."}

    assert check_contract(lenient, NUMBERS)["Typed outputs"].status == "passed"
    assert check_contract(lenient, NUMBERS, lambda input: 4)["Typed outputs"].status == "passed"


@pytest.mark.parametrize(
    "text",
    [
        "Wrong.",
        "Bad format.",
        "No",
        "Incorrect answer!",
        "The answer is wrong.",
        "",
        "FAIL",
        "Try again.",
        "Wrong 1",
        "0.3",
        "Incorrect!",
        "Not right",
        "0/1",
        "0 / 1 correct.",
        "Fail: 0/1",
        "50%",
        "Score: 0.3",
        "Score: 0.30 / 1.0",
        "Score 0 out of 1",
        "Score: 0.3 (threshold 1.0)",
        "Your score is 0.5.",
        "0 points",
        "Rating: 2/5",
        "accuracy: 0.0",
        "Exact match: 0",
        "EM: 0, F1: 0.3",
        "Nota: 3 de 10",
        "得分：0.3",
        "Needs improvement.",
        "Could be better.",
        "Quality: low",
        "The answers differ.",
        "Different from expected.",
        "Does not match the ground truth.",
        "The predicted label is incorrect.",
        "This is wrong, wrong, wrong, and I mean really wrong.",
        "It isn't right, it's wrong.",
        "A resposta está errada.",
        "错误。",
        "输出格式不正确，请重试。",
        "回答が間違っています。",
        "フォーマットが正しくありません。",
        "틀렸습니다.",
        "형식이 잘못되었습니다.",
    ],
)
def test_a_feedback_that_says_nothing_is_flagged(text):
    def score(input, output, expected=None):
        return float(output == expected["label"]), {"feedback": text}

    check = check_contract(score, LABELS)["Feedback"]
    assert check.status == "warned"
    assert (text or "The metric gave no feedback text.") in check.seen
    assert "Expected 'billing', got 'other'" in check.mend


@pytest.mark.parametrize(
    "text",
    [
        "Expected 'billing', got 'other'. The message mentions a charge.",
        "The output is not valid JSON. It has a trailing comma after the last field.",
        "It should be billing.",
        "Missing `date`.",
        "2 of 5 facts.",
        "No citation.",
        "Needs a date.",
        "Could be shorter.",
        "Expected 3/4, got 1/4.",
        "It should be 3/4.",
        "Passed 3 of 5 checks.",
        "The margin is 12%.",
        "Point 3 is missing.",
        "Score: 0.3. The unit is missing.",
        "0/3: no greeting, no name, no date",
        "Foi em 1984, nos arredores.",
        "The units differ from the table.",
        "Low contrast image.",
        "Close. Missing the date.",
        "Falta a data da fatura.",
        "输出不是有效的JSON，最后一个字段之后多了一个逗号，请删除。",
        "期望是计费，得到的是其他。消息中提到了收费。",
        "缺少日期。",
        "「計費」",
        "期待値は請求ですが、出力は別の値です。メッセージは料金に触れています。",
        "청구가 정답인데 기타가 나왔습니다.",
    ],
)
def test_a_feedback_that_says_something_passes(text):
    def score(input, output, expected=None):
        return float(output == expected["label"]), {"feedback": text}

    assert check_contract(score, LABELS)["Feedback"].status == "passed"


def test_a_feedback_that_names_the_expected_value_says_something_in_any_script():
    def score(input, output, expected=None):
        return float(output == expected["label"]), {"feedback": f"是{expected['label']}。"}

    assert check_contract(score, [Case("1", {}, {"label": "计费"})])["Feedback"].status == "passed"


# --- runs ----------------------------------------------------------------------------------------


def test_a_run_with_an_artifact_gets_both_and_may_be_async():
    seen = []

    async def run(artifact, input):
        seen.append((artifact, input["text"]))
        return artifact

    report = check_contract(good, LABELS, run, artifact="billing")
    assert report["Metric return value"].seen.endswith(": 1, 0, 0")
    assert seen == [("billing", case.input["text"]) for case in LABELS]


def test_a_dspy_program_is_run_by_program_run():
    program = dspy.Predict("text -> label")
    with dspy.context(lm=scripted_lm(lambda messages: chat(label="billing"))):
        report = check_contract(good, LABELS, program_run(program), artifact=program_artifact(program))
    assert report["Run"].status == "passed"
    assert report["Metric return value"].seen.endswith(": 1, 0, 0")


def test_a_run_that_fails_is_named_and_does_not_stop_the_check():
    def run(input):
        if "crashes" in input["text"]:
            raise SystemExit("no model")
        return None if "parcel" in input["text"] else "billing"

    report = check_contract(good, LABELS, run)
    assert report["Run"].status == "warned"
    nothing, raised = report["Run"].seen.splitlines()
    assert nothing == "case '2': run returned nothing"
    place = r"\(test_contract\.py, line \d+, in run: raise SystemExit\(\"no model\"\)\)"
    assert re.fullmatch(f"case '3': run raised SystemExit: no model {place}", raised)
    assert report["Metric return value"].status == "passed"
    broken = check_contract(good, LABELS, lambda input: 1 / 0)
    assert (broken["Run"].status, broken["Metric return value"].status) == ("failed", "not tried")


def test_a_run_that_hangs_ends(released):
    report = check_contract(good, LABELS[:1], lambda input: released.wait(), run_timeout=0.05)
    assert report["Run"].seen == "case '1': run did not answer within 0.05 s"


def test_an_async_run_that_hangs_ends():
    async def run(input):
        await asyncio.sleep(60)

    report = check_contract(good, LABELS[:1], run, run_timeout=0.05)
    assert report["Run"].seen == "case '1': run did not answer within 0.05 s"


def test_a_run_with_a_yield_gives_no_output():
    def run(input):
        yield "billing"

    report = check_contract(good, LABELS[:1], run)
    assert report["Run"].status == "failed"
    assert report["Run"].seen.startswith("case '1': run gave a generator, since it has a `yield`")


def test_a_run_within_a_run_that_a_broken_metric_stops_is_only_lost():
    def run(input):
        raise MetricBroken("metric 'other' failed on each")

    report = check_contract(good, LABELS[:1], run)
    assert report["Run"].seen == "case '1': run raised MetricBroken: metric 'other' failed on each"


def test_a_long_fault_of_a_run_is_one_line_with_its_place():
    def run(input):
        raise ValueError("much\n" * 500)

    (line,) = check_contract(good, LABELS[:1], run)["Run"].seen.splitlines()
    assert line.startswith("case '1': run raised ValueError: much much")
    assert "in run: raise ValueError" in line
    assert len(line) < 350


def test_a_run_cannot_change_the_case():
    def run(input):
        input["text"] = "changed"
        return "billing"

    check_contract(good, LABELS, run)
    assert LABELS[0].input["text"] == "I was charged twice."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run": 5}, r"run is a function run\(input\); got 5"),
        ({"run": lambda artifact, input: "x"}, r"run cannot be called as run\(input\).* pass artifact= too"),
        ({"run": lambda input: "x", "artifact": "a"}, r"run cannot be called as run\(artifact, input\)"),
        ({"run": lambda input, artifact: "x", "artifact": "a"}, "run gets the artifact first"),
        ({"run": dspy.Predict("text -> label")}, r"(?s)got the DSPy program .* pass program_run\(program\)"),
        ({"artifact": "a"}, "artifact= was given without run="),
        ({"run": lambda input: "x", "run_timeout": 0}, "run_timeout=0 cannot be used"),
        ({"run": lambda input: "x", "run_timeout": True}, "run_timeout=True cannot be used"),
        ({"run": lambda input: "x", "run_timeout": 1e300}, r"at most 4\.61e\+09; None for no limit"),
        ({"time_out": 5}, "unknown option 'time_out'"),
        ({"metric_lm": 5}, "metric_lm=5 cannot be used"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, said):
    with pytest.raises(DefinitionError, match=said):
        check_contract(good, LABELS, **arguments)


def test_options_beside_a_metric_and_cases_that_cannot_be_read_are_refused():
    with pytest.raises(DefinitionError, match="has its options already"):
        check_contract(Metric(good), LABELS, timeout=5)
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        check_contract(good, "nowhere.jsonl")


# --- fields that are not there ---------------------------------------------------------------------

TWO_FIELDS = [Case("1", {"question": "2 + 2?"}, {"answer": "4", "unit": "none"})]


@pytest.mark.parametrize(
    ("read", "cases", "mend"),
    [
        (
            lambda input, output, expected: expected["lable"],
            LABELS,
            "there is no field 'lable': expected has 'label', input has 'text'; did you mean 'label'?",
        ),
        (
            lambda input, output, expected: input["colour"],
            LABELS,
            "there is no field 'colour': expected has 'label', input has 'text'",
        ),
        (
            lambda input, output, expected: output["answr"],
            TWO_FIELDS,
            "there is no field 'answr': expected has 'answer', 'unit', input has 'question', output has "
            "'answer', 'unit'; did you mean 'answer'?",
        ),
        (
            lambda input, output, expected: expected.label,
            LABELS,
            "expected is a dict: write expected['label']",
        ),
        (lambda input, output, expected: input.text, LABELS, "input is a dict: write input['text']"),
    ],
)
@pytest.mark.parametrize("run", [None, lambda input: {"answer": "4", "unit": "none"}])
def test_a_field_that_is_not_there_is_told_beside_those_that_are(read, cases, mend, run):
    def score(input, output, expected=None):
        return float(output == read(input, output, expected)), {"feedback": "Compared."}

    seen = check_contract(score, cases, run)["Metric return value"]
    if run is not None and cases is LABELS and "no field" in mend:  # the output has fields too
        mend = mend.replace("'text'", "'text', output has 'answer', 'unit'")
    assert seen.mend == mend


def test_a_key_error_of_another_dict_is_not_taken_for_a_field():
    def score(input, output, expected=None):
        return {"other": 1.0}[expected and "label"], {"feedback": "Compared."}

    assert "field" not in check_contract(score, LABELS)["Metric return value"].mend


# --- models and measurements ---------------------------------------------------------------------

JUDGE = """
from skynet import llm

def score(input, output, expected=None):
    verdict = llm("Answer PASS or FAIL, and say why.", input=f"{expected} {output}")
    return float(verdict.startswith("PASS")), {"feedback": verdict}
"""


def judge(messages):
    text = messages[-1]["content"]
    return "FAIL: '???' is no team." if "???" in text else "PASS, it is the team."


def test_a_judge_without_a_model_fails_and_one_that_is_chosen_passes(file):
    path = file(JUDGE)
    report = check_contract(path, LABELS)
    assert statuses(report) == {"Metric return value": "failed", "Models": "failed"}
    assert "metric_lm=" in report["Models"].mend
    report = check_contract(path, LABELS, metric_lm=judge)
    assert statuses(report) == {}
    assert report["Models"].seen == "llm() asks 'judge'; it was asked 5 times here"
    with models(metric_lm=judge):
        assert statuses(check_contract(path, LABELS)) == {}


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_judge_that_is_a_dspy_program_needs_no_metric_model(is_adapted):
    program = dspy.Predict("output -> verdict")

    def score(input, output, expected=None):
        verdict = program(output=output).verdict
        return float(verdict.startswith("PASS")), {"feedback": verdict}

    says = scripted_lm(lambda messages: chat(verdict=judge(messages)))
    if is_adapted:
        as_dspy_metric(score)
    with dspy.context(lm=says):
        report = check_contract(score, LABELS)
    assert statuses(report) == {}
    assert report["Models"].seen == "its code shows no llm(); models were asked 5 times here"


def test_a_helper_that_the_code_hides_is_found_by_what_the_metric_does():
    asking, reading = [skynet.llm], [skynet.service_cost]

    def hidden(input, output, expected=None):
        return float(asking[0]("Right?", input=output) == "PASS"), {"feedback": "-"}

    report = check_contract(hidden, LABELS)
    assert helpers_used(hidden) == set()
    assert statuses(report) == {"Metric return value": "failed", "Models": "failed"}
    assert report["Metric return value"].mend == "choose a model, see Models"

    def reads(input, output, expected=None):
        return float(reading[0]().usd or 0.0), {"feedback": "-"}

    assert check_contract(reads, LABELS)["Measurements"].seen.startswith(
        "it uses observation, and nothing was"
    )


def test_a_judge_that_also_writes_the_candidates_is_warned_about(file):
    path = file(JUDGE)
    for chosen in ({"reflection_lm": judge}, {"reflection_lm": judge, "metric_lm": judge}):
        report = check_contract(path, LABELS, **chosen)
        assert statuses(report) == {"Models": "warned"}
        assert report["Models"].seen == "'judge' judges, and it also writes the candidates"
    other = check_contract(path, LABELS, metric_lm=judge, reflection_lm=lambda messages: "new text")
    assert other["Models"].status == "passed"


REWARD = """
from skynet import reward

SPEC = {
    "weights": {"accuracy": 0.7, "speed": 0.2, "cost": 0.1},
    "speed": {"reference": 60_000},
    "cost": {"reference": 0.01},
}

def score(input, output, expected=None):
    right = output == expected["label"]
    return reward(SPEC, right, "Right." if right else "Wrong label.")
"""


def test_measurements_need_a_run(file):
    path = file(REWARD)
    without = check_contract(path, LABELS)
    assert without["Measurements"].status == "warned"
    assert "nothing was measured, since run= is not given" in without["Measurements"].seen
    with_run = check_contract(path, LABELS, lambda input: "billing")
    assert with_run["Metric return value"].seen.endswith(": 0.9, 0.2, 0.2")
    assert with_run["Measurements"].status == "warned"
    assert "time was measured" in with_run["Measurements"].seen
    with observed(Observation(time_ms=812.0, cost_usd=0.002)):
        measured = check_contract(path, LABELS)
    assert measured["Measurements"].seen == "it uses reward; 812 ms and 0.002 US dollars"
    assert measured["Metric return value"].seen.endswith(": 1, 1, 1")


def test_time_and_cost_of_a_program_are_those_of_its_model_server(file):
    program = dspy.Predict("text -> label")
    with ModelServer(in_fields(label="billing")) as server, dspy.context(lm=server.lm(cache=False)):
        report = check_contract(
            file(REWARD), LABELS, program_run(program), artifact=program_artifact(program)
        )
    assert len(server.served) == 3
    assert report["Measurements"].status == "passed"
    assert f"{server.served[0].cost:g} US dollars" in report["Measurements"].seen
    assert report["Metric return value"].seen.endswith(": 1, 0.3, 0.3")


def test_the_lines_of_a_reward_do_not_make_a_feedback_useful(file):
    check = check_contract(file(REWARD), LABELS, lambda input: "billing")["Feedback"]
    assert (check.status, check.seen) == ("warned", "3 of 3 poor outputs: 'Wrong label.'")


@pytest.mark.parametrize(
    ("source", "helpers"),
    [
        ("def score(i, o): return 1", set()),
        ("from skynet import llm\ndef score(i, o): return 1", set()),
        ("from skynet import llm\ndef score(i, o): return llm('?')", {"llm"}),
        ("from skynet import llm as ask\ndef score(i, o): return ask('?')", {"llm"}),
        ("from skynet_adapters import llm as ask\ndef score(i, o): return ask('?')", {"llm"}),
        ("def score(i, o):\n from skynet_adapters import llm\n return llm('?')", {"llm"}),
        ("import skynet\ndef score(i, o): return skynet.observation()", {"observation"}),
        ("import skynet as s\ndef score(i, o): return s.llm('?')", {"llm"}),
        ("def score(i, o):\n    from skynet import service_cost as c\n    return c()", {"service_cost"}),
        ("from skynet import reward\ndef f(): return reward()\ndef score(i, o): return f()", {"reward"}),
        ("from skynet import llm\ndef score(i, o): return [llm('?') for _ in 'a']", {"llm"}),
        ("from skynet import llm\ndef w(f): return lambda i, o: f('?')\nscore = w(llm)", {"llm"}),
        ("import json, dspy\ndef score(i, o): return json.dumps(dspy.Predict('a -> b'))", set()),
        (
            "from skynet import llm\nclass S:\n    def __call__(self, i, o): return llm('?')\nscore = S()",
            {"llm"},
        ),
        (
            "from skynet import llm\nclass S:\n    def ask(self): return llm('?')\n"
            "    def __call__(self, i, o): return self.ask()\nscore = S()",
            {"llm"},
        ),
        (
            "from skynet import observation\nclass S:\n    @property\n    def t(self): return observation()\n"
            "    def score(self, i, o): return self.t, self.score\nscore = S().score",
            {"observation"},
        ),
        (
            "from skynet import llm\nclass A:\n    def __call__(self, i, o): return llm('?')\n"
            "class S(A):\n    def __call__(self, i, o): return super().__call__(i, o)\nscore = S()",
            {"llm"},
        ),
        (
            "from skynet import llm\nclass S:\n    def __init__(self): self.ask = llm\n"
            "    def __call__(self, i, o): return self.ask('?')\nscore = S()",
            {"llm"},
        ),
        (
            "from skynet import llm\nclass J:\n    def ask(self): return llm('?')\n    def other(self): ...\n"
            "judge = J()\ndef score(i, o): return judge.ask()",
            {"llm"},
        ),
        (
            "from skynet import llm\nclass J:\n    def ask(self): return llm('?')\n    def other(self): ...\n"
            "judge = J()\ndef score(i, o): return judge.other()",
            set(),
        ),
        (
            "from skynet import llm\nclass J:\n    @staticmethod\n    def ask(): return llm('?')\n"
            "def score(i, o): return J().ask()",
            {"llm"},
        ),
        (
            "import dspy\nfrom skynet import llm\n"
            "class J(dspy.Module):\n    def forward(self): return llm('?')\n"
            "judge = J()\ndef score(i, o): return judge()",
            {"llm"},
        ),
        (
            "from functools import partial\nfrom skynet import llm\ndef s(ask, i, o): return ask('?')\n"
            "score = partial(s, llm)",
            {"llm"},
        ),
        ("from skynet import llm\ndef score(i, o, e=None, ask=llm): return ask('?')", {"llm"}),
    ],
)
def test_the_helpers_that_a_metric_uses_are_found(source, helpers):
    names = {}
    exec(source, names)
    assert helpers_used(names["score"]) == helpers


def test_helpers_are_found_in_files_beside_the_metric(file):
    file("from skynet import llm\ndef ask(): return llm('?')", "judges.py")
    from skynet_adapters import load_metric

    path = file("import judges\ndef score(input, output): return judges.ask(), {'feedback': ''}")
    assert helpers_used(load_metric(path).score) == {"llm"}


# --- the report ----------------------------------------------------------------------------------


def test_the_report_is_a_table_that_a_person_can_read():
    report = check_contract(lambda input, output, expected=None: 0.8, LABELS[:1])
    lines = str(report).splitlines()
    assert (
        lines[0]
        == "metric 'test_contract_lambda' does not keep the contract: 5 passed, 1 failed, 6 not tried"
    )
    assert lines[1] == "1 case tried, with the expected values as outputs; 1 call of the metric"
    assert lines[5].startswith(
        "FAIL  Metric return value  case '1': metric 'test_contract_lambda' returned 0.8"
    )
    assert any(line.startswith(" " * 27 + "-> return a number and a dict") for line in lines)
    assert all(len(line) <= 110 and line == line.rstrip() for line in lines)


def test_the_report_escapes_what_it_shows_in_a_notebook():
    def score(input, output, expected=None):
        raise ValueError("<script>alert('&')</script>")

    html = check_contract(score, LABELS)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)" in html
    assert html.count("<tr>") == 1 + len(NAMES)


def test_the_report_is_a_dict_that_json_can_hold():
    report = check_contract(good, LABELS)
    assert json.loads(json.dumps(report.to_dict())) == {
        "metric": "good",
        "passed": True,
        "cases": ["1", "2", "3"],
        "calls": 5,
        "outputs": "the expected values as outputs",
        "checks": [
            {"name": check.name, "status": check.status, "seen": check.seen, "mend": check.mend}
            for check in report
        ],
    }


def test_a_check_is_found_by_its_name():
    report = check_contract(good, LABELS)
    assert report["Time"].name == "Time"
    with pytest.raises(KeyError, match="'Tme' is no check; there are Loads, Signature"):
        report["Tme"]


# --- the documents' examples ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [("exact_match", {"label": "billing"}), ("several_checks", {"fields": ["name", "date"]})],
)
def test_the_example_metrics_without_a_model_pass_every_check(shared_folder, name, expected):
    report = check_contract(shared_folder / "metrics" / f"{name}.py", [Case("1", {"text": "?"}, expected)])
    assert {check.status for check in report} == {"passed"}, str(report)


def test_the_example_of_a_model_as_judge_passes_with_a_model(shared_folder):
    path = shared_folder / "metrics" / "model_judge.py"
    cases = [Case(str(n), {"question": f"{n} + 1?"}, {"answer": str(n + 1)}) for n in range(3)]

    def says(messages):
        asked = messages[-1]["content"]
        right = any(f"{n} + 1?" in asked and f"Answer: {n + 1}" in asked for n in range(3))
        return "PASS. It is the sum." if right else "FAIL. It should be the number after the first one."

    report = check_contract(path, cases, metric_lm=says)
    assert {check.status for check in report} == {"passed"}, str(report)


def test_the_example_with_speed_and_cost_passes_but_for_its_feedback(shared_folder):
    path = shared_folder / "metrics" / "accuracy_speed_cost.py"
    with observed(Observation(time_ms=1500.0, cost_usd=0.02)):
        report = check_contract(path, LABELS)
    assert statuses(report) == {"Feedback": "warned"}
    assert report["Feedback"].seen == "1 of 1 poor outputs: 'Wrong label.'"
    assert report["Metric return value"].seen.endswith(": 0.95, 0.95, 0.95")


@pytest.mark.parametrize(
    ("output", "value", "passes"),
    [
        (datetime.date(2025, 3, 3), "2025-03-03", False),
        (decimal.Decimal("0.5"), "0.5", False),
        ('{"x": 1}', {"x": 1}, False),
        (("a", "b"), ["a", "b"], False),
        (3, "3", False),
        (1, 1.0, True),
        ("a", ["a", "b"], True),
        ("2025-03-03", "2025-03-03", True),
    ],
)
def test_an_output_that_says_what_is_expected_in_another_type_is_warned_of(output, value, passes):
    metric = Metric(lambda input, output, expected: (output == expected["it"], {"feedback": f"{output!r}?"}))
    report = check_contract(metric, [Case("1", {"q": "?"}, {"it": value})], run=lambda input: output)
    (check,) = [check for check in report.checks if check.name == "Typed outputs"]
    assert (check.status == "passed") == passes, check


@pytest.mark.parametrize(
    ("artifact", "name", "status", "said"),
    [
        (
            {"predict": "a", "find": "b"},
            "predikt",
            "warned",
            "for 'predikt'; the artifact has 'predict', 'find'",
        ),
        ({"predict": "a", "find": "b"}, "find", "passed", "'find'"),
        ({"reply.predict": "a"}, "reply", "passed", "'reply'"),
        ("Classify.", "predikt", "warned", "the artifact has 'artifact'"),
    ],
)
def test_component_feedback_for_a_part_that_the_artifact_does_not_have_is_flagged(
    artifact, name, status, said
):
    def score(input, output, expected=None):
        return 0.0, {"feedback": "It lacks the date.", "component_feedback": {name: "Own text."}}

    cases = [{"input": {"text": "hi"}, "expected": {"label": "a"}}]
    check = check_contract(score, cases, lambda artifact, input: "b", artifact=artifact)["Component names"]
    assert check.status == status
    assert said in check.seen
    assert ("did you mean 'predict'?" in check.mend) == (name == "predikt" and isinstance(artifact, dict))
    assert "Component names" not in str(check_contract(score, cases, lambda input: "b"))


# --- mends that fit -------------------------------------------------------------------------------


def given_a_prediction(input, output, expected=None):
    return dspy.Prediction(score=1.0, feedback="F.")


def without_a_spec(input, output, expected=None):
    return skynet.reward(1.0, "Right.")


def misspelt_argument(input, output, expected=None):
    return 1.0, {"feedback": skynet.llm(inputs=output)}


def number_of_a_verdict(input, output, expected=None):
    return float("FAIL since it is late"), {"feedback": "F."}


def number_of_the_output(input, output, expected=None):
    return float(output), {"feedback": "F."}


def number_of_a_part(input, output, expected=None):
    return float(output[:4]), {"feedback": "F."}


def misspelt_name(input, output, expected=None):
    return float(outptu), {"feedback": "F."}  # noqa: F821


def json_of_the_output(input, output, expected=None):
    return json.loads(output)["a"], {"feedback": "F."}


_GIVE_RUN = "the output was the expected value here; where real outputs look otherwise, give run="


@pytest.mark.parametrize(
    ("metric", "mend"),
    [
        (given_a_prediction, "pass from_dspy_metric(metric)"),
        (without_a_spec, "call it as reward(REWARD_SPEC, accuracy, feedback)"),
        (misspelt_argument, 'call it as llm("instructions", input=text)'),
        (number_of_a_verdict, "mend the metric where it raised"),
        (misspelt_name, "mend the metric where it raised"),
        (number_of_the_output, _GIVE_RUN),
        (number_of_a_part, _GIVE_RUN),
        (json_of_the_output, _GIVE_RUN),
        (from_dspy_metric(dspy.evaluate.SemanticF1()), "there is no field 'question': expected has 'label'"),
    ],
)
def test_the_mend_of_a_metric_that_raises_fits_what_it_raised(metric, mend):
    check = check_contract(metric, LABELS)["Metric return value"]
    assert check.status == "failed"
    assert mend in check.mend
    assert ("give run=" in check.mend) == (mend == _GIVE_RUN)


@pytest.mark.parametrize(
    ("returned", "mend"),
    [
        ((0.8, "Close; it lacks the date."), 'put the text into a dict with that name: return 0.8, {"feedb'),
        ((0.8, {"feedback": "F.", "scores": {"fmt": "good"}}), '"scores": {"format": 1.0}}'),
        ((0.8, {"feedback": "F.", "scores": 0.5}), '"scores": {"format": 1.0}}'),
        (
            (0.8, {"feedback": "F.", "component_feedback": "Plan."}),
            '"component_feedback": {"plan": "Plan."}}',
        ),
    ],
)
def test_the_mend_of_a_wrong_shape_shows_the_part_that_is_wrong(returned, mend):
    assert mend in check_contract(returning(returned), LABELS)["Metric return value"].mend.replace("`", "")
