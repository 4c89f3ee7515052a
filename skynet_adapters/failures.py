"""What went wrong so far in a run, counted and kept."""

import logging
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Failure", "Failures", "closing_warning"]

_log = logging.getLogger("skynet_adapters")

_KEPT_FAILURES = 1_000


@dataclass(frozen=True, slots=True)
class Failure:
    """One case without a judgement.

    Attributes:
        case: The case's input, shortened.
        text: What happened.
        kind: Class name of the error: `MetricError`, `MetricReturnError`, `MetricTimeoutError` or
            `ProgramFailedError`.
    """

    case: str
    text: str
    kind: str


class Failures:
    """What went wrong so far: `len()` counts all, iteration gives the first 1,000.

    Attributes:
        kinds: How often each kind of `Failure` came.

    Example:
        >>> from skynet_adapters import Metric
        >>> metric = Metric(lambda input, output: 0.5)
        >>> metric.score_case({"q": "?"}, "a").error is not None
        True
        >>> len(metric.failures), [failure.kind for failure in metric.failures]
        (1, ['MetricReturnError'])
    """

    def __init__(self, metric: object = None) -> None:
        self._metric = None if metric is None else weakref.ref(metric)
        self._kept: list[Failure] = []
        self._count = 0
        self.kinds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        metric = None if self._metric is None else self._metric()
        if metric is None:
            return Failures, ()
        return operator.attrgetter("failures"), (metric,)  # those of the metric's copy, none yet

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Failure]:
        return iter(tuple(self._kept))

    def __repr__(self) -> str:
        return f"<{self._count} failure{'' if self._count == 1 else 's'}>"

    def add(self, failure: Failure) -> int:
        """Count one more and keep it while there is room; returns the new count."""
        with self._lock:
            self._count += 1
            self.kinds[failure.kind] += 1
            if len(self._kept) < _KEPT_FAILURES:
                self._kept.append(failure)
            return self._count

    def clear(self) -> None:
        """Forget all and count from 0 again."""
        with self._lock:
            self._count = 0
            self.kinds.clear()
            self._kept.clear()


def closing_warning(name: str, failures: Failures) -> None:
    """Say at the end how many cases have no judgement, where more than the first, named one do."""
    if len(failures) > 1:
        counted = ", ".join(f"{count} {kind}" for kind, count in failures.kinds.items())
        _log.warning("metric %r: %d cases have no judgement (%s)", name, len(failures), counted)
