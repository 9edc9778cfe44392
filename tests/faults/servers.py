"""Real llama.cpp servers, each a process at a port of its own: killed, stopped, slow."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ports import free_port
from tests.waiting import until

LIVE = Path(__file__).parents[1] / "live"
SLOTS = 4


class Server:
    """One llama.cpp at one port, whichever process it is; `share`: of one core, what it may use.

    `numbers` are parameters of llama.cpp's, as n_parallel.
    """

    def __init__(self, name: str, model: Path, share: float, **numbers: int) -> None:
        self.name = name
        self.share = share
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        numbers = {"n_parallel": SLOTS, "n_ctx": SLOTS * 512, **numbers, "port": self.port}
        given = [f"{key}={value}" for key, value in numbers.items()]
        self._command = (str(LIVE / "serve_xllamacpp.py"), str(model), "", *given)
        self._process: Process | None = None
        self._throttle: Process | None = None

    @property
    def pid(self) -> int:
        """The process that there is at present."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start a process and wait until it listens. Raises RuntimeError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        self._process = process
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise RuntimeError(f"{' '.join(self._command)} did not start; run it to see why")
        if self.share >= 1.0:
            return
        throttle = str(Path(__file__).with_name("throttle.py"))
        self._throttle = await asyncio.create_subprocess_exec(
            sys.executable, throttle, str(process.pid), str(self.share)
        )

    async def kill(self) -> None:
        """Let the process end as by a crash; until another starts, connecting is refused."""
        for process in (self._throttle, self._process):
            if process is not None:
                if process.returncode is None:
                    process.kill()
                await process.wait()
        self._process = self._throttle = None

    async def pause(self) -> None:
        """Stop the process: the system takes connections for it, and nobody answers."""
        if (throttle := self._throttle) is not None:
            # It first, or it would let the process go on.
            os.kill(throttle.pid, signal.SIGSTOP)
            await until(lambda: _state(throttle.pid) == "T", "the throttle stops")
        os.kill(self.pid, signal.SIGSTOP)

    async def resume(self) -> None:
        """Let the process go on where it was."""
        os.kill(self.pid, signal.SIGCONT)
        if self._throttle is not None:
            os.kill(self._throttle.pid, signal.SIGCONT)


def _state(pid: int) -> str:
    """Return the letter that the system has for a process's state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@asynccontextmanager
async def serve(
    model: Path, shares: Sequence[float], **numbers: int
) -> AsyncIterator[list[Server]]:
    """Run a server for each share, called A, B, C, until the block ends."""
    servers = [Server("ABCDEFGH"[n], model, share, **numbers) for n, share in enumerate(shares)]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        yield servers
    finally:
        await asyncio.gather(*(server.kill() for server in servers))
