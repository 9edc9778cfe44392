"""The tiny scripted model is what it says; that llama.cpp speaks it is shown in tests/live."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.models import tiny
from tests.models.gguf_file import TokenType

ROOT = Path(__file__).parents[2]


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


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
def test_llama_cpps_own_package_reads_what_was_written(
    tokenizer: tiny.Tokenizer, tmp_path: Path
) -> None:
    reader = gguf.GGUFReader(tiny.write_model(tmp_path / "model.gguf", tokenizer))
    vocabulary = tiny.sentencepiece() if tokenizer == "spm" else tiny.byte_level()
    follows = tiny.transitions(vocabulary)
    vocabulary.pad(32)
    size = len(vocabulary.texts)
    written = tiny.describe(size, tiny.CONTEXT) | tiny.tokenize(vocabulary, tokenizer)
    read = {key: field.contents() for key, field in reader.fields.items()}
    assert {key for key in read if not key.startswith("GGUF.")} == written.keys()
    for key, value in written.items():
        expected = pytest.approx(value) if "epsilon" in key else value
        assert read[key] == expected, key
    tensors = {each.name: each.data for each in reader.tensors}
    assert tensors.keys() == tiny.weights(size, follows).keys()
    for name, rows in tiny.weights(size, follows).items():
        assert np.array_equal(np.atleast_2d(tensors[name]), np.array(rows)), name
    for kind in TokenType:
        assert int(gguf.TokenType[kind.name]) == int(kind)


@pytest.mark.parametrize("noise", [tiny.numpy_noise, tiny.plain_noise])
def test_each_scripted_piece_wins_clearly_over_all_others(
    noise: Callable[[], tiny.Noise],
) -> None:
    vocabulary = tiny.byte_level()
    follows = tiny.transitions(vocabulary)
    tensors = tiny.weights(len(vocabulary.texts), follows, noise())
    embedding, output = (np.array(tensors[f"{name}.weight"]) for name in ("token_embd", "output"))
    logits = embedding @ output.T
    for before, after in follows.items():
        best, second = np.sort(logits[before])[::-1][:2]
        assert int(np.argmax(logits[before])) == after
        assert best - second > 2


def test_the_demo_needs_no_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.models.tiny import plain_noise, write_model\n"
        "write_model(Path(sys.argv[1]), draw=plain_noise())\n"
        "assert not {'numpy', 'gguf'} & set(sys.modules)"
    )
    path = tmp_path / "plain.gguf"
    words = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert gguf.GGUFReader(path).get_tensor(0).name == "token_embd.weight"


def test_a_script_that_no_bigram_model_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.SCRIPTS, "text", ["a", "b", "a", "c"])
    with pytest.raises(ValueError, match="'a' has two successors"):
        tiny.transitions(tiny.byte_level())
