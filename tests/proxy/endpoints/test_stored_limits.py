"""What the API over stored completions costs a proxy at most, whoever asks and however slowly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, Proxy, raw
from tests.proxy.endpoints.stored import (
    CREATED,
    ONE,
    SQLITE,
    Storing,
    ask,
    capture,
    ids,
    refused,
    storing,
)
from tests.proxy.endpoints.test_chat_body import PLAIN
from wellspoken.proxy.endpoints import stored as stored_completions
from wellspoken.proxy.store.rows import Row

__all__ = ["storing"]

SIZE = 200_000
HEAD = f"HEAD {CHAT}?limit=100 HTTP/1.1\r\nHost: x\r\n"


def reading(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list to which every read of a page adds how many rows it brought."""
    store, counts = proxy.service.state.store, []
    assert store is not None
    find = store.find

    async def counting(query: Any) -> list[Row]:
        rows = await find(query)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(store, "find", counting)
    return counts


@SQLITE
async def test_the_head_of_a_large_page_costs_no_page(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await storing(*(capture(n, text="x" * SIZE) for n in range(30)))
    counts = reading(proxy, monkeypatch)
    after = f"GET {CHAT}?limit=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = await raw(proxy.port, f"{HEAD}\r\n{after}".encode())
    head, _, rest = answers.partition(b"\r\n\r\n")
    assert b" 200 " in head
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")  # no body of the first came between
    assert counts == [21, 2]


@SQLITE
async def test_rows_that_are_too_many_at_once_are_read_again_later(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_completions, "_TOGETHER", 3 * SIZE + SIZE // 2)
    proxy = await storing(*(capture(n, text="x" * SIZE) for n in range(30)))
    held: list[int] = []
    fitting = stored_completions._take_fitting

    def watching(rows: list[Row]) -> list[Row]:
        kept = fitting(rows)
        held.append(len(kept))
        return kept

    monkeypatch.setattr(stored_completions, "_take_fitting", watching)
    for limit, more in ((1, True), (20, True), (29, True), (30, False), (100, False)):
        status, page = await ask(proxy, "GET", f"{CHAT}?limit={limit}")
        assert status == 200
        assert [one["created"] - CREATED for one in page["data"]] == list(range(min(limit, 30)))
        assert page["has_more"] == more
    assert max(held) == 3


@SQLITE
async def test_a_row_larger_than_what_is_held_still_comes(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_completions, "_TOGETHER", SIZE // 2)
    proxy = await storing(*(capture(n, text="x" * SIZE) for n in range(3)))
    assert await ids(proxy, "order=desc") == [2, 1, 0]


@pytest.mark.parametrize("bounds", ["openai", "backend"])
async def test_filters_are_few_whatever_a_backend_takes(storing: Storing, bounds: str) -> None:
    pairs = {f"k{n}": "v" for n in range(16)}
    proxy = await storing(capture(1, metadata=pairs), bounds=bounds)
    query = "&".join(f"metadata[{key}]=v" for key in pairs)
    assert await ids(proxy, query) == [1]
    error = await refused(proxy, 400, "GET", f"{CHAT}?{query}&metadata[more]=v")
    assert (error["param"], error["code"]) == ("metadata", "object_above_max_properties")


@pytest.mark.parametrize("bounds", ["openai", "backend"])
async def test_a_change_is_small_whatever_a_backend_takes(
    storing: Storing, monkeypatch: pytest.MonkeyPatch, bounds: str
) -> None:
    monkeypatch.setattr(stored_completions, "_CHANGE", 2**17)
    proxy = await storing(capture(1), bounds=bounds)
    pairs = {str(n): "" for n in range(1025)}
    error = await refused(proxy, 400, "POST", ONE, {"metadata": pairs})
    assert (error["param"], error["code"]) == ("metadata", "object_above_max_properties")
    error = await refused(proxy, 413, "POST", ONE, {"metadata": {"k": "v" * 2**17}})
    assert (error["param"], error["code"]) == ("metadata", "request_too_large")
    longest = {f"{n:02}".ljust(64, "\U0001f600"): "\U0001f600" * 512 for n in range(16)}
    status, changed = await ask(proxy, "POST", ONE, {"metadata": longest})
    assert (status, changed["metadata"]) == (200, longest)


async def test_what_is_to_be_stored_has_few_pairs(storing: Storing, upstream: Upstream) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await storing(bounds="backend")
    error = await proxy.error(400, store=True, metadata={str(n): "" for n in range(1025)})
    assert (error["param"], error["code"]) == ("metadata", "object_above_max_properties")
    most = {str(n): "" for n in range(1024)}
    async with await proxy.chat(store=True, metadata=most) as response:
        assert response.status == 200
    assert (await ask(proxy, "GET", CHAT))[1]["data"][0]["metadata"] == most
