"""Runs llama.cpp's own HTTP server as a child process, from the `xllamacpp` wheel.

engine = LlamaCpp(Path("model.gguf"))
url = await engine.start()     # http://127.0.0.1:43210, ready
...
await engine.stop()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

from wellspoken.engine.child import Child, EngineError, Log, State, log_to_stderr

__all__ = ["EngineError", "LlamaCpp", "State"]

CHILD_MODULE = "wellspoken.engine.llamacpp_child"
POLL_SECONDS = 0.05
DETAIL_LINES = 3

_REMEDY = {
    "missing": (
        'The embedded llama.cpp needs the xllamacpp wheel: pip install "wellspoken[llamacpp]".'
    ),
    "library": (
        "A system library that xllamacpp needs is missing. For libgomp: "
        "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora), "
        "apk add libgomp (Alpine)."
    ),
    "version": (
        "This version of xllamacpp is not one that wellspoken knows: "
        'pip install --upgrade "wellspoken[llamacpp]".'
    ),
    "load": (
        "Check that the file is a whole GGUF model (its first four bytes read GGUF), that the port "
        "is free, and that the model with its context fits into memory (a smaller context helps)."
    ),
}


class LlamaCpp:
    """llama.cpp behind one base URL: started, watched and stopped as one child process.

    `context` tokens are shared by `parallel` slots; 0 takes the model's own, cut down to what
    memory holds. `threads` 0 and `gpu_layers` -1 leave the choice to llama.cpp. `alias` is the
    model's name in /v1/models (the file's stem if None). `start_timeout` and `grace` are seconds.
    `log` gets each line the child prints, as `llamacpp: line`, cut to 2,000 bytes. An instance may
    be started again after it has stopped or failed.
    """

    def __init__(
        self,
        model: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        context: int = 0,
        parallel: int = 4,
        threads: int = 0,
        gpu_layers: int = -1,
        alias: str | None = None,
        verbosity: int = 1,
        start_timeout: float = 600.0,
        grace: float = 5.0,
        log: Log = log_to_stderr,
    ) -> None:
        self.model = model
        self.alias = alias if alias is not None else model.stem
        self._host = host
        self._settings = {
            "port": port,
            "context": context,
            "parallel": parallel,
            "threads": threads,
            "gpu-layers": gpu_layers,
            "verbosity": verbosity,
        }
        self._start_timeout = start_timeout
        self._grace = grace
        self._log = log
        self._state: State = "stopped"
        self._child: Child | None = None
        self._watch: asyncio.Task[int] | None = None

    @property
    def state(self) -> State:
        """`failed` after a start that failed, or an end that nobody asked for."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> str:
        """Start the child and return its base URL, without a final slash, once it answers.

        Raises EngineError when the model, the wheel or a library is missing or unusable, when the
        child dies, and after `start_timeout`; no child is left then.
        """
        if self._child is not None or self._state == "starting":
            raise EngineError("this engine already runs; stop() it before start()")
        if not self.model.exists() or self.model.is_dir():
            self._state = "failed"
            raise EngineError(
                f"there is no model file {self.model}. Give --model the path of a .gguf file."
            )
        self._state = "starting"
        try:
            self._child = child = await Child.spawn("llamacpp", self._argv(), self._log)
            async with asyncio.timeout(self._start_timeout):
                url = await self._ready(child)
        except TimeoutError as error:
            raise EngineError(
                f"llama.cpp was not ready after {self._start_timeout:g} s and was killed. "
                f"Large models need longer: raise start_timeout. {self._last_lines()}".rstrip()
            ) from error
        finally:
            # Also reached when the caller cancels the start: the child must not outlive it.
            if self._state == "starting":
                await self._abandon()
        return url

    async def stop(self) -> None:
        """Stop the child: SIGTERM, and SIGKILL after `grace` seconds; nothing if none runs."""
        child = self._child
        if child is None:
            return
        self._state = "stopped"
        await child.stop(self._grace)
        if self._watch is not None:
            await self._watch
        self._child = None

    async def wait(self) -> int:
        """Wait until the child ends, asked for or not; return its exit code (negative: signal).

        Raises EngineError if none was started.
        """
        if self._watch is None:
            raise EngineError("this engine was not started; start() it before wait()")
        return await asyncio.shield(self._watch)

    def _argv(self) -> list[str]:
        # -P: a file named like a library in the working directory must not be imported.
        argv = [sys.executable, "-P", "-m", CHILD_MODULE]
        argv += ["--model", str(self.model), f"--alias={self.alias}", "--host", self._host]
        return argv + [f"--{key}={value}" for key, value in self._settings.items()]

    async def _ready(self, child: Child) -> str:
        line = await child.status_line()
        if not line:
            raise EngineError(self._death(await child.kill()))
        said: dict[str, str] = json.loads(line)
        if "ready" not in said:
            await child.wait()  # the last log lines belong into the message
            raise EngineError(self._refusal(said))
        url = said["ready"].rstrip("/")
        while not await _answers(url):
            if child.code is not None:
                raise EngineError(self._death(await child.wait()))
            await asyncio.sleep(POLL_SECONDS)
        self._state = "ready"
        self._watch = asyncio.create_task(self._watch_child(child))
        return url

    async def _watch_child(self, child: Child) -> int:
        code = await child.wait()
        if self._state == "ready":
            self._state = "failed"
            self._child = None
            self._log(f"llamacpp: {_ending(code)}, and nobody asked it to")
        return code

    async def _abandon(self) -> None:
        self._state = "failed"
        child, self._child = self._child, None
        if child is not None:
            await child.kill()

    def _refusal(self, said: dict[str, str]) -> str:
        kind = said.get("error", "load")
        what = f"llama.cpp could not load {self.model}" if kind == "load" else "llama.cpp can't run"
        detail = self._last_lines() or said.get("detail", "")
        return f"{what}: {detail} {_REMEDY[kind]}"

    def _death(self, code: int) -> str:
        hint = (
            "Most often the machine ran out of memory: take a smaller model or context."
            if code == -signal.SIGKILL
            else "Start it again with verbosity=3 to see how far it came."
        )
        return f"{_ending(code)} while it loaded {self.model}. {hint} {self._last_lines()}".rstrip()

    def _last_lines(self) -> str:
        return _told(list(self._child.tail)) if self._child is not None else ""


def _told(lines: list[str]) -> str:
    """Return what llama.cpp's log says went wrong: its first errors, else its last lines.

    A log line is `0.00.005.045 E text`; one failure makes a cascade, whose first lines tell most.
    """
    errors = [text for _, level, text in (line.partition(" E ") for line in lines) if level]
    chosen = list(dict.fromkeys(errors))[:DETAIL_LINES] or lines[-DETAIL_LINES:]
    return "It said: " + " | ".join(text.strip() for text in chosen) + "." if chosen else ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"llama.cpp ended with exit code {code}"
    return f"llama.cpp was ended by {signal.Signals(-code).name}"


async def _answers(url: str) -> bool:
    """Say whether GET /health answers 200 (llama.cpp: 503 while a model loads)."""
    where = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
    except OSError:
        return False
    try:
        writer.write(f"GET /health HTTP/1.0\r\nHost: {where.netloc}\r\n\r\n".encode())
        await writer.drain()
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
