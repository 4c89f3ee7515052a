"""What each argument of `gepa.optimize` may be by itself.

Built around gepa 0.1.4, which finds some of these faults only once cases are paid, and some never.
"""

import inspect
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, cast, get_args

from gepa.core.callbacks import GEPACallback
from gepa.core.state import FrontierType

from .function import is_async
from .options import near_match
from .score import shown

__all__ = ["cannot_be_called_with", "faults_of_arguments"]


class _Choice(NamedTuple):
    """What an argument may be: one of some names, or an object that has a method."""

    names: tuple[str, ...] = ()
    method: str = ""
    may_be_none: bool = False


_CHOICES = {
    "candidate_selection_strategy": _Choice(
        ("pareto", "current_best", "epsilon_greedy", "top_k_pareto"), "select_candidate_idx"
    ),
    "frontier_type": _Choice(get_args(FrontierType)),
    "batch_sampler": _Choice(("epoch_shuffled",), "next_minibatch_ids"),
    "module_selector": _Choice(("round_robin", "all"), "__call__"),
    "val_evaluation_policy": _Choice(("full_eval",), "get_eval_batch", may_be_none=True),
    "acceptance_criterion": _Choice(("strict_improvement", "improvement_or_equal"), "should_accept"),
    "sampling_strategy": _Choice(method="sample_tasks", may_be_none=True),
    "selection_strategy": _Choice(method="select", may_be_none=True),
    "reflection_strategy": _Choice(method="reflect", may_be_none=True),
    "logger": _Choice(method="log", may_be_none=True),
}


_EVENTS = [name for name in vars(GEPACallback) if name.startswith("on_")]


def faults_of_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Tell what is wrong with arguments, each by itself.

    Args:
        arguments: Those of `gepa.optimize`, by name.

    Returns:
        A sentence for each fault.

    Example:
        >>> faults_of_arguments({"module_selector": "round-robin"})
        ["module_selector='round-robin' is none of round_robin, all; did you mean 'round_robin'?"]
    """
    faults = [
        _fault_of_choice(name, arguments[name], choice)
        for name, choice in _CHOICES.items()
        if name in arguments
    ]
    faults += [
        _fault_of_proposer(arguments.get("custom_candidate_proposer")),
        _fault_of_stops(arguments.get("stop_callbacks")),
        _fault_of_callbacks(arguments.get("callbacks")),
        _fault_of_logger(arguments.get("logger")),
        _fault_of_size(arguments.get("reflection_minibatch_size")),
        _fault_of_template(arguments.get("reflection_prompt_template"), arguments.get("seed_candidate")),
        _fault_of_folder(arguments.get("run_dir")),
        *(_fault_of_number(name, arguments.get(name)) for name in ("perfect_score", "max_reflection_cost")),
    ]
    return [fault for fault in faults if fault is not None]


def cannot_be_called_with(function: Any, *given: str) -> str | None:
    """Tell why a callable cannot be called with so many values, or not be waited for; else `None`.

    Example:
        >>> cannot_be_called_with(lambda: "text", "prompt")
        'cannot be called with prompt: its signature is ()'
    """
    if is_async(function):
        return "is async, and GEPA does not await it"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return None
    try:
        signature.bind(*given)
    except TypeError:
        return f"cannot be called with {', '.join(given)}: its signature is {signature}"
    return None


def _fault_of_choice(name: str, value: Any, choice: _Choice) -> str | None:
    if value is None and choice.may_be_none:
        return None
    if isinstance(value, str) and choice.names:
        if value in choice.names:
            return None
        given = shown(value, with_type=False)
        return f"{name}={given} is none of {', '.join(choice.names)}{near_match(value, choice.names)}"
    if choice.method and not isinstance(value, type) and callable(getattr(value, choice.method, None)):
        return None
    an_object = "a function" if choice.method == "__call__" else f"an object with a method {choice.method}"
    may_be = [*map(repr, choice.names), *([an_object] if choice.method else [])]
    may_be += ["None"] if choice.may_be_none else []
    return f"{name} is {shown(value)}; it must be {' or '.join(may_be)}"


def _fault_of_proposer(proposer: Any) -> str | None:
    if proposer is None:
        return None
    parameters = ("candidate", "reflective_dataset", "components_to_update")
    mend = f"; it must be a function of {', '.join(parameters)}, and give a dict of new texts"
    if not callable(proposer) or isinstance(proposer, type):
        return f"custom_candidate_proposer is {shown(proposer)}{mend}"
    fault = cannot_be_called_with(proposer, *parameters)
    return None if fault is None else f"custom_candidate_proposer {fault}{mend}"


def _fault_of_stops(given: Any) -> str | None:
    if given is None:
        return None
    stops = [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        stops = list(cast("Sequence[Any]", given))
    # What an async one gives would count as yes, and end the run at once.
    wrong = [stop for stop in stops if not callable(stop) or isinstance(stop, type) or is_async(stop)]
    if not wrong:
        return None
    return (
        f"stop_callbacks has {shown(wrong[0])}; each must be a plain function of GEPA's state that says "
        "whether to stop"
    )


def _fault_of_callbacks(given: Any) -> str | None:
    if given is not None and (not isinstance(given, Iterable) or isinstance(given, str)):
        return f"callbacks is {shown(given)}; pass a list, as in callbacks=[adapter.callback]"
    for callback in cast("Iterable[Any]", given if isinstance(given, Sequence) else ()):
        if not any(callable(getattr(callback, event, None)) for event in _EVENTS):
            own = [name for name in dir(callback) if name.startswith("on_")]
            meant = near_match(own[0], _EVENTS) if own else ""
            return (
                f"callbacks has {shown(callback)}, which GEPA would never call: it calls methods of an "
                f"object such as {', '.join(_EVENTS[:3])}{meant}"
            )
    return None


def _fault_of_logger(logger: Any) -> str | None:
    log = getattr(logger, "log", None)
    fault = cannot_be_called_with(log, "message") if callable(log) else None
    if fault is None:
        return None
    mend = ""
    if isinstance(logger, logging.Logger):
        mend = "; a logging.Logger takes a level first: give an object whose log(message) calls its info"
    return f"logger.log {fault}{mend}"


def _fault_of_size(size: Any) -> str | None:
    is_bool = isinstance(size, bool)
    if size is None or (isinstance(size, Integral) and not is_bool and int(size) >= 1):
        return None
    return f"reflection_minibatch_size is {shown(size)}; it must be a whole number, at least 1"


def _fault_of_template(template: Any, seed: Any) -> str | None:
    if template is None or isinstance(template, str):
        return None
    if not isinstance(template, Mapping):
        given = shown(template)
        return f"reflection_prompt_template is {given}; it must be a text, or a dict of texts by component"
    components: list[str] = list(cast("dict[str, Any]", seed)) if isinstance(seed, dict) else []
    for name in cast("Mapping[str, Any]", template):
        if components and name not in components:
            known = near_match(str(name), components) or f"; there are {', '.join(components)}"
            return f"reflection_prompt_template has a text for {name!r}, which is no component{known}"
    return None


def _fault_of_folder(folder: Any) -> str | None:
    if folder is None or isinstance(folder, str | os.PathLike):
        return None
    return f"run_dir is {shown(folder)}; it must be the path of a folder"


def _fault_of_number(name: str, value: Any) -> str | None:
    is_bool = isinstance(value, bool)
    if value is None or (isinstance(value, Real) and not is_bool):
        return None
    return f"{name} is {shown(value)}; it must be a number"
