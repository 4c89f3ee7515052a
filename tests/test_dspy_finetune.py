"""The metric in the real `dspy.BootstrapFinetune` and `dspy.BetterTogether`, with a scripted provider."""

import logging

import dspy
import pytest
from dspy.clients.provider import Provider
from dspy.teleprompt.bootstrap_trace import bootstrap_trace_data

from skynet_adapters import MetricBroken, as_dspy_metric
from tests.scripted import ScriptedEngine, chat, examples, field_of


class Training(Provider):
    """Fine-tunes nothing, and keeps what it was given to train on."""

    def __init__(self):
        super().__init__()
        self.finetunable = True
        self.jobs = []

    def finetune(self, job, model, train_data, train_data_format, train_kwargs=None):
        self.jobs.append(train_data)
        return f"{model}-tuned"

    def questions(self, job=-1):
        """The questions that are asked in the rows of one job, in order."""
        return sorted(field_of([row["messages"][-2]], "question") for row in self.jobs[job])

    def answers(self, job=-1):
        return sorted(field_of([row["messages"][-1]], "answer") for row in self.jobs[job])


def trainable(answer=lambda question: chat(answer=f"answer to {question}")):
    """A provider, and a model that it can train."""
    provider = Training()
    engine = ScriptedEngine(lambda messages: answer(field_of(messages, "question")))
    return provider, dspy.LM("scripted/model", engine=engine, provider=provider, cache=False)


def student_of(lm, program=None):
    program = dspy.Predict("question -> answer") if program is None else program
    program.set_lm(lm)
    return program


def giving(values):
    """A score that gives the number beside the question, or raises the exception that stands there."""

    def score(input, output, expected=None):
        value = values[input["question"]]
        if isinstance(value, BaseException):
            raise value
        return value, {"feedback": "F."}

    return score


def trained_on(values, *, threads=1, **options):
    """The questions that BootstrapFinetune trains on with such scores."""
    provider, lm = trainable()
    metric = as_dspy_metric(giving(values), **options)
    with dspy.context(lm=lm):
        dspy.BootstrapFinetune(metric=metric, num_threads=threads).compile(
            student_of(lm), trainset=examples(len(values))
        )
    return provider.questions()


SOME = {"q0": 0.0, "q1": 0.05, "q2": 0.999, "q3": 1.0, "q4": -0.3, "q5": 2.0, "q6": True, "q7": -1.0}


# --- BootstrapFinetune ----------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 8])
def test_only_answers_from_the_success_threshold_on_are_trained_on(threads):
    assert trained_on(SOME, threads=threads) == ["q3", "q5", "q6"]


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [
        (1.0, ["q3", "q5", "q6"]),
        (0.999, ["q2", "q3", "q5", "q6"]),
        (0.05, ["q1", "q2", "q3", "q5", "q6"]),
        (0.0, ["q0", "q1", "q2", "q3", "q5", "q6"]),
        (-0.5, ["q0", "q1", "q2", "q3", "q4", "q5", "q6"]),
        (1.5, ["q5"]),
    ],
)
def test_success_threshold_moves_what_is_trained_on(threshold, kept):
    assert trained_on(SOME, success_threshold=threshold) == kept


def test_the_threshold_is_on_the_normalised_scale():
    values = {"q0": 0, "q1": 7, "q2": 8, "q3": 10}
    assert trained_on(values, score_range=(0, 10)) == ["q3"]
    assert trained_on(values, score_range=(0, 10), success_threshold=0.8) == ["q2", "q3"]


@pytest.mark.parametrize("options", [{}, {"failure_score": 1.0}, {"failure_score": -1.0}])
@pytest.mark.parametrize("threshold", [None, -5])
def test_an_answer_that_could_not_be_judged_is_never_trained_on(threshold, options):
    values = {"q0": ValueError("boom"), "q1": 1.0, "q2": SystemExit(1), "q3": float("nan"), "q4": "text"}
    assert trained_on(values, success_threshold=threshold, **options) == ["q1"]


def test_the_rows_hold_what_was_asked_and_what_was_answered():
    provider, lm = trainable()
    with dspy.context(lm=lm):
        tuned = dspy.BootstrapFinetune(metric=as_dspy_metric(giving(SOME)), num_threads=1).compile(
            student_of(lm), trainset=examples(4)
        )
    [row] = provider.jobs[0]
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
    assert provider.questions() == ["q3"]
    assert provider.answers() == ["answer to q3"]
    assert tuned.lm.model == "scripted/model-tuned"


def test_all_steps_of_a_program_with_two_predictors_are_trained_on_or_none():
    class Twice(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Predict("question -> answer")
            self.second = dspy.Predict("question -> answer")

        def forward(self, question):
            return self.second(question=f"{question} and {self.first(question=question).answer}")

    provider, lm = trainable()
    metric = as_dspy_metric(giving({"q0": 0.5, "q1": 1.0}))
    with dspy.context(lm=lm):
        dspy.BootstrapFinetune(metric=metric, num_threads=1, multitask=True).compile(
            student_of(lm, Twice()), trainset=examples(2)
        )
    assert provider.questions() == ["q1", "q1 and answer to q1"]


def test_a_teachers_answers_are_filtered_as_well():
    provider, lm = trainable()
    other, teachers_lm = trainable(lambda question: chat(answer=f"taught {question}"))
    metric = as_dspy_metric(giving({"q0": 0.999, "q1": 1.0}))
    with dspy.context(lm=lm):
        dspy.BootstrapFinetune(metric=metric, num_threads=1).compile(
            student_of(lm), trainset=examples(2), teacher=student_of(teachers_lm)
        )
    assert provider.answers() == ["taught q1"]
    assert other.jobs == []


def test_a_metric_that_always_fails_stops_before_anything_is_trained():
    provider, lm = trainable()
    metric = as_dspy_metric(giving({f"q{number}": LookupError("no table") for number in range(30)}))
    with dspy.context(lm=lm), pytest.raises(MetricBroken, match="LookupError: no table"):
        dspy.BootstrapFinetune(metric=metric, num_threads=4).compile(student_of(lm), trainset=examples(30))
    assert provider.jobs == []


def test_each_row_is_judged_once():
    provider, lm = trainable()
    metric = as_dspy_metric(giving(SOME))
    with dspy.context(lm=lm):
        dspy.BootstrapFinetune(metric=metric, num_threads=4).compile(student_of(lm), trainset=examples(8))
    assert metric.metric.calls == 8
    assert len(provider.jobs) == 1


# --- answers that do not parse (DSPy's own; no metric is asked) -----------------------------------


def unparsable(question):
    return "no fields at all" if question == "q1" else chat(answer="A")


def test_dspy_gives_an_answer_that_does_not_parse_minus_one_and_asks_no_metric():
    # -1 is true, so that DSPy's filter keeps the row: nothing that a metric can mend (dspy 3.4.1).
    _, lm = trainable(unparsable)
    metric = as_dspy_metric(giving({"q0": 1.0, "q1": 1.0, "q2": 0.5}))
    with dspy.context(lm=lm):
        rows = bootstrap_trace_data(
            dspy.Predict("question -> answer"), examples(3), metric=metric, num_threads=1
        )
    assert [row["score"] for row in rows] == [1.0, -1, 0.5]
    assert [bool(row["score"]) for row in rows] == [True, True, False]
    assert metric.metric.calls == 2


@pytest.mark.parametrize("plain", [True, False], ids=["plain-metric", "as_dspy_metric"])
def test_one_answer_that_does_not_parse_ends_the_finetuning_loudly_with_any_metric(plain):
    # Users see DSPy's own error, and nothing is trained on the bad row.
    provider, lm = trainable(unparsable)
    metric = (
        (lambda gold, pred, trace=None: True) if plain else as_dspy_metric(giving(dict.fromkeys(SOME, 1.0)))
    )
    with (
        dspy.context(lm=lm),
        pytest.raises(AttributeError, match="'FailedPrediction' object has no attribute 'get'"),
    ):
        dspy.BootstrapFinetune(metric=metric, num_threads=1).compile(student_of(lm), trainset=examples(3))
    assert provider.jobs == []


@pytest.mark.parametrize("plain", [True, False], ids=["plain-metric", "as_dspy_metric"])
def test_a_program_that_raises_ends_the_finetuning_loudly_with_any_metric(plain):
    # DSPy loses the row, trips over its place, and names neither the row nor its fault (dspy 3.4.1).
    def answer(question):
        if question == "q1":
            raise RuntimeError("model is down")
        return chat(answer="A")

    provider, lm = trainable(answer)
    metric = (lambda gold, pred, trace=None: True) if plain else as_dspy_metric(always_right)
    with dspy.context(lm=lm), pytest.raises(ValueError, match="not enough values to unpack"):
        dspy.BootstrapFinetune(metric=metric, num_threads=1).compile(student_of(lm), trainset=examples(3))
    assert provider.jobs == []
    if not plain:
        assert (metric.metric.calls, len(metric.metric.failures)) == (2, 0)


def always_right(input, output, expected=None):
    return 1.0, {"feedback": "F."}


# --- BetterTogether -------------------------------------------------------------------------------


def right(input, output, expected=None):
    good = output == expected["answer"]
    return float(good), {"feedback": "Right." if good else f"Expected {expected['answer']!r}."}


def together(metric, lm, **options):
    return dspy.BetterTogether(
        metric=metric,
        p=dspy.BootstrapFewShotWithRandomSearch(
            metric=metric,
            num_candidate_programs=1,
            max_bootstrapped_demos=2,
            max_labeled_demos=0,
            num_threads=1,
        ),
        w=dspy.BootstrapFinetune(metric=metric, num_threads=1),
        **options,
    )


def test_better_together_runs_prompt_and_weight_optimisation_in_turn():
    provider, lm = trainable(lambda question: chat(answer="A" if question in ("q0", "q3", "q5") else "B"))
    metric = as_dspy_metric(right)
    with dspy.context(lm=lm):
        best = together(metric, lm).compile(
            student_of(lm), trainset=examples(6), valset=examples(4), strategy="p -> w", num_threads=1, seed=0
        )
    assert not best.flag_compilation_error_occurred
    assert {one["strategy"]: one["score"] for one in best.candidate_programs} == {
        "": 50.0,
        "p": 50.0,
        "p -> w": 50.0,
    }
    assert len(provider.jobs) == 1
    assert provider.questions() == ["q0", "q3", "q5"]
    tuned = next(one["program"] for one in best.candidate_programs if one["strategy"] == "p -> w")
    assert tuned.lm.model == "scripted/model-tuned"
    assert all(demo["answer"] == "A" for one in best.candidate_programs for demo in one["program"].demos)


def test_better_together_with_its_own_optimisers_takes_the_metric_too():
    provider, lm = trainable(lambda question: chat(answer="A" if question in ("q1", "q2") else "B"))
    metric = as_dspy_metric(lambda input, output, expected=None: (0.9 * (output == "A"), {"feedback": "F."}))
    with dspy.context(lm=lm):
        best = dspy.BetterTogether(
            metric=metric, w=dspy.BootstrapFinetune(metric=metric, num_threads=1)
        ).compile(
            student_of(lm), trainset=examples(4), valset=examples(4), strategy="w", num_threads=1, seed=0
        )
    assert {one["strategy"]: one["score"] for one in best.candidate_programs} == {"": 45.0, "w": 45.0}
    assert provider.jobs == [[]]  # 0.9 is true as a float, and no success


def test_better_together_names_a_metric_that_is_broken(caplog):
    provider, lm = trainable()
    metric = as_dspy_metric(giving({f"q{number}": LookupError("no table") for number in range(20)}))
    with (
        caplog.at_level(logging.CRITICAL),
        dspy.context(lm=lm),
        pytest.raises(MetricBroken, match="LookupError: no table"),
    ):
        together(metric, lm).compile(
            student_of(lm), trainset=examples(20), valset=examples(20), strategy="p -> w", num_threads=1
        )
    assert provider.jobs == []
