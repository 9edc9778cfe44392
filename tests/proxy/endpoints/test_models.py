"""Models, health and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.upstream import Cut, Pause, Stall, Step, Upstream, whole
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from wellspoken.engine.kind import Facts
from wellspoken.engine.states import State
from wellspoken.proxy.upstream.listing import read_models

OK: list[Step] = whole({"status": "ok"})
MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {
            "id": "llama",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "vllm",
            "root": "/",
        },
        {"id": "odd", "created": None, "permission": []},
        {"id": "", "created": 5},
        {"name": "no id"},
        "text",
    ],
    "models": [{"name": "llama"}],
}


def entry(name: str, created: int = 0, owner: str = "default") -> dict[str, Any]:
    """Return one model as OpenAI lists it."""
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


async def test_models_of_a_sole_backend_that_is_down_are_not_known(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    for path in ("/v1/models", "/v1/models/any"):
        status, answer = await proxy.get(path)
        assert (status, answer["error"]["code"]) == (502, "backend_unavailable")
        assert "http://127.0.0.1:1" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_models_are_openais_four_keys(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"}, models=["mine"])
    expected = [
        entry("mine"),
        entry("gpt-4o", 1_700_000_000, "vllm"),
        entry("llama", 1_700_000_000, "vllm"),
        entry("odd", 0, "backend"),
    ]
    assert await proxy.get(path) == (200, {"object": "list", "data": expected})


async def test_several_backends_list_only_what_they_are_asked_for(start_proxy: StartProxy) -> None:
    async with Upstream(whole(MODELS)) as one, Upstream(whole(MODELS)) as two:
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["llama"]},
            {"name": "two", "url": two.url, "models": ["other"]},
        )
        _, answer = await proxy.get("/v1/models")
    assert answer["data"] == [entry("llama", 1_700_000_000, "vllm"), entry("other", 0, "two")]


@pytest.mark.parametrize(
    "script",
    [whole({"detail": "Not Found"}, status=404), whole(b"<html>"), whole([]), [Cut()], [Stall()]],
)
async def test_a_backend_without_models_still_has_the_configured_ones(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step]
) -> None:
    upstream.scripts = [script]
    proxy = await start_proxy(upstream, models=["mine"], timeouts={"probe": 0.1})
    assert await proxy.get("/v1/models") == (200, {"object": "list", "data": [entry("mine")]})


async def test_one_model(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, models=["org/name with space"])
    assert await proxy.get("/v1/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    assert await proxy.get("/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    found = await proxy.get("/v1/models/org/name%20with%20space")
    assert found == (200, entry("org/name with space"))
    status, answer = await proxy.get("/v1/models/none")
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"


async def test_the_models_of_an_engine_that_is_away(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"})
    await hosting(proxy, Engine("ready"))
    listed = await proxy.get("/v1/models")
    assert len(listed[1]["data"]) == 3
    await hosting(proxy, Engine("stopped", "it was unloaded"))
    assert await proxy.get("/v1/models") == listed
    assert await proxy.get("/v1/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    assert (await proxy.get("/v1/models/none"))[0] == 404
    assert len(upstream.requests) == 1


async def test_the_models_of_an_engine_that_nobody_asked_for_its_list(
    start_proxy: StartProxy,
) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    engine = Engine("starting", "vLLM is starting: loading weights, 3 s", first=True)
    await hosting(proxy, engine)
    status, answer = await proxy.get("/v1/models")
    assert (status, answer["error"]["code"]) == (503, "engine_not_ready")
    assert "loading weights" in answer["error"]["message"]
    engine.facts = Facts(models=("org/name",))
    expected = {"object": "list", "data": [entry("org/name")]}
    for engine.state in ("starting", "draining", "failed"):
        assert await proxy.get("/v1/models") == (200, expected)


async def test_an_engine_that_breaks_off_still_has_its_models(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/v1/models", whole(MODELS), [Cut()], whole({}, status=500))
    proxy = await start_proxy(upstream)
    await hosting(proxy, Engine("ready"))
    listed = await proxy.get("/v1/models")
    assert listed[0] == 200 and len(listed[1]["data"]) == 2
    for number in (2, 3):
        assert await proxy.get("/v1/models") == listed
        assert len(upstream.requests) == number


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data": [{"id": "a", "created": "now", "owned_by": null}]}', ["a"]),
        (b'[{"id": "a", "created": 1e300}, {"id": "b", "created": true}]', ["a", "b"]),
        (b'{"data": null}', []),
        (b"{", []),
        (b"\xff", []),
        (b"[" * 100_000, []),
        (b"3", []),
    ],
)
def test_model_lists_of_every_form(body: bytes, names: list[str]) -> None:
    found = read_models(body)
    assert list(found) == names
    assert all(model.created == 0 and model.owned_by == "backend" for model in found.values())


async def test_live_whatever_happens(upstream: Upstream, start_proxy: StartProxy) -> None:
    await upstream.refuse()
    proxy = await start_proxy(upstream)
    proxy.service.state.draining = True
    assert await proxy.get("/livez") == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/readyz", "/health"])
@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        (OK, 200, ""),
        (whole({}, status=404), 200, ""),
        (whole({}, status=401), 200, ""),
        (whole({"error": "Loading model"}, status=503), 503, "answers 503"),
        ([Stall()], 503, "within 0.1 s"),
        ([Cut()], 503, "closed the connection"),
    ],
)
async def test_ready(
    upstream: Upstream,
    start_proxy: StartProxy,
    path: str,
    script: list[Step],
    status: int,
    reason: str,
) -> None:
    upstream.script("/health", script)
    proxy = await start_proxy(upstream, timeouts={"probe": 0.1})
    code, answer = await proxy.get(path)
    assert code == status
    assert reason in answer.get("reason", "")


async def test_not_ready_without_backend_and_ready_again(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(upstream)
    await upstream.refuse()
    status, answer = await proxy.get("/readyz")
    assert status == 503
    assert upstream.url in answer["reason"]
    await upstream.listen()
    forget(proxy)
    assert (await proxy.get("/readyz"))[0] == 200


async def test_one_of_two_backends_is_enough(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(
        {"name": "one", "url": "http://127.0.0.1:1", "models": ["a"]},
        {"name": "two", "url": upstream.url, "models": ["b"]},
    )
    assert (await proxy.get("/readyz"))[0] == 200


AWAY = "The engine is not ready: "


@pytest.mark.parametrize("path", ["/readyz", "/health"])
@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (Engine("ready"), ""),
        (Engine("stopped", "it was unloaded after 15 minutes without a request"), ""),
        (Engine("draining", "it was unloaded after 15 minutes without a request"), ""),
        (Engine("stopped", "it has not been started", first=True), "it has not been started"),
        (Engine("starting", "vLLM is starting: loading weights, 42 s", first=True),
         "vLLM is starting: loading weights, 42 s"),
        (Engine("starting", "vLLM ended with exit code 1; it starts again in 4 s"),
         "vLLM ended with exit code 1; it starts again in 4 s"),
        (Engine("draining", "the proxy is shutting down", first=True),
         "the proxy is shutting down"),
        (Engine("failed", "it ended 5 times within 10 minutes"),
         "it ended 5 times within 10 minutes"),
        (Engine("failed", "vllm is not installed", first=True), "vllm is not installed"),
        (Engine("failed", "Raise start_timeout."), "Raise start_timeout"),
    ],
)  # fmt: skip
async def test_ready_with_an_engine(
    upstream: Upstream, start_proxy: StartProxy, path: str, engine: Engine, reason: str
) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(upstream)
    await hosting(proxy, engine)
    unready = {"status": "unavailable", "reason": f"{AWAY}{reason}."}
    expected = (503, unready) if reason else (200, {"status": "ok"})
    assert await proxy.get(path) == expected
    assert await proxy.get("/livez") == (200, {"status": "ok"})
    assert len(upstream.requests) == (1 if engine.state == "ready" else 0)


async def test_an_engines_state_is_not_kept_as_a_probe_is(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/health", OK, whole({}, status=503))
    proxy = await start_proxy(upstream)
    engine = Engine("ready")
    await hosting(proxy, engine)
    assert (await proxy.get("/readyz"))[0] == 200
    engine.state, engine.reason = "starting", "it starts again in 1 s"
    assert (await proxy.get("/readyz"))[1]["reason"] == f"{AWAY}it starts again in 1 s."
    engine.state, engine.reason = "ready", ""
    assert (await proxy.get("/readyz"))[0] == 200
    forget(proxy)
    status, answer = await proxy.get("/readyz")
    assert (status, len(upstream.requests)) == (503, 2)
    assert "answers 503 to GET /health" in answer["reason"]


@pytest.mark.parametrize(
    ("state", "first", "there", "status"),
    [
        ("failed", True, True, 200),
        ("starting", True, True, 200),
        ("stopped", False, False, 200),
        ("failed", False, False, 503),
    ],
)
async def test_an_engine_beside_a_backend(
    upstream: Upstream,
    start_proxy: StartProxy,
    state: State,
    first: bool,
    there: bool,
    status: int,
) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(
        {"name": "engine", "url": "http://127.0.0.1:1", "models": ["a"]},
        {"name": "backend", "url": upstream.url, "models": ["b"]},
    )
    await hosting(proxy, Engine(state, "the engine's reason", first=first))
    if not there:
        await upstream.refuse()
    code, answer = await proxy.get("/readyz")
    assert code == status
    if code == 503:
        assert answer["reason"].startswith(f"{AWAY}the engine's reason. The backend at http")


async def test_not_ready_while_draining(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(upstream)
    assert (await proxy.get("/readyz"))[0] == 200
    proxy.service.state.draining = True
    status, answer = await proxy.get("/readyz")
    assert (status, answer["reason"]) == (503, "the proxy is shutting down")


async def test_probes_are_shared_and_kept(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/health", [Pause(0.1), *OK])
    proxy = await start_proxy(upstream)
    await asyncio.gather(*(proxy.get("/readyz") for _ in range(20)))
    await proxy.get("/readyz")
    assert len(upstream.requests) == 1
    forget(proxy)
    await proxy.get("/readyz")
    assert len(upstream.requests) == 2


def forget(proxy: Proxy) -> None:
    """Let the last probe's result be out of date."""
    proxy.service.state.readiness.forget()


async def test_metrics_count_and_are_bounded(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/v1/chat/completions", whole(PLAIN))
    proxy = await start_proxy(upstream, models=["known"])
    for model in ("known", *(f"hostile-{number}" for number in range(50))):
        async with await proxy.chat(model=model):
            pass
    await proxy.error(400, n=0)
    for number in range(50):
        async with proxy.session.get(proxy.url(f"/x{number}")):
            pass
    first = await proxy.metrics()
    labels = 'backend="default",code="200",model="{}",route="chat_completions",stream="false"'
    name = "wellspoken_requests_total{{" + labels + "}}"
    assert first[name.format("known").replace("{{", "{").replace("}}", "}")] == 1
    assert first[name.format("_other").replace("{{", "{").replace("}}", "}")] == 50
    assert first["wellspoken_inflight_requests"] == 1
    assert len([one for one in first if one.startswith("wellspoken_requests_total")]) == 4
    assert not [one for one in first if "_created" in one]
    families = {one.partition("{")[0] for one in first}
    assert "wellspoken_build_info" in families
    assert "wellspoken_request_duration_seconds_bucket" in families


async def test_metrics_are_in_prometheus_form(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.get(proxy.url("/metrics")) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    for family in (
        "wellspoken_requests_total",
        "wellspoken_request_duration_seconds",
        "wellspoken_time_to_first_token_seconds",
        "wellspoken_repairs_total",
        "wellspoken_fields_dropped_total",
        "wellspoken_usage_source_total",
        "wellspoken_inflight_requests",
        "wellspoken_client_disconnects_total",
        "wellspoken_upstream_errors_total",
        "wellspoken_build_info",
    ):
        assert f"# TYPE {family} " in text
