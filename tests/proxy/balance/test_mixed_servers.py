"""Servers of several kinds with one model: an answer is the one its server alone would give."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream
from tests.proxy.balance.test_moving import CLOSED, OK, REQUESTS, STREAM
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from wellspoken.adapters.servers import registry

OWN: Final = {"x-wellspoken-backend", "date", "openai-processing-ms"}
MORE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{name: (path, sent) for name, (path, sent, _) in REQUESTS.items()},
    "many in a stream": (CHAT, {"messages": MESSAGES, "n": 3, "stream": True}),
    "logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "stop": (CHAT, {"messages": MESSAGES, "stop": ["i"], "stream": True}),
    "vendor": (CHAT, {"messages": MESSAGES, "top_k": 5, "frobnicate": 1}),
    "echo": ("/v1/completions", {"prompt": "Hi", "echo": True, "logprobs": 2, "max_tokens": 1}),
    "prompts": ("/v1/completions", {"prompt": ["Hi", "Ho"], "n": 2}),
    "large stream": (
        CHAT, {"messages": [{"role": "user", "content": "a" * 200_000}], "stream": True},
    ),
    "refused": (CHAT, {"messages": MESSAGES, "temperature": 9}),
}  # fmt: skip


async def ask(proxy: Proxy, path: str, sent: dict[str, Any]) -> tuple[object, ...]:
    proxy.service.state.new_id = lambda: "fresh-0123456789"
    headers = {"x-request-id": "one", "x-wellspoken-explain": "1"}
    body = {"model": MODEL, **sent}
    async with proxy.session.post(proxy.url(path), json=body, headers=headers) as response:
        text = re.sub(r'("created": ?)[0-9]+', r"\1 0", await response.text())
        # Choices of several requests to the server come as they come.
        events = sorted(text.split("\n\n")) if sent.get("n", 1) > 1 else text
        told = {name.lower(): value for name, value in response.headers.items()}
        return response.status, events, {name: told[name] for name in told.keys() - OWN}


def take_sent(server: Upstream) -> list[tuple[str, Any]]:
    """Return what the server was asked since the last time, but for what is remembered of it.

    In one order, since several requests for one answer are sent at once.
    """
    found = [(each.target, json.loads(each.body)) for each in server.requests if each.body]
    server.requests.clear()
    return sorted(found, key=json.dumps)


@pytest.mark.parametrize("script", [OK, STREAM], ids=["body", "stream"])
@pytest.mark.parametrize("adapter", registry.BACKENDS)
async def test_an_answer_after_a_move_is_that_of_its_server_alone(
    start_proxy: StartProxy, adapter: str, script: Any
) -> None:
    async with Upstream(script) as server:
        there = {"name": "there", "url": server.url, "adapter": adapter, "models": [MODEL]}
        there["endpoints"] = ["/v1/embeddings", "/v1/rerank"]
        dead = {**there, "name": "dead", "url": CLOSED, "weight": 1e6, "adapter": "vllm"}
        other = {"name": "other", "url": CLOSED, "models": ["other"]}
        health = {"interval": 0, "failures": 1_000_000}
        alone = await start_proxy(there, other, health=health)
        moving = await start_proxy(dead, there, health=health)
        for path, sent in MORE.values():
            for _ in range(2):  # the second one may be asked for as the first was
                found = await ask(alone, path, sent), take_sent(server)
                assert (await ask(moving, path, sent), take_sent(server)) == found
        assert [target.outstanding for target in moving.service.state.router.targets] == [0, 0]
        assert sum(v for k, v in (await moving.metrics()).items() if "failovers_total{" in k) > 20
