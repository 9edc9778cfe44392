"""A real vLLM that dies or is ended while it answers: never an answer that looks complete."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import openai
import pytest
from aiohttp import ClientPayloadError, ClientSession, ServerDisconnectedError

from tests.conformance import check_error, check_stream
from tests.corpus import checked_request
from tests.fold import chunks_of, payloads
from tests.live.vllm.asking import CHAT, NO_CONTROLS, question
from tests.live.vllm.conftest import StartProxy
from tests.live.vllm.server import Server
from tests.models.tiny_hf import CONTEXT, Tokens

STARTED = 2  # events of a stream before the fault: its role, and text
STATUS = {None: 500, "backend_timeout": 504}  # by the error's code: vLLM's own has none; else 502
TRIES = 20  # of a stream that is to be ended before its limit
BIG = 4_000_000
PATIENCE = 10.0


def long(tokens: Tokens, **more: Any) -> dict[str, Any]:
    """Return a request that takes seconds: to the end of the context, of two letters alone."""
    bias = NO_CONTROLS | {str(tokens.ids[letter]): 100.0 for letter in (b"a", b"b")}
    asked = question(logit_bias=bias, logprobs=True, top_logprobs=20, temperature=1, seed=1)
    return asked | {"max_tokens": CONTEXT - 20, "ignore_eos": True, **more}


class Reading:
    """A stream as it comes; `data` is what came, `cut` whether the connection broke."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.data = b""
        self.cut = False

    async def read(self, session: ClientSession, url: str, payload: dict[str, Any]) -> None:
        try:
            async with session.post(url, json=payload | {"stream": True}) as answer:
                assert answer.status == 200
                async for part in answer.content.iter_any():
                    self.data += part
                    if self.data.count(b"\n\n") >= STARTED:
                        self.started.set()
        except (ClientPayloadError, ServerDisconnectedError):
            self.cut = True
        finally:
            self.started.set()

    @property
    def events(self) -> list[Any]:
        return chunks_of(self.data)

    @property
    def reasons(self) -> set[str]:
        found = {c.get("finish_reason") for e in self.events for c in e.get("choices", ())}
        return {reason for reason in found if reason}


async def body(session: ClientSession, url: str, payload: dict[str, Any]) -> tuple[int, bytes]:
    """Return status and body; 0 where the connection broke."""
    try:
        async with session.post(url, json=payload) as answer:
            return answer.status, await answer.read()
    except (ClientPayloadError, ServerDisconnectedError):
        return 0, b""


def check_failed_stream(reading: Reading, payload: dict[str, Any]) -> dict[str, Any]:
    """Assert one error event at the end, no [DONE] and no reason; return the error."""
    assert not reading.cut
    assert check_stream(reading.data, checked_request(payload)) == []
    assert b"[DONE]" not in reading.data
    assert [("error" in event) for event in reading.events].count(True) == 1
    assert reading.reasons == set()
    error: dict[str, Any] = reading.events[-1]["error"]
    assert error["type"] == "server_error" and error["message"]
    return error


def check_each(reading: Reading, given: tuple[int, bytes], payload: dict[str, Any]) -> None:
    """Assert that stream and body are an error, or were whole before the fault, to the last token.

    An engine runs ahead of what its server has written, so on a busy machine it may be done.
    """
    if reading.reasons:
        assert reading.reasons == {"length"} and reading.data.endswith(b"data: [DONE]\n\n")
        assert check_stream(reading.data, checked_request(payload)) == []
        assert count_entries(reading.events) == payload["max_tokens"]
    else:
        check_failed_stream(reading, payload)
    status, data = given
    if status == 200:
        answer = json.loads(data)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert count_entries([answer]) == payload["max_tokens"]
    else:
        assert status in (500, 502, 504) and check_error(data, status) == []
        error = json.loads(data)["error"]
        assert error["type"] == "server_error" and STATUS.get(error["code"], 502) == status


def count_entries(answers: list[Any]) -> int:
    """Return how many tokens a body, or a stream's chunks, tell the numbers of."""
    choices = [choice for answer in answers for choice in answer["choices"]]
    return sum(len(x["logprobs"]["content"]) for x in choices if x["logprobs"])


async def faulted(
    victim: Server, proxy: str, payload: dict[str, Any], fault: Callable[[], None]
) -> tuple[Reading, Reading, tuple[int, bytes], tuple[int, bytes]]:
    """Ask four ways, commit the fault in the middle; return vLLM's and the proxy's answers."""
    own, through = Reading(), Reading()
    direct, url = victim.url + CHAT, proxy + CHAT
    async with ClientSession(read_bufsize=BIG) as session, asyncio.TaskGroup() as group:
        streams = [
            group.create_task(reading.read(session, at, payload))
            for reading, at in ((own, direct), (through, url))
        ]
        bodies = [group.create_task(body(session, at, payload)) for at in (direct, url)]
        await asyncio.gather(own.started.wait(), through.started.wait())
        fault()
        await asyncio.wait([streams[1], bodies[1]])
        await asyncio.to_thread(victim.stop)  # it may never end its own answers
    return own, through, bodies[0].result(), bodies[1].result()


async def test_a_killed_engine_is_an_error_never_an_end(
    victim: Server, start_proxy: StartProxy, tokens: Tokens
) -> None:
    """vLLM tells a stream so, then sends [DONE]; a body is a 500 in an envelope of its own."""
    proxy = await start_proxy(victim.url)
    payload = long(tokens)
    engine = victim.engine_core()
    own, through, own_body, through_body = await faulted(
        victim, proxy, payload, lambda: os.kill(engine, signal.SIGKILL)
    )
    assert own.reasons <= {"length"} and own_body[0] in (0, 200, 500)
    assert through_body[0] != 504
    check_each(through, through_body, payload)
    async with openai.AsyncOpenAI(base_url=f"{proxy}/v1", api_key="x", max_retries=0) as sdk:
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.chat.completions.create(**question())
    assert caught.value.status_code == 502


async def test_a_server_ended_meanwhile_is_an_error(
    victim: Server, start_proxy: StartProxy, tokens: Tokens
) -> None:
    """vLLM answers 200 with finish_reason `abort`, and [DONE]; or with 500; or nothing more.

    The last when it kills its engine before that has told of the aborted requests: the connections
    stay open, and only a time limit ends the answers. Which of these it is differs from one of its
    answers to the next.
    """
    proxy = await start_proxy(
        victim.url, timeouts={"between_chunks": PATIENCE, "first_token_body": PATIENCE}
    )
    payload = long(tokens)
    own, through, own_body, through_body = await faulted(
        victim, proxy, payload, victim.process.terminate
    )
    assert own.reasons <= {"abort", "length"} and own_body[0] in (0, 200, 500)
    check_each(through, through_body, payload)


async def test_an_aborted_stream_is_an_error(vllm: str, proxy: str, tokens: Tokens) -> None:
    """vLLM's own endpoint ends one request: its stream says `abort`, then [DONE].

    Its engine runs ahead of what its server has written, so an answer may be at its limit before
    the first of it is read; then both are asked for again.
    """
    payload = long(tokens)
    for key in ("logprobs", "top_logprobs"):  # which keep the server behind its engine
        del payload[key]
    for _ in range(TRIES):
        own, through = await aborted(vllm, proxy, payload)
        if own.reasons == {"abort"} and not through.reasons:
            break
        assert own.reasons <= {"length", "abort"} and own.data.endswith(b"data: [DONE]\n\n")
        if through.reasons:
            assert through.reasons == {"length"} and b"[DONE]" in through.data
    assert own.reasons == {"abort"} and own.data.endswith(b"data: [DONE]\n\n")
    assert check_failed_stream(through, payload)["code"] == "upstream_abort"


async def aborted(vllm: str, proxy: str, payload: dict[str, Any]) -> tuple[Reading, Reading]:
    """Ask both ways, and end each stream as soon as it has begun; return the answers."""
    own, through = Reading(), Reading()

    async def abort(reading: Reading, session: ClientSession) -> None:
        await reading.started.wait()
        whole = reading.data[: reading.data.rindex(b"\n\n") + 2]
        asked = {"request_ids": [json.loads(next(payloads(whole)))["id"]]}
        async with session.post(f"{vllm}/inference/v1/abort_requests", json=asked) as answer:
            assert answer.status == 200

    async with ClientSession(read_bufsize=BIG) as session, asyncio.TaskGroup() as group:
        for reading, base in ((own, vllm), (through, proxy)):
            group.create_task(reading.read(session, base + CHAT, payload))
            group.create_task(abort(reading, session))
    return own, through
