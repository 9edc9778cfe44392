"""Stored completions as many clients leave them: skewed owners, models and metadata, 4 kB answers.

All comes from one seed. A hundred different texts are drawn by Zipf's law (tests/bench/data.py)
and used again under new ids: a database does not look into them, and zlib sees one at a time.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.bench.data import SEED, Source
from wellspoken.proxy.store.rows import Capture, Row, row_of

SIZE: Final = 4096
"""Bytes of an answer's JSON, about."""
START: Final = 1_767_225_600
"""When the first one was created: 2026-01-01."""

MODELS: Final = {"qwen3-8b": 700, "llama-3.3-70b": 200, "gpt-oss-20b": 99, "tiny-rare": 1}
SPLITS: Final = {"train": 90, "eval": 9, "test": 1}
PROJECTS: Final = 40
USERS: Final = 50_000
OWNERS: Final = 8
"""The first has half of all rows, each further one half of what is left."""


@dataclass(frozen=True)
class Filter:
    """What a client asks the list for, and what kind of question that is."""

    name: str
    metadata: tuple[tuple[str, str], ...] = ()
    model: str | None = None

    def matches(self, row: Row) -> bool:
        """Whether the row is asked for."""
        if self.model is not None and row.model != self.model:
            return False
        return all(row.metadata.get(key) == value for key, value in self.metadata)


EVERYTHING: Final = Filter("all")
FILTERS: Final = (
    Filter("metadata, 77% of the rows", (("split", "train"),)),
    Filter("metadata, 0.9%", (("split", "test"),)),
    Filter("metadata, 1 in 60,000", (("user", "u00007"),)),
    Filter("metadata, a run of 2,000 rows", (("run", "r00003"),)),
    Filter("metadata, none", (("user", "nobody"),)),
    Filter("two pairs, 0.1%", (("project", "p03"), ("split", "test"))),
    Filter("two frequent pairs, none has both", (("project", "p00"), ("tier", "paid"))),
    Filter("model, 70%", model="qwen3-8b"),
    Filter("model, 0.1%", model="tiny-rare"),
    Filter("model and metadata, 0.1%", (("split", "test"),), "llama-3.3-70b"),
)


def accumulated(weights: list[float]) -> list[float]:
    """Return what `choices` wants."""
    return list(itertools.accumulate(weights))


class Captures:
    """Draws captures, one after another; two of one seed draw the same ones."""

    def __init__(self, owners: list[str], texts: int = 100, seed: int = SEED) -> None:
        self.rng = random.Random(seed)
        self.owners = owners
        self.count = 0
        self.created = START
        self._bodies, self._prompts = _texts(texts, seed)
        self._shares = accumulated([2.0**-n for n in range(len(owners))])
        self._models = accumulated([float(n) for n in MODELS.values()])
        self._splits = accumulated([float(n) for n in SPLITS.values()])
        self._projects = accumulated([1 / (n + 1) for n in range(PROJECTS)])

    def _metadata(self) -> dict[str, str]:
        rng = self.rng
        if rng.random() < 0.15:
            return {}
        project = rng.choices(range(PROJECTS), cum_weights=self._projects)[0]
        found = {
            "split": rng.choices(list(SPLITS), cum_weights=self._splits)[0],
            "project": f"p{project:02}",
            "run": f"r{self.count // 2000:05}",
            "user": f"u{rng.randrange(USERS):05}",
            # Two frequent values that never meet: the worst case of picking one index.
            "tier": "free" if project == 0 or rng.random() < 0.6 else "paid",
        }
        if rng.random() < 0.02:
            found["note"] = rng.choice(self._prompts)[:500]
        return found

    def one(self) -> Capture:
        """Return the next one, created no earlier than the one before, often in the same second."""
        rng = self.rng
        if rng.random() < 0.3:
            self.created += rng.randint(1, 8)
        owner = rng.choices(self.owners, cum_weights=self._shares)[0]
        model = rng.choices(list(MODELS), cum_weights=self._models)[0]
        before, after = rng.choice(self._bodies)
        top = '{"id":"chatcmpl-%024x","object":"chat.completion","created":%d,"model":"%s"'
        request = {
            "model": model,
            "messages": [
                {"role": "system", "content": "You answer briefly and correctly."},
                {"role": "user", "content": rng.choice(self._prompts)},
            ],
            "temperature": 0.7,
            "store": True,
            "metadata": self._metadata(),
        }
        self.count += 1
        return Capture(
            owner,
            f"req-{self.count:09}",
            (top % (rng.getrandbits(96), self.created, model)).encode() + before + after,
            json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode(),
        )

    def some(self, count: int) -> list[Capture]:
        """Return the next `count`."""
        return [self.one() for _ in range(count)]

    def rows(self, count: int) -> list[Row]:
        """Return the rows of the next `count`."""
        return [row_of(self.one()) for _ in range(count)]

    def batches(self, count: int, size: int) -> Iterator[list[Row]]:
        """Yield the rows of the next `count`, `size` at a time."""
        for at in range(0, count, size):
            yield self.rows(min(size, count - at))


@cache
def _texts(count: int, seed: int) -> tuple[list[tuple[bytes, bytes]], list[str]]:
    """Return answers and what they answer, once for all that draw from them."""
    source = Source(seed)
    return [_body(source) for _ in range(count)], [source.answer(60, 0).text for _ in range(count)]


def _body(source: Source) -> tuple[bytes, bytes]:
    """Return an answer behind its model: to the content's end, and the rest."""
    answer = source.answer(700, 0)
    tail = ',"refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":%s}'
    usage = '{"prompt_tokens":74,"completion_tokens":%d,"total_tokens":%d}'
    text, tokens, room = "", 0, SIZE - 330
    for position in answer.positions:
        room -= len(json.dumps(position.token, ensure_ascii=False).encode()) - 2
        if room < 0:
            break
        text += position.token
        tokens += 1
    head = ',"choices":[{"index":0,"message":{"role":"assistant","content":'
    content = head + json.dumps(text, ensure_ascii=False)
    return content.encode(), (tail % (usage % (tokens, tokens + 74))).encode()


class Tally:
    """What has been written: how many rows each owner has, and how many each filter finds."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.owners: Counter[str] = Counter()
        self.matching: Counter[str] = Counter()
        self.ids: list[str] = []
        self.deleted = 0

    def add(self, rows: list[Row]) -> None:
        """Count rows; the ids kept are those of `owner`, in order."""
        for row in rows:
            self.owners[row.owner] += 1
            if row.owner == self.owner:
                self.ids.append(row.id)
                self.matching.update(x.name for x in FILTERS if x.matches(row))

    def expected(self, wanted: Filter) -> int:
        """Return how many rows of `owner` match."""
        return self.owners[self.owner] if wanted == EVERYTHING else self.matching[wanted.name]
