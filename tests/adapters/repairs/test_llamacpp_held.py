"""Text that llama.cpp holds back comes to its own tokens, whatever is held and for how long."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from msgspec import UNSET

from wellspoken.adapters.events import Alternative, Entry
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.native import Held
from wellspoken.adapters.tokens.table import NULL, bytes_json, spell

PIECES = [b"a", b"ab", b" b", b"\n", b"b ab", b"\xc3", b"\xa9", " \u00e9".encode(), b"aa", b"c"]
STOPS = ["ab a", "b\n", "aab", "\u00e9a", "ab\u00e9", "c"]


def context() -> Context:
    return Context(Exchange(model="m", now=1, new_id=lambda: "0123456789"))


def entry(id: int, sent: bytes, own: bytes | None) -> Entry:
    rows = [Alternative("z", -9.0, bytes_json(b"z"), 99)]
    if own is not None:
        rows.insert(0, Alternative(spell(own), -0.5, bytes_json(own), id))
    return Entry(spell(sent), -0.5, bytes_json(sent), rows, id)


def served(
    tokens: list[int], stops: list[str], known: bool = True
) -> Iterator[tuple[bytes, Entry]]:
    """Give what process_token of tools/server/server-context.cpp sends: (text, entry) a token.

    A token that ends within a character has no entry; text that may begin a stop string waits.
    """
    text, sent = b"", 0
    for token in tokens:
        text += PIECES[token]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if error.end == len(text):
                continue
        unsent = text[sent:]
        full = [unsent.find(stop.encode()) for stop in stops if stop.encode() in unsent]
        if full:
            unsent = unsent[: min(full)]
        elif any(unsent.endswith(s.encode()[:n]) for s in stops for n in range(1, len(s.encode()))):
            unsent = b""
        sent += len(unsent)
        yield unsent, entry(token, unsent, PIECES[token] if known else None)
        if full:
            return


def whole(tokens: list[int]) -> list[bytes]:
    """Return what each token with an entry is: its own bytes after those that had none."""
    found, before, text = [], b"", b""
    for token in tokens:
        before += PIECES[token]
        try:
            (text + before).decode()
        except UnicodeDecodeError as error:
            if error.end == len(text + before):
                continue
        found.append(before)
        text, before = text + before, b""
    return found


def data(entry: Entry) -> bytes:
    return bytes(json.loads(bytes(entry.bytes)))


def valid(rng: random.Random) -> list[int]:
    """Return tokens whose text is UTF-8: the parts of a character follow each other."""
    tokens: list[int] = []
    for _ in range(rng.randrange(1, 12)):
        token = rng.randrange(len(PIECES))
        tokens += [5, 6] if token in (5, 6) else [token]
    return tokens


@pytest.mark.parametrize("seed", range(300))
def test_every_token_gets_its_own_text(seed: int) -> None:
    rng = random.Random(seed)
    tokens, stops = valid(rng), rng.sample(STOPS, rng.randrange(0, 3))
    about, held = context(), Held()
    ready: list[Entry] = []
    sent = b""
    for text, given in served(tokens, stops):
        ready += held.take([given], about)
        sent += text
        assert b"".join(map(data, ready)).startswith(sent)  # no text comes before its tokens
    ready += held.rest(about)
    wanted = whole(tokens)[: len(ready)]
    got = [data(given) for given in ready]
    before = 0
    for one, other in zip(got, wanted, strict=True):
        if before < len(sent):
            assert one == other
        else:  # never sent: what has no entry is not told
            assert other.endswith(one)
        before += len(other)


def test_what_was_told_right_is_not_counted() -> None:
    about, held = context(), Held()
    ready = held.take([given for _, given in served([0, 1, 5, 6, 2], [])], about)
    assert [data(given) for given in ready] == whole([0, 1, 5, 6, 2])
    assert about.notes.counts == {}


def test_a_server_that_counts_otherwise_loses_no_entry() -> None:
    """Text that no token owes is left where it was told."""
    about, held = context(), Held()
    given = [entry(0, b"", b"a"), entry(4, b"xyz", b"b ab"), entry(9, b"c", b"c")]
    ready = held.take(given, about)
    assert [data(x) for x in ready] == [b"a", b"xyz", b"c"]
    held = Held()
    ready = held.take([entry(1, b"a", b"ab"), entry(9, b"xc", b"c")], about)
    assert [data(x) for x in ready] == [b"ab", b"xc"]


def test_tokens_that_nothing_tells_share_what_is_left() -> None:
    about, held = context(), Held()
    blind = [entry(7, b"", None), entry(7, b"", None)]
    ready = held.take([*blind, entry(9, b"ab \xc3\xa9c", b"c")], about)
    assert [data(x) for x in ready] == [b"", "ab \u00e9".encode(), b"c"]
    held = Held()
    assert held.take([entry(7, b"", None)], about) == []
    assert held.unsent() == "" and len(held.rest(about)) == 1
    ready = Held().take([entry(7, b"", None), entry(7, b"ab", None)], about)
    assert [data(x) for x in ready] == [b"", b"ab"]


def test_entries_without_ids_or_bytes_pass() -> None:
    about, held = context(), Held()
    bare = Entry("a", -1.0, NULL, [], 3)
    old = Entry("a", -1.0, bytes_json(b"a"), [], UNSET)
    waits = entry(1, b"", b"ab")
    assert held.take([waits, bare, old], about) == [waits, bare, old]
    assert data(waits) == b"ab"


def test_what_is_unsent_is_known_up_to_a_part_of_a_character() -> None:
    held = Held()
    held.take([entry(4, b"b ", b"b ab"), entry(1, b"", b"ab"), entry(6, b"", b"\xa9")], context())
    assert held.unsent() == "abab"
