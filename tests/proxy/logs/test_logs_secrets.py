"""No secret and nothing of a conversation is ever logged, unless it is asked for: then no key."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import aiohttp
import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Cut, Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy, raw
from tests.proxy.endpoints.test_chat_body import BROKEN, PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.logs.logging_here import Written, logging_to
from tests.waiting import until
from wellspoken.proxy.config.secrets import HIDDEN
from wellspoken.proxy.logs import bodies as logs_bodies

CANARY = "canary"
KEYS = {
    "CLIENT_KEYS": f"{CANARY}-of-a-client,{CANARY}-of-another",
    "BACKEND_KEY": f"{CANARY}-of-the-backend",
}
CONFIG = """
[server]
listen = "127.0.0.1:0"
[auth]
keys = ["env:CLIENT_KEYS"]
[store]
url = "postgresql://user:{canary}-of-the-store@127.0.0.1:1/db"
spool = "{spool}"
[log]
level = "debug"
format = "{form}"
[[backend]]
url = "{url}"
adapter = "openai"
key = "env:BACKEND_KEY"
"""
PROMPT = [{"role": "user", "content": f"{CANARY} of a prompt"}]


def answers() -> list[Script]:
    """Return what a backend says: in every form, with its own key and the prompt quoted."""
    told = f"{CANARY} of a prompt, {KEYS['BACKEND_KEY']}"
    error = {"error": {"message": told, "code": f"{CANARY}_code of", "type": told, "param": told}}
    odd = {**BROKEN, "id": told, "model": told, "extra": told}
    return [
        whole(PLAIN),
        whole(odd),
        stream(*EVENTS, DONE),
        stream(*EVENTS[:2], event(error)),
        whole(error, status=500),
        whole(error, status=400),
        whole(error, status=401),
        whole(told.encode(), 200, "text/html"),
        [f"HTTP/1.1 200 {told}\r\nX: \x00{told}\r\n\r\n".encode()],
        [f"{told}\r\n\r\n".encode(), Cut()],
        [Cut()],
    ]


async def asked(session: aiohttp.ClientSession, base: str, key: str, upstream: Upstream) -> None:
    """Send what clients send, well and badly, with canaries wherever there is room for one."""
    headers = {"Authorization": f"Bearer {key}", "x-other": CANARY, "Cookie": f"a={CANARY}"}
    body: dict[str, Any] = {"model": MODEL, "messages": PROMPT, "user": CANARY}
    for streams in (False, True):
        for one in answers():
            upstream.scripts = [one]
            asking = session.post(base + CHAT, json={**body, "stream": streams}, headers=headers)
            async with asking as response:
                await response.content.read()
    for wrong in (
        {"model": MODEL, "messages": CANARY},
        {"model": MODEL, "messages": PROMPT, "temperature": CANARY},
        {"model": MODEL, "messages": PROMPT, CANARY: CANARY},
        {"messages": [{"role": CANARY, "content": CANARY}]},
    ):
        async with session.post(base + CHAT, json=wrong, headers=headers) as response:
            await response.read()
    for given in ({}, {"Authorization": f"Bearer wrong-{CANARY}"}, {"x-api-key": f"{CANARY}-no"}):
        async with session.post(base + CHAT, json=body, headers=given) as response:
            assert response.status == 401
    for path in (f"/v1/models?key={CANARY}", "/livez", "/readyz", "/metrics"):
        async with session.get(base + path, headers=headers) as response:
            await response.read()
    port = int(base.rpartition(":")[2])
    odd = f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\x00\r\n\r\n".encode()
    await raw(port, odd)
    await raw(port, f"{CANARY} {CANARY}\r\n\r\n".encode())


@pytest.mark.parametrize("form", ["json", "text"])
async def test_the_command_tells_no_secret_at_level_debug(
    upstream: Upstream, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole program, with a store that cannot be reached and a backend that says too much."""
    file = tmp_path / "config.toml"
    settings = {"canary": CANARY, "spool": str(tmp_path / "spool"), "form": form}
    file.write_text(CONFIG.format(url=upstream.url, **settings))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"data": []}))
    command = [sys.executable, "-m", "wellspoken.proxy.cli", "serve", "--config", str(file)]
    process = subprocess.Popen(command, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        first = (await asyncio.to_thread(process.stdout.readline)).decode()
        base = first.split("listens on ")[1].split()[0]
        async with aiohttp.ClientSession() as session:
            await asked(session, base, KEYS["CLIENT_KEYS"].split(",")[0], upstream)
    finally:
        process.terminate()
        out, err = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0
    assert err.count(b"chat_completions") >= 2 * len(answers())
    assert b"livez" in err  # so it was level debug
    assert CANARY.encode() not in out + err, [
        line for line in err.splitlines() if b"canary" in line
    ]
    if form == "json":
        assert all(json.loads(line)["time"] for line in err.splitlines())


async def test_a_secret_that_is_logged_would_be_seen(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """The check above fails for a line that quotes a conversation."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    with logging_to(tmp_path / "log", level="debug", bodies=True) as written:
        written.observe(proxy.service)
        async with await proxy.chat(messages=PROMPT) as response:
            await response.read()
        await bodies(written, 2)
        assert CANARY in written.text()


async def bodies(written: Written, count: int) -> list[dict[str, Any]]:
    """Return the lines of bodies once there are so many."""

    def found() -> list[dict[str, Any]]:
        return [x for x in written.lines() if str(x.get("event")).endswith("_body")]

    await until(lambda: len(found()) >= count)
    return found()


@pytest.fixture
def debug(tmp_path: Path) -> Iterator[Written]:
    """A log with bodies."""
    with logging_to(tmp_path / "log", level="debug", bodies=True) as made:
        yield made


@pytest.mark.parametrize("streams", [False, True])
async def test_bodies_are_logged_without_keys(
    upstream: Upstream,
    start_proxy: StartProxy,
    debug: Written,
    streams: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = "key-of-a-client-1", "key-of-the-backend-2"
    monkeypatch.setenv("BACKEND_KEY", theirs)
    upstream.scripts = [stream(*EVENTS, DONE) if streams else whole(PLAIN)]
    proxy: Proxy = await start_proxy(upstream, key="env:BACKEND_KEY")
    debug.observe(proxy.service)
    said = f"Hello {mine} and {theirs} and sk-abcdefgh1234"
    headers = {"Authorization": f"Bearer {mine}", "x-request-id": "mine-1"}
    asked = [{"role": "user", "content": said}]
    async with await proxy.chat(headers, messages=asked, stream=streams) as response:
        data = await response.read()
    request, answer = await bodies(debug, 2)
    assert (request["event"], request["id"], request["level"]) == (
        "request_body",
        "mine-1",
        "debug",
    )
    assert json.loads(request["body"])["messages"][0]["content"] == (
        f"Hello {HIDDEN} and [the key] and {HIDDEN}"
    )
    assert (answer["event"], answer["id"]) == ("answer_body", "mine-1")
    assert answer["body"] == data.decode() and answer["size"] == len(data)
    assert "Authorization" not in debug.text() and mine not in debug.text()


async def test_a_body_is_cut_and_no_key_with_it(
    upstream: Upstream, start_proxy: StartProxy, debug: Written
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    debug.observe(proxy.service)
    key = "sk-" + "k" * 100
    before = len(json.dumps({"model": MODEL, "messages": [{"role": "user", "content": ""}]}))
    for room in (0, 3, 8, 50, 99, 150):
        text = "x " * ((logs_bodies.SHOWN - before - room) // 2) + key + " y" * 20_000
        async with await proxy.chat(messages=[{"role": "user", "content": text}]) as response:
            assert response.status == 200
    found = [line for line in await bodies(debug, 12) if line["event"] == "request_body"]
    assert all(len(line["body"]) <= logs_bodies.SHOWN < line["size"] for line in found)
    assert not any("kkk" in line["body"] for line in found)


async def test_a_huge_answer_is_not_kept_for_the_log(
    upstream: Upstream, start_proxy: StartProxy, debug: Written
) -> None:
    piece = json.loads(EVENTS[1].decode().removeprefix("data: "))
    piece["choices"][0]["delta"]["content"] = "z" * 50_000
    upstream.scripts = [stream(EVENTS[0], *[event(piece)] * 40, *EVENTS[4:], DONE)]
    proxy = await start_proxy(upstream)
    debug.observe(proxy.service)
    async with await proxy.chat(stream=True) as response:
        data = await response.read()
    _, answer = await bodies(debug, 2)
    assert answer["size"] == len(data) > 2_000_000
    assert len(answer["body"]) == logs_bodies.SHOWN


async def test_bodies_are_at_level_debug_alone(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    with logging_to(tmp_path / "log", level="info", bodies=True) as written:
        written.observe(proxy.service)
        async with await proxy.chat() as response:
            await response.read()
        await until(lambda: written.requests())
        assert [line["event"] for line in written.lines()] == ["request"]
