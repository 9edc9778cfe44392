"""Signals that come from all sides, and standard streams that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.upstream import DONE, Gate, Upstream, stream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.workers.test_workers import STREAMED, workers
from tests.waiting import until
from wellspoken.proxy.lifecycle.signals import Signals


@pytest.mark.parametrize("parent_first", [True, False])
async def test_one_signal_to_all_processes_lets_streams_finish(
    upstream: Upstream, parent_first: bool
) -> None:
    """As `pkill` sends it, and systemd with KillMode=control-group: a worker gets two of it."""
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    async with workers(upstream) as running:
        pids = await running.all(2)
        async with aiohttp.ClientSession() as session:
            responses = [await session.post(running.url + CHAT, json=STREAMED) for _ in range(6)]
            everybody = [running.process.pid, *pids]
            for pid in everybody if parent_first else reversed(everybody):
                # A worker that has no stream ends at the parent's word.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                await asyncio.sleep(0.1)
            gate.open()
            assert {await response.read() for response in responses} == {b"".join(EVENTS) + DONE}
        assert await running.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("count", [1, 2])
async def test_signals_without_end_change_no_orderly_end(
    upstream: Upstream, count: int, number: signal.Signals
) -> None:
    upstream.script("/health", whole({}))
    async with workers(upstream, count=count) as running:
        running.process.terminate()
        while running.process.returncode is None:
            # Not by the process object, which would wait for it in place of the event loop.
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.process.pid, number)
            await asyncio.sleep(0.001)
        assert await running.ended() == 0


async def test_two_who_count_the_same_signals() -> None:
    signals = Signals()
    try:
        signals.came()
        signals.raise_to(1)
        assert (signals.count, signals.second.is_set()) == (1, False)
        signals.raise_to(2)
        assert (signals.count, signals.second.is_set()) == (2, True)
    finally:
        signals.remove()


@pytest.mark.parametrize("count", ["1", "2"])
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-", ">/dev/full"])
async def test_it_serves_without_standard_streams(
    upstream: Upstream, tmp_path: Path, count: str, closed: str
) -> None:
    upstream.script("/health", whole({}))
    said = tmp_path / "said"
    where = tmp_path / "config.toml"
    port = free_port()
    where.write_text(
        f'[server]\nlisten = "127.0.0.1:{port}"\nworkers = {count}\n'
        f'[[backend]]\nurl = "{upstream.url}"\nadapter = "openai"\n'
    )
    command = f'exec "$0" -m wellspoken.proxy.cli serve --config "$1" 2>"$2" {closed}'
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", command, sys.executable, str(where), str(said)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:

            async def answers() -> bool:
                assert process.returncode is None
                try:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await until(answers, "it answers")
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "Traceback" not in said.read_text()


def test_what_nobody_takes_is_lost_and_no_failure() -> None:
    code = "from wellspoken.proxy.lifecycle.progress import print_out as p; p('one'); p('two')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, timeout=120
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_control_c_while_it_is_loaded_leaves_no_traceback() -> None:
    code = (
        "import _thread, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'wellspoken.proxy.lifecycle.run':\n"
        "            _thread.interrupt_main()\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from wellspoken.proxy.cli.main import main\n"
        "sys.exit(main(['http://127.0.0.1:9', '--listen', '127.0.0.1:0']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, b"")
