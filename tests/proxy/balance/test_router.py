"""Which servers have a model: those of several backends, and an engine's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proxy.balance.pools import make_server
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.balance.server_pool import Pool
from wellspoken.proxy.config.tables import AuthClient, Health
from wellspoken.proxy.limits.clients import KnownClient
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.upstream.target import Target


def server(name: str, *models: str, **more: Any) -> Target:
    """Return a server of the backend before the slash; nobody has noted its health yet."""
    target = make_server(name, models=models, **more)
    target.ejection = None
    return target


def names(pool: Pool | None) -> list[str]:
    assert pool is not None
    return [each.name for each in pool.servers]


def test_two_models_may_share_servers() -> None:
    one, two, three = server("a/1", "x"), server("b", "x", "y"), server("c", "y", "z")
    router = Router([one, two, three])
    assert names(router.look_up("x")) == ["a/1", "b"]
    assert names(router.look_up("y")) == ["b", "c"]
    assert names(router.look_up("z")) == ["c"]
    assert router.look_up("w") is None and router.only is None
    assert len(router.pools) == 3
    assert all(each.ejection is not None for each in (one, two, three))


def test_models_of_the_same_servers_share_a_pool() -> None:
    """And so its turns, and what may be sent again."""
    servers = [server("a/1", "x", "y"), server("a/2", "x", "y"), server("b", "z")]
    router = Router(servers)
    assert router.look_up("x") is router.look_up("y") is router.find("x")
    assert len(router.pools) == 2
    assert servers[0].ejection is not None and servers[2].ejection is None


def test_one_backend_takes_every_name() -> None:
    router = Router([server("a/1", "x"), server("a/2", "x")])
    assert names(router.look_up("anything")) == ["a/1", "a/2"]
    assert router.pools == [router.only] == [router.look_up("x")]
    assert (router.label("x"), router.label("anything")) == ("x", OTHER)
    router.targets[1].learn_labels(["listed:latest"])
    assert router.label("listed") == "listed"


def test_an_alias_is_a_name_too() -> None:
    router = Router([server("a", "x"), server("b", "y", aliases={"x": "y", "z": "y"})])
    assert names(router.look_up("x")) == ["a", "b"]
    assert names(router.look_up("z")) == ["b"]
    assert router.label("z") == "z"


def test_an_engines_configured_names_are_shared_and_listed_ones_are_its_own() -> None:
    engine, other = server("engine", "x"), server("b", "x", "y")
    router = Router([other, engine])
    assert names(router.look_up("x")) == ["b", "engine"]
    engine.rename(["x", "y", "mine"])
    assert names(router.look_up("x")) == ["b", "engine"]
    assert names(router.look_up("y")) == ["b"]  # as it was before the engine listed it
    assert names(router.look_up("mine")) == ["engine"]
    engine.rename(["mine"])
    assert names(router.look_up("x")) == ["b"] and other.ejection is None


def test_an_engines_name_leads_to_it_only_while_it_has_it() -> None:
    engine, other = server("engine"), server("b", "y")
    router = Router([other, engine])
    engine.rename(["old"])
    assert names(router.look_up("old")) == ["engine"]
    engine.rename(["new"])
    assert router.look_up("old") is None and names(router.look_up("new")) == ["engine"]


def test_a_fallback_is_a_model_or_a_backend() -> None:
    router = Router(
        [
            server("a", "big", fallback=("small", "c", "a", "gone")),
            server("b/1", "small"), server("b/2", "small"),
            server("c", "tiny", "big"), server("d"),
        ]
    )  # fmt: skip
    small, tiny = router.find_fallback("small", "big"), router.find_fallback("b", "big")
    assert small is not None and (names(small[0]), small[1]) == (["b/1", "b/2"], "small")
    assert tiny is not None and tiny[0] is small[0] and tiny[1] == "small"
    found = router.find_fallback("c", "big")  # which has that one, too
    assert found is not None and (names(found[0]), found[1]) == (["c"], "big")
    found = router.find_fallback("c", "small")
    assert found is not None and found[1] == "tiny"
    found = router.find_fallback("d", "big")  # nobody says what it has
    assert found is not None and (names(found[0]), found[1]) == (["d"], "big")
    assert router.find_fallback("gone", "big") is None


def test_a_models_name_comes_before_a_backends() -> None:
    router = Router([server("x", "a"), server("a", "x", "b")])
    found = router.find_fallback("x", "b")
    assert found is not None and (names(found[0]), found[1]) == (["a"], "x")


def test_health_is_noted_where_another_server_may_have_the_request() -> None:
    alone, with_fallback = server("a", "x"), server("b", "y", fallback=("x",))
    router = Router([alone, with_fallback], Health(failures=7))
    assert alone.ejection is None and with_fallback.ejection is not None
    assert with_fallback.ejection.rules.failures == router.rules.failures == 7
    kept = with_fallback.ejection
    Router([alone, with_fallback, server("c", "x")], Health(failures=2))
    assert with_fallback.ejection is kept and kept.rules.failures == 2
    assert alone.ejection is not None
    Router([with_fallback])
    assert with_fallback.ejection is kept  # its fallback may come back


def test_an_unknown_model_is_told_with_those_that_a_client_may_use() -> None:
    router = Router([server("a", "x", "z"), server("b", "y")])
    with pytest.raises(RequestError, match="Known models: x, y, z\\.") as told:
        router.find("w")
    assert (told.value.status, told.value.code) == (404, "model_not_found")
    client = KnownClient(AuthClient(name="someone", keys=("file:k",), models=("y",)))
    with pytest.raises(RequestError, match="Known models: y\\."):
        router.find("w", client)
    many = Router([server("a", *(f"m{at:02}" for at in range(30))), server("b", "y")])
    with pytest.raises(RequestError, match="m19, \\.\\.\\."):
        many.find("w")


def test_any_backend_with_its_own_bounds_has_them_asked() -> None:
    assert Router([server("a", "x")]).bounds == "openai"
    assert Router([server("a", "x"), server("b", "y", bounds="backend")]).bounds == "backend"
