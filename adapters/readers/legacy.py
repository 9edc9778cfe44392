"""Strict logprobs as entries: chat's own, and the completions endpoint's arrays in their place.

vLLM 0.3.3-0.4.2 and llama-cpp-python 0.2.58-0.3.2 send {text_offset, token_logprobs, tokens,
top_logprobs} in bodies; that vLLM streams `top_logprobs` alone. Arrays that do not align take the
tolerant repair of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import contains
from typing import Any, NamedTuple

from msgspec import UNSET, Raw

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry, Logprobs
from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.readers.strict import WireArrays, WireLogprobs
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import id_of, is_keyed_by_id
from wellspoken.adapters.repairs.logprobs import logprobs as repaired
from wellspoken.adapters.repairs.token_bytes import LOGPROB, own_value, settle
from wellspoken.adapters.tokens.table import NULL, bytes_json, raw_escapes, spell

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class LogprobsRead(NamedTuple):
    """A choice's logprobs that were read before, and what was noted of them."""

    lp: Logprobs | None
    notes: Notes


def read_logprobs(given: Any, text: str, context: Context) -> Logprobs | None:
    """Return the entries of strict logprobs, settled; None where the client asked for none."""
    if given is None:
        return None
    notes = context.notes
    if type(given) is LogprobsRead:
        notes.take(given.notes)
        return given.lp
    if given is UNSET:
        notes.add("logprobs_key_missing")
        return None
    if not (context.exchange.logprobs or context.ids):
        notes.add("logprobs_unasked")
        return None
    if given.refusal is UNSET and given.content is not UNSET:
        notes.add("logprobs_refusal_missing")
    if isinstance(given.content, list):
        if given.tokens is not UNSET or given.top_logprobs is not UNSET:
            notes.add("logprobs_both_shapes")
        if text and not given.content:
            notes.add("logprobs_empty")
        return Logprobs(given.content, settle(given.content, context), True)
    if given.content is None and isinstance(given.refusal, list):
        return None
    return logprobs(given, text, context)


def logprobs(given: WireLogprobs, text: str, context: Context) -> Logprobs | None:
    """Return the entries of legacy arrays; counts `logprobs_legacy_arrays`, `logprobs_top_only`."""
    tokens, numbers, tops = given.tokens, given.token_logprobs, given.top_logprobs
    if tokens is UNSET and numbers is UNSET and tops is not UNSET:
        context.notes.add("logprobs_top_only")
        found, bytes_of = [], context.exchange.tokens.__getitem__
        for top in tops:
            rows = list(map(Alternative, top, top.values(), map(bytes_of, top)))
            rows.sort(key=LOGPROB, reverse=True)
            found.append(Entry("", UNKNOWN, NULL, rows))
        return Logprobs(found, False, False)
    if not (
        isinstance(tokens, list)
        and isinstance(numbers, list)
        and isinstance(tops, list)
        and len(tokens) == len(numbers) == len(tops)
    ):
        return repair_unaligned(given, text, context)
    context.note("logprobs_legacy_arrays")
    return entries(tokens, numbers, [*tops], context)


def entries(
    tokens: list[str],
    numbers: Sequence[float | None],
    tops: list[dict[str, float] | None],
    context: Context,
    unscored: int = 0,
) -> Logprobs:
    """Return the entries of aligned arrays; the first `unscored` tokens need no logprob."""
    table = context.exchange.tokens
    odd, bytes_of = table.odd, table.__getitem__
    scored = [*_fill(tokens, numbers, tops, context, unscored)] if None in numbers else numbers
    found = []
    for token, number, top in zip(tokens, scored, tops, strict=True):
        rows: list[Alternative] = []
        if top:
            rows = list(map(Alternative, top, top.values(), map(bytes_of, top)))
            rows.sort(key=LOGPROB, reverse=True)
        found.append(Entry(token, number, bytes_of(token), rows))  # type: ignore[arg-type]
        if rows and rows[0].logprob == number and rows[0].token != token:
            own_value(found[-1], context)
    if not all(map(contains, *_with_alternatives(tokens, tops))) and is_keyed_by_id(tokens, tops):
        for entry in found:
            by_id(entry, context)
    undone = context.text and undo_bytes(found)
    known = table.vocabulary is not None  # it may know more than the texts tell
    plain = (table.odd == odd and not known and not undone) or settle(found, context)
    return Logprobs(found, plain)


def _fill(
    tokens: list[str],
    numbers: Sequence[float | None],
    tops: list[dict[str, float] | None],
    context: Context,
    unscored: int,
) -> Iterator[float]:
    """Yield the numbers; in the place of one that lacks that of the alternative that is the token.

    The first `unscored` need none.
    """
    for place, (token, number, top) in enumerate(zip(tokens, numbers, tops, strict=True)):
        if number is None:
            number = top.get(token, UNKNOWN) if top else UNKNOWN
            if number != UNKNOWN:
                context.note("logprobs_own_from_alternative")
            elif place >= unscored:
                context.note("logprobs_unknown")
        yield number


def undo_bytes(entries: list[Entry]) -> bool:
    r"""Read the completions endpoint's own spelling of parts of characters, `bytes:\xe2\x80`.

    Returns whether there was any.
    """
    rows: list[Entry | Alternative] = [*entries]
    for entry in entries:
        rows += entry.top_logprobs
    found = [row for row in rows if row.token.startswith("bytes:")]
    for row in found:
        data = raw_escapes(row.token)
        if data is not None and "\ufffd" in data.decode(errors="replace"):
            row.bytes = bytes_json(data)
            row.token = spell(data)
    return bool(found)


def _with_alternatives(
    tokens: list[str], tops: list[dict[str, float] | None]
) -> tuple[list[dict[str, float]], list[str]]:
    """Return the alternatives and tokens of the positions that have some."""
    if None not in tops:
        return tops, tokens  # type: ignore[return-value]
    pairs = [(top, token) for token, top in zip(tokens, tops, strict=True) if top]
    return [top for top, _ in pairs], [token for _, token in pairs]


def by_id(entry: Entry, context: Context) -> None:
    """Read the alternatives' names as token ids; the one with the sampled token's value is it."""
    if not entry.top_logprobs:
        return
    context.note("logprobs_top_by_id")
    for row in entry.top_logprobs:
        row.id = id_of(row.token) or 0
        row.token, row.bytes = f"token_id:{row.id}", Raw()
    same = [row for row in entry.top_logprobs if row.logprob == entry.logprob]
    if len(same) == 1 and entry.logprob != UNKNOWN:
        same[0].token = entry.token
    settle([entry], context)


def repair_unaligned(
    given: WireLogprobs | WireArrays, text: str, context: Context
) -> Logprobs | None:
    """Return the entries of arrays that are missing or of different lengths."""
    columns = ((name, getattr(given, name)) for name in ARRAYS)
    found = repaired({k: v for k, v in columns if v is not UNSET}, text, context)
    if found is None:
        return None
    rows, sampled = found
    if context.text:
        undo_bytes(rows)
    return Logprobs(rows, settle(rows, context), sampled)
