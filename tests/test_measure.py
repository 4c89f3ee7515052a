"""The records of what a rollout took, and who may set them."""

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import skynet_adapters
from skynet_adapters import (
    Bill,
    Metric,
    Observation,
    ServiceCost,
    as_gepa_adapter,
    as_gepa_evaluator,
    observation,
    observed,
    service_cost,
)
from skynet_adapters.measure import ModelCall, rollout
from tests.waiting import PATIENCE, eventually, waiting

FIGURES = ["time_ms", "model_calls", "cached_calls", "input_tokens", "output_tokens", "cost_usd"]


def telling(input, output, expected=None):
    return 1.0, {"feedback": f"{observation().time_ms}"}


@pytest.mark.parametrize("record", [Observation(), ServiceCost()])
def test_a_record_cannot_be_changed(record):
    for field in dataclasses.fields(record):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field.name, 1)
    with pytest.raises((AttributeError, TypeError)):
        record.another = 1


def test_the_reasons_cannot_be_changed_either():
    with pytest.raises(TypeError):
        Observation().reasons["time_ms"] = "because"


def test_there_is_a_reason_for_each_figure_that_was_not_measured_and_for_no_other():
    seen = Observation(time_ms=1.0, cost_usd=0.0, reasons={"model_calls": "nobody counted", "time_ms": "?"})
    assert set(seen.reasons) == {"model_calls", "cached_calls", "input_tokens", "output_tokens"}
    assert seen.reasons["model_calls"] == "nobody counted"
    assert set(Observation().reasons) == set(FIGURES)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda record: pickle.loads(pickle.dumps(record))])
def test_a_record_travels(again):
    seen = Observation(time_ms=1.5, reasons={"cost_usd": "no price"})
    assert again(seen) == seen
    assert hash(again(seen)) == hash(seen)


def test_outside_of_a_metric_nothing_is_measured_and_the_reason_says_why():
    seen = observation()
    assert [getattr(seen, name) for name in FIGURES] == [None] * 6
    assert all("called by hand" in reason for reason in seen.reasons.values())
    assert service_cost() == ServiceCost(reason=seen.reasons["cost_usd"])


def test_a_block_sets_the_record_for_itself():
    with observed(Observation(cost_usd=1.0)):
        with observed(Observation(cost_usd=2.0, model_calls=1)):
            assert service_cost() == ServiceCost(usd=2.0, model_calls=1)
        assert observation().cost_usd == 1.0
    assert observation().cost_usd is None


def test_a_metric_reads_the_record_that_it_is_judged_with_in_any_of_its_threads():
    for timeout in (60.0, None):
        metric = Metric(telling, timeout=timeout)
        assert metric.score_case({}, "A", observation=Observation(time_ms=7.0)).feedback == "7.0"
        assert metric.score_case({}, "A").feedback == "None"

    async def reading(input, output, expected=None):
        return telling(input, output)

    assert Metric(reading).score_case({}, "A", observation=Observation(time_ms=7.0)).feedback == "7.0"


def test_a_metric_inside_of_a_metric_reads_the_record_of_the_same_rollout():
    inner = Metric(telling)

    def outer(input, output, expected=None):
        return inner(input, output)

    assert Metric(outer).score_case({}, "A", observation=Observation(time_ms=7.0)).feedback == "7.0"


def test_the_memory_by_content_ends_for_good_with_the_first_read_of_a_measurement():
    metric = Metric(telling, memo="content")
    said = [
        metric.score_case({}, "A", observation=Observation(time_ms=time)).feedback for time in (1.0, 2.0, 3.0)
    ]
    assert said == ["1.0", "2.0", "3.0"]


def test_one_who_waited_for_an_equal_case_is_judged_by_its_own_measurement():
    under_way, go_on = threading.Event(), threading.Event()

    def slow(input, output, expected=None):
        if not under_way.is_set():
            under_way.set()
            assert go_on.wait(PATIENCE)
        return telling(input, output)

    metric, said = Metric(slow, memo="content"), {}

    def judge(time_ms):
        said[time_ms] = metric.score_case({}, "A", observation=Observation(time_ms=time_ms)).feedback

    first, second = (threading.Thread(target=judge, args=(time_ms,)) for time_ms in (1.0, 2.0))
    first.start()
    assert under_way.wait(PATIENCE)
    second.start()
    assert eventually(lambda: waiting([second]))  # for the first one
    go_on.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert said == {1.0: "1.0", 2.0: "2.0"}


def test_a_metric_that_reads_nothing_keeps_its_memory_by_content():
    metric = Metric(lambda input, output: (1.0, {"feedback": "Fine."}), memo="content")
    for time in (1.0, 2.0):
        metric.score_case({}, "A", observation=Observation(time_ms=time))
    assert metric.calls == 1


def test_the_code_that_is_judged_cannot_set_the_record():
    def run(artifact, input):
        observed(Observation(time_ms=0.0, cost_usd=0.0)).__enter__()
        return "A"

    read = []

    def score(input, output, expected=None):
        read.append(observation())
        return 1.0, {"feedback": "Read."}

    with as_gepa_adapter(score, run, artifact="x") as adapter:
        adapter.evaluate([{"input": {}}], adapter.seed_candidate)
    as_gepa_evaluator(score, run, run_timeout=None)("x")
    assert [seen.cost_usd for seen in read] == [None, None]
    assert all(seen.time_ms > 0 for seen in read)


def test_an_artifact_that_is_judged_itself_took_nothing_that_could_be_measured():
    read = []

    def score(input, output, expected=None):
        read.append(observation())
        return 1.0, {"feedback": "Read."}

    as_gepa_evaluator(score)("x")
    assert read[0].time_ms is None
    assert "nothing was run" in read[0].reasons["time_ms"]


def test_time_is_measured_where_dspy_is_not_loaded():
    code = """
import sys, time
from skynet_adapters import as_gepa_adapter, observation

def run(artifact, input):
    time.sleep(0.05)
    return "A"

def score(input, output, expected=None):
    seen = observation()
    assert seen.time_ms >= 50, seen
    assert seen.cost_usd is None and "dspy.LM" in seen.reasons["cost_usd"], seen
    return 1.0, {"feedback": "Read."}

with as_gepa_adapter(score, run, artifact="x") as adapter:
    assert adapter.evaluate([{"input": {}}], adapter.seed_candidate).scores == [1.0], adapter.metric.failures
assert "dspy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(skynet_adapters.__file__).parents[1])


def test_a_block_that_raises_is_measured_too():
    with pytest.raises(ValueError, match="no"), rollout() as measured:
        raise ValueError("no")
    assert measured.observation().time_ms >= 0


def test_a_bill_adds_up_from_many_threads():
    bill = Bill()

    def pay():
        for _ in range(500):
            bill.add(ModelCall("m", False, 2, 1, 0.5))
            bill.add(ModelCall("m", True, 2, 1, 0.5))
            bill.add(ModelCall("m"))

    threads = [threading.Thread(target=pay) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (bill.calls, bill.cached_calls, bill.unpriced_calls) == (12_000, 4_000, 4_000)
    assert (bill.input_tokens, bill.output_tokens, bill.usd) == (8_000, 4_000, 2_000.0)
