"""How a request waits for the engine that its target runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from wellspoken.engine.failure import NotReady
from wellspoken.proxy.upstream.target import not_ready

if TYPE_CHECKING:
    from wellspoken.adapters.events import Fault
    from wellspoken.proxy.upstream.target import Target

CUT: Final = "upstream_cut"
POLL: Final = 0.02
DOUBT: Final = 1.0
"""Seconds for which an engine that is being looked at holds requests up, at most."""


def doubt(target: Target, fault: Fault | None) -> None:
    """Have an engine looked at before the next request, if an answer of it ended too early."""
    if fault is not None and fault.code == CUT:
        target.look()


async def entered(target: Target) -> None:
    """Count a request in at the target's engine, once it can be sent there.

    Raises RequestError 503 where that is not to be waited for.
    """
    engine = target.engine
    assert engine is not None
    while True:
        try:
            await engine.enter()
        except NotReady as error:
            raise not_ready(str(error), error.retry_after) from error
        if target.doubt is None and target.upstream is not None:
            return
        there = False
        try:
            if target.doubt is not None:
                await asyncio.wait({target.doubt}, timeout=DOUBT)
            there = target.upstream is not None and engine.state == "ready"
        finally:
            if not there:
                engine.leave()
        if there:
            return
        await asyncio.sleep(POLL)  # it has ended, and is only just being seen to


async def entered_again(target: Target) -> None:
    """Wait for the engine once more, for a request that is counted in, and met nobody there.

    Raises RequestError as `entered` does.
    """
    engine = target.engine
    assert engine is not None
    await entered(target)
    engine.leave()
