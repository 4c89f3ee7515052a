"""`reward`: accuracy, run time and model cost blended into one score."""

import difflib
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NoReturn, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .errors import DefinitionError, MetricReturnError
from .measure import Observation, observation
from .options import near_match
from .score import parse_return, shown

__all__ = [
    "RewardSpec",
    "read_reward_spec",
    "reward",
    "without_figures",
]

_WEIGHTS_EXAMPLE = '"weights": {"accuracy": 0.7, "speed": 0.2, "cost": 0.1}'
_UNEXPLAINED = Observation().reasons["time_ms"]

_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Reference = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    # Strict: "2000" and True are slips, which pydantic would otherwise read as numbers.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Weights(_Section):
    accuracy: _Weight
    speed: _Weight
    cost: _Weight


class _Part(_Section):
    reference: _Reference | None = None


class RewardSpec(_Section):
    """How `reward` blends accuracy, speed and cost; a dict of the same shape does as well.

    A section is only needed where its weight is above 0. One that is given all the same is measured
    and shown, and counts for nothing.

    Attributes:
        weights: `accuracy`, `speed` and `cost`, each 0 or more and not all 0. `shares` has them
            rescaled to sum to 1.
        accuracy: With a `reference` above 0, accuracy is an error, and lower is better. `None`, or
            no reference: a score from 0 to 1.
        speed: Its `reference` is in milliseconds, above 0.
        cost: Its `reference` is in US dollars, above 0.

    Raises:
        DefinitionError: A field is missing, unknown or cannot be used; names each, and its mend.

    Example:
        >>> spec = RewardSpec(weights={"accuracy": 3, "speed": 1, "cost": 0}, speed={"reference": 2000})
        >>> spec.shares
        {'accuracy': 0.75, 'speed': 0.25, 'cost': 0.0}
    """

    weights: _Weights
    accuracy: _Part | None = None
    speed: _Part | None = None
    cost: _Part | None = None

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise DefinitionError(f"the reward spec cannot be used: {'; '.join(_faults(error))}") from None

    @model_validator(mode="after")
    def _check_together(self) -> "RewardSpec":
        if not any(self._weights().values()):
            _refuse(f"its weights are all 0; give one a weight above 0, such as {_WEIGHTS_EXAMPLE}")
        for name, unit, example in (("speed", "milliseconds", 2000), ("cost", "US dollars", 0.01)):
            if self._weights()[name] > 0 and self.reference(name) is None:
                _refuse(
                    f"weights.{name} is {self._weights()[name]:g}, and {name}.reference is missing; give it "
                    f'in {unit}, such as "{name}": {{"reference": {example}}}, or set weights.{name} to 0'
                )
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The weights, rescaled to sum to 1."""
        weights = self.scaled_weights()
        total = math.fsum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def scaled_weights(self) -> dict[str, float]:
        """Give the weights by name, scaled so that their sum is a finite float."""
        weights = self._weights()
        _, exponent = math.frexp(max(weights.values()))
        # By a power of two, which changes no digit: 0.7, 0.2 and 0.1 still sum to exactly 1.
        return {name: math.ldexp(weight, -exponent) for name, weight in weights.items()}

    def reference(self, part: str) -> float | None:
        """Give the reference of `accuracy`, `speed` or `cost`; `None` where it has none."""
        section = cast("_Part | None", getattr(self, part))
        return None if section is None else section.reference

    def _weights(self) -> dict[str, float]:
        return {"accuracy": self.weights.accuracy, "speed": self.weights.speed, "cost": self.weights.cost}


def reward(
    spec: Mapping[str, Any] | RewardSpec, accuracy: Any, feedback: str
) -> tuple[float, dict[str, Any]]:
    """Blend accuracy with the run time and model cost that were measured for this case.

    Speed and cost score `min(1, reference / measured)`: 1 at or below the reference, 0.5 at twice
    the reference. So does an accuracy that is an error. What was not measured scores 0, and the
    feedback says so.

    Args:
        spec: A `RewardSpec`, or a dict of its shape; a metric file keeps it in `REWARD_SPEC`.
        accuracy: A score from 0 to 1 (a bool counts); with `accuracy.reference` an error, 0 or more.
        feedback: The user's own text.

    Returns:
        What a metric returns: the weighted sum, 0 to 1, and a dict. Its `"feedback"` is the text with
        one line for each part that has a reference, its `"scores"` hold the parts. A part without
        weight and without a reference is in neither.

    Raises:
        DefinitionError: The spec cannot be used.
        MetricReturnError: `accuracy` is no number within its bounds, or `feedback` is no text.

    Example:
        >>> from skynet_adapters.measure import observed
        >>> spec = {
        ...     "weights": {"accuracy": 0.7, "speed": 0.2, "cost": 0.1},
        ...     "speed": {"reference": 2000},
        ...     "cost": {"reference": 0.01},
        ... }
        >>> with observed(Observation(time_ms=4000.0, cost_usd=0.005)):
        ...     value, info = reward(spec, 1.0, "Right.")
        >>> round(value, 6)
        0.9
        >>> print(info["feedback"])
        Right.
        Speed 0.5: 4,000 ms, reference 2,000 ms.
        Cost 1: 0.005 US dollars, reference 0.01 US dollars.
        >>> info["scores"]
        {'accuracy': 1.0, 'speed': 0.5, 'cost': 1.0}
    """
    spec = read_reward_spec(spec)
    measured = observation()
    if not isinstance(feedback, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MetricReturnError(f"reward() got {shown(feedback)} as feedback, which must be a text")
    parts = [
        _accuracy(accuracy, spec.reference("accuracy")),
        _measured("speed", measured.time_ms, "ms", spec.reference("speed"), measured.reasons.get("time_ms")),
        _measured(
            "cost", measured.cost_usd, "US dollars", spec.reference("cost"), measured.reasons.get("cost_usd")
        ),
    ]
    scores = {part.name: part.score for part in parts if part is not None}
    weights = spec.scaled_weights()
    # Divided at the end, so that three parts of 1 give 1.0 and not 0.9999999999999999.
    total = math.fsum(weights[name] * scores[name] for name in scores) / math.fsum(weights.values())
    lines = [part.line for part in parts if part is not None and part.line]
    text = "\n".join([feedback, *lines] if feedback.strip() else lines)
    return min(total, 1.0), {"feedback": text, "scores": scores}


def read_reward_spec(spec: object) -> RewardSpec:
    """Turn what a metric file declares as `REWARD_SPEC` into a `RewardSpec`.

    Raises:
        DefinitionError: It cannot be used.
    """
    if isinstance(spec, RewardSpec):
        return spec
    if not isinstance(spec, Mapping):
        _refuse(f"it is {shown(spec)}; it must be a dict that has {_WEIGHTS_EXAMPLE}")
    return RewardSpec(**{str(key): value for key, value in cast("Mapping[Any, Any]", spec).items()})


class _Scored(NamedTuple):
    """One part: its score from 0 to 1, and the line that explains it."""

    name: str
    score: float
    line: str


def _accuracy(accuracy: Any, reference: float | None) -> _Scored:
    try:
        value = parse_return((accuracy, {"feedback": "-"})).value
    except MetricReturnError:
        raise MetricReturnError(
            f"reward() got accuracy={shown(accuracy, with_type=False)}, which is no finite number; give one "
            "also for an empty or undefined case, and say so in the feedback"
        ) from None
    if reference is None:
        if not 0.0 <= value <= 1.0:
            raise MetricReturnError(
                f"reward() got accuracy={value:g}; without accuracy.reference it is a score from 0 to 1. "
                "Divide it by its highest value, or, where it is an error, give accuracy.reference"
            )
        return _Scored("accuracy", value, "")
    if value < 0.0:
        raise MetricReturnError(
            f"reward() got accuracy={value:g}; with accuracy.reference it is an error, 0 or more. "
            "Give its size, as in abs(error), or leave accuracy.reference out for a score from 0 to 1"
        )
    return _against("accuracy", value, "", reference)


def _measured(
    name: str, figure: float | None, unit: str, reference: float | None, reason: str | None
) -> _Scored | None:
    if reference is None:
        return None
    if figure is None:
        why = "" if reason in (None, _UNEXPLAINED) else f": {reason.rstrip('.')}"
        return _Scored(name, 0.0, f"{name.capitalize()} 0: not measured{why}.")
    return _against(name, figure, unit, reference)


def _against(name: str, figure: float, unit: str, reference: float) -> _Scored:
    score = 1.0 if figure <= reference else reference / figure
    shown_figure = f"{_plain(figure)} {unit}" if unit else f"error {_plain(figure)}"
    line = f"{name.capitalize()} {score:.3g}: {shown_figure}, reference {_plain(reference)} {unit}".rstrip()
    return _Scored(name, score, f"{line}.")


def _plain(figure: float) -> str:
    """Write four digits without an exponent: model costs are small."""
    return f"{Decimal(f'{figure:.4g}'):,f}"


def without_figures(feedback: str) -> str:
    """Take the lines away that `reward` added, which leaves the user's own text."""
    own = (line for line in feedback.splitlines() if not _FIGURE_LINE.match(line))
    return "\n".join(own)


_FIGURE_LINE = re.compile(r"(Accuracy|Speed|Cost) [\d.e-]+: (.*, reference |not measured)")


# --- wrong specs ---------------------------------------------------------------------------------


def _refuse(why: str) -> NoReturn:
    raise DefinitionError(f"the reward spec cannot be used: {why}")


def _faults(error: ValidationError) -> list[str]:
    """Say each fault once: a field that is missing under its name may be there under nearly that name."""
    found = [(detail["loc"], detail["type"], detail["input"]) for detail in error.errors()]
    meant = {
        (*place[:-1], near)
        for place, kind, _ in found
        if kind == "extra_forbidden"
        for near in difflib.get_close_matches(str(place[-1]), _fields_of(place), n=1)
    }
    return [
        _fault(place, kind, given)
        for place, kind, given in found
        if not (kind == "missing" and tuple(place) in meant)
    ]


def _fields_of(place: tuple[int | str, ...]) -> list[str]:
    """Name the fields that there are beside one."""
    section = {"": RewardSpec, "weights": _Weights}.get("" if len(place) == 1 else str(place[-2]), _Part)
    return list(section.model_fields)


def _fault(place: tuple[int | str, ...], kind: str, given: object) -> str:
    """Say one fault that pydantic found in our words, with its mend."""
    *_, section, field = ("", *(str(part) for part in place))
    name = f"{section}.{field}" if section else field
    if kind == "missing":
        if section:
            return f"{name} is missing; add it, 0 leaves the part out, as in {_WEIGHTS_EXAMPLE}"
        return f"it has no weights; add {_WEIGHTS_EXAMPLE}"
    if kind == "extra_forbidden":
        kept = _fields_of(place)
        return (
            f"{name} is unknown{near_match(field, kept) or ';'} {section or 'the spec'} has {', '.join(kept)}"
        )
    what = f"{name} is {shown(given)}; it must be"
    if section == "weights":
        return f"{what} a finite number, 0 or more"
    if field == "reference":
        unit = {"speed": " of milliseconds", "cost": " of US dollars"}.get(section, "")
        return f"{what} a finite number{unit} above 0"
    example = {"speed": '{"reference": 2000}', "cost": '{"reference": 0.01}'}.get(field, "{}")
    return f"{what} a dict, such as {_WEIGHTS_EXAMPLE if field == 'weights' else example}"
