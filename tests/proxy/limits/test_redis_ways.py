"""How a store of counters can be reached: over a socket of the machine, and over TLS."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.redis_server import PASSWORD, RedisServer, find_program, run_redis
from tests.waiting import until
from wellspoken.proxy.limits import redis_counters
from wellspoken.proxy.limits.quota import Quota
from wellspoken.proxy.limits.redis_counters import AWAY, RedisCounters

QUOTA = Quota(requests=0, tokens=0, concurrent=1)


@pytest.fixture
def server(
    environment_as_given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisServer]:
    """A server that also speaks TLS, on a machine that may take its time."""
    for name in ("WAIT", "CONNECT"):
        monkeypatch.setattr(redis_counters, name, 100.0)
    certificate = Authority.make(tmp_path / "own").sign("redis")
    with run_redis(find_program(environment_as_given), certificate) as server:
        yield server


async def count_two(url: str) -> list[str | None]:
    """Return what refuses two requests at once, of which one is allowed; "-" where none counts."""
    counters = RedisCounters(url)
    try:
        both = [await counters.reserve("a", QUOTA, id, 0) for id in ("first", "second")]
        return ["-" if each is None else each.refused for each in both]
    finally:
        await counters.close()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_over_tls(server: RedisServer, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://:{PASSWORD}@localhost:{server.tls_port}/0"
    assert await count_two(f"{url}?ssl_ca_certs={tmp_path}/own/ca.crt") == [None, "concurrent"]


async def test_over_a_socket(server: RedisServer) -> None:
    url = f"unix://:{PASSWORD}@{server.socket}?db=1"
    assert await count_two(url) == [None, "concurrent"]


@pytest.mark.parametrize("trusted", [False, True], ids=["of another authority", "of another name"])
async def test_a_certificate_that_is_not_trusted(
    server: RedisServer, tmp_path: Path, trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its key is sent to nobody else: nothing is counted, and the log says why."""
    caplog.set_level(logging.INFO)
    folder = tmp_path / ("own" if trusted else "other")
    if not trusted:
        Authority.make(folder)
    name = "127.0.0.2" if trusted else "localhost"
    url = f"rediss://:{PASSWORD}@{name}:{server.tls_port}/0?ssl_ca_certs={folder}/ca.crt"
    counters = RedisCounters(url)
    try:
        counters.start()
        await until(lambda: counters.trouble)
        assert await counters.reserve("a", QUOTA, "first", 0) is None
    finally:
        await counters.close()
    assert counters.trouble == AWAY
    assert "certificate verify failed" in caplog.text and PASSWORD not in caplog.text
