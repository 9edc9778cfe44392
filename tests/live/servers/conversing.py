"""Conversations with a server, many at once, and how much of their prompts it had kept.

Each turn sends all that was said before. A server that answered the turn before has that in its
cache; another has to read it anew.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession

from tests.models.tiny import WORDS

SEED = 20_261
TURNS = 4
FIRST, NEXT = 250, 60  # words of a conversation's first message, of the others


@dataclass
class Told:
    """What servers told of the prompts: tokens, those of a cache; and who answered."""

    prompt: int = 0
    cached: int = 0
    servers: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """The part of the prompts' tokens that a cache had."""
        return self.cached / self.prompt


async def converse(
    url: str, conversations: int, clients: int, *, common: int = 0, session: str = "x-session-id"
) -> Told:
    """Hold conversations of TURNS turns with the server at `url`, in an order by chance.

    So many clients take the next turn of any conversation, each once the one before was answered.
    `common`: words with which all begin. `session`: the header that names a conversation.
    """
    chance = random.Random(SEED)
    beginning = _say(chance, common)
    turns = [number for number in range(conversations) for _ in range(TURNS)]
    chance.shuffle(turns)
    firsts = [_say(chance, FIRST) for _ in range(conversations)]
    said = [_begin(beginning, first) for first in firsts]
    more = [iter([_say(chance, NEXT) for _ in range(TURNS)]) for _ in range(conversations)]
    locks = [asyncio.Lock() for _ in range(conversations)]
    told = Told()
    waiting = iter(turns)

    async def take_turns(http: ClientSession) -> None:
        for number in waiting:
            async with locks[number]:
                answer = await _ask(http, url, said[number], {session: f"s{number}"}, told)
                said[number] += [answer, {"role": "user", "content": next(more[number])}]

    async with ClientSession() as http:
        await asyncio.gather(*(take_turns(http) for _ in range(clients)))
    return told


def _begin(beginning: str, first: str) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": beginning}] if beginning else []
    return [*system, {"role": "user", "content": first}]


def _say(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


async def _ask(
    http: ClientSession,
    url: str,
    messages: Sequence[dict[str, Any]],
    headers: dict[str, str],
    told: Told,
) -> dict[str, Any]:
    asked = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0}
    async with http.post(f"{url}/v1/chat/completions", json=asked, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        usage = answer["usage"]
        told.prompt += usage["prompt_tokens"]
        told.cached += usage["prompt_tokens_details"]["cached_tokens"]
        told.servers[response.headers.get("x-wellspoken-backend", "")] += 1
    message = answer["choices"][0]["message"]
    return {"role": "assistant", "content": message["content"]}
