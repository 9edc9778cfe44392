"""What the clients make of an answer, and that they go on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.fakes.upstream import (
    DONE,
    Cut,
    Gate,
    Reset,
    Script,
    Stall,
    Upstream,
    event,
    stream,
    whole,
)
from tests.faults.clients import MODEL, TOKENS, Load, judge
from tests.faults.report import quantile
from tests.waiting import SECONDS

USAGE = {"completion_tokens": TOKENS}
BODY = {"choices": [{"message": {"content": "la"}}], "usage": USAGE}
EVENT = {"choices": [{"delta": {"content": "la"}, "finish_reason": None}]}
LAST = {"choices": [{"delta": {}, "finish_reason": "length"}]}
ERROR = {"error": {"message": "gone"}}


def framed(*events: bytes, end: bool = True) -> bytes:
    """Return a stream's bytes."""
    return b"".join(step for step in stream(*events, end=end) if isinstance(step, bytes))


def plain(body: Mapping[str, object], status: int = 200) -> bytes:
    """Return a body's bytes."""
    return b"".join(step for step in whole(dict(body), status) if isinstance(step, bytes))


STREAM = framed(event(EVENT), event(LAST), DONE)
CLOSED = "closed"


@pytest.mark.parametrize(
    ("answer", "error", "end", "why"),
    [
        (plain(BODY), "", "whole", ""),
        (STREAM, "", "whole", ""),
        (plain({**BODY, "usage": {"completion_tokens": 3}}), "", "broken", "3 tokens"),
        (plain(ERROR), "", "broken", "gone"),
        (plain(BODY)[:-5], CLOSED, "broken", CLOSED),
        (plain(BODY).partition(b"{")[0], CLOSED, "unstarted", CLOSED),
        (plain(ERROR, 502), "", "unstarted", "502: gone"),
        (b"", CLOSED, "unstarted", CLOSED),
        (STREAM[:30], CLOSED, "unstarted", CLOSED),
        (framed(end=False), CLOSED, "unstarted", CLOSED),
        (framed(event(ERROR), DONE), "", "unstarted", "{'message': 'gone'}"),
        (framed(event(EVENT), event(ERROR), DONE), "", "broken", "{'message': 'gone'}"),
        (framed(event(EVENT), end=False), CLOSED, "broken", CLOSED),
        (framed(event(EVENT), end=False)[:-20], CLOSED, "unstarted", CLOSED),
        (framed(event(EVENT), event(LAST)), "", "broken", "an end after 2 events"),
        (framed(event(EVENT), DONE), "", "broken", "an end after 1 events"),
    ],
)
def test_how_a_request_ended(answer: bytes, error: str, end: str, why: str) -> None:
    assert judge(answer, error) == (end, why)


async def test_clients_go_on_after_whatever_came() -> None:
    body = whole(BODY, headers=[("x-from", "one")])
    chunks = stream(event(EVENT), event(LAST), DONE, headers=[("x-from", "two")])
    scripts: list[Script] = [
        body,
        [Reset()],
        whole(ERROR, 503),
        stream(event(EVENT), Cut()),
        chunks,
    ]
    async with Upstream(*scripts) as server, asyncio.timeout(SECONDS):
        asked = Load(server.url, 1, lambda head: head.rpartition("x-from: ")[2][:3])
        asked.begin()
        await asked.wait_for(lambda record: len(record.samples) >= len(scripts))
        await asked.stop(10)
    found = asked.record.samples[: len(scripts)]
    assert [each.end for each in found] == ["whole", "unstarted", "unstarted", "broken", "whole"]
    assert [each.streams for each in found] == [True, False, True, False, True]
    assert [found[0].server, found[4].server] == ["one", "two"]
    assert 0 < found[0].first <= found[0].seconds
    assert found[1].first == 0
    sent = [request.json() for request in server.requests[:2]]
    assert [each["stream"] for each in sent] == [True, False]
    assert {each["model"] for each in sent} == {MODEL}


async def test_a_head_that_comes_alone_is_no_end() -> None:
    gate = Gate()
    chunks = stream(gate, event(EVENT), event(LAST), DONE, headers=[("Keep-Alive", "max=100")])
    async with Upstream(chunks) as server, asyncio.timeout(SECONDS):
        asked = Load(server.url, 1, lambda head: "")
        asked.begin()
        await gate.reached.wait()
        await asyncio.sleep(0)
        gate.open()
        await asked.wait_for(lambda record: record.samples)
        await asked.stop(10)
    assert {each.end for each in asked.record.samples} == {"whole"}


async def test_who_is_never_answered_is_counted() -> None:
    async with Upstream(stream(event(EVENT), Stall())) as server:
        asked = Load(server.url, 2, lambda head: "")
        asked.begin()
        await server.arrived.wait()
        await asked.stop(0.2)
    assert {each.why for each in asked.record.samples} == {"no answer"}
    assert len(asked.record.samples) == 2


def test_quantiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50, 99, 7)
