"""What a metric may return, what it becomes, and what a refusal says."""

import math
import re
import threading
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skynet_adapters.errors import MetricReturnError
from skynet_adapters.metric import Metric
from skynet_adapters.score import Score, clean_text, complete_scores, parse_return, shown

MEND = 'return 0.8, {"feedback": '


def refusal(returned: Any, **options: Any) -> str:
    """Return the text of the error that this gives."""
    with pytest.raises(MetricReturnError) as caught:
        parse_return(returned, "exact_match", **options)
    return str(caught.value)


def said(**info: Any) -> tuple[float, dict[str, Any]]:
    return 0.5, {"feedback": "Close.", **info}


# --- the specification's table -------------------------------------------------------------------


def test_a_tuple_with_number_and_feedback_is_a_judgement():
    score = parse_return((0.8, {"feedback": "Close. Missing the date."}))
    assert score == Score(0.8, "Close. Missing the date.", {}, {}, None)


def test_a_list_with_number_feedback_and_scores_is_a_judgement():
    score = parse_return([1.0, {"feedback": "OK", "scores": {"format": 1.0}}])
    assert score == Score(1.0, "OK", {"format": 1.0}, {}, None)


def test_a_number_alone_is_refused():
    message = refusal(0.8)
    assert "metric 'exact_match' returned 0.8 (float), not a pair" in message
    assert MEND in message


def test_a_text_instead_of_additional_information_is_refused():
    message = refusal((0.8, "Close."))
    assert "metric 'exact_match' returned 'Close.' (str), as additional information, not a dict" in message
    assert MEND in message


def test_additional_information_without_feedback_is_refused():
    message = refusal((0.8, {}))
    assert "without a `feedback`, which must be a text" in message
    assert MEND in message


def test_a_text_as_score_is_refused_even_when_it_reads_like_a_number():
    message = refusal(("0.8", {"feedback": "OK"}))
    assert "metric 'exact_match' returned '0.8' (str) for the score, which must be a number" in message
    assert MEND in message


def test_a_named_score_that_is_no_number_is_refused_by_its_name():
    message = refusal((0.8, {"feedback": "OK", "scores": {"a": "high"}}))
    assert "metric 'exact_match' returned 'high' (str) for the named score 'a'" in message
    assert message.endswith('`return 0.8, {"feedback": "Close.", "scores": {"format": 1.0}}`')


# --- other shapes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        None,
        (),
        (0.8,),
        (0.8, {"feedback": "OK"}, "more"),
        [0.8, {"feedback": "OK"}, "more"],
        {"score": 0.8, "feedback": "OK"},
        "0.8",
        {0.8, "OK"},
        iter((0.8, {"feedback": "OK"})),
        np.array([0.8, {"feedback": "OK"}], dtype=object),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_what_is_no_pair_is_refused(returned):
    message = refusal(returned)
    assert "metric 'exact_match' returned " in message
    assert f"({type(returned).__name__}), not a pair" in message
    assert MEND in message


def test_a_triple_is_shown_in_the_refusal():
    assert "(0.8, {'feedback': 'OK'}, 'more')" in refusal((0.8, {"feedback": "OK"}, "more"))


@pytest.mark.parametrize("feedback", [None, 1, b"OK", ["OK"], {"text": "OK"}, float("nan")])
def test_feedback_that_is_no_text_is_refused_and_shown(feedback):
    message = refusal((0.8, {"feedback": feedback}))
    assert f"metric 'exact_match' returned {feedback!r} ({type(feedback).__name__}) as `feedback`" in message
    assert MEND in message


@pytest.mark.parametrize("scores", [None, [1.0], 1.0, "format", [("format", 1.0)]])
def test_scores_that_are_no_dict_are_refused(scores):
    message = refusal(said(scores=scores))
    assert f"metric 'exact_match' returned {scores!r} ({type(scores).__name__}), as `scores`" in message
    assert '{"format": 1.0}' in message


@pytest.mark.parametrize("key", [1, None, ("a",), b"a"])
def test_a_named_score_whose_name_is_no_text_is_refused(key):
    message = refusal(said(scores={key: 1.0}))
    assert f"metric 'exact_match' named a score {key!r}" in message
    assert "names in `scores` are texts" in message


@pytest.mark.parametrize("texts", [None, "text", ["text"], {"answer": None}, {"answer": 1}, {1: "text"}])
def test_component_feedback_that_is_no_dict_of_texts_is_refused(texts):
    message = refusal(said(component_feedback=texts))
    assert "metric 'exact_match' returned " in message
    assert "as `component_feedback`, not a dict of component names to texts" in message


@pytest.mark.parametrize("feedback", ["", " ", "\n\t "])
def test_feedback_without_a_word_becomes_a_sentence_that_says_so(feedback):
    assert parse_return((0.8, {"feedback": feedback})).feedback == "The metric gave no feedback text."


def test_a_refusal_stays_short_whatever_was_returned():
    assert len(refusal("x" * 5_000_000)) < 2_000
    assert len(refusal((0.5, ["x" * 1_000] * 1_000))) < 2_000
    assert len(refusal((0.5, {"feedback": ["x" * 5_000_000]}))) < 2_000


@pytest.mark.parametrize("options", [{}, {"score_names": ["format"]}])
def test_a_refusal_stays_short_when_a_name_is_very_long(options):
    assert len(refusal(said(scores={"x" * 100_000: "high"}), **options)) < 2_000


class ReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


def test_a_refusal_survives_a_repr_that_raises():
    assert "ReprRaises" in refusal(ReprRaises())
    assert "ReprRaises" in refusal((0.5, [ReprRaises()]))
    assert "(ReprRaises) for the score" in refusal((ReprRaises(), {"feedback": "OK"}))


@pytest.mark.parametrize(
    ("returned", "options"),
    [
        (0.8, {}),
        ((0.8, "Close."), {}),
        ((0.8, {}), {}),
        (("0.8", {"feedback": "OK"}), {}),
        ((float("nan"), {"feedback": "OK"}), {}),
        ((10**400, {"feedback": "OK"}), {}),
        ((Decimal("sNaN"), {"feedback": "OK"}), {}),
        (said(scores=[1.0]), {}),
        (said(scores={"a": "high"}), {}),
        (said(scores={1: 1.0}), {}),
        (said(scores={"a": 1.0}), {"score_names": ["b"]}),
        (said(component_feedback="text"), {}),
        ((11, {"feedback": "OK"}), {"score_range": (0, 10)}),
    ],
    ids=lambda value: shown(value)[:60],
)
def test_every_refusal_names_the_metric_and_ends_with_the_mend(returned, options):
    message = refusal(returned, **options)
    assert message.startswith("metric 'exact_match' ")
    assert message.partition("; ")[2].strip(), f"no mend in: {message}"


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (0.8, 0.8),
        (1, 1.0),
        (0, 0.0),
        (-3, -3.0),
        (True, 1.0),
        (False, 0.0),
        (2**60, float(2**60)),
        (np.float16(0.5), 0.5),
        (np.float32(0.8), float(np.float32(0.8))),
        (np.float64(0.8), 0.8),
        (np.longdouble(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.uint8(3), 3.0),
        (np.bool_(True), 1.0),
        (np.bool_(False), 0.0),
        (np.array(0.8), 0.8),
        (np.array(3), 3.0),
        (np.array(True), 1.0),
        (np.array(Decimal("0.8"), dtype=object), 0.8),
        (Decimal("0.8"), 0.8),
        (Decimal(3), 3.0),
        (Fraction(4, 5), 0.8),
        (5e-324, 5e-324),
        (1.7e308, 1.7e308),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}",
)
def test_a_number_of_any_kind_becomes_a_python_float(number, value):
    score = parse_return((number, {"feedback": "OK", "scores": {"a": number}}))
    assert score.value == value
    assert type(score.value) is float
    assert score.scores == {"a": value}
    assert type(score.scores["a"]) is float


class Half(float):
    """A float of the user's own."""


def test_a_subclass_of_float_becomes_a_plain_float():
    score = parse_return((Half(0.5), {"feedback": "OK"}))
    assert score.value == 0.5
    assert type(score.value) is float


NOT_FINITE = [
    float("nan"),
    float("inf"),
    float("-inf"),
    np.float32("nan"),
    np.float64("inf"),
    np.array(np.nan),
    Decimal("NaN"),
    Decimal("Infinity"),
    Decimal("1e400"),
]


@pytest.mark.parametrize("number", NOT_FINITE, ids=repr)
def test_a_number_that_is_not_finite_is_refused_as_score_and_as_named_score(number):
    message = refusal((number, {"feedback": "OK"}))
    assert re.search(
        r"metric 'exact_match' returned -?(nan|inf) for the score, which must be finite", message
    )
    assert "return a number also for an empty or undefined case" in message
    assert "for the named score 'a', which must be finite" in refusal(said(scores={"a": number}))


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 10**5000, Fraction(10**400, 3), Decimal("sNaN")], ids=lambda _: ""
)
def test_a_number_that_no_float_can_hold_is_refused(number):
    assert "for the score, which is no finite float" in refusal((number, {"feedback": "OK"}))
    assert "for the named score 'a', which is no finite float" in refusal(said(scores={"a": number}))


@pytest.mark.parametrize(
    "number",
    [
        1j,
        complex(1, 0),
        np.complex128(1),
        None,
        "1",
        b"1",
        [1.0],
        (1.0,),
        {"value": 1.0},
        np.array([1.0]),
        np.array([[1.0]]),
        np.array([0.5, 0.5]),
        np.str_("1"),
        np.array("1"),
        np.datetime64("2026-01-01"),
        object(),
        float,
        lambda: 1.0,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_as_score_and_as_named_score(number):
    message = refusal((number, {"feedback": "OK"}))
    assert "metric 'exact_match' returned " in message
    assert f"({type(number).__name__}) for the score, which must be a number" in message
    assert MEND in message
    assert "for the named score 'a', which must be a number" in refusal(said(scores={"a": number}))


# --- score_range and score_names -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "score_range", "value"),
    [
        (0, (0, 10), 0.0),
        (10, (0, 10), 1.0),
        (8, (0, 10), 0.8),
        (0, (-1, 1), 0.5),
        (-1, (-1, 1), 0.0),
        (3, (1, 5), 0.5),
        (True, (0, 2), 0.5),
        (Fraction(1, 2), (0, 1), 0.5),
        (np.float32(5), (0, 10), 0.5),
    ],
)
def test_a_score_within_its_range_is_normalised_to_0_to_1(number, score_range, value):
    score = parse_return((number, {"feedback": "OK"}), score_range=score_range)
    assert score.value == value
    assert type(score.value) is float


@pytest.mark.parametrize("number", [-0.001, 10.001, 1e300, -5])
def test_a_score_outside_its_range_is_refused_with_the_range_and_the_mend(number):
    message = refusal((number, {"feedback": "OK"}), score_range=(0, 10))
    assert f"metric 'exact_match' returned {number:g}, outside its score_range=(0, 10)" in message
    assert "widen score_range or mend the metric" in message


def test_without_a_range_a_score_stays_as_it_is():
    assert parse_return((7, {"feedback": "OK"})).value == 7.0


def test_named_scores_are_not_normalised_by_the_range_of_the_score():
    score = parse_return((5, {"feedback": "OK", "scores": {"a": 5}}), score_range=(0, 10))
    assert (score.value, score.scores) == (0.5, {"a": 5.0})


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.tuples(finite, finite, finite).map(sorted).filter(lambda three: three[0] < three[2]))
def test_a_normalised_score_lies_between_0_and_1_for_any_range(three):
    low, number, high = three
    value = parse_return((number, {"feedback": "OK"}), score_range=(low, high)).value
    assert 0.0 <= value <= 1.0


def test_a_range_as_wide_as_floats_go_gives_no_nan():
    assert parse_return((1e308, {"feedback": "OK"}), score_range=(-1e308, 1e308)).value == 1.0


def test_a_range_as_narrow_as_floats_go_can_be_normalised():
    assert parse_return((5e-324, {"feedback": "OK"}), score_range=(0.0, 5e-324)).value == 1.0
    assert parse_return((0.0, {"feedback": "OK"}), score_range=(0.0, 5e-324)).value == 0.0


def test_a_name_outside_score_names_is_refused_with_the_names_and_the_mend():
    message = refusal(said(scores={"form": 1.0}), score_names=["format", "facts"])
    assert "metric 'exact_match' returned the named score 'form'" in message
    assert "['format', 'facts']" in message
    assert "add it there or rename it" in message


def test_fewer_names_than_score_names_are_accepted():
    assert parse_return(said(scores={"facts": 1}), score_names=["format", "facts"]).scores == {"facts": 1.0}


def test_score_names_may_be_any_iterable():
    names = (name for name in ["format", "facts"])
    score = parse_return(said(scores={"facts": 1, "format": 0}), score_names=names)
    assert score.scores == {"facts": 1.0, "format": 0.0}


def test_completed_scores_keep_their_own_values_and_order():
    done = complete_scores({"b": 0.5}, ["a", "b", "c"], missing=-1.0)
    assert done == {"b": 0.5, "a": -1.0, "c": -1.0}


# --- component feedback and further keys ---------------------------------------------------------


def test_component_feedback_is_kept_apart_from_the_general_text():
    score = parse_return(said(component_feedback={"classify": "Read the last line."}))
    assert score.info == {"component_feedback": {"classify": "Read the last line."}}
    assert score.feedback == "Close."


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_component_feedback_is_never_empty(text):
    score = parse_return(said(component_feedback={"classify": text}))
    assert score.info["component_feedback"]["classify"].strip()


def test_component_feedback_is_cut_and_scrubbed_like_feedback():
    score = parse_return(said(component_feedback={"classify": "\0" + "x" * 5_000}), max_feedback_chars=200)
    text = score.info["component_feedback"]["classify"]
    assert len(text) <= 200
    assert "\0" not in text


def test_further_keys_are_kept_as_they_are():
    lock = threading.Lock()
    image = "data:image/png;base64," + "A" * 10_000
    score = parse_return(said(lock=lock, count=3, tags=["a"], why={"a": 1}, image=image))
    assert score.info == {"lock": lock, "count": 3, "tags": ["a"], "why": {"a": 1}, "image": image}


def test_further_information_is_not_changed_by_a_metric_that_fills_its_list_again():
    notes = ["first"]
    score = parse_return(said(notes=notes, deeper={"notes": notes}))
    notes[0] = "second"
    assert score.info == {"notes": ["first"], "deeper": {"notes": ["first"]}}
    assert "second" not in score.text()


def test_a_very_long_further_text_is_not_kept_whole():
    assert len(parse_return(said(document="x" * 1_000_000)).info["document"]) <= 5_000


def test_a_further_key_that_is_no_text_becomes_one():
    assert parse_return((0.5, {"feedback": "Close.", 3: "three", None: "none"})).info == {
        "3": "three",
        "None": "none",
    }


def test_a_further_key_is_scrubbed():
    assert parse_return(said(**{"a\ud800b": 1})).info == {"a\ufffdb": 1}


def test_a_key_that_cannot_become_a_text_is_refused_by_the_named_error():
    # Python refuses to write an int of more than 4,300 digits.
    try:
        score = parse_return((0.5, {"feedback": "Close.", 10**5000: 1}))
    except MetricReturnError:
        return
    assert score.value == 0.5


def test_what_the_metric_returned_is_not_changed():
    info = {"feedback": "a\0b", "scores": {"a": 1}, "component_feedback": {"c": ""}, 3: "three"}
    parse_return((1, info))
    assert info == {"feedback": "a\0b", "scores": {"a": 1}, "component_feedback": {"c": ""}, 3: "three"}


# --- Score.text ----------------------------------------------------------------------------------


def test_the_text_has_the_score_and_the_named_scores_beside_the_feedback():
    text = Score(0.5, "The date is missing.", {"format": 1.0, "facts": 0.25}).text()
    assert text == "The date is missing.\n\nScore: 0.5\nNamed scores: format 1, facts 0.25"


def test_the_text_without_named_scores_has_no_line_for_them():
    assert Score(1 / 3, "Close.").text() == "Close.\n\nScore: 0.333333"


def test_completed_scores_can_be_shown_instead_of_the_cases_own():
    text = Score(0.5, "Close.", {"format": 1.0}).text(scores={"format": 1.0, "facts": 0.0})
    assert "Named scores: format 1, facts 0" in text


def test_a_component_gets_its_own_text_and_every_other_the_general_one():
    score = parse_return(said(component_feedback={"classify": "Read the last line."}))
    assert score.text("classify") == "Read the last line.\n\nScore: 0.5"
    assert score.text("summarize") == "Close.\n\nScore: 0.5"
    assert score.text() == "Close.\n\nScore: 0.5"


def test_the_text_of_a_component_does_not_tell_what_was_meant_for_another():
    score = parse_return(said(component_feedback={"a": "text for a", "b": "text for b"}))
    assert "text for b" not in score.text("a")
    assert "text for a" not in score.text()


def test_a_component_gets_the_general_text_when_no_component_has_its_own():
    assert parse_return(said()).text("classify") == "Close.\n\nScore: 0.5"


def test_further_information_stands_in_the_text():
    text = parse_return(said(diff="- a\n+ b", count=3)).text()
    assert "diff: - a\n+ b" in text
    assert "count: 3" in text


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ([f"error {number}" for number in range(10)], [f"error {number}" for number in range(10)]),
        ({f"field {number}": number for number in range(6)}, [f"field {number}" for number in range(6)]),
        (["The field 'date' is missing. " * 10 + "END"], ["END", "The field 'date' is missing. " * 10]),
        ({"a": {"b": {"c": {"d": "deep"}}}}, ["deep"]),
    ],
    ids=["a list of ten", "a dict of six", "a long text in a list", "a dict four deep"],
)
def test_lists_and_dicts_of_ordinary_size_reach_the_reflection_model_whole(value, parts):
    text = parse_return(said(details=value)).text()
    assert [part for part in parts if part not in text] == []


def test_further_information_of_any_size_leaves_the_text_of_bearable_length():
    assert len(parse_return(said(dump="x" * 5_000_000, rows=list(range(1_000_000)))).text()) < 30_000


def test_many_further_keys_leave_the_text_of_bearable_length_and_it_says_how_many_are_left_out():
    many = {f"key {number}": "x" * 4_000 for number in range(300)}
    text = parse_return(said(**many, **{"a long name" * 100_000: "short"})).text()
    assert len(text) < 30_000
    assert "key 3: xxx" in text
    assert "characters left out" in text.rpartition("key 3")[2]  # of the long name
    assert "[... 296 of 301 further keys left out ...]" in text


def test_the_text_survives_information_whose_repr_raises():
    assert "broken: " in parse_return(said(broken=ReprRaises())).text()


def test_the_text_of_a_failure_is_never_empty():
    assert Score(0.0, "No judgement: it raised.").text().startswith("No judgement: it raised.\n\nScore: 0")


# --- clean_text and shown ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\ud800b", "a\ufffdb"),
        ("x\udfffy", "x\ufffdy"),
        ("\ud800", "\ufffd"),
        ("end\udc00", "end\ufffd"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud800\ud800\udc00", "\ufffd\U00010000"),
        ("\ud83d\ude00", "😀"),
        ("😀 é 中", "😀 é 中"),
        ("a\0b\0", "a\ufffdb\ufffd"),
        ("\0\ud800", "\ufffd\ufffd"),
        ("\ufeffmark", "\ufeffmark"),
        ("\ufffemark", "\ufffemark"),
        ("tab\tline\r\n", "tab\tline\r\n"),
    ],
    ids=ascii,
)
def test_lone_surrogates_and_nuls_are_scrubbed_and_all_else_stays(text, clean):
    assert clean_text(text) == clean


def test_feedback_and_names_of_scores_are_scrubbed():
    score = parse_return((1, {"feedback": "a\ud800\0", "scores": {"b\ud800": 1}}))
    assert (score.feedback, score.scores) == ("a\ufffd\ufffd", {"b\ufffd": 1.0})


def test_five_megabytes_keep_head_tail_and_a_mark_that_counts_what_is_left_out():
    feedback = "HEAD" + "x" * 5_000_000 + "TAIL"
    text = parse_return((1, {"feedback": feedback}), max_feedback_chars=10_000).feedback
    assert len(text) <= 10_000
    assert len(text) > 9_900
    assert text.startswith("HEAD")
    assert text.endswith("TAIL")
    head, count, tail = re.fullmatch(
        r"(HEADx+)\n\[\.\.\. (\d+) characters left out \.\.\.\]\n(x+TAIL)", text
    ).groups()
    assert len(head) + int(count) + len(tail) == len(feedback)
    assert len(head) > len(tail)


def test_a_text_of_exactly_the_limit_is_not_cut_and_one_longer_is():
    assert clean_text("x" * 100, 100) == "x" * 100
    assert "characters left out" in clean_text("x" * 101, 100)
    assert len(clean_text("x" * 101, 100)) <= 100


def test_without_a_limit_nothing_is_cut():
    feedback = "x" * 5_000_000
    assert parse_return((1, {"feedback": feedback})).feedback == feedback


def test_a_cut_through_a_surrogate_pair_leaves_text_that_can_be_encoded():
    clean_text("\ud83d\ude00" * 500, 101).encode("utf-8")


any_text = st.text(st.characters())  # surrogates included


@given(any_text, st.none() | st.integers(100, 300))
def test_clean_text_can_be_encoded_and_is_clean_already(text, limit):
    clean = clean_text(text, limit)
    clean.encode("utf-8")
    assert "\0" not in clean
    assert clean_text(clean, limit) == clean


@given(st.text(st.characters(codec="utf-8"), min_size=101, max_size=2_000), st.integers(100, 1_000))
def test_a_cut_text_keeps_to_its_limit_and_to_both_ends(text, limit):
    text = text.replace("\0", "0")
    clean = clean_text(text, limit)
    assert len(clean) <= max(limit, 100)
    assert clean[:20] == text[:20]
    assert clean[-10:] == text[-10:]


def test_a_value_is_shown_short_and_with_its_type():
    assert shown(3) == "3 (int)"
    assert shown("text") == "'text' (str)"
    assert len(shown(["x" * 1_000] * 1_000)) < 500
    assert shown(10**5000).endswith("(int)")


# --- anything at all -----------------------------------------------------------------------------


class Raises:
    """Raises on everything that a parser may ask of it."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("not today")

    __repr__ = __str__ = __float__ = __len__ = __iter__ = __bool__ = __format__ = _raise
    __int__ = __index__ = __getitem__ = __lt__ = _raise


class RaisesWhenCompared(Raises):
    __eq__ = Raises._raise
    __hash__ = object.__hash__


class FloatRaises(float):
    def __float__(self) -> float:
        raise RuntimeError("not today")


class IntRaises(int):
    def __float__(self) -> float:
        raise RuntimeError("not today")

    def __repr__(self) -> str:
        raise RuntimeError("not today")


class NumberRaises:
    """Counts as a real number, and is none."""

    def __float__(self) -> float:
        raise RuntimeError("not today")


Real.register(NumberRaises)


class ItemRaises:
    """Looks like a zero-dimensional array."""

    ndim = 0

    def item(self) -> float:
        raise RuntimeError("not today")


class NdimRaises:
    @property
    def ndim(self) -> int:
        raise RuntimeError("not today")


class TextRaises(str):
    __slots__ = ()

    def strip(self, *_: Any) -> str:
        raise RuntimeError("not today")

    def isascii(self) -> bool:
        raise RuntimeError("not today")


class ListRaises(list):
    def __len__(self) -> int:
        raise RuntimeError("not today")

    def __iter__(self) -> Any:
        raise RuntimeError("not today")


class DictRaises(dict):
    def get(self, *_: Any) -> Any:
        raise RuntimeError("not today")

    def items(self) -> Any:
        raise RuntimeError("not today")


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | any_text
    | st.binary()
    | st.complex_numbers()
    | st.decimals()
    | st.fractions()
)
# Classes are drawn and called, since Hypothesis shows what it draws from.
raising = st.sampled_from([Raises, RaisesWhenCompared, ReprRaises, object]).map(lambda kind: kind())
odd_numbers = st.sampled_from([FloatRaises, IntRaises, NumberRaises, ItemRaises, NdimRaises]).map(
    lambda kind: kind()
)
odd = odd_numbers | st.sampled_from(
    [lambda: TextRaises("text"), lambda: ListRaises([1, {}]), lambda: DictRaises(feedback="text")]
).map(lambda make: make())
known_keys = st.sampled_from(["feedback", "scores", "component_feedback"])
plain_keys = known_keys | any_text | st.integers() | st.none() | st.booleans()


def anything(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values of any shape, most of them near to what a metric ought to return."""
    values = st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=8,
    )
    infos = st.fixed_dictionaries(
        {},
        optional={
            "feedback": any_text | values,
            "scores": st.dictionaries(keys, values, max_size=3) | values,
            "component_feedback": st.dictionaries(keys, any_text | values, max_size=3) | values,
            "further": values,
        },
    ) | st.dictionaries(keys, values, max_size=3)
    pairs = st.tuples(values, infos) | st.tuples(values, infos).map(list)
    return pairs | values


@settings(max_examples=200, deadline=None)
@given(
    anything(plain | raising, plain_keys),
    st.none() | st.just((0.0, 10.0)),
    st.none() | st.just(("a", "b")),
    st.none() | st.just(100),
)
def test_nothing_escapes_the_parser_but_the_named_error(returned, score_range, score_names, limit):
    try:
        score = parse_return(returned, "metric", score_range, score_names, limit)
    except MetricReturnError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert message.startswith("metric 'metric' ")
        return
    assert type(score.value) is float
    assert math.isfinite(score.value)
    assert score.feedback.strip()
    assert all(math.isfinite(value) for value in score.scores.values())
    assert score.error is None
    score.text().encode("utf-8")


@settings(max_examples=200, deadline=None)
@given(anything(plain | raising | odd, plain_keys | raising | odd_numbers))
def test_nothing_at_all_escapes_a_metric_that_returns_anything(returned):
    metric = Metric(lambda input, output: returned, timeout=None, name="metric")
    score = metric.score_case({"q": "?"}, "answer", None)
    assert math.isfinite(score.value)
    assert score.feedback
    if score.error is not None:
        assert isinstance(score.error, MetricReturnError)
        assert score.value == metric.failure_score
    assert len(metric.failures) == (score.error is not None)


@pytest.mark.parametrize(
    "returned",
    [
        (FloatRaises(1), {"feedback": "OK"}),
        (IntRaises(1), {"feedback": "OK"}),
        (NumberRaises(), {"feedback": "OK"}),
        (ItemRaises(), {"feedback": "OK"}),
        (NdimRaises(), {"feedback": "OK"}),
        (1.0, DictRaises(feedback="OK")),
        (1.0, {"feedback": "OK", "scores": DictRaises(a=1)}),
        ListRaises([1.0, {"feedback": "OK"}]),
        Raises(),
        (Raises(), Raises()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_returned_object_that_raises_when_it_is_read_is_a_wrong_return(returned):
    score = Metric(lambda input, output: returned, timeout=None, name="odd").score_case({}, "a")
    assert isinstance(score.error, MetricReturnError)
    assert "'odd'" in str(score.error)


class Exits(float):
    """Exits when it is read; only while armed, since pytest shows the arguments of a failed test."""

    armed = False

    def __float__(self) -> float:
        return self._read(0.5)

    def __repr__(self) -> str:
        return self._read("an exit")

    def _read(self, answer: Any) -> Any:
        if Exits.armed:
            raise SystemExit(3)
        return answer


@pytest.mark.parametrize(
    "returned",
    [(Exits(1), {"feedback": "OK"}), {"number": Exits(1)}, (1.0, [Exits(1)])],
    ids=["float", "repr", "nested repr"],
)
def test_a_returned_object_that_exits_when_it_is_read_does_not_end_the_run(returned, monkeypatch):
    metric = Metric(lambda input, output: returned, timeout=None)
    with monkeypatch.context() as patch:
        patch.setattr(Exits, "armed", True)
        score = metric.score_case({}, "a")
    assert isinstance(score.error, MetricReturnError)


def test_a_text_of_a_class_of_its_own_is_taken_for_what_it_holds():
    score = parse_return((1.0, {"feedback": TextRaises("OK"), "note": TextRaises("More.")}))
    assert (score.feedback, score.info) == ("OK", {"note": "More."})
    assert type(score.feedback) is type(score.info["note"]) is str


finite_numbers = (
    finite
    | st.integers(-(10**300), 10**300)
    | st.booleans()
    | st.fractions()
    | st.decimals(allow_nan=False, allow_infinity=False).filter(lambda number: math.isfinite(float(number)))
    | st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32)
    | finite.map(np.float64)
    | finite.map(np.array)
    | st.integers(-(2**63), 2**63 - 1).map(np.int64)
    | st.booleans().map(np.bool_)
)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
feedbacks = words.filter(str.strip)


@settings(max_examples=200, deadline=None)
@given(
    finite_numbers,
    feedbacks,
    st.none() | st.dictionaries(words, finite_numbers, max_size=4),
    st.none() | st.dictionaries(words, feedbacks, max_size=3),
    st.dictionaries(
        words.filter(lambda key: key not in ("feedback", "scores", "component_feedback")), plain, max_size=3
    ),
    st.sampled_from([tuple, list]),
)
def test_a_valid_pair_becomes_a_score_with_exactly_its_values(
    number, feedback, scores, components, further, pair
):
    info: dict[str, Any] = {"feedback": feedback, **further}
    if scores is not None:
        info["scores"] = scores
    if components is not None:
        info["component_feedback"] = components
    score = parse_return(pair([number, info]))
    assert score.value == float(number)
    assert type(score.value) is float
    assert score.feedback == feedback
    assert dict(score.scores) == {name: float(value) for name, value in (scores or {}).items()}
    kept = dict(score.info)
    assert kept.pop("component_feedback", None) == components
    assert kept.keys() == further.keys()
    assert kept == {
        key: clean_text(value) if isinstance(value, str) else value for key, value in further.items()
    }
    assert score.error is None
    for component, text in (components or {}).items():
        assert score.text(component).startswith(text)
