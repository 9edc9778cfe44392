"""What Text Generation Inference is sent, and what its answers become.

After router/src/lib.rs, server.rs, chat.rs, validation.rs, infer/mod.rs and infer/tool_grammar.rs
of huggingface/text-generation-inference from v1.4.0 to v3.3.7.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.sending import (
    GONE,
    NO_PARAMETERS,
    USER,
    Json,
    chat,
    differs,
    refused,
    text,
    tool,
)
from tests.answers import DONE, ask, body, chunk, completion, scored, stream
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.known.tgi import TGI
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.adapters.servers.versions import for_version

SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
PAST: Json = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
RESULT: Json = {"role": "tool", "tool_call_id": "0", "content": "5"}
F = tool("f", parameters=NO_PARAMETERS, description="")
G = tool("g", parameters=SCHEMA, description="G.")

SENT: dict[str, tuple[Json, Json]] = {
    "what it knows, as it is": (
        {"seed": 7, "temperature": 0, "frequency_penalty": 0.5, "top_p": 0.5},
        {"seed": 7, "temperature": 0, "frequency_penalty": 0.5, "top_p": 0.5},
    ),
    "stop is a list": ({"stop": "x"}, {"stop": ["x"]}),
    "top_p is below 1": ({"top_p": 1}, {"top_p": GONE}),
    "top_p is above 0": ({"top_p": 0}, {"top_p": 1e-6}),
    "no repetition penalty of 2": ({"presence_penalty": 0}, {"presence_penalty": GONE}),
    "no array of biases": ({"logit_bias": {}}, {"logit_bias": GONE}),
    "n is made of single requests": ({"n": 2}, {"n": GONE}),
    "the limit by the name that 3.0.1 knows": (
        {"max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": GONE},
    ),
    "at least one alternative": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "a schema is a grammar": (
        {"response_format": FORMAT},
        {"response_format": {"type": "json", "value": SCHEMA}},
    ),
    "text needs none": ({"response_format": {"type": "text"}}, {"response_format": GONE}),
    "tools have parameters": ({"tools": [tool("f"), G]}, {"tools": [F, G]}),
    "no calls": (
        {"tools": [G], "tool_choice": "none"},
        {"tools": GONE, "tool_choice": GONE},
    ),
    "a named tool": (
        {"tools": [G], "tool_choice": tool("g")},
        {"tools": [G], "tool_choice": tool("g")},
    ),
    "allowed tools": (
        {
            "tools": [F, G],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [tool("g")]},
            },
        },
        {"tools": [G], "tool_choice": "auto"},
    ),
    "one call is all it makes": (
        {"tools": [G], "parallel_tool_calls": False},
        {"tools": [G], "parallel_tool_calls": GONE},
    ),
    "a call whose empty text would win": (
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [PAST]}, RESULT]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [PAST]}, RESULT]},
    ),
    "a text beside a call": (
        {"messages": [USER, {"role": "assistant", "content": "Hm", "tool_calls": [PAST]}, RESULT]},
        {"messages": [USER, {"role": "assistant", "content": "Hm", "tool_calls": [PAST]}, RESULT]},
    ),
    "the role that templates know": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
    "functions": (
        {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
        {"tools": [F], "tool_choice": tool("f"), "functions": GONE, "function_call": GONE},
    ),
}


@pytest.mark.parametrize(("fields", "expected"), SENT.values(), ids=SENT.keys())
def test_what_is_sent(fields: Json, expected: Json) -> None:
    assert differs(chat(TGI, **fields), expected) == []


def test_the_general_rows_would_send_most_of_it_otherwise() -> None:
    same = {n for n, (fields, said) in SENT.items() if not differs(chat(GENERAL, **fields), said)}
    assert same == {
        "what it knows, as it is",
        "the limit by the name that 3.0.1 knows",
        "at least one alternative",
        "a named tool",
        "allowed tools",
        "a text beside a call",
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        (
            {"messages": [{"role": "user", "content": [AUDIO]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    assert refused(TGI, chat, **fields) == param


def test_a_schema_has_to_be_there() -> None:
    with pytest.raises(RequestError) as error:
        chat(TGI, response_format={"type": "json_schema", "json_schema": {"name": "s"}})
    assert error.value.param == "response_format.json_schema.schema"


def test_its_own_grammar_stays() -> None:
    grammar = {"type": "regex", "value": "[a-z]+"}
    body_of = json.dumps({"messages": [USER], "response_format": grammar}).encode()
    asked = decode_chat(body_of, bounds="backend")
    assert json.loads(prepare(TGI, asked, model=None))["response_format"] == grammar


@pytest.mark.parametrize(
    ("version", "fields", "param"),
    [
        ("1.4.0", {"frequency_penalty": 0.5}, "frequency_penalty"),
        ("1.4.2", {"tools": [G]}, "tools"),
        ("2.0.4", {"response_format": FORMAT}, "response_format"),
        ("2.4.0", {"tools": [G], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_older_versions_refuse(version: str, fields: Json, param: str) -> None:
    assert refused(for_version(TGI, version), chat, **fields) == param
    assert differs(chat(TGI, **fields), {param: GONE}) == [param]


def test_older_versions_are_not_asked_for_usage_and_stops() -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}, "stop": "x"}
    assert differs(chat(TGI, **fields), {**fields, "stop": ["x"]}) == []
    sent = chat(for_version(TGI, "1.4.3"), **fields)
    assert differs(sent, {"stream_options": GONE, "stop": GONE}) == []


def test_completions() -> None:
    sent = text(TGI, stop="x", top_p=1, seed=7, frequency_penalty=0.5, n=2, echo=True, user="u")
    expected = {"stop": ["x"], "top_p": GONE, "seed": 7, "frequency_penalty": 0.5}
    assert differs(sent, {**expected, "n": GONE, "echo": GONE, "user": GONE}) == []
    sent = text(TGI, stream=True, stream_options={"include_usage": True})
    assert differs(sent, {"stream": True, "stream_options": GONE}) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "y"}, "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"prompt": [1, 2]}, "prompt"),
    ],
)
def test_what_completions_refuse(fields: Json, param: str) -> None:
    assert refused(TGI, text, **fields) == param


# --- answers ------------------------------------------------------------------------------------

HEAD: Json = {"id": "", "system_fingerprint": "3.3.5-sha-7bd6d4d"}


def token(said: str, logprob: float, *top: tuple[str, float]) -> Json:
    """Return an entry: no bytes, and alternatives of the best tokens."""
    rows = [{"token": name, "logprob": value} for name, value in top]
    return {"token": said, "logprob": logprob, "top_logprobs": rows}


def delta(said: str, *entries: Json, reason: str | None = None) -> Json:
    """Return a chunk: a role each time, and a null usage."""
    logprobs = {"content": list(entries)} if entries else None
    part = {"role": "assistant", "content": said}
    return chunk(part, reason, logprobs=logprobs, usage=None) | HEAD


TOKENS = [token("Hi", -0.25, ("Hi", -0.25)), token("!", -2.5, (".", -0.5))]
END = token("</s>", -0.125, ("</s>", -0.125))


def test_logprobs_of_a_body_and_of_a_stream() -> None:
    choice: Json = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi!"},
        "logprobs": {"content": [*TOKENS, END]},
        "finish_reason": "stop",
    }
    whole = body(completion(choice) | HEAD, scored(1))
    parts = [delta("Hi", TOKENS[0]), delta("!", TOKENS[1]), delta("", END, reason="stop")]
    for said in (whole, stream(parts, scored(1))):
        assert said.rows == [("Hi", -0.25, [72, 105]), ("!", -2.5, [33])]
        assert said.tops == [[("Hi", -0.25)], [(".", -0.5)]]
        assert said.choice["finish_reason"] == "stop"
        assert said.answer["id"].startswith("chatcmpl-made")


def piece(name: str | None, arguments: str) -> Json:
    """Return a chunk of a call, as 3.2 and later: an array, the same id in each."""
    function = {"name": name, "arguments": arguments}
    calls = [{"index": 0, "id": "0", "type": "function", "function": function}]
    return chunk({"role": "assistant", "tool_calls": calls}, usage=None) | HEAD


def test_a_streamed_call() -> None:
    parts = [piece("f", "{"), piece(None, '"a": 1'), piece(None, "}"), delta("", reason="stop")]
    said = stream(parts, ask(tools=[G | {"function": {**G["function"], "name": "f"}}]))
    assert said.choice["finish_reason"] == "tool_calls"
    (found,) = said.message["tool_calls"]
    assert found["function"] == {"name": "f", "arguments": '{"a": 1}'}


@pytest.mark.parametrize(
    ("reason", "told"),
    [("stop_sequence", "stop"), ("eos_token", "stop"), ("length", "length")],
)
def test_its_reasons(reason: str, told: str) -> None:
    said = stream([delta("Hi"), delta("", reason=reason)])
    assert said.choice["finish_reason"] == told


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_in_a_stream(begun: bool) -> None:
    """From 2.4.1; [DONE] follows."""
    message = "Request failed during generation: Server error: out of memory"
    error: Any = {"error": {"message": message, "http_status_code": 422}}
    parts = [delta("Hi"), error] if begun else [error]
    said = stream(parts)
    assert said.error is not None and message in said.error["message"]
    assert DONE not in said.raw


def test_errors_of_a_body() -> None:
    given = {"error": "Input validation error: `top_p` must be > 0.0", "error_type": "validation"}
    said = body(given, status=422)
    assert (said.status, said.error and said.error["message"]) == (422, given["error"])
    wrong = "Failed to deserialize the JSON body into the target type: seed: invalid value"
    said = body(wrong.encode(), status=422)
    assert said.status == 422 and said.error is not None and wrong in said.error["message"]
