"""The room for what all requests hold together: who gets it, who waits, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import ClientResponse

from tests.fakes.upstream import Gate, Upstream, head, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.http.test_requests import post
from tests.waiting import until
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.limits import budget
from wellspoken.proxy.limits.budget import ANSWER, BODY, MemoryBudget, available

TEXT = "a" * 300_000
ROOM = {"memory": 1_000_000}  # one such request, and not two


async def test_room_is_given_in_order_of_arrival() -> None:
    room, came = MemoryBudget(10), list[int]()

    async def ask(size: int) -> None:
        await room.wait(size)
        came.append(size)

    assert room.take(6)
    asked = [asyncio.create_task(ask(size)) for size in (9, 1, 2)]
    await asyncio.sleep(0)
    assert not room.take(1)  # though it would fit: others came before
    room.give(6)
    await asyncio.gather(*asked[:2])
    assert came == [9, 1] and room.used == 10
    room.give(9)
    await asyncio.gather(*asked)
    room.give(3)
    assert room.used == 0 and room.take(10)


@pytest.mark.parametrize("given", [False, True])
async def test_who_leaves_takes_no_room(given: bool) -> None:
    """Also where it is given in the step in which the waiting request is cancelled."""
    room = MemoryBudget(10)
    assert room.take(6)
    first = asyncio.create_task(room.wait(8))
    behind = asyncio.create_task(room.wait(4))
    await asyncio.sleep(0)
    if given:
        room.give(6)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await behind
    assert first.cancelled() and room.used == 4 + 6 * (not given)


async def test_those_who_leave_in_one_step_leave_as_if_alone() -> None:
    """The first lets in who is behind it, which passes over the others that leave."""
    room = MemoryBudget(10)
    assert room.take(6)
    asked = [asyncio.create_task(room.wait(size)) for size in (8, 4, 4)]
    await asyncio.sleep(0)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert all(each.cancelled() for each in asked)
    assert room.used == 6 and room.take(4)


async def test_what_finds_no_room_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 0.01)
    refused = list[int]()
    room = MemoryBudget(10, lambda: refused.append(1))
    assert room.take(6)
    with pytest.raises(RequestError) as late:
        await room.wait(8)
    assert (late.value.status, late.value.headers) == (503, {"Retry-After": "1"})
    assert len(refused) == 1
    assert room.used == 6 and room.take(4)


def test_the_memory_is_that_of_the_narrowest_group(tmp_path: Path) -> None:
    """The paths are as the kernel has them: cgroups(7), "/proc/pid/cgroup"."""
    own, groups = tmp_path / "proc" / "self" / "cgroup", tmp_path / "sys" / "fs" / "cgroup"
    own.parent.mkdir(parents=True)
    own.write_text("0::/pods/one\n")
    assert available(tmp_path) == available(tmp_path / "missing") > 5000
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:  100 kB\n")
    assert available(tmp_path) == 102_400
    group = groups / "pods" / "one"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (groups / "pods" / "memory.max").write_text("5000\n")
    assert available(tmp_path) == 5000
    (group / "memory.max").write_text("4000\n")
    assert available(tmp_path) == 4000
    own.write_text("5:cpu,memory:/pods/one\n3:freezer:/\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text("3000\n")  # as in a container
    assert available(tmp_path) == 3000


async def refuse(answer: ClientResponse, status: int) -> None:
    """Check that this is the refusal of who found no room."""
    assert answer.status == status and answer.headers.get("Retry-After") == "1"
    assert envelope(await answer.read())["code"] == "memory_limit"


def idle(proxy: Proxy) -> bool:
    """Say whether nobody holds anything."""
    return not proxy.service.state.inflight and not proxy.service.state.memory.used


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_without_room_waits_and_is_refused(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    announced: bool,
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 60.0)
    gate = Gate()
    upstream.scripts = [[gate, *whole(PLAIN)], whole(PLAIN)]
    proxy = await start_proxy(upstream, limits=ROOM)
    message = [{"role": "user", "content": TEXT}]
    body = json.dumps({"model": "m", "messages": message}).encode()

    async def pieces() -> object:
        yield body

    async def ask() -> ClientResponse:
        kind = {"Content-Type": "application/json"}
        data = body if announced else pieces()
        return await proxy.session.post(proxy.url(CHAT), data=data, headers=kind)

    first = asyncio.create_task(ask())
    await gate.reached.wait()
    held = proxy.service.state.memory.used
    assert BODY * len(body) == held
    waiting = asyncio.create_task(ask())
    await until(lambda: bool(proxy.service.state.memory._waiting))
    gate.open()
    for one in (first, waiting):
        assert (await one).status == 200
    await until(lambda: idle(proxy))
    upstream.scripts = [[Gate(), *whole(PLAIN)]]
    monkeypatch.setattr(budget, "PATIENCE", 0.01)
    stuck = asyncio.create_task(ask())
    await until(lambda: proxy.service.state.memory.used == held)
    await refuse(await ask(), 503)
    found = await proxy.metrics()
    assert found["wellspoken_memory_refusals_total"] == 1
    assert found["wellspoken_held_bytes"] == held
    stuck.cancel()
    await asyncio.gather(stuck, return_exceptions=True)
    await until(lambda: idle(proxy))


async def test_what_is_announced_and_not_sent_takes_no_room(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, limits=ROOM)
    writers = []
    for _ in range(8):
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writers.append(writer)
        writer.write(post(f"Content-Length: {len(TEXT)}", length=False, body=b'{"'))
    await until(lambda: proxy.service.state.slots.held == len(writers))
    async with await proxy.chat(messages=[{"role": "user", "content": TEXT}]) as answer:
        assert answer.status == 200
    for writer in writers:
        writer.close()
    await until(lambda: idle(proxy))


async def test_a_body_that_never_fits_is_refused_at_once(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream, limits={"memory": 500_000})
    error = await proxy.error(413, messages=[{"role": "user", "content": TEXT}])
    assert error["code"] == "memory_limit"
    assert not upstream.requests


@pytest.mark.parametrize("form", ["body", "unbounded", "stream for a body"])
async def test_an_answer_without_room_fails_and_holds_nothing(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 0.01)
    large = json.dumps({**json.loads(PLAIN), "text": TEXT}).encode()
    assert len(large) * ANSWER > 1_000_000 > len(large)
    upstream.scripts = [whole(large)]
    if form == "unbounded":
        upstream.scripts = [[head(200, "application/json"), large]]
    elif form != "body":
        upstream.scripts = [[head(200, "text/event-stream"), *[b": " + large + b"\n\n"]]]
    more = {"streams": "always"} if form == "stream for a body" else {}
    proxy = await start_proxy(upstream, limits=ROOM, **more)
    async with await proxy.chat() as answer:
        await refuse(answer, 503)
    await until(lambda: idle(proxy))
    upstream.scripts = [whole(PLAIN)]
    async with await proxy.chat() as answer:
        assert answer.status == 200
    await until(lambda: idle(proxy))
