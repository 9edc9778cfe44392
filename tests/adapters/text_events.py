"""Short events of a completions answer, and what its writers make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from tests.fold import payloads
from wellspoken.adapters.events import (
    UNKNOWN,
    Alternative,
    End,
    Entry,
    Event,
    Logprobs,
    Start,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import NULL, bytes_json, spell
from wellspoken.adapters.writers.arrays import ArrayWriter
from wellspoken.adapters.writers.completion_body import CompletionBody
from wellspoken.adapters.writers.completion_stream import CompletionStream

START = Start("cmpl-12345678", 1_741_570_283, "m")
HEAD = '"id":"cmpl-12345678","object":"text_completion","created":1741570283,"model":"m",'
NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")

Json = dict[str, Any]


def asked(**more: Any) -> Exchange:
    """Return the exchange of a completions request."""
    made: Json = {"model": "m", "now": 0, "new_id": lambda: "12345678", "kind": "completions"}
    return Exchange(**made | more)


def row(data: bytes | str, logprob: float = -0.5) -> Alternative:
    """Return an alternative of these bytes."""
    data = data.encode() if isinstance(data, str) else data
    return Alternative(spell(data), logprob, bytes_json(data))


def entry(data: bytes | str, logprob: float = -0.5, *top: Alternative) -> Entry:
    """Return an entry of these bytes, as the stages give it."""
    own = row(data, logprob)
    return Entry(own.token, logprob, own.bytes, list(top))


def silent(token: str = "", logprob: float = UNKNOWN, *top: Alternative) -> Entry:
    """Return an entry whose bytes are null."""
    return Entry(token, logprob, NULL, list(top))


def lp(*entries: Entry) -> Logprobs:
    """Return the entries of a piece of text."""
    return Logprobs(list(entries), False)


def arrays(exchange: Exchange, *pieces: Sequence[Entry], choice: int = 0) -> dict[str, list[Any]]:
    """Return the arrays of one choice that came in pieces, joined."""
    write = ArrayWriter(exchange, choice)
    joined: dict[str, list[Any]] = {name: [] for name in NAMES}
    for piece in pieces:
        for name, values in to_builtins(write(list(piece))).items():
            joined[name] += values
    return joined


def scored(k: int = 0, prompt: str = "", **more: Any) -> Exchange:
    """Return the exchange of a request for logprobs."""
    return asked(logprobs=True, k=k, prompts=(prompt,), **more)


def written(exchange: Exchange, *events: Event) -> list[str]:
    """Return the data of the stream's events, the envelope's keys left out."""
    counts = [] if exchange.include_usage else [Usage(1, 1)]  # only the end lets a reason out
    out = CompletionStream(exchange)([START, *events, *counts])
    return [x.decode().replace(HEAD, "") for x in payloads(out)]


def body(exchange: Exchange, *events: Event) -> str:
    """Return the body of these events, the envelope's keys left out."""
    writer = CompletionBody(exchange)
    writer([START, *events, Usage(1, 2), End(True)])
    assert writer.fault is None
    return writer.body().decode().replace(HEAD, "")
