"""Every error that this package raises on purpose.

The tree::

    SkynetAdaptersError              everything below; catch this one
    ├── DefinitionError              a metric or an option that cannot work, found before any call
    ├── DataError                    cases, files and columns that do not fit
    ├── ReflectionError              the reflection model of `optimize_artifact` never answered
    └── MetricError                  one case could not be scored
        ├── MetricReturnError        the metric returned a wrong shape (check "Metric return value")
        ├── MetricTimeoutError       the metric did not answer in time
        └── ProgramFailedError       there was no output to judge; the metric was not called

    MetricBroken (BaseException)     the metric fails on everything and the run has to stop
    ReflectionBroken (BaseException) the reflection model never answers and the run has to stop

The last two stand outside the tree because DSPy catches every `Exception` of a metric and goes on with a
score of 0, and GEPA every one of a reflection model and goes on without a new text, so that such a run
would look like one that succeeded.

Each message names what is wrong, shows what was given and says what to do about it.
"""

from .redaction import redacted

__all__ = [
    "DataError",
    "DefinitionError",
    "MetricBroken",
    "MetricError",
    "MetricReturnError",
    "MetricTimeoutError",
    "ProgramFailedError",
    "ReflectionBroken",
    "ReflectionError",
    "SkynetAdaptersError",
]


class SkynetAdaptersError(Exception):
    """Root of every ordinary error of this package; a credential in its message is hidden."""

    def __init__(self, *args: object) -> None:
        super().__init__(*_redacted_texts(args))


class DefinitionError(SkynetAdaptersError):
    """A metric, an option or their combination cannot work; raised before anything is run."""


class DataError(SkynetAdaptersError):
    """Cases, a data file or a column mapping do not fit; names the file, the line and the mend."""


class ReflectionError(SkynetAdaptersError):
    """The reflection model never answered, so that a run was stopped; names the model and its last fault."""


class MetricError(SkynetAdaptersError):
    """The metric gave no score for one case."""


class MetricReturnError(MetricError):
    """The metric returned something other than `(number, {"feedback": text})`."""


class MetricTimeoutError(MetricError):
    """The metric did not answer within its time-out."""


class ProgramFailedError(MetricError):
    """The program gave no output for the case, so the metric was not called."""


class MetricBroken(BaseException):
    """The metric fails on every case, or too often in a row; the run is stopped.

    Raised by the metrics that `as_dspy_metric` makes, and by nothing that serves in production.

    A `BaseException`: DSPy 3.4.1 turns every `Exception` of a metric into a score of 0.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*_redacted_texts(args))


class ReflectionBroken(BaseException):
    """The reflection model has failed on every question; the run is stopped.

    Raised by what `as_reflection_lm` makes; `optimize_artifact` gives a `ReflectionError` in its place.

    A `BaseException`: gepa 0.1.4 logs every `Exception` of a reflection model, and uses its budget up.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*_redacted_texts(args))


def _redacted_texts(args: tuple[object, ...]) -> list[object]:
    return [redacted(arg) if isinstance(arg, str) else arg for arg in args]
