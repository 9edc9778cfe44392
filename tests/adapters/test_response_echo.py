"""What a request for a response said is in each of its snapshots, as the checker has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.responses import check_response, check_response_stream
from tests.conforming_responses import CUSTOM, SAID, SPACE
from tests.responses_replay import response_exchange
from wellspoken.adapters.events import End, Event, Finish, Start, Text, Usage
from wellspoken.adapters.writers.response_body import ResponseBody
from wellspoken.adapters.writers.response_stream import ResponseStream

Json = dict[str, Any]

FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ALLOWED: Json = {
    "type": "allowed_tools",
    "mode": "auto",
    "tools": [{"type": "function", "name": "f"}],
}
SCHEMA: Json = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
NULL = ("instructions", "metadata", "parallel_tool_calls", "reasoning", "service_tier", "store",
        "temperature", "text", "tool_choice", "tools", "top_logprobs", "truncation")  # fmt: skip

REQUESTS: dict[str, Json] = {
    "nothing": {},
    "nulls": dict.fromkeys(NULL),
    "empty": {"instructions": "", "tools": [], "text": {}, "reasoning": {}, "metadata": {}},
    "all": {k: v for k, v in SAID.items() if k != "tool_choice"},
    "allowed tools": {"tools": [FUNCTION], "tool_choice": ALLOWED},
    "required": {"tools": [FUNCTION], "tool_choice": "required"},
    "named": {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
    "named custom": {
        "tools": [FUNCTION, CUSTOM],
        "tool_choice": {"type": "custom", "name": CUSTOM["name"]},
    },
    "a namespace": {"tools": [FUNCTION, SPACE]},
    "not strict": {"tools": [{**FUNCTION, "strict": False, "description": "x"}]},
    "json": {"text": {"format": {"type": "json_object"}, "verbosity": "high"}},
    "a schema": {"text": {"format": SCHEMA}},
    "reasoning": {
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    },
    "kept": {"store": True},
    "a tier": {"service_tier": "flex"},
    "alternatives": {"top_logprobs": 2},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_what_a_request_said_is_repeated(name: str, stream: bool) -> None:
    asked = {"model": "m", "input": "Hi", "stream": stream, **REQUESTS[name]}
    events: list[Event] = [Start("chatcmpl-12345678", 1, "m"), Text(0, "Hi")]
    events += [Finish(0, "stop"), Usage(1, 2), End(True)]
    exchange = response_exchange(asked)
    if stream:
        assert check_response_stream(ResponseStream(exchange)(events), asked) == []
        return
    write = ResponseBody(exchange)
    write(events)
    assert check_response(write.body(), asked) == []
