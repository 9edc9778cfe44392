"""The tiny Hugging Face model is what it says; that vLLM loads it is shown in tests/live/vllm."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from tests.models.tiny import printable_bytes
from tests.models.tiny_hf import CONTROLS, PIECES, PULLS, Tokens, safetensors, weights, write_model


def test_the_files_are_the_same_each_time(tmp_path: Path) -> None:
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    names = sorted(path.name for path in one.iterdir())
    assert "model.safetensors" in names and "tokenizer.json" in names
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "model.safetensors").stat().st_size < 1_000_000


def test_every_tensor_lies_where_the_header_says() -> None:
    tensors = weights(Tokens())
    data = safetensors(tensors)
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    assert header.keys() - {"__metadata__"} == tensors.keys()
    for name, tensor in tensors.items():
        start, end = header[name]["data_offsets"]
        found = np.frombuffer(body[start:end], "<f4").reshape(header[name]["shape"])
        assert np.array_equal(found, tensor)


def test_the_merges_make_every_piece(tmp_path: Path) -> None:
    model = json.loads((write_model(tmp_path) / "tokenizer.json").read_text())["model"]
    made = set(printable_bytes())
    for left, right in model["merges"]:
        assert left in made and right in made
        made.add(left + right)
    assert made | set(CONTROLS) == model["vocab"].keys()
    assert sorted(model["vocab"].values()) == list(range(len(model["vocab"])))
    alphabet = printable_bytes()
    assert all("".join(alphabet[b] for b in piece.encode()) in made for piece in PIECES)


def test_a_pulled_token_wins_clearly_after_its_own() -> None:
    """By the embedding alone; the layers between move it, which the live tests live with."""
    tokens = Tokens()
    tensors = weights(tokens)
    hidden = tensors["model.embed_tokens.weight"]
    logits = hidden @ tensors["lm_head.weight"].T
    for before, after in PULLS:
        row = logits[tokens.ids[before]]
        assert int(np.argmax(row)) == tokens.ids[after]
        assert row[tokens.ids[after]] - np.sort(row)[-2] > 5
