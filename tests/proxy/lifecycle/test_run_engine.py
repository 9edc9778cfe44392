"""The life of the process with an engine of its own: a real llama.cpp, also one that loads long."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import own_time
from tests.fakes.upstream import Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, MESSAGES
from tests.proxy.lifecycle.test_run import Running
from tests.waiting import until
from wellspoken.engine import supervisor
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command
from wellspoken.engine.llamacpp.llamacpp_kind import LlamaCpp
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.lifecycle import hosted as engines

ASKED = {"model": "any", "messages": MESSAGES}
ENDLESS = [{"role": "user", "content": "@loop"}]
GRACE = 300.0
"""Seconds that an engine may take to end: far more than one takes that is ended at once."""
NEVER = Path("/nowhere/go")

# Says what it does, waits for a file, and becomes the engine; or ends.
SLOW = """
import os, sys, time
print("phase: " + sys.argv[2], file=sys.stderr, flush=True)
if len(sys.argv) == 3:
    sys.exit(3)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Slow(LlamaCpp):
    """llama.cpp, but its process begins when a file is there, or never becomes one."""

    def __init__(self, model: Path, go: Path, *, fails: bool = False) -> None:
        super().__init__(model, context=512, parallel=1, threads=1)
        self.go = go
        self.fails = fails

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        command = super().command(socket, folder, shutdown_timeout)
        slow = (sys.executable, "-c", SLOW, str(self.go), "loading weights")
        return replace(command, argv=slow if self.fails else (*slow, *command.argv))

    def phase(self, line: str) -> str | None:
        return line.removeprefix("phase: ") if line.startswith("phase: ") else None

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        return EngineError(f"it ended with {code}")


def engine_config(
    model: Path,
    backends: Sequence[dict[str, Any]] = (),
    *,
    listen: str = "127.0.0.1:0",
    **more: Any,
) -> Config:
    """Return a configuration with an engine, alone unless there are backends."""
    sizes = {"context": 512, "parallel": 1, "threads": 1}
    engine = {"kind": "llamacpp", "model": str(model), **sizes, **more}
    return load(
        None, {"server": {"listen": listen}, "engine": engine, "backend": list(backends)}, {}
    )


def slowly(
    patch: pytest.MonkeyPatch, model: Path, go: Path = NEVER, *, fails: bool = False
) -> None:
    """Let the engine that is configured be a slow one."""
    patch.setattr(engines, "kind_of", lambda *_: Slow(model, go, fails=fails))


def family(word: bytes = b"llamacpp_child") -> set[int]:
    """Return the processes below this one whose command line holds `word`."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                command = (entry / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            parents[int(entry.name)] = int(parent)
            if word in command:
                found.add(int(entry.name))
    return {pid for pid in found if os.getpid() in _above(pid, parents)}


def _above(pid: int, parents: dict[int, int]) -> set[int]:
    above: set[int] = set()
    while (pid := parents.get(pid, 0)) > 1:
        above.add(pid)
    return above


async def get(url: str) -> tuple[int, dict[str, str], Any]:
    """GET a URL; return status, headers and decoded JSON."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, dict(response.headers), await response.json()


async def ask(url: str, **more: Any) -> tuple[int, dict[str, str], Any]:
    """POST a chat request; return status, headers and decoded JSON."""
    async with aiohttp.ClientSession() as session:
        async with session.post(url + CHAT, json={**ASKED, **more}) as response:
            return response.status, dict(response.headers), await response.json()


async def test_an_engine_is_started_proxied_restarted_and_stopped(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF", (0.1, 30.0))
    running = Running(engine_config(tiny_model))
    url = await running.url()
    banner = await running.said
    assert "\n  engine engine: llama.cpp b" in banner
    assert ", tiny-spm, context 512" in banner
    assert '"model": "tiny-spm"' in banner
    assert len(banner.split("\n")) <= 13
    status, _, answer = await ask(url, logprobs=True)
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "Hello world! café 😀 done."
    _, _, models = await get(f"{url}/v1/models")
    assert [one["id"] for one in models["data"]] == ["tiny-spm"]
    first = family()
    assert first
    for pid in first:
        with suppress(ProcessLookupError):  # one dies with the other
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not family() & first)

    async def has_noticed() -> bool:
        nonlocal status, answer
        status, _, answer = await ask(url)
        return status != 502

    await until(has_noticed)
    assert status == 200, answer
    second = family()
    assert second and not second & first
    running.signal()
    assert await running.task == 0
    assert family() == set()


async def test_while_it_starts_requests_are_told_what_it_does(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    slowly(monkeypatch, tiny_model, tmp_path / "go")
    listen = f"127.0.0.1:{free_port()}"
    running, url = Running(engine_config(tiny_model, listen=listen)), f"http://{listen}"
    await until(lambda: "loading weights" in caplog.text)
    status, headers, answer = await ask(url)
    assert status == 503
    assert int(headers["Retry-After"]) >= 1
    assert answer["error"]["code"] == "engine_not_ready"
    assert "loading weights" in answer["error"]["message"]
    status, _, answer = await get(f"{url}/readyz")
    assert status == 503 and "loading weights" in answer["reason"]
    assert (await get(f"{url}/livez"))[0] == 200
    assert not running.said.done()
    assert caplog.text.count("llamacpp: loading weights") == 1
    (tmp_path / "go").touch()
    assert await running.url() == url
    assert (await ask(url))[0] == 200
    assert (await get(f"{url}/readyz"))[0] == 200
    running.signal()
    assert await running.task == 0


async def test_a_signal_ends_a_start_at_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slowly(monkeypatch, tiny_model)
    running = Running(engine_config(tiny_model, grace=GRACE))
    await until(lambda: family(b"loading weights"))
    began = own_time()
    running.signal()
    assert await running.task == 0
    assert own_time() - began < GRACE / 5
    assert not running.said.done()
    assert family(b"loading weights") == set()


async def test_other_backends_do_not_wait_for_an_engine(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, upstream: Upstream
) -> None:
    slowly(monkeypatch, tiny_model)
    upstream.script("/health", whole({}))
    backend = {"url": upstream.url, "adapter": "openai", "models": ["m"], "name": "b"}
    running = Running(engine_config(tiny_model, [backend], alias="own", grace=GRACE))
    url = await running.url()
    assert "  engine engine: llama.cpp, starting\n" in await running.said
    assert (await get(f"{url}/readyz"))[0] == 200
    status, _, answer = await ask(url, model="own")
    assert (status, answer["error"]["code"]) == (503, "engine_not_ready")
    began = own_time()
    running.signal()
    assert await running.task == 0
    assert own_time() - began < GRACE / 5
    assert family(b"loading weights") == set()


async def test_an_engine_that_cannot_start_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running(engine_config(tmp_path / "nothing.gguf"))
    assert await running.task == 1
    assert "nothing.gguf" in caplog.text
    assert not running.said.done()


async def test_what_is_wrong_before_the_start_ends_it_before_the_start(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = engine_config(tiny_model, environment={"A": "env:NOT_SET_ANYWHERE"})
    assert await Running(config).task == 2
    assert "engine.environment.A: the variable NOT_SET_ANYWHERE is not set" in caplog.text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert await Running(engine_config(tiny_model, listen=listen)).task == 1
    assert f"{listen} is taken" in caplog.text
    assert family() == set()


async def test_it_goes_on_without_an_engine_where_there_is_another_backend(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.script("/health", whole({}))
    backend = {"url": upstream.url, "adapter": "openai", "models": ["m"]}
    running = Running(engine_config(tmp_path / "nothing.gguf", [backend]))
    url = await running.url()
    await until(lambda: "nothing.gguf" in caplog.text)
    status, _, answer = await ask(url, model="nothing")
    assert status == 503 and "nothing.gguf" in answer["error"]["message"]
    assert (await get(f"{url}/readyz"))[0] == 200
    running.signal()
    assert await running.task == 0


async def test_an_engine_that_ends_too_often_is_down_until_sighup_and_the_proxy_stays_up(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(supervisor, "BACKOFF", (0.01, 0.02))
    kind = Slow(tiny_model, tiny_model, fails=True)
    monkeypatch.setattr(engines, "kind_of", lambda *_: kind)
    running = Running(engine_config(tiny_model, restarts=2))
    url = await running.url()
    assert "not ready yet: " in await running.said
    assert "it ended 2 times" in caplog.text
    status, _, answer = await get(f"{url}/readyz")
    assert status == 503 and "it ended 2 times" in answer["reason"]
    status, headers, answer = await ask(url)
    assert (status, answer["error"]["code"]) == (503, "engine_not_ready")
    assert 1 <= int(headers["Retry-After"]) <= 30 and "x-should-retry" not in headers
    kind.fails = False  # what was wrong is mended
    running.signal(signal.SIGHUP)
    await until(lambda: " is ready, with " in caplog.text)
    assert (await get(f"{url}/readyz"))[0] == 200
    running.signal()
    assert await running.task == 0


async def test_an_engine_that_ends_too_often_takes_the_process_along_where_that_is_wanted(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF", (0.01, 0.02))
    slowly(monkeypatch, tiny_model, fails=True)
    running = Running(engine_config(tiny_model, restarts=2, on_failure="exit"))
    assert await running.task == 1
    said = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(said) == 1 and "it ended 2 times" in said[0]
    assert said[0].endswith("The proxy ends too: engine.on_failure is exit")


async def streamed(session: aiohttp.ClientSession, url: str) -> list[Any]:
    """Ask for a long stream; return its events, the last of which is what ended it."""
    asked = {**ASKED, "messages": ENDLESS, "stream": True, "max_tokens": 200}
    events: list[Any] = []
    async with session.post(url + CHAT, json=asked) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                events.append(json.loads(line[6:]))
            elif line.startswith(b"data: "):
                events.append(line[6:].strip().decode())
    return events


async def inflight(session: aiohttp.ClientSession, url: str) -> int:
    """Return how many requests are open, besides this one."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    found = re.search(r"^wellspoken_inflight_requests (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) - 1


async def test_open_streams_finish_before_the_engine_is_ended(tiny_model: Path) -> None:
    running = Running(engine_config(tiny_model))
    url = await running.url()
    async with aiohttp.ClientSession() as session:
        engine = family() - family(b"shim.py")
        for pid in engine:
            os.kill(pid, signal.SIGSTOP)  # so that none is over before all have begun
        tasks = [asyncio.create_task(streamed(session, url)) for _ in range(6)]

        async def all_begun() -> bool:
            return await inflight(session, url) == 6

        await until(all_begun)
        running.signal()
        for pid in engine:
            os.kill(pid, signal.SIGCONT)
        answers = await asyncio.gather(*tasks)
    for events in answers:
        assert events[-1] == "[DONE]"
        reasons = [c["finish_reason"] for event in events[:-1] for c in event["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
    assert await running.task == 0
    assert family() == set()


async def test_a_second_signal_ends_streams_and_engine_at_once(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    running = Running(engine_config(tiny_model, grace=GRACE))
    url = await running.url()
    for pid in family() - family(b"shim.py"):
        os.kill(pid, signal.SIGSTOP)  # it hangs: neither answers nor heeds SIGTERM
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(streamed(session, url))

        async def has_begun() -> bool:
            return await inflight(session, url) == 1

        await until(has_begun)
        running.signal()
        await until(lambda: "a second signal" in caplog.text)
        assert not running.task.done()
        began = own_time()
        running.signal()
        assert await running.task == 0
        assert own_time() - began < GRACE / 5
        with pytest.raises(aiohttp.ClientError):
            await task
    assert family() == set()
