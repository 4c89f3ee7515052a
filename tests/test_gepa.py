"""The metric in the real `gepa.optimize` and `optimize_anything`."""

import asyncio
import base64
import contextvars
import copy
import csv
import io
import json
import logging
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import cloudpickle
import dspy
import gepa
import pydantic
import pytest
from gepa.image import Image
from gepa.optimize_anything import (
    EngineConfig,
    GEPAConfig,
    RefinerConfig,
    ReflectionConfig,
    optimize_anything,
)
from gepa.optimize_anything import log as oa_log
from gepa.strategies.proposal_sampling import IndependentSampling
from PIL import Image as Pillow

from skynet_adapters.cases import Case
from skynet_adapters.deadline import end_idle_helpers
from skynet_adapters.dspy import as_dspy_metric
from skynet_adapters.errors import DataError, DefinitionError, MetricBroken, MetricError
from skynet_adapters.gepa import (
    as_gepa_adapter,
    as_gepa_dataset,
    as_gepa_evaluator,
    as_reflection_lm,
    optimize_artifact,
)
from skynet_adapters.metric import Metric
from tests.waiting import HANG, PATIENCE, eventually

CASES = [Case(str(number), {"n": number}, {"label": f"L{number}"}) for number in range(8)]
SEED = "Guess."
RULE = "Say the label."
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def run(artifact, input):
    return f"L{input['n']}" if RULE in artifact else "?"


def score(input, output, expected=None):
    right = output == expected["label"]
    return (1.0 if right else 0.25), {
        "feedback": "Right." if right else f"Expected {expected['label']!r}, got {output!r}.",
        "scores": {"exact": float(right), "length": 0.5},
    }


def plain_score(input, output, expected=None):
    value, info = score(input, output, expected)
    return value, {"feedback": info["feedback"]}


class Log(list):
    """GEPA's logger."""

    def log(self, message):
        self.append(str(message))


class Reflection:
    """A reflection model that writes the rule, and keeps the prompts."""

    def __init__(self, answer=RULE, fail_at=()):
        self.answer, self.fail_at, self.prompts = answer, fail_at, []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        if len(self.prompts) in self.fail_at:
            raise ConnectionError("the model is away")
        return self.answer(prompt) if callable(self.answer) else self.answer


@pytest.fixture(autouse=True)
def log():
    """What this package logs, as texts."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("skynet_adapters")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def optimized(adapter, reflection=None, *, cases=CASES, budget=40, **arguments):
    return gepa.optimize(
        adapter.seed_candidate,
        trainset=cases,
        valset=cases,
        adapter=adapter,
        reflection_lm=as_reflection_lm(reflection or Reflection()),
        max_metric_calls=budget,
        **{"logger": Log(), **arguments},
    )


# --- whole runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("frontier", ["instance", "objective", "hybrid", "cartesian"])
def test_a_text_is_optimised_with_every_frontier(frontier):
    reflection = Reflection()
    with as_gepa_adapter(score, run, artifact=SEED) as adapter:
        result = optimized(adapter, reflection, frontier_type=frontier)
    assert adapter.artifact(result.best_candidate) == RULE
    assert result.val_aggregate_scores[0] == 0.25
    assert max(result.val_aggregate_scores) == 1.0
    assert len(adapter.metric.failures) == 0


def test_the_reflection_prompt_holds_input_output_and_the_exact_feedback_with_its_scores():
    reflection = Reflection()
    optimized(as_gepa_adapter(score, run, artifact=SEED), reflection)
    number = next(number for number in range(8) if f"'L{number}'" in reflection.prompts[0])
    expected = (
        f"## Inputs\n### n\n{number}\n\n## Generated Outputs\n?\n\n## Feedback\n"
        f"Expected 'L{number}', got '?'.\n\nScore: 0.25\nNamed scores: exact 0, length 0.5\n"
    )
    assert expected in reflection.prompts[0]
    assert "## Expected" not in reflection.prompts[0]


def test_expected_values_stand_in_the_prompt_when_they_are_wanted():
    reflection = Reflection()
    optimized(as_gepa_adapter(plain_score, run, artifact=SEED, include_expected=True), reflection)
    assert "## Expected\n### label\nL" in reflection.prompts[0]


def two_part_score(input, output, expected=None):
    right = output == "plan answer"
    return float(right), {
        "feedback": "The general text.",
        "component_feedback": {} if right else {"plan": "Plan better.", "answer": "Answer better."},
    }


def two_part_run(artifact, input):
    assert list(artifact) == ["plan", "answer"]
    return " ".join(name for name, text in artifact.items() if RULE in text)


@pytest.mark.parametrize("selector", ["round_robin", "all"])
def test_each_part_reads_its_own_text(selector):
    reflection = Reflection()
    artifact = {"plan": "Old plan.", "answer": "Old answer."}
    adapter = as_gepa_adapter(two_part_score, two_part_run, artifact=artifact)
    result = optimized(
        adapter,
        reflection,
        budget=60,
        module_selector=selector,
        acceptance_criterion="improvement_or_equal",
        use_merge=True,
    )
    of_plan = [prompt for prompt in reflection.prompts if "Old plan." in prompt]
    of_answer = [prompt for prompt in reflection.prompts if "Old answer." in prompt]
    assert of_plan
    assert of_answer
    assert all("Plan better.\n\nScore: 0" in p and "Answer better." not in p for p in of_plan)
    assert all("Answer better.\n\nScore: 0" in p and "Plan better." not in p for p in of_answer)
    assert adapter.artifact(result.best_candidate) == {"plan": RULE, "answer": RULE}


def halves_run(artifact, input):
    """Right on even cases by the one part and on odd cases by the other, each to the other's harm."""
    own, other = ("even", "odd") if input["n"] % 2 == 0 else ("odd", "even")
    return f"L{input['n']}" if RULE in artifact[own] else "harmed" if RULE in artifact[other] else "?"


def halves_score(input, output, expected=None):
    value, info = score(input, output, expected)
    return (0.1 if output == "harmed" else value), info


@pytest.mark.parametrize("selector", ["round_robin", "all"])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("frontier", ["instance", "objective", "hybrid", "cartesian"])
def test_every_frontier_goes_with_merges_and_every_selector(frontier, merge, selector, log):
    class Seen:
        merged = 0

        def on_merge_attempted(self, event):
            self.merged += 1

    seen = Seen()
    adapter = as_gepa_adapter(halves_score, halves_run, artifact={"even": SEED, "odd": SEED})
    cases = [Case(str(n), {"n": n}, {"label": f"L{n}"}) for n in range(12)]
    result = optimized(
        adapter,
        cases=as_gepa_dataset(cases),
        budget=150,
        frontier_type=frontier,
        use_merge=merge,
        merge_val_overlap_floor=1,
        module_selector=selector,
        callbacks=[seen, adapter.callback],
    )
    assert adapter.artifact(result.best_candidate) == {"even": RULE, "odd": RULE}
    assert max(result.val_aggregate_scores) == 1.0
    assert result.val_aggregate_scores[0] == 0.25
    if not merge:
        assert seen.merged == 0
    elif selector == "round_robin" and frontier in ("instance", "hybrid"):  # these keep both halves
        assert seen.merged > 0
    assert len(adapter.metric.failures) == 0
    assert not any(line.startswith("GEPA ") for line in log)


def test_a_part_without_a_text_of_its_own_reads_the_general_one():
    adapter = as_gepa_adapter(
        lambda i, o, e: (0.5, {"feedback": "General.", "component_feedback": {"plan": "Own."}}),
        lambda artifact, input: "x",
        artifact={"plan": "a", "answer": "b"},
    )
    batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    records = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["plan", "answer"])
    assert [records[name][0]["Feedback"] for name in ("plan", "answer")] == [
        "Own.\n\nScore: 0.5",
        "General.\n\nScore: 0.5",
    ]


CODE = """
def g(n):
    return n


def f(n):
    return 1 / (n - n)
"""


def solve(artifact, input):
    names = {}
    exec(artifact["code"] if isinstance(artifact, dict) else artifact, names)
    return names["f"](input["n"])


def solve_below_imports(artifact, input):
    names = {}
    exec("import math\n\n" + artifact, names)
    return names["f"](input["n"])


def solve_with_a_helper(artifact, input):
    def helper(n):
        return 1 / (n - n)

    names = {"helper": helper}
    exec(artifact, names)
    return names["f"](input["n"])


def solve_an_expression(artifact, input):
    return eval(artifact, dict(input))


@pytest.mark.parametrize("isolation", [None, "process"])
@pytest.mark.parametrize(
    ("run", "artifact", "place"),
    [
        (solve, CODE, "line 7, in f: return 1 / (n - n)"),
        (solve, {"code": CODE, "notes": "Divide."}, "line 7, in f: return 1 / (n - n)"),
        (solve, "x = 1\n1 / 0", "line 2, in <module>: 1 / 0"),
        (solve_below_imports, CODE, "line 9, in f: return 1 / (n - n)"),
        (solve_with_a_helper, "\n\nf = lambda n: helper(n)", "line 3, in <lambda>: f = lambda n: helper(n)"),
        (solve_an_expression, "n / (n - n)", "line 1, in <module>: n / (n - n)"),
    ],
)
def test_the_feedback_names_the_line_of_an_artifact_that_is_code(run, artifact, place, isolation):
    with as_gepa_adapter(score, run, artifact=artifact, run_isolation=isolation) as adapter:
        batch = adapter.evaluate([{"input": {"n": 2}}], adapter.seed_candidate, capture_traces=True)
    assert f"ZeroDivisionError: division by zero (<string>, {place})." in batch.trajectories[0].score.feedback


@pytest.mark.parametrize("isolation", [None, "process"])
def test_the_feedback_names_the_line_of_an_output_that_is_code(isolation):
    def score(input, output, expected=None):
        names = {}
        exec(output, names)
        return names["f"](1), {"feedback": "F."}

    metric = Metric(score, isolation=isolation)
    try:
        said = str(metric.score_case({}, CODE).error)
    finally:
        metric.close()
    assert said.endswith("ZeroDivisionError: division by zero (<string>, line 7, in f: return 1 / (n - n))")


@dataclass
class Checked:
    n: int

    def __post_init__(self):
        raise ValueError("no such n")


def test_code_that_the_standard_library_has_made_is_not_taken_for_the_artifact():
    with as_gepa_adapter(score, lambda artifact, input: Checked(input["n"]), artifact="a") as adapter:
        batch = adapter.evaluate([{"input": {"n": 2}}], adapter.seed_candidate, capture_traces=True)
    feedback = batch.trajectories[0].score.feedback
    assert 'in __post_init__: raise ValueError("no such n")' in feedback


def naming(*names):
    own = dict.fromkeys(names, "Own.")
    return lambda input, output, expected=None: (0.5, {"feedback": "General.", "component_feedback": own})


@pytest.mark.parametrize("target", ["adapter", "evaluator", "batch"])
@pytest.mark.parametrize(
    ("seed", "name", "told"),
    [
        ({"plan": "a", "answer": "b"}, "anwser", "['plan', 'answer']; did you mean 'answer'?"),
        ({"plan": "a", "answer": "b"}, "zzz", "there are ['plan', 'answer']"),
        ({"plan.predict": "a"}, "plan", None),
        ("a text", "artefact", "there are ['artifact']; did you mean 'artifact'?"),
        ("a text", "artifact", None),
    ],
)
def test_a_text_for_a_component_that_is_not_there_is_pointed_out_once(target, seed, name, told, caplog):
    def run(artifact, input):
        return "x"

    if target == "adapter":
        adapter = as_gepa_adapter(naming(name), run, artifact=seed)
        for _ in range(2):
            adapter.evaluate(CASES[:2], adapter.seed_candidate)
    else:
        evaluator = as_gepa_evaluator(naming(name), run)
        for _ in range(2):
            evaluator(seed, CASES[0]) if target == "evaluator" else evaluator.batch([(seed, CASES[0])])
    said = [one.getMessage() for one in caplog.records if "component_feedback" in one.getMessage()]
    assert len(said) == (told is not None)
    if told is not None:
        assert f"component_feedback for {name!r}, which nobody reads" in said[0]
        assert said[0].endswith(told)


def test_a_chain_of_thought_may_leave_its_inner_name_out_here_too():
    seed = {"plan.predict": "a", "answer": "b"}
    adapter = as_gepa_adapter(naming("plan"), lambda artifact, input: "x", artifact=seed)
    batch = adapter.evaluate(CASES[:1], seed, capture_traces=True)
    records = adapter.make_reflective_dataset(seed, batch, list(seed))
    assert [records[name][0]["Feedback"].partition("\n")[0] for name in seed] == ["Own.", "General."]
    side_info = as_gepa_evaluator(naming("plan"))(seed, CASES[0])[1]
    assert side_info["plan.predict_specific_info"]["Feedback"].startswith("Own.")
    assert "plan_specific_info" not in side_info


def test_a_run_is_resumed_from_its_folder(tmp_path):
    folder = str(tmp_path / "run")
    first = optimized(as_gepa_adapter(score, run, artifact=SEED), budget=20, run_dir=folder)
    second = optimized(as_gepa_adapter(score, run, artifact=SEED), budget=60, run_dir=folder)
    assert second.candidates[: len(first.candidates)] == first.candidates
    assert second.best_candidate == {"artifact": RULE}


KILLED = """
import os, signal, sys, time
import gepa
from skynet_adapters.gepa import as_gepa_adapter, as_gepa_dataset, as_reflection_lm

calls = 0

def run(artifact, input):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return "x" * artifact.count("more")

def score(input, output, expected=None):
    return len(output) / 10, {"feedback": "Say more.", "scores": {"length": len(output) / 10}}

cases = as_gepa_dataset([{"input": {"n": n}} for n in range(4)])
adapter = as_gepa_adapter(score, run, artifact="more")
result = gepa.optimize(
    adapter.seed_candidate, cases, cases, adapter=adapter, run_dir=sys.argv[1], frontier_type="hybrid",
    reflection_lm=as_reflection_lm(lambda prompt: prompt.split("```")[1] + "more"), max_metric_calls=80,
)
best = result.best_candidate["artifact"].count("more")
print("BEST", best, len(result.candidates), result.total_metric_calls)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_a_run_that_was_killed_is_resumed(tmp_path):
    def started(kill_at):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert started(40).returncode == -signal.SIGKILL
    state = (tmp_path / "run" / "gepa_state.bin").read_bytes()
    kept = len(pickle.loads(state)["program_candidates"])
    assert kept > 1
    finished = started(-1)
    best, candidates, calls = map(int, finished.stdout.split("BEST ")[1].split())
    assert candidates > kept
    assert best == candidates
    assert calls >= 80


def proven(score):
    """A metric that has judged before, so that whole batches run at once from the first on."""
    metric = Metric(score)
    assert metric.score_case({"n": 0}, "L0", {"label": "L0"}).error is None
    return metric


def test_a_metric_that_fails_on_everything_is_not_paid_the_whole_data_set_for():
    ran = []

    def noted(artifact, input):
        ran.append(input)
        return run(artifact, input)

    def broken(input, output, expected=None):
        raise LookupError("no such table")

    adapter = as_gepa_adapter(broken, noted, artifact=SEED)
    with pytest.raises(MetricError, match="no such table"):
        adapter.evaluate(CASES * 25, adapter.seed_candidate)
    assert len(ran) <= 20
    with pytest.raises(MetricBroken, match="no such table"):
        adapter.evaluate(CASES * 25, adapter.seed_candidate)
    assert len(ran) <= 40


def test_a_judge_of_dspys_is_kept_apart_from_the_run_where_only_gepa_is_used():
    script = textwrap.dedent(
        """
        import dspy
        from skynet_adapters import Case, as_gepa_adapter
        from tests.scripted import answering

        judge = dspy.Predict("text -> answer")

        def score(input, output, expected=None):
            return 1.0, {"feedback": judge(text=output).answer}

        adapter = as_gepa_adapter(score, lambda artifact, input: "x", artifact="A")
        with dspy.context(lm=answering(lambda question: "Fine."), trace=[]):
            batch = adapter.evaluate([Case("1", {"n": 1})], adapter.seed_candidate, capture_traces=True)
            print(batch.trajectories[0].score.feedback, len(dspy.settings.trace), adapter.metric.bill.calls)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "Fine. 0 1", done.stderr


def test_a_program_that_always_fails_runs_on_all_cases_at_once():
    together = threading.Barrier(32)

    def failing(artifact, input):
        if input["n"] != "first":
            together.wait(PATIENCE)
        raise ValueError("no answer")

    adapter = as_gepa_adapter(score, failing, artifact=SEED)
    cases = [Case("first", {"n": "first"}, {"label": "a"}), *CASES * 4]
    batch = adapter.evaluate(cases, adapter.seed_candidate)
    assert all("no answer" in trajectory.score.feedback for trajectory in batch.trajectories or ())
    assert batch.scores == [0.0] * 33


@pytest.mark.parametrize("exception", [True, False])
def test_cases_that_cannot_be_read_end_a_run(exception):
    adapter = as_gepa_adapter(score, run, artifact=SEED)
    with pytest.raises(DataError if exception else MetricBroken, match="is no case"):
        gepa.optimize(
            adapter.seed_candidate,
            trainset=[5, 6, 7],
            valset=CASES,
            adapter=adapter,
            reflection_lm=as_reflection_lm(Reflection()),
            max_metric_calls=1_000,
            raise_on_exception=exception,
            logger=Log(),
        )


def test_a_run_that_yields_is_told_to_return():
    def yields(artifact, input):
        yield "L"
        yield str(input["n"])

    async def yields_too(artifact, input):
        yield "L"

    for one in (yields, yields_too):
        adapter = as_gepa_adapter(score, one, artifact=SEED)
        batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
        assert "return the whole output at once" in batch.trajectories[0].score.feedback
        assert adapter.metric.calls == 0


def test_a_forked_child_can_go_on_with_an_adapter():
    script = textwrap.dedent(
        """
        import os
        from skynet_adapters import Case, as_gepa_adapter
        adapter = as_gepa_adapter(lambda i, o: (1.0, {"feedback": "F."}), lambda a, i: "x", artifact="A")
        batch = lambda: adapter.evaluate([Case("1", {"n": 1})] * 20, adapter.seed_candidate).scores
        assert batch() == [1.0] * 20
        child = os.fork()
        if child == 0:
            os._exit(0 if batch() == [1.0] * 20 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print("fine")
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize("seconds", [1e10, float("inf"), 0, -1, "60"])
def test_a_run_timeout_that_nobody_can_wait_for_is_refused(seconds):
    with pytest.raises(DefinitionError, match="run_timeout="):
        as_gepa_adapter(score, run, artifact=SEED, run_timeout=seconds)
    with pytest.raises(DefinitionError, match="run_timeout="):
        as_gepa_evaluator(score, run_timeout=seconds)


def test_a_run_whose_parameters_are_the_other_way_round_is_refused():
    with pytest.raises(DefinitionError, match="run gets the artifact first"):
        as_gepa_adapter(score, lambda input, artifact: "x", artifact=SEED)


@pytest.mark.parametrize(
    "make",
    [
        lambda score, run: as_gepa_adapter(score, run, artifact=SEED),
        as_gepa_evaluator,
        lambda score, run: optimize_artifact(SEED, run, score, [], reflection_lm=lambda prompt: "x"),
    ],
)
@pytest.mark.parametrize("metric", [score, as_dspy_metric(score)])
def test_score_and_run_that_are_swapped_are_refused_before_anything_runs(make, metric):
    for first, second in ((run, metric), (run, run), (score, metric)):
        with pytest.raises(DefinitionError, match="are score and run swapped"):
            make(first, second)


@pytest.mark.parametrize("make", [as_gepa_adapter, as_gepa_evaluator])
def test_an_unknown_option_is_told_the_nearest_that_there_is(make):
    with pytest.raises(DefinitionError, match="unknown option 'run_timout'; did you mean 'run_timeout'"):
        make(score, run, artifact=SEED, run_timout=5)


def test_several_candidates_are_evaluated_at_once():
    barrier = threading.Barrier(24)

    def together(artifact, input):
        barrier.wait(PATIENCE)
        return run(artifact, input)

    adapter = as_gepa_adapter(proven(score), together, artifact=SEED)
    batches = adapter.batch_evaluate([({"artifact": text}, CASES) for text in (SEED, RULE, SEED)])
    assert [batch.scores for batch in batches] == [[0.25] * 8, [1.0] * 8, [0.25] * 8]
    result = optimized(
        as_gepa_adapter(score, run, artifact=SEED),
        sampling_strategy=IndependentSampling(2),
        reflection_minibatch_size=2,
    )
    assert result.best_candidate == {"artifact": RULE}


# --- cases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case("1", {"n": 1}, {"label": "L1"}),
        {"input": {"n": 1}, "expected": {"label": "L1"}},
        {"id": "1", "input": {"n": 1}, "expected": {"label": "L1"}, "note": "unread"},
        dspy.Example(n=1, label="L1").with_inputs("n"),
    ],
)
def test_cases_come_in_every_form(case):
    adapter = as_gepa_adapter(score, run, artifact=RULE)
    batch = adapter.evaluate([case], adapter.seed_candidate, capture_traces=True)
    assert batch.scores == [1.0]
    assert batch.trajectories[0].input == {"n": 1}
    assert batch.trajectories[0].expected == {"label": "L1"}


@pytest.mark.parametrize(
    "case", [{"input": {"n": 1}}, dspy.Example(n=1).with_inputs("n"), Case("1", {"n": 1})]
)
def test_a_case_may_expect_nothing(case):
    seen = []
    adapter = as_gepa_adapter(
        lambda i, o, expected=None: (seen.append(expected), (1.0, {"feedback": "f"}))[1], run, artifact=SEED
    )
    adapter.evaluate([case], adapter.seed_candidate)
    assert seen == [None]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"n": 1}, "is no case"),
        ({"input": "text"}, "dict of fields as input"),
        (7, "is no case"),
        (None, "is no case"),
        (dspy.Example(n=1, label="L1"), r"\.with_inputs\(\.\.\.\)"),
    ],
)
def test_what_is_no_case_stops_the_run_before_anything_is_paid(case, said):
    calls = []
    adapter = as_gepa_adapter(score, lambda a, i: calls.append(i), artifact=SEED)
    with pytest.raises(DataError, match=said):
        optimized(adapter, cases=[CASES[0], case])
    assert calls == []


def test_a_candidate_of_another_artifact_is_refused():
    adapter = as_gepa_adapter(score, run, artifact=SEED)
    with pytest.raises(DataError, match="lacks the components"):
        adapter.evaluate(CASES, {"other": "x"})


@pytest.mark.parametrize(("dataset", "true"), [(list, False), (as_gepa_dataset, True)])
def test_the_cache_does_not_take_a_train_case_for_a_validation_case(dataset, true):
    def seen_train_cases(artifact, input):
        return f"L{input['n']}" if input["n"] < 4 else "?"

    result = gepa.optimize(
        {"artifact": SEED},
        trainset=dataset(CASES[:4]),
        valset=dataset(CASES[4:]),
        adapter=as_gepa_adapter(plain_score, seen_train_cases, artifact=SEED),
        reflection_lm=Reflection(),
        max_metric_calls=40,
        cache_evaluation=True,
        skip_perfect_score=False,
        acceptance_criterion="improvement_or_equal",
        reflection_minibatch_size=4,
        logger=Log(),
    )
    assert (max(result.val_aggregate_scores) == 0.25) is true


def test_ids_are_the_same_in_every_run_and_tell_equal_cases_apart():
    twice = [CASES[0], CASES[0], {"input": {"n": 0}, "expected": {"label": "L0"}}]
    dataset, again = as_gepa_dataset(twice), as_gepa_dataset(iter(twice))
    assert dataset.all_ids() == again.all_ids() == sorted(set(dataset.all_ids()))
    assert dataset.fetch(dataset.all_ids()[1:]) == twice[1:]
    assert len(dataset) == 3
    lock, other = threading.Lock(), threading.Lock()
    unread = [Case("1", {"lock": lock}), Case("2", {"lock": lock}), {"input": {"lock": lock}}]
    ids = {as_gepa_dataset([case]).all_ids()[0] for case in [*unread, {"input": {"lock": other}}]}
    assert len(ids) == 4


def test_a_data_set_is_checked_when_it_is_made():
    with pytest.raises(DataError, match=r"case 2: .* is no case"):
        as_gepa_dataset([CASES[0], {"n": 1}])
    with pytest.raises(DataError, match="empty"):
        as_gepa_dataset([])


def test_a_data_set_serves_every_way_of_running(tmp_path):
    dataset = as_gepa_dataset(CASES)
    for _ in range(2):
        adapter = as_gepa_adapter(score, run, artifact=SEED)
        result = optimized(adapter, cases=dataset, run_dir=str(tmp_path), frontier_type="cartesian")
    assert result.best_candidate == {"artifact": RULE}
    result = optimize_anything(
        SEED, evaluator=as_gepa_evaluator(score, run), dataset=dataset, config=config(Reflection())
    )
    assert result.best_candidate == RULE


# --- faults ------------------------------------------------------------------------------------------


class WithLock:
    def __init__(self):
        self.lock = threading.Lock()

    def __eq__(self, other):
        return False

    __hash__ = None


def raises(artifact, input):
    raise ValueError("no such tool")


FAULTS = {
    "raises": (raises, "It raised ValueError: no such tool (test_gepa.py, line"),
    "exits": (lambda a, i: exit(3), "It raised SystemExit: 3"),
    "hangs": (None, "It did not answer within 0.5 s."),
    "nothing": (lambda a, i: None, "It returned nothing."),
    "huge": (lambda a, i: "x" * 5_000_000, "got 'xxx"),
    "surrogate": (lambda a, i: "a\ud800b", "Expected "),
    "lock": (lambda a, i: WithLock(), "Expected "),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_run_stays_with_its_case(fault, tmp_path, released):
    bad, said = FAULTS[fault]
    seconds = 60.0
    if fault == "hangs":
        bad, seconds = (lambda artifact, input: released.wait()), 0.5

    def sometimes_bad(artifact, input):
        return bad(artifact, input) if input["n"] % 4 == 1 else run(artifact, input)

    reflection = Reflection()
    with as_gepa_adapter(score, sometimes_bad, artifact=SEED, run_timeout=seconds) as adapter:
        result = optimized(
            adapter, reflection, run_dir=str(tmp_path), reflection_minibatch_size=8, frontier_type="hybrid"
        )
    value = 0.25 if fault in ("huge", "surrogate", "lock") else 0.0
    assert result.best_candidate == {"artifact": RULE}
    wrong, right = result.val_subscores[0], result.val_subscores[1]
    assert [wrong[n] for n in range(8)] == [value if n in (1, 5) else 0.25 for n in range(8)]
    assert [right[n] for n in range(8)] == [value if n in (1, 5) else 1.0 for n in range(8)]
    assert said in reflection.prompts[0]
    assert "### n\n1\n" in reflection.prompts[0]
    assert len(reflection.prompts[0]) < 60_000
    reflection.prompts[0].encode()


@pytest.mark.parametrize("fault", ["raises", "nothing"])
def test_the_record_of_a_failed_case_says_so(fault):
    adapter = as_gepa_adapter(score, FAULTS[fault][0], artifact=SEED)
    batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    (record,) = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
    assert record["Inputs"] == {"n": 0}
    assert record["Generated Outputs"] == "(no output)"
    assert f"The program gave no output. {FAULTS[fault][1]}" in record["Feedback"]
    assert record["Feedback"].endswith("\n\nScore: 0")
    assert batch.trajectories[0].score.error is not None
    assert adapter.metric.calls == 0


def test_what_an_error_carries_is_the_output_so_far():
    def half(artifact, input):
        raise subprocess.CalledProcessError(1, "tool", output="half of it")

    adapter = as_gepa_adapter(score, half, artifact=SEED)
    batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    (record,) = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
    assert record["Generated Outputs"] == "half of it"
    assert batch.scores == [0.0]


def test_a_score_that_raises_on_one_case_leaves_the_others_alone():
    def sometimes(input, output, expected=None):
        if input["n"] % 4 == 1:
            raise KeyError("label")
        return score(input, output, expected)

    reflection = Reflection()
    adapter = as_gepa_adapter(sometimes, run, artifact=SEED)
    result = optimized(adapter, reflection, reflection_minibatch_size=8, frontier_type="cartesian")
    assert result.best_candidate == {"artifact": RULE}
    assert [result.val_subscores[1][n] for n in range(8)] == [0.0 if n in (1, 5) else 1.0 for n in range(8)]
    assert "raised KeyError: 'label'" in reflection.prompts[0]


@pytest.mark.parametrize("raise_on_exception", [True, False])
def test_a_score_that_fails_on_everything_stops_the_run_with_its_fault(raise_on_exception):
    def broken(input, output, expected=None):
        raise KeyError("lable")

    adapter = as_gepa_adapter(broken, run, artifact=SEED)
    with pytest.raises(MetricError, match="lable"):
        optimized(adapter, raise_on_exception=raise_on_exception)
    assert adapter.metric.calls <= 9


@pytest.mark.parametrize(("raise_on_exception", "kind"), [(True, MetricError), (False, MetricBroken)])
def test_a_score_that_fails_from_some_moment_on_stops_the_run(raise_on_exception, kind):
    calls = iter(range(1_000))

    def revoked(input, output, expected=None):
        if next(calls) > 15:
            raise PermissionError("the key was revoked")
        return plain_score(input, output, expected)

    adapter = as_gepa_adapter(revoked, run, artifact=SEED, max_failures_in_a_row=6)
    with pytest.raises(kind, match="the key was revoked"):
        optimized(
            adapter,
            Reflection(lambda prompt: "Worse."),
            budget=10_000,
            raise_on_exception=raise_on_exception,
        )
    assert adapter.metric.calls < 60


def test_a_metric_whose_first_failures_come_back_first_is_not_broken():
    def slow_where_right(input, output, expected=None):
        if input["n"] < 6:
            raise ValueError("bad case")
        assert eventually(lambda: adapter.metric.broken() is not None or adapter.metric.has_judged)
        return plain_score(input, output, expected)

    adapter = as_gepa_adapter(slow_where_right, run, artifact=SEED)
    batch = adapter.evaluate(CASES, adapter.seed_candidate)
    assert batch.scores == [0.0] * 6 + [0.25] * 2


def test_a_metric_that_works_again_lets_an_adapter_be_used_again():
    away = True

    def sometimes_away(input, output, expected=None):
        if away:
            raise ConnectionError("away")
        return plain_score(input, output, expected)

    adapter = as_gepa_adapter(sometimes_away, run, artifact=SEED, max_failures_in_a_row=3)
    with pytest.raises(MetricError):
        adapter.evaluate(CASES, adapter.seed_candidate)
    away = False
    assert adapter.evaluate(CASES, adapter.seed_candidate).scores == [0.25] * 8


@pytest.mark.parametrize("fail_at", [(1,), (1, 2), (1, 2, 3, 4)])
def test_a_reflection_model_that_fails_first_does_not_end_the_run(fail_at, log):
    result = optimized(as_gepa_adapter(score, run, artifact=SEED), Reflection(fail_at=fail_at), budget=60)
    assert result.best_candidate == {"artifact": RULE}
    assert [[scores[n] for n in range(8)] for scores in result.val_subscores] == [[0.25] * 8, [1.0] * 8]
    assert "the reflection model 'Reflection' raised ConnectionError: the model is away" in log


def test_ctrl_c_passes():
    def interrupted(artifact, input):
        raise KeyboardInterrupt

    adapter = as_gepa_adapter(score, interrupted, artifact=SEED)
    with pytest.raises(KeyboardInterrupt):
        adapter.evaluate(CASES, adapter.seed_candidate)


# --- memory ------------------------------------------------------------------------------------------


def test_by_content_a_judge_is_asked_once_for_each_distinct_case_of_a_long_run(shared_folder):
    with (shared_folder / "data" / "banking77_test.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    intents = sorted({label for _, label in rows})[:8]
    cases = [
        {"input": {"text": text}, "expected": {"label": label}} for text, label in rows if label in intents
    ]
    outputs, asked = set(), []

    def words(text):
        return re.findall(r"\w+", text.lower())

    def by_rules(artifact, input):
        rules = [line.split(": ") for line in artifact.splitlines() if ": " in line]
        output = next((label for word, label in rules if word in words(input["text"])), "unknown")
        outputs.add((input["text"], output))
        return output

    def judge(input, output, expected=None):
        asked.append((input["text"], output))
        if output == expected["label"]:
            return 1.0, {"feedback": "Right."}
        return 0.0, {"feedback": f"{max(words(input['text']), key=len)} means {expected['label']}."}

    def rules(prompt):
        new = [f"{word}: {label}" for word, label in re.findall(r"(\w+) means (\w+)\.", prompt)]
        return "\n".join(["```", *new, prompt.split("```")[1], "```"])

    with as_gepa_adapter(judge, by_rules, artifact="Rules:", memo="content") as adapter:
        result = gepa.optimize(
            adapter.seed_candidate,
            as_gepa_dataset(cases[::8]),
            as_gepa_dataset(cases[1::8]),
            adapter=adapter,
            reflection_lm=as_reflection_lm(rules),
            max_metric_calls=1_500,
            logger=Log(),
        )
    assert max(result.val_aggregate_scores) > 0.3
    assert result.total_metric_calls >= 1_500
    assert len(asked) == len(set(asked)) == len(outputs) == adapter.metric.calls
    assert len(asked) < 500


# --- named scores ------------------------------------------------------------------------------------


def test_every_case_has_every_named_score():
    def uneven(input, output, expected=None):
        name = "even" if input["n"] % 2 == 0 else "odd"
        return 1.0, {"feedback": "f", "scores": {name: 1.0}}

    adapter = as_gepa_adapter(uneven, lambda a, i: None if i["n"] == 3 else "x", artifact=SEED)
    batch = adapter.evaluate(CASES[:4], adapter.seed_candidate)
    assert batch.objective_scores == [
        {"even": 1.0, "odd": 0.0},
        {"odd": 1.0, "even": 0.0},
        {"even": 1.0, "odd": 0.0},
        {"even": 0.0, "odd": 0.0},
    ]


def test_a_metric_without_named_scores_gives_no_objectives():
    adapter = as_gepa_adapter(plain_score, run, artifact=SEED)
    assert adapter.evaluate(CASES, adapter.seed_candidate).objective_scores is None


def test_a_seed_that_fails_everywhere_needs_the_names(log):
    failing = lambda artifact, input: run(artifact, input) if RULE in artifact else None  # noqa: E731
    with pytest.raises(ValueError, match="requires objective_scores"):
        optimized(as_gepa_adapter(score, failing, artifact=SEED), frontier_type="objective")
    assert any("pass score_names=[...]" in line for line in log)
    with pytest.raises(
        MetricError, match=r"needs named scores, .* pass score_names=.* The first failure: The program"
    ):
        optimize_artifact(
            SEED,
            failing,
            score,
            CASES,
            reflection_lm=lambda prompt: RULE,
            max_metric_calls=40,
            frontier_type="hybrid",
        )
    adapter = as_gepa_adapter(score, failing, artifact=SEED, score_names=["exact", "length"])
    result = optimized(adapter, frontier_type="objective")
    assert result.best_candidate == {"artifact": RULE}


# --- how run is called -------------------------------------------------------------------------------


def test_run_may_be_async():
    async def answer(artifact, input):
        await asyncio.sleep(0.01)
        if input["n"] == 2:
            await asyncio.sleep(HANG)
        return run(artifact, input)

    adapter = as_gepa_adapter(score, answer, artifact=RULE, run_timeout=1.0)
    batch = adapter.evaluate(CASES[:4], adapter.seed_candidate)
    assert batch.scores == [1.0, 1.0, 0.0, 1.0]
    unlimited = as_gepa_adapter(score, answer, artifact=RULE, run_timeout=None)
    assert unlimited.evaluate(CASES[:2], adapter.seed_candidate).scores == [1.0, 1.0]


def test_the_callers_context_reaches_run_and_score():
    variable = contextvars.ContextVar("variable", default="unset")
    lm = dspy.LM("scripted/none")
    seen = set()

    def look(*arguments):
        seen.add((variable.get(), dspy.settings.lm is lm))
        return "x"

    adapter = as_gepa_adapter(
        lambda i, o, e: (look() == "", {"feedback": "f"}), look, artifact=SEED, max_workers=3
    )
    variable.set("mine")
    with dspy.context(lm=lm):
        adapter.evaluate(CASES, adapter.seed_candidate)
    assert seen == {("mine", True)}


def test_run_cannot_change_the_case_or_the_artifact():
    def greedy(artifact, input):
        input["n"] = None
        input["deep"]["list"].clear()
        artifact["plan"] = ""
        return "x"

    case = Case("1", {"n": 1, "deep": {"list": [1]}}, {"label": "x"})
    adapter = as_gepa_adapter(score, greedy, artifact={"plan": "p"})
    candidate = adapter.seed_candidate
    assert adapter.evaluate([case, case], candidate).scores == [1.0, 1.0]
    assert case.input == {"n": 1, "deep": {"list": [1]}}
    assert candidate == adapter.seed_candidate == {"plan": "p"}


def test_no_more_than_max_workers_run_at_once():
    width, high, lock, two = 0, 0, threading.Lock(), threading.Barrier(2)

    def watched(artifact, input):
        nonlocal width, high
        with lock:
            width += 1
            high = max(high, width)
        two.wait(PATIENCE)
        time.sleep(0.02)  # time in which a third one could come; the test holds without it
        with lock:
            width -= 1
        return "x"

    with as_gepa_adapter(plain_score, watched, artifact=SEED, max_workers=2) as adapter:
        adapter.evaluate(CASES, adapter.seed_candidate)
    assert high == 2


def test_a_batch_runs_as_one():
    barrier = threading.Barrier(40)

    def together(artifact, input):
        barrier.wait(PATIENCE)
        return f"L{input['n']}"

    with as_gepa_adapter(proven(plain_score), together, artifact=SEED) as adapter:
        for _ in range(2):
            assert adapter.evaluate(CASES * 5, adapter.seed_candidate).scores == [1.0] * 40


def helpers():
    return {thread for thread in threading.enumerate() if thread.name == "skynet-adapters-call"}


def test_threads_are_used_again_and_end_with_the_adapter():
    end_idle_helpers()
    before = helpers()
    with as_gepa_adapter(score, run, artifact=SEED, max_workers=3) as adapter:
        for _ in range(20):
            adapter.evaluate(CASES, adapter.seed_candidate)
        ours = helpers() - before
        # One to run each case and one to judge it, and some that another thread overtook; 160 cases were run.
        assert len(ours) <= 20
    for thread in ours:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert adapter.evaluate(CASES, adapter.seed_candidate).scores == [0.25] * 8


def test_a_case_that_hangs_gives_its_place_to_the_next(released):
    def hangs_at_first(artifact, input):
        if input["n"] < 2:
            released.wait()
        return run(artifact, input)

    adapter = as_gepa_adapter(plain_score, hangs_at_first, artifact=RULE, max_workers=2, run_timeout=1.0)
    batch = adapter.evaluate(CASES, adapter.seed_candidate)
    assert batch.scores == [0.0] * 2 + [1.0] * 6
    assert adapter.metric.calls == 6


def test_a_broken_score_ends_a_long_batch():
    begun = []

    def counted(artifact, input):
        begun.append(input)
        return "?"

    def broken(input, output, expected=None):
        raise KeyError("lable")

    adapter = as_gepa_adapter(broken, counted, artifact=SEED, max_workers=2)
    with pytest.raises(MetricError, match="lable"):
        adapter.evaluate(CASES * 10, adapter.seed_candidate)
    assert len(begun) < 20


def have_ended(threads):
    """Whether helpers have ended; the helper that runs a case has it judged before it ends."""
    end_idle_helpers()
    return not any(thread.is_alive() for thread in threads)


def test_after_ctrl_c_nothing_more_is_judged(released):
    threads, all_here = [], threading.Barrier(8)

    def interrupted(artifact, input):
        threads.append(threading.current_thread())
        all_here.wait(PATIENCE)
        if input["n"] == 7:
            raise KeyboardInterrupt
        released.wait()
        return "?"

    adapter = as_gepa_adapter(plain_score, interrupted, artifact=SEED)
    with pytest.raises(KeyboardInterrupt):
        adapter.evaluate(CASES, adapter.seed_candidate)
    released.set()
    assert eventually(lambda: have_ended(threads))
    assert len(threads) == 8
    assert adapter.metric.calls == 0


def test_what_comes_back_too_late_is_not_judged(released):
    threads = []

    def late(artifact, input):
        threads.append(threading.current_thread())
        released.wait()
        return "late"

    adapter = as_gepa_adapter(plain_score, late, artifact=SEED, run_timeout=0.5)
    assert adapter.evaluate(CASES[:1], adapter.seed_candidate).scores == [0.0]
    released.set()
    assert eventually(lambda: have_ended(threads))
    assert adapter.evaluate(CASES[1:2], adapter.seed_candidate).scores == [0.25]
    assert adapter.metric.calls == 1


INTERRUPTED = """
import os, signal, sys, threading, time
from skynet_adapters import as_gepa_adapter

all_here = threading.Barrier(8)

def run(artifact, input):
    print("begun", flush=True)
    all_here.wait()
    if input["n"] == 7:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)

adapter = as_gepa_adapter(lambda i, o: (1.0, {"feedback": "f"}), run, artifact="x")
try:
    adapter.evaluate([{"input": {"n": n}} for n in range(8)], {"artifact": "x"})
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_ctrl_c_ends_the_process_though_cases_run_on():
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert ran.stdout.count("begun") == 8
    assert ran.stdout.endswith("interrupted\n")
    assert ran.returncode == 0


def test_an_empty_batch_gives_an_empty_answer():
    adapter = as_gepa_adapter(score, run, artifact=SEED)
    batch = adapter.evaluate([], adapter.seed_candidate, capture_traces=True)
    assert (batch.outputs, batch.scores, batch.trajectories) == ([], [], [])


def test_traces_are_given_when_they_are_wanted():
    adapter = as_gepa_adapter(score, run, artifact=SEED)
    assert adapter.evaluate(CASES, adapter.seed_candidate).trajectories is None
    whole = adapter.evaluate(CASES, adapter.seed_candidate, capture_traces=True)
    assert [trajectory.output for trajectory in whole.trajectories] == ["?"] * 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run": "run"}, r"run\(artifact, input\); got 'run'"),
        ({"run": lambda input: input}, r"cannot be called as run\(artifact, input\)"),
        ({"run": dspy.Predict("question -> answer")}, "got the DSPy program"),
        ({"artifact": {}}, "has no parts"),
        ({"max_workers": 0}, "at least 1"),
        ({"run_timeout": 0}, "above 0"),
        ({"run_timeout": float("inf")}, "finite"),
        ({"colour": "red"}, "unknown option 'colour'"),
        ({"score": "score"}, "a metric is a function"),
        ({"score": Metric(score), "timeout": 3}, "has its options already"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, said):
    arguments = {"score": score, "run": run, "artifact": SEED, **arguments}
    with pytest.raises(DefinitionError, match=said):
        as_gepa_adapter(**arguments)


def test_a_metric_is_taken_as_it_is():
    metric = Metric(score)
    assert as_gepa_adapter(metric, run, artifact=SEED).metric is metric
    assert as_gepa_evaluator(metric, run).metric is metric


def test_an_artifact_with_gepas_placeholder_is_pointed_out(log):
    as_gepa_adapter(score, run, artifact={"plan": "Use <side_info> tags."})
    assert any("the part 'plan' of the artifact has <side_info>" in line for line in log)


# --- what goes out -----------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    name: str


class Model(pydantic.BaseModel):
    x: int


class Bad:
    def __repr__(self):
        raise RuntimeError("no repr")


class BadDict(dict):
    def items(self):
        raise RuntimeError("no items")


Named = namedtuple("Named", ["x", "y"])
ITSELF: list[Any] = [1]
ITSELF.append(ITSELF)


@pytest.mark.parametrize(
    ("output", "plain"),
    [
        ("text", "text"),
        ({"a": [1, 2.5, True, None], 3: ("x",)}, {"a": [1, 2.5, True, None], "3": ["x"]}),
        (Point(1, "p"), {"x": 1, "name": "p"}),
        (Model(x=1), {"x": 1}),
        (Named(1, 2), {"x": 1, "y": 2}),
        (dspy.Prediction(answer="A", items=[1]), {"answer": "A", "items": [1]}),
        ({"image": PIXEL}, {"image": "[image]"}),
        ("a\ud800\0", "a\ufffd\ufffd"),
    ],
)
def test_outputs_are_plain_data_and_whole_objects_stay_in_the_trajectory(output, plain):
    adapter = as_gepa_adapter(lambda i, o, e: (0.5, {"feedback": "f"}), lambda a, i: output, artifact=SEED)
    batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    assert batch.outputs == [plain]
    assert batch.trajectories[0].output is output


@pytest.mark.parametrize(
    "output",
    [
        Bad(),
        BadDict(a=1),
        ITSELF,
        {"deep": [[[[[[[[[[[[1]]]]]]]]]]]]},
        10**5_000,
        float("nan"),
        ["x" * 1_000_000] * 50,
        [[]] * 100_000,
        {str(n): n for n in range(100_000)},
        threading.Lock(),
        lambda: None,
        b"\xff" * 100_000,
        open,
    ],
    ids=lambda output: type(output).__name__,
)
def test_every_output_can_be_saved_and_shown(output):
    adapter = as_gepa_adapter(
        lambda i, o, e: (0.5, {"feedback": "f"}), lambda a, i: output, artifact=SEED, copy_inputs=False
    )
    batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    assert len(pickle.dumps(batch.outputs)) < 60_000
    records = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])
    assert len(str(records)) < 60_000
    json.dumps(batch.outputs).encode()


def test_placeholders_in_what_the_reflection_model_reads_are_defused():
    adapter = as_gepa_adapter(
        lambda i, o, e: (0.5, {"feedback": "Drop <side_info>."}),
        lambda a, i: {"<curr_param>": "<side_info>"},
        artifact=SEED,
    )
    batch = adapter.evaluate([Case("1", {"q": "<side_info>"})], adapter.seed_candidate, capture_traces=True)
    (record,) = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
    assert "<side_info>" not in str(record)
    assert "<curr_param>" not in str(record)
    assert record["Feedback"] == "Drop <side info>.\n\nScore: 0.5"
    assert batch.outputs == [{"<curr_param>": "<side_info>"}]


def images(tmp_path):
    path = tmp_path / "pixel.png"
    Pillow.new("RGB", (1, 1)).save(path)
    return {
        "gepa": Image(path=str(path)),
        "dspy": dspy.Image(PIXEL),
        "pillow": Pillow.new("CMYK", (1, 1)),
        "url": PIXEL,
    }


def test_images_reach_the_reflection_model_as_images(tmp_path):
    shown = images(tmp_path)

    def with_images(input, output, expected=None):
        return 0.25, {"feedback": "Look.", "rendered": shown["pillow"], "note": "in the text"}

    reflection = Reflection()
    optimized(
        as_gepa_adapter(with_images, lambda a, i: {"drawn": shown["gepa"]}, artifact=SEED),
        reflection,
        cases=[Case("1", {"photo": shown["dspy"], "other": shown["url"]})],
        budget=3,
        reflection_minibatch_size=1,
    )
    (message,) = reflection.prompts[0]
    text, *parts = message["content"]
    assert len(parts) == 4
    assert all(part["image_url"]["url"].startswith("data:image/png;base64,") for part in parts)
    assert "base64" not in text["text"]
    assert "## rendered\n[IMAGE-4" in text["text"]
    assert "Look.\n\nScore: 0.25\n\nnote: in the text\n" in text["text"]
    encoded = parts[3]["image_url"]["url"].partition(",")[2]
    assert Pillow.open(io.BytesIO(base64.b64decode(encoded))).size == (1, 1)


def test_an_image_file_that_is_not_there_does_not_cost_the_proposal():
    reflection = Reflection()
    adapter = as_gepa_adapter(
        plain_score, lambda a, i: run(a, i) if RULE in a else Image(path="/nowhere.png"), artifact=SEED
    )
    assert optimized(adapter, reflection).best_candidate == {"artifact": RULE}
    assert "/nowhere.png" in reflection.prompts[0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: cloudpickle.loads(cloudpickle.dumps(value))])
def test_adapter_and_evaluator_can_be_copied_and_pickled(copied):
    def local_run(artifact, input):
        return run(artifact, input)

    adapter = as_gepa_adapter(score, local_run, artifact=SEED, include_expected=True)
    adapter.evaluate(CASES, adapter.seed_candidate)
    other = copied(adapter)
    assert other.evaluate(CASES, {"artifact": RULE}).scores == [1.0] * 8
    assert other.artifact({"artifact": RULE}) == RULE
    evaluator = copied(as_gepa_evaluator(score, local_run))
    assert [value for value, _ in evaluator.batch([(RULE, case) for case in CASES])] == [1.0] * 8


# --- optimize_anything -------------------------------------------------------------------------------


def config(reflection, budget=40, **engine):
    return GEPAConfig(
        engine=EngineConfig(max_metric_calls=budget, **engine),
        reflection=ReflectionConfig(reflection_lm=as_reflection_lm(reflection)),
    )


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
@pytest.mark.parametrize("valset", [None, CASES])
def test_optimize_anything_over_cases(way, valset):
    reflection = Reflection()
    with as_gepa_evaluator(score, run, include_expected=True) as evaluator:
        call = evaluator if way == "evaluator" else evaluator.batch
        result = optimize_anything(
            SEED, **{way: call}, dataset=CASES, valset=valset, config=config(reflection)
        )
    assert result.best_candidate == RULE
    number = next(number for number in range(8) if f"'L{number}'" in reflection.prompts[0])
    for text in (
        f"## Input\n### n\n{number}\n",
        "## Output\n?\n",
        f"## Expected\n### label\nL{number}\n",
        f"## Feedback\nExpected 'L{number}', got '?'.\n\nScore: 0.25\nNamed scores: exact 0, length 0.5\n",
    ):
        assert text in reflection.prompts[0]


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_optimize_anything_without_cases_judges_the_artifact_itself(way):
    seen = []

    def short(input, output, expected=None):
        seen.append((input, expected))
        return 1 / len(output.split()), {"feedback": f"{len(output.split())} words."}

    evaluator = as_gepa_evaluator(short)
    call = evaluator if way == "evaluator" else evaluator.batch
    reflection = Reflection("Short.")
    result = optimize_anything("Far too long.", **{way: call}, config=config(reflection, budget=6))
    assert result.best_candidate == "Short."
    assert ({}, None) in seen
    assert "## Feedback\n3 words.\n\nScore: 0.333333\n" in reflection.prompts[0]
    assert "## Input" not in reflection.prompts[0]
    assert "## Output" not in reflection.prompts[0]


def test_optimize_anything_gives_each_part_its_own_text():
    reflection = Reflection()
    evaluator = as_gepa_evaluator(two_part_score, two_part_run)
    result = optimize_anything(
        {"plan": "Old plan.", "answer": "Old answer."},
        evaluator=evaluator,
        dataset=CASES,
        config=GEPAConfig(
            engine=EngineConfig(max_metric_calls=60),
            reflection=ReflectionConfig(reflection_lm=as_reflection_lm(reflection), module_selector="all"),
        ),
    )
    of_plan = next(prompt for prompt in reflection.prompts if "Old plan." in prompt)
    assert "## Feedback\nPlan better.\n\nScore: 0\n" in of_plan
    assert "Answer better." not in of_plan
    assert "The general text." not in of_plan
    assert result.best_candidate == {"plan": RULE, "answer": RULE}


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_a_text_of_the_artifacts_own_reaches_the_reflection_in_optimize_anything_too(way):
    def own_text(input, output, expected=None):
        return 0.5, {"feedback": "For all.", "component_feedback": {"artifact": "For the text alone."}}

    evaluator = as_gepa_evaluator(own_text, run)
    call = evaluator if way == "evaluator" else evaluator.batch
    reflection = Reflection()
    optimize_anything(SEED, **{way: call}, dataset=CASES, config=config(reflection))
    assert "For the text alone." in reflection.prompts[0]
    assert "For all." not in reflection.prompts[0]


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_a_broken_score_stops_optimize_anything_also_where_it_goes_on_after_exceptions(way):
    ran = []

    def broken(input, output, expected=None):
        raise LookupError("no such table")

    def noted(artifact, input):
        ran.append(input)
        return run(artifact, input)

    evaluator = as_gepa_evaluator(broken, noted)
    call = evaluator if way == "evaluator" else evaluator.batch
    going_on = config(Reflection(), budget=400, raise_on_exception=False)
    with pytest.raises(MetricBroken, match="no such table"):
        optimize_anything(SEED, **{way: call}, dataset=CASES * 5, config=going_on)
    assert len(ran) <= 20


def test_optimize_anything_may_begin_without_a_seed():
    result = optimize_anything(
        None,
        evaluator=as_gepa_evaluator(score, run),
        dataset=CASES,
        objective="Label the number.",
        config=config(Reflection(), budget=20),
    )
    assert result.best_candidate == RULE


def test_the_refiners_own_prompt_does_not_reach_run():
    evaluator = as_gepa_evaluator(two_part_score, two_part_run)
    refined = json.dumps({"plan": RULE, "answer": RULE})
    result = optimize_anything(
        {"plan": "Old plan.", "answer": "Old answer."},
        evaluator=evaluator,
        dataset=CASES,
        config=GEPAConfig(
            engine=EngineConfig(max_metric_calls=30, max_workers=2),
            reflection=ReflectionConfig(reflection_lm=as_reflection_lm(Reflection())),
            refiner=RefinerConfig(refiner_lm=as_reflection_lm(Reflection(refined))),
        ),
    )
    assert max(result.val_aggregate_scores) == 1.0
    assert len(evaluator.metric.failures) == 0


def test_a_text_comes_back_from_a_dict_when_the_artifact_is_told():
    evaluator = as_gepa_evaluator(score, run, artifact=SEED)
    assert evaluator({"artifact": RULE}, CASES[0])[0] == 1.0
    with pytest.raises(DataError):
        evaluator({"other": RULE}, CASES[0])
    with pytest.raises(DefinitionError, match="no parts"):
        as_gepa_evaluator(score, run, artifact={})


def test_a_fault_of_run_stays_with_its_case_in_optimize_anything():
    def sometimes(artifact, input):
        return raises(artifact, input) if input["n"] == 1 else run(artifact, input)

    evaluator = as_gepa_evaluator(score, sometimes, score_names=["exact", "length"])
    result = optimize_anything(SEED, evaluator=evaluator, dataset=CASES, config=config(Reflection()))
    assert result.best_candidate == RULE
    value, side_info = evaluator(RULE, CASES[1])
    assert value == 0.0
    assert side_info["Output"] == "(no output)"
    assert "It raised ValueError: no such tool" in side_info["Feedback"]
    assert side_info["scores"] == {"exact": 0.0, "length": 0.0}


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_a_run_that_fails_on_every_case_is_pointed_out_in_optimize_anything(way, log):
    evaluator = as_gepa_evaluator(score, raises, score_names=["exact", "length"])
    given = {"evaluator": evaluator} if way == "evaluator" else {"batch_evaluator": evaluator.batch}
    optimize_anything(SEED, **given, dataset=CASES, config=config(Reflection()))
    (said,) = [line for line in log if "had an output of run" in line]
    assert "It raised ValueError: no such tool" in said


@pytest.mark.parametrize("way", ["evaluator", "batch_evaluator"])
def test_a_broken_score_stops_optimize_anything(way):
    def broken(input, output, expected=None):
        raise KeyError("lable")

    evaluator = as_gepa_evaluator(broken, run)
    call = evaluator if way == "evaluator" else evaluator.batch
    with pytest.raises(MetricError, match="lable"):
        optimize_anything(SEED, **{way: call}, dataset=CASES, config=config(Reflection()))


def test_what_run_logs_for_gepa_is_kept():
    def talkative(artifact, input):
        oa_log("tried", input["n"])
        return run(artifact, input)

    reflection = Reflection()
    optimize_anything(
        SEED, evaluator=as_gepa_evaluator(score, talkative), dataset=CASES, config=config(reflection)
    )
    assert "## log\ntried " in reflection.prompts[0]


@pytest.mark.parametrize(
    ("limits", "captured"),
    [
        ({}, set()),
        ({"run_timeout": None}, {"ran"}),
        ({"run_timeout": None, "timeout": None}, {"ran", "judged"}),
    ],
)
def test_what_is_printed_is_captured_where_there_is_no_limit(limits, captured):
    def loud_run(artifact, input):
        print("was ran")
        return run(artifact, input)

    def loud_score(input, output, expected=None):
        print("was judged")
        return plain_score(input, output, expected)

    reflection = Reflection()
    optimize_anything(
        SEED,
        evaluator=as_gepa_evaluator(loud_score, loud_run, **limits),
        dataset=CASES,
        config=config(reflection, capture_stdio=True),
    )
    assert {word for word in ("ran", "judged") if f"was {word}" in reflection.prompts[0]} == captured


def test_the_callers_context_reaches_a_batch_evaluator():
    lm = dspy.LM("scripted/none")
    seen = set()

    def look(artifact, input):
        seen.add(dspy.settings.lm is lm)
        return run(artifact, input)

    with dspy.context(lm=lm):
        optimize_anything(
            SEED,
            batch_evaluator=as_gepa_evaluator(score, look).batch,
            dataset=CASES,
            config=config(Reflection()),
        )
    assert seen == {True}


def test_names_that_gepa_keeps_are_not_overwritten():
    def greedy(input, output, expected=None):
        return 0.5, {
            "feedback": "f",
            "log": PIXEL,
            "x_specific_info": PIXEL,
            "Feedback": PIXEL,
            "mine": PIXEL,
        }

    _, side_info = as_gepa_evaluator(greedy, run)(SEED, CASES[0])
    kept = [key for key, value in side_info.items() if isinstance(value, Image)]
    assert kept == ["log of the metric", "x_specific_info of the metric", "Feedback of the metric", "mine"]
    assert side_info["Feedback"] == "f\n\nScore: 0.5"


def test_adapter_and_evaluator_agree():
    adapter = as_gepa_adapter(score, run, artifact=SEED)
    evaluator = as_gepa_evaluator(adapter.metric, run)
    batch = adapter.evaluate(CASES, adapter.seed_candidate, capture_traces=True)
    records = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
    answers = evaluator.batch([(SEED, case) for case in CASES])
    assert [value for value, _ in answers] == batch.scores
    assert [side_info["Feedback"] for _, side_info in answers] == [record["Feedback"] for record in records]
    assert [side_info["scores"] for _, side_info in answers] == batch.objective_scores
