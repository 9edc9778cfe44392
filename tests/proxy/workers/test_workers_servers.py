"""Several servers behind several workers, each of which looks after them by itself: the sums."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from tests.fakes.upstream import Gate, Request, Upstream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.workers.test_workers import ASKED, Workers, workers
from tests.waiting import until

WORKERS = 2


def write(path: Path, *servers: Upstream) -> Path:
    """Write a configuration in which one failure takes a server out, and nobody looks."""
    urls = ", ".join(f'"{server.url}"' for server in servers)
    path.write_text(
        f'[[backend]]\nname = "gpu"\nurl = [{urls}]\nadapter = "openai"\n'
        "[health]\ninterval = 0\nfailures = 1\npause = 3000\nlongest_pause = 3000\n"
    )
    return path


async def ask(running: Workers) -> int:
    """Send a chat over a connection of its own, so to any worker; return the status."""
    async with aiohttp.ClientSession() as session:
        async with session.post(running.url + CHAT, json=ASKED) as response:
            await response.read()
            return response.status


def states(samples: dict[str, float], name: str) -> Sequence[float]:
    """Return how many workers see a server in, out and on trial."""
    family = "wellspoken_backend_state"
    return [
        samples[f'{family}{{backend="{name}",state="{one}"}}'] for one in ("in", "out", "trial")
    ]


def chats(server: Upstream) -> list[Request]:
    return [request for request in server.requests if request.target == CHAT]


async def counts(running: Workers, name: str, number: int) -> bool:
    """Say whether so many chats are counted, all of this server's."""
    family = "wellspoken_requests_total{"
    samples = (await running.metrics()).items()
    found = {x: value for x, value in samples if x.startswith(family) and "chat_comp" in x}
    assert all(f'backend="{name}"' in sample for sample in found)
    return sum(found.values()) == number


async def test_states_are_workers_and_the_rest_is_added(tmp_path: Path) -> None:
    async with Upstream(whole(PLAIN)) as one, Upstream(whole(PLAIN)) as two:
        config = write(tmp_path / "ws.toml", one, two)
        async with workers(one, config=config, count=WORKERS) as running:
            await running.all(WORKERS)
            samples = await running.metrics()
            assert states(samples, "gpu/1") == states(samples, "gpu/2") == [WORKERS, 0, 0]
            await two.refuse()
            asked = 0

            async def both_have_it_out() -> bool:
                nonlocal asked
                asked += 1
                assert await ask(running) == 200
                found = states(await running.metrics(), "gpu/2")
                assert sum(found) == WORKERS
                return found == [0, WORKERS, 0]

            await until(both_have_it_out)
            samples = await running.metrics()
            assert states(samples, "gpu/1") == [WORKERS, 0, 0]
            assert samples['wellspoken_backend_ejections_total{backend="gpu/2"}'] == WORKERS
            assert samples['wellspoken_backend_ejections_total{backend="gpu/1"}'] == 0
            moved = 'wellspoken_failovers_total{backend="gpu/2",reason="refused",to="server"}'
            assert samples[moved] == WORKERS
            assert asked == len(chats(one))
            await until(lambda: counts(running, "gpu/1", asked))  # its end is counted after it

            gate = Gate()
            one.scripts = [[gate, *whole(PLAIN)]]
            held = [asyncio.create_task(ask(running)) for _ in range(5)]
            await until(lambda: len(chats(one)) == asked + 5)
            assert (await running.metrics())['wellspoken_backend_outstanding{backend="gpu/1"}'] == 5
            gate.open()
            assert await asyncio.gather(*held) == [200] * 5

            write(config, one)
            running.process.send_signal(signal.SIGHUP)

            async def only_one_is_there() -> bool:
                found = {name for name in await running.metrics() if "wellspoken_backend_" in name}
                return found == {'wellspoken_backend_outstanding{backend="gpu"}'}

            await until(only_one_is_there)
