"""A real llama.cpp whose counts are taken out of its answers on the way: its /tokenize tells them.

What it would have said itself is what the proxy has to say.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.fold import payloads
from tests.models.tiny import BEGIN, END
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

Json = dict[str, Any]
TOLD = ("usage", "timings", "tokens_evaluated", "tokens_predicted")
CHAT = "/v1/chat/completions"
HELPING = ("/tokenize", "/apply-template")
OPTIONS: Json = {"stream": True, "stream_options": {"include_usage": True}}
TOOL: Json = {
    "type": "function",
    "function": {"name": "get_time", "description": "", "parameters": {"type": "object"}},
}


class Between:
    """Passes requests on to llama.cpp and its answers back, without what they tell of counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[str] = []

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        body = await request.read()
        async with (
            ClientSession() as session,
            session.request(request.method, self.url + request.path_qs, data=body or None) as got,
        ):
            data, kind = await got.read(), got.content_type
        if request.path not in HELPING:
            lines = [_untold(line) for line in data.splitlines(keepends=True)]
            data = b"".join(lines)
        return web.Response(body=data, status=got.status, content_type=kind)


def _untold(line: bytes) -> bytes:
    """Return a line of a stream, or a body, without its counts."""
    head = b"data: " if line.startswith(b"data: ") else b""
    if not line[len(head) :].startswith(b"{"):
        return line
    found = json.loads(line[len(head) :])
    if found.get("choices") == []:
        return b""  # the chunk of the usage
    return head + json.dumps({k: v for k, v in found.items() if k not in TOLD}).encode() + b"\n"


@pytest.fixture
async def between(llamacpp: str) -> AsyncIterator[tuple[Between, str]]:
    """What stands between proxy and llama.cpp, and its URL."""
    handler = Between(llamacpp)
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield handler, f"http://{host}:{port}"
    await runner.cleanup()


async def post(url: str, path: str, asked: Json) -> Any:
    """Return a body, or the last chunk of a stream."""
    async with ClientSession() as session, session.post(url + path, json=asked) as response:
        data = await response.read()
        assert response.status == 200, data
    if asked.get("stream"):
        data = [x for x in payloads(data) if x != b"[DONE]"][-1]
    return json.loads(data)


async def counts(url: str, path: str, asked: Json) -> tuple[int, int]:
    """Return the counts of prompt and completion in an answer."""
    usage = (await post(url, path, asked))["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


async def proxied(between: str, adapter: str, path: str, asked: Json) -> tuple[int, int]:
    """Return what a proxy says in front of a server that tells nothing."""
    backend = [{"url": between, "adapter": adapter}]
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": backend}, {}))
    host, port = await service.start()
    try:
        return await counts(f"http://{host}:{port}", path, asked)
    finally:
        await service.stop()


async def tokens(url: str, text: str) -> list[int]:
    """Return the tokens that llama.cpp makes of a text."""
    found: list[int] = (await post(url, "/tokenize", {"content": text}))["tokens"]
    return found


def chat(*contents: str, **more: Any) -> Json:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": "tiny", "temperature": 0, "messages": messages, **more}


SYSTEM = {"role": "system", "content": "You are \u00e9 \U0001f600."}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": "o"}],
}
ASKED: dict[str, Json] = {
    "one": chat("Say hello."),
    "tools": chat("Say hello.", tools=[TOOL], tool_choice="none"),
    "several": {**chat("a", "b", "c"), "messages": [SYSTEM, *chat("Say hello.")["messages"]]},
    "parts": {**chat(), "messages": [SYSTEM, PARTS]},
}


@pytest.mark.parametrize("more", [{}, OPTIONS], ids=["body", "stream"])
@pytest.mark.parametrize(
    ("adapter", "name"),
    [("llamacpp", name) for name in ASKED]
    + [("llamacpp-native", name) for name in ASKED if name != "tools"],  # it prompts without them
)
async def test_a_chat_is_counted_as_llama_cpp_counts_it(
    llamacpp: str, between: tuple[Between, str], adapter: str, name: str, more: Json
) -> None:
    """Of a text that its own tokenizer splits as the model wrote it: one letter, six times."""
    handler, url = between
    [letter] = (await tokens(llamacpp, "o"))[-1:]
    asked = {**ASKED[name], "max_tokens": 6}
    own = await counts(llamacpp, CHAT, {**asked, "logit_bias": [[letter, 1000]]})
    found = await proxied(url, adapter, CHAT, {**asked, "logit_bias": {str(letter): 100}, **more})
    assert found == own
    assert own[1] == 6
    assert handler.asked.count("/tokenize") == 2


@pytest.mark.parametrize("more", [{}, OPTIONS], ids=["body", "stream"])
@pytest.mark.parametrize("content", ["Say hello.", "@empty", "@loop"])
async def test_the_token_that_ends_a_text_is_counted(
    llamacpp: str, between: tuple[Between, str], content: str, more: Json
) -> None:
    """The tiny model writes what its tokenizer would split otherwise: the text's split counts."""
    asked = chat(content, max_tokens=20)
    answer = await post(llamacpp, CHAT, asked)
    [choice] = answer["choices"]
    text = await tokens(llamacpp, choice["message"]["content"])
    found = await proxied(between[1], "llamacpp", CHAT, {**asked, **more})
    ended = choice["finish_reason"] == "stop"
    assert ended == (content != "@loop")
    assert found == (answer["usage"]["prompt_tokens"], len(text) + ended)
    if not text:
        assert found[1] == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("more", [{}, OPTIONS], ids=["body", "stream"])
@pytest.mark.parametrize(
    "prompt", ["Say hello.", f"{BEGIN}user\nSay hello.{END}\n", "", [1, 70, 71]], ids=repr
)
@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
async def test_a_completion_is_counted_as_llama_cpp_counts_it(
    llamacpp: str, between: tuple[Between, str], adapter: str, prompt: Any, more: Json
) -> None:
    [letter] = (await tokens(llamacpp, "o"))[-1:]
    asked = {"model": "tiny", "temperature": 0, "prompt": prompt, "max_tokens": 6}
    path = "/v1/completions"
    own = await counts(llamacpp, path, {**asked, "logit_bias": [[letter, 1000]]})
    biased = {**asked, "logit_bias": {str(letter): 100}, **more}
    assert await proxied(between[1], adapter, path, biased) == own


async def test_several_choices_count_the_prompt_once(
    llamacpp: str, between: tuple[Between, str]
) -> None:
    handler, url = between
    one = await proxied(url, "llamacpp", CHAT, chat("Say hello."))
    three = await proxied(url, "llamacpp", CHAT, chat("Say hello.", n=3))
    assert three == (one[0], 3 * one[1])
    assert handler.asked.count("/apply-template") == 2  # one for each request of the client


@pytest.mark.parametrize("more", [{}, OPTIONS], ids=["body", "stream"])
async def test_the_reasoning_is_counted(
    llamacpp: str, between: tuple[Between, str], more: Json
) -> None:
    """llama.cpp does not tell it, neither beside its totals nor without."""
    answer = await post(llamacpp, CHAT, chat("@think"))
    assert "completion_tokens_details" not in answer["usage"]
    said = answer["choices"][0]["message"]
    thought, text = [
        len(await tokens(llamacpp, said[key])) for key in ("reasoning_content", "content")
    ]
    assert thought and text
    totals = (answer["usage"]["prompt_tokens"], text + thought + 1)
    assert await proxied(between[1], "llamacpp", CHAT, chat("@think", **more)) == totals
    # the model wrote longer tokens than a split of its text has, so none may be left for the rest
    backend = [{"url": llamacpp, "adapter": "llamacpp"}]
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": backend}, {}))
    host, port = await service.start()
    try:
        asked = chat("@think", **more)
        told = (await post(f"http://{host}:{port}", CHAT, asked))["usage"]
    finally:
        await service.stop()
    made = told["completion_tokens"]
    assert made == answer["usage"]["completion_tokens"]
    known = {"reasoning_tokens": thought} if thought < made else None
    assert told.get("completion_tokens_details") == known
