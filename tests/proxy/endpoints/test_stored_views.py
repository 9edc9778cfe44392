"""What a stored row looks like to a client: OpenAI's object, and its messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.openapi.answer_schema import ErrorResponse
from tests.openapi.stored_schema import (
    ChatCompletionList,
    ChatCompletionMessageList,
    StoredChatCompletion,
)
from tests.proxy.endpoints.stored import ANSWER, Json, id_of, row
from wellspoken.proxy.endpoints import stored_views

OPENAIS = [
    "object", "id", "model", "created", "request_id", "tool_choice", "usage", "seed", "top_p",
    "temperature", "presence_penalty", "frequency_penalty", "system_fingerprint", "input_user",
    "service_tier", "tools", "metadata", "choices", "response_format",
]  # fmt: skip
"""The keys of the example in OpenAI's reference of GET /chat/completions/{completion_id}."""

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SENT: Json = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "seed": 4944116822809979520,
    "top_p": 1.0,
    "temperature": 0.3,
    "presence_penalty": -2,
    "frequency_penalty": 0,
    "user": "somebody",
    "metadata": {"topic": "é"},
    "response_format": {"type": "text"},
    "top_k": 40,
    "messages": [{"role": "user", "content": "x"}],
}


def shown(answer: bytes | None = None, **request: Any) -> Json:
    one = row(**request)
    if answer is not None:
        one.answer = answer
    made: Json = json.loads(stored_views.completion(one))
    return made


def test_a_completion_has_openais_keys_in_openais_order() -> None:
    answer = ANSWER.replace(
        b',"usage"', b',"service_tier":"default","system_fingerprint":"fp_1","usage"'
    ) % (b"chatcmpl-12345678", 1_760_000_000, b"m", b"Hi")
    made = shown(answer, **SENT)
    assert list(made) == OPENAIS
    assert made["request_id"] == "req_1"
    assert made["input_user"] == "somebody"
    for name in ("tools", "tool_choice", "seed", "metadata", "response_format"):
        assert made[name] == SENT[name]
    assert made["choices"] == json.loads(answer)["choices"]
    msgspec.json.decode(json.dumps(made), type=StoredChatCompletion)


def test_what_was_not_sent_is_null_and_what_was_not_answered_is_absent() -> None:
    made = shown()
    nulls = {name for name, value in made.items() if value is None}
    assert nulls == {
        "tool_choice", "seed", "top_p", "temperature", "presence_penalty", "frequency_penalty",
        "input_user", "tools", "response_format",
    }  # fmt: skip
    assert made["metadata"] == {}
    assert {"service_tier", "system_fingerprint"}.isdisjoint(made)


def test_every_number_leaves_as_it_was_stored() -> None:
    one = row(temperature=1e-9)
    one.parameters = b'{"temperature": 1.0000000000000000001e0, "seed": 9223372036854775807}'
    made = stored_views.completion(one)
    for spelled in (
        b'"logprob":-0.10000000000000000555', b'"logprob":-1e-7',
        b'"temperature":1.0000000000000000001e0,', b'"seed":9223372036854775807,',
    ):  # fmt: skip
        assert spelled in made


@pytest.mark.parametrize(
    ("sent", "user"),
    [
        ({"safety_identifier": "s"}, "s"),
        ({"user": "u", "safety_identifier": "s"}, "u"),
        ({"user": None, "safety_identifier": "s"}, "s"),
        ({"user": None}, None),
    ],
)
def test_the_user_is_the_one_that_was_named(sent: Json, user: str | None) -> None:
    assert shown(**sent)["input_user"] == user


def test_keys_of_the_answer_that_are_not_openais_stay() -> None:
    answer = (ANSWER % (b"chatcmpl-12345678", 1_760_000_000, b"m", b"Hi"))[:-1]
    answer += b',"timings":{"predicted_ms":1.50},"metadata":{"weight_version":"1"},"seed":7}'
    one = row(metadata={"a": "b"}, seed=3)
    one.answer = answer
    made = stored_views.completion(one)
    assert b'"timings":{"predicted_ms":1.50}' in made
    pairs: list[tuple[str, Any]] = []
    json.loads(made, object_pairs_hook=lambda found: pairs.extend(found))
    assert sum(key == "metadata" for key, _ in pairs) == 1  # no key is there twice
    found = json.loads(made)
    assert (found["metadata"], found["seed"]) == ({"a": "b"}, 3)


def test_a_page() -> None:
    rows = [row(3), row(4, model="o")]
    made = stored_views.completions(rows, True)
    assert json.loads(made) == {
        "object": "list",
        "data": [json.loads(stored_views.completion(one)) for one in rows],
        "first_id": id_of(3),
        "last_id": id_of(4),
        "has_more": True,
    }
    msgspec.json.decode(made, type=ChatCompletionList)
    empty = stored_views.completions([], False)
    assert json.loads(empty) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
    msgspec.json.decode(empty, type=ChatCompletionList)


def test_the_strict_shape_refuses_what_is_no_stored_completion() -> None:
    made = shown()
    for broken in (
        {**made, "surplus": 1},
        {key: value for key, value in made.items() if key != "input_user"},
        {**made, "metadata": None},
        {**made, "request_id": None},
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(json.dumps(broken), type=StoredChatCompletion)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(made), type=ErrorResponse)


PARTS = [
    {"type": "text", "text": "what?"},
    {"type": "image_url", "image_url": {"url": "data:,"}},
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID: list[Json] = [
    {"role": "system", "content": "be brief", "name": "boss"},
    {"role": "user", "content": PARTS, "id": "mine"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "1.50", "tool_call_id": "call_1"},
    {"role": "assistant", "refusal": "no"},
]
PRESENTED: list[Json] = [
    {"role": "system", "content": "be brief", "name": "boss", "content_parts": None},
    {"role": "user", "content": None, "name": None, "content_parts": PARTS},
    {
        "role": "assistant", "content": None, "name": None, "content_parts": None,
        "tool_calls": [CALL],
    },
    {
        "role": "tool", "content": "1.50", "name": None, "content_parts": None,
        "tool_call_id": "call_1",
    },
    {"role": "assistant", "content": None, "name": None, "content_parts": None, "refusal": "no"},
]  # fmt: skip


def said(after: str | None, limit: int, descending: bool) -> Json | None:
    found = stored_views.messages(row(messages=SAID), after, limit, descending)
    if found is None:
        return None
    page = stored_views.page(*found)
    msgspec.json.decode(page, type=ChatCompletionMessageList)
    made: Json = json.loads(page)
    return made


def test_messages_are_those_of_the_request() -> None:
    assert said(None, 20, False) == {
        "object": "list",
        "data": [{"id": f"{id_of(1)}-{n}", **one} for n, one in enumerate(PRESENTED)],
        "first_id": f"{id_of(1)}-0",
        "last_id": f"{id_of(1)}-4",
        "has_more": False,
    }


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_messages_are_the_whole_once(limit: int, descending: bool) -> None:
    roles: list[str] = []
    after, more, pages = None, True, 0
    while more:
        page = said(after, limit, descending)
        assert page is not None
        assert len(page["data"]) <= limit
        roles += [one["role"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == (
            page["data"][0]["id"],
            page["data"][-1]["id"],
        )
        after, more, pages = page["last_id"], page["has_more"], pages + 1
    whole = [one["role"] for one in SAID]
    assert roles == (whole[::-1] if descending else whole)
    assert pages == -(-len(SAID) // limit)


def test_behind_the_last_message_there_is_none() -> None:
    for after, descending in ((f"{id_of(1)}-4", False), (f"{id_of(1)}-0", True)):
        page = said(after, 1, descending)
        assert page is not None
        assert (page["data"], page["first_id"], page["has_more"]) == ([], None, False)


@pytest.mark.parametrize(
    "after",
    [
        "x", id_of(1), f"{id_of(1)}-", f"{id_of(1)}-5", f"{id_of(1)}--1", f"{id_of(1)}-01",
        f"{id_of(1)}-1 ", f"{id_of(1)}-\u0661", f"{id_of(2)}-1", f"{id_of(1)}-" + "9" * 5000,
    ],
)  # fmt: skip
def test_a_cursor_that_is_no_message(after: str) -> None:
    assert said(after, 1, False) is None
