"""A request that is asked for by a recipe is asked for as one that was planned for itself."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from tests.conforming import body, finish, role, sse
from tests.conforming_completions import body as completion
from tests.fakes.upstream import Gate, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.relay import generate
from wellspoken.proxy.relay.planning import recipes
from wellspoken.proxy.relay.planning.plan import Plan
from wellspoken.proxy.state import Recipe, RecipeKey
from wellspoken.proxy.tls.certificates import ServerContexts
from wellspoken.proxy.upstream import memory

TEXT = "/v1/completions"
SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
MESSAGES: list[Any] = [
    [USER],
    [{"role": "user", "content": 'hé \u2028 "messages":[] 🙂'}],
    [USER, {"role": "assistant", "content": "ho"}, USER],
    [{"role": "assistant", "content": "ho"}],
    [SYSTEM, USER],
    [SYSTEM, {"role": "user", "content": ""}],
    [SYSTEM],
    [USER, SYSTEM],
    [SYSTEM, {"role": "assistant", "content": "ho"}, USER],
    [{"role": "developer", "content": "Be kind."}, USER],
    [{**USER, "name": None}],
    [{**USER, "name": "eve"}],
    [{"role": "user", "content": "null"}],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, USER],
    [USER, {"role": "assistant", "content": "ho", "reasoning_content": "hm"}, USER],
    [],
    [{"role": "user"}],
    [{"role": "nobody", "content": "hi"}],
    "hi",
    None,
]
PROMPTS: list[Any] = ["hi", 'hé "prompt":', "", ["hi"], ["a", "b"], [1, 2], None, 3]
MORE: list[dict[str, Any]] = [
    *[{}] * 6,
    {"temperature": 0.5},
    {"temperature": 3},
    {"max_tokens": 5, "stop": ["x"]},
    {"logprobs": True, "top_logprobs": 2},
    {"n": 2},
    {"seed": 7, "user": "u"},
    *[{"stream": True}] * 3,
    {"stream": True, "stream_options": {"include_usage": True}},
    {"store": True},
    {"store": False, "metadata": {"a": "b"}},
    {"oai_compat": False},
    {"top_k": 3},
    {"logit_bias": {"5": 1}},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"response_format": {"type": "json_object"}},
    {"model": ""},
    {"model": "another"},
    {"n_predict": 4},
    {"messages_": [{"role": "user", "content": "hi"}]},
]
HEADERS: list[dict[str, str]] = [
    {}, {}, {}, {"x-wellspoken-keep": "odd"}, {"x-request-id": "mine"}, {"traceparent": "00-a"},
]  # fmt: skip
ADAPTERS = ("openai", "vllm", "llamacpp", "llama-cpp-python", "ollama", "furiosa", "cortex")


class Forgetful(dict[tuple[str, RecipeKey], Recipe]):
    """What a proxy that plans each request for itself has for recipes."""

    def __setitem__(self, key: tuple[str, RecipeKey], value: Recipe) -> None:
        pass


def drawn(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return a request: its path, its body, its headers."""
    chat = rng.random() < 0.8
    text = ("messages", rng.choice(MESSAGES)) if chat else ("prompt", rng.choice(PROMPTS))
    more = rng.choice(MORE)
    if not chat and "logprobs" in more:
        more = {"logprobs": 2}
    pairs = [("model", "m"), text, *more.items()]
    if rng.random() < 0.2:
        pairs.reverse()
    path = CHAT if chat else rng.choice((TEXT, TEXT, "/completion"))
    return path, dict(pairs) | more, rng.choice(HEADERS)


async def answered(proxy: Proxy, upstream: Upstream, request: Any) -> tuple[Any, ...]:
    """Return what a request had sent, and what its client got."""
    path, wanted, headers = request
    answers = [whole(body(odd=1)), stream(sse([role(), finish()])), whole(completion(odd=1))]
    upstream.requests.clear()
    for each in (TEXT, "/completion"):
        upstream.script(each, answers[2])
    upstream.script(CHAT, answers[2 if path != CHAT else bool(wanted.get("stream"))])
    size = len(str(wanted))
    pair = (",", ":") if size % 3 else (", ", ": ")
    data = json.dumps(wanted, ensure_ascii=size % 2 == 0, separators=pair).encode()
    given = {"Content-Type": "application/json", **headers}
    async with proxy.session.post(proxy.url(path), data=data, headers=given) as response:
        told = await response.text()
        lines = {k: v for k, v in response.headers.items() if k.lower() not in VARYING}
    sent = [
        (x.target, json.dumps(x.json()) if x.body else "", x.header("traceparent") or "")
        for x in upstream.requests
    ]
    # Sorted, since requests for several prompts are sent at once, and so are their answers' events.
    events = sorted(told.split("\n\n")) if len(sent) > 1 else told
    return sorted(sent), response.status, events, lines


VARYING = ("date", "openai-processing-ms", "x-request-id")


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_request_by_a_recipe_is_the_planned_one(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = []

    def follow(*given: Any) -> Plan:
        followed.append(given)
        return recipes.follow_recipe(*given)

    monkeypatch.setattr(generate, "follow_recipe", follow)
    for name in ("AGAIN", "SOON"):  # however long this takes, the backend is asked once
        monkeypatch.setattr(memory, name, 3600.0)
    quick, slow = [await start_proxy(upstream, adapter=adapter) for _ in range(2)]
    slow.service.state.recipes = Forgetful()
    for proxy in (quick, slow):
        proxy.service.state.new_id = lambda: "0123456789abcdef01234567"
    rng = random.Random(adapter)
    for _ in range(600):
        request = drawn(rng)
        expected = await answered(slow, upstream, request)
        assert await answered(quick, upstream, request) == expected, request
    assert len(followed) > 20 and not slow.service.state.recipes
    totals = [
        {name: n for name, n in (await proxy.metrics()).items() if "_total" in name}
        for proxy in (quick, slow)
    ]
    assert totals[0] == totals[1]


async def test_a_refused_recipe_is_amended(upstream: Upstream, start_proxy: StartProxy) -> None:
    said = {"error": {"message": "System role not supported", "code": 400}}
    asked = [[SYSTEM, {"role": "user", "content": text}] for text in "abcd"]
    as_user = [[{"role": "user", "content": f"Be kind.\n\n{text}"}] for text in "cd"]
    answers = [whole(body()), whole(body()), whole(said, status=400), whole(body())]
    upstream.script(CHAT, *answers)
    proxy = await start_proxy(upstream, adapter="vllm")
    for messages in asked:
        async with await proxy.chat(messages=messages) as response:
            assert response.status == 200, await response.text()
    sent = [x.json()["messages"] for x in upstream.requests if x.target == CHAT]
    assert sent == [*asked[:3], *as_user]  # the refusal is remembered, so no recipe holds


async def test_where_no_plan_can_be_made_anew_the_servers_refusal_is_told(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"error": {"message": "System role not supported", "code": 400}}
    upstream.script(CHAT, whole(body()), whole(said, status=400))
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await proxy.chat(messages=[SYSTEM, USER]) as response:
        assert response.status == 200

    async def refuse(*_: Any) -> Any:
        raise RequestError("not at this server")

    monkeypatch.setattr(generate, "admit", refuse)
    told = await proxy.error(400, messages=[SYSTEM, {**USER, "content": "ho"}])
    assert told["message"] == "System role not supported"


async def test_a_stream_whose_usage_is_refused_later_is_amended(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    said = {"error": {"message": "Unknown parameter: 'stream_options'.", "code": 400}}
    good, events = stream(sse([role(), finish()])), stream(event(said))
    upstream.script(CHAT, good, good, good, events, good)
    proxy = await start_proxy(upstream, adapter="vllm")
    for text in "abcd":
        asked = [{"role": "user", "content": text}]
        async with await proxy.chat(messages=asked, stream=True) as response:
            told = await response.text()
            assert response.status == 200 and "error" not in told and "[DONE]" in told
    sent = [x.json() for x in upstream.requests if x.target == CHAT]
    assert ["stream_options" in each for each in sent] == [True] * 4 + [False]
    assert [each["messages"][0]["content"] for each in sent] == [*"abcdd"]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_another_request_learned_meanwhile_amends_a_recipe(
    upstream: Upstream, start_proxy: StartProxy, streams: bool
) -> None:
    wrong = "Unknown parameter: 'stream_options'." if streams else "System role not supported"
    refusal = whole({"error": {"message": wrong, "code": 400}}, status=400)
    good = stream(sse([role(), finish()])) if streams else whole(body())
    gate = Gate()
    upstream.script(CHAT, good, good, [gate, *refusal], refusal, good)
    proxy = await start_proxy(upstream, adapter="vllm")

    async def ask(text: str) -> None:
        messages = [SYSTEM, {"role": "user", "content": text}]
        async with await proxy.chat(messages=messages, stream=streams) as response:
            assert response.status == 200, await response.text()

    for text in "ab":
        await ask(text)
    late = asyncio.create_task(ask("c"))
    await gate.reached.wait()
    await ask("d")
    gate.open()
    await late
    assert len([x for x in upstream.requests if x.target == CHAT]) == 6


async def test_a_value_out_of_bounds_is_told_before_a_model_that_is_not_there(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    tables = [{"name": name, "url": upstream.url, "models": [name]} for name in "ab"]
    proxy = await start_proxy(*tables)
    async with await proxy.chat(model="c", temperature=9) as response:
        assert response.status == 400, await response.text()
        assert (await response.json())["error"]["param"] == "temperature"


async def test_a_recipe_without_a_system_message_is_none_for_one_with_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    said = {"error": {"message": "System role not supported", "code": 400}}
    upstream.script(CHAT, whole(body()), whole(said, status=400), whole(body()))
    proxy = await start_proxy(upstream, adapter="vllm")
    for messages in ([USER], [SYSTEM, USER]):
        async with await proxy.chat(messages=messages) as response:
            assert response.status == 200, await response.text()


async def test_one_body_means_another_thing_on_another_path(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(TEXT, whole(completion()))
    proxy = await start_proxy(upstream, adapter="vllm")
    asked = {"model": "m", "prompt": "hi", "n_predict": 4}
    for path in ("/completion", TEXT):
        async with proxy.session.post(proxy.url(path), json=asked) as response:
            assert response.status == 200, await response.text()
    first, second = [x.json() for x in upstream.requests if x.target == TEXT]
    assert first == {"model": "m", "prompt": "hi", "max_tokens": 4}
    assert second == {"model": "m", "prompt": "hi", "n_predict": 4, "max_tokens": 16}


async def test_a_reload_forgets_recipes(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter="vllm")
    for _ in range(2):
        async with await proxy.chat() as response:
            assert response.status == 200
    state = proxy.service.state
    assert len(state.recipes) == 1
    targets, contexts = state.router.targets, ServerContexts()
    proxy.service.become(state.config, targets, state.keys, state.admin, contexts)
    assert not state.recipes


async def test_recipes_are_bounded(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MOST", 4)
    upstream.script(CHAT, whole(body()))
    proxy = await start_proxy(upstream, adapter="vllm")
    for seed in range(20):
        async with await proxy.chat(seed=seed) as response:
            assert response.status == 200
        assert 0 < len(proxy.service.state.recipes) <= 4
    before = dict(proxy.service.state.recipes)
    async with await proxy.chat(user="u" * recipes.LONGEST) as response:
        assert response.status == 200
    assert proxy.service.state.recipes == before
