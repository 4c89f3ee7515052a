"""Optimise one program with one metric, by two optimisers and a control, and see what that did."""

import contextlib
import io
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import wraps
from typing import Any, cast

import dspy as untyped_dspy
from dspy.utils.callback import BaseCallback

from ..cases import load_cases, split
from ..dspy import as_dspy_metric, to_examples
from ..errors import DefinitionError
from . import SUPPORT_MESSAGES, models
from .metric import score

__all__ = ["FIRST_INSTRUCTION", "Demo", "Row", "run_demo", "without_reasons"]

FIRST_INSTRUCTION = (
    "Say which team should answer the support message: account, billing, shipping or technical."
)
"""What every optimiser starts from."""

_MINIBATCH = 8  # cases for one reflection; with dspy.GEPA's default of 3 the outcome hangs more on the seed

dspy = cast("Any", untyped_dspy)  # most of what is used here has no type hints


def without_reasons(input: dict[str, Any], output: str, expected: dict[str, Any] | None = None) -> Any:
    """Score as the metric does and say nothing: the metric of the control."""
    value, info = score(input, output, expected)
    return value, {"feedback": "Right." if value == 1.0 else "Wrong.", "scores": info["scores"]}


@dataclass(frozen=True)
class Row:
    """What one optimiser did.

    Attributes:
        before: Share of the held-out messages that the program sorted right before, 0 to 1.
        after: The same, afterwards.
        rollouts: How often the optimiser ran the program. The held-out evaluations are not among
            them.
        score_calls: How often the user's `score` ran meanwhile.
        failures: How often it gave no score.
        instruction: The program's instruction afterwards.
        demos: How many worked examples the program's prompt has afterwards.
    """

    before: float
    after: float
    rollouts: int
    score_calls: int
    failures: int
    instruction: str
    demos: int


@dataclass(frozen=True)
class Demo:
    """What a run of the demonstration found out.

    Attributes:
        models: Names of the task model and of the reflection model; `None` for the stand-ins.
        sizes: Numbers of training, validation and held-out messages.
        seed: Seed of the split and of GEPA.
        gepa: GEPA with the metric.
        few_shot: `BootstrapFewShotWithRandomSearch` with the same metric object.
        control: GEPA with the same scores, and only "Right." or "Wrong." as feedback.
        reflected_case: The first wrong answer as it stood in a reflection prompt: `Inputs`,
            `Generated Outputs` and `Feedback`. `None` where there was none.
        failure_texts: What went wrong in the metric, for the first few cases.
    """

    models: tuple[str, str] | None
    sizes: tuple[int, int, int]
    seed: int
    gepa: Row
    few_shot: Row
    control: Row
    reflected_case: dict[str, Any] | None
    failure_texts: list[str]


def run_demo(
    *,
    model: str | None = None,
    reflection_model: str | None = None,
    budget: int = 600,
    threads: int = 8,
    seed: int = 0,
    verbose: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Demo:
    """Run the demonstration.

    Args:
        model: A model that DSPy knows, by name, to run the program; `None`: the stand-ins for both.
        reflection_model: The model that writes instructions; `None`: the same as `model`.
        budget: Rollouts that each run may spend. GEPA ends with the step in which they run out; the
            few-shot search has no such bound, so its number of candidates is chosen to come near.
        threads: How many rollouts run at the same time.
        seed: Seed of the split and of GEPA.
        verbose: Let DSPy's progress bars and logs through.
        progress: Called with a line of text before each step.

    Returns:
        What came of it; `report.describe` puts it in words.

    Raises:
        DefinitionError: The budget is too small to try anything, or a model gives no answer.
    """
    say = progress or _say_nothing
    cases = split(load_cases(SUPPORT_MESSAGES), train=0.35, val=0.25, test=0.4, seed=seed, by="label")
    if budget < (least := len(cases.val) + 2 * _MINIBATCH):
        raise DefinitionError(
            f"A budget of {budget} rollouts is too small: GEPA first runs all {len(cases.val)} validation "
            f"messages, then {_MINIBATCH} messages with the old and the new instruction. Give at "
            f"least {least}."
        )
    if model is None:
        task_lm, reflection_lm, names = models.task_model(), models.reflection_model(), None
    else:
        names = model, reflection_model or model
        task_lm, reflection_lm = (_real_model(name, say) for name in names)

    bench = _Bench(
        train=to_examples(cases.train),
        val=to_examples(cases.val),
        test=to_examples(cases.test),
        reflection_lm=reflection_lm,
        budget=budget,
        threads=threads,
        seed=seed,
    )
    metric = as_dspy_metric(bench.score_calls.counted(score))
    control_metric = as_dspy_metric(bench.score_calls.counted(without_reasons))

    context = dspy.context(lm=task_lm, callbacks=[*dspy.settings.callbacks, bench.rollouts])
    with context, contextlib.nullcontext() if verbose else _quiet():
        say("Evaluating the program on the held-out messages")
        before = bench.held_out(bench.program, metric)
        say("Optimising it with GEPA")
        gepa = bench.run(bench.gepa, metric, before)
        reflected_case = _first_wrong_case(reflection_lm)
        say("Optimising it with BootstrapFewShotWithRandomSearch, same metric")
        few_shot = bench.run(bench.few_shot, metric, before)
        say('Optimising it with GEPA, feedback only "Right." or "Wrong."')
        control = bench.run(bench.gepa, control_metric, before)

    failures = [*metric.failures, *control_metric.failures]
    return Demo(
        models=names,
        sizes=(len(cases.train), len(cases.val), len(cases.test)),
        seed=seed,
        gepa=gepa,
        few_shot=few_shot,
        control=control,
        reflected_case=reflected_case,
        failure_texts=[failure.text for failure in failures[:3]],
    )


class _Counter:
    """Counts from any thread."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            self.count += 1

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its calls counted."""

        @wraps(function)
        def counting(input: Any, output: Any, expected: Any = None) -> Any:
            self.add()
            return function(input, output, expected)

        return counting


class _RolloutCounter(BaseCallback, _Counter):
    """Counts the runs of the program; DSPy calls it for its own modules too, GEPA's proposer for one."""

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        if isinstance(instance, dspy.Predict) and "label" in instance.signature.output_fields:
            self.add()


class _Bench:
    """The program, the messages and the optimisers, with counters around them."""

    def __init__(
        self,
        *,
        train: list[Any],
        val: list[Any],
        test: list[Any],
        reflection_lm: Any,
        budget: int,
        threads: int,
        seed: int,
    ) -> None:
        self.program = dspy.Predict(dspy.Signature("message -> label", FIRST_INSTRUCTION))
        self.rollouts, self.score_calls = _RolloutCounter(), _Counter()
        self._train, self._val, self._test = train, val, test
        self._reflection_lm = reflection_lm
        self._budget, self._threads, self._seed = budget, threads, seed

    def held_out(self, program: Any, metric: Any) -> float:
        """Return the share of the held-out messages that the program sorts right."""
        evaluate = dspy.Evaluate(devset=self._test, metric=metric, num_threads=self._threads)
        return evaluate(program).score / 100

    def gepa(self, metric: Any) -> Any:
        """Return the program as GEPA leaves it."""
        optimiser = dspy.GEPA(
            metric=metric,
            reflection_lm=self._reflection_lm,
            max_metric_calls=self._budget,
            reflection_minibatch_size=_MINIBATCH,
            num_threads=self._threads,
            seed=self._seed,
        )
        return optimiser.compile(self.program, trainset=self._train, valset=self._val)

    def few_shot(self, metric: Any) -> Any:
        """Return the program as the search over worked examples leaves it."""
        # A candidate costs all validation messages to judge, and about a quarter of the training
        # messages to collect demos from. The search tries three more than it is told.
        affordable = self._budget // (len(self._val) + len(self._train) // 4) - 3
        optimiser = dspy.BootstrapFewShotWithRandomSearch(
            metric=metric, num_candidate_programs=max(1, affordable), num_threads=self._threads
        )
        return optimiser.compile(self.program, trainset=self._train, valset=self._val)

    def run(self, optimise: Callable[[Any], Any], metric: Any, before: float) -> Row:
        """Run one optimiser between two looks at the counters."""
        failures, rollouts, calls = len(metric.failures), self.rollouts.count, self.score_calls.count
        program = optimise(metric)
        failures = len(metric.failures) - failures
        rollouts, calls = self.rollouts.count - rollouts, self.score_calls.count - calls
        return Row(
            before=before,
            after=self.held_out(program, metric),
            rollouts=rollouts,
            score_calls=calls,
            failures=failures,
            instruction=program.signature.instructions,
            demos=len(program.demos),
        )


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Swallow what the optimisers print; they use print, progress bars and DSPy's log at once."""
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
        ) from error
    return lm


def _first_wrong_case(reflection_lm: Any) -> dict[str, Any] | None:
    """Cut a case with a wrong answer out of the prompts that the reflection model got."""
    for call in reflection_lm.history:
        for message in call["messages"] or ():
            if "[[ ## examples_with_feedback ## ]]\n[{" in str(message["content"]):
                for case in models.read_reflection_prompt(message["content"])[1]:
                    if "Expected '" in case["Feedback"]:
                        return case
    return None
