"""How several workers start, or do not: the port they share, and what is said when that fails."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.proxy.workers.test_workers import children
from tests.waiting import SECONDS, until
from wellspoken.proxy import workers
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import Config, ConfigSource, load
from wellspoken.proxy.workers import port as module
from wellspoken.proxy.workers.channel import Channel
from wellspoken.proxy.workers.hub import Hub, spawn_worker
from wellspoken.proxy.workers.port import Port

ROOT = Path(__file__).parents[3]


def config_for(**server: Any) -> Config:
    """Return a configuration with two workers before a backend that is not there."""
    given = {"listen": "127.0.0.1:0", "workers": 2, **server}
    return load(None, {"server": given, "backend": [{"url": "http://127.0.0.1:9"}]}, {})


def listen(port: int, *, shared: bool, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens as asyncio's servers do. Raises OSError."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


async def test_a_port_is_held_for_those_who_share_it() -> None:
    port = await Port.reserve("127.0.0.1", 0)
    try:
        assert port.number > 0
        for _ in range(2):  # also when all workers have ended
            with pytest.raises(OSError) as caught:
                listen(port.number, shared=False)
            assert caught.value.errno == errno.EADDRINUSE
            with pytest.raises(ConnectionRefusedError):  # it is held, and nobody answers
                socket.create_connection(("127.0.0.1", port.number))
            for each in [listen(port.number, shared=True) for _ in range(3)]:
                each.close()
    finally:
        port.release()
    listen(port.number, shared=False).close()


@pytest.mark.parametrize("shared", [False, True])
async def test_a_port_that_is_taken_is_not_shared(shared: bool) -> None:
    """SO_REUSEPORT alone would join two proxies of one user without a word."""
    with listen(0, shared=shared) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(OSError) as caught:
            await Port.reserve("127.0.0.1", number)
        assert caught.value.errno == errno.EADDRINUSE
    port = await Port.reserve("127.0.0.1", 0)
    with pytest.raises(OSError) as caught:
        await Port.reserve("127.0.0.1", port.number)
    assert caught.value.errno == errno.EADDRINUSE
    port.release()


@pytest.fixture
async def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a name be found in both families."""

    async def found(host: str, port: int, **_: Any) -> list[Any]:
        kind = socket.SOCK_STREAM
        return [
            (socket.AF_INET6, kind, 6, "", ("::1", port, 0, 0)),
            (socket.AF_INET, kind, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


@pytest.mark.usefixtures("two_addresses")
async def test_a_name_with_two_addresses_holds_both() -> None:
    port = await Port.reserve("localhost", 0)
    for host in ("::1", "127.0.0.1"):
        with pytest.raises(OSError):
            listen(port.number, shared=False, host=host)
    port.release()


@pytest.mark.usefixtures("two_addresses")
@pytest.mark.parametrize("taken", [1, module.TRIES])
async def test_a_free_port_is_free_at_both_addresses(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has the port of the first address at the second, so many times.

    By chance somebody else on this machine may have the next one there, too.
    """
    hold, others, all_held = module._hold, list[socket.socket](), list[list[socket.socket]]()
    failed = list[bool]()

    def hold_beside(family: int, where: tuple[Any, ...], held: list[socket.socket]) -> int:
        all_held.append(held)
        failed.append(family == socket.AF_INET)
        if family == socket.AF_INET and len(others) < taken:
            others.append(listen(where[1], shared=False))
        number = hold(family, where, held)
        failed[-1] = False
        return number

    monkeypatch.setattr(module, "_hold", hold_beside)
    try:
        if taken == 1:
            port = await Port.reserve("localhost", 0)
            port.release()
            assert port.number not in [each.getsockname()[1] for each in others]
        else:
            with pytest.raises(OSError) as caught:
                await Port.reserve("localhost", 0)
            assert caught.value.errno == errno.EADDRINUSE
        # Each one that failed was followed by one more, and no other was.
        assert taken <= sum(failed) <= module.TRIES
        assert len(all_held) == 2 * min(sum(failed) + 1, module.TRIES)
        assert [each for held in all_held for each in held if each.fileno() >= 0] == []
    finally:
        for each in others:
            each.close()


async def test_an_address_of_another_machine_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    tables = {"server": {"listen": "192.0.2.1:8010", "workers": 2}, "auth": "none"}
    config = load(None, {**tables, "backend": [{"url": "http://127.0.0.1:9"}]}, {})
    assert await workers.serve(config, print) == 1
    assert "cannot listen on 192.0.2.1:8010" in caplog.text


def test_a_taken_port_ends_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    with listen(0, shared=True) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["http://127.0.0.1:9", "--listen", where, "--workers", "2"]) == 1
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"{where} is taken by another program" in said


def test_an_engine_has_one_owner(capfd: pytest.CaptureFixture[str]) -> None:
    engine = ["serve", "--engine", "llamacpp", "--model", "m.gguf"]
    assert main([*engine, "--workers", "3"]) == 2
    said, other = capfd.readouterr().err.splitlines()
    assert "server.workers" in said and "no model file m.gguf" in other
    assert "wellspoken http://127.0.0.1:8011 --workers 3" in said


async def test_what_is_wrong_with_the_configuration_is_said_once(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The workers say it, of which the first one starts before the others."""
    file = tmp_path / "w.toml"
    file.write_text("[[backend]]\nurl = 'x'\nkey = 'env:NOWHERE'\n")
    source = ConfigSource(file, {"server": {"workers": 3, "listen": "127.0.0.1:0"}}, {})
    assert await workers.serve(source.load(), print, source) == 2
    said = capfd.readouterr()
    assert said.err.count("the variable NOWHERE is not set") == 1
    assert said.out == ""
    (record,) = caplog.records
    assert record.message.endswith(f"without starting anything: wellspoken check {file}")


def program(folder: Path, script: str) -> str:
    """Return a program that stands in for Python."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "has ended with exit code 3, so that nothing is served"),
        ("exit 0", "has ended with exit code 0, so that nothing is served"),
        ("kill -9 $$", "was ended by signal 9, so that nothing is served"),
        ("exec sleep 60", "has said nothing for 0.1 s, so it is killed"),
    ],
)
async def test_a_worker_that_never_answers_is_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
    words: str,
) -> None:
    monkeypatch.setattr(sys, "executable", program(tmp_path, f"exec 2>/dev/null; {script}"))
    monkeypatch.setattr(workers, "TICK", 0.01)
    monkeypatch.setattr(workers, "SLOW", 10 if "sleep" in script else 1000)
    monkeypatch.setattr(workers, "PAUSES", (0.01, 0.01))
    assert await workers.serve(config_for(), print) == 1
    assert words in caplog.text


async def test_one_that_is_killed_when_it_has_just_ended_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when told: since Python 3.12 asyncio waits for it in the loop, not in a thread."""
    noticed, wait, go = threading.Event(), os.waitpid, tmp_path / "go"
    os.mkfifo(go)

    def wait_later(pid: int, options: int) -> tuple[int, int]:
        assert noticed.wait(SECONDS)
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", wait_later)
    monkeypatch.setattr(sys, "executable", program(tmp_path, f"read -r line <{go}; exit 3"))
    worker = await spawn_worker(0, Hub(config_for()))
    go.write_text("\n")
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    worker.kill()
    noticed.set()
    assert await worker.wait() == 3
    worker.kill()  # nor does it fail later


async def test_one_that_nobody_wants_before_it_was_spoken_to_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What nobody waits for would be found by whoever ends next, or by the loop's own end."""
    reached = asyncio.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Channel, "over", hang)
    others = set(children(os.getpid()))
    spawning = asyncio.create_task(spawn_worker(0, Hub(config_for())))
    await reached.wait()
    assert set(children(os.getpid())) - others
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert not set(children(os.getpid())) - others


async def test_a_program_that_is_not_there_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert await workers.serve(config_for(), print) == 1
    assert "worker 1 cannot be started: No such file or directory, so that" in caplog.text


def test_every_configuration_reaches_a_worker_as_it_is() -> None:
    """It travels as msgpack; the example has every table, and its references stay references."""
    from wellspoken.proxy.workers.channel import Begin, decode_to_worker

    config = load(ROOT / "config.example.toml", {}, {})
    given = msgspec.structs.replace(config, auth="none")
    for one in (config, given, config_for()):
        assert decode_to_worker.decode(msgspec.msgpack.encode(Begin(one))) == Begin(one)


async def test_a_worker_without_a_parent_ends(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wellspoken.proxy.workers.worker", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
        )
    ours.close()
    assert await process.wait() == 0


async def test_a_worker_that_does_not_understand_says_what_to_do() -> None:
    """As one may that was installed anew beside a parent that runs."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wellspoken.proxy.workers.worker", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stderr=asyncio.subprocess.PIPE,
        )
    with ours:
        message = msgspec.msgpack.encode(["Begin", {"server": {"unheard_of": 1}}])
        ours.sendall(len(message).to_bytes(4, "big") + message)
        assert process.stderr is not None
        said = await process.stderr.read()
        assert await process.wait() == 2
    assert b"Restart it." in said and b"Traceback" not in said


async def test_a_worker_that_ends_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The new one never comes up; the other goes on."""
    monkeypatch.setattr(workers, "PAUSES", (0.01, 0.04))
    others = set(children(os.getpid()))
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(workers.serve(config_for(), said.set_result))
    url = (await said).split("listens on ")[1].split()[0]
    monkeypatch.setattr(sys, "executable", program(tmp_path, "exit 3"))
    os.kill(max(set(children(os.getpid())) - others), signal.SIGKILL)
    await until(lambda: caplog.text.count("another one starts") >= 6, "it was tried often")
    async with aiohttp.ClientSession() as session, session.get(f"{url}/livez") as response:
        assert response.status == 200
    pauses = [line.split(" in ")[1] for line in caplog.messages if "another one" in line]
    assert pauses[:6] == ["0.01 s", "0.02 s", "0.04 s", "0.04 s", "0.04 s", "0.04 s"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # One that was just being started ends by itself, as its parent's end of the channel is closed.
    await until(lambda: not set(children(os.getpid())) - others)
