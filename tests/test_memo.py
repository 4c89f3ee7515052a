"""What is remembered of judgements, for how long, and how a case is known by what it says."""

import collections
import copy
import dataclasses
import datetime
import enum
import gc
import pathlib
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import dspy
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skynet_adapters.memo import ContentMemo, RolloutMemo, content_key
from tests.waiting import PATIENCE, eventually, waiting


class Thing:
    """Something that can be held weakly."""


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


# --- RolloutMemo ---------------------------------------------------------------------------------


def test_the_very_pair_of_objects_is_remembered():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    memo.put(case, answer, "judged")
    assert memo.get(case, answer) == "judged"
    assert len(memo) == 1


def test_nothing_is_remembered_of_what_was_not_put():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    assert memo.get(case, answer) is None
    memo.put(case, answer, "judged")
    assert memo.get(answer, case) is None
    assert memo.get(Thing(), answer) is None
    assert memo.get(case, Thing()) is None


def test_equal_objects_are_not_the_same_rollout():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = AlwaysEqual(), AlwaysEqual()
    memo.put(case, answer, "judged")
    assert memo.get(AlwaysEqual(), answer) is None
    assert memo.get(case, AlwaysEqual()) is None
    assert memo.get(case, answer) == "judged"


def test_one_answer_that_two_cases_share_is_two_rollouts():
    memo: RolloutMemo[str] = RolloutMemo()
    first, second, answer = Thing(), Thing(), Thing()
    memo.put(first, answer, "first")
    memo.put(second, answer, "second")
    assert (memo.get(first, answer), memo.get(second, answer)) == ("first", "second")


def test_two_answers_to_one_case_are_two_rollouts():
    memo: RolloutMemo[str] = RolloutMemo()
    case, first, second = Thing(), Thing(), Thing()
    memo.put(case, first, "first")
    memo.put(case, second, "second")
    assert (memo.get(case, first), memo.get(case, second)) == ("first", "second")


@pytest.mark.parametrize("answer", [Thing(), "a text"])
def test_each_reading_of_a_rollout_has_a_value_of_its_own(answer):
    memo: RolloutMemo[str] = RolloutMemo()
    case, draft, final = Thing(), object(), object()
    memo.put(case, answer, "plain")
    memo.put(case, answer, "draft", draft)
    memo.put(case, answer, "final", final)
    kept = [memo.get(case, answer, reading) for reading in (None, draft, final, object())]
    assert kept == ["plain", "draft", "final", None]


def test_a_later_judgement_replaces_the_earlier_one():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    memo.put(case, answer, "first")
    memo.put(case, answer, "second")
    gc.collect()
    assert memo.get(case, answer) == "second"
    assert len(memo) == 1


def test_an_entry_is_gone_with_its_answer():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    gone = weakref.ref(answer)
    memo.put(case, answer, "judged")
    del answer
    gc.collect()
    assert gone() is None
    assert len(memo) == 0


def test_every_entry_of_a_shared_answer_is_gone_with_it():
    memo: RolloutMemo[str] = RolloutMemo()
    cases, answer = [Thing() for _ in range(10)], Thing()
    for case in cases:
        memo.put(case, answer, "judged")
    assert len(memo) == 10
    del answer
    gc.collect()
    assert len(memo) == 0


def test_a_case_is_not_kept_alive():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    gone = weakref.ref(case)
    memo.put(case, answer, "judged")
    del case
    gc.collect()
    assert gone() is None
    assert memo.get(Thing(), answer) is None


def test_answers_in_a_reference_cycle_are_forgotten_when_they_are_collected():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), Thing()
    answer.itself = answer  # type: ignore[attr-defined]
    memo.put(case, answer, "judged")
    del answer
    gc.collect()
    assert len(memo) == 0


def test_an_id_that_is_used_again_finds_nothing():
    memo: RolloutMemo[int] = RolloutMemo()
    case = Thing()
    ids: set[int] = set()
    used_again = 0
    for number in range(1_000):
        answer = Thing()
        used_again += id(answer) in ids
        ids.add(id(answer))
        assert memo.get(case, answer) is None
        memo.put(case, answer, number)
        assert memo.get(case, answer) == number
        del answer
    assert used_again  # else this has shown nothing


def test_the_id_of_a_case_that_is_used_again_finds_nothing():
    memo: RolloutMemo[int] = RolloutMemo()
    answer = Thing()
    ids: set[int] = set()
    used_again = 0
    for number in range(1_000):
        case = Thing()
        used_again += id(case) in ids
        ids.add(id(case))
        assert memo.get(case, answer) is None
        memo.put(case, answer, number)
        del case
    assert used_again


@pytest.mark.parametrize("make", [lambda: "".join(["te", "xt"]), lambda: {"label": "a"}, lambda: ["a"]])
def test_an_answer_that_cannot_be_held_weakly_is_remembered_with_its_case(make):
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), make()
    memo.put(case, answer, "judged")
    assert memo.get(case, answer) == "judged"
    assert memo.get(case, make()) is None
    assert memo.get(Thing(), answer) is None
    del case
    gc.collect()
    assert len(memo) == 0


def test_a_case_remembers_several_answers_that_cannot_be_held_weakly():
    memo: RolloutMemo[int] = RolloutMemo()
    case, answers = Thing(), [[number] for number in range(64)]
    for number, answer in enumerate(answers):
        memo.put(case, answer, number)
    assert [memo.get(case, answer) for answer in answers] == list(range(64))
    assert len(memo) == 64


def test_a_case_keeps_a_bounded_number_of_answers_that_cannot_be_held_weakly():
    memo: RolloutMemo[int] = RolloutMemo()
    case, answers = Thing(), [[number] for number in range(1_000)]
    for number, answer in enumerate(answers):
        memo.put(case, answer, number)
    assert len(memo) == 64
    assert memo.get(case, answers[0]) is None
    assert memo.get(case, answers[-1]) == 999


def test_a_later_judgement_of_an_answer_that_cannot_be_held_weakly_is_the_one_that_is_given():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = Thing(), ["a"]
    memo.put(case, answer, "first")
    memo.put(case, answer, "second")
    assert memo.get(case, answer) == "second"


def test_nothing_is_remembered_where_neither_object_can_be_held_weakly():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = {"q": "?"}, "text"
    memo.put(case, answer, "judged")
    assert memo.get(case, answer) is None
    assert len(memo) == 0


def test_nothing_is_remembered_for_a_case_that_cannot_be_held_weakly():
    memo: RolloutMemo[str] = RolloutMemo()
    case, answer = {"q": "?"}, Thing()
    memo.put(case, answer, "judged")
    assert memo.get(case, answer) is None
    assert len(memo) == 0


def test_twenty_thousand_rollouts_whose_answers_are_gone_leave_nothing():
    memo: RolloutMemo[str] = RolloutMemo()
    case = Thing()
    for _ in range(20_000):
        memo.put(case, Thing(), "judged")
    gc.collect()
    assert len(memo) == 0


def test_many_threads_put_get_and_drop_at_once():
    memo: RolloutMemo[tuple[int, int]] = RolloutMemo()
    cases = [Thing() for _ in range(4)]

    def work(thread: int) -> int:
        wrong = 0
        for number in range(2_000):
            case, answer = cases[number % 4], Thing()
            memo.put(case, answer, (thread, number))
            wrong += memo.get(case, answer) != (thread, number)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 0
    gc.collect()
    assert len(memo) == 0


# --- ContentMemo ---------------------------------------------------------------------------------


class Counted:
    """Computes, and counts how often."""

    def __init__(self, value: Any = "value") -> None:
        self.value = value
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.value


def ask(
    memo: ContentMemo[Any],
    compute: Callable[[], Any],
    key: bytes = b"key",
    *,
    keep: bool = True,
    wait: bool = True,
    seconds: float | None = PATIENCE,
) -> tuple[Any, bool]:
    return memo.get_or_compute(key, compute, keep=lambda value: keep, wait=wait, seconds=seconds)


def test_a_value_is_computed_once_and_then_remembered():
    memo: ContentMemo[str] = ContentMemo()
    compute = Counted()
    assert ask(memo, compute) == ("value", True)
    assert ask(memo, compute) == ("value", False)
    assert compute.calls == 1
    assert len(memo) == 1


def test_none_is_a_value_like_any_other():
    memo: ContentMemo[None] = ContentMemo()
    compute = Counted(None)
    assert ask(memo, compute) == (None, True)
    assert ask(memo, compute) == (None, False)


def test_another_key_is_computed_on_its_own():
    memo: ContentMemo[str] = ContentMemo()
    assert ask(memo, Counted("a"), b"a") == ("a", True)
    assert ask(memo, Counted("b"), b"b") == ("b", True)
    assert ask(memo, Counted("?"), b"a") == ("a", False)


def test_what_is_not_to_be_kept_is_computed_again():
    memo: ContentMemo[str] = ContentMemo()
    compute = Counted()
    assert ask(memo, compute, keep=False) == ("value", True)
    assert ask(memo, compute, keep=False) == ("value", True)
    assert compute.calls == 2
    assert len(memo) == 0


def test_the_newest_values_are_kept_and_no_more_than_size():
    memo: ContentMemo[int] = ContentMemo(size=3)
    for number in range(10):
        ask(memo, Counted(number), str(number).encode())
    assert len(memo) == 3
    assert [ask(memo, Counted(-1), key) for key in (b"7", b"8", b"9")] == [(7, False), (8, False), (9, False)]
    assert ask(memo, Counted(-1), b"6") == (-1, True)


def test_a_value_that_was_asked_for_lately_outlives_one_that_was_not():
    memo: ContentMemo[int] = ContentMemo(size=2)
    ask(memo, Counted(1), b"1")
    ask(memo, Counted(2), b"2")
    ask(memo, Counted(-1), b"1")
    ask(memo, Counted(3), b"3")
    assert ask(memo, Counted(-1), b"1") == (1, False)
    assert ask(memo, Counted(-1), b"2") == (-1, True)


def test_an_error_is_raised_and_nothing_remembered():
    memo: ContentMemo[str] = ContentMemo()

    def fail() -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ask(memo, fail)
    assert ask(memo, Counted()) == ("value", True)


@pytest.mark.parametrize("keep", [True, False])
def test_callers_at_once_share_one_computation(keep, released):
    memo: ContentMemo[str] = ContentMemo()
    computing = threading.Event()
    calls: list[int] = []

    def compute() -> str:
        calls.append(1)
        computing.set()
        assert released.wait()
        return "value"

    with ThreadPoolExecutor(8) as pool:
        leader = pool.submit(ask, memo, compute, keep=keep)
        assert computing.wait(PATIENCE)
        waiters = [pool.submit(ask, memo, compute, keep=keep) for _ in range(7)]
        assert eventually(lambda: waiting(pool._threads) == 7)
        released.set()
        assert leader.result(PATIENCE) == ("value", True)
        answers = [waiter.result(PATIENCE) for waiter in waiters]
    assert calls == [1]
    assert answers == [("value", False)] * 7


def test_no_two_computations_of_one_key_run_at_once():
    memo: ContentMemo[int] = ContentMemo()
    running, most = [0], [0]

    def compute() -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.002)
        running[0] -= 1
        return 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(memo, compute, keep=False), range(100)))
    assert most == [1]


def test_computations_of_different_keys_run_side_by_side():
    memo: ContentMemo[str] = ContentMemo()
    both = threading.Barrier(2)

    def compute() -> str:
        both.wait(PATIENCE)
        return "met"

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, memo, compute, key) for key in (b"a", b"b")]
        assert [one.result(PATIENCE) for one in asked] == [("met", True), ("met", True)]


def test_a_waiter_waits_no_longer_than_allowed(released):
    memo: ContentMemo[str] = ContentMemo()
    computing = threading.Event()

    def hang() -> str:
        computing.set()
        released.wait()
        return "late"

    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(ask, memo, hang)
        assert computing.wait(PATIENCE)
        with pytest.raises(TimeoutError):
            ask(memo, Counted(), seconds=0.2)
        assert not released.is_set()
        released.set()
        assert leader.result(PATIENCE) == ("late", True)
    assert ask(memo, Counted()) == ("late", False)


def test_who_must_not_wait_computes_beside_the_computation_in_flight(released):
    memo: ContentMemo[str] = ContentMemo()
    computing = threading.Event()

    def hang() -> str:
        computing.set()
        released.wait()
        return "leader"

    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(ask, memo, hang)
        assert computing.wait(PATIENCE)
        assert ask(memo, Counted("beside"), wait=False) == ("beside", True)
        released.set()
        assert leader.result(PATIENCE) == ("leader", True)


def test_a_computation_that_asks_for_itself_without_waiting_does_not_deadlock():
    memo: ContentMemo[str] = ContentMemo()
    assert ask(memo, lambda: ask(memo, Counted("inner"), wait=False)[0] + " and outer") == (
        "inner and outer",
        True,
    )


def test_waiters_compute_themselves_when_the_one_they_waited_for_was_interrupted(released):
    memo: ContentMemo[str] = ContentMemo()
    computing = threading.Event()

    def interrupted() -> str:
        computing.set()
        released.wait()
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(ask, memo, interrupted)
        assert computing.wait(PATIENCE)
        waiter = pool.submit(ask, memo, Counted("own"))
        assert eventually(lambda: waiting(pool._threads) == 1)
        released.set()
        with pytest.raises(KeyboardInterrupt):
            leader.result(PATIENCE)
        assert waiter.result(PATIENCE) == ("own", True)


# --- content_key ---------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Shade(enum.Enum):
    RED = 1


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Vector:
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Unfilled:
    x: int = dataclasses.field(init=False)


class Order(pydantic.BaseModel):
    number: int
    tags: list[str] = []


class CannotBeDumped(pydantic.BaseModel):
    number: int

    @pydantic.model_serializer
    def dumped(self) -> dict[str, Any]:
        raise ValueError("not today")


UNDERSTOOD = [
    "text",
    "",
    "a\ud800b",
    b"bytes",
    1,
    2**100,
    1.0,
    0.5,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    1j,
    Decimal("1.0"),
    Fraction(1, 3),
    uuid.UUID(int=1),
    datetime.date(2026, 1, 1),
    datetime.datetime(2026, 1, 1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.time(1, 2),
    datetime.timedelta(seconds=1),
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, 2],
    [2, 1],
    (1, 2),
    {1, 2},
    frozenset({1, 2}),
    [[1], 2],
    [1, [2]],
    {"a": 1},
    {"a": "1"},
    {1: "a"},
    {"a": {"b": [1, (2, {3})]}},
    Colour.RED,
    Colour.BLUE,
    Shade.RED,
    Permission.READ,
    Permission.READ | Permission.WRITE,
    Point(1),
    Point(2),
    Vector(1),
    Point(Point(1)),
    Order(number=1),
    Order(number=1, tags=["a"]),
    pathlib.PurePosixPath("a/b.png"),
    pathlib.PureWindowsPath("a/b.png"),
    pathlib.Path("a/b.png"),
    pathlib.Path("b.png"),
    np.int64(1),
    np.int32(1),
    np.float64(1),
    np.float64("nan"),
    np.str_("text"),
    np.datetime64("2026-01-01"),
    np.array([1, 2]),
    np.array([[1, 2]]),
    np.array([1.0, 2.0]),
    np.array(["a", "b"]),
    np.array(["a", None]),
    np.array(["a", 1]),
    np.zeros(5_000),
    np.arange(5_000) == 2_500,
    np.arange(5_000) == 2_501,
    pd.Timestamp("2026-01-01"),
    pd.Timestamp("2026-01-01", tz="UTC"),
    pd.Timestamp(2_026_000_000_000_000_001),
    pd.Timestamp(2_026_000_000_000_000_002),
    pd.Timedelta(1),
    pd.Timedelta(2),
]


def test_every_understood_value_has_a_key_and_no_two_have_the_same():
    keys = [content_key(value) for value in UNDERSTOOD]
    assert all(isinstance(key, bytes) and key for key in keys)
    counts = collections.Counter(keys)
    assert [value for value, key in zip(UNDERSTOOD, keys, strict=True) if counts[key] > 1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"x": {"a": 1, "b": [2]}}, {"x": {"b": [2], "a": 1}}),
        ({3, 1, 2}, {2, 3, 1}),
        (frozenset("abc"), frozenset("cba")),
        (Point(1, y={"a": 1}), Point(x=1, y={"a": 1})),
        (Order(number=1), Order(tags=[], number=1)),
        ("".join(["te", "xt"]), "text"),
        (float("nan"), float("nan")),
        (pathlib.Path("a") / "b", pathlib.Path("a/b")),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        (np.array(["".join(["x", "y"]), {"a": 1}], object), np.array(["xy", {"a": 1}], object)),
        (pd.Timestamp("2026-01-01"), pd.Timestamp(2026, 1, 1)),
    ],
)
def test_values_that_say_the_same_have_the_same_key(one, other):
    assert content_key(one) == content_key(other) != None  # noqa: E711


def test_equal_numbers_of_different_types_have_different_keys():
    equal = [1, 1.0, True, Decimal(1), Fraction(1), complex(1)]
    assert len({content_key(value) for value in equal}) == len(equal)


def test_several_values_are_one_sequence():
    assert content_key("a", "b") != content_key("b", "a")
    assert content_key("a", "b") != content_key("ab")
    assert content_key("a", "b") != content_key("a", "b", None)
    assert content_key(["a"], "b") != content_key(["a", "b"])
    assert content_key() is not None


def test_parts_cannot_run_into_each_other():
    assert content_key(["ab", "c"]) != content_key(["a", "bc"])
    assert content_key({"a": "bc"}) != content_key({"ab": "c"})
    assert content_key({"a": 1, "b": 2}) != content_key({"a": 2, "b": 1})


class Text(str):
    __slots__ = ()


class Row(dict):
    pass


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Thing(),
        len,
        lambda: 1,
        int,
        Thing,
        Order,
        np.ma.array([1]),
        np.array([object()]),
        pd.Series([1]),
        bytearray(b"a"),
        memoryview(b"a"),
        range(3),
        iter([1]),
        Text("a"),
        Row(a=1),
        Pair(1, 2),
        collections.OrderedDict(a=1),
        threading.Lock(),
        ValueError("a"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_any_other_type_has_no_key_nor_has_what_holds_it(value):
    assert content_key(value) is None
    assert content_key([value]) is None
    assert content_key({"a": {"b": (value,)}}) is None
    assert content_key(Point(value)) is None
    assert content_key("a", value) is None


@pytest.mark.parametrize(
    "value",
    [Permission(0), Point, Unfilled(), CannotBeDumped(number=1), 10**5000],
    ids=["empty flag", "dataclass class", "unfilled dataclass", "model that cannot be dumped", "huge int"],
)
def test_what_cannot_be_read_never_raises(value):
    key = content_key(value)
    assert key is None or key == content_key(value)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_nested_too_deeply_has_no_key():
    assert content_key(nested(100)) is not None
    assert content_key(nested(100_000)) is None


def test_what_holds_itself_has_no_key():
    loop: list[Any] = [1]
    loop.append(loop)
    assert content_key(loop) is None
    knot: dict[str, Any] = {}
    knot["self"] = [knot]
    assert content_key(knot) is None


def test_a_key_is_the_same_in_every_process():
    script = (
        "from skynet_adapters.memo import content_key\n"
        "print(content_key({'b': {'x', 'y', 'z'}, 'a': [1, 2.5, None, True]}, frozenset('abc')).hex())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    mine = content_key({"a": [1, 2.5, None, True], "b": {"z", "y", "x"}}, frozenset("abc"))
    assert keys == {f"{mine.hex()}\n"}


atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_a_copy_whose_dicts_are_in_another_order_has_the_same_key(value):
    assert content_key(value) == content_key(shuffled(value))


def canonical(value: Any) -> str:
    """Write a value so that two read the same only when they say the same."""
    if isinstance(value, dict):
        return repr({"dict": sorted((repr(key), canonical(item)) for key, item in value.items())})
    return repr([canonical(item) for item in value] if isinstance(value, list) else value)


@given(values, values)
def test_two_json_like_values_have_the_same_key_only_when_they_say_the_same(one, other):
    same_type = type(one) is type(other)
    assert (content_key(one) == content_key(other)) == (same_type and canonical(one) == canonical(other))


# --- shared parts, and what DSPy's objects hold besides their fields -------------------------------


def test_one_part_in_very_many_places_is_digested_in_no_time():
    part: list[Any] = ["x"]
    for _ in range(60):
        part = [part, part]
    for _ in range(8):
        part = [part] * 30
    assert content_key(part) == content_key(copy.deepcopy(part)) is not None


def test_predictions_that_differ_in_their_completions_differ():
    first = dspy.Prediction.from_completions([{"answer": "A"}, {"answer": "B"}])
    second = dspy.Prediction.from_completions([{"answer": "A"}, {"answer": "C"}])
    assert content_key(first) != content_key(second)
    assert content_key(first) == content_key(copy.deepcopy(first)) is not None


def test_models_of_different_types_within_an_example_differ():
    class Cat(pydantic.BaseModel):
        name: str

    class Dog(pydantic.BaseModel):
        name: str

    keys = [content_key(dspy.Example(pet=kind(name="Mia"))) for kind in (Cat, Dog)]
    assert keys[0] != keys[1]


def test_an_attribute_beside_the_fields_of_a_dataclass_counts():
    @dataclasses.dataclass
    class Place:
        name: str

    first, second = Place("here"), Place("here")
    second.note = "moved"
    assert content_key(first) != content_key(second)


def test_a_dataclass_that_holds_more_than_attributes_has_no_key():
    @dataclasses.dataclass
    class Row(dict[str, Any]):
        name: str

    first, second = Row("a"), Row("a")
    first["x"], second["x"] = 4, 5
    assert content_key(first) is content_key(second) is None


def test_slots_beside_the_fields_of_a_dataclass_count():
    class Base:
        __slots__ = ("note",)

    @dataclasses.dataclass
    class Place(Base):
        name: str

    first, second = Place("here"), Place("here")
    first.note, second.note = "a", "b"
    assert content_key(first) != content_key(second)


def test_an_entry_is_gone_with_its_case_also_while_the_answer_lives():
    memo, answer = RolloutMemo[str](), Thing()
    memo.put(Thing(), answer, "gone")
    assert len(memo) == 0
