"""The folder of a GEPA run: refuse to resume in it what was begun with another metric.

Built around gepa 0.1.4.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gepa.core.state import GEPAState

from .errors import DefinitionError
from .fingerprints import fingerprint_of_parts, parts_of
from .metric import Metric, ScoreFunction, as_metric

__all__ = [
    "RUN_FILE",
    "check_run_dir",
    "fault_of_state",
    "faults_of_folder",
    "keep_facts",
    "metric_facts",
    "warn_of_used_budget",
]

_log = logging.getLogger("skynet_adapters")

# What a run was begun with, kept in its folder.
RUN_FILE = "skynet_adapters_run.json"

# GEPA resumes a run where this file is (gepa 0.1.4).
_STATE_FILE = "gepa_state.bin"

# The facts that are kept, and what is said when one differs.
_WHAT = {
    "metric": "another metric",
    "seed_candidate": "another artifact",
    "valset": "another validation set",
    "frontier_type": "another frontier_type",
}


def check_run_dir(metric: ScoreFunction | Metric, directory: str | os.PathLike[str] | None) -> None:
    """Refuse the folder of a run that another metric began; for `run_dir=` and `dspy.GEPA(log_dir=...)`.

    GEPA resumes what it finds there and compares scores of the old metric with those of the new one. So
    the metric's fingerprint is kept in the folder, as `skynet_adapters_run.json`, with those of its parts,
    so that it can be said which was changed. `check_gepa_run` and `optimize_artifact` do this too.

    Args:
        metric: A function, a `Metric`, or what `as_dspy_metric` made.
        directory: The folder; it is made when it is missing. `None`: nothing is checked.

    Raises:
        DefinitionError: The run in the folder was begun with another metric.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> check_run_dir(lambda input, output: (1.0, {"feedback": "Good."}), folder)
        >>> _ = (folder / "gepa_state.bin").write_bytes(b"")  # GEPA has run
        >>> check_run_dir(lambda input, output: (0.5, {"feedback": "Fair."}), folder)
        Traceback (most recent call last):
        ...
        skynet_adapters.errors.DefinitionError: the run in ... was begun with another metric ...
    """
    if directory is None:
        return
    # What `as_dspy_metric` made, or a wrapper that has its attributes and may answer otherwise.
    is_dspys = isinstance(getattr(metric, "metric", None), Metric)
    facts = metric_facts(metric if is_dspys else as_metric(metric))
    for fault in faults_of_folder(Path(directory), facts):
        raise DefinitionError(fault)
    keep_facts(Path(directory), facts)


# Beside a metric's fingerprint, to say what was changed.
_PARTS = "metric_parts"
_PYTHON = "python"
_MOST_NAMED = 6


def metric_facts(metric: ScoreFunction | Metric) -> dict[str, Any]:
    """Give what is kept of a metric: its fingerprint, those of its parts, and the version of Python."""
    parts = parts_of(metric)
    return {
        "metric": fingerprint_of_parts(parts),
        _PARTS: parts,
        _PYTHON: f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def faults_of_folder(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    """Tell why a run cannot go on there, and in what it differs from one with these facts."""
    if folder.exists() and not folder.is_dir():
        return [f"the folder of the run, {str(folder)!r}, is a file; give another path"]
    if not (folder / _STATE_FILE).exists():
        return []
    kept = _kept(folder)
    if "metric" not in kept:
        _log.warning(
            "the run in %r was begun without this check, so that nobody knows whether its scores are this "
            "metric's",
            str(folder),
        )
    return [
        f"the run in {str(folder)!r} was begun {_how(name, kept, facts)}, so that its scores cannot be "
        "compared with new ones; take a new folder, or undo the change"
        for name, fact in facts.items()
        if name in _WHAT and kept.get(name, fact) != fact
    ]


def _how(name: str, kept: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    if name != "metric":
        return f"with {_WHAT[name]}"
    before, now = kept.get(_PARTS), cast("dict[str, str]", facts[_PARTS])
    if not isinstance(before, dict):
        return "by another version of skynet-adapters, with a metric that cannot be compared with this one"
    if kept.get(_PYTHON) != facts[_PYTHON]:
        return f"with Python {kept.get(_PYTHON)}, and code is another one in Python {facts[_PYTHON]}"
    before = cast("dict[str, str]", before)
    changed = sorted(part for part in before.keys() | now.keys() if before.get(part) != now.get(part))
    told = [
        f"{part} {'is new' if part not in before else 'is gone' if part not in now else 'was changed'}"
        for part in sorted(changed, key=lambda part: (part not in before, part not in now))
    ]
    more = f", and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
    return f"with {_WHAT[name]} ({', '.join(told[:_MOST_NAMED])}{more})"


def keep_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Keep the facts of a run in its folder, which is made when it is missing."""
    resumed = (folder / _STATE_FILE).exists()
    everything = {**(_kept(folder) if resumed else {}), **facts}
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{RUN_FILE}"
    temporary.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / RUN_FILE)


def _kept(folder: Path) -> dict[str, Any]:
    try:
        kept = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", kept) if isinstance(kept, dict) else {}


def warn_of_used_budget(folder: Path, budget: Any) -> None:
    """Warn when a run that would be resumed has nothing left to spend."""
    if not isinstance(budget, int) or not (folder / _STATE_FILE).exists():
        return
    used = _state(folder).total_num_evals
    if used >= budget:
        _log.warning(
            "the run in %r has used %d metric calls, so that max_metric_calls=%d, the budget of the run in "
            "all, lets it go no further",
            str(folder),
            used,
            budget,
        )


def fault_of_state(folder: Path) -> str | None:
    """Tell why GEPA could not read the state of a run there, which it does after it has paid the seed."""
    if not (folder / _STATE_FILE).is_file():
        return None
    try:
        _state(folder)
    except Exception as error:
        return (
            f"the state of the run, {str(folder / _STATE_FILE)!r}, cannot be read ({type(error).__name__}: "
            f"{error}); put a copy of it back, or take a new folder"
        )
    return None


def _state(folder: Path) -> Any:
    return cast("Any", GEPAState).load(str(folder))
