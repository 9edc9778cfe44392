"""One answer of several requests: failures, clients that leave, slow ends, uneven speeds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests import conforming
from tests.clock import steady_clock
from tests.conformance import Request, check_completion_stream
from tests.conforming_completions import MODEL, body, end, piece
from tests.fakes.upstream import (
    DONE,
    Cut,
    Gate,
    Reset,
    Script,
    Stall,
    Step,
    Upstream,
    event,
    head,
    stream,
    whole,
)
from tests.fold import fold_completion, payloads
from tests.proxy.conftest import MESSAGES, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_completions import answered, post
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import read_until, until
from wellspoken.proxy.relay.answer import Relay

Json = dict[str, Any]
SECRET = "sk-canary-0123456789"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def one(text: str, **more: Any) -> Json:
    """Return the backend's body of one choice."""
    return body({**body()["choices"][0], "text": text, **more}, usage=USAGE)


def counted() -> bytes:
    return event({**piece(""), "choices": [], "usage": USAGE})


def streamed(*steps: Step) -> list[Step]:
    return stream(*steps, event(end()), counted(), DONE)


def errors(data: bytes) -> list[Json]:
    """Return the error objects of a stream."""
    return [x["error"] for x in map(json.loads, _json(data)) if "error" in x]


def _json(data: bytes) -> list[bytes]:
    return [x for x in payloads(data) if x != b"[DONE]"]


async def test_a_body_of_several_bodies(upstream: Upstream, start_proxy: StartProxy) -> None:
    gate = Gate()
    slow = [gate, *whole(one("first"))]
    upstream.script_choices(7, slow, whole(one("second")), whole(one("third")))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    asking = asyncio.create_task(answered(proxy, n=3, seed=7))
    await upstream.request(2)
    assert parts() > 0  # what `settled` looks for is there
    gate.open()
    found = await asking
    assert [x["text"] for x in found["choices"]] == ["first", "second", "third"]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    scraped = await proxy.metrics()
    assert scraped['wellspoken_usage_source_total{backend="default",source="backend"}'] == 1


async def test_choices_first_appear_in_order_whichever_is_faster(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gates = Gate(), Gate()
    upstream.script_choices(
        7,
        streamed(gates[0], event(piece("a")), gates[1], event(piece("b"))),
        streamed(event(piece("x")), event(piece("y"))),
    )
    proxy = await start_proxy(upstream, adapter="llamacpp")
    usage = {"include_usage": True}
    asking = asyncio.create_task(post(proxy, n=2, seed=7, stream=True, stream_options=usage))
    await upstream.request(1)
    gates[0].open()
    async with await asking as response:
        # What waited comes as soon as choice 0 has appeared.
        data = await read_until(response.content.readany, b'"text":"y"')
        assert data.index(b'"text":"a"') < data.index(b'"text":"x"')
        gates[1].open()
        data += await response.read()
    assert check_completion_stream(data, Request(model=MODEL, n=2, include_usage=True)) == []
    found = fold_completion(data)
    assert [x["text"] for x in found["choices"]] == ["ab", "xy"]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


async def test_a_few_at_a_time(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, adapter="llamacpp")
    (target,) = proxy.service.state.router.targets
    together = target.backend.together
    gates = [Gate() for _ in range(together)]
    upstream.scripts = [[gate, *whole(one("x"))] for gate in gates]
    upstream.scripts.append(whole(one("y")))
    asking = asyncio.create_task(answered(proxy, n=together + 3))
    await upstream.request(together - 1)
    await asyncio.sleep(0.02)
    assert len(upstream.requests) == together
    for gate in gates:
        gate.open()
    found = await asking
    assert [x["text"] for x in found["choices"]] == ["x"] * together + ["y"] * 3


FAILURES: dict[str, tuple[Script, int]] = {
    "400": (whole({"error": {"message": f"bad prompt {SECRET}"}}, status=400), 400),
    "429": (whole({"error": "slow"}, status=429, headers=[("Retry-After", "7")]), 429),
    "500": (whole(b"<h1>no</h1>", status=500, content_type="text/html"), 500),
    "cut before": ([Cut()], 502),
    "cut head": ([b"HTTP/1.1 200 OK\r\nContent-Le", Cut()], 502),
    "cut body": ([head(length=500) + b'{"id":', Cut()], 502),
    "reset": ([head(length=500) + b'{"id":', Reset()], 502),
    "nonsense": (whole(b"{"), 502),
    "error in a 200": (whole({"error": {"message": "no", "code": 503}}), 503),
}


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("named", FAILURES)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_failure_is_one_clean_error_and_cancels_the_rest(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    wants_stream: bool,
    named: str,
    place: int,
) -> None:
    script, status = FAILURES[named]
    gate = Gate()
    upstream.scripts = [[Stall()], [Stall()], [Stall()]]
    upstream.scripts[place] = [gate, *script]
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    proxy = await start_proxy(upstream, adapter="llamacpp", key="env:BACKEND_KEY")
    asking = asyncio.create_task(post(proxy, n=3, stream=wants_stream))
    await upstream.request(2)
    gate.open()
    async with await asking as response:
        text = await response.text()
        assert response.status == status, text
        assert response.headers.get("Retry-After", "") == {429: "7", 503: "2"}.get(status, "")
    error = envelope(text)
    assert SECRET not in text and error["message"]
    for request in upstream.requests:
        async with asyncio.timeout(60):
            if request is not upstream.requests[place]:
                await request.closed.wait()
    await settled(proxy)
    scraped = await proxy.metrics()
    failed = {k: v for k, v in scraped.items() if k.startswith("wellspoken_upstream_errors_total")}
    cut = named.startswith("cut") or named == "reset"
    assert list(failed.values()) == ([1] if cut else [])
    labels = f'backend="default",code="{status}",model="_other",route="completions"'
    asked = str(wants_stream).lower()
    assert scraped[f'wellspoken_requests_total{{{labels},stream="{asked}"}}'] == 1


async def settled(proxy: Proxy) -> None:
    """Wait until nothing is left of a request: no handler, and none of its parts' tasks."""
    await until(lambda: not (proxy.service.state.inflight or parts()))


def parts() -> int:
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return names.count(Relay._relay_in_turn.__qualname__)


@pytest.mark.parametrize("ending", [[Cut()], [Reset()], [event({"error": {"message": SECRET}})]])
@pytest.mark.parametrize("place", [0, 1])
async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    ending: list[Step],
    place: int,
) -> None:
    gate = Gate()
    upstream.scripts = [stream(event(piece("a")), Stall()), stream(event(piece("b")), Stall())]
    upstream.scripts[place] = stream(event(piece("c")), gate, *ending)
    monkeypatch.setenv("BACKEND_KEY", SECRET)
    proxy = await start_proxy(upstream, adapter="llamacpp", key="env:BACKEND_KEY")
    async with await post(proxy, n=2, stream=True) as response:
        data = await read_until(response.content.readany, b'"text":"', 2)
        gate.open()
        data += await response.read()
    assert response.status == 200
    assert SECRET.encode() not in data
    assert len(errors(data)) == 1
    assert check_completion_stream(data, Request(model=MODEL, n=2)) == []  # the error is the last
    async with asyncio.timeout(60):
        await upstream.requests[1 - place].closed.wait()
    assert upstream.requests[1 - place].by_peer
    await settled(proxy)


async def test_the_error_event_is_not_lost_to_a_part_that_has_news_at_the_same_moment(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Both parts read in one step of the loop: the second finds the answer over."""
    gate = Gate()
    failing = stream(event(piece("a")), gate, event({"error": {"message": "no"}}))
    others = stream(event(piece("b")), gate, event(piece("c")), event(piece("d")), Stall())
    upstream.scripts = [failing, *[others] * 7]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, n=8, stream=True) as response:
        data = await read_until(response.content.readany, b'"text":"', 8)
        gate.open()
        data += await response.read()
    assert [x["message"] for x in errors(data)] == ["no"]
    assert b"[DONE]" not in data


async def test_two_failures_at_once_are_one_error(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, Cut()]]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    asking = asyncio.create_task(post(proxy, n=4))
    await upstream.request(3)
    gate.open()
    async with await asking as response:
        assert response.status == 502
        assert envelope(await response.text())["code"] == "backend_error"
    await settled(proxy)


async def test_nobody_listens(start_proxy: StartProxy) -> None:
    proxy = await start_proxy("http://127.0.0.1:1", adapter="llamacpp")
    for stream_wanted in (False, True):
        async with await post(proxy, n=4, stream=stream_wanted) as response:
            assert response.status == 502
            assert envelope(await response.text())["code"] == "backend_unavailable"


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_cancels_every_part(
    upstream: Upstream, start_proxy: StartProxy, wants_stream: bool, begun: bool
) -> None:
    script: Script = [Stall()]
    if begun and wants_stream:
        script = stream(event(piece("a")), Stall())
    elif begun:
        script = [head(length=99) + b"{", Stall()]
    upstream.scripts = [script]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    asking = asyncio.create_task(post(proxy, n=5, stream=wants_stream))
    await upstream.request(4)
    if begun and wants_stream:
        response = await asking
        await response.content.readany()
        response.close()
    else:
        await asyncio.sleep(0.02)
        asking.cancel()
    async with steady_clock() as clock, asyncio.timeout(60):
        for request in upstream.requests:
            await request.closed.wait()
        assert clock() < 0.25
    assert all(request.by_peer for request in upstream.requests)
    await settled(proxy)
    phase = "streaming" if begun and wants_stream else "waiting"
    scraped = await proxy.metrics()
    assert scraped[f'wellspoken_client_disconnects_total{{phase="{phase}"}}'] == 1


async def test_a_slow_client_stops_every_part(upstream: Upstream, start_proxy: StartProxy) -> None:
    count, big = 320, event(piece("x" * 100_000))  # more than the sockets on the way take
    upstream.scripts = [stream(*[big] * count, event(end()), DONE)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, n=2, stream=True) as response:

        def waiting() -> list[int]:
            return [
                connection.transport.get_write_buffer_size()
                for connection in upstream.connections
                if connection.transport is not None
            ]

        await until(lambda: len(waiting()) == 2 and min(waiting()) > 1_000_000)
        await asyncio.sleep(0.25)  # and it stays so
        assert len(waiting()) == 2 and min(waiting()) > 1_000_000
        data = await response.read()
    found = fold_completion(data)
    assert [len(x["text"]) for x in found["choices"]] == [count * 100_000] * 2
    assert data.endswith(DONE)


async def test_a_body_for_a_stream_and_a_stream_for_a_body(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script_choices(7, whole(one("a")), streamed(event(piece("b"))))
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, n=2, seed=7, stream=True) as response:
        data = await response.read()
    assert check_completion_stream(data, Request(model=MODEL, n=2)) == []
    assert [x["text"] for x in fold_completion(data)["choices"]] == ["a", "b"]
    found = await answered(proxy, n=2, seed=7)
    assert [x["text"] for x in found["choices"]] == ["a", "b"]


async def test_repairs_of_all_parts_are_told(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(one("a", finish_reason="eos")), whole(one("b"))]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, n=2) as response:
        assert "finish_reason_eos" in response.headers["x-wellspoken-repairs"]
    upstream.scripts = [
        stream(event(piece("a")), event(end("eos")), DONE),
        stream(event(piece("b")), event(end()), DONE),
    ]
    body = {"model": MODEL, "prompt": "a", "n": 2, "stream": True}
    explain = {"x-wellspoken-explain": "1"}
    url = proxy.url("/v1/completions")
    async with proxy.session.post(url, json=body, headers=explain) as response:
        data = await response.read()
    *_, comment, done = data.split(b"\n\n")[:-1]
    assert comment.startswith(b": repairs ") and b"finish_reason_eos=1" in comment
    assert done == b"data: [DONE]"


async def test_a_refused_key_that_was_passed_on_is_the_clients(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole({"error": {"message": "no"}}, status=401)]
    proxy = await start_proxy(upstream, adapter="llamacpp", auth="pass")
    for wants_stream in (False, True):
        async with await post(proxy, n=2, stream=wants_stream) as response:
            error = envelope(await response.text())
            assert (response.status, error["code"]) == (401, "invalid_api_key")


async def test_a_heartbeat_then_a_failure_is_an_error_event(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *whole({"error": {"message": "no"}}, status=500)], [Stall()]]
    proxy = await start_proxy(upstream, adapter="llamacpp", timeouts={"heartbeat": 0.05})
    async with await post(proxy, n=2, stream=True) as response:
        first = await response.content.readuntil(b"\n\n")
        assert first == b": keepalive\n\n"
        gate.open()
        data = await response.read()
    assert response.status == 200
    assert len(errors(data)) == 1 and b"[DONE]" not in data


async def test_a_part_that_says_nothing_fails_the_answer(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [streamed(event(piece("a"))), stream(DONE)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with await post(proxy, n=2) as response:
        assert response.status == 502 or "error" in await response.text()
    upstream.scripts = [streamed(event(piece("a"))), stream(DONE)]
    async with await post(proxy, n=2, stream=True) as response:
        data = await response.read()
    found = json.loads(data) if response.status != 200 else {"error": errors(data)[0]}
    assert found["error"]["code"]
    assert b"[DONE]" not in data


async def test_parts_reuse_connections(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [streamed(event(piece("a")))]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    await answered(proxy, n=3, stream=True)
    (target,) = proxy.service.state.router.targets
    assert target.upstream is not None
    await pass_trial(target.upstream.connections)  # of one; the others are closed
    for _ in range(3):
        await answered(proxy, n=3, stream=True)
    assert upstream.opened == 3 + 2


@pytest.mark.parametrize(("temperature", "requests"), [(0, 3), (1e-6, 3), (0.1, 1), (None, 1)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_vllm_is_asked_for_one_choice_of_temperature_0_at_a_time(
    upstream: Upstream,
    start_proxy: StartProxy,
    path: str,
    temperature: float | None,
    requests: int,
) -> None:
    """It refuses `n` above 1 then (vLLM 0.32's _verify_greedy_sampling); OpenAI takes it."""
    completion = path == "/v1/completions"
    single = one("a") if completion else conforming.body()
    choices = [{**single["choices"][0], "index": index} for index in range(3 // requests)]
    upstream.script(path, whole({**single, "choices": choices}))
    proxy = await start_proxy(upstream, adapter="vllm")
    given = {"prompt": "Hi"} if completion else {"messages": MESSAGES}
    wanted = {"model": MODEL, "n": 3, "temperature": temperature, **given}
    async with proxy.session.post(proxy.url(path), json=wanted) as response:
        choices = (await response.json())["choices"]
    sent = [request.json().get("n") for request in upstream.requests if request.target == path]
    assert sent == ([1, 1, 1] if requests == 3 else [3])
    assert len(choices) == 3
