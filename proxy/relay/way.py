"""The way of one request from server to server, until one takes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from msgspec import Raw, Struct

from wellspoken.adapters.events import Fault
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.balance.affinity import find_key
from wellspoken.proxy.balance.server_order import ABORTED, BUSY, Failure, ServerOrder
from wellspoken.proxy.balance.server_pool import Pool
from wellspoken.proxy.relay.call import Call, in_thread
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import NOT_READY, Target

Attempt = Callable[[Target, str], Awaitable[UpstreamResponse]]
"""Sends a request to a server, under the model's name there; returns the answer's head."""


class Way(Struct, eq=False):
    """Which server has a request, and where it goes from there.

    `target` has it now, and is asked for `model`. Where there is no other it has no `order`.
    """

    call: Call
    target: Target
    model: str
    order: ServerOrder | None = None

    @property
    def fallback(self) -> bytes:
        """By which name the request came to its server, b"" where that is its model's."""
        return self.order.fallback.encode("ascii", "replace") if self.order else b""

    def move(self, failure: Failure, *, noted: bool = False) -> bool:
        """Go to the next server, since the present one failed so before it answered anything.

        False where there is none, or where the request may have been taken: then it fails with
        that. `noted`: the failure was counted already.
        """
        order, call = self.order, self.call
        if order is None:
            return False
        left = self.target
        if _is_abort(failure) and left.ejection is not None:
            # Its head was good. As it answers at once it would be the least busy one.
            left.ejection.note_leaving(_name(failure))
        found = order.move(left, failure)
        if found is None:
            return False
        if isinstance(failure, UpstreamError) and not noted:
            call.note_failure(failure)
        to = "fallback" if order.fallback else "server"
        call.count_move(left, _name(failure), to)
        self.stand_at(found)
        return True

    def stand_at(self, target: Target) -> None:
        """Note which server has the request now."""
        order = self.order
        assert order is not None
        self.target = target
        self.model = order.model
        self.call.name_server(target, order.fallback)
        self.call.routing.let_leave(partial(order.may_leave, target))

    async def send(self, attempt: Attempt) -> UpstreamResponse:
        """Return the answer of the first server that takes the request. Raises what `attempt` does.

        `attempt` is told which server has it; the request goes on from there as the table in
        balance/server_order.py says, and ends with what the last server made of it.
        """
        while True:
            try:
                answer = await attempt(self.target, self.model)
            except (UpstreamError, RequestError) as error:
                if not self.move(error):
                    raise
                continue
            if answer.status not in BUSY or not self.move(Fault(answer.status, "")):
                self.call.routing.let_leave(None)  # its body is nobody's to ask for again
                return answer
            answer.close()


async def begin_way(
    call: Call, pool: Pool, model: str, fields: Mapping[str, Raw], server: str = ""
) -> Way:
    """Return the way of a request for a pool's model; `fields`: its top-level values.

    `server`: the name of the one that alone can answer it, if it is of the pool still.
    """
    if pool.sole is not None:
        return Way(call, pool.sole, model)
    known = next((each for each in pool.servers if each.name == server), None)
    if known is not None:
        call.name_server(known, "")
        return Way(call, known, model)

    def find_pool(name: str) -> tuple[Pool, str] | None:
        found = call.state.router.find_fallback(name, model)
        client = call.routing.client
        return None if found and client and not client.may_use(found[1]) else found

    headers = call.request.headers
    key = None
    if pool.affinity != "none":
        key = await in_thread(call.is_large, find_key, pool.affinity, headers, fields)
    order = ServerOrder(pool, model, key, find_pool)
    way = Way(call, order.start(), model, order)
    way.stand_at(way.target)
    return way


def _is_abort(failure: Failure) -> bool:
    return isinstance(failure, Fault) and failure.code in ABORTED


def _name(failure: Failure) -> str:
    """Return a failure as a metric label."""
    if isinstance(failure, UpstreamError):
        return failure.reason
    if _is_abort(failure):
        return "abort"
    if isinstance(failure, RequestError):
        return "engine" if failure.code == NOT_READY else "unsupported"
    return str(failure.status)
