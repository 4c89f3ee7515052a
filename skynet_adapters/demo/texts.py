"""The second part: a prompt by `optimize_artifact`, a control, and two texts by `optimize_anything`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gepa.optimize_anything import (
    EngineConfig,
    GEPAConfig,
    ReflectionConfig,
    optimize_anything,  # pyright: ignore[reportUnknownVariableType]
)

from .. import Metric, as_gepa_evaluator, as_reflection_lm, optimize_artifact
from . import models
from .bench import FIRST_INSTRUCTION, MINIBATCH, Bench, Row, without_reasons
from .metric import score

__all__ = ["FIRST_PARTS", "TextRuns", "optimise_texts"]

FIRST_PARTS = {"rules": FIRST_INSTRUCTION, "form": "Name the team in one short sentence."}
"""The two texts that `optimize_anything` starts from; the second one asks for what the metric refuses."""

Artifact = str | dict[str, str]


@dataclass(frozen=True)
class TextRuns:
    """What came of the texts.

    Attributes:
        prompt: The prompt, by `optimize_artifact`.
        control: The prompt with the same scores, and only "Right." or "Wrong." as feedback.
        parts: The two texts, by `optimize_anything`.
        part_feedback: For each of the two texts the first feedback that its reflection prompt held.
        failure_texts: What went wrong in the metric, or in asking the model.
    """

    prompt: Row
    control: Row
    parts: Row
    part_feedback: dict[str, str]
    failure_texts: list[str]


def optimise_texts(bench: Bench, say: Callable[[str], None]) -> TextRuns:
    """Optimise the prompt, with the metric and with the control's, and the two texts.

    Args:
        bench: What to work with.
        say: Called with a line of text before each step.

    Returns:
        What came of it.
    """
    runs = _Runs(bench)
    metric = Metric(bench.score_calls.counted(score))
    control_metric = Metric(bench.score_calls.counted(without_reasons))
    say("Optimising a prompt with optimize_artifact")
    prompt = runs.row(runs.optimised_prompt, metric, FIRST_INSTRUCTION)
    say('Optimising the prompt, feedback only "Right." or "Wrong."')
    control = runs.row(runs.optimised_prompt, control_metric, FIRST_INSTRUCTION)
    say("Optimising an artifact of two parts with optimize_anything, same metric")
    asked_before = len(bench.reflection_lm.history)
    parts = runs.row(runs.optimised_parts, metric, FIRST_PARTS)
    part_feedback = _first_feedback(bench.reflection_lm.history[asked_before:])
    failures = [*metric.failures, *control_metric.failures]
    return TextRuns(prompt, control, parts, part_feedback, [failure.text for failure in failures])


class _Runs:
    """How a text answers a message, and the ways to better texts."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._run = bench.rollouts.counted(self._answer)

    def _answer(self, artifact: Artifact, input: dict[str, Any]) -> str:
        """Answer one message; this is the `run` of every call here, as a user writes it."""
        message = f"<message>\n{input['message']}\n</message>"
        if isinstance(artifact, str):
            prompt = f"{artifact}\n\n{message}"
        else:
            prompt = f"{artifact['rules']}\n\n{message}\n\n{artifact['form']}"
        answer = self._bench.task_lm(prompt)[0]
        return (answer if isinstance(answer, str) else answer["text"]).strip()  # a dict where it reasons

    def optimised_prompt(self, prompt: str, metric: Metric) -> str:
        """Return what GEPA makes of the prompt."""
        best = optimize_artifact(
            prompt,
            self._run,
            metric,
            self._bench.cases.train,
            self._bench.cases.val,
            reflection_lm=self._bench.reflection_lm,
            reflection_minibatch_size=MINIBATCH,
            max_metric_calls=self._bench.budget,
            max_workers=self._bench.threads,
            seed=self._bench.seed,
        )
        return best.artifact

    def optimised_parts(self, parts: dict[str, str], metric: Metric) -> dict[str, str]:
        """Return what GEPA makes of the two texts, of which it rewrites one at a time."""
        config = GEPAConfig(
            engine=EngineConfig(max_metric_calls=self._bench.budget, seed=self._bench.seed),
            reflection=ReflectionConfig(
                reflection_lm=as_reflection_lm(self._bench.reflection_lm),
                reflection_minibatch_size=MINIBATCH,
            ),
        )
        with as_gepa_evaluator(metric, self._run, max_workers=self._bench.threads) as evaluator:
            best: Any = optimize_anything(
                parts,
                batch_evaluator=evaluator.batch,
                dataset=self._bench.cases.train,
                valset=self._bench.cases.val,
                config=config,
            ).best_candidate
        return best

    def held_out(self, artifact: Artifact, metric: Metric) -> float:
        """Return the share of the held-out messages that the texts sort right."""
        with as_gepa_evaluator(metric, self._run, max_workers=self._bench.threads) as evaluator:
            judged = evaluator.batch([(artifact, case) for case in self._bench.cases.test])
        return sum(value for value, _ in judged) / len(judged)

    def row(self, optimise: Callable[[Any, Metric], Artifact], metric: Metric, artifact: Artifact) -> Row:
        """Run one optimiser between two looks at the counters."""
        before = self.held_out(artifact, metric)
        earlier = self._bench.counts(metric)
        best = optimise(artifact, metric)
        spent = self._bench.counts(metric).since(earlier)
        return Row(before, self.held_out(best, metric), spent, best)


def _first_feedback(history: list[dict[str, Any]]) -> dict[str, str]:
    """Cut the first feedback for each part out of the prompts that the reflection model got."""
    found: dict[str, str] = {}
    for call in history:
        text, feedback = models.read_gepa_prompt(str(call["prompt"] or call["messages"][-1]["content"]))
        for part, first_text in FIRST_PARTS.items():
            if text == first_text and feedback:
                found.setdefault(part, feedback[0])
    return found
