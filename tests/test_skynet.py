"""The helper module of the platform: which names it has, what they are, and what loads with them."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import skynet_adapters
from skynet_adapters import DefinitionError
from skynet_adapters.sibling_imports import check_skynet

ROOT = Path(skynet_adapters.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "module"),
    [("llm", "judge_llm"), ("observation", "measure"), ("reward", "rewards"), ("service_cost", "measure")],
)
def test_a_helper_is_the_one_of_the_package(name, module):
    names = {}
    exec(f"from skynet import {name}", names)
    assert names[name] is getattr(importlib.import_module(f"skynet_adapters.{module}"), name)
    assert names[name] is getattr(skynet_adapters, name)


def test_an_image_is_gepas_own_so_that_it_reaches_a_reflection_model_as_an_image():
    from gepa.image import Image

    names = {}
    exec("from skynet import Image", names)
    assert names["Image"] is Image


def test_an_editor_is_told_the_names():
    assert {"llm", "observation", "reward", "service_cost", "Image"} <= set(
        dir(importlib.import_module("skynet"))
    )


def test_a_name_that_is_no_helper_is_an_ordinary_attribute_error():
    assert not hasattr(importlib.import_module("skynet"), "anything")


@pytest.mark.parametrize("names", ["llm, observation, reward, service_cost", "Image"])
def test_importing_a_helper_loads_no_dspy(names):
    code = f"import sys; from skynet import {names}; assert 'dspy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_helper_module_is_found_to_be_the_right_one():
    check_skynet()


def test_another_module_of_that_name_is_named_with_the_mend(tmp_path, monkeypatch):
    (tmp_path / "skynet.py").write_text("def connect(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "skynet")
    with pytest.raises(
        DefinitionError, match=r"another module .* from .*skynet\.py; uninstall the distribution named skynet"
    ):
        check_skynet()


def test_a_helper_module_that_is_not_there_is_named_with_the_mend(monkeypatch):
    monkeypatch.setitem(sys.modules, "skynet", None)
    with pytest.raises(DefinitionError, match=r"cannot be imported .* install skynet-adapters anew"):
        check_skynet()
