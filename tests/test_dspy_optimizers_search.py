"""One metric object in every optimiser of DSPy: what each takes of it, and what its failures do to each."""

import inspect
import json
import logging
import re

import dspy
import pytest
from dspy.clients.provider import Provider, ReinforceJob
from dspy.teleprompt.grpo import GRPO
from dspy.teleprompt.reanchor import ReAnchor, calibrate
from dspy.teleprompt.simba_utils import wrap_program

from skynet_adapters import MetricBroken, as_dspy_metric, from_dspy_metric
from tests.scripted import ScriptedEngine, chat, field_of
from tests.test_dspy_optimizers import Answer, letters

# --- one model in every role -----------------------------------------------------------------------

IMPROVED = "improved rule"
# What each optimiser asks its own model for, and what it gets.
PROPOSALS = {
    "observations": "Some text.",
    "summary": "Some text.",
    "program_description": "Some text.",
    "module_description": "Some text.",
    "natural_language_rules": IMPROVED,
    "proposed_instruction": IMPROVED,
    "proposed_prefix_for_output_field": "Answer:",
    "module_advice": json.dumps({"answer": IMPROVED}),
    "new_instruction": IMPROVED,
    "feedback": "Some text.",
    "revised_source": f'''class FlexModule(dspy.Module):
    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict(dspy.Signature("question -> answer", "{IMPROVED}"))

    def forward(self, **inputs):
        return dspy.Prediction(answer=self.answer(**inputs).answer)''',
}


def learner(flaky=False, provider=None):
    """A model that answers most questions of `data` right, one more after an improvement, and q5 never.

    A flaky one answers q4 right every second time, and always after an improvement. `asked` also sees
    what its copies are asked.
    """
    asked, times = [], []

    def reply(messages):
        prompt = "\n\n".join(message["content"] for message in messages)
        asked.append(prompt)
        outputs = messages[0]["content"].partition("Your output fields are:")[2]
        outputs = outputs.partition("All interactions")[0]
        wanted = {field: text for field, text in PROPOSALS.items() if f"`{field}`" in outputs}
        if wanted:
            return (
                json.dumps(wanted)
                if "a JSON object" in prompt
                else chat(reasoning="R.", discussion="D.", **wanted)
            )
        question = field_of(messages, "question")
        times.append(question)
        if "`answer` (bool)" in outputs:
            return chat(answer=probability(question) >= 0.9)
        if "noul" in outputs:
            return chat(answer=json.dumps({"noul": probability(question)}))
        right = question in ("q0", "q1", "q3") or (question == "q2" and IMPROVED in prompt)
        if flaky and question == "q4":
            right = IMPROVED in prompt or times.count("q4") % 2 == 0
        return chat(answer="A" if right else "B")

    lm = dspy.LM("scripted/model", engine=ScriptedEngine(reply), cache=False, provider=provider)
    lm.asked = asked
    return lm


def data():
    return [dspy.Example(question=f"q{number}", answer="A").with_inputs("question") for number in range(6)]


def probability(question):
    return round(int(question[1:]) / 10 + 0.05, 2)


def state(program):
    """The instructions and demos of a program."""
    return [
        (predictor.signature.instructions, [(demo["question"], demo["answer"]) for demo in predictor.demos])
        for predictor in program.predictors()
    ]


def numbers(candidates):
    return [(float(candidate["score"]), state(candidate["program"])) for candidate in candidates]


# --- every optimiser, run once ------------------------------------------------------------------------
# Each gives all that it made of the metric's answers, in a form that can be compared.


def few_shot(metric):
    return state(dspy.BootstrapFewShot(metric=metric, max_labeled_demos=0).compile(Answer(), trainset=data()))


def random_search(metric):
    best = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric, max_labeled_demos=0, num_candidate_programs=2, num_threads=2
    ).compile(Answer(), trainset=data())
    return numbers(best.candidate_programs)


def optuna(metric):
    optimizer = dspy.teleprompt.BootstrapFewShotWithOptuna(
        metric=metric, max_labeled_demos=1, num_candidate_programs=2, num_threads=2
    )
    results = []
    objective = optimizer.objective
    optimizer.objective = lambda trial: results.append(objective(trial)) or results[-1]
    optimizer.compile(Answer(), max_demos=6, trainset=data())
    # Which of equally good trials wins is up to optuna, which takes no seed here.
    return results, state(optimizer.compiled_teleprompter)


def mipro(metric):
    best = dspy.MIPROv2(
        metric=metric,
        auto=None,
        num_candidates=3,
        max_bootstrapped_demos=6,
        max_labeled_demos=0,
        num_threads=2,
    ).compile(Answer(), trainset=data(), valset=data(), num_trials=6, minibatch=False)
    return best.score, numbers(best.candidate_programs)


def copro(metric):
    best = dspy.COPRO(metric=metric, breadth=2, depth=2).compile(
        Answer(), trainset=data(), eval_kwargs={"num_threads": 2, "display_progress": False}
    )
    return state(best), numbers(best.candidate_programs)


def simba(metric):
    best = dspy.SIMBA(
        metric=metric, bsize=6, num_candidates=3, max_steps=1, max_demos=0, num_threads=1
    ).compile(Answer(), trainset=data())
    return state(best), numbers(best.candidate_programs)


def infer_rules(metric):
    optimizer = dspy.InferRules(
        metric=metric, num_candidates=2, num_rules=1, max_labeled_demos=0, num_threads=2
    )
    evaluate, results = optimizer.evaluate_program, []
    optimizer.evaluate_program = lambda *given: results.append(evaluate(*given)) or results[-1]
    best = optimizer.compile(Answer(), trainset=data(), valset=data())
    return results, state(best)


def knn(metric):
    compiled = dspy.KNNFewShot(
        k=6,
        trainset=data(),
        vectorizer=dspy.Embedder(letters),
        metric=metric,
        max_bootstrapped_demos=6,
        max_labeled_demos=0,
    ).compile(Answer())
    compiled(question="q9")
    return re.findall(r"\[\[ ## question ## \]\]\n(q\d)", dspy.settings.lm.asked[-1])


def reanchor(metric):
    likely = dspy.Signature("question -> answer: bool").with_updated_fields("answer", desc="Is it likely?")
    examples = [
        dspy.Example(question=f"q{number}", answer=probability(f"q{number}") >= 0.25).with_inputs("question")
        for number in range(10)
    ]
    optimizer = ReAnchor(metric=metric, num_threads=2, require_cache=False)
    program = optimizer.compile(dspy.Predict(likely), trainset=examples)
    return optimizer.report, program.fields


def gepa(metric):
    result = (
        dspy.GEPA(
            metric=metric,
            max_metric_calls=24,
            reflection_lm=dspy.settings.lm,
            num_threads=2,
            track_stats=True,
        )
        .compile(Answer(), trainset=data(), valset=data())
        .detailed_results
    )
    return [state(one) for one in result.candidates], result.val_subscores, result.val_aggregate_subscores


class InProcess:
    """An interpreter for `dspy.Flex` that starts no process."""

    def __init__(self):
        self.tools = {}
        self.names = {}

    def start(self):
        pass

    def shutdown(self):
        pass

    def execute(self, code, variables=None):
        self.names.update(self.tools, **(variables or {}))
        # What `Flex` reads is the last line's value. `ast.parse` could tell, but fails under threads.
        body, _, last = code.rpartition("\n")
        if not last.startswith("__dspy_flex_json"):
            return exec(code, self.names)
        exec(body, self.names)
        return eval(last, self.names)


def flex(metric, interpreter=InProcess, frontier="instance", **options):
    result = (
        dspy.GEPA(
            metric=metric,
            max_metric_calls=24,
            reflection_lm=dspy.settings.lm,
            num_threads=1,
            track_stats=True,
            gepa_kwargs={"frontier_type": frontier},
            **options,
        )
        .compile(
            dspy.Flex("question -> answer", interpreter_factory=interpreter), trainset=data(), valset=data()
        )
        .detailed_results
    )
    sources = [candidate.module_src for candidate in result.candidates]
    return sources, result.val_subscores, result.val_aggregate_subscores


class Training(Provider):
    """A place to train at, which only keeps what it is given."""

    def __init__(self):
        super().__init__()
        steps = self.steps = []

        class Job(ReinforceJob):
            def initialize(self):
                pass

            def get_status(self):
                return {"pending_batch_ids": [len(steps) * 6 + number for number in range(6)]}

            def step(self, train_data, train_data_format=None):
                steps.append(train_data)

            def terminate(self):
                pass

        self.ReinforceJob = Job
        self.reinforceable = True


def grpo(metric):
    training = Training()
    lm = learner(provider=training)
    program = Answer()
    program.set_lm(lm)
    with dspy.context(adapter=dspy.ChatAdapter()):
        GRPO(
            metric=metric,
            num_train_steps=2,
            num_dspy_examples_per_grpo_step=6,
            num_rollouts_per_grpo_step=2,
            exclude_demos=True,
            num_threads=2,
            num_steps_for_val=1,
            report_train_scores=True,
        ).compile(program, trainset=data(), valset=data()[:2])
    dspy.settings.lm.asked.extend(lm.asked)
    return [
        [
            [(re.findall(r"(q\d)", one["messages"][-1]["content"]), one["reward"]) for one in batch["group"]]
            for batch in step
        ]
        for step in training.steps
    ]


class Actor(dspy.Module):
    """What `AvatarOptimizer` needs of an actor."""

    def __init__(self):
        super().__init__()
        self.tools = ["none"]
        self.actor = dspy.Predict("question -> answer")
        self.actor_clone = self.actor

    def forward(self, question):
        return dspy.Prediction(answer=self.actor(question=question).answer, actions=None)


def avatar(metric):
    with pytest.MonkeyPatch.context() as patch:
        # dspy 3.4.1 has no TypedPredictor any more, and AvatarOptimizer needs one.
        patch.setattr(dspy, "TypedPredictor", dspy.Predict, raising=False)
        optimizer = dspy.AvatarOptimizer(metric=metric, max_iters=2, lower_bound=0.5, upper_bound=0.9)
    actor = Actor()
    actor.set_lm(dspy.settings.lm)  # `dspy.context` does not reach its threads
    best = optimizer.compile(actor, trainset=data())
    compared = [prompt for prompt in dspy.settings.lm.asked if "`neg_input_with_metrics`" in prompt]
    return best.actor.signature.instructions, [prompt.partition("## pos_input")[2] for prompt in compared]


# What each takes: the number, the truth, the text (named scores stand in the text too).
TAKES = {
    "BootstrapFewShot": (few_shot, "truth"),
    "BootstrapFewShotWithRandomSearch": (random_search, "number truth"),
    "BootstrapFewShotWithOptuna": (optuna, "number truth"),
    "MIPROv2": (mipro, "number truth"),
    "COPRO": (copro, "number"),
    "SIMBA": (simba, "number text"),
    "InferRules": (infer_rules, "number truth"),
    "KNNFewShot": (knn, "truth"),
    "AvatarOptimizer": (avatar, "number"),
    "ReAnchor": (reanchor, "number"),
    "GEPA": (gepa, "number text"),
    "GEPA-with-Flex": (flex, "number text"),
    "GRPO": (grpo, "number"),
}
# Run in other tests.
ELSEWHERE = {"BootstrapFinetune", "BetterTogether"}
WITHOUT_METRIC = {"Ensemble", "LabeledFewShot"}


def run(name, metric, **options):
    with dspy.context(lm=learner(flaky=name == "SIMBA")) as _:
        outcome = TAKES[name][0](metric, **options)
        return outcome, list(dspy.settings.lm.asked)


def grading(right=1.0, wrong=0.0, feedback="FEEDBACK-TEXT", scores=None, special=None):
    """A metric function that gives `right` or `wrong`; `special` decides about a question of its own."""

    def score(input, output, expected=None):
        if special is not None and input["question"] == "q3":
            return special()
        value = right if output == expected["answer"] else wrong
        return value, {"feedback": feedback, **({} if scores is None else {"scores": scores})}

    return score


# --- what each takes of the metric ------------------------------------------------------------------


def test_every_optimiser_of_dspy_is_in_these_tests():
    exported = {name for name in dspy.teleprompt.__all__ if inspect.isclass(getattr(dspy.teleprompt, name))}
    assert exported - ELSEWHERE - WITHOUT_METRIC <= set(TAKES)
    for name in WITHOUT_METRIC:
        optimizer = getattr(dspy.teleprompt, name)
        assert "metric" not in inspect.signature(optimizer.__init__).parameters
        assert "metric" not in inspect.signature(optimizer.compile).parameters


@pytest.mark.parametrize("name", TAKES)
def test_the_number_counts_for_these_optimisers_alone(name):
    outcomes = [run(name, as_dspy_metric(grading(right), success_threshold=0.5))[0] for right in (1.0, 0.96)]
    assert (outcomes[0] != outcomes[1]) == ("number" in TAKES[name][1])


@pytest.mark.parametrize("name", TAKES)
def test_the_truth_counts_for_these_optimisers_alone(name):
    outcomes = [
        run(name, as_dspy_metric(grading(wrong=0.25), success_threshold=threshold))[0]
        for threshold in (None, 0.25)
    ]
    assert (outcomes[0] != outcomes[1]) == ("truth" in TAKES[name][1])


@pytest.mark.parametrize("name", TAKES)
def test_the_text_is_in_what_a_model_is_asked_for_these_optimisers_alone(name):
    metric = as_dspy_metric(grading(scores={"NAMED-SCORE": 0.5}))
    prompts = run(name, metric)[1]
    assert prompts
    for text in ("FEEDBACK-TEXT", "NAMED-SCORE"):
        assert any(text in prompt for prompt in prompts) == ("text" in TAKES[name][1])


@pytest.mark.parametrize("name", [name for name, (_, takes) in TAKES.items() if "truth" in takes])
def test_a_dspy_metric_that_is_stricter_with_a_trace_makes_the_same_demos_through_us(name):
    def lenient(example, pred, trace=None):
        same = pred.answer == example.answer
        return same if trace is not None else True

    plain, ours = (run(name, metric)[0] for metric in (lenient, as_dspy_metric(from_dspy_metric(lenient))))
    assert repr(ours) == repr(plain)


def winner(name, metric):
    """What of the program that an optimiser chose tells whether it was improved."""
    outcome = run(name, metric)[0]
    if name == "MIPROv2":
        return next(program for value, program in outcome[1] if value == outcome[0])
    if name in ("GEPA", "GEPA-with-Flex"):
        totals = [sum(scores.values()) for scores in outcome[1]]
        return outcome[0][totals.index(max(totals))]
    return outcome[0]


@pytest.mark.parametrize("better", [True, False], ids=["better", "worse"])
@pytest.mark.parametrize("name", ["COPRO", "MIPROv2", "GEPA", "GEPA-with-Flex", "SIMBA"])
def test_a_new_candidate_wins_exactly_where_its_numbers_are_better(name, better):
    def opposite(input, output, expected=None):
        return float(output != expected["answer"]), {"feedback": "Judged."}

    metric = as_dspy_metric(grading() if better else opposite)
    assert (IMPROVED in repr(winner(name, metric))) == better


# --- a metric that fails ----------------------------------------------------------------------------


def boom():
    raise ValueError("boom")


@pytest.mark.parametrize("name", TAKES)
def test_a_case_whose_metric_fails_is_worth_the_failure_score_and_changes_no_other_case(name):
    failing = as_dspy_metric(grading(special=boom))
    spared = as_dspy_metric(grading(special=lambda: (0.0, {"feedback": "FEEDBACK-TEXT"})))
    healthy = as_dspy_metric(grading())
    outcome = run(name, failing)[0]
    assert outcome == run(name, spared)[0]
    assert outcome != run(name, healthy)[0]
    assert failing.metric.calls == spared.metric.calls
    assert 0 < len(failing.metric.failures) < failing.metric.calls
    assert all("q3" in failure.case for failure in failing.metric.failures)
    assert len(spared.metric.failures) == len(healthy.metric.failures) == 0


@pytest.mark.parametrize("name", TAKES)
def test_a_metric_that_always_raises_stops_the_run_by_name(name):
    def broken(input, output, expected=None):
        return float(output == expected["anwser"]), {"feedback": "?"}  # a typo

    metric = as_dspy_metric(broken)
    message = (
        r"metric 'broken' failed on each of the first \d rollouts, and on the expected value as output too"
    )
    with pytest.raises(MetricBroken, match=message) as caught:
        run(name, metric)
    assert "raised KeyError: 'anwser'" in str(caught.value)
    assert "Mend it" in str(caught.value)
    # Five rollouts and the expected value; what was under way on two threads may follow.
    assert 6 <= metric.metric.calls <= 9


@pytest.mark.parametrize("name", TAKES)
def test_a_metric_that_always_raises_goes_on_to_the_end_where_it_may_not_stop(name):
    def broken(input, output, expected=None):
        raise ValueError("boom")

    metric = as_dspy_metric(broken, stop_after=None, failure_score=0.25)
    if name == "AvatarOptimizer":
        with pytest.raises(ValueError, match="No positive examples found"):  # its own rule
            run(name, metric)
    else:
        run(name, metric)
    assert len(metric.metric.failures) >= 6


# --- SIMBA ------------------------------------------------------------------------------------------


def reward_info(prompt, kind):
    return json.loads(prompt.split(f"[[ ## {kind}_reward_info ## ]]\n")[-1].split("\n\n[[ ##")[0])


def test_simba_shows_its_model_the_texts_and_named_scores_of_both_trajectories():
    def score(input, output, expected=None):
        right = output == expected["answer"]
        feedback = "The letter is right." if right else f"Expected {expected['answer']!r}, got {output!r}."
        return float(right), {"feedback": feedback, "scores": {"exact": float(right)}}

    prompts = [prompt for prompt in run("SIMBA", as_dspy_metric(score))[1] if "`module_advice`" in prompt]
    assert prompts
    better, worse = reward_info(prompts[0], "better"), reward_info(prompts[0], "worse")
    assert better == {
        "feedback": "The letter is right.\n\nScore: 1\nNamed scores: exact 1",
        "objective_scores": {"exact": 1.0},
    }
    assert worse == {
        "feedback": "Expected 'A', got 'B'.\n\nScore: 0\nNamed scores: exact 0",
        "objective_scores": {"exact": 0.0},
    }


def test_simba_shows_its_model_why_there_is_no_judgement():
    def score(input, output, expected=None):
        if input["question"] == "q4" and output == "B":
            raise ValueError("no judge for this")
        return float(output == expected["answer"]), {"feedback": "Judged."}

    prompts = [prompt for prompt in run("SIMBA", as_dspy_metric(score))[1] if "`module_advice`" in prompt]
    worse = [reward_info(prompt, "worse")["feedback"] for prompt in prompts]
    assert any("raised ValueError: no judge for this" in text for text in worse)


def test_simba_goes_on_where_the_program_raises_and_its_text_says_so():
    class Raises(Answer):
        def forward(self, question):
            if question == "q3":
                raise RuntimeError("broken program")
            return super().forward(question)

    metric = as_dspy_metric(grading())
    with dspy.context(lm=learner()):
        result = wrap_program(Raises(), metric)(data()[3])
    assert result["score"] == 0.0
    assert "The program gave no output." in result["output_metadata"]["feedback"]
    assert metric.metric.calls == 0


def test_simba_makes_demos_by_rank_in_the_batch_and_not_by_truth():
    """So a trace below the success threshold can become one: the metric cannot prevent it (dspy 3.4.1)."""

    def score(input, output, expected=None):
        return (0.05 if output == "A" else 0.0), {"feedback": "Judged."}

    made = []
    for seed in range(4):
        optimizer = dspy.SIMBA(
            metric=as_dspy_metric(score), bsize=6, num_candidates=3, max_steps=1, max_demos=2, num_threads=1
        )
        with dspy.context(lm=learner(flaky=True)):
            best = optimizer.compile(Answer(), trainset=data(), seed=seed)
        made += [demo["answer"] for one in best.candidate_programs for demo in one["program"].answer.demos]
    assert set(made) == {"A"}


@pytest.mark.parametrize(("failure_score", "made"), [(-1.0, "A"), (0.0, "B")])
def test_simba_ranks_an_answer_without_a_judgement_by_the_failure_score_alone(failure_score, made):
    """Where scores are negative, a failure score that is not below them makes demos of such answers."""

    def score(input, output, expected=None):
        if input["question"] == "q4" and output == "B":
            raise ValueError("boom")
        return (-0.3 if output == "A" else -0.9), {"feedback": "Judged."}

    found = set()
    for seed in range(8):
        optimizer = dspy.SIMBA(
            metric=as_dspy_metric(score, failure_score=failure_score),
            bsize=6,
            num_candidates=4,
            max_steps=1,
            max_demos=2,
            num_threads=1,
        )
        with dspy.context(lm=learner(flaky=True)):
            best = optimizer.compile(Answer(), trainset=data(), seed=seed)
        found |= {demo["answer"] for one in best.candidate_programs for demo in one["program"].answer.demos}
    assert found == {made}


def test_simba_with_a_metric_that_fails_at_first_logs_nothing_of_gepas_frontiers(caplog):
    def score(input, output, expected=None):
        if metric.metric.calls <= 2:
            raise ValueError("a slow start")
        return float(output == expected["answer"]), {"feedback": "Judged."}

    metric = as_dspy_metric(score)
    with caplog.at_level(logging.WARNING, "skynet_adapters"):
        run("SIMBA", metric)
    logged = [one.getMessage() for one in caplog.records if one.name == "skynet_adapters"]
    assert any("a slow start" in text for text in logged)
    assert not [text for text in logged if "frontier" in text]


# --- KNNFewShot ---------------------------------------------------------------------------------------


def test_a_metric_that_always_raises_inside_a_program_that_bootstraps_stops_its_evaluation_by_name():
    """`KNNFewShot` asks the metric within each call of the compiled program, so also where that serves."""

    def broken(input, output, expected=None):
        raise ValueError("boom")

    compiled = dspy.KNNFewShot(
        k=2,
        trainset=data(),
        vectorizer=dspy.Embedder(letters),
        metric=as_dspy_metric(broken),
        max_labeled_demos=0,
    ).compile(Answer())
    healthy = as_dspy_metric(grading())
    lm = learner()
    with dspy.context(lm=lm), pytest.raises(MetricBroken, match="metric 'broken' failed"):
        dspy.Evaluate(devset=data() * 10, metric=healthy, num_threads=2)(compiled)
    assert healthy.metric.calls < 10
    with dspy.context(lm=lm):
        patient = dspy.KNNFewShot(
            k=6,
            trainset=data(),
            vectorizer=dspy.Embedder(letters),
            metric=as_dspy_metric(broken, stop_after=None),
            max_labeled_demos=0,
        ).compile(Answer())
        assert patient(question="q0").answer == "A"


# --- ReAnchor ---------------------------------------------------------------------------------------


def test_reanchor_fits_a_threshold_to_the_numbers():
    metric = as_dspy_metric(grading())
    (report, fields), prompts = run("ReAnchor", metric)
    assert fields == {"answer": {"threshold": 0.2}}
    assert (report["train_score_before"], report["train_score"]) == (0.3, 1.0)
    assert metric.metric.calls == len(prompts)


@pytest.mark.parametrize("value", [0.05, -0.3, 1.0])
def test_reanchor_reads_the_number_of_a_result_and_the_failure_score_of_one_without_judgement(value):
    def score(input, output, expected=None):
        if input["question"] == "q3":
            raise ValueError("boom")
        return value, {"feedback": "Judged."}

    metric = as_dspy_metric(score, failure_score=0.125)
    read = [calibrate.metric_value(metric, example, dspy.Prediction(answer="A")) for example in data()]
    assert read == [value, value, value, 0.125, value, value]
    assert {type(number) for number in read} == {float}
    with dspy.context(lm=learner()):
        assert calibrate.scores(Answer(), data(), metric, num_threads=2) == read


# --- dspy.GEPA with dspy.Flex -------------------------------------------------------------------------


def test_flex_runs_in_dspys_own_interpreter_with_text_and_number_of_one_call_for_each_rollout():
    judgements = []

    def score(input, output, expected=None):
        judgements.append((input["question"], output))
        right = output == expected["answer"]
        return float(right), {"feedback": f"Judgement {len(judgements)}.", "scores": {"exact": float(right)}}

    lm = learner()
    metric = as_dspy_metric(score)
    with dspy.context(lm=lm):
        result = dspy.GEPA(
            metric=metric, max_metric_calls=9, reflection_lm=lm, num_threads=2, track_stats=True
        ).compile(
            dspy.Flex("question -> answer", interpreter_factory=dspy.LocalInterpreter),
            trainset=data()[2:5],
            valset=data()[2:5],
        )
    details = result.detailed_results
    assert details.val_aggregate_scores == pytest.approx([1 / 3, 2 / 3])
    assert [one["exact"] for one in details.val_aggregate_subscores] == pytest.approx([1 / 3, 2 / 3])
    assert IMPROVED in result.module_src
    assert metric.metric.calls == len(judgements) == details.total_metric_calls
    [prompt] = [prompt for prompt in lm.asked if "`revised_source`" in prompt]
    shown = re.findall(r"Judgement (\d+)\.\n\nScore: (\d)\nNamed scores: exact (\d)", prompt)
    assert len(shown) == 3
    for number, value, named in shown:
        right = judgements[int(number) - 1][1] == "A"
        assert (value, named) == (str(int(right)), str(int(right)))


def test_flex_shows_its_model_why_there_is_no_judgement():
    prompts = run("GEPA-with-Flex", as_dspy_metric(grading(special=boom)))[1]
    proposals = [prompt for prompt in prompts if "`revised_source`" in prompt]
    assert any("raised ValueError: boom" in prompt for prompt in proposals)


def test_flex_reads_the_general_text_since_it_asks_for_no_component():
    def score(input, output, expected=None):
        own = dict.fromkeys(("self", "predict", "answer"), "OWN-TEXT")
        return float(output == expected["answer"]), {"feedback": "GENERAL-TEXT", "component_feedback": own}

    prompts = run("GEPA-with-Flex", as_dspy_metric(score))[1]
    assert any("GENERAL-TEXT" in prompt for prompt in prompts)
    assert not any("OWN-TEXT" in prompt for prompt in prompts)


def test_a_program_with_flex_and_a_predictor_costs_one_call_for_each_rollout_and_both_read_texts():
    class Mixed(dspy.Module):
        def __init__(self):
            super().__init__()
            self.first = dspy.Flex("question -> answer", interpreter_factory=InProcess)
            self.second = dspy.Predict("question, draft -> answer")

        def forward(self, question):
            return self.second(question=question, draft=self.first(question=question).answer)

    def score(input, output, expected=None):
        info = {"feedback": "GENERAL-TEXT", "component_feedback": {"second": "OWN-TEXT"}}
        return float(output == expected["answer"]), info

    lm = learner()
    metric = as_dspy_metric(score)
    with dspy.context(lm=lm):
        result = dspy.GEPA(
            metric=metric,
            max_metric_calls=30,
            reflection_lm=lm,
            num_threads=1,
            track_stats=True,
            component_selector="all",
        ).compile(Mixed(), trainset=data(), valset=data())
    code = [prompt for prompt in lm.asked if "`revised_source`" in prompt]
    instructions = [prompt for prompt in lm.asked if "`new_instruction`" in prompt]
    assert all("GENERAL-TEXT" in prompt for prompt in code)
    assert all("OWN-TEXT" in prompt for prompt in instructions)
    assert code
    assert instructions
    assert metric.metric.calls == result.detailed_results.total_metric_calls


def failing_on_the_first_case(input, output, expected=None):
    if input["question"] == "q0":
        raise ValueError("boom")
    return 1.0, {"feedback": "Judged.", "scores": {"exact": 1.0}}


def test_named_scores_in_flex_are_complete_with_score_names_also_where_the_first_case_fails():
    metric = as_dspy_metric(failing_on_the_first_case, score_names=["exact"])
    with dspy.context(lm=learner()):
        named = flex(metric, frontier="objective")[2]
    # Five of six: a case without a judgement counts as the failure score.
    assert named[0] == {"exact": pytest.approx(5 / 6)}


def test_named_scores_that_flex_read_too_early_are_warned_of(caplog):
    """`dspy.GEPA` reads them after each case here, not at the end of the batch (dspy 3.4.1)."""
    metric = as_dspy_metric(failing_on_the_first_case)
    with dspy.context(lm=learner()):
        flex(metric, frontier="objective")
    warnings = [record.getMessage() for record in caplog.records if record.name == "skynet_adapters"]
    assert len([text for text in warnings if "'exact' after" in text and "score_names=" in text]) == 1


# --- GRPO -------------------------------------------------------------------------------------------


def test_grpo_trains_with_the_numbers_as_rewards():
    """All of its loop runs here; only the training itself is left out."""
    metric = as_dspy_metric(grading(right=0.75, wrong=0.05, special=boom), failure_score=0.0)
    steps = run("GRPO", metric)[0]
    assert len(steps) == 2
    rewards = {}
    for step in steps:
        for group in step:
            assert len(group) == 2
            for [question], reward in group:
                assert type(reward) is float
                rewards.setdefault(question, set()).add(reward)
    assert rewards == {"q0": {0.75}, "q1": {0.75}, "q2": {0.05}, "q3": {0.0}, "q4": {0.05}, "q5": {0.05}}


# --- AvatarOptimizer ----------------------------------------------------------------------------------


def test_avatar_optimizer_cannot_be_made_in_this_dspy_since_it_needs_a_name_that_is_gone():
    with pytest.raises(AttributeError, match="TypedPredictor"):
        dspy.AvatarOptimizer(metric=as_dspy_metric(grading()))


def test_avatar_optimizer_counts_an_answer_without_a_judgement_among_the_bad_ones():
    _, compared = run("AvatarOptimizer", as_dspy_metric(grading(special=boom), failure_score=1.0))[0]
    *_, good, bad = compared[0].split("_input_with_metrics ## ]]\n")
    assert "q3" not in good
    assert "q3" in bad
