"""`recover`: what a backend leaves in the text becomes calls and reasoning, if its table has it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import MODEL, TOOL, choice, completion, end, role, say
from tests.fakes.upstream import DONE, Upstream, event, stream, whole
from tests.fold import fold
from tests.proxy.conftest import StartProxy

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TEXT = f"<think>\nHm\n</think>\n\n{CALL}"
PARTS = [role(), *(say(TEXT[at : at + 3]) for at in range(0, len(TEXT), 3)), end()]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("recover", "content", "thought", "called"),
    [
        ([], TEXT, None, False),
        (["tool_calls"], "<think>\nHm\n</think>\n\n", None, True),
        (["thinking"], CALL, "Hm", False),
        (["tool_calls", "thinking"], "", "Hm", True),
    ],
)
async def test_only_what_the_backends_table_names(
    upstream: Upstream,
    start_proxy: StartProxy,
    recover: list[str],
    content: str,
    thought: str | None,
    called: bool,
    streams: bool,
) -> None:
    given = stream(*map(event, PARTS), DONE) if streams else whole(completion(choice(TEXT)))
    upstream.script("/v1/chat/completions", given)
    proxy = await start_proxy(upstream, recover=recover)
    async with await proxy.chat(model=MODEL, tools=[TOOL], stream=streams) as response:
        data = await response.read()
    answer: dict[str, Any] = fold(data) if streams else json.loads(data)
    (found,) = answer["choices"]
    message = found["message"]
    assert (message["content"], message.get("reasoning_content")) == (content, thought)
    calls = [x["function"] for x in message.get("tool_calls", ())]
    assert calls == ([{"name": "f", "arguments": '{"a": 1}'}] if called else [])
    assert found["finish_reason"] == ("tool_calls" if called else "stop")
    counted = {
        name: value
        for name, value in (await proxy.metrics()).items()
        if "repairs_total" in name and "_recovered" in name
    }
    assert len(counted) == len(recover)


@pytest.mark.parametrize("streams", [False, True])
async def test_what_a_real_llama_cpp_leaves_in_the_text(
    llama_server: str, start_proxy: StartProxy, streams: bool
) -> None:
    """It does so where a request tells it to read neither calls nor thoughts."""
    proxy = await start_proxy(llama_server, recover=["tool_calls", "thinking"])
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    told = []
    for text in ("@tool", "@think"):
        async with await proxy.chat(
            messages=[{"role": "user", "content": text}],
            tools=[tool],
            stream=streams,
            parse_tool_calls=False,
            reasoning_format="none",
            temperature=0,
        ) as response:
            data = await response.read()
        answer: dict[str, Any] = fold(data) if streams else json.loads(data)
        told.append(answer["choices"][0])
    called, thought = told
    assert called["finish_reason"] == "tool_calls"
    assert [x["function"]["name"] for x in called["message"]["tool_calls"]] == ["get_time"]
    message = thought["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hmm, let me see.", "Yes indeed")
