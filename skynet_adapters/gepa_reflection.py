"""The reflection model of a GEPA run: texts or messages in, a text out, and failures that are seen."""

import importlib
import inspect
import logging
from contextvars import ContextVar
from typing import Any

from .errors import DefinitionError, ReflectionBroken, SkynetAdaptersError
from .gepa_values import defused
from .loaded import is_dspys
from .model_answer import MEND_OF_NO_TEXT, called, model_name, text_of
from .redaction import hide_keys_of, redacted
from .score import sendable, shown

__all__ = ["ReflectionLM", "as_reflection_lm", "noted_failures"]

_log = logging.getLogger("skynet_adapters")

# Where failures are noted, for what is said at the end of a run; GEPA asks the model in the thread that
# calls its callbacks (gepa 0.1.4).
noted_failures: ContextVar[list[str] | None] = ContextVar("skynet_adapters_noted_failures", default=None)


def as_reflection_lm(model: Any) -> "ReflectionLM":
    """Make the reflection model that GEPA wants: texts or messages in, a text out.

    Args:
        model: A `dspy.LM`, a model's name such as `"openai/gpt-4.1"` (for `dspy.LM`), or a function
            of the prompt that gives a text, plain or async. The prompt is a text, or a list of
            messages where there are images.

    Returns:
        A callable for `reflection_lm=`. An answer that is empty or no text, and whatever the model
        raises, is logged and raised: GEPA itself goes on without a new text. One that has never answered
        and fails for the fifth time stops the run, with `ReflectionBroken`. `<side_info>` and
        `<curr_param>` in an answer lose their underscore: GEPA would put the whole feedback there when it
        asks for the next text. With a `dspy.LM` it knows its `total_cost`, which `max_reflection_cost=`
        asks for.

    Raises:
        DefinitionError: `model` is none of these, such as a class, a DSPy program, or a function that
            does not take one argument.

    Example:
        >>> reflection_lm = as_reflection_lm(lambda prompt: [{"text": "Answer in one word."}])
        >>> reflection_lm("Write a better instruction.")
        'Answer in one word.'
    """
    if isinstance(model, str):
        model = _lm_named(model)
    fault = _fault_in_model(model)
    if fault is not None:
        raise DefinitionError(
            f"a reflection model is a dspy.LM, a model's name or a function of the prompt; {fault}"
        )
    return _DspyReflectionLM(model) if is_dspys(model, "BaseLM") else ReflectionLM(model)


def _lm_named(name: str) -> Any:
    lm_class = _dspy().LM
    try:
        return lm_class(name)
    except Exception as error:
        raise DefinitionError(
            f'{name!r} is no name of a reflection model: {error}; give one such as "openai/gpt-4.1"'
        ) from error


def _fault_in_model(model: Any) -> str | None:
    if not callable(model):
        return f"got {shown(model)}"
    if isinstance(model, type):
        return f"got the class {model.__name__!r}; make an instance of it"
    if is_dspys(model, "Module"):  # called with a text alone, it raises
        return f"got the DSPy program {shown(model)}; pass lambda prompt: program(prompt=prompt).answer"
    try:
        inspect.signature(model).bind(None)
    except TypeError as error:
        return f"{shown(model)} cannot be called with the prompt alone: {error}"
    except ValueError:  # some functions written in C have no signature
        return None
    return None


# After so many failures a model that has never answered stops the run; GEPA asks twice for each text.
_MOST_FAILURES = 5


class ReflectionLM:
    """What `as_reflection_lm` returns: a function of the prompt that gives a text or raises."""

    def __init__(self, model: Any) -> None:
        self._model = model
        hide_keys_of(model)
        self.name = model_name(model)
        self._has_answered = False
        self._failures = 0

    @property
    def decided_by(self) -> Any:
        """What decides its answers: the model that it asks."""
        return self._model

    def __getstate__(self) -> dict[str, Any]:
        """Leave the model behind: it holds locks and keys."""
        return {**self.__dict__, "_model": None}

    def __repr__(self) -> str:
        return f"<ReflectionLM {self.name!r}>"

    def __getattr__(self, name: str) -> Any:
        # GEPA's cost limit reads them of a model that counts, such as `gepa.lm.LM`.
        if name in ("total_cost", "total_tokens_in", "total_tokens_out"):
            return getattr(self._model, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        """Ask the model.

        Args:
            prompt: A text, or messages as OpenAI has them.

        Returns:
            The model's text, never empty.

        Raises:
            SkynetAdaptersError: The answer is empty or no text, or this is a copy, which has no model.
            ReflectionBroken: It has never answered, and failed for the fifth time.
        """
        try:
            answer = self.answer_without_stopping(prompt)
        except Exception as error:
            self._failures += 1
            if self._has_answered or self._failures < _MOST_FAILURES:
                raise
            self._failures = 0  # the next run may come after it was mended
            is_named = isinstance(error, SkynetAdaptersError)  # by `answer_without_stopping`
            named = str(error) if is_named else f"{type(error).__name__}: {error}"
            raise ReflectionBroken(
                f"the reflection model {self.name!r} was asked {_MOST_FAILURES} times and never answered, so "
                f"the run was stopped. The last failure: {named.rstrip('.: ')}. Mend that, such as a "
                "wrong key, name or address, and run it again."
            ) from error
        self._has_answered = True
        return answer

    def answer_without_stopping(self, prompt: str | list[dict[str, Any]]) -> str:
        """Ask the model, which may fail as often as it likes; for `llm`.

        Args:
            prompt: As for a call.

        Returns:
            The model's text, never empty.

        Raises:
            SkynetAdaptersError: The answer is empty or no text, or this is a copy, which has no model.
        """
        if self._model is None:
            message = (
                f"the reflection model {self.name!r} was copied or saved, which leaves the model itself "
                "behind; make it anew with as_reflection_lm(...)"
            )
            self._note(message)
            raise SkynetAdaptersError(message)
        try:
            answer = self._ask(sendable(prompt) if isinstance(prompt, str) else prompt)
        except Exception as error:
            message = f"the reflection model {self.name!r} raised {type(error).__name__}: {error}"
            self._note(message)
            if redacted(message) != message:  # GEPA writes into its own log what is raised
                raise SkynetAdaptersError(message) from None
            raise
        text = text_of(answer)
        if not isinstance(text, str) or not text.strip():
            message = (
                f"the reflection model {self.name!r} gave {shown(answer)}, not a text, so nothing new can be "
                f"proposed; {MEND_OF_NO_TEXT}"
            )
            self._note(message)
            raise SkynetAdaptersError(message)
        # An object of a local class cannot be pickled with the candidates, and a lone surrogate ends the run
        # in GEPA's log file (gepa 0.1.4).
        return defused(sendable(str.__str__(text)))

    def _note(self, message: str) -> None:
        if isinstance(self._model, ReflectionLM):  # which has noted it
            return
        _log.warning("%s", message)
        noted = noted_failures.get()
        if noted is not None:
            noted.append(redacted(message))

    def _ask(self, prompt: str | list[dict[str, Any]]) -> Any:
        return called(self._model, prompt)


class _DspyReflectionLM(ReflectionLM):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.total_cost = 0.0
        self.total_tokens_in = self.total_tokens_out = 0

    def _ask(self, prompt: str | list[dict[str, Any]]) -> Any:
        calls = _Calls()
        dspy, model = _dspy(), self._model
        if dspy.settings.disable_history or dspy.settings.max_history_size == 0:
            # Usage and cost stand in DSPy's history alone; a copy writes them here, and to no history.
            model = model.copy()
            model.update_history = calls.history.append
        # Beside those that listen already: where `llm` asks this model, a bill does.
        listening = [*(dspy.settings.caller_modules or ()), calls]
        with dspy.context(caller_modules=listening, disable_history=False):
            answer = model(prompt) if isinstance(prompt, str) else _dspys_part().ask(model, prompt)
        for call in calls.history:
            usage: dict[str, Any] = call.get("usage") or {}  # empty for an answer from the cache: no cost
            self.total_tokens_in += int(usage.get("prompt_tokens") or 0)
            self.total_tokens_out += int(usage.get("completion_tokens") or 0)
            self.total_cost += float(call.get("cost") or 0.0) if usage else 0.0
        return answer


def _dspy() -> Any:
    """Import DSPy where it is needed; without it this module is a second quicker to import."""
    import dspy

    return dspy


def _dspys_part() -> Any:
    return importlib.import_module(f"{__package__}.dspy_models")


class _Calls:
    """Receives the history entries of the calls that are made below it, and of no other."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
