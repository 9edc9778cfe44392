"""Stored completions: list, retrieve, change the metadata of and delete what was kept.

Everybody sees what their own key stored and nothing else: another's id is answered as one that
never was, from the same query, so that not even the time tells them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from msgspec import json, structs

from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.stored import (
    DEFAULT,
    decode_completions,
    decode_messages,
    decode_update,
)
from wellspoken.proxy.endpoints import stored_views
from wellspoken.proxy.http.requests import query_of
from wellspoken.proxy.http.responses import JSON, EventStream, Reply
from wellspoken.proxy.relay.call import Call, Handler, Route
from wellspoken.proxy.relay.send import LARGE
from wellspoken.proxy.relay.storing import store_failure
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.rows import Query, Row

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore

ROOTS: Final = ("/v1/chat/completions", "/chat/completions")
_LONGEST: Final = 512
"""Characters of an id; ours have 33, but what was imported has the ones that it came with."""
_TOGETHER: Final = 8 * 1024 * 1024
"""Bytes of rows that a page holds at a time, unless one row alone has more."""
_CHANGE: Final = 1024 * 1024
"""Bytes of a body with new metadata. OpenAI's bounds leave a tenth of that, however escaped, and to
decode millions of pairs would keep everybody waiting."""
_DELETED: Final = b'{"object":"chat.completion.deleted","id":%b,"deleted":true}'


def routes(path: str) -> tuple[Route, ...]:
    """Return what a path answers beside POST of the list's own, which is the chat endpoint."""
    for root in ROOTS:
        if path == root:
            return _LIST
        if path.startswith(f"{root}/"):
            name, slash, below = path[len(root) + 1 :].partition("/")
            if name and not slash:
                return _ONE
            if name and below == "messages":
                return _MESSAGES
    return ()


def _with_store(
    handler: Callable[[Call, CompletionStore], Awaitable[Reply | EventStream]],
) -> Handler:
    """Give a handler the store. Raises RequestError: 404 where there is none, 503 if it fails."""

    @wraps(handler)
    async def handle(call: Call) -> Reply | EventStream:
        store = call.state.store
        if store is None:
            raise RequestError(
                "This server stores no completions. Configure store.path (SQLite) or store.url "
                "(PostgreSQL), then create them with 'store': true.",
                status=404,
                code="store_not_configured",
            )
        try:
            return await handler(call, store)
        except StoreError as error:
            raise store_failure(call, error) from error

    return handle


@_with_store
async def completions(call: Call, store: CompletionStore) -> Reply | EventStream:
    """List stored completions, a page at a time. Raises RequestError, StoreError."""
    wanted = decode_completions(query_of(call.request), bounds=call.state.router.bounds)
    position = None
    if wanted.after is not None:
        if len(wanted.after) <= _LONGEST:
            position = await store.position(call.routing.owner, wanted.after)
        if position is None:
            raise _no_cursor(wanted.after, "no stored completion")
    query = Query(
        owner=call.routing.owner,
        limit=wanted.limit + 1,  # one more says whether there are more
        model=wanted.model,
        metadata=wanted.metadata,
        after=position,
        descending=wanted.descending,
        messages=False,
    )
    coming = _Coming(store, query, query.limit)
    rows = await coming.next()
    while _size(rows) < LARGE:
        further = await coming.next()
        if not further:
            shown, more = rows[: wanted.limit], len(rows) > wanted.limit
            return await _reply(call, shown, partial(stored_views.completions, shown, more))
        rows += further
    if call.request.method == "HEAD":  # its length is not worth making the page
        stream = call.stream(200, JSON)
        await stream.end()
        return stream
    return await _in_pieces(call, rows, coming, wanted.limit)


@_with_store
async def completion(call: Call, store: CompletionStore) -> Reply:
    """Return one stored completion. Raises RequestError 404, StoreError."""
    id = _id(call)
    row = _require(await store.get(call.routing.owner, id), id)
    return await _reply(call, [row], partial(stored_views.completion, row))


@_with_store
async def update(call: Call, store: CompletionStore) -> Reply:
    """Replace the metadata of a completion and return it. Raises RequestError, StoreError."""
    id = _id(call)
    body = await call.read_body()
    if len(body) > _CHANGE:
        raise RequestError(
            f"The request's body has more than {_CHANGE} bytes. Send less metadata.",
            status=413,
            param="metadata",
            code="request_too_large",
        )
    metadata = decode_update(body, bounds=call.state.router.bounds)
    row = _require(await store.set_metadata(call.routing.owner, id, metadata), id)
    return await _reply(call, [row], partial(stored_views.completion, row))


@_with_store
async def delete(call: Call, store: CompletionStore) -> Reply:
    """Delete a stored completion. Raises RequestError 404, StoreError."""
    id = _id(call)
    row = _require(await store.delete(call.routing.owner, id), id)
    return call.reply(200, _DELETED % json.encode(row.id))


@_with_store
async def messages(call: Call, store: CompletionStore) -> Reply:
    """List the messages that a stored completion answers. Raises RequestError, StoreError."""
    id = _id(call)
    wanted = decode_messages(query_of(call.request))
    row = _require(await store.get(call.routing.owner, id), id)

    def page() -> bytes:
        found = stored_views.messages(row, wanted.after, wanted.limit, wanted.descending)
        if found is None:
            raise _no_cursor(wanted.after or "", "no message of this completion")
        return stored_views.page(*found)

    return await _reply(call, [row], page)


async def _reply(call: Call, rows: list[Row], make: Callable[[], bytes]) -> Reply:
    """Answer what `make` makes of rows: in a thread where that takes its time."""
    return call.reply(200, make() if _size(rows) < LARGE else await asyncio.to_thread(make))


async def _in_pieces(call: Call, rows: list[Row], coming: _Coming, limit: int) -> EventStream:
    """Answer a page row by row, as fast as the client reads.

    To join a hundred large answers would hold the interpreter for longer than others can wait, and
    nobody needs to have all of them in memory.
    """
    made = await asyncio.to_thread(stored_views.completion, rows[0])
    ids: list[str] = []
    seen = 0
    stream = call.stream(200, JSON)
    try:
        while rows:
            for row in rows[: limit - len(ids)]:
                if ids:
                    made = await asyncio.to_thread(stored_views.completion, row)
                await stream.write((b"," if ids else stored_views.OPENING) + made)
                ids.append(row.id)
            seen += len(rows)
            rows = await coming.next()
        await stream.end(stored_views.closing(ids, seen > limit))
    except BaseException:
        stream.abort()
        raise
    return stream


@dataclass(slots=True)
class _Coming:
    """The rows that a query names, some at a time: as many as are no burden in memory."""

    store: CompletionStore
    query: Query
    left: int
    together: int = DEFAULT + 1

    async def next(self) -> list[Row]:
        """Return the rows that come next; none at the end. Raises StoreError."""
        if not self.left:
            return []
        wanted = min(self.left, self.together)
        found = await self.store.find(structs.replace(self.query, limit=wanted))
        # A slow client may take hours over a page: what does not fit is read again later.
        rows = _take_fitting(found)
        self.left = self.left - len(rows) if len(found) == wanted else len(found) - len(rows)
        if rows:
            self.query = structs.replace(self.query, after=rows[-1].position)
            self.together = max(1, _TOGETHER * len(rows) // (_size(rows) + 1))
        return rows


def _take_fitting(rows: list[Row]) -> list[Row]:
    """Return the first of rows, as many as may be held, and one in any case."""
    size = 0
    for count, row in enumerate(rows):
        size += row.size
        if count and size > _TOGETHER:
            return rows[:count]
    return rows


def _size(rows: list[Row]) -> int:
    return sum(row.size for row in rows)


def _id(call: Call) -> str:
    """Return the id that a path names; raise RequestError 404 for what can be none."""
    id = unquote(call.path.partition("/chat/completions/")[2].partition("/")[0])
    if len(id) > _LONGEST:
        raise _unknown(id)
    return id


def _require(row: Row | None, id: str) -> Row:
    if row is None:
        raise _unknown(id)
    return row


def _unknown(id: str) -> RequestError:
    return RequestError(
        f"No stored chat completion has the id '{short(id)}'. Those that were created with "
        "'store': true and not deleted since are listed at GET /v1/chat/completions.",
        status=404,
        param="completion_id",
        code="completion_not_found",
    )


def _no_cursor(after: str, what: str) -> RequestError:
    return RequestError(
        f"Invalid 'after': {what} has the id '{short(after)}'. Send the last id of a page; if that "
        "was deleted since, begin again without 'after'.",
        param="after",
        code="invalid_value",
    )


_LIST: Final = (Route("GET", "stored_completions", completions, asks=True),)
_ONE: Final = (
    Route("GET", "stored_completion", completion, asks=True),
    Route("POST", "stored_completion", update, asks=True),
    Route("DELETE", "stored_completion", delete, asks=True),
)
_MESSAGES: Final = (Route("GET", "stored_messages", messages, asks=True),)
