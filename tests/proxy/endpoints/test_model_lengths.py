"""Context lengths in the list of models: under which names, from where, and when they are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.upstream import Cut, Gate, Reset, Stall, Step, Upstream, whole
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.metrics.test_engine_metrics import Engine, hosting
from wellspoken.engine.kind import Facts
from wellspoken.proxy.upstream import context_lengths

LIST, PROPS, PS, SHOW = "/v1/models", "/props", "/api/ps", "/api/show"
ORIGINAL: dict[str, Any] = {"created": 1_700_000_000, "owned_by": "vllm"}
VLLM = {"data": [{"id": "llama", **ORIGINAL}]}
TOLD = {"data": [{"id": "llama", **ORIGINAL, "max_model_len": 512}]}
NAMES = ("max_model_len", "context_length", "context_window")


def entry(name: str, length: int | None = None, **more: Any) -> dict[str, Any]:
    """Return one model as the proxy lists it."""
    told = {} if length is None else dict.fromkeys(NAMES, length) | {"meta": {"n_ctx": length}}
    return {"id": name, "object": "model", "created": 0, "owned_by": "default", **more, **told}


def props(length: int) -> list[Step]:
    """Return llama.cpp's GET /props, as far as it matters."""
    return whole({"default_generation_settings": {"n_ctx": length}, "total_slots": 2})


def shown(num_ctx: int | None) -> dict[str, Any]:
    """Return what Ollama's POST /api/show tells, as far as it matters."""
    return {
        "parameters": "" if num_ctx is None else f"num_ctx                        {num_ctx}",
        "details": {"format": "gguf"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 131_072},
    }


async def listed(proxy: Proxy, **headers: str) -> Any:
    """Return the models that the proxy lists."""
    async with proxy.session.get(proxy.url(LIST), headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
    return answer["data"]


async def lengths(proxy: Proxy) -> dict[str, int | None]:
    """Return the context length of each model by its name."""
    return {each["id"]: each.get("context_length") for each in await listed(proxy)}


def asked(upstream: Upstream, path: str) -> int:
    """Return how often a path was asked for."""
    return sum(request.target == path for request in upstream.requests)


async def test_a_length_stands_under_every_name_that_clients_read(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """An alias has its original's. Mutants: one name alone, the alias by its own name."""
    upstream.script(LIST, whole(TOLD))
    proxy = await start_proxy(upstream, aliases={"gpt-4o": "llama"})
    expected = [entry("gpt-4o", 512, **ORIGINAL), entry("llama", 512, **ORIGINAL)]
    assert await listed(proxy) == expected
    for model in expected:
        assert await proxy.get(f"{LIST}/{model['id']}") == (200, model)
    assert asked(upstream, LIST) == len(upstream.requests)


async def test_an_alias_has_its_originals_length(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Mutant: looked for by its own name."""
    several = [{"id": "a", "max_model_len": 512}, {"id": "b", "max_model_len": 1024}, {"id": "c"}]
    upstream.script(LIST, whole({"data": several}))
    aliases = {"small": "a", "large": "b", "unknown": "c", "gone": "d"}
    proxy = await start_proxy(upstream, aliases=aliases)
    own = {"a": 512, "b": 1024, "c": None}
    others = {"small": 512, "large": 1024, "unknown": None, "gone": None}
    assert await lengths(proxy) == own | others


@pytest.mark.parametrize("where", ["configured", "header"])
async def test_the_contract_alone_has_no_length(
    upstream: Upstream, start_proxy: StartProxy, where: str
) -> None:
    """Nor is it asked for. Mutant: the setting is not looked at."""
    upstream.script(LIST, whole(TOLD), whole(VLLM))
    upstream.script(PROPS, props(4096))
    settings = {"extensions": "none"} if where == "configured" else {}
    headers = {"x-wellspoken-extensions": "none"} if where == "header" else {}
    proxy = await start_proxy(upstream, adapter="llamacpp", **settings)
    for _ in range(2):
        assert await listed(proxy, **headers) == [entry("llama", **ORIGINAL)]
    assert asked(upstream, PROPS) == 0


async def test_a_header_may_ask_for_the_length(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(LIST, whole(TOLD))
    proxy = await start_proxy(upstream, extensions="none")
    found = await listed(proxy, **{"x-wellspoken-extensions": "known"})
    assert found == [entry("llama", 512, **ORIGINAL)]


async def test_each_of_several_backends_has_its_own(start_proxy: StartProxy) -> None:
    async with Upstream(whole(TOLD)) as one, Upstream(whole(TOLD)) as two, Upstream() as three:
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["llama"]},
            {"name": "two", "url": two.url, "models": ["other"], "extensions": "none"},
            {"name": "three", "url": three.url, "models": ["mine"]},
        )
        assert await lengths(proxy) == {"llama": 512, "other": None, "mine": None}


@pytest.mark.parametrize(
    ("adapter", "path", "answer", "found"),
    [
        ("llamacpp", PROPS, props(1024), {"llama": 1024, "mine": 1024}),
        ("llamacpp-native", PROPS, props(1024), {"llama": 1024, "mine": 1024}),
        ("tgi", "/info", whole({"max_total_tokens": 2048}), {"llama": 2048, "mine": 2048}),
        ("sglang", "/get_server_info", whole({"context_length": 8192}), {"llama": 8192}),
        ("ollama", PS, whole({"models": [{"name": "llama", "context_length": 4096}]}), {}),
        (
            "lmstudio",
            "/api/v0/models",
            whole({"data": [{"id": "llama", "loaded_context_length": 4096}]}),
            {},
        ),
        ("general", "/api/extra/true_max_context_length", whole({"value": 8192}), {}),
        (
            "general",
            "/v1/model",
            whole({"id": "llama", "parameters": {"max_seq_len": 8192}}),
            {"llama": 8192},
        ),
        ("vllm", PROPS, props(1024), {"llama": None, "mine": None}),
    ],
)
async def test_a_server_whose_list_does_not_tell_is_asked_where_it_does(
    upstream: Upstream,
    start_proxy: StartProxy,
    adapter: str,
    path: str,
    answer: list[Step],
    found: dict[str, int | None],
) -> None:
    """A configured name that it does not list is the sole model's."""
    upstream.script(LIST, whole(VLLM))
    upstream.script(path, answer)
    proxy = await start_proxy(upstream, adapter=adapter, models=["mine"])
    told = await lengths(proxy)
    assert told.keys() == {"llama", "mine"} and told["llama"] == told["mine"]
    assert {**told, **found} == told
    assert (told["llama"] is None) is (adapter == "vllm")
    upstream.script(LIST, whole(TOLD))
    before = asked(upstream, path)
    assert await lengths(proxy) == {"llama": 512, "mine": 512}
    assert asked(upstream, path) == before


async def test_a_server_is_recognised_before_it_is_asked(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """The first list may come before it is known where lengths are. Mutant: no wait."""
    upstream.script(LIST, whole(VLLM, headers=[("Server", "llama.cpp")]))
    upstream.script(PROPS, props(1024))
    proxy = await start_proxy(upstream, adapter="auto")
    assert await lengths(proxy) == {"llama": 1024}


async def test_a_server_without_a_list_tells_the_length_of_configured_names(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """TGI 1.4 has no /v1/models. Mutant: without a list nothing is asked."""
    upstream.script("/info", whole({"max_total_tokens": "2048"}))
    proxy = await start_proxy(upstream, adapter="tgi", models=["mine"])
    assert await listed(proxy) == [entry("mine", 2048)]


async def test_what_is_loaded_changes(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Mutant: an answer that told none is remembered."""
    two = {"data": [{"id": "a"}, {"id": "b"}]}
    upstream.script(LIST, whole(two))
    upstream.script(
        PS,
        whole({"models": []}),
        whole({"models": [{"name": "a", "context_length": 4096}]}),
        whole({"models": [{"name": "b", "context_length": 8192}]}),
    )
    proxy = await start_proxy(upstream, adapter="ollama")
    assert await lengths(proxy) == {"a": None, "b": None}
    assert await lengths(proxy) == {"a": 4096, "b": None}
    assert await lengths(proxy) == {"a": None, "b": 8192}


@pytest.mark.parametrize("status", [404, 401, 405])
async def test_a_path_that_is_not_there_is_not_asked_again_soon(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(context_lengths, "SOON", 0.0)
    upstream.script(LIST, whole(VLLM))
    upstream.script(PROPS, whole({"error": "no such path"}, status=status))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    for _ in range(3):
        assert await lengths(proxy) == {"llama": None}
    assert asked(upstream, PROPS) == 1
    monkeypatch.setattr(context_lengths, "AGAIN", 0.0)
    proxy.service.state.router.targets[0].lengths._again.clear()
    assert await lengths(proxy) == {"llama": None}
    assert asked(upstream, PROPS) == 2


@pytest.mark.parametrize("step", [[Stall()], whole({"error": "busy"}, status=503)])
async def test_what_was_told_holds_while_a_server_does_not_answer(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    step: list[Step],
) -> None:
    """Nor does a path that hangs hold up each list. Mutants: forgotten; asked each time."""
    upstream.script(LIST, whole(VLLM))
    upstream.script(PROPS, props(1024), step, props(2048))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    assert await lengths(proxy) == {"llama": 1024}
    with monkeypatch.context() as patch:
        patch.setattr(context_lengths, "SECONDS", 0.05)
        for _ in range(2):
            assert await lengths(proxy) == {"llama": 1024}
    assert asked(upstream, PROPS) == 2
    proxy.service.state.router.targets[0].lengths._again.clear()
    assert await lengths(proxy) == {"llama": 2048}


@pytest.mark.parametrize("step", [Reset(), Cut()])
@pytest.mark.parametrize(
    ("adapter", "paths"),
    [
        ("llamacpp", [PROPS]),
        ("general", ["/api/extra/true_max_context_length", "/v1/model"]),
        ("ollama", [PS, SHOW]),
    ],
)
async def test_a_path_that_breaks_off_is_not_asked_again_soon(
    upstream: Upstream, start_proxy: StartProxy, step: Step, adapter: str, paths: list[str]
) -> None:
    """Though another server may stand there now. Mutant: that alone has it asked anew."""
    upstream.script(LIST, whole(VLLM))
    for path in paths:
        upstream.script(path, [step])
    proxy = await start_proxy(upstream, adapter=adapter)
    for _ in range(3):
        assert await lengths(proxy) == {"llama": None}
    assert [asked(upstream, path) for path in paths] == [1] * len(paths)
    proxy.service.state.router.targets[0].lengths._again.clear()
    assert await lengths(proxy) == {"llama": None}
    assert [asked(upstream, path) for path in paths] == [2] * len(paths)


async def test_a_routers_loaded_models_are_asked_about_by_name(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """llama.cpp's router mode, whose own props tell none. Mutant: it is made to load the others."""
    names = {"a b/c": "loaded", "hot": "loaded", "cold": "unloaded", "told": "loaded"}
    models: list[Any] = [{"id": x, "status": {"value": value}} for x, value in names.items()]
    models[-1]["meta"] = {"n_ctx": 512}
    later = [{**each, "status": {"value": "unloaded"}} for each in models]
    upstream.script(LIST, whole({"data": models}), whole({"data": later}))
    upstream.script(PROPS, props(0), props(2048), props(2048), props(0))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    assert await lengths(proxy) == {"a b/c": 2048, "hot": 2048, "cold": None, "told": 512}
    asked_for = [f"{PROPS}?autoload=false&model={name}" for name in ("a%20b%2Fc", "hot")]
    assert sorted(x.target for x in upstream.requests[2:]) == asked_for
    assert await lengths(proxy) == {"a b/c": None, "hot": None, "cold": None, "told": 512}
    assert [x.target for x in upstream.requests[4:]] == [LIST, PROPS]


async def test_a_model_that_is_not_loaded_is_asked_about_once(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Until it is made anew. Mutants: each list asks; what is loaded is asked about."""
    first = whole({"data": [{"id": name, "created": 5} for name in "abc"]})
    anew = whole({"data": [{"id": name, "created": 5 + (name == "c")} for name in "abc"]})
    upstream.script(LIST, first, first, anew)
    upstream.script(PS, whole({"models": [{"name": "a", "context_length": 4096}]}))
    upstream.script(SHOW, whole(shown(8192)), whole(shown(8192)), whole(shown(2048)))
    proxy = await start_proxy(upstream, adapter="ollama")
    for models, length in (["b", "c"], 8192), (["b", "c"], 8192), (["b", "c", "c"], 2048):
        assert await lengths(proxy) == {"a": 4096, "b": 8192, "c": length}
        told = [x.json()["model"] for x in upstream.requests if x.target == SHOW]
        assert sorted(told) == models


async def test_a_model_of_which_nothing_is_shown_has_no_length(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Nor is it asked about again."""
    upstream.script(LIST, whole({"data": [{"id": "a"}, {"id": "b"}]}))
    upstream.script(PS, whole({"models": []}))
    upstream.script(SHOW, whole({"error": "no such model"}, status=404), whole(shown(None)))
    proxy = await start_proxy(upstream, adapter="ollama")
    for _ in range(2):
        assert await lengths(proxy) == {"a": None, "b": None}
    assert asked(upstream, SHOW) == 2


async def test_what_was_told_is_forgotten_with_the_server(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Mutant: the number of losses is no part of `Target.server`."""
    upstream.script(LIST, whole(VLLM))
    upstream.script(PROPS, props(1024), [Cut()], whole({}, status=404))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    assert await lengths(proxy) == {"llama": 1024}
    assert await lengths(proxy) == {"llama": 1024}  # it breaks off: perhaps it ended
    assert await lengths(proxy) == {"llama": None}  # another one may stand in its place


async def test_the_late_answer_of_a_server_is_not_the_next_ones(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Mutant: whatever comes is kept."""
    late = Gate()
    upstream.script(PROPS, [late, *props(1024)], props(2048), whole({}, status=503))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    target = proxy.service.state.router.targets[0]
    backend = target.connection()
    first = asyncio.create_task(target.lengths.find(lambda: (backend, "one"), backend, [PROPS]))
    await upstream.request(0)
    assert await target.lengths.find(lambda: (backend, "two"), backend, [PROPS]) == {"": 2048}
    late.open()
    assert await first == {}
    assert await target.lengths.find(lambda: (backend, "two"), backend, [PROPS]) == {"": 2048}


async def test_the_length_that_an_engine_told_when_it_started(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """It is neither asked again nor woken. Mutant: the list's own does not stay first."""
    upstream.script(LIST, whole(VLLM), whole(TOLD))
    proxy = await start_proxy(upstream, adapter="llamacpp", aliases={"gpt-4o": "llama"})
    await hosting(proxy, Engine("ready", facts=Facts(context=2048)))
    assert await lengths(proxy) == {"gpt-4o": 2048, "llama": 2048}
    assert await lengths(proxy) == {"gpt-4o": 512, "llama": 512}
    assert asked(upstream, PROPS) == 0
    await hosting(proxy, Engine("stopped", "it was unloaded"))
    assert await lengths(proxy) == {"gpt-4o": 512, "llama": 512}


async def test_the_length_of_an_engine_that_nobody_asked_for_its_list(
    start_proxy: StartProxy,
) -> None:
    proxy = await start_proxy("http://127.0.0.1:1")
    await hosting(proxy, Engine("stopped", facts=Facts(models=("org/name",), context=4096)))
    assert await listed(proxy) == [entry("org/name", 4096)]
