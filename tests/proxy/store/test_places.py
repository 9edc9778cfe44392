"""A directory as the place of large columns: whole files, rights, and disks that fail."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wellspoken.proxy.store import places
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.places import Directory, PlaceError, place_of

KEY = "ab/0123456789abcdef0123456789abcdef-00000000000000000000000000000000"
OTHER = KEY[:-1] + "1"


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def test_put_get_replace_delete(tmp_path: Path) -> None:
    root = tmp_path / "a" / "large"
    place = Directory(root)
    await place.put(KEY, b"one")
    assert await place.get(KEY) == b"one"
    await place.put(KEY, b"two" * 100_000)
    assert await place.get(KEY) == b"two" * 100_000
    assert _files(root) == [KEY]
    await place.delete(KEY)
    await place.delete(KEY)
    await place.delete(OTHER)
    assert _files(root) == []
    with pytest.raises(PlaceError) as caught:
        await place.get(KEY)
    assert caught.value.reason == "missing"
    await place.close()


async def test_only_the_user_may_read(tmp_path: Path) -> None:
    root = tmp_path / "large"
    mask = os.umask(0)
    try:
        place = Directory(root)
        await place.put(KEY, b"x")
        await place.close()
    finally:
        os.umask(mask)
    assert stat.S_IMODE((root / KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((root / KEY).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "key", ["../x", "ab/../../etc/passwd", "/etc/passwd", "ab/", "", "AB/" + KEY[3:], KEY + "\n"]
)
async def test_a_key_names_nothing_outside(tmp_path: Path, key: str) -> None:
    place = Directory(tmp_path)
    for work in (place.put(key, b"x"), place.get(key), place.delete(key)):
        with pytest.raises(PlaceError, match="none that this program makes"):
            await work
    assert _files(tmp_path) == []
    await place.close()


async def test_two_that_write_the_same_key_leave_one_whole_file(tmp_path: Path) -> None:
    data = b"0123456789" * 100_000
    first, second = Directory(tmp_path), Directory(tmp_path)
    await asyncio.gather(*(place.put(KEY, data) for place in (first, second) * 8))
    assert _files(tmp_path) == [KEY]
    assert (tmp_path / KEY).read_bytes() == data
    await first.close()
    await second.close()


async def test_a_file_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Directory(tmp_path)
    await place.put(KEY, b"old")

    def broken(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(PlaceError, match="No space left on device") as caught:
        await place.put(KEY, b"new")
    assert caught.value.reason == "full"
    assert _files(tmp_path) == [KEY]
    assert (tmp_path / KEY).read_bytes() == b"old"
    await place.close()


async def test_a_write_over_the_allowed_size_fails_as_full(tmp_path: Path) -> None:
    """The system refuses in the middle of a file, as a disk that fills up does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    place = Directory(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        with pytest.raises(PlaceError) as caught:
            await place.put(KEY, bytes(128 * 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.reason == "full"
    assert _files(tmp_path) == []
    await place.close()


SMALL_DISK = """
import asyncio, sys
from pathlib import Path
from wellspoken.proxy.store.places import Directory, PlaceError

async def main():
    place = Directory(Path(sys.argv[1]) / "large")
    for size in (1000, 200_000, 1000):
        try:
            await place.put(sys.argv[2], bytes(size))
            print("kept", len(await place.get(sys.argv[2])))
        except PlaceError as error:
            print(error.reason, error)
    await place.close()

asyncio.run(main())
"""


def _mounts() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs x /mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _mounts(), reason="this user may mount no disk in a namespace of its own")
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("size=64k", ["kept 1000", "full No space left on device", "kept 1000"]),
        ("ro", ["denied Read-only file system"] * 3),
    ],
)
def test_a_real_disk_that_is_full_or_read_only(
    tmp_path: Path, option: str, said: list[str]
) -> None:
    script = f'mount -t tmpfs -o {option} x "$1" && exec "$2" -c "$3" "$1" "$4"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", tmp_path, sys.executable, SMALL_DISK, KEY],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.splitlines() == said


async def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    place = Directory(tmp_path / "file")
    with pytest.raises(PlaceError) as caught:
        await place.put(KEY, b"x")
    assert caught.value.reason == "failed"
    assert str(tmp_path) not in str(caught.value)
    await place.close()


async def test_a_disk_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network disk does; other work of the process has its own threads."""
    place = Directory(tmp_path, timeout=0.1)
    back = threading.Event()
    monkeypatch.setattr(places, "_read", lambda path: back.wait(10))
    try:
        with pytest.raises(PlaceError, match=r"did not answer in 0\.1 s") as caught:
            await place.get(KEY)
        assert caught.value.reason == "timeout"
        assert await asyncio.to_thread(lambda: "alive") == "alive"
    finally:
        back.set()
        await place.close()
    with pytest.raises(PlaceError, match="closed"):
        await place.get(KEY)


async def test_an_object_too_large_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Directory(tmp_path)
    await place.put(KEY, b"12345")
    monkeypatch.setattr(places, "MOST", 4)
    with pytest.raises(PlaceError, match="too large"):
        await place.get(KEY)
    await place.close()


@pytest.mark.parametrize(
    "large_to", ["gs://bucket/x", "https://host/x", "file:///x", "", " ", "a\0b", "~nobody-here/x"]
)
def test_what_names_no_place(large_to: str) -> None:
    with pytest.raises(Unusable, match=r"path of a directory, or s3://bucket/prefix"):
        place_of(large_to)


async def test_a_path_names_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    place = place_of("~/large")
    assert isinstance(place, Directory) and place.root == tmp_path / "large"
    await place.close()
    assert not place.root.exists()
