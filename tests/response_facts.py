"""Exchanges of requests to /v1/responses, and what the writers make of an answer's events."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from tests.replay import NOW
from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange, OfferedTool, ResponseFacts
from wellspoken.adapters.writers.response_body import ResponseBody
from wellspoken.adapters.writers.response_stream import ResponseStream

SUFFIX = "0123456789abcdef"
TOOLS = {
    "apply": OfferedTool("apply_patch", custom=True),
    "mcp_f": OfferedTool("f", "mcp"),
    "mcp_c": OfferedTool("c", "mcp", custom=True),
}


def facts(**echo: bytes) -> ResponseFacts:
    """Return a request's facts; `echo`: keys of the response that repeat it."""
    told = {key: Raw(value) for key, value in echo.items()}
    return ResponseFacts(suffix=SUFFIX, echo=told, clock=lambda: NOW + 5, tools=TOOLS)


def response_exchange(**more: Any) -> Exchange:
    """Return the exchange of a request."""
    ids = itertools.count(1)
    given = {"model": "m", "now": NOW, "new_id": lambda: f"made{next(ids):08d}"}
    return Exchange(**{**given, "response": facts(), "include_usage": True, **more})


def as_response(exchange: Exchange) -> Exchange:
    """Return a chat's exchange as that of the same request to /v1/responses."""
    return replace(exchange, response=facts(), include_usage=exchange.stream)


def stream_response(events: Sequence[Event], exchange: Exchange) -> tuple[bytes, ResponseStream]:
    """Return the stream of events that come one by one, and its writer."""
    write = ResponseStream(exchange)
    return b"".join(write([event]) for event in events), write


def write_body(events: Sequence[Event], exchange: Exchange) -> ResponseBody:
    """Return the writer of a body that has them all."""
    write = ResponseBody(exchange)
    write(list(events))
    return write
