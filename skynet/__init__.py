"""The helper module that metric files of the Skynet platform import.

This version holds no helper yet: `llm`, `reward`, `observation`, `service_cost` and `Image` are not
part of it, and importing one of them says so. A metric that needs none of them runs unchanged.
"""

from typing import NoReturn

_PLATFORM_HELPERS = ("llm", "reward", "observation", "service_cost", "Image")

__all__: list[str] = []


def __getattr__(name: str) -> NoReturn:
    if name in _PLATFORM_HELPERS:
        raise ImportError(
            f"skynet.{name} is a helper of the Skynet platform that this version of skynet-adapters does not "
            "have; a metric that calls a model can call its own client, or dspy.settings.lm, meanwhile"
        )
    raise AttributeError(f"module 'skynet' has no attribute {name!r}")
