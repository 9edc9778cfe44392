"""What a response's request is as a chat request, and what its answer has to know of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.responses_asked import FUNCTION, SUFFIX, chat, messages, value
from wellspoken.adapters.exchange import OfferedTool
from wellspoken.adapters.requests.chat import switches_of
from wellspoken.adapters.requests.responses.as_chat import (
    exchange_for_response,
    find_response_variable,
)
from wellspoken.adapters.requests.shapes import OPENAI_KEYS
from wellspoken.adapters.requests.vendor import vendor_keys

CODEX = Path(__file__).parents[3] / "fixtures" / "responses" / "codex-0.171.0.json"


SAME = {
    "temperature": 0.3,
    "top_p": 1,
    "user": "u",
    "stop": ["a"],
    "seed": 3,
    "logit_bias": {"5": 1},
    "top_k": 3,
    "items": [1],
    "offer": 2,
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"max_output_tokens": 16}, {"max_completion_tokens": 16}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"x": 1.50}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"x": 1.50}},
                }
            },
        ),
        (
            {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "a",
                        "schema": {},
                        "strict": True,
                        "description": "An a.",
                    }
                }
            },
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "a",
                        "description": "An a.",
                        "schema": {},
                        "strict": True,
                    },
                }
            },
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": True}),
        ({"top_logprobs": 0}, {}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        (
            {"stream": True, "stream_options": {"include_obfuscation": False}},
            {"stream": True, "stream_options": {"include_usage": True}},
        ),
        (
            {"temperature": 0.30, "top_p": 1, "user": "u"},
            {"temperature": 0.3, "top_p": 1, "user": "u"},
        ),
        (
            {"stop": ["a"], "seed": 3, "logit_bias": {"5": 1}},
            {"stop": ["a"], "seed": 3, "logit_bias": {"5": 1}},
        ),
        ({"top_k": 3, "items": [1], "offer": 2}, {"top_k": 3, "items": [1], "offer": 2}),
        (
            {"store": True, "truncation": "auto", "max_tool_calls": 3, "client_metadata": {"a": 1}},
            {},
        ),
        ({"background": False, "prompt": None, "messages": None, "tools": None}, {}),
        ({"tools": [], "tool_choice": "auto"}, {"tool_choice": "auto"}),
    ],
)
def test_a_parameter_is_one_of_a_chat(keys: dict[str, Any], expected: dict[str, Any]) -> None:
    made = chat(**keys)
    plain = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    assert {key: json.loads(bytes(raw)) for key, raw in made.fields.items()} == plain | expected


def test_values_stay_as_sent_and_in_the_clients_order() -> None:
    made = chat(temperature=0.30, metadata={"a": "b"}, max_output_tokens=100, top_p=1)
    assert list(made.fields) == [
        "model", "messages", "temperature", "metadata", "max_completion_tokens", "top_p"
    ]  # fmt: skip
    assert (made.temperature, made.max_completion_tokens, made.top_p) == (0.3, 100, 1)


def test_instructions_come_first() -> None:
    made = chat(instructions="Be brief.", history=[{"role": "user", "content": "A"}])
    assert value(made, "messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A"},
        {"role": "user", "content": "Hi"},
    ]
    assert made.facts.paths == ("instructions", "", "input")
    assert len(messages(instructions="")) == 1


def test_who_instructs_before_anybody_speaks_is_one() -> None:
    """Templates take one system message, and few know a developer."""
    lead = [
        {"role": "developer", "content": [{"type": "input_text", "text": t} for t in "BC"]},
        {"role": "system", "content": "D"},
    ]
    late = {"role": "developer", "content": "E"}
    made = chat(instructions="A", input=[*lead, {"role": "user", "content": "Hi"}, late])
    assert value(made, "messages") == [
        {"role": "system", "content": "A\n\nB\n\nC\n\nD"},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "E"},
    ]
    assert made.facts.paths == ("instructions", "input[2]", "input[3]")
    assert chat(input=lead).facts.paths == ("input[0]",)
    assert value(chat(input=lead[1:]), "messages") == [{"role": "system", "content": "D"}]


def test_a_vendors_key_is_one() -> None:
    assert vendor_keys(chat(top_k=3, store=True, include=[], reasoning={})) == ("top_k",)


def test_the_whole_of_codex_becomes_a_chat() -> None:
    """A request of Codex CLI, whose tools stand in a namespace for a part."""
    asked = json.loads(CODEX.read_text())["body"]
    made = chat(**asked, stored=False)
    functions = [tool["function"] for tool in value(made, "tools")]
    flat = [
        (tool.get("namespace"), each)
        for tool in asked["tools"]
        for each in (
            [x | {"of": tool["name"], "about": tool["description"]} for x in tool["tools"]]
            if "tools" in tool
            else [tool]
        )
        if each["type"] == "function"
    ]
    assert len(functions) == len(flat) == 12
    for function, (_, tool) in zip(functions, flat, strict=True):
        name = f"{tool['of']}__{tool['name']}" if "of" in tool else tool["name"]
        about = f"{tool['about']}\n" if "about" in tool else ""
        assert function == {
            "name": name,
            "description": about + tool["description"],
            "parameters": tool["parameters"],
            "strict": False,
        }
    assert made.left_out == ("tools[8]",)
    assert made.facts.tools["multi_agent_v1__spawn_agent"] == OfferedTool(
        "spawn_agent", "multi_agent_v1"
    )
    assert [message["role"] for message in value(made, "messages")] == [
        "system", "user", "user"
    ]  # fmt: skip
    assert not vendor_keys(made)
    assert json.loads(bytes(made.facts.echo["tools"])) == asked["tools"]
    assert [item["id"] for item in json.loads(made.own)] == [x["id"] for x in asked["input"]]


def test_an_answers_exchange_knows_the_response() -> None:
    made = chat(stream=True, tools=[FUNCTION], top_logprobs=2, max_output_tokens=20)
    exchange = exchange_for_response(made, now=1, new_id=lambda: "x" * 8)
    assert exchange.response is made.facts
    assert (exchange.kind, exchange.stream, exchange.include_usage) == ("chat", True, True)
    assert (exchange.k, exchange.max_tokens, exchange.tools) == (2, 20, ("get_time",))
    assert exchange.switches == switches_of(made.fields, OPENAI_KEYS) == frozenset()
    assert exchange.response.id == f"resp_{SUFFIX}00000000"


def test_texts_alone_vary() -> None:
    made = chat(instructions="Be brief.")
    variable = find_response_variable(made)
    assert variable is not None
    assert variable.facts == {"prompt_size": 11, "response": made.facts}
    assert variable.raw == bytes(made.fields["messages"])
    assert find_response_variable(chat(input=[{"role": "developer", "content": "Hi"}])) is None


def test_its_text_is_dropped_and_read_again() -> None:
    made = chat()
    dropped = made.drop_text()
    assert (dropped.messages, dropped.facts) == ([], made.facts)
    assert dropped.read_text().messages == made.messages
