"""Numbers, failures and logprobs that were once repaired wrongly, one test for each finding."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.answers import (
    TOOL,
    USAGE,
    Json,
    ask,
    body,
    choice,
    completion,
    end,
    entries,
    entry,
    role,
    say,
    scored,
    stream,
)
from tests.linear import linear
from tests.replay import exchange
from wellspoken.adapters.events import UNKNOWN
from wellspoken.adapters.readers import legacy
from wellspoken.adapters.readers.wire import WireLogprobs
from wellspoken.adapters.repairs import errors
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import logprobs
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.tokens.table import digits, is_plain, token_id

ASKED = ask(stream_options={"include_usage": True})
G = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
TWO = ask(tools=[TOOL, G])
LONG = "1" * 5_000


def arrays(tokens: list[str], numbers: Any, tops: Any, **more: Any) -> Json:
    given = {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops}
    kept = {key: value for key, value in given.items() if value is not ...}
    return completion(choice("".join(tokens), logprobs=kept, **more))


# --- numbers that are none ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["²", "٣", LONG, "", "-1", "1.5", None, 3, []])
def test_only_short_ascii_digits_are_a_number(text: Any) -> None:
    assert digits(text) is None


def test_a_placeholder_of_too_many_digits_is_text() -> None:
    assert token_id("token_id:" + LONG) is None and is_plain("token_id:" + LONG)
    assert token_id("token_id:12") == 12 == digits("12")
    said = body(completion(choice(LONG, logprobs=entries(LONG), x=1)), scored())
    assert said.rows[0][0] == LONG


def test_alternatives_named_by_digits_that_are_not_ascii_are_text() -> None:
    said = body(arrays(["a"], [-0.1], [{"²": -0.1}]), scored(1))
    assert said.tops == [[("²", -0.1)]]


@pytest.mark.parametrize("given", ["²", LONG, True, [1], {"a": 1}])
def test_an_entrys_id_that_is_none_is_left_out(given: Any) -> None:
    row = entry("Hi", id=given)
    assert body(completion(choice(logprobs={"content": [row], "refusal": None})), scored()).rows


@pytest.mark.parametrize("code", ["²", LONG, [1], {"a": []}, 2**70, -1, 1.5, True, "x" * 999])
@pytest.mark.parametrize("status", [200, 400])
def test_a_code_of_any_kind_is_no_crash(code: Any, status: int) -> None:
    said = body(json.dumps({"error": {"message": "No.", "code": code}}).encode(), status=status)
    assert said.error is not None and said.error["message"] == "No."
    assert said.status == (status if status >= 400 else 502)
    assert len(said.error["code"] or "") <= 128


def test_a_created_of_too_many_digits_is_replaced() -> None:
    said = body(completion(created=LONG))
    assert said.repairs["created_not_epoch"] == 1


def test_an_int_beyond_every_float_is_an_unknown_logprob() -> None:
    row = {**entry("Hi"), "logprob": -(10**400)}
    said = body(completion(choice(logprobs={"content": [row], "refusal": None})), scored())
    assert said.entries[0]["logprob"] == UNKNOWN


@pytest.mark.parametrize("rows", [["Hi"], ["H", "i"], ["Hi", {"token": ""}]])
def test_entries_that_are_strings_are_tokens(rows: list[Any]) -> None:
    said = body(completion(choice(logprobs={"content": rows})), scored())
    assert "".join(token for token, _, _ in said.rows) == "Hi"
    assert {value for _, value, _ in said.rows} == {UNKNOWN}


def test_refusal_entries_beside_arrays_are_no_crash() -> None:
    sent = json.dumps({"refusal": [entry("x")], "tokens": ["Hi"]}).encode()
    given = msgspec.json.decode(sent, type=WireLogprobs)
    found = legacy.logprobs(given, "Hi", Context(exchange(scored())))
    assert found is not None and [row.token for row in found.entries] == ["Hi"]
    given.tokens = msgspec.UNSET
    assert legacy.logprobs(given, "Hi", Context(exchange(scored()))) is None


def test_a_messages_own_keys_elsewhere_are_dropped_and_counted() -> None:
    for key in ("reasoning_content", "audio", "refusal"):
        for given in (completion(choice(x=None, **{key: {"a": 1}})), completion(**{key: {"a": 1}})):
            said = body(given)
            assert said.repairs["extra_field_dropped"] == 1


def test_json_that_nests_as_deep_as_the_parser_bears_is_no_crash() -> None:
    for depth in (200, 400, 600, 900):
        deep: Any = "[" * depth + "]" * depth
        for key in ("logprobs", "message", "x"):
            sent = json.dumps(completion()).replace('"index": 0', f'"index": 0, "{key}": {deep}')
            assert body(sent.encode(), scored()).status in (200, 502)
        assert body(f'{{"error": {deep}}}'.encode()).status == 502


# --- failures without choices -------------------------------------------------------------------

FAILURES: dict[str, tuple[Any, int, str | None, str]] = {
    "fastchat": ({"text": "**NETWORK ERROR**", "error_code": 50002}, 502, "50002", "NETWORK"),
    "fastchat: overflow": (
        {"text": "No.", "error_code": 40303},
        400,
        "context_length_exceeded",
        "No.",
    ),
    "msg": ({"code": 500, "msg": "oom"}, 500, None, "oom"),
    "msg alone": ({"msg": "oom"}, 502, None, "oom"),
    "a code alone": ({"code": 503}, 503, None, "503"),
    "an empty error": ({"error": {}}, 502, None, "502"),
    "gemini": ([{"error": {"code": 429, "message": "Slow."}}], 429, None, "Slow."),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_without_choices_is_an_error(name: str) -> None:
    payload, status, code, told = FAILURES[name]
    said = body(json.dumps(payload).encode())
    assert said.error is not None and told in said.error["message"]
    assert (said.status, said.error["code"]) == (status, code)
    said = stream([role(), say("Hi"), payload])
    assert said.error is not None and told in said.error["message"]


@pytest.mark.parametrize(
    "payload",
    [
        {"choices": [], "error": None, "usage": USAGE},
        {"usage": USAGE, "error": ""},
        {"code": 0, "msg": "success"},
        {"code": 200, "msg": "ok"},
        {"error_code": 0, "error": None},
        {"ping": 1},
        [{"ping": 1}, {"error": "x"}],
    ],
)
def test_what_is_no_error_is_none(payload: Any) -> None:
    assert not errors.is_error(payload)


def test_a_chunk_that_is_nothing_known_is_dropped_and_counted() -> None:
    said = stream([role(), say("Hi"), {"ping": 1}, end()])
    assert said.error is None and said.repairs["chunk_without_choices"] == 1


@pytest.mark.parametrize("given", [b"null", b'""'])
def test_a_null_event_is_ignored_and_counted(given: bytes) -> None:
    said = stream([role(), given, say("Hi"), end()])
    assert said.error is None and said.message["content"] == "Hi"
    assert said.repairs == {"chunk_null": 1}


def test_an_overflow_inside_a_200_is_the_clients() -> None:
    text = "This model's maximum context length is 10 tokens"
    sent = [{"error": {"message": text, "code": x}} for x in (None, "context_length_exceeded")]
    for given in (*(json.dumps(x).encode() for x in sent), text.encode()):
        said = body(given)
        assert said.error is not None
        assert (said.status, said.error["code"]) == (400, "context_length_exceeded")
        assert said.error["type"] == "invalid_request_error"


def test_a_byte_order_mark_before_json_is_left_out() -> None:
    assert parse(b'\xef\xbb\xbf{"a": NaN}')["a"] != 1
    said = body(b"\xef\xbb\xbf" + json.dumps(completion()).encode())
    assert said.message["content"] == "Hi"


@pytest.mark.parametrize("part", ["<script ", "<", "<a", "<script>", "</", "<style>x</style "])
def test_a_page_of_tags_that_never_end_takes_no_time(part: str) -> None:
    said = linear(lambda n: body(("<html>" + part * n).encode(), status=500), 50_000)
    assert said.error is not None and said.repairs == {"error_html": 1}


# --- logprobs -----------------------------------------------------------------------------------


def test_an_own_value_that_is_missing_is_that_of_its_alternative() -> None:
    top = [{"token": "b", "logprob": -0.1}, {"token": "Hi", "logprob": -0.7}]
    rows: list[Json] = [
        {"token": "Hi", "logprob": None, "top_logprobs": top},
        {"token": "Hi", "top_logprobs": top},
    ]
    for row in rows:
        said = body(completion(choice(logprobs={"content": [row]})), scored(2))
        assert said.entries[0]["logprob"] == -0.7
        assert said.repairs["logprobs_own_from_alternative"] == 1
        assert "logprobs_unknown" not in said.repairs


@pytest.mark.parametrize("numbers", [[None, -2.0], None, ..., [None, None]])
def test_a_column_of_values_that_is_missing(numbers: Any) -> None:
    given = arrays(["H", "i"], numbers, [{"x": -0.1, "H": -0.7}, {"i": -2.0}])
    said = body(given, scored(2))
    assert [value for _, value, _ in said.rows] == [-0.7, -2.0]
    assert said.repairs["logprobs_own_from_alternative"] >= 1


def test_old_llama_cpps_own_probabilities() -> None:
    probs = [{"tok_str": "Yo", "prob": 0.2}, {"tok_str": "Hi", "prob": 0.7}]
    given = completion(choice(), completion_probabilities=[{"content": "Hi", "probs": probs}])
    said = body(given, scored(2))
    assert said.entries[0]["logprob"] == pytest.approx(-0.35667494)
    assert said.repairs["logprobs_own_from_alternative"] == 1


def test_which_of_two_that_read_alike_is_not_known() -> None:
    top = [{"token": "Hi", "logprob": -0.1}, {"token": "Hi", "logprob": -0.7}]
    context = Context(exchange(scored(2)))
    found = logprobs([{"token": "Hi", "top_logprobs": top}], "Hi", context)
    assert found is not None and found[0][0].logprob == UNKNOWN


ID_CASES: dict[str, tuple[list[str], list[float], list[Json], bool]] = {
    "two positions": (["H", "i"], [-1, -2], [{"11": -1, "5": -3}, {"13": -2}], True),
    "placeholders": (["Hi"], [-1], [{"token_id:7": -1}], True),
    "one position, long names": (["Hi"], [-1], [{"11": -1, "12": -3}], True),
    "one position, a short name": (["Hi"], [-1], [{"11": -1, "5": -3}], False),
    "one-digit names alone": (["H", "i"], [-1, -2], [{"1": -1}, {"3": -2}], False),
    "a name that is text": (["H", "i"], [-1, -2], [{"11": -1}, {"x": -2}], False),
    "a sampled token among them": (["H", "13"], [-1, -2], [{"11": -1}, {"13": -2}], False),
    "numbers alone": (["7"], [-1], [{"12": -1.5, "35": -2}], False),
    "no alternatives": (["H", "i"], [-1, -2], [{}, {}], False),
}


@pytest.mark.parametrize("name", ID_CASES)
@pytest.mark.parametrize("tolerant", [False, True])
def test_digits_are_ids_only_where_all_say_so(name: str, tolerant: bool) -> None:
    tokens, numbers, tops, ids = ID_CASES[name]
    more: Json = {"x": 1} if tolerant else {}
    said = body(arrays(tokens, numbers, tops, **more), scored(2))
    assert ("logprobs_top_by_id" in said.repairs) is ids
    names = {token for row in said.tops for token, _ in row}
    assert (
        any(x.startswith("token_id:") for x in names)
        is (ids and any(len(top) > 1 for top in tops) and not tolerant)
        or tolerant
    )


def test_two_ids_of_one_value_are_two_tokens() -> None:
    said = body(arrays(["Hi"], [-1], [{"11": -1, "12": -1}]), scored(2))
    assert {token for token, _ in said.tops[0]} == {"token_id:11", "token_id:12"}


def test_an_alternative_that_is_given_twice_is_given_once() -> None:
    twice = [{"token": "Hi", "logprob": -0.5, "x": 1}] * 2
    alike = [{"token": "Yo", "logprob": -0.9, "id": 7}, {"token": "Yo", "logprob": -0.9, "id": 8}]
    parts = [{"token": "\ufffd", "logprob": -3.0}] * 2
    row = {"token": "Hi", "logprob": -0.5, "top_logprobs": [*twice, *alike, *parts]}
    given = completion(choice(logprobs={"content": [row]}))
    said = body(given, scored(9), waived=["7.distinct"])  # the ids that tell two apart are gone
    assert [token for token, _ in said.tops[0]] == ["Hi", "Yo", "Yo", "", ""]
    assert said.repairs["logprobs_alternative_repeated"] == 1
