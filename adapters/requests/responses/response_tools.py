"""The tools of a response as the functions of a chat request, and the choice of them.

A custom tool, whose input is any text, is offered as a function with one string; the functions of a
namespace by both names, `namespace__name`. What OpenAI's servers run themselves (search, files, a
shell) is refused, since nothing here runs it. Of a tool `defer_loading`, `allowed_callers`,
`output_schema` and the like change nothing: each is offered at once, to the model alone.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, Raw, Struct, json

from wellspoken.adapters.exchange import OfferedTool
from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.chat_bounds import MAX_KEY, MAX_TOOLS, MODES, check_name
from wellspoken.adapters.requests.errors import RequestError, short, type_of

KINDS: Final = ("function", "custom", "namespace")
SEARCH: Final = "web_search"
SERVER_SIDE: Final = frozenset(
    "apply_patch code_interpreter computer computer_use computer_use_preview file_search "
    "image_generation local_shell mcp programmatic_tool_calling shell tool_search web_search "
    "web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11".split()
)
"""Types of tools that OpenAI's servers run, or whose calls are items of their own."""

CHOICES: Final = ("function", "custom", "allowed_tools")
INPUT: Final = "input"
FREE_TEXT: Final = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The tool's input, as plain text."}},
    "required": [INPUT],
    "additionalProperties": False,
}
"""The parameters of the function that stands for a custom tool."""

_NULL: Final = b"null"
_encode = json.Encoder().encode


class ToolDefinition(Struct):
    """One element of `tools`, of any kind; nothing of it is checked yet."""

    type: Any = None
    name: Any = None
    description: Any = None
    parameters: Raw = Raw(_NULL)
    strict: Any = None
    format: Any = None
    tools: Raw = Raw(_NULL)
    external_web_access: Any = None


class ChatTool(Struct, frozen=True):
    """One function that a backend is offered: where it came from, and what the client calls it."""

    place: str
    name: str
    function: dict[str, Any]
    client: OfferedTool


class ToolOffer(Struct):
    """All that a request offers.

    `choice`: a chat request's tool_choice, None where the client's is one word or none.
    `left_out`: the places of tools that lead nowhere here. `echo`: the tools as they are told.
    """

    tools: list[ChatTool] = []
    choice: dict[str, Any] | None = None
    left_out: tuple[str, ...] = ()
    echo: list[Any] = []

    def renamed(self) -> dict[str, OfferedTool]:
        """Return the tools that the client calls otherwise, by the name of their function."""
        plain = OfferedTool
        return {x.name: x.client for x in self.tools if x.client != plain(x.name)}


def read_tools(tools: Raw | None, choice: str | dict[str, Any] | None) -> ToolOffer:
    """Return what is offered; raise `RequestError` 400 for tools that are malformed or not run.

    A web search that may not leave, or one beside functions that says whether it may, is left out:
    Codex CLI 0.171 offers it with each request, as false in a sandbox and true outside of one.
    """
    offer = ToolOffer()
    searches: list[tuple[str, ToolDefinition]] = []
    for index, raw in enumerate(json.decode(tools, type=list[Raw] | None) or () if tools else ()):
        place = f"tools[{index}]"
        tool = _define(raw, place)
        offer.echo.append(_echo(raw, tool))
        if str(tool.type).startswith(SEARCH) and tool.external_web_access is not None:
            searches.append((place, tool))
        else:
            offer.tools += _offer(tool, place)
    for place, search in searches:
        if search.external_web_access and not offer.tools:
            raise not_run(f"{place}.type", str(search.type))
        offer.left_out += (place,)
    _refuse_doubles(offer.tools)
    if isinstance(choice, dict):
        offer.choice = _choose(choice, offer)
    elif choice is not None:
        if choice not in MODES:
            raise errors.wrong_value("tool_choice", choice, MODES)
        if choice == "required" and not offer.tools:
            raise errors.not_allowed("tool_choice", "'tools' are specified")
    return offer


def check_names(offer: ToolOffer) -> None:
    """Raise `RequestError` 400 for more tools than OpenAI takes, and for names that it does not."""
    if len(offer.tools) > MAX_TOOLS:
        raise errors.too_long("tools", "array", MAX_TOOLS, len(offer.tools))
    for tool in offer.tools:
        if tool.client.namespace is not None:
            check_name(tool.client.namespace, f"{tool.place.rpartition('.tools[')[0]}.name")
        check_name(tool.client.name, f"{tool.place}.name")


def name_at_backend(name: str, namespace: str | None) -> str:
    """Return the name of the function that stands for a tool."""
    return f"{namespace}__{name}" if namespace else name


def _define(raw: Raw, place: str) -> ToolDefinition:
    try:
        tool = json.decode(raw, type=ToolDefinition)
    except DecodeError:
        raise errors.wrong_type(place, "an object", type_of(json.decode(raw))) from None
    if tool.type is None:
        raise errors.missing(f"{place}.type", f"It is one of {', '.join(KINDS)}.")
    if not isinstance(tool.type, str):
        raise errors.wrong_type(f"{place}.type", "a string", type_of(tool.type))
    return tool


def _echo(raw: Raw, tool: ToolDefinition) -> Any:
    """Return a tool as it is told: as sent, a function with each of its keys."""
    if tool.type != "function":
        return raw
    keys = dict.fromkeys(("type", "name", "description", "parameters", "strict"))
    return keys | json.decode(raw, type=dict[str, Raw])


def _offer(tool: ToolDefinition, place: str, namespace: str | None = None) -> list[ChatTool]:
    """Return the functions that stand for one tool."""
    kinds = KINDS if namespace is None else KINDS[:2]
    if tool.type in SERVER_SIDE:
        raise not_run(f"{place}.type", tool.type)
    if tool.type not in kinds:
        raise errors.wrong_value(f"{place}.type", tool.type, kinds)
    name = _text(tool.name, f"{place}.name")
    if tool.type == "namespace":
        return _offer_namespace(tool, name, place)
    function: dict[str, Any] = {"name": name_at_backend(name, namespace)}
    if namespace is not None and len(function["name"]) > MAX_KEY:
        raise errors.invalid(
            f"{place}.name",
            f"Invalid '{place}.name': backends are offered it as "
            f"'{short(function['name'])}', whose {len(function['name'])} characters are more than "
            f"{MAX_KEY}. Shorten its name or that of its namespace.",
            "string_above_max_length",
        )
    if (described := _describe(tool, place)) is not None:
        function["description"] = described
    if tool.type == "custom":
        _refuse_grammar(tool.format, place)
        function["parameters"] = FREE_TEXT
    else:
        _add_parameters(function, tool, place)
    own = OfferedTool(name, namespace, tool.type == "custom")
    return [ChatTool(place, function["name"], function, own)]


def _offer_namespace(tool: ToolDefinition, name: str, place: str) -> list[ChatTool]:
    try:
        inner = json.decode(tool.tools, type=list[Raw] | None)
    except DecodeError:
        got = type_of(json.decode(tool.tools))
        raise errors.wrong_type(f"{place}.tools", "an array of objects", got) from None
    if inner is None:
        raise errors.missing(f"{place}.tools", "It is an array of functions.")
    about = _describe(tool, place)
    found = []
    for index, raw in enumerate(inner):
        at = f"{place}.tools[{index}]"
        for each in _offer(_define(raw, at), at, name):
            told = "\n".join(filter(None, (about, each.function.get("description"))))
            if told:
                each.function["description"] = told
            found.append(each)
    return found


def _describe(tool: ToolDefinition, place: str) -> str | None:
    if tool.description is not None and not isinstance(tool.description, str):
        raise errors.wrong_type(f"{place}.description", "a string", type_of(tool.description))
    return tool.description


def _add_parameters(function: dict[str, Any], tool: ToolDefinition, place: str) -> None:
    if bytes(tool.parameters) != _NULL:
        if not bytes(tool.parameters).startswith(b"{"):
            got = type_of(json.decode(tool.parameters))
            raise errors.wrong_type(f"{place}.parameters", "an object", got)
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        if not isinstance(tool.strict, bool):
            raise errors.wrong_type(f"{place}.strict", "a boolean", type_of(tool.strict))
        function["strict"] = tool.strict


def _refuse_grammar(given: Any, place: str) -> None:
    if given is None:
        return
    if not isinstance(given, dict):
        raise errors.wrong_type(f"{place}.format", "an object", type_of(given))
    kind = _text(given.get("type"), f"{place}.format.type")
    if kind == "grammar":
        raise errors.unsupported(
            f"{place}.format",
            "A custom tool with a grammar is not supported: no backend holds a call to it. Leave "
            "'format' out, for free text, or offer a function with a JSON schema.",
        )
    if kind != "text":
        raise errors.wrong_value(f"{place}.format.type", kind, ("text", "grammar"))


def _refuse_doubles(tools: list[ChatTool]) -> None:
    seen: dict[str, ChatTool] = {}
    for tool in tools:
        other = seen.setdefault(tool.name, tool)
        if other is not tool:
            param = f"{tool.place}.name"
            raise errors.invalid(
                param,
                f"Invalid '{param}': '{short(tool.name)}' is the name of '{other.place}', too. "
                "Give each tool a name of its own.",
            )


def _text(value: Any, param: str) -> str:
    if value is None:
        raise errors.missing(param, "It is a string.")
    if not isinstance(value, str):
        raise errors.wrong_type(param, "a string", type_of(value))
    if not value:
        raise errors.empty(param, "string")
    return value


def not_run(param: str, kind: str) -> RequestError:
    """Return the error for a tool that OpenAI's servers run."""
    return errors.unsupported(
        param,
        f"A tool of type '{short(kind)}' is not supported: this proxy runs no tools. Offer a tool "
        "of type 'function' in its place, and run it when it is called.",
    )


def _choose(choice: dict[str, Any], offer: ToolOffer) -> dict[str, Any]:
    """Return a chat request's tool_choice."""
    kind = _text(choice.get("type"), "tool_choice.type")
    if kind in SERVER_SIDE:
        raise not_run("tool_choice.type", kind)
    if kind not in CHOICES:
        raise errors.wrong_value("tool_choice.type", kind, CHOICES)
    if not offer.tools:
        raise errors.not_allowed("tool_choice", "'tools' are specified")
    offered = {tool.client: tool.name for tool in offer.tools}
    if kind != "allowed_tools":
        return _choice_of(choice, "tool_choice", offered)
    mode = _text(choice.get("mode"), "tool_choice.mode")
    if mode not in ("auto", "required"):
        raise errors.wrong_value("tool_choice.mode", mode, ("auto", "required"))
    tools = choice.get("tools")
    if tools is None:
        raise errors.missing("tool_choice.tools", "It is an array of tools.")
    if not isinstance(tools, list):
        raise errors.wrong_type("tool_choice.tools", "an array of objects", type_of(tools))
    if not tools:
        raise errors.empty("tool_choice.tools", "array")
    names = [_choice_of(x, f"tool_choice.tools[{at}]", offered) for at, x in enumerate(tools)]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": names}}


def _choice_of(choice: Any, place: str, offered: dict[OfferedTool, str]) -> dict[str, Any]:
    """Return the choice of one tool, which has to be offered."""
    if not isinstance(choice, dict):
        raise errors.wrong_type(place, "an object", type_of(choice))
    kind = _text(choice.get("type"), f"{place}.type")
    if kind in SERVER_SIDE:
        raise not_run(f"{place}.type", kind)
    if kind not in KINDS[:2]:
        raise errors.wrong_value(f"{place}.type", kind, KINDS[:2])
    name = _text(choice.get("name"), f"{place}.name")
    namespace = choice.get("namespace")
    if namespace is not None:
        namespace = _text(namespace, f"{place}.namespace")
    found = offered.get(OfferedTool(name, namespace, kind == "custom"))
    if found is not None:
        return {"type": "function", "function": {"name": found}}
    raise errors.invalid(
        "tool_choice",
        f"Tool choice '{short(name)}' not found in 'tools'. Name one of the offered tools.",
    )
