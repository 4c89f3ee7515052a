"""`Score`, and the one place where what a metric returned becomes a `Score`."""

import json
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple, TypeGuard, cast

from .copies import kind_of, protected
from .errors import MetricError, MetricReturnError
from .loaded import is_dspys
from .redaction import redacted

__all__ = [
    "Score",
    "clean_text",
    "complete_scores",
    "component_texts",
    "own_text",
    "parse_return",
    "sendable",
    "shown",
    "strangers",
]

_SHAPE = (
    'a metric returns a number and a dict with a text: `return 0.8, {"feedback": "Close. Missing the date."}`'
)
_SHAPE_OF_A_TEXT = (
    'put the text into a dict with that name: `return 0.8, {"feedback": "Close. Missing the date."}`'
)
_SHAPE_OF_SCORES = (
    'give a number for each name: `return 0.8, {"feedback": "Close.", "scores": {"format": 1.0}}`'
)
_SHAPE_OF_COMPONENTS = (
    'give a text for each name: `return 0.8, {"feedback": "Close.", "component_feedback": {"plan": "Plan."}}`'
)
_SHAPE_OF_DSPYS = (
    'write `return 0.8, {"feedback": "Close. Missing the date."}`, or, where it is a DSPy metric(example, '
    "pred, trace=None), pass from_dspy_metric(metric)"
)
_MAX_INFO_CHARS = 5_000
# ... and all of it together, and a name in it.
_MAX_ALL_INFO_CHARS = 20_000
_MAX_NAME_CHARS = 200
_EMPTY = "The metric gave no feedback text."


_WHOLE_CHARS = 2_000


class _Short(reprlib.Repr):
    """Hides credentials before a text is cut: of half a key nobody knows what it was."""

    def repr_str(self, x: str, level: int) -> str:
        text = str.__str__(x)
        if len(text) > 4 * _WHOLE_CHARS:  # all that will be shown is within
            text = text[:_WHOLE_CHARS] + text[-_WHOLE_CHARS:]
        return super().repr_str(redacted(text), level)

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = redacted(repr(x))
        except Exception:
            return super().repr_instance(x, level)
        return text if len(text) <= self.maxother else f"{text[:58]}...{text[-59:]}"


_short = _Short()
_short.maxstring = _short.maxother = 120
_short.maxlevel = 3


_NO_SCORES: Mapping[str, float] = {}
_NO_INFO: Mapping[str, Any] = {}


class Score(NamedTuple):
    """One case's judgement, the same for every target.

    Attributes:
        value: The number that optimisers raise; finite. On the scale 0..1 when the metric was given
            a `score_range`, else as the user's function returned it. The failure score when
            `error` is set.
        feedback: The user's own text, never empty; what happened when `error` is set.
        scores: Named scores, name to finite number. Not yet completed with names that other cases
            have.
        info: Every further key of the additional information, `component_feedback` among them.
        error: `None` for a judgement. Otherwise why there is none: the case is *missing*, not wrong.

    Example:
        >>> score = Score(0.5, "The date is missing.", {"format": 1.0})
        >>> print(score.text())
        The date is missing.
        <BLANKLINE>
        Score: 0.5
        Named scores: format 1
    """

    value: float
    feedback: str
    scores: Mapping[str, float] = _NO_SCORES
    info: Mapping[str, Any] = _NO_INFO
    error: MetricError | None = None

    def text(self, component: str | None = None, scores: Mapping[str, float] | None = None) -> str:
        """Write the feedback with score, named scores and further information beside it.

        No reflection prompt of DSPy or GEPA shows the number, so it has to stand in the text.

        Args:
            component: Predictor or component whose own text is wanted; `None`, or a component
                without a text of its own, gives the general text.
            scores: Named scores to show instead of the case's own ones, such as completed ones.

        Returns:
            Text of one or more paragraphs, never empty.
        """
        feedback = self.feedback
        if component is not None and self.info:
            feedback = own_text(component_texts(self), component) or feedback
        text = f"{feedback}\n\nScore: {self.value:.6g}"
        named = self.scores if scores is None else scores
        if named:
            line = ", ".join(f"{name} {value:.6g}" for name, value in named.items())
            text += f"\nNamed scores: {clean_text(line, _MAX_INFO_CHARS)}"
        if self.info:
            text += self._further()
        return text

    def _further(self) -> str:
        """Write the further information, as much of it as a prompt can take."""
        texts: list[str] = []
        left, left_out = _MAX_ALL_INFO_CHARS, 0
        for key, value in self.info.items():
            if key != "component_feedback":
                text = f"\n\n{clean_text(key, _MAX_NAME_CHARS)}: {_readable(value)}"
                if len(text) <= left:
                    texts.append(text)
                    left -= len(text)
                else:
                    left_out += 1
        if left_out:
            texts.append(f"\n\n[... {left_out} of {left_out + len(texts)} further keys left out ...]")
        return "".join(texts)


def component_texts(score: Score) -> Mapping[str, str]:
    """Give the texts of `component_feedback`, by the names that the metric gave; none where it gave none."""
    return score.info.get("component_feedback", {})


def own_text(texts: Mapping[str, str], component: str) -> str | None:
    """Find a component's own text; `reply` may stand for `reply.predict`, as DSPy names a ChainOfThought.

    Example:
        >>> own_text({"reply": "Be brief."}, "reply.predict")
        'Be brief.'
    """
    return texts.get(component, texts.get(component.removesuffix(".predict")))


def strangers(texts: Iterable[str], components: Iterable[str]) -> list[str]:
    """Give the names in `component_feedback` that stand for none of the components.

    Example:
        >>> strangers(["reply", "predikt"], ["reply.predict", "predict"])
        ['predikt']
    """
    known = {name for component in components for name in (component, component.removesuffix(".predict"))}
    return [name for name in texts if name not in known]


def parse_return(
    returned: Any,
    name: str = "score",
    score_range: tuple[float, float] | None = None,
    score_names: Iterable[str] | None = None,
    max_feedback_chars: int | None = None,
) -> Score:
    """Turn what a metric returned into a `Score`.

    Args:
        returned: `(number, {"feedback": text})` as a tuple or list; the dict may also hold
            `"scores"` (name to number), `"component_feedback"` (component to text) and any further
            keys. bool, int, float, NumPy scalars, `Decimal` and `Fraction` are numbers.
        name: The metric's name, for the error message.
        score_range: `(low, high)` that the number must lie in and is normalised from, to 0..1.
            `None`: the number stays as it is.
        score_names: The only names allowed in `"scores"`; `None` allows any.
        max_feedback_chars: Length at which a text is cut in the middle; `None`: never.

    Returns:
        The judgement, without an error.

    Raises:
        MetricReturnError: The shape is another, or a number is NaN, infinite or out of range.

    Example:
        >>> parse_return((8, {"feedback": "Good."}), score_range=(0, 10)).value
        0.8
        >>> parse_return(0.8)
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.MetricReturnError: metric 'score' returned 0.8 (float), not a pair; \
a metric returns a number and a dict with a text: `return 0.8, {"feedback": "Close. Missing the date."}`
    """
    pair = returned  # unpacked under this name, which has not been narrowed to "a list of unknowns"
    if not isinstance(returned, (tuple, list)) or len(pair) != 2:
        raise _wrong(name, pair, "not a pair", _SHAPE_OF_DSPYS if is_dspys(pair, "Example") else _SHAPE)
    number, info = pair
    value = number if type(number) is float and math.isfinite(number) else _number(name, "the score", number)
    if not isinstance(pair[1], dict):
        shape = _SHAPE_OF_A_TEXT if isinstance(info, str) else _SHAPE
        raise _wrong(name, info, "as additional information, not a dict", shape)
    feedback = info.get("feedback")
    if not isinstance(feedback, str):
        found = f"{shown(feedback)} as" if "feedback" in info else f"{shown(info)} without a"
        raise MetricReturnError(
            f"metric {name!r} returned {found} `feedback`, which must be a text; {_SHAPE}"
        )
    if score_range is not None:
        value = _normalised(name, value, score_range)
    scores, further = _NO_SCORES, _NO_INFO
    if len(info) > 1:
        scores, further = _beside_feedback(name, info, score_names, max_feedback_chars)
    text = clean_text(feedback, max_feedback_chars)
    return Score(value, text if text.strip() else _EMPTY, scores, further)


def _beside_feedback(
    name: str, info: dict[Any, Any], score_names: Iterable[str] | None, limit: int | None
) -> tuple[Mapping[str, float], Mapping[str, Any]]:
    scores: dict[str, float] = {}
    further: dict[str, Any] = {}
    for key, item in info.items():
        if key == "scores":
            scores = _named_scores(name, item, score_names)
        elif key == "component_feedback":
            further[key] = _component_feedback(name, item, limit)
        elif key != "feedback":
            further[clean_text(key) if isinstance(key, str) else shown(key, with_type=False)] = _own(item)
    return scores, further


def _own(item: Any) -> Any:
    """Make further information independent of the metric, which may fill the same list again."""
    if isinstance(item, str) and not item.startswith(_IMAGE):  # of which a part shows nothing
        return clean_text(item, _MAX_INFO_CHARS)
    own = protected(item)
    if own is item:  # a number, or nested too deeply to be copied
        return own
    try:
        return _hidden(own, {})
    except RecursionError:
        return own


_IMAGE = "data:image/"


def _hidden(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """Hide credentials in what is nested; changes dicts and lists in place."""
    kind = kind_of(value)
    if kind is str:
        return value if value.startswith(_IMAGE) else redacted(value)
    if kind not in (dict, list, tuple, set):
        return value
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = value, value  # before its items, of which one may be the value itself
    if kind is dict:
        pairs = [(_hidden(key, known), _hidden(item, known)) for key, item in value.items()]
        value.clear()
        value.update(pairs)
        return value
    items: list[Any] = [_hidden(item, known) for item in value]
    if kind is list:
        value[:] = items
        return value
    if any(map(operator.is_not, items, value)):
        known[id(value)] = value, kind(items)
    return known[id(value)][1]


def clean_text(text: str, limit: int | None = None) -> str:
    r"""Make a text safe to show and store, and cut it in the middle when it is longer than `limit`.

    Credentials are hidden, see `redacted`, and what cannot be sent is replaced, see `sendable`.

    Example:
        >>> clean_text("a\ud800b") == "a\ufffdb"
        True
        >>> clean_text("x" * 90 + "end", limit=60)
        'xxxxxxxxxxxxxxxxxx\n[... 67 characters left out ...]\nxxxxxend'
    """
    if type(text) is not str:  # of the user's own, with whatever it holds besides
        text = str.__str__(text)
    text = redacted(text)
    if limit is not None and len(text) > limit:
        text = _cut(text, limit)
    return sendable(text)


def sendable(text: str) -> str:
    r"""Replace what cannot be sent or stored: lone surrogates and NULs, by U+FFFD.

    JSON encoders, databases and model servers refuse them.

    Example:
        >>> sendable("a\ud800b") == "a\ufffdb"
        True
    """
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text


def complete_scores(own: Mapping[str, float], names: Iterable[str], missing: float) -> dict[str, float]:
    """Give a case a value for every name, so that no candidate lacks an objective.

    Example:
        >>> complete_scores({"format": 1.0}, ["format", "facts"], missing=0.0)
        {'format': 1.0, 'facts': 0.0}
    """
    return {**own, **{name: missing for name in names if name not in own}}


def shown(value: object, with_type: bool = True) -> str:
    """Show a value in a message: short, and never raising even where its `repr` does."""
    try:
        text = _short.repr(value)
    except (
        Exception,
        SystemExit,
    ) as error:  # a broken __repr__ must not hide the fault that is being reported
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    text = clean_text(text, 300)
    return f"{text} ({type(value).__name__})" if with_type else text


def _cut(text: str, limit: int) -> str:
    kept = max(limit - len(_mark(len(text))), 2)
    head = (kept * 2 + 2) // 3
    return text[:head] + _mark(len(text) - kept) + text[len(text) - (kept - head) :]


def _mark(count: int) -> str:
    return f"\n[... {count} characters left out ...]\n"


def _readable(value: object) -> str:
    """Write further information for a reader, whole unless it is very long."""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False, default=repr)
        except (Exception, SystemExit):
            value = shown(value, with_type=False)
    return clean_text(value, _MAX_INFO_CHARS)


def _wrong(name: str, returned: object, why: str, shape: str = _SHAPE) -> MetricReturnError:
    return MetricReturnError(f"metric {name!r} returned {shown(returned)}, {why}; {shape}")


def _number(name: str, what: str, value: Any, shape: str = _SHAPE) -> float:
    if type(value) is float:
        number = value
    else:
        # NumPy's bool is no numbers.Real, and a zero-dimensional array is no number at all.
        plain = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
        if not isinstance(plain, Real | Decimal):
            raise MetricReturnError(
                f"metric {name!r} returned {shown(value)} for {what}, which must be a number; {shape}"
            )
        error = getattr(cast("Any", plain), "error", None)
        if isinstance(error, MetricError):  # of another metric that this one asks
            raise MetricReturnError(f"metric {name!r} returned {what} that is no judgement: {error}")
        try:
            number = float(plain)
        except Exception as error:  # an int that is too large, a signalling NaN, a type of the user's own
            raise MetricReturnError(
                f"metric {name!r} returned {shown(value)} for {what}, which is no finite float ({error}); "
                "return a number that a float can hold"
            ) from None
    if not math.isfinite(number):
        raise MetricReturnError(
            f"metric {name!r} returned {number} for {what}, which must be finite; "
            "return a number also for an empty or undefined case, and say so in the feedback"
        )
    return number


def _normalised(name: str, value: float, score_range: tuple[float, float]) -> float:
    low, high = score_range
    if not low <= value <= high:
        raise MetricReturnError(
            f"metric {name!r} returned {value:g}, outside its score_range=({low:g}, {high:g}); "
            "widen score_range or mend the metric"
        )
    if math.isinf(high - low):  # the range is wider than any float
        low, high, value = low / 2, high / 2, value / 2
    return (value - low) / (high - low)


def _named_scores(name: str, scores: object, allowed: Iterable[str] | None) -> dict[str, float]:
    if not isinstance(scores, dict):
        raise _wrong(
            name,
            scores,
            'as `scores`, not a dict of names to numbers such as {"format": 1.0}',
            _SHAPE_OF_SCORES,
        )
    named: dict[str, float] = {}
    allowed = None if allowed is None else tuple(allowed)
    for key, value in cast("dict[Any, Any]", scores).items():
        if not isinstance(key, str):
            raise MetricReturnError(
                f"metric {name!r} named a score {shown(key)}; names in `scores` are texts"
            )
        if allowed is not None and key not in allowed:
            raise MetricReturnError(
                f"metric {name!r} returned the named score {shown(key, with_type=False)}, which is not among "
                f"score_names={shown(list(allowed), with_type=False)}; add it there or rename it"
            )
        named[clean_text(key)] = _number(
            name, f"the named score {shown(key, with_type=False)}", value, _SHAPE_OF_SCORES
        )
    return named


def _component_feedback(name: str, texts: object, limit: int | None) -> dict[str, str]:
    if not _is_dict_of_texts(texts):
        raise _wrong(
            name,
            texts,
            "as `component_feedback`, not a dict of component names to texts",
            _SHAPE_OF_COMPONENTS,
        )
    return {key: clean_text(text, limit) if text.strip() else _EMPTY for key, text in texts.items()}


def _is_dict_of_texts(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(text, str) for key, text in cast("dict[Any, Any]", value).items()
    )
