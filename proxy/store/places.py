"""Where large columns lie: in a directory here, or in an S3-compatible bucket (`bucket.py`).

Objects have the same names in both, so that to move from one place to another is to copy all
objects and change `store.large_to`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from re import fullmatch
from typing import Literal, Protocol, TypeVar

from wellspoken.proxy.store.database import Unusable

T = TypeVar("T")

Reason = Literal["full", "denied", "missing", "timeout", "unreachable", "failed"]
"""Why a place did not do it, a label of metrics.

`full`: no room or quota. `denied`: rights, credentials, a read-only disk, no such bucket.
`missing`: no such object. `failed`: anything else.
"""

KEY = r"[0-9a-f]{2}/[0-9a-f-]{16,100}"
MOST = 1024 * 1024 * 1024
"""How many bytes an object may have to be read: an answer with its logprobs is far smaller."""
TIMEOUT = 30.0


class PlaceError(Exception):
    """A place did not do it; the message says why, without any secret, path or address."""

    def __init__(self, message: str, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason


class Place(Protocol):
    """Objects by their keys, which match KEY.

    Every method raises PlaceError and nothing else, and ends within a minute.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Keep an object, whole and durable on return, in place of one of the same key."""

    async def get(self, key: str) -> bytes:
        """Return an object."""

    async def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    async def close(self) -> None:
        """Let go of everything; never raises."""


def place_of(large_to: str) -> Place:
    """Return the place that `store.large_to` names: a directory, or `s3://bucket/prefix`.

    Touches nothing yet. Raises Unusable for what names neither, and for a bucket where the extra
    that speaks with it is not installed.
    """
    if large_to.startswith("s3://"):
        from wellspoken.proxy.store.bucket import Bucket

        return Bucket(large_to)
    path = os.path.expanduser(large_to)
    # What still begins with ~ names a user who is not here.
    if "://" in path or not path.strip() or "\0" in path or path.startswith("~"):
        raise Unusable(
            "store.large_to names no place: write the path of a directory, or s3://bucket/prefix"
        )
    return Directory(Path(path))


class Directory:
    """Objects as files, readable by this user only, in 256 subdirectories.

    A file is written beside its place, synced and then renamed, so that it is whole or not there;
    what a killed process leaves is named `*.part` and may be deleted. `timeout`: seconds, since a
    network disk can hang.
    """

    def __init__(self, root: Path, *, timeout: float = TIMEOUT) -> None:
        self.root = root
        self._timeout = timeout
        # Threads of its own: those that hang here are not missing elsewhere.
        self._threads = ThreadPoolExecutor(4, "store-large")

    async def put(self, key: str, data: bytes) -> None:
        """Write a file. Raises PlaceError."""
        path = self._path(key)
        await self._in_thread(lambda: _write(self.root, path, data))

    async def get(self, key: str) -> bytes:
        """Read a file. Raises PlaceError."""
        path = self._path(key)
        return await self._in_thread(lambda: _read(path))

    async def delete(self, key: str) -> None:
        """Remove a file. Raises PlaceError."""
        path = self._path(key)
        await self._in_thread(lambda: path.unlink(missing_ok=True))

    async def close(self) -> None:
        """Let the threads end, without waiting for one that hangs."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _path(self, key: str) -> Path:
        check_key(key)
        return self.root / key

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                return await loop.run_in_executor(self._threads, work)
        except TimeoutError as error:
            raise PlaceError(
                f"the disk did not answer in {self._timeout:g} s", "timeout"
            ) from error
        except OSError as error:
            raise PlaceError(error.strerror or type(error).__name__, _reason(error)) from error
        except RuntimeError as error:  # a thread after close
            raise PlaceError("it is closed", "failed") from error


def check_key(key: str) -> None:
    """Raise PlaceError for a key that could name anything outside of the place."""
    if not fullmatch(KEY, key):
        raise PlaceError("the key is none that this program makes", "failed")


def _reason(error: OSError) -> Reason:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "denied"
    return "missing" if error.errno == errno.ENOENT else "failed"


def _write(root: Path, path: Path, data: bytes) -> None:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = not path.parent.exists()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    if new:
        _sync(root)


def _sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > MOST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read()
