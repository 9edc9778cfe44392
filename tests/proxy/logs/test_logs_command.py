"""The whole command with its log in every place that a log may go to."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import aiohttp
import pytest

from tests.clock import own_time
from tests.conforming import body
from tests.fakes.upstream import Cut, Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, MESSAGES
from tests.proxy.logs.logging_here import shown
from tests.waiting import until

COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli"]


def command(upstream: Upstream, *more: str) -> list[str]:
    upstream.script("/health", whole({}))
    return [*COMMAND, upstream.url, "--adapter", "openai", "--listen", "127.0.0.1:0", *more]


async def base_of(process: subprocess.Popen[bytes]) -> str:
    """Return the address that the banner names."""
    assert process.stdout is not None
    first = (await asyncio.to_thread(process.stdout.readline)).decode()
    return first.split("listens on ")[1].split()[0]


async def refused(base: str, times: int) -> None:
    """Send requests that are logged at level info, each of which must be answered."""
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            async with session.get(f"{base}/v1/{'nothing' * 20}") as response:
                assert response.status == 404


async def test_a_stuck_pipe_stops_no_request_and_not_the_end(upstream: Upstream) -> None:
    """Stderr is a pipe that nobody reads, and it is full after some 200 lines."""
    process = subprocess.Popen(command(upstream), stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    try:
        await refused(await base_of(process), 400)
        began = own_time()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 120) == 0
        assert own_time() - began < 60
        seen = process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    lines = seen.split(b"\n")
    assert len(lines) > 100
    assert all(json.loads(line)["event"] == "request" for line in lines[:-1])


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "2>&- <&-"])
async def test_a_stderr_that_takes_nothing(upstream: Upstream, where: str) -> None:
    words = " ".join(command(upstream))
    process = subprocess.Popen(["sh", "-c", f"exec {words} {where}"], stdout=PIPE)
    try:
        await refused(await base_of(process), 50)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 120) == 0
    finally:
        process.kill()
        process.communicate()


async def test_a_log_that_a_full_stop_follows_is_whole(upstream: Upstream, tmp_path: Path) -> None:
    """The last lines of a process that ends are there."""
    with (tmp_path / "log").open("wb") as file:
        process = subprocess.Popen(command(upstream), stdout=PIPE, stderr=file)
    try:
        await refused(await base_of(process), 20)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 120) == 0
    finally:
        process.kill()
        process.communicate()
    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [line.get("event") for line in lines].count("request") == 20
    assert lines[-1]["message"].startswith("draining")


async def test_on_a_terminal_it_is_text(upstream: Upstream) -> None:
    ours, theirs = pty.openpty()
    plain = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(command(upstream), stdout=PIPE, stderr=theirs, env=plain)
    os.close(theirs)
    try:
        await refused(await base_of(process), 3)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 120) == 0
        seen = shown(ours).decode()
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
    lines = seen.split("\r\n")[:-1]
    request = r"\d\d:\d\d:\d\d 404 refused unknown_url GET /v1/noth\S+…, [\d.]+ m?s"
    assert [bool(re.fullmatch(request, line)) for line in lines] == [True, True, True, False]
    assert re.fullmatch(r"\d\d:\d\d:\d\d draining: 0 open requests; .*", lines[3])


async def test_a_quiet_one_says_what_went_wrong_alone(upstream: Upstream, tmp_path: Path) -> None:
    upstream.script(CHAT, whole(body()), [Cut()])
    port = free_port()
    quiet = command(upstream, "--quiet", "--log-format", "text")
    quiet[quiet.index("127.0.0.1:0")] = f"127.0.0.1:{port}"
    with (tmp_path / "err").open("wb") as file:
        process = subprocess.Popen(quiet, stdout=PIPE, stderr=file)
    try:
        await until(lambda: listens(port), "it listens")
        async with aiohttp.ClientSession() as session:
            for status in (200, 502):
                request = {"model": "m", "messages": MESSAGES}
                async with session.post(f"http://127.0.0.1:{port}{CHAT}", json=request) as response:
                    assert response.status == status
        process.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(process.communicate)
    finally:
        process.kill()
    lines = (tmp_path / "err").read_text().splitlines()
    assert out == b"" and len(lines) == 1
    assert " 502 upstream_error:" in lines[0]


async def test_a_quiet_one_in_front_of_nothing_says_so(upstream: Upstream, tmp_path: Path) -> None:
    await upstream.refuse()
    with (tmp_path / "err").open("wb") as file:
        process = subprocess.Popen(command(upstream, "--quiet"), stdout=PIPE, stderr=file)
    try:
        await until(lambda: b"not ready yet: " in (tmp_path / "err").read_bytes(), "it is told")
        process.send_signal(signal.SIGTERM)
        assert (await asyncio.to_thread(process.communicate))[0] == b""
    finally:
        process.kill()


def listens(port: int) -> bool:
    """Say whether something listens there."""
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


async def test_with_several_workers_each_line_is_one(upstream: Upstream) -> None:
    several = command(upstream, "--workers", "2")
    with subprocess.Popen(several, stdout=PIPE, stderr=PIPE) as process:
        try:
            base = await base_of(process)
            assert process.stderr is not None
            reading = asyncio.create_task(asyncio.to_thread(process.stderr.read))
            await asyncio.gather(*(refused(base, 50) for _ in range(8)))
            process.send_signal(signal.SIGTERM)
            lines = [json.loads(line) for line in (await reading).splitlines()]
            assert await asyncio.to_thread(process.wait, 120) == 0
        finally:
            process.kill()
    asked = [line for line in lines if line.get("event") == "request"]
    assert len({line["id"] for line in asked}) == len(asked) == 400
