# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a metric does in DSPy stays inside it, and what stops a run stops what it has queued.

Built around dspy 3.4.1. Where a line answers one of its quirks, a comment names it.
"""

import sys
import threading
from typing import Any

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.utils.parallelizer import ParallelExecutor

from .dspy_measuring import APART, INSIDE_METRIC, apart_here, is_in_rollout
from .dspy_models import NOT_THE_PROGRAMS, BilledCalls, model_behind, model_of_modules, takes_messages
from .judge_llm import chosen_models
from .metric import Metric, isolations

__all__ = ["cancel_queued_work"]


class _DspyIsolation:
    """Keep the metric's own model calls out of the program's trace, usage and history.

    `dspy.context` does the same in five times the time, and freezes all other settings too. The
    variable is the one that it sets, and DSPy's worker threads inherit it (dspy 3.4.1).
    """

    _DEPTH = "skynet_adapters_metric_depth"

    def enter(self, metric: Metric, is_awaited: bool) -> Any:
        calls = BilledCalls()
        calls.bill = metric.bill
        overrides: Any = thread_local_overrides.get() | NOT_THE_PROGRAMS
        overrides["trace"], overrides["caller_modules"] = [], [calls]
        overrides[INSIDE_METRIC], overrides[APART] = metric.bill, apart_here(metric.was_made_in_rollout)
        model = model_of_modules()
        if model is not None:
            overrides["lm"] = model
        if is_awaited:
            overrides[self._DEPTH] = self.depth() + 1
        return thread_local_overrides.set(overrides), calls, metric

    def leave(self, token: Any) -> None:
        before, calls, metric = token
        if calls:  # asked about while the model that is set here is still the one they went to
            name = getattr(dspy.settings.lm, "model", None)
            if any(call.get("model") == name for call in calls):
                metric.note_model(str(name))
                chosen = model_behind(chosen_models().metric_lm)
                if chosen is not None and not takes_messages(chosen):
                    metric.warn_once(
                        "function as model",
                        "metric %r has DSPy modules, which asked the model %s: they cannot ask a metric_lm= "
                        "that is a function, as llm() can. Give a dspy.LM or a model's name.",
                        metric.name,
                        name,
                    )
        thread_local_overrides.reset(before)

    def inside(self) -> bool:
        return INSIDE_METRIC in thread_local_overrides.get()

    def in_rollout(self) -> bool:
        return is_in_rollout()

    def depth(self) -> int:
        return thread_local_overrides.get().get(self._DEPTH, 0)


isolations.append(_DspyIsolation())


class _SetForWorkers(threading.Event):
    """A flag that only the threads of one pool see as set."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self._pool = pool

    def is_set(self) -> bool:
        return super().is_set() or threading.current_thread().name.startswith(self._pool)


def cancel_queued_work() -> None:
    """Keep DSPy's executor from running what it has queued, when the run is about to stop.

    The `MetricBroken` that follows ends the executor's main loop, but not its queue (dspy 3.4.1,
    `ParallelExecutor._execute_parallel`): every program call in it would still be paid. Its workers
    look at a cancel flag before each item. When the main loop sees that flag too, it raises
    "Execution cancelled" in place of the fault's name, so only the workers may see it as set.
    """
    pool, _, number = threading.current_thread().name.rpartition("_")
    if not number.isdigit():
        return  # no thread of a pool: there is no queue
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        executor = frame.f_locals.get("self") if frame.f_code.co_name == "worker" else None
        if isinstance(executor, ParallelExecutor):
            executor.cancel_jobs = _SetForWorkers(f"{pool}_")
            return
        frame = frame.f_back
