"""DSPy metrics that users have already, as a `score` for every target."""

import asyncio
import functools

import cloudpickle
import dspy
import numpy as np
import pytest
from dspy.evaluate import CompleteAndGrounded, SemanticF1, answer_exact_match, answer_passage_match

from skynet_adapters import (
    DefinitionError,
    Metric,
    MetricBroken,
    as_dspy_metric,
    as_dspy_reward,
    fingerprint,
    from_dspy_metric,
)
from tests.scripted import answering, chat, examples, field_of, reflecting, scripted_lm

QUESTION = {"question": "2 + 2?"}


def returning(value):
    def metric(example, pred, trace=None):
        return value

    return metric


def score_case(metric, answer="5", expected={"answer": "4"}, **options):  # noqa: B006
    return Metric(from_dspy_metric(metric, **options)).score_case(QUESTION, answer, expected)


# --- what a DSPy metric returns -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (0.25, 0.25),
        (-1.5, -1.5),
        (True, 1.0),
        (False, 0.0),
        (1, 1.0),
        (0, 0.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
    ],
)
def test_a_number_is_the_score_and_the_feedback_shows_what_was_expected_and_what_came(returned, value):
    score = score_case(returning(returned))
    assert (score.value, score.error) == (value, None)
    assert type(score.value) is float
    assert score.feedback == f"The metric 'metric' gave {returned}. Expected {{'answer': '4'}}, got '5'."


@pytest.mark.parametrize("kind", [dspy.Prediction, dict], ids=["Prediction", "dict"])
def test_score_feedback_and_named_scores_of_a_result_with_fields_are_kept(kind):
    score = score_case(
        returning(
            kind(score=0.5, feedback="The date is missing.", objective_scores={"format": 1, "facts": 0.25})
        )
    )
    assert (score.value, score.feedback, score.error) == (0.5, "The date is missing.", None)
    assert score.scores == {"format": 1.0, "facts": 0.25}
    assert score.info == {}


@pytest.mark.parametrize("kind", [dspy.Prediction, dict], ids=["Prediction", "dict"])
@pytest.mark.parametrize("more", [{}, {"feedback": None}, {"feedback": ""}, {"objective_scores": None}])
def test_a_result_without_a_text_gets_one_that_names_metric_and_number(kind, more):
    score = score_case(returning(kind(score=True, **more)))
    assert (score.value, score.error) == (1.0, None)
    assert "The metric 'metric' gave True." in score.feedback


def test_further_fields_of_a_result_are_shown_too():
    score = score_case(returning(dspy.Prediction(score=0.5, feedback="F.", missed="date")))
    assert score.info == {"missed": "date"}
    assert score.text() == "F.\n\nScore: 0.5\n\nmissed: date"


def test_the_result_object_of_the_users_metric_is_not_emptied():
    result = dspy.Prediction(score=0.5, feedback="F.", objective_scores={"format": 1.0})
    assert [score_case(returning(result)).value for _ in range(2)] == [0.5, 0.5]
    assert result.toDict() == {"score": 0.5, "feedback": "F.", "objective_scores": {"format": 1.0}}


def test_the_results_of_another_as_dspy_metric_can_be_passed_on():
    other = as_dspy_metric(lambda input, output: (0.5, {"feedback": "F.", "scores": {"format": 1.0}}))

    def lenient(example, pred, trace=None):
        return other(example, pred)

    score = score_case(lenient)
    assert (score.value, dict(score.scores), score.error) == (0.5, {"format": 1.0}, None)
    assert score.feedback.startswith("F.")


# --- how a DSPy metric is called ------------------------------------------------------------------


def two_parameters(example, pred):
    return float(pred.answer == example.answer)


def three_parameters(example, pred, trace):
    return float(pred.answer == example.answer and trace is None)


def five_parameters(gold, pred, trace, pred_name, pred_trace):
    assert (trace, pred_name, pred_trace) == (None, None, None)
    return dspy.Prediction(score=float(pred.answer == gold.answer), feedback="Of the whole program.")


def six_parameters(gold, pred, trace, pred_name, pred_trace, program_trace):
    return float(pred.answer == gold.answer and program_trace is None)


def any_parameters(*args, **kwargs):
    example, pred = args
    return float(pred.answer == example.answer)


def with_an_option(example, pred, trace=None, ignore_case=False):
    change = str.lower if ignore_case else str
    return float(change(pred.answer) == change(example.answer))


async def async_parameters(example, pred, trace=None):
    await asyncio.sleep(0)
    return float(pred.answer == example.answer)


class AsyncObject:
    async def __call__(self, example, pred, trace=None):
        return float(pred.answer == example.answer)


class AsObject:
    def __call__(self, example, pred, trace=None):
        return float(pred.answer == example.answer)

    def method(self, example, pred, trace=None):
        return float(pred.answer == example.answer)


class AsModule(dspy.Module):
    def forward(self, example, pred, trace=None):
        return dspy.Prediction(score=float(pred.answer == example.answer))


SHAPES = [
    two_parameters,
    three_parameters,
    five_parameters,
    six_parameters,
    any_parameters,
    with_an_option,
    functools.partial(with_an_option, ignore_case=True),
    AsObject(),
    AsObject().method,
    AsModule(),
    lambda example, pred, trace=None: pred.answer == example.answer,
    async_parameters,
    AsyncObject(),
    lambda example, pred, trace=None: async_parameters(example, pred, trace),
]
each_shape = pytest.mark.parametrize(
    "metric", SHAPES, ids=lambda metric: getattr(metric, "__name__", type(metric).__name__)
)


@each_shape
def test_each_way_to_write_a_dspy_metric_is_called_with_example_and_prediction(metric):
    assert [score_case(metric, answer).value for answer in ("4", "5")] == [1.0, 0.0]


@each_shape
def test_each_way_to_write_a_dspy_metric_works_in_evaluate(metric):
    with dspy.context(lm=answering(lambda question: "A" if question in ("q0", "q3") else "B")):
        result = dspy.Evaluate(
            devset=examples(8), metric=as_dspy_metric(from_dspy_metric(metric)), num_threads=4
        )(dspy.Predict("question -> answer"))
    assert result.score == 25.0


def demos_of(metric, count=3, **options):
    with dspy.context(lm=answering(lambda question: "A" if question == "q0" else "a thing")):
        compiled = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0, **options).compile(
            dspy.Predict("question -> answer"), trainset=examples(count)
        )
    return sorted(demo["question"] for demo in compiled.demos)


def match(example, pred, trace=None):
    same = pred.answer == example.answer
    return same if trace is not None else (same or pred.answer.startswith("a"))


def test_a_metric_that_is_stricter_with_a_trace_makes_the_demos_that_it_makes_without_us():
    ours = as_dspy_metric(from_dspy_metric(match))
    assert demos_of(ours) == demos_of(match) == ["q0"]
    example, pred = examples(1)[0], dspy.Prediction(answer="a thing")
    assert (bool(ours(example, pred)), bool(ours(example, pred, []))) == (True, False)


def test_the_trace_that_a_metric_gets_holds_the_steps_of_the_program_and_is_a_copy():
    seen = []

    def metric(example, pred, trace=None):
        [(predictor, inputs, outputs)] = trace
        seen.append((type(predictor), dict(inputs), outputs.answer))
        inputs["question"] = outputs.answer = "changed"
        trace.clear()
        return True

    ours = as_dspy_metric(from_dspy_metric(metric))
    assert demos_of(ours, 1) == ["q0"]  # DSPy makes the demos of the trace
    assert seen == [(dspy.Predict, {"question": "q0"}, "A")]
    predictor, step = dspy.Predict("question -> answer"), dspy.Prediction(answer="A")
    trace = [(predictor, {"question": "q0"}, step)]
    assert bool(ours(examples(1)[0], step, trace))
    assert (len(trace), step.answer) == (1, "A")


def test_semantic_f1_decides_about_demos_by_its_own_threshold():
    metric = SemanticF1(threshold=0.5)
    example = dspy.Example(question="q", response="Paris").with_inputs("question")
    ours = as_dspy_metric(from_dspy_metric(metric))
    for share, success in ((0.6, True), (0.4, False)):
        judge = scripted_lm(lambda messages, share=share: chat(reasoning="R.", precision=share, recall=share))
        with dspy.context(lm=judge):
            pred = dspy.Prediction(response="Paris")
            assert float(ours(example, pred)) == pytest.approx(share)
            assert bool(ours(example, pred, [])) is success


@pytest.mark.parametrize(
    "options", [{"score_range": (0, 10)}, {"success_threshold": 8}, {"success_threshold": -1}]
)
@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_a_verdict_with_a_trace_decides_on_any_scale(options, kind):
    def graded(example, pred, trace=None):
        points = 10 if pred.answer == example.answer else -5 if options.get("success_threshold") == -1 else 2
        return points if trace is None else kind(points > 5)

    ours = as_dspy_metric(from_dspy_metric(graded), **options)
    assert demos_of(ours) == ["q0"]
    assert [bool(ours(examples(1)[0], dspy.Prediction(answer=answer))) for answer in "AB"] == [True, False]


@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_a_judgement_without_a_trace_does_not_answer_for_one_with_a_trace_nor_the_other_way_round(memo):
    ours = as_dspy_metric(from_dspy_metric(match), memo=memo)
    example, pred = examples(1)[0], dspy.Prediction(answer="a thing")
    for _ in range(2):
        assert [float(ours(example, pred, trace)) for trace in (None, [])] == [1.0, 0.0]
        text = ours(example, pred, [], "self", []).feedback  # dspy.GEPA asks for the text of the score
        assert text.endswith("Score: 1")


def deaf(example, pred, trace=None):
    return 0.5


def storing(example, pred, trace=None):
    trace = None  # noqa: F841
    return 0.5


def two(example, pred):
    return 0.5


def by_keyword(example, pred, *, trace=None):
    return 0.5 if trace is None else 1 / 0


@pytest.mark.parametrize("metric", [deaf, storing, two, by_keyword], ids=lambda metric: metric.__name__)
def test_where_the_trace_is_not_read_a_judgement_answers_for_both(metric):
    ours = as_dspy_metric(from_dspy_metric(metric), memo="content")
    example = examples(1)[0]
    for trace in (None, [], None, []):
        assert ours(example, dspy.Prediction(answer="A"), trace) == 0.5
    assert ours.metric.calls == 1


class OfATrace:
    def __call__(self, example, pred, trace=None):
        return [0.5, 1.0][trace is not None]


class ModuleOfATrace(dspy.Module):
    def forward(self, example, pred, trace=None):
        return [0.5, 1.0][trace is not None]


def logged(metric):
    @functools.wraps(metric)
    def wrapper(*given, **named):
        return metric(*given, **named)

    return wrapper


def in_a_lambda(example, pred, trace=None):
    return (lambda: 0.5 if trace is None else 1.0)()


@pytest.mark.parametrize(
    "metric",
    [
        OfATrace(),
        OfATrace().__call__,
        ModuleOfATrace(),
        logged(OfATrace().__call__),
        in_a_lambda,
        functools.partial(lambda one, example, pred, trace=None: one if trace else 0.5, 1.0),
        lambda *given: 0.5 if given[2:] in ((), (None,)) else 1.0,
        lambda gold, pred, trace, name, more: 0.5 if trace is None else 1.0,
    ],
)
def test_each_way_to_read_a_trace_gets_it(metric):
    ours = as_dspy_metric(from_dspy_metric(metric), memo="content")
    example, pred = examples(1)[0], dspy.Prediction(answer="A")
    trace = [(dspy.Predict("question -> answer"), {"question": "q0"}, pred)]
    assert [float(ours(example, pred, given)) for given in (None, trace, None)] == [0.5, 1.0, 0.5]


def test_a_metric_that_fails_with_a_trace_alone_stops_the_run_by_name():
    def metric(example, pred, trace=None):
        return 1.0 if trace is None else trace[0].inputs

    ours = as_dspy_metric(from_dspy_metric(metric))
    with pytest.raises(MetricBroken, match="'tuple' object has no attribute 'inputs'"):
        demos_of(ours, 8)


def test_a_trace_reaches_a_metric_in_a_process_of_its_own():
    ours = as_dspy_metric(from_dspy_metric(match), isolation="process")
    try:
        assert demos_of(ours) == ["q0"]
        assert len(ours.failures) == 0
    finally:
        ours.metric.close()


@pytest.mark.parametrize("options", [{}, {"isolation": "process"}], ids=["here", "process"])
@pytest.mark.parametrize("trace", [True, 1, (), [1], [()]], ids=repr)
def test_a_trace_that_is_no_list_of_steps_reaches_the_metric_as_it_is(trace, options):
    def metric(example, pred, trace=None):
        return dspy.Prediction(score=1.0, feedback=f"{trace!r}")

    ours = as_dspy_metric(from_dspy_metric(metric), **options)
    try:
        assert ours(examples(1)[0], dspy.Prediction(answer="A"), trace).judgement.feedback == repr(trace)
    finally:
        ours.metric.close()


@pytest.mark.parametrize("options", [{}, {"timeout": None}, {"isolation": "process"}], ids=str)
def test_an_async_metric_decides_about_demos(options):
    async def strict(example, pred, trace=None):
        await asyncio.sleep(0)
        score = 0.9 if example.answer == pred.answer else 0.3
        return score if trace is None else score > 0.8

    ours = as_dspy_metric(from_dspy_metric(strict), **options)
    try:
        assert demos_of(ours) == ["q0"]
        assert len(ours.failures) == 0
        assert ours(examples(1)[0], dspy.Prediction(answer="A")).score == 0.9
    finally:
        ours.metric.close()


def test_an_async_metric_may_ask_another_one():
    async def inner(example, pred, trace=None):
        await asyncio.sleep(0)
        return float(pred.answer == example.answer)

    asked = as_dspy_metric(from_dspy_metric(inner), timeout=20)

    async def outer(example, pred, trace=None):
        return asked(example, pred)

    ours = as_dspy_metric(from_dspy_metric(outer), timeout=10)
    assert ours(examples(1)[0], dspy.Prediction(answer="A")).score == 1.0
    assert len(ours.failures) == 0


def test_an_async_metric_that_reads_what_is_not_there_is_told_the_fields():
    async def metric(example, pred, trace=None):
        return float(pred.answr == "A")

    failure = score_case(metric)
    assert "the prediction ['answer']" in str(failure.error)


def test_no_key_of_the_programs_model_goes_along_with_a_trace():
    def metric(example, pred, trace=None):
        return dspy.Prediction(score=trace[0][0].lm is None, feedback=trace[0][1]["question"])

    predictor, pred = dspy.Predict("question -> answer"), dspy.Prediction(answer="A")
    predictor.set_lm(dspy.LM("openai/some-model", api_key="a-key-of-some-length"))
    ours = as_dspy_metric(from_dspy_metric(metric), isolation="process")
    try:
        result = ours(examples(1)[0], pred, [(predictor, {"question": "q0"}, pred)])
        assert (result.score, result.judgement.feedback) == (1.0, "q0")
        assert predictor.lm is not None
    finally:
        ours.metric.close()


def test_success_threshold_decides_about_demos_where_a_number_comes_with_the_trace():
    def graded(example, pred, trace=None):
        return {"q0": 0.9, "q1": 0.7, "q2": 0.8}[example.question]

    metric = as_dspy_metric(from_dspy_metric(graded), success_threshold=0.75)
    with dspy.context(lm=answering(lambda question: "A")):
        result = dspy.Evaluate(devset=examples(3), metric=metric, num_threads=1)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 80.0
    assert demos_of(metric) == ["q0", "q2"]


def test_example_and_prediction_are_what_a_dspy_metric_knows():
    seen = []

    def metric(example, pred, trace=None):
        seen.append((example, pred))
        return 1.0

    score_case(metric, {"answer": "5", "reasoning": "r"}, {"answer": "4", "items": "a label of that name"})
    [(example, pred)] = seen
    assert isinstance(example, dspy.Example)
    assert isinstance(pred, dspy.Prediction)
    assert example.inputs().toDict() == QUESTION
    assert example.labels().toDict() == {"answer": "4", "items": "a label of that name"}
    assert pred.toDict() == {"answer": "5", "reasoning": "r"}


def test_a_dspy_metric_cannot_change_what_it_judges():
    def metric(example, pred, trace=None):
        pred.answer = example.answer = "changed"
        pred.notes.append("changed")
        return 1.0

    example, pred = examples(1)[0], dspy.Prediction(answer="A", notes=[])
    result = as_dspy_metric(from_dspy_metric(metric))(example, pred)
    assert result.error is None
    assert (example.answer, pred.toDict()) == ("A", {"answer": "A", "notes": []})


# --- bare, on outputs of any shape ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "expected", "options", "value"),
    [
        ("4", {"answer": "4"}, {}, 1.0),
        ("5", {"answer": "4"}, {}, 0.0),
        ({"answer": "4"}, {"answer": "4"}, {}, 1.0),
        ({"answer": "4", "note": "n"}, {"answer": "4", "source": "s"}, {}, 1.0),
        (dspy.Prediction(answer="4"), {"answer": "4", "source": "s"}, {}, 1.0),
        ("4", {"answer": "4", "source": "s"}, {"output": "answer"}, 1.0),
        ("5", {"answer": "4", "source": "s"}, {"output": "answer"}, 0.0),
        (4, {"answer": 4}, {}, 1.0),
        (["4"], {"answer": ["4"]}, {}, 1.0),
    ],
)
def test_an_output_stands_for_the_field_that_is_expected(output, expected, options, value):
    score = score_case(two_parameters, output, expected, **options)
    assert (score.value, score.error) == (value, None)


def test_output_names_the_field_of_a_metric_that_expects_nothing():
    terse = from_dspy_metric(lambda example, pred, trace=None: len(pred.answer) < 3, output="answer")
    assert [Metric(terse).score_case(QUESTION, output).value for output in ("4", "four")] == [1.0, 0.0]


@pytest.mark.parametrize("expected", [{"answer": "4", "source": "s"}, None])
def test_a_single_output_where_the_field_is_not_known_is_a_failure_that_says_the_mend(expected):
    score = score_case(two_parameters, "4", expected)
    assert 'from_dspy_metric(metric, output="answer")' in str(score.error)
    assert "got '4' (str)" in str(score.error)


def test_calling_the_score_gives_the_pair():
    score = from_dspy_metric(
        returning(dspy.Prediction(score=0.5, feedback="F.", objective_scores={"format": 1.0}))
    )
    assert score(QUESTION, "5", {"answer": "4"}) == (0.5, {"feedback": "F.", "scores": {"format": 1.0}})


def test_the_score_keeps_the_metrics_name():
    assert Metric(from_dspy_metric(two_parameters)).name == "two_parameters"
    assert (
        Metric(from_dspy_metric(functools.partial(with_an_option, ignore_case=True))).name == "with_an_option"
    )
    assert as_dspy_metric(from_dspy_metric(SemanticF1())).__name__ == "SemanticF1_metric"


def test_a_reward_is_made_of_a_dspy_metric_that_expects_nothing():
    reward = as_dspy_reward(from_dspy_metric(lambda example, pred, trace=None: len(pred.answer) < 3))
    assert reward({"question": "q"}, dspy.Prediction(answer="4"))
    assert not reward({"question": "q"}, dspy.Prediction(answer="four"))


# --- DSPy's ready-made metrics --------------------------------------------------------------------


def test_answer_exact_match_works_bare_and_with_its_option():
    scores = [score_case(answer_exact_match, output).value for output in ("4", "The 4!", "5")]
    assert scores == [1.0, 1.0, 0.0]
    half = functools.partial(answer_exact_match, frac=0.5)
    assert score_case(half, "four or five", {"answer": ["four five six", "five"]}).value == 1.0
    assert score_case(answer_exact_match, "four or five", {"answer": ["four five six", "five"]}).value == 0.0


def test_answer_passage_match_sees_the_context_beside_the_answer():
    score = from_dspy_metric(answer_passage_match)
    found = Metric(score).score_case(
        QUESTION, {"answer": "?", "context": ["2 + 2 is four"]}, {"answer": "four"}
    )
    missed = Metric(score).score_case(QUESTION, {"answer": "four", "context": ["no"]}, {"answer": "four"})
    assert [(found.value, found.error), (missed.value, missed.error)] == [(1.0, None), (0.0, None)]


class Retrieving(dspy.Module):
    """A program whose prediction has a context beside the answer."""

    def __init__(self, field="answer"):
        super().__init__()
        self.field = field
        self.answer = dspy.ChainOfThought(f"question -> {field}")

    def forward(self, question):
        context = [f"In {question} it is {'Paris' if question != 'q1' else 'nowhere'}."]
        return dspy.Prediction({"context": context, self.field: self.answer(question=question)[self.field]})


def retrieving_lm(field="answer"):
    def answer(messages):
        text = messages[0]["content"]
        question = field_of(messages, "question")
        if "groundedness" in text:
            grounded = 1.0 if "Paris" in field_of(messages, "retrieved_context") else 0.0
            return chat(reasoning="r", system_response_claims="c", discussion="d", groundedness=grounded)
        if "completeness" in text:
            return chat(
                reasoning="r",
                ground_truth_key_ideas="g",
                system_response_key_ideas="s",
                discussion="d",
                completeness=0.5,
            )
        if "recall" in text:
            same = field_of(messages, "ground_truth") == field_of(messages, "system_response")
            parts = {"ground_truth_key_ideas": "g", "system_response_key_ideas": "s", "discussion": "d"}
            return chat(
                reasoning="r",
                **(parts if "key_ideas" in text else {}),
                recall=1.0 if same else 0.5,
                precision=1.0 if same else 0.25,
            )
        return chat(reasoning="r", **{field: "Paris" if question in ("q0", "q1") else "Rome"})

    return scripted_lm(answer)


def evaluated(ready_made, field, **options):
    metric = as_dspy_metric(from_dspy_metric(ready_made), **options)
    devset = [
        dspy.Example({"question": f"q{number}", field: "Paris"}).with_inputs("question")
        for number in range(4)
    ]
    lm = retrieving_lm(field)
    with dspy.context(lm=lm):
        result = dspy.Evaluate(devset=devset, metric=metric, num_threads=2)(Retrieving(field))
    assert list(metric.metric.failures) == []
    return [float(score) for _, _, score in result.results], lm


def test_evaluate_gives_ready_made_metrics_the_whole_prediction():
    assert evaluated(answer_exact_match, "answer")[0] == [1.0, 1.0, 0.0, 0.0]
    assert evaluated(answer_passage_match, "answer")[0] == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("decompositional", [False, True])
def test_semantic_f1_in_evaluate_asks_its_model(decompositional):
    third = 2 * 0.5 * 0.25 / 0.75
    assert evaluated(SemanticF1(decompositional=decompositional), "response")[0] == [1.0, 1.0, third, third]


def test_complete_and_grounded_in_evaluate_asks_its_model():
    two_thirds = 2 * 0.5 * 1.0 / 1.5
    assert evaluated(CompleteAndGrounded(), "response")[0] == [two_thirds, 0.0, two_thirds, two_thirds]


def test_the_model_of_a_ready_made_metric_can_be_another_one():
    judge = retrieving_lm("response")
    scores, lm = evaluated(SemanticF1(), "response", metric_lm=judge)
    assert scores[:2] == [1.0, 1.0]
    assert (len(judge.prompts), len(lm.prompts)) == (4, 4)


def test_semantic_f1_works_bare():
    with dspy.context(lm=retrieving_lm()):
        score = score_case(SemanticF1(), "Paris", {"response": "Paris"})
    assert (score.value, score.error) == (1.0, None)
    assert "SemanticF1" in score.feedback


def test_the_demos_of_a_run_with_semantic_f1_are_the_programs_own():
    metric = as_dspy_metric(from_dspy_metric(SemanticF1()), success_threshold=0.66)
    trainset = [dspy.Example(question=f"q{n}", response="Paris").with_inputs("question") for n in range(4)]
    with dspy.context(lm=retrieving_lm("response")):
        compiled = dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0).compile(
            Retrieving("response"), trainset=trainset
        )
    [predictor] = compiled.predictors()
    assert [demo["question"] for demo in predictor.demos] == ["q0", "q1"]
    assert all("recall" not in demo for demo in predictor.demos)


# --- dspy.GEPA ------------------------------------------------------------------------------------


def test_gepa_reads_number_text_and_named_scores_and_the_metric_sees_the_whole_prediction():
    fields = []

    def metric(gold, pred, trace, pred_name, pred_trace):
        fields.append(sorted(pred.keys()))
        right = float(pred.answer == gold.answer and "Paris" in pred.context[0])
        return dspy.Prediction(
            score=right,
            feedback=f"TEXT: wanted {gold.answer}.",
            objective_scores={"right": right, "terse": 0.5},
        )

    reflection = reflecting()
    made = as_dspy_metric(from_dspy_metric(metric))
    data = examples(4, lambda number: "Paris")
    with dspy.context(lm=retrieving_lm()):
        best = dspy.GEPA(
            metric=made, max_metric_calls=12, reflection_lm=reflection, num_threads=2, track_stats=True
        ).compile(Retrieving(), trainset=data, valset=data)
    details = best.detailed_results
    assert details.val_aggregate_scores[0] == 0.25
    assert details.val_aggregate_subscores[0] == {"right": 0.25, "terse": 0.5}
    assert all(names == ["answer", "context"] for names in fields)
    assert len(fields) == details.total_metric_calls == made.metric.calls  # none for the text
    assert "TEXT: wanted Paris." in reflection.prompts[0]
    assert "Named scores: right" in reflection.prompts[0]


def test_gepa_runs_with_a_float_metric_and_shows_its_reflection_model_what_was_expected():
    reflection = reflecting()
    with dspy.context(lm=retrieving_lm()):
        dspy.GEPA(
            metric=as_dspy_metric(from_dspy_metric(answer_exact_match)),
            max_metric_calls=10,
            reflection_lm=reflection,
            num_threads=1,
        ).compile(Retrieving(), trainset=examples(4, lambda n: "Oslo"), valset=examples(4, lambda n: "Oslo"))
    assert "The metric 'answer_exact_match' gave False. Expected {'answer': 'Oslo'}" in reflection.prompts[0]


@pytest.mark.parametrize("threshold", [None, 0.0, -1.0])
def test_a_failure_of_one_of_our_metrics_behind_a_users_wrapper_is_no_judgement(threshold):
    def fails(input, output, expected=None):
        raise ConnectionError("no route")

    ours = as_dspy_metric(fails)

    def wrapper(example, pred, trace=None):
        return ours(example, pred, trace)

    metric = as_dspy_metric(from_dspy_metric(wrapper), success_threshold=threshold)
    result = metric(examples(1)[0], dspy.Prediction(answer="A"))
    assert not result
    assert "ConnectionError: no route" in result.feedback
    assert len(metric.failures) == 1


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [None, 5, "answer_exact_match", dspy.Prediction(score=1.0)])
def test_what_is_not_callable_is_refused(metric):
    with pytest.raises(DefinitionError, match="a DSPy metric is a function"):
        from_dspy_metric(metric)


def own_score(input, output, expected=None):
    return 1.0, {"feedback": "F."}


@pytest.mark.parametrize(
    "score",
    [
        own_score,
        lambda input, output: (1.0, {"feedback": "F."}),
        Metric(own_score),
        from_dspy_metric(two_parameters),
    ],
    ids=["function", "lambda", "metric", "converted"],
)
def test_a_score_passed_by_mistake_is_refused(score):
    with pytest.raises(DefinitionError, match=r"is a score.* already; pass it as it is"):
        from_dspy_metric(score)


@pytest.mark.parametrize("metric", [lambda: 1.0, lambda example: 1.0, lambda example, pred, *, must: 1.0])
def test_what_cannot_be_called_as_a_dspy_metric_is_refused(metric):
    with pytest.raises(DefinitionError, match=r"cannot be called as metric\(example, pred, trace\)"):
        from_dspy_metric(metric)


@pytest.mark.parametrize(
    "metric", [two_parameters, answer_exact_match, five_parameters], ids=lambda it: it.__name__
)
def test_a_dspy_metric_where_a_score_belongs_is_refused_with_the_mend(metric):
    with pytest.raises(DefinitionError, match=r"pass from_dspy_metric\(metric\)"):
        as_dspy_metric(metric)


@pytest.mark.parametrize("returned", [None, "good", [0.5], (0.5, {"feedback": "F."}), float("nan"), object()])
def test_a_result_that_is_no_score_is_a_failure_that_shows_it(returned):
    score = score_case(returning(returned))
    assert score.error is not None
    assert "metric 'metric' returned" in str(score.error)


@pytest.mark.parametrize("returned", [dspy.Prediction(feedback="F."), {"value": 1.0}, dspy.Prediction(), {}])
def test_a_result_without_a_score_is_a_failure_that_shows_it_and_says_so(returned):
    score = score_case(returning(returned))
    assert type(score.error).__name__ == "MetricReturnError"
    assert "KeyError" not in str(score.error)
    assert all(key in str(score.error) for key in dict(returned))
    assert "score" in str(score.error)


def typo(example, pred, trace=None):
    return float(pred.answer == example.anwser)


@pytest.mark.parametrize("metric", [typo, functools.partial(typo, trace=None)], ids=["function", "partial"])
def test_a_metric_that_raises_is_a_failure_that_shows_the_users_own_line(metric):
    score = score_case(metric)
    assert "AttributeError: 'Example' object has no attribute 'anwser'" in str(score.error)
    assert "test_from_dspy_metric.py" in str(score.error)
    assert "return float(pred.answer == example.anwser)" in str(score.error)


def test_a_metric_that_always_raises_stops_the_run_by_name():
    with dspy.context(lm=answering(lambda question: "A")), pytest.raises(MetricBroken, match="anwser"):
        dspy.Evaluate(devset=examples(40), metric=as_dspy_metric(from_dspy_metric(typo)), num_threads=4)(
            dspy.Predict("question -> answer")
        )


@pytest.mark.parametrize("more", [{}, {"note": "another label"}])
def test_a_program_whose_answers_the_metric_cannot_read_is_not_stopped(more):
    def parsing(example, pred, trace=None):
        return float(int(pred.answer) == int(example.answer))

    metric = as_dspy_metric(from_dspy_metric(parsing))
    with dspy.context(lm=answering(lambda question: "four")):
        result = dspy.Evaluate(devset=examples(20, lambda number: "4", **more), metric=metric, num_threads=1)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 0.0
    assert len(metric.metric.failures) == 20


# --- back again, memory, copies -------------------------------------------------------------------


def test_of_a_metric_made_by_as_dspy_metric_the_metric_inside_comes_back():
    metric = as_dspy_metric(own_score, success_threshold=0.5)
    assert from_dspy_metric(metric) is metric.metric
    assert as_dspy_metric(from_dspy_metric(metric)).metric is metric.metric
    assert from_dspy_metric(as_dspy_reward(own_score)).score is own_score


def penalised(metric):
    @functools.wraps(metric)
    def wrapper(example, pred, trace=None):
        return float(metric(example, pred)) / 2

    return wrapper


class Penalised:
    def __init__(self, metric):
        self.metric = metric

    def __call__(self, example, pred, trace=None):
        return self.metric.score_case({}, pred.answer).value / 2


@pytest.mark.parametrize(
    "metric", [penalised(as_dspy_metric(own_score)), Penalised(Metric(own_score))], ids=["wraps", "attribute"]
)
def test_a_metric_around_one_of_ours_is_not_taken_for_it(metric):
    example = dspy.Example(**QUESTION, answer="4").with_inputs("question")
    assert metric(example, dspy.Prediction(answer="4")) == 0.5
    assert score_case(metric, "4").value == 0.5


def test_a_rollout_is_judged_once():
    calls = []

    def metric(example, pred, trace=None):
        calls.append(pred.answer)
        return 0.5

    made = as_dspy_metric(from_dspy_metric(metric))
    example, pred = examples(1)[0], dspy.Prediction(answer="A")
    first = made(example, pred)
    assert made(example, pred, [], "self", []).feedback == first.feedback
    assert calls == ["A"]


def test_memo_content_answers_for_the_same_prediction_from_another_candidate():
    calls = []

    def metric(example, pred, trace=None):
        calls.append(pred.answer)
        return 0.5

    made = as_dspy_metric(from_dspy_metric(metric), memo="content")
    example = examples(1)[0]
    for _ in range(3):
        assert made(example, dspy.Prediction(answer="A")) == 0.5
    assert calls == ["A"]


def test_the_fingerprint_tells_two_dspy_metrics_apart():
    one, other = from_dspy_metric(two_parameters), from_dspy_metric(with_an_option)
    assert fingerprint(one) == fingerprint(from_dspy_metric(two_parameters))
    assert fingerprint(one) != fingerprint(other)


@each_shape
def test_cloudpickle_carries_the_score_and_the_metric_made_of_it(metric):
    score = Metric(cloudpickle.loads(cloudpickle.dumps(from_dspy_metric(metric))))
    assert [score.score_case(QUESTION, output, {"answer": "4"}).value for output in ("4", "5")] == [1.0, 0.0]
    made = cloudpickle.loads(cloudpickle.dumps(as_dspy_metric(from_dspy_metric(metric))))
    example = dspy.Example(**QUESTION, answer="4").with_inputs("question")
    assert [float(made(example, dspy.Prediction(answer=answer, more=1))) for answer in ("4", "5")] == [
        1.0,
        0.0,
    ]


def test_cloudpickle_carries_a_ready_made_metric_with_predictors():
    made = cloudpickle.loads(cloudpickle.dumps(as_dspy_metric(from_dspy_metric(SemanticF1()))))
    example = dspy.Example(question="q", response="Paris").with_inputs("question")
    with dspy.context(lm=retrieving_lm()):
        assert made(example, dspy.Prediction(response="Paris", context=[])) == 1.0


def test_a_metric_of_ours_with_fields_of_its_own_keeps_them():
    def score(input, output, expected=None):
        return float(output == expected["gold"]), {"feedback": "OK"}

    ours = as_dspy_metric(score, output="final", expected=lambda example: {"gold": example.answer})
    again = as_dspy_metric(from_dspy_metric(ours))
    example = dspy.Example(question="q", answer="A").with_inputs("question")
    assert float(again(example, dspy.Prediction(draft="B", final="A"))) == 1.0
    with pytest.raises(DefinitionError, match="says itself which field"):
        from_dspy_metric(ours, output="final")
    with pytest.raises(DefinitionError, match="already; pass it to DSPy as it is"):
        as_dspy_metric(ours)


def test_a_plain_metric_of_ours_is_taken_for_its_metric():
    ours = as_dspy_metric(lambda input, output: (1.0, {"feedback": "OK"}))
    assert as_dspy_metric(ours).metric is ours.metric


def test_without_an_expected_value_none_is_told():
    score = from_dspy_metric(lambda example, pred, trace=None: 0.5, output="answer")
    assert score({"question": "?"}, "A")[1]["feedback"].endswith("gave 0.5. Got 'A'.")


def test_a_field_that_is_not_there_is_told_with_those_that_are():
    def misspelt(example, pred, trace=None):
        return example.anwser == pred.answer

    for metric, name in ((misspelt, "anwser"), (SemanticF1(), "response")):
        error = str(score_case(metric).error)
        assert f"'Example' object has no attribute '{name}'; the example has ['question', 'answer']" in error
        assert "the prediction ['answer']" in error
    other = score_case(lambda example, pred, trace=None: pred.answer.lowr())
    assert "the example has" not in str(other.error)
