"""Whatever comes in and whatever threads do: nothing escapes but the errors that are named."""

import collections
import datetime
import decimal
import gc
import io
import json
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import numpy as np
import pandas as pd
import pytest
from dspy.teleprompt.gepa.gepa_utils import DspyAdapter
from gepa.strategies.instruction_proposal import InstructionProposalSignature
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from skynet_adapters import (
    Case,
    DataError,
    as_dspy_metric,
    as_gepa_adapter,
    as_gepa_dataset,
    as_gepa_evaluator,
    load_cases,
    to_examples,
)
from skynet_adapters.memo import ContentMemo, RolloutMemo
from skynet_adapters.score import clean_text
from tests.waiting import PATIENCE

# --- case data of any kind ------------------------------------------------------------------------


class Raises:
    """Raises at every look."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no pickle")


class BadDict(dict):
    """Cannot be read, though it holds something."""

    def items(self) -> Any:
        raise RuntimeError("no items")

    def __iter__(self) -> Any:
        raise RuntimeError("no iter")


class BadMapping(collections.abc.Mapping):
    """Says that it holds something, and does not give it."""

    def __getitem__(self, key: object) -> Any:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        return iter(["input", "a"])

    def __len__(self) -> int:
        return 2


class Text(str):
    """A text of the user's own."""


def holding_itself() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


any_text = st.text(st.characters(codec=None), max_size=8)
# They are made when they are drawn, since Hypothesis shows what it draws from.
ODD: list[Callable[[], Any]] = [
    *(Raises, BadMapping, object, threading.Lock, io.BytesIO, holding_itself),
    lambda: BadDict(a=1),
    lambda: nested(5_000),
    lambda: Text("a"),
    lambda: (n for n in range(3)),
    lambda: lambda: None,
    lambda: types,
    lambda: int,
    lambda: ValueError("a"),
    lambda: 10**5_000,
    lambda: float("nan"),
    lambda: {"a", 1},
    lambda: b"\xff\x00",
    lambda: decimal.Decimal("sNaN"),
    lambda: datetime.datetime(2024, 2, 29),
    lambda: Path("a\udc80"),
    lambda: np.array([1.5, float("nan")]),
    lambda: np.array([object()], dtype=object),
    lambda: np.int64(3),
    lambda: pd.NA,
    lambda: pd.NaT,
    lambda: pd.DataFrame({"a": [1]}),
    lambda: dspy.Example(a=1).with_inputs("a"),
    lambda: dspy.Prediction(a=1),
    lambda: Case("1", {}),
    lambda: "x" * 50_000,
    lambda: "data:image/png;base64,AAAA",
    lambda: "<side_info> <curr_param>",
]
odd = st.sampled_from(ODD).map(lambda make: make())
plain = st.none() | st.booleans() | st.integers() | st.floats() | any_text
keys = st.sampled_from(["input", "expected", "id", "a", "self", "dspy_x", "items"]) | any_text
values = st.recursive(
    plain | odd,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys | st.integers() | st.none(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=6,
)
fields = st.dictionaries(keys, values, max_size=3)
records = (
    st.fixed_dictionaries(
        {"input": fields},
        optional={"expected": fields | st.none(), "id": st.text(max_size=3) | st.integers()},
    )
    | st.fixed_dictionaries({}, optional={"input": fields | values, "expected": values, "id": values})
    | values
)
quiet = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# What a source of the user's own raises while it is read is the user's to see, so those are left out here.
readable = values.filter(lambda value: not isinstance(value, Raises | BadMapping))


@quiet
@given(st.lists(records, max_size=3) | readable, st.none() | keys | st.lists(keys, max_size=2) | values)
def test_any_source_gives_cases_or_a_data_error(source, mapping):
    if isinstance(source, str):
        source = Path("no folder") / clean_text(source).replace("\ufffd", "")
    try:
        loaded = load_cases(source, input=mapping)
    except DataError:
        return
    assert loaded
    assert len({case.id for case in loaded}) == len(loaded)
    assert all(isinstance(case.input, dict) for case in loaded)


@quiet
@given(st.lists(records, min_size=1, max_size=3))
def test_any_cases_become_examples_and_data_sets_or_a_data_error(some):
    for given_cases in (some, loaded_of(some)):
        for make in (to_examples, as_gepa_dataset):
            try:
                made = make(given_cases)
            except DataError as error:
                str(error).encode()
                continue
            assert len(made) == len(given_cases)
            if make is as_gepa_dataset:
                ids = made.all_ids()
                assert len(set(ids)) == len(ids)
                assert [id(one) for one in made.fetch(ids)] == [id(one) for one in given_cases]


def loaded_of(some: list[Any]) -> list[Any]:
    try:
        return load_cases(some)
    except DataError:
        return []


def echo(artifact: Any, input: dict[str, Any]) -> Any:
    """Give back something of the input, whatever that is."""
    return next(iter(input.values()), None)


def half(input: Any, output: Any, expected: Any = None) -> Any:
    return 0.5, {"feedback": "Half.", "scores": {"a": 1}, "input": input, "expected": expected}


@quiet
@given(st.lists(records, min_size=1, max_size=3))
def test_any_cases_are_judged_and_shown_by_gepa_or_are_a_data_error(some):
    for cases in (some, loaded_of(some)):
        adapter = as_gepa_adapter(half, echo, artifact="text", include_expected=True, timeout=None)
        try:
            batch = adapter.evaluate(cases, adapter.seed_candidate, capture_traces=True)
        except DataError as error:
            str(error).encode()
            continue
        assert len(batch.scores) == len(batch.outputs) == len(cases)
        assert all(score in (0.0, 0.5) for score in batch.scores)
        assert (len(adapter.metric.failures) == 0) == all(score == 0.5 for score in batch.scores)
        pickle.dumps(batch.outputs)
        json.dumps(batch.outputs).encode()
        found = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
        assert len(found) == len(cases)
        # gepa's own words, which would break its proposal without a sign.
        prompt = InstructionProposalSignature.prompt_renderer(
            {"current_instruction_doc": "text", "dataset_with_feedback": found, "prompt_template": None}
        )
        written = prompt if isinstance(prompt, str) else json.dumps(prompt, default=str)
        written.encode()
        assert len(written) < 120_000
        evaluator = as_gepa_evaluator(half, echo, timeout=None, run_timeout=None)
        for case, value in zip(cases, batch.scores, strict=True):
            number, side_info = evaluator("text", case)
            assert number == value
            json.dumps(side_info, default=repr).encode()


# --- feedback and names of any characters ---------------------------------------------------------

names = st.dictionaries(
    st.text(st.characters(codec=None), min_size=1, max_size=8), st.floats(0, 1), max_size=3
)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec=None), max_size=40), names)
def test_feedback_and_named_scores_of_any_characters_reach_gepas_records_unharmed(feedback, named):
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return 0.5, {"feedback": feedback, "scores": named}

    clean = {clean_text(name): value for name, value in named.items()}
    example = dspy.Example(question="q", answer="A").with_inputs("question")
    metric = as_dspy_metric(score, timeout=None)

    def told(**asked: Any) -> Any:
        trace = asked["captured_trace"]
        return metric(asked["module_inputs"], asked["module_outputs"], trace, "self", trace)

    program = dspy.Predict("question -> answer")
    lm = dspy.utils.DummyLM([{"answer": "A"}] * 2)
    in_dspy = DspyAdapter(program, metric, {"self": told}, num_threads=1, failure_score=0.0)
    with dspy.context(lm=lm):
        batch = in_dspy.evaluate([example], {"self": "Answer."}, capture_traces=True)
    [record] = in_dspy.make_reflective_dataset({"self": "Answer."}, batch, ["self"])["self"]
    assert batch.scores == [0.5]
    assert (batch.objective_scores or [{}]) == [clean]

    adapter = as_gepa_adapter(score, lambda artifact, input: "A", artifact="text", timeout=None)
    ours = adapter.evaluate([example], adapter.seed_candidate, capture_traces=True)
    [shown] = adapter.make_reflective_dataset(adapter.seed_candidate, ours, ["artifact"])["artifact"]
    assert (ours.objective_scores or [{}]) == [clean]

    for text in (record["Feedback"], shown["Feedback"]):
        text.encode()
        assert text.startswith(clean_text(feedback) if feedback.strip() else "The metric gave no feedback")
        assert "\n\nScore: 0.5" in text
        assert all(name in text for name in clean)
    prompt = InstructionProposalSignature.prompt_renderer(
        {"current_instruction_doc": "text", "dataset_with_feedback": [shown], "prompt_template": None}
    )
    assert shown["Feedback"].strip() in prompt


# --- what threads do ------------------------------------------------------------------------------

# What threads do is not repeatable, so that there is nothing to shrink.
threaded = settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate], database=None)


@pytest.fixture(autouse=True, scope="module")
def _threads_change_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def at_once(threads: int, work: Callable[[int, threading.Barrier], None]) -> None:
    """Call in real threads, with a barrier for all of them; fails where one raises or does not end."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(threads)

    def guarded(number: int) -> None:
        try:
            work(number, barrier)
        except BaseException as error:
            raised.append(error)
            barrier.abort()

    workers = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    assert not any(worker.is_alive() for worker in workers), "a thread hangs"
    if raised:
        raise raised[0]


class Thing:
    """Can be held weakly."""


# A dict cannot be held weakly.
MAKERS: list[Callable[[], Any]] = [Thing, dict]
moves = st.sampled_from(["put", "get", "drop case", "drop answer"])
step = st.tuples(moves, st.integers(0, 1), st.integers(0, 2))


@threaded
@given(
    st.lists(st.lists(step, min_size=1, max_size=8), min_size=2, max_size=4),
    st.sampled_from(MAKERS),
    st.sampled_from(MAKERS),
)
def test_whatever_threads_put_get_and_drop_each_pair_gives_its_own_value(schedules, make_case, make_answer):
    memo: RolloutMemo[tuple[int, int, int]] = RolloutMemo()
    numbers = iter(range(1_000_000))
    # Each object with a number of its own, since ids come again.
    cases = [(next(numbers), make_case()) for _ in range(2)]
    answers = [(next(numbers), make_answer()) for _ in range(3)]
    rounds = max(map(len, schedules))

    def work(thread: int, barrier: threading.Barrier) -> None:
        # A pair of its own beside the shared ones.
        own_case, own_answer = (-1 - thread, make_case()), (-100 - thread, make_answer())
        for number in range(rounds):
            barrier.wait(PATIENCE)
            if number >= len(schedules[thread]):
                continue
            move, place, other = schedules[thread][number]
            case, answer = cases[place], answers[other]
            if move == "put":
                memo.put(case[1], answer[1], (case[0], answer[0], thread))
            elif move == "drop case":
                cases[place] = (next(numbers), make_case())
            elif move == "drop answer":
                answers[other] = (next(numbers), make_answer())
            found = memo.get(case[1], answer[1])
            assert found is None or found[:2] == (case[0], answer[0])
            if move == "put" and make_case is Thing:
                assert found is not None
            mine = (own_case[0], own_answer[0], number)
            memo.put(own_case[1], own_answer[1], mine)
            kept = memo.get(own_case[1], own_answer[1])
            assert kept == (mine if make_case is Thing else None)

    at_once(len(schedules), work)
    cases.clear()
    answers.clear()
    gc.collect()
    assert len(memo) == 0


class Interrupted(BaseException):
    """Stands for Ctrl-C in a computation."""


kinds = st.sampled_from(["value", "value", "value", "unkept", "raises", "interrupted", "asks again"])
call = st.tuples(st.integers(0, 2), kinds, st.booleans())


@threaded
@given(
    st.lists(st.lists(call, min_size=1, max_size=6), min_size=2, max_size=4),
    st.integers(1, 3),
)
def test_whatever_threads_ask_for_each_gets_the_value_of_its_key(schedules, size):
    memo: ContentMemo[str] = ContentMemo(size)
    lock = threading.Lock()
    computed = collections.Counter[int]()

    def work(thread: int, barrier: threading.Barrier) -> None:
        barrier.wait(PATIENCE)
        for number, kind, wait in schedules[thread]:
            key, mine = str(number).encode(), []

            def compute(number=number, kind=kind, key=key, mine=mine) -> str:
                mine.append(number)
                with lock:
                    computed[number] += 1
                if kind == "raises":
                    raise ValueError(number)
                if kind == "interrupted":
                    raise Interrupted
                if kind == "asks again":  # as a metric does that asks itself: it must not wait
                    inner = memo.get_or_compute(
                        key, lambda: f"{number}", keep=bool, wait=False, seconds=PATIENCE
                    )
                    assert inner[0] == str(number)
                return f"{number}"

            try:
                value, fresh = memo.get_or_compute(
                    key, compute, keep=lambda _, kind=kind: kind != "unkept", wait=wait, seconds=PATIENCE
                )
            except (ValueError, Interrupted):
                assert mine  # nobody is told what another's computation raised
                assert kind in ("raises", "interrupted")
                continue
            assert value == str(number)
            assert fresh == bool(mine)

    at_once(len(schedules), work)
    assert len(memo) <= size
    assert memo._flights == {}
    everything = [one for schedule in schedules for one in schedule]
    for number in {one[0] for one in everything}:
        calls = [one for one in everything if one[0] == number]
        if (
            all(kind == "value" and wait for _, kind, wait in calls)
            and len({one[0] for one in everything}) <= size
        ):
            assert computed[number] == 1
    for number in range(3):  # what is left is right
        found, _ = memo.get_or_compute(
            str(number).encode(), lambda number=number: f"{number}", keep=bool, wait=True, seconds=1.0
        )
        assert found == str(number)
