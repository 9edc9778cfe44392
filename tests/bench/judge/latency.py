"""What the proxy adds to an event's way, at 3,000 events a second: with it and without, in turn.

The upstream notes when it wrote each event, the client when it came. Fifteen streams have an event
every 5 ms; `step`: all at the same moment, as an engine's step gives them, so that the last waits
for fourteen others; else spread over the 5 ms. The first events are the requests' start, whose cost
is another number.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.bench import load
from tests.bench.data import Source
from tests.bench.judge.loads import Case, case
from tests.bench.measure import Round
from tests.bench.upstream import PACES

STREAMS = 15  # of 200 events a second each
FIRST = 10  # events which are not counted
_MARK = b"data: "


@dataclass(frozen=True)
class Path:
    """A way to the upstream: the name of it, and where to ask."""

    name: str
    url: str


class Watch(load.Client):
    """A connection that notes when each event came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self._tail = b""

    def data_received(self, data: bytes) -> None:
        """Note the moment once for each event that begins in `data`."""
        now = time.monotonic()
        seen = self._tail + data
        self.times += [now] * seen.count(_MARK)
        self._tail = seen[-len(_MARK) + 1 :]
        super().data_received(data)


def streams(source: Source, events: int) -> list[Case]:
    """Return one load a stream, each with a model of its own by which the upstream knows it."""
    answer = source.answer(events, 5)
    return [case(f"stream{n}", "", answer, "paced", 1) for n in range(STREAMS)]


async def delays(found: list[Case], url: str, backend: str, step: bool) -> list[float]:
    """Return how many seconds each event of all streams was under way, the shortest first."""
    clients = [await load.connect(url, Watch) for _ in found]
    pause = 0.0 if step else PACES[".paced"] / len(found)

    async def ask(n: int) -> None:
        await asyncio.sleep(n * pause)
        clients[n].times.clear()
        load.body_of(found[n].name, await clients[n].ask(load.request(url, found[n].job.ask)))

    try:
        await asyncio.gather(*map(ask, range(len(found))))
    finally:
        for client in clients:
            client.close()
    written = await load.get(backend, "/times")
    return sorted(
        came - left
        for each, client in zip(found, clients, strict=True)
        for came, left in list(zip(client.times, written[each.name], strict=False))[FIRST:]
    )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of sorted values lies."""
    return values[min(int(len(values) * share), len(values) - 1)]


async def measure(found: list[Case], paths: list[Path], backend: str, step: bool) -> Round:
    """Return the milliseconds below which 50 and 99 % of the events came, on each path."""
    numbers: Round = {}
    for path in paths:
        values = await delays(found, path.url, backend, step)
        for share in (50, 99):
            numbers[f"{path.name}.p{share}"] = percentile(values, share / 100) * 1e3
    return numbers
