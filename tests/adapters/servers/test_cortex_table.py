"""What cortex is sent for each row, what is refused, and the two ends of bodies that it makes.

Sources: of cortex.llamacpp at 045c8e7 (2025-05) src/chat_completion_request.h (`R`: what is read)
and src/llama_engine.cc (`E`); of cortex.cpp engine/services/inference_service.cc and
engine/utils/function_calling/common.h at 1.0.12 (`C`), and
engine/extensions/local-engine/local_engine.cc at ee9e0ad (2025-07, `L`: it runs llama-server).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.sending import USER, Json, chat, refused, tool
from tests.answers import Said, ask, body
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.known.cortex import CHAT, CORTEX
from wellspoken.adapters.servers.prepare import lacks_in_streams, prepare

SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
F, G = tool("f"), tool("g")
CALL_F: Json = {"type": "function", "function": {"name": "f"}}
COUNTED: Json = {"stream": True, "stream_options": {"include_usage": True}}
UNLIMITED: Json = {"max_tokens": -1}  # R: 500 where none is sent


def allowed(mode: str) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [CALL_F]}}


def user(kind: str, value: Json) -> list[Json]:
    part = {"type": kind, kind: value}
    return [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]


SENT: dict[str, tuple[Json, Json]] = {
    "model": ({}, {}),
    # E, get_message: the first text of an array alone
    "messages": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]},
        {"messages": [{"role": "user", "content": "a\nb"}]},
    ),
    # E: "stop" whatever ended it; the usage tells
    "stream": ({"stream": True}, COUNTED),
    "stream_options": ({"stream": True, "stream_options": {"include_usage": False}}, COUNTED),
    # E iterates over an array; C appends to it, which fails for a string
    "stop": ({"stop": "a"}, {"stop": ["a"]}),
    "temperature": ({"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 0.5}, {"top_p": 0.5}),
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "max_completion_tokens": ({"max_completion_tokens": 5}, {"max_tokens": 5}),  # not in R
    "seed": ({"seed": 7}, {"seed": 7}),
    # R, ConvertLogitBiasToArray, and L: an object of numbers by id
    "logit_bias": ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    "presence_penalty": ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    # R: n_probs is top_logprobs, and E gives none at 0
    "logprobs": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 9}, {"logprobs": True, "top_logprobs": 9}),
    "response_format": (
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text"}},
    ),
    # E since a51c2c5 (0.1.40): the grammar of json_schema.schema, of any object where there is none
    "response_format.json_object": (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    "response_format.json_schema": ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
    # C, PreprocessRequest and PostProcessResponse, since 1.0.1; L has llama-server's
    "tools": ({"tools": [F]}, {"tools": [F]}),
    "tool_choice": ({"tools": [F], "tool_choice": "auto"}, {"tools": [F], "tool_choice": "auto"}),
    "tool_choice.none": ({"tools": [F], "tool_choice": "none"}, {}),
    "tool_choice.allowed_tools": (
        {"tools": [F, G], "tool_choice": allowed("auto")},
        {"tools": [F], "tool_choice": "auto"},
    ),
    # C asks for it in words
    "parallel_tool_calls": ({"tools": [F], "parallel_tool_calls": False}, {"tools": [F]}),
    "messages.reasoning_content": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}, USER]},
        {"messages": [{"role": "assistant", "content": "a"}, USER]},
    ),
    # E: an unknown role is written into the prompt as it is
    "messages.developer": (
        {"messages": [{"role": "developer", "content": "x"}, USER]},
        {"messages": [{"role": "system", "content": "x"}, USER]},
    ),
    "functions": ({"functions": [F["function"]]}, {"tools": [F]}),
    "function_call": (
        {"functions": [F["function"]], "function_call": "auto"},
        {"tools": [F], "tool_choice": "auto"},
    ),
    # E, L: for bodies alone, and a choice that fails is left out
    "n": ({"n": 3}, {}),
    "store": ({"store": True}, {}),
    "metadata": ({"metadata": {"a": "b"}}, {}),
    "service_tier": ({"service_tier": "auto"}, {}),
    "user": ({"user": "u"}, {}),
    "safety_identifier": ({"safety_identifier": "s"}, {}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {}),
    "prompt_cache_options": ({"prompt_cache_options": {"mode": "explicit"}}, {}),
    "prompt_cache_retention": ({"prompt_cache_retention": "24h"}, {}),
    "prediction": ({"prediction": {"type": "content", "content": "x"}}, {}),
}
REFUSED: dict[str, tuple[Json, str]] = {
    # C, UpdateMessages: a sentence in the system prompt
    "tool_choice.required": ({"tools": [F], "tool_choice": "required"}, "tool_choice"),
    "tool_choice.function": ({"tools": [F], "tool_choice": CALL_F}, "tool_choice"),
    # not in R
    "return_token_ids": ({"return_token_ids": True}, "return_token_ids"),
    "reasoning_effort": ({"reasoning_effort": "low"}, "reasoning_effort"),
    "audio": ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "web_search_options": ({"web_search_options": {}}, "web_search_options"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "tools.custom": ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
    # E: left out of the prompt but for a model with a projector, from a data URL
    "messages.image_url": (
        {"messages": user("image_url", {"url": "data:image/png;base64,AA"})},
        "messages[0].content[1]",
    ),
    "messages.input_audio": (
        {"messages": user("input_audio", {"data": "AA", "format": "wav"})},
        "messages[0].content[1]",
    ),
    "messages.file": ({"messages": user("file", {"file_id": "f"})}, "messages[0].content[1]"),
}


def test_every_row_is_here() -> None:
    assert {*SENT, *REFUSED} == set(CHAT)
    assert not CORTEX.completion_table and CORTEX.completions is None


@pytest.mark.parametrize("row", SENT)
def test_what_is_sent(row: str) -> None:
    fields, expected = SENT[row]
    base = {"model": "m", "messages": [USER], **UNLIMITED}
    assert chat(CORTEX, **fields) == base | expected


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_refused(row: str) -> None:
    fields, param = REFUSED[row]
    assert refused(CORTEX, chat, **fields) == param


def test_allowed_tools_cannot_be_required() -> None:
    assert refused(CORTEX, chat, tools=[F], tool_choice=allowed("required")) == "tool_choice"


# R: asInt, which fails beyond 32 bits, and -1 is a random seed
@pytest.mark.parametrize(("seed", "taken"), [(0, 0), (-1, 2**31 - 1), (2**40 + 5, 5)])
def test_seeds_that_it_takes(seed: int, taken: int) -> None:
    assert chat(CORTEX, seed=seed)["seed"] == taken


# llama_server_context.cc: "" is found in any text, and ends it
@pytest.mark.parametrize("stop", ["", [], [""], None])
def test_empty_stops_are_not_sent(stop: Any) -> None:
    assert "stop" not in chat(CORTEX, stop=stop)


def _body(fields: Json) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def lax(**fields: Any) -> Json:
    """Return what is sent where bounds are the backend's."""
    request = decode_chat(_body(fields), bounds="backend")
    found: Json = json.loads(prepare(CORTEX, request, model=None))
    return found


def test_llamacpp_pairs_are_numbers_by_id() -> None:
    assert lax(logit_bias=[[5, False], [6, 2.5]])["logit_bias"] == {"5": -100, "6": 2.5}


# R: std::stoi of the key, which throws
@pytest.mark.parametrize("bias", [{" hello": 1}, [["hello", 1]], [5], {"-5": 1}])
def test_biases_of_texts_are_refused(bias: Any) -> None:
    with pytest.raises(RequestError, match="Name token ids") as error:
        lax(logit_bias=bias)
    assert (error.value.status, error.value.param) == (400, "logit_bias")


def test_what_asks_for_nothing_is_neither_refused_nor_sent() -> None:
    fields = {"n": 1, "tools": [], "tool_choice": "auto", "stream": False, "logit_bias": {}}
    assert chat(CORTEX, **fields) == {"model": "m", "messages": [USER], **UNLIMITED}


@pytest.mark.parametrize("offered", [{"tools": [F]}, {"functions": [F["function"]]}])
def test_tools_come_in_a_body(offered: Json) -> None:
    """C: the engine is told not to stream, and the stream that the client waits for is empty."""
    assert lacks_in_streams(CORTEX, decode_chat(_body({"stream": True, **offered})).fields)
    request = decode_chat(_body({"stream": True, **offered}))
    sent = prepare(CORTEX, request, model=None, stream=False)
    assert b'"stream' not in sent


def made(text: str, count: int, fingerprint: str = "_", prompt: int = 5, **asked: Any) -> Said:
    """Return what comes of a body as CreateFullReturnJson makes it (E, L)."""
    message = {"content": text, "role": "assistant"}
    usage = {
        "completion_tokens": count,
        "prompt_tokens": prompt,
        "total_tokens": prompt + count,
    }
    answer = {
        "choices": [{"finish_reason": "stop", "index": 0, "message": message}],
        "created": 1_760_000_000,
        "id": "x8hbt2lKfGqQ5vYd0aZs",
        "model": "_",
        "object": "chat.completion",
        "system_fingerprint": fingerprint,
        "usage": usage,
    }
    return body(answer, ask(**asked))


AT_LIMIT = "finish_reason_stop_at_limit"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_count_that_reached_the_limit_was_cut(limit: str) -> None:
    asked: Json = {limit: 3}
    for count in (3, 4):  # the engine gives 3 at a limit of 1 or 2
        got = made("Hi", count, **asked)
        assert got.choice["finish_reason"] == "length" and got.repairs[AT_LIMIT] == 1
    got = made("Hi", 2, **asked)
    assert got.choice["finish_reason"] == "stop" and AT_LIMIT not in got.repairs


def test_without_a_limit_a_stop_is_one() -> None:
    got = made("Hi", 700)
    assert got.choice["finish_reason"] == "stop" and AT_LIMIT not in got.repairs


def test_another_servers_stop_at_the_limit_is_believed() -> None:
    """The end-of-text token may be the last one allowed."""
    got = made("Hi", 3, fingerprint="b5332-1", max_tokens=3)
    assert got.choice["finish_reason"] == "stop" and AT_LIMIT not in got.repairs


def test_a_stop_string_in_the_text_is_a_stop_at_the_limit_too() -> None:
    got = made("Hi there", 3, max_tokens=3, stop=["the"])
    assert (got.message["content"], got.choice["finish_reason"]) == ("Hi ", "stop")


def test_an_answer_lost_for_logprobs_is_an_error() -> None:
    got = made("", 0, prompt=0, logprobs=True)
    assert (got.status, got.retry, got.repairs["error_answer_lost"]) == (400, False, 1)
    assert got.error is not None
    assert (got.error["param"], got.error["code"]) == ("logprobs", "unsupported_parameter")


@pytest.mark.parametrize(
    "given",
    [
        {"text": "", "count": 0, "prompt": 0},
        {"text": "", "count": 1, "logprobs": True},
        {"text": "Hi", "count": 0, "prompt": 0, "logprobs": True},
        {"text": "", "count": 0, "prompt": 0, "logprobs": True, "fingerprint": "b1"},
    ],
)
def test_other_answers_are_not_lost(given: Any) -> None:
    got = made(**given)
    assert got.status == 200 and "error_answer_lost" not in got.repairs
