"""The bundled demonstration: one metric, two of DSPy's optimisers and a control, without a key.

| file | what it is |
|---|---|
| `support_messages.jsonl` | the cases: hand-written support messages, each with the team it belongs to |
| `metric.py` | the metric, as a user writes it |
| `models.py` | the scripted models that stand in for real ones |
| `run.py` | the runs, and the report on them |
"""

from pathlib import Path

__all__ = ["METRIC_FILE", "SUPPORT_MESSAGES"]

SUPPORT_MESSAGES = Path(__file__).with_name("support_messages.jsonl")
"""The bundled cases."""

METRIC_FILE = Path(__file__).with_name("metric.py")
"""The bundled metric."""
