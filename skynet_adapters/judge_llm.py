"""`llm`, which a metric asks a model with, and which model that is."""

import contextlib
import functools
import importlib
import json
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

from .errors import DefinitionError, MetricError
from .images import image_url
from .measure import Bill, ModelCall, bill_of_judge, is_in_run, is_lost_thread
from .model_answer import MEND_OF_NO_TEXT, called, model_name, text_of
from .redaction import hide_keys_of
from .score import sendable, shown

__all__ = [
    "MEND_OF_NO_MODEL",
    "NO_MODEL",
    "Models",
    "checked_models",
    "chosen_models",
    "llm",
    "models",
    "set_models",
]

_log = logging.getLogger("skynet_adapters")

Messages = list[dict[str, Any]]

# In a worker process: asks the process that started it.
elsewhere: Callable[[Messages], str] | None = None


def llm(
    prompt: str | None = None,
    input: Any = None,
    *,
    images: Any = None,
    messages: Iterable[Mapping[str, Any]] | None = None,
) -> str:
    """Ask the metric model, and give its text.

    The question goes to the metric model, else to the reflection model; `set_models` and `models`
    say which those are, and so do the options `metric_lm=` and `reflection_lm=` of the adapters. What
    it costs is in `metric.bill`, and nowhere in the program that is judged. A program that asks with
    it pays itself.

    It waits for the answer; an async metric asks with `await asyncio.to_thread(llm, ...)`. Threads that a
    metric starts itself do not know it, its model and its bill; start them with its context, as in
    `pool.submit(contextvars.copy_context().run, llm, ...)`.

    Args:
        prompt: What to do. With `input` it is the system message, else the user's. `None`: only with
            `messages`.
        input: What to do it with: a text, or data, which is sent as JSON.
        images: An image or a list of them, for the user's message; see `skynet.Image`.
        messages: Messages in OpenAI's format that come before the user's.

    Returns:
        The model's text, never empty.

    Raises:
        DefinitionError: No model was chosen, there is nothing to ask, or it cannot be sent.
        DataError: An image is none.
        MetricError: The model failed, also when asked again (`num_retries` of `dspy.LM`), or gave no
            text. It is a failure of the judge, so that the case counts as not judged.

    Example:
        >>> with models(metric_lm=lambda messages: f"PASS: {messages[-1]['content']}"):
        ...     llm("Answer PASS or FAIL.", input="2 + 2 = 4")
        'PASS: 2 + 2 = 4'
    """
    if elsewhere is not None and not any(model is not None for model in chosen_models()):
        return elsewhere(_messages(prompt, input, images, messages))
    model, what = _asked()
    asked = _messages(prompt, input, images, messages)
    name = model_name(model)
    try:
        answer = _answer(model, name, asked)
    except Exception as error:
        raise MetricError(f"{what} {name!r} failed: {type(error).__name__}: {error}") from None
    text = text_of(answer)
    if not isinstance(text, str) or not text.strip():
        raise MetricError(f"{what} {name!r} gave {shown(answer)}, not a text; {MEND_OF_NO_TEXT}")
    return text


# --- which model ------------------------------------------------------------------------------------


class Models(NamedTuple):
    """Which models were chosen; `None` where none was."""

    metric_lm: Any = None
    reflection_lm: Any = None


_NONE = Models()
_for_process = _NONE
_for_block: ContextVar[Models | None] = ContextVar("skynet_adapters_models", default=None)


def set_models(*, metric_lm: Any = None, reflection_lm: Any = None) -> None:
    """Choose for this process which models `llm` asks.

    Args:
        metric_lm: A `dspy.LM`, a model's name such as `"openai/gpt-4.1-mini"` (for `dspy.LM`), or a
            function of a list of messages that gives a text. `None`: none.
        reflection_lm: The same; asked where there is no metric model.

    Raises:
        DefinitionError: One of them is none of these.

    Example:
        >>> set_models(metric_lm=lambda messages: "PASS")
        >>> llm("Is it right?", input="2 + 2 = 4")
        'PASS'
        >>> set_models()
    """
    global _for_process
    _for_process = checked_models(metric_lm, reflection_lm)


@contextlib.contextmanager
def models(*, metric_lm: Any = None, reflection_lm: Any = None) -> Generator[None]:
    """Choose for a block which models `llm` asks, in DSPy's worker threads too.

    Args:
        metric_lm: As for `set_models`; `None`: what is chosen outside of the block stays.
        reflection_lm: As for `set_models`; `None`: what is chosen outside of the block stays.

    Raises:
        DefinitionError: One of them is no model.

    Example:
        >>> with models(reflection_lm=lambda messages: "FAIL"):
        ...     llm("Is it right?", input="2 + 2 = 5")
        'FAIL'
    """
    chosen, outer = checked_models(metric_lm, reflection_lm), models_of_block()
    merged = Models(*(outer[at] if model is None else model for at, model in enumerate(chosen)))
    part = _dspy_part()
    with part.carrying(merged) if part is not None else contextlib.nullcontext():
        token = _for_block.set(merged)
        try:
            yield
        finally:
            _for_block.reset(token)


def checked_models(metric_lm: Any = None, reflection_lm: Any = None) -> Models:
    """Check that each is a model's name or can be called.

    Returns:
        Both, as they are.

    Raises:
        DefinitionError: One is neither.

    Example:
        >>> checked_models("openai/gpt-4.1-mini").metric_lm
        'openai/gpt-4.1-mini'
    """
    for option, model in (("metric_lm", metric_lm), ("reflection_lm", reflection_lm)):
        named = isinstance(model, str) and model.strip()
        if model is not None and not named and (not callable(model) or isinstance(model, type)):
            raise DefinitionError(
                f"{option}={shown(model, with_type=False)} cannot be used: it must be a dspy.LM, a model's "
                'name such as "openai/gpt-4.1-mini", or a function of a list of messages that gives a text'
            )
        hide_keys_of(model)
    return Models(metric_lm, reflection_lm)


def chosen_models() -> Models:
    """Give the models that were chosen for where this is called, by a block or for the process.

    Example:
        >>> with models(metric_lm="openai/gpt-4.1-mini"):
        ...     chosen_models().metric_lm
        'openai/gpt-4.1-mini'
    """
    block = models_of_block()
    if block is _NONE:
        return _for_process
    return Models(*(_for_process[at] if model is None else model for at, model in enumerate(block)))


def models_of_block() -> Models:
    """Give the models that were chosen for where this is called, by blocks alone.

    Example:
        >>> models_of_block()
        Models(metric_lm=None, reflection_lm=None)
    """
    chosen = _for_block.get()
    if chosen is None:  # DSPy's worker threads inherit no context variables but DSPy's own
        part = _dspy_part()
        chosen = part.carried() if part is not None else None
    return chosen or _NONE


# How the error begins, by which the contract check knows it.
NO_MODEL = "llm() has no model to ask"
MEND_OF_NO_MODEL = (
    'choose one with metric_lm= on the adapter, as in as_dspy_metric(score, metric_lm="openai/gpt-4.1-mini")'
    ", for a block with `with models(metric_lm=...):`, or for the process with set_models(metric_lm=...)"
)


MEND_OF_NO_MODEL_IN_RUN = (
    "it was called in run, and metric_lm= is for score alone; choose one for run with "
    "`with models(metric_lm=...):` around the whole run, or for the process with set_models(metric_lm=...)"
)


def _asked() -> tuple[Any, str]:
    """Find the model to ask, and what it is called in an error."""
    block = models_of_block()
    is_lost = not any(block) and is_lost_thread() and not _knows_dspys_settings()
    if is_lost and any(_for_process):
        _warn_of_lost_thread()
    for chosen in (block, _for_process):
        if chosen.metric_lm is not None:
            return chosen.metric_lm, "the metric model"
    for chosen in (block, _for_process):
        if chosen.reflection_lm is not None:
            return chosen.reflection_lm, "the reflection model, asked since no metric model was chosen,"
    mend = MEND_OF_NO_MODEL_IN_RUN if is_in_run() else MEND_OF_NO_MODEL
    raise DefinitionError(f"{NO_MODEL}: {mend}" + (f". {_LOST}" if is_lost else ""))


_LOST = (
    "It was called in a thread that does not know which metric asks; where score starts threads, start them "
    "with its context, as in pool.submit(contextvars.copy_context().run, llm, prompt, text)"
)


@functools.cache  # once in a process
def _warn_of_lost_thread() -> None:
    _log.warning(
        "llm() asks the model of set_models(...), and its call is on no metric's bill, whatever metric_lm= "
        "an adapter has. %s.",
        _LOST,
    )


def _knows_dspys_settings() -> bool:
    part = _dspy_part()
    return part is not None and part.knows_settings()


# --- asking it --------------------------------------------------------------------------------------


def _messages(
    prompt: str | None, input: Any, images: Any, before: Iterable[Mapping[str, Any]] | None
) -> Messages:
    asked: Messages = [] if input is None or prompt is None else [_message("system", prompt)]
    asked += [] if before is None else _checked_messages(before)
    text = prompt if input is None else input
    pictures = cast("list[Any]", [*images] if isinstance(images, list | tuple) else [images])
    urls = [image_url(picture) for picture in pictures if picture is not None]
    if text is not None or urls:
        asked.append(_message("user", text, urls))
    if not asked:
        raise DefinitionError(
            'llm() was asked nothing; give it a text, as in llm("Is this right?", input=text)'
        )
    return asked


def _checked_messages(messages: Any) -> Messages:
    said = shown(messages, with_type=False)
    plural = isinstance(messages, Iterable) and not isinstance(messages, Mapping | str)
    given: list[Any] = list(cast("Iterable[Any]", messages)) if plural else [messages]
    if not plural or not all(isinstance(message, Mapping) and "role" in message for message in given):
        raise DefinitionError(
            f"messages={said} cannot be sent: it must be a list of messages, "
            'such as [{"role": "user", "content": "2 + 2?"}]'
        )
    return [dict(message) for message in given]


def _message(role: str, content: Any, urls: Iterable[str] = ()) -> dict[str, Any]:
    if content is not None and not isinstance(content, str):
        try:
            content = json.dumps(content, ensure_ascii=False, default=str)
        except Exception as error:  # it holds itself, or has keys or objects that give no text
            raise DefinitionError(
                f"{shown(content)} cannot be sent to a model as JSON ({error}); give a text, or plain data"
            ) from None
    text = sendable(content or "")  # a lone surrogate cannot be sent
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    if not parts:
        return {"role": role, "content": text}
    return {"role": role, "content": [*([{"type": "text", "text": text}] if text else []), *parts]}


def _answer(model: Any, name: str, messages: Messages) -> Any:
    """Ask, apart from the program that is judged, and put it on the metric's bill."""
    part = _dspy_part(needed=isinstance(model, str))
    if part is None:
        bill = bill_of_judge() or Bill()
        bill.add(ModelCall(name))
        return called(model, messages)
    bill = bill_of_judge() or part.bill()
    is_dspys = part.takes_messages(model)
    with part.apart(bill, name, is_seen=is_dspys):
        return part.ask(model, messages) if is_dspys else called(model, messages)


def dspys_model() -> Any:
    """Give the model that DSPy's own modules in a metric ask where this is called; `None`: none is set."""
    part = _dspy_part()
    return None if part is None else part.dspys_model()


def _dspy_part(needed: bool = False) -> Any:
    """Give the part that knows DSPy; `None` while nobody has loaded DSPy, unless it is needed.

    By name, since those who do without DSPy must not pay for its import here.
    """
    global _part
    if _part is None and (needed or "dspy" in sys.modules):
        _part = importlib.import_module(f"{__package__}.dspy_models")
    return _part


_part: Any = None  # kept, as it is asked for on every call of a metric
