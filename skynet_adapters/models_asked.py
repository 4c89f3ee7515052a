"""Which models a metric's own calls go to, since those decide a judgement too."""

from hashlib import blake2b
from typing import Any

from .fingerprints import fingerprint
from .judge_llm import chosen_models, dspys_model
from .memo import content_key

__all__ = ["ModelsAsked"]


class ModelsAsked:
    """Tells the models apart that `llm`, or DSPy's modules in a metric, ask where a metric is called."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Any, ...], bytes] | None = None  # those asked last, and their digest

    def with_models(self, key: bytes) -> bytes:
        """Add them to a case's key; `key` itself where no model was chosen.

        Raises:
            Exception: A model cannot be told from others.
        """
        models = _models_asked()
        if not any(model is not None for model in models):
            return key
        known = self._last
        if known is None or any(one is not other for one, other in zip(known[0], models, strict=True)):
            made = blake2b(digest_size=32)
            for model in models:
                said = content_key(model) or fingerprint(model).encode()
                made.update(len(said).to_bytes(8, "big") + said)
            known = self._last = models, made.digest()
        return blake2b(key + known[1], digest_size=32).digest()


def _models_asked() -> tuple[Any, ...]:
    asked = (*chosen_models(), dspys_model())
    return tuple(getattr(model, "decided_by", model) for model in asked)
