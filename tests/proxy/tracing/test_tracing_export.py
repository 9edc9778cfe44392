"""Spans on their way to a collector: OTLP over HTTP, and collectors that fail or hang.

The collector here is an HTTP server that decodes what it is sent with OpenTelemetry's own protobuf
types (opentelemetry-proto, of the exporter's dependencies).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE
from typing import Any

import pytest
from aiohttp import ClientSession
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.clock import own_time
from tests.conforming import MODEL, body
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.proxy.tracing.traced import parent
from tests.waiting import SECONDS, block_until, until
from wellspoken.proxy import tracing
from wellspoken.proxy.config.tables import Traces
from wellspoken.proxy.tracing import exporter as tracing_export
from wellspoken.proxy.tracing.spans import RequestTracing

ON = Traces(enabled=True)


class Collector:
    """A collector on a port of its own; `hangs`: it takes a request and never answers."""

    def __init__(self, status: int = 200, *, hangs: bool = False) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.gone = threading.Event()
        self.tried = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.tried += 1
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if hangs:
                    outer.gone.wait(120)
                    return
                given = {name.lower(): value for name, value in self.headers.items()}
                decoded = ExportTraceServiceRequest.FromString(data)
                outer.requests.append((self.path, given, decoded))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.gone.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def spans(self) -> list[Span]:
        return [
            span
            for _, _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, str]:
        (resource,) = self.requests[0][2].resource_spans
        return {x.key: x.value.string_value for x in resource.resource.attributes}


@pytest.fixture
async def begun(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Begin to trace a proxy: `proxy, made = await begun(collector's URL)`."""
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tracing_export, "FLUSH", SECONDS)  # on a busy machine; a test may say less
    all_made: list[RequestTracing] = []

    async def begin(url: str) -> tuple[Proxy, RequestTracing]:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        upstream.scripts = [whole(body())]
        proxy = await start_proxy(upstream)
        made = tracing.begin(ON, proxy.service.hooks)
        assert made is not None
        all_made.append(made)
        return proxy, made

    yield begin
    for made in all_made:
        await made.close()
    # The library's threads may still try to send, and say so in its log.
    for thread in [each for each in threading.enumerate() if each.name.startswith("OtelBatch")]:
        await asyncio.to_thread(thread.join, SECONDS)
        assert not thread.is_alive()
    await asyncio.sleep(0)
    gc.collect()  # the exporter's sockets, of which a warning would meet another test


async def chats(proxy: Proxy, times: int = 1) -> None:
    for _ in range(times):
        async with await proxy.chat() as response:
            assert response.status == 200


async def test_spans_reach_a_collector(
    begun: Any, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    collector = Collector()
    try:
        proxy, made = await begun(collector.url)
        await chats(proxy)
        await made.close()  # sends what waits, and does not wait for the next round
    finally:
        collector.stop()
    path, headers, request = collector.requests[0]
    assert (path, headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    resource = collector.resource()
    assert resource["service.name"] == "wellspoken"
    assert resource["service.version"] == tracing_export.version()
    scope = request.resource_spans[0].scope_spans[0]
    assert scope.scope.name == "wellspoken"
    assert scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"
    asked, server = sorted(collector.spans(), key=lambda span: span.name != "chat")
    assert (server.name, server.kind) == (f"POST {CHAT}", Span.SPAN_KIND_SERVER)
    assert (asked.name, asked.kind) == ("chat", Span.SPAN_KIND_CLIENT)
    assert asked.parent_span_id == server.span_id and asked.trace_id == server.trace_id
    ids = parent(upstream.requests[0])[:2]
    assert ids == (asked.trace_id.hex(), asked.span_id.hex())
    told = {x.key: x.value for x in asked.attributes}
    assert told["gen_ai.request.model"].string_value == MODEL
    assert told["gen_ai.usage.output_tokens"].int_value == 6
    assert told["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "stop"


async def test_the_service_is_called_what_the_environment_says(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Collector()
    try:
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=7,team=a")
        proxy, made = await begun(collector.url)
        await chats(proxy)
        await made.close()
        assert collector.resource()["service.name"] == "wellspoken"
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-proxy")
        proxy, made = await begun(collector.url)
        collector.requests.clear()
        await chats(proxy)
        await made.close()
    finally:
        collector.stop()
    resource = collector.resource()
    assert (resource["service.name"], resource["service.version"]) == ("my-proxy", "7")
    assert resource["team"] == "a"


@pytest.mark.parametrize("kind", ["refused", "500"])
async def test_a_collector_that_fails_costs_a_line_of_the_log(
    begun: Any,
    kind: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And another one after a while, which counts those in between."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setattr(tracing_export, "FLUSH", 0.2 if kind == "refused" else SECONDS)
    collector = Collector(500)
    if kind == "refused":
        collector.stop()
    try:
        proxy, made = await begun(collector.url)
        with caplog.at_level(logging.DEBUG):
            began = own_time()
            await chats(proxy, 30)
            assert own_time() - began < 30  # each would wait for some seconds
            await until(lambda: _lines(caplog))
            await asyncio.sleep(1.5)  # the library tries again after a second
            await made.close()
    finally:
        if kind != "refused":
            collector.stop()
    line, *last = _lines(caplog)
    assert line.startswith("spans do not arrive")
    # What is refused is tried again, for longer than the end waits.
    assert [x.partition(":")[0] for x in last] == ["the last spans did not arrive"] * (
        kind == "refused"
    )
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line and "\n" not in line


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log's warnings, and fail for any that is not the proxy's own."""
    found = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(record.name == "wellspoken" for record in found), found
    return [record.getMessage() for record in found]


def test_the_next_line_comes_after_a_while_and_counts_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    before = logging.getLogger("opentelemetry").propagate
    trouble = tracing_export.Trouble(logging.getLogger("wellspoken"))
    try:
        for _ in range(3):
            library.error("no\nanswer %s", 1)
        logging.getLogger("opentelemetry.trace.propagation").warning("a client's odd header")
        trouble.next = 0.0
        library.warning("x" * 5000)
    finally:
        trouble.close()
    first, second = _lines(caplog)
    assert first.endswith("no answer 1") and "more since" not in first
    assert second.endswith("(2 more since the last such line)") and len(second) < 500
    assert logging.getLogger("opentelemetry").propagate == before


async def test_a_collector_that_hangs_holds_up_no_request_and_the_end_for_a_moment(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setattr(tracing_export, "FLUSH", 0.4)
    collector = Collector(hangs=True)
    try:
        proxy, made = await begun(collector.url)
        await chats(proxy)
        await until(lambda: collector.tried)
        began = own_time()
        await chats(proxy, 20)
        assert own_time() - began < 60  # each would wait for ten minutes
        began, own = time.monotonic(), own_time()
        await made.close()
        # The library alone would wait for thirty seconds.
        assert time.monotonic() - began > 0.35 and own_time() - own < 20
    finally:
        collector.stop()


async def test_a_second_signal_ends_the_wait_for_a_collector(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setattr(tracing_export, "FLUSH", 600.0)
    collector = Collector(hangs=True)
    try:
        proxy, made = await begun(collector.url)
        await chats(proxy)
        now = asyncio.Event()
        ending = asyncio.create_task(made.close(now))
        await until(lambda: collector.tried)
        assert not ending.done()
        now.set()
        async with asyncio.timeout(20):  # the library alone would wait for thirty seconds
            await ending
        monkeypatch.setattr(tracing_export, "FLUSH", 0.01)
    finally:
        collector.stop()


HANGING = """
import asyncio, sys, time
from wellspoken.proxy import tracing
from wellspoken.proxy.tracing import exporter as tracing_export
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.config import load
from wellspoken.proxy.config.tables import Traces

tracing_export.FLUSH = 0.3

async def main():
    given = {"server": {"listen": "127.0.0.1:0"}, "backend": [{"url": "http://127.0.0.1:1"}]}
    service = build(load(None, given, {}))
    made = tracing.begin(Traces(enabled=True), service.hooks)
    with made._tracer.start_as_current_span("x"):
        pass
    await asyncio.to_thread(sys.stdin.readline)
    await made.close()
    print(time.time(), flush=True)

asyncio.run(main())
"""


def test_a_process_ends_though_its_collector_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(hangs=True)
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        argv = [sys.executable, "-W", "error", "-c", HANGING]
        with subprocess.Popen(argv, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            try:
                block_until(lambda: collector.tried or process.poll() is not None)
                said, complaint = process.communicate("end\n", timeout=120)
            finally:
                process.kill()
        ended = time.time()
    finally:
        collector.stop()
    assert process.returncode == 0, complaint
    assert collector.tried == 1
    assert ended - float(said) < 20  # the library alone would wait for thirty seconds


async def test_the_command_sends_its_spans_before_it_ends(upstream: Upstream) -> None:
    upstream.scripts = [whole(body())]
    collector = Collector()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "NO_PROXY": "127.0.0.1",
        "WELLSPOKEN_TRACES_ENABLED": "true",
    }
    arguments = [upstream.url, "--adapter", "openai", "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wellspoken.proxy.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        url = said.split("listens on ")[1].split()[0]
        async with ClientSession() as session:
            asked = {"model": MODEL, "messages": MESSAGES}
            async with session.post(f"{url}{CHAT}", json=asked) as response:
                assert response.status == 200
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        collector.stop()
    assert sorted(span.name for span in collector.spans()) == [f"POST {CHAT}", "chat"]
