"""Repairs of llama.cpp's own answers (POST /completion), and of the hybrid of pull request #10627.

What is the dialect's normal form (its counts, its stop types) is read without being counted.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from wellspoken.adapters.events import Alternative, Entry, Reason, Usage
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.finish_reasons import Failure, finish_reason_elsewhere
from wellspoken.adapters.repairs.token_bytes import MISPAIRED
from wellspoken.adapters.sums import of_choices
from wellspoken.adapters.tokens.table import bytes_json, spell

STOP_TYPES: dict[Any, Reason] = {"eos": "stop", "word": "stop", "limit": "length"}
"""`stop_type` since 2024-12; "none" says nothing."""

_BYTE = re.compile(r"byte: \\x([0-9a-fA-F]{1,2})")
_ids = msgspec.json.Decoder(list[int]).decode


def finish(
    stop_type: Any, flags: dict[str, Any], truncated: Any, context: Context
) -> Reason | Failure | None:
    """Return the reason that the last event or a body tells, None where it tells none.

    `flags` are the booleans stopped_eos, stopped_word and stopped_limit of b4273 and before. The
    context is full where `truncated` is true (`native_truncated`): "length", unless another reason
    is told. A `stop_type` that llama.cpp does not have is counted as any server's is.
    """
    if truncated is True:
        context.note("native_truncated")
    if isinstance(stop_type, str) and stop_type in STOP_TYPES:
        return STOP_TYPES[stop_type]
    for name, said in flags.items():
        if said is True:
            return STOP_TYPES[name.removeprefix("stopped_")]
    found = finish_reason_elsewhere({"stop_type": stop_type}, context)
    return "length" if found is None and truncated is True else found


def usage(counts: dict[int, tuple[int | None, int | None]], context: Context) -> Usage | None:
    """Return the counts of all choices together, None if none is told.

    `counts` is choice -> (tokens_evaluated, tokens_predicted). A prompt with several choices counts
    once, as OpenAI counts it; the counts of several prompts are added up.
    """
    exchange = context.exchange
    each = max(exchange.n // max(len(exchange.prompts), 1), 1)  # choices of one prompt
    return of_choices({choice: Usage(*told) for choice, told in counts.items()}, each)


def byte_texts(entries: list[Entry], context: Context) -> None:
    r"""Read `byte: \xe2`, which stands for one byte of a character, as that byte.

    llama.cpp up to b4273 prints a token of one byte that is no ASCII so, in `content` and
    `tok_str`. Counts `logprobs_byte_spelled`.
    """
    for entry in entries:
        rows: list[Entry | Alternative] = [entry, *entry.top_logprobs]
        for row in rows:
            found = _BYTE.fullmatch(row.token)
            if found is not None and _bytes(row.bytes) is None:
                context.note("logprobs_byte_spelled")
                _set(row, bytes([int(found[1], 16)]))


class Held(Struct, eq=False):
    """One choice's tokens whose text the server holds back, since it may begin a stop string.

    llama.cpp writes as an entry's token and bytes what it sends at that moment: nothing while it
    holds back, later all that it held. The entry's id tells the token: the alternative of the same
    id has its own text. `waiting`: tokens of which no text was sent yet, with their own bytes, None
    where nothing tells them. `owed`: bytes of the last token given out that were not sent yet.
    """

    owed: bytes = b""
    waiting: list[tuple[Entry, bytes | None]] = []

    def take(self, entries: list[Entry], context: Context) -> list[Entry]:
        """Return the entries whose text was sent, each with its own token's text and bytes.

        Counts `logprobs_token_text_held`. An entry of bytes that several tokens made, since they
        are one character, keeps them all.
        """
        ready: list[Entry] = []
        for entry in entries:
            told, own = _bytes(entry.bytes), _own(entry, context)
            if entry.id is UNSET or told is None:
                ready += [*self.rest(context), entry]
            elif told == own and not (self.owed or self.waiting):
                ready.append(entry)
            else:
                self.waiting.append((entry, own))
                if told:
                    self._give_text(told, ready, context)
        return ready

    def rest(self, context: Context) -> list[Entry]:
        """Return the tokens whose text was never sent: a stop string's, one that ends the text."""
        waiting, self.waiting, self.owed = self.waiting, [], b""
        return [_assign(entry, own, context) for entry, own in waiting]

    def unsent(self) -> str:
        """Return the text that is still held back, as far as it is known."""
        data = self.owed
        for _, own in self.waiting:
            if own is None:
                break
            data += own
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            return data[: error.start].decode()

    def _give_text(self, told: bytes, ready: list[Entry], context: Context) -> None:
        """Give the text that was sent now to the tokens that it belongs to."""
        if told.startswith(self.owed):
            told, self.owed = told[len(self.owed) :], b""
        elif self.owed.startswith(told):
            self.owed = self.owed[len(told) :]
            return
        else:
            self.owed = b""  # which token that was is no longer known
        while self.waiting:
            entry, own = self.waiting[0]
            last = len(self.waiting) == 1
            if own != b"" and not told:
                return
            size = self._size(told, own, last)
            self.waiting.pop(0)
            if size is None:
                ready.append(_assign(entry, own, context))
                continue
            if own is not None and size > len(told):
                self.owed = own[len(told) :]
                data = own
            else:
                data = told[:size]
            ready.append(_assign(entry, data, context))
            told = told[size:]

    def _size(self, told: bytes, own: bytes | None, last: bool) -> int | None:
        """Return how many bytes of `told` are the first waiting token's, more if it has more.

        None if it does not begin there, so that nothing is known of `told`.
        """
        if own is not None and (not told or own.startswith(told)):
            return len(own)
        if last:
            return len(told)
        if own is not None:
            place = _before(told, own)
            return None if place is None else place + len(own)
        following = self.waiting[1][1]
        if following is None:
            return 0  # of several that nothing tells, the last has it all
        place = told.find(following)
        if len(self.waiting) == 2 and told.endswith(following):
            place = len(told) - len(following)
        return len(told[: max(place, 0)].decode("utf-8", "ignore").encode())


def _before(told: bytes, own: bytes) -> int | None:
    """Return where in `told` a token begins: at its start, or behind parts of a character.

    Those are of tokens that have no entries. None if it does not begin there.
    """
    for place in range(4):
        if told[place:].startswith(own) and not told[:place].decode("utf-8", "ignore"):
            return place
    return None


def _assign(entry: Entry, data: bytes | None, context: Context) -> Entry:
    if data is not None and data != _bytes(entry.bytes):
        context.note("logprobs_token_text_held")
        _set(entry, data)
    return entry


def _own(entry: Entry, context: Context) -> bytes | None:
    """Return the bytes of an entry's token by its id; None where nothing tells them."""
    for row in entry.top_logprobs:
        if row.id == entry.id and row.id is not UNSET:
            return _bytes(row.bytes)
    vocabulary = context.exchange.tokens.vocabulary
    if vocabulary is None or entry.id is UNSET:
        return None
    return vocabulary.by_id(entry.id)


def _bytes(given: Raw) -> bytes | None:
    try:
        return bytes(_ids(given))
    except (ValueError, msgspec.MsgspecError):
        return None


def _set(row: Entry | Alternative, data: bytes) -> None:
    row.token, row.bytes = spell(data), bytes_json(data)


def hybrid_logprobs(given: Any, context: Context) -> Any:
    """Return a hybrid's logprobs with each sampled token's value its own, or none.

    Pull request #10627 gives the best alternative's. A token among its alternatives, by its id
    where there are ids, gets the value it has there; one that is not has an unknown one. Any other
    value is the token's own. `given` are the completions endpoint's arrays or chat logprobs;
    counted by what reads them (`logprobs_own_from_alternative`, `logprobs_unknown`).
    """
    if not isinstance(given, dict):
        return given
    rows = given.get("content")
    if isinstance(rows, list):
        return {**given, "content": [_hybrid_entry(row) for row in rows]}
    tokens, numbers, tops = (given.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(numbers, list) and isinstance(tops, list)):
        return given
    if not len(tokens) == len(numbers) == len(tops):
        return given
    own = [
        number if _is_own(number, token, _values(top)) else None
        for token, number, top in zip(tokens, numbers, tops, strict=True)
    ]
    return {**given, "token_logprobs": own}


def _hybrid_entry(row: Any) -> Any:
    if not isinstance(row, dict) or not isinstance(row.get("top_logprobs"), list):
        return row
    values = _values(row["top_logprobs"])
    if _is_own(row.get("logprob"), row.get("id", row.get("token")), values):
        return row
    return {key: value for key, value in row.items() if key != "logprob"}


def _values(top: Any) -> list[tuple[Any, float]]:
    """Return the (id or token, value) pairs of {token: value} or of a list of token objects."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(top, dict):
        pairs = list(top.items())
    elif isinstance(top, list):
        found = [row for row in top if isinstance(row, dict)]
        pairs = [(row.get("id", row.get("token")), row.get("logprob")) for row in found]
    return [(x, y) for x, y in pairs if isinstance(y, int | float) and not isinstance(y, bool)]


def _is_own(number: Any, token: Any, values: list[tuple[Any, float]]) -> bool:
    """Say whether a value is the sampled token's: it is not the best of other tokens alone."""
    if not values or number != max(value for _, value in values):
        return True
    return any(name == token and abs(value - number) <= MISPAIRED for name, value in values)
