"""System messages folded into one or said by the user, and which errors ask for that."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.system import (
    begins_with_user,
    fold_system,
    has_late_system,
    has_system,
    refuses_role,
    refuses_system,
    send_as_user,
)

A, B = {"role": "system", "content": "A"}, {"role": "system", "content": "B"}
DEV = {"role": "developer", "content": "D"}
U = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "said"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
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


@pytest.mark.parametrize(
    ("messages", "sent"),
    [
        ([A, U], [{**U, "content": "A\n\nhi"}]),
        ([A, B, U, SAID, U, DEV], [{**U, "content": "A\n\nB\n\nD\n\nhi"}, SAID, U]),
        ([U, B], [{**U, "content": "B\n\nhi"}]),
        ([{**A, "name": "a"}, {**U, "name": "u"}], [{**U, "content": "A\n\nhi", "name": "u"}]),
        ([{**A, "content": ""}, U], [U]),
        ([{**A, "content": [PART]}, U], [{**U, "content": [PART, {"type": "text", "text": "hi"}]}]),
        (
            [A, {**U, "content": [IMAGE, PART]}],
            [{**U, "content": [{"type": "text", "text": "A"}, IMAGE, PART]}],
        ),
        ([A, SAID, U], [{**U, "content": "A"}, SAID, U]),
        ([A, DEV], [{**U, "content": "A\n\nD"}]),
    ],
)
def test_the_user_says_first_what_the_system_does(messages: Any, sent: Any) -> None:
    """Mutants: put before a later message of the user, parts made one text."""
    request = decode_chat(json.encode({"model": "m", "messages": messages, "top_k": 3}))
    new = send_as_user(request)
    assert json.decode(new.fields["messages"]) == sent
    assert [m.role for m in new.messages] == [m["role"] for m in sent]
    assert not has_system(new.messages) and new.fields["top_k"] == request.fields["top_k"]
    assert send_as_user(new) is new


def test_what_a_conversation_begins_with() -> None:
    for messages, begins in (([A, U], True), ([U, A], True), ([A, SAID, U], False), ([A], False)):
        request = decode_chat(json.encode({"model": "m", "messages": messages}))
        assert begins_with_user(request.messages) is begins


# From the templates of the models named, as vLLM, llama.cpp and mistral-common give them on
# (llama.cpp issues 19851, 20733, 21879; vLLM issue 41114; opencode issue 15059).
TAKE_ONE = [
    "System message must be at the beginning.",
    "Unable to generate parser for this template. Automatic parser generation failed: \n------\n"
    "Error: Jinja Exception: System message\nmust be at the beginning.",
    "After the optional system message, conversation roles must alternate user/assistant/...",
    "Only user, assistant and tool roles are supported, with the exception of an initial optional "
    "system message!",
    "only one system message is allowed",
    "Multiple system messages are not allowed",
]
# Those of Gemma 1 and 2 and of Mistral 7B (vLLM pull request 2964, issue 2080; chat-ui issue 1386;
# ragflow issue 11021), as vLLM gave them first and gives them since, TGI and llama.cpp b11549.
TAKE_NONE = [
    "System role not supported",
    "System role not supported System role not supported",
    "Template error: invalid operation: System role not supported (in <string>:1)",
    "While executing CallExpression at line 1, column 74 in source:\n...'role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% if loop.first %}...",
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Conversation roles must alternate user/assistant/user/assistant/... "
    "Conversation roles must alternate user/assistant/user/assistant/...",
    "Only user and assistant roles are supported!",
    "Unexpected role 'system' after role 'user'",
]


@pytest.mark.parametrize("said", TAKE_ONE + TAKE_NONE)
def test_a_templates_refusal_is_known_by_its_words(said: str) -> None:
    error = json.encode({"error": {"message": said}})
    none = said in TAKE_NONE
    for status in (400, 422, 500):
        assert refuses_system(status, error) and refuses_role(status, error) is none
    event = b"event: error\ndata: " + error + b"\n\n"
    assert refuses_system(200, event) and refuses_role(200, event) is none
    chunk = json.encode({"choices": [{"delta": {"content": f"error: {said}"}}]})
    for refuses in (refuses_system, refuses_role):
        assert not refuses(200, b"data: " + chunk + b"\n\n")


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 512 tokens.",
        "The system is busy, try again",
        "messages[1].content: Field required",
    ],
)
def test_other_errors_are_none(said: str) -> None:
    for refuses in (refuses_system, refuses_role):
        assert not refuses(400, json.encode({"error": {"message": said}}))
