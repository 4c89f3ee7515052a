"""Metrics and runs that are called in worker processes, in the real targets."""

import asyncio
import contextlib
import copy
import ctypes
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import dspy
import gepa
import pytest

from skynet import llm, observation, reward
from skynet_adapters import (
    Case,
    DefinitionError,
    Metric,
    MetricBroken,
    MetricError,
    MetricReturnError,
    MetricTimeoutError,
    Observation,
    as_dspy_metric,
    as_gepa_adapter,
    as_gepa_evaluator,
    as_reflection_lm,
    check_contract,
    models,
    optimize_artifact,
)
from tests.model_server import ModelServer
from tests.scripted import answering, chat, examples, reflecting, scripted_lm
from tests.waiting import PATIENCE, eventually

# One worker of pytest for all, since processes are started all the time.
pytestmark = [
    pytest.mark.xdist_group("isolation"),
    pytest.mark.skipif(sys.platform == "win32", reason="sessions and signals are those of POSIX"),
]

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to a limit")

HERE = os.getpid()
RIGHT = (1.0, {"feedback": "Right."})


@pytest.fixture
def isolated():
    """Makes a metric whose function is called in processes, which end with the test."""
    made = []

    def make(score, **options):
        made.append(Metric(score, isolation="process", **options))
        return made[-1]

    yield make
    for metric in made:
        metric.close()


def is_gone(pid):
    """Whether a process ends; what its parent has not asked about yet has ended too."""

    def has_ended():
        try:
            os.kill(pid, 0)
            is_zombie = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return is_zombie and len(os.listdir(f"/proc/{pid}/task")) == 1  # so have its threads
        except (ProcessLookupError, FileNotFoundError):
            return True

    return eventually(has_ended)


# --- what goes wrong there ------------------------------------------------------------------------


def dangerous():
    """A function that does what the output says; made here, so that it travels by value."""

    def score(input, output, expected=None):
        match output:
            case "exit":
                os._exit(7)
            case "segfault":
                ctypes.string_at(0)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                return input["nowhere"]
            case "system exit":
                raise SystemExit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "lock":
                return 1.0, {"feedback": "Right.", "lock": threading.Lock()}
            case "closes":
                os.closerange(3, 256)
        return 1.0, {"feedback": f"Right in {os.getpid()}."}

    return score


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        ("exit", MetricError, "metric 'test_isolation' ended its process, with exit code 7"),
        ("segfault", MetricError, "ended its process, by SIGSEGV (a segmentation fault)"),
        ("kill", MetricError, "ended its process, by SIGKILL"),
        ("raise", MetricError, "raised KeyError: 'nowhere' (test_isolation.py, line"),
        ("raise", MetricError, "in score: return input[\"nowhere\"]); input has ['text']"),
        ("system exit", MetricError, "raised SystemExit: 3"),
        ("interrupt", MetricError, "raised KeyboardInterrupt"),
        ("lock", MetricReturnError, "returned what cannot be sent back from its process"),
        ("closes", MetricError, "ended its process, with exit code 1"),
    ],
)
def test_what_goes_wrong_there_is_a_failure_that_says_so(isolated, output, kind, said):
    metric = isolated(dangerous())
    score = metric.score_case({"text": "a"}, output, {"b": 1})
    assert type(score.error) is kind
    assert score.value == 0.0
    assert said in score.feedback
    after = metric.score_case({"text": "a"}, "fine")
    assert after.value == 1.0
    assert str(HERE) not in after.feedback
    assert metric.calls == 2


def test_in_dspys_evaluate_a_crash_fails_its_case_and_no_neighbour():
    data = [dspy.Example(question=f"q{n}", answer="A").with_inputs("question") for n in range(16)]
    bad = {"q3": "exit", "q8": "segfault", "q9": "exit", "q14": "kill"}
    metric = as_dspy_metric(dangerous(), isolation="process", stop_after=None)
    with dspy.context(lm=answering(lambda question: bad.get(question, "fine"))):
        result = dspy.Evaluate(devset=data, metric=metric, num_threads=3, display_progress=False)(
            dspy.Predict("question -> answer")
        )
    failed = [example.question for example, _, score in result.results if score.error is not None]
    assert failed == list(bad)
    assert [score.score for example, _, score in result.results if example.question not in bad] == [1.0] * 12
    said = "\n".join(failure.text for failure in metric.failures)
    assert said.count("with exit code 7") == 2
    assert said.count("SIGSEGV") == 1
    metric.metric.close()


@only_linux
def test_the_exit_code_is_told_though_others_take_the_status_of_all_children(isolated):
    metric = isolated(dangerous(), stop_after=None)
    over = threading.Event()

    def ask_about_all():
        while not over.is_set():
            multiprocessing.active_children()  # as each start of a process does

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    askers = [threading.Thread(target=ask_about_all) for _ in range(2)]
    try:
        for asker in askers:
            asker.start()
        with ThreadPoolExecutor(4) as pool:
            scores = list(pool.map(lambda number: metric.score_case({"n": number}, "exit"), range(40)))
    finally:
        over.set()
        for asker in askers:
            asker.join()
        sys.setswitchinterval(interval)
    assert {score.feedback for score in scores if "with exit code 7" not in score.feedback} == set()


def test_a_memory_bomb_gets_a_memory_error_and_the_next_case_a_fresh_process(isolated):
    def score(input, output, expected=None):
        if output == "bomb":
            kept = []
            while True:
                kept.append(bytearray(2**24))
        return 1.0, {"feedback": f"{os.getpid()}"}

    metric = isolated(score, memory_limit_mb=200)
    before = metric.score_case({}, "fine").feedback
    bombed = metric.score_case({}, "bomb")
    assert "raised MemoryError" in bombed.feedback
    assert "its process may take 200 MB more than at its start" in bombed.feedback
    after = metric.score_case({}, "fine")
    assert after.value == 1.0
    assert after.feedback != before


@only_linux
@pytest.mark.parametrize("megabytes", [250, 600])
def test_an_input_that_does_not_fit_into_the_memory_says_the_limit(isolated, megabytes):
    metric = isolated(lambda input, output: RIGHT, memory_limit_mb=400, memo=None)
    assert metric.score_case({}, "fine").value == 1.0
    text = metric.score_case({}, "x" * (megabytes * 2**20)).feedback
    assert "its process may take 400 MB more than at its start" in text
    assert metric.score_case({}, "fine").value == 1.0


def test_what_hangs_is_killed_with_what_it_has_started(isolated, tmp_path):
    def score(input, output, expected=None):
        if output != "hang":
            return 1.0, {"feedback": "Right."}
        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pids").write_text(f"{os.getpid()} {child.pid}")
        return sum(range(10**15))  # in C code, with the interpreter lock kept

    metric = isolated(score, timeout=2)
    with ThreadPoolExecutor(3) as threads:
        hung, *others = threads.map(lambda output: metric.score_case({}, output), ["hang", "b", "c"])
    assert isinstance(hung.error, MetricTimeoutError)
    assert "did not answer within 2 s" in hung.feedback
    assert [other.value for other in others] == [1.0, 1.0]
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def write_into_the_connection(*parts):
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.sendall(b"".join(parts))


def write_half_a_message():
    write_into_the_connection(struct.pack("!i", 1_000_000), b"half")
    time.sleep(600)


def test_a_time_out_holds_for_half_a_message(isolated):
    metric = isolated(lambda input, output: write_half_a_message(), timeout=1)
    assert isinstance(metric.score_case({}, "a").error, MetricTimeoutError)


def test_a_time_out_holds_for_a_large_input_that_nobody_reads(isolated, tmp_path):
    answered, keeping = tmp_path / "answered", tmp_path / "keeping"

    def keep_the_lock():
        while not answered.exists():
            time.sleep(0.01)
        keeping.touch()
        ctypes.PyDLL(None).sleep(600)

    def score(input, output):
        if output == "first":
            threading.Thread(target=keep_the_lock, daemon=True).start()
        return RIGHT

    metric = isolated(score, timeout=1.5, memo=None)
    assert metric.score_case({}, "first").error is None
    answered.touch()
    assert eventually(keeping.exists)
    time.sleep(0.5)  # it keeps the lock with its next step; from then on, the worker reads nothing more
    assert isinstance(metric.score_case({}, "x" * 2_000_000).error, MetricTimeoutError)
    assert metric.score_case({}, "next").error is None


def test_what_is_no_answer_fails_its_case_alone(isolated):
    def score(input, output):
        if output == "bad":
            message = pickle.dumps(5)
            write_into_the_connection(struct.pack("!i", len(message)), message)
        return RIGHT

    metric = isolated(score, memo=None)
    assert "wrote into the connection of its process: 5 (int)" in metric.score_case({}, "bad").feedback
    assert metric.score_case({}, "good").error is None


def test_a_metric_that_always_crashes_stops_the_run():
    metric = as_dspy_metric(lambda input, output, expected=None: os._exit(1), isolation="process")
    evaluate = dspy.Evaluate(devset=examples(8), metric=metric, num_threads=2, display_progress=False)
    with (
        dspy.context(lm=answering(lambda question: "A")),
        pytest.raises(
            MetricBroken, match="failed on each of the first 5 rollouts, and on the expected value"
        ),
    ):
        evaluate(dspy.Predict("question -> answer"))
    metric.metric.close()


# --- what is there, and what is not ---------------------------------------------------------------


def test_no_keys_are_there_and_what_python_needs_is(isolated, monkeypatch):
    secret = "hunter" + "2"
    for name in ("OPENAI_API_KEY", "MY_DATABASE", "PYTHON_INDEX_TOKEN", "LC_PASSWORD"):
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("PYTHONHASHSEED", "5")

    def score(input, output, expected=None):
        file = Path("/proc/self/environ")
        raw = file.read_text() if file.exists() else ""
        below = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
        return 1.0, {"feedback": f"env: {dict(os.environ)} {sys.argv[1:]} {raw}", "below": below}

    judged = isolated(score).score_case({}, "a")
    for text in (judged.feedback, judged.info["below"]):
        assert secret not in text
        assert "PYTHONHASHSEED" in text
        assert "PATH" in text
    assert "MY_DATABASE" not in judged.info["below"]
    assert "'PYTHONHASHSEED': '5'" in judged.feedback
    assert os.environ["OPENAI_API_KEY"] == secret


def test_llm_asks_the_model_of_this_process_on_its_bill(isolated, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "needed")

    def score(input, output, expected=None):
        assert "OPENAI_API_KEY" not in os.environ
        text = llm("Is it right?", input={"output": output}, messages=[{"role": "user", "content": "ä"}])
        return 1.0, {"feedback": text}

    metric = isolated(score)
    judge = scripted_lm(lambda messages: f"{os.getpid()} {os.environ['OPENAI_API_KEY']} {len(messages)}")
    with models(metric_lm=judge), dspy.context(lm=answering(str), track_usage=True):
        assert metric.score_case({}, "a").feedback == f"{HERE} needed 3"
        assert metric.score_case({}, "b").value == 1.0
    assert metric.bill.calls == 2
    assert metric.bill.input_tokens == 20
    assert '{"output": "a"}' in judge.prompts[0]


def test_an_error_of_llm_comes_back_as_it_is(isolated):
    def score(input, output, expected=None):
        try:
            llm(None if output == "nothing" else "Right?")
        except (MetricError, DefinitionError) as error:
            return 0.5, {"feedback": f"{type(error).__name__}: {error}"}
        return RIGHT

    def fail(messages):
        raise ValueError("no credit")

    metric = isolated(score)
    with models(metric_lm=fail):
        said = metric.score_case({}, "a").feedback
        assert said == "MetricError: the metric model 'fail' failed: ValueError: no credit"
        assert "llm() was asked nothing" in metric.score_case({}, "nothing").feedback
    assert "DefinitionError: llm() has no model to ask" in metric.score_case({}, "a").feedback


def test_a_model_that_does_not_answer_does_not_outlast_the_time_out(isolated, released):
    def score(input, output, expected=None):
        return 1.0, {"feedback": llm("Right?")}

    metric = isolated(score, timeout=2)
    with models(metric_lm=lambda messages: str(released.wait())):
        assert isinstance(metric.score_case({}, "a").error, MetricTimeoutError)
        released.set()
        assert metric.score_case({}, "a").feedback == "True"


def test_async_metrics_ask_several_models_at_once(isolated):
    both = threading.Barrier(2, timeout=PATIENCE)

    def answer(messages):
        both.wait()
        return messages[-1]["content"]

    async def score(input, output, expected=None):
        texts = await asyncio.gather(*(asyncio.to_thread(llm, f"Question {n}") for n in range(2)))
        return 1.0, {"feedback": " ".join(texts)}

    metric = isolated(score)
    with models(metric_lm=answer):
        assert metric.score_case({}, "a").feedback == "Question 0 Question 1"
    assert metric.bill.calls == 2


def test_the_record_of_the_rollout_is_there(isolated):
    spec = {"weights": {"accuracy": 0.5, "speed": 0.5, "cost": 0}, "speed": {"reference": 100}}

    def score(input, output, expected=None):
        if output == "reward":
            return reward(spec, 1.0, "Right.")
        return 1.0, {"feedback": f"{observation().time_ms} {observation().reasons['cost_usd']}"}

    metric = isolated(score, memo="content")
    judged = metric.score_case({}, "a", observation=Observation(time_ms=5.0))
    assert judged.feedback == "5.0 it was not measured"
    judged = metric.score_case({}, "a", observation=Observation(time_ms=6.0))  # no longer remembered
    assert judged.feedback == "6.0 it was not measured"
    assert metric.score_case({}, "reward", observation=Observation(time_ms=200.0)).value == 0.75
    assert "nobody measured this rollout" in metric.score_case({}, "b").feedback


def test_the_metric_cannot_change_what_it_judges_and_keeps_its_own_state(isolated):
    seen = []

    def score(input, output, expected=None):
        seen.append(1)
        output.append(3)
        return float(len(seen)), {"feedback": f"{output}"}

    metric, output = isolated(score, copy_inputs=False), [1]
    assert metric.score_case({}, output).feedback == "[1, 3]"
    assert metric.score_case({}, output).value == 2.0
    assert (output, seen) == ([1], [])


def test_what_cannot_travel_is_named(isolated):
    lock = threading.Lock()

    def locked(input, output, expected=None):
        with lock:
            return RIGHT

    with pytest.raises(
        DefinitionError, match=r"metric 'locked', a function: TypeError: cannot pickle '_thread"
    ):
        isolated(locked)
    metric = isolated(dangerous())
    said = metric.score_case({"text": "a", "client": lock}, "fine").feedback
    assert "no pickling input['client'], a lock: TypeError: cannot pickle" in said
    assert "no pickling output, a lock" in metric.score_case({}, lock).feedback
    assert metric.score_case({}, "fine").value == 1.0


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


def test_what_cannot_be_read_there_is_no_fault_of_what_is_returned(isolated):
    metric = isolated(dangerous(), memo=None)
    judged = metric.score_case({"text": Unreadable()}, "fine")
    assert type(judged.error) is MetricError
    assert "was not called: what it is given cannot be read: ValueError: invalid literal" in judged.feedback
    assert metric.score_case({}, "fine").value == 1.0
    options = {"artifact": "a", "run_isolation": "process"}
    with as_gepa_adapter(dangerous(), lambda artifact, input: "fine", **options) as adapter:
        cases = [Case("a", {"text": Unreadable()}), Case("b", {"text": "b"})]
        adapter.evaluate(cases, adapter.seed_candidate)
        [failure] = adapter.metric.failures
    assert "It was not called: what it is given cannot be read: ValueError" in failure.text


def test_functions_made_at_run_time_work(isolated):
    source = """
class Judge:
    def __call__(self, input, output, expected=None):
        return helper(output), {"feedback": "Made."}

def helper(output):
    return len(output) / 10
"""
    cell = {"__name__": "__main__"}
    exec(source, cell)
    assert isolated(cell["Judge"]()).score_case({}, "four").value == 0.4


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"isolation": "thread"}, "isolation='thread' cannot be used: it must be \"process\" or None"),
        ({"memory_limit_mb": 100}, 'memory_limit_mb=100 cannot be used: it needs isolation="process"'),
        ({"isolation": "process", "memory_limit_mb": 0}, "a number of megabytes, above 0"),
        ({"isolation": "process", "memory_limit_mb": "1G"}, "a number of megabytes, above 0"),
    ],
)
def test_options_that_cannot_work_are_refused(options, said):
    with pytest.raises(DefinitionError, match="cannot be used") as caught:
        Metric(dangerous(), **options)
    assert said in str(caught.value)


def test_a_limit_is_refused_where_the_system_has_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(DefinitionError, match="only Linux holds a process to it, and this is darwin"):
        Metric(dangerous(), isolation="process", memory_limit_mb=100)


def test_the_mend_is_said_where_loky_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "loky", None)
    with pytest.raises(DefinitionError, match=r"pip install 'skynet-adapters\[isolation\]'"):
        Metric(dangerous(), isolation="process")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_isolation": "fork"}, "run_isolation='fork' cannot be used"),
        ({"run_memory_limit_mb": 1}, 'it needs run_isolation="process"'),
        ({"run_isolation": "process", "executor": ThreadPoolExecutor(1)}, "both say where run is called"),
    ],
)
def test_options_of_run_that_cannot_work_are_refused(options, said):
    with pytest.raises(DefinitionError, match=said):
        as_gepa_adapter(dangerous(), lambda artifact, input: "a", artifact="a", **options)
    with pytest.raises(DefinitionError, match="there is no run; leave it out"):
        as_gepa_evaluator(dangerous(), run_isolation="process")


# --- the life of the processes --------------------------------------------------------------------


def pid_score():
    return lambda input, output, expected=None: (1.0, {"feedback": f"{os.getpid()}"})


def pid_of(metric):
    return int(metric.score_case({}, "a").feedback)


def test_a_process_serves_call_after_call_until_the_metric_is_closed(isolated):
    metric = isolated(pid_score())
    pid = pid_of(metric)
    assert pid_of(metric) == pid
    metric.close()
    assert is_gone(pid)
    assert pid_of(metric) != pid


def test_a_process_ends_with_its_metric():
    metric = Metric(pid_score(), isolation="process")
    pid = pid_of(metric)
    del metric
    assert is_gone(pid)


def test_a_process_that_something_left_behind_has_ended_is_replaced(isolated):
    metric = isolated(pid_score())
    pid = pid_of(metric)
    os.kill(pid, signal.SIGKILL)
    assert is_gone(pid)
    assert pid_of(metric) not in (pid, HERE)


@pytest.mark.parametrize(
    "copied", [lambda metric: cloudpickle.loads(cloudpickle.dumps(metric)), copy.deepcopy, Metric]
)
def test_a_copy_of_the_metric_starts_its_own(isolated, copied):
    metric = isolated(pid_score())
    other = copied(metric)
    pids = {pid_of(metric), pid_of(other), HERE}
    assert len(pids) == 3
    other.close()
    metric.score_case({}, "a")
    assert pid_of(metric) in pids


def test_a_forked_process_starts_its_own(isolated):
    metric = isolated(pid_score())
    pid = pid_of(metric)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(pid_of(metric)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    other = int(os.read(reading, 100) or 0)
    assert other not in (0, pid, HERE)
    assert is_gone(other)
    assert pid_of(metric) == pid


def test_a_function_that_forks_and_returns_twice_is_judged_by_the_first(isolated, tmp_path):
    forked, begun, told = (tmp_path / name for name in ("forked", "begun", "told"))

    def wait_for(file):
        while not file.exists():
            time.sleep(0.01)

    def score(input, output):
        if output == "forks" and os.fork() == 0:
            forked.write_text(str(os.getpid()))
            wait_for(begun)
            return 0.0, {"feedback": "Of the forked process."}
        if output == "waits":
            begun.touch()
            wait_for(told)
        return 1.0, {"feedback": output}

    metric = isolated(score, memo=None)
    assert metric.score_case({}, "forks").feedback == "forks"
    assert eventually(lambda: forked.exists() and forked.read_text())
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(metric.score_case, {}, "waits")  # in the same worker
        assert eventually(begun.exists)
        is_forked_gone = is_gone(int(forked.read_text()))
        told.touch()
        assert waiting.result()[:2] == (1.0, "waits")
    assert metric.score_case({}, "next")[:2] == (1.0, "next")
    assert is_forked_gone


def test_a_metric_can_be_closed_while_it_is_called(isolated):
    metric = isolated(lambda input, output: (1.0, {"feedback": output}), memo=None)
    with ThreadPoolExecutor(3) as threads:
        judged = [threads.submit(metric.score_case, {}, f"output {number}") for number in range(24)]
        while not all(each.done() for each in judged):
            metric.close()
    assert [each.result().feedback for each in judged] == [f"output {number}" for number in range(24)]


def test_two_metrics_at_once_have_processes_of_their_own(isolated):
    first, second = isolated(pid_score()), isolated(pid_score())
    with ThreadPoolExecutor(4) as threads:
        pids = list(threads.map(pid_of, [first, second] * 10))
    assert not set(pids[::2]) & set(pids[1::2])
    assert HERE not in pids


def script(tmp_path, text, **options):
    file = tmp_path / "script.py"
    file.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(file)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        **options,
    )


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    running = script(
        tmp_path,
        """
import os
from skynet_adapters import Metric

print("script", flush=True)

def helper():
    return os.getpid()

def score(input, output, expected=None):
    return 1.0, {"feedback": f"{helper()}"}

judged = Metric(score, isolation="process").score_case({}, "a")
print("pid", judged.feedback, judged.feedback != str(os.getpid()))
""",
    )
    out, _ = running.communicate(timeout=200)
    assert running.returncode == 0, out
    first, second = out.splitlines()
    assert first == "script"
    assert second.endswith(" True")
    assert is_gone(int(second.split()[1]))


def test_ctrl_c_ends_an_evaluation_and_its_processes(tmp_path):
    running = script(
        tmp_path,
        """
import os
import dspy
from skynet_adapters import as_dspy_metric

class Program(dspy.Module):
    def forward(self, question):
        return dspy.Prediction(answer=question)

def score(input, output, expected=None):
    os.write(1, f"pid {os.getpid()}\\n".encode())  # in one piece, whatever PYTHONUNBUFFERED says
    return sum(range(10**15)), {}

data = [dspy.Example(question="q", answer="a").with_inputs("question") for _ in range(8)]
metric = as_dspy_metric(score, isolation="process", timeout=600)
dspy.Evaluate(devset=data, metric=metric, num_threads=2, display_progress=False)(Program())
""",
        start_new_session=True,
    )
    pids = []
    while len(pids) < 2:
        line = running.stdout.readline()
        assert line
        if line.startswith("pid"):
            pids.append(int(line.split()[1]))
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    out, _ = running.communicate(timeout=200)
    assert running.returncode != 0, out
    assert all(is_gone(pid) for pid in pids)


@only_linux
def test_nothing_outlives_a_process_that_is_killed_though_c_code_keeps_the_lock(tmp_path):
    running = script(
        tmp_path,
        """
import os
import subprocess
from skynet_adapters import Metric

def score(input, output, expected=None):
    child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.write(1, f"{os.getpid()} {child.pid}\\n".encode())
    return sum(range(10**15)), {}

Metric(score, isolation="process", timeout=600).score_case({}, "a")
""",
    )
    pids = [int(pid) for pid in running.stdout.readline().split()]
    assert len(pids) == 2
    running.kill()
    running.wait()
    running.stdout.close()
    assert all(is_gone(pid) for pid in pids)


# --- optimisers -----------------------------------------------------------------------------------

CASES = [Case(str(number), {"n": number}, {"label": f"L{number}"}) for number in range(8)]


def labels():
    """A `run` and a `score` for `CASES`, made here so that they travel by value."""

    def run(artifact, input):
        n = input["n"]
        if n == 1:
            os._exit(5)
        if n == 2:
            ctypes.string_at(0)
        return f"L{n}" if "label" in artifact else "?"

    def score(input, output, expected=None):
        right = output == expected["label"]
        return (1.0 if right else 0.25), {"feedback": "Right." if right else f"Wrong: {output}."}

    return run, score


class Log(list):
    def log(self, message):
        self.append(str(message))


def test_a_gepa_run_learns_though_runs_crash():
    run, score = labels()
    prompts = []

    def reflect(prompt):
        prompts.append(prompt)
        return "Say the label."

    with as_gepa_adapter(
        score, run, artifact="Guess.", run_isolation="process", isolation="process", max_workers=2
    ) as adapter:
        result = gepa.optimize(
            adapter.seed_candidate,
            trainset=CASES,
            adapter=adapter,
            reflection_lm=as_reflection_lm(reflect),
            max_metric_calls=30,
            logger=Log(),
        )
    assert adapter.artifact(result.best_candidate) == "Say the label."
    assert result.val_subscores[result.best_idx] == {n: 0.0 if n in (1, 2) else 1.0 for n in range(8)}
    failures = {failure.text for failure in adapter.metric.failures}
    assert failures == {
        "The program gave no output. It ended its process, with exit code 5.",
        "The program gave no output. It ended its process, by SIGSEGV (a segmentation fault).",
    }
    assert prompts


def test_run_and_score_have_processes_of_their_own_that_end_with_the_adapter():
    adapter = as_gepa_adapter(
        pid_score(),
        lambda artifact, input: os.getpid(),
        artifact="a",
        run_isolation="process",
        isolation="process",
        max_workers=2,
    )
    with adapter:
        batch = adapter.evaluate(CASES, adapter.seed_candidate, capture_traces=True)
        runs = {trajectory.output for trajectory in batch.trajectories}
        scores = {int(trajectory.score.feedback) for trajectory in batch.trajectories}
        assert 1 <= len(runs) <= 2
        assert not runs & scores
        assert HERE not in runs | scores
    assert all(is_gone(pid) for pid in runs | scores)
    adapter.evaluate(CASES[:1], adapter.seed_candidate)
    again = cloudpickle.loads(cloudpickle.dumps(adapter))
    assert again.evaluate(CASES[:1], again.seed_candidate).outputs[0] not in runs
    again.close()
    adapter.close()


def test_runs_are_killed_when_their_time_is_over_and_what_they_give_has_to_travel():
    def run(artifact, input):
        match input["n"]:
            case 0:
                while True:
                    pass
            case 1:
                return threading.Lock()
            case 2:
                raise ValueError("no such tool")
            case 3:
                raise KeyboardInterrupt
        return {"n": input["n"]}

    async def later(artifact, input):
        await asyncio.sleep(0 if input["n"] else 60)
        return input["n"]

    def score(input, output, expected=None):
        return RIGHT

    options = {"artifact": "a", "run_isolation": "process", "run_timeout": 2.0, "max_workers": 2}
    with as_gepa_adapter(score, run, **options) as adapter:
        batch = adapter.evaluate(CASES[:5], adapter.seed_candidate, capture_traces=True)
    said = [trajectory.score.feedback for trajectory in batch.trajectories]
    assert "It did not answer within 2 s." in said[0]
    assert "Its output cannot be sent back from its process" in said[1]
    assert "It raised ValueError: no such tool (test_isolation.py, line" in said[2]
    assert "It raised KeyboardInterrupt" in said[3]
    assert batch.outputs[4] == {"n": 4}
    with as_gepa_adapter(score, later, **options) as adapter:
        assert adapter.evaluate(CASES[:2], adapter.seed_candidate).scores == [0.0, 1.0]


@only_linux
def test_the_limit_on_the_memory_of_a_run_holds():
    def run(artifact, input):
        return len(bytearray(10**9))

    with as_gepa_adapter(
        lambda input, output: RIGHT, run, artifact="a", run_isolation="process", run_memory_limit_mb=300
    ) as adapter:
        batch = adapter.evaluate(CASES[:1], adapter.seed_candidate, capture_traces=True)
    assert "It raised MemoryError" in batch.trajectories[0].score.feedback
    assert "may take 300 MB more than at its start." in batch.trajectories[0].score.feedback


def test_what_a_run_asks_by_llm_is_measured_and_nothing_else_is():
    def run(artifact, input):
        return llm("Answer.") if input["n"] else "L0"

    def score(input, output, expected=None):
        now = observation()
        return 1.0, {
            "feedback": f"{now.model_calls} {now.input_tokens} {now.reasons.get('cost_usd')}",
            "ms": now.time_ms,
        }

    model = scripted_lm(lambda messages: "L1")
    with (
        models(metric_lm=model),
        as_gepa_adapter(score, run, artifact="a", run_isolation="process") as adapter,
    ):
        begun = time.perf_counter()
        batch = adapter.evaluate(CASES[:2], adapter.seed_candidate, capture_traces=True)
        took = (time.perf_counter() - begun) * 1e3
    first, second = (trajectory.score for trajectory in batch.trajectories)
    assert first.feedback.startswith(
        "None None run was called in a process of its own, and only what it asks"
    )
    assert second.feedback.startswith("1 10 ")
    assert 0 < first.info["ms"] < took
    assert adapter.metric.bill.calls == 0


class SlowToLoad:
    """What a function refers to, and a process takes three seconds to load."""

    def __reduce__(self):
        return time.sleep, (3.0,)


def test_the_time_of_a_run_is_that_of_its_first_answers_and_not_of_the_cache_nor_of_a_start():
    slow, taken = SlowToLoad(), []

    def run(artifact, input):
        return slow or llm(f"{input['n']}, first question") + llm(f"{input['n']}, second question")

    def score(input, output, expected=None):
        now = observation()
        taken.append((now.time_ms, now.cached_calls))
        return RIGHT

    with (
        ModelServer(lambda messages: "L", lambda messages: 0.3) as server,
        models(metric_lm=server.lm(cache=True)),
        as_gepa_adapter(score, run, artifact="a", run_isolation="process", max_workers=1) as adapter,
    ):
        took = []
        for _ in range(2):
            begun = time.perf_counter()
            adapter.evaluate(CASES[:3], adapter.seed_candidate)
            took.append((time.perf_counter() - begun) * 1e3)
    assert len(server.served) == 6
    assert [cached for _, cached in taken] == [0, 0, 0, 2, 2, 2]
    assert all(ms >= 600 for ms, _ in taken)
    first, second = (sum(ms for ms, _ in some) for some in (taken[:3], taken[3:]))
    assert first <= took[0] - 3_000  # one runs after another, and the first waits for the start
    assert second <= first + took[1]


def test_optimize_artifact_and_the_evaluator_take_the_options():
    run, score = labels()
    best = optimize_artifact(
        "Guess.",
        run,
        score,
        CASES[4:],
        reflection_lm=lambda prompt: "Say the label.",
        max_metric_calls=30,
        run_isolation="process",
        isolation="process",
        max_workers=2,
        logger=Log(),
    )
    assert (best.artifact, best.score) == ("Say the label.", 1.0)
    with as_gepa_evaluator(score, run, run_isolation="process") as evaluator:
        value, side_info = evaluator("label", CASES[1])
        assert value == 0.0
        assert "with exit code 5" in str(side_info)
        assert evaluator("label", CASES[5])[0] == 1.0


def test_dspys_gepa_learns_from_an_isolated_metric():
    def score(input, output, expected=None):
        if input["question"] == "q1" and output == "B":
            os._exit(9)
        right = output == expected["answer"]
        return (1.0 if right else 0.25), {"feedback": "Right." if right else "Say A."}

    reflection = reflecting(lambda prompt, number: "Say A.")
    metric = as_dspy_metric(score, isolation="process")
    compiler = dspy.GEPA(
        metric=metric, max_metric_calls=20, reflection_lm=reflection, num_threads=2, track_stats=True
    )
    lm = scripted_lm(lambda messages: chat(answer="A" if "Say A." in messages[0]["content"] else "B"))
    with dspy.context(lm=lm):
        program = compiler.compile(
            dspy.Predict("question -> answer"), trainset=examples(4), valset=examples(4)
        )
    assert program.signature.instructions == "Say A."
    assert program.detailed_results.val_aggregate_scores[0] == 0.75 / 4
    assert "ended its process, with exit code 9" in "".join(reflection.prompts) + str(metric.failures)
    metric.metric.close()


def test_the_contract_check_takes_an_isolated_metric(isolated):
    def score(input, output, expected=None):
        right = output == expected["label"]
        return float(right), {"feedback": f"Expected {expected['label']!r}, got {output!r}: read the number."}

    report = check_contract(isolated(score), CASES)
    assert report.passed, str(report)
