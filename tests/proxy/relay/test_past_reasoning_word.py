"""`past_reasoning`: a route's own word on what a client gives back of the model's thoughts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conforming import MODEL, body
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy

GIVEN = {"role": "assistant", "content": "yes", "reasoning_content": "I thought"}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("word", "sent"),
    [
        ("auto", {"reasoning": "I thought"}),
        ("reasoning", {"reasoning": "I thought"}),
        ("reasoning_content", {"reasoning_content": "I thought"}),
        ("pass", {"reasoning_content": "I thought"}),
        ("drop", {}),
    ],
)
async def test_the_routes_word_stands_before_the_servers_row(
    upstream: Upstream, start_proxy: StartProxy, word: str, sent: dict[str, Any]
) -> None:
    """Also where the server is recognised later (`adapter = "auto"`): here vLLM by its models."""
    listed = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}
    upstream.script("/v1/models", whole(listed))
    upstream.script("/version", whole({"version": "0.17.0"}))
    upstream.script("/v1/chat/completions", whole(body()))
    for adapter in ("vllm", "auto"):
        proxy = await start_proxy(upstream, adapter=adapter, past_reasoning=word)
        async with await proxy.chat(messages=[USER, GIVEN, USER]) as response:
            assert response.status == 200
        said = upstream.requests[-1].json()["messages"][1]
        assert said == {"role": "assistant", "content": "yes", **sent}
