"""Scripted models for the benchmarks: the real `dspy.LM`, answering from a function."""

import itertools
import json
import time
import zlib
from collections.abc import Callable
from typing import Any

import dspy
from dspy.lm15 import Message, Response, TextPart, Usage


class ScriptedEngine:
    """An engine for `dspy.LM(engine=...)` that answers with a function of the prompt.

    Args:
        answer: Takes the prompt, all messages joined, and gives the model's text.
        seconds: How long each call sleeps. `None`: not at all; 0.0 only lets other threads run, as every
            call of a real model does.
    """

    def __init__(self, answer: Callable[[str], str], seconds: float | None = None) -> None:
        self._answer = answer
        self._seconds = seconds
        self._count = itertools.count(1)
        self.calls = 0

    def complete(self, request: Any) -> Response:
        """Answer one request, as DSPy's own engines do."""
        self.calls = next(self._count)
        if self._seconds is not None:
            time.sleep(self._seconds)
        system = request.system or ""
        parts = [system if isinstance(system, str) else "".join(part.text for part in system)]
        parts += [message.text or "" for message in request.messages]
        return Response(
            id=None,
            model="scripted",
            message=Message.assistant([TextPart(self._answer("\n\n".join(parts)))]),
            finish_reason="stop",
            usage=Usage(input_tokens=10, output_tokens=5, total_tokens=15),
        )


def model(engine: ScriptedEngine) -> dspy.LM:
    """Make a `dspy.LM` of an engine, without DSPy's cache."""
    return dspy.LM("scripted/model", engine=engine, cache=False)


def answerer(seconds: float | None = None) -> ScriptedEngine:
    """Answer `question -> answer`, right ("A") on about half of the prompts.

    Which half depends on instruction and question, so a new instruction is a better or a worse one.
    """

    def answer(prompt: str) -> str:
        right = zlib.crc32(prompt.encode()) % 2
        return f"[[ ## answer ## ]]\n{'A' if right else 'B'}\n\n[[ ## completed ## ]]"

    return ScriptedEngine(answer, seconds)


def reflector() -> ScriptedEngine:
    """Write a new instruction at each call, the same ones in every run."""
    number = itertools.count(1)
    return ScriptedEngine(lambda prompt: json.dumps({"new_instruction": f"Instruction {next(number)}."}))


class NoModel(dspy.Module):
    """A program that answers at once and asks no model, right on half of the questions."""

    def forward(self, question: str) -> dspy.Prediction:
        """Answer one question."""
        return dspy.Prediction(answer="A" if int(question[1:]) % 2 else "B")


def examples(count: int, first: int = 0) -> list[dspy.Example]:
    """Make examples whose right answer is "A"."""
    return [
        dspy.Example(question=f"q{number}", answer="A").with_inputs("question")
        for number in range(first, first + count)
    ]
