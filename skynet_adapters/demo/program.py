"""The first part: a DSPy program, optimised with one metric by two of DSPy's optimisers and a control."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import dspy as untyped_dspy
from dspy.utils.callback import BaseCallback

from .. import as_dspy_metric, to_examples
from . import models
from .bench import FIRST_INSTRUCTION, MINIBATCH, Bench, Counter, Row, without_reasons
from .metric import score

__all__ = ["ProgramRuns", "optimise_program"]

dspy = cast("Any", untyped_dspy)  # most of what is used here has no type hints


@dataclass(frozen=True)
class ProgramRuns:
    """What came of the program.

    Attributes:
        gepa: `dspy.GEPA` with the metric.
        few_shot: `BootstrapFewShotWithRandomSearch` with the same metric object.
        control: `dspy.GEPA` with the same scores, and only "Right." or "Wrong." as feedback.
        reflected_case: The first wrong answer as it stood in a reflection prompt: `Inputs`,
            `Generated Outputs` and `Feedback`. `None` where there was none.
        failure_texts: What went wrong in the metric.
    """

    gepa: Row
    few_shot: Row
    control: Row
    reflected_case: dict[str, Any] | None
    failure_texts: list[str]


def optimise_program(bench: Bench, say: Callable[[str], None]) -> ProgramRuns:
    """Optimise the program in each of the three ways.

    Args:
        bench: What to work with.
        say: Called with a line of text before each step.

    Returns:
        What came of it.
    """
    runs = _Runs(bench)
    metric = as_dspy_metric(bench.score_calls.counted(score))
    control_metric = as_dspy_metric(bench.score_calls.counted(without_reasons))
    callbacks = [*dspy.settings.callbacks, _RolloutCallback(bench.rollouts)]
    with dspy.context(lm=bench.task_lm, callbacks=callbacks):
        say("Evaluating the program on the held-out messages")
        before = runs.held_out(runs.program, metric)
        say("Optimising it with GEPA")
        gepa = runs.row(runs.gepa, metric, before)
        reflected_case = _first_wrong_case(bench.reflection_lm)
        say("Optimising it with BootstrapFewShotWithRandomSearch, same metric")
        few_shot = runs.row(runs.few_shot, metric, before)
        say('Optimising it with GEPA, feedback only "Right." or "Wrong."')
        control = runs.row(runs.gepa, control_metric, before)
    failures = [*metric.failures, *control_metric.failures]
    return ProgramRuns(gepa, few_shot, control, reflected_case, [failure.text for failure in failures])


class _RolloutCallback(BaseCallback):
    """Counts the runs of the program; DSPy calls it for its own modules too, GEPA's proposer for one."""

    def __init__(self, rollouts: Counter) -> None:
        self._rollouts = rollouts

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if isinstance(instance, dspy.Predict) and "label" in instance.signature.output_fields:
            self._rollouts.add()


class _Runs:
    """The program, the messages as DSPy's examples, and the optimisers."""

    def __init__(self, bench: Bench) -> None:
        self.program = dspy.Predict(dspy.Signature("message -> label", FIRST_INSTRUCTION))
        self._bench = bench
        self._train, self._val, self._test = (to_examples(part) for part in bench.cases)

    def held_out(self, program: Any, metric: Any) -> float:
        """Return the share of the held-out messages that the program sorts right."""
        evaluate = dspy.Evaluate(devset=self._test, metric=metric, num_threads=self._bench.threads)
        return evaluate(program).score / 100

    def gepa(self, metric: Any) -> Any:
        """Return the program as GEPA leaves it."""
        optimiser = dspy.GEPA(
            metric=metric,
            reflection_lm=self._bench.reflection_lm,
            max_metric_calls=self._bench.budget,
            reflection_minibatch_size=MINIBATCH,
            num_threads=self._bench.threads,
            seed=self._bench.seed,
        )
        return optimiser.compile(self.program, trainset=self._train, valset=self._val)

    def few_shot(self, metric: Any) -> Any:
        """Return the program as the search over worked examples leaves it."""
        # A candidate costs all validation messages to judge, and about a quarter of the training
        # messages to collect demos from. The search tries three more than it is told.
        affordable = self._bench.budget // (len(self._val) + len(self._train) // 4) - 3
        optimiser = dspy.BootstrapFewShotWithRandomSearch(
            metric=metric, num_candidate_programs=max(1, affordable), num_threads=self._bench.threads
        )
        return optimiser.compile(self.program, trainset=self._train, valset=self._val)

    def row(self, optimise: Callable[[Any], Any], metric: Any, before: float) -> Row:
        """Run one optimiser between two looks at the counters."""
        earlier = self._bench.counts(metric)
        program = optimise(metric)
        spent = self._bench.counts(metric).since(earlier)
        after = self.held_out(program, metric)
        return Row(before, after, spent, program.signature.instructions, len(program.demos))


def _first_wrong_case(reflection_lm: Any) -> dict[str, Any] | None:
    """Cut a case with a wrong answer out of the prompts that the reflection model got."""
    for call in reflection_lm.history:
        for message in call["messages"] or ():
            if "[[ ## examples_with_feedback ## ]]\n[{" in str(message["content"]):
                for case in models.read_reflection_prompt(message["content"])[1]:
                    if "Expected '" in case["Feedback"]:
                        return case
    return None
