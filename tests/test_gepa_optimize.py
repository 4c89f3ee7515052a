"""A whole GEPA run in one call, and what is said when nothing came of it."""

import subprocess
import sys
import threading

import dspy
import gepa
import pytest
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from skynet import llm
from skynet_adapters import (
    Case,
    DataError,
    DefinitionError,
    Metric,
    MetricError,
    ReflectionBroken,
    ReflectionError,
    as_gepa_adapter,
    as_gepa_dataset,
    as_gepa_evaluator,
    as_reflection_lm,
    models,
    optimize_artifact,
    program_artifact,
    program_run,
    to_program,
)
from tests.scripted import chat, scripted_lm
from tests.waiting import eventually

CASES = [Case(str(number), {"n": number}, {"label": f"L{number}"}) for number in range(8)]
RULE = "Say the label."


def run(artifact, input):
    text = artifact if isinstance(artifact, str) else " ".join(artifact.values())
    return f"L{input['n']}" if RULE in text else "?"


def score(input, output, expected=None):
    right = output == expected["label"]
    return (1.0 if right else 0.25), {"feedback": "Right." if right else f"Expected {expected['label']}."}


def logged(caplog):
    """What was logged, without the closing lines of metrics of other tests, which may come at any time."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "have no judgement" not in line]


class Log(list):
    """GEPA's logger."""

    def log(self, message):
        self.append(str(message))


def optimized(artifact="Guess.", run=run, score=score, trainset=CASES, valset=None, **arguments):
    given = {"reflection_lm": lambda prompt: RULE, "max_metric_calls": 40, "logger": Log(), **arguments}
    return optimize_artifact(artifact, run, score, trainset, valset, **given)


@pytest.mark.parametrize(
    ("artifact", "best"),
    [("Guess.", RULE), ({"plan": "Guess.", "tone": "Kind."}, {"plan": RULE, "tone": "Kind."})],
)
def test_the_best_artifact_comes_back_in_its_own_shape(artifact, best, caplog):
    made = optimized(artifact)
    assert made.artifact == best
    assert made.score == 1.0
    assert made.result.val_aggregate_scores[0] == 0.25
    assert made.adapter.metric.calls >= 16
    assert logged(caplog) == []


def test_a_validation_set_is_used_as_one():
    made = optimized(trainset=CASES[:4], valset=iter(CASES[4:]), cache_evaluation=True)
    assert made.artifact == RULE
    assert len(made.result.val_subscores[0]) == 4


def test_options_reach_metric_adapter_and_gepa(tmp_path, released):
    width, high, lock = 0, 0, threading.Lock()
    prompts = []

    def counted(artifact, input):
        nonlocal width, high
        if input["n"] == 7:
            released.wait()
        with lock:
            width += 1
            high = max(high, width)
        threading.Event().wait(0.005)
        with lock:
            width -= 1
        return run(artifact, input)

    def of_ten(input, output, expected=None):
        value, info = score(input, output, expected)
        return value * 10, info

    made = optimized(
        run=counted,
        score=of_ten,
        score_range=(0, 10),
        name="of ten",
        max_workers=1,
        run_timeout=0.5,
        include_expected=True,
        reflection_lm=lambda prompt: (prompts.append(prompt), RULE)[1],
        run_dir=str(tmp_path),
        seed=3,
    )
    assert made.result.val_aggregate_scores[0] == pytest.approx(0.25 * 7 / 8)
    assert made.score == 7 / 8
    assert made.adapter.metric.name == "of ten"
    assert high == 1
    assert "## Expected" in prompts[0]
    assert made.result.run_dir == str(tmp_path)
    assert (tmp_path / "skynet_adapters_run.json").exists()


def test_a_metric_and_loaders_are_taken_as_they_are():
    metric = Metric(score)
    made = optimized(score=metric, trainset=as_gepa_dataset(CASES), valset=as_gepa_dataset(CASES[:3]))
    assert made.adapter.metric is metric
    assert made.artifact == RULE


def test_the_threads_of_a_run_end_with_it():
    before = threading.active_count()
    for _ in range(3):
        optimized(max_workers=4)
    # Helpers may wait for the next call, of which 4 run.
    assert eventually(lambda: threading.active_count() <= before + 12)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (
            {"max_metric_call": 9},
            DefinitionError,
            "an argument 'max_metric_call'; did you mean 'max_metric_calls'",
        ),
        ({"score_rnge": (0, 1)}, DefinitionError, "did you mean 'score_range'"),
        ({"max_worker": 1}, DefinitionError, "did you mean 'max_workers'"),
        ({"num_threads": 1}, DefinitionError, "'num_threads'; give max_workers"),
        ({"auto": "light"}, DefinitionError, "'auto'; give max_metric_calls"),
        ({"metric": score}, DefinitionError, "'metric'; give score"),
        ({"student": None}, DefinitionError, r"'student'; give program_artifact\(program\) as artifact"),
        (
            {"seed_candidate": {}},
            DefinitionError,
            "makes seed_candidate of artifact; leave seed_candidate out",
        ),
        ({"evaluator": print}, DefinitionError, "makes evaluator of score"),
        ({"max_metric_calls": 8}, DefinitionError, "max_metric_calls=8 is used up"),
        ({"reflection_lm": 7}, DefinitionError, "a reflection model is"),
        ({"reflection_lm": None}, DefinitionError, "there is no reflection_lm"),
        ({"artifact": {}}, DefinitionError, "has no parts"),
        ({"score": Metric(score), "timeout": 3}, DefinitionError, "has its options already"),
        ({"trainset": [CASES[0], 7]}, DataError, "case 2: 7"),
        ({"valset": []}, DataError, "the data set is empty"),
        ({"trainset": "cases"}, DataError, "'cases' .* is no list of cases"),
        ({"trainset": None}, DataError, "is no list of cases"),
        ({"callbacks": object()}, DefinitionError, r"pass a list, as in callbacks=\[adapter.callback\]"),
        ({"reflection_strategy": "x"}, DefinitionError, "it must be an object with a method reflect"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_called(wrong, error, said):
    calls = []
    arguments = {"run": lambda artifact, input: calls.append(input), **wrong}
    with pytest.raises(error, match=said):
        optimized(**arguments)
    assert calls == []


def test_a_broken_metric_stops_the_run():
    def broken(input, output, expected=None):
        raise KeyError("lable")

    with pytest.raises(MetricError, match="lable"):
        optimized(score=broken)


def test_a_dspy_program_is_an_artifact_too():
    lm = scripted_lm(lambda messages: chat(answer="4" if RULE in str(messages) else "?"))
    program = dspy.Predict("question -> answer")

    def exact(input, output, expected=None):
        return float(output == expected["answer"]), {"feedback": "f"}

    with dspy.context(lm=lm):
        cases = [dspy.Example(question=f"2 + {n}?", answer="4").with_inputs("question") for n in range(4)]
        made = optimized(program_artifact(program), program_run(program), exact, cases)
        assert to_program(made.artifact, like=program).signature.instructions == RULE


def test_importing_it_loads_no_dspy():
    code = "import sys, skynet_adapters; skynet_adapters.optimize_artifact; print('dspy' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# --- what is said at the end -------------------------------------------------------------------------


def closing(caplog):
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("GEPA ")]
    assert len(lines) <= 1
    return lines[0] if lines else None


def test_nothing_is_said_when_something_was_accepted(caplog):
    optimized()
    assert closing(caplog) is None


def test_a_budget_that_ends_with_the_seed_is_named(caplog):
    made = optimized(max_metric_calls=None, stop_callbacks=lambda state: True)
    assert made.artifact == "Guess."
    assert closing(caplog) == (
        "GEPA ended with the artifact that it began with: it stopped before anything was proposed, with 8 "
        "metric calls used; raise max_metric_calls, or look at what else stops the run"
    )


def test_perfect_minibatches_are_named(caplog):
    optimized(score=lambda input, output: (1.0, {"feedback": "f"}), max_metric_calls=17)
    assert "3 of 3 minibatches were perfect, so that nothing was proposed" in closing(caplog)


def test_a_reflection_model_that_fails_is_named_with_its_last_error(caplog):
    count = iter(range(100))

    def away(prompt):
        raise ConnectionError(f"away {next(count)}")

    optimized(reflection_lm=away, max_metric_calls=14)
    assert closing(caplog) == (
        "GEPA ended with the artifact that it began with: the reflection model gave no text for 2 of 2 "
        "proposals, the last because the reflection model 'away' raised ConnectionError: away 3"
    )


class Away:
    """A reflection model that answers the questions of these numbers."""

    def __init__(self, *answers):
        self.asked = 0
        self.answers = answers

    def __call__(self, prompt):
        self.asked += 1
        if self.asked in self.answers:
            return "Worse."
        raise ConnectionError("no such host")


def noted_run(ran):
    def noted(artifact, input):
        ran.append(input)
        return run(artifact, input)

    return noted


def test_a_reflection_model_that_never_answers_stops_the_run_by_name_and_few_cases_are_paid():
    model, ran = Away(), []
    with pytest.raises(ReflectionError) as stopped:
        optimized(run=noted_run(ran), reflection_lm=model, max_metric_calls=400)
    assert model.asked == 5
    assert len(ran) < 30
    said = str(stopped.value)
    assert "the reflection model 'Away' was asked 5 times and never answered" in said
    assert "ConnectionError: no such host" in said
    assert isinstance(stopped.value.__cause__, ConnectionError)


def test_a_reflection_model_that_gives_no_text_ever_stops_the_run_too():
    with pytest.raises(ReflectionError, match=r"gave \[\] \(list\), not a text.*max_tokens"):
        optimized(reflection_lm=lambda prompt: [], max_metric_calls=400)


@pytest.mark.parametrize("answers", [(1,), (5,)])
def test_a_reflection_model_that_has_answered_may_fail_as_often_as_it_likes(answers):
    model = Away(*answers)
    best = optimized(reflection_lm=model, max_metric_calls=80)
    assert best.artifact == "Guess."
    assert model.asked > 10


def test_the_reflection_model_of_a_call_of_ones_own_stops_gepa_which_goes_on_after_exceptions():
    model = Away()
    adapter = as_gepa_adapter(score, run, artifact="Guess.")
    arguments = {"trainset": CASES, "adapter": adapter, "max_metric_calls": 400, "logger": Log()}
    reflection_lm = as_reflection_lm(model)
    for asked in (5, 10):  # the same one again, once it is mended
        with pytest.raises(ReflectionBroken, match="'Away' was asked 5 times"):
            gepa.optimize(
                adapter.seed_candidate, reflection_lm=reflection_lm, raise_on_exception=False, **arguments
            )
        assert model.asked == asked


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_a_reflection_model_that_never_answers_stops_optimize_anything_too(way):
    model, ran = Away(), []
    evaluator = as_gepa_evaluator(score, noted_run(ran))
    call = evaluator if way == "evaluator" else evaluator.batch
    config = GEPAConfig(
        engine=EngineConfig(max_metric_calls=400, raise_on_exception=False),
        reflection=ReflectionConfig(reflection_lm=as_reflection_lm(model)),
    )
    with pytest.raises(ReflectionBroken, match="'Away' was asked 5 times"):
        optimize_anything("Guess.", **{way: call}, dataset=CASES, config=config)
    assert model.asked == 5
    assert len(ran) < 60


def test_the_reflection_model_that_judges_too_fails_as_a_judge_there():
    reflection_lm = as_reflection_lm(Away())
    metric = Metric(lambda input, output: (0.5, {"feedback": llm("Why?", input=output)}))
    with models(reflection_lm=reflection_lm):
        for number in range(8):
            assert "no such host" in str(metric.score_case({"n": number}, "?").error)
            with pytest.raises(MetricError, match="the reflection model, asked since"):
                llm("Hi.")


def test_a_model_of_ones_own_that_fails_is_named_too(caplog):
    adapter = as_gepa_adapter(score, run, artifact="Guess.")
    gepa.optimize(
        adapter.seed_candidate,
        trainset=CASES,
        adapter=adapter,
        reflection_lm=lambda prompt: ["a list"],
        max_metric_calls=12,
        callbacks=[adapter.callback],
        logger=Log(),
    )
    assert closing(caplog).endswith("the reflection model gave no text for 2 of 2 proposals")


def test_proposals_that_were_refused_are_named(caplog):
    optimized(reflection_lm=lambda prompt: "Worse.", max_metric_calls=20)
    assert closing(caplog).endswith(
        "2 of 2 proposals were refused, the last because: New subsample score 0.75 not better than old score "
        "0.75"
    )


def no_key(artifact, input):
    raise ConnectionError("no key")


def unread(input, output, expected=None):
    raise ValueError("no table")


@pytest.mark.parametrize(
    ("wrong", "what", "fault"),
    [
        ({"run": no_key}, "had an output of run", "It raised ConnectionError: no key"),
        ({"run": lambda artifact, input: None}, "had an output of run", "It returned nothing"),
        (
            {"score": unread, "stop_after": None},
            "could be judged",
            "metric 'unread' raised ValueError: no table",
        ),
    ],
)
@pytest.mark.parametrize("acceptance", ["strict_improvement", "improvement_or_equal"])
def test_a_run_in_which_nothing_could_be_judged_names_the_fault(wrong, what, fault, acceptance, caplog):
    made = optimized(max_metric_calls=30, acceptance_criterion=acceptance, **wrong)
    said = closing(caplog)
    cases = len(made.adapter.metric.failures)
    assert f": none of the {cases} cases {what}, the first because: " in said
    assert fault in said
    assert "refused" not in said
    assert said.startswith("GEPA can tell no") is (acceptance == "improvement_or_equal")
    assert not any("named scores" in line for line in logged(caplog))


def test_a_run_that_stops_with_the_seed_names_the_fault_of_every_case_too(caplog):
    optimized(run=no_key, max_metric_calls=None, stop_callbacks=lambda state: True)
    assert "no key" in closing(caplog)
    assert "it stopped before anything was proposed" in closing(caplog)


def test_a_run_that_fails_on_everything_at_first_is_pointed_out_once_and_goes_on(caplog):
    late = lambda artifact, input: run(artifact, input) if RULE in artifact else no_key(artifact, input)  # noqa: E731
    assert optimized(run=late).artifact == RULE
    said = [line for line in logged(caplog) if "had an output of run" in line]
    assert len(said) == 1
    assert said[0].startswith("none of the 8 cases had an output of run, the first because: ")
    assert "no key" in said[0]
    assert closing(caplog) is None


def test_cases_that_fail_beside_others_are_not_taken_for_a_fault_of_every_case(caplog):
    optimized(
        run=lambda artifact, input: run(artifact, input) if input["n"] == 7 else no_key(artifact, input)
    )
    assert not any("had an output of run" in line for line in logged(caplog))


def test_an_iteration_that_ended_with_an_error_is_named(caplog):
    def selector(state, trajectories, scores, candidate_index, candidate):
        raise RuntimeError("no part")

    optimized(module_selector=selector, raise_on_exception=False, max_metric_calls=12)
    assert "2 iterations ended with an error, the last RuntimeError: no part" in closing(caplog)


def test_a_resumed_run_that_finds_nothing_more_says_so(tmp_path, caplog):
    optimized(run_dir=str(tmp_path))
    assert closing(caplog) is None
    optimized(run_dir=str(tmp_path), max_metric_calls=60)
    said = "GEPA accepted no new candidate since it was resumed (the best, of 1, is from before): "
    assert closing(caplog).startswith(said)


def test_each_run_of_an_adapter_is_counted_anew(caplog):
    adapter = as_gepa_adapter(score, run, artifact="Guess.")
    for answer in (RULE, "Worse."):
        caplog.clear()
        gepa.optimize(
            adapter.seed_candidate,
            trainset=CASES,
            adapter=adapter,
            reflection_lm=as_reflection_lm(lambda prompt, answer=answer: answer),
            max_metric_calls=20,
            callbacks=[adapter.callback],
            logger=Log(),
        )
        assert (closing(caplog) is None) is (answer == RULE)


def test_callbacks_of_ones_own_are_called_too():
    class Mine:
        accepted = 0

        def on_candidate_accepted(self, event):
            self.accepted += 1

    mine = Mine()
    optimized(callbacks=[mine])
    assert mine.accepted == 1
