"""A proxy in a process of its own, and a backend that takes large bodies and answers when told."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.bench.process import Child, Program, run
from tests.ports import free_port

MB = 1_000_000
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "text": "Hi",
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


@dataclass
class Backend:
    """Reads each request to its end, keeps its size alone, and answers all once `go` is set."""

    answer: bytes = json.dumps(ANSWER).encode()
    status: int = 200
    go: asyncio.Event = field(default_factory=asyncio.Event)
    sizes: list[int] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)
    url: str = ""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if not head.startswith(b"post"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                size = left = int(head.partition(b"content-length:")[2].split()[0])
                while left:
                    left -= len(await reader.readexactly(min(left, MB)))
                async with self.came:
                    self.sizes.append(size)
                    self.came.notify_all()
                await self.go.wait()
                lines = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(self.answer)}\r\n"
                writer.write(f"{lines}Content-Type: application/json\r\n\r\n".encode())
                writer.write(self.answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self.tasks.discard(task)
            await end(writer)

    async def wait_for(self, requests: int) -> None:
        """Wait until so many have come."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.sizes) >= requests)


async def end(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def backend() -> AsyncIterator[Backend]:
    """Serve a backend."""
    made = Backend()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=MB)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in list(made.tasks):
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


@contextmanager
def proxy(url: str, *, adapter: str = "vllm", **environment: str) -> Iterator[Child]:
    """Run a proxy in front of `url`."""
    here = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "wellspoken", url, "--adapter", adapter, "--listen", here]
    with run(Program(command, f"http://{here}", environment), None) as child:
        yield child


async def post(url: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and body of a POST, on a connection of its own."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=MB)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        writer.write(head.encode())
        writer.write(body)
        answer = await reader.read()
    finally:
        await end(writer)
    head_, _, data = answer.partition(b"\r\n\r\n")
    return int(head_.split()[1]), data
