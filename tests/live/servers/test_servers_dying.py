"""Real llama.cpp servers that die and come back under 16 clients, of whom none notices."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.clients import Load, Record
from tests.live.clients.serving import running_proxy
from tests.live.servers.conftest import InFront, Proxy, Servers
from tests.waiting import SECONDS, until
from wellspoken.engine import shim
from wellspoken.proxy.upstream import ejection

CLIENTS = 16
DEATHS = 4
EJECTIONS = "wellspoken_backend_ejections_total"
STATE = "wellspoken_backend_state"
QUICK = {"interval": 0.2, "failures": 2, "pause": 0.5}


def name_server(head: str) -> str:
    """Return what the proxy says of who gave an answer."""
    found = re.search(r"(?im)^x-wellspoken-backend: (\S+)", head)
    return found[1] if found else ""


def check(record: Record, mortal: str) -> None:
    """Assert that nothing failed but streams that a death found half told."""
    assert not record.ended("unstarted"), record.ended("unstarted")[:3]
    broken = record.ended("broken")
    assert all(each.streams and each.server == mortal for each in broken), broken[:3]


async def more_answers(load: Load, server: str, count: int) -> None:
    """Wait until a server has answered so many requests more."""
    before = load.record.served(server)
    async with asyncio.timeout(SECONDS):
        await load.wait_for(lambda record: record.served(server) >= before + count)


async def test_a_flapping_server_is_left_alone_longer_each_time(
    servers: Servers,
    in_front: InFront,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each death is soon after the return before it, however long the machine stands still between.
    monkeypatch.setattr(ejection, "SOON", 1000.0)
    running = await servers(3)
    urls = [each.url for each in running]
    flapping = running[0]
    with caplog.at_level(logging.WARNING, "wellspoken"):
        proxy = await in_front({"url": urls}, health=QUICK)
        load = Load(proxy.url, CLIENTS, name_server)
        load.begin()
        for death in range(1, DEATHS + 1):
            await until(_is_in(proxy, "llama/1"), "the server back in")
            await flapping.kill()
            await until(_was_put_out(proxy, "llama/1", death), "an ejection")
            await flapping.start()
        await until(_is_in(proxy, "llama/1"), "the server back in")
        await more_answers(load, "llama/1", 10)
        await load.stop(SECONDS)
    check(load.record, "llama/1")
    assert (await proxy.counts(EJECTIONS)) == {"llama/1": DEATHS, "llama/2": 0, "llama/3": 0}
    said = re.findall(r"backend llama/1 gets no requests for ([\d.]+) s", caplog.text)
    pauses = list(map(float, said))
    assert len(pauses) == DEATHS
    assert pauses == sorted(pauses) and pauses[-1] > 4 * pauses[0]
    assert caplog.text.count("backend llama/1 gets requests again") == DEATHS


def _is_in(proxy: Proxy, name: str) -> Callable[[], object]:
    async def look() -> bool:
        return (await proxy.samples(STATE))[f'backend="{name}",state="in"'] == 1.0

    return look


def _was_put_out(proxy: Proxy, name: str, times: int) -> Callable[[], object]:
    async def look() -> bool:
        return (await proxy.counts(EJECTIONS))[name] >= times

    return look


async def test_an_engine_dies_beside_a_server_and_comes_back(
    servers: Servers, tiny_model: Path, tmp_path: Path
) -> None:
    [server] = await servers(1)
    config = tmp_path / "wellspoken.toml"
    config.write_text(
        f"""
        [server]
        listen = "127.0.0.1:0"
        [engine]
        kind = "llamacpp"
        model = {json.dumps(str(tiny_model))}
        alias = "tiny"
        context = 2048
        threads = 1
        [[backend]]
        name = "llama"
        url = "{server.url}"
        adapter = "llamacpp"
        models = ["tiny"]
        """
    )
    with TemporaryDirectory() as short:
        environment = {"XDG_RUNTIME_DIR": short}
        with running_proxy(("--config", str(config)), tmp_path / "log", environment) as url:
            load = Load(url, CLIENTS, name_server)
            load.begin()
            for _ in range(2):
                await more_answers(load, "engine", 20)
                os.kill(_find_engine(short), signal.SIGKILL)
                await more_answers(load, "llama", 20)
            await more_answers(load, "engine", 20)
            await load.stop(SECONDS)
    check(load.record, "engine")


def _find_engine(folder: str) -> int:
    """Return the llama.cpp that has its socket in the folder, not its keeper."""
    table = shim.look_around()
    found = [pid for pid in table if f"{folder}/" in _command(pid)]
    own = [pid for pid in found if table[pid].parent in found] or found
    assert len(own) == 1, list(map(_command, found))
    return own[0]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""  # it ended meanwhile
