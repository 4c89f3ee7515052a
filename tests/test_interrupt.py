"""Ctrl-C ends a program at once, whatever is under way, and what was paid for can be used."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skynet_adapters import Metric
from skynet_adapters.deadline import call_within, start, wait_unless_ended

ROOT = Path(__file__).parents[1]

# Everything that is asked here hangs, and says so before.
PROGRAM = """
import asyncio, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

def hang(*_):
    print("under way", flush=True)
    time.sleep(600)

async def hang_async(*_):
    print("under way", flush=True)
    await asyncio.sleep(600)

def hanging(input, output, expected=None):
    hang()

async def hanging_async(input, output, expected=None):
    await hang_async()

def fair(input, output, expected=None):
    return 0.5, {"feedback": "Fair."}

def answer(artifact, input):
    return "a"

class Hang(BaseHTTPRequestHandler):
    def do_POST(self):
        hang()

    def log_message(self, *_): ...

def hanging_lm():
    import dspy
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hang)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    return dspy.LM("openai/gpt-4o-mini", api_base=address, api_key="none", cache=False, num_retries=0)

def judge(input, output, expected=None):
    from skynet import llm
    llm("Right?", input=output)

cases = [{"input": {"n": n}, "expected": {"a": "b"}} for n in range(6)]

class Quiet:
    def log(self, message): ...

def optimize(score, run=answer, reflection_lm=lambda prompt: "x", **options):
    import gepa
    from skynet_adapters import as_gepa_adapter, as_gepa_dataset, as_reflection_lm

    with as_gepa_adapter(score, run, artifact="A", **options) as adapter:
        gepa.optimize(
            adapter.seed_candidate,
            trainset=as_gepa_dataset(cases),
            valset=as_gepa_dataset(cases),
            adapter=adapter,
            reflection_lm=as_reflection_lm(reflection_lm),
            max_metric_calls=60,
            run_dir=sys.argv[1],
            logger=Quiet(),
        )

def evaluate(score, **options):
    import dspy
    from skynet_adapters import as_dspy_metric

    class Program(dspy.Module):
        def forward(self, n):
            return dspy.Prediction(a="a")

    devset = [dspy.Example(n=n, a="b").with_inputs("n") for n in range(20)]
    dspy.Evaluate(devset=devset, metric=as_dspy_metric(score, **options), num_threads=4)(Program())

def optimize_in_dspy():
    import dspy
    from skynet_adapters import as_dspy_metric

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.predict = dspy.Predict("n -> a")

        def forward(self, n):
            return dspy.Prediction(a="a")

    devset = [dspy.Example(n=n, a="b").with_inputs("n") for n in range(6)]
    dspy.GEPA(
        metric=as_dspy_metric(hanging), reflection_lm=dspy.LM("openai/x"), max_metric_calls=30, num_threads=4
    ).compile(Program(), trainset=devset, valset=devset)

def optimize_any(**evaluator):
    from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

    reflection = ReflectionConfig(reflection_lm=lambda prompt: "x")
    config = GEPAConfig(engine=EngineConfig(max_metric_calls=30), reflection=reflection)
    optimize_anything("A", dataset=cases, config=config, **evaluator)

from skynet_adapters import *
"""

UNDER_WAY = {
    "a metric": "Metric(hanging).score_case({}, 'a')",
    "an async metric": "Metric(hanging_async, timeout=None).score_case({}, 'a')",
    "a call that waits for another one": """
        metric = Metric(hanging, memo="content", timeout=600)
        ask = lambda: metric.score_case({}, "a")
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads: thread.start()
        ask()
    """,
    "Evaluate": "evaluate(hanging)",
    "Evaluate with a judge": "evaluate(judge, metric_lm=hanging_lm())",
    "dspy.GEPA": "optimize_in_dspy()",
    "gepa.optimize, at the metric": "optimize(hanging)",
    "gepa.optimize, at an async metric": "optimize(hanging_async, timeout=None)",
    "gepa.optimize, at run": "optimize(fair, hang)",
    "gepa.optimize, at the judge": "optimize(judge, metric_lm=hanging_lm())",
    "gepa.optimize, at the reflection model": "optimize(fair, reflection_lm=hanging_lm())",
    "gepa.optimize, at an async reflection model": "optimize(fair, reflection_lm=hang_async)",
    "gepa.optimize in a thread": """
        thread = threading.Thread(target=optimize, args=(hanging,), kwargs={"timeout": 600})
        thread.start()
        while thread.is_alive(): thread.join(0.1)
    """,
    "gepa.optimize in a thread, at run": """
        thread = threading.Thread(target=optimize, args=(fair, hang), kwargs={"run_timeout": 600})
        thread.start()
        while thread.is_alive(): thread.join(0.1)
    """,
    "optimize_artifact": """
        optimize_artifact("A", answer, hanging, cases, reflection_lm=lambda prompt: "x", max_metric_calls=60)
    """,
    "optimize_anything with a batch": "optimize_any(batch_evaluator=as_gepa_evaluator(hanging).batch)",
    "check_contract": "check_contract(hanging, cases, lambda input: 'a')",
}


def started(tmp_path, body, *arguments):
    path = tmp_path / "program.py"
    path.write_text(body, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "DSPY_CACHEDIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process):
    """Send Ctrl-C once it is under way; gives what it said at the end."""
    try:
        while "under way" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=200)
    finally:
        process.kill()
    return said


@pytest.mark.parametrize("body", UNDER_WAY.values(), ids=UNDER_WAY)
def test_control_c_ends_the_program(tmp_path, body):
    process = started(tmp_path, PROGRAM + textwrap.dedent(body), str(tmp_path / "run"))
    said = interrupted(process)
    assert process.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said


RUN = """
import sys, time
from skynet_adapters import optimize_artifact

calls, written = 0, 0

def run(artifact, input):
    return f"{artifact} {input['n']}"

def score(input, output, expected=None):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):  # no global: its value would make this another metric
        print("under way", flush=True)
        time.sleep(600)
    with open(sys.argv[1] + "-calls", "a") as log:
        log.write(output + "\\n")
    return min(len(output) / 40, 1.0), {"feedback": f"{len(output)} letters."}

def reflect(prompt):
    global written
    written += 1
    return "Guess" + " well" * written

class Quiet:
    def log(self, message): ...

best = optimize_artifact(
    "Guess.", run, score, [{"input": {"n": n}} for n in range(4)], reflection_lm=reflect, max_metric_calls=60,
    run_dir=sys.argv[1], max_workers=1, memo="content", memo_dir=sys.argv[1] + "-memo", logger=Quiet(),
)
print(len(best.result.candidates), calls)
"""


@pytest.mark.parametrize("stopped_at", [3, 20])
def test_a_run_that_was_ended_goes_on_and_pays_no_judge_twice(tmp_path, stopped_at):
    folder = str(tmp_path / "run")
    process = started(tmp_path, RUN, folder, str(stopped_at))
    assert "KeyboardInterrupt" in interrupted(process)
    paid = Path(f"{folder}-calls").read_text().splitlines()
    assert len(paid) == stopped_at - 1
    process = started(tmp_path, RUN, folder, "0")
    printed, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    candidates, calls = map(int, printed.split())
    everything = Path(f"{folder}-calls").read_text().splitlines()
    assert len(everything) == len(paid) + calls
    assert len(set(everything)) == len(everything)
    assert candidates > 1


@contextlib.contextmanager
def ended():
    """As after a Ctrl-C that nobody caught; pytest itself sets and deletes what tells of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "last_type", KeyboardInterrupt, raising=False)
        patch.delattr(sys, "ps1", raising=False)
        yield patch


def test_nothing_is_begun_and_nothing_waited_for_after_a_program_has_ended():
    asked = []
    with ended():
        with pytest.raises(KeyboardInterrupt):
            call_within(5.0, lambda: asked.append(1))
        with pytest.raises(KeyboardInterrupt):
            start(lambda: asked.append(1))
        with pytest.raises(KeyboardInterrupt):
            wait_unless_ended(lambda seconds: False, None)
    assert asked == []


def test_at_a_prompt_calls_go_on_after_control_c():
    with ended() as patch:
        patch.setattr(sys, "ps1", "In : ", raising=False)
        assert call_within(5.0, lambda: 1) == 1
        assert Metric(lambda input, output: (1.0, {"feedback": "Good."})).score_case({}, "a").value == 1.0
        assert not wait_unless_ended(lambda seconds: False, 0.01)
