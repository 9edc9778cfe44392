"""Probes of chat streams, of calls and of JSON as a schema has it."""

from __future__ import annotations

import json
from typing import Any

from wellspoken.adapters.answer_schema import ChatCompletionChunk, MessageToolCall
from wellspoken.proxy.doctor import contract, rules_logprobs, rules_stream
from wellspoken.proxy.doctor import probe_requests as requests
from wellspoken.proxy.doctor.probe import (
    Faults,
    ProbeContext,
    Responses,
    Unclear,
    Wrong,
    probe,
    quote,
)

_CONSTANT = ("id", "created", "model", "object")


@probe(
    "stream-framing",
    "A stream is data lines with an empty line after each, and data: [DONE] at the end.",
    requests.stream,
)
def framing(responses: Responses, context: ProbeContext) -> Faults:
    return rules_stream.check_framing(responses[0])


@probe(
    "stream-chunks",
    "Chunks have OpenAI's keys and no others, and one id, created and model.",
    requests.stream,
)
def chunks(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0], basic=True)
    others = frozenset({"finish_reason", "role", "usage", "id", "created"})  # have their own rules
    for chunk in found:
        yield from contract.find_faults(
            chunk, ChatCompletionChunk, "a chunk", unjudged=others, extra=rules_stream.OBFUSCATION
        )
    for key in _CONSTANT:
        values = {quote(chunk.get(key)) for chunk in found}
        if len(values) > 1:
            yield f"{key} changes within the stream: {', '.join(sorted(values)[:3])}"
    yield from contract.check_model(found[0], context)
    yield from contract.check_field(found[0], ChatCompletionChunk, "id")
    yield from contract.check_created(found[0], context)


@probe("stream-role", "The role comes once in a stream, before any text.", requests.stream)
def role(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0], basic=True)
    seen: set[str] = set()
    for choice, delta in rules_stream.list_deltas(found):
        index = quote(choice.get("index"))
        if index in seen:
            if "role" in delta:
                yield "the role is repeated, which SDKs join to assistantassistant"
            continue
        seen.add(index)
        if delta.get("role") != "assistant":
            yield f"the first delta's role is {quote(delta.get('role'))}"
        if "content" not in delta or delta["content"] not in ("", None):
            yield f"the first delta's content is {quote(delta.get('content'))}, not empty"
        if "refusal" not in delta:
            yield "the first delta has no refusal, which should be null"


@probe(
    "stream-finish",
    "finish_reason comes once in a stream, on an empty delta, and is null before.",
    requests.stream,
)
def finish(responses: Responses, context: ProbeContext) -> Faults:
    return rules_stream.check_finish(rules_stream.read_chunks(responses[0], basic=True))


@probe("stream-no-usage", "A stream has no usage unless asked for.", requests.stream)
def no_usage(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0], basic=True)
    if any("usage" in chunk for chunk in found):
        yield "usage is sent although it was not asked for; some clients add them up"
    if not all(contract.list_choices(chunk, "delta") for chunk in found):
        yield "a chunk has no choice"


@probe(
    "stream-usage",
    "include_usage gives one last chunk with usage and no choices; usage is null before.",
    requests.asking(stream=True, stream_options={"include_usage": True}),
)
def with_usage(responses: Responses, context: ProbeContext) -> Faults:
    *earlier, last = rules_stream.read_chunks(responses[0])
    if last.get("choices") != [] or last.get("usage") is None:
        yield "the last chunk is not one without choices that holds the usage"
    else:
        yield from contract.check_usage(last["usage"])
    if any(chunk.get("usage") is not None for chunk in earlier):
        yield "usage comes on more than the last chunk"
    if any("usage" not in chunk for chunk in earlier):
        yield "earlier chunks have no usage, which should be null"


@probe(
    "stream-characters", "A character of several tokens arrives whole in a stream.", requests.stream
)
def characters(responses: Responses, context: ProbeContext) -> Faults:
    text = rules_stream.join_text(rules_stream.read_chunks(responses[0], basic=True))
    if "\ufffd" in text and "\ufffd" not in context.text:
        yield f"a character of several tokens is broken: {quote(text)}"
    if not text and context.text:
        yield "the stream has no text, but the body has"


@probe(
    "stream-logprobs",
    "Each chunk has the logprobs entries of its own text.",
    requests.asking(stream=True, **requests.SCORED),
)
def stream_logprobs(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0])
    count = 0
    for choice, delta in rules_stream.list_deltas(found):
        text = delta.get("content") or ""
        if choice.get("logprobs") is None:
            if text:
                yield f"the chunk with the text {quote(text)} has no logprobs"
            continue
        count += len(rules_logprobs.read_entries(choice))
        yield from rules_logprobs.check_entries(choice)
        yield from rules_logprobs.check_tiling(choice, text)
        yield from rules_logprobs.check_alternatives(choice, requests.K)
    if not count and rules_stream.join_text(found):
        yield "no chunk has an entry"


@probe(
    "stream-n",
    "Streamed choices open in their order, and each ends once.",
    requests.asking(stream=True, n=2, **requests.SAMPLED),
)
def several_choices(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0])
    order = dict.fromkeys(quote(c.get("index")) for c, _ in rules_stream.list_deltas(found))
    if list(order) != ["0", "1"]:
        yield f"the choices come in the order {', '.join(order)}, not 0, 1"
    yield from rules_stream.check_finish(found)


def _require_end(finish: Any) -> None:
    if finish == "length":
        raise Unclear(f"the answer was not over after {requests.STRUCTURED} tokens")


def _read_calls(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a body, each with the keys of one. Raises Wrong and Unclear."""
    _require_end(choice.get("finish_reason"))
    calls = choice["message"].get("tool_calls")
    if not isinstance(calls, list) or not calls:
        raise Wrong(f"tool_calls is {quote(calls)}, although a call is required")
    for call in calls:
        for fault in contract.find_faults(call, MessageToolCall, "a call"):
            raise Wrong(f"{fault}: {quote(call)}")
    return calls


def _check_call(name: str, arguments: str) -> Faults:
    if name not in (requests.NAMED, requests.LIKELY):
        yield f"a call names the function {quote(name)}, which was not offered"
    try:
        whole = isinstance(json.loads(arguments), dict)
    except ValueError:
        whole = False
    if not whole:
        yield f"arguments are {quote(arguments)}, no JSON object"


@probe("tools", "A required call comes with id, type, name and arguments as text.", requests.tools)
def tools(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    calls = _read_calls(choice)
    for call in calls:
        yield from _check_call(**call["function"])
    if len({call["id"] for call in calls}) < len(calls):
        yield "two calls have one id"
    if choice.get("finish_reason") != "tool_calls":
        yield f"finish_reason is {quote(choice.get('finish_reason'))}, not tool_calls"


@probe("tool-named", "tool_choice of a function calls that one.", requests.one_tool)
def named_tool(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    functions = [call["function"] for call in _read_calls(choice)]
    names = [function["name"] for function in functions]
    if names != [requests.NAMED]:
        yield f"the calls are {quote(names)}, but {requests.NAMED} was asked for"
    for function in functions:
        yield from _check_call(**function)
    if choice.get("finish_reason") not in ("stop", "tool_calls"):
        yield f"finish_reason is {quote(choice.get('finish_reason'))}"


@probe(
    "tools-stream",
    "A streamed call opens with index, id, type and name, once, and goes on with arguments.",
    requests.tools_stream,
)
def tools_stream(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0])
    reasons = [choice.get("finish_reason") for choice, _ in rules_stream.list_deltas(found)]
    _require_end("length" if "length" in reasons else None)
    problems = list(rules_stream.check_tool_deltas(found))
    yield from problems
    if problems:
        return
    calls = rules_stream.join_calls(found)
    if not calls:
        yield "no call came, although one is required"
    for name, arguments in calls:
        yield from _check_call(name, arguments)
    if "tool_calls" not in reasons:
        yield "finish_reason is not tool_calls"


@probe(
    "json-schema",
    "response_format json_schema: the content is JSON as the schema says.",
    requests.json_schema,
)
def json_schema(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    _require_end(choice.get("finish_reason"))
    text = contract.content_of(choice)
    try:
        found = json.loads(text)
    except ValueError:
        raise Wrong(f"the content is {quote(text)}, no JSON") from None
    city = found.get("city") if isinstance(found, dict) and len(found) == 1 else None
    if city not in requests.CITIES:
        yield f"the content is {quote(text)}, which the schema does not allow"
