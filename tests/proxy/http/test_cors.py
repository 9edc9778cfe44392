"""Web pages of other origins: which may use the proxy, and what a real browser makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestServer

from tests.browser import browsing, find_browser
from tests.fakes.upstream import DONE, Upstream, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.http.cors import EXPOSED
from wellspoken.proxy.tls.certificates import ServerContexts

PAGE = "https://chat.example"
ALLOW = "Access-Control-Allow-"
SERVER = {"cors": [PAGE, "http://localhost:3000"]}


async def ask_first(proxy: Proxy, origin: str = PAGE, path: str = CHAT) -> ClientResponse:
    """Send what a browser does before a page may POST JSON with a key."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    return await proxy.session.options(proxy.url(path), headers=headers)


@pytest.mark.parametrize("origin", SERVER["cors"])
async def test_a_page_is_told_what_it_may_send(
    upstream: Upstream, start_proxy: StartProxy, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, since a browser sends none then."""
    monkeypatch.setenv("CLIENT_KEYS", "sk-a")
    proxy = await start_proxy(upstream, server=SERVER, auth={"keys": ("env:CLIENT_KEYS",)})
    async with await ask_first(proxy, origin) as response:
        assert (response.status, await response.read()) == (204, b"")
    headers = response.headers
    assert headers[ALLOW + "Origin"] == origin and headers["Vary"] == "Origin"
    assert headers[ALLOW + "Headers"] == "authorization,content-type"
    assert {"GET", "POST", "DELETE"} <= set(headers[ALLOW + "Methods"].split(", "))
    assert int(headers["Access-Control-Max-Age"]) > 0
    assert ALLOW + "Private-Network" not in headers and ALLOW + "Credentials" not in headers
    assert upstream.requests == []


async def test_every_answer_says_who_may_read_it(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body, a stream, a refusal, an error of the backend, what is not there."""
    monkeypatch.setenv("CLIENT_KEYS", "sk-a")
    upstream.scripts = [whole(PLAIN), stream(*EVENTS, DONE), whole({"error": "no"}, 500)]
    proxy = await start_proxy(upstream, server=SERVER, auth={"keys": ("env:CLIENT_KEYS",)})
    page = {"Origin": PAGE}
    mine = {**page, "Authorization": "Bearer sk-a"}
    answers = [
        await proxy.chat(headers, stream=headers is mine and at == 1)
        for at, headers in enumerate((mine, mine, mine, page))
    ]
    answers.append(await proxy.session.get(proxy.url("/nothing"), headers=mine))
    answers.append(await proxy.session.get(proxy.url("/livez"), headers=page))
    for answer in answers:
        await answer.read()
        assert answer.headers[ALLOW + "Origin"] == PAGE
        assert answer.headers["Access-Control-Expose-Headers"].split(", ") == [*EXPOSED]
    assert [answer.status for answer in answers] == [200, 200, 500, 401, 404, 200]


@pytest.mark.parametrize(
    "origin", [None, "https://evil.example", "https://chat.example:8443", "null"]
)
async def test_other_pages_are_told_nothing(
    upstream: Upstream, start_proxy: StartProxy, origin: str | None
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, server=SERVER)
    async with await proxy.chat({"Origin": origin} if origin else None) as response:
        assert response.status == 200
        assert response.headers["Vary"] == "Origin"  # for a cache in between
        assert not any(name.startswith("Access-Control") for name in response.headers)
    if origin is not None:
        async with await ask_first(proxy, origin) as response:
            assert response.status == 403
            assert not any(name.startswith("Access-Control") for name in response.headers)
            error = envelope(await response.read())
        assert error["code"] == "origin_not_allowed"
        assert repr(origin) in error["message"] and "server.cors" in error["message"]


async def test_without_the_setting_no_page_may(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    async with await ask_first(proxy) as response:
        assert response.status == 403
    async with await proxy.chat({"Origin": PAGE}) as response:
        assert not {"Vary", ALLOW + "Origin"} & set(response.headers)
    async with proxy.session.options(proxy.url(CHAT), headers={"Origin": PAGE}) as response:
        assert response.status == 405  # no browser asks so


@pytest.mark.parametrize("cors", ["*", ["*"]])
async def test_every_page_may_where_that_is_said(
    upstream: Upstream, start_proxy: StartProxy, cors: Any
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, server={"cors": cors})
    async with await ask_first(proxy, "null") as response:
        assert (response.status, response.headers[ALLOW + "Origin"]) == (204, "*")
    async with await proxy.chat({"Origin": "https://any.example"}) as response:
        assert response.headers[ALLOW + "Origin"] == "*" and "Vary" not in response.headers


async def test_the_other_doors_stay_as_they_are(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A Host that is no local name, and a body that a page may send without asking first."""
    proxy = await start_proxy(upstream, server=SERVER)
    head = (
        f"OPTIONS {CHAT} HTTP/1.1\r\nHost: chat.example\r\nOrigin: {PAGE}\r\n"
        "Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
    )
    assert (await raw(proxy.port, head.encode())).startswith(b"HTTP/1.1 403 ")
    text = {"Content-Type": "text/plain", "Origin": PAGE}
    async with proxy.session.post(proxy.url(CHAT), data=b"{}", headers=text) as response:
        assert response.status == 415
    assert upstream.requests == []


async def test_header_names_cannot_add_lines(upstream: Upstream, start_proxy: StartProxy) -> None:
    """What a browser would not send as names is not said again, and a local network is allowed."""
    proxy = await start_proxy(upstream, server=SERVER)
    head = (
        f"OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\nOrigin: {PAGE}\r\n"
        "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Private-Network: true\r\n"
        'Access-Control-Request-Headers: a"b;c\r\nConnection: close\r\n\r\n'
    )
    answer = (await raw(proxy.port, head.encode())).lower()
    assert answer.startswith(b"http/1.1 204 ")
    assert b"allow-headers" not in answer
    assert b"access-control-allow-private-network: true" in answer


@pytest.mark.parametrize(
    ("cors", "says"),
    [
        (["https://a.example/"], "Write https://a.example"),
        (["https://A.example/chat?x"], "Write https://a.example"),
        (["https://a.example:443"], "Write https://a.example"),
        (["http://a.example:80"], "Write http://a.example"),
        (["https://a.example", "a.example"], "server.cors[1]: "),
        (["null"], 'server.cors[0]: "null" is sent for every page without an address'),
        (["https://*.example"], "Write it like https://"),
        ("https://a.example", 'Write a list: cors = ["https://a.example"]'),
    ],
)
def test_what_no_browser_sends_is_refused(cors: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"server": {"cors": cors}, "backend": [{"url": "http://b"}]}, {})
    assert says in str(caught.value)


def test_every_page_may_not_where_keys_are_needed() -> None:
    tables = {"server": {"cors": "*"}, "backend": [{"url": "http://b"}]}
    assert load(None, tables, {}).server.cors == "*"
    with pytest.raises(ConfigError, match="needs no key"):
        load(None, {**tables, "auth": {"keys": ("env:A",)}}, {})
    kept = ["http://localhost:3000", "chrome-extension://abc", "http://[::1]:8080"]
    given = {"WELLSPOKEN_CORS": ",".join(kept)}
    assert load(None, {"backend": [{"url": "http://b"}]}, given).server.cors == tuple(kept)


SCRIPT = """<!doctype html><script>
async function ask(stream) {
  try {
    const answer = await fetch(%s, {method: "POST", body: JSON.stringify({...%s, stream}), headers:
      {"Content-Type": "application/json", "Authorization": "Bearer sk-a"}});
    return {status: answer.status, text: await answer.text(),
            id: answer.headers.get("x-request-id")};
  } catch (error) { return {failed: String(error)}; }
}
(async () => fetch("/told", {method: "POST", body: JSON.stringify([await ask(false),
                                                                 await ask(true)])}))();
</script>"""


@asynccontextmanager
async def page_of_another_origin(url: str) -> AsyncIterator[tuple[str, asyncio.Future[Any]]]:
    """Serve a page that asks a chat of `url`; yield its address, and what it then tells."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asked = {"model": "m", "messages": MESSAGES}

    async def page(request: web.Request) -> web.Response:
        html = SCRIPT % (json.dumps(url), json.dumps(asked))
        return web.Response(text=html, content_type="text/html")

    async def note(request: web.Request) -> web.Response:
        told.set_result(json.loads(await request.text()))
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/", page), web.post("/told", note)])
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), told


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_real_browser(
    upstream: Upstream,
    start_proxy: StartProxy,
    tmp_path: Path,
    environment_as_given: dict[str, str],
    allowed: bool,
) -> None:
    """A body and a stream: a page reads both, and the id, only where its origin is listed."""
    browser = find_browser(environment_as_given)
    upstream.scripts = [whole(PLAIN), stream(*EVENTS, DONE)]
    proxy = await start_proxy(upstream)
    async with page_of_another_origin(proxy.url(CHAT)) as (page, told):
        cors = [page] if allowed else [PAGE]
        tables = {"server": {"listen": "127.0.0.1:0", "cors": cors}}
        config = load(None, {**tables, "backend": [{"url": upstream.url}]}, {})
        service = proxy.service
        state = service.state
        service.become(config, state.router.targets, state.keys, state.admin, ServerContexts())
        async with browsing(browser, tmp_path, page + "/"):
            body, streamed = await told
    if not allowed:
        assert "failed" in body and "failed" in streamed
        assert upstream.requests == []
        return
    assert json.loads(body["text"])["choices"] and streamed["text"].endswith("data: [DONE]\n\n")
    assert (body["status"], streamed["status"]) == (200, 200) and body["id"].startswith("req_")
