"""Programs, optimisers and runs with a metric or reward inside: saved, loaded, copied."""

import copy
import functools
import json
import logging
import subprocess
import sys
import textwrap
from pathlib import Path

import cloudpickle
import dspy
import pytest
from dspy.clients.provider import Provider

from skynet_adapters import Metric, as_dspy_metric, as_dspy_reward, from_dspy_metric
from tests.scripted import ScriptedEngine, answering, chat, examples, field_of, reflecting, scripted_lm

ROOT = Path(__file__).resolve().parents[1]
SECRET = "sk-this-must-not-be-saved"

both = pytest.mark.parametrize("module", [dspy.BestOfN, dspy.Refine])


def wants_b(input, output, expected=None):
    if output == "boom":
        raise ValueError("boom")
    return (1.0 if output == "B" else 0.25), {
        "feedback": f"Wanted 'B', got {output!r}.",
        "scores": {"terse": 0.5},
    }


class WantsB:
    def __call__(self, input, output, expected=None):
        return wants_b(input, output)


async def wants_b_later(input, output):
    return wants_b(input, output)


def terse(example, pred, trace=None):
    return dspy.Prediction(score=1.0 if pred.answer == "B" else 0.25, feedback="Terse.")


class Careful(dspy.Module):
    """A program with a reward inside."""

    def __init__(self, module, reward, n=3, threshold=0.9):
        super().__init__()
        self.reward = reward
        self.best = module(
            module=dspy.Predict("question -> answer"), N=n, reward_fn=reward, threshold=threshold
        )

    def forward(self, question):
        return self.best(question=question)


class SelfChecking(dspy.Module):
    """A program that asks a metric itself."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question):
        answer = self.answer(question=question)
        result = self.metric(dspy.Example(question=question).with_inputs("question"), answer)
        return dspy.Prediction(answer=answer.answer, right=bool(result), said=result.feedback)


def in_turn(*answers):
    """A model that gives these answers in turn, and Refine its advice."""
    given = []

    def answer(messages):
        if "reward_code" in messages[0]["content"]:
            return chat(discussion="d", advice='{"self": "do better"}')
        given.append(answers[len(given) % len(answers)])
        return chat(answer=given[-1])

    return scripted_lm(answer)


def saved_and_loaded(program, tmp_path):
    program.save(str(tmp_path / "program"), save_program=True)
    return dspy.load(str(tmp_path / "program"), allow_pickle=True)


# --- programs -------------------------------------------------------------------------------------

SCORES = {
    "function": wants_b,
    "lambda": lambda input, output: (1.0 if output == "B" else 0.25, {"feedback": "F."}),
    "partial": functools.partial(wants_b, expected=None),
    "object": WantsB(),
    "method": WantsB().__call__,
    "async": wants_b_later,
    "metric": Metric(wants_b, timeout=5),
    "dspy-metric": from_dspy_metric(terse),
}


@both
@pytest.mark.parametrize("name", SCORES)
def test_a_saved_program_with_a_reward_inside_works_when_it_is_loaded(module, name, tmp_path):
    loaded = saved_and_loaded(Careful(module, as_dspy_reward(SCORES[name])), tmp_path)
    with dspy.context(lm=in_turn("A", "B", "C")):
        assert loaded(question="q").answer == "B"
    assert (loaded.reward.metric.calls, len(loaded.reward.metric.failures)) == (2, 0)


@both
def test_the_metric_object_as_reward_is_saved_as_well(module, tmp_path):
    loaded = saved_and_loaded(Careful(module, as_dspy_metric(wants_b)), tmp_path)
    with dspy.context(lm=in_turn("A", "B", "C")):
        assert loaded(question="q").answer == "B"


def test_options_are_saved_and_counters_and_memory_are_not(tmp_path):
    options = {
        "name": "judge",
        "score_range": (-1, 1),
        "score_names": ["terse", "other"],
        "success_threshold": 0.6,
        "failure_score": -1.0,
        "timeout": 7.0,
        "output": "answer",
    }
    program = Careful(dspy.BestOfN, as_dspy_reward(wants_b, **options))
    with dspy.context(lm=in_turn("A", "boom", "B")):
        assert program(question="q").answer == "B"
    assert (program.reward.metric.calls, len(program.reward.metric.failures)) == (3, 1)

    reward = saved_and_loaded(program, tmp_path).reward
    assert (reward.__name__, reward.metric.name, reward.metric.timeout) == ("judge_reward", "judge", 7.0)
    assert (reward.metric.calls, len(reward.metric.failures)) == (0, 0)
    good = reward({"question": "q"}, dspy.Prediction(answer="B", more=1))
    bad = reward({"question": "q"}, dspy.Prediction(answer="A", more=1))
    failed = reward({"question": "q"}, dspy.Prediction(answer="boom", more=1))
    assert [float(one) for one in (good, bad, failed)] == [1.0, 0.625, -1.0]
    assert [bool(one) for one in (good, bad, failed)] == [True, True, False]
    assert good["objective_scores"] == {"terse": 0.5, "other": -1.0}


def test_a_metric_that_was_loaded_shows_its_own_failures():
    made = cloudpickle.loads(cloudpickle.dumps(as_dspy_metric(wants_b)))
    made(examples(1)[0], dspy.Prediction(answer="boom"))
    assert len(made.metric.failures) == 1
    assert made.failures is made.metric.failures


def test_output_and_expected_functions_are_saved(tmp_path):
    def same(input, output, expected=None):
        return float(output == expected), {"feedback": "F."}

    metric = as_dspy_metric(
        same, output=lambda pred: pred.answer.lower(), expected=lambda example: example.get("answer", "b")
    )
    loaded = saved_and_loaded(SelfChecking(metric), tmp_path)
    with dspy.context(lm=in_turn("B", "A")):
        assert [loaded(question="q").right for _ in range(2)] == [True, False]


def test_a_program_that_asks_a_metric_itself_works_when_it_is_loaded(tmp_path):
    loaded = saved_and_loaded(SelfChecking(as_dspy_metric(wants_b)), tmp_path)
    with dspy.context(lm=in_turn("B", "A", "boom")):
        answers = [loaded(question="q") for _ in range(3)]
    assert [answer.right for answer in answers] == [True, False, False]
    assert answers[1].said.startswith("Wanted 'B', got 'A'.")
    assert "ValueError: boom" in answers[2].said


def judging(input, output, expected=None):
    return dspy.Predict("verdict_on -> score: float")(verdict_on=output).score, {"feedback": "Judged."}


def test_the_model_of_a_judge_stays_behind_with_its_key_and_the_one_that_is_set_judges(tmp_path):
    judge = dspy.LM("openai/gpt-4o-mini", api_key=SECRET)
    loaded = saved_and_loaded(Careful(dspy.BestOfN, as_dspy_reward(judging, metric_lm=judge)), tmp_path)
    assert SECRET.encode() not in (tmp_path / "program" / "program.pkl").read_bytes()

    def answer(messages):
        if "verdict_on" in messages[-1]["content"]:
            return chat(score=0.95 if field_of(messages, "verdict_on") == "B" else 0.1)
        return chat(answer="AB"[len(lm.prompts) > 1])

    lm = scripted_lm(answer)
    with dspy.context(lm=lm):
        assert loaded(question="q").answer == "B"
    assert loaded.reward.metric.calls == 2


@both
def test_only_the_state_can_be_saved_too(module, tmp_path):
    program = Careful(module, as_dspy_reward(wants_b))
    program.best.module.demos = [dspy.Example(question="2 + 2?", answer="4")]
    program.save(str(tmp_path / "state.json"))
    other = Careful(module, as_dspy_reward(wants_b))
    other.load(str(tmp_path / "state.json"))
    [demo] = other.best.module.demos
    assert demo["answer"] == "4"
    with dspy.context(lm=in_turn("A", "B")):
        assert other(question="q").answer == "B"


@pytest.mark.parametrize("module", [dspy.BestOfN, dspy.Refine])
def test_a_program_that_gepa_optimised_is_saved_with_its_results(module, tmp_path):
    metric = as_dspy_metric(
        lambda input, output, expected: (0.5 * (output == expected["answer"]), {"feedback": "Half right."})
    )
    with dspy.context(lm=in_turn("A", "B")):
        best = dspy.GEPA(
            metric=metric,
            max_metric_calls=12,
            reflection_lm=reflecting(),
            num_threads=1,
            track_stats=True,
            track_best_outputs=True,
        ).compile(Careful(module, as_dspy_reward(wants_b), n=2), trainset=examples(3), valset=examples(3))
        loaded = saved_and_loaded(best, tmp_path)
        assert loaded(question="q").answer == "B"
    assert loaded.detailed_results.val_aggregate_scores == best.detailed_results.val_aggregate_scores
    assert loaded.predictors()[0].signature.instructions == best.predictors()[0].signature.instructions


SAVING = """
import functools, sys
import dspy
from skynet_adapters import as_dspy_metric, as_dspy_reward, from_dspy_metric

def wants_b(input, output, expected=None):
    if output == "boom":
        raise ValueError("boom")
    return (1.0 if output == "B" else 0.25), {"feedback": "Wanted B."}

def terse(example, pred, trace=None):
    return pred.answer == "B"

class Careful(dspy.Module):
    def __init__(self, module, reward):
        super().__init__()
        self.reward = reward
        self.best = module(module=dspy.Predict("question -> answer"), N=4, reward_fn=reward, threshold=0.9)

    def forward(self, question):
        return self.best(question=question)

scores = {
    "function": wants_b,
    "lambda": lambda input, output: (1.0 if output == "B" else 0.25, {"feedback": "F."}),
    "partial": functools.partial(wants_b, expected=None),
    "dspy_metric": from_dspy_metric(terse),
}
for name, score in scores.items():
    for module in (dspy.BestOfN, dspy.Refine):
        for make in (as_dspy_reward, as_dspy_metric):
            program = Careful(module, make(score, success_threshold=0.2, name="judge"))
            program.save(f"{sys.argv[1]}/{name}-{module.__name__}-{make.__name__}", save_program=True)
"""

LOADING = """
import json, sys
from pathlib import Path
import dspy
from tests.scripted import chat, scripted_lm

def model():
    given = []
    def answer(messages):
        if "reward_code" in messages[0]["content"]:
            return chat(discussion="d", advice='{"self": "do better"}')
        given.append("ACBD"[len(given) % 4])
        return chat(answer=given[-1])
    return scripted_lm(answer)

found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    program = dspy.load(str(path), allow_pickle=True)
    with dspy.context(lm=model()):
        answer = program(question="q").answer
    metric = program.reward.metric
    result = program.reward({"question": "q"}, dspy.Prediction(answer="A"))
    found[path.name] = [answer, metric.name, metric.calls, len(metric.failures), float(result), bool(result)]
print(json.dumps(found))
"""


def run(code, *arguments):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(code)}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_programs_saved_by_one_process_work_in_another(tmp_path):
    run(SAVING, str(tmp_path))
    found = json.loads(run(LOADING, str(tmp_path)).splitlines()[-1])
    assert len(found) == 16
    for name, (answer, metric, calls, failures, score, truth) in found.items():
        weak = 0.0 if name.startswith("dspy_metric") else 0.25
        assert (answer, metric, calls, failures) == ("B", "judge", 4, 0), name
        assert (score, truth) == (weak, weak >= 0.2), name


# --- results --------------------------------------------------------------------------------------


# With `pickle` alone DSPy's own predictions of a signature given as a text fail (dspy 3.4.1).
def test_the_result_of_an_evaluation_is_pickled_with_number_text_truth_and_error():
    with dspy.context(lm=answering(lambda question: {"q0": "B", "q1": "A", "q2": "boom"}[question])):
        result = dspy.Evaluate(devset=examples(3), metric=as_dspy_metric(wants_b), num_threads=1)(
            dspy.Predict("question -> answer")
        )
    again = cloudpickle.loads(cloudpickle.dumps(result))
    before, after = ([one for _, _, one in run.results] for run in (result, again))
    assert again.score == result.score == pytest.approx(100 * 1.25 / 3, abs=0.01)
    assert [float(one) for one in after] == [1.0, 0.25, 0.0]
    assert [bool(one) for one in after] == [True, False, False]
    assert [one.feedback for one in after] == [one.feedback for one in before]
    assert [one.get("objective_scores") for one in after] == [one.get("objective_scores") for one in before]
    assert [str(one.error) for one in after] == [str(one.error) for one in before]
    assert sum(after) == 1.25


# --- optimisers -----------------------------------------------------------------------------------


class Tuning(Provider):
    def __init__(self):
        super().__init__()
        self.finetunable = True
        self.rows = []

    def finetune(self, job, model, train_data, train_data_format, train_kwargs=None):
        self.rows.append(len(train_data))
        return f"{model}-tuned"


def program():
    return dspy.Predict("question -> answer")


def anything(messages):
    """A model for the programs here and for every helper program of the optimisers."""
    text = messages[0]["content"]
    if "module_advice" in text:
        return chat(discussion="d", module_advice='{"self": "be right"}')
    return chat(
        answer="B" if field_of(messages, "question") in ("q0", "q2") else "A",
        reasoning="r",
        proposed_instruction="Answer.",
        proposed_prefix_for_output_field="Answer:",
        natural_language_rules="Be right.",
        observations="o",
        summary="s",
        program_description="p",
        module_description="m",
    )


def demos(compiled):
    return [demo["question"] for demo in compiled.predictors()[0].demos]


def compiled_scores(optimiser, **options):
    return [
        one["score"]
        for one in optimiser.compile(program(), trainset=examples(4), **options).candidate_programs
    ]


def finetuned(optimiser):
    provider = Tuning()
    lm = dspy.LM("scripted/model", engine=ScriptedEngine(anything), provider=provider, cache=False)
    student = program()
    student.set_lm(lm)
    optimiser.compile(student, trainset=examples(4))
    return provider.rows


def better_together(optimiser):
    provider = Tuning()
    lm = dspy.LM("scripted/model", engine=ScriptedEngine(anything), provider=provider, cache=False)
    student = program()
    student.set_lm(lm)
    best = optimiser.compile(
        student, trainset=examples(4), valset=examples(4), strategy="p -> w", num_threads=1, seed=0
    )
    return [one["score"] for one in best.candidate_programs], provider.rows


# Not `BootstrapFewShot` and `InferRules`: they hold a lock, and do not pickle with any metric (dspy 3.4.1).
OPTIMISERS = {
    "Evaluate": (
        lambda metric: dspy.Evaluate(devset=examples(4), metric=metric, num_threads=2),
        lambda optimiser: optimiser(program()).score,
    ),
    "GEPA": (
        lambda metric: dspy.GEPA(
            metric=metric, max_metric_calls=16, reflection_lm=reflecting(), num_threads=1, track_stats=True
        ),
        lambda optimiser: (
            optimiser.compile(
                program(), trainset=examples(4), valset=examples(4)
            ).detailed_results.val_aggregate_scores
        ),
    ),
    "RandomSearch": (
        lambda metric: dspy.BootstrapFewShotWithRandomSearch(
            metric=metric,
            num_candidate_programs=1,
            max_bootstrapped_demos=2,
            max_labeled_demos=0,
            num_threads=1,
        ),
        lambda optimiser: [
            (one["score"], demos(one["program"]))
            for one in optimiser.compile(
                program(), trainset=examples(4), valset=examples(4)
            ).candidate_programs
        ],
    ),
    "COPRO": (
        lambda metric: dspy.COPRO(metric=metric, breadth=2, depth=1),
        lambda optimiser: compiled_scores(
            optimiser, eval_kwargs={"num_threads": 1, "display_progress": False}
        ),
    ),
    "SIMBA": (
        lambda metric: dspy.SIMBA(
            metric=metric, bsize=4, num_candidates=2, max_steps=1, max_demos=1, num_threads=1
        ),
        compiled_scores,
    ),
    "MIPROv2": (
        lambda metric: dspy.MIPROv2(
            metric=metric,
            auto=None,
            num_candidates=2,
            num_threads=1,
            max_bootstrapped_demos=1,
            max_labeled_demos=0,
            prompt_model=scripted_lm(anything),
            task_model=scripted_lm(anything),
        ),
        lambda optimiser: (
            optimiser.compile(
                program(), trainset=examples(4), valset=examples(4), num_trials=2, minibatch=False
            ).score
        ),
    ),
    "KNNFewShot": (
        lambda metric: dspy.KNNFewShot(
            k=4,
            trainset=examples(4),
            vectorizer=dspy.Embedder(lambda texts: [[float(text[-1])] for text in texts], caching=False),
            metric=metric,
            max_labeled_demos=0,
        ),
        lambda optimiser: len(optimiser.compile(program())(question="q1").answer),
    ),
    "BootstrapFinetune": (lambda metric: dspy.BootstrapFinetune(metric=metric, num_threads=1), finetuned),
    "BetterTogether": (
        lambda metric: dspy.BetterTogether(
            metric=metric,
            p=dspy.BootstrapFewShotWithRandomSearch(
                metric=metric,
                num_candidate_programs=1,
                max_bootstrapped_demos=1,
                max_labeled_demos=0,
                num_threads=1,
            ),
            w=dspy.BootstrapFinetune(metric=metric, num_threads=1),
        ),
        better_together,
    ),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_with_a_metric_inside_works_after_cloudpickle_as_before(name):
    make, work = OPTIMISERS[name]
    metric = as_dspy_metric(wants_b)
    again = cloudpickle.loads(cloudpickle.dumps(make(metric)))
    inside = (
        next(value for value in vars(again).values() if isinstance(getattr(value, "metric", None), Metric))
        if name != "KNNFewShot"
        else again.few_shot_bootstrap_args["metric"]
    )
    assert inside is not metric
    with dspy.context(lm=scripted_lm(anything)):
        assert work(again) == work(make(metric))
    assert inside.metric.calls == metric.metric.calls > 0
    assert len(inside.metric.failures) == 0


# --- a run of dspy.GEPA that is saved and resumed -------------------------------------------------


@pytest.mark.parametrize("inside", [False, True], ids=["plain-program", "reward-inside"])
def test_gepa_saves_its_run_and_resumes_it(inside, tmp_path):
    def half(input, output, expected=None):
        return 0.5 * (output == expected["answer"]), {"feedback": "Half right.", "scores": {"terse": 0.5}}

    def optimised(budget):
        metric = as_dspy_metric(half, score_names=["terse"])
        student = Careful(dspy.BestOfN, as_dspy_reward(wants_b), n=2) if inside else program()
        with dspy.context(lm=scripted_lm(anything)):
            best = dspy.GEPA(
                metric=metric,
                max_metric_calls=budget,
                reflection_lm=reflecting(),
                num_threads=1,
                track_stats=True,
                track_best_outputs=True,
                log_dir=str(tmp_path),
                gepa_kwargs={"use_cloudpickle": True, "frontier_type": "hybrid"},
            ).compile(student, trainset=examples(3), valset=examples(3, lambda number: "BA"[number % 2]))
        return best.detailed_results, metric.metric

    first, _ = optimised(10)
    assert (tmp_path / "gepa_state.bin").stat().st_size > 0
    resumed, metric = optimised(22)
    assert resumed.total_metric_calls > first.total_metric_calls
    assert resumed.val_aggregate_scores[: len(first.val_aggregate_scores)] == first.val_aggregate_scores
    assert resumed.val_aggregate_scores[0] == pytest.approx(0.5)
    assert all(scores == {"terse": 0.5} for scores in resumed.val_aggregate_subscores)
    assert metric.calls > 0
    assert len(metric.failures) == 0


# --- copies ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda program: program.deepcopy(), lambda program: program.reset_copy()]
)
def test_a_copied_program_goes_on_with_the_same_metric(module, copied, caplog):
    original = Careful(module, as_dspy_reward(wants_b))
    with caplog.at_level(logging.WARNING):
        again = copied(original)
    assert "deep copy" not in caplog.text
    assert again.best.module is not original.best.module
    with dspy.context(lm=in_turn("A", "B", "C")):
        assert again(question="q").answer == "B"
    assert again.reward.metric.calls == original.reward.metric.calls == 2


@both
def test_a_copied_program_keeps_the_judges_model(module):
    def answer(messages):
        return chat(score=0.95 if field_of(messages, "verdict_on") == "B" else 0.1)

    judge = scripted_lm(answer)
    again = copy.deepcopy(Careful(module, as_dspy_reward(judging, metric_lm=judge)))
    with dspy.context(lm=in_turn("A", "B", "C")):
        assert again(question="q").answer == "B"
    assert len(judge.prompts) == 2


def test_a_program_that_holds_a_metric_itself_is_copied():
    original = SelfChecking(Metric(wants_b, name="judge"))
    original.metric.score_case({"question": "q"}, "boom")
    again = original.deepcopy()
    assert (again.metric.name, again.metric.calls, len(again.metric.failures)) == ("judge", 0, 0)
    assert again.metric.score_case({"question": "q"}, "B").value == 1.0
    assert original.metric.calls == 1
