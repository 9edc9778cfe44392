"""Responses for the doctor's judges: conforming ones, and mutants by what is to be said of them.

Constructed after openai-python's types and the Open Responses specification; the mutants are what
llama.cpp b11549, vLLM and others send (no sequence_number, no output_index, a truncated answer
that is completed, a forgotten turn), and keys left out.
"""

from __future__ import annotations

import json
from typing import Any

from tests.conforming import CREATED, MODEL, TEXT, entries
from tests.proxy.doctor.answers import Answers, Case, error, raw, said, without
from wellspoken.proxy.doctor.probe import ProbeResponse
from wellspoken.proxy.doctor.probe_requests import NAMED

Json = dict[str, Any]
NONE = [said({"detail": "Not Found"}, 404)]
"""What a server answers that has no such endpoint."""
USAGE = {
    "input_tokens": 19,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 6,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 25,
}


def text_part(text: str = TEXT, scores: Any = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*scores]}


def message_item(*parts: Json, **more: Any) -> Json:
    made = {"id": "msg_0123456789", "type": "message", "status": "completed", "role": "assistant"}
    return {**made, "content": [*parts] or [text_part()], **more}


def called_item(**more: Any) -> Json:
    made = {"id": "fc_0123456789", "type": "function_call", "status": "completed"}
    return {**made, "call_id": "call_1", "name": NAMED, "arguments": '{"tz": "UTC"}', **more}


def response(*items: Json, **more: Any) -> Json:
    """Return a whole response; what it says where its request says nothing is OpenAI's."""
    return {
        "id": "resp_0123456789",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "background": False,
        "completed_at": CREATED,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": MODEL,
        "output": [*items] or [message_item()],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 0.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": USAGE,
        "metadata": {},
        **more,
    }


def events(*changes: tuple[int, Json | None], text: str = TEXT) -> dict[int, Json]:
    """Return the events of a response by their number; None in a change leaves one out."""
    place = {"item_id": "msg_0123456789", "output_index": 0}
    part = {**place, "content_index": 0}
    begun = response(status="in_progress", completed_at=None, output=[], usage=None)
    opened = message_item(status="in_progress", content=[])
    made: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.content_part.added", **part, "part": text_part("")},
        {"type": "response.output_text.delta", **part, "delta": text[:3], "logprobs": []},
        {"type": "response.output_text.delta", **part, "delta": text[3:], "logprobs": []},
        {"type": "response.output_text.done", **part, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **part, "part": text_part()},
        {"type": "response.output_item.done", "output_index": 0, "item": message_item()},
        {"type": "response.completed", "response": response()},
    ]
    numbered = {n: {**event, "sequence_number": n} for n, event in enumerate(made)}
    for number, change in changes:
        if change is None:
            del numbered[number]
        else:
            numbered[number] = {**numbered[number], **change}
    return numbered


def framed(found: dict[int, Json], *, named: bool = True) -> ProbeResponse:
    """Return events as a stream, each under its name."""
    lines = []
    for event in found.values():
        name = f"event: {event.get('type')}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n")
    return raw("".join(lines).encode())


def bare(number: int, key: str) -> dict[int, Json]:
    """Return the events, one of them without a key."""
    found = events()
    return {**found, number: without(found[number], key)}


def scored(*changed: Json) -> Answers:
    found = [*changed, *entries(len(changed))]
    return [said(response(message_item(text_part(scores=found))))]


def texted(text: str, **more: Any) -> Answers:
    return [said(response(message_item(text_part(text)), **more))]


def continued(given: int, **more: Any) -> Answers:
    usage = {**USAGE, "input_tokens": given, "total_tokens": given + 6}
    later = response(usage=usage, **{"previous_response_id": "resp_0123456789", **more})
    return [said(response()), said(later)]


CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FULL = {**USAGE, "output_tokens": 16, "total_tokens": 35}
FIRST = entries(0, 1)[0]
RESPONSE_CASES = {
    "responses": Case(
        [said(response())],
        {
            "the response has no error, not even null": [said(without(response(), "error"))],
            "keys that are not OpenAI's: timings": [said(response(timings={}))],
            "none of message": [said(response({"type": "text"}))],
            "the message has no status": [said(response(without(message_item(), "status")))],
            "no annotations": [said(response(message_item(without(text_part(), "annotations"))))],
            "created_at": [said(response(created_at=None))],
            "not the one that was asked for": [said(response(model="other"))],
            "does not add up": [said(response(usage={**USAGE, "total_tokens": 7}))],
            "usage has no input_tokens": [said(response(usage={"prompt_tokens": 1}))],
            "output is null, no list": [said(response(output=None))],
            "an item is 7": [said(response(output=[7]))],
            "status is": [said(response(status="done"))],
            "has no text": [said(response(message_item(text_part(""))))],
        },
        lacks=NONE,
    ),
    "responses-stream": Case(
        [framed(events())],
        {
            "sequence_number of event 3": [framed(bare(3, "sequence_number"))],
            "has no output_index": [framed(bare(2, "output_index"))],
            'says ""': [framed(events(), named=False)],
            "begins with": [framed(events((1, None)))],
            'of the type "ping"': [framed(events((3, {"type": "ping"})))],
            "is added twice": [framed(events((3, {"type": "response.output_item.added"})))],
            "comes before it": [framed(events((2, None)))],
            "behind its end": [framed(events((5, {"type": "response.output_item.done"})))],
            "is not done at the end": [framed(events((8, None)))],
            "and not with the response": [framed(events((9, None)))],
            "the deltas are": [framed(events((5, {"delta": "?"})))],
            "delta is 7, no text": [framed(events((5, {"delta": 7})))],
            "content type": [ProbeResponse(200, {}, framed(events()).body)],
            "no event": [raw(b": nothing\n\n")],
        },
        lacks=NONE,
    ),
    "responses-logprobs": Case(
        scored(),
        {
            "no entry": [said(response())],
            "logprobs is null": [said(response(message_item({**text_part(), "logprobs": None})))],
            "the bytes of all tokens": scored(FIRST, FIRST),
            "has no top_logprobs": scored(without(FIRST, "top_logprobs")),
            "is 0.5": scored({**FIRST, "logprob": 0.5}),
        },
        lacks=[error("top_logprobs", "unsupported_parameter")],
    ),
    "responses-tools": Case(
        [said(response(called_item()))],
        {
            "no function_call came": [said(response())],
            "a call has no call_id": [said(response(without(called_item(), "call_id")))],
            "not offered": [said(response(called_item(name="rm")))],
            "no JSON object": [said(response(called_item(arguments="{'a': 1")))],
            "not completed": [said(response(called_item(), status="in_progress"))],
        },
        lacks=[error("tools", "unsupported_parameter")],
        unclear=[said(response(called_item(), **CUT))],
    ),
    "responses-json": Case(
        texted('{"city": "Rome"}'),
        {
            "no JSON": texted("Rome"),
            "does not allow": texted('{"city": "Paris"}'),
            "content is 7": [said(response(message_item(content=7)))],
            "text is 7": [said(response(message_item({**text_part(), "text": 7})))],
        },
        lacks=NONE,
        unclear=texted('{"city":', **CUT),
    ),
    "responses-incomplete": Case(
        [said(response(**CUT, usage=FULL))],
        {
            "not incomplete": [said(response(usage=FULL))],
            "without the reason": [said(response(usage=FULL, status="incomplete"))],
        },
        lacks=NONE,
        unclear=[said(response())],
    ),
    "responses-continue": Case(
        continued(40),
        {
            "it is forgotten": continued(8),
            "not the id": continued(40, previous_response_id=None),
            "by which nothing": [said(without(response(), "id"))] * 2,
        },
        lacks=[said(response()), error("previous_response_id", "unsupported_parameter")],
    ),
    "responses-error": Case(
        [error("temperature")],
        {
            "and not refused": [said(response())],
            "the status is 422": [error("temperature", status=422)],
            "param is null": [error()],
            "not in {'error'": [said({"detail": "no"}, 400)],
        },
        lacks=NONE,
    ),
    "responses-item": Case(
        [error("input[0].content[0].type")],
        {
            "and not refused": [said(response())],
            'param is "input"': [error("input")],
            "not in {'error'": [said({"detail": "no"}, 400)],
        },
        lacks=NONE,
    ),
}
