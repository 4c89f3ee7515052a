"""`check_contract`: whether a metric does what every target relies on, tried on a few cases."""

import contextlib
import functools
import inspect
import itertools
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Unpack, cast

from .attempt import check_artifact, checked_run
from .cases import Case, load_cases
from .contract_feedback import says_something
from .contract_report import Check, ContractReport
from .contract_trial import Judged, Trial, Tried
from .deadline import DeadlineExceededError, call_within
from .errors import DefinitionError, MetricReturnError, MetricTimeoutError
from .helpers_used import MEASURING
from .judge_llm import NO_MODEL, chosen_models, models
from .load import check_metric_options, load_score
from .measure import load_parts, observation
from .metric import Metric, ScoreFunction, as_metric
from .model_answer import model_name
from .options import MAX_TIMEOUT_SECONDS, MetricOptions, checked_seconds, near_match
from .score import component_texts, shown, strangers
from .stand_ins import forms

__all__ = ["check_contract"]

_MOST_CASES = 3
_LOAD_SECONDS = 60.0


def check_contract(
    metric: ScoreFunction | Metric | str | os.PathLike[str],
    cases: str | os.PathLike[str] | Iterable[Any],
    run: Callable[..., Any] | None = None,
    *,
    artifact: Any = None,
    metric_lm: Any = None,
    reflection_lm: Any = None,
    run_timeout: float | None = 60.0,
    **options: Unpack[MetricOptions],
) -> ContractReport:
    """Try a metric on up to three cases, and say what an optimiser would stumble over.

    The metric is called once for each case, once more to see whether it repeats itself, and a few times to
    find out what a right answer, a wrong one and one of another type score: ten times at most, and the
    report says how often. Nothing that the metric or `run` does is raised here, and none of it is counted in
    the metric's `failures`.

    Args:
        metric: The path of a metric's file, a function, or a `Metric`.
        cases: Cases, or what `load_cases` takes; the first three are tried, without `run` of those that
            have an expected value.
        run: Gives the output of a case: `run(artifact, input)` when `artifact` is given, such as
            `program_run(program)`, else `run(input)`; plain or async. `None`: the expected value
            stands in for the output, and nothing is measured.
        artifact: What `run` runs, such as `program_artifact(program)`.
        metric_lm: The model that `skynet.llm` asks, as for `models`. `None`: the one that is chosen
            where this is called.
        reflection_lm: The model that will write the candidates; `llm` asks it where there is no
            metric model. It is not asked for anything else.
        run_timeout: Seconds that `run` may take for one case; `None`: no limit.
        **options: Those of `Metric`, for a path or a function.

    Returns:
        The report. `str()` is a table; `.passed` is false when a check failed, and when the metric was
        never called, since no case had an output.

    Raises:
        DataError: The cases cannot be read.
        DefinitionError: An option or `run` cannot work. A metric that cannot is in the report.

    Example:
        >>> def score(input, output, expected=None):
        ...     return float(output == expected["label"])
        >>> report = check_contract(score, [{"input": {"text": "hi"}, "expected": {"label": "a"}}])
        >>> report.passed, report["Metric return value"].status
        (False, 'failed')
    """
    if not isinstance(metric, Metric):
        check_metric_options(options)
    elif options:
        as_metric(metric, **options)  # which refuses them
    if run is not None:
        checked_run(run, *(("input",) if artifact is None else ("artifact", "input")))
        if artifact is not None:
            check_artifact(run, artifact)
    elif artifact is not None:
        raise DefinitionError("artifact= was given without run=; give run(artifact, input) too")
    run_timeout = checked_seconds("run_timeout", run_timeout)
    tried = _chosen(load_cases(cases), run is not None)
    with models(metric_lm=metric_lm, reflection_lm=reflection_lm), _quiet():
        name, loaded, found = _loaded(metric, options)
        if found is None:
            checks = [*loaded, *(_untried(check) for check in _LATER)]
            return ContractReport(name, tuple(checks), (), 0, "")
        load_parts()  # whether or not something else has, so that the bill holds what is asked by way of DSPy
        trial = Trial(found, tried, run, artifact, run_timeout)
        trial.judge_cases()
        checks = [*loaded, *_checks(trial)]
        found.failures.clear()  # so that no closing warning tells what the report says
        outputs = "the outputs of run" if trial.has_run else "the expected values as outputs"
        return ContractReport(name, tuple(checks), tuple(case.id for case in tried), found.calls, outputs)


def _chosen(cases: list[Case], has_run: bool) -> list[Case]:
    """Choose the first cases; without a run, of those that have what stands in for an output."""
    judgeable = cases if has_run else [case for case in cases if case.expected]
    return (judgeable or cases)[:_MOST_CASES]


# Every check after "Loads" and "Signature", in the order of the report.
_LATER = (
    "Metric return value",
    "Named scores",
    "Time",
    "Deterministic",
    "Right above wrong",
    "Score range",
    "Typed outputs",
    "Feedback",
    "Models",
    "Measurements",
)


# --- before any call -----------------------------------------------------------------------------


def _loaded(metric: Any, options: MetricOptions) -> tuple[str, list[Check], Tried | None]:
    """Load the metric; gives its name, the checks "Loads" and "Signature", and a metric to try."""
    if isinstance(metric, str | os.PathLike):
        path = Path(cast("str | os.PathLike[str]", metric))
        name = path.stem
        try:
            score: Any = _load(path)
        except DefinitionError as error:
            why, _, mend = str(error).rpartition("; ")
            return name, [_failed("Loads", why or mend, mend if why else ""), _untried("Signature")], None
        except DeadlineExceededError:
            seen = f"{path} was not loaded within {_LOAD_SECONDS:g} s"
            return name, [_failed("Loads", seen, _MEND_LOADING), _untried("Signature")], None
        loads = Check("Loads", "passed", f"{path}")
    else:
        score = metric
        loads = Check("Loads", "passed", f"{shown(metric)}" if isinstance(metric, Metric) else "a function")
    try:
        made = as_metric(score, **options)
    except DefinitionError as error:
        name = str(getattr(score, "__name__", None) or type(score).__name__)
        why, _, mend = str(error).rpartition("; ")
        return name, [loads, _failed("Signature", why or mend, mend if why else "")], None
    # Every call of a trial is made, counted here alone, and stops nothing.
    own: dict[str, Any] = made.options | {
        "memo": None,
        "memo_dir": None,
        "stop_after": None,
        "max_failures_in_a_row": None,
    }
    return (
        made.name,
        [loads, Check("Signature", "passed", _signature(made.score))],
        Tried(made.score, **own),
    )


def _load(path: Path) -> Any:
    """Load the file, and give up on one that hangs."""
    try:
        return call_within(_LOAD_SECONDS, functools.partial(load_score, path))
    except DefinitionError as error:
        if not re.search(r"main thread|event loop", str(error)):
            raise
        return load_score(path)  # in this thread, as it asks for; only here nothing ends a file that hangs


_MEND_LOADING = "take out of the file what waits or computes while it is loaded"


def _signature(score: Any) -> str:
    try:
        return f"{getattr(score, '__name__', type(score).__name__)}{inspect.signature(score)}"
    except (TypeError, ValueError):
        return "it has none that Python can show; it is called as score(input, output, expected)"


def _failed(name: str, seen: str, mend: str) -> Check:
    return Check(name, "failed", seen, mend)


def _untried(name: str, why: str = "there is no metric to call") -> Check:
    return Check(name, "not tried", why)


# Set while a check runs, in the threads too that call the metric for it.
_checking: ContextVar[bool] = ContextVar("skynet_adapters_checking", default=False)


class _Quiet(logging.Filter):
    """Keeps from the log what the report says; what others log meanwhile passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _checking.get()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    log, quiet = logging.getLogger("skynet_adapters"), _Quiet()
    log.addFilter(quiet)
    token = _checking.set(True)
    try:
        yield
    finally:
        _checking.reset(token)
        log.removeFilter(quiet)


# --- what was seen -------------------------------------------------------------------------------


def _checks(trial: Trial) -> list[Check]:
    """Make every check after "Loads" and "Signature"."""
    of_judgements = (
        (_named_scores, "Named scores"),
        (_deterministic, "Deterministic"),
        (_right_above_wrong, "Right above wrong"),
        (_score_range, "Score range"),
        (_typed_outputs, "Typed outputs"),
        (_feedback, "Feedback"),
    )
    judged = [judged for judged in trial.judged if not judged.failed]
    checks = {
        name: check(trial, judged) if judged else _untried(name, "there is no judgement to look at")
        for check, name in of_judgements
    }
    checks |= {
        "Metric return value": _return_value(trial),
        "Time": _time(trial),
        "Models": _models(trial),
        "Measurements": _measurements(trial),
    }
    found = [checks[name] for name in _LATER]
    names = _component_names(trial)
    if names is not None:
        found.insert(_LATER.index("Named scores") + 1, names)
    return [_run_check(trial), *found] if trial.has_run else found


def _run_check(trial: Trial) -> Check:
    if not trial.lost:
        return Check("Run", "passed", f"{len(trial.judged)} of {len(trial.cases)} cases have an output")
    status = "warned" if trial.judged else "failed"
    mend = "a case without an output is not judged and gets the failure score; mend run for it"
    return Check("Run", status, "\n".join(trial.lost), mend)


def _return_value(trial: Trial) -> Check:
    name = "Metric return value"
    # A poor answer's judgement has to have the right shape too, though it stands for no case.
    faults = [one for one in trial.judged if one.failed] + [
        one
        for one in trial.calls
        if isinstance(one.score.error, MetricReturnError)
        and not any(one is judged for judged in trial.judged)
    ]
    if not trial.judged and not faults:
        why = (
            "no case has an output"
            if trial.has_run
            else "no case has an expected value, and run= is not given"
        )
        mend = "mend run" if trial.has_run else "give run=, or cases with an expected value"
        return Check(name, "not tried", why, mend)
    if not faults:
        values = ", ".join(f"{judged.score.value:g}" for judged in trial.judged)
        return Check(name, "passed", f"a number and a feedback on every case: {values}")
    told: dict[str, list[str]] = {}
    for fault in faults:
        text, is_of_a_case = _without_mend(fault)[0], any(fault is judged for judged in trial.judged)
        if is_of_a_case:
            told.setdefault(text, []).append(repr(fault.case.id))
        elif text not in told:
            told[text] = [f"{fault.case.id!r}, were {_quoted(fault.output)} the output"]
    seen = "\n".join(
        f"case{'s' if len(ids) > 1 else ''} {', '.join(ids)}: {text}" for text, ids in told.items()
    )
    return _failed(name, seen, _mend_of_faults(trial, faults))


def _mend_of_faults(trial: Trial, faults: list[Judged]) -> str:
    of_the_shape = [mend for one in faults if (mend := _without_mend(one)[1])]
    if of_the_shape:
        return "; ".join(dict.fromkeys(of_the_shape))
    if any(NO_MODEL in str(one.score.error) for one in faults):
        return "choose a model, see Models"
    if any(map(_fault_of_the_model, faults)):
        return "mend the model or how it is asked, see Models"
    of_helpers = [mend for one in faults if (mend := _mend_of_a_helper(one))]
    if of_helpers:
        return "; ".join(dict.fromkeys(of_helpers))
    of_fields = [mend for one in faults if (mend := _mend_of_a_field(one))]
    if of_fields:
        return "; ".join(dict.fromkeys(of_fields))
    if not any(map(_may_be_the_outputs_fault, faults)):
        return "mend the metric where it raised"
    if trial.has_run:
        return "give every output a score, a poor one too, and say in the feedback what is wrong with it"
    return (
        "the output was the expected value here; where real outputs look otherwise, give run= "
        "to have those judged"
    )


_FORMS_OF_HELPERS = {
    "llm": 'llm("instructions", input=text)',
    "observation": "observation()",
    "reward": "reward(REWARD_SPEC, accuracy, feedback)",
    "service_cost": "service_cost()",
}


def _fault_of_the_model(judged: Judged) -> str | None:
    """Give what became of a call of `llm` that failed, where the metric raised that."""
    found = re.search(r"the (?:metric|reflection) model '.*", str(judged.score.error), re.DOTALL)
    return found[0] if found and " failed: " in found[0] else None


def _mend_of_a_helper(judged: Judged) -> str:
    """Say how a helper of `skynet` is called, where the metric called it otherwise."""
    found = re.search(r" raised TypeError: (\w+)\(\) (?:missing|got|takes) ", str(judged.score.error))
    form = _FORMS_OF_HELPERS.get(found[1]) if found else None
    return f"call it as {form}" if form else ""


# Errors that an output of an unexpected form makes a metric raise.
_OF_OUTPUTS = ("AttributeError", "IndexError", "KeyError", "TypeError", "ValueError", "JSONDecodeError")


def _may_be_the_outputs_fault(judged: Judged) -> bool:
    """Tell whether a metric may have raised since the output looks otherwise than it thought."""
    said = str(judged.score.error)
    raised = re.search(r" raised (\w+)", said)
    if raised is None:
        return True
    if raised[1] not in _OF_OUTPUTS:
        return False
    # Python's own number and date types tell the text that they could not read.
    unread = re.search(r"(?:could not convert|invalid literal|Invalid \w+ string)[^']*: '(.*?)'", said)
    return unread is None or unread[1] in str(judged.output)


def _mend_of_a_field(judged: Judged) -> str:
    """Name the fields that are there, where the metric read one that is not."""
    found = re.search(
        r" raised (?:KeyError: '(.+?)'|AttributeError: 'dict' object has no attribute '(\w+)'"
        r"|AttributeError: '(?:Example|Prediction)' object has no attribute '(\w+)')",
        str(judged.score.error),
    )
    if found is None:
        return ""
    name = found[1] or found[2] or found[3]
    dicts = {"expected": judged.case.expected, "input": judged.case.input, "output": judged.output}
    has = {
        what: list(map(str, cast("Mapping[Any, Any]", fields)))
        for what, fields in dicts.items()
        if isinstance(fields, Mapping)
    }
    holders = [what for what, names in has.items() if name in names]
    if found[2] and holders:
        return f"{holders[0]} is a dict: write {holders[0]}[{name!r}]"
    if holders:  # it was another dict that has no such field
        return ""
    there = ", ".join(f"{what} has {', '.join(map(repr, names)) or 'none'}" for what, names in has.items())
    return f"there is no field {name!r}: {there}{near_match(name, itertools.chain(*has.values()))}"


def _without_mend(judged: Judged) -> tuple[str, str]:
    """Split what is wrong with a returned value from the mend; other errors have none."""
    text = str(judged.score.error)
    if not isinstance(judged.score.error, MetricReturnError):
        return text, ""
    why, _, mend = text.rpartition("; ")
    return why or text, _MEND_OF_A_SHAPE if not why or mend.startswith("a metric returns") else mend


_MEND_OF_A_SHAPE = (
    'return a number and a dict with a text: return 0.8, {"feedback": "Close. Missing the date."}'
)


def _named_scores(trial: Trial, judged: list[Judged]) -> Check:
    name = "Named scores"
    names = list(dict.fromkeys(itertools.chain.from_iterable(one.score.scores for one in judged)))
    if not names:
        return Check(name, "passed", "it gives none")
    lacking = [
        f"case {one.case.id!r} lacks {', '.join(missing)}"
        for one in judged
        if (missing := [other for other in names if other not in one.score.scores])
    ]
    if lacking:
        mend = "give every name on every case, 0.0 too; what a case lacks counts as the failure score"
        return Check(name, "warned", "; ".join(lacking), mend)
    return Check(name, "passed", f"{', '.join(names)} on every case")


def _component_names(trial: Trial) -> Check | None:
    """Check the names in `component_feedback` where the artifact says which there are."""
    name, parts = "Component names", trial.parts
    names = dict.fromkeys(itertools.chain.from_iterable(component_texts(one.score) for one in trial.calls))
    if not names or not parts:
        return None
    there = ", ".join(map(repr, parts))
    wrong = strangers(names, parts)
    if not wrong:
        return Check(name, "passed", f"component_feedback has texts for {', '.join(map(repr, names))}")
    seen = f"component_feedback has a text for {', '.join(map(repr, wrong))}; the artifact has {there}"
    meant = "".join(dict.fromkeys(near_match(one, parts) for one in wrong))
    mend = f"name each text as the part that it is for{meant}"
    return Check(name, "warned", seen, mend)


def _time(trial: Trial) -> Check:
    calls = trial.calls
    if not calls:
        return _untried("Time", "the metric was not called")
    slowest, limit = max(one.seconds for one in calls), trial.metric.timeout
    late = [one for one in calls if isinstance(one.score.error, MetricTimeoutError)]
    mend = f"make it quicker, or raise timeout= (at most {MAX_TIMEOUT_SECONDS:g} s)"
    if late:
        return _failed("Time", f"case {late[0].case.id!r}: no answer within {limit:g} s", mend)
    if limit is None:
        seen = f"{_seconds(slowest)} at most, and timeout=None: nothing ends a call that hangs"
        return Check("Time", "warned", seen, "set timeout= unless the metric needs the caller's own thread")
    seen = f"{_seconds(slowest)} at most, of {limit:g} s"
    return Check("Time", "warned", seen, mend) if slowest > limit / 2 else Check("Time", "passed", seen)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1.0 else "under 1 s"


_HUNG = "a call of the metric did not come back, so no further one was made"


def _deterministic(trial: Trial, judged: list[Judged]) -> Check:
    name = "Deterministic"
    first, again = judged[0], trial.again
    if again is None:
        return _untried(name, _HUNG)
    case = f"case {first.case.id!r}"
    if again.failed:
        return _failed(
            name, f"{case}, asked again: {again.score.error}", "give the same output the same score"
        )
    if first.score.value == again.score.value and dict(first.score.scores) == dict(again.score.scores):
        if again.is_from_cache:
            return Check(
                name,
                "not tried",
                f"{case} has the same score when it is asked again, since the answers of models came from a "
                "cache; one with cache=False is asked again",
            )
        other = "" if first.score.feedback == again.score.feedback else ", in other words"
        return Check(name, "passed", f"{case} has the same score when it is asked again{other}")
    seen = f"{case} scored {first.score.value:g} and then {again.score.value:g}"
    if first.score.value == again.score.value:
        seen = f"{case} has other named scores when it is asked again"
    mend = "ask the judge at temperature 0; take chance, clocks and state out of the metric"
    return Check(name, "warned", seen, mend)


def _right_above_wrong(trial: Trial, judged: list[Judged]) -> Check:
    name = "Right above wrong"
    right, wrong = trial.right, trial.wrong
    if right is None:
        return _untried(name, "no case has an expected value")
    if right.failed:
        return _untried(name, f"the expected value as output has no score: {right.score.error}")
    if wrong is None:
        return _untried(name, _HUNG)
    answers = f"{_quoted(right.output)} scores {right.score.value:g}"
    if wrong.failed:
        seen = f"{answers}; the wrong answer {_quoted(wrong.output)} has no score: {wrong.score.error}"
        return Check(name, "warned", seen, "give a poor answer a low score and a feedback, not an exception")
    seen = f"{answers}, the wrong answer {_quoted(wrong.output)} {wrong.score.value:g}"
    if right.score.value > wrong.score.value:
        return Check(name, "passed", seen)
    if right.score.value < wrong.score.value:
        if trial.has_right_output():
            return _failed(name, seen, "optimisers raise the score; turn it round, so that more is better")
        # Words that must not occur, or a source to paraphrase, are expected values and no answers.
        mend = (
            "where an output should look like the expected value, turn it round, so that more is better; "
            "where it should not, this check does not apply"
        )
        return Check(name, "warned", seen, mend)
    if not right.below(trial.metric.success_threshold):
        return Check(
            name, "warned", seen, "a wrong answer that scores as well as the right one teaches nothing"
        )
    mend = (
        "compare with the value in expected, a dict by column, as in expected['label']; where an output "
        "never looks like the expected value, this check does not apply"
    )
    return Check(name, "warned", seen, mend)


def _score_range(trial: Trial, judged: list[Judged]) -> Check:
    name = "Score range"
    probes = [one for one in (trial.right, trial.wrong) if one is not None and not one.failed]
    values = [one.score.value for one in (*judged, *probes)]
    low, high = min(values), max(values)
    seen = f"{low:g} to {high:g}" if low < high else f"{low:g}"
    mend = "pass score_range=(low, high), which normalises, or divide by the highest score"
    if high > 1.0:
        why = "from 1 up, GEPA (perfect_score=1) takes an answer as perfect and proposes nothing"
        return Check(name, "warned", f"{seen}; {why}", mend)
    if low < 0.0:
        why = f"a case that fails (failure_score={trial.metric.failure_score:g}) may beat a poor answer"
        return Check(name, "warned", f"{seen}; {why}", mend)
    return Check(name, "passed", seen)


def _typed_outputs(trial: Trial, judged: list[Judged]) -> Check:
    name = "Typed outputs"
    mend = (
        "compare as the type that is meant, as in str(output) == str(expected[...]), or declare the "
        "output's type in the program"
    )
    if trial.has_run:
        odd = [pair for one in judged for pair in _odd_pairs(one.output, one.case.expected)]
        if odd:
            output, value = odd[0]
            seen = f"the output is {shown(output)}, expected holds {shown(value)}: they are never equal"
            return Check(name, "warned", seen, mend)
        return Check(name, "passed", "outputs have the types of the expected values")
    right, twin = trial.right, trial.twin
    if right is None or right.failed:
        return _untried(name, "no expected value could be judged")
    if twin is None:
        is_text = isinstance(right.output, str)
        seen = "looks the same in every type" if is_text else "was tried in no other type"
        return Check(name, "passed", f"{_quoted(right.output)} {seen}")
    if not twin.failed and twin.score.value == right.score.value:
        return Check(name, "passed", f"{_quoted(right.output)} and {_quoted(twin.output)} score alike")
    said = f"nothing: {twin.score.error}" if twin.failed else f"{twin.score.value:g}"
    seen = f"{shown(right.output)} scores {right.score.value:g}, {shown(twin.output)} {said}"
    return Check(name, "warned", seen, f"a program without typed outputs gives texts; {mend}")


def _odd_pairs(output: Any, expected: Mapping[str, Any] | None) -> list[tuple[Any, Any]]:
    """Give outputs beside expected values that say the same in another type."""
    if not expected:
        return []
    outputs: Mapping[str, Any] = cast("Any", output) if isinstance(output, Mapping) else {}
    pairs = [(outputs[name], value) for name, value in expected.items() if name in outputs]
    if not isinstance(output, Mapping) and len(expected) == 1:
        pairs = [(output, next(iter(expected.values())))]
    return [(given, value) for given, value in pairs if _differ_in_type_only(given, value)]


def _differ_in_type_only(output: Any, value: Any) -> bool:
    """Tell whether two unequal values say the same: 3 and "3", a date and its text, (1,) and [1]."""
    try:
        if type(output) is type(value) or bool(output == value):
            return False
    except Exception:  # arrays, or what raises when it is compared
        return False
    if {type(output), type(value)} == {list, tuple}:
        return list(output) == list(value)
    texts, other = (output, value) if isinstance(output, str) else (value, output)
    if not isinstance(texts, str) or isinstance(other, str):
        return False
    said = {str(other), *forms(other, like="")}
    return texts.strip().lower() in {form.lower() for form in said if isinstance(form, str)}


def _feedback(trial: Trial, judged: list[Judged]) -> Check:
    name = "Feedback"
    wrong = [] if trial.wrong is None or trial.wrong.failed else [trial.wrong]
    poor = [one for one in (*judged, *wrong) if _is_poor(trial, one)]
    if not poor:
        return _untried(name, "no output that was tried is a poor one")
    useless = [one for one in poor if not _says_something(one)]
    if useless:
        texts = list(dict.fromkeys(_own_text(one) or "(nothing)" for one in useless))
        seen = f"{len(useless)} of {len(poor)} poor outputs: {', '.join(map(_quoted, texts[:3]))}"
        mend = (
            "the reflection model writes the next version from it: say what was expected, what came, and "
            "why, such as \"Expected 'billing', got 'other'. The message mentions a charge.\""
        )
        return Check(name, "warned", seen, mend)
    return Check(name, "passed", _quoted(_own_text(poor[-1])))


def _is_poor(trial: Trial, judged: Judged) -> bool:
    """Tell whether an answer left something to say; of a reward, whether its accuracy did."""
    accuracy = judged.score.scores.get("accuracy") if "reward" in trial.helpers else None
    return judged.below(trial.metric.success_threshold) if accuracy is None else accuracy < 1.0


def _says_something(judged: Judged) -> bool:
    expected = judged.case.expected or {}
    return says_something(_own_text(judged), [_text(value) for value in (judged.output, *expected.values())])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _quoted(value)


def _own_text(judged: Judged) -> str:
    from .rewards import without_figures  # here, since pydantic takes a while to import

    return without_figures(judged.score.feedback).strip()


def _models(trial: Trial) -> Check:
    name = "Models"
    asked, kept = trial.metric.bill.calls, trial.metric.bill.cached_calls
    cached = f", and {kept} of the answers came from a cache" if kept else ""
    if "llm" not in trial.helpers:
        if asked:
            seen = f"its code shows no llm(); models were asked {asked} times here{cached}"
            return Check(name, "passed", seen)
        return Check(name, "passed", "it asks no model through skynet.llm")
    chosen = chosen_models()
    judge = chosen.reflection_lm if chosen.metric_lm is None else chosen.metric_lm
    if judge is None:
        seen = "it calls llm(), and neither a metric model nor a reflection model is chosen"
        return _failed(
            name, seen, 'choose one: metric_lm="openai/gpt-4.1-mini", or set_models(metric_lm=...)'
        )
    faults = [fault for judged in trial.calls if (fault := _fault_of_the_model(judged))]
    if faults:
        return _failed(name, faults[0], "check the model's name, its key, and that it can be reached")
    writer = chosen.reflection_lm
    if judge is writer or (writer is not None and model_name(judge) == model_name(writer)):
        seen = f"{model_name(judge)!r} judges, and it also writes the candidates"
        return Check(name, "warned", seen, "choose another model to judge: metric_lm=...")
    return Check(name, "passed", f"llm() asks {model_name(judge)!r}; it was asked {asked} times here{cached}")


def _measurements(trial: Trial) -> Check:
    name = "Measurements"
    read = sorted(trial.helpers & MEASURING)
    if not read:
        return Check(name, "passed", "it reads none")
    uses = f"it uses {' and '.join(read)}"
    measured = next(iter(trial.observations.values()), None) if trial.has_run else observation()
    if measured is None:
        return _untried(name, f"{uses}, and no case was run to its end")
    if measured.time_ms is None:
        seen = f"{uses}, and nothing was measured, since run= is not given: speed and cost count as 0 here"
        return Check(name, "warned", seen, "give run= (and artifact=) to have time and cost measured")
    if measured.cost_usd is None:
        why = measured.reasons["cost_usd"]
        seen = f"{uses}; time was measured, {measured.time_ms:,.0f} ms, cost was not: {why}"
        mend = "where the cost cannot be measured, give it no weight and do not read it"
        return Check(name, "warned", seen, mend)
    return Check(name, "passed", f"{uses}; {measured.time_ms:,.0f} ms and {measured.cost_usd:g} US dollars")


def _quoted(value: Any) -> str:
    return shown(value, with_type=False)
