"""Repairs of tool calls, body and delta, into `wire.ToolCall`-like rows (index, id, name, text)."""

from __future__ import annotations

from typing import Any

import msgspec

from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.tokens.table import digits

Row = tuple[int | None, str | None, str | None, str]
"""(index, id, name, arguments text)"""


class Unfilled(str):
    """Arguments sent as an empty object: what follows takes their place, `{}` if nothing does."""

    __slots__ = ()


def tool_calls(value: Any, context: Context) -> list[Row]:
    """Return the calls in `tool_calls`, whatever its shape.

    Counts `tool_calls_object` (TGI 2.0-3.1: one object where a list belongs), `tool_calls_empty`
    (vLLM 0.4.3-0.11, KoboldCpp: `[]` on a plain answer) and what `tool_call` counts.
    """
    if value is None:
        return []
    if isinstance(value, dict):
        context.note("tool_calls_object")
        value = [value]
    if not isinstance(value, list):
        context.notes.drop("tool_calls")
        return []
    if not value:
        context.note("tool_calls_empty")
    for item in value:
        if item is not None and not isinstance(item, dict):
            context.notes.drop("tool_calls")
    return [tool_call(item, context) for item in value if isinstance(item, dict)]


def tool_call(item: dict[str, Any], context: Context) -> Row:
    """Return one call or piece of a call: index None where it has none, id and name None or text.

    Some servers leave out `function` and put name and arguments on the call itself
    (`tool_call_flat`).
    """
    function = item.get("function")
    if not isinstance(function, dict):
        context.note("tool_call_flat")
        function = item
    if item.get("type", "function") != "function":
        context.note("tool_call_type")
    for key in item:
        if key not in ("index", "id", "type", "function", "name", "arguments", "parameters"):
            if item[key] is not None:
                context.notes.drop(f"tool_calls.{key}")
    index, name, call_id = item.get("index"), function.get("name"), item.get("id")
    if isinstance(index, str):
        index = digits(index)
    if isinstance(call_id, bool):
        call_id = None
    return (
        index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None,
        str(call_id) if isinstance(call_id, str | int) and call_id != "" else None,
        name if isinstance(name, str) and name else None,
        arguments(function.get("arguments", function.get("parameters")), context),
    )


def arguments(value: Any, context: Context) -> str:
    """Return a call's arguments as JSON text; an object becomes its text (`tool_arguments_object`).

    Ollama's native API, TGI <= 2.x and several templates send the object itself.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    context.note("tool_arguments_object")
    if value == {}:
        return Unfilled("{}")
    return msgspec.json.encode(value).decode()
