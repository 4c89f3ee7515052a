"""Every error that this package raises on purpose.

The tree::

    SkynetAdaptersError              everything below; catch this one
    ├── DefinitionError              a metric or an option that cannot work, found before any call
    ├── DataError                    cases, files and columns that do not fit
    └── MetricError                  one case could not be scored
        ├── MetricReturnError        the metric returned a wrong shape (check "Metric return value")
        ├── MetricTimeoutError       the metric did not answer in time
        └── ProgramFailedError       there was no output to judge; the metric was not called

    MetricBroken (BaseException)     the metric fails on everything and the run has to stop

`MetricBroken` stands outside the tree because DSPy catches every `Exception` and goes on with a
score of 0, so that a run with a broken metric would look like a run that succeeded.

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


def _redacted_texts(args: tuple[object, ...]) -> list[object]:
    return [redacted(arg) if isinstance(arg, str) else arg for arg in args]
