"""A disk without any room left: what is stored can be read and deleted, and that makes room."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.database import row
from tests.proxy.store.conftest import MakeStore
from tests.waiting import until
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.rows import Capture, Query
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

REQUIRE = "WELLSPOKEN_REQUIRE_MOUNT"
SIZE = 40 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 40 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        assert REQUIRE not in os.environ, done.stderr
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Take all room that is left, as some other program may."""
    with open(disk / "others", "ab", 0) as file:
        piece = bytes(4096)
        try:
            while True:
                file.write(piece)
        except OSError:
            pass
    assert os.statvfs(disk).f_bavail == 0


def capture(number: int, size: int) -> Capture:
    """Return an answer that does not get smaller when it is packed."""
    answer = {"id": f"c{number}", "created": 1, "model": "m", "text": os.urandom(size // 2).hex()}
    asked = {"model": "m", "messages": [], "store": True}
    return Capture("ann", f"req_{number}", *(json.dumps(x).encode() for x in (answer, asked)))


@pytest.mark.parametrize("moved", [False, True])
async def test_all_can_be_read_and_deleted_again_and_again(disk: Path, moved: bool) -> None:
    """Also where most of it is in the log alone, for which the file has to grow."""
    database = SqliteDatabase(disk / "store.db")
    await database.open()
    if not moved:
        await database.insert([row(at, "ann", 20_000) for at in range(300)])
    else:
        for at in range(0, 300, 10):
            await database.insert([row(each, "ann", 20_000) for each in range(at, at + 10)])
    fill(disk)
    with pytest.raises(Unusable, match="the disk is full"):
        for at in range(1000, 2000):
            await database.insert([row(at, "ann", 200_000)])
    found = await database.find(Query(owner="ann", limit=500))
    assert len(found) >= 300
    for each in found:
        assert await database.get("ann", each.id) is not None
        assert await database.set_metadata("ann", each.id, {"seen": "yes"}) is not None
        assert await database.delete("ann", each.id) is not None
        assert await database.get("ann", each.id) is None
    await database.insert([row(3000, "ann", 20_000)])  # which takes the room of those
    await database.close()
    database = SqliteDatabase(disk / "store.db")
    await database.open()
    assert [each.id for each in await database.find(Query(owner="ann", limit=9))] == ["c3000"]
    await database.close()


async def test_a_store_on_a_full_disk(disk: Path, make_store: MakeStore) -> None:
    """Answers that wait keep nobody from what was stored, and are stored once there is room."""
    store = make_store(path=str(disk / "store.db"))
    await store.open()
    for at in range(20):
        assert await store.add(capture(at, 100_000)) == ""
    await store.settle()
    fill(disk)
    added = 20
    while not store.trouble:
        await store.add(capture(added, 500_000))
        added += 1
        await store.settle()  # each alone: what waits in the end must fit beside what was written
    assert "the disk is full" in store.trouble
    for _ in range(10):  # more than the room that one deletion gives
        await store.add(capture(added, 500_000))
        added += 1
    listed = await store.find(Query(owner="ann", limit=100))
    assert len(listed) >= 20
    assert await store.get("ann", "c0") is not None
    assert await store.delete("ann", "c0") is not None
    with pytest.raises(Unusable, match="the disk is full"):
        await store.get("ann", f"c{added - 1}")  # it waits: nobody may say that there is none
    (disk / "others").unlink()
    await until(lambda: not store.trouble)
    assert len(await store.find(Query(owner="ann", limit=500))) == added - 1
