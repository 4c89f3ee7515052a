"""`llm`: which model it asks, how, on whose bill, and what its failures are."""

import asyncio
import base64
import contextvars
import copy
import io
import logging
import math
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import dspy
import gepa
import pytest
from gepa.image import Image
from gepa.optimize_anything import EngineConfig, GEPAConfig, ReflectionConfig, optimize_anything
from PIL import Image as PillowImage

from skynet import llm
from skynet_adapters import (
    Case,
    DataError,
    DefinitionError,
    Metric,
    MetricError,
    as_dspy_metric,
    as_gepa_adapter,
    as_gepa_evaluator,
    as_reflection_lm,
    check_contract,
    from_dspy_metric,
    models,
    set_models,
)
from skynet_adapters.deadline import wait_within
from skynet_adapters.images import image_url
from skynet_adapters.judge_llm import _warn_of_lost_thread
from skynet_adapters.measure import rollout

from .model_server import ModelServer, RefusedError, in_fields, text_of
from .scripted import answering, chat, examples, scripted_lm


def saying(text):
    return lambda messages: text


def asking(input, output, expected=None):
    verdict = llm("Answer PASS or FAIL.", input=output)
    return float(verdict.startswith("PASS")), {"feedback": verdict}


@pytest.fixture(autouse=True)
def _no_models_of_the_process():
    yield
    set_models()


# --- which model ------------------------------------------------------------------------------------


def test_without_a_model_the_error_says_how_to_choose_one():
    with pytest.raises(
        DefinitionError, match=r"as_dspy_metric\(score, metric_lm=.*with models\(.* set_models\("
    ):
        llm("Is it right?")


def test_the_program_s_model_is_never_asked_in_its_place():
    program_lm = answering(lambda question: "A")
    metric = as_dspy_metric(asking, stop_after=None)
    with dspy.context(lm=program_lm):
        dspy.Evaluate(devset=examples(3), metric=metric)(dspy.Predict("question -> answer"))
    assert len(metric.failures) == 3
    assert "llm() has no model to ask" in next(iter(metric.failures)).text
    assert len(program_lm.prompts) == 3


def test_the_metric_model_goes_before_the_reflection_model_wherever_each_was_chosen():
    set_models(metric_lm=saying("the process's metric model"))
    with models(reflection_lm=saying("the block's reflection model")):
        assert llm("Who?") == "the process's metric model"
        with models(metric_lm=saying("the block's metric model")):
            assert llm("Who?") == "the block's metric model"
    set_models(reflection_lm=saying("the process's reflection model"))
    assert llm("Who?") == "the process's reflection model"
    with models(reflection_lm=saying("the block's reflection model")):
        assert llm("Who?") == "the block's reflection model"


def test_an_inner_block_keeps_what_it_does_not_choose():
    with models(metric_lm=saying("outer")), models(reflection_lm=saying("inner")):
        assert llm("Who?") == "outer"


@pytest.mark.parametrize("option", ["metric_lm", "reflection_lm"])
def test_an_adapter_s_own_model_goes_before_the_block_s(option):
    expected = {"output": "A", "expected": {"answer": "A"}}
    metric = as_dspy_metric(asking, **{option: saying("PASS own")})
    adapter = as_gepa_adapter(
        asking, lambda artifact, input: "A", artifact="x", **{option: saying("PASS own")}
    )
    evaluator = as_gepa_evaluator(asking, **{option: saying("PASS own")})
    with models(**{option: saying("FAIL block")}), adapter:
        [example] = examples(1)
        assert metric(example, dspy.Prediction(answer=expected["output"])).feedback.startswith("PASS own")
        assert adapter.evaluate([{"input": {}}], adapter.seed_candidate).scores == [1.0]
        assert evaluator("an artifact")[0] == 1.0


def test_a_block_reaches_dspy_s_worker_threads():
    metric = as_dspy_metric(asking)
    with dspy.context(lm=answering(lambda question: "A")), models(metric_lm=saying("PASS")):
        result = dspy.Evaluate(devset=examples(20), metric=metric, num_threads=8)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 100


def test_a_model_can_be_chosen_by_its_name():
    with ModelServer(saying("PASS")) as server:
        provider = dspy.lm15.ProviderDefinition.chat(
            dspy.lm15.AccessPolicy(provider="loopback", env_keys=(), base_url=server.url),
            compat=dspy.lm15.OpenAIChatCompat(),
            placeholder_key="none",
        )
        dspy.lm15.register_provider(provider)
        try:
            with models(metric_lm="loopback/gpt-4.1-mini"):
                assert [llm("Answer by name."), llm("And again.")] == ["PASS", "PASS"]
        finally:
            dspy.lm15.unregister_provider("loopback")
    assert [call.model for call in server.served] == ["gpt-4.1-mini"] * 2


@pytest.mark.parametrize("wrong", [3, "", dspy.LM, ["openai/gpt-4o"]])
def test_what_is_no_model_is_refused_where_it_is_chosen(wrong):
    with pytest.raises(DefinitionError, match=r"metric_lm=.* must be a dspy\.LM, a model's name"):
        set_models(metric_lm=wrong)
    with pytest.raises(DefinitionError, match="reflection_lm="), models(reflection_lm=wrong):
        pass
    with pytest.raises(DefinitionError, match="metric_lm="):
        as_dspy_metric(asking, metric_lm=wrong)
    with pytest.raises(DefinitionError, match="reflection_lm="):
        as_gepa_evaluator(asking, reflection_lm=wrong)


# --- what it is asked -------------------------------------------------------------------------------


def asked(*args, **options):
    seen = []
    with models(metric_lm=lambda messages: seen.append(messages) or "PASS"):
        llm(*args, **options)
    return seen[0]


def test_a_prompt_alone_is_the_user_s_and_with_an_input_the_system_s():
    assert asked("Is 4 right?") == [{"role": "user", "content": "Is 4 right?"}]
    assert asked("Is it right?", input="4") == [
        {"role": "system", "content": "Is it right?"},
        {"role": "user", "content": "4"},
    ]
    assert asked("Is it right?", input="")[1] == {"role": "user", "content": ""}


def test_data_is_sent_as_json_and_lone_surrogates_are_replaced():
    assert asked("Right?", input={"café": [1, None]})[1]["content"] == '{"café": [1, null]}'
    assert "\ud800" not in asked("a\ud800b")[0]["content"]


def test_messages_come_before_the_user_s():
    earlier = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert asked("Right?", messages=earlier) == [*earlier, {"role": "user", "content": "Right?"}]
    assert asked("Judge.", input="5", messages=earlier) == [
        {"role": "system", "content": "Judge."},
        *earlier,
        {"role": "user", "content": "5"},
    ]
    assert asked(messages=earlier) == earlier


def test_nothing_to_ask_is_an_error():
    with pytest.raises(DefinitionError, match="was asked nothing"):
        asked()


@pytest.mark.parametrize(
    "messages", [{"role": "user", "content": "5"}, "5", ["5"], [{"content": "5"}], [["role", "user"]], 5]
)
def test_messages_that_are_no_list_of_messages_are_refused(messages):
    with pytest.raises(DefinitionError, match=r"^messages=.* cannot be sent: it must be a list of messages"):
        asked(messages=messages)


class Mute:
    def __str__(self):
        raise RuntimeError("no text")


HOLDS_ITSELF = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize("data", [HOLDS_ITSELF, {("a", "b"): 1}, [Mute()]], ids=["itself", "key", "mute"])
def test_data_that_json_cannot_hold_is_refused(data):
    with pytest.raises(DefinitionError, match="cannot be sent to a model as JSON"):
        asked("Right?", input=data)


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def test_images_of_every_kind_arrive_as_image_parts(tmp_path):
    path = tmp_path / "dot.png"
    path.write_bytes(PNG)
    pillow = PillowImage.open(path)
    kinds = [
        URL,
        "https://example.com/dot.png",
        path,
        str(path),
        PNG,
        Image(url=URL),
        Image(path=str(path)),
        Image(base64_data=base64.b64encode(PNG).decode(), media_type="image/png"),
        dspy.Image(URL),
        pillow,
    ]
    [message] = asked("What is it?", images=kinds)
    text, *parts = message["content"]
    urls = [part["image_url"]["url"] for part in parts]
    assert text == {"type": "text", "text": "What is it?"}
    assert urls[1] == "https://example.com/dot.png"
    assert [url for url in urls[:-1] if url != URL] == [urls[1]]
    assert urls[-1].startswith("data:image/png;base64,")  # written anew by Pillow
    assert asked("What?", images=URL)[0]["content"][1]["image_url"]["url"] == URL


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (3, "is no image"),
        (b"hello", r"b'hello' \(bytes\) is no image"),
        (b"", "is no image"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "is no image"),
        ("nowhere.png", "cannot be read"),
        (__file__, "holds no image: it begins with"),
    ],
)
def test_what_is_no_image_is_named(wrong, said):
    with pytest.raises(DataError, match=said):
        asked("What is it?", images=[wrong])


def test_a_file_is_known_by_what_it_holds_and_else_by_its_name(tmp_path):
    def kind(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        return image_url(path).partition(";")[0]

    assert kind("dot", PNG) == kind("dot.jpg", PNG) == "data:image/png"
    assert kind("drawing.svg", b"<svg></svg>") == "data:image/svg+xml"
    for name, data in (("dot.png", b"<html>"), ("dot.svg", b""), ("dot.txt", b"text")):
        with pytest.raises(DataError, match="holds no image"):
            kind(name, data)


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp", "bmp", "tiff"])
def test_bytes_get_the_media_type_of_their_format(kind):
    buffer = io.BytesIO()
    PillowImage.new("RGB", (2, 2)).save(buffer, format=kind)
    assert image_url(buffer.getvalue()).startswith(f"data:image/{kind};base64,")


def test_an_image_reaches_a_model_through_the_real_client():
    seen = []
    with (
        ModelServer(lambda messages: seen.append(messages) or "A dot.") as server,
        models(metric_lm=server.lm()),
    ):
        assert llm("What is it?", images=Image(url=URL)) == "A dot."
    assert seen[0][-1]["content"][1]["image_url"]["url"] == URL


# --- what it answers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", ["PASS", ["PASS"], [{"text": "PASS", "reasoning_content": "hm"}], {"text": "PASS"}]
)
def test_a_text_in_any_form_that_models_give_it_is_unpacked(answer):
    with models(metric_lm=saying(answer)):
        assert llm("Right?") == "PASS"


@pytest.mark.parametrize("answer", ["", "  \n", None, [], [None], 3, {"verdict": "PASS"}])
def test_an_answer_that_is_no_text_is_the_judge_s_failure(answer):
    with (
        models(metric_lm=saying(answer)),
        pytest.raises(MetricError, match=r"metric model '.*' gave .*not a text"),
    ):
        llm("Right?")


def test_a_failure_of_the_provider_is_a_failure_of_the_judge_and_no_wrong_answer():
    def refuse(messages):
        raise RefusedError(401)

    with ModelServer(refuse) as server:
        metric = Metric(asking)
        with models(metric_lm=server.lm()):
            score = metric.score_case({}, "A")
    assert isinstance(score.error, MetricError)
    assert "the metric model 'openai/gpt-4o-mini' failed: LMAuthError" in str(score.error)
    assert "line" in str(score.error)
    assert "in asking" in str(score.error)


def test_the_reflection_model_that_fails_in_its_place_is_called_so():
    def broken(messages):
        raise ConnectionError("gone")

    with (
        models(reflection_lm=broken),
        pytest.raises(
            MetricError,
            match="reflection model, asked since no metric model was chosen, 'broken' failed: Connection",
        ),
    ):
        llm("Right?")


def test_a_provider_that_fails_at_first_is_asked_again():
    attempts = iter([500, 429])

    def at_last(messages):
        status = next(attempts, None)
        if status is not None:
            raise RefusedError(status)
        return "PASS"

    with ModelServer(at_last) as server, models(metric_lm=server.lm(num_retries=2)):
        assert llm("Right?") == "PASS"
    assert server.refused == 2


# --- the bill, and the program's own books ----------------------------------------------------------


def test_the_bill_is_what_the_server_served_and_cached_answers_cost_nothing():
    metric = Metric(asking)
    with (
        ModelServer(lambda messages: "PASS " + text_of(messages)) as server,
        models(metric_lm=server.lm(cache=True)),
    ):
        for number in [*range(10), *range(10)]:
            metric.score_case({}, f"an answer of its own {number}")
    bill = metric.bill
    assert (bill.calls, bill.cached_calls, bill.unpriced_calls) == (20, 10, 0)
    assert bill.input_tokens == sum(call.input_tokens for call in server.served)
    assert bill.output_tokens == sum(call.output_tokens for call in server.served)
    assert math.isclose(bill.usd, sum(call.cost for call in server.served))


def test_calls_of_unknown_price_are_counted_on_the_bill():
    metric = Metric(asking)
    with models(metric_lm=saying("PASS")):
        metric.score_case({}, "A")
    with models(metric_lm=answering(lambda question: "PASS")):
        metric({}, "A")
    assert (metric.bill.calls, metric.bill.unpriced_calls, metric.bill.usd) == (2, 2, 0.0)
    assert "2 of unknown price" in repr(metric.bill)


def test_a_reflection_model_of_gepa_is_on_the_bill_with_its_figures():
    metric = Metric(asking)
    with ModelServer(saying("PASS")) as server, models(reflection_lm=as_reflection_lm(server.lm())):
        metric.score_case({}, "A")
    assert math.isclose(metric.bill.usd, server.served[0].cost)
    assert metric.bill.calls == 1


def test_a_metric_inside_of_a_metric_pays_itself():
    inner = Metric(asking)

    def outer(input, output, expected=None):
        llm("And you?")
        return inner.score_case(input, output).value, {"feedback": "Both."}

    metric = Metric(outer)
    with models(metric_lm=saying("PASS")):
        metric.score_case({}, "A")
    assert (metric.bill.calls, inner.bill.calls) == (1, 1)


def test_a_copied_metric_begins_with_an_empty_bill():
    metric = Metric(asking)
    with models(metric_lm=saying("PASS")):
        metric.score_case({}, "A")
    assert copy.deepcopy(metric).bill.calls == 0


def test_its_calls_enter_neither_trace_nor_usage_nor_history_of_a_program():
    class Judging(dspy.Module):
        def forward(self, question):
            llm("Right?", input=question)
            return dspy.Prediction(answer="A")

    program = Judging()
    with (
        ModelServer(saying("PASS")) as server,
        models(metric_lm=server.lm()),
        dspy.context(trace=[], track_usage=True),
    ):
        answer = program(question="2 + 2?")
        assert dspy.settings.trace == []
    assert len(server.served) == 1
    assert program.history == []
    assert not answer.get_lm_usage()


# --- threads, loops, saving -------------------------------------------------------------------------


def test_an_async_metric_may_ask_and_may_await_the_answer():
    async def blocking(input, output, expected=None):
        return asking(input, output)

    async def awaiting(input, output, expected=None):
        verdicts = await asyncio.gather(*(asyncio.to_thread(llm, "Right?", input=output) for _ in range(4)))
        return float(verdicts == ["PASS"] * 4), {"feedback": "Judged."}

    with ModelServer(saying("PASS")) as server, models(metric_lm=server.lm()):
        for function, calls in ((blocking, 1), (awaiting, 4)):
            metric = Metric(function)
            score = metric.score_case({}, "A")
            assert (score.value, score.error, metric.bill.calls) == (1.0, None, calls)


def test_an_async_model_is_awaited_inside_of_an_async_metric_too():
    async def model(messages):
        await asyncio.sleep(0)
        return "PASS"

    async def score(input, output, expected=None):
        return asking(input, output)

    with models(metric_lm=model):
        assert Metric(score).score_case({}, "A").value == 1.0
        assert wait_within(5.0, asyncio.sleep(0, "the loop goes on")) == "the loop goes on"


def test_a_thread_of_the_metric_s_own_that_gets_the_context_asks_the_same_model():
    import contextvars

    def score(input, output, expected=None):
        said = []
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: said.append(llm("Right?")),))
        thread.start()
        thread.join()
        return 1.0, {"feedback": said[0]}

    metric = Metric(score)
    with models(metric_lm=saying("PASS")):
        assert metric.score_case({}, "A").feedback == "PASS"
    assert metric.bill.calls == 1


def in_a_pool(prompt, text, in_context):
    with ThreadPoolExecutor(1) as pool:
        ask = (
            contextvars.copy_context().run if in_context else lambda call, *args, **more: call(*args, **more)
        )
        return pool.submit(ask, llm, prompt, input=text).result()


def test_a_plain_thread_of_the_metric_s_own_has_no_model_and_is_told_the_mend():
    def score(input, output, expected=None):
        return 1.0, {"feedback": in_a_pool("Right?", output, in_context=False)}

    result = as_dspy_metric(score, metric_lm=saying("Yes."))(examples(1)[0], dspy.Prediction(answer="A"))
    assert "contextvars.copy_context().run" in str(result.error)


def test_a_plain_thread_that_asks_the_process_s_model_is_warned_of_once(caplog):
    def score(input, output, expected=None):
        return 1.0, {"feedback": in_a_pool("Right?", output, in_context=False)}

    _warn_of_lost_thread.cache_clear()
    set_models(metric_lm=saying("Of the process."))
    metric = as_dspy_metric(score, metric_lm=saying("Of the adapter."))
    for example in examples(2):
        assert "Of the process." in metric(example, dspy.Prediction(answer="A")).feedback
    [told] = [record.message for record in caplog.records if "set_models" in record.message]
    assert "on no metric's bill" in told
    assert "contextvars.copy_context().run" in told


def test_neither_threads_with_the_context_nor_programs_nor_calls_by_hand_are_warned_of(caplog):
    def score(input, output, expected=None):
        with ThreadPoolExecutor(1) as pool:  # a program that runs while a metric judges
            pool.submit(program_of_another).result()
        return 1.0, {"feedback": in_a_pool("Right?", output, in_context=True)}

    def program_of_another():
        with rollout():
            return llm("Answer.")

    _warn_of_lost_thread.cache_clear()
    set_models(metric_lm=saying("Of the process."))
    metric = as_dspy_metric(score, metric_lm=saying("Of the adapter."))
    assert "Of the adapter." in metric(examples(1)[0], dspy.Prediction(answer="A")).feedback
    assert metric.metric.bill.calls == 1
    assert in_a_pool("By hand", "", in_context=False) == "Of the process."
    assert [record for record in caplog.records if "llm()" in record.message] == []


@pytest.mark.parametrize("batch", [True, False])
def test_a_block_reaches_the_pool_of_optimize_anything(batch):
    def score(input, output, expected=None):
        return 0.5, {"feedback": llm("Right?", input=output)}

    with models(metric_lm=saying("Of the block.")):
        evaluator = as_gepa_evaluator(score, lambda artifact, input: llm("Answer.", input=artifact))
        given = {"batch_evaluator": evaluator.batch} if batch else {"evaluator": evaluator}
        optimize_anything(
            "Answer.",
            dataset=[{"input": {"q": str(number)}} for number in range(3)],
            config=GEPAConfig(
                engine=EngineConfig(max_metric_calls=6),
                reflection=ReflectionConfig(reflection_lm=lambda prompt: "```\nAnswer.\n```"),
            ),
            **given,
        )
    assert len(evaluator.metric.failures) == 0
    assert evaluator.metric.bill.calls == evaluator.metric.calls > 0


def test_a_block_around_the_run_goes_before_the_one_that_the_evaluator_was_made_in():
    def score(input, output, expected=None):
        return 0.5, {"feedback": llm("Right?", input=output)}

    with models(metric_lm=saying("When made.")):
        evaluator = as_gepa_evaluator(score)
        given = as_gepa_evaluator(score, metric_lm=saying("Given."))
    assert evaluator("A")[1]["Feedback"].startswith("When made.")
    with models(metric_lm=saying("Around.")):
        assert evaluator("B")[1]["Feedback"].startswith("Around.")
        assert given("B")[1]["Feedback"].startswith("Given.")


def test_what_a_provider_says_of_a_key_is_not_in_the_traceback_either():
    def refuse(messages):
        raise ValueError("Incorrect API key provided: sk-proj-Zk29fLq81xTz77AbQ4")

    with models(metric_lm=refuse), pytest.raises(MetricError) as caught:
        llm("Right?")
    printed = "".join(traceback.format_exception(caught.value))
    assert "Incorrect API key provided" in printed
    assert "Zk29fLq81xTz77AbQ4" not in printed


def test_models_stay_behind_when_an_adapter_is_saved_and_it_says_so(caplog):
    adapter = as_gepa_adapter(
        asking, lambda artifact, input: "A", artifact="x", metric_lm=dspy.LM("openai/gpt-4o-mini")
    )
    metric = as_dspy_metric(asking, reflection_lm=dspy.LM("openai/gpt-4o-mini", api_key="a secret"))
    with caplog.at_level(logging.WARNING):
        for made in (adapter, metric):
            saved = cloudpickle.dumps(made)
            assert b"a secret" not in saved
            cloudpickle.loads(saved)
    assert len([record for record in caplog.records if "is not saved with it" in record.message]) == 2


def test_a_run_that_asks_without_a_model_of_its_own_is_told_that_metric_lm_is_for_score():
    def run(artifact, input):
        return llm("Hi.")

    with as_gepa_adapter(asking, run, artifact="a", metric_lm=saying("A")) as adapter:
        batch = adapter.evaluate([{"input": {"a": "b"}}], adapter.seed_candidate, capture_traces=True)
    said = batch.trajectories[0].score.feedback
    assert "it was called in run, and metric_lm= is for score alone" in said
    assert "with models(metric_lm=...)" in said


# --- modules of DSPy in a metric ---------------------------------------------------------------------


def graded(share):
    return scripted_lm(lambda messages: chat(reasoning="So.", precision=share, recall=share))


def in_adapter(score, case, **lm):
    with as_gepa_adapter(score, lambda artifact, input: {"response": "x"}, artifact="a", **lm) as adapter:
        return adapter.evaluate([case], adapter.seed_candidate).scores[0]


def in_evaluator(score, case, **lm):
    with as_gepa_evaluator(score, lambda artifact, input: {"response": "x"}, **lm) as evaluator:
        return evaluator("a", case)[0]


def in_contract(score, case, **lm):
    report = check_contract(score, [case], **lm)
    return float(report["Score range"].seen)


def in_dspy(score, case, **lm):
    example = dspy.Example(**case.input, **case.expected).with_inputs("question")
    return float(as_dspy_metric(score, **lm)(example, dspy.Prediction(response="x")))


@pytest.mark.parametrize("target", [in_adapter, in_evaluator, in_contract, in_dspy])
@pytest.mark.parametrize("chosen", ["option", "block", "process"])
@pytest.mark.parametrize("task", [graded(0.1), None], ids=["a model is set", "none is set"])
def test_dspys_modules_in_a_metric_ask_the_metric_model_however_it_was_chosen(target, chosen, task):
    score = from_dspy_metric(dspy.evaluate.SemanticF1())
    case, judge = Case("1", {"question": "q"}, {"response": "a"}), graded(0.9)
    option = {"metric_lm": judge} if chosen == "option" else {}
    if chosen == "process":
        set_models(metric_lm=judge)
    try:
        with dspy.context(lm=task), models(metric_lm=judge if chosen == "block" else None):
            assert target(score, case, **option) == pytest.approx(0.9)
    finally:
        set_models()


@pytest.mark.parametrize(
    "made", [lambda lm: lm, as_reflection_lm, lambda lm: as_reflection_lm(as_reflection_lm(lm))]
)
def test_dspys_modules_ask_the_reflection_model_where_no_other_is_set(made):
    score, case = (
        from_dspy_metric(dspy.evaluate.SemanticF1()),
        Case("1", {"question": "q"}, {"response": "a"}),
    )
    assert in_adapter(score, case, reflection_lm=made(graded(0.9))) == pytest.approx(0.9)
    with dspy.context(lm=graded(0.1)):
        assert in_adapter(score, case, reflection_lm=made(graded(0.9))) == pytest.approx(0.1)


def test_dspys_modules_ask_a_metric_model_that_is_a_reflection_model_of_gepa(caplog):
    score, case = (
        from_dspy_metric(dspy.evaluate.SemanticF1()),
        Case("1", {"question": "q"}, {"response": "a"}),
    )
    with dspy.context(lm=graded(0.1)):
        for target in (in_adapter, in_dspy):
            assert target(score, case, metric_lm=as_reflection_lm(graded(0.9))) == pytest.approx(0.9)
    assert "that is a function" not in caplog.text


def test_a_metric_model_that_dspys_modules_cannot_ask_is_told(caplog):
    score, case = (
        from_dspy_metric(dspy.evaluate.SemanticF1()),
        Case("1", {"question": "q"}, {"response": "a"}),
    )
    with caplog.at_level(logging.WARNING):
        assert in_adapter(score, case, metric_lm=saying("0.9")) == 0.0
        assert "DSPy's modules in a metric ask metric_lm= where that is a dspy.LM" in caplog.text
        with dspy.context(lm=graded(0.1)):
            assert in_adapter(score, case, metric_lm=saying("0.9")) == pytest.approx(0.1)
    assert "they cannot ask a metric_lm= that is a function" in caplog.text


# --- the example metric, in every run ---------------------------------------------------------------


def judged(messages):
    text = text_of(messages)
    if "Answer PASS or FAIL" in text:
        return "PASS. It is right." if "Answer: yes" in text else "FAIL. It is not."
    if "new_instruction" in text:
        return '{"new_instruction": "Say yes."}'
    if "Your task is to write a new instruction" in text or "```" in text:
        return "```\nSay yes.\n```"
    return in_fields(answer="yes" if "Say yes." in text else "no")(messages)


@pytest.fixture
def judging_server():
    with ModelServer(judged) as server:
        yield server


@pytest.mark.shared
def test_the_judge_runs_unchanged_in_evaluate(shared_metric, judging_server):
    metric = as_dspy_metric(shared_metric("model_judge"), metric_lm=judging_server.lm("openai/gpt-4.1-mini"))
    program = dspy.Predict(dspy.Signature("question -> answer", "Say yes."))
    with dspy.context(lm=judging_server.lm()):
        result = dspy.Evaluate(devset=examples(10), metric=metric)(program)
    assert result.score == 100
    assert len(judging_server.of("gpt-4.1-mini")) == metric.metric.bill.calls == 10


@pytest.mark.shared
def test_the_judge_runs_unchanged_in_dspy_gepa(shared_metric, judging_server):
    lm = judging_server.lm("openai/gpt-4.1-mini")
    metric = as_dspy_metric(shared_metric("model_judge"), reflection_lm=lm)
    optimizer = dspy.GEPA(metric=metric, max_metric_calls=40, reflection_lm=lm)
    with dspy.context(lm=judging_server.lm()):
        best = optimizer.compile(dspy.Predict("question -> answer"), trainset=examples(5), valset=examples(5))
    assert best.signature.instructions == "Say yes."
    assert metric.metric.calls == metric.metric.bill.calls
    assert len(metric.failures) == 0


@pytest.mark.shared
def test_the_judge_runs_unchanged_in_gepa_optimize_and_optimize_anything(shared_metric, judging_server):
    lm = judging_server.lm()

    def run(artifact, input):
        return "yes" if artifact == "Say yes." else "no"

    data = [{"input": {"question": f"case-{number}?"}} for number in range(5)]
    reflection = as_reflection_lm(lm)
    with as_gepa_adapter(
        shared_metric("model_judge"), run, artifact="Say something.", reflection_lm=lm
    ) as adapter:
        result = gepa.optimize(
            adapter.seed_candidate,
            trainset=data,
            valset=data,
            adapter=adapter,
            reflection_lm=reflection,
            max_metric_calls=30,
        )
    assert adapter.artifact(result.best_candidate) == "Say yes."
    assert adapter.metric.bill.calls == adapter.metric.calls > 0
    assert len(adapter.metric.failures) == 0
    with as_gepa_evaluator(shared_metric("model_judge"), run, metric_lm=lm) as evaluator:
        found = optimize_anything(
            "Say something.",
            evaluator=evaluator,
            dataset=data,
            config=GEPAConfig(
                engine=EngineConfig(max_metric_calls=30),
                reflection=ReflectionConfig(reflection_lm=reflection),
            ),
        )
    assert found.best_candidate == "Say yes."
    assert evaluator.metric.bill.calls == evaluator.metric.calls > 0
