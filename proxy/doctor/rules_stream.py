"""The contract of a stream: its framing, its chunks, and what they amount to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wellspoken.proxy.doctor.model import Heard, Wrong, shown
from wellspoken.proxy.doctor.rules import (
    REASONS,
    TOP,
    answered,
    choices_of,
    extra_keys,
    is_int,
    is_text,
    message_of,
    nulls,
    object_of,
    usage,
)

DONE = b"[DONE]"
CHUNK = TOP | {"obfuscation"}
CONSTANT = ("id", "created", "model", "object")
_CHOICE = frozenset({"index", "delta", "logprobs", "finish_reason"})
_DELTA = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "reasoning_content"}
)
Chunks = list[dict[str, Any]]


def payloads(data: bytes) -> list[bytes]:
    """Return what the data lines hold, whatever else is wrong with the stream."""
    lines = data.replace(b"\r\n", b"\n").split(b"\n")
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def chunks_of(heard: Heard, *, basic: bool = False) -> Chunks:
    """Return the chunks of a stream with status 200. Raises Wrong and Lacks."""
    answered(heard, basic=basic)
    found = [object_of(data, "an event") for data in payloads(heard.body) if data != DONE]
    for chunk in found:
        if "error" in chunk:
            raise Wrong(f"an error in the stream: {message_of(heard_error(chunk))}")
    if not found:
        raise Wrong("the stream holds no chunk")
    return found


def heard_error(chunk: Mapping[str, Any]) -> bytes:
    """Return an error event's own words."""
    error = chunk["error"]
    text = error.get("message") if isinstance(error, dict) else error
    return str(text).encode()


def deltas_of(chunks: Chunks) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each choice of each chunk with its delta. Raises Wrong."""
    for chunk in chunks:
        for choice in choices_of(chunk, "delta"):
            yield choice, choice["delta"]


def text_of(chunks: Chunks, index: int = 0) -> str:
    """Return what the chunks of a choice add up to. Raises Wrong."""
    parts = []
    for choice, delta in deltas_of(chunks):
        content = delta.get("content")
        if content is not None and not isinstance(content, str):
            raise Wrong(f"content is {shown(content)}, no text")
        if choice.get("index") == index:
            parts.append(content or "")
    return "".join(parts)


def framing(heard: Heard) -> Iterator[str]:
    """Check the content type, the lines, and that [DONE] ends it."""
    answered(heard, basic=True)
    if heard.content_type != "text/event-stream":
        yield f"the content type is {shown(heard.content_type)}, not text/event-stream"
    before = b""
    for line in heard.body.split(b"\n"):
        if line and before.startswith(b"data: "):
            yield "an event does not end with an empty line"
        if line.endswith(b"\r"):
            yield "lines end with CR LF"
            break
        if line and not line.startswith((b"data: ", b":")):
            yield f"a line is neither data nor comment: {shown(line.decode('utf-8', 'replace'))}"
        before = line
    if not heard.body.endswith(b"\n\n"):
        yield "no empty line ends the stream"
    found = payloads(heard.body)
    for data in found:
        if data != DONE:
            object_of(data, "an event")
    if found.count(DONE) != 1 or found[-1] != DONE:
        yield "data: [DONE] is not its end" if found.count(DONE) else "data: [DONE] never comes"


def chunks(found: Chunks, kind: str, model: str) -> Iterator[str]:
    """Check the envelope and keys of each chunk, and what must be the same in all."""
    for chunk in found:
        yield from extra_keys(chunk, CHUNK, "a chunk")
        yield from nulls(chunk, ("system_fingerprint", "service_tier"), "a chunk")
        for choice in choices_of(chunk, "delta"):
            yield from _choice(choice)
    for key in CONSTANT:
        values = {shown(chunk.get(key)) for chunk in found}
        if len(values) > 1:
            yield f"{key} changes within the stream: {', '.join(sorted(values)[:3])}"
    if found[0].get("object") != kind:
        yield f"object is {shown(found[0].get('object'))}, not {shown(kind)}"
    if found[0].get("model") != model:
        yield f"model is {shown(found[0].get('model'))}, not the one that was asked for"


def _choice(choice: Mapping[str, Any]) -> Iterator[str]:
    yield from extra_keys(choice, _CHOICE, "a choice")
    yield from extra_keys(choice["delta"], _DELTA, "a delta")
    yield from nulls(choice["delta"], ("tool_calls", "function_call"), "a delta")
    if not is_int(choice.get("index")):
        yield f"index is {shown(choice.get('index'))}"
    for key in ("logprobs", "finish_reason"):
        if key not in choice:
            yield f"a choice has no {key}, which should be null"


def role(found: Chunks) -> Iterator[str]:
    """Check that the role stands in a choice's first delta only, with no text beside it."""
    seen: set[str] = set()
    for choice, delta in deltas_of(found):
        index = shown(choice.get("index"))
        if index in seen:
            if "role" in delta:
                yield "the role is repeated, which SDKs join to assistantassistant"
            continue
        seen.add(index)
        if delta.get("role") != "assistant":
            yield f"the first delta's role is {shown(delta.get('role'))}"
        if "content" not in delta or delta["content"] not in ("", None):
            yield f"the first delta's content is {shown(delta.get('content'))}, not empty"
        if "refusal" not in delta:
            yield "the first delta has no refusal, which should be null"


def finishes(found: Chunks, reasons: frozenset[str] = REASONS) -> Iterator[str]:
    """Check that each choice ends once, on an empty delta, for a reason of OpenAI's."""
    ended: dict[str, int] = {}
    for choice, delta in deltas_of(found):
        index, why = shown(choice.get("index")), choice.get("finish_reason")
        ended.setdefault(index, 0)
        if ended[index]:
            yield "a chunk of the choice follows its end"
        if why is None:
            continue
        ended[index] += 1
        if not isinstance(why, str) or why not in reasons:
            yield f"finish_reason is {shown(why)}"
        if delta:
            yield f"finish_reason stands beside {shown(delta)}, not on an empty delta"
    for index, count in ended.items():
        if not count:
            yield f"no finish_reason ends choice {index}"
    if not ended:
        yield "there is no choice"


def no_usage(found: Chunks) -> Iterator[str]:
    """Check that nothing is said of usage unless it was asked for."""
    if any("usage" in chunk for chunk in found):
        yield "usage is sent although it was not asked for; some clients add them up"
    if not all(choices_of(chunk, "delta") for chunk in found):
        yield "a chunk has no choice"


def with_usage(found: Chunks) -> Iterator[str]:
    """Check that usage comes on a last chunk of its own, and is null before."""
    *earlier, last = found
    if last.get("choices") != [] or last.get("usage") is None:
        yield "the last chunk is not one without choices that holds the usage"
    else:
        yield from usage(last["usage"])
    if any(chunk.get("usage") is not None for chunk in earlier):
        yield "usage comes on more than the last chunk"
    if any("usage" not in chunk for chunk in earlier):
        yield "earlier chunks have no usage, which should be null"


def tool_deltas(found: Chunks) -> Iterator[str]:
    """Check the pieces of calls: index from 0, id, type and name once, arguments as text."""
    last, ids = -1, []
    for _, delta in deltas_of(found):
        calls = delta.get("tool_calls")
        if calls is None:
            continue
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise Wrong(f"tool_calls is {shown(calls)}, no list of objects")
        for call in calls:
            function, index = call.get("function"), call.get("index")
            if not isinstance(function, dict):
                raise Wrong(f"function is {shown(function)}, no object")
            if not isinstance(index, int) or index not in (last, last + 1) or index < 0:
                yield f"the index of a call is {shown(index)}"
            elif index > last:
                last = index
                ids.append(call.get("id"))
                if not is_text(call.get("id")) or call.get("type") != "function":
                    yield f"a call opens with {shown(call)}, without id and type"
                if not is_text(function.get("name")):
                    yield f"a call opens without a name: {shown(call)}"
            elif call.keys() & {"id", "type"} or "name" in function:
                yield "id, type or name of a call come again, which SDKs join"
            if not isinstance(function.get("arguments"), str):
                yield f"arguments are {shown(function.get('arguments'))}, no text"
    if len(set(map(str, ids))) < len(ids):
        yield f"two calls have one id: {shown(ids)}"


def calls_of(found: Chunks) -> list[tuple[str, str]]:
    """Return name and arguments of each call that the chunks add up to."""
    whole: dict[int, tuple[str, str]] = {}
    for _, delta in deltas_of(found):
        for call in delta.get("tool_calls") or ():
            name, arguments = whole.get(call["index"], ("", ""))
            function = call["function"]
            name += function.get("name") or ""
            whole[call["index"]] = (name, arguments + (function.get("arguments") or ""))
    return [whole[index] for index in sorted(whole)]
