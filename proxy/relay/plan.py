"""What is asked of a backend for one request of a client, and how its answers become one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec import structs

from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.caps import Asked
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.adapters.translate import BackendAnswer, StreamTranslator
from wellspoken.proxy.upstream.target import Target

Merging = Callable[[int, list["Event"]], list["Event"]]


class BackendRequest(NamedTuple):
    """One request to a backend; `stream`: its answer is to be a stream.

    `nothing`: no token is asked for, so no backend is; the number of the prompt's tokens, which
    `source` tells, one of the usage's. `extra`: further header lines. `untouched`: the answer is to
    leave as it comes.
    """

    path: str
    payload: bytes
    stream: bool
    nothing: int | None = None
    source: str = "backend"
    extra: bytes = b""
    untouched: bool = False


More = Callable[[range], tuple[list[BackendRequest], list["BackendAnswer"]]]


class Plan:
    """One request to the backend, or several whose answers `merge` makes one.

    `sources` read the answers, one each; empty for the usual case, a single answer that needs no
    more than its translation. `more` asks for the choices that the answers turn out to lack, which
    `merge`, a `Rest`, tells.
    """

    __slots__ = ("asks", "dialect", "exchange", "merge", "more", "sources")

    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect,
        asks: Sequence[BackendRequest],
        sources: Sequence[BackendAnswer] = (),
        merge: Merging | None = None,
        more: More | None = None,
    ) -> None:
        self.exchange = exchange
        self.dialect: Dialect = dialect
        self.asks = asks
        self.sources = sources
        self.merge = merge
        self.more = more

    def translator(self, *, fold: bool = False) -> StreamTranslator:
        """Return what makes the client's stream, or (`fold`) its body."""
        return StreamTranslator(
            self.exchange, self.dialect, sources=self.sources, merge=self.merge, fold=fold
        )


def asks_stream(target: Target, exchange: Exchange, *, whole: bool) -> bool:
    """Say whether a backend is asked for a stream; `whole`: its streams lack what is wanted.

    Enforced stops need one, and a route may say that its backend gives nothing else, or none.
    """
    if exchange.enforced or target.settings.streams == "always":
        return True
    return exchange.stream and not whole and target.settings.streams != "never"


def without_stops(wanted: Asked) -> Asked:
    """Return the request for a body that runs past the stop strings, which the stop stage cuts."""
    fields = {key: value for key, value in wanted.fields.items() if key != "stop"}
    return structs.replace(wanted, stop=None, fields=fields)


Planning = Callable[[], Awaitable[Plan]]
