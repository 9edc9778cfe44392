"""A response is continued by the server that gave it, and by no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest
from msgspec import Raw

from tests.conforming import MODEL
from tests.fakes.upstream import Gate, Script, Upstream, event, head, stream, whole
from tests.proxy.conftest import Proxy, StartProxy, envelope
from wellspoken.proxy.balance.continued import READ, Continued, IdReader

PATH: Final = "/v1/responses"
MISSING: Final = {"error": {"message": "Response with id 'resp_9' not found.", "code": 404}}


def response(number: int, **more: Any) -> dict[str, Any]:
    """Return a response as vLLM begins it."""
    return {"id": f"resp_{number}", "created_at": 1, "object": "response", "model": MODEL, **more}


def events(number: int) -> Script:
    created = {"type": "response.created", "response": response(number)}
    return stream(event(created), event({"type": "response.completed"}))


@pytest.fixture
async def three() -> AsyncIterator[list[Upstream]]:
    """Three servers, each with a response of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Upstream(whole(response(number))))
            for number in range(3)
        ]


async def begin(start_proxy: StartProxy, servers: list[Upstream], **more: Any) -> Proxy:
    backend = {"url": [each.url for each in servers], "endpoints": [PATH], "responses": "pass"}
    backend |= more
    return await start_proxy(backend, health={"interval": 0})


async def ask(proxy: Proxy, **sent: Any) -> tuple[int, str, str]:
    """Return the status, who answered, and the answer."""
    asked = {"model": MODEL, "input": "Hi", **sent}
    async with proxy.session.post(proxy.url(PATH), json=asked) as answer:
        return answer.status, answer.headers["x-wellspoken-backend"], await answer.text()


async def find_givers(proxy: Proxy, streams: bool = False) -> dict[str, str]:
    """Return which server gave each response: id -> its name."""
    givers = {}
    for number in range(9):
        status, name, text = await ask(proxy, stream=streams, input=f"Hi {number}")
        assert status == 200
        givers["resp_" + text.partition('"resp_')[2].partition('"')[0]] = name
    assert len(givers) == 3
    return givers


@pytest.mark.parametrize("streams", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("affinity", ["none", "prefix"])
async def test_a_response_is_continued_where_it_began(
    start_proxy: StartProxy, three: list[Upstream], streams: bool, affinity: str
) -> None:
    if streams:
        for number, server in enumerate(three):
            server.scripts = [events(number)]
    proxy = await begin(start_proxy, three, affinity=affinity)
    givers = await find_givers(proxy, streams)
    for _ in range(3):
        for number, (one, name) in enumerate(sorted(givers.items())):
            status, found, _ = await ask(proxy, previous_response_id=one)
            assert (status, found) == (200, name)
            assert json.loads(three[number].requests[-1].body)["previous_response_id"] == one


async def test_a_stream_may_be_continued_before_its_end(
    start_proxy: StartProxy, three: list[Upstream]
) -> None:
    gate = Gate()
    created = event({"type": "response.created", "response": response(7)})
    for server in three:
        begun: Script = [head(content_type="text/event-stream"), created, gate]
        server.scripts = [begun, whole(response(8))]
    proxy = await begin(start_proxy, three)
    asked = {"model": MODEL, "input": "Hi", "stream": True}
    async with proxy.session.post(proxy.url(PATH), json=asked) as answer:
        await answer.content.readuntil(b"\n\n")
        name = answer.headers["x-wellspoken-backend"]
        for _ in range(3):
            status, found, _ = await ask(proxy, previous_response_id="resp_7")
            assert (status, found) == (200, name)
        gate.open()
        await answer.read()


async def test_what_a_dead_server_gave_is_continued_by_no_other(
    start_proxy: StartProxy, three: list[Upstream]
) -> None:
    proxy = await begin(start_proxy, three, retry="unstarted")
    givers = await find_givers(proxy)
    await three[1].refuse()
    three[2].scripts = [whole({"error": {"message": "busy"}}, status=503)]
    counts = [len(each.requests) for each in three]
    for number, wanted in ((1, 502), (2, 503)):
        for _ in range(4):  # also once it is out
            status, name, text = await ask(proxy, previous_response_id=f"resp_{number}")
            assert (status, name) == (wanted, givers[f"resp_{number}"])
            assert envelope(text)["message"]
    assert [len(each.requests) for each in three] == [counts[0], counts[1], counts[2] + 4]
    assert (await ask(proxy))[0] == 200


@pytest.mark.parametrize("given", ["resp_unknown", "", None, 5, {"a": 1}, "é"])
async def test_what_nobody_is_known_to_have_given_goes_to_any(
    start_proxy: StartProxy, three: list[Upstream], given: Any
) -> None:
    proxy = await begin(start_proxy, three)
    found = {(await ask(proxy, previous_response_id=given))[1] for _ in range(6)}
    assert len(found) == 3


async def test_a_server_that_is_gone_is_not_waited_for(
    start_proxy: StartProxy, three: list[Upstream]
) -> None:
    proxy = await begin(start_proxy, three)
    proxy.service.state.continued.note("resp_5", "default/7")
    assert (await ask(proxy, previous_response_id="resp_5"))[0] == 200


def test_the_latest_are_remembered() -> None:
    continued = Continued(most=2)
    for name in ("a", "b", "a", "c"):
        continued.note(f"resp_{name}", f"server of {name}")

    def find(name: str) -> str:
        return continued.find({"previous_response_id": Raw(json.dumps(f"resp_{name}").encode())})

    assert [find(name) for name in "abc"] == ["server of a", "", "server of c"]
    assert continued.find({}) == ""


BODY: Final = b'{"previous_response_id": "resp_0", "id" : "resp_1-a", "x": {"id":"resp_2"}}'


@pytest.mark.parametrize("at", range(len(BODY) + 1))
def test_an_id_is_found_wherever_it_is_split(at: int) -> None:
    found: list[str] = []
    reader = IdReader(found.append)
    for piece in (BODY[:at], BODY[at:], BODY):
        reader.feed(piece)
    assert found == ["resp_1-a"]


@pytest.mark.parametrize(
    "data",
    [
        b'{"id": "msg_1"}',
        json.dumps({"text": '"id": "resp_1"'}).encode(),
        b'{"id": "resp_%b"}' % (b"a" * 201),
        b"." * READ + BODY,
        b'{"id": "resp_\xff"}',
    ],
)
def test_what_is_no_id_is_none(data: bytes) -> None:
    found: list[str] = []
    reader = IdReader(found.append)
    for at in range(0, len(data), 997):
        reader.feed(data[at : at + 997])
    assert not found
