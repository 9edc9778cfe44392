"""Runs a fixture through the translation, whole or in pieces, with a fixed clock and fixed ids."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.corpus import Dialect, Fixture
from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.chat import decode_chat, exchange_for
from wellspoken.adapters.requests.completions import decode_completion, exchange_for_completion
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.tokens.vocabulary import Vocabulary
from wellspoken.adapters.translate import StreamTranslator, fault_answer, translate_body

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
    ids, data = itertools.count(1), json.dumps(request).encode()
    given = {"now": NOW, "new_id": lambda: f"made{next(ids):08d}", **more}
    if "prompt" in request:
        return exchange_for_completion(decode_completion(data), **given)
    return exchange_for(decode_chat(data), **given)


def tokens(vocabulary: Mapping[str, int] | None) -> TokenTable:
    """Return the table of a configured tokenizer, or of none."""
    if vocabulary is None:
        return TokenTable()
    return TokenTable(Vocabulary({number: text.encode() for text, number in vocabulary.items()}))


def body(
    request: dict[str, Any],
    status: int,
    content_type: str,
    raw: bytes,
    dialect: Dialect = "chat",
    **given: Any,
) -> Outcome:
    """Translate a whole body."""
    asked = exchange(request, **given)
    answer = translate_body(asked, status, content_type, raw, dialect)
    return Outcome(answer.status, answer.body, answer.retry, None, asked.notes.counts)


def stream(
    request: dict[str, Any],
    pieces: Iterable[bytes],
    dialect: Dialect = "chat",
    **given: Any,
) -> Outcome:
    """Translate a stream that comes in pieces."""
    asked = exchange(request, **given)
    translator = StreamTranslator(asked, dialect)
    out = b"".join([*[translator.feed(piece) for piece in pieces], translator.close()])
    return _streamed(out, translator.fault, asked)


def stream_of_body(
    request: dict[str, Any],
    content_type: str,
    raw: bytes,
    dialect: Dialect = "chat",
    **given: Any,
) -> Outcome:
    """Translate a whole body for a client that asked for a stream."""
    asked = exchange(request, **given)
    found = body_as_stream(asked, content_type, raw, dialect)
    fault = found if isinstance(found, Fault) else None
    return _streamed(b"" if isinstance(found, Fault) else found, fault, asked)


def body_as_stream(
    asked: Exchange, content_type: str, data: bytes, dialect: Dialect = "chat"
) -> bytes | Fault:
    """Return the client's stream for a whole answer, or the fault that it is; nobody counts."""
    translator = StreamTranslator(asked, dialect)
    out = translator.whole(200, content_type, data)
    if translator.missing_counts() is not None:
        out += translator.add_counts(NOTHING)
    return out if translator.fault is None else translator.fault


def _streamed(out: bytes, fault: Fault | None, asked: Exchange) -> Outcome:
    told = None
    if fault is not None:
        keys = ("message", "type", "param", "code", "retry")
        told = {key: getattr(fault, key) for key in keys}
    status = 200 if out or fault is None else fault.status
    return Outcome(status, out, None, told, asked.notes.counts)


def replay(fixture: Fixture, split: Split = lambda raw: [raw]) -> Outcome:
    """Translate a fixture; only a stream for a stream is split."""
    dialect, given = fixture.dialect, surroundings(fixture)
    raw = (fixture.content_type, fixture.raw)
    if fixture.status >= 400 or not fixture.for_stream:
        return body(fixture.request, fixture.status, *raw, dialect, **given)
    if fixture.streamed:
        return stream(fixture.request, split(fixture.raw), dialect, **given)
    return stream_of_body(fixture.request, *raw, dialect, **given)


def surroundings(fixture: Fixture) -> dict[str, Any]:
    """Return what a fixture's exchange has from elsewhere than the request."""
    return {"tokens": tokens(fixture.vocabulary), "recover": frozenset(fixture.recover)}


def as_other(fixture: Fixture) -> tuple[dict[str, Any], Outcome]:
    """Translate a body for a client that wants a stream with usage, or a stream for one of a body.

    Returns the other client's request too.
    """
    request = {k: v for k, v in fixture.request.items() if not k.startswith("stream")}
    if fixture.streamed:
        asked = exchange(request, **surroundings(fixture))
        translator = StreamTranslator(asked, fixture.dialect, fold=True)
        translator.feed(fixture.raw)
        translator.close()
        answer = translator.answer()
        return request, Outcome(answer.status, answer.body, answer.retry, None, asked.notes.counts)
    request |= {"stream": True, "stream_options": {"include_usage": True}}
    asked = exchange(request, **surroundings(fixture))
    got = body_as_stream(asked, fixture.content_type, fixture.raw, fixture.dialect)
    if isinstance(got, Fault):
        failed = fault_answer(got)
        return request, Outcome(failed.status, failed.body, failed.retry, None, asked.notes.counts)
    return request, Outcome(200, got, None, None, asked.notes.counts)


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
