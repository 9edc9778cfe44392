"""What each backend is sent, and how backends are found by name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json, structs

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.parameters import rows
from wellspoken.adapters.servers.prepare import lacks_in_streams, prepare
from wellspoken.adapters.servers.registry import BACKENDS, find

USER = [{"role": "user", "content": "hi"}]
OLD_LIMIT = ["general", "vllm", "furiosa", "llamacpp", "llama-cpp-python", "cortex"]


def send(adapter: str, *, model: str | None = None, **fields: Any) -> dict[str, Any]:
    body = json.encode({"model": "m", "messages": USER, **fields})
    sent = prepare(find(adapter), decode_chat(body), model=model)
    decoded: dict[str, Any] = json.decode(sent)
    assert decoded.pop("messages") == USER
    return decoded


def test_values_go_out_as_sent_and_in_order() -> None:
    body = (
        b'{ "top_k" : 40, "messages": [ {"role":"user", "content":"caf\\u00e9"} ], "big": 1e400,'
        b'"temperature":0.70,"model":"m","nothing":null,"seed":null,"stop":[ "a" ]}'
    )
    request = decode_chat(body)
    expected = (
        b'{"top_k":40,"messages":[ {"role":"user", "content":"caf\\u00e9"} ],"big":1e400,'
        b'"temperature":0.70,"model":"m","nothing":null,"stop":[ "a" ]}'
    )
    for _ in range(2):  # a retry prepares again
        assert prepare(find("openai"), request, model=None) == expected


def test_a_route_renames_the_model() -> None:
    assert send("openai", model="served") == {"model": "served"}
    assert send("openai") == {"model": "m"}


@pytest.mark.parametrize("adapter", list(BACKENDS))
def test_what_the_proxy_keeps_is_not_sent(adapter: str) -> None:
    fields: dict[str, Any] = {
        "oai_compat": True,
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
    }
    backend = find(adapter)
    limit = backend.chat_table["max_completion_tokens"].key or "max_completion_tokens"
    assert send(adapter, max_completion_tokens=5, **fields) == {"model": "m", limit: 5}


def test_a_default_that_cuts_answers_is_lifted() -> None:
    assert send("cortex") == {"model": "m", "max_tokens": -1}
    assert send("cortex", max_completion_tokens=7) == {"model": "m", "max_tokens": 7}
    assert send("vllm") == {"model": "m"}


def test_what_a_stream_lacks_is_asked_for_in_a_body() -> None:
    backend = find("llama-cpp-python")
    for fields, lacks in (
        ({"logprobs": True}, True),
        ({"logprobs": False}, False),
        ({"logprobs": None}, False),
        ({}, False),
    ):
        request = decode_chat(json.encode({"model": "m", "messages": USER, **fields}))
        assert lacks_in_streams(backend, request.fields) is lacks
    usage = {"include_usage": True}
    body = {"model": "m", "messages": USER, "stream": True, "stream_options": usage}
    sent = json.decode(prepare(backend, decode_chat(json.encode(body)), model=None, stream=False))
    assert sent == {"model": "m", "messages": USER}


def test_what_comes_as_a_stream_alone_is_asked_for_one_that_counts() -> None:
    body = {"model": "m", "messages": USER}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    for more in ({}, {"stream": False}, stream):
        request = decode_chat(json.encode({**body, **more}))
        sent = json.decode(prepare(find("vllm"), request, model=None, stream=True, usage=True))
        assert sent == {**body, **stream}


def test_a_backend_may_declare_to_know_what_the_proxy_keeps() -> None:
    openai = find("openai")
    table = {**openai.chat_table, **rows("store metadata")}
    backend = structs.replace(openai, chat_table=table)
    body = json.encode({"model": "m", "messages": USER, "store": True, "metadata": {"a": "b"}})
    sent = json.decode(prepare(backend, decode_chat(body), model=None))
    assert sent["store"] is True and sent["metadata"] == {"a": "b"}


def test_helpful_keys_go_only_where_they_are_known() -> None:
    fields: dict[str, Any] = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}
    fields["prompt_cache_options"] = {"mode": "explicit"}
    assert send("openai", **fields) == {"model": "m", **fields}
    assert send("vllm", **fields) == {"model": "m", "user": "u"}
    assert send("llamacpp", **fields) == {"model": "m"}


def test_the_limit_has_the_backends_name() -> None:
    assert send("openai", max_completion_tokens=5) == {"model": "m", "max_completion_tokens": 5}
    assert send("openai", max_tokens=5) == {"model": "m", "max_tokens": 5}
    both: dict[str, Any] = {"max_tokens": 9, "max_completion_tokens": 5}
    assert send("openai", **both) == {"model": "m", "max_completion_tokens": 5}
    for adapter in OLD_LIMIT:
        assert send(adapter, max_completion_tokens=5) == {"model": "m", "max_tokens": 5}
        assert send(adapter, max_tokens=5) == {"model": "m", "max_tokens": 5}
        assert send(adapter, **both) == {"model": "m", "max_tokens": 5}
    native = find("llamacpp-native")
    for key in both:
        body = json.encode({"model": "m", "messages": USER, key: 7})
        assert json.decode(prepare(native, decode_chat(body), model=None))["n_predict"] == 7


def test_logprobs_without_alternatives_ask_for_one() -> None:
    asked = {"model": "m", "logprobs": True, "top_logprobs": 1}
    assert send("openai", logprobs=True) == asked
    assert send("llamacpp", logprobs=True, top_logprobs=0) == asked
    assert send("vllm", logprobs=True, top_logprobs=None) == asked
    assert send("vllm", logprobs=True, top_logprobs=3) == {**asked, "top_logprobs": 3}
    assert send("vllm", logprobs=False) == {"model": "m", "logprobs": False}
    assert send("cortex", logprobs=True, max_tokens=1) == {**asked, "max_tokens": 1}


@pytest.mark.parametrize(
    ("key", "value"),
    [("audio", {"voice": "x"}), ("modalities", ["text", "audio"]), ("web_search_options", {})],
)
def test_what_a_backend_cannot_do_is_refused(key: str, value: Any) -> None:
    assert send("openai", **{key: value}) == {"model": "m", key: value}
    with pytest.raises(RequestError, match=r"not supported by llama\.cpp\. Leave") as error:
        send("llamacpp", **{key: value})
    assert (error.value.status, error.value.param) == (400, key)
    assert error.value.code == "unsupported_parameter"


def test_text_is_a_modality_of_all() -> None:
    assert send("llamacpp", modalities=["text"], audio=None) == {"model": "m"}


def test_a_request_that_passes_through_is_not_translated() -> None:
    fields: dict[str, Any] = {
        "max_completion_tokens": 5,
        "logprobs": True,
        "store": True,
        "seed": None,
    }
    assert send("cortex", oai_compat=False, **fields) == {"model": "m", **fields}
    assert send("cortex", model="x", oai_compat=False) == {"model": "x"}


def test_functions_become_tools() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert send("vllm", functions=[function]) == {"model": "m", "tools": tools}
    sent = send("vllm", functions=[function], function_call="auto", tools=[])
    assert sent == {"model": "m", "tools": tools, "tool_choice": "auto"}
    named = {"type": "function", "function": {"name": "f"}}
    sent = send("vllm", functions=[function], function_call={"name": "f"})
    assert sent == {"model": "m", "tools": tools, "tool_choice": named}
    with pytest.raises(RequestError, match="only allowed when 'tools' are not specified"):
        send("vllm", functions=[function], tools=tools)


def test_past_function_calls_become_tool_calls() -> None:
    call = {"name": "f", "arguments": "{}"}
    messages = [
        *USER,
        {"role": "assistant", "function_call": call},
        {"role": "function", "name": "f", "content": "1"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": None},
        {"role": "assistant", "content": "done", "function_call": None},
    ]
    body = json.encode({"model": "m", "messages": messages, "functions": [{"name": "f"}]})
    sent = json.decode(prepare(find("vllm"), decode_chat(body), model=None))

    def called(id: str) -> dict[str, Any]:
        calls = [{"id": id, "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    assert sent["messages"] == [
        *USER,
        called("call_1"),
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        called("call_2"),
        {"role": "tool", "tool_call_id": "call_2", "content": ""},
        {"role": "assistant", "content": "done"},
    ]


def test_backends_by_name() -> None:
    assert set(BACKENDS) >= {"openai", "llamacpp-native", *OLD_LIMIT}
    for name, backend in BACKENDS.items():
        assert backend.name == name and backend.versions
        for alias in (name, *backend.aliases, name.upper()):
            assert find(alias) is backend
    assert find("auto") is find("general")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 'vllm'\? Known: auto, openai, general, "):
        find("vlm")
    with pytest.raises(ValueError, match=r"'zzz'\. Known: auto"):
        find("zzz")


def test_llamacpp_is_sent_description_and_parameters_of_every_function() -> None:
    """b7376 answers 500 to a function without them."""
    empty = {"type": "object", "properties": {}}
    own = {"name": "g", "description": "d", "parameters": {}}
    bare: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
    told: dict[str, Any] = {"type": "function", "function": own}
    sent = send("llamacpp", tools=[bare, told])["tools"]
    full = {"name": "f", "description": "", "parameters": empty}
    assert sent == [{**bare, "function": full}, told]
    assert send("vllm", tools=[bare])["tools"] == [bare]
    assert send("llamacpp", functions=[{"name": "f"}])["tools"] == sent[:1]


@pytest.mark.parametrize("name", ["openai", "llamacpp", "vllm"])
def test_a_past_call_without_arguments_has_an_empty_object(name: str) -> None:
    """llama.cpp b11549 answers 500: "Failed to parse tool call arguments as JSON"."""

    def past(*arguments: str) -> dict[str, Any]:
        calls = [
            {"id": f"call_{at}", "type": "function", "function": {"name": "f", "arguments": one}}
            for at, one in enumerate(arguments)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    given = [*USER, past('{"a":1}'), past("", '{"b": 2.50}')]
    wanted = [*USER, past('{"a":1}'), past("{}", '{"b": 2.50}')]
    assert messages_sent(name, given) == wanted
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}
    sent = messages_sent(name, [*USER, old])
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def messages_sent(name: str, messages: list[dict[str, Any]]) -> Any:
    body = json.encode({"model": "m", "messages": messages})
    return json.decode(prepare(find(name), decode_chat(body), model=None))["messages"]
