"""What is said of a chat request, in the names of the response's request that it was made of.

The bounds, the caps and the backends' tables speak of chat requests, and so do backends. A message
is told by the item that it came of (`ResponseFacts.paths`).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from msgspec import structs

from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import ResponseFacts
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.response_request import LOGPROBS

NAMES: Final = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "messages": "input",
    "logprobs": "include",
    "tool_choice.allowed_tools": "tool_choice",
    "tool_choice.function": "tool_choice",
    "stream_options.include_usage": "stream_options",
}
"""A chat's name of a parameter -> the response's."""

PAST: Final = "previous_response_id"
"""What is to blame for a message of a past turn."""

_MESSAGE: Final = re.compile(r"messages\[(\d+)\]((?:\.[a-z_]+|\.\d+(?!\d)|\[\d+\])*)")
_DOTTED: Final = re.compile(r"(?<![\w.])messages\.(\d+)(?!\d)")
_TOOL: Final = re.compile(r"(?:tools\[(\d+)\]|(tool_choice(?:\.tools\[\d+\])?))\.function\b")
_CONTENT: Final = re.compile(r"\.content(\[\d+\](\.text|\.image_url|\.input_audio(\.\w+)?)?)?")
_PLAIN: Final = re.compile(
    r"(?<![\w.])(max_completion_tokens|max_tokens|reasoning_effort"
    r"|response_format(?:\.json_schema)?)(?!\w)"
)
_QUOTED: Final = re.compile(r"'(verbosity|messages|tool_choice\.(?:allowed_tools|function))\b")
_SCORES: Final = re.compile(r"(?:[Tt]he )?'logprobs' parameter")
_KIND: Final = re.compile(r"\btype '(image_url|file)'")
_KINDS: Final = {"image_url": "input_image", "file": "input_file"}


def rename_error(error: RequestError, facts: ResponseFacts) -> RequestError:
    """Return an error about a chat request as one about the response's request."""
    return RequestError(
        rename_text(error.message, facts),
        status=error.status,
        type=error.type,
        param=rename_param(error.param, facts),
        code=error.code,
        headers=error.headers,
    )


def rename_fault(fault: Fault, facts: ResponseFacts) -> Fault:
    """Return the same of what a backend failed with."""
    message, param = rename_text(fault.message, facts), rename_param(fault.param, facts)
    return structs.replace(fault, message=message, param=param)


def rename_param(param: str | None, facts: ResponseFacts) -> str | None:
    """Return the client's name of what an error is about."""
    if param is None:
        return None
    param = _DOTTED.sub(r"messages[\1]", param)
    found = _MESSAGE.fullmatch(param)
    if found is not None:
        return _place(found, facts)
    param = _TOOL.sub(partial(_tool, facts), param)
    for name, new in NAMES.items():
        if param == name or param.startswith((f"{name}.", f"{name}[")):
            return new + param[len(name) :]
    return param


def rename_text(text: str, facts: ResponseFacts) -> str:
    """Return a text with the client's names in it."""
    text = _DOTTED.sub(r"messages[\1]", text)
    text = _MESSAGE.sub(lambda found: _place(found, facts), text)
    text = _TOOL.sub(partial(_tool, facts), text)
    text = _KIND.sub(lambda found: f"type '{_KINDS[found[1]]}'", text)
    text = _PLAIN.sub(lambda found: NAMES[found[1]], text)
    text = _QUOTED.sub(lambda found: f"'{NAMES[found[1]]}", text)
    text = _SCORES.sub(f"The value '{LOGPROBS}' of 'include'", text)
    return text.replace("'logprobs'", f"'{LOGPROBS}'")


def _tool(facts: ResponseFacts, found: re.Match[str]) -> str:
    """Return where a tool, which is a function at the backend, stands in the request."""
    if found[1] is None:
        return found[2]
    index = int(found[1])
    return facts.tool_paths[index] if index < len(facts.tool_paths) else "tools"


def _place(found: re.Match[str], facts: ResponseFacts) -> str:
    """Return where a message, or what is in it, stands in the request."""
    index, rest = int(found[1]), found[2]
    path = facts.paths[index] if index < len(facts.paths) else "input"
    if not path:
        return PAST
    if not path.startswith("input[") or path.endswith(".output"):
        return path
    inner = _CONTENT.match(rest)
    if inner is not None:
        return path + inner[0].replace(".file", "")
    return path + (rest if rest == ".role" else "")
