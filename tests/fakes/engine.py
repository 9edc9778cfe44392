"""A proxy with an engine by script: its real supervisor, no process, a scripted upstream's answers.

    async with engine_proxy(monkeypatch, whole(body())) as running:
        await running.ready()
        running.end()                        # the process ends; the supervisor starts it again
        async with await running.proxy.chat() as response:
            ...

Each start waits for `running.gate` (an asyncio.Event, set unless the test clears it) and then takes
the upstream's socket, on which it listens from then on.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient

from tests.engine.scripted import ScriptedChild, ScriptedKind, ScriptedPlace
from tests.fakes.upstream import Script, Upstream
from tests.proxy.conftest import Proxy, ProxyServer
from tests.waiting import until
from wellspoken.engine import supervisor
from wellspoken.engine.attempt import Running
from wellspoken.engine.child import Child
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Facts, Host
from wellspoken.engine.run_folder import RunFolder
from wellspoken.engine.states import State
from wellspoken.engine.supervisor import Supervisor
from wellspoken.engine.unix_http import Client
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle import hosted as engines
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.lifecycle.hosted import Hosted
from wellspoken.proxy.upstream.target import Target

LOG = logging.getLogger("wellspoken")


class Kind(ScriptedKind):
    """A kind whose answers are read as vLLM's."""

    name = "vllm"
    title = "vLLM"


@dataclass
class EngineProxy:
    """The proxy, its engine, and what stands for the process and for the server in it."""

    proxy: Proxy
    hosted: Hosted
    upstream: Upstream
    gate: asyncio.Event
    facts: Facts
    failing: EngineError | None = None
    child: ScriptedChild | None = None
    starts: int = 0

    @property
    def supervisor(self) -> Supervisor:
        return self.hosted.supervisor

    @property
    def target(self) -> Target:
        return self.hosted.target

    async def attempt(
        self,
        kind: object,
        settings: object,
        host: Host,
        log: object,
        said: Callable[[str], None],
    ) -> Running:
        """Stand for `wellspoken.engine.attempt.attempt`."""
        self.starts += 1
        said("loading weights")
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        await self.listen()
        assert self.upstream.path is not None
        await host.up(self.upstream.path, self.facts)
        self.child = ScriptedChild()
        place = cast(RunFolder, ScriptedPlace())
        return Running(
            cast(Child, self.child), place, Client(self.upstream.path), self.facts, print
        )

    async def listen(self) -> None:
        """Let the server listen on its socket, anew if it did."""
        await self.upstream.refuse()
        assert self.upstream.path is not None
        self.upstream.path.unlink(missing_ok=True)
        await self.upstream.listen()

    async def ready(self) -> None:
        """Start the engine and wait until it is ready."""
        self.gate.set()
        await self.hosted.supervisor.start()

    async def state(self, wanted: State) -> None:
        """Wait until the engine has this state."""
        await until(lambda: self.supervisor.state == wanted)

    async def end(self, code: int = -9) -> None:
        """End the process as a crash does, and wait until it starts again; that start waits."""
        self.gate.clear()
        await self.upstream.refuse()
        self.end_process(code)
        await until(lambda: self.supervisor.phase)

    def end_process(self, code: int = -9) -> None:
        """End the process, whose socket is closed already."""
        assert self.child is not None
        self.child.end(code)

    async def settled(self) -> None:
        """Wait until no request is under way, in the proxy and at the engine."""
        state = self.proxy.service.state
        await until(lambda: not state.inflight and not self.supervisor.open)


@asynccontextmanager
async def engine_proxy(
    monkeypatch: pytest.MonkeyPatch,
    *scripts: Script,
    backends: tuple[dict[str, Any], ...] = (),
    facts: Facts | None = None,
    kind: type[ScriptedKind] = Kind,
    tables: dict[str, dict[str, Any]] | None = None,
    **engine: Any,
) -> AsyncIterator[EngineProxy]:
    """Run a proxy whose engine was not started yet; `engine` are keys of its table.

    Pauses before a restart are short. `tables`: timeouts, limits and so on.
    """
    monkeypatch.setattr(supervisor, "BACKOFF", (0.01, 0.05))
    monkeypatch.setattr(engines, "kind_of", lambda *given: kind())
    settings = {"kind": "llamacpp", "model": "/models/m.gguf", **engine}
    given: dict[str, Any] = {"engine": settings, "backend": list(backends), **(tables or {})}
    given["server"] = {"listen": "127.0.0.1:0", **given.get("server", {})}
    config = load(None, given, {})
    with tempfile.TemporaryDirectory(prefix="ws") as folder:
        async with Upstream(*scripts, path=Path(folder) / "api.sock") as upstream:
            await upstream.refuse()
            service = build(config)
            target = next(one for one in service.state.router.targets if one.name == "engine")
            hosted = Hosted(config, target, service.state.metrics, LOG, lambda line: None)
            client: TestClient[Any, Any] = TestClient(ProxyServer(service))
            await client.start_server()
            assert client.port is not None
            proxy = Proxy(service, client, client.port)
            gate = asyncio.Event()
            gate.set()
            running = EngineProxy(proxy, hosted, upstream, gate, facts or Facts(models=("m",)))
            monkeypatch.setattr(supervisor, "attempt", running.attempt)
            monkeypatch.setattr(supervisor, "sweep", lambda log: None)
            try:
                yield running
            finally:
                await client.close()
                await hosted.supervisor.stop()
