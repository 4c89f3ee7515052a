"""Cases to and from DSPy examples, and the check of a data set before anything is paid."""

import re
from pathlib import Path

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skynet_adapters import Case, DataError, Split, as_dspy_metric, check_examples, from_examples, to_examples
from tests.scripted import chat, examples, scripted_lm

METHOD_NAMES = [
    *("items", "keys", "values", "get", "copy", "labels", "inputs", "toDict", "without", "with_inputs"),
    *("_store", "_input_keys", "_demos", "base", "args", "kwargs", "score", "feedback", "input", "output"),
    *("expected", "example", "prediction", "trace", "cls", "metric", "class"),
]
NAMES = st.sampled_from(METHOD_NAMES) | st.text(max_size=8)
FREE_NAMES = NAMES.filter(lambda name: name not in ("self", "instance") and not name.startswith("dspy_"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def cases(draw, names=FREE_NAMES):
    fields = draw(st.dictionaries(names, VALUES, min_size=1, max_size=5))
    count = draw(st.integers(1, len(fields)))
    pairs = list(fields.items())
    return Case(draw(st.text(max_size=5)), dict(pairs[:count]), dict(pairs[count:]) or None)


class Echoing(dspy.Module):
    def forward(self, **inputs):
        return dspy.Prediction({"answer": "A"})


# --- there and back -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(st.lists(cases(), min_size=1, max_size=4))
def test_cases_come_back_from_examples_as_they_were_but_for_their_ids(some):
    back = from_examples(to_examples(some))
    assert [(case.input, case.expected) for case in back] == [(case.input, case.expected) for case in some]
    assert [case.id for case in back] == [str(number) for number in range(1, len(some) + 1)]
    assert [list(case.input) for case in back] == [list(case.input) for case in some]


@settings(deadline=None, max_examples=150)
@given(cases())
def test_an_example_of_a_case_has_its_inputs_and_labels(case):
    [example] = to_examples([case])
    assert isinstance(example, dspy.Example)
    assert dict(example.inputs()._store) == case.input
    assert dict(example.labels()._store) == (case.expected or {})


@settings(deadline=None, max_examples=60)
@given(cases(names=NAMES | st.sampled_from(["self", "instance", "dspy_uuid"])))
def test_a_case_is_refused_or_reaches_the_metric_of_an_evaluation_whole(case):
    try:
        devset = to_examples([case])
    except DataError:
        return
    seen = []

    def keep(input, output, expected=None):
        seen.append((input, expected))
        return 1.0, {"feedback": "F."}

    dspy.Evaluate(devset=devset, metric=as_dspy_metric(keep, timeout=None), num_threads=1)(Echoing())
    assert seen == [(case.input, case.expected)]


@pytest.mark.parametrize("name", ["self", "instance", "dspy_uuid", "dspy_"])
def test_an_input_whose_name_dspy_keeps_for_itself_is_refused(name):
    with pytest.raises(DataError, match=rf"^case '7': .*'{name}'.*rename the field"):
        to_examples([Case("6", {"text": "fine"}), Case("7", {name: "x"}, {"label": "a"})])


def test_a_label_whose_name_dspy_keeps_for_itself_is_refused():
    with pytest.raises(DataError, match=r"case '7': .*'dspy_uuid'"):
        to_examples([Case("7", {"text": "x"}, {"dspy_uuid": "a"})])


def test_a_field_that_is_both_input_and_expected_is_refused():
    with pytest.raises(DataError, match="case '7': 'text' is both an input and an expected field"):
        to_examples([Case("7", {"text": "x"}, {"label": "a", "text": "y"})])


def test_a_case_that_expects_nothing_comes_back_with_none():
    assert from_examples(to_examples([Case("1", {"text": "x"}), Case("2", {"text": "y"}, {})])) == [
        Case("1", {"text": "x"}, None),
        Case("2", {"text": "y"}, None),
    ]


def test_examples_share_no_dict_with_their_cases():
    case = Case("1", {"text": "x"}, {"label": "a"})
    [example] = to_examples([case])
    example["text"] = "changed"
    assert case.input == {"text": "x"}
    [back] = from_examples([example])
    back.input["text"] = "again"
    assert example["text"] == "changed"


def test_no_cases_give_no_examples():
    assert to_examples([]) == []


def test_an_iterator_of_examples_is_read_once():
    assert from_examples(iter(examples(2))) == [
        Case("1", {"question": "q0"}, {"answer": "A"}),
        Case("2", {"question": "q1"}, {"answer": "A"}),
    ]


def test_examples_without_inputs_do_not_become_cases():
    with pytest.raises(DataError, match="example 2 has no inputs set"):
        from_examples([*examples(1), dspy.Example(question="q", answer="A")])


def test_examples_without_labels_become_cases_that_expect_nothing():
    assert from_examples([dspy.Example(question="q").with_inputs("question")]) == [
        Case("1", {"question": "q"}, None)
    ]


def test_dspys_own_fields_stay_behind():
    example = dspy.Example(question="q", answer="A", dspy_uuid="u", dspy_split="train")
    assert from_examples([example.with_inputs("question")]) == [Case("1", {"question": "q"}, {"answer": "A"})]


# --- the check ------------------------------------------------------------------------------------


def fault_of(*devset, program=None, **options):
    """What the check says, or `None`."""
    try:
        check_examples(list(devset), program, **options)
    except DataError as error:
        return str(error)
    return None


GOOD = dspy.Example(question="q", answer="A").with_inputs("question")


def test_a_good_data_set_passes():
    assert check_examples(examples(3)) is None


@pytest.mark.parametrize(
    ("example", "fault", "mend"),
    [
        (dspy.Example(question="q", answer="A"), "has no inputs set", r'call \.with_inputs\("question"'),
        (GOOD.with_inputs(), "with_inputs() was called without names", r"\['question', 'answer'\]"),
        (
            GOOD.with_inputs("text"),
            "names ['text'] in with_inputs",
            r"its fields are \['question', 'answer'\]",
        ),
        ({"question": "q", "answer": "A"}, "not a dspy.Example", "to_examples"),
        (GOOD.with_inputs("question", "answer"), "has nothing but inputs", "expected=False"),
    ],
    ids=["no-inputs", "empty-inputs", "absent-input", "a-dict", "no-labels"],
)
def test_each_fault_is_named_with_its_mend(example, fault, mend):
    said = fault_of(GOOD, example, GOOD, example)
    assert said is not None
    assert said.split("\n")[1].startswith("- example 2 ")
    assert fault in said
    assert re.search(mend, said)
    assert "(2 such examples)" in said
    assert said.startswith("2 examples cannot be used.")


def test_several_faults_are_named_together():
    said = fault_of(dspy.Example(question="q", answer="A"), GOOD, GOOD.with_inputs("text"), {"question": "q"})
    assert said is not None
    assert said.startswith("3 examples cannot be used.")
    assert [line.split(" ")[2] for line in said.split("\n")[1:]] == ["1", "3", "4"]


def test_an_empty_data_set_is_a_fault():
    assert "empty" in (fault_of() or "")


def test_missing_labels_pass_when_nothing_is_expected():
    bare = dspy.Example(question="q").with_inputs("question")
    assert "expected=None" in (fault_of(bare) or "")
    assert fault_of(bare, expected=False) is None


def test_labels_of_dspy_alone_are_no_labels():
    assert fault_of(dspy.Example(question="q", dspy_uuid="u").with_inputs("question")) is not None


def ended_with(program, example):
    """Whether an evaluation asks the metric about this example at all."""
    asked = []
    lm = scripted_lm(lambda messages: chat(reasoning="R.", answer="A"))
    with dspy.context(lm=lm, max_errors=9):
        dspy.Evaluate(devset=[example], metric=lambda *_: asked.append(1) or 1.0, num_threads=1)(program)
    return bool(asked)


class Custom(dspy.Module):
    def forward(self, question, hint="none", *, limit=3):
        return dspy.Prediction(answer="A")


class AnyInputs(dspy.Module):
    def forward(self, **inputs):
        return dspy.Prediction(answer="A")


class SomeInputs(dspy.Module):
    def forward(self, question, **more):
        return dspy.Prediction(answer="A")


class Passing(dspy.Module):
    """Hands all its inputs to its one predictor."""

    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, **inputs):
        return self.answer(**inputs)


PROGRAMS = {
    "Predict": lambda: dspy.Predict("question -> answer"),
    "ChainOfThought": lambda: dspy.ChainOfThought("question -> answer"),
    "custom": Custom,
    "any-inputs": AnyInputs,
    "some-inputs": SomeInputs,
    "passing": Passing,
    "ReAct": lambda: dspy.ReAct("question -> answer", tools=[len]),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_examples_with_the_programs_inputs_pass(program):
    assert fault_of(GOOD, program=program()) is None


@pytest.mark.parametrize("program", [PROGRAMS[name] for name in ("Predict", "ChainOfThought", "custom")])
def test_an_input_that_the_program_needs_and_the_example_lacks_is_named(program):
    example = dspy.Example(text="q", answer="A").with_inputs("text")
    said = fault_of(GOOD, example, program=program())
    assert said is not None
    assert "example 2 lacks the program's inputs ['question']; its inputs are ['text']" in said


@pytest.mark.parametrize("program", [PROGRAMS[name] for name in ("Predict", "ChainOfThought", "custom")])
def test_an_input_that_the_program_does_not_take_is_named(program):
    example = dspy.Example(question="q", text="t", answer="A").with_inputs("question", "text")
    said = fault_of(example, program=program())
    assert said is not None
    assert "has the inputs ['text'], which the program does not take" in said
    assert "question" in said.rpartition("it takes")[2]


def test_a_module_that_takes_any_inputs_is_not_limited():
    example = dspy.Example(text="q", more="m", answer="A").with_inputs("text", "more")
    assert fault_of(example, program=AnyInputs()) is None
    some = dspy.Example(question="q", more="m", answer="A").with_inputs("question", "more")
    assert fault_of(some, program=SomeInputs()) is None
    assert "lacks the program's inputs ['question']" in (fault_of(example, program=SomeInputs()) or "")


def test_optional_parameters_of_a_module_may_be_there_or_not():
    full = dspy.Example(question="q", hint="h", limit=1, answer="A")
    assert fault_of(full.with_inputs("question", "hint", "limit"), program=Custom()) is None


class Defaults(dspy.Signature):
    question: str = dspy.InputField()
    hint: str = dspy.InputField(default="none")
    note: str | None = dspy.InputField()
    answer: str = dspy.OutputField()


@pytest.mark.parametrize("make", [dspy.Predict, dspy.ChainOfThought])
def test_inputs_that_a_signature_has_a_default_for_or_allows_to_be_none_may_be_left_out(make):
    assert fault_of(GOOD, program=make(Defaults)) is None
    full = dspy.Example(question="q", hint="h", note="n", answer="A").with_inputs("question", "hint", "note")
    assert fault_of(full, program=make(Defaults)) is None


class Retrieving(dspy.Module):
    """Fills one input of its predictor itself."""

    def __init__(self):
        super().__init__()
        self.answer = dspy.Predict("passage, question -> answer")

    def forward(self, **inputs):
        return self.answer(passage="Found.", **inputs)


def test_a_module_that_fills_an_input_of_its_predictor_itself_passes():
    assert fault_of(GOOD, program=Retrieving()) is None


def test_a_module_of_dspys_that_names_its_inputs_itself_passes():
    program = dspy.MultiChainComparison("question -> answer", M=2)
    example = dspy.Example(completions=[], question="q", answer="A").with_inputs("completions", "question")
    assert fault_of(example, program=program) is None
    assert "lacks the program's inputs ['completions']" in fault_of(GOOD, program=program)


class Static(dspy.Module):
    @staticmethod
    def forward(question):
        return dspy.Prediction(answer="A")


class BoundLater(dspy.Module):
    def __init__(self):
        super().__init__()
        self.forward = lambda question: dspy.Prediction(answer="A")


class OwnCall(dspy.Module):
    def __call__(self, question):
        return dspy.Prediction(answer="A")


UNUSUAL = {
    "static": Static,
    "bound-later": BoundLater,
    "own-call": OwnCall,
    "function": lambda: lambda question: dspy.Prediction(answer="A"),
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_program_that_dspy_runs_passes(make):
    program = make()
    assert ended_with(program, GOOD)
    assert fault_of(GOOD, program=program) is None


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("Predict", "config"),
        ("Predict", "lm"),
        ("Predict", "new_signature"),
        ("Predict", "instance"),
        ("Predict", "self"),
        ("ChainOfThought", "config"),
        ("ChainOfThought", "lm"),
        ("ChainOfThought", "instance"),
        ("any-inputs", "instance"),
        ("any-inputs", "self"),
    ],
)
def test_an_input_whose_name_keeps_dspy_from_running_the_program_is_named(program, name):
    signature = dspy.Signature({name: (str, dspy.InputField()), "answer": (str, dspy.OutputField())})
    makers = {"Predict": dspy.Predict, "ChainOfThought": dspy.ChainOfThought}
    made = makers[program](signature) if program in makers else PROGRAMS[program]()
    example = dspy.Example({name: "x", "answer": "A"}).with_inputs(name)
    assert not ended_with(made, example)
    said = fault_of(example, program=made)
    assert said is not None
    assert name in said
    assert "rename" in said


def test_a_program_that_takes_nothing_of_what_is_there_says_both_sides():
    said = fault_of(dspy.Example(a=1, b=2, answer="A").with_inputs("a", "b"), program=Custom())
    assert said is not None
    assert "['question']" in said
    assert "['a', 'b']" in said


def test_an_evaluation_really_never_asks_where_the_check_finds_a_fault():
    for example, program in (
        (dspy.Example(question="q", answer="A"), Custom()),
        (dspy.Example(text="q", answer="A").with_inputs("text"), Custom()),
        (dspy.Example(question="q", text="t", answer="A").with_inputs("question", "text"), Custom()),
    ):
        assert fault_of(example, program=program) is not None
        assert not ended_with(program, example)


def test_a_large_data_set_is_checked_quickly_and_its_fault_told_in_one_line():
    said = fault_of(*[dspy.Example(question="q", answer="A")] * 20_000)
    assert said is not None
    assert said.count("\n") == 1
    assert "(20000 such examples)" in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([{"question": "q"}], r"load_cases\(rows, input='question'\) makes them of rows"),
        (["q"], "load_cases makes them of rows"),
        ("cases.jsonl", r"give it load_cases\('cases.jsonl', input=..., expected=...\)"),
        (Path("cases.csv"), r"give it load_cases\('cases.csv', input=..., expected=...\)"),
        ({"question": "q"}, "as from load_cases"),
        (Case("1", {"q": "a"}, None), "a list of them"),
        (Split([], [], []), "one part, such as parts.train"),
        ([Case("1", "q", "a")], "input and expected are dicts of fields"),
    ],
)
def test_what_is_no_list_of_cases_is_refused_with_the_mend(given, told):
    with pytest.raises(DataError, match=told):
        to_examples(given)


@pytest.mark.parametrize("check", [check_examples, from_examples])
@pytest.mark.parametrize("path", ["cases.csv", Path("cases.csv")])
def test_a_path_in_place_of_examples_is_refused_with_the_mend(check, path):
    with pytest.raises(DataError, match=r"give to_examples\(load_cases\('cases.csv', input=..., expected="):
        check(path)


def test_a_program_that_is_a_class_or_a_signature_is_refused():
    data = to_examples([Case("1", {"question": "q"}, {"answer": "a"})])
    for program in ("question -> answer", dspy.Predict):
        with pytest.raises(DataError, match="is no program; give a module"):
            check_examples(data, program)
