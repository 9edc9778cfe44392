"""Engines that hang, seem to, or say that they are dead: what the watchdog makes of each."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clock import skip
from tests.engine.scripted import ScriptedKind, SocketServer
from tests.waiting import SECONDS, until
from wellspoken.engine import watchdog as module
from wellspoken.engine.kind import Facts, Settings
from wellspoken.engine.unix_http import Client, Silent
from wellspoken.engine.watchdog import Watchdog

COMPLETIONS = "/v1/completions"


class Watched:
    """A watchdog over a scripted server, with the bytes and requests that the test says."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.open = 0
        self.last_byte = 0.0
        chosen = {"health_interval": 0.02, "health_timeout": SECONDS, "health_failures": 3}
        self.watchdog = Watchdog(
            ScriptedKind(),
            Settings(**{**chosen, "stall_timeout": 0.0, **settings}),
            Client(path),
            Facts(),
            lambda: self.last_byte,
            lambda: self.open,
        )
        self.verdict = asyncio.create_task(self.watchdog.verdict())

    async def ended(self) -> str:
        """Wait for the verdict; return the problem."""
        await asyncio.wait_for(self.verdict, 60)
        return self.watchdog.problem

    async def look(self, server: SocketServer) -> None:
        """Return after a whole look at a server that answers /health, or with a verdict."""
        wanted = server.asked.count("/health") + 2
        await until(lambda: server.asked.count("/health") >= wanted or self.verdict.done())

    async def lives(self, asked: list[str], more: int) -> None:
        """Fail if there is a verdict while so many more questions come to the engine."""
        wanted = len(asked) + more
        await until(lambda: len(asked) >= wanted or self.verdict.done())
        assert not self.verdict.done(), self.watchdog.problem
        self.verdict.cancel()


@pytest.fixture
async def server(short: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SocketServer]:
    monkeypatch.setattr(module, "AGAIN", 0.02)
    async with SocketServer(short / "s") as running:
        yield running


async def test_one_that_answers_lives(server: SocketServer) -> None:
    watched = Watched(server.path, stall_timeout=0.2)
    await watched.lives(server.asked, 20)
    assert "/metrics" not in server.asked


async def test_an_idle_one_that_does_not_answer_is_hung(server: SocketServer) -> None:
    server.answers["/health"] = None
    watched = Watched(server.path, stall_timeout=60.0)
    for count in range(1, 4):
        await until(lambda: server.asked == ["/health"] * count)  # noqa: B023
        assert not watched.verdict.done()
        skip(SECONDS)
    assert await watched.ended() == "did not answer GET /health 3 times in a row"
    assert server.asked == ["/health"] * 3


async def test_a_busy_one_may_be_too_busy_for_its_health(server: SocketServer) -> None:
    """llama.cpp has few threads for connections, and each stream holds one."""
    server.answers["/health"] = None
    watched = Watched(server.path, stall_timeout=60.0, health_timeout=0.05)
    watched.open = 9
    await watched.lives(server.asked, 6)
    watched = Watched(server.path, health_timeout=0.05)  # no stalls are watched, but bytes come
    watched.last_byte = asyncio.get_running_loop().time() + SECONDS
    await watched.lives(server.asked, 6)


async def test_two_errors_in_a_row_say_that_it_is_dead(server: SocketServer) -> None:
    server.answers["/health"] = (503, b"")
    problem = await Watched(server.path).ended()
    assert problem == "said that it is dead (GET /health answered 503)"
    assert len(server.asked) == 2


async def test_nobody_listens(short: Path) -> None:
    watched = Watched(short / "s")
    assert await watched.ended() == ""
    assert watched.watchdog.closed


async def test_a_look_does_not_wait_for_its_turn(server: SocketServer) -> None:
    watched = Watched(server.path, health_interval=0.0)
    await asyncio.wait_for(watched.watchdog.look(), 60)
    assert server.asked == ["/health"]
    await asyncio.wait_for(watched.watchdog.look(), 60)
    assert server.asked == ["/health"] * 2
    watched.verdict.cancel()


async def stall(watched: Watched, server: SocketServer) -> str:
    """Let the clock go on for one whose counters stand still; return the problem.

    By the clock it has 15 s for each answer, so that none is late because the machine is.
    """
    skip(20)
    await until(lambda: server.asked.count("/metrics") > 2)
    skip(60)
    await until(lambda: COMPLETIONS in server.asked)
    assert not watched.verdict.done()
    skip(15)
    return await watched.ended()


async def test_open_requests_and_counters_that_stand_still(server: SocketServer) -> None:
    server.answers["/metrics"] = (200, b"tokens 7")
    server.answers[COMPLETIONS] = None
    watched = Watched(server.path, stall_timeout=60.0)
    watched.open = 2
    problem = await stall(watched, server)
    assert problem.startswith("worked on nothing for ")
    assert problem.endswith("while 2 requests wait")
    assert server.asked[-1] == COMPLETIONS


async def test_bytes_do_not_outweigh_counters_that_stand_still(server: SocketServer) -> None:
    """vLLM begins answers while its EngineCore hangs, and answers what needs none."""
    server.answers["/metrics"] = (200, b"tokens 7")
    server.answers[COMPLETIONS] = None
    watched = Watched(server.path, stall_timeout=60.0)
    watched.open = 1
    watched.last_byte = asyncio.get_running_loop().time() + 600
    assert "worked on nothing" in await stall(watched, server)


@pytest.mark.parametrize("how", ["bytes", "counters", "answers metrics", "one token", "refuses"])
async def test_signs_of_work(server: SocketServer, how: str) -> None:
    loop = asyncio.get_running_loop()
    server.answers["/metrics"] = (200, b"tokens 7") if how != "answers metrics" else (200, b"")
    if how == "bytes":
        server.answers["/metrics"] = (99, b"")  # no HTTP
    server.answers[COMPLETIONS] = None
    if how in ("one token", "refuses"):
        server.answers[COMPLETIONS] = (200 if how == "one token" else 400, b"{}")
    watched = Watched(server.path, stall_timeout=60.0)
    watched.open = 1
    for count in range(25):
        skip(5)
        if how == "bytes":
            watched.last_byte = loop.time()
        if how == "counters":
            server.answers["/metrics"] = (200, b"tokens %d" % count)
        await watched.look(server)
    assert not watched.verdict.done(), watched.watchdog.problem
    assert "/metrics" in server.asked
    watched.verdict.cancel()


async def test_a_new_request_is_not_charged_with_the_quiet_before_it(server: SocketServer) -> None:
    """It is not even asked for its counters, which it would be after 15 s."""
    server.answers["/metrics"] = server.answers[COMPLETIONS] = None
    watched = Watched(server.path, stall_timeout=60.0)
    skip(70)
    await watched.look(server)
    watched.open = 1
    await watched.look(server)
    skip(70)
    watched.open = 0  # between two looks
    watched.watchdog.idle()
    watched.open = 1
    await watched.look(server)
    assert not watched.verdict.done() and "/metrics" not in server.asked
    skip(20)
    await until(lambda: "/metrics" in server.asked)
    skip(60)
    await until(lambda: COMPLETIONS in server.asked)
    skip(15)
    assert "worked on nothing" in await watched.ended()


@pytest.mark.parametrize("open_", [0, 1])
async def test_a_proxy_without_file_descriptors_blames_no_engine(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch, open_: int
) -> None:
    refused: list[str] = []

    def refuse(*_: object) -> None:
        refused.append("")
        raise OSError(errno.EMFILE, "Too many open files")

    watched = Watched(server.path, stall_timeout=0.2)
    watched.open = open_
    monkeypatch.setattr("wellspoken.engine.unix_http._Wire.connect", refuse)
    await watched.lives(refused, 40)


async def test_a_question_for_which_there_is_no_thread_is_not_answered(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    with pytest.raises(Silent, match="new thread"):
        await Client(short / "s").request("/health", 5)
