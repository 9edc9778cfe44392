"""The store as commands use it: which one, whose completions, opened and closed around the work."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeVar

from msgspec import structs

from wellspoken.proxy import config
from wellspoken.proxy.config.values import ConfigError, read_key
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.store.completions import CompletionStore, open_store
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.rows import Position, Query, Row
from wellspoken.proxy.transfer.jsonl import UsageError

Result = TypeVar("Result")

NONE = (
    "name the store: --config FILE, --store PATH or --store env:NAME with the URL of a PostgreSQL "
    "database, or set WELLSPOKEN_STORE_PATH or WELLSPOKEN_STORE_URL"
)
_URLS = ("postgresql://", "postgres://", "env:", "file:")
_NO_PROXY: dict[str, object] = {
    "backend": [{"url": "http://localhost"}],
    "server": {"listen": "127.0.0.1:8010"},
}
"""What a configuration must have, though no proxy will run with it."""


def settings(file: str | None, store: str | None, *, made: bool) -> config.Store:
    """Return the store's configuration, of a file, a path or URL, or the environment.

    `made`: a SQLite file that is not there may be made. Nothing is pruned: that is for the proxy.
    Raises UsageError.
    """
    flags = {} if file is not None else dict(_NO_PROXY)
    if store is not None:
        if "://" in store and not store.startswith(_URLS):  # not repeated: it may hold a password
            raise UsageError(f"--store is a URL of another kind: {NONE}")
        given = "url" if store.startswith(_URLS) else "path"
        flags["store"] = {"path": None, "url": None, "spool": None, given: store}
    try:
        found = config.load(None if file is None else Path(file), flags).store
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if not found.configured:
        raise UsageError(NONE)
    path = found.path
    if path is not None:
        path = os.path.expanduser(path)  # as the store does it
        if not made and not os.path.exists(path):
            raise UsageError(f"there is no store at {path}; check its path")
        if path.startswith("~"):
            raise UsageError(f"there is no such user: {path}")
    return structs.replace(found, path=path, max_age=0.0, max_size=0, durability="commit")


def refuse_overwriting(wanted: config.Store, option: str, file: str | None) -> None:
    """Raise UsageError if the file that an option names would overwrite the store."""
    if wanted.path is None or file is None or not os.path.exists(file):
        return
    for path in (wanted.path, f"{wanted.path}-wal", f"{wanted.path}-shm"):
        if os.path.exists(path) and os.path.samefile(file, path):
            raise UsageError(f"{option} {file} would overwrite the store; name another file")


def owner(key: str | None) -> str | None:
    """Return the owner that a key, env:NAME or file:PATH, stands for. Raises UsageError."""
    try:
        return None if key is None else owner_of(read_key(key))
    except ConfigError as error:
        raise UsageError(f"--{error}") from None


@dataclass(slots=True)
class StoreRunner:
    """A store and the loop that it works on, which has a thread of its own.

    So an interrupt meets the command itself, wherever it stands, and never the loop, which would
    be left half way through a step (that is no KeyboardInterrupt any more, or none at all).
    """

    loop: asyncio.AbstractEventLoop
    store: CompletionStore

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Return what comes of some work with the store, which an interrupt cancels."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def find(self, query: Query) -> list[Row]:
        """Return rows as the store does."""
        return self.run(self.store.find(query))

    def positions(self, query: Query) -> list[Position]:
        """Return where rows stand, as the store does."""
        return self.run(self.store.positions(query))


@contextmanager
def open_for_command(wanted: config.Store) -> Iterator[StoreRunner]:
    """Open a store for a command. Raises UsageError, StoreError."""
    log = logging.getLogger("wellspoken.command")
    try:
        store = open_store(wanted, log=log)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    with _loop_in_thread() as loop:
        runner = StoreRunner(loop, store)
        try:
            log.disabled = True  # what is wrong now is raised as well
            runner.run(store.open())
            if store.trouble:
                raise StoreError(store.trouble)
            log.disabled = False
            yield runner
        except KeyboardInterrupt:
            # It may come where a coroutine is made and not begun, which Python would warn of.
            warnings.filterwarnings("ignore", "coroutine .* never awaited", RuntimeWarning)
            raise
        finally:
            runner.run(store.close())


@contextmanager
def _loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run a loop beside the command; a second interrupt does not wait for its end."""
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()

    def work() -> None:
        with runner:
            loop.run_forever()

    thread = Thread(target=work, name="store", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
