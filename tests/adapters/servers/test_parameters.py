"""The request tables: complete for every backend, and what they make of a request."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec import json, structs

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import COMPLETION_KEYS, OPENAI_KEYS
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import (
    ASKS_NOTHING,
    CHAT_VARIANTS,
    VENDOR,
    How,
    Support,
    Table,
    rows,
)
from wellspoken.adapters.servers.prepare import prepare, prepare_completion
from wellspoken.adapters.servers.registry import BACKENDS, find

CHAT_ROWS = OPENAI_KEYS | set(CHAT_VARIANTS) | set(VENDOR)
COMPLETION_ROWS = COMPLETION_KEYS | {"prompt.ids"} | set(VENDOR)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER = {"type": "function", "function": {"name": "g"}}
CUSTOM = {"type": "custom", "custom": {"name": "c"}}
CALLED = {"type": "function", "function": {"name": "f"}}


def part(kind: str) -> dict[str, Any]:
    value: Any = {"url": "data:image/png;base64,AA", "data": "AA", "format": "wav"}
    return {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind, kind: value}]}


# One value for each row that asks for something, and the param that a refusal names.
CHAT_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "audio": ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    "frequency_penalty": ({"frequency_penalty": 0.5}, "frequency_penalty"),
    "logit_bias": ({"logit_bias": {"5": -100}}, "logit_bias"),
    "messages.developer": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        "messages[0].role",
    ),
    "messages.file": ({"messages": [USER, part("file")]}, "messages[1].content[1]"),
    "messages.image_url": ({"messages": [part("image_url")]}, "messages[0].content[1]"),
    "messages.input_audio": ({"messages": [part("input_audio")]}, "messages[0].content[1]"),
    "messages.reasoning_content": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning": "b"}, USER]},
        "messages[0].reasoning_content",
    ),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "n": ({"n": 2}, "n"),
    "parallel_tool_calls": (
        {"parallel_tool_calls": False, "tools": [TOOL]},
        "parallel_tool_calls",
    ),
    "presence_penalty": ({"presence_penalty": 0.5}, "presence_penalty"),
    "reasoning_effort": ({"reasoning_effort": "low"}, "reasoning_effort"),
    "response_format.json_object": (
        {"response_format": {"type": "json_object"}},
        "response_format",
    ),
    "response_format.json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
        "response_format",
    ),
    "return_token_ids": ({"return_token_ids": True}, "return_token_ids"),
    "seed": ({"seed": 1}, "seed"),
    "stop": ({"stop": "x"}, "stop"),
    "temperature": ({"temperature": 0.5}, "temperature"),
    "tool_choice.allowed_tools": (
        {
            "tools": [TOOL, OTHER],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [CALLED]},
            },
        },
        "tool_choice",
    ),
    "tool_choice.function": ({"tools": [TOOL, OTHER], "tool_choice": CALLED}, "tool_choice"),
    "tool_choice.none": ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice"),
    "tool_choice.required": ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    "tools": ({"tools": [TOOL]}, "tools"),
    "tools.custom": ({"tools": [CUSTOM]}, "tools[0]"),
    "top_p": ({"top_p": 0.5}, "top_p"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "web_search_options": ({"web_search_options": {}}, "web_search_options"),
}


def chat(backend: Backend, **fields: Any) -> dict[str, Any]:
    body = json.encode({"model": "m", "messages": [USER], **fields})
    sent: dict[str, Any] = json.decode(prepare(backend, decode_chat(body), model=None))
    return sent


def text(backend: Backend, **fields: Any) -> dict[str, Any]:
    body = json.encode({"model": "m", "prompt": "hi", "max_tokens": 3, **fields})
    request = decode_completion(body)
    sent: dict[str, Any] = json.decode(prepare_completion(backend, request, model=None))
    return sent


@pytest.mark.parametrize("name", BACKENDS)
def test_every_parameter_has_a_row(name: str) -> None:
    backend = BACKENDS[name]
    assert backend.chat_table.keys() == (CHAT_ROWS if backend.chat else set())
    assert backend.completion_table.keys() == (COMPLETION_ROWS if backend.completions else set())
    for table in (backend.chat_table, backend.completion_table):
        for row, support in table.items():
            assert support.how in get_args(How), row
            assert not support.note.endswith(" "), row
            if support.how == "refused" and support.note:
                assert support.note.endswith("."), f"{row}: its note ends an error's sentence"


def test_a_missing_row_is_found() -> None:
    table = {key: row for key, row in find("vllm").chat_table.items() if key != "seed"}
    assert table.keys() != CHAT_ROWS


def _kept(table: Table, row: str) -> bool:
    return table[row].how == "native" and not table[row].key and table[row].form is None


@pytest.mark.parametrize("name", [name for name, backend in BACKENDS.items() if backend.chat])
@pytest.mark.parametrize("row", CHAT_VALUES)
def test_a_row_says_what_is_sent(name: str, row: str) -> None:
    backend = BACKENDS[name]
    fields, param = CHAT_VALUES[row]
    table = backend.chat_table
    refused = {key for key in table if table[key].how == "refused"}
    needs = {row, row.partition(".")[0]} | {key for key in fields if key in table}
    if row == "tool_choice.none":
        needs -= {"tools"} if "tool_choice.none" not in refused else set()
    if row.startswith("tool_choice."):
        needs.discard("tool_choice")
    if row == "tool_choice.allowed_tools":
        needs.add("tool_choice.required")  # its mode
    if needs & refused:
        with pytest.raises(RequestError) as error:
            chat(backend, **fields)
        assert (error.value.status, error.value.code) == (400, "unsupported_parameter")
        if needs & refused == {row}:
            assert error.value.param == param
        assert backend.title in error.value.message
        return
    sent = chat(backend, **fields)
    key = row.partition(".")[0]
    if key in fields and all(_kept(table, each) for each in needs):
        assert sent[key] == fields[key]
    elif table[key].how in ("emulated", "answered", "accepted"):
        assert key not in sent


@pytest.mark.parametrize("name", [name for name, backend in BACKENDS.items() if backend.chat])
def test_what_asks_for_nothing_is_never_refused(name: str) -> None:
    """Clients send defaults: LangChain `n: 1`, others every parameter with its neutral value."""
    neutral = {
        key: values[0]
        for key, values in ASKS_NOTHING.items()
        if key in OPENAI_KEYS and key not in ("function_call", "functions", "tool_choice", "tools")
    }
    neutral |= {"response_format": {"type": "text"}, "logprobs": False}
    del neutral["top_logprobs"]
    backend = BACKENDS[name]
    sent = chat(backend, **neutral)
    assert sent["messages"] == [USER]
    for key in neutral:
        if backend.chat_table[key].how != "native":
            assert key not in sent
    nothing = dict.fromkeys(OPENAI_KEYS - {"model", "messages"})
    bare = chat(backend)
    assert chat(backend, **nothing) == bare


@pytest.mark.parametrize("name", [n for n, backend in BACKENDS.items() if backend.completions])
def test_a_completion_row_says_what_is_sent(name: str) -> None:
    backend = BACKENDS[name]
    values: dict[str, Any] = {
        "best_of": 2,
        "echo": True,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": -100},
        "n": 2,
        "presence_penalty": 0.5,
        "seed": 1,
        "stop": "x",
        "suffix": "y",
        "temperature": 0.5,
        "top_p": 0.5,
        "user": "u",
    }
    table = backend.completion_table
    for row, value in values.items():
        more = {"n": 2} if row == "best_of" else {}
        if table[row].how == "refused":
            with pytest.raises(RequestError) as error:
                text(backend, **{row: value}, **more)
            assert (error.value.param, error.value.code) == (row, "unsupported_parameter")
        elif table[row].how != "native":
            assert row not in text(backend, **{row: value}, **more)
        elif table[row].form is None:
            assert text(backend, **{row: value}, **more)[row] == value
    if table["prompt.ids"].how == "refused":
        with pytest.raises(RequestError) as error:
            text(backend, prompt=[1, 2])
        assert error.value.param == "prompt"
    else:
        assert text(backend, prompt=[1, 2])["prompt"] == [1, 2]


def test_a_refused_row_says_what_to_do_instead() -> None:
    note = "Send it to another server."
    openai = find("openai")
    table = {**openai.chat_table, "seed": Support("refused", note=note)}
    backend = structs.replace(openai, title="a box", chat_table=table)
    with pytest.raises(RequestError) as error:
        chat(backend, seed=1)
    assert error.value.message == f"The 'seed' parameter is not supported by a box. {note}"


def test_functions_need_what_tools_need() -> None:
    openai = find("openai")
    table = {**openai.chat_table, **rows("tool_choice.function", "refused")}
    backend = structs.replace(openai, chat_table=table)
    with pytest.raises(RequestError) as error:
        chat(backend, functions=[{"name": "f"}], function_call={"name": "f"})
    assert error.value.param == "function_call"
    assert "tools" in chat(backend, functions=[{"name": "f"}], function_call="auto")


def test_allowed_tools_are_offered_alone() -> None:
    fields, _ = CHAT_VALUES["tool_choice.allowed_tools"]
    sent = chat(find("vllm"), **fields)
    assert sent["tools"] == [TOOL] and sent["tool_choice"] == "required"
    for allowed in (
        {"mode": "auto", "tools": [{"type": "function", "function": {"name": "h"}}]},
        {"mode": "sometimes", "tools": [CALLED]},
        {"mode": "auto", "tools": []},
        {"tools": [CALLED]},
        {"mode": "auto", "tools": ["f"]},
        None,
    ):
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        with pytest.raises(RequestError) as error:
            chat(find("vllm"), tools=[TOOL, OTHER], tool_choice=choice)
        assert error.value.status == 400 and (error.value.param or "").startswith("tool_choice")


def test_obfuscation_is_accepted_and_goes_no_further() -> None:
    for options, sent in (
        ({"include_usage": True, "include_obfuscation": False}, {"include_usage": True}),
        ({"include_obfuscation": True}, None),
    ):
        asked = chat(find("llamacpp"), stream=True, stream_options=options)
        assert asked.get("stream_options") == sent
