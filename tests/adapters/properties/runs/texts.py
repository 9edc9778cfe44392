"""Texts of a model, and how vocabularies cut them into tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise

WORDS = (
    " the", " cat", " Hello", " world", "ing", " of", " a", "s", ".", ",", " and", " 42", "!", " x",
)  # fmt: skip
ACCENTS = (" café", " naïve", "é", "ß", " Größe", " señor", "ü", "e\u0301", " Œuvre", "ø")
CJK = ("你好", "世界", "。", "日本", "語", "한국", "어", "你", "好", "ข้อ")
EMOJI = ("😀", " 👍", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "👍🏽", "🇩🇪", "❤\ufe0f")
SPACE = ("\n", "\n\n", "  ", "\t", " ", "    ", "\r\n", "\u3000", "\u2028")
CODE = (
    "def f(x):\n    return x", '{"a": 1}', "</div>", "<b>", " [0]", "x += 1;\n", "```py\n", " #",
    '"', "\\n", "&amp;", "data: ", "//", " -> ", "'",
)  # fmt: skip
POOLS = (WORDS, ACCENTS, CJK, EMOJI, SPACE, CODE)

THOUGHTS = ("ДУМАЮ", "ЖДУ", "ЩУКА", "ΨΩ", "ЯЩИК", "ΞΦ", "ЮЛА", "思", "🧠")
"""Words that no content has, none of which ends or begins with white space."""
ENDING = "ИТАК"
NAMES = ("ΠΟΛΗ", "ΚΑΙΡΟΣ", "ΨΩΜΙ", "שלום")
"""Words of a call's arguments that no content and no reasoning has."""

PROMPTS = ("", "x", "Once upon a time", "你好 é")

Cut = Callable[[random.Random, bytes], list[bytes]]


def draw_text(dice: random.Random, most: int) -> str:
    """Draw a text of up to so many words, of one or several kinds."""
    pools = dice.choices(POOLS, (5, 3, 3, 3, 2, 2), k=dice.choice((1, 1, 2, 3, 6)))
    return "".join(dice.choice(dice.choice(pools)) for _ in range(dice.randint(1, most)))


def draw_thoughts(dice: random.Random) -> str:
    """Draw a text of reasoning in words of its own."""
    return "".join(dice.choice(THOUGHTS) for _ in range(dice.randint(1, 8)))


def cut_anywhere(dice: random.Random, data: bytes) -> list[bytes]:
    """Cut bytes anywhere, inside characters too."""
    size = len(data)
    share = dice.choice((0.1, 0.3, 0.6))
    edges = [0, *(n for n in range(1, size) if dice.random() < share), size]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


def cut_words(dice: random.Random, data: bytes) -> list[bytes]:
    """Cut a text before white space and between scripts, characters whole."""
    found = re.findall(r"\s?[A-Za-z]+|\s?\d|\s+|[^\sA-Za-z\d]{1,2}", data.decode())
    return [word.encode() for word in found]


def cut_bytes(dice: random.Random, data: bytes) -> list[bytes]:
    """Cut what is not ASCII into single bytes."""
    return [
        byte
        for word in cut_words(dice, data)
        for byte in ([word] if word.isascii() else [bytes([b]) for b in word])
    ]


def cut_pieces(dice: random.Random, data: bytes) -> list[bytes]:
    """Cut as a sentencepiece vocabulary does: whole characters, or each byte of one."""
    found: list[bytes] = []
    joined = False  # the last token is whole characters
    for character in data.decode():
        own = character.encode()
        if len(own) > 1 and dice.random() < 0.3:
            found += [bytes([b]) for b in own]
            joined = False
        elif joined and character not in " \n\t" and dice.random() < 0.7:
            found[-1] += own
        else:
            found.append(own)
            joined = character not in "\n\t"
    return found


CUTS: tuple[Cut, ...] = (cut_anywhere, cut_words, cut_bytes, cut_pieces)
