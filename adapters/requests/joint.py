"""Choices that are one computation: a beam search, or the best of several that a server picks.

Asked for one by one each would be the same best choice, so these requests are never divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from wellspoken.adapters.requests.errors import RequestError, unsupported

SEARCHES: Final = frozenset({"use_beam_search", "beam_search"})
"""Switches: vLLM since 0.1, TensorRT-LLM, Aphrodite, SGLang with --enable-beam-search."""

COUNTS: Final = frozenset({"num_beams", "num_beam_groups", "beam_width", "beam_size", "best_of"})
"""How many are looked at, of which 1 is no search: text-generation-webui and what serves
Transformers, TensorRT-LLM, CTranslate2; `best_of` of a chat, OpenVINO's model server and vLLM's up
to 0.11. (That of completions is OpenAI's, which the proxy does itself.)"""

_NO_SEARCH: Final = (b"0", b"1")


def joins_choices(switches: frozenset[str], fields: Mapping[str, Raw]) -> bool:
    """Say whether all choices of a prompt are one computation; `switches` as in `Exchange`."""
    if not SEARCHES.isdisjoint(switches):
        return True
    return any(bytes(fields[key]) not in _NO_SEARCH for key in COUNTS & switches)


def cannot_join(title: str) -> RequestError:
    """Return the error for such choices of a server that gives one at a time."""
    return unsupported(
        "n",
        "Several choices of a beam search are one computation, and this request can only be asked "
        f"of {title} choice by choice. Leave 'n' out, or the key that asks for the search.",
    )
