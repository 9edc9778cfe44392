"""Every cell of the table on top of relay/answer.py, against a scripted upstream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pytest
from aiohttp import ClientError, ClientResponse

from tests.clock import skip
from tests.fakes.upstream import Cut, Gate, Script, Stall, Step, Upstream, whole
from tests.native import piece
from tests.proxy.conftest import Proxy, StartProxy, envelope
from tests.waiting import until
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.relay import answer

Column = Literal["a body", "head not left", "head left"]
COLUMNS: Final[tuple[Column, ...]] = ("a body", "head not left", "head left")
SECRET: Final = "sk-canary-0123456789"
DONE: Final = b"data: [DONE]"


def read_table(text: str) -> dict[str, dict[Column, str]]:
    """Return the rows of the table in a docstring, by what happens and what the client wants."""
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if "    " in line[:4]]
    assert tuple(lines[0][1:]) == COLUMNS
    return {name: dict(zip(COLUMNS, cells, strict=True)) for name, *cells in lines[1:]}


TABLE: Final = read_table(answer.__doc__ or "")


@dataclass
class Case:
    """One failure: what the backend does from the moment in which it is to fail."""

    fails: list[Step]
    status: int = 0  # that of `its status`
    helping: bool = False  # a request before the answer's own fails, for which the plan waits
    timeouts: dict[str, float] = field(default_factory=dict)
    happens: Callable[[Proxy, pytest.MonkeyPatch], Any] | None = None


def break_translation(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> bytes:
        raise ZeroDivisionError

    for name in ("feed", "whole"):
        monkeypatch.setattr(StreamTranslator, name, fail)


def error(status: int) -> Script:
    return whole({"error": {"message": f"no {SECRET}"}}, status=status)


CASES: Final[dict[str, Case]] = {
    "the backend is not reached": Case([], helping=True),
    "the backend answers an error": Case([*error(429)], 429),
    "an error inside a 200": Case([*whole({"error": {"message": SECRET, "code": 503}})], 503),
    "the client's own key is refused": Case([*error(401)], 401),
    "a helping request is refused": Case([*error(400)], 400, helping=True),
    "the backend breaks off": Case([Cut()]),
    "the backend is too slow": Case(
        [Stall()],
        timeouts={"first_token_body": 100.0, "first_token_stream": 100.0},
        happens=lambda *_: skip(110.0),
    ),
    "a bug of the proxy's": Case([*whole(piece("a"))], happens=break_translation),
    "the client leaves": Case([Stall()]),
    "the proxy stops": Case([Stall()]),
}


def test_the_table_and_the_cases_name_the_same() -> None:
    assert list(TABLE) == list(CASES)
    assert len(TABLE) == 10


async def outcome_of(
    name: str,
    column: Column,
    sources: int,
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Return what becomes of one failure; the head leaves with a heartbeat before, or does not."""
    case, gate = CASES[name], Gate()
    template = whole({"prompt": "Hi"})
    upstream.script("/apply-template", [gate, *case.fails] if case.helping else template)
    upstream.script("/completion", [gate, *case.fails], [Stall()])
    timeouts = {**case.timeouts, "heartbeat": 0.05 if column == "head left" else 200}
    if name == "the client's own key is refused":
        proxy = await start_proxy(
            upstream, adapter="llamacpp-native", timeouts=timeouts, auth="pass"
        )
    else:
        monkeypatch.setenv("BACKEND_KEY", SECRET)
        proxy = await start_proxy(
            upstream, adapter="llamacpp-native", timeouts=timeouts, key="env:BACKEND_KEY"
        )
    headers = {"Authorization": "Bearer the-clients-own-key"}
    asking = asyncio.create_task(
        proxy.chat(headers=headers, n=sources, stream=column != "a body", max_tokens=5)
    )
    await upstream.request(0 if case.helping else sources)
    left = await asking if column == "head left" else None
    if case.happens is not None:
        case.happens(proxy, monkeypatch)
    if name == "the backend is not reached":
        await upstream.refuse()
    gate.open()
    if name == "the client leaves":
        found = await leave(asking, left)
    elif name == "the proxy stops":
        await proxy.service.stop()
        found = await observe(asking)
    else:
        found = await observe(asking)
    await check_nothing_is_left(proxy, upstream)
    return "its status" if case.status and found == str(case.status) else found


async def leave(asking: asyncio.Task[ClientResponse], left: ClientResponse | None) -> str:
    if left is not None:
        left.close()
    else:
        asking.cancel()
    return "closed"


async def observe(asking: asyncio.Task[ClientResponse]) -> str:
    """Return what a client sees of a failure, whose form is checked on the way."""
    try:
        async with await asking as response:
            data = await response.read()
    except ClientError:
        return "closed"
    assert SECRET.encode() not in data
    if response.status != 200:
        envelope(data)
        return str(response.status)
    *_, last = [x for x in data.split(b"\n\n") if x.startswith(b"data:")]
    envelope(last.removeprefix(b"data: "))
    assert data.count(b'{"error"') == 1 and DONE not in data
    return "event"


async def check_nothing_is_left(proxy: Proxy, upstream: Upstream) -> None:
    """Wait until no request is open at the proxy, and none computes at the backend."""
    await until(lambda: not proxy.service.state.inflight)
    await until(lambda: all(x.task is None or x.task.done() for x in upstream.connections))


@pytest.mark.parametrize("sources", [1, 2], ids=["one source", "several"])
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("name", TABLE)
async def test_a_failure_becomes_what_the_table_says(
    name: str,
    column: Column,
    sources: int,
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await outcome_of(name, column, sources, upstream, start_proxy, monkeypatch)
    assert found == TABLE[name][column]


@pytest.mark.parametrize(
    ("name", "column", "wrong"),
    [
        ("the backend answers an error", "head left", "its status"),
        ("the backend breaks off", "head not left", "event"),
        ("the proxy stops", "a body", "500"),
    ],
)
async def test_a_table_that_is_wrong_is_seen(
    name: str,
    column: Column,
    wrong: str,
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = answer.__doc__ or ""
    (row,) = (line for line in text.splitlines() if line.strip().startswith(name))
    cells = re.split(r" {2,}", row.strip())
    cells[1 + COLUMNS.index(column)] = wrong
    table = read_table(text.replace(row, "    " + "  ".join(cells)))
    found = await outcome_of(name, column, 2, upstream, start_proxy, monkeypatch)
    assert found != table[name][column]
