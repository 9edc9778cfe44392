"""An engine that ends in the middle of an answer: the client is never told that it was complete.

The answers are constructed: the last words of a vLLM that is shut down or whose engine died are as
adapters/servers/known/vllm.py tells them of 0.32.0, a 200 with finish_reason "abort" or an error
event, and then [DONE].
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.conforming import body
from tests.conforming_completions import body as completion
from tests.fakes.engine import EngineProxy, engine_proxy
from tests.fakes.upstream import Cut, Gate, Reset, Script, Step, event, head, stream, whole
from tests.proxy.conftest import MESSAGES, envelope
from tests.proxy.posting import post

Json = dict[str, Any]
Make = Callable[..., AbstractAsyncContextManager[EngineProxy]]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Run a proxy with an engine: `async with make(script, ...) as running`."""

    def of(*scripts: Script, **more: Any) -> AbstractAsyncContextManager[EngineProxy]:
        return engine_proxy(monkeypatch, *scripts, **more)

    return of


@pytest.fixture
async def running(make: Make) -> AsyncIterator[EngineProxy]:
    """A proxy whose engine is ready; tests say what it answers."""
    async with make() as made:
        await made.ready()
        yield made


def piece(path: str, text: str, reason: str | None = None) -> bytes:
    """Return one event of a stream at this path, as vLLM 0.32.0 writes it."""
    part: Json = {"delta": {"content": text}} if path == CHAT else {"text": text}
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    choice = {"index": 0, **part, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return event({"id": "x-1", "object": kind, "created": 1_790_000_000, "choices": [choice]})


def asked(path: str, **more: Any) -> Json:
    return {"model": "m", **({"messages": MESSAGES} if path == CHAT else {"prompt": "a"}), **more}


def one_error(text: str) -> Json:
    """Return the error object of a broken stream, which has to end in just that."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data")]
    assert "[DONE]" not in events and not any("error" in json.loads(x) for x in events[:-1])
    for given in events[:-1]:
        for choice in json.loads(given)["choices"]:
            assert choice["finish_reason"] is None
    return envelope(events[-1])


def aborted(answer: Json) -> Json:
    answer["choices"][0]["finish_reason"] = "abort"
    return answer


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_aborted_body_is_an_error(running: EngineProxy, path: str) -> None:
    running.upstream.scripts = [whole(aborted(body() if path == CHAT else completion()))]
    async with await post(running.proxy, path, asked(path)) as response:
        text = await response.text()
        assert response.status == 502, text
        assert "aborted" in envelope(text)["message"]


STREAMS: dict[str, Callable[[str], list[Step]]] = {
    "aborted": lambda path: stream(piece(path, "Hi"), piece(path, "", "abort"), DONE),
    "aborted at once": lambda path: stream(piece(path, "", "abort"), DONE),
    "without an end": lambda path: stream(piece(path, "Hi")),
    "cut": lambda path: stream(piece(path, "Hi"), Cut()),
    "reset": lambda path: stream(piece(path, "Hi"), Reset()),
    "cut in an event": lambda path: stream(piece(path, "Hi"), piece(path, "you")[:20], Cut()),
    "said to be dead": lambda path: stream(
        piece(path, "Hi"),
        event({"error": {"message": "EngineCore encountered an issue.", "code": 500}}),
        DONE,
    ),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("kind", STREAMS)
async def test_a_broken_stream_ends_in_one_error(
    running: EngineProxy, kind: str, path: str, n: int
) -> None:
    running.upstream.scripts = [STREAMS[kind](path)]
    async with await post(running.proxy, path, asked(path, stream=True, n=n)) as response:
        text = await response.text()
        if response.status == 200:
            error = one_error(text)
        else:
            assert kind == "aborted at once" and response.status == 502
            error = envelope(text)
    assert error["type"] == "server_error"
    if kind in ("cut", "reset"):
        assert "engine (vLLM)" in error["message"] and "starts it again" in error["message"]
    await running.settled()


def test_one_error_sees_a_stream_that_looks_complete() -> None:
    """The check itself: each of these must be rejected."""
    error = event({"error": {"message": "m", "type": "t", "param": None, "code": None}}).decode()
    good = piece(CHAT, "Hi").decode()
    assert one_error(good + error)["message"] == "m"
    for wrong in (
        good + error + DONE.decode(),
        good + piece(CHAT, "", "stop").decode() + error,
        good + error + error,
        good,
    ):
        with pytest.raises((AssertionError, KeyError)):
            one_error(wrong)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/embeddings", "/tokenize"])
async def test_a_body_cut_by_the_engines_end_is_an_error(running: EngineProxy, path: str) -> None:
    gate = Gate()
    running.upstream.scripts = [[head(length=500) + b'{"id": "x",', gate]]
    given = asked(path) if path in (CHAT, TEXT) else {"model": "m", "input": "a", "prompt": "a"}
    asking = asyncio.create_task(post(running.proxy, path, given))
    await gate.reached.wait()
    await running.end()
    async with await asking as response:
        error = envelope(await response.text())
        assert response.status == 502
    assert "engine (vLLM)" in error["message"] and "starts it again" in error["message"]
    running.gate.set()
    await running.state("ready")
    assert len(running.upstream.requests) == 1
    await running.settled()


@pytest.mark.parametrize("listening", [True, False])
async def test_an_engine_that_is_ended_fails_what_is_open(
    running: EngineProxy, listening: bool
) -> None:
    """Also where its connections stay open, as those of a child that was not killed would."""
    gate = Gate()
    running.upstream.scripts = [stream(piece(CHAT, "Hi"), gate)]
    async with await running.proxy.chat(stream=True) as response:
        await gate.reached.wait()
        if not listening:
            await running.upstream.refuse()
        running.gate.clear()
        running.end_process()
        error = one_error((await response.read()).decode())
    assert "engine (vLLM)" in error["message"]
    await running.settled()


async def test_a_stream_with_comments_before_it_ends_in_one_error_too(make: Make) -> None:
    async with make([Cut()], tables={"timeouts": {"heartbeat": 0.03}}) as running:
        await running.ready()
        await running.end()
        async with await running.proxy.chat(stream=True) as response:
            assert response.status == 200
            running.gate.set()
            text = (await response.read()).decode()
    assert text.startswith(": keepalive\n\n") and "engine (vLLM)" in one_error(text)["message"]


@pytest.mark.parametrize(
    ("n", "script"),
    [
        (None, [head(length=9), Cut()]),
        (1, stream(piece(CHAT, "Hi"))),  # as an answer without a length ends
        (2, stream(piece(CHAT, "Hi"))),
    ],
)
async def test_what_ends_too_early_has_the_engine_looked_at(
    running: EngineProxy, monkeypatch: pytest.MonkeyPatch, n: int | None, script: Script
) -> None:
    looked, seen = asyncio.Event(), asyncio.Event()

    async def look() -> None:
        looked.set()
        await seen.wait()

    monkeypatch.setattr(running.supervisor, "suspect", look)
    running.upstream.scripts = [script]
    running.target.lone = n == 2  # so that each choice is asked for by itself
    if n is None:
        await running.proxy.error(502)
    else:
        async with await running.proxy.chat(stream=True, n=n) as response:
            text = await response.text()
            if response.status == 502 and n == 2:
                envelope(text)  # the end of the one may come before the first chunk of the other
            else:
                one_error(text)
    await looked.wait()
    running.upstream.scripts = [whole(body())]
    sent = len(running.upstream.requests)
    asking = asyncio.create_task(running.proxy.chat())
    await asyncio.sleep(0.05)
    assert len(running.upstream.requests) == sent  # the next one waits for what is found
    running.upstream.script("/health", whole({}))
    seen.set()
    async with await asking as response:
        assert response.status == 200


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_complete_answer_is_not_lost_for_its_counts(
    make: Make, streams: bool, seen: bool
) -> None:
    """The engine ends once it has answered; `seen`: that is known before its tokens are counted."""
    gate = Gate()
    given = body()
    del given["usage"]
    data = json.dumps(given).encode()
    closing = head(length=len(data), headers=[("Connection", "close")])
    async with make([closing + data[:9], gate, data[9:]], wait=0.05) as running:
        await running.ready()
        running.gate.clear()
        more: Json = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
        asking = asyncio.create_task(running.proxy.chat(**more))
        await gate.reached.wait()
        assert running.upstream.path is not None
        running.upstream.path.unlink()
        if seen:
            await running.supervisor.suspect()
            await running.state("draining")
        gate.open()
        async with await asking as response:
            text = await response.text()
            assert response.status == 200, text
        assert '"finish_reason":"stop"' in text and '"completion_tokens":' in text
        assert '"error"' not in text and len(running.upstream.requests) == 1
        await running.settled()
        running.end_process(0)
        refused = 'wellspoken_upstream_errors_total{backend="engine",reason="refused"}'
        assert (await running.proxy.metrics()).get(refused) == (None if seen else 1.0)
