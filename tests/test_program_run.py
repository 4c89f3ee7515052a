"""A DSPy program through the real `gepa.optimize`."""

import copy
import functools

import cloudpickle
import dspy
import gepa
import pytest

from skynet import service_cost
from skynet_adapters import (
    Case,
    DefinitionError,
    ProgramFailedError,
    as_dspy_metric,
    as_gepa_adapter,
    as_gepa_evaluator,
    as_reflection_lm,
    check_contract,
    measuring,
    optimize_artifact,
    program_artifact,
    program_run,
    to_program,
)
from tests.scripted import chat, field_of, scripted_lm


class TwoSteps(dspy.Module):
    def __init__(self):
        super().__init__()
        self.find = dspy.Predict("question -> fact")
        self.reply = dspy.ChainOfThought("question, fact -> answer")

    def forward(self, question):
        return self.reply(question=question, fact=self.find(question=question).fact)


def two_step_model():
    """Finds the fact only when told to look it up; chokes on q1, and answers q2 beside the format."""

    def answer(messages):
        system, question = messages[0]["content"], field_of(messages, "question")
        if "`answer`" in system:
            return chat(reasoning="so", answer=field_of(messages, "fact"))
        if question == "q1":
            raise RuntimeError("the model is down")
        if question == "q2":
            return "no field at all"
        return chat(fact="Paris" if "Look it up" in system else "unknown")

    return scripted_lm(answer)


def score(input, output, expected=None):
    right = output == expected["answer"]
    return float(right), {
        "feedback": "Right." if right else f"Expected Paris, got {output}.",
        "component_feedback": {"find": "FIND: the fact is missing.", "reply.predict": "REPLY: say the fact."},
    }


def cases(count):
    return [Case(f"{number}", {"question": f"q{number}"}, {"answer": "Paris"}) for number in range(count)]


def test_the_best_candidate_comes_back_as_a_program_and_every_case_keeps_its_place():
    program, prompts = TwoSteps(), []

    def reflect(prompt):
        prompts.append(prompt)
        return "Look it up."

    with (
        dspy.context(lm=two_step_model(), adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)),
        as_gepa_adapter(score, program_run(program), artifact=program_artifact(program)) as adapter,
    ):
        batch = adapter.evaluate(cases(4), adapter.seed_candidate, capture_traces=True)
        result = gepa.optimize(
            adapter.seed_candidate,
            trainset=cases(4),
            valset=cases(4),
            adapter=adapter,
            reflection_lm=as_reflection_lm(reflect),
            reflection_minibatch_size=4,
            max_metric_calls=40,
        )
        best = to_program(adapter.artifact(result.best_candidate), like=program)
        answered = best(question="q0").answer
    assert batch.scores == [0.0, 0.0, 0.0, 0.0]
    assert "the model is down" in batch.trajectories[1].score.feedback
    assert "no field at all" in str(batch.trajectories[2])
    assert result.val_aggregate_scores[result.best_idx] == 0.5  # q1 and q2 cannot be helped
    assert answered == "Paris"
    assert program.find.signature.instructions != "Look it up."
    finding = [prompt for prompt in prompts if "FIND: the fact is missing." in prompt]
    assert finding
    assert not any("REPLY: say the fact." in prompt for prompt in finding)
    assert any("the model is down" in prompt for prompt in prompts)


def test_an_artifact_of_another_program_and_what_is_no_program_are_refused():
    with pytest.raises(DefinitionError, match=r"names \['a'\], and the program's predictors are \['self'\]"):
        to_program({"a": "text"}, like=dspy.Predict("question -> answer"))
    with pytest.raises(DefinitionError, match="has no predictor"):
        program_artifact(dspy.Module())
    with pytest.raises(DefinitionError, match=r"'text' .* is no dspy\.Module; a text or"):
        program_artifact("text")
    with pytest.raises(DefinitionError, match="a function is a `run` as it is"):
        program_run(lambda artifact, input: "A")


@pytest.mark.parametrize(
    ("signature", "output", "wanted"),
    [
        ("question -> answer", None, "A"),
        ("question -> answer, why", None, {"answer": "A", "why": "W"}),
        ("question -> answer, why", "why", "W"),
        ("question -> answer, why", lambda pred: pred.answer + pred.why, "AW"),
    ],
)
def test_output_says_what_of_the_prediction_is_judged(signature, output, wanted):
    program = dspy.Predict(signature)
    model = scripted_lm(lambda messages: chat(answer="A", why="W"))
    with dspy.context(lm=model):
        assert program_run(program, output=output)(program_artifact(program), {"question": "q"}) == wanted


def says(word):
    return scripted_lm(lambda messages: chat(answer=word))


class Find(dspy.Signature):
    """Find the refund that is asked for."""

    letter: str = dspy.InputField()
    refund: int | None = dspy.OutputField()


def refund_is_right(input, output, expected=None):
    return float(output == expected["refund"]), {"feedback": f"{output}, and it is {expected['refund']}."}


@pytest.mark.parametrize("options", [{}, {"run_timeout": None}, {"run_isolation": "process"}])
def test_an_optional_field_that_is_none_is_an_answer_as_in_evaluate(options):
    letters = {"asks for nothing": None, "asks for 5": 5, "asks for 6": None}
    program = dspy.Predict(Find)
    program.set_lm(scripted_lm(lambda messages: chat(refund=5 if "5" in messages[-1]["content"] else "null")))
    data = [
        dspy.Example(letter=letter, refund=refund or (6 if "6" in letter else None)).with_inputs("letter")
        for letter, refund in letters.items()
    ]
    evaluated = dspy.Evaluate(devset=data, metric=as_dspy_metric(refund_is_right))(program)
    with as_gepa_adapter(
        refund_is_right, program_run(program), artifact=program_artifact(program), **options
    ) as adapter:
        batch = adapter.evaluate(data, adapter.seed_candidate, capture_traces=True)
        records = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["self"])["self"]
    assert [score.score for _, _, score in evaluated.results] == batch.scores == [1.0, 1.0, 0.0]
    assert batch.outputs == [None, 5, None]
    assert [record["Generated Outputs"] for record in records] == [None, 5, None]
    assert "None, and it is 6." in records[2]["Feedback"]


@pytest.mark.parametrize("made", [program_run, lambda program: functools.partial(program_run(program))])
def test_a_program_whose_answers_are_all_none_is_not_said_to_give_no_output(made, caplog):
    program = dspy.Predict(Find)
    program.set_lm(scripted_lm(lambda messages: chat(refund="null")))
    data = [dspy.Example(letter=f"letter {number}", refund=None).with_inputs("letter") for number in range(6)]
    with as_gepa_adapter(refund_is_right, made(program), artifact=program_artifact(program)) as adapter:
        assert adapter.evaluate(data, adapter.seed_candidate).scores == [1.0] * 6
    assert caplog.messages == []


def test_a_partial_of_a_program_run_refuses_another_artifact_too():
    run = functools.partial(program_run(dspy.Predict(Find)))
    with pytest.raises(DefinitionError, match="pass artifact=program_artifact"):
        as_gepa_adapter(refund_is_right, run, artifact="Find it.")


def test_a_program_that_returns_nothing_gives_no_output():
    class Silent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.find = dspy.Predict("question -> answer")

        def forward(self, question):
            return None

    program = Silent()
    with as_gepa_adapter(score, program_run(program), artifact=program_artifact(program)) as adapter:
        (trajectory,) = adapter.evaluate(cases(1), adapter.seed_candidate, capture_traces=True).trajectories
    assert isinstance(trajectory.score.error, ProgramFailedError)
    assert "the program returned nothing" in trajectory.score.feedback


def test_a_program_is_taken_as_it_was():
    program = dspy.Predict("question -> answer")
    program.set_lm(says("one"))
    run, artifact = program_run(program), program_artifact(program)
    assert run(artifact, {"question": "q"}) == "one"
    program.set_lm(says("two"))
    assert run(artifact, {"question": "q"}) == "one"
    assert run({"self": "A new candidate."}, {"question": "q"}) == "one"
    assert program_run(program)(artifact, {"question": "q"}) == "two"


def test_a_program_without_a_model_asks_the_one_that_is_set_where_it_runs():
    program = dspy.Predict("question -> answer")
    run, artifact = program_run(program), program_artifact(program)
    for word in ("one", "two"):
        with dspy.context(lm=says(word)):
            assert run(artifact, {"question": "q"}) == word


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda run: cloudpickle.loads(cloudpickle.dumps(run))],
    ids=["deepcopy", "cloudpickle"],
)
def test_a_run_can_be_copied_and_pickled(copied):
    program = TwoSteps()
    run, artifact = program_run(program, output="answer"), program_artifact(program)
    with dspy.context(lm=two_step_model()):
        before = run(artifact, {"question": "q0"})
        assert copied(run)({**artifact, "find": "Look it up."}, {"question": "q0"}) == "Paris" != before


def test_an_empty_instruction_is_empty():
    program = to_program({"self": ""}, like=dspy.Predict("question -> answer"))
    assert program.signature.instructions == ""
    assert program_artifact(program.deepcopy()) == {"self": ""}
    assert program_artifact(dspy.Predict("question -> answer")) != {"self": ""}
    model = says("A")
    with dspy.context(lm=model):
        program(question="q")
    assert "Given the fields" not in model.prompts[0]


@pytest.mark.parametrize("text", [None, 5])
def test_an_instruction_that_is_no_text_is_refused(text):
    with pytest.raises(DefinitionError, match="has the part 'self', which is"):
        to_program({"self": text}, like=dspy.Predict("question -> answer"))


@pytest.mark.parametrize(
    ("program", "place"),
    [
        (TwoSteps(), "(test_program_run.py, line "),
        (dspy.Predict("question -> fact"), "("),  # a place of DSPy's own: nothing is the user's
    ],
    ids=["of the user's", "of DSPy's"],
)
def test_where_a_model_failed_is_the_users_own_line_and_never_the_standard_librarys(program, place):
    adapter = as_gepa_adapter(score, program_run(program), artifact=program_artifact(program))
    with dspy.context(lm=two_step_model()):
        batch = adapter.evaluate(cases(2)[1:], adapter.seed_candidate, capture_traces=True)
    feedback = batch.trajectories[0].score.feedback
    assert f"the model is down {place}" in feedback
    assert "contextlib" not in feedback


def always(input, output, expected=None):
    return 1.0, {"feedback": "F."}


CASE = {"input": {"question": "q"}, "expected": {"answer": "A"}}
SIMPLE = dspy.Predict("question -> answer")


@pytest.mark.parametrize("artifact", ["Classify.", {"predict": "Classify."}, {"self": "a", "more": "b"}])
@pytest.mark.parametrize(
    "make",
    [
        lambda run, artifact: optimize_artifact(
            artifact, run, always, [CASE], reflection_lm=lambda prompt: "x", max_metric_calls=9
        ),
        lambda run, artifact: as_gepa_adapter(always, run, artifact=artifact),
        lambda run, artifact: as_gepa_evaluator(always, run, artifact=artifact),
        lambda run, artifact: as_gepa_evaluator(always, run)(artifact, CASE),
        lambda run, artifact: check_contract(always, [CASE], run, artifact=artifact),
    ],
    ids=["optimize_artifact", "as_gepa_adapter", "as_gepa_evaluator", "optimize_anything", "check_contract"],
)
def test_an_artifact_of_another_shape_than_the_programs_is_refused_before_anything_is_run(make, artifact):
    with pytest.raises(DefinitionError) as refused:
        make(program_run(SIMPLE), artifact)
    said = str(refused.value)
    assert "each of the program's predictors, ['self']" in said
    assert said.endswith("pass artifact=program_artifact(program)")


def test_prices_of_a_block_around_a_run_of_gepa_hold_in_it():
    def frugal(input, output, expected=None):
        seen.append(service_cost().usd)
        return 0.5, {"feedback": "F."}

    for prices, cost in (({"scripted/model": (10.0, 20.0)}, 0.0002), ({}, None)):
        seen: list[float | None] = []
        with dspy.context(lm=scripted_lm(lambda messages: chat(answer="A"))), measuring(prices=prices):
            optimize_artifact(
                program_artifact(SIMPLE),
                program_run(SIMPLE),
                frugal,
                [CASE],
                reflection_lm=lambda prompt: "Be brief.",
                max_metric_calls=4,
            )
        assert seen[0] == (cost if cost is None else pytest.approx(cost))
        assert len(set(seen)) == 1
