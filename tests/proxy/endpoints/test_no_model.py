"""Requests that name no model, or a null one: one backend needs none, and its answer says which."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conforming import body as chat_body
from tests.conforming_completions import MODEL, PROMPT, body
from tests.fakes.upstream import Cut, Step, Upstream, whole
from tests.fold import fold, fold_completion
from tests.proxy.conftest import Proxy, StartProxy, envelope
from wellspoken.proxy.upstream import memory

Json = dict[str, Any]
LISTED = {"object": "list", "data": [{"id": "served", "object": "model"}]}
EMBEDDED = {
    "object": "list",
    "model": MODEL,
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}
NATIVE = {
    "index": 0,
    "content": " ok",
    "stop": True,
    "stop_type": "limit",
    "tokens_evaluated": 4,
    "tokens_predicted": 1,
}


async def post(proxy: Proxy, path: str, **fields: Any) -> tuple[int, bytes]:
    async with proxy.session.post(proxy.url(path), json=fields) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("settings", "listed", "name"),
    [
        ({}, whole(LISTED), "served"),
        ({}, whole({"error": "no such path"}, status=404), "default"),
        ({"models": ["mine"]}, None, "mine"),
        ({"upstream_model": "theirs"}, None, "theirs"),
    ],
    ids=["listed", "not told", "configured", "of the route"],
)
async def test_no_tokens_of_no_model_are_some_models(
    upstream: Upstream,
    start_proxy: StartProxy,
    settings: Json,
    listed: Any,
    name: str,
    stream: bool,
) -> None:
    """Nobody is asked for no tokens, so no answer says the model. Mutant: not named."""
    if listed is not None:
        upstream.script("/v1/models", listed)
    proxy = await start_proxy(upstream, bounds="backend", **settings)
    status, data = await post(proxy, "/v1/completions", prompt="Hi", max_tokens=0, stream=stream)
    answer = fold_completion(data) if stream else json.loads(data)
    assert (status, answer["model"]) == (200, name)
    asked = [request.target for request in upstream.requests]
    assert asked == (["/v1/models"] if listed is not None else [])


async def test_no_tokens_of_no_model_where_the_backend_is_down(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1", bounds="backend", name="mine")
    status, data = await post(proxy, "/v1/completions", prompt="Hi", max_tokens=0)
    assert (status, json.loads(data)["model"]) == (200, "mine")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_native_answer_says_its_model(
    upstream: Upstream, start_proxy: StartProxy, stream: bool
) -> None:
    """Of llama.cpp's own /completion the last event alone tells it (b11549). Mutant: not asked."""
    upstream.script("/apply-template", whole({"prompt": "Hi"}))
    upstream.script("/v1/models", whole(LISTED))
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native", bounds="backend")
    status, data = await post(
        proxy, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], stream=stream
    )
    answer = fold(data) if stream else json.loads(data)
    assert (status, answer["model"]) == (200, "served")


async def name_of_answer(proxy: Proxy, status: int = 200) -> str:
    """Return which model answers a request that names none."""
    got, data = await post(proxy, "/completion", prompt="Hi")
    assert got == status, data
    return str(json.loads(data).get("model", ""))


def asked_for_lists(upstream: Upstream) -> int:
    """Return how often the list of models was asked for."""
    return sum(request.target == "/v1/models" for request in upstream.requests)


async def test_the_name_is_asked_once(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Also of many requests at a time. Mutants: asked for each; for each that came meanwhile."""
    upstream.script("/v1/models", whole(LISTED), whole({"data": [{"id": "other"}]}))
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native", bounds="backend")
    names = await asyncio.gather(*(name_of_answer(proxy) for _ in range(5)))
    assert names == ["served"] * 5
    assert await name_of_answer(proxy) == "served"
    assert asked_for_lists(upstream) == 1


async def test_the_name_is_forgotten_with_the_server(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A server that ended may be another when it is back. Mutant: losses are not counted."""
    upstream.script("/v1/models", whole(LISTED), whole({"data": [{"id": "other"}]}))
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native", bounds="backend")
    assert await name_of_answer(proxy) == "served"
    await upstream.refuse()
    await name_of_answer(proxy, 502)
    await upstream.listen()
    assert await name_of_answer(proxy) == "other"


async def test_the_name_holds_for_a_while(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server may serve another model by then. Mutant: remembered for ever."""
    upstream.script("/v1/models", whole(LISTED), whole({"data": [{"id": "other"}]}))
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native", bounds="backend")
    assert await name_of_answer(proxy) == "served"
    monkeypatch.setattr(memory, "AGAIN", 0.0)
    assert await name_of_answer(proxy) == "other"


@pytest.mark.parametrize("listed", [[Cut()], whole({}, status=404), whole({"data": []})])
async def test_a_server_that_tells_no_name_has_the_backends(
    upstream: Upstream, start_proxy: StartProxy, listed: list[Step]
) -> None:
    upstream.script("/v1/models", listed)
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native", bounds="backend", name="mine")
    assert await name_of_answer(proxy) == "mine"


@pytest.mark.parametrize(
    ("path", "fields", "answer"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}]},
            chat_body(model=MODEL),
        ),
        ("/v1/completions", {"prompt": PROMPT}, body()),
        ("/completion", {"prompt": PROMPT}, body()),
        ("/v1/embeddings", {"input": "a"}, EMBEDDED),
    ],
)
async def test_a_null_model_is_none(
    upstream: Upstream, start_proxy: StartProxy, path: str, fields: Json, answer: Json
) -> None:
    """Mutant: `parse` that refuses it, or sends it."""
    upstream.scripts = [whole(answer)]
    proxy = await start_proxy(upstream, bounds="backend", endpoints=["/v1/embeddings"])
    status, data = await post(proxy, path, model=None, **fields)
    assert (status, json.loads(data)["model"]) == (200, MODEL)
    assert "model" not in upstream.requests[0].json()


async def test_a_null_model_is_refused_as_none_is(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """OpenAI's bounds, and several backends, need a name."""
    proxy = await start_proxy(upstream)
    status, data = await post(proxy, "/v1/completions", model=None, prompt="Hi")
    assert (status, envelope(data.decode())["message"]) == (
        400,
        "you must provide a model parameter",
    )
    assert upstream.requests == []
