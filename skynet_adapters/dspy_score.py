# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A DSPy metric that a user has already, as a `score`.

Built around dspy 3.4.1.
"""

import contextlib
import copy
import dis
import inspect
import re
from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

import dspy

from .copies import protected
from .dspy_fields import fields_of
from .errors import DefinitionError, MetricReturnError
from .feedback_score import FeedbackScore
from .function import function_name, is_async, without_partials
from .score import Score, shown

__all__ = ["DspyScore", "Traced", "dspy_score"]


class Traced:
    """An output with the trace that DSPy gave beside it, for a `DspyScore` that reads traces.

    It has no content key, so that no judgement that was made without a trace answers for it.

    Args:
        output: What is judged.
        trace: DSPy's list of predictor, inputs and prediction of each step.
        numbers: What False and True stand for: with a trace a metric may give its verdict in place of a
            number that is on another scale.
    """

    def __init__(self, output: Any, trace: Any, numbers: tuple[float, float]) -> None:
        self.output = output
        self.trace = trace
        self.numbers = numbers

    def __deepcopy__(self, memo: Any) -> "Traced":
        """Copy all but the program's predictors."""
        steps = self._with_steps(lambda predictor, rest: (predictor, *protected(rest)))
        return Traced(protected(self.output), steps, self.numbers)

    def __reduce__(self) -> Any:
        """Leave the predictors' models behind: they hold keys."""
        steps = self._with_steps(lambda predictor, rest: (_without_model(predictor), *rest))
        return Traced, (self.output, steps, self.numbers)

    def _with_steps(self, made: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
        """Make the trace anew; one that a user's own code gave, such as True, may have no steps."""
        if not isinstance(self.trace, list):
            return protected(self.trace)
        return [
            made(step[0], step[1:]) if isinstance(step, tuple) and step else protected(step)
            for step in cast("list[Any]", self.trace)
        ]


def _without_model(predictor: Any) -> Any:
    made = copy.copy(predictor)
    if getattr(made, "lm", None) is not None:
        made.lm = None
    return made


class DspyScore:
    """A DSPy metric as `score`.

    Attributes:
        reads_trace: Whether it takes a trace as its third argument, and its code may read it.
    """

    def __init__(self, metric: Any, output: str | None) -> None:
        if not callable(metric) or isinstance(metric, type):
            raise DefinitionError(
                f"a DSPy metric is a function metric(example, pred, trace=None); got {shown(metric)}"
            )
        self.metric = metric
        self.__name__ = function_name(metric)
        self._field = output
        signature = inspect.signature(metric)
        if list(signature.parameters)[:2] == ["input", "output"]:
            raise DefinitionError(
                f"{self.__name__!r} is a score(input, output, expected) already; pass it as it is"
            )
        self._nones = _more_arguments(signature, self.__name__)
        self.reads_trace = _reads_trace(metric, signature)

    def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        """Judge as the DSPy metric does; see `from_dspy_metric`."""
        labels: dict[str, Any] = expected or {}
        gold = dspy.Example({**input, **labels}).with_inputs(*input)
        traced = output if isinstance(output, Traced) else None
        more: list[Any] = self._nones
        if traced is not None:
            output, more = traced.output, [traced.trace, *self._nones[1:]]
        pred = self._prediction(output, labels)
        with _fields_named(gold, pred):
            returned = self.metric(gold, pred, *more)
        if isinstance(returned, Awaitable):  # also of a plain function around an async one
            return self._awaited(cast("Awaitable[Any]", returned), gold, pred, output, expected, traced)
        return self._read(returned, output, expected, traced)

    async def _awaited(self, returned: Awaitable[Any], gold: Any, pred: Any, *given: Any) -> Any:
        with _fields_named(gold, pred):
            returned = await returned
        return self._read(returned, *given)

    def _read(
        self, returned: Any, output: Any, expected: Any, traced: Traced | None
    ) -> tuple[Any, dict[str, Any]]:
        """Make a number and its feedback of what the metric returned."""
        if isinstance(returned, FeedbackScore):  # of a metric made here that this one asks
            return _pair(returned.judgement)
        fields = _result_fields(returned)
        number = fields.pop("score", None)
        if number is None or isinstance(number, str | tuple | list):
            raise MetricReturnError(
                f"the DSPy metric {self.__name__!r} returned {shown(returned)}; it has to return a number, a "
                'bool or dspy.Prediction(score=0.8, feedback="Close. Missing the date.")'
            )
        verdict = number
        if traced is not None and _is_bool(number):
            number = traced.numbers[bool(number)]
        feedback = fields.pop("feedback", None)
        if feedback is None or feedback == "":
            answer = fields_of(output) if isinstance(output, dspy.Prediction) else output
            wanted, given = (shown(value, with_type=False) for value in (expected, answer))
            told = f"Got {given}." if expected is None else f"Expected {wanted}, got {given}."
            feedback = f"The metric {self.__name__!r} gave {verdict}. {told}"
        if "scores" in fields:  # a field of the user's own, whatever it holds
            fields["other scores"] = fields.pop("scores")
        scores = fields.pop("objective_scores", None)
        return number, {**fields, "feedback": feedback, **({"scores": dict(scores)} if scores else {})}

    def _prediction(self, output: Any, labels: dict[str, Any]) -> Any:
        if isinstance(output, dspy.Prediction):
            return output
        if isinstance(output, dict):
            return dspy.Prediction(cast("dict[str, Any]", output))
        if self._field is None and len(labels) != 1:
            raise DefinitionError(
                f"the DSPy metric {self.__name__!r} needs a prediction, and got {shown(output)}; say which "
                'field it stands for: from_dspy_metric(metric, output="answer")'
            )
        return dspy.Prediction({self._field or next(iter(labels)): output})


class AsyncDspyScore(DspyScore):
    """An async DSPy metric as `score`, which is seen to be async."""

    async def __call__(self, input: Any, output: Any, expected: Any = None) -> Any:
        """Judge as the DSPy metric does; see `from_dspy_metric`."""
        return await super().__call__(input, output, expected)


def dspy_score(metric: Any, output: str | None) -> DspyScore:
    """Make a `score` of a DSPy metric, plain or async."""
    return (AsyncDspyScore if is_async(metric) else DspyScore)(metric, output)


def _pair(score: Score) -> tuple[float, dict[str, Any]]:
    if score.error is not None:  # a failure is no judgement
        raise type(score.error)(*score.error.args)
    return score.value, {**score.info, "feedback": score.feedback, "scores": dict(score.scores)}


def _more_arguments(signature: inspect.Signature, name: str) -> list[None]:
    """Find how many arguments a DSPy metric needs after example and prediction; all get `None`."""
    for count in range(5):
        try:
            signature.bind(*[None] * (2 + count))
        except TypeError:
            continue
        return [None] * count
    raise DefinitionError(
        f"{name!r} cannot be called as metric(example, pred, trace); its signature is {signature}"
    )


@contextlib.contextmanager
def _fields_named(gold: dspy.Example, pred: Any) -> Generator[None]:
    try:
        yield
    except AttributeError as error:
        error.args = (f"{error}{_fields_there(error, gold, pred)}",)
        raise


def _fields_there(error: AttributeError, gold: dspy.Example, pred: Any) -> str:
    """Name the fields, where a metric read one that an example or a prediction does not have."""
    found = re.fullmatch(r"'(?:Example|Prediction)' object has no attribute '\w+'", str(error))
    if found is None:
        return ""
    there = f"; the example has {list(fields_of(gold))}"
    return f"{there}, the prediction {list(fields_of(pred))}" if isinstance(pred, dspy.Example) else there


def _reads_trace(metric: Any, signature: inspect.Signature) -> bool:
    """Tell whether a metric may read the trace; false only where its code shows that it does not."""
    third = [*signature.parameters.values()][2:3]
    try:
        signature.bind(None, None, None)
    except TypeError:  # fewer parameters, or more that are needed
        if not third or third[0].kind is inspect.Parameter.KEYWORD_ONLY:
            return False
    function = without_partials(metric)
    if isinstance(function, dspy.Module) and type(function).__call__ is dspy.Module.__call__:
        function = cast("Any", type(function)).forward
    elif not inspect.isroutine(function):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    name = third[0].name if third else ""
    if code is None or name not in code.co_varnames[: code.co_argcount]:  # such as a decorator's `*args`
        return True
    return any(
        (step.argval == name or (isinstance(step.argval, tuple) and name in step.argval))
        and step.opname not in ("STORE_FAST", "DELETE_FAST")
        for step in dis.get_instructions(code)
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b"  # NumPy's


def _result_fields(returned: Any) -> dict[str, Any]:
    if isinstance(returned, dspy.Prediction):
        return dict(fields_of(returned))
    return dict(cast("dict[str, Any]", returned)) if isinstance(returned, dict) else {"score": returned}
