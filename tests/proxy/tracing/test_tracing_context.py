"""traceparent and tracestate: passed on as they came, or with the proxy's own span in between.

The rules are W3C Trace Context's; its own test suite has the invalid parents (test.py, the cases
test_traceparent_* of github.com/w3c/trace-context).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from tests.conforming import MODEL, body
from tests.fakes.engine import engine_proxy
from tests.fakes.llamacpp import LlamaCpp
from tests.fakes.upstream import Request, Upstream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy, raw
from tests.proxy.posting import post
from tests.proxy.tracing.traced import StartTraced, Traced, context, is_parent, parent, times, told
from tests.waiting import until
from wellspoken.proxy.relay.call import Call

WAIT = 0.1  # seconds, at least
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
Lines = list[tuple[str, str]]


def sent(request: Request, *names: str) -> Lines:
    """Return the lines of a trace in a request to the backend, in order, names as sent."""
    names = names or ("traceparent", "tracestate")
    return [(name, value) for name, value in request.headers if name.lower() in names]


async def ask(proxy: Proxy, lines: Lines, path: str = CHAT) -> bytes:
    """POST a chat request with just these header lines, in this order."""
    data = b'{"model":"%b","messages":[{"role":"user","content":"Hi"}]}' % MODEL.encode()
    head = [("Host", "localhost"), ("Connection", "close"), ("Content-Type", "application/json")]
    head += [("Content-Length", str(len(data))), *lines]
    text = "".join(f"{name}: {value}\r\n" for name, value in head)
    answer = await raw(proxy.port, f"POST {path} HTTP/1.1\r\n{text}\r\n".encode() + data)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return answer


LINES: dict[str, Lines] = {
    "none": [],
    "a parent": [("traceparent", PARENT)],
    "both": [("traceparent", PARENT), ("tracestate", "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")],
    "spaces and tabs inside": [
        ("traceparent", PARENT),
        ("tracestate", "a=1 \t, ,b=2,,\tc=x y z=!\"#$%&'()*+-./:;<>?@[]^_`{|}~"),
    ],
    "several lines": [
        ("tracestate", "a=1,b=2"),
        ("traceparent", PARENT),
        ("tracestate", ""),
        ("tracestate", "c=3"),
        ("tracestate", "d=4, e=5"),
    ],
    "a version to come": [("traceparent", f"cc-{TRACE}-{SPAN}-01-what-the-future-holds")],
    "nonsense": [("traceparent", "hello, world"), ("tracestate", "=;=,,x")],
    "two parents": [("traceparent", PARENT), ("traceparent", f"00-{'1' * 32}-{'2' * 16}-00")],
    "a state alone": [("tracestate", "a=1")],
    "many": [("traceparent", PARENT), *(("tracestate", f"k{n}={'v' * 240}") for n in range(40))],
}


@pytest.mark.parametrize("name", LINES)
async def test_without_tracing_every_line_goes_on_as_it_came(
    upstream: Upstream, start_proxy: StartProxy, name: str
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    await ask(proxy, LINES[name])
    parents = [line for line in LINES[name] if line[0] == "traceparent"]
    states = [line for line in LINES[name] if line[0] == "tracestate"]
    assert sent(upstream.requests[0]) == parents + states


async def test_a_name_goes_on_in_lower_case_and_the_space_around_a_value_does_not(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    await ask(proxy, [("TraceParent", f" \t{PARENT}  "), ("TRACESTATE", "  a=1 ")])
    assert sent(upstream.requests[0]) == [("traceparent", PARENT), ("tracestate", "a=1")]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/rerank"])
async def test_every_endpoint_passes_them_on(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm")
    headers = {"traceparent": PARENT, "tracestate": "a=1"}
    wanted = {"model": "m", "prompt": "a", "input": "a"}
    async with await post(proxy, path, wanted, headers):
        pass
    assert sent(upstream.requests[0]) == list(headers.items())


async def test_helping_requests_have_them_too(start_proxy: StartProxy) -> None:
    async with LlamaCpp() as server:
        proxy = await start_proxy(server, adapter="llamacpp")
        wanted = {"model": MODEL, "prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 1}
        headers = {"traceparent": PARENT, "tracestate": "a=1"}
        async with await post(proxy, "/v1/completions", wanted, headers) as response:
            assert response.status == 200
        asked = [request for request in server.requests if request.method == "POST"]
    assert len(asked) > 2
    assert all(sent(request) == list(headers.items()) for request in asked)


async def test_with_tracing_the_backend_is_below_the_proxy_and_that_below_the_client(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    states = [("tracestate", "a=1 ,b=2"), ("tracestate", "c=3")]
    await ask(proxy, [states[0], ("traceparent", PARENT), states[1]])
    spans = traced.one()
    assert spans.server.parent is not None and spans.server.parent.is_remote
    assert f"{spans.server.parent.span_id:016x}" == SPAN
    assert f"{context(spans.server).trace_id:032x}" == TRACE
    (request,) = upstream.requests
    assert is_parent(spans.asked[0], request) and parent(request)[2] == "01"
    assert sent(request, "tracestate") == states


@pytest.mark.parametrize("flags", ["00", "01", "02", "03"])
async def test_whether_a_trace_is_kept_is_for_its_beginning_to_say(
    upstream: Upstream, start_traced: StartTraced, flags: str
) -> None:
    """An unsampled one costs no span here, and the backend hears that too; 02: a random id."""
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    await ask(proxy, [("traceparent", f"00-{TRACE}-{SPAN}-{flags}"), ("tracestate", "a=1")])
    assert len(traced.all()) == (2 if int(flags) & 1 else 0)
    trace, span, got = parent(upstream.requests[0])
    assert (trace, got) == (TRACE, flags)
    assert span not in (SPAN, "0" * 16)
    assert sent(upstream.requests[0], "tracestate") == [("tracestate", "a=1")]


async def test_a_sampler_of_the_environment_is_heard(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    traced = Traced(proxy, ParentBased(TraceIdRatioBased(0.0)))
    await ask(proxy, [])
    assert traced.all() == []
    assert parent(upstream.requests[0])[2] in ("00", "02")


INVALID = [
    "hello",
    "",
    PARENT[:-1],
    PARENT.upper(),
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"{PARENT}-more",
    f"00-{TRACE}.{SPAN}.01",
    f"00-{TRACE}-{SPAN}-0g",
]


@pytest.mark.parametrize("given", INVALID)
async def test_a_parent_that_cannot_be_read_begins_a_new_trace_without_its_state(
    upstream: Upstream, start_traced: StartTraced, given: str
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    await ask(proxy, [("traceparent", given), ("tracestate", "a=1")])
    spans = traced.one()
    assert spans.server.parent is None
    assert is_parent(spans.asked[0], upstream.requests[0])
    assert parent(upstream.requests[0])[0] != TRACE
    assert sent(upstream.requests[0], "tracestate") == []


@pytest.mark.parametrize("name", ["two parents", "a state alone"])
async def test_two_parents_or_none_begin_a_new_trace_too(
    upstream: Upstream, start_traced: StartTraced, name: str
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    await ask(proxy, LINES[name])
    assert traced.one().server.parent is None
    assert [x for x, _ in sent(upstream.requests[0])] == ["traceparent"]


async def test_a_version_to_come_is_followed_as_far_as_it_is_known(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    await ask(proxy, LINES["a version to come"])
    assert traced.one().server.parent is not None
    assert parent(upstream.requests[0])[0] == TRACE


@pytest.mark.parametrize("name", ["many", "spaces and tabs inside"])
async def test_a_state_that_the_library_cannot_read_goes_on_all_the_same(
    upstream: Upstream, start_traced: StartTraced, name: str
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    await ask(proxy, LINES[name])
    assert f"{context(traced.one().server).trace_id:032x}" == TRACE
    assert sent(upstream.requests[0], "tracestate") == LINES[name][1:]


class Marking(Sampler):
    """Takes everything, and leaves a mark in the state, as OpenTelemetry's newer samplers do."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        found = ALWAYS_ON.should_sample(parent_context, trace_id, name, kind, attributes, links)
        state = (found.trace_state or TraceState()).add("ot", "th:8")
        return SamplingResult(found.decision, attributes, state)

    def get_description(self) -> str:
        return "Marking"


async def test_a_sampler_may_mark_the_state(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    Traced(proxy, Marking())
    await ask(proxy, [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")])
    assert sent(upstream.requests[0], "tracestate") == [("tracestate", "ot=th:8,a=1,b=2")]
    await ask(proxy, [])
    assert sent(upstream.requests[1], "tracestate") == [("tracestate", "ot=th:8")]


async def test_a_request_that_met_no_engine_and_was_sent_again_has_two_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_proxy(monkeypatch, whole(body())) as running:
        await running.ready()
        traced = Traced(running.proxy)
        running.gate.clear()
        await running.upstream.refuse()  # its socket is gone, which nobody has noticed yet
        asking = asyncio.create_task(running.proxy.chat())
        await until(lambda: running.supervisor._waiting)
        running.end_process()
        await asyncio.sleep(WAIT)
        running.gate.set()
        async with await asking as response:
            assert response.status == 200
        spans = traced.one()
        first, second = spans.asked
        assert told(first)["error.type"] in ("refused", "unreachable")
        assert "http.response.status_code" not in told(first)
        assert "error.type" not in {**told(second), **told(spans.server)}
        assert told(second)["http.request.resend_count"] == 1
        assert "http.request.resend_count" not in told(first)
        assert told(second)["server.address"] == str(running.upstream.path)
        assert "server.port" not in told(second)
        assert times(second)[0] - times(first)[1] > 0.9e9 * WAIT  # the wait is in neither
        assert is_parent(second, running.upstream.requests[0])


async def test_the_wait_for_an_engine_is_before_the_backends_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with engine_proxy(monkeypatch, whole(body())) as running:
        await running.ready()
        await running.end()
        traced = Traced(running.proxy)
        asking = asyncio.create_task(running.proxy.chat())
        await until(lambda: running.supervisor._waiting)
        await asyncio.sleep(WAIT)
        running.gate.set()
        async with await asking as response:
            assert response.status == 200
        spans = traced.one()
        assert told(spans.server)["wellspoken.waited"] > 0.9 * WAIT
        assert times(spans.asked[0])[0] - times(spans.server)[0] > 0.9e9 * WAIT


async def test_a_refused_request_is_below_its_client_too(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    proxy, traced = await start_traced(upstream)
    async with await post(proxy, CHAT, {"model": "m"}, {"traceparent": PARENT}) as response:
        assert response.status == 400
    server = traced.one().server
    assert server.parent is not None and f"{server.parent.span_id:016x}" == SPAN


async def test_a_state_that_nobody_may_be_sent_is_refused_and_counted_as_ever(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    """A head with bytes that are not ASCII gets one answer, whatever its tracestate is."""
    proxy, traced = await start_traced(upstream)
    lines = f"Host: localhost\r\nConnection: close\r\ntraceparent: {PARENT}\r\n".encode()
    answer = await raw(proxy.port, b"GET / HTTP/1.1\r\n%btracestate: a=\xff\r\n\r\n" % lines)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    server = traced.one().server
    assert server.parent is not None and f"{server.parent.span_id:016x}" == SPAN
    refused = [value for name, value in (await proxy.metrics()).items() if 'code="400"' in name]
    assert refused == [1]


async def test_an_observer_that_fails_changes_no_answer_and_no_other(
    upstream: Upstream, start_proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(call: Call, code: int) -> None:
        raise ValueError("as a bug has it")

    proxy = await start_proxy(upstream)
    proxy.service.hooks.observers.insert(0, fails)
    traced = Traced(proxy)
    request = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await raw(proxy.port, request)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert told(traced.one().server)["http.response.status_code"] == 404
    assert "as a bug has it" in caplog.text
