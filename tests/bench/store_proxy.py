"""The proxy as a process of its own: configured by a file, killed or asked to end, its log kept."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.bench.process import START_SECONDS, StartError, pinned
from tests.waiting import SECONDS

_LISTENS = re.compile(r"listens on (http://\S+)")


def configured(folder: Path, backend: str, store: Mapping[str, object], keys: str = "") -> Path:
    """Write a configuration; `store` is its [store] table, empty for none, `keys` a file of keys.

    Strings of JSON are strings of TOML here.
    """
    lines = ["[server]", 'listen = "127.0.0.1:0"', "[[backend]]", f"url = {json.dumps(backend)}"]
    lines.append('adapter = "vllm"')
    if store:
        lines += ["[store]", *(f"{key} = {json.dumps(value)}" for key, value in store.items())]
    if keys:
        lines += ["[auth]", f"keys = [{json.dumps('file:' + keys)}]"]
    path = folder / f"wellspoken-{len(list(folder.glob('*.toml')))}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


class Proxy:
    """A proxy that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.path = log
        self.url = ""

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has said."""
        return self.path.read_text("utf-8", "replace")

    def wait_listening(self) -> None:
        """Wait until it says where it listens. Raises StartError."""
        until = time.monotonic() + START_SECONDS
        while True:
            found = _LISTENS.search(self.log)
            if found:
                self.url = found[1]
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise StartError(f"the proxy did not start: {self.log.strip() or 'silence'}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    async def ended(self, seconds: float = SECONDS) -> int:
        """Wait for its end; return the exit code. Raises StartError if it takes too long."""
        until = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            if time.monotonic() > until:
                raise StartError(f"the proxy did not end in {seconds:.0f} s: {self.log[-2000:]}")
            await asyncio.sleep(0.005)
        return code


def environment() -> dict[str, str]:
    """Return the environment without what would change the proxy's configuration."""
    hidden = ("OPENAI_", "WELLSPOKEN_")
    return {
        name: value
        for name, value in os.environ.items()
        if not (name.upper().startswith(hidden) or name.upper().endswith("_PROXY"))
    }


@contextmanager
def proxy(config: Path, where: set[int] | None) -> Iterator[Proxy]:
    """Run the proxy until the block ends; it listens when the block begins."""
    command = [sys.executable, "-m", "wellspoken.proxy.cli", "serve", "--config", str(config)]
    log = config.with_suffix(".log")
    with log.open("wb") as output, pinned(where):
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment()
        )
    running = Proxy(process, log)
    try:
        running.wait_listening()
        yield running
    finally:
        process.kill()  # a loop that wants an orderly end has waited for it
        process.wait()
