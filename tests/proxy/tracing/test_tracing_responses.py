"""Spans of responses: those of the chats that they are made of, under the client's id and path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import Gate, Upstream
from tests.proxy.endpoints.responses.asking import PATH, create, create_stream, says, streams
from tests.proxy.posting import post
from tests.proxy.tracing.traced import StartTraced, is_parent, told
from tests.waiting import until

USAGE = {
    "gen_ai.usage.cache_read.input_tokens": 3,
    "gen_ai.usage.input_tokens": 5,
    "gen_ai.usage.output_tokens": 2,
}


async def test_a_response_is_a_server_span_with_a_chat_below(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    upstream.scripts = [says("Hello", "length")]
    proxy, traced = await start_traced(upstream, models=[MODEL], adapter="vllm")
    form = {"format": {"type": "json_object"}}
    response = await create(proxy, max_output_tokens=16, temperature=0, text=form)
    assert response["status"] == "incomplete"
    spans = traced.one()
    (asked,) = spans.asked
    assert is_parent(asked, upstream.requests[0])
    assert (spans.server.name, asked.name) == (f"POST {PATH}", f"chat {MODEL}")
    server = told(spans.server)
    assert (server["http.route"], server["wellspoken.outcome"]) == (PATH, "ok")
    assert server["wellspoken.upstream_requests"] == 1
    assert told(asked) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.type": "json",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.response.id": response["id"],
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": upstream.port,
        "wellspoken.backend": "default",
        "wellspoken.usage.source": "backend",
        **USAGE,
    }


async def test_a_streamed_response_tells_when_its_first_token_came(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *streams("Hel", "lo")]]
    proxy, traced = await start_traced(upstream)
    asking = asyncio.create_task(create_stream(proxy))
    await gate.reached.wait()
    gate.open()
    events = await asking
    await until(lambda: not proxy.service.state.inflight)
    spans = traced.one()
    (asked,) = spans.asked
    found = told(asked)
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.response.time_to_first_chunk"] > 0
    assert found["gen_ai.response.id"] == events[-1]["response"]["id"]
    assert found.items() >= USAGE.items()
    (first,) = spans.server.events
    assert first.name == "wellspoken.first_token"


@pytest.mark.parametrize(
    ("method", "below", "status"),
    [("GET", "", 200), ("GET", "/input_items", 200), ("POST", "/cancel", 400), ("DELETE", "", 200)],
)
async def test_a_kept_response_has_its_paths_template(
    upstream: Upstream, start_traced: StartTraced, method: str, below: str, status: int
) -> None:
    """An id in a name would make as many names as there are responses."""
    upstream.scripts = [says("Hello")]
    proxy, traced = await start_traced(upstream)
    kept: dict[str, Any] = await create(proxy)
    await until(lambda: not proxy.service.state.inflight)
    traced.exporter.clear()
    async with proxy.session.request(method, proxy.url(f"{PATH}/{kept['id']}{below}")) as answer:
        assert answer.status == status
    await until(lambda: not proxy.service.state.inflight)
    spans = traced.one()
    route = f"{PATH}/{{response_id}}{below}"
    assert (spans.server.name, told(spans.server)["http.route"]) == (f"{method} {route}", route)
    assert spans.asked == []


async def test_a_response_that_is_refused_is_one_span(
    upstream: Upstream, start_traced: StartTraced
) -> None:
    proxy, traced = await start_traced(upstream)
    async with await post(proxy, PATH, {"model": MODEL, "input": [{"type": "x"}]}) as answer:
        assert answer.status == 400
    spans = traced.one()
    assert spans.asked == [] and spans.server.name == f"POST {PATH}"
