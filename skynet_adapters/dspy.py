# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One `score` for DSPy: its metric, its examples.

Built around dspy 3.4.1. Where a line answers one of its quirks, a comment names it.
"""

import functools
import inspect
import json.encoder
import math
import operator
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Unpack, cast

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.parallelizer import ParallelExecutor

from .cases import Case
from .errors import DataError, DefinitionError, MetricBroken
from .metric import UNKNOWN, Metric, MetricOptions, ScoreFunction, as_metric, isolations
from .score import Score, shown

__all__ = ["DspyMetric", "FeedbackScore", "as_dspy_metric", "check_examples", "from_examples", "to_examples"]

# Fields that DSPy's modules add to an answer of their own accord.
_BESIDE_THE_ANSWER = frozenset({"reasoning", "trajectory"})
# Keyword arguments that `dspy.Predict` takes for itself and never shows to the model.
_TAKEN_BY_PREDICT = ("signature", "new_signature", "demos", "config", "lm", "_trace")

Fields = str | Sequence[str] | Callable[[Any], Any]


class DspyMetric(Protocol):
    """What `as_dspy_metric` returns: a plain function that holds its `Metric`."""

    __name__: str
    metric: Metric

    def __call__(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
        program_trace: Any = None,
    ) -> "FeedbackScore":
        """Judge one prediction; see `as_dspy_metric`."""
        ...


def as_dspy_metric(
    score: ScoreFunction | Metric,
    *,
    output: Fields | None = None,
    expected: Fields | None = None,
    metric_lm: Any = None,
    **options: Unpack[MetricOptions],
) -> DspyMetric:
    r"""Make a DSPy metric of `score`, for `dspy.Evaluate` and every DSPy optimiser.

    `score` gets as `input` the example's input fields (`with_inputs`), a dict.

    Args:
        score: `score(input, output, expected=None)`, or a `Metric`.
        output: What of the prediction is judged: the name of one field, a list of names (a dict
            comes), or a function of the prediction. `None`: the value of the one field that the
            example's labels and the prediction share; else of the prediction's only field, with
            `reasoning` and `trajectory` left out; else a dict of the prediction's fields.
        expected: What of the example is expected: a name or a list of names (a dict comes in both
            cases), or a function of the example. `None`: a dict of the fields that are no inputs,
            or `None` when there are none.
        metric_lm: The `dspy.LM` that model calls inside `score` go to. `None`: the one that is set
            where the metric runs, which is the teacher's while demos are bootstrapped.
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        A function `metric(gold, pred, trace=None, pred_name=None, pred_trace=None,
        program_trace=None)` that gives a `FeedbackScore`, and whose `.metric` is the `Metric`.
        It raises nothing but `MetricBroken`, when `score` fails on everything.

    Raises:
        DefinitionError: `score` or an option cannot work.

    Example:
        >>> import dspy
        >>> def score(input, output, expected=None):
        ...     right = output == expected["answer"]
        ...     return float(right), {"feedback": "Right." if right else f"Expected {expected['answer']!r}."}
        >>> metric = as_dspy_metric(score)
        >>> example = dspy.Example(question="2 + 2?", answer="4").with_inputs("question")
        >>> result = metric(example, dspy.Prediction(answer="5"))
        >>> float(result), bool(result), result.feedback
        (0.0, False, "Expected '4'.\n\nScore: 0")
    """
    judge = _Judge(
        as_metric(score, **options),
        _reader("output", output),
        _reader("expected", expected, always_dict=True),
        metric_lm,
    )

    def metric(
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
        program_trace: Any = None,
    ) -> FeedbackScore:
        return judge(gold, pred, pred_name)

    # A plain function, since `Evaluate` titles its column with `__name__` only for one, and a name
    # that no field has, since the column would overwrite the field. `__wrapped__` lets `Refine`
    # show the user's source; `__signature__` keeps dspy.GEPA from reading the user's signature.
    made = cast("Any", metric)
    made.__name__ = made.__qualname__ = f"{judge.metric.name}_metric"
    made.__doc__ = inspect.getdoc(judge.metric.score)
    made.__signature__ = inspect.signature(metric)
    made.__wrapped__ = judge.metric.score
    made.metric = judge.metric
    return cast("DspyMetric", metric)


_dict: Any = dict  # its methods are called past those of `Example`


class FeedbackScore(dspy.Prediction, dict[str, Any]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A score with its feedback, in the one shape that everything in DSPy takes.

    A `dspy.Prediction` (GEPA and SIMBA read score and feedback from one) that is also a dict (what
    JSON writers need) and counts as its number (`Evaluate` sums, optimisers compare). Its truth is
    `score >= success_threshold`, and always false where there is no judgement; such a result also
    reaches no threshold of an optimiser. Treat it as a value: it is made anew for each call.

    Fields:
        score: The number, a float.
        feedback: The text, with the score and the named scores beside it.
        objective_scores: Named scores, when the metric gives any; complete with the names that
            other cases have shown by the time that this is read.
    """

    # `sum` looks `__radd__` up on the type, and `Evaluate` sums all results again after each
    # example. A slot that holds the float's own method makes that a call in C.
    __slots__ = ("__radd__", "_origin")

    _completions = None
    _lm_usage = None

    _origin: tuple[Score, float, Metric | None]  # the judgement, the threshold, what completes the names

    # Made by `_feedback_score`; `Prediction.__init__` would take longer than all else here together.
    __init__ = _dict.__init__

    @property
    def _store(self) -> dict[str, Any]:
        return self  # DSPy's methods read and write the dict itself: there is one store

    @property
    def error(self) -> Exception | None:
        """Why there is no judgement, or `None`."""
        return self._origin[0].error

    def _complete(self) -> None:
        score, _, metric = self._origin
        if metric is not None:
            scores = metric.complete(score)
            if scores:
                _dict.__setitem__(self, "objective_scores", scores)

    # dspy.GEPA asks for the named scores at the end of a batch, when all names of the batch are known.
    def get(self, key: str, default: Any = None) -> Any:
        """Give a field, or `default`."""
        if key == "objective_scores":
            self._complete()
        return _dict.get(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key == "objective_scores":
            self._complete()
        return _dict.__getitem__(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        _dict.__setitem__(self, key, value)
        if key == "score":  # dspy.GEPA writes one
            _set_radd(self, float(value).__radd__)

    def items(self, include_dspy: bool = False) -> Any:
        """Give the fields with their values, named scores complete."""
        self._complete()
        return _dict.items(self)

    __delitem__ = _dict.__delitem__
    __contains__ = _dict.__contains__
    __iter__ = _dict.__iter__
    __len__ = _dict.__len__
    keys = _dict.keys
    values = _dict.values

    # --- truth and number ------------------------------------------------------------------------

    def __bool__(self) -> bool:
        # `json.dump` asks a dict for its truth to find out whether it is empty.
        if sys._getframe(1).f_code.co_filename == _JSON_ENCODER:  # pyright: ignore[reportPrivateUsage]
            return True
        return self._origin[0].error is None and _dict.__getitem__(self, "score") >= self._origin[1]

    def __float__(self) -> float:
        return float(_dict.__getitem__(self, "score"))

    def __ge__(self, other: Any) -> bool:
        return self._origin[0].error is None and float(self) >= float(other)

    def __gt__(self, other: Any) -> bool:
        return self._origin[0].error is None and float(self) > float(other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return _dict.__eq__(self, cast("dict[str, Any]", other))
        return float(self) == other

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __str__(self) -> str:
        return str(float(self))  # what a table or a CSV file shows

    def __repr__(self) -> str:
        return f"FeedbackScore({', '.join(f'{key}={value!r}' for key, value in self.items())})"

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    # --- copies ----------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        self._complete()
        return _restored, (dict(self), *self._origin[:2])

    __reduce_ex__ = lambda self, protocol: self.__reduce__()  # noqa: E731 - dict has its own

    def copy(self, **kwargs: Any) -> "FeedbackScore":
        """Copy it, optionally with other fields."""
        made = _restored(dict(self.items()), *self._origin[:2])
        for key, value in kwargs.items():
            made[key] = value
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "FeedbackScore":
        return self.copy()


def _as_number(method: str) -> Any:
    function = getattr(operator, method, None) or getattr(math, method.strip("_"), None)

    def straight(self: FeedbackScore, *other: Any) -> Any:
        return function(float(self), *(_plain(value) for value in other))  # type: ignore[misc]

    return straight


def _reflected(method: str) -> Any:
    function = getattr(operator, method)
    return lambda self, other: function(_plain(other), float(self))  # pyright: ignore


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, dspy.Prediction) else value


_NUMBER_METHODS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _method in (*_NUMBER_METHODS, "neg", "pos", "abs", "lt", "le"):
    setattr(FeedbackScore, f"__{_method}__", _as_number(f"__{_method}__"))
for _method in (*_NUMBER_METHODS[1:],):
    setattr(FeedbackScore, f"__r{_method}__", _reflected(f"__{_method}__"))

_JSON_ENCODER = json.encoder.JSONEncoder.iterencode.__code__.co_filename
_set_radd = FeedbackScore.__dict__["__radd__"].__set__
_set_origin = FeedbackScore.__dict__["_origin"].__set__


def _feedback_score(
    score: Score, component: str | None, threshold: float, metric: Metric | None
) -> FeedbackScore:
    made = FeedbackScore(score=score.value, feedback=score.text(component))
    # `Example.__setattr__` would be slow, hence the slots' own setters.
    _set_radd(made, score.value.__radd__)
    _set_origin(made, (score, threshold, metric))
    if score.scores:
        _dict.__setitem__(made, "objective_scores", dict(score.scores))
    return made


def _restored(fields: dict[str, Any], score: Score, threshold: float) -> FeedbackScore:
    made = FeedbackScore(fields)
    _set_radd(made, float(fields["score"]).__radd__)
    _set_origin(made, (score, threshold, None))
    return made


# --- from DSPy's objects to a case --------------------------------------------------------------


class _Judge:
    """What stands behind one DSPy metric; an object of a module, so that it pickles."""

    def __init__(
        self,
        metric: Metric,
        output: Callable[[Any], Any] | None,
        expected: Callable[[Any], Any] | None,
        metric_lm: Any,
    ) -> None:
        self.metric = metric
        self._output = output
        self._expected = expected
        self._metric_lm = metric_lm
        self._shape: str | None = None

    def __call__(self, gold: Any, pred: Any, pred_name: str | None) -> FeedbackScore:
        metric = self.metric
        # With a predictor's name dspy.GEPA asks for the text of what it has scored before.
        asks_again = pred_name is not None
        score = metric.recall(gold, pred) if asks_again else None
        if score is None:
            score = self._judged(gold, pred, asks_again)
            if score.error is not None and not asks_again:
                reason = metric.broken()
                if reason is not None:
                    _cancel_queued_work()
                    raise MetricBroken(reason)
        return _feedback_score(score, pred_name, metric.success_threshold, metric)

    def _judged(self, gold: Any, pred: Any, again: bool) -> Score:
        metric = self.metric
        input, expected = _input_and_labels(gold)
        rollout = (gold, pred)
        if pred is None:
            return metric.program_failed(input, rollout=rollout)
        if isinstance(pred, FailedPrediction):
            said = f"Its answer could not be parsed: {pred.completion_text}"
            return metric.program_failed(input, said, rollout=rollout)
        try:
            if self._expected is not None:
                expected = self._expected(gold)
            if self._output is None:
                output, perfect = self._answer(pred, expected)
            else:
                output, perfect = self._output(pred), UNKNOWN
        except Exception as error:
            return metric.unreadable(input, str(error) if isinstance(error, DataError) else repr(error))
        if self._metric_lm is None:
            return metric.judge(input, output, expected, rollout=rollout, perfect=perfect, again=again)
        with dspy.context(lm=self._metric_lm):
            return metric.judge(input, output, expected, rollout=rollout, perfect=perfect, again=again)

    def _answer(self, pred: Any, labels: Any) -> tuple[Any, Any]:
        """Find what is judged, and what would be a perfect answer in the same shape."""
        if isinstance(pred, dspy.Prediction):
            fields: dict[str, Any] = _fields_of(pred)
        elif isinstance(pred, dict):
            fields = pred
        else:
            return pred, UNKNOWN
        if type(labels) is not dict:
            labels = {}
        if len(fields) == 1:
            (name,) = fields
        else:
            own = [name for name in fields if name not in _BESIDE_THE_ANSWER]
            shared = [name for name in own if name in labels]
            if len(shared) != 1 and len(own) != 1:
                self._note_shape("")
                perfect = {**fields, **{name: labels[name] for name in shared}} if shared else UNKNOWN
                return dict(fields), perfect
            name = shared[0] if len(shared) == 1 else own[0]
        if self._shape != name:
            self._note_shape(name)
        return fields[name], labels.get(name, UNKNOWN)

    def _note_shape(self, shape: str) -> None:
        before, self._shape = self._shape, shape
        if before is not None and before != shape:
            told = [f"the value of {name!r}" if name else "a dict of all fields" for name in (before, shape)]
            self.metric.warn_once(
                "shape",
                "metric %r got %s as output for one case and %s for another; say which with output=, "
                'as in as_dspy_metric(score, output="answer")',
                self.metric.name,
                *told,
            )


# What `inputs()`, `labels()` and `items()` read. They build an Example each, which costs more than all
# the rest here, and `example.items` is a field where a column has that name.
_fields_of: Callable[[Any], dict[str, Any]] = operator.attrgetter("_store")
_input_keys: Callable[[Any], set[str] | None] = operator.attrgetter("_input_keys")


def _input_and_labels(gold: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if not isinstance(gold, dspy.Example):
        return (dict(gold) if isinstance(gold, Mapping) else {"input": gold}), None
    fields, keys = _fields_of(gold), _input_keys(gold)
    if keys is None:
        return dict(fields), None
    inputs: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    for name, value in fields.items():
        if name in keys:
            inputs[name] = value
        elif name[:5] != "dspy_":
            labels[name] = value
    return inputs, labels or None


def _reader(option: str, fields: Any, always_dict: bool = False) -> Callable[[Any], Any] | None:
    if fields is None or callable(fields):
        return fields
    if isinstance(fields, str):
        one = functools.partial(_field, option, fields)
        return functools.partial(_fields, option, (fields,)) if always_dict else one
    names: tuple[Any, ...] = tuple(fields) if isinstance(fields, Sequence) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise DefinitionError(
            f"{option}={fields!r} cannot be used: it is a field's name, a list of names, or a function"
        )
    return functools.partial(_fields, option, names)


def _field(option: str, name: str, holder: Any) -> Any:
    try:
        if isinstance(holder, dspy.Example | Mapping):
            return cast("Any", holder)[name]
        return getattr(holder, name)
    except (KeyError, AttributeError):
        there = list(cast("Any", holder)) if isinstance(holder, dspy.Example | Mapping) else []
        what = "prediction" if option == "output" else "example"
        raise DataError(
            f"the {what} has no field {name!r}, which {option}= asks for; it has {there or shown(holder)}"
        ) from None


def _fields(option: str, names: Sequence[str], holder: Any) -> dict[str, Any]:
    return {name: _field(option, name, holder) for name in names}


# --- what a metric does stays inside it ----------------------------------------------------------


class _DspyIsolation:
    """Keep the metric's own model calls out of the program's trace, usage and history.

    `dspy.context` does the same in five times the time, and freezes all other settings too. The
    variable is the one that it sets, and DSPy's worker threads inherit it (dspy 3.4.1).
    """

    _MARK = "skynet_adapters_inside_metric"
    _OFF: Mapping[str, Any] = {
        "usage_tracker": None,
        "caller_modules": None,
        "caller_predict": None,
        "send_stream": None,
        _MARK: True,
    }

    def enter(self) -> Any:
        overrides: Any = {**thread_local_overrides.get(), **self._OFF, "trace": []}
        return thread_local_overrides.set(overrides)

    def leave(self, token: Any) -> None:
        thread_local_overrides.reset(token)

    def inside(self) -> bool:
        return self._MARK in thread_local_overrides.get()


isolations.append(_DspyIsolation())


class _SetForWorkers(threading.Event):
    """A flag that only the threads of one pool see as set."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self._pool = pool

    def is_set(self) -> bool:
        return super().is_set() or threading.current_thread().name.startswith(self._pool)


def _cancel_queued_work() -> None:
    """Keep DSPy's executor from running what it has queued, when the run is about to stop.

    The `MetricBroken` that follows ends the executor's main loop, but not its queue (dspy 3.4.1,
    `ParallelExecutor._execute_parallel`): every program call in it would still be paid. Its workers
    look at a cancel flag before each item. When the main loop sees that flag too, it raises
    "Execution cancelled" in place of the fault's name, so only the workers may see it as set.
    """
    pool, _, number = threading.current_thread().name.rpartition("_")
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and number.isdigit():
        executor = frame.f_locals.get("self") if frame.f_code.co_name == "worker" else None
        if isinstance(executor, ParallelExecutor):
            executor.cancel_jobs = _SetForWorkers(f"{pool}_")
            return
        frame = frame.f_back


# --- cases and examples ---------------------------------------------------------------------------


def to_examples(cases: Iterable[Case]) -> list[dspy.Example]:
    """Turn cases into DSPy examples, with their inputs set.

    Args:
        cases: Their input fields become the example's inputs, their expected fields its labels.

    Returns:
        One example for each case, in order.

    Raises:
        DataError: A field is both input and expected, or has a name that DSPy keeps for itself.

    Example:
        >>> [example] = to_examples([Case("1", {"text": "hi"}, {"label": "greeting"})])
        >>> example.inputs().toDict(), example.labels().toDict()
        ({'text': 'hi'}, {'label': 'greeting'})
    """
    return [_example(case) for case in cases]


def from_examples(examples: Iterable[dspy.Example]) -> list[Case]:
    """Turn DSPy examples into cases; the id is the position, counted from 1.

    Args:
        examples: Each with its inputs set (`with_inputs`).

    Returns:
        One case for each example, in order.

    Raises:
        DataError: An example has no inputs set.

    Example:
        >>> import dspy
        >>> from_examples([dspy.Example(text="hi", label="greeting").with_inputs("text")])
        [Case(id='1', input={'text': 'hi'}, expected={'label': 'greeting'})]
    """
    examples = list(examples)
    check_examples(examples, expected=False)
    return [Case(str(number), *_input_and_labels(example)) for number, example in enumerate(examples, 1)]


def check_examples(
    examples: Sequence[dspy.Example], program: dspy.Module | None = None, *, expected: bool = True
) -> None:
    """Find what is wrong with a data set before anything is paid.

    DSPy does not say: `Evaluate` and `dspy.GEPA` give such a case 0.0 without asking the metric.

    Args:
        examples: The data set.
        program: Its inputs are compared with the examples'; `None`: they are not.
        expected: Whether each example must have a field that is no input.

    Raises:
        DataError: The data set is empty, an item is no `dspy.Example`, `with_inputs` is missing or
            names a field that is not there, the program takes other inputs, or there is nothing to
            expect. Names the first example of each fault and counts the others.

    Example:
        >>> import dspy
        >>> check_examples([dspy.Example(question="2 + 2?", answer="4")])
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DataError: 1 example cannot be used.
        - example 1 has no inputs set; call .with_inputs("question", ...) on it (1 such example)
    """
    if not len(examples):
        raise DataError("the data set is empty; there is nothing to evaluate or learn from")
    faults: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for number, example in enumerate(examples, 1):
        found = _fault(example, program, expected)
        if found is not None:
            kind, text = found
            faults.setdefault(kind, []).append(number)
            texts.setdefault(kind, text)
    if faults:
        bad = sum(len(numbers) for numbers in faults.values())
        lines = [
            f"- example {numbers[0]} {texts[kind]} ({_counted(len(numbers), 'such example')})"
            for kind, numbers in faults.items()
        ]
        raise DataError("\n".join([f"{_counted(bad, 'example')} cannot be used.", *lines]))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _fault(example: Any, program: dspy.Module | None, expected: bool) -> tuple[str, str] | None:
    if not isinstance(example, dspy.Example):
        return "type", f"is {shown(example)}, not a dspy.Example; to_examples makes them from cases"
    fields, keys = _fields_of(example), _input_keys(example)
    if keys is None:
        first = f'"{next(iter(fields))}", ' if fields else ""
        return "inputs", f"has no inputs set; call .with_inputs({first}...) on it"
    absent = sorted(key for key in keys if key not in fields)
    if absent:
        return "absent", f"names {absent} in with_inputs, but its fields are {list(fields)}"
    if not keys:
        return "none", f"has no inputs: with_inputs() was called without names; its fields are {list(fields)}"
    if program is not None:
        wanted, optional, takes_any = _program_inputs(program)
        missing = [name for name in wanted if name not in keys]
        if missing:
            return "missing", f"lacks the program's inputs {missing}; its inputs are {sorted(keys)}"
        unknown = sorted(key for key in keys if key not in wanted and key not in optional)
        if unknown and not takes_any:
            return "unknown", f"has the inputs {unknown}, which the program does not take; it takes {wanted}"
        taken = sorted(keys.intersection(_TAKEN_BY_PREDICT))
        if taken and isinstance(program, dspy.Predict):
            return "taken", f"has inputs named {taken}, which dspy.Predict keeps for itself; rename them"
    if expected and _input_and_labels(example)[1] is None:
        return "labels", "has nothing but inputs, so the metric gets expected=None (expected=False allows it)"
    return None


def _program_inputs(program: dspy.Module) -> tuple[list[str], list[str], bool]:
    """Give the names that a program needs, those it may get, and whether it takes any other."""
    parameters = inspect.signature(cast("Any", type(program)).forward).parameters.values()
    named = [
        item for item in list(parameters)[1:] if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    ]
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    if named or not takes_any:
        wanted = [item.name for item in named if item.default is item.empty]
        return wanted, [item.name for item in named if item.default is not item.empty], takes_any
    predictors = program.predictors()
    if isinstance(program, dspy.Predict) or len(predictors) == 1:
        signature: Any = program.signature if isinstance(program, dspy.Predict) else predictors[0].signature
        return list(signature.input_fields), [], not isinstance(program, dspy.Predict | dspy.ChainOfThought)
    return [], [], True


def _example(case: Case) -> dspy.Example:
    labels = case.expected or {}
    both = [name for name in case.input if name in labels]
    if both:
        raise DataError(
            f"case {case.id!r}: {both[0]!r} is both an input and an expected field, and a dspy.Example "
            "holds each name once; rename one of them"
        )
    for name in (*case.input, *labels):
        if name == "self" or re.match("dspy_", name):
            raise DataError(f"case {case.id!r}: DSPy keeps the name {name!r} for itself; rename the field")
    return dspy.Example({**case.input, **labels}).with_inputs(*case.input)
