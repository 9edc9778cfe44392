"""What is asked of a backend for one request of a client, and how its answers become one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.servers.backend import Dialect

Outcome = Literal["amended", "as it was", "in vain"]


class Amendment(NamedTuple):
    """What is changed of a request that was `refused`, as its answer's status and bytes tell.

    `payload` makes it anew. `note` is told what came of it, to remember: whether the server
    answered the request so `amended`, or `as it was`, or refused both, so that it was sent again
    `in vain`. A refusal alone may have had any cause.
    """

    refused: Callable[[int, bytes], bool]
    payload: Callable[[], bytes]
    note: Callable[[Outcome], None]


class Amending(Struct, frozen=True, eq=False):
    """Amendments of a payload that are made out once they are needed; `note`: where none is."""

    find: Callable[[bytes], Awaitable[tuple[Amendment, ...]]]
    note: Callable[[], None]


Merging = Callable[[int, list[Event]], list[Event]]


class BackendRequest(Struct, frozen=True, eq=False):
    """One request to a backend; `stream`: its answer is to be a stream.

    `make` gives a large payload, which nobody holds while an answer is waited for; then `payload`
    is none. `nothing`: no token is asked for, so no backend is; the number of the prompt's tokens,
    which `source` tells, one of the usage's. `extra`: further header lines. `untouched`: the answer
    is to
    leave as it comes. `amendments`: by which it is sent again, each at most once, should the server
    refuse what they change; `amending`: the same for a request whose like was sent before.
    """

    path: str
    payload: bytes
    stream: bool
    make: Callable[[], bytes] | None = None
    nothing: int | None = None
    source: str = "backend"
    extra: bytes = b""
    untouched: bool = False
    method: str = "POST"
    amendments: tuple[Amendment, ...] = ()
    amending: Amending | None = None

    def body(self) -> bytes:
        """Return what is sent, made anew where it is large."""
        return self.payload if self.make is None else self.make()


More = Callable[[range], tuple[list[BackendRequest], list[BackendAnswer]]]


class Plan(Struct, frozen=True, eq=False):
    """One request to the backend, or several whose answers `merge` makes one.

    `sources` read the answers, one each; empty for the usual case, a single answer that needs no
    more than its translation. `more` asks for the choices that the answers turn out to lack, which
    `merge`, a `Rest`, tells.
    """

    exchange: Exchange
    dialect: Dialect
    asks: Sequence[BackendRequest]
    sources: Sequence[BackendAnswer] = ()
    merge: Merging | None = None
    more: More | None = None


Planning = Callable[[], Awaitable[Plan]]
