"""The command line: `skynet-adapters`, which is also `python -m skynet_adapters`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO, cast

from .errors import DefinitionError, MetricBroken, SkynetAdaptersError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; `None`: those of this process.

    Returns:
        The exit code: 0 when the command did its work, 2 for an error that the message on stderr
        explains, 130 after Ctrl-C.

    Raises:
        SystemExit: `--help` or `--version` was asked for, or the arguments are wrong.
    """
    arguments = _parser().parse_args(argv)
    command = cast("Callable[[argparse.Namespace], int]", arguments.command)
    try:
        return command(arguments)
    except (SkynetAdaptersError, MetricBroken) as error:
        print(f"skynet-adapters: error: {error}", file=sys.stderr)
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
        description="One metric, score(input, output, expected), for DSPy, GEPA and evaluation tools.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_demo(commands)
    return parser


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:  # pyright: ignore[reportPrivateUsage]
    demo = commands.add_parser(
        "demo",
        help="optimise a small DSPy program with one metric; needs no key",
        description="Optimise a program that sorts support messages, with one metric: by dspy.GEPA, by "
        "BootstrapFewShotWithRandomSearch, and, as a control, by dspy.GEPA with feedback that says nothing. "
        "Without --model, two scripted models stand in for real ones.",
    )
    demo.add_argument("--model", metavar="NAME", help="a model that DSPy knows, to run the program")
    demo.add_argument(
        "--reflection-model", metavar="NAME", help="a model to write the instructions (default: --model)"
    )
    demo.add_argument(
        "--budget",
        type=_positive,
        default=600,
        metavar="N",
        help="rollouts that each of the three runs may spend, about (default: %(default)s)",
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
    demo.add_argument("--verbose", action="store_true", help="show DSPy's own progress and logs")
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
