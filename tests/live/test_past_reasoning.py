"""Past reasoning reaches a real llama.cpp's template, which shows it (tests/models/tiny.py)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.effects import CHAT, Ask
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native", "auto"])
async def test_past_reasoning_is_in_the_prompt_by_either_name(
    llama_server: str, adapter: str, stream: bool
) -> None:
    """Measured by the prompt's tokens, beside a prompt that says the same in its content."""

    async def count(word: str, said: str, **given: Any) -> int:
        tables = {
            "server": {"listen": "127.0.0.1:0"},
            "timeouts": {"probe": 300},
            "backend": [{"url": llama_server, "adapter": adapter, "past_reasoning": word}],
        }
        service = build(load(None, tables, {}))
        host, port = await service.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(service.stop)
            session = await stack.enter_async_context(ClientSession(f"http://{host}:{port}"))
            past = {"role": "assistant", "content": said, **given}
            asked: dict[str, Any] = {"messages": [USER, past, USER], "max_tokens": 3}
            answer = await Ask(session, llama_server, CHAT, stream)(**asked)
            return int(answer.body["usage"]["prompt_tokens"])

    shown = await count("auto", "<think>\nI thought\n</think>\n\nyes")
    plain = await count("auto", "yes")
    assert shown > plain
    for name in ("reasoning_content", "reasoning"):
        assert await count("auto", "yes", **{name: "I thought"}) == shown
        assert await count("drop", "yes", **{name: "I thought"}) == plain
        assert await count("reasoning", "yes", **{name: "I thought"}) == plain
        kept = await count("pass", "yes", **{name: "I thought"})
        assert kept == (shown if name == "reasoning_content" else plain)
