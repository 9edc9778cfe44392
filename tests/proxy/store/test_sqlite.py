"""What is SQLite's own: the file, its schema, and how its lists are walked."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.migrations import migrations
from wellspoken.proxy.store.rows import Query
from wellspoken.proxy.store.sqlite import file, queries
from wellspoken.proxy.store.sqlite.file import SqliteDatabase


@pytest.fixture
def database(file_database: SqliteDatabase) -> SqliteDatabase:
    return file_database


# The file.


async def test_files_are_for_their_user_only(path: Path) -> None:
    before = os.umask(0)
    try:
        database = SqliteDatabase(path.parent / "new" / "folder" / "store.db")
        await database.open()
    finally:
        os.umask(before)
    await database.insert([row(1)])
    files = sorted(database.path.parent.iterdir())
    assert [file.name.removeprefix("store.db") for file in files] == [
        "",
        "-reserve",
        "-shm",
        "-wal",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700
    await database.close()
    # One file to copy, once nobody has it open.
    assert [file.name for file in database.path.parent.iterdir()] == ["store.db"]


@pytest.mark.parametrize(("sync", "synchronous"), [(False, 1), (True, 2)])
async def test_whether_a_commit_waits_for_the_disk(
    path: Path, sync: bool, synchronous: int
) -> None:
    database = SqliteDatabase(path, sync=sync)
    await database.open()
    assert database._writer is not None
    assert database._writer.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    await database.close()


async def test_a_reader_cannot_write(database: SqliteDatabase) -> None:
    with pytest.raises(Unusable, match="it is read-only"):
        await database._read(lambda db: db.execute("DELETE FROM completion"))


async def test_a_killed_process_loses_no_commit(path: Path) -> None:
    """A process says what it has committed and is killed in the middle of the next rows."""
    code = """
import asyncio, sys
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase
async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    for at in range(0, 1_000_000, 10):
        await database.insert([row(each, metadata={"k": "v"}) for each in range(at, at + 10)])
        print(at + 10, flush=True)
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, str(path)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(50):
        committed = int(await child.stdout.readline())
    child.kill()
    rest = (await child.stdout.read()).split()
    await child.wait()
    committed = int(rest[-1]) if rest else committed
    database = SqliteDatabase(path)
    await database.open()
    rows, _ = await database.size()
    assert rows in (committed, committed + 10)
    found = await database.find(Query(owner="ann", limit=10_000, metadata={"k": "v"}))
    assert [each.id for each in found] == [f"chatcmpl-{at}" for at in range(rows)]
    await database.close()


# The schema.


def test_migrations_are_numbered_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = migrations("sqlite")
    assert [number for number, _ in steps] == list(range(1, len(steps) + 1))
    folder = tmp_path / "sqlite"
    folder.mkdir()
    monkeypatch.setattr("wellspoken.proxy.store.migrations.files", lambda package: folder)
    with pytest.raises(ValueError, match="without a gap"):
        migrations("sqlite")
    (folder / "0002_b.sql").write_text("second")
    with pytest.raises(ValueError, match="without a gap"):
        migrations("sqlite")
    (folder / "0001_a.sql").write_text("first")
    (folder / "notes.txt").write_text("none")
    assert migrations("sqlite") == [(1, "first"), (2, "second")]
    (folder / "0002_c.sql").write_text("another second")
    with pytest.raises(ValueError, match="without a gap"):
        migrations("sqlite")


async def test_an_older_schema_is_brought_up_to_date(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.insert([row(1)])
    second = """
        -- a comment; with a semicolon
        ALTER TABLE completion ADD COLUMN note TEXT NOT NULL DEFAULT 'a;b';
        CREATE TABLE note (text TEXT);
        INSERT INTO note VALUES ('last, without a semicolon')"""
    steps = [*migrations("sqlite"), (2, second)]
    monkeypatch.setattr(file, "migrations", lambda engine: steps)
    await database.open()
    assert await database.get("ann", "chatcmpl-1") is not None
    with sqlite3.connect(database.path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT note FROM completion").fetchone() == ("a;b",)
        assert db.execute("SELECT count(*) FROM note").fetchone() == (1,)
    db.close()


async def test_a_step_that_fails_leaves_nothing_of_it(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await database.insert([row(1)])
    steps = migrations("sqlite")
    bad = [*steps, (2, "CREATE TABLE half (a);"), (3, "ALTER TABLE missing ADD COLUMN b;")]
    monkeypatch.setattr(file, "migrations", lambda engine: bad)
    with pytest.raises(Unusable, match="no such table: missing"):
        await database.open()
    monkeypatch.setattr(file, "migrations", lambda engine: steps)
    await database.open()
    assert await database.size() == (1, 30)
    assert database._writer is not None
    assert database._writer.execute("PRAGMA user_version").fetchone() == (1,)
    assert (
        database._writer.execute("SELECT * FROM sqlite_schema WHERE name = 'half'").fetchall() == []
    )


async def test_a_schema_newer_than_the_program(path: Path) -> None:
    database = SqliteDatabase(path)
    await database.open()
    await database.close()
    newest = migrations("sqlite")[-1][0]
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {newest + 41}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(Unusable) as error:
        await database.open()
    text = one_line(error, path)
    assert f"schema {newest + 41}" in text and f"up to {newest}" in text and "newer" in text
    assert path.read_bytes() == before
    with pytest.raises(Unavailable, match="not open"):
        await database.size()


async def test_what_another_programs_crash_left_is_left_alone(path: Path) -> None:
    """A log that waits, which whoever opens the database next moves into it."""
    script = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]);"
        "db.execute('PRAGMA journal_mode = WAL'); db.execute('CREATE TABLE theirs (a)');"
        "db.execute('PRAGMA wal_checkpoint(TRUNCATE)');"
        "db.execute('INSERT INTO theirs VALUES (1)'); db.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True)
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
    assert len(before[f"{path.name}-wal"]) > 0
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "another program" in one_line(error, path)
    assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "another program" in one_line(error, path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


async def test_the_walk_of_every_list_needs_no_sorting(database: SqliteDatabase) -> None:
    """The plan of each kind of page: an index walked in order, and no temporary b-tree."""
    statements: list[str] = []

    def explain(db: sqlite3.Connection) -> list[str]:
        db.set_trace_callback(statements.append)
        for descending in (False, True):
            for query in (
                Query(owner="ann", limit=5, descending=descending),
                Query(owner=None, limit=5, descending=descending, model="m", metadata={"k": "v"}),
                Query(owner="ann", limit=5, descending=descending, model="m"),
                Query(owner="ann", limit=5, descending=descending, metadata={"k": "v", "l": "w"}),
            ):
                queries.find(db, query)
        db.set_trace_callback(None)
        pages = [each for each in statements if "JOIN completion" in each]
        assert len(pages) == 8
        plans = (db.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in pages)
        return [step[3] for plan in plans for step in plan]

    for step in await database._read(explain):
        assert step.startswith("SEARCH"), step
        assert "l0" not in step or "(created,seq)>(?,?) AND (created,seq)<(?,?)" in step


# Filters on long lists, where the shortest is looked for.


@pytest.mark.parametrize("walked", [7, 8, 9])
@pytest.mark.parametrize("descending", [False, True])
async def test_long_lists_are_walked_in_stretches(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, descending: bool, walked: int
) -> None:
    monkeypatch.setattr(queries, "FEW", 3)
    monkeypatch.setattr(queries, "WALKED", walked)
    rows = [
        row(at, created=at // 5, metadata={"two": str(at % 2), "three": str(at % 3)})
        for at in range(300)
    ]
    rows[250].metadata["few"] = rows[251].metadata["few"] = "x"
    await database.insert(rows)
    for metadata in (
        {"two": "1", "three": "2"},
        {"two": "1", "few": "x"},
        {"three": "1", "two": "0", "few": "x"},
        {"two": "1", "three": "none"},
    ):
        expected = [each.id for each in rows if metadata.items() <= each.metadata.items()]
        expected = expected[::-1] if descending else expected
        for limit in (1, 2, 6, 7, 8, 49, 50, 51, 400):
            query = Query(owner="ann", limit=limit, metadata=metadata, descending=descending)
            assert [each.id for each in await database.find(query)] == expected[:limit]
