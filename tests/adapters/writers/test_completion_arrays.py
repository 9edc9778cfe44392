"""The completions endpoint's logprob arrays: spelling, nulls, alternatives, offsets.

The spelling of parts of characters and the offsets are those of OpenAI's endpoint as the contract
records them ("Legacy /v1/completions"); the entries are constructed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tests.adapters.text_events import (
    NAMES,
    arrays,
    asked,
    body,
    entry,
    lp,
    row,
    scored,
    silent,
    written,
)
from tests.examples import examples
from wellspoken.adapters.events import UNKNOWN, Alternative, Entry, Event, Text
from wellspoken.adapters.tokens.table import NULL, bytes_json, spell


def test_numbers_survive() -> None:
    numbers = [-0.1 - 0.2, -1e-300, 0.0, UNKNOWN, -123456.789e-7]
    entries = [entry("a", x, row("b", x)) for x in numbers]
    found = json.loads(written(scored(1), Text(0, "aaaaa", lp(*entries)))[0])
    logprobs = found["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == numbers
    assert logprobs["top_logprobs"] == [{"b": x, "a": x} for x in numbers]


def test_parts_of_characters() -> None:
    entries = [
        entry(" \u2764".encode()[:2], -0.5, row(b"\xe2\x80", -0.4), row(" \u2019", -0.6)),
        entry("\u2764".encode()[1:]),
        entry("é"),
        entry(b"\xf0\x9f"),
        silent(),
        entry(b"\x98\x80!"),
        entry("x"),
    ]
    found = arrays(scored(2, "日本"), entries)
    assert found["tokens"] == [
        "bytes: \\xe2",
        "bytes:\\x9d\\xa4",
        "é",
        "bytes:\\xf0\\x9f",
        "",
        "bytes:\\x98\\x80!",
        "x",
    ]
    assert found["text_offset"] == [2, 3, 4, 5, 5, 5, 7]
    assert list(found["top_logprobs"][0].items()) == [
        ("bytes:\\xe2\\x80", -0.4),
        ("bytes: \\xe2", -0.5),
        (" \u2019", -0.6),
    ]


def test_bytes_that_are_no_text_count_as_what_replaces_them() -> None:
    entries = [entry(b"\xf0\x9f"), entry("a"), entry(b"\xe0"), entry(b"\x80"), entry(b"\xff\xfe")]
    found = arrays(scored(), [*entries, entry(b"\xe2\x82"), entry(b"\xe2\x82"), entry("b")])
    assert found["text_offset"] == [0, 1, 2, 3, 4, 6, 7, 8]
    surrogate = [entry(b"\xed"), entry(b"\xa0"), entry(b"\x80"), entry(b"\xed\xa0"), entry("b")]
    assert arrays(scored(), surrogate)["text_offset"] == [0, 1, 2, 3, 5]


def test_a_real_replacement_character_and_a_literal_escape_are_text() -> None:
    found = arrays(scored(), [entry("\ufffd"), entry("\\xe2"), entry("bytes:"), entry("x")])
    assert found["tokens"] == ["\ufffd", "\\xe2", "bytes:", "x"]
    assert found["text_offset"] == [0, 1, 5, 11]


def test_bytes_written_with_spaces_are_the_same_bytes() -> None:
    found = arrays(scored(), [Entry("Hi", -0.5, Raw(b"[72, 105]"), []), entry("x")])
    assert (found["tokens"], found["text_offset"]) == (["Hi", "x"], [0, 2])


def test_placeholders_stay_placeholders() -> None:
    """vLLM's return_tokens_as_token_ids: with known bytes the offset counts, else it stands."""
    known = Entry("token_id:5", -0.5, bytes_json(b"Hi"), [row("a", -1.0)])
    found = arrays(scored(1), [known, silent("token_id:6", -0.25), entry("x")])
    assert found["tokens"] == ["token_id:5", "token_id:6", "x"]
    assert found["text_offset"] == [0, 2, 2]


def test_an_echoed_prompt_begins_with_a_null() -> None:
    entries = [silent("<s>"), entry("The", UNKNOWN), entry(" cat", -3.5), entry("!", UNKNOWN)]
    whole = arrays(scored(0, "The cat", echo=True), entries)
    assert whole == {
        "tokens": ["<s>", "The", " cat", "!"],
        "token_logprobs": [None, UNKNOWN, -3.5, UNKNOWN],
        "top_logprobs": [None, {"The": UNKNOWN}, {" cat": -3.5}, {"!": UNKNOWN}],
        "text_offset": [0, 0, 3, 7],
    }
    assert arrays(scored(0, echo=True), *[[x] for x in entries]) == whole


def test_nulls_are_only_for_what_nothing_is_known_of() -> None:
    unknown = [entry("The", UNKNOWN)]
    assert arrays(scored(), unknown)["token_logprobs"] == [UNKNOWN]
    assert arrays(scored(), unknown)["top_logprobs"] == [{"The": UNKNOWN}]
    better = [entry("The", UNKNOWN, row("A", -0.5))]
    found = arrays(scored(1, echo=True), better)
    assert found["token_logprobs"] == [UNKNOWN]
    assert found["top_logprobs"] == [{"A": -0.5, "The": UNKNOWN}]


def test_an_entry_without_text_stands_behind_a_character_that_nothing_completes() -> None:
    """Mutants: `_odd` never counts the U+FFFD; it counts it though bytes follow."""
    blank = Entry("", -1.0, NULL, [])
    alone = [entry("a"), entry(b"\xf0"), blank]
    assert arrays(scored(), alone)["text_offset"] == [0, 1, 2]
    split = [entry(b"\xc3"), blank, entry(b"\xa9"), entry("b")]
    assert arrays(scored(), split)["text_offset"] == [0, 0, 0, 1]


def test_offsets_begin_at_the_end_of_the_choices_own_prompt() -> None:
    exchange = asked(logprobs=True, n=6, prompts=("é\U0001f600", None, "four"))
    found = [arrays(exchange, [entry("a")], choice=n)["text_offset"] for n in range(6)]
    assert found == [[2], [2], [0], [0], [4], [4]]
    answer = json.loads(body(exchange, *[Text(n, "a", lp(entry("a"))) for n in range(6)]))
    assert [x["logprobs"]["text_offset"] for x in answer["choices"]] == found


TOP = (row("a", -0.5), row("b", -1.0), row("c", -1.5))


@pytest.mark.parametrize(
    ("k", "said", "wanted"),
    [
        (0, entry("z", -4.0), [("z", -4.0)]),
        (0, entry("a", -0.5, *TOP), [("a", -0.5)]),
        (2, entry("a", -0.5, *TOP), [("a", -0.5), ("b", -1.0)]),
        (2, entry("c", -1.5, *TOP), [("a", -0.5), ("b", -1.0), ("c", -1.5)]),
        (3, entry("z", -4.0, *TOP), [("a", -0.5), ("b", -1.0), ("c", -1.5), ("z", -4.0)]),
        (3, entry("z", -0.7, *TOP), [("a", -0.5), ("z", -0.7), ("b", -1.0), ("c", -1.5)]),
        (5, entry("z", -4.0), [("z", -4.0)]),
    ],
)
def test_alternatives_are_the_best_and_the_sampled_one(
    k: int, said: Entry, wanted: list[tuple[str, float]]
) -> None:
    exchange = scored(k)
    found = arrays(exchange, [said])["top_logprobs"]
    assert [list(x.items()) for x in found] == [wanted]
    assert exchange.notes.counts == {}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (entry("z", -3.0, row("a", -0.5), row("a", -1.0)), [("a", -0.5), ("z", -3.0)]),
        (entry("a", -1.0, row("a", -0.5), row("b", -0.7)), [("b", -0.7), ("a", -1.0)]),
        (entry("a", -1.0, row("a", -0.5), row("a", -1.0)), [("a", -1.0)]),
        (
            silent("", -2.0, Alternative("", -2.0, NULL), Alternative("", -3.0, NULL)),
            [("", -2.0)],
        ),
    ],
)
def test_tokens_that_read_alike_share_a_key(said: Entry, wanted: list[tuple[str, float]]) -> None:
    exchange = scored(2)
    found = arrays(exchange, [said])["top_logprobs"]
    assert [list(x.items()) for x in found] == [wanted]
    assert exchange.notes.counts == {"logprobs_alternative_merged": 1}


def test_an_alternative_that_nothing_is_known_of_has_an_empty_key() -> None:
    exchange = scored(1)
    said = entry("a", -1.0, Alternative("", -0.5, NULL))
    assert arrays(exchange, [said])["top_logprobs"] == [{"": -0.5, "a": -1.0}]
    assert exchange.notes.counts == {}


# Properties


def characters(pieces: Sequence[bytes]) -> list[int]:
    """Return which character of the text each token begins in."""
    ends = accumulate(pieces, initial=b"")
    starts = [before + data[:1] for before, data in zip(ends, pieces, strict=False)]
    return [len(start.decode("utf-8", "replace")) - 1 for start in starts]


def wrong(found: dict[str, list[Any]], prompt: str, pieces: Sequence[bytes], k: int) -> list[str]:
    """Return what is wrong with the arrays of tokens of these bytes, none of them empty."""
    problems = []
    if any(len(found[name]) != len(pieces) for name in NAMES):
        problems.append("length")
    if found["text_offset"] != sorted(found["text_offset"]):
        problems.append("order of offsets")
    for character, offset in zip(characters(pieces), found["text_offset"], strict=False):
        if offset != len(prompt) + character:
            problems.append("offset")
    for token, number, top in zip(*(found[name] for name in NAMES[:3]), strict=False):
        values = list(top.values())
        if values != sorted(values, reverse=True) or len(values) > k + 1:
            problems.append("alternatives")
        if top.get(token) != number:
            problems.append("sampled")
    told = [
        x.removeprefix("bytes:").encode() if x.startswith("bytes:") else x for x in found["tokens"]
    ]
    if "".join(x if isinstance(x, str) else x.decode() for x in told) != "".join(
        map(spell, pieces)
    ):
        problems.append("tokens")
    return problems


@st.composite
def pieces_of_text(draw: st.DrawFn) -> list[bytes]:
    """Give tokens: a text with some bytes that are none, cut anywhere."""
    texts = st.text(st.sampled_from("a é\u2019日\U0001f600\ufffd"), max_size=8).map(str.encode)
    odd = st.sampled_from([b"\xff", b"\xe2\x82", b"\x80", b"\xf0\x9f\x98", b"\xed\xa0\x80"])
    data = b"".join(draw(st.lists(st.one_of(texts, texts, odd), max_size=5)))
    cuts = sorted(draw(st.sets(st.integers(1, max(len(data) - 1, 1)))))
    places = [0, *(x for x in cuts if x < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(places) if a < b]


LOGPROB = st.floats(-50, 0)


@st.composite
def entries_of(draw: st.DrawFn, pieces: Sequence[bytes], k: int) -> list[Entry]:
    """Give an entry for each piece, its alternatives descending, the sampled one among some."""
    found = []
    for data in pieces:
        number = draw(LOGPROB)
        names = draw(st.lists(st.sampled_from(["a", "b", "é", "\ufffd"]), max_size=k, unique=True))
        rows = [row(name, draw(LOGPROB)) for name in names if name.encode() != data]
        if draw(st.booleans()):
            rows.append(row(data, number))
        rows.sort(key=lambda x: x.logprob, reverse=True)
        found.append(entry(data, number, *rows))
    return found


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(st.data())
def test_a_streams_arrays_are_the_bodys(data: st.DataObject) -> None:
    pieces = data.draw(pieces_of_text())
    k = data.draw(st.integers(0, 5))
    prompt = data.draw(st.sampled_from(["", "Say", "né\U0001f600"]))
    entries = data.draw(entries_of(pieces, k))
    events: list[Event] = []
    text = b"".join(pieces).decode("utf-8", "replace")
    starts, at = [*characters(pieces), len(text)], 0
    while at < len(entries):
        end = data.draw(st.integers(at + 1, len(entries)))
        events.append(Text(0, text[starts[at] : starts[end]], lp(*entries[at:end])))
        at = end
    joined: dict[str, list[Any]] = {name: [] for name in NAMES}
    for chunk in written(scored(k, prompt), *events):
        for name, values in json.loads(chunk)["choices"][0]["logprobs"].items():
            joined[name] += values
    assert wrong(joined, prompt, pieces, k) == []
    if entries:
        answer = json.loads(body(scored(k, prompt), *events))["choices"][0]
        assert answer["logprobs"] == joined


def _swap(values: list[Any]) -> None:
    values[0], values[-1] = values[-1], values[0]


@pytest.mark.parametrize(
    ("name", "spoil", "problem"),
    [
        ("tokens", list.pop, "length"),
        ("tokens", list.reverse, "tokens"),
        ("text_offset", list.reverse, "order of offsets"),
        ("text_offset", lambda x: x.__setitem__(-1, x[-1] + 1), "offset"),
        ("top_logprobs", lambda x: x[0].update(b=0.0), "alternatives"),
        ("top_logprobs", lambda x: x[0].update(b=-9.0, c=-9.5), "alternatives"),
        ("token_logprobs", _swap, "sampled"),
    ],
)
def test_the_property_can_fail(
    name: str, spoil: Callable[[list[Any]], object], problem: str
) -> None:
    pieces = [b"a", b"\xe2\x82", b"\xacb"]
    entries = [entry(x, -float(n), row("z", -float(n))) for n, x in enumerate(pieces)]
    found = arrays(scored(1, "né"), entries)
    assert wrong(found, "né", pieces, 1) == []
    spoil(found[name])
    assert problem in wrong(found, "né", pieces, 1)
