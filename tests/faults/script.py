"""The two minutes: what happens to the servers and when, and what a front makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.clock import steady_clock
from tests.faults.clients import Load, Record
from tests.faults.fronts import Front
from tests.faults.servers import Server, serve

FAST, SLOW = 0.2, 0.07
"""Shares of a core: 50 to 60 answers a second, and 20."""

WARM = 5  # seconds of load that are not counted
PATIENCE = 60.0  # seconds for what is still open at the end


@dataclass(frozen=True)
class Fault:
    """What happens to a server; `at` in parts of the whole time."""

    at: float
    server: int
    what: Literal["kill", "start", "pause", "resume"]


FAULTS = (
    Fault(20 / 120, 0, "kill"),
    Fault(35 / 120, 0, "start"),
    Fault(50 / 120, 1, "pause"),
    Fault(70 / 120, 1, "resume"),
    Fault(80 / 120, 0, "kill"),
    Fault(95 / 120, 0, "start"),
)


@dataclass(frozen=True)
class Measured:
    """What clients had of a front in so many seconds; the servers' names."""

    record: Record
    seconds: float
    servers: list[str]


@dataclass(frozen=True)
class Plan:
    """What is measured: seconds, clients, the servers' shares of a core, what happens to them."""

    seconds: float
    clients: int = 50
    shares: tuple[float, ...] = (FAST, FAST, SLOW)
    faults: Sequence[Fault] = FAULTS
    warm: float = WARM


async def measure(front: Front, plan: Plan, model: Path, folder: Path) -> Measured:
    """Put the load on a front of servers of its own, while they fail. Raises StartError."""
    async with serve(model, plan.shares) as servers:
        with front.run(servers, folder) as running:
            load = Load(running.url, plan.clients, running.name_server)
            load.begin()
            await asyncio.sleep(plan.warm)
            load.record = Record()
            begin = time.monotonic()
            await _follow(plan, servers)
            took = time.monotonic() - begin
            await load.stop(PATIENCE)
    return Measured(load.record, took, [server.name for server in servers])


async def _follow(plan: Plan, servers: Sequence[Server]) -> None:
    """Let happen what is planned; for as long as nothing runs here no time passes."""
    async with steady_clock() as now:
        begin = now()

        async def wait(part: float) -> None:
            while (left := begin + part * plan.seconds - now()) > 0:
                await asyncio.sleep(left)

        for fault in plan.faults:
            await wait(fault.at)
            await getattr(servers[fault.server], fault.what)()
        await wait(1)
