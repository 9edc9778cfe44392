"""The life of the process: start, banner, drain on a signal, and errors that end it."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import subprocess
import termios
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clock import own_time, skip
from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Cut, Gate, Stall, Upstream, stream, whole
from tests.proxy.cli.test_cli import COMMAND
from tests.proxy.conftest import CHAT, MESSAGES
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.waiting import until
from wellspoken.proxy.config import Config, ConfigSource, load
from wellspoken.proxy.lifecycle import run
from wellspoken.proxy.lifecycle.banner import STORE_SECONDS
from wellspoken.proxy.lifecycle.run import serve
from wellspoken.proxy.store.postgres.pool import CONNECT

ASKED = {"model": MODEL, "messages": MESSAGES}


class Running:
    """`serve` as a task in this process, signals included."""

    def __init__(self, config: Config, source: ConfigSource | None = None) -> None:
        self.said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(serve(config, self.said.set_result, source=source))

    async def url(self) -> str:
        """Wait for the banner; return the address in it."""
        either: set[asyncio.Future[Any]] = {self.said, self.task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self.said.done():
            raise AssertionError(f"ended without a banner: {await self.task}")
        return (await self.said).split("listens on ")[1].split()[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send this process a signal."""
        os.kill(os.getpid(), number)


def config_for(upstream: Upstream, **server: Any) -> Config:
    """Return a configuration with one backend, on a free port; no stream is silent for too long."""
    backend = {"url": upstream.url, "adapter": "openai"}
    flags = {"server": {"listen": "127.0.0.1:0", **server}, "backend": [backend]}
    return load(None, {**flags, "timeouts": {"probe": 60, "heartbeat": 3600}}, {})


async def test_the_banner_has_a_request_to_copy(upstream: Upstream) -> None:
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"data": [{"id": "it's"}]}))
    running = Running(config_for(upstream))
    url = await running.url()
    lines = (await running.said).split("\n")
    assert len(lines) <= 13
    assert upstream.url in lines[1]
    script = "\n".join(lines[lines.index("Try:") + 1 :])
    assert max(map(len, lines[:-1])) <= 80
    running_curl = await asyncio.create_subprocess_shell(
        script.replace("curl ", "printf '%s|' "), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await running_curl.communicate()
    words = out.decode().split("|")
    assert words[0] == url + CHAT
    assert '"model": "it\'s"' in words[4]
    running.signal()
    assert await running.task == 0


async def test_it_starts_in_front_of_a_backend_whose_list_of_models_fails(
    upstream: Upstream,
) -> None:
    """Healthy, but /v1/models breaks off: who copies the request fills the name in."""
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", [Cut()])
    running = Running(config_for(upstream))
    await running.url()
    said = await running.said
    assert '"model": "MODEL"' in said and len(said.split("\n")) <= 13
    assert f"\n  no model is known: The backend at {upstream.url} closed the connection" in said
    running.signal()
    assert await running.task == 0


async def test_a_key_that_is_missing_is_told_at_the_start(upstream: Upstream) -> None:
    """It is ready, as far as can be known without one."""
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"error": "who are you?"}, status=401))
    running = Running(config_for(upstream))
    await running.url()
    said = await running.said
    assert f"\n  no model is known: The backend at {upstream.url} answered GET /v1/models" in said
    assert "status 401. Give the proxy a key that it takes" in said
    running.signal()
    assert await running.task == 0


async def test_the_banner_waits_for_the_store(upstream: Upstream, tmp_path: Path) -> None:
    """It said "being opened" of each healthy one, and had no model's name: the mutant does."""
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"data": [{"id": "tiny"}]}))
    flags = {
        "server": {"listen": "127.0.0.1:0"},
        "timeouts": {"probe": 60},
        "backend": [{"url": upstream.url, "adapter": "openai"}],
        "store": {"path": str(tmp_path / "store.db")},
    }
    running = Running(load(None, flags, {}))
    await running.url()
    assert "not ready" not in await running.said
    assert '"model": "tiny"' in await running.said
    running.signal()
    assert await running.task == 0


def test_the_banner_knows_what_became_of_a_database_that_never_answers() -> None:
    """Rejects "not ready yet" of a proxy that is ready at the next moment, with its spool."""
    assert STORE_SECONDS > CONNECT


async def test_a_store_that_fails_hides_no_model(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"data": [{"id": "tiny"}]}))
    (tmp_path / "store.db").write_bytes(b"this is no database" * 100)
    flags = {
        "server": {"listen": "127.0.0.1:0"},
        "timeouts": {"probe": 60},
        "backend": [{"url": upstream.url, "adapter": "openai"}],
        "store": {"path": str(tmp_path / "store.db")},
    }
    running = Running(load(None, flags, {}))
    await running.url()
    assert "\n  The store of completions cannot be used now: " in await running.said
    assert '"model": "tiny"' in await running.said
    running.signal()
    assert await running.task == 0


async def test_the_banner_tells_what_is_not_ready(upstream: Upstream) -> None:
    await upstream.refuse()
    backends = [{"name": f"b{n}", "url": upstream.url, "models": [f"m{n}"]} for n in range(6)]
    flags = {"server": {"listen": "127.0.0.1:0"}, "backend": backends}
    running = Running(load(None, flags, {}))
    await running.url()
    text = await running.said
    assert "refused the connection" in text
    assert "and 2 more backends" in text
    assert '"model": "m0"' in text
    assert len(text.split("\n")) <= 13
    running.signal(signal.SIGINT)
    assert await running.task == 0


async def test_a_signal_lets_streams_finish(upstream: Upstream) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    running = Running(config_for(upstream, drain_delay=10.0))
    url = await running.url()
    async with aiohttp.ClientSession() as session:
        asked = {**ASKED, "stream": True}
        responses = [await session.post(url + CHAT, json=asked) for _ in range(10)]
        running.signal()

        async def is_draining() -> bool:  # still accepted, and not ready
            async with session.get(f"{url}/readyz") as response:
                return response.status == 503 and response.headers["Connection"] == "close"

        await until(is_draining)
        skip(10)

        async def is_closed() -> bool:
            try:
                async with aiohttp.ClientSession() as other:
                    await other.get(f"{url}/livez")
            except aiohttp.ClientConnectorError:
                return True
            except aiohttp.ClientError:  # closed while it waited to be accepted
                return False
            return False

        await until(is_closed)
        assert not running.task.done()
        gate.open()
        bodies = [await response.read() for response in responses]
    assert bodies == [b"".join(EVENTS) + DONE] * 10
    assert await running.task == 0


async def test_idle_connections_do_not_hold_the_end_up(upstream: Upstream) -> None:
    upstream.script("/health", whole({}))
    running = Running(config_for(upstream))
    url = await running.url()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/livez") as response:
            await response.read()
        began = own_time()
        running.signal()
        assert await running.task == 0
    assert own_time() - began < 30  # it may stay open for 75 s, and a drain may take 300


def in_a_terminal(*before: str) -> tuple[subprocess.Popen[str], int]:
    """Start the proxy as the leader of a terminal's session; return it and the terminal's end."""

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored where the tests run
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    mine, its = os.openpty()
    command = [*before, *COMMAND, "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        command,
        stdin=its,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(its)
    limit = threading.Timer(240, process.kill)  # a test that waits for it must not wait without end
    limit.daemon = True
    limit.start()
    return process, mine


def test_a_terminal_that_closes_ends_it_in_order() -> None:
    """Its signal would else kill the process, with what is still to be stored."""
    process, terminal = in_a_terminal()
    with process:
        try:
            assert process.stdout is not None
            said = ""
            while "listens on" not in said:  # a line of the log may come before it
                said = process.stdout.readline()
                assert said
            process.send_signal(signal.SIGHUP)  # somebody's, while the terminal is there
            while "read again" not in said:
                said = process.stdout.readline()
                assert said
            os.close(terminal)
            assert "draining: 0 open requests" in process.stdout.read()
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()


def test_nohup_outlives_its_terminal() -> None:
    process, terminal = in_a_terminal("nohup")
    with process:
        try:
            assert process.stdout is not None
            said = ""
            while "listens on" not in said:
                said = process.stdout.readline()
                assert said
            os.close(terminal)
            while "read again" not in said:  # it has come through the signal
                said = process.stdout.readline()
                assert said
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()


async def test_an_end_that_fails_takes_its_handlers_along(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stayed would ask a loop that is closed to act."""
    end = run._Life.end

    async def fail(life: run._Life) -> None:
        await end(life)
        raise RuntimeError("no end")

    monkeypatch.setattr(run._Life, "end", fail)
    upstream.script("/health", whole({}))
    running = Running(config_for(upstream))
    await running.url()
    running.signal()
    with pytest.raises(RuntimeError, match="no end"):
        await running.task
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    assert not any(hasattr(handler, "__self__") for handler in handlers)


async def test_a_second_signal_stops_at_once(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], Stall()))
    running = Running(config_for(upstream))
    url = await running.url()
    async with aiohttp.ClientSession() as session:
        response = await session.post(url + CHAT, json={**ASKED, "stream": True})
        running.signal()
        await until(lambda: "a second signal" in caplog.text)
        assert not running.task.done()
        running.signal()
        assert await running.task == 0
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    closed = [request.closed for request in upstream.requests if request.target == CHAT]
    await closed[0].wait()


async def test_the_drain_has_a_limit(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    upstream.script("/health", whole({}))
    upstream.script(CHAT, [Stall()])
    running = Running(config_for(upstream, drain_timeout=0.2))
    url = await running.url()
    async with aiohttp.ClientSession() as session:
        task = asyncio.create_task(session.post(url + CHAT, json=ASKED))
        assert (await upstream.request(2)).target == CHAT
        running.signal()
        assert await running.task == 0
        with pytest.raises(aiohttp.ClientError):
            await task
    assert "cut off" in caplog.text


async def test_a_taken_port_is_an_error_that_names_another(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = Running(config_for(upstream, listen=f"127.0.0.1:{port}"))
        assert await running.task == 1
    assert f"127.0.0.1:{port} is taken" in caplog.text
    assert "--listen 127.0.0.1:" in caplog.text


async def test_an_address_of_another_machine_is_an_error(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {"server": {"listen": "192.0.2.1:8010"}, "backend": [{"url": upstream.url}]}
    running = Running(load(None, {**tables, "auth": "none"}, {}))
    assert await running.task == 1
    assert "cannot listen on 192.0.2.1:8010" in caplog.text


async def test_a_configuration_that_cannot_be_used_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flags = {"backend": [{"url": "x", "adapter": "nothing"}]}
    assert await Running(load(None, flags, {})).task == 2
    assert "unknown adapter 'nothing'" in caplog.text


async def test_everything_that_a_configuration_lacks_is_said_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        "[[backend]]\nurl = 'http://x'\nadapter = 'nothing'\n"
        "key = 'env:WELLSPOKEN_NO_KEY'\ntokenizer = 'nowhere.json'\n"
    )
    source = ConfigSource(file, environ={})
    config = source.load()
    assert await serve(config, lambda text: None, source=source) == 2
    places = [(f"{file}:3:11", "adapter"), (f"{file}:4:7", "key"), (f"{file}:5:13", "tokenizer")]
    said = [record.message for record in caplog.records]
    assert [line.split(": ")[:2] for line in said[:-1]] == [
        [place, f"backend[0].{key}"] for place, key in places
    ]
    assert said[-1].endswith(f"wellspoken check {file}")
    # A worker knows the configuration alone, and no file.
    caplog.clear()
    assert await serve(config, lambda text: None) == 2
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        f"backend[0].{key}" for _, key in places
    ]


async def test_what_is_wrong_beside_the_configuration_is_said_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry's variables are looked at only where spans begin."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    flags = {"backend": [{"url": "x"}], "traces": {"enabled": True}}
    assert await serve(load(None, flags, {}), lambda text: None) == 2
    assert "carrier-pigeon" in caplog.text
