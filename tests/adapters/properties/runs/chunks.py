"""A stream of an answer: which entries and which text each event brings."""

from __future__ import annotations

import codecs
import random

from tests.adapters.properties.runs.model import Chunk, Token
from tests.adapters.properties.runs.tokens import Made, Plan


def cut_chunks(
    dice: random.Random, plan: Plan, made: Made, tokens: list[Token], content: str
) -> list[Chunk]:
    """Cut the answer into the events of its form."""
    each = _each(dice, made, tokens, content)
    if plan.form in ("aligned", "grouped", "split", "late"):
        each = _group(dice, each, tokens, most=1 if plan.form != "grouped" else 6)
    if plan.form == "held":
        each = _hold(dice, each, tokens)
    if plan.form == "split":
        each = [part for chunk in each for part in _split(chunk)]
    if plan.form == "late":
        each = _delay(each)
    if made.call is not None and plan.form != "late":
        each = _call(dice, each, tokens, made.call)
    return each


def _each(dice: random.Random, made: Made, tokens: list[Token], content: str) -> list[Chunk]:
    """Return an event a token, with the text that is whole by then."""
    found: list[Chunk] = []
    speaks = codecs.getincrementaldecoder("utf-8")()
    thinks = codecs.getincrementaldecoder("utf-8")()
    written = 0
    for n, token in enumerate(tokens):
        chunk = Chunk([n])
        if made.reasoning is not None and is_thought(tokens, n):
            chunk.reasoning = thinks.decode(token.data)
        elif token.owned:
            chunk.text = speaks.decode(token.owned)
            written += len(chunk.text)
        found.append(chunk)
    if written < len(content):
        if found and dice.random() < 0.5 and tokens[-1].role == "C":
            found[-1].text += content[written:]
        else:
            found.append(Chunk([], content[written:]))
    return found


def is_thought(tokens: list[Token], n: int) -> bool:
    """Say whether the token is of the reasoning's text: no tag, no white space behind one."""
    token = tokens[n]
    behind = n > 0 and tokens[n - 1].role == "R" and tokens[n - 1].control
    return token.role == "R" and not token.control and not (behind and token.data.isspace())


def _channel(chunk: Chunk, tokens: list[Token]) -> str:
    if not chunk.entries:
        return "C"
    token = tokens[chunk.entries[-1]]
    return "C" if token.role == "P" else token.role + ("!" if token.control else "")


def _group(dice: random.Random, each: list[Chunk], tokens: list[Token], most: int) -> list[Chunk]:
    """Join events until their text is whole: the entries come with the text that they own.

    What has no text ends up with what follows, or by itself.
    """
    found: list[Chunk] = []
    size = dice.randint(1, most)
    rides = dice.random() < 0.3
    for chunk in each:
        last = found[-1] if found else None
        if last is not None and (
            _is_open(last, tokens) or len(last.entries) < size
            if _channel(last, tokens) == _channel(chunk, tokens)
            else rides and _rides(last, chunk, tokens)
        ):
            last.entries += chunk.entries
            last.text += chunk.text
            last.reasoning += chunk.reasoning
            continue
        found.append(Chunk(list(chunk.entries), chunk.text, chunk.reasoning))
        size = dice.randint(1, most)
    return found


def _is_open(chunk: Chunk, tokens: list[Token]) -> bool:
    """Say whether the event ends inside a character of what is shown."""
    if not chunk.entries or tokens[chunk.entries[-1]].role not in "CR":
        return False
    data = b"".join(tokens[n].owned for n in chunk.entries)
    if tokens[chunk.entries[-1]].role == "R":
        data = b"".join(tokens[n].data for n in chunk.entries)
    held = not chunk.text and not chunk.reasoning
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return held and tokens[chunk.entries[-1]].role == "C"


def _rides(last: Chunk, chunk: Chunk, tokens: list[Token]) -> bool:
    """Say whether a tag or an end may come with its neighbour's text."""
    if last.reasoning or chunk.reasoning:
        return _channel(last, tokens) == "R" and _channel(chunk, tokens) == "R!"
    pair = (_channel(last, tokens), _channel(chunk, tokens))
    return pair in {("R!", "C"), ("R!", "R"), ("C", "E"), ("C", "E!"), ("C", "M!"), ("M!", "C")}


def _hold(dice: random.Random, each: list[Chunk], tokens: list[Token]) -> list[Chunk]:
    """Hold text back by up to some characters; what is held at a change or the end comes alone."""
    found: list[Chunk] = []
    held, most = "", dice.randint(1, 12)
    for chunk in each:
        if held and (chunk.reasoning or _channel(chunk, tokens)[0] == "M"):
            found.append(Chunk([], held))
            held = ""
        held += chunk.text
        keep = most if dice.random() < 0.5 else dice.randint(0, most)
        cut = max(len(held) - keep, 0)
        if chunk.entries or cut or chunk.reasoning:
            found.append(Chunk(list(chunk.entries), held[:cut], chunk.reasoning))
        held = held[cut:]
    if held:
        found.append(Chunk([], held))
    return found


def _split(chunk: Chunk) -> list[Chunk]:
    """Send the entries first, and then the text."""
    if not chunk.text or not chunk.entries:
        return [chunk]
    return [Chunk(chunk.entries, "", chunk.reasoning), Chunk([], chunk.text)]


def _delay(each: list[Chunk]) -> list[Chunk]:
    """Send each event's entries with the next one."""
    entries = [[], *(chunk.entries for chunk in each)]
    texts = [*(chunk.text for chunk in each), ""]
    return [Chunk(list(one), text) for one, text in zip(entries, texts, strict=True)]


def _call(
    dice: random.Random, each: list[Chunk], tokens: list[Token], call: tuple[str, str]
) -> list[Chunk]:
    """Put the call where its markup is: on its entries' events, or on one behind them."""
    name, arguments = call
    cut = dice.randint(0, len(arguments))
    head = {"index": 0, "id": "call_1", "type": "function"}
    deltas = [
        {**head, "function": {"name": name, "arguments": arguments[:cut]}},
        {"index": 0, "function": {"arguments": arguments[cut:]}},
    ]
    mine = [n for n, c in enumerate(each) if c.entries and tokens[c.entries[-1]].role == "M"]
    if len(mine) > 1 and dice.random() < 0.5:
        places = sorted(dice.sample(mine, 2))
        for place, delta in zip(places, deltas, strict=True):
            each[place].call = delta
        return each
    behind = [Chunk([], call=delta) for delta in deltas]
    # Text that is held back at the markup comes before the call does.
    return [*each[: mine[-1] + 1], *behind, *each[mine[-1] + 1 :]]
