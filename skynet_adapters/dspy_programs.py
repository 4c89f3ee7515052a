# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A DSPy program as an artifact and a `run`, for GEPA runs outside `dspy.GEPA`.

Built around dspy 3.4.1.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import dspy

from .artifacts import to_candidate
from .dspy_fields import BESIDE_THE_ANSWER, Fields, fields_of, reader
from .errors import DefinitionError, ProgramFailedError
from .score import shown

__all__ = ["program_artifact", "program_run", "to_program"]


def program_artifact(program: dspy.Module) -> dict[str, str]:
    """Give a program's instructions as an artifact, for a GEPA run outside `dspy.GEPA`.

    Args:
        program: Any DSPy program.

    Returns:
        Predictor name to instruction, as `program.named_predictors()` names them.

    Raises:
        DefinitionError: It is no `dspy.Module`, or has no predictor.

    Example:
        >>> import dspy
        >>> program_artifact(dspy.Predict(dspy.Signature("question -> answer", "Be brief.")))
        {'self': 'Be brief.'}
    """
    _check_program(program, "a text or a dict of texts is an artifact as it is")
    predictors = cast("list[tuple[str, Any]]", program.named_predictors())
    artifact = {name: predictor.signature.instructions for name, predictor in predictors}
    if not artifact:
        raise DefinitionError(f"{shown(program)} has no predictor, and so no instruction to optimise")
    return artifact


def to_program(artifact: Mapping[str, str], like: dspy.Module) -> dspy.Module:
    """Make a program of an artifact: a copy of `like` with these instructions.

    Args:
        artifact: Predictor name to instruction, from `program_artifact` or a GEPA run over it. DSPy
            itself drops the indentation and the empty lines around an instruction, as of a docstring.
        like: The program that the artifact came from; not changed.

    Returns:
        The copy.

    Raises:
        DefinitionError: The names are not those of the program's predictors, or a part is no text.

    Example:
        >>> import dspy
        >>> program = to_program({"self": "Be kind."}, like=dspy.Predict("question -> answer"))
        >>> program.signature.instructions
        'Be kind.'
    """
    parts = to_candidate(cast("dict[str, str]", artifact))
    made = like.deepcopy()
    predictors = cast("dict[str, Any]", dict(made.named_predictors()))
    if set(predictors) != set(parts):
        raise DefinitionError(
            f"the artifact names {sorted(parts)}, and the program's predictors are {sorted(predictors)}; "
            "use the program that program_artifact was given"
        )
    for name, predictor in predictors.items():
        predictor.signature = predictor.signature.with_instructions(parts[name])
        predictor.signature.instructions = parts[name]  # DSPy puts its own in the place of an empty one
    return made


def program_run(program: dspy.Module, *, output: Fields | None = None) -> Callable[[Any, Any], Any]:
    """Make the `run` of a DSPy program, for `as_gepa_adapter` and `as_gepa_evaluator`.

    Where `dspy.GEPA` drops a case whose program raises or whose answer does not parse, a run of this
    keeps it, with a text that says what happened.

    Args:
        program: Its instructions are the artifact, see `program_artifact`. It is taken as it is now:
            a model, demos or whatever is set on it later does not change the run.
        output: What of the prediction is the output, as for `as_dspy_metric`. `None`: its only field,
            with `reasoning` and `trajectory` left out, else a dict of its fields.

    Returns:
        A function `run(artifact, input)` that gives the output. It asks the program's own model, else
        the one that is set where it runs. `cloudpickle` takes it, with what the program holds (`pickle`
        takes no signature of DSPy).

    Raises:
        DefinitionError: `program` is no `dspy.Module`, or `output` is no field's name, list of names
            or function.

    Example:
        >>> import dspy
        >>> program = dspy.Predict("question -> answer")
        >>> artifact, run = program_artifact(program), program_run(program)
    """
    _check_program(program, "a function is a `run` as it is")
    return _ProgramRun(program, reader("output", output) or _only_answer)


def _check_program(program: Any, instead: str) -> None:
    if not isinstance(program, dspy.Module):
        raise DefinitionError(f"{shown(program)} is no dspy.Module; {instead}")


class _ProgramRun:
    """What `program_run` returns; it can be pickled for other processes, the copies in it stay behind."""

    def __init__(self, program: Any, read: Callable[[Any], Any]) -> None:
        # A copy: old candidates are not judged anew, so one that changes would be judged by two measures.
        self._program = program.deepcopy()
        self._read = read
        # A copy of the program for each candidate, not for each case.
        self._made = functools.lru_cache(maxsize=16)(self._make)

    # Of an optional field `None` is an answer, which is judged as DSPy's Evaluate does.
    none_is_an_output: ClassVar = True

    def fault_of_artifact(self, artifact: Any) -> str | None:
        """Tell what keeps an artifact from being one of this program; `None` where nothing does."""
        names = [name for name, _ in self._program.named_predictors()]
        if isinstance(artifact, Mapping) and set(artifact) == set(names):
            return None
        what = f"has {list(artifact)}" if isinstance(artifact, Mapping) else f"is {shown(artifact)}"
        return (
            f"program_run(program) runs a dict with an instruction for each of the program's predictors, "
            f"{names}, and the artifact {what}: pass artifact=program_artifact(program)"
        )

    def _make(self, parts: tuple[tuple[str, str], ...]) -> Any:
        return to_program(dict(parts), self._program)

    def __reduce__(self) -> Any:
        return _ProgramRun, (self._program, self._read)

    def __call__(self, artifact: Mapping[str, str], input: Mapping[str, Any]) -> Any:
        pred = self._made(tuple(artifact.items()))(**input)
        if pred is None:
            raise ProgramFailedError("the program returned nothing")
        return self._read(pred)


def _only_answer(pred: Any) -> Any:
    if not isinstance(pred, dspy.Prediction):
        return pred
    fields = fields_of(pred)
    own = [name for name in fields if name not in BESIDE_THE_ANSWER]
    return fields[own[0]] if len(own) == 1 else dict(fields)
