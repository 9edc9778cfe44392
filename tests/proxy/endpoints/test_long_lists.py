"""A backend's list of thousands of models: while it is read and named, others are answered."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import Proxy, StartProxy
from tests.waiting import SECONDS
from wellspoken.proxy.upstream import context_lengths, listing

LIST, PROPS = "/v1/models", "/props"
NAMES = [f"model-{number}" for number in range(3000)]
LONG = {"data": [{"id": name, "created": 1_700_000_000, "owned_by": "vllm"} for name in NAMES]}
SLOTS = {"default_generation_settings": {"n_ctx": 512}, "chat_template": "x" * 200_000}


def ask_within(
    monkeypatch: pytest.MonkeyPatch, proxy: Proxy, module: Any, name: str
) -> list[tuple[int, Any]]:
    """Have another client ask while a function runs; return what it was answered."""
    loop, own, function = asyncio.get_running_loop(), threading.get_ident(), getattr(module, name)
    answers: list[tuple[int, Any]] = []

    def run(*arguments: Any) -> Any:
        assert threading.get_ident() != own, "nobody could be answered"
        asked = asyncio.run_coroutine_threadsafe(proxy.get("/livez"), loop)
        answers.append(asked.result(SECONDS))
        return function(*arguments)

    monkeypatch.setattr(module, name, run)
    return answers


@pytest.mark.parametrize(
    ("module", "name"),
    [(listing, "read_models"), (listing, "_merge_models"), (context_lengths, "read_lengths")],
)
async def test_others_are_answered_meanwhile(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
) -> None:
    """Mutants: each in the loop's own thread."""
    upstream.script(LIST, whole(LONG))
    upstream.script(PROPS, whole(SLOTS))
    proxy = await start_proxy(upstream, adapter="llamacpp", aliases={"gpt-4o": NAMES[1]})
    answers = ask_within(monkeypatch, proxy, module, name)
    status, listed = await proxy.get(LIST)
    assert status == 200
    assert [model["id"] for model in listed["data"]] == ["gpt-4o", *NAMES]
    assert {model["context_length"] for model in listed["data"]} == {512}
    assert [code for code, _ in answers] == [200]


async def test_nor_does_a_request_without_a_model_hold_them_up(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.script(LIST, whole(LONG))
    proxy = await start_proxy(upstream, adapter="llamacpp", bounds="backend")
    answers = ask_within(monkeypatch, proxy, listing, "read_models")
    asked = {"prompt": [1, 2], "max_tokens": 0}
    async with proxy.session.post(proxy.url("/v1/completions"), json=asked) as response:
        assert (await response.json())["model"] == NAMES[0]
    assert [code for code, _ in answers] == [200]


@pytest.mark.parametrize("name", ["read_models", "_merge_models"])
async def test_a_short_list_needs_no_thread(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Mutant: a thread for each."""
    upstream.script(LIST, whole({"data": LONG["data"][:10]}))
    proxy = await start_proxy(upstream, adapter="vllm")
    assert ask_within(monkeypatch, proxy, listing, name) == []
    status, answer = await proxy.get(LIST)
    assert status == 500, answer
