"""The model's name in metrics and spans without a configuration: what a sole backend lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.clock import skip
from tests.conforming import body, choice, chunk, finish
from tests.fakes.upstream import DONE, Gate, Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.proxy.lifecycle.test_run import Running
from tests.proxy.tracing.conftest import start_traced
from tests.proxy.tracing.traced import StartTraced
from tests.waiting import until
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.labels import AGAIN
from wellspoken.proxy.upstream.target import LABELLED, LONGEST

__all__ = ["start_traced"]  # a fixture
MODELS = "/v1/models"


def listing(*names: str) -> Script:
    """Return the script of a server that lists these models."""
    return whole({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


def serves(upstream: Upstream, *names: str) -> None:
    """Have a scripted server list these models, and answer chats for any."""
    upstream.script(MODELS, listing(*names))
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(body(choice())))


def counted(samples: dict[str, float], family: str) -> dict[str, float]:
    """Return a family's counts of chat requests that reached the backend, by model."""
    found: dict[str, float] = {}
    for series, value in samples.items():
        name, _, labels = series.partition("{")
        pairs = dict(pair.split("=") for pair in labels.rstrip("}").split(",") if labels)
        if name == f"wellspoken_{family}" and pairs.get("backend") == '"default"':
            if pairs.get("route", '"chat_completions"') == '"chat_completions"':
                model = pairs["model"].strip('"')
                found[model] = found.get(model, 0) + value
    return found


async def ask(proxy: Proxy, *models: str, **more: Any) -> None:
    for model in models:
        async with await proxy.chat(model=model, **more) as response:
            assert response.status == 200, await response.text()
            await response.read()


async def test_the_first_request_has_its_name_in_every_metric(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """With `adapter = "auto"` the list is looked at before a request goes on."""
    serves(upstream, "a/b:c", "other")
    upstream.script(CHAT, whole(body(choice())), stream(*SPOKEN_PIECES))
    proxy = await start_proxy(upstream, adapter="auto")
    await ask(proxy, "a/b:c")
    await ask(proxy, "a/b:c", stream=True)
    samples = await proxy.metrics()
    assert counted(samples, "requests_total") == {"a/b:c": 2}
    assert counted(samples, "request_duration_seconds_count") == {"a/b:c": 2}
    assert counted(samples, "time_to_first_token_seconds_count") == {"a/b:c": 1}
    for family in ("inter_token_seconds_count", "tokens_total"):
        assert set(counted(samples, family)) == {"a/b:c"}


SPOKEN_PIECES = (
    event(chunk({"role": "assistant", "content": "a"})),
    event(chunk({"content": "b"})),
    event(finish()) + DONE,
)


async def test_a_list_that_a_client_asks_for_tells_names(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    serves(upstream, "m", "llama3:latest")
    proxy = await start_proxy(upstream)
    await ask(proxy, "m")
    assert (await proxy.get(MODELS))[0] == 200
    await ask(proxy, "m", "llama3", "llama3:latest", "invented")
    found = counted(await proxy.metrics(), "requests_total")
    assert found == {"_other": 2, "m": 1, "llama3": 1, "llama3:latest": 1}


async def test_a_list_cannot_multiply_series(upstream: Upstream, start_proxy: StartProxy) -> None:
    """A server may list other names each time, and any number of them, of any length."""
    names = [[f"m{turn}-{number}" for number in range(LABELLED // 2)] for turn in range(4)]
    lists = [listing("x" * (LONGEST + 1), *each) for each in names]
    serves(upstream)
    upstream.script(MODELS, *lists)
    proxy = await start_proxy(upstream)
    for _ in lists:
        assert (await proxy.get(MODELS))[0] == 200
    (target,) = proxy.service.state.router.targets
    assert target.labels == {*names[0], *names[1]}
    await ask(proxy, "x" * (LONGEST + 1), names[0][0], names[3][0])
    assert counted(await proxy.metrics(), "requests_total") == {"_other": 2, names[0][0]: 1}


async def test_what_a_terminal_acts_on_is_no_label(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Who asks for /metrics in a window sees no server's colours, and no line that it forged."""
    names = ["\x1b[31mred", "two\nlines", "turned\u202eround"]
    serves(upstream, "漢字 😀", *names)
    proxy = await start_proxy(upstream)
    assert (await proxy.get(MODELS))[0] == 200
    await ask(proxy, "漢字 😀", *names)
    assert counted(await proxy.metrics(), "requests_total") == {"_other": 3, "漢字 😀": 1}


async def test_the_bound_counts_the_names_without_a_tag_too(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    serves(upstream, "odd", *(f"m{number}:latest" for number in range(LABELLED)))
    proxy = await start_proxy(upstream)
    assert (await proxy.get(MODELS))[0] == 200
    (target,) = proxy.service.state.router.targets
    assert len(target.labels) == LABELLED


async def test_of_several_backends_the_configured_names_count(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    serves(upstream, "listed", "configured")
    one = {"url": upstream.url, "models": ["configured"]}
    two = {"url": upstream.url, "name": "two", "models": ["second"]}
    proxy = await start_proxy(one, two)
    assert (await proxy.get(MODELS))[0] == 200
    await ask(proxy, "configured")
    assert proxy.service.state.router.label("listed") == "_other"
    assert counted(await proxy.metrics(), "requests_total") == {"configured": 1}


async def test_a_span_has_the_listed_name(upstream: Upstream, start_traced: StartTraced) -> None:
    serves(upstream, "listed")
    proxy, traced = await start_traced(upstream, adapter="auto")
    await ask(proxy, "listed", "invented")
    names = [span.name for span in traced.all() if span.name.split(" ")[0] == "chat"]
    assert names == ["chat listed", "chat"]


@asynccontextmanager
async def running(upstream: Upstream) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    """Serve in front of one server as the program does; give the URL and a session."""
    backend = {"url": upstream.url, "adapter": "vllm"}
    tables = {"server": {"listen": "127.0.0.1:0"}, "timeouts": {"probe": 60}}
    made = Running(load(None, {**tables, "backend": [backend]}, {}))
    url = await made.url()
    try:
        async with aiohttp.ClientSession() as session:
            yield url, session
    finally:
        made.signal()
        assert await made.task == 0


async def post(url: str, session: aiohttp.ClientSession, model: str) -> int:
    request = {"model": model, "messages": MESSAGES}
    async with session.post(url + CHAT, json=request) as response:
        await response.read()
        return response.status


async def labels(url: str, session: aiohttp.ClientSession) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return counted({name: float(value) for name, _, value in pairs}, "requests_total")


async def test_the_list_is_asked_for_at_the_start(upstream: Upstream) -> None:
    """With an adapter that is configured nothing has to be found out, so it is not detection."""
    serves(upstream, "m")
    async with running(upstream) as (url, session):
        assert await post(url, session, "m") == 200
        assert await labels(url, session) == {"m": 1}


async def test_a_model_that_is_loaded_later_gets_its_name(upstream: Upstream) -> None:
    serves(upstream, "m")
    async with running(upstream) as (url, session):
        serves(upstream, "m", "lora")
        assert await post(url, session, "lora") == 200

        async def is_known() -> bool:
            return await post(url, session, "lora") == 200 and "lora" in await labels(url, session)

        await until(is_known, "the list was asked for again")


async def test_a_server_that_comes_later_tells_its_names(upstream: Upstream) -> None:
    serves(upstream, "m")
    await upstream.refuse()
    async with running(upstream) as (url, session):
        assert await post(url, session, "m") == 502
        await upstream.listen()

        async def is_known() -> bool:
            await post(url, session, "m")
            return "m" in await labels(url, session)

        await until(is_known, "the list was asked for again")


async def test_invented_names_have_the_list_asked_for_once_a_minute(upstream: Upstream) -> None:
    serves(upstream, "m")
    async with running(upstream) as (url, session):
        asked = [request.target for request in upstream.requests].count(MODELS)

        def more() -> int:
            return [request.target for request in upstream.requests].count(MODELS) - asked

        for number in range(50):
            assert await post(url, session, f"invented-{number}") == 200
        await until(lambda: more() == 1, "it was asked for")
        assert await labels(url, session) == {"_other": 50}
        skip(AGAIN + 1)
        for number in range(50):
            assert await post(url, session, f"invented-{number}") == 200
        await until(lambda: more() == 2, "it was asked for again")


async def test_a_list_that_hangs_holds_neither_a_request_nor_the_end_up(
    upstream: Upstream,
) -> None:
    serves(upstream, "m")
    async with running(upstream) as (url, session):
        gate = Gate()
        upstream.script(MODELS, [gate])
        assert await post(url, session, "x") == 200
        await gate.reached.wait()
        assert await post(url, session, "x") == 200


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_list_that_fails_changes_nothing(upstream: Upstream, status: int) -> None:
    serves(upstream, "m")
    async with running(upstream) as (url, session):
        upstream.script(MODELS, whole({"data": [{"id": "x"}]}, status=status))
        asked = len(upstream.requests)
        assert await post(url, session, "x") == 200
        await upstream.request(asked + 1)
        assert await post(url, session, "x") == 200
        assert await labels(url, session) == {"_other": 2}
