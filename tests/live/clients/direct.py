"""What the tiny model's weights say, computed without llama.cpp and without the proxy.

Also the model's byte-level tokenizer as the file that a client's own tokenizer library reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.models import tiny

EPSILON = 1e-5  # llama's RMS norm, as tiny.describe writes it


class Direct:
    """The bigram model of tests/models/tiny.py: each token's logprobs depend on the one before.

    Attention and feed-forward add nothing there, so the logits are the output matrix times the
    normalised embedding. `table[a, b]` is the natural logarithm of b's probability after a.
    """

    def __init__(self, tokenizer: tiny.Tokenizer) -> None:
        self.vocabulary = tiny.sentencepiece() if tokenizer == "spm" else tiny.byte_level()
        follows = tiny.transitions(self.vocabulary)
        self.vocabulary.pad(32)
        tensors = tiny.weights(len(self.vocabulary.texts), follows)
        embedding = np.array(tensors["token_embd.weight"], np.float64)
        size = np.sqrt(np.mean(embedding**2, axis=1, keepdims=True) + EPSILON)
        logits = (embedding / size) @ np.array(tensors["output.weight"], np.float64).T
        top = logits.max(axis=1, keepdims=True)
        total = np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        self.table: npt.NDArray[np.float64] = logits - top - total

    def scores(self, tokens: Sequence[int]) -> list[float]:
        """Return the logprob of each token after the first."""
        return [float(self.table[a, b]) for a, b in pairwise(tokens)]

    def best(self, token: int) -> int:
        """Return the likeliest token after `token`."""
        return int(self.table[token].argmax())

    def loglikelihood(
        self, context: Sequence[int], continuation: Sequence[int]
    ) -> tuple[float, bool]:
        """Return the continuation's summed logprob, and whether greedy decoding gives it.

        `context` has one token or more.
        """
        tokens = [context[-1], *continuation]
        greedy = all(self.best(a) == b for a, b in pairwise(tokens))
        return sum(self.scores(tokens)), greedy

    def greedy(self, token: int, limit: int) -> list[int]:
        """Return what greedy decoding gives after `token`: `limit` tokens, fewer at the end's."""
        end = self.vocabulary.ids[tiny.END]
        found: list[int] = []
        while len(found) < limit and (token := self.best(token)) != end:
            found.append(token)
        return found


def write_tokenizer(folder: Path) -> Path:
    """Write the byte-level tokenizer in Hugging Face's form into `folder`, and return that.

    The special tokens are those that the GGUF marks as control tokens.
    """
    vocabulary = tiny.byte_level()
    tiny.transitions(vocabulary)
    vocabulary.pad(32)
    special = [
        {"id": vocabulary.ids[text], "content": text, "special": True, "normalized": False}
        | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        for text in ["<s>", "</s>", *tiny.markers()]
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    model = {"type": "BPE", "vocab": vocabulary.ids, "merges": vocabulary.merges}
    file = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": byte_level | {"use_regex": True},
        "decoder": byte_level,
        "model": model,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": tiny.END,
        "clean_up_tokenization_spaces": False,
        "chat_template": tiny.TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
