"""Looks at each server that may be replaced by another, whether it is well."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

from wellspoken.proxy.config.tables import Health
from wellspoken.proxy.upstream.ejection import Ejection
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

SPREAD: Final = 0.1
"""By how much of itself the time between two looks differs, so that not all are at once."""
LEAST: Final = 0.05
"""Seconds between two looks at a server that is out, and until the first one."""
IDLE: Final = 1.0
"""Seconds until it is asked again whether there is to be a look."""


class Looks:
    """Asks servers in the background for their `health_path`, each in a task of its own.

    A look that fails is repeated at once until there are as many as put the server out. At an
    engine nobody looks while it is away. `watch` and `close` are for the service's loop.
    """

    def __init__(self) -> None:
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._rules: dict[Target, Health] = {}

    def watch(self, targets: Iterable[Target]) -> None:
        """Look at these from now on, as their rules say now, and at no other."""
        wanted = {target: target.ejection for target in targets if target.ejection is not None}
        for target in list(self._tasks):
            ejection = wanted.get(target)
            if ejection is None or ejection.rules != self._rules[target]:
                self._tasks.pop(target).cancel()
                del self._rules[target]
        for target, ejection in wanted.items():
            ejection.watched = True
            if target not in self._tasks and ejection.rules.interval:
                self._rules[target] = ejection.rules
                self._tasks[target] = asyncio.create_task(_keep_looking(target))

    async def close(self) -> None:
        """Look no more."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._rules.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_looking(target: Target) -> None:
    silent = 0  # looks in a row that nothing came of
    delay = LEAST  # who is away from the beginning is known before many requests come
    while True:
        await asyncio.sleep(delay)
        ejection, upstream = target.ejection, target.upstream
        if ejection is None or upstream is None:  # an engine that is away
            delay = IDLE
            continue
        for _ in range(ejection.rules.failures):
            reason, silence = await _look(target)
            if reason == "descriptors":  # what the proxy lacks says nothing of a server
                break
            silent = silent + 1 if silence else 0
            ejection.note_look(reason)
            # At one that is out they go on only to find out whether it is silent.
            if not reason or (ejection.until and not silence):
                break
        # What was sent before it fell silent may have begun there, so that is repeated only where
        # the configuration says so, and no more than may be; else the requests wait for it, or for
        # their timeouts. While it is out there are more looks, and those that wait go by and by.
        if silent >= ejection.rules.failures:
            upstream.drop_waiting()
        delay = _delay(ejection)


def _delay(ejection: Ejection) -> float:
    """Return the seconds until the next look."""
    usual = ejection.rules.interval * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311  no secret
    pause = ejection.pause_left
    return max(min(usual, pause), LEAST) if pause else usual


async def _look(target: Target) -> tuple[str, bool]:
    """Return what is wrong with a server, "" for nothing, and whether nothing at all came of it.

    One that goes on with an answer meanwhile is well, however late it is with this one, and so is
    one whose answer is only too long to be read.
    """
    upstream = target.upstream
    assert upstream is not None
    began = upstream.loop.time()
    try:
        async with asyncio.timeout(upstream.timeouts.probe):  # with the connection
            status = await upstream.probe(target.settings.health_path)
    except (UpstreamError, TimeoutError) as error:
        reason = error.reason if isinstance(error, UpstreamError) else "connect_timeout"
        late = reason.endswith("timeout")
        if reason in ("too_large", "encoding"):
            return "", False
        return ("", False) if late and upstream.heard > began else (reason, late)
    return (str(status) if status >= 500 else ""), False
