"""Reloads of a whole process: under load, with streams open, many at once, and at its end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Pause, Upstream, stream, whole
from tests.proxy.cli.test_cli import COMMAND
from tests.proxy.conftest import CHAT, MESSAGES
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.waiting import until

ASKED = {"model": MODEL, "messages": MESSAGES}
PLAIN = b"".join(EVENTS) + DONE


def written(file: Path, *upstreams: Upstream, more: str = "") -> None:
    """Put a configuration with these backends in place, in one step."""
    tables = [
        f'[[backend]]\nname = "b{number}"\nurl = "{one.url}"\nadapter = "openai"\n'
        f'models = ["{MODEL if number == 0 else number}"]\n'
        for number, one in enumerate(upstreams)
    ]
    new = file.with_name("new")
    new.write_text('[server]\nlisten = "127.0.0.1:0"\n' + more + "".join(tables))
    new.rename(file)


class Proxy:
    """A `wellspoken serve --config` process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url
        self.log = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()

    def hang_up(self) -> None:
        """Have it read its configuration again."""
        self.process.send_signal(signal.SIGHUP)

    async def heard(self, words: str, times: int = 1) -> None:
        """Wait until these words stand in its log so many times, at most 5 s."""
        await until(lambda: self.log.count(words) >= times)

    @property
    def files(self) -> int:
        """How many file descriptors it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        code = await asyncio.wait_for(self.process.wait(), 60)
        await self._reading
        return code


@asynccontextmanager
async def running(file: Path, *flags: str) -> AsyncIterator[Proxy]:
    """Run the proxy on a configuration file until the test is over."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("serve", "--config", str(file), "--log-format", "text", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "WELLSPOKEN_LOG_ACCESS": "false",
            "WELLSPOKEN_TIMEOUTS_HEARTBEAT": "3600",  # a stream waits at a gate
        },
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        said = (await process.stdout.readline()).decode()
        assert "listens on" in said, await process.stderr.read()
        yield Proxy(process, said.split("listens on ")[1].strip())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_no_request_is_lost_while_backends_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    body = {
        "id": "chatcmpl-123456789",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    async with Upstream() as one, Upstream() as two:
        for upstream in (one, two):
            upstream.script("/health", whole({}))
            upstream.script(CHAT, [Pause(0.01), *whole(body)])
        more = "[timeouts]\nupstream_keep_alive = 0.3\n"
        written(file, one, more=more)
        async with running(file) as proxy, aiohttp.ClientSession() as session:
            early = proxy.files
            over = asyncio.Event()
            statuses: list[int] = []

            async def client() -> None:
                while not over.is_set():
                    async with session.post(proxy.url + CHAT, json=ASKED) as response:
                        await response.read()
                        statuses.append(response.status)

            clients = [asyncio.create_task(client()) for _ in range(20)]
            await asyncio.sleep(0.3)

            def enough() -> bool:
                """Whether both backends and the reloads had their share; a machine may be slow."""
                least = min(len(one.requests), len(two.requests))
                times = proxy.log.count("configuration read again")
                return len(statuses) > 60 and times > 5 and least > 5

            for number in itertools.count():
                if number >= 60 and enough():
                    break
                both = (two, one) if number % 2 else (one, two)[: 1 + number % 3 // 2]
                written(file, *both, more=more)
                proxy.hang_up()
                await asyncio.sleep(0.02)
            over.set()
            await asyncio.gather(*clients)
            assert set(statuses) == {200}
            assert len(one.requests) + len(two.requests) >= len(statuses)
            await session.close()
            # No connection is left over, to clients or backends.
            await until(lambda: proxy.files <= early)
            proxy.process.terminate()
            assert await proxy.ended() == 0
    assert "error" not in proxy.log and "Traceback" not in proxy.log


async def test_two_hundred_open_streams_outlive_their_backends(tmp_path: Path) -> None:
    file, gate = tmp_path / "w.toml", Gate()
    async with Upstream() as old, Upstream() as new:
        for upstream in (old, new):
            upstream.script("/health", whole({}))
        old.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
        new.script(CHAT, stream(*EVENTS, DONE))
        written(file, old)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            running(file) as proxy,
            aiohttp.ClientSession(connector=connector) as session,
        ):
            asked = {**ASKED, "stream": True}

            async def ask() -> aiohttp.ClientResponse:
                return await session.post(proxy.url + CHAT, json=asked)

            open_ = await asyncio.gather(*(ask() for _ in range(200)))
            for backends in ([new], [old], [new]):
                before = proxy.log.count("1 changed")
                written(file, *backends)
                proxy.hang_up()
                await proxy.heard("1 changed", before + 1)
            later = [await (await ask()).read() for _ in range(5)]
            gate.open()
            bodies = await asyncio.gather(*(response.read() for response in open_))
            assert bodies == [PLAIN] * 200 and later == [PLAIN] * 5
            assert sum(request.target == CHAT for request in old.requests) == 200
            await until(lambda: not old.connections)  # none is kept for one that is not there
            proxy.process.terminate()
            assert await proxy.ended() == 0


async def test_many_signals_at_once_are_one_or_two_readings(
    upstream: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "w.toml"
    upstream.script("/health", whole({}))
    written(file, upstream)
    async with running(file) as proxy:
        for _ in range(50):
            proxy.hang_up()
        await proxy.heard("configuration read again: nothing has changed")
        await asyncio.sleep(0.3)
        assert proxy.log.count("read again") <= 50
        written(file, upstream, more="[limits]\ninflight = 5\n")
        proxy.hang_up()
        await proxy.heard("settings changed")
        proxy.hang_up()
        proxy.process.terminate()
        assert await proxy.ended() == 0
    assert "Traceback" not in proxy.log


async def test_a_signal_while_it_drains_changes_nothing(upstream: Upstream, tmp_path: Path) -> None:
    file, gate = tmp_path / "w.toml", Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    written(file, upstream)
    async with running(file) as proxy, aiohttp.ClientSession() as session:
        response = await session.post(proxy.url + CHAT, json={**ASKED, "stream": True})
        proxy.process.terminate()
        await proxy.heard("draining: 1 open requests")
        file.write_text("[")
        for _ in range(3):
            proxy.hang_up()
        await asyncio.sleep(0.3)
        gate.open()
        assert await response.read() == PLAIN
        assert await proxy.ended() == 0
    assert "stays as before" not in proxy.log and "Traceback" not in proxy.log


async def test_a_bad_file_is_seen_in_metrics(upstream: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole({"choices": []}))
    written(file, upstream)
    async with running(file, "--watch") as proxy, aiohttp.ClientSession() as session:

        async def metric() -> str:
            async with session.get(f"{proxy.url}/metrics") as response:
                lines = (await response.text()).splitlines()
            (line,) = (x for x in lines if x.startswith("wellspoken_config_last_reload_success "))
            return line.partition(" ")[2]

        assert await metric() == "1.0"
        new = file.with_name("new")
        new.write_text(file.read_text() + "colour = 1\n")
        new.rename(file)
        await proxy.heard("the configuration stays as before: ")  # without a signal
        assert "colour" in proxy.log and await metric() == "0.0"
        written(file, upstream, more="[limits]\ninflight = 5\n")
        await proxy.heard("configuration read again: settings changed")
        assert await metric() == "1.0"
        proxy.process.terminate()
        assert await proxy.ended() == 0
