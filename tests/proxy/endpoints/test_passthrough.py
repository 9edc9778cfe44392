"""Endpoints that pass through: which do, byte for byte both ways, with the proxy's protections."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from yarl import URL

from tests.clock import skip
from tests.fakes.upstream import Cut, Gate, Stall, Upstream, stream, whole
from tests.proxy.conftest import StartProxy, envelope
from tests.proxy.posting import ODD, post, refused
from tests.waiting import until
from wellspoken.adapters.servers.registry import BACKENDS
from wellspoken.proxy.config.checks import refuse_endpoints
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.endpoints.passthrough import is_reachable, label
from wellspoken.proxy.routes import OWN_PATHS

Json = dict[str, Any]
EVENTS = b"event: a\ndata: {}\n\n:c\r\n\r\nevent: b\ndata: \xff\xfe\ndata:\n\n"
MESSAGES = "/v1/messages"


@pytest.fixture
def start_proxy(start_proxy: StartProxy) -> StartProxy:
    """Start a proxy whose backends answer /v1/responses themselves."""
    return partial(start_proxy, responses="pass")


@pytest.mark.parametrize(
    ("adapter", "path"),
    [
        (name, path)
        for name, one in BACKENDS.items()
        for path in one.passes
        if not path.endswith("/embeddings")
    ],
)
async def test_each_listed_path_passes_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, path: str
) -> None:
    answer = b'{"a": 1.00,\n "b":"\xc3\xa9"}\n'
    upstream.scripts = [whole(answer, 201, "application/json; charset=utf-8")]
    proxy = await start_proxy(upstream, adapter=adapter)
    async with await post(proxy, f"{path}?beta=true") as response:
        assert (response.status, await response.read()) == (201, answer)
        assert response.headers["Content-Type"] == "application/json; charset=utf-8"
        assert response.headers["x-request-id"] == upstream.requests[0].header("x-request-id")
    sent = upstream.requests[0]
    assert (sent.method, sent.target, sent.body) == ("POST", path, ODD)
    assert sent.header("Content-Type") == "application/json"
    assert sent.header("Accept") == "application/json"


UNLISTED = (
    "/slots", "/slots/0", "/lora-adapters", "/props", "/v1/load_lora_adapter", "/pause",
    "/sleep", "/wake_up", "/collective_rpc", "/invocations", "/reset_prefix_cache",
    "/server_info", "/start_profile", "/cors-proxy", "/tools", "/update_weights", "/infill",
    "/v1/audio/transcriptions", "/v1/files", "/tokenize/",
    "/TOKENIZE", "//tokenize", "/v1/%74okenize", "/v1/rerank/x",
)  # fmt: skip


@pytest.mark.parametrize("adapter", sorted(BACKENDS))
async def test_every_other_path_is_a_404_and_not_asked_for(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter=adapter)
    for path, method in itertools.product(UNLISTED, ("POST", "GET", "DELETE")):
        url = URL(proxy.url("") + path, encoded=True)
        async with proxy.session.request(method, url, json={}) as response:
            text = await response.text()
            assert (response.status, envelope(text)["code"]) == (404, "unknown_url"), (method, path)
    assert upstream.requests == []


async def test_only_post_reaches_a_listed_path(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, adapter="llamacpp", ui=True)
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        async with proxy.session.request(method, proxy.url("/tokenize")) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
    assert upstream.requests == []


async def test_the_route_says_which_paths_pass(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm", endpoints=["/classify"])
    async with await post(proxy, "/classify") as response:
        assert response.status == 200
    error = await refused(proxy, "/tokenize", 404)
    assert "POST /classify" in error["message"]
    none = await start_proxy(upstream, adapter="vllm", endpoints=[])
    for path in ("/tokenize", "/v1/embeddings", "/embeddings"):
        assert (await refused(none, path, 404))["code"] == "unknown_url"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("rerank", "full path"),
        ("/rerank/", "full path"),
        ("/", "full path"),
        ("/a//b", "full path"),
        ("/a/../b", "full path"),
        ("/a?b=c", "full path"),
        ("/a%2fb", "full path"),
        ("/v1/responses/{id}", "full path"),
        ("/a b", "full path"),
        ("/metrics", "own"),
        ("/v1/chat/completions", "own"),
        ("/v1/chat/completions/render", "own"),
        ("/models/load", "own"),
        ("/health", "own"),
        ("/v1/audio/transcriptions", "JSON"),
        ("/slots", "administers"),
        ("/slots/0", "administers"),
        ("/lora-adapters", "administers"),
        ("/v1/unload_lora_adapter", "administers"),
        ("/pause", "administers"),
        ("/collective_rpc", "administers"),
        ("/update_weights_from_disk", "administers"),
        ("/fault_tolerance/apply", "administers"),
        ("/api/pull", "administers"),
        ("/invocations", "administers"),
    ],
)
async def test_a_path_that_may_not_pass_is_a_config_error(
    start_proxy: StartProxy, path: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"backend\[0\]\.endpoints: .*{why}"):
        await start_proxy("http://localhost:1", endpoints=[path])


def test_what_the_adapters_list_may_pass() -> None:
    for backend in BACKENDS.values():
        refuse_endpoints(backend.passes, OWN_PATHS)
        assert len(set(backend.passes)) == len(backend.passes)
        assert OWN_PATHS.isdisjoint(backend.passes)
    refuse_endpoints(
        ["/infill", "/apply-template", "/classify", "/api/embed", "/v2/embed"], OWN_PATHS
    )


def test_a_label_is_one_name_for_each_version_of_a_path() -> None:
    assert {label(path) for path in ("/rerank", "/v1/rerank", "/v2/rerank")} == {"rerank"}
    assert label("/v1/messages/count_tokens") == "messages_count_tokens"
    assert label("/apply-template") == "apply_template"


async def test_metrics_name_the_endpoint(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm", name="gpu", models=["m"])
    await (await post(proxy, "/v2/rerank", {"model": "m"})).release()
    scraped = await proxy.metrics()
    series = 'backend="gpu",code="200",model="m",route="rerank",stream="false"'
    assert scraped[f"wellspoken_requests_total{{{series}}}"] == 1


async def test_only_the_models_name_is_rewritten(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm", aliases={"café": "real/one"})
    await (await post(proxy, "/tokenize")).release()
    assert upstream.requests[0].body == ODD.replace(b"caf\\u00e9", b"real/one")


async def test_the_model_chooses_the_backend(start_proxy: StartProxy) -> None:
    async with Upstream(whole({"at": "a"})) as one, Upstream(whole({"at": "b"})) as two:
        proxy = await start_proxy(
            {"url": one.url, "name": "a", "models": ["m"], "adapter": "vllm"},
            {"url": two.url, "name": "b", "models": ["n"], "adapter": "llamacpp"},
        )
        for model, at in (("m", "a"), ("n", "b")):
            async with await post(proxy, "/v1/rerank", {"model": model}) as response:
                assert await response.json() == {"at": at}
        missing = await refused(proxy, "/tokenize", 400, {"content": "x"})
        assert (missing["param"], missing["code"]) == ("model", "missing_required_parameter")
        unknown = await refused(proxy, "/tokenize", 404, {"model": "x"})
        assert unknown["code"] == "model_not_found"
        absent = await refused(proxy, "/reranking", 404, {"model": "m"})
        assert absent["code"] == "unknown_url" and "backend a (vLLM)" in absent["message"]
        assert (len(one.requests), len(two.requests)) == (1, 1)


@pytest.mark.parametrize("path", [MESSAGES, "/v1/responses"])
async def test_a_stream_comes_as_it_is_sent(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    gate = Gate()
    half = EVENTS[:20]
    upstream.scripts = [
        stream(half, gate, EVENTS[20:], content_type="text/event-stream; charset=utf-8")
    ]
    proxy = await start_proxy(upstream, adapter="vllm", timeouts={"heartbeat": 0.05})
    async with await post(proxy, path, {"model": "m", "stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert await response.content.readexactly(len(half)) == half
        await gate.reached.wait()
        await asyncio.sleep(0.12)  # no heartbeat of ours gets among the bytes
        gate.open()
        assert await response.read() == EVENTS[20:]
    assert upstream.requests[0].header("Accept") == "text/event-stream"


async def test_lines_of_json_come_as_they_are_sent(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [stream(b"{}\n", gate, b"[]\n", content_type="application/x-ndjson")]
    proxy = await start_proxy(upstream, endpoints=["/api/generate"])
    async with await post(proxy, "/api/generate", {"model": "m"}) as response:
        assert await response.content.readline() == b"{}\n"
        gate.open()
        assert await response.read() == b"[]\n"


async def test_a_client_that_leaves_ends_the_backends_work(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(EVENTS, Stall())]
    proxy = await start_proxy(upstream, adapter="vllm")
    response = await post(proxy, "/v1/responses", {"stream": True})
    await response.content.readexactly(len(EVENTS))
    response.close()
    seen = await upstream.request()
    await asyncio.wait_for(seen.closed.wait(), 60)
    assert seen.by_peer
    await until(lambda: not proxy.service.state.inflight)


async def test_a_cut_stream_is_passed_on_cut(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [stream(EVENTS, Cut(), end=False)]
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await post(proxy, MESSAGES, {"stream": True}) as response:
        assert await response.content.readexactly(len(EVENTS)) == EVENTS
        with pytest.raises(ClientPayloadError):
            await response.content.readexactly(1)


SAID = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}


async def test_anthropics_errors_stay_as_sent(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(SAID, 429, headers=[("retry-after", "7")])]
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await post(proxy, MESSAGES) as response:
        assert (response.status, await response.json()) == (429, SAID)
        assert response.headers["retry-after"] == "7"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/responses", "/v1/rerank"])
async def test_other_errors_get_the_envelope(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole({"detail": [{"loc": ["body", "prompt"], "msg": "missing"}]}, 422)]
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await post(proxy, path) as response:
        error = envelope(await response.text())
        assert (response.status, error["param"]) == (422, "prompt")
        assert response.headers["x-wellspoken-repairs"] == "error_detail"
    scraped = await proxy.metrics()
    series = 'backend="default",rule="error_detail"'
    assert scraped[f"wellspoken_repairs_total{{{series}}}"] == 1


@pytest.mark.parametrize("path", ["/tokenize", MESSAGES, "/v1/embeddings"])
async def test_the_proxys_key_is_never_the_clients_affair(
    upstream: Upstream, start_proxy: StartProxy, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "s3cret")
    upstream.scripts = [whole({"error": "bad key s3cret"}, 401), whole(SAID, 400)]
    proxy = await start_proxy(upstream, adapter="vllm", key="env:BACKEND_KEY")
    mine = {"Authorization": "Bearer mine", "x-api-key": "mine"}
    async with await post(proxy, path, {"model": "m", "input": "x"}, mine) as response:
        text = await response.text()
        assert (response.status, envelope(text)["code"]) == (502, "backend_auth_failed")
        assert "s3cret" not in text
    seen = upstream.requests[0]
    assert (seen.header("Authorization"), seen.header("x-api-key")) == ("Bearer s3cret", None)


@pytest.mark.parametrize("auth", ["none", "pass"])
async def test_the_clients_key_goes_along_only_where_the_route_says_so(
    upstream: Upstream, start_proxy: StartProxy, auth: str
) -> None:
    upstream.scripts = [whole({}), whole(SAID, 401)]
    proxy = await start_proxy(upstream, adapter="vllm", auth=auth)
    given = {
        "Authorization": "Bearer mine",
        "x-api-key": "mine",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a",
        "Cookie": "c",
        "x-other": "o",
    }
    await (await post(proxy, MESSAGES, headers=given)).release()
    seen = upstream.requests[0]
    key = "mine" if auth == "pass" else None
    assert seen.header("x-api-key") == key
    assert seen.header("Authorization") == (f"Bearer {key}" if key else None)
    assert (seen.header("anthropic-version"), seen.header("anthropic-beta")) == ("2023-06-01", "a")
    assert (seen.header("Cookie"), seen.header("x-other")) == (None, None)
    async with await post(proxy, "/tokenize", headers=given) as response:
        assert response.status == (401 if auth == "pass" else 502)
    assert upstream.requests[1].header("anthropic-version") is None


async def test_the_proxys_limits_hold(upstream: Upstream, start_proxy: StartProxy) -> None:
    gate = Gate()
    proxy = await start_proxy(
        upstream,
        adapter="vllm",
        limits={"inflight": 1, "body": 200, "response": 100},
        timeouts={"first_token_body": 100.0},
    )
    big = await refused(proxy, "/tokenize", 413, {"x": "y" * 300})
    assert big["code"] == "request_too_large"
    upstream.scripts = [whole(b"x" * 101)]
    assert (await refused(proxy, "/tokenize", 502))["code"] == "backend_error"
    upstream.scripts = [[gate, *whole({})]]
    first = asyncio.create_task(refused(proxy, "/tokenize", 504))
    await gate.reached.wait()
    for path in ("/detokenize", "/v1/embeddings"):
        assert (await refused(proxy, path, 429))["code"] == "rate_limit_exceeded"
    skip(110.0)
    assert (await first)["code"] == "backend_timeout"


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_json"), (b"[1]", "invalid_type"), (b'{"model": 1}', "invalid_type")],
)
async def test_what_is_no_request_is_not_sent(
    upstream: Upstream, start_proxy: StartProxy, body: bytes, code: str
) -> None:
    proxy = await start_proxy(upstream, adapter="vllm")
    assert (await refused(proxy, "/tokenize", 400, body))["code"] == code
    assert upstream.requests == []


async def test_a_redirect_is_not_followed_nor_passed_on(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(b"", 307, headers=[("Location", "/slots")])]
    proxy = await start_proxy(upstream, adapter="vllm")
    for path in ("/tokenize", MESSAGES):
        await refused(proxy, path, 502)
    assert [seen.target for seen in upstream.requests] == ["/tokenize", MESSAGES]


async def test_until_a_server_is_recognised_its_paths_may_be_any(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/version", whole({"version": "0.32.0"}))
    upstream.script("/v1/models", whole({"data": [{"id": "m", "owned_by": "vllm"}]}))
    upstream.script("/score", whole({"ok": 1}))
    proxy = await start_proxy(upstream, adapter="auto")
    assert is_reachable(proxy.service.state.router, "/score") and not is_reachable(
        proxy.service.state.router, "/slots"
    )
    async with await post(proxy, "/score") as response:
        assert await response.json() == {"ok": 1}
    error = await refused(proxy, "/reranking", 404)  # llama.cpp's spelling, and this is vLLM
    assert error["code"] == "unknown_url"
