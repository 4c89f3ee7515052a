"""Measure `as_dspy_metric` against hand-written DSPy metrics, side by side in one run.

Run it with `make bench`, options in ARGS: `make bench ARGS="--only call --only feedback"`.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import itertools
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

# Before DSPy is imported: its cache and LiteLLM's price list are read then.
os.environ.setdefault("DSPY_CACHEDIR", tempfile.mkdtemp(prefix="skynet-adapters-bench-"))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy
import gepa_runs
from models import NoModel, answerer, examples, model, reflector

from skynet_adapters import as_dspy_metric, as_gepa_adapter, measuring
from skynet_adapters.redaction import redacted
from skynet_adapters.score import sendable

T = TypeVar("T")

THREADS = 8
MODEL_SECONDS = 0.020
JUDGE_SECONDS = 0.010


# --- the metric, for us and by hand ----------------------------------------------------------------


def score(input: Any, output: Any, expected: Any = None) -> tuple[float, dict[str, str]]:
    """Judge an exact match, with a reason."""
    want = expected["answer"]
    if output == want:
        return 1.0, {"feedback": "Right."}
    return 0.0, {"feedback": f"Expected {want!r}, got {output!r}."}


def by_hand(
    gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
) -> dspy.Prediction:
    """Judge the same, written for dspy.GEPA directly."""
    if pred.answer == gold.answer:
        return dspy.Prediction(score=1.0, feedback="Right.")
    return dspy.Prediction(score=0.0, feedback=f"Expected {gold.answer!r}, got {pred.answer!r}.")


def bare_float(gold: Any, pred: Any, trace: Any = None) -> float:
    """Judge the same, with no reason: the quickest metric that `Evaluate` can have."""
    return float(pred.answer == gold.answer)


class Judge:
    """Stands for a model that judges: takes its time, and counts how often it is asked."""

    def __init__(self) -> None:
        self._count = itertools.count(1)
        self.calls = 0

    def ask(self) -> None:
        """Take one call's time."""
        self.calls = next(self._count)
        time.sleep(JUDGE_SECONDS)

    def score(self, input: Any, output: Any, expected: Any = None) -> tuple[float, dict[str, str]]:
        """Judge as `score` does, after asking."""
        self.ask()
        return score(input, output, expected)

    def by_hand(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        """Judge as `by_hand` does, after asking."""
        self.ask()
        return by_hand(gold, pred)


# --- what is measured, and how it is shown ---------------------------------------------------------


@dataclasses.dataclass
class Row:
    """One line of the table.

    Attributes:
        what: What is compared.
        ours: One number for each repeat.
        baseline: One number for each repeat, taken in turn with ours.
        unit: Of both: "us", "s", "MB", "KB" or "calls".
        bound: What the compared number may reach; `None`: reported only.
        compare: What the bound speaks of: ours over the baseline, ours minus the baseline, or ours.
        best: Take the minimum of the repeats, as for calls of microseconds; else their median.
    """

    what: str
    ours: list[float]
    baseline: list[float]
    unit: str
    bound: float | None = None
    compare: Literal["ratio", "difference", "value"] = "ratio"
    best: bool = False

    def _taken(self, samples: list[float]) -> float:
        return min(samples) if self.best else statistics.median(samples)

    def _compared(self, ours: float, baseline: float) -> float:
        if self.compare == "ratio":
            return ours / baseline
        return ours - baseline if self.compare == "difference" else ours

    @property
    def result(self) -> float:
        """The number that the bound is for."""
        return self._compared(self._taken(self.ours), self._taken(self.baseline))

    @property
    def spread(self) -> tuple[float, float] | None:
        """Where the middle 80 % of the repeats lie, each compared with its neighbour in time."""
        single = [self._compared(*pair) for pair in zip(self.ours, self.baseline, strict=True)]
        if len(single) < 3:
            return None
        tenths = statistics.quantiles(single, n=10, method="inclusive")
        return tenths[0], tenths[-1]

    @property
    def verdict(self) -> str:
        """`within` or `over`, or `reported` where there is no bound."""
        if self.bound is None:
            return "reported"
        return "within" if self.result <= self.bound else "over"

    def cells(self) -> list[str]:
        """Write the line's cells."""

        def compared(value: float) -> str:
            return f"{value:.3f}" if self.compare == "ratio" else f"{value:.3g} {self.unit}"

        return [
            self.what,
            f"{self._taken(self.ours):.3g} {self.unit}",
            f"{self._taken(self.baseline):.3g} {self.unit}",
            {"ratio": "", "difference": "diff. ", "value": "ours "}[self.compare] + compared(self.result),
            f"{self.spread[0]:.3g} to {self.spread[1]:.3g}" if self.spread else "-",
            "-" if self.bound is None else f"{self.bound:g}" + f" {self.unit}" * (self.compare != "ratio"),
            self.verdict,
        ]

    def as_json(self) -> dict[str, Any]:
        """Give everything that was measured."""
        return {
            **dataclasses.asdict(self),
            "result": self.result,
            "spread": self.spread,
            "verdict": self.verdict,
        }


HEADER = ["what", "ours", "baseline", "ratio", "spread", "bound", "verdict"]


def in_turn(
    repeats: int, ours: Callable[[], T], baseline: Callable[[], T], warm: bool = True
) -> tuple[list[T], list[T]]:
    """Measure both in turn, so that whatever else the machine does falls on both."""
    if warm:
        ours(), baseline()
    samples: tuple[list[T], list[T]] = [], []
    for repeat in range(repeats):
        for which in (0, 1) if repeat % 2 else (1, 0):
            samples[which].append((ours, baseline)[which]())
    return samples


def nth(index: int, ours: list[Any], baseline: list[Any]) -> tuple[list[float], list[float]]:
    """Take one number out of each sample."""
    return [sample[index] for sample in ours], [sample[index] for sample in baseline]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Send progress bars nowhere; DSPy turns some on without asking."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def must(condition: bool, what: str) -> None:
    """Stop when what was measured is not what the row says."""
    if not condition:
        raise RuntimeError(f"the benchmark is not valid: {what}")


# --- single calls ----------------------------------------------------------------------------------


def rollouts(count: int, answer: str) -> list[tuple[dspy.Example, dspy.Prediction]]:
    """Make fresh pairs of an example and a prediction; "A" is right."""
    return [(example, dspy.Prediction(answer=answer)) for example in examples(count)]


def microseconds(
    metric: Callable[..., Any], answer: str, clock: Callable[[], float], arguments: tuple[Any, ...] = ()
) -> float:
    """Time one call on rollouts that it has not seen; with arguments, on those it has just scored."""
    pairs = rollouts(100, answer)
    if arguments:
        for gold, pred in pairs:
            metric(gold, pred)
    begun = clock()
    for gold, pred in pairs:
        metric(gold, pred, *arguments)
    return (clock() - begun) / len(pairs) * 1e6


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Keep the garbage collector out, as `timeit` does."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def single_calls(
    what: str,
    metric: Any,
    bound: float | None,
    repeats: int,
    arguments: tuple[Any, ...] = (),
    clock: Callable[[], float] = time.thread_time,  # without the time that other processes take
) -> Iterator[Row]:
    """Compare a call of `metric` with one of the hand-written metric."""
    for word, answer in (("right", "A"), ("wrong", "B")):
        with no_collector():
            ours, baseline = in_turn(
                repeats,
                lambda answer=answer: microseconds(metric, answer, clock, arguments),
                lambda answer=answer: microseconds(by_hand, answer, clock),
            )
        yield Row(f"{what}, {word} answer", ours, baseline, "us", bound, best=True)
    must(len(metric.metric.failures) == 0, "a call failed")


def bench_call(quick: bool) -> Iterator[Row]:
    """Time one scoring call, without the time-out."""
    yield from single_calls("metric call", as_dspy_metric(score, timeout=None), 1.2, 400 if quick else 1_000)


def bench_feedback(quick: bool) -> Iterator[Row]:
    """Time dspy.GEPA's second call for a rollout, which asks for the text."""
    asks_for_text: tuple[Any, ...] = ([], "predict", [])
    metric = as_dspy_metric(score, timeout=None)  # it matters only to the scoring call, which is not timed
    yield from single_calls("GEPA feedback call", metric, 0.5, 400 if quick else 1_000, asks_for_text)


def bench_timeout(quick: bool) -> Iterator[Row]:
    """Time one scoring call with the default time-out, which is a thread hop."""
    metric, repeats = as_dspy_metric(score), 200 if quick else 1_000
    yield from single_calls("metric call, default time-out", metric, None, repeats, clock=time.perf_counter)


def bench_isolation(quick: bool) -> Iterator[Row]:
    """Time one scoring call in a worker process, against one on a helper thread."""
    isolated, threaded = as_dspy_metric(score, isolation="process"), as_dspy_metric(score)
    with no_collector():
        ours, baseline = in_turn(
            20 if quick else 100,
            lambda: microseconds(isolated, "A", time.perf_counter),
            lambda: microseconds(threaded, "A", time.perf_counter),
        )
    must(len(isolated.metric.failures) == 0, "a call failed")
    isolated.metric.close()
    yield Row(
        "metric call in a process, more than on a thread",
        ours,
        baseline,
        "us",
        500.0,
        "difference",
        best=True,
    )


def bench_redaction(quick: bool) -> Iterator[Row]:
    """Time the search for credentials in a feedback, which every judgement goes through."""
    usual = "Expected 'billing', got 'other'. The message mentions a charge."
    for what, text in (
        ("", usual),
        (" that speaks of keys", "The key 'total' is missing: token 5."),
        (" of 2,000 characters", usual * 32),
    ):

        def seconds(look: Callable[[str], str], text: str = text) -> float:
            return timeit.timeit(lambda: look(text), number=200) / 200 * 1e6

        ours, baseline = in_turn(100 if quick else 500, lambda: seconds(redacted), lambda: seconds(sendable))
        yield Row(f"redaction of a feedback{what}", ours, baseline, "us", None, "difference", best=True)


# --- whole runs ------------------------------------------------------------------------------------


def gepa_run(make: Callable[[Judge], Any], budget: int) -> tuple[float, float, list[Any]]:
    """Run dspy.GEPA with a metric that asks a judge.

    Returns:
        Seconds, judge calls for each rollout, and what was found on which way.
    """
    judge, task, reflection = Judge(), answerer(MODEL_SECONDS), reflector()
    optimizer = dspy.GEPA(
        metric=make(judge),
        max_metric_calls=budget,
        num_threads=THREADS,
        reflection_lm=model(reflection),
        track_stats=True,
        seed=0,
    )
    program = dspy.Predict("question -> answer")
    with dspy.context(lm=model(task)), silence():
        begun = time.perf_counter()
        best: Any = optimizer.compile(program, trainset=examples(30), valset=examples(20, first=30))
        seconds = time.perf_counter() - begun
    found = best.detailed_results
    way = [task.calls, reflection.calls, found.val_aggregate_scores, found.parents]
    return seconds, judge.calls / task.calls, way


def bench_gepa(quick: bool) -> Iterator[Row]:
    """Run dspy.GEPA with a model of 20 ms and a deterministic judge of 10 ms."""
    budget = 100 if quick else 300
    ours, baseline = in_turn(
        3 if quick else 7,
        lambda: gepa_run(lambda judge: as_dspy_metric(judge.score), budget),
        lambda: gepa_run(lambda judge: judge.by_hand, budget),
    )
    ways = [run[2] for run in ours + baseline]
    must(all(way == ways[0] for way in ways), f"GEPA took different ways: {ways}")
    rollouts, proposals, scores, _ = ways[0]
    what = f"GEPA ({rollouts} rollouts, {proposals} proposals, {len(scores) - 1} accepted)"
    yield Row(f"{what}: judge calls per rollout", *nth(1, ours, baseline), "calls", 1.0, "value")
    yield Row(f"{what}: wall time", *nth(0, ours, baseline), "s", 0.85)


# --- GEPA runs outside DSPy ------------------------------------------------------------------------


def bench_adapter(quick: bool) -> Iterator[Row]:
    """Evaluate through `as_gepa_adapter`, against what any way of doing it has to wait for."""
    cases = [gepa_runs.case(f"q{number}", "A") for number in range(20)]

    def slow(artifact: str, input: dict[str, Any]) -> str:
        time.sleep(JUDGE_SECONDS)
        return "A"

    def bare() -> float:
        begun = time.perf_counter()
        for case, output in zip(cases, pool.map(lambda case: slow("", case["input"]), cases), strict=True):
            score(case["input"], output, case["expected"])
        return time.perf_counter() - begun

    def evaluated(adapter: Any) -> float:
        begun = time.perf_counter()
        adapter.evaluate(cases, adapter.seed_candidate, capture_traces=True)
        return time.perf_counter() - begun

    runs: list[tuple[str, dict[str, Any], float | None]] = [
        ("", {}, 1.05),
        (", no time-out for the metric", {"timeout": None}, None),
    ]
    with ThreadPoolExecutor(20) as pool:
        for which, options, bound in runs:
            adapter: Any = as_gepa_adapter(score, slow, artifact="", **options)
            samples = in_turn(21 if quick else 101, functools.partial(evaluated, adapter), bare)
            yield Row(f"20 cases of 10 ms at once, against a bare pool{which}", *samples, "s", bound)


def bench_optimize(quick: bool) -> Iterator[Row]:
    """Run gepa.optimize with a model of 20 ms and a judge of 10 ms, and on questions of bank customers."""
    runs = [
        gepa_runs.timed_run(Judge().score, 100 if quick else 400, MODEL_SECONDS)
        for _ in range(3 if quick else 9)
    ]
    least = [batches * (MODEL_SECONDS + JUDGE_SECONDS) for _, batches in runs]
    what = f"gepa.optimize, {runs[0][1]} batches, 20 ms model and 10 ms judge, against its latency"
    yield Row(what, [seconds for seconds, _ in runs], least, "s", 1.08)
    if gepa_runs.BANK_QUESTIONS.exists():
        calls, distinct, rollouts, best = gepa_runs.bank_run(1_000 if quick else 5_000)
        must(best > 0.3, f"nothing was learnt: {best}")
        what = f"bank questions, {rollouts} rollouts to {best:.2f}: judge calls, less what is distinct"
        yield Row(what, [float(calls)], [float(distinct)], "calls", 0.0, "difference")


def evaluate_seconds(
    metric: Any, count: int, model_seconds: float | None = None, program: dspy.Module | None = None
) -> tuple[float, float]:
    """Time `Evaluate`.

    Args:
        metric: Any metric.
        count: Number of examples.
        model_seconds: How long the model takes, as for `ScriptedEngine`.
        program: `None`: a `dspy.Predict`.

    Returns:
        Seconds on the wall clock, and seconds of processor time.
    """
    evaluate = dspy.Evaluate(devset=examples(count), metric=metric, num_threads=THREADS)
    program = program or dspy.Predict("question -> answer")
    with dspy.context(lm=model(answerer(model_seconds))), silence():
        gc.collect()
        wall, processor = time.perf_counter(), time.process_time()
        result = evaluate(program)
        taken = time.perf_counter() - wall, time.process_time() - processor
    must(30 < result.score < 70, f"half of the answers are right, but the mean is {result.score}")
    return taken


def evaluate_ours(options: dict[str, Any], count: int, model_seconds: float | None) -> tuple[float, float]:
    """Time `Evaluate` with a metric of ours, made anew."""
    return evaluate_seconds(as_dspy_metric(score, **options), count, model_seconds)


def bench_evaluate(quick: bool) -> Iterator[Row]:
    """Run `Evaluate` against a metric that gives a bare float."""
    few, many = 1_000, 10_000
    runs: list[tuple[str, int, Any, dict[str, Any], float | None, float | None, int]] = [
        ("against a float", few, bare_float, {}, None, 1.25, 15),
        # Without its time-out our metric never lets other threads run, and nor does such a model.
        ("against a float, no time-out", few, bare_float, {"timeout": None}, None, None, 7),
        ("against a float, a model that lets threads run", few, bare_float, {}, 0.0, None, 7),
        ("against a Prediction by hand", few, by_hand, {}, None, None, 7),
        ("against a float", many, bare_float, {}, None, 1.6, 3),
        ("against a float, no time-out", many, bare_float, {"timeout": None}, None, None, 3),
    ]
    for what, count, against, more, seconds, bound, repeats in runs[:1] if quick else runs:
        ours, baseline = in_turn(
            3 if quick else repeats,
            functools.partial(evaluate_ours, more, count, seconds),
            functools.partial(evaluate_seconds, against, count, seconds),
            warm=count < many,
        )
        what = f"Evaluate, {count:,} examples, {what}"
        yield Row(what, *nth(0, ours, baseline), "s", bound)
        if bound is not None:  # what the wall clock would nearly say if nothing else ran here
            yield Row(f"{what}: processor time", *nth(1, ours, baseline), "s")


def bench_judge(quick: bool) -> Iterator[Row]:
    """Run `Evaluate` with a judge of 10 ms, with and without the default time-out."""
    what = "Evaluate, 10 ms judge, time-out on against off"
    runs: list[tuple[str, float | None, dspy.Module | None, float | None]] = [
        ("no model", None, NoModel(), 1.03),
        ("20 ms model", MODEL_SECONDS, None, None),
    ]
    for which, seconds, program, bound in runs:
        ours, baseline = in_turn(
            3 if quick else 21,
            lambda rest=(seconds, program): evaluate_seconds(as_dspy_metric(Judge().score), 400, *rest)[0],
            lambda rest=(seconds, program): evaluate_seconds(
                as_dspy_metric(Judge().score, timeout=None), 400, *rest
            )[0],
        )
        yield Row(f"{what}, {which}", ours, baseline, "s", bound)


def evaluate_measured(seconds: float) -> float:
    """Time `Evaluate` inside of `measuring()`."""
    with measuring():
        return evaluate_seconds(as_dspy_metric(score), 400, seconds)[0]


def bench_measuring(quick: bool) -> Iterator[Row]:
    """Run `Evaluate` with a model of 20 ms, with and without `measuring()`."""
    ours, baseline = in_turn(
        3 if quick else 15,
        lambda: evaluate_measured(MODEL_SECONDS),
        lambda: evaluate_seconds(as_dspy_metric(score), 400, MODEL_SECONDS)[0],
    )
    yield Row("Evaluate, 20 ms model, measuring on against off", ours, baseline, "s", 1.05)


# --- memory and import -----------------------------------------------------------------------------


def raises_on_some(input: Any, output: Any, expected: Any = None) -> tuple[float, dict[str, str]]:
    """Fail on the answer "?"; else judge as `score` does."""
    if output == "?":
        raise ValueError("no such answer")
    return score(input, output, expected)


def growth(metric: Any, first: int, last: int) -> float:
    """Measure how many KB more are held after `last` rollouts than after `first`."""
    golds = examples(100)
    held = {}
    for number in range(1, last + 1):
        answer = "?" if number % 10 == 0 else "A" if number % 2 else "B"
        gold, pred = golds[number % 100], dspy.Prediction(answer=answer, reasoning=f"rollout {number}")
        metric(gold, pred)
        metric(gold, pred, [], "predict", [])
        if number in (first, last):
            del pred
            gc.collect()
            held[number] = tracemalloc.get_traced_memory()[0]
    return (held[last] - held[first]) / 1e3


def bench_memory(quick: bool) -> Iterator[Row]:
    """Judge many rollouts whose predictions are gone; the metric fails on every tenth."""
    first, last = 10_000, 20_000 if quick else 100_000  # the 1,000 failures that are kept are full at 10,000
    metric = as_dspy_metric(raises_on_some)
    # Twice, and the smaller one counts: the interpreter's table of names grows by 2 MB at some time.
    tracemalloc.start()
    ours, baseline = in_turn(
        2, lambda: growth(metric, first, last), lambda: growth(by_hand, first, last), warm=False
    )
    tracemalloc.stop()
    remembered = float(len(metric.metric._rollouts))
    what = f"memory held after {last:,} rollouts, less after {first:,}"
    a_byte_for_each = (last - first) / 1e3
    yield Row(what, ours, baseline, "KB", a_byte_for_each, "difference", best=True)
    yield Row("rollouts still remembered then", [remembered], [0.0], "", 0.0, "value")


def seconds_of(code: str) -> float:
    """Time a fresh interpreter that runs `code`."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tempfile.gettempdir())
    return time.perf_counter() - begun


def bench_import(quick: bool) -> Iterator[Row]:
    """Import the package in fresh interpreters."""
    for code, against, bound, repeats in (
        ("import skynet_adapters", "pass", 0.2, 15),
        ("from skynet_adapters import Metric, load_cases", "pass", None, 15),
        ("import skynet_adapters.dspy", "import dspy", None, 7),
    ):
        ours, baseline = in_turn(
            3 if quick else repeats,
            lambda code=code: seconds_of(code),
            lambda against=against: seconds_of(against),
        )
        against = "bare Python" if against == "pass" else f"`{against}`"
        yield Row(f"`{code}` against {against}", ours, baseline, "s", bound, "difference")


# --- the table -------------------------------------------------------------------------------------


BENCHMARKS: dict[str, Callable[[bool], Iterator[Row]]] = {
    "call": bench_call,
    "redaction": bench_redaction,
    "feedback": bench_feedback,
    "timeout": bench_timeout,
    "isolation": bench_isolation,
    "gepa": bench_gepa,
    "adapter": bench_adapter,
    "optimize": bench_optimize,
    "evaluate": bench_evaluate,
    "judge": bench_judge,
    "measuring": bench_measuring,
    "memory": bench_memory,
    "import": bench_import,
}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay the cells out in columns, texts to the left and numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def machine() -> dict[str, Any]:
    """Tell where this runs, and how busy it is."""
    return {
        "python": platform.python_version(),
        "dspy": dspy.__version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def main() -> int:
    """Run the benchmarks and print the table."""
    parser = argparse.ArgumentParser(description="Measure as_dspy_metric against hand-written metrics.")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="run this one; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and no 10,000 examples")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something is over its bound")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all samples there")
    options = parser.parse_args()

    for name in ("dspy", "LiteLLM", "gepa", "skynet_adapters"):  # `must` notices what goes wrong
        logging.getLogger(name).setLevel(logging.CRITICAL)
    before = machine()
    rows: list[Row] = []
    for name in options.only or BENCHMARKS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        rows += BENCHMARKS[name](options.quick)
    print(f"Python {before['python']}, dspy {before['dspy']}, {before['cores']} cores, ", end="")
    print(f"load {before['load']} at the start and {machine()['load']} at the end\n")
    print(table([HEADER, *(row.cells() for row in rows)]))
    print(
        "\nSmallest of the repeats for microseconds and KB, else their median. spread: the middle 80 % of the"
    )
    print("repeats, each compared with its neighbour in time. Bounds are for a machine that is idle.")
    if options.json is not None:
        report = {"before": before, "after": machine(), "rows": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(options.strict and any(row.verdict == "over" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
