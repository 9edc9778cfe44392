"""Vendors' parameters, caps and token ids, through the proxy in front of a scripted upstream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientResponse

from tests.clock import own_time
from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Pause, Stall, Upstream, event, head, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_completions import EVENTS
from tests.proxy.endpoints.test_completions import PLAIN as TEXT
from tests.waiting import until
from wellspoken.proxy.upstream import memory
from wellspoken.proxy.upstream.vocabulary_size import read_sizes

Json = dict[str, Any]
TEXTS, MODELS = "/v1/completions", "/v1/models"
BIAS = {"448": -100}


def models(size: int = 448, name: str = MODEL) -> Json:
    """What llama.cpp b11549 answers to GET /v1/models, cut to the keys that are read."""
    return {"object": "list", "data": [{"id": name, "aliases": [name], "meta": {"n_vocab": size}}]}


@pytest.fixture
def answering(upstream: Upstream) -> Upstream:
    upstream.script(CHAT, whole(PLAIN))
    upstream.script(TEXTS, whole(TEXT))
    upstream.script(MODELS, whole(models()))
    return upstream


async def post(proxy: Proxy, path: str, **fields: Any) -> ClientResponse:
    own: Json = {"messages": MESSAGES} if path == CHAT else {"prompt": "Hi"}
    return await proxy.session.post(proxy.url(path), json={"model": MODEL, **own, **fields})


async def refused(proxy: Proxy, path: str, **fields: Any) -> Json:
    async with await post(proxy, path, **fields) as response:
        text = await response.text()
        assert response.status == 400, text
        return envelope(text)


async def accepted(proxy: Proxy, path: str, **fields: Any) -> ClientResponse:
    async with await post(proxy, path, **fields) as response:
        assert response.status == 200, await response.text()
        return response


def last(upstream: Upstream) -> Json:
    sent: Json = upstream.requests[-1].json()
    return sent


def asked(upstream: Upstream) -> int:
    return sum(request.target == MODELS for request in upstream.requests)


def counted(samples: dict[str, float], outcome: str) -> float:
    labels = f'{{backend="default",outcome="{outcome}"}}'
    return samples.get(f"wellspoken_vendor_parameters_total{labels}", 0)


@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("oai_compat", [True, False])
async def test_pass_forwards_vendors_keys_byte_for_byte(
    answering: Upstream, start_proxy: StartProxy, path: str, oai_compat: bool
) -> None:
    proxy = await start_proxy(answering)
    odd = b'"top_k":4e1 , "min_p": 0.050,"x":{"b":1, "a":[ ]}'
    own = b'"messages":[{"role":"user","content":"Hi"}]' if path == CHAT else b'"prompt":"Hi"'
    body = b'{"model":"m",%b,%b,"oai_compat":%b}' % (own, odd, json.dumps(oai_compat).encode())
    kind = {"Content-Type": "application/json"}
    async with proxy.session.post(proxy.url(path), data=body, headers=kind) as response:
        assert response.status == 200
        assert "x-wellspoken-stripped" not in response.headers
    for value in (b'"top_k":4e1', b'"min_p":0.050', b'"x":{"b":1, "a":[ ]}'):
        assert value in answering.requests[-1].body
    assert counted(await proxy.metrics(), "passed") == 3


@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("oai_compat", [True, False])
@pytest.mark.parametrize("wants_stream", [True, False])
async def test_strip_tells_what_it_took(
    answering: Upstream,
    start_proxy: StartProxy,
    path: str,
    oai_compat: bool,
    wants_stream: bool,
) -> None:
    if wants_stream:
        answering.script(CHAT, stream(event(_chunk()) + DONE))
        answering.script(TEXTS, stream(EVENTS))
    proxy = await start_proxy(answering, vendor="strip")
    odd = {"top_k": 40, "seed": 1, "min_p": 0.05, "a b\r\nx: y": 1, "é": 1}
    response = await accepted(proxy, path, stream=wants_stream, oai_compat=oai_compat, **odd)
    assert response.headers["x-wellspoken-stripped"] == "top_k, min_p, _other"
    assert "x" not in response.headers
    assert last(answering)["seed"] == 1
    assert not {"top_k", "min_p", "é", "a b\r\nx: y"} & last(answering).keys()
    assert counted(await proxy.metrics(), "stripped") == 4
    response = await accepted(proxy, path, stream=wants_stream, **{f"k{n}": n for n in range(99)})
    assert response.headers["x-wellspoken-stripped"].endswith("k30, k31, ...")


def _chunk() -> Json:
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    return {"id": "chatcmpl-12345678", "object": "chat.completion.chunk", "created": 1700000000,
            "model": MODEL, "choices": [choice]}  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("oai_compat", [True, False])
async def test_reject_answers_as_openai(
    answering: Upstream, start_proxy: StartProxy, path: str, oai_compat: bool
) -> None:
    proxy = await start_proxy(answering, vendor="reject")
    error = await refused(proxy, path, seed=1, top_k=40, oai_compat=oai_compat)
    assert (error["param"], error["code"]) == ("top_k", "unknown_parameter")
    assert answering.requests == []
    assert counted(await proxy.metrics(), "rejected") == 1
    await accepted(proxy, path, seed=1, oai_compat=oai_compat)


OVER: list[Json] = [
    {"n_discard": -1},
    {"n_probs": 10**9},
    {"n_probs": "many"},
    {"prompt_logprobs": -1},
    {"prompt_logprobs": True},
    {"repeat_last_n": 2**31 - 1},
    {"n_cmpl": 10**6},
    {"n_predict": 10**12},
    {"chat_template": "{{ 1 }}"},
    {"stop_token_ids": [2**31]},
    {"logit_bias": {"4294967301": 5}},
]


@pytest.mark.parametrize("path", [CHAT, TEXTS])
@pytest.mark.parametrize("bounds", ["openai", "backend"])
@pytest.mark.parametrize("adapter", ["openai", "llamacpp", "vllm"])
async def test_what_is_over_a_cap_never_reaches_the_backend(
    answering: Upstream, start_proxy: StartProxy, path: str, bounds: str, adapter: str
) -> None:
    proxy = await start_proxy(answering, bounds=bounds, adapter=adapter)
    for fields in OVER:
        for oai_compat in (True, False):
            error = await refused(proxy, path, oai_compat=oai_compat, **fields)
            assert error["param"] in fields
    assert [request for request in answering.requests if request.method == "POST"] == []
    assert counted(await proxy.metrics(), "capped") == 2 * len(OVER)


async def test_openais_own_keys_are_capped_where_vendors_are_stripped(
    answering: Upstream, start_proxy: StartProxy
) -> None:
    caps = {"n": 2, "max_tokens": 50, "logit_bias": 1}
    proxy = await start_proxy(answering, vendor="strip", caps=caps)
    for fields in ({"n": 3}, {"max_tokens": 51}, {"logit_bias": {"1": 1, "2": 1}}):
        assert (await refused(proxy, CHAT, **fields))["param"] in fields
    await accepted(proxy, CHAT, n_discard=-1, n_predict=-1)
    assert last(answering)["max_tokens"] == 50
    assert not {"n_discard", "n_predict"} & last(answering).keys()
    await accepted(proxy, CHAT, oai_compat=False)
    assert last(answering)["max_tokens"] == 50


async def test_ids_outside_the_vocabulary_that_llama_cpp_tells(
    answering: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(answering, adapter="llamacpp", bounds="backend")
    outside: list[tuple[str, Json]] = [
        (CHAT, {"logit_bias": BIAS}),
        (CHAT, {"logit_bias": [[448, 1]], "oai_compat": False}),
        (CHAT, {"stop_token_ids": [448]}),
        (TEXTS, {"prompt": [5, 448]}),
        (TEXTS, {"logit_bias": BIAS}),
    ]
    for path, fields in outside:
        error = await refused(proxy, path, **fields)
        assert (error["param"], error["code"]) == (next(iter(fields)), "invalid_value")
        assert "448 is not a token id" in error["message"] and "0 to 447" in error["message"]
    assert [request.target for request in answering.requests] == [MODELS]
    await accepted(proxy, CHAT, logit_bias={"447": -100})
    assert asked(answering) == 1


async def test_only_a_request_with_token_ids_asks_and_only_a_server_that_tells(
    answering: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(answering, adapter="llamacpp")
    await accepted(proxy, CHAT, top_k=5)
    await accepted(proxy, TEXTS, prompt=["a", "b"])
    assert asked(answering) == 0
    other = await start_proxy(answering, adapter="vllm")
    await accepted(other, CHAT, logit_bias=BIAS)
    assert asked(answering) == 0


async def test_many_requests_at_once_ask_once(answering: Upstream, start_proxy: StartProxy) -> None:
    gate = Gate()
    answering.script(MODELS, [gate, *whole(models())])
    proxy = await start_proxy(answering, adapter="llamacpp")
    first = asyncio.create_task(refused(proxy, CHAT, logit_bias=BIAS))
    await gate.reached.wait()
    others = [asyncio.create_task(refused(proxy, CHAT, logit_bias=BIAS)) for _ in range(5)]
    first.cancel()  # its client leaves; the others still get to know
    await until(lambda: proxy.service.state.inflight == len(others))
    gate.open()
    for error in await asyncio.gather(*others):
        assert error["param"] == "logit_bias"
    assert asked(answering) == 1


@pytest.mark.parametrize(
    "answer",
    [
        whole({"detail": "Not Found"}, 404),
        whole(b"no JSON"),
        whole({"data": None}),
        whole({"data": [{"id": MODEL, "meta": {"n_vocab": 0}}]}),
        whole({"data": [{"id": MODEL, "meta": None}]}),
        whole({"data": [{"id": "x", "meta": {"n_vocab": 5}}, {"id": "y"}]}),
        whole(b'{"x":' + b"[" * 100_000),
        [Stall()],
        [head(length=2000), *[b" ", Pause(0.1)] * 1000],  # each byte in time, all of them not
    ],
)
async def test_a_server_that_does_not_tell_fails_no_request(
    answering: Upstream, start_proxy: StartProxy, answer: Any
) -> None:
    answering.script(MODELS, answer)
    proxy = await start_proxy(answering, adapter="llamacpp", timeouts={"probe": 0.5})
    began = own_time()
    for _ in range(3):
        await accepted(proxy, CHAT, logit_bias=BIAS)
    assert own_time() - began < 50  # not a hundred seconds, which all of its bytes take
    assert asked(answering) == 1
    assert "448" in json.dumps(last(answering)["logit_bias"])


async def test_the_model_that_is_asked_for_counts(
    answering: Upstream, start_proxy: StartProxy
) -> None:
    listed = [{"id": "big", "meta": {"n_vocab": 1000}}, {"id": "small", "meta": {"n_vocab": 10}}]
    answering.script(MODELS, whole({"data": listed}))
    proxy = await start_proxy(answering, adapter="llamacpp", models=["s"], aliases={"s": "small"})
    error = await refused(proxy, CHAT, model="s", logit_bias=BIAS)
    assert "0 to 9" in error["message"]
    await accepted(proxy, CHAT, model="big", logit_bias=BIAS)
    await accepted(proxy, CHAT, model="other", logit_bias=BIAS)


async def test_what_was_learned_is_forgotten_with_the_server(
    answering: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [("Server", "llama.cpp")]
    answering.script(MODELS, whole(models(), headers=headers))
    proxy = await start_proxy(answering, adapter="auto")
    await refused(proxy, CHAT, logit_bias=BIAS)
    await answering.refuse()
    async with await post(proxy, CHAT) as response:
        assert response.status == 502
    answering.script(MODELS, whole(models(1000), headers=headers))
    await answering.listen()
    target = proxy.service.state.router.targets[0]
    assert target.detector is not None
    monkeypatch.setattr(target.detector, "_again", 0.0)
    await accepted(proxy, CHAT, logit_bias=BIAS)


async def test_it_is_asked_again_after_a_while(
    answering: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await start_proxy(answering, adapter="llamacpp")
    await refused(proxy, CHAT, logit_bias=BIAS)
    answering.script(MODELS, whole(models(1000)))
    await refused(proxy, CHAT, logit_bias=BIAS)
    monkeypatch.setattr(memory, "AGAIN", 0.0)
    await accepted(proxy, CHAT, logit_bias=BIAS)


async def test_the_tokenizer_counts_where_the_server_tells_nothing(
    answering: Upstream, start_proxy: StartProxy, tmp_path: Any
) -> None:
    file = tmp_path / "tokenizer.json"
    vocab = {"<0x41>": 0, "\u2581a": 1, "b": 6}
    file.write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab, "byte_fallback": True}}))
    proxy = await start_proxy(answering, adapter="vllm", tokenizer=str(file))
    await accepted(proxy, CHAT, logit_bias={"6": 1})
    error = await refused(proxy, TEXTS, prompt=[6, 7])
    assert error["param"] == "prompt" and "7 is not a token id" in error["message"]
    assert asked(answering) == 0
    both = await start_proxy(answering, adapter="llamacpp", tokenizer=str(file))
    await accepted(both, CHAT, logit_bias={"447": 1})  # the server itself knows better


def test_sizes_are_read_by_every_name() -> None:
    data = {"id": "a", "aliases": ["b"], "meta": {"n_vocab": 7}}
    assert read_sizes(json.dumps({"data": [data]}).encode()) == {"a": 7, "b": 7, "": 7}
    two = {"data": [data, {"id": "c", "meta": {}}]}
    assert read_sizes(json.dumps(two).encode()) == {"a": 7, "b": 7}
    for odd in (b"", b"[]", b'{"data":[{"meta":{"n_vocab":"7"}}]}', b"\xff", b'{"data":{}}'):
        assert read_sizes(odd) == {}
