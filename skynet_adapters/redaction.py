"""Redaction: keys, tokens and passwords never show in a text that this package writes.

A text that a metric, a program or a model server wrote may quote one: an error that shows the request, a
feedback that shows an output. It would reach the reflection model, run folders and logs.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

__all__ = ["hide_keys_of", "is_credential", "redacted"]

_LEAST_CHARS = 8
_LEAST_CHARS_OF_A_KEY = 20
_MOST_MODELS_KEYS = 400  # in all ways in which they may be written


def redacted(text: str) -> str:
    """Replace what is a credential in a text; any other text stays as it is.

    That is: values of environment variables and keys of models in use whose names say so and that look like
    one; keys of well-known shapes, JSON web tokens and private key blocks; what follows `Bearer`, or
    `api_key=`, `"password":` and the like; passwords in addresses. Words, numbers, paths and placeholders
    are not taken for credentials.

    Example:
        >>> redacted("refused: Authorization: Bearer 3f9Zk2Lq81xT, https://me:hunter2@example.org")
        'refused: Authorization: Bearer [hidden], https://me:[hidden]@example.org'
        >>> redacted("The api_key is missing; write api_key=your_key.")
        'The api_key is missing; write api_key=your_key.'
    """
    for known in _known():
        if known.value in text:
            text = text.replace(known.value, f"[hidden: {known.name}]")
    lower = text.lower()
    if len(lower) != len(text):  # of a few letters the lower case is two
        lower = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    for needed, marks in _MARKS_BY_NEED:
        if needed in text:
            for mark in marks:
                if mark in lower:
                    return _without(text, lower)
    return text


def hide_keys_of(model: Any) -> None:
    """Keep the keys that a model was made with, such as `dspy.LM(api_key=...)`, out of every text."""
    try:
        settings: dict[Any, Any] = dict(model.kwargs)
    except Exception:  # another kind of model, or one whose attributes raise
        return
    texts = {
        name: value for name, value in settings.items() if isinstance(name, str) and isinstance(value, str)
    }
    for known in _credentials(texts):
        _of_models[known.value] = known
    while len(_of_models) > _MOST_MODELS_KEYS:
        _of_models.pop(next(iter(_of_models)), None)


def is_credential(name: str, value: str) -> bool:
    """Tell a value that is a credential by what it is called and how it looks.

    Example:
        >>> is_credential("OPENAI_API_KEY", "sk-3f9Zk2Lq81xT"), is_credential("LABEL_KEY", "category")
        (True, False)
    """
    return any(_credentials({name: value}))


# --- values that are known ----------------------------------------------------------------------------


class _Known(NamedTuple):
    value: str
    name: str


class _Read(NamedTuple):
    """The environment as it was when it was last read."""

    environment: Any
    credentials: tuple[_Known, ...]


_of_models: dict[str, _Known] = {}
_read = _Read(None, ())


def _known() -> tuple[_Known, ...]:
    global _read
    # Reading `os.environ` itself decodes every value, 20 times what comparing its bytes takes.
    environment: Any = getattr(os.environ, "_data", os.environ)
    if environment != _read.environment:
        copy = dict(environment)
        found = _credentials({os.fsdecode(name): os.fsdecode(value) for name, value in copy.items()})
        # The longest first: one may be part of another.
        _read = _Read(copy, tuple(sorted(found, key=lambda known: -len(known.value))))
    return (*_read.credentials, *_of_models.values()) if _of_models else _read.credentials


def _credentials(values: Mapping[str, str]) -> Iterator[_Known]:
    for name, value in values.items():
        if len(value) < _LEAST_CHARS:
            continue
        upper = name.upper()
        if (_STRONG_NAME.search(upper) and _could_be_one(value)) or (
            _NAME.search(upper) and _looks_random(value)
        ):
            in_json = json.dumps(value)[1:-1]
            written = {value, repr(value)[1:-1], in_json, json.dumps(in_json)[1:-1]}  # as it stands in data
            written |= {quote(value), quote(value, safe=""), quote_plus(value)}  # and in addresses
            yield from (_Known(form, name) for form in written)


# A part of a name ends there: OPENAI_API_KEY, PGPASSWORD and TOKEN_2 do, KEYBOARD does not.
_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|(?:^|_)PAT)S?(?![A-Z])")
# These alone, at the end of a name, are what they are called; a KEY may be one of a table or a keyboard.
_STRONG_NAME = re.compile(
    r"(?:API_?KEY|ACCESS_?KEY|SECRET_?KEY|PRIVATE_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?"
    r"(?:_?\d+)?$"
)


# --- what looks like one --------------------------------------------------------------------------------


def _could_be_one(value: str) -> bool:
    """Tell whether a value that is called a credential may be one, not a word that stands for it."""
    return not (_ORDINARY.fullmatch(value) or (_PATH.match(value) and not _RANDOM_PART.search(value)))


def _looks_random(value: str) -> bool:
    """Tell whether a value looks like a credential by itself."""
    if _PATH.match(value) and not _RANDOM_PART.search(value):
        return False
    if _MIXED.search(value):
        return True
    return (
        len(value) >= 20
        and not any(character.isspace() for character in value)
        and all(re.search(kind, value) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    )


# Letters and digits in one.
_MIXED = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{8,}")
_RANDOM_PART = re.compile(  # longer than a name in a path
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])"
    r"(?:[A-Za-z0-9]{16,}|(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{10,})"
)
_PATH = re.compile(r"~?/|\.{1,2}/|[A-Za-z]:[\\/]|[a-z][a-z0-9+.-]*://")
_WORD = r"(?:[A-Z]{0,5}[a-z]{2,19}(?:[A-Z]{1,5}[a-z]{2,19})*+[A-Z]{0,5}|[A-Z]{1,19}|[a-z])"
_ORDINARY = re.compile(
    rf"{_WORD}(?:[ ._:/,|+-]+{_WORD})*+[ .:/,!?-]*"  # words, and names made of them
    r"|[0-9]{1,7}|(?=.*[.,:/ -])[0-9.,:/ -]+"  # a number, a date, a time
    r"|[*.•_-]+|\$\{?[A-Z_]+\}?|\{+[\w.!:-]*\}+|%\(?\w*\)?s|<[^<>]*>?|\[hidden.*"  # what stands for one
)

# --- in a text ------------------------------------------------------------------------------------------


def _without(text: str, lower: str) -> str:
    kept: list[str] = []
    end = 0
    for begin, after in sorted(_places(text, lower)):
        if begin >= end:
            kept += [text[end:begin], "[hidden]"]
        end = max(end, after)
    return "".join(kept) + text[end:]


def _places(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Find where credentials stand: at each mark a look at what follows, since one look at all is slow."""
    for mark, pattern in _MARKS.items():
        at = lower.find(mark)
        while at >= 0:
            found, after = pattern.match(text, at), at + len(mark)
            if found is not None:
                is_one = _is_one(found, lower)
                if is_one:
                    begin, end = found.span(found.lastgroup or 0)
                    yield begin, begin + len(text[begin:end].rstrip(".:!?"))  # of the sentence around it
                if is_one or found.lastgroup == "shape":
                    after = found.end()  # else one may stand in what is none
            at = lower.find(mark, after)


def _is_one(found: re.Match[str], lower: str) -> bool:
    kind = found.lastgroup
    value = found.group(kind or 0)
    if kind is None:  # a block, or a web token
        return True
    if kind == "password":
        return not _PLACEHOLDER.fullmatch(value)
    if kind == "shape":
        return _MIXED.search(value) is not None
    if (
        kind == "option"
        or found.re in _STRONG.values()
        or _STRENGTHENING.search(lower, max(found.start() - 9, 0), found.start())
    ):
        return _could_be_one(value)
    before = lower[found.start() - 1 : found.start()]
    if found.re in _OF_DATA.values():  # "expected key: 'X5J9K2Q8'" is what a task is about
        is_long = len(value) >= _LEAST_CHARS_OF_A_KEY and not before.isalpha()
        return (is_long or before in ("?", "&")) and _looks_random(value)
    return not before.isalpha() and _looks_random(value)


_PLACEHOLDER = re.compile(r"[*.•_x-]+|\$\{?[A-Z_]+\}?|\{+[\w.!:-]*\}+|%\(?\w*\)?s|\[hidden\]")
# Before a key, a token or a secret.
_STRENGTHENING = re.compile(
    r"(?:api[ _-]?|(?:access|account|auth|client|private|refresh|secret|session)[_-]?)$"
)

_AFTER_NAME = (
    r"""s?(?:[_-][a-z]{1,12})?(?: provided)?\\*["']?\s{0,4}[=:]\s{0,4}(?:(?:bearer|basic|token)\s{1,4})?"""
)
_VALUE = (
    r"""(?:b?\\*"(?P<double>[^"\n]{4,1000}?)(?=\\*"|\n|\Z)|b?\\*'(?P<single>[^'\n]{4,1000}?)(?=\\*'|\n|\Z)"""
    r"""|(?P<bare>[^\s"'`,;&<>(){}\[\]\\]{6,500}+)(?![(\[]))"""
)


def _named(name: str) -> re.Pattern[str]:
    return re.compile(f"{name}{_AFTER_NAME}{_VALUE}", re.IGNORECASE)


def _shape(shape: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?P<shape>{shape})")


_SCHEME = re.compile(r"(?:bearer|basic)\s{1,4}(?P<scheme>[\w.~+/=-]{8,}+)", re.IGNORECASE)
_STRONG = {name: _named(name) for name in ("password", "passwd", "passphrase", "authorization")}

# An argument of a command, by itself or in a list of them.
_OPTIONS = {
    f"--{name}": re.compile(
        rf"""--{name}s?(?:\s{{1,4}}|["'],\s{{0,4}}["'])(?P<option>[^\s"'`,;-][^\s"'`,;]{{5,500}}+)""",
        re.IGNORECASE,
    )
    for name in (
        *("password", "passwd", "passphrase", "secret", "token"),
        *(f"{kind}-{name}" for kind in ("access", "api", "auth", "secret") for name in ("key", "token")),
    )
}

# What data has too: by themselves they name a credential only before a long value, or in an address.
_OF_DATA = {name: _named(name) for name in ("key", "token")}
_NAMED = _STRONG | _OF_DATA | {name: _named(name) for name in ("secret", "credential", "pwd")}

# What, in lower case, a credential begins with or follows that is known by what it looks like or is called;
# by a sign that it needs too, so that most texts are looked through for a few of them only.
_BY_NEED: dict[str, dict[str, re.Pattern[str]]] = {
    "": {
        **dict.fromkeys(("bearer ", "basic "), _SCHEME),
        **dict.fromkeys(("akia", "asia"), _shape(r"A[KS]IA[A-Z0-9]{16}")),
        "aiza": _shape(r"AIza[\w-]{30,}+"),
    },
    "=": _NAMED,
    ":": {
        **_NAMED,
        "://": re.compile(r"://[^\s/:@\"'<>`]{0,200}:(?P<password>[^\s/\"'<>`]{1,500})@"),
    },
    ".": {
        "eyj": re.compile(r"(?<![\w-])eyJ[\w-]{10,}+\.[\w-]{4,}+(?:\.[\w-]*+)?"),  # a JSON web token
        "ya29.": _shape(r"ya29\.[\w-]{20,}+"),
        "sg.": _shape(r"SG\.[\w-]{16,}+\.[\w-]{16,}+"),
    },
    "-": {
        **_OPTIONS,
        "-----begin": re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        "sk-": _shape(r"sk-[\w-]{16,}+"),
        "xox": _shape(r"xox[a-z]-[\w-]{10,}+"),
        **{mark: _shape(rf"{mark}[\w-]{{10,}}+") for mark in ("glpat-", "nvapi-", "pypi-", "xai-")},
    },
    "_": {
        **{mark: _shape(rf"{mark}(?:live|test)_[A-Za-z0-9]{{16,}}+") for mark in ("sk_", "rk_")},
        **{
            mark: _shape(rf"{mark}[A-Za-z0-9_]{{20,}}+")
            for mark in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "gsk_", "hf_", "npm_")
        },
    },
}
_MARKS_BY_NEED = tuple((needed, tuple(marks)) for needed, marks in _BY_NEED.items())
_MARKS = {mark: pattern for marks in _BY_NEED.values() for mark, pattern in marks.items()}


class _Redacting(logging.Filter):
    """Redacts what this package logs, the one place where its log lines leave."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        clean = redacted(message)
        if clean != message:
            record.msg, record.args = clean, None
        if record.exc_info and not record.exc_text:  # which handlers write instead
            record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
        return True


logging.getLogger("skynet_adapters").addFilter(_Redacting())
