"""Which of several servers gets the next request, and how often requests are sent again."""

from __future__ import annotations

from collections import Counter, deque
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proxy.balance.pools import LATER, Clock, make_server, make_servers, put_out, take
from wellspoken.proxy.balance.server_pool import MORE, SAVED, SPARE, Pool
from wellspoken.proxy.upstream.target import Target

WEIGHTS = st.lists(st.integers(1, 20), min_size=2, max_size=5)


def names(servers: list[Target]) -> list[str]:
    return [server.name for server in servers]


def test_the_least_busy_for_its_weight_gets_the_next_one() -> None:
    one, two, three = servers = make_servers(1, 1, 4)
    pool = Pool(servers)
    one.outstanding, two.outstanding, three.outstanding = 2, 1, 8
    assert pool.choose() is two
    one.outstanding, two.outstanding, three.outstanding = 2, 3, 12
    assert pool.choose() is one
    one.outstanding, three.outstanding = 3, 7
    assert pool.choose() is three


@given(count=st.integers(2, 5), history=st.lists(st.integers(0, 20), max_size=80))
def test_of_equal_servers_none_has_more_than_another_would_have(
    count: int, history: list[int]
) -> None:
    """Requests that come and go in any order: the next is always one of the least busy server's."""
    servers = make_servers(*[1.0] * count)
    pool = Pool(servers)
    under_way: list[Target] = []
    for step in history:
        if step < 12 or not under_way:
            least = min(server.outstanding for server in servers)
            under_way.append(take(pool))
            assert under_way[-1].outstanding == least + 1
        else:
            under_way.pop(step % len(under_way)).outstanding -= 1


@given(weights=WEIGHTS)
def test_shares_of_lone_requests_are_as_the_weights_say(weights: list[int]) -> None:
    """One request at a time: of as many the weights' sum each has its weight."""
    servers = make_servers(*weights)
    pool, total = Pool(servers), sum(weights)
    given = [pool.choose() for _ in range(3 * total)]
    for begin in (0, 1, total // 2, total):
        counted = Counter(given[begin : begin + total])
        assert [counted[server] for server in servers] == weights


@given(weights=WEIGHTS, scale=st.floats(0.01, 10))
def test_no_server_is_far_from_its_share(weights: list[int], scale: float) -> None:
    servers = make_servers(*(weight * scale for weight in weights))
    pool, counted = Pool(servers), Counter[str]()
    for sent in range(1, 200):
        server = pool.choose()
        assert server is not None
        counted[server.name] += 1
        for each, weight in zip(servers, weights, strict=True):
            share = Fraction(weight, sum(weights))
            assert abs(counted[each.name] - sent * share) < len(weights)


@pytest.mark.parametrize("at_once", [1, 2, 5, 10])
def test_a_canary_gets_its_share_however_many_requests_there_are(at_once: int) -> None:
    """Not every second of two at a time, although it is the less busy one whenever it has none."""
    _, canary = servers = make_servers(1.0, 0.05)
    pool, counted = Pool(servers), Counter[Target]()
    under_way: deque[Target] = deque()
    for _ in range(2100):
        if len(under_way) == at_once:
            under_way.popleft().outstanding -= 1
        under_way.append(take(pool))
        counted[under_way[-1]] += 1
    assert 0.6 * 100 <= counted[canary] <= 100
    if at_once == 1:
        assert counted[canary] == 100


@given(weights=WEIGHTS, at_once=st.integers(1, 60))
def test_many_requests_at_a_time_lie_as_the_weights_say(weights: list[int], at_once: int) -> None:
    servers = make_servers(*weights)
    pool = Pool(servers)
    for _ in range(at_once):
        take(pool)
    for server in servers:
        share = at_once * server.weight / sum(weights)
        assert server.outstanding <= share + len(servers)


def test_weight_0_gets_some_only_where_nothing_else_is_there() -> None:
    clock = Clock()
    one, two, spare = servers = make_servers(1, 1, 0, clock=clock)
    pool = Pool(servers)
    one.outstanding = two.outstanding = 100
    assert pool.choose() is not spare
    assert pool.choose(b"key") is not spare
    assert pool.choose(left=[one]) is two
    put_out(one)
    assert pool.choose() is two
    put_out(two)
    assert pool.choose() is spare and pool.choose(b"key") is spare
    assert pool.choose(left=[one, two]) is spare
    put_out(spare)
    assert pool.choose() is not spare  # all are out
    clock.now += LATER
    assert one.ejection is not None
    one.ejection.note_success(one.ejection.round)
    assert pool.choose() is two  # its trial, and none of the spare one's
    assert two.ejection is not None
    two.ejection.note_success(two.ejection.round)
    assert pool.choose() is not spare


def test_a_server_that_is_out_gets_none_and_the_next_one_after_its_pause() -> None:
    clock = Clock()
    one, two = servers = make_servers(1, 1, clock=clock)
    pool = Pool(servers)
    put_out(one)
    two.outstanding = 50
    assert pool.choose(well=True) is pool.choose() is two and pool.choose(b"key") is two
    one.outstanding = 100
    clock.now += LATER
    for key in (None, b"a", b"b", b"c"):  # whoever's request it is
        assert pool.choose(key) is one
    assert one.ejection is not None
    one.ejection.take()
    assert one.ejection.state == "trial"
    assert pool.choose() is two and pool.choose(b"a") is two


def test_where_none_is_well_all_are_asked() -> None:
    servers = make_servers(1, 1, 1)
    pool = Pool(servers)
    for each in servers:
        put_out(each)
    assert pool.choose(well=True) is None
    assert sorted(names([take(pool) for _ in range(3)])) == names(servers)
    left: list[Target] = []
    while (found := pool.choose(left=left)) is not None:
        left.append(found)
    assert sorted(names(left)) == names(servers)


def test_an_engine_that_is_away_comes_last() -> None:
    engine, other = servers = make_servers(1, 1)
    engine.upstream = None
    pool = Pool(servers)
    assert names([take(pool) for _ in range(3)]) == ["s/2"] * 3
    put_out(other)
    assert pool.choose() is other
    assert pool.choose(left=[other]) is engine


KEYS = [b"%d" % number for number in range(400)]


def owners(servers: list[Target]) -> dict[bytes, str]:
    """Return which server has each key while nothing is under way."""
    pool = Pool(servers)
    found = {}
    for key in KEYS:
        server = pool.choose(key)
        assert server is not None
        found[key] = server.name
    return found


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    data=st.data(),
)
def test_only_keys_of_a_server_that_goes_or_comes_move(
    weights: list[float], data: st.DataObject
) -> None:
    servers = make_servers(*weights)
    before = owners(servers)
    gone = data.draw(st.sampled_from(servers))
    moved = {
        key
        for key, name in owners([x for x in servers if x is not gone]).items()
        if name != before[key]
    }
    assert moved == {key for key, name in before.items() if name == gone.name}
    put_out(gone)
    out = owners(servers)
    assert gone.name not in out.values()
    assert {key for key in KEYS if out[key] != before[key]} == moved


def test_keys_lie_as_the_weights_say_and_a_weight_takes_what_it_gains() -> None:
    servers = make_servers(1, 2, 5)
    before = owners(servers)
    counted = Counter(before.values())
    for server in servers:
        assert abs(counted[server.name] / len(KEYS) - server.weight / 8) < 0.06
    servers[0].weight = 3.0
    for key, name in owners(servers).items():
        assert name in (before[key], "s/1")


def test_the_order_of_servers_and_long_names_say_nothing() -> None:
    servers = make_servers(1, 1, 1)
    assert owners(servers) == owners(servers[::-1])
    long = [make_server("n" * 100 + f"/{at}") for at in range(3)]
    assert min(Counter(owners(long).values()).values()) > 80


def test_a_key_stays_where_it_is_while_requests_come_and_go() -> None:
    servers = make_servers(1, 1, 1)
    pool = Pool(servers)
    for key, name in owners(servers).items():
        server = take(pool, key)
        assert server.name == name
        server.outstanding -= 1


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=5),
    history=st.lists(st.integers(0, 30), min_size=1, max_size=150),
)
def test_a_hot_key_overloads_nobody(weights: list[float], history: list[int]) -> None:
    """Whatever came before: who gets a request had at most 1.25 of its share, and one more."""
    servers = make_servers(*weights)
    pool, total = Pool(servers), sum(weights)
    under_way: list[Target] = []
    for step in history:
        if step < 20 or not under_way:
            server = take(pool, b"hot" if step else b"cold")
            under_way.append(server)
            share = len(under_way) * server.weight / total
            assert server.outstanding - 1 <= MORE * share + SPARE + 1e-9
        else:
            under_way.pop(step % len(under_way)).outstanding -= 1


def test_what_a_hot_key_has_too_much_goes_to_its_next_server() -> None:
    servers = make_servers(1, 1, 1)
    pool = Pool(servers)
    first = pool.choose(b"hot")
    assert first is not None
    second = pool.choose(b"hot", [first])
    found = names([take(pool, b"hot") for _ in range(5)])
    assert second is not None and found == [*[first.name] * 3, second.name, first.name]


def test_a_hot_key_is_spread_over_all_that_are_less_busy() -> None:
    servers = make_servers(1, 1, 1)
    pool = Pool(servers)
    for _ in range(24):
        take(pool, b"hot")
    spread = sorted(server.outstanding for server in servers)
    assert spread[-1] <= MORE * 8 + SPARE + 1
    assert 2 <= spread[0] <= spread[1] <= 8


def test_few_requests_are_sent_again_beside_all() -> None:
    pool = Pool(make_servers(1, 1), 0.1)
    assert [pool.may_repeat() for _ in range(int(SAVED) + 2)].count(True) == SAVED
    repeated = 0
    for _ in range(1000):
        pool.note_request()
        repeated += pool.may_repeat()
    assert 99 <= repeated <= 100
    for _ in range(1000):
        pool.note_request()  # nothing is saved beyond SAVED
    assert [pool.may_repeat() for _ in range(20)].count(True) == SAVED


def test_without_a_share_none_is() -> None:
    pool = Pool(make_servers(1, 1), 0.0)
    pool.note_request()
    assert not pool.may_repeat()


@pytest.mark.parametrize("share", [0.2, 1.0])
@given(history=st.lists(st.booleans(), max_size=100))
def test_no_history_repeats_more_than_its_share(share: float, history: list[bool]) -> None:
    pool = Pool(make_servers(1, 1), share)
    requests = repeated = 0
    for asks in history:
        if asks:
            repeated += pool.may_repeat()
        else:
            pool.note_request()
            requests += 1
        assert repeated <= SAVED + share * requests + 1e-9
