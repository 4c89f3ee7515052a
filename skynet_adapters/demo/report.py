"""The demonstration's result in words and a table."""

from textwrap import fill

from . import METRIC_FILE, SUPPORT_MESSAGES
from .run import FIRST_INSTRUCTION, Demo, Row

__all__ = ["describe"]

_STAND_INS = """\
Both models are stand-ins: two small scripts in this process (models.py, beside the metric), no language
models. The task model does what its instruction's rules say, or copies the most similar demo; with neither
it answers the same to everything, which is the score before. The reflection model turns what the feedback
names into such rules, and sees nothing but the prompt that DSPy sends it.

What the runs show: one `score` serves DSPy's real Evaluate, GEPA and few-shot search; it runs once for each
rollout; its words reach the reflection prompt; and where the words are taken away, with the same scores, GEPA
has nothing to learn from. What they do not show: how much a real model gains. The task is made so that naming
a word helps, and another --seed moves the figures. For a real answer: --model NAME --reflection-model NAME,
with any model that DSPy knows."""

_REAL = """\
These are single runs on few messages: a difference of two or three messages is chance. A real reflection
model may also learn without feedback, from the messages themselves."""


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
        _table(
            test,
            {
                "GEPA": demo.gepa,
                "BootstrapFewShotWithRandomSearch, same metric": demo.few_shot,
                'Control: GEPA, feedback only "Right." / "Wrong."': demo.control,
            },
        ),
        "A rollout is one run of the program by the optimiser; the held-out messages are never used for one.",
    ]
    if demo.failure_texts:
        paragraphs.append(_block("Failures of the metric, the first ones", "\n".join(demo.failure_texts)))
    if case := demo.reflected_case:
        text = f"{case['Inputs']['message']}\n=> {case['Generated Outputs']['label']}\n\n{case['Feedback']}"
        paragraphs.append(_block("One answer and its feedback, as the reflection model saw them", text))
    paragraphs += [
        _block("The instruction before", FIRST_INSTRUCTION),
        _block("The instruction that GEPA made of it", demo.gepa.instruction),
        _block("What the control made of it", demo.control.instruction),
        _REAL if demo.models else _STAND_INS,
    ]
    return "\n\n".join(paragraphs)


def _table(test_size: int, rows: dict[str, Row]) -> str:
    def right(share: float) -> str:
        return f"{round(share * test_size)}/{test_size} {share:4.0%}"

    lines = [
        ("", "held out", "", "", "score calls", ""),
        ("", "before", "after", "rollouts", "per rollout", "failures"),
    ]
    for name, row in rows.items():
        per_rollout = f"{row.score_calls / row.rollouts:.2f}" if row.rollouts else "-"
        lines.append(
            (name, right(row.before), right(row.after), str(row.rollouts), per_rollout, str(row.failures))
        )
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def _block(title: str, text: str) -> str:
    lines = [fill(line, 104, initial_indent="    ", subsequent_indent="      ") for line in text.splitlines()]
    return "\n".join([f"{title}:", *lines])
