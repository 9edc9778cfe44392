"""What a supervisor is given: a kind of engine, how it is to be run, and for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wellspoken.engine.failure import EngineError
from wellspoken.engine.unix_http import Client


@dataclass(frozen=True, slots=True)
class Command:
    """How to start an engine: `argv`, its whole `environment`, and whether it `reports`.

    One that reports writes one JSON line to stdout before anything else: {"ready": ...} or
    {"error": KIND, "detail": TEXT}. Of another one stdout is log, as stderr is.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    reports: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What a running engine says of itself: "", () or None for what it does not tell.

    `context`: the most tokens of prompt and answer together.
    """

    version: str = ""
    models: tuple[str, ...] = ()
    context: int | None = None
    tool_parser: str = ""
    reasoning_parser: str = ""


class Kind(Protocol):
    """One kind of engine with its settings. Nothing here keeps state between two starts."""

    @property
    def name(self) -> str:
        """Its name in the configuration, in metrics and before each line of its log."""

    @property
    def title(self) -> str:
        """Its name in sentences."""

    @property
    def start_timeout(self) -> float:
        """Seconds a start may take unless that is configured."""

    def check(self) -> list[str]:
        """Return warnings; called in a thread before each start, may take a second.

        Raises EngineError that names what is missing: the program, the model, a GPU, memory.
        """

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        """Return how to start it so that it answers HTTP on the unix socket `socket`.

        `folder` is private to this start and holds `socket`. `shutdown_timeout`: seconds in which
        it lets requests end after SIGTERM.
        """

    def phase(self, line: str) -> str | None:
        """Return what the engine does from this line of its log on ("loading weights"), else None.

        Only asked while it starts. Text for people, of at most some 60 characters.
        """

    def pulse(self) -> str | None:
        """Return what a start does of which its log says nothing, a download; None without one.

        Asked about once a second, in a thread.
        """

    def explain_report(self, report: Mapping[str, str], tail: Sequence[str]) -> EngineError:
        """Return what a report without `ready` means; `tail`: the last lines of its log."""

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        """Return what the end of the process during its start means."""

    def warm_up(self, facts: Facts) -> tuple[str, bytes]:
        """Return path and JSON body of a POST that makes it compute logprobs once."""

    async def facts(self, client: Client, argv: Sequence[str], tail: Sequence[str]) -> Facts:
        """Ask a running engine what it is. What it does not answer is left empty."""

    def progress(self, metrics: bytes) -> bytes:
        """Return that part of its GET /metrics which changes whenever it computes.

        b"" where the answer itself proves it, since the computing loop gives it.
        """


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine is run; times in seconds, and 0 turns off what may be off.

    `start_timeout`: None for the kind's own. `grace`: from SIGTERM to the kill, when nothing is
    open. `shutdown_timeout`: in which its own streams may end where somebody else ends it. `wait`:
    how long a request waits for a restart, `queue`: how many may. `health_failures` unanswered
    health checks in a row, or `stall_timeout` without any sign of work while requests are open, and
    it is ended and started again. `restarts`: so many ends within ten minutes, and it stays down
    for minutes or, with `exits`, for good, since its host ends then.
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
    exits: bool = False


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
