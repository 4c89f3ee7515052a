"""Checks of a GEPA run's arguments, while nothing has been paid yet.

Built around gepa 0.1.4. Where a line answers one of its quirks, a comment names it.
"""

import inspect
import json
import logging
import math
from collections.abc import Mapping, Sequence, Sized
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast, get_args

from gepa import api
from gepa.core.data_loader import ensure_loader
from gepa.core.state import FrontierType

from .cases import Split
from .digests import digest
from .errors import DataError, DefinitionError, SkynetAdaptersError
from .gepa_adapter import GepaAdapter, needs_named_scores
from .gepa_arguments import cannot_be_called_with, faults_of_arguments
from .gepa_cases import GepaDataset, fault_of_cases, input_and_expected
from .gepa_folder import fault_of_state, faults_of_folder, keep_facts, metric_facts, warn_of_used_budget
from .loaded import is_dspys
from .memo import content_key
from .metric import Metric
from .options import near_match
from .score import shown

__all__ = ["ARGUMENTS", "check_gepa_run"]

_log = logging.getLogger("skynet_adapters")

# The arguments of `gepa.optimize`; untyped, as some of its parameters are.
ARGUMENTS = frozenset(inspect.signature(cast("Any", api).optimize).parameters)

# Of how many cases in a set it is told what is wrong.
_MOST_CASES = 5
# How many are fetched of a data loader of the user's own, which may read them from anywhere.
_MOST_FETCHED = 100


def check_gepa_run(adapter: GepaAdapter[Any], **arguments: Any) -> None:
    """Check the arguments of `gepa.optimize` before anything is paid; call it with all of them.

    Refused are: an argument that `gepa.optimize` does not have, or a value that it cannot take; a seed of
    another artifact; what is no case; a budget that the first evaluation uses up; a reflection model that
    cannot answer with a text, or whose cost is unknown where `max_reflection_cost` alone ends the run; a
    frontier of objectives with a metric that has judged cases and named no scores; lists of different cases
    under `cache_evaluation`; and a `run_dir` that was begun with another metric, artifact, validation set or
    frontier.

    Warnings are logged of a `perfect_score` that scores do not fit, of a `max_reflection_cost` that is never
    reached or alone ends the run, and of a resumed run whose budget is used up. What a metric gives is known
    from what this adapter has judged, and from `score_range=`; of one that was never asked nothing is known.

    Args:
        adapter: The adapter of the run.
        **arguments: The other arguments of `gepa.optimize`, by name.

    Raises:
        DefinitionError: Something of the above; tells everything that was found.

    Example:
        >>> from skynet_adapters import as_gepa_adapter
        >>> def score(input, output, expected=None):
        ...     return 1.0, {"feedback": "Good."}
        >>> adapter = as_gepa_adapter(score, lambda artifact, input: artifact, artifact="Hi.")
        >>> arguments = {"trainset": [{"input": {}}], "reflection_lm": input, "max_metric_call": 9}
        >>> check_gepa_run(adapter, seed_candidate=adapter.seed_candidate, **arguments)
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DefinitionError: this GEPA run cannot work:
        - gepa.optimize has no argument 'max_metric_call'; did you mean 'max_metric_calls'?
        - nothing ends the run; pass max_metric_calls=
    """
    if not isinstance(cast("object", adapter), GepaAdapter):
        raise DefinitionError(f"adapter is {shown(adapter)}; pass what as_gepa_adapter made")
    faults = [
        *_faults_of_names(arguments),
        *faults_of_arguments(arguments),
        *_faults_of_seed(adapter, arguments),
        *_faults_of_cases(arguments),
        *_faults_of_budget(arguments),
        *_faults_of_reflection(arguments),
        *_faults_of_frontier(adapter.metric, arguments),
    ]
    run_dir: Any = arguments.get("run_dir")
    folder = None if run_dir is None or faults else Path(run_dir)
    facts = {} if folder is None else _facts(adapter.metric, arguments)
    if folder is not None and facts:
        faults += faults_of_folder(folder, facts)
        torn = fault_of_state(folder)
        faults += [] if torn is None else [torn]
    if faults:
        raise DefinitionError("this GEPA run cannot work:\n" + "\n".join(f"- {line}" for line in faults))
    if _cost_is_unknown(arguments):
        _log.warning(
            f"{_COST_IS_UNKNOWN}. The run ends with max_metric_calls or stop_callbacks",
            shown(_whose_cost(arguments)),
        )
    elif arguments.get("max_reflection_cost") is not None and not _is_bounded(arguments):
        _log.warning(_ENDS_BY_COST_ALONE)
    adapter.frontier_type = arguments.get("frontier_type", "instance")
    _warn_of_scale(adapter, arguments)
    _warn_of_minibatch(arguments)
    if folder is not None:
        warn_of_used_budget(folder, arguments.get("max_metric_calls"))
        keep_facts(folder, facts)


def _faults_of_names(arguments: Mapping[str, Any]) -> list[str]:
    return [
        f"gepa.optimize has no argument {name!r}{near_match(name, ARGUMENTS)}"
        for name in arguments
        if name not in ARGUMENTS
    ]


def _faults_of_seed(adapter: GepaAdapter[Any], arguments: Mapping[str, Any]) -> list[str]:
    seed = arguments.get("seed_candidate")
    mend = "pass adapter.seed_candidate"
    if not isinstance(seed, dict):
        return [f"seed_candidate is {shown(seed)}; {mend}"]
    try:
        adapter.artifact(cast("dict[str, str]", seed))
    except SkynetAdaptersError as error:
        return [f"seed_candidate: {error}; {mend}"]
    return []


# --- cases and budget -------------------------------------------------------------------------------


def _faults_of_cases(arguments: Mapping[str, Any]) -> list[str]:
    faults: list[str] = []
    for name in ("trainset", "valset"):
        cases = arguments.get(name)
        if cases is None and name == "valset":
            continue
        loader = _loader(cases)
        if loader is None:
            fault = fault_of_cases(cases) or f"{shown(cases)} is no list of cases"
            mend = "" if "; pass " in fault else "; pass one, or as_gepa_dataset(cases)"
            faults.append(f"{name}: {fault}{mend}")
        elif not len(loader):
            faults.append(f"{name} is empty; there is nothing to evaluate or learn from")
        elif not isinstance(cases, GepaDataset):  # whose cases were checked when it was made
            faults += _faults_of_each_case(name, loader, whole=isinstance(cases, Sequence))
    if not faults and arguments.get("cache_evaluation"):
        faults += _faults_of_ids(_loader(arguments["trainset"]), _loader(arguments.get("valset")))
    return faults


def _loader(cases: Any) -> Any:
    """Give GEPA's own loader of some cases; `None` for what it cannot take."""
    if cases is None or isinstance(cases, str | Mapping | Split):
        return None
    try:
        loader = cast("Any", ensure_loader(cases))
        len(loader)
    except Exception:
        return None
    return loader


def _every_case(loader: Any) -> list[Any]:
    return loader.fetch(list(loader.all_ids()))


def _faults_of_each_case(name: str, loader: Any, whole: bool) -> list[str]:
    faults: list[str] = []
    ids = list(loader.all_ids())
    for number, case in enumerate(loader.fetch(ids if whole else ids[:_MOST_FETCHED])):
        try:
            input_and_expected(case)
        except DataError as error:
            faults.append(f"{name}, case {number + 1}: {error}")
    more = len(faults) - _MOST_CASES
    return faults[:_MOST_CASES] + ([f"{name}, {more} more cases cannot be used"] if more > 0 else [])


def _faults_of_ids(train: Any, val: Any) -> list[str]:
    if val is None:
        return []
    val_ids = set(val.all_ids())
    shared = [id for id in train.all_ids() if id in val_ids]
    for one, other in zip(train.fetch(shared), val.fetch(shared), strict=True):
        if one is not other and _content(one) != _content(other):
            return [
                "with cache_evaluation=True gepa 0.1.4 takes a training case for the validation case of "
                "the same id, and these sets share ids; pass as_gepa_dataset(trainset) and "
                "as_gepa_dataset(valset)"
            ]
    return []


def _content(case: Any) -> bytes | int:
    key = content_key(*input_and_expected(case))
    return id(case) if key is None else key


def _faults_of_budget(arguments: Mapping[str, Any]) -> list[str]:
    budget = arguments.get("max_metric_calls")
    if budget is None:
        others = ("stop_callbacks", "max_reflection_cost", "run_dir")  # a file in run_dir stops it too
        if all(arguments.get(name) is None for name in others):
            return ["nothing ends the run; pass max_metric_calls="]
        return []
    if not isinstance(cast("object", budget), Real) or isinstance(cast("object", budget), bool):
        return [f"max_metric_calls is {shown(budget)}; it must be a number"]
    if arguments.get("val_evaluation_policy") not in (None, "full_eval"):
        return []  # the seed may be evaluated on fewer cases
    validates = "trainset" if arguments.get("valset") is None else "valset"
    loader = _loader(arguments.get(validates))
    if loader is None or budget > len(loader):
        return []
    size = len(loader)
    return [
        f"max_metric_calls={budget} is used up by the first evaluation, of the seed on the {size} cases of "
        f"the {validates}, and GEPA would give the seed back; pass some times {size}, or a smaller valset"
    ]


# --- reflection model -------------------------------------------------------------------------------


def _faults_of_reflection(arguments: Mapping[str, Any]) -> list[str]:
    model = arguments.get("reflection_lm")
    faults: list[str] = []
    if arguments.get("reflection_lm_kwargs") and not isinstance(model, str):
        faults.append(
            "reflection_lm_kwargs would be ignored, since they are for a model's name only; give them to "
            "the model, as in as_reflection_lm(dspy.LM(name, temperature=1.0))"
        )
    proposers = ("custom_candidate_proposer", "reflection_strategy")
    is_endless = _cost_is_unknown(arguments) and not _is_bounded(arguments)
    if any(arguments.get(name) is not None for name in proposers):
        return [*faults, _fault_of_cost(arguments)] if is_endless else faults
    if model is None:
        faults.append("there is no reflection_lm; pass reflection_lm=as_reflection_lm(...)")
    elif is_dspys(model, "BaseLM"):
        faults.append(
            f"reflection_lm is the dspy.LM {getattr(model, 'model', '')!r}, which answers with a list, so "
            "that every proposal of GEPA fails; pass as_reflection_lm(lm)"
        )
    elif isinstance(model, str):
        pass  # GEPA asks LiteLLM for it, and knows its cost
    elif not callable(model) or isinstance(model, type):
        faults.append(f"reflection_lm is {shown(model)}; pass as_reflection_lm(...)")
    elif (fault := cannot_be_called_with(model, "prompt")) is not None:
        faults.append(f"reflection_lm {fault}; pass as_reflection_lm(function of the prompt)")
    elif is_endless:
        faults.append(_fault_of_cost(arguments))
    return faults


def _fault_of_cost(arguments: Mapping[str, Any]) -> str:
    return f"{_COST_IS_UNKNOWN % shown(_whose_cost(arguments))}, or max_metric_calls= instead"


_COST_IS_UNKNOWN = (
    "max_reflection_cost would never be reached, since the cost of %s is unknown; pass a dspy.LM through "
    "as_reflection_lm"
)

# gepa 0.1.4 evaluates minibatch after minibatch then.
_ENDS_BY_COST_ALONE = (
    "max_reflection_cost alone ends this run, and no cost comes from perfect minibatches, for which GEPA "
    "proposes nothing, nor from a reflection model that answers no more: then the run goes on for ever, and "
    "its cases are paid. Pass max_metric_calls= too"
)


def _cost_is_unknown(arguments: Mapping[str, Any]) -> bool:
    model = _whose_cost(arguments)
    is_limited = arguments.get("max_reflection_cost") is not None
    return is_limited and not isinstance(model, str) and not hasattr(model, "total_cost")


def _whose_cost(arguments: Mapping[str, Any]) -> Any:
    """Give what `max_reflection_cost` asks for its cost, as gepa 0.1.4 does."""
    strategy = arguments.get("reflection_strategy")
    return arguments.get("reflection_lm") if strategy is None else strategy


def _is_bounded(arguments: Mapping[str, Any]) -> bool:
    """Tell whether something else ends the run."""
    budget = arguments.get("max_metric_calls")
    return bool(arguments.get("stop_callbacks")) or (isinstance(budget, Real) and float(budget) < math.inf)


# --- scores -----------------------------------------------------------------------------------------


def _faults_of_frontier(metric: Metric, arguments: Mapping[str, Any]) -> list[str]:
    frontier = arguments.get("frontier_type", "instance")
    if frontier == "instance" or frontier not in get_args(FrontierType) or metric.complete({}):
        return []
    if not metric.has_judged:
        return []  # its names may still come
    return [needs_named_scores(frontier, metric)]


def _warn_of_minibatch(arguments: Mapping[str, Any]) -> None:
    size, cases = arguments.get("reflection_minibatch_size"), arguments.get("trainset")
    if isinstance(size, Integral) and isinstance(cases, Sized) and int(size) > len(cases):
        _log.warning(
            "reflection_minibatch_size=%d is more than the %d cases of trainset: GEPA runs them several "
            "times in each minibatch, and looks at max_metric_calls only after it.",
            size,
            len(cases),
        )


def _warn_of_scale(adapter: GepaAdapter[Any], arguments: Mapping[str, Any]) -> None:
    perfect: Any = arguments.get("perfect_score", 1.0)
    if not arguments.get("skip_perfect_score", True) or not isinstance(perfect, int | float):
        return
    metric = adapter.metric
    if metric.options["score_range"] is not None:
        if perfect > 1:
            _log.warning(
                "perfect_score=%g is never reached, since score_range normalises scores to 0..1", perfect
            )
        return
    low, high = adapter.seen_scores or (metric.failure_score, perfect)
    if high > perfect:
        _log.warning(
            "metric %r has given %g, above perfect_score=%g: for a minibatch of such scores GEPA proposes "
            "nothing. Pass score_range=(low, high), which normalises, or perfect_score=",
            metric.name,
            high,
            perfect,
        )
    if low < metric.failure_score:
        _log.warning(
            "metric %r has given %g, below failure_score=%g: a case that fails beats a poor answer. Pass "
            "score_range=(low, high), which normalises, or failure_score=",
            metric.name,
            low,
            metric.failure_score,
        )


# --- what a resumed run must have in common ---------------------------------------------------------


def _facts(metric: Metric, arguments: Mapping[str, Any]) -> dict[str, Any]:
    facts = {
        **metric_facts(metric),
        "seed_candidate": digest([json.dumps(arguments["seed_candidate"]).encode()], 16).hex(),
        "frontier_type": str(arguments.get("frontier_type", "instance")),
    }
    valset = arguments.get("valset")
    cases = _every_case(_loader(arguments["trainset"] if valset is None else valset))
    keys = [content_key(*input_and_expected(case)) for case in cases]
    if None not in keys:  # what holds a lock or a client has no content that another process knows again
        facts["valset"] = digest(cast("list[bytes]", keys), 16).hex()
    return facts
