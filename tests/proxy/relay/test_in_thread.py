"""Large bodies that a thread translates, while other parts of the same answer come."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.conforming_completions import piece
from tests.fakes.upstream import Gate, Upstream, event, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_completions import answered
from tests.proxy.relay.test_several import one, streamed
from tests.waiting import until
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.relay.send import LARGE


async def test_large_bodies_are_translated_beside_the_loop_and_in_order(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    texts = [letter * 300_000 for letter in "abc"]
    upstream.script_choices(7, *(whole(one(text)) for text in texts))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    found = await answered(proxy, n=3, seed=7)
    assert [x["text"] for x in found["choices"]] == texts


async def test_a_stream_waits_while_a_large_body_is_translated_in_a_thread(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes meanwhile is kept; there is one translator, which only one may use at a time."""
    busy, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    fed: list[bool] = []
    feed, translate = StreamTranslator.feed, StreamTranslator.whole

    def translate_slowly(translator: StreamTranslator, *arguments: Any, **named: Any) -> bytes:
        loop.call_soon_threadsafe(busy.set)
        go_on.wait(60)
        return translate(translator, *arguments, **named)

    def note_feed(translator: StreamTranslator, data: bytes, place: int) -> bytes:
        fed.append(go_on.is_set())
        return feed(translator, data, place)

    monkeypatch.setattr(StreamTranslator, "whole", translate_slowly)
    monkeypatch.setattr(StreamTranslator, "feed", note_feed)
    gates = [Gate() for _ in range(3)]
    large = whole(one("a" * LARGE, finish_reason="eos"))
    pieces = [step for gate in gates[1:] for step in (gate, event(piece("b")))]
    upstream.scripts = [[gates[0], *large], streamed(event(piece("b")), *pieces)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    asking = asyncio.create_task(answered(proxy, n=2, stream=True))
    await until(lambda: fed)
    gates[0].open()
    await busy.wait()
    before = len(fed)
    for gate in gates[1:]:
        gate.open()
        await asyncio.sleep(0.05)
    assert len(fed) == before
    go_on.set()
    found = await asking
    assert all(fed[before:]) and len(fed) > before
    assert sorted(x["text"] for x in found["choices"]) == ["a" * LARGE, "bbb"]
