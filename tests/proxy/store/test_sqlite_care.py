"""What can go wrong with a SQLite file, and what becomes of it while it is open."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.database import capture
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.rows import Query
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase, connect


@pytest.fixture
def database(file_database: SqliteDatabase) -> SqliteDatabase:
    return file_database


# What can go wrong.


@pytest.mark.parametrize(
    "content", [b"not a database at all\n" * 100, b"SQLite format 3\0" + b"?" * 4080]
)
async def test_what_is_no_database(
    path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []

    def remember(path: Path, busy: float) -> sqlite3.Connection:
        made.append(connect(path, busy))
        return made[-1]

    monkeypatch.setattr(file, "connect", remember)
    path.write_bytes(content)
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "no SQLite database: move it away" in one_line(error, path)
    assert path.read_bytes() == content
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


async def test_a_damaged_file(path: Path) -> None:
    database = SqliteDatabase(path)
    await database.open()
    await database.insert([row(at, size=3000) for at in range(300)])
    await database.close()
    with path.open("r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * 40 * 4096)
    with pytest.raises(Unusable) as error:
        await database.open()
        await database.find(Query(owner=None, limit=500))
    assert "damaged: restore a backup" in one_line(error, path)
    await database.close()


async def test_a_folder_in_place_of_the_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "cannot be opened" in one_line(error, path)
    with pytest.raises(Unusable, match="cannot be opened"):
        await SqliteDatabase("/dev/null/store.db").open()


_AS_ANOTHER = """
import asyncio, os, sys, tempfile
from pathlib import Path
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

async def tell(what, work):
    try:
        await work
        print(what, "passed", flush=True)
    except Unusable as error:
        print(what, error, flush=True)

async def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = SqliteDatabase(folder / "store.db")
        await database.open()
        await database.insert([row(1)])
        await database.close()
        os.chmod(database.path, 0o400)
        await tell("file", database.open())
        os.chmod(database.path, 0o600)
        os.chmod(folder, 0o500)
        await tell("folder", database.open())
        await tell("new", SqliteDatabase(folder / "new.db").open())
        os.chmod(folder, 0o700)
        await tell("again", database.open())
        assert await database.size() == (1, 30)
        await database.close()

if os.getuid() == 0:  # whom no mode stops; what nobody may read of Python is read before
    steps = file.migrations("sqlite")
    file.migrations = lambda engine: steps
    os.seteuid(65534)
asyncio.run(main())
"""


async def test_a_read_only_file_or_folder() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AS_ANOTHER, stdout=subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    said = dict(line.split(" ", 1) for line in out.decode().splitlines())
    assert said.pop("again") == "passed"
    assert list(said) == ["file", "folder", "new"]
    for text in said.values():
        assert "make the file and its directory writable for this user" in text


async def test_a_full_disk(path: Path) -> None:
    """A limit on the size of files stands for a disk; with room again, all goes on."""
    code = """
import asyncio, resource, sys
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase
async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    written = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        while True:
            await database.insert([row(at, size=4000) for at in range(written, written + 50)])
            written += 50
    except Unusable as error:
        print(error)
    assert await database.size() == (written, written * 4000)
    assert await database.get("ann", "chatcmpl-3") is not None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await database.insert([row(at, size=4000) for at in range(written, written + 500)])
    assert await database.size() == (written + 500, (written + 500) * 4000)
    await database.close()
    print(written + 500)
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, str(path)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 0
    text, written = out.decode().splitlines()
    assert text.startswith(f"{path}: ") and "space" in text
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (int(written),)
    db.close()


async def test_a_full_file_system_is_called_one(database: SqliteDatabase) -> None:
    """SQLite's own limit on pages gives the error of a full disk."""
    assert database._writer is not None
    database._writer.execute("PRAGMA max_page_count = 100")
    with pytest.raises(Unusable) as error:
        await database.insert([row(at, size=4000) for at in range(200)])
    assert "the disk is full: free some space" in one_line(error, database.path)
    assert await database.size() == (0, 0)
    database._writer.execute("PRAGMA max_page_count = 100000")
    await database.insert([row(at, size=4000) for at in range(200)])
    assert await database.size() == (200, 800_000)


async def test_a_lock_that_another_process_keeps(database: SqliteDatabase) -> None:
    await database.insert([row(1)])
    hasty = SqliteDatabase(database.path, busy=0.1)
    await hasty.open()
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as error:
        await hasty.insert([row(2)])
    assert "another process keeps it locked" in one_line(error, database.path)
    with pytest.raises(Unavailable):
        await hasty.delete("ann", "chatcmpl-1")
    assert await hasty.size() == (1, 30)  # who reads does not wait
    waiting = asyncio.create_task(database.insert([row(2)]))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting
    other.close()
    await hasty.insert([row(3)])
    assert await hasty.size() == (3, 90)
    await hasty.close()


async def test_a_row_that_cannot_be_stored_is_no_broken_store(database: SqliteDatabase) -> None:
    """The writer leaves out such a row, and waits with all others for a store that is broken."""
    with pytest.raises(StoreError, match="cannot hold") as error:
        await database.insert([row(1), row(2, model="\ud800")])
    assert type(error.value) is StoreError
    assert database._writer is not None
    database._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with pytest.raises(StoreError, match="larger than SQLite takes") as error:
        await database.insert([row(1), row(2, size=200_000)])
    assert type(error.value) is StoreError
    assert await database.size() == (0, 0)
    await database.insert([row(1)])


async def test_tables_that_are_gone_are_a_broken_store(database: SqliteDatabase) -> None:
    with sqlite3.connect(database.path) as db:
        db.execute("DROP TABLE listed")
    db.close()
    with pytest.raises(Unusable, match=r"no such table: .*listed"):
        await database.insert([row(1)])


# What becomes of the file while it is open.


@pytest.mark.parametrize("gone", ["all", "file", "log", "replaced", "garbled"])
async def test_a_file_that_goes_away_is_told_until_a_restart(
    path: Path, database: SqliteDatabase, gone: str
) -> None:
    """SQLite itself goes on to write into a file that has no name any more."""
    await database.insert([row(1)])
    log, other = Path(f"{path}-wal"), path.with_name("other.db")
    second = SqliteDatabase(other)
    await second.open()
    await second.insert([row(9)])
    await second.close()
    if gone in ("all", "log"):
        log.unlink()
    if gone in ("all", "file"):
        path.unlink()
    if gone == "replaced":  # beside its log, which is not the new one's
        other.replace(path)
    if gone == "garbled":
        path.unlink()
        path.write_bytes(b"this is no database" * 1000)
    for number in (2, 3):
        with pytest.raises(Unusable, match=r"removed or replaced .* restart the proxy"):
            await database.insert([row(number)])
    await database.close()
    if gone == "garbled":
        with pytest.raises(Unusable, match="no SQLite database"):
            await database.open()
        path.unlink()
    await database.open()
    await database.insert([row(2)])
    found = await database.find(Query(owner="ann", limit=10))
    kept = {"log": [1], "replaced": [9]}.get(gone, [])
    assert sorted(one.id for one in found) == sorted(f"chatcmpl-{n}" for n in (*kept, 2))


async def test_a_file_that_is_put_back_is_written_again(
    path: Path, database: SqliteDatabase
) -> None:
    away = path.with_name("away.db")
    await database.insert([row(1)])
    path.rename(away)
    with pytest.raises(Unusable, match="removed or replaced"):
        await database.insert([row(2)])
    away.rename(path)
    await database.insert([row(2)])
    found = await database.find(Query(owner="ann", limit=10))
    assert [one.id for one in found] == ["chatcmpl-1", "chatcmpl-2"]


async def test_the_store_tells_of_a_file_that_went_away_and_loses_nothing_unsaid(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of any database that fails: not ready, in the log, and what waited is counted."""
    settings = config.Store(path=str(path), durability="commit")
    log = logging.getLogger("wellspoken")
    store = CompletionStore(settings, StoreMetrics(), log)
    await store.open()
    assert await store.add(capture(1)) == ""
    path.unlink()
    assert "not committed" in await store.add(capture(2))
    assert "removed or replaced" in store.trouble and "restart the proxy" in store.trouble
    await store.close()
    assert "removed or replaced" in caplog.text
    assert "1 completions could not be stored and are lost" in caplog.text


async def test_a_path_that_can_be_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unusable, match="no regular file"):
        await SqliteDatabase(tmp_path / "pipe").open()
    with pytest.raises(StoreError, match="embedded null"):
        await SqliteDatabase(tmp_path / "a\0b").open()
    with pytest.raises(Unusable, match="no such home directory"):
        SqliteDatabase("~nobody-of-this-name/store.db")


async def test_a_new_file_may_be_opened_by_several_at_once(tmp_path: Path) -> None:
    for each in range(10):
        databases = [SqliteDatabase(tmp_path / f"{each}.db") for _ in range(4)]
        await asyncio.gather(*[database.open() for database in databases])
        for database in databases:
            await database.close()
