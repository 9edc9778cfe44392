"""Clients with names: which models they see and may use, until when, and what stays theirs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.limits.clients import MakeClient, key_of
from tests.proxy.limits.clients import client as client
from tests.proxy.logs.logging_here import logging_to
from tests.proxy.tracing.conftest import start_traced as start_traced
from tests.proxy.tracing.traced import StartTraced
from tests.waiting import until
from wellspoken.proxy.config.tables import AuthClient
from wellspoken.proxy.limits.clients import KnownClient

SEVERAL: Any = {"aliases": {"gpt-4o": "llama-70b"}, "models": ["llama-8b", "llama-70b", "qwen"]}


async def ask(
    proxy: Proxy, path: str, name: str, body: dict[str, Any] | None = None
) -> tuple[int, Any]:
    """Return status and JSON of a client's request: a POST with a body, else a GET."""
    method = "GET" if body is None else "POST"
    url = proxy.url(path)
    async with proxy.session.request(method, url, json=body, headers=key_of(name)) as answer:
        return answer.status, json.loads(await answer.read())


async def test_a_client_sees_its_models_alone(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    auth = {"client": [client("a", models=["llama-*", "gpt-4?"]), client("b")]}
    proxy = await start_proxy(upstream, auth=auth, **SEVERAL)
    upstream.script("/v1/models", whole({"object": "list", "data": []}))
    for name, models in (("a", {"llama-8b", "llama-70b", "gpt-4o"}), ("b", set[str]())):
        every = {*models, "qwen", "llama-8b", "llama-70b", "gpt-4o"}
        seen = models or every
        _, listed = await ask(proxy, "/v1/models", name)
        assert {one["id"] for one in listed["data"]} == seen
        _, told = await ask(proxy, "/v1/capabilities", name)
        assert {one["id"] for one in told["data"]} == seen
    assert (await ask(proxy, "/v1/models/qwen", "b"))[0] == 200
    status, body = await ask(proxy, "/v1/models/qwen", "a")
    assert status == 404 and envelope(json.dumps(body))["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        (CHAT, {"messages": MESSAGES, "store": True}),
        (CHAT, {"messages": MESSAGES, "oai_compat": False}),
    ],
)
async def test_no_endpoint_has_a_model_that_the_client_may_not_use(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, path: str, body: dict[str, Any]
) -> None:
    auth = {"client": [client("a", models=["llama-*"]), client("b")]}
    endpoints = ["/v1/embeddings", "/v1/responses"]
    proxy = await start_proxy(upstream, auth=auth, endpoints=endpoints)
    for model in ("qwen", "LLAMA-8b", "a-llama-8b"):
        status, told = await ask(proxy, path, "a", {"model": model, **body})
        error = envelope(json.dumps(told))
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert "does not exist" in error["message"]
    status, told = await ask(proxy, path, "a", body)
    assert status == 400 and "model" in told["error"]["message"]
    assert upstream.requests == []
    upstream.script(path, whole(PLAIN))
    await ask(proxy, path, "a", {"model": "llama-8b", **body})
    await ask(proxy, path, "b", {"model": "qwen", **body})
    assert [one.json()["model"] for one in upstream.requests] == ["llama-8b", "qwen"]


async def test_a_plan_that_is_known_lets_nobody_else_in(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    """The second of two like requests goes by the recipe of the first, which was another's."""
    upstream.script(CHAT, whole(PLAIN))
    proxy = await start_proxy(
        upstream, auth={"client": [client("a"), client("b", models=["llama-*"])]}
    )
    for name, status in (("a", 200), ("a", 200), ("b", 404), ("a", 200)):
        async with await proxy.chat(key_of(name)) as answer:
            assert answer.status == status
    assert len(proxy.service.state.recipes) == 1


async def test_what_a_client_has_stored_stays_its_own_with_another_key(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, tmp_path: Path
) -> None:
    a, b = client("a"), client("b")
    (tmp_path / "a.keys").write_text("a-key\nnew-key")
    upstream.script(CHAT, whole(PLAIN))
    store = {"path": str(tmp_path / "s.db")}
    proxy = await start_proxy(upstream, auth={"client": [a, b]}, store=store)
    _, stored = await ask(proxy, CHAT, "a", {"model": MODEL, "messages": MESSAGES, "store": True})
    for name, found in (("a", [stored["id"]]), ("new", [stored["id"]]), ("b", [])):
        _, listed = await ask(proxy, CHAT, name)
        assert [one["id"] for one in listed["data"]] == found


def test_an_owner_is_the_same_for_all_time_and_no_keys() -> None:
    owner = KnownClient(AuthClient(name="team-a")).owner
    assert owner == KnownClient(AuthClient(name="team-a", keys=("env:B",), models=("x",))).owner
    assert owner == "12ec35d231823063a8d466a54e03df7d"
    assert owner != KnownClient(AuthClient(name="team-b")).owner


@pytest.mark.parametrize(("days", "status"), [(-1, 401), (1, 200)])
async def test_a_key_ends(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, days: int, status: int
) -> None:
    upstream.script(CHAT, whole(PLAIN))
    expires = datetime.now(UTC) + timedelta(days=days)
    proxy = await start_proxy(upstream, auth={"client": [client("a", expires=expires)]})
    async with await proxy.chat(key_of("a")) as answer:
        assert answer.status == status
        if status == 401:
            error = envelope(await answer.read())
            assert error["code"] == "invalid_api_key" and "expired" in error["message"]
    assert (await ask(proxy, "/v1/models", "a"))[0] == (status if status == 401 else 502)


@pytest.mark.parametrize("settings", [{"format": "json"}, {"format": "text"}])
async def test_the_log_names_the_client_and_no_key(
    upstream: Upstream,
    start_proxy: StartProxy,
    client: MakeClient,
    tmp_path: Path,
    settings: dict[str, str],
) -> None:
    upstream.script(CHAT, whole(PLAIN))
    proxy = await start_proxy(upstream, auth={"client": [client("team-a")]})
    with logging_to(tmp_path / "log", level="debug", **settings) as written:
        written.observe(proxy.service)
        for key in (key_of("team-a"), {"Authorization": "Bearer nobody"}):
            async with await proxy.chat(key) as answer:
                await answer.read()
        await until(lambda: written.text().count("chat_completions") == 2)
    known, stranger = written.text().splitlines()
    assert ('"client":"team-a"' if settings["format"] == "json" else " for team-a,") in known
    assert "team-a" not in stranger and "team-a-key" not in known


async def test_spans_name_the_client(
    upstream: Upstream, start_traced: StartTraced, client: MakeClient
) -> None:
    upstream.script(CHAT, whole(PLAIN))
    proxy, traced = await start_traced(upstream, auth={"client": [client("team-a")]})
    async with await proxy.chat(key_of("team-a")) as answer:
        assert answer.status == 200
    await until(lambda: len(traced.all()) == 2)
    span = traced.one().server
    assert span.attributes is not None and span.attributes["wellspoken.client"] == "team-a"
