"""What OpenAI's client makes of responses, and what of the chat answers that they must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseOutputText

TOLERANCE = 1e-4
LOGPROBS: Any = ["message.output_text.logprobs"]
Json = dict[str, Any]
Row = tuple[str, float, list[int] | None, list[tuple[str, float]]]
"""A token's text, its logprob, its bytes, and the texts and logprobs of its alternatives."""

VARYING = {"id", "created_at", "completed_at"}
"""What two answers to the same request may differ in."""


def text_parts(response: Response) -> list[ResponseOutputText]:
    """Return the parts of the response's messages."""
    messages = [item for item in response.output if item.type == "message"]
    return [part for item in messages for part in item.content if part.type == "output_text"]


def response_rows(response: Response) -> list[Row]:
    """Return the rows of a response whose text is one part; fail unless their bytes rebuild it."""
    [part] = text_parts(response)
    rows: list[Row] = [
        (
            entry.token,
            entry.logprob,
            entry.bytes,
            [(other.token, other.logprob) for other in entry.top_logprobs],
        )
        for entry in part.logprobs or ()
    ]
    spelled = b"".join(bytes(row[2] or ()) for row in rows)
    assert spelled.decode("utf-8", "replace") == part.text
    return rows


def chat_rows(completion: ChatCompletion) -> list[Row]:
    """Return the rows of a chat answer's only choice."""
    [choice] = completion.choices
    assert choice.logprobs is not None
    return [
        (
            entry.token,
            entry.logprob,
            entry.bytes,
            [(other.token, other.logprob) for other in entry.top_logprobs],
        )
        for entry in choice.logprobs.content or ()
    ]


def check_same_numbers(found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Fail unless each token's number and those of its alternatives are the other's.

    A server may list the sampled token first, whatever its number.
    """
    assert len(found) == len(expected) > 0
    for row, same in zip(found, expected, strict=True):
        numbers = [[number for _, number in one[3]] for one in (row, same)]
        assert numbers[0] == sorted(numbers[0], reverse=True)
        pairs = zip(
            [row[1], *numbers[0]], [same[1], *sorted(numbers[1], reverse=True)], strict=True
        )
        assert all(math.isclose(*pair, rel_tol=0, abs_tol=TOLERANCE) for pair in pairs)


def comparable(response: Response) -> Json:
    """Return a response without what may differ between two answers to one request."""
    body: Json = response.model_dump()
    for name in VARYING:
        body.pop(name, None)
    (body["usage"] or {}).pop("input_tokens_details", None)  # as much as is still cached
    for item in body["output"]:
        item.pop("id", None)
        item.pop("call_id", None)
    return body


def check_events(events: Sequence[Any], end: str = "response.completed") -> None:
    """Fail unless a stream is numbered without a gap, and begins and ends as one does."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == end and types.count(end) == 1
    for made in ("output_item", "content_part"):
        opened = [
            (e.output_index, getattr(e, "content_index", 0))
            for e in events
            if e.type == f"response.{made}.added"
        ]
        closed = [
            (e.output_index, getattr(e, "content_index", 0))
            for e in events
            if e.type == f"response.{made}.done"
        ]
        assert opened == closed


def spoken(events: Sequence[Any], kind: str) -> str:
    """Return the deltas of a kind, as "output_text", joined."""
    return "".join(event.delta for event in events if event.type == f"response.{kind}.delta")
