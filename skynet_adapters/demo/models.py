"""Two scripted models, so that the demonstration runs without a key: stand-ins, not language models.

Both are engines of an ordinary `dspy.LM`, and functions of a plain prompt. They see the prompt that they
are sent and nothing else: no data set, no labels, no metric (this module does not import it).

- The *task model* follows the rules that stand in its instruction, such as
  `If the message mentions "refund" or "charge", answer billing.`; where none applies it copies the
  answer of the most similar demo in its prompt; where there is none, it gives a fixed answer. An
  instruction that asks for a sentence gets one.
- The *reflection model* reads the prompt of `dspy.GEPA`'s own proposer, or of gepa's, and writes such
  rules from what the feedback says: the expected label, the words that it names, and the form that an
  answer must have. Feedback that names nothing ("Wrong.") teaches it nothing.

Example:
    >>> import dspy
    >>> program = dspy.Predict(dspy.Signature("message -> label", "Sort the message."))
    >>> program.set_lm(task_model())
    >>> program(message="Is there any tax on it?").label
    'technical'
    >>> rule = 'If the message mentions "tax", answer billing.'
    >>> program.signature = program.signature.with_instructions(rule)
    >>> program(message="Is there any tax on it?").label
    'billing'
    >>> print(
    ...     plain_task_model(
    ...         rule
    ...         + '''
    ... <message>
    ... Is there any tax on it?
    ... </message>'''
    ...     )
    ... )
    billing
"""

import json
import re
from collections.abc import Callable
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

__all__ = [
    "plain_reflection_model",
    "plain_task_model",
    "read_gepa_prompt",
    "read_reflection_prompt",
    "reflection_model",
    "task_model",
]

FALLBACK_LABEL = "technical"
"""What the task model answers when its prompt gives it nothing to go by."""

_RULE = re.compile(r"If the message mentions (?P<words>[^.]+?), answer (?P<label>[\w-]+)\.")
_EXPECTED = re.compile(r"Expected '(?P<label>[\w-]+)'")
_MENTIONS = re.compile(r"The message mentions (?P<words>[^.]+)\.")
_FORM = re.compile(r"The answer must be (?P<form>one of [^.]+)\.")
_FOR_A_SENTENCE = re.compile(r"[^.\n]*\bsentence\b[^.\n]*\.")
_MESSAGE = re.compile(r"<message>\n(.*?)\n</message>", re.DOTALL)
_ADVICE = "Read the message carefully before you answer."


def task_model() -> dspy.LM:
    """Return the stand-in for the model that runs the program."""
    return dspy.LM("stand-in/task", engine=_ScriptedEngine(_answer_task), cache=False)


def reflection_model() -> dspy.LM:
    """Return the stand-in for the model that writes new instructions from feedback."""
    return dspy.LM("stand-in/reflection", engine=_ScriptedEngine(_answer_reflection), cache=False)


class _ScriptedEngine:
    """What `dspy.LM` calls in place of a provider: a function from the prompt's texts to an answer."""

    def __init__(self, answer: Callable[[str, list[str]], str]) -> None:
        self._answer = answer

    def complete(self, request: Request) -> Response:
        system = request.system or ""
        if not isinstance(system, str):
            system = "".join(part.text for part in system if isinstance(part, TextPart))
        turns = [message.text or "" for message in request.messages]
        answer = self._answer(system, turns)
        read, written = len(" ".join([system, *turns]).split()), len(answer.split())  # words, for tokens
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(answer)]),
            finish_reason="stop",
            usage=Usage(input_tokens=read, output_tokens=written, total_tokens=read + written),
        )


# The task model


def _answer_task(system: str, turns: list[str]) -> str:
    """Answer the last turn; the turns before it are demos, a question and its answer each."""
    if "[[ ## message ## ]]" not in turns[-1]:
        return plain_task_model(turns[-1])
    message = _field(turns[-1], "message")
    demos = [
        (_field(question, "message"), _field(answer, "label"))
        for question, answer in zip(turns[:-1:2], turns[1:-1:2], strict=True)
    ]
    label = _label_by_rules(system, message) or _label_of_nearest(demos, message) or FALLBACK_LABEL
    return f"[[ ## label ## ]]\n{label}\n\n[[ ## completed ## ]]"


def plain_task_model(prompt: str) -> str:
    """Answer a prompt that DSPy has no part in.

    Args:
        prompt: Instructions, and the message in lines of its own between `<message>` and `</message>`.

    Returns:
        A label; a sentence with a label where the instructions ask for a sentence.
    """
    found, told = _MESSAGE.search(prompt), _MESSAGE.sub("", prompt)
    label = _label_by_rules(told, found[1] if found else "") or FALLBACK_LABEL
    return f"This is for the {label} team." if _FOR_A_SENTENCE.search(told) else label


def _label_by_rules(instruction: str, message: str) -> str | None:
    """Return the label whose rule names most words of the message; the earlier rule on a tie."""
    hits = {
        label: sum(_mentions(message, word) for word in words) for label, words in _rules(instruction).items()
    }
    best = max(hits, key=lambda label: hits[label], default=None)
    return best if best and hits[best] else None


def _label_of_nearest(demos: list[tuple[str, str]], message: str) -> str | None:
    """Return the label of the demo that shares most words with the message, in proportion to both."""

    def similarity(demo: tuple[str, str]) -> float:
        ours, theirs = _words(message), _words(demo[0])
        return len(ours & theirs) / (len(ours | theirs) or 1)

    return max(demos, key=similarity)[1] if demos else None


def _mentions(message: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}(s|es|d|ed)?\b", message, re.IGNORECASE) is not None


def _words(text: str) -> set[str]:
    """Return what tells messages apart: the longer words, by their beginnings, so that endings may differ."""
    return {word[:5] for word in re.findall(r"[a-z]{5,}", text.lower())}


# The reflection model


def _answer_reflection(system: str, turns: list[str]) -> str:
    """Return the current instruction with a rule for everything that the feedback names."""
    del system  # DSPy's general words about the job
    if "[[ ## current_instruction ## ]]" not in turns[-1]:
        return plain_reflection_model(turns[-1])
    instruction, examples = read_reflection_prompt(turns[-1])
    return json.dumps({"new_instruction": _improved(instruction, [str(e["Feedback"]) for e in examples])})


def read_reflection_prompt(prompt: str) -> tuple[str, list[dict[str, Any]]]:
    """Take the prompt of `dspy.GEPA`'s built-in proposer (DSPy 3.4) apart.

    Args:
        prompt: The prompt's user message.

    Returns:
        The current instruction, and one `{"Inputs", "Generated Outputs", "Feedback"}` for each case of
        the minibatch.
    """
    examples, _ = json.JSONDecoder().raw_decode(_field(prompt, "examples_with_feedback"))
    return _field(prompt, "current_instruction"), examples


def plain_reflection_model(prompt: str) -> str:
    """Write the next text, as GEPA asks for it outside DSPy.

    Args:
        prompt: A reflection prompt of gepa.

    Returns:
        The text between lines of three backticks, where GEPA looks for it.
    """
    text, feedback = read_gepa_prompt(prompt)
    return f"```\n{_improved(text, feedback)}\n```"


def read_gepa_prompt(prompt: str) -> tuple[str, list[str]]:
    """Take a reflection prompt of `gepa.optimize` or `optimize_anything` (gepa 0.1.4) apart.

    Args:
        prompt: The prompt.

    Returns:
        The current text, and the feedback for each case of the minibatch.
    """
    blocks = re.search(r"```\n(.*?)\n```\n.*?\n```\n(.*)\n```", prompt, re.DOTALL)
    if blocks is None:
        return "", []
    feedback = re.findall(r"^## Feedback\n(.*?)(?=^#{1,2} |\Z)", blocks[2], re.DOTALL | re.MULTILINE)
    return blocks[1], [text.strip() for text in feedback]


def _improved(instruction: str, feedback: list[str]) -> str:
    rules = _rules(instruction)
    known = {label: list(words) for label, words in rules.items()}
    task = old_task = _RULE.sub("", instruction).strip()
    for text in feedback:
        expected, mentions, form = _EXPECTED.search(text), _MENTIONS.search(text), _FORM.search(text)
        if expected and mentions:
            words = rules.setdefault(expected["label"], [])
            words += [word for word in _quoted(mentions["words"]) if word not in words]
        if form and form["form"] not in task:
            task = f"{_FOR_A_SENTENCE.sub('', task)} Answer with {form['form']}.".strip()
    if rules == known and task == old_task:
        return instruction if _ADVICE in instruction else f"{instruction} {_ADVICE}"

    lines = [
        f"If the message mentions {_or(words)}, answer {label}." for label, words in rules.items() if words
    ]
    return "\n".join([task, "", *lines]) if lines else task


# What both read and write


def _rules(instruction: str) -> dict[str, list[str]]:
    """Return the words of each label's rule."""
    rules: dict[str, list[str]] = {}
    for rule in _RULE.finditer(instruction):
        rules.setdefault(rule["label"], []).extend(_quoted(rule["words"]))
    return rules


def _quoted(text: str) -> list[str]:
    return re.findall(r'"([^"]+)"', text)


def _or(words: list[str]) -> str:
    *front, last = [f'"{word}"' for word in words]
    return f"{', '.join(front)} or {last}" if front else last


def _field(text: str, name: str) -> str:
    """Return a field's text out of a prompt of DSPy's chat layout, `[[ ## name ## ]]` and then the text."""
    found = re.search(
        rf"\[\[ ## {name} ## \]\]\n(.*?)(?=\n+\[\[ ## \w+ ## \]\]|\n\nRespond with |\Z)", text, re.DOTALL
    )
    return found[1].strip() if found else ""
