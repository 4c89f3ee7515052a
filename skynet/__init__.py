"""The helper module that metric files of the Skynet platform import.

This version holds no helper yet: `llm`, `reward`, `observation`, `service_cost` and `Image` are not
part of it, and importing one of them says so. A metric that needs none of them runs unchanged.
"""

from typing import Any

_MEANWHILE = {
    "llm": "ask your own client, or dspy.settings.lm, from the metric",
    "reward": "return the accuracy as the score",
    "observation": "measure inside the program, and hand the figures over as a field of its answer",
    "service_cost": "read the cost from your model client, and hand it over as a field of the answer",
    "Image": "use dspy.Image, or gepa.image.Image",
}

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name in _MEANWHILE:
        # An ImportError, since `from skynet import llm` would hide the text of an AttributeError.
        raise ImportError(
            f"skynet.{name} is a helper of the Skynet platform that this version of skynet-adapters does not "
            f"have; meanwhile, {_MEANWHILE[name]}"
        )
    raise AttributeError(f"module 'skynet' has no attribute {name!r}")
