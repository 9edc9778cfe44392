"""A whole chat answer in which the rules find nothing to do, written without events.

Nearly every answer is one: a single choice, some text, a reason, counts that add up, perhaps
logprobs whose tokens are the text. What reader, stages and writer make of such a one can be told by
looking at it, and that is done here. Everything is looked at before anything is noted, so what is
not plain is left to them as it came. A property test holds that both ways give the same bytes,
notes and usage.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from itertools import chain
from operator import contains
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, json

from wellspoken.adapters.alignment.candidates import trim_alternatives
from wellspoken.adapters.events import Lp, Reason, Start, Usage
from wellspoken.adapters.exchange import Exchange, Notes
from wellspoken.adapters.nesting import DEEPEST
from wellspoken.adapters.readers import strict
from wellspoken.adapters.readers.framing import is_text
from wellspoken.adapters.readers.legacy import LogprobsRead, entries, read_logprobs
from wellspoken.adapters.readers.near_openai import REFUSED, long_body, repair_usage
from wellspoken.adapters.repairs import envelope
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.finish_reasons import NO_FINGERPRINT
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.adapters.tokens.table import NULL
from wellspoken.adapters.writers.base_writers import AnswerObject, encode
from wellspoken.adapters.writers.chat_body import (
    ChatBody,
    ChatBodyChoice,
    ChatLogprobs,
    ChatMessage,
)
from wellspoken.adapters.writers.objects import usage_object

NONE = strict.NONE
_NOTHING: Final = (NONE, NULL)
_NO_ITEMS: Final = Raw(b"[]")
_ID: Final = re.compile(r"chatcmpl-[A-Za-z0-9_\-]{8,128}")
BLOCK: Final = 64  # positions, whose twenty alternatives take about half a millisecond
_LARGEST: Final = 2048  # bytes of a position's alternatives, or characters of a token, in a step
_PLACE: Final = Raw(b"[\0]")  # of the entries; no JSON holds a NUL
_alternatives = json.Decoder(dict[str, Lp]).decode
_encode_into = json.Encoder().encode_into
_CONSTANT: Final = (100, 100)  # counts that may be the same for every answer


def asks_plainly(exchange: Exchange, dialect: Dialect) -> bool:
    """Say whether a request asks for nothing that keeps its answer from being plain."""
    return (
        dialect == exchange.kind == "chat"
        and exchange.n == 1
        and exchange.max_tokens != 0
        and not exchange.stream
        and not exchange.stored
        and not exchange.stops
        and not exchange.echo
        and not exchange.service_tier
        and exchange.response is None
        and not exchange.schemas
        and exchange.recover <= {"tool_calls"}
        and "return_token_ids" not in exchange.switches
    )


class Plain(Struct, gc=False):
    """What is looked at of a body: the only choice, its message's text, its reason, the counts."""

    body: strict.WireBody
    choice: strict.WireMessageChoice
    part: strict.WirePart
    text: str
    reason: Reason
    counts: strict.WireUsage


def translate(data: bytes, body: strict.WireBody, exchange: Exchange) -> bytes | None:
    """Return the client's body for a plain answer, `data` itself where nothing had to be noted.

    None for any other: nothing was noted then, and logprobs that were read stand where they were.
    """
    plain = _look(body)
    if plain is None or not _is_plain(plain, exchange):
        return None
    scored = None
    if exchange.logprobs:
        scored = _read_logprobs(data, plain, exchange)
        if scored is None:
            return None
    notes = exchange.notes
    before = notes.changes
    start, usage = _read_top(plain, exchange)
    _note_choice(plain, notes, scored)
    exchange.result.reasons[0] = plain.reason
    logprobs = None
    if scored is not None and scored.lp is not None:
        trim_alternatives(scored.lp.entries, exchange.k, notes, beside=False)
        logprobs = ChatLogprobs(scored.lp.entries, None)
    if notes.changes == before:
        return data
    return _write(start, plain, usage, logprobs)


def translate_in_blocks(data: bytes, exchange: Exchange) -> Generator[None, None, bytes | None]:
    """Do what `translate` does with a long answer whose logprobs are arrays, in small steps.

    Yields between them, so that something else may be done. Returns None for any other answer:
    nothing was noted then.
    """
    yield
    plain = _read_long(data, exchange)
    if plain is None:
        return None
    given: strict.WireColumns = plain.choice.logprobs  # type: ignore[assignment]
    context = Context(exchange)
    context.notes = notes = Notes()
    notes.add("logprobs_legacy_arrays")
    written, buffer = list[bytes](), bytearray()
    named = False
    for at in range(0, len(given.tokens), BLOCK):
        yield
        block = slice(at, at + BLOCK)
        tokens = given.tokens[block]
        try:
            tops = list(map(_alternatives, given.top_logprobs[block]))
        except REFUSED:
            return None
        named = named or any(map(contains, tops, tokens))
        lp = entries(tokens, given.token_logprobs[block], [*tops], context)
        if not lp.plain:
            return None
        trim_alternatives(lp.entries, exchange.k, notes, beside=False)
        _encode_into(lp.entries, buffer)
        written += (b",", bytes(memoryview(buffer)[1:-1]))
    if not named or "logprobs_top_by_id" in notes.counts:  # names that may be ids: told by all
        return None
    yield
    start, usage = _note(plain, exchange, notes)
    whole = _write(start, plain, usage, ChatLogprobs(_PLACE, None))  # type: ignore[arg-type]
    front, _, behind = whole.partition(b"\0")
    joined = b"".join((front, *written[1:], behind))
    yield  # what is done with so much takes a while, too
    return joined


def _read_long(data: bytes, exchange: Exchange) -> Plain | None:
    """Return the parts of a long answer, plain but for its alternatives, which are not read."""
    body = long_body(data) if exchange.logprobs else None
    plain = None if body is None else _look(body)
    if plain is None or not _is_plain(plain, exchange):
        return None
    given: strict.WireColumns = plain.choice.logprobs  # type: ignore[assignment]
    size = len(given.tokens)
    if len(given.token_logprobs) != size or len(given.top_logprobs) != size:
        return None
    if not size or max(map(len, chain(given.tokens, given.top_logprobs))) > _LARGEST:
        return None  # whose steps would take long: it is for a thread
    return plain if "".join(given.tokens) == plain.text else None


def _note(plain: Plain, exchange: Exchange, notes: Notes) -> tuple[Start, Usage]:
    """Note what an answer in blocks needed, as one that is not; return envelope and counts."""
    trimmed = notes.counts.pop("logprobs_trimmed", 0)
    start, usage = _read_top(plain, exchange)
    _note_choice(plain, exchange.notes, LogprobsRead(None, notes))
    exchange.result.reasons[0] = plain.reason
    if trimmed:  # once for a text
        exchange.notes.add("logprobs_trimmed")
    return start, usage


def _look(body: strict.WireBody) -> Plain | None:
    """Return the parts of a body that has one choice with some text, a reason, and counts."""
    if len(body.choices) != 1 or type(body.usage) is not strict.WireUsage:
        return None
    choice = body.choices[0]
    part, reason = choice.message, choice.finish_reason
    if type(part) is not strict.WirePart or type(part.content) is not str or not part.content:
        return None
    if reason != "stop" and reason != "length" and reason != "content_filter":
        return None
    return Plain(body, choice, part, part.content, reason, body.usage)


def _is_plain(plain: Plain, exchange: Exchange) -> bool:
    """Say whether all else but the logprobs is as it should be, or is only to be left out."""
    body, choice, part, usage = plain.body, plain.choice, plain.part, plain.counts
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return (
        choice.index == 0
        and part.role == "assistant"
        and not (part.refusal or part.tool_calls or part.function_call)
        and not (part.reasoning or part.reasoning_content)
        and (part.annotations in _NOTHING or part.annotations == _NO_ITEMS)
        and part.audio in _NOTHING
        and (choice.logprobs is None or choice.logprobs is UNSET or exchange.logprobs)
        and (choice.stop_reason in _NOTHING or _is_lost("stop_reason", choice, exchange))
        and (choice.matched_stop in _NOTHING or _is_lost("matched_stop", choice, exchange))
        and choice.token_ids in _NOTHING
        and choice.routed_experts in _NOTHING
        and body.system_fingerprint != NO_FINGERPRINT
        and _tell_nothing(_beside(body))
        and (body.timings in _NOTHING or _is_lost("timings", body, exchange))
        and prompt > 0 < completion
        and prompt + completion == usage.total_tokens
        and (prompt, completion) != _CONSTANT
        and (usage.prompt_tokens_details in _NOTHING or _is_small(usage.prompt_tokens_details))
        and (
            usage.completion_tokens_details in _NOTHING
            or _is_small(usage.completion_tokens_details)
        )
    )


def _beside(body: strict.WireBody) -> tuple[Raw, ...]:
    """Return what a server may have beside its choices, in the reader's order."""
    return (
        body.prompt_logprobs,
        body.prompt_token_ids,
        body.prompt_text,
        body.kv_transfer_params,
        body.ec_transfer_params,
        body.metrics,
    )


def _tell_nothing(values: tuple[Raw, ...]) -> bool:
    return values.count(NONE) + values.count(NULL) == len(values)


def _is_lost(key: str, holder: Any, exchange: Exchange) -> bool:
    """Say whether a key outside the contract is one that the client does not get."""
    return not exchange.keeps(key) and _is_small(getattr(holder, key))


def _is_small(value: Raw) -> bool:
    """Say whether JSON that nobody has looked into is text, and cannot nest too deeply."""
    data = bytes(value)
    return len(data) <= DEEPEST and data.isascii()


def _read_logprobs(data: bytes, plain: Plain, exchange: Exchange) -> LogprobsRead | None:
    """Return the logprobs where their tokens are the text, and what was noted of them."""
    given = plain.choice.logprobs
    if type(given) is not strict.WireLogprobs or given.refusal not in (UNSET, None):
        return None
    if given.content is not UNSET:
        if not is_text(data):  # the entries' `bytes` were only passed over
            return None
    elif type(given.tokens) is not list or "".join(given.tokens) != plain.text:
        return None
    context = Context(exchange)
    context.notes = Notes()
    scored = LogprobsRead(read_logprobs(given, plain.text, context), context.notes)
    plain.choice.logprobs = scored  # type: ignore[assignment]
    lp = scored.lp
    if lp is None or not lp.plain or not lp.sampled:
        return None
    # Of arrays that did not align there may be more entries than tokens.
    return scored if "".join([x.token for x in lp.entries]) == plain.text else None


def _read_top(plain: Plain, exchange: Exchange) -> tuple[Start, Usage]:
    """Return the envelope and the counts, which are the exchange's from now on."""
    body, counts, notes, result = plain.body, plain.counts, exchange.notes, exchange.result
    fingerprint, tier = body.system_fingerprint, body.service_tier
    facts = (body.id, body.created, body.model, fingerprint or None)
    wanted = exchange.model or body.model
    if body.model == wanted and body.created in envelope.EPOCH and _ID.fullmatch(body.id):
        start = Start(*facts)
    else:
        start = envelope.start(*facts, Context(exchange))
    if fingerprint is None or fingerprint == "":
        notes.add("system_fingerprint_null")
    if tier is not UNSET:
        notes.add("null_key_omitted" if tier is None else "service_tier_unasked")
    usage = Usage(counts.prompt_tokens, counts.completion_tokens)
    if counts.prompt_tokens_details is not NONE or counts.completion_tokens_details is not NONE:
        usage = repair_usage(counts, Context(exchange))
    _note_nulls(_beside(body), notes)
    if body.timings is not NONE:
        _note_key("timings", body.timings, notes)
    result.id, result.usage, result.usage_source = start.id, usage, "backend"
    return start, usage


def _note_choice(plain: Plain, notes: Notes, scored: LogprobsRead | None) -> None:
    """Note what of the choice the client does not get, in the reader's order."""
    choice, part = plain.choice, plain.part
    if choice.stop_reason is not NONE:
        _note_key("stop_reason", choice.stop_reason, notes)
    if choice.matched_stop is not NONE:
        _note_key("matched_stop", choice.matched_stop, notes)
    _note_nulls((choice.token_ids, choice.routed_experts), notes)
    if scored is not None:
        notes.take(scored.notes)
    elif choice.logprobs is UNSET:
        notes.add("logprobs_key_missing")
    if part.tool_calls is None or part.function_call is None:
        notes.add("null_key_omitted")
    if part.tool_calls == []:
        notes.add("tool_calls_empty")
    if part.reasoning is None or part.reasoning_content is None:
        notes.add("null_key_omitted")
    if part.reasoning == "":
        notes.add("reasoning_renamed")
    if part.reasoning == "" or part.reasoning_content == "":
        notes.add("reasoning_empty")
    _note_nulls((part.annotations, part.audio), notes)
    if part.refusal == "":
        notes.add("refusal_empty")
    elif part.refusal is UNSET:
        notes.add("refusal_missing")


def _note_nulls(values: tuple[Raw, ...], notes: Notes) -> None:
    nulls = values.count(NULL)
    if nulls:
        notes.add("null_key_omitted", nulls)


def _note_key(key: str, value: Raw, notes: Notes) -> None:
    """Note a vendor key that is null, or that the client does not get."""
    if value == NULL:
        notes.add("null_key_omitted")
        return
    if key != "timings":
        notes.add("stop_reason_folded")
    notes.drop(key)


def _write(start: Start, plain: Plain, usage: Usage, logprobs: ChatLogprobs | None) -> bytes:
    message = ChatMessage("assistant", plain.text)
    choice = ChatBodyChoice(0, message, logprobs, plain.reason)
    return encode(
        AnswerObject(
            start.id,
            ChatBody.object,
            start.created,
            start.model,
            [choice],
            usage_object(usage),
            UNSET,
            start.system_fingerprint or UNSET,
        )
    )
