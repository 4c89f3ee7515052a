"""Call metrics from many threads for long, and check that nothing hangs, gets lost, doubles or grows.

Run it with `make soak`, options in ARGS: `make soak ARGS="--calls 10000 --threads 16"`. It exits with 1 when
a check fails.
"""

import argparse
import asyncio
import faulthandler
import itertools
import logging
import os
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Before DSPy is imported: its cache and LiteLLM's price list are read then.
os.environ.setdefault("DSPY_CACHEDIR", tempfile.mkdtemp(prefix="skynet-adapters-soak-"))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import dspy

from skynet_adapters import as_dspy_metric

Memo = Literal["rollout", "content"]

EVERY = 10_000  # calls between two looks at the memory
SIDE_BY_SIDE = 8  # calls in a row with the same content, so that several of them meet
MOST_CONTENTS = 2_500  # fewer than the memory by content keeps, so that each is judged once
ROUNDS = 5  # how often they are gone through, at least
STUCK_SECONDS = 60.0  # without one call that ends, beside the time-outs
LATE = 0.123456  # what a call says that comes back after it was given up

# What became of a call.
RIGHT, FAILED, TIMED_OUT, WRONG = "right", "failed", "timed out", "wrong"


def right_score(question: str) -> float:
    """Give the one score that a question must have."""
    return zlib.crc32(question.encode()) / 2**32


class Judge:
    """A metric that is right, but for some first calls of a case, which raise or hang.

    Args:
        timeout: The metric's; what hangs does so for twice as long.
        cases: How many there are, so that the books are as large at the beginning as at the end.
    """

    def __init__(self, timeout: float, cases: int) -> None:
        self._hang_seconds = 2 * timeout
        self._lock = threading.Lock()
        self.calls = 0
        self.judged = bytearray(cases)  # judgements of each case
        self.faults = bytearray(cases)  # and calls that raised or hung
        self._hanging = 0
        self.most_hanging = 0

    def _begin(self, question: str) -> str:
        """Count a call, and tell what becomes of it."""
        with self._lock:
            self.calls += 1
            number = int(question[1:])
            fault = fault_of(question)
            if fault and not self.faults[number]:
                self.faults[number] += 1
                if fault == "hangs":
                    self._hanging += 1
                    self.most_hanging = max(self.most_hanging, self._hanging)
                return fault
            self.judged[number] += 1
            return ""

    def _end_of_hang(self) -> tuple[float, dict[str, str]]:
        with self._lock:
            self._hanging -= 1
        return LATE, {"feedback": "Too late."}

    def score(self, input: Any, output: Any, expected: Any = None) -> tuple[float, dict[str, str]]:
        """Judge one case."""
        question = input["question"]
        fault = self._begin(question)
        if fault == "raises":
            raise ValueError(f"no judgement of {question}")
        if fault == "hangs":
            time.sleep(self._hang_seconds)
            return self._end_of_hang()
        return right_score(question), {"feedback": f"About {question}."}

    async def score_async(self, input: Any, output: Any, expected: Any = None) -> Any:
        """Judge one case, as a coroutine that gives way to others."""
        question = input["question"]
        fault = self._begin(question)
        await asyncio.sleep(0)
        if fault == "raises":
            raise ValueError(f"no judgement of {question}")
        if fault == "hangs":
            try:
                await asyncio.sleep(self._hang_seconds)
            finally:
                late = self._end_of_hang()
            return late
        return right_score(question), {"feedback": f"About {question}."}


def fault_of(question: str) -> Literal["raises", "hangs", ""]:
    """Tell what the first call for a question does: one in 100 raises, one in 1,000 hangs."""
    lot = zlib.crc32(b"fault" + question.encode()) % 1000
    return "hangs" if lot == 0 else "raises" if lot < 11 else ""


@dataclass
class Sample:
    """What the process holds at some moment."""

    calls: int
    memory: float | None  # MB
    files: int | None
    helpers: int
    loops: int


def sample(calls: int) -> Sample:
    """Look at this process; memory and files are known on Linux alone."""
    names = [thread.name for thread in threading.enumerate()]
    memory = files = None
    if Path("/proc/self/statm").exists():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        files = len(os.listdir("/proc/self/fd"))
    return Sample(
        calls, memory, files, names.count("skynet-adapters-call"), names.count("skynet-adapters-loop")
    )


@dataclass
class Soak:
    """One kind of metric, called `calls` times by `threads` threads."""

    memo: Memo
    is_async: bool
    calls: int
    threads: int
    timeout: float
    outcomes: Counter[str] = field(default_factory=Counter[str])
    samples: list[Sample] = field(default_factory=list[Sample])
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Say which metric this is."""
        return f'memo="{self.memo}", {"async" if self.is_async else "plain"}'

    def run(self) -> None:
        """Call, and look at the process meanwhile."""
        self.judge = Judge(self.timeout, self._cases)
        score = self.judge.score_async if self.is_async else self.judge.score
        # The first five might all be faults.
        self.metric = as_dspy_metric(score, memo=self.memo, timeout=self.timeout, stop_after=None)
        one = self._rollout if self.memo == "rollout" else self._content
        begun = time.perf_counter()
        self._work(one)
        self.seconds = time.perf_counter() - begun

    def _work(self, one: Callable[[int], list[str]]) -> None:
        numbers = itertools.count()
        done: deque[str] = deque()  # appending is atomic; one item for each call
        broken: list[BaseException] = []

        def work() -> None:
            try:
                while next(numbers) * self._calls_of_one < self.calls:
                    done.extend(one(next(self._order)))
            except BaseException as error:
                broken.append(error)

        self._order = itertools.count()
        workers = [threading.Thread(target=work, daemon=True) for _ in range(self.threads)]
        for worker in workers:
            worker.start()
        counted, last_end = 0, time.monotonic()
        while any(worker.is_alive() for worker in workers) or done:
            time.sleep(0.05)
            while done:
                self.outcomes[done.popleft()] += 1
                counted += 1
                last_end = time.monotonic()
            if counted >= EVERY * (len(self.samples) + 1):
                self.samples.append(sample(counted))
            if time.monotonic() - last_end > STUCK_SECONDS + 4 * self.timeout:
                faulthandler.dump_traceback(all_threads=True)
                print(f"FAILED  {self.name}: no call has ended for {STUCK_SECONDS:g} s, after {counted:,}")
                os._exit(1)  # the threads that are stuck would hold up the end of the process
        self.samples.append(sample(counted))
        if broken:
            raise broken[0]

    @property
    def _calls_of_one(self) -> int:
        return 2 if self.memo == "rollout" else 1

    @property
    def _cases(self) -> int:
        """How many rollouts or contents there are."""
        if self.memo == "rollout":
            return self.calls // 2
        return max(min(MOST_CONTENTS, self.calls // SIDE_BY_SIDE // ROUNDS), 1)

    def _rollout(self, number: int) -> list[str]:
        """Judge a new rollout, and ask for its text as dspy.GEPA does."""
        question = f"q{number}"
        example = dspy.Example(question=question, answer="A").with_inputs("question")
        answer = dspy.Prediction(answer="A")
        scored = self.metric(example, answer)
        told = self.metric(example, answer, None, "predict", [])
        outcome = self._outcome(question, scored)
        same = float(told) == float(scored) and told.feedback == scored.feedback
        return [outcome, outcome if same else WRONG]

    def _content(self, number: int) -> list[str]:
        """Judge an answer that others give too."""
        question = f"q{number // SIDE_BY_SIDE % self._cases}"
        example = dspy.Example(question=question, answer="A").with_inputs("question")
        return [self._outcome(question, self.metric(example, dspy.Prediction(answer="A")))]

    def _outcome(self, question: str, result: Any) -> str:
        if result.error is None:
            is_right = float(result) == right_score(question) and f"About {question}." in result.feedback
            return RIGHT if is_right else WRONG
        # A time-out must come from what hangs, and everything else from what raises.
        late = type(result.error).__name__ == "MetricTimeoutError"
        expected = fault_of(question) == ("hangs" if late else "raises")
        if not expected or float(result) != 0.0:
            return WRONG
        return TIMED_OUT if late else FAILED

    # --- what came of it ---------------------------------------------------------------------

    @property
    def growth(self) -> float | None:
        """MB for 10,000 calls: the slope over the last two thirds of the run; `None`: too short to tell."""
        late = self.samples[max(len(self.samples) // 3, 1) :]
        points = [(one.calls / EVERY, one.memory) for one in late if one.memory is not None]
        if len(points) < 4:
            return None
        x_mean = sum(x for x, _ in points) / len(points)
        y_mean = sum(y for _, y in points) / len(points)
        return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)

    def faults(self, most_growth: float) -> Iterator[str]:
        """Say what is not as it must be."""
        counted, judge = self.outcomes.total(), self.judge
        if counted != self.calls:
            yield f"{counted:,} of {self.calls:,} calls gave a result"
        if self.outcomes[WRONG]:
            yield f"{self.outcomes[WRONG]:,} results are not those of their case"
        twice = sum(count > 1 for count in judge.judged)
        if twice:
            yield f"{twice:,} cases were judged more than once"
        if self.memo == "rollout":
            if judge.calls != self._cases:
                yield f"{judge.calls:,} judge calls for {self._cases:,} rollouts"
            left = len(self.metric.metric._rollouts or ())
            if left > self.threads:
                yield f"{left:,} rollouts are remembered whose answers are gone"
        else:
            # Where the first call failed, all others may have waited for it, and nobody has asked again.
            lost = sum(not judge.judged[n] and not fault_of(f"q{n}") for n in range(self._cases))
            if lost:
                yield f"{lost:,} contents were never judged"
            if judge.calls > self._cases + sum(judge.faults):
                yield f"{judge.calls:,} judge calls for {self._cases:,} contents"
        # One for each caller, one for each call that hangs, and what is about to end.
        if self.most_helpers > self.threads + judge.most_hanging + 8:
            yield f"{self.most_helpers} helper threads for {self.threads} callers"
        if max(one.loops for one in self.samples) > 4:
            yield f"{max(one.loops for one in self.samples)} event loops at once"
        if self.growth is not None and self.growth > most_growth:
            yield f"memory grows by {self.growth:.2f} MB in {EVERY:,} calls"
        files = [one.files for one in self.samples if one.files is not None]
        if files and files[-1] > files[0] + 16:
            yield f"{files[-1] - files[0]} more open files at the end than after {EVERY:,} calls"

    @property
    def most_helpers(self) -> int:
        """Most helper threads that were seen at once."""
        return max(one.helpers for one in self.samples)

    def row(self) -> list[str]:
        """Give the cells of the table."""
        last = self.samples[-1]
        return [
            self.name,
            f"{self.outcomes.total():,}",
            f"{self.seconds:.1f}",
            f"{self.judge.calls:,}",
            f"{self._cases:,}",
            f"{self.outcomes[FAILED]:,}",
            f"{self.outcomes[TIMED_OUT]:,}",
            f"{self.outcomes[WRONG]:,}",
            "" if self.growth is None else f"{self.growth:+.2f}",
            f"{self.most_helpers}",
            f"{max(one.loops for one in self.samples)}",
            "" if last.files is None else f"{last.files}",
        ]


HEADER = [
    *("metric", "calls", "s", "judge calls", "cases", "failed", "timed out", "wrong"),
    *("MB per 10,000", "helpers", "loops", "files"),
]


def table(rows: list[list[str]]) -> str:
    """Lay the cells out in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    """Run all four kinds of metric and print the table."""
    parser = argparse.ArgumentParser(description="Call metrics from many threads for long, and check.")
    parser.add_argument("--calls", type=int, default=100_000, help="for each kind of metric")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=2.0, help="the metric's, in seconds")
    parser.add_argument("--growth", type=float, default=0.5, help="MB per 10,000 calls that are too many")
    options = parser.parse_args()

    for name in ("dspy", "LiteLLM", "skynet_adapters"):  # some failures are wanted here
        logging.getLogger(name).setLevel(logging.CRITICAL)
    soaks: list[Soak] = []
    for memo, is_async in itertools.product(("rollout", "content"), (False, True)):
        soak = Soak(memo, is_async, options.calls // 2 * 2, options.threads, options.timeout)
        print(f"{soak.name} ...", file=sys.stderr, flush=True)
        soak.run()
        soaks.append(soak)
    print(table([HEADER, *(soak.row() for soak in soaks)]))
    faults = [f"{soak.name}: {fault}" for soak in soaks for fault in soak.faults(options.growth)]
    for fault in faults:
        print(f"FAILED  {fault}")
    if not faults:
        print(f"Every check passed: {options.threads} threads, time-out {options.timeout:g} s.")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
