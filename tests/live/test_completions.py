"""A real llama.cpp behind /v1/completions, by its OpenAI-like endpoint and by its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance import (
    Request,
    check_body,
    check_completion_body,
    check_completion_stream,
    check_stream,
)
from tests.fold import comparable, fold, fold_completion
from tests.models.tiny import TEXT

Json = dict[str, Any]
PATH, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
MESSAGES = [{"role": "user", "content": "hi"}]
INCLUDE: Json = {"stream": True, "stream_options": {"include_usage": True}}
TOKENS = ["Hello", " world", "!", " caf", "é", " 😀", " done", "."]
NEAR = 1e-4

pytestmark = pytest.mark.parametrize("proxy", ["llamacpp", "llamacpp-native"], indirect=True)


async def post(url: str, path: str, status: int = 200, **more: Any) -> bytes:
    fields: Json = {"model": "tiny", "temperature": 0, **more}
    async with ClientSession() as session, session.post(url + path, json=fields) as response:
        data = await response.read()
        assert response.status == status, data
        return data


async def both(proxy: str, request: Request, path: str = PATH, **more: Any) -> Json:
    """Ask for a body and for a stream, check both, and that they are the same; return it."""
    chat = path == CHAT
    given = await post(proxy, path, **more)
    streamed = await post(proxy, path, **more, **INCLUDE)
    asked: Json = {name: getattr(request, name) for name in request.__dataclass_fields__}
    asks = Request(**asked | {"include_usage": True})
    assert (check_body if chat else check_completion_body)(given, request) == []
    assert (check_stream if chat else check_completion_stream)(streamed, asks) == []
    body = json.loads(given)
    folded = fold(streamed) if chat else fold_completion(streamed)
    for answer in (body, folded):  # how much of a prompt was in the cache differs
        answer["usage"].pop("prompt_tokens_details", None)
    same(comparable(folded, usage=True), comparable(body, usage=True))
    return dict(body)


def same(one: Any, other: Any) -> None:
    """Compare two answers, their numbers but nearly: what is computed beside them rounds."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            same(value, other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for value, its in zip(one, other, strict=True):
            same(value, its)
    else:
        assert one == (pytest.approx(other, abs=NEAR) if isinstance(other, float) else other)


async def size_of(llamacpp: str, text: str) -> int:
    more: Json = {"content": text, "add_special": True, "parse_special": True}
    return len(json.loads(await post(llamacpp, "/tokenize", **more))["tokens"])


async def test_logprobs_are_the_servers_own_numbers(llamacpp: str, proxy: str) -> None:
    request = Request(model="tiny", logprobs=True, k=2, prompts=(PROMPT,))
    found = await both(proxy, request, prompt=PROMPT, logprobs=2, max_tokens=20)
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "stop")
    lists = choice["logprobs"]
    assert lists["tokens"] == TOKENS
    offsets = [len(PROMPT) + len("".join(TOKENS[:n])) for n in range(len(TOKENS))]
    assert lists["text_offset"] == offsets
    own: Json = {"prompt": PROMPT, "n_predict": 20, "n_probs": 2, "temperature": 0}
    native = json.loads(await post(llamacpp, "/completion", **own))
    rows = native["completion_probabilities"][: len(TOKENS)]
    assert lists["token_logprobs"] == pytest.approx([x["logprob"] for x in rows], abs=NEAR)
    for top, row in zip(lists["top_logprobs"], rows, strict=True):
        wanted = [other["logprob"] for other in row["top_logprobs"]]
        assert sorted(top.values(), reverse=True) == pytest.approx(wanted, abs=NEAR)
    wrong = json.loads(json.dumps(found))
    wrong["choices"][0]["logprobs"]["token_logprobs"][3] -= 10 * NEAR
    with pytest.raises(AssertionError):
        same(found, wrong)
    size = await size_of(llamacpp, PROMPT)
    made = native["tokens_predicted"]
    assert found["usage"] == {
        "prompt_tokens": size,
        "completion_tokens": made,
        "total_tokens": size + made,
    }


@pytest.mark.parametrize("logprobs", [None, 0, 1])
async def test_prompts_times_choices(llamacpp: str, proxy: str, logprobs: int | None) -> None:
    prompts = (PROMPT, "Hello", "é")
    scored = logprobs is not None
    request = Request(model="tiny", logprobs=scored, k=logprobs or 0, n=6, prompts=prompts)
    more: Json = {"logprobs": logprobs} if scored else {}
    found = await both(proxy, request, prompt=list(prompts), n=2, max_tokens=1, seed=1, **more)
    assert [x["index"] for x in found["choices"]] == list(range(6))
    alone = [
        json.loads(await post(proxy, PATH, prompt=prompt, max_tokens=1))["choices"][0]["text"]
        for prompt in prompts
    ]
    assert [x["text"] for x in found["choices"]] == [text for text in alone for _ in range(2)]
    size = sum([await size_of(llamacpp, prompt) for prompt in prompts])
    assert found["usage"]["prompt_tokens"] == size
    assert found["usage"]["completion_tokens"] == 6


async def test_a_prompt_of_token_ids(llamacpp: str, proxy: str) -> None:
    more: Json = {"content": PROMPT, "add_special": True, "parse_special": True}
    ids = json.loads(await post(llamacpp, "/tokenize", **more))["tokens"]
    request = Request(model="tiny", logprobs=True, n=2, prompts=(None, None))
    found = await both(proxy, request, prompt=[ids, ids], logprobs=0, max_tokens=20)
    assert [x["text"] for x in found["choices"]] == [TEXT] * 2
    assert found["usage"]["prompt_tokens"] == 2 * len(ids)


async def test_sixteen_tokens_where_no_limit_was_named(proxy: str) -> None:
    loop = f"{PROMPT}<|loop|>"
    found = await both(proxy, Request(model="tiny", prompts=(loop,)), prompt=loop)
    assert found["usage"]["completion_tokens"] == 16
    assert found["choices"][0]["finish_reason"] == "length"
    own = json.loads(await post(proxy, "/completion", prompt=loop, n_predict=21))
    assert own["usage"]["completion_tokens"] == 21


async def test_no_tokens_at_all(llamacpp: str, proxy: str) -> None:
    for echo in (False, True):
        request = Request(model="tiny", prompts=(PROMPT,), echo=echo)
        found = await both(proxy, request, prompt=PROMPT, max_tokens=0, echo=echo)
        (choice,) = found["choices"]
        assert choice["text"] == (PROMPT if echo else "")
        assert choice["finish_reason"] == "length"
        size = await size_of(llamacpp, PROMPT)
        assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (size, 0)


async def test_the_best_of_many_has_the_best_mean(proxy: str) -> None:
    more: Json = {"prompt": "Hello", "temperature": 2.0, "max_tokens": 4}
    means, texts, made, size = [], [], 0, 0
    for seed in range(70, 76):
        one = json.loads(await post(proxy, PATH, seed=seed, logprobs=1, **more))
        lists = one["choices"][0]["logprobs"]  # none where the answer ends at once
        values = lists["token_logprobs"] if lists else [-9999.0]
        means.append(sum(values) / len(values))
        texts.append(one["choices"][0]["text"])
        made += one["usage"]["completion_tokens"]
        size = one["usage"]["prompt_tokens"]
    assert len(set(texts)) > 2
    data = await post(proxy, PATH, seed=70, best_of=6, n=2, **more)
    assert check_completion_body(data, Request(model="tiny", n=2, prompts=("Hello",))) == []
    found = json.loads(data)
    order = sorted(range(6), key=lambda place: -means[place])
    assert [x["text"] for x in found["choices"]] == [texts[place] for place in order[:2]]
    usage = found["usage"]
    counts = usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]
    assert counts == (size, made, size + made)


STOPS = {
    "caf": ("Hello world! ", 4),
    "world": ("Hello ", 2),
    "! caf": ("Hello world", 4),
    "é": ("Hello world! caf", 6),
    "😀 d": ("Hello world! café ", 8),
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("n", [1, 2])
async def test_a_stop_string_loses_no_entry(
    llamacpp: str, proxy: str, stop: str, n: int, request: pytest.FixtureRequest
) -> None:
    text, made = STOPS[stop]
    native = "llamacpp-native" in request.node.name
    more: Json = {"n": n, "stop": stop, "max_tokens": 20}
    asked = Request(model="tiny", logprobs=True, k=2, n=n, stops=(stop,), prompts=(PROMPT,))
    found = await both(proxy, asked, prompt=PROMPT, logprobs=2, **more)
    for choice in found["choices"]:
        assert (choice["text"], choice["finish_reason"]) == (text, "stop")
        assert len(choice["logprobs"]["tokens"]) >= len(text.split())
    chat = Request(model="tiny", logprobs=True, k=2, n=n, stops=(stop,))
    body = await both(proxy, chat, CHAT, messages=MESSAGES, logprobs=True, top_logprobs=2, **more)
    for choice in body["choices"]:
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        entries = choice["logprobs"]["content"]
        assert b"".join(bytes(x["bytes"]) for x in entries).decode() == text
        assert [x["logprob"] for x in entries] == pytest.approx(
            found["choices"][0]["logprobs"]["token_logprobs"], abs=NEAR
        )
    if not native:  # of its own endpoint the reader tells the counts at the end alone
        size = await size_of(llamacpp, PROMPT)
        for answer in (found, body):
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (size, n * made)


@pytest.mark.parametrize("stop", ["zzz", "done. And", " done.x"])
async def test_a_stop_string_that_is_never_met(proxy: str, stop: str) -> None:
    request = Request(model="tiny", logprobs=True, stops=(stop,), prompts=(PROMPT,))
    for most, reason in ((20, "stop"), (9, "length")):
        more: Json = {"logprobs": 0, "stop": stop, "max_tokens": most}
        found = await both(proxy, request, prompt=PROMPT, **more)
        (choice,) = found["choices"]
        assert (choice["text"], choice["finish_reason"]) == (TEXT, reason)
        assert choice["logprobs"]["tokens"] == TOKENS


@pytest.mark.parametrize("most", [2, 3, 4, 7, 8, 9])
async def test_what_may_begin_a_stop_string_is_told_at_the_limit(
    proxy: str, most: int, request: pytest.FixtureRequest
) -> None:
    """At its limit a stream of llama.cpp's lacks the text that it holds back; a body has it."""
    stops = (" worldly", "!?", " café.", " done. And")
    asked = Request(model="tiny", stops=stops, prompts=(PROMPT,))
    more: Json = {"stop": list(stops), "max_tokens": most}
    found = await both(proxy, asked, prompt=PROMPT, **more)
    text = "".join(["Hello", " world", "!", " caf", "", "é", " 😀", " done", "."][:most])
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == (text, "length")
    if "llamacpp-native" in request.node.name:
        body = await both(
            proxy, Request(model="tiny", stops=stops), CHAT, messages=MESSAGES, **more
        )
        assert body["choices"][0]["message"]["content"] == text


async def test_tools_with_a_stop_string_and_logprobs(
    proxy: str, request: pytest.FixtureRequest
) -> None:
    parameters = {"type": "object", "properties": {"tz": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_time", "parameters": parameters}}
    more: Json = {"messages": [{"role": "user", "content": "@tool"}], "tools": [tool]}
    more |= {"logprobs": True, "stop": "zzz"}
    if "llamacpp-native" in request.node.name:
        error = json.loads(await post(proxy, CHAT, 400, **more))["error"]
        assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
        return
    data = await post(proxy, CHAT, **more)
    asked = Request(model="tiny", logprobs=True, tools=("get_time",), stops=("zzz",))
    assert check_body(data, asked) == []
    (choice,) = json.loads(data)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_time"


@pytest.mark.parametrize("n", [1, 2])
async def test_a_chat_is_the_same_by_either_endpoint(proxy: str, n: int) -> None:
    request = Request(model="tiny", logprobs=True, k=1, n=n)
    more: Json = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "n": n}
    found = await both(proxy, request, CHAT, **more)
    assert [x["message"]["content"] for x in found["choices"]] == [TEXT] * n
    assert [x["finish_reason"] for x in found["choices"]] == ["stop"] * n
    plain = await both(
        proxy, Request(model="tiny", stops=("caf",)), CHAT, messages=MESSAGES, stop="caf"
    )
    assert plain["choices"][0]["message"]["content"] == "Hello world! "


async def test_an_untouched_request_gets_llama_cpps_own_answer(llamacpp: str, proxy: str) -> None:
    own: Json = {"prompt": PROMPT, "n_predict": 4, "n_probs": 1, "oai_compat": False}
    answer = json.loads(await post(proxy, "/completion", **own))
    assert answer["content"] == "Hello world! caf"
    assert len(answer["completion_probabilities"]) == 4
    streamed = await post(proxy, "/completion", **own, stream=True)
    assert b'"stop":true' in streamed and b"[DONE]" not in streamed
    del own["oai_compat"]
    direct = json.loads(await post(llamacpp, "/completion", **own))
    assert {*direct} == {*answer}


async def test_offsets_after_token_ids_count_from_the_prompts_start(
    llamacpp: str, proxy: str
) -> None:
    """The ids' text is asked of the server."""
    ids = json.loads(await post(llamacpp, "/tokenize", content=PROMPT))["tokens"]
    body = json.loads(await post(proxy, PATH, prompt=ids, max_tokens=3, logprobs=0))
    assert body["choices"][0]["logprobs"]["text_offset"] == [len(PROMPT) + at for at in (0, 5, 11)]
