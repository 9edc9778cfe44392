"""What is noted of one request on its way: where it goes, its moments, what came of it.

Each field is set by one function, so that who reads it knows where it is from. All of them belong
to the loop's thread; an observer reads them once the request is over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from wellspoken.adapters.events import Fault, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.limits.clients import KnownClient
from wellspoken.proxy.limits.quota import Quota
from wellspoken.proxy.metrics.series import Times
from wellspoken.proxy.metrics.service import OTHER, Metrics
from wellspoken.proxy.upstream.ejection import Visit

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor
    from wellspoken.proxy.upstream.client import MayLeave, UpstreamResponse
    from wellspoken.proxy.upstream.failures import UpstreamError
    from wellspoken.proxy.upstream.target import Target


class Trace(Protocol):
    """The spans of one request of a client."""

    @property
    def id(self) -> str:
        """The trace's id, in hex."""


class Tap(Protocol):
    """Who is told the bodies of one request: the client's, and the answer or its pieces."""

    def request(self, body: bytes) -> None:
        """Note the client's body."""

    def answer(self, data: bytes) -> None:
        """Note the answer's body, or a piece of it."""

    def end(self) -> None:
        """Note the end of the answer."""


class BackendSpan(Protocol):
    """The span of one request to a backend; `lines` are the header lines that name it there."""

    lines: bytes

    def note_answer(self, answer: UpstreamResponse) -> None:
        """Note an answer whose head has come, and watch the rest."""

    def end(self) -> None:
        """Note the end, the first time."""

    def note_failure(self, error: UpstreamError) -> None:
        """Note why the request failed."""


Keep = Callable[[bytes], Awaitable[str]]
"""Is given a whole answer; says once it is kept "", or why it is not, as a client may know it."""


class AnswerForm(Protocol):
    """How an answer that leaves in another form than it is asked for tells of failures."""

    def rename(self, error: RequestError) -> RequestError:
        """Return an error in the names of the client's request."""

    def tell_failure(self, fault: Fault) -> bytes:
        """Return the whole stream of an answer of which nothing came before it failed."""


class Routing(Struct, eq=False):
    """Where a request goes, and for whom.

    `route`: its label in metrics. `owner`: whose stored completions the client may see
    (auth.owner_of); `client`: who that is, where the configuration names it. `hide` takes the
    backend's key out of an error. `model`: as the client calls it; `label`: the same in metrics,
    where clients must not choose names. `keep`: what keeps the whole answer, where that is to be
    stored. `form`: that of an answer that is neither a chat nor a completion. `engine`: what counts
    the request as open. `target`: the server that has it now, and `visit` what it says of that
    server's health, where that is noted. `may_leave`: says whether it may be taken from that server
    as long as it waits there; None: it may not.
    """

    route: str = "other"
    owner: str = ""
    client: KnownClient | None = None
    backend: str = ""
    hide: Callable[[bytes], bytes] = bytes
    model: str = ""
    label: str = OTHER
    streams: bool = False
    keep: Keep | None = None
    form: AnswerForm | None = None
    engine: Supervisor | None = None
    target: Target | None = None
    visit: Visit | None = None
    may_leave: MayLeave | None = None

    def keep_answer(self, keep: Keep) -> None:
        """Have the whole answer kept by this."""
        self.keep = keep

    def answer_in(self, form: AnswerForm) -> None:
        """Have failures told in the form that the answer has."""
        self.form = form

    def let_leave(self, may_leave: MayLeave | None) -> None:
        """Have it decide from now on whether the request may be taken from its server."""
        self.may_leave = may_leave


class Timing(Struct, eq=False):
    """A request's moments, as perf_counter tells them (0.0: not yet), and seconds.

    `waited`: seconds for the client's body or an engine, until a backend was first asked at `sent`.
    `worked`: seconds of the proxy's own work on the answer. `first` and `last`: when the first and
    the latest piece of a streamed answer were ready to leave; `gaps` counts the times between.
    """

    metrics: Metrics
    routing: Routing
    waited: float = 0.0
    sent: float = 0.0
    worked: float = 0.0
    first: float = 0.0
    last: float = 0.0
    gaps: Times | None = None

    def end_wait(self, began: float) -> None:
        """Note that others needed the time since then."""
        if not self.sent:
            self.waited += perf_counter() - began

    def note_sent(self) -> None:
        """Note that a backend is asked; the first time counts."""
        if not self.sent:
            self.sent = perf_counter()

    def end_work(self, began: float, *, leaves: bool = False) -> None:
        """Note work on an answer that began then; `leaves`: what it made, a piece, leaves now.

        Called for each piece, so it does no more than it has to.
        """
        now = perf_counter()
        self.worked += now - began
        if leaves:
            if self.gaps is None:
                self.gaps = self.metrics.gaps.series[self.routing.backend, self.routing.label]
                self.first = now
            else:
                gap = now - self.last  # as `observe`, without a call for each piece
                self.gaps.counts[bisect_left(self.gaps.bounds, gap)] += 1
                self.gaps.sum += gap
            self.last = now


class Reservation(Struct, frozen=True, eq=False):
    """What a client's request has reserved of a quota.

    `id` is no other's. `prompt`: the tokens of the prompt as estimated, a part of `tokens`.
    """

    id: str
    client: str
    quota: Quota
    prompt: int
    tokens: int


class Results(Struct, eq=False):
    """What came of a request.

    `held`: bytes of the room of all requests that it has (limits/budget.py).
    `received`: the client's body has come. `streamed`: bytes of a streamed answer have left.
    `stripped`: the header line that names the keys taken out of the request. `warning`: why the
    answer was not stored. `exchange` is the answer's, once that is translated; `usage` of an answer
    that passed through, and the `pieces` of a stream. `failure`: why a backend could not be asked
    or broke off (`UpstreamError.reason`). `fault`: the failure that the client is told of, also in
    a stream. `refusal`: the proxy itself refused the request. `reservation`: what was counted of
    it, with the header lines (`quota`) that tell the client. `server`: those that name the server,
    where it is one of several. `trace`: its spans, once one began.
    """

    held: int = 0
    received: bool = False
    streamed: bool = False
    stripped: bytes = b""
    warning: str = ""
    exchange: Exchange | None = None
    usage: Usage | None = None
    pieces: int = 0
    failure: str = ""
    fault: Fault | None = None
    refusal: bool = False
    reservation: Reservation | None = None
    quota: bytes = b""
    server: bytes = b""
    trace: Trace | None = None
