"""Which rows every database finds, and in which order: on SQLite and on PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec import structs

from tests.proxy.store.conftest import everything, numbers, plain, row
from wellspoken.proxy.store.database import Database
from wellspoken.proxy.store.rows import Query, Row

# Pages.


async def test_pages_in_both_orders(database: Database) -> None:
    await database.insert([row(at, created=at // 4) for at in range(23)])
    for limit in (1, 2, 5, 23, 100):
        query = Query(owner="ann", limit=limit)
        assert numbers(await everything(database, query)) == list(range(23))
        query = structs.replace(query, descending=True)
        assert numbers(await everything(database, query)) == list(range(22, -1, -1))


async def test_rows_of_one_second_stand_as_they_came(database: Database) -> None:
    came = [5, 3, 9, 1, 7]
    await database.insert([row(at, created=50) for at in came[:2]])
    await database.insert([row(at, created=50) for at in came[2:]])
    await database.insert([row(4, created=49), row(6, created=51)])
    assert numbers(await everything(database, Query(owner="ann", limit=2))) == [4, *came, 6]
    query = Query(owner="ann", limit=2, descending=True)
    assert numbers(await everything(database, query)) == [6, *reversed(came), 4]


async def test_a_page_goes_on_behind_a_row(database: Database) -> None:
    await database.insert([row(at, created=at // 2) for at in range(10)])
    after = await database.position("ann", "chatcmpl-4")
    assert after is not None and after.created == 2
    await database.delete("ann", "chatcmpl-4")  # a position stays good without its row
    query = Query(owner="ann", limit=3, after=after)
    assert numbers(await database.find(query)) == [5, 6, 7]
    assert numbers(await database.find(structs.replace(query, descending=True))) == [3, 2, 1]
    assert await database.position("ann", "chatcmpl-4") is None


async def test_since_and_until(database: Database) -> None:
    await database.insert([row(at, created=at // 2, owner=f"{at % 2}") for at in range(20)])
    for descending in (False, True):
        query = Query(owner=None, limit=3, since=3, until=7, descending=descending)
        found = numbers(await everything(database, query))
        assert sorted(found) == list(range(6, 14))
        assert found == sorted(found, reverse=descending)
    assert numbers(await database.find(Query(owner="0", limit=9, since=9))) == [18]
    assert numbers(await database.find(Query(owner="1", limit=9, until=1))) == [1]
    assert await database.find(Query(owner=None, limit=9, since=7, until=3)) == []


async def test_since_does_not_bring_back_what_is_behind(database: Database) -> None:
    await database.insert([row(at) for at in range(10)])
    early = await database.position("ann", "chatcmpl-2")
    late = await database.position("ann", "chatcmpl-7")
    query = Query(owner="ann", limit=20, since=4, until=9)
    assert numbers(await database.find(structs.replace(query, after=early))) == [4, 5, 6, 7, 8]
    assert numbers(await database.find(structs.replace(query, after=late))) == [8]
    query = structs.replace(query, descending=True)
    assert numbers(await database.find(structs.replace(query, after=early))) == []
    assert numbers(await database.find(structs.replace(query, after=late))) == [6, 5, 4]


async def test_messages_only_where_they_are_wanted(database: Database) -> None:
    await database.insert([row(1, metadata={"k": "v"})])
    for metadata in ({}, {"k": "v"}):
        query = Query(owner="ann", limit=1, metadata=metadata, messages=False)
        (brief,) = await database.find(query)
        assert plain(brief) == structs.replace(row(1, metadata={"k": "v"}), messages=b"")


# Filters.


def _many(count: int) -> list[Row]:
    """Return rows of two owners with frequent values and rare ones, some never together."""
    draw = random.Random(5)
    rows = []
    for at in range(count):
        metadata = {"env": "prod" if draw.random() < 0.9 else "dev", "team": f"t{at % 7}"}
        metadata["kind"] = f"k{at % 7}"
        if at % 97 == 3:
            metadata["rare"] = "yes"
        owner = "bob" if at % 5 == 0 else "ann"
        rows.append(row(at, owner=owner, created=at // 3, model=f"m{at % 3}", metadata=metadata))
    return rows


def _wants(query: Query) -> Callable[[Row], bool]:
    def wanted(each: Row) -> bool:
        return (
            query.owner in (None, each.owner)
            and query.model in (None, each.model)
            and query.metadata.items() <= each.metadata.items()
            and (query.since is None or each.created >= query.since)
            and (query.until is None or each.created < query.until)
        )

    return wanted


FILTERS: dict[str, tuple[str | None, dict[str, str]]] = {
    "a model": ("m1", {}),
    "a pair": (None, {"team": "t3"}),
    "a frequent pair and a rare one": (None, {"env": "prod", "rare": "yes"}),
    "a rare pair and a frequent one": (None, {"rare": "yes", "env": "prod"}),
    "a model and a pair": ("m2", {"team": "t3"}),
    "a model, a frequent pair and a rare one": ("m0", {"env": "prod", "rare": "yes"}),
    "frequent pairs that never meet": (None, {"team": "t3", "kind": "k4"}),
    "a value that nobody has": (None, {"team": "t33"}),
    "a key that nobody has": (None, {"teams": "t3"}),
    "a value under another key": (None, {"kind": "t3"}),
    "a model that nobody has": ("t3", {}),
    "a pair and its key in capitals": (None, {"TEAM": "t3"}),
}


async def test_filters(database: Database) -> None:
    rows = _many(700)
    await database.insert(rows)
    found_any = 0
    for model, metadata in FILTERS.values():
        for owner in ("ann", "bob", None):
            for since, until in ((None, None), (50, 150)):
                query = Query(
                    owner=owner, limit=40, model=model, metadata=metadata, since=since, until=until
                )
                expected = numbers([each for each in rows if _wants(query)(each)])
                assert numbers(await everything(database, query)) == expected
                query = structs.replace(query, descending=True)
                assert numbers(await everything(database, query)) == expected[::-1]
                found_any += len(expected)
    assert found_any > 1000


async def test_sixteen_pairs_must_all_be_there(database: Database) -> None:
    pairs = {f"k{at}": f"v{at}" for at in range(16)}
    await database.insert(
        [row(1, metadata=pairs)]
        + [row(2 + at, metadata=pairs | {f"k{at}": "other"}) for at in range(16)]
    )
    query = Query(owner="ann", limit=20, model="m", metadata=pairs)
    assert numbers(await database.find(query)) == [1]
    del pairs["k5"]
    query = structs.replace(query, metadata=pairs, descending=True)
    assert numbers(await database.find(query)) == [7, 1]


async def test_pairs_do_not_run_together(database: Database) -> None:
    await database.insert([row(1, metadata={"ab": "c", "x": "y=z"}), row(2, owner="an")])
    for metadata in ({"a": "bc"}, {"abc": ""}, {"x=y": "z"}, {"ab": "y=z"}, {"": "abc"}):
        assert await database.find(Query(owner="ann", limit=5, metadata=metadata)) == []
    assert await database.find(Query(owner="an", limit=5, model="nm")) == []


# Changes.
