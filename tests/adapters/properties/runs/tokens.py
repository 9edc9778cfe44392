"""The tokens of an answer: what the model made, in its order, before anybody shows it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.adapters.properties.runs.model import Form, Role, Shape, Token
from tests.adapters.properties.runs.texts import (
    ENDING,
    NAMES,
    POOLS,
    Cut,
    cut_anywhere,
    cut_pieces,
    draw_text,
    draw_thoughts,
)

STOPS = ("###", "\nUser:", "END", "\n\n\n", "</stop>", "~~")
ENDS = (b"", b"</s>", b"<|im_end|>")
OTHERS = (" dog", "Yes", "你", "é", " caf", "0", "\n", " 👍", "The", "zz", " и", "猫")
PARTS = (b"\xe4", b"\xe4\xbd", b"\xf0\x9f", b"\x98", b"\xc3", b"a\xc3")


@dataclass
class Plan:
    """What kind of answer is drawn.

    `most`: words of a text, about. `parts`: alternatives may be parts of characters.
    """

    way: str
    shape: Shape
    form: Form
    arrays: bool
    k: int
    cut: Cut
    most: int
    reasoning: str  # none, hidden, same, shown
    markup: str  # none, CMC, CM, MC
    end: str  # eos, none, stop, length, cut-shown, cut-left
    empty: bool
    strip: str  # none, one, all
    parts: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return its kinds by name."""
        found = [self.end]
        if self.reasoning != "none":
            found.append(f"think-{self.reasoning}")
        if self.markup != "none":
            found.append(self.markup)
        if self.empty:
            found.append("empty")
        if self.strip != "none":
            found.append(f"strip-{self.strip}")
        return tuple(found)


@dataclass
class Piece:
    """A token before it has numbers: `low` and `high` are its place in its run of the text."""

    data: bytes
    role: Role
    control: bool = False


@dataclass
class Made:
    """What the model made. `window`: the bytes of the content's runs, joined, that are content.

    `tail`: the content shows U+FFFD for the parts that it ends in.
    """

    pieces: list[Piece] = field(default_factory=list)
    window: tuple[int, int] = (0, 0)
    reasoning: str | None = None
    call: tuple[str, str] | None = None
    stops: tuple[str, ...] = ()
    whole: bool = True  # the content's last token ends a character


def make(dice: random.Random, plan: Plan) -> Made:
    """Make the tokens of a plan."""
    made = Made()
    if plan.reasoning != "none":
        _think(dice, plan, made)
    first = "" if plan.empty else draw_text(dice, plan.most)
    if plan.reasoning != "none" and made.pieces[-1].data.isspace():
        first = "" if plan.empty else first.lstrip() or "x"  # else whose white space is it?
    if plan.strip != "none" and dice.random() < 0.5:
        first = " " + first
    second = draw_text(dice, plan.most) if plan.markup in ("CMC", "MC") else ""
    before, after = ("", second) if plan.markup == "MC" else (first, second)
    if plan.markup == "MC" and plan.strip != "none":
        after = first
    _run(dice, plan, made, before)
    if plan.markup != "none":
        _call(dice, plan, made)
        _run(dice, plan, made, after)
    text = before + after
    # One of two equal spaces is stripped: nothing would tell which.
    some = plan.strip == "all" or text[1:2].isspace()
    low = len(text) - len(text.lstrip()) if some else int(text.startswith(" "))
    low = 0 if plan.strip == "none" or not text.strip() else len(text[:low].encode())
    made.window = (low, len(text.encode()))
    _end(dice, plan, made, text)
    return made


def _run(dice: random.Random, plan: Plan, made: Made, text: str) -> None:
    if text:
        made.pieces += [Piece(data, "C") for data in plan.cut(dice, text.encode())]


def _think(dice: random.Random, plan: Plan, made: Made) -> None:
    """Begin with reasoning: in its own words, or closed by a token that says so."""
    same = plan.reasoning != "hidden" and dice.random() < 0.7
    text = draw_text(dice, min(plan.most, 12)) if same else draw_thoughts(dice)
    closed = same or plan.reasoning != "hidden" or dice.random() < 0.5
    pieces = [Piece(b"<think>", "R", True)] if closed and dice.random() < 0.5 else []
    if pieces and dice.random() < 0.5:
        pieces.append(Piece(b"\n", "R"))
    pieces += [Piece(data, "R") for data in plan.cut(dice, text.encode())]
    if not same:
        pieces.append(Piece(ENDING.encode(), "R"))
        text += ENDING
    if closed:
        pieces.append(Piece(b"</think>", "R", True))
        if dice.random() < 0.3:
            pieces.append(Piece(b"\n\n", "R"))
    made.pieces += pieces
    made.reasoning = text if plan.reasoning == "shown" else None


def _call(dice: random.Random, plan: Plan, made: Made) -> None:
    arguments = json.dumps({"q": dice.choice(NAMES)}, ensure_ascii=dice.random() < 0.2)
    text = f'{{"name": "look", "arguments": {arguments}}}'
    space = [Piece(b"\n", "M")] if dice.random() < 0.5 else []
    inner = [Piece(data, "M") for data in plan.cut(dice, text.encode())]
    edges = (b"<tool_call>", b"</tool_call>")
    opening, closing = (Piece(edge, "M", True) for edge in edges)
    made.pieces += [opening, *space, *inner, *space, closing]
    made.call = ("look", arguments)


def _end(dice: random.Random, plan: Plan, made: Made, text: str) -> None:
    """End it: with a token that says so, a stop string, or inside a character."""
    if plan.end == "eos":
        made.pieces.append(Piece(dice.choice(ENDS), "E", True))
    elif plan.end == "stop":
        _stop(dice, plan, made, text)
    elif plan.end in ("cut-shown", "cut-left"):
        last = dice.choice(("é", "你", "😀", "語")).encode()
        part = last[: dice.randint(1, len(last) - 1)]
        made.whole = False
        pieces = [part] if dice.random() < 0.5 else cut_anywhere(dice, part)
        if plan.cut is cut_pieces:
            pieces = [bytes([b]) for b in part]
        alone = plan.cut is not cut_anywhere or dice.random() < 0.6
        if not alone and made.pieces and made.pieces[-1].role == "C":
            made.pieces[-1].data += pieces.pop(0)
        shows = plan.end == "cut-shown"
        made.pieces += [Piece(data, "C" if shows else "P") for data in pieces]
        if shows:
            made.window = (made.window[0], made.window[1] + len(part))


def _stop(dice: random.Random, plan: Plan, made: Made, text: str) -> None:
    """Put a stop string behind the content, and cut that anew with it."""
    stop = next((s for s in dice.sample(STOPS, len(STOPS)) if (text + s).find(s) == len(text)), "§")
    made.stops = (stop,)
    mine = [n for n, piece in enumerate(made.pieces) if piece.role == "C"]
    tail = dice.choice(("", "", " x", "!", "\n"))
    size = len(made.pieces) - len(mine)
    if plan.markup != "none":
        raise ValueError("a stop string with markup")
    data = text.encode() + stop.encode()
    pieces, at = made.pieces[:size], 0
    for part in plan.cut(dice, data + tail.encode()):
        if at < len(data):
            pieces.append(Piece(part, "C" if at < len(text.encode()) else "E"))
        at += len(part)
    made.pieces = pieces


def score(dice: random.Random, plan: Plan, made: Made) -> list[Token]:
    """Give each token its number and its alternatives, all numbers of an answer distinct."""
    size = (len(made.pieces) + 1) * (plan.k + 3)
    numbers = (-n / 1e6 for n in dice.sample(range(2_000, 30_000_000), size))
    draw: Callable[[], float] = numbers.__next__
    near = [piece.data for piece in made.pieces[:8] if piece.data]
    most = dice.choice((plan.k, plan.k, plan.k, plan.k + 1, max(plan.k, 1)))
    return [_scored(dice, plan, piece, most, near, draw) for piece in made.pieces]


def _scored(
    dice: random.Random,
    plan: Plan,
    piece: Piece,
    most: int,
    near: list[bytes],
    draw: Callable[[], float],
) -> Token:
    size = most if dice.random() < 0.9 else dice.randint(0, most)
    others: list[bytes] = []
    while len(others) < size:
        kind = dice.random()
        if plan.parts and kind < 0.2:
            other = dice.choice(PARTS)
        elif kind < 0.4 and near and (plan.parts or _is_whole(x := dice.choice(near))):
            other = dice.choice(near) if plan.parts else x
        elif kind < 0.7:
            other = dice.choice(dice.choice(POOLS)).encode()
        else:
            other = dice.choice(OTHERS).encode()
        if other != piece.data and other not in others:
            others.append(other)
    if not size or dice.random() < 0.2:
        values = sorted((draw() for _ in range(size + 1)), reverse=True)
        return Token(
            piece.data, piece.role, values[-1], tuple(zip(others, values, strict=False)),
            piece.control,
        )  # fmt: skip
    values = sorted((draw() for _ in range(size)), reverse=True)
    rank = 0 if dice.random() < 0.7 else dice.randrange(size)
    names = [*others[:rank], piece.data, *others[rank : size - 1]]
    top = tuple(zip(names, values, strict=True))
    return Token(piece.data, piece.role, values[rank], top, piece.control)


def _is_whole(data: bytes) -> bool:
    return "\ufffd" not in data.decode("utf-8", "replace")
