"""The bundled demonstration: one metric for a DSPy program and for GEPA runs over texts.

| file | what it is |
|---|---|
| `support_messages.jsonl` | the cases: hand-written support messages, each with the team it belongs to |
| `metric.py` | the metric, as a user writes it |
| `models.py` | the scripted models that stand in for real ones |
| `program.py` | the first part: a DSPy program |
| `texts.py` | the second part: a prompt, and an artifact of two texts |
| `bench.py` | what both parts work with, and what is counted |
| `run.py`, `report.py` | the whole of it, and the report |
"""

from pathlib import Path

__all__ = ["METRIC_FILE", "SUPPORT_MESSAGES"]

SUPPORT_MESSAGES = Path(__file__).with_name("support_messages.jsonl")
"""The bundled cases."""

METRIC_FILE = Path(__file__).with_name("metric.py")
"""The bundled metric."""
