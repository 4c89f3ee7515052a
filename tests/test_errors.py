"""The error tree: what one `except` catches, and what no `except Exception` may catch."""

import copy
import pickle

import pytest

from skynet_adapters import errors
from skynet_adapters.errors import (
    DataError,
    DefinitionError,
    MetricBroken,
    MetricError,
    MetricReturnError,
    MetricTimeoutError,
    ProgramFailedError,
    ReflectionBroken,
    ReflectionError,
    SkynetAdaptersError,
)

ORDINARY = [
    DataError,
    DefinitionError,
    MetricError,
    MetricReturnError,
    MetricTimeoutError,
    ProgramFailedError,
    ReflectionError,
    SkynetAdaptersError,
]
STOPPING = [MetricBroken, ReflectionBroken]


@pytest.mark.parametrize("kind", ORDINARY)
def test_one_except_clause_catches_every_ordinary_error(kind):
    with pytest.raises(SkynetAdaptersError, match="what happened"):
        raise kind("what happened")


@pytest.mark.parametrize("kind", [MetricReturnError, MetricTimeoutError, ProgramFailedError])
def test_every_reason_for_a_missing_judgement_is_a_metric_error(kind):
    assert issubclass(kind, MetricError)


@pytest.mark.parametrize("kind", [DataError, DefinitionError])
def test_what_is_found_before_a_run_is_no_metric_error(kind):
    assert not issubclass(kind, MetricError)


@pytest.mark.parametrize("kind", STOPPING)
def test_what_stops_a_run_passes_through_except_exception(kind):
    assert issubclass(kind, BaseException)
    assert not issubclass(kind, Exception)


def test_the_module_exports_every_error_that_it_defines():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert set(errors.__all__) == defined
    assert defined == {kind.__name__ for kind in [*ORDINARY, *STOPPING]}


@pytest.mark.parametrize("name", [kind.__name__ for kind in [*ORDINARY, *STOPPING]])
def test_the_docstring_draws_every_error(name):
    assert name in (errors.__doc__ or "")


@pytest.mark.parametrize("kind", [*ORDINARY, *STOPPING])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_pickle_and_deepcopy_with_its_text(kind, copied):
    twin = copied(kind("what happened"))
    assert type(twin) is kind
    assert str(twin) == "what happened"


def test_every_error_can_be_imported_from_the_package():
    import skynet_adapters

    for name in errors.__all__:
        assert getattr(skynet_adapters, name) is getattr(errors, name)
