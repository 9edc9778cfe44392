"""How much a client may ask for, what counting says to a request, and how the client is told.

Requests and tokens are counted in buckets that hold what a minute allows and fill evenly. A bucket
is one number, the time at which it is full again: taking moves it on, giving back moves it back.
"""

from __future__ import annotations

from math import ceil
from typing import Final, Literal, Protocol

from msgspec import Struct

from wellspoken.adapters.requests.errors import RequestError

MINUTE: Final = 60.0
SLACK: Final = 1e-5  # seconds that sums of parts of a minute may be off

Limit = Literal["requests", "tokens", "concurrent"]


class Quota(Struct, frozen=True, array_like=True):
    """What a client may ask for: requests and tokens a minute, requests at once; 0: no limit."""

    requests: int = 0
    tokens: int = 0
    concurrent: int = 0


class Decision(Struct, frozen=True, array_like=True):
    """What counting says to a request: the limit that refuses it, and for how many seconds.

    `requests`, `tokens`: seconds until these buckets are full again. Where a request is refused,
    nothing of it was counted.
    """

    refused: Limit | None = None
    wait: float = 0.0
    requests: float = 0.0
    tokens: float = 0.0


class Counters(Protocol):
    """What counts the requests and tokens of clients: in this process, or where others count too.

    Each request is told by an `id`.
    """

    async def reserve(self, client: str, quota: Quota, id: str, tokens: int) -> Decision | None:
        """Count a request that begins, with the most tokens that it may need.

        None: nothing can be counted now, and the request passes.
        """

    def settle(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        """Count the end of a request that was let pass; give back so many requests and tokens.

        Below 0: it took more than it had reserved.
        """

    @property
    def trouble(self) -> str:
        """Why nothing is counted now, "" while it is."""

    async def close(self) -> None:
        """End, with what was settled told to whoever counts."""


RATE_HEADERS: Final = (
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    *("x-ratelimit-reset-requests", "x-ratelimit-limit-tokens"),
    *("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
"""OpenAI's headers of what is left: of requests, and of tokens."""


def headers_of(quota: Quota, decision: Decision) -> dict[str, str]:
    """Return `RATE_HEADERS` for the limits that there are."""
    found: dict[str, str] = {}
    for names, limit, full in (
        (RATE_HEADERS[:3], quota.requests, decision.requests),
        (RATE_HEADERS[3:], quota.tokens, decision.tokens),
    ):
        if limit:
            found |= zip(names, (str(limit), str(left(limit, full)), duration(full)), strict=True)
    return found


def left(limit: int, full: float) -> int:
    """Return how much of a limit a minute is left in a bucket that is full in so many seconds."""
    return max(int(limit * (1 - full / MINUTE) + 1e-6), 0)


def duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: 0s, 120ms, 1.5s, 6m0s."""
    milliseconds = ceil(seconds * 1000 - SLACK)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    whole = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{whole}s" if minutes else f"{whole}s"


_NAMES: Final = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)"}


def refuse(client: str, quota: Quota, decision: Decision, tokens: int) -> RequestError:
    """Return the error for a request over a limit, which says when to try again."""
    wait = max(decision.wait, 0.001)
    headers = {"Retry-After": str(ceil(wait)), "retry-after-ms": str(ceil(wait * 1000))}
    if decision.refused == "concurrent":
        text = (
            f"Rate limit reached for {client} on concurrent requests: Limit {quota.concurrent}. "
            "Wait until one of them has ended."
        )
    else:
        requests = decision.refused == "requests"
        limit = quota.requests if requests else quota.tokens
        used = limit - left(limit, decision.requests if requests else decision.tokens)
        text = (
            f"Rate limit reached for {client} on {_NAMES[decision.refused or 'tokens']}: "
            f"Limit {limit}, Used {used}, Requested {1 if requests else tokens}. "
            f"Please try again in {duration(wait)}."
        )
    return RequestError(
        text,
        status=429,
        type="tokens" if decision.refused == "tokens" else "requests",
        code="rate_limit_exceeded",
        headers={**headers, **headers_of(quota, decision)},
    )


def refuse_too_large(client: str, quota: Quota, prompt: int, answer: int) -> RequestError:
    """Return the error for a request that would never fit."""
    return RequestError(
        f"Request too large for {client} on {_NAMES['tokens']}: Limit {quota.tokens}, Requested "
        f"{prompt + answer}, some {prompt} for the prompt and {answer} for the answer. It would "
        "not fit later either: send a shorter prompt or a smaller max_tokens.",
        status=429,
        type="tokens",
        code="rate_limit_exceeded",
        headers={"x-should-retry": "false"},
    )
