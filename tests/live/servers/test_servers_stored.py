"""Stored completions belong to the proxy, so they outlive the real server that answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.faults.servers import Server
from tests.live.servers.conftest import MODEL, InFront, Servers
from tests.models.tiny import TEXT
from tests.postgres import Server as Postgres


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def create_and_kill(client: openai.AsyncOpenAI, running: list[Server], number: int) -> str:
    """Store a completion, kill the server that gave it, and return its id."""
    asked: Any = {
        "model": MODEL,
        "temperature": 0,
        "messages": [{"role": "user", "content": f"Say hello {number}."}],
        "store": True,
        "metadata": {"number": str(number)},
    }
    raw = await client.chat.completions.with_raw_response.create(**asked)
    name = raw.headers["x-wellspoken-backend"]
    await running[int(name.removeprefix("llama/")) - 1].kill()
    return str(raw.parse().id)


async def check(client: openai.AsyncOpenAI, ids: list[str]) -> None:
    """Assert that what is stored is read, listed, changed and deleted."""
    completions = client.chat.completions
    assert [each.id async for each in completions.list(model=MODEL, order="asc")] == ids
    for number, one in enumerate(ids):
        assert (await completions.retrieve(one)).choices[0].message.content == TEXT
        said = [each.content async for each in completions.messages.list(one)]
        assert said == [f"Say hello {number}."]
        changed = await completions.update(one, metadata={"number": "new"})
        assert changed.metadata == {"number": "new"}
    for one in ids:
        assert (await completions.delete(one)).deleted
        with pytest.raises(openai.NotFoundError):
            await completions.retrieve(one)


async def test_what_is_stored_outlives_all_servers(
    servers: Servers, in_front: InFront, tmp_path: Path
) -> None:
    running = await servers(3)
    urls = [each.url for each in running]
    proxy = await in_front({"url": urls}, store={"path": str(tmp_path / "store.db")})
    async with client_of(proxy.url) as client:
        ids = [await create_and_kill(client, running, number) for number in range(3)]
        with pytest.raises(openai.InternalServerError):  # all three are dead
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hello?"}]
            )
        await check(client, ids)


async def test_another_proxy_of_the_same_servers_has_it_too(
    servers: Servers, in_front: InFront, postgres: Postgres
) -> None:
    running = await servers(3)
    backend = {"url": [each.url for each in running]}
    # An answer waits for its row, which the other proxy can read from then on.
    store = {"url": postgres.database(), "durability": "commit"}
    one, other = await in_front(backend, store=store), await in_front(backend, store=store)
    async with client_of(one.url) as first, client_of(other.url) as second:
        ids = [await create_and_kill(first, running, 0), await create_and_kill(second, running, 1)]
        await check(second, ids)
