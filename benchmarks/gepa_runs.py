"""What the benchmarks of `as_gepa_adapter` run: batches of cases, and whole runs of gepa.optimize."""

import csv
import itertools
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gepa

from skynet_adapters import as_gepa_adapter, as_gepa_dataset, as_reflection_lm

BANK_QUESTIONS = Path(__file__).resolve().parents[2] / "shared" / "data" / "banking77_test.csv"
INTENTS = 8

Score = Callable[..., tuple[float, dict[str, str]]]


class Quiet:
    """A logger for GEPA that writes nothing."""

    def log(self, message: str) -> None:
        """Drop a line."""


class Batches:
    """A callback of GEPA that counts the batches that were evaluated one after another."""

    def __init__(self) -> None:
        self.count = 0

    def on_evaluation_end(self, event: Any) -> None:
        """Count a minibatch."""
        self.count += 1

    def on_valset_evaluated(self, event: Any) -> None:
        """Count a candidate's evaluation on the validation set."""
        self.count += 1


def case(text: str, answer: str) -> dict[str, Any]:
    """Make a case that asks for one answer."""
    return {"input": {"text": text}, "expected": {"answer": answer}}


def timed_run(score: Score, budget: int, model_seconds: float) -> tuple[float, int]:
    """Run gepa.optimize with a model that takes its time; gives the seconds and the number of batches."""

    def run(artifact: str, input: dict[str, Any]) -> str:
        time.sleep(model_seconds)
        return "A" if zlib.crc32(f"{artifact} {input}".encode()) % 2 else "B"

    batches = Batches()
    numbers = itertools.count(1)
    cases = as_gepa_dataset(case(f"q{number}", "A") for number in range(20))
    with as_gepa_adapter(score, run, artifact="Answer.") as adapter:
        begun = time.perf_counter()
        gepa.optimize(
            adapter.seed_candidate,
            cases,
            cases,
            adapter=adapter,
            reflection_lm=as_reflection_lm(lambda prompt: f"Instruction {next(numbers)}."),
            max_metric_calls=budget,
            callbacks=[batches],
            logger=Quiet(),
        )
        return time.perf_counter() - begun, batches.count


def bank_run(budget: int) -> tuple[int, int, int, float]:
    """Learn the intents of bank questions, where each judgement is remembered by content.

    Returns:
        Judge calls, distinct (input, output, expected), rollouts, and the best mean score.
    """
    with BANK_QUESTIONS.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    intents = list(dict.fromkeys(intent for _, intent in rows))[:INTENTS]
    rows = [row for row in rows if row[1] in intents]
    train, val = ([case(*row) for row in rows[first::8]] for first in (0, 1))
    judged: set[tuple[str, str, str]] = set()
    rollouts = itertools.count()

    def run(artifact: str, input: dict[str, Any]) -> str:
        """Answer with the first rule of the artifact, `word: intent`, that the question has the word of."""
        next(rollouts)
        words = set(re.findall(r"\w+", input["text"].lower()))
        rules = (line.split(": ") for line in artifact.splitlines() if ": " in line)
        output = next((intent for word, intent in rules if word in words), "unknown")
        judged.add((input["text"], output, by_text[input["text"]]))
        return output

    def score(input: Any, output: Any, expected: Any = None) -> tuple[float, dict[str, str]]:
        if output == expected["answer"]:
            return 1.0, {"feedback": "Right."}
        word = max(re.findall(r"\w+", input["text"].lower()), key=len)
        return 0.0, {"feedback": f"Say {expected['answer']} where there is the word {word}."}

    def reflect(prompt: str) -> str:
        """Add a rule for each text of feedback, before the others."""
        rules = re.findall(r"Say (\w+) where there is the word (\w+)\.", prompt)
        return "\n".join(
            ["```", *(f"{word}: {intent}" for intent, word in rules), prompt.split("```")[1], "```"]
        )

    by_text = dict(rows)
    with as_gepa_adapter(score, run, artifact="Name the intent.", memo="content") as adapter:
        result = gepa.optimize(
            adapter.seed_candidate,
            as_gepa_dataset(train),
            as_gepa_dataset(val),
            adapter=adapter,
            reflection_lm=as_reflection_lm(reflect),
            max_metric_calls=budget,
            logger=Quiet(),
        )
    return adapter.metric.calls, len(judged), next(rollouts), max(result.val_aggregate_scores)
