"""What a stream tells while it runs: vLLM's counts so far, llama.cpp's progress in the prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.corpus import FIXTURES
from tests.fakes.upstream import DONE, Gate, Upstream, event, stream
from tests.fold import chunks_of
from tests.proxy.conftest import StartProxy
from tests.waiting import SECONDS, read_until

Json = dict[str, Any]
COUNTED = (FIXTURES / "chat/vllm/0.32.0-chat_stream_continuous_usage.sse").read_bytes()
PROGRESS = (FIXTURES / "chat/llamacpp/b11549-x_return_progress.sse").read_bytes()
OPTIONS: Json = {"include_usage": True, "continuous_usage_stats": True}
NATIVE: Json = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": -1}
STEPS: list[Json] = [{"total": 9, "cache": 0, "processed": n, "time_ms": n} for n in (4, 9)]


def told(data: bytes, key: str) -> list[Json]:
    """Return what the chunks tell under this key."""
    return [chunk[key] for chunk in chunks_of(data) if chunk.get(key) is not None]


@pytest.mark.parametrize(
    ("extensions", "settings", "more", "runs"),
    [
        ("all", {}, {}, True),
        ("known", {}, {}, False),
        ("none", {}, {}, False),
        ("all", {"vendor": "strip"}, {}, False),
        ("all", {}, {"stream_options": {"continuous_usage_stats": True}}, False),
        ("all", {}, {"n": 2, "temperature": 0}, False),
    ],
    ids=["all", "known", "none", "strip", "no usage", "choices apart"],
)
async def test_counts_come_with_each_chunk_where_that_is_asked_for(
    upstream: Upstream,
    start_proxy: StartProxy,
    extensions: str,
    settings: Json,
    more: Json,
    runs: bool,
) -> None:
    """LangChain adds them up, so `all` has to be said. Mutants: each condition left out."""
    upstream.scripts = [stream(COUNTED)]
    proxy = await start_proxy(upstream, adapter="vllm", **settings)
    headers = {"x-wellspoken-extensions": extensions}
    asked: Json = {"stream": True, "stream_options": OPTIONS, **more}
    async with await proxy.chat(headers, **asked) as response:
        counts = told(await response.read(), "usage")
    raw = told(COUNTED, "usage")
    if runs:
        repairs = response.headers.get("x-wellspoken-repairs", "")
        assert "usage_misplaced" not in repairs and "usage_repeated" not in repairs
        said = [each["completion_tokens"] for each in counts]
        assert len(said) > 1
        assert said == [each["completion_tokens"] for each in raw if each["completion_tokens"]]
    else:
        assert len(counts) == (1 if asked["stream_options"].get("include_usage") else 0)
    for request in upstream.requests:
        sent = request.json().get("stream_options", {})
        assert sent.get("continuous_usage_stats", False) is runs


async def test_counts_so_far_are_no_openai_parameter(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream, adapter="vllm", vendor="reject")
    error = await proxy.error(400, stream=True, stream_options=OPTIONS)
    assert error["param"] == "stream_options.continuous_usage_stats"
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("extensions", "asked", "comes"),
    [
        ("known", True, True),
        ("all", True, True),
        ("none", True, False),
        ("known", False, False),
    ],
)
async def test_progress_comes_before_the_first_word(
    upstream: Upstream, start_proxy: StartProxy, extensions: str, asked: bool, comes: bool
) -> None:
    """Mutants: no switch for it; the progress waiting for the first text."""
    first, end = PROGRESS.index(b'"Hello"'), Gate()
    cut = PROGRESS.rindex(b"data:", 0, first)
    upstream.scripts = [stream(PROGRESS[:cut], end, PROGRESS[cut:])]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    headers = {"x-wellspoken-extensions": extensions}
    async with await proxy.chat(headers, stream=True, return_progress=asked) as response:
        data = b""
        if comes:
            async with asyncio.timeout(SECONDS):
                awaited = len(told(PROGRESS, "prompt_progress"))
                data = await read_until(response.content.readany, b"prompt_progress", awaited)
        end.open()
        data += await response.read()
    expected = told(PROGRESS, "prompt_progress") if comes else []
    assert told(data, "prompt_progress") == expected
    roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks_of(data)]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_native_progress_comes_too(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    events = [event({**NATIVE, "prompt_progress": step}) for step in STEPS]
    last = {**NATIVE, "content": "x", "stop": True, "stop_type": "limit", "tokens_predicted": 1}
    upstream.script("/apply-template", stream(b'{"prompt": "x"}', content_type="application/json"))
    upstream.scripts = [stream(*events, event({**last, "tokens_evaluated": 9}), DONE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native")
    asked: Json = {"prompt": "x"}
    if path.endswith("/chat/completions"):
        asked = {"messages": [{"role": "user", "content": "x"}]}
    asked |= {"model": "m", "stream": True, "return_progress": True}
    async with proxy.session.post(proxy.url(path), json=asked) as response:
        assert told(await response.read(), "prompt_progress") == STEPS


async def test_progress_of_choices_asked_for_apart_waits_for_a_word(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A choice that is over gets no chunk more. Mutant: without a look at `n`."""
    upstream.scripts = [stream(PROGRESS)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await proxy.chat(stream=True, return_progress=True, n=2) as response:
        data = await response.read()
    over: set[int] = set()
    for chunk in chunks_of(data):
        for choice in chunk["choices"]:
            assert choice["index"] not in over
            if choice["finish_reason"] is not None:
                over.add(choice["index"])
    assert over == {0, 1}
