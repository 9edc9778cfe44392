"""Counts that the backend's answer lacks: asked for at its tokenize endpoint, never at a cost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.adapters.stages.test_usage import without_usage
from tests.answers import choice as chat_choice
from tests.answers import (
    chunk,
    completion,
    counted,
    data,
    end,
    entries,
    message,
    role,
    say,
)
from tests.conforming import MODEL
from tests.conforming_completions import body as text_body
from tests.fakes.upstream import DONE, Cut, Gate, Reset, Script, Stall, Upstream, stream, whole
from tests.fold import chunks_of
from tests.proxy.conftest import MESSAGES, Proxy, StartProxy
from tests.waiting import read_until

Json = dict[str, Any]
CHAT, TOKENIZE, TEMPLATE = "/v1/chat/completions", "/tokenize", "/apply-template"
COUNT = "/extras/tokenize/count"
OPTIONS: Json = {"stream": True, "stream_options": {"include_usage": True}}
HI = stream(data(role()), data(say("Hi")), data(end()), DONE)


class Counting(Upstream):
    """A backend whose answers have no usage, and that counts a token for each character.

    A chat's prompt is a token longer than its messages. `odd` replaces the answer to a path.
    """

    def __init__(self, *answers: Script) -> None:
        super().__init__()
        self.answers = list(answers)
        self.odd: dict[str, Script] = {}

    async def __aenter__(self) -> Counting:
        await super().__aenter__()
        return self

    def take(self, target: str) -> Script:
        if target in self.odd:
            return self.odd[target]
        asked = self.requests[-1].json() if self.requests[-1].body else {}
        if target == TEMPLATE:
            return whole({"prompt": "".join(x["content"] for x in asked["messages"]) + ">"})
        if target == COUNT:
            return whole({"count": len(asked["input"]) + 1})
        if target == TOKENIZE and "messages" in asked:
            return whole({"count": len("".join(x["content"] for x in asked["messages"])) + 1})
        if target == TOKENIZE and "prompt" in asked:
            return whole({"count": len(asked["prompt"]), "tokens": []})
        if target == TOKENIZE:
            return whole({"tokens": list(range(len(asked["content"])))})
        if target == "/v1/models":
            return whole({"data": []})
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def asked(self, *paths: str) -> list[Json]:
        return [x.json() for x in self.requests if x.target in paths]

    @property
    def helping(self) -> list[str]:
        """The paths that were asked for counts, in order."""
        return [x.target for x in self.requests if x.target in (TOKENIZE, TEMPLATE, COUNT)]


async def usage_of(proxy: Proxy, path: str = CHAT, **more: Any) -> tuple[Json, bytes]:
    """Ask, and return the usage of the body or of the stream's last chunk, and all the bytes."""
    asked = {"model": MODEL, "messages": MESSAGES, **more}
    if path != CHAT:
        del asked["messages"]
    async with proxy.session.post(proxy.url(path), json=asked) as response:
        found = await response.read()
        assert response.status == 200, found
    if not more.get("stream"):
        usage: Json = json.loads(found)["usage"]
        return usage, found
    parts = chunks_of(found)
    assert found.endswith(DONE) and [x for x in parts if x.get("usage")] == [parts[-1]]
    assert parts[-1]["choices"] == []
    usage = parts[-1]["usage"]
    return usage, found


def counts(prompt: int, completion: int, **more: Any) -> Json:
    totals = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**totals, "total_tokens": prompt + completion, **more}


async def sources(proxy: Proxy) -> dict[str, float]:
    """Return the metric of usage sources."""
    name = 'wellspoken_usage_source_total{backend="default",source="'
    found = await proxy.metrics()
    return {k[len(name) : -2]: v for k, v in found.items() if k.startswith(name)}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("adapter", "helping"),
    [("vllm", [TOKENIZE, TOKENIZE]), ("llamacpp", [TOKENIZE, TEMPLATE, TOKENIZE])],
)
async def test_a_chat_is_counted_by_the_backend(
    start_proxy: StartProxy, adapter: str, helping: list[str], streams: bool
) -> None:
    answer = HI if streams else whole(without_usage(chat_choice("Hi")))
    async with Counting(answer) as upstream:
        proxy = await start_proxy(upstream, adapter=adapter)
        usage, _ = await usage_of(proxy, **(OPTIONS if streams else {}))
        assert usage == counts(3, 3)  # "Hi" and the template's; "Hi" and the end-of-text token
        assert upstream.helping == helping
        assert await sources(proxy) == {"tokenize": 1}


async def test_vllm_is_asked_with_the_chats_own_messages_and_model(
    start_proxy: StartProxy,
) -> None:
    async with Counting(HI) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm", upstream_model="org/model")
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        await usage_of(proxy, **OPTIONS, tools=tools, temperature=0)
        text, chat = upstream.asked(TOKENIZE)
        assert text == {"model": "org/model", "prompt": "Hi", "add_special_tokens": False}
        assert chat == {"model": "org/model", "messages": MESSAGES, "tools": tools}


async def test_what_the_backend_tells_is_not_asked_for(start_proxy: StartProxy) -> None:
    async with Counting(whole(completion()), HI) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        assert (await usage_of(proxy))[0] == counts(5, 2)
        async with await proxy.chat(stream=True) as response:
            assert b"usage" not in await response.read()
        assert upstream.helping == []
        assert await sources(proxy) == {"backend": 1, "estimate": 1}


async def test_a_stream_that_just_ends_is_counted(start_proxy: StartProxy) -> None:
    async with Counting(stream(data(role()), data(say("Hi")), data(end()))) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        assert (await usage_of(proxy, **OPTIONS))[0] == counts(3, 3)


async def test_only_the_count_that_is_missing_is_asked_for(start_proxy: StartProxy) -> None:
    given = {**without_usage(chat_choice("Hi")), "usage": {"prompt_tokens": 40}}
    async with Counting(whole(given)) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        assert (await usage_of(proxy))[0] == counts(40, 3)
        assert [x.get("prompt") for x in upstream.asked(TOKENIZE)] == ["Hi"]


async def test_a_stream_of_llama_cpp_python_is_counted_without_the_tokens_around_it(
    start_proxy: StartProxy,
) -> None:
    async with Counting(HI) as upstream:
        proxy = await start_proxy(upstream, adapter="llama-cpp-python")
        usage, _ = await usage_of(proxy, **OPTIONS)
        assert usage == counts(1, 2)  # it has no template to ask, so the prompt is estimated
        assert [x["input"] for x in upstream.asked(COUNT)] == ["Hi", ""]
        assert await sources(proxy) == {"estimate": 1}


async def test_a_count_ends_no_other_clients_answer(start_proxy: StartProxy) -> None:
    """llama-cpp-python stops a stream for any other request."""
    gate = Gate()
    slow = stream(data(role()), gate, data(say("Yo")), data(end()), DONE)
    async with Counting(slow, HI) as upstream:
        proxy = await start_proxy(upstream, adapter="llama-cpp-python")
        other = asyncio.create_task(usage_of(proxy, **OPTIONS))
        await gate.reached.wait()
        assert (await usage_of(proxy, **OPTIONS))[0] == counts(1, 1)
        assert upstream.helping == []
        gate.open()
        assert (await other)[0] == counts(1, 2)
        assert upstream.helping == [COUNT, COUNT]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("prompt", "size"), [("Hey", 3), (["Hey", "you!"], 7), ([[7, 8], [9]], 3), ([7, 8], 2)]
)
async def test_a_completion_is_counted_by_the_backend(
    start_proxy: StartProxy, prompt: Any, size: int, streams: bool
) -> None:
    n = 2 if size in (7, 3) and isinstance(prompt[0], list | str) and len(prompt) == 2 else 1
    only = [{**text_body()["choices"][0], "index": x, "text": "Yes"} for x in range(n)]
    answer = {k: v for k, v in text_body().items() if k != "usage"} | {"choices": only}
    parts = [{**answer, "choices": [x]} for x in only]
    given = stream(*map(data, parts), DONE) if streams else whole(answer)
    async with Counting(given) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        more = OPTIONS if streams else {}
        usage, _ = await usage_of(proxy, "/v1/completions", prompt=prompt, **more)
        assert usage == counts(size, 4 * n)
        assert await sources(proxy) == {"tokenize": 1}


@pytest.mark.parametrize("streams", [False, True])
async def test_several_answers_count_the_prompt_once(
    start_proxy: StartProxy, streams: bool
) -> None:
    texts = ("a", "bb", "ccc")
    answers = [
        stream(data(role()), data(say(x)), data(end()), DONE)
        if streams
        else whole(without_usage(chat_choice(x)))
        for x in texts
    ]
    async with Counting(*answers) as upstream:
        proxy = await start_proxy(upstream, adapter="llamacpp")
        usage, _ = await usage_of(proxy, n=3, **(OPTIONS if streams else {}))
        assert usage == counts(3, 1 + 2 + 3 + 3)
        assert len(upstream.asked(TEMPLATE)) == 1
        assert [x["content"] for x in upstream.asked(TOKENIZE)].count("Hi>") == 1
        assert await sources(proxy) == {"tokenize": 1}


async def test_a_stream_that_is_made_from_a_body_is_counted(start_proxy: StartProxy) -> None:
    async with Counting(whole(without_usage(chat_choice("Hi")))) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        assert (await usage_of(proxy, **OPTIONS))[0] == counts(3, 3)


@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_whose_stop_is_enforced_is_counted(
    start_proxy: StartProxy, streams: bool
) -> None:
    """The backend is asked for a stream and cut off; its own counts came with no chunk."""
    parts = [data(say(x, logprobs=entries(x))) for x in "ab.cd"]
    async with Counting(stream(data(role()), *parts, data(end()), DONE)) as upstream:
        proxy = await start_proxy(upstream, adapter="llamacpp")
        more = OPTIONS if streams else {}
        usage, _ = await usage_of(proxy, logprobs=True, stop=["."], **more)
        assert usage == counts(3, 3)
        assert await sources(proxy) == {"tokenize": 1}


@pytest.mark.parametrize("streams", [False, True])
async def test_reasoning_is_counted_beside_the_backends_totals(
    start_proxy: StartProxy, streams: bool
) -> None:
    part = message("Hi", reasoning_content="Hm.")
    thought = chunk({"reasoning_content": "Hm."})
    answer = whole(completion(chat_choice(message=part)))
    if streams:
        last = counted(completion_tokens=9, total_tokens=14)
        parts = [{**x, "usage": None} for x in (role(), thought, say("Hi"), end())]
        answer = stream(*map(data, [*parts, last]), DONE)
    async with Counting(answer) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        usage, _ = await usage_of(proxy, **(OPTIONS if streams else {}))
        known = {"completion_tokens_details": {"reasoning_tokens": 3}}
        assert usage == ({**counts(5, 9), **known} if streams else counts(5, 2))
        assert [x["prompt"] for x in upstream.asked(TOKENIZE)] == ["Hm."]
        assert await sources(proxy) == {"backend": 1}


@pytest.mark.parametrize(
    "broken",
    [
        whole({"error": "no"}, status=500),
        whole({"detail": "Not Found"}, status=404),
        whole({"detail": "no"}, status=401),
        whole({}),
        whole(b"<html>", content_type="text/html"),
        [b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", Cut()],
        [Reset()],
        [Stall()],
        whole(b"[" + b"1," * 40_000 + b"1]"),
    ],
    ids=["500", "404", "401", "shape", "html", "cut", "reset", "silence", "too much for its text"],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_an_answer_never_fails_for_a_count(
    start_proxy: StartProxy, broken: Script, streams: bool
) -> None:
    answer = HI if streams else whole(without_usage(chat_choice("Hi")))
    async with Counting(answer) as upstream:
        upstream.odd[TOKENIZE] = broken
        proxy = await start_proxy(upstream, adapter="vllm", timeouts={"probe": 0.2})
        usage, found = await usage_of(proxy, **(OPTIONS if streams else {}))
        assert usage == counts(1, 1) and b"Hi" in found
        assert await sources(proxy) == {"estimate": 1}


async def test_an_endpoint_that_is_not_there_is_asked_once(start_proxy: StartProxy) -> None:
    two = without_usage(chat_choice("Hi"), chat_choice("you", index=1))
    async with Counting(whole(two)) as upstream:
        upstream.odd[TOKENIZE] = whole({"detail": "Not Found"}, status=404)
        proxy = await start_proxy(upstream, adapter="vllm")
        await usage_of(proxy, n=2)
        assert upstream.helping == [TOKENIZE]


async def test_a_picture_is_no_text_to_count(start_proxy: StartProxy) -> None:
    seen = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    async with Counting(HI) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        messages = [{"role": "user", "content": seen}]
        usage, _ = await usage_of(proxy, messages=messages, **OPTIONS)
        assert usage["completion_tokens"] == 3
        assert len(upstream.asked(TOKENIZE)) == 1
        assert await sources(proxy) == {"estimate": 1}


async def test_the_text_does_not_wait_for_the_count(start_proxy: StartProxy) -> None:
    gate = Gate()
    async with Counting(HI) as upstream:
        upstream.odd[TOKENIZE] = [gate, *whole({"count": 7})]
        proxy = await start_proxy(upstream, adapter="vllm")
        async with await proxy.chat(**OPTIONS) as response:
            found = await read_until(response.content.readany, b'"content":"Hi"')
            await gate.reached.wait()
            assert b"prompt_tokens" not in found
            gate.open()
            found = await response.read()
        assert b'"prompt_tokens":7' in found


@pytest.mark.parametrize(
    "last", [data({"error": {"message": "no", "code": 500}}), data(chunk({}, "abort"))]
)
async def test_a_failed_answer_is_not_counted(start_proxy: StartProxy, last: bytes) -> None:
    async with Counting(stream(data(role()), data(say("Hi")), last, DONE)) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        async with await proxy.chat(**OPTIONS) as response:
            assert b'"error"' in await response.read()
        assert upstream.helping == []


async def test_one_failed_answer_of_several_ends_the_counting_of_another(
    start_proxy: StartProxy,
) -> None:
    gate, failing = Gate(), Gate()
    failed = stream(data(role()), failing, data({"error": {"message": "no", "code": 500}}))
    async with Counting(HI, failed) as upstream:
        upstream.odd[TOKENIZE] = [gate, Stall()]
        proxy = await start_proxy(upstream, adapter="llamacpp", timeouts={"probe": 300})
        async with await proxy.chat(n=2, **OPTIONS) as response:
            await gate.reached.wait()
            failing.open()
            async with asyncio.timeout(60):
                assert b'"error"' in await response.read()
        [question] = [x for x in upstream.requests if x.target == TOKENIZE]
        await asyncio.wait_for(question.closed.wait(), 60)
        assert question.by_peer


async def test_a_client_that_leaves_ends_the_counting(start_proxy: StartProxy) -> None:
    gate = Gate()
    async with Counting(HI) as upstream:
        upstream.odd[TOKENIZE] = [gate, Stall()]
        proxy = await start_proxy(upstream, adapter="vllm", timeouts={"probe": 300})
        response = await proxy.chat(**OPTIONS)
        await gate.reached.wait()
        response.close()
        [question] = [x for x in upstream.requests if x.target == TOKENIZE]
        await asyncio.wait_for(question.closed.wait(), 60)
        assert question.by_peer


@pytest.mark.parametrize(
    ("adapter", "prompt", "size", "source"),
    [
        ("vllm", "Hello", 5, "tokenize"),
        ("llamacpp", "Hello", 5, "tokenize"),
        ("vllm", [5, 6], 2, "tokens"),
        ("furiosa", "Hello", 2, "estimate"),
    ],
)
async def test_who_counted_the_prompt_of_no_answer_is_told(
    start_proxy: StartProxy, adapter: str, prompt: Any, size: int, source: str
) -> None:
    async with Counting(HI) as upstream:
        proxy = await start_proxy(upstream, adapter=adapter)
        usage, _ = await usage_of(proxy, "/v1/completions", prompt=prompt, max_tokens=0)
        assert usage == counts(size, 0)
        assert await sources(proxy) == {source: 1}


async def test_the_sources_are_those_of_the_metric(start_proxy: StartProxy) -> None:
    async with Counting(HI) as upstream:
        proxy = await start_proxy(upstream, adapter="vllm")
        await usage_of(proxy, **OPTIONS)
        upstream.odd[TOKENIZE] = whole({}, status=404)
        await usage_of(proxy, **OPTIONS)
        assert await sources(proxy) == {"tokenize": 1, "estimate": 1}
