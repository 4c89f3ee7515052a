# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a rollout of a DSPy program took: `measuring`, around an optimiser or `Evaluate`.

A callback of DSPy sees each call of a module, a tool and a model, in every thread, with the call that
it is made from. Callbacks on a program or a model would be lost in dspy.GEPA's deep copies; those in
the settings are not. Written for dspy 3.4.1.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import dspy
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID

from . import dspy_first_answers as first_answers
from .dspy_calls import Reported, checked_prices, first_of, is_known, reported_by, request_key
from .measure import (
    ModelCall,
    Observation,
    Prices,
    forget_records,
    observation_now,
    recorders,
    unmeasured,
)

__all__ = [
    "APART",
    "INSIDE_METRIC",
    "Apart",
    "apart_here",
    "billed_call",
    "is_in_rollout",
    "judging",
    "measured",
    "measuring",
    "program_asked",
]

_log = logging.getLogger("skynet_adapters")

# The setting that marks what runs on behalf of a metric, and holds that metric's bill.
INSIDE_METRIC = "skynet_adapters_inside_metric"
# The setting that marks what belongs to no rollout: what a metric does that judges from outside. It holds
# an `Apart`.
APART = "skynet_adapters_apart"


@contextlib.contextmanager
def measuring(*, prices: Prices | None = None) -> Generator[None]:
    r"""Measure each rollout in this block, for metrics that read what it took.

    A rollout is a call of a `dspy.Module`, of the whole program as of its parts (`BestOfN` judges the
    attempts inside it). Its figures are those of all model calls below it, in every thread that DSPy
    starts. Those of a metric that judges it from outside are not among them, nor are those of a reward that
    `BestOfN` or `Refine` was given; those of a metric that the program calls itself are. An answer from a
    cache counts with the time, tokens and price of the first real one. A call that failed counts, but for
    no tokens: providers report none.

    Args:
        prices: `{"openai/my-model": (0.15, 0.60)}`: US dollars per million tokens that are read and
            written. They go before those of a block around this one, and those before the prices that
            DSPy knows; `None`: only those. They hold also for an adapter or evaluator of GEPA that is made
            in this block, in threads of gepa's own too. A block that a program opens in its own rollout
            does not change what is measured around it.

    Raises:
        DefinitionError: `prices` is no dict, or a price is no pair of numbers.

    Example:
        >>> import dspy
        >>> from skynet_adapters import as_dspy_metric, observation
        >>> class Answer(dspy.Module):
        ...     def forward(self, question):
        ...         return dspy.Prediction(answer="4")
        >>> def score(input, output, expected=None):
        ...     return 1.0, {"feedback": f"{observation().model_calls} model calls."}
        >>> metric = as_dspy_metric(score)
        >>> example = dspy.Example(question="2 + 2?", answer="4").with_inputs("question")
        >>> with measuring():
        ...     metric(example, Answer()(question="2 + 2?")).feedback
        '0 model calls.\n\nScore: 1'
    """
    outer, own = _active_meter(), checked_prices(prices)
    first_answers.begin()
    first_answers.make_ready()
    meter = _Meter({**(outer.prices if outer is not None else {}), **own})
    with _with_callback(meter):
        yield
    meter.warn_of_unused(own)


@contextlib.contextmanager
def _with_callback(meter: "_Meter") -> Generator[None]:
    # Not `dspy.context`, which snapshots all settings, so that a `configure` in the block would do nothing.
    overrides: Any = thread_local_overrides.get() | {
        "callbacks": [*dspy.settings.callbacks, meter],
        "caller_modules": [*(dspy.settings.caller_modules or ()), _Overhears(meter)],
    }
    token = thread_local_overrides.set(overrides)
    try:
        yield
    finally:
        thread_local_overrides.reset(token)


def measured(answer: object) -> Observation | None:
    """Give what the rollout took whose answer this is; asked in the thread that judges, before it does.

    Args:
        answer: What the metric got as prediction.

    Returns:
        The record; `None` where nobody measures.
    """
    meter = _active_meter()
    if meter is None:
        forget_records()
        return None
    return meter.of(answer)


class Apart(NamedTuple):
    """Says of what is called that it is no part of any rollout that these meters measure."""

    meters: frozenset["_Meter"]
    is_known: bool  # as who judges what was measured; else it may be a program's, in a thread without context


_NOWHERE, _KNOWN = Apart(frozenset(), is_known=False), Apart(frozenset(), is_known=True)


def apart_here(is_programs: bool = False) -> Apart:
    """Tell for which rollouts a metric that is called here judges from outside.

    A metric that a program calls within its own rollout works for the program, which could else hide what
    it asks. DSPy's `BestOfN` and `Refine` call their reward within a rollout too.

    Args:
        is_programs: The metric was made within a rollout, so that it is not one of theirs that was given
            from outside.
    """
    if not _meters:  # nobody measures, as for most calls, of which each would pay for what follows
        return _KNOWN if observation_now() is not None or _mark().is_known else _NOWHERE
    mark, spans = _mark(), _open_here()
    inside = {span.meter for span in spans} - mark.meters
    if inside and (is_programs or not _is_reward_of_dspys()):
        return mark
    around = frozenset(inside.union(_active_meters(), mark.meters))
    return Apart(around, bool(around) or mark.is_known or observation_now() is not None)


def is_in_rollout() -> bool:
    """Tell whether this is called from a rollout that is measured."""
    return bool(_open_here())


def _mark() -> Apart:
    mark = thread_local_overrides.get().get(APART)
    return mark if isinstance(mark, Apart) else _NOWHERE  # a program may set what it likes


def _is_reward_of_dspys() -> bool:
    """Tell whether `BestOfN` or `Refine` calls this, and not the module whose attempts they judge."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not any(frame.f_code is code for code in _CALLS_OF_MODULES):
        if any(frame.f_code is code for code in _CALLERS_OF_REWARDS):
            return True
        frame = frame.f_back
    return False


_CALLERS_OF_REWARDS = (dspy.BestOfN.forward.__code__, dspy.Refine.forward.__code__)
_CALLS_OF_MODULES = tuple(
    cast("Any", call).__wrapped__.__code__ for call in (dspy.Module.__call__, dspy.Module.acall)
)


@contextlib.contextmanager
def judging(is_programs: bool = False) -> Generator[None]:
    """Keep the time of this block out of the rollouts that it is in, where it judges from outside of them.

    Args:
        is_programs: As for `apart_here`.
    """
    spans = _open_here()
    meters = apart_here(is_programs).meters if spans else ()
    with _left_out([span for span in spans if span.meter in meters]):
        yield


@contextlib.contextmanager
def _left_out(spans: "list[_Span]") -> Generator[None]:
    begun = time.perf_counter()
    try:
        yield
    finally:
        for span in spans:
            for above in span.line():
                above.leave_out(begun, time.perf_counter())


def _active_meters() -> "list[_Meter]":
    callbacks: Any = thread_local_overrides.get().get("callbacks")
    if not callbacks:
        return []
    return [one for one in callbacks if isinstance(one, _Meter) and not one.is_left_behind()]


def _active_meter() -> "_Meter | None":
    active = _active_meters()
    return active[-1] if active else None


def billed_call(entry: Mapping[str, Any]) -> ModelCall:
    """Read what a metric's own call took from its entry in a model's history.

    Args:
        entry: As DSPy writes it.

    Returns:
        The call; with the figures of the first real answer when it was cached, as far as the cache
        has kept them.
    """
    active, reported = _active_meters(), reported_by(entry)
    if not active:
        return reported.call
    # A program's own prices, of a block that began within its rollout, are none of the metric's.
    return next((one for one in reversed(active) if not one.within), active[0]).priced(reported)


# --- calls within calls -----------------------------------------------------------------------------


class _Asked:
    """One call of a model, under way or done."""

    def __init__(self, strand: tuple[int, int], span: "_Span | None" = None) -> None:
        self.strand = strand
        # What this thread or task began with: of a pool's thread, one of the items that it works on.
        self.item: object = self
        for above in span.line() if span is not None else ():
            if above.strand == strand:
                self.item = above
        self.key: str | None = None  # what it asked, by its name in the cache
        self.has_no_history = False
        self.begun = time.perf_counter()
        self.ended = self.begun
        self.call: ModelCall | None = None  # until it is done
        self.longer = 0.0  # how many seconds longer the first real answer took; -1: not known


class _FunctionRun:
    """One case of a function that is evaluated."""

    calls = 0  # of modules and models, not counting those below them


def _case_of_evaluation() -> int | None:
    """Tell which case DSPy's `Evaluate` runs in this thread; 0: not known; `None`: it judges already.

    It gives a case no id of its own (dspy 3.4.1), and a function that is evaluated does not tell where its
    call begins and ends.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_name == "process_item" and frame.f_globals.get("Evaluate") is dspy.Evaluate:
            known = frame.f_locals
            return None if "prediction" in known else id(known.get("example"))
        frame = frame.f_back
    return 0


class _Span:
    """One call of a module (or of a tool or model that no module made), and what is below it."""

    def __init__(self, meter: "_Meter", outer: "_Span | None") -> None:
        self.meter = meter
        self.outer = outer
        self.strand = _strand()
        self.asked: list[_Asked] = []
        self.left_out: list[tuple[float, float]] = []  # such as when a metric judged a part of it
        self.modules = 0
        self.begun = time.perf_counter()
        self.ended: float | None = None
        self.own_run = False  # a `run` of this package, which may ask models in any way
        self.function: _FunctionRun | None = None  # a function that is evaluated, and has called this
        self.around: _Span | None = None  # what its thread or task was inside of before
        self.was_read = False
        self.is_shared = False  # its answer is that of another call too, and not judged right after it
        self.hid_call = False
        self._strays = _strays

    def line(self) -> "Generator[_Span]":
        """Give this call and those it is made from."""
        span: _Span | None = self
        while span is not None:
            yield span
            span = span.outer

    def leave_out(self, begun: float, ended: float) -> None:
        """Keep a time out of it."""
        self.left_out.append((begun, ended))

    def root(self) -> "_Span":
        """Give the call that is made from no other one."""
        *_, last = self.line()
        return last

    def end(self) -> None:
        """Note that it has ended."""
        self.ended = time.perf_counter()
        self._strays = _strays - self._strays
        if self._is_spread() and not any(asked.call is None or asked.call.cached for asked in self.asked):
            key = self._key()
            if key is not None:
                first_answers.keep_seconds(key, self._own_seconds())

    def observation(self) -> Observation:
        if self.function is not None and self.function.calls > 1:
            return _SEVERAL
        seconds, why_no_time = self._seconds()
        time_ms = None if seconds is None else seconds * 1e3
        unseen = self._unseen()
        if unseen is not None:
            return unmeasured(unseen, time_ms=time_ms)
        asked = tuple(self.asked)
        reasons: dict[str, str] = {}
        if any(one.call is None for one in asked):
            why = "a model call of it was still under way when it ended"
            reasons = dict.fromkeys(("cached_calls", "input_tokens", "output_tokens", "cost_usd"), why)
        if why_no_time is not None:
            reasons["time_ms"] = why_no_time
        done = [(one, one.call) for one in asked if one.call is not None]

        def total(name: str, why: Callable[[ModelCall, bool], str], given: str | None = None) -> Any:
            numbers = [getattr(call, given or name) for _, call in done]
            for (one, call), number in zip(done, numbers, strict=True):
                if number is None:
                    reasons.setdefault(name, why(call, one.has_no_history))
            return None if name in reasons else sum(numbers)

        return Observation(
            time_ms=time_ms,
            model_calls=len(asked),
            cached_calls=total("cached_calls", _no_usage, "cached"),
            input_tokens=total("input_tokens", _no_usage),
            output_tokens=total("output_tokens", _no_usage),
            cost_usd=total("cost_usd", _no_price),
            reasons=reasons,
        )

    def _unseen(self) -> str | None:
        """Tell why it is not known what models were asked; `None` where it is."""
        if self.meter.is_blind:
            return _BLIND
        if self.hid_call:
            return _HIDDEN
        if self.asked:
            return None
        if self.own_run and not self.modules:
            return "no model call was seen; only those of a dspy.LM can be measured"
        strays = self._strays if self.ended is not None else _strays - self._strays
        return _STRAY if strays else None

    def _seconds(self) -> tuple[float | None, str | None]:
        """Give the wall time that it takes without a cache; else why that is not known."""
        asked = tuple(self.asked)
        if not any(one.longer for one in asked):
            return self._own_seconds(), None
        if len(asked) > 1:  # kept where the first ones were at once, which cached ones need not show
            key = self._key() if all(one.call is not None and one.call.cached for one in asked) else None
            first = None if key is None else first_answers.first_seconds(key)
            if first is not None:
                return first, None
        for one in asked:
            if one.longer < 0:
                name = one.call.model if one.call is not None else ""
                return None, f"the model {name!r} was asked, and {_FIRST_UNKNOWN}"
        if _shares_a_thread(asked, self.strand):
            return None, _AT_ONCE
        return self._own_seconds() + _longest(self.asked, self.strand), None

    def _own_seconds(self) -> float:
        """Give the wall time, without what a metric took."""
        ended = time.perf_counter() if self.ended is None else self.ended
        return ended - self.begun - _covered(self.left_out)

    def _is_spread(self) -> bool:
        """Tell whether models were asked in other threads or tasks too."""
        return any(asked.strand != self.strand for asked in self.asked)

    def _key(self) -> str | None:
        """Name it by all that it asked; `None` where not all of that may be answered from the cache."""
        keys = [asked.key for asked in self.asked]
        if None in keys:
            return None
        return "all of " + hashlib.sha256("".join(sorted(cast("list[str]", keys))).encode()).hexdigest()


def _no_usage(call: ModelCall, has_no_history: bool = False) -> str:
    hint = " (with disable_history=True DSPy keeps none)" if has_no_history else ""
    return f"the model {call.model!r} reported no tokens{hint}"


def _no_price(call: ModelCall, has_no_history: bool) -> str:
    if call.input_tokens is None or call.output_tokens is None:
        return _no_usage(call, has_no_history)
    return (
        f"no price is known for the model {call.model!r}; give it to "
        f"measuring(prices={{{call.model!r}: (dollars per million tokens read, written)}}), in runs of gepa "
        "around what makes the adapter or evaluator"
    )


_FIRST_UNKNOWN = "its answer came from a cache, and nobody has timed the first one"
_AT_ONCE = (
    "it asked models in several threads, some of the answers came from a cache, and nobody has timed the "
    "first ones together"
)
_BLIND = (
    "a model call was made where the program has set callbacks of its own, so that nobody can tell whose it "
    "was; set them as dspy.context(callbacks=[*dspy.settings.callbacks, ...])"
)
_HIDDEN = (
    "a model call was made where the program has taken away what measures it; leave the callbacks and "
    "caller_modules of dspy.settings in place"
)
_STRAY = (
    "a model was asked meanwhile in a thread without context, which may have been its; start such a thread "
    "with contextvars.copy_context().run"
)
_SHARED = unmeasured("the program gave this same object as another answer too, and it is judged later")
_SEVERAL = unmeasured(
    "the program is a function that calls several modules or models; make it a dspy.Module, measured as one"
)


def _strand() -> tuple[int, int]:
    """Name the thread, and the task in it, whose steps follow one another."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task) if task is not None else 0


def _covered(times: list[tuple[float, float]]) -> float:
    """Give the seconds that any of these spans of time covers."""
    total, reached = 0.0, 0.0
    for begun, ended in sorted(times):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total


def _shares_a_thread(asked: tuple[_Asked, ...], root: tuple[int, int]) -> bool:
    """Tell whether a thread of a pool has worked on several items.

    Cached answers come so quickly that one thread takes what several would, and then it shows nowhere
    whether the first ones followed one another.
    """
    items: dict[tuple[int, int], set[int]] = {}
    for one in asked:
        if one.strand != root:
            items.setdefault(one.strand, set()).add(id(one.item))
    return any(len(found) > 1 for found in items.values())


def _longest(asked: list[_Asked], root: tuple[int, int]) -> float:
    """Give how much longer it would have taken without a cache.

    Calls that follow one another add up. Those in different threads or tasks do so only where one
    of the two is the program's own, which waits for the others.
    """
    if not any(call.longer for call in asked):
        return 0.0
    done: list[tuple[_Asked, float]] = []
    for call in sorted(asked, key=lambda one: one.begun):
        before = (
            shift
            for other, shift in done
            if other.ended <= call.begun
            and (other.strand == call.strand or root in (other.strand, call.strand))
        )
        done.append((call, max(before, default=0.0) + call.longer))
    return max(shift for _, shift in done)


# --- the callback -----------------------------------------------------------------------------------


class _Ended(NamedTuple):
    meter: weakref.ref["_Meter"]
    answer: object
    span: _Span
    earlier: tuple[tuple[object, _Span], ...]  # whole rollouts whose answers nobody has judged yet


_MOST_EARLIER = 16


# The module that ended last in this thread or task. It is asked first, since a program may give one and
# the same object, or a plain text, as every answer.
_ended: ContextVar[_Ended | None] = ContextVar("skynet_adapters_ended", default=None)
# What this thread or task is inside of, one call for each meter. DSPy's own id of the call reaches its
# worker threads too, but is one that a meter does not know where a program has taken its callback away.
_inside: ContextVar[tuple[_Span, ...]] = ContextVar("skynet_adapters_inside", default=())


def _open_here() -> list[_Span]:
    """Give the calls under way that this is called from, one for each meter."""
    call_id = cast("str | None", ACTIVE_CALL_ID.get())
    found = {span.meter: span for span in _inside.get() if span.ended is None}
    for meter in _all_meters() if call_id is not None else ():
        span = meter.open_spans.get(cast("str", call_id))
        if span is not None:
            found[meter] = span
    for span in (*found.values(),):
        for around in span.meter.within:  # where a program measures by itself alone
            if around.ended is None:
                found.setdefault(around.meter, around)
    return list(found.values())


class _Overhears:
    """Get the history entry of every call, those too of which no callback is told."""

    def __init__(self, meter: "_Meter") -> None:
        self.meter = meter

    @property
    def history(self) -> Any:
        return self

    def __len__(self) -> int:
        return 0

    def append(self, entry: Mapping[str, Any]) -> None:
        self.meter.overheard(entry)


# Those that there are, and how often a model was asked of which none can tell whose call it was.
_meters: weakref.WeakValueDictionary[int, "_Meter"] = weakref.WeakValueDictionary()
_strays = 0


def _all_meters() -> "list[_Meter]":
    return [meter for meter in [known() for known in _meters.valuerefs()] if meter is not None]


class _Given(dict[str, tuple[float, float]]):
    """The prices of a block; knows what was asked while they held, and which of them were used."""

    def __init__(self, prices: Prices) -> None:
        super().__init__(prices)
        self.asked: set[str] = set()
        self.used: set[str] = set()


class _Meter(BaseCallback):
    """Collect, for each call of a module, the model calls that are made below it."""

    def __init__(self, prices: Prices) -> None:
        self.prices = _Given(prices)
        self.open_spans: dict[str, _Span] = {}
        self._lm_calls: dict[str, tuple[_Span, _Asked, Any, Mapping[str, Any]]] = {}
        # The answer, whose it is, and whether it was another call's too.
        self._by_answer: dict[int, tuple[weakref.ref[Any], _Span, bool]] = {}
        self.is_blind = False
        self._of_functions: set[str] = set()
        self._function_runs: dict[tuple[str, int, int], _FunctionRun] = {}
        self.within = tuple(_open_here())  # the rollouts, of other meters, that it was made in
        self.case = _case_of_evaluation()  # a case of an evaluation, which may be that of a function
        _meters[id(self)] = self

    def is_left_behind(self) -> bool:
        """Tell whether a program has left its block open, for who judges it to find."""
        if self.within or not self.case:
            return any(span.ended is not None for span in self.within)
        return _case_of_evaluation() not in (0, self.case)  # of a function, which has no call of its own

    def priced(self, reported: Reported) -> ModelCall:
        """Price a call with the prices that were given to this meter, else with the one that DSPy knows."""
        call = reported.call
        self.prices.asked.add(call.model)
        if call.input_tokens is None or call.output_tokens is None:
            return call
        for name in reported.names:
            if name in self.prices:
                self.prices.used.add(name)
                read, written = self.prices[name]
                cost = (call.input_tokens * read + call.output_tokens * written) / 1e6
                return call._replace(cost_usd=cost)
        return call

    def warn_of_unused(self, prices: Prices) -> None:
        """Warn of prices that no model has, such as of a misspelt one."""
        unused = [model for model in prices if model not in self.prices.used]
        if unused and self.prices.asked:
            _log.warning(
                "measuring(prices=): no model that was asked is called %s; asked were %s.",
                ", ".join(map(repr, unused)),
                ", ".join(map(repr, sorted(self.prices.asked))),
            )

    def was_told(self, call_id: str | None) -> bool:
        """Tell whether this callback was told of this call of a model."""
        return call_id in self._lm_calls

    def of(self, answer: object) -> Observation:
        """Give what the rollout took whose answer this is."""
        last = _ended.get()
        if last is not None and last.meter() is self and _is_answer(answer, last.answer):
            for other, span in last.earlier:
                if _is_answer(answer, other) and not span.was_read:
                    span.was_read = last.span.is_shared = True
            last.span.was_read = True
            if last.span.is_shared:
                return _SHARED
            return last.span.observation()
        known = self._by_answer.get(id(answer))
        if known is not None and known[0]() is answer:
            known[1].was_read = True
            return _SHARED if known[2] else known[1].observation()
        return unmeasured(
            "this answer is not what a dspy.Module gave inside of `with measuring():`; a function around a "
            "module has to be made a module"
        )

    def _started(self, call_id: str, is_module: bool) -> "_Span | None":
        if self in _mark().meters:
            return None
        outer = self._inside()
        if outer is not None and outer.own_run and not outer.modules and not outer.asked:
            outer.strand = _strand()  # a `run` goes on in a thread of its own
        if is_module or outer is None:
            span = _Span(self, outer)
            parent = cast("str", ACTIVE_CALL_ID.get())
            if outer is None and parent in self._of_functions:
                case = _case_of_evaluation()
                if case is not None:
                    run = (parent, threading.get_ident(), case)
                    span.function = self._function_runs.setdefault(run, _FunctionRun())
                    span.function.calls += 1
            if is_module:
                for above in span.line():
                    above.modules += 1
        else:
            span = outer  # a tool, an adapter or an interpreter only passes on whose call it is
        self.open_spans[call_id] = span
        return span

    def _inside(self) -> "_Span | None":
        """Give what this is called from."""
        found = self.open_spans.get(cast("str", ACTIVE_CALL_ID.get()))
        if found is not None:
            return found
        return next((one for one in _inside.get() if one.meter is self and one.ended is None), None)

    def _enter(self, span: "_Span | None") -> "_Span | None":
        """Note that this thread or task is inside of a call from now on; gives what it was inside of."""
        before = _inside.get()
        others = tuple(one for one in before if one.meter is not self)
        _inside.set(others if span is None else (*others, span))
        return next((one for one in before if one.meter is self), None)

    def _passed(self, call_id: str, instance: Any, inputs: Any) -> None:
        self._started(call_id, is_module=False)

    def _left(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        self.open_spans.pop(call_id, None)

    def _passed_inside(self, call_id: str, instance: Any, inputs: Any) -> None:
        # An evaluation inside of a program belongs to it; one around programs is no rollout.
        outer = self._inside()
        if outer is not None:
            self.open_spans[call_id] = outer

    on_compile_start = _passed_inside
    on_compile_end = _left

    def on_evaluate_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note whether it is a function that is evaluated; called by DSPy."""
        self._passed_inside(call_id, instance, inputs)
        if not isinstance(inputs.get("program"), dspy.Module):
            self._of_functions.add(call_id)

    def on_evaluate_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Forget it; called by DSPy."""
        self._left(call_id, outputs)
        self._of_functions.discard(call_id)
        for run in [run for run in (*self._function_runs,) if run[0] == call_id]:
            self._function_runs.pop(run, None)

    on_tool_start = on_adapter_format_start = on_adapter_parse_start = _passed
    on_interpreter_execute_start = on_interpreter_tool_call_start = _passed
    on_interpreter_startup_start = on_interpreter_shutdown_start = _passed
    on_tool_end = on_adapter_format_end = on_adapter_parse_end = _left
    on_interpreter_execute_end = on_interpreter_tool_call_end = _left
    on_interpreter_startup_end = on_interpreter_shutdown_end = _left

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Open the record of a module's call; called by DSPy."""
        span = self._started(call_id, is_module=True)
        if span is not None:
            span.around = self._enter(span)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close it, and publish it for who judges the answer; called by DSPy."""
        span = self.open_spans.pop(call_id, None)
        if span is None:
            return
        span.end()
        self._enter(span.around)
        if exception is not None:
            return
        _ended.set(_Ended(weakref.ref(self), outputs, span, _not_judged(_ended.get(), span)))
        for answer in (outputs, *_in_pair(outputs)):
            key = id(answer)
            with contextlib.suppress(TypeError):  # a text or dict: only the thread's last one is known

                def gone(reference: Any, key: int = key, kept: Any = self._by_answer) -> None:
                    if kept.get(key, (None,))[0] is reference:
                        del kept[key]

                known = self._by_answer.get(key)
                same = known if known is not None and known[0]() is answer else None
                shared = same is not None and (same[2] or same[1].root() is not span.root())
                self._by_answer[key] = (weakref.ref(answer, gone), span, shared)

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Count a model call for everything that it is made from; called by DSPy."""
        span = self._started(call_id, is_module=False)
        if span is None:
            return
        first_answers.forget()
        asked = _Asked(_strand(), span)
        for above in span.line():
            above.asked.append(asked)
        self._lm_calls[call_id] = (span, asked, instance, inputs)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Fill in what it took; called by DSPy."""
        self.open_spans.pop(call_id, None)
        found = self._lm_calls.pop(call_id, None)
        if found is None:
            return
        _, asked, lm, inputs = found
        asked.ended = time.perf_counter()
        name = str(getattr(lm, "model", type(lm).__name__))
        if exception is not None:
            asked.call = ModelCall(name, False, 0, 0, 0.0)
            return
        entry, answered = _entry(lm, outputs), first_answers.answered()
        reported = Reported(ModelCall(name)) if entry is None else reported_by(entry)
        call = reported.call
        asked.has_no_history = bool(entry is None and dspy.settings.disable_history)
        if answered is not None and answered.key is not None:
            asked.key, seconds = answered.key, answered.seconds
            call = call._replace(cached=answered.cached)
        else:  # a model with a cache of its own
            asked.key, seconds = request_key(lm, inputs), asked.ended - asked.begun
            if call.input_tokens is None and is_known(asked.key):  # an answer without usage shows no hit
                call = call._replace(cached=True)
        reported = reported._replace(call=call)
        first = first_of(asked.key, seconds, reported)
        if call.cached:
            asked.longer = max(0.0, first.seconds - seconds) if first is not None else -1.0
            if first is not None and call.input_tokens is None:
                reported = first.reported._replace(call=first.reported.call._replace(cached=True))
        asked.call = self.priced(reported)

    def overheard(self, entry: Mapping[str, Any]) -> None:
        """Take the entry of a call; of interest is one that this callback was not told of."""
        call_id = cast("str", ACTIVE_CALL_ID.get())
        if call_id in self._lm_calls:
            return
        span = self.open_spans.get(call_id)
        if span is None:
            self.is_blind = True
            return
        asked = _Asked(_strand(), span)
        reported = reported_by(entry)
        asked.call = self.priced(reported)
        answered = first_answers.answered()
        asked.key = None if answered is None else answered.key
        if asked.call.cached:
            first = first_of(asked.key, 0.0, reported)
            asked.longer = -1.0 if first is None else first.seconds
        for above in span.line():
            above.asked.append(asked)

    @contextlib.contextmanager
    def rollout(self) -> Generator[_Span]:
        """Measure a block as one rollout."""
        around, call_id = _open_here(), uuid.uuid4().hex
        span = _Span(self, next((one for one in around if one.meter is self), None))
        span.own_run = True
        # What it asks is also part of the rollouts that it is in itself.
        known = {one.meter: one for one in around} | {self: span}
        for meter, one in known.items():
            meter.open_spans[call_id] = one
        token = ACTIVE_CALL_ID.set(cast("Any", call_id))
        # A copy, so that settings which it leaves behind end with it.
        settings = thread_local_overrides.set(thread_local_overrides.get())
        before = self._enter(span)
        try:
            yield span
        finally:
            span.end()
            self._enter(before)
            thread_local_overrides.reset(settings)
            ACTIVE_CALL_ID.reset(token)
            for meter in known:
                meter.open_spans.pop(call_id, None)


def _not_judged(before: _Ended | None, span: _Span) -> tuple[tuple[object, _Span], ...]:
    """Give the rollouts that ended before this one in its thread or task, and wait for their judgement."""
    if before is None or before.span.meter is not span.meter:
        return ()
    earlier = before.earlier
    if before.span.outer is None:
        earlier = (*earlier, (before.answer, before.span))
    return tuple(one for one in earlier if not one[1].was_read)[-_MOST_EARLIER:]


def _in_pair(outputs: Any) -> tuple[Any, ...]:
    """Give the answer in what dspy.GEPA makes of it while it collects traces: a pair with the trace."""
    if isinstance(outputs, tuple) and len(cast("Any", outputs)) == 2 and isinstance(outputs[1], list):
        return (outputs[0],)
    return ()


def _is_answer(answer: object, outputs: object) -> bool:
    return answer is outputs or any(answer is inner for inner in _in_pair(outputs))


def _entry(lm: Any, outputs: Any) -> Mapping[str, Any] | None:
    """Find this call's entry in the model's history, where prices are and a callback gets none.

    By identity, newest first: other threads write there too. With a small `max_history_size` only
    DSPy's own list still has it.
    """
    if dspy.settings.disable_history:
        return None
    for history in (getattr(lm, "history", ()), GLOBAL_HISTORY):
        for entry in itertools.islice(reversed(history), 1_000):  # many more than end at once
            if entry.get("outputs") is outputs or entry.get("response") is outputs:
                return entry
    return None


class _Recorder:
    """What runs rollouts in other ways than by DSPy's modules."""

    @contextlib.contextmanager
    def rollout(self) -> Generator[_Span]:
        meter = _active_meter()
        if meter is not None:
            with meter.rollout() as span:
                yield span
            return
        first_answers.begin()
        first_answers.make_ready()
        meter = _Meter({})
        with _with_callback(meter), meter.rollout() as span:
            yield span

    def prices(self) -> Prices:
        meter = _active_meter()
        return {} if meter is None else meter.prices

    @contextlib.contextmanager
    def priced(self, prices: Prices) -> Generator[None]:
        around = self.prices()
        if all(model in around for model in prices):
            yield
            return
        first_answers.begin()
        first_answers.make_ready()
        meter = _Meter({**prices, **around})
        if isinstance(prices, _Given):  # so that their block knows that they were of use
            meter.prices.asked, meter.prices.used = prices.asked, prices.used
        with _with_callback(meter):
            yield


def program_asked(call: ModelCall) -> None:
    """Count a call of a model that is a plain function, which DSPy sees nothing of, for the program.

    Args:
        call: The call.
    """
    apart = _mark().meters
    for span in _open_here():
        if span.meter in apart:
            continue
        asked = _Asked(_strand(), span)
        asked.call = call
        for above in span.line():
            above.asked.append(asked)


def _before_call(lm: Any, call: Any) -> None:
    if not first_answers.is_ready(lm, call):
        with _left_out(_open_here()):  # nobody's program takes that time
            first_answers.make_ready(lm, call)
    _notice_unseen()


def _overhearing() -> list[_Meter]:
    """Give the meters that will be told of this call when it has ended, by the history alone."""
    if dspy.settings.disable_history or not dspy.settings.max_history_size:
        return []
    heard = [one.meter for one in dspy.settings.caller_modules or () if isinstance(one, _Overhears)]
    return [meter for meter in heard if meter not in _active_meters()]


def _notice_unseen() -> None:
    """Note a call of a model that no callback is told of, so that it does not count as none."""
    global _strays
    if not _meters:
        return
    call_id, mark = cast("str", ACTIVE_CALL_ID.get()), _mark()
    spans, overhearing = _open_here(), _overhearing()
    for span in spans:
        meter = span.meter
        if meter not in mark.meters and meter not in overhearing and not meter.was_told(call_id):
            for above in span.line():
                above.hid_call = True
    if not spans and not overhearing and not mark.is_known:
        _strays += 1


first_answers.when_asked.append(_before_call)
recorders.append(_Recorder())
