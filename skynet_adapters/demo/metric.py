"""What a good answer is, said once: this file is the only thing that an optimiser learns from.

A support message should go to the team that can settle it. The score says whether it did, the named
scores say which part went wrong, and the feedback says why, in words of the message itself. The
feedback is what the reflection model reads before it writes the next instruction.
"""

import re
from typing import Any

# The opinion in this metric: words that usually give a message away.
TELLING_WORDS = {
    "account": "account, password, log in, login, sign in, locked out, username, profile, "
    "email address, two-factor, verification, register, administrator",
    "billing": "charge, refund, invoice, payment, pay, paid, bill, price, fee, card, bank, money, "
    "subscription, renewal, receipt, tax, discount",
    "shipping": "parcel, package, order, box, delivery, delivered, shipped, courier, driver, tracking, "
    "customs, return label, ship",
    "technical": "app, crash, error, update, firmware, battery, bluetooth, wifi, sensor, screen, graph, "
    "freeze",
}


def score(
    input: dict[str, Any], output: str, expected: dict[str, Any] | None = None
) -> tuple[float, dict[str, Any]]:
    """Score one answer: 1.0 for the expected label, 0.0 for any other.

    Args:
        input: The case's fields; `message` is what the customer wrote.
        output: The label that the program answered.
        expected: `{"label": ...}`, the team that should have got the message.

    Returns:
        The score, and a dict with the feedback, the named scores `label` (is it the right team?) and
        `format` (is it the name of a team at all?), and what concerns each part of an artifact that
        consists of `rules` and `form`.

    Raises:
        ValueError: The case has no expected label.

    Example:
        >>> value, info = score({"message": "I was charged twice!"}, "other", {"label": "billing"})
        >>> value, info["scores"]
        (0.0, {'label': 0.0, 'format': 0.0})
        >>> print(info["feedback"])
        Expected 'billing', got 'other'. The message mentions "charge".
        The answer must be one of account, billing, shipping, technical, and nothing else.
    """
    if expected is None:
        raise ValueError("This metric compares labels, so every case needs an expected label.")
    message, right_label = input["message"], expected["label"]
    is_right, is_label = output == right_label, output in TELLING_WORDS

    why = [f"Right, '{output}'." if is_right else f"Expected '{right_label}', got '{output}'."]
    if words := telling_words(message, right_label):
        why.append(f"The message mentions {in_quotes(words)}.")
    elif not is_right:
        why.append("No single word gives it away: ask what the customer wants to be done.")
    if not is_right and (misleading := telling_words(message, output)):
        why.append(f"It has {in_quotes(misleading)} too, but that is not what it is about.")
    form = [] if is_label else [f"The answer must be one of {', '.join(TELLING_WORDS)}, and nothing else."]

    return float(is_right), {
        "feedback": " ".join([*why, *form]),
        "scores": {"label": float(is_right), "format": float(is_label)},
        # Read where there are parts of these names; a DSPy program has none, and gets the feedback.
        "component_feedback": {
            "rules": " ".join(why),
            "form": " ".join(form) or "The answer has the right form.",
        },
    }


def telling_words(message: str, label: str) -> list[str]:
    """Return the label's telling words that the message has, as they stand or with an ending.

    Example:
        >>> telling_words("Charged twice, and no receipts. Discountable?", "billing")
        ['charge', 'receipt']
    """
    return [
        word
        for word in TELLING_WORDS.get(label, "").split(", ")
        if word and re.search(rf"\b{re.escape(word)}(s|es|d|ed)?\b", message, re.IGNORECASE)
    ]


def in_quotes(words: list[str]) -> str:
    """Write a list of words as one would say it.

    Example:
        >>> print(in_quotes(["charge", "receipt", "tax"]))
        "charge", "receipt" and "tax"
    """
    *front, last = [f'"{word}"' for word in words]
    return f"{', '.join(front)} and {last}" if front else last
