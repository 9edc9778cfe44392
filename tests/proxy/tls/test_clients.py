"""TLS with clients: a real process, real clients, and certificates that change under it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import openai
import pytest

from tests.certificates import Authority, Pair
from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Upstream, stream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.lifecycle.test_reload_watching import mounted, watched
from tests.waiting import until
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.http import connection

_START = """
import socket, sys
if not {uvloop}:
    sys.modules["uvloop"] = None
if {small}:  # the system holds little of what is sent
    listen = socket.socket.listen
    def small(self, *backlog):
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        listen(self, *backlog)
    socket.socket.listen = small
from wellspoken.proxy.cli.main import main
sys.exit(main())
"""


@contextlib.asynccontextmanager
async def proxy(
    *arguments: str, uvloop: bool = True, small: bool = False
) -> AsyncIterator[tuple[str, asyncio.StreamReader]]:
    """Run the command in a process of its own; give the address that it says, and its stderr."""
    words = ["-m", "wellspoken.proxy.cli"]
    if small or not uvloop:
        words = ["-c", _START.format(uvloop=uvloop, small=small)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        first = (await process.stdout.readline()).decode()
        assert "listens on" in first, await process.stderr.read()
        yield first.split("listens on ")[1].split()[0], process.stderr
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def trust(authority: Authority, shown: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def reading(context: ssl.SSLContext) -> httpx2.AsyncClient:
    """Return a client that waits for a slow machine, as long as OpenAI's waits by itself.

    It keeps its connection as long, so that one is open however late it is used again.
    """
    return httpx2.AsyncClient(
        verify=context, timeout=600, limits=httpx2.Limits(keepalive_expiry=600)
    )


def given(pair: Pair, *more: str) -> list[str]:
    words = ["--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)]
    return ["--adapter", "openai", "--listen", "127.0.0.1:0", *words, *more]


async def ask(base: str, client: httpx2.AsyncClient) -> None:
    """Ask for a body and for a stream with OpenAI's own client."""
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="x", http_client=client) as sdk:
        body = await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}]
        )
        assert body.choices[0].message.content
        pieces = await sdk.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert [piece async for piece in pieces]


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("workers", [1, 2])
async def test_openais_client(
    upstream: Upstream, authority: Authority, uvloop: bool, workers: int
) -> None:
    upstream.script(CHAT, whole(PLAIN), stream(*EVENTS, DONE))
    pair = authority.sign("server")
    words = given(pair, "--workers", str(workers))
    async with proxy(upstream.url, *words, uvloop=uvloop) as (base, _):
        assert base.startswith("https://127.0.0.1:")
        async with reading(trust(authority)) as client:
            await ask(base, client)


async def test_a_client_without_a_certificate(
    upstream: Upstream, authority: Authority, other: Authority
) -> None:
    upstream.script("/health", whole({}))
    words = given(authority.sign("server"), "--tls-client-ca", str(authority.file))
    async with proxy(upstream.url, *words) as (base, errors):
        good = trust(authority, authority.sign("client"))
        async with reading(good) as client:
            assert (await client.get(f"{base}/livez")).status_code == 200
        said = {None: "it showed no certificate", other.sign("client"): "its certificate was ref"}
        for shown, words_ in said.items():
            async with reading(trust(authority, shown)) as client:
                with pytest.raises(httpx2.TransportError):
                    await client.get(f"{base}/livez")
            while words_ not in (line := (await errors.readline()).decode()):
                assert line


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
async def test_a_client_that_leaves_closes_the_backends_connection(
    upstream: Upstream, authority: Authority, uvloop: bool
) -> None:
    gate = Gate()
    steps = stream(*EVENTS, DONE)
    upstream.script(CHAT, [*steps[:4], gate, *steps[4:]])
    async with proxy(upstream.url, *given(authority.sign("server")), uvloop=uvloop) as (base, _):
        async with reading(trust(authority)) as client:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with client.stream("POST", f"{base}{CHAT}", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    break
                assert upstream.connections
        await until(lambda: not upstream.connections)


async def test_a_client_that_does_not_read_holds_the_backend_back(
    upstream: Upstream, authority: Authority
) -> None:
    """What waits for it is bounded in the TLS layer too, and all of it comes when it reads."""
    event = EVENTS[1].replace(b'"content":"', b'"content":"' + b"x" * 60_000)
    upstream.script(CHAT, stream(EVENTS[0], *[event] * 500, DONE))
    pair = authority.sign("server")
    flags: dict[str, object] = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": upstream.url, "adapter": "openai"}],
        "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
    }
    async with watched(None, flags) as it:
        host, port = await it.service.start()
        reader, writer = await asyncio.open_connection(host, port, ssl=trust(authority))
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        body = json.dumps(asked)
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await reader.readline()
        (connection,) = it.service.listener.connections
        await until(lambda: connection.writing_paused)
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 512 * 1024
        answer = 0
        while piece := await reader.read(2**20):
            answer += len(piece)
        assert answer > 30_000_000 and reader.at_eof()
        writer.close()


@pytest.mark.parametrize("uvloop", [True, False], ids=["uvloop", "asyncio"])
async def test_a_slow_client_gets_the_end_of_its_answer(
    upstream: Upstream, authority: Authority, uvloop: bool
) -> None:
    """What TLS still holds when the answer has ended leaves, also with seconds without a read."""
    event = EVENTS[1].replace(b'"content":"', b'"content":"' + b"x" * 60_000)
    upstream.script(CHAT, stream(EVENTS[0], *[event] * 3, DONE))
    words = given(authority.sign("server"))
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    body = json.dumps(asked)

    def read(port: int) -> bytes:
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect(("127.0.0.1", port))
            with trust(authority).wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(
                    f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                    f"Content-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                answer = client.recv(4096)
                time.sleep(4)
                while piece := client.recv(65_536):
                    answer += piece
        return answer

    async with proxy(upstream.url, *words, uvloop=uvloop, small=True) as (base, _):
        answer = await asyncio.to_thread(read, int(base.rpartition(":")[2]))
    assert answer.count(b"x" * 60_000) == 3 and DONE in answer


async def test_a_client_is_shut_out_by_another_authority(
    authority: Authority, other: Authority, tmp_path: Path
) -> None:
    pair = authority.sign("server")
    mounted(tmp_path, "clients.crt", authority.file.read_text())
    flags: dict[str, object] = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": "http://127.0.0.1:9", "adapter": "openai"}],
        "tls": {
            "certificate": str(pair.certificate),
            "key": str(pair.key),
            "client_ca": str(tmp_path / "clients.crt"),
        },
    }
    async with watched(None, flags) as it:
        host, port = await it.service.start()

        async def let_in(by: Authority) -> bool:
            context = trust(authority, by.sign("client"))
            async with reading(context) as client:
                with contextlib.suppress(httpx2.TransportError):
                    await client.get(f"https://{host}:{port}/livez")
                    return True
            return False

        await until(lambda: len(it.applied) == 1)  # its first look
        assert await let_in(authority) and not await let_in(other)
        mounted(tmp_path, "clients.crt", other.file.read_text())
        await until(lambda: len(it.applied) == 2)
        assert await let_in(other) and not await let_in(authority)


async def test_a_certificate_that_changes(
    authority: Authority, other: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As cert-manager renews it: a link is swapped. What is no pair changes nothing, said once."""

    def swap(pair: Pair, key: Pair | None = None) -> None:
        mounted(tmp_path, "tls.pem", pair.certificate.read_text() + (key or pair).key.read_text())

    first, second = authority.sign("server"), other.sign("server")
    swap(first)
    flags: dict[str, object] = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": "http://127.0.0.1:9", "adapter": "openai"}],
        "tls": {"certificate": str(tmp_path / "tls.pem")},
    }
    async with watched(None, flags) as it:
        host, port = await it.service.start()

        async def trusted(by: Authority) -> bool:
            async with reading(trust(by)) as client:
                with contextlib.suppress(httpx2.ConnectError):
                    await client.get(f"https://{host}:{port}/livez")
                    return True
            return False

        async with reading(trust(authority)) as open_:
            assert (await open_.get(f"https://{host}:{port}/livez")).status_code == 200
            await until(lambda: len(it.applied) == 1)  # its first look
            swap(second)
            await until(lambda: len(it.applied) == 2)
            assert await trusted(other) and not await trusted(authority)
            assert (await open_.get(f"https://{host}:{port}/livez")).status_code == 200
        assert "configuration read again: certificates changed" in caplog.text
        swap(first, second)
        await until(lambda: it.good == 0)
        await it.look(4)
        assert await trusted(other)
        assert caplog.text.count("keys and certificates stay as before: tls.key: ") == 1
        swap(authority.sign("old", days=-1))
        await until(lambda: it.good == 1)
        assert "tls.certificate: " in caplog.text and "has expired" in caplog.text


async def test_who_says_nothing_is_let_go(authority: Authority, upstream: Upstream) -> None:
    words = given(authority.sign("server"))
    async with proxy(upstream.url, *words) as (base, _):
        port = int(base.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not await reader.read()
        writer.close()


async def test_who_is_refused_while_it_sends_has_the_answer(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the writing side cannot be closed alone: the connection stays until the client goes."""
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 600.0)
    pair = authority.sign("server")
    flags: dict[str, object] = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": "http://127.0.0.1:9", "adapter": "openai"}],
        "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
    }
    async with watched(None, flags) as it:
        host, port = await it.service.start()
        reader, writer = await asyncio.open_connection(
            host, port, ssl=trust(authority), server_hostname="localhost"
        )
        writer.write(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")
        for _ in range(16):
            writer.write(b"x" * 1_000_000)
            await writer.drain()
        writer.close()
        await until(lambda: not it.service.listener.connections)


async def test_a_handshake_has_a_deadline(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    pair = authority.sign("server")
    flags: dict[str, object] = {
        "server": {"listen": "127.0.0.1:0"},
        "timeouts": {"client_header": 0.05},
        "backend": [{"url": "http://127.0.0.1:9", "adapter": "openai"}],
        "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
    }
    async with watched(None, flags) as it:
        host, port = await it.service.start()
        reader, writer = await asyncio.open_connection(host, port)
        with contextlib.suppress(ConnectionResetError):
            assert not await reader.read()
        writer.close()
        said, listener = "it was not complete in time (timeouts.client_header)", it.service.listener
        await until(lambda: said in caplog.text and not listener.handshakes)
        assert not listener.connections


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("none.crt", "server.key", "tls.certificate: cannot read {}/none.crt: No such file"),
        ("server.crt", "strange.key", "tls.key: {}/strange.key is not the key of the cert"),
        ("server.key", "server.key", "tls.certificate: {}/server.key holds no PEM certificate"),
        ("server.crt", "server.crt", "tls.key: {}/server.crt holds no PEM private key"),
        ("server.crt", "locked.key", "tls.key: it is encrypted"),
        ("old.crt", "old.key", "warning: tls.certificate: {}/old.crt has expired"),
        ("server.crt", "server.key", ""),
    ],
)
def test_check(
    authority: Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    certificate: str,
    key: str,
    said: str,
) -> None:
    for name, days in (("server", 9), ("strange", 9), ("old", -1), ("locked", 9)):
        authority.sign(name, days=days)
    authority.encrypt("locked")
    here = authority.folder
    (tmp_path / "w.toml").write_text(
        f'[server]\nlisten = "127.0.0.1:0"\n[tls]\ncertificate = "{here}/{certificate}"\n'
        f'key = "{here}/{key}"\n[[backend]]\nurl = "http://127.0.0.1:9"\nadapter = "openai"\n'
    )
    code = main(["check", str(tmp_path / "w.toml")])
    out = capsys.readouterr().out
    assert said.format(here) in out
    assert code == (0 if not said or said.startswith("warning") else 1), out
    if said:
        line = 5 if "tls.key" in said else 4
        assert f"w.toml:{line}:" in out
