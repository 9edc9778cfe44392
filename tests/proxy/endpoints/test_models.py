"""Models: what is listed of one backend, of several, and of an engine that is away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.upstream import Cut, Stall, Step, Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from wellspoken.engine.kind import Facts

MODELS: dict[str, Any] = {
    "object": "list",
    "data": [
        {
            "id": "llama",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "vllm",
            "root": "/",
        },
        {"id": "odd", "created": None, "permission": []},
        {"id": "", "created": 5},
        {"name": "no id"},
        "text",
    ],
    "models": [{"name": "llama"}],
}


def entry(name: str, created: int = 0, owner: str = "default") -> dict[str, Any]:
    """Return one model as OpenAI lists it."""
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


async def test_models_of_a_sole_backend_that_is_down_are_not_known(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    for path in ("/v1/models", "/v1/models/any"):
        status, answer = await proxy.get(path)
        assert (status, answer["error"]["code"]) == (502, "backend_unavailable")
        assert "http://127.0.0.1:1" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_models_are_openais_four_keys(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"}, models=["mine"])
    expected = [
        entry("mine"),
        entry("gpt-4o", 1_700_000_000, "vllm"),
        entry("llama", 1_700_000_000, "vllm"),
        entry("odd", 0, "backend"),
    ]
    assert await proxy.get(path) == (200, {"object": "list", "data": expected})


async def test_several_backends_list_only_what_they_are_asked_for(start_proxy: StartProxy) -> None:
    async with Upstream(whole(MODELS)) as one, Upstream(whole(MODELS)) as two:
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["llama"]},
            {"name": "two", "url": two.url, "models": ["other"]},
        )
        _, answer = await proxy.get("/v1/models")
    assert answer["data"] == [entry("llama", 1_700_000_000, "vllm"), entry("other", 0, "two")]


@pytest.mark.parametrize(
    "script",
    [whole({"detail": "Not Found"}, status=404), whole(b"<html>"), whole([]), [Cut()], [Stall()]],
)
async def test_a_backend_without_models_still_has_the_configured_ones(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step]
) -> None:
    upstream.scripts = [script]
    proxy = await start_proxy(upstream, models=["mine"], timeouts={"probe": 0.1})
    assert await proxy.get("/v1/models") == (200, {"object": "list", "data": [entry("mine")]})


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (whole({"error": "boom"}, status=500), 502, "with status 500. Its log says more."),
        (whole({"error": "Loading model"}, status=503), 503, "with status 503."),
        (whole({"detail": "no key"}, status=401), 502, "--upstream-key env:NAME"),
        (whole({"detail": "Not Found"}, status=404), 502, "models = [...]"),
        (whole(b"<html>", content_type="text/html"), 502, "with a body that is no list of models"),
        (whole({"error": "odd"}), 502, "with a body that is no list of models"),
    ],
)
async def test_a_list_that_fails_is_an_error(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step], status: int, words: str
) -> None:
    upstream.scripts = [script]
    proxy = await start_proxy(upstream)
    for path in ("/v1/models", "/v1/models/any"):
        answered, answer = await proxy.get(path)
        assert answered == status
        assert words in answer["error"]["message"]
        assert f"backend at {upstream.url} answered GET /v1/models" in answer["error"]["message"]


async def test_where_clients_keys_go_on_another_key_is_no_advice(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """`key` and `auth = "pass"` exclude each other, so that advice would lead to an error."""
    upstream.scripts = [whole({"detail": "no key"}, status=401)]
    proxy = await start_proxy(upstream, auth="pass")
    _, answer = await proxy.get("/v1/models")
    assert "without a client's key: name its models" in answer["error"]["message"]
    assert "env:NAME" not in answer["error"]["message"]


@pytest.mark.parametrize("body", [{"object": "list", "data": []}, []])
async def test_a_list_of_no_models_is_none(
    upstream: Upstream, start_proxy: StartProxy, body: dict[str, Any] | list[Any]
) -> None:
    upstream.scripts = [whole(body)]
    proxy = await start_proxy(upstream)
    assert await proxy.get("/v1/models") == (200, {"object": "list", "data": []})


async def test_one_model(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, models=["org/name with space"])
    assert await proxy.get("/v1/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    assert await proxy.get("/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    found = await proxy.get("/v1/models/org/name%20with%20space")
    assert found == (200, entry("org/name with space"))
    status, answer = await proxy.get("/v1/models/none")
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"


async def test_the_models_of_an_engine_that_is_away(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/v1/models", whole(MODELS))
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"})
    await hosting(proxy, Engine("ready"))
    listed = await proxy.get("/v1/models")
    assert len(listed[1]["data"]) == 3
    await hosting(proxy, Engine("stopped", "it was unloaded"))
    assert await proxy.get("/v1/models") == listed
    assert await proxy.get("/v1/models/llama") == (200, entry("llama", 1_700_000_000, "vllm"))
    assert (await proxy.get("/v1/models/none"))[0] == 404
    assert len(upstream.requests) == 1


async def test_the_models_of_an_engine_that_nobody_asked_for_its_list(
    start_proxy: StartProxy,
) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    engine = Engine("starting", "vLLM is starting: loading weights, 3 s", first=True)
    await hosting(proxy, engine)
    status, answer = await proxy.get("/v1/models")
    assert (status, answer["error"]["code"]) == (503, "engine_not_ready")
    assert "loading weights" in answer["error"]["message"]
    engine.facts = Facts(models=("org/name",))
    expected = {"object": "list", "data": [entry("org/name")]}
    for engine.state in ("starting", "draining", "failed"):
        assert await proxy.get("/v1/models") == (200, expected)


async def test_an_engine_that_breaks_off_still_has_its_models(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/v1/models", whole(MODELS), [Cut()], whole({}, status=500))
    proxy = await start_proxy(upstream)
    await hosting(proxy, Engine("ready"))
    listed = await proxy.get("/v1/models")
    assert listed[0] == 200 and len(listed[1]["data"]) == 2
    for number in (2, 3):
        assert await proxy.get("/v1/models") == listed
        assert len(upstream.requests) == number
