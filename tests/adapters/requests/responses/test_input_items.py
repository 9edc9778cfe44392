"""The items of a response's input: what each may be, told with its place in OpenAI's words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.linear import linear
from tests.responses_asked import CALL, OUTPUT, body, chat, refuse
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.input_items import CHECKS
from wellspoken.adapters.requests.responses.response_request import parse_response

KINDS = (
    "'message', 'function_call', 'function_call_output', 'custom_tool_call', "
    "'custom_tool_call_output', 'reasoning', and 'item_reference'"
)
CUSTOM = {"type": "custom_tool_call", "call_id": "call_1", "name": "sh", "input": "ls"}


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def without(item: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != key}


MALFORMED: list[tuple[Any, str, str, str]] = [
    # the item; the place after "input[1]"; the code; the text, in which {} is the whole place
    (
        5,
        "",
        "invalid_type",
        "Invalid type for '{}': expected an object, but got an integer instead.",
    ),
    (None, "", "invalid_type", "Invalid type for '{}': expected an object, but got null instead."),
    (
        {},
        ".type",
        "missing_required_parameter",
        f"Missing required parameter: '{{}}'. It is one of {', '.join(CHECKS)}.",
    ),
    (
        {"type": 5},
        ".type",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an integer instead.",
    ),
    (
        {"type": "web_search_call"},
        ".type",
        "invalid_value",
        f"Invalid value: 'web_search_call'. Supported values are: {KINDS}.",
    ),
    (
        {"type": "item_reference"},
        ".id",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        {"id": ""},
        ".id",
        "empty_string",
        "Invalid '{}': empty string. Expected a string with minimum "
        "length 1, but got an empty string instead.",
    ),
    (
        {"id": 5},
        ".id",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an integer instead.",
    ),
    (
        CALL | {"id": "a" * 65},
        ".id",
        "string_above_max_length",
        "Invalid '{}': string too long. "
        "Expected a string with maximum length 64, but got a string with length 65 instead.",
    ),
    (
        CALL | {"status": "done"},
        ".status",
        "invalid_value",
        "Invalid value: 'done'. Supported values "
        "are: 'in_progress', 'completed', and 'incomplete'.",
    ),
    (
        {"content": "Hi"},
        ".role",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        {"role": "tool", "content": "Hi"},
        ".role",
        "invalid_value",
        "Invalid value: 'tool'. Supported "
        "values are: 'user', 'assistant', 'system', and 'developer'.",
    ),
    (
        {"role": "user"},
        ".content",
        "missing_required_parameter",
        "Missing required parameter: '{}'. Send a string or an array of content parts.",
    ),
    (
        {"role": "user", "content": 5},
        ".content",
        "invalid_type",
        "Invalid type for '{}': expected a "
        "string or an array of content parts, but got an integer instead.",
    ),
    (
        said(),
        ".content",
        "empty_array",
        "Invalid '{}': empty array. Expected an array with minimum "
        "length 1, but got an empty array instead.",
    ),
    (
        said("Hi"),
        ".content[0]",
        "invalid_type",
        "Invalid type for '{}': expected an object, but got a string instead.",
    ),
    (
        said({"text": "Hi"}),
        ".content[0].type",
        "missing_required_parameter",
        "Missing required "
        "parameter: '{}'. It is one of input_text, input_image, input_file, input_audio.",
    ),
    (
        said({"type": "text", "text": "Hi"}),
        ".content[0].type",
        "invalid_value",
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'input_file', "
        "and 'input_audio'.",
    ),
    (
        said({"type": "input_text", "text": "Hi"}, role="assistant"),
        ".content[0].type",
        "invalid_value",
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
    ),
    (
        said({"type": "input_image", "image_url": "a"}, role="system"),
        ".content[0].type",
        "invalid_value",
        "Invalid value: 'input_image'. Supported value is: 'input_text'.",
    ),
    (
        said({"type": "input_text"}),
        ".content[0].text",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        said({"type": "refusal", "refusal": 5}, role="assistant"),
        ".content[0].refusal",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an integer instead.",
    ),
    (
        said({"type": "input_image"}),
        ".content[0].image_url",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        said({"type": "input_image", "image_url": {"url": "a"}}),
        ".content[0].image_url",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an object instead.",
    ),
    (
        said({"type": "input_image", "image_url": "a", "detail": "best"}),
        ".content[0].detail",
        "invalid_value",
        "Invalid value: 'best'. Supported values are: 'low', 'high', 'auto', and 'original'.",
    ),
    (
        said({"type": "input_image", "file_id": "file-1"}),
        ".content[0].file_id",
        "unsupported_parameter",
        "The '{}' parameter is not supported: this proxy keeps and fetches no "
        "files. Send 'image_url': its URL, or the image itself as a data URL.",
    ),
    (
        said({"type": "input_file", "file_id": "file-1"}),
        ".content[0].file_id",
        "unsupported_parameter",
        "The '{}' parameter is not supported: this proxy keeps and fetches no "
        "files. Send 'file_data' and 'filename'.",
    ),
    (
        said({"type": "input_file", "file_url": "http://a"}),
        ".content[0].file_url",
        "unsupported_parameter",
        "The '{}' parameter is not supported: this proxy keeps and fetches no "
        "files. Send 'file_data' and 'filename'.",
    ),
    (
        said({"type": "input_file"}),
        ".content[0].file_data",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        said({"type": "input_file", "file_data": "a", "filename": 5}),
        ".content[0].filename",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an integer instead.",
    ),
    (
        said({"type": "input_audio"}),
        ".content[0].input_audio",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is an object with data and format.",
    ),
    (
        said({"type": "input_audio", "input_audio": "a"}),
        ".content[0].input_audio",
        "invalid_type",
        "Invalid type for '{}': expected an object, but got a string instead.",
    ),
    (
        said({"type": "input_audio", "input_audio": {"data": "a"}}),
        ".content[0].input_audio.format",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        without(CALL, "call_id"),
        ".call_id",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        CALL | {"call_id": ""},
        ".call_id",
        "empty_string",
        "Invalid '{}': empty string. Expected a "
        "string with minimum length 1, but got an empty string instead.",
    ),
    (
        CALL | {"call_id": "c" * 65},
        ".call_id",
        "string_above_max_length",
        "Invalid '{}': string too "
        "long. Expected a string with maximum length 64, but got a string with length 65 instead.",
    ),
    (
        without(CALL, "name"),
        ".name",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        CALL | {"arguments": {}},
        ".arguments",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an object instead.",
    ),
    (
        CALL | {"namespace": ""},
        ".namespace",
        "empty_string",
        "Invalid '{}': empty string. Expected a "
        "string with minimum length 1, but got an empty string instead.",
    ),
    (
        without(CUSTOM, "input"),
        ".input",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        without(OUTPUT, "output"),
        ".output",
        "missing_required_parameter",
        "Missing required parameter: '{}'. Send a string or an array of content parts.",
    ),
    (
        OUTPUT | {"output": {}},
        ".output",
        "invalid_type",
        "Invalid type for '{}': expected a string "
        "or an array of content parts, but got an object instead.",
    ),
    (
        OUTPUT | {"output": [{"type": "output_text", "text": "a"}]},
        ".output[0].type",
        "invalid_value",
        "Invalid value: 'output_text'. Supported values are: 'input_text', "
        "'input_image', and 'input_file'.",
    ),
    (
        {"type": "reasoning"},
        ".summary",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is an array, which may be empty.",
    ),
    (
        {"type": "reasoning", "summary": "Hm."},
        ".summary",
        "invalid_type",
        "Invalid type for '{}': expected an array of objects, but got a string instead.",
    ),
    (
        {"type": "reasoning", "summary": [], "content": [{"type": "summary_text", "text": "a"}]},
        ".content[0].type",
        "invalid_value",
        "Invalid value: 'summary_text'. Supported value is: 'reasoning_text'.",
    ),
    (
        {"type": "reasoning", "summary": [{"type": "summary_text"}]},
        ".summary[0].text",
        "missing_required_parameter",
        "Missing required parameter: '{}'. It is a string.",
    ),
    (
        {"type": "reasoning", "summary": [], "encrypted_content": 5},
        ".encrypted_content",
        "invalid_type",
        "Invalid type for '{}': expected a string, but got an integer instead.",
    ),
]


@pytest.mark.parametrize(("item", "place", "code", "text"), MALFORMED)
def test_a_malformed_item_is_told_by_its_place(item: Any, place: str, code: str, text: str) -> None:
    error = refuse(input=[{"role": "user", "content": "Hi"}, item])
    param = f"input[1]{place}"
    assert (error.param, error.code) == (param, code)
    assert error.message == text.replace("{}", param)


def test_lengths_are_openais_alone() -> None:
    item = CALL | {"call_id": "c" * 65}
    assert parse_response(body(input=[item])).items == [item]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": ""},
        {"type": "message", "role": "assistant", "content": [], "phase": "commentary"},
        {"type": None, "role": "developer", "content": "Hi", "status": None, "id": None},
        {"id": "msg_1"},
        {"type": "item_reference", "id": "rs_1"},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        OUTPUT | {"output": [], "name": "get_time", "caller": None},
    ],
)
def test_what_clients_leave_out_or_add_is_taken(item: dict[str, Any]) -> None:
    request = parse_response(body(input=[item]))
    assert request.items == [item]
    assert request.references == ((item["id"],) if set(item) <= {"type", "id"} else ())


def test_an_item_is_referred_to_once() -> None:
    reference = {"type": "item_reference", "id": "rs_1"}
    with pytest.raises(RequestError) as caught:
        parse_response(body(input=[reference, {"id": "rs_2"}, {"id": "rs_1"}]))
    assert caught.value.param == "input"
    assert caught.value.message == (
        "Duplicate item found with id rs_1. Remove duplicate items from your input and try again."
    )


def test_a_body_that_nests_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(600):
        deep = [deep]
    with pytest.raises(RequestError, match="nested too deeply, and 500 levels are the most"):
        parse_response(body(input=[{"role": "user", "content": "Hi", "x": deep}]))


def test_thousands_of_items_take_linear_time() -> None:
    turn = [{"role": "user", "content": "Hi"}, CALL, OUTPUT]
    made = linear(lambda times: chat(input=turn * times, history=turn * times), 2_000)
    assert len(made.messages) == len(made.facts.paths) == 12_000
