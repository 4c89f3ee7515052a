"""The command line: `skynet-adapters`, which is also `python -m skynet_adapters`."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO, cast

from .errors import DefinitionError, MetricBroken, SkynetAdaptersError
from .options import near_match

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; `None`: those of this process, which is the
            command's own: what a metric prints goes to stderr until it ends.

    Returns:
        The exit code: 0 when the command did its work, 1 when `check` found a metric that does not
        keep the contract or could not call it, 2 for an error that the message on stderr explains, 130
        after Ctrl-C.

    Raises:
        SystemExit: `--help` or `--version` was asked for, or the arguments are wrong.
    """
    arguments = _parser().parse_args(argv)
    arguments.is_own_process = argv is None
    command = cast("Callable[[argparse.Namespace], int]", arguments.command)
    try:
        return command(arguments)
    except (SkynetAdaptersError, MetricBroken) as error:
        from .cli_words import in_options  # here, so that `--help` is quick

        print(f"skynet-adapters: error: {in_options(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return 0
    except KeyboardInterrupt:
        print("skynet-adapters: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="skynet-adapters",
        description="One metric, score(input, output, expected), for DSPy and GEPA.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_check(commands)
    _add_demo(commands)
    return parser


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # pyright: ignore[reportPrivateUsage]
    check = commands.add_parser(
        "check",
        help="try a metric's file on three cases, and say what to mend",
        description="Load a metric's file and try it on the first three cases that have an expected value, "
        "with that as the output: whether it returns what optimisers read, how long it takes, whether a "
        "right answer scores above a wrong one, and whether the feedback says something. The exit code is 0 "
        "when nothing failed, 1 when something did or no case has an expected value, 2 when the file or the "
        "cases cannot be read.",
    )
    check.add_argument(
        "metric", metavar="METRIC.py", help="the file that holds score(input, output, expected)"
    )
    check.add_argument(
        "--cases", required=True, metavar="FILE", help="cases, in a .jsonl, .json or .csv file"
    )
    for part, example in (("input", "message=text"), ("expected", "label")):
        check.add_argument(
            f"--{part}",
            action="append",
            metavar="COLUMN",
            help=f"a column that is a field of {part}, such as {example}; may stand several times "
            f'(default: the records\' own "{part}")',
        )
    check.add_argument(
        "--id",
        metavar="COLUMN",
        help='a column of ids (default: the records\' own "id", else their positions)',
    )
    check.add_argument("--metric-lm", metavar="NAME", help="the model that skynet.llm asks, as DSPy names it")
    check.add_argument(
        "--reflection-lm",
        metavar="NAME",
        help="the model that will write the candidates; asked without --metric-lm",
    )
    check.add_argument(
        "--score-range",
        nargs=2,
        type=float,
        metavar=("LOW", "HIGH"),
        help="the scale of the scores, which normalises them to 0..1 (default: they pass as they are)",
    )
    check.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for one call of the metric, at most 600 (default: %(default)g)",
    )
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> int:
    from .cases import load_cases
    from .cli_words import report_in_options
    from .contract import check_contract

    if not Path(arguments.metric).is_file():
        meant = near_match(Path(arguments.metric).name, _python_files(Path(arguments.metric).parent))
        mend = meant or "; give the metric's file, metric.py"
        raise DefinitionError(f"{arguments.metric}: there is no such file{mend}")
    cases = load_cases(
        arguments.cases,
        input=_columns(arguments.input),
        expected=_columns(arguments.expected),
        id=arguments.id,
    )
    score_range: Any = None if arguments.score_range is None else tuple(arguments.score_range)
    with _stdout_of_its_own(for_good=arguments.is_own_process) as out:
        report = report_in_options(
            check_contract(
                arguments.metric,
                cases,
                metric_lm=arguments.metric_lm,
                reflection_lm=arguments.reflection_lm,
                timeout=arguments.timeout,
                score_range=score_range,
            )
        )
        if hasattr(out, "reconfigure"):  # feedback in a language that the terminal cannot show
            out.reconfigure(errors="backslashreplace")
        text = json.dumps(report.to_dict(), ensure_ascii=False, indent=2) if arguments.json else str(report)
        if out is not None:
            print(text, file=out, flush=True)
    return 0 if report.passed else 1


def _python_files(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if path.suffix == ".py"]
    except OSError:
        return []


@contextlib.contextmanager
def _stdout_of_its_own(for_good: bool) -> Generator[Any]:
    """Give what is stdout now, and turn to stderr what anything else prints, so that JSON stays JSON.

    What it gives is `None` where stdout is closed.

    Args:
        for_good: Also what is printed when the process ends, or by threads that outlive the block.
    """
    out, saved = sys.stdout, None
    try:
        is_descriptor_1 = out.fileno() == 1
    except (AttributeError, ValueError):  # stdout was closed or replaced, as in a notebook
        is_descriptor_1 = False
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        if is_descriptor_1:  # which child processes and C code write to
            out.flush()
            saved = os.dup(1)
            _turn(1, 2)
        try:
            yield out if saved is None else stack.enter_context(open(saved, "w", encoding=out.encoding))
        finally:
            if saved is not None and not for_good:
                out.flush()  # what was printed by way of another reference to it
                _turn(1, saved)


def _turn(descriptor: int, other: int) -> None:
    try:
        os.dup2(other, descriptor)
    except OSError:  # stderr is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _columns(given: Sequence[str] | None) -> dict[str, str] | None:
    """Read `field=column`, or `column` for a field of that name."""
    if given is None:
        return None
    pairs = [text.partition("=") for text in given]
    return {field: column or field for field, _, column in pairs}


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # pyright: ignore[reportPrivateUsage]
    demo = commands.add_parser(
        "demo",
        help="optimise a small DSPy program and plain texts with one metric; needs no key",
        description="Sort support messages, with one metric throughout. The first part optimises a DSPy "
        "program: by dspy.GEPA, by BootstrapFewShotWithRandomSearch, and, as a control, by dspy.GEPA with "
        "feedback that says nothing. The second part has no program: it optimises a prompt by "
        "optimize_artifact, the same with the control's feedback, and an artifact of two texts by gepa's "
        "optimize_anything. Without --model, two scripted models stand in for real ones.",
    )
    demo.add_argument("--model", metavar="NAME", help="a model that DSPy knows, to sort the messages")
    demo.add_argument(
        "--reflection-model", metavar="NAME", help="a model to write the instructions (default: --model)"
    )
    demo.add_argument("--part", choices=("program", "texts"), help="the only part to run (default: both)")
    demo.add_argument(
        "--budget",
        type=_positive,
        default=600,
        metavar="N",
        help="rollouts that each run may spend, about (default: %(default)s)",
    )
    demo.add_argument(
        "--threads",
        type=_positive,
        default=8,
        metavar="N",
        help="rollouts at the same time (default: %(default)s)",
    )
    demo.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the split and of GEPA (default: %(default)s)",
    )
    demo.add_argument("--verbose", action="store_true", help="show the progress and logs of DSPy and GEPA")
    demo.set_defaults(command=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.reflection_model and not arguments.model:
        raise DefinitionError(
            "--reflection-model needs --model too: the stand-in cannot follow a real model's words."
        )
    # DSPy takes seconds to import, which `--help` should not.
    from .demo.report import describe
    from .demo.run import run_demo

    result = run_demo(
        model=arguments.model,
        reflection_model=arguments.reflection_model,
        part=arguments.part,
        budget=arguments.budget,
        threads=arguments.threads,
        seed=arguments.seed,
        verbose=arguments.verbose,
        progress=partial(_print_step, sys.stderr),
    )
    print(describe(result), flush=True)
    return 0


def _print_step(stream: TextIO, line: str) -> None:
    print(f"{line} ...", file=stream, flush=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _version() -> str:
    try:
        return version("skynet-adapters")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "(not installed)"
