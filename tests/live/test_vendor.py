"""Vendors' parameters on a real llama.cpp: those that pass have their effect, the others stop here.

What reached llama.cpp it tells itself: GET /slots has the number of its last task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance import check_error
from tests.live.test_old_llamacpp import INSTALLED, old_llamacpp
from tests.models.tiny import TEXT
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

__all__ = ["old_llamacpp"]

CHAT, TEXTS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
MESSAGES = [{"role": "user", "content": "Say hello."}]
TABLES = {"server": {"listen": "127.0.0.1:0"}}
VOCABULARY = 448  # of tests/models/tiny.py, spm


class Asking:
    """Asks the proxy and, beside it, llama.cpp itself."""

    def __init__(self, session: ClientSession, direct: str, proxy: str) -> None:
        self.session = session
        self.direct = direct
        self.proxy = proxy

    async def post(self, base: str, path: str, **fields: Any) -> tuple[int, Any]:
        own: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "Hello"}
        body = {"model": "tiny", "temperature": 0, "max_tokens": 8, **own, **fields}
        async with self.session.post(base + path, json=body) as response:
            data = await response.read()
            if response.status >= 400 and base == self.proxy:
                assert check_error(data, response.status) == []
            return response.status, await response.json()

    async def said(self, path: str = CHAT, **fields: Any) -> str:
        status, answer = await self.post(self.proxy, path, **fields)
        assert status == 200, answer
        choice = answer["choices"][0]
        text: str = choice["message"]["content"] if path == CHAT else choice["text"]
        return text

    async def refused(self, path: str, **fields: Any) -> dict[str, Any]:
        status, answer = await self.post(self.proxy, path, **fields)
        assert status == 400, answer
        error: dict[str, Any] = answer["error"]
        return error

    async def tasks(self) -> int:
        """Return the last task that llama.cpp worked on; it numbers them."""
        async with self.session.get(self.direct + "/slots") as response:
            slots = await response.json()
        return max(int(slot.get("id_task", -1)) for slot in slots)


@asynccontextmanager
async def asking(direct: str, **more: Any) -> AsyncIterator[Asking]:
    backend = {"url": direct, "adapter": "llamacpp", **more}
    service = build(load(None, {**TABLES, "backend": [backend]}, {}))
    host, port = await service.start()
    async with ClientSession() as session:
        yield Asking(session, direct, f"http://{host}:{port}")
    await service.stop()


@pytest.fixture(
    params=[
        "llama_server",
        pytest.param(
            "old_llamacpp",
            marks=pytest.mark.skipif(not INSTALLED.exists(), reason="no older llama.cpp here"),
        ),
    ],
    ids=["b11549", "b7376"],
)
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Asking]:
    async with asking(str(request.getfixturevalue(request.param)), bounds="backend") as one:
        yield one


NEVER: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"logit_bias": {str(VOCABULARY): -100}}, "logit_bias"),
    (CHAT, {"logit_bias": [[99999, 5]]}, "logit_bias"),
    (TEXTS, {"logit_bias": {"99999": -100}}, "logit_bias"),
    (NATIVE, {"logit_bias": [[VOCABULARY, False]]}, "logit_bias"),
    (TEXTS, {"prompt": [1, VOCABULARY]}, "prompt"),
    (NATIVE, {"prompt": [1, 99999]}, "prompt"),
    (CHAT, {"n_discard": -1}, "n_discard"),
    (NATIVE, {"n_discard": -1}, "n_discard"),
    (CHAT, {"n_discard": 2**31 - 1}, "n_discard"),
    (CHAT, {"n_probs": 10**9}, "n_probs"),
    (CHAT, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
    (CHAT, {"repeat_last_n": 200_000_000, "repeat_penalty": 1.1}, "repeat_last_n"),
    (CHAT, {"dry_penalty_last_n": 2**31 - 1, "dry_multiplier": 0.8}, "dry_penalty_last_n"),
    (CHAT, {"max_tokens": 10**12}, "max_tokens"),
]


async def test_what_could_hurt_never_reaches_it(ask: Asking) -> None:
    assert await ask.said() == TEXT[: len(await ask.said())]
    before = await ask.tasks()
    for path, fields, param in NEVER:
        for oai_compat in (True, False):
            error = await ask.refused(path, oai_compat=oai_compat, **fields)
            assert error["param"] == param, (path, fields, error)
    assert await ask.tasks() == before
    await ask.said()
    assert await ask.tasks() > before  # so the count would have told


async def test_the_last_id_of_the_vocabulary_is_inside(ask: Asking) -> None:
    await ask.said(logit_bias={str(VOCABULARY - 1): -100})
    error = await ask.refused(CHAT, logit_bias={str(VOCABULARY): -100})
    assert f"from 0 to {VOCABULARY - 1}" in error["message"]


async def test_vendors_keys_have_their_effect(ask: Asking) -> None:
    """Hot text is scattered; each of these keys brings the greedy one back."""
    greedy = await ask.said()
    hot: dict[str, Any] = {"temperature": 50, "seed": 7, "top_k": 0, "top_p": 1, "min_p": 0}
    assert await ask.said(**hot) != greedy
    for fields in ({"top_k": 1}, {"min_p": 1.0}, {"samplers": ["top_k"], "top_k": 1}):
        for path in (CHAT, TEXTS):
            plain = await ask.said(path)
            assert await ask.said(path, **(hot | fields)) == plain, fields
    assert await ask.said(grammar='root ::= "done"') == "done"
    assert await ask.said(n_predict=1) != greedy  # llama.cpp's own limit, before max_tokens


async def test_they_have_none_where_they_are_stripped_or_rejected(llama_server: str) -> None:
    async with asking(llama_server, vendor="strip") as ask:
        assert await ask.said(grammar='root ::= "done"') == await ask.said() != "done"
    async with asking(llama_server, vendor="reject") as ask:
        error = await ask.refused(CHAT, top_k=1)
        assert (error["param"], error["code"]) == ("top_k", "unknown_parameter")


@pytest.mark.parametrize("oai_compat", [True, False])
async def test_a_text_without_end_ends_at_the_cap(llama_server: str, oai_compat: bool) -> None:
    loop = [{"role": "user", "content": "@loop"}]
    async with asking(llama_server, bounds="backend", caps={"max_tokens": 30}) as ask:
        for fields in ({}, {"n_predict": -1}, {"max_tokens": -1}):
            limits: dict[str, Any] = {"max_tokens": None, "messages": loop, **fields}
            status, answer = await ask.post(ask.proxy, CHAT, oai_compat=oai_compat, **limits)
            assert (status, answer["usage"]["completion_tokens"]) == (200, 30)
            assert answer["choices"][0]["finish_reason"] == "length"
        endless: dict[str, Any] = {"max_tokens": -1, "oai_compat": oai_compat, "ignore_eos": True}
        status, answer = await ask.post(ask.proxy, TEXTS, **endless)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 30)
