"""The tiny scripted model is what it says; that llama.cpp speaks it is shown in tests/live."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.models import tiny


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
def test_the_bytes_are_the_same_each_time(tokenizer: tiny.Tokenizer, tmp_path: Path) -> None:
    one = tiny.write_model(tmp_path / "one.gguf", tokenizer).read_bytes()
    assert one == tiny.write_model(tmp_path / "two.gguf", tokenizer).read_bytes()
    assert one.startswith(b"GGUF") and len(one) < 1_000_000


def test_the_tokenizers_differ_and_the_script_does_not(
    tiny_model: Path, tiny_model_bpe: Path
) -> None:
    kinds = []
    for path in (tiny_model, tiny_model_bpe):
        field = gguf.GGUFReader(path).get_field("tokenizer.ggml.model")
        assert field is not None
        kinds.append(field.contents())
    assert kinds == ["llama", "gpt2"]
    pieces = "".join(tiny.SCRIPTS["text"]).removesuffix(tiny.END)
    assert pieces.replace("<0xC3><0xA9>", "é") == tiny.TEXT


def test_each_scripted_piece_wins_clearly_over_all_others() -> None:
    vocabulary = tiny.byte_level()
    follows = tiny.transitions(vocabulary)
    tensors = tiny.weights(len(vocabulary.texts), follows)
    logits = tensors["token_embd.weight"] @ tensors["output.weight"].T
    for before, after in follows.items():
        best, second = np.sort(logits[before])[::-1][:2]
        assert int(np.argmax(logits[before])) == after
        assert best - second > 2


def test_a_script_that_no_bigram_model_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.SCRIPTS, "text", ["a", "b", "a", "c"])
    with pytest.raises(ValueError, match="'a' has two successors"):
        tiny.transitions(tiny.byte_level())
