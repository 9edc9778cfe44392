"""The table of a response's parameters: whole, and what it says is what happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.openapi.requests import OWN
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.as_chat import make_chat
from wellspoken.adapters.requests.responses.renamed import rename_error
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import (
    INCLUDED,
    LOGPROBS,
    MOVED,
    REFUSED,
    ResponseRequest,
    parse_response,
)
from wellspoken.adapters.requests.responses.response_tools import SERVER_SIDE
from wellspoken.adapters.requests.shapes import OUR_KEYS
from wellspoken.adapters.servers.parameters import Support, find_rows, refuse
from wellspoken.adapters.servers.registry import BACKENDS, find
from wellspoken.adapters.servers.response_rows import response_rows

Json = dict[str, Any]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
OFFER = {"tools": [TOOL]}
SCHEMA = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "c"}
SPACE = {"type": "namespace", "name": "s", "tools": [TOOL]}
CHOICE = {"type": "function", "name": "f"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}


def says(role: str, *parts: Json) -> list[Json]:
    """Return an input of one message."""
    return [{"role": role, "content": [*parts] or "x"}]


SAMPLES: dict[str, Json] = {
    "client_metadata": {"client_metadata": {"a": "b"}},
    "frequency_penalty": {"frequency_penalty": 1},
    **{f"include.{name}": {"include": [name]} for name in INCLUDED},
    "input": {"input": "x"},
    "input.developer": {"input": says("developer")},
    "input.input_audio": {
        "input": says(
            "user", {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}
        )
    },
    "input.input_file": {"input": says("user", {"type": "input_file", "file_data": "x"})},
    "input.input_image": {"input": says("user", {"type": "input_image", "image_url": "data:x"})},
    "input.item_reference": {"input": [{"type": "item_reference", "id": "msg_1"}]},
    "input.reasoning": {"input": [THOUGHT, *says("assistant"), *says("user")]},
    "instructions": {"instructions": "x"},
    "logit_bias": {"logit_bias": {"1": 1}},
    "max_output_tokens": {"max_output_tokens": 16},
    "max_tool_calls": {"max_tool_calls": 1},
    "metadata": {"metadata": {"a": "b"}},
    "model": {"model": "m"},
    "moderation": {"moderation": {}},
    "parallel_tool_calls": {"parallel_tool_calls": False, **OFFER},
    "presence_penalty": {"presence_penalty": 1},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "prompt_cache_key": {"prompt_cache_key": "x"},
    "prompt_cache_options": {"prompt_cache_options": {}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "reasoning.context": {"reasoning": {"context": "auto"}},
    "reasoning.effort": {"reasoning": {"effort": "low"}},
    "reasoning.generate_summary": {"reasoning": {"generate_summary": "auto"}},
    "reasoning.mode": {"reasoning": {"mode": "standard"}},
    "reasoning.summary": {"reasoning": {"summary": "auto"}},
    "return_token_ids": {"return_token_ids": True},
    "safety_identifier": {"safety_identifier": "x"},
    "seed": {"seed": 1},
    "service_tier": {"service_tier": "auto"},
    "stop": {"stop": "x"},
    "store": {"store": True},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_obfuscation": True}},
    "temperature": {"temperature": 1},
    "text.format": {"text": {"format": SCHEMA}},
    "text.format.json_object": {"text": {"format": {"type": "json_object"}}},
    "text.format.json_schema": {"text": {"format": SCHEMA}},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "tool_choice": {"tool_choice": "auto", **OFFER},
    "tool_choice.allowed_tools": {
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [CHOICE]},
        **OFFER,
    },
    "tool_choice.function": {"tool_choice": CHOICE, **OFFER},
    "tool_choice.none": {"tool_choice": "none"},
    "tool_choice.required": {"tool_choice": "required", **OFFER},
    "tools": OFFER,
    "tools.custom": {"tools": [CUSTOM]},
    "tools.namespace": {"tools": [SPACE]},
    **{f"tools.{kind}": {"tools": [{"type": kind}]} for kind in SERVER_SIDE},
    "top_logprobs": {"top_logprobs": 1},
    "top_p": {"top_p": 0.5},
    "truncation": {"truncation": "auto"},
    "user": {"user": "x"},
    **{name: {name: "x"} for name in (*MOVED, *REFUSED)},
}
"""A row -> what of a request needs it."""


def table_of(name: str) -> dict[str, Support]:
    return response_rows(BACKENDS[name].chat_table)


def param_refused(name: str, asked: Json) -> str | None:
    """Return what a server's refusal of a request names, None where it is taken."""
    backend = find(name)
    body = json.dumps({"model": "m", "input": "x", **asked}).encode()
    kept = json.dumps({"role": "user", "content": "x"}).encode()
    try:
        request = parse_response(body)
        check_response(request, strict=True)
    except RequestError as error:
        return error.param
    chat = make_chat(
        request, (), {"msg_1": Raw(kept)}, suffix="a" * 32, clock=lambda: 0, stored=True
    )
    try:
        refuse(find_rows(chat, backend.chat_table), backend.chat_table, backend.title)
    except RequestError as error:
        return rename_error(error, chat.facts).param
    return None


@pytest.mark.parametrize("name", BACKENDS)
def test_every_parameter_has_a_row(name: str) -> None:
    heads = {row.partition(".")[0] for row in table_of(name)}
    fields = set(ResponseRequest.__struct_fields__) - OWN - OUR_KEYS
    assert heads >= fields | {*MOVED, *REFUSED}
    assert heads - fields - {*MOVED, *REFUSED} <= {"return_token_ids"}
    assert table_of(name).keys() == SAMPLES.keys() & table_of(name).keys()


def test_every_sample_has_its_row() -> None:
    assert {row for name in BACKENDS for row in table_of(name)} == SAMPLES.keys()


def test_every_row_of_a_chat_is_somewhere() -> None:
    """Beside those that a response refuses, or is answered otherwise."""
    marked = {name: Support(note=f"{name} of a chat") for name in BACKENDS["vllm"].chat_table}
    told = {row.note for row in response_rows(marked).values()}
    lost = {name.partition(".")[0] for name, row in marked.items() if row.note not in told}
    assert lost <= {*MOVED, *REFUSED} | {"metadata", "service_tier", "store", "stream_options",
                                         "tools"}  # fmt: skip
    assert table_of("vllm")[f"include.{LOGPROBS}"].key == "logprobs"


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_row_says_is_what_happens(name: str) -> None:
    table = table_of(name)
    refused = {row.partition(".")[0] for row, support in table.items() if support.how == "refused"}
    for row, support in table.items():
        head, param = row.partition(".")[0], param_refused(name, SAMPLES[row])
        blamed = (param or "").partition("[")[0].partition(".")[0]
        if support.how == "refused":
            needs = {*SAMPLES[row], *(["include"] if head == "top_logprobs" else [])}
            assert blamed in needs, (row, param)
        else:  # but for what it needs beside it
            assert param is None or (blamed != head and blamed in refused), (row, param)


def test_a_server_without_chat_has_no_table() -> None:
    assert response_rows({}) == {}
