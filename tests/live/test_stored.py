"""Stored completions of a real llama.cpp, through openai-python and openai-node."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from aiohttp import ClientSession
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from tests.live.test_openai_node import HERE, node, run
from tests.models.tiny import TEXT
from tests.openapi.stored_schema import ChatCompletionList, ChatCompletionMessageList

__all__ = ["node"]

Json = dict[str, Any]


@pytest.fixture
async def client(storing: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{storing}/v1", api_key="none", max_retries=0) as one:
        yield one


def asked(number: int) -> Json:
    topic = "odd" if number % 2 else "even"
    return {
        "model": "tiny",
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "messages": [{"role": "user", "content": f"Say hello {number}."}],
        "store": True,
        "metadata": {"topic": topic, "a.b[c]": "x & y"},
    }


async def listed(client: openai.AsyncOpenAI, **query: Any) -> list[ChatCompletion]:
    """Return all stored completions that `query` names, page by page."""
    return [one async for one in client.chat.completions.list(limit=2, **query)]


async def test_openai_python_reads_what_it_created(client: openai.AsyncOpenAI) -> None:
    created = [await client.chat.completions.create(**asked(n)) for n in range(3)]
    await client.chat.completions.create(**{**asked(8), "store": False})
    chunks = [x async for x in await client.chat.completions.create(**asked(3), stream=True)]
    ids = [one.id for one in created] + [chunks[0].id]
    assert len(set(ids)) == 4
    for order, wanted in (("asc", ids), ("desc", ids[::-1])):
        assert [one.id for one in await listed(client, order=order)] == wanted
    assert [one.id for one in await listed(client)] == ids
    odd = {"topic": "odd", "a.b[c]": "x & y"}
    assert [one.id for one in await listed(client, metadata=odd)] == [ids[1], ids[3]]
    assert await listed(client, metadata={"topic": "neither"}) == []
    assert await listed(client, model="other") == []
    assert [one.id for one in await listed(client, model="tiny", after=ids[2])] == [ids[3]]
    for one in created:
        stored = await client.chat.completions.retrieve(one.id)
        parts = ("id", "object", "created", "model", "choices", "usage", "system_fingerprint")
        for part in parts:
            assert getattr(stored, part) == getattr(one, part), part
    streamed = await client.chat.completions.retrieve(ids[3])
    entries = [x for chunk in chunks for x in (_entries(chunk) or [])]
    assert streamed.choices[0].message.content == TEXT
    assert streamed.choices[0].logprobs is not None
    assert streamed.choices[0].logprobs.content == entries
    assert streamed.usage is not None and streamed.usage.completion_tokens > 0
    assert streamed.metadata == {"topic": "odd", "a.b[c]": "x & y"}
    assert (streamed.model_extra or {})["temperature"] == 0


def _entries(chunk: Any) -> list[Any] | None:
    logprobs = chunk.choices[0].logprobs if chunk.choices else None
    return logprobs.content if logprobs is not None else None


async def test_openai_python_changes_and_deletes(client: openai.AsyncOpenAI) -> None:
    completions = client.chat.completions
    one, other = [await completions.create(**asked(n)) for n in range(2)]
    updated = await completions.update(one.id, metadata={"topic": "new"})
    assert (updated.id, updated.metadata) == (one.id, {"topic": "new"})
    assert updated.choices == one.choices
    assert [x.id for x in await listed(client, metadata={"topic": "new"})] == [one.id]
    deleted = await completions.delete(one.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (
        one.id,
        True,
        "chat.completion.deleted",
    )
    assert [x.id for x in await listed(client)] == [other.id]
    with pytest.raises(openai.NotFoundError):
        await completions.retrieve(one.id)
    with pytest.raises(openai.NotFoundError):
        await completions.delete(one.id)
    with pytest.raises(openai.BadRequestError) as refused:
        await listed(client, after=one.id)
    assert refused.value.param == "after"
    with pytest.raises(openai.BadRequestError) as refused:
        await completions.update(other.id, metadata={"k": "v" * 513})
    assert refused.value.param == "metadata.k"


async def test_openai_python_reads_the_messages(client: openai.AsyncOpenAI) -> None:
    said: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "That."},
        {"role": "user", "content": "Hi"},
    ]
    created = await client.chat.completions.create(**{**asked(0), "messages": said})
    messages = client.chat.completions.messages
    found = [one async for one in messages.list(created.id, limit=1)]
    assert [one.id for one in found] == [f"{created.id}-{n}" for n in range(4)]
    assert [str(one.role) for one in found] == [one["role"] for one in said]
    assert [one.content for one in found] == ["Be brief.", None, "That.", "Hi"]
    (part,) = found[1].content_parts or []
    assert (part.type, getattr(part, "text", None)) == ("text", "What?")
    backwards = [one async for one in messages.list(created.id, limit=3, order="desc")]
    assert [one.id for one in backwards] == [one.id for one in found][::-1]


async def test_the_answers_have_the_published_shape(
    client: openai.AsyncOpenAI, storing: str
) -> None:
    created = await client.chat.completions.create(**asked(0))
    pages: list[tuple[str, type[msgspec.Struct]]] = [
        ("", ChatCompletionList),
        (f"/{created.id}/messages", ChatCompletionMessageList),
    ]
    async with ClientSession() as session:
        for path, shape in pages:
            async with session.get(f"{storing}/v1/chat/completions{path}") as response:
                msgspec.json.decode(await response.read(), type=shape)


async def test_openai_node_does_the_same(
    node: str, storing: str, tmp_path: Path, environment_as_given: dict[str, str]
) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    for name in ("package.json", "package-lock.json", "stored.mjs"):
        shutil.copy(HERE / name, folder)
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    await run(folder, environment_as_given, *install)
    out = await run(folder, dict(os.environ), node, "stored.mjs", f"{storing}/v1")
    check(json.loads(out.splitlines()[-1]))


def check(said: Json) -> None:
    ids = [one["id"] for one in said["created"]] + [said["chunks"][0]["id"]]
    assert said["listed"] == {
        "asc": ids,
        "desc": ids[::-1],
        "odd": [ids[1], ids[3]],
        "model": [],
        "updated": [ids[0]],
    }
    first = said["created"][0]
    assert {key: said["retrieved"][key] for key in first} == first
    assert said["retrieved"]["metadata"] == {"topic": "even", "a.b[c]": "x & y"}
    assert said["updated"] == {**said["retrieved"], "metadata": {"topic": "new"}}
    long = said["long"]["id"]
    assert said["messages"] == [
        {
            "id": f"{long}-{n}",
            "role": "user",
            "content": f"Message {n}.",
            "name": None,
            "content_parts": None,
        }
        for n in (2, 1, 0)
    ]
    assert said["deleted"] == {
        "object": "chat.completion.deleted",
        "id": ids[0],
        "deleted": True,
    }
    assert said["refused"] == [
        {"name": "NotFoundError", "status": 404, "param": "completion_id"},
        {"name": "BadRequestError", "status": 400, "param": "limit"},
        {"name": "BadRequestError", "status": 400, "param": "after"},
        {"name": "BadRequestError", "status": 400, "param": "metadata.key"},
    ]
