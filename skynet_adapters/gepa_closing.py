"""What is said at the end of a GEPA run that made nothing better, which GEPA itself leaves to its log.

Built around gepa 0.1.4.
"""

import logging
from typing import Any, cast

from gepa.core.callbacks import (
    CandidateAcceptedEvent,
    CandidateRejectedEvent,
    ErrorEvent,
    EvaluationSkippedEvent,
    IterationEndEvent,
    IterationStartEvent,
    OptimizationEndEvent,
    OptimizationStartEvent,
    ProposalEndEvent,
    ProposalStartEvent,
)

from .gepa_reflection import noted_failures
from .gepa_rollouts import Outcomes

__all__ = ["ClosingCallback"]

_log = logging.getLogger("skynet_adapters")


class ClosingCallback:
    """A callback for `gepa.optimize` that warns at the end when nothing came of the run, and why.

    It counts from the start of each run. A run that raises has said itself what was wrong.

    Args:
        outcomes: Counts what became of the cases.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes
        self._start()

    def _start(self) -> None:
        self._outcomes.begin_again()
        self._iterations = 0
        self._perfect = 0
        self._asked = 0
        self._proposed = 0
        self._accepted = 0
        self._rejected = 0
        self._last_rejection = ""
        self._reflection_failures: list[str] = []
        self._errors: list[str] = []

    def on_optimization_start(self, event: OptimizationStartEvent) -> None:
        """Begin to count; called by GEPA."""
        self._start()

    def on_iteration_start(self, event: IterationStartEvent) -> None:
        """Count an iteration; called by GEPA."""
        self._iterations += 1

    def on_evaluation_skipped(self, event: EvaluationSkippedEvent) -> None:
        """Count a perfect minibatch; called by GEPA."""
        self._perfect += event["reason"] == "all_scores_perfect"

    def on_proposal_start(self, event: ProposalStartEvent) -> None:
        """Count a question to the reflection model, whose failures GEPA swallows; called by GEPA."""
        self._asked += 1
        noted_failures.set(self._reflection_failures)

    def on_proposal_end(self, event: ProposalEndEvent) -> None:
        """Count a proposal; called by GEPA."""
        self._proposed += 1

    def on_candidate_accepted(self, event: CandidateAcceptedEvent) -> None:
        """Count a better candidate; called by GEPA."""
        self._accepted += 1

    def on_candidate_rejected(self, event: CandidateRejectedEvent) -> None:
        """Count a proposal that was refused; called by GEPA."""
        self._rejected += 1
        self._last_rejection = event["reason"]

    def on_error(self, event: ErrorEvent) -> None:
        """Note what ended an iteration; called by GEPA."""
        error = event["exception"]
        self._errors.append(f"{type(error).__name__}: {error}")

    def on_iteration_end(self, event: IterationEndEvent) -> None:
        """End the notes of the reflection model's failures; called by GEPA."""
        noted_failures.set(None)

    def on_optimization_end(self, event: OptimizationEndEvent) -> None:
        """Warn when nothing was accepted, or nothing judged; called by GEPA."""
        if self._accepted and self._outcomes.why_nothing_was_judged() is None:
            return
        found_before = len(event["final_state"].program_candidates) > 1
        what = "ended with the artifact that it began with"
        if found_before:
            best = max(cast("Any", event["final_state"]).program_full_scores_val_set)
            what = f"accepted no new candidate since it was resumed (the best, of {best:.6g}, is from before)"
        if self._accepted:  # acceptance_criterion="improvement_or_equal" takes one failure score for another
            what = "can tell no candidate from another"
        _log.warning("GEPA %s: %s", what, "; ".join(self._reasons(event["total_metric_calls"])))

    def _reasons(self, metric_calls: int) -> list[str]:
        nothing_judged = self._outcomes.why_nothing_was_judged()
        reasons = [] if nothing_judged is None else [nothing_judged]
        if not self._iterations:
            return [
                *reasons,
                f"it stopped before anything was proposed, with {metric_calls} metric calls used; raise "
                "max_metric_calls, or look at what else stops the run",
            ]
        if self._perfect:
            reasons.append(
                f"{self._perfect} of {self._iterations} minibatches were perfect, so that nothing was "
                "proposed (perfect_score, skip_perfect_score); give it harder cases, or a finer score"
            )
        failed = self._asked - self._proposed
        if failed:
            last = f", the last because {self._reflection_failures[-1]}" if self._reflection_failures else ""
            reasons.append(f"the reflection model gave no text for {failed} of {self._asked} proposals{last}")
        if self._rejected and nothing_judged is None:
            reasons.append(
                f"{self._rejected} of {self._proposed} proposals were refused, the last because: "
                f"{self._last_rejection}"
            )
        if self._errors:
            reasons.append(f"{len(self._errors)} iterations ended with an error, the last {self._errors[-1]}")
        return reasons or [f"nothing was proposed in {self._iterations} iterations; GEPA's own log says more"]
