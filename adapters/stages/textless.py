"""Which entries belong to a content that has no text, and own nothing of it (contract rule 7).

entry                                  reason "stop"             any other reason
text known (a stop string, stripped)   outside                   outside
text known, a control token            outside: it ended it      content: it ended nothing
text unknown, a part of a character    content, but for the last content

Where only alternatives came (vLLM <= 0.4.2, streamed) the token is the one of them that may be
content, unknown if there are several.
"""

from __future__ import annotations

import re

from msgspec import json

from wellspoken.adapters.alignment.candidates import (
    CONTROL,
    UNCHOSEN,
    own_part,
    pick,
    without_bytes,
)
from wellspoken.adapters.events import Alternative, Entry, Reason
from wellspoken.adapters.exchange import Exchange, Notes
from wellspoken.adapters.tokens.table import NULL, token_id

_OF_REASONING = re.compile("(?i)think|reason")
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
    given = entries[: len(entries) - stopped]
    last = max((n for n, entry in enumerate(given) if _is_shown(entry)), default=-1)
    given = given[last + 1 :]  # what the model wrote before a text, and with it, nobody was shown
    kept = [x for x in given if _is_content(x, stopped)]
    if len(kept) < len(entries):
        notes.add("logprobs_outside_content", len(entries) - len(kept))
    for entry in kept:
        if entry.bytes is UNCHOSEN:
            _choose(entry, stopped, notes)
        if entry.bytes != NULL or "\ufffd" in entry.token:
            notes.add("logprobs_bytes_unknown")
        same = [x for x in entry.top_logprobs if _is_same(x, entry)]
        if token_id(entry.token) is None and not CONTROL.fullmatch(entry.token):
            own_part(entry, b"", notes)
        without_bytes(entry)
        for row in same:
            row.token, row.bytes = entry.token, entry.bytes
    return kept


def _choose(entry: Entry, stopped: bool, notes: Notes) -> None:
    """Make an entry the only one of its alternatives that may be content; else it is unknown."""
    found = [n for n, row in enumerate(entry.top_logprobs) if _may_be_content(row, stopped)]
    if len(found) == 1:
        pick(entry, found[0], notes)
    else:
        notes.add("logprobs_sampled_unknown")
        entry.bytes = NULL


def _is_same(row: Alternative, entry: Entry) -> bool:
    return (row.token, row.logprob, row.bytes) == (entry.token, entry.logprob, entry.bytes)


def _is_content(entry: Entry, stopped: bool) -> bool:
    if entry.bytes is not UNCHOSEN:
        return _may_be_content(entry, stopped)
    rows = entry.top_logprobs
    return not rows or any(_may_be_content(row, stopped) for row in rows)


def _may_be_content(row: Entry | Alternative, stopped: bool) -> bool:
    if not _is_text(row):
        return True
    return not stopped and CONTROL.fullmatch(row.token) is not None


def _is_shown(entry: Entry) -> bool:
    """Say whether the entry tells text that a content of no text cannot be of."""
    if entry.bytes is UNCHOSEN:
        return False
    text = entry.token.replace("\ufffd", "")
    if entry.bytes != NULL:
        text = bytes(_ids(entry.bytes)).decode(errors="ignore")
    if CONTROL.fullmatch(text):
        return _OF_REASONING.search(text) is not None
    return text.strip() != "" and token_id(text) is None


def _is_text(row: Entry | Alternative) -> bool:
    """Say whether the token's text is known, and whole characters."""
    if row.bytes == NULL:
        return CONTROL.fullmatch(row.token) is not None
    try:
        return bytes(_ids(row.bytes)).decode() != ""
    except UnicodeDecodeError:
        return False
