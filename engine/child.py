"""One supervised child process: a lifeline, a status line, a bounded log, a sure end.

The child's stdin is the read end of a pipe whose only write end this process holds. However this
process dies, `kill -9` included, the kernel closes that end, and a child that watches its stdin
(see `llamacpp_child.hold_lifeline`) ends with it. A parent-death signal would be tied to the thread
that spawned the child, and reaches no grandchildren.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

Log = Callable[[str], None]
State = Literal["stopped", "starting", "ready", "failed"]

LINE_BYTES = 2_000
TAIL_LINES = 40
STATUS_BYTES = 65_536
LAST_WORDS_SECONDS = 1.0


class EngineError(Exception):
    """The engine could not be started; the text says why and what to do."""


def log_to_stderr(line: str) -> None:
    """Write one relayed line to this process's stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


class LineCutter:
    """Cuts a byte stream into text lines, each of at most `limit` bytes; never holds more.

    The rest of a longer line is dropped, since a child that writes without newlines must not grow
    this process.
    """

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()
        self._cut = False  # the held line reached the limit: drop until its newline

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, decoded with replacement, without newline."""
        *complete, rest = data.split(b"\n")
        lines = []
        for piece in complete:
            self._hold(piece)
            lines.append(self._take())
        self._hold(rest)
        return [line for line in lines if line]

    def finish(self) -> list[str]:
        """Return what is held although no newline came: at most one line."""
        line = self._take()
        return [line] if line else []

    def _hold(self, piece: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += piece[:room]
        self._cut = self._cut or len(piece) > room

    def _take(self) -> str:
        line = self._held.decode("utf-8", "replace").rstrip("\r")
        if self._cut:
            line += " [cut]"
        self._held.clear()
        self._cut = False
        return line


class Inlet:
    """The read end of a pipe that a child writes into, read through `stream`.

    Not asyncio's own child pipes: with those the wait for a child's end also waits for its pipes'
    end, which a grandchild, or a full buffer that nobody reads, holds back.
    """

    def __init__(self, stream: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self.stream = stream
        self._transport = transport

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
    """A running child process; make one with `Child.spawn`.

    `tail` holds the last lines of its stderr, without prefix, for error texts.
    """

    def __init__(
        self, process: Process, lifeline: int, said: Inlet, printed: Inlet, name: str, log: Log
    ) -> None:
        self._process = process
        self._lifeline: int | None = lifeline
        self._said = said
        self._printed = printed
        self._name = name
        self._log = log
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._relay = asyncio.create_task(self._relay_stderr())

    @classmethod
    async def spawn(cls, name: str, argv: Sequence[str], log: Log) -> Child:
        """Start `argv`, with its stderr relayed to `log` as `name: line`.

        Raises EngineError if the operating system refuses. A cancelled spawn leaves no child.
        """
        making = asyncio.create_task(cls._spawn(name, argv, log))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            # It takes milliseconds, and half of it could not be undone from out here.
            await (await making).kill()
            raise

    @classmethod
    async def _spawn(cls, name: str, argv: Sequence[str], log: Log) -> Child:
        stdin, lifeline = os.pipe()
        said, stdout = await Inlet.open()
        printed, stderr = await Inlet.open()
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                # Ctrl-C on a terminal goes to the whole foreground group: the engine must live on
                # until the proxy has drained.
                start_new_session=True,
            )
        except OSError as error:
            os.close(lifeline)
            said.close()
            printed.close()
            raise EngineError(
                f"could not start the {name} process: {error}. "
                "Check the process and memory limits of this user (`ulimit -a`)."
            ) from error
        finally:
            for theirs in (stdin, stdout, stderr):
                os.close(theirs)
        return cls(process, lifeline, said, printed, name, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code (negative: signal), None while the child runs."""
        return self._process.returncode

    async def status_line(self) -> bytes:
        """Return the first line of the child's stdout, and close it; b"" if no line comes.

        A child that goes on writing there gets a broken pipe.
        """
        try:
            return await self._said.stream.readuntil(b"\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return b""
        finally:
            self._said.close()

    async def wait(self) -> int:
        """Wait for the child's end and its last log line; return its exit code (negative: signal).

        May be awaited by many tasks; cancelling one of them leaves the others waiting.
        """
        code = await self._process.wait()
        # A grandchild may hold stderr open for long after the child's own end.
        await asyncio.wait([self._relay], timeout=LAST_WORDS_SECONDS)
        self._close()
        return code

    async def stop(self, grace: float) -> int:
        """End the child: SIGTERM, after `grace` seconds SIGKILL; return its exit code."""
        self._send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            self._log(f"{self._name}: did not end {grace:g} s after SIGTERM, killed")
            self._send(signal.SIGKILL)
        return await self.wait()

    async def kill(self) -> int:
        """End the child at once; return its exit code."""
        self._send(signal.SIGKILL)
        return await self.wait()

    def _send(self, number: signal.Signals) -> None:
        # Not Process.send_signal: it polls, and so takes the exit code from under asyncio's own
        # watcher, which then reports 255 (Python 3.11).
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self._process.pid, number)

    def _close(self) -> None:
        self._relay.cancel()
        self._said.close()
        self._printed.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    async def _relay_stderr(self) -> None:
        cutter = LineCutter()
        while data := await self._printed.stream.read(STATUS_BYTES):
            self._emit(cutter.feed(data))
        self._emit(cutter.finish())

    def _emit(self, lines: list[str]) -> None:
        for line in lines:
            self.tail.append(line)
            self._log(f"{self._name}: {line}")
