"""The completions endpoint's logprob arrays in a chat answer, with clean values: the fast way.

vLLM 0.3.3-0.4.2 and llama-cpp-python 0.2.58-0.3.2 send {text_offset, token_logprobs, tokens,
top_logprobs} in bodies; that vLLM streams `top_logprobs` alone. Arrays that do not align take the
tolerant repair of the same name.
"""

from __future__ import annotations

from operator import contains

from msgspec import UNSET, Raw

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry, Logprobs
from wellspoken.adapters.readers.wire import WireLogprobs
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import id_of, keyed_by_id
from wellspoken.adapters.repairs.logprobs import logprobs as repaired
from wellspoken.adapters.repairs.token_bytes import LOGPROB, own_value, settle
from wellspoken.adapters.tokens import NULL, TokenTable

ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def logprobs(given: WireLogprobs, text: str, context: Context) -> Logprobs | None:
    """Return the entries of legacy arrays; counts `logprobs_legacy_arrays`, `logprobs_top_only`."""
    tokens, numbers, tops = given.tokens, given.token_logprobs, given.top_logprobs
    table = context.exchange.tokens
    if isinstance(tops, list) and not isinstance(tokens, list) and not isinstance(numbers, list):
        context.note("logprobs_top_only")
        rows = [Entry("", UNKNOWN, NULL, _row(top, table)) for top in tops]
        return Logprobs(rows, False, False) if rows else None
    if not (
        isinstance(tokens, list)
        and isinstance(numbers, list)
        and isinstance(tops, list)
        and len(tokens) == len(numbers) == len(tops)
    ):
        return _tolerant(given, text, context)
    context.note("logprobs_legacy_arrays")
    entries = []
    odd = table.odd
    for token, number, top in zip(tokens, numbers, tops, strict=True):
        found = _row(top, table)
        entries.append(Entry(token, number, table[token], found))
        if found and (found[0].logprob != number or found[0].token != token):
            own_value(entries[-1], context)
    if not all(map(contains, tops, tokens)) and keyed_by_id(tokens, tops):
        for entry in entries:
            by_id(entry, context)
    known = table.vocabulary is not None  # it may know more than the texts tell
    plain = (table.odd == odd and not known) or settle(entries, context)
    return Logprobs(entries, plain) if entries else None


def _row(top: dict[str, float], table: TokenTable) -> list[Alternative]:
    rows = list(map(Alternative, top, top.values(), map(table.__getitem__, top)))
    rows.sort(key=LOGPROB, reverse=True)
    return rows


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


def _tolerant(given: WireLogprobs, text: str, context: Context) -> Logprobs | None:
    columns = ((name, getattr(given, name)) for name in ARRAYS)
    found = repaired({k: v for k, v in columns if v is not UNSET}, text, context)
    if found is None or not found[0]:
        return None
    entries, sampled = found
    return Logprobs(entries, settle(entries, context), sampled)
