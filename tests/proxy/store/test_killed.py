"""A proxy that is killed or asked to end under load: what its clients were given is stored.

`make bench-store` kills 200 proxies and measures how old the rows are that a kill costs in `async`
durability; here are a few, and a bound that holds on a busy machine too.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from msgspec import msgpack

from tests.bench.store_proxy import Proxy, configured, proxy
from tests.clock import steady_clock
from tests.conforming import body, finish, role, sse
from tests.conforming import chunk as part
from tests.fakes.upstream import Upstream, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES
from tests.waiting import until
from wellspoken.proxy.store.rows import Row

CLIENTS = 8
WINDOW = 0.5
"""Seconds of acknowledged answers that a kill may cost here in `async` durability."""
NOWHERE = "postgresql://me@127.0.0.1:1/nowhere"
ANSWERS = (
    whole(body()),
    stream(sse([role(), part({"content": "Hello"}), finish()])),
)


class Acknowledged:
    """Clients that ask for stored answers, and when each had its last byte by `clock`."""

    def __init__(self, url: str, streams: bool, clock: Callable[[], float]) -> None:
        self.at: dict[str, float] = {}
        self._clock = clock
        self._wanted = {"model": "m", "messages": MESSAGES, "store": True, "stream": streams}
        self._url = url + CHAT

    async def run(self) -> None:
        """Ask until the proxy is gone."""
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self._client(session) for _ in range(CLIENTS)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        with suppress(aiohttp.ClientError, ConnectionError):
            while True:
                async with session.post(self._url, json=self._wanted) as response:
                    data = await response.read()
                    assert response.status == 200, data
                first = data.partition(b"\n")[0].removeprefix(b"data: ")
                self.at[json.loads(first)["id"]] = self._clock()


async def loaded(
    tmp_path: Path,
    store: Mapping[str, object],
    end: Callable[[Proxy], None],
    seconds: float,
    streams: bool,
) -> tuple[Acknowledged, float]:
    """Ask for some seconds, then end the proxy; return what clients had, and when that was.

    Twenty answers at least. The moment is earlier by what the proxy has waited for a processor, and
    a machine that stands still does not count."""
    async with Upstream(ANSWERS[streams]) as upstream, steady_clock() as clock:
        file = configured(tmp_path, upstream.url, store)
        with await asyncio.to_thread(_started, file) as running:
            clients = Acknowledged(running.url, streams, clock)
            load = asyncio.create_task(clients.run())
            await until(lambda: len(clients.at) >= 20)
            before = delayed(running.pid)
            await asyncio.sleep(seconds)
            ended = clock() - (delayed(running.pid) - before)
            end(running)
            await running.ended()
            await load
    return clients, ended


def delayed(pid: int) -> float:
    """Return for how many seconds a process's threads could run and got no processor."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended meanwhile
            total += int(path.read_text().split()[1])
    return total / 1e9


class _started:
    """`proxy` as a context manager that is entered in a thread: it waits for the banner."""

    def __init__(self, file: Path) -> None:
        self._manager = proxy(file, None)
        self._running = self._manager.__enter__()

    def __enter__(self) -> Proxy:
        return self._running

    def __exit__(self, *error: object) -> None:
        self._manager.__exit__(None, None, None)


def stored(path: Path) -> list[str]:
    """Return the ids in a SQLite file, which must be whole."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = [id for (id,) in db.execute("SELECT id FROM completion")]
    db.close()
    return found


def spooled(path: Path) -> list[str]:
    """Return the ids in a spool, which must be whole."""
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = [data for (data,) in db.execute("SELECT data FROM row")]
    db.close()
    return [msgpack.decode(data, type=Row).id for data in rows]


@pytest.mark.parametrize("streams", [False, True], ids=["bodies", "streams"])
@pytest.mark.parametrize("durability", ["commit", "async"])
async def test_kill(tmp_path: Path, durability: str, streams: bool) -> None:
    path = tmp_path / "store.db"
    store = {"path": str(path), "durability": durability}
    seconds = random.uniform(0.2, 0.6)
    clients, ended = await loaded(tmp_path, store, Proxy.kill, seconds, streams)
    found = stored(path)
    assert len(found) == len(set(found))
    lost = [at for id, at in clients.at.items() if id not in set(found)]
    if durability == "commit":
        assert not lost
    else:
        assert all(ended - at < WINDOW for at in lost), [ended - at for at in lost]


async def test_kill_while_postgres_is_away(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    store = {"url": NOWHERE, "spool": str(path), "durability": "commit"}
    clients, _ = await loaded(tmp_path, store, Proxy.kill, 0.4, False)
    assert not set(clients.at) - set(spooled(path))


@pytest.mark.parametrize("engine", ["sqlite", "spool"])
async def test_an_orderly_end_loses_nothing(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "store.db"
    store = {"path": str(path)} if engine == "sqlite" else {"url": NOWHERE, "spool": str(path)}
    clients, _ = await loaded(tmp_path, store, Proxy.terminate, 0.5, False)
    found = stored(path) if engine == "sqlite" else spooled(path)
    assert len(found) == len(set(found))
    assert not set(clients.at) - set(found)


async def test_a_second_signal_still_writes_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def twice(running: Proxy) -> None:
        running.terminate()
        time.sleep(0.05)
        running.terminate()

    clients, _ = await loaded(tmp_path, {"path": str(path)}, twice, 0.5, True)
    assert not set(clients.at) - set(stored(path))
