"""A client and a backend that do anything in any order: each request has one end, and it is true.

A machine draws the acts. After each the test waits for what has to come of it, so that an example
is the same each time, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.examples import examples
from tests.fakes.upstream import event
from tests.proxy.conftest import envelope
from tests.proxy.exchanges.puppet import (
    FIRST,
    LAST,
    Ask,
    Client,
    Puppet,
    Reply,
    Turn,
    reset,
    text_event,
    whole_body,
)
from tests.waiting import until
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.server import Service
from wellspoken.proxy.upstream.link import connections

TEXT = st.sampled_from(["a", "é", "😀", " b", "\\n", '"', "data: ", "x" * 40])
PART = st.integers(1, 10_000)
BIG = "y" * 4000
FLOOD = 400  # events of `BIG`: more than the sockets between the two ends hold
Act = Callable[..., Coroutine[Any, Any, None]]


def descriptors() -> set[tuple[str, str]]:
    """Return this process's, each with what it is of: what others leave may go at any time."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of this look itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


class Exchanges(RuleBasedStateMachine):
    """Up to three clients at once, each with up to six requests on its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.fds = descriptors()
        self.loop = asyncio.new_event_loop()
        self.number = 0
        self.clients: list[Client] = []
        self.service: Service
        self.port: int
        self.run(self._start())

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step, and let the loop go round once more."""
        self.loop.run_until_complete(step)

    async def _start(self) -> None:
        self.puppet = Puppet()
        backend = {"adapter": "openai", "url": await self.puppet.start()}
        tables = {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}
        self.service = build(load(None, tables, {}))
        _, self.port = await self.service.start()
        self.tasks = len(asyncio.all_tasks())

    # --- what a client does ------------------------------------------------------------------

    @property
    def present(self) -> list[Client]:
        """The clients whose connections are open at both ends."""
        return [client for client in self.clients if not client.gone and not client.ended]

    @property
    def asking(self) -> list[Client]:
        """The clients with a request at the backend whose answer has not ended."""
        return [client for client in self.present if self._turn(client) is not None]

    def _turn(self, client: Client) -> Turn | None:
        ask = self._current(client)
        turn = None if ask is None else self.puppet.turn_of(ask)
        return None if turn is None or turn.over.is_set() else turn

    def _current(self, client: Client) -> Ask | None:
        """Return the request whose turn it is: the first that is not answered."""
        sent = client.asks[: len(client.asks) - bool(client.unsent)]
        return next((ask for ask in sent if not ask.whole and not ask.fault), None)

    async def _settle(self, client: Client) -> None:
        """Wait until the client's next request is at the backend, or the proxy has hung up."""
        ask = self._current(client)
        if ask is not None:
            await until(lambda: client.ended or self.puppet.turn_of(ask) is not None)

    @rule(place=st.integers(0, 2), streams=st.booleans(), at=PART, pieces=st.booleans())
    def send(self, place: int, streams: bool, at: int, pieces: bool) -> None:
        """Send a request whole or in pieces, perhaps behind others that are not answered."""
        self.run(self._send(place, streams, at, pieces=pieces, cut=False))

    @rule(place=st.integers(0, 2), at=PART)
    def send_stream(self, place: int, at: int) -> None:
        """Ask for a stream, which is what there are the most acts for."""
        self.run(self._send(place, True, at, pieces=False, cut=False))

    @rule(place=st.integers(0, 2), streams=st.booleans(), at=PART)
    def send_part(self, place: int, streams: bool, at: int) -> None:
        """Send a request up to a point."""
        self.run(self._send(place, streams, at, pieces=False, cut=True))

    async def _send(self, place: int, streams: bool, at: int, *, pieces: bool, cut: bool) -> None:
        while len(self.present) <= place:
            self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        client = self.present[place]
        if client.unsent or len(client.asks) > 5:
            return
        self.number += 1
        ask = Ask(self.number, streams)
        sent = ask.data
        if pieces or cut:
            middle = at % len(sent)
            client.writer.write(sent[:middle])
            await client.writer.drain()
            await asyncio.sleep(0)
            sent = sent[middle:]
        if cut:
            client.unsent = sent
        else:
            client.writer.write(sent)
        client.asks.append(ask)
        await self._settle(client)

    @precondition(lambda self: any(client.unsent for client in self.present))
    @rule()
    def send_on(self) -> None:
        async def act() -> None:
            client = next(client for client in self.present if client.unsent)
            client.writer.write(client.unsent)
            client.unsent = b""
            await self._settle(client)

        self.run(act())

    @precondition(lambda self: self.present)
    @rule(data=st.data(), how=st.sampled_from(["", "", "", "close", "reset", "half"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        """Disconnect at times; what was asked of the backend for this client is closed there."""
        client = data.draw(st.sampled_from(self.present))
        if not how:
            return

        async def act() -> None:
            turn = self._turn(client)
            if how == "half":  # aiohttp ends the connection of who does not listen on either
                client.writer.write_eof()
                await until(lambda: client.ended)
            elif how == "reset":
                reset(client.writer)
            await client.leave()
            if turn is not None:
                await until(turn.closed.is_set, "the backend's connection closed")

        self.run(act())

    # --- what the backend does ---------------------------------------------------------------

    def _answering(self, data: st.DataObject) -> tuple[Client, Ask, Turn]:
        client = data.draw(st.sampled_from(self.asking))
        ask, turn = self._current(client), self._turn(client)
        assert ask is not None and turn is not None
        if not turn.begun and ask.streams:
            turn.head("text/event-stream")
            turn.chunk(FIRST)
        return client, ask, turn

    async def _end(self, client: Client, turn: Turn, *, close: bool = False) -> None:
        """End an answer and wait until the client has all of it, and its next request its turn."""
        before = client.answered
        turn.end(close=close)
        await until(lambda: client.ended or client.answered > before, "an answer")
        await self._settle(client)

    @precondition(lambda self: self.asking)
    @rule(data=st.data(), text=TEXT, at=PART, pieces=st.booleans(), comment=st.booleans())
    def tell(self, data: st.DataObject, text: str, at: int, pieces: bool, comment: bool) -> None:
        """Send an event, in two pieces or behind a comment."""
        _, ask, turn = self._answering(data)
        if not ask.streams:
            return

        async def act() -> None:
            sent = b": ping\n\n" * comment + text_event(text)
            place = at % len(sent)
            for piece in (sent[:place], sent[place:]) if pieces and place else (sent,):
                turn.chunk(piece)
                await asyncio.sleep(0)
            ask.told += text

        self.run(act())

    @precondition(lambda self: self.asking)
    @rule(data=st.data(), how=st.sampled_from(["keep", "close", "extra", "json"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        """Answer to the end: and keep the connection, close it, or send more than was asked."""
        client, ask, turn = self._answering(data)
        self.run(self._finish(client, ask, turn, how))

    async def _finish(self, client: Client, ask: Ask, turn: Turn, how: str = "keep") -> None:
        text = f"answer {ask.number}"
        ask.told += text
        if ask.streams:
            turn.chunk(text_event(text) + LAST)
            turn.write(b"0\r\n\r\n")
        else:
            sent = whole_body(ask.told)
            turn.head("application/json", len(sent))
            turn.write(sent)
        if how == "extra":
            turn.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        ask.whole = True
        await self._end(client, turn, close=how == "close")

    @precondition(lambda self: self.asking)
    @rule(
        data=st.data(),
        how=st.sampled_from(["cut", "reset", "error", "html", "json", "framing", "short"]),
    )
    def fail(self, data: st.DataObject, how: str) -> None:
        """Break an answer in the middle."""
        client, ask, turn = self._answering(data)

        async def act() -> None:
            ask.fault = how
            if not ask.streams:
                sent = whole_body(f"answer {ask.number}")
                if how == "html":
                    sent = b"<html><body>502 Bad Gateway</body></html>"
                    turn.head("text/html", len(sent))
                elif how == "error":
                    sent = b'{"error": {"message": "out of memory", "code": 500}}'
                    turn.head("application/json", len(sent))
                elif how == "json":
                    sent = b'{"choices": 7'
                    turn.head("application/json", len(sent))
                else:
                    turn.head("application/json", len(sent))
                    sent = sent[:-9]
                turn.write(sent)
            elif how == "error":
                turn.chunk(b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')
                turn.write(b"0\r\n\r\n")
            elif how in ("html", "json"):
                turn.chunk(b"<html>502</html>\n\n" if how == "html" else whole_body("x") + b"\n\n")
                turn.write(b"0\r\n\r\n")
            elif how == "framing":
                turn.write(b"zz\r\nno chunk\r\n")
            elif how == "short":
                turn.write(b"ff\r\ndata: {")
            if how == "reset":
                # What the proxy has not read by then is lost with the connection. Before a word
                # there is nothing to lose, and the answer's head may not have left either.
                if ask.streams and ask.told:
                    place = client.asks.index(ask)
                    await until(lambda: [x.text for x in client.replies[place:]] == [ask.told])
                reset(turn.writer)
            await self._end(client, turn, close=True)

        self.run(act())

    @precondition(lambda self: self.asking)
    @rule(data=st.data(), leaves=st.booleans())
    def flood(self, data: st.DataObject, leaves: bool) -> None:
        """Tell far more than a client reads that has stopped; it reads on, or leaves."""
        client, ask, turn = self._answering(data)
        if not ask.streams or len(ask.told) > 3 * len(BIG):
            return

        async def act() -> None:
            client.reading.clear()
            for _ in range(FLOOD):
                turn.chunk(text_event(BIG))
            ask.told += BIG * FLOOD
            if leaves:
                await client.leave()
                await until(turn.closed.is_set, "the backend's connection closed")
                return
            client.reading.set()
            await turn.writer.drain()

        self.run(act())

    # --- what has to hold at the end ---------------------------------------------------------

    def teardown(self) -> None:
        try:
            self.run(self._check_all())
        finally:
            self.loop.close()
        assert descriptors() <= self.fds

    async def _check_all(self) -> None:
        for client in self.clients:
            if not client.gone:
                await self._check(client)
                await client.leave()
        state = self.service.state
        await until(lambda: not state.inflight and not self.service.listener.connections)
        await self.service.stop()
        await until(lambda: not self.puppet.open, "no connection to the backend")
        await self.puppet.stop()
        await until(lambda: len(asyncio.all_tasks()) <= self.tasks, "no task left")

    async def _check(self, client: Client) -> None:
        """Answer what is open, ask once more where the connection is kept, and judge it all."""
        if not client.ended:
            client.writer.write(client.unsent)
            client.unsent = b""
            self.number += 1
            client.asks.append(last := Ask(self.number, streams=False))
            client.writer.write(last.data)
            await self._settle(client)
        while not client.ended and (ask := self._current(client)) is not None:
            turn = self._turn(client)
            assert turn is not None
            if ask.streams and not turn.begun:
                turn.head("text/event-stream")
                turn.chunk(FIRST)
            await self._finish(client, ask, turn)
        replies = client.replies
        assert len(replies) <= len(client.asks)
        for ask, reply in zip(client.asks, replies, strict=False):
            check_reply(ask, reply)
        if not client.ended:
            assert len(replies) == len(client.asks)
        else:  # only a failed answer ends a connection, and it has come all the same
            asked = [ask for ask in client.asks if ask.whole or ask.fault]
            assert len(replies) >= len(asked), (replies, client.asks)


def check_reply(ask: Ask, reply: Reply) -> None:
    """Assert that an answer is the request's own and whole, or says once that it failed."""
    assert reply.whole, reply
    if reply.status != 200:
        assert ask.fault and 500 <= reply.status <= 504, (ask, reply)
        envelope(reply.body)
        return
    if not ask.streams:
        assert not ask.fault, (ask, reply)
        assert json.loads(reply.body)["choices"][0]["message"]["content"] == ask.told
        return
    events = reply.events
    if ask.fault:
        assert [x for x in events if '"error"' in x[:10]] == [events[-1]], events
        envelope(events.pop())
        assert "[DONE]" not in events
    else:
        assert events.pop() == "[DONE]"
    assert reply.text == ask.told
    choices = [choice for x in events for choice in json.loads(x)["choices"]]
    ends = [x["finish_reason"] for x in choices if x["finish_reason"]]
    assert ends == ([] if ask.fault else ["stop"])


@pytest.mark.hypothesis
def test_every_exchange_has_one_true_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TRIAL", 0.0)  # so that connections are used again at once
    run_state_machine_as_test(
        Exchanges,
        settings=settings(
            max_examples=examples(120),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


ERROR = event({"error": {"message": "m", "type": "server_error", "param": None, "code": None}})
BEGUN = FIRST + text_event("a")
CUT, KEPT, BODY = Ask(1, True, "a", "cut"), Ask(1, True, "a"), Ask(1, False, "a")


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        (CUT, Reply(200, BEGUN + LAST, True)),  # an end that is none
        (CUT, Reply(200, BEGUN, True)),  # no end
        (CUT, Reply(200, BEGUN + ERROR + ERROR, True)),
        (CUT, Reply(200, BEGUN + ERROR + LAST, True)),
        (CUT, Reply(200, BEGUN + ERROR, False)),
        (CUT, Reply(502, b"Bad Gateway", True)),
        (KEPT, Reply(200, BEGUN + ERROR, True)),
        (KEPT, Reply(200, FIRST + text_event("b") + LAST, True)),  # another's answer
        (KEPT, Reply(502, ERROR.removeprefix(b"data: "), True)),
        (BODY, Reply(200, whole_body("b"), True)),
    ],
)
def test_an_end_that_is_not_true_is_rejected(ask: Ask, reply: Reply) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_reply(ask, reply)


def test_a_true_end_is_accepted() -> None:
    check_reply(CUT, Reply(200, BEGUN + ERROR, True))
    check_reply(CUT, Reply(502, ERROR.removeprefix(b"data: "), True))
    check_reply(KEPT, Reply(200, BEGUN + LAST, True))
    check_reply(BODY, Reply(200, whole_body("a"), True))
