"""The upstream: a raw uvloop server that answers canned bytes, chosen by the request's model.

    python -m tests.bench.upstream FOLDER

FOLDER holds one file a model: `NAME.json` is a body, `NAME.sse` a stream that is sent at once,
`NAME.paced` a stream whose events are sent one every 5 ms, `NAME.slow` one every 200 ms. Each event
is one HTTP chunk. `GET /connections` is how many connections were made so far, and `GET /times` at
which moments (time.monotonic) the events of each model's last stream in time were written.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

PACES = {".paced": 0.005, ".slow": 0.2}
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
_JSON = _HEAD % b"application/json" + b"Content-Length: %d\r\n\r\n"
_SSE = _HEAD % b"text/event-stream" + b"Transfer-Encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"x"}]}'
_END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Canned:
    """An answer: the first write, and the later ones, `pace` seconds from one to the next."""

    first: bytes
    later: list[bytes] = field(default_factory=list)
    pace: float = 0.0


@dataclass
class Seen:
    """What the upstream says of itself."""

    connections: int = 0
    times: dict[str, list[float]] = field(default_factory=dict)


def canned(folder: Path) -> dict[bytes, Canned]:
    """Return the answers in the folder, by model."""
    found: dict[bytes, Canned] = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        if path.suffix == ".json":
            found[path.stem.encode()] = Canned(_JSON % len(data) + data)
            continue
        chunks = [_chunk(event + b"\n\n") for event in data.removesuffix(b"\n\n").split(b"\n\n")]
        if path.suffix == ".sse":
            found[path.stem.encode()] = Canned(_SSE + b"".join(chunks) + _END)
        else:
            later = [*chunks[:-1], chunks[-1] + _END]
            found[path.stem.encode()] = Canned(_SSE, later, PACES[path.suffix])
    return found


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """Answers one request after another."""

    def __init__(self, answers: dict[bytes, Canned], seen: Seen) -> None:
        self.answers = answers
        self.seen = seen
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport: uvloop's is none of asyncio's classes, but does what they do."""
        self.transport = transport  # type: ignore[assignment]
        self.seen.connections += 1

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            _, _, length = head.partition(b"content-length:")
            size = int(length.split(b"\r\n")[0]) if length else 0
            if len(self.buffer) < end + 4 + size:
                return
            body = self.buffer[end + 4 : end + 4 + size]
            self.buffer = self.buffer[end + 4 + size :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        transport = self.transport
        assert transport is not None
        if head.startswith(b"get "):
            data = self._say(head.split()[1])
            transport.write(_JSON % len(data) + data)
            return
        model = body.partition(b'"model":')[2].lstrip().partition(b'"')[2].partition(b'"')[0]
        answer = self.answers[model]
        transport.write(answer.first)
        if answer.later:
            times: list[float] = []
            self.seen.times[model.decode()] = times
            self._pace(answer, times, asyncio.get_running_loop().time())

    def _say(self, path: bytes) -> bytes:
        if path == b"/connections":
            return b"%d" % self.seen.connections
        return json.dumps(self.seen.times).encode() if path == b"/times" else _MODELS

    def _pace(self, answer: Canned, times: list[float], due: float) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        times.append(time.monotonic())
        transport.write(answer.later[len(times) - 1])
        if len(times) < len(answer.later):
            due += answer.pace
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, due - loop.time()), self._pace, answer, times, due)


async def serve(folder: Path) -> None:
    """Listen on a free port, say so, and serve until killed."""
    answers, seen = canned(folder), Seen()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(answers, seen), "127.0.0.1", 0, backlog=4096
    )
    host, port = server.sockets[0].getsockname()[:2]
    print(f"listens on http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
