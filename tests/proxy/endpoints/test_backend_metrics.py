"""GET /backend/metrics: a backend's own, unchanged, and what is said where there are none.

METRICS are lines of what vLLM 0.32.0 answers to GET /metrics, captured. The server without metrics
and the one with them are real ones, of llama.cpp.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.clock import skip
from tests.fakes.upstream import Cut, Gate, Stall, Step, Upstream, head, whole
from tests.proxy.conftest import Proxy, StartProxy, envelope, raw
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from wellspoken.engine.states import State
from wellspoken.proxy.endpoints import backend_metrics

PATH = "/backend/metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
METRICS = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
"""
KEY = "client-key-of-the-test-0123456789"


async def failing(proxy: Proxy, query: str = "") -> tuple[int, dict[str, Any], dict[str, str]]:
    """Ask for what is not there; return status, error object and headers."""
    async with proxy.session.get(proxy.url(PATH + query)) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, envelope(await response.text()), headers


def errors(samples: dict[str, float]) -> dict[str, float]:
    """Return the counted failures of backends, by labels."""
    name = "wellspoken_upstream_errors_total"
    return {key.removeprefix(name): value for key, value in samples.items() if name in key}


@pytest.mark.parametrize("kind", [TEXT, OPEN, "application/json"])
async def test_they_come_unchanged_and_without_a_key(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("CLIENT_KEY", KEY)
    upstream.script("/metrics", whole(METRICS, content_type=kind))
    proxy = await start_proxy(upstream, auth={"keys": ["env:CLIENT_KEY"]})
    async with proxy.session.get(proxy.url("/v1/models")) as response:
        assert response.status == 401
    async with proxy.session.get(proxy.url(PATH), headers={"Cookie": "a=b"}) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, kind)
        assert await response.read() == METRICS
        assert "sandbox" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    (asked,) = upstream.requests
    assert (asked.method, asked.target, asked.body) == ("GET", "/metrics", b"")
    assert asked.header("Cookie") is None
    assert asked.header("Authorization") is None


async def test_they_are_no_request_of_the_backend(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/metrics", whole(METRICS, content_type=TEXT))
    proxy = await start_proxy(upstream)
    engine = Engine()
    await hosting(proxy, engine)
    async with proxy.session.get(proxy.url(PATH)) as response:
        assert response.status == 200
    samples = await proxy.metrics()
    assert not [name for name in samples if name.startswith("wellspoken_request_duration_seconds")]
    route = 'backend="",code="200",model="_other",route="backend_metrics",stream="false"'
    assert samples[f"wellspoken_requests_total{{{route}}}"] == 1
    assert engine.open == 0


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"", None),
        (b"Accept: application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1\r\n",
         "application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"),
        (b"Accept: text/plain\r\naccept: */*\r\n", "text/plain, */*"),
        (b"Accept: text/plain\tx\r\n", None),
        (b"Accept: " + b"a" * 1001 + b"\r\n", None),
    ],
)  # fmt: skip
async def test_the_backend_is_told_which_form_is_wanted(
    upstream: Upstream, start_proxy: StartProxy, given: bytes, sent: str | None
) -> None:
    upstream.script("/metrics", whole(METRICS, content_type=OPEN))
    proxy = await start_proxy(upstream)
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%b\r\n"
    answer = await raw(proxy.port, request % (PATH.encode(), given))
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(METRICS)
    assert upstream.requests[0].header("Accept") == sent


async def test_head_tells_the_length(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/metrics", whole(METRICS, content_type=TEXT))
    proxy = await start_proxy(upstream)
    request = b"HEAD %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % PATH.encode()
    answer = await raw(proxy.port, request)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: %d\r\n" % len(METRICS) in answer
    assert [one.method for one in upstream.requests] == ["GET"]


async def test_nothing_else_is_allowed(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.post(proxy.url(PATH), json={}) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    assert upstream.requests == []


async def test_several_backends_are_asked_by_name(start_proxy: StartProxy) -> None:
    async with Upstream(whole(b"one")) as one, Upstream(whole(b"two")) as two:
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["a"]},
            {"name": "t w", "url": two.url, "models": ["b"]},
        )
        async with proxy.session.get(proxy.url(f"{PATH}?x=1&backend=t%20w")) as response:
            assert await response.read() == b"two"
        status, error, _ = await failing(proxy)
        assert (status, error["param"]) == (400, "backend")
        assert "?backend=NAME. Known backends: one, t w." in error["message"]
        for query in ("?backend=three", "?backend=", "?backend=%ff"):
            status, error, _ = await failing(proxy, query)
            assert (status, error["param"], error["code"]) == (404, "backend", "backend_not_found")
            assert "Known backends: one, t w." in error["message"]
        assert (len(one.requests), len(two.requests)) == (0, 1)
        await hosting(proxy, Engine(), 0)
        async with proxy.session.get(proxy.url(PATH)) as response:
            assert await response.read() == b"one"


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        (whole({"detail": "Not Found"}, status=404), 404, "backend default ("),
        (whole({"detail": "Not Found"}, status=404), 404, "--enable-metrics"),
        (whole(b"busy", 503, "text/plain"), 503, "busy"),
        (whole({"error": "Unauthorized"}, status=401), 502, "refused the credentials"),
        (whole(b"", 302, None, [("Location", "/login")]), 502, "redirect is not followed"),
        ([Cut()], 502, "closed the connection"),
        ([head(200, TEXT, length=9), b"half", Cut()], 502, "before its answer was complete"),
        (whole(b"x" * 2000), 502, "raise limits.response"),
        ([Stall()], 504, "did not send its metrics within 0.2 s"),
        ([head(200, TEXT, length=9), b"half", Stall()], 504, "raise timeouts.probe"),
    ],
)  # fmt: skip
async def test_what_fails_is_said_in_openais_envelope(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    script: list[Step],
    status: int,
    said: str,
) -> None:
    upstream.script("/metrics", script)
    stalls = any(isinstance(step, Stall) for step in script)
    seconds, probe = (0.2, 0.1) if stalls else (120.0, 120.0)
    monkeypatch.setattr(backend_metrics, "SECONDS", seconds)
    proxy = await start_proxy(upstream, limits={"response": 1000}, timeouts={"probe": probe})
    found, error, headers = await failing(proxy)
    assert found == status, error
    assert said in error["message"]
    assert ("retry-after" in headers) == (status == 503)


async def test_a_failure_is_counted_and_its_connection_closed(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_metrics, "SECONDS", 100.0)
    upstream.script("/metrics", [Stall()])
    proxy = await start_proxy(upstream, timeouts={"probe": 50.0})
    late = asyncio.create_task(failing(proxy))
    await upstream.request()
    skip(110.0)
    assert (await late)[0] == 504
    async with asyncio.timeout(60):
        await upstream.requests[0].closed.wait()
    assert upstream.requests[0].by_peer
    await upstream.refuse()
    status, error, _ = await failing(proxy)
    assert (status, error["code"]) == (502, "backend_unavailable")
    assert errors(await proxy.metrics()) == {
        '{backend="default",reason="first_byte_timeout"}': 1.0,
        '{backend="default",reason="refused"}': 1.0,
    }


async def test_a_slow_probe_may_take_its_time(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_metrics, "SECONDS", 0.05)
    gate = Gate()
    upstream.script("/metrics", [gate, *whole(METRICS, content_type=TEXT)])
    proxy = await start_proxy(upstream, timeouts={"probe": 300})
    asking = asyncio.create_task(proxy.session.get(proxy.url(PATH)))
    await gate.reached.wait()
    await asyncio.sleep(0.2)
    gate.open()
    async with await asking as response:
        assert await response.read() == METRICS


async def test_the_limit_of_open_requests_does_not_hold(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.script("/v1/chat/completions", [gate, *whole({})])
    upstream.script("/metrics", whole(METRICS, content_type=TEXT))
    proxy = await start_proxy(upstream, limits={"inflight": 1})
    chat = asyncio.create_task(proxy.chat())
    await gate.reached.wait()
    await proxy.error(429)
    async with proxy.session.get(proxy.url(PATH)) as response:
        assert response.status == 200
    gate.open()
    (await chat).release()


@pytest.mark.parametrize(
    ("state", "reason", "retry"),
    [
        ("stopped", "it was unloaded after 15 minutes without a request", False),
        ("starting", "vLLM is starting: loading weights, 42 s", True),
        ("draining", "it was unloaded after 15 minutes without a request", False),
        ("failed", "it ended 5 times within 10 minutes", False),
        ("ready", "", True),
    ],
)
async def test_an_engine_that_is_not_there_is_not_woken(
    upstream: Upstream, start_proxy: StartProxy, state: State, reason: str, retry: bool
) -> None:
    proxy = await start_proxy(upstream)
    await hosting(proxy, Engine("stopped"))
    await hosting(proxy, Engine(state, reason))
    status, error, headers = await failing(proxy)
    assert (status, error["code"]) == (503, "engine_not_ready")
    assert (reason or "it is ending") in error["message"]
    assert ("A request to its model loads it" in error["message"]) == ("unloaded" in reason)
    assert (headers.get("x-should-retry") == "false") != retry
    assert upstream.requests == []


def serving(model: Path, metrics: bool) -> Any:
    """Return a real llama.cpp of this test's own: a scrape resets what the next one tells."""
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.cpuparams.n_threads = 512, 1
    params.warmup = params.fit_params = params.ui = False
    params.verbosity = -1
    params.endpoint_metrics = metrics
    return xllamacpp.Server(params)


async def test_llamacpp_without_the_flag_says_which(
    tiny_model: Path, start_proxy: StartProxy
) -> None:
    server = serving(tiny_model, metrics=False)
    proxy = await start_proxy(server.listening_address)
    status, error, headers = await failing(proxy)
    assert status == 501
    assert "--metrics" in error["message"]
    assert headers["x-should-retry"] == "false"


async def test_llamacpps_own_come_unchanged(tiny_model: Path, start_proxy: StartProxy) -> None:
    server = serving(tiny_model, metrics=True)
    proxy = await start_proxy(server.listening_address)
    async with proxy.session.get(server.listening_address + "/metrics") as response:
        kind, expected = response.headers["Content-Type"], await response.read()
    async with proxy.session.get(proxy.url(PATH)) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, kind)
        assert await response.read() == expected
    assert b"\nllamacpp:requests_processing 0\n" in expected
