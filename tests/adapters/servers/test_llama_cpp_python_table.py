"""What llama-cpp-python is sent for each row, and what is refused.

test_tables_alike.py tries the tables that other servers have too.

Sources: llama_cpp/server/types.py (`T`, what it takes; FastAPI refuses the rest, its error handler
as a 500), llama_cpp/llama_types.py, server/app.py (`exclude`: what it ignores), llama.py and
llama_chat_format.py (`CF`) at 0.3.35; T and llama_types.py at 0.2.58, 0.3.2, 0.3.5 and 0.3.16 too.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.sending import NO_PARAMETERS, USER, Json, chat, refused, text, tool
from tests.answers import ask, body, scored
from wellspoken.adapters.servers.known.llama_cpp_python import LLAMA_CPP_PYTHON

OBJECT: Json = {"type": "object"}
SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": OBJECT}}
F = tool("f", description="", parameters=OBJECT)
G = tool("g", description="", parameters=NO_PARAMETERS)
CALL_F: Json = {"type": "function", "function": {"name": "f"}}
CALL_G: Json = {"type": "function", "function": {"name": "g"}}
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}


def allowed(mode: str, *tools: Json) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def user(part: Json) -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]


CHAT_SENT: dict[str, tuple[Json, Json]] = {
    "model": ({}, {}),
    # llama_types.py: only a user's content may be parts, and templates of text models print them
    "messages": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]},
        {"messages": [{"role": "user", "content": "a\nb"}]},
    ),
    "stream": ({"stream": True}, {"stream": True}),
    "stop": ({"stop": "a"}, {"stop": ["a"]}),
    "temperature": ({"temperature": 0}, {"temperature": 0}),
    "top_p": ({"top_p": 0}, {"top_p": 0}),
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "max_completion_tokens": ({"max_completion_tokens": 5}, {"max_tokens": 5}),  # issue #1907
    "seed": ({"seed": 7}, {"seed": 7}),
    "logit_bias": ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    "presence_penalty": ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    # CF: `logprobs=top_logprobs if logprobs else None`
    "logprobs": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "top_logprobs": (
        {"logprobs": True, "top_logprobs": 20},
        {"logprobs": True, "top_logprobs": 20},
    ),
    "stream_options": (
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True},  # not in T
    ),
    "response_format": (
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text"}},
    ),
    "response_format.json_object": (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    # llama_types.py: type text or json_object, with a schema since d8f6914 (0.2.34)
    "response_format.json_schema": (
        {"response_format": SCHEMA},
        {"response_format": {"type": "json_object", "schema": OBJECT}},
    ),
    # llama_types.py: parameters are required, a description is no null; CF, chatml-function-calling
    # "Case 1": without a tool_choice the tools are left out
    "tools": (
        {"tools": [F, tool("g", description=None, parameters=None)]},
        {"tools": [F, G], "tool_choice": "auto"},
    ),
    "tool_choice": (
        {"tools": [F], "tool_choice": "auto"},
        {"tools": [F], "tool_choice": "auto"},
    ),
    # CF: the template still gets the tools
    "tool_choice.none": ({"tools": [F], "tool_choice": "none"}, {}),
    "tool_choice.function": (
        {"tools": [F, G], "tool_choice": CALL_G},
        {"tools": [F, G], "tool_choice": CALL_G},
    ),
    # CF: only an object is forced; chatml-function-calling fails at another word than "auto"
    "tool_choice.required": (
        {"tools": [G], "tool_choice": "required"},
        {"tools": [G], "tool_choice": CALL_G},
    ),
    "tool_choice.allowed_tools": (
        {"tools": [F, G], "tool_choice": allowed("auto", CALL_G)},
        {"tools": [G], "tool_choice": "auto"},
    ),
    # not in T; functionary and chatml-function-calling give several calls
    "parallel_tool_calls": (
        {"tools": [F], "parallel_tool_calls": False},
        {"tools": [F], "tool_choice": "auto"},
    ),
    "messages.reasoning_content": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}, USER]},
        {"messages": [{"role": "assistant", "content": "a"}, USER]},
    ),
    # llama_types.py: roles system, user, assistant, tool, function
    "messages.developer": (
        {"messages": [{"role": "developer", "content": "x"}, USER]},
        {"messages": [{"role": "system", "content": "x"}, USER]},
    ),
    "messages.image_url": ({"messages": user(IMAGE)}, {"messages": user(IMAGE)}),
    "functions": ({"functions": [F["function"]]}, {"tools": [F], "tool_choice": "auto"}),
    "function_call": (
        {"functions": [F["function"]], "function_call": {"name": "f"}},
        {"tools": [F], "tool_choice": CALL_F},
    ),
    "n": ({"n": 3}, {}),  # app.py: exclude
    "store": ({"store": True}, {}),
    "metadata": ({"metadata": {"a": "b"}}, {}),
    "service_tier": ({"service_tier": "auto"}, {}),
    "user": ({"user": "u"}, {}),  # app.py: exclude
    "safety_identifier": ({"safety_identifier": "s"}, {}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {}),
    "prompt_cache_options": ({"prompt_cache_options": {"mode": "explicit"}}, {}),
    "prompt_cache_retention": ({"prompt_cache_retention": "24h"}, {}),
    "prediction": ({"prediction": {"type": "content", "content": "x"}}, {}),
}
CHAT_REFUSED: dict[str, tuple[Json, str]] = {
    # not in T, so ignored
    "return_token_ids": ({"return_token_ids": True}, "return_token_ids"),
    "reasoning_effort": ({"reasoning_effort": "low"}, "reasoning_effort"),
    "audio": ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "web_search_options": ({"web_search_options": {}}, "web_search_options"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    # llama_types.py: parts are text and image_url, tools are functions
    "messages.input_audio": ({"messages": user(AUDIO)}, "messages[0].content[1]"),
    "messages.file": (
        {"messages": user({"type": "file", "file": {"file_id": "f"}})},
        "messages[0].content[1]",
    ),
    "tools.custom": ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
}

TEXT_SENT: dict[str, tuple[Json, Json]] = {
    "model": ({}, {}),
    "prompt": ({"prompt": ["a"]}, {"prompt": ["a"]}),  # app.py: one at most
    "stream": ({"stream": True}, {"stream": True}),
    "stop": ({"stop": ["", "a"]}, {"stop": ["a"]}),
    "max_tokens": ({"max_tokens": None}, {"max_tokens": 16}),
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "top_p": ({"top_p": 0.5}, {"top_p": 0.5}),
    "seed": ({"seed": -1}, {"seed": 2**31 - 1}),
    "logit_bias": ({"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1}}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    "presence_penalty": ({"presence_penalty": 0.5}, {"presence_penalty": 0.5}),
    "logprobs": ({"logprobs": 5}, {"logprobs": 5}),
    "echo": ({"echo": True}, {"echo": True}),
    "stream_options": (
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True},
    ),
    "n": ({"n": 2}, {}),
    "best_of": ({"best_of": 2}, {}),
    "user": ({"user": "u"}, {}),
}
TEXT_REFUSED: dict[str, tuple[Json, str]] = {
    "prompt.ids": ({"prompt": [1, 2]}, "prompt"),  # T: a string, or several
    "return_token_ids": ({"return_token_ids": True}, "return_token_ids"),
    # llama.py since 80be68a (0.3.7): the tokens around it are number 0, which its own comment
    # calls unfinished
    "suffix": ({"suffix": "x"}, "suffix"),
}


@pytest.mark.parametrize("row", TEXT_REFUSED)
def test_what_a_completion_is_refused(row: str) -> None:
    fields, param = TEXT_REFUSED[row]
    assert refused(LLAMA_CPP_PYTHON, text, **fields) == param


@pytest.mark.parametrize(
    "choice", ["required", allowed("required", CALL_F, CALL_G)], ids=["required", "allowed"]
)
def test_several_tools_cannot_be_required(choice: Any) -> None:
    found = refused(LLAMA_CPP_PYTHON, chat, tools=[F, G], tool_choice=choice)
    assert found == "tool_choice"


def test_one_allowed_tool_can_be_required() -> None:
    sent = chat(LLAMA_CPP_PYTHON, tools=[F, G], tool_choice=allowed("required", CALL_G))
    assert (sent["tools"], sent["tool_choice"]) == ([G], CALL_G)


# llama.py: b"" is in every text, so the answer would end at its first token
@pytest.mark.parametrize("stop", ["", [], [""], None])
def test_empty_stops_are_not_sent(stop: Any) -> None:
    assert "stop" not in chat(LLAMA_CPP_PYTHON, stop=stop)
    assert "stop" not in text(LLAMA_CPP_PYTHON, stop=stop)


# _internals.py, add_dist: the seed is a c_uint32, of which the largest means a random one
@pytest.mark.parametrize(("seed", "taken"), [(0, 0), (-1, 2**31 - 1), (2**40 + 5, 5)])
def test_seeds_are_never_random(seed: int, taken: int) -> None:
    assert chat(LLAMA_CPP_PYTHON, seed=seed)["seed"] == taken


def test_messages_as_the_sdks_dump_them() -> None:
    """llama_types.py knows no null but a content's, and an assistant always has content."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    nulls = {"refusal": None, "audio": None, "function_call": None}
    parts = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    messages = [
        {"role": "system", "content": parts},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call], **nulls},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "content": "ok", "tool_calls": None, **nulls},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "function", "name": "f", "content": None},
        {"role": "user", "content": "go on", "name": None},
    ]
    assert chat(LLAMA_CPP_PYTHON, messages=messages)["messages"] == [
        {"role": "system", "content": "be\nbrief"},
        USER,
        {"role": "assistant", "tool_calls": [call], "content": ""},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "assistant", "content": "ok"},
        {"role": "assistant", "content": "no"},
        {"role": "function", "name": "f", "content": None},
        {"role": "user", "content": "go on"},
    ]


def test_what_asks_for_nothing_is_neither_refused_nor_sent() -> None:
    fields = {"n": 1, "tools": [], "tool_choice": "auto", "verbosity": "medium", "seed": None}
    assert chat(LLAMA_CPP_PYTHON, **fields) == {"model": "m", "messages": [USER]}
    assert "suffix" not in text(LLAMA_CPP_PYTHON, suffix="", best_of=1)


NO_LOGITS = "logprobs is not supported for models created with logits_all=False"


def test_logprobs_that_it_was_not_started_for() -> None:
    error = {"message": NO_LOGITS, "type": "internal_server_error", "param": None, "code": None}
    got = body({"error": error}, scored(1), status=500)
    assert (got.status, got.retry, got.repairs) == (400, False, {"error_no_logits": 1})
    assert got.error is not None
    assert (got.error["param"], got.error["code"]) == ("logprobs", "unsupported_parameter")
    assert "--logits_all true" in got.error["message"]


def test_another_500_stays_one() -> None:
    error = {"message": f"not that {NO_LOGITS}", "type": "internal_server_error"}
    got = body({"error": error}, ask(), status=500)
    assert (got.status, got.repairs) == (500, {})
