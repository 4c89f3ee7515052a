"""What is refused or pointed out before a run of GEPA is paid."""

import functools
import json
import logging
import subprocess
import sys
import threading

import dspy
import gepa
import numpy as np
import pytest
from gepa.core.state import GEPAState
from gepa.strategies.acceptance import ImprovementOrEqualAcceptance
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import CurrentBestCandidateSelector
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import IndependentSampling
from gepa.strategies.proposal_selection import AllImprovements
from gepa.utils import SignalStopper

from skynet_adapters import (
    Case,
    DefinitionError,
    Metric,
    MetricError,
    as_dspy_metric,
    as_gepa_adapter,
    as_gepa_dataset,
    as_reflection_lm,
    check_gepa_run,
    check_run_dir,
    split,
)
from tests.scripted import answering, examples, reflecting, scripted_lm

CASES = [Case(str(number), {"n": number}, {"label": f"L{number}"}) for number in range(8)]
RULE = "Say the label."


def run(artifact, input):
    return f"L{input['n']}" if RULE in artifact else "?"


def score(input, output, expected=None):
    right = output == expected["label"]
    return (1.0 if right else 0.25), {"feedback": "Right." if right else "Wrong."}


def logged(caplog):
    """What was logged, without the closing lines of metrics of other tests, which may come at any time."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "have no judgement" not in line]


class Quiet:
    def log(self, message):
        pass


def made(metric=score, artifact="Guess.", **options):
    return as_gepa_adapter(metric, run, artifact=artifact, **options)


def arguments(adapter, **others):
    """What `gepa.optimize` gets, but for the adapter."""
    return {
        "seed_candidate": adapter.seed_candidate,
        "trainset": CASES,
        "reflection_lm": as_reflection_lm(lambda prompt: RULE),
        "max_metric_calls": 30,
        "logger": Quiet(),
        **others,
    }


def fault(adapter=None, **others):
    adapter = adapter or made()
    with pytest.raises(DefinitionError, match="this GEPA run cannot work:\n- ") as caught:
        check_gepa_run(adapter, **arguments(adapter, **others))
    return str(caught.value)


def test_what_passes_runs_and_nothing_is_called_before(caplog):
    adapter = made()
    given = arguments(adapter, frontier_type="instance", run_dir=None)
    check_gepa_run(adapter, **given)
    assert adapter.metric.calls == 0
    assert logged(caplog) == []
    assert gepa.optimize(adapter=adapter, **given).best_candidate == {"artifact": RULE}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_metric_call": 30}, "no argument 'max_metric_call'; did you mean 'max_metric_calls'?"),
        ({"colour": "red"}, "no argument 'colour'\n"),
        ({"seed_candidate": "Guess."}, "seed_candidate is 'Guess.'"),
        ({"seed_candidate": {"plan": "x"}}, "lacks the components ['artifact']"),
        ({"trainset": [CASES[0], {"n": 1}, 7]}, "trainset, case 3: 7 (int) is no case"),
        ({"trainset": [dspy.Example(n=1)]}, "call .with_inputs(...) on it"),
        ({"valset": [CASES[0], None]}, "valset, case 2: None"),
        ({"trainset": []}, "trainset is empty"),
        ({"valset": []}, "valset is empty"),
        (
            {"trainset": None},
            "trainset: None (NoneType) is no list of cases; pass one, or as_gepa_dataset(cases)",
        ),
        (
            {"trainset": "cases.jsonl"},
            "trainset: 'cases.jsonl' (str) is no list of cases; pass load_cases('cases.jsonl', input=..., ",
        ),
        ({"trainset": CASES[0]}, "is no list of cases; pass one"),
        ({"trainset": split(CASES)}, "a Split is no list of cases, but three; pass its train, and its val"),
        (
            {"valset": {"input": {"n": 1}}},
            "valset: {'input': {'n': 1}} (dict) is no list of cases; pass a list",
        ),
        (
            {"max_metric_calls": 8},
            "max_metric_calls=8 is used up by the first evaluation, of the seed on the 8",
        ),
        ({"max_metric_calls": 4, "valset": as_gepa_dataset(CASES[:4])}, "on the 4 cases of the valset"),
        ({"max_metric_calls": "30"}, "max_metric_calls is '30'"),
        ({"max_metric_calls": None}, "nothing ends the run"),
        ({"reflection_lm": None}, "there is no reflection_lm"),
        ({"reflection_lm": 7}, "reflection_lm is 7"),
        (
            {"reflection_lm": dspy.LM("openai/gpt-4.1")},
            "the dspy.LM 'openai/gpt-4.1', which answers with a list",
        ),
        ({"reflection_lm_kwargs": {"temperature": 1}}, "reflection_lm_kwargs would be ignored"),
        (
            {"max_reflection_cost": 1.0, "max_metric_calls": None},
            "max_reflection_cost would never be reached, since the cost of <ReflectionLM '<lambda>'>",
        ),
        (
            {"max_reflection_cost": 1.0, "max_metric_calls": float("inf")},
            "max_reflection_cost would never be reached",
        ),
        (
            {
                "max_reflection_cost": 1.0,
                "max_metric_calls": None,
                "reflection_lm": None,
                "custom_candidate_proposer": lambda *arguments: {},
            },
            "max_reflection_cost would never be reached",
        ),
        ({"frontier_type": "objectives"}, "is none of instance, objective, hybrid, cartesian"),
    ],
)
def test_what_cannot_work_is_refused(wrong, said):
    assert said in fault(**wrong) + "\n"


class Awaited:
    async def __call__(self, prompt):
        return RULE


class Nothing:
    pass


async def answer(prompt):
    return RULE


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # by gepa
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reflection_lm": Awaited()}, "reflection_lm is async, and GEPA does not await it; pass as_refl"),
        ({"reflection_lm": functools.partial(answer)}, "reflection_lm is async"),
        ({"reflection_lm": lambda: RULE}, "reflection_lm cannot be called with prompt: its signature is ();"),
        ({"reflection_lm": lambda a, b: RULE}, "its signature is (a, b); pass as_reflection_lm(function of"),
        ({"reflection_lm": Nothing}, "reflection_lm is <class "),
        (
            {"reflection_strategy": "stateful"},
            "reflection_strategy is 'stateful' (str); it must be an object with a method reflect or None",
        ),
        ({"reflection_strategy": Nothing()}, "an object with a method reflect"),
        ({"custom_candidate_proposer": "reflect"}, "custom_candidate_proposer is 'reflect' (str)"),
        (
            {"custom_candidate_proposer": lambda: {"artifact": RULE}},
            "custom_candidate_proposer cannot be called with candidate",
        ),
        ({"custom_candidate_proposer": answer}, "custom_candidate_proposer is async"),
        (
            {"reflection_prompt_template": {"other": "<curr_param>"}},
            "'other', which is no component; there are",
        ),
        ({"reflection_minibatch_size": 0}, "reflection_minibatch_size is 0 (int); it must be a whole number"),
    ],
)
def test_what_would_spend_the_budget_without_one_proposal_as_meant_is_refused(wrong, said):
    assert said in fault(**wrong)
    adapter = made()
    if "reflection_prompt_template" not in wrong and "reflection_minibatch_size" not in wrong:
        assert len(gepa.optimize(adapter=adapter, **arguments(adapter, **wrong)).candidates) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"candidate_selection_strategy": "paretto"},
            "candidate_selection_strategy='paretto' is none of pareto, current_best, epsilon_greedy, "
            "top_k_pareto; did you mean 'pareto'?",
        ),
        ({"candidate_selection_strategy": 3}, "or an object with a method select_candidate_idx"),
        ({"module_selector": "round-robin"}, "did you mean 'round_robin'?"),
        (
            {"module_selector": None},
            "module_selector is None (NoneType); it must be 'round_robin' or 'all' or a f",
        ),
        ({"batch_sampler": "shuffled"}, "did you mean 'epoch_shuffled'?"),
        ({"batch_sampler": Nothing()}, "an object with a method next_minibatch_ids"),
        ({"acceptance_criterion": "improvement"}, "did you mean 'strict_improvement'?"),
        ({"acceptance_criterion": Nothing()}, "an object with a method should_accept"),
        ({"val_evaluation_policy": "full"}, "did you mean 'full_eval'?"),
        ({"val_evaluation_policy": 4}, "'full_eval' or an object with a method get_eval_batch or None"),
        ({"sampling_strategy": "pairs"}, "an object with a method sample_tasks or None"),
        ({"selection_strategy": "best"}, "an object with a method select or None"),
        ({"stop_callbacks": "never"}, "stop_callbacks has 'never' (str)"),
        ({"stop_callbacks": [lambda state: False, 5]}, "stop_callbacks has 5 (int)"),
        ({"stop_callbacks": [None]}, "stop_callbacks has None"),
        ({"stop_callbacks": [SignalStopper]}, "stop_callbacks has <class"),
        ({"callbacks": Nothing()}, "pass a list, as in callbacks=[adapter.callback]"),
        ({"reflection_minibatch_size": "3"}, "reflection_minibatch_size is '3' (str)"),
        ({"reflection_prompt_template": 5}, "reflection_prompt_template is 5 (int); it must be a text"),
        ({"logger": "log.txt"}, "logger is 'log.txt' (str); it must be an object with a method log or None"),
        ({"logger": logging.getLogger("x")}, "give an object whose log(message) calls its info"),
        ({"perfect_score": "1"}, "perfect_score is '1' (str); it must be a number"),
        ({"max_reflection_cost": "1"}, "max_reflection_cost is '1' (str); it must be a number"),
        ({"run_dir": 5}, "run_dir is 5 (int); it must be the path of a folder"),
    ],
)
def test_what_gepa_cannot_take_is_refused_before_a_case_is_paid(wrong, said):
    assert said in fault(**wrong)
    adapter = made()
    with pytest.raises((AssertionError, AttributeError, TypeError, ValueError)):
        gepa.optimize(adapter=adapter, **arguments(adapter, **wrong))


class Misspelt:
    def on_iteration_finish(self, event):
        raise AssertionError


@pytest.mark.parametrize(
    ("callback", "said"),
    [(print, "such as on_optimization_start"), (Misspelt(), "did you mean 'on_iteration_end'?")],
)
def test_a_callback_that_gepa_would_never_call_is_refused(callback, said):
    assert said in fault(callbacks=[callback])


def test_a_minibatch_of_more_cases_than_there_are_is_pointed_out(caplog):
    adapter = made()
    check_gepa_run(adapter, **arguments(adapter, reflection_minibatch_size=len(CASES)))
    assert "reflection_minibatch_size" not in caplog.text
    check_gepa_run(adapter, **arguments(adapter, reflection_minibatch_size=len(CASES) + 1))
    assert f"is more than the {len(CASES)} cases of trainset" in caplog.text


@pytest.mark.parametrize(
    "right",
    [
        *(
            {"candidate_selection_strategy": name}
            for name in ("current_best", "epsilon_greedy", "top_k_pareto")
        ),
        {"candidate_selection_strategy": CurrentBestCandidateSelector()},
        {"module_selector": "all"},
        {"module_selector": lambda state, trajectories, scores, index, candidate: ["artifact"]},
        {"batch_sampler": EpochShuffledBatchSampler(2)},
        {"acceptance_criterion": "improvement_or_equal"},
        {"acceptance_criterion": ImprovementOrEqualAcceptance()},
        {"val_evaluation_policy": "full_eval"},
        {"val_evaluation_policy": FullEvaluationPolicy()},
        {"sampling_strategy": IndependentSampling(2)},
        {"selection_strategy": AllImprovements()},
        {"stop_callbacks": [lambda state: False]},
        {"callbacks": ()},
        {"reflection_minibatch_size": np.int64(2)},
        {"reflection_prompt_template": {"artifact": "Mend <curr_param> by <side_info>"}},
        {"perfect_score": np.float32(1.0)},
        {"reflection_lm": lambda prompt, **options: RULE},
        {"reflection_lm": lambda *prompts: RULE},
        {"reflection_lm": None, "custom_candidate_proposer": lambda *given: {"artifact": RULE}},
        {"logger": None, "skip_perfect_score": False},
    ],
)
def test_what_gepa_can_take_is_let_through_and_runs(right):
    adapter = made()
    check_gepa_run(adapter, **arguments(adapter, **right))
    assert gepa.optimize(adapter=adapter, **arguments(adapter, **right)).best_candidate == {"artifact": RULE}


def test_a_cost_that_is_not_known_is_pointed_out_where_something_else_ends_the_run(caplog):
    adapter = made()
    for others in ({}, {"max_metric_calls": None, "stop_callbacks": lambda state: True}):
        caplog.clear()
        check_gepa_run(adapter, **arguments(adapter, max_reflection_cost=1.0, **others))
        (warning,) = logged(caplog)
        assert warning.startswith(
            "max_reflection_cost would never be reached, since the cost of <ReflectionLM"
        )
        assert warning.endswith("The run ends with max_metric_calls or stop_callbacks")


class WithItsCost:
    total_cost = 0.0

    def reflect(self, candidate, reflective_dataset, components_to_update): ...


def test_a_run_that_the_cost_alone_ends_is_pointed_out(caplog):
    adapter = made()
    known = {"reflection_lm": as_reflection_lm(scripted_lm(lambda messages: "x")), "max_reflection_cost": 1.0}
    check_gepa_run(adapter, **arguments(adapter, **known, max_metric_calls=None))
    (warning,) = logged(caplog)
    assert "for ever" in warning
    assert warning.endswith("Pass max_metric_calls= too")
    caplog.clear()
    check_gepa_run(adapter, **arguments(adapter, **known))
    check_gepa_run(adapter, **arguments(adapter, max_reflection_cost=1.0, reflection_strategy=WithItsCost()))
    assert logged(caplog) == []


def test_another_adapter_is_refused():
    with pytest.raises(DefinitionError, match="pass what as_gepa_adapter made"):
        check_gepa_run(object(), seed_candidate={})


class Loader:
    """A data loader of one's own, which counts what is fetched."""

    def __init__(self, cases):
        self.cases, self.fetched = cases, 0

    def all_ids(self):
        return list(range(len(self.cases)))

    def fetch(self, ids):
        self.fetched += len(ids)
        return [self.cases[id] for id in ids]

    def __len__(self):
        return len(self.cases)


def test_of_a_loader_of_ones_own_the_first_cases_are_looked_at():
    loader = Loader([*CASES * 100, 7])
    adapter = made()
    check_gepa_run(adapter, **arguments(adapter, trainset=loader, valset=CASES))
    assert loader.fetched == 100
    assert "valset, case 2: 7 (int) is no case" in fault(valset=Loader([CASES[0], 7]))


def test_an_async_stop_is_refused_which_would_stop_a_run_at_once():
    async def never(state):
        return False

    for stops in (never, [lambda state: False, never]):
        assert "stop_callbacks has <function" in (said := fault(stop_callbacks=stops))
        assert "a plain function" in said


def test_an_async_reflection_model_is_refused():
    async def model(prompt):
        return RULE

    assert "GEPA does not await it" in fault(reflection_lm=model)


def test_everything_that_is_wrong_is_told_at_once():
    told = fault(max_metric_calls=3, reflection_lm=None, frontier_type="x", trainset=[*CASES, *[{}] * 30])
    for said in ("max_metric_calls=3", "no reflection_lm", "frontier_type='x'", "trainset, case 9"):
        assert said in told
    assert told.count("\n- ") == 9
    assert "- trainset, 25 more cases cannot be used\n" in told


@pytest.mark.parametrize(
    "right",
    [
        {"max_metric_calls": 9},
        {"max_metric_calls": 30.0},
        {"max_metric_calls": np.int64(30)},
        {"max_metric_calls": float("inf"), "stop_callbacks": lambda state: True},
        {"max_metric_calls": None, "stop_callbacks": lambda state: True},
        {"max_metric_calls": 5, "valset": CASES[:4]},
        {"reflection_lm": None, "custom_candidate_proposer": lambda *arguments: {}},
        {"reflection_lm": "openai/gpt-4.1"},
        {"reflection_lm": as_reflection_lm(scripted_lm(lambda messages: "x")), "max_reflection_cost": 1.0},
        {"frontier_type": "objective"},
        {"trainset": [dspy.Example(n=1, label="x").with_inputs("n")] * 3},
    ],
)
def test_what_can_work_is_let_through(right):
    adapter = made()
    check_gepa_run(adapter, **arguments(adapter, **right))


def test_lists_are_refused_where_the_cache_would_mix_them_up():
    assert "shares ids" not in (told := fault(valset=CASES[::-1], cache_evaluation=True))
    assert "these sets share ids; pass as_gepa_dataset(trainset)" in told
    adapter = made()
    for valset in (CASES, list(CASES), as_gepa_dataset(CASES[::-1]), None):
        check_gepa_run(adapter, **arguments(adapter, valset=valset, cache_evaluation=True))


def test_a_frontier_of_objectives_needs_names_as_far_as_that_is_known():
    unknown = made()
    check_gepa_run(unknown, **arguments(unknown, frontier_type="hybrid"))  # nothing is known yet
    with pytest.raises(MetricError, match=r'needs named scores, .* return "scores" beside'):
        unknown.evaluate(CASES, unknown.seed_candidate)  # before GEPA says it in other words
    adapter = made()
    adapter.evaluate(CASES, adapter.seed_candidate)
    assert "frontier_type='hybrid' needs named scores" in fault(adapter, frontier_type="hybrid")
    named = made(score_names=["exact"])
    check_gepa_run(named, **arguments(named, frontier_type="hybrid"))

    def fails(input, output, expected=None):
        raise ValueError

    failing = made(fails, stop_after=None)
    failing.evaluate(CASES, failing.seed_candidate)
    check_gepa_run(failing, **arguments(failing, frontier_type="hybrid"))


def test_a_metric_that_was_only_tried_before_a_stop_has_shown_no_lack_of_names():
    def fails(input, output, expected=None):
        raise ValueError

    adapter = made(fails)
    with pytest.raises(MetricError, match="and on the expected value as output too"):
        adapter.evaluate(CASES, adapter.seed_candidate)
    assert adapter.metric.calls > len(adapter.metric.failures)  # the trial is no failure of a case
    check_gepa_run(adapter, **arguments(adapter, frontier_type="hybrid"))


@pytest.mark.parametrize(
    ("value", "options", "others", "said"),
    [
        (7.0, {}, {}, "has given 7, above perfect_score=1"),
        (-3.0, {}, {}, "has given -3, below failure_score=0"),
        (7.0, {}, {"perfect_score": 10}, None),
        (7.0, {}, {"skip_perfect_score": False}, None),
        (7.0, {"score_range": (0, 10)}, {}, None),
        (7.0, {"score_range": (0, 10)}, {"perfect_score": 10}, "perfect_score=10 is never reached"),
        (1.0, {}, {}, None),
    ],
)
def test_scores_that_perfect_score_does_not_fit_are_pointed_out(value, options, others, said, caplog):
    adapter = made(lambda input, output: (value, {"feedback": "f"}), **options)
    adapter.evaluate(CASES, adapter.seed_candidate)
    caplog.clear()
    check_gepa_run(adapter, **arguments(adapter, **others))
    assert said in caplog.text if said else logged(caplog) == []


# --- the folder of a run -----------------------------------------------------------------------------


def stricter(input, output, expected=None):
    right = output == expected["label"]
    return (1.0 if right else 0.0), {"feedback": "Right." if right else "Wrong."}


def optimized(folder, metric=score, **others):
    adapter = made(metric, others.pop("artifact", "Guess."))
    given = arguments(adapter, run_dir=folder, **others)
    check_gepa_run(adapter, **given)
    return gepa.optimize(adapter=adapter, **given)


def test_a_run_is_resumed_with_the_same_metric_only(tmp_path):
    folder = str(tmp_path / "new" / "run")
    optimized(folder)
    # The first run's artifact: no later run could find it by itself.
    resumed = {"reflection_lm": as_reflection_lm(lambda prompt: "Guess again.")}
    assert optimized(folder, Metric(score), max_metric_calls=60, **resumed).best_candidate == {
        "artifact": RULE
    }
    with pytest.raises(DefinitionError, match=r"run' was begun with another metric .* take a new folder"):
        optimized(folder, stricter)
    assert optimized(folder, max_metric_calls=90, **resumed).best_candidate == {"artifact": RULE}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"artifact": "Guess well."}, "another artifact"),
        ({"valset": CASES[:4]}, "another validation set"),
        ({"frontier_type": "hybrid"}, "another frontier_type"),
    ],
)
def test_a_run_is_not_resumed_with_something_else_changed(change, said, tmp_path):
    optimized(tmp_path)
    with pytest.raises(DefinitionError, match=f"was begun with {said}"):
        optimized(tmp_path, **change)


def test_cases_that_no_other_process_knows_again_do_not_stop_a_resumed_run(tmp_path):
    for _ in range(2):
        cases = [Case(str(n), {"n": n, "lock": threading.Lock()}, {"label": "L"}) for n in range(4)]
        optimized(tmp_path, trainset=cases)


def test_a_run_that_was_begun_without_the_check_is_pointed_out(tmp_path, caplog):
    adapter = made()
    gepa.optimize(adapter=adapter, **arguments(adapter, run_dir=str(tmp_path)))
    check_run_dir(score, tmp_path)
    assert "was begun without this check" in caplog.text
    with pytest.raises(DefinitionError, match="another metric"):
        check_run_dir(stricter, tmp_path)


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path, caplog):
    optimized(tmp_path)
    (tmp_path / "skynet_adapters_run.json").write_text("[1")
    check_run_dir(score, tmp_path)
    assert "was begun without this check" in caplog.text
    kept = json.loads((tmp_path / "skynet_adapters_run.json").read_text())
    assert set(kept) == {"metric", "metric_parts", "python"}


def test_a_resumed_run_without_budget_is_pointed_out(tmp_path, caplog):
    optimized(tmp_path)
    used = GEPAState.load(str(tmp_path)).total_num_evals
    optimized(tmp_path, max_metric_calls=used)
    assert f"has used {used} metric calls, so that max_metric_calls={used}" in caplog.text


def test_what_was_kept_of_a_run_stays_when_the_metric_alone_is_checked(tmp_path):
    optimized(tmp_path)
    kept = (tmp_path / "skynet_adapters_run.json").read_text()
    check_run_dir(score, tmp_path)
    assert json.loads((tmp_path / "skynet_adapters_run.json").read_text()) == json.loads(kept)


def test_failure_scores_say_nothing_about_the_scale(caplog):
    adapter = as_gepa_adapter(score, lambda a, i: None, artifact="Guess.", failure_score=5.0)
    adapter.evaluate(CASES, adapter.seed_candidate)
    caplog.clear()
    check_gepa_run(adapter, **arguments(adapter))
    assert logged(caplog) == []


def test_nothing_is_kept_of_a_run_that_is_refused(tmp_path):
    fault(run_dir=str(tmp_path / "run"), max_metric_calls=1)
    assert not (tmp_path / "run").exists()
    check_run_dir(score, None)


EDITED = """
import sys
sys.path.insert(0, sys.argv[1])
from metric_file import score
from skynet_adapters import check_run_dir
check_run_dir(score, sys.argv[2])
"""


def test_an_edited_metric_file_is_noticed_in_another_process(tmp_path):
    def checked():
        command = [sys.executable, "-c", EDITED, str(tmp_path), str(tmp_path / "run")]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stderr

    file = tmp_path / "metric_file.py"
    file.write_text("def score(input, output):\n    return 1.0, {'feedback': 'f'}\n")
    assert checked() == ""
    (tmp_path / "run" / "gepa_state.bin").write_bytes(b"")
    assert checked() == ""
    file.write_text("def score(input, output):\n    return 0.5, {'feedback': 'f'}\n")
    assert "was begun with another metric" in checked()


def test_the_log_dir_of_dspys_gepa_is_checked_too(tmp_path):
    def exact(input, output, expected=None):
        return float(output == expected["answer"]), {"feedback": "f"}

    metric = as_dspy_metric(exact)
    check_run_dir(metric, tmp_path)
    with dspy.context(lm=answering(lambda question: "B")):
        dspy.GEPA(
            metric=metric, max_metric_calls=12, log_dir=str(tmp_path), reflection_lm=reflecting()
        ).compile(dspy.Predict("question -> answer"), trainset=examples(4), valset=examples(4))
    check_run_dir(as_dspy_metric(exact), tmp_path)
    check_run_dir(exact, tmp_path)
    with pytest.raises(DefinitionError, match="another metric"):
        check_run_dir(as_dspy_metric(score), tmp_path)


def test_a_dspy_metric_that_reads_another_field_is_another_metric(tmp_path):
    check_run_dir(as_dspy_metric(score, output="a"), tmp_path)
    (tmp_path / "gepa_state.bin").write_bytes(b"")  # GEPA has run
    check_run_dir(as_dspy_metric(score, output="a"), tmp_path)
    for others in ({"output": "b"}, {"output": "a", "expected": "label"}, {}):
        with pytest.raises(DefinitionError, match="another metric"):
            check_run_dir(as_dspy_metric(score, **others), tmp_path)


def test_a_wrapper_around_a_dspy_metric_is_another_metric(tmp_path):
    def halved(metric, by):
        @functools.wraps(metric)
        def wrapper(*args, **kwargs):
            return metric(*args, **kwargs) / by

        return wrapper

    check_run_dir(halved(as_dspy_metric(score), 2), tmp_path)
    (tmp_path / "gepa_state.bin").write_bytes(b"")
    check_run_dir(halved(as_dspy_metric(score), 2), tmp_path)
    for other in (
        as_dspy_metric(score),
        halved(as_dspy_metric(score), 3),
        halved(as_dspy_metric(stricter), 2),
        halved(as_dspy_metric(score, output="a"), 2),
    ):
        with pytest.raises(DefinitionError, match="another metric"):
            check_run_dir(other, tmp_path)


def test_a_dspy_metric_is_the_same_after_it_has_judged(tmp_path):
    def exact(input, output, expected=None):
        return float(output["answer"] == expected["answer"]), {"feedback": "f"}

    metric = as_dspy_metric(exact, expected=["answer"])
    check_run_dir(metric, tmp_path)
    (tmp_path / "gepa_state.bin").write_bytes(b"")
    example = examples(1)[0]
    metric(example, dspy.Prediction(answer="B", note="n"))
    metric(example, dspy.Prediction(answer="B", note="n", more="m"))
    check_run_dir(metric, tmp_path)
