"""The completions endpoint's logprob arrays in a chat answer, with clean values: the fast way.

vLLM 0.3.3-0.4.2 and llama-cpp-python 0.2.58-0.3.2 send {text_offset, token_logprobs, tokens,
top_logprobs} in bodies; that vLLM streams `top_logprobs` alone. Arrays that do not align take the
tolerant repair of the same name.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry, Logprobs
from wellspoken.adapters.readers.wire import WireLogprobs
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import logprobs as repaired
from wellspoken.adapters.repairs.token_bytes import LOGPROB, settle
from wellspoken.adapters.tokens import NULL, TokenTable


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
        entries.append(Entry(token, number, table[token], _row(top, table)))
        if token not in top and top and all(name.isdigit() for name in top):
            by_id(entries[-1], context)
    plain = table.odd == odd or settle(entries, context)
    return Logprobs(entries, plain) if entries else None


def _row(top: dict[str, float], table: TokenTable) -> list[Alternative]:
    rows = list(map(Alternative, top, top.values(), map(table.__getitem__, top)))
    rows.sort(key=LOGPROB, reverse=True)
    return rows


def by_id(entry: Entry, context: Context) -> None:
    """Read the alternatives' names as token ids, since the sampled token is not among them."""
    context.note("logprobs_top_by_id")
    for row in entry.top_logprobs:
        row.id = int(row.token)
        row.token, row.bytes = f"token_id:{row.token}", Raw()
        if row.logprob == entry.logprob:
            row.token = entry.token
    settle([entry], context)


def _tolerant(given: WireLogprobs, text: str, context: Context) -> Logprobs | None:
    found = repaired(msgspec.to_builtins(given), text, context)
    if found is None or not found[0]:
        return None
    entries, sampled = found
    return Logprobs(entries, settle(entries, context), sampled)
