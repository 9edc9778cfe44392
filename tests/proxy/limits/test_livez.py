"""Small requests are answered while large ones are worked on, whatever these are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.bench.process import Child
from tests.proxy.limits.heavy import ANSWER, MB, Backend, backend, post, proxy

CHAT = "/v1/chat/completions"
MOST = 0.05
"""Seconds within which 99 of 100 calls are answered, on a machine that does nothing else.

So where the proxy computed for less than a call took, what it computed counts: other processes had
the machine meanwhile.
"""
CALLS = 300
ROUNDS = 5


def computed(pid: int) -> float:
    """Return the seconds for which the threads of a process have computed."""
    found = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found += int(file.read_text().split()[0])
    return found / 1e9


def look(url: str, pid: int, calls: int) -> list[float]:
    """Return how long so many calls of /livez took one after another, the shortest first."""
    parts = urlsplit(url)
    took = []
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        for _ in range(calls):
            began, before = time.perf_counter(), computed(pid)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while b'{"status":"ok"}' not in said:
                part = connection.recv(65_536)
                assert part, f"closed behind {said!r}"
                said += part
            took.append(min(time.perf_counter() - began, computed(pid) - before))
            time.sleep(0.005)
    return sorted(took)


def p99(took: list[float]) -> float:
    """Return the time within which 99 of 100 were answered."""
    return took[len(took) * 99 // 100]


def untiled() -> bytes:
    """Return an answer whose entries are hardly to be found in its text."""
    chance = random.Random(1)
    tokens = [chance.choice(("a", "b", "ab", "ba")) for _ in range(100)]
    text = "".join(chance.choice("ab") for _ in range(100))
    rows = [{"token": x, "logprob": -1.0, "bytes": list(x.encode())} for x in tokens]
    found = {"content": [{**row, "top_logprobs": [row]} for row in rows]}
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": found, "finish_reason": "stop"}
    return json.dumps({**ANSWER, "choices": [choice]}).encode()


def long(tokens: int = 20_000) -> bytes:
    """Return an answer of many tokens."""
    rows = [
        {"token": "word ", "logprob": -1.0, "bytes": list(b"word "), "top_logprobs": []}
    ] * tokens
    message = {"role": "assistant", "content": "word " * len(rows)}
    logprobs = {"content": rows}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    return json.dumps({**ANSWER, "choices": [choice]}).encode()


def chat(content: Any = "Hi", **more: Any) -> bytes:
    """Return a chat's request."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20 * MB}}
IDS = ",".join(map(str, range(100_000, 3_000_000))).encode()
KINDS: dict[str, tuple[str, bytes, bytes]] = {
    "ids": ("/v1/completions", b'{"model":"m","prompt":[%b]}' % IDS, b""),
    "image": (CHAT, chat([IMAGE]), b""),
    "a body for a stream": (CHAT, chat(stream=True, logprobs=True), long()),
    "untiled": (CHAT, chat(logprobs=True), untiled()),
    "an answer of 10 MB": (CHAT, chat(logprobs=True), long(95_000)),
    "stored": (CHAT, chat(store=True, logprobs=True), long()),
}


async def ask_on(upstream: Backend, url: str, kind: str, times: list[int]) -> None:
    """Send the large request again and again."""
    path, body, _ = KINDS[kind]
    while True:
        status, data = await post(url, path, body)
        assert status == 200, data[:1000]
        times.append(status)


@pytest.mark.parametrize("kind", KINDS)
async def test_livez_is_answered_beside(kind: str, tmp_path: Path) -> None:
    store = {"WELLSPOKEN_STORE_PATH": str(tmp_path / "c.db")} if kind == "stored" else {}
    async with backend() as upstream:
        upstream.go.set()
        upstream.answer = KINDS[kind][2] or upstream.answer
        with proxy(upstream.url, **store) as child:
            best = MOST
            for _ in range(ROUNDS):  # of which one may meet a neighbour that has the machine
                best = min(best, p99(await _round(upstream, child, kind)))
                if best < MOST:
                    break
    assert best < MOST


async def _round(upstream: Backend, child: Child, kind: str) -> list[float]:
    """Return how long calls of /livez took while large requests were answered, two at least."""
    times: list[int] = []
    asking = asyncio.create_task(ask_on(upstream, child.url, kind, times))
    took: list[float] = []
    while len(times) < 2 or len(took) < CALLS:
        took += await asyncio.to_thread(look, child.url, child.pid, 50)
        if asking.done():
            await asking
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return sorted(took)
