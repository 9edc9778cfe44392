"""The spool: rows in a local file, in order, bounded, shared, and what may be wrong with it."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from tests.fakes.database import row
from tests.proxy.store.conftest import LIMIT, held, names, rows, spool_of
from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.spool import Spool, default_path


async def test_rows_come_back_as_they_went_and_in_order(spool: Spool) -> None:
    await spool.append(rows(5, 8))
    await spool.append(rows(0, 2))
    found = await spool.first(4, LIMIT)
    assert [each for _, each in found] == [*rows(5, 8), row(0)]
    await spool.remove([number for number, _ in found])
    assert await held(spool) == ["c1"]
    assert spool.rows == 1
    await spool.remove([number for number, _ in await spool.first(4, LIMIT)])
    assert (spool.rows, spool.size) == (0, 0)


async def test_reading_is_bounded_in_bytes_but_gets_on(spool: Spool) -> None:
    await spool.append([row(number, size=1000) for number in range(3)])
    assert len(await spool.first(10, 2500)) == 2
    assert len(await spool.first(10, 1)) == 1


async def test_the_file_is_for_its_user_alone_and_survives(tmp_path: Path, spool: Spool) -> None:
    await spool.append(rows(0, 3))
    for name in ("", "-wal", "-shm"):
        mode = Path(f"{spool.path}{name}").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
    await spool.close()
    again = spool_of(tmp_path)
    await again.open()
    assert again.rows == 3
    assert await held(again) == names(0, 3)
    await again.close()


async def test_the_file_is_bounded_and_takes_again_what_was_freed(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, 200_000)
    await spool.open()
    with pytest.raises(Unavailable, match=r"the spool is full \(store.spool_size\)"):
        for number in range(100):
            await spool.append([row(number, size=10_000)])
    kept = await spool.first(1000, LIMIT)
    assert 10 < len(kept) < 20
    await spool.remove([number for number, _ in kept])
    for number in range(10):
        await spool.append([row(number, size=10_000)])
    assert await held(spool) == names(0, 10)
    assert spool.size <= 200_000
    await spool.close()


async def test_the_space_of_an_outage_is_given_back(spool: Spool) -> None:
    await spool.append([row(number, size=20_000) for number in range(200)])
    assert 4_000_000 < spool.size
    await spool.remove([number for number, _ in await spool.first(1000, LIMIT)])
    assert spool.rows == 0
    assert spool.path.stat().st_size < 500_000


async def test_two_processes_may_share_it(tmp_path: Path, spool: Spool) -> None:
    other = spool_of(tmp_path)
    await other.open()
    await asyncio.gather(spool.append(rows(0, 20)), other.append(rows(20, 40)))
    assert sorted(await held(spool)) == sorted(names(0, 40)) == sorted(await held(other))
    await other.close()


async def test_two_processes_may_make_it_at_once(tmp_path: Path) -> None:
    """Whoever makes it holds a lock for a moment, for which SQLite itself does not always wait."""
    spool = spool_of(tmp_path)
    spool.path.parent.mkdir()
    other = sqlite3.connect(spool.path, isolation_level=None)
    other.execute("CREATE TABLE half_made (a)")
    other.execute("BEGIN IMMEDIATE")
    opening = asyncio.create_task(spool.open())
    await asyncio.wait({opening}, timeout=0.3)
    assert not opening.done()
    other.execute("ROLLBACK")
    other.close()
    await opening
    await spool.append(rows(0, 1))
    await spool.close()


async def test_what_cannot_be_read_does_not_block_the_rest(spool: Spool) -> None:
    await spool.append(rows(0, 1))
    with sqlite3.connect(spool.path) as db:
        db.execute("INSERT INTO row (data) VALUES (x'c1')")
    db.close()
    await spool.append(rows(1, 2))
    found = [found for _, found in await spool.first(9, LIMIT)]
    assert found == [row(0), None, row(1)]


@pytest.mark.parametrize("trouble", ["newer", "foreign", "folder"])
async def test_a_file_that_is_no_spool_is_told(tmp_path: Path, trouble: str) -> None:
    spool = spool_of(tmp_path)
    if trouble == "folder":
        (tmp_path / "state").write_text("a file where the folder should be")
    else:
        (tmp_path / "state").mkdir()
        if trouble == "foreign":
            spool.path.write_bytes(b"this is no database" * 100)
        else:
            with sqlite3.connect(spool.path) as db:
                db.execute("PRAGMA user_version = 99")
            db.close()
    with pytest.raises(Unusable, match=r"spool\.db"):
        await spool.open()
    await spool.close()


async def test_a_lock_that_stays_is_told(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, busy=0.2)
    await spool.open()
    db = sqlite3.connect(spool.path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        await spool.append(rows(0, 1))
    db.execute("ROLLBACK")
    db.close()
    await spool.append(rows(0, 1))
    await spool.close()


def test_where_a_spool_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    path = default_path("postgresql://me:secret@host:5432/db")
    assert path == default_path("postgresql://me:another@host:5432/db?sslmode=require")
    assert path != default_path("postgresql://me:secret@host:5432/other")
    assert path != default_path("postgresql://you:secret@host:5432/db")
    assert path.parent == Path("/state/wellspoken")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_path("postgresql://h/d").parent == Path("/home/me/.local/state/wellspoken")


def test_a_spool_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "~nobody-of-this-name/state")
    with pytest.raises(Unusable, match=r"set store\.spool"):
        default_path("postgresql://h/d")
    with pytest.raises(Unusable, match="no such home directory"):
        Spool("~nobody-of-this-name/spool.db", LIMIT, sync=False)
