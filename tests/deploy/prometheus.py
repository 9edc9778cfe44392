"""A real Prometheus for the tests, and promtool: both are Debian's package prometheus.

A test that needs them is skipped where they are not installed, unless
WELLSPOKEN_REQUIRE_PROMETHEUS is set: then it fails.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from tests.ports import free_port

REQUIRE = "WELLSPOKEN_REQUIRE_PROMETHEUS"
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "wellspoken.json"
EVERY = 0.5  # seconds between two scrapes
STARTS = 120.0  # seconds that a start may take on a busy machine

Series = list[tuple[dict[str, str], float]]


def program(name: str, given: dict[str, str]) -> str:
    """Return the path of prometheus or promtool; skip the test, or fail it, where there is none.

    `given`: the environment that may require it.
    """
    found = shutil.which(name)
    if found is None:
        missing = f"no {name}: apt-get install prometheus"
        if given.get(REQUIRE):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@dataclass
class Promtool:
    """The program; each call returns its exit code and what it printed."""

    path: str

    def run(self, *arguments: str | Path, given: str = "") -> tuple[int, str]:
        """Run it with `given` as its input."""
        done = subprocess.run(
            [self.path, *arguments], input=given, capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def expressions(self, expressions: Iterable[str], folder: Path) -> str:
        """Parse expressions; return what is wrong with them, "" where nothing is."""
        rules = [
            {"record": f"test:expression{at}", "expr": one} for at, one in enumerate(expressions)
        ]
        file = folder / "expressions.yml"  # JSON is YAML
        file.write_text(json.dumps({"groups": [{"name": "test", "rules": rules}]}))
        code, said = self.run("check", "rules", "--lint=none", file)
        return said if code else ""


@pytest.fixture
def promtool(environment_as_given: dict[str, str]) -> Promtool:
    """Debian's promtool."""
    return Promtool(program("promtool", environment_as_given))


@dataclass
class Prometheus:
    """A server that scrapes, and the queries of a test to it."""

    url: str
    session: ClientSession

    async def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}"
        async with self.session.get(url, params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]

    async def query(self, expression: str) -> Series:
        """Return the labels and the value of each series, at a time when no scrape had failed.

        One that comes too late takes all of its target's series away until the next.
        """
        async with asyncio.timeout(STARTS):
            while True:
                at = time.time()
                # A failure between the two is seen by the second: the next scrape begins after it.
                if not await self._at(at, "up == 0"):
                    found = await self._at(at, expression)
                    if not await self._at(at, "up == 0"):
                        return found
                await asyncio.sleep(EVERY / 5)

    async def _at(self, at: float, expression: str) -> Series:
        data = await self.get("query", query=expression, time=f"{at:.3f}")
        assert data["resultType"] == "vector", data
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    async def value(self, expression: str) -> float:
        """Return the value of an expression that has one series."""
        ((_, value),) = await self.query(expression)
        return value

    async def scraped(self, times: int = 2) -> None:
        """Wait until every target was scraped so often from now on; one may be late, and fail."""
        before = await self._scrapes()
        deadline = time.monotonic() + STARTS
        while True:
            now = await self._scrapes()
            if now and all(now[url] >= before.get(url, 0) + times for url in now):
                return
            assert time.monotonic() < deadline, await self.get("targets", state="active")
            await asyncio.sleep(EVERY / 5)

    async def _scrapes(self) -> dict[str, int]:
        """Return how many scrapes of each target have succeeded so far."""
        counted = await self._at(time.time(), "sum_over_time(up[1h])")
        return {labels["instance"]: int(count) for labels, count in counted}


@asynccontextmanager
async def prometheus(
    given: dict[str, str], targets: Iterable[str], *, rules: Path | None = None
) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes `targets` (host:port) as the job wellspoken."""
    path = program("prometheus", given)
    with tempfile.TemporaryDirectory(prefix="wellspoken-prometheus-") as name:
        folder = Path(name)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [
            *_with_us(),
            path,
            f"--config.file={_configured(folder, targets, rules)}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            async with ClientSession() as session:
                await _ready(session, url, process, folder / "log")
                yield Prometheus(url, session)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _with_us() -> list[str]:
    """Return the words before a command that make it end with the tests, however these end."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _configured(folder: Path, targets: Iterable[str], rules: Path | None) -> Path:
    every = f"{int(EVERY * 1000)}ms"
    config: dict[str, Any] = {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "scrape_configs": [
            {"job_name": "wellspoken", "static_configs": [{"targets": list(targets)}]}
        ],
    }
    if rules is not None:
        config["rule_files"] = [str(rules)]
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))
    return file


async def _ready(
    session: ClientSession, url: str, process: subprocess.Popen[bytes], log: Path
) -> None:
    async with asyncio.timeout(STARTS):
        while True:
            if process.poll() is not None:
                pytest.fail(f"Prometheus does not start:\n{log.read_text()[-2000:]}")
            with suppress(ClientError):
                async with session.get(f"{url}/-/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.02)
