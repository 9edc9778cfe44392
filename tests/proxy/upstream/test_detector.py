"""Asking a backend what it is: when, how often, for how long, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.clock import own_time, skip
from tests.fakes.upstream import Cut, Gate, Script, Stall, Upstream, head, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.waiting import until
from wellspoken.adapters.servers.detection import NOTHING, ROUNDS
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.proxy.upstream import detector as detect
from wellspoken.proxy.upstream.detector import Detector
from wellspoken.proxy.upstream.target import Target

SECONDS = detect.SECONDS  # before the fixtures
PATHS = [path for paths in ROUNDS for path in paths]
CAPTURED = Path(__file__).parents[2] / "fixtures" / "detection"


def play(upstream: Upstream, name: str) -> None:
    """Answer as a captured server does, and every chat with one plain answer."""
    upstream.by_path.clear()
    for path, one in json.loads((CAPTURED / f"{name}.json").read_text())["answers"].items():
        headers = [("Server", one["server"])]
        upstream.script(path, whole(one["body"].encode(), one["status"], headers=headers))
    upstream.script(CHAT, whole(PLAIN))


def everywhere(upstream: Upstream, script: Script, paths: Iterable[str] = PATHS) -> None:
    """Answer the questions with this script, and every chat with one plain answer."""
    for path in paths:
        upstream.script(path, script)
    upstream.script(CHAT, whole(PLAIN))


def target_of(proxy: Proxy, at: int = 0) -> Target:
    return proxy.service.state.router.targets[at]


def detector_of(proxy: Proxy) -> Detector:
    detector = target_of(proxy).detector
    assert detector is not None
    return detector


def asked(upstream: Upstream) -> list[str]:
    """The paths that were asked, the chats left out."""
    return [one.target for one in upstream.requests if one.method == "GET"]


def questions() -> int:
    """Return how many questions have no answer yet."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count(Detector._get.__qualname__)


async def chat(proxy: Proxy, status: int = 200, **more: Any) -> float:
    """Chat, and return the seconds that it took (own_time)."""
    began = own_time()
    async with await proxy.chat(**more) as response:
        assert response.status == status, await response.text()
    return own_time() - began


async def test_the_first_request_finds_out(upstream: Upstream, start_proxy: StartProxy) -> None:
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto")
    target = target_of(proxy)
    assert (target.backend, target.detected) == (GENERAL, None)
    await chat(proxy, prediction={"type": "content", "content": "x"})
    assert target.backend is VLLM
    assert target.detected is not None
    assert target.detected.described == "vLLM 0.32.0, from its models' owner"
    assert sorted(asked(upstream)) == sorted(ROUNDS[0])
    sent = upstream.requests[-1]
    assert sent.target == CHAT
    assert "prediction" not in sent.json()  # which vLLM does not know: asked before it was sent
    await chat(proxy)
    assert len(asked(upstream)) == len(ROUNDS[0])


async def test_a_configured_adapter_asks_nothing(start_proxy: StartProxy) -> None:
    async with Upstream() as upstream:
        play(upstream, "vllm")
        for adapter in ("llamacpp", "openai", "llama.cpp"):
            proxy = await start_proxy(upstream, adapter=adapter)
            await chat(proxy)
            assert target_of(proxy).detected is None
        assert [one.target for one in upstream.requests] == [CHAT] * 3


async def test_auto_in_capitals_asks_too(upstream: Upstream, start_proxy: StartProxy) -> None:
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter=" Auto ")
    await chat(proxy)
    assert target_of(proxy).backend is VLLM


async def test_an_unknown_server_is_asked_everything_once(
    upstream: Upstream, start_proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    upstream.script(CHAT, whole(PLAIN))
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    await chat(proxy)
    assert sorted(asked(upstream)) == sorted(PATHS)
    assert target_of(proxy).backend is GENERAL
    assert target_of(proxy).detected is NOTHING
    lines = [line for line in caplog.messages if line.startswith("backend ")]
    assert lines == ["backend default: nothing recognised; general repairs"]


async def test_requests_at_once_share_one_asking(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    play(upstream, "vllm")
    gate = Gate()
    upstream.script("/version", [gate, *whole({"version": "0.32.0"})])
    proxy = await start_proxy(upstream, adapter="auto")
    chats = [asyncio.create_task(chat(proxy)) for _ in range(20)]
    await gate.reached.wait()
    await until(lambda: proxy.service.state.inflight == 20)
    assert CHAT not in [one.target for one in upstream.requests]  # all of them wait
    gate.open()
    await asyncio.gather(*chats)
    assert sorted(asked(upstream)) == sorted(ROUNDS[0])


async def test_a_client_that_leaves_does_not_stop_the_asking(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    play(upstream, "vllm")
    gate = Gate()
    upstream.script("/version", [gate, *whole({"version": "0.32.0"})])
    proxy = await start_proxy(upstream, adapter="auto")
    first = asyncio.create_task(chat(proxy))
    await gate.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: not proxy.service.state.inflight)
    gate.open()
    await chat(proxy)
    assert target_of(proxy).backend is VLLM
    assert len(asked(upstream)) == len(ROUNDS[0])


@pytest.mark.parametrize("probe", [100.0, 1000.0])
async def test_a_backend_that_hangs_holds_a_request_up_for_two_seconds_at_most(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    probe: float,
) -> None:
    assert SECONDS == 2.0
    monkeypatch.setattr(detect, "SECONDS", 200.0)
    monkeypatch.setattr(detect, "AGAIN", 600.0)
    everywhere(upstream, [Stall()])
    proxy = await start_proxy(upstream, adapter="auto", timeouts={"probe": probe})
    asking = asyncio.create_task(chat(proxy))
    await upstream.request(len(ROUNDS[0]) - 1)
    skip(0.8 * min(probe, detect.SECONDS))
    await asyncio.sleep(0.05)
    assert not asking.done()
    skip(0.3 * min(probe, detect.SECONDS))
    await asking
    assert target_of(proxy).backend is GENERAL
    assert target_of(proxy).detected is None
    assert await chat(proxy) < 30  # the next asking is not due yet
    assert len(asked(upstream)) == len(ROUNDS[0])
    gone = [one.closed.wait() for one in upstream.requests if one.method == "GET"]
    await asyncio.wait_for(asyncio.gather(*gone), 60)  # no connection is left waiting


async def test_a_question_that_hangs_does_not_take_the_others_answers(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    play(upstream, "vllm")
    upstream.script("/props", [Stall()])
    proxy = await start_proxy(upstream, adapter="auto")
    asking = asyncio.create_task(chat(proxy))
    await until(lambda: len(asked(upstream)) == len(ROUNDS[0]))
    await until(lambda: questions() == 1)
    skip(60)
    await asking
    assert target_of(proxy).backend is VLLM
    assert detector_of(proxy).settled


async def test_a_body_that_breaks_off_leaves_the_head_as_a_sign(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    script: Script = [head(200, length=100, headers=[("Server", "llama.cpp")]), b"{", Cut()]
    everywhere(upstream, script)
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    assert target_of(proxy).backend is LLAMACPP


async def test_an_answer_that_is_too_large_is_left_aside(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(upstream, "vllm")
    monkeypatch.setattr(detect, "LIMIT", 20)
    proxy = await start_proxy(upstream, adapter="auto")
    await chat(proxy)
    assert target_of(proxy).detected is NOTHING


async def test_redirects_are_not_followed(start_proxy: StartProxy) -> None:
    async with Upstream() as other, Upstream() as upstream:
        play(other, "vllm")
        for path in PATHS:
            to = [("Location", other.url + path)]
            upstream.script(path, whole({}, 307, headers=to))
        upstream.script(CHAT, whole(PLAIN))
        proxy = await start_proxy(upstream, adapter="auto")
        await chat(proxy)
        assert other.requests == []
        assert target_of(proxy).detected is NOTHING


async def test_the_questions_carry_the_backends_key(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKEND_KEY", "sk-1")
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto", key="env:BACKEND_KEY")
    await chat(proxy)
    keys = {one.header("Authorization") for one in upstream.requests}
    assert keys == {"Bearer sk-1"}


async def test_a_clients_key_is_not_used_for_questions(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    play(upstream, "vllm")
    proxy = await start_proxy(upstream, adapter="auto", auth="pass")
    await chat(proxy, headers={"Authorization": "Bearer client"})
    keys = {one.method: one.header("Authorization") for one in upstream.requests}
    assert keys == {"GET": None, "POST": "Bearer client"}


async def test_two_backends_are_told_apart(start_proxy: StartProxy) -> None:
    async with Upstream() as one, Upstream() as two:
        play(one, "vllm")
        play(two, "llamacpp")
        proxy = await start_proxy(
            {"name": "one", "url": one.url, "models": ["a"], "adapter": "auto"},
            {"name": "two", "url": two.url, "models": ["b"], "adapter": "auto"},
        )
        await chat(proxy, model="b")
        assert (target_of(proxy).backend, target_of(proxy, 1).backend) == (GENERAL, LLAMACPP)
        assert asked(one) == []
        await chat(proxy, model="a")
        assert (target_of(proxy).backend, target_of(proxy, 1).backend) == (VLLM, LLAMACPP)
