"""Scripted models for the real DSPy, and small data for them."""

import json
from collections.abc import Callable
from typing import Any

import dspy
from dspy.lm15 import Message, Response, TextPart, Usage

Messages = list[dict[str, str]]


class ScriptedEngine:
    """An engine for `dspy.LM(engine=...)` that answers with a function of the messages."""

    def __init__(self, answer: Callable[[Messages], str]) -> None:
        self.answer = answer
        self.prompts: list[str] = []

    def complete(self, request: Any) -> Response:
        messages: Messages = []
        if request.system is not None:
            system = request.system
            text = system if isinstance(system, str) else "".join(part.text for part in system)
            messages.append({"role": "system", "content": text})
        messages += [{"role": message.role, "content": message.text or ""} for message in request.messages]
        self.prompts.append("\n\n".join(message["content"] for message in messages))
        return Response(
            id=None,
            model="scripted",
            message=Message.assistant([TextPart(self.answer(messages))]),
            finish_reason="stop",
            usage=Usage(input_tokens=10, output_tokens=5, total_tokens=15),
        )


def scripted_lm(answer: Callable[[Messages], str], **options: Any) -> dspy.LM:
    """A `dspy.LM` that answers with a function; `lm.prompts` holds what it was asked, as texts."""
    engine = ScriptedEngine(answer)
    lm = dspy.LM("scripted/model", engine=engine, cache=False, **options)
    lm.prompts = engine.prompts
    return lm


def chat(**fields: object) -> str:
    """An answer in the form that DSPy's ChatAdapter reads."""
    return (
        "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in fields.items())
        + "[[ ## completed ## ]]"
    )


def field_of(messages: Messages, name: str) -> str:
    """The value of an input field in the last message."""
    text = messages[-1]["content"]
    marker = f"[[ ## {name} ## ]]"
    return text.split(marker)[1].split("\n\n")[0].strip() if marker in text else text


def answering(answer: Callable[[str], object], question: str = "question", **options: Any) -> dspy.LM:
    """A model for programs `question -> answer`."""
    return scripted_lm(lambda messages: chat(answer=answer(field_of(messages, question))), **options)


def reflecting(write: Callable[[str, int], str] | None = None) -> dspy.LM:
    """A reflection model for dspy.GEPA; writes a new instruction from prompt and call number."""
    count = iter(range(1, 1_000_000))

    def answer(messages: Messages) -> str:
        number = next(count)
        prompt = "\n\n".join(message["content"] for message in messages)
        return json.dumps(
            {"new_instruction": write(prompt, number) if write else f"new instruction {number}"}
        )

    return scripted_lm(answer)


def examples(
    count: int, answer: Callable[[int], str] = lambda number: "A", **more: Any
) -> list[dspy.Example]:
    return [
        dspy.Example(question=f"q{number}", answer=answer(number), **more).with_inputs("question")
        for number in range(count)
    ]
