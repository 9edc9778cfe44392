"""GET /v1/capabilities: what each model's backend does, what the proxy does, what is refused."""

from __future__ import annotations

import json
from typing import Any

from msgspec import json as strict

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from tests.proxy.upstream.test_detector import play
from wellspoken.adapters.answer_schema import Capabilities
from wellspoken.adapters.servers.registry import find
from wellspoken.adapters.servers.response_rows import response_rows
from wellspoken.engine.kind import Facts

PATH = "/v1/capabilities"
LISTED = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()


async def test_each_model_has_its_backends_table(start_proxy: StartProxy) -> None:
    async with Upstream() as one, Upstream() as other:
        one.script("/v1/models", whole(LISTED))
        other.script("/v1/models", whole(LISTED))
        proxy = await start_proxy(
            {"name": "a", "url": one.url, "adapter": "vllm", "models": ["x"]},
            {
                "name": "b",
                "url": other.url,
                "adapter": "cortex",
                "aliases": {"y": "z"},
                "bounds": "backend",
                "vendor": "reject",
                "responses": "pass",
            },
        )
        status, found = await proxy.get(PATH)
    assert status == 200
    decoded = strict.decode(strict.encode(found), type=Capabilities)
    first, second = decoded.data
    assert (first.id, first.backend, first.adapter) == ("x", "a", "vllm")
    assert (second.id, second.backend, second.adapter) == ("y", "b", "cortex")
    assert (second.bounds, second.vendor, first.vendor) == ("backend", "reject", "pass")
    for model, name in ((first, "vllm"), (second, "cortex")):
        table = find(name).chat_table
        told = {key: (row.how, row.key, row.note) for key, row in model.chat_completions.items()}
        assert told == {key: (row.how, row.key, row.note) for key, row in table.items()}
        told = {key: (row.how, row.key, row.note) for key, row in model.response_parameters.items()}
        rows = response_rows(table) if name == "vllm" else {}
        assert told == {key: (row.how, row.key, row.note) for key, row in rows.items()}
    assert (first.responses, second.responses) == ("translate", "pass")
    assert first.engine is None and found["data"][0]["engine"] is None
    assert second.completions == {} and first.completions["echo"].how == "native"


async def test_what_was_detected_is_told(start_proxy: StartProxy, upstream: Upstream) -> None:
    play(upstream, "llamacpp")
    proxy = await start_proxy(upstream, adapter="auto")
    _, found = await proxy.get(PATH)
    model: dict[str, Any] = found["data"][0]
    assert model["adapter"] == "llamacpp" and model["server"].startswith("llama.cpp, from")
    assert model["chat_completions"]["n"]["how"] == "emulated"
    assert "/v1/embeddings" in model["endpoints"]


async def test_an_engine_tells_what_it_is_also_while_it_is_unloaded(
    start_proxy: StartProxy, upstream: Upstream
) -> None:
    proxy = await start_proxy(upstream, adapter="vllm")
    facts = Facts("0.32.0", ("tiny",), 512, "hermes", "deepseek_r1")
    engine = Engine("stopped", "it was unloaded", facts=facts)
    await hosting(proxy, engine)
    status, found = await proxy.get(PATH)
    assert status == 200
    (model,) = strict.decode(strict.encode(found), type=Capabilities).data
    assert (model.id, model.adapter) == ("tiny", "vllm")
    assert found["data"][0]["engine"] == {
        "state": "stopped",
        "version": "0.32.0",
        "context_length": 512,
        "tool_parser": "hermes",
        "reasoning_parser": "deepseek_r1",
    }
    assert upstream.requests == []
    engine.state, engine.facts = "starting", Facts(models=("tiny",))
    _, found = await proxy.get(PATH)
    told = found["data"][0]["engine"]
    assert told.pop("state") == "starting"
    assert set(told.values()) == {None} and len(told) == 4


async def test_an_engine_that_never_was_there_is_an_error(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:9", adapter="vllm")
    await hosting(proxy, Engine("starting", "vLLM is starting: loading weights, 3 s", first=True))
    status, found = await proxy.get(PATH)
    assert (status, found["error"]["code"]) == (503, "engine_not_ready")


async def test_what_does_not_answer_is_an_error(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:9", adapter="vllm")
    async with proxy.session.get(proxy.url(PATH)) as response:
        assert response.status == 502
