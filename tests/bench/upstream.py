"""The upstream: a raw uvloop server that answers canned bytes, chosen by the request's model.

    python -m tests.bench.upstream FOLDER

FOLDER holds one file a model: `NAME.json` is a body, `NAME.sse` a stream that is sent
at once, `NAME.paced` a stream whose events are sent one every 5 ms. Each event is one HTTP chunk.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

PACE = 0.005
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n"
_JSON = _HEAD % b"application/json" + b"Content-Length: %d\r\n\r\n"
_SSE = _HEAD % b"text/event-stream" + b"Transfer-Encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1,"owned_by":"x"}]}'
_END = b"0\r\n\r\n"

Canned = dict[bytes, tuple[bytes, list[bytes]]]
"""model -> the first write, and the later ones in their own time"""


def canned(folder: Path) -> Canned:
    """Return the answers in the folder."""
    found: Canned = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        if path.suffix == ".json":
            found[path.stem.encode()] = (_JSON % len(data) + data, [])
            continue
        chunks = [_chunk(event + b"\n\n") for event in data.removesuffix(b"\n\n").split(b"\n\n")]
        if path.suffix == ".sse":
            found[path.stem.encode()] = (_SSE + b"".join(chunks) + _END, [])
        else:
            found[path.stem.encode()] = (_SSE, [*chunks[:-1], chunks[-1] + _END])
    return found


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    """Answers one request after another."""

    def __init__(self, answers: Canned) -> None:
        self.answers = answers
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport: uvloop's is none of asyncio's classes, but does what they do."""
        self.transport = transport  # type: ignore[assignment]

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
            transport.write(_JSON % len(_MODELS) + _MODELS)
            return
        model = body.partition(b'"model":')[2].lstrip().partition(b'"')[2].partition(b'"')[0]
        first, later = self.answers[model]
        transport.write(first)
        if later:
            self._pace(later, 0, asyncio.get_running_loop().time())

    def _pace(self, later: list[bytes], n: int, due: float) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(later[n])
        if n + 1 < len(later):
            due += PACE
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, due - loop.time()), self._pace, later, n + 1, due)


async def serve(folder: Path) -> None:
    """Listen on a free port, say so, and serve until killed."""
    answers = canned(folder)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    print(f"listens on http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
