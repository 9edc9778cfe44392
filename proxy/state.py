"""What a request may ask of the service that answers it: data, which the service alone changes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.proxy.balance.continued import Continued
from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.values import is_reached_from_elsewhere
from wellspoken.proxy.http.auth import Keys
from wellspoken.proxy.http.cors import Origins
from wellspoken.proxy.limits.accounts import Accounts
from wellspoken.proxy.limits.budget import MemoryBudget, default_limit
from wellspoken.proxy.limits.descriptors import find_shortage
from wellspoken.proxy.limits.quota import Counters
from wellspoken.proxy.limits.slots import Slots
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.upstream.readiness import Readiness
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore
    from wellspoken.proxy.store.kept_responses import ResponseStore


def new_id() -> str:
    """Return a fresh random id of 24 characters."""
    return secrets.token_hex(12)


@dataclass(slots=True, eq=False)
class Scorer:
    """A backend that scores prompts: `bound` holds how many at a time.

    `forces`: as far as is known, a grammar of its may name tokens (adapters/prompt_scores.py).
    """

    bound: asyncio.Semaphore
    forces: bool = True


class Recipe(Struct, frozen=True, eq=False, kw_only=True):
    """The plan of a request without its text, which holds while the target's `condition` is this.

    `exchange` is that of the answer without what differs each time; `head` and `tail`: the payload
    around the text; `amends`: another form may be tried where the server refuses this one.
    """

    target: Target
    condition: tuple[object, ...]
    exchange: Exchange
    dialect: Dialect
    path: str
    stream: bool
    head: bytes
    tail: bytes
    amends: bool


RecipeKey = tuple[str | bytes, ...]
"""The path, the text's kind, the request's keys in order, and the values of all but the text."""


@dataclass(slots=True, eq=False, repr=False)
class State:
    """The present state of one service; what a reload replaces is replaced in one step of the loop.

    `expose` gives the metrics in Prometheus' text format. `scoring`: a backend's name -> what
    is known of its scoring of prompts. `recipes`: how a server is asked what comes again.
    `memory`: the room for what requests hold. `large`: held by who translates a large body in
    the loop, in steps. `stopping`: what is still open is cut off. `origins`: whose web pages
    may use the service, None where no page's. `admin`: the keys for what is about the proxy
    itself. `counters` count what clients with a quota ask for. `continued`: which server gave the
    responses that may be continued; `responses` keeps those that the proxy itself has made, of
    which `recalling` lets a few be read at a time.
    """

    config: Config
    router: Router
    readiness: Readiness
    keys: Keys
    admin: Keys
    metrics: Metrics
    store: CompletionStore | None
    responses: ResponseStore
    expose: Callable[[], Awaitable[bytes]]
    loop: asyncio.AbstractEventLoop
    log: logging.Logger
    new_id: Callable[[], str] = new_id
    scoring: dict[str, Scorer] = field(default_factory=dict)
    recipes: dict[tuple[str, RecipeKey], Recipe] = field(default_factory=dict)
    large: asyncio.Lock = field(default_factory=asyncio.Lock)
    memory: MemoryBudget = field(default_factory=lambda: MemoryBudget(default_limit(1)))
    inflight: int = 0
    slots: Slots = field(default_factory=Slots)
    continued: Continued = field(default_factory=Continued)
    recalling: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(4))
    draining: bool = False
    stopping: bool = False
    origins: Origins | None = None
    counters: Counters = field(default_factory=Accounts)

    async def why_unready(self, *, in_full: bool = True) -> str:
        """Return why requests should not come, or "": while the proxy drains, while all slots are
        held, while no file descriptors are left, while no backend is there, and while completions
        cannot be stored, where that is `required`.

        `in_full`: see `store_trouble`.
        """
        if self.draining:
            return "the proxy is shutting down"
        if self.slots.held >= self.config.limits.inflight:
            return f"all {self.slots.held} slots for requests are held (limits.inflight)"
        if shortage := find_shortage():
            return shortage
        if self.config.store.required and (trouble := self.store_trouble(in_full=in_full)):
            return trouble
        return await self.readiness.reason()

    def store_trouble(self, *, in_full: bool = True) -> str:
        """Return why completions cannot be stored now, "" if they can.

        Not `in_full`: without the path or the host of the store.
        """
        if self.store is None or not (trouble := self.store.trouble):
            return ""
        why = trouble if in_full else "the proxy's log says why"
        return f"The store of completions cannot be used now: {why}"

    @property
    def is_private(self) -> bool:
        """Whether no other machine reaches the clients' address."""
        return not is_reached_from_elsewhere(self.config.server.listen)
