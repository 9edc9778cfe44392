"""Clients on a unix socket: its file, who may use it, and several workers behind it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.fakes.upstream import DONE, Upstream, stream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.lifecycle.test_run import Running, config_for
from tests.proxy.tls.test_clients import ask, proxy
from tests.waiting import until
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import ConfigError, is_reached_from_elsewhere, parse_listen
from wellspoken.proxy.http.sockets import listening
from wellspoken.proxy.lifecycle.run import cannot_listen

ONE = [{"url": "http://127.0.0.1:9", "adapter": "openai"}]


@pytest.fixture
def place() -> Iterator[Path]:
    """A path that is short enough, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "api.sock"


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("workers", [1, 3])
async def test_openais_client(upstream: Upstream, place: Path, uvloop: bool, workers: int) -> None:
    upstream.script(CHAT, whole(PLAIN), stream(*EVENTS, DONE))
    words = ["--adapter", "openai", "--listen", f"unix:{place}", "--workers", str(workers)]
    async with proxy(upstream.url, *words, uvloop=uvloop) as (said, _):
        assert said == f"unix:{place}"
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        transport = httpx2.AsyncHTTPTransport(uds=str(place))
        async with httpx2.AsyncClient(transport=transport) as client:
            named = {"Host": "llm.example"}  # as a web server in front may pass it on
            assert (await client.get("http://localhost/livez", headers=named)).status_code == 200
            await ask("http://localhost", client)
    assert not place.exists()


async def test_the_banners_request(upstream: Upstream, place: Path) -> None:
    """curl itself does what the first screen says."""
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    running = Running(config_for(upstream, listen=f"unix:{place}"))
    assert await running.url() == f"unix:{place}"
    lines = (await running.said).split("\n")
    script = "\n".join(lines[lines.index("Try:") + 1 :])
    assert f"curl --unix-socket {place} http://localhost/v1/" in script
    asked = await asyncio.create_subprocess_shell(
        script.replace("curl", "curl --silent"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asked.communicate()
    assert b'"choices"' in out
    running.signal()
    assert await running.task == 0
    assert not place.exists()


def test_the_mode_holds_from_the_first_moment(place: Path) -> None:
    before = os.umask(0)
    try:
        (made,) = listening(f"unix:{place}", mode=0o600)
    finally:
        assert os.umask(before) == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    made.close()
    assert not place.exists()


def test_a_file_that_nobody_listens_on_is_replaced(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    (made,) = listening(f"unix:{place}")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))
    made.close()


def test_what_somebody_listens_on_stays(place: Path) -> None:
    (first,) = listening(f"unix:{place}")
    with pytest.raises(OSError) as caught:
        listening(f"unix:{place}")
    assert caught.value.errno == errno.EADDRINUSE
    assert "another program listens there" in cannot_listen(f"unix:{place}", caught.value)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))
    first.close()


def test_what_is_no_socket_stays(place: Path) -> None:
    place.write_text("mine")
    with pytest.raises(OSError, match="no socket"):
        listening(f"unix:{place}")
    assert place.read_text() == "mine"


def test_anothers_file_is_not_removed(place: Path) -> None:
    (first,) = listening(f"unix:{place}")
    place.unlink()
    (second,) = listening(f"unix:{place}")
    first.close()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))
    second.close()


async def test_a_killed_proxy_is_followed_by_another(upstream: Upstream, place: Path) -> None:
    words = ["--adapter", "openai", "--listen", f"unix:{place}"]
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wellspoken.proxy.cli", upstream.url, *words),
        stdout=subprocess.PIPE,
    )
    await until(place.exists)
    killed.kill()
    await killed.wait()
    assert place.exists()
    async with proxy(upstream.url, *words):
        transport = httpx2.AsyncHTTPTransport(uds=str(place))
        async with httpx2.AsyncClient(transport=transport) as client:
            assert (await client.get("http://localhost/livez")).status_code == 200


def test_addresses() -> None:
    assert parse_listen("unix:///run/a.sock") == parse_listen(" unix:/run/a.sock ")
    assert parse_listen("unix:/run/a.sock") == ("unix:/run/a.sock", 0)
    assert not is_reached_from_elsewhere("unix:/run/a.sock")
    for wrong in ("unix:a.sock", "unix:/" + "x" * 200):
        with pytest.raises(ConfigError, match="listen: "):
            parse_listen(wrong)


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"server": {"listen": "unix:/a.sock", "admin": "unix:/a.sock"}}, "this is server.listen"),
        (
            {"server": {"workers": 2, "admin": "unix:/a.sock"}},
            "several workers cannot share this one",
        ),
        (
            {"server": {"listen": "unix:/a.sock"}, "tls": {"certificate": "x"}},
            "a unix socket has no TLS",
        ),
        ({"server": {"listen": "unix:/a.sock", "socket_mode": "rw"}}, "socket_mode"),
        (
            {"server": {"listen": "unix:/a.sock"}, "backend": [{"url": "unix:/a.sock"}]},
            "this is where the proxy itself listens",
        ),
    ],
)
def test_what_cannot_be(tables: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(None, {"backend": ONE, **tables}, {})


def test_check(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place.with_name("w.toml")
    file.write_text(f'[server]\nlisten = "unix:{place}"\n[[backend]]\nurl = "http://localhost:9"\n')
    assert main(["check", str(file)]) == 0
    assert "warning" not in capsys.readouterr().out
    (made,) = listening(f"unix:{place}")
    assert main(["check", str(file)]) == 0
    assert f"w.toml:2:10: warning: server.listen: {place} is taken." in capsys.readouterr().out
    made.close()
    file.write_text(file.read_text().replace(str(place), "/none/such/api.sock"))
    assert main(["check", str(file)]) == 0
    assert "no socket can be made in /none/such" in capsys.readouterr().out
