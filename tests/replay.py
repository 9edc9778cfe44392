"""Runs a fixture through the translation, whole or in pieces, with a fixed clock and fixed ids."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.corpus import Fixture
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.openai import decode_chat, exchange_for
from wellspoken.adapters.translate import StreamTranslator, translate_body

NOW = 1_760_000_000
Split = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True)
class Outcome:
    """What a client gets. A stream that failed before its first byte has no body, but a fault."""

    status: int
    body: bytes
    retry: bool | None
    fault: dict[str, Any] | None
    repairs: dict[str, int]

    def summary(self) -> dict[str, Any]:
        """Return everything but the body, as kept in expected.json."""
        kept = {"status": self.status, "retry": self.retry, "fault": self.fault}
        return {k: v for k, v in kept.items() if v is not None} | {
            "repairs": dict(sorted(self.repairs.items()))
        }


def exchange(request: dict[str, Any], **more: Any) -> Exchange:
    """Return the exchange of a request, its ids counted from 1."""
    ids = itertools.count(1)
    return exchange_for(
        decode_chat(json.dumps(request).encode()),
        now=NOW,
        new_id=lambda: f"made{next(ids):08d}",
        **more,
    )


def body(request: dict[str, Any], status: int, content_type: str, raw: bytes) -> Outcome:
    """Translate a whole body."""
    asked = exchange(request)
    answer = translate_body(asked, status, content_type, raw)
    return Outcome(answer.status, answer.body, answer.retry, None, asked.notes.counts)


def stream(request: dict[str, Any], pieces: Iterable[bytes]) -> Outcome:
    """Translate a stream that comes in pieces."""
    asked = exchange(request)
    translator = StreamTranslator(asked)
    out = b"".join([*[translator.feed(piece) for piece in pieces], translator.close()])
    fault = translator.fault
    told = None
    if fault is not None:
        keys = ("message", "type", "param", "code", "retry")
        told = {key: getattr(fault, key) for key in keys}
    status = 200 if out or fault is None else fault.status
    return Outcome(status, out, None, told, asked.notes.counts)


def replay(fixture: Fixture, split: Split = lambda raw: [raw]) -> Outcome:
    """Translate a fixture; a body is never split."""
    if fixture.streamed and fixture.status < 400:
        return stream(fixture.request, split(fixture.raw))
    return body(fixture.request, fixture.status, fixture.content_type, fixture.raw)


def by_byte(raw: bytes) -> Iterable[bytes]:
    """One byte at a time."""
    return (raw[n : n + 1] for n in range(len(raw)))


def at_random(raw: bytes, seed: int = 7) -> Iterable[bytes]:
    """Pieces of 0 to 60 bytes, the same each time."""
    dice = random.Random(seed)
    place = 0
    while place < len(raw):
        size = dice.randrange(61)
        yield raw[place : place + size]
        place += size


def with_crlf(raw: bytes) -> Iterable[bytes]:
    """The other usual line ending, split between its two characters too."""
    return at_random(raw.replace(b"\n", b"\r\n"), 8)


def with_cr(raw: bytes) -> Iterable[bytes]:
    """The third line ending of the SSE standard."""
    return at_random(raw.replace(b"\n", b"\r"), 9)


SPLITS: dict[str, Split] = {
    "by byte": by_byte,
    "at random": at_random,
    "CRLF": with_crlf,
    "CR": with_cr,
}
