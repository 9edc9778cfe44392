"""A large request is held once while its answer is waited for, whatever it asks for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.bench.process import memory
from tests.proxy.limits.heavy import MB, backend, post, proxy

SIZE = 2 * MB
MANY = 20
ROUNDS = 3
TWICE = 2.1
"""Less than a body that is held twice takes: 2, and what an allocator has not given back yet."""

TEXT = "A" * SIZE
SYSTEM = {"role": "system", "content": "Be brief."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + TEXT}}
BODIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "image": (
        "/v1/chat/completions",
        {"messages": [SYSTEM, {"role": "user", "content": [IMAGE]}], "max_tokens": 1},
        1,
    ),
    "text": ("/v1/chat/completions", {"messages": [{"role": "user", "content": TEXT}]}, 1),
    "legacy": ("/v1/completions", {"prompt": TEXT}, 1),
    "legacy of two choices": ("/v1/completions", {"prompt": TEXT, "n": 2, "temperature": 0}, 2),
    "embeddings": ("/v1/embeddings", {"input": TEXT}, 1),
}


@pytest.mark.parametrize("kind", BODIES)
async def test_a_body_is_held_once_during_the_prefill(kind: str) -> None:
    for _ in range(ROUNDS):  # a busy allocator gives back more or less, differently each time
        held = await hold(kind)
        if held < TWICE:
            return
    raise AssertionError(f"each body was held {held:.2f} times, {ROUNDS} times in a row")


async def hold(kind: str) -> float:
    """Return how often a new proxy holds each body while the backend does not answer."""
    path, fields, each = BODIES[kind]
    body = json.dumps({"model": "m", **fields}).encode()
    adapter = "llamacpp" if each > 1 else "vllm"
    async with backend() as upstream:
        with proxy(upstream.url, adapter=adapter) as child:
            upstream.go.set()
            await post(child.url, path, body)  # what is imported at the first request
            upstream.go.clear()
            upstream.sizes.clear()
            before = memory(child.pid).now
            asked = [asyncio.create_task(post(child.url, path, body)) for _ in range(MANY)]
            await upstream.wait_for(each * MANY)
            held = (memory(child.pid).now - before) * 1e6 / (MANY * SIZE)
            upstream.go.set()
            found = await asyncio.gather(*asked)
    assert upstream.sizes and min(upstream.sizes) > SIZE
    assert {status for status, _ in found} == {200 if kind != "embeddings" else 502}
    return held
