"""What every database does for the store: one file, run on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec import structs

from tests.proxy.store.conftest import Connect, everything, numbers, plain, row
from wellspoken.proxy.store.database import Database, Unavailable
from wellspoken.proxy.store.rows import Query

FAR = 2**80  # more than a column holds


# Rows come back as they were given.


async def test_a_row_comes_back_whole(database: Database) -> None:
    given = row(7, metadata={"a": "1", "b": "2"})
    await database.insert([given])
    assert plain(await database.get("ann", given.id)) == given
    assert [plain(each) for each in await database.find(Query(owner="ann", limit=5))] == [given]


async def test_columns_are_bytes(database: Database) -> None:
    given = structs.replace(row(1), answer=bytes(range(256)), parameters=b"", messages=b"\0")
    await database.insert([given])
    assert plain(await database.get("ann", given.id)) == given


@pytest.mark.parametrize("text", ["", "a\0b", "\0", "é\U0001f600\u2028", "'\"\\%_;--", "Ǆ ﬀ"])
async def test_any_text_is_kept_and_found(database: Database, text: str) -> None:
    given = row(1, owner=text, model=text, metadata={text: text, "k": "v"})
    given.request_id, given.id = text, f"chatcmpl-1{text}"
    await database.insert([given, row(2)])
    assert plain(await database.get(text, given.id)) == given
    for owner in (text, None):
        query = Query(owner=owner, limit=5, model=text, metadata={text: text})
        assert [plain(each) for each in await database.find(query)] == [given]
    assert await database.find(Query(owner=text, limit=5, metadata={text: text + "\0"})) == []


async def test_metadata_as_large_as_openai_takes_it(database: Database) -> None:
    """Sixteen pairs, keys of 64 and values of 512 characters, each of four bytes."""
    pairs = {f"{at:02}" + "\U0001f511" * 62: "\U0001f4a0" * 512 for at in range(16)}
    await database.insert([row(1, metadata=pairs), row(2)])
    found = await database.find(Query(owner="ann", limit=5, metadata=pairs))
    assert numbers(found) == [1]
    assert found[0].metadata == pairs
    pairs[next(iter(pairs))] += "!"
    assert await database.find(Query(owner="ann", limit=5, metadata=pairs)) == []


async def test_a_column_of_64_mb(database: Database) -> None:
    given = structs.replace(row(1), answer=random.Random(1).randbytes(64_000_000))
    await database.insert([given])
    assert plain(await database.get("ann", given.id)) == given
    assert await database.size() == (1, 64_000_000 + 18)


async def test_a_time_beyond_all_measure_stops_no_other_row(database: Database) -> None:
    given = [row(1, created=FAR), row(2, created=-FAR), row(3)]
    await database.insert(given)
    assert numbers(await database.find(Query(owner="ann", limit=5))) == [2, 3, 1]
    query = Query(owner="ann", limit=5, since=-FAR, until=FAR)
    assert numbers(await database.find(query)) == [2, 3]
    query = Query(owner="ann", limit=5, since=FAR, descending=True)
    assert numbers(await database.find(query)) == [1]
    assert numbers(await database.prune(before=FAR, over=None, limit=5)) == [2, 3]


async def test_text_that_cannot_be_encoded_finds_nothing(database: Database) -> None:
    await database.insert([row(1)])
    lone = "\ud800"
    assert await database.get("ann", lone) is None
    assert await database.get(lone, "chatcmpl-1") is None
    assert await database.position("ann", lone) is None
    assert await database.set_metadata("ann", lone, {}) is None
    assert await database.delete("ann", lone) is None
    assert await database.find(Query(owner="ann", limit=5, metadata={lone: lone})) == []
    assert await database.find(Query(owner="ann", limit=5, model=lone)) == []
    assert await database.size() == (1, 30)


# Whose they are.


async def test_owners_see_their_own_only(database: Database) -> None:
    ours, theirs = row(1, metadata={"k": "v"}), row(2, owner="bob", metadata={"k": "v"})
    await database.insert([ours, theirs, row(3, owner="")])
    assert await database.get("ann", theirs.id) is None
    assert await database.position("ann", theirs.id) is None
    assert await database.set_metadata("ann", theirs.id, {"k": "w"}) is None
    assert await database.delete("ann", theirs.id) is None
    for query in (
        Query(owner="ann", limit=5),
        Query(owner="ann", limit=5, model="m"),
        Query(owner="ann", limit=5, metadata={"k": "v"}),
        Query(owner="ann", limit=5, model="m", metadata={"k": "v"}),
    ):
        assert numbers(await database.find(query)) == [1]
    assert plain(await database.get("bob", theirs.id)) == theirs
    assert numbers(await database.find(Query(owner="", limit=5))) == [3]
    assert numbers(await database.find(Query(owner=None, limit=5))) == [1, 2, 3]


async def test_two_owners_may_have_one_id(database: Database) -> None:
    await database.insert([row(1), row(1, owner="bob", model="other")])
    assert await database.delete("ann", "chatcmpl-1") is not None
    kept = await database.get("bob", "chatcmpl-1")
    assert kept is not None and kept.model == "other"


# Each row once.


async def test_what_is_there_is_skipped(database: Database) -> None:
    await database.insert([row(1, metadata={"k": "first"})])
    again = row(1, metadata={"k": "second"}, model="other", size=99)
    await database.insert([again, row(2), row(2), again])
    assert await database.size() == (2, 60)
    found = await database.get("ann", "chatcmpl-1")
    assert found is not None and found.metadata == {"k": "first"}
    # Nothing of the skipped one is left to be found by.
    assert await database.find(Query(owner="ann", limit=5, metadata={"k": "second"})) == []
    assert await database.find(Query(owner="ann", limit=5, model="other")) == []
    assert numbers(await database.find(Query(owner="ann", limit=5))) == [1, 2]


async def test_no_rows_are_no_work(database: Database) -> None:
    await database.insert([])
    assert await database.size() == (0, 0)


async def test_a_deleted_row_may_come_again(database: Database) -> None:
    await database.insert([row(1, metadata={"k": "v"})])
    first = await database.delete("ann", "chatcmpl-1")
    await database.insert([row(1, metadata={"k": "v"})])
    second = await database.get("ann", "chatcmpl-1")
    assert first is not None and second is not None
    # Not the same position: who stands behind the first one has not seen this.
    assert second.seq > first.seq
    assert numbers(await database.find(Query(owner="ann", limit=5, metadata={"k": "v"}))) == [1]


async def test_metadata_is_replaced(database: Database) -> None:
    await database.insert([row(1, metadata={"a": "1", "b": "2"}), row(2, metadata={"a": "1"})])
    before = await database.get("ann", "chatcmpl-1")
    changed = await database.set_metadata("ann", "chatcmpl-1", {"b": "3", "c": "4"})
    assert plain(changed) == row(1, metadata={"b": "3", "c": "4"})
    assert changed == await database.get("ann", "chatcmpl-1")
    assert before is not None and changed is not None and before.seq == changed.seq
    for metadata, found in (
        ({"a": "1"}, [2]),
        ({"b": "2"}, []),
        ({"b": "3"}, [1]),
        ({"b": "3", "c": "4"}, [1]),
    ):
        query = Query(owner="ann", limit=5, metadata=metadata)
        assert numbers(await database.find(query)) == found
    assert await database.size() == (2, 60)


async def test_metadata_is_taken_away_and_set_again(database: Database) -> None:
    await database.insert([row(1, metadata={"a": "1"})])
    for metadata in ({}, {"a": "1"}, {"a": "1"}, {}):
        changed = await database.set_metadata("ann", "chatcmpl-1", metadata)
        assert changed is not None and changed.metadata == metadata
        query = Query(owner="ann", limit=5, metadata={"a": "1"})
        assert numbers(await database.find(query)) == ([1] if metadata else [])
        assert numbers(await database.find(Query(owner="ann", limit=5, model="m"))) == [1]
    assert await database.set_metadata("ann", "chatcmpl-2", {}) is None


async def test_what_is_deleted_is_nowhere(database: Database) -> None:
    await database.insert([row(at, metadata={"a": "1"}) for at in range(3)])
    gone = await database.delete("ann", "chatcmpl-1")
    assert plain(gone) == row(1, metadata={"a": "1"})
    assert await database.delete("ann", "chatcmpl-1") is None
    assert await database.get("ann", "chatcmpl-1") is None
    assert await database.size() == (2, 60)
    for query in (
        Query(owner="ann", limit=5),
        Query(owner=None, limit=5),
        Query(owner="ann", limit=5, model="m"),
        Query(owner="ann", limit=5, metadata={"a": "1"}),
        Query(owner=None, limit=5, metadata={"a": "1"}),
    ):
        assert numbers(await database.find(query)) == [0, 2]


# Pruning.


async def test_the_old_are_pruned_oldest_first(database: Database) -> None:
    await database.insert(
        [row(at, owner=f"{at % 3}", metadata={"a": "1"}) for at in range(9, -1, -1)]
    )
    assert numbers(await database.prune(before=5, over=None, limit=3)) == [0, 1, 2]
    pruned = await database.prune(before=5, over=None, limit=3)
    assert [plain(each) for each in pruned] == [
        row(at, owner=f"{at % 3}", metadata={"a": "1"}) for at in (3, 4)
    ]
    assert await database.prune(before=5, over=None, limit=3) == []
    assert await database.size() == (5, 150)
    query = Query(owner=None, limit=20, metadata={"a": "1"})
    assert numbers(await database.find(query)) == [5, 6, 7, 8, 9]


async def test_what_is_too_much_is_pruned_oldest_first(database: Database) -> None:
    await database.insert([row(at, size=30 + 10 * at) for at in range(6)])  # 330 bytes in all
    assert await database.prune(before=None, over=330, limit=10) == []
    assert numbers(await database.prune(before=None, over=329, limit=10)) == [0]
    assert numbers(await database.prune(before=None, over=200, limit=1)) == [1]
    assert numbers(await database.prune(before=None, over=200, limit=10)) == [2, 3]
    assert await database.size() == (2, 150)
    assert numbers(await database.prune(before=None, over=0, limit=10)) == [4, 5]
    assert await database.size() == (0, 0)
    assert await database.prune(before=FAR, over=0, limit=10) == []


async def test_pruned_by_age_and_by_size_at_once(database: Database) -> None:
    await database.insert([row(at) for at in range(10)])
    # By age 0 and 1; what is left, 240 bytes, is 40 too much: 2 and 3.
    assert numbers(await database.prune(before=2, over=200, limit=100)) == [0, 1, 2, 3]
    assert numbers(await database.prune(before=8, over=200, limit=100)) == [4, 5, 6, 7]
    assert await database.prune(before=None, over=None, limit=100) == []


async def test_a_pruned_batch_fits_into_memory(database: Database) -> None:
    """Rows of 3 MB: no batch goes on behind 16 MiB, and all go when asked again."""
    for at in range(8):
        await database.insert([row(at, size=3_000_000)])
    gone: list[int] = []
    batches = 0
    while batch := await database.prune(before=8, over=None, limit=500):
        assert sum(len(each.answer) for each in batch[:-1]) <= 16 * 1024 * 1024
        gone += numbers(batch)
        batches += 1
    assert gone == list(range(8))
    assert batches > 1


# Together, and after one another.


async def test_many_at_once(database: Database) -> None:
    """Eight write, four read meanwhile: each page is in order and whole."""

    async def write(writer: int) -> None:
        for start in range(writer * 100, writer * 100 + 100, 20):
            await database.insert(
                [
                    row(at, created=at % 5, metadata={"w": str(writer)})
                    for at in range(start, start + 20)
                ]
            )

    async def read() -> None:
        while not done.is_set():
            page = await database.find(Query(owner="ann", limit=50))
            places = [(each.created, each.seq) for each in page]
            assert places == sorted(set(places))
            assert len(page) % 20 == 0 or len(page) == 50  # groups are seen whole or not at all

    done = asyncio.Event()
    readers = [asyncio.create_task(read()) for _ in range(4)]
    try:
        await asyncio.gather(*(write(writer) for writer in range(8)))
    finally:
        done.set()
        await asyncio.gather(*readers)
    assert await database.size() == (800, 24000)
    assert sorted(numbers(await everything(database, Query(owner="ann", limit=90)))) == list(
        range(800)
    )
    query = Query(owner="ann", limit=200, metadata={"w": "3"})
    assert sorted(numbers(await database.find(query))) == list(range(300, 400))


async def test_the_same_rows_by_two_at_once(connect: Connect) -> None:
    """Two proxies open one new database together, and one replays what the other wrote."""
    one, two = connect(), connect()
    try:
        await asyncio.gather(one.open(), two.open())
        rows = [row(at, metadata={"k": "v"}) for at in range(200)]
        await asyncio.gather(
            *(each.insert(rows[at : at + 50]) for at in range(0, 200, 50) for each in (one, two))
        )
        for each in (one, two):
            assert await each.size() == (200, 6000)
            query = Query(owner="ann", limit=300, metadata={"k": "v"})
            assert numbers(await each.find(query)) == list(range(200)) or sorted(
                numbers(await each.find(query))
            ) == list(range(200))
        pruned = await asyncio.gather(
            *(each.prune(before=100, over=None, limit=70) for each in (one, two, one, two))
        )
        assert sorted(numbers([each for batch in pruned for each in batch])) == list(range(100))
        changes = (each.set_metadata("ann", "chatcmpl-150", {"k": "w"}) for each in (one, two))
        await asyncio.gather(*changes)
        await asyncio.gather(*(each.delete("ann", "chatcmpl-151") for each in (one, two)))
        assert await one.size() == await two.size() == (99, 2970)
        query = Query(owner="ann", limit=300, metadata={"k": "w"})
        assert numbers(await one.find(query)) == [150]
    finally:
        await one.close()
        await two.close()


async def test_too_much_is_pruned_once_by_two(connect: Connect) -> None:
    one, two = connect(), connect()
    try:
        await one.open()
        await two.open()
        await one.insert([row(at) for at in range(100)])
        await asyncio.gather(
            *(each.prune(before=None, over=1500, limit=100) for each in (one, two, one, two))
        )
        assert await one.size() == (50, 1500)
    finally:
        await one.close()
        await two.close()


async def test_a_group_is_written_whole_or_not_at_all(connect: Connect) -> None:
    """A second connection never sees a part of a group."""
    one, two = connect(), connect()
    try:
        await one.open()
        await two.open()
        seen = set()
        writing = asyncio.create_task(one.insert([row(at) for at in range(2000)]))
        while not writing.done():
            seen.add((await two.size())[0])
        await writing
        seen.add((await two.size())[0])
        assert seen <= {0, 2000}
        assert 2000 in seen
    finally:
        await one.close()
        await two.close()


async def test_closed_and_opened_again(database: Database) -> None:
    rows = [row(at, metadata={"k": "v"}) for at in range(5)]
    await database.insert(rows)
    before = await database.find(Query(owner="ann", limit=9))
    await database.close()
    await database.close()
    for call in (
        lambda: database.insert(rows),
        lambda: database.get("ann", "chatcmpl-1"),
        lambda: database.find(Query(owner="ann", limit=9)),
        lambda: database.size(),
    ):
        with pytest.raises(Unavailable, match="not open"):
            await call()
    await database.open()
    assert await database.find(Query(owner="ann", limit=9)) == before
    await database.insert([*rows, row(5)])
    await database.open()  # again, though nothing failed
    assert numbers(await database.find(Query(owner="ann", limit=9))) == [0, 1, 2, 3, 4, 5]


async def test_closing_waits_for_what_has_begun(connect: Connect) -> None:
    database = connect()
    await database.open()
    begun = asyncio.create_task(database.insert([row(at) for at in range(1000)]))
    await asyncio.sleep(0)
    await database.close()
    try:
        await begun
        written = 1000
    except Unavailable:
        written = 0
    await database.open()
    try:
        assert (await database.size())[0] in ({1000} if written else {0, 1000})
    finally:
        await database.close()
