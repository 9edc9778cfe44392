"""A client of a backend, for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client


@asynccontextmanager
async def client(url: str, **timeouts: float) -> AsyncIterator[Client]:
    """A client that is closed at the end."""
    made = Client(url, Timeouts(**timeouts))
    try:
        yield made
    finally:
        await made.close()
