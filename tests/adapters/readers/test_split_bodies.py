"""A long body read in blocks is what the same body is that was read at once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.answers import Json, choice, completion, entries, entry
from tests.replay import exchange
from wellspoken.adapters.readers import near_openai
from wellspoken.adapters.readers.near_openai import BLOCK, strict_body, strict_body_in_blocks
from wellspoken.adapters.translate import StreamTranslator

MANY = [f"{n} " for n in range(2 * BLOCK + 3)]
LONG = choice("".join(MANY), logprobs=entries(*MANY))
REFUSING = choice("No", logprobs={"content": [entry("No")], "refusal": [entry("I", -1)]})
OTHER: Json = {**choice("ab", logprobs=entries("a", "b")), "index": 1}
ARRAYS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}]}
LATE = [*map(entry, MANY), entry("odd", 0.5)]
BODIES: dict[str, Json] = {
    "long": completion(LONG),
    "short": completion(choice("Hi", logprobs=entries("Hi"))),
    "no entries": completion(choice("Hi", logprobs=entries())),
    "no logprobs": completion(choice("Hi")),
    "two choices": completion(LONG, OTHER),
    "one without": completion(LONG, {**choice("Hi"), "index": 1}),
    "with a refusal": completion(REFUSING),
    "arrays": completion(choice("a", logprobs=ARRAYS)),
    "a bad entry behind many": completion(choice("x", logprobs={"content": LATE})),
    "an unknown key": completion({**LONG, "extra": 1}),
    "no object": [],  # type: ignore[dict-item]
}


@pytest.mark.parametrize("kind", BODIES)
def test_in_blocks_it_is_the_same(kind: str) -> None:
    data = json.dumps(BODIES[kind]).encode()
    one, other = strict_body(data), strict_body_in_blocks(data)
    assert (one is None) == (other is None)
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("stored", [False, True])
def test_the_client_gets_the_same(kind: str, stored: bool) -> None:
    def answer(**how: Any) -> tuple[int, bytes, dict[str, int]]:
        request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2}
        asked = exchange(request | {"logprobs": True, "top_logprobs": 1}, stored=stored)
        translator = StreamTranslator(asked, fold=True)
        translator.whole(200, "application/json", json.dumps(BODIES[kind]).encode(), **how)
        made = translator.answer()
        return made.status, made.body, asked.notes.counts

    assert answer(large=True) == answer()


def test_no_call_of_the_decoder_takes_more_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def read(data: bytes) -> Any:
        sizes.append(data.count(b'"token"'))
        return read_entries(data)

    read_entries = near_openai._entries
    monkeypatch.setattr(near_openai, "_entries", read)
    monkeypatch.setattr(near_openai, "_body", lambda data: pytest.fail("read at once"))
    translator = StreamTranslator(
        exchange({"model": "m", "messages": [{"role": "user", "content": "x"}], "logprobs": True}),
        fold=True,
    )
    data = json.dumps(completion(LONG)).encode()
    translator.whole(200, "application/json", data, large=True)
    assert translator.done and sizes == [BLOCK, BLOCK, 3]
