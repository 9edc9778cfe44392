"""The API over stored completions: pages, single ones, their messages and metadata."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.fakes.responses import response
from tests.fakes.upstream import DONE, Upstream, stream, whole
from tests.openapi.stored_schema import (
    ChatCompletionDeleted,
    ChatCompletionMessageList,
    StoredChatCompletion,
)
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.stored import (
    CREATED,
    ONE,
    SQLITE,
    Json,
    Storing,
    ask,
    capture,
    every_way_refused,
    id_of,
    ids,
    refused,
    storing,
)
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from wellspoken.proxy.store.database_responses import DatabaseResponses

__all__ = ["storing"]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_was_answered_can_be_read_again(
    upstream: Upstream, storing: Storing, streams: bool
) -> None:
    upstream.scripts = [stream(*EVENTS, DONE) if streams else whole(PLAIN)]
    proxy = await storing()
    sent: Json = {"store": True, "metadata": {"a": "b"}, "temperature": 0.5, "seed": 7}
    async with await proxy.chat(stream=streams, **sent) as response:
        text = await response.text()
        request_id = response.headers["x-request-id"]
    first = json.loads(text.partition("data: ")[2].partition("\n")[0] if streams else text)
    status, found = await ask(proxy, "GET", f"{CHAT}/{first['id']}")
    assert status == 200
    msgspec.json.decode(json.dumps(found), type=StoredChatCompletion)
    assert (found["request_id"], found["metadata"]) == (request_id, {"a": "b"})
    assert (found["temperature"], found["seed"], found["top_p"]) == (0.5, 7, None)
    if not streams:
        assert {key: found[key] for key in first} == first
    assert (await ask(proxy, "GET", CHAT))[1]["data"] == [found]
    status, page = await ask(proxy, "GET", f"{CHAT}/{first['id']}/messages")
    assert [(one["role"], one["content"]) for one in page["data"]] == [("user", "Hi")]


async def test_without_store_true_nothing_can_be_read(upstream: Upstream, storing: Storing) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await storing()
    async with await proxy.chat(metadata={"a": "b"}) as response:
        answered = await response.json()
    assert await ids(proxy) == []
    await refused(proxy, 404, "GET", f"{CHAT}/{answered['id']}")


async def test_responses_are_no_completions(storing: Storing) -> None:
    """They lie in the same table, and none of these endpoints shows, changes or deletes one."""
    kept = response(2, created=CREATED, metadata={"topic": "x"})
    proxy = await storing(capture(1, metadata={"topic": "x"}), kept, capture(3, model="a"))
    for query, wanted in (
        ("", [1, 3]),
        ("order=desc", [3, 1]),
        ("limit=1", [1]),
        ("model=m", [1]),
        ("metadata[topic]=x", [1]),
        (f"after={id_of(1)}", [3]),
    ):
        assert await ids(proxy, query) == wanted
    await every_way_refused(proxy, kept.id)
    await refused(proxy, 400, "GET", f"{CHAT}?after={kept.id}")
    store = proxy.service.state.store
    assert store is not None and await DatabaseResponses(store).get("", kept.id) == kept


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_are_the_whole_once(storing: Storing, limit: int, order: str) -> None:
    proxy = await storing(*(capture(n) for n in (1, 2, 3, 4, 5, 6, 7)))
    found: list[str] = []
    after, more, pages = "", True, 0
    while more:
        query = f"limit={limit}&order={order}&after={after}"
        _, page = await ask(proxy, "GET", f"{CHAT}?{query}")
        found += [one["id"] for one in page["data"]]
        assert (page["first_id"], page["last_id"]) == (found[limit * pages], found[-1])
        after, more, pages = page["last_id"], page["has_more"], pages + 1
    whole = [id_of(n) for n in range(1, 8)]
    assert found == (whole if order == "asc" else whole[::-1])
    assert pages == -(-7 // limit)


async def test_twenty_are_on_a_page_where_nobody_says(storing: Storing) -> None:
    proxy = await storing(*(capture(n) for n in range(21)))
    status, page = await ask(proxy, "GET", CHAT)
    assert (status, len(page["data"]), page["has_more"]) == (200, 20, True)
    assert await ids(proxy, f"after={page['last_id']}") == [20]
    assert await ids(proxy, f"after={id_of(20)}") == []


async def test_filters(storing: Storing) -> None:
    proxy = await storing(
        capture(1, model="a", metadata={"topic": "x", "lang": "é &"}),
        capture(2, model="b", metadata={"topic": "x"}),
        capture(3, model="a", metadata={"topic": "y", "a.b[0]": '"'}),
        capture(4, model="org/a"),
    )
    assert await ids(proxy) == [1, 2, 3, 4]
    assert await ids(proxy, "model=a") == [1, 3]
    assert await ids(proxy, "model=org%2Fa") == await ids(proxy, "model=org/a") == [4]
    assert await ids(proxy, "model=") == await ids(proxy, "model=A") == []
    assert await ids(proxy, "metadata[topic]=x") == [1, 2]
    assert await ids(proxy, "metadata%5Btopic%5D=x&order=desc") == [2, 1]
    assert await ids(proxy, f"metadata[topic]=x&metadata[lang]={quote('é &')}") == [1]
    assert await ids(proxy, "metadata[topic]=x&metadata[lang]=other") == []
    assert await ids(proxy, f"metadata[{quote('a.b[0]')}]=%22&model=a") == [3]
    assert await ids(proxy, f"metadata[topic]=x&after={id_of(1)}") == [2]
    assert await ids(proxy, f"model=a&after={id_of(2)}") == [3]  # a cursor need not be in the list


@SQLITE
@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("order=up", "order", "invalid_value"),
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=abc", "limit", "invalid_type"),
        ("metadata=x", "metadata", "invalid_value"),
        (f"metadata[{'k' * 65}]=v", "metadata", "property_name_above_max_length"),
        ("ordr=desc", "ordr", "unknown_parameter"),
        ("model=%ff", None, "invalid_value"),
    ],
)
async def test_a_wrong_query_is_400(
    storing: Storing, query: str, param: str | None, code: str
) -> None:
    proxy = await storing(capture(1))
    paths = [CHAT, "/chat/completions"]
    if param in ("order", "limit"):
        paths += [f"{ONE}/messages"]
    for path in paths:
        error = await refused(proxy, 400, "GET", f"{path}?{query}")
        assert (error["param"], error["code"]) == (param, code)
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "after", [id_of(9), id_of(2), "x", "%00", "%20", "%C3%A9", "%F0", "y" * 513, id_of(3)]
)
async def test_a_cursor_that_is_not_there_is_400(storing: Storing, after: str) -> None:
    proxy = await storing(capture(1), capture(2), capture(3, owner="another"))
    assert (await ask(proxy, "DELETE", f"{CHAT}/{id_of(2)}"))[0] == 200
    error = await refused(proxy, 400, "GET", f"{CHAT}?after={after}")
    if after != "%F0":  # no UTF-8
        assert error["param"] == "after"
        assert "no stored completion has the id" in error["message"]
    error = await refused(proxy, 400, "GET", f"{ONE}/messages?after={after}")
    assert error["code"] == "invalid_value"


async def test_the_messages_of_one(storing: Storing) -> None:
    messages = [{"role": "user", "content": str(n)} for n in range(30)]
    proxy = await storing(capture(1, messages=messages), capture(2))
    status, page = await ask(proxy, "GET", f"{ONE}/messages")
    assert status == 200
    msgspec.json.decode(json.dumps(page), type=ChatCompletionMessageList)
    assert [one["content"] for one in page["data"]] == [str(n) for n in range(20)]
    assert (page["first_id"], page["has_more"]) == (f"{id_of(1)}-0", True)
    query = f"after={page['last_id']}&limit=4"
    _, page = await ask(proxy, "GET", f"{ONE}/messages?{query}")
    assert [one["content"] for one in page["data"]] == ["20", "21", "22", "23"]
    _, page = await ask(proxy, "GET", f"{ONE}/messages?{query}&order=desc")
    assert [one["content"] for one in page["data"]] == ["18", "17", "16", "15"]


async def test_metadata_is_replaced(storing: Storing) -> None:
    proxy = await storing(capture(1, metadata={"a": "b", "c": "d"}), capture(2))
    for body, wanted in (
        ({"metadata": {"c": "é", "e": ""}}, {"c": "é", "e": ""}),
        ({"metadata": {}}, {}),
        ({"metadata": {"x": "y"}}, {"x": "y"}),
        ({"metadata": None}, {}),
    ):
        status, found = await ask(proxy, "POST", ONE, body)
        assert status == 200
        msgspec.json.decode(json.dumps(found), type=StoredChatCompletion)
        assert found["metadata"] == wanted
        assert (await ask(proxy, "GET", ONE))[1] == found
    await ask(proxy, "POST", ONE, {"metadata": {"k": "v"}})
    assert await ids(proxy, "metadata[k]=v") == [1]
    assert await ids(proxy, "metadata[a]=b") == []


@SQLITE
@pytest.mark.parametrize(
    "metadata", [7, {"a": 1}, {f"k{n}": "v" for n in range(17)}, {"k" * 65: "v"}, {"k": "v" * 513}]
)
async def test_an_update_is_refused_as_the_creation_is(storing: Storing, metadata: Any) -> None:
    proxy = await storing(capture(1, metadata={"a": "b"}))
    updated = await refused(proxy, 400, "POST", ONE, {"metadata": metadata})
    assert updated == await proxy.error(400, metadata=metadata, store=True)
    assert (await ask(proxy, "GET", ONE))[1]["metadata"] == {"a": "b"}


@SQLITE
async def test_what_is_no_update(storing: Storing) -> None:
    proxy = await storing(capture(1))
    error = await refused(proxy, 400, "POST", ONE, {})
    assert (error["param"], error["code"]) == ("metadata", "missing_required_parameter")
    error = await refused(proxy, 400, "POST", ONE, {"metadata": {}, "choices": []})
    assert (error["param"], error["code"]) == ("choices", "unknown_parameter")
    kind = {"Content-Type": "text/plain"}
    await refused(proxy, 415, "POST", ONE, {"metadata": {}}, headers=kind)


async def test_a_deleted_one_is_gone(storing: Storing) -> None:
    proxy = await storing(capture(1), capture(2))
    status, found = await ask(proxy, "DELETE", ONE)
    assert (status, found) == (
        200,
        {"object": "chat.completion.deleted", "id": id_of(1), "deleted": True},
    )
    msgspec.json.decode(json.dumps(found), type=ChatCompletionDeleted)
    assert await ids(proxy) == [2]
    await every_way_refused(proxy, id_of(1))
