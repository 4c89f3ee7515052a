"""The metric in the real `dspy.GEPA`."""

import json
import logging
import random
import re
import threading

import dspy
import pytest
from gepa.strategies.proposal_sampling import IndependentSampling

from skynet_adapters import Metric, MetricBroken, as_dspy_metric
from tests.scripted import answering, chat, examples, field_of, reflecting, scripted_lm
from tests.waiting import pools_run_empty, with_few_paid

RULE = "Say A."


def score(input, output, expected=None):
    right = output == expected["answer"]
    return (1.0 if right else 0.25), {
        "feedback": "Right." if right else f"Expected {expected['answer']!r}, got {output!r}.",
        "scores": {"exact": float(right), "length": 0.5},
    }


@pytest.fixture(autouse=True)
def log():
    """What DSPy and this package log, as texts."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("dspy", "skynet_adapters")]
    for logger in loggers:
        logger.addHandler(handler)
    yield lines
    for logger in loggers:
        logger.removeHandler(handler)


def obedient(**options):
    """A model that answers A once its instruction says so, and B before."""
    return scripted_lm(
        lambda messages: chat(answer="A" if RULE in messages[0]["content"] else "B"), **options
    )


def compiled(
    metric,
    program=None,
    *,
    lm=None,
    reflection=None,
    trainset=None,
    valset=None,
    budget=20,
    frontier="instance",
    gepa_kwargs=None,
    **options,
):
    """Run dspy.GEPA; gives the program that came out."""
    compiler = dspy.GEPA(
        metric=metric,
        max_metric_calls=budget,
        reflection_lm=reflection or reflecting(lambda prompt, number: RULE),
        num_threads=8,
        track_stats=True,
        gepa_kwargs={"frontier_type": frontier, **(gepa_kwargs or {})},
        **options,
    )
    with dspy.context(lm=lm or obedient()):
        return compiler.compile(
            program or dspy.Predict("question -> answer"),
            trainset=trainset or examples(4),
            valset=valset or examples(4),
        )


def records_in(prompts):
    """Every reflective record that the prompts show."""
    records = []
    for prompt in prompts:
        text = prompt.rpartition("[[ ## examples_with_feedback ## ]]\n")[2].rpartition("\n\nRespond with")[0]
        records += json.loads(text)
    return records


# --- what the reflection model reads --------------------------------------------------------------


def test_the_reflection_prompt_shows_feedback_with_score_and_named_scores():
    reflection = reflecting(lambda prompt, number: RULE)
    program = compiled(as_dspy_metric(score), reflection=reflection)
    first = records_in(reflection.prompts[:1])
    assert len(first) == 3
    assert [record["Feedback"] for record in first] == [
        "Expected 'A', got 'B'.\n\nScore: 0.25\nNamed scores: exact 0, length 0.5"
    ] * 3
    assert program.signature.instructions == RULE


def test_the_reflection_prompt_shows_what_a_failing_metric_said():
    def some(input, output, expected=None):
        if output != "A" and input["question"] != "q0":
            raise KeyError("due_date")
        return score(input, output, expected)

    reflection = reflecting()
    compiled(as_dspy_metric(some), reflection=reflection, lm=answering(lambda question: "B"))
    texts = {record["Feedback"] for record in records_in(reflection.prompts)}
    assert any("raised KeyError: 'due_date'" in text and text.endswith("Score: 0") for text in texts)


def test_further_information_reaches_the_reflection_prompt():
    metric = as_dspy_metric(lambda input, output: (0.5, {"feedback": "Close.", "hint": "Name the month."}))
    reflection = reflecting()
    compiled(metric, reflection=reflection)
    assert "Name the month." in reflection.prompts[0]


# --- statistics, folders, outputs -----------------------------------------------------------------


def test_statistics_hold_the_scores_of_every_candidate():
    metric = as_dspy_metric(score)
    results = compiled(metric).detailed_results
    assert results.val_aggregate_scores == [0.25, 1.0]
    assert results.val_aggregate_subscores == [{"exact": 0.0, "length": 0.5}, {"exact": 1.0, "length": 0.5}]
    assert all(type(value) is float for value in results.val_aggregate_scores)
    assert metric.metric.calls == results.total_metric_calls


def test_best_outputs_are_tracked():
    results = compiled(as_dspy_metric(score), track_best_outputs=True).detailed_results
    best = [outputs[0][1] for outputs in results.best_outputs_valset.values()]
    assert [prediction.answer for prediction in best] == ["A"] * 4


@pytest.mark.parametrize("frontier", ["instance", "hybrid"])
@pytest.mark.parametrize("outputs", [False, True], ids=["", "best-outputs"])
def test_a_run_is_logged_and_resumed(tmp_path, frontier, outputs):
    options = {
        "log_dir": str(tmp_path / "log"),
        "frontier": frontier,
        "track_best_outputs": outputs,
        # Plain pickle does not take the signature that DSPy's predictions hold (gepa 0.1.4).
        "gepa_kwargs": {"use_cloudpickle": outputs},
    }
    first = compiled(as_dspy_metric(score), budget=14, **options).detailed_results
    assert (tmp_path / "log").is_dir()
    assert any((tmp_path / "log").iterdir())
    metric = as_dspy_metric(score)
    second = compiled(metric, budget=60, **options).detailed_results
    assert second.val_aggregate_scores[: len(first.val_aggregate_scores)] == first.val_aggregate_scores
    assert second.total_metric_calls > first.total_metric_calls
    assert max(second.val_aggregate_scores) == 1.0
    assert metric.metric.calls > 0


# --- frontiers and named scores -------------------------------------------------------------------

FRONTIERS = ["instance", "objective", "hybrid", "cartesian"]


@pytest.mark.parametrize("frontier", FRONTIERS)
def test_every_frontier_works_with_named_scores(frontier):
    program = compiled(as_dspy_metric(score), frontier=frontier)
    assert program.signature.instructions == RULE
    assert program.detailed_results.val_aggregate_scores == [0.25, 1.0]


def test_a_metric_without_named_scores_works_with_the_instance_frontier():
    metric = as_dspy_metric(lambda input, output: (float(output == "A"), {"feedback": "F."}))
    assert compiled(metric).detailed_results.val_aggregate_scores == [0.0, 1.0]


def failing_on(questions, **options):
    """Fails on these questions unless the answer is right."""

    def some(input, output, expected=None):
        if input["question"] in questions and output != "A":
            raise ValueError("boom")
        return score(input, output, expected)

    return as_dspy_metric(some, **options)


@pytest.mark.parametrize("frontier", FRONTIERS)
@pytest.mark.parametrize("questions", [{"q2", "q3"}, {"q0", "q1"}, {"q0", "q1", "q2"}], ids=sorted)
def test_named_scores_are_complete_when_the_metric_fails_on_some_cases(frontier, questions):
    metric = failing_on(questions)
    results = compiled(metric, frontier=frontier, budget=30).detailed_results
    share = (4 - len(questions)) / 4
    assert results.val_aggregate_subscores[0] == {"exact": 0.0, "length": 0.5 * share}
    assert results.val_aggregate_subscores[-1] == {"exact": 1.0, "length": 0.5}


@pytest.mark.parametrize("frontier", FRONTIERS)
@pytest.mark.parametrize("count", [3, 8])
def test_named_scores_are_complete_with_score_names_when_the_metric_fails_on_all_of_the_seed(frontier, count):
    metric = failing_on({f"q{number}" for number in range(8)}, score_names=["exact", "length"])
    results = compiled(
        metric, frontier=frontier, trainset=examples(count), valset=examples(count), budget=5 * count
    ).detailed_results
    assert results.val_aggregate_scores == [0.0, 1.0]
    assert results.val_aggregate_subscores == [{"exact": 0.0, "length": 0.0}, {"exact": 1.0, "length": 0.5}]


@pytest.mark.parametrize("frontier", FRONTIERS[1:])
def test_a_seed_that_fails_everywhere_without_score_names_gives_an_error_that_says_so(frontier, log):
    metric = failing_on({"q0", "q1", "q2", "q3"})
    with pytest.raises(Exception, match=r"objective_scores|score_names") as caught:
        compiled(metric, frontier=frontier)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", []), *log])
    assert "ValueError: boom" in told
    assert "score_names" in told


@pytest.mark.parametrize("frontier", FRONTIERS)
def test_names_that_only_later_candidates_bring_do_no_harm(frontier):
    def growing(input, output, expected=None):
        value, info = score(input, output, expected)
        return value, {**info, "scores": {"exact": 0.5} | ({"style": 1.0} if output == "A" else {})}

    results = compiled(as_dspy_metric(growing), frontier=frontier, budget=40).detailed_results
    assert results.val_aggregate_scores[:2] == [0.25, 1.0]
    assert results.val_aggregate_subscores[1] == {"exact": 0.5, "style": 1.0}


@pytest.mark.parametrize("frontier", FRONTIERS)
def test_the_metric_is_never_asked_where_the_program_raises(frontier):
    """DSPy drops such a case and its text, and it has no named scores there."""

    class Raising(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question):
            if question == "q1":
                raise RuntimeError("no answer")
            return self.answer(question=question)

    asked = []

    def asking(input, output, expected=None):
        asked.append(input["question"])
        return score(input, output, expected)

    metric = as_dspy_metric(asking)
    reflection = reflecting(lambda prompt, number: RULE)
    results = compiled(
        metric, Raising(), frontier=frontier, reflection=reflection, budget=30
    ).detailed_results
    assert "q1" not in asked
    assert set(asked) == {"q0", "q2", "q3"}
    assert len(metric.metric.failures) == 0
    assert "no answer" not in "".join(reflection.prompts)
    assert results.val_aggregate_scores == [0.1875, 0.75]


@pytest.mark.parametrize("as_feedback", [False, True])
def test_the_metric_is_never_asked_where_dspy_cannot_parse_the_models_answer(as_feedback):
    asked = []

    def asking(input, output, expected=None):
        asked.append(input["question"])
        return score(input, output, expected)

    def answer(messages):
        return "no fields at all" if field_of(messages, "question") == "q1" else chat(answer="B")

    metric = as_dspy_metric(asking)
    results = compiled(
        metric,
        lm=scripted_lm(answer),
        reflection=reflecting(),
        add_format_failure_as_feedback=as_feedback,
        budget=30,
    ).detailed_results
    assert set(asked) == {"q0", "q2", "q3"}
    assert results.val_aggregate_scores[0] == 0.1875
    assert len(metric.metric.failures) == 0


# --- a predictor's own text -----------------------------------------------------------------------


class TwoSteps(dspy.Module):
    def __init__(self):
        super().__init__()
        self.draft = dspy.Predict(dspy.Signature("question -> sketch", "Instruction of draft."))
        self.polish = dspy.Predict(dspy.Signature("sketch -> answer", "Instruction of polish."))

    def forward(self, question):
        return self.polish(sketch=self.draft(question=question).sketch)


def two_step_lm():
    return scripted_lm(
        lambda messages: (
            chat(sketch="S") if "[[ ## question ## ]]" in messages[-1]["content"] else chat(answer="B")
        )
    )


@pytest.mark.parametrize("selector", ["all", "round_robin"])
@pytest.mark.parametrize("named", [("draft", "polish"), ("draft",)], ids="+".join)
def test_each_predictor_reads_its_own_text_and_the_others_the_general_one(selector, named):
    def componentwise(input, output):
        own = {name: f"Own text of {name}." for name in named}
        return 0.25, {"feedback": "General text.", "component_feedback": own}

    metric = as_dspy_metric(componentwise)
    reflection = reflecting(
        lambda prompt, number: (
            f"Instruction of {'draft' if 'Instruction of draft' in prompt else 'polish'}. Try {number}."
        )
    )
    compiled(
        metric,
        TwoSteps(),
        lm=two_step_lm(),
        reflection=reflection,
        component_selector=selector,
        budget=24,
    )
    seen = {"draft": set(), "polish": set()}
    for prompt in reflection.prompts:
        component = "draft" if "Instruction of draft" in prompt else "polish"
        seen[component] |= {record["Feedback"] for record in records_in([prompt])}
    for component, texts in seen.items():
        said = f"Own text of {component}." if component in named else "General text."
        assert texts == {f"{said}\n\nScore: 0.25"}
    calls, rollouts = metric.metric.calls, len(metric.metric.failures)
    assert rollouts == 0
    assert calls >= 24


def test_two_predictors_cost_one_call_of_the_judge_for_each_rollout():
    metric = as_dspy_metric(lambda input, output: (0.25, {"feedback": "F."}))
    results = compiled(
        metric, TwoSteps(), lm=two_step_lm(), reflection=reflecting(), component_selector="all", budget=40
    ).detailed_results
    assert metric.metric.calls == results.total_metric_calls


# --- a rollout is judged once ---------------------------------------------------------------------


class StochasticJudge:
    """Another random score for each call, and now and then a failure; keeps what it said."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.said = {}  # output to what was said, a list

    def __call__(self, input, output, expected=None):
        answer = output["answer"] if isinstance(output, dict) else output
        with self.lock:
            value = round(self.random.uniform(0.01, 0.99), 4)
            failed = self.random.random() < 0.15
            self.said.setdefault(answer, []).append("boom" if failed else value)
        if failed:
            raise ValueError(f"boom for <{answer}>")
        return value, {"feedback": f"Judged {value} for <{answer}>."}


class Wrapping(dspy.Module):
    """A program that gives its answer as text, dict or prediction."""

    def __init__(self, wrap):
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self.wrap = wrap

    def forward(self, question):
        return self.wrap(self.answer(question=question))


def unique_answers():
    """Answers that never come twice, so that each names its rollout."""
    number = iter(range(1, 1_000_000))
    lock = threading.Lock()

    def answer(question):
        with lock:
            return f"{question}-{next(number)}"

    return answering(answer)


@pytest.mark.parametrize(
    ("minibatch", "train", "val", "budget"),
    [(3, 10, 10, 150), (60, 60, 10, 500), (60, 25, 6, 400)],
    ids=["minibatch-3", "minibatch-60", "minibatch-60-of-25-cases"],
)
@pytest.mark.parametrize(
    "wrap",
    [lambda pred: pred, lambda pred: pred.answer, lambda pred: {"answer": pred.answer}],
    ids=["prediction", "text", "dict"],
)
def test_a_stochastic_judge_is_called_once_for_each_rollout_and_its_texts_fit_its_scores(
    minibatch, train, val, budget, wrap, log
):
    judge, lm, reflection = StochasticJudge(minibatch + train), unique_answers(), reflecting()
    metric = as_dspy_metric(judge)
    results = compiled(
        metric,
        Wrapping(wrap),
        lm=lm,
        reflection=reflection,
        trainset=examples(train),
        valset=examples(val),
        budget=budget,
        reflection_minibatch_size=minibatch,
    ).detailed_results
    assert not any("different from the overall metric score" in line for line in log)
    records = records_in(reflection.prompts)
    assert len(records) >= 2 * minibatch
    failed = 0
    for record in records:
        answer = record["Generated Outputs"]["answer"]
        text = record["Feedback"]
        [shown] = re.findall(r"^Score: (\S+)$", text, re.MULTILINE)
        [said] = judge.said[answer]
        assert f"<{answer}>" in text
        if said == "boom":
            failed += 1
            assert shown == "0"
        else:
            assert text == f"Judged {said} for <{answer}>.\n\nScore: {said:.6g}"
    assert failed > 0
    assert all(len(said) == 1 for said in judge.said.values())
    assert metric.metric.calls == len(judge.said) == len(lm.prompts) == results.total_metric_calls


def test_candidates_that_are_evaluated_at_once_on_the_same_cases_are_judged_once_each(log):
    judge, lm, reflection = StochasticJudge(5), unique_answers(), reflecting()
    metric = as_dspy_metric(judge)
    results = compiled(
        metric,
        lm=lm,
        reflection=reflection,
        trainset=examples(6),
        budget=200,
        gepa_kwargs={"sampling_strategy": IndependentSampling(4)},
    ).detailed_results
    assert not any("different from the overall metric score" in line for line in log)
    records = records_in(reflection.prompts)
    assert len(records) > 20
    for record in records:
        [said] = judge.said[record["Generated Outputs"]["answer"]]
        assert record["Feedback"].endswith(f"Score: {0 if said == 'boom' else said:.6g}")
    assert metric.metric.calls == len(judge.said) == len(lm.prompts) == results.total_metric_calls


def test_memory_by_content_asks_once_for_each_answer_of_a_case_and_again_where_that_failed(log):
    judge, reflection = StochasticJudge(2), reflecting()
    asked = []

    def counting(input, output, expected=None):
        value, info = judge(input, f"{input['question']}-{output}", expected)
        asked.append((input["question"], output))
        return value, info

    metric = as_dspy_metric(counting, memo="content")
    results = compiled(
        metric, lm=answering(lambda question: "B"), reflection=reflection, budget=100
    ).detailed_results
    assert sorted(asked) == [(f"q{number}", "B") for number in range(4)]
    assert metric.metric.calls < results.total_metric_calls / 2
    assert not any("different from the overall metric score" in line for line in log)
    for record in records_in(reflection.prompts):
        if "Judged" in record["Feedback"]:
            said = judge.said[f"{record['Inputs']['question']}-B"][-1]
            assert record["Feedback"].endswith(f"Score: {said:.6g}")


def test_a_metric_without_memory_is_asked_again_for_the_text(log):
    judge, lm = StochasticJudge(1), unique_answers()
    metric = as_dspy_metric(judge, memo=None)
    compiled(metric, lm=lm, reflection=reflecting(), budget=60)
    assert metric.metric.calls > len(lm.prompts)
    assert any("different from the overall metric score" in line for line in log)


def test_one_metric_that_is_read_in_two_ways_says_of_each_what_it_scored():
    """A metric of two DSPy metrics over one `Metric`: draft and answer of the same prediction."""
    shared = Metric(score, score_names=["exact", "length"])
    of_draft, of_answer = (as_dspy_metric(shared, output=name) for name in ("draft", "answer"))

    def both(gold, pred, trace=None, pred_name=None, pred_trace=None):
        parts = [of_draft(gold, pred, trace, pred_name, pred_trace), of_answer(gold, pred, trace, pred_name)]
        text = " ".join(
            f"{name}: {part.feedback}" for name, part in zip(("DRAFT", "FINAL"), parts, strict=True)
        )
        return dspy.Prediction(score=sum(map(float, parts)) / 2, feedback=text)

    reflection = reflecting(lambda prompt, number: RULE)
    compiled(
        both,
        dspy.Predict("question -> draft, answer"),
        lm=scripted_lm(lambda messages: chat(draft="B", answer="A")),
        reflection=reflection,
    )
    assert reflection.prompts
    for record in records_in(reflection.prompts):
        draft, final = record["Feedback"].split("FINAL: ")
        assert "Expected 'A', got 'B'." in draft
        assert "Score: 0.25" in draft
        assert "Right." in final
        assert "Score: 1" in final


def test_a_program_that_returns_one_shared_prediction_gets_the_score_of_each_rollout():
    """An answer object that comes twice is judged at each scoring call, so no score is stale."""
    shared = dspy.Prediction(answer="")
    asked = []

    class Sharing(dspy.Module):
        def __init__(self):
            super().__init__()
            self.answer = dspy.Predict("question -> answer")

        def forward(self, question):
            shared.answer = self.answer(question=question).answer
            return shared

    def asking(input, output, expected=None):
        asked.append(output)
        return float(output == "A"), {"feedback": f"Got {output}."}

    results = compiled(as_dspy_metric(asking), Sharing()).detailed_results
    assert results.val_aggregate_scores == [0.0, 1.0]
    assert len(asked) >= results.total_metric_calls


# --- a broken metric ------------------------------------------------------------------------------


def test_a_metric_that_always_raises_stops_every_run_by_name_and_pays_for_few_programs(released):
    def always_raising(input, output, expected=None):
        raise LookupError("no such table: verdicts")

    for few in (8, 30, 100):
        released.clear()
        lm = answering(with_few_paid(lambda question: "B", few, released))
        with pools_run_empty():
            with pytest.raises(MetricBroken, match="LookupError: no such table: verdicts"):
                compiled(as_dspy_metric(always_raising), lm=lm, valset=examples(200), budget=600)
            released.set()
        # Its eight threads have begun one program each by then, and nothing of the queue is run afterwards.
        assert len(lm.prompts) <= few + 8


def test_a_metric_that_always_raises_goes_on_with_stop_after_none():
    def always_raising(input, output, expected=None):
        raise LookupError("no such table: verdicts")

    metric = as_dspy_metric(always_raising, stop_after=None)
    reflection = reflecting()
    results = compiled(metric, reflection=reflection, budget=30).detailed_results
    assert results.val_aggregate_scores == [0.0]
    assert "no such table: verdicts" in reflection.prompts[0]
    assert metric.metric.calls == results.total_metric_calls


def test_a_key_that_is_revoked_midway_stops_the_run_by_max_failures_in_a_row(released):
    calls = iter(range(1_000))

    def revoked(input, output, expected=None):
        if next(calls) >= 30:
            raise PermissionError("key revoked")
        return score(input, output, expected)

    metric = as_dspy_metric(revoked, max_failures_in_a_row=10)
    lm = answering(with_few_paid(lambda question: "B", 30 + 10 + 8, released))
    with pools_run_empty():
        with pytest.raises(MetricBroken, match="PermissionError: key revoked"):
            compiled(metric, lm=lm, reflection=reflecting(), budget=500)
        released.set()
    assert len(lm.prompts) <= 30 + 10 + 8 + 8


def parsing(input, output, expected=None):
    """Raises on an answer that is no JSON, and works on the expected value."""
    return float(json.loads(output) == json.loads(expected["answer"])), {"feedback": "Parsed."}


@pytest.mark.parametrize("more", [{}, {"note": "another label"}], ids=["one-label", "two-labels"])
@pytest.mark.parametrize("options", [{}, {"output": "answer"}], ids=["plain", "output"])
def test_a_program_whose_answers_do_not_parse_at_first_is_not_stopped(options, more):
    lm = scripted_lm(
        lambda messages: chat(answer='{"a": 1}' if RULE in messages[0]["content"] else "{broken")
    )
    devset = examples(20, lambda number: '{"a": 1}', **more)
    reflection = reflecting(lambda prompt, number: RULE)
    results = compiled(
        as_dspy_metric(parsing, **options),
        lm=lm,
        reflection=reflection,
        trainset=devset,
        valset=devset,
        budget=80,
    ).detailed_results
    assert results.val_aggregate_scores == [0.0, 1.0]
    assert "JSONDecodeError" in reflection.prompts[0]


# --- programs that return something else, and the example metrics ---------------------------------


@pytest.mark.parametrize(
    "wrap", [lambda pred: pred.answer, lambda pred: {"answer": pred.answer}], ids=["text", "dict"]
)
def test_a_program_that_returns_no_prediction_is_optimised(wrap):
    reflection = reflecting(lambda prompt, number: RULE)
    program = compiled(as_dspy_metric(score), Wrapping(wrap), reflection=reflection)
    assert program.detailed_results.val_aggregate_scores == [0.25, 1.0]
    assert "Expected 'A', got 'B'." in records_in(reflection.prompts[:1])[0]["Feedback"]


def test_a_chain_of_thought_is_optimised_on_its_answer():
    lm = scripted_lm(
        lambda messages: chat(reasoning="R.", answer="A" if RULE in messages[0]["content"] else "B")
    )
    program = compiled(as_dspy_metric(score), dspy.ChainOfThought("question -> answer"), lm=lm)
    assert program.detailed_results.val_aggregate_scores == [0.25, 1.0]


@pytest.mark.shared
def test_the_exact_match_example_runs_unchanged(shared_metric):
    devset = [dspy.Example(text=f"t{number}", label="billing").with_inputs("text") for number in range(4)]
    lm = scripted_lm(lambda messages: chat(label="billing" if RULE in messages[0]["content"] else "other"))
    reflection = reflecting(lambda prompt, number: RULE)
    results = compiled(
        as_dspy_metric(shared_metric("exact_match")),
        dspy.Predict("text -> label"),
        lm=lm,
        reflection=reflection,
        trainset=devset,
        valset=devset,
    ).detailed_results
    assert results.val_aggregate_scores == [0.0, 1.0]
    assert records_in(reflection.prompts)[0]["Feedback"] == "Expected 'billing', got 'other'.\n\nScore: 0"


@pytest.mark.shared
@pytest.mark.parametrize("frontier", FRONTIERS)
def test_the_several_checks_example_runs_unchanged(shared_metric, frontier):
    devset = [
        dspy.Example(text=f"t{number}", fields=["name", "date"]).with_inputs("text") for number in range(4)
    ]

    def answer(messages):
        if RULE in messages[0]["content"]:
            return chat(reply='{"name": "A", "date": "today"}')
        return chat(reply="no JSON" if field_of(messages, "text") == "t0" else '{"name": "A"}')

    reflection = reflecting(lambda prompt, number: RULE)
    results = compiled(
        as_dspy_metric(shared_metric("several_checks")),
        dspy.Predict("text -> reply"),
        lm=scripted_lm(answer),
        reflection=reflection,
        trainset=devset,
        valset=devset,
        frontier=frontier,
    ).detailed_results
    assert results.val_aggregate_scores == [0.5625, 1.0]
    assert results.val_aggregate_subscores == [
        {"format": 0.75, "fields": 0.375},
        {"format": 1.0, "fields": 1.0},
    ]
    assert "Missing fields: date." in reflection.prompts[0]


def test_component_feedback_for_a_chain_of_thought_may_leave_its_inner_name_out():
    own = {"feedback": "general", "component_feedback": {"reply": "own"}}
    metric = as_dspy_metric(lambda input, output: (0.5, own))
    example, prediction = examples(1)[0], dspy.Prediction(answer="A")
    assert metric(example, prediction, None, "reply.predict").feedback.startswith("own")
    assert metric(example, prediction, None, "other").feedback.startswith("general")


class FactThenReply(dspy.Module):
    def __init__(self):
        super().__init__()
        self.find, self.reply = dspy.Predict("question -> fact"), dspy.ChainOfThought("fact -> answer")

    def forward(self, question):
        return self.reply(fact=self.find(question=question).fact)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"find": "F.", "reply": "R."}, []),
        ({"find": "F.", "reply.predict": "R."}, []),
        ({"retriever": "F."}, ["component_feedback for 'retriever', which nobody reads"]),
        ({"fnd": "F."}, ["did you mean 'find'?"]),
        ({"reply.predct": "R."}, ["did you mean 'reply.predict'?"]),
    ],
)
@pytest.mark.parametrize("selector", ["all", "round_robin"])
def test_a_text_for_a_predictor_that_is_not_there_is_pointed_out(own, told, selector, caplog):
    metric = as_dspy_metric(lambda input, output: (0.5, {"feedback": "general", "component_feedback": own}))
    lm = scripted_lm(lambda messages: chat(fact="F", reasoning="R", answer="A"))
    with dspy.context(lm=lm):
        dspy.GEPA(
            metric=metric, max_metric_calls=30, reflection_lm=reflecting(), component_selector=selector
        ).compile(FactThenReply(), trainset=examples(3), valset=examples(3))
    said = [one.getMessage() for one in caplog.records if "component_feedback" in one.getMessage()]
    assert len(said) == len(told)
    assert all(one in text for one, text in zip(told, said, strict=True))
    assert all("['find', 'reply.predict']" in text for text in said)


class NumberedSteps(dspy.Module):
    def __init__(self):
        super().__init__()
        self.step1, self.step2 = dspy.Predict("question -> fact"), dspy.Predict("fact -> answer")

    def forward(self, question):
        return self.step2(fact=self.step1(question=question).fact)


def test_a_text_for_one_of_two_predictors_with_like_names_is_not_taken_for_the_others(caplog):
    own = {"feedback": "general", "component_feedback": {"step2": "S."}}
    metric = as_dspy_metric(lambda input, output: (0.5, own))
    lm = scripted_lm(lambda messages: chat(fact="F", answer="A"))
    with dspy.context(lm=lm):
        dspy.GEPA(metric=metric, max_metric_calls=30, reflection_lm=reflecting()).compile(
            NumberedSteps(), trainset=examples(3), valset=examples(3)
        )
    assert not [one for one in caplog.messages if "component_feedback" in one]
