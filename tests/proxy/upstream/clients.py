"""A client of a backend, for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client


@asynccontextmanager
async def client(url: str, **timeouts: float) -> AsyncIterator[Client]:
    """A client that is closed at the end, and keeps idle connections however slow the machine."""
    made = Client(url, Timeouts(**{"upstream_keep_alive": 3600.0, **timeouts}))
    try:
        yield made
    finally:
        await made.close()
