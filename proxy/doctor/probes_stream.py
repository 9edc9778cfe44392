"""Probes of chat streams, of calls and of JSON as a schema has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from wellspoken.proxy.doctor import questions as ask
from wellspoken.proxy.doctor import rules, rules_logprobs, rules_stream
from wellspoken.proxy.doctor.model import Context, Heard, Lacks, Probe, Unclear, Wrong, shown

Answers = Sequence[Heard]


def framing(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the lines of a stream."""
    return rules_stream.framing(heard[0])


def chunks(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the keys of its chunks."""
    found = rules_stream.chunks_of(heard[0], basic=True)
    yield from rules_stream.chunks(found, "chat.completion.chunk", context.model)
    yield from rules.identity(found[0], "chatcmpl-")
    yield from rules.created(found[0], context)


def role(heard: Answers, context: Context) -> Iterator[str]:
    """Judge where the role stands."""
    return rules_stream.role(rules_stream.chunks_of(heard[0], basic=True))


def finish(heard: Answers, context: Context) -> Iterator[str]:
    """Judge where the finish reason stands."""
    return rules_stream.finishes(rules_stream.chunks_of(heard[0], basic=True))


def no_usage(heard: Answers, context: Context) -> Iterator[str]:
    """Judge whether usage comes unasked."""
    return rules_stream.no_usage(rules_stream.chunks_of(heard[0], basic=True))


def with_usage(heard: Answers, context: Context) -> Iterator[str]:
    """Judge usage that was asked for."""
    return rules_stream.with_usage(rules_stream.chunks_of(heard[0]))


def characters(heard: Answers, context: Context) -> Iterator[str]:
    """Judge whether characters of several tokens survive."""
    text = rules_stream.text_of(rules_stream.chunks_of(heard[0], basic=True))
    if "\ufffd" in text and "\ufffd" not in context.text:
        yield f"a character of several tokens is broken: {shown(text)}"
    if not text and context.text:
        yield "the stream has no text, but the body has"


def stream_logprobs(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the entries of each chunk against its own text."""
    found = rules_stream.chunks_of(heard[0])
    count = 0
    for choice, delta in rules_stream.deltas_of(found):
        text = delta.get("content") or ""
        if choice.get("logprobs") is None:
            if text:
                yield f"the chunk with the text {shown(text)} has no logprobs"
            continue
        count += len(rules_logprobs.entries_of(choice))
        yield from rules_logprobs.entries(choice)
        yield from rules_logprobs.tiling(choice, text)
        yield from rules_logprobs.alternatives(choice, ask.K)
    if not count and rules_stream.text_of(found):
        yield "no chunk has an entry"


def several(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a stream of two choices."""
    found = rules_stream.chunks_of(heard[0])
    order = dict.fromkeys(shown(c.get("index")) for c, _ in rules_stream.deltas_of(found))
    if list(order) != ["0", "1"]:
        yield f"the choices come in the order {', '.join(order)}, not 0, 1"
    yield from rules_stream.finishes(found)


def _uncut(finish: Any) -> None:
    if finish == "length":
        raise Unclear(f"the answer was not over after {ask.STRUCTURED} tokens")


def tools(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a body with a call that had to come."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    _uncut(choice.get("finish_reason"))
    calls = choice["message"].get("tool_calls")
    if not isinstance(calls, list) or not calls:
        raise Wrong(f"tool_calls is {shown(calls)}, although a call is required")
    for call in calls:
        if not isinstance(call, dict) or call.keys() != {"id", "type", "function"}:
            raise Wrong(f"a call is {shown(call)}, not id, type and function")
        if not rules.is_text(call["id"]) or call["type"] != "function":
            yield f"a call has the id {shown(call['id'])} and the type {shown(call['type'])}"
        function = call["function"]
        if not isinstance(function, dict):
            raise Wrong(f"function is {shown(function)}, no object")
        yield from _called(function.get("name"), function.get("arguments"))
    if len({call["id"] for call in calls}) < len(calls):
        yield "two calls have one id"
    if choice.get("finish_reason") != "tool_calls":
        yield f"finish_reason is {shown(choice.get('finish_reason'))}, not tool_calls"


def _called(name: Any, arguments: Any) -> Iterator[str]:
    if name not in (ask.NAMED, ask.LIKELY):
        yield f"a call names the function {shown(name)}, which was not offered"
    if not isinstance(arguments, str):
        yield f"arguments are {shown(arguments)}, no text"
        return
    try:
        whole = isinstance(json.loads(arguments), dict)
    except ValueError:
        whole = False
    if not whole:
        yield f"arguments are {shown(arguments)}, no JSON object"


def tool_named(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a call that was asked for by name."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    _uncut(choice.get("finish_reason"))
    calls = choice["message"].get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Wrong(f"tool_calls is {shown(calls)}, although a call is asked for")
    functions = [call.get("function") for call in calls]
    names = [one.get("name") if isinstance(one, dict) else one for one in functions]
    if names != [ask.NAMED]:
        yield f"the calls are {shown(names)}, but {ask.NAMED} was asked for"
    for one in functions:
        if isinstance(one, dict):
            yield from _called(one.get("name"), one.get("arguments"))
    if choice.get("finish_reason") not in ("stop", "tool_calls"):
        yield f"finish_reason is {shown(choice.get('finish_reason'))}"


def tools_stream(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a streamed call."""
    found = rules_stream.chunks_of(heard[0])
    reasons = [choice.get("finish_reason") for choice, _ in rules_stream.deltas_of(found)]
    _uncut("length" if "length" in reasons else None)
    problems = list(rules_stream.tool_deltas(found))
    yield from problems
    if problems:
        return
    calls = rules_stream.calls_of(found)
    if not calls:
        yield "no call came, although one is required"
    for name, arguments in calls:
        yield from _called(name, arguments)
    if "tool_calls" not in reasons:
        yield "finish_reason is not tool_calls"


def json_schema(heard: Answers, context: Context) -> Iterator[str]:
    """Judge an answer that has to follow a schema."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    _uncut(choice.get("finish_reason"))
    text = rules.content_of(choice)
    try:
        found = json.loads(text)
    except ValueError:
        raise Wrong(f"the content is {shown(text)}, no JSON") from None
    city = found.get("city") if isinstance(found, dict) and len(found) == 1 else None
    if city not in ask.CITIES:
        yield f"the content is {shown(text)}, which the schema does not allow"


def error_of(heard: Heard) -> dict[str, Any]:
    """Return an error's object where it has OpenAI's form. Raises Wrong."""
    if heard.failure:
        raise Wrong(heard.failure)
    wrong = list(rules.error_object(heard))
    if wrong:
        raise Wrong(f"status {heard.status}: {'; '.join(wrong)}")
    found: dict[str, Any] = rules.object_of(heard.body)["error"]
    return found


def refused(status: int, param: str | None = None, code: str | None = None) -> Any:
    """Return the judge of an answer that has to be an error."""

    def judge(heard: Answers, context: Context) -> Iterator[str]:
        one = heard[0]
        if one.status == 200:
            if (
                status == 404
                and code == "model_not_found"
                and rules.only_choice(rules.body_of(one))
            ):
                raise Lacks("the server answers whatever the model is called")
            raise Wrong("the request is answered, and not refused")
        if one.status != status and not one.failure:
            yield f"the status is {one.status}, not {status}"
        error = error_of(one)
        if param is not None and error["param"] != param:
            yield f"param is {shown(error['param'])}, not {shown(param)}"
        if code is not None and error["code"] != code:
            yield f"code is {shown(error['code'])}, not {shown(code)}"

    return judge


STREAMS = (
    Probe(
        "stream-framing",
        "A stream is data lines with an empty line after each, and data: [DONE] at the end.",
        ask.streamed,
        framing,
    ),
    Probe(
        "stream-chunks",
        "Chunks have OpenAI's keys and no others, and one id, created and model.",
        ask.streamed,
        chunks,
    ),
    Probe("stream-role", "The role comes once, before any text.", ask.streamed, role),
    Probe(
        "stream-finish",
        "finish_reason comes once, on an empty delta, and is null before.",
        ask.streamed,
        finish,
    ),
    Probe("stream-no-usage", "A stream has no usage unless asked for.", ask.streamed, no_usage),
    Probe(
        "stream-usage",
        "include_usage gives one last chunk with usage and no choices, null before.",
        lambda context: [ask.chat(context, stream=True, stream_options={"include_usage": True})],
        with_usage,
    ),
    Probe(
        "stream-characters",
        "A character of several tokens arrives whole.",
        ask.streamed,
        characters,
    ),
    Probe(
        "stream-logprobs",
        "Each chunk has the entries of its own text.",
        lambda context: [ask.chat(context, stream=True, logprobs=True, top_logprobs=ask.K)],
        stream_logprobs,
    ),
    Probe(
        "stream-n",
        "Streamed choices open in their order, and each ends once.",
        lambda context: [ask.chat(context, stream=True, n=2, **ask.SAMPLED)],
        several,
    ),
)
TOOLS = (
    Probe(
        "tools",
        "A required call comes with id, type, name and arguments as text.",
        ask.calling,
        tools,
    ),
    Probe(
        "tool-named",
        "tool_choice of a function calls that one.",
        ask.named,
        tool_named,
    ),
    Probe(
        "tools-stream",
        "A streamed call opens with index, id, type and name, once, and goes on with arguments.",
        lambda context: ask.calling(context, stream=True),
        tools_stream,
    ),
    Probe(
        "json-schema",
        "response_format json_schema: the content is JSON as the schema says.",
        ask.structured,
        json_schema,
    ),
)
