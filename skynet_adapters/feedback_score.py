# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""`FeedbackScore`: the one result that every part of DSPy reads alike (dspy 3.4.1)."""

import copy
import json.encoder
import numbers
import operator
import pickle
import sys
from collections.abc import Mapping
from typing import Any, cast

import dspy

from .metric import Metric
from .score import Score

__all__ = ["FeedbackScore", "feedback_score"]

_dict: Any = dict  # its methods are called past those of `Example`


class FeedbackScore(dspy.Prediction, dict[str, Any]):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A score with its feedback, in the one shape that everything in DSPy takes.

    A `dspy.Prediction` (GEPA and SIMBA read score and feedback from one) that is also a dict (what
    JSON writers need) and counts as its number (`Evaluate` sums, optimisers compare). Its truth is
    `score >= success_threshold`, and always false where there is no judgement; such a result also
    compares as less than every number, so that it reaches no threshold of an optimiser. It is made by
    `as_dspy_metric` and `as_dspy_reward`, anew for each call, and not by hand.

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
    _input_keys = None

    _origin: tuple[Score, float, Metric | None]  # the judgement, the threshold, what completes the names

    # Made by `feedback_score`; `Prediction.__init__` would take longer than all else here together.
    __init__ = _dict.__init__

    @property
    def _store(self) -> dict[str, Any]:
        return self  # DSPy's methods read and write the dict itself: there is one store

    @property
    def judgement(self) -> Score:
        """The score that this was made of, with the user's own text."""
        return self._origin[0]

    @property
    def error(self) -> Exception | None:
        """Why there is no judgement, or `None`."""
        return self._origin[0].error

    # dspy.GEPA asks for the named scores at the end of a batch, when all names of the batch are known.
    def _complete(self) -> None:
        metric = self._origin[2]
        if metric is not None:
            scores = metric.complete(_dict.get(self, "objective_scores", {}))
            if scores:
                _dict.__setitem__(self, "objective_scores", scores)

    def _read_names(self) -> None:
        self._complete()
        score, _, metric = self._origin
        if metric is not None:
            metric.names_are_read(failed=score.error is not None)

    def get(self, key: str, default: Any = None) -> Any:
        """Give a field, or `default`."""
        if key == "objective_scores":
            self._read_names()
        return _dict.get(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key == "objective_scores":
            self._read_names()
        return _dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        if key == "objective_scores":
            self._complete()
        return _dict.__contains__(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        _dict.__setitem__(self, key, value)
        if key == "score":  # dspy.GEPA writes one
            _set_radd(self, float(value).__radd__)

    def update(self, *fields: Any, **more: Any) -> None:
        """Set several fields."""
        for key, value in dict(*fields, **more).items():
            self[key] = value

    def keys(self, include_dspy: bool = False) -> Any:
        """Give the fields' names."""
        self._complete()
        return _dict.keys(self)

    def values(self, include_dspy: bool = False) -> Any:
        """Give the fields' values, named scores complete."""
        self._complete()
        return _dict.values(self)

    def items(self, include_dspy: bool = False) -> Any:
        """Give the fields with their values, named scores complete."""
        self._complete()
        return _dict.items(self)

    def pop(self, key: str, *default: Any) -> Any:
        """Take a field out."""
        self._complete()
        return _dict.pop(self, key, *default)

    def __iter__(self) -> Any:
        self._complete()
        return _dict.__iter__(self)

    def __len__(self) -> int:
        self._complete()
        return _dict.__len__(self)

    __delitem__ = _dict.__delitem__

    # --- truth and number ------------------------------------------------------------------------

    def __bool__(self) -> bool:
        # `json.dump` asks a dict for its truth to find out whether it is empty.
        if sys._getframe(1).f_code.co_filename == _JSON_ENCODER:  # pyright: ignore[reportPrivateUsage]
            return True
        return self._origin[0].error is None and _dict.__getitem__(self, "score") >= self._origin[1]

    def __float__(self) -> float:
        return float(_dict.__getitem__(self, "score"))

    def __lt__(self, other: Any) -> bool:
        return _rank(self) < _rank(other)

    def __le__(self, other: Any) -> bool:
        return _rank(self) <= _rank(other)

    def __gt__(self, other: Any) -> bool:
        if self.error is not None:
            # `BestOfN` and `Refine` start from minus infinity: with nothing better they keep an
            # answer that could not be judged, rather than none.
            return not isinstance(other, dspy.Prediction) and other == _BELOW_ALL
        return _rank(self) > _rank(other)

    def __ge__(self, other: Any) -> bool:
        return self.error is None and _rank(self) >= _rank(other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dspy.Example):
            return dict(self) == dict(cast("Any", other))
        return dict(self) == other if isinstance(other, Mapping) else float(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other  # dict has its own

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec or ".6g")  # without one, `Evaluate`'s table asks

    def __str__(self) -> str:
        return str(float(self))  # what a table or a CSV file shows

    def __repr__(self) -> str:
        return f"FeedbackScore({', '.join(f'{key}={value!r}' for key, value in self.items())})"

    def __int__(self) -> int:
        return int(float(self))

    __trunc__ = __int__

    @property
    def real(self) -> float:
        """The number; `numbers.Real` has this."""
        return float(self)

    @property
    def imag(self) -> float:
        """Zero; `numbers.Real` has this."""
        return 0.0

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    # --- copies ----------------------------------------------------------------------------------

    def __reduce__(self) -> Any:
        score, threshold, _ = self._origin
        # What of it cannot be pickled stands in the text.
        info = {key: value for key, value in score.info.items() if _can_be_pickled(value)}
        return _restored, (dict(self), score._replace(info=info), threshold, None)

    __reduce_ex__ = lambda self, protocol: self.__reduce__()  # noqa: E731 - dict has its own

    def copy(self, **kwargs: Any) -> "FeedbackScore":
        """Copy it, optionally with other fields."""
        return _restored({**self, **kwargs}, *self._origin)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "FeedbackScore":
        return _restored(copy.deepcopy(dict(self), memo), *self._origin)


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


_BELOW_ALL = float("-inf")


def _rank(value: Any) -> Any:
    """Give what a value is compared by: without a judgement, less than any number."""
    if isinstance(value, FeedbackScore) and value.error is not None:
        return _BELOW_ALL
    return _number(value)


def _arithmetic(name: str, reflected: bool) -> Any:
    function = getattr(operator, name)
    if reflected:
        return lambda self, other: function(_number(other), float(self))  # pyright: ignore
    return lambda self, *other: function(float(self), *map(_number, other))  # pyright: ignore


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, dspy.Prediction) else value


def _as_float(name: str) -> Any:
    return lambda self, *other: getattr(float(self), name)(*map(_number, other))  # pyright: ignore


for _name in (
    "__divmod__",
    "__rdivmod__",
    "__floor__",
    "__ceil__",
    "as_integer_ratio",
    "is_integer",
    "conjugate",
):
    setattr(FeedbackScore, _name, _as_float(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"):
    setattr(FeedbackScore, f"__{_name}__", _arithmetic(f"__{_name}__", reflected=False))
for _name in ("sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(FeedbackScore, f"__r{_name}__", _arithmetic(f"__{_name}__", reflected=True))

numbers.Real.register(FeedbackScore)  # where another metric returns one as its number

_JSON_ENCODER = json.encoder.JSONEncoder.iterencode.__code__.co_filename
_set_radd = FeedbackScore.__dict__["__radd__"].__set__
_set_origin = FeedbackScore.__dict__["_origin"].__set__


def feedback_score(
    score: Score, component: str | None, threshold: float, metric: Metric | None
) -> FeedbackScore:
    """Make the result that DSPy gets.

    Args:
        score: The judgement.
        component: Predictor whose own text is wanted, or `None`.
        threshold: From here on the result is true.
        metric: Knows the named scores of other cases; `None` leaves them as they are.

    Returns:
        A new object, which DSPy may write into.
    """
    made = FeedbackScore(score=score.value, feedback=score.text(component))
    # `Example.__setattr__` would be slow, hence the slots' own setters.
    _set_radd(made, score.value.__radd__)
    _set_origin(made, (score, threshold, metric))
    if score.scores:
        _dict.__setitem__(made, "objective_scores", dict(score.scores))
    return made


def _restored(fields: dict[str, Any], score: Score, threshold: float, metric: Metric | None) -> FeedbackScore:
    made = FeedbackScore(fields)
    _set_radd(made, float(fields["score"]).__radd__)
    _set_origin(made, (score, threshold, metric))
    return made
