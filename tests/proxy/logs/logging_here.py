"""A log of a test's own: set up as the command does it, on a file that can be read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.waiting import SECONDS, until
from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
from wellspoken.proxy.logs import Logs
from wellspoken.proxy.server import Service

Line = dict[str, Any]


class Written:
    """A log and what it wrote so far."""

    def __init__(self, log: Logs, path: Path) -> None:
        self.log = log
        self.path = path

    def text(self) -> str:
        """Return everything that was written."""
        assert self.log.flush(SECONDS)
        return self.path.read_text("utf-8")

    def lines(self) -> list[Line]:
        """Return the lines, each of which must be one object of JSON."""
        text = self.text()
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def requests(self) -> list[Line]:
        """Return the lines of requests."""
        return [line for line in self.lines() if line.get("event") == "request"]

    def observe(self, service: Service) -> None:
        """Have this log told of a service's requests, as `serve` does."""
        service.state.config = msgspec.structs.replace(service.state.config, log=self.log.config)
        logs.observe(service.hooks, self.log)


@contextmanager
def logging_to(path: Path, **settings: Any) -> Iterator[Written]:
    """Set the process' log up on a file, until the block ends; settings are those of [log]."""
    with path.open("w", encoding="utf-8") as file:
        log = logs.set_up(Log(**settings), EngineProgress(file))
        try:
            yield Written(log, path)
        finally:
            log.close()


def shown(master: int) -> bytes:
    """Return all that a terminal shows, once nobody has its other end: it comes in pieces."""
    parts: list[bytes] = []
    try:
        while part := os.read(master, 65_536):
            parts.append(part)
    except OSError:  # EIO: so Linux tells that it was the last
        pass
    return b"".join(parts)


async def requests(written: Written, count: int = 1) -> list[Line]:
    """Return the lines of requests once there are so many: a client has its answer before."""
    await until(lambda: len(written.requests()) >= count)
    found = written.requests()
    assert len(found) == count
    return found
