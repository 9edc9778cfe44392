"""GET /: a page for a browser, JSON for others, and nothing that a key is needed for."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.browser import dump_page, find_browser
from tests.fakes.upstream import Upstream, whole
from tests.openapi.document import encode_document
from tests.proxy.conftest import Proxy, StartProxy
from wellspoken.proxy.endpoints.overview import LINKS, MOST

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"  # Firefox 148's Accept
EVIL = '"><script>alert(1)</script><img src=//evil.example/x>'


class Page(HTMLParser):
    """The elements of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def script_models(upstream: Upstream, *names: str) -> None:
    listed = [{"id": name, "object": "model", "owned_by": "x"} for name in names]
    upstream.script("/v1/models", whole({"object": "list", "data": listed}))
    upstream.script("/health", whole({"status": "ok"}))


async def open_page(proxy: Proxy, accept: str | None, **headers: str) -> tuple[Any, str]:
    given = {**headers, **({"Accept": accept} if accept is not None else {})}
    async with proxy.session.get(proxy.url("/"), headers=given) as response:
        return response, await response.text()


@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/*", "application/xhtml+xml"])
async def test_json_for_programs(upstream: Upstream, start_proxy: StartProxy, accept: str) -> None:
    script_models(upstream, "a", "b")
    proxy = await start_proxy(upstream, name="mine")
    response, _ = await open_page(proxy, accept)
    assert (response.status, response.content_type) == (200, "application/json")
    told = await response.json()
    assert (told["name"], told["status"], told["needs_key"]) == ("wellspoken", "ok", False)
    assert told["models"] == ["a", "b"] and told["servers"] == [
        "mine: a server that speaks OpenAI's API"
    ]
    assert "reason" not in told and re.fullmatch(r"\d+\.\d+\.\d+.*", told["version"])


async def test_a_page_for_a_browser(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Nothing that runs, nothing that is loaded, whatever a model is called; each link is there."""
    script_models(upstream, EVIL)
    proxy = await start_proxy(upstream)
    response, text = await open_page(proxy, BROWSER)
    assert response.content_type == "text/html" and response.headers["Vary"] == "Accept"
    page = Page(text)
    assert html.escape(EVIL) in text and EVIL in page.text
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img", "link", "iframe", "form"})
    for _, given in page.elements:
        assert not any(name.startswith("on") or name == "src" for name in given)
    links = [given["href"] for tag, given in page.elements if tag == "a"]
    assert links == [*LINKS]
    for path in LINKS:
        assert path.encode() in encode_document()
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "ready" in page.text and "not ready" not in page.text


async def test_a_real_browser_shows_it(
    upstream: Upstream,
    start_proxy: StartProxy,
    tmp_path: Path,
    environment_as_given: dict[str, str],
) -> None:
    """The style is taken in spite of the policy: its hash is the page's."""
    script_models(upstream, EVIL)
    proxy = await start_proxy(upstream)
    shown = await dump_page(find_browser(environment_as_given), tmp_path, proxy.url("/"))
    assert EVIL in Page(shown).text and "<script" not in shown
    _, text = await open_page(proxy, BROWSER)
    assert "<style>" in shown and shown.partition("<style>")[2][:60] in text
    assert len(upstream.requests) < 10


async def test_without_a_key_no_model_is_named(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_KEYS", "sk-a")
    script_models(upstream, "secret-model")
    proxy = await start_proxy(upstream, name="secret-name", auth={"keys": ("env:CLIENT_KEYS",)})
    for accept in ("*/*", BROWSER):
        for key in ({}, {"Authorization": "Bearer wrong"}):
            response, text = await open_page(proxy, accept, **key)
            assert response.status == 200
            assert "secret" not in text and "key" in text
        _, text = await open_page(proxy, accept, Authorization="Bearer sk-a")
        assert "secret-model" in text and "secret-name" in text and "sk-a" not in text


async def test_what_is_wrong_is_said(upstream: Upstream, start_proxy: StartProxy) -> None:
    await upstream.refuse()
    proxy = await start_proxy(upstream)
    response, text = await open_page(proxy, BROWSER)
    said = Page(text).text
    assert response.status == 200 and f"not ready: The backend at {upstream.url}" in said
    assert ".." not in said
    response, _ = await open_page(proxy, None)
    told = await response.json()
    assert told["status"] == "unavailable" and told["reason"] and told["models"] == []


async def test_why_no_model_is_known_is_said(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Ready, as far as can be known without the key that its server wants."""
    upstream.script("/health", whole({"status": "ok"}))
    upstream.script("/v1/models", whole({"error": "who?"}, status=401))
    proxy = await start_proxy(upstream)
    _, text = await open_page(proxy, BROWSER)
    said = Page(text).text
    assert "It is ready." in said
    assert f"none that is known: The backend at {upstream.url} answered GET /v1/models" in said
    response, _ = await open_page(proxy, None)
    told = await response.json()
    assert (told["status"], told["models"]) == ("ok", []) and "status 401" in told["reason"]


async def test_without_a_key_no_server_that_is_away_is_named(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_KEYS", "sk-a")
    await upstream.refuse()
    proxy = await start_proxy(upstream, auth={"keys": ("env:CLIENT_KEYS",)})
    for accept in ("*/*", BROWSER):
        _, text = await open_page(proxy, accept)
        assert "not ready." in Page(text).text or '"status":"unavailable"' in text
        assert upstream.url not in text and "UNSET" not in text
        _, text = await open_page(proxy, accept, Authorization="Bearer sk-a")
        assert upstream.url in text


async def test_each_of_several_servers_has_its_state(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    script_models(upstream, "a")
    backend = {"name": "gpu", "url": [upstream.url, "http://127.0.0.1:9"], "models": ["a"]}
    proxy = await start_proxy(backend, health={"failures": 1, "pause": 50, "interval": 0})
    for state in ("in", "out"):
        servers = [
            "gpu/1: a server that speaks OpenAI's API (in)",
            f"gpu/2: a server that speaks OpenAI's API ({state})",
        ]
        response, _ = await open_page(proxy, "*/*")
        assert (await response.json())["servers"] == servers
        _, text = await open_page(proxy, BROWSER)
        assert all(server in Page(text).text for server in servers)
        ejection = proxy.service.state.router.targets[1].ejection
        assert ejection is not None
        ejection.note_failure("refused", ejection.take())


async def test_a_page_holds_so_many_models(upstream: Upstream, start_proxy: StartProxy) -> None:
    script_models(upstream, *(f"m{number}" for number in range(MOST + 3)))
    proxy = await start_proxy(upstream)
    _, text = await open_page(proxy, BROWSER)
    assert f"<code>m{MOST - 1}</code>" in text and f"<code>m{MOST}</code>" not in text
    assert "and 3 more" in text
    response, _ = await open_page(proxy, "*/*")
    assert len((await response.json())["models"]) == MOST + 3


async def test_only_get(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.post(proxy.url("/"), json={}) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    async with proxy.session.head(proxy.url("/")) as response:
        assert (response.status, await response.read()) == (200, b"")
    async with proxy.session.get(proxy.url("//")) as response:
        assert response.status == 404


async def test_a_server_without_a_page_leaves_the_place_to_this_one(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Rejects "Unknown request URL: GET /. This proxy answers ... GET /" for `ui = true`."""
    script_models(upstream, "a")
    proxy = await start_proxy(upstream, ui=True)
    response, text = await open_page(proxy, BROWSER)
    assert response.status == 200 and "<code>a</code>" in text
    upstream.script("/", whole(b"<html>the server's", content_type="text/html"))
    llamacpp = await start_proxy(upstream, ui=True, adapter="llamacpp")
    _, text = await open_page(llamacpp, BROWSER)
    assert text == "<html>the server's"
