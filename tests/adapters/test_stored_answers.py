"""An answer that is stored: an id of its own, and what is kept of a stream is what it folds to."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from tests import replay
from tests.conformance import check_body
from tests.corpus import Fixture, fixtures
from tests.fold import comparable, fold
from tests.replay import SPLITS
from wellspoken.adapters.answer_schema import ChatCompletion
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.translate import StreamTranslator, translate_body

CHATS = [x for x in fixtures() if x.status < 300]
STREAMS = [x for x in CHATS if x.streamed and x.for_stream]
BODIES = [x for x in CHATS if not x.streamed and not x.for_stream]


def stored(fixture: Fixture) -> Exchange:
    exchange = replay.exchange(fixture.request, **replay.surroundings(fixture))
    exchange = structs.replace(exchange, stored=True)
    return exchange


def test_there_are_streams_and_bodies_to_store() -> None:
    assert len(STREAMS) > 50
    assert len(BODIES) > 100


@pytest.mark.no_cover
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("fixture", STREAMS, ids=lambda x: x.name)
def test_what_is_kept_of_a_stream_is_what_the_client_got(fixture: Fixture, split: str) -> None:
    translator = StreamTranslator(stored(fixture), fixture.dialect)
    parts = [translator.feed(piece) for piece in SPLITS[split](fixture.raw)]
    sent = b"".join([*parts, translator.close()])
    assert translator.kept is not None
    assert translator.written == len(sent)
    assert (translator.kept.fault is None) == (translator.fault is None)
    if translator.fault is not None:
        return
    kept = translator.kept.body()
    msgspec.json.decode(kept, type=ChatCompletion)
    assert json.loads(kept)["id"].startswith("chatcmpl-made")
    assert json.loads(kept)["usage"]["completion_tokens"] >= 0
    assert comparable(json.loads(kept)) == comparable(fold(sent))
    assert not check_body(kept, replace(fixture.asked, include_usage=False))


@pytest.mark.parametrize("fixture", BODIES, ids=lambda x: x.name)
def test_a_stored_body_differs_in_its_id_alone(fixture: Fixture) -> None:
    given = (fixture.status, fixture.content_type, fixture.raw, fixture.dialect)
    plain = translate_body(replay.exchange(fixture.request, **replay.surroundings(fixture)), *given)
    exchange = stored(fixture)
    kept = translate_body(exchange, *given)
    assert kept.status == plain.status
    if kept.status >= 300:
        return
    one, other = json.loads(kept.body), json.loads(plain.body)
    assert one["id"].startswith("chatcmpl-made")
    assert "id_not_chatcmpl" not in exchange.notes.counts
    assert comparable(one, usage=True) == comparable(other, usage=True)
    assert one.keys() == other.keys()


@pytest.mark.parametrize("off", [-90_000, -80_000, 80_000, 90_000])
def test_a_stored_answer_is_of_today(off: int) -> None:
    answer = {
        "id": "chatcmpl-0123456789",
        "object": "chat.completion",
        "created": replay.NOW + off,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}}],
    }
    answer["choices"][0]["finish_reason"] = "stop"  # type: ignore[index]
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    for kept in (False, True):
        exchange = replay.exchange(request)
        exchange = structs.replace(exchange, stored=kept)
        made = translate_body(exchange, 200, "application/json", json.dumps(answer).encode())
        right = not kept or abs(off) < 86_400
        assert json.loads(made.body)["created"] == replay.NOW + (off if right else 0)
        assert ("created_not_epoch" not in exchange.notes.counts) == right
