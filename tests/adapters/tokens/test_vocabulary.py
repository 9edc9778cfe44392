"""Vocabularies: bytes by id and by text, control tokens, counting, and what is refused.

The tokenizer.json files here are constructed: the smallest of each kind, in the form that Hugging
Face's `tokenizers` library writes.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from wellspoken.adapters.tokens.vocabulary import (
    GPT2_PATTERN,
    Vocabulary,
    from_encoding,
    from_tiktoken_file,
    from_tokenizer_json,
    gpt2_bytes,
)

SPELL = {byte: character for character, byte in gpt2_bytes().items()}
BYTES = {SPELL[byte]: byte for byte in range(256)}


def spell(data: bytes) -> str:
    return "".join(SPELL[byte] for byte in data)


def byte_level(**changes: Any) -> dict[str, Any]:
    """A byte-level BPE: 256 bytes, three merges, an end-of-text and a plain added token."""
    file: dict[str, Any] = {
        "added_tokens": [
            {"id": 300, "content": "<|end|>", "special": True},
            {"id": 301, "content": "<think>", "special": False},
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {**BYTES, "is": 256, "Ġis": 257, spell("é".encode()): 258, "<|end|>": 300},
            "merges": ["i s", ["Ġ", "is"], f"{SPELL[0xC3]} {SPELL[0xA9]}"],
        },
    }
    model = changes.pop("model", {})
    return {**file, **changes, "model": {**file["model"], **model}}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    file: dict[str, Any] = {
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "vocab": {"<s>": 0, "<0x0A>": 1, "<0xE2>": 2, "▁Hello": 3, "Hello": 4, "▁": 5},
        },
    }
    return {**file, **changes}


def load(file: object) -> Vocabulary:
    return from_tokenizer_json(json.encode(file))


def test_byte_level_bpe() -> None:
    vocabulary = load(byte_level())
    assert vocabulary.by_id(257) == b" is"
    assert vocabulary.by_id(0xC3) == b"\xc3"
    assert vocabulary.by_id(300) == b"<|end|>"
    assert vocabulary.by_id(999) is None
    assert vocabulary.by_text("Ġis") == b" is"
    assert vocabulary.by_text(" is") == b" is"
    assert vocabulary.by_text("Ċ") == b"\n"
    assert vocabulary.by_text("<think>") == b"<think>"
    assert vocabulary.by_text("nowhere") is None
    assert vocabulary.is_control(300) and not vocabulary.is_control(301)
    assert vocabulary.is_control_text("<|end|>") and not vocabulary.is_control_text("<think>")


def test_a_text_that_two_tokens_have_tells_nothing() -> None:
    vocabulary = load(byte_level())
    assert SPELL[0xE9] == "é"  # the spelling of byte E9 is also the text of the token C3 A9
    assert vocabulary.by_text("é") is None
    assert vocabulary.by_text(spell("é".encode())) == "é".encode()


def test_byte_level_bpe_counts_as_its_merges_do() -> None:
    vocabulary = load(byte_level())
    assert vocabulary.counts
    assert vocabulary.count("is is") == 2
    assert vocabulary.count("isé") == 2
    assert vocabulary.count("<|end|>") == 7
    assert vocabulary.count("") == 0


def test_ignored_merges_take_a_whole_word() -> None:
    vocab = {**BYTES, "zzz": 256}
    assert load(byte_level(model={"vocab": vocab, "merges": ["a \u4e00"]})).count("zzz") == 3
    model = {"vocab": vocab, "merges": [], "ignore_merges": True}
    assert load(byte_level(model=model)).count("zzz") == 1


@pytest.mark.parametrize(
    ("pre_tokenizer", "count"),
    [
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated"},
                    {"type": "ByteLevel", "use_regex": False},
                ],
            },
            5,
        ),
        ({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Removed", "invert": True}, 5),
        ({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Removed"}, None),
        ({"type": "Split", "pattern": {"Regex": "("}}, None),
        ({"type": "Split", "pattern": {"String": " "}}, None),
        ({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}, None),
        ({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 2}, None),
        ({"type": "ByteLevel", "add_prefix_space": True}, None),
        ({"type": "Sequence", "pretokenizers": 5}, None),
        (None, None),
    ],
)
def test_counting_follows_the_split_or_does_not_count(
    pre_tokenizer: object, count: int | None
) -> None:
    vocabulary = load(byte_level(pre_tokenizer=pre_tokenizer))
    assert vocabulary.count("is is") == count
    assert vocabulary.counts is (count is not None)
    assert vocabulary.by_text("Ġis") == b" is"


def test_sentencepiece_is_a_decode_table() -> None:
    vocabulary = load(sentencepiece())
    assert vocabulary.by_text("▁Hello") == vocabulary.by_text(" Hello") == b" Hello"
    assert vocabulary.by_text("<0x0A>") == vocabulary.by_text("\n") == b"\n"
    assert vocabulary.by_id(2) == b"\xe2"
    assert vocabulary.is_control(0) and vocabulary.is_control_text("<s>")
    assert not vocabulary.counts and vocabulary.count("Hello") is None


def test_unigram_ids_are_positions() -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5]]}
    vocabulary = load(sentencepiece(added_tokens=None, model=model))
    assert vocabulary.by_id(1) == b" a"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (b"", "not a Hugging Face tokenizer.json"),
        (b'{"model":"\xff"}', "not a Hugging Face tokenizer.json"),
        (b"[" * 5000, "not a Hugging Face tokenizer.json"),
        (b"{}", "not tokenizer_config.json"),
        (b'{"model":{}}', "no model.vocab"),
        (b'{"model":{"vocab":{"a":"b"}}}', "no model.vocab"),
        (b'{"model":{"vocab":[1]}}', "no model.vocab"),
        (b'{"model":{"type":"WordPiece","vocab":{"##a":1}}}', "WordPiece.*neither"),
        (
            b'{"decoder":{"type":"ByteLevel"},"model":{"vocab":{"a b":1}}}',
            "not spelled in byte-level",
        ),
    ],
)
def test_other_files_are_refused_with_what_to_do(file: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_tokenizer_json(file)


def test_a_tiktoken_file() -> None:
    tokens = [*(bytes([byte]) for byte in range(256)), b" is"]
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)]
    vocabulary = from_tiktoken_file(b"\n".join(lines) + b"\n\n", special={"<|end|>": 257})
    assert vocabulary.by_id(256) == vocabulary.by_text(" is") == b" is"
    assert vocabulary.is_control(257) and vocabulary.by_id(257) == b"<|end|>"
    assert vocabulary.count("a b") == 3


def test_a_tiktoken_file_without_all_bytes_does_not_count() -> None:
    vocabulary = from_tiktoken_file(b"aGk= 1", special={"<e>": 2})
    assert vocabulary.by_text("hi") == b"hi" and vocabulary.is_control(2)
    assert vocabulary.count("hi") is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (b"", "empty"),
        (b"aGk= 1\naGk=", "line 2"),
        (b"!! 1", "line 1"),
        (b"aGk= x", "line 1"),
        (b"aGk= 1\naGo= 1", "one rank"),
        (b"aGk= -1", "no rank"),
        (b'{"model": 1}', "line 1"),
    ],
)
def test_a_broken_tiktoken_file(file: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_tiktoken_file(file)


@given(st.text(max_size=40))
def test_the_tokens_of_a_text_rebuild_it(text: str) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b" is": 256, b"an": 257}
    encoding = tiktoken.Encoding(
        "t", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<e>": 258}
    )
    vocabulary = from_encoding(encoding)
    tokens = encoding.encode(text)
    assert b"".join(vocabulary.by_id(token) or b"" for token in tokens) == text.encode()
    assert vocabulary.count(text) == len(tokens)


@given(st.binary(max_size=8))
def test_the_byte_level_spelling_is_a_bijection(data: bytes) -> None:
    assert len(BYTES) == 256
    assert bytes(BYTES[character] for character in spell(data)) == data
