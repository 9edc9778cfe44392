"""What is about the proxy itself: at an address of its own, behind keys of its own, or both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.lifecycle.test_reload_watching import watched
from tests.proxy.workers.test_workers import workers
from tests.waiting import until
from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import ConfigError

ADMIN = {"Authorization": "Bearer key-of-an-admin"}
CLIENT = {"Authorization": "Bearer key-of-a-client"}
GUARDED = ["/metrics", "/backend/metrics"]
Auth = dict[str, list[str]]


@pytest.fixture
def auth(tmp_path: Path) -> Auth:
    """Give keys, of a client and of an admin, in files."""
    (tmp_path / "clients").write_text("key-of-a-client")
    (tmp_path / "admins").write_text("key-of-an-admin")
    return {"keys": [f"file:{tmp_path}/clients"], "admin": [f"file:{tmp_path}/admins"]}


async def ask(
    proxy: Proxy, path: str, headers: dict[str, str] | None = None, port: int = 0, **more: Any
) -> tuple[int, bytes]:
    """Return status and body of a GET at the proxy's address, or at another port."""
    url = f"http://127.0.0.1:{port or proxy.port}{path}"
    async with proxy.session.request(more.get("method", "GET"), url, headers=headers) as answer:
        return answer.status, await answer.read()


def script(upstream: Upstream) -> None:
    upstream.script("/health", whole({}, status=503))
    upstream.script("/metrics", whole(b"vllm:x 1\n", 200, "text/plain"))
    upstream.script(CHAT, whole(PLAIN))


@pytest.mark.parametrize("path", GUARDED)
async def test_a_key_of_its_own(
    upstream: Upstream, start_proxy: StartProxy, auth: Auth, path: str
) -> None:
    script(upstream)
    proxy = await start_proxy(upstream, auth=auth)
    for headers in (None, CLIENT):
        status, body = await ask(proxy, path, headers)
        assert status == 401 and envelope(body)["code"] == "invalid_api_key"
    assert (await ask(proxy, path, ADMIN))[0] == 200
    async with await proxy.chat(ADMIN) as answer:
        assert answer.status == 401
    async with await proxy.chat(CLIENT) as answer:
        assert answer.status == 200


async def test_why_it_is_not_ready_needs_the_key(
    upstream: Upstream, start_proxy: StartProxy, auth: Auth
) -> None:
    script(upstream)
    proxy = await start_proxy(upstream, auth=auth)
    for headers in (None, CLIENT):
        status, body = await ask(proxy, "/readyz", headers)
        assert (status, json.loads(body)) == (503, {"status": "unavailable"})
    status, body = await ask(proxy, "/readyz", ADMIN)
    assert status == 503 and "answers 503 to GET /health" in json.loads(body)["reason"]


async def test_an_address_of_its_own(upstream: Upstream, start_proxy: StartProxy) -> None:
    script(upstream)
    proxy = await start_proxy(upstream, server={"admin": "127.0.0.1:0"})
    port = await proxy.service.start_admin()
    for path in GUARDED:
        status, body = await ask(proxy, path)
        assert status == 404 and "server.admin" in envelope(body)["message"]
        assert (await ask(proxy, path, port=port))[0] == 200
    assert (await ask(proxy, "/livez", port=port))[0] == 200
    assert json.loads((await ask(proxy, "/readyz"))[1]) == {"status": "unavailable"}
    assert "reason" in json.loads((await ask(proxy, "/readyz", port=port))[1])
    for path in ("/v1/models", "/", CHAT, "/v1/capabilities"):
        status, body = await ask(proxy, path, port=port)
        assert status == 404 and "server.listen" in envelope(body)["message"]
    assert (await ask(proxy, "/metrics", port=port, method="POST"))[0] == 405
    assert (await ask(proxy, "/metrics", {"Host": "evil.example"}, port=port))[0] == 403
    async with await proxy.chat() as answer:
        assert answer.status == 200


async def test_both(upstream: Upstream, start_proxy: StartProxy, auth: Auth) -> None:
    script(upstream)
    proxy = await start_proxy(upstream, auth=auth, server={"admin": "127.0.0.1:0"})
    port = await proxy.service.start_admin()
    assert (await ask(proxy, "/metrics", ADMIN))[0] == 404
    assert (await ask(proxy, "/metrics", port=port))[0] == 401
    assert (await ask(proxy, "/metrics", ADMIN, port))[0] == 200
    assert "reason" not in json.loads((await ask(proxy, "/readyz", port=port))[1])
    assert "reason" in json.loads((await ask(proxy, "/readyz", ADMIN, port))[1])


async def test_it_answers_until_the_end_of_a_drain(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    script(upstream)
    proxy = await start_proxy(upstream, server={"admin": "127.0.0.1:0"})
    port = await proxy.service.start_admin()
    await proxy.service.drain()
    status, body = await ask(proxy, "/readyz", port=port)
    assert status == 503 and "shutting down" in json.loads(body)["reason"]
    assert (await ask(proxy, "/metrics", port=port))[0] == 200


async def test_new_admin_keys_hold_at_once(tmp_path: Path, auth: Auth) -> None:
    flags: dict[str, object] = {"backend": [{"url": "http://127.0.0.1:9"}], "auth": auth}
    async with watched(None, flags) as it:
        before = it.service.state.admin
        (tmp_path / "admins").write_text("another-key")
        await until(lambda: it.service.state.admin is not before)
        assert before.compared(it.service.state.admin) == (1, 1)


async def test_workers_share_it(upstream: Upstream, tmp_path: Path) -> None:
    script(upstream)
    port = free_port()
    file = tmp_path / "w.toml"
    backend = f'[[backend]]\nurl = "{upstream.url}"\nadapter = "openai"\n'
    file.write_text(f'[server]\nadmin = "127.0.0.1:{port}"\n{backend}')
    async with workers(upstream, config=file) as running:
        running.url = f"http://127.0.0.1:{port}"
        assert any(name.startswith("wellspoken_") for name in await running.metrics())


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ("8010x", "server.admin: '8010x' is no address"),
        ("127.0.0.1:8010", "server.admin: this is server.listen"),
    ],
)
def test_no_such_address(admin: str, problem: str) -> None:
    tables = {"server": {"admin": admin}, "backend": [{"url": "http://localhost:8000"}]}
    with pytest.raises(ConfigError, match=problem):
        load(None, tables, {})


def test_a_variable_with_the_clients_keys_leaves_the_admins(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text('[auth]\nadmin = ["env:A"]\n[[backend]]\nurl = "http://localhost"\n')
    config = load(file, {}, {"WELLSPOKEN_AUTH_KEYS": "env:C"})
    assert not isinstance(config.auth, str)
    assert (config.auth.keys, config.auth.admin) == (("env:C",), ("env:A",))
    with pytest.raises(ConfigError, match=r"auth.admin\[0\]: write env:NAME"):
        load(None, {"auth": {"admin": ["sk-1"]}, "backend": [{"url": "http://localhost"}]}, {})
