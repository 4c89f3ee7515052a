"""The code that is being run cannot change what is measured of it."""

import asyncio
import math
import threading
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything

from skynet import llm
from skynet_adapters import (
    Metric,
    as_dspy_metric,
    as_dspy_reward,
    as_gepa_adapter,
    as_gepa_evaluator,
    measuring,
    models,
    observation,
    optimize_artifact,
)
from skynet_adapters.dspy_measuring import judging
from skynet_adapters.measure import rollout

from .scripted import answering

MODEL = "scripted/model"
# The scripted model reads 10 tokens and writes 5.
PRICES = {MODEL: (1e6, 2e6)}
ONE_CALL = (1, 10, 5, 20.0)
FREE = {MODEL: (0, 0)}
CASE = dspy.Example(question="case-1", answer="A").with_inputs("question")


class Watching:
    """A metric that keeps what it read."""

    def __init__(self) -> None:
        self.read: list[Any] = []

    def __call__(self, input, output, expected=None):
        self.read.append(observation())
        return 1.0, {"feedback": "Read."}

    @property
    def figures(self):
        return [
            (seen.model_calls, seen.input_tokens, seen.output_tokens, seen.cost_usd) for seen in self.read
        ]


class Doing(dspy.Module):
    """A program that does one thing and answers."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, question):
        self.what(question)
        return dspy.Prediction(answer="A")


def ask(question="case-1"):
    return dspy.Predict("question -> answer")(question=question)


def asking(input, output, expected=None):
    ask()
    return 1.0, {"feedback": "Asked."}


def asking_by_llm(input, output, expected=None):
    llm("Is it right?", input="case-1")
    return 1.0, {"feedback": "Asked."}


async def asking_later(input, output, expected=None):
    await asyncio.to_thread(llm, "Is it right?", input="case-1")
    return 1.0, {"feedback": "Asked."}


def measured_everywhere(what):
    """Give the records of a program that does this, of Evaluate and of a run of gepa."""
    watching, lm = Watching(), answering(lambda question: "A")
    with dspy.context(lm=lm), models(metric_lm=lm), measuring(prices=PRICES):
        dspy.Evaluate(devset=[CASE], metric=as_dspy_metric(watching), num_threads=1)(Doing(what))

        def run(artifact, input):
            what(input["question"])
            return "A"

        for timeout in (60.0, None):
            with as_gepa_adapter(watching, run, artifact="x", run_timeout=timeout) as adapter:
                adapter.evaluate([CASE], adapter.seed_candidate)
    assert len(watching.read) == 3
    assert len(lm.prompts) > 0
    return watching, len(lm.prompts) // 3


# --- prices -----------------------------------------------------------------------------------------


def in_a_block_of_its_own(question):
    with measuring(prices=FREE):
        ask()


def leaving_a_block_open(question):
    measuring(prices=FREE).__enter__()
    ask()


@pytest.mark.parametrize("what", [in_a_block_of_its_own, leaving_a_block_open])
def test_a_rollout_is_priced_with_the_prices_around_it_and_not_with_its_own(what):
    watching, _ = measured_everywhere(what)
    assert watching.figures == [ONE_CALL] * 3


def test_a_block_of_a_program_measures_what_is_in_it_with_its_own_prices():
    inner = Watching()

    def trying(question):
        with measuring(prices={MODEL: (1e6, 0)}):
            as_dspy_metric(inner)(CASE, dspy.Predict("question -> answer")(question=question))

    outer, _ = measured_everywhere(trying)
    assert outer.figures == [ONE_CALL] * 3
    assert inner.figures == [(1, 10, 5, 10.0)] * 3


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_that_evaluates_in_a_block_of_its_own_measures_there(threads):
    inner = Watching()

    def trying(question):
        with measuring(prices={MODEL: (1e6, 0)}):
            metric = as_dspy_metric(inner)
            dspy.Evaluate(devset=[CASE], metric=metric, num_threads=threads)(
                dspy.Predict("question -> answer")
            )

    outer, _ = measured_everywhere(trying)
    assert outer.figures == [ONE_CALL] * 3
    assert inner.figures == [(1, 10, 5, 10.0)] * 3


def test_a_reward_within_the_prices_of_a_program_is_billed_with_those_around_it():
    reward = as_dspy_reward(asking)
    best = dspy.BestOfN(dspy.Predict("question -> answer"), N=2, reward_fn=reward, threshold=2.0)

    def choosing(question):
        with measuring(prices=FREE):
            best(question=question)

    watching, lm = Watching(), answering(lambda question: "A")
    with dspy.context(lm=lm), measuring(prices=PRICES):
        dspy.Evaluate(devset=[CASE], metric=as_dspy_metric(watching), num_threads=1)(Doing(choosing))
    assert watching.figures == [(2, 20, 10, 40.0)]
    assert (reward.metric.bill.calls, reward.metric.bill.usd) == (2, 40.0)


def optimised(evaluator):
    optimize_anything(
        "seed",
        evaluator=evaluator,
        dataset=[{"input": {"question": f"case-{number}"}} for number in range(4)],
        config=GEPAConfig(
            engine=EngineConfig(max_metric_calls=8, max_workers=2),
            reflection=ReflectionConfig(reflection_lm=lambda prompt: "```\nBetter.\n```"),
        ),
    )


@pytest.mark.parametrize("timeout", [60.0, None])
def test_prices_around_what_makes_the_evaluator_hold_in_the_threads_of_optimize_anything(timeout, caplog):
    watching, lm = Watching(), answering(lambda question: "A")

    def judge(input, output, expected=None):
        asking_by_llm(input, output)
        return watching(input, output)

    def run(artifact, input):
        answer = lm(input["question"])[0]
        measuring(prices=FREE).__enter__()  # nor does what it leaves behind price the next case
        return answer

    with models(metric_lm=lm), measuring(prices=PRICES):
        evaluator = as_gepa_evaluator(judge, run, run_timeout=timeout)
        with evaluator:
            optimised(evaluator)
    assert set(watching.figures) == {ONE_CALL}
    bill = evaluator.metric.bill
    assert (bill.unpriced_calls, bill.usd) == (0, 20.0 * bill.calls)
    assert "prices=" not in caplog.text


def test_a_run_of_gepa_without_a_price_is_told_where_to_give_it():
    watching, lm = Watching(), answering(lambda question: "A")
    with as_gepa_evaluator(watching, lambda artifact, input: lm(input["question"])[0]) as evaluator:
        optimised(evaluator)
    assert {seen.cost_usd for seen in watching.read} == {None}
    assert (
        "in runs of gepa around what makes the adapter or evaluator" in watching.read[0].reasons["cost_usd"]
    )


def test_prices_around_optimize_artifact_hold_in_its_run():
    watching, lm = Watching(), answering(lambda question: "A")
    with measuring(prices=PRICES):
        optimize_artifact(
            "seed",
            lambda artifact, input: lm(input["question"])[0],
            watching,
            [{"input": {"question": "case-1"}}],
            reflection_lm=lambda prompt: "```\nBetter.\n```",
            max_metric_calls=4,
            perfect_score=None,
            skip_perfect_score=False,
        )
    assert set(watching.figures) == {ONE_CALL}


# --- calls ------------------------------------------------------------------------------------------


def by_metric(question):
    Metric(asking)({}, "x")


def by_llm_in_a_metric(question):
    Metric(asking_by_llm)({}, "x")


def by_llm_in_a_metric_without_a_limit(question):
    Metric(asking_by_llm, timeout=None)({}, "x")


def by_async_metric(question):
    Metric(asking_later)({}, "x")


def by_isolated_metric(question):
    metric = Metric(asking_by_llm, isolation="process")
    metric({}, "x")
    metric.close()


def in_judging(question):
    with judging():
        ask()


def by_dspy_metric(question):
    as_dspy_metric(asking)(CASE, dspy.Prediction(answer="A"))


def by_dspy_reward(question):
    as_dspy_reward(asking, metric_lm=dspy.settings.lm)({"question": question}, dspy.Prediction(answer="A"))


def by_metric_in_parallel(question):
    pairs = [(Doing(by_metric), {"question": question})] * 2
    dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)


def by_metric_of_an_evaluation(question):
    dspy.Evaluate(devset=[CASE], metric=as_dspy_metric(asking), num_threads=2)(Doing(lambda question: None))


class AskingNothing(dspy.Module):
    def __init__(self, what=lambda question: None):
        super().__init__()
        self.never, self.what = dspy.Predict("question -> answer"), what

    def forward(self, question):
        self.what(question)
        return dspy.Prediction(answer="A")


def by_reward_that_it_makes(question):
    reward = as_dspy_reward(asking)
    dspy.BestOfN(AskingNothing(), N=1, reward_fn=reward, threshold=0.5)(question=question)


def by_metric_in_an_attempt(question):
    program = AskingNothing(by_metric)
    dspy.BestOfN(program, N=1, reward_fn=lambda args, pred: 1.0, threshold=0.5)(question=question)


given_reward = dspy.BestOfN(AskingNothing(), N=1, reward_fn=as_dspy_reward(asking), threshold=0.5).reward_fn


def by_reward_that_it_calls_itself(question):
    given_reward({"question": question}, dspy.Prediction(answer="A"))


def by_gepa_adapter(question):
    with as_gepa_adapter(Watching(), lambda artifact, input: ask() and "A", artifact="x") as adapter:
        adapter.evaluate([CASE], adapter.seed_candidate)


def by_rollout(question):
    with rollout():
        ask()


def with_the_mark_of_a_metric(question):
    with dspy.context(skynet_adapters_inside_metric=True, skynet_adapters_apart=True):
        ask()


HIDING = [
    by_metric,
    by_llm_in_a_metric,
    by_llm_in_a_metric_without_a_limit,
    by_async_metric,
    by_isolated_metric,
    in_judging,
    by_dspy_metric,
    by_dspy_reward,
    by_metric_in_parallel,
    by_metric_of_an_evaluation,
    by_reward_that_it_makes,
    by_metric_in_an_attempt,
    by_reward_that_it_calls_itself,
    by_gepa_adapter,
    by_rollout,
    with_the_mark_of_a_metric,
]


@pytest.mark.parametrize("what", HIDING)
def test_what_a_program_asks_by_a_metric_of_its_own_is_its_own(what):
    watching, calls = measured_everywhere(what)
    assert watching.figures == [tuple(calls * number for number in ONE_CALL)] * 3


def test_a_model_that_is_a_function_and_asked_by_a_programs_own_metric_counts_too():
    watching = Watching()
    with models(metric_lm=lambda messages: "PASS"), measuring():
        dspy.Evaluate(devset=[CASE], metric=as_dspy_metric(watching))(Doing(by_llm_in_a_metric))
    [seen] = watching.read
    assert (seen.model_calls, seen.cost_usd) == (1, None)
    assert "reported no tokens" in seen.reasons["cost_usd"]


def test_a_programs_own_metric_takes_its_time():
    begun = threading.Event()

    def slow(input, output, expected=None):
        begun.wait(0.3)
        return 1.0, {"feedback": "Slow."}

    def in_a_metric(question):
        as_dspy_metric(slow)(CASE, dspy.Prediction(answer="A"))

    def in_judging(question):
        with judging():
            begun.wait(0.3)

    def in_a_rollout(question):
        with rollout() as own:
            begun.wait(0.3)
            own.leave_out(0.0, math.inf)

    watching = Watching()
    with measuring():
        for what in (in_a_metric, in_judging, in_a_rollout):
            dspy.Evaluate(devset=[CASE], metric=as_dspy_metric(watching))(Doing(what))
    assert len(watching.read) == 3
    assert all(seen.time_ms >= 290 for seen in watching.read)


@pytest.mark.parametrize("plain", [False, True])
def test_a_reward_that_is_given_from_outside_is_no_part_of_the_program(plain):
    metric = Metric(asking)
    reward = (lambda args, pred: metric(args, pred.answer)[0]) if plain else as_dspy_reward(metric)
    best = dspy.BestOfN(dspy.Predict("question -> answer"), N=3, reward_fn=reward, threshold=2.0)
    watching, _ = measured_everywhere(lambda question: best(question=question))
    assert watching.figures == [(3, 30, 15, 60.0)] * 3
    assert metric.bill.calls == 9


# --- what hides from the meter ----------------------------------------------------------------------


def with_a_meter_of_its_own_alone(question):
    with dspy.context(callbacks=[], caller_modules=[]), measuring():
        ask()


def with_a_meter_of_its_own_alone_in_threads(question):
    with dspy.context(callbacks=[], caller_modules=[]), measuring():
        pair = (dspy.Predict("question -> answer"), {"question": question})
        dspy.Parallel(num_threads=2, disable_progress_bar=True)([pair, pair])


def beside_a_call_that_is_seen(question):
    ask()
    with dspy.context(callbacks=[BaseCallback()], caller_modules=[]):
        ask()


def by_metric_without_callbacks(question):
    with dspy.context(callbacks=[]):
        by_metric(question)


def by_metric_in_a_module_that_nobody_sees(question):
    with dspy.context(callbacks=[BaseCallback()]):
        Doing(by_metric)(question=question)


def by_metric_in_a_thread_without_context(question):
    lm = dspy.settings.lm

    def work():
        with dspy.context(lm=lm):
            by_metric(question)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "what",
    [
        with_a_meter_of_its_own_alone,
        with_a_meter_of_its_own_alone_in_threads,
        beside_a_call_that_is_seen,
        by_metric_without_callbacks,
        by_metric_in_a_module_that_nobody_sees,
        by_metric_in_a_thread_without_context,
    ],
)
def test_a_call_that_nothing_measures_makes_the_figures_unknown(what):
    watching, _ = measured_everywhere(what)
    for seen in watching.read:
        assert (seen.model_calls, seen.cost_usd) == (None, None)
        assert seen.reasons["cost_usd"]


# --- functions --------------------------------------------------------------------------------------


def evaluated(program, devset=(CASE,), metric=None):
    watching, lm = Watching(), answering(lambda question: "A")
    watching_metric = as_dspy_metric(watching)
    with dspy.context(lm=lm), measuring(prices=PRICES):
        dspy.Evaluate(devset=list(devset), metric=metric or watching_metric, num_threads=1)(program)
    return watching


@pytest.mark.parametrize("answer", [0, 1])
@pytest.mark.parametrize("order", ["module, module", "module, model", "model, module"])
def test_a_function_that_asks_beside_the_module_whose_answer_it_gives_is_not_measured(order, answer):
    def program(question):
        given = [
            ask(question) if kind == "module" else dspy.settings.lm(question) for kind in order.split(", ")
        ]
        return given[answer] if isinstance(given[answer], dspy.Prediction) else given[1 - answer]

    [seen] = evaluated(program).read
    assert seen.cost_usd is None
    assert "a function that calls several modules or models" in seen.reasons["cost_usd"]


def test_a_case_that_fails_in_a_function_leaves_the_next_one_measured():
    def program(question):
        answer = ask(question)
        if question == "case-0":
            raise ValueError(question)
        return answer

    devset = [dspy.Example(question=f"case-{number}").with_inputs("question") for number in range(3)]
    assert evaluated(program, devset).figures == [ONE_CALL] * 2


def test_what_a_metric_asks_by_hand_before_it_reads_is_no_part_of_a_function():
    watching, lm = Watching(), answering(lambda question: "A")
    metric = as_dspy_metric(watching)

    def by_hand(example, prediction, trace=None):
        dspy.settings.lm("Is it right?")
        return metric(example, prediction)

    with dspy.context(lm=lm), measuring(prices=PRICES):
        dspy.Evaluate(devset=[CASE], metric=by_hand, num_threads=1)(lambda question: ask(question))
    assert watching.figures == [ONE_CALL]


def test_a_block_that_a_function_leaves_open_is_not_what_it_is_judged_with():
    def program(question):
        leaving_a_block_open(question)
        return dspy.Prediction(answer="A")

    def leaving(question):
        measuring(prices=FREE).__enter__()
        return ask(question)

    devset = [dspy.Example(question=f"case-{number}").with_inputs("question") for number in range(3)]
    assert evaluated(leaving, devset).figures == [ONE_CALL] * 3
    assert {seen.cost_usd for seen in evaluated(program, devset).read} == {None}
