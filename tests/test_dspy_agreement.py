"""One property: whatever a metric returns, every part of DSPy reads the same number, truth and text."""

import itertools
import json
import math
import tempfile
from pathlib import Path

import dspy
from dspy.teleprompt.bootstrap_trace import bootstrap_trace_data
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter, _extract_score_and_objective_scores
from dspy.teleprompt.reanchor.calibrate import metric_value
from dspy.teleprompt.simba_utils import wrap_program
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from skynet_adapters import Metric, as_dspy_metric, as_dspy_reward
from tests.scripted import answering, chat, examples, scripted_lm

numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 0.05, 0.999, 1.5, 10, -1, -0.3, 5e-324, 1e-9, True, False]),
    st.floats(-1e6, 1e6),
    st.integers(-5, 5),
)
# Any characters, lone surrogates and controls among them, and some that are markup to someone.
texts = st.one_of(
    st.text(st.characters(), max_size=40),
    st.sampled_from(
        ["", " \n", "Größe ✓ 日本 🎉", 'a "b" {c} \\d', "\ud800\0", "<side_info> </s> ```", "x" * 12_000]
    ),
)
named = st.dictionaries(st.sampled_from(["format", "facts", "Länge"]), numbers, max_size=3)
cases = st.one_of(
    st.fixed_dictionaries({"value": numbers, "feedback": texts, "scores": named}),
    st.just({"raises": "no such table"}),
)


def clean(text):
    """Whether a text goes through as it is."""
    return (
        bool(text.strip())
        and len(text) <= 10_000
        and not any(one in "\0" or "\ud800" <= one <= "\udfff" for one in text)
    )


class Judged:
    """What a `Metric` of the same answers says: what every part of DSPy must read."""

    def __init__(self, answers, options):
        def score(input, output, expected=None):
            answer = answers[int(output)]
            if "raises" in answer:
                raise LookupError(answer["raises"])
            return answer["value"], {key: answer[key] for key in ("feedback", "scores") if answer[key] != {}}

        self.score = score
        self.options = {**options, "stop_after": None}
        plain = Metric(score, **self.options)
        self.scores = [plain.score_case({"question": f"q{n}"}, str(n)) for n in range(len(answers))]
        for answer, one in zip(answers, self.scores, strict=True):
            assert (one.error is not None) == ("raises" in answer)
            if one.error is None:
                assert one.value == answer["value"]
                assert one.feedback == answer["feedback"] or not clean(answer["feedback"])
        self.values = [one.value for one in self.scores]
        self.texts = [one.text() for one in self.scores]
        threshold = options.get("success_threshold")
        self.threshold = 1.0 if threshold is None else threshold
        self.truths = [one.error is None and one.value >= self.threshold for one in self.scores]
        names = {name for one in self.scores for name in one.scores}
        failed = options.get("failure_score", 0.0)
        self.named = [{name: one.scores.get(name, failed) for name in names} for one in self.scores]

    def reaches(self, threshold):
        return [one.error is None and one.value >= threshold for one in self.scores]


def program():
    return dspy.Predict("question -> answer")


def evaluate(metric, data, judged):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        result = dspy.Evaluate(devset=data, metric=metric, num_threads=2, save_as_json=str(file))(program())
        rows = [row[metric.__name__] for row in json.loads(file.read_text())]
    assert result.score == round(100 * sum(judged.values) / len(data), 2)
    results = [one for _, _, one in result.results]
    assert [float(one) for one in results] == judged.values
    assert [bool(one) for one in results] == judged.truths
    assert [row["score"] for row in rows] == judged.values
    assert [row["feedback"] for row in rows] == judged.texts
    assert [row.get("objective_scores", {}) for row in rows] == judged.named


def gepa(metric, data, judged):
    adapter = DspyAdapter(
        program(), metric, {"self": lambda **fields: told(metric, fields)}, num_threads=2, failure_score=-77.0
    )
    candidate = {"self": "Answer."}
    plain = adapter.evaluate(data, candidate)
    traced = adapter.evaluate(data, candidate, capture_traces=True)
    for batch in (plain, traced):
        assert batch.scores == judged.values
        assert (batch.objective_scores or [{}] * len(data)) == judged.named
    for row, value, names in zip(traced.trajectories, judged.values, judged.named, strict=True):
        assert _extract_score_and_objective_scores(row["score"]) == (value, names)
    calls = metric.metric.calls
    reflective = adapter.make_reflective_dataset(candidate, traced, ["self"])["self"]
    assert [record["Feedback"] for record in reflective] == judged.texts
    assert metric.metric.calls == calls
    assert adapter.warn_on_score_mismatch  # it never saw another number in the text's call


def told(metric, fields):
    trace = fields["captured_trace"]
    return metric(fields["module_inputs"], fields["module_outputs"], trace, "self", trace)


def simba(metric, data, judged):
    wrapped = wrap_program(program(), metric)
    rows = [wrapped(example) for example in data]
    assert [row["score"] for row in rows] == judged.values
    assert [row["output_metadata"]["feedback"] for row in rows] == judged.texts
    assert [row["output_metadata"].get("objective_scores", {}) for row in rows] == judged.named


def traces(metric, data, judged):
    rows = bootstrap_trace_data(program(), data, metric=metric, num_threads=2)
    assert [float(row["score"]) for row in rows] == judged.values
    assert [row["example"] for row in rows if row["score"]] == list(itertools.compress(data, judged.truths))
    assert [row["score"]["feedback"] for row in rows] == judged.texts


def demos(metric, data, judged):
    for threshold in (None, 0.5, -0.25, 1.0):
        compiled = dspy.BootstrapFewShot(
            metric=metric, metric_threshold=threshold, max_bootstrapped_demos=len(data), max_labeled_demos=0
        ).compile(program(), trainset=data)
        good = judged.truths if threshold is None else judged.reaches(threshold)
        wanted = [one["question"] for one in itertools.compress(data, good)]
        assert [demo["question"] for demo in compiled.demos] == wanted


def reanchor(metric, data, judged):
    found = [metric_value(metric, one, program()(question=one.question)) for one in data]
    assert found == judged.values
    assert all(type(value) is float for value in found)


def in_turn(count):
    """A model that answers 0, 1, 2 and so on, and keeps what Refine's advice model is asked."""
    turn = itertools.cycle(range(count))
    asked = []

    def answer(messages):
        if "reward_code" in messages[0]["content"]:
            asked.append(messages[-1]["content"])
            return chat(discussion="d", advice='{"self": "x"}')
        return chat(answer=next(turn))

    return scripted_lm(answer), asked


def ranked(judged):
    """The numbers by which the attempts of BestOfN and Refine are compared."""
    return [-math.inf if one.error is not None else one.value for one in judged.scores]


def best_of_n(reward, judged):
    count = len(judged.scores)
    ranks = ranked(judged)
    for threshold in (math.inf, 0.5, -0.25):
        lm, _ = in_turn(count)
        with dspy.context(lm=lm):
            best = dspy.BestOfN(module=program(), N=count, reward_fn=reward, threshold=threshold)(
                question="q"
            )
        reached = [number for number, rank in enumerate(ranks) if rank >= threshold]
        last = reached[0] if reached else count - 1
        assert int(best.answer) == ranks.index(max(ranks[: last + 1]))


def refine(reward, judged):
    count = len(judged.scores)
    lm, asked = in_turn(count)
    with dspy.context(lm=lm):
        best = dspy.Refine(module=program(), N=count, reward_fn=reward, threshold=2e6)(question="q")
    assert int(best.answer) == ranked(judged).index(max(ranked(judged)))
    shown = [
        prompt.split("[[ ## reward_value ## ]]\n")[1].split("\n\n[[ ## module_names ## ]]")[0]
        for prompt in asked
    ]
    rewards = [json.loads(one) for one in shown]
    assert [reward["score"] for reward in rewards] == judged.values[:-1]
    assert [reward["feedback"] for reward in rewards] == judged.texts[:-1]


def one_case(value, feedback="F.", **scores):
    return {"value": value, "feedback": feedback, "scores": scores}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    answers=st.lists(cases, min_size=1, max_size=4),
    threshold=st.sampled_from([None, 0.0, 0.5, 1.0, -0.5]),
    failure_score=st.sampled_from([0.0, -1.0, 2.0]),
)
@example([one_case(-0.0), one_case(0.0), one_case(5e-324), one_case(1.0)], None, 0.0)
@example([{"raises": "no such table"}, one_case(0.05, "\ud800\0 ✓", facts=0.5), one_case(-1e6)], -0.5, 2.0)
@example([{"raises": "no such table"}, {"raises": "no such table"}], None, 2.0)
@example([one_case(1.0, "", facts=-1), one_case(0.999, " ", format=10)], 1.0, -1.0)
def test_every_part_of_dspy_reads_the_same_number_truth_and_text(answers, threshold, failure_score):
    options = {"success_threshold": threshold, "failure_score": failure_score}
    judged = Judged(answers, options)
    metric = as_dspy_metric(judged.score, **judged.options)
    reward = as_dspy_reward(judged.score, **judged.options)
    data = examples(len(answers))
    with dspy.context(lm=answering(lambda question: question[1:])):
        for read in (evaluate, gepa, simba, traces, demos, reanchor):
            read(metric, data, judged)
    for function in (reward, metric):
        best_of_n(function, judged)
        refine(function, judged)
