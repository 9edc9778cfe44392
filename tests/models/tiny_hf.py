"""Writes a tiny Llama with its tokenizer as a Hugging Face folder, for vLLM's live tests.

    python -m tests.models.tiny_hf FOLDER

The weights are seeded noise, so what it says is noise with real logprobs. A byte-level vocabulary
of few words makes half of that noise parts of characters, mostly ones that never become whole. So
the output rows of some tokens lean towards the token before them (`PULLS`): once its first part
was chosen, a character of several tokens usually becomes whole.

Needs numpy alone; the files are the same each time.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.tiny import orthogonal, printable_bytes

Matrix = npt.NDArray[np.float32]

CONTEXT = 2048
WIDTH = 64
HEADS = 2
LAYERS = 2
SEED = 4_711
NOISE = 0.3  # of the output rows: greedy tokens have a probability of about a fifth
PULL = 2.2  # adds about 10 to a pulled token's logit

PAD, BEGIN, END, TURN, TURN_END = "<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"
CONTROLS = (PAD, BEGIN, END, TURN, TURN_END)

# Every prefix of a piece becomes a token too, so "你好" also gives parts of its two characters.
PIECES = (
    "Hello", " world", " the", " quick", " brown", " fox", " tiny", " café", "Grüße", " Köln",
    "你好", "世界", "🙂", "system", "user", "assistant", "get", "_weather", '{"', '": "', '"}',
    "city", "Paris", "name", " in", " is", "ing", "\n\n", "  ",
)  # fmt: skip

# What usually follows what: the other bytes of characters that are several tokens.
PULLS = (
    (b"\xf0\x9f", b"\x98"), (b"\x98", b"\x80"),  # 😀 in three tokens
    (b"\xe2", b"\x82"), (b"\x82", b"\xac"),  # € in three
    (b"\xe4\xbd", b"\xa0"),  # 你 in two
    (b" caf\xc3", b"\xa9"),  # é, its first byte within a word's token
)  # fmt: skip

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.reasoning_content %}{{ '[' + message.reasoning_content + ']' }}{% endif %}"
    "{{ message.content or '' }}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Tokens:
    """The vocabulary: token ids by the bytes that a token stands for, and the merges."""

    def __init__(self) -> None:
        alphabet = printable_bytes()
        self.spelled: dict[str, int] = {name: at for at, name in enumerate(CONTROLS)}
        self.merges: list[tuple[str, str]] = []
        self.ids: dict[bytes, int] = {}
        for byte in range(256):
            self._add(bytes([byte]), alphabet[byte])
        for piece in PIECES:
            data = piece.encode()
            for end in range(2, len(data) + 1):
                if data[:end] not in self.ids:
                    before = "".join(alphabet[byte] for byte in data[: end - 1])
                    self.merges.append((before, alphabet[data[end - 1]]))
                    self._add(data[:end], before + alphabet[data[end - 1]])

    def _add(self, data: bytes, spelled: str) -> None:
        self.ids[data] = self.spelled[spelled] = len(self.spelled)

    def __len__(self) -> int:
        return len(self.spelled)


def weights(tokens: Tokens) -> dict[str, Matrix]:
    """Return every tensor by its name in a Llama checkpoint."""
    draw = np.random.default_rng(SEED)

    def noise(scale: float, *shape: int) -> Matrix:
        return (scale * draw.standard_normal(shape)).astype(np.float32)

    embedding = noise(1.0, len(tokens), WIDTH)
    output = noise(NOISE, len(tokens), WIDTH)
    rows = np.array(orthogonal(WIDTH), np.float32)
    for row, (before, after) in zip(rows, PULLS, strict=False):
        embedding[tokens.ids[before]] = row
        output[tokens.ids[after]] += np.float32(PULL / WIDTH**0.5) * row
    ones = np.ones(WIDTH, np.float32)
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones,
        "lm_head.weight": output,
    }
    for layer in range(LAYERS):
        parts = {"input_layernorm": ones, "post_attention_layernorm": ones}
        for name in "qkvo":
            parts[f"self_attn.{name}_proj"] = noise(0.08, WIDTH, WIDTH)
        for name in ("gate", "up"):
            parts[f"mlp.{name}_proj"] = noise(0.08, 2 * WIDTH, WIDTH)
        parts["mlp.down_proj"] = noise(0.08, WIDTH, 2 * WIDTH)
        tensors |= {f"model.layers.{layer}.{name}.weight": part for name, part in parts.items()}
    return tensors


def safetensors(tensors: dict[str, Matrix]) -> bytes:
    """Return the tensors as a safetensors file: a header's length, a JSON header, the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.astype("<f4").tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tokenizer(tokens: Tokens) -> dict[str, Any]:
    """Return tokenizer.json: byte-level BPE, split as GPT-2 does."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": at, "content": name, **flags, "special": True}
            for at, name in enumerate(CONTROLS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokens.spelled,
            "merges": tokens.merges,
        },
    }


def write_model(folder: Path) -> Path:
    """Write the model (about 0.6 MB) into `folder`, which is made, and return it."""
    tokens = Tokens()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": len(tokens),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        **ids,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": CONTEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {
        "config.json": config,
        "generation_config.json": ids,
        "tokenizer.json": tokenizer(tokens),
        "tokenizer_config.json": settings,
    }.items():
        (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1))
    (folder / "model.safetensors").write_bytes(safetensors(weights(tokens)))
    return folder


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
