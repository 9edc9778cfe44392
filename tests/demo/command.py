"""Runs the command `wellspoken serve` with an engine and a backend, as a user would."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.demo.replay import NEWER, OLDEST

TINY = "tiny"
START_SECONDS = 240
POLL_SECONDS = 0.05

CONFIG = """\
[server]
listen = "127.0.0.1:0"

[engine]
kind = "llamacpp"
model = {model}
name = "llamacpp"
alias = "{alias}"
context = 2048

[[backend]]
name = "vllm"
url = "{url}"
adapter = "vllm"
models = ["{oldest}", "{newer}"]
"""


class StartError(Exception):
    """The command did not come up; the text is what it said."""


@dataclass(frozen=True)
class Served:
    """The addresses: of the proxy, and of the llama.cpp server that it started (unix:PATH)."""

    proxy: str
    llamacpp: str


@asynccontextmanager
async def wellspoken(model: Path, vllm: str) -> AsyncIterator[Served]:
    """Run the proxy in front of both, until the block ends. Raises StartError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, log = folder / "wellspoken.toml", folder / "log"
        config.write_text(
            CONFIG.format(
                model=json.dumps(str(model)), alias=TINY, url=vllm, oldest=OLDEST, newer=NEWER
            )
        )
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "wellspoken.proxy.cli"),
                *("serve", "--config", str(config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # The engine's socket is private; this says in which folder it is.
                env=os.environ | {"XDG_RUNTIME_DIR": name},
            )
        try:
            assert process.stdout is not None
            try:
                async with asyncio.timeout(START_SECONDS):
                    served = await _addresses(process.stdout, folder)
            except (TimeoutError, _Silent) as error:
                await _end(process)  # its last lines are written by then
                raise StartError(log.read_text().strip() or "it said nothing") from error
            yield served
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


async def _addresses(stdout: asyncio.StreamReader, folder: Path) -> Served:
    """Return the addresses once the engine is ready. Raises _Silent where that never comes."""
    banner = ""
    while "\nTry:" not in banner and (line := await stdout.readline()):
        banner += line.decode()
    proxy = re.search(r"listens on (http://\S+)", banner)
    if proxy is None:
        raise _Silent
    state = ""
    while state != "ready":
        await asyncio.sleep(POLL_SECONDS)
        state = await asyncio.to_thread(_engine_state, proxy[1])
        if state == "failed":
            raise _Silent
    [socket] = folder.glob("wellspoken/*/api.sock")
    return Served(proxy[1], f"unix:{socket}")


def _engine_state(proxy: str) -> str:
    with urlopen(f"{proxy}/metrics") as answer:
        metrics = answer.read().decode()
    [state] = re.findall(
        r'^wellspoken_engine_state\{.*state="(\w+)"\} 1\.0$', metrics, re.MULTILINE
    )
    return str(state)


class _Silent(Exception):
    """The proxy, or its engine, did not come up."""
