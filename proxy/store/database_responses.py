"""Responses in the store of completions: rows of the same table, which neither sees of the other.

So the queue, the spool, the failover, the retention and what is counted hold for them too, and they
need no migration.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wellspoken.proxy.store.kept_responses import LARGE, KeptResponse, owner_of_rows, response_of

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore


class DatabaseResponses:
    """A `ResponseStore` on a store of completions, which somebody else opens and closes."""

    why_not_kept = ""

    def __init__(self, completions: CompletionStore) -> None:
        self._completions = completions

    @property
    def refuses(self) -> str:
        return self._completions.refuses

    async def add(self, kept: KeptResponse) -> str:
        why = await self._completions.add(kept)
        if not why:  # it may be continued at once, by way of another proxy
            await self._completions.share()
        return why

    async def get(self, owner: str, id: str) -> KeptResponse | None:
        row = await self._completions.get(owner_of_rows(owner), id)
        if row is None:
            return None
        large = len(row.parameters) > LARGE
        return await asyncio.to_thread(response_of, row) if large else response_of(row)

    async def delete(self, owner: str, id: str) -> bool:
        return await self._completions.delete(owner_of_rows(owner), id) is not None
