"""Every target reads the same number, named scores and text from one score."""

import dspy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skynet_adapters import Case, as_dspy_metric, as_gepa_adapter, as_gepa_evaluator

numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
texts = st.text(max_size=60)


@settings(max_examples=60, deadline=None)
@example(1.0, "Say <curr_param>.", {}, "<side_info>")
@given(numbers, texts, st.dictionaries(st.text("abc", min_size=1, max_size=3), numbers, max_size=3), texts)
def test_dspy_the_adapter_and_the_evaluator_say_the_same(value, feedback, named, further):
    def score(input, output, expected=None):
        info = {"feedback": feedback, "note": further}
        return value, {**info, "scores": named} if named else info

    options = {"timeout": None}
    example = dspy.Example(question="q", answer="A").with_inputs("question")
    in_dspy = as_dspy_metric(score, **options)(example, dspy.Prediction(answer="A"))

    case = Case("1", {"question": "q"}, {"answer": "A"})
    adapter = as_gepa_adapter(
        score, lambda artifact, input: "A", artifact="text", run_timeout=None, **options
    )
    with adapter:
        batch = adapter.evaluate([case], adapter.seed_candidate, capture_traces=True)
        (record,) = adapter.make_reflective_dataset(adapter.seed_candidate, batch, ["artifact"])["artifact"]
    evaluator = as_gepa_evaluator(score, lambda artifact, input: "A", run_timeout=None, **options)
    number, side_info = evaluator("text", case)

    assert [float(in_dspy), batch.scores[0], number] == [value] * 3
    assert (
        in_dspy.get("objective_scores", {})
        == (batch.objective_scores or [{}])[0]
        == side_info.get("scores", {})
    )
    # In gepa's own prompt template these two are placeholders (gepa 0.1.4), and DSPy's has none.
    text = in_dspy.feedback.replace("<side_info>", "<side info>").replace("<curr_param>", "<curr param>")
    assert text == record["Feedback"] == side_info["Feedback"]
