"""The cases of a GEPA run, and the ids of a data set."""

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import dspy
import gepa
import numpy as np
import pandas as pd
import pytest
from PIL import Image as Pillow

from skynet_adapters.cases import Case
from skynet_adapters.errors import DataError, DefinitionError, MetricBroken
from skynet_adapters.gepa import (
    as_gepa_adapter,
    as_gepa_dataset,
    as_gepa_evaluator,
    as_reflection_lm,
    check_gepa_run,
    optimize_artifact,
)


def picture(red: int) -> Any:
    return Pillow.new("RGB", (4, 4), (red, 0, 0))


def array(value: int) -> Any:
    """Two of them read the same: `repr` leaves the middle out."""
    made = np.zeros(5_000)
    made[2_500] = value
    return made


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Plain"


@pytest.mark.parametrize(
    "make", [picture, array, np.int64, pd.Timestamp, Plain, lambda value: pd.Series([value])]
)
def test_ids_tell_what_a_case_holds_whatever_it_is(make: Any) -> None:
    one, same, other = ([Case("1", {"x": make(value)}, {"a": "A"})] for value in (1, 1, 2))
    ids = as_gepa_dataset(one).all_ids()
    assert ids == as_gepa_dataset(same).all_ids() != as_gepa_dataset(other).all_ids()
    assert ids == as_gepa_dataset([{"input": {"x": make(1)}, "expected": {"a": "A"}}]).all_ids()


@pytest.mark.parametrize("make", [picture, array])
def test_the_cache_does_not_take_one_object_for_another(make: Any) -> None:
    train, val = ([Case(str(n), {"x": make(red)}, {"a": "train"}) for n in range(3)] for red in (1, 2))

    def run(artifact: str, input: Any) -> str:
        return "train" if artifact != "Seed." and np.asarray(input["x"]).max() == 1 else "wrong"

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return float(output == expected["a"]), {"feedback": "f"}

    result = gepa.optimize(
        {"artifact": "Seed."},
        trainset=as_gepa_dataset(train),
        valset=as_gepa_dataset(val),
        adapter=as_gepa_adapter(score, run, artifact="Seed."),
        reflection_lm=as_reflection_lm(lambda prompt: "Child."),
        max_metric_calls=14,
        cache_evaluation=True,
    )
    assert len(result.candidates) > 1
    assert set(result.val_aggregate_scores) == {0.0}


def test_ids_of_pickled_objects_are_the_same_in_every_process() -> None:
    script = (
        "from PIL import Image\n"
        "from skynet_adapters import Case, as_gepa_dataset\n"
        "case = Case('1', {'x': Image.new('RGB', (4, 4), (1, 0, 0))}, {'a': 'A'})\n"
        "print(as_gepa_dataset([case]).all_ids()[0])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == as_gepa_dataset([Case("1", {"x": picture(1)}, {"a": "A"})]).all_ids()


def test_what_cannot_be_read_gets_an_id_that_no_other_data_set_has(caplog: pytest.LogCaptureFixture) -> None:
    case = Case("1", {"lock": threading.Lock()})
    with caplog.at_level(logging.WARNING, "skynet_adapters"):
        one, other = as_gepa_dataset([case, Case("2", {}), case]), as_gepa_dataset([case])
    assert len({*one.all_ids(), *other.all_ids()}) == 4
    assert "2 of 3 cases hold what cannot be compared (case 1: TypeError: cannot pickle" in caplog.text
    assert len(caplog.records) == 2


def test_a_data_set_is_taken_as_it_is() -> None:
    dataset = as_gepa_dataset([Case("1", {"lock": threading.Lock()}), Case("2", {"q": "?"})])
    again = as_gepa_dataset(dataset)
    assert again.all_ids() == dataset.all_ids()
    assert again.fetch(again.all_ids()) == dataset.fetch(dataset.all_ids())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            {"input": {"q": "1"}, "expected": "A"},
            r"expects 'A' .*; what is expected must be a dict of fields",
        ),
        (Case("1", {"q": "1"}, "A"), r"expects 'A' .*; what is expected must be a dict of fields"),  # type: ignore[arg-type]
        ({"input": {"q": "1"}, "expected": []}, r"expects \[\] .*; what is expected must be a dict"),
        (Case("1", "q1"), "with a dict of fields as input"),  # type: ignore[arg-type]
        (Case("1", None), "with a dict of fields as input"),  # type: ignore[arg-type]
        (dspy.Prediction(q="1"), "is no case"),
    ],
    ids=repr,
)
def test_a_case_of_another_shape_is_refused_everywhere(case: Any, said: str) -> None:
    def unreached(artifact: Any, input: Any) -> str:
        raise AssertionError

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return 1.0, {"feedback": "f"}

    adapter = as_gepa_adapter(score, unreached, artifact="Seed.")
    with pytest.raises(DataError, match=said):
        as_gepa_dataset([case])
    with pytest.raises(DataError, match=said):
        adapter.evaluate([case], adapter.seed_candidate)
    with pytest.raises(DataError, match=said):
        as_gepa_evaluator(score, unreached)("Seed.", case)


@pytest.mark.parametrize(
    ("artifact", "candidate", "said"),
    [
        (None, 5, r"the candidate is 5 \(int\); it must be a text or a dict of named texts"),
        (None, None, r"the candidate is None .*; it must be a text"),
        (None, {"plan": 5}, r"the part 'plan', which is 5 \(int\)"),
        (None, {5: "plan"}, r"a part named 5 \(int\)"),
        ({"plan": "x"}, "text", r"the candidate is 'text' \(str\); it must be a text for each component"),
        ({"plan": "x"}, {"plan": 5}, r"the part 'plan', which is 5 \(int\)"),
        ("x", 5, "the candidate is 5"),
    ],
)
def test_a_candidate_of_another_shape_is_refused(artifact: Any, candidate: Any, said: str) -> None:
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return 1.0, {"feedback": "f"}

    evaluator = as_gepa_evaluator(score, lambda artifact, input: artifact, artifact=artifact)
    with pytest.raises(DataError, match=said):
        evaluator(candidate, {"input": {}})
    with pytest.raises(DataError, match=said):
        evaluator.batch([(candidate, {"input": {}})])
    assert evaluator.metric.calls == 0


def test_a_placeholder_in_the_name_of_a_score_is_defused() -> None:
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return 0.5, {"feedback": "f", "scores": {"<side_info>": 1.0}}

    _, side_info = as_gepa_evaluator(score)("Seed.", None)
    assert "<side_info>" not in str(side_info)
    assert side_info["scores"] == {"<side info>": 1.0}


ROW = {"text": "hi", "label": "greeting"}
OF_ROWS = "load_cases({}, input='text', expected='label')"


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ("cases.csv", "load_cases('cases.csv', input=..., expected=...)"),
        (Path("cases.jsonl"), "load_cases('cases.jsonl', input=..., expected=...)"),
        ([ROW], OF_ROWS.format("rows")),
        ([{"input": "hi", "expected": "greeting"}], "load_cases(rows, input='input', expected='expected')"),
        (pd.DataFrame([ROW]), OF_ROWS.format("df")),
    ],
    ids=["path", "Path", "rows", "flat input", "DataFrame"],
)
def test_where_columns_are_given_for_cases_the_call_that_makes_cases_is_told(given, call):
    run = lambda artifact, input: "x"  # noqa: E731
    score = lambda input, output: (1.0, {"feedback": "Fine."})  # noqa: E731
    adapter = as_gepa_adapter(score, run, artifact="A")
    for take in (
        as_gepa_dataset,
        lambda cases: adapter.evaluate(cases, adapter.seed_candidate),
        lambda cases: optimize_artifact(
            "A", run, score, cases, reflection_lm=lambda prompt: "B", max_metric_calls=9
        ),
        lambda cases: check_gepa_run(adapter, seed_candidate=adapter.seed_candidate, trainset=cases),
    ):
        with pytest.raises((DataError, DefinitionError, MetricBroken)) as caught:
            take(given)
        assert call in str(caught.value)


def test_rows_of_columns_are_told_to_an_evaluator_too():
    evaluator = as_gepa_evaluator(lambda input, output: (1.0, {"feedback": "Fine."}))
    with pytest.raises(DataError, match=re.escape(OF_ROWS.format("rows"))):
        evaluator("A", ROW)
