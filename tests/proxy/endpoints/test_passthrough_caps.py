"""What passes through, and embeddings, under the route's caps; what a hostile request gets."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from tests.fakes.upstream import LAST_CHUNK, Upstream, head, whole
from tests.proxy.conftest import Proxy, StartProxy, raw
from tests.proxy.endpoints.test_embeddings import ASKED, listed
from tests.proxy.posting import post, refused

Json = dict[str, Any]
RESPONSES, MESSAGES, EMBEDDINGS = "/v1/responses", "/v1/messages", "/v1/embeddings"
TEXT: Json = {"model": "m", "input": "Hi"}


def counted(samples: dict[str, float], outcome: str) -> float:
    labels = f'{{backend="default",outcome="{outcome}"}}'
    return samples.get(f"wellspoken_vendor_parameters_total{labels}", 0)


OVER: list[tuple[str, Any, str]] = [
    ("n_discard", -1, "n_discard"),
    ("n_probs", 10**9, "n_probs"),
    ("prompt_logprobs", -1, "prompt_logprobs"),
    ("top_logprobs", 10**6, "top_logprobs"),
    ("repeat_last_n", 2**31 - 1, "repeat_last_n"),
    ("n", 129, "n"),
    ("n", 1.0, "n"),
    ("max_output_tokens", 2**31, "max_output_tokens"),
    ("max_output_tokens", "5", "max_output_tokens"),
    ("n_predict", 10**12, "n_predict"),
    ("chat_template", "{{ 1 }}", "chat_template"),
    ("chat_template_kwargs", {"chat_template": "x"}, "chat_template_kwargs.chat_template"),
    ("prompt_embeds", "AA==", "prompt_embeds"),
    ("logit_bias", {"4294967301": 5}, "logit_bias"),
    ("logit_bias", {"4294967301 ": 5}, "logit_bias"),
    ("logit_bias", {"4_294_967_301": 5}, "logit_bias"),
    ("logit_bias", {str(key): 1 for key in range(1025)}, "logit_bias"),
    ("logit_bias", [[2**32 + 5, 1]], "logit_bias"),
    ("stop_token_ids", [2**31], "stop_token_ids"),
    ("stop_token_ids", [4294967301.0], "stop_token_ids[0]"),
    ("allowed_token_ids", [5, "4294967301"], "allowed_token_ids[1]"),
    ("prompt", [1, 2**31], "prompt"),
    ("prompt", [1, 4294967301.0], "prompt"),
    ("tokens", [[1], [-1]], "tokens"),
    ("sampling_params", {"n": 1000}, "n"),
    ("sampling_params", [{}, {"custom_logit_processor": "x"}], "custom_logit_processor"),
    ("options", {"num_predict": 2**40}, "num_predict"),
    ("MAX_OUTPUT_TOKENS", 5, "MAX_OUTPUT_TOKENS"),
    ("Model", "other", "Model"),
]


@pytest.fixture
def start_proxy(start_proxy: StartProxy) -> StartProxy:
    """Start a proxy whose backends answer /v1/responses themselves."""
    return partial(start_proxy, responses="pass")


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, "/tokenize", EMBEDDINGS])
async def test_what_is_over_a_cap_does_not_pass(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream, adapter="vllm", vendor="pass")
    for name, value, param in OVER:
        error = await refused(proxy, path, 400, {**TEXT, name: value})
        assert error["param"] == param, (name, value)
    assert upstream.requests == []
    samples = await proxy.metrics()
    assert counted(samples, "capped") + counted(samples, "rejected") == len(OVER)


@pytest.mark.parametrize(
    "more",
    [
        {"n_discard": 0, "n": 1, "max_output_tokens": 2**31 - 1, "n_predict": -1},
        {"logit_bias": {"5": 1, " word": 2}, "stop_token_ids": [5], "prompt": ["a", 5]},
        {"chat_template": None, "sampling_params": {"n": 2}, "options": 5, "tokens": "text"},
        {"input": [{"role": "user", "content": [4294967301]}]},
        {"logit_bias": None, "stop_token_ids": None, "n": None},
    ],
)
async def test_what_is_within_passes_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy, more: Json
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm")
    body = json.dumps({**TEXT, **more}).encode() + b"\n"
    async with await post(proxy, RESPONSES, body) as response:
        assert response.status == 200, await response.text()
    assert upstream.requests[0].body == body


async def test_the_route_may_allow_what_is_dangerous(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="vllm", caps={"allow": ["chat_template"]})
    async with await post(proxy, "/tokenize", {"model": "m", "chat_template": "x"}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    ("path", "key"), [(RESPONSES, "max_output_tokens"), (MESSAGES, "max_tokens")]
)
async def test_a_cap_on_the_answer_is_what_no_limit_becomes(
    upstream: Upstream, start_proxy: StartProxy, path: str, key: str
) -> None:
    upstream.scripts = [whole({})]
    proxy = await start_proxy(upstream, adapter="llamacpp", caps={"max_tokens": 50})
    for given in (b'{"model": "m" }', b'{"model": "m", "%b":null }' % key.encode()):
        async with await post(proxy, path, given) as response:
            assert response.status == 200
        assert upstream.requests[-1].json() == {"model": "m", key: 50}
    for name, value in ((key, 51), (key, -1), ("n_predict", -1)):
        assert (await refused(proxy, path, 400, {"model": "m", name: value}))["param"] == name
    within = b'{"model" : "m", "%b":7}' % key.encode()
    await (await post(proxy, path, within)).release()
    assert upstream.requests[-1].body == within
    await (await post(proxy, "/tokenize", b'{"content":"x"}')).release()
    assert upstream.requests[-1].body == b'{"content":"x"}'


async def test_the_vocabulary_that_llama_cpp_tells_bounds_what_passes(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """An id that no token has ends vLLM's engine, and is another token's at llama.cpp."""
    upstream.script("/v1/models", whole({"data": [{"id": "m", "meta": {"n_vocab": 448}}]}))
    upstream.script(EMBEDDINGS, whole(listed()))
    upstream.script("/detokenize", whole({"content": "x"}))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    for path, fields in (
        (EMBEDDINGS, {"model": "m", "input": [1, 448]}),
        (EMBEDDINGS, {"model": "m", "input": [[1], [448]], "oai_compat": False}),
        ("/detokenize", {"tokens": [448]}),
    ):
        error = await refused(proxy, path, 400, fields)
        assert "448 is not a token id" in error["message"] and "0 to 447" in error["message"]
    async with await post(proxy, "/detokenize", {"tokens": [447]}) as response:
        assert response.status == 200
    asked = [request.target for request in upstream.requests]
    assert asked == ["/v1/models", "/detokenize"]
    other = await start_proxy(upstream, adapter="llamacpp")
    await (await post(other, EMBEDDINGS, ASKED)).release()
    assert upstream.requests[-2].target == "/detokenize"  # texts ask for no vocabulary


@pytest.mark.parametrize(
    "body", [b'{"model":"m","n_discard":0,"n_discard":-1}', b'{"model":"m","mo\\u0064el":"z"}']
)
async def test_a_key_that_stands_twice_passes_no_cap_and_no_route(
    upstream: Upstream, start_proxy: StartProxy, body: bytes
) -> None:
    proxy = await start_proxy(upstream, adapter="vllm", aliases={"m": "real"})
    error = await refused(proxy, RESPONSES, 400, body)
    assert error["code"] == "invalid_json" and "twice" in error["message"]
    assert upstream.requests == []


async def test_what_is_stripped_is_over_no_cap(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream, vendor="strip")
    async with await post(proxy, EMBEDDINGS, {**ASKED, "n_discard": -1, "MODEL": "x"}) as response:
        assert response.headers["x-wellspoken-stripped"] == "n_discard, MODEL"
    assert upstream.requests[0].json() == ASKED


@pytest.mark.parametrize("vendor", ["strip", "reject"])
async def test_an_untouched_answer_changes_no_policy(
    upstream: Upstream, start_proxy: StartProxy, vendor: str
) -> None:
    upstream.scripts = [whole(listed())]
    proxy = await start_proxy(upstream, vendor=vendor)
    asked = {**ASKED, "truncate": 3, "oai_compat": False}
    async with await post(proxy, EMBEDDINGS, asked) as response:
        assert response.status == (400 if vendor == "reject" else 200)
    assert [request.json() for request in upstream.requests] == [ASKED][: vendor == "strip"]
    outcome = "rejected" if vendor == "reject" else "stripped"
    assert counted(await proxy.metrics(), outcome) == 1


async def test_an_untouched_answer_comes_from_the_path_that_was_asked(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """llama.cpp's /embeddings answers in a form of its own."""
    upstream.scripts = [whole(b"[]")]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    for path in ("/embeddings", EMBEDDINGS):
        await (await post(proxy, path, {**ASKED, "oai_compat": False})).release()
        assert upstream.requests[-1].target == path
    other = await start_proxy(upstream, adapter="vllm")
    await (await post(other, "/embeddings", {**ASKED, "oai_compat": False})).release()
    assert upstream.requests[-1].target == EMBEDDINGS


async def two_requests(proxy: Proxy, path: str) -> bytes:
    """Ask twice on one connection, the second time for its end; return all the bytes."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"oai_compat":false}'
    )
    start = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % (
        path.encode(),
        len(body),
    )
    last = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    return await raw(proxy.port, start + b"\r\n" + body + last)


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("path", [RESPONSES, "/v1/chat/completions"])
async def test_an_answer_that_has_no_body_is_not_given_the_frame_of_one(
    upstream: Upstream, start_proxy: StartProxy, status: int, kind: str, path: str
) -> None:
    """What follows its head would be read as the next answer (RFC 9112, 6.3)."""
    upstream.scripts = [[head(status, kind)]]
    proxy = await start_proxy(upstream, adapter="vllm")
    first, second = (await two_requests(proxy, path)).split(b"\r\n\r\n", 1)
    if path == RESPONSES and status == 304:  # no answer of an endpoint that passes
        assert first.startswith(b"HTTP/1.1 502 ")
        return
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert b"transfer-encoding" not in first.lower() and b"content-length" not in first.lower()
    assert second.startswith(b"HTTP/1.1 200 ") and LAST_CHUNK not in second


async def test_anthropics_clients_get_no_status_that_is_none(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({"type": "error"}, 999)]
    proxy = await start_proxy(upstream, adapter="vllm")
    await refused(proxy, MESSAGES, 502)
