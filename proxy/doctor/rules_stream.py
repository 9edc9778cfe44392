"""The contract of a stream: its framing, its chunks, and what they amount to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from wellspoken.adapters.answer_schema import ToolCallDelta
from wellspoken.adapters.events import Reason
from wellspoken.proxy.doctor.contract import (
    error_words,
    find_faults,
    list_choices,
    parse_object,
    require_success,
)
from wellspoken.proxy.doctor.probe import ProbeResponse, Wrong, quote

DONE = b"[DONE]"
OBFUSCATION = frozenset({"obfuscation"})
"""What OpenAI pads its own chunks with."""
REASONS = frozenset(get_args(Reason))
Chunks = list[dict[str, Any]]


def split_payloads(data: bytes) -> list[bytes]:
    """Return what the data lines hold, whatever else is wrong with the stream."""
    lines = data.replace(b"\r\n", b"\n").split(b"\n")
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def read_chunks(response: ProbeResponse, *, basic: bool = False) -> Chunks:
    """Return the chunks of a stream with status 200. Raises Wrong and Lacks."""
    require_success(response, basic=basic)
    found = [
        parse_object(data, "an event") for data in split_payloads(response.body) if data != DONE
    ]
    for chunk in found:
        if "error" in chunk:
            raise Wrong(f"an error in the stream: {error_words(json.dumps(chunk).encode())}")
    if not found:
        raise Wrong("the stream holds no chunk")
    return found


def list_deltas(chunks: Chunks) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each choice of each chunk with its delta. Raises Wrong."""
    for chunk in chunks:
        for choice in list_choices(chunk, "delta"):
            yield choice, choice["delta"]


def join_text(chunks: Chunks, index: int = 0) -> str:
    """Return what the chunks of a choice add up to. Raises Wrong."""
    parts = []
    for choice, delta in list_deltas(chunks):
        content = delta.get("content")
        if content is not None and not isinstance(content, str):
            raise Wrong(f"content is {quote(content)}, no text")
        if choice.get("index") == index:
            parts.append(content or "")
    return "".join(parts)


def check_framing(response: ProbeResponse) -> Iterator[str]:
    """Check the content type, the lines, and that [DONE] ends it."""
    require_success(response, basic=True)
    if response.content_type != "text/event-stream":
        yield f"the content type is {quote(response.content_type)}, not text/event-stream"
    before = b""
    for line in response.body.split(b"\n"):
        if line and before.startswith(b"data: "):
            yield "an event does not end with an empty line"
        if line.endswith(b"\r"):
            yield "lines end with CR LF"
            break
        if line and not line.startswith((b"data: ", b":")):
            yield f"a line is neither data nor comment: {quote(line.decode('utf-8', 'replace'))}"
        before = line
    if not response.body.endswith(b"\n\n"):
        yield "no empty line ends the stream"
    found = split_payloads(response.body)
    for data in found:
        if data != DONE:
            parse_object(data, "an event")
    if found.count(DONE) != 1 or found[-1] != DONE:
        yield "data: [DONE] is not its end" if found.count(DONE) else "data: [DONE] never comes"


def check_finish(found: Chunks) -> Iterator[str]:
    """Check that each choice ends once, on an empty delta, for a reason of OpenAI's."""
    ended: dict[str, int] = {}
    for choice, delta in list_deltas(found):
        index, why = quote(choice.get("index")), choice.get("finish_reason")
        ended.setdefault(index, 0)
        if ended[index]:
            yield "a chunk of the choice follows its end"
        if why is None:
            continue
        ended[index] += 1
        if not isinstance(why, str) or why not in REASONS:
            yield f"finish_reason is {quote(why)}"
        if delta:
            yield f"finish_reason stands beside {quote(delta)}, not on an empty delta"
    for index, count in ended.items():
        if not count:
            yield f"no finish_reason ends choice {index}"
    if not ended:
        yield "there is no choice"


def check_tool_deltas(found: Chunks) -> Iterator[str]:
    """Check the pieces of calls: index from 0, id, type and name once, arguments as text."""
    last, ids = -1, []
    for _, delta in list_deltas(found):
        calls = delta.get("tool_calls")
        if calls is None:
            continue
        if not isinstance(calls, list):
            raise Wrong(f"tool_calls is {quote(calls)}, no list")
        for call in calls:
            for fault in find_faults(call, ToolCallDelta, "a call", extra=None):
                raise Wrong(fault)
            function, index = call.get("function", {}), call["index"]
            if index not in (last, last + 1):
                yield f"the index of a call is {index}"
            elif index > last:
                last = index
                ids.append(call.get("id"))
                if not (call.keys() >= {"id", "type", "function"} and "name" in function):
                    yield f"a call opens without id, type and name: {quote(call)}"
            elif call.keys() & {"id", "type"} or "name" in function:
                yield "id, type or name of a call come again, which SDKs join"
            if "arguments" not in function:
                yield f"a call has no arguments: {quote(call)}"
    if len(set(ids)) < len(ids):
        yield f"two calls have one id: {quote(ids)}"


def join_calls(found: Chunks) -> list[tuple[str, str]]:
    """Return name and arguments of each call that the chunks add up to."""
    whole: dict[int, tuple[str, str]] = {}
    for _, delta in list_deltas(found):
        for call in delta.get("tool_calls") or ():
            name, arguments = whole.get(call["index"], ("", ""))
            function = call["function"]
            name += function.get("name") or ""
            whole[call["index"]] = (name, arguments + (function.get("arguments") or ""))
    return [whole[index] for index in sorted(whole)]
