"""Raw vocabulary spellings of tokens, and their bytes.

Servers that do not decode their tokens send them as the tokenizer's vocabulary spells them. They
are undone only where the plain text does not cover the content and the undone text does (contract
rule 7), since each of these texts may also be what a model really wrote.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence

from wellspoken.adapters.tokens.table import raw_escapes

_BYTES = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")
_NAMED_BYTE = re.compile(r"byte: \\x([0-9a-fA-F]{2})")
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _byte_level() -> dict[str, int]:
    """Return GPT-2's character for each byte, inverted: printable ones stand for themselves."""
    table = {chr(byte): byte for byte in _PRINTABLE}
    rest = (byte for byte in range(256) if byte not in _PRINTABLE)
    return table | {chr(0x100 + n): byte for n, byte in enumerate(rest)}


BYTE_LEVEL = _byte_level()


def raw_sentencepiece(token: str) -> bytes | None:
    """Return the bytes of `▁Hello` or `<0x0A>` (vLLM 0.3.3, Llama 2 and Mistral vocabularies)."""
    if _BYTES.fullmatch(token):
        return bytes.fromhex(token.replace("<0x", "").replace(">", ""))
    return token.replace("▁", " ").encode() if "▁" in token else None


def raw_byte_level(token: str) -> bytes | None:
    """Return the bytes of `Ġis` (mlx-lm, vLLM 0.3.3, vocabularies in the manner of GPT-2)."""
    try:
        data = bytes(BYTE_LEVEL[character] for character in token)
    except KeyError:
        return None  # an added token holds plain text
    return data if data != token.encode() else None


def is_byte_level(tokens: Iterable[str]) -> bool:
    """Say whether tokens are spelled so beyond doubt: all of them, and they make UTF-8."""
    try:
        data = bytes(BYTE_LEVEL[character] for token in tokens for character in token)
        getincrementaldecoder("utf-8")().decode(data)
    except (KeyError, UnicodeDecodeError):
        return False
    return True


def byte_spelled(token: str) -> bytes | None:
    r"""Return the byte of `byte: \xc3` (llama.cpp <= b4273, cortex.llamacpp)."""
    found = _NAMED_BYTE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


Undo = Callable[[str], bytes | None]

SPELLINGS: tuple[tuple[str, Undo], ...] = (
    ("logprobs_raw_sentencepiece", raw_sentencepiece),
    ("logprobs_raw_byte_level", raw_byte_level),
    ("logprobs_byte_spelled", byte_spelled),
    ("logprobs_raw_escapes", raw_escapes),
)
"""(repair, function): bytes of a token spelled so, None for one that is not."""


_MARKS: dict[Undo, tuple[str, ...]] = {
    raw_sentencepiece: ("▁", "<0x"),
    byte_spelled: ("byte: \\x",),
    raw_escapes: ("\\x",),
}
"""What a token holds that is spelled so; in bytes' own letters it is anything that is not ASCII."""


def find_spellings(tokens: Sequence[str]) -> list[tuple[str, Undo]]:
    """Return the spellings that one of the tokens has at least.

    There may be tens of thousands, few of which are spelled by anything; so those that cannot be
    are passed over together.
    """
    joined = "\n".join(tokens)
    odd = [] if joined.isascii() else [token for token in tokens if not token.isascii()]
    found = []
    for name, undo in SPELLINGS:
        marks = _MARKS.get(undo)
        near = odd
        if marks is not None:
            here = [mark for mark in marks if mark in joined]
            near = [token for token in tokens if any(map(token.__contains__, here))] if here else []
        if any(undo(token) is not None for token in near):
            found.append((name, undo))
    return found


def join_tokens(tokens: Sequence[str]) -> Iterator[str]:
    """Give the text that tokens are together: as they stand, and by each raw spelling."""
    yield "".join(tokens)
    for _, undo in SPELLINGS:
        undone = [(token, undo(token)) for token in tokens]
        data = b"".join(token.encode() if told is None else told for token, told in undone)
        yield data.decode(errors="replace")
