"""Repairs of logprobs: every shape seen becomes a list of entries.

The functions here see generic JSON (dicts, lists) that the strict Structs refused. A recognizer
looks at the shape alone; `logprobs` tries them in order. Numbers are repaired by `logprob`
(`numbers.py`), bytes by `settle` afterwards, for this path and the strict one alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.loose_json import raw
from wellspoken.adapters.repairs.numbers import (
    TEXT_KEYS,
    VALUE_KEYS,
    holds_probabilities,
    is_object,
    logprob,
)
from wellspoken.adapters.tokens.table import NULL, digits, token_id

_TOP_KEYS = ("top_logprobs", "top_probs", "probs", "top_tokens", "alternatives")


Repaired = tuple[list[Entry], bool] | None
"""(entries, whether each entry's own token is known)"""


def logprobs(value: Any, text: str, context: Context) -> Repaired:
    """Return the logprobs in `value`, of any shape; None if it holds none.

    `text` is the content that came with them: what a bare float is the logprob of.
    """
    if not context.probabilities and holds_probabilities(value):
        context.probabilities = True
    if context.probabilities:
        context.note("logprobs_probabilities")
    for matches, repair in SHAPES:
        if matches(value):
            return repair(value, text, context)
    if value is not None:
        context.notes.drop("logprobs")
    return None


def logprobs_entries(value: Any, text: str, context: Context) -> Repaired:
    """Return the entries of a chat-shaped object or list: each made whole by `entry`.

    vLLM, llama.cpp, SGLang, LocalAI, mlx-lm, Ollama (no bytes, no alternatives, ids, integers).
    """
    rows = value["content"] if isinstance(value, dict) else value
    if text and not rows:
        context.note("logprobs_empty")
    if context.text:
        context.note("logprobs_chat_shaped")
    if isinstance(rows, dict):
        context.note("logprobs_single_entry")
        rows = [rows]
    elif isinstance(value, list):
        context.note("logprobs_bare_entries")
    if isinstance(value, dict):
        for key in value:
            if key not in ("content", "refusal") and value[key]:
                context.notes.drop(f"logprobs.{key}")
    return [entry(row, context) for row in rows], True


def logprobs_empty(value: Any, text: str, context: Context) -> Repaired:
    """Return no entries for an object or list without any (constructed: contract rule 7).

    It tells that logprobs were given, so that an answer without content has an empty list of them.
    """
    context.note("logprobs_empty")
    return [], True


def logprobs_single_entry(value: Any, text: str, context: Context) -> Repaired:
    """Return the one token object that stands where the list belongs (mistral.rs, streamed)."""
    context.note("logprobs_single_entry")
    return [entry(value, context)], True


def logprobs_bare_floats(value: Any, text: str, context: Context) -> Repaired:
    """Return entries for bare numbers (TGI 1.4: a list in a body, one float in a chunk).

    One number is the logprob of the whole piece; of several the tokens are not known.
    """
    context.note("logprobs_bare_floats")
    numbers = value if isinstance(value, list) else [value]
    token = text if len(numbers) == 1 else ""
    return [Entry(token, logprob(number, context), Raw(), []) for number in numbers], True


def logprobs_legacy_arrays(value: Any, text: str, context: Context) -> Repaired:
    """Return entries for the completions endpoint's arrays, however incomplete.

    vLLM 0.3.3-0.4.2, llama-cpp-python 0.2.58-0.3.2, Together (token_ids), mlx-lm (ids as tokens).
    Arrays that are absent, null or short are filled: unknown numbers, no alternatives. Tokens with
    their numbers that are fewer than the positions (TabbyAPI has each token once) are another
    position's, so numbers are looked up among the alternatives first.
    """
    columns = [value.get(key) for key in ("tokens", "token_logprobs", "top_logprobs", "token_ids")]
    columns[2] = _by_position(columns[2], columns[0] or columns[1])
    size = max(len(column) for column in columns if isinstance(column, list))
    tokens, numbers, tops, ids = (_fill(column, size) for column in columns)
    shifted = all(isinstance(x, list) and len(x) < size for x in columns[:2])
    for key in value:
        if key not in _ARRAYS and value[key] and key not in ("content", "refusal"):
            context.notes.drop(f"logprobs.{key}")
    sampled = any(isinstance(column, list) for column in (columns[0], columns[1], columns[3]))
    if not sampled or not context.text:
        context.note("logprobs_legacy_arrays" if sampled else "logprobs_top_only")
    entries = []
    keyed = is_keyed_by_id(tokens, tops)
    opens = context.text and context.exchange.echo  # nothing precedes an echoed prompt's front
    for token, number, top, known in zip(tokens, numbers, tops, ids, strict=True):
        opens = opens and number is None and isinstance(token, str)
        if opens and not top:
            entries.append(Entry(token, UNKNOWN, context.exchange.tokens[token], []))
            continue
        if keyed and isinstance(top, dict):
            context.note("logprobs_top_by_id")
            top = [{"id": id_of(name), "logprob": value} for name, value in top.items()]
        found = Entry("", UNKNOWN, NULL, _alternatives(top, context))
        if top is None:
            context.note("logprobs_top_missing")
        if shifted and any(row.token == token for row in found.top_logprobs):
            number = None
        if sampled:
            _own(found, token, number, known, context)
        entries.append(found)
    return entries, sampled


_ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "token_ids", "text_offset")


def _by_position(tops: Any, tokens: Any) -> Any:
    """Return the alternatives as a list of each token's, also where one token's stand alone."""
    one = isinstance(tokens, list) and len(tokens) == 1
    if one and isinstance(tops, list) and len(tops) > 1 and all(map(is_object, tops)):
        return [tops]
    return [tops] if one and isinstance(tops, dict) else tops


def _own(found: Entry, token: Any, number: Any, known: Any, context: Context) -> None:
    """Set an entry's own token from its columns; without a name, the alternative of its number."""
    own = _id(known)
    if own is not None:
        found.id = own
    if isinstance(token, dict):
        named = _alternative(token, context)
        number = _number_of(token) if number is None else number
        token, found.id = named.token, named.id
    elif isinstance(token, int):
        token = next((row.token for row in found.top_logprobs if row.id == token), token)
    if token is not None:
        found.token = _text(token, context)
        found.bytes = context.exchange.tokens[found.token]
    elif found.id is not UNSET:
        found.token = f"token_id:{found.id}"
    found.logprob = _own_value(number, found, found.top_logprobs, context)
    if token is None and found.id is UNSET:
        same = (row.token for row in found.top_logprobs if row.logprob == found.logprob)
        found.token = next(same, "")


def _own_value(
    number: Any, own: Entry | Alternative, rows: list[Alternative], context: Context
) -> float:
    """Return a sampled token's logprob; without one, that of the alternative that is the token.

    Old llama.cpp's `completion_probabilities` {content, probs} has none of its own. Counts
    `logprobs_own_from_alternative`. Where several alternatives read alike, none is known to be it.
    """
    if number is None:
        found = {row.logprob for row in rows if _same(row, own)} - {UNKNOWN}
        if len(found) == 1:
            context.note("logprobs_own_from_alternative")
            return found.pop()
    return logprob(number, context)


def _same(row: Alternative, own: Entry | Alternative) -> bool:
    if UNSET not in (row.id, own.id):
        return row.id == own.id
    return bool(own.token) and row.token == own.token


def id_of(name: str) -> int | None:
    """Return the token id that a name spells, bare or as `token_id:N`; None for a text."""
    number = digits(name)
    return token_id(name) if number is None else number


def is_keyed_by_id(tokens: list[Any], tops: list[Any]) -> bool:
    """Say whether the names of the alternatives are token ids, over a whole answer's positions.

    A text may be digits, so every name at every position has to be a number (`token_id:N` passes
    for one), none the token that was sampled there, and some longer than one digit; all of them
    where there is only one position, as in a chunk. One sampled token at least is no number. Where
    the tokens themselves are ids (mlx-lm) the names are, too, if they can be.
    """
    pairs = [(x, top) for x, top in zip(tokens, tops, strict=False) if top]
    if pairs and all(isinstance(x, int) and isinstance(top, dict) for x, top in pairs):
        items = [item for _, top in pairs for item in top.items()]
        return all(id_of(x) is not None and not isinstance(y, dict) for x, y in items)
    if not pairs or any(
        not isinstance(x, str) or not isinstance(top, dict) or x in top for x, top in pairs
    ):
        return False
    names = [name for _, top in pairs for name in top]
    if any(isinstance(value, dict) for _, top in pairs for value in top.values()):
        return False  # {id: {logprob, decoded_token}} says it itself
    if any(id_of(name) is None for name in names) or all(id_of(x) is not None for x, _ in pairs):
        return False
    enough = all if len(pairs) == 1 else any
    return enough(len(name) > 1 for name in names)


def _fill(value: Any, size: int) -> list[Any]:
    given = value if isinstance(value, list) else []
    return given + [None] * (size - len(given))


def entry(row: Any, context: Context) -> Entry:
    """Return one entry from a token object of any server; `bytes` stays empty where it has none."""
    if isinstance(row, int | float) or row is None:
        return Entry("", logprob(row, context), Raw(), [])
    if not isinstance(row, dict):
        pair = alternative(row, context)
        return Entry(pair.token, pair.logprob, pair.bytes, [], pair.id)
    key = next((name for name in _TOP_KEYS if name in row), None)
    tops = row.get(key) if key else None
    if tops is None:
        context.note("logprobs_top_missing")
    own = {k: v for k, v in row.items() if k not in _TOP_KEYS}
    base, rows = _alternative(own, context), _alternatives(tops, context)
    return Entry(
        base.token, _own_value(_number_of(own), base, rows, context), base.bytes, rows, base.id
    )


def _alternatives(tops: Any, context: Context) -> list[Alternative]:
    rows = _alternative_rows(tops, context)
    kept: list[Alternative] = []
    seen = set()
    for row in rows:
        told = (row.token, row.logprob, bytes(row.bytes), row.id)
        tells = row.id is not UNSET or (row.token and "\ufffd" not in row.token)
        if tells and told in seen:
            context.note("logprobs_alternative_repeated")
            continue
        seen.add(told)
        kept.append(row)
    return kept


def _alternative_rows(tops: Any, context: Context) -> list[Alternative]:
    if isinstance(tops, dict):
        if is_object(tops):
            return [alternative(tops, context)]
        if all(isinstance(value, dict) for value in tops.values()):
            named = [("token" if id_of(x) is None else "id", x, row) for x, row in tops.items()]
            return [alternative({key: name, **row}, context) for key, name, row in named]
        table = context.exchange.tokens
        rows = [Alternative(x, logprob(value, context), table[x]) for x, value in tops.items()]
        return sorted(rows, key=lambda row: row.logprob, reverse=True)
    if not isinstance(tops, list):
        return []
    if None in tops:
        context.note("logprobs_top_null_entry")
    return [alternative(item, context) for item in tops if item is not None]


def alternative(row: Any, context: Context) -> Alternative:
    """Return one alternative from an object, a [logprob, id, text] triple or a bare token."""
    if isinstance(row, list):  # SGLang's triples, pairs of (token, logprob)
        number = next((x for x in row if isinstance(x, float)), None)
        name = next((x for x in row if isinstance(x, str)), None)
        known = next((x for x in row if isinstance(x, int) and not isinstance(x, bool)), None)
        row = {"logprob": number, "token": name, "id": known}
    elif not isinstance(row, dict):
        row = {"token": row}
    found = _alternative(row, context)
    found.logprob = logprob(_number_of(row), context)
    return found


def _number_of(row: dict[str, Any]) -> Any:
    """Return what a token object has as its logprob, None if it has none."""
    return next((row[name] for name in VALUE_KEYS if name in row), None)


def _alternative(row: dict[str, Any], context: Context) -> Alternative:
    """Return one alternative from an object, but for its logprob."""
    name = next((row[k] for k in TEXT_KEYS if row.get(k) is not None), None)
    known = _id(row.get("id", row.get("token_id")))
    if name is None and known is not None:
        name = f"token_id:{known}"
    for extra in row:
        if extra not in (*VALUE_KEYS, *TEXT_KEYS, "bytes", "id", "token_id", "rank", "special"):
            context.notes.drop(f"logprobs.{extra}")
    found = Alternative(_text(name, context), UNKNOWN)
    if row.get("bytes") is not None:
        found.bytes = raw(row["bytes"])
    elif "bytes" in row:
        found.bytes = Raw(b"null")
    if known is not None:
        found.id = known
    return found


def _id(value: Any) -> int | None:
    if isinstance(value, str):
        return digits(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any, context: Context) -> str:
    """Return a token's text; an integer is an id (`logprobs_token_integer`, mistral.rs, mlx-lm)."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        context.note("logprobs_token_integer")
        return f"token_id:{value}"
    return ""


def _is_arrays(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and not value.get("content")
        and "logprob" not in value
        and any(
            isinstance(value.get(key), list) and value[key]
            for key in ("tokens", "token_logprobs", "top_logprobs", "token_ids")
        )
    )


def _is_entries(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("content"), list | dict) and "logprob" not in value
    return isinstance(value, list) and bool(value) and any(isinstance(x, dict) for x in value)


def _is_empty(value: Any) -> bool:
    held = value.values() if isinstance(value, dict) else [] if value == [] else [value]
    return all(x in (None, [], {}) for x in held) and value is not None


def _is_single(value: Any) -> bool:
    return isinstance(value, dict) and any(key in value for key in ("logprob", "prob", "log_prob"))


def _is_floats(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(x is None or _number(x) for x in value)
    return _number(value)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SHAPES: tuple[tuple[Callable[[Any], bool], Callable[[Any, str, Context], Repaired]], ...] = (
    (_is_arrays, logprobs_legacy_arrays),
    (_is_entries, logprobs_entries),
    (_is_single, logprobs_single_entry),
    (_is_floats, logprobs_bare_floats),
    (_is_empty, logprobs_empty),
)
