"""A wire between the proxy and a real server that keeps the bytes of what the server answered."""

from __future__ import annotations

import asyncio
from types import TracebackType
from urllib.parse import urlsplit


class Tee:
    """Passes connections on to `url`; `answered` is every byte that came back, `asked` that went.

    As an async context manager; `here` is its own base URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "", parts.port or 80)
        self.here = ""
        self.asked = b""
        self.answered = b""
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[object], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Tee:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.here = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for there in self._open.values():
            there.close()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(*self._to)
        this = asyncio.current_task()
        assert this is not None
        self._open[this] = there
        up = asyncio.create_task(self._pump(reader, there, up=True))
        try:
            await self._pump(back, writer, up=False)
        finally:
            up.cancel()
            there.close()
            writer.close()
            del self._open[this]

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while data := await reader.read(65_536):
            if up:
                self.asked += data
            else:
                self.answered += data
            writer.write(data)
            await writer.drain()

    @property
    def body(self) -> bytes:
        """The body of the last answer, without its chunks' framing."""
        head, _, rest = self.answered.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            body, rest = body + rest[:length], rest[length + 2 :]
        return body

    @property
    def request_body(self) -> bytes:
        """The body of the last request."""
        return self.asked.rpartition(b"POST ")[2].partition(b"\r\n\r\n")[2]
