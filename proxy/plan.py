"""What is asked of a backend for one request of a client, and how its answers become one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wellspoken.adapters.translate import StreamTranslator

if TYPE_CHECKING:
    from wellspoken.adapters.backend import Dialect
    from wellspoken.adapters.events import Event
    from wellspoken.adapters.exchange import Exchange
    from wellspoken.adapters.translate import Source

Merging = Callable[[int, list["Event"]], list["Event"]]


class Ask(NamedTuple):
    """One request to a backend; `stream`: its answer is to be a stream.

    `nothing`: no token is asked for, so no backend is; the number of the prompt's tokens.
    """

    path: str
    payload: bytes
    stream: bool
    nothing: int | None = None


class Plan:
    """One request to the backend, or several whose answers `merge` makes one.

    `sources` read the answers, one each; empty for the usual case, a single answer that needs no
    more than its translation.
    """

    __slots__ = ("asks", "dialect", "exchange", "merge", "sources")

    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect,
        asks: Sequence[Ask],
        sources: Sequence[Source] = (),
        merge: Merging | None = None,
    ) -> None:
        self.exchange = exchange
        self.dialect: Dialect = dialect
        self.asks = asks
        self.sources = sources
        self.merge = merge

    def translator(self, *, fold: bool = False) -> StreamTranslator:
        """Return what makes the client's stream, or (`fold`) its body."""
        return StreamTranslator(
            self.exchange, self.dialect, sources=self.sources, merge=self.merge, fold=fold
        )

    @property
    def simple(self) -> bool:
        """Whether a body of the backend becomes a body of the client by itself."""
        return not self.sources and not self.asks[0].stream


Planning = Callable[[], Awaitable[Plan]]
