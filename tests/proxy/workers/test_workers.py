"""Several worker processes behind one port: real ones, their counts as one, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Upstream, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.waiting import until

ASKED = {"model": MODEL, "messages": MESSAGES}
STREAMED = {**ASKED, "stream": True}

# A parent that waits for a slow worker's counts and rows, and workers that wait still longer for it
# and for what counts for a quota: on a machine that stands still for seconds nothing is given up.
_PATIENT = """
import sys
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.workers import hub
hub.ASK_SECONDS, hub.SETTLE_SECONDS = {ask}, 30.0
hub.WORKER = ("-c", '''
import sys
from wellspoken.proxy.limits import redis_counters
from wellspoken.proxy.workers import quotas, worker
worker.SUM_SECONDS = worker.SETTLE_SECONDS = 60.0
quotas.SECONDS = redis_counters.WAIT = {count}
sys.exit(worker.main())
''')
sys.exit(main())
"""


class Workers:
    """`wellspoken serve --workers N` in a process of its own, with what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.said: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def up(self) -> None:
        """Wait for the banner."""
        assert self.process.stdout is not None and self.process.stderr is not None
        self._tasks = [asyncio.create_task(self._hear(self.process.stderr))]
        first = (await self.process.stdout.readline()).decode()
        assert "listens on" in first, await self.ended()
        self.url = first.split("listens on ")[1].split()[0]
        self._tasks.append(asyncio.create_task(self._hear(self.process.stdout)))

    async def _hear(self, pipe: asyncio.StreamReader) -> None:
        while line := await pipe.readline():
            self.said.append(line.decode().rstrip())

    def pids(self) -> list[int]:
        """Return the workers' process ids."""
        return children(self.process.pid)

    async def all(self, count: int) -> list[int]:
        """Wait until so many workers answer; return their ids."""
        await until(lambda: self.answering(count), f"{count} workers answer")
        return self.pids()

    async def answering(self, count: int) -> bool:
        """Say whether so many workers listen on the port."""
        inodes = {inode for pid in self.pids() for inode in listening(pid)}
        return len(inodes) == count == len(self.pids())

    async def metrics(self, session: aiohttp.ClientSession | None = None) -> dict[str, float]:
        """Return a scrape's samples; without a session over a connection of its own."""
        async with contextlib.AsyncExitStack() as stack:
            if session is None:
                session = await stack.enter_async_context(aiohttp.ClientSession())
            async with session.get(f"{self.url}/metrics") as response:
                assert response.status == 200, await response.text()
                lines = (await response.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def ended(self) -> int:
        """Wait for the end; return the exit code."""
        code = await self.process.wait()
        await asyncio.gather(*self._tasks)
        return code


@contextlib.asynccontextmanager
async def workers(
    upstream: Upstream,
    *arguments: str,
    count: int = 2,
    config: Path | None = None,
    ask: float = 30.0,
    counting: float = 30.0,
) -> AsyncIterator[Workers]:
    """Run so many workers in front of an upstream; at the end none of their processes is left.

    `ask`: seconds that a scrape waits for each worker; `counting`: that a request waits for who
    counts for its quota. Shorter only where a test lets them wait in vain.
    """
    where = ["serve", "--config", str(config)] if config else [upstream.url, "--adapter", "openai"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PATIENT.format(ask=ask, count=counting)),
        *where,
        *("--listen", "127.0.0.1:0", "--workers", str(count), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "WELLSPOKEN_TIMEOUTS_HEARTBEAT": "3600"},  # a stream waits at a gate
    )
    running = Workers(process)
    pids: list[int] = []
    try:
        await running.up()
        yield running
        pids = running.pids()
        if process.returncode is None:
            process.terminate()
            assert await running.ended() == 0, running.said
    finally:
        if process.returncode is None:
            pids += running.pids()
            process.kill()
            await process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in "\n".join(running.said), running.said


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def alive(pid: int) -> bool:
    """Say whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descriptors(pid: int) -> list[str]:
    """Return what a process has open; [] if it has ended."""
    names = []
    with contextlib.suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                names.append(os.readlink(f"/proc/{pid}/fd/{file}"))
    return names


def listening(pid: int) -> set[str]:
    """Return the inodes of the sockets on which a process listens."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    return inodes & set(descriptors(pid))


async def ask(url: str, body: dict[str, Any] = ASKED) -> int:
    """Ask over a connection of its own; return the status, 0 where there was no whole answer."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, json=body) as response,
        ):
            await response.read()
            return response.status
    except aiohttp.ClientError:
        return 0


def requests(samples: dict[str, float], code: int = 200) -> float:
    """Return how many chat completions were answered so."""
    return sum(
        value
        for name, value in samples.items()
        if name.startswith("wellspoken_requests_total{")
        and 'route="chat_completions"' in name
        and f'code="{code}"' in name
    )


RESTARTS = "wellspoken_worker_restarts_total"


async def test_one_scrape_is_the_sum_and_outlives_killed_workers(upstream: Upstream) -> None:
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    async with workers(upstream, count=3) as running:
        pids = await running.all(3)
        fds = len(descriptors(running.process.pid))
        assert [await ask(running.url) for _ in range(60)] == [200] * 60
        for _ in range(5):  # whichever worker is asked
            samples = await running.metrics()
            assert requests(samples) == 60
            assert samples["wellspoken_config_last_reload_success"] == 1
            assert samples["wellspoken_inflight_requests"] == 1  # the scrape itself
        counts = 'seconds_count{backend="default",model="_other",stream="false"}'
        assert samples[f"wellspoken_request_duration_{counts}"] == 60
        assert samples[RESTARTS] == 0
        assert [v for k, v in samples.items() if k.startswith("wellspoken_build_info")] == [1]

        os.kill(pids[0], signal.SIGKILL)
        await until(lambda: not alive(pids[0]), "the killed worker is gone")
        assert {await ask(running.url) for _ in range(20)} <= {200, 0}  # 0: a queue it had
        again = await running.all(3)
        assert set(again) > set(pids[1:]) and pids[0] not in again
        before = requests(await running.metrics())
        assert 60 <= before <= 80
        assert [await ask(running.url) for _ in range(9)] == [200] * 9
        samples = await running.metrics()
        assert requests(samples) == before + 9
        assert samples[RESTARTS] == 1
        assert len(descriptors(running.process.pid)) == fds
        told = "was ended by signal 9; another one starts"  # which a thread of the parent writes
        await until(lambda: any(told in line for line in running.said))


async def test_a_worker_that_hangs_is_counted_as_it_was(upstream: Upstream) -> None:
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    async with workers(upstream, ask=1.0) as running:
        pids = await running.all(2)
        assert [await ask(running.url) for _ in range(20)] == [200] * 20
        await until(lambda: all_scrapes(running, 20), "all are counted")
        os.kill(pids[0], signal.SIGSTOP)
        scrapes = [asyncio.create_task(running.metrics()) for _ in range(8)]
        try:  # the system gives some of these connections to the one that hangs
            while not (done := [task for task in scrapes if task.done()]):
                await asyncio.wait(scrapes, timeout=1, return_when=asyncio.FIRST_COMPLETED)
                scrapes.append(asyncio.create_task(running.metrics()))  # or it has got all
            assert {requests(task.result()) for task in done} == {20}
        finally:
            os.kill(pids[0], signal.SIGCONT)
        assert {requests(samples) for samples in await asyncio.gather(*scrapes)} == {20}
        assert running.pids() == pids


async def all_scrapes(running: Workers, count: int) -> bool:
    """Say whether any worker's scrape has this count, over several connections."""
    scrapes = await asyncio.gather(*(running.metrics() for _ in range(8)))
    return {requests(samples) for samples in scrapes} == {count}


async def test_a_signal_lets_all_streams_of_all_workers_finish(upstream: Upstream) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    async with workers(upstream, count=3) as running:
        pids = await running.all(3)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            asked = (session.post(running.url + CHAT, json=STREAMED) for _ in range(200))
            responses = await asyncio.gather(*asked)
            assert (await running.metrics(session))["wellspoken_inflight_requests"] == 201
            for pid in pids:  # the system deals the connections out to all of them
                assert len(descriptors(pid)) > 60
            running.process.terminate()
            await until(lambda: not any(map(listening, pids)), "no worker listens any more")
            assert running.process.returncode is None
            gate.open()
            bodies = Counter([await response.read() for response in responses])
        assert bodies == {b"".join(EVENTS) + DONE: 200}
        assert await running.ended() == 0
        assert not any(map(alive, pids))


async def test_a_second_signal_ends_all_at_once(upstream: Upstream) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate))
    async with workers(upstream) as running:
        pids = await running.all(2)
        async with aiohttp.ClientSession() as session:
            responses = [await session.post(running.url + CHAT, json=STREAMED) for _ in range(8)]
            running.process.terminate()
            running.process.send_signal(signal.SIGINT)
            assert await running.ended() == 0
            for response in responses:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
        assert not any(map(alive, pids))


async def test_workers_end_in_order_without_their_parent(upstream: Upstream) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    async with workers(upstream) as running:
        pids = await running.all(2)
        async with aiohttp.ClientSession() as session:
            responses = [await session.post(running.url + CHAT, json=STREAMED) for _ in range(8)]
            running.process.kill()
            await until(lambda: not any(map(listening, pids)), "no worker listens any more")
            gate.open()
            bodies = {await response.read() for response in responses}
        assert bodies == {b"".join(EVENTS) + DONE}
        await until(lambda: not any(map(alive, pids)), "the workers have ended")
        await running.ended()
    assert sum("the parent process is gone" in line for line in running.said) == 2


async def test_a_worker_that_somebody_ends_is_replaced(upstream: Upstream) -> None:
    """Ended in order, it loses nothing of what it counted."""
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    async with workers(upstream) as running:
        pids = await running.all(2)
        assert [await ask(running.url) for _ in range(20)] == [200] * 20
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        await until(lambda: not any(map(alive, pids)), "both have ended")
        again = await running.all(2)
        assert not set(again) & set(pids)
        samples = await running.metrics()
        assert (requests(samples), samples[RESTARTS]) == (20, 2)
