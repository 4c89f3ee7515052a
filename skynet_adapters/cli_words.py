"""What the library says to a caller in Python, in the words of the command line."""

import ast
import dataclasses
import re
import shlex
from typing import Any, cast

from .contract_report import Check, ContractReport
from .judge_llm import MEND_OF_NO_MODEL

__all__ = ["in_options", "report_in_options"]

# Arguments of `load_cases`, `check_contract` and `Metric` that `check` has as options.
_ARGUMENT = "input|expected|id|metric_lm|reflection_lm|score_range|timeout"

# What text of the user's may hold by chance, such as `f(input=x)`, matches none of these.
_CALL = re.compile(r"load_cases\((?:'[^']*'|\"[^\"]*\"|\w+), ((?:[^()]|\([^()]*\))*)\)")
_LITERAL = re.compile(rf"(?<![\w'\"])({_ARGUMENT})=(\{{[^{{}}]*\}}|\[[^\[\]]*\]|'[^']*'|\"[^\"]*\")")
_REFUSED = re.compile(rf"^({_ARGUMENT})=(.*?)(?= cannot be used: )", re.DOTALL)
_NAMED = re.compile(rf"(?<![\w'\"])({_ARGUMENT})=(?=\.\.\.|[\s.,:;)]|$)")

_IN_PYTHON = "call check_contract(metric, cases, run) in Python"
# What has another way of saying it, first.
_PHRASES = {
    MEND_OF_NO_MODEL: "choose one with --metric-lm NAME",
    'metric_lm="openai/gpt-4.1-mini", or set_models(metric_lm=...)': "--metric-lm openai/gpt-4.1-mini",
    "metric_lm=...": "--metric-lm NAME",
    "score_range=(low, high)": "--score-range LOW HIGH",
    'it must be a dspy.LM, a model\'s name such as "openai/gpt-4.1-mini", or a function of a list of '
    "messages that gives a text": 'give a model\'s name, such as "openai/gpt-4.1-mini"',
    "; None for no limit": "",
    "; expected=[] leaves it out": "",
    "run= is not given": "the command line has no run",
    "give run=, or cases with an expected value": f"name the column with --expected, or {_IN_PYTHON}",
    "give run= (and artifact=)": _IN_PYTHON,
    "give run=": _IN_PYTHON,
    "load_cases: ": "",
}


def in_options(text: str) -> str:
    """Say in options what a message says in arguments.

    Args:
        text: A message of this package.

    Returns:
        The message for who typed a command.

    Example:
        >>> in_options("There is no column 'txt', which input= asks for.")
        "There is no column 'txt', which --input asks for."
        >>> in_options("Map them: load_cases('a.csv', input=['a', 'b'], expected={'label': 'team'})")
        'Map them: --input a --input b --expected label=team'
    """
    for phrase, words in _PHRASES.items():
        text = text.replace(phrase, words)
    text = _LITERAL.sub(_literal_as_options, _CALL.sub(r"\1", text))
    text = _REFUSED.sub(lambda refused: f"{_option(refused[1])} {refused[2]}", text)
    return re.sub(r",(?= --\w)", "", _NAMED.sub(_named_as_option, text))


def report_in_options(report: ContractReport) -> ContractReport:
    """Say in options what a report says in arguments; what the metric itself said stays."""
    return dataclasses.replace(report, checks=tuple(_check_in_options(check) for check in report.checks))


def _check_in_options(check: Check) -> Check:
    is_ours = check.status == "not tried" or check.name in ("Models", "Measurements", "Time")
    seen = in_options(check.seen) if is_ours else check.seen
    for phrase in (MEND_OF_NO_MODEL, "raise timeout= (at most"):
        seen = seen.replace(phrase, in_options(phrase))
    return dataclasses.replace(check, seen=seen, mend=in_options(check.mend))


def _option(argument: str) -> str:
    return f"--{argument.replace('_', '-')}"


def _literal_as_options(match: re.Match[str]) -> str:
    try:
        value: Any = ast.literal_eval(match[2])
    except (SyntaxError, ValueError):
        return match[0]
    if isinstance(value, dict):
        columns = [f"{field}={column}" for field, column in cast("dict[str, Any]", value).items()]
    else:
        columns = cast("list[str]", [value] if isinstance(value, str) else value)
    return " ".join(f"{_option(match[1])} {shlex.quote(str(column))}" for column in columns)


def _named_as_option(match: re.Match[str]) -> str:
    return _option(match[1]) + (" " if match.string.startswith("...", match.end()) else "")
