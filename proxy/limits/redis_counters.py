"""Counting in Redis or Valkey, for several proxies: `Account`'s buckets, in scripts of the server.

Each script is one step of the server's, which also tells the time, so that nothing depends on how
the proxies' clocks agree. A request that is open is a member of a sorted set until its lease ends,
which its proxy renews: what a killed one held is free again after that. Its end counts once, and
only if its begin did, so it may be told again. A client's keys have its name in braces, so that a
cluster keeps them together.

One task sends all that there is to say over one connection, in the order in which it was said, so
that a burst of requests costs few exchanges. No request waits for it longer than WAIT. While the
store is away requests pass uncounted, and that task tries it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from wellspoken.proxy.config.secrets import redact
from wellspoken.proxy.limits.quota import Decision, Limit, Quota

WAIT: Final = 0.05
"""Seconds for which a request waits for the store, at most."""
LEASE: Final = 30.0
"""Seconds for which an open request counts without a word of its proxy."""
TOGETHER: Final = 256
"""Words of one exchange, at most."""
CONNECT: Final = 2.0
"""Seconds for a connection or an exchange, which no request waits for."""
PAUSES: Final = (0.05, 2.0)
"""Seconds between two tries of a store that is away, at first and at most."""
_TURNS: Final = 5
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
_SCRIPTS: Final = {
    hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest(): script
    for script in (_RESERVE, _SETTLE, _RENEW)
}
_RESERVING, _SETTLING, _RENEWING = _SCRIPTS
_LIMITS: Final[dict[bytes, Limit | None]] = {
    b"": None,
    b"requests": "requests",
    b"tokens": "tokens",
    b"concurrent": "concurrent",
}


class _Word(NamedTuple):
    """What is said to the store: a script by its digest, a client's keys, and arguments.

    `answer` is for who waits for it; what nobody waits for may be said again.
    """

    script: str
    keys: Sequence[str]
    arguments: Sequence[str | float]
    answer: asyncio.Future[Any] | None = None


class RedisCounters:
    """Counts the clients of all proxies that name the same store: a `Counters`.

    The requests' tasks put words into a queue, which one task empties (`_send`); another one renews
    leases while requests are open. `close` ends both. Raises ValueError for a URL of no store.
    """

    def __init__(self, url: str, *, lease: float = LEASE) -> None:
        self.trouble = ""
        self._lease = lease
        self._redis = Redis.from_url(
            _known_scheme(url),
            socket_timeout=CONNECT,
            socket_connect_timeout=CONNECT,
            **({} if url.startswith("unix") else {"socket_keepalive": True}),
            retry=Retry(NoBackoff(), 0),
            client_name="wellspoken",
        )
        pool = self._redis.connection_pool
        pool.connection_kwargs["decode_responses"] = False  # whatever the URL's query says
        try:
            pool.connection_class(**pool.connection_kwargs)
        except (TypeError, RedisError) as error:  # which else each connection would meet
            raise ValueError(f"its query has what cannot be used: {error}") from None
        self._queue: list[_Word] = []
        self._under_way: list[_Word] = []
        self._open: dict[str, str] = {}  # id -> client, of the requests that were counted
        self._ready = False  # the store knows the scripts
        self._sending: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect, within a running loop, so that no request has to wait for that."""
        self._say(*self._probe())

    async def reserve(self, client: str, quota: Quota, id: str, tokens: int) -> Decision | None:
        """Count a request that begins; None, at once, while the store is away."""
        if self.trouble:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        arguments: list[str | float] = [quota.requests, quota.tokens, quota.concurrent]
        arguments += [tokens, id, self._lease]
        self._say(_Word(_RESERVING, _keys(client), arguments, answer))
        said = None
        try:
            said = await answer
        finally:
            if said is None:  # late, or its client has left: it may be counted all the same
                self.settle(client, quota, id, 1, tokens)
        if said is None:
            return None
        wait, requests, held = map(float, said[1:])
        decision = Decision(_LIMITS[said[0]], wait, requests, held)
        if decision.refused is None:
            self._open[id] = client
            if self._renewing is None or self._renewing.done():
                self._renewing = asyncio.create_task(self._keep_leases())
        return decision

    def settle(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        """Have the end of a request told, later where the store is away now."""
        self._open.pop(id, None)
        arguments: list[str | float] = [quota.requests, quota.tokens, requests, tokens, id]
        self._say(_Word(_SETTLING, _keys(client), arguments))

    async def close(self) -> None:
        """Tell the store the last ends, as far as it takes them now, and leave it."""
        tasks = [task for task in (self._renewing, self._sending) if task is not None]
        if self._sending is not None and not self.trouble:
            await asyncio.wait({self._sending}, timeout=CONNECT)  # else leases end
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.aclose()

    def _say(self, *words: _Word) -> None:
        self._queue += words
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        """Say what is in the queue until it is empty, and try a store that is away."""
        loop = asyncio.get_running_loop()
        pause, longest = PAUSES
        while self._queue or self.trouble:
            words, self._queue = self._queue[:TOGETHER], self._queue[TOGETHER:]
            self._under_way = words
            late = loop.call_later(WAIT, self._note_late, words, _TURNS)
            try:
                await self._exchange([*self._probe(), *words] if self.trouble else words)
            except Exception as error:  # whatever it is, nobody may wait for ever
                self._ready = False
                self._queue = [word for word in words if word.answer is None] + self._queue
                self._lose(redact(str(error)) or type(error).__name__)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                pause = PAUSES[0]
                if self.trouble:
                    self.trouble = ""
                    logging.getLogger("wellspoken").info("the store of auth.counters counts again")
            finally:
                self._under_way = []
                late.cancel()

    def _note_late(self, words: Sequence[_Word], turns: int) -> None:
        """Let nobody wait any longer for what was said, nor for what is behind it.

        What came while the loop was busy with something else is read first, in a few `turns`.
        """
        if self._under_way is not words:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._note_late, words, turns - 1)
        else:
            self._lose(f"no answer in {WAIT:g} s")

    async def _exchange(self, words: Sequence[_Word]) -> None:
        """Say words and give the answers to who waits. Raises what the client does."""
        if not self._ready:
            for script in _SCRIPTS.values():
                await self._redis.script_load(script)
            self._ready = True
        pipe = self._redis.pipeline(transaction=False)
        for word in words:
            pipe.evalsha(word.script, len(word.keys), *word.keys, *word.arguments)
        answers = await pipe.execute(raise_on_error=False)
        for word, said in zip(words, answers, strict=True):
            if isinstance(said, Exception):
                raise said
            if word.answer is not None and not word.answer.done():
                word.answer.set_result(said)

    def _probe(self) -> list[_Word]:
        """Return words that change nothing, but for which the store has to do all that it may."""
        keys = _keys("_")  # no client's name
        return [
            _Word(_RESERVING, keys, [0, 0, 0, 0, "_", 1.0]),
            _Word(_SETTLING, keys, [0, 0, 0, 0, "_"]),
        ]

    async def _keep_leases(self) -> None:
        """Renew the leases of open requests, until none is open."""
        while self._open:
            await asyncio.sleep(self._lease / 3)
            by_client: dict[str, list[str]] = {}
            for id, client in self._open.items():
                by_client.setdefault(client, []).append(id)
            if not self.trouble:
                for client, ids in by_client.items():
                    self._say(_Word(_RENEWING, [_keys(client)[2]], [self._lease, *ids]))

    def _lose(self, why: str) -> None:
        """Note that the store is away, and let the requests pass that wait for it."""
        if not self.trouble:
            self.trouble = AWAY
            log = logging.getLogger("wellspoken")
            log.warning("%s (%s): clients' requests pass uncounted until it is", AWAY, why)
        for word in (*self._under_way, *self._queue):
            if word.answer is not None and not word.answer.done():
                word.answer.set_result(None)
        self._queue = [word for word in self._queue if word.answer is None]


def _keys(client: str) -> list[str]:
    return [f"wellspoken:{{{client}}}:{what}" for what in ("requests", "tokens", "open")]


def _known_scheme(url: str) -> str:
    """Return the URL as redis-py reads it: valkey:// is the same protocol."""
    return f"redis{url.removeprefix('valkey')}" if url.startswith("valkey") else url
