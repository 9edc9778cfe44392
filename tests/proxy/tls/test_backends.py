"""TLS with backends: whom it trusts, what it shows, and what is said where either is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.certificates import Authority, Pair
from tests.fakes.upstream import Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.lifecycle.test_reload_watching import watched
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import read_until, until
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config.tables import BackendTls, Timeouts
from wellspoken.proxy.doctor.diagnose import DoctorOptions, diagnose
from wellspoken.proxy.tls.certificates import client_context
from wellspoken.proxy.upstream.client import Upstream as Client
from wellspoken.proxy.upstream.failures import UpstreamError

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def speaking(pair: Pair, clients: Path | None = None, most: ssl.TLSVersion = TLS13) -> Upstream:
    """Return an upstream with a certificate; `clients`: the authority of those it lets in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.maximum_version = most
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    upstream = Upstream(tls=context)
    upstream.script(CHAT, whole(PLAIN))
    return upstream


def backend(upstream: Upstream, host: str = "127.0.0.1", **tls: object) -> dict[str, object]:
    given = {key: str(value) for key, value in tls.items()}
    return {"url": f"https://{host}:{upstream.port}", "tls": given}


async def test_an_authority_of_ones_own(start_proxy: StartProxy, authority: Authority) -> None:
    async with speaking(authority.sign("server")) as upstream:
        proxy = await start_proxy(backend(upstream, ca=authority.file))
        for _ in range(3):
            async with await proxy.chat() as answer:
                assert answer.status == 200
        (target,) = proxy.service.state.router.targets
        assert target.upstream is not None
        await pass_trial(target.upstream.connections)


async def test_a_server_name(start_proxy: StartProxy, authority: Authority) -> None:
    async with speaking(authority.sign("server", "DNS:llm.internal")) as upstream:
        trusting = backend(upstream, ca=authority.file, server_name="llm.internal")
        async with await (await start_proxy(trusting)).chat() as answer:
            assert answer.status == 200


async def refused(start_proxy: StartProxy, given: dict[str, object]) -> str:
    """Return what a client is told where the backend cannot be asked."""
    proxy = await start_proxy(given)
    error = await proxy.error(502)
    assert error["code"] == "backend_unavailable"
    async with await proxy.chat() as answer:
        assert answer.headers.get("x-should-retry") == "false", await answer.text()
    return str(error["message"])


@pytest.mark.parametrize(
    ("names", "days", "trusted", "said"),
    [
        ("IP:127.0.0.1", -1, True, "has expired. Renew it"),
        ("DNS:other.example", 9, True, "for another name than the URL's. Write a name"),
        ("IP:127.0.0.1", 9, False, "does not trust. Name the authority's certificate: ca under"),
    ],
    ids=["expired", "another name", "unknown authority"],
)
async def test_what_is_not_trusted(
    start_proxy: StartProxy,
    authority: Authority,
    other: Authority,
    names: str,
    days: int,
    trusted: bool,
    said: str,
) -> None:
    async with speaking(authority.sign("server", names, days)) as upstream:
        trusts = authority.file if trusted else other.file
        assert said in await refused(start_proxy, backend(upstream, ca=trusts))
        assert not upstream.requests


async def test_a_name_that_does_not_fit(start_proxy: StartProxy, authority: Authority) -> None:
    async with speaking(authority.sign("server", "DNS:other.example")) as upstream:
        given = backend(upstream, "localhost", ca=authority.file)
        assert "for another name than the URL's" in await refused(start_proxy, given)


async def test_this_machines_trust_is_the_default(
    start_proxy: StartProxy, authority: Authority
) -> None:
    async with speaking(authority.sign("server")) as upstream:
        assert "does not trust" in await refused(start_proxy, backend(upstream))


@asynccontextmanager
async def wanting(pair: Pair, clients: Path, version: str) -> AsyncIterator[str]:
    """Run OpenSSL's own server, which says why it refuses whom; give its URL."""
    port = free_port()
    words = [
        *("openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-www", "-Verify", "1"),
        *("-verify_return_error", "-cert", pair.certificate, "-key", pair.key),
        *("-CAfile", clients, f"-{version}"),
    ]
    process = await asyncio.create_subprocess_exec(
        *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        await read_until(process.stdout.readline, b"ACCEPT")
        reading = asyncio.create_task(process.stdout.read())  # else it would wait to write
        yield f"https://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()
    await reading


@pytest.mark.parametrize("version", ["tls1_2", "tls1_3"])
async def test_a_client_certificate(authority: Authority, other: Authority, version: str) -> None:
    ca, mine, strange = authority.file, authority.sign("proxy"), other.sign("proxy")
    expired = authority.sign("old", days=-1)
    async with wanting(authority.sign("server"), ca, version) as url:

        async def ask(pair: Pair | None) -> int:
            shown = (None, None) if pair is None else (str(pair.certificate), str(pair.key))
            tls = BackendTls(ca=str(ca), certificate=shown[0], key=shown[1])
            made = Client(url, Timeouts(connect=60, probe=60), tls=client_context(url, tls))
            try:
                return (await made.get("/", 1_000_000))[0]
            finally:
                await made.close()

        assert await ask(mine) == 200
        with pytest.raises(UpstreamError, match="it wants a certificate of its clients"):
            await ask(None)
        for pair in (strange, expired):
            with pytest.raises(UpstreamError, match="it refused the proxy's own certificate") as it:
                await ask(pair)
            assert it.value.reason == "tls"


async def test_a_client_that_closes_awaits_no_word_of_the_server(authority: Authority) -> None:
    """asyncio waits 30 s for it, and a loop that ends before leaves the socket open."""
    async with speaking(authority.sign("server")) as upstream:
        upstream.script("/health", whole({}))
        url = f"https://127.0.0.1:{upstream.port}"
        context = client_context(url, BackendTls(ca=str(authority.file)))
        made = Client(url, Timeouts(connect=60, probe=60), tls=context)
        assert await made.probe("/health") == 200
        (wire,), (connection,) = made.connections.open, upstream.connections
        assert wire.transport is not None and connection.transport is not None
        socket = wire.transport.get_extra_info("socket")
        connection.transport.pause_reading()
        await made.close()
        assert socket.fileno() == -1 and not made.connections.open


@pytest.mark.parametrize("most", [TLS12, TLS13])
async def test_a_server_that_does_not_say_why(
    start_proxy: StartProxy, authority: Authority, most: ssl.TLSVersion
) -> None:
    """As those over asyncio do not."""
    async with speaking(authority.sign("server"), authority.file, most) as upstream:
        proxy = await start_proxy(backend(upstream, ca=authority.file))
        error = await proxy.error(502)
        assert "if it wants a certificate of its clients, name one" in error["message"]


async def test_plain_http_behind_https(start_proxy: StartProxy) -> None:
    runner = web.ServerRunner(web.Server(lambda request: None))  # type: ignore[arg-type, return-value]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        said = await refused(start_proxy, {"url": f"https://127.0.0.1:{port}"})
        assert "it does not speak TLS there. Write http:// in its URL" in said
    finally:
        await runner.cleanup()


async def test_another_authority_is_taken_over(
    authority: Authority, other: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is looked at as keys are; a connection that was trusted is used no more."""
    ca = tmp_path / "ca.pem"
    shutil.copy(authority.file, ca)
    async with speaking(authority.sign("server")) as upstream:
        given = {"adapter": "openai", **backend(upstream, ca=ca)}
        async with watched(None, {"backend": [given]}) as it:
            (target,) = it.service.state.router.targets
            assert target.upstream is not None
            client: Client = target.upstream

            async def ask() -> None:
                answer = await client.open("POST", CHAT, b"{}")
                await answer.read(1_000_000)

            await until(lambda: len(it.applied) == 1)  # its first look
            await ask()
            await pass_trial(client.connections)
            shutil.copy(other.file, ca)
            await until(lambda: len(it.applied) == 2)
            with pytest.raises(UpstreamError, match="does not trust"):
                await ask()
            shutil.copy(authority.file, ca)
            await until(lambda: len(it.applied) == 3)
            await ask()
    assert "configuration read again: certificates changed" in caplog.text
    assert upstream.opened == 3  # the one that was refused is one of them


async def test_the_doctor(authority: Authority) -> None:
    mine = authority.sign("proxy")
    async with speaking(authority.sign("server"), authority.file) as upstream:
        shown = {"ca": authority.file, "certificate": mine.certificate, "key": mine.key}
        tls = {name: str(file) for name, file in shown.items()}
        report = await diagnose(DoctorOptions(upstream.url, [], tls=tls))
        assert not report.error
        report = await diagnose(DoctorOptions(upstream.url, [], tls={"ca": tls["ca"]}))
        assert "if it wants a certificate of its clients, name one" in report.error


async def test_the_doctor_of_a_configuration(
    authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with speaking(authority.sign("server")) as upstream:
        file = tmp_path / "w.toml"
        table = f"[[backend]]\nname = 'a'\nurl = ['{upstream.url}', 'http://127.0.0.1:9']\n"
        for more, words in ((f"tls.ca = '{authority.file}'\n", ""), ("", "does not trust")):
            file.write_text(table + more)
            arguments = ["doctor", "--config", str(file), "--json", "--only", "usage"]
            assert await asyncio.to_thread(main, arguments) == 2  # of the one that is not there
            first, second = json.loads(capsys.readouterr().out)
            assert (first["name"], words in (first["error"] or "")) == ("a/1", True)
            assert bool(first["error"]) == bool(words)
            assert "refused the connection" in second["error"]
