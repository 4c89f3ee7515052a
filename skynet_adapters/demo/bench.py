"""What every run of the demonstration works with, and what is counted while it works."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, NamedTuple

from .. import Case, Split
from .metric import score

__all__ = ["FIRST_INSTRUCTION", "MINIBATCH", "Bench", "Counter", "Counts", "Row", "without_reasons"]

FIRST_INSTRUCTION = (
    "Say which team should answer the support message: account, billing, shipping or technical."
)
"""What every optimiser starts from."""

MINIBATCH = 8
"""Cases for one reflection; with GEPA's default of 3 the outcome hangs more on the seed."""


def without_reasons(input: dict[str, Any], output: str, expected: dict[str, Any] | None = None) -> Any:
    """Score as the metric does and say nothing: the metric of the controls."""
    value, info = score(input, output, expected)
    return value, {"feedback": "Right." if value == 1.0 else "Wrong.", "scores": info["scores"]}


class Counts(NamedTuple):
    """What a run took.

    Attributes:
        rollouts: How often the optimiser ran the program or the texts. The held-out evaluations are
            not among them.
        score_calls: How often the user's `score` ran meanwhile.
        failures: How often there was no score.
        reflections: How many prompts the reflection model got.
    """

    rollouts: int
    score_calls: int
    failures: int
    reflections: int

    def since(self, earlier: "Counts") -> "Counts":
        """Return what was counted since then."""
        return Counts(*(now - then for now, then in zip(self, earlier, strict=True)))


@dataclass(frozen=True)
class Row:
    """What one optimiser did.

    Attributes:
        before: Share of the held-out messages that were sorted right before, 0 to 1.
        after: The same, afterwards.
        spent: What was counted meanwhile.
        artifact: The instruction or prompt afterwards, or the texts of its parts.
        demos: How many worked examples stand in the program's prompt afterwards.
    """

    before: float
    after: float
    spent: Counts
    artifact: str | dict[str, str]
    demos: int = 0


class Counter:
    """Counts from any thread."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count one more."""
        with self._lock:
            self.count += 1

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its calls counted."""

        @wraps(function)
        def counting(*arguments: Any) -> Any:
            self.add()
            return function(*arguments)

        return counting


@dataclass(frozen=True)
class Bench:
    """The cases, the models, what a run may spend, and the counters.

    Attributes:
        cases: The messages to learn from, to choose by, and held out.
        task_lm: The `dspy.LM` that sorts messages.
        reflection_lm: The `dspy.LM` that writes instructions.
        budget: Rollouts that each run may spend.
        threads: How many rollouts run at the same time.
        seed: Seed of the optimisers.
        rollouts: Counts the rollouts, held-out ones too.
        score_calls: Counts the calls of the user's `score`.
    """

    cases: Split[Case]
    task_lm: Any
    reflection_lm: Any
    budget: int
    threads: int
    seed: int
    rollouts: Counter = field(default_factory=Counter)
    score_calls: Counter = field(default_factory=Counter)

    def counts(self, metric: Any) -> Counts:
        """Return what was counted so far, with the metric's failures."""
        return Counts(
            self.rollouts.count,
            self.score_calls.count,
            len(metric.failures),
            len(self.reflection_lm.history),
        )
