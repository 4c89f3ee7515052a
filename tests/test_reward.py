"""`reward`: three parts, one number, and what a wrong spec is told."""

import copy
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skynet_adapters import DefinitionError, Metric, MetricReturnError, RewardSpec
from skynet_adapters.measure import Observation, observed
from skynet_adapters.rewards import reward
from skynet_adapters.score import parse_return

WEIGHTS = {"accuracy": 0.7, "speed": 0.2, "cost": 0.1}
SPEC = {
    "weights": WEIGHTS,
    "accuracy": {},
    "speed": {"reference": 2000},
    "cost": {"reference": 0.01},
}
ERROR_SPEC = {**SPEC, "accuracy": {"reference": 0.1}}
ONLY_ACCURACY = {"weights": {"accuracy": 1, "speed": 0, "cost": 0}}
ON_REFERENCE = Observation(time_ms=2000.0, cost_usd=0.01)

positive = st.floats(min_value=1e-300, max_value=1e300)


def rewarded(spec=SPEC, accuracy=1.0, feedback="Right.", **figures):
    with observed(Observation(**({"time_ms": 2000.0, "cost_usd": 0.01} | figures))):
        return reward(spec, accuracy, feedback)


# --- the parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_ms", "speed"), [(0.0, 1.0), (1.0, 1.0), (2000.0, 1.0), (4000.0, 0.5), (20_000.0, 0.1)]
)
def test_speed_is_the_reference_over_the_time_and_at_most_1(time_ms, speed):
    value, info = rewarded(time_ms=time_ms)
    assert info["scores"] == pytest.approx({"accuracy": 1.0, "speed": speed, "cost": 1.0})
    assert value == pytest.approx(0.7 + 0.2 * speed + 0.1)


@pytest.mark.parametrize(
    ("cost_usd", "cost"), [(0.0, 1.0), (0.002, 1.0), (0.01, 1.0), (0.02, 0.5), (1.0, 0.01)]
)
def test_cost_is_the_reference_over_the_dollars_and_at_most_1(cost_usd, cost):
    value, info = rewarded(cost_usd=cost_usd)
    assert info["scores"] == pytest.approx({"accuracy": 1.0, "speed": 1.0, "cost": cost})
    assert value == pytest.approx(0.7 + 0.2 + 0.1 * cost)


@pytest.mark.parametrize("accuracy", [0.0, 0.25, 1.0])
def test_without_a_reference_accuracy_is_the_score_itself(accuracy):
    value, info = rewarded(accuracy=accuracy)
    assert info["scores"]["accuracy"] == accuracy
    assert value == pytest.approx(0.7 * accuracy + 0.3)


@pytest.mark.parametrize(("error", "part"), [(0.0, 1.0), (0.05, 1.0), (0.1, 1.0), (0.2, 0.5), (10, 0.01)])
def test_with_a_reference_accuracy_is_an_error_where_lower_is_better(error, part):
    value, info = rewarded(ERROR_SPEC, error)
    assert info["scores"]["accuracy"] == pytest.approx(part)
    assert value == pytest.approx(0.7 * part + 0.3)


@pytest.mark.parametrize(
    "accuracy", [True, 1, np.float32(1), np.True_, np.array(1.0), Decimal(1), Fraction(1)], ids=repr
)
def test_every_kind_of_number_is_an_accuracy_and_becomes_a_float(accuracy):
    value, info = rewarded(accuracy=accuracy)
    assert value == 1.0
    assert [type(score) for score in info["scores"].values()] == [float] * 3


@pytest.mark.parametrize(
    ("accuracy", "spec", "said"),
    [
        (1.01, SPEC, "accuracy=1.01; without accuracy.reference it is a score from 0 to 1. Divide it"),
        (-0.01, SPEC, "accuracy=-0.01; without accuracy.reference it is a score from 0 to 1"),
        (-1, ERROR_SPEC, r"accuracy=-1; with accuracy.reference it is an error, 0 or more. .* abs\(error\)"),
        (math.nan, SPEC, "accuracy=nan, which is no finite number"),
        (math.inf, ERROR_SPEC, "accuracy=inf, which is no finite number"),
        ("0.8", SPEC, "accuracy='0.8', which is no finite number"),
        (None, SPEC, "accuracy=None, which is no finite number"),
    ],
)
def test_an_accuracy_out_of_bounds_is_refused(accuracy, spec, said):
    with pytest.raises(MetricReturnError, match=said):
        rewarded(spec, accuracy)


def test_a_feedback_that_is_no_text_is_refused():
    with pytest.raises(MetricReturnError, match=r"reward\(\) got None \(NoneType\) as feedback"):
        rewarded(feedback=None)


# --- the total -----------------------------------------------------------------------------------


@given(st.tuples(*[st.floats(min_value=0, max_value=1e308)] * 3).filter(any))
def test_weights_of_any_size_are_shares_that_sum_to_1(weights):
    spec = RewardSpec(
        weights=dict(zip(WEIGHTS, weights, strict=True)), speed={"reference": 1}, cost={"reference": 1}
    )
    assert math.fsum(spec.shares.values()) == pytest.approx(1.0)
    assert all(
        share == pytest.approx(weight / max(weights) * max(spec.shares.values()))
        for share, weight in zip(spec.shares.values(), weights, strict=True)
    )


@given(st.tuples(*[st.floats(min_value=0, max_value=1e6)] * 3).filter(any))
def test_three_parts_of_1_give_exactly_1_so_that_the_case_counts_as_success(weights):
    spec = {**SPEC, "weights": dict(zip(WEIGHTS, weights, strict=True))}
    assert rewarded(spec)[0] == 1.0


@given(
    time_ms=positive,
    cost_usd=positive,
    error=positive,
    reference=positive,
)
def test_the_total_lies_in_0_to_1_and_is_a_valid_answer(time_ms, cost_usd, error, reference):
    spec = {**SPEC, "accuracy": {"reference": reference}, "speed": {"reference": reference}}
    score = parse_return(rewarded(spec, error, time_ms=time_ms, cost_usd=cost_usd), score_range=(0, 1))
    assert all(0.0 <= part <= 1.0 for part in score.scores.values())
    assert min(score.scores.values()) - 1e-9 <= score.value <= max(score.scores.values()) + 1e-9


def test_a_spec_object_does_what_its_dict_does():
    assert rewarded(RewardSpec(**SPEC), 0.5, time_ms=3000.0) == rewarded(SPEC, 0.5, time_ms=3000.0)


# --- the feedback --------------------------------------------------------------------------------


def test_the_feedback_is_the_users_text_and_a_line_for_each_part_with_a_reference():
    _, info = rewarded(ERROR_SPEC, 0.4, "Off by 0.4.", time_ms=3120.4, cost_usd=0.00002)
    assert info["feedback"].splitlines() == [
        "Off by 0.4.",
        "Accuracy 0.25: error 0.4, reference 0.1.",
        "Speed 0.641: 3,120 ms, reference 2,000 ms.",
        "Cost 1: 0.00002 US dollars, reference 0.01 US dollars.",
    ]


def test_an_empty_text_leaves_no_empty_line():
    assert rewarded(feedback=" ")[1]["feedback"].startswith("Speed 1:")


@pytest.mark.parametrize("missing", ["time_ms", "cost_usd"])
def test_what_was_not_measured_scores_0_and_the_feedback_says_which_and_why(missing):
    name, kept = ("Speed", 0.8) if missing == "time_ms" else ("Cost", 0.9)
    value, info = rewarded(**{missing: None}, reasons={missing: "the answer came from a cache"})
    assert value == pytest.approx(kept)
    assert info["scores"][name.lower()] == 0.0
    assert f"{name} 0: not measured: the answer came from a cache." in info["feedback"].splitlines()
    assert info["feedback"].count("not measured") == 1


def test_outside_of_a_run_nothing_is_measured_and_the_feedback_says_so():
    value, info = reward(SPEC, 1.0, "Right.")
    assert value == pytest.approx(0.7)
    assert info["feedback"].count("not measured: no measured rollout is judged here") == 2


def test_a_metric_sees_what_was_measured_for_its_case():
    metric = Metric(lambda input, output: reward(SPEC, 1.0, "Right."), name="blend")
    with observed(Observation(time_ms=4000.0, cost_usd=0.02)):
        score = metric.score_case({}, "a")
    assert score.value == pytest.approx(0.7 + 0.1 + 0.05)
    assert score.scores == {"accuracy": 1.0, "speed": 0.5, "cost": 0.5}


# --- parts without weight ------------------------------------------------------------------------


def test_a_part_without_weight_and_section_is_neither_scored_nor_mentioned():
    value, info = reward(ONLY_ACCURACY, 0.5, "Half.")
    assert (value, info) == (0.5, {"feedback": "Half.", "scores": {"accuracy": 0.5}})


def test_a_part_without_weight_but_with_a_reference_is_shown_and_counts_for_nothing():
    spec = {**SPEC, "weights": {"accuracy": 1, "speed": 0, "cost": 0}}
    value, info = rewarded(spec, 0.5, time_ms=4000.0)
    assert value == 0.5
    assert info["scores"] == {"accuracy": 0.5, "speed": 0.5, "cost": 1.0}
    assert "Speed 0.5: 4,000 ms" in info["feedback"]


def test_accuracy_may_have_no_weight():
    spec = {**SPEC, "weights": {"accuracy": 0, "speed": 1, "cost": 1}}
    assert rewarded(spec, 0.0, time_ms=4000.0)[0] == pytest.approx(0.75)


@pytest.mark.parametrize("empty", [{}, None])
@pytest.mark.parametrize("section", ["speed", "cost", "accuracy"])
def test_an_empty_section_is_as_good_as_none(section, empty):
    assert reward({**ONLY_ACCURACY, section: empty}, 1.0, "")[0] == 1.0


# --- wrong specs ---------------------------------------------------------------------------------


def weighted(**weights):
    return {**SPEC, "weights": {**WEIGHTS, **weights}}


def without(name):
    return {key: value for key, value in SPEC.items() if key != name}


A_WEIGHT = "it must be a finite number, 0 or more"
WRONG_SPECS = {
    "no dict": (5, r"it is 5 \(int\); it must be a dict that has \"weights\""),
    "None": (None, "it is None"),
    "a list": ([WEIGHTS], "it must be a dict"),
    "empty": ({}, 'it has no weights; add "weights"'),
    "no weights": (without("weights"), 'it has no weights; add "weights"'),
    "weights no dict": ({**SPEC, "weights": [0.7, 0.2, 0.1]}, "weights is .* it must be a dict, such as"),
    "a weight missing": ({**SPEC, "weights": {"accuracy": 1, "speed": 1}}, "weights.cost is missing; add it"),
    "a weight too many": (weighted(quality=1), "weights.quality is unknown; weights has accuracy, speed"),
    "a weight misspelt": (weighted(acuracy=1), "weights.acuracy is unknown; did you mean 'accuracy'"),
    "a section misspelt": (
        {"weight": WEIGHTS},
        "(?<=used: )weight is unknown; did you mean 'weights'[?] the spec has weights, [a-z, ]+$",
    ),
    "a negative weight": (weighted(speed=-0.1), rf"weights.speed is -0.1 \(float\); {A_WEIGHT}"),
    "a NaN weight": (weighted(cost=math.nan), f"weights.cost is nan .*{A_WEIGHT}"),
    "an infinite weight": (weighted(cost=math.inf), f"weights.cost is inf .*{A_WEIGHT}"),
    "a huge weight": (weighted(cost=10**400), f"weights.cost is 1000.*{A_WEIGHT}"),
    "a bool weight": (weighted(accuracy=True), rf"weights.accuracy is True \(bool\); {A_WEIGHT}"),
    "a text weight": (weighted(accuracy="0.7"), f"weights.accuracy is '0.7' .*{A_WEIGHT}"),
    "no weight but None": (weighted(accuracy=None), f"weights.accuracy is None .*{A_WEIGHT}"),
    "all 0": (weighted(accuracy=0, speed=0, cost=0.0), "its weights are all 0; give one a weight above 0"),
    "speed without section": (
        without("speed"),
        "weights.speed is 0.2, and speed.reference is missing; give it in milliseconds, .* or set",
    ),
    "cost without section": (
        without("cost"),
        "weights.cost is 0.1, and cost.reference is missing; give it in US dollars",
    ),
    "speed without reference": ({**SPEC, "speed": {}}, "speed.reference is missing"),
    "a bare reference": ({**SPEC, "speed": 2000}, r"speed is 2000 \(int\); it must be a dict, such as"),
    "a reference of 0": (
        {**SPEC, "speed": {"reference": 0}},
        r"speed.reference is 0 \(int\); it must be a finite number of milliseconds above 0",
    ),
    "a negative reference": (
        {**SPEC, "cost": {"reference": -0.01}},
        "cost.reference is -0.01 .* of US dollars above 0",
    ),
    "a NaN reference": ({**SPEC, "cost": {"reference": math.nan}}, "cost.reference is nan .* above 0"),
    "an infinite reference": ({**SPEC, "cost": {"reference": math.inf}}, "cost.reference is inf .* above 0"),
    "a bool reference": ({**SPEC, "speed": {"reference": True}}, "speed.reference is True .* above 0"),
    "a text reference": ({**SPEC, "speed": {"reference": "2 s"}}, "speed.reference is '2 s' .* above 0"),
    "an accuracy reference of 0": (
        {**SPEC, "accuracy": {"reference": 0}},
        r"accuracy.reference is 0 \(int\); it must be a finite number above 0",
    ),
    "a misspelt reference": ({**SPEC, "speed": {"refrence": 1}}, "speed.refrence is unknown; did you mean"),
    "a misspelt section": ({**SPEC, "sped": {}}, "sped is unknown; did you mean 'speed'"),
    "a key that is no text": ({**SPEC, 1: 2}, "1 is unknown; the spec has weights, accuracy, speed, cost"),
}


@pytest.mark.parametrize(("spec", "said"), WRONG_SPECS.values(), ids=WRONG_SPECS)
def test_a_wrong_spec_is_refused_with_field_value_and_mend(spec, said):
    with pytest.raises(DefinitionError, match=f"the reward spec cannot be used: .*{said}") as refused:
        rewarded(spec)
    assert "pydantic" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_fault_of_a_spec_is_named_at_once():
    with pytest.raises(DefinitionError) as refused:
        RewardSpec(weights={"accuracy": -1, "speed": "x"}, cost={"reference": 0})
    for name in ("weights.accuracy", "weights.speed", "weights.cost", "cost.reference"):
        assert f"{name} is " in str(refused.value)


def test_a_spec_cannot_be_changed_and_travels():
    spec = RewardSpec(**SPEC)
    with pytest.raises(ValueError, match="frozen"):
        spec.speed = None
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
