"""The demonstration's result in words and tables."""

from textwrap import fill

from . import METRIC_FILE, SUPPORT_MESSAGES
from .bench import FIRST_INSTRUCTION, Row
from .program import ProgramRuns
from .run import Demo
from .texts import FIRST_PARTS, TextRuns

__all__ = ["describe"]

_STAND_INS = """\
Both models are stand-ins: two small scripts in this process (models.py, beside the metric), no language
models. The task model does what its instruction's rules say, or copies the most similar demo; with neither
it answers the same to everything, which is the score before. The reflection model turns what the feedback
names into such rules, and sees nothing but the prompt that it is sent.

What the runs show: one `score` serves the real optimisers named above; it runs once for each rollout; its
words reach the reflection prompt; and where the words are taken away, with the same scores, GEPA has nothing
to learn from. What they do not show: how much a real model gains. The task is made so that naming a word
helps, and another --seed moves the figures. For a real answer: --model NAME --reflection-model NAME, with any
model that DSPy knows."""

_REAL = """\
These are single runs on few messages: a difference of two or three messages is chance. A real reflection
model may also learn without feedback, from the messages themselves."""

_SHOWN_FAILURES = 3


def describe(demo: Demo) -> str:
    """Write the report.

    Returns:
        Text of several paragraphs, with no line break at its end.
    """
    train, val, test = demo.sizes
    task, reflection = demo.models or ("a stand-in", "a stand-in")
    paragraphs = [
        f"messages   {train} to learn from, {val} to choose by, {test} held out ({SUPPORT_MESSAGES.name}, "
        f"seed {demo.seed})\n"
        f"metric     {METRIC_FILE.name}, in {METRIC_FILE.parent.name}/\n"
        f"models     {task} answers, {reflection} writes instructions",
        "A rollout is one answer that the optimiser asks for; the held-out messages are never used for one.\n"
        "A proposal is one prompt to the model that writes instructions.",
    ]
    if demo.program:
        paragraphs += _program(demo.program, test)
    if demo.texts:
        paragraphs += _texts(demo.texts, test, demo.program)
    paragraphs.append(_REAL if demo.models else _STAND_INS)
    return "\n\n".join(paragraphs)


def _program(runs: ProgramRuns, test_size: int) -> list[str]:
    rows = {
        "GEPA": runs.gepa,
        "BootstrapFewShotWithRandomSearch, same metric": runs.few_shot,
        'Control: GEPA, feedback "Right." / "Wrong."': runs.control,
    }
    paragraphs = [
        "THE FIRST PART: A DSPY PROGRAM",
        _table(test_size, rows),
        *_failures(runs.failure_texts),
    ]
    if case := runs.reflected_case:
        text = f"{case['Inputs']['message']}\n=> {case['Generated Outputs']['label']}\n\n{case['Feedback']}"
        paragraphs.append(_block("One answer and its feedback, as the reflection model saw them", text))
    return [
        *paragraphs,
        _block("The instruction before", FIRST_INSTRUCTION),
        _block("The instruction that GEPA made of it", runs.gepa.artifact),
        _block("What the control made of it", runs.control.artifact),
    ]


def _texts(runs: TextRuns, test_size: int, first_part: ProgramRuns | None) -> list[str]:
    rows = {
        "Prompt, optimize_artifact": runs.prompt,
        'Control: feedback "Right." / "Wrong."': runs.control,
        "Two parts, optimize_anything, same metric": runs.parts,
    }
    prompt = runs.prompt.artifact
    if first_part and prompt == first_part.gepa.artifact:
        prompt = "(word for word the instruction that GEPA made in the first part)"
    paragraphs = [
        "THE SECOND PART: PLAIN TEXTS, WITHOUT A PROGRAM",
        _table(test_size, rows),
        *_failures(runs.failure_texts),
        _block("The prompt before", FIRST_INSTRUCTION),
        _block("The prompt that GEPA made of it", prompt),
        _block("What the control made of it", runs.control.artifact),
        _block("The two parts before; the second one asks for a form that the metric refuses", FIRST_PARTS),
    ]
    if runs.part_feedback:
        title = "The first feedback that the reflection model read, for each part its own"
        paragraphs.append(_block(title, runs.part_feedback))
    return [*paragraphs, _block("The two parts after", runs.parts.artifact)]


def _failures(texts: list[str]) -> list[str]:
    return [_block("Failures, the first ones", "\n".join(texts[:_SHOWN_FAILURES]))] if texts else []


def _table(test_size: int, rows: dict[str, Row]) -> str:
    def right(share: float) -> str:
        return f"{round(share * test_size)}/{test_size} {share:4.0%}"

    lines = [
        ("", "held out", "", "", "score calls", "", ""),
        ("", "before", "after", "rollouts", "per rollout", "failures", "proposals"),
    ]
    for name, row in rows.items():
        spent = row.spent
        per_rollout = f"{spent.score_calls / spent.rollouts:.2f}" if spent.rollouts else "-"
        counts = (str(spent.rollouts), per_rollout, str(spent.failures), str(spent.reflections))
        lines.append((name, right(row.before), right(row.after), *counts))
    widths = [max(len(line[column]) for line in lines) for column in range(7)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def _block(title: str, text: str | dict[str, str]) -> str:
    if isinstance(text, dict):
        text = "\n".join(f"[{part}] {told}" for part, told in text.items())
    lines = [fill(line, 104, initial_indent="    ", subsequent_indent="      ") for line in text.splitlines()]
    return "\n".join([f"{title}:", *lines])
