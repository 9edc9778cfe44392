"""POST /v1/completions in front of a scripted upstream: what is asked, what is passed through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientResponse

from tests.conformance import check_completion_body, check_completion_stream
from tests.conforming_completions import ASKED, MODEL, PROMPT, body, end, piece
from tests.fakes.upstream import DONE, Upstream, event, stream, whole
from tests.fold import fold_completion
from tests.proxy.conftest import Proxy, StartProxy, envelope

Json = dict[str, Any]
PATH = "/v1/completions"
PLAIN = json.dumps(body(), ensure_ascii=False, separators=(",", ":")).encode()
EVENTS = event(piece("Oß")) + event(piece("!")) + event(end()) + DONE
NATIVE = {
    "index": 0,
    "content": " ok",
    "stop": True,
    "stop_type": "limit",
    "tokens_evaluated": 4,
    "tokens_predicted": 1,
}


async def post(proxy: Proxy, path: str = PATH, **more: Any) -> ClientResponse:
    """POST a completions request; a key that is None is left out."""
    fields: Json = {"model": MODEL, "prompt": PROMPT, **more}
    data = {key: value for key, value in fields.items() if value is not None}
    return await proxy.session.post(proxy.url(path), json=data)


async def refused(proxy: Proxy, path: str = PATH, status: int = 400, **more: Any) -> Json:
    """POST a request that fails; return the error object."""
    async with await post(proxy, path, **more) as response:
        text = await response.text()
        assert response.status == status, text
        return envelope(text)


async def answered(proxy: Proxy, path: str = PATH, **more: Any) -> Json:
    """POST a request that succeeds; return the body, or what the stream folds to."""
    async with await post(proxy, path, **more) as response:
        data = await response.read()
        assert response.status == 200, data
        return fold_completion(data) if more.get("stream") else json.loads(data)


@pytest.mark.parametrize("path", [PATH, "/completions", "/completion", f"{PATH}?a=b"])
async def test_a_conforming_answer_passes_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole(PLAIN), stream(EVENTS)]
    proxy = await start_proxy(upstream)
    async with await post(proxy, path) as response:
        assert await response.read() == PLAIN
        assert "x-wellspoken-repairs" not in response.headers
    async with await post(proxy, path, stream=True) as response:
        data = await response.read()
        assert response.content_type == "text/event-stream"
    assert data == EVENTS
    assert check_completion_stream(data, ASKED) == []
    assert [request.target for request in upstream.requests] == [PATH, PATH]


async def test_metrics_name_the_route(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    await answered(proxy)
    scraped = await proxy.metrics()
    labels = 'backend="default",code="200",model="_other",route="completions",stream="false"'
    assert scraped[f"wellspoken_requests_total{{{labels}}}"] == 1


@pytest.mark.parametrize(
    ("adapter", "key"),
    [
        ("openai", "max_tokens"),
        ("vllm", "max_tokens"),
        ("llamacpp", "max_tokens"),
        ("llamacpp-native", "n_predict"),
    ],
)
@pytest.mark.parametrize(
    ("more", "limit"), [({}, 16), ({"max_tokens": 7}, 7), ({"stream": True}, 16)]
)
async def test_the_backend_is_told_the_limit(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, key: str, more: Json, limit: int
) -> None:
    upstream.scripts = [whole(NATIVE if key == "n_predict" else PLAIN)]
    proxy = await start_proxy(upstream, adapter=adapter)
    await answered(proxy, **more)
    assert upstream.requests[0].json()[key] == limit


async def test_llama_cpps_own_names_of_a_request(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native")
    for path in ("/completion", "/completions"):
        await answered(proxy, path, model=None, n_predict=5, n_probs=3, top_k=4)
    await answered(proxy, "/completion", n_predict=-1)
    await answered(proxy, PATH, n_predict=5)  # of OpenAI's path they are a vendor's keys
    # Beside these its list of models was asked for: what it answers tells no model here.
    sent = [x.json() for x in upstream.requests if x.target == "/completion"]
    assert [(x.get("n_predict"), x.get("n_probs"), x.get("top_k")) for x in sent] == [
        (5, 3, 4),
        (5, 3, 4),
        (None, None, None),  # no limit is its default
        (16, None, None),
    ]


async def test_a_native_request_without_a_model_is_answered_without_one(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    assert "model" in (await refused(proxy, model=None))["message"]
    assert upstream.requests == []
    found = await answered(proxy, "/completion", model=None, n_predict=4)
    assert found["choices"][0]["text"]
    sent = upstream.requests[0].json()
    assert ("model" in sent, "n_predict" in sent, sent["max_tokens"]) == (False, False, 4)


async def test_a_native_request_without_a_model_to_one_of_two_backends(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    two = [{"name": name, "url": upstream.url, "models": [name]} for name in ("a", "b")]
    proxy = await start_proxy(*two)
    error = await refused(proxy, "/completion", model=None, status=404)
    assert error["code"] == "model_not_found"
    assert "a, b" in error["message"]


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("adapter", ["openai", "vllm", "furiosa", "llama-cpp-python"])
async def test_no_tokens_are_asked_of_nobody(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, wants_stream: bool
) -> None:
    """vLLM refuses `max_tokens: 0`, llama-cpp-python takes it for no limit.

    A backend that counts tokens is asked how many the prompt has, here in vain.
    """
    proxy = await start_proxy(upstream, adapter=adapter)
    more: Json = {"stream": True, "stream_options": {"include_usage": True}} if wants_stream else {}
    found = await answered(proxy, max_tokens=0, prompt="Hi there", n=2, **more)
    texts = [(x["index"], x["text"], x["finish_reason"]) for x in found["choices"]]
    assert texts == [(0, "", "length"), (1, "", "length")]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
    counting = {"vllm": "/tokenize", "llama-cpp-python": "/extras/tokenize/count"}
    asked = [request.target for request in upstream.requests]
    assert asked == ([counting[adapter]] if adapter in counting else [])


@pytest.mark.parametrize("adapter", ["vllm", "llamacpp", "llamacpp-native"])
async def test_token_ids_are_counted_without_a_backend(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    proxy = await start_proxy(upstream, adapter=adapter)
    found = await answered(proxy, max_tokens=0, prompt=[[5, 6, 7], [8]])
    assert found["usage"]["prompt_tokens"] == 4
    assert [request for request in upstream.requests if request.method == "POST"] == []


async def test_a_prompt_is_echoed_without_new_tokens_by_a_backend_that_can(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    answer = body({"index": 0, "text": PROMPT, "logprobs": None, "finish_reason": "length"})
    upstream.scripts = [whole(answer)]
    proxy = await start_proxy(upstream, adapter="vllm")
    found = await answered(proxy, max_tokens=0, echo=True)
    assert found["choices"][0]["text"] == PROMPT
    sent = upstream.requests[0].json()
    assert (sent["max_tokens"], sent["echo"]) == (0, True)


async def test_an_echo_alone_is_refused_where_it_would_have_no_end(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream, adapter="llama-cpp-python")
    error = await refused(proxy, max_tokens=0, echo=True)
    assert (error["param"], upstream.requests) == ("max_tokens", [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_without_the_endpoint_says_where_to_ask(
    upstream: Upstream, start_proxy: StartProxy, stream: bool
) -> None:
    proxy = await start_proxy(upstream, adapter="cortex")
    error = await refused(proxy, stream=stream)
    assert (error["code"], error["param"]) == ("unsupported_endpoint", "model")
    assert "POST /v1/chat/completions" in error["message"]
    assert (await refused(proxy, oai_compat=False))["code"] == "unsupported_endpoint"
    assert upstream.requests == []


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"max_tokens": 0}, {"stream": True}])
async def test_echo_is_refused_where_nobody_can_do_it(
    upstream: Upstream, start_proxy: StartProxy, more: Json
) -> None:
    proxy = await start_proxy(upstream, adapter="furiosa")
    error = await refused(proxy, echo=True, **more)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "echo")
    assert upstream.requests == []


@pytest.mark.parametrize("adapter", ["sglang", "llama-cpp-python", "llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_suffix_is_refused_where_it_would_be_ignored(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, stream: bool
) -> None:
    proxy = await start_proxy(upstream, adapter=adapter)
    error = await refused(proxy, suffix="end", stream=stream)
    assert (error["code"], error["param"]) == ("unsupported_parameter", "suffix")
    assert upstream.requests == []


async def test_a_suffix_goes_to_a_backend_that_knows_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, adapter="ollama")
    await answered(proxy, suffix="end")
    assert upstream.requests[0].json()["suffix"] == "end"


@pytest.mark.parametrize("path", [PATH, "/completions", "/completion"])
async def test_another_method_is_refused(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    proxy = await start_proxy(upstream)
    for method in ("GET", "PUT", "DELETE"):
        async with proxy.session.request(method, proxy.url(path)) as response:
            error = envelope(await response.text())
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            assert error["code"] == "method_not_supported"
    async with await post(proxy, f"{path}/x") as response:
        assert response.status == 404
        envelope(await response.text())
    assert upstream.requests == []


STRANGE = b'{"content" : "x", "n":1.0e3, "logprobs": NaN}\n'


@pytest.mark.parametrize(
    ("adapter", "path", "asked_at"),
    [
        ("llamacpp", "/completion", "/completion"),
        ("llamacpp", "/completions", "/completions"),
        ("llamacpp", PATH, PATH),
        ("llamacpp-native", "/completion", "/completion"),
        ("llamacpp-native", PATH, PATH),
        ("openai", "/completion", PATH),
        ("vllm", "/completions", PATH),
    ],
)
@pytest.mark.parametrize("status", [200, 207, 418, 500])
async def test_an_untouched_answer_is_the_backends_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, path: str, asked_at: str, status: int
) -> None:
    upstream.scripts = [whole(STRANGE, status=status, content_type="text/x; charset=y")]
    proxy = await start_proxy(upstream, adapter=adapter)
    more: Json = {"n": 3, "echo": True, "stop": ["a"], "logprobs": 1, "n_probs": 2}
    async with await post(proxy, path, oai_compat=False, **more) as response:
        assert (response.status, await response.read()) == (status, STRANGE)
        assert response.headers["Content-Type"] == "text/x; charset=y"
    (request,) = upstream.requests
    assert request.target == asked_at
    assert request.json() == {"model": MODEL, "prompt": PROMPT, **more}


@pytest.mark.parametrize("path", [PATH, "/completion"])
async def test_an_untouched_stream_is_the_backends_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    pieces = [b"event: x\n", b'data: {"content":"\xff"}\r\n\r\n', b"retry: 3\n\n"]
    upstream.scripts = [stream(*pieces)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, path, oai_compat=False, stream=True) as response:
        assert await response.read() == b"".join(pieces)


async def test_an_untouched_request_may_hold_a_prompt_that_only_llama_cpp_reads(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/completion", whole(STRANGE))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    mixed = [1, "a", [2, "b"]]
    async with await post(
        proxy, "/completion", model=None, prompt=mixed, oai_compat=False
    ) as response:
        assert await response.read() == STRANGE
    assert upstream.requests[-1].json() == {"prompt": mixed}
    assert (await refused(proxy, "/completion", prompt=mixed))["param"] == "prompt[1]"


async def test_one_request_where_the_backend_does_it_all(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    choices = [
        {"index": n, "text": str(n), "logprobs": None, "finish_reason": "stop"} for n in range(4)
    ]
    upstream.scripts = [whole(body(*choices))]
    proxy = await start_proxy(upstream, adapter="vllm")
    found = await answered(proxy, prompt=["a", "b"], n=2, best_of=2, seed=5)
    assert [x["text"] for x in found["choices"]] == ["0", "1", "2", "3"]
    (request,) = upstream.requests
    sent = request.json()
    assert (sent["prompt"], sent["n"], sent["seed"]) == (["a", "b"], 2, 5)
    assert "best_of" not in sent


@pytest.mark.parametrize(("adapter", "seed"), [("llamacpp", "seed"), ("llamacpp-native", "seed")])
async def test_one_request_a_choice_where_it_does_not(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, seed: str
) -> None:
    upstream.scripts = [whole(NATIVE if adapter == "llamacpp-native" else PLAIN)]
    proxy = await start_proxy(upstream, adapter=adapter)
    found = await answered(proxy, prompt=[[1, 2], [3]], n=2, seed=5)
    assert [x["index"] for x in found["choices"]] == [0, 1, 2, 3]
    sent = [request.json() for request in upstream.requests if request.method == "POST"]
    assert sorted((x["prompt"], x[seed]) for x in sent) == [
        ([1, 2], 5),
        ([1, 2], 6),
        ([3], 5),
        ([3], 6),
    ]
    assert all(x.get("n", 1) == 1 for x in sent)


async def test_best_of_asks_for_logprobs_that_the_client_does_not_get(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    def one(text: str, value: float) -> Json:
        lists: Json = {"tokens": [text], "token_logprobs": [value], "text_offset": [3]}
        lists["top_logprobs"] = [{text: value}]
        choice = {"index": 0, "text": text, "logprobs": lists, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
        return body(choice, usage=usage)

    upstream.scripts = [whole(one("worst", -9)), whole(one("best", -1)), whole(one("bad", -4))]
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await post(proxy, best_of=3, n=2) as response:
        data = await response.read()
    asked = [request.json() for request in upstream.requests]
    assert [(x["logprobs"], x["n"]) for x in asked] == [(1, 1)] * 3
    found = json.loads(data)
    assert [x["text"] for x in found["choices"]] == ["best", "bad"]
    assert [x["logprobs"] for x in found["choices"]] == [None, None]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert (await refused(proxy, best_of=3, stream=True))["param"] == "best_of"


async def test_the_limit_of_open_requests_counts_completions(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, limits={"inflight": 1})
    await answered(proxy)
    proxy.service.state.slots.held += 1
    async with await post(proxy) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    proxy.service.state.slots.held -= 1
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"echo": True, "logprobs": 1}])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_not_ready_says_when_to_ask_again(
    start_proxy: StartProxy, more: Json, stream: bool
) -> None:
    proxy = await start_proxy("http://127.0.0.1:1", adapter="llamacpp")
    (target,) = proxy.service.state.router.targets
    target.upstream = None
    async with await post(proxy, stream=stream, **more) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert envelope(await response.text())["code"] == "engine_not_ready"


@pytest.mark.parametrize("stop", ["\n\nQ:", ["Q:", "x"]])
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_stop_string_in_an_echoed_prompt_cuts_nothing(
    upstream: Upstream, start_proxy: StartProxy, stop: Any, wants_stream: bool
) -> None:
    prompt = "Q: 1\n\nQ: 2\nA:"
    parts = [prompt[:6], prompt[6:] + " yes\n\n", "Q: 3"]
    if wants_stream:
        upstream.scripts = [stream(*[event(piece(x)) for x in parts], event(end()), DONE)]
    else:
        upstream.scripts = [whole(body({**body()["choices"][0], "text": "".join(parts)}))]
    proxy = await start_proxy(upstream, adapter="vllm")
    found = await answered(proxy, prompt=prompt, echo=True, stop=stop, stream=wants_stream)
    text = found["choices"][0]["text"]
    assert text.rstrip("\n") == prompt + " yes"
    assert found["choices"][0]["finish_reason"] == "stop"


async def test_a_body_of_a_checked_form(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(NATIVE)]
    proxy = await start_proxy(upstream, adapter="llamacpp-native")
    async with await post(proxy, n=2, prompt=["Hi", "Ho"]) as response:
        data = await response.read()
    request = type(ASKED)(model=MODEL, n=4, prompts=("Hi", "Ho"))
    assert check_completion_body(data, request) == []
    assert json.loads(data)["usage"]["prompt_tokens"] == 8
    wrong = data.replace(b'"finish_reason":"length"', b'"finish_reason":"eos"')
    assert {x.rule for x in check_completion_body(wrong, request)} == {"L.reason"}
