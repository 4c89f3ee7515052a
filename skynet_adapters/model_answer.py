"""What a model's name is, and what text it answered with; for `llm` and for the reflection model."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from .deadline import wait_within

__all__ = ["MEND_OF_NO_TEXT", "called", "model_name", "text_of"]

# What to do where a model gave no text.
MEND_OF_NO_TEXT = (
    "check its max_tokens (a model that reasons may use them all up), or that the function returns the text "
    "itself"
)


# Asked by `llm`, the reflection model of a run stops nothing; its class says by this how it is asked then.
_ASK_OF_OURS = "answer_without_stopping"


def model_name(model: Any) -> str:
    """Give the name of a model, or of the function that stands for one.

    Example:
        >>> model_name("openai/gpt-4.1-mini"), model_name(input)
        ('openai/gpt-4.1-mini', 'input')
    """
    if isinstance(model, str):
        return model
    if hasattr(cast("Any", type(model)), _ASK_OF_OURS):  # a reflection model knows the name of the one inside
        return str(model.name)
    return str(getattr(model, "model", None) or getattr(model, "__name__", None) or type(model).__name__)


def called(model: Callable[[Any], Any], asked: Any) -> Any:
    """Ask a function that stands for a model, plain or async."""
    ask = getattr(type(model), _ASK_OF_OURS, None)
    answer = model(asked) if ask is None else ask(model, asked)
    return wait_within(None, cast("Awaitable[Any]", answer)) if isinstance(answer, Awaitable) else answer


def text_of(answer: Any) -> Any:
    """Unpack what a model gave: a `dspy.LM` gives a list, of dicts when it reasons too.

    Example:
        >>> text_of([{"text": "Yes.", "reasoning_content": "Hm."}]), text_of([])
        ('Yes.', None)
    """
    if isinstance(answer, list):
        answers = cast("list[Any]", answer)
        return text_of(answers[0]) if answers else None
    return cast("dict[str, Any]", answer).get("text") if isinstance(answer, dict) else answer
