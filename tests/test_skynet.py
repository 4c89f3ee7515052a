"""The helper module of the platform, as far as it goes."""

import importlib

import pytest


@pytest.mark.parametrize("name", ["llm", "reward", "observation", "service_cost", "Image"])
def test_a_helper_that_is_not_here_yet_says_so_when_a_metric_imports_it(name):
    with pytest.raises(
        ImportError, match=rf"skynet\.{name} is a helper of the Skynet platform .* meanwhile, "
    ):
        exec(f"from skynet import {name}", {})


def test_a_name_that_is_no_helper_is_an_ordinary_attribute_error():
    assert not hasattr(importlib.import_module("skynet"), "anything")
