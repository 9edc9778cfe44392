"""What requests have in common that are to have the same server: its cache holds their beginning.

A server keeps what it computed of a prompt's beginning, so the next message of a conversation costs
it little, and another server all of it. What stays of a conversation is how it began: its messages
up to the first of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from msgspec import DecodeError, Raw, Struct, json
from multidict import CIMultiDictProxy

PROMPTS: Final = ("messages", "prompt", "input")
"""Keys that hold what a model reads: of chats, of completions, of embeddings and responses."""
BEGINNING: Final = 1024
"""Bytes of a text, or of a list that is none of messages."""
_HEADER: Final = "header:"


class _Message(Struct):
    role: str = ""


_messages_of = json.Decoder(list[Raw]).decode
_role_of = json.Decoder(_Message).decode


def find_key(
    affinity: str, headers: CIMultiDictProxy[str], fields: Mapping[str, Raw]
) -> bytes | None:
    """Return the key of a request, None where it has none, so that any server may have it.

    `affinity` is a backend's; `fields` are the request's top-level values. Of a long conversation
    that takes a while: all of it is a part of the key, which is a hash of it.
    """
    beginning = _find_common(affinity, headers, fields)
    return None if beginning is None else blake2b(beginning, digest_size=16).digest()


def _find_common(
    affinity: str, headers: CIMultiDictProxy[str], fields: Mapping[str, Raw]
) -> bytes | None:
    if affinity.startswith(_HEADER):
        value = headers.get(affinity.removeprefix(_HEADER), "")
        return value.encode("utf-8", "surrogateescape") or None
    if affinity != "prefix":
        return None
    model = bytes(fields.get("model", b""))
    for name in ("system", "instructions"):  # of Anthropic's endpoint, of responses
        model += bytes(fields.get(name, b""))[:BEGINNING]
    given = next((fields[name] for name in PROMPTS if name in fields), None)
    return None if given is None else model + _find_beginning(bytes(given))


def _find_beginning(prompt: bytes) -> bytes:
    """Return a conversation to the end of the user's first message, else a prompt's first bytes."""
    if not prompt.startswith(b"["):
        return prompt[:BEGINNING]
    try:
        messages = _messages_of(prompt)
        for at, message in enumerate(messages):
            if _role_of(message).role == "user":
                return b",".join(map(bytes, messages[: at + 1]))
    except (DecodeError, UnicodeDecodeError, RecursionError):  # what it is, others say
        pass
    return prompt[:BEGINNING]
