# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One `score` for DSPy: its metric and reward, its examples, its programs as artifacts.

Built around dspy 3.4.1. Where a line answers one of its quirks, a comment names it.
"""

import contextlib
import difflib
import functools
import inspect
import operator
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Unpack, cast, get_args

import dspy
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.parallelizer import ParallelExecutor

from .artifacts import to_candidate
from .cases import Case, Split
from .dspy_measuring import INSIDE_METRIC, judging, measured, measuring
from .dspy_models import BilledCalls
from .errors import DataError, DefinitionError, MetricBroken, MetricReturnError
from .failures import Failures
from .feedback_score import FeedbackScore, feedback_score
from .function import function_name, without_partials
from .llm import checked_models, models
from .metric import Metric, ScoreFunction, forms, isolations, metric_with
from .options import MetricOptions
from .score import Score, shown

__all__ = [
    "DspyMetric",
    "DspyReward",
    "FeedbackScore",
    "as_dspy_metric",
    "as_dspy_reward",
    "check_examples",
    "from_dspy_metric",
    "from_examples",
    "measuring",
    "program_artifact",
    "program_run",
    "to_examples",
    "to_program",
]

# Fields that DSPy's modules add to an answer of their own accord.
_BESIDE_THE_ANSWER = frozenset({"reasoning", "trajectory"})
# Names that no program can be called with: parameters of DSPy's own wrappers.
_KEPT_BY_DSPY = ("self", "instance")
# Keyword arguments that `dspy.Predict` takes for itself and never shows to the model.
_TAKEN_BY_PREDICT = ("signature", "new_signature", "demos", "config", "lm", "_trace")

Fields = str | Sequence[str] | Callable[[Any], Any]


class DspyMetric(Protocol):
    """What `as_dspy_metric` returns: a plain function that holds its `Metric`."""

    __name__: str
    metric: Metric
    failures: Failures

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
    reflection_lm: Any = None,
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
        metric_lm: The `dspy.LM`, or its name, that model calls inside `score` go to: those of
            `llm`, and those of DSPy's own modules. `None`: for `llm` what `models` or `set_models`
            chose, and never the program's model; for DSPy's modules the one that is set where the
            metric runs, which is the teacher's while demos are bootstrapped. For `llm` it may also
            be a function of a list of messages.
        reflection_lm: The same, which `llm` asks where there is no metric model.
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
        _as_metric(score, options),
        _reader("output", output),
        _reader("expected", expected, always_dict=True),
        metric_lm,
        reflection_lm,
    )
    judge.metric.begin_again()  # a run that this metric stopped is over

    def metric(
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: str | None = None,
        pred_trace: Any = None,
        program_trace: Any = None,
    ) -> FeedbackScore:
        return judge.result(gold, pred, pred_name)

    return cast("DspyMetric", _dressed(metric, judge.metric, f"{judge.metric.name}_metric"))


class DspyReward(Protocol):
    """What `as_dspy_reward` returns: a plain function that holds its `Metric`."""

    __name__: str
    metric: Metric
    failures: Failures

    def __call__(self, args: dict[str, Any], pred: Any) -> FeedbackScore:
        """Judge one answer; see `as_dspy_reward`."""
        ...


def as_dspy_reward(
    score: ScoreFunction | Metric,
    *,
    output: Fields | None = None,
    metric_lm: Any = None,
    reflection_lm: Any = None,
    **options: Unpack[MetricOptions],
) -> DspyReward:
    """Make a reward function of `score`, for `dspy.BestOfN` and `dspy.Refine`.

    They know no expected value, so `score` gets `expected=None`. They run in production too, so a
    reward never raises and never stops the program: where there is no judgement, the answer ranks
    below every other one and reaches no threshold. `Refine` shows its model the source of `score`,
    the score and the feedback.

    Args:
        score: `score(input, output, expected=None)`, or a `Metric`.
        output: As for `as_dspy_metric`; `None`: the prediction's only field, with `reasoning` and
            `trajectory` left out, else a dict of its fields.
        metric_lm: As for `as_dspy_metric`.
        reflection_lm: As for `as_dspy_metric`.
        **options: Those of `Metric`; none are allowed beside a `Metric`.

    Returns:
        A function `reward(args, pred)` that gives a `FeedbackScore`, and whose `.metric` is the
        `Metric`.

    Raises:
        DefinitionError: `score` or an option cannot work.

    Example:
        >>> import dspy
        >>> def short(input, output, expected=None):
        ...     return float(len(output.split()) == 1), {"feedback": "Answer in one word."}
        >>> reward = as_dspy_reward(short)
        >>> best = dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=reward, threshold=1.0)
        >>> float(reward({"question": "Capital of Belgium?"}, dspy.Prediction(answer="Brussels")))
        1.0
    """
    judge = _Judge(_as_metric(score, options), _reader("output", output), None, metric_lm, reflection_lm)

    def reward(args: dict[str, Any], pred: Any) -> FeedbackScore:
        return judge.reward(args, pred)

    return cast("DspyReward", _dressed(reward, judge.metric, f"{judge.metric.name}_reward"))


def _as_metric(score: Any, options: MetricOptions) -> Metric:
    judge = _judge_of(score)
    if judge is not None:
        if not judge.is_plain:
            raise DefinitionError(f"{score.__name__!r} is a DSPy metric already; pass it to DSPy as it is")
        score = judge.metric
    if isinstance(score, dspy.Module):  # its signature, `*args, **kwargs`, would pass for any
        raise DefinitionError(
            f"{function_name(score)!r} is a dspy.Module; pass from_dspy_metric({function_name(score)}())"
        )
    return metric_with(score, options, ("output", "expected", "metric_lm", "reflection_lm"))


def _dressed(function: Any, metric: Metric, name: str) -> Any:
    """Give a function for DSPy what DSPy reads of it.

    `Evaluate` titles its column with `__name__`, only for a plain function, and the column must not
    overwrite a field. `__wrapped__` lets `Refine` show the user's source. `__signature__` keeps
    dspy.GEPA from reading the user's signature.
    """
    function.__name__ = function.__qualname__ = name
    function.__doc__ = inspect.getdoc(metric.score)
    function.__signature__ = inspect.signature(function)
    source = _with_source(metric.score)
    if source is not None:
        function.__wrapped__ = source
    function.metric, function.failures = metric, metric.failures
    return function


def _with_source(score: Any) -> Any:
    """Give the function whose source says what `score` does; `None` where there is none to read.

    `Refine` fails to start when it cannot read a source.
    """
    score = without_partials(score)
    if isinstance(score, _DspyScore):
        score = without_partials(score.metric)
    function = score if inspect.isroutine(score) else type(score).__call__
    try:
        inspect.getsource(function)
    except (OSError, TypeError):
        return None
    return function


# --- DSPy metrics that users have already --------------------------------------------------------


def from_dspy_metric(metric: Any, *, output: str | None = None) -> ScoreFunction:
    """Make a `score` of a DSPy metric, for every target.

    Args:
        metric: `metric(example, pred, trace=None)` or with GEPA's five parameters, or a module such
            as `dspy.evaluate.SemanticF1`. It may return a bool, a number, or a `dspy.Prediction`
            (or dict) with `score` and, if it likes, `feedback` and `objective_scores`. It is called
            without a trace, as for evaluation: an idiom such as `if trace is not None: return score
            > 0.8` is answered by `success_threshold` here, and a text for one predictor by
            `component_feedback`.
        output: Name of the prediction's field that an output which is no dict stands for; `None`:
            the only field of `expected`.

    Returns:
        A `score(input, output, expected=None)`. `as_dspy_metric` gives it the whole prediction as
        output. Of a metric made by `as_dspy_metric` it is the `Metric` inside.

    Raises:
        DefinitionError: `metric` is none.

    Example:
        >>> import dspy
        >>> score = from_dspy_metric(dspy.evaluate.answer_exact_match)
        >>> value, info = score({"question": "2 + 2?"}, "5", {"answer": "4"})
        >>> value, info["feedback"]
        (False, "The metric 'answer_exact_match' gave False. Expected {'answer': '4'}, got '5'.")
    """
    judge = _judge_of(metric)
    if judge is None:
        return _DspyScore(metric, output)
    if output is not None:
        raise DefinitionError(
            f"{metric.__name__!r} says itself which field it judges; give output= to as_dspy_metric instead"
        )
    # With fields or a model of its own, its `Metric` alone would judge something else.
    return judge.metric if judge.is_plain else _DspyScore(metric, None)


def _judge_of(metric: Any) -> "_Judge | None":
    """Find what stands behind a function that was made here; a user's wrapper around one has none."""
    for cell in getattr(metric, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            if isinstance(cell.cell_contents, _Judge):
                return cell.cell_contents
    return None


class _DspyScore:
    """A DSPy metric as `score`."""

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

    def __call__(self, input: Any, output: Any, expected: Any = None) -> tuple[Any, dict[str, Any]]:
        labels: dict[str, Any] = expected or {}
        gold = dspy.Example({**input, **labels}).with_inputs(*input)
        returned = self.metric(gold, self._prediction(output, labels), *self._nones)
        if isinstance(returned, FeedbackScore):  # of a metric made here that this one asks
            return _pair(returned.judgement)
        fields = _result_fields(returned)
        number = fields.pop("score", None)
        if number is None or isinstance(number, str | tuple | list):
            raise MetricReturnError(
                f"the DSPy metric {self.__name__!r} returned {shown(returned)}; it has to return a number, a "
                'bool or dspy.Prediction(score=0.8, feedback="Close. Missing the date.")'
            )
        feedback = fields.pop("feedback", None)
        if feedback is None or feedback == "":
            answer = _fields_of(output) if isinstance(output, dspy.Prediction) else output
            wanted, given = (shown(value, with_type=False) for value in (expected, answer))
            told = f"Got {given}." if expected is None else f"Expected {wanted}, got {given}."
            feedback = f"The metric {self.__name__!r} gave {number}. {told}"
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


def _result_fields(returned: Any) -> dict[str, Any]:
    if isinstance(returned, dspy.Prediction):
        return dict(_fields_of(returned))
    return dict(cast("dict[str, Any]", returned)) if isinstance(returned, dict) else {"score": returned}


# --- from DSPy's objects to a case --------------------------------------------------------------


class _Judge:
    """What stands behind one DSPy metric; an object of a module, so that it pickles."""

    def __init__(
        self,
        metric: Metric,
        output: Callable[[Any], Any] | None,
        expected: Callable[[Any], Any] | None,
        metric_lm: Any,
        reflection_lm: Any,
    ) -> None:
        checked_models(metric_lm, reflection_lm)
        self.metric = metric
        # A metric that was DSPy's reads what it likes of the prediction.
        self._output = _itself if output is None and isinstance(metric.score, _DspyScore) else output
        self._expected = expected
        self._metric_lm = dspy.LM(metric_lm) if isinstance(metric_lm, str) else metric_lm
        self._reflection_lm = reflection_lm
        self._shape: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to it but the metric."""
        no_models = self._metric_lm is None and self._reflection_lm is None
        return self._output is None and self._expected is None and no_models

    def result(self, gold: Any, pred: Any, pred_name: str | None) -> FeedbackScore:
        metric = self.metric
        # With a predictor's name dspy.GEPA asks for the text of what it has scored before.
        asks_again = pred_name is not None
        score = metric.recall(gold, pred) if asks_again else None
        if score is None:
            try:
                score = self._judged(gold, pred, asks_again)
                if score.error is not None and not asks_again:
                    self._stop_when_broken()
            except MetricBroken:  # also of another metric that the score asks
                _cancel_queued_work()
                raise
        if asks_again and "component_feedback" in score.info:
            pred_name = self._component(score.info["component_feedback"], pred_name)
        return feedback_score(score, pred_name, metric.success_threshold, metric)

    def _stop_when_broken(self) -> None:
        reason = self.metric.broken()
        if reason is not None:
            self.metric.begin_again()
            raise MetricBroken(reason)

    def _component(self, texts: Mapping[str, str], asked: str) -> str:
        """Find the key that means the predictor; `reply` may stand for `reply.predict`, a ChainOfThought."""
        short = asked.removesuffix(".predict")
        if asked in texts or short in texts:
            return asked if asked in texts else short
        for near in difflib.get_close_matches(asked, texts, n=1, cutoff=0.7):
            self.metric.warn_once(
                f"component {near}",
                "metric %r gave component_feedback for %r, and there is a predictor %r; did you mean that? "
                "program.named_predictors() has the names.",
                self.metric.name,
                near,
                asked,
            )
        return asked

    def reward(self, args: Any, pred: Any) -> FeedbackScore:
        metric = self.metric
        # What serves in production must not be stopped by the rule for runs, not even by that of
        # another metric which the score asks.
        try:
            score = self._judged(args, pred, again=True)
        except MetricBroken as error:
            score = metric.cannot_ask(args, str(error), rollout=(args, pred), again=True)
        return feedback_score(score, None, metric.success_threshold, metric)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the judge's model behind: it holds locks and keys."""
        lost = self._metric_lm is not None or self._reflection_lm is not None
        return {**self.__dict__, "_metric_lm": None, "_reflection_lm": None, "lost_metric_lm": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Say so when a judge's model stayed behind."""
        lost = state.pop("lost_metric_lm")
        self.__dict__.update(state)
        if lost:
            self.metric.warn_once(
                "metric_lm",
                "metric %r was saved with a metric_lm=, which is not saved with it; its model calls now go "
                "to the model that is set where it runs. Make it anew with metric_lm= to have its own.",
                self.metric.name,
            )

    def _judged(self, gold: Any, pred: Any, again: bool) -> Score:
        metric = self.metric
        observation = measured(pred)  # in this thread, before any model call of a judge
        input, expected = _input_and_labels(gold)
        rollout = (gold, pred)
        wrong = _wrong_case(gold)
        if wrong is not None:
            return metric.cannot_ask(input, wrong, rollout=rollout, again=again)
        if pred is None:
            return metric.program_failed(input, rollout=rollout)
        if isinstance(pred, FailedPrediction):
            said = f"Its answer could not be parsed: {pred.completion_text}"
            return metric.program_failed(input, said, rollout=rollout)
        reader = "expected"
        try:
            if self._expected is not None:
                expected = self._expected(gold)
            reader = "output"
            output = self._answer(pred, expected) if self._output is None else self._output(pred)
        except (Exception, SystemExit) as error:
            why = (
                str(error)
                if isinstance(error, DataError)
                else f"the function given as {reader}= raised {error!r}"
            )
            return metric.cannot_ask(input, why, rollout=rollout, again=again)
        ask = functools.partial(
            metric.judge, input, output, expected, rollout=rollout, perfect=self._perfect, again=again
        )
        if observation is None and self._metric_lm is None and self._reflection_lm is None:
            return ask()
        with judging(), self._models():
            return ask(observation=observation)

    @contextlib.contextmanager
    def _models(self) -> Generator[None]:
        """Set the models that were given here, for `llm` and for DSPy's own modules."""
        lm = self._metric_lm
        own = dspy.context(lm=lm) if isinstance(lm, dspy.BaseLM) else contextlib.nullcontext()
        with own, models(metric_lm=lm, reflection_lm=self._reflection_lm):
            yield

    def _answer(self, pred: Any, labels: Any, note: bool = True) -> Any:
        """Find what is judged; `note` says whether it is a case of the run."""
        if isinstance(pred, dspy.Prediction):
            fields: dict[str, Any] = _fields_of(pred)
        elif isinstance(pred, dict):
            fields = pred
        else:
            return pred
        if len(fields) == 1:
            (name,) = fields
        else:
            own = [name for name in fields if name not in _BESIDE_THE_ANSWER]
            shared = [name for name in own if name in labels] if type(labels) is dict else []
            if len(shared) != 1 and len(own) != 1:
                if note and self._shape != "":
                    self._note_shape("")
                return dict(fields)
            name = shared[0] if len(shared) == 1 else own[0]
        if note and self._shape != name:
            self._note_shape(name)
        return fields[name]

    def _perfect(self, pred: Any, labels: Any) -> list[Any]:
        """Give the outputs of predictions that have the expected values in their fields; none without any."""
        fields: dict[str, Any] = _fields_of(pred) if isinstance(pred, dspy.Prediction) else pred
        wanted = {name: forms(labels[name], value) for name, value in fields.items() if name in labels}
        count = max(map(len, wanted.values()), default=0)
        rights = [
            dspy.Prediction(fields | {name: ways[min(way, len(ways) - 1)] for name, ways in wanted.items()})
            for way in range(count)
        ]
        return [
            self._answer(right, labels, note=False) if self._output is None else self._output(right)
            for right in rights
        ]

    def _note_shape(self, shape: str) -> None:
        before, self._shape = self._shape, shape
        if before is not None:
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


def _itself(pred: Any) -> Any:
    return pred


def _wrong_case(gold: Any) -> str | None:
    if isinstance(gold, dspy.Example):
        if _input_keys(gold) is not None:
            return None
        return "the example has no inputs set; call .with_inputs(...) on it with the names of its inputs"
    if isinstance(gold, Mapping):  # the keyword arguments that `BestOfN` and `Refine` give
        return None
    return f"it wants a dspy.Example and a prediction, and got {shown(gold)}; to_examples makes examples"


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

    _OFF: ClassVar[dict[str, Any]] = {"usage_tracker": None, "caller_predict": None, "send_stream": None}
    _DEPTH = "skynet_adapters_metric_depth"

    def enter(self, metric: Metric, is_awaited: bool) -> Any:
        calls = BilledCalls(metric.bill)
        overrides: Any = thread_local_overrides.get() | self._OFF
        overrides["trace"], overrides["caller_modules"] = [], [calls]
        overrides[INSIDE_METRIC] = metric.bill
        if is_awaited:
            overrides[self._DEPTH] = self.depth() + 1
        return thread_local_overrides.set(overrides), calls, metric

    def leave(self, token: Any) -> None:
        before, calls, metric = token
        if calls:  # asked about while the model that is set here is still the one they went to
            name = getattr(dspy.settings.lm, "model", None)
            if any(call.get("model") == name for call in calls):
                metric.note_model(str(name))
        thread_local_overrides.reset(before)

    def inside(self) -> bool:
        return INSIDE_METRIC in thread_local_overrides.get()

    def depth(self) -> int:
        return thread_local_overrides.get().get(self._DEPTH, 0)


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
    if not number.isdigit():
        return  # no thread of a pool: there is no queue
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        executor = frame.f_locals.get("self") if frame.f_code.co_name == "worker" else None
        if isinstance(executor, ParallelExecutor):
            executor.cancel_jobs = _SetForWorkers(f"{pool}_")
            return
        frame = frame.f_back


# --- a program as an artifact ---------------------------------------------------------------------


def program_artifact(program: dspy.Module) -> dict[str, str]:
    """Give a program's instructions as an artifact, for a GEPA run outside `dspy.GEPA`.

    Args:
        program: Any DSPy program.

    Returns:
        Predictor name to instruction, as `program.named_predictors()` names them.

    Raises:
        DefinitionError: It is no `dspy.Module`, or has no predictor.

    Example:
        >>> import dspy
        >>> program_artifact(dspy.Predict(dspy.Signature("question -> answer", "Be brief.")))
        {'self': 'Be brief.'}
    """
    _check_program(program, "a text or a dict of texts is an artifact as it is")
    predictors = cast("list[tuple[str, Any]]", program.named_predictors())
    artifact = {name: predictor.signature.instructions for name, predictor in predictors}
    if not artifact:
        raise DefinitionError(f"{shown(program)} has no predictor, and so no instruction to optimise")
    return artifact


def to_program(artifact: Mapping[str, str], like: dspy.Module) -> dspy.Module:
    """Make a program of an artifact: a copy of `like` with these instructions.

    Args:
        artifact: Predictor name to instruction, from `program_artifact` or a GEPA run over it. DSPy
            itself drops the indentation and the empty lines around an instruction, as of a docstring.
        like: The program that the artifact came from; not changed.

    Returns:
        The copy.

    Raises:
        DefinitionError: The names are not those of the program's predictors, or a part is no text.

    Example:
        >>> import dspy
        >>> program = to_program({"self": "Be kind."}, like=dspy.Predict("question -> answer"))
        >>> program.signature.instructions
        'Be kind.'
    """
    parts = to_candidate(cast("dict[str, str]", artifact))
    made = like.deepcopy()
    predictors = cast("dict[str, Any]", dict(made.named_predictors()))
    if set(predictors) != set(parts):
        raise DefinitionError(
            f"the artifact names {sorted(parts)}, and the program's predictors are {sorted(predictors)}; "
            "use the program that program_artifact was given"
        )
    for name, predictor in predictors.items():
        predictor.signature = predictor.signature.with_instructions(parts[name])
        predictor.signature.instructions = parts[name]  # DSPy puts its own in the place of an empty one
    return made


def program_run(program: dspy.Module, *, output: Fields | None = None) -> Callable[[Any, Any], Any]:
    """Make the `run` of a DSPy program, for `as_gepa_adapter` and `as_gepa_evaluator`.

    Where `dspy.GEPA` drops a case whose program raises or whose answer does not parse, a run of this
    keeps it, with a text that says what happened.

    Args:
        program: Its instructions are the artifact, see `program_artifact`. It is taken as it is now:
            a model, demos or whatever is set on it later does not change the run.
        output: What of the prediction is the output, as for `as_dspy_metric`. `None`: its only field,
            with `reasoning` and `trajectory` left out, else a dict of its fields.

    Returns:
        A function `run(artifact, input)` that gives the output. It asks the program's own model, else
        the one that is set where it runs. `cloudpickle` takes it, with what the program holds (`pickle`
        takes no signature of DSPy).

    Raises:
        DefinitionError: `program` is no `dspy.Module`, or `output` is no field's name, list of names
            or function.

    Example:
        >>> import dspy
        >>> program = dspy.Predict("question -> answer")
        >>> artifact, run = program_artifact(program), program_run(program)
    """
    _check_program(program, "a function is a `run` as it is")
    return _ProgramRun(program, _reader("output", output) or _only_answer)


def _check_program(program: Any, instead: str) -> None:
    if not isinstance(program, dspy.Module):
        raise DefinitionError(f"{shown(program)} is no dspy.Module; {instead}")


class _ProgramRun:
    """What `program_run` returns; it can be pickled for other processes, the copies in it stay behind."""

    def __init__(self, program: Any, read: Callable[[Any], Any]) -> None:
        # A copy: old candidates are not judged anew, so one that changes would be judged by two measures.
        self._program = program.deepcopy()
        self._read = read
        # A copy of the program for each candidate, not for each case.
        self._made = functools.lru_cache(maxsize=16)(self._make)

    def _make(self, parts: tuple[tuple[str, str], ...]) -> Any:
        return to_program(dict(parts), self._program)

    def __reduce__(self) -> Any:
        return _ProgramRun, (self._program, self._read)

    def __call__(self, artifact: Mapping[str, str], input: Mapping[str, Any]) -> Any:
        return self._read(self._made(tuple(artifact.items()))(**input))


def _only_answer(pred: Any) -> Any:
    if not isinstance(pred, dspy.Prediction):
        return pred
    fields = _fields_of(pred)
    own = [name for name in fields if name not in _BESIDE_THE_ANSWER]
    return fields[own[0]] if len(own) == 1 else dict(fields)


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
    if isinstance(cases, str | Case | Mapping | Split):
        mend = (
            "one part, such as parts.train"
            if isinstance(cases, Split)
            else "a list of them, as from load_cases"
        )
        raise DataError(f"to_examples takes cases, and got {shown(cast('Any', cases))}; give it {mend}")
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


def check_examples(examples: Sequence[dspy.Example], program: Any = None, *, expected: bool = True) -> None:
    """Find what is wrong with a data set before anything is paid.

    DSPy does not say: without `with_inputs`, or with inputs that a module's `forward` refuses,
    `Evaluate` and `dspy.GEPA` give 0.0 without asking the metric; `dspy.Predict` asks the model
    without the field that is missing.

    Args:
        examples: The data set.
        program: A module or function, whose inputs are compared with the examples'; `None`: they are
            not. What a program of your own takes as `**inputs` cannot be known.
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
    if isinstance(program, str | type):
        raise DataError(f"program={shown(program)} is no program; give a module, such as dspy.Predict(...)")
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


def _fault(example: Any, program: Any, expected: bool) -> tuple[str, str] | None:
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
            takes = [*wanted, *optional]
            return "unknown", f"has the inputs {unknown}, which the program does not take; it takes {takes}"
    taken = sorted(keys.intersection(_KEPT_BY_DSPY))
    if taken or (_is_dspys_own(program) and (taken := sorted(keys.intersection(_TAKEN_BY_PREDICT)))):
        return "taken", f"has inputs named {taken}, which DSPy keeps for itself; rename them"
    if expected and _input_and_labels(example)[1] is None:
        return "labels", "has nothing but inputs, so the metric gets expected=None (expected=False allows it)"
    return None


def _program_inputs(program: Any) -> tuple[list[str], list[str], bool]:
    """Give the names that a program needs, those it may get, and whether it takes any other."""
    dspys_own = _is_dspys_own(program)
    own_call = isinstance(program, dspy.Module) and type(program).__call__ is not dspy.Module.__call__
    forward = _forward(program)
    if forward is None or (own_call and not dspys_own):
        return [], [], True
    parameters = inspect.signature(forward).parameters.values()
    named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
    # `MultiChainComparison` names what it makes the signature's other fields of.
    if dspys_own and len(program.predictors()) == 1 and not named:
        fields = cast("Any", program).predictors()[0].signature.input_fields
        wanted = [name for name, field in fields.items() if field.is_required() and not _allows_none(field)]
        return wanted, [name for name in fields if name not in wanted], False
    wanted = [item.name for item in named if item.default is item.empty]
    takes_any = any(item.kind is item.VAR_KEYWORD for item in parameters)
    return wanted, [item.name for item in named if item.name not in wanted], takes_any


def _is_dspys_own(program: Any) -> bool:
    return isinstance(program, dspy.Module) and type(program).__module__.startswith("dspy.")


def _allows_none(field: Any) -> bool:
    return field.annotation is None or type(None) in get_args(field.annotation)


def _forward(program: Any) -> Any:
    if not isinstance(program, dspy.Module):
        return program if callable(program) else None
    try:
        # Past the warning that `Module` gives where `forward` is read (dspy 3.4.1).
        return object.__getattribute__(program, "forward")
    except AttributeError:
        return None


def _example(case: Any) -> dspy.Example:
    if not isinstance(case, Case):
        raise DataError(
            f"to_examples takes cases, and got {shown(case)} among them; load_cases makes them of rows"
        )
    if not isinstance(case.input, Mapping) or not isinstance(case.expected, Mapping | None):  # pyright: ignore
        raise DataError(
            f"case {case.id!r}: input and expected are dicts of fields, and got {shown(case.input)} and "
            f"{shown(case.expected)}; write them as Case(id, {{'question': ...}}, {{'answer': ...}})"
        )
    labels = case.expected or {}
    both = [name for name in case.input if name in labels]
    if both:
        raise DataError(
            f"case {case.id!r}: {both[0]!r} is both an input and an expected field, and a dspy.Example "
            "holds each name once; rename one of them"
        )
    for name in (*case.input, *labels):
        if name in _KEPT_BY_DSPY or name.startswith("dspy_"):
            raise DataError(f"case {case.id!r}: DSPy keeps the name {name!r} for itself; rename the field")
    return dspy.Example({**case.input, **labels}).with_inputs(*case.input)
