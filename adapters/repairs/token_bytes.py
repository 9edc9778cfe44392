"""Repairs of an entry's `token` and `bytes`, and of the order of its alternatives.

Bytes come from the entry's own true bytes, else from the vocabulary, else (in the tiling stage)
from the content; never invented (contract rule 7).
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.tokens.table import NULL, bytes_json, escape, spell, token_id

LOGPROB = attrgetter("logprob")
MISPAIRED = 1e-3  # a greater difference between a token's two values is no rounding
_CONTROL = re.compile(r"<[^<>\s]+>")
_ids = msgspec.json.Decoder(list[int]).decode


def settle(entries: list[Entry], context: Context) -> bool:
    """Make token and bytes of every entry and alternative agree, and sort the alternatives.

    Returns whether every entry's token is plain text (its bytes are the text's UTF-8). Hot: what
    is in order costs a look-up and a comparison.
    """
    table = context.exchange.tokens
    known = table.vocabulary is not None
    plain = True
    ids = False
    for entry in entries:
        expected = table[entry.token]
        if expected is NULL or entry.bytes != expected:
            _own_bytes(entry, context)
            plain = plain and entry.bytes != NULL and entry.bytes is table[entry.token]
        own, same = entry.id, None
        if own is not UNSET:
            entry.id = own if context.ids else UNSET
            ids, same = True, list[Alternative]()
        previous = 0.0
        ordered, alike = True, False
        for row in entry.top_logprobs:
            expected = table[row.token]
            if expected is NULL or row.bytes != expected or known:
                alternative_bytes(row, context)
                if row.bytes is NULL and "\ufffd" in row.token:
                    plain = False  # the tiling stage has to look at it
            if row.id is not UNSET:
                if same is not None and row.id == own:
                    same.append(row)
                ids = True
            if row.logprob > previous:
                ordered = False
            elif row.logprob == previous:
                alike = True
            previous = row.logprob
        if alike or not ordered:
            _arrange(entry, ordered, context)
        if ids:
            _drop_ids(entry.top_logprobs)
        rows = entry.top_logprobs
        if rows and rows[0].logprob == entry.logprob and rows[0].token != entry.token:
            own_value(entry, context, same)
    if ids:
        context.note("logprobs_entry_id")
    return plain


def _drop_ids(rows: list[Alternative]) -> None:
    for row in rows:
        row.id = UNSET


def _arrange(entry: Entry, ordered: bool, context: Context) -> None:
    """Sort the alternatives, and leave out what repeats one in all that is known of it."""
    if not ordered:
        context.note("logprobs_unordered")
        entry.top_logprobs.sort(key=LOGPROB, reverse=True)
    if len(set(map(LOGPROB, entry.top_logprobs))) == len(entry.top_logprobs):
        return  # what repeats one has its number too
    seen: set[tuple[object, ...]] = set()
    kept = []
    for row in entry.top_logprobs:
        told = (row.token, row.logprob, bytes(row.bytes), row.id)
        known = row.bytes != NULL or row.id is not UNSET
        if not known or told not in seen:
            kept.append(row)
        seen.add(told)
    if len(kept) < len(entry.top_logprobs):
        context.note("logprobs_alternative_repeated")
        entry.top_logprobs = kept


def own_value(entry: Entry, context: Context, same: list[Alternative] | None = None) -> None:
    """Give the sampled token its own value where its alternatives say that it was paired wrongly.

    Some servers pair it with the best alternative's (llama.cpp PR #10627's example, cortex), and no
    other number is taken for such: tokens of one text are several (a sentencepiece vocabulary's
    `q` and `<0x71>`). `same` are the alternatives with the entry's id, None where it has none: then
    those of its text are. Counts `logprobs_own_from_alternative`, and `logprobs_own_unknown` where
    a server that does so (`Exchange.pairs_best`) sampled a token that is no alternative. A token
    whose text does not tell it from others stays.
    """
    rows, number = entry.top_logprobs, entry.logprob
    if rows[0].logprob != number or number == UNKNOWN:
        return
    if same is None:
        same = [row for row in rows if row.token == entry.token]
        if entry.bytes == NULL and same:
            return
    own = [row.logprob for row in same]
    if own and min(abs(x - number) for x in own) > MISPAIRED:
        context.note("logprobs_own_from_alternative")
        entry.logprob = own[0]
    elif not own and context.exchange.pairs_best:
        context.note("logprobs_own_unknown")
        entry.logprob = UNKNOWN


def _own_bytes(entry: Entry, context: Context) -> None:
    """Settle an entry; its placeholder among the alternatives then reads as the entry does."""
    was = entry.token
    true_bytes(entry, context)
    if entry.token != was and token_id(was) is not None:
        for row in entry.top_logprobs:
            if row.token == was:
                row.token, row.bytes = entry.token, entry.bytes


def alternative_bytes(row: Alternative, context: Context) -> None:
    """Settle one alternative; a control token has none, where vocabulary or backend says so."""
    vocabulary = context.exchange.tokens.vocabulary
    if vocabulary is not None and vocabulary.is_control_text(row.token):
        row.bytes = NULL
    elif row.bytes != NULL or not _CONTROL.fullmatch(row.token):
        true_bytes(row, context)


def true_bytes(row: Entry | Alternative, context: Context) -> None:
    """Set `token` and `bytes` of one row to what is true, or `bytes` to null where none is known.

    Counts `logprobs_bytes_missing`, `logprobs_bytes_string` (mistral.rs), `logprobs_bytes_signed`,
    `logprobs_token_respelled` (text and bytes disagree: the bytes are right),
    `logprobs_token_id_text`, `logprobs_bytes_from_vocabulary`, `logprobs_bytes_unknown`.
    """
    token, expected = row.token, context.exchange.tokens[row.token]
    given = _bytes_in(row.bytes, context)
    if expected is not NULL:
        _plain(row, given, expected, context)
        return
    placeholder = token_id(token)
    if placeholder is not None and _is_end_of(given, placeholder, context):
        _from_vocabulary(row, placeholder, context)
        return
    if given and given != token.encode("utf-8", "replace"):
        row.bytes = bytes_json(given)
        if placeholder is None:
            _spell(row, spell(given), context)
        elif not _ids_wanted(context):
            context.note("logprobs_token_id_text")
            row.token = spell(given)
        return
    known = placeholder if placeholder is not None else row.id
    _from_vocabulary(row, None if known is UNSET else known, context)


def _plain(row: Entry | Alternative, given: bytes | None, expected: Raw, context: Context) -> None:
    """Settle a row whose text is clean: its UTF-8, unless true bytes say otherwise."""
    text = row.token.encode()
    if not given:
        context.note("logprobs_bytes_missing")
        row.bytes = expected
    elif given == text or token_id(given.decode(errors="replace")) is not None:
        row.bytes = expected
    else:
        row.bytes = bytes_json(given)
        if row.token not in (spell(given), escape(given)):
            _spell(row, spell(given), context)


def _spell(row: Entry | Alternative, spelling: str, context: Context) -> None:
    if row.token != spelling:
        context.note("logprobs_token_respelled")
        row.token = spelling


def _from_vocabulary(row: Entry | Alternative, known: int | None, context: Context) -> None:
    vocabulary = context.exchange.tokens.vocabulary
    found = None
    if vocabulary is not None:
        found = vocabulary.by_id(known) if known is not None else vocabulary.by_text(row.token)
    if found:
        context.note("logprobs_bytes_from_vocabulary")
        control = known is not None and vocabulary is not None and vocabulary.is_control(known)
        row.bytes = NULL if control else bytes_json(found)
        if token_id(row.token) is None or not _ids_wanted(context):
            row.token = spell(found)
        return
    if row.bytes != NULL:
        context.note("logprobs_bytes_unknown")
    row.bytes = NULL


def _is_end_of(given: bytes | None, known: int, context: Context) -> bool:
    """Say whether the bytes are a whole character's, of which the token is the end (vLLM)."""
    vocabulary = context.exchange.tokens.vocabulary
    own = vocabulary.by_id(known) if vocabulary is not None else None
    if not own or given is None or len(own) >= len(given):
        return False
    return given.endswith(own) and "\ufffd" in own.decode(errors="replace")


def _ids_wanted(context: Context) -> bool:
    """Say whether the client asked for `token_id:N` in the place of texts (vLLM)."""
    return "return_tokens_as_token_ids" in context.exchange.switches


def _bytes_in(value: Raw, context: Context) -> bytes | None:
    """Return the bytes a server gave, None where it gave none that can be read."""
    data = bytes(value)
    if not data or data == b"null":
        return None
    try:
        return bytes(_ids(data))
    except (ValueError, msgspec.ValidationError):
        try:
            return _odd(msgspec.json.decode(data), context)
        except (ValueError, msgspec.DecodeError):
            return None


def _odd(value: Any, context: Context) -> bytes | None:
    if isinstance(value, str):
        context.note("logprobs_bytes_string")
        return value.encode("utf-8", "replace")
    numbers = value if isinstance(value, list) else []
    if numbers and all(isinstance(x, int) and -128 <= x <= 255 for x in numbers):
        context.note("logprobs_bytes_signed")  # a C++ char printed as it is
        return bytes(x & 0xFF for x in numbers)
    return None
