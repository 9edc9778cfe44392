"""PostgreSQL away under load, through the whole proxy: no client sees it, nothing lost or doubled.

`make bench-store` does the same for a minute; here it is a few seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conforming import body
from tests.fakes.upstream import Upstream, whole
from tests.postgres import Server
from tests.proxy.conftest import Proxy, StartProxy
from tests.waiting import until
from wellspoken.proxy.store import completions, failover
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.queue import FAILS

CLIENTS = 4
PAUSE = 0.01


class Load:
    """Clients that ask for stored answers until they are told to stop; every answer is checked."""

    def __init__(self, proxy: Proxy) -> None:
        self.each: list[list[str]] = [[] for _ in range(CLIENTS)]
        self._proxy = proxy
        self._over = False
        self._tasks = [asyncio.create_task(self._client(ids)) for ids in self.each]

    @property
    def ids(self) -> list[str]:
        return [id for ids in self.each for id in ids]

    async def _client(self, ids: list[str]) -> None:
        while not self._over:
            async with await self._proxy.chat(store=True) as response:
                answer = await response.json()
                assert response.status == 200, answer
                assert "x-wellspoken-warning" not in response.headers
            ids.append(answer["id"])
            await asyncio.sleep(PAUSE)

    async def go_on(self, times: int = 10) -> None:
        """Wait until every client has had so many more answers: nobody's request is stuck."""
        wanted = [len(ids) + times for ids in self.each]

        def reached() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(len(ids) >= count for ids, count in zip(self.each, wanted, strict=True))

        await until(reached, "every client goes on")

    async def end(self) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


async def started(
    start_proxy: StartProxy, upstream: Upstream, url: str, path: Path, durability: str
) -> Proxy:
    upstream.script("/v1/chat/completions", whole(body()))
    store = {"url": url, "spool": str(path / "spool.db"), "durability": durability}
    proxy = await start_proxy(upstream, store=store)
    assert proxy.service.state.store is not None
    await proxy.service.state.store.open()
    assert (proxy.service.state.store.trouble, proxy.service.state.store.down) == ("", "")
    return proxy


async def in_spool(proxy: Proxy) -> float:
    return (await proxy.metrics())['wellspoken_store_rows{place="spool"}']


async def some_in_spool(proxy: Proxy) -> bool:
    return await in_spool(proxy) > 10


async def checked(proxy: Proxy, postgres: Server, url: str, load: Load) -> None:
    """Wait until the spool is replayed, then compare what is in PostgreSQL itself."""
    assert proxy.service.state.store is not None
    store = proxy.service.state.store

    async def replayed() -> bool:
        return not store.down and await in_spool(proxy) == 0

    await until(replayed)
    assert await store.get("", load.ids[-1]) is not None  # behind all that was added
    stored = postgres.run(
        "select convert_from(id, 'utf8') from wellspoken_completion", url.rpartition("/")[2]
    ).split()
    assert set(Counter(stored).values()) == {1}
    assert set(stored) == set(load.ids)
    metrics = await proxy.metrics()
    assert metrics["wellspoken_store_dropped_total"] == 0
    assert metrics['wellspoken_store_failures_total{reason="unavailable"}'] >= 1


@pytest.mark.parametrize("durability", ["async", "commit"])
async def test_an_outage(
    start_proxy: StartProxy,
    upstream: Upstream,
    postgres: Server,
    tmp_path: Path,
    durability: str,
) -> None:
    url = await asyncio.to_thread(postgres.database)
    proxy = await started(start_proxy, upstream, url, tmp_path, durability)
    load = Load(proxy)
    try:
        await load.go_on()
        await postgres.stop_beside()
        await load.go_on()
        await until(lambda: some_in_spool(proxy))
        status, _ = await proxy.get("/readyz")
        assert status == 200
    finally:
        await postgres.start_beside()
    await load.go_on()
    await load.end()
    await checked(proxy, postgres, url, load)


async def test_a_postgres_that_hangs(
    start_proxy: StartProxy,
    upstream: Upstream,
    postgres: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failover, "INSERT_SECONDS", 0.5)
    url = await asyncio.to_thread(postgres.database)
    proxy = await started(start_proxy, upstream, url, tmp_path, "commit")
    load = Load(proxy)
    await load.go_on()
    stopped: list[int] = []

    def are_there() -> list[int]:
        stopped[:] = backends(postgres, url)
        return stopped

    await until(are_there)  # where a transaction was late, there is no connection for a moment
    try:
        for pid in stopped:
            send(pid, signal.SIGSTOP)
        await load.go_on()  # also who asked before: nobody waits for the end of the hang
        await until(lambda: some_in_spool(proxy))
    finally:
        monkeypatch.setattr(failover, "INSERT_SECONDS", 60.0)  # it may be slow, and hangs no more
        for pid in stopped:
            send(pid, signal.SIGCONT)
    await load.go_on()
    await load.end()
    await checked(proxy, postgres, url, load)


async def test_a_postgres_that_comes_later(
    start_proxy: StartProxy, upstream: Upstream, postgres: Server, tmp_path: Path
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    url = await asyncio.to_thread(postgres.database)
    await postgres.stop_beside()
    try:
        keys = {"url": url, "spool": str(tmp_path / "spool.db"), "durability": "commit"}
        proxy = await start_proxy(upstream, store=keys)
        async with await proxy.chat(store=True) as response:
            id = (await response.json())["id"]
            assert "x-wellspoken-warning" not in response.headers
        assert (await proxy.get("/readyz"))[0] == 200
        async with proxy.session.get(proxy.url(f"/v1/chat/completions/{id}")) as response:
            assert response.status == 503
            assert response.headers["Retry-After"]
    finally:
        await postgres.start_beside()
    store = proxy.service.state.store
    assert store is not None
    await until(lambda: not store.down)
    assert (await proxy.get(f"/v1/chat/completions/{id}"))[1]["id"] == id


async def test_a_wrong_password_is_one_line_and_no_end(
    start_proxy: StartProxy,
    upstream: Upstream,
    postgres: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries, opened = [], PostgresDatabase.open

    async def noted(database: PostgresDatabase) -> None:
        tries.append(database)
        await opened(database)

    monkeypatch.setattr(PostgresDatabase, "open", noted)
    monkeypatch.setattr(completions, "RETRY_SECONDS", (0.05, 0.1))
    upstream.script("/v1/chat/completions", whole(body()))
    name = (await asyncio.to_thread(postgres.database)).rpartition("/")[2]
    url = postgres.url(name, password="canary-wrong")
    proxy = await start_proxy(upstream, store={"url": url, "spool": str(tmp_path / "spool.db")})
    assert proxy.service.state.store is not None
    await proxy.service.state.store.open()
    await until(lambda: len(tries) > 2)  # it is tried again, and not told again
    async with await proxy.chat(store=True) as response:
        assert response.status == 200
        assert response.headers["x-wellspoken-warning"] == f"not stored: {FAILS}"
    status, answer = await proxy.get("/readyz")
    assert status == 200
    assert "password" in answer["store"]
    assert [each.levelname for each in caplog.records if "stored" in each.message] == ["ERROR"]
    assert "canary" not in caplog.text + str(answer) + str(response.headers)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has just ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def backends(postgres: Server, url: str) -> list[int]:
    """Return those of one database, and the server's own, so that nobody new gets in; or none."""
    name = url.rpartition("/")[2]
    pids = postgres.run(f"select pid from pg_stat_activity where datname = '{name}'").split()
    if not pids:
        return []
    try:
        parent = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]
    except FileNotFoundError:  # it has just ended
        return []
    return [int(pid) for pid in [parent, *pids]]


async def test_a_postgres_that_is_down_and_a_spool_that_is_full(
    start_proxy: StartProxy, upstream: Upstream, postgres: Server, tmp_path: Path
) -> None:
    """Answers come, some of them are not stored and say so; what was taken is stored later."""
    upstream.script("/v1/chat/completions", whole(body()))
    url = await asyncio.to_thread(postgres.database)
    sizes = {"spool_size": 100_000, "queue": 20_000, "block": 0.05}
    store = {"url": url, "spool": str(tmp_path / "spool.db"), **sizes}
    proxy = await start_proxy(upstream, store=store)
    kept = proxy.service.state.store
    assert kept is not None
    await kept.open()
    await postgres.stop_beside()
    taken: list[str] = []
    full = 0
    try:
        # The queue may be full before: while the disk is slow.
        while full < 5 or "spool is full" not in (await proxy.get("/readyz"))[1].get("store", ""):
            async with await proxy.chat(store=True) as response:
                answer = await response.json()
                assert response.status == 200
                if "x-wellspoken-warning" in response.headers:
                    full += 1
                    assert "queue is full" in response.headers["x-wellspoken-warning"]
                else:
                    taken.append(answer["id"])
        status, told = await proxy.get("/readyz")
        assert (status, told["status"]) == (200, "ok") and "spool is full" in told["store"]
        async with proxy.session.get(proxy.url(f"/v1/chat/completions/{taken[0]}")) as response:
            assert response.status == 503 and response.headers["Retry-After"]
    finally:
        await postgres.start_beside()
    await until(lambda: not (kept.down or kept.trouble))
    for id in taken:
        assert await kept.get("", id) is not None
    assert await proxy.get("/readyz") == (200, {"status": "ok"})
