"""Has metrics tell models apart that a backend lists since it was last asked for its list."""

from __future__ import annotations

import asyncio
from typing import Final

from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.listing import learn_labels
from wellspoken.proxy.upstream.target import Target

AGAIN: Final = 60.0  # seconds from one asking to the next


class LabelLearner:
    """Asks a sole backend for its list once it answered for a model without a label: an observer.

    It may have loaded that model since, or have been away when the proxy started. Names that a
    client invents have it asked once in `AGAIN` seconds. One asking is under way at a time, in a
    task of its own, so no answer waits for it. A server that has no list is not asked more often,
    as a `Memory` of it would, which is for what a request waits for.
    """

    def __init__(self) -> None:
        self._asked: Target | None = None
        self._next = 0.0  # by the loop's clock
        self._task: asyncio.Task[None] | None = None

    def __call__(self, call: Call, code: int) -> None:
        """Look at one request that is over."""
        routing = call.routing
        if routing.label != OTHER or not routing.model or not routing.backend or code >= 400:
            return
        target, now = routing.target, asyncio.get_running_loop().time()
        if (
            target is None
            or call.state.router.only is None
            or (target is self._asked and now < self._next)
        ):
            return
        if self._task is None or self._task.done():
            self._asked, self._next = target, now + AGAIN
            self._task = asyncio.create_task(learn_labels(target))

    async def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
