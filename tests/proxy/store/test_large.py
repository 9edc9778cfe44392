"""Columns on their way into the database and back: packed, in a place, and what may go wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json, structs

from wellspoken.proxy.store import large
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.large import Columns
from wellspoken.proxy.store.packing import PLACE, ZLIB
from wellspoken.proxy.store.places import Directory, PlaceError, Reason, check_key
from wellspoken.proxy.store.rows import Row

SMALL = b'{"id":"chatcmpl-1"}'
NOISE = json.encode([(at * 0x9E3779B97F4A7C15) % 2**64 for at in range(20_000)])
LIMIT = 64 * 1024


def row(id: str = "chatcmpl-1", owner: str = "", answer: bytes = NOISE) -> Row:
    return Row(id, owner, 1, "m", "req-1", {"k": "v"}, answer, b"{}", b'[{"role":"user"}]')


class Failing:
    """A place that fails as it is told; `work` None: that does not answer."""

    def __init__(self, reason: Reason | None = "unreachable") -> None:
        self.reason = reason
        self.tried: list[str] = []
        self.kept: dict[str, bytes] = {}

    def _do(self, key: str) -> None:
        self.tried.append(key)
        if self.reason is not None:
            raise PlaceError("the bucket cannot be reached", self.reason)

    async def put(self, key: str, data: bytes) -> None:
        self._do(key)
        self.kept[key] = data

    async def get(self, key: str) -> bytes:
        self._do(key)
        if key not in self.kept:
            raise PlaceError("no such object", "missing")
        return self.kept[key]

    async def delete(self, key: str) -> None:
        self._do(key)
        self.kept.pop(key, None)

    async def close(self) -> None:
        self.tried.append("close")


@pytest.fixture
async def columns(tmp_path: Path) -> AsyncIterator[Columns]:
    made = Columns(LIMIT, Directory(tmp_path))
    yield made
    await made.close()


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


async def test_a_large_column_goes_away_and_comes_back(columns: Columns, tmp_path: Path) -> None:
    given = row()
    stored = await columns.away(given)
    assert stored.answer.startswith(PLACE) and len(stored.answer) < 100
    assert (stored.parameters, stored.messages) == (given.parameters, given.messages)
    assert structs.replace(stored, answer=NOISE) == given == row()
    (file,) = _files(tmp_path)
    assert file.read_bytes().startswith(ZLIB)
    assert PLACE + str(file.relative_to(tmp_path)).encode() == stored.answer
    assert await columns.back(stored) == given


async def test_what_is_small_after_packing_stays(columns: Columns, tmp_path: Path) -> None:
    given = row(answer=json.encode("x" * 10 * LIMIT))
    stored = await columns.away(given)
    assert stored.answer.startswith(ZLIB)
    assert _files(tmp_path) == []
    assert await columns.back(stored) == given


async def test_exactly_the_limit_stays_and_one_more_goes(tmp_path: Path) -> None:
    packed = len((await Columns(1, None).away(row())).answer)
    for limit, files in ((packed, 0), (packed - 1, 1)):
        columns = Columns(limit, Directory(tmp_path))
        assert await columns.back(await columns.away(row())) == row()
        assert len(_files(tmp_path)) == files
        await columns.close()


async def test_all_three_columns_and_without_a_place(columns: Columns, tmp_path: Path) -> None:
    given = structs.replace(row(), parameters=NOISE[:-2] + b"7]", messages=NOISE)
    stored = await columns.away(given)
    assert list(large.references(stored)) == ["answer", "parameters", "messages"]
    assert len(_files(tmp_path)) == 3
    assert await columns.back(stored) == given
    whole = await Columns(LIMIT, None).away(given)
    assert list(large.references(whole)) == []
    assert await columns.back(whole) == given


async def test_the_same_row_again_is_the_same_object(columns: Columns, tmp_path: Path) -> None:
    """As when a spool is written to PostgreSQL twice, before or after packing."""
    first = await columns.away(row())
    assert await columns.away(row()) == first
    assert await columns.away(first) == first
    assert len(_files(tmp_path)) == 1


async def test_the_same_id_with_other_content_leaves_the_first_alone(columns: Columns) -> None:
    """As an import of an altered file does, whose row the database then skips."""
    stored = await columns.away(row())
    await columns.away(row(answer=NOISE.replace(b"1", b"2")))
    assert (await columns.back(stored)).answer == NOISE


async def test_owners_and_columns_share_nothing(columns: Columns, tmp_path: Path) -> None:
    rows = [row(owner="a"), row(owner="b"), row("chatcmpl-2", "a")]
    rows += [structs.replace(row(owner="a"), answer=SMALL, messages=NOISE)]
    stored = await columns.away_all(rows)
    assert len(_files(tmp_path)) == 4
    assert await columns.drop(stored[0])
    assert await columns.back_all(stored[1:]) == rows[1:]
    with pytest.raises(Unusable, match="the answer of chatcmpl-1 cannot be read"):
        await columns.back(stored[0])


async def test_a_reference_to_anothers_object_leads_nowhere(columns: Columns) -> None:
    """A forged row, of an import say, must not read or delete what is another's."""
    anothers = await columns.away(row(owner="a"))
    forged = structs.replace(row(owner="b"), answer=anothers.answer)
    with pytest.raises(Unusable, match="its reference is corrupt"):
        await columns.back(forged)
    assert await columns.drop(forged)
    assert (await columns.back(anothers)).answer == NOISE


@pytest.mark.parametrize("reference", [b"@", b"@../../etc/passwd", b"@\xff", b"@" + b"a" * 5000])
async def test_a_corrupt_reference(
    columns: Columns, reference: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Unusable, match="the answer of chatcmpl-1 cannot be read"):
        await columns.back(row(answer=reference))
    assert await columns.drop(row(answer=reference))
    assert "passwd" not in caplog.text, "a column may hold anything"


@settings(deadline=None)
@given(st.text(), st.text(), st.binary(max_size=10))
def test_keys_are_ones_that_places_take(owner: str, id: str, data: bytes) -> None:
    key = large._key(row(id, owner), "answer", data)
    check_key(key)
    assert large._key_of(row(id, owner, PLACE + key.encode()), "answer") == key
    for other in (row(id + "x", owner), row(id, owner + "x")):
        assert large._key_of(structs.replace(other, answer=PLACE + key.encode()), "answer") is None


def test_an_owner_and_an_id_do_not_run_together() -> None:
    assert large._owned(row("bc", "a"), "answer") != large._owned(row("c", "ab"), "answer")
    assert large._owned(row(), "answer") != large._owned(row(), "messages")


def test_the_probe_has_a_key() -> None:
    check_key(large._PROBE)


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
async def test_a_damaged_object_is_no_answer(columns: Columns, tmp_path: Path, damage: str) -> None:
    stored = await columns.away(row())
    (file,) = _files(tmp_path)
    data = file.read_bytes()
    changed = {"cut": data[:-1], "changed": b"x" + data[:-1], "emptied": b""}[damage]
    file.write_bytes(changed)
    with pytest.raises(Unusable, match="is not what was put there"):
        await columns.back(stored)


async def test_a_missing_object_says_which_and_what_to_do(columns: Columns, tmp_path: Path) -> None:
    stored = await columns.away(row())
    (file,) = _files(tmp_path)
    file.unlink()
    with pytest.raises(Unusable) as caught:
        await columns.back(stored)
    said = str(caught.value)
    assert "the answer of chatcmpl-1 cannot be read: store.large_to has no object " in said
    assert "copy its objects here" in said
    assert str(tmp_path) not in said


async def test_a_moved_place_works_once_its_files_are_there(tmp_path: Path) -> None:
    before = Columns(LIMIT, Directory(tmp_path / "old"))
    stored = await before.away(row())
    await before.close()
    with pytest.raises(Unusable, match=r"store\.large_to was, and that is not set now"):
        await Columns(LIMIT, None).back(stored)
    after = Columns(LIMIT, Directory(tmp_path / "new"))
    with pytest.raises(Unusable, match="copy its objects here"):
        await after.back(stored)
    (tmp_path / "old").rename(tmp_path / "new")
    assert await after.back(stored) == row()
    await after.close()


async def test_a_corrupt_column_says_whose(columns: Columns) -> None:
    with pytest.raises(Unusable, match="the answer of chatcmpl-1 cannot be read: a stored column"):
        await columns.back(row(answer=b"xyz"))


async def test_a_place_that_fails_leaves_columns_whole(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, counted = Failing(), list[str]()
    now = 1000.0
    monkeypatch.setattr(large, "time", SimpleNamespace(monotonic=lambda: now))
    columns = Columns(LIMIT, place, count=counted.append)
    rows = [row(f"chatcmpl-{at}") for at in range(20)]
    stored = await columns.away_all(rows)
    assert all(one.answer.startswith(ZLIB) for one in stored)
    assert await columns.back_all(stored) == rows
    assert counted == ["place_unreachable"] * 20
    assert len(place.tried) == 1, "it rests after the first"
    assert [record.getMessage() for record in caplog.records] == [
        "store.large_to: the bucket cannot be reached; large answers stay in the database"
    ]
    for rest in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        place.tried.clear()
        now += rest - 0.01
        await columns.away(row())
        assert place.tried == []
        now += 0.02
        await columns.away(row())
        assert len(place.tried) == 1
    first = caplog.records[0].getMessage()
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"{first} (5 such lines left out before this)",
        first,
        first,
    ]
    place.reason = None
    now += 61
    assert (await columns.away(row())).answer.startswith(PLACE)
    place.reason = "full"
    assert (await columns.away(row())).answer.startswith(ZLIB)
    now += 1.01
    place.reason = None
    assert (await columns.away(row())).answer.startswith(PLACE), "the rest is short again"


async def test_a_place_that_does_not_answer_now(caplog: pytest.LogCaptureFixture) -> None:
    place, counted = Failing(None), list[str]()
    columns = Columns(LIMIT, place, count=counted.append)
    stored = await columns.away(row())
    place.reason = "timeout"
    with pytest.raises(Unavailable, match="the answer of chatcmpl-1 cannot be read"):
        await columns.back(stored)
    assert not await columns.drop(stored)
    assert counted == ["place_timeout"] * 2
    assert stored.answer[1:].decode() in caplog.text, "so that somebody can delete it"
    place.reason = None
    assert await columns.back(stored) == row()
    assert await columns.drop(stored)
    assert place.kept == {}


async def test_a_deletion_with_no_place_is_told(caplog: pytest.LogCaptureFixture) -> None:
    stored = await Columns(LIMIT, Failing(None)).away(row())
    counted: list[str] = []
    without = Columns(LIMIT, None, count=counted.append)
    assert await without.drop_all([stored, stored])
    assert counted == ["place_missing"] * 2
    assert caplog.messages == [
        "store.large_to: it is not set, and what deleted rows have where it was stays there"
    ]
    assert await Columns(LIMIT, None).drop(row(answer=SMALL))


@pytest.mark.parametrize("reason", ["denied", None])
async def test_opening_says_what_is_wrong(
    reason: Reason | None, caplog: pytest.LogCaptureFixture
) -> None:
    place = Failing(reason)
    columns = Columns(LIMIT, place)
    await columns.open()
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == (reason is not None)
    assert place.kept == {}
    await columns.close()
    assert place.tried[-1] == "close"
    without = Columns(LIMIT, None)
    await without.open()
    await without.close()


async def test_a_batch_waits_for_few_objects_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Failing(None)
    running = most = 0

    async def put(key: str, data: bytes) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        place.kept[key] = data

    monkeypatch.setattr(place, "put", put)
    columns = Columns(LIMIT, place)
    rows = [row(f"chatcmpl-{at}") for at in range(30)]
    stored = await columns.away_all(rows)
    assert (most, len(place.kept)) == (8, 30)
    assert await columns.back_all(stored) == rows
    assert await columns.away_all([]) == [] == await columns.back_all([])


async def test_a_page_without_messages_stays_without(columns: Columns) -> None:
    stored = structs.replace(await columns.away(row()), messages=b"")
    assert (await columns.back(stored)).messages == b""


def test_both_errors_are_the_stores() -> None:
    assert issubclass(Unusable, StoreError) and issubclass(Unavailable, StoreError)
