"""How an engine is run, and for whom: what a supervisor is given beside the kind of engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wellspoken.engine.kind import Facts


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is run; times in seconds, and 0 turns off what may be off.

    `start_timeout`: None for the kind's own. `grace`: from SIGTERM to the kill, when nothing is
    open. `shutdown_timeout`: in which its own streams may end where somebody else ends it. `wait`:
    how long a request waits for a restart, `queue`: how many may. `health_failures` unanswered
    health checks in a row, or `stall_timeout` without any sign of work while requests are open, and
    it is ended and started again. `restarts`: so many ends within ten minutes, and it stays down.
    """

    start_timeout: float | None = None
    grace: float = 15.0
    shutdown_timeout: float = 300.0
    wait: float = 60.0
    queue: int = 256
    idle_unload: float = 0.0
    health_interval: float = 10.0
    health_timeout: float = 5.0
    health_failures: int = 6
    stall_timeout: float = 300.0
    restarts: int = 5


class Host(Protocol):
    """Who sends requests to the engine."""

    async def up(self, socket: Path, facts: Facts) -> None:
        """It answers on this unix socket; requests come as soon as this returns."""

    async def down(self) -> None:
        """It is gone or about to end: close every connection to it."""

    def last_heard(self) -> float:
        """Return the loop's time at which the last byte of an answer came, 0.0 before the first."""

    def note_change(self) -> None:
        """The state or the phase of a start is another one."""
