"""What a user's `run` makes of one case: an output, or a sentence that says why there is none."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

from .deadline import DeadlineExceededError, wait_within
from .errors import DefinitionError, MetricBroken
from .function import MOST_TOLD, told, without_partials
from .loaded import is_dspys
from .measure import Observation
from .score import shown

__all__ = ["RETURNED_NOTHING", "Ran", "attempt", "check_artifact", "checked_run", "too_late"]


_OF_A_METRIC = (("input", "output"), ("gold", "pred"), ("example", "pred"))

RETURNED_NOTHING = "It returned nothing."


class Ran(NamedTuple):
    """What `run` gave, or why it gave nothing.

    Attributes:
        output: What it returned; where it raised, what the error carries, or `None`.
        fault: A sentence; `None` where it gave an output.
        observation: What it took; `None` where nobody measured.
    """

    output: Any
    fault: str | None = None
    observation: Observation | None = None


def attempt(
    run: object, call: Callable[[], Any], seconds: float | None, most_chars: int | None = MOST_TOLD
) -> Ran:
    """Call `run`; of what it raises only Ctrl-C and a broken metric pass.

    Args:
        run: The user's function, for its place in a traceback, and for what `None` means of it.
        call: Calls it, and raises `DeadlineExceededError` when that takes too long.
        seconds: What it may take in all; here it ends the wait for what is async.
        most_chars: How much is told of an error; `None`: all.

    Returns:
        What became of it.

    Example:
        >>> attempt(len, lambda: len("four"), None)
        Ran(output=4, fault=None, observation=None)
        >>> attempt(len, lambda: len(4), None).fault
        "It raised TypeError: object of type 'int' has no len() ..."
    """
    begun = time.monotonic()
    try:
        output = call()
        if isinstance(output, Awaitable):
            left = None if seconds is None else seconds - (time.monotonic() - begun)
            output = wait_within(left, cast("Awaitable[Any]", output))
        if inspect.isgenerator(output) or inspect.isasyncgen(output):
            return Ran(None, "It gave a generator, since it has a `yield`; return the whole output at once.")
    except (KeyboardInterrupt, MetricBroken):
        raise
    except DeadlineExceededError:
        return too_late(seconds or 0.0)
    except BaseException as error:  # SystemExit of one case must not end the run either
        return Ran(_output_so_far(error), f"It raised {told(error, run, most_chars)}.")
    # A class of runs says so where `None` can be an answer, as of an optional field.
    kind = cast("Any", type(without_partials(run)))
    if output is None and getattr(kind, "none_is_an_output", False) is not True:
        return Ran(None, RETURNED_NOTHING)
    return Ran(output)


def checked_run(run: Any, *names: str) -> Callable[..., Any]:
    """Check, as far as that can be told, that a user's `run` takes what it will be called with.

    Args:
        run: What the user gave.
        names: What it will get, in order: "artifact" and "input", or "input" alone.

    Raises:
        DefinitionError: It is no function, or one of other parameters.

    Example:
        >>> checked_run(len, "artifact", "input")
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DefinitionError: run cannot be called as run(artifact, input): ...
    """
    form = f"run({', '.join(names)})"
    if not callable(run):
        raise DefinitionError(f"run is a function {form}; got {shown(run)}")
    if is_dspys(run, "Module"):  # its signature, `*args, **kwargs`, would pass for any
        raise DefinitionError(
            f"run is a function {form}; got the DSPy program {shown(run)}: pass program_run(program), and "
            "program_artifact(program) as the artifact"
        )
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):  # some functions written in C have none
        return run
    first = tuple(signature.parameters)[:2]
    if first in _OF_A_METRIC:
        raise DefinitionError(
            f"run has the parameters of a metric, {signature}: are score and run swapped? A run is {form}"
        )
    try:
        signature.bind(*names)
    except TypeError:
        mend = "" if "artifact" in names else "; for a run(artifact, input) pass artifact= too"
        raise DefinitionError(f"run cannot be called as {form}: its signature is {signature}{mend}") from None
    if "artifact" in names and first == ("input", "artifact"):
        raise DefinitionError(f"run gets the artifact first; write it as {form}, not {signature}")
    return run


def check_artifact(run: object, artifact: object) -> None:
    """Check that an artifact is one that `run` can run, where its class can tell.

    Raises:
        DefinitionError: It is another one.
    """
    run = without_partials(run)
    fault_of: Any = getattr(type(run), "fault_of_artifact", None)
    fault = None if fault_of is None else fault_of(run, artifact)
    if fault is not None:
        raise DefinitionError(fault)


def too_late(seconds: float) -> Ran:
    """Say that `run` took longer than it may."""
    return Ran(None, f"It did not answer within {seconds:g} s.")


def _output_so_far(error: BaseException) -> Any:
    """Find what an error carries: `subprocess` has `output`, DSPy's parse errors have `lm_response`."""
    for name in ("output", "lm_response"):
        try:
            output = getattr(error, name, None)
        except (Exception, SystemExit):  # a property of the user's own
            output = None
        if output is not None and not callable(output):
            return output
    return None
