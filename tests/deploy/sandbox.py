"""The proxy as a container has it: another user, nothing to write to, no capabilities.

bubblewrap does what a container engine would, without one. The network stays the machine's.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession

from tests.deploy.tools import ROOT, absent, run, system_tool

USER = "65532"
SECONDS = 120.0  # to start or to end in, on a busy machine


def sandboxed(root: Path, environ: Mapping[str, str], *binds: str) -> list[str]:
    """Return the words before a command that runs it in `root`, read-only, as 65532.

    `binds` are further options of bwrap. Skips the test where there is no bwrap, or it may not.
    """
    words = [_bwrap(), "--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev"]
    words += ["--tmpfs", "/tmp"]
    if root == Path("/"):
        words += ["--ro-bind", str(ROOT), str(ROOT)]  # should the checkout lie in /tmp
    words += [*binds, "--unshare-user", "--unshare-pid"]
    words += ["--unshare-ipc", "--unshare-uts", "--uid", USER, "--gid", USER, "--cap-drop", "ALL"]
    words += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in environ.items():
        words += ["--setenv", name, value]
    return words


@cache
def _bwrap() -> str:
    path = system_tool("bwrap", "bubblewrap")
    status, said = run(path, "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "true")
    if status:
        absent(f"bwrap may not make namespaces here: {said.strip()}")
    return path


@dataclass
class Ran:
    """What a command has said, and how it ended."""

    status: int
    out: str


async def ran(words: Sequence[str]) -> Ran:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(SECONDS):
        out, _ = await process.communicate()
    return Ran(process.returncode or 0, out.decode())


@dataclass
class Served:
    """A command that serves: where, and the process that was started."""

    url: str
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """The command's own process, not that of bwrap around it."""
        pid = self.process.pid
        while Path(f"/proc/{pid}/comm").read_text() == "bwrap\n":
            (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(child)
        return pid

    def send(self, number: int) -> None:
        """Send a signal to the command itself: bwrap would die of it and take it along."""
        os.kill(self.pid, number)

    @property
    def memory(self) -> int:
        """The bytes that it holds in memory (VmRSS, in kB there)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@asynccontextmanager
async def running(words: Sequence[str], port: int, ended: list[Ran]) -> AsyncIterator[Served]:
    """Run a command that serves at a port; yield it once it answers.

    At the end it gets SIGTERM, and what it said and how it ended is put into `ended`.
    """
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    served = Served(f"http://127.0.0.1:{port}", process)
    saying = asyncio.create_task(process.communicate())
    try:
        async with ClientSession() as session, asyncio.timeout(SECONDS):
            while not await _answers(session, served.url):
                assert not saying.done(), saying.result()[0].decode()
                await asyncio.sleep(0.05)
        yield served
        served.send(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            out, _ = await saying
        ended.append(Ran(process.returncode or 0, out.decode()))
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(saying, return_exceptions=True)


async def _answers(session: ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/livez") as response:
            return response.status == 200
    except ClientError:
        return False


async def asked(url: str, key: str, **more: Any) -> tuple[int, dict[str, Any]]:
    """Ask for a chat completion; return status and body."""
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **more}
    headers = {"Authorization": f"Bearer {key}"}
    async with ClientSession(headers=headers) as session:
        async with session.post(f"{url}/v1/chat/completions", json=request) as response:
            return response.status, await response.json()


async def status(url: str, key: str = "") -> int:
    """Return the status of a GET."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with ClientSession(headers=headers) as session, session.get(url) as response:
        return response.status


async def body(url: str) -> dict[str, Any]:
    """Return what a GET is answered, as JSON."""
    async with ClientSession() as session, session.get(url) as response:
        found: dict[str, Any] = await response.json()
        return found
