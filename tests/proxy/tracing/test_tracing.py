"""Spans of a client's request and of those to the backend, by OpenTelemetry's conventions.

The names and levels are those of semantic-conventions v1.44.0 (HTTP) and v1.41.0 (gen_ai).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from tests.conforming import ID, MODEL, STREAMS, body, choice, role, sse
from tests.conforming import chunk as delta
from tests.conforming_completions import body as completion
from tests.conforming_completions import choice as text
from tests.fakes.upstream import DONE, Cut, Gate, Pause, Stall, Upstream, event, head, stream, whole
from tests.proxy.conftest import CHAT, StartProxy
from tests.proxy.endpoints.test_embeddings import listed
from tests.proxy.posting import post
from tests.proxy.tracing.traced import StartTraced, Traced, is_parent, parent, times, told
from tests.waiting import until
from wellspoken.proxy.tracing import spans as tracing_spans

Json = dict[str, Any]
USAGE = {"gen_ai.usage.input_tokens": 19, "gen_ai.usage.output_tokens": 6}


def failed(span: ReadableSpan) -> str:
    """Return a span's error.type, which it has if and only if its status is an error."""
    error = told(span).get("error.type", "")
    assert (span.status.status_code is StatusCode.ERROR) == bool(error)
    assert isinstance(error, str) and span.status.description is None
    return error


async def test_a_chat_is_a_server_span_with_a_client_span_below(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream, models=[MODEL], adapter="vllm")
    before = time.time_ns()
    async with await proxy.chat({"x-request-id": "my-id"}, max_tokens=7, temperature=0) as response:
        assert response.status == 200
    after = time.time_ns()
    spans = traced.one()
    (asked,) = spans.asked
    assert spans.server.parent is None
    assert is_parent(asked, upstream.requests[0])
    assert upstream.requests[0].header("tracestate") is None
    assert before - 10**6 < times(spans.server)[0] and times(spans.server)[1] < after + 10**7
    assert (spans.server.name, asked.name) == (f"POST {CHAT}", f"chat {MODEL}")
    assert told(spans.server) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": CHAT,
        "network.protocol.version": "1.1",
        "url.path": CHAT,
        "url.scheme": "http",
        "wellspoken.backend": "default",
        "wellspoken.outcome": "ok",
        "wellspoken.request.id": "my-id",
        "wellspoken.upstream_requests": 1,
        "wellspoken.waited": told(spans.server)["wellspoken.waited"],
    }
    assert told(asked) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.id": ID,
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
        "wellspoken.backend": "default",
        "wellspoken.usage.source": "backend",
        **USAGE,
    }
    assert not failed(spans.server) and not failed(asked)


async def test_a_stream_tells_when_its_first_token_came(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    gates = Gate(), Gate()
    events = STREAMS["plain"].answer
    upstream.scripts = [stream(gates[0], sse(events[:2], done=False), gates[1], sse(events[2:]))]
    proxy, traced = await start_traced(upstream)
    began = time.monotonic()
    asking = asyncio.create_task(proxy.chat(stream=True, stream_options={"include_usage": True}))
    await gates[0].reached.wait()
    await asyncio.sleep(0.05)
    gates[0].open()
    async with await asking as response:
        await response.content.readany()
        assert traced.all() == []  # they end with the answer
        await asyncio.sleep(0.05)
        gates[1].open()
        await response.read()
    await until(lambda: not proxy.service.state.inflight)
    spans = traced.one()
    (asked,) = spans.asked
    found = told(asked)
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert 0.05 <= found["gen_ai.response.time_to_first_chunk"] < time.monotonic() - began
    begun, ended = times(asked)
    assert ended - begun >= found["gen_ai.response.time_to_first_chunk"] * 1e9 + 4e7
    (first,) = spans.server.events
    assert first.name == "wellspoken.first_token"
    waited = (first.timestamp - times(spans.server)[0]) / 1e9
    assert abs(waited - told(spans.server)["wellspoken.time_to_first_token"]) < 1e-5
    assert waited >= found["gen_ai.response.time_to_first_chunk"]


async def test_what_was_repaired_is_told(upstream: Upstream, start_traced: StartTraced) -> None:
    upstream.scripts = [whole(body(choice(reason="eos_token")))]
    proxy, traced = await start_traced(upstream)
    async with await proxy.chat() as response:
        assert response.status == 200
    assert told(traced.one().server)["wellspoken.repairs"] == ["finish_reason_eos_token"]


FAILURES: dict[str, tuple[Any, int, str, str]] = {
    # what the backend does, the client's status, error.type of the backend's span and of the whole
    "400": (whole({"error": {"message": "no"}}, status=400), 400, "400", ""),
    "429": (whole({"error": {"message": "no"}}, status=429), 429, "429", ""),
    "500": (whole(b"no", status=500), 500, "500", "500"),
    "401 of ours": (whole({"error": {"message": "no"}}, status=401), 502, "401", "502"),
    "cut head": ([b"HTTP/1.1 200 O", Cut()], 502, "cut", "cut"),
    "cut body": ([head(length=500) + b'{"id":', Cut()], 502, "cut", "cut"),
    "no HTTP": ([b"220 ftp ready\r\n\r\n", Cut()], 502, "protocol", "protocol"),
    "packed": (
        whole(b"\x1f\x8b", headers=[("Content-Encoding", "gzip")]),
        502,
        "encoding",
        "encoding",
    ),
    "too large": (whole(b" " * 3000), 502, "too_large", "too_large"),
    "nonsense": (whole(b"{"), 502, "answer", "502"),
    "late": ([Stall()], 504, "first_byte_timeout", "first_byte_timeout"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_is_an_error_of_whoever_failed(
    upstream: Upstream, start_traced: StartTraced, name: str
) -> None:
    script, status, error, of_server = FAILURES[name]
    upstream.scripts = [script]
    late = {"first_token_body": 0.1} if name == "late" else {}
    proxy, traced = await start_traced(upstream, timeouts=late, limits={"response": 2000})
    await proxy.error(status)
    spans = traced.one()
    assert told(spans.server)["http.response.status_code"] == status
    assert (failed(spans.asked[0]), failed(spans.server)) == (error, of_server)
    assert "gen_ai.usage.input_tokens" not in {**told(spans.asked[0]), **told(spans.server)}


async def test_a_backend_that_is_not_there(upstream: Upstream, start_traced: StartTraced) -> None:
    await upstream.refuse()
    proxy, traced = await start_traced(upstream)
    await proxy.error(502)
    spans = traced.one()
    assert failed(spans.asked[0]) == failed(spans.server) == "refused"
    assert "http.response.status_code" not in told(spans.asked[0])


async def test_a_refusal_of_the_proxys_own_asks_nobody(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    proxy, traced = await start_traced(upstream)
    await proxy.error(400, temperature=3)
    spans = traced.one()
    assert spans.asked == [] and not failed(spans.server)
    assert told(spans.server)["http.response.status_code"] == 400
    assert "wellspoken.upstream_requests" not in told(spans.server)


BROKEN: dict[str, tuple[Any, str]] = {
    "cut": (stream(sse([role(), delta({"content": "a"})], done=False), Cut()), "cut"),
    "error event": (
        stream(sse([role(), delta({"content": "a"})], done=False), event({"error": "gone"})),
        "error_in_stream",
    ),
    "no end": (stream(sse([role(), delta({"content": "a"})], done=False)), "cut"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_stream_that_fails_is_an_error_though_it_began_with_a_200(
    upstream: Upstream, start_traced: StartTraced, name: str
) -> None:
    script, error = BROKEN[name]
    upstream.scripts = [script]
    proxy, traced = await start_traced(upstream)
    async with await proxy.chat(stream=True) as response:
        assert response.status == 200 and b'"error"' in await response.read()
    spans = traced.one()
    assert told(spans.server)["http.response.status_code"] == 200
    assert (failed(spans.asked[0]), failed(spans.server)) == (error, error)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_is_no_error(
    upstream: Upstream, start_traced: StartTraced, streams: bool
) -> None:
    began = sse([role(), delta({"content": "a"})], done=False)
    upstream.scripts = [stream(began, Stall()) if streams else [Stall()]]
    proxy, traced = await start_traced(upstream)
    asking = asyncio.create_task(proxy.chat(stream=streams))
    await upstream.request()
    if streams:
        response = await asking
        await response.content.readany()
        response.close()
    else:
        asking.cancel()
    await until(lambda: traced.all() and not proxy.service.state.inflight)
    spans = traced.one()
    phase = "streaming" if streams else "waiting"
    assert told(spans.server)["wellspoken.outcome"] == f"disconnected:{phase}"
    assert "http.response.status_code" not in told(spans.server)
    assert not failed(spans.server) and not failed(spans.asked[0])


async def test_several_choices_are_several_requests_with_a_span_each(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())] * 3
    proxy, traced = await start_traced(upstream, adapter="llamacpp")
    async with await proxy.chat(n=3, seed=5, stop=["zz"], logprobs=True) as response:
        assert response.status in (200, 502)
    spans = traced.one()
    assert len(spans.asked) == len(upstream.requests) > 1
    assert told(spans.server)["wellspoken.upstream_requests"] == len(upstream.requests)
    for request in upstream.requests:
        (own,) = (span for span in spans.asked if is_parent(span, request))
        assert told(own)["gen_ai.request.seed"] == request.json()["seed"]


async def test_counts_of_several_requests_are_told_once_by_the_whole(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    longer = completion(text(finish_reason="length"))
    upstream.script_choices(7, whole(completion()), [Pause(0.05), *whole(longer)])
    proxy, traced = await start_traced(upstream, adapter="llamacpp")
    wanted = {"model": MODEL, "prompt": "a", "n": 2, "seed": 7}
    async with await post(proxy, "/v1/completions", wanted) as response:
        usage = (await response.json())["usage"]
    spans = traced.one()
    assert [span.name for span in spans.asked] == ["text_completion"] * 2
    counts = [told(span).get("gen_ai.usage.output_tokens", 0) for span in traced.all()]
    assert sum(counts) == usage["completion_tokens"] > 0
    assert told(spans.server)["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert told(spans.server)["gen_ai.response.finish_reasons"] == ["stop", "length"]


async def test_embeddings_that_are_asked_for_twice(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    refusal = {"object": "error", "message": "base64 encoding is not currently supported"}
    upstream.scripts = [whole(refusal, 400), whole(listed())]
    proxy, traced = await start_traced(upstream, upstream_model="real")
    wanted = {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}
    async with await post(proxy, "/v1/embeddings", wanted) as response:
        assert response.status == 200
    spans = traced.one()
    first, second = spans.asked
    assert first.name == "embeddings" and told(first)["gen_ai.operation.name"] == "embeddings"
    assert told(first)["gen_ai.request.encoding_formats"] == ["base64"]
    assert told(first)["gen_ai.embeddings.dimension.count"] == 2
    assert told(first)["gen_ai.request.model"] == "real"
    assert (failed(first), failed(second)) == ("400", "")
    assert told(second)["wellspoken.usage.source"] == "backend"
    assert "wellspoken.usage.source" not in {**told(first), **told(spans.server)}
    assert [is_parent(*x) for x in zip(spans.asked, upstream.requests, strict=True)] == [True] * 2


@pytest.mark.parametrize(
    ("path", "name", "operation"),
    [
        ("/v1/responses", "chat", "chat"),
        ("/v1/messages", "chat", "chat"),
        ("/tokenize", "POST /tokenize", None),
    ],
)
async def test_an_endpoint_that_passes_through(
    upstream: Upstream, start_traced: StartTraced, path: str, name: str, operation: str | None
) -> None:
    upstream.scripts = [whole({"id": "x"})]
    proxy, traced = await start_traced(upstream, adapter="vllm", responses="pass")
    async with await post(proxy, path, {"model": "m", "max_output_tokens": 3}) as response:
        assert response.status == 200
    spans = traced.one()
    (asked,) = spans.asked
    assert (spans.server.name, asked.name) == (f"POST {path}", name)
    assert told(asked).get("gen_ai.operation.name") == operation
    assert told(asked).get("url.template") == (None if operation else path)
    assert is_parent(asked, upstream.requests[0])


async def test_an_answer_that_is_not_translated(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    async with await proxy.chat(oai_compat=False) as response:
        assert response.status == 200
    (asked,) = traced.one().asked
    assert told(asked)["http.response.status_code"] == 200
    assert is_parent(asked, upstream.requests[0])


async def test_an_answer_is_the_same_with_and_without_spans(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    answers = []
    for spans in (False, True):
        upstream.scripts = [stream(sse(STREAMS["plain"].answer))]
        proxy = await start_proxy(upstream)
        if spans:
            Traced(proxy)
        async with await proxy.chat(stream=True) as response:
            answers.append(await response.read())
    assert answers[0] == answers[1] and DONE in answers[0]
    sent = [[x for x in request.headers if x[0] != "traceparent"] for request in upstream.requests]
    sent = [[x for x in headers if x[0] != "x-request-id"] for headers in sent]
    assert [name for name, _ in sent[0]] == [name for name, _ in sent[1]]
    assert parent(upstream.requests[1])[2] in ("01", "03")


async def test_a_span_that_hangs_elsewhere_is_found_here(
    upstream: Upstream, start_traced: StartTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker of the relations, `Traced.one`, fails for a span that has no parent."""
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream)
    monkeypatch.setattr(tracing_spans, "set_span_in_context", lambda span, context: context)
    async with await proxy.chat() as response:
        assert response.status == 200
    with pytest.raises(AssertionError):
        traced.one()
