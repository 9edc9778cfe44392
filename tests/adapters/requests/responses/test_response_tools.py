"""The tools that a response may offer, as functions of a chat, and the choice of one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from tests.responses_asked import FUNCTION, chat, refuse, value
from wellspoken.adapters.exchange import OfferedTool
from wellspoken.adapters.requests.responses.response_tools import FREE_TEXT, SERVER_SIDE, read_tools

PARAMETERS = FUNCTION["parameters"]
CUSTOM = {"type": "custom", "name": "sh", "description": "A shell."}
INNER = {"type": "function", "name": "spawn", "parameters": None, "strict": True}
SPACE = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [INNER]}
NOT_RUN = (
    "A tool of type '{}' is not supported: this proxy runs no tools. Offer a tool of type "
    "'function' in its place, and run it when it is called."
)


def functions(*tools: dict[str, Any], **keys: Any) -> list[dict[str, Any]]:
    return [tool["function"] for tool in value(chat(tools=list(tools), **keys), "tools")]


def test_a_function_is_one() -> None:
    told = {key: FUNCTION[key] for key in ("name", "description", "parameters")}
    assert functions(FUNCTION) == [told]
    assert functions(FUNCTION | {"strict": True}) == [told | {"strict": True}]
    assert functions(FUNCTION | {"strict": None, "defer_loading": True}) == [told]
    bare = {"type": "function", "name": "a", "parameters": None, "description": None}
    assert functions(bare) == [{"name": "a"}]
    assert value(chat(tools=[FUNCTION]), "tools")[0]["type"] == "function"
    assert chat(tools=[FUNCTION]).facts.tools == {}


def test_a_schema_stays_as_it_was_written() -> None:
    schema = b'{ "b":1.50,"a" : [1e2]}'
    body = b'[{"type":"function","name":"a","parameters":%b}]' % schema

    offer = read_tools(Raw(body), None)
    assert bytes(offer.tools[0].function["parameters"]) == schema


@pytest.mark.parametrize("format", [None, {"type": "text"}])
def test_a_custom_tool_is_a_function_of_one_string(format: Any) -> None:
    made = chat(tools=[CUSTOM | {"format": format}], tool_choice={"type": "custom", "name": "sh"})
    function = value(made, "tools")[0]["function"]
    assert function == {"name": "sh", "description": "A shell.", "parameters": FREE_TEXT}
    assert FREE_TEXT["required"] == ["input"]
    assert made.facts.tools == {"sh": OfferedTool("sh", None, True)}
    assert value(made, "tool_choice") == {"type": "function", "function": {"name": "sh"}}


def test_what_a_namespace_holds_has_both_names() -> None:
    made = chat(tools=[SPACE | {"tools": [INNER, CUSTOM]}, FUNCTION])
    assert [tool["function"]["name"] for tool in value(made, "tools")] == [
        "agents__spawn", "agents__sh", "get_time"
    ]  # fmt: skip
    assert made.facts.tools == {
        "agents__spawn": OfferedTool("spawn", "agents"),
        "agents__sh": OfferedTool("sh", "agents", True),
    }


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview"])
def test_a_search_without_a_web_is_left_out(kind: str) -> None:
    search = {"type": kind, "external_web_access": False}
    made = chat(tools=[search, FUNCTION, search])
    assert made.left_out == ("tools[0]", "tools[2]")
    assert len(value(made, "tools")) == 1
    assert "tools" not in chat(tools=[search]).fields
    live = search | {"external_web_access": True}
    assert refuse(tools=[live]).param == "tools[0].type"
    assert refuse(tools=[{"type": kind}, FUNCTION]).param == "tools[0].type"
    assert chat(tools=[live, FUNCTION]).left_out == ("tools[0]",)
    error = refuse(tools=[search], tool_choice="required")
    assert (
        error.message == "The 'tool_choice' parameter is only allowed when 'tools' are specified."
    )


@pytest.mark.parametrize("kind", sorted(SERVER_SIDE))
def test_what_openais_servers_run_is_refused(kind: str) -> None:
    error = refuse(tools=[FUNCTION, {"type": kind}])
    assert (error.param, error.code) == ("tools[1].type", "unsupported_parameter")
    assert error.message == NOT_RUN.format(kind)
    error = refuse(tools=[FUNCTION], tool_choice={"type": kind})
    assert (error.param, error.message) == ("tool_choice.type", NOT_RUN.format(kind))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    error = refuse(tools=[FUNCTION], tool_choice=allowed)
    assert (error.param, error.message) == ("tool_choice.tools[0].type", NOT_RUN.format(kind))


STRING = "It is a string."
MALFORMED: list[tuple[list[Any], str, str, str]] = [
    ([5], "tools[0]", "invalid_type",
     "Invalid type for 'tools[0]': expected an object, but got an integer instead."),
    ([{}], "tools[0].type", "missing_required_parameter",
     "Missing required parameter: 'tools[0].type'. It is one of function, custom, namespace."),
    ([{"type": 5}], "tools[0].type", "invalid_type",
     "Invalid type for 'tools[0].type': expected a string, but got an integer instead."),
    ([{"type": "lookup"}], "tools[0].type", "invalid_value",
     "Invalid value: 'lookup'. Supported values are: 'function', 'custom', and 'namespace'."),
    ([{"type": "function", "function": {"name": "a"}}], "tools[0].name",
     "missing_required_parameter", f"Missing required parameter: 'tools[0].name'. {STRING}"),
    ([{"type": "function", "name": 5}], "tools[0].name", "invalid_type",
     "Invalid type for 'tools[0].name': expected a string, but got an integer instead."),
    ([{"type": "function", "name": ""}], "tools[0].name", "empty_string",
     "Invalid 'tools[0].name': empty string. Expected a string with minimum length 1, but got an "
     "empty string instead."),
    ([FUNCTION | {"parameters": []}], "tools[0].parameters", "invalid_type",
     "Invalid type for 'tools[0].parameters': expected an object, but got an array instead."),
    ([FUNCTION | {"strict": "yes"}], "tools[0].strict", "invalid_type",
     "Invalid type for 'tools[0].strict': expected a boolean, but got a string instead."),
    ([FUNCTION | {"description": 5}], "tools[0].description", "invalid_type",
     "Invalid type for 'tools[0].description': expected a string, but got an integer instead."),
    ([CUSTOM | {"format": "text"}], "tools[0].format", "invalid_type",
     "Invalid type for 'tools[0].format': expected an object, but got a string instead."),
    ([CUSTOM | {"format": {"type": "xml"}}], "tools[0].format.type", "invalid_value",
     "Invalid value: 'xml'. Supported values are: 'text' and 'grammar'."),
    ([CUSTOM | {"format": {"type": "grammar", "syntax": "lark", "definition": "a"}}],
     "tools[0].format", "unsupported_parameter", "A custom tool with a grammar is not supported: "
     "no backend holds a call to it. Leave 'format' out, for free text, or offer a function with a "
     "JSON schema."),
    ([SPACE | {"tools": None}], "tools[0].tools", "missing_required_parameter",
     "Missing required parameter: 'tools[0].tools'. It is an array of functions."),
    ([SPACE | {"tools": {}}], "tools[0].tools", "invalid_type",
     "Invalid type for 'tools[0].tools': expected an array of objects, but got an object instead."),
    ([SPACE | {"tools": [INNER, SPACE]}], "tools[0].tools[1].type", "invalid_value",
     "Invalid value: 'namespace'. Supported values are: 'function' and 'custom'."),
    ([SPACE | {"tools": [INNER | {"name": "a" * 60}]}], "tools[0].tools[0].name",
     "string_above_max_length", f"Invalid 'tools[0].tools[0].name': backends are offered it as "
     f"'agents__{'a' * 56}...', whose 68 characters are more than 64. Shorten its name or that of "
     "its namespace."),
    ([FUNCTION, CUSTOM | {"name": "get_time"}], "tools[1].name", "invalid_value",
     "Invalid 'tools[1].name': 'get_time' is the name of 'tools[0]', too. Give each tool a name of "
     "its own."),
    ([SPACE, FUNCTION | {"name": "agents__spawn"}], "tools[1].name", "invalid_value",
     "Invalid 'tools[1].name': 'agents__spawn' is the name of 'tools[0].tools[0]', too. Give each "
     "tool a name of its own."),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "param", "code", "text"), MALFORMED)
@pytest.mark.parametrize("strict", [True, False])
def test_a_malformed_tool_is_told_by_its_place(
    tools: list[Any], param: str, code: str, text: str, strict: bool
) -> None:
    error = refuse(tools=tools, strict=strict)
    assert (error.param, error.code, error.message) == (param, code, text)


@pytest.mark.parametrize(
    ("tools", "param", "code"),
    [
        ([FUNCTION | {"name": "a b"}], "tools[0].name", "invalid_value"),
        ([FUNCTION | {"name": "a" * 65}], "tools[0].name", "string_above_max_length"),
        ([FUNCTION, SPACE | {"name": "a b"}], "tools[1].name", "invalid_value"),
        ([SPACE | {"tools": [INNER | {"name": "ä"}]}], "tools[0].tools[0].name", "invalid_value"),
        (
            [FUNCTION | {"name": f"a{at}"} for at in range(129)],
            "tools",
            "array_above_max_length",
        ),
    ],
)
def test_names_and_their_number_are_bounded(tools: list[Any], param: str, code: str) -> None:
    error = refuse(tools=tools)
    assert (error.param, error.code) == (param, code)
    assert len(value(chat(tools=tools, strict=False), "tools")) == len(tools)


OFFER = [FUNCTION, CUSTOM, SPACE]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "get_time"}, ["get_time"]),
        ({"type": "custom", "name": "sh"}, ["sh"]),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, ["agents__spawn"]),
    ],
)
def test_a_choice_is_a_chats(choice: Any, expected: Any) -> None:
    given = value(chat(tools=OFFER, tool_choice=choice), "tool_choice")
    if isinstance(expected, list):
        expected = {"type": "function", "function": {"name": expected[0]}}
    assert given == expected


def test_tools_may_be_allowed() -> None:
    tools = [
        {"type": "function", "name": "get_time"},
        {"type": "custom", "name": "sh"},
        {"type": "function", "name": "spawn", "namespace": "agents"},
    ]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools}
    assert value(chat(tools=OFFER, tool_choice=choice), "tool_choice") == {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [
                {"type": "function", "function": {"name": name}}
                for name in ("get_time", "sh", "agents__spawn")
            ],
        },
    }


NO_TOOLS = "The 'tool_choice' parameter is only allowed when 'tools' are specified."
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]}


@pytest.mark.parametrize(
    ("choice", "param", "text"),
    [
        ("any", "tool_choice", "Invalid value: 'any'. Supported values are: 'none', 'auto', and "
         "'required'."),
        ({}, "tool_choice.type", f"Missing required parameter: 'tool_choice.type'. {STRING}"),
        ({"type": "tool"}, "tool_choice.type", "Invalid value: 'tool'. Supported values are: "
         "'function', 'custom', and 'allowed_tools'."),
        ({"type": "function", "function": {"name": "get_time"}}, "tool_choice.name",
         f"Missing required parameter: 'tool_choice.name'. {STRING}"),
        ({"type": "function", "name": "a"}, "tool_choice", "Tool choice 'a' not found in 'tools'. "
         "Name one of the offered tools."),
        ({"type": "function", "name": "spawn"}, "tool_choice", "Tool choice 'spawn' not found in "
         "'tools'. Name one of the offered tools."),
        ({"type": "function", "name": "a", "namespace": 5}, "tool_choice.namespace",
         "Invalid type for 'tool_choice.namespace': expected a string, but got an integer "
         "instead."),
        (ALLOWED, "tool_choice", "Tool choice 'a' not found in 'tools'. Name one of the offered "
         "tools."),
        (ALLOWED | {"mode": "none"}, "tool_choice.mode", "Invalid value: 'none'. Supported values "
         "are: 'auto' and 'required'."),
        (ALLOWED | {"tools": None}, "tool_choice.tools", "Missing required parameter: "
         "'tool_choice.tools'. It is an array of tools."),
        (ALLOWED | {"tools": {}}, "tool_choice.tools", "Invalid type for 'tool_choice.tools': "
         "expected an array of objects, but got an object instead."),
        (ALLOWED | {"tools": []}, "tool_choice.tools", "Invalid 'tool_choice.tools': empty array. "
         "Expected an array with minimum length 1, but got an empty array instead."),
        (ALLOWED | {"tools": ["a"]}, "tool_choice.tools[0]", "Invalid type for "
         "'tool_choice.tools[0]': expected an object, but got a string instead."),
        (ALLOWED | {"tools": [ALLOWED]}, "tool_choice.tools[0].type", "Invalid value: "
         "'allowed_tools'. Supported values are: 'function' and 'custom'."),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_made_is_refused(choice: Any, param: str, text: str) -> None:
    error = refuse(tools=OFFER, tool_choice=choice)
    assert (error.param, error.message) == (param, text)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "a"}, ALLOWED])
def test_a_choice_needs_tools(choice: Any) -> None:
    error = refuse(tool_choice=choice)
    assert (error.param, error.message) == ("tool_choice", NO_TOOLS)
