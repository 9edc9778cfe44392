"""A response's parameters: types, bounds, and what only OpenAI's servers do, each with its text."""

from __future__ import annotations

import json
import sys
from typing import Any, cast

import pytest

from tests.responses_asked import CALL, FUNCTION, ask, body, chat, refuse
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.as_chat import make_chat
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import (
    INCLUDED,
    MOVED,
    REFUSED,
    parse_response,
)

SCHEMA = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}


@pytest.mark.parametrize("key", MOVED)
def test_a_chats_parameter_is_told_where_it_went(key: str) -> None:
    given: dict[str, Any] = {"max_tokens": 5}
    error = refuse(**{key: given.get(key, "x")})
    assert (error.param, error.code) == (key, "unsupported_parameter")
    assert error.message == (
        f"Unsupported parameter: '{key}'. In the Responses API, this parameter has moved to "
        f"'{MOVED[key]}'. Try again with the new parameter."
    )


@pytest.mark.parametrize("key", REFUSED)
def test_what_only_openai_does_is_refused_and_says_what_to_do(key: str) -> None:
    error = refuse(**{key: 1 if key == "n" else True})
    assert (error.param, error.code) == (key, "unsupported_parameter")
    assert error.message == f"Unsupported parameter: '{key}'. {REFUSED[key]}"
    assert chat(**{key: cast(Any, None)}).fields.keys() == {"model", "messages"}


def test_a_conversation_beside_a_previous_response_is_refused() -> None:
    error = refuse(conversation="conv_1", previous_response_id="resp_1")
    assert error.param == "conversation"


OUT_OF_BOUNDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"temperature": 2.5}, "temperature", "decimal_above_max_value",
     "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 "
     "instead."),
    ({"top_p": -1}, "top_p", "decimal_below_min_value",
     "Invalid 'top_p': decimal below minimum value. Expected a value >= 0, but got -1 instead."),
    ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value",
     "Invalid 'presence_penalty': decimal above maximum value. Expected a value <= 2, but got 3 "
     "instead."),
    ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value",
     "Invalid 'frequency_penalty': decimal below minimum value. Expected a value >= -2, but got -3 "
     "instead."),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value",
     "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 "
     "instead."),
    ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value",
     "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 15 "
     "instead."),
    ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value",
     "Invalid 'max_tool_calls': integer below minimum value. Expected a value >= 1, but got 0 "
     "instead."),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value",
     "Invalid value: 'loud'. Supported values are: 'low', 'medium', and 'high'."),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value",
     "Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', "
     "'xhigh', and 'max'."),
    ({"text": {"format": SCHEMA | {"name": "a b"}}}, "text.format.name", "invalid_value",
     "Invalid 'text.format.name': string does not match pattern. Expected a string that matches "
     "the pattern '^[a-zA-Z0-9_-]+$'."),
    ({"stream_options": {}}, "stream_options", "invalid_value",
     "The 'stream_options' parameter is only allowed when 'stream' is true."),
    ({"stop": ["a"] * 5}, "stop", "array_above_max_length",
     "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array "
     "with length 5 instead."),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "integer_above_max_value",
     "Invalid 'logit_bias.5': integer above maximum value. Expected a value <= 100, but got 101 "
     "instead."),
    ({"metadata": {"a": "b" * 513}}, "metadata.a", "string_above_max_length",
     "Invalid 'metadata.a': string too long. Expected a string with maximum length 512, but got a "
     "string with length 513 instead."),
    ({"safety_identifier": "a" * 65}, "safety_identifier", "string_above_max_length",
     "Invalid 'safety_identifier': string too long. Expected a string with maximum length 64, but "
     "got a string with length 65 instead."),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "param", "code", "text"), OUT_OF_BOUNDS)
def test_openais_bounds_hold(keys: dict[str, Any], param: str, code: str, text: str) -> None:
    error = refuse(**keys)
    assert (error.param, error.code, error.message) == (param, code, text)
    check_response(parse_response(body(**keys)), strict=False)


ALWAYS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"input": None}, "input", "missing_required_parameter",
     "Missing required parameter: 'input'. Send a string or an array of items, or "
     "'previous_response_id' to continue one."),
    ({"input": []}, "input", "empty_array",
     "Invalid 'input': empty array. Expected an array with minimum length 1, but got an empty "
     "array instead."),
    ({"input": 5}, "input", "invalid_type",
     "Invalid type for 'input': expected a string or an array of items, but got an integer "
     "instead."),
    ({"previous_response_id": ""}, "previous_response_id", "empty_string",
     "Invalid 'previous_response_id': empty string. Expected a string with minimum length 1, but "
     "got an empty string instead."),
    ({"instructions": ["a"]}, "instructions", "invalid_type",
     "Invalid type for 'instructions': expected a string, but got an array instead."),
    ({"include": "a"}, "include", "invalid_type",
     "Invalid type for 'include': expected an array of strings, but got a string instead."),
    ({"include": [5]}, "include[0]", "invalid_type",
     "Invalid type for 'include[0]': expected a string, but got an integer instead."),
    ({"include": [INCLUDED[0], "usage"]}, "include[1]", "invalid_value",
     "Invalid value: 'usage'. Supported values are: 'file_search_call.results', "
     "'web_search_call.results', 'web_search_call.action.sources', "
     "'message.input_image.image_url', 'computer_call_output.output.image_url', "
     "'code_interpreter_call.outputs', 'reasoning.encrypted_content', and "
     "'message.output_text.logprobs'."),
    ({"truncation": "middle"}, "truncation", "invalid_value",
     "Invalid value: 'middle'. Supported values are: 'auto' and 'disabled'."),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "invalid_value",
     "Invalid value: 'long'. Supported values are: 'auto', 'concise', and 'detailed'."),
    ({"reasoning": {"generate_summary": "long"}}, "reasoning.generate_summary", "invalid_value",
     "Invalid value: 'long'. Supported values are: 'auto', 'concise', and 'detailed'."),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "invalid_value",
     "Invalid value: 'pro'. Supported value is: 'standard'."),
    ({"reasoning": {"context": "current_turn"}}, "reasoning.context", "invalid_value",
     "Invalid value: 'current_turn'. Supported values are: 'auto' and 'all_turns'."),
    ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens", "unknown_parameter",
     "Unknown parameter: 'reasoning.max_tokens'. 'reasoning' may hold effort, summary, "
     "generate_summary, context, mode."),
    ({"text": {"stop": "a"}}, "text.stop", "unknown_parameter",
     "Unknown parameter: 'text.stop'. 'text' may hold format, verbosity."),
    ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage",
     "unknown_parameter", "Unknown parameter: 'stream_options.include_usage'. 'stream_options' may "
     "hold include_obfuscation."),
    ({"text": {"format": {"type": "json_schema", "json_schema": {}}}}, "text.format.json_schema",
     "unknown_parameter", "Unknown parameter: 'text.format.json_schema'. 'text.format' may hold "
     "type, name, description, schema, strict."),
    ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter",
     "Missing required parameter: 'text.format.type'. It is one of text, json_object, "
     "json_schema."),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value",
     "Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'."),
    ({"text": {"format": SCHEMA | {"name": None}}}, "text.format.name",
     "missing_required_parameter", "Missing required parameter: 'text.format.name'. It may hold "
     "a-z, A-Z, 0-9, underscores and dashes."),
    ({"text": {"format": SCHEMA | {"schema": None}}}, "text.format.schema",
     "missing_required_parameter", "Missing required parameter: 'text.format.schema'. Send a JSON "
     "schema."),
    ({"text": {"format": SCHEMA | {"schema": []}}}, "text.format.schema", "invalid_type",
     "Invalid type for 'text.format.schema': expected an object, but got an array instead."),
    ({"text": {"format": 5}}, "text.format", "invalid_type",
     "Invalid type for 'text.format': expected an object, but got an integer instead."),
    ({"seed": 2**63}, "seed", "integer_above_max_value",
     "Invalid 'seed': integer above maximum value. Expected a value <= 9223372036854775807, but "
     "got 9223372036854775808 instead."),
    ({"metadata": {"a": 5}}, "metadata.a", "invalid_type",
     "Invalid type for 'metadata.a': expected a string, but got an integer instead."),
    ({"tools": FUNCTION}, "tools", "invalid_type",
     "Invalid type for 'tools': expected an array of objects, but got an object instead."),
    ({"store": "yes"}, "store", "invalid_type",
     "Invalid type for 'store': expected a boolean, but got a string instead."),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "param", "code", "text"), ALWAYS)
@pytest.mark.parametrize("strict", [True, False])
def test_what_nothing_can_be_made_of_is_refused_always(
    keys: dict[str, Any], param: str, code: str, text: str, strict: bool
) -> None:
    error = refuse(strict=strict, **keys)
    assert (error.param, error.code, error.message) == (param, code, text)


def test_a_model_is_needed_where_openais_bounds_hold() -> None:
    error = refuse(model=None)
    assert error.message == "you must provide a model parameter"
    assert chat(model=None, strict=False).model == ""


def test_what_is_no_json_object_is_refused() -> None:
    for data, text in {
        b"[]": "The body of the request has to be a JSON object, but it is an array. Send "
        '{"model": ..., "input": ...}.',
        b'{"model": "a", "input": [{"role": "user", "content": "\\ud800"}]}': "The body of the "
        "request could not be parsed as JSON",
        b'{"model": "a", "input": [{"x": 1e999}]}': "Invalid value for 'input[0]': number out of "
        "range. Send a number of ordinary size.",
    }.items():
        with pytest.raises(RequestError) as raised:
            parse_response(data)
        assert raised.value.status == 400
        assert raised.value.message.startswith(text)


def test_each_value_may_be_null_and_a_good_one_passes() -> None:
    keys: dict[str, Any] = {
        "instructions": "A",
        "previous_response_id": "resp_1",
        "include": list(INCLUDED),
        "reasoning": {"effort": "xhigh", "summary": "concise", "context": "auto"},
        "text": {"format": SCHEMA, "verbosity": "high"},
        "max_output_tokens": 16,
        "max_tool_calls": 1,
        "truncation": "auto",
        "stream": True,
        "stream_options": {"include_obfuscation": True},
        "metadata": {"a": "b"},
        "prompt_cache_options": {"ttl": "30m"},
        "prompt_cache_retention": "24h",
        "moderation": {"model": "a"},
        "client_metadata": {"a": {"b": 1}},
        "tools": [],
        "tool_choice": "none",
        "store": True,
    }
    request = ask(**keys)
    assert (request.store, request.stream, request.previous_response_id) == (True, True, "resp_1")
    assert request.fields.keys() == {"model", "input", *keys}
    empty = ask(**dict.fromkeys(keys, cast(Any, None)))
    assert (empty.store, empty.stream, empty.previous_response_id) == (None, None, None)
    assert (empty.oai_compat, ask(oai_compat=None).oai_compat) == (True, True)


def test_what_passes_through_is_the_backends_affair() -> None:
    keys: dict[str, Any] = {
        "background": True,
        "tools": [{"type": "mcp"}],
        "input": [{"type": "compaction"}],
    }
    request = ask(oai_compat=False, **keys, temperature=7)
    assert (request.oai_compat, request.items, request.references) == (False, [], ())


@pytest.mark.parametrize("temperature", [1, 3])
def test_a_chat_does_not_keep_the_body(temperature: int) -> None:
    keys: dict[str, Any] = {"tools": [FUNCTION], "top_k": 2, "text": {"format": SCHEMA}}
    data = body(temperature=temperature, tool_choice="auto", **keys)
    before = sys.getrefcount(data)
    request = parse_response(data)
    made = make_chat(request, [], {}, suffix="01234567", clock=int, stored=True)
    assert sys.getrefcount(data) > before
    del request
    assert sys.getrefcount(data) == before
    assert (made.refusal is None) == (temperature == 1)


def test_it_is_told_what_was_asked() -> None:
    """Every key that a response repeats, with OpenAI's defaults."""
    plain = {key: json.loads(bytes(raw)) for key, raw in chat(stored=False).facts.echo.items()}
    assert plain == {
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "user": None,
        "metadata": {},
    }
    sent: dict[str, Any] = {
        "instructions": "A",
        "max_output_tokens": 20,
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "previous_response_id": "resp_1",
        "presence_penalty": 1,
        "frequency_penalty": -1.50,
        "prompt_cache_key": "a",
        "safety_identifier": "b",
        "temperature": 0,
        "tool_choice": {"type": "function", "name": "get_time"},
        "top_logprobs": 3,
        "top_p": 0.5,
        "user": "u",
        "metadata": {"a": "b"},
    }
    shown = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {
            "format": SCHEMA | {"description": None, "strict": False},
            "verbosity": "low",
        },
        "tools": [FUNCTION | {"strict": None}],
    }
    made = chat(
        **sent,
        history=[CALL, {"type": "function_call_output", "call_id": "call_1", "output": ""}],
        reasoning={"effort": "low", "generate_summary": "auto"},
        text={"format": SCHEMA, "verbosity": "low"},
        tools=[FUNCTION],
        truncation="auto",
        service_tier="priority",
    )
    echo = {key: json.loads(bytes(raw)) for key, raw in made.facts.echo.items()}
    assert echo == plain | sent | shown | {"store": True, "truncation": "auto"}
    assert bytes(made.facts.echo["frequency_penalty"]) == b"-1.5"
    assert bytes(chat(temperature=1).facts.echo["temperature"]) == b"1"
