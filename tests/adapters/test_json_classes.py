"""JSON of every class from a backend: an answer that conforms, or one error; nothing raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.adapters.test_fixtures import BY_NAME, violations
from tests.conforming import body, choice, chunk, finish, logprobs, role
from tests.conforming_completions import body as completion
from tests.corpus import Dialect, Fixture
from tests.json_classes import invalid, put_into, undecided, valid
from tests.replay import as_other, replay

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SCORED = {**ASKED, "logprobs": True, "top_logprobs": 2}
ANY = next(iter(BY_NAME.values()))


def answer(request: dict[str, Any], raw: bytes, kind: str = "application/json") -> Fixture:
    """Return an answer as a fixture that no server has sent."""
    fixture = replace(ANY, request=request, status=200, content_type=kind, raw=raw)
    dialect: Dialect = "completions" if "prompt" in request else "chat"
    return replace(fixture, dialect=dialect, vocabulary=None, recover=())


def spoil(value: object, key: str) -> object:
    """Return a copy in which every value under a key is the place for a document."""
    if isinstance(value, dict):
        return {k: "HERE" if k == key else spoil(v, key) for k, v in value.items()}
    return [spoil(item, key) for item in value] if isinstance(value, list) else value


CHAT_BODY = body(choice(logprobs=logprobs()))
TEXT_BODY = completion()
KEYS = (
    *("id", "created", "model", "choices", "usage", "total_tokens", "index", "finish_reason"),
    *("message", "content", "text", "logprob", "bytes", "top_logprobs"),
)
CHUNKS = [role(), chunk({"content": "Hi"}, logprobs=logprobs(0, 1)), finish()]


def bodies(document: bytes) -> Iterator[Fixture]:
    """Give whole answers that are the document, and that hold it."""
    yield answer(ASKED, document)
    yield answer({"model": "m", "prompt": "Hi"}, document)
    for key in KEYS:
        yield answer(SCORED, put_into(spoil(CHAT_BODY, key), document))
        yield answer({"model": "m", "prompt": "Hi"}, put_into(spoil(TEXT_BODY, key), document))
    yield answer(ASKED, put_into({**CHAT_BODY, "x": "HERE"}, document))
    yield answer(ASKED, put_into({"error": "HERE"}, document))


def streams(document: bytes) -> Iterator[Fixture]:
    """Give streams whose second event is the document, or holds it."""
    first, second, last = CHUNKS
    spoilt = [spoil(second, key) for key in (*KEYS, "delta", "logprobs")]
    for place in ("HERE", *spoilt, {**second, "x": "HERE"}):
        events = [json.dumps(first).encode(), put_into(place, document), json.dumps(last).encode()]
        raw = b"".join(b"data: " + event + b"\n\n" for event in (*events, b"[DONE]"))
        yield answer({**SCORED, "stream": True}, raw, "text/event-stream")


# What an answer that contradicts itself cannot hold (tests/adapters/properties).
UNKNOWN = {"7.replacement", "7.tiling"}


@pytest.mark.parametrize("made", [bodies, streams])
@pytest.mark.parametrize("documents", [valid, invalid, undecided])
def test_no_document_of_a_backend_breaks_the_translation(
    made: Callable[[bytes], Iterator[Fixture]], documents: Callable[[], Iterator[bytes]]
) -> None:
    for document in list(documents())[:: 3 if documents is invalid else 1]:
        for fixture in made(document):
            outcome = replay(fixture, lambda raw: [raw])
            rules = {violation.rule for violation in violations(fixture, outcome, None)}
            assert rules <= UNKNOWN, (rules, fixture.raw[:3000], outcome.body[:2000])
            as_other(fixture)
