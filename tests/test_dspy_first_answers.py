"""How long a first answer took is kept beside it in DSPy's cache, which otherwise stays as it is."""

import asyncio
import subprocess
import sys

import dspy
import pytest

from skynet_adapters import as_dspy_metric, measuring, observation

from .model_server import ModelServer, in_fields

CASE = dspy.Example(question="case-1", answer="A").with_inputs("question")


def test_reading_the_names_of_the_package_leaves_dspy_as_it_is():
    code = """
from dspy.clients import execution
before = execution.execute, execution.aexecute
import skynet_adapters
for name in skynet_adapters.__all__:
    getattr(skynet_adapters, name)
print((execution.execute, execution.aexecute) == before)
skynet_adapters.as_dspy_metric(lambda input, output, expected=None: (1.0, {"feedback": "Fine."}))
timed = execution.execute
print(timed == before[0])
with skynet_adapters.measuring():
    print(execution.execute is timed)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "False", "True"]


class Picky(type(dspy.cache)):
    """A cache of a user's own that keeps nothing but answers, and fails on what else there is."""

    def __init__(self):
        super().__init__(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)

    def put(self, request, value, *more, **options):
        if isinstance(value, float):
            raise TypeError("not an answer")
        super().put(request, value, *more, **options)

    def get(self, request, *more, **options):
        if "of" in request:
            raise TypeError("not an answer")
        return super().get(request, *more, **options)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_cache_that_fails_to_keep_a_time_loses_no_answer(way, monkeypatch):
    read, predict = [], dspy.Predict("question -> answer")

    def score(input, output, expected=None):
        read.append(observation())
        return 1.0, {"feedback": "Read."}

    metric = as_dspy_metric(score)
    monkeypatch.setattr(dspy, "cache", Picky())
    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm(cache=True)), measuring():
        for _ in range(2):
            given = (
                predict(question="case-1") if way == "sync" else asyncio.run(predict.acall(question="case-1"))
            )
            metric(CASE, given)
    assert len(server.served) == 1
    assert [(seen.model_calls, seen.cached_calls) for seen in read] == [(1, 0), (1, 1)]
