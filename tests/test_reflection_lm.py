"""The reflection model, on its own and in GEPA."""

import copy
import functools
import pickle
import warnings
from types import SimpleNamespace

import cloudpickle
import dspy
import gepa
import pytest
from dspy.lm15 import Message, Response, TextPart, Usage

from skynet_adapters.errors import DefinitionError, ReflectionBroken, SkynetAdaptersError
from skynet_adapters.gepa import as_gepa_adapter, as_reflection_lm
from tests.scripted import scripted_lm

PIXEL = "data:image/png;base64,iVBORw0KGgo="
WITH_IMAGE = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": PIXEL}}],
    }
]


@pytest.mark.parametrize(
    "answer",
    [
        "Better.",
        ["Better."],
        ["Better.", "Other."],
        [{"text": "Better.", "reasoning_content": "Hm."}],
        {"text": "Better."},
    ],
    ids=repr,
)
@pytest.mark.parametrize("prompt", ["Write.", WITH_IMAGE], ids=["text", "messages"])
def test_answers_are_unpacked(answer, prompt):
    assert as_reflection_lm(lambda given: answer if given == prompt else None)(prompt) == "Better."


def test_a_function_may_be_async():
    async def model(prompt):
        return f"Better than {prompt}"

    assert as_reflection_lm(model)("this") == "Better than this"


@pytest.mark.parametrize("answer", [None, "", " \n", [], [None], [""], {}, {"other": "x"}, 7, b"x"], ids=repr)
def test_an_answer_without_text_is_an_error_that_is_seen(answer, caplog):
    def my_model(prompt):
        return answer

    with pytest.raises(
        SkynetAdaptersError, match=r"the reflection model 'my_model' gave .* not a text.*max_tokens"
    ):
        as_reflection_lm(my_model)("Write.")
    assert "the reflection model 'my_model' gave" in caplog.text


def test_what_the_model_raises_is_logged_and_passes(caplog):
    def my_model(prompt):
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        as_reflection_lm(my_model)("Write.")
    assert "the reflection model 'my_model' raised ConnectionError: away" in caplog.text


def test_texts_are_cleaned_on_both_ways():
    seen = []
    reflection_lm = as_reflection_lm(lambda prompt: (seen.append(prompt), "b\ud800\0")[1])
    assert reflection_lm("a\ud800") == "b\ufffd\ufffd"
    assert seen == ["a\ufffd"]


def test_a_dspy_lm_gives_a_text():
    lm = scripted_lm(lambda messages: f"Better than {messages[-1]['content']}")
    reflection_lm = as_reflection_lm(lm)
    assert reflection_lm("this") == "Better than this"
    assert reflection_lm([{"role": "user", "content": "that"}]) == "Better than that"
    assert repr(reflection_lm) == "<ReflectionLM 'scripted/model'>"


def test_images_go_to_a_dspy_lm_as_images():
    requests = []

    class Engine:
        def complete(self, request):
            requests.append(request)
            return Response(
                id=None,
                model="scripted",
                message=Message.assistant([TextPart("Seen.")]),
                finish_reason="stop",
                usage=Usage(input_tokens=10, output_tokens=5, total_tokens=15),
            )

    lm = dspy.LM("scripted/images", engine=Engine(), cache=False)
    assert as_reflection_lm(lm)(WITH_IMAGE) == "Seen."
    text, image = requests[0].messages[0].parts
    assert text.text == "Look."
    assert "image" in type(image).__name__.lower()


def test_a_name_is_a_dspy_lm():
    reflection_lm = as_reflection_lm("openai/gpt-4.1")
    assert reflection_lm.name == "openai/gpt-4.1"


def test_the_tokens_and_the_price_of_a_dspy_lm_are_counted():
    lm = scripted_lm(lambda messages: "Better.")
    reflection_lm = as_reflection_lm(lm)
    lm("not for reflection")
    reflection_lm("Write.")
    reflection_lm("Write again.")
    assert (reflection_lm.total_tokens_in, reflection_lm.total_tokens_out) == (20, 10)
    assert reflection_lm.total_cost == 0.0


@pytest.mark.parametrize("off", [{"disable_history": True}, {"max_history_size": 0}], ids=str)
def test_tokens_are_counted_where_dspys_history_is_off_and_it_stays_off(off, monkeypatch):
    known: list[dict] = []
    monkeypatch.setattr("dspy.clients.base_lm.GLOBAL_HISTORY", known)
    lm = scripted_lm(lambda messages: "Better.")
    reflection_lm = as_reflection_lm(lm)
    with dspy.context(**off):
        assert reflection_lm("Write.") == reflection_lm(WITH_IMAGE) == "Better."
    assert (reflection_lm.total_tokens_in, reflection_lm.total_tokens_out) == (20, 10)
    assert len(lm.prompts) == 2
    assert lm.history == known == []
    reflection_lm("Write.")
    assert reflection_lm.total_tokens_in == 30
    assert len(lm.history) == len(known) == 1


def test_placeholders_of_gepas_are_defused_in_new_texts():
    reflection_lm = as_reflection_lm(lambda prompt: "Use <side_info> and <curr_param>.")
    assert reflection_lm("Write.") == "Use <side info> and <curr param>."


def test_the_feedback_stands_once_for_each_case_in_every_prompt():
    prompts = []

    def reflect(prompt):
        prompts.append(prompt)
        return f"Use <side_info> well, {len(prompts)} times." + "." * len(prompts)

    adapter = as_gepa_adapter(
        lambda input, output, expected=None: (len(output) / 100, {"feedback": "MARK"}),
        lambda a, i: a,
        artifact="Seed.",
    )
    gepa.optimize(
        adapter.seed_candidate,
        trainset=[{"input": {"q": number}} for number in range(3)],
        adapter=adapter,
        reflection_lm=as_reflection_lm(reflect),
        max_metric_calls=25,
    )
    assert len(prompts) > 2
    assert {prompt.count("MARK") for prompt in prompts} == {3}


def test_an_answer_of_a_subclass_is_the_text_that_it_holds():
    class Local(str):
        def __str__(self):
            return "something else"

    answer = as_reflection_lm(lambda prompt: Local("Better."))("Write.")
    assert (answer, type(answer)) == ("Better.", str)


def test_a_model_that_counts_for_itself_is_asked_for_it():
    class Counting:
        total_cost = 1.5

        def __call__(self, prompt):
            return "Better."

    reflection_lm = as_reflection_lm(Counting())
    assert reflection_lm.total_cost == 1.5
    assert not hasattr(reflection_lm, "total_tokens_in")
    assert not hasattr(as_reflection_lm(lambda prompt: "Better."), "total_cost")


@pytest.mark.parametrize("model", [None, 7, SimpleNamespace()], ids=repr)
def test_what_is_no_model_is_refused(model):
    with pytest.raises(DefinitionError, match="a reflection model is a"):
        as_reflection_lm(model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda prompt, more: "x", r"cannot be called with the prompt alone: missing .* 'more'"),
        (lambda: "x", "cannot be called with the prompt alone: too many positional arguments"),
        (lambda *, prompt: "x", "cannot be called with the prompt alone"),
        (dspy.LM, "the class 'LM'; make an instance of it"),
        (SimpleNamespace, "the class 'SimpleNamespace'"),
        (dspy.Predict("prompt -> answer"), r"(?s)the DSPy program .*program\(prompt=prompt\)\.answer"),
        ("", r"'' is no name of a reflection model: .*openai/gpt-4\.1"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_once(model, said):
    with pytest.raises(DefinitionError, match=said):
        as_reflection_lm(model)


@pytest.mark.parametrize(
    "model",
    [lambda *prompts: "x", lambda prompt, temperature=1.0: "x", functools.partial(lambda a, b: "x", "a")],
    ids=["any number", "a default", "partial"],
)
def test_what_takes_the_prompt_alone_is_a_model(model):
    assert as_reflection_lm(model)("Write.") == "x"


def test_a_reflection_model_is_taken_twice():
    once = as_reflection_lm(lambda prompt: "Better.")
    assert as_reflection_lm(once)("Write.") == "Better."


def test_a_reflection_model_that_is_taken_twice_tells_each_failure_once_and_by_its_name(caplog):
    def away(prompt):
        raise TimeoutError

    model = as_reflection_lm(as_reflection_lm(away))
    for _ in range(4):
        with pytest.raises(TimeoutError):
            model("Write.")
    with pytest.raises(ReflectionBroken, match=r"'away' was asked 5 times .* failure: TimeoutError\. Mend"):
        model("Write.")
    assert len(caplog.messages) == 5


@pytest.mark.parametrize("saved", [cloudpickle.dumps, pickle.dumps])
def test_a_copy_leaves_the_model_and_its_key_behind_and_says_so(saved, caplog):
    made = saved(as_reflection_lm(dspy.LM("openai/gpt-4.1-mini", api_key="sk-very-secret")))
    assert b"very-secret" not in made
    copied = pickle.loads(made)
    assert (copied.name, copied.total_cost) == ("openai/gpt-4.1-mini", 0.0)
    with pytest.raises(SkynetAdaptersError, match="leaves the model itself behind; make it anew"):
        copied("Write.")
    assert "'openai/gpt-4.1-mini' was copied or saved" in caplog.text


def test_a_copy_of_one_of_a_function_leaves_that_behind_too():
    copied = copy.deepcopy(as_reflection_lm(lambda prompt: "Better."))
    assert copied.name == "<lambda>"
    assert not hasattr(copied, "total_cost")
    with pytest.raises(SkynetAdaptersError, match="make it anew"):
        copied("Write.")


def test_messages_give_no_warning_and_leave_the_filters_of_warnings_alone():
    during = []

    def answers(messages):
        during.append(list(warnings.filters))
        return "Better."

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        as_reflection_lm(scripted_lm(answers))([{"role": "user", "content": "Write."}])
    assert during == [before]
    assert [str(warning.message) for warning in seen if "messages" in str(warning.message)] == []


@pytest.mark.parametrize("with_images", [False, True])
def test_a_dspy_lm_reflects_in_a_real_run(with_images):
    lm = scripted_lm(lambda messages: "```\nSay yes.\n```")

    def score(input, output, expected=None):
        right = output == "yes"
        return float(right), {
            "feedback": "Fine." if right else "Say it.",
            **({"photo": PIXEL} if with_images else {}),
        }

    adapter = as_gepa_adapter(score, lambda a, i: "yes" if "yes" in a else "no", artifact="Say no.")
    result = gepa.optimize(
        adapter.seed_candidate,
        trainset=[{"input": {"q": "?"}}],
        adapter=adapter,
        reflection_lm=as_reflection_lm(lm),
        max_metric_calls=6,
        max_reflection_cost=1.0,
    )
    assert adapter.artifact(result.best_candidate) == "Say yes."
    # The scripted engine reads no text of a message that has images in it.
    assert ("Say it.\n\nScore: 0" in lm.prompts[0]) is not with_images
