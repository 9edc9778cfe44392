"""Which entries belong to a content that has no text, and own nothing of it (contract rule 7).

entry                                  reason "stop"             any other reason
text known (a stop string, stripped)   outside                   outside
text known, a control token            outside: it ended it      content: it ended nothing
text unknown, a part of a character    content, but for the last content
"""

from __future__ import annotations

from msgspec import json

from wellspoken.adapters.alignment.candidates import CONTROL, own_part, without_bytes
from wellspoken.adapters.events import Entry, Reason
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import NULL, token_id

_ids = json.Decoder(list[int]).decode


def take_textless(entries: list[Entry], reason: Reason | None, exchange: Exchange) -> list[Entry]:
    """Return the entries of an empty content, their bytes null; counts those outside of it.

    At "stop" the last one is the end-of-text token, of which llama.cpp tells no text: of several
    without a text only that one ended the answer. Without a reason the limit tells, as in the stage
    of finish reasons.
    """
    limit, notes = exchange.max_tokens, exchange.notes
    if reason is None:
        reason = "stop" if limit is None or len(entries) < limit else "length"
    stopped = reason in ("stop", "tool_calls", "function_call")
    kept = [x for x in entries[: len(entries) - stopped] if _is_content(x, stopped)]
    if len(kept) < len(entries):
        notes.add("logprobs_outside_content", len(entries) - len(kept))
    for entry in kept:
        if entry.bytes != NULL:
            notes.add("logprobs_bytes_unknown")
        if token_id(entry.token) is None and not CONTROL.fullmatch(entry.token):
            own_part(entry, b"", notes)
        without_bytes(entry)
    return kept


def _is_content(entry: Entry, stopped: bool) -> bool:
    if not _is_text(entry):
        return True
    return not stopped and CONTROL.fullmatch(entry.token) is not None


def _is_text(entry: Entry) -> bool:
    """Say whether the entry's text is known, and whole characters."""
    if entry.bytes == NULL:
        return CONTROL.fullmatch(entry.token) is not None
    try:
        return bytes(_ids(entry.bytes)).decode() != ""
    except UnicodeDecodeError:
        return False
