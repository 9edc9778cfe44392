"""`n` in front of a server that nobody recognised: what it leaves out is asked for after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import Request, check_body, check_stream
from tests.conforming import MODEL, body, chunk, finish, message, role, sse
from tests.conforming_completions import MODEL as TEXT_MODEL
from tests.conforming_completions import body as completion
from tests.conforming_completions import end, piece
from tests.fakes.upstream import DONE, Cut, Script, Upstream, event, stream, whole
from tests.fold import fold, fold_completion
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from wellspoken.adapters.servers.registry import BACKENDS

Json = dict[str, Any]
COMPLETIONS = "/v1/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
REFUSED = whole({"error": {"message": "n must be 1", "type": "invalid_request_error"}}, 400)


def choice(index: int, text: str) -> Json:
    return {"index": index, "message": message(text), "logprobs": None, "finish_reason": "stop"}


def answer(*texts: str) -> Script:
    choices = [choice(index, text) for index, text in enumerate(texts)]
    return whole(body(*choices, usage={**USAGE, "completion_tokens": 2 * len(texts)}))


def streamed(*texts: str) -> Script:
    chunks: list[Any] = []
    for index, text in enumerate(texts):
        chunks += [role(index), chunk({"content": text}, index), finish("stop", index)]
    return stream(sse([*chunks, {**chunk({}), "choices": [], "usage": USAGE}]))


async def asked(proxy: Proxy, **more: Any) -> Json:
    """Return the answer's body, also of a stream, whose form is checked on the way."""
    streams = bool(more.get("stream"))
    async with await proxy.chat(**more) as response:
        data = await response.read()
        assert response.status == 200, data
    request = Request(model=MODEL, n=more.get("n", 1), include_usage=streams)
    assert (check_stream if streams else check_body)(data, request) == []
    return fold(data) if streams else json.loads(data)


def texts(found: Json) -> list[str]:
    assert [one["index"] for one in found["choices"]] == list(range(len(found["choices"])))
    return [one["message"]["content"] for one in found["choices"]]


STREAM: Json = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_ignores_n(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    upstream.script(CHAT, *(make(text) for text in ("a", "b", "c")))
    proxy = await start_proxy(upstream, adapter="general")
    found = await asked(proxy, n=3, seed=7, **more)
    assert sorted(texts(found)) == ["a", "b", "c"] and texts(found)[0] == "a"
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    sent = [one.json() for one in upstream.requests]
    assert [(one["n"], one["seed"]) for one in sent] == [(3, 7), (1, 8), (1, 9)]
    scraped = await proxy.metrics()
    assert scraped['wellspoken_repairs_total{backend="default",rule="n_ignored"}'] == 1
    assert scraped['wellspoken_usage_source_total{backend="default",source="backend"}'] == 1


@pytest.mark.parametrize("streams", [False, True])
async def test_what_was_seen_is_remembered(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    upstream.script(CHAT, make("x"))
    proxy = await start_proxy(upstream, adapter="general")
    for _ in range(2):
        assert texts(await asked(proxy, n=2, **more)) == ["x", "x"]
    assert [one.json()["n"] for one in upstream.requests] == [2, 1, 1, 1]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_heeds_n_is_asked_once(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    upstream.script(CHAT, make("a", "b"))
    proxy = await start_proxy(upstream, adapter="general")
    for number in (1, 2):
        assert texts(await asked(proxy, n=2, **more)) == ["a", "b"]
        assert len(upstream.requests) == number


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_gives_some_is_asked_for_the_others(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    upstream.script(CHAT, make("a", "b"), make("c"))
    proxy = await start_proxy(upstream, adapter="general")
    assert texts(await asked(proxy, n=3, **more)) == ["a", "b", "c"]
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("streams", [False, True])
async def test_a_server_that_refuses_n(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    upstream.script(CHAT, REFUSED, make("a"))
    proxy = await start_proxy(upstream, adapter="general")
    found = await asked(proxy, n=2, **more)
    assert texts(found) == ["a", "a"] and found["usage"]["prompt_tokens"] == 3
    scraped = await proxy.metrics()
    assert scraped['wellspoken_repairs_total{backend="default",rule="n_refused"}'] == 1
    await asked(proxy, n=2, **more)
    assert [one.json()["n"] for one in upstream.requests] == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_for_another_reason_is_told(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, REFUSED)
    proxy = await start_proxy(upstream, adapter="general")
    error = await proxy.error(400, n=2, **(STREAM if streams else {}))
    assert error["message"] == "n must be 1"


async def test_a_failure_of_the_rest_fails_the_answer(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, answer("a"), [Cut()])
    proxy = await start_proxy(upstream, adapter="general")
    error = await proxy.error(502, n=2)
    assert error["type"] == "server_error"
    assert not proxy.service.state.router.targets[0].lone


async def test_a_failure_of_the_rest_ends_the_stream(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, streamed("a"), REFUSED)
    proxy = await start_proxy(upstream, adapter="general")
    async with await proxy.chat(n=2, **STREAM) as response:
        data = await response.read()
    assert b'"error":{"message":"n must be 1"' in data and b"[DONE]" not in data


@pytest.mark.parametrize("streams", [False, True])
async def test_a_completion_of_a_server_that_ignores_n(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    def said(text: str) -> Script:
        if streams:
            return stream(event(piece(text)), event(end()), event(counted), DONE)
        return whole(completion({**completion()["choices"][0], "text": text}, usage=USAGE))

    counted = {**piece(""), "choices": [], "usage": USAGE}
    upstream.script(COMPLETIONS, said("a"), said("b"), said("c"))
    proxy = await start_proxy(upstream, adapter="general")
    given = {"model": TEXT_MODEL, "prompt": "Hi", "n": 3, "seed": 1}
    for _ in range(2):
        data = await _posted(proxy, {**given, **(STREAM if streams else {})})
        found = fold_completion(data) if streams else json.loads(data)
        assert [one["index"] for one in found["choices"]] == [0, 1, 2]
        assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    bodies = [request.json() for request in upstream.requests]
    sent = [(one.get("n"), one["seed"]) for one in bodies]
    # The rest is sent at once; of the second answer all is.
    assert [sent[0], *sorted(sent[1:3])] == [(3, 1), (1, 2), (1, 3)]
    assert sorted(sent[3:]) == [(1, 1), (1, 2), (1, 3)]


async def test_several_prompts_go_one_by_one(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Ollama and mlx-lm take one alone; others answer the first, which would go unseen."""
    upstream.script(COMPLETIONS, whole(completion(usage=USAGE)))
    proxy = await start_proxy(upstream, adapter="general")
    for given, count in (({}, 2), ({"n": 2}, 4)):
        upstream.requests.clear()
        data = await _posted(proxy, {"model": TEXT_MODEL, "prompt": ["a", "b"], **given})
        assert [one["index"] for one in json.loads(data)["choices"]] == list(range(count))
        sent = [one.json() for one in upstream.requests]
        assert sorted(one["prompt"] for one in sent) == sorted("ab" * (count // 2))
        assert {one.get("n", 1) for one in sent} == {1}


@pytest.mark.parametrize("adapter", ["general", "tgi", "llamacpp"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_choice_that_was_not_asked_for_is_no_part_of_another(
    streams: bool, adapter: str, upstream: Upstream, start_proxy: StartProxy
) -> None:
    make, more = (streamed, STREAM) if streams else (answer, {})
    refusals = [REFUSED] if adapter == "general" else []
    upstream.script(CHAT, *refusals, make("a", "X"))
    proxy = await start_proxy(upstream, adapter=adapter)
    assert texts(await asked(proxy, n=2, **more)) == ["a", "a"]
    scraped = await proxy.metrics()
    assert scraped['wellspoken_repairs_total{backend="default",rule="choice_unasked"}'] == 1


async def test_the_last_seed_has_a_next_one(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, answer("a"))
    proxy = await start_proxy(upstream, adapter="general")
    await asked(proxy, n=2, seed=2**63 - 1)
    assert [one.json()["seed"] for one in upstream.requests] == [2**63 - 1, 0]


async def _posted(proxy: Proxy, given: Json) -> bytes:
    async with proxy.session.post(proxy.url(COMPLETIONS), json=given) as response:
        data = await response.read()
    assert response.status == 200, data
    return data


@pytest.mark.parametrize("streams", [False, True])
async def test_a_key_refused_after_the_first_answer_does_not_forget_its_repairs(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    refused = whole({"error": {"message": "no"}}, status=401)
    first = sse([role(0), chunk({"content": "a"}, 0), finish("eos_token", 0)])
    given = {**choice(0, "a"), "finish_reason": "eos_token"}
    upstream.script(CHAT, stream(first) if streams else whole(body(given, usage=USAGE)), refused)
    proxy = await start_proxy(upstream, adapter="general", auth="pass")
    explain = {"x-wellspoken-explain": "1"}
    async with await proxy.chat(n=2, stream=streams, headers=explain) as response:
        text = await response.text()
        assert response.status == (200 if streams else 401)
        assert "invalid_api_key" in text
        named = text if streams else response.headers["x-wellspoken-repairs"]
        assert "finish_reason_eos" in named
    scraped = await proxy.metrics()
    assert (
        scraped['wellspoken_repairs_total{backend="default",rule="finish_reason_eos_token"}'] == 1
    )


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("adapter", sorted(BACKENDS.keys() - {"llamacpp-native"}))  # one by one
async def test_no_adapter_gives_fewer_choices_without_a_word(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, path: str, streams: bool
) -> None:
    """A server that is said to heed `n` and does not is asked choice by choice the next time."""
    gave = completion(usage=USAGE) if path == COMPLETIONS else body(choice(0, "a"), usage=USAGE)
    single: Script = whole(gave)
    if streams:
        single = stream(event(piece("a")), event(end()), DONE)
        single = streamed("a") if path == CHAT else single
    upstream.scripts = [single] * 8
    proxy = await start_proxy(upstream, adapter=adapter)
    given: Json = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": MESSAGES}
    wanted = {"model": MODEL, "n": 3, "stream": streams, "temperature": 1, **given}
    data = b"choices_missing"
    for _ in range(2):
        if b"choices_missing" in data:
            async with proxy.session.post(proxy.url(path), json=wanted) as response:
                data = await response.read()
        if b'"error"' in data and b'"unsupported_endpoint"' in data:
            return
        if b'"error"' in data:
            assert b'"choices_missing"' in data
            assert b'"finish_reason":"stop"' not in data and b"[DONE]" not in data
    assert data.count(b'"finish_reason":"stop"') == 3, data


@pytest.mark.parametrize("streams", [False, True])
async def test_a_prompt_without_its_choice_fails_the_answer(
    streams: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    single = stream(event(piece("a")), event(end()), DONE) if streams else whole(completion())
    upstream.scripts = [single]
    proxy = await start_proxy(upstream, adapter="vllm")
    wanted = {"model": TEXT_MODEL, "prompt": ["Hi", "Ho"], "stream": streams, "temperature": 1}
    async with proxy.session.post(proxy.url(COMPLETIONS), json=wanted) as response:
        data = await response.read()
    assert b"1 of the 2 choices" in data and b'"finish_reason":"stop"' not in data
    assert (response.status == 502) != streams
