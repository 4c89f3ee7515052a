# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a rollout of a DSPy program took: `measuring`, around an optimiser or `Evaluate`.

A callback of DSPy sees each call of a module, a tool and a model, in every thread, with the call that
it is made from. Callbacks on a program or a model would be lost in dspy.GEPA's deep copies; those in
the settings are not. Written for dspy 3.4.1.
"""

import asyncio
import contextlib
import itertools
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import dspy
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.dsp.utils.settings import thread_local_overrides
from dspy.utils.callback import BaseCallback
from dspy.utils.callback_context import ACTIVE_CALL_ID

from .errors import DefinitionError
from .measure import ModelCall, Observation, recorders, unmeasured
from .score import shown

__all__ = ["INSIDE_METRIC", "Prices", "judging", "measured", "measuring", "model_call"]

# US dollars per million tokens, (read, written), for each model.
Prices = Mapping[str, tuple[float, float]]

# The setting that marks what runs on behalf of a metric, and so belongs to no rollout.
INSIDE_METRIC = "skynet_adapters_inside_metric"


@contextlib.contextmanager
def measuring(*, prices: Prices | None = None) -> Generator[None]:
    r"""Measure each rollout in this block, for metrics that read what it took.

    A rollout is a call of a `dspy.Module`, of the whole program as of its parts (`BestOfN` judges the
    attempts inside it). Its figures are those of all model calls below it, in every thread that DSPy
    starts. A metric's own calls are not among them. An answer from a cache counts with the time,
    tokens and price of the first real one. A call that failed counts, but for no tokens: providers
    report none.

    Args:
        prices: `{"openai/my-model": (0.15, 0.60)}`: US dollars per million tokens that are read and
            written. They go before the prices that DSPy knows; `None`: only those.

    Raises:
        DefinitionError: A price is no pair of numbers.

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
    with _with_callback(_Meter(_checked_prices(prices))):
        yield


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
    return None if meter is None else meter.of(answer)


@contextlib.contextmanager
def judging() -> Generator[None]:
    """Keep the time of this block out of the rollout that it is in, if it is in one."""
    meter, begun = _active_meter(), time.perf_counter()
    span = None if meter is None else meter.open_spans.get(cast("str", ACTIVE_CALL_ID.get()))
    try:
        yield
    finally:
        if span is not None:
            for outer in span.line():
                outer.judged.append((begun, time.perf_counter()))


def _active_meter() -> "_Meter | None":
    callbacks: Any = thread_local_overrides.get().get("callbacks")
    if not callbacks:
        return None
    return next((one for one in reversed(callbacks) if isinstance(one, _Meter)), None)


def _checked_prices(prices: Any) -> dict[str, tuple[float, float]]:
    checked: dict[str, tuple[float, float]] = {}
    for model, price in cast("dict[Any, Any]", prices or {}).items():
        try:
            read, written = (float(number) for number in price)
        except (TypeError, ValueError):
            read = written = -1.0
        if not isinstance(model, str) or not (0 <= read < float("inf") and 0 <= written < float("inf")):
            raise DefinitionError(
                f"prices={{{model!r}: {shown(price, with_type=False)}}} cannot be used: give US dollars per "
                'million tokens read and written, such as {"openai/my-model": (0.15, 0.60)}'
            )
        checked[model] = (read, written)
    return checked


# --- one call of a model ----------------------------------------------------------------------------


def model_call(entry: Mapping[str, Any]) -> ModelCall:
    """Read what a call took from its entry in a model's history.

    Args:
        entry: As DSPy writes it.

    Returns:
        The call; with the figures of the first real answer when it was cached, as far as the cache
        has kept them.
    """
    model, usage, cost = str(entry.get("model")), entry.get("usage") or {}, entry.get("cost")
    kept = _counts(entry.get("response"))
    # A hit is marked, or its entry has no usage while the answer itself has (dspy 3.4.1).
    cached = bool(getattr(entry.get("response"), "cache_hit", False)) or (not usage and kept != (None, None))
    read, written = kept if cached else _tokens(usage)
    return ModelCall(model, cached, read, written, _priced(entry, read, written, cost))


def _priced(entry: Mapping[str, Any], read: int | None, written: int | None, cost: Any) -> float | None:
    meter = _active_meter()
    prices = meter.prices if meter is not None else {}
    model = str(entry.get("model"))
    for name in (model, model.partition("/")[2], str(entry.get("response_model"))):
        if name in prices and read is not None and written is not None:
            return (read * prices[name][0] + written * prices[name][1]) / 1e6
    return None if cost is None else float(cost)


def _counts(response: Any) -> tuple[int | None, int | None]:
    """Give the tokens that a response itself tells; a call for several answers has several responses."""
    parts = list(response) if isinstance(response, tuple) else [response]
    counts = [_tokens(getattr(part, "usage", None)) for part in parts]
    read, written = ([count[at] for count in counts] for at in (0, 1))
    return _sum(read), _sum(written)


def _tokens(usage: Any) -> tuple[int | None, int | None]:
    def one(*names: str) -> int | None:
        for name in names:
            value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
            if isinstance(value, int):
                return value
        return None

    return one("prompt_tokens", "input_tokens"), one("completion_tokens", "output_tokens")


def _sum(numbers: list[Any]) -> Any:
    return None if not numbers or any(number is None for number in numbers) else sum(numbers)


class _First(NamedTuple):
    """What the first real answer to a request took."""

    seconds: float
    call: ModelCall


# By request, as DSPy's cache knows it; for all blocks of this process, since that cache outlives them too.
_firsts: OrderedDict[str, _First] = OrderedDict()
_MOST_FIRSTS = 100_000
_NOT_IN_THE_KEY = ("api_key", "api_base", "base_url", "cache")


def _request_key(lm: Any, inputs: Mapping[str, Any]) -> str | None:
    """Name a request that may be answered from DSPy's cache; `None` where it cannot be."""
    more: dict[str, Any] = inputs.get("kwargs") or {}
    if not more.get("cache", getattr(lm, "cache", False)):
        return None
    request = {**getattr(lm, "kwargs", {}), **more}
    prompt = inputs.get("prompt")
    request |= {"model": lm.model, "model_type": getattr(lm, "model_type", None)}
    request |= {
        "prompt": prompt if isinstance(prompt, str) else repr(prompt),
        "messages": inputs.get("messages"),
    }
    try:
        return dspy.cache.cache_key(
            {name: value for name, value in request.items() if name not in _NOT_IN_THE_KEY}
        )
    except Exception:  # what cannot be named is not cached either
        return None


def _first_of(key: str | None, seconds: float, call: ModelCall) -> _First | None:
    """Remember a real answer as the first one, or find that of a cached answer."""
    if key is None:
        return None
    if call.cached:
        return _firsts.get(key)
    first = _firsts.setdefault(key, _First(seconds, call))
    while len(_firsts) > _MOST_FIRSTS:
        with contextlib.suppress(KeyError):  # another thread took it
            _firsts.popitem(last=False)
    return first


# --- calls within calls -----------------------------------------------------------------------------


class _Asked:
    """One call of a model, under way or done."""

    def __init__(self, strand: tuple[int, int]) -> None:
        self.strand = strand
        self.begun = time.perf_counter()
        self.ended = self.begun
        self.call: ModelCall | None = None  # until it is done
        self.longer = 0.0  # how many seconds longer the first real answer took; -1: not known


class _Span:
    """One call of a module (or of a tool or model that no module made), and what is below it."""

    def __init__(self, meter: "_Meter", outer: "_Span | None") -> None:
        self.meter = meter
        self.outer = outer
        self.strand = _strand()
        self.asked: list[_Asked] = []
        self.judged: list[tuple[float, float]] = []  # when a metric judged a part of it
        self.modules = 0
        self.begun = time.perf_counter()
        self.ended: float | None = None
        self.own_run = False  # a `run` of this package, which may ask models in any way
        self.function: str | None = None  # the evaluation of a function that this is called from
        self.is_part = False  # of such a function, which has called another module before
        self.was_read = False

    def line(self) -> "Generator[_Span]":
        """Give this call and those it is made from."""
        span: _Span | None = self
        while span is not None:
            yield span
            span = span.outer

    def root(self) -> "_Span":
        """Give the call that is made from no other one."""
        *_, last = self.line()
        return last

    def observation(self) -> Observation:
        unknown_time = next((asked for asked in tuple(self.asked) if asked.longer < 0), None)
        time_ms = None if unknown_time is not None else self._seconds() * 1e3
        if self.meter.is_blind:
            return unmeasured(_BLIND, time_ms=time_ms)
        if self.own_run and not self.asked and not self.modules:
            return unmeasured(
                "no model call was seen; only those of a dspy.LM can be measured", time_ms=time_ms
            )
        reasons: dict[str, str] = {}
        calls = [asked.call for asked in tuple(self.asked)]
        if any(call is None for call in calls):
            why = "a model call of it was still under way when it ended"
            reasons = dict.fromkeys(("cached_calls", "input_tokens", "output_tokens", "cost_usd"), why)
        done = [call for call in calls if call is not None]

        def total(name: str, numbers: list[Any], why: Callable[[ModelCall], str]) -> Any:
            missing = [call for call, number in zip(done, numbers, strict=True) if number is None]
            if missing:
                reasons.setdefault(name, why(missing[0]))
            return None if name in reasons else sum(numbers)

        if unknown_time is not None:
            name = unknown_time.call.model if unknown_time.call is not None else ""
            reasons["time_ms"] = f"the model {name!r} was asked, and {_FIRST_UNKNOWN}"
        return Observation(
            time_ms=time_ms,
            model_calls=len(calls),
            cached_calls=total("cached_calls", [int(call.cached) for call in done], _no_usage),
            input_tokens=total("input_tokens", [call.input_tokens for call in done], _no_usage),
            output_tokens=total("output_tokens", [call.output_tokens for call in done], _no_usage),
            cost_usd=total("cost_usd", [call.cost_usd for call in done], _no_price),
            reasons=reasons,
        )

    def _seconds(self) -> float:
        """Give the wall time, without what a metric took, and with what cached answers took at first."""
        ended = time.perf_counter() if self.ended is None else self.ended
        return ended - self.begun - _covered(self.judged) + _longest(self.asked, self.strand)


def _no_usage(call: ModelCall) -> str:
    return f"the model {call.model!r} reported no tokens{_hidden()}"


def _no_price(call: ModelCall) -> str:
    if call.input_tokens is None or call.output_tokens is None:
        return _no_usage(call)
    return (
        f"no price is known for the model {call.model!r}; give it to "
        f"measuring(prices={{{call.model!r}: (dollars per million tokens read, written)}})"
    )


def _hidden() -> str:
    return " (with disable_history=True DSPy keeps none)" if dspy.settings.disable_history else ""


_FIRST_UNKNOWN = "its answer came from a cache, and this process has not seen the first one"
_BLIND = (
    "a model call was made where the program has set callbacks of its own, so that nobody can tell whose it "
    "was; set them as dspy.context(callbacks=[*dspy.settings.callbacks, ...])"
)
_SHARED = unmeasured("the program gave this same object as another answer too, and it is judged later")
_SEVERAL = unmeasured(
    "the program is a function that calls several modules; make it a dspy.Module, measured as one"
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


# The module that ended last in this thread or task. It is asked first, since a program may give one and
# the same object, or a plain text, as every answer.
_ended: ContextVar[_Ended | None] = ContextVar("skynet_adapters_ended", default=None)


class _Overhears:
    """Get the history entry of every call, those too of which no callback is told."""

    def __init__(self, meter: "_Meter") -> None:
        self._meter = meter

    @property
    def history(self) -> Any:
        return self

    def __len__(self) -> int:
        return 0

    def append(self, entry: Mapping[str, Any]) -> None:
        self._meter.overheard(entry)


class _Meter(BaseCallback):
    """Collect, for each call of a module, the model calls that are made below it."""

    def __init__(self, prices: Mapping[str, tuple[float, float]]) -> None:
        self.prices = prices
        self.open_spans: dict[str, _Span] = {}
        self._lm_calls: dict[str, tuple[_Span, _Asked, Any, Mapping[str, Any]]] = {}
        # The answer, whose it is, and whether it was another call's too.
        self._by_answer: dict[int, tuple[weakref.ref[Any], _Span, bool]] = {}
        self.is_blind = False
        self._of_functions: set[str] = set()

    def of(self, answer: object) -> Observation:
        """Give what the rollout took whose answer this is."""
        last = _ended.get()
        if last is not None and last.meter() is self and _is_answer(answer, last.answer):
            last.span.was_read = True
            return _SEVERAL if last.span.is_part else last.span.observation()
        known = self._by_answer.get(id(answer))
        if known is not None and known[0]() is answer:
            return _SHARED if known[2] else known[1].observation()
        return unmeasured(
            "this answer is not what a dspy.Module gave inside of `with measuring():`; a function around a "
            "module has to be made a module"
        )

    def _started(self, call_id: str, is_module: bool) -> "_Span | None":
        if INSIDE_METRIC in thread_local_overrides.get():
            return None
        outer = self.open_spans.get(cast("str", ACTIVE_CALL_ID.get()))
        if outer is not None and outer.own_run and not outer.modules and not outer.asked:
            outer.strand = _strand()  # a `run` goes on in a thread of its own
        if is_module or outer is None:
            span = _Span(self, outer)
            if is_module:
                for above in span.line():
                    above.modules += 1
                parent = cast("str", ACTIVE_CALL_ID.get())
                span.function = parent if parent in self._of_functions else None
        else:
            span = outer  # a tool, an adapter or an interpreter only passes on whose call it is
        self.open_spans[call_id] = span
        return span

    def _passed(self, call_id: str, instance: Any, inputs: Any) -> None:
        self._started(call_id, is_module=False)

    def _left(self, call_id: str, outputs: Any, exception: Any = None) -> None:
        self.open_spans.pop(call_id, None)

    def _passed_inside(self, call_id: str, instance: Any, inputs: Any) -> None:
        # An evaluation inside of a program belongs to it; one around programs is no rollout.
        outer = self.open_spans.get(cast("str", ACTIVE_CALL_ID.get()))
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

    on_tool_start = on_adapter_format_start = on_adapter_parse_start = _passed
    on_interpreter_execute_start = on_interpreter_tool_call_start = _passed
    on_interpreter_startup_start = on_interpreter_shutdown_start = _passed
    on_tool_end = on_adapter_format_end = on_adapter_parse_end = _left
    on_interpreter_execute_end = on_interpreter_tool_call_end = _left
    on_interpreter_startup_end = on_interpreter_shutdown_end = _left

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Open the record of a module's call; called by DSPy."""
        self._started(call_id, is_module=True)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close it, and publish it for who judges the answer; called by DSPy."""
        span = self.open_spans.pop(call_id, None)
        if span is None:
            return
        span.ended = time.perf_counter()
        if exception is not None:
            return
        before = _ended.get()
        if span.function is not None and before is not None and before.span.function == span.function:
            span.is_part = not before.span.was_read
        _ended.set(_Ended(weakref.ref(self), outputs, span))
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
        asked = _Asked(_strand())
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
        entry, key = _entry(lm, outputs), _request_key(lm, inputs)
        call = ModelCall(name) if entry is None else model_call(entry)
        if call.input_tokens is None and key in _firsts:  # an answer without usage shows no hit
            call = call._replace(cached=True)
        seconds = asked.ended - asked.begun
        first = _first_of(key, seconds, call)
        if call.cached:
            asked.longer = max(0.0, first.seconds - seconds) if first is not None else -1.0
            if first is not None and call.input_tokens is None:
                call = first.call._replace(cached=True)
        asked.call = call

    def overheard(self, entry: Mapping[str, Any]) -> None:
        """Take the entry of a call; of interest is one that this callback was not told of."""
        call_id = cast("str", ACTIVE_CALL_ID.get())
        if call_id in self._lm_calls:
            return
        span = self.open_spans.get(call_id)
        if span is None:
            self.is_blind = True
            return
        asked = _Asked(_strand())
        asked.call = model_call(entry)
        asked.longer = -1.0 if asked.call.cached else 0.0
        for above in span.line():
            above.asked.append(asked)

    @contextlib.contextmanager
    def rollout(self) -> Generator[_Span]:
        """Measure a block as one rollout."""
        span, call_id = _Span(self, None), uuid.uuid4().hex
        span.own_run = True
        self.open_spans[call_id] = span
        token = ACTIVE_CALL_ID.set(cast("Any", call_id))
        try:
            yield span
        finally:
            span.ended = time.perf_counter()
            ACTIVE_CALL_ID.reset(token)
            self.open_spans.pop(call_id, None)


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


@contextlib.contextmanager
def _recorded() -> Generator[_Span]:
    meter = _active_meter()
    if meter is not None:
        with meter.rollout() as span:
            yield span
        return
    meter = _Meter({})
    with _with_callback(meter), meter.rollout() as span:
        yield span


recorders.append(_recorded)
