"""Clients that ask again as soon as they were answered, and what became of each request.

A request ends in one of three ways: `whole`; `unstarted`, where no byte of a body and no event of a
stream but an error had come; or `broken`, where one had.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.bench import load

End = Literal["whole", "unstarted", "broken"]
TOKENS = 40
AGAIN = 0.1  # seconds after a failure, or what fails at once would be all that is measured
MODEL = "tiny"
_DATA = b"data: "
_CLOSE = re.compile(rb"(?im)^connection: close\r?$")


@dataclass(frozen=True)
class Sample:
    """One request: seconds from its sending, the server that answered, `why` if not whole.

    `at` is when it ended, by `time.monotonic`.
    """

    streams: bool
    end: End
    seconds: float
    at: float
    first: float = 0.0
    server: str = ""
    why: str = ""


@dataclass
class Record:
    """What was sent and what came, in the order of the ends."""

    samples: list[Sample] = field(default_factory=list)

    def ended(self, end: End) -> list[Sample]:
        """Return the requests that ended so."""
        return [sample for sample in self.samples if sample.end == end]

    def served(self, server: str) -> int:
        """Return how many whole answers came from a server."""
        return sum(sample.server == server for sample in self.ended("whole"))


class Asker(load.Client):
    """One connection, which knows when an answer began."""

    def __init__(self) -> None:
        super().__init__()
        self.began = 0.0
        self.open = True

    def send(self, url: str, streams: bool) -> asyncio.Future[bytes]:
        """Send a request; the future is its whole answer."""
        self.began = 0.0
        return self.ask(load.request(url, body(streams)))

    def data_received(self, data: bytes) -> None:
        """Note the first byte of a body, or of a stream's first event."""
        super().data_received(data)
        if not self.began:
            head, _, rest = self.came.partition(b"\r\n\r\n")
            if _DATA in rest if _is_stream(head) else rest:
                self.began = time.monotonic()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits for an answer."""
        self.open = False
        super().connection_lost(exc)

    @property
    def came(self) -> bytes:
        """What has come of the present answer."""
        return b"".join(self.parts)


def body(streams: bool) -> bytes:
    """Return a request for an answer of just so many tokens."""
    messages = [{"role": "user", "content": "@loop Hi"}]
    asked = {"model": MODEL, "messages": messages, "max_tokens": TOKENS, "temperature": 0}
    return json.dumps({**asked, "stream": streams}).encode()


class Load:
    """So many clients, each with a connection of its own; every second request is a stream's.

    `name_server` reads off an answer's head which server gave it. Clients go on until `stop`.
    """

    def __init__(self, url: str, clients: int, name_server: Callable[[str], str]) -> None:
        self.url = url
        self.record = Record()
        self._name_server = name_server
        self._count = clients
        self._stops = False
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Let the clients ask."""
        self._tasks = [asyncio.create_task(self._repeat(n)) for n in range(self._count)]

    async def stop(self, patience: float) -> None:
        """Let no client ask again; what is not answered within `patience` seconds never was."""
        self._stops = True
        _, waiting = await asyncio.wait(self._tasks, timeout=patience)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def wait_for(self, condition: Callable[[Record], object]) -> None:
        """Wait until the record fulfils a condition, looking whenever a request has ended."""
        while not condition(self.record):
            self._news.clear()
            await self._news.wait()

    async def _repeat(self, number: int) -> None:
        client: Asker | None = None
        while not self._stops:
            streams = number % 2 == 0
            number += 1
            begin, error = time.monotonic(), ""
            try:
                if client is None or not client.open:
                    client = None
                    client = await load.connect(self.url, Asker)
                await client.send(self.url, streams)
            except (OSError, load.LoadError) as caught:
                error = str(caught)
            except asyncio.CancelledError:
                error, self._stops = "no answer", True
            end = self._note(client, streams, begin, error)
            if client is not None and (error or _CLOSE.search(_head(client.came))):
                client.close()
                client = None
            if end != "whole" and not self._stops:
                await asyncio.sleep(AGAIN)
        if client is not None:
            client.close()

    def _note(self, client: Asker | None, streams: bool, begin: float, error: str) -> End:
        answer = client.came if client is not None else b""
        end, why = judge(answer, error)
        server = self._name_server(_head(answer).decode("latin-1"))
        now = time.monotonic()
        first = client.began - begin if client is not None and client.began else 0.0
        self.record.samples.append(Sample(streams, end, now - begin, now, first, server, why))
        self._news.set()
        return end


def _head(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[0]


def _is_stream(head: bytes) -> bool:
    return b"text/event-stream" in head.lower()


def judge(answer: bytes, error: str = "") -> tuple[End, str]:
    """Say how a request ended by what came of its answer, and why if it is not whole.

    `error`: why no more of it came.
    """
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        rest = _unframe(rest)
    status = head[9:12].decode("latin-1")
    if status != "200":
        return "unstarted", error or f"{status}: {_reason(rest)}"
    if _is_stream(head):
        lines = [line for line in rest.splitlines() if line.startswith(_DATA)]
        return _judge_events([line[len(_DATA) :] for line in lines], error)
    if error:
        return ("broken" if rest else "unstarted"), error
    return _judge_body(rest)


def _unframe(data: bytes) -> bytes:
    """Return what the chunks hold, as far as they have come."""
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16) if rest else 0
        parts.append(rest[:length])
        data = rest[length + 2 :] if length else b""
    return b"".join(parts)


def _judge_body(data: bytes) -> tuple[End, str]:
    try:
        count = json.loads(data)["usage"]["completion_tokens"]
    except (ValueError, KeyError):
        return "broken", _reason(data)
    return ("whole", "") if count == TOKENS else ("broken", f"{count} tokens")


def _judge_events(events: list[bytes], error: str) -> tuple[End, str]:
    read: list[Any] = []
    for event in events:
        with suppress(ValueError):  # "[DONE]", and what was cut
            read.append(json.loads(event))
    errors = [str(each["error"]) for each in read if "error" in each]
    reasons = [each["choices"][0].get("finish_reason") for each in read if each.get("choices")]
    if "length" in reasons and events[-1] == b"[DONE]" and not (errors or error):
        return "whole", ""
    why = "".join(errors[:1]) or error or f"an end after {len(read)} events"
    return ("broken" if len(read) > len(errors) else "unstarted"), why[:200]


def _reason(data: bytes) -> str:
    """Return what an answer says of its error, short enough for a line."""
    found = re.search(rb'"message": *"([^"]*)', data) or re.search(rb"<title>(.*?)</title>", data)
    return (found[1] if found else data)[:200].decode("utf-8", "replace")
