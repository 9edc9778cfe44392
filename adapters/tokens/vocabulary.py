"""A model's vocabulary: token id or text to the token's bytes, from files that the proxy has read.

Three kinds are known. A tiktoken encoding or `.tiktoken` file, and a Hugging Face `tokenizer.json`
of byte-level BPE (GPT-2's spelling: `Ġ` is a space), give bytes and can count tokens. A
sentencepiece style `tokenizer.json` (`▁` is a space, `<0x0A>` a byte) gives bytes alone.

No file and no network is touched here: the loaders take bytes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import tiktoken
from msgspec import DecodeError, Struct, ValidationError, json

GPT2_PATTERN: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The split of the ByteLevel pre-tokenizer, which a tokenizer.json names but does not spell."""

TIKTOKEN_PATTERN: Final = (
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The split that the models with `.tiktoken` files share (cl100k_base, Llama 3, nearly Qwen)."""

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"
_MAX_ID: Final = 2**32 - 1


class Vocabulary:
    """Token id or token text to bytes; `counts` says whether `count` can tell.

    `size` is one more than the greatest token id, whether or not all below it are tokens.

    A text is the vocabulary's own spelling (`Ġis`, `▁is`, `<0x0A>`) or the decoded one (" is");
    where two tokens of different bytes have it, it tells nothing.
    """

    def __init__(
        self,
        tokens: Mapping[int, bytes],
        *,
        spellings: Mapping[str, int] | None = None,
        control: Iterable[int] = (),
        encoding: tiktoken.Encoding | None = None,
    ) -> None:
        self._tokens = tokens
        self.size = max(tokens, default=-1) + 1
        self._control = frozenset(control)
        self._encoding = encoding
        self._texts = _texts(tokens, spellings or {}, self._control)
        self._control_texts = frozenset(
            text for text, token in (spellings or {}).items() if token in self._control
        )

    @property
    def counts(self) -> bool:
        """Whether this vocabulary can tokenize."""
        return self._encoding is not None

    def by_id(self, token: int) -> bytes | None:
        """Return the bytes of a token id, None where there is none."""
        return self._tokens.get(token)

    def by_text(self, text: str) -> bytes | None:
        """Return the bytes that a token's text stands for, None if unknown or ambiguous."""
        return self._texts.get(text)

    def is_control(self, token: int) -> bool:
        """Say whether a token id is a control token (end of text and the like), not text."""
        return token in self._control

    def is_control_text(self, text: str) -> bool:
        """Say whether a text is the spelling of a control token."""
        return text in self._control_texts

    def count(self, text: str) -> int | None:
        """Return the number of tokens of `text`, control tokens read as text; None if unknown."""
        if self._encoding is None:
            return None
        return len(self._encoding.encode(text, disallowed_special=()))


def _texts(
    tokens: Mapping[int, bytes], spellings: Mapping[str, int], control: frozenset[int]
) -> dict[str, bytes | None]:
    """Return every unambiguous text with its bytes; an ambiguous one with None."""
    texts: dict[str, bytes | None] = {}
    for text, token in spellings.items():
        texts[text] = tokens.get(token)
    for token, data in tokens.items():
        if token in control:
            continue
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue  # part of a character has no text of its own
        if texts.setdefault(text, data) != data:
            texts[text] = None
    return texts


def from_encoding(encoding: tiktoken.Encoding) -> Vocabulary:
    """Return the vocabulary of a loaded tiktoken encoding."""
    special = {text: encoding.encode_single_token(text) for text in encoding.special_tokens_set}
    tokens = {encoding.encode_single_token(data): data for data in encoding.token_byte_values()}
    return Vocabulary(
        tokens | {token: text.encode() for text, token in special.items()},
        spellings=special,
        control=special.values(),
        encoding=encoding,
    )


def from_tiktoken_file(
    data: bytes, *, pattern: str = TIKTOKEN_PATTERN, special: Mapping[str, int] | None = None
) -> Vocabulary:
    """Return the vocabulary of a `.tiktoken` file: lines of a base64 token and its rank.

    `pattern` is the model's split (it matters for `count` alone), `special` its control tokens.
    Raise ValueError for a line of another form, or a pattern that does not parse.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(
                f"line {number} is not a base64 token and its rank, as a .tiktoken file has; "
                "give a .tiktoken or a tokenizer.json file"
            ) from None
    if not ranks:
        raise ValueError("the file is empty; give a .tiktoken or a tokenizer.json file")
    control = dict(special or {})
    ids = [*ranks.values(), *control.values()]
    if len(set(ids)) != len(ids) or not all(0 <= token < _MAX_ID for token in ids):
        raise ValueError("two tokens have one rank, or one is no rank; take a fresh copy")
    if not all(bytes([byte]) in ranks for byte in range(256)):  # tiktoken would abort on those
        tokens = {token: data for data, token in ranks.items()}
        tokens |= {token: text.encode() for text, token in control.items()}
        return Vocabulary(tokens, spellings=control, control=control.values())
    return from_encoding(_encoding(pattern, ranks, control))


def _encoding(pattern: str, ranks: dict[bytes, int], special: dict[str, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        name="wellspoken", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )


class _Added(Struct):
    id: int
    content: str
    special: bool = False


class _TokenizerModel(Struct):
    type: str | None = None
    vocab: Any = None
    merges: list[Any] = []
    byte_fallback: bool | None = None
    ignore_merges: bool | None = None


class _Tokenizer(Struct):
    """The parts of a tokenizer.json that are read (Hugging Face `tokenizers`)."""

    model: _TokenizerModel
    added_tokens: list[_Added] | None = None
    pre_tokenizer: Any = None
    decoder: Any = None


_decode = json.Decoder(_Tokenizer).decode


def from_tokenizer_json(data: bytes) -> Vocabulary:
    """Return the vocabulary of a Hugging Face tokenizer.json; raise ValueError for another file.

    Byte-level BPE becomes tiktoken ranks in the order of its merges, and counts; sentencepiece
    styles (BPE or Unigram with `▁`) become a decode table.
    """
    try:
        file = _decode(data)
    except (ValidationError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"not a Hugging Face tokenizer.json ({error}); give the tokenizer.json beside the "
            "model, not tokenizer_config.json"
        ) from None
    vocab = _vocab(file.model)
    added = file.added_tokens or []
    parts = [*_parts(file.pre_tokenizer), *_parts(file.decoder)]
    if any(part.get("type") == "ByteLevel" for part in parts):
        return _byte_level(file, vocab, added)
    if file.model.byte_fallback or any(_SPACE in text for text in vocab):
        return _sentencepiece(vocab, added)
    raise ValueError(
        f"this tokenizer.json ({file.model.type or 'no type'}) is neither byte-level BPE nor "
        "sentencepiece style, so its tokens do not tell their bytes; leave `tokenizer` out"
    )


def _vocab(model: _TokenizerModel) -> dict[str, int]:
    """Return token text to id of BPE (a map) and Unigram (pairs of text and score)."""
    vocab = model.vocab
    if isinstance(vocab, dict) and all(type(token) is int for token in vocab.values()):
        return vocab
    if isinstance(vocab, list) and all(
        isinstance(pair, list) and pair and isinstance(pair[0], str) for pair in vocab
    ):
        return {pair[0]: token for token, pair in enumerate(vocab)}
    raise ValueError(
        "this tokenizer.json has no model.vocab of texts and ids; give the complete file"
    )


def _parts(step: object) -> list[dict[str, Any]]:
    """Return a pre-tokenizer or decoder and those that a Sequence holds."""
    found, rest = [], [step]
    for part in rest:
        if isinstance(part, dict):
            found.append(part)
            nested = part.get("pretokenizers") or part.get("decoders")
            rest += nested if isinstance(nested, list) else []
    return found


def _byte_level(file: _Tokenizer, vocab: dict[str, int], added: list[_Added]) -> Vocabulary:
    table = gpt2_bytes()
    special = {token.content: token.id for token in added}
    tokens: dict[int, bytes] = {}
    for text, token in vocab.items():
        if text in special:
            continue
        data = _unspell(text, table)
        if data is None:
            raise ValueError(
                f"token {text!r} is not spelled in byte-level BPE's characters though the file "
                "says it is; give the model's own tokenizer.json"
            )
        tokens[token] = data
    spellings = {text: token for text, token in vocab.items() if token in tokens} | special
    return Vocabulary(
        tokens | {token: text.encode() for text, token in special.items()},
        spellings=spellings,
        control=(token.id for token in added if token.special),
        encoding=_encoding_by_rank(file, tokens, special),
    )


def _encoding_by_rank(
    file: _Tokenizer, tokens: dict[int, bytes], special: dict[str, int]
) -> tiktoken.Encoding | None:
    """Return an encoding that merges in the file's order, or None where tiktoken cannot.

    tiktoken merges the pair whose result has the lowest rank, so ranks follow the merges: single
    bytes first, then each merge's result.
    """
    pattern = _pattern(file.pre_tokenizer)
    if pattern is None:
        return None
    table = gpt2_bytes()
    ranks: dict[bytes, int] = {bytes([byte]): rank for rank, byte in enumerate(table.values())}
    for merge in file.model.merges:
        pair = merge if isinstance(merge, list) else str(merge).split(" ")
        data = _unspell("".join(map(str, pair)), table)
        if data:
            ranks.setdefault(data, len(ranks))
    if file.model.ignore_merges:  # a whole word that is a token is taken though no merge makes it
        for token in sorted(tokens):
            ranks.setdefault(tokens[token], len(ranks))
    control = {text: len(ranks) + offset for offset, text in enumerate(special)}
    try:
        return _encoding(pattern, ranks, control)
    except ValueError:  # a regular expression of Oniguruma's that tiktoken's library lacks
        return None


def _pattern(pre_tokenizer: object) -> str | None:
    """Return the one regular expression that splits text into words.

    None where there are several steps, or one that no expression tells: counting would be wrong.
    """
    patterns: list[str] = []
    for part in _parts(pre_tokenizer):
        match part:
            case {"type": "Sequence"}:
                pass
            case {"type": "ByteLevel"}:
                if part.get("add_prefix_space"):
                    return None
                if part.get("use_regex", True):
                    patterns.append(GPT2_PATTERN)
            case {"type": "Split", "pattern": {"Regex": str(pattern)}} if _isolates(part):
                patterns.append(pattern)
            case _:
                return None
    return patterns[0] if len(patterns) == 1 else None


def _isolates(split: Mapping[str, Any]) -> bool:
    """Say whether a Split's matches are the words, which is what tiktoken does."""
    how = (split.get("behavior", "Isolated"), bool(split.get("invert")))
    return how in (("Isolated", False), ("Removed", True))


def _sentencepiece(vocab: dict[str, int], added: list[_Added]) -> Vocabulary:
    tokens: dict[int, bytes] = {}
    for text, token in vocab.items():
        found = _BYTE.fullmatch(text)
        plain = text.replace(_SPACE, " ").encode()
        tokens[token] = bytes([int(found[1], 16)]) if found else plain
    special = {token.content: token.id for token in added}
    tokens |= {token: text.encode() for text, token in special.items()}
    return Vocabulary(
        tokens,
        spellings=vocab | special,
        control=(token.id for token in added if token.special),
    )


def gpt2_bytes() -> dict[str, int]:
    """Return byte-level BPE's character for each byte, turned round: character to byte.

    Printable characters of Latin-1 stand for themselves, the other 68 bytes take U+0100 and up in
    order (GPT-2's encoder).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + offset): byte for offset, byte in enumerate(others)}


def _unspell(text: str, table: Mapping[str, int]) -> bytes | None:
    """Return the bytes of a byte-level spelling, None if a character is no byte."""
    try:
        return bytes([table[character] for character in text])
    except KeyError:
        return None
