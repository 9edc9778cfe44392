"""What llama.cpp's two OpenAI endpoints are sent, where its form is another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.forms import RANDOM
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.prepare import lacks_in_streams, prepare, prepare_completion

Json = dict[str, Any]
USER = [{"role": "user", "content": "hi"}]
F = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
G = {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}}
OBJECT = {"type": "object"}


def chat(**more: Any) -> Json:
    """Return what a chat request adds to model and messages, as it is sent."""
    given = {"model": "m", "messages": USER, **more}
    sent: Json = json.loads(prepare(LLAMACPP, decode_chat(json.dumps(given).encode()), model=None))
    return {key: value for key, value in sent.items() if key not in ("model", "messages")}


def text(own: int | None = None, **more: Any) -> Json:
    given = json.dumps({"model": "m", "prompt": "hi", "max_tokens": 1, **more}).encode()
    sent: Json = json.loads(
        prepare_completion(LLAMACPP, decode_completion(given), model=None, seed=own)
    )
    return {key: sent[key] for key in sent if key not in ("model", "prompt", "max_tokens")}


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [(0, 0), (7, 7), (-2, RANDOM - 1), (-1, RANDOM // 2), (RANDOM, RANDOM // 2), (2**40 + 3, 3)],
)
def test_a_seed_is_never_the_one_that_means_none(seed: int, wanted: int) -> None:
    assert chat(seed=seed) == text(seed=seed) == {"seed": wanted}
    assert text(seed, seed=3) == {"seed": wanted}


def test_a_choices_own_seed_has_that_form_too() -> None:
    asked = decode_completion(b'{"model":"m","prompt":"hi","seed":4294967294}')
    for given, wanted in ((RANDOM - 1, RANDOM - 1), (RANDOM, RANDOM // 2), (RANDOM + 1, 0)):
        sent = json.loads(prepare_completion(LLAMACPP, asked, model=None, n=1, seed=given))
        assert sent["seed"] == wanted


def test_json_without_a_schema_is_an_object() -> None:
    """b7376 gives any value."""
    assert chat(response_format={"type": "json_object"}) == {
        "response_format": {"type": "json_object", "schema": OBJECT}
    }
    own = {"type": "json_object", "schema": {"type": "array"}}
    assert chat(response_format=own) == {"response_format": own}
    for schema in ({}, {"schema": None}):
        named = {"type": "json_schema", "json_schema": {"name": "n", **schema}}
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": OBJECT}}
        assert chat(response_format=named) == {"response_format": wanted}
    big = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [10**30]}}}
    assert chat(response_format=big) == {"response_format": big}
    assert chat(response_format={"type": "text"}) == {"response_format": {"type": "text"}}


def test_effort_is_the_templates() -> None:
    for effort, wanted in (
        ("none", {"enable_thinking": False}),
        ("high", {"reasoning_effort": "high"}),
    ):
        assert chat(reasoning_effort=effort) == {"chat_template_kwargs": wanted}
    own = {"enable_thinking": True}
    sent = chat(reasoning_effort="none", chat_template_kwargs=own)
    assert sent == {"chat_template_kwargs": own}


def test_a_named_function_is_the_only_one_and_required() -> None:
    named = {"type": "function", "function": {"name": "g"}}
    wanted = {"tools": [G], "tool_choice": "required"}
    assert chat(tools=[F, G], tool_choice=named) == wanted
    functions = [F["function"], G["function"]]
    assert chat(functions=functions, function_call={"name": "g"}) == wanted


def test_no_call_beside_a_form_means_no_tools() -> None:
    form = {"type": "json_object", "schema": OBJECT}
    assert chat(tools=[F], tool_choice="none", response_format=form) == {"response_format": form}
    assert chat(tools=[F], tool_choice="none") == {"tools": [F], "tool_choice": "none"}
    assert chat(tools=[F], response_format=form)["tools"] == [F]


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [
        ({"tools": [F], "logprobs": True}, True),
        ({"functions": [F["function"]], "logprobs": True}, True),
        ({"tools": [F]}, False),
        ({"logprobs": True}, False),
        ({"tools": [F], "logprobs": False}, False),
        ({"tools": None, "logprobs": True}, False),
    ],
)
def test_logprobs_beside_tools_are_asked_for_in_a_body(fields: Json, lacks: bool) -> None:
    given = json.dumps({"model": "m", "messages": USER, **fields}).encode()
    assert lacks_in_streams(LLAMACPP, decode_chat(given).fields) is lacks


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"verbosity": "low"}, "verbosity"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_what_it_cannot_do_is_refused(fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('{"a": 1.10, "b": 1e400}', '{"a": 1.10, "b": 1e400}'),
        ("", "{}"),
        ('{"a": ', '"{\\"a\\": "'),
        ("not json", '"not json"'),
        ("[" * 100_000, json.dumps("[" * 100_000)),
    ],
)
def test_what_a_past_call_was_given_can_be_parsed(given: str, sent: str) -> None:
    """A call that the limit cut, as a client repeats it: b11549 answers it with a 500."""
    function = {"name": "f", "arguments": given}
    called = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}
    called["tool_calls"][0]["function"] = function  # type: ignore[index]
    messages = [*USER, called, {"role": "tool", "tool_call_id": "c", "content": "1"}]
    request = decode_chat(json.dumps({"model": "m", "messages": messages}).encode())
    found = json.loads(prepare(LLAMACPP, request, model=None))["messages"]
    function["arguments"] = sent
    assert found == messages


def test_whatever_else_stands_in_a_past_call_stays() -> None:
    call = b'{"id":"c","x":1e400,"function":{"name":"f","y":%b,"arguments":"{"}}' % (b"1" * 5000)
    said = b'{"role":"assistant","tool_calls":[%b]}' % call
    given = b'{"model":"m","messages":[{"role":"user","content":"hi"},%b]}' % said
    sent = prepare(LLAMACPP, decode_chat(given, bounds="backend"), model=None)
    assert sent == given.replace(b'"{"', rb'"\"{\""')
