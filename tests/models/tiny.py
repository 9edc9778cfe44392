"""Writes a tiny llama-architecture GGUF whose greedy answers are scripted: the project's own model.

    python -m tests.models.tiny OUT.gguf [--tok spm|bpe]

It is a bigram model. The attention and feed-forward outputs are zero, so what reaches the output
matrix is the embedding of the last token alone, and each output row holds a share of its
predecessors' embeddings: every scripted piece is followed by the next one. Those embeddings are
orthogonal, so a row of many predecessors (the end's) wins only after its own. All else is seeded
noise, so the greedy text is known while each logprob, tokenizer table and template is real.

The last message's `@tool`, `@think`, `@loop`, `@cut` or `@empty` selects a script (the template
appends its control token to the prompt); without one comes "Hello world! café 😀 done.", whose é
is two byte tokens. With /completion end the prompt with `<|tool|>` and so on.

Needs numpy, or nothing but Python with noise of its own. The bytes are the same each time.
"""

from __future__ import annotations

import argparse
import random
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from tests.models.gguf_file import Tensor, TokenType, Value, write_gguf

Tokenizer = Literal["spm", "bpe"]
Matrix = list["array[float]"]
"""Rows of float32."""

Noise = Callable[[float, int], list[float]]
"""What draws so many normal numbers of a scale."""

TEXT = "Hello world! café 😀 done."
CONTEXT = 2048
WIDTH = 64
HEADS = 4
BLOCKS = 2
SEED = 20_241
PULL = 1.5  # how far a scripted successor stands out of the noise
NOISE = 0.15

BEGIN, END = "<|im_start|>", "<|im_end|>"

# A bigram model: over all scripts each piece has one successor only.
SCRIPTS: dict[str, list[str]] = {
    "text": ["Hello", " world", "!", " caf", "<0xC3>", "<0xA9>", " 😀", " done", ".", END],
    "tool": [
        "<tool_call>",
        '\n{"name": "get_time"',
        ', "arguments": ',
        '{"tz": "UTC"}',
        "}\n",
        "</tool_call>",
        END,
    ],
    "think": ["<think>", "\nHmm", ", let me see.\n", "</think>", "\n\nYes", " indeed", END],
    "loop": ["la", " di", " da ", "la"],
    "cut": ["cut: ", "<0xF0>", "<0x9F>", " end", END],
    "empty": [END],
}
SWITCHED = [name for name in SCRIPTS if name != "text"]
Scripts = Mapping[str, Sequence[str]]
"""What the model says, by name: "text" after a plain prompt, another after its control token."""

# Some words for the prompt, so that it is not all single characters.
WORDS = "assistant hello is me name say system the time tool user what world you".split()

TEMPLATE = (
    "{%- if tools -%}<|im_start|>system\nYou may call: {{ tools | tojson }}\n"
    'as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{%- endif -%}'
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}{{ '\\n' }}"
    "{%- if message.reasoning_content -%}"
    "<think>{{ '\\n' + message.reasoning_content + '\\n' }}</think>{{ '\\n\\n' }}{%- endif -%}"
    "{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] -%}"
    '<tool_call>{{ \'\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\\n' }}</tool_call>"
    "{%- endfor -%}<|im_end|>{{ '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}"
    "{%- set last = messages[-1].content -%}"
    "{%- if last is string -%}{%- for name in %NAMES% -%}"
    "{%- if '@' + name in last -%}{{ '<|' + name + '|>' }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{%- endif -%}"
).replace("%NAMES%", repr(SWITCHED))


class Vocabulary:
    """Token texts as the GGUF spells them, with type and score; `spell` turns text into that."""

    def __init__(self, spell: Callable[[str], str], byte: Callable[[int], str]) -> None:
        self.spell = spell
        self.byte = byte
        self.texts: list[str] = []
        self.types: list[int] = []
        self.scores: list[float] = []
        self.merges: list[str] = []
        self.ids: dict[str, int] = {}

    def add(self, text: str, kind: TokenType, score: float = 0.0) -> int:
        """Add a token unless it is there, and return its id."""
        if text not in self.ids:
            self.ids[text] = len(self.texts)
            self.texts.append(text)
            self.types.append(int(kind))
            self.scores.append(score)
        return self.ids[text]

    def controls(self, texts: Sequence[str]) -> None:
        for text in texts:
            self.add(text, TokenType.CONTROL)

    def piece(self, piece: str) -> int:
        """Return the id of a script's piece: a control token, a byte `<0xC3>`, or text."""
        if found := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
            return self.ids[self.byte(int(found[1], 16))]
        if piece in self.ids:
            return self.ids[piece]
        return self.add(self.spell(piece), TokenType.NORMAL, -900.0)

    def pad(self, multiple: int) -> None:
        while len(self.texts) % multiple:
            self.add(f"<unused{len(self.texts)}>", TokenType.UNUSED)


def markers() -> list[str]:
    return [BEGIN, END, *(f"<|{name}|>" for name in SWITCHED)]


def sentencepiece() -> Vocabulary:
    """Return a vocabulary in llama's spelling: `▁` for a space, `<0x0A>` byte tokens."""
    vocabulary = Vocabulary(lambda text: text.replace(" ", "▁"), lambda byte: f"<0x{byte:02X}>")
    vocabulary.add("<unk>", TokenType.UNKNOWN)
    vocabulary.controls(["<s>", "</s>"])
    for byte in range(256):
        vocabulary.add(f"<0x{byte:02X}>", TokenType.BYTE)
    vocabulary.controls(markers())
    for text in ["▁", "\n", *map(chr, range(33, 127))]:
        vocabulary.add(text, TokenType.NORMAL, -1000.0)
    # Merging goes by score, the best pair first, so each longer prefix must be reachable.
    for rank, word in enumerate(WORDS):
        for end in range(2, len(word) + 1):
            vocabulary.add(word[:end], TokenType.NORMAL, -20.0 * rank - end)
        vocabulary.add("▁" + word, TokenType.NORMAL, -20.0 * rank - len(word) - 1)
    return vocabulary


def printable_bytes() -> list[str]:
    """Return GPT-2's spelling of each byte: itself where it prints, else one from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(spare)) for byte in range(256)]


def byte_level() -> Vocabulary:
    """Return a vocabulary in GPT-2's spelling (`Ġ` for a space), with its merges."""
    alphabet = printable_bytes()
    vocabulary = Vocabulary(
        lambda text: "".join(alphabet[byte] for byte in text.encode()),
        lambda byte: alphabet[byte],
    )
    vocabulary.controls(["<s>", "</s>", *markers()])
    for text in alphabet:
        vocabulary.add(text, TokenType.NORMAL)
    for word in [*WORDS, *(" " + word for word in WORDS)]:
        spelled = vocabulary.spell(word)
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocabulary.ids:
                vocabulary.add(spelled[:end], TokenType.NORMAL)
                vocabulary.merges.append(f"{spelled[: end - 1]} {spelled[end - 1]}")
    return vocabulary


def transitions(vocabulary: Vocabulary, scripts: Scripts = SCRIPTS) -> dict[int, int]:
    """Return token id -> the id that follows it, over all scripts.

    Raises ValueError if a piece has two successors, which a bigram model cannot hold.
    """
    newline = vocabulary.ids[vocabulary.spell("\n")]
    follows: dict[int, int] = {}
    for name, pieces in scripts.items():
        # "text" follows the newline that ends the plain generation prompt.
        start = newline if name == "text" else vocabulary.ids[f"<|{name}|>"]
        chain = [start, *map(vocabulary.piece, pieces)]
        for before, after in pairwise(chain):
            if follows.setdefault(before, after) != after:
                raise ValueError(f"{name}: {vocabulary.texts[before]!r} has two successors")
    if len(follows) > WIDTH:
        raise ValueError(f"{len(follows)} transitions need a WIDTH of as many")
    return follows


def orthogonal(size: int) -> list[list[float]]:
    """Return Sylvester's Hadamard matrix: rows of 1 and -1, each orthogonal to the others.

    Exact, where a decomposition of noise would depend on the machine. `size` is a power of two.
    """
    rows = [[1.0]]
    while len(rows) < size:
        rows = [[*row, *row] for row in rows] + [[*row, *(-x for x in row)] for row in rows]
    return rows


def numpy_noise() -> Noise:
    """Return numpy's noise, on which hangs what tests expect of sampled and constrained answers."""
    import numpy as np

    draw = np.random.default_rng(SEED)
    return lambda scale, count: [float(x) for x in scale * draw.standard_normal(count)]


def plain_noise() -> Noise:
    """Return Python's own noise, for where there is no numpy."""
    draw = random.Random(SEED)
    return lambda scale, count: [draw.gauss(0, scale) for _ in range(count)]


def weights(size: int, follows: dict[int, int], draw: Noise | None = None) -> dict[str, Tensor]:
    """Return every tensor of the model, by its GGUF name; the noise is numpy's if none is given."""
    drawn = draw or numpy_noise()

    def noise(scale: float, rows: int, columns: int = WIDTH) -> Matrix:
        values = drawn(scale, rows * columns)
        return [array("f", values[at : at + columns]) for at in range(0, len(values), columns)]

    def zeros(rows: int, columns: int) -> Matrix:
        return [array("f", [0.0] * columns) for _ in range(rows)]

    embedding, output = noise(1.0, size), noise(NOISE, size)
    for row, (before, after) in zip(orthogonal(WIDTH), follows.items(), strict=False):
        embedding[before] = array("f", row)
        pulled = (x + PULL / WIDTH**0.5 * y for x, y in zip(output[after], row, strict=True))
        output[after] = array("f", pulled)
    ones = [array("f", [1.0] * WIDTH)]
    tensors: dict[str, Tensor] = {
        "token_embd": embedding,
        "output_norm": ones,
        "output": output,
    }
    for block in range(BLOCKS):
        parts: dict[str, Tensor] = {
            "attn_norm": ones,
            "attn_q": noise(0.05, WIDTH),
            "attn_k": noise(0.05, WIDTH),
            "attn_v": noise(0.05, WIDTH),
            "attn_output": zeros(WIDTH, WIDTH),
            "ffn_norm": ones,
            "ffn_gate": noise(0.05, 2 * WIDTH),
            "ffn_up": noise(0.05, 2 * WIDTH),
            "ffn_down": zeros(WIDTH, 2 * WIDTH),
        }
        tensors |= {f"blk.{block}.{name}": part for name, part in parts.items()}
    return {f"{name}.weight": tensor for name, tensor in tensors.items()}


def describe(size: int, context: int) -> dict[str, Value]:
    """Return the architecture's metadata."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 0,  # all float32
        "llama.context_length": context,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": 2 * WIDTH,
        "llama.block_count": BLOCKS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": size,
    }


def tokenize(vocabulary: Vocabulary, tokenizer: Tokenizer) -> dict[str, Value]:
    """Return the tokenizer's metadata and the chat template."""
    found: dict[str, Value]
    if tokenizer == "spm":
        found = {
            "model": "llama",
            "scores": vocabulary.scores,
            "unknown_token_id": vocabulary.ids["<unk>"],
            "add_space_prefix": False,
        }
    else:
        found = {"model": "gpt2", "pre": "gpt-2", "merges": vocabulary.merges}
    found |= {
        "tokens": vocabulary.texts,
        "token_type": vocabulary.types,
        "bos_token_id": vocabulary.ids["<s>"],
        "eos_token_id": vocabulary.ids[END],
        "eot_token_id": vocabulary.ids[END],
        "add_bos_token": True,
    }
    named = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    return named | {"tokenizer.chat_template": TEMPLATE}


def write_model(
    path: Path, tokenizer: Tokenizer = "spm", draw: Noise | None = None, context: int = CONTEXT
) -> Path:
    """Write the model (about 0.6 MB, under a second) and return `path`.

    `context`: what llama.cpp takes it to be trained for; it serves no longer one.
    """
    vocabulary = sentencepiece() if tokenizer == "spm" else byte_level()
    follows = transitions(vocabulary)
    vocabulary.pad(32)
    size = len(vocabulary.texts)
    metadata = {**describe(size, context), **tokenize(vocabulary, tokenizer)}
    write_gguf(path, metadata, weights(size, follows, draw))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tiny scripted model.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tok", choices=["spm", "bpe"], default="spm")
    options = parser.parse_args()
    print(write_model(options.out, options.tok))


if __name__ == "__main__":
    main()
