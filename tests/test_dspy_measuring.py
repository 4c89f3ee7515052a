"""What a rollout took, against the log of a model server: exact in calls, tokens and US dollars."""

import asyncio
import contextlib
import contextvars
import math
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import gepa
import pytest
from dspy.clients import execution
from dspy.clients.cache import Cache
from dspy.utils.callback import BaseCallback

from skynet_adapters import (
    Metric,
    as_dspy_metric,
    as_dspy_reward,
    as_gepa_adapter,
    as_reflection_lm,
    measuring,
    models,
    program_artifact,
    program_run,
)
from skynet_adapters.dspy_first_answers import first_seconds, keep_seconds
from skynet_adapters.dspy_measuring import _Asked, _longest, _shares_a_thread
from skynet_adapters.measure import observation, service_cost

from .model_server import ModelServer, RefusedError, in_fields, text_of

ROLLOUTS = 200
THREADS = 8


def cases(count=ROLLOUTS, first=0):
    return [
        dspy.Example(question=f"case-{number} " + "why " * (number % 17), answer="A").with_inputs("question")
        for number in range(first, first + count)
    ]


class Watching:
    """A metric that keeps what it read, by case."""

    def __init__(self) -> None:
        self.read: list[tuple[str, Any]] = []

    def score(self, input, output, expected=None):
        self.read.append((input["question"].split()[0], observation()))
        return 1.0, {"feedback": "Read."}

    def __call__(self, **options):
        return as_dspy_metric(self.score, **options)


def figures(seen):
    """Reduce a record, or what the server served for a case, to what has to be equal."""
    if isinstance(seen, list):
        return (
            len(seen),
            sum(call.input_tokens for call in seen),
            sum(call.output_tokens for call in seen),
            round(sum(call.cost for call in seen), 12),
        )
    assert seen.reasons == {}
    return seen.model_calls, seen.input_tokens, seen.output_tokens, round(seen.cost_usd, 12)


def evaluate(program, metric, devset, lm, threads=THREADS):
    with dspy.context(lm=lm), measuring():
        return dspy.Evaluate(devset=devset, metric=metric, num_threads=threads)(program)


# --- programs ---------------------------------------------------------------------------------------


class Nested(dspy.Module):
    def __init__(self):
        super().__init__()
        self.think = dspy.ChainOfThought("question -> draft")
        self.inner = Inner()

    def forward(self, question):
        return self.inner(question=question, draft=self.think(question=question).draft)


class Inner(dspy.Module):
    def __init__(self):
        super().__init__()
        self.write = dspy.Predict("question, draft -> answer")

    def forward(self, question, draft):
        return self.write(question=question, draft=draft)


class Async(dspy.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = dspy.Predict("question -> answer"), dspy.Predict("question -> draft")

    async def aforward(self, question):
        one, _ = await asyncio.gather(self.one.acall(question=question), self.other.acall(question=question))
        return one

    def forward(self, question):
        return asyncio.run(self.aforward(question))


class InParallel(dspy.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = dspy.Predict("question -> answer"), dspy.Predict("question -> draft")

    def forward(self, question):
        parallel = dspy.Parallel(num_threads=3, disable_progress_bar=True)
        pairs = [(self.one, {"question": question}), (self.other, {"question": question})]
        return parallel([*pairs, *pairs])[0]


class Shared(dspy.Module):
    """Gives one and the same object as every answer."""

    def __init__(self):
        super().__init__()
        self.write = dspy.Predict("question -> answer")
        self.kept = dspy.Prediction(answer="")

    def forward(self, question):
        self.kept["answer"] = self.write(question=question).answer
        return self.kept


class Plain(dspy.Module):
    def __init__(self):
        super().__init__()
        self.write = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.write(question=question).answer


class Wrapped(dspy.Module):
    def __init__(self):
        super().__init__()
        self.inner = dspy.Predict("question -> answer")

    def forward(self, question):
        return self.inner(question=question)


class WithTool(dspy.Module):
    """A ReAct agent whose tool asks the model itself."""

    def __init__(self):
        super().__init__()
        self.find = dspy.Predict("question -> draft")
        self.agent = dspy.ReAct("question -> answer", tools=[self.look_up], max_iters=2)

    def look_up(self, what: str) -> str:
        """Look something up."""
        return self.find(question=what).draft

    def forward(self, question):
        return self.agent(question=question)


def as_agent(messages):
    text = text_of(messages[-1:])
    case = text[text.index("case-") :].split()[0]
    name = "finish" if "tool_name_0" in text else "look_up"
    arguments = "{}" if name == "finish" else f'{{"what": "{case}"}}'
    return in_fields(next_tool_name=name, next_tool_args=arguments)(messages)


WAYS = {
    "plain": (lambda: dspy.Predict("question -> answer"), 1),
    "nested": (Nested, 2),
    "async": (Async, 2),
    "parallel": (InParallel, 4),
    "shared object": (Shared, 1),
    "plain output": (Plain, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_calls_tokens_and_cost_of_each_rollout_are_those_of_the_server(way):
    make, calls = WAYS[way]
    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(make(), watching(), cases(), server.lm())
    assert len(watching.read) == ROLLOUTS
    served = server.by_case()
    assert {case: figures(seen) for case, seen in watching.read} == {
        case: figures(calls) for case, calls in served.items()
    }
    assert {seen.model_calls for _, seen in watching.read} == {calls}


def test_what_a_tool_asks_belongs_to_the_rollout_of_its_agent():
    watching = Watching()
    with ModelServer(as_agent) as server:
        evaluate(WithTool(), watching(), cases(), server.lm())
    served = server.by_case()
    assert len(watching.read) == ROLLOUTS
    assert {case: figures(seen) for case, seen in watching.read} == {
        case: figures(calls) for case, calls in served.items()
    }
    assert {seen.model_calls for _, seen in watching.read} == {4}


# --- optimisers -------------------------------------------------------------------------------------


def rollouts(watching):
    return Counter((case, figures(seen)) for case, seen in watching.read)


def served_rollouts(server):
    return Counter((call.case, figures([call])) for call in server.of("gpt-4o-mini"))


def proposing(prompt):
    proposing.count += 1
    return f'{{"new_instruction": "Answer well, {"please " * proposing.count}"}}'


@pytest.mark.parametrize(
    ("memo", "program"),
    [("rollout", lambda: dspy.Predict("question -> answer")), (None, Wrapped), ("rollout", Plain)],
    ids=["remembered", "asked again", "plain output"],
)
def test_each_rollout_of_dspy_gepa_is_measured_and_its_reflection_calls_are_no_part_of_any(memo, program):
    proposing.count = 0
    watching = Watching()
    watching.score = lambda input, output, expected=None: (
        watching.read.append((input["question"].split()[0], observation())),
        (0.5 + len(watching.read) % 3 / 10, {"feedback": "Better."}),
    )[1]
    with ModelServer(
        lambda messages: proposing("") if "new_instruction" in text_of(messages) else in_fields()(messages)
    ) as server:
        optimizer = dspy.GEPA(
            metric=watching(memo=memo),
            max_metric_calls=ROLLOUTS,
            num_threads=THREADS,
            reflection_lm=server.lm("openai/gpt-4.1-mini"),
        )
        with dspy.context(lm=server.lm()), measuring():
            optimizer.compile(program(), trainset=cases(20), valset=cases(20, 20))
    assert len(watching.read) >= ROLLOUTS
    if memo is None:  # asked again for the text, in another thread and much later
        assert set(rollouts(watching)) == set(served_rollouts(server))
        assert rollouts(watching).total() > served_rollouts(server).total()
    else:
        assert rollouts(watching) == served_rollouts(server)
    assert len(server.of("gpt-4.1-mini")) == proposing.count > 1


def test_each_attempt_of_best_of_n_is_a_rollout_and_the_whole_is_one_too():
    attempts, whole = Watching(), Watching()

    def never_enough(input, output, expected=None):
        attempts.read.append((input["question"].split()[0], observation()))
        return 0.0, {"feedback": "Read."}

    with ModelServer(in_fields()) as server:
        program = dspy.BestOfN(
            dspy.Predict("question -> answer"), N=3, reward_fn=as_dspy_reward(never_enough), threshold=1.0
        )
        evaluate(program, whole(), cases(40), server.lm())
    assert len(attempts.read) == 120
    assert rollouts(attempts) == served_rollouts(server)
    assert {case: figures(seen) for case, seen in whole.read} == {
        case: figures(calls) for case, calls in server.by_case().items()
    }


@pytest.mark.parametrize("program", [True, False], ids=["program_run", "plain run"])
def test_each_rollout_of_gepa_optimize_is_measured_without_a_block(program):
    watching = Watching()
    count = iter(range(1, 1_000))
    with ModelServer(in_fields()) as server, contextlib.ExitStack() as stack:
        lm = server.lm()
        predict = dspy.Predict("question -> answer")

        def plain(artifact, input):
            return lm(f"{artifact['self']} {input['question']}")[0]

        adapter = stack.enter_context(
            as_gepa_adapter(
                watching.score, program_run(predict) if program else plain, artifact=program_artifact(predict)
            )
        )
        stack.enter_context(dspy.context(lm=lm))
        data = [{"input": {"question": case.question}} for case in cases(40)]
        gepa.optimize(
            adapter.seed_candidate,
            trainset=data[:20],
            valset=data[20:],
            adapter=adapter,
            reflection_lm=as_reflection_lm(lambda prompt: f"```\nAnswer {'well ' * next(count)}\n```"),
            max_metric_calls=ROLLOUTS,
            perfect_score=2.0,
            logger=Silent(),
        )
    assert len(watching.read) >= ROLLOUTS
    assert rollouts(watching) == served_rollouts(server)
    assert all(seen.time_ms >= 0 for _, seen in watching.read)


class Silent:
    def log(self, message): ...


def test_each_attempt_of_refine_is_a_rollout():
    attempts = Watching()

    def never_enough(input, output, expected=None):
        attempts.read.append((input["question"].split()[0], observation()))
        return 0.0, {"feedback": "Read."}

    def advising(messages):
        if "advice" in text_of(messages[-1:]):
            raise RefusedError(400)  # the attempts go on without it
        return in_fields()(messages)

    with ModelServer(advising) as server:
        program = dspy.Refine(
            dspy.Predict("question -> answer"), N=2, reward_fn=as_dspy_reward(never_enough), threshold=1.0
        )
        with dspy.context(lm=server.lm()), measuring():
            for case in cases(3):
                program(question=case.question)
    assert len(attempts.read) == len(server.served) == 6
    assert rollouts(attempts) == served_rollouts(server)


def test_answers_that_are_judged_later_keep_what_they_took():
    watching = Watching()
    metric, program, devset = watching(), dspy.Predict("question -> answer"), cases(40)

    async def by_hand(case):
        return await program.acall(question=case.question)

    async def all_of_them():
        return await asyncio.gather(*(by_hand(case) for case in devset[20:]))

    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()), measuring():
        pairs = [(program, case) for case in devset[:20]]
        answers = dspy.Parallel(num_threads=THREADS, disable_progress_bar=True)(pairs)
        answers += asyncio.run(all_of_them())
        for case, answer in zip(devset, answers, strict=True):
            metric(case, answer)
    assert rollouts(watching) == served_rollouts(server)


def test_an_object_that_is_several_answers_is_not_measured_once_it_is_judged_later():
    watching = Watching()
    metric, program = watching(), Shared()
    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()), measuring():
        answers = [program(question=case.question) for case in cases(2)]
        dspy.Predict("question -> answer")(question="case-3")
        metric(cases(1)[0], answers[0])
    assert "same object as another answer" in watching.read[0][1].reasons["cost_usd"]


class Constant(dspy.Module):
    """Gives the same text whatever it has asked."""

    def __init__(self):
        super().__init__()
        self.write = dspy.Predict("question -> answer")

    def forward(self, question):
        for _ in range(int(question[-1])):
            self.write(question=question)
        return "yes"


@pytest.mark.parametrize("make", [Constant, Shared])
def test_the_last_of_several_answers_in_one_object_is_not_taken_for_an_earlier_one(make):
    watching = Watching()
    metric, program = watching(), make()
    [case] = cases(1)
    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()), measuring():
        answers = [program(question=f"case-{calls}") for calls in (3, 1)]
        for answer in answers:
            metric(case, answer)
        metric(case, program(question="case-2"))  # judged right after it, as DSPy does
    (_, first), (_, second), (_, third) = watching.read
    assert (first.model_calls, second.model_calls) == (None, None)
    assert "same object as another answer" in first.reasons["cost_usd"]
    assert third.model_calls == (2 if make is Constant else 1)


# --- the judge's own calls --------------------------------------------------------------------------


def test_a_judges_calls_are_on_its_bill_and_in_no_rollout():
    from skynet import llm

    read = []

    def score(input, output, expected=None):
        before = observation()
        llm("Is it right?", input=f"{input['question']} {output}")
        dspy.Predict("question -> verdict")(question=input["question"])
        read.append((input["question"].split()[0], before))
        assert observation() == before
        return 1.0, {"feedback": "Right."}

    with ModelServer(in_fields()) as server:
        metric = as_dspy_metric(score, metric_lm=server.lm("openai/gpt-4.1-mini"))
        program = dspy.Predict("question -> answer")
        evaluate(program, metric, cases(), server.lm())
    judged = server.of("gpt-4.1-mini")
    assert len(metric.failures) == 0
    assert len(judged) == 2 * ROLLOUTS
    assert {case: figures(seen) for case, seen in read} == {
        case: figures(calls) for case, calls in server.by_case().items()
    }
    bill = metric.metric.bill
    assert (bill.calls, bill.cached_calls, bill.unpriced_calls) == (2 * ROLLOUTS, 0, 0)
    assert bill.input_tokens == sum(call.input_tokens for call in judged)
    assert bill.output_tokens == sum(call.output_tokens for call in judged)
    assert math.isclose(bill.usd, sum(call.cost for call in judged))


def test_a_judge_inside_of_a_program_is_no_part_of_it():
    from skynet import llm

    attempts, whole = [], Watching()

    def judged(input, output, expected=None):
        attempts.append(observation())
        llm("Is it right?", input=f"{input['question']} {output}")
        dspy.Predict("question -> verdict")(question=input["question"])
        return 0.0, {"feedback": "Not yet."}

    with ModelServer(in_fields()) as server:
        judge = server.lm("openai/gpt-4.1-mini")
        reward = as_dspy_reward(judged, metric_lm=judge)

        program = dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=reward, threshold=1.0)
        evaluate(program, whole(), cases(20), server.lm())
    assert len(server.of("gpt-4.1-mini")) == 2 * 60
    assert reward.metric.bill.calls == 2 * 60
    assert len(attempts) == 60
    assert {seen.model_calls for seen in attempts} == {1}
    assert {case: figures(seen) for case, seen in whole.read} == {
        case: figures(calls) for case, calls in server.by_case().items()
    }


def test_a_program_cannot_hide_its_calls_behind_the_judge_s():
    from skynet import llm

    class Hiding(dspy.Module):
        def forward(self, question):
            return dspy.Prediction(answer=llm("Answer.", input=question))

    watching = Watching()
    with ModelServer(in_fields()) as server, models(metric_lm=server.lm()):
        evaluate(Hiding(), watching(), cases(20), server.lm())
        data = [{"input": {"question": case.question}} for case in cases(20, 20)]
        with as_gepa_adapter(
            watching.score, lambda artifact, input: llm("Answer.", input=input["question"]), artifact="x"
        ) as adapter:
            adapter.evaluate(data, adapter.seed_candidate)
    assert len(watching.read) == 40
    assert rollouts(watching) == served_rollouts(server)


@pytest.mark.parametrize("others", [0, 1])
def test_a_program_that_asks_a_function_pays_for_it_by_calls(others):
    from skynet import llm

    watching, predict = Watching(), dspy.Predict("question -> answer")

    def run(artifact, input):
        for _ in range(others):
            predict(question=input["question"])
        return llm("Answer.", input=input["question"])

    class Asking(dspy.Module):
        def forward(self, question):
            return dspy.Prediction(answer=run("", {"question": question}))

    def stand_in(messages):
        return "A"

    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()), models(metric_lm=stand_in):
        evaluate(Asking(), watching(), cases(1), server.lm())
        with as_gepa_adapter(watching.score, run, artifact="x") as adapter:
            adapter.evaluate([{"input": {"question": "case-1"}}], adapter.seed_candidate)
    assert len(watching.read) == 2
    for _, seen in watching.read:
        assert (seen.model_calls, seen.input_tokens, seen.cost_usd) == (1 + others, None, None)
        assert "the model 'stand_in' reported no tokens" in seen.reasons["cost_usd"]


# --- time -------------------------------------------------------------------------------------------


class Stopwatch:
    """Takes the time of what is done, by name, from outside and by the clock that the server's log has."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def taking(self, name=""):
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.ms[name] += (time.perf_counter() - begun) * 1e3

    def around(self, program):
        """The program, each call of which is timed by case."""
        kind, stopwatch = type(program), self

        class Timed(kind):
            def __call__(self, **inputs):
                with stopwatch.taking(inputs["question"].split()[0]):
                    return super().__call__(**inputs)

        program.__class__ = Timed
        return program


def served_ms(calls):
    return sum(call.ended - call.begun for call in calls) * 1e3


def test_the_time_of_a_rollout_is_its_own():
    watching, stopwatch = Watching(), Stopwatch()
    slow = "case-7 "
    with ModelServer(in_fields(), lambda messages: 0.5 if slow in text_of(messages[-1:]) else 0.0) as server:
        evaluate(stopwatch.around(Nested()), watching(), cases(40), server.lm())
    times = {case: seen.time_ms for case, seen in watching.read}
    for case, calls in server.by_case().items():
        assert served_ms(calls) <= times[case] <= stopwatch.ms[case]
    assert len(times) == 40
    assert times["case-7"] >= 1_000


def test_the_time_that_a_reward_takes_is_not_the_programs():
    whole, program_time, reward_time = Watching(), Stopwatch(), Stopwatch()

    def slow_reward(input, output, expected=None):
        with reward_time.taking():
            threading.Event().wait(0.3)
        return 0.0, {"feedback": "Slow."}

    with ModelServer(in_fields()) as server:
        program = dspy.BestOfN(
            dspy.Predict("question -> answer"), N=3, reward_fn=as_dspy_reward(slow_reward), threshold=1.0
        )
        evaluate(program_time.around(program), whole(), cases(1), server.lm(), threads=1)
    [(_, seen)] = whole.read
    assert reward_time.ms[""] >= 900
    assert served_ms(server.served) <= seen.time_ms <= program_time.ms["case-0"] - reward_time.ms[""]


# --- answers from a cache ---------------------------------------------------------------------------


def test_a_cached_answer_counts_with_the_time_and_cost_of_the_first_one():
    first, second = Watching(), Watching()
    with ModelServer(in_fields(), lambda messages: 0.05) as server:
        lm = server.lm(cache=True)
        devset = cases(20, 1_000)
        evaluate(Nested(), first(), devset, lm)
        evaluate(Nested(), second(), devset, lm)
    assert len(server.served) == 40
    again = dict(second.read)
    for case, seen in first.read:
        assert figures(again[case]) == figures(seen)
        assert (seen.cached_calls, again[case].cached_calls) == (0, 2)
        assert again[case].time_ms >= served_ms(server.by_case()[case])


def test_cached_answers_of_calls_at_once_do_not_add_up():
    first, second = Watching(), Watching()
    with ModelServer(in_fields(), lambda messages: 0.6) as server:
        lm = server.lm(cache=True)
        evaluate(Async(), first(), cases(1, 1_100), lm)
        evaluate(Async(), second(), cases(1, 1_100), lm)
    [(_, real)], [(_, cached)] = first.read, second.read
    assert (cached.cached_calls, len(server.served)) == (2, 2)
    assert cached.time_ms == pytest.approx(real.time_ms, abs=0.01)


def test_calls_in_the_programs_own_thread_wait_for_those_in_others():
    own, other, third = (1, 0), (2, 0), (3, 0)

    def asked(strand, begun, longer):
        call = _Asked(strand)
        call.begun, call.ended, call.longer = begun, begun + 0.5, longer
        return call

    at_once = [asked(own, 0, 1.0), asked(other, 1, 2.0), asked(third, 2, 3.0), asked(own, 3, 4.0)]
    assert _longest(at_once, own) == 1.0 + 3.0 + 4.0
    assert _longest([asked(own, 0, 0.0)], own) == 0.0


def test_an_answer_that_nobody_has_timed_has_no_time_and_says_so_once(monkeypatch, caplog):
    watching = Watching()
    metric = watching(name="speedy")
    with ModelServer(in_fields()) as server:
        lm = server.lm(cache=True)
        devset = cases(2, 1_200)
        with dspy.context(lm=lm), monkeypatch.context() as without:
            without.setattr(execution, "execute", execution.execute.__wrapped__)  # as before this package
            for case in devset:
                dspy.Predict("question -> answer")(question=case.question)
        evaluate(dspy.Predict("question -> answer"), metric, devset, lm)
    for _, seen in watching.read:
        assert seen.time_ms is None
        assert "came from a cache, and nobody has timed the first one" in seen.reasons["time_ms"]
    assert math.isclose(sum(seen.cost_usd for _, seen in watching.read), sum(c.cost for c in server.served))
    [told] = [record.message for record in caplog.records if "'speedy' reads what" in record.message]
    assert "dspy.configure_cache(enable_disk_cache=False)" in told


@pytest.mark.parametrize("ask", ["sync", "async"])
@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_an_answer_that_was_cached_before_anybody_measured_has_the_time_of_the_first_one(ask, cache):
    watching, stopwatch = Watching(), Stopwatch()
    predict, first = dspy.Predict("question -> answer"), 1_210 + 2 * (ask == "sync") + (cache == "disk")

    def program(question):
        return asyncio.run(predict.acall(question=question)) if ask == "async" else predict(question=question)

    [case] = cases(1, first)
    with ModelServer(in_fields(), lambda messages: 0.3) as server, dspy.context(lm=server.lm(cache=True)):
        with stopwatch.taking("first"):
            program(case.question)
        if cache == "disk":
            dspy.cache.reset_memory_cache()  # as it is in the next process
        with measuring():
            with stopwatch.taking("again"):
                answer = program(case.question)
            watching()(case, answer)
    [(_, seen)] = watching.read
    assert len(server.served) == seen.cached_calls == 1
    assert 300 <= served_ms(server.served) <= seen.time_ms <= stopwatch.ms["first"] + stopwatch.ms["again"]
    assert seen.cost_usd == server.served[0].cost


def test_a_cache_that_cannot_be_read_knows_no_first_times(tmp_path, monkeypatch):
    cache = Cache(enable_disk_cache=True, enable_memory_cache=False, disk_cache_dir=str(tmp_path / "cache"))
    monkeypatch.setattr(dspy, "cache", cache)
    keep_seconds("a", 0.5)
    assert first_seconds("a") == 0.5
    for seconds in (math.nan, math.inf, -1.0):
        keep_seconds("b", seconds)
        assert first_seconds("b") is None
    cache.disk_cache.close()
    for file in (tmp_path / "cache").rglob("cache.db*"):
        file.write_bytes(b"no database" * 1_000)
    with pytest.raises(sqlite3.DatabaseError):
        cache.get({"of": "something"})
    assert first_seconds("a") is None
    keep_seconds("a", 0.5)


def test_a_baseline_outside_of_the_block_does_not_decide_which_program_wins():
    """The quick program is asked first, with nobody measuring; it must not count as one of unknown time."""
    stopwatch = Stopwatch()

    def delay(messages):  # the slow one's answer takes longer than all that the quick one took
        return stopwatch.ms["quick"] / 1e3 if "slowly" in text_of(messages) else 0.05

    with ModelServer(in_fields(), delay) as server:
        lm = server.lm(cache=True)
        quick = dspy.Predict(dspy.Signature("question -> answer", "Answer quickly."))
        slow = dspy.Predict(dspy.Signature("question -> answer", "Answer slowly."))
        devset = cases(4, 1_350)

        def score(input, output, expected=None):
            seconds = (observation().time_ms or math.inf) / 1e3
            return 1.0 / (1.0 + seconds), {"feedback": f"{seconds:.1f} s."}

        with stopwatch.taking("quick"):
            with dspy.context(lm=lm):
                dspy.Evaluate(devset=devset, metric=as_dspy_metric(score), num_threads=4)(quick)
            quicks = evaluate(quick, as_dspy_metric(score), devset, lm).score
        slows = evaluate(slow, as_dspy_metric(score), devset, lm).score
    assert len(server.served) == 8
    assert quicks > slows > 0


class Fan(dspy.Module):
    """Asks eight times at once."""

    def __init__(self, in_pool):
        super().__init__()
        self.write, self.in_pool = dspy.Predict("question -> answer"), in_pool

    def forward(self, question):
        questions = [f"{question} {letter}" for letter in "abcdefgh"]
        if self.in_pool:
            with ThreadPoolExecutor(8) as pool:
                asked = [
                    pool.submit(contextvars.copy_context().run, self.write, question=one) for one in questions
                ]
                return next(one.result() for one in asked)
        pairs = [(self.write, {"question": one}) for one in questions]
        return dspy.Parallel(num_threads=8, disable_progress_bar=True)(pairs)[0]


def test_cached_answers_of_a_run_that_fans_out_take_as_long_as_the_first_ones():
    watching, program = Watching(), Fan(in_pool=True)
    with ModelServer(in_fields(), lambda messages: 0.4) as server, dspy.context(lm=server.lm(cache=True)):

        def run(artifact, input):
            return program.forward(input["question"]).answer

        with as_gepa_adapter(watching.score, run, artifact="x") as adapter:
            for _ in range(4):
                adapter.evaluate([{"input": {"question": "case-1130"}}], adapter.seed_candidate)
    first, *others = (seen for _, seen in watching.read)
    assert len(server.served) == 8
    for other in others:
        assert other.cached_calls == 8
        assert other.time_ms == pytest.approx(first.time_ms, abs=0.01)


@pytest.mark.parametrize("in_pool", [True, False])
def test_cached_answers_of_a_program_that_fans_out_take_as_long_as_the_first_ones(in_pool):
    first, second = Watching(), Watching()
    with ModelServer(in_fields(), lambda messages: 0.4) as server:
        lm, devset = server.lm(cache=True), cases(1, 1_120 + in_pool)
        evaluate(Fan(in_pool), first(), devset, lm)
        evaluate(Fan(in_pool), second(), devset, lm)
    [(_, real)], [(_, cached)] = first.read, second.read
    assert (real.cached_calls, cached.cached_calls, len(server.served)) == (0, 8, 8)
    assert cached.time_ms == pytest.approx(real.time_ms, abs=0.01)


def test_a_fan_whose_first_answers_came_otherwise_has_no_time_where_a_thread_serves_several():
    own, pool = (1, 0), (2, 0)
    one, other = _Asked(pool), _Asked(pool)
    assert _shares_a_thread((_Asked(own), _Asked(own), one), own) is False
    assert _shares_a_thread((one, other), own) is True
    other.item = one.item  # calls that follow one another in one item
    assert _shares_a_thread((one, other), own) is False


def test_what_is_loaded_for_the_first_call_is_no_rollouts_time(monkeypatch):
    import skynet_adapters.dspy_first_answers as first_answers

    watching, stopwatch = Watching(), Stopwatch()
    program = stopwatch.around(dspy.Predict("question -> answer"))

    def load(*names):
        with stopwatch.taking("loading"):
            threading.Event().wait(0.6)

    monkeypatch.setattr(first_answers, "model_info", load)
    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()), measuring():
        monkeypatch.setattr(first_answers, "_ready", False)
        watching()(cases(1)[0], program(question="case-0"))
    [(_, seen)] = watching.read
    assert stopwatch.ms["loading"] >= 600
    assert served_ms(server.served) <= seen.time_ms <= stopwatch.ms["case-0"] - stopwatch.ms["loading"]


def test_the_order_of_evaluation_does_not_decide_which_program_wins():
    """The slow program is asked last, with all its answers cached; it must not look fast."""
    whole_of_quick = 0.0

    def score(input, output, expected=None):
        return 1_000 / (1_000 + observation().time_ms), {"feedback": f"{observation().time_ms:.0f} ms."}

    # A slow answer takes longer than all quick ones together, however fast the machine is.
    def delay(messages):
        return 0.0 if "quickly" in text_of(messages) else whole_of_quick

    with ModelServer(in_fields(), delay) as server:
        lm = server.lm(cache=True)
        quick = dspy.Predict(dspy.Signature("question -> answer", "Answer quickly."))
        slow = dspy.Predict(dspy.Signature("question -> answer", "Answer slowly."))
        devset = cases(8, 1_300)
        begun = time.perf_counter()
        quicks = evaluate(quick, as_dspy_metric(score), devset, lm).score
        whole_of_quick = time.perf_counter() - begun
        evaluate(slow, as_dspy_metric(score), devset, lm)
        slows = evaluate(slow, as_dspy_metric(score), devset, lm).score
    assert len(server.served) == 16
    assert quicks > slows


# --- what cannot be measured ------------------------------------------------------------------------


def test_a_model_without_a_price_is_named_and_can_be_given_one():
    from .scripted import answering

    watching, priced = Watching(), Watching()
    evaluate(dspy.Predict("question -> answer"), watching(), cases(1), answering(lambda question: "A"))
    [(_, seen)] = watching.read
    assert (seen.cost_usd, seen.input_tokens, seen.output_tokens) == (None, 10, 5)
    assert "no price is known for the model 'scripted/model'" in seen.reasons["cost_usd"]
    assert "measuring(prices=" in seen.reasons["cost_usd"]
    with dspy.context(lm=answering(lambda question: "A")), measuring(prices={"scripted/model": (2, 4)}):
        dspy.Evaluate(devset=cases(1), metric=priced())(dspy.Predict("question -> answer"))
    assert priced.read[0][1].cost_usd == pytest.approx(40e-6)


@pytest.mark.parametrize(
    "price", [1.0, (1.0,), (-1, 2), ("a", "b"), ("1", "2"), "12", (True, 2), {1, 2}, None]
)
def test_a_price_that_is_no_pair_of_numbers_is_refused(price):
    from skynet_adapters import DefinitionError

    with (
        pytest.raises(DefinitionError, match="US dollars per million tokens"),
        measuring(prices={"m": price}),
    ):
        pass


@pytest.mark.parametrize("prices", [["m"], "m", 3])
def test_prices_that_are_no_dict_are_refused(prices):
    from skynet_adapters import DefinitionError

    with pytest.raises(DefinitionError, match="must be a dict of models"), measuring(prices=prices):
        pass


def test_prices_of_a_block_around_hold_inside_and_one_that_no_model_has_is_told(caplog):
    from .scripted import answering

    watching, [case] = Watching(), cases(1)
    with (
        dspy.context(lm=answering(lambda question: "A")),
        measuring(prices={"scripted/model": (2, 4)}),
        measuring(prices={"scripted/modle": (1, 1)}),
    ):
        watching()(case, dspy.Predict("question -> answer")(question=case.question))
    assert watching.read[0][1].cost_usd == pytest.approx(40e-6)
    [told] = [record.message for record in caplog.records if "prices=" in record.message]
    assert "no model that was asked is called 'scripted/modle'; asked were 'scripted/model'" in told


def test_a_history_that_the_program_turns_off_is_named_as_the_reason():
    class Forgetful(dspy.Module):
        def __init__(self):
            super().__init__()
            self.write = dspy.Predict("question -> answer")

        def forward(self, question):
            with dspy.context(disable_history=True):
                return self.write(question=question)

    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(Forgetful(), watching(), cases(1), server.lm())
    assert "with disable_history=True" in watching.read[0][1].reasons["cost_usd"]


def test_without_a_history_tokens_and_cost_are_unknown_and_not_nothing():
    watching = Watching()
    with ModelServer(in_fields()) as server, dspy.context(disable_history=True):
        evaluate(dspy.Predict("question -> answer"), watching(), cases(2), server.lm())
    for _, seen in watching.read:
        assert (seen.model_calls, seen.input_tokens, seen.cost_usd) == (1, None, None)
        assert "disable_history" in seen.reasons["cost_usd"]
        assert seen.time_ms > 0


def test_a_run_that_asks_no_model_that_can_be_seen_is_measured_in_time_alone():
    watching = Watching()
    adapter = as_gepa_adapter(watching.score, lambda artifact, input: "A", artifact="Answer.")
    with adapter:
        adapter.evaluate([{"input": {"question": "case-1"}}], adapter.seed_candidate)
    [(_, seen)] = watching.read
    assert seen.time_ms >= 0
    assert (seen.model_calls, seen.cost_usd) == (None, None)
    assert "only those of a dspy.LM can be measured" in seen.reasons["cost_usd"]


class Tracer(BaseCallback): ...


class WithCallbacks(dspy.Module):
    def __init__(self, callbacks):
        super().__init__()
        self.write = dspy.Predict("question -> answer")
        self.own = callbacks

    def forward(self, question):
        with dspy.context(callbacks=self.own):
            return self.write(question=question)


def test_calls_where_a_program_has_taken_all_callbacks_away_are_measured_still():
    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(WithCallbacks([]), watching(), cases(40), server.lm())
    assert rollouts(watching) == served_rollouts(server)


def test_calls_where_a_program_has_set_callbacks_of_its_own_are_not_measured_and_it_says_so():
    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(WithCallbacks([Tracer()]), watching(), cases(5), server.lm())
    for _, seen in watching.read:
        assert (seen.model_calls, seen.cost_usd) == (None, None)
        assert "set callbacks of its own" in seen.reasons["cost_usd"]
        assert seen.time_ms > 0


class Hiding(dspy.Module):
    """Asks where nothing hears it."""

    def __init__(self, way):
        super().__init__()
        self.write, self.way = dspy.Predict("question -> answer"), way

    def forward(self, question):
        lm = dspy.settings.lm
        match self.way:
            case "settings":
                with dspy.context(callbacks=[], caller_modules=[]):
                    self.write(question=question)
            case "history":
                with dspy.context(callbacks=[], disable_history=True):
                    self.write(question=question)
            case "forward":
                lm.forward(prompt=question)
            case "thread":
                thread = threading.Thread(target=lambda: lm(question))
                thread.start()
                thread.join()
        return dspy.Prediction(answer="A")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("settings", "taken away what measures it"),
        ("history", "taken away what measures it"),
        ("forward", "taken away what measures it"),
        ("thread", "in a thread without context"),
    ],
)
def test_a_call_that_a_program_hides_does_not_count_as_none(way, said):
    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(Hiding(way), watching(), cases(2), server.lm())
    assert len(server.served) == len(watching.read) == 2
    for _, seen in watching.read:
        assert (seen.model_calls, seen.cost_usd) == (None, None)
        assert said in seen.reasons["cost_usd"]
        assert seen.time_ms > 0


def test_a_record_that_a_program_leaves_behind_is_not_what_it_is_judged_with():
    from skynet_adapters import Observation
    from skynet_adapters.measure import observed

    left = []

    class Forging(dspy.Module):
        def forward(self, question):
            left.append(observed(Observation(time_ms=0.0, cost_usd=0.0)))
            left[-1].__enter__()
            return dspy.Prediction(answer="A")

    watching = Watching()
    watching()(cases(1)[0], Forging()(question="case-0"))
    left[0].__exit__(None, None, None)
    [(_, seen)] = watching.read
    assert (seen.time_ms, seen.cost_usd) == (None, None)
    assert "nobody measured this rollout" in seen.reasons["cost_usd"]


def test_a_function_around_a_module_is_not_measured_and_says_so():
    watching = Watching()
    with ModelServer(in_fields()) as server:
        predict = dspy.Predict("question -> answer")
        evaluate(
            lambda question: predict(question=question).answer.upper(), watching(), cases(1), server.lm()
        )
    [(_, seen)] = watching.read
    assert seen.time_ms is None
    assert "has to be made a module" in seen.reasons["time_ms"]


def test_a_function_around_one_module_is_measured_and_one_around_several_is_not():
    one, several = Watching(), Watching()
    draft, write = dspy.Predict("question -> draft"), dspy.Predict("question -> answer")

    def both(question):
        draft(question=question)
        return write(question=question)

    with ModelServer(in_fields()) as server:
        evaluate(lambda question: write(question=question), one(), cases(6), server.lm(), threads=2)
        evaluate(both, several(), cases(6, 6), server.lm(), threads=2)
    assert {seen.model_calls for _, seen in one.read} == {1}
    assert {seen.model_calls for _, seen in several.read} == {None}
    assert "a function that calls several modules or models" in several.read[0][1].reasons["cost_usd"]


def test_an_evaluation_inside_of_a_program_belongs_to_it():
    class Checking(dspy.Module):
        def __init__(self):
            super().__init__()
            self.write = dspy.Predict("question -> answer")

        def forward(self, question):
            devset = [dspy.Example(question=question).with_inputs("question")] * 3
            dspy.Evaluate(devset=devset, metric=lambda gold, pred: 1.0, num_threads=2)(self.write)
            return self.write(question=question)

    watching = Watching()
    with ModelServer(in_fields()) as server:
        evaluate(Checking(), watching(), cases(5), server.lm())
    assert {case: figures(seen) for case, seen in watching.read} == {
        case: figures(calls) for case, calls in server.by_case().items()
    }
    assert {seen.model_calls for _, seen in watching.read} == {4}


@pytest.mark.parametrize("size", [0, 1])
def test_a_short_history_hides_nothing(size):
    watching = Watching()
    with ModelServer(in_fields()) as server, dspy.context(max_history_size=size):
        evaluate(dspy.Predict("question -> answer"), watching(), cases(40), server.lm())
    assert rollouts(watching) == served_rollouts(server)


def test_a_cached_answer_of_a_model_that_reports_no_usage_is_known_as_one():
    from dspy.lm15 import Message, Response, TextPart, Usage

    class Silent:
        def complete(self, request):
            threading.Event().wait(0.1)
            return Response(
                id=None,
                model="silent",
                message=Message.assistant([TextPart("[[ ## answer ## ]]\nA\n\n[[ ## completed ## ]]")]),
                finish_reason="stop",
                usage=Usage(),
            )

    watching = Watching()
    lm = dspy.LM("silent/model", engine=Silent())
    for _ in range(2):
        evaluate(dspy.Predict("question -> answer"), watching(), cases(1, 1_400), lm)
    first, second = (seen for _, seen in watching.read)
    assert (first.cached_calls, second.cached_calls) == (0, 1)
    assert second.time_ms >= 100
    assert "reported no tokens" in second.reasons["input_tokens"]


def test_a_forgotten_block_is_told_once_with_the_metrics_name(caplog):
    watching = Watching()
    metric = watching(name="speedy")
    with ModelServer(in_fields()) as server, dspy.context(lm=server.lm()):
        for _ in range(2):
            dspy.Evaluate(devset=cases(5), metric=metric)(dspy.Predict("question -> answer"))
    told = [record.message for record in caplog.records if "with measuring()" in record.message]
    assert told == [text for text in told if "'speedy' reads what a rollout took" in text]
    assert len(told) == 1
    assert watching.read[-1][1].reasons["cost_usd"].endswith("run it inside `with measuring():`")


def test_a_metric_that_reads_measurements_is_asked_for_equal_contents_too():
    watching = Watching()
    metric = watching(memo="content")
    with ModelServer(in_fields()) as server:
        devset = cases(3) * 2
        evaluate(dspy.Predict("question -> answer"), metric, devset, server.lm())
    assert metric.metric.calls == len(watching.read) == 6


def test_a_call_that_failed_counts_without_tokens():
    watching = Watching()

    def answer(messages):
        if "draft" in text_of(messages):
            raise RefusedError(400)
        return in_fields()(messages)

    class Fallback(dspy.Module):
        def __init__(self):
            super().__init__()
            self.draft, self.write = dspy.Predict("question -> draft"), dspy.Predict("question -> answer")

        def forward(self, question):
            with contextlib.suppress(Exception):
                self.draft(question=question)
            return self.write(question=question)

    with ModelServer(answer) as server:
        evaluate(Fallback(), watching(), cases(3), server.lm())
    assert server.refused >= 3
    for case, seen in watching.read:
        [call] = server.by_case()[case]
        assert seen.model_calls >= 2
        assert figures(seen)[1:] == figures([call])[1:]


def test_the_cost_of_the_service_is_that_of_the_rollout():
    read = []

    def score(input, output, expected=None):
        read.append((observation(), service_cost()))
        return 1.0, {"feedback": "Read."}

    with ModelServer(in_fields()) as server:
        evaluate(dspy.Predict("question -> answer"), as_dspy_metric(score), cases(1), server.lm())
    [(seen, cost)] = read
    assert (cost.usd, cost.input_tokens, cost.model_calls) == (seen.cost_usd, seen.input_tokens, 1)
    assert cost.reason is None


def test_a_metric_of_the_core_is_given_what_a_rollout_took():
    from skynet_adapters import Observation

    metric = Metric(lambda input, output, expected: (1.0, {"feedback": f"{observation().time_ms:.0f} ms"}))
    assert metric.score_case({}, "A", observation=Observation(time_ms=12.0)).feedback == "12 ms"


@pytest.mark.shared
def test_the_example_metric_of_speed_and_cost_runs_unchanged_in_evaluate_and_gepa(shared_metric):
    def speed_and_cost(input, output, expected):
        return shared_metric("accuracy_speed_cost")(input, output, {"label": "A"})

    with ModelServer(in_fields(answer="A")) as server:
        predict, lm = dspy.Predict("question -> answer"), server.lm()
        result = evaluate(predict, as_dspy_metric(speed_and_cost), cases(4), lm)
        with (
            dspy.context(lm=lm),
            as_gepa_adapter(
                speed_and_cost, program_run(predict), artifact=program_artifact(predict)
            ) as adapter,
        ):
            batch = adapter.evaluate(cases(4, 4), adapter.seed_candidate, capture_traces=True)
    feedbacks = [score.feedback for *_, score in result.results]
    feedbacks += [trajectory.score.feedback for trajectory in batch.trajectories]
    assert len(feedbacks) == 8
    for feedback in feedbacks:
        assert "Speed" in feedback
        assert "Cost" in feedback
        assert "not measured" not in feedback
