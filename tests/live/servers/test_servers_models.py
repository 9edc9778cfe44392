"""Models that share real servers, and OpenAI's client in front of a server that is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.live.servers.conftest import MODEL, InFront, Proxy, Servers
from tests.models.tiny import TEXT
from tests.ports import free_port
from tests.waiting import until

OUTSTANDING = "wellspoken_backend_outstanding"
REQUESTS = "wellspoken_requests_total"
MEAN = 1  # of the tokens' embeddings: llama.cpp's number for it


async def under_way(proxy: Proxy, count: int) -> dict[str, float]:
    """Return how many requests each server has once all have so many."""

    async def all_are_there() -> bool:
        return sum((await proxy.counts(OUTSTANDING)).values()) == count

    await until(all_are_there, f"{count} requests under way")
    return await proxy.counts(OUTSTANDING)


async def test_what_a_shared_server_has_counts_for_both_models(
    servers: Servers, in_front: InFront
) -> None:
    running = await servers(3)
    models: list[dict[str, Any]] = [
        {"name": "a", "models": ["x"]},
        {"name": "b", "models": ["x"], "aliases": {"y": "tiny"}},
        {"name": "c", "aliases": {"y": "tiny"}},
    ]
    backends = [{**each, "url": one.url} for each, one in zip(models, running, strict=True)]
    proxy = await in_front(*backends, health={"interval": 0})
    for server in running:
        await server.pause()  # what is sent now is under way until all of it is
    asked = [asyncio.create_task(proxy.chat(model="y")) for _ in range(4)]
    assert await under_way(proxy, 4) == {"a": 0, "b": 2, "c": 2}
    asked += [asyncio.create_task(proxy.chat(model="x")) for _ in range(2)]
    assert await under_way(proxy, 6) == {"a": 2, "b": 2, "c": 2}
    asked += [asyncio.create_task(proxy.chat(model="x")) for _ in range(4)]
    assert await under_way(proxy, 10) == {"a": 4, "b": 4, "c": 2}
    asked += [asyncio.create_task(proxy.chat(model="y")) for _ in range(2)]
    assert await under_way(proxy, 12) == {"a": 4, "b": 4, "c": 4}
    for server in running:
        await server.resume()
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
    assert await proxy.counts(OUTSTANDING) == {"a": 0, "b": 0, "c": 0}
    samples = await proxy.samples(REQUESTS)
    asked_for = {labels for labels in samples if 'model="x"' in labels or 'model="y"' in labels}
    assert not [each for each in asked_for if 'backend="a"' in each and 'model="y"' in each]
    assert not [each for each in asked_for if 'backend="c"' in each and 'model="x"' in each]


async def test_openais_client_never_learns_that_the_first_server_is_dead(
    servers: Servers, in_front: InFront
) -> None:
    [server] = await servers(1, embedding=1, pooling_type=MEAN)
    dead = f"http://127.0.0.1:{free_port()}"
    # It is never put out, so that half of the requests meet it.
    health = {"interval": 0, "failures": 1000}
    proxy = await in_front({"url": [dead, server.url]}, health=health)
    given: Any = {"base_url": f"{proxy.url}/v1", "api_key": "none", "max_retries": 0}
    async with openai.AsyncOpenAI(**given) as client:
        for _ in range(5):
            await _ask(client)
    with openai.OpenAI(**given) as waiting:
        for _ in range(5):
            await asyncio.to_thread(_ask_waiting, waiting)
    moves = await proxy.counts("wellspoken_failovers_total")
    assert moves["llama/1"] >= 15


ASKED: Any = {
    "model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "Say hello."}],
}  # fmt: skip


async def _ask(client: openai.AsyncOpenAI) -> None:
    body = await client.chat.completions.create(**ASKED)
    assert body.choices[0].message.content == TEXT
    chunks = [each async for each in await client.chat.completions.create(**ASKED, stream=True)]
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == TEXT
    found = await client.embeddings.create(model=MODEL, input=["Hello", "world"])
    assert len(found.data) == 2 and any(found.data[1].embedding)


def _ask_waiting(client: openai.OpenAI) -> None:
    body = client.chat.completions.create(**ASKED)
    assert body.choices[0].message.content == TEXT
    chunks = list(client.chat.completions.create(**ASKED, stream=True))
    assert "".join(each.choices[0].delta.content or "" for each in chunks) == TEXT
    found = client.embeddings.create(model=MODEL, input=["Hello", "world"])
    assert len(found.data) == 2 and any(found.data[1].embedding)


async def test_what_llama_cpp_says_of_a_response_to_continue_is_told(
    servers: Servers, in_front: InFront
) -> None:
    """It keeps none; its word for that comes from the server that gave the response."""
    urls = [each.url for each in await servers(3)]
    proxy = await in_front({"url": urls, "responses": "pass"})
    given: Any = {"base_url": f"{proxy.url}/v1", "api_key": "none", "max_retries": 0}
    async with openai.AsyncOpenAI(**given) as client:
        create = client.responses.with_raw_response.create
        for _ in range(3):
            first = await create(model=MODEL, input="Say hello.")
            name = first.headers["x-wellspoken-backend"]
            for _ in range(3):
                with pytest.raises(openai.BadRequestError, match="previous_response_id") as caught:
                    await create(model=MODEL, input="Again.", previous_response_id=first.parse().id)
                assert caught.value.response.headers["x-wellspoken-backend"] == name
