"""An engine by script, for the tests of what runs one: its process, its socket, its host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from wellspoken.engine.attempt import Running
from wellspoken.engine.child import Child
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command, Facts
from wellspoken.engine.run_folder import RunFolder
from wellspoken.engine.supervisor import Supervisor
from wellspoken.engine.unix_http import Client


class ScriptedKind:
    """A kind whose engine is never started; see `Scripted`."""

    name = "scripted"
    title = "Scripted"
    model = "a model"
    start_timeout = 60.0

    def check(self) -> list[str]:
        return []

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        raise AssertionError("no process is started")

    def phase(self, line: str) -> str | None:
        return None

    def pulse(self) -> str | None:
        return None

    def explain_report(self, report: Mapping[str, str], tail: Sequence[str]) -> EngineError:
        return EngineError(f"refused: {report}")

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        return EngineError(f"died: {code}")

    def warm_up(self, facts: Facts) -> tuple[str, bytes]:
        return "/v1/completions", b"{}"

    async def facts(self, client: Client, argv: Sequence[str], tail: Sequence[str]) -> Facts:
        return Facts()

    def progress(self, metrics: bytes) -> bytes:
        return metrics


class ScriptedChild:
    """A process that ends when the test says so, or when it is told to."""

    pid = 12345

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.told: list[str] = []
        self.obedient = True

    @property
    def code(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    def end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def stop(self, grace: float) -> int:
        self.told.append("stop")
        if self.obedient:
            self.end(-15)
        return await self.wait()

    async def kill(self) -> int:
        self.told.append("kill")
        self.end(-9)
        return await self.wait()


class ScriptedPlace:
    """A folder that is not there."""

    def __init__(self) -> None:
        self.cleared = False

    def clear(self, log: object) -> None:
        self.cleared = True


@dataclass
class Scripted:
    """What takes the place of `attempt`: each start does what the next step says.

    A step is an error to raise, or an event to wait for before the engine answers.
    """

    steps: list[Exception | asyncio.Event] = field(default_factory=list)
    children: list[ScriptedChild] = field(default_factory=list)
    places: list[ScriptedPlace] = field(default_factory=list)
    socket: Path = Path("/nowhere/api.sock")
    cancelled: int = 0

    async def attempt(
        self, kind: object, settings: object, host: Host, log: object, said: Callable[[str], None]
    ) -> Running:
        """Stand for `wellspoken.engine.attempt.attempt`."""
        step = self.steps.pop(0) if self.steps else None
        said("loading")
        try:
            if isinstance(step, Exception):
                raise step
            if step is not None:
                await step.wait()
            await host.up(self.socket, Facts(models=("m",)))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.children.append(ScriptedChild())
        self.places.append(ScriptedPlace())
        return Running(
            cast(Child, self.children[-1]),
            cast(RunFolder, self.places[-1]),
            Client(self.socket),
            Facts(models=("m",)),
            lambda line: None,
        )


class Host:
    """Who sends requests; notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.last_byte = 0.0
        self.reasons: list[str] = []  # why it does not answer, at each change
        self.of: Supervisor | None = None

    async def up(self, socket: Path, facts: Facts) -> None:
        self.told.append("up")

    async def down(self) -> None:
        self.told.append("down")

    def last_heard(self) -> float:
        return self.last_byte

    def note_change(self) -> None:
        reason = self.of.reason if self.of is not None else ""
        if reason not in self.reasons[-1:]:
            self.reasons.append(reason)


Answer = Callable[[str], Awaitable[tuple[int, bytes]]]


class SocketServer:
    """An HTTP server on a unix socket whose answers the test gives, by path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, tuple[int, bytes] | None] = {}  # None: never
        self.asked: list[str] = []
        self._server: asyncio.Server | None = None
        self._forever = asyncio.Event()

    async def __aenter__(self) -> SocketServer:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._forever.set()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):  # its time was over before it asked
            writer.close()
            return
        target = head.split()[1].decode()
        self.asked.append(target)
        answer = self.answers.get(target, (200, json.dumps({"asked": target}).encode()))
        if answer is None:
            await self._forever.wait()
        else:
            status, body = answer
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
        writer.close()
