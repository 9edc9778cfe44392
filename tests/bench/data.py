"""Answers that are hard to translate: tokens by Zipf's law, and samples that are not the best one.

Kind data (one token repeated, its own best alternative) makes a kernel look twice as fast as it is:
its caches always hit and nothing needs sorting. Here a third of the positions sampled another token
than the best, and a quarter of those one outside the top k. All comes from one seed.
"""

from __future__ import annotations

import itertools
import random
import struct
from dataclasses import dataclass
from functools import cache
from typing import Final

SIZE: Final = 32_000
SEED: Final = 7

_ONSETS = "b c ch d f g h j k l m n p pr qu r s sh st t th tr v w y z".split()
_NUCLEI = "a e i o u ai ea ee io ou".split()
_CODAS = ["", "", "", "n", "r", "s", "t", "l", "nd", "st", "ng", "ck", "m", "ble", "tion"]
_MARKS = [
    *".,:;!?'\"()[]{}<>/\\|@#$%^&*-_=+~`",
    *(" " + mark for mark in "(\"'-[{=*#<&/$+|"),
    *("\n", "\n\n", "\t", "  ", "    ", " \n", ".\n", ",\n", "();\n", '":', '",', '{"', "</", "->"),
    *("'s", "'t", "\u2019s"),
    *("“", "”", "…", "—", " —", "°", "€", " £", "²", " →", "\u2028", "\u00a0"),
]


@dataclass(frozen=True)
class Position:
    """One token as a model gave it: `top` are the best k, descending; it may not be among them."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Answer:
    """A completion without its wire form; `k` alternatives a position, 0 for no logprobs at all."""

    k: int
    positions: tuple[Position, ...]

    @property
    def text(self) -> str:
        """The content."""
        return "".join(position.token for position in self.positions)


def vocabulary(seed: int = SEED) -> list[str]:
    """Return `SIZE` distinct token texts, the most frequent first: words, marks, CJK, emoji."""
    rng = random.Random(seed)
    found = dict.fromkeys(_MARKS)
    found.update(dict.fromkeys(map(str, range(1000))))
    found.update(dict.fromkeys(chr(0x4E00 + n) for n in range(2600)))
    found.update(dict.fromkeys(chr(0x3041 + n) for n in range(86)))
    found.update(dict.fromkeys(chr(0xAC00 + 28 * n) for n in range(399)))
    found.update(dict.fromkeys(chr(0x1F600 + n) for n in range(80)))
    found.update(dict.fromkeys(" " + chr(0x1F300 + n) for n in range(120)))
    for _ in range(1200):
        found[_foreign(rng)] = None
    while len(found) < SIZE:
        word = "".join(_syllable(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        word = word.capitalize() if rng.random() < 0.2 else word
        found[" " + word if rng.random() < 0.6 else word] = None
    tokens = list(found)
    common = tokens[:40] + rng.sample(tokens[-20_000:], 160)
    rng.shuffle(common)
    rest = list(found.keys() - set(common))
    rest.sort()  # a set's order differs from run to run
    rng.shuffle(rest)
    return common + rest


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_NUCLEI) + rng.choice(_CODAS)


def _foreign(rng: random.Random) -> str:
    letters = rng.choice(("äéèöüßçñø", "абвгдежзиклмнопрст", "αβγδεζηθικλμνξοπρστ"))
    return rng.choice(("", " ")) + "".join(rng.choices(letters, k=rng.randint(2, 5)))


class Source:
    """Draws answers; two sources of one seed draw the same ones."""

    def __init__(self, seed: int = SEED) -> None:
        self.rng = random.Random(seed)
        self.tokens = _tokens(seed)
        self.weights = list(itertools.accumulate(1 / rank for rank in range(1, SIZE + 1)))

    def answer(self, size: int, k: int) -> Answer:
        """Return an answer of `size` tokens with `k` alternatives each."""
        return Answer(k, tuple(self._position(k) for _ in range(size)))

    def _position(self, k: int) -> Position:
        names: dict[str, None] = {}
        while len(names) < k + 1:
            drawn = self.rng.choices(self.tokens, cum_weights=self.weights, k=k + 4)
            names.update(dict.fromkeys(drawn))
        value = -self.rng.expovariate(1.5)
        rows = []
        for name in itertools.islice(names, k + 1):
            rows.append((name, _float32(value)))
            value -= 1e-3 + self.rng.expovariate(0.8)
        token, logprob = rows[self._chosen(k)]
        return Position(token, logprob, tuple(rows[:k]))

    def _chosen(self, k: int) -> int:
        """Return the rank of the sampled token: 0 is the best, k the first outside the top k."""
        if self.rng.random() >= 1 / 3 or k == 0:
            return 0
        return k if self.rng.random() < 1 / 4 else self.rng.randint(1, max(k - 1, 1))


_tokens = cache(vocabulary)  # half a second, for each of many sources


def _float32(value: float) -> float:
    """Return what a server prints: a 32-bit float with the 17 digits of a 64-bit one."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
