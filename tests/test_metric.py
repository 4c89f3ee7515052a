"""`Metric`: how a user's function is called, and what becomes of everything that it can do."""

import asyncio
import collections
import contextvars
import copy
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import inspect
import json
import logging
import math
import operator
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import dspy
import pydantic
import pytest

from skynet_adapters import (
    DefinitionError,
    Metric,
    MetricBroken,
    MetricError,
    MetricReturnError,
    MetricTimeoutError,
    ProgramFailedError,
    Score,
    as_dspy_metric,
    as_dspy_reward,
    as_gepa_adapter,
    as_gepa_evaluator,
    optimize_artifact,
)
from skynet_adapters import metric as metric_module
from skynet_adapters.metric import as_metric
from tests.waiting import HANG, PATIENCE, eventually, waiting

LONG = 60.0  # a patience with a busy loop that would show

OK: Any = (1.0, {"feedback": "Right."})


def exact(input: Any, output: Any, expected: Any = None) -> Any:
    right = output == expected["label"]
    return float(right), {"feedback": "Right." if right else f"Expected {expected['label']!r}."}


def failing(input: Any, output: Any, expected: Any = None) -> Any:
    raise ValueError("the judge's key is revoked")


def said(*seen: Any) -> Any:
    return 1.0, {"feedback": "|".join(map(str, seen))}


def run_script(script: str, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# --- how the function is called ------------------------------------------------------------------


class Judge:
    """A callable object, with methods that are metrics too."""

    def __init__(self, prefix: str = "judge") -> None:
        self.prefix = prefix

    def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        return said(input, output, expected)

    def method(self, input: Any, output: Any, expected: Any = None) -> Any:
        return said(input, output, expected)

    def method_of_two(self, input: Any, output: Any) -> Any:
        return said(input, output)

    @staticmethod
    def static(input: Any, output: Any, expected: Any = None) -> Any:
        return said(input, output, expected)

    @classmethod
    def of_class(cls, input: Any, output: Any, expected: Any = None) -> Any:
        return said(input, output, expected)


def by_position(input: Any, output: Any, expected: Any, /) -> Any:
    return said(input, output, expected)


def other_names(question: Any, answer: Any, truth: Any = None) -> Any:
    return said(question, answer, truth)


def expected_by_keyword(input: Any, output: Any, *, expected: Any = None) -> Any:
    return said(input, output, expected)


def all_by_keyword(*, input: Any, output: Any, expected: Any = None) -> Any:
    return said(input, output, expected)


def output_by_keyword(input: Any, *, output: Any, expected: Any) -> Any:
    return said(input, output, expected)


def with_a_further_option(input: Any, output: Any, expected: Any = None, strict: bool = True) -> Any:
    assert strict is True
    return said(input, output, expected)


def with_keywords(input: Any, output: Any, **more: Any) -> Any:
    return said(input, output, more["expected"])


def three_and_keywords(input: Any, output: Any, expected: Any = None, **more: Any) -> Any:
    assert more == {}
    return said(input, output, expected)


def takes_model(model: str, input: Any, output: Any, expected: Any = None) -> Any:
    assert model == "small"
    return said(input, output, expected)


THREE = {
    "function": lambda input, output, expected: said(input, output, expected),
    "expected with default": lambda input, output, expected=None: said(input, output, expected),
    "position only": by_position,
    "other names": other_names,
    "expected by keyword": expected_by_keyword,
    "all by keyword": all_by_keyword,
    "output by keyword": output_by_keyword,
    "a further option": with_a_further_option,
    "*args": lambda *arguments: said(*arguments),
    "input and *args": lambda input, *arguments: said(input, *arguments),
    "**kwargs": lambda **named: said(named["input"], named["output"], named["expected"]),
    "two and **kwargs": with_keywords,
    "three and **kwargs": three_and_keywords,
    "callable object": Judge(),
    "bound method": Judge().method,
    "static method": Judge.static,
    "class method": Judge.of_class,
    "partial": functools.partial(takes_model, "small"),
    "partial by keyword": functools.partial(with_a_further_option, strict=True),
    "partial of a partial": functools.partial(functools.partial(takes_model), "small"),
    "partial of a method": functools.partial(Judge.method, Judge()),
    "wrapped": functools.wraps(exact)(lambda *arguments: said(*arguments)),
}

TWO = {
    "function": lambda input, output: said(input, output),
    "other names": lambda question, answer: said(question, answer),
    "by keyword": lambda *, input, output: said(input, output),
    "method": Judge().method_of_two,
    "partial": functools.partial(lambda more, input, output: said(input, output), "more"),
}


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("score", THREE.values(), ids=THREE)
def test_a_function_of_three_gets_input_output_and_expected(score, timeout):
    metric = Metric(score, timeout=timeout)
    assert metric.score_case("in", "out", "exp") == Score(1.0, "in|out|exp")
    assert metric.score_case("in", "out") == Score(1.0, "in|out|None")


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("score", TWO.values(), ids=TWO)
def test_a_function_of_two_gets_input_and_output(score, timeout):
    metric = Metric(score, timeout=timeout)
    assert metric.score_case("in", "out", "exp") == Score(1.0, "in|out")
    assert metric.score_case("in", "out") == Score(1.0, "in|out")


async def async_score(input: Any, output: Any, expected: Any = None) -> Any:
    await asyncio.sleep(0)
    return said(input, output, expected)


async def async_with_model(model: str, input: Any, output: Any, expected: Any = None) -> Any:
    await asyncio.sleep(0)
    return said(input, output, expected)


class AsyncJudge:
    async def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        await asyncio.sleep(0)
        return said(input, output, expected)

    async def method(self, input: Any, output: Any, expected: Any = None) -> Any:
        await asyncio.sleep(0)
        return said(input, output, expected)


class Later:
    """An awaitable that is no coroutine."""

    def __init__(self, coroutine: Any) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Any:
        return self.coroutine.__await__()


ASYNC = {
    "function": async_score,
    "partial": functools.partial(async_with_model, "small"),
    "callable object": AsyncJudge(),
    "partial of a callable object": functools.partial(AsyncJudge()),
    "bound method": AsyncJudge().method,
    "function that returns a coroutine": lambda *arguments: async_score(*arguments),
    "function that returns another awaitable": lambda *arguments: Later(async_score(*arguments)),
    "by keyword": lambda *, input, output, expected=None: async_score(input, output, expected),
}


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("score", ASYNC.values(), ids=ASYNC)
def test_an_async_metric_is_awaited(score, timeout):
    metric = Metric(score, timeout=timeout)
    assert metric.score_case("in", "out", "exp") == Score(1.0, "in|out|exp")
    assert metric("in", "out", "exp") == (1.0, {"feedback": "in|out|exp"})


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("score", ASYNC.values(), ids=ASYNC)
def test_an_async_metric_works_inside_a_running_loop(score, timeout):
    metric = Metric(score, timeout=timeout)

    async def notebook() -> list[Score]:
        first = metric.score_case("in", "out", "exp")
        await asyncio.sleep(0)
        return [first, metric.score_case("in", "again", "exp")]

    assert asyncio.run(notebook()) == [Score(1.0, "in|out|exp"), Score(1.0, "in|again|exp")]


def test_a_plain_metric_works_inside_a_running_loop():
    async def notebook() -> Score:
        return Metric(exact).score_case({}, "a", {"label": "a"})

    assert asyncio.run(notebook()).value == 1.0


def made_synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do what decorators of several libraries do."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        return asyncio.run(function(*arguments))

    return run


def test_a_synchronous_wrapper_of_an_async_function_works():
    assert Metric(made_synchronous(async_score)).score_case("in", "out") == Score(1.0, "in|out|None")


def test_a_synchronous_wrapper_of_an_async_function_works_inside_a_running_loop():
    metric = Metric(made_synchronous(async_score))

    async def notebook() -> Score:
        return metric.score_case("in", "out")

    assert asyncio.run(notebook()) == Score(1.0, "in|out|None")


def test_a_synchronous_wrapper_of_an_async_function_is_timed_out(released):
    @functools.wraps(async_score)
    def hang(*_: Any) -> Any:
        released.wait()
        return OK

    score = Metric(hang, timeout=0.3).score_case({}, "a")
    assert isinstance(score.error, MetricTimeoutError)


def test_an_async_client_that_lives_in_a_module_stays_on_its_loop():
    loops = set()

    async def score(input: Any, output: Any) -> Any:
        loops.add(asyncio.get_running_loop())
        return OK

    metric = Metric(score)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: metric.score_case({}, number), range(40)))
    assert len(loops) == 1


def test_an_async_metric_may_ask_another_async_metric():
    inner = Metric(async_score)

    async def outer(input: Any, output: Any) -> Any:
        return inner.score_case(input, output).value / 2, {"feedback": "Half."}

    assert Metric(outer).score_case("in", "out") == Score(0.5, "Half.")


@pytest.fixture
def _long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a loop that another call blocks waits so long that it is seen."""
    monkeypatch.setattr("skynet_adapters.deadline._LOOP_PATIENCE_SECONDS", LONG)


@pytest.mark.usefixtures("_long_patience")
def test_async_metrics_that_ask_others_do_not_wait_for_each_other():
    first = Metric(async_score, name="first", timeout=None)

    async def middle(input: Any, output: Any) -> Any:
        return first.score_case(input, output).value / 2, {"feedback": "Half."}

    second = Metric(middle, name="second", timeout=None)

    async def outer(input: Any, output: Any) -> Any:
        return second.score_case(input, output).value / 2, {"feedback": "A quarter."}

    third = Metric(outer, name="third", timeout=None)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        judged = list(pool.map(lambda number: third.score_case("in", number), range(12)))
    assert judged == [Score(0.25, "A quarter.")] * 12
    # No event tells of a stall: one that waits for a loop which another blocks comes back in the end, when
    # its patience is over. Without a stall this takes milliseconds.
    assert time.monotonic() - begun < LONG


@pytest.mark.usefixtures("_long_patience")
def test_an_async_metric_that_asks_a_plain_one_that_asks_an_async_one_does_not_stall():
    innermost = Metric(async_score, timeout=None)
    plain = Metric(
        lambda input, output: (innermost.score_case(input, output).value / 2, {"feedback": "Half."}),
        timeout=600.0,
    )

    async def outer(input: Any, output: Any) -> Any:
        return plain.score_case(input, output).value / 2, {"feedback": "A quarter."}

    metric = Metric(outer, timeout=None)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        judged = list(pool.map(lambda number: metric.score_case("in", number), range(12)))
    assert judged == [Score(0.25, "A quarter.")] * 12
    assert time.monotonic() - begun < LONG  # as above


def test_an_async_metric_that_asks_another_again_and_again_piles_up_no_threads():
    inner = Metric(async_score)

    async def outer(input: Any, output: Any) -> Any:
        return inner.score_case(input, output).value / 2, {"feedback": "Half."}

    metric = Metric(outer)
    before = threading.active_count()
    for number in range(50):
        assert metric.score_case("in", number).value == 0.5
    assert threading.active_count() - before < 10


# --- what is no metric ---------------------------------------------------------------------------


def refusal(make: Callable[[], Any]) -> str:
    with pytest.raises(DefinitionError) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    "thing", [None, 5, "score", {"score": 1}, ["score"], OK, object()], ids=lambda thing: type(thing).__name__
)
@pytest.mark.parametrize("make", [Metric, as_metric])
def test_what_cannot_be_called_is_no_metric(make, thing):
    assert "a metric is a function score(input, output, expected=None); got " in refusal(lambda: make(thing))


@pytest.mark.parametrize("path", ["metric.py", Path("metric.py")])
def test_a_path_is_told_what_makes_a_metric_of_it(path):
    assert "load_metric makes a metric of a file" in refusal(lambda: Metric(path))


@pytest.mark.parametrize(
    "score",
    [
        lambda: OK,
        lambda input: OK,
        lambda input, *, strict: OK,
        lambda input, output, expected, strict: OK,
        lambda input, output, expected=None, *, strict: OK,
        lambda input, output, *, strict: OK,
        lambda *, output, expected: OK,
        lambda *, question, answer: OK,
        functools.partial(exact, {}, "a"),
        Judge,
    ],
    ids=lambda score: str(inspect.signature(score)),
)
def test_a_function_with_other_parameters_is_refused_with_its_signature_and_the_mend(score):
    message = refusal(lambda: Metric(score, name="checks"))
    assert "metric 'checks' cannot be called with input, output and expected" in message
    assert str(inspect.signature(score)) in message
    assert "write it as score(input, output, expected=None)" in message


@pytest.mark.parametrize(
    "score",
    [
        lambda example, pred, trace=None: OK,
        lambda example, prediction, trace=None: OK,
        lambda gold, pred, trace=None: OK,
        lambda gold, pred, trace=None, pred_name=None, pred_trace=None: OK,
        lambda gold, pred: OK,
        lambda example, pred: OK,
    ],
    ids=lambda score: str(inspect.signature(score)),
)
def test_a_metric_of_dspys_shape_is_refused_with_the_mend(score):
    message = refusal(lambda: Metric(score, name="answer_match"))
    assert "metric 'answer_match' has the parameters of a DSPy metric" in message
    assert str(inspect.signature(score)) in message
    assert "from_dspy_metric(metric)" in message
    assert "write it as score(input, output, expected=None)" in message


# --- its name ------------------------------------------------------------------------------------


def score(input: Any, output: Any, expected: Any = None) -> Any:
    return OK


def in_a_file(name: str, filename: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(compile(f"def {name}(input, output): return 1.0, {{}}", filename, "exec"), namespace)
    return namespace[name]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (exact, "exact"),
        (functools.partial(exact), "exact"),
        (Judge(), "Judge"),
        (Judge().method, "method"),
        (score, "test_metric"),
        (lambda input, output: OK, "test_metric_lambda"),
        (in_a_file("score", "/somewhere/exact_match.py"), "exact_match"),
        (in_a_file("score", "/somewhere/my-metric.py"), "my_metric"),
        (in_a_file("checks", "/somewhere/metric.py"), "checks"),
        (in_a_file("score", "/somewhere/ipykernel_12/3456.py"), "score"),
        (in_a_file("score", "<stdin>"), "score"),
    ],
)
def test_the_name_comes_from_the_function_or_its_file(function, name):
    assert Metric(function).name == name


def test_a_name_that_is_given_is_used_in_messages():
    metric = Metric(failing, name="support triage")
    assert metric.name == "support triage"
    assert "metric 'support triage' raised" in metric.score_case({}, "a").feedback
    assert "support triage" in repr(metric)


# --- options -------------------------------------------------------------------------------------

NAN = float("nan")
INF = float("inf")
HUGE = 10**400


@pytest.mark.parametrize(
    ("options", "mend"),
    [
        ({"score_range": (10, 0)}, "low must be below high"),
        ({"score_range": (1, 1)}, "low must be below high"),
        ({"score_range": (0, INF)}, "finite number"),
        ({"score_range": (NAN, 1)}, "finite number"),
        ({"score_range": (0, "10")}, "finite number"),
        ({"score_range": 10}, "a pair (low, high)"),
        ({"score_range": (0, 5, 10)}, "a pair (low, high)"),
        ({"score_range": ()}, "a pair (low, high)"),
        ({"score_range": (0, HUGE)}, "finite number"),
        ({"score_names": "format"}, "a list of names"),
        ({"score_names": []}, "a list of names"),
        ({"score_names": ["format", 1]}, "a list of names"),
        ({"score_names": 5}, "a list of names"),
        ({"failure_score": NAN}, "finite number"),
        ({"failure_score": -INF}, "finite number"),
        ({"failure_score": "0"}, "finite number"),
        ({"failure_score": None}, "finite number"),
        ({"failure_score": HUGE}, "finite number"),
        ({"success_threshold": NAN}, "finite number"),
        ({"success_threshold": "1"}, "finite number"),
        ({"success_threshold": 7, "score_range": (0, 10)}, "normalised scale, 0 to 1"),
        ({"success_threshold": -0.1, "score_range": (0, 10)}, "normalised scale, 0 to 1"),
        ({"memo": "forever"}, '"rollout", "content" or None'),
        ({"memo": True}, '"rollout", "content" or None'),
        ({"memo": []}, '"rollout", "content" or None'),
        ({"timeout": 0}, "above 0 and at most 600"),
        ({"timeout": -1}, "above 0 and at most 600"),
        ({"timeout": 600.1}, "above 0 and at most 600"),
        ({"timeout": INF}, "finite number"),
        ({"timeout": NAN}, "finite number"),
        ({"timeout": "60"}, "finite number"),
        ({"timeout": True}, "finite number"),
        ({"timeout": HUGE}, "600"),
        ({"stop_after": 0}, "a whole number, at least 1, or None"),
        ({"stop_after": 2.5}, "a whole number, at least 1, or None"),
        ({"stop_after": True}, "a whole number, at least 1, or None"),
        ({"stop_after": "5"}, "a whole number, at least 1, or None"),
        ({"max_failures_in_a_row": 0}, "a whole number, at least 1, or None"),
        ({"max_failures_in_a_row": -3}, "a whole number, at least 1, or None"),
        ({"max_feedback_chars": 99}, "a whole number, at least 100, or None"),
        ({"max_feedback_chars": 1e4}, "a whole number, at least 100, or None"),
        ({"name": 5}, "text"),
        ({"copy_inputs": "no"}, "True or False"),
    ],
    ids=lambda value: str(value)[:50],
)
@pytest.mark.parametrize("make", [Metric, as_metric])
def test_an_option_that_cannot_work_is_refused_by_name_with_value_and_mend(make, options, mend):
    message = refusal(lambda: make(exact, **options))
    option = next(iter(options))
    assert f"{option}=" in message
    assert mend in message
    value = options[option]
    if value != HUGE:
        shown = {repr(value), *(map(repr, value) if isinstance(value, tuple) else ())}
        assert any(one in message for one in shown)


@pytest.mark.parametrize(
    "options",
    [
        {"score_range": (0, 10)},
        {"score_range": [0.5, 1]},
        {"score_range": (-1, 1)},
        {"score_names": ("format",)},
        {"score_names": iter(["format", "facts"])},
        {"failure_score": -1},
        {"success_threshold": 7},
        {"success_threshold": 0.7, "score_range": (0, 10)},
        {"memo": "content"},
        {"memo": None},
        {"timeout": 600},
        {"timeout": 0.001},
        {"timeout": None},
        {"stop_after": 1},
        {"stop_after": None},
        {"max_failures_in_a_row": 1},
        {"max_feedback_chars": 100},
        {"max_feedback_chars": None},
        {"copy_inputs": False},
        {"name": None},
    ],
    ids=lambda options: "-".join(f"{name}={type(value).__name__}" for name, value in options.items()),
)
def test_an_option_that_can_work_is_taken(options):
    assert isinstance(as_metric(exact, **options), Metric)


def test_an_unknown_option_is_refused_with_the_known_ones():
    message = refusal(lambda: as_metric(exact, time_out=5))
    assert "unknown option 'time_out'" in message
    assert "timeout" in message


def test_an_unknown_option_with_no_near_one_is_refused_in_whole_sentences():
    assert "unknown option 'colour'. There are: " in refusal(lambda: as_metric(exact, colour="red"))


def test_the_options_can_be_read_and_not_changed():
    metric = Metric(exact, score_range=(0, 2), score_names=["a"])
    assert (metric.options["score_range"], metric.options["score_names"]) == ((0.0, 2.0), ("a",))
    metric.options["score_range"] = None
    assert metric.score_case({}, "L", {"label": "L"}).value == 0.5
    assert Metric(exact, **metric.options).options == metric.options


def test_the_defaults_are_those_of_the_documentation():
    metric = Metric(exact)
    assert (metric.timeout, metric.failure_score, metric.success_threshold) == (60.0, 0.0, 1.0)


def test_the_failure_score_is_the_value_of_a_case_without_a_judgement():
    metric = Metric(failing, failure_score=-1)
    assert metric.score_case({}, "a").value == -1.0
    assert metric.score_case({}, None).value == -1.0


def test_a_score_range_normalises_and_refuses():
    metric = Metric(lambda input, output: (output, {"feedback": "OK"}), score_range=(0, 10))
    assert metric.score_case({}, 5).value == 0.5
    outside = metric.score_case({}, 11)
    assert isinstance(outside.error, MetricReturnError)
    assert "outside its score_range=(0, 10)" in outside.feedback


def test_long_feedback_is_cut_to_its_limit():
    long = "HEAD" + "x" * 5_000_000 + "TAIL"

    def score_of(**options: Any) -> Score:
        return Metric(lambda i, o: (1.0, {"feedback": long}), **options).score_case({}, "a")

    assert len(score_of().feedback) <= 10_000
    assert len(score_of(max_feedback_chars=500).feedback) <= 500
    assert score_of(max_feedback_chars=500).feedback.startswith("HEAD")
    assert score_of(max_feedback_chars=500).feedback.endswith("TAIL")
    assert score_of(max_feedback_chars=None).feedback == long


# --- a Metric as score ---------------------------------------------------------------------------


def test_a_metric_of_a_metric_has_its_function_and_options_and_a_memory_of_its_own():
    first = Metric(exact, name="triage", score_range=(0, 1), failure_score=-1, timeout=5, stop_after=2)
    first.score_case({}, None)
    second = Metric(first)
    assert second is not first
    assert second.score is exact
    assert second.__getstate__() == first.__getstate__()
    assert (second.name, second.timeout, second.failure_score) == ("triage", 5.0, -1.0)
    assert (len(first.failures), len(second.failures)) == (1, 0)


def test_as_metric_gives_a_metric_itself():
    metric = Metric(exact)
    assert as_metric(metric) is metric
    assert as_metric(exact).score is exact


@pytest.mark.parametrize("make", [Metric, as_metric])
@pytest.mark.parametrize("options", [{"timeout": 60.0}, {"name": None}, {"memo": "rollout", "stop_after": 5}])
def test_options_beside_a_metric_are_refused_even_when_they_are_the_defaults(make, options):
    message = refusal(lambda: make(Metric(exact), **options))
    assert ", ".join(options) in message
    assert "has its options already" in message
    assert "where it is made" in message


def test_calling_a_metric_gives_the_very_pair_that_the_function_returned():
    info = {"feedback": "OK", "scores": {"a": True}}
    number, given = Metric(lambda input, output: [True, info], copy_inputs=False)({}, "a")
    assert number is True
    assert given is info


def test_calling_a_metric_does_not_normalise():
    assert Metric(lambda input, output: (8, {"feedback": "OK"}), score_range=(0, 10))({}, "a")[0] == 8


@pytest.mark.parametrize(
    ("function", "output", "error"),
    [
        (failing, "a", MetricError),
        (lambda input, output: 0.5, "a", MetricReturnError),
        (exact, None, ProgramFailedError),
    ],
)
def test_calling_a_metric_raises_where_there_is_no_judgement(function, output, error):
    metric = Metric(function)
    with pytest.raises(MetricError) as caught:
        metric({}, output, {"label": "a"})
    assert type(caught.value) is error
    assert [failure.kind for failure in metric.failures] == [error.__name__]


def test_calling_a_metric_that_hangs_raises_the_time_out(released):
    with pytest.raises(MetricTimeoutError, match=r"did not answer within 0\.3 s"):
        Metric(lambda input, output: released.wait(), timeout=0.3)({}, "a")


def test_a_metric_is_a_valid_score_of_another_function():
    inner = Metric(exact)
    outer = Metric(lambda input, output, expected: inner(input, output, expected))
    assert outer.score_case({}, "a", {"label": "a"}).value == 1.0
    failed = Metric(lambda input, output: Metric(failing)(input, output)).score_case({}, "a")
    assert "the judge's key is revoked" in failed.feedback


def test_a_wrong_return_of_a_metric_inside_a_metric_is_a_wrong_return():
    inner = Metric(lambda input, output: 0.5, name="inner")
    judged = Metric(lambda input, output: inner(input, output), name="outer").score_case({}, "a")
    assert isinstance(judged.error, MetricReturnError)
    assert "metric 'inner' returned 0.5 (float), not a pair" in judged.feedback


# --- failures ------------------------------------------------------------------------------------


def test_every_failure_is_a_score_with_an_error_and_a_text_that_says_what_happened():
    judged = Metric(failing, failure_score=-0.5).score_case({}, "a")
    assert judged.value == -0.5
    assert isinstance(judged.error, MetricError)
    assert judged.feedback == f"No judgement, so that the score only stands in for one: {judged.error}"
    assert "ValueError: the judge's key is revoked" in judged.text()


def test_failures_are_counted_and_kept_with_case_text_and_kind():
    metric = Metric(lambda input, output: failing(input, output) if output == "raise" else 0.5)
    metric.score_case({"question": "first?"}, "raise")
    metric.score_case({"question": "second?"}, "wrong shape")
    metric.score_case({"question": "third?"}, None)
    assert len(metric.failures) == 3
    kept = list(metric.failures)
    assert [failure.kind for failure in kept] == ["MetricError", "MetricReturnError", "ProgramFailedError"]
    assert [word in failure.case for failure, word in zip(kept, ["first?", "second?", "third?"], strict=True)]
    assert "ValueError: the judge's key is revoked" in kept[0].text
    assert "not a pair" in kept[1].text
    assert "gave no output" in kept[2].text
    assert metric.calls == 2
    assert "2 calls, 3 failures" in repr(metric)


def test_a_judgement_is_no_failure():
    metric = Metric(exact)
    metric.score_case({}, "b", {"label": "a"})
    assert len(metric.failures) == 0
    assert list(metric.failures) == []


def test_more_than_a_thousand_failures_are_counted_and_the_first_thousand_kept():
    metric = Metric(failing, timeout=None, stop_after=None)
    for number in range(1_200):
        metric.score_case({"number": number}, "a")
    assert len(metric.failures) == 1_200
    kept = list(metric.failures)
    assert len(kept) == 1_000
    assert "999" in kept[-1].case


def test_a_large_input_is_kept_short():
    metric = Metric(failing)
    metric.score_case({"text": "x" * 5_000_000, "rows": list(range(1_000_000))}, "a")
    assert len(next(iter(metric.failures)).case) < 1_000


def test_failures_of_many_threads_are_all_counted():
    metric = Metric(failing, stop_after=None)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: metric.score_case({"number": number}, "a"), range(200)))
    assert len(metric.failures) == metric.calls == 200


def warnings_of(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "skynet_adapters"
        and record.levelno == logging.WARNING
        and all(word in record.getMessage() for word in words)
    ]


def test_the_first_failure_is_logged_as_a_warning_and_no_further_one(caplog):
    metric = Metric(failing, name="triage")
    for _ in range(3):
        metric.score_case({}, "a")
    (warning,) = warnings_of(caplog)
    assert "metric 'triage' raised ValueError: the judge's key is revoked" in warning


def test_a_closing_warning_counts_the_failures_by_kind(caplog):
    metric = Metric(lambda input, output: failing(input, output) if output == "raise" else 0.5, name="triage")
    for output in ["raise", "shape", "raise", None]:
        metric.score_case({}, output)
    gc.collect()  # of what other tests left, too
    caplog.clear()
    del metric
    gc.collect()
    (warning,) = warnings_of(caplog)
    assert "metric 'triage': 4 cases have no judgement" in warning
    assert "2 MetricError" in warning
    assert "1 MetricReturnError" in warning
    assert "1 ProgramFailedError" in warning


def test_a_closing_warning_comes_at_the_exit_of_the_interpreter_too():
    done = run_script(
        """
        import logging
        from skynet_adapters import Metric
        logging.basicConfig()
        metric = Metric(lambda input, output: 1 / 0, name="triage")
        for _ in range(3):
            metric.score_case({}, "a")
        """
    )
    assert done.returncode == 0
    assert "metric 'triage': 3 cases have no judgement (3 MetricError)" in done.stderr


def test_a_metric_that_never_failed_says_nothing_when_it_goes(caplog):
    metric = Metric(exact)
    metric.score_case({}, "a", {"label": "a"})
    del metric
    gc.collect()
    assert warnings_of(caplog) == []


# --- the text of a failure -----------------------------------------------------------------------


def helper_that_fails(output: Any) -> Any:
    return {}["the missing key"]  # the user's own last frame


def asks_a_helper(input: Any, output: Any) -> Any:
    return helper_that_fails(output), {}


async def async_that_fails(input: Any, output: Any) -> Any:
    await asyncio.sleep(0)
    return helper_that_fails(output), {}


class FailingJudge:
    def __call__(self, input: Any, output: Any) -> Any:
        return helper_that_fails(output), {}

    def method(self, input: Any, output: Any) -> Any:
        return helper_that_fails(output), {}


def line_of(function: Any, words: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if words in line)


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize(
    "function",
    [
        asks_a_helper,
        async_that_fails,
        FailingJudge(),
        FailingJudge().method,
        functools.partial(asks_a_helper),
        functools.partial(functools.partial(FailingJudge())),
        lambda input, output: asks_a_helper(input, output),
    ],
    ids=["function", "async", "object", "method", "partial", "partial of an object", "lambda"],
)
def test_the_text_has_type_message_and_the_users_own_last_frame(function, timeout):
    text = Metric(function, name="triage", timeout=timeout).score_case({}, "a").feedback
    line = line_of(helper_that_fails, "the missing key")
    assert "metric 'triage' raised KeyError: 'the missing key'" in text
    assert f"test_metric.py, line {line}, in helper_that_fails" in text
    assert 'return {}["the missing key"]' in text


def reads_json(input: Any, output: Any) -> Any:
    return json.loads(output), {"feedback": "OK"}  # raises in the library


def test_the_frame_is_the_users_own_when_a_library_raises():
    text = Metric(reads_json).score_case({}, "{").feedback
    assert "JSONDecodeError" in text
    assert f"test_metric.py, line {line_of(reads_json, 'json.loads')}, in reads_json" in text
    assert "decoder.py" not in text


def test_the_frame_is_the_wrapped_functions_own():
    @functools.wraps(asks_a_helper)
    def wrapper(*arguments: Any) -> Any:
        return asks_a_helper(*arguments)

    assert "in helper_that_fails" in Metric(wrapper).score_case({}, "a").feedback


def test_the_frame_of_a_notebooks_cell_has_line_and_function():
    namespace: dict[str, Any] = {}
    source = "def score(input, output):\n    return 1 / 0, {}\n"
    exec(compile(source, "<ipython-input-3>", "exec"), namespace)
    text = Metric(namespace["score"]).score_case({}, "a").feedback
    assert "ZeroDivisionError: division by zero (<ipython-input-3>, line 2, in score" in text


def test_the_frame_of_a_cell_that_ipython_keeps_in_a_numbered_file_is_named_as_one():
    namespace: dict[str, Any] = {}
    exec(compile("def score(i, o):\n    return 1 / 0, {}\n", "/ipykernel_12/3456.py", "exec"), namespace)
    text = Metric(namespace["score"]).score_case({}, "a").feedback
    assert "(a notebook cell, line 2, in score" in text
    assert "3456" not in text


def test_a_built_in_function_that_raises_gives_a_text_too():
    text = Metric(operator.truediv, name="ratio").score_case("x", "y").feedback
    assert "metric 'ratio' raised TypeError" in text


def test_an_exception_without_a_message_is_named_by_its_type():
    def bare(input: Any, output: Any) -> Any:
        raise NotImplementedError

    assert "raised NotImplementedError (test_metric.py" in Metric(bare).score_case({}, "a").feedback


def test_an_exception_whose_message_raises_does_not_hide_the_failure():
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no message today")

    def score(input: Any, output: Any) -> Any:
        raise MuteError

    text = Metric(score).score_case({}, "a").feedback
    assert "raised MuteError" in text
    assert "in score" in text


def test_an_exception_whose_message_exits_does_not_end_the_run():
    class ExitsError(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    def score(input: Any, output: Any) -> Any:
        raise ExitsError

    try:
        judged = Metric(score).score_case({}, "a")
    except SystemExit:
        judged = None
    assert judged is not None, "SystemExit escaped"
    assert "ExitsError" in judged.feedback


def test_an_exception_with_a_huge_message_keeps_type_and_frame():
    def score(input: Any, output: Any) -> Any:
        raise ValueError("HEAD" + "x" * 5_000_000)

    text = Metric(score).score_case({}, "a").feedback
    assert len(text) < 3_000
    assert "ValueError: HEAD" in text
    assert "in score" in text


def test_an_exception_with_lone_surrogates_gives_a_text_that_can_be_encoded():
    def score(input: Any, output: Any) -> Any:
        raise ValueError("a\ud800\0b")

    text = Metric(score).score_case({}, "a").feedback
    text.encode("utf-8")
    assert "\0" not in text


def test_a_recursion_without_end_is_a_failure():
    def score(input: Any, output: Any) -> Any:
        return score(input, output)

    assert "RecursionError" in Metric(score).score_case({}, "a").feedback


# --- exceptions that are more than errors --------------------------------------------------------


def raising(error: BaseException) -> dict[str, Callable[..., Any]]:
    def plain(input: Any, output: Any) -> Any:
        raise error

    async def coroutine(input: Any, output: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return {"plain": plain, "async": coroutine}


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        SystemExit("out"),
        asyncio.CancelledError(),
        GeneratorExit(),
        ExceptionGroup("g", [OSError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exit_or_cancellation_inside_a_metric_is_an_error_like_any_other(error, kind, timeout):
    metric = Metric(raising(error)[kind], timeout=timeout)
    judged = metric.score_case({}, "a")
    assert type(judged.error) is MetricError
    assert f"raised {type(error).__name__}" in judged.feedback
    assert len(metric.failures) == 1
    assert Metric(exact).score_case({}, "a", {"label": "a"}).value == 1.0


@pytest.mark.parametrize("memo", ["rollout", "content"])
@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MetricBroken("stop")], ids=repr)
def test_control_c_and_a_broken_metric_pass(error, kind, timeout, memo):
    metric = Metric(raising(error)[kind], timeout=timeout, memo=memo)
    for _ in range(2):
        with pytest.raises(type(error)):
            metric.score_case({}, "a")
    with pytest.raises(type(error)):
        metric({}, "a")
    assert len(metric.failures) == 0


def test_the_metrics_own_time_out_error_is_told_from_the_deadline():
    judged = Metric(raising(TimeoutError("the server's own"))["plain"]).score_case({}, "a")
    assert type(judged.error) is MetricError
    assert "raised TimeoutError: the server's own" in judged.feedback


# --- no output -----------------------------------------------------------------------------------


@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_where_there_is_no_output_the_function_is_not_called(memo):
    calls: list[Any] = []
    metric = Metric(lambda input, output: calls.append(output) or OK, failure_score=-1, memo=memo)
    judged = metric.score_case({"q": "?"}, None, {"label": "a"})
    assert calls == []
    assert metric.calls == 0
    assert isinstance(judged.error, ProgramFailedError)
    assert judged.value == -1.0
    assert "The program gave no output." in judged.feedback
    assert len(metric.failures) == 1


@pytest.mark.parametrize("output", ["", 0, False, [], {}, 0.0])
def test_an_output_that_is_merely_false_is_judged(output):
    judged = Metric(lambda input, output: (1.0, {"feedback": repr(output)})).score_case({}, output)
    assert judged.feedback == repr(output)


def test_what_the_program_did_stands_in_the_text():
    metric = Metric(exact)
    judged = metric.program_failed({"q": "?"}, "Its answer could not be parsed: 'hm\0'")
    assert "Its answer could not be parsed: 'hm\ufffd'" in judged.feedback
    assert len(metric.program_failed({}, "x" * 5_000_000).feedback) < 11_000


def test_a_program_that_fails_on_everything_does_not_stop_the_run():
    metric = Metric(exact, stop_after=2, max_failures_in_a_row=2)
    for _ in range(10):
        metric.score_case({}, None, {"label": "a"})
    assert metric.broken() is None


# --- the stop rule -------------------------------------------------------------------------------


def fail(metric: Metric, count: int, expected: Any = None) -> None:
    for number in range(count):
        judged = metric.score_case({"number": number}, f"answer {number}", expected or {"label": "a"})
        assert judged.error is not None


def test_five_failing_rollouts_and_a_failing_trial_stop_the_run_and_name_the_fault():
    metric = Metric(failing, name="triage")
    fail(metric, 4)
    assert metric.broken() is None
    assert metric.calls == 4
    fail(metric, 1)
    reason = metric.broken()
    assert reason is not None
    assert "metric 'triage' failed on each of the first 5 rollouts" in reason
    assert "the expected value as output too" in reason
    assert "ValueError: the judge's key is revoked" in reason
    assert "in failing" in reason
    assert "stop_after=None" in reason
    assert metric.calls == 6


def test_the_trial_is_made_once_with_the_only_expected_value():
    outputs: list[Any] = []

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        outputs.append((output, expected))
        raise ValueError

    metric = Metric(score)
    fail(metric, 12)
    assert [one for one in outputs if one[0] == "a"] == [("a", {"label": "a"})]
    assert len(outputs) == 13


def notes_and_fails(outputs: list[Any]) -> Callable[..., Any]:
    def score(input: Any, output: Any, expected: Any = None) -> Any:
        outputs.append(output)
        raise ValueError

    return score


def test_the_trial_is_made_with_the_whole_dict_when_it_has_several_values():
    outputs: list[Any] = []
    metric = Metric(notes_and_fails(outputs), stop_after=1)
    metric.score_case({}, {"label": "b"}, {"label": "a", "city": "é"})
    assert outputs[1:] == [{"label": "a", "city": "é"}]


def test_the_trial_of_a_metric_that_judges_texts_is_made_with_json_too():
    outputs: list[Any] = []
    metric = Metric(notes_and_fails(outputs), stop_after=1)
    metric.score_case({}, "{", {"label": "a", "city": "é"})
    assert outputs[1:] == ['{"label": "a", "city": "é"}']


def test_a_metric_that_reads_json_and_accepts_the_expected_value_as_json_never_stops_the_run():
    def score(input: Any, output: Any, expected: Any) -> Any:
        return float(json.loads(output) == expected), {"feedback": "Read."}

    metric = Metric(score)
    fail(metric, 20, {"label": "a", "city": "b"})
    assert metric.broken() is None


def test_a_perfect_output_that_a_target_makes_is_tried_first():
    outputs: list[Any] = []
    metric = Metric(notes_and_fails(outputs), stop_after=1)
    case, answer = Thing(), Thing()
    made_from: list[Any] = []

    def perfect(answer: Any, expected: Any) -> Any:
        made_from.append((answer, expected))
        return [{"answer": expected["label"]}, None, "last"]

    metric.judge({}, "b", {"label": "a"}, rollout=(case, answer), perfect=perfect)
    assert made_from == [(answer, {"label": "a"})]
    assert outputs == ["b", {"answer": "a"}, "last"]


def test_a_perfect_output_that_cannot_be_made_is_left_out():
    outputs: list[Any] = []
    metric = Metric(notes_and_fails(outputs), stop_after=1)
    metric.judge({}, "b", {"label": "a"}, perfect=lambda answer, expected: expected["no such field"])
    assert outputs == ["b", "a"]
    assert metric.broken() is not None


class StrRaises:
    def __str__(self) -> str:
        raise RuntimeError("not today")


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    "expected",
    [{"label": {("a", "b"): 1}}, {"label": HOLDS_ITSELF}, {"label": [StrRaises()]}, {("a", "b"): 1, "c": 2}],
    ids=["tuples as keys", "holds itself", "str raises", "tuples as keys of the whole"],
)
def test_an_expected_value_that_is_no_json_does_not_end_the_trial(expected):
    metric = Metric(failing, stop_after=1)
    try:
        judged = metric.score_case({}, "b", expected)
    except Exception as error:
        judged = error
    assert isinstance(judged, Score), repr(judged)
    assert metric.broken() is not None


def only_the_label(input: Any, output: Any, expected: Any = None) -> Any:
    if output != expected["label"]:
        raise ValueError("cannot read this answer")
    return OK


def test_a_metric_that_accepts_the_expected_value_never_stops_the_run():
    metric = Metric(only_the_label)
    fail(metric, 50)
    assert metric.broken() is None
    assert metric.calls == 51
    assert len(metric.failures) == 50


def test_one_success_ever_ends_the_rule():
    metric = Metric(only_the_label)
    metric.score_case({}, "a", {"label": "a"})
    fail(metric, 50)
    assert metric.broken() is None
    assert metric.calls == 51


def test_a_success_after_the_stop_takes_the_reason_away():
    metric = Metric(lambda input, output: OK if output == "right" else failing(input, output))
    fail(metric, 5)
    assert metric.broken() is not None
    metric.score_case({}, "right")
    assert metric.broken() is None
    fail(metric, 10)
    assert metric.broken() is None


def test_without_an_expected_value_there_is_no_trial():
    metric = Metric(failing)
    for number in range(5):
        metric.score_case({}, f"answer {number}")
    assert "failed on each of the first 5 rollouts" in (metric.broken() or "")
    assert metric.calls == 5


def test_each_wrong_return_and_each_time_out_counts(released):
    metric = Metric(
        lambda input, output: released.wait() if output == "hang" else 0.5, timeout=1.0, stop_after=2
    )
    metric.score_case({}, "hang")
    assert metric.broken() is None
    metric.score_case({}, "shape")
    assert "not a pair" in (metric.broken() or "")


def test_a_number_of_ones_own_and_none():
    metric = Metric(failing, stop_after=1)
    fail(metric, 1)
    assert metric.broken() is not None
    metric = Metric(failing, stop_after=None)
    fail(metric, 100)
    assert metric.broken() is None
    assert metric.calls == 100


def test_calling_a_metric_does_not_count():
    metric = Metric(failing, stop_after=1)
    for _ in range(3):
        with pytest.raises(MetricError):
            metric({}, "a", {"label": "a"})
    assert metric.broken() is None


class Thing:
    """An example or a prediction: something that can be held weakly."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_a_second_call_for_one_rollout_does_not_count(memo):
    metric = Metric(failing, memo=memo)
    case, answer = Thing(), Thing()
    for _ in range(20):
        metric.judge({}, "b", {"label": "a"}, rollout=(case, answer))
    assert metric.broken() is None


@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_a_call_that_is_known_to_be_a_second_one_does_not_count(memo):
    metric = Metric(failing, memo=memo)
    for number in range(20):
        metric.judge({}, f"b{number}", {"label": "a"}, rollout=(Thing(), Thing()), again=True)
    assert metric.broken() is None


def test_distinct_rollouts_count():
    metric = Metric(failing)
    case, answers = Thing(), [Thing() for _ in range(5)]
    for answer in answers:
        metric.judge({}, "b", {"label": "a"}, rollout=(case, answer))
    assert metric.broken() is not None


def test_a_failure_that_came_from_another_call_in_flight_does_not_count(released):
    judging = threading.Event()

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        if output == "b":
            judging.set()
            released.wait()
        raise ValueError("no")

    metric = Metric(score, memo="content", stop_after=2)
    with ThreadPoolExecutor(8) as pool:
        leader = pool.submit(metric.score_case, {}, "b", {"label": "a"})
        assert judging.wait(PATIENCE)
        waiters = [pool.submit(metric.score_case, {}, "b", {"label": "a"}) for _ in range(7)]
        assert eventually(lambda: waiting(pool._threads) == 8)  # the leader waits for the function
        released.set()
        judged = [one.result(PATIENCE) for one in [leader, *waiters]]
    assert all(isinstance(one.error, MetricError) for one in judged)
    assert metric.calls == 1
    assert len(metric.failures) == 8
    assert metric.broken() is None


def test_fields_that_a_target_cannot_find_count_and_are_named():
    metric = Metric(exact, stop_after=2)
    why = "the prediction has no field 'label'; pass output="
    rollouts = [(Thing(), Thing()), (Thing(), Thing())]
    judged = metric.cannot_ask({}, why, rollout=rollouts[0])
    assert isinstance(judged.error, MetricError)
    assert why in judged.feedback
    assert metric.recall(*rollouts[0]) is judged
    metric.cannot_ask({}, why, rollout=rollouts[0])
    metric.cannot_ask({}, why, rollout=(Thing(), Thing()), again=True)
    assert metric.broken() is None
    metric.cannot_ask({}, why, rollout=rollouts[1])
    assert why in (metric.broken() or "")
    assert metric.calls == 0


def test_the_fault_that_stops_the_run_is_the_metrics_even_when_a_program_fails_after_it():
    metric = Metric(failing)
    fail(metric, 5)
    metric.score_case({}, None, {"label": "a"})
    assert "the judge's key is revoked" in (metric.broken() or "")


def test_the_fault_of_a_row_is_the_metrics_even_when_a_program_fails_after_it():
    metric = Metric(failing, max_failures_in_a_row=2, stop_after=None)
    fail(metric, 2)
    metric.score_case({}, None, {"label": "a"})
    assert "the judge's key is revoked" in (metric.broken() or "")


def test_the_fault_that_stops_the_run_is_the_metrics_even_when_a_program_fails_during_the_trial(released):
    trying = threading.Event()

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        if output == "a":
            trying.set()
            released.wait()
        raise ValueError("the judge's key is revoked")

    metric = Metric(score, stop_after=1)
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(fail, metric, 1)
        assert trying.wait(PATIENCE)
        metric.score_case({}, None, {"label": "a"})
        released.set()
        trial.result(PATIENCE)
    assert "the judge's key is revoked" in (metric.broken() or "")


def test_so_many_failures_in_a_row_stop_the_run_also_after_successes():
    metric = Metric(only_the_label, name="triage", max_failures_in_a_row=3)
    metric.score_case({}, "a", {"label": "a"})
    fail(metric, 2)
    metric.score_case({}, "a", {"label": "a"})
    fail(metric, 2)
    assert metric.broken() is None
    fail(metric, 1)
    reason = metric.broken() or ""
    assert "metric 'triage' failed 3 times in a row (max_failures_in_a_row=3)" in reason
    assert "cannot read this answer" in reason
    metric.score_case({}, "a", {"label": "a"})
    assert metric.broken() is None


def test_a_failed_program_neither_counts_nor_ends_a_row():
    metric = Metric(only_the_label, max_failures_in_a_row=2)
    metric.score_case({}, "a", {"label": "a"})
    fail(metric, 1)
    metric.score_case({}, None, {"label": "a"})
    assert metric.broken() is None
    fail(metric, 1)
    assert metric.broken() is not None


def test_the_run_is_not_stopped_before_the_trial_has_ended(released):
    trying = threading.Event()

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        if output == "a":
            trying.set()
            released.wait()
        raise ValueError("no")

    metric = Metric(score, stop_after=3)
    fail(metric, 2)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(fail, metric, 1)
        assert trying.wait(PATIENCE)
        assert metric.broken() is None
        fail(metric, 5)
        assert metric.broken() is None
        released.set()
        third.result(PATIENCE)
    assert metric.broken() is not None


def test_a_trial_that_works_while_others_fail_does_not_stop_the_run(released):
    trying = threading.Event()

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        if output != "a":
            raise ValueError("no")
        trying.set()
        released.wait()
        return OK

    metric = Metric(score, stop_after=3)
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(fail, metric, 3)
        assert trying.wait(PATIENCE)
        fail(metric, 20)
        assert metric.broken() is None
        released.set()
        trial.result(PATIENCE)
    assert metric.broken() is None


def test_many_threads_make_one_trial():
    trials: list[Any] = []

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        if output == "a":
            trials.append(output)
        raise ValueError("no")

    metric = Metric(score)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: fail(metric, 10), range(8)))
    assert trials == ["a"]
    assert metric.broken() is not None


# --- the memory of rollouts ----------------------------------------------------------------------


def judged_rollout(metric: Metric, case: Any, answer: Any, output: Any = "a") -> Score:
    return metric.judge({"q": "?"}, output, {"label": "a"}, rollout=(case, answer))


def test_the_judgement_of_a_rollout_is_recalled_by_its_two_objects():
    metric = Metric(exact)
    case, answer = Thing(), Thing()
    score = judged_rollout(metric, case, answer)
    assert metric.recall(case, answer) is score
    assert metric.recall(Thing(), answer) is None
    assert metric.recall(case, Thing()) is None
    assert metric.calls == 1


def test_failures_and_failed_programs_are_recalled_too():
    metric = Metric(failing)
    case, answer, other = Thing(), Thing(), Thing()
    failure = judged_rollout(metric, case, answer)
    nothing = metric.program_failed({}, rollout=(case, other))
    assert metric.recall(case, answer) is failure
    assert metric.recall(case, other) is nothing


def test_one_prediction_for_two_examples_is_two_rollouts():
    metric = Metric(exact)
    first, second, answer = Thing(), Thing(), Thing()
    right = judged_rollout(metric, first, answer, "a")
    wrong = judged_rollout(metric, second, answer, "b")
    assert metric.recall(first, answer) is right
    assert metric.recall(second, answer) is wrong


@pytest.mark.parametrize("function", [exact, failing, lambda input, output: 0.5])
@pytest.mark.parametrize("timeout", [60.0, None])
def test_a_judgement_is_gone_with_its_prediction_and_keeps_neither_object_alive(function, timeout):
    kept: weakref.WeakSet[Any] = weakref.WeakSet()
    metric = Metric(function, timeout=timeout, stop_after=None)
    for _ in range(100):
        case, answer = Thing(), Thing()
        judged_rollout(metric, case, answer)
        kept.update([case, answer])
    del case, answer
    assert eventually(lambda: len(kept) == 0)


class Judgement:
    """Held by the info of a score; gone when the score is."""


def test_twenty_thousand_rollouts_whose_predictions_are_gone_leave_nothing():
    judgements: weakref.WeakSet[Judgement] = weakref.WeakSet()

    def score(input: Any, output: Any) -> Any:
        judgement = Judgement()
        judgements.add(judgement)
        return 1.0, {"feedback": "OK", "judgement": judgement}

    metric = Metric(score, timeout=None)
    case = Thing()
    for _ in range(20_000):
        metric.judge({}, "a", None, rollout=(case, Thing()))
    gc.collect()
    assert metric.calls == 20_000
    assert len(judgements) == 0


def test_an_output_that_cannot_be_held_weakly_is_remembered_with_its_case():
    metric = Metric(exact)
    case, text = Thing(), "".join(["an ", "answer"])
    score = judged_rollout(metric, case, text)
    assert metric.recall(case, text) is score
    assert metric.recall(case, "".join(["an ", "answer"])) is None
    assert metric.recall(Thing(), text) is None


@pytest.mark.parametrize("memo", ["rollout", "content"])
def test_both_memories_recall_rollouts(memo):
    metric = Metric(exact, memo=memo)
    case, answer = Thing(), Thing()
    assert metric.recall(case, answer) is None
    score = judged_rollout(metric, case, answer)
    assert metric.recall(case, answer) is score


def test_without_a_memory_nothing_is_recalled_and_every_call_judges():
    metric = Metric(exact, memo=None)
    case, answer = Thing(), Thing()
    for _ in range(3):
        judged_rollout(metric, case, answer)
    assert metric.recall(case, answer) is None
    assert metric.calls == 3


# --- the memory of contents ----------------------------------------------------------------------


def test_the_same_content_is_answered_without_a_call():
    metric = Metric(exact, memo="content")
    first = metric.score_case({"q": "?", "n": 1}, "a", {"label": "a"})
    second = metric.score_case({"n": 1, "q": "?"}, "".join(["", "a"]), {"label": "a"})
    assert first == second
    assert metric.calls == 1


@pytest.mark.parametrize(
    "case",
    [({"q": "!"}, "a", {"label": "a"}), ({"q": "?"}, "b", {"label": "a"}), ({"q": "?"}, "a", {"label": "b"})],
)
def test_another_input_output_or_expected_is_judged(case):
    metric = Metric(exact, memo="content")
    metric.score_case({"q": "?"}, "a", {"label": "a"})
    metric.score_case(*case)
    assert metric.calls == 2


def test_equal_numbers_of_other_types_are_other_content():
    metric = Metric(lambda input, output: (1.0, {"feedback": repr(output)}), memo="content")
    assert [metric.score_case({}, output).feedback for output in (1, 1.0, True)] == ["1", "1.0", "True"]


@pytest.mark.parametrize("memo", ["rollout", None])
def test_without_the_memory_of_contents_every_call_judges(memo):
    metric = Metric(exact, memo=memo)
    for _ in range(3):
        metric.score_case({}, "a", {"label": "a"})
    assert metric.calls == 3


def test_failures_are_not_kept():
    outcomes = iter([ValueError("once"), OK])

    def score(input: Any, output: Any) -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    metric = Metric(score, memo="content")
    assert metric.score_case({}, "a").error is not None
    assert metric.score_case({}, "a") == Score(1.0, "Right.")
    assert metric.score_case({}, "a") == Score(1.0, "Right.")
    assert metric.calls == 2


def test_what_has_no_content_of_its_own_is_judged_each_time():
    metric = Metric(lambda input, output: OK, memo="content")
    for _ in range(3):
        metric.score_case({}, Thing("a"))
    assert metric.calls == 3


class Permission(enum.Flag):
    READ = 1


@dataclass
class Answer:
    label: str = field(init=False)


@pytest.mark.parametrize(
    "output",
    [Permission(0), Answer, Answer(), 10**5000, decimal.Decimal("sNaN"), [Answer]],
    ids=["empty flag", "dataclass class", "unfilled dataclass", "huge int", "signalling NaN", "in a list"],
)
def test_no_output_is_too_odd_for_the_memory_of_contents(output):
    metric = Metric(lambda input, output: OK, memo="content", copy_inputs=False)
    try:
        judged = metric.score_case({}, output)
    except Exception as error:
        judged = error
    assert judged == Score(1.0, "Right.")


def test_the_same_content_in_eight_threads_is_one_call():
    def score(input: Any, output: Any) -> Any:
        assert eventually(lambda: waiting(pool._threads) == 8)  # one for this, and the others for that one
        return OK

    metric = Metric(score, memo="content")

    def ask(_: int) -> Score:
        return metric.score_case({"q": "?"}, "a")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [Score(1.0, "Right.")] * 8
    assert metric.calls == 1


def test_different_contents_are_judged_side_by_side():
    together = threading.Barrier(4)

    def score(input: Any, output: Any) -> Any:
        together.wait(PATIENCE)
        return OK

    metric = Metric(score, memo="content")
    with ThreadPoolExecutor(4) as pool:
        assert all(one.error is None for one in pool.map(lambda n: metric.score_case({}, n), range(4)))


def test_one_who_waits_for_a_hanging_call_waits_no_longer_than_the_time_out(released):
    judging = threading.Event()

    def score(input: Any, output: Any) -> Any:
        judging.set()
        released.wait()
        return OK

    metric = Metric(score, memo="content", timeout=1.0)
    with ThreadPoolExecutor(8) as pool:
        leader = pool.submit(metric.score_case, {}, "a")
        assert judging.wait(PATIENCE)
        waiters = [pool.submit(metric.score_case, {}, "a") for _ in range(7)]
        judged = [one.result(PATIENCE) for one in [leader, *waiters]]
    assert all(isinstance(one.error, MetricTimeoutError) for one in judged)
    assert "1 s" in judged[-1].feedback


@pytest.mark.parametrize("timeout", [60.0, None])
def test_a_call_from_inside_the_metric_for_the_same_content_does_not_deadlock(timeout):
    depth = [0]

    def score(input: Any, output: Any) -> Any:
        depth[0] += 1
        if depth[0] < 3:
            return metric.score_case(input, output).value / 2, {"feedback": "From inside."}
        return OK

    metric = Metric(score, memo="content", timeout=timeout)
    assert metric.score_case({}, "a") == Score(0.25, "From inside.")


def test_an_async_call_from_inside_the_metric_for_the_same_content_does_not_deadlock():
    depth = [0]

    async def score(input: Any, output: Any) -> Any:
        depth[0] += 1
        if depth[0] < 3:
            return metric.score_case(input, output).value / 2, {"feedback": "From inside."}
        return OK

    metric = Metric(score, memo="content")
    assert metric.score_case({}, "a") == Score(0.25, "From inside.")


def test_calls_for_each_others_content_from_inside_two_metrics_do_not_deadlock():
    together = threading.Barrier(2)
    inside = contextvars.ContextVar("inside", default=False)

    def score(input: Any, output: Any) -> Any:
        if inside.get():
            return OK
        inside.set(True)
        together.wait(PATIENCE)  # both contents are in flight now
        return metric.score_case({}, "b" if output == "a" else "a").value, {"feedback": "From inside."}

    metric = Metric(score, memo="content")
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(metric.score_case, {}, output) for output in "ab"]
        assert [one.result(PATIENCE) for one in asked] == [Score(1.0, "From inside.")] * 2


class CountingIsolation:
    """As a target registers one; notes the threads in which it is entered and left."""

    def __init__(self, inside: bool = False) -> None:
        self.log: list[tuple[str, int, Any]] = []
        self._inside = inside

    def enter(self, metric: Metric, is_awaited: bool) -> Any:
        assert isinstance(metric, Metric)
        assert is_awaited == inspect.iscoroutinefunction(metric.score)
        self.log.append(("enter", threading.get_ident(), None))
        return len(self.log)

    def leave(self, token: Any) -> None:
        self.log.append(("leave", threading.get_ident(), token))

    def in_rollout(self):
        return False

    def inside(self) -> bool:
        return self._inside

    def depth(self) -> int:
        return 0


@pytest.fixture
def isolated() -> Iterator[Callable[..., CountingIsolation]]:
    added: list[CountingIsolation] = []

    def add(**options: Any) -> CountingIsolation:
        isolation = CountingIsolation(**options)
        added.append(isolation)
        metric_module.isolations.append(isolation)
        return isolation

    yield add
    for isolation in added:
        metric_module.isolations.remove(isolation)


@pytest.mark.parametrize("function", [exact, failing, async_score, raising(SystemExit())["plain"]])
def test_an_isolation_is_entered_and_left_in_the_asking_thread_whatever_the_metric_does(function, isolated):
    isolation = isolated()
    Metric(function).score_case({}, "a", {"label": "a"})
    me = threading.get_ident()
    assert isolation.log == [("enter", me, None), ("leave", me, 1)]


def test_an_isolation_is_left_when_control_c_passes(isolated):
    isolation = isolated()
    with pytest.raises(KeyboardInterrupt):
        Metric(raising(KeyboardInterrupt())["plain"]).score_case({}, "a")
    assert [step for step, *_ in isolation.log] == ["enter", "leave"]


def test_a_call_that_a_target_knows_to_be_inside_a_metric_does_not_wait(isolated, released):
    judging = threading.Event()
    calls: list[int] = []

    def score(input: Any, output: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            judging.set()
            released.wait()
        return OK

    metric = Metric(score, memo="content")
    isolated(inside=True)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(metric.score_case, {}, "a")
        assert judging.wait(PATIENCE)
        assert metric.score_case({}, "a") == Score(1.0, "Right.")
        assert not released.is_set()
        released.set()
        leader.result(PATIENCE)
    assert len(calls) == 2


# --- what the function cannot change -------------------------------------------------------------


def case() -> Any:
    return {
        "text": "hi",
        "rows": [{"a": [1, 2]}, ({"b": [3]},), {4, 5}],
        "pair": ([1], {"c": {6}}),
        "tags": {"x", "y"},
        "deep": {"d": {"e": {"f": [7]}}},
        "ordered": collections.OrderedDict(g=[8]),
        "frozen": frozenset({9}),
        "object": Thing([10]),
        "bytes": bytearray(b"k"),
    }


def plain(value: Any) -> Any:
    """Copy of a case that compares by value."""
    return {
        **{key: item for key, item in value.items() if key != "object"},
        "object": list(value["object"].value),
    }


def wreck(value: Any) -> None:
    value["rows"][0]["a"].append("!")
    value["rows"][1][0]["b"].clear()
    value["rows"][2].add("!")
    value["rows"].append("!")
    value["pair"][0].append("!")
    value["pair"][1]["c"].clear()
    value["tags"].add("!")
    value["deep"]["d"]["e"]["f"].append("!")
    value["deep"]["d"]["new"] = "!"
    value["ordered"]["g"].append("!")
    value["object"].value.append("!")
    value["bytes"].extend(b"!")
    value["new"] = "!"
    del value["text"]


def wreck_all(input: Any, output: Any, expected: Any) -> Any:
    for value in (input, output, expected):
        wreck(value)
    return OK


async def wreck_all_later(input: Any, output: Any, expected: Any) -> Any:
    return wreck_all(input, output, expected)


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("function", [wreck_all, wreck_all_later])
def test_the_function_cannot_change_input_output_or_expected(function, timeout):
    input, output, expected = case(), case(), case()
    metric = Metric(function, timeout=timeout)
    assert metric.score_case(input, output, expected) == Score(1.0, "Right.")
    assert metric(input, output, expected) == OK
    fresh = plain(case())
    assert plain(input) == fresh
    assert plain(output) == fresh
    assert plain(expected) == fresh


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: (value,), lambda value: {"v": value}])
def test_the_function_cannot_change_an_output_within_a_container(wrap):
    inner = {"a": [1]}

    def score(input: Any, output: Any) -> Any:
        (output["v"] if isinstance(output, dict) else output[0])["a"].append("!")
        return OK

    assert Metric(score).score_case({}, wrap(inner)) == Score(1.0, "Right.")
    assert inner == {"a": [1]}


def test_the_copies_are_equal_and_of_the_same_types():
    value = case()
    seen: list[Any] = []
    Metric(lambda input, output: seen.append(output) or OK).score_case({}, value)
    assert plain(seen[0]) == plain(value)
    assert [type(item) for item in seen[0].values()] == [type(item) for item in value.values()]
    assert seen[0]["object"] is not value["object"]


def test_the_trial_cannot_change_the_expected_value():
    def score(input: Any, output: Any, expected: Any) -> Any:
        expected["label"].append("!")
        if isinstance(output, list):
            output.append("!")
        raise ValueError

    expected = {"label": ["a"]}
    metric = Metric(score, stop_after=1)
    metric.score_case({}, ["b"], expected)
    assert expected == {"label": ["a"]}
    assert metric.calls == 2


@pytest.mark.parametrize("timeout", [60.0, None])
def test_a_container_that_holds_itself_is_copied(timeout):
    loop: list[Any] = [[1]]
    loop.append(loop)

    def score(input: Any, output: Any) -> Any:
        assert output[1] is output
        assert output is not loop
        output[0].append("!")
        input["self"]["new"] = "!"
        return OK

    knot: dict[str, Any] = {}
    knot["self"] = knot
    assert Metric(score, timeout=timeout).score_case(knot, loop) == Score(1.0, "Right.")
    assert loop[0] == [1]
    assert set(knot) == {"self"}


def test_what_cannot_be_copied_is_passed_as_it_is():
    lock = threading.Lock()
    sock = socket.socket()
    try:
        seen: list[Any] = []
        metric = Metric(lambda input, output: seen.append((input, output)) or OK)
        metric.score_case({"lock": lock, "rows": [1]}, [sock, len, Thing])
        ((input, output),) = seen
        assert input["lock"] is lock
        assert output[0] is sock
        assert output[1] is len
        assert output[2] is Thing
    finally:
        sock.close()


def test_what_lies_beside_an_object_that_cannot_be_copied_is_copied_all_the_same():
    value = {"lock": threading.Lock(), "rows": [1]}

    def score(input: Any, output: Any) -> Any:
        input["rows"].append("!")
        return OK

    Metric(score).score_case(value, "a")
    assert value["rows"] == [1]


class CopyExits:
    def __deepcopy__(self, memo: Any) -> Any:
        raise SystemExit(3)


def test_an_object_whose_copy_exits_does_not_end_the_run():
    assert Metric(lambda input, output: OK).score_case({}, CopyExits()).value in (0.0, 1.0)


def test_without_copies_the_function_gets_the_very_objects():
    input, output, expected = {"q": ["?"]}, ["a"], {"label": ["a"]}
    seen: list[Any] = []
    Metric(lambda i, o, e: seen.extend([i, o, e]) or OK, copy_inputs=False).score_case(
        input, output, expected
    )
    assert seen[0] is input
    assert seen[1] is output
    assert seen[2] is expected


# --- context variables ---------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def looks(input: Any, output: Any) -> Any:
    return said(variable.get())


async def looks_later(input: Any, output: Any) -> Any:
    await asyncio.sleep(0)
    return said(variable.get())


@pytest.mark.parametrize("timeout", [60.0, None])
@pytest.mark.parametrize("function", [looks, looks_later, lambda input, output: looks_later(input, output)])
def test_context_variables_of_the_caller_are_visible_inside_the_metric(function, timeout):
    metric = Metric(function, timeout=timeout)
    token = variable.set("the caller's")
    try:
        assert metric.score_case({}, "a").feedback == "the caller's"
    finally:
        variable.reset(token)
    assert metric.score_case({}, "a").feedback == "unset"


def test_each_calling_thread_sees_its_own_context():
    metric = Metric(looks)

    def ask(number: int) -> bool:
        variable.set(f"thread {number}")
        return metric.score_case({}, "a").feedback == f"thread {number}"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(100)))


async def sets_later(input: Any, output: Any) -> Any:
    variable.set("the metric's")
    return OK


@pytest.mark.parametrize("function", [lambda input, output: variable.set("the metric's") and OK, sets_later])
def test_context_variables_that_the_metric_sets_do_not_reach_the_caller(function):
    assert Metric(function).score_case({}, "a").value == 1.0
    assert variable.get() == "unset"


# --- time-outs -----------------------------------------------------------------------------------


class Hang:
    """One way to hang, until it is released or a minute has passed."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.begun = threading.Event()
        self.ended = threading.Event()
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._lock.acquire()
        self._ours, self._theirs = socket.socketpair()
        self._ours.settimeout(HANG)

    def _hang(self) -> None:
        end = time.monotonic() + HANG
        if self.way == "a sleep":
            time.sleep(HANG)
        elif self.way == "a Python loop":
            while time.monotonic() < end and not self._released.is_set():
                pass
        elif self.way == "a blocked socket":
            self._ours.recv(1)
        else:
            self._lock.acquire(timeout=HANG)

    def __call__(self, input: Any, output: Any) -> Any:
        self.begun.set()
        self._hang()
        self.ended.set()
        return OK

    def release(self) -> None:
        self._released.set()
        self._theirs.sendall(b"!")
        self._lock.release()


class AsyncHang(Hang):
    async def __call__(self, input: Any, output: Any) -> Any:
        self.begun.set()
        if self.way == "a wait":
            await asyncio.sleep(HANG)
        else:
            self._hang()
        self.ended.set()
        return OK


WAYS = ["a sleep", "a Python loop", "a blocked socket", "a held lock"]


@pytest.mark.parametrize(
    "hang",
    [*(functools.partial(Hang, way) for way in WAYS)]
    + [functools.partial(AsyncHang, way) for way in ["a wait", "a Python loop", "a held lock"]],
    ids=[*WAYS, *(f"async: {way}" for way in ["a wait", "a Python loop", "a held lock"])],
)
def test_a_hang_is_released_on_time_while_innocent_calls_go_on(hang):
    hang = hang()
    metric = Metric(hang, timeout=0.3, name="slow")
    innocent, innocent_async = Metric(exact), Metric(async_score)
    try:
        with ThreadPoolExecutor(4) as pool:
            hanging = pool.submit(metric.score_case, {}, "a")
            assert hang.begun.wait(PATIENCE)
            beside = [pool.submit(innocent.score_case, {}, "a", {"label": "a"}) for _ in range(20)]
            judged = hanging.result(PATIENCE)
            assert [one.result(PATIENCE).value for one in beside] == [1.0] * 20
        assert innocent_async.score_case("in", "out").value == 1.0
        assert not hang.ended.is_set()
    finally:
        hang.release()
    assert isinstance(judged.error, MetricTimeoutError)
    assert judged.value == 0.0
    assert "metric 'slow' did not answer within 0.3 s" in judged.feedback
    assert "raise timeout= (at most 600 s)" in judged.feedback
    assert [failure.kind for failure in metric.failures] == ["MetricTimeoutError"]


def test_the_same_metric_goes_on_with_other_cases_after_a_hang(released):
    metric = Metric(lambda input, output: released.wait() and OK if output == "hang" else OK, timeout=2.0)
    with ThreadPoolExecutor(4) as pool:
        hanging = pool.submit(metric.score_case, {}, "hang")
        assert [one.value for one in pool.map(lambda n: metric.score_case({}, n), range(50))] == [1.0] * 50
        assert isinstance(hanging.result(PATIENCE).error, MetricTimeoutError)


def test_a_function_that_answers_late_is_not_taken_for_the_next_call(released):
    def score(input: Any, output: Any) -> Any:
        if output == "hang":
            released.wait()
        return said(output)

    metric = Metric(score, timeout=0.3)
    assert metric.score_case({}, "hang").error is not None
    released.set()
    slower = Metric(score, timeout=60.0)
    assert [slower.score_case({}, number).feedback for number in range(20)] == [str(n) for n in range(20)]


def test_a_coroutine_that_a_plain_function_returned_has_only_the_time_that_is_left():
    ended: list[bool] = []

    async def wait() -> Any:
        await asyncio.sleep(HANG)
        ended.append(True)

    judged = Metric(lambda input, output: wait(), timeout=0.5).score_case({}, "a")
    assert isinstance(judged.error, MetricTimeoutError)
    assert ended == []


def test_a_coroutine_that_hangs_is_cancelled():
    cancelled = threading.Event()

    async def score(input: Any, output: Any) -> Any:
        try:
            await asyncio.sleep(HANG)
        finally:
            cancelled.set()

    assert isinstance(Metric(score, timeout=0.3).score_case({}, "a").error, MetricTimeoutError)
    assert cancelled.wait(PATIENCE)


def test_without_a_time_out_the_function_runs_in_the_callers_own_thread():
    def thread(input: Any, output: Any) -> Any:
        return said(threading.get_ident())

    me = str(threading.get_ident())
    assert Metric(thread, timeout=None).score_case({}, "a").feedback == me
    assert Metric(thread).score_case({}, "a").feedback != me


HANGING_SCRIPT = """
import asyncio, socket, sys, threading, time
from skynet_adapters import Metric

ours, theirs = socket.socketpair()
lock = threading.Lock()
lock.acquire()

def busy():
    while True:
        pass

ways = {
    "sleep": lambda input, output: time.sleep(600),
    "loop": lambda input, output: busy(),
    "socket": lambda input, output: ours.recv(1),
    "lock": lambda input, output: lock.acquire(),
}

async def wait(input, output):
    await asyncio.sleep(600)

async def block(input, output):
    time.sleep(600)

ways.update({"async wait": wait, "async block": block})
score = Metric(ways[sys.argv[1]], timeout=0.3).score_case({}, "a")
print(type(score.error).__name__)
"""


@pytest.mark.parametrize("way", ["sleep", "loop", "socket", "lock", "async wait", "async block"])
def test_the_interpreter_exits_cleanly_after_a_hang(way):
    done = run_script(HANGING_SCRIPT, way)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "MetricTimeoutError"
    assert "Fatal" not in done.stderr
    assert "Traceback" not in done.stderr


def test_helper_threads_are_used_again():
    metric = Metric(lambda input, output: said(threading.get_ident()))
    metric.score_case({}, "a")
    before = threading.active_count()
    threads = {metric.score_case({}, number).feedback for number in range(200)}
    assert len(threads) <= 2
    assert threading.active_count() <= before


def test_new_calling_threads_make_no_new_helpers():
    metric = Metric(lambda input, output: said(threading.get_ident()))
    threads = set()
    for _ in range(50):  # as an optimiser that starts new workers for each batch
        with ThreadPoolExecutor(2) as pool:
            threads |= {one.feedback for one in pool.map(lambda n: metric.score_case({}, n), range(4))}
    assert len(threads) <= 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_can_call_metrics():
    done = run_script(
        """
        import asyncio, os, warnings
        from skynet_adapters import Metric

        async def later(input, output):
            await asyncio.sleep(0)
            return 1.0, {"feedback": "OK"}

        warnings.simplefilter("ignore")
        metrics = [Metric(lambda input, output: (1.0, {"feedback": "OK"})), Metric(later)]
        metrics += [Metric(metric.score, memo="content") for metric in metrics]
        fine = lambda: all(metric.score_case({}, "a").value == 1.0 for metric in metrics)
        assert fine()
        child = os.fork()
        if child == 0:
            os._exit(0 if fine() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert fine()
        print("fine")
        """
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert done.returncode == 0


# --- pickle and copy -----------------------------------------------------------------------------

COPIES = {
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
    "cloudpickle": lambda metric: cloudpickle.loads(cloudpickle.dumps(metric)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_a_metric_survives_with_its_options_and_leaves_what_it_has_seen_behind(copied, memo):
    metric = Metric(
        exact,
        name="triage",
        score_range=(0, 10),
        score_names=["format"],
        failure_score=-1,
        success_threshold=0.5,
        memo=memo,
        timeout=5,
        stop_after=2,
        max_failures_in_a_row=9,
        copy_inputs=False,
        max_feedback_chars=500,
    )
    case, answer = Thing(), Thing()
    metric.judge({}, "a", {"label": "a"}, rollout=(case, answer))
    for output in ("b", None, "c"):
        metric.score_case({}, output, {})
    twin = copied(metric)
    assert twin.__getstate__() == metric.__getstate__()
    assert (twin.name, twin.timeout, twin.failure_score, twin.success_threshold) == ("triage", 5.0, -1.0, 0.5)
    assert (twin.calls, len(twin.failures), twin.broken()) == (0, 0, None)
    assert twin.recall(case, answer) is None
    assert twin.score_case({}, "a", {"label": "a"}).value == 0.1
    assert twin.score_case({}, "a", {}).error is not None
    assert (metric.calls, len(metric.failures)) == (3, 3)


def test_failures_survive_pickle_also_when_their_metric_is_gone():
    metric = Metric(failing)
    metric.score_case({}, "a")
    failures = metric.failures
    assert len(pickle.loads(pickle.dumps(failures))) in (0, 1)
    del metric
    gc.collect()
    assert len(pickle.loads(pickle.dumps(failures))) in (0, 1)


def test_a_copy_is_not_broken_and_stops_on_its_own():
    metric = Metric(failing)
    fail(metric, 5)
    twin = copy.deepcopy(metric)
    assert twin.broken() is None
    fail(twin, 5)
    assert twin.broken() is not None


def test_a_metric_with_a_closure_survives_cloudpickle_into_another_process(tmp_path):
    bonus = 0.25

    def score(input: Any, output: Any, expected: Any = None) -> Any:
        return bonus + (output == expected), {"feedback": f"{output} and {bonus}"}

    path = tmp_path / "metric.pickle"
    score.__module__ = "__main__"  # so that it travels by value
    path.write_bytes(cloudpickle.dumps(Metric(score, score_range=(0, 2))))
    done = run_script(
        """
        import pickle, sys
        metric = pickle.loads(open(sys.argv[1], "rb").read())
        print(metric.score_case({}, "a", "a")[:2])
        """,
        str(path),
    )
    assert done.stdout.strip() == "(0.625, 'a and 0.25')", done.stderr


def test_a_metric_can_be_pickled_while_it_judges(released):
    judging = threading.Event()

    with ThreadPoolExecutor(1) as pool:
        metric = Metric(
            lambda input, output: judging.set() or (released.wait() and OK) if output == "hang" else OK,
            memo="content",
        )
        asked = pool.submit(metric.score_case, {}, "hang")
        assert judging.wait(PATIENCE)
        # The event that the function waits for cannot be copied; the function is taken as it is.
        assert copy.deepcopy(metric).score_case({}, "a").value == 1.0
        released.set()
        assert asked.result(PATIENCE).value == 1.0


# --- scale ---------------------------------------------------------------------------------------


def scored(value: Any, **options: Any) -> Metric:
    return Metric(lambda input, output: (output, {"feedback": "OK"}), name="triage", **options)


def test_a_score_above_1_is_warned_of_once(caplog):
    metric = scored(None)
    assert [metric.score_case({}, value).value for value in (1.5, 7, 100)] == [1.5, 7.0, 100.0]
    (warning,) = warnings_of(caplog)
    assert "metric 'triage' returned 1.5 without score_range" in warning
    assert "perfect_score" in warning
    assert "score_range=(low, high)" in warning


def test_a_score_below_0_is_warned_of_once(caplog):
    metric = scored(None, failure_score=0.0)
    assert [metric.score_case({}, value).value for value in (-0.5, -7)] == [-0.5, -7.0]
    (warning,) = warnings_of(caplog)
    assert "metric 'triage' returned -0.5 without score_range" in warning
    assert "failure_score=0" in warning


def test_both_ends_are_warned_of_once_each(caplog):
    metric = scored(None)
    for value in (-1, 2, -1, 2):
        metric.score_case({}, value)
    assert len(warnings_of(caplog, "without score_range")) == 2


@pytest.mark.parametrize("options", [{}, {"score_range": (-10, 10)}])
def test_scores_within_0_and_1_or_a_range_are_not_warned_of(caplog, options):
    metric = scored(None, **options)
    for value in (0, 0.5, 1) if not options else (-10, 5, 10):
        assert metric.score_case({}, value).error is None
    assert warnings_of(caplog) == []


# --- named scores --------------------------------------------------------------------------------


def test_named_scores_are_completed_with_every_name_that_was_seen():
    metric = Metric(
        lambda input, output: (
            failing(input, output) if output == "fail" else (1.0, {"feedback": "OK", "scores": {output: 0.5}})
        ),
        failure_score=-1,
    )
    failed = metric.score_case({}, "fail")
    assert metric.complete(failed.scores) == {}
    first = metric.score_case({}, "format")
    metric.score_case({}, "facts")
    assert metric.complete(first.scores) == {"format": 0.5, "facts": -1.0}
    assert metric.complete(failed.scores) == {"format": -1.0, "facts": -1.0}
    assert first.scores == {"format": 0.5}


def test_score_names_complete_a_failed_first_case():
    metric = Metric(failing, score_names=["format", "facts"])
    assert metric.complete(metric.score_case({}, "a").scores) == {"format": 0.0, "facts": 0.0}


def test_names_that_are_asked_for_before_any_judgement_are_warned_of_once(caplog):
    metric = Metric(failing, name="triage")
    metric.score_case({}, "a")
    caplog.clear()
    metric.names_are_read(failed=True)
    metric.names_are_read(failed=True)
    (warning,) = warnings_of(caplog)
    assert "metric 'triage' has judged no case yet" in warning
    assert "score_names=" in warning


def test_names_that_are_asked_for_after_a_judgement_are_not_warned_of(caplog):
    metric = Metric(exact)
    metric.score_case({}, "a", {"label": "a"})
    metric.names_are_read(failed=True)
    assert warnings_of(caplog) == []


def test_a_name_that_comes_after_the_names_were_read_is_warned_of_once(caplog):
    metric = Metric(lambda i, o: (1.0, {"feedback": "OK", "scores": {o: 0.5}}), name="triage")
    first = metric.score_case({}, "format")
    metric.score_case({}, "facts")
    assert warnings_of(caplog) == []
    metric.complete(first.scores)
    metric.names_are_read(failed=False)
    for late in ("facts", "tone", "length"):
        metric.score_case({}, late)
    (warning,) = warnings_of(caplog)
    assert "metric 'triage' gave the named score 'tone' after" in warning
    assert "score_names=" in warning


def test_a_named_score_outside_score_names_is_an_error():
    metric = Metric(lambda i, o: (1.0, {"feedback": "OK", "scores": {"form": 1}}), score_names=["format"])
    judged = metric.score_case({}, "a")
    assert isinstance(judged.error, MetricReturnError)
    assert "'form'" in judged.feedback


# --- under load ----------------------------------------------------------------------------------


@pytest.mark.parametrize("memo", ["rollout", "content", None])
def test_eight_threads_get_the_right_judgements(memo):
    metric = Metric(exact, memo=memo)

    def right(number: int) -> bool:
        judged = metric.score_case({"n": number}, str(number % 7), {"label": str(number % 5)})
        return judged.error is None and judged.value == float(number % 7 == number % 5)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(1_000)))
    assert metric.calls == 1_000


def test_every_value_is_finite_whatever_happens():
    metric = Metric(lambda input, output: output, stop_after=None)
    for output in [
        0.5,
        (math.nan, {"feedback": "OK"}),
        (math.inf, {"feedback": "OK"}),
        (1, {"feedback": "OK"}),
    ]:
        assert math.isfinite(metric.score_case({}, output).value)


def test_the_package_can_be_imported_without_any_target_library():
    done = run_script(
        """
        import sys
        from skynet_adapters import Metric
        print(Metric(lambda input, output: (1.0, {"feedback": "OK"})).score_case({}, "a").value)
        print([name for name in ("dspy", "gepa", "numpy", "pydantic") if name in sys.modules])
        """
    )
    assert done.stdout.split("\n")[:2] == ["1.0", "[]"], done.stderr


def test_no_file_of_the_package_shows_as_the_users_frame():
    package = Path(metric_module.__file__).parent
    text = Metric(operator.truediv).score_case("x", "y").feedback
    assert not any(path.name in text for path in package.glob("*.py"))


# --- what a first reader and a review found ------------------------------------------------------


def test_parameters_in_another_order_are_given_by_name():
    seen = []

    def by_name(output, expected, input):
        seen.append((input, output, expected))
        return 1.0, {"feedback": "OK"}

    assert Metric(by_name).score_case({"q": 1}, "out", {"label": "a"}).error is None
    assert Metric(
        lambda output, expected: (float(output == expected["label"]), {"feedback": "OK"})
    ).score_case({"q": 1}, "a", {"label": "a"}) == Score(1.0, "OK")
    assert seen == [({"q": 1}, "out", {"label": "a"})]


@pytest.mark.parametrize("score", [lambda prediction, reference: 1, lambda response, wanted, extra: 1])
def test_a_first_parameter_that_is_named_like_an_output_is_refused(score):
    with pytest.raises(DefinitionError, match="its first one gets the input; write it as score"):
        Metric(score)


def test_the_trial_before_a_stop_keeps_no_books():
    """It neither ends a row of failures, nor is it asked about an output that is not there."""
    outputs = []

    def only_perfect(input, output, expected=None):
        outputs.append(output)
        if output != "perfect":
            raise ValueError("boom")
        return 1.0, {"feedback": "OK"}

    metric = Metric(only_perfect, stop_after=2, max_failures_in_a_row=4)
    for _ in range(3):
        metric.score_case({}, "bad", {"answer": "perfect"})
    assert outputs.count("perfect") == 1
    assert metric.broken() is None
    metric.score_case({}, "bad", {"answer": "perfect"})
    assert "4 times in a row" in (metric.broken() or "")

    outputs.clear()
    nothing_expected = Metric(only_perfect, stop_after=2)
    for _ in range(3):
        nothing_expected.score_case({}, "bad", {"answer": None})
    assert None not in outputs
    assert "null" not in outputs


def test_a_score_below_0_is_warned_of_only_when_a_failure_would_beat_it(caplog):
    Metric(lambda i, o: (-0.3, {"feedback": "OK"}), failure_score=-1.0).score_case({}, "a")
    assert warnings_of(caplog) == []
    Metric(lambda i, o: (-0.3, {"feedback": "OK"})).score_case({}, "a")
    (warning,) = warnings_of(caplog)
    assert "beats a poor answer" in warning


def test_a_key_error_says_which_fields_there_are():
    def score(input, output, expected=None):
        return float(output == expected["answer"]), {"feedback": "OK"}

    text = str(Metric(score).score_case({"question": "?"}, "a", {"antwort": "a"}).error)
    assert "KeyError: 'answer'" in text
    assert "input has ['question'], expected has ['antwort']" in text
    assert "expected=None" in str(Metric(score).score_case({"question": "?"}, "a").error)


def test_kinds_of_failures_are_counted_beyond_those_that_are_kept():
    metric = Metric(failing, stop_after=None)
    for _ in range(1_100):
        metric.score_case({}, "a")
    assert metric.failures.kinds == {"MetricError": 1_100}
    assert len(list(metric.failures)) == 1_000


def test_one_part_in_very_many_places_is_copied_in_no_time():
    part = ["x"]
    for _ in range(60):
        part = [part, part]  # a tree of it would have 2**60 leaves
    seen = []

    def score(input, output):
        seen.append(input["part"])
        return 1.0, {"feedback": "OK"}

    assert Metric(score).score_case({"part": part}, "a").error is None
    assert seen[0] is not part
    wide = part[0]
    for _ in range(8):
        wide = [wide] * 30
    assert Metric(score).score_case({"part": wide}, "a").error is None
    assert seen[1] is not wide
    assert seen[1][0] is seen[1][1]


def test_one_deep_leaf_that_cannot_be_copied_leaves_nothing_else_uncopied():
    deep = rows = [1]
    for _ in range(40):
        deep = [deep, threading.Lock()]

    def score(input, output):
        part = input["deep"]
        while part != [1]:
            part = part[0]
        part.append("!")
        return OK

    assert Metric(score).score_case({"deep": deep}, "a") == Score(1.0, "Right.")
    assert rows == [1]


def test_an_error_whose_message_cannot_be_written_is_a_failure_like_any_other():
    class UnreadableError(AttributeError):
        def __str__(self):
            raise RuntimeError("not today")

    for error in (UnreadableError(), UnreadableError):
        failed = Metric(raising(error)["plain"]).score_case({}, "a")
        assert "raised UnreadableError: <its message raises RuntimeError>" in failed.feedback


class AnswersToAnyName:
    def __getattr__(self, name):
        if name.startswith("__") and name != "__wrapped__":
            raise AttributeError(name)
        return AnswersToAnyName()

    def __call__(self, input, output):
        raise ValueError("never right")


def test_an_object_that_answers_to_any_name_can_be_a_metric():
    failed = Metric(AnswersToAnyName(), name="any").score_case({}, "a")
    assert "raised ValueError: never right (test_metric.py, line" in failed.feedback


def test_a_call_that_began_before_a_stop_does_not_count_in_the_next_run(released):
    begun = threading.Semaphore(0)

    def score(input, output):
        begun.release()
        released.wait()
        raise ConnectionError("no route")

    metric = Metric(score, max_failures_in_a_row=2)
    with ThreadPoolExecutor(4) as pool:
        late = [pool.submit(metric.score_case, {}, "a") for _ in range(4)]
        for _ in late:
            assert begun.acquire(timeout=PATIENCE)
        metric.begin_again()
        released.set()
        assert all(one.result(PATIENCE).error is not None for one in late)
    assert metric.broken() is None


@pytest.mark.parametrize(
    ("output", "expected", "tried"),
    [
        ("three", {"n": 3}, ["3"]),
        ("no", {"right": True}, ["true", "True"]),
        ("?", {"day": datetime.date(2026, 1, 2)}, ['"2026-01-02"', "2026-01-02"]),
        (4, {"n": "5"}, [5]),
        (["a"], {"n": "5"}, ["5", 5]),
        ("{", {"a": 1, "b": 2}, ['{"a": 1, "b": 2}']),
    ],
)
def test_the_trial_gives_the_expected_value_in_the_form_of_the_outputs_that_failed(output, expected, tried):
    outputs: list[Any] = []
    Metric(notes_and_fails(outputs), stop_after=1).score_case({}, output, expected)
    assert outputs[1:] == tried


def test_no_output_behind_another_metric_does_not_count_towards_a_stop():
    inner = Metric(exact)
    metric = Metric(lambda input, output, expected: inner(input, None, expected))
    fail(metric, 20, {"label": "a"})
    assert metric.broken() is None
    assert metric.failures.kinds == {"ProgramFailedError": 20}


def test_a_record_that_holds_a_lock_is_copied_around_it():
    @dataclasses.dataclass
    class Answer:
        rows: list[int]
        lock: Any

    class Model(pydantic.BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        rows: list[int]
        lock: Any

    lock = threading.Lock()
    answers = [Answer([1], lock), Model(rows=[1], lock=lock), dspy.Prediction(rows=[1], lock=lock)]

    def score(input, output):
        output.rows.append(2)
        return float(output.lock is lock), {"feedback": "F."}

    for answer in answers:
        rows = answer.rows
        assert Metric(score).score_case({}, answer) == Score(1.0, "F.")
        assert rows == [1]


def test_the_failures_that_stopped_a_run_do_not_count_in_the_next_one():
    down = [True]

    def score(input, output):
        if down[0]:
            raise ConnectionError("no route")
        return OK

    metric = Metric(score, max_failures_in_a_row=7)
    fail(metric, 7, None)
    assert "first 5 rollouts" in (metric.broken() or "") or "7 times in a row" in (metric.broken() or "")
    metric.begin_again()
    assert metric.broken() is None
    fail(metric, 4, None)
    assert metric.broken() is None
    fail(metric, 1, None)
    assert "first 5 rollouts" in (metric.broken() or "")
    metric.begin_again()
    down[0] = False
    assert metric.score_case({}, "a").error is None
    assert metric.broken() is None


@pytest.mark.parametrize("make", [as_dspy_metric, as_dspy_reward])
def test_what_was_made_of_a_score_for_dspy_is_refused_with_the_score_to_pass(make):
    def exact(input, output, expected=None):
        return 1.0, {"feedback": "F."}

    made = make(exact)
    for refuse in (
        lambda: Metric(made),
        lambda: as_gepa_evaluator(made),
        lambda: as_gepa_adapter(made, lambda artifact, input: "x", artifact="x"),
        lambda: optimize_artifact("x", lambda artifact, input: "x", made, [{}], reflection_lm=lambda p: "x"),
    ):
        with pytest.raises(DefinitionError, match=rf"pass exact itself, or {made.__name__}\.metric$"):
            refuse()
    assert Metric(made.metric).score is exact


def test_a_metric_of_ones_own_around_what_was_made_for_dspy_is_a_dspy_metric():
    made = as_dspy_metric(lambda input, output: (1.0, {"feedback": "F."}))

    @functools.wraps(made)  # which copies `made.metric` too
    def of_ones_own(example, pred, trace=None):
        return made(example, pred)

    with pytest.raises(DefinitionError, match="pass from_dspy_metric"):
        Metric(of_ones_own)
