"""`FeedbackScore` as a value, and the function that `as_dspy_metric` makes."""

import copy
import inspect
import io
import json
import math
import numbers
import pickle
import statistics
import threading

import cloudpickle
import dspy
import numpy as np
import orjson
import pytest
from dspy.teleprompt.simba_utils import wrap_program

from skynet_adapters import Metric, as_dspy_metric
from tests.scripted import answering, chat, examples, scripted_lm

EXAMPLE = dspy.Example(question="2 + 2?", answer="4").with_inputs("question")
ANSWER = dspy.Prediction(answer="5")


def result(value=0.5, feedback="Close.", *, error=False, options=None, **info):
    """The result that a metric gives which returns just this."""

    def score(input, output, expected=None):
        if error:
            raise ValueError("boom")
        return value, {"feedback": feedback, **info}

    return as_dspy_metric(score, name="judge", **(options or {}))(EXAMPLE, ANSWER)


def results(*values):
    return [result(value) for value in values]


# --- a number -------------------------------------------------------------------------------------


def test_it_has_what_a_real_number_has():
    one = result(-0.75)
    assert isinstance(one, numbers.Real)
    assert divmod(one, 0.5) == divmod(-0.75, 0.5)
    assert divmod(2, one) == divmod(2, -0.75)
    assert (math.floor(one), math.ceil(one), math.trunc(one), round(one)) == (-1, 0, 0, -1)
    assert (one.real, one.imag, one.conjugate(), complex(one)) == (-0.75, 0.0, -0.75, -0.75)
    assert (one.as_integer_ratio(), one.is_integer()) == ((-3, 4), False)


def test_sums_and_means_are_those_of_the_numbers():
    some = results(0.5, 0.0, 1.0)
    assert sum(some) == 1.5
    assert sum(some) / len(some) == 0.5
    assert math.fsum(some) == 1.5
    assert statistics.fmean(some) == 0.5
    assert statistics.median(some) == 0.5
    assert np.mean(some) == 0.5
    assert np.asarray(some, dtype=float).tolist() == [0.5, 0.0, 1.0]


def test_arithmetic_gives_what_the_floats_give():
    one, plain = result(0.5), dspy.Prediction(score=0.25)
    assert [one + 1, 1 + one, one - 1, 1 - one] == [1.5, 1.5, -0.5, 0.5]
    assert [one * 3, 3 * one, one / 2, 1 / one] == [1.5, 1.5, 0.25, 2.0]
    assert [3 // one, 3 % one, one**2, 2**one, -one, abs(-one)] == [6.0, 0.0, 0.25, 2**0.5, -0.5, 0.5]
    assert [one + one, one + plain, plain + one, one - plain] == [1.0, 0.75, 0.75, 0.25]
    assert [one + np.float64(1), np.float64(1) + one, np.float32(1) + one, np.float32(2) * one] == [
        1.5,
        1.5,
        1.5,
        1.0,
    ]
    assert all(type(value) is float for value in (one + 1, 1 + one, one + one, one / 2, -one, sum([one])))


def test_int_and_rounding_functions_take_a_result_as_they_take_a_float():
    one = result(1.5)
    assert (int(one), math.floor(one), math.ceil(one), math.trunc(one)) == (1, 1, 2, 1)


def test_results_sort_and_compare_by_their_numbers():
    low, middle, high = results(0.1, 0.5, 0.9)
    assert sorted([high, low, middle]) == [low, middle, high]
    assert max(low, high, middle) is high
    assert min(high, low, middle) is low
    assert max([0.2, middle, 0.3]) is middle
    assert sorted([high, 0.5, low])[1] == 0.5


@pytest.mark.parametrize("other", [0, 1, 0.2, 0.5, 0.7, np.float64(0.2), np.float64(0.5), np.float32(0.5)])
@pytest.mark.parametrize("left", [False, True])
def test_comparisons_with_numbers_are_those_of_the_float(other, left):
    one, number = result(0.5), 0.5
    if left:
        assert (other < one, other <= one, other > one, other >= one, other == one, other != one) == (
            other < number,
            other <= number,
            other > number,
            other >= number,
            other == number,
            other != number,
        )
    else:
        assert (one < other, one <= other, one > other, one >= other, one == other, one != other) == (
            number < other,
            number <= other,
            number > other,
            number >= other,
            number == other,
            number != other,
        )


def test_comparisons_with_a_plain_prediction_are_those_of_its_score():
    one, low, same = result(0.5), dspy.Prediction(score=0.25), dspy.Prediction(score=0.5)
    assert one > low
    assert low < one
    assert one >= same
    assert same >= one
    assert one <= same
    assert same <= one
    assert not one < same
    assert not low > one


def test_a_result_equals_a_plain_prediction_that_holds_the_same():
    one = result(0.5)
    assert one == dspy.Prediction(score=0.5, feedback=one.feedback)
    assert one != dspy.Prediction(score=0.5, feedback="Something else.")


def test_a_result_equals_its_number_and_a_result_that_says_the_same():
    assert result(0.5) == 0.5
    assert result(0.5) == np.float32(0.5)
    assert result(0.5) == result(0.5)
    assert result(0.5) != result(0.25)
    assert result(0.5, "Close.") != result(0.5, "Far.")
    assert result(0.5) != "0.5"
    assert result(0.0) is not None


def test_equal_results_have_one_hash():
    one = result(0.5)
    assert hash(one) == hash(0.5)
    assert len({one, result(0.5), 0.5}) == 1


@pytest.mark.parametrize("text", ["0.5", "high"])
def test_a_result_does_not_compare_with_a_text(text):
    one = result(0.5)
    for compare in (lambda: one >= text, lambda: one > text, lambda: one < text, lambda: one <= text):
        with pytest.raises(TypeError):
            compare()


def test_a_result_formats_and_rounds_as_its_number():
    one = result(2 / 3)
    assert f"{one:.2f} {one:6.1%}" == "0.67  66.7%"
    assert f"{result(0.5)}" == str(result(0.5)) == "0.5"
    assert "%.2f" % one == "0.67"  # noqa: UP031 - a mapping on the right of % is special
    assert round(one, 2) == 0.67
    assert round(one) == 1
    assert type(round(one)) is int


# --- truth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "truth"), [(0.0, False), (0.05, False), (0.999, False), (1.0, True)])
def test_truth_is_full_success_by_default(value, truth):
    assert bool(result(value)) is truth


@pytest.mark.parametrize(("value", "truth"), [(0.5, True), (0.499, False), (1.0, True)])
def test_truth_is_the_success_threshold_when_one_is_given(value, truth):
    assert bool(result(value, options={"success_threshold": 0.5})) is truth


def test_a_threshold_of_zero_counts():
    assert result(0.0, options={"success_threshold": 0.0})
    assert not result(-0.1, options={"success_threshold": 0.0})


@pytest.mark.parametrize("threshold", [-1, -1.0, 0, 0.0, 0.5, np.float64(-1), np.float32(-1), False])
def test_a_result_with_an_error_reaches_no_threshold(threshold):
    failed = result(error=True)
    assert failed.error is not None
    assert not failed
    assert not failed >= threshold
    assert not threshold <= failed
    assert not failed > threshold
    assert not threshold < failed


def test_a_result_with_an_error_reaches_no_threshold_that_is_itself_a_result():
    failed, low = result(error=True), result(-1.0)
    assert not failed >= low
    assert not low <= failed
    assert not failed >= dspy.Prediction(score=-1.0)
    assert not dspy.Prediction(score=-1.0) <= failed


def test_a_result_with_an_error_fails_a_threshold_that_its_failure_score_would_reach():
    failed = result(error=True, options={"failure_score": 1.0, "success_threshold": 0.5})
    assert float(failed) == 1.0
    assert not failed
    assert not failed >= 0.5


# --- a dict that JSON takes -----------------------------------------------------------------------


def written(value, **options):
    file = io.StringIO()
    json.dump(value, file, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda value: json.dumps(value, indent=2, sort_keys=True),
        written,
        lambda value: written(value, indent=2),
        orjson.dumps,
    ],
    ids=["dumps", "dumps-indent", "dump", "dump-indent", "orjson"],
)
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_json_holds_score_and_feedback_of_every_result(write, value):
    one = result(value, scores={"format": 1.0})
    expected = {"score": value, "feedback": one.feedback, "objective_scores": {"format": 1.0}}
    assert json.loads(write(one)) == expected
    assert json.loads(write([{"metric": one}])) == [{"metric": expected}]


def test_json_holds_a_result_with_an_error():
    failed = result(error=True)
    assert json.loads(written([failed])) == [{"score": 0.0, "feedback": failed.feedback}]
    assert "ValueError: boom" in failed.feedback


def test_a_result_stays_falsy_after_it_was_written():
    one = result(0.0)
    written(one)
    assert not one


def test_a_result_reads_as_a_dict():
    one = result(0.5)
    assert isinstance(one, dict)
    assert isinstance(one, dspy.Prediction)
    assert "score" in one
    assert "answer" not in one
    assert len(one) == 2
    assert list(one) == list(one.keys()) == ["score", "feedback"]
    assert list(one.values()) == [0.5, one["feedback"]]
    assert list(one.items()) == [("score", 0.5), ("feedback", one["feedback"])]
    assert one.get("score") == 0.5
    assert one.get("nothing") is None
    assert one.get("nothing", 3) == 3
    assert dict(one) == {**one} == one.toDict() == {"score": 0.5, "feedback": one.feedback}
    assert type(dict(one)) is type(one.toDict()) is dict
    assert one.pop("feedback").startswith("Close.")
    assert "feedback" not in one


def test_a_result_reads_as_a_prediction():
    one = result(0.5)
    assert hasattr(one, "feedback")
    assert one.feedback == one["feedback"] == "Close.\n\nScore: 0.5"
    assert one.score == one["score"] == 0.5
    assert type(one.score) is float
    assert not hasattr(one, "answer")
    assert not hasattr(one, "objective_scores")
    with pytest.raises(AttributeError, match="answer"):
        _ = one.answer


def test_setting_the_score_changes_the_number_everywhere():
    by_item, by_attribute = result(0.5), result(0.5)
    by_item["score"] = 1.0
    by_attribute.score = 1.0
    for one in (by_item, by_attribute):
        assert (one.score, one["score"], float(one), sum([one]), one + 0, one.toDict()["score"]) == (1.0,) * 6
        assert one
        assert one > 0.9


def test_updating_the_score_as_a_dict_changes_the_number_everywhere():
    one = result(0.5)
    one.update(score=1.0)
    assert (float(one), sum([one]), one + 0) == (1.0,) * 3


def test_setting_the_feedback_changes_it_everywhere():
    one = result(0.5)
    one["feedback"] = "This."
    assert (one.feedback, one["feedback"], one.toDict()["feedback"]) == ("This.",) * 3
    one.feedback = "That."
    assert (one.feedback, one["feedback"], one.toDict()["feedback"]) == ("That.",) * 3


def test_objective_scores_that_were_set_are_read_back():
    one = result(0.5, scores={"format": 1.0})
    one["objective_scores"] = {"format": 0.25}
    assert one["objective_scores"] == {"format": 0.25}


def test_a_writer_into_one_result_changes_no_other_result_of_the_rollout():
    metric = as_dspy_metric(lambda input, output: (0.5, {"feedback": "Close.", "scores": {"format": 1.0}}))
    first = metric(EXAMPLE, ANSWER)
    first["score"] = 9.0
    first["feedback"] = None
    first["objective_scores"]["format"] = 9.0
    again = metric(EXAMPLE, ANSWER, [], "self", [])
    assert again is not first
    assert (again.score, again["objective_scores"]) == (0.5, {"format": 1.0})
    assert again.feedback.startswith("Close.")


# --- named scores ---------------------------------------------------------------------------------


def named_metric():
    """Names appear with the cases; the case "fail" raises."""

    def score(input, output, expected=None):
        if output == "fail":
            raise ValueError("boom")
        return 0.5, {"feedback": "Close.", "scores": {output: 0.75}}

    return as_dspy_metric(score)


READS = {
    "item": lambda one: one["objective_scores"],
    "get": lambda one: one.get("objective_scores"),
    "attribute": lambda one: one.objective_scores,
    "items": lambda one: dict(one.items())["objective_scores"],
    "toDict": lambda one: one.toDict()["objective_scores"],
    "dict": lambda one: dict(one)["objective_scores"],
    "stars": lambda one: {**one}["objective_scores"],
    "values": lambda one: list(one.values())[2],
    "pop": lambda one: one.pop("objective_scores"),
    "json.dumps": lambda one: json.loads(json.dumps(one))["objective_scores"],
    "json.dump": lambda one: json.loads(written(one))["objective_scores"],
    "orjson": lambda one: orjson.loads(orjson.dumps(dict(one)))["objective_scores"],
    "pickle": lambda one: pickle.loads(pickle.dumps(one))["objective_scores"],
    "deepcopy": lambda one: copy.deepcopy(one)["objective_scores"],
    "copy": lambda one: copy.copy(one)["objective_scores"],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_named_scores_are_complete_with_names_that_later_cases_brought(read):
    metric = named_metric()
    early = metric(EXAMPLE, dspy.Prediction(answer="format"))
    metric(EXAMPLE, dspy.Prediction(answer="facts"))
    assert read(early) == {"format": 0.75, "facts": 0.0}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_named_scores_of_a_failed_case_are_there_once_any_case_brought_names(read):
    metric = named_metric()
    failed = metric(EXAMPLE, dspy.Prediction(answer="fail"))
    metric(EXAMPLE, dspy.Prediction(answer="format"))
    assert read(failed) == {"format": 0.0}


def test_a_failed_case_says_that_it_has_named_scores_once_any_case_brought_names():
    metric = named_metric()
    failed = metric(EXAMPLE, dspy.Prediction(answer="fail"))
    assert not hasattr(failed, "objective_scores")
    metric(EXAMPLE, dspy.Prediction(answer="format"))
    assert hasattr(failed, "objective_scores")
    assert "objective_scores" in failed
    assert len(failed) == len(list(failed)) == len(failed.keys()) == 3


def test_there_are_no_named_scores_where_no_case_brought_any():
    one = result(0.5)
    assert one.get("objective_scores") is None
    assert one.get("objective_scores", {}) == {}
    with pytest.raises(KeyError):
        _ = one["objective_scores"]


def test_named_scores_stand_in_the_feedback():
    assert result(0.5, scores={"format": 1.0, "facts": 0.0}).feedback == (
        "Close.\n\nScore: 0.5\nNamed scores: format 1, facts 0"
    )


# --- copies ---------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "pickle-0": lambda one: pickle.loads(pickle.dumps(one, protocol=0)),
    "cloudpickle": lambda one: cloudpickle.loads(cloudpickle.dumps(one)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "method": lambda one: one.copy(),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_keeps_what_the_metric_said_besides(copied):
    more = {"component_feedback": {"reply": "Shorter."}, "rows": [1, 2]}
    judgement = copied(result(**more)).judgement
    assert judgement.info == more
    assert judgement.text("reply").startswith("Shorter.")


def test_what_cannot_be_pickled_stays_behind_and_stands_in_the_text():
    made = pickle.loads(pickle.dumps(result(lock=threading.Lock(), rows=[1])))
    assert made.judgement.info == {"rows": [1]}
    assert "lock: " in made.feedback


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_copy_keeps_fields_number_truth_and_error(copied, threshold):
    one = result(0.5, scores={"format": 1.0}, options={"success_threshold": threshold})
    made = copied(one)
    assert type(made) is type(one)
    assert made is not one
    assert made == one
    assert made.toDict() == one.toDict()
    assert (float(made), sum([made]), bool(made)) == (0.5, 0.5, threshold == 0.5)
    failed = copied(result(error=True))
    assert "ValueError: boom" in str(failed.error)
    assert not failed >= -1


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_writing_into_a_copy_leaves_the_original_alone(copied):
    one = result(0.5, scores={"format": 1.0})
    made = copied(one)
    made["score"] = 0.75
    made["feedback"] = "Other."
    assert (one.score, sum([one])) == (0.5, 0.5)
    assert one.feedback.startswith("Close.")
    assert (made.score, sum([made])) == (0.75, 0.75)


def test_a_deep_copy_of_a_copy_shares_no_named_scores():
    first = copy.deepcopy(result(0.5, scores={"format": 1.0}))
    second = copy.deepcopy(first)
    second["objective_scores"]["format"] = 9.0
    assert first["objective_scores"] == {"format": 1.0}


def test_a_copy_can_take_other_fields_as_that_of_an_example_does():
    one = result(0.5)
    other = one.copy(score=1.0, note="n")
    assert (other.score, sum([other]), other.note, bool(other)) == (1.0, 1.0, "n", True)
    assert one.score == 0.5


# --- the function -------------------------------------------------------------------------------


def score(input, output, expected=None):
    """Say whether the output is what was expected."""
    right = output == expected["answer"]
    return float(right), {"feedback": "Right." if right else f"Expected {expected['answer']!r}."}


def test_the_metrics_name_is_no_fields_name():
    assert as_dspy_metric(score).__name__ not in ("score", "answer", "question", "feedback")
    for field in ("answer", "score", "feedback", "prediction", "label"):
        metric = as_dspy_metric(score, name=field)
        assert metric.__name__ != field
        assert field in metric.__name__


def test_metrics_of_different_names_have_different_names():
    assert as_dspy_metric(score, name="a").__name__ != as_dspy_metric(score, name="b").__name__


def test_the_metric_is_a_plain_function_that_holds_its_metric():
    own = Metric(score)
    metric = as_dspy_metric(own)
    assert inspect.isfunction(metric)
    assert metric.metric is own
    assert metric.__doc__ == "Say whether the output is what was expected."


def test_the_signature_takes_what_gepa_passes():
    signature = inspect.signature(as_dspy_metric(score))
    signature.bind(None, None, None, None, None)
    signature.bind(None, None)
    signature.bind(None, None, trace=[], pred_name="self", pred_trace=[], program_trace=[])
    assert list(signature.parameters) == ["gold", "pred", "trace", "pred_name", "pred_trace", "program_trace"]


def test_the_metric_takes_its_arguments_by_position_and_by_keyword():
    metric = as_dspy_metric(score)
    right = dspy.Prediction(answer="4")
    assert metric(EXAMPLE, right) == 1.0
    assert metric(EXAMPLE, right, None) == 1.0
    assert metric(EXAMPLE, right, [], "self", []) == 1.0
    assert metric(gold=EXAMPLE, pred=right) == 1.0
    assert metric(EXAMPLE, right, trace=None, pred_name="self", pred_trace=None, program_trace=[]) == 1.0


def test_the_source_shown_is_the_users_own():
    assert inspect.getsource(as_dspy_metric(score)) == inspect.getsource(score)


def test_gepa_accepts_the_metric_without_a_word_of_its_signature():
    assert dspy.GEPA(as_dspy_metric(score), max_metric_calls=1, reflection_lm=answering(str)).metric_fn


def judged_by_model(input, output, expected=None):
    said = dspy.Predict("text -> verdict")(text=output).verdict
    return float(said == "good"), {"feedback": f"The judge says {said!r}."}


def judge_lm():
    return scripted_lm(lambda messages: chat(verdict="good"))


COPIES_OF_METRICS = {
    "cloudpickle": lambda metric: cloudpickle.loads(cloudpickle.dumps(metric)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES_OF_METRICS.values(), ids=COPIES_OF_METRICS)
@pytest.mark.parametrize("judge", [None, judge_lm()], ids=["plain", "metric_lm"])
def test_a_copied_metric_judges(copied, judge):
    metric = as_dspy_metric(score, output="answer", expected=["answer"], metric_lm=judge, score_range=(0, 2))
    metric(EXAMPLE, dspy.Prediction(answer="4"))
    made = copied(metric)
    one = made(EXAMPLE, dspy.Prediction(answer="4", note="n"))
    assert (one.score, one.feedback) == (0.5, "Right.\n\nScore: 0.5")
    assert made.__name__ == metric.__name__
    inspect.signature(made).bind(None, None, None, None, None)


@pytest.mark.parametrize("copied", COPIES_OF_METRICS.values(), ids=COPIES_OF_METRICS)
def test_a_copied_metric_works_with_a_judge_that_is_set_where_it_runs(copied):
    made = copied(as_dspy_metric(judged_by_model))
    with dspy.context(lm=judge_lm()):
        assert made(EXAMPLE, ANSWER).feedback.startswith("The judge says 'good'.")


def test_a_metric_over_a_closure_judges_after_it_was_unpickled():
    wanted = "5"

    def close(input, output):
        return float(output == wanted), {"feedback": "Seen."}

    made = cloudpickle.loads(cloudpickle.dumps(as_dspy_metric(close)))
    assert made(EXAMPLE, ANSWER).score == 1.0
    assert made.metric.calls == 1


def test_a_metric_keeps_its_name_when_it_is_pickled():
    def score(input, output):
        return 1.0, {"feedback": "Seen."}

    metric = as_dspy_metric(score)
    made = cloudpickle.loads(cloudpickle.dumps(metric))
    assert made.__name__ == metric.__name__
    assert made.metric.name == metric.metric.name


def test_an_unpickled_metric_begins_with_empty_memory_and_counters():
    metric = as_dspy_metric(score)
    metric(EXAMPLE, ANSWER)
    metric(EXAMPLE, None)
    made = cloudpickle.loads(cloudpickle.dumps(metric))
    assert (made.metric.calls, len(made.metric.failures)) == (0, 0)
    assert (metric.metric.calls, len(metric.metric.failures)) == (1, 1)
    assert metric.failures is metric.metric.failures
    assert made.failures is made.metric.failures


def test_a_pickled_metric_leaves_its_model_behind_and_asks_the_one_that_is_set_where_it_runs():
    judge = dspy.LM("openai/gpt-4o-mini", api_key="sk-very-secret", cache=False)
    data = cloudpickle.dumps(as_dspy_metric(judged_by_model, metric_lm=judge))
    assert b"sk-very-secret" not in data
    with dspy.context(lm=judge_lm()):
        assert cloudpickle.loads(data)(EXAMPLE, ANSWER).feedback.startswith("The judge says 'good'.")


# --- SIMBA reads number and text ----------------------------------------------------------------


def test_simba_reads_number_and_text():
    metric = as_dspy_metric(
        lambda input, output, expected=None: (0.25, {"feedback": "Too long.", "scores": {"length": 0.25}})
    )
    with dspy.context(lm=answering(lambda question: "A")):
        got = wrap_program(dspy.Predict("question -> answer"), metric)(examples(1)[0])
    assert got["score"] == 0.25
    assert type(got["score"]) is float
    assert got["output_metadata"] == {
        "feedback": "Too long.\n\nScore: 0.25\nNamed scores: length 0.25",
        "objective_scores": {"length": 0.25},
    }
    assert json.loads(orjson.dumps(got["output_metadata"])) == got["output_metadata"]


def test_simba_reads_a_text_where_the_program_raised():
    class Raising(dspy.Module):
        def forward(self, question):
            raise RuntimeError("no answer")

    metric = as_dspy_metric(score)
    got = wrap_program(Raising(), metric)(examples(1)[0])
    assert (got["prediction"], got["score"]) == (None, 0.0)
    assert "The program gave no output." in got["output_metadata"]["feedback"]
    assert metric.metric.calls == 0
