"""Contract rule 7, tiling: the bytes rebuild the content, for any text and any token split."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.answers import (
    Json,
    Said,
    body,
    choice,
    completion,
    end,
    lp,
    role,
    say,
    scored,
    stream,
)
from tests.examples import examples
from wellspoken.adapters.alignment.spelling import BYTE_LEVEL

CHARACTER = {byte: character for character, byte in BYTE_LEVEL.items()}


def whole(content: str, rows: list[Json], request: Json | None = None, **more: Any) -> Said:
    return body(completion(choice(content, logprobs=lp(*rows), **more)), request or scored())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
Form = Callable[[bytes], Json]


def known(token: bytes) -> Json:
    return {"token": token.decode("utf-8", "backslashreplace"), "bytes": list(token)}


def lossy(token: bytes) -> Json:
    return {"token": token.decode("utf-8", "replace"), "bytes": None}


def left_out(token: bytes) -> Json:
    return {"token": token.decode("utf-8", "ignore"), "bytes": None}


def sentencepiece(token: bytes) -> Json:
    try:
        return {"token": token.decode().replace(" ", "▁"), "bytes": None}
    except UnicodeDecodeError:
        return {"token": f"<0x{token[0]:02X}>", "bytes": None}


def byte_level(token: bytes) -> Json:
    return {"token": "".join(CHARACTER[byte] for byte in token), "bytes": None}


FORMS: dict[str, Form] = {
    "bytes known": known,
    "text lossy": lossy,
    "parts left out": left_out,
    "raw sentencepiece": sentencepiece,
    "raw byte-level": byte_level,
}


def cut(draw: st.DrawFn, content: bytes, pieces: bool) -> list[bytes]:
    """Cut bytes into tokens anywhere; or into whole characters and single bytes."""
    if pieces:
        found: list[bytes] = []
        for character in content.decode():
            raw = character.encode()
            found += [bytes([x]) for x in raw] if draw(st.booleans()) else [raw]
        return found
    places = draw(st.sets(st.integers(1, max(1, len(content) - 1)), max_size=8))
    edges = [0, *sorted(place for place in places if place < len(content)), len(content)]
    return [content[a:b] for a, b in pairwise(edges)]


@st.composite
def answers(draw: st.DrawFn, name: str) -> tuple[str, list[Json], list[Json]]:
    """Draw (content, entries, the chunks that carry them)."""
    text = draw(TEXTS)
    if name != "bytes known":
        text = text.replace("\ufffd", "x")
    if name == "raw sentencepiece":
        text = text.replace("▁", "_").replace("<", "(")
    tokens = cut(draw, text.encode(), name == "raw sentencepiece")
    rows = [
        {**FORMS[name](token), "logprob": -0.001 * (n + 1), "top_logprobs": []}
        for n, token in enumerate(tokens)
    ]
    decoder = codecs.getincrementaldecoder("utf-8")()
    parts: list[Json] = []
    waiting: list[Json] = []
    written = ""
    for row, token in zip(rows, tokens, strict=True):
        waiting.append(row)
        written += decoder.decode(token)
        if written and draw(st.booleans()):
            parts.append(say(written, logprobs=lp(*waiting)))
            waiting, written = [], ""
    if waiting or written:
        parts.append(say(written, logprobs=lp(*waiting)))
    return text, rows, parts


@pytest.mark.parametrize("name", FORMS)
@settings(
    max_examples=examples(120),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(drawn=st.data())
def test_the_bytes_rebuild_the_content(name: str, drawn: st.DataObject) -> None:
    text, rows, parts = drawn.draw(answers(name))
    # Behind "stop" a last row without text may as well be the end-of-text token.
    reason = "stop" if rows[-1]["token"] else "length"
    bodied = whole(text, rows, finish_reason=reason)
    for said in (bodied, stream([role(), *parts, end(reason)], scored())):
        assert said.message["content"] == text
        assert said.joined == text.encode()
        assert [row["logprob"] for row in said.entries] == [row["logprob"] for row in rows]
