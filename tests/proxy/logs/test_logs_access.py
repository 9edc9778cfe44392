"""One line for each request: what it says of one that went well, and of every way to fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientError

from tests.conforming import MODEL
from tests.fakes.upstream import (
    DONE,
    Cut,
    Gate,
    Pause,
    Reset,
    Stall,
    Step,
    Upstream,
    event,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, Proxy, StartProxy, raw
from tests.proxy.endpoints.responses.asking import create, create_stream, says, streams
from tests.proxy.endpoints.test_chat_body import BROKEN, PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS, WORDS, read_word
from tests.proxy.logs.logging_here import Written, logging_to, requests
from tests.waiting import until
from wellspoken.adapters.events import Fault
from wellspoken.proxy.relay.outcome import level_of, outcome_of
from wellspoken.proxy.relay.records import Results
from wellspoken.proxy.server import Service

TIMES = {"duration", "ttft", "overhead"}


async def outcome(written: Written) -> str:
    """Return how the only request ended, with its level, status and error's code."""
    (line,) = await requests(written)
    return f"{line['level']} {line['status']} {line['outcome']} {line.get('error', '')}".rstrip()


async def test_a_line_says_what_a_request_was(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    upstream.scripts = [whole({**json.loads(PLAIN), "usage": usage})]
    proxy = await start_proxy(upstream, name="tiny", models=[MODEL])
    written.observe(proxy.service)
    async with await proxy.chat({"x-request-id": "mine-1"}) as response:
        assert response.status == 200
    (line,) = await requests(written)
    assert {key: value for key, value in line.items() if key not in {"time", *TIMES}} == {
        "level": "info",
        "event": "request",
        "id": "mine-1",
        "method": "POST",
        "route": "chat_completions",
        "status": 200,
        "outcome": "ok",
        "stream": False,
        "model": MODEL,
        "backend": "tiny",
        "prompt_tokens": 7,
        "completion_tokens": 9,
    }
    assert 0 < line["overhead"] < line["duration"] < 120
    assert "ttft" not in line


async def test_a_stream_has_a_first_token_and_repairs_have_names(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    gate = Gate()
    upstream.scripts = [stream(*EVENTS[:2], gate, *EVENTS[2:], DONE), whole(BROKEN)]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    async with await proxy.chat(stream=True) as response:
        await read_word(response, WORDS[0])
        began = perf_counter()
        await asyncio.sleep(0.1)
        waited = perf_counter() - began
        gate.open()
        await response.read()
    async with await proxy.chat() as response:
        named = response.headers["x-wellspoken-repairs"].split(", ")
    first, second = await requests(written, 2)
    assert first["stream"] is True
    assert 0 < first["ttft"] <= first["duration"] - waited
    assert 0 < first["overhead"] <= first["duration"] - waited
    assert list(second["repairs"]) == named and named
    assert all(count >= 1 for count in second["repairs"].values())


def refusing(code: str) -> list[Step]:
    return whole({"error": {"message": "no", "code": code}}, status=400)


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (whole(PLAIN), "info 200 ok"),
        (refusing("context_length_exceeded"), "info 400 upstream_refused context_length_exceeded"),
        (refusing("a secret sentence"), "info 400 upstream_refused"),
        (whole({"error": "busy"}, status=503), "warning 503 upstream_error:answer"),
        (whole({"error": "no key"}, status=401), "warning 502 upstream_error:answer b"),
        (whole(b"<html>", 200, "text/html"), "warning 502 upstream_error:answer"),
        ([Cut()], "warning 502 upstream_error:cut backend_error"),
        ([Reset()], "warning 502 upstream_error:cut backend_error"),
        ([b"SSH-2.0\r\n", Cut()], "warning 502 upstream_error:protocol backend_error"),
        ([Stall()], "warning 504 upstream_error:first_byte_timeout backend_timeout"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_how_an_answer_ended(
    upstream: Upstream,
    start_proxy: StartProxy,
    written: Written,
    script: list[Step],
    wanted: str,
    streams: bool,
) -> None:
    upstream.scripts = [script]
    limits = {"first_token_body": 0.2, "first_token_stream": 0.2} if "timeout" in wanted else {}
    proxy = await start_proxy(upstream, timeouts=limits)
    written.observe(proxy.service)
    async with await proxy.chat(stream=streams) as response:
        await response.read()
    assert (await outcome(written)).startswith(wanted)


async def test_a_backend_that_is_not_there(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    await upstream.refuse()
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    await proxy.error(502)
    assert await outcome(written) == "warning 502 upstream_error:refused backend_unavailable"


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        ([Cut()], "warning 200 error_in_stream:cut backend_error"),
        ([Stall()], "warning 200 error_in_stream:chunk_timeout backend_timeout"),
        (stream()[1:], "warning 200 error_in_stream:cut upstream_cut"),
        ([b"5\r\nevent"], "warning 200 error_in_stream:chunk_timeout backend_timeout"),
    ],
)
@pytest.mark.parametrize("n", [None, 2])
async def test_a_stream_that_fails_on_its_way(
    upstream: Upstream,
    start_proxy: StartProxy,
    written: Written,
    end: list[Step],
    wanted: str,
    n: int | None,
) -> None:
    upstream.scripts = [stream(*EVENTS[:2], Pause(0.02), end=False) + end]
    seconds = 0.2 if "chunk_timeout" in wanted else 60.0
    proxy = await start_proxy(upstream, timeouts={"between_chunks": seconds})
    written.observe(proxy.service)
    more: dict[str, Any] = {} if n is None else {"n": n}
    async with await proxy.chat(stream=True, **more) as response:
        assert b'"error"' in await response.read()
    assert await outcome(written) == wanted


@pytest.mark.parametrize(
    "script", [whole({"error": {"message": "full"}}, status=500), [Cut()], stream(event("{"))]
)
async def test_a_failure_after_a_sign_of_life(
    upstream: Upstream, start_proxy: StartProxy, written: Written, script: list[Step]
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *script]]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.05})
    written.observe(proxy.service)
    async with await proxy.chat(stream=True) as response:
        gate.open()  # the head has left
        assert b'"error"' in await response.read()
    assert (await outcome(written)).startswith("warning 200 error_in_stream")


async def test_an_untouched_stream_that_is_cut(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [[*stream(EVENTS[0], Pause(0.05), end=False), Cut()]]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    async with await proxy.chat(stream=True, oai_compat=False) as response:
        with pytest.raises(ClientError):
            await response.read()
    assert await outcome(written) == "warning 200 error_in_stream:cut backend_error"


@pytest.mark.parametrize("phase", ["waiting", "streaming"])
async def test_a_client_that_leaves(
    upstream: Upstream, start_proxy: StartProxy, written: Written, phase: str
) -> None:
    upstream.scripts = [
        [*(stream(*EVENTS[:2], end=False) if phase == "streaming" else []), Stall()]
    ]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    task = asyncio.create_task(proxy.chat(stream=True))
    await upstream.request()
    if phase == "streaming":
        response = await task
        await read_word(response, WORDS[0])
        response.close()
    else:
        task.cancel()
    assert await outcome(written) == f"info 499 disconnected:{phase}"


async def test_a_request_that_the_proxys_end_cuts_off(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [[*stream(*EVENTS[:2], end=False), Stall()]]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    async with await proxy.chat(stream=True) as response:
        await read_word(response, WORDS[0])
        await proxy.service.stop()
        assert await outcome(written) == "info 499 stopped:streaming"


async def test_a_client_that_leaves_while_the_proxy_drains(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [[*stream(*EVENTS[:2], end=False), Stall()]]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    async with await proxy.chat(stream=True) as response:
        await read_word(response, WORDS[0])
        proxy.service.state.draining = True
        response.close()
        assert await outcome(written) == "info 499 disconnected:streaming"


async def test_what_the_proxy_refuses(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(
        {"url": upstream.url, "name": "a", "models": ["a"], "caps": {"n": 1}},
        {"url": upstream.url, "name": "b", "models": ["b"]},
    )
    written.observe(proxy.service)
    await proxy.error(404, model="x\n{}")
    await proxy.error(400, model="a", temperature="hot")
    await proxy.error(400, model="a", n=3)
    await proxy.error(400, model="a", n=3, stream=True)
    await raw(proxy.port, b"NONSENSE\r\n\r\n")
    lines = await requests(written, 5)
    assert [(line["status"], line["outcome"]) for line in lines] == [
        (404, "refused"),
        *[(400, "refused")] * 4,
    ]
    assert lines[0]["error"] == "model_not_found"
    assert [line.get("backend") for line in lines] == [None, None, "a", "a", None]


@pytest.mark.parametrize("streams", [False, True])
async def test_a_bug_of_the_proxys_own(
    upstream: Upstream,
    start_proxy: StartProxy,
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    streams: bool,
) -> None:
    upstream.scripts = [stream(*EVENTS, Pause(0.05), DONE) if streams else whole(PLAIN)]
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)

    def broken(*_: Any) -> None:
        raise ValueError("".join(("can", "ary")))

    monkeypatch.setattr("wellspoken.proxy.relay.call.Call.count_answer", broken)
    async with await proxy.chat(stream=streams) as response:
        await response.read()
    assert (await outcome(written)).startswith(f"error {200 if streams else 500} proxy_error")
    failed = next(line for line in written.lines() if "exception" in line)
    assert "ValueError" in failed["exception"] and "answer.py" in failed["exception"]
    assert "canary" not in json.dumps(written.lines())


async def test_health_and_metrics_are_there_at_level_debug_alone(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.script("/health", whole({}))
    upstream.script("/metrics", whole(b"# no\n", content_type="text/plain"))
    proxy = await start_proxy(upstream)
    paths = ["/livez", "/readyz", "/health", "/metrics", "/backend/metrics"]
    with (
        logging_to(tmp_path / "debug", level="debug") as debug,
        logging_to(tmp_path / "info", level="info") as info,
    ):
        debug.observe(proxy.service)
        info.observe(proxy.service)
        for path in [*paths, "/v1/nothing"]:
            async with proxy.session.get(proxy.url(path)) as response:
                await response.read()
        lines = await requests(debug, 6)
        assert [line["level"] for line in lines] == ["debug"] * 5 + ["info"]
        assert [line["path"] for line in info.requests()] == ["/v1/nothing"]


async def test_a_level_above_info_leaves_what_somebody_has_to_see_to(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.scripts = [whole(PLAIN), [Cut()], whole(PLAIN)]
    proxy = await start_proxy(upstream)
    with logging_to(tmp_path / "log", level="warning") as written:
        written.observe(proxy.service)
        for _ in range(3):
            async with await proxy.chat() as response:
                await response.read()
        (line,) = await requests(written)
        assert line["outcome"] == "upstream_error:cut"


async def test_no_line_where_none_is_wanted(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    with logging_to(tmp_path / "log", access=False, level="debug") as written:
        written.observe(proxy.service)
        async with await proxy.chat() as response:
            await response.read()
        await until(lambda: not proxy.service.state.inflight)
        assert written.lines() == []


def test_each_outcome_is_told_and_none_is_a_clients_to_make() -> None:
    """The checker of the table below: what a client or a backend says is no part of an outcome."""
    assert {level_of(one) for one in ("ok", "refused", "disconnected:waiting")} == {"info"}
    assert level_of("error_in_stream") == "warning"

    results = Results(fault=Fault(502, "", code="upstream_BAD thing\n"))
    call: Any = SimpleNamespace(results=results, routing=SimpleNamespace(backend="b"))
    assert outcome_of(call, 502) == "upstream_error:answer"
    results.fault = Fault(502, "", code="upstream_cut")
    assert outcome_of(call, 502) == "upstream_error:cut"
    assert outcome_of(call, 200) == "error_in_stream:cut"


async def test_the_service_tells_each_request_once(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy: Proxy = await start_proxy(upstream)
    service: Service = proxy.service
    written.observe(service)

    async def one() -> None:
        async with await proxy.chat() as response:
            await response.read()

    await asyncio.gather(*(one() for _ in range(50)))
    lines = await requests(written, 50)
    assert len({line["id"] for line in lines}) == 50
    assert upstream.requests[0].target == CHAT


async def test_what_passes_through_has_its_tokens(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [whole({"usage": {"input_tokens": 5, "output_tokens": 6}})]
    proxy = await start_proxy(upstream, endpoints=["/v1/responses"], responses="pass")
    written.observe(proxy.service)
    asked = {"model": MODEL, "input": "Hi"}
    async with proxy.session.post(proxy.url("/v1/responses"), json=asked) as response:
        assert response.status == 200
    (line,) = await requests(written)
    assert (line["route"], line["prompt_tokens"], line["completion_tokens"]) == ("responses", 5, 6)


async def test_a_response_has_a_chats_line(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [says("Hello"), streams("Hel", "lo"), [*streams("Hel", end=False), Cut()]]
    proxy = await start_proxy(upstream, name="tiny")
    written.observe(proxy.service)
    await create(proxy)
    await create_stream(proxy)
    await create_stream(proxy)
    await create(proxy, 400, previous_response_id="resp_none")
    lines = await requests(written, 4)
    assert [(x["route"], x["status"], x["stream"], x["outcome"]) for x in lines] == [
        ("responses", 200, False, "ok"),
        ("responses", 200, True, "ok"),
        ("responses", 200, True, "error_in_stream:cut"),
        ("responses", 400, False, "refused"),
    ]
    for line in lines[:2]:
        assert (line["model"], line["backend"]) == (MODEL, "tiny")
        assert (line["prompt_tokens"], line["completion_tokens"]) == (5, 2)
        assert 0 < line["overhead"] < line["duration"]
    assert "ttft" in lines[1] and "ttft" not in lines[0]


async def test_a_trace_is_found_from_its_request(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)

    def traced(call: Any, code: int) -> None:
        call.results.trace = SimpleNamespace(id="0af7651916cd43dd8448eb211c80319c")

    proxy.service.hooks.observers.append(traced)
    written.observe(proxy.service)
    async with await proxy.chat() as response:
        await response.read()
    (line,) = await requests(written)
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
