"""Set-up that every test shares, and the example metrics beside the project."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Before DSPy is imported: its cache and LiteLLM's price list are read then.
os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="skynet-adapters-tests-")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
import pytest
from hypothesis import settings

from .waiting import Release

# No test fails because it runs slowly: what must not hang is waited for with much patience. What is generated
# is the same in every run, so that a change is judged by what it changes; `--hypothesis-profile=search` looks
# for what nobody has seen yet.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile("repeatable")

# A run in the background of a script ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

atexit.register(shutil.rmtree, os.environ["DSPY_CACHEDIR"], ignore_errors=True)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


@pytest.fixture(autouse=True)
def _fresh_dspy_settings() -> Iterator[None]:
    """Each test sees DSPy as it is after import."""
    with dspy.context(lm=None, trace=[], callbacks=[], track_usage=False):
        yield


@pytest.fixture
def released() -> Iterator[Release]:
    """What hangs in a test hangs until this is set; nothing may wait for it as long as it hangs at most."""
    event = Release()
    yield event
    waited_in_vain = event.waited_in_vain
    event.set()
    assert not waited_in_vain, "somebody waited for what hangs, and not only for as long as was allowed"


@pytest.fixture
def shared_folder() -> Path:
    """The folder of example metrics and data beside the project."""
    if not SHARED.is_dir():
        message = f"needs the folder {SHARED.name} beside the project"
        pytest.fail(message) if os.environ.get("SKYNET_REQUIRE_SHARED") else pytest.skip(message)
    return SHARED


@pytest.fixture
def shared_metric(shared_folder: Path) -> Callable[[str], Any]:
    """Load `score` from one of the example metrics."""

    def load(name: str) -> Any:
        path = shared_folder / "metrics" / f"{name}.py"
        module = ModuleType(name)
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
        return module.score

    return load
