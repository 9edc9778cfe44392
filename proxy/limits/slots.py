"""The slots for requests that ask for answers: how many are held, and by whom."""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config.tables import Limits

_LATER: Final = {"Retry-After": "1"}


class Slots:
    """`limits.inflight` slots, of which one client may hold its share. Nothing in it awaits.

    `held`: how many. A client is the holder of a key, or, where none is needed, an address; "" is
    somebody without one, at a unix socket, who has no share.
    """

    def __init__(self) -> None:
        self.held = 0
        self._by_client: dict[str, int] = {}

    def take(self, client: str, limits: Limits) -> None:
        """Take a slot. Raises RequestError 429 where all are held, or the client's share."""
        if self.held >= limits.inflight:
            raise _refused(
                "The proxy is at its limit of open requests. Wait a moment, or raise "
                "limits.inflight."
            )
        mine = self._by_client.get(client, 0) + 1
        share = limits.per_client or -(-3 * limits.inflight // 4)
        if client and mine > share:
            raise _refused(
                f"You have {share} requests open, which is all that one client may have here. Wait "
                "for one to end, or raise limits.per_client."
            )
        self._by_client[client] = mine
        self.held += 1

    def give_back(self, client: str) -> None:
        """Give back a slot that this client took."""
        self.held -= 1
        left = self._by_client.pop(client) - 1
        if left:
            self._by_client[client] = left


def _refused(message: str) -> RequestError:
    return RequestError(
        message,
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=_LATER,
    )
