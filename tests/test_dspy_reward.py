"""The reward function in the real `dspy.BestOfN` and `dspy.Refine`."""

import functools
import itertools
import json

import cloudpickle
import dspy
import pytest

from skynet_adapters import (
    DefinitionError,
    Metric,
    MetricBroken,
    as_dspy_metric,
    as_dspy_reward,
    from_dspy_metric,
)
from tests.scripted import chat, examples, field_of, reflecting, scripted_lm

MODULES = [dspy.BestOfN, dspy.Refine]
both = pytest.mark.parametrize("module", MODULES)


def in_turn(*answers):
    """A model that gives these answers in turn, and Refine its advice; `lm.advised` holds those prompts."""
    turn = itertools.cycle(answers)
    advised = []

    def answer(messages):
        if "reward_code" in messages[0]["content"]:
            advised.append(messages[-1]["content"])
            return chat(discussion="d", advice='{"self": "do better"}')
        return chat(answer=next(turn))

    lm = scripted_lm(answer)
    lm.advised = advised
    return lm


def shown(prompt, name):
    """What a field of Refine's prompt holds."""
    return prompt.split(f"[[ ## {name} ## ]]\n", 1)[1].split("\n\n[[ ## ", 1)[0]


def by_answer(values):
    """A score that gives the number beside the answer, or raises the exception that stands there."""

    def score(input, output, expected=None):
        value = values[output]
        if isinstance(value, BaseException):
            raise value
        return value, {"feedback": f"Feedback on {output}."}

    return score


def program():
    return dspy.Predict("question -> answer")


def ask(module, reward, *answers, threshold=1.0, n=None):
    """What comes out of BestOfN or Refine, and the model that was asked."""
    lm = in_turn(*answers)
    with dspy.context(lm=lm):
        best = module(module=program(), N=n or len(answers), reward_fn=reward, threshold=threshold)
        return best(question="q"), lm


def asked(lm):
    return len(lm.prompts) - len(lm.advised)


# --- the best answer ------------------------------------------------------------------------------


@both
def test_the_best_answer_comes_out(module):
    reward = as_dspy_reward(by_answer({"A": 0.2, "B": 0.7, "C": 0.5}))
    best, lm = ask(module, reward, "A", "B", "C")
    assert best.answer == "B"
    assert asked(lm) == 3
    assert reward.metric.calls == 3


@both
def test_the_first_answer_that_reaches_the_threshold_comes_out_at_once(module):
    best, lm = ask(
        module, as_dspy_reward(by_answer({"A": 0.2, "B": 0.7, "C": 0.9})), "A", "B", "C", threshold=0.7
    )
    assert best.answer == "B"
    assert asked(lm) == 2


@both
def test_the_threshold_is_compared_with_the_number_and_not_with_success_threshold(module):
    reward = as_dspy_reward(by_answer({"A": 0.4, "B": 0.6}), success_threshold=0.1)
    assert ask(module, reward, "A", "B", threshold=0.5)[0].answer == "B"


@both
def test_the_threshold_is_on_the_normalised_scale(module):
    reward = as_dspy_reward(by_answer({"A": 4, "B": 8, "C": 10}), score_range=(0, 10))
    best, lm = ask(module, reward, "A", "B", "C", threshold=0.8)
    assert best.answer == "B"
    assert asked(lm) == 2


@both
def test_among_equal_scores_the_first_answer_stays(module):
    assert ask(module, as_dspy_reward(by_answer({"A": 0.5, "B": 0.5})), "A", "B")[0].answer == "A"


@both
def test_the_score_gets_the_programs_inputs_its_answer_and_no_expected_value(module):
    seen = []

    def score(input, output, expected="not given"):
        seen.append((input, output, expected))
        return 1.0, {"feedback": "F."}

    ask(module, as_dspy_reward(score), "A")
    assert seen == [({"question": "q"}, "A", None)]


@both
def test_the_metric_object_serves_as_reward_as_well(module):
    metric = as_dspy_metric(by_answer({"A": 0.2, "B": 0.7, "C": -1, "D": ValueError("boom")}))
    best, lm = ask(module, metric, "D", "C", "A", "B")
    assert best.answer == "B"
    if module is dspy.Refine:
        assert "return value, {" in shown(lm.advised[0], "reward_code")
        assert "boom" in shown(lm.advised[0], "reward_value")
        assert "Feedback on C." in shown(lm.advised[1], "reward_value")


@both
def test_one_metric_and_its_reward_can_share_a_metric(module):
    metric = Metric(by_answer({"A": 0.2, "B": 0.7}))
    assert ask(module, as_dspy_reward(metric), "A", "B")[0].answer == "B"
    assert as_dspy_metric(metric)(examples(1)[0], dspy.Prediction(answer="A")) == 0.2
    assert metric.calls == 3


@both
def test_a_dspy_metric_that_needs_no_expected_value_serves_as_reward(module):
    def terse(example, pred, trace=None):
        return 1.0 / len(pred.answer + example.question)

    reward = as_dspy_reward(from_dspy_metric(terse))
    assert ask(module, reward, "long", "A", "longer")[0].answer == "A"


# --- a score that fails ---------------------------------------------------------------------------


def always_raising(input, output, expected=None):
    raise LookupError("no such table: verdicts")


@both
def test_a_score_that_always_raises_leaves_an_answer_and_never_stops_what_serves(module):
    reward = as_dspy_reward(always_raising)
    lm = in_turn("A", "B", "C")
    with dspy.context(lm=lm):
        best = module(module=program(), N=3, reward_fn=reward, threshold=0.5)
        answers = [best(question=f"q{number}").answer for number in range(20)]
    assert answers == ["A"] * 20
    assert (reward.metric.calls, len(reward.metric.failures)) == (60, 60)
    assert asked(lm) == 60  # no failure was taken for a success


@both
@pytest.mark.parametrize("options", [{"stop_after": 1}, {"max_failures_in_a_row": 1}, {"output": "answr"}])
def test_no_option_makes_a_reward_raise(module, options):
    reward = as_dspy_reward(always_raising, **options)
    for _ in range(8):
        assert ask(module, reward, "A", "B")[0].answer == "A"


def test_a_reward_called_by_itself_gives_a_false_result_for_each_of_twenty_failures():
    reward = as_dspy_reward(always_raising)
    for _ in range(20):
        result = reward({"question": "q"}, dspy.Prediction(answer="A"))
        assert not result
        assert "LookupError: no such table: verdicts" in result.feedback


def test_failures_while_serving_do_not_stop_a_run_with_the_same_metric():
    def score(input, output, expected=None):
        if expected is None or input["question"] == "q0":
            raise ValueError("boom")
        return 1.0, {"feedback": "F."}

    metric = Metric(score)
    reward = as_dspy_reward(metric)
    for _ in range(20):
        assert not reward({"question": "q"}, dspy.Prediction(answer="A"))
    result = dspy.Evaluate(devset=examples(4), metric=as_dspy_metric(metric), num_threads=1)(
        lambda question: dspy.Prediction(answer="A")
    )
    assert result.score == 75.0


@both
def test_a_reward_that_asks_another_broken_metric_does_not_stop_what_serves(module):
    other = as_dspy_metric(always_raising)
    example = dspy.Example(question="q").with_inputs("question")

    def score(input, output, expected=None):
        result = other(example, dspy.Prediction(answer=output))
        return result.score, {"feedback": result.feedback}

    reward = as_dspy_reward(score)
    # The number that stands in for a judgement passes for one here, so either answer may be the best.
    assert {ask(module, reward, "A", "B")[0].answer for _ in range(20)} <= {"A", "B"}
    assert "failed on each of the first 5 rollouts" in "".join(failure.text for failure in reward.failures)


@both
@pytest.mark.parametrize("worst", [0.0, -0.5, -1e6, -1e300])
@pytest.mark.parametrize("first", [True, False])
def test_an_answer_that_could_not_be_judged_ranks_below_every_real_score(module, worst, first):
    answers = ("bad", "good") if first else ("good", "bad")
    reward = as_dspy_reward(by_answer({"bad": ValueError("boom"), "good": worst}))
    assert ask(module, reward, *answers)[0].answer == "good"


@both
@pytest.mark.parametrize("failure_score", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("threshold", [1.0, 0.0, -1.0, -1e9])
def test_an_answer_that_could_not_be_judged_reaches_no_threshold(module, failure_score, threshold):
    reward = as_dspy_reward(by_answer({"bad": ValueError("boom"), "good": 2.0}), failure_score=failure_score)
    best, lm = ask(module, reward, "bad", "good", threshold=threshold)
    assert best.answer == "good"
    assert asked(lm) == 2


@both
@pytest.mark.parametrize(
    "returned", [None, 0.9, "0.9", (0.9, "text"), (float("nan"), {"feedback": "F."}), {"score": 0.9}]
)
def test_a_score_of_another_shape_is_a_failure_and_not_the_end(module, returned):
    def score(input, output, expected=None):
        return returned if output == "bad" else (0.1, {"feedback": "F."})

    reward = as_dspy_reward(score)
    assert ask(module, reward, "bad", "good", threshold=0.5)[0].answer == "good"
    assert [failure.kind for failure in reward.metric.failures] == ["MetricReturnError"]


@both
def test_a_score_that_hangs_is_a_failure(module, released):
    def score(input, output, expected=None):
        if output == "bad":
            released.wait()
        return 0.1, {"feedback": "F."}

    reward = as_dspy_reward(score, timeout=0.5)
    assert ask(module, reward, "bad", "good", threshold=0.5)[0].answer == "good"
    assert [failure.kind for failure in reward.metric.failures] == ["MetricTimeoutError"]


@both
def test_an_async_score_is_a_reward(module):
    async def score(input, output, expected=None):
        return float(output == "B"), {"feedback": "F."}

    assert ask(module, as_dspy_reward(score), "A", "B", "C")[0].answer == "B"


def test_a_program_that_returns_nothing_is_not_judged():
    class Silent(dspy.Module):
        def __init__(self):
            super().__init__()
            self.unused = program()

        def forward(self, question):
            return None

    reward = as_dspy_reward(by_answer({}))
    with dspy.context(lm=in_turn("A")):
        assert dspy.BestOfN(module=Silent(), N=2, reward_fn=reward, threshold=-5.0)(question="q") is None
    assert reward.metric.calls == 0
    assert [failure.kind for failure in reward.metric.failures] == ["ProgramFailedError"] * 2


# --- what is judged -------------------------------------------------------------------------------


def judged(pred, **options):
    """What the score gets as output."""
    seen = []

    def score(input, output, expected=None):
        seen.append(output)
        return 1.0, {"feedback": "F."}

    as_dspy_reward(score, **options)({"question": "q"}, pred)
    return seen


@pytest.mark.parametrize(
    ("fields", "options", "output"),
    [
        ({"answer": "A"}, {}, "A"),
        ({"answer": "A", "reasoning": "r", "trajectory": {}}, {}, "A"),
        ({"reasoning": "r"}, {}, "r"),
        ({"draft": "D", "answer": "A"}, {}, {"draft": "D", "answer": "A"}),
        ({"draft": "D", "answer": "A"}, {"output": "answer"}, "A"),
        (
            {"draft": "D", "answer": "A", "more": 1},
            {"output": ["answer", "more"]},
            {"answer": "A", "more": 1},
        ),
        ({"draft": "D", "answer": "A"}, {"output": lambda pred: pred.answer * 2}, "AA"),
        ({"answer": "A", "reasoning": "r"}, {"output": "reasoning"}, "r"),
        ({"answer": None}, {}, None),
    ],
)
def test_output_says_what_is_judged(fields, options, output):
    assert judged(dspy.Prediction(**fields), **options) == [output]


def test_a_field_that_is_not_there_is_a_failure_that_names_it():
    reward = as_dspy_reward(by_answer({}), output="final")
    result = reward({"question": "q"}, dspy.Prediction(answer="A"))
    assert not result
    assert "no field 'final'" in result.feedback
    assert reward.metric.calls == 0


@pytest.mark.parametrize("output", [5, [], [1], {}])
def test_an_output_option_that_cannot_work_is_refused_at_once(output):
    with pytest.raises(DefinitionError, match="output="):
        as_dspy_reward(always_raising, output=output)


def test_a_reward_takes_no_expected_option():
    with pytest.raises(DefinitionError, match="expected"):
        as_dspy_reward(always_raising, expected="answer")


@both
def test_the_score_cannot_change_what_comes_out(module):
    def score(input, output, expected=None):
        input["question"] = "changed"
        output["notes"].append("changed")
        return 1.0, {"feedback": "F."}

    class Program(dspy.Module):
        def __init__(self):
            super().__init__()
            self.ask = program()

        def forward(self, question):
            return dspy.Prediction(answer=self.ask(question=question).answer, notes=[question])

    reward = as_dspy_reward(score)
    with dspy.context(lm=in_turn("A")):
        best = module(module=Program(), N=1, reward_fn=reward, threshold=1.0)(question="q")
    assert (best.answer, best.notes) == ("A", ["q"])
    assert (reward.metric.calls, len(reward.metric.failures)) == (1, 0)


# --- what Refine's advice model sees --------------------------------------------------------------


def documented(input, output, expected=None):
    """Say whether it is terse."""
    return 1.0 / len(output), {"feedback": "FEEDBACK: say it in one letter.", "scores": {"terse": 0.25}}


class Callable:
    def __call__(self, input, output, expected=None):
        wanted_of_the_object = 0.25
        return wanted_of_the_object, {"feedback": "FEEDBACK: say it in one letter."}

    def method(self, input, output):
        wanted_of_the_method = 0.25
        return wanted_of_the_method, {"feedback": "FEEDBACK: say it in one letter."}


def with_option(input, output, wanted_of_the_partial):
    return wanted_of_the_partial, {"feedback": "FEEDBACK: say it in one letter."}


def decorated(score):
    @functools.wraps(score)
    def wrapper(input, output, expected=None):
        return score(input, output, expected)

    return wrapper


async def awaited(input, output):
    wanted_of_the_coroutine = 0.25
    return wanted_of_the_coroutine, {"feedback": "FEEDBACK: say it in one letter."}


def plain_dspy_metric(example, pred, trace=None):
    wanted_of_the_dspy_metric = 0.25
    return dspy.Prediction(score=wanted_of_the_dspy_metric, feedback="FEEDBACK: say it in one letter.")


SOURCES = {
    "function": (documented, "1.0 / len(output)"),
    "lambda": (
        lambda input, output: (0.25, {"feedback": "FEEDBACK: say it in one letter."}),
        "lambda input, output",
    ),
    "partial": (functools.partial(with_option, wanted_of_the_partial=0.25), "return wanted_of_the_partial"),
    "partial-of-object": (functools.partial(Callable(), expected=None), "wanted_of_the_object = 0.25"),
    "object": (Callable(), "wanted_of_the_object = 0.25"),
    "method": (Callable().method, "wanted_of_the_method = 0.25"),
    "decorated": (decorated(documented), "1.0 / len(output)"),
    "async": (awaited, "wanted_of_the_coroutine = 0.25"),
    "metric": (Metric(documented), "1.0 / len(output)"),
    "dspy-metric": (from_dspy_metric(plain_dspy_metric), "wanted_of_the_dspy_metric = 0.25"),
}


@pytest.mark.parametrize("made_by", [as_dspy_reward, as_dspy_metric], ids=["reward", "metric"])
@pytest.mark.parametrize("name", SOURCES)
def test_refine_shows_the_users_source_the_score_and_the_feedback(name, made_by):
    score, source = SOURCES[name]
    _, lm = ask(dspy.Refine, made_by(score), "long", "long")
    [prompt] = lm.advised
    assert source in shown(prompt, "reward_code")
    assert "judge.reward" not in prompt
    reward = json.loads(shown(prompt, "reward_value"))
    assert reward["score"] == 0.25
    assert reward["feedback"].startswith("FEEDBACK: say it in one letter.\n\nScore: 0.25")


def test_refine_shows_named_scores():
    _, lm = ask(dspy.Refine, as_dspy_reward(documented), "long", "long")
    reward = json.loads(shown(lm.advised[0], "reward_value"))
    assert reward["objective_scores"] == {"terse": 0.25}
    assert "Named scores: terse 0.25" in reward["feedback"]


def test_refine_shows_why_an_answer_could_not_be_judged():
    _, lm = ask(
        dspy.Refine,
        as_dspy_reward(by_answer({"bad": ValueError("no date in it"), "good": 1.0})),
        "bad",
        "good",
    )
    reward = json.loads(shown(lm.advised[0], "reward_value"))
    assert "ValueError: no date in it" in reward["feedback"]
    assert reward["score"] == 0.0


def made_by_exec():
    space = {}
    exec(
        'def score(input, output, expected=None):\n    return 0.25, {"feedback": "FEEDBACK: exec."}\n', space
    )
    return space["score"]


class MadeOfNothing:
    """Its call has no source that can be read."""

    __call__ = eval("lambda self, input, output: (0.25, {'feedback': 'FEEDBACK: exec.'})")


@pytest.mark.parametrize("made_by", [as_dspy_reward, as_dspy_metric], ids=["reward", "metric"])
@pytest.mark.parametrize(
    "score",
    [
        made_by_exec(),
        eval("lambda input, output: (0.25, {'feedback': 'FEEDBACK: exec.'})"),
        functools.partial(made_by_exec()),
        MadeOfNothing(),
        cloudpickle.loads(cloudpickle.dumps(made_by_exec())),
    ],
    ids=["exec", "eval", "partial-of-exec", "object-of-exec", "unpickled"],
)
def test_refine_works_with_a_score_whose_source_cannot_be_read(score, made_by):
    best, lm = ask(dspy.Refine, made_by(score), "A", "B")
    assert best.answer == "A"
    [prompt] = lm.advised
    assert "FEEDBACK: exec." in shown(prompt, "reward_value")


def test_the_advice_reaches_the_next_attempt():
    _, lm = ask(dspy.Refine, as_dspy_reward(documented), "long", "A")
    assert "do better" in lm.prompts[-1]


@pytest.mark.parametrize(
    "feedback", ["Größe ✓ 日本 🎉", 'quotes " and {braces} and \\ and \x07', "a\ud800b\0c", "l1\nl2"]
)
def test_any_feedback_text_reaches_the_advice_model(feedback):
    reward = as_dspy_reward(lambda input, output: (0.25, {"feedback": feedback}))
    best, lm = ask(dspy.Refine, reward, "A", "B")
    assert best.answer == "A"
    told = json.loads(shown(lm.advised[0], "reward_value"))["feedback"]
    clean = feedback.replace("\ud800", "\ufffd").replace("\0", "\ufffd")
    assert told == f"{clean}\n\nScore: 0.25"


# --- inside a program, and what a judge does ------------------------------------------------------


class Careful(dspy.Module):
    """A program that holds BestOfN or Refine."""

    def __init__(self, module, reward):
        super().__init__()
        self.best = module(module=program(), N=2, reward_fn=reward, threshold=0.5)

    def forward(self, question):
        return self.best(question=question)


@both
def test_in_a_program_that_gepa_copies_and_optimises(module):
    reward = as_dspy_reward(by_answer({"A": 0.2, "B": 0.4}))

    def score(input, output, expected=None):
        return float(output == expected["answer"]), {"feedback": "Wanted another."}

    metric = as_dspy_metric(score)
    reflection = reflecting()
    with dspy.context(lm=in_turn("A", "B")):
        better = dspy.GEPA(
            metric=metric, max_metric_calls=16, reflection_lm=reflection, num_threads=1, track_stats=True
        ).compile(
            Careful(module, reward),
            trainset=examples(4, lambda n: "AB"[n % 2]),
            valset=examples(4, lambda n: "AB"[n % 2]),
        )
        assert better(question="q").answer == "B"
    assert set(better.detailed_results.val_aggregate_scores) == {0.5}  # "B" each time, the better of two
    assert reward.metric.calls >= 2 * better.detailed_results.total_metric_calls
    assert len(reward.metric.failures) == 0
    assert "Wanted another." in reflection.prompts[0]


@both
def test_in_a_program_that_is_evaluated_by_eight_threads(module):
    def answer(messages):
        if "reward_code" in messages[0]["content"]:
            return chat(discussion="d", advice='{"self": "do better"}')
        return chat(answer=field_of(messages, "question"))

    reward = as_dspy_reward(lambda input, output: (float(input["question"] == output), {"feedback": "F."}))
    metric = as_dspy_metric(
        lambda input, output, expected: (float(output == expected["answer"]), {"feedback": "F."})
    )
    with dspy.context(lm=scripted_lm(answer)):
        result = dspy.Evaluate(devset=examples(16, lambda n: f"q{n}"), metric=metric, num_threads=8)(
            Careful(module, reward)
        )
    assert result.score == 100.0
    assert reward.metric.calls == 16


def judging(input, output, expected=None):
    """A judge that asks a model."""
    verdict = dspy.Predict("verdict_on -> score: float")(verdict_on=output)
    return verdict.score, {"feedback": "Judged."}


def judge_model():
    return scripted_lm(lambda messages: chat(score=0.9 if field_of(messages, "verdict_on") == "B" else 0.1))


@both
def test_a_judges_calls_go_to_metric_lm_and_stay_out_of_trace_and_usage(module):
    judge = judge_model()
    lm = in_turn("A", "B")
    with dspy.context(lm=lm, track_usage=True, trace=[]):
        best = module(
            module=program(), N=2, reward_fn=as_dspy_reward(judging, metric_lm=judge), threshold=2.0
        )
        answer = best(question="q")
        trace = list(dspy.settings.trace)
    assert answer.answer == "B"
    assert len(judge.prompts) == 2
    assert asked(lm) == 2
    # The trace holds the chosen answer, and the advice that Refine itself asked for.
    assert [outputs.answer for _, _, outputs in trace if "answer" in outputs] == ["B"]
    assert not any("verdict_on" in inputs for _, inputs, _ in trace)
    # Ten tokens for each answer of the program and, in Refine, for the advice; none for the judge.
    [usage] = answer.get_lm_usage().values()
    assert usage["prompt_tokens"] == 10 * len(lm.prompts)


@both
def test_without_metric_lm_the_judge_is_the_model_that_is_set(module):
    def answer(messages):
        if "verdict_on" in messages[-1]["content"]:
            return chat(score=0.9)
        return chat(answer="A")

    lm = scripted_lm(answer)
    with dspy.context(lm=lm):
        best = module(module=program(), N=1, reward_fn=as_dspy_reward(judging), threshold=0.5)
        assert best(question="q").answer == "A"
    assert len(lm.prompts) == 2


@both
def test_a_score_that_asks_a_model_though_none_is_set_is_a_failure(module):
    lm = in_turn("A", "B")
    inner = program()
    inner.set_lm(lm)
    reward = as_dspy_reward(judging)
    best = module(module=inner, N=2, reward_fn=reward, threshold=0.5)
    with dspy.context(lm=lm if module is dspy.Refine else None):
        assert best(question="q").answer == "A"
    assert len(reward.metric.failures) == 2


def test_the_metric_object_as_reward_still_is_a_metric_that_stops_a_run():
    # What serves takes `as_dspy_reward`; a metric stops a run that it fails on, wherever it is asked.
    best = dspy.BestOfN(module=program(), N=6, reward_fn=as_dspy_metric(always_raising), threshold=0.5)
    with dspy.context(lm=in_turn("A")), pytest.raises(MetricBroken, match="no such table"):
        best(question="q")
