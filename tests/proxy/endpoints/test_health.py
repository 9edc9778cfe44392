"""Health: alive, ready, and ready with an engine."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.conforming import body
from tests.fakes.upstream import Cut, Gate, Pause, Stall, Step, Upstream, whole
from tests.openapi.answer_schema import Ready, Unready
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from tests.waiting import until
from wellspoken.engine.states import State
from wellspoken.proxy.upstream import readiness

OK: list[Step] = whole({"status": "ok"})


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
        (
            [Stall()],
            503,
            "did not answer GET /health within 0.1 s. Look at its log; if it is only slow, raise "
            "timeouts.probe.",
        ),
        ([Cut()], 503, "closed the connection"),
        (
            whole(b"<html>" + 65_536 * b" ", content_type="text/html"),
            503,
            "answered GET /health with more than 65536 bytes. Check that the URL is that of an LLM "
            "server",
        ),
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
    timeouts = {"probe": 0.1} if "0.1 s" in reason else {}
    proxy = await start_proxy(upstream, timeouts=timeouts)
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


async def test_how_each_of_several_servers_is(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/health", OK)
    gate = Gate()
    upstream.scripts = [[gate, *whole(body())]]
    backend = {"url": [upstream.url, "http://127.0.0.1:9"]}
    proxy = await start_proxy(backend, health={"failures": 1, "pause": 50, "interval": 0})
    assert await proxy.get("/readyz") == (
        200,
        {
            "status": "ok",
            "backends": [
                {"name": "default/1", "state": "in", "outstanding": 0},
                {"name": "default/2", "state": "in", "outstanding": 0},
            ],
        },
    )
    asked = [asyncio.create_task(proxy.chat()) for _ in range(2)]  # the second moves to the first
    await until(lambda: sum(request.target == CHAT for request in upstream.requests) == 2)
    status, answer = await proxy.get("/readyz")
    assert status == 200 and answer["backends"] == [
        {"name": "default/1", "state": "in", "outstanding": 2},
        {"name": "default/2", "state": "out", "outstanding": 0, "reason": "refused"},
    ]
    msgspec.convert(answer, Ready)
    gate.open()
    assert [response.status for response in await asyncio.gather(*asked)] == [200, 200]
    await upstream.refuse()
    forget(proxy)
    status, answer = await proxy.get("/readyz")
    assert status == 503 and upstream.url in answer["reason"]
    assert [each["state"] for each in answer["backends"]] == ["in", "out"]
    msgspec.convert(answer, Unready)


async def test_of_one_server_there_is_nothing_to_tell_apart(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(upstream)
    assert await proxy.get("/readyz") == (200, {"status": "ok"})


async def test_servers_are_told_only_to_who_may_know(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "sk-admin")
    upstream.script("/health", OK)
    backend = {"url": [upstream.url, "http://127.0.0.1:9"]}
    proxy = await start_proxy(backend, auth={"admin": ("env:ADMIN_KEY",)})
    assert await proxy.get("/readyz") == (200, {"status": "ok"})
    key = {"Authorization": "Bearer sk-admin"}
    async with proxy.session.get(proxy.url("/readyz"), headers=key) as response:
        assert [each["name"] for each in (await response.json())["backends"]] == [
            "default/1", "default/2",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (Engine("ready"), {"state": "in"}),
        (Engine("starting", "it starts again", first=True),
         {"state": "out", "reason": "it starts again"}),
        (Engine("stopped", "it was unloaded"), {"state": "out", "reason": "it was unloaded"}),
    ],
)  # fmt: skip
async def test_an_engine_that_is_away_is_out(
    upstream: Upstream, start_proxy: StartProxy, engine: Engine, told: dict[str, str]
) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(
        {"name": "engine", "url": upstream.url, "models": ["a"]},
        {"name": "backend", "url": upstream.url, "models": ["a"]},
    )
    await hosting(proxy, engine)
    assert (await proxy.get("/readyz"))[1]["backends"] == [
        {"name": "engine", "outstanding": 0, **told},
        {"name": "backend", "state": "in", "outstanding": 0},
    ]


async def test_not_ready_while_draining(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/health", OK)
    proxy = await start_proxy(upstream)
    assert (await proxy.get("/readyz"))[0] == 200
    proxy.service.state.draining = True
    status, answer = await proxy.get("/readyz")
    assert (status, answer["reason"]) == (503, "the proxy is shutting down")


async def test_probes_are_shared_and_kept(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "PROBE_SECONDS", 3600.0)
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
