"""What a response repeats of its request."""

from __future__ import annotations

from typing import Any

from tests.conformance.model import Report
from tests.conformance.shape import TIERS

Json = dict[str, Any]

# key -> what it is where the request does not say; a missing one is any value of its type
UNSAID: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "truncation": "disabled",
    "safety_identifier": None,
    "prompt_cache_key": None,
    "background": False,
    "store": True,
    "top_logprobs": 0,
}
SAID = (*UNSAID, "temperature", "top_p", "presence_penalty", "frequency_penalty", "user")
OPTIONAL = frozenset({"user"})
FUNCTION = ("type", "name", "description", "parameters", "strict")
REPEATED = frozenset({"function", "custom", "namespace"})
"""Kinds of tools that cannot be left out."""


def check_echo(response: Json, request: Json, report: Report) -> None:
    """Check every key that repeats the request, of which the types are right."""
    model = request.get("model")
    report.check(model in (None, response.get("model")), "R.model", "model", response.get("model"))
    for key in SAID:
        if key not in response and key in OPTIONAL | {"background"}:
            report.check(request.get(key) is None, "R.echo", key, "not repeated")
        elif key not in response:
            continue  # is missing, which was said
        elif request.get(key) is not None:
            same = response[key] == request[key]
            report.check(same, "R.echo", key, f"{response[key]!r}, not {request[key]!r}")
        elif key in UNSAID:
            report.check(response[key] == UNSAID[key], "R.echo", key, repr(response[key]))
    tier = response.get("service_tier")
    report.check(tier is None or tier in TIERS, "R.types", "service_tier", tier)
    for key in ("conversation", "prompt"):
        report.check(response.get(key) is None, "R.echo", key, "is never taken")
    _check_text(response.get("text"), request.get("text") or {}, report)
    _check_reasoning(response.get("reasoning"), request.get("reasoning") or {}, report)
    _check_tools(response.get("tools"), request.get("tools") or [], report)
    if "tool_choice" in response:
        wanted = request.get("tool_choice") or "auto"
        got = response["tool_choice"]
        report.check(got == wanted, "R.tool_choice", "tool_choice", f"{got!r}, not {wanted!r}")


def _check_text(text: Any, asked: Json, report: Report) -> None:
    """Check the format and the verbosity."""
    if not isinstance(text, dict):
        return  # not an object, which was said
    report.check(text.keys() <= {"format", "verbosity"}, "R.text", "text", sorted(text))
    wanted = asked.get("format") or {"type": "text"}
    found = text.get("format")
    if not report.check(isinstance(found, dict), "R.text", "text.format", found):
        return
    assert isinstance(found, dict)
    for key, value in wanted.items():
        same = found.get(key) == value
        report.check(same, "R.text", f"text.format.{key}", f"{found.get(key)!r}, not {value!r}")
    if found.get("type") == "json_schema":
        full = {"type", "name", "description", "schema", "strict"}
        report.check(found.keys() == full, "R.text", "text.format", sorted(found))
    else:
        report.check(found.keys() == {"type"}, "R.text", "text.format", sorted(found))
    if asked.get("verbosity") is not None:
        same = text.get("verbosity") == asked["verbosity"]
        report.check(same, "R.text", "text.verbosity", text.get("verbosity"))
    else:
        fine = text.get("verbosity", "medium") in ("low", "medium", "high")
        report.check(fine, "R.text", "text.verbosity", text.get("verbosity"))


def _check_reasoning(reasoning: Any, asked: Json, report: Report) -> None:
    """Check effort and summary."""
    if reasoning is None:
        said = any(asked.get(key) is not None for key in ("effort", "summary"))
        report.check(not said, "R.reasoning", "reasoning", "null")
    elif isinstance(reasoning, dict):
        keys = {"effort", "summary"}
        report.check(keys <= reasoning.keys(), "R.reasoning", "reasoning", sorted(reasoning))
        for key in keys & reasoning.keys():
            wanted, got = asked.get(key), reasoning[key]
            fine = got == wanted if wanted is not None else got is None or isinstance(got, str)
            report.check(fine, "R.reasoning", f"reasoning.{key}", f"{got!r}, not {wanted!r}")


def _check_tools(tools: Any, asked: list[Json], report: Report) -> None:
    """Check the tools: the request's in order, of which others than functions may be left out."""
    if not isinstance(tools, list):
        return  # not a list, which was said
    place = 0
    for n, tool in enumerate(tools):
        at = f"tools[{n}]"
        if not report.check(isinstance(tool, dict), "R.tools", at, "not an object"):
            continue
        if tool.get("type") == "function":
            report.check(set(FUNCTION) <= tool.keys(), "R.tools", at, sorted(tool))
        while place < len(asked) and not _repeats(tool, asked[place]):
            _miss(asked[place], report)
            place += 1
        report.check(place < len(asked), "R.tools", at, "no tool of the request, in its order")
        place += 1
    for left in asked[place:]:
        _miss(left, report)


def _miss(tool: Json, report: Report) -> None:
    report.check(tool.get("type") not in REPEATED, "R.tools", "tools", f"{tool} is missing")


def _repeats(tool: Json, asked: Json) -> bool:
    """Say whether a tool of the response says all that one of the request said."""
    return all(tool.get(key) == value for key, value in asked.items() if value is not None)
