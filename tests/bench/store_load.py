"""The load of the loss tests: clients that ask for stored answers and note what they were given."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.data import Answer, Source
from tests.bench.forms import FORMS, MODEL
from tests.bench.load import Client, LoadError, connected, request
from tests.bench.process import child
from tests.bench.store_check import Ack, Ledger, crc

FORM = FORMS["vllm-0.32"]
_ID = re.compile(rb'"id":"(chatcmpl-[0-9A-Za-z]+)"')
_STATUS = b"HTTP/1.1 200"
_WARNING = b"x-wellspoken-warning:"
_NOT_STORED = b": not stored:"
TOKENS = 520
"""A body's, which makes about 4 kB."""
STREAMED = 60


@dataclass(frozen=True)
class Kind:
    """One kind of request, as bytes for one server, and the text that answers it."""

    data: bytes
    text: int
    stream: bool


@contextmanager
def upstream(where: set[int] | None) -> Iterator[Upstream]:
    """Run the scripted backend: `body` answers 4 kB whole, `stream` a short stream."""
    source = Source()
    answers = {"body": source.answer(TOKENS, 0), "stream": source.answer(STREAMED, 0)}
    with tempfile.TemporaryDirectory() as folder:
        for name, answer in answers.items():
            streamed = name == "stream"
            data = b"".join(FORM.stream(answer).events) if streamed else FORM.body(answer)
            named = data.replace(f'"{MODEL}"'.encode(), f'"{name}"'.encode())
            path = Path(folder) / f"{name}.{'sse' if streamed else 'json'}"
            path.write_bytes(named)
        with child(["-m", "tests.bench.upstream", folder], where) as server:
            yield Upstream(server.url, answers)


@dataclass(frozen=True)
class Upstream:
    """The backend and what it answers, by model."""

    url: str
    answers: dict[str, Answer]

    def kind(self, url: str, name: str, *, store: bool = True) -> Kind:
        """Return a request to the proxy at `url`."""
        stream = name == "stream"
        ask = asking(name, store=store, stream=stream)
        return Kind(request(url, ask), crc(self.answers[name].text.encode()), stream)

    def kinds(self, url: str) -> list[Kind]:
        """Return the mix of the loss tests: three bodies, one stream."""
        body, stream = self.kind(url, "body"), self.kind(url, "stream")
        return [body, body, stream, body]


def asking(model: str, *, store: bool, stream: bool) -> bytes:
    """Return the JSON of a request; with and without `store` it has the same length."""
    kept = b'"store":true ' if store else b'"store":false'
    more = b',"stream":true' if stream else b""
    return (
        b'{"model":"%b","messages":[{"role":"user","content":"Write a long and varied text, '
        b'please."}],"metadata":{"project":"bench","split":"train"},%b%b}'
    ) % (model.encode(), kept, more)


def note(ledger: Ledger, kind: Kind, answer: bytes, now: float) -> None:
    """Note an answer in the ledger, as an acknowledgement or as a client's error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(_STATUS):
        ledger.errors.append(answer[:300].decode("utf-8", "replace"))
        return
    found = _ID.search(body)
    whole = body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") if kind.stream else body[-1:] == b"}"
    if found is None or not whole:
        ledger.errors.append("not a whole answer: " + body[-300:].decode("utf-8", "replace"))
        return
    if _WARNING in head.lower() or (kind.stream and _NOT_STORED in body):
        ledger.warnings.append(head.decode("utf-8", "replace"))
        return
    told = None if kind.stream else crc(body)
    ledger.acknowledge(found[1].decode(), Ack(now, told, kind.text))


class Load:
    """Connections that ask in turn until `stop`; `rate` a second all together, 0 for no limit."""

    def __init__(self, url: str, kinds: list[Kind], connections: int, rate: float = 0.0) -> None:
        self.url = url
        self.kinds = kinds
        self.connections = connections
        self.rate = rate
        self.ledger = Ledger()
        self.changed = asyncio.Event()
        self.broken = 0
        self.times: list[tuple[float, float]] = []
        """When each was asked, and the seconds until its answer was whole."""
        self._ending = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect and begin."""
        clients = await connected(self.url, self.connections)
        self._tasks = [asyncio.create_task(self._ask(x, n)) for n, x in enumerate(clients)]

    async def _ask(self, client: Client, at: int) -> None:
        loop = asyncio.get_running_loop()
        assert client.transport is not None
        began, done = loop.time(), 0
        try:
            while not self._ending:
                if self.rate:
                    due = began + (done + at / self.connections) * self.connections / self.rate
                    await asyncio.sleep(max(0.0, due - loop.time()))
                kind = self.kinds[(at + done) % len(self.kinds)]
                asked = loop.time()
                answer = await client.ask(kind.data)
                now = loop.time()
                self.times.append((asked, now - asked))
                note(self.ledger, kind, answer, now)
                self.changed.set()
                done += 1
                if b"\r\nconnection: close" in answer[:1000].lower():
                    return
        except LoadError:
            self.broken += 1  # the connection ended: expected of a server that was stopped
        finally:
            client.transport.close()

    async def until(self, count: int, seconds: float) -> None:
        """Wait until so many were acknowledged. Raises LoadError if that takes too long."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.ledger.acks) < count:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            got, errors = len(self.ledger.acks), self.ledger.errors[:1]
            raise LoadError(f"{got} answers of {count} in {seconds:.0f} s {errors}") from None

    async def stop(self) -> None:
        """Let every connection end with the answer it waits for."""
        self._ending = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    async def ended(self) -> None:
        """Wait until the server has ended every connection."""
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)
