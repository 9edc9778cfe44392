"""System messages folded into one, and which errors ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.system import fold_system, has_late_system, refuses_system

A, B = {"role": "system", "content": "A"}, {"role": "system", "content": "B"}
DEV = {"role": "developer", "content": "D"}
U = {"role": "user", "content": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
PART = {"type": "text", "text": "p", **MARK}


def folded(*messages: Any) -> Any:
    request = decode_chat(json.encode({"model": "m", "messages": messages, "top_k": 3}))
    new = fold_system(request)
    assert not has_late_system(new.messages) and len(request.messages) == len(messages)
    sent = json.decode(new.fields["messages"])
    assert [m.role for m in new.messages] == [m["role"] for m in sent]
    assert fold_system(new) is new
    return sent


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([A, B, U], [{**A, "content": "A\n\nB"}, U]),
        ([U, B], [B, U]),
        ([A, U, B, U, DEV], [{**A, "content": "A\n\nB\n\nD"}, U, U]),
        ([DEV, A, U], [{**DEV, "content": "D\n\nA"}, U]),
        ([A, {**B, "content": ""}, U], [A, U]),
        (
            [A, {**B, "content": [PART]}, U],
            [{**A, "content": [{"type": "text", "text": "A"}, PART]}, U],
        ),
        ([{**A, "content": [PART]}, B], [{**A, "content": [PART, {"type": "text", "text": "B"}]}]),
        ([{**A, "name": "a"}, {**B, "name": "b"}], [{**A, "content": "A\n\nB", "name": "a"}]),
        ([A, {**B, "name": "x", **MARK}], [{**A, "content": "A\n\nB", "name": "x", **MARK}]),
    ],
)
def test_system_messages_are_one_in_their_order(messages: Any, sent: Any) -> None:
    assert folded(*messages) == sent


def test_what_stands_right_is_not_touched() -> None:
    for messages in ([A, U], [U], [DEV, U]):
        request = decode_chat(json.encode({"model": "m", "messages": messages}))
        assert fold_system(request) is request


# From the templates of the models named, as vLLM, llama.cpp and mistral-common give them on
# (llama.cpp issues 19851, 20733, 21879; vLLM issue 41114; opencode issue 15059).
REFUSALS = [
    "System message must be at the beginning.",
    "Unable to generate parser for this template. Automatic parser generation failed: \n------\n"
    "Error: Jinja Exception: System message\nmust be at the beginning.",
    "After the optional system message, conversation roles must alternate user/assistant/...",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Only user, assistant and tool roles are supported, with the exception of an initial optional "
    "system message!",
    "Only user and assistant roles are supported!",
    "System role not supported",
    "Unexpected role 'system' after role 'user'",
    "only one system message is allowed",
    "Multiple system messages are not allowed",
]


@pytest.mark.parametrize("said", REFUSALS)
def test_a_templates_refusal_is_known_by_its_words(said: str) -> None:
    error = json.encode({"error": {"message": said}})
    for status in (400, 422, 500):
        assert refuses_system(status, error)
    assert refuses_system(200, b"event: error\ndata: " + error + b"\n\n")
    chunk = json.encode({"choices": [{"delta": {"content": f"error: {said}"}}]})
    assert not refuses_system(200, b"data: " + chunk + b"\n\n")


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 512 tokens.",
        "The system is busy, try again",
        "messages[1].content: Field required",
    ],
)
def test_other_errors_are_none(said: str) -> None:
    assert not refuses_system(400, json.encode({"error": {"message": said}}))
