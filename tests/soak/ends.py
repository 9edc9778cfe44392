"""Orderly ends: a drain with open streams, and a rolling restart behind a load balancer."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from tests.bench.store_check import Line
from tests.bench.store_loss import ready
from tests.bench.store_proxy import proxy
from tests.fakes.upstream import Gate, Pause
from tests.ports import free_port
from tests.soak.proxies import (
    answers,
    ask,
    backend,
    exactly,
    is_listening,
    is_whole,
    read_all,
    request,
    send,
    write_config,
)
from tests.waiting import until

REQUIRE = "WELLSPOKEN_REQUIRE_HAPROXY"
REQUIRED = bool(os.environ.get(REQUIRE))  # read before the tests' fixture takes it away
DRAIN_DELAY = "3s"  # in which haproxy asks some times, also on a busy machine
BALANCER = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 20s
    option redispatch
    retries 3
    retry-on conn-failure
frontend front
    bind 127.0.0.1:{port}
    stats uri /balancer
    default_backend proxies
backend proxies
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
    default-server inter 200ms fall 2 rise 1
    server one 127.0.0.1:{one} check
    server two 127.0.0.1:{two} check
"""


async def drain(streams: int) -> list[Line]:
    """Ask for so many streams, send SIGTERM in their middle, and let them go on."""
    gate = Gate()
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers(gate)) as server:
            with proxy(write_config(Path(folder), server.url), None) as running:
                opened = [await send(running.url, request(True)) for _ in range(streams)]
                for reader, _ in opened:
                    await reader.readuntil(b"data: ")
                running.terminate()
                while await is_listening(running.url):
                    await asyncio.sleep(0.01)
                gate.open()
                parts = await asyncio.gather(*map(read_all, opened))
                code = await running.ended()
    finished = sum(
        part.count(b"data: [DONE]") == part.count(b"\r\n0\r\n\r\n") == 1 for part in parts
    )
    return [
        exactly("drain", f"streams that finished of {streams}", finished, streams),
        exactly("drain", "exit code", code, 0),
    ]


def balancer() -> str | None:
    """Return haproxy's path; None where it is not there and need not be. Raises OSError."""
    found = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None and REQUIRED:
        raise OSError(f"haproxy is missing, and {REQUIRE} is set")
    return found


@asynccontextmanager
async def balanced(program: str, folder: Path, one: int, two: int) -> AsyncIterator[str]:
    """Run haproxy in front of two ports; give its URL."""
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(BALANCER.format(port=port, one=one, two=two))
    process = await asyncio.create_subprocess_exec(
        program, "-db", "-q", "-f", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def has_both(url: str) -> bool:
    """Say whether haproxy's own checks have found both proxies ready."""
    told = await ask(url, b"GET /balancer;csv HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    lines = [line for line in told.splitlines() if line.startswith(b"proxies,")]
    return sum(b",UP," in line and b",BACKEND," not in line for line in lines) == 2


async def restart(rounds: int) -> list[Line]:
    """Restart two proxies in turn, so often, under load that comes through haproxy."""
    program = balancer()
    if program is None:
        print("haproxy is not installed: no rolling restart", file=sys.stderr)
        return []
    one, two = free_port(), free_port()
    asked: list[bool] = []
    over = asyncio.Event()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        async with backend(answers(Pause(0.02))) as server:
            configs = [
                write_config(
                    folder,
                    server.url,
                    server={"listen": f"127.0.0.1:{port}", "drain_delay": DRAIN_DELAY},
                )
                for port in (one, two)
            ]
            running = [stack.enter_context(proxy(config, None)) for config in configs]
            async with balanced(program, folder, one, two) as url:
                await until(lambda: has_both(url), "haproxy has both")
                clients = [asyncio.create_task(_ask_on(url, n, asked, over)) for n in range(8)]
                for number in range(2 * rounds):
                    place = number % 2
                    running[place].terminate()
                    await running[place].ended()
                    # In a thread: it waits, and the backend has to answer meanwhile.
                    started = proxy(configs[place], None)
                    running[place] = await asyncio.to_thread(stack.enter_context, started)
                    await ready(running[place].url)
                    await until(lambda: has_both(url), "haproxy has both again")
                over.set()
                await asyncio.gather(*clients)
    what = f"requests that failed of {len(asked):,} in {2 * rounds} restarts"
    return [exactly("restart", what, asked.count(False), 0)]


async def _ask_on(url: str, number: int, asked: list[bool], over: asyncio.Event) -> None:
    while not over.is_set():
        asked.append(is_whole(await ask(url, request(number % 2 == 0))))
