"""Contract rule 7: the number that a backend gave for an entry is the one that comes out.

Rejected mutants: a number taken from any alternative that reads alike (`own_value` without its
first look, or without ids), an alternative chosen wherever its text fits (`_may_be_another` true,
no `respelled` readings), an unknown number for an entry whose text is not its piece's, two numbers
swapped, the best alternative's number kept by TabbyAPI's arrays.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from itertools import count
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import Json, Said, body, choice, completion, end, entry, lp, role, say, scored
from tests.answers import stream as streamed
from tests.corpus import fixtures
from tests.examples import examples
from tests.replay import body as translate_body
from tests.replay import stream as translate_stream

ALIKE = ("b11549-tokens_alike", "b11549-tokens_alike_n2")


def both(*pieces: tuple[str, Json], k: int = 5) -> list[Said]:
    """Return what the client gets of (text, entry) pairs: as a body, and as a chunk for each."""
    text = "".join(text for text, _ in pieces)
    chunks = [say(text, logprobs=lp(row)) for text, row in pieces]
    return [
        body(completion(choice(text, logprobs=lp(*(row for _, row in pieces)))), scored(k)),
        streamed([role(), *chunks, end()], scored(k)),
    ]


def numbers(said: Said) -> list[float]:
    return [row["logprob"] for row in said.entries]


def with_ids(row: Json, *ids: int) -> Json:
    """Return an entry with ids as llama.cpp has them: its own, then its alternatives'."""
    tops = [{**top, "id": n} for top, n in zip(row["top_logprobs"], ids[1:], strict=True)]
    return {**row, "id": ids[0], "top_logprobs": tops}


# --- tokens that print alike -------------------------------------------------------------------


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("suffix", ["json", "sse"])
def test_a_real_vocabularys_tokens_that_print_alike_keep_their_numbers(
    name: str, suffix: str
) -> None:
    """Before, one of `<0x71>` had `q`'s."""
    (found,) = (x for x in fixtures() if x.name == f"llamacpp/{name}.{suffix}")
    parts = [found.raw] if suffix == "json" else found.raw.split(b"data: ")[1:-1]
    answers = [json.loads(part) for part in parts]
    written = found.expected_path.read_bytes()
    ours = [written] if suffix == "json" else written.split(b"data: ")[1:-1]

    def told(parts: list[Any]) -> dict[int, list[float]]:
        by_choice: dict[int, list[float]] = {}
        for each in (one for part in parts for one in part["choices"] if one.get("logprobs")):
            rows = each["logprobs"]["content"]
            by_choice.setdefault(each["index"], []).extend(row["logprob"] for row in rows)
        return by_choice

    assert told([json.loads(part) for part in ours]) == told(answers)
    assert sum(map(len, told(answers).values())) == 8


@pytest.mark.parametrize("ids", [(116, 5, 348), None])
def test_another_token_of_the_same_text_lends_no_number(ids: tuple[int, ...] | None) -> None:
    row = entry("q", -4.513, [("a", -0.1), ("q", -3.723)])
    for said in both(("q", with_ids(row, *ids) if ids else row)):
        assert said.rows == [("q", -4.513, [113])]
        assert said.tops == [[("a", -0.1), ("q", -3.723)]]
        assert set(said.repairs) <= {"logprobs_entry_id"}


def test_an_id_tells_the_own_row_of_a_wrongly_paired_value() -> None:
    row = entry("q", -0.1, [("a", -0.1), ("q", -2.0), ("q", -3.0)])
    for said in both(("q", with_ids(row, 116, 5, 348, 116))):
        assert numbers(said) == [-3.0]
        assert said.repairs["logprobs_own_from_alternative"] == 1


def test_a_number_stays_where_no_alternative_has_the_entrys_id() -> None:
    """Be it the best one's too; without ids it would be taken for a wrong pairing (7.own)."""
    row = with_ids(entry("q", -0.1, [("a", -0.1), ("q", -2.0)]), 116, 5, 348)
    said = body(completion(choice("q", logprobs=lp(row))), scored(2), waived=["7.own"])
    assert numbers(said) == [-0.1]


@pytest.mark.parametrize("suffix", ["", "_stream"])
def test_a_completions_arrays_have_the_own_number(suffix: str) -> None:
    """A map has one place for both; it is the sampled token's (`logprobs_alternative_merged`)."""
    asked = {"model": "m", "prompt": "Say", "logprobs": 2, "stream": bool(suffix)}
    given = {
        "tokens": ["q"],
        "token_logprobs": [-4.5],
        "top_logprobs": [{"a": -0.1, "q": -3.75}],
        "text_offset": [3],
    }
    answer = completion({"index": 0, "text": "q", "logprobs": given, "finish_reason": "stop"})
    data = json.dumps({**answer, "object": "text_completion"}).encode()
    if suffix:
        framed = b"data: " + data + b"\n\ndata: [DONE]\n\n"
        out = translate_stream(asked, [framed], "completions").body.split(b"\n\n")[0][6:]
    else:
        out = translate_body(asked, 200, "application/json", data, "completions").body
    found = json.loads(out)["choices"][0]["logprobs"]
    assert found["token_logprobs"] == [-4.5]
    assert found["top_logprobs"] == [{"a": -0.1, "q": -4.5}]


# --- text that is another spelling of its entry's ----------------------------------------------

SPELLINGS: dict[str, tuple[str, str]] = {
    "composed": ("e\u0301", "\u00e9"),
    "decomposed": ("\u00e9", "e\u0301"),
    "compatible": ("\ufb01n", "fin"),
    "escaped": ("&", "&amp;"),
    "escaped by a template": ('"', "&#34;"),
    "read": ("&lt;", "<"),
    "stripped in front": (" b", "b"),
    "stripped behind": ("b\n", "b"),
    "spaced": ("b", " b"),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_entry_whose_text_is_spelled_otherwise_keeps_its_number(name: str) -> None:
    """Though the text is an alternative's as well."""
    token, text = SPELLINGS[name]
    row = entry(token, -2.0, [("x", -0.25), (text, -0.5), (token, -2.0)])
    for said in both(("I", entry("I", -1.0)), (text, row), (".", entry(".", -3.0))):
        assert said.rows == [("I", -1, [73]), (text, -2, list(text.encode())), (".", -3, [46])]


def test_a_token_of_another_text_keeps_its_number() -> None:
    """Alone beside a piece of text, it is the text's; mlx-lm's copy of an alternative is not."""
    for said in both(("Hi", entry("Ho", -4.0, [("Ha", -0.5), ("Hi", -2.0)]))):
        assert said.rows == [("Hi", -4.0, list(b"Hi"))]
        assert said.repairs["logprobs_content_respelled"] == 1


def test_a_sampled_token_is_inferred_from_another_spelling() -> None:
    tops = {"top_logprobs": [{"x": -0.25, "e\u0301": -2.0}]}
    said = streamed([role(), say("\u00e9", logprobs=tops), end()], scored(2))
    assert said.rows == [("\u00e9", -2.0, [195, 169])]


def test_the_own_number_of_a_part_of_a_character_is_no_alternatives() -> None:
    row = {"token": "", "bytes": [], "logprob": -4.0}
    row["top_logprobs"] = [{"token": "\u00e9", "bytes": [195, 169], "logprob": -0.5}]
    for said in both(("\u00e9", row)):
        assert numbers(said) == [-4.0]


# --- any answer ----------------------------------------------------------------------------------

TOKENS = ("q", "e\u0301", "\u00e9", "&", "&amp;", " b", "b", "<0x71>", "\u2581b", "n\u0303o", "\n")
CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "NFC": lambda text: normalize("NFC", text),
    "NFD": lambda text: normalize("NFD", text),
    "escaped": html.escape,
    "read": html.unescape,
    "stripped": str.strip,
}


@st.composite
def answers(draw: Any) -> list[tuple[str, Json]]:
    """Draw (text, entry) pairs, each number of an answer given once; alternatives read alike."""
    change = CHANGES[draw(st.sampled_from(sorted(CHANGES)))]
    ids, spare = draw(st.booleans()), count(1)
    pieces = []
    for token in draw(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6)):
        others = draw(st.lists(st.sampled_from([*TOKENS, token, change(token)]), max_size=4))
        values = draw(st.permutations(range(1, len(others) + 2)))
        own = -(values[0] + next(spare) / 100)
        tops = [
            (other, -(n + next(spare) / 100)) for other, n in zip(others, values[1:], strict=True)
        ]
        if draw(st.booleans()):
            tops.append((token, own))
        tops.sort(key=lambda pair: -pair[1])
        row = entry(token, own, tops)
        if ids:
            row = with_ids(
                row, 7, *(7 if value == own else 100 + n for n, (_, value) in enumerate(tops))
            )
        pieces.append((change(token), row))
    return pieces


def are_kept(given: list[float], got: list[float]) -> bool:
    """Say whether the numbers that came out are given ones, in their order."""
    rest = iter(given)
    return all(number in rest for number in got)


@settings(max_examples=examples(300), database=None)
@given(pieces=answers())
def test_whatever_comes_out_has_its_own_number(pieces: list[tuple[str, Json]]) -> None:
    own = [row["logprob"] for _, row in pieces]
    text = "".join(text for text, _ in pieces)
    asked = scored(6)
    whole = completion(choice(text, logprobs=lp(*(row for _, row in pieces))))
    chunks = [say(text, logprobs=lp(row)) for text, row in pieces]
    parts = b"".join(b"data: " + json.dumps(x).encode() + b"\n\n" for x in [role(), *chunks, end()])
    outcome = translate_body(asked, 200, "application/json", json.dumps(whole).encode())
    found = json.loads(outcome.body)["choices"][0]["logprobs"]["content"]
    assert are_kept(own, [row["logprob"] for row in found]), found
    sent = translate_stream(asked, [parts + b"data: [DONE]\n\n"]).body.split(b"\n\n")
    read = [json.loads(one[6:]) for one in sent if one[:7] == b"data: {"]
    rows = [
        one["choices"][0]["logprobs"]["content"] for one in read if one["choices"][0]["logprobs"]
    ]
    assert are_kept(own, [row["logprob"] for each in rows for row in each]), rows


def test_a_token_without_text_is_not_the_one_that_comes_with_the_next_text() -> None:
    """Mutant: `_cost` prices no text left behind where entries lag; the "\\n" is "q" at -2.05."""
    rows = [entry("q", -1.01), entry("\n", -1.04, [("\n", -1.04), ("q", -2.05)]), entry("q", -1.06)]
    parts = [say(text, logprobs=lp(row)) for text, row in zip(("q", "", "q"), rows, strict=True)]
    said = streamed([role(), *parts, end()], scored(2), waived=["7.chunk"])
    assert [row["logprob"] for row in said.entries] == [-1.01, -1.06]


def test_a_token_left_out_is_no_alternative_that_tells_nothing() -> None:
    """Mutant: `options` takes an alternative without text for such a token; its own -2 is lost."""
    told = entry("\n", -2.0, [("\n", -2.0), ("é", -4.0), ("", -5.0)])
    rows = [entry("q", -1.0), told, entry("q", -3.0)]
    said = body(completion(choice("qq", logprobs=lp(*rows))), scored(6))
    assert [row["logprob"] for row in said.entries] in ([-1.0, -3.0], [-1.0, -2.0, -3.0])


@pytest.mark.parametrize("got", [[-2.0, -1.0], [-1.0, -1.5], [-9999.0]])
def test_swapped_and_strange_numbers_are_refused(got: list[float]) -> None:
    assert are_kept([-1.0, -2.0, -3.0], [-1.0, -3.0])
    assert not are_kept([-1.0, -2.0, -3.0], got)
