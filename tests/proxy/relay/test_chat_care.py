"""What a chat completion must not do: hold the loop for a large body, tell the backend's key."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.bench.data import Source
from tests.bench.forms import FORMS
from tests.bench.kernels import verify_body
from tests.conforming import MODEL
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_chat_body import BROKEN
from wellspoken.adapters import plain_body, translate
from wellspoken.adapters.readers import legacy
from wellspoken.proxy.relay.send import LARGE


@pytest.mark.parametrize(("size", "aside"), [(10, False), (LARGE, True)])
async def test_a_large_body_is_translated_beside_the_loop(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    aside: bool,
) -> None:
    seen: list[bool] = []
    original = translate.StreamTranslator.whole

    def noting(*arguments: Any, **named: Any) -> Any:
        seen.append(threading.current_thread() is not threading.main_thread())
        return original(*arguments, **named)

    monkeypatch.setattr(translate.StreamTranslator, "whole", noting)
    answer = json.loads(json.dumps(BROKEN))
    answer["choices"][0]["message"]["content"] = "x" * size
    upstream.scripts = [whole(answer)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        given = await response.json()
    assert given["choices"][0]["message"]["content"] == "x" * size
    assert seen == [aside]


async def test_a_large_body_with_arrays_is_translated_in_the_loop_which_breathes(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    original = legacy.entries

    def noting(*arguments: Any) -> Any:
        loop = asyncio.get_running_loop()  # there is none in a thread
        seen.append(False)
        loop.call_soon(seen.append, True)
        return original(*arguments)

    monkeypatch.setattr(plain_body, "entries", noting)
    answer, form = Source().answer(400, 20), FORMS["vllm-0.4.2"]
    upstream.scripts = [whole(json.loads(form.body(answer)))]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(logprobs=True, top_logprobs=20) as response:
        given = await response.read()
    verify_body(form, answer, given, MODEL)
    blocks = -(-400 // plain_body.BLOCK)
    assert seen == [False, True] * blocks  # between any two others had their turn


@pytest.mark.parametrize("leaves", [False, True], ids=["fails", "leaves"])
async def test_a_large_body_that_is_left_in_the_middle_holds_no_other_up(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    proxy = await start_proxy(upstream)
    large = proxy.service.state.large
    begun = asyncio.Event()

    async def wait(_: float) -> None:
        begun.set()
        await asyncio.Event().wait()

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    answer, form = Source().answer(400, 20), FORMS["vllm-0.4.2"]
    upstream.scripts = [whole(json.loads(form.body(answer)))]
    with monkeypatch.context() as patch:
        if leaves:
            patch.setattr("wellspoken.proxy.relay.answer.asyncio.sleep", wait)
            asks = asyncio.create_task(proxy.chat(logprobs=True, top_logprobs=20))
            await begun.wait()
            assert large.locked()
            asks.cancel()
        else:
            patch.setattr(plain_body, "_write", fail)
            async with await proxy.chat(logprobs=True, top_logprobs=20) as response:
                assert response.status == 500
    while large.locked():
        await asyncio.sleep(0.01)
    async with await proxy.chat(logprobs=True, top_logprobs=20) as response:
        verify_body(form, answer, await response.read(), MODEL)


SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("more", [{}, {"oai_compat": False}], ids=["translated", "untouched"])
@pytest.mark.parametrize("status", [400, 401])
async def test_a_backends_error_does_not_tell_its_key(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    more: dict[str, Any],
    status: int,
) -> None:
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    error = {"error": {"message": f"Incorrect API key provided: {SECRET}"}}
    upstream.scripts = [whole(error, status=status)]
    proxy = await start_proxy(upstream, key="env:BACKEND_KEY")
    async with await proxy.chat(stream=stream, **more) as response:
        assert SECRET not in await response.text()
        assert response.status >= 400
    assert ("Authorization", f"Bearer {SECRET}") in upstream.requests[0].headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_was_passed_on_is_the_clients(
    upstream: Upstream, start_proxy: StartProxy, stream: bool, status: int
) -> None:
    upstream.scripts = [whole({"error": {"message": "no"}}, status=status)]
    proxy = await start_proxy(upstream, auth="pass")
    async with await proxy.chat(stream=stream) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (status, "invalid_api_key")
