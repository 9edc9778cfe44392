"""Where a request goes on that a server did not take: each row of the table in the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proxy.balance.pools import make_server, make_servers, put_out
from wellspoken.adapters.events import Fault
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.balance.server_order import BUSY, UNSENT, Failure, ServerOrder
from wellspoken.proxy.balance.server_pool import SAVED, Pool
from wellspoken.proxy.upstream.failures import Reason, UpstreamError
from wellspoken.proxy.upstream.target import Target, not_ready

ALL: tuple[Reason, ...] = get_args(Reason)


def failed(reason: Reason, *, unanswered: bool = False) -> UpstreamError:
    error = UpstreamError(reason, "it failed")
    error.unanswered = unanswered
    return error


REFUSED = failed("refused")
CUT = failed("cut", unanswered=True)
AWAY = not_ready("it starts", 2)
FREE: list[Failure] = [*(failed(reason) for reason in sorted(UNSENT)), AWAY]
REPEATS: list[Failure] = [
    *(Fault(status, "busy") for status in BUSY),
    failed("stuck", unanswered=True),
]
"""What may be repeated where the configuration says so, and within a share."""
FINAL: list[Failure] = [
    *(failed(reason, unanswered=True) for reason in ALL if reason not in {*UNSENT, "cut", "stuck"}),
    failed("cut"), failed("stuck"),  # a part of the answer has come
    *(Fault(status, "no") for status in (400, 401, 404, 408, 500, 502, 504, 529)),
    RequestError("no", status=503), RequestError("no", status=429),
]  # fmt: skip


def label(failure: Failure) -> str:
    """Return a failure as a test's name."""
    if isinstance(failure, UpstreamError):
        return failure.reason + (" unanswered" if failure.unanswered else "")
    return f"{type(failure).__name__} {failure.status}"


def no_fallback(name: str) -> None:
    raise AssertionError(f"{name} is asked for")


def order_of(*servers: Target, share: float = 1.0) -> ServerOrder:
    return ServerOrder(Pool(servers, share), "m", None, no_fallback)


def walk(order: ServerOrder, failure: Failure) -> list[str]:
    """Return where a request goes that meets the same failure everywhere."""
    target: Target | None = order.start()
    names: list[str] = []
    while target is not None:
        assert len(names) < 100
        names.append(target.name)
        target = order.move(target, failure)
    return names


@pytest.mark.parametrize("retry", ["unsent", "unstarted"])
@pytest.mark.parametrize("failure", FREE, ids=label)
def test_what_reached_no_server_goes_on_as_often_as_there_are_servers(
    retry: str, failure: Failure
) -> None:
    order = order_of(*make_servers(1, 1, 1, 1, retry=retry), share=0.0)
    assert walk(order, failure) == ["s/1", "s/2", "s/3", "s/4"]


@pytest.mark.parametrize("retry", ["unsent", "unstarted"])
def test_what_was_closed_before_a_byte_goes_on_once(retry: str) -> None:
    order = order_of(*make_servers(1, 1, 1, 1, retry=retry), share=0.0)
    assert walk(order, CUT) == ["s/1", "s/2"]


def test_that_once_holds_among_other_failures() -> None:
    order = order_of(*make_servers(1, 1, 1, 1, 1))
    target: Target | None = order.start()
    for failure in (REFUSED, CUT, AWAY):
        assert target is not None
        target = order.move(target, failure)
    assert target is not None and target.name == "s/4"
    assert order.move(target, CUT) is None


@pytest.mark.parametrize("failure", REPEATS, ids=label)
def test_what_has_begun_nothing_goes_on_where_the_configuration_says_so(failure: Failure) -> None:
    assert walk(order_of(*make_servers(1, 1, 1)), failure) == ["s/1"]
    servers = make_servers(1, 1, 1, retry="unstarted")
    assert walk(order_of(*servers), failure) == ["s/1", "s/2", "s/3"]
    assert walk(order_of(*servers, share=0.0), failure) == ["s/1"]


@pytest.mark.parametrize("failure", FINAL, ids=label)
def test_anything_else_ends_there(failure: Failure) -> None:
    assert walk(order_of(*make_servers(1, 1, 1, retry="unstarted")), failure) == ["s/1"]


def test_repeating_has_its_share_of_a_pools_requests() -> None:
    pool = Pool(make_servers(1, 1, 1, retry="unstarted"), 0.25)
    busy, moves = Fault(429, "busy"), 0
    for _ in range(400):
        moves += len(walk(ServerOrder(pool, "m", None, no_fallback), busy)) - 1
    assert 400 * 0.25 <= moves <= 400 * 0.25 + SAVED
    # What reached no server costs nothing of it.
    assert len(walk(ServerOrder(pool, "m", None, no_fallback), REFUSED)) == 3


def pools_of(*names: str, **more: Any) -> dict[str, Pool]:
    return {name: Pool([make_server(f"{name}/{at}", **more) for at in (1, 2)]) for name in names}


def finding(pools: dict[str, Pool]) -> Callable[[str], tuple[Pool, str] | None]:
    """Return what finds these pools, whose servers are asked for another name."""
    return lambda name: (pools[name], f"model-{name}") if name in pools else None


def own(*fallback: str, **more: Any) -> Pool:
    return Pool(make_servers(1, 1, fallback=fallback, **more))


def test_fallbacks_come_in_their_order_after_its_own_servers() -> None:
    order = ServerOrder(own("b", "gone", "a"), "m", None, finding(pools_of("a", "b")))
    target: Target | None = order.start()
    seen = []
    while target is not None:
        seen.append((target.name, order.model, order.fallback))
        target = order.move(target, REFUSED)
    assert seen == [
        ("s/1", "m", ""), ("s/2", "m", ""),
        ("b/1", "model-b", "b"), ("b/2", "model-b", "b"),
        ("a/1", "model-a", "a"), ("a/2", "model-a", "a"),
    ]  # fmt: skip


def test_servers_that_are_not_well_come_last() -> None:
    pools, pool = pools_of("a", "b", "c"), own("a", "b", "c")
    for server in (*pool.servers, *pools["b"].servers, pools["c"].servers[0]):
        put_out(server)
    found = walk(ServerOrder(pool, "m", None, finding(pools)), REFUSED)
    assert found == ["a/1", "a/2", "c/2", "s/1", "s/2", "b/1", "b/2", "c/1"]


def test_busy_servers_lead_to_a_fallback_within_the_share() -> None:
    pool = own("a", retry="unstarted")
    find, busy = finding(pools_of("a", retry="unsent")), Fault(429, "busy")
    assert walk(ServerOrder(pool, "m", None, find), busy) == ["s/1", "s/2", "a/1", "a/2"]
    assert walk(ServerOrder(own("a"), "m", None, find), busy) == ["s/1"]


def test_a_move_that_is_not_made_changes_nothing() -> None:
    """What the client is told of the server that it was, and not of the one it would have been."""
    pool = own("a", retry="unstarted")
    order = ServerOrder(pool, "m", None, finding(pools_of("a")))
    first = order.start()
    second = order.move(first, REFUSED)
    while pool.may_repeat():
        pass
    assert second is not None and order.move(second, Fault(429, "busy")) is None
    assert (order.model, order.fallback) == ("m", "")


def test_a_key_leads_to_its_own_server_in_each_pool() -> None:
    pools = pools_of("a")
    for key in map(str.encode, "abcdefgh"):
        pool = own("a")
        expected = [pool.choose(key), pools["a"].choose(key)]
        found = walk(ServerOrder(pool, "m", key, finding(pools)), REFUSED)
        assert found[::2] == [server.name for server in expected if server is not None]


@given(
    shared=st.lists(st.lists(st.integers(0, 5), min_size=1, unique=True), min_size=1, max_size=4),
    failures=st.lists(st.sampled_from([*FREE, *REPEATS, CUT]), min_size=30, max_size=30),
    outs=st.sets(st.integers(0, 5)),
)
def test_nobody_is_visited_twice(
    shared: list[list[int]], failures: list[Failure], outs: set[int]
) -> None:
    """Also where the pools have servers in common, as models of one server have."""
    names = [str(at) for at in range(1, len(shared))]
    servers = make_servers(*[1.0] * 6, fallback=tuple(names), retry="unstarted")
    for at in outs:
        put_out(servers[at])
    pools = [Pool([servers[at] for at in each], 1.0) for each in shared]
    find = finding(dict(zip(names, pools[1:], strict=True)))
    order = ServerOrder(pools[0], "m", None, find)
    target: Target | None = order.start()
    seen = []
    for failure in failures:
        if target is None:
            break
        seen.append(target.name)
        target = order.move(target, failure)
    assert target is None and len(set(seen)) == len(seen)
    if CUT not in failures[: len(seen)]:
        assert set(seen) == {servers[at].name for each in shared for at in each}


def test_a_request_is_let_go_once_and_where_it_has_somewhere_to_go() -> None:
    """What is taken from a silent server may not fail for that."""
    servers = make_servers(1, 1, 1, retry="unstarted")
    order = ServerOrder(Pool(servers, 0.2), "m", None, no_fallback)
    first = order.start()
    assert all(order.may_leave(first) for _ in range(2 * int(SAVED)))  # with its other connections
    second = order.move(first, failed("stuck", unanswered=True))
    assert second is not None and order.may_leave(second)
    put_out(servers[2])
    assert order.may_leave(second)  # that was counted
    third = order.move(second, failed("stuck", unanswered=True))
    assert third is servers[2] and not order.may_leave(third)


def test_where_all_are_silent_a_request_waits() -> None:
    servers = make_servers(1, 1, retry="unstarted")
    order = order_of(*servers)
    first = order.start()
    put_out(servers[1])
    assert not order.may_leave(first)
    assert not order_of(*make_servers(1, 1)).may_leave(first)


def test_no_more_are_let_go_than_may_be_sent_again() -> None:
    pool = Pool(make_servers(1, 1, retry="unstarted"), 0.2)
    orders = [ServerOrder(pool, "m", None, no_fallback) for _ in range(30)]
    firsts = [order.start() for order in orders]
    let_go = [pair for pair in zip(orders, firsts, strict=True) if pair[0].may_leave(pair[1])]
    assert len(let_go) == int(SAVED) and not pool.may_repeat()
    assert all(order.move(first, failed("stuck", unanswered=True)) for order, first in let_go)
