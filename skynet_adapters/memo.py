"""What is remembered of judgements, so that a rollout is judged, and a judge is paid, once.

`RolloutMemo` knows a rollout by the identity of its two objects; `ContentMemo` knows a case by what
it says. Neither knows what a metric is.
"""

import copyreg
import dataclasses
import datetime
import enum
import fractions
import functools
import pathlib
import sys
import threading
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Generic, TypeVar, cast

from .copies import kind_of
from .deadline import wait_unless_ended
from .digests import digest
from .sibling_imports import plain_module

__all__ = ["ContentMemo", "RolloutMemo", "content_key"]

T = TypeVar("T")
_Weak = weakref.ref[Any]

_KEPT_FOR_A_CASE = 64


class RolloutMemo(Generic[T]):
    """Remember one value for each pair (case object, answer object) while the answer is alive.

    Of each reading of a pair, where there are several: who reads other fields of the same answer has a
    value of its own. Both objects are known by identity and held weakly, so that nothing is kept
    alive, an entry is gone with its answer, and an id that is used again finds nothing. Answers that
    cannot be held weakly (a text, a dict) are remembered with their case, the newest 64 of each: a
    minibatch may hold a case several times before the first text is asked for.
    """

    def __init__(self) -> None:
        # By the ids of answer, case and reading.
        self._by_answer: dict[tuple[int, int, int], tuple[_Weak, _Weak, object, T]] = {}
        self._by_case: dict[int, tuple[_Weak, deque[tuple[object, object, T]]]] = {}

    def __len__(self) -> int:
        return len(self._by_answer) + sum(len(kept[1]) for kept in tuple(self._by_case.values()))

    def put(self, case: object, answer: object, value: T, reading: object = None) -> None:
        """Remember `value`; where neither object can be held weakly, nothing is remembered."""
        key = (id(answer), id(case), id(reading))
        try:
            # The callback runs before the answer's id can be used again. `dict.pop` takes the dead
            # reference as its default, which keeps the whole callback in C.
            gone = functools.partial(self._by_answer.pop, key)
            self._by_answer[key] = (weakref.ref(answer, gone), weakref.ref(case, gone), reading, value)
        except TypeError:
            self._put_with_case(case, answer, value, reading)

    def _put_with_case(self, case: object, answer: object, value: T, reading: object) -> None:
        kept = self._by_case.get(id(case))
        if kept is None or kept[0]() is not case:
            try:
                gone = weakref.ref(case, functools.partial(self._by_case.pop, id(case)))
            except TypeError:
                return
            kept = self._by_case.setdefault(id(case), (gone, deque(maxlen=_KEPT_FOR_A_CASE)))
        kept[1].appendleft((answer, reading, value))

    def get(self, case: object, answer: object, reading: object = None) -> T | None:
        """Give what is remembered for this very pair of objects, else `None`."""
        found = self._by_answer.get((id(answer), id(case), id(reading)))
        if found is not None:
            is_it = found[0]() is answer and found[1]() is case and found[2] is reading
            return found[3] if is_it else None
        kept = self._by_case.get(id(case))
        if kept is None or kept[0]() is not case:
            return None
        return next((value for known, by, value in tuple(kept[1]) if known is answer and by is reading), None)


class ContentMemo(Generic[T]):
    """Remember the newest `size` values by key, with one computation in flight for each key."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, T] = OrderedDict()
        self._flights: dict[bytes, _Flight[T]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get_or_compute(
        self,
        key: bytes,
        compute: Callable[[], T],
        *,
        keep: Callable[[T], bool],
        wait: bool,
        seconds: float | None,
    ) -> tuple[T, bool]:
        """Give the remembered value, else wait for the one that is being computed, else compute it.

        Args:
            key: From `content_key`.
            compute: Called in this thread, outside any lock.
            keep: Whether a value is to be remembered; waiters get it in any case.
            wait: `False` computes beside a computation in flight instead of waiting for it.
            seconds: How long to wait for a computation in flight; `None`: for ever.

        Returns:
            The value, and whether it was computed by this call.

        Raises:
            TimeoutError: The computation in flight took longer than `seconds`.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key], False
            flight = self._flights.get(key)
            mine = _Flight[T]()
            if flight is None:
                self._flights[key] = mine
        if flight is None:
            return self._compute(key, compute, keep, mine), True
        if not wait:
            return compute(), True
        if not wait_unless_ended(flight.landed.wait, seconds):
            raise TimeoutError
        if flight.values:
            return flight.values[0], False
        return compute(), True  # the one that was waited for was interrupted

    def _compute(
        self, key: bytes, compute: Callable[[], T], keep: Callable[[T], bool], mine: "_Flight[T]"
    ) -> T:
        try:
            value = compute()
            mine.values.append(value)
            if keep(value):
                self._remember(key, value)
            return value
        finally:
            with self._lock:
                del self._flights[key]
            mine.landed.set()

    def _remember(self, key: bytes, value: T) -> None:
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = threading.Event()
        self.values: list[T] = []


def content_key(*values: object) -> bytes | None:
    """Digest values by what they say, the same in every process.

    Texts, numbers, dates, paths, enums, dicts, lists, tuples, sets, dataclasses, pydantic models, DSPy's
    examples, numpy's arrays and scalars and pandas' timestamps are understood; equal numbers of
    different types differ.

    Returns:
        A digest, or `None` when something in there is of another type, or nested too deeply: such
        an object could change without changing its identity.

    Example:
        >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
        True
        >>> content_key(1) == content_key(1.0)
        False
        >>> content_key(object()) is None
        True
    """
    try:
        return _digest(values, {})
    except Exception:  # too deep, too large to write, or of a type that cannot be read
        return None


_ATOMS = frozenset(
    {str, int, float, bool, complex, bytes, type(None), Decimal, fractions.Fraction, uuid.UUID}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
    | {pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath}
)
# A dataclass may be one of these besides, with contents that are no attribute.
_HOLDS_MORE = (dict, list, tuple, set, frozenset, str, bytes, int, float)
# By id, with what was digested: the id of one that is gone would be used again.
_Digests = dict[int, tuple[object, bytes]]


def _digest(value: Any, known: _Digests) -> bytes:
    kind = kind_of(value)
    if kind in _ATOMS:
        return _hashed(kind, [value if kind is bytes else repr(value).encode("utf-8", "surrogatepass")])
    found = known.get(id(value))
    if found is None:  # one part in many places is read once
        found = known[id(value)] = value, _hashed(kind, _parts(kind, value, known))
    return found[1]


def _parts(kind: Any, value: Any, known: _Digests) -> list[bytes]:
    if isinstance(value, enum.Enum):
        return [value.name.encode()]
    if kind is dict:
        pairs = cast("dict[Any, Any]", value).items()
        return sorted(_digest(key, known) + _digest(item, known) for key, item in pairs)
    if kind in (list, tuple):
        return [_digest(item, known) for item in value]
    if kind in (set, frozenset):
        return sorted(_digest(item, known) for item in value)
    if dataclasses.is_dataclass(kind) and not isinstance(cast("object", value), _HOLDS_MORE):
        fields = {name: getattr(value, name, None) for name in cast("Any", copyreg)._slotnames(kind)}
        return [_digest(fields | getattr(value, "__dict__", {}), known)]
    if hasattr(value, "model_dump"):  # not dumped: a field may be left out of that
        hidden = (value.__pydantic_extra__, value.__pydantic_private__)
        return [_digest([value.__dict__, *hidden], known)]
    if hasattr(value, "toDict"):  # DSPy's examples and predictions; that makes dicts of pydantic models
        completions = getattr(value, "_completions", None)
        beside = None if completions is None else completions._completions
        return [_digest([value._store, beside], known)]
    written = _of_a_library(kind, value)
    if written is None:
        raise TypeError(f"{kind} has no content key")
    return [_digest(written, known)]


def _of_a_library(kind: Any, value: Any) -> list[Any] | None:
    """Write what numpy and pandas make, without importing either: before it is imported, nothing is."""
    numpy, pandas = sys.modules.get("numpy"), sys.modules.get("pandas")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        # The bytes of Python objects are their addresses.
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return [str(value.dtype), value.shape, content]
    if pandas is not None and kind in (pandas.Timestamp, pandas.Timedelta):
        return [repr(value)]  # to the nanosecond, with the time zone
    return None


def _hashed(kind: Any, parts: list[bytes]) -> bytes:
    name = f"{plain_module(kind.__module__)}.{kind.__qualname__}"  # the same however often a file is loaded
    return digest(parts, 32, start=name.encode())
