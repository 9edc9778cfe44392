"""The objects of a response: its items, their parts, its usage, itself; in OpenAI's key order.

A text is kept as the inside of its JSON string and logprobs as that of their list, since several
objects repeat them, and a stream has written them already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import Extra, Fault, Usage
from wellspoken.adapters.exchange import Notes, ResponseFacts
from wellspoken.adapters.writers.base_writers import encode
from wellspoken.adapters.writers.objects import extra_keys

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]

NULL: Final = Raw(b"null")
EMPTY: Final = Raw(b'""')
NOTHING: Final = Raw(b"[]")

ECHOED: Final[Mapping[str, Raw]] = {
    "background": Raw(b"false"),
    "instructions": NULL,
    "max_output_tokens": NULL,
    "max_tool_calls": NULL,
    "parallel_tool_calls": Raw(b"true"),
    "previous_response_id": NULL,
    "presence_penalty": Raw(b"0.0"),
    "frequency_penalty": Raw(b"0.0"),
    "prompt_cache_key": NULL,
    "reasoning": Raw(b'{"effort":null,"summary":null}'),
    "safety_identifier": NULL,
    "service_tier": Raw(b'"default"'),
    "store": Raw(b"true"),
    "temperature": Raw(b"1.0"),
    "text": Raw(b'{"format":{"type":"text"},"verbosity":"medium"}'),
    "tool_choice": Raw(b'"auto"'),
    "tools": NOTHING,
    "top_logprobs": Raw(b"0"),
    "top_p": Raw(b"1.0"),
    "truncation": Raw(b'"disabled"'),
    "user": NULL,
    "metadata": Raw(b"{}"),
}
"""The keys that repeat the request, each with what OpenAI answers where it does not say it."""

KEPT_CODES: Final = frozenset({"context_length_exceeded", "rate_limit_exceeded"})
"""Codes of an error that a failed response tells as they are."""
_CODES: Final = {408: "server_error", 409: "server_error", 429: "rate_limit_exceeded"}
"""Statuses of the client's that pass with time -> what a failed response tells."""


class OutputTextPart(Struct, gc=False, tag_field="type", tag="output_text"):
    text: Raw
    annotations: Raw
    logprobs: Raw


class OutputRefusalPart(Struct, gc=False, tag_field="type", tag="refusal"):
    refusal: Raw


class OutputReasoningPart(Struct, gc=False, tag_field="type", tag="reasoning_text"):
    text: Raw


class OutputReasoning(Struct, gc=False):
    id: str
    type: str
    summary: Raw
    content: list[Raw]
    status: ItemStatus


class OutputMessage(Struct, gc=False):
    id: str
    type: str
    status: ItemStatus
    role: str
    content: list[Raw]


class OutputCall(Struct, gc=False):
    id: str
    type: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: Raw
    namespace: str | UnsetType = UNSET


class OutputCustomCall(Struct, gc=False):
    id: str
    type: str
    status: ItemStatus
    call_id: str
    name: str
    input: Raw
    namespace: str | UnsetType = UNSET


class ResponseUsage(Struct, gc=False):
    input_tokens: int
    input_tokens_details: Raw
    output_tokens: int
    output_tokens_details: Raw
    total_tokens: int


class ResponseFailure(Struct, gc=False):
    code: str
    message: str


class IncompleteDetails(Struct, gc=False):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseObject(Struct, gc=False):
    id: str
    object: str
    created_at: int
    status: ResponseStatus
    background: Raw
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: Raw
    max_output_tokens: Raw
    max_tool_calls: Raw
    model: str
    output: list[Raw]
    parallel_tool_calls: Raw
    previous_response_id: Raw
    presence_penalty: Raw
    frequency_penalty: Raw
    prompt_cache_key: Raw
    reasoning: Raw
    safety_identifier: Raw
    service_tier: Raw
    store: Raw
    temperature: Raw
    text: Raw
    tool_choice: Raw
    tools: Raw
    top_logprobs: Raw
    top_p: Raw
    truncation: Raw
    usage: ResponseUsage | None
    user: Raw
    metadata: Raw


class ResponseEnvelope:
    """What all objects of one response have in common; `created`: epoch seconds.

    Keys of `facts.echo` that OpenAI's response has not are its last ones.
    """

    def __init__(self, facts: ResponseFacts, model: str, created: int) -> None:
        self.id = facts.id
        self.model = model
        self.created = created
        echo = {key: one_line(value) for key, value in facts.echo.items()}
        self.echo: dict[str, Any] = {key: echo.pop(key, ECHOED[key]) for key in ECHOED}
        self.more = [Extra("answer", None, key, value) for key, value in echo.items()]

    def write(
        self,
        status: ResponseStatus,
        output: list[Raw],
        *,
        completed_at: int | None = None,
        error: ResponseFailure | None = None,
        incomplete: IncompleteDetails | None = None,
        usage: ResponseUsage | None = None,
        extras: ResponseExtras | None = None,
    ) -> bytes:
        """Return the JSON of the response as it is now, on one line."""
        response = ResponseObject(
            id=self.id,
            object="response",
            created_at=self.created,
            status=status,
            completed_at=completed_at,
            error=error,
            incomplete_details=incomplete,
            model=self.model,
            output=output,
            usage=usage,
            **self.echo,
        )
        last = [*self.more, *(extras.kept() if extras is not None else ())]
        data = encode(response)
        return data[:-1] + extra_keys(last, line=True) + b"}" if last else data


OWN_KEYS: Final = frozenset(ResponseObject.__struct_fields__)


CHAT_KEYS: Final = frozenset({"annotations", "audio"})
"""Keys of a chat's message, which tell of its text, or say it: a response has other places."""


class ResponseExtras:
    """The kept keys outside the contract, which become the response's last ones.

    Of a key of the answer the last value is kept, as they may come with each piece; of a choice's
    lists all, which are joined. A key that a response has itself is dropped by name.
    """

    def __init__(self, facts: ResponseFacts, notes: Notes) -> None:
        self.taken = OWN_KEYS | facts.echo.keys() | CHAT_KEYS
        self.notes = notes
        self.by_key: dict[str, list[Extra]] = {}

    def add(self, extra: Extra) -> None:
        """Keep one."""
        if extra.key in self.taken:
            self.notes.drop(extra.key)
            return
        before = self.by_key.get(extra.key)
        pieces = extra.choice is not None and bytes(extra.value)[:1] == b"["
        if before is not None and pieces and bytes(before[-1].value)[:1] == b"[":
            before.append(extra)
        else:
            self.by_key[extra.key] = [extra]

    def kept(self) -> list[Extra]:
        """Return those kept, in the order of their keys' first."""
        return [extra for extras in self.by_key.values() for extra in extras]


def one_line(value: Raw) -> Raw:
    """Return JSON as it may stand in a stream's event, which is one line."""
    data = bytes(value)
    return Raw(json.format(data, indent=-1)) if b"\n" in data or b"\r" in data else value


def response_usage(usage: Usage | None) -> ResponseUsage | None:
    """Return OpenAI's usage object of a response; total is the sum."""
    if usage is None:
        return None
    given, made = usage.prompt or 0, usage.completion or 0
    return ResponseUsage(
        given,
        _details(usage.prompt_details, "cached_tokens", "cache_write_tokens"),
        made,
        _details(usage.completion_details, "reasoning_tokens"),
        given + made,
    )


def _details(told: Raw, *needed: str) -> Raw:
    """Return what was told of a count, behind what OpenAI's object always has."""
    found = json.decode(told, type=dict[str, Raw]) if bytes(told) else {}
    return one_line(Raw(encode(dict.fromkeys(needed, Raw(b"0")) | found)))


def response_failure(fault: Fault) -> ResponseFailure:
    """Return the error of a failed response: OpenAI has few codes for it."""
    code = fault.code if fault.code in KEPT_CODES else None
    if code is None:
        code = _CODES.get(fault.status, "server_error")
        if 400 <= fault.status < 500 and fault.status not in _CODES:
            code = "invalid_prompt"  # which clients do not send again
    return ResponseFailure(code, clean(fault.message))


def clean(text: str) -> str:
    """Return a text that can be written: half a surrogate pair, quoted from a backend, cannot."""
    return text.encode("utf-8", "replace").decode()
