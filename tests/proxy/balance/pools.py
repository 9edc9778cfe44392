"""Servers without a network, for what chooses among them."""

from __future__ import annotations

from typing import Any, cast

from wellspoken.adapters.servers import registry
from wellspoken.proxy.balance.server_pool import Pool
from wellspoken.proxy.config.tables import Health
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.ejection import Ejection
from wellspoken.proxy.upstream.target import Target, TargetSettings

LATER = 10.0
"""Seconds after which every pause of a server that is put out here is over."""
_RULES = Health(interval=0.0, failures=1, pause=5.0)


class Clock:
    """What the servers' pauses go by."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_server(name: str, weight: float = 1.0, clock: Clock | None = None, **more: Any) -> Target:
    """Return a server with an address, which nobody asks; `more` are settings."""
    target = Target(
        name,
        registry.find("openai"),
        cast(Upstream, object()),
        settings=TargetSettings(**more),
        models=more.get("models", ()),
        backend_name=name.partition("/")[0],
        weight=weight,
    )
    target.ejection = Ejection(_RULES, clock or Clock(), lambda: 0.5)
    return target


def make_servers(*weights: float, clock: Clock | None = None, **more: Any) -> list[Target]:
    """Return servers of these weights, called s/1, s/2, ..."""
    return [make_server(f"s/{at}", weight, clock, **more) for at, weight in enumerate(weights, 1)]


def put_out(server: Target) -> None:
    """Let a request of a server fail, so that it is out."""
    assert server.ejection is not None
    server.ejection.note_failure("refused", server.ejection.take())
    assert server.ejection.state == "out"


def take(pool: Pool, key: bytes | None = None) -> Target:
    """Return the server that gets a request, which is under way there from now on."""
    server = pool.choose(key)
    assert server is not None
    server.outstanding += 1
    return server
