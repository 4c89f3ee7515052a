# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One `score` for DSPy: its metric and reward, its examples, its programs as artifacts.

Built around dspy 3.4.1. Where a line answers one of its quirks, a comment names it.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol, Unpack, cast

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction

from . import dspy_first_answers as first_answers
from .dspy_examples import check_examples, from_examples, to_examples
from .dspy_fields import BESIDE_THE_ANSWER, Fields, fields_of, input_and_labels, input_keys, reader
from .dspy_isolation import cancel_queued_work
from .dspy_measuring import judging, measured, measuring
from .dspy_programs import program_artifact, program_run, to_program
from .dspy_score import DspyScore, Traced, dspy_score
from .errors import DataError, DefinitionError, MetricBroken
from .failures import Failures
from .feedback_score import FeedbackScore, feedback_score
from .function import function_name, without_partials
from .judge_llm import checked_models, models
from .metric import Metric, ScoreFunction, metric_with
from .options import MetricOptions
from .score import Score, component_texts, shown
from .stand_ins import forms

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
        reader("output", output),
        reader("expected", expected, always_dict=True),
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
        return judge.result(gold, pred, trace, pred_name)

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
    judge = _Judge(_as_metric(score, options), reader("output", output), None, metric_lm, reflection_lm)

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
    if isinstance(score, DspyScore):
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
            as `dspy.evaluate.SemanticF1`; plain or async. It may return a bool, a number, or a
            `dspy.Prediction` (or dict) with `score` and, if it likes, `feedback` and
            `objective_scores`. Where DSPy bootstraps demos it gets the trace, as from DSPy itself, so an
            idiom such as `if trace is not None: return score > 0.8` decides about them; everywhere else
            it is called without one. Its `pred_name` is always `None`: a text for one predictor is
            `component_feedback` here.
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
        return dspy_score(metric, output)
    if output is not None:
        raise DefinitionError(
            f"{metric.__name__!r} says itself which field it judges; give output= to as_dspy_metric instead"
        )
    # With fields or a model of its own, its `Metric` alone would judge something else.
    return judge.metric if judge.is_plain else dspy_score(metric, None)


def _judge_of(metric: Any) -> "_Judge | None":
    """Find what stands behind a function that was made here; a user's wrapper around one has none."""
    for cell in getattr(metric, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            if isinstance(cell.cell_contents, _Judge):
                return cell.cell_contents
    return None


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
        first_answers.begin()
        self.metric = metric
        # A metric that was DSPy's reads what it likes of the prediction.
        self._output = _itself if output is None and isinstance(metric.score, DspyScore) else output
        self._expected = expected
        self._metric_lm = dspy.LM(metric_lm) if isinstance(metric_lm, str) else metric_lm
        self._reflection_lm = reflection_lm
        self._shape: str | None = None
        # One metric may be read in several ways, and each has judgements of its own.
        self._reading: object = None if self.is_plain else object()
        self._reads_trace = isinstance(metric.score, DspyScore) and metric.score.reads_trace
        self._reading_of_trace = object()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to it but the metric."""
        no_models = self._metric_lm is None and self._reflection_lm is None
        return self._output is None and self._expected is None and no_models

    @property
    def decided_by(self) -> Any:
        """What decides its judgement, for `fingerprint`: the metric, and how fields are read."""
        readers = [None if self._output is _itself else self._output, self._expected]
        return self.metric if readers == [None, None] else [self.metric, *readers]

    def result(self, gold: Any, pred: Any, trace: Any, pred_name: str | None) -> FeedbackScore:
        metric = self.metric
        if type(gold) is dict:
            self._note_dict(sys._getframe(2))  # pyright: ignore[reportPrivateUsage]
        # With a predictor's name dspy.GEPA asks for the text of what it has scored before, without a trace.
        asks_again = pred_name is not None
        score = metric.recall(gold, pred, self._reading) if asks_again else None
        if score is None:
            try:
                is_read = self._reads_trace and not asks_again
                score = self._judged(gold, pred, asks_again, trace if is_read else None)
                if score.error is not None and not asks_again:
                    self._stop_when_broken()
            except MetricBroken:  # also of another metric that the score asks
                cancel_queued_work()
                raise
        if pred_name is not None:
            self._note_components(score)
        return feedback_score(score, pred_name, metric.success_threshold, metric)

    def _note_dict(self, caller: FrameType) -> None:
        """Point out a dict in place of an example, unless `BestOfN` or `Refine` gave it."""
        if not str(caller.f_globals.get("__name__")).startswith("dspy."):
            self.metric.warn_once(
                "dict",
                "metric %r was given a dict in place of a dspy.Example, so all of it counts as input and "
                "nothing is expected; pass dspy.Example(...).with_inputs(...), or what to_examples makes",
                self.metric.name,
            )

    def _stop_when_broken(self) -> None:
        reason = self.metric.broken()
        if reason is not None:
            self.metric.begin_again()
            raise MetricBroken(reason)

    def _note_components(self, score: Score) -> None:
        """Point out texts for predictors that dspy.GEPA does not ask for."""
        texts = component_texts(score)
        names = _names_of_predictors(sys._getframe(2)) if texts else []  # pyright: ignore[reportPrivateUsage]
        if names:
            why = "dspy.GEPA names predictors as program.named_predictors() does; there are"
            self.metric.note_components(texts, names, why)

    def reward(self, args: Any, pred: Any) -> FeedbackScore:
        metric = self.metric
        # What serves in production must not be stopped by the rule for runs, not even by that of
        # another metric which the score asks.
        try:
            score = self._judged(args, pred, again=True)
        except MetricBroken as error:
            score = metric.cannot_ask(args, str(error), rollout=(args, pred, self._reading), again=True)
        return feedback_score(score, None, metric.success_threshold, metric)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the judge's model behind: it holds locks and keys."""
        lost = self._metric_lm is not None or self._reflection_lm is not None
        return {**self.__dict__, "_metric_lm": None, "_reflection_lm": None, "lost_metric_lm": lost}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Say so when a judge's model stayed behind."""
        lost = state.pop("lost_metric_lm")
        first_answers.begin()
        self.__dict__.update(state)
        if lost:
            self.metric.warn_once(
                "metric_lm",
                "metric %r was saved with a metric_lm=, which is not saved with it; its model calls now go "
                "to the model that is set where it runs. Make it anew with metric_lm= to have its own.",
                self.metric.name,
            )

    def _judged(self, gold: Any, pred: Any, again: bool, trace: Any = None) -> Score:
        metric = self.metric
        observation = measured(pred)  # in this thread, before any model call of a judge
        rollout = (gold, pred, self._reading if trace is None else self._reading_of_trace)
        wrong = _wrong_case(gold, pred)
        if wrong is not None:
            case = dict(fields_of(gold)) if isinstance(gold, dspy.Example) else gold
            return metric.cannot_ask(case, wrong, rollout=rollout, again=again)
        input, expected = input_and_labels(gold)
        if pred is None:
            return metric.program_failed(input, rollout=rollout)
        if isinstance(pred, FailedPrediction):
            said = f"Its answer could not be parsed: {pred.completion_text}"
            return metric.program_failed(input, said, rollout=rollout)
        option = "expected"
        try:
            if self._expected is not None:
                expected = self._expected(gold)
            option = "output"
            output = self._answer(pred, expected) if self._output is None else self._output(pred)
        except (Exception, SystemExit) as error:
            why = (
                str(error)
                if isinstance(error, DataError)
                else f"the function given as {option}= raised {error!r}"
            )
            return metric.cannot_ask(input, why, rollout=rollout, again=again)
        with_trace: Callable[[Any], Any] = _itself
        if trace is not None:
            with_trace = functools.partial(Traced, trace=trace, numbers=_numbers_of_verdicts(metric))

        def perfect(pred: Any, labels: Any) -> list[Any]:
            return [with_trace(output) for output in self._perfect(pred, labels)]

        output = with_trace(output)
        kept: dict[str, Any] = {"rollout": rollout, "perfect": perfect, "again": again}
        if observation is None and self._metric_lm is None and self._reflection_lm is None:
            return metric.judge(input, output, expected, **kept)
        chosen = models(metric_lm=self._metric_lm, reflection_lm=self._reflection_lm)
        with judging(metric.was_made_in_rollout), chosen:
            return metric.judge(input, output, expected, observation=observation, **kept)

    def _answer(self, pred: Any, labels: Any, note: bool = True) -> Any:
        """Find what is judged; `note` says whether it is a case of the run."""
        if isinstance(pred, dspy.Prediction):
            fields: dict[str, Any] = fields_of(pred)
        elif isinstance(pred, dict):
            fields = pred
        else:
            return pred
        if len(fields) == 1:
            (name,) = fields
        else:
            own = [name for name in fields if name not in BESIDE_THE_ANSWER]
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
        fields: dict[str, Any] = fields_of(pred) if isinstance(pred, dspy.Prediction) else pred
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


def _names_of_predictors(frame: FrameType | None) -> list[str]:
    """Find the names that dspy.GEPA asks for texts by; none where it does not call this.

    It tells a metric one name at a time, and of another one, however like it, nobody can tell whether it is
    wrong. Its adapter knows them all (dspy 3.4.1).
    """
    while frame is not None:
        if frame.f_code.co_name == "make_reflective_dataset":
            names = getattr(frame.f_locals.get("self"), "feedback_map", None)
            if isinstance(names, dict):
                return list(cast("dict[str, Any]", names))
        frame = frame.f_back
    return []


def _numbers_of_verdicts(metric: Metric) -> tuple[float, float]:
    """Give the numbers, on the scale of the user's function, that False and True stand for."""
    if metric.options["score_range"] is not None:
        return metric.options["score_range"]
    threshold = metric.success_threshold
    return 0.0 if threshold > 0.0 else threshold - 1.0, max(1.0, threshold)


def _itself(pred: Any) -> Any:
    return pred


def _wrong_case(gold: Any, pred: Any) -> str | None:
    """Tell why there is no case to judge; `None` where there is one."""
    if isinstance(gold, dspy.Prediction):
        if isinstance(pred, dspy.Example) and not isinstance(pred, dspy.Prediction):
            return "example and prediction are swapped; call metric(example, prediction)"
        return f"it wants a dspy.Example first, and got the prediction {shown(gold, with_type=False)}"
    if isinstance(gold, dspy.Example):
        if input_keys(gold) is not None:
            return None
        return "the example has no inputs set; call .with_inputs(...) on it with the names of its inputs"
    if isinstance(gold, Mapping):  # the keyword arguments that `BestOfN` and `Refine` give
        return None
    return f"it wants a dspy.Example and a prediction, and got {shown(gold)}; to_examples makes examples"
