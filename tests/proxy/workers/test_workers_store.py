"""Several workers that store completions: what one has stored, each of them can read at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.upstream import Upstream, whole
from tests.postgres import Server
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.workers.test_workers import ASKED, Workers, workers
from tests.waiting import until

COUNT = 24


async def asked(running: Workers, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """Ask over a connection of its own, so that any worker may get it; return status and body."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, running.url + path, **more) as response,
    ):
        return response.status, await response.json()


def write_config(
    upstream: Upstream, folder: Path, where: str, request: pytest.FixtureRequest
) -> Path:
    """Return the file of a configuration that stores in SQLite or PostgreSQL, as `where` says."""
    table = f'path = "{folder / "store.db"}"'
    if where == "postgres":
        server: Server = request.getfixturevalue("postgres")
        table = f'url = "{server.database()}"\nspool = "{folder / "spool.db"}"'
    file = folder / "w.toml"
    backend = f'[[backend]]\nurl = "{upstream.url}"\nadapter = "openai"\n'
    file.write_text(f"{backend}[store]\n{table}\n")
    return file


async def stored(running: Workers) -> str:
    """Store one completion; return its id."""
    status, body = await asked(running, "POST", CHAT, json={**ASKED, "store": True})
    assert status == 200, body
    return str(body["id"])


async def listed(running: Workers) -> list[str]:
    """Return the ids of all that is stored; [] while the database is down."""
    status, body = await asked(running, "GET", f"{CHAT}?limit=100")
    return [one["id"] for one in body["data"]] if status == 200 else []


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
async def test_each_worker_reads_at_once_what_another_has_stored(
    upstream: Upstream, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    """Rows are written some milliseconds after the answer; the reader has them written first."""
    file = write_config(upstream, tmp_path, where, request)
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    ids: list[str] = []
    async with workers(upstream, config=file) as running:
        await running.all(2)
        for _ in range(COUNT):
            ids.append(await stored(running))
            status, body = await asked(running, "GET", f"{CHAT}/{ids[-1]}")
            assert (status, body["id"]) == (200, ids[-1])
        assert await listed(running) == ids
        if where == "postgres":
            server: Server = request.getfixturevalue("postgres")
            await server.stop_beside()
            try:
                ids += await asyncio.gather(*(stored(running) for _ in range(COUNT)))
            finally:
                await server.start_beside()
            await until(lambda: has(running, ids), "both spools are replayed")
            await until(lambda: has_no_spool(running), "both spools are empty")
            assert (await running.metrics())["wellspoken_store_dropped_total"] == 0
    text = "\n".join(running.said)
    assert "ERROR" not in text and "lost" not in text


async def has_no_spool(running: Workers) -> bool:
    """Say whether no row waits for the database: they leave the spool after they came there."""
    return (await running.metrics())['wellspoken_store_rows{place="spool"}'] == 0


async def has(running: Workers, ids: list[str]) -> bool:
    """Say whether all of these are stored, each once."""
    return sorted(await listed(running)) == sorted(ids)
