"""What a client may not use it does not learn of either, and why the proxy fails is no client's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.proxy.limits.clients import MakeClient, key_of
from tests.proxy.limits.clients import client as client

A, SECRET = key_of("a"), "secret-model"
ASKING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/rerank": {"query": "Hi"},
}


async def get(proxy: Proxy, path: str, headers: dict[str, str] | None) -> str:
    async with proxy.session.get(proxy.url(path), headers=headers) as answer:
        return await answer.text()


async def start_two(
    start_proxy: StartProxy, upstream: Upstream, client: MakeClient, **quota: int
) -> Proxy:
    """Start a proxy before two backends, of which the client a has one alone."""
    auth = {"client": [client("a", models=["open-*"], **quota)]}
    endpoints = ["/v1/embeddings", "/v1/rerank"]
    backends = [
        {"url": upstream.url, "name": name, "models": [model], "endpoints": endpoints}
        for name, model in (("one", "open-model"), ("two", SECRET))
    ]
    return await start_proxy(*backends, auth=auth)


@pytest.mark.parametrize("quota", [{}, {"tokens_per_minute": 10_000}])
@pytest.mark.parametrize("path", ASKING)
async def test_no_error_names_a_model_of_others(
    upstream: Upstream,
    start_proxy: StartProxy,
    client: MakeClient,
    path: str,
    quota: dict[str, int],
) -> None:
    """Asked for one that its patterns allow, but that nobody has."""
    proxy = await start_two(start_proxy, upstream, client, **quota)
    body = {"model": "open-x", **ASKING[path]}
    async with proxy.session.post(proxy.url(path), json=body, headers=A) as answer:
        said = await answer.text()
        assert answer.status == 404 and "Known models: open-model." in said
    assert SECRET not in said


async def test_the_overview_names_what_the_client_may_use(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script("/v1/models", whole({"object": "list", "data": []}))
    proxy = await start_two(start_proxy, upstream, client)
    told = json.loads(await get(proxy, "/", A))
    assert told["models"] == ["open-model"]
    assert [each.partition(":")[0] for each in told["servers"]] == ["one"]


@pytest.mark.parametrize("kind", ["a key", "an address", "neither"])
async def test_the_overview_tells_why_where_readyz_does(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path, kind: str
) -> None:
    """Rejects an overview that looks at the clients' keys alone, of which there are none here."""
    (tmp_path / "admins").write_text("key-of-an-admin")
    upstream.script("/health", whole({}, status=503))
    upstream.script("/v1/models", whole({"object": "list", "data": []}))
    more: dict[str, Any] = {}
    if kind == "a key":
        more["auth"] = {"admin": [f"file:{tmp_path}/admins"]}
    elif kind == "an address":
        more["server"] = {"admin": "127.0.0.1:0"}
    proxy = await start_proxy(upstream, **more)
    for path in ("/readyz", "/"):
        told = json.loads(await get(proxy, path, None))
        assert told["status"] == "unavailable"
        assert ("reason" in told) == (kind == "neither"), path


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_where_the_store_is_no_other_machine_is_told(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, tmp_path: Path, elsewhere: bool
) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"this is no database" * 100)
    host = "0.0.0.0" if elsewhere else "127.0.0.1"
    proxy = await start_proxy(
        upstream,
        auth={"client": [client("a")]},
        store={"path": str(path), "required": True},
        server={"listen": f"{host}:0"},
    )
    assert proxy.service.state.store is not None
    await proxy.service.state.store.open()
    for where in ("/readyz", "/"):
        said = await get(proxy, where, A)
        assert "The store of completions cannot be used now" in said
        assert (str(path) in said) != elsewhere
        assert ("the proxy's log says why" in said) == elsewhere


async def test_a_query_names_one_model(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    """It goes on as it came, and a server may read the last of two."""
    path = "/v1/responses/input_tokens"
    upstream.script(path, whole({"input_tokens": 1}))
    auth = {"client": [client("a", models=["open-*"])]}
    proxy = await start_proxy(upstream, auth=auth, endpoints=[path])
    for query, status in (("open-x", 200), (f"open-x&model={SECRET}", 400), (SECRET, 404)):
        url = proxy.url(f"{path}?model={query}")
        async with proxy.session.get(url, headers=A) as answer:
            assert answer.status == status, await answer.text()
    assert len(upstream.requests) == 1
