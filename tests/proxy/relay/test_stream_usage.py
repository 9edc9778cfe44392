"""Every stream is asked for its usage: counted and stored as told, not the client's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL, chunk, finish, role, sse
from tests.fakes.upstream import DONE, Gate, Script, Stall, Step, Upstream, event, stream, whole
from tests.fold import fold
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.waiting import read_until
from wellspoken.adapters.events import Usage
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.refusals import MOST_IN_VAIN

Json = dict[str, Any]
TEXTS = "/v1/completions"
COUNTS = (15, 10)
USAGE = {"prompt_tokens": 15, "completion_tokens": 10, "total_tokens": 25}
ASKED = {"include_usage": True}
TALK = [role(), chunk({"content": "Hello wor"}), chunk({"content": "ld! Is it you?"}), finish()]
TOLD = {**chunk({}), "choices": [], "usage": USAGE}
NULLS = [{**one, "usage": None} for one in TALK]
TIMINGS = {"cache_n": 9, "prompt_n": 6, "predicted_n": 10, "predicted_ms": 1.5}
SYSTEM = {"role": "system", "content": "A"}
LATE = [SYSTEM, {"role": "user", "content": "hi"}, SYSTEM]
UNKNOWN = whole({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"]}]}, 422)
NO_SYSTEM = whole({"error": {"message": "System message must be at the beginning."}}, 400)
PLAIN = stream(sse(TALK))


def bodies(upstream: Upstream, path: str = CHAT) -> list[Json]:
    return [request.json() for request in upstream.requests if request.target == path]


def options(upstream: Upstream, path: str = CHAT) -> list[Any]:
    return [body.get("stream_options") for body in bodies(upstream, path)]


def observed(proxy: Proxy) -> list[Call]:
    """Return the calls that are over, as they end."""
    seen: list[Call] = []
    proxy.service.hooks.observers.append(lambda call, _: seen.append(call))
    return seen


def counts(call: Call) -> tuple[int | None, int | None, str]:
    exchange = call.results.exchange
    assert exchange is not None
    usage = exchange.result.usage
    assert isinstance(usage, Usage)
    return usage.prompt, usage.completion, exchange.result.usage_source


async def text_of(proxy: Proxy, **more: Any) -> bytes:
    async with await proxy.chat(stream=True, **more) as response:
        data = await response.read()
        assert response.status == 200, data
        return data


@pytest.mark.parametrize("adapter", ["openai", "general", "vllm", "sglang"])
@pytest.mark.parametrize("chunks", [TALK, NULLS], ids=["no key", "null"])
async def test_a_client_that_did_not_ask_gets_what_it_would_have_got(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, chunks: list[Json]
) -> None:
    upstream.script(CHAT, stream(sse([*chunks, TOLD])))
    proxy = await start_proxy(upstream, adapter=adapter)
    calls = observed(proxy)
    data = await text_of(proxy)
    assert data == sse(TALK)
    assert options(upstream) == [ASKED]
    (call,) = calls
    assert counts(call) == (*COUNTS, "backend")
    exchange = call.results.exchange
    assert exchange is not None and not exchange.notes.counts
    metrics = await proxy.metrics()
    name = f'wellspoken_tokens_total{{backend="{call.routing.backend}"'
    assert sum(n for key, n in metrics.items() if key.startswith(name)) == sum(COUNTS)


async def test_a_null_key_in_any_place_is_taken_out(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A text that says the same stays; Python's servers write a space behind the colon."""
    said = chunk({"content": ',"usage":null,"usage": null'})
    first = {"usage": None, **said}
    texts = [json.dumps(first), json.dumps({**said, "usage": None}, separators=(",", ":"))]
    head, tail = sse(TALK[:1], done=False), sse([finish(), TOLD])
    upstream.script(CHAT, stream(head + b"".join(map(event, texts)) + tail))
    proxy = await start_proxy(upstream)
    data = await text_of(proxy)
    assert b'"usage": null' not in data.replace(b'\\"usage\\"', b"")
    found = fold(data)["choices"][0]["message"]["content"]
    assert found == 2 * said["choices"][0]["delta"]["content"]
    assert json.dumps(said).encode() in data


async def test_the_clients_other_wishes_stay(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, stream(sse([*TALK, TOLD])))
    proxy = await start_proxy(upstream)
    await text_of(proxy, stream_options={"include_obfuscation": False})
    await text_of(proxy, stream_options={"include_usage": False})
    data = await text_of(proxy, stream_options=ASKED)
    assert options(upstream) == [{"include_obfuscation": False, **ASKED}, ASKED, ASKED]
    assert fold(data)["usage"] == USAGE


async def test_llama_cpps_timings_are_counts(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Its /v1/completions and old builds tell them alone, asked or not."""
    script = stream(sse([*TALK[:-1], {**finish(), "timings": TIMINGS}]))
    upstream.script(CHAT, script)
    proxy = await start_proxy(upstream, adapter="llamacpp")
    calls = observed(proxy)
    await text_of(proxy)
    assert counts(calls[0]) == (*COUNTS, "backend")
    metrics = await proxy.metrics()
    (cached,) = [n for key, n in metrics.items() if "tokens_total" in key and '"cached"' in key]
    assert cached == 9


async def test_completions_and_several_requests_add_up(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    made = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1, "model": MODEL}
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    told = [{**made, "choices": [choice]}, {**made, "choices": [], "usage": USAGE}]
    upstream.script(TEXTS, stream(sse(told)))
    upstream.script(CHAT, stream(sse([*TALK, TOLD])))
    proxy = await start_proxy(upstream, adapter="lmstudio")
    calls = observed(proxy)
    asked = {"model": MODEL, "prompt": "Hi", "stream": True}
    async with proxy.session.post(proxy.url(TEXTS), json=asked) as response:
        assert b"usage" not in await response.read()
    await text_of(proxy, n=3)
    assert [counts(call) for call in calls] == [(15, 10, "backend"), (15, 30, "backend")]
    assert options(upstream, TEXTS) == [ASKED] and options(upstream) == [ASKED] * 3


async def test_what_is_stored_is_what_was_told(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.script(CHAT, stream(sse([*NULLS, TOLD])))
    proxy = await start_proxy(upstream, store={"path": str(tmp_path / "s.db")})
    data = await text_of(proxy, store=True)
    assert b"usage" not in data
    status, kept = await proxy.get(f"{CHAT}/{fold(data)['id']}")
    assert status == 200 and kept["usage"] == USAGE


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("adapter", ["openai", "general", "vllm"])
async def test_a_server_that_refuses_is_asked_without_and_remembered(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, include: bool
) -> None:
    upstream.script(CHAT, UNKNOWN, PLAIN)
    proxy = await start_proxy(upstream, adapter=adapter)
    more: Json = {"stream_options": ASKED} if include else {}
    for number in (2, 3):
        data = await text_of(proxy, **more)
        assert (b'"usage":{' in data) == include
        assert options(upstream) == [ASKED, None, None][:number]
    await text_of(proxy, model="another")
    assert options(upstream)[-1] == ASKED  # a gateway has servers of all kinds


@pytest.mark.parametrize("order", [(UNKNOWN, NO_SYSTEM), (NO_SYSTEM, UNKNOWN)])
async def test_both_may_be_refused_one_after_another(
    upstream: Upstream, start_proxy: StartProxy, order: tuple[Script, Script]
) -> None:
    upstream.script(CHAT, *order, PLAIN)
    proxy = await start_proxy(upstream)
    for _ in range(2):
        await text_of(proxy, messages=LATE)
    sent = [(len(body["messages"]), "stream_options" in body) for body in bodies(upstream)]
    first = (3, False) if order[0] is UNKNOWN else (2, True)
    assert sent == [(3, True), first, (2, False), (2, False)]


async def test_a_refusal_for_another_reason_is_told_and_not_remembered(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, whole({"detail": "Extra fields not permitted: top_q"}, 422))
    proxy = await start_proxy(upstream)
    for _ in range(2):
        await proxy.error(422, stream=True, top_q=1)
    assert options(upstream) == [ASKED, None] * 2
    await proxy.error(422, top_q=1)  # a body asks for no usage
    assert len(bodies(upstream)) == 5


@pytest.mark.parametrize(
    "other",
    [
        whole({"detail": [{"msg": "Field required", "loc": ["body", "x"], "input": {}}]}, 422),
        whole({"error": "too many"}, 429),
        whole({"error": "lost"}, 500),
        whole({"error": "lost"}),
        stream(event({"error": "lost"})),
    ],
    ids=["422", "429", "500", "body", "stream"],
)
async def test_only_an_answer_shows_that_the_usage_was_refused(
    upstream: Upstream, start_proxy: StartProxy, other: Script
) -> None:
    """FastAPI quotes the whole request, `stream_options` and all, whatever it refuses of it."""
    quoted = {"type": "missing", "loc": ["body", "x"], "msg": "Field required", "input": ASKED}
    upstream.script(CHAT, whole({"detail": [quoted]}, 422), other, PLAIN)
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True) as response:
        assert response.status >= 400
    await text_of(proxy)
    assert options(upstream) == [ASKED, None, ASKED]


VAGUE = {
    "no body": whole(b"", 400, None),
    "Bad Request": whole(b"Bad Request", 400, "text/plain"),
    "validation error": whole({"detail": "Validation error"}, 422),
}


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("refusal", VAGUE.values(), ids=VAGUE)
async def test_a_refusal_that_does_not_tell_is_tried_without_and_remembered(
    upstream: Upstream, start_proxy: StartProxy, refusal: Script, include: bool
) -> None:
    upstream.script(CHAT, refusal, PLAIN)
    proxy = await start_proxy(upstream, adapter="vllm")
    more: Json = {"stream_options": ASKED} if include else {}
    for number in (2, 3):
        data = await text_of(proxy, **more)
        assert (b'"usage":{' in data) == include
        assert options(upstream) == [ASKED, None, None][:number]


async def test_a_server_that_has_told_usage_is_not_asked_twice_by_a_vague_refusal(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    usual = stream(sse([*TALK, TOLD]))
    upstream.script(CHAT, usual, VAGUE["Bad Request"], UNKNOWN, PLAIN)
    proxy = await start_proxy(upstream, adapter="vllm")
    await text_of(proxy)
    await proxy.error(400, stream=True)
    await text_of(proxy)  # its words name the key, so it may be another server of a gateway's
    assert options(upstream) == [ASKED, ASKED, ASKED, None]


@pytest.mark.parametrize("takes", [False, True])
async def test_bad_requests_without_end_cost_a_bounded_number_more(
    upstream: Upstream, start_proxy: StartProxy, takes: bool
) -> None:
    """They give their own error; the first good stream then goes without, the next is asked."""
    bad, good = VAGUE["Bad Request"], stream(sse([*TALK, TOLD]))
    tries, more = 2 * MOST_IN_VAIN, 4
    after = [PLAIN, good] if takes else [PLAIN, bad, PLAIN, PLAIN]
    upstream.script(CHAT, *[bad] * (tries + more), *after)
    proxy = await start_proxy(upstream, adapter="vllm")
    for number in range(MOST_IN_VAIN + more):  # a client may make up models
        await proxy.error(400, stream=True, model=f"m{number}")
    assert options(upstream) == [ASKED, None] * MOST_IN_VAIN + [None] * more
    calls = observed(proxy)
    for _ in range(2 if takes else 3):
        await text_of(proxy)
    without: list[Any] = [None, ASKED] if takes else [None, ASKED, None, None]
    assert options(upstream)[tries + more :] == without
    assert (counts(calls[1]) == (*COUNTS, "backend")) == takes


async def test_a_server_that_went_away_may_come_back_another(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, UNKNOWN, PLAIN)
    proxy = await start_proxy(upstream, adapter="vllm")
    await text_of(proxy)
    await upstream.refuse()
    await proxy.error(502, stream=True)
    await upstream.listen()
    await text_of(proxy)
    assert options(upstream) == [ASKED, None, ASKED]


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([sse(TALK[:3], done=False)], (1, 6, "estimate")),
        ([sse([*TALK, TOLD], done=False)], (*COUNTS, "backend")),
    ],
)
async def test_a_client_that_leaves_has_used_what_was_seen(
    upstream: Upstream, start_proxy: StartProxy, steps: list[Step], wanted: object
) -> None:
    upstream.script(CHAT, stream(*steps, Stall(), end=False))
    proxy = await start_proxy(upstream)
    over, calls = asyncio.Event(), observed(proxy)
    proxy.service.hooks.observers.append(lambda *_: over.set())
    response = await proxy.chat(stream=True)
    await read_until(response.content.readline, b"Is it")
    response.close()
    async with asyncio.timeout(60):
        await over.wait()
    assert counts(calls[0]) == wanted


async def test_a_client_that_leaves_has_used_the_choices_asked_for_one_by_one_too(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    later = sse(TALK[:3], done=False)
    upstream.script(CHAT, stream(sse([*TALK, TOLD])), stream(later, Stall(), end=False))
    proxy = await start_proxy(upstream, adapter="general")
    over, calls = asyncio.Event(), observed(proxy)
    proxy.service.hooks.observers.append(lambda *_: over.set())
    response = await proxy.chat(stream=True, n=2)
    for _ in range(2):
        await read_until(response.content.readline, b"Is it")
    response.close()
    async with asyncio.timeout(60):
        await over.wait()
    assert counts(calls[0]) == (15, 10 + 6, "estimate")


async def test_a_client_that_leaves_before_anything_came_has_used_nothing(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.script(CHAT, stream(gate, DONE))
    proxy = await start_proxy(upstream)
    over, calls = asyncio.Event(), observed(proxy)
    proxy.service.hooks.observers.append(lambda *_: over.set())
    task = asyncio.create_task(proxy.chat(stream=True))
    await gate.reached.wait()
    task.cancel()
    async with asyncio.timeout(60):
        await over.wait()
    assert calls[0].results.exchange is None
