"""The API over stored completions: whose they are, what goes wrong, and what is large."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest
from aiohttp import ClientError

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, StartProxy, envelope, raw
from tests.proxy.endpoints.stored import (
    CREATED,
    ONE,
    SQLITE,
    Json,
    Storing,
    ask,
    capture,
    every_way_refused,
    id_of,
    ids,
    refused,
    storing,
)
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.waiting import until
from wellspoken.proxy.endpoints import stored_views
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.store.database import StoreError, Unavailable, Unreadable, Unusable

__all__ = ["storing"]


async def test_anothers_is_answered_as_one_that_never_was(storing: Storing) -> None:
    proxy = await storing(capture(1, owner="another"), capture(2))
    theirs = await every_way_refused(proxy, id_of(1))
    never = await every_way_refused(proxy, id_of(9))
    assert theirs["message"].replace(id_of(1), id_of(9)) == never["message"]
    assert await ids(proxy) == [2]
    assert proxy.service.state.store is not None
    there = await proxy.service.state.store.get("another", id_of(1))
    assert there is not None and there.metadata == {}


async def test_each_key_sees_its_own(
    storing: Storing, monkeypatch: pytest.MonkeyPatch, upstream: Upstream
) -> None:
    mine, yours = "sk-test-of-mine-1", "sk-test-of-yours-2"
    monkeypatch.setenv("CLIENT_KEYS", f"{mine},{yours}")
    upstream.scripts = [whole(PLAIN)]
    proxy = await storing(capture(1, owner=owner_of(mine)), auth={"keys": ["env:CLIENT_KEYS"]})
    me, you = ({"Authorization": f"Bearer {key}"} for key in (mine, yours))
    assert await ids(proxy, headers=me) == [1]
    assert await ids(proxy, headers=you) == []
    await every_way_refused(proxy, id_of(1), you)
    await refused(proxy, 400, "GET", f"{CHAT}?after={id_of(1)}", headers=you)
    async with await proxy.chat(headers=you, store=True) as response:
        id = (await response.json())["id"]
    assert (await ask(proxy, "GET", f"{CHAT}/{id}", headers=you))[0] == 200
    await every_way_refused(proxy, id, me)
    for method, path in (("GET", CHAT), ("GET", ONE), ("DELETE", ONE), ("GET", f"{ONE}/messages")):
        error = await refused(proxy, 401, method, path)
        assert error["code"] == "invalid_api_key"
    assert await ids(proxy, headers=me) == [1]


@SQLITE
@pytest.mark.parametrize(
    "path", ["%00", "%20", "%E9", "%C3%A9", "x" * 513, "x" * 5000, "a%2Fb", "%2e%2e%2f", "render"]
)
async def test_what_can_be_no_id_is_404(storing: Storing, path: str) -> None:
    proxy = await storing(capture(1))
    if "%2e" in path:
        await refused(proxy, 400, "GET", f"{CHAT}/{path}")
        return
    error = await refused(proxy, 404, "GET", f"{CHAT}/{path}")
    assert error["code"] == "completion_not_found"
    assert len(error["message"]) < 300


@SQLITE
@pytest.mark.parametrize("path", ["/", f"/{id_of(1)}/", f"/{id_of(1)}/messages/", "//messages"])
async def test_what_is_no_path_of_the_api_is_404(storing: Storing, path: str) -> None:
    proxy = await storing(capture(1))
    error = await refused(proxy, 404, "GET", CHAT + path)
    assert error["code"] == "unknown_url"
    assert "GET /v1/chat/completions/{id}/messages" in error["message"]


async def test_an_id_may_be_percent_encoded(storing: Storing) -> None:
    proxy = await storing(capture(1))
    encoded = "".join(f"%{byte:02X}" for byte in id_of(1).encode())
    assert (await ask(proxy, "GET", f"{CHAT}/{encoded}"))[1]["id"] == id_of(1)
    assert (await ask(proxy, "GET", f"/chat/completions/{encoded}/messages"))[0] == 200


@SQLITE
async def test_the_paths_without_v1_and_head(storing: Storing) -> None:
    proxy = await storing(capture(1))
    for path in (CHAT, ONE, f"{ONE}/messages"):
        plain = path.removeprefix("/v1")
        assert await ask(proxy, "GET", plain) == await ask(proxy, "GET", path)
        head = f" {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        got, headed = await raw(proxy.port, b"GET" + head), await raw(proxy.port, b"HEAD" + head)
        body = got.partition(b"\r\n\r\n")[2]
        assert headed.endswith(b"\r\n\r\n") and b"HTTP/1.1 200" in headed
        assert b"Content-Length: %d\r\n" % len(body) in headed
    assert (await ask(proxy, "DELETE", ONE.removeprefix("/v1")))[0] == 200


async def test_without_a_store_it_says_how_to_get_one(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    for method, path in (
        ("GET", CHAT),
        ("GET", ONE),
        ("POST", ONE),
        ("DELETE", ONE),
        ("GET", f"{ONE}/messages"),
    ):
        body: Json | None = {"metadata": {}} if method == "POST" else None
        error = await refused(proxy, 404, method, path, body)
        assert error["code"] == "store_not_configured"
        assert "store.path" in error["message"] and "store.url" in error["message"]


class Failing:
    """A store that fails whatever it is asked."""

    refuses = trouble = ""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    async def _fail(self, *args: Any) -> Any:
        # A new one: the parameter outlives the test, with all that its traceback would lead to.
        raise type(self._error)(*self._error.args)

    get = find = position = set_metadata = delete = _fail


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (Unavailable("/path/of/a.db is away"), None),
        (Unusable("/path/of/a.db is no database"), "false"),
        (Unreadable("the answer of chatcmpl-1 cannot be read"), "false"),
    ],
)
async def test_a_store_that_fails_is_503(
    upstream: Upstream, start_proxy: StartProxy, error: StoreError, retry: str | None
) -> None:
    proxy = await start_proxy(upstream)
    proxy.service.state.store = Failing(error)  # type: ignore[assignment]
    paths = [("GET", f"{CHAT}?after=x"), ("GET", CHAT), ("GET", ONE), ("DELETE", ONE)]
    for method, path in [*paths, ("POST", ONE), ("GET", f"{ONE}/messages")]:
        body: Json | None = {"metadata": {}} if method == "POST" else None
        async with proxy.session.request(method, proxy.url(path), json=body) as response:
            told = envelope(await response.text())
            assert response.status == 503
            assert ("Retry-After" in response.headers) == (retry is None)
            assert response.headers.get("x-should-retry") == retry
        assert (told["code"], told["type"]) == ("store_unavailable", "server_error")
        assert ("chatcmpl-1" in told["message"]) == isinstance(error, Unreadable)
        assert "/path" not in told["message"]
    proxy.service.state.store = None


@SQLITE
async def test_a_large_page_is_made_in_a_thread(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    make = stored_views.completion

    def noting(row: Any) -> bytes:
        threads.append(threading.get_ident())
        return make(row)

    monkeypatch.setattr(stored_views, "completion", noting)
    proxy = await storing(capture(1), *(capture(n, text="x" * 60_000) for n in (2, 3, 4)))
    assert await ids(proxy, "limit=1") == [1]
    assert set(threads) == {threading.get_ident()}
    threads.clear()
    assert await ids(proxy, "order=desc") == [4, 3, 2, 1]
    assert len(threads) == 4 and threading.get_ident() not in threads


@SQLITE
async def test_a_large_page_is_like_a_small_one(storing: Storing) -> None:
    proxy = await storing(*(capture(n, text=f"{n}" * 60_000) for n in range(1, 6)))
    _, page = await ask(proxy, "GET", f"{CHAT}?limit=4")
    assert {key: page[key] for key in page if key != "data"} == {
        "object": "list", "first_id": id_of(1), "last_id": id_of(4), "has_more": True,
    }  # fmt: skip
    singles = [(await ask(proxy, "GET", f"{CHAT}/{id_of(n)}"))[1] for n in range(1, 5)]
    assert page["data"] == singles
    old = f"GET {CHAT}?limit=4 HTTP/1.0\r\nHost: x\r\n\r\n".encode()
    assert json.loads((await raw(proxy.port, old)).partition(b"\r\n\r\n")[2]) == page
    head = f"HEAD {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    assert (await raw(proxy.port, head)).endswith(b"\r\n\r\n")


@SQLITE
@pytest.mark.parametrize("size", [10, 200_000, 1_000_000])
@pytest.mark.parametrize("limit", [20, 29, 30, 31])
async def test_the_rows_of_a_page_are_read_some_at_a_time(
    storing: Storing, monkeypatch: pytest.MonkeyPatch, size: int, limit: int
) -> None:
    proxy = await storing(*(capture(n, text="x" * size) for n in range(30)))
    store, most = proxy.service.state.store, 0
    assert store is not None
    find = store.find

    async def watching(query: Any) -> Any:
        nonlocal most
        rows = await find(query)
        most = max(most, len(rows))
        return rows

    monkeypatch.setattr(store, "find", watching)
    _, page = await ask(proxy, "GET", f"{CHAT}?limit={limit}&order=desc")
    assert [one["created"] - CREATED for one in page["data"]] == list(range(29, 29 - limit, -1))[
        :30
    ]
    assert page["has_more"] == (limit < 30)
    assert page["last_id"] == page["data"][-1]["id"]
    assert most <= 21


@SQLITE
async def test_a_page_that_breaks_off_is_not_taken_for_whole(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = stored_views.completion

    def failing(row: Any) -> bytes:
        if row.id == id_of(failed):
            raise msgspec.DecodeError("made up")
        return make(row)

    monkeypatch.setattr(stored_views, "completion", failing)
    proxy = await storing(*(capture(n, text="x" * 200_000) for n in (1, 2)))
    failed = 2
    with pytest.raises(ClientError):
        await ids(proxy)
    failed = 1
    await refused(proxy, 500, "GET", CHAT)


@SQLITE
async def test_metrics_name_the_routes_and_no_id(storing: Storing) -> None:
    proxy = await storing(capture(1))
    for method, path in (
        ("GET", CHAT), ("GET", ONE), ("GET", f"{CHAT}/other"), ("GET", f"{ONE}/messages"),
        ("DELETE", ONE), ("PUT", ONE), ("GET", f"{CHAT}/a/b"),
    ):  # fmt: skip
        await ask(proxy, method, path)
    counted = {
        name.partition('route="')[2].partition('"')[0]: 0
        for name in await proxy.metrics()
        if name.startswith("wellspoken_requests_total")
    }
    assert set(counted) == {"stored_completions", "stored_completion", "stored_messages", "other"}


@SQLITE
async def test_open_requests_are_bounded(upstream: Upstream, storing: Storing) -> None:
    proxy = await storing(capture(1), limits={"inflight": 1})
    held = asyncio.Event()
    assert proxy.service.state.store is not None
    find = proxy.service.state.store.find

    async def waiting(query: Any) -> Any:
        await held.wait()
        return await find(query)

    proxy.service.state.store.find = waiting  # type: ignore[method-assign]
    first = asyncio.create_task(ids(proxy))
    await until(lambda: proxy.service.state.inflight)
    error = await refused(proxy, 429, "GET", CHAT)
    assert error["code"] == "rate_limit_exceeded"
    held.set()
    assert await first == [1]
