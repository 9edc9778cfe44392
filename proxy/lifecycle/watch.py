"""Noticing that a configuration is to be read again: SIGHUP, and files that have changed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import stat
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from wellspoken.proxy.config import Config
from wellspoken.proxy.config.tables import Auth
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.tls.certificates import named_files

Found = TypeVar("Found")

EVERY: Final = 2.0
"""Seconds between two looks at the files."""
SETTLED: Final = 0.25
"""Seconds in which a file that has changed must not change again: somebody may be writing it."""
_LOG: Final = logging.getLogger("wellspoken")
_WHOLE: Final = "the configuration stays"
_KEYS: Final = "keys and certificates stay"


async def aside(work: Callable[[], Found]) -> Found:
    """Return what `work` returns, in a thread: a slow disk holds up neither the loop nor its end.

    An executor's threads would be waited for at the end of the process.
    """
    future: Future[Found] = Future()
    future.set_running_or_notify_cancel()  # from now on it is the thread's: nobody cancels it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="wellspoken-reload", daemon=True).start()
    return await asyncio.wrap_future(future)


@dataclass(eq=False)
class Watcher:
    """Has a configuration read again when `asked` is set, and when a file of it has changed.

    The files of keys and certificates are looked at every few seconds, the configuration's own
    (`file`) where `server.watch` says so; both by what they hold, since Kubernetes swaps a symbolic
    link above them. `load` returns the configuration as it is now, off the loop; `apply` takes it
    over and returns warnings, as `Reloader.apply` does; `told` hears whether the last reading was
    good, and `describe` says what has changed by it. `hurry` has what failed tried again: somebody
    asked.
    """

    config: Config
    load: Callable[[], Config]
    apply: Callable[[Config], Awaitable[list[str]]]
    asked: asyncio.Event
    file: Path | None
    told: Callable[[bool], None]
    describe: Callable[[], str]
    hurry: Callable[[], None] = lambda: None
    every: float = EVERY
    settled: float = SETTLED
    _seen: dict[Path, bytes] | None = None
    # Why the last reading was no good.
    _wrong: dict[str, str] = field(default_factory=lambda: {_WHOLE: "", _KEYS: ""})
    _warned: list[str] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, within a running loop."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End; what is being read is not taken over any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self) -> None:
        # `stop` may cancel this at any await. A thread that reads then goes on alone, and what it
        # has read is dropped; `apply` changes what is in use in one step, so never by half.
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.every):
                    await self.asked.wait()
            try:
                await self._once()
            except Exception as error:  # it must not end the watching, so that the next may do
                _LOG.error("a reload failed in the proxy itself", exc_info=error)
                self.told(False)

    async def _once(self) -> None:
        if self.asked.is_set():
            self.asked.clear()
            self.hurry()
            self._seen = await aside(self._look)
            await self._read(_WHOLE, asked=True)
            return
        what = _WHOLE if self._watches_itself() else _KEYS
        if await self._has_changed() or self._wrong[what]:
            await self._read(what, asked=False)

    def _watches_itself(self) -> bool:
        return self.file is not None and self.config.server.watch

    async def _has_changed(self) -> bool:
        """Say whether a file is another than when it was last looked at, and nobody writes it."""
        found = await aside(self._look)
        if found == self._seen or (not found and self._seen is None):
            return False
        while not self.asked.is_set():
            await asyncio.sleep(self.settled)
            before, found = found, await aside(self._look)
            if found == before:
                break
        self._seen = found
        return True

    def _look(self) -> dict[Path, bytes]:
        """Return what stands for the content of each file that is watched."""
        watched = [self.file] if self.file is not None and self._watches_itself() else []
        auth = self.config.auth
        references = [*auth.references] if isinstance(auth, Auth) else []
        for backend in self.config.backend:
            references += [*filter(None, (backend.key,)), *backend.headers.values()]
        watched += [Path(r.removeprefix("file:")) for r in references if r.startswith("file:")]
        watched += [Path(file) for _, file in named_files(self.config.tls)]
        for backend in self.config.backend:
            watched += [Path(file) for _, file in named_files(backend.tls)]
        return {path: digest for path in watched if (digest := _digest(path)) is not None}

    async def _read(self, what: str, *, asked: bool) -> None:
        """Read the configuration, or only its keys, and take that over, or say why not."""
        before = self._wrong[what]
        try:
            config = await aside(self.load) if what == _WHOLE else self.config
            warnings = await self.apply(config)
        except ConfigError as error:
            if asked or str(error) != before:
                _LOG.error("%s as before: %s", what, error)
            self._wrong[what] = str(error)
        else:
            self.config = config
            self._wrong[_KEYS] = ""
            self._wrong[what] = ""
            self._say(asked or bool(before), warnings)
        self.told(not any(self._wrong.values()))

    def _say(self, asked: bool, warnings: list[str]) -> None:
        described = self.describe()
        if asked or described:
            _LOG.info("configuration read again: %s", described or "nothing has changed")
        if asked or warnings != self._warned:
            for warning in warnings:
                _LOG.warning("%s", warning)
        self._warned = warnings


def _digest(path: Path) -> bytes | None:
    """Return a digest of a file, b"" if it cannot be read; None for a pipe, say, read only once."""
    try:
        path = path.expanduser()
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (OSError, ValueError, RuntimeError):  # a NUL; the home of a user who is not there
        return b""
