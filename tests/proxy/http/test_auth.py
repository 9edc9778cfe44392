"""Clients' keys at the door: which requests need one, what a refusal is, and where a key goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp import AiohttpClient

from tests.conforming import MODEL
from tests.fakes.llamacpp import LlamaCpp
from tests.fakes.upstream import DONE, Upstream, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, PROBE, Proxy, ProxyServer, envelope, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from wellspoken.proxy import routes
from wellspoken.proxy.config import load
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.routes import ROUTES

KEY = "sk-canary-7f3a1be05c"
OTHER = "sk-canary-of-another"
MINE = {"Authorization": f"Bearer {KEY}"}
OPEN = {"/", "/livez", "/readyz", "/health", "/metrics", "/backend/metrics", "/openapi.json"}
Guarded = Callable[..., Awaitable[Proxy]]


@pytest.fixture
def guarded(aiohttp_client: AiohttpClient, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """Start a proxy that wants one of two keys: `await guarded(upstream, adapter="vllm", ...)`."""
    monkeypatch.setenv("CLIENT_KEYS", f"{KEY},{OTHER}")

    async def start(upstream: Upstream, keys: tuple[str, ...] | None = None, **more: Any) -> Proxy:
        tables: dict[str, Any] = {
            "server": {"listen": "127.0.0.1:0"},
            "backend": [{"adapter": "openai", "url": upstream.url, **more}],
            "auth": {"keys": ("env:CLIENT_KEYS",) if keys is None else keys},
            "timeouts": {"probe": PROBE},
        }
        service = build(load(None, tables, {}))
        client: TestClient[Any, Any] = await aiohttp_client(ProxyServer(service))
        assert client.port is not None
        return Proxy(service, client, client.port)

    return start


async def status_of(
    proxy: Proxy, method: str, path: str, headers: Any = None, json: Any = None
) -> int:
    """Return the status of an answer."""
    asked = proxy.session.request(method, proxy.url(path), headers=headers, json=json)
    async with asked as response:
        await response.read()
        return response.status


async def refusal(proxy: Proxy, headers: Any = None) -> dict[str, Any]:
    """Return the error object of a chat request that has to be refused with 401."""
    async with await proxy.chat(headers) as response:
        assert response.status == 401, await response.text()
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.headers["x-should-retry"] == "false"
        assert response.headers["x-request-id"]
        error = envelope(await response.text())
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    return error


@pytest.mark.parametrize(
    "headers",
    [
        MINE,
        {"authorization": f"bearer {OTHER}"},
        {"Authorization": f"BEARER   {KEY}  "},
        {"X-Api-Key": KEY},
        {**MINE, "x-api-key": KEY},
        {"Authorization": "Basic dTpw", "x-api-key": KEY},
    ],
)
async def test_a_known_key_opens(upstream: Upstream, guarded: Guarded, headers: Any) -> None:
    upstream.scripts = [whole(PLAIN)]
    async with await (await guarded(upstream)).chat(headers) as response:
        assert (response.status, await response.read()) == (200, PLAIN)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "No API key came"),
        ({"Authorization": "Bearer"}, "No API key came"),
        ({"Authorization": f"Basic {KEY}"}, "No API key came"),
        ({"Authorization": KEY}, "No API key came"),
        ({"x-api-key": ""}, "No API key came"),
        ({"api-key": KEY}, "No API key came"),
        ({"Authorization": f"Bearer {KEY}x"}, "Incorrect API key provided."),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, "Incorrect API key provided."),
        ({"Authorization": f"Bearer {KEY} {KEY}"}, "Incorrect API key provided."),
        ({"Authorization": f"Bearer {KEY},{OTHER}"}, "Incorrect API key provided."),
        ({"Authorization": f"Bearer {KEY.upper()}"}, "Incorrect API key provided."),
        ({"x-api-key": "x" * 8000}, "Incorrect API key provided."),
        ({**MINE, "x-api-key": OTHER}, "different API keys"),
        ([*MINE.items(), *MINE.items()], "more than once"),
        ([("x-api-key", KEY), ("x-api-key", OTHER)], "more than once"),
    ],
)
async def test_what_is_refused(
    upstream: Upstream, guarded: Guarded, headers: Any, words: str
) -> None:
    error = await refusal(await guarded(upstream), headers)
    assert words in error["message"]
    assert "canary" not in error["message"].lower()
    assert upstream.requests == []


@pytest.mark.parametrize("key", ["ключ".encode(), b"\xff\xfe", KEY.encode() + b"\x00", b"\xc3" * 9])
async def test_odd_bytes_are_a_refusal(upstream: Upstream, guarded: Guarded, key: bytes) -> None:
    proxy = await guarded(upstream)
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    answer = await raw(proxy.port, head + b"Authorization: Bearer " + key + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"canary" not in answer


async def test_every_route_needs_a_key_but_those_that_machines_look_at(
    upstream: Upstream, guarded: Guarded
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await guarded(upstream, adapter="vllm")
    known = {path: route[0] for path, route in ROUTES.items()}
    passing = dict.fromkeys(("/v1/embeddings", "/v1/messages", "/tokenize"), "POST")
    more = {"/v1/models/m": "GET", "/": "GET", "/nothing": "GET", "/v1/chat/completions/x": "GET"}
    for path, method in {**known, **passing, **more}.items():
        status = await status_of(proxy, method, path)
        if path in OPEN:
            assert status != 401, path
            assert await status_of(proxy, "DELETE", path) == 405
        else:
            assert status == 401, path
            assert await status_of(proxy, "PATCH", path) == 401
            assert await status_of(proxy, method, path, MINE) != 401, path
    assert OPEN < {*known, "/"}


async def test_a_refusal_does_not_wait_for_the_body(upstream: Upstream, guarded: Guarded) -> None:
    proxy = await guarded(upstream)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()


async def test_the_pages_files_need_no_key_and_what_it_reads_does(
    upstream: Upstream, guarded: Guarded
) -> None:
    upstream.scripts = [whole(b"<html>", content_type="text/html")]
    proxy = await guarded(upstream, adapter="llamacpp", ui=True)
    for path in ("/", "/index.html", "/_app/immutable/bundle.js", "/favicon.ico"):
        assert await status_of(proxy, "GET", path) == 200, path
    for path in ("/props", "/slots", "/nothing", "/a/b.js"):
        assert await status_of(proxy, "GET", path) == 401, path
    assert await status_of(proxy, "GET", "/props", MINE) == 200
    assert await status_of(proxy, "POST", "/index.html") == 401


async def test_failed_keys_are_counted_and_no_label_grows(
    upstream: Upstream, guarded: Guarded
) -> None:
    proxy = await guarded(upstream)
    for number in range(20):
        headers = {"Authorization": f"Bearer {OTHER}-{number}"}
        assert await status_of(proxy, "POST", CHAT, headers) == 401
        assert await status_of(proxy, "GET", f"/path-{number}", headers) == 401
    scraped = await proxy.metrics()
    counted = {name: value for name, value in scraped.items() if 'code="401"' in name}
    requests = {n: v for n, v in counted.items() if n.startswith("wellspoken_requests_total")}
    assert sorted(requests.values()) == [20, 20]
    assert any('route="chat_completions"' in name for name in requests)
    assert any('route="other"' in name for name in requests)
    assert not any("canary" in name or "path-" in name for name in scraped)


def carried(upstream: Upstream) -> list[str]:
    """Return the requests to the backend in which a client's key is found, wherever."""
    said = [f"{one.method} {one.target} {one.headers} {one.body!r}" for one in upstream.requests]
    return [text for text in said if "canary" in text]


ASKED: list[tuple[str, str, Any]] = [
    ("POST", CHAT, {"messages": MESSAGES}),
    ("POST", CHAT, {"messages": MESSAGES, "stream": True}),
    ("POST", CHAT, {"messages": MESSAGES, "n": 3, "seed": 1}),
    ("POST", CHAT, {"messages": MESSAGES, "oai_compat": False}),
    ("POST", CHAT, {"messages": MESSAGES, "store": True}),
    ("POST", CHAT, {"messages": MESSAGES, "logit_bias": {"3": 1}}),
    ("POST", "/v1/completions", {"prompt": ["a", "b"], "echo": True, "logprobs": 1}),
    ("POST", "/v1/completions", {"prompt": "a", "stream": True}),
    ("POST", "/v1/embeddings", {"input": "x"}),
    ("POST", "/v1/messages", {"messages": MESSAGES, "max_tokens": 3}),
    ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("POST", "/v1/responses", {"input": "x"}),
    ("POST", "/tokenize", {"content": "x"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/m", None),
    ("GET", "/v1/capabilities", None),
    ("GET", "/readyz", None),
    ("GET", "/", None),
    ("GET", "/props", None),
]


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
@pytest.mark.parametrize("adapter", ["openai", "vllm", "llamacpp", "llamacpp-native", "auto"])
async def test_the_clients_key_stays_here(guarded: Guarded, adapter: str, name: str) -> None:
    value = f"Bearer {KEY}" if name == "Authorization" else KEY
    async with LlamaCpp() as server:
        more = {"ui": True} if adapter.startswith("llama") else {}
        proxy = await guarded(server, adapter=adapter, **more)
        for method, path, body in ASKED:
            asked = {"model": MODEL, **body} if body is not None else None
            await status_of(proxy, method, path, {name: value, "x-other": KEY}, asked)
        assert len(server.requests) >= 5
        assert carried(server) == []


async def test_the_key_is_seen_where_it_is_passed_on(upstream: Upstream, guarded: Guarded) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await guarded(upstream, auth="pass")
    assert await status_of(proxy, "POST", CHAT, MINE, {"model": "m", "messages": MESSAGES}) == 200
    assert len(carried(upstream)) == 1
    assert await status_of(proxy, "POST", CHAT, None, {"model": "m", "messages": MESSAGES}) == 401


async def test_no_secret_is_told(
    upstream: Upstream,
    guarded: Guarded,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().set_debug(True)
    asyncio.get_running_loop().slow_callback_duration = 0.0
    upstream.scripts = [whole(PLAIN), stream(*EVENTS, DONE), whole({"error": "no"}, 500)]
    proxy = await guarded(upstream)
    seen = [
        repr(proxy.service.state.keys),
        repr(vars(proxy.service.state.keys)),
        repr(proxy.service.state.config),
    ]
    wrong: list[Any] = [{"x-api-key": f"{KEY}x"}, [*MINE.items()] * 2, {**MINE, "Host": "a.b"}]
    for one in (MINE, MINE, MINE, *wrong):
        async with await proxy.chat(one) as response:
            seen += [await response.text(), str(response.headers)]

    def broken(call: Call) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("wellspoken.proxy.server.find_route", broken)
    async with await proxy.chat(MINE) as response:
        assert response.status == 500
    odd = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\x00\r\n\r\n"
    seen.append((await raw(proxy.port, odd)).decode())
    monkeypatch.undo()
    seen += [str(await proxy.metrics()), caplog.text, *map(repr, caplog.records)]
    assert "a bug" in caplog.text and "took" in caplog.text
    assert [text for text in seen if "canary" in text] == []


async def test_openais_client_with_each_kind_of_key(upstream: Upstream, guarded: Guarded) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await guarded(upstream)
    for key in (KEY, OTHER):
        async with openai.AsyncOpenAI(base_url=proxy.url("/v1"), api_key=key) as client:
            answer = await client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
            assert answer.choices[0].message.content
    before = len(upstream.requests)
    headers: Any
    for headers in ({}, {"Authorization": openai.Omit()}):
        async with openai.AsyncOpenAI(base_url=proxy.url("/v1"), api_key="sk-wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list(extra_headers=headers)
        assert caught.value.code == "invalid_api_key"
        assert "sk-wrong" not in str(caught.value)
    assert len(upstream.requests) == before == 2
    scraped = await proxy.metrics()  # not tried again: each once
    name = 'wellspoken_requests_total{backend="",code="401",model="_other",route="models",stream='
    assert scraped[name + '"false"}'] == 2


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The owners of the requests that were let in."""
    seen: list[str] = []
    original = routes.find_route

    def noting(call: Call) -> Any:
        route = original(call)
        seen.append(call.routing.owner)
        return route

    monkeypatch.setattr("wellspoken.proxy.server.find_route", noting)
    return seen


async def test_each_key_is_an_owner(
    upstream: Upstream, guarded: Guarded, owners: list[str]
) -> None:
    proxy = await guarded(upstream)
    for headers in (MINE, {"x-api-key": KEY}, {"x-api-key": OTHER}):
        await status_of(proxy, "POST", CHAT, headers)
    assert owners == [owner_of(KEY), owner_of(KEY), owner_of(OTHER)]
    await status_of(proxy, "GET", "/livez", MINE)
    assert owners[3:] == [""]


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ("none", ["", "", "", "", ""]),
        ("pass", [owner_of(KEY), owner_of("Basic dTpw"), owner_of(OTHER), owner_of(KEY), ""]),
    ],
)
async def test_owners_of_an_open_proxy(
    upstream: Upstream, guarded: Guarded, owners: list[str], auth: str, expected: list[str]
) -> None:
    proxy = await guarded(upstream, keys=(), auth=auth)
    named = {"x-api-key": OTHER}
    for headers in (MINE, {"Authorization": "Basic dTpw"}, named, {**MINE, **named}, {}):
        await status_of(proxy, "POST", CHAT, headers)
    assert owners == expected


def test_an_owner_is_the_same_for_all_time() -> None:
    """Computed once with Python 3.11's hmac; another value would orphan what is stored."""
    assert owner_of("sk-example") == "6cb4a448ff3f2610f539ba635bfb75c4"
    assert owner_of("sk-example") != owner_of("sk-exampl")
