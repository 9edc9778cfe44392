"""Probes of POST /v1/responses.

A server that has no such endpoint says so of each, which breaks nothing: the proxy answers there.
"""

from __future__ import annotations

import json as plain_json
from typing import Any, Final

from msgspec import json

from wellspoken.proxy.doctor import contract, rules_logprobs
from wellspoken.proxy.doctor import probe_requests as requests
from wellspoken.proxy.doctor.probe import (
    PREVIOUS,
    Faults,
    Judge,
    ProbeContext,
    ProbeRequest,
    Requests,
    Responses,
    Unclear,
    Wrong,
    probe,
    quote,
)
from wellspoken.proxy.doctor.responses import response_rules as rules
from wellspoken.proxy.doctor.responses.response_shapes import FunctionCallItem, OutputTextContent

PATH: Final = "/v1/responses"
LEAST: Final = 16  # tokens: OpenAI takes no lower limit
_TOOLS = [{"type": "function", **tool["function"]} for tool in (requests.TOOL, requests.OTHER_TOOL)]


def response_request(context: ProbeContext, **more: Any) -> ProbeRequest:
    """Return a request for a response, greedy and short; `more` adds keys or replaces them."""
    body = {"model": context.model, "input": requests.QUESTION, "temperature": 0}
    return ProbeRequest(PATH, json.encode({**body, "max_output_tokens": requests.TOKENS, **more}))


def asking(**more: Any) -> Requests:
    """Return what makes one request; `more` as of `response_request`."""
    return lambda context: [response_request(context, **more)]


def _continued(context: ProbeContext) -> list[ProbeRequest]:
    first = response_request(context)
    later = response_request(context, input="Say it again.", previous_response_id=PREVIOUS)
    return [first, ProbeRequest(PATH, later.body, follows=first)]


plain, stream = asking(), asking(stream=True)
logprobs = asking(include=["message.output_text.logprobs"], top_logprobs=requests.K)
tools = asking(
    input="What day is it today?",
    tools=_TOOLS,
    tool_choice="required",
    max_output_tokens=requests.STRUCTURED,
)
json_schema = asking(
    input="Name a city, as JSON with the one key city.",
    max_output_tokens=requests.STRUCTURED,
    text={
        "format": {"type": "json_schema", "name": "city", "strict": True, "schema": requests.SCHEMA}
    },
)


def _require_whole(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("status") == "incomplete":
        raise Unclear("the answer was not over at its limit")
    return body


@probe(
    "responses",
    "A response has OpenAI's keys and no others, and so have its items and parts.",
    plain,
)
def response_body(responses: Responses, context: ProbeContext) -> Faults:
    body = rules.read_response(responses[0])
    yield from rules.check_response(body, context)
    if context.text and not rules.text_of(body):
        yield "the response has no text"


@probe(
    "responses-stream",
    "A response's events are named and numbered, in order; the last has the whole response.",
    stream,
)
def response_stream(responses: Responses, context: ProbeContext) -> Faults:
    events = rules.read_events(responses[0])
    if responses[0].content_type != "text/event-stream":
        yield f"the content type is {quote(responses[0].content_type)}, not text/event-stream"
    yield from rules.check_events(events)
    body = rules.last_response(events)
    yield from rules.check_response(body, context)
    deltas, text = rules.join_deltas(events), rules.text_of(body)
    if deltas != text:
        yield f"the deltas are {quote(deltas)}, but the response says {quote(text)}"


@probe(
    "responses-logprobs",
    "message.output_text.logprobs in include gives each token's, whose bytes are the text.",
    logprobs,
)
def response_logprobs(responses: Responses, context: ProbeContext) -> Faults:
    body = rules.read_response(responses[0])
    choice, text = rules.scored_choice(body), rules.text_of(body)
    if text and not rules_logprobs.read_entries(choice):
        yield "no entry, although there is text"
    for part in rules.list_texts(body):
        yield from contract.find_faults(part, OutputTextContent, "the text")
    yield from rules_logprobs.check_tiling(choice, text)
    yield from rules_logprobs.check_alternatives(choice, requests.K)


@probe("responses-tools", "A required call is an item function_call, with a call_id.", tools)
def response_tools(responses: Responses, context: ProbeContext) -> Faults:
    body = _require_whole(rules.read_response(responses[0]))
    calls = rules.list_items(body, "function_call")
    if not calls:
        raise Wrong("no function_call came, although one is required")
    for call in calls:
        for fault in contract.find_faults(call, FunctionCallItem, "a call"):
            raise Wrong(fault)
        if call["name"] not in (requests.NAMED, requests.LIKELY):
            yield f"a call names the function {quote(call['name'])}, which was not offered"
        if not _is_object(call["arguments"]):
            yield f"arguments are {quote(call['arguments'])}, no JSON object"
    yield from rules.check_status(body, "completed")


def _is_object(text: str) -> bool:
    try:
        return isinstance(plain_json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@probe(
    "responses-json", "text.format json_schema: the text is JSON as the schema says.", json_schema
)
def response_json(responses: Responses, context: ProbeContext) -> Faults:
    text = rules.text_of(_require_whole(rules.read_response(responses[0])))
    try:
        found = plain_json.loads(text)
    except (ValueError, RecursionError):
        raise Wrong(f"the text is {quote(text)}, no JSON") from None
    city = found.get("city") if isinstance(found, dict) and len(found) == 1 else None
    if city not in requests.CITIES:
        yield f"the text is {quote(text)}, which the schema does not allow"


@probe(
    "responses-incomplete",
    "A response that was cut says incomplete, and max_output_tokens as its reason.",
    asking(input="Count from 1 to 300.", max_output_tokens=LEAST),
)
def response_incomplete(responses: Responses, context: ProbeContext) -> Faults:
    body = rules.read_response(responses[0])
    made = rules.count_of(body, "output_tokens")
    if made is not None and made < LEAST:
        raise Unclear("the answer was over before its limit")
    yield from rules.check_status(body, "incomplete")
    details = body.get("incomplete_details")
    if details != {"reason": "max_output_tokens"}:
        yield f"incomplete_details is {quote(details)}, without the reason max_output_tokens"


@probe(
    "responses-continue",
    "previous_response_id goes on from a response, whose turns are read again.",
    _continued,
)
def response_continued(responses: Responses, context: ProbeContext) -> Faults:
    first, second = [rules.read_response(one) for one in responses]
    if not isinstance(first.get("id"), str):
        raise Wrong(f"id is {quote(first.get('id'))}, by which nothing can be continued")
    if second.get("previous_response_id") != first["id"]:
        yield f"previous_response_id is {quote(second.get('previous_response_id'))}, not the id"
    before, now = (rules.count_of(body, "input_tokens") for body in (first, second))
    if before is not None and now is not None and now <= before:
        yield f"the second request has {now} tokens, the first {before}: it is forgotten"


def _require_refusal(param: str) -> Judge:
    def judge(responses: Responses, context: ProbeContext) -> Faults:
        one = responses[0]
        if one.status in (200, *rules.ABSENT):
            rules.require_response(one)
            raise Wrong("the request is answered, and not refused")
        if one.failure:
            raise Wrong(one.failure)
        if one.status != 400:
            yield f"the status is {one.status}, not 400"
        wrong = list(contract.check_error(one))
        if wrong:
            raise Wrong(f"status {one.status}: {'; '.join(wrong)}")
        found = contract.parse_object(one.body)["error"]["param"]
        if found != param:
            yield f"param is {quote(found)}, not {quote(param)}"

    return judge


response_error = probe(
    "responses-error",
    "POST /v1/responses: temperature 3 is 400, and param names it.",
    asking(temperature=3),
)(_require_refusal("temperature"))
response_item = probe(
    "responses-item",
    "A malformed item is 400, and param is its path.",
    asking(input=[{"role": "user", "content": [{"type": "output_sound", "text": "x"}]}]),
)(_require_refusal("input[0].content[0].type"))
