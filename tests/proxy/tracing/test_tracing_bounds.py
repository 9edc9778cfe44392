"""What keeps spans few, their names bounded, and what clients and models write out of them."""

from __future__ import annotations

import json

import pytest

from tests.conforming import MODEL, body, choice
from tests.fakes.llamacpp import LlamaCpp
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import raw
from tests.proxy.posting import post
from tests.proxy.tracing.traced import StartTraced, is_parent, told
from wellspoken.proxy.tracing import spans as tracing_spans

SECRET = "canary-0123456789"


async def test_helping_requests_are_no_requests_of_a_model(start_traced: StartTraced) -> None:
    async with LlamaCpp() as server:
        proxy, traced = await start_traced(server, adapter="llamacpp")
        wanted = {"model": MODEL, "prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 1}
        async with await post(proxy, "/v1/completions", wanted) as response:
            assert response.status == 200
        asked = [request for request in server.requests if request.method == "POST"]
    spans = traced.one()
    names = [span.name for span in spans.asked]
    assert "POST /tokenize" in names and "text_completion" in names
    assert all(any(is_parent(span, request) for span in spans.asked) for request in asked)
    helping = next(span for span in spans.asked if span.name == "POST /tokenize")
    assert told(helping)["url.template"] == "/tokenize"
    assert not any(key.startswith("gen_ai.") for key in told(helping))


async def test_thousands_of_requests_of_one_answer_have_no_thousands_of_spans(
    start_traced: StartTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_spans, "MOST", 3)
    async with LlamaCpp() as server:
        proxy, traced = await start_traced(server, adapter="llamacpp")
        wanted = {"model": MODEL, "prompt": "abcdef", "echo": True, "logprobs": 1, "max_tokens": 1}
        async with await post(proxy, "/v1/completions", wanted) as response:
            assert response.status == 200
        asked = [request for request in server.requests if request.method == "POST"]
    spans = traced.one()
    assert len(spans.asked) == 3 < len(asked)
    assert told(spans.server)["wellspoken.upstream_requests"] == len(asked)
    rest = [x for x in asked if not any(is_parent(span, x) for span in spans.asked)]
    assert len(rest) == len(asked) - 3
    assert all(is_parent(spans.server, request) for request in rest)


async def test_what_machines_ask_all_the_time_has_no_span(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    proxy, traced = await start_traced(upstream)
    for path in ("/livez", "/readyz", "/metrics", "/backend/metrics"):
        async with proxy.session.get(proxy.url(path)):
            pass
    assert traced.all() == []
    async with proxy.session.get(proxy.url("/v1/models/my-model")) as response:
        assert response.status in (200, 404, 502)
    assert traced.one().server.name == "GET /v1/models/{model}"


HOSTILE = [
    (b"GET /canary/1 HTTP/1.1\r\n", "GET", "GET"),
    (b"GET /v1/chat/completions/canary HTTP/1.1\r\n", "GET", None),
    (b"CANARY /v1/models HTTP/1.1\r\n", "_OTHER", "HTTP"),  # aiohttp's parser has refused it
]


@pytest.mark.parametrize(("line", "method", "name"), HOSTILE)
async def test_a_client_cannot_make_up_names_of_spans(
    upstream: Upstream, start_traced: StartTraced, line: bytes, method: str, name: str | None
) -> None:
    proxy, traced = await start_traced(upstream)
    await raw(proxy.port, line + b"Host: localhost\r\nConnection: close\r\n\r\n")
    span = traced.one().server
    assert span.name == (name or "GET /v1/chat/completions/{completion_id}")
    assert told(span)["http.request.method"] == method


async def test_the_name_of_a_model_is_in_a_spans_name_only_if_it_is_configured(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [whole(body())]
    proxy, traced = await start_traced(upstream, models=[MODEL])
    for model in (MODEL, "x" * 5000):
        async with await proxy.chat(model=model) as response:
            assert response.status == 200
    names = [span.name for span in traced.all() if "chat" == span.name.split(" ")[0]]
    assert names == [f"chat {MODEL}", "chat"]
    assert max(len(str(value)) for span in traced.all() for value in told(span).values()) == 256


async def test_no_span_holds_what_a_client_wrote_or_a_model_answered(
    upstream: Upstream, start_traced: StartTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", f"key-{SECRET}")
    answer = body(choice(message={"role": "assistant", "content": SECRET, "refusal": None}))
    upstream.scripts = [whole(answer), whole({"error": {"message": SECRET}}, status=400)]
    proxy, traced = await start_traced(upstream, key="env:BACKEND_KEY")
    schema = {"name": SECRET, "schema": {"title": SECRET}}
    for _ in range(2):
        asked = {
            "messages": [{"role": "user", "content": SECRET}],
            "stop": [SECRET],
            "user": SECRET,
            "metadata": {"a": SECRET},
            "tools": [{"type": "function", "function": {"name": SECRET}}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            "top_k": SECRET,
        }
        headers = {"Authorization": f"Bearer {SECRET}", "User-Agent": SECRET, "Cookie": SECRET}
        async with await proxy.chat(headers, **asked) as response:
            await response.read()
    written = "".join(span.to_json() for span in traced.all())
    assert len(traced.all()) == 4 and "json" in written
    assert SECRET not in written
    assert SECRET in json.dumps(upstream.requests[0].json())
