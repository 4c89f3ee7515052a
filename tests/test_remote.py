"""Cases that run in other processes: through a process pool, and on a local cluster of Dask."""

import functools
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import distributed
import dspy
import pytest

import skynet_adapters.gepa_rollouts
from skynet_adapters import (
    Case,
    DefinitionError,
    MetricError,
    as_gepa_adapter,
    as_gepa_evaluator,
    optimize_artifact,
    program_artifact,
    program_run,
)
from tests.scripted import chat
from tests.waiting import PATIENCE

# One worker of pytest for all, since the cluster takes its time to start.
pytestmark = pytest.mark.xdist_group("remote")

CASES = [Case(str(number), {"n": number}, {"label": f"L{number}"}) for number in range(8)]
HERE = os.getpid()


def score(input, output, expected=None):
    assert os.getpid() == HERE
    right = output == expected["label"]
    return (1.0 if right else 0.25), {"feedback": "Right." if right else f"Expected {expected['label']}."}


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def cluster():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as running,
        distributed.Client(running) as client,
    ):
        yield client.get_executor(pure=False)


@pytest.fixture(params=["processes", "cluster"])
def executor(request):
    return request.getfixturevalue(request.param)


def made(run, executor, metric=score, artifact="Guess.", **options):
    return as_gepa_adapter(metric, run, artifact=artifact, executor=executor, **options)


def evaluated(run, executor, cases=CASES, **options):
    adapter = made(run, executor, **options)
    return adapter.evaluate(cases, adapter.seed_candidate, capture_traces=True)


def texts(batch):
    return [trajectory.score.feedback for trajectory in batch.trajectories]


def test_a_whole_run_learns_from_cases_that_run_elsewhere(executor):
    def run(artifact, input):
        import os

        return f"L{input['n']}" if "label" in artifact and os.getpid() != HERE else "?"

    class Quiet:
        def log(self, message): ...

    best = optimize_artifact(
        "Guess.",
        run,
        score,
        CASES,
        reflection_lm=lambda prompt: "Say the label.",
        max_metric_calls=30,
        executor=executor,
        logger=Quiet(),
    )
    assert best.artifact == "Say the label."
    assert best.score == 1.0
    assert best.adapter.metric.calls > 20
    assert len(best.adapter.metric.failures) == 0


def test_faults_stay_with_their_cases_and_are_told(executor, monkeypatch):
    # Longer than what hangs: it is there that the time is up.
    monkeypatch.setattr(skynet_adapters.gepa_rollouts, "_EXECUTOR_PATIENCE_SECONDS", 600.0)

    def run(artifact, input):
        import threading
        import time

        match input["n"]:
            case 1:
                raise ValueError("no such tool")
            case 2:
                return None
            case 3:
                time.sleep(60)
            case 4:
                return threading.Lock()
            case 5:
                raise SystemExit(3)
        return f"L{input['n']}"

    batch = evaluated(run, executor, run_timeout=1.0)
    assert batch.scores == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    said = texts(batch)
    assert "It raised ValueError: no such tool (<dynamic-code>, line" in said[1]
    assert "It returned nothing." in said[2]
    assert "It did not answer within 1 s." in said[3]
    assert "Its output cannot be sent back: TypeError: cannot pickle" in said[4]
    assert "It raised SystemExit: 3" in said[5]


def test_run_may_be_async_there(executor):
    async def run(artifact, input):
        import asyncio

        await asyncio.sleep(0.01 if input["n"] else 60)
        return f"L{input['n']}"

    batch = evaluated(run, executor, CASES[:3], run_timeout=1.0)
    assert batch.scores == [0.0, 1.0, 1.0]
    assert "It did not answer within 1 s." in texts(batch)[0]


def test_classes_of_the_callers_own_travel_both_ways(executor):
    class Answer:
        def __init__(self, label):
            self.label = label

    def run(artifact, input):
        return Answer(f"L{input['n']}")

    def of_class(input, output, expected=None):
        return float(isinstance(output, Answer) and output.label == expected["label"]), {"feedback": "f"}

    assert evaluated(run, executor, metric=of_class).scores == [1.0] * 8


def test_an_input_that_cannot_travel_fails_its_case_alone(executor):
    cases = [CASES[0], Case("lock", {"n": 1, "lock": threading.Lock()}, {"label": "L1"}), CASES[2]]
    batch = evaluated(lambda artifact, input: f"L{input['n']}", executor, cases)
    assert batch.scores == [1.0, 0.0, 1.0]
    assert "The executor did not run it: TypeError: cannot pickle" in texts(batch)[1]


def test_dspys_model_goes_along(executor):
    class Engine:
        def complete(self, request):
            from dspy.lm15 import Message, Response, TextPart, Usage

            return Response(
                id=None,
                model="scripted",
                message=Message.assistant([TextPart(chat(answer="4"))]),
                finish_reason="stop",
                usage=Usage(input_tokens=1, output_tokens=1, total_tokens=2),
            )

    program = dspy.Predict("question -> answer")
    cases = [dspy.Example(question=f"2 + {n}?", label="4").with_inputs("question") for n in range(2)]
    with dspy.context(lm=dspy.LM("scripted/there", engine=Engine(), cache=False)):
        batch = evaluated(program_run(program), executor, cases, artifact=program_artifact(program))
    assert batch.scores == [1.0, 1.0]


def test_an_evaluator_runs_elsewhere_too(executor):
    def run(artifact, input):
        import os

        return f"L{input['n']}" if os.getpid() != HERE else "?"

    evaluator = as_gepa_evaluator(score, run, executor=executor, run_timeout=None)
    assert evaluator("x", CASES[3])[0] == 1.0
    assert [value for value, _ in evaluator.batch([("x", case) for case in CASES])] == [1.0] * 8


def test_a_metric_is_asked_in_the_callers_context(processes):
    lm = dspy.LM("scripted/none")
    seen = []

    def look(input, output, expected=None):
        seen.append(dspy.settings.lm is lm)
        return 1.0, {"feedback": "f"}

    with dspy.context(lm=lm):
        evaluated(lambda artifact, input: "x", processes, CASES[:2], metric=look)
    assert seen == [True, True]


def test_a_worker_that_dies_ends_the_run_where_it_breaks_the_executor():
    def run(artifact, input):
        import os

        if "boom" in artifact and input["n"] == 1:
            os._exit(1)
        return "?"

    asked = []

    class Quiet:
        def log(self, message): ...

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        with pytest.raises(
            MetricError, match=r"runs nothing any more: BrokenProcessPool.*Make a new executor"
        ):
            optimize_artifact(
                "Guess.",
                run,
                score,
                CASES[:3],
                reflection_lm=lambda prompt: asked.append(prompt) or "boom",
                max_metric_calls=60,
                executor=executor,
                logger=Quiet(),
            )
        # The next batch is refused at once, where it is handed over.
        with pytest.raises(MetricError, match="runs nothing any more: BrokenProcessPool"):
            evaluated(run, executor, CASES[:1])
    assert len(asked) == 1


def test_an_executor_that_has_been_shut_down_is_named_and_fails_no_case():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(MetricError, match=r"has been shut down: RuntimeError.*Keep it open"):
        evaluated(lambda artifact, input: "x", executor)


def test_what_run_raises_about_a_pool_of_its_own_is_a_fault_of_its_case():
    def run(artifact, input):
        from concurrent.futures import BrokenExecutor

        raise BrokenExecutor("mine")

    with ThreadPoolExecutor(1) as executor:
        batch = evaluated(run, executor, CASES[:2])
    assert batch.scores == [0.0, 0.0]
    assert all("BrokenExecutor: mine" in text for text in texts(batch))


def test_a_worker_of_dask_that_dies_fails_its_case_alone(cluster, tmp_path):
    def run(artifact, input):
        import os
        import time

        if input["n"] == 3:
            # What lies on the same worker when it dies again and again, Dask suspects as well.
            end = time.monotonic() + 60
            while len(os.listdir(tmp_path)) < 3 and time.monotonic() < end:
                time.sleep(0.01)
            os._exit(1)
        return f"L{input['n']}"

    def noted(input, output, expected=None):
        (tmp_path / str(input["n"])).touch()
        return score(input, output, expected)

    batch = evaluated(run, cluster, CASES[:4], metric=noted)
    assert batch.scores == [1.0, 1.0, 1.0, 0.0]
    assert "The executor did not run it: KilledWorker" in texts(batch)[3]


class Silent(Executor):
    """Takes cases, and never answers."""

    def __init__(self):
        self.taken = []

    def submit(self, function, /, *arguments, **named):
        self.taken.append(Future())
        return self.taken[-1]


def test_an_executor_that_no_longer_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(skynet_adapters.gepa_rollouts, "_EXECUTOR_PATIENCE_SECONDS", 0.1)
    silent = Silent()
    batch = evaluated(lambda artifact, input: "x", silent, run_timeout=0.1, max_workers=3)
    assert batch.scores == [0.0] * 8
    assert all("It did not answer within 0.1 s." in text for text in texts(batch))
    assert all(future.cancelled() for future in silent.taken)


def test_waiting_in_the_executors_queue_does_not_count(monkeypatch):
    monkeypatch.setattr(skynet_adapters.gepa_rollouts, "_EXECUTOR_PATIENCE_SECONDS", 0.1)

    def run(artifact, input):
        time.sleep(0.15)  # all of them longer than may pass without a sign, each much less
        return f"L{input['n']}"

    with ThreadPoolExecutor(1) as one_at_a_time:
        assert evaluated(run, one_at_a_time, run_timeout=1.0).scores == [1.0] * 8


class LastFirst(Executor):
    """Runs the cases of one batch one after another, the last one first."""

    def __init__(self):
        self.taken = []
        self.has_run_all = threading.Event()

    def submit(self, function, /, *arguments, **named):
        self.taken.append((Future(), functools.partial(function, *arguments, **named)))
        if len(self.taken) == len(CASES):
            threading.Thread(target=self.run, daemon=True).start()
        return self.taken[-1][0]

    def run(self):
        for future, call in reversed(self.taken):
            future.set_result(call())
        self.has_run_all.set()


def test_an_executor_gives_a_sign_while_a_judge_takes_its_time(monkeypatch):
    monkeypatch.setattr(skynet_adapters.gepa_rollouts, "_EXECUTOR_PATIENCE_SECONDS", 0.1)

    executor = LastFirst()

    def run(artifact, input):
        time.sleep(0.15)  # all of them longer than may pass without a sign, each much less
        return f"L{input['n']}"

    def slow(input, output, expected=None):
        assert executor.has_run_all.wait(PATIENCE)
        return score(input, output, expected)

    assert evaluated(run, executor, metric=slow, run_timeout=1.0).scores == [1.0] * 8


class OneAnswer(Silent):
    """Answers the first case alone."""

    def submit(self, function, /, *arguments, **named):
        future = super().submit(function, *arguments, **named)
        if len(self.taken) == 1:
            future.set_result(function(*arguments, **named))
        return future


def test_after_ctrl_c_nothing_more_is_run_elsewhere():
    def interrupted(input, output, expected=None):
        raise KeyboardInterrupt

    executor = OneAnswer()
    with pytest.raises(KeyboardInterrupt):
        evaluated(lambda artifact, input: "x", executor, metric=interrupted)
    assert len(executor.taken) == 8
    assert all(future.cancelled() for future in executor.taken[1:])


def test_a_copy_of_an_adapter_runs_its_cases_itself(processes):
    import cloudpickle

    def run(artifact, input):
        import os

        return f"L{input['n']}" if os.getpid() == HERE else "?"

    adapter = made(run, processes)
    assert adapter.evaluate(CASES[:2], adapter.seed_candidate).scores == [0.25] * 2
    copied = cloudpickle.loads(cloudpickle.dumps(adapter))
    assert copied.evaluate(CASES[:2], adapter.seed_candidate).scores == [1.0] * 2


def test_a_worker_imports_no_target_library():
    code = "import sys, skynet_adapters.remote; print({'dspy', 'gepa', 'pydantic'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_what_cannot_be_an_executor_or_travel_is_refused():
    with pytest.raises(DefinitionError, match=r"executor is 4.*client\.get_executor\(pure=False\)"):
        made(lambda artifact, input: "x", 4)
    lock = threading.Lock()
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(
            DefinitionError, match="run cannot be sent to the workers of executor=: TypeError"
        ):
            made(lambda artifact, input: lock, executor)
        with pytest.raises(DefinitionError, match="there is no run"):
            as_gepa_evaluator(score, executor=executor)


def test_a_model_that_cannot_travel_is_pointed_out(caplog):
    lm = dspy.LM("scripted/none")
    lm.lock = threading.Lock()
    with ThreadPoolExecutor(1) as executor, dspy.context(lm=lm):
        assert evaluated(lambda artifact, input: f"L{input['n']}", executor).scores == [1.0] * 8
    assert "cannot be sent to the workers of executor=: TypeError" in caplog.text
