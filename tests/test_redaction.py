"""Credentials show nowhere: not in feedback, failures, records, run folders, reports or the log."""

import json
import logging
import pickle
import string
import sys
from urllib.parse import quote, quote_plus, urlencode

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skynet import llm
from skynet_adapters import (
    Case,
    Metric,
    MetricBroken,
    MetricError,
    as_dspy_metric,
    as_gepa_evaluator,
    as_reflection_lm,
    check_contract,
    models,
    optimize_artifact,
)
from skynet_adapters.redaction import redacted
from tests.model_server import ModelServer, RefusedError
from tests.scripted import answering, examples, reflecting

KEY = "sk-proj-3fK9Zq81xTmB4vN7pLw2Rt6Y"
OWN_KEY = "n0body-knows-7Hq2xLm9Tz4w"  # of no known shape

LETTERS_AND_DIGITS = string.ascii_letters + string.digits


def random_text(length, alphabet=LETTERS_AND_DIGITS):
    """A text as a generator of keys makes it: letters and digits in one."""
    return st.text(alphabet, min_size=length, max_size=length + 12).map(lambda text: f"a1{text}")


KEYS = st.one_of(
    random_text(20).map(lambda text: f"sk-{text}"),
    random_text(36).map(lambda text: f"ghp_{text}"),
    st.text(string.ascii_uppercase, min_size=15, max_size=15).map(lambda text: f"AKIA1{text}"),
    random_text(20).map(lambda text: f"xoxb-{text}"),
    random_text(33).map(lambda text: f"AIza{text}"),
    st.tuples(random_text(16), random_text(16), random_text(16)).map(
        lambda parts: f"eyJ{parts[0]}.eyJ{parts[1]}.{parts[2]}"
    ),
    random_text(60).map(lambda text: f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----"),
)

PLACES = st.sampled_from(
    [
        "Authorization: Bearer {}",
        "the header was bearer {}, and it was refused",
        "api_key={}&page=1",
        '{{"api_key": "{}", "page": 1}}',
        "{{'password': '{}'}}",
        '"{{\\"client_secret\\": \\"{}\\"}}"',
        "https://me:{}@example.org/path",
        "postgresql+psycopg://me:{}@localhost:5432/db",
        "Incorrect API key provided: {}. You can find yours in the settings.",
        "x-api-key: {}",
        "login(password=b'{}')",
        "AccountKey={};EndpointSuffix=core.windows.net",
        "curl --api-key {} --silent",
        "Command '['curl', '--token', '{}']' returned non-zero exit status 22.",
    ]
)


@settings(deadline=None)
@given(
    key=KEYS,
    before=st.sampled_from(["", "key ", "(", '"', "\n", "= "]),
    after=st.sampled_from(["", " x", '"', ")."]),
)
def test_a_key_of_a_known_shape_never_shows(key, before, after):
    shown = redacted(f"It said {before}{key}{after}")
    assert key.split("\n")[min(1, key.count("\n"))] not in shown
    assert "[hidden]" in shown
    assert redacted(shown) == shown


@settings(deadline=None)
@given(secret=random_text(12), place=PLACES)
def test_what_a_text_calls_a_credential_never_shows(secret, place):
    text = place.format(secret)
    shown = redacted(text)
    assert shown == place.format("[hidden]")
    assert redacted(shown) == shown


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        ["OPENAI_API_KEY", "PGPASSWORD", "MY_SECRET_2", "aws_session_token", "CREDENTIALS", "SIGNING_KEY"]
    ),
    secret=st.text(string.ascii_letters + string.digits + "-_.+/=!#%'\"\\", min_size=8, max_size=40).map(
        lambda text: f"{text}9aZ4kQ7xB2"
    ),
    written=st.sampled_from(
        [
            str,
            repr,
            json.dumps,
            quote,
            quote_plus,
            lambda value: json.dumps(json.dumps(value)),
            lambda value: urlencode({"of": value}),
            lambda value: f"<{value}>",
        ]
    ),
)
def test_a_credential_of_the_environment_never_shows(monkeypatch, name, secret, written):
    with monkeypatch.context() as patch:
        patch.setenv(name, secret)
        shown = redacted(f"sent {written(secret)} there")
        assert secret[-10:] not in shown
        assert f"[hidden: {name}]" in shown
    assert name not in redacted(f"sent {written(secret)} there")  # no longer in the environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KEY", "true"),
        ("TOKEN", "1"),
        ("KEYBOARD", "a1b2c3d4e5f6g7h8"),
        ("SORT_KEY", "created_at_desc"),
        ("CACHE_KEY", "linux-2024-01-31"),
        ("API_KEY", "not-needed"),
        ("PASSWORD", "sunshine"),
        ("TOKEN_LIMIT", "100000000"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/project-123/credentials.json"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-XXXX/agent.1234"),
        ("TOKEN_URL", "https://example.org/oauth2/token"),
        ("HF_TOKEN", "${HF_TOKEN}"),
        ("OPENAI_API_KEY", "sk-test"),
    ],
)
def test_an_ordinary_value_of_the_environment_stays_in_a_text(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert redacted(f"The value is {value}, as it was.") == f"The value is {value}, as it was."


ORDINARY = [
    "Expected 'billing', got 'other'. The message mentions a charge.",
    "The key 'total' is missing; the token count is 12, and the password field is empty.",
    "password: missing. token: 5. key: value. secret: none of it. credentials: two files",
    "Bearer authentication is missing; basic understanding of the task is there.",
    "Pass api_key=api_key, or api_key=os.environ['API_KEY'], or api_key=load_key2(path).",
    "Write OPENAI_API_KEY=<your key> or api_key: ${API_KEY} or api_key={key} into it.",
    "See https://example.org:8080/a/b?c=d and mail me@example.org at 12:30.",
    "The risk-assessment-of-2024-03-01-final is no sk-learn-compatible-estimators-list.",
    "commit 9f8e7d6c5b4a39281706f5e4d3c2b1a098765432 broke 3e1b7c9a-52d4-4f0e-9b66-0a1d2c3e4f50",
    "Authorization: required. The monkey=abcdef1234567 and the turkey: a1b2c3d4e5",
    "Run it with --password PASSWORD or --token <token>, --api-key your-key, --max-tokens 100000.",
    "Expected key: '9f3b2c1d8a7e', got key: '77aa01b2c3d4'. product_key=X5J9K2Q8; unexpected token: x1234567",
    "Key: Bb5minor, token='B7x9Kq2Lm4', cache_key: 3f2a9c1b, ",
    "İstanbul: the KEY of it, tokens=4096, max_tokens: 100000",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_stays_as_it_is(text):
    assert redacted(text) == text


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(string.ascii_lowercase, max_size=15),
            st.integers(0, 10**6).map(str),
            st.sampled_from(
                [
                    "key",
                    "token:",
                    "password",
                    "api_key",
                    "=",
                    "Bearer",
                    "://",
                    "sk-",
                    "secret",
                    "'",
                    '"',
                    "\n",
                ]
            ),
        )
    ).map(" ".join)
)
def test_a_text_without_credentials_stays_as_it_is(text):
    assert redacted(text) == text


# --- where texts leave ------------------------------------------------------------------------------------


@pytest.fixture
def key(monkeypatch):
    """A key in the environment that is known by no shape."""
    monkeypatch.setenv("SERVICE_API_KEY", OWN_KEY)
    return OWN_KEY


def leaking(input, output, expected=None):
    """Show a key in each place of what a metric returns."""
    return 0.5, {
        "feedback": f"Sent {KEY} and {OWN_KEY}.",
        "component_feedback": {"predict": f"It was {KEY} and {OWN_KEY}."},
        "note": f"Used {KEY}.",
        "request": {"headers": {"Authorization": f"Bearer {OWN_KEY}"}, "keys": [KEY]},
    }


def raising(input, output, expected=None):
    raise ConnectionError(f"401 for {KEY} at https://me:{OWN_KEY}@example.org")


def clean(text):
    text = str(text)
    return KEY not in text and OWN_KEY not in text


def test_a_feedback_and_what_is_beside_it_show_no_key(key):
    score = Metric(leaking).score_case({}, "a")
    assert score.feedback == "Sent [hidden] and [hidden: SERVICE_API_KEY]."
    assert clean(score.text())
    assert clean(score.text("predict"))
    assert "It was [hidden]" in score.text("predict")


def test_nothing_that_is_nested_in_further_information_keeps_a_key(key):
    kept = [key, {"headers": ("Authorization", f"Bearer {key}"), key: {key}}, 1, "data:image/png;base64,aaaa"]
    kept.append(kept)

    def score(input, output):
        return 0.5, {"feedback": "Half right.", "request": kept, "plain": {"key": [key]}}

    info = Metric(score).score_case({}, "a").info
    hidden = "[hidden: SERVICE_API_KEY]"
    assert info["plain"] == {"key": [hidden]}
    assert info["request"][:4] == [
        hidden,
        {"headers": ("Authorization", f"Bearer {hidden}"), hidden: {hidden}},
        1,
        "data:image/png;base64,aaaa",
    ]
    assert info["request"][4] is info["request"]
    assert kept[0] == key  # the metric's own is as it was


def test_the_memory_on_disk_holds_no_key(key, tmp_path):
    metric = Metric(lambda input, output: leaking(input, output), memo="content", memo_dir=tmp_path)
    assert metric.score_case({}, "a").error is None
    for file in tmp_path.iterdir():
        assert clean(file.read_bytes().decode("latin-1"))


def test_a_failure_shows_no_key(key, caplog):
    metric = Metric(raising)
    score = metric.score_case({"question": f"Is {KEY} right?", "long": "." * 50 + KEY + "." * 90}, "a")
    (failure,) = metric.failures
    for text in (score.feedback, score.error, failure.text, failure.case):
        assert clean(text)
        assert "[hidden" in str(text)
    assert "sk-proj" not in failure.case  # of a key that is cut nothing is left either
    with pytest.raises(MetricError) as caught:
        metric({}, "a")
    assert clean(caught.value)
    assert clean(caplog.text)
    assert "[hidden" in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="processes of their own are those of POSIX")
def test_an_error_of_a_process_of_its_own_is_cut_after_its_keys_are_hidden(key):
    def score(input, output):
        raise ValueError("-" * input["before"] + key + "-" * 3_000)

    metric = Metric(score, isolation="process", stop_after=None)
    try:
        for before in range(900, 1_500, 10):
            text = metric.score_case({"before": before}, "a").feedback
            assert "raised ValueError: ---" in text
            assert not any(key[at : at + 5] in text for at in range(len(key) - 4))
    finally:
        metric.close()


def test_a_source_line_with_a_key_in_it_is_not_shown():
    def connects(input, output, expected=None):
        return int("no", base={"api_key": "Zt5hX0qLm82Kd"}["api_key"])

    error = Metric(connects).score_case({}, "a").error
    assert "Zt5hX0qLm82Kd" not in str(error)
    assert '"api_key": "[hidden]"' in str(error)


def test_a_judge_sees_what_it_is_to_judge_as_it_is():
    """A metric may judge whether an output leaks a key."""
    asked = []
    with models(metric_lm=lambda messages: asked.append(messages) or "FAIL"):
        Metric(lambda input, output: (0, {"feedback": llm("Does it leak?", input=output)})).score_case(
            {}, KEY
        )
    assert KEY in str(asked)


def test_an_error_of_a_model_server_shows_no_key():
    def refuse(messages):
        raise RefusedError(401)

    with ModelServer(refuse) as server:
        lm = dspy.LM(
            "openai/gpt-4o-mini",
            api_base=server.lm().kwargs["api_base"],
            api_key=OWN_KEY,
            cache=False,
            num_retries=0,
        )

        def score(input, output, expected=None):
            llm(f"Is this right? {output}")
            raise AssertionError

        def echoing(input, output, expected=None):
            raise ValueError(f"sent {OWN_KEY}")

        metric = as_dspy_metric(score, metric_lm=lm)
        case = dspy.Example(question="?").with_inputs("question")
        assert clean(metric(case, dspy.Prediction(answer="a")).feedback)
        result = as_dspy_metric(echoing, metric_lm=lm)(case, dspy.Prediction(answer="a"))
        assert clean(result.feedback)
        assert "[hidden: api_key]" in result.feedback


def test_evaluate_shows_and_saves_no_key(key, tmp_path):
    with dspy.context(lm=answering(lambda question: "A")):
        evaluated = dspy.Evaluate(
            devset=examples(3), metric=as_dspy_metric(leaking), save_as_json=str(tmp_path / "all.json")
        )(dspy.Predict("question -> answer"))
    assert clean(evaluated.results[0][2].feedback)
    saved = (tmp_path / "all.json").read_text(encoding="utf-8")
    assert "Sent [hidden]" in saved
    assert clean(saved)


@pytest.mark.parametrize("score", [leaking, raising])
def test_the_reflection_prompt_of_dspy_gepa_shows_no_key(score, key, caplog):
    lm = reflecting()
    caplog.set_level(logging.INFO)
    with dspy.context(lm=answering(lambda question: "A")):
        dspy.GEPA(
            metric=as_dspy_metric(score, stop_after=None),
            reflection_lm=lm,
            max_metric_calls=20,
            num_threads=2,
        ).compile(dspy.Predict("question -> answer"), trainset=examples(3), valset=examples(3))
    assert lm.prompts
    assert "[hidden" in lm.prompts[0]
    assert all(clean(prompt) for prompt in lm.prompts)
    assert clean(
        "".join(record.getMessage() for record in caplog.records if record.name == "skynet_adapters")
    )


CASES = [Case(str(number), {"n": number, "token": KEY}, {"label": f"L{number}"}) for number in range(4)]


@pytest.mark.parametrize("score", [leaking, raising])
def test_a_gepa_run_and_its_folder_show_no_key(score, key, tmp_path, caplog):
    def run(artifact, input):
        if input["n"] == 1:
            raise ConnectionError(f"refused {KEY} and {OWN_KEY}")
        return {"answer": "A", "request": f"Authorization: Bearer {OWN_KEY}", "sent": KEY}

    prompts = []

    def reflect(prompt):
        prompts.append(prompt)
        if len(prompts) == 2:
            raise ConnectionError(f"the server refused {KEY} and {OWN_KEY}")
        return f"Rule {len(prompts)}."

    made = optimize_artifact(
        "Guess.",
        run,
        score,
        CASES,
        reflection_lm=reflect,
        max_metric_calls=40,
        run_dir=str(tmp_path / "run"),
        stop_after=None,
        include_expected=True,
        track_best_outputs=True,
    )
    assert len(prompts) > 2
    assert "[hidden" in prompts[0]
    assert all(clean(prompt) for prompt in prompts)
    assert clean(pickle.dumps(made.result.best_outputs_valset))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 2
    for path in files:
        content = path.read_bytes()
        assert KEY.encode() not in content, path
        assert OWN_KEY.encode() not in content, path
    assert clean("".join(record.getMessage() for record in caplog.records))


def test_the_side_info_of_an_evaluator_shows_no_key(key):
    evaluator = as_gepa_evaluator(leaking, lambda artifact, input: {"sent": KEY, "password": OWN_KEY})
    assert clean(evaluator("Guess.", CASES[0])[1])


def test_a_reflection_model_that_raises_shows_no_key(key, caplog):
    def reflect(prompt):
        raise ConnectionError(f"refused {OWN_KEY}")

    with pytest.raises(Exception, match=r"ConnectionError: refused \[hidden: SERVICE_API_KEY\]"):
        as_reflection_lm(reflect)("Write.")
    assert clean(caplog.text)
    assert "[hidden: SERVICE_API_KEY]" in caplog.text


def test_a_reflection_model_keeps_its_own_error_where_that_shows_none():
    def reflect(prompt):
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        as_reflection_lm(reflect)("Write.")


@pytest.mark.parametrize("score", [leaking, raising])
def test_the_contract_report_shows_no_key(score, key):
    def run(input):
        if input["n"] == 1:
            raise ConnectionError(f"refused {KEY}" + "." * 150 + KEY)
        return KEY

    report = check_contract(score, CASES, run)
    for text in (str(report), json.dumps(report.to_dict()), report._repr_html_()):
        assert clean(text)
    assert "refused [hidden]" in str(report)


def test_a_metric_file_that_cannot_be_loaded_shows_no_key(tmp_path, key):
    path = tmp_path / "metric.py"
    path.write_text(f'client = connect(api_key="{OWN_KEY}", other="{KEY}")\n', encoding="utf-8")
    report = check_contract(path, CASES)
    assert clean(report)
    assert "[hidden" in str(report)


def test_a_run_that_is_stopped_shows_no_key(key):
    metric = as_dspy_metric(raising)
    cases = examples(9)
    with pytest.raises(MetricBroken) as caught:
        [metric(case, dspy.Prediction(answer="A")) for case in cases]
    assert clean(caught.value)
    assert "[hidden" in str(caught.value)


def test_a_log_line_shows_no_key_in_its_values_or_its_traceback(key, caplog):
    log = logging.getLogger("skynet_adapters")
    try:
        raise ConnectionError(f"refused {OWN_KEY}")
    except ConnectionError:
        log.warning("sent %s", KEY, exc_info=True)
    assert clean(caplog.text)
    assert "refused [hidden: SERVICE_API_KEY]" in caplog.text
