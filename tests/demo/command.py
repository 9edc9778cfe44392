"""Runs the command `wellspoken serve` with an engine and a backend, as a user would."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.demo.replay import NEWER, OLDEST

TINY = "tiny"
START_SECONDS = 30

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
    """The addresses: of the proxy, and of the llama.cpp server that it started."""

    proxy: str
    llamacpp: str


@asynccontextmanager
async def wellspoken(model: Path, vllm: str) -> AsyncIterator[Served]:
    """Run the proxy in front of both, until the block ends. Raises StartError."""
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "wellspoken.toml", Path(folder) / "log"
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
            )
        try:
            assert process.stdout is not None
            yield await _addresses(process.stdout, log)
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _addresses(stdout: asyncio.StreamReader, log: Path) -> Served:
    banner = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while "\nTry:" not in banner and (line := await stdout.readline()):
                banner += line.decode()
    proxy = re.search(r"listens on (http://\S+)", banner)
    llamacpp = re.search(r"backend llamacpp: (http://\S+)", banner)
    if proxy is None or llamacpp is None:
        raise StartError(f"{banner}{log.read_text()}".strip() or f"silent for {START_SECONDS} s")
    return Served(proxy[1], llamacpp[1])
