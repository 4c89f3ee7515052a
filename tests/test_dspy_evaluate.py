"""The metric in the real `dspy.Evaluate`."""

import dspy

from skynet_adapters import as_dspy_metric
from tests.scripted import answering, examples


def score(input, output, expected=None):
    right = output == expected["answer"]
    return float(right), {
        "feedback": "Right." if right else f"Expected {expected['answer']!r}, got {output!r}."
    }


def test_mean_is_the_mean_of_the_scores_under_eight_threads():
    metric = as_dspy_metric(score)
    with dspy.context(lm=answering(lambda question: "A" if question in ("q0", "q3") else "B")):
        result = dspy.Evaluate(devset=examples(8), metric=metric, num_threads=8)(
            dspy.Predict("question -> answer")
        )
    assert result.score == 25.0
    assert metric.metric.calls == 8
