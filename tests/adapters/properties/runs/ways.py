"""How servers show tokens: one way an answer."""

from __future__ import annotations

import codecs
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.adapters.properties.runs.model import Octets, Shown, Token
from tests.adapters.properties.runs.texts import CUTS, Cut, cut_pieces

Spelled = tuple[str, bytes | None]
"""(name, the bytes that it tells)"""

_CLEAN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_REST = [b for b in range(256) if b not in _CLEAN]
_LETTER = {b: chr(b) if b in _CLEAN else chr(256 + _REST.index(b)) for b in range(256)}


def is_whole(data: bytes) -> bool:
    """Say whether bytes are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def escape(data: bytes) -> Spelled:
    """Write bytes that are no text as OpenAI's chat does."""
    return data.decode("utf-8", "backslashreplace"), data


def escape_named(data: bytes) -> Spelled:
    """Write bytes that are no text as OpenAI's completions do."""
    return ("" if is_whole(data) else "bytes:") + data.decode("utf-8", "backslashreplace"), data


def replace_parts(data: bytes) -> Spelled:
    """Decode each token alone, with U+FFFD."""
    name = data.decode("utf-8", "replace")
    return name, None if "\ufffd" in name else data


def ignore_parts(data: bytes) -> Spelled:
    """Decode each token alone, and leave out what is no text."""
    return data.decode("utf-8", "ignore"), data if is_whole(data) else None


def blank_parts(data: bytes) -> Spelled:
    """Show no text for a token that is not whole characters."""
    return (data.decode(), data) if is_whole(data) else ("", None)


def name_bytes(data: bytes) -> Spelled:
    """Write one byte as llama.cpp to b4273 does; other parts with U+FFFD."""
    if len(data) == 1 and not is_whole(data):
        return f"byte: \\x{data[0]:02x}", data
    return replace_parts(data)


def raw_pieces(data: bytes) -> Spelled:
    """Spell as a sentencepiece vocabulary does."""
    if data in (b"\n", b"\t") or not is_whole(data):
        return "".join(f"<0x{b:02X}>" for b in data), data
    return data.decode().replace(" ", "▁"), data


def raw_bytes(data: bytes) -> Spelled:
    """Spell as a byte-level vocabulary does, a letter for a byte."""
    return "".join(_LETTER[b] for b in data), data


@dataclass(frozen=True)
class Way:
    """How a server shows tokens.

    `octets`: what `bytes` may be: "true", "text" (the name's own), "null", "absent".
    """

    spell: Callable[[bytes], Spelled]
    octets: tuple[str, ...]
    shapes: tuple[str, ...] = ("chat", "completions")
    cuts: tuple[Cut, ...] = CUTS
    held: bool = False  # a part has no text, and the last part has the whole character
    weight: int = 2


BARE = ("null", "absent")
WAYS: dict[str, Way] = {
    "openai": Way(escape, ("true",), ("chat",), weight=3),
    "escaped": Way(escape, BARE, ("chat",)),
    "bytes": Way(escape_named, ("absent",), ("completions",), weight=6),
    "lossy": Way(replace_parts, (*BARE, "text"), weight=4),
    "ignored": Way(ignore_parts, BARE, weight=3),
    "vllm": Way(blank_parts, ("text",), held=True, weight=4),
    "llamacpp": Way(blank_parts, ("true",), ("chat",)),
    "llamacpp-replaced": Way(replace_parts, ("true",), ("chat",)),
    "blank": Way(blank_parts, (*BARE, "empty"), weight=3),
    "byte-named": Way(name_bytes, BARE),
    "sentencepiece": Way(raw_pieces, (*BARE, "text"), cuts=(cut_pieces,), weight=3),
    "byte-level": Way(raw_bytes, (*BARE, "text"), weight=3),
    "placeholders": Way(escape, (*BARE, "text")),
}


def octets_of(how: str, name: str, data: bytes) -> Octets:
    """Return what stands as `bytes`."""
    if how == "true":
        return list(data)
    if how == "text":
        return list(name.encode())
    if how == "empty":
        return [] if not name else None
    return None if how == "null" else "absent"


def show(dice: random.Random, way: str, tokens: list[Token], *, whole: bool) -> list[Shown]:
    """Show tokens one way; `whole`: the text ends in a whole character."""
    found = WAYS[way]
    how = dice.choice(found.octets)
    if way == "placeholders":
        return _placeholders(tokens, how)
    if found.held:
        return _held(tokens, keeps=whole and dice.random() < 0.5)
    shown = [_alone(token, found, how) for token in tokens]
    return _soften(shown) if way == "ignored" else shown


def _alone(token: Token, way: Way, how: str) -> Shown:
    """Show a token by itself, its alternatives likewise."""
    if token.control:
        return _control(token, how)
    name, told = way.spell(token.data)
    top = []
    for data, number in token.top:
        other = way.spell(data)[0]
        top.append((other, octets_of(how, other, data), number))
    octets = octets_of(how, name, token.data)
    if how == "true":
        told = token.data
    return Shown(name, octets, told, tuple(top), token.data)


def _control(token: Token, how: str) -> Shown:
    """Show a control token: its text, its bytes if bytes are told at all."""
    name = token.data.decode()
    octets = octets_of(how, name, token.data)
    top = tuple(
        (data.decode("utf-8", "replace"), octets_of(how, data.decode("utf-8", "replace"), data), x)
        for data, x in token.top
    )
    return Shown(name, octets, token.data or None, top, token.data)


def _soften(shown: list[Shown]) -> list[Shown]:
    """Let a text beside one that lacks parts be more than it says: nothing tells whose they are."""
    found = []
    for n, one in enumerate(shown):
        beside = [shown[m].told is None for m in (n - 1, n + 1) if 0 <= m < len(shown)]
        found.append(replace(one, soft=True) if any(beside) else one)
    return found


def _held(tokens: list[Token], *, keeps: bool) -> list[Shown]:
    """Show a part as "" and the character with its last part; `keeps`: what precedes it, too."""
    found: list[Shown] = []
    data = b""
    decoder = codecs.getincrementaldecoder("utf-8")
    for token in tokens:
        if token.control:
            found.append(_control(token, "text"))
            continue
        data += token.data
        name = decoder().decode(data)
        if keeps and name.encode() != data:
            name = ""
        data = data[len(name.encode()) :]
        octets = list(name.encode())
        top = []
        for other, number in token.top:
            # The sampled token's own text; others are decoded where it stands.
            text = name if other == token.data else other.decode("utf-8", "replace")
            top.append((text, list(text.encode()), number))
        found.append(Shown(name, octets, name.encode() or None, tuple(top), name.encode()))
    return found


def _placeholders(tokens: list[Token], how: str) -> list[Shown]:
    """Show ids alone."""
    ids: dict[bytes, int] = {}

    def name(data: bytes) -> str:
        return f"token_id:{ids.setdefault(data, 100 + 7 * len(ids))}"

    found = []
    for token in tokens:
        own = name(token.data)
        top = [(name(d), octets_of(how, name(d), d), x) for d, x in token.top]
        found.append(Shown(own, octets_of(how, own, b""), None, tuple(top), token.data))
    return found
