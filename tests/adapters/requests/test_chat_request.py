"""The request: what is accepted, what is refused and with which words, and its `Exchange`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.errors import RequestError, error_json
from wellspoken.adapters.requests.shapes import ChatRequest, Model, ModelList

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def body(**fields: Any) -> bytes:
    return json.encode({"model": "m", "messages": [USER], **fields})


def refused(data: bytes, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        decode_chat(data, **options)
    error = raised.value
    assert (error.status, error.type, error.headers) == (400, "invalid_request_error", {})
    answer = json.decode(error.body())["error"]
    assert answer == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    return error


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"n": 128, "temperature": 0, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2.0},
    {"logprobs": True, "top_logprobs": 0},
    {"logprobs": True, "top_logprobs": 20},
    {"stop": "a"},
    {"stop": ["a", "b", "c", "d"]},
    {"stop": []},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"logit_bias": {"50256": -100, "1": 100.0}},
    {"metadata": {"k" * 64: "v" * 512}},
    {"metadata": {str(number): "" for number in range(16)}},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
    {"tools": [{"type": "custom", "custom": {"name": "c"}}]},
    {"functions": [{"name": "f"}], "function_call": {"name": "f"}},
    {"functions": [{"name": "f"}], "function_call": "none"},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}},
    {"response_format": {"type": "json_object", "schema": {}}},
    {"response_format": {"type": "structural_tag"}},
    {"seed": -(2**63), "user": "u", "service_tier": "flex", "reasoning_effort": "low"},
    {"fields": 1, "guided_json": {"a": None}, "top_k": -1, "safety_identifier": "s" * 64},
    {"messages": [USER] * 500},
]


@pytest.mark.parametrize("fields", ACCEPTED)
def test_accepted(fields: dict[str, Any]) -> None:
    for bounds in ("openai", "backend"):
        request = decode_chat(body(**fields), bounds=bounds)
        assert list(request.fields)[:2] == ["model", "messages"]
        decoded = {key: json.decode(value) for key, value in request.fields.items()}
        assert decoded == json.decode(body(**fields))


def test_null_is_accepted_for_every_optional() -> None:
    names = set(ChatRequest.__struct_fields__) - {"model", "messages", "fields"}
    request = decode_chat(body(**dict.fromkeys(names)))
    assert {name for name in names if getattr(request, name) is not None} == {"oai_compat"}
    assert request.oai_compat is True
    assert decode_chat(body(oai_compat=False)).oai_compat is False


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"{", "input data was truncated"),
        (b'{"model":"\\ud800","messages":[]}', "lacks its other half"),
        (b'{"zz":"\\udc00"}', "lacks its other half"),
        (b'{"zz":"\xff"}', "byte 7 is not UTF-8"),
        (b'{"model":"\xff"}', "byte 10 is not UTF-8"),
        (b'{"zz":' + b"[" * 9999, "nested too deeply"),
        (b'{"messages":' + b"[" * 9999, "nested too deeply"),
        (b'{"temperature":NaN}', "invalid character (byte 15)"),
        (b'{"zz":-Infinity}', "invalid character"),
        (b'{"zz":01}', "invalid number"),
        (b'{"zz":1,}', "trailing comma"),
        (b"{} {}", "trailing characters"),
        (b"\xef\xbb\xbf{}", "invalid character (byte 0)"),
        ('{"model":"m"}'.encode("utf-16"), "not UTF-8"),
    ],
)
def test_a_body_that_is_not_json(data: bytes, why: str) -> None:
    error = refused(data)
    assert why in error.message and "Send one JSON object" in error.message
    assert (error.param, error.code) == (None, "invalid_json")


@pytest.mark.parametrize(
    ("data", "got"), [(b"[]", "an array"), (b"1", "an integer"), (b"null", "null")]
)
def test_a_body_that_is_no_object(data: bytes, got: str) -> None:
    error = refused(data)
    assert f"but it is {got}" in error.message
    assert (error.param, error.code) == (None, "invalid_type")


@pytest.mark.parametrize(
    ("fields", "param", "expected", "got"),
    [
        ({"temperature": "1"}, "temperature", "a number", "a string"),
        ({"temperature": True}, "temperature", "a number", "a boolean"),
        ({"n": 1.0}, "n", "an integer", "a decimal number"),
        ({"n": True}, "n", "an integer", "a boolean"),
        ({"model": 1}, "model", "a string", "an integer"),
        ({"messages": "x"}, "messages", "an array of objects", "a string"),
        ({"messages": None}, "messages", "an array of objects", "null"),
        ({"messages": [1]}, "messages[0]", "an object", "an integer"),
        ({"messages": [USER, {"role": 1}]}, "messages[1].role", "a string", "an integer"),
        (
            {"messages": [{"role": "user", "content": 1}]},
            "messages[0].content",
            "a string or an array of content parts",
            "an integer",
        ),
        ({"stop": 1}, "stop", "a string or an array of strings", "an integer"),
        ({"stop": ["a", None]}, "stop[1]", "a string", "null"),
        ({"stream": 1}, "stream", "a boolean", "an integer"),
        ({"stream_options": True}, "stream_options", "an object", "a boolean"),
        ({"tools": {}}, "tools", "an array of objects", "an object"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "an object",
            "an array",
        ),
        ({"tool_choice": 1}, "tool_choice", "a string or an object", "an integer"),
        ({"logit_bias": 1}, "logit_bias", "an object of token ids and numbers", "an integer"),
        ({"metadata": {"a": 1}, "store": True}, "metadata.a", "a string", "an integer"),
        ({"metadata": {"a": None}, "store": True}, "metadata.a", "a string", "null"),
        ({"modalities": ["text", 1]}, "modalities[1]", "a string", "an integer"),
        ({"oai_compat": "no"}, "oai_compat", "a boolean", "a string"),
        ({"seed": 1.5}, "seed", "an integer", "a decimal number"),
    ],
)
def test_wrong_types(fields: dict[str, Any], param: str, expected: str, got: str) -> None:
    for bounds in ("openai", "backend"):
        error = refused(body(**fields), bounds=bounds)
        assert (error.param, error.code) == (param, "invalid_type")
        assert error.message == (
            f"Invalid type for '{param}': expected {expected}, but got {got} instead."
        )


@pytest.mark.parametrize(
    ("fields", "param", "code", "text"),
    [
        ({"n": 0}, "n", "integer_below_min_value", ">= 1, but got 0"),
        ({"n": 129}, "n", "integer_above_max_value", "<= 128, but got 129"),
        ({"seed": 2**63}, "seed", "integer_above_max_value", "9223372036854775807"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value", "20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "integer_below_min_value", "0"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value", ">= 1"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "integer_below_min_value", ">= 1"),
        ({"temperature": 2.5}, "temperature", "decimal_above_max_value", "<= 2, but got 2.5"),
        ({"temperature": -1}, "temperature", "decimal_below_min_value", ">= 0, but got -1"),
        ({"top_p": 1.01}, "top_p", "decimal_above_max_value", "<= 1"),
        ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value", "<= 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value", ">= -2"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length", "length 4, but got an array"),
        ({"top_logprobs": 1}, "top_logprobs", "invalid_value", "'logprobs' is true"),
        ({"stream_options": {}}, "stream_options", "invalid_value", "'stream' is true"),
        ({"messages": []}, "messages", "empty_array", "minimum length 1"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value", "token ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value", "non-negative"),
        ({"logit_bias": {"1": "1"}}, "logit_bias.1", "invalid_type", "a number"),
        ({"logit_bias": {"1": True}}, "logit_bias.1", "invalid_type", "a boolean"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "integer_above_max_value", "<= 100"),
        ({"logit_bias": {"1": -100.5}}, "logit_bias.1", "decimal_below_min_value", ">= -100"),
        ({"logit_bias": [[1, 1]]}, "logit_bias", "invalid_type", "an object"),
        (
            {"metadata": {str(number): "" for number in range(17)}},
            "metadata",
            "object_above_max_properties",
            "at most 16",
        ),
        ({"metadata": {"k" * 65: ""}}, "metadata", "property_name_above_max_length", "length 64"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length", "length 512"),
        (
            {"safety_identifier": "s" * 65},
            "safety_identifier",
            "string_above_max_length",
            "maximum length 64, but got a string with length 65",
        ),
        ({"response_format": {}}, "response_format.type", "missing_required_parameter", "one of"),
        ({"response_format": {"type": "x"}}, "response_format.type", "invalid_value", "and 'json_"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
            "name and schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
            "invalid_value",
            "pattern",
        ),
        ({"tools": [TOOL] * 129}, "tools", "array_above_max_length", "128"),
        ({"tools": [{}]}, "tools[0].type", "missing_required_parameter", "'function'"),
        (
            {"tools": [TOOL, {"type": "x"}]},
            "tools[1].type",
            "invalid_value",
            "Supported values are: 'function' and 'custom'.",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter", ""),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom", "missing_required_parameter", ""),
        (
            {"tools": [{"type": "function", "function": {}}]},
            "tools[0].function.name",
            "missing_required_parameter",
            "a-z",
        ),
        ({"functions": []}, "functions", "empty_array", ""),
        ({"functions": [{"name": "f"}] * 129}, "functions", "array_above_max_length", ""),
        ({"functions": [{"name": ""}]}, "functions[0].name", "empty_string", "an empty string"),
        ({"functions": [{"name": "f" * 65}]}, "functions[0].name", "string_above_max_length", ""),
        ({"function_call": "x"}, "function_call", "invalid_value", "'none' and 'auto'"),
        ({"function_call": {}}, "function_call.name", "missing_required_parameter", ""),
        ({"function_call": {"name": "f"}}, "function_call", "invalid_value", "'functions'"),
        ({"tool_choice": "x"}, "tool_choice", "invalid_value", "'none', 'auto', and 'required'"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value", "'tools' are specified"),
        ({"tool_choice": {}}, "tool_choice.type", "missing_required_parameter", ""),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type", "invalid_value", "'custom'"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice", "invalid_value", "'tools'"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice.function.name",
            "missing_required_parameter",
            "Name one",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "invalid_value",
            "'g' not found in 'tools'",
        ),
    ],
)
def test_values_out_of_bounds(fields: dict[str, Any], param: str, code: str, text: str) -> None:
    error = refused(body(**fields))
    assert (error.param, error.code) == (param, code)
    assert text in error.message


def test_a_request_without_a_model() -> None:
    for data in (b'{"messages":[]}', b'{"model":"","messages":[]}', b'{"model":null}', b"{}"):
        error = refused(data)
        assert error.message == "you must provide a model parameter"
        assert (error.param, error.code) == (None, None)
    assert decode_chat(b'{"messages":[]}', bounds="backend").model == ""


def test_a_request_without_messages() -> None:
    for bounds in ("openai", "backend"):
        error = refused(b'{"model":"m"}', bounds=bounds)
        assert error.message.startswith("Missing required parameter: 'messages'.")
        assert (error.param, error.code) == ("messages", "missing_required_parameter")


def test_numbers_that_no_machine_holds() -> None:
    for number in (b"1e400", b"9" * 6000):
        error = refused(b'{"model":"m","messages":[],"temperature":' + number + b"}")
        assert (error.param, error.code) == ("temperature", "invalid_value")


def test_a_long_value_is_quoted_in_short() -> None:
    error = refused(body(messages=[{"role": "x" * 10_000, "content": ""}]))
    assert len(error.message) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["a"] * 5},
        {"max_tokens": -1},
        {"temperature": 5, "top_p": 2},
        {"messages": []},
        {"top_logprobs": -1},
        {"logit_bias": [[1, False]]},
        {"tools": [{"type": "mcp"}], "tool_choice": {"type": "x"}},
        {"response_format": {"type": "regex_like"}},
        {"metadata": {"k" * 100: "v" * 1000}},
        {"metadata": {"user": {"id": 1}, "n": None}},  # Open WebUI's
    ],
)
def test_a_backend_may_have_wider_bounds(fields: dict[str, Any]) -> None:
    decode_chat(body(**fields), bounds="backend")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 129}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["a"] * 1025}, "stop"),
        ({"metadata": {"a": 1}, "store": True}, "metadata.a"),
    ],
)
def test_what_protects_any_backend(fields: dict[str, Any], param: str) -> None:
    assert refused(body(**fields), bounds="backend").param == param


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_value_of_any_key_is_answered(value: object) -> None:
    for key in ChatRequest.__struct_fields__:
        data = json.encode({"model": "m", "messages": [USER], key: value})
        try:
            decode_chat(data)
        except RequestError as error:
            assert error.status == 400 and error.message


@given(st.binary(max_size=60))
def test_any_bytes_are_answered(data: bytes) -> None:
    with pytest.raises(RequestError):
        decode_chat(data)


def test_error_json_has_four_keys_and_survives_half_a_surrogate() -> None:
    expected = b'{"error":{"message":"m","type":"t","param":null,"code":null}}'
    assert error_json("m", "t", None, None) == expected
    expected = b'{"error":{"message":"m?","type":"t","param":null,"code":"c"}}'
    assert error_json("m\ud800", "t", None, "c") == expected


def test_an_error_carries_its_answer() -> None:
    headers = {"retry-after": "1"}
    error = RequestError("m", status=429, type="t", param="p", code="c", headers=headers)
    assert (error.status, error.headers) == (429, headers)
    assert str(error) == "m"
    assert error.body() == b'{"error":{"message":"m","type":"t","param":"p","code":"c"}}'


def test_models() -> None:
    models = ModelList(data=[Model(id="m", created=7, owned_by="o")])
    assert json.encode(models) == (
        b'{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"o"}]}'
    )
