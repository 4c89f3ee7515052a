"""Both parts of the demonstration, with the same cases, models and metric."""

import contextlib
import io
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, cast

import dspy as untyped_dspy

from .. import DefinitionError, load_cases, split
from . import SUPPORT_MESSAGES, models
from .bench import MINIBATCH, Bench
from .program import ProgramRuns, optimise_program
from .texts import TextRuns, optimise_texts

__all__ = ["Demo", "run_demo"]

dspy = cast("Any", untyped_dspy)  # most of what is used here has no type hints


@dataclass(frozen=True)
class Demo:
    """What a run of the demonstration found out.

    Attributes:
        models: Names of the task model and of the reflection model; `None` for the stand-ins.
        sizes: Numbers of training, validation and held-out messages.
        seed: Seed of the split and of GEPA.
        program: The first part; `None` where it was left out.
        texts: The second part; `None` where it was left out.
    """

    models: tuple[str, str] | None
    sizes: tuple[int, int, int]
    seed: int
    program: ProgramRuns | None
    texts: TextRuns | None


def run_demo(
    *,
    model: str | None = None,
    reflection_model: str | None = None,
    part: Literal["program", "texts"] | None = None,
    budget: int = 600,
    threads: int = 8,
    seed: int = 0,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Demo:
    """Run the demonstration.

    Args:
        model: A model that DSPy knows, by name, to answer; `None`: the stand-ins for both.
        reflection_model: The model that writes instructions; `None`: the same as `model`.
        part: The only part to run; `None`: both.
        budget: Rollouts that each run may spend. GEPA ends with the step in which they run out; the
            few-shot search has no such bound, so its number of candidates is chosen to come near.
        threads: How many rollouts run at the same time.
        seed: Seed of the split and of GEPA.
        verbose: Let the progress bars and logs of DSPy and GEPA through.
        progress: Called with a line of text before each step.

    Returns:
        What came of it; `report.describe` puts it in words.

    Raises:
        DefinitionError: The budget is too small to try anything, or a model gives no answer.
    """
    say = progress or _say_nothing
    cases = split(load_cases(SUPPORT_MESSAGES), train=0.35, val=0.25, test=0.4, seed=seed, by="label")
    if budget < (least := len(cases.val) + 2 * MINIBATCH):
        raise DefinitionError(
            f"A budget of {budget} rollouts is too small: GEPA first runs all {len(cases.val)} validation "
            f"messages, then {MINIBATCH} messages with the old and the new instruction. Give at "
            f"least {least}."
        )
    if model is None:
        task_lm, reflection_lm, names = models.task_model(), models.reflection_model(), None
    else:
        names = model, reflection_model or model
        task_lm, reflection_lm = (_real_model(name, say) for name in names)

    bench = Bench(cases, task_lm, reflection_lm, budget, threads, seed)
    with contextlib.nullcontext() if verbose else _quiet():
        program = None if part == "texts" else optimise_program(bench, say)
        texts = None if part == "program" else optimise_texts(bench, say)
    return Demo(names, (len(cases.train), len(cases.val), len(cases.test)), seed, program, texts)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Swallow what the optimisers print; they use print, progress bars and logs at once."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _say_nothing(line: str) -> None:
    del line


def _real_model(name: str, say: Callable[[str], None]) -> Any:
    """Return the model, tried once: a wrong name or key would otherwise look like 0 % everywhere."""
    say(f"Asking {name} for a first answer")
    try:
        lm = dspy.LM(name)
        with _quiet():
            lm("Answer with one word: ready")
    except Exception as error:
        raise DefinitionError(
            f"The model {name!r} gave no answer: {type(error).__name__}: {error}\n"
            "Check its name, and that its key stands in the environment, both as DSPy wants them."
        ) from None
    return lm
