"""What lets a test go on with a connection that the client keeps, once the server has shown it."""

from __future__ import annotations

import asyncio

from tests.clock import skip
from tests.waiting import until
from wellspoken.proxy.upstream.link import connections as module
from wellspoken.proxy.upstream.link.connections import Connections


async def pass_trial(connections: Connections) -> None:
    """Let the connection that is on trial outlast it."""
    await asyncio.sleep(0)
    skip(module.TRIAL)
    await until(lambda: connections.idle)
