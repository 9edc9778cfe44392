"""Responses without a database: in the memory of one process, few of them, and not for long.

What a chain of responses has in common is there once. Each response that another continues becomes
a turn, the items of its input and output, behind the turn that it continued itself; so a chain of
any length takes what was said in it, and not that once more for each of its responses. A turn stays
while a response stands behind it, also when its own response is gone.

All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from wellspoken.proxy.config.tables import Config
from wellspoken.proxy.store.database_responses import DatabaseResponses
from wellspoken.proxy.store.kept_responses import (
    LARGE,
    KeptResponse,
    ResponseStore,
    own_items_of,
    previous_of,
)

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore

T = TypeVar("T")

COUNT: Final = 1_000
"""Responses that are kept: of ten people who work with agents, the last hour or so."""
BYTES: Final = 64 * 1024 * 1024
"""What they may take, as much as the queue of a store: a hundred agents' whole contexts."""
SECONDS: Final = 3600.0
"""How long each is kept: a talk that rests longer wants a store that also survives a restart."""
_ENTRY: Final = 1024
_TURN: Final = 256
"""What a response and a turn take in memory beside their texts, about."""

TOO_LARGE: Final = (
    "it is larger than all that is kept in memory (configure store.path or store.url)"
)
UNSHARED: Final = (
    "several workers share no memory, and no store is configured (store.path or store.url)"
)


def open_responses(config: Config, completions: CompletionStore | None) -> ResponseStore:
    """Return where the responses of a process are kept: in its store, else in memory.

    Nowhere without a store where several workers answer, each of which would know other responses.
    """
    if completions is not None:
        return DatabaseResponses(completions)
    return MemoryResponses() if config.server.workers == 1 else UnsharedResponses()


class UnsharedResponses:
    """A `ResponseStore` that keeps nothing, and says why."""

    why_not_kept = UNSHARED
    refuses = ""

    async def add(self, kept: KeptResponse) -> str:
        return UNSHARED

    async def get(self, owner: str, id: str) -> KeptResponse | None:
        return None

    async def delete(self, owner: str, id: str) -> bool:
        return False


@dataclass(slots=True, eq=False)
class _Turn:
    """The items of one response, joined by commas, behind those `before` them.

    `users`: how many turns and entries hold on to it.
    """

    before: _Turn | None
    items: bytes
    users: int = 0

    @property
    def size(self) -> int:
        return _TURN + len(self.items)


@dataclass(slots=True, eq=False)
class _Entry:
    """A response, its history apart; `turn` is its own, once another has continued it."""

    kept: KeptResponse
    before: _Turn | None
    expires: float
    turn: _Turn | None = None

    @property
    def size(self) -> int:
        return _ENTRY + self.kept.size


class MemoryResponses:
    """A `ResponseStore` in this process: the newest, within a count, bytes and an age.

    `clock`: seconds that never go back. `size`: the bytes that are taken now.
    """

    why_not_kept = ""
    refuses = ""

    def __init__(
        self,
        *,
        count: int = COUNT,
        most: int = BYTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.size = 0
        self._count, self._most, self._seconds, self._clock = count, most, seconds, clock
        self._entries: dict[tuple[str, str], _Entry] = {}  # in the order of their ends

    def __len__(self) -> int:
        return len(self._entries)

    async def add(self, kept: KeptResponse) -> str:
        name = kept.owner, await _run(previous_of, kept)
        self._expire()
        previous = self._entries.get(name)
        items = b""
        if previous is not None and previous.turn is None:
            items = await _run(_join_items, previous.kept)
        # From here on nothing waits, so that what was found stays until the entry holds on to it.
        if (kept.owner, kept.id) in self._entries:
            return ""
        turn: _Turn | None = None
        if previous is not None and self._entries.get(name) is previous:
            turn = previous.turn or _Turn(previous.before, items)
        if turn is None or not _is_history(turn, kept.history):
            # It begins, or what it continues is gone, as after an answer that took long.
            previous, items = None, kept.history[1:-1].strip()
            turn = _Turn(None, items) if items else None
        entry = _Entry(replace(kept, history=b""), turn, self._clock() + self._seconds)
        if entry.size + sum(each.size for each in _chain(turn)) > self._most:
            return TOO_LARGE
        if previous is not None and previous.turn is None:
            previous.turn = self._hold(turn)
        self._hold(turn)
        self._entries[kept.owner, kept.id] = entry
        self.size += entry.size
        while len(self._entries) > self._count or self.size > self._most:
            self._remove(next(iter(self._entries)))
        return ""

    async def get(self, owner: str, id: str) -> KeptResponse | None:
        self._expire()
        entry = self._entries.get((owner, id))
        return None if entry is None else replace(entry.kept, history=_history(entry.before))

    async def delete(self, owner: str, id: str) -> bool:
        self._expire()
        there = (owner, id) in self._entries
        if there:
            self._remove((owner, id))
        return there

    def _expire(self) -> None:
        now = self._clock()
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            self._remove(name)

    def _remove(self, name: tuple[str, str]) -> None:
        entry = self._entries.pop(name)
        self.size -= entry.size
        self._release(entry.before)
        self._release(entry.turn)

    def _hold(self, turn: _Turn | None) -> _Turn | None:
        """Count one more user of a turn, and a new turn's bytes; what is before it is held."""
        if turn is not None:
            if not turn.users:
                self.size += turn.size
                self._hold(turn.before)
            turn.users += 1
        return turn

    def _release(self, turn: _Turn | None) -> None:
        """Count one user less; a turn without any goes, and may leave the one before it so."""
        while turn is not None:
            turn.users -= 1
            if turn.users:
                return
            self.size -= turn.size
            before, turn.before = turn.before, None  # one by one, since a chain may be long
            turn = before


def _chain(turn: _Turn | None) -> Iterator[_Turn]:
    """Yield a turn and those before it, the newest first."""
    while turn is not None:
        yield turn
        turn = turn.before


def _history(turn: _Turn | None) -> bytes:
    """Return the items of a turn and of those before it, a JSON list."""
    items = [each.items for each in _chain(turn) if each.items]
    return b"[%b]" % b",".join(reversed(items))


def _is_history(turn: _Turn, history: bytes) -> bool:
    """Say whether `_history` of a turn is this, without making it."""
    end, behind = len(history) - 1, b"]"
    for each in _chain(turn):
        if each.items:
            if history[end : end + 1] != behind or not history.endswith(each.items, 1, end):
                return False
            end, behind = end - len(each.items) - 1, b","
    return end == 0 or history == b"[]"


def _join_items(kept: KeptResponse) -> bytes:
    return b",".join(own_items_of(kept))


async def _run(work: Callable[[KeptResponse], T], kept: KeptResponse) -> T:
    """Return what comes of work on a response, in a thread where that is large."""
    large = len(kept.answer) + len(kept.input) > LARGE
    return await asyncio.to_thread(work, kept) if large else work(kept)
