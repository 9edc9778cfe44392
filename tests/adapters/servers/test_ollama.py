"""What Ollama is sent, and what its answers become.

After openai/openai.go, middleware/openai.go, server/routes.go, server/logprob.go and
llm/llama_server.go of ollama/ollama from v0.1.34 to v0.33.0-rc2.
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
from tests.answers import USAGE, Said, ask, body, chunk, completion, scored, stream
from tests.conformance import check_completion_stream
from tests.corpus import checked_request
from tests.fold import fold_completion
from tests.replay import stream as translate_pieces
from wellspoken.adapters.servers.known.ollama import OLLAMA
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.adapters.servers.versions import for_version

F = tool("f", parameters=NO_PARAMETERS, description="")
G = tool("g", parameters={"type": "object", "properties": {"a": {}}}, description="G.")
FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
SAME: Json = {
    "stop": ["x", "y"],
    "seed": 7,
    "temperature": 0.5,
    "top_p": 1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
}
PARTS: Json = {"messages": [{"role": "user", "content": [IMAGE, AUDIO]}]}


def allowed(mode: str) -> Json:
    """Return a request that allows one of two tools."""
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool("g")]}}
    return {"tools": [F, G], "tool_choice": choice}


SENT: dict[str, tuple[Json, Json]] = {
    "what it knows, as it is": (SAME, SAME),
    "n is made of single requests": ({"n": 2}, {"n": GONE}),
    "the limit by the only name it knows": (
        {"max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": GONE},
    ),
    "no limit is its default": ({}, {"max_tokens": GONE}),
    "at least one alternative": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "effort": ({"reasoning_effort": "none"}, {"reasoning_effort": "none"}),
    "the effort that is refused before 0.32.11": (
        {"reasoning_effort": "minimal"},
        {"reasoning_effort": "low"},
    ),
    "a schema": ({"response_format": FORMAT}, {"response_format": FORMAT}),
    "tools have parameters": ({"tools": [tool("f"), G]}, {"tools": [F, G]}),
    "no calls": ({"tools": [G], "tool_choice": "none"}, {"tools": GONE, "tool_choice": GONE}),
    "allowed tools": (allowed("auto"), {"tools": [G], "tool_choice": GONE}),
    "the role that templates know": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
    "images and audio": (PARTS, PARTS),
    "one call": ({"parallel_tool_calls": False}, {"parallel_tool_calls": GONE}),
    "a seed that is no random one": ({"seed": -1}, {"seed": 2**31 - 1}),
    "what asks for nothing": (
        {"logit_bias": {}, "parallel_tool_calls": True},
        {"logit_bias": GONE, "parallel_tool_calls": GONE},
    ),
    "its own keys": ({"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
}


@pytest.mark.parametrize(("fields", "expected"), SENT.values(), ids=SENT.keys())
def test_what_is_sent(fields: Json, expected: Json) -> None:
    assert differs(chat(OLLAMA, **fields), expected) == []


def test_the_general_rows_would_send_some_of_it_otherwise() -> None:
    other = {n for n, (fields, said) in SENT.items() if differs(chat(GENERAL, **fields), said)}
    assert other >= {
        "n is made of single requests",
        "the effort that is refused before 0.32.11",
        "tools have parameters",
        "no calls",
        "allowed tools",
        "the role that templates know",
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"tools": [G], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [G], "tool_choice": tool("g")}, "tool_choice"),
        (allowed("required"), "tool_choice"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "function_call"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    assert refused(OLLAMA, chat, **fields) == param


@pytest.mark.parametrize(
    ("version", "fields", "param"),
    [
        ("0.2.5", {"tools": [G]}, "tools"),
        ("0.3.9", {"presence_penalty": 0.5}, "presence_penalty"),
        ("0.4.7", {"response_format": FORMAT}, "response_format"),
        ("0.11.4", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("0.12.10", {"logprobs": True}, "logprobs"),
    ],
)
def test_older_versions_refuse(version: str, fields: Json, param: str) -> None:
    assert refused(for_version(OLLAMA, version), chat, **fields) == param
    assert differs(chat(OLLAMA, **fields), {param: GONE}) == [param]


def test_an_old_version_is_not_asked_for_usage() -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}}
    assert differs(chat(OLLAMA, **fields), fields) == []
    assert differs(chat(for_version(OLLAMA, "0.5.1"), **fields), {"stream_options": GONE}) == []


def test_completions() -> None:
    fields = {**SAME, "suffix": "y", "stream": True, "stream_options": {"include_usage": True}}
    assert differs(text(OLLAMA, **fields), fields) == []
    sent = text(OLLAMA, echo=True, n=2, user="u")
    assert differs(sent, {"echo": GONE, "n": GONE, "user": GONE}) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"prompt": [1, 2]}, "prompt"),
    ],
)
def test_what_completions_refuse(fields: Json, param: str) -> None:
    assert refused(OLLAMA, text, **fields) == param


# --- answers ------------------------------------------------------------------------------------

HEAD: Json = {"id": "chatcmpl-7", "system_fingerprint": "fp_ollama"}


def delta(part: Json, reason: str | None = None, **more: Any) -> Json:
    """Return a chunk as 0.32.6 and later: what is empty is left out, `logprobs` too."""
    whole = chunk(part, reason) | HEAD
    if "logprobs" in more:
        whole["choices"][0]["logprobs"] = more["logprobs"]
    else:
        del whole["choices"][0]["logprobs"]
    return whole


TOKENS: list[Json] = [
    {
        "token": "Hi",
        "logprob": -0.25,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "Hi", "logprob": -0.25, "bytes": [72, 105]}],
    },
    {"token": "", "logprob": -0.5},  # `bytes` and `top_logprobs` are left out where empty
    {"token": "!", "logprob": -2.5, "bytes": [33]},
]


def test_logprobs_of_a_body_and_of_a_stream() -> None:
    choice: Json = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi!"},
        "finish_reason": "stop",
        "logprobs": {"content": TOKENS},
    }
    whole = body(completion(choice) | HEAD, scored(1))
    first = delta({"role": "assistant", "content": "Hi"}, logprobs={"content": TOKENS[:1]})
    second = delta({"content": "!"}, logprobs={"content": TOKENS[1:]})
    for said in (whole, stream([first, second, delta({}, "stop")], scored(1))):
        assert [row[:2] for row in said.rows if row[0]] == [("Hi", -0.25), ("!", -2.5)]
        assert said.joined == b"Hi!"
        assert said.tops[0] == [("Hi", -0.25)]
        assert said.answer["id"].startswith("chatcmpl-made")


def called(*parts: Json) -> Said:
    return stream(parts, ask(tools=[F]))


def test_a_streamed_call_comes_whole() -> None:
    function = {"name": "f", "arguments": '{"a":1}'}
    calls = [{"id": "call_x1", "index": 0, "type": "function", "function": function}]
    opened = delta({"role": "assistant", "content": "", "tool_calls": calls})
    for reason in ("tool_calls", "stop"):  # "stop" to 0.5
        said = called(opened, delta({}, reason))
        assert said.choice["finish_reason"] == "tool_calls"
        assert said.message["tool_calls"][0]["function"] == function


def test_thought_has_its_name() -> None:
    thought = delta({"role": "assistant", "reasoning": "Hm."})
    said = stream([thought, delta({"content": "Hi"}), delta({}, "stop")])
    assert (said.message["content"], said.message["reasoning_content"]) == ("Hi", "Hm.")


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    """It tells an error as an empty chunk, and a token that is repeated 30 times not at all."""
    opened = delta({"role": "assistant", "content": "Hi"})
    for parts in ([opened, delta({"content": ""})], [opened]):
        said = stream(parts, done=False)
        assert said.error is not None


@pytest.mark.parametrize(("reason", "told"), [("load", "stop"), ("unload", "stop")])
def test_its_reasons(reason: str, told: str) -> None:
    choice: Json = {"index": 0, "message": {"role": "assistant", "content": "Hi"}}
    said = body(completion({**choice, "finish_reason": reason}) | HEAD)
    assert said.choice["finish_reason"] == told


def test_a_completions_stream_with_zeros_for_usage() -> None:
    """Each chunk has a usage of zeros, the last one the counts."""
    request = {
        "model": "m",
        "prompt": "Say",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    zeros = dict.fromkeys(USAGE, 0)
    head = {"id": "cmpl-7", "object": "text_completion", "created": 1_760_000_000, "model": "m"}

    def part(said: str, reason: str | None = None) -> Json:
        choice = {"text": said, "index": 0, "finish_reason": reason}
        return {**head, "choices": [choice], "system_fingerprint": "fp_ollama", "usage": zeros}

    parts = [part("Hi"), part("!"), part("", "stop"), {**head, "choices": [], "usage": USAGE}]
    pieces = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in parts]
    outcome = translate_pieces(request, [*pieces, b"data: [DONE]\n\n"], "completions")
    assert check_completion_stream(outcome.body, checked_request(request), None) == []
    folded = fold_completion(outcome.body)
    assert folded["choices"][0]["text"] == "Hi!"
    assert folded["usage"] == USAGE
    assert outcome.body.count(b'"usage":{') == 1


def test_an_error() -> None:
    error = {
        "message": 'model "x" not found, try pulling it first',
        "type": "not_found_error",
        "param": None,
        "code": None,
    }
    said = body({"error": error}, status=404)
    assert said.status == 404 and said.error is not None
    assert said.error["message"] == error["message"]
