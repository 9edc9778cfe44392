"""Answers that a client wants stored, through the whole proxy: what is kept, when, and what is not.

Backends are scripted; stops are enforced as before a llama.cpp (see test_enforced_stops.py).
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL, body, choice, finish, message, role, sse
from tests.conforming import chunk as part
from tests.fakes.database import Memory
from tests.fakes.upstream import DONE, Cut, Upstream, event, stream, whole
from tests.fold import comparable, fold
from tests.proxy.conftest import MESSAGES, Proxy, StartProxy
from tests.proxy.relay.test_enforced_stops import words
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.relay.send import LARGE
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.queue import FAILS
from wellspoken.proxy.store.rows import Query, Row

Json = dict[str, Any]
WARNING = "x-wellspoken-warning"
CHUNKS = [role(), part({"content": "Hello"}), part({"content": " world"}), finish()]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
COUNTED = {**part({}), "choices": [], "usage": USAGE}
STREAM = stream(sse([*CHUNKS, COUNTED]))
KEEP: Json = {"store": True, "metadata": {"run": "7"}}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


async def kept(proxy: Proxy) -> list[Row]:
    """Return all that is stored, once it is."""
    assert proxy.service.state.store is not None
    return await proxy.service.state.store.find(Query(owner=None, limit=100))


async def only(proxy: Proxy) -> tuple[Row, Json]:
    """Return the one row that is stored, and its answer."""
    (row,) = await kept(proxy)
    answer: Json = json.loads(row.answer)
    assert row.id == answer["id"]
    return row, answer


async def test_a_body_is_kept_as_the_client_got_it(
    start_proxy: StartProxy, upstream: Upstream, path: str
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream, store={"path": path})
    async with await proxy.chat(**KEEP, temperature=0.50, seed=7) as response:
        sent = await response.read()
        assert response.status == 200
        assert WARNING not in response.headers
        request_id = response.headers["x-request-id"]
    row, answer = await only(proxy)
    assert row.answer == sent
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", answer["id"])
    assert (row.owner, row.model, row.created) == ("", MODEL, answer["created"])
    assert row.request_id == request_id
    assert row.metadata == {"run": "7"}
    assert json.loads(row.parameters) == {"model": MODEL, "temperature": 0.5, "seed": 7}
    assert json.loads(row.messages) == MESSAGES
    assert "store" not in upstream.requests[-1].json()


@pytest.mark.parametrize("asks", [True, False], ids=["usage", "no usage"])
async def test_a_stream_is_kept_folded_and_with_its_usage(
    start_proxy: StartProxy, upstream: Upstream, path: str, asks: bool
) -> None:
    upstream.script("/v1/chat/completions", STREAM)
    proxy = await start_proxy(upstream, store={"path": path})
    options: Json = {"stream_options": {"include_usage": True}} if asks else {}
    async with await proxy.chat(**KEEP, stream=True, **options) as response:
        sent = await response.read()
        assert WARNING not in response.headers
    row, answer = await only(proxy)
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert answer["usage"]["total_tokens"] == 5
    assert (b'"usage":{' in sent) == asks
    assert comparable(answer) == comparable(fold(sent))
    assert answer["id"] == fold(sent)["id"]
    assert json.loads(row.parameters) == {"model": MODEL}


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
async def test_several_choices_are_kept_together(
    start_proxy: StartProxy, upstream: Upstream, path: str, streams: bool
) -> None:
    one = body(choice(message=message("Hello world")), usage=USAGE)
    upstream.script("/v1/chat/completions", STREAM if streams else whole(one))
    proxy = await start_proxy(upstream, adapter="llamacpp", store={"path": path})
    async with await proxy.chat(**KEEP, n=2, stream=streams) as response:
        sent = await response.read()
        assert response.status == 200, sent
    assert len(upstream.requests) == 2
    _, answer = await only(proxy)
    assert [x["message"]["content"] for x in answer["choices"]] == ["Hello world"] * 2
    assert comparable(answer) == comparable(fold(sent) if streams else json.loads(sent))


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
async def test_an_answer_that_was_stopped_here_is_kept_as_it_left(
    start_proxy: StartProxy, upstream: Upstream, path: str, streams: bool
) -> None:
    upstream.script("/v1/chat/completions", stream(*words("chat")))
    proxy = await start_proxy(upstream, adapter="llamacpp", store={"path": path})
    wanted: Json = {"stop": "!", "logprobs": True, "top_logprobs": 1, "stream": streams}
    async with await proxy.chat(**KEEP, **wanted) as response:
        sent = await response.read()
        assert response.status == 200, sent
    _, answer = await only(proxy)
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert len(answer["choices"][0]["logprobs"]["content"]) == 2
    assert comparable(answer) == comparable(fold(sent) if streams else json.loads(sent))


async def test_a_body_for_a_stream_and_a_stream_for_a_body_are_kept(
    start_proxy: StartProxy, upstream: Upstream, path: str
) -> None:
    upstream.script("/v1/chat/completions", whole(body()), STREAM)
    proxy = await start_proxy(upstream, store={"path": path})
    for streams in (True, False):
        async with await proxy.chat(**KEEP, stream=streams) as response:
            assert response.status == 200
            await response.read()
    contents = [json.loads(x.answer)["choices"][0]["message"]["content"] for x in await kept(proxy)]
    assert sorted(contents) == ["Hello world", "Hi é😀!"]


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
async def test_a_large_answer_is_kept(
    start_proxy: StartProxy, upstream: Upstream, path: str, streams: bool
) -> None:
    text = "word " * (LARGE // 4)
    large = body(choice(message=message(text)), usage=USAGE)
    chunks = [role(), part({"content": text}), finish(), COUNTED]
    upstream.script("/v1/chat/completions", stream(sse(chunks)) if streams else whole(large))
    proxy = await start_proxy(upstream, store={"path": path})
    async with await proxy.chat(**KEEP, stream=streams) as response:
        await response.read()
    _, answer = await only(proxy)
    assert answer["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
@pytest.mark.parametrize("durability", ["async", "commit"])
async def test_in_commit_durability_it_is_there_before_the_answer_ends(
    start_proxy: StartProxy,
    upstream: Upstream,
    path: str,
    durability: str,
    streams: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wellspoken.proxy.store.queue.SECONDS", 3600.0)
    upstream.script("/v1/chat/completions", STREAM if streams else whole(body()))
    proxy = await start_proxy(upstream, store={"path": path, "durability": durability})
    assert proxy.service.state.store is not None
    await proxy.service.state.store.open()
    async with await proxy.chat(**KEEP, stream=streams) as response:
        await response.read()
    with sqlite3.connect(path) as db:
        count = db.execute("SELECT count(*) FROM completion").fetchone()[0]
    db.close()
    assert count == (durability == "commit")


@pytest.mark.parametrize("wish", [{}, {"store": False}, {"store": None}], ids=str)
async def test_nobody_asked_so_nothing_is_kept(
    start_proxy: StartProxy, upstream: Upstream, path: str, wish: Json
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream, store={"path": path})
    async with await proxy.chat(**wish) as response:
        assert (await response.json())["id"] == body()["id"]
    assert await kept(proxy) == []


async def test_what_failed_is_not_kept(
    start_proxy: StartProxy, upstream: Upstream, path: str
) -> None:
    upstream.script(
        "/v1/chat/completions",
        whole({"error": {"message": "no"}}, 500),
        stream(sse(CHUNKS[:2], done=False), Cut()),
        stream(sse(CHUNKS[:2], done=False), event({"error": {"message": "no"}}), DONE),
    )
    proxy = await start_proxy(upstream, store={"path": path})
    await proxy.error(500, **KEEP)
    for _ in range(2):
        async with await proxy.chat(**KEEP, stream=True) as response:
            assert b'"error"' in await response.read()
    assert await kept(proxy) == []


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
async def test_without_a_store_the_answer_says_so(
    start_proxy: StartProxy, upstream: Upstream, streams: bool
) -> None:
    upstream.script("/v1/chat/completions", STREAM if streams else whole(body()))
    proxy = await start_proxy(upstream)
    async with await proxy.chat(**KEEP, stream=streams) as response:
        assert response.status == 200
        assert response.headers[WARNING] == (
            "not stored: no store is configured (store.path or store.url)"
        )
    async with await proxy.chat(stream=streams) as response:
        assert WARNING not in response.headers
    assert not [name for name in await proxy.metrics() if name.startswith("wellspoken_store")]


async def test_without_a_store_it_may_be_refused(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream, store={"missing": "refuse"})
    error = await proxy.error(400, **KEEP)
    assert (error["param"], error["code"]) == ("store", "unsupported_parameter")
    assert not upstream.requests


async def test_an_untouched_answer_is_not_kept(
    start_proxy: StartProxy, upstream: Upstream, path: str
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream, store={"path": path})
    async with await proxy.chat(**KEEP, oai_compat=False) as response:
        assert response.headers[WARNING].startswith("not stored: with")
    assert await kept(proxy) == []


async def scripted(proxy: Proxy, **keys: Any) -> Memory:
    """Put a store on a database that holds every row back into the proxy's place."""
    database = Memory()
    database.gate.clear()
    proxy.service.state.store = CompletionStore(
        config.Store(path="unused", queue=1, **keys),
        StoreMetrics(),
        proxy.service.state.log,
        database=database,
    )
    await proxy.service.state.store.open()
    return database


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "body"])
async def test_what_was_dropped_is_told(
    start_proxy: StartProxy, upstream: Upstream, streams: bool
) -> None:
    upstream.script("/v1/chat/completions", STREAM if streams else whole(body()))
    proxy = await start_proxy(upstream)
    database = await scripted(proxy, full="drop")
    async with await proxy.chat(**KEEP, stream=streams) as response:
        assert "not stored" not in await response.text()
        assert WARNING not in response.headers
    async with await proxy.chat(**KEEP, stream=streams) as response:
        text = await response.text()
        said = "not stored: the store's queue is full"
        if streams:
            assert f": {said}\n\n" in text
            assert text.endswith("data: [DONE]\n\n")
            assert fold(text.encode())["choices"][0]["message"]["content"] == "Hello world"
        else:
            assert response.headers[WARNING] == said
    database.gate.set()
    assert len(await kept(proxy)) == 1


async def test_a_full_store_may_refuse_before_the_backend_is_asked(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream)
    database = await scripted(proxy, full="refuse")
    async with await proxy.chat(**KEEP) as response:
        assert response.status == 200
    async with await proxy.chat(**KEEP) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
        error = (await response.json())["error"]
        assert (error["code"], error["param"]) == ("store_full", "store")
    async with await proxy.chat() as response:
        assert response.status == 200
    assert len(upstream.requests) == 2
    database.gate.set()
    assert len(await kept(proxy)) == 1


@pytest.mark.parametrize("required", [False, True])
async def test_a_store_that_is_broken_stops_no_answer(
    start_proxy: StartProxy, upstream: Upstream, path: str, required: bool
) -> None:
    Path(path).write_bytes(b"this is no database" * 100)
    upstream.script("/v1/chat/completions", whole(body()), STREAM)
    proxy = await start_proxy(upstream, store={"path": path, "required": required})
    assert proxy.service.state.store is not None
    await proxy.service.state.store.open()
    status, answer = await proxy.get("/readyz")
    assert status == (503 if required else 200)
    trouble = answer["reason" if required else "store"]
    assert trouble.startswith("The store of completions cannot be used now: ")
    assert path in trouble
    async with await proxy.chat(**KEEP) as response:
        assert response.status == 200
        assert response.headers[WARNING] == f"not stored: {FAILS}"
    async with await proxy.chat(**KEEP, stream=True) as response:
        assert ": not stored: " in await response.text()


async def test_what_the_store_does_is_measured(
    start_proxy: StartProxy, upstream: Upstream, path: str
) -> None:
    upstream.script("/v1/chat/completions", whole(body()))
    proxy = await start_proxy(upstream, store={"path": path})
    async with await proxy.chat(**KEEP):
        pass
    assert len(await kept(proxy)) == 1
    found = await proxy.metrics()
    assert found["wellspoken_store_batch_rows_sum"] == 1
    assert found["wellspoken_store_write_seconds_count"] == 1
    assert (
        found['wellspoken_store_rows{place="queue"}']
        == found['wellspoken_store_bytes{place="queue"}']
        == 0
    )
    assert (
        found["wellspoken_store_dropped_total"]
        == found['wellspoken_store_rows{place="spool"}']
        == 0
    )
