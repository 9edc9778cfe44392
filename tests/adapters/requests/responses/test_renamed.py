"""Errors about the chat request name what the client sent."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.responses_asked import CALL, FUNCTION, OUTPUT, chat
from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import ResponseFacts
from wellspoken.adapters.requests import chat_bounds, errors
from wellspoken.adapters.requests.caps import Caps, apply_caps
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.as_chat import ResponseChat
from wellspoken.adapters.requests.responses.renamed import rename_error, rename_fault
from wellspoken.adapters.servers.parameters import Support, find_rows, refuse
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.servers.registry import BACKENDS, OPENAI

CHATS = re.compile(
    r"max_completion_tokens|max_tokens|response_format|reasoning_effort|messages\[|\bfunctions\b"
    r"|function_call\b|\.function\b|allowed_tools\.|'(messages|verbosity|logprobs|image_url|file)'"
    r"|^(messages|verbosity|logprobs|n)$"
)
"""Names that a chat request has and a response's has not."""

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
FILE = {"type": "input_file", "file_data": "data:a/b;base64,AA==", "filename": "a"}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
SCHEMA = {"type": "json_schema", "name": "a b", "schema": {}}

EVERYTHING: list[dict[str, Any]] = [
    {"text": {"format": {"type": "json_object"}, "verbosity": "low"}, "grammar": "x"},
    {"text": {"format": SCHEMA, "verbosity": "high"}, "json_schema": {}},
    {"reasoning": {"effort": "high"}, "max_output_tokens": -1, "seed": 3, "temperature": 3},
    {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [FUNCTION], "tool_choice": "none", "top_p": 7},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "get_time"}},
    {"tools": [FUNCTION, FUNCTION | {"name": "a b"}], "tool_choice": "required"},
    {
        "tools": [FUNCTION],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_time"}],
        },
    },
    {"top_logprobs": 3000, "return_token_ids": True},
    {"top_logprobs": -4, "max_output_tokens": 5000},
    {"include": ["message.output_text.logprobs"], "return_token_ids": True},
    {"logit_bias": {"a": 3, "b": 4}, "stop": ["a"] * 5},
    {"logit_bias": {"5000000": 700}, "presence_penalty": 7, "frequency_penalty": -7},
    {"instructions": "A", "input": [{"role": "developer", "content": "Hi"}]},
    {"input": [{"role": "user", "content": [IMAGE, FILE, AUDIO]}]},
    {"input": [THOUGHT, CALL, OUTPUT | {"output": [IMAGE]}]},
    {"input": [THOUGHT, {"role": "assistant", "content": "Hi"}, CALL, OUTPUT]},
    {"metadata": {"a" * 65: "b"}, "safety_identifier": "a" * 65, "user": "u", "moderation": {}},
    {"prompt_cache_key": "a", "service_tier": "auto", "stream": True, "stop": "a"},
    {"chat_template": "a", "n_predict": 7000},
]
TIGHT = Caps(max_tokens=100, n_probs=2, logit_bias=1)


def all_errors(made: ResponseChat) -> list[RequestError]:
    """Return what bounds, caps and backends have to say of a request."""
    found = []

    def note(act: Any, *given: Any, **more: Any) -> None:
        try:
            act(*given, **more)
        except RequestError as error:
            found.append(error)

    note(chat_bounds.check, made, strict=True)
    note(apply_caps, made, TIGHT, 1000)
    for backend in BACKENDS.values():
        if backend.chat_table:
            note(prepare, backend, made, model=None)
    for name, param in find_rows(made, OPENAI.chat_table).items():
        note(refuse, {name: param}, {name: Support("refused")}, "this server")
    return found


@pytest.mark.parametrize("keys", EVERYTHING)
def test_no_error_names_what_only_a_chat_has(keys: dict[str, Any]) -> None:
    made = chat(strict=False, **keys)
    found = all_errors(made)
    assert found
    for error in found:
        renamed = rename_error(error, made.facts)
        assert not CHATS.search(renamed.message), (error.message, renamed.message)
        assert renamed.param is None or not CHATS.search(renamed.param), (
            error.param,
            error.message,
        )
        assert (renamed.status, renamed.code) == (error.status, error.code)


FACTS = ResponseFacts(
    suffix="01234567",
    echo={},
    clock=lambda: 0,
    paths=("instructions", "", "input[0]", "input[2]", "input[3].output"),
    tool_paths=("tools[1]", "tools[2].tools[0]"),
)


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        (None, None),
        ("temperature", "temperature"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("max_new_tokens", "max_new_tokens"),
        ("response_format", "text.format"),
        ("response_format.type", "text.format.type"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("reasoning_effort", "reasoning.effort"),
        ("verbosity", "text.verbosity"),
        ("logprobs", "include"),
        ("top_logprobs", "top_logprobs"),
        ("messages", "input"),
        ("messages[0].role", "instructions"),
        ("messages[1].content[3]", "previous_response_id"),
        ("messages[2].role", "input[0].role"),
        ("messages[2].content[1]", "input[0].content[1]"),
        ("messages[2].content[1].image_url.url", "input[0].content[1].image_url"),
        ("messages[2].content[1].input_audio.data", "input[0].content[1].input_audio.data"),
        ("messages[2].content[1].file", "input[0].content[1]"),
        ("messages[3].tool_calls[0].function.name", "input[2]"),
        ("messages[3].reasoning_content", "input[2]"),
        ("messages[4].content", "input[3].output"),
        ("messages[5].content", "input"),
        ("messages.3.content", "input[2].content"),
        ("messages.3.content.0.text", "input[2].content"),
        ("tools[0].function.name", "tools[1].name"),
        ("tools[1].function.name", "tools[2].tools[0].name"),
        ("tools[9].function.name", "tools.name"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("tool_choice.allowed_tools.mode", "tool_choice.mode"),
    ],
)
def test_a_param_is_the_clients(param: str | None, expected: str | None) -> None:
    text = f"Invalid '{param}'." if param else "Invalid."
    renamed = rename_error(errors.invalid(param, text), FACTS)
    shown = "message.output_text.logprobs" if param == "logprobs" else expected
    assert (renamed.param, renamed.message) == (expected, text.replace(str(param), str(shown)))


def test_a_text_is_in_the_clients_words() -> None:
    texts = {
        "The 'logprobs' parameter is not supported by X.": "The value "
        "'message.output_text.logprobs' of 'include' is not supported by X.",
        "Content of type 'image_url' is not supported.": "Content of type 'input_image' is not "
        "supported.",
        "max_tokens is too large: 5. Send 'verbosity'.": "max_output_tokens is too large: 5. Send "
        "'text.verbosity'.",
        "The server's max_tokens_per_second is 3.": "The server's max_tokens_per_second is 3.",
    }
    for text, expected in texts.items():
        assert rename_fault(Fault(400, text), FACTS) == Fault(400, expected)


def test_an_item_is_named_where_it_stands() -> None:
    made = chat(
        input=[
            {"role": "user", "content": "Hi"},
            THOUGHT,
            {"role": "assistant", "content": "Hello"},
            CALL,
            OUTPUT | {"output": [IMAGE, {"type": "input_text", "text": "x"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "x"}, IMAGE]},
        ]
    )
    assert made.facts.paths == (
        "input[0]",
        "input[2]",
        "input[4].output",
        "input[4].output",
        "input[5]",
    )
    with pytest.raises(RequestError) as raised:
        prepare(BACKENDS["tgi"], chat(input=[{"role": "user", "content": [FILE]}]), model=None)
    renamed = rename_error(raised.value, made.facts)
    assert renamed.param == "input[0].content[0]"
    assert renamed.message.startswith("Content of type 'input_file' is not supported by ")
