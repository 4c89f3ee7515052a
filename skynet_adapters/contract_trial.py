"""The calls that the contract check makes: of a run, and of the metric that judges its outputs."""

import contextlib
import datetime
import decimal
import fractions
import functools
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from .artifacts import fault_in_parts, to_candidate
from .attempt import Ran, attempt
from .cases import Case
from .copies import protected
from .deadline import call_within
from .errors import MetricBroken, MetricError, MetricReturnError, MetricTimeoutError
from .helpers_used import MEASURING, helpers_used
from .judge_llm import NO_MODEL
from .measure import Observation, rollout
from .metric import Metric
from .score import Score, clean_text

__all__ = ["Judged", "Trial", "Tried"]

# What stands for a wrong answer: no word that a feedback could hold by chance.
_WRONG_TEXT = "???"

# Of an expected value with many fields, so many are tried as an output by themselves.
_MOST_FIELDS = 3

# How much is said of what became of one run.
_MOST_SAID = 300


class Judged(NamedTuple):
    """One call of the metric."""

    case: Case
    output: Any
    score: Score
    seconds: float
    is_from_cache: bool = False  # models were asked, and every answer came from a cache

    @property
    def failed(self) -> bool:
        """Whether it gave no judgement."""
        return self.score.error is not None

    def below(self, threshold: float) -> bool:
        """Tell whether it is a judgement, and not a success."""
        return not self.failed and self.score.value < threshold


class Tried(Metric):
    """A metric on trial, which notes whether its function reads what a run took."""

    reads_measurements = False

    def measurement_was_read(self, measured: bool) -> None:
        """Note it; the report says what a warning would."""
        self.reads_measurements = True


class Trial:
    """What the metric was asked, and what it said.

    Attributes:
        judged: One for each case that has an output.
        lost: What `run` did where it gave no output.
        observations: What the runs took, by the case's id.
        right: The expected value of a case as output.
        wrong: A wrong answer to that case.
        again: The first judgement, made once more.
        twin: The right answer in another type, such as "3" for 3.
        calls: Every call of the metric, in the order in which they were made.
        hung: A call of the metric timed out, after which no further one is made.
        helpers: The helpers of `skynet` that the metric uses, by its code and by what it did.
    """

    def __init__(
        self,
        metric: Tried,
        cases: list[Case],
        run: Callable[..., Any] | None,
        artifact: Any,
        run_timeout: float | None,
    ) -> None:
        self.metric = metric
        self.cases = cases
        self._run, self._artifact, self._run_timeout = run, artifact, run_timeout
        self.judged: list[Judged] = []
        self.lost: list[str] = []
        self.observations: dict[str, Observation] = {}
        self.right: Judged | None = None
        self.wrong: Judged | None = None
        self.again: Judged | None = None
        self.twin: Judged | None = None
        self.calls: list[Judged] = []
        self.hung = False
        self.helpers = helpers_used(metric.score)

    @property
    def parts(self) -> list[str]:
        """The names of the artifact's parts; none where there is no artifact."""
        artifact = self._artifact
        is_one = isinstance(artifact, str) or fault_in_parts(artifact) is None
        return list(to_candidate(cast("Any", artifact))) if is_one else []

    @property
    def has_run(self) -> bool:
        """Whether the outputs come from a run."""
        return self._run is not None

    def has_right_output(self) -> bool:
        """Tell whether a run gave an expected value, which shows that expected values are answers."""
        return self.has_run and any(
            _equal(judged.output, value)
            for judged in self.judged
            for _, value in _stand_ins(judged.case.expected)
        )

    def judge_cases(self) -> None:
        """Call the metric as often as the checks need, and no more."""
        first = next((case for case in self.cases if _stand_ins(case.expected)), None)
        if self._run is not None:
            self._run_cases()
        form = "" if first is None or self.hung else self._judge_stand_ins(first)
        if self._run is None:
            self._judge_in(form, first)
        repeatable = next((judged for judged in self.judged if not judged.failed), None)
        if repeatable is not None and not self.hung:
            self.again = self._judge(repeatable.case, repeatable.output)
        if self.right is not None and not self.right.failed and not self.hung:
            self.wrong = self._judge(self.right.case, _wrong(self.right.output))
            twin = None if self._run is not None else _twin(self.right.output)
            if twin is not None:
                self.twin = self._judge(self.right.case, twin)
        self.helpers |= self._helpers_seen()

    def _helpers_seen(self) -> set[str]:
        """Tell helpers by what the metric did, where its code hides them, as in a list of functions."""
        seen = {"llm"} if any(NO_MODEL in str(judged.score.error) for judged in self.calls) else set[str]()
        reads = self.metric.reads_measurements and not self.helpers & MEASURING
        return seen | {"observation"} if reads else seen

    def _judge_in(self, form: str, first: Case | None) -> None:
        """Judge every case's expected value, in the form that was found for the first one."""
        for case in self.cases:
            if case is first and self.right is not None:
                self.judged.append(self.right)
            elif _stand_ins(case.expected) and not self.hung:
                self.judged.append(self._judge(case, _in_form(form, case.expected)))

    def _run_cases(self) -> None:
        for case in self.cases:
            if self.hung:
                return
            with rollout() as measured:
                ran = self._ran(case)
            if ran.fault is not None:
                said = clean_text(ran.fault.removeprefix("It ").rstrip("."), _MOST_SAID)
                self.lost.append(f"case {case.id!r}: run {' '.join(said.split())}")
                continue
            self.observations[case.id] = measured.observation()
            self.judged.append(self._judge(case, ran.output))

    def _ran(self, case: Case) -> Ran:
        input = protected(case.input)
        given = (input,) if self._artifact is None else (self._artifact, input)
        call = functools.partial(cast("Callable[..., Any]", self._run), *given)
        if self._run_timeout is not None:
            call = functools.partial(call_within, self._run_timeout, call)
        try:
            return attempt(self._run, call, self._run_timeout)
        except MetricBroken as error:  # of a run inside this one; here it stops nothing
            return Ran(None, f"It raised MetricBroken: {error}.")

    def _judge_stand_ins(self, case: Case) -> str:
        """Find the form of the expected value that the metric likes best; stops at a success."""
        best = ""
        for form, output in _stand_ins(case.expected):
            judged = self._judge(case, output)
            if self.right is None or _rank(judged) > _rank(self.right):
                best, self.right = form, judged
            # Another form of the output does not change a wrong shape.
            if self.hung or isinstance(judged.score.error, MetricReturnError):
                break
            if not judged.failed and not judged.below(self.metric.success_threshold):
                break
        return best

    def _judge(self, case: Case, output: Any) -> Judged:
        begun = time.monotonic()
        observation = self.observations.get(case.id)
        bill = self.metric.bill
        calls, cached = bill.calls, bill.cached_calls
        try:
            score = self.metric.judge(case.input, output, case.expected, observation=observation)
        except MetricBroken as error:  # of a run inside the metric
            score = Score(self.metric.failure_score, str(error), error=MetricError(str(error)))
        self.hung = self.hung or isinstance(score.error, MetricTimeoutError)
        is_from_cache = bill.calls - calls == bill.cached_calls - cached > 0
        self.calls.append(Judged(case, output, score, time.monotonic() - begun, is_from_cache))
        return self.calls[-1]


def _stand_ins(expected: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Give what a right output may be, by the name of its form: a field, the whole, or JSON of it."""
    if not expected:
        return []
    fields = [(f"field {name}", value) for name, value in expected.items() if value is not None]
    whole = fields[0][1] if len(expected) == 1 and fields else dict(expected)
    forms = fields if len(expected) == 1 else [("whole", whole), *fields[:_MOST_FIELDS]]
    if not isinstance(whole, str):
        with contextlib.suppress(Exception):  # what JSON cannot hold, no text holds
            forms.append(("JSON", json.dumps(whole, ensure_ascii=False, default=str)))
    return forms


def _wrong(output: Any) -> Any:
    """Make an answer of the same type that cannot be right."""
    if isinstance(output, bool):
        return not output
    if isinstance(output, int | float | decimal.Decimal | fractions.Fraction):
        number: Any = output
        return number + 1_000 + 10 * abs(number)  # farther off than any tolerance
    if isinstance(output, datetime.date):  # a datetime too
        return output + datetime.timedelta(days=4_000 if output.year < 5_000 else -4_000)
    if output and isinstance(output, list | dict):
        return [] if isinstance(output, list) else {}
    return _WRONG_TEXT


def _equal(output: Any, value: Any) -> bool:
    with contextlib.suppress(Exception):  # arrays have no truth, and other objects may raise
        return bool(output == value)
    return False


def _rank(judged: Judged) -> tuple[bool, float]:
    return not judged.failed, judged.score.value


def _in_form(form: str, expected: Mapping[str, Any] | None) -> Any:
    outputs = dict(_stand_ins(expected))
    return outputs.get(form, next(iter(outputs.values())))


# What a program without typed outputs gives as text.
_WITH_A_TEXT = (int, float, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, uuid.UUID)


def _twin(value: Any) -> Any:
    """Give the text of a number, bool or date, and the other way round; `None` where there is neither.

    Of a dict it gives one whose values are such texts, as a program without typed outputs would.
    """
    if isinstance(value, _WITH_A_TEXT):
        return str(value)
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        texts = {name: str(one) if isinstance(one, _WITH_A_TEXT) else one for name, one in fields.items()}
        return texts if any(texts[name] is not one for name, one in fields.items()) else None
    if isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?|true|false", value.strip(), re.IGNORECASE):
        with contextlib.suppress(ValueError):  # "007"
            return json.loads(value.strip().lower())
    return None
