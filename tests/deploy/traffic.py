"""A proxy with all that it can have, and traffic that gives every metric a series.

The backend `plain` is a scripted upstream; `pool` has two servers, of which the second one is not
there, and `gone` one that is not there, for which `pool` answers; `engine` is an engine by script
(tests/fakes/engine.py) with the proxy's real supervisor; the store is a real SQLite file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from tests.conforming import MODEL, USAGE, body, choice, chunk, finish, role
from tests.fakes.engine import EngineProxy, engine_proxy
from tests.fakes.upstream import DONE, Cut, Gate, Script, Stall, Upstream, event, stream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, MESSAGES, Proxy
from tests.waiting import SECONDS, until

KEY = "a-client"
"""The key of the one client of `workers`."""

USED = {
    **USAGE,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
SPREAD, LOST = "spread", "lost"
"""The models of `pool` and of `gone`."""
REPAIRED = body(choice(finish_reason="eos_token"))
"""As text-generation-inference 1.4 and others name a finish; needs the one repair for it."""
DROPPED = body(choice(stop_reason=128009), kv_transfer_params={"rank": 0})
"""As vLLM 0.9 and later answer: fields that are not OpenAI's."""
OPENING = event(role())
CUT: Script = stream(OPENING + event(chunk({"content": "Hi"})), Cut())
HELD: Script = stream(OPENING + event(chunk({"content": "Hi"})), Stall())


async def whole_answers(proxy: Proxy, upstream: Upstream, script: Script, times: int) -> None:
    """Ask for whole answers, each by the same script; every one is a 200."""
    upstream.scripts = [script]
    for _ in range(times):
        async with await proxy.chat() as response:
            assert response.status == 200, await response.text()
            await response.read()


async def status_of(proxy: Proxy, path: str, **more: Any) -> int:
    """POST a request (by its JSON) and return its answer's status, once it has ended."""
    async with proxy.session.post(proxy.url(path), json=more) as response:
        await response.read()
        return response.status


async def read_stream(proxy: Proxy, upstream: Upstream) -> None:
    """Read a stream whose next event is sent when the one before has come: pieces have gaps."""
    gates = [Gate() for _ in range(3)]
    words = [step for gate in gates for step in (gate, event(chunk({"content": "Hi"})))]
    upstream.scripts = [stream(OPENING, *words, event(finish()) + DONE)]
    async with await proxy.chat(stream=True) as response:
        for gate in gates:
            assert await response.content.readuntil(b"\n\n")
            gate.open()
        assert (await response.read()).endswith(DONE)


async def left_streaming(proxy: Proxy, upstream: Upstream) -> None:
    """Leave a stream once something of it has come."""
    upstream.scripts = [HELD]
    response = await proxy.chat(stream=True)
    assert await response.content.readuntil(b"\n\n")
    response.close()
    await ended(proxy)


async def left_waiting(proxy: Proxy, upstream: Upstream) -> None:
    """Leave while nothing has come."""
    upstream.scripts = [[Stall()]]
    before = len(upstream.requests)
    task = asyncio.create_task(proxy.chat())
    await upstream.request(before)
    task.cancel()
    await asyncio.wait({task})
    await ended(proxy)


async def left_asking(proxy: Proxy) -> None:
    """Leave in the middle of a request's body."""
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    writer.write(head.encode() + b"{")
    await until(lambda: proxy.service.state.inflight)
    writer.close()
    await ended(proxy)


async def ended(proxy: Proxy) -> None:
    """Wait until no request is open."""
    await until(lambda: not proxy.service.state.inflight)


@dataclass
class Installation:
    """The proxy, its engine, and the upstream of its backend `plain`."""

    running: EngineProxy
    plain: Upstream

    @property
    def proxy(self) -> Proxy:
        return self.running.proxy

    @property
    def address(self) -> str:
        """Where it is scraped."""
        return f"127.0.0.1:{self.proxy.port}"

    async def text(self) -> str:
        """Return what /metrics answers."""
        return await scrape(self.proxy.session, self.address)

    async def traffic(self) -> None:
        """Let something of everything happen."""
        proxy, plain = self.proxy, self.plain
        await whole_answers(proxy, plain, whole(body(usage=USED)), 2)
        await whole_answers(proxy, plain, whole(REPAIRED), 2)
        await whole_answers(proxy, plain, whole(DROPPED), 2)
        await read_stream(proxy, plain)
        ask = {"model": MODEL, "messages": MESSAGES}
        assert await status_of(proxy, CHAT, **ask, top_k=4) == 200
        plain.scripts = [CUT]
        assert await status_of(proxy, CHAT, **ask, stream=True) == 200
        plain.scripts = [whole({"error": {"message": "full"}}, 429)]
        assert await status_of(proxy, CHAT, **ask) == 429
        plain.scripts = [whole({"error": {"message": "no"}}, 500)]
        assert await status_of(proxy, CHAT, **ask) == 500
        assert await status_of(proxy, CHAT, **ask, temperature=9) == 400
        assert await status_of(proxy, "/v1/nothing") == 404
        plain.scripts = [whole(body())]
        assert await status_of(proxy, CHAT, **ask, store=True) == 200
        assert await status_of(proxy, CHAT, model="m", messages=MESSAGES) == 200
        await self.spread()
        await left_streaming(proxy, plain)
        await left_waiting(proxy, plain)
        await left_asking(proxy)

    async def spread(self) -> None:
        """Let requests go to a server that is not there, until it is out, and to a fallback."""
        router = self.proxy.service.state.router
        target = next(one for one in router.targets if one.name == "pool/2")
        self.plain.scripts = [whole(body())]
        assert target.ejection is not None
        while target.ejection.state == "in":
            assert await status_of(self.proxy, CHAT, model=SPREAD, messages=MESSAGES) == 200
        assert await status_of(self.proxy, CHAT, model=LOST, messages=MESSAGES) == 200

    async def restart(self) -> None:
        """Let the engine end unasked, and come back."""
        self.running.end_process()
        await self.running.state("starting")
        await self.running.state("ready")


@asynccontextmanager
async def installation(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncIterator[Installation]:
    """Run it; the store's file is in `folder`."""
    async with Upstream() as plain:
        backend = {"name": "plain", "url": plain.url, "adapter": "openai", "models": [MODEL]}
        nobody = f"http://127.0.0.1:{free_port()}"
        pool = {**backend, "name": "pool", "url": [plain.url, nobody], "models": [SPREAD]}
        gone = {**backend, "name": "gone", "url": nobody, "models": [LOST], "fallback": ["pool"]}
        tables = {"store": {"path": str(folder / "store.db")}}
        async with engine_proxy(
            monkeypatch, whole(body()), backends=(backend, pool, gone), tables=tables
        ) as running:
            await running.ready()
            yield Installation(running, plain)


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[str]:
    """Run a proxy of several processes, with a client and no engine; yield its host:port."""
    address = f"127.0.0.1:{free_port()}"
    program = Path(sys.executable).with_name("wellspoken")
    (folder / "key").write_text(KEY)
    file = folder / "workers.toml"
    file.write_text(
        f'[server]\nlisten = "{address}"\nworkers = 2\n[[backend]]\nname = "plain"\n'
        f'url = "http://127.0.0.1:9"\nadapter = "openai"\nmodels = ["{MODEL}"]\n'
        f'[auth]\ncounters = "redis://127.0.0.1:9"\n'
        f'[[auth.client]]\nname = "a"\nkeys = ["file:{folder}/key"]\nconcurrent = 9\n'
    )
    process = subprocess.Popen(
        [program, "serve", "--config", file],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(said := tempfile.TemporaryFile()),
    )
    try:
        async with ClientSession() as session, asyncio.timeout(SECONDS):
            while await scrape(session, address) == "":
                if process.poll() is not None:
                    said.seek(0)
                    raise AssertionError(said.read().decode())
                await asyncio.sleep(0.05)
        yield address
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 120)
        said.close()


async def pass_uncounted(session: ClientSession, address: str) -> None:
    """Let the client of `workers` ask a backend that is not there, while nothing counts for it."""
    ask = {"model": MODEL, "messages": MESSAGES}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session.post(f"http://{address}{CHAT}", json=ask, headers=headers) as response:
        assert response.status == 502, await response.text()


async def scrape(session: ClientSession, address: str) -> str:
    """Return what /metrics answers there, "" where nobody answers."""
    with suppress(ClientError):
        async with session.get(f"http://{address}/metrics") as response:
            assert response.status == 200
            return await response.text()
    return ""
