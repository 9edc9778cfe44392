"""Contract rules 6 and 8: the role, the message's keys and the choices that hold it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    Json,
    ask,
    body,
    choice,
    chunk,
    completion,
    end,
    message,
    role,
    say,
    stream,
)


def test_a_role_comes_once() -> None:
    parts = [role(), *(chunk({"role": "assistant", "content": x}) for x in "Hi"), end()]
    said = stream(parts)
    assert said.raw.count(b'"role"') == 1
    assert said.message["content"] == "Hi"
    assert said.repairs["role_repeated"] == 2


@pytest.mark.parametrize(
    "delta",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "", "refusal": None, "reasoning_content": None},
        {"role": "bot", "content": ""},
        {"role": None, "content": ""},
        {},
    ],
    ids=json.dumps,
)
def test_the_first_delta_is_the_role(delta: Json) -> None:
    said = stream([chunk(delta), say("Hi"), end()])
    first = said.chunks[0]["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": "", "refusal": None}
    assert said.message["content"] == "Hi"


def test_a_choice_that_begins_with_its_text_or_its_end_has_a_role() -> None:
    for parts in ([say("Hi"), end()], [end()], [chunk({"content": "Hi"}, "stop")]):
        said = stream(parts)
        first = said.chunks[0]["choices"][0]["delta"]
        assert first == {"role": "assistant", "content": "", "refusal": None}


@pytest.mark.parametrize("given", ["user", None, ...])
def test_a_bodys_role_is_assistant(given: Any) -> None:
    part = message()
    if given is ...:
        del part["role"]
    else:
        part["role"] = given
    said = body(completion(choice(message=part)))
    assert said.message["role"] == "assistant"
    assert said.repairs == {"role_missing": 1}


@pytest.mark.parametrize(
    ("given", "text", "repair"),
    [
        ([{"type": "text", "text": "H"}, {"type": "text", "text": "i"}], "Hi", "content_parts"),
        (["H", "i", 7, {"type": "image"}], "Hi", "content_parts"),
        (12, "12", "content_not_text"),
        (None, "", "content_null"),
    ],
)
def test_content_is_text(given: Any, text: str, repair: str) -> None:
    said = body(completion(choice(given)))
    assert said.message["content"] == text
    assert said.repairs[repair] == 1


def test_content_is_null_only_beside_a_call_or_a_refusal() -> None:
    said = body(completion(choice(message=message(None, refusal="No."))))
    assert (said.message["content"], said.message["refusal"]) == (None, "No.")
    assert said.repairs == {}
    said = body(completion(choice(message=message(None, refusal=None))))
    assert said.message["content"] == ""


def test_the_refusal_key_is_always_there() -> None:
    part = message()
    del part["refusal"]
    said = body(completion(choice(message=part)))
    assert said.message["refusal"] is None
    assert said.repairs == {"refusal_missing": 1}


def test_a_streamed_refusal() -> None:
    parts = [role(), chunk({"refusal": "No"}), chunk({"refusal": "."}), end()]
    said = stream(parts)
    assert said.message["refusal"] == "No."
    assert said.repairs == {}
    said = stream([chunk({"refusal": "No", "x": 1}), end()])
    assert said.message["refusal"] == "No"


@pytest.mark.parametrize("where", ["message", "delta", "text"])
def test_what_a_choice_says_under_another_name(where: str) -> None:
    whole, part = choice(), say("Hi")
    del whole["message"]
    del part["choices"][0]["delta"]
    said = [
        body(completion({**whole, where: "Hi" if where == "text" else message()}), ask()),
    ]
    if where != "delta":
        part["choices"][0][where] = "Hi" if where == "text" else {"content": "Hi"}
        said.append(stream([role(), part, end()]))
    for one in said:
        assert one.message["content"] == "Hi"
        assert ("choice_part_misnamed" in one.repairs) == (where != "message" or one is said[-1])


def test_a_choice_that_says_nothing_at_all() -> None:
    bare = choice()
    del bare["message"]
    said = body(completion(bare))
    assert (said.message["content"], said.repairs["choice_part_misnamed"]) == ("", 1)


def test_a_chunk_that_says_nothing_at_all() -> None:
    bare = say("")
    del bare["choices"][0]["delta"]
    said = stream([role(), bare, say("Hi"), end()])
    assert said.message["content"] == "Hi"
    assert said.repairs == {"choice_part_misnamed": 1}


def test_one_choice_where_the_list_belongs() -> None:
    given = {**completion(), "choices": choice()}
    said = body(given)
    assert said.message["content"] == "Hi"
    assert said.repairs["choices_object"] == 1


@pytest.mark.parametrize(
    "key", ["tool_calls", "function_call", "audio", "annotations", "reasoning_content", "reasoning"]
)
def test_null_keys_are_omitted(key: str) -> None:
    for said in (
        body(completion(choice(message=message("Hi", **{key: None})))),
        body(completion(choice(message=message("Hi", **{key: None}, x=1)))),
        stream([role(), chunk({"content": "Hi", key: None}), end()]),
        stream([role(), chunk({"content": "Hi", key: None, "x": 1}), end()]),
    ):
        assert key.encode() not in said.raw
        assert said.repairs["null_key_omitted"] == 1


def test_annotations_are_openais_own_and_empty_ones_are_omitted() -> None:
    notes = [{"type": "url_citation", "url_citation": {"url": "x"}}]
    said = body(completion(choice(message=message("Hi", annotations=notes))))
    assert said.message["annotations"] == notes
    said = body(completion(choice(message=message("Hi", annotations=[], role="x"))))
    assert "annotations" not in said.message


@pytest.mark.parametrize(
    ("empty", "repair"),
    [({"refusal": ""}, "refusal_empty"), ({"reasoning_content": ""}, "reasoning_empty")],
)
def test_an_empty_text_for_none_is_left_out(empty: Json, repair: str) -> None:
    said = body(completion(choice(message={**message(), **empty})))
    assert said.message == message()
    assert said.repairs == {repair: 1}


THOUGHTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
    {"type": "reasoning", "text": "Hm."},
    {"type": "reasoning", "reasoning": "Hm."},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {"type": "reasoning_text", "text": "Hm."},
    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
    {"thought": True, "text": "Hm."},
]


@pytest.mark.parametrize("thought", THOUGHTS, ids=str)
def test_a_part_that_is_reasoning_is_no_content(thought: Json) -> None:
    parts = [thought, {"type": "text", "text": "Hi", "thoughtSignature": "c2ln"}]
    for said in (
        body(completion(choice(message=message(parts)))),
        stream([chunk(message([thought])), chunk({"content": parts[1:]}), end()]),
    ):
        assert said.message["content"] == "Hi"
        assert said.message["reasoning_content"] == "Hm."
        assert said.repairs["reasoning_renamed"] == 1


DETAILS = [
    {"reasoning_details": [{"type": "reasoning.text", "text": "H"}, {"summary": "m."}]},
    {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]},
    {"reasoning": {"content": "Hm."}},
]


@pytest.mark.parametrize("given", DETAILS, ids=str)
def test_reasoning_in_details_alone(given: Json) -> None:
    for said in (
        body(completion(choice(message=message(**given)))),
        stream([role(), chunk(given), say("Hi"), end()]),
    ):
        assert said.message["reasoning_content"] == "Hm."
        assert said.repairs["reasoning_renamed"] == 1
    both = body(completion(choice(message=message(**given, reasoning_content="Hm!"))))
    assert both.message["reasoning_content"] == "Hm!"


def test_what_is_encrypted_alone_is_no_reasoning() -> None:
    sealed = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "c2ln"}]}
    said = body(completion(choice(message=message(**sealed))))
    assert "reasoning_content" not in said.message
    assert said.repairs == {"extra_field_dropped": 1}


@pytest.mark.parametrize("content", [42, [{"type": "text", "text": "Paris."}]])
def test_a_content_that_is_not_null_is_not_counted_as_null(content: Any) -> None:
    assert "content_null" not in body(completion(choice(content))).repairs
