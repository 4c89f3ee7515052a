"""What the contract check found, for a person, a notebook and a program to read."""

import html
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .redaction import redacted

__all__ = ["Check", "ContractReport", "Status"]

Status = Literal["passed", "warned", "failed", "not tried"]

_WIDTH = 110
_MARKS: dict[Status, str] = {"passed": "ok", "warned": "WARN", "failed": "FAIL", "not tried": "-"}
_COLOURS: dict[Status, str] = {
    "passed": "#1a7f37",
    "warned": "#9a6700",
    "failed": "#cf222e",
    "not tried": "#6e7781",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the contract asks of a metric.

    Attributes:
        name: Such as `"Metric return value"`.
        status: `"passed"`, `"warned"` (it runs, but teaches an optimiser less than it could),
            `"failed"`, or `"not tried"`.
        seen: What the check saw.
        mend: What to do about it; empty when it passed.
    """

    name: str
    status: Status
    seen: str
    mend: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", redacted(self.seen))
        object.__setattr__(self, "mend", redacted(self.mend))


@dataclass(frozen=True, slots=True)
class ContractReport:
    """What `check_contract` found.

    `str()` is a table, notebooks show one too, and `report["Feedback"]` is one check.

    Attributes:
        metric: The metric's name.
        checks: All checks, in the order in which they were made.
        cases: Ids of the cases that were tried.
        calls: How often the metric was called.
        outputs: What was judged: the outputs of `run`, or the expected values.

    Example:
        >>> checks = (Check("Time", "passed", "0.1 s at most"),)
        >>> report = ContractReport("metric", checks, ("1",), 5, "the outputs of run")
        >>> report.passed, report["Time"].status
        (True, 'passed')
        >>> print(report)
        metric 'metric' keeps the contract: 1 passed
        1 case tried, with the outputs of run; 5 calls of the metric
        <BLANKLINE>
        ok    Time  0.1 s at most
    """

    metric: str
    checks: tuple[Check, ...]
    cases: tuple[str, ...]
    calls: int
    outputs: str

    @property
    def passed(self) -> bool:
        """Whether the metric was called, and no check failed."""
        return self.calls > 0 and not self._failed()

    def __iter__(self) -> Iterator[Check]:
        return iter(self.checks)

    def __getitem__(self, name: str) -> Check:
        """Give the check of that name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"{name!r} is no check; there are {', '.join(check.name for check in self.checks)}")

    def __str__(self) -> str:
        widest = max((len(check.name) for check in self.checks), default=0)
        lines = [self._headline(), self._tried(), ""]
        for check in self.checks:
            start = f"{_MARKS[check.status]:<6}{check.name:<{widest}}  "
            lines += _wrapped(check.seen, start, " " * len(start))
            if check.mend:
                lines += _wrapped(check.mend, " " * len(start) + "-> ", " " * (len(start) + 3))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="color: {_COLOURS[check.status]}"><b>{check.status}</b></td>'
            f'<td style="text-align: left">{_escaped(check.name)}</td>'
            f'<td style="text-align: left">{_escaped(check.seen)}'
            f"{f'<br><i>{_escaped(check.mend)}</i>' if check.mend else ''}</td></tr>"
            for check in self.checks
        )
        return (
            f"<p><b>{_escaped(self._headline())}</b><br>{_escaped(self._tried())}</p>"
            f"<table><thead><tr><th></th><th>check</th><th>what was seen</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Give everything as what JSON can hold.

        Returns:
            `metric`, `passed`, `cases`, `calls`, `outputs`, and `checks`, a list of dicts with `name`,
            `status`, `seen` and `mend`.
        """
        return {
            "metric": self.metric,
            "passed": self.passed,
            "cases": list(self.cases),
            "calls": self.calls,
            "outputs": self.outputs,
            "checks": [
                {"name": check.name, "status": check.status, "seen": check.seen, "mend": check.mend}
                for check in self.checks
            ],
        }

    def _headline(self) -> str:
        statuses = [check.status for check in self.checks]
        counted = [f"{statuses.count(status)} {status}" for status in _MARKS if status in statuses]
        verdict = "keeps the contract"
        if not self.passed:
            verdict = "does not keep the contract" if self._failed() else "was never called"
        return f"metric {self.metric!r} {verdict}: {', '.join(counted)}"

    def _failed(self) -> bool:
        return any(check.status == "failed" for check in self.checks)

    def _tried(self) -> str:
        if not self.cases:
            return "no case was tried"
        calls = _count(self.calls, "call")
        return f"{_count(len(self.cases), 'case')} tried, with {self.outputs}; {calls} of the metric"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wrapped(text: str, first: str, following: str) -> list[str]:
    """Break lines; a text's own line breaks stay."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += textwrap.wrap(
            line, _WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
        ) or [first.rstrip()]
        first = following
    return lines


def _escaped(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
