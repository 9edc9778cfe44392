"""Asking a backend again after it was away, and in the background from the start to the end."""

from __future__ import annotations

import asyncio
import logging
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clock import own_time, skip
from tests.fakes.upstream import Cut, Pause, Stall, Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.lifecycle.test_run import Running
from tests.proxy.upstream.test_detector import (
    PATHS,
    asked,
    chat,
    detector_of,
    everywhere,
    play,
    questions,
    target_of,
)
from tests.waiting import until
from wellspoken.adapters.servers.detection import ROUNDS
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.proxy.config import load
from wellspoken.proxy.upstream import detector as detect

LOADING = whole({"error": {"message": "Loading model"}}, 503, headers=[("Server", "llama.cpp")])


async def test_a_backend_that_is_down_is_asked_again_but_not_at_every_request(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(upstream, "vllm")
    await upstream.refuse()
    monkeypatch.setattr(detect, "AGAIN", 3600.0)
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy, 502)
    await upstream.listen()
    await chat(proxy)
    assert asked(upstream) == []
    assert target_of(proxy).backend is GENERAL
    detector_of(proxy)._again = 0.0  # an hour later
    await chat(proxy)
    assert target_of(proxy).backend is VLLM


async def test_another_server_in_its_place_is_found_out(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    await upstream.refuse()
    await chat(proxy, 502)
    await chat(proxy, 502)
    assert target_of(proxy).backend is VLLM  # until something else answers
    play(upstream, "llamacpp")
    await upstream.listen()
    await chat(proxy)
    assert target_of(proxy).backend is LLAMACPP
    before = len(asked(upstream))
    await chat(proxy)
    assert len(asked(upstream)) == before
    lines = [line for line in caplog.messages if line.startswith("backend ")]
    assert lines == [
        "backend default: vLLM 0.32.0, from its models' owner",
        "backend default: llama.cpp, from its Server header",
    ]


async def test_an_answer_that_breaks_off_is_a_reason_to_ask_again(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server may have died in the middle of it; a slow one is no such reason."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    play(upstream, "vllm")
    upstream.script(CHAT, [Stall()], [Cut()], whole(PLAIN))
    proxy = await start_proxy(upstream, adapter="auto", timeouts={"first_token_body": 100.0})
    late = asyncio.create_task(chat(proxy, 504))
    await until(lambda: upstream.requests and upstream.requests[-1].target == CHAT)
    skip(110.0)
    await late
    assert detector_of(proxy).settled
    await chat(proxy, 502)
    assert not detector_of(proxy).settled
    await chat(proxy)
    assert len(asked(upstream)) == 2 * len(ROUNDS[0])
    assert len([line for line in caplog.messages if line.startswith("backend ")]) == 1


async def test_a_server_that_answers_nothing_is_not_asked_further(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    everywhere(upstream, [Cut()])
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    assert sorted(asked(upstream)) == sorted(ROUNDS[0])
    assert target_of(proxy).detected is None


async def test_a_question_that_is_cut_off_is_one_left_open(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    detector_of(proxy).settled = False
    upstream.script("/v1/models", [Cut()])
    await chat(proxy)
    assert target_of(proxy).backend is VLLM
    assert detector_of(proxy).settled


async def test_readiness_notices_that_a_backend_went_away(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    play(upstream, "vllm")
    upstream.script("/health", whole({}))
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    assert (await proxy.get("/readyz"))[0] == 200
    assert detector_of(proxy).settled
    await upstream.refuse()
    proxy.service.state.readiness.forget()
    assert (await proxy.get("/readyz"))[0] == 503
    assert not detector_of(proxy).settled


async def test_what_was_known_is_not_given_up_for_questions_left_open(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    monkeypatch.setattr(detect, "SECONDS", 40.0)
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto", timeouts={"probe": 100.0})
    await chat(proxy)
    await upstream.refuse()
    await chat(proxy, 502)
    upstream.script("/v1/models", [Stall()])
    await upstream.listen()
    before = len(upstream.requests)
    asking = asyncio.create_task(chat(proxy))
    await until(lambda: len(upstream.requests) - before >= len(ROUNDS[0]))
    await until(lambda: questions() == 1)
    assert not asking.done()
    skip(45.0)
    await asking
    assert target_of(proxy).backend is VLLM
    assert await chat(proxy) < 20  # it works, so it does not hold requests up again


async def test_a_server_that_loads_its_model_is_known_and_asked_again(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    everywhere(upstream, LOADING)
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    assert target_of(proxy).backend is LLAMACPP
    assert not detector_of(proxy).settled
    props = {"default_generation_settings": {}, "total_slots": 1, "build_info": "b11549-1"}
    play(upstream, "llamacpp")
    upstream.script("/props", whole(props, headers=[("Server", "llama.cpp")]))
    await chat(proxy)
    assert detector_of(proxy).described == "llama.cpp b11549, from its Server header"
    assert detector_of(proxy).settled


async def test_a_gateway_without_its_backend_is_not_the_backend(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "AGAIN", 0.0)
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    detector_of(proxy).settled = False
    everywhere(upstream, whole(b"<html>Bad Gateway", 502, "text/html"))
    await chat(proxy)
    assert target_of(proxy).backend is VLLM
    assert not detector_of(proxy).settled


def auto_config(upstream: Upstream, **server: Any) -> Any:
    flags = {"server": {"listen": "127.0.0.1:0", **server}, "backend": [{"url": upstream.url}]}
    return load(None, {**flags, "timeouts": {"probe": 60}}, {})


async def test_a_configured_adapter_asks_nothing_at_the_start(upstream: Upstream) -> None:
    backend = {"url": upstream.url, "adapter": "llamacpp", "models": ["m"]}
    flags = {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}
    running = Running(load(None, flags, {}))
    await running.url()
    assert "(adapter llamacpp)" in await running.said
    assert set(asked(upstream)) <= {"/health", "/v1/models"}  # readiness and the list of models
    assert asked(upstream).count("/v1/models") == 1
    running.signal()
    assert await running.task == 0


async def test_the_banner_says_what_it_is_and_why(upstream: Upstream) -> None:
    play(upstream, "llamacpp")
    upstream.script("/health", whole({}))
    running = Running(auto_config(upstream))
    await running.url()
    line = (await running.said).split("\n")[1]
    assert line == f"  backend default: {upstream.url} (llama.cpp, from its Server header)"
    running.signal()
    assert await running.task == 0


async def test_listening_does_not_wait_for_a_backend_that_hangs(upstream: Upstream) -> None:
    everywhere(upstream, [Stall()], [*PATHS, "/health"])
    port = free_port()
    began = own_time()
    running = Running(auto_config(upstream, listen=f"127.0.0.1:{port}"))
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    writer.close()
    await writer.wait_closed()
    skip(60)
    await running.url()
    assert own_time() - began < 30  # once for all questions that hang, and not before it listens
    assert "(not known until it answers; general repairs)" in await running.said
    running.signal()
    assert await running.task == 0


async def test_a_backend_that_comes_up_is_found_without_a_request(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(detect, "BACKOFF", (0.1, 0.2))
    play(upstream, "vllm")
    await upstream.refuse()
    running = Running(auto_config(upstream))
    await running.url()
    assert "(not known until it answers; general repairs)" in await running.said
    await upstream.listen()
    await until(lambda: "vLLM 0.32.0" in caplog.text)
    assert sorted(asked(upstream)) == sorted(ROUNDS[0])
    await asyncio.sleep(0.3)
    assert len(asked(upstream)) == len(ROUNDS[0])  # asked no more
    running.signal()
    assert await running.task == 0


async def test_the_background_waits_longer_each_time(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(seconds / 100)

    monkeypatch.setattr(detect, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": noted}))
    everywhere(upstream, whole({}, 503))
    proxy = await start_proxy(upstream, adapter="auto")
    detector = detector_of(proxy)
    detector.start()
    detector.start()  # the second does nothing
    await until(lambda: len(slept) > 6)
    await detector.stop()
    assert slept[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert len(asked(upstream)) <= (len(slept) + 1) * len(PATHS)


async def test_the_end_does_not_wait_for_answers(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    everywhere(upstream, [Stall()])
    proxy = await start_proxy(upstream, adapter="auto")
    detector = detector_of(proxy)
    detector.start()
    await upstream.request()
    before = asyncio.all_tasks()
    began = own_time()
    await detector.stop()
    assert own_time() - began < 30
    await asyncio.sleep(0)
    ended = [task for task in before if task.done()]
    assert len(ended) >= 2 + len(ROUNDS[0])  # the watch, the asking, its questions
    everywhere(upstream, [Pause(1), *whole({})])
    running = Running(auto_config(upstream))
    await upstream.request(len(ROUNDS[0]) + 1)
    running.signal(signal.SIGINT)
    assert await running.task == 0
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    assert not [name for name in names if "Detector" in name]
