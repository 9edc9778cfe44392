"""Requests while the engine is not there: who waits, who is refused, and what a client sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.conforming import body
from tests.conforming_completions import body as completion
from tests.fakes.engine import EngineProxy, Kind, engine_proxy
from tests.fakes.upstream import Gate, Script, Stall, event, stream, whole
from tests.proxy.conftest import MESSAGES, envelope
from tests.proxy.posting import post, refused
from tests.waiting import until

Json = dict[str, Any]
Make = Callable[..., AbstractAsyncContextManager[EngineProxy]]
CHUNK: Json = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_741_570_283}
CHUNKS = (
    event({**CHUNK, "choices": [{"index": 0, "delta": {"content": "Hi"}}]}),
    event({**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
)
STREAM = stream(*CHUNKS, b"data: [DONE]\n\n")
FAST = {"timeouts": {"heartbeat": 0.05}}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Run a proxy with an engine: `async with make(script, ...) as running`."""

    def of(*scripts: Script, **more: Any) -> AbstractAsyncContextManager[EngineProxy]:
        return engine_proxy(monkeypatch, *scripts, **more)

    return of


@pytest.fixture
async def running(make: Make) -> AsyncIterator[EngineProxy]:
    """A proxy whose engine is ready and answers a chat's body."""
    async with make(whole(body())) as made:
        await made.ready()
        yield made


async def waits(running: EngineProxy) -> None:
    """Wait until a request waits for the engine."""
    await until(lambda: running.supervisor._waiting)


async def test_while_it_starts_for_the_first_time_nobody_waits(make: Make) -> None:
    async with make(whole(body())) as running:
        running.gate.clear()
        start = asyncio.create_task(running.hosted.supervisor.start())
        await running.state("starting")
        for more in ({}, {"stream": True}, {"oai_compat": False}):
            async with await running.proxy.chat(None, **more) as response:
                error = envelope(await response.text())
                assert response.status == 503
                assert 1 <= int(response.headers["Retry-After"]) <= 30
                assert error["code"] == "engine_not_ready" and error["type"] == "server_error"
                assert "vLLM is starting" in error["message"] or "Scripted" in error["message"]
                assert "loading weights" in error["message"]
        nothing: Json = {"model": "m", "prompt": "a", "max_tokens": 0}  # which asks no backend
        error = await refused(running.proxy, "/v1/completions", 503, nothing)
        assert error["code"] == "engine_not_ready"
        assert (await running.proxy.error(400, temperature=9))["param"] == "temperature"
        assert not running.upstream.requests and not running.supervisor.open
        running.gate.set()
        await start
        async with await running.proxy.chat() as response:
            assert response.status == 200


EMBEDDED: Json = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
    "model": "m",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}
ENDPOINTS: list[tuple[str, Json, Script]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}, whole(body())),
    ("/v1/chat/completions", {"messages": MESSAGES, "oai_compat": False}, whole(body())),
    ("/v1/completions", {"prompt": "a"}, whole(completion())),
    ("/v1/completions", {"prompt": "a", "oai_compat": False}, whole(completion())),
    ("/v1/embeddings", {"input": "a"}, whole(EMBEDDED)),
    ("/tokenize", {"prompt": "a"}, whole({"count": 1})),
]


@pytest.mark.parametrize(("path", "given", "script"), ENDPOINTS)
async def test_a_body_waits_for_a_restart(
    make: Make, path: str, given: Json, script: Script
) -> None:
    gate = Gate()
    async with make([gate, *script]) as running:
        await running.ready()
        await running.end()
        asking = asyncio.create_task(post(running.proxy, path, {"model": "m", **given}))
        await waits(running)
        running.gate.set()
        await gate.reached.wait()
        assert running.supervisor.open == 1  # no unloading meanwhile
        gate.open()
        async with await asking as response:
            assert response.status == 200, await response.text()
        assert [request.target for request in running.upstream.requests] == [path]
        await running.settled()


async def test_a_stream_gets_its_head_and_comments_while_it_waits(make: Make) -> None:
    async with make(STREAM, tables=FAST) as running:
        await running.ready()
        await running.end()
        async with await running.proxy.chat(stream=True) as response:
            assert response.status == 200 and not running.upstream.requests
            assert running.supervisor.state == "starting"
            assert await response.content.readline() == b": keepalive\n"
            running.gate.set()
            rest = (await response.read()).decode()
        assert rest.endswith("data: [DONE]\n\n") and '"content":"Hi"' in rest
        assert '"finish_reason":"stop"' in rest and '"error"' not in rest
        assert len(running.upstream.requests) == 1


async def test_what_waits_too_long_is_told_so(make: Make) -> None:
    async with make(whole(body()), tables=FAST, wait=0.3) as running:
        await running.ready()
        await running.end()
        body_asked = asyncio.create_task(running.proxy.error(503))
        async with await running.proxy.chat(stream=True) as response:
            assert response.status == 200
            text = (await response.read()).decode()
        events = [line for line in text.splitlines() if line.startswith("data: ")]
        assert len(events) == 1 and "[DONE]" not in text and "finish_reason" not in text
        for error in (await body_asked, envelope(events[0].removeprefix("data: "))):
            assert error["code"] == "engine_not_ready" and "loading weights" in error["message"]
        await running.settled()
        assert not running.supervisor._waiting


async def test_without_a_heartbeat_a_late_stream_is_refused_with_a_status(make: Make) -> None:
    async with make(whole(body()), wait=0.05) as running:
        await running.ready()
        await running.end()
        assert (await running.proxy.error(503, stream=True))["code"] == "engine_not_ready"


async def test_the_queue_is_bounded(make: Make) -> None:
    async with make(whole(body()), queue=1) as running:
        await running.ready()
        await running.end()
        first = asyncio.create_task(running.proxy.chat())
        await waits(running)
        async with await running.proxy.chat() as response:
            assert response.status == 503 and "Retry-After" in response.headers
            assert "1 requests wait" in await response.text()
        running.gate.set()
        async with await first as response:
            assert response.status == 200


@pytest.mark.parametrize("streams", [False, True])
async def test_a_client_that_leaves_while_it_waits_is_freed(make: Make, streams: bool) -> None:
    async with make(whole(body()), tables=FAST) as running:
        await running.ready()
        await running.end()
        asking = asyncio.create_task(running.proxy.chat(stream=streams))
        await waits(running)
        if streams:
            (await asking).close()
        else:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not running.supervisor._waiting)
        await running.settled()
        left = 'wellspoken_client_disconnects_total{phase="waiting"}'
        assert (await running.proxy.metrics())[left] == 1.0
        running.gate.set()
        await running.state("ready")
        assert not running.upstream.requests
        async with await running.proxy.chat() as response:
            assert response.status == 200


async def test_what_fails_or_leaves_in_the_middle_is_counted_out(make: Make) -> None:
    gate = Gate()
    async with make(
        whole({"error": {"message": "no"}}, status=400),
        stream(CHUNKS[0], Stall()),
        [gate],
    ) as running:
        await running.ready()
        await running.proxy.error(400)
        await running.settled()
        response = await running.proxy.chat(stream=True)
        assert running.supervisor.open == 1
        response.close()
        await running.settled()
        asking = asyncio.create_task(running.proxy.chat())
        await gate.reached.wait()
        assert running.supervisor.open == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await running.settled()


async def unloaded(running: EngineProxy) -> None:
    """Have the engine unloaded, as after an idle time."""
    await running.ready()
    await running.state("stopped")
    await running.upstream.refuse()


async def test_what_can_be_refused_or_told_without_it_does_not_load_it(make: Make) -> None:
    other = {"name": "other", "url": "http://127.0.0.1:9", "models": ["x"], "adapter": "openai"}
    async with make(whole(body()), backends=(other,), idle_unload=0.05) as running:
        await unloaded(running)
        proxy = running.proxy
        for param, value in (("temperature", 9), ("verbosity", "low"), ("top_logprobs", 2)):
            assert (await proxy.error(400, model="m", **{param: value}))["param"] == param
        assert (await proxy.error(404, model="nobody"))["code"] == "model_not_found"
        async with await proxy.chat({"x-wellspoken-keep": "1"}, model="m") as response:
            assert response.status == 400
        for path, given, status in (
            ("/v1/completions", {"model": "m", "prompt": "a", "logprobs": 9}, 400),
            ("/v1/completions", {"model": "m", "prompt": "a", "best_of": 3, "n": 4}, 400),
            ("/v1/embeddings", {"model": "m"}, 400),
            ("/v1/rerank", {"model": "x"}, 404),
            ("/v1/rerank", {"model": "m", "stream": True, "Stream": True}, 400),
        ):
            async with await post(proxy, path, given) as response:
                assert response.status == status, (path, await response.text())
        for path in ("/v1/models", "/v1/models/m", "/v1/capabilities", "/readyz", "/livez"):
            code, found = await proxy.get(path)
            assert code == 200, found
            if path == "/v1/models":
                assert {one["id"] for one in found["data"]} == {"x", "m"}
        await proxy.metrics()
        assert running.starts == 1 and running.supervisor.state == "stopped"
        async with await post(proxy, "/v1/completions", {"model": "m", "prompt": "a"}):
            assert running.starts == 2  # what is asked of it does


async def test_what_its_completions_refuse_does_not_load_it(make: Make) -> None:
    """llama.cpp's table has such a row, vLLM's has none."""

    class LlamaCpp(Kind):
        name = "llamacpp"

    async with make(whole(body()), kind=LlamaCpp, idle_unload=0.05) as running:
        await unloaded(running)
        async with await post(
            running.proxy, "/v1/completions", {"model": "m", "prompt": "a", "suffix": "b"}
        ) as response:
            assert envelope(await response.text())["param"] == "suffix"
        assert running.starts == 1 and running.supervisor.state == "stopped"


async def test_a_request_loads_an_unloaded_engine_and_holds_it(make: Make) -> None:
    gate = Gate()
    script: Script = [gate, *whole(body())]
    async with make(script, idle_unload=0.05) as running:
        await unloaded(running)
        asking = asyncio.create_task(running.proxy.chat())
        await gate.reached.wait()
        await asyncio.sleep(0.2)
        assert running.supervisor.state == "ready" and running.supervisor.open == 1
        gate.open()
        async with await asking as response:
            assert response.status == 200
        assert running.starts == 2
        await running.state("stopped")


async def test_token_ids_are_checked_once_the_engine_tells_its_vocabulary(make: Make) -> None:
    """The vocabulary's size was never asked for while the engine was there."""

    class LlamaCpp(Kind):
        name = "llamacpp"

    async with make(whole(body()), kind=LlamaCpp) as running:
        sizes = whole({"data": [{"id": "m", "meta": {"n_vocab": 100}}]})
        running.upstream.script("/v1/models", sizes)
        await running.ready()
        await running.end()
        asking = asyncio.create_task(running.proxy.error(400, logit_bias={"100": 1}))
        good = asyncio.create_task(running.proxy.chat(logit_bias={"99": 1}))
        await waits(running)
        running.gate.set()
        assert (await asking)["param"] == "logit_bias"
        async with await good as response:
            assert response.status == 200
        assert len([x for x in running.upstream.requests if x.method == "POST"]) == 1


async def test_an_engine_that_refuses_is_waited_for_and_asked_once(running: EngineProxy) -> None:
    """Its process has not ended yet, but nobody listens: nothing of the request was sent."""
    await running.upstream.refuse()
    running.gate.clear()
    asking = asyncio.create_task(running.proxy.chat())
    await running.state("draining")
    running.end_process()
    await waits(running)
    assert running.supervisor.open == 1 and not running.upstream.requests
    running.gate.set()
    async with await asking as response:
        assert response.status == 200
    assert len(running.upstream.requests) == 1
    await running.settled()


async def test_an_engine_that_listens_after_all_is_asked_again(
    running: EngineProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.upstream.refuse()
    monkeypatch.setattr(running.supervisor, "suspect", running.listen)
    async with await running.proxy.chat() as response:
        assert response.status == 200
    assert [x.method for x in running.upstream.requests].count("POST") == 1
    refused = 'wellspoken_upstream_errors_total{backend="engine",reason="refused"}'
    assert (await running.proxy.metrics())[refused] == 1.0


async def test_an_engine_that_refuses_twice_fails_the_request(
    running: EngineProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> None:
        pass

    await running.upstream.refuse()
    monkeypatch.setattr(running.supervisor, "suspect", nothing)
    error = await running.proxy.error(502)
    assert error["code"] == "backend_unavailable" and "engine (vLLM)" in error["message"]
    await running.settled()


async def test_what_may_have_run_is_not_repeated(make: Make) -> None:
    gate = Gate()
    async with make([gate], whole(body())) as running:
        await running.ready()
        asking = asyncio.create_task(running.proxy.error(502))
        await gate.reached.wait()
        await running.end()
        running.gate.set()
        assert "engine (vLLM)" in (await asking)["message"]
        assert len(running.upstream.requests) == 1
        await running.settled()


@pytest.mark.parametrize("on_failure", ["retry", "exit"])
async def test_an_engine_that_is_down_is_worth_a_retry_where_it_is_tried_again(
    make: Make, on_failure: str
) -> None:
    async with make(whole(body()), restarts=1, on_failure=on_failure) as running:
        await running.ready()
        assert running.child is not None
        running.child.end(1)
        await running.state("failed")
        for streams in (False, True):
            async with await running.proxy.chat(stream=streams) as response:
                assert response.status == 503
                exits = on_failure == "exit"
                assert response.headers.get("x-should-retry") == ("false" if exits else None)
                assert response.headers.get("Retry-After") == (None if exits else "30")
                then = "is not started again" if exits else "is tried again 1 minute later"
                assert then in envelope(await response.text())["message"]


async def test_the_engine_gone_between_the_wait_and_the_sending(running: EngineProxy) -> None:
    """The plan of an answer may take some steps of the loop; the engine may end in them."""
    await running.hosted.down()
    running.gate.clear()
    asking = asyncio.create_task(running.proxy.chat())
    await asyncio.sleep(0.05)
    assert not running.supervisor.open
    running.end_process()
    await running.state("starting")
    running.gate.set()
    async with await asking as response:
        assert response.status == 200


async def test_what_is_wrong_is_told_while_the_engine_ends_by_itself(make: Make) -> None:
    """Its open answers still come, so that it has its address, but a new request has to wait."""
    gate = Gate()
    async with make([gate, *whole(body())], tables=FAST) as running:
        await running.ready()
        first = asyncio.create_task(running.proxy.chat())
        await gate.reached.wait()
        assert running.upstream.path is not None
        running.upstream.path.unlink()
        await running.supervisor.suspect()
        await running.state("draining")
        running.gate.clear()
        for streams in (False, True):
            async with asyncio.timeout(60):
                error = await running.proxy.error(400, stream=streams, modalities=["audio"])
            assert error["param"] == "modalities"
        gate.open()
        async with await first as response:
            assert response.status == 200
        running.end_process(0)
        running.gate.set()
        await running.state("ready")
        assert running.starts == 2 and len(running.upstream.requests) == 1
