"""The helper module of the Skynet platform, for metric files: `from skynet import llm, reward`.

Names are loaded when they are first used: `Image` is GEPA's, and `llm` loads DSPy when it asks a
model by name.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gepa.image import Image

    from skynet_adapters.llm import llm
    from skynet_adapters.measure import observation, service_cost

# Another distribution on PyPI is called skynet too; `check_skynet` looks for this name.
SKYNET_ADAPTERS = True

_MODULE_OF = {
    "Image": "gepa.image",
    "llm": "skynet_adapters.llm",
    "observation": "skynet_adapters.measure",
    "reward": "skynet_adapters.reward",
    "service_cost": "skynet_adapters.measure",
}

__all__ = ["Image", "llm", "observation", "service_cost"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "reward" and importlib.util.find_spec(module) is None:
        raise ImportError(
            "skynet.reward is a helper of the Skynet platform that this version of skynet-adapters does not "
            "have; meanwhile, return the accuracy as the score"
        )
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
