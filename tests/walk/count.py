"""What one streamed chat goes through, and how many calls a request and an event cost.

The proxy is a real process with all defaults on, in front of the bench's upstream; the answers are
an old vLLM's, so every event is translated. Nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import itertools
import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import load
from tests.bench.data import Source
from tests.bench.judge.loads import case, upstream
from tests.bench.process import child
from tests.waiting import SECONDS

REQUESTS = 50
SHORT, LONG = 20, 120  # events of the streams whose difference tells the calls of one event


@dataclass(frozen=True)
class Walk:
    """The way of one streamed chat through the product's own code.

    `files` and `functions`: different ones entered. `moves`: calls whose file is another than the
    previous call's.
    """

    files: int
    functions: int
    moves: int
    steps: list[str]


@dataclass(frozen=True)
class Calls:
    """Calls of a request or of an event: of Python functions, and all with those of C."""

    python: float
    total: float


@dataclass(frozen=True)
class Found:
    """What was counted."""

    walk: Walk
    request: Calls
    event: Calls


class Control:
    """The line to the proxy under count (tests.walk.counted)."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(SECONDS)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rw")

    def _say(self, word: str) -> Any:
        self._lines.write(word + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    @contextmanager
    def count(self) -> Iterator[dict[str, Any]]:
        """Count what happens in the block; the dictionary is filled at its end."""
        found: dict[str, Any] = {}
        self._say("begin")
        yield found
        found.update(self._say("end"))

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()


def walk_of(steps: list[tuple[str, str]]) -> Walk:
    """Return what a list of files and functions, in the order of the calls, amounts to."""
    files = [file for file, _ in steps]
    moves = [f"{a} -> {b}" for a, b in itertools.pairwise(files) if a != b]
    return Walk(len(set(files)), len({tuple(step) for step in steps}), len(moves), moves)


def run() -> Found:
    """Start everything, count, stop. Raises LoadError, StartError."""
    source = Source()
    found = [
        case("small", "", source.answer(20, 0), "json"),
        case("short", "", source.answer(SHORT, 5), "paced"),
        case("long", "", source.answer(LONG, 5), "paced"),
        case("one", "", source.answer(3, 5), "paced"),
    ]
    by_name = {each.name: each.job for each in found}
    with (
        tempfile.TemporaryDirectory() as folder,
        upstream(found, None) as backend,
        load.runner() as loop,
    ):
        path = str(Path(folder) / "control")
        arguments = [backend.url, "--adapter", "vllm", "--listen", "127.0.0.1:0"]
        with child(["-m", "tests.walk.counted", path, *arguments], None) as proxy:
            control = Control(path)
            try:
                urls = (proxy.url, backend.url)
                measured = {
                    name: loop.run(_count(control, urls, job)) for name, job in by_name.items()
                }
            finally:
                control.close()
    small, short, long = measured["small"], measured["short"], measured["long"]
    return Found(
        walk_of([(file, name) for file, name in measured["one"]["walk"]]),
        _calls(small, {"python": 0, "c": 0}, REQUESTS),
        _calls(long, short, LONG - SHORT),
    )


async def _count(control: Control, urls: tuple[str, str], job: load.Job) -> dict[str, Any]:
    """Return what the requests of one kind call: on a connection that is kept, in a proxy whose
    connections to the backend are kept as well, after the same were answered before.
    """
    url, backend = urls
    client = await load.connect(url, load.Client)
    try:
        await load.settle(client, url, job, backend)
        with control.count() as counted:
            for _ in range(REQUESTS if job.name == "small" else 1):
                await load.fetch_on(client, url, job)
    finally:
        client.close()
    return counted


def _calls(more: dict[str, Any], less: dict[str, Any], number: int) -> Calls:
    python = more["python"] - less["python"]
    return Calls(python / number, (python + more["c"] - less["c"]) / number)


def text(found: Found) -> str:
    """Return what was found, for people."""
    walk = found.walk
    return "\n".join(
        (
            f"one streamed chat: {walk.files} files, {walk.functions} functions entered,"
            f" {walk.moves} moves from one file to another",
            f"a small request: {_said(found.request)}",
            f"an event of a stream, 5 alternatives: {_said(found.event)}",
        )
    )


def _said(calls: Calls) -> str:
    return f"{calls.total:.0f} calls, {calls.python:.0f} of them of Python functions"
