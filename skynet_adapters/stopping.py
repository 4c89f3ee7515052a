"""When a metric's failures stop a run. Knows no metric and no target."""

import threading
from collections.abc import Callable

__all__ = ["StopRule"]


class StopRule:
    """Count failures of a function, and decide when they stop the run.

    Args:
        name: Of the metric, for the reasons.
        stop_after: After so many failures without one success ever the function is tried once more; where
            that fails too, the run has to stop. `None`: never.
        in_a_row: The run has to stop after so many failures in a row. `None`: never.

    Attributes:
        has_succeeded: Whether the function ever gave a judgement.
        row: How many failures came since the last success.
        run: Number of the run that failures count in.
    """

    def __init__(self, name: str, stop_after: int | None, in_a_row: int | None) -> None:
        self._name = name
        self._stop_after = stop_after
        self._in_a_row = in_a_row
        self._lock = threading.Lock()
        self.has_succeeded = False
        self.run = 0
        self.begin_again()

    def begin_again(self) -> None:
        """Forget the failures; what is under way belongs to the run before."""
        with self._lock:
            self.run += 1
            self.row = 0
            self._failed = 0
            self._tried = False  # whether the trial has begun
            self._reason: str | None = None  # once it has failed
            self._last = ""

    @property
    def is_on_trial(self) -> bool:
        """Whether so many calls have failed that the function is tried once more, or was in vain."""
        return self._tried and not self.has_succeeded

    def failed(self, run: int, text: str, works: Callable[[], bool | None]) -> None:
        """Count one failure.

        Args:
            run: In which run it began; one of a run that is over does not count.
            text: What happened.
            works: Tries the function on what it has to accept; `None` where there is nothing to try.
        """
        with self._lock:
            if run != self.run:
                return
            self._last = text
            self.row += 1
            if self.has_succeeded:
                return
            self._failed += 1
            if self._stop_after is None or self._failed < self._stop_after or self._tried:
                return
            self._tried = True
        worked = works()  # outside the lock, since it calls the user's function
        if worked:
            self.has_succeeded = True  # it is the program that is bad
            return
        tried = "" if worked is None else ", and on the expected value as output too"
        with self._lock:
            if run == self.run:
                self._reason = (
                    f"metric {self._name!r} failed on each of the first {self._stop_after} rollouts{tried}. "
                    f"The last failure: {self._last.rstrip('.')}. Mend it, or pass stop_after=None to run on."
                )

    def reason(self) -> str | None:
        """Tell why the run has to stop, or `None`. Success at any time takes the first reason away."""
        if self._in_a_row is not None and self.row >= self._in_a_row:
            return (
                f"metric {self._name!r} failed {self.row} times in a row "
                f"(max_failures_in_a_row={self._in_a_row}), last with: {self._last}"
            )
        return None if self.has_succeeded else self._reason
