"""Counting in Redis or Valkey, for several proxies: `Account`'s buckets, in scripts of the server.

Each script is one step of the server's, which also tells the time, so that nothing depends on how
the proxies' clocks agree. A request that is open is a member of a sorted set until its lease ends,
which its proxy renews: what a killed one held is free again after that. A client's keys have its
name in braces, so that a cluster keeps them together.

No request waits for the store longer than WAIT. While the store is away requests pass uncounted,
and one task tries it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from wellspoken.proxy.config.secrets import redact
from wellspoken.proxy.limits.quota import Decision, Limit, Quota

WAIT: Final = 0.05
"""Seconds for which a request waits for the store, at most."""
LEASE: Final = 30.0
"""Seconds for which an open request counts without a word of its proxy."""
CONNECTIONS: Final = 8
CONNECT: Final = 2.0
"""Seconds for a connection, which no request waits for."""
PAUSES: Final = (0.05, 2.0)
"""Seconds between two tries of a store that is away, at first and at most."""
AWAY: Final = "the store of auth.counters cannot be reached"

_COMMON: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local rate = {tonumber(ARGV[1]), tonumber(ARGV[2])}
local function full(key) return math.max(tonumber(redis.call('GET', key) or 0) - now, 0) end
local function put(key, seconds)
  if seconds <= 0 then return redis.call('DEL', key) end
  local at = string.format('%.6f', now + seconds)
  redis.call('SET', key, at, 'PX', math.ceil(seconds * 1000))
end
"""
_RESERVE: Final = (
    _COMMON
    + """
local concurrent, id, lease = tonumber(ARGV[3]), ARGV[5], tonumber(ARGV[6])
local filled, more = {0, 0}, {0, 0}
local want = {1, tonumber(ARGV[4])}
for i = 1, 2 do
  if rate[i] > 0 then
    filled[i] = full(KEYS[i])
    more[i] = want[i] * 60 / rate[i]
  end
end
local function say(refused, wait)
  local function text(seconds) return string.format('%.6f', seconds) end
  return {refused, text(wait), text(filled[1]), text(filled[2])}
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
local open = redis.call('ZCARD', KEYS[3])
if concurrent > 0 and open >= concurrent then return say('concurrent', 1) end
for i, name in ipairs({'requests', 'tokens'}) do
  local over = filled[i] + more[i] - 60
  if more[i] > 0 and over > 1e-5 then return say(name, over) end
end
for i = 1, 2 do
  filled[i] = filled[i] + more[i]
  if more[i] > 0 then put(KEYS[i], filled[i]) end
end
redis.call('ZADD', KEYS[3], now + lease, id)
redis.call('EXPIRE', KEYS[3], math.ceil(lease) * 2)
return say('', 0)
"""
)
_SETTLE: Final = (
    _COMMON
    + """
if redis.call('ZREM', KEYS[3], ARGV[5]) == 0 then return end
for i = 1, 2 do
  if rate[i] > 0 then put(KEYS[i], full(KEYS[i]) - tonumber(ARGV[2 + i]) * 60 / rate[i]) end
end
"""
)
_RENEW: Final = """
local time = redis.call('TIME')
local till = time[1] + time[2] / 1e6 + tonumber(ARGV[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', till, ARGV[i]) end
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[1]) * 2)
"""
_LIMITS: Final[dict[bytes, Limit | None]] = {
    b"": None,
    b"requests": "requests",
    b"tokens": "tokens",
    b"concurrent": "concurrent",
}


class RedisCounters:
    """Counts the clients of all proxies that name the same store: a `Counters`.

    The requests' tasks ask; beside them run one task for each end of a request, one that renews
    leases while requests are open, and one that tries a store which is away. `close` ends all.
    """

    def __init__(self, url: str, *, lease: float = LEASE) -> None:
        self.trouble = ""
        self._lease = lease
        pool = BlockingConnectionPool.from_url(
            _known_scheme(url),
            max_connections=CONNECTIONS,
            timeout=CONNECT,
            socket_timeout=CONNECT,
            socket_connect_timeout=CONNECT,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
            client_name="wellspoken",
        )
        self._redis = Redis.from_pool(pool)
        self._reserve = self._redis.register_script(_RESERVE)
        self._settle = self._redis.register_script(_SETTLE)
        self._renew = self._redis.register_script(_RENEW)
        self._open: dict[str, str] = {}  # id -> client, of the requests that were counted
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def reserve(self, client: str, quota: Quota, id: str, tokens: int) -> Decision | None:
        """Count a request that begins; None, at once, while the store is away."""
        if self.trouble:
            return None
        decision = None
        limits = (quota.requests, quota.tokens, quota.concurrent)
        try:
            async with asyncio.timeout(WAIT):
                said = await self._reserve(_keys(client), [*limits, tokens, id, self._lease])
            wait, requests, held = map(float, said[1:])
            decision = Decision(_LIMITS[said[0]], wait, requests, held)
        except (RedisError, OSError, TimeoutError) as error:
            self._lose(error)
        finally:
            if decision is None:  # late, or its client has left: it may be counted all the same
                self._begin(self._end(client, quota, id, 1, tokens))
        if decision is not None and decision.refused is None:
            self._open[id] = client
            if self._renewing is None or self._renewing.done():
                self._renewing = self._begin(self._keep_leases())
        return decision

    def settle(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        """Count the end of a request in a task of its own; one that was not counted stays so."""
        self._open.pop(id, None)
        if not self.trouble:  # else its lease ends
            self._begin(self._end(client, quota, id, requests, tokens))

    async def close(self) -> None:
        """Tell the store of the last ends, as far as it takes them now, and leave it."""
        if self._renewing is not None:
            self._renewing.cancel()
        telling = [task for task in self._tasks if not self.trouble]
        if telling:
            await asyncio.wait(telling, timeout=CONNECT)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._redis.aclose()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        try:
            await self._settle(_keys(client), [quota.requests, quota.tokens, requests, tokens, id])
        except (RedisError, OSError, TimeoutError) as error:
            self._lose(error)

    async def _keep_leases(self) -> None:
        """Renew the leases of open requests, until none is open."""
        while self._open:
            await asyncio.sleep(self._lease / 3)
            by_client: dict[str, list[str]] = {}
            for id, client in self._open.items():
                by_client.setdefault(client, []).append(id)
            try:
                for client, ids in by_client.items():
                    await self._renew([_keys(client)[2]], [self._lease, *ids])
            except (RedisError, OSError, TimeoutError) as error:
                self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Note that the store is away, and try it until it is there again."""
        if not self.trouble:
            self.trouble = AWAY
            why = redact(str(error)) or type(error).__name__
            log = logging.getLogger("wellspoken")
            log.warning("%s (%s): clients' requests pass uncounted until it is", AWAY, why)
            self._begin(self._find_again())

    async def _find_again(self) -> None:
        pause, longest = PAUSES
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            try:
                # All connections, so that no request has to wait for one.
                await asyncio.gather(*(self._redis.ping() for _ in range(CONNECTIONS)))
            except (RedisError, OSError, TimeoutError):
                continue
            self.trouble = ""
            logging.getLogger("wellspoken").info("the store of auth.counters counts again")
            return


def _keys(client: str) -> list[str]:
    return [f"wellspoken:{{{client}}}:{what}" for what in ("requests", "tokens", "open")]


def _known_scheme(url: str) -> str:
    """Return the URL as redis-py reads it: valkey:// is the same protocol."""
    return f"redis{url.removeprefix('valkey')}" if url.startswith("valkey") else url
