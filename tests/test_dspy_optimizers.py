"""One metric object in DSPy's optimisers that make demos of approved traces: the bootstrap family."""

import logging
import re

import dspy
import numpy as np
import pytest

from skynet_adapters import as_dspy_metric
from tests.scripted import ScriptedEngine, chat, field_of

# Questions say what the metric makes of them: "value 0.05" scores 0.05; these have no judgement.
RAISES, UNPARSED = "value that raises", "value without an answer"
VALUES = (0.05, -0.3, 0.5, 0.999, 1.0)

# What the optimisers ask their models for, besides the program's own answers.
PROPOSALS = (
    "observations",
    "summary",
    "program_description",
    "module_description",
    "proposed_instruction",
    "natural_language_rules",
)


class AsyncEngine:
    """The same engine for `acall`."""

    def __init__(self, engine):
        self.engine = engine

    async def complete(self, request):
        return self.engine.complete(request)


def model(name, answer=lambda question: "A"):
    """A model that answers programs, optimisers and judges; `asked` also sees what its copies are asked."""
    asked = []

    def reply(messages):
        system = messages[0]["content"]
        asked.append("\n\n".join(message["content"] for message in messages))
        wanted = [field for field in PROPOSALS if f"[[ ## {field} ## ]]" in system]
        if wanted:
            return chat(reasoning="R.", **dict.fromkeys(wanted, "Some text."))
        if "`verdict`" in system:
            return chat(verdict="good")
        question = field_of(messages, "question")
        return "no field at all" if question == UNPARSED else chat(answer=answer(question))

    engine = ScriptedEngine(reply)
    lm = dspy.LM(f"scripted/{name}", engine=engine, async_engine=AsyncEngine(engine), cache=False)
    lm.asked = asked
    return lm


def verdicts(lm):
    return [prompt for prompt in lm.asked if "`verdict`" in prompt]


def answers(lm):
    return [prompt for prompt in lm.asked if "`answer`" in prompt and "`verdict`" not in prompt]


class Answer(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.answer(question=question)


def asking(*questions):
    return [dspy.Example(question=question, answer="A").with_inputs("question") for question in questions]


def data():
    return asking(*[f"value {value}" for value in VALUES], RAISES, UNPARSED)


def graded(input, output, expected=None):
    """Gives each case the number that its question names."""
    if input["question"] == RAISES:
        raise ValueError("boom")
    return float(input["question"].split()[1]), {"feedback": "Graded."}


# --- the family ------------------------------------------------------------------------------------
# Each runs one optimiser with room for every trace, and gives the demos that it made of traces.


def made_of_traces(*programs):
    return [demo for program in programs for demo in program.predictors()[0].demos if demo.get("augmented")]


def few_shot(metric, trainset, program, **options):
    optimizer = dspy.BootstrapFewShot(
        metric=metric, max_bootstrapped_demos=len(trainset), max_labeled_demos=0, **options
    )
    return made_of_traces(optimizer.compile(program, trainset=trainset))


def random_search(metric, trainset, program, **options):
    best = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric,
        max_bootstrapped_demos=len(trainset),
        max_labeled_demos=0,
        num_candidate_programs=2,
        num_threads=2,
        **options,
    ).compile(program, trainset=trainset)
    return made_of_traces(*[candidate["program"] for candidate in best.candidate_programs])


def optuna(metric, trainset, program, **options):
    optimizer = dspy.teleprompt.BootstrapFewShotWithOptuna(
        metric=metric,
        max_labeled_demos=1,  # with no demo at all it fails
        num_candidate_programs=2,
        num_threads=2,
        **options,
    )
    best = optimizer.compile(program, max_demos=len(trainset), trainset=trainset)
    assert len(best.predictors()[0].demos) == 1
    return made_of_traces(optimizer.compiled_teleprompter)


def mipro(metric, trainset, program, **options):
    best = dspy.MIPROv2(
        metric=metric,
        auto=None,
        num_candidates=3,
        max_bootstrapped_demos=len(trainset),
        max_labeled_demos=0,
        num_threads=2,
        **options,
    ).compile(program, trainset=trainset, valset=asking("value 0.05"), num_trials=8, minibatch=False)
    return made_of_traces(*[candidate["program"] for candidate in best.candidate_programs])


def infer_rules(metric, trainset, program, **options):
    best = dspy.InferRules(
        metric=metric,
        num_candidates=1,
        num_rules=1,
        max_bootstrapped_demos=len(trainset),
        max_labeled_demos=0,
        num_threads=2,
        **options,
    ).compile(program, trainset=trainset, valset=asking("value 0.05"))
    return made_of_traces(best)


def letters(texts):
    """Vectors for texts, so that a real `dspy.Embedder` needs no model."""
    return np.array(
        [[text.count(letter) for letter in "abcdefgh0123456789"] for text in texts], dtype=np.float32
    )


def knn(metric, trainset, program, **options):
    compiled = dspy.KNNFewShot(
        k=len(trainset),
        trainset=trainset,
        vectorizer=dspy.Embedder(letters),
        metric=metric,
        max_bootstrapped_demos=len(trainset),
        max_labeled_demos=0,
        **options,
    ).compile(program)
    compiled(question="value 9")
    # It compiles anew for each call, so the demos are seen in the call's prompt alone.
    asked = re.findall(r"\[\[ ## question ## \]\]\n(value .*)", dspy.settings.lm.asked[-1])
    assert asked.pop() == "value 9"
    return [dspy.Example(question=question) for question in asked]


FAMILY = {
    "BootstrapFewShot": few_shot,
    "BootstrapFewShotWithRandomSearch": random_search,
    "BootstrapFewShotWithOptuna": optuna,
    "MIPROv2": mipro,
    "InferRules": infer_rules,
    "KNNFewShot": knn,
}
# BootstrapFewShotWithOptuna has no metric_threshold.
WITH_THRESHOLD = [name for name in FAMILY if name != "BootstrapFewShotWithOptuna"]


def demos_of(name, metric, trainset=None, **options):
    with dspy.context(lm=model("student")):
        made = FAMILY[name](metric, data() if trainset is None else trainset, Answer(), **options)
    return {demo["question"] for demo in made}


def questions(accepted):
    return {f"value {value}" for value in VALUES if accepted(value)}


# --- which traces become demos ---------------------------------------------------------------------


@pytest.mark.parametrize("success_threshold", [None, 0.0, 0.5], ids=repr)
@pytest.mark.parametrize("name", FAMILY)
def test_a_trace_becomes_a_demo_exactly_from_the_success_threshold_on(name, success_threshold):
    metric = as_dspy_metric(graded, success_threshold=success_threshold)
    bound = 1.0 if success_threshold is None else success_threshold
    assert demos_of(name, metric) == questions(lambda value: value >= bound)


@pytest.mark.parametrize("metric_threshold", [0.5, -1, -0.3, 1.0], ids=repr)
@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_trace_becomes_a_demo_exactly_from_the_optimisers_own_threshold_on(name, metric_threshold):
    metric = as_dspy_metric(graded)
    found = demos_of(name, metric, metric_threshold=metric_threshold)
    assert found == questions(lambda value: value >= metric_threshold)


@pytest.mark.parametrize("success_threshold", [0.0, 0.999], ids=repr)
@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_the_optimisers_own_threshold_is_the_one_that_counts_where_both_are_given(name, success_threshold):
    metric = as_dspy_metric(graded, success_threshold=success_threshold)
    assert demos_of(name, metric, metric_threshold=0.5) == questions(lambda value: value >= 0.5)


@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_threshold_of_zero_which_dspy_ignores_leaves_the_success_threshold(name):
    metric = as_dspy_metric(graded, success_threshold=0.5)
    assert demos_of(name, metric, metric_threshold=0.0) == questions(lambda value: value >= 0.5)


@pytest.mark.parametrize(
    ("name", "metric_threshold"),
    [(name, None) for name in FAMILY] + [(name, bound) for name in WITH_THRESHOLD for bound in (-1, 0.5)],
)
def test_an_answer_without_a_judgement_never_becomes_a_demo(name, metric_threshold):
    options = {} if metric_threshold is None else {"metric_threshold": metric_threshold}
    metric = as_dspy_metric(graded, failure_score=5.0, success_threshold=-1.0)
    assert float(metric(asking(RAISES)[0], dspy.Prediction(answer="A"))) == 5.0
    found = demos_of(name, metric, **options)
    assert found == questions(lambda value: value >= (-1.0 if metric_threshold is None else metric_threshold))
    assert {failure.kind for failure in metric.metric.failures} == {"MetricError"}


@pytest.mark.parametrize("metric_threshold", [None, -1], ids=repr)
@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_a_program_that_returns_nothing_after_its_calls_leaves_no_demo(name, metric_threshold):
    class Forgets(Answer):
        def forward(self, question):
            prediction = self.answer(question=question)
            return None if question == "value 1.0" else prediction

    metric = as_dspy_metric(graded, failure_score=5.0, success_threshold=0.9)
    with dspy.context(lm=model("student")):
        made = FAMILY[name](metric, data(), Forgets(), metric_threshold=metric_threshold)
    bound = 0.9 if metric_threshold is None else metric_threshold
    assert {demo["question"] for demo in made} == questions(lambda value: bound <= value < 1.0)


@pytest.mark.parametrize("name", FAMILY)
def test_an_optimiser_without_any_approved_trace_makes_no_demo(name):
    def low(input, output):
        return 0.05, {"feedback": "Poor."}

    assert demos_of(name, as_dspy_metric(low)) == set()


@pytest.mark.parametrize("name", WITH_THRESHOLD)
def test_thresholds_are_on_the_normalised_scale_of_a_score_range(name):
    def out_of_ten(input, output):
        return float(input["question"].split()[1]), {"feedback": "Graded."}

    trainset = asking("value 4.9", "value 5", "value 9.99", "value 10")
    metric = as_dspy_metric(out_of_ten, score_range=(0, 10), memo=None)
    assert demos_of(name, metric, trainset) == {"value 10"}
    found = demos_of(name, metric, trainset, metric_threshold=0.5)
    assert found == {"value 5", "value 9.99", "value 10"}


def exact(input, output, expected=None):
    right = output == expected["answer"]
    return float(right), {
        "feedback": "Right." if right else f"Expected {expected['answer']!r}, got {output!r}."
    }


def test_each_round_of_a_bootstrapping_is_judged_anew_and_the_approved_one_is_the_demo():
    attempts = iter(["B", "C", "A", "D"])
    metric = as_dspy_metric(exact)
    with dspy.context(lm=model("student", lambda question: next(attempts))):
        made = few_shot(metric, asking("value 1"), Answer(), max_rounds=4)
    assert [demo["answer"] for demo in made] == ["A"]
    assert metric.metric.calls == 3


def test_every_predictor_of_a_program_gets_demos_of_approved_traces_alone():
    class TwoSteps(dspy.Module):
        def __init__(self):
            super().__init__()
            self.draft = dspy.Predict("question -> answer")
            self.final = dspy.Predict("question, draft -> answer")

        def forward(self, question):
            return self.final(question=question, draft=self.draft(question=question).answer)

    optimizer = dspy.BootstrapFewShot(
        metric=as_dspy_metric(graded, success_threshold=0.5), max_labeled_demos=0
    )
    with dspy.context(lm=model("student")):
        program = optimizer.compile(TwoSteps(), trainset=data())
    for predictor in program.predictors():
        assert [demo["question"] for demo in predictor.demos] == ["value 0.5", "value 0.999", "value 1.0"]


# --- a judge inside the metric, while a teacher is configured ----------------------------------------


def judged(input, output, expected=None):
    verdict = dspy.Predict("text -> verdict")(text=f"{output} to {input['question']}").verdict
    return float(verdict == "good"), {"feedback": f"The judge says {verdict!r}."}


async def judged_async(input, output, expected=None):
    verdict = (await dspy.Predict("text -> verdict").acall(text=f"{output} to {input['question']}")).verdict
    return float(verdict == "good"), {"feedback": f"The judge says {verdict!r}."}


def judged_by_a_bare_call(input, output, expected=None):
    [said] = dspy.settings.lm(f"Give your `verdict` on {output} to {input['question']}.")
    return float("good" in said), {"feedback": said}


JUDGES = {
    "predict": (judged, {}),
    "predict-in-the-callers-thread": (judged, {"timeout": None}),
    "async": (judged_async, {}),
    "bare-call": (judged_by_a_bare_call, {}),
}


def warnings_of_a_change(caplog):
    return [record for record in caplog.records if "asks the model" in record.getMessage()]


class Traced(Answer):
    """Keeps the trace, a live list, into which its own calls were written."""

    traces: list = []  # noqa: RUF012 - shared by the copies that the optimisers make

    def forward(self, question):
        prediction = self.answer(question=question)
        self.traces.append(dspy.settings.trace)
        return prediction


@pytest.fixture
def traces(monkeypatch):
    monkeypatch.setattr(Traced, "traces", [])
    return Traced.traces


@pytest.mark.parametrize("own", [True, False], ids=["metric_lm", "no-metric_lm"])
@pytest.mark.parametrize("name", FAMILY)
def test_judge_calls_stay_out_of_trace_demos_and_usage_while_a_teacher_is_set(name, own, traces):
    student, teacher = model("student"), model("teacher", lambda question: "T")
    judge = model("judge")
    metric = as_dspy_metric(judged, metric_lm=judge if own else None)
    with dspy.context(lm=student), dspy.track_usage() as tracker:
        made = FAMILY[name](metric, asking("value 1", "value 2"), Traced(), teacher_settings={"lm": teacher})
    assert {demo["question"] for demo in made} == {"value 1", "value 2"}
    if name != "KNNFewShot":
        assert {demo["answer"] for demo in made} == {"T"}
        assert {key for demo in made for key in demo} == {"augmented", "question", "answer"}
    steps = [outputs for trace in traces for _, _, outputs in trace]
    assert steps
    assert not [outputs for outputs in steps if "verdict" in outputs]
    # Worker threads have usage trackers of their own, so this one has the bootstrapping alone.
    asked = {lm: len(tracker.usage_data[f"scripted/{lm}"]) for lm in ("student", "teacher", "judge")}
    assert asked["judge"] == 0
    assert asked["teacher"] <= len(teacher.asked) - len(verdicts(teacher))
    assert asked["teacher"] >= 2
    assert metric.metric.calls >= 2


@pytest.mark.parametrize("name", FAMILY)
def test_judge_calls_go_to_metric_lm_and_to_no_teacher(name, caplog):
    student, teacher, judge = model("student"), model("teacher"), model("judge")
    metric = as_dspy_metric(judged, metric_lm=judge)
    with dspy.context(lm=student), caplog.at_level(logging.WARNING, "skynet_adapters"):
        made = FAMILY[name](metric, asking("value 1", "value 2"), Answer(), teacher_settings={"lm": teacher})
    assert len(made) >= 2
    assert answers(teacher)
    assert verdicts(teacher) == verdicts(student) == []
    assert len(verdicts(judge)) == len(judge.asked) == metric.metric.calls
    assert warnings_of_a_change(caplog) == []


@pytest.mark.parametrize("name", FAMILY)
def test_without_metric_lm_the_teacher_judges_the_bootstrapping_and_one_warning_tells_of_the_change(
    name, caplog
):
    student, teacher = model("student"), model("teacher")
    metric = as_dspy_metric(judged)
    with dspy.context(lm=student), caplog.at_level(logging.WARNING, "skynet_adapters"):
        FAMILY[name](metric, asking("value 1", "value 2"), Answer(), teacher_settings={"lm": teacher})
    assert len(verdicts(teacher)) == len(answers(teacher)) >= 2
    assert len(verdicts(teacher)) + len(verdicts(student)) == metric.metric.calls
    evaluates = name not in ("BootstrapFewShot", "KNNFewShot")
    assert bool(verdicts(student)) == evaluates
    assert len(warnings_of_a_change(caplog)) == int(evaluates)
    if evaluates:
        told = warnings_of_a_change(caplog)[0].getMessage()
        assert "scripted/teacher" in told
        assert "scripted/student" in told
        assert "metric_lm=" in told


def test_the_change_of_the_judge_is_told_once_for_a_metric_however_often_it_changes(caplog):
    student, teacher = model("student"), model("teacher")
    metric = as_dspy_metric(judged)
    with dspy.context(lm=student), caplog.at_level(logging.WARNING, "skynet_adapters"):
        for _ in range(3):
            random_search(metric, asking("value 1", "value 2"), Answer(), teacher_settings={"lm": teacher})
    assert len(warnings_of_a_change(caplog)) == 1


@pytest.mark.parametrize("own", [True, False], ids=["metric_lm", "no-metric_lm"])
def test_judge_calls_inside_a_program_that_bootstraps_stay_out_of_its_history_and_usage(own):
    """`KNNFewShot` bootstraps, and so asks the metric, within each call of the compiled program."""
    student, teacher, judge = model("student"), model("teacher"), model("judge")
    metric = as_dspy_metric(judged, metric_lm=judge if own else None)
    compiled = dspy.KNNFewShot(
        k=2,
        trainset=asking("value 1", "value 2"),
        vectorizer=dspy.Embedder(letters),
        metric=metric,
        max_labeled_demos=0,
        teacher_settings={"lm": teacher},
    ).compile(Answer())
    with dspy.context(lm=student, track_usage=True):
        prediction = compiled(question="value 9")
    assert len(verdicts(judge if own else teacher)) == metric.metric.calls == 2
    usage = {name: counts["total_tokens"] for name, counts in prediction.get_lm_usage().items()}
    assert usage == {"scripted/student": 15, "scripted/teacher": 30}
    assert [entry["model"] for entry in compiled.history] == ["scripted/teacher"] * 2 + ["scripted/student"]


@pytest.mark.parametrize("own", [True, False], ids=["metric_lm", "no-metric_lm"])
@pytest.mark.parametrize("kind", JUDGES)
def test_every_way_of_asking_a_judge_is_kept_apart_while_a_teacher_is_set(kind, own, traces):
    score, options = JUDGES[kind]
    student, teacher, judge = model("student"), model("teacher"), model("judge")
    metric = as_dspy_metric(score, metric_lm=judge if own else None, **options)
    with dspy.context(lm=student), dspy.track_usage() as tracker:
        made = few_shot(metric, asking("value 1", "value 2"), Traced(), teacher_settings={"lm": teacher})
    assert len(made) == 2
    assert len(verdicts(judge if own else teacher)) == metric.metric.calls == 2
    assert len(student.asked) + len(teacher.asked) + len(judge.asked) == 4
    assert [len(trace) for trace in traces] == [1, 1]
    assert {name: len(calls) for name, calls in tracker.usage_data.items() if calls} == {
        "scripted/teacher": 2
    }


def test_a_judge_with_a_model_of_its_own_asks_that_one_and_no_change_is_told(caplog):
    judge = dspy.Predict("text -> verdict")
    judge.set_lm(model("judge"))

    def score(input, output, expected=None):
        return float(judge(text=output).verdict == "good"), {"feedback": "Judged."}

    student, teacher = model("student"), model("teacher")
    metric = as_dspy_metric(score)
    with dspy.context(lm=student), caplog.at_level(logging.WARNING, "skynet_adapters"):
        random_search(metric, asking("value 1", "value 2"), Answer(), teacher_settings={"lm": teacher})
    assert verdicts(student) == verdicts(teacher) == []
    assert len(verdicts(judge.lm)) == metric.metric.calls > 0
    assert warnings_of_a_change(caplog) == []


@pytest.mark.parametrize("own", [True, False], ids=["metric_lm", "no-metric_lm"])
def test_simba_judges_with_the_model_that_is_set_and_not_with_its_teacher(own, caplog):
    """It gives the teacher to the program, not to the settings."""
    student, teacher, judge = model("student"), model("teacher"), model("judge")
    metric = as_dspy_metric(judged, metric_lm=judge if own else None)
    with dspy.context(lm=student), caplog.at_level(logging.WARNING, "skynet_adapters"):
        optimizer = dspy.SIMBA(
            metric=metric,
            bsize=2,
            num_candidates=2,
            max_steps=1,
            num_threads=2,
            teacher_settings={"lm": teacher},
        )
        optimizer.compile(Answer(), trainset=asking("value 1", "value 2"))
    assert answers(teacher)
    assert verdicts(teacher) == []
    assert len(verdicts(judge if own else student)) == metric.metric.calls >= 4
    assert warnings_of_a_change(caplog) == []
