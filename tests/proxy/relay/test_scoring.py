"""Logprobs of prompts, computed with probes, in front of a scripted llama.cpp.

It reads no names of tokens in grammars, as builds before 2025-12 (test_forcing.py: one that does).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.clock import steady_clock
from tests.conformance import Request, check_completion_body, check_completion_stream
from tests.conforming_completions import MODEL
from tests.fakes.llamacpp import BEGIN, LlamaCpp, logprob, split
from tests.fakes.upstream import Cut, Gate, Script, Stall, whole
from tests.fold import fold_completion
from tests.proxy.conftest import StartProxy, envelope
from tests.proxy.endpoints.test_completions import answered, post, refused
from tests.waiting import until

Json = dict[str, Any]
SECRET = "sk-canary-0123456789"


@pytest.fixture
async def llamacpp() -> Any:
    async with LlamaCpp() as server:
        yield server


ADAPTERS = pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])


@ADAPTERS
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_an_echoed_prompt_has_its_tokens_own_values(
    llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str, wants_stream: bool
) -> None:
    proxy = await start_proxy(llamacpp, adapter=adapter)
    prompt = "aé😀."
    asked: Json = {"prompt": prompt, "echo": True, "logprobs": 2, "stream": wants_stream}
    async with await post(proxy, **asked) as response:
        data = await response.read()
    request = Request(model=MODEL, logprobs=True, k=2, echo=True, prompts=(prompt,))
    check = check_completion_stream if wants_stream else check_completion_body
    assert check(data, request) == []
    found = fold_completion(data) if wants_stream else json.loads(data)
    (choice,) = found["choices"]
    assert choice["text"] == prompt + "!"
    tokens = [(BEGIN, b"<s>"), *split(prompt)]
    # what begins a text is not in it, and its first token has no logprob
    values = [logprob(place, id) for place, (id, _) in enumerate(tokens)][2:]
    assert choice["logprobs"]["token_logprobs"] == [None, *values, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3, 4]
    # in order, so that each finds all but one token of its prefix in the cache
    sizes = [len(prefix) for prefix in llamacpp.probed_prefixes]
    assert sizes == sorted(sizes)
    assert len({*sizes}) == len(tokens) - 1
    assert all(x["cache_prompt"] for x in llamacpp.asked("/completion") if "logit_bias" in x)


@ADAPTERS
async def test_nothing_is_generated_where_no_token_is_asked_for(
    llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str
) -> None:
    proxy = await start_proxy(llamacpp, adapter=adapter)
    found = await answered(proxy, prompt="ab", echo=True, logprobs=1, max_tokens=0)
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}
    assert len(llamacpp.requests) == 2 + 1 + 2  # the splits, a grammar in vain, and the probes
    found = await answered(proxy, prompt="ab", max_tokens=0)
    assert found["usage"]["prompt_tokens"] == 3
    found = await answered(proxy, prompt="ab", max_tokens=0, echo=True)
    assert found["choices"][0]["text"] == "ab"
    assert found["choices"][0]["logprobs"] is None


@ADAPTERS
async def test_an_empty_prompt(llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str) -> None:
    proxy = await start_proxy(llamacpp, adapter=adapter)
    found = await answered(proxy, prompt="", echo=True, logprobs=1)
    (choice,) = found["choices"]
    assert choice["text"] == "!"
    assert choice["logprobs"]["tokens"] == ["!"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5]
    assert llamacpp.probed_prefixes == []


async def test_echo_alone_needs_no_help_of_the_backend(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    prompt = "  two spaces"
    assert (await answered(proxy, prompt=prompt, echo=True))["choices"][0]["text"] == prompt + "!"
    assert [request.target for request in llamacpp.requests] == ["/v1/completions"]
    assert "echo" not in llamacpp.requests[0].json()
    found = await answered(proxy, prompt=[104, 105], echo=True)
    assert found["choices"][0]["text"] == "hi!"
    assert [request.target for request in llamacpp.requests[1:]] == [
        "/v1/models",  # once, for the size of the vocabulary
        "/detokenize",
        "/v1/completions",
    ]


async def test_a_prompt_of_token_ids_is_spelled(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    ids = [id for id, _ in split("hé!")]
    found = await answered(proxy, prompt=ids, echo=True, logprobs=0, max_tokens=0)
    lists = found["choices"][0]["logprobs"]
    assert lists["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert lists["token_logprobs"] == [None, *(logprob(n, ids[n]) for n in (1, 2, 3))]
    assert found["usage"]["prompt_tokens"] == 4


async def test_each_choice_of_a_prompt_begins_with_the_one_scored_prompt(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    found = await answered(proxy, prompt=["ab", "c"], n=2, echo=True, logprobs=1)
    assert [x["text"] for x in found["choices"]] == ["ab!", "ab!", "c!", "c!"]
    assert found["choices"][0]["logprobs"] == found["choices"][1]["logprobs"]
    assert len(llamacpp.probed_prefixes) == 2 + 1
    assert len(llamacpp.asked("/v1/completions")) == 4


@ADAPTERS
async def test_prompt_logprobs_have_vllms_form_on_each_choice(
    llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str
) -> None:
    proxy = await start_proxy(llamacpp, adapter=adapter)
    found = await answered(proxy, prompt="a ", prompt_logprobs=2, n=2)
    rows = found["choices"][0]["prompt_logprobs"]
    assert rows == found["choices"][1]["prompt_logprobs"]
    assert rows[0] is None
    assert list(rows[1]) == ["97", "32", "33"]
    assert rows[1]["97"] == {"logprob": logprob(1, 97), "rank": None, "decoded_token": "a"}
    assert rows[2]["32"] == {"logprob": logprob(2, 32), "rank": 1, "decoded_token": " "}
    sent = [x.json() for x in llamacpp.requests if x.target not in ("/tokenize", "/completion")]
    assert all("prompt_logprobs" not in x for x in sent)


@ADAPTERS
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_prompt_logprobs_of_a_chat_are_those_of_the_templates_prompt(
    llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str, wants_stream: bool
) -> None:
    proxy = await start_proxy(llamacpp, adapter=adapter)
    async with await proxy.chat(prompt_logprobs=0, stream=wants_stream) as response:
        data = await response.read()
    assert response.status == 200
    if wants_stream:
        events = [json.loads(x[6:]) for x in data.split(b"\n\n") if x.startswith(b"data: {")]
        (rows,) = [x["prompt_logprobs"] for x in events if "prompt_logprobs" in x]
    else:
        rows = json.loads(data)["prompt_logprobs"]
    told = [{id: value["logprob"] for id, value in row.items()} for row in rows[1:]]
    assert told == [{"72": logprob(1, 72)}, {"105": logprob(2, 105)}, {"62": logprob(3, 62)}]
    assert llamacpp.asked("/apply-template")[0]["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (-1, "integer_below_min_value"),
        (101, "integer_above_max_value"),
        (1.5, "invalid_type"),
        ("2", "invalid_type"),
        (True, "invalid_type"),
        ([], "invalid_type"),
        ({}, "invalid_type"),
    ],
)
async def test_a_count_that_is_none_is_refused(
    llamacpp: LlamaCpp, start_proxy: StartProxy, given: Any, code: str
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    error = await refused(proxy, prompt_logprobs=given)
    assert (error["param"], error["code"]) == ("prompt_logprobs", code)
    error = await proxy.error(400, prompt_logprobs=given)
    assert (error["param"], error["code"]) == ("prompt_logprobs", code)


async def test_more_than_can_be_computed_is_refused_whatever_the_cap(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", caps={"prompt_logprobs": 2**20})
    for given in (101, -1):
        error = await refused(proxy, prompt_logprobs=given)
        assert (error["param"], error["code"]) == ("prompt_logprobs", "invalid_value")


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_prompt_that_is_too_long_is_refused_before_any_probe(
    llamacpp: LlamaCpp, start_proxy: StartProxy, wants_stream: bool
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", limits={"scored_tokens": 4})
    more: Json = {"echo": True, "logprobs": 1, "stream": wants_stream}
    error = await refused(proxy, prompt="abcd", **more)
    assert (error["param"], error["code"]) == ("echo", "prompt_too_long")
    assert "limits.scored_tokens" in error["message"] and "5 tokens" not in error["message"]
    assert (await refused(proxy, prompt="abcd", prompt_logprobs=1))["param"] == "prompt_logprobs"
    assert (await refused(proxy, prompt=[97] * 5, **more))["param"] == "echo"
    assert llamacpp.probed_prefixes == []
    await answered(proxy, prompt="abc", **more)


async def test_a_backend_scores_a_few_prompts_at_a_time(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", limits={"scoring": 2})
    gates = [Gate(), Gate()]
    llamacpp.held = [[gate] for gate in gates]
    more: Json = {"echo": True, "logprobs": 1, "max_tokens": 0}
    asking = [asyncio.create_task(answered(proxy, prompt="ab", **more)) for _ in range(5)]
    await llamacpp.request(5 + 2 * 3 - 1)  # five were split, two are scored
    await asyncio.sleep(0.03)
    assert len(llamacpp.probed_prefixes) == 2
    for gate in gates:
        gate.open()
    await asyncio.gather(*asking)
    assert len(llamacpp.probed_prefixes) == 5 * 2


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_client_that_leaves_stops_the_probes(
    llamacpp: LlamaCpp, start_proxy: StartProxy, wants_stream: bool
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", limits={"scoring": 1})
    llamacpp.held = [[], [Stall()]]
    more: Json = {"prompt": "abcd", "echo": True, "logprobs": 1, "stream": wants_stream}
    asking = asyncio.create_task(post(proxy, **more))
    stalled = await llamacpp.request(4)
    asking.cancel()
    async with steady_clock() as clock:
        await stalled.closed.wait()
        assert stalled.by_peer and clock() < 0.25
    await answered(proxy, prompt="ab", echo=True, logprobs=1)  # and the place is free again
    assert len(llamacpp.probed_prefixes) == 2 + 2
    await until(lambda: not proxy.service.state.inflight)


BROKEN: dict[str, tuple[str, Script, int, str]] = {
    "split": ("/tokenize", whole({"tokens": [1, 2]}), 502, "a list of tokens with id and piece"),
    "split html": ("/tokenize", whole(b"<p>", content_type="text/html"), 502, "a list of tokens"),
    "split 404": ("/tokenize", whole({"detail": "Not Found"}, status=404), 404, "Not Found"),
    "split cut": ("/tokenize", [Cut()], 502, "closed the connection"),
    "probe": ("probe", whole({"choices": []}), 502, "completion_probabilities"),
    "probe html": ("probe", whole(b"<p>", content_type="text/html"), 502, "expected an object"),
    "probe 500": ("probe", whole({"error": {"message": "boom"}}, status=500), 500, "boom"),
    "probe cut": ("probe", [Cut()], 502, "closed the connection"),
}


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("named", BROKEN)
async def test_a_backend_that_fails_in_the_middle_is_a_clean_error(
    llamacpp: LlamaCpp, start_proxy: StartProxy, wants_stream: bool, named: str
) -> None:
    at, script, status, says = BROKEN[named]
    if at == "probe":
        llamacpp.probes = [llamacpp.answer("/completion", json.loads(PROBE)), script]
    else:
        llamacpp.odd = {at: script}
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    more: Json = {"prompt": "abc", "echo": True, "logprobs": 1, "stream": wants_stream}
    error = await refused(proxy, status=status, **more)
    assert says in error["message"]
    if "cut" not in named:
        path = "/completion" if at == "probe" else at
        assert f"POST {path}" in error["message"]
    assert llamacpp.asked("/v1/completions") == []
    assert proxy.service.state.inflight == 0


PROBE = '{"prompt":[1],"logit_bias":[[97,1]],"n_probs":1}'


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_helping_requests_error_does_not_tell_the_key(
    llamacpp: LlamaCpp,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    wants_stream: bool,
    status: int,
) -> None:
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    error = {"error": {"message": f"wrong key {SECRET}"}}
    llamacpp.odd = {"/tokenize": whole(error, status=status)}
    proxy = await start_proxy(llamacpp, adapter="llamacpp", key="env:BACKEND_KEY")
    more: Json = {"prompt": "abc", "echo": True, "logprobs": 1, "stream": wants_stream}
    async with await post(proxy, **more) as response:
        text = await response.text()
    assert SECRET not in text and envelope(text)["message"]
    assert response.status == (502 if status == 401 else status)


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_helping_requests_delay_and_refused_key_are_told(
    llamacpp: LlamaCpp, start_proxy: StartProxy, wants_stream: bool
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", auth="pass")
    more: Json = {"prompt": "abc", "echo": True, "logprobs": 1, "stream": wants_stream}
    busy = whole({"error": {"message": "busy"}}, status=429, headers=[("Retry-After", "9")])
    llamacpp.odd = {"/tokenize": busy}
    async with await post(proxy, **more) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "9")
    llamacpp.odd = {"/tokenize": whole({"error": {"message": "no"}}, status=401)}
    assert (await refused(proxy, status=401, **more))["code"] == "invalid_api_key"


async def test_heartbeats_come_while_it_takes_long_and_a_later_error_is_an_event(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", timeouts={"heartbeat": 0.05})
    gate = Gate()
    llamacpp.held = [[], [gate]]
    llamacpp.odd = {"/v1/completions": whole({"error": {"message": "late"}}, status=500)}
    more: Json = {"prompt": "abc", "echo": True, "logprobs": 1, "stream": True}
    async with await post(proxy, **more) as response:
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.open()
        data = await response.read()
    assert response.status == 200
    assert b'"message":"late"' in data and b"[DONE]" not in data
    llamacpp.held = [[], [gate := Gate()]]
    llamacpp.odd = {}
    async with await post(proxy, **more) as response:
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.open()
        data = await response.read()
    assert fold_completion(data)["choices"][0]["text"] == "abc!"


async def test_a_scoring_that_fails_after_a_heartbeat_is_an_event(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", timeouts={"heartbeat": 0.05})
    gate = Gate()
    llamacpp.probes = [[gate, *whole(b"[]")]]
    more: Json = {"prompt": "abc", "echo": True, "logprobs": 1, "stream": True}
    async with await post(proxy, **more) as response:
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.open()
        data = await response.read()
    (event,) = [x for x in data.split(b"\n\n") if x.startswith(b"data")]
    assert "not understood" in envelope(event[6:])["message"]


async def test_the_stop_strings_do_not_cut_the_prompts_own_tokens(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    found = await answered(proxy, prompt="ab", echo=True, logprobs=1, stop="b")
    (choice,) = found["choices"]
    assert choice["text"] == "ab!"
    assert choice["logprobs"]["tokens"] == ["a", "b", "!"]


async def test_it_is_named_as_a_repair(llamacpp: LlamaCpp, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    async with await post(proxy, prompt="ab", prompt_logprobs=1) as response:
        assert "prompt_logprobs_computed" in response.headers["x-wellspoken-repairs"]
    async with await post(proxy, prompt="ab") as response:
        assert "prompt_logprobs_computed" not in response.headers["x-wellspoken-repairs"]


async def test_what_the_client_does_not_get_is_not_computed(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp", extensions="none")
    found = await answered(proxy, prompt="ab", prompt_logprobs=1)
    assert "prompt_logprobs" not in found["choices"][0]
    async with await proxy.chat(prompt_logprobs=1) as response:
        assert "prompt_logprobs" not in await response.json()
    targets = [request.target for request in llamacpp.requests]
    assert targets == ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("status", [404, 500])
async def test_a_template_that_fails_is_a_clear_error(
    llamacpp: LlamaCpp, start_proxy: StartProxy, status: int
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp-native")
    llamacpp.odd = {"/apply-template": whole({"error": {"message": "bad jinja"}}, status=status)}
    error = await proxy.error(status)
    assert "POST /apply-template" in error["message"] and "bad jinja" in error["message"]
    llamacpp.odd = {"/apply-template": whole({"text": 1})}
    assert (await proxy.error(502))["code"] == "upstream_not_a_prompt"
    assert llamacpp.asked("/completion") == []


async def test_tools_are_refused_before_anything_is_asked(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp-native")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for stream in (False, True):
        error = await proxy.error(400, tools=tools, stream=stream)
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert llamacpp.requests == []


def test_the_scripted_server_tells_what_it_should() -> None:
    assert split("aé") == [(97, b"a"), (1195, b"\xc3"), (1169, b"\xa9")]
    silent = LlamaCpp().probed({"prompt": [1], "logit_bias": [[1195, 1]], "n_probs": 1})
    assert "completion_probabilities" not in silent
