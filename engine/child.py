"""One engine as a child process: a lifeline, a status line, a bounded log, a sure end.

The child is a shim (see shim.py) that runs the engine. Its stdin is the read end of a pipe whose
only write end this process holds. However this process dies, `kill -9` included, the kernel closes
that end, and the shim ends everything. A parent-death signal would be tied to the thread that
spawned the child, and reaches no grandchildren.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command
from wellspoken.engine.log_relay import Log, LogRelay

SHIM = Path(__file__).with_name("shim.py")
STATUS_BYTES = 65_536
LOG_BYTES = 4_096
"""Of the log that is read at once: at worst so many lines."""
REST = 3.0
"""How much longer than the reading the pause after it is."""
LAST_WORDS_SECONDS = 5.0
"""How long the log may stay open after the end: the rest of it tells why, on a busy machine too."""
SHIM_SECONDS = 12.0
"""How long the shim may take to end everything: it waits 10 s for what does not die."""


@dataclass(slots=True, eq=False)
class Inlet:
    """The read end of a pipe that a child writes into, read through `stream`.

    Not asyncio's own child pipes: with those the wait for a child's end also waits for its pipes'
    end, which a grandchild, or a full buffer that nobody reads, holds back.
    """

    stream: asyncio.StreamReader
    _transport: asyncio.ReadTransport

    @classmethod
    async def open(cls) -> tuple[Inlet, int]:
        """Return a new pipe: its read end as an Inlet, its write end as a file descriptor."""
        read_end, write_end = os.pipe()
        stream = asyncio.StreamReader(limit=STATUS_BYTES)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read_end, "rb", buffering=0)
        )
        return cls(stream, transport), write_end

    def close(self) -> None:
        self._transport.close()


class Child:
    """A running engine below its shim; make one with `Child.spawn`.

    `tail` holds the last lines of its log, without prefix, for error texts.
    """

    def __init__(
        self, process: Process, lifeline: int, inlets: list[Inlet], relay: LogRelay
    ) -> None:
        self._process = process
        self._lifeline: int | None = lifeline
        self._printed, *reported = inlets
        self._said = reported[0] if reported else None
        self._relay = relay
        self._ended = False
        self._relaying = asyncio.create_task(self._relay_log())

    @classmethod
    async def spawn(
        cls,
        name: str,
        command: Command,
        log: Log,
        *,
        folder: Path,
        on_line: Log | None = None,
    ) -> Child:
        """Run a command in the place `folder`, with its log relayed to `log` as `name: line`.

        `on_line` gets each line, also those that overwrite each other and those too many for `log`,
        without prefix. A program that cannot be run ends with exit code 127 and a line that says
        why. Raises EngineError if the operating system refuses another process. A cancelled spawn
        leaves no child.
        """
        relay = LogRelay(name, log, on_line)
        making = asyncio.create_task(cls._spawn(name, command, folder, relay))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # It takes milliseconds, and half of it could not be undone from out here.
            with contextlib.suppress(EngineError):
                await (await making).kill()
            raise

    @classmethod
    async def _spawn(cls, name: str, command: Command, folder: Path, relay: LogRelay) -> Child:
        theirs: list[int] = []
        inlets: list[Inlet] = []
        lifeline: int | None = None
        try:
            stdin, lifeline = os.pipe()
            theirs.append(stdin)
            for _ in range(1 + command.reports):
                inlet, outlet = await Inlet.open()
                inlets.append(inlet)
                theirs.append(outlet)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(SHIM), str(folder), "--", *command.argv),
                stdin=stdin,
                stdout=theirs[-1],
                stderr=theirs[1],
                env=dict(command.environment),  # uvloop takes nothing else
                # Ctrl-C on a terminal goes to the whole foreground group: the engine must live on
                # until the proxy has drained.
                start_new_session=True,
            )
        except BaseException as error:
            if lifeline is not None:
                os.close(lifeline)
            for inlet in inlets:
                inlet.close()
            if not isinstance(error, OSError):
                raise
            raise EngineError(
                f"could not start the {name} process: {error}. "
                "Check the limits of this user on processes, memory and open files (`ulimit -a`)."
            ) from error
        finally:
            for end in theirs:
                os.close(end)
        return cls(process, lifeline, inlets, relay)

    @property
    def pid(self) -> int:
        """The shim's process id, which is also the id of its session and process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The engine's exit code (negative: signal); None while anything of it runs."""
        return self._process.returncode

    @property
    def tail(self) -> deque[str]:
        return self._relay.tail

    async def status_line(self) -> bytes:
        """Return the first line of the engine's stdout, and close it; b"" if no line comes.

        An engine that goes on writing there gets a broken pipe. Only for one that reports.
        """
        if self._said is None:
            return b""
        try:
            return await self._said.stream.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return b""
        finally:
            self._said.close()

    async def wait(self) -> int:
        """Wait for the end of it all and the last log line; return the engine's exit code.

        That is negative for a signal. May be awaited by many tasks; cancelling one of them leaves
        the others waiting.
        """
        code = await self._process.wait()
        self._close()
        # What could not be killed may hold the log open for long.
        await asyncio.wait([self._relaying], timeout=LAST_WORDS_SECONDS)
        self._relaying.cancel()
        await asyncio.wait([self._relaying])  # for the line that says what was left out
        self._printed.close()
        return code

    async def stop(self, grace: float) -> int:
        """End the engine: SIGTERM, after `grace` seconds SIGKILL; return its exit code."""
        self._send(signal.SIGTERM)
        if not await self._ends_within(grace):
            self._relay.say(f"did not end {grace:g} s after SIGTERM, killed")
        return await self.kill()

    async def kill(self) -> int:
        """End the engine and all its processes at once; return its exit code."""
        self._cut_lifeline()
        if not await self._ends_within(SHIM_SECONDS):
            self._relay.say(f"could not be ended within {SHIM_SECONDS:g} s, killed with its shim")
            self._kill_group()
        return await self.wait()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), seconds)
        return self._process.returncode is not None

    def _send(self, number: signal.Signals) -> None:
        # Not Process.send_signal: it polls, and so takes the exit code from under asyncio's own
        # watcher, which then reports 255 (Python 3.11).
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self._process.pid, number)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # empty, or other users'
            os.killpg(self._process.pid, signal.SIGKILL)

    def _cut_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _close(self) -> None:
        if not self._ended:
            self._ended = True
            self._kill_group()  # in case the shim was killed, and could end nothing
            self._cut_lifeline()
            if self._said is not None:
                self._said.close()

    async def _relay_log(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await self._printed.stream.read(LOG_BYTES):
                began = loop.time()
                self._relay.feed(data)
                # A flood of lines must leave time for the requests: the engine waits instead.
                await asyncio.sleep(REST * (loop.time() - began))
        finally:
            self._relay.finish()
