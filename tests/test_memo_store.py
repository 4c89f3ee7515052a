"""Judgements that outlast the process: `memo="content"` with `memo_dir=`."""

import datetime
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import cloudpickle
import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skynet import llm, observation
from skynet_adapters import DefinitionError, Metric, check_contract, load_metric, models, set_models
from skynet_adapters.memo_store import ScoreStore
from skynet_adapters.score import Score
from tests.counting_judge import Judge, judging

CASE = ({"question": "2 + 2?"}, "5", {"answer": "4"})
ROOT = Path(__file__).parents[1]


def metric_of(judge, folder, **options):
    """A metric as a new process makes it."""
    return Metric(judge, memo="content", memo_dir=folder, **options)


def file_in(folder):
    (path,) = folder.glob("*.sqlite3")
    return path


def test_a_judgement_outlasts_the_metric(tmp_path):
    folder = tmp_path / "made" / "here"
    first, second = Judge(), Judge()
    judged = metric_of(first, folder).score_case(*CASE)
    again = metric_of(second, folder)
    assert again.score_case(*CASE) == judged
    assert (first.asked, second.asked, again.calls) == (1, 0, 0)
    assert again.complete({}) == {"length": 0.0}  # the names that it has learnt
    again.score_case({"question": "3 + 3?"}, "5", {"answer": "6"})
    assert second.asked == 1


@pytest.fixture(scope="module")
def two_stores(tmp_path_factory):
    metric, folder = Metric(Judge()), str(tmp_path_factory.mktemp("memo"))
    return ScoreStore(folder, "judge", metric), ScoreStore(folder, "judge", metric)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    feedback=st.text(min_size=1, max_size=20),
    scores=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    info=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    key=st.binary(min_size=32, max_size=32),
)
def test_what_is_kept_comes_back_exactly(two_stores, value, feedback, scores, info, key):
    first, second = two_stores
    kept = Score(value, feedback, scores, info)
    first.put(key, kept)
    found = second.get(key)
    assert found is not None
    assert repr(found) == repr(kept)


@pytest.mark.parametrize(
    "info",
    [
        {"when": datetime.date(2024, 1, 1)},
        {"price": Decimal("0.1")},
        {"pair": (1, 2)},
        {"by number": {1: "one"}},
        {"nan": float("nan")},
        {"bytes": b"x"},
        {"long": ["x" * 30_000]},
    ],
)
def test_what_json_cannot_hold_is_not_kept_and_said_once(tmp_path, info, caplog):
    first, second = Judge(info), Judge(info)
    metric = metric_of(first, tmp_path)
    for number in range(3):
        metric.score_case({"n": number}, "5", None)
    assert caplog.text.count("cannot keep every judgement") == 1
    assert metric_of(second, tmp_path).score_case({"n": 1}, "5", None).info.keys() == info.keys()
    assert second.asked == 1


def test_failures_are_not_kept(tmp_path):
    calls = []

    def score(input, output, expected=None):
        calls.append(output)
        raise ConnectionError

    for _ in range(2):
        assert metric_of(score, tmp_path).score_case(*CASE).error is not None
    assert len(calls) == 2


def test_a_kept_judgement_is_no_success_of_the_function_itself(tmp_path):
    """Else a key that was revoked since would not stop the run."""
    metric_of(Judge(), tmp_path).score_case(*CASE)
    metric = metric_of(Judge(), tmp_path)
    metric.score_case(*CASE)
    assert not metric.is_proven


@pytest.mark.parametrize(
    "other", [{"failure_score": -1.0}, {"score_range": (0, 2)}, {"max_feedback_chars": 500}]
)
def test_options_that_decide_have_judgements_of_their_own(tmp_path, other):
    metric_of(Judge(), tmp_path).score_case(*CASE)
    judge = Judge()
    metric_of(judge, tmp_path, **other).score_case(*CASE)
    assert judge.asked == 1
    judge = Judge()
    metric_of(judge, tmp_path, name="other", timeout=None, stop_after=None).score_case(*CASE)
    assert judge.asked == 0


def test_an_edited_metric_has_judgements_of_its_own(tmp_path):
    path = tmp_path / "metric.py"
    for value in (0.5, 0.25, 0.5):
        path.write_text(
            f"def score(input, output):\n    return {value}, {{'feedback': 'Fair.'}}\n", encoding="utf-8"
        )
        metric = load_metric(path, memo="content", memo_dir=tmp_path / "memo")
        assert metric.score_case(*CASE).value == value
    assert metric.calls == 0  # the first one has come back


def test_another_model_has_judgements_of_its_own(tmp_path):
    def passes(messages):
        return "PASS"

    def fails(messages):
        return "FAIL"

    def judged(**chosen):
        metric = metric_of(judging(llm), tmp_path)
        with models(**chosen):
            return metric.score_case(*CASE).value, metric.calls

    assert judged(metric_lm=passes) == (1.0, 1)
    assert judged(metric_lm=fails) == (0.0, 1)
    assert judged(reflection_lm=fails) == (0.0, 1)
    assert judged(metric_lm=passes) == (1.0, 0)
    set_models(metric_lm=fails)
    try:
        assert judged() == (0.0, 0)
    finally:
        set_models()


@pytest.mark.parametrize("keeps", [True, False], ids=["with memo_dir", "without"])
def test_another_model_has_judgements_of_its_own_in_the_same_metric_too(tmp_path, keeps):
    def score(input, output):
        said = llm("How good is it?")
        return float(said), {"feedback": f"The judge said {said}."}

    def quarter(messages):
        return "0.25"

    def half(messages):
        return "0.5"

    metric = metric_of(score, tmp_path) if keeps else Metric(score, memo="content")
    for judge, value in ((quarter, 0.25), (half, 0.5)) * 2:
        with models(metric_lm=judge):
            assert metric.score_case({}, "a").value == value
    assert metric.calls == 2


@pytest.mark.parametrize("keeps", [True, False], ids=["with memo_dir", "without"])
def test_the_model_that_is_set_for_dspy_counts_only_where_no_metric_model_was_chosen(tmp_path, keeps):
    judge, chosen = Judge(), dspy.LM("openai/judge")
    metric = metric_of(judge, tmp_path) if keeps else Metric(judge, memo="content")
    for student_or_teacher in ("openai/student", "openai/teacher") * 2:
        with dspy.context(lm=dspy.LM(student_or_teacher)):
            metric.score_case(*CASE)
    assert judge.asked == 2
    for student_or_teacher in ("openai/student", "openai/teacher") * 2:
        with dspy.context(lm=dspy.LM(student_or_teacher)), models(metric_lm=chosen):
            metric.score_case(*CASE)
    assert judge.asked == 3


def test_a_model_that_cannot_be_told_from_others_is_named_and_nothing_is_remembered(caplog):
    class Model:
        def __call__(self, messages):
            return "PASS"

        @property
        def decided_by(self):
            raise RuntimeError("it is not connected")

    judge = Judge()
    metric = Metric(judge, memo="content")
    with models(metric_lm=Model()):
        for _ in range(2):
            metric.score_case(*CASE)
    assert judge.asked == 2
    told = [record.getMessage() for record in caplog.records]
    assert (
        len([line for line in told if "its model cannot be told from others (RuntimeError: it is" in line])
        == 1
    )


def test_the_model_that_is_set_for_dspy_counts_and_its_key_does_not(tmp_path):
    def calls(name, **settings):
        judge = Judge()
        with dspy.context(lm=dspy.LM(name, **settings)):
            metric_of(judge, tmp_path).score_case(*CASE)
        return judge.asked

    assert calls("openai/one", api_key="first") == 1
    assert calls("openai/one", api_key="second") == 0
    assert calls("openai/one", temperature=0.5) == 1
    assert calls("openai/other") == 1


def test_a_metric_that_reads_measurements_is_kept_no_judgements_of(tmp_path):
    asked = []

    def score(input, output, expected=None):
        asked.append(output)
        if output == "slow":
            observation()
        return 0.5, {"feedback": "Fair."}

    first = metric_of(score, tmp_path)
    first.score_case({}, "quick")
    first.score_case({}, "slow")
    second = metric_of(score, tmp_path)
    for output in ("quick", "slow", "slow"):
        second.score_case({}, output)
    assert asked == ["quick", "slow", "quick", "slow", "slow"]


def test_a_copy_of_a_metric_keeps_its_folder(tmp_path):
    metric_of(Judge(), tmp_path).score_case(*CASE)
    judge = Judge()
    copy = pickle.loads(cloudpickle.dumps(metric_of(judge, os.path.relpath(tmp_path))))
    assert copy.score_case(*CASE).value == 0.1
    assert copy.calls == 0


def test_a_contract_check_asks_the_metric_itself(tmp_path):
    metric = metric_of(Judge(), tmp_path)
    report = check_contract(metric, [{"input": {"q": "?"}, "expected": {"answer": "4"}}])
    assert report["Loads"].status == "passed"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"memo_dir": "x"}, "pass that too"),
        ({"memo_dir": "x", "memo": None}, "pass that too"),
        ({"memo_dir": 5, "memo": "content"}, "path of a folder"),
        ({"memo_dir": "", "memo": "content"}, "path of a folder"),
        ({"memo_dir": __file__, "memo": "content"}, "there is a file of that name"),
    ],
)
def test_a_folder_that_cannot_work_is_refused(options, why):
    with pytest.raises(DefinitionError, match=why):
        Metric(Judge(), **options)


def test_only_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("skynet_adapters.memo_store._MOST_ROWS", 20)
    monkeypatch.setattr("skynet_adapters.memo_store._TRIMMED_EVERY", 10)
    store = ScoreStore(str(tmp_path), "judge", metric := Metric(Judge()))
    for number in range(101):
        store.put(bytes([number]) * 32, Score(1.0, "Good."))
    assert [number for number in range(101) if store.get(bytes([number]) * 32)] == list(range(81, 101))
    del metric


# --- many at once -----------------------------------------------------------------------------------------


def test_many_threads_share_a_folder_through_two_metrics(tmp_path):
    first, second = Judge(), Judge()
    metrics = [metric_of(first, tmp_path), metric_of(second, tmp_path)]
    with ThreadPoolExecutor(16) as pool:
        values = list(
            pool.map(
                lambda n: metrics[n % 2].score_case({"n": n // 4}, "x" * (n // 4 % 10)).value, range(400)
            )
        )
    assert values == [n // 4 % 10 / 10 for n in range(400)]
    assert first.asked <= 100
    assert second.asked <= 100
    third = Judge()
    again = metric_of(third, tmp_path)
    assert [again.score_case({"n": n}, "x" * (n % 10)).value for n in range(100)] == [
        n % 10 / 10 for n in range(100)
    ]
    assert third.asked == 0


SCRIPT = """
import sys
from skynet_adapters import Metric

def score(input, output, expected=None):
    with open(sys.argv[2], "a") as log:
        log.write(f"{input['n']}\\n")
    return input["n"] / 1000, {"feedback": f"Case {input['n']}."}

metric = Metric(score, memo="content", memo_dir=sys.argv[1], timeout=None)
"""


def script(tmp_path, body, *arguments, **options):
    """Start a program of a metric `score` that writes its calls to a file."""
    path = tmp_path / "program.py"
    path.write_text(SCRIPT + textwrap.dedent(body), encoding="utf-8")
    command = [sys.executable, str(path), str(tmp_path / "memo"), str(tmp_path / "calls"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)


def test_processes_share_a_folder_from_its_making_on(tmp_path):
    body = """
        for n in range(200):
            assert metric.score_case({"n": n}, "a").value == n / 1000
    """
    running = [script(tmp_path, body) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=200)
        assert (process.returncode, said) == (0, "")
    again = script(tmp_path, body)
    before = (tmp_path / "calls").read_text().count("\n")
    assert again.wait(200) == 0
    assert (tmp_path / "calls").read_text().count("\n") == before


def test_a_lock_that_is_kept_holds_up_one_judgement_and_not_each(tmp_path, caplog):
    judge = Judge()
    metric = metric_of(judge, tmp_path, timeout=None)
    assert metric.score_case({"n": 0}, "x").error is None
    other = sqlite3.connect(file_in(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    for n in range(1, 41):
        assert metric.score_case({"n": n}, "x").error is None
    assert time.monotonic() - begun < 60  # of 2 s each it would be 80
    assert caplog.text.count("cannot be used now (database is locked)") == 1
    other.execute("ROLLBACK")
    other.close()
    metric.score_case({"n": 41}, "x")
    again = metric_of(Judge(), tmp_path)
    assert again.score_case({"n": 41}, "x").error is None
    assert again.calls == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_opens_the_folder_itself(tmp_path):
    body = """
        import os
        metric.score_case({"n": 1}, "a")
        child = os.fork()
        metric.score_case({"n": 2 if child else 3}, "a")
        if child:
            assert os.waitpid(child, 0)[1] == 0
            for n in range(1, 4):
                Metric(score, memo="content", memo_dir=sys.argv[1]).score_case({"n": n}, "a")
    """
    process = script(tmp_path, body)
    _, said = process.communicate(timeout=200)
    assert (process.returncode, said) == (0, "")
    assert sorted((tmp_path / "calls").read_text().split()) == ["1", "2", "3"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the open files in /proc")
def test_no_connection_crosses_a_fork_though_threads_are_at_work(tmp_path):
    body = """
        import glob, os, threading

        def work(thread):
            for n in range(200):
                metric.score_case({"n": 200 * thread + n}, "a")

        metric.score_case({"n": 0}, "a")
        threads = [threading.Thread(target=work, args=(thread,)) for thread in (1, 2)]
        for thread in threads:
            thread.start()
        for fork in range(10):
            child = os.fork()
            if child == 0:
                open_files = map(os.path.realpath, glob.glob("/proc/self/fd/*"))
                crossed = any(".sqlite3" in file for file in open_files)
                metric.score_case({"n": 990 + fork}, "a")
                os._exit(crossed)
            assert os.waitpid(child, 0)[1] == 0
        for thread in threads:
            thread.join()
        again = Metric(score, memo="content", memo_dir=sys.argv[1])
        for fork in range(10):
            again.score_case({"n": 990 + fork}, "a")
        assert again.calls == 0
    """
    process = script(tmp_path, body)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")


# --- a run that is killed -----------------------------------------------------------------------------------

RUN = """
    import os, signal
    import gepa
    from skynet_adapters import as_gepa_adapter, as_gepa_dataset, as_reflection_lm

    calls = 0

    def run(artifact, input):
        return f"{artifact} {input['n']}"

    def judge(input, output, expected=None):
        global calls
        calls += 1
        if calls == int(sys.argv[3]):  # no global: its value would make this another metric
            os.kill(os.getpid(), signal.SIGKILL)
        with open(sys.argv[2], "a") as log:
            log.write(output + "\\n")
        return min(len(output) / 40, 1.0), {"feedback": f"{len(output)} letters."}

    class Quiet:
        def log(self, message): ...

    adapter = as_gepa_adapter(
        judge, run, artifact="Guess.", max_workers=1, memo="content", memo_dir=sys.argv[1]
    )
    cases = [{"input": {"n": n}} for n in range(4)]
    written = 0

    def reflect(prompt):
        global written
        written += 1
        return "Guess" + " well" * written

    result = gepa.optimize(
        adapter.seed_candidate,
        trainset=as_gepa_dataset(cases),
        valset=as_gepa_dataset(cases),
        adapter=adapter,
        reflection_lm=as_reflection_lm(reflect),
        max_metric_calls=60,
        run_dir=sys.argv[1] + "-run",
        logger=Quiet(),
    )
    print(calls)
"""


@pytest.mark.parametrize("killed_at", [3, 7, 18])
def test_a_run_that_is_killed_and_resumed_pays_no_judge_twice(tmp_path, killed_at):
    process = script(tmp_path, RUN, str(killed_at))
    assert process.wait(120) == -9, process.stderr.read()
    paid = (tmp_path / "calls").read_text().splitlines()
    assert len(paid) == killed_at - 1
    process = script(tmp_path, RUN, "0", stdout=subprocess.PIPE)
    printed, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "judgements" not in said
    calls = (tmp_path / "calls").read_text().splitlines()
    assert int(printed) == len(calls) - len(paid) > 0
    assert len(set(calls)) == len(calls)


# --- a store that is damaged --------------------------------------------------------------------------------


def filled(folder, count=30):
    """Make a store of so many judgements, and close it."""
    judge = Judge()
    metric = metric_of(judge, folder)
    for number in range(count):
        metric.score_case({"n": number}, "x" * (number % 10))
    metric._store._opened._connection.close()
    return file_in(folder)


def judged_again(folder, count=30):
    """Judge all of them anew; gives how many were asked for, and checks that all are right."""
    judge = Judge()
    metric = metric_of(judge, folder)
    for number in range(count):
        score = metric.score_case({"n": number}, "x" * (number % 10))
        assert (score.value, score.error) == (number % 10 / 10, None)
    return judge.asked


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def garbage(path):
    path.write_bytes(os.urandom(8192))


def garbage_after_the_head(path):
    content = path.read_bytes()
    path.write_bytes(content[:100] + os.urandom(len(content) - 100))


def flipped(path):
    content = bytearray(path.read_bytes())
    for place in range(4096, len(content), 97):
        content[place] ^= 0xFF
    path.write_bytes(content)


def of_another_program(path):
    path.unlink()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE mine (x)")
    database.close()


def without_its_table(path):
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE judgement")
    database.close()


def of_another_layout(path):
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        garbage,
        garbage_after_the_head,
        flipped,
        of_another_program,
        without_its_table,
        of_another_layout,
    ],
)
def test_a_damaged_store_is_set_aside_with_a_warning_and_never_wrong(tmp_path, damage, caplog):
    path = filled(tmp_path)
    damage(path)
    content = path.read_bytes()
    assert judged_again(tmp_path) > 0
    assert "the memory in" in caplog.text
    assert "damaged" in caplog.text
    if damage is not flipped:
        assert path.read_bytes() == content
    caplog.clear()
    assert judged_again(tmp_path) == 0
    assert damage is flipped or caplog.text == ""


def test_a_damaged_store_that_is_in_use_is_set_aside(tmp_path, caplog):
    judge = Judge()
    metric = metric_of(judge, tmp_path)
    metric.score_case({"n": 0}, "a")
    metric._store._opened._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    garbage(file_in(tmp_path))
    other = metric_of(Judge(), tmp_path)
    for number in range(1, 30):
        assert metric.score_case({"n": number}, "a").value == 0.1
        assert other.score_case({"n": number}, "a").value == 0.1
    assert "is damaged" in caplog.text


def test_a_row_that_was_changed_is_judged_again(tmp_path, caplog):
    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("""UPDATE judgement SET score = replace(score, '"value": 0.', '"value": 0.9')""")
    database.close()
    assert judged_again(tmp_path) >= 27
    assert "a judgement that is damaged" in caplog.text
    assert judged_again(tmp_path) == 0


def test_nothing_in_a_store_is_unpickled(tmp_path):
    planted = tmp_path / "planted"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(planted),)

    path = filled(tmp_path)
    with sqlite3.connect(path) as database:
        database.execute("UPDATE judgement SET score = ?", (pickle.dumps(Bomb()),))
    database.close()
    assert judged_again(tmp_path) == 30
    assert not planted.exists()


def test_a_folder_that_cannot_be_made_costs_a_warning(tmp_path, caplog):
    metric = metric_of(Judge(), tmp_path / "taken" / "memo")
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    assert metric.score_case(*CASE).value == 0.1
    assert metric.score_case({}, "other").value == 0.5
    assert caplog.text.count("cannot be used") == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("is_filled", [False, True])
def test_a_folder_that_is_read_only_costs_a_warning(tmp_path, is_filled):
    body = """
        import logging, os, pathlib, shutil, tempfile
        folder = tempfile.mkdtemp()
        if sys.argv[3] == "True":
            Metric(score, memo="content", memo_dir=folder).score_case({"n": 1}, "a")
        for path in pathlib.Path(folder).iterdir():
            path.chmod(0o444)
        os.chmod(folder, 0o555)
        child = os.fork()
        if not child:
            os.setuid(65534)
            open_log, score.__globals__["open"] = open, lambda *_: open_log(os.devnull, "a")
            metric = Metric(score, memo="content", memo_dir=folder)
            assert metric.score_case({"n": 1}, "a").value == 0.001
            assert metric.score_case({"n": 2}, "a").value == 0.002
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        shutil.rmtree(folder)
    """
    process = script(tmp_path, body, str(is_filled))
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert said.count("cannot be used") == 1


def test_a_disk_that_is_full_costs_a_warning(tmp_path):
    body = """
        import resource
        metric.score_case({"n": 0}, "a")
        if sys.argv[3] == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        lines = []
        score.__globals__["open"] = lambda *_: __import__("contextlib").nullcontext(
            type("Log", (), {"write": lambda self, line: lines.append(line)})()
        )
        for n in range(900):
            assert metric.score_case({"n": n}, "a").value == n / 1000
        print(len(lines))
    """
    process = script(tmp_path, body, "full", stdout=subprocess.PIPE)
    printed, said = process.communicate(timeout=200)
    assert (process.returncode, printed) == (0, "899\n"), said
    assert said.count("cannot be used now") == 1
    process = script(tmp_path, body, "", stdout=subprocess.PIPE)
    printed, said = process.communicate(timeout=200)
    assert (process.returncode, said) == (0, "")
    assert 100 < int(printed) < 899  # what was kept before is there


def test_a_metric_that_cannot_be_fingerprinted_is_judged_all_the_same(tmp_path, caplog):
    class Endless:
        def __getattr__(self, name):
            return Endless()

        def __call__(self, input, output, expected=None):
            return 0.5, {"feedback": "Fair."}

    metric = Metric(Endless(), name="endless", memo="content", memo_dir=tmp_path)
    assert metric.score_case(*CASE).value == 0.5
    assert metric.failures.kinds == {}
