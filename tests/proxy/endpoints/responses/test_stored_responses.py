"""Responses that are kept: continued, retrieved, listed, deleted, each for its own client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Upstream
from tests.postgres import Server
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.endpoints.responses.asking import (
    PATH,
    Json,
    ask,
    create,
    create_stream,
    events_of,
    says,
    streams,
    text_of,
)

Start = Any


@pytest.fixture(params=["memory", "sqlite"])
def start_keeping(
    request: pytest.FixtureRequest, start_proxy: StartProxy, tmp_path: Path
) -> StartProxy:
    """Start a proxy that keeps responses: in memory, or in a file."""

    async def start(*upstreams: Any, **more: Any) -> Proxy:
        store = {"path": str(tmp_path / "kept.sqlite")} if request.param == "sqlite" else {}
        return await start_proxy(*upstreams, store=store, **more)

    return start


def messages(upstream: Upstream) -> list[tuple[str, str]]:
    """Return roles and texts of the last request that the backend got."""
    return [(x["role"], x["content"]) for x in upstream.requests[-1].json()["messages"]]


async def test_a_response_is_continued(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One"), streams("T", "wo"), says("Three")]
    proxy = await start_keeping(upstream)
    first = await create(proxy, instructions="Count.", input="a")
    second = (await create_stream(proxy, previous_response_id=first["id"], input="b"))[-1]
    third = await create(proxy, previous_response_id=second["response"]["id"], input="c")
    assert text_of(third) == "Three" and third["previous_response_id"] == second["response"]["id"]
    assert messages(upstream) == [  # instructions are not carried over
        ("user", "a"),
        ("assistant", "One"),
        ("user", "b"),
        ("assistant", "Two"),
        ("user", "c"),
    ]


async def test_a_response_can_be_read_again(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One"), streams("T", "wo")]
    proxy = await start_keeping(upstream)
    first = await create(proxy)
    assert await ask(proxy, "GET", first["id"]) == first
    events = await create_stream(proxy)
    told = events[-1]["response"]
    assert await ask(proxy, "GET", told["id"]) == told
    async with proxy.session.get(proxy.url(f"{PATH}/{told['id']}?stream=true")) as answer:
        assert answer.content_type == "text/event-stream"
        again = events_of(await answer.text())
    assert again[-1] == {**events[-1], "sequence_number": len(again) - 1}
    assert [event["type"] for event in again][:2] == ["response.created", "response.in_progress"]
    url = proxy.url(f"{PATH}/{told['id']}?stream=true&starting_after={len(again) - 2}")
    async with proxy.session.get(url) as answer:
        assert json.loads((await answer.text()).partition("data: ")[2]) == again[-1]


async def test_the_input_is_listed(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One"), says("Two")]
    proxy = await start_keeping(upstream)
    first = await create(proxy, input="a")
    second = await create(proxy, input="b", previous_response_id=first["id"])

    async def page(query: str) -> Json:
        return await ask(proxy, "GET", f"{second['id']}/input_items{query}")

    listed = await page("?order=asc")
    assert listed["object"] == "list" and listed["has_more"] is False
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert listed["data"][2]["content"] == [{"type": "input_text", "text": "b"}]
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
    assert [item["id"] for item in (await page(""))["data"]] == ids[::-1]
    short = await page("?limit=2")
    assert short["has_more"] and short["last_id"] == ids[1]
    rest = await page(f"?limit=2&after={ids[1]}")
    assert [item["id"] for item in rest["data"]] == ids[:1]
    for query in ("?limit=0", "?after=msg_1", "?order=up", "?colour=red"):
        await ask(proxy, "GET", f"{second['id']}/input_items{query}", 400)


async def test_what_goes_on_from_a_deleted_response_stays(
    upstream: Upstream, start_keeping: StartProxy
) -> None:
    upstream.scripts = [says("One"), says("Two"), says("Three")]
    proxy = await start_keeping(upstream)
    first = await create(proxy, input="a")
    second = await create(proxy, input="b", previous_response_id=first["id"])
    assert await ask(proxy, "DELETE", first["id"]) == {
        "id": first["id"],
        "object": "response",
        "deleted": True,
    }
    for method in ("GET", "DELETE"):
        error = await ask(proxy, method, first["id"], 404)
        assert error["message"] == f"Response with id '{first['id']}' not found."
    error = await create(proxy, 400, previous_response_id=first["id"])
    assert error == {
        "message": f"Previous response with id '{first['id']}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }
    await create(proxy, input="c", previous_response_id=second["id"])
    assert messages(upstream)[0] == ("user", "a") and len(messages(upstream)) == 5


async def input_of(proxy: Proxy, response: Json) -> Json:
    """Return the items that a response answers."""
    return await ask(proxy, "GET", f"{response['id']}/input_items?order=asc")


async def test_an_item_is_referred_to(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_keeping(upstream)
    first = await create(proxy, input="a")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    second = await create(proxy, input=[reference, {"role": "user", "content": "b"}])
    assert messages(upstream) == [("assistant", "One"), ("user", "b")]
    own = [item["id"] for item in (await input_of(proxy, first))["data"]]
    await create(
        proxy, input=[{"type": "item_reference", "id": id} for id in (*own, reference["id"])]
    )
    assert messages(upstream) == [("user", "a"), ("assistant", "One")]
    items = (await input_of(proxy, second))["data"]
    assert [item["type"] for item in items] == ["message", "message"]
    for id in ("msg_unknown", first["output"][0]["id"][:-1] + "f"):
        error = await create(proxy, 404, input=[{"type": "item_reference", "id": id}])
        assert error["param"] == "input" and id in error["message"]


async def test_what_is_not_to_be_kept_is_not(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_keeping(upstream)
    response = await create(proxy, store=False)
    assert response["store"] is False
    await ask(proxy, "GET", response["id"], 404)
    await create(proxy, 400, previous_response_id=response["id"])


async def test_everybody_sees_their_own(
    upstream: Upstream, start_keeping: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [says("One")]
    monkeypatch.setenv("CLIENT_KEYS", "sk-aaaaaaaaaaaaaaaa,sk-bbbbbbbbbbbbbbbb")
    proxy = await start_keeping(upstream, auth={"keys": ["env:CLIENT_KEYS"]})
    mine, other = ({"Authorization": f"Bearer sk-{letter * 16}"} for letter in "ab")
    first = await create(proxy, headers=mine)
    assert (await ask(proxy, "GET", first["id"], headers=mine))["id"] == first["id"]
    for method in ("GET", "DELETE"):
        await ask(proxy, method, first["id"], 404, headers=other)
    await create(proxy, 400, headers=other, previous_response_id=first["id"])
    item = {"type": "item_reference", "id": first["output"][0]["id"]}
    await create(proxy, 404, headers=other, input=[item])
    await ask(proxy, "GET", first["id"], 401)


async def test_what_this_proxy_does_not_do(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_keeping(upstream)
    first = await create(proxy)
    error = await ask(proxy, "POST", f"{first['id']}/cancel", 400)
    assert error["message"].startswith("Cannot cancel a synchronous response.")
    await ask(proxy, "POST", "resp_1/cancel", 404)
    assert "compacts no conversations" in (await ask(proxy, "POST", "compact", 404))["message"]
    await ask(proxy, "PUT", first["id"], 405)
    for query in ("stream=maybe", "starting_after=1", "stream=true&starting_after=x", "x=1"):
        await ask(proxy, "GET", f"{first['id']}?{query}", 400)


async def test_nothing_is_read_for_what_is_refused_anyway(
    upstream: Upstream, start_keeping: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_keeping(upstream, models=["m"])
    first = await create(proxy)

    async def get(owner: str, id: str) -> None:
        raise AssertionError("the response is not to be read")

    monkeypatch.setattr(proxy.service.state.responses, "get", get)
    error = await create(proxy, 400, previous_response_id=first["id"], temperature=3)
    assert error["param"] == "temperature"
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert (await create(proxy, 400, input=[reference], top_p=2))["param"] == "top_p"


async def test_stored_completions_are_others(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_proxy(upstream, store={"path": str(tmp_path / "kept.sqlite")})
    first = await create(proxy)
    async with await proxy.chat(store=True) as answer:
        completion = await answer.json()
    status, page = await proxy.get("/v1/chat/completions")
    assert status == 200 and [one["id"] for one in page["data"]] == [completion["id"]]
    assert (await proxy.get(f"/v1/chat/completions/{first['id']}"))[0] == 404
    await ask(proxy, "GET", completion["id"], 404)


async def test_workers_without_a_store_keep_nothing(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [says("One")]
    proxy = await start_proxy(upstream, server={"workers": 2})
    async with proxy.session.post(proxy.url(PATH), json={"model": "m", "input": "a"}) as answer:
        response = await answer.json()
        assert "workers" in answer.headers["x-wellspoken-warning"]
    assert response["store"] is False
    error = await create(proxy, 400, previous_response_id=response["id"])
    assert error["param"] == "previous_response_id" and "store.path" in error["message"]
    assert "store.path" in (await ask(proxy, "GET", response["id"], 400))["message"]
    strict = await start_proxy(upstream, server={"workers": 2}, store={"missing": "refuse"})
    assert (await create(strict, 400, store=True))["param"] == "store"


async def test_a_chain_of_many_turns(upstream: Upstream, start_keeping: StartProxy) -> None:
    upstream.scripts = [says("x")]
    proxy = await start_keeping(upstream)
    previous = None
    for turn in range(40):
        previous = (await create(proxy, previous_response_id=previous, input=str(turn)))["id"]
    assert len(messages(upstream)) == 79
    assert messages(upstream)[-1] == ("user", "39")


async def test_two_proxies_share_a_database(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path, postgres: Server
) -> None:
    """A response can be continued on the other proxy as soon as its client has it."""
    upstream.scripts = [says("x")]
    url = postgres.database()
    proxies = [
        await start_proxy(upstream, store={"url": url, "spool": str(tmp_path / name)})
        for name in ("a.db", "b.db")
    ]
    previous = None
    for turn in range(20):
        proxy = proxies[turn % 2]
        previous = (await create(proxy, previous_response_id=previous, input=str(turn)))["id"]
        await ask(proxies[(turn + 1) % 2], "GET", previous)
    assert len(messages(upstream)) == 39
