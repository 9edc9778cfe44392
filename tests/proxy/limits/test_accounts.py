"""The buckets of a client, held against the simplest model: a level that is filled step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.proxy.limits.accounts import Account, Accounts
from wellspoken.proxy.limits.quota import MINUTE, Quota, duration, headers_of, left


@dataclass
class Bucket:
    """What is left of a limit a minute, exactly."""

    limit: int
    level: Fraction = field(init=False)

    def __post_init__(self) -> None:
        self.level = Fraction(self.limit)

    def holds(self, amount: int) -> bool:
        """Say whether it has so much, or would in less than a hundredth of a millisecond."""
        return self.level >= amount - Fraction(self.limit, 60 * 100_000)

    def fill(self, seconds: Fraction) -> None:
        self.level = min(self.level + self.limit * seconds / 60, Fraction(self.limit))

    def give(self, amount: int) -> None:
        self.level = min(self.level + amount, Fraction(self.limit))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 40_000),  # milliseconds that go by
        st.integers(0, 120),  # tokens that are reserved
        st.integers(-60, 120),  # of which so many are given back when one is settled
        st.booleans(),  # whether that one had failed
        st.booleans(),  # whether one is settled at all
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 9), st.sampled_from([0, 1, 7, 100, 1009]), st.integers(0, 3))
def test_buckets_are_those_of_the_model(
    steps: list[tuple[int, int, int, bool, bool]], requests: int, tokens: int, concurrent: int
) -> None:
    quota, account = Quota(requests, tokens, concurrent), Account()
    models = Bucket(requests), Bucket(tokens)
    now, going = 1_000_000.0, 0
    for milliseconds, amount, back, failed, ends in steps:
        now += milliseconds / 1000
        for bucket in models:
            bucket.fill(Fraction(milliseconds, 1000))
        decision = account.take(quota, amount, now)
        fits = {
            "concurrent": not concurrent or going < concurrent,
            "requests": not requests or models[0].holds(1),
            "tokens": not tokens or models[1].holds(amount),
        }
        assert decision.refused == next((name for name, good in fits.items() if not good), None)
        if decision.refused is None:
            going += 1
            models[0].level -= 1
            models[1].level -= amount
        elif decision.refused != "concurrent":
            bucket, needed = (
                (models[0], 1) if decision.refused == "requests" else (models[1], amount)
            )
            wait = (needed - bucket.level) * 60 / bucket.limit
            assert decision.wait == pytest.approx(float(wait), abs=1e-3)
        full = decision.requests, decision.tokens
        for limit, bucket, seconds in zip((requests, tokens), models, full, strict=True):
            if limit:
                wanted = (bucket.limit - bucket.level) * 60 / bucket.limit
                assert seconds == pytest.approx(float(wanted), abs=1e-3)
        if ends and going:
            going -= 1
            account.settle(quota, int(failed), back, now)
            models[0].give(int(failed))
            models[1].give(back)
        assert account.open == going


def test_a_bucket_gives_what_a_minute_allows_and_fills_evenly() -> None:
    now = [0.0]
    accounts, quota = Accounts(lambda: now[0]), Quota(requests=60)
    taken = [accounts.take("a", quota, 0).refused for _ in range(61)]
    assert taken == [None] * 60 + ["requests"]
    assert accounts.take("b", quota, 0).refused is None
    now[0] += 1.0
    assert [accounts.take("a", quota, 0).refused for _ in range(2)] == [None, "requests"]
    now[0] += 3600.0
    assert sum(accounts.take("a", quota, 0).refused is None for _ in range(100)) == 60


def test_what_does_not_fit_takes_nothing() -> None:
    """One that is over its tokens costs no request, nor one of the places."""
    account, quota = Account(), Quota(10, 100, 1)
    before = account.requests, account.tokens, account.open
    assert account.take(quota, 101, 5.0).refused == "tokens"
    assert (account.requests, account.tokens, account.open) == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (1e-9, "0s"),
        (0.0004, "1ms"),
        (0.12, "120ms"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60.0, "1m0s"),
        (86.4, "1m26.4s"),
        (360.0, "6m0s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_what_is_left_is_a_whole_number(limit: int, used: int) -> None:
    used = min(used, limit)
    assert left(limit, used * MINUTE / limit) == pytest.approx(limit - used, rel=1e-6)
    assert left(limit, 2 * MINUTE) == 0


def test_headers_are_of_the_limits_that_there_are() -> None:
    decision = Account().take(Quota(60, 0, 2), 5, 0.0)
    assert headers_of(Quota(60, 0, 2), decision) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }
    assert headers_of(Quota(concurrent=2), decision) == {}
