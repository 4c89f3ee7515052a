"""The helper module of the Skynet platform, for metric files: `from skynet import llm, reward`.

Names are loaded when they are first used: `Image` is GEPA's, and `llm` loads DSPy when it asks a
model by name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gepa.image import Image

    from skynet_adapters.judge_llm import llm
    from skynet_adapters.measure import observation, service_cost
    from skynet_adapters.rewards import reward

# Another distribution on PyPI is called skynet too; `check_skynet` looks for this name.
SKYNET_ADAPTERS = True

_MODULE_OF = {
    "Image": "gepa.image",
    "llm": "skynet_adapters.judge_llm",
    "observation": "skynet_adapters.measure",
    "reward": "skynet_adapters.rewards",
    "service_cost": "skynet_adapters.measure",
}

__all__ = ["Image", "llm", "observation", "reward", "service_cost"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
