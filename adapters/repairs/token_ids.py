"""Token ids of an answer, as vLLM tells them where a request says `return_token_ids`.

Its shape (vLLM 0.10.2, pull request #22587) is the one that every client gets: `token_ids` on each
choice, in a stream those of each chunk; `prompt_token_ids` on a chat's answer, in a stream on its
first chunk, and on each choice of a completions answer. They are all tokens that were generated,
reasoning, markup, a stop string's and the end's too. A list that may lack one is none.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from msgspec import UNSET, DecodeError, Raw, json

from wellspoken.adapters.events import (
    Entry,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.loose_json import raw

OWN = "token_ids"
PROMPT = "prompt_token_ids"
VERBOSE = "__verbose"
_NAMES = ("response_token_ids", "completion_token_ids", "output_ids", "gen_tokens")
_OF_CHOICE = (Open, Text, Reasoning, Refusal, ToolDelta, Finish)
_ids = json.Decoder(list[int]).decode


def token_ids_renamed(
    choice: dict[str, Any], part: dict[str, Any], context: Context
) -> dict[str, Raw]:
    """Return the ids in a choice by vLLM's names, taken out of it and its message or delta.

    A chat's prompt's belong on the answer; SGLang has them on each choice. The other names are
    `response_token_ids` (SGLang 0.5.23's chat, before that from 0.5.17 vLLM's; its pull request
    #30917), `completion_token_ids` (FastDeploy, in the message or delta, its pull request #2926),
    `output_ids` (LMDeploy since its pull request #4593) and `gen_tokens` (before, since #3976).
    None where the request did not ask for them.
    """
    found: dict[str, Raw] = {}
    if not context.exchange.tells_ids:
        return found
    for holder in (choice, part):
        for name in (OWN, PROMPT, *_NAMES):
            if not is_ids(holder.get(name)):
                continue
            key = PROMPT if name == PROMPT else OWN
            if name != key or holder is part or (key == PROMPT and not context.text):
                context.note("token_ids_renamed")
            ids = raw(holder.pop(name))
            found.setdefault(key, ids)
    return found


def token_ids_verbose(payload: dict[str, Any], context: Context) -> list[int] | None:
    """Return what llama.cpp tells of its own answer beside OpenAI's, asked by `verbose`.

    `__verbose` is what /completion would have answered, its `tokens` all that were generated; they
    are taken, and it goes unless the client keeps it. Of several choices it tells the first alone.
    """
    told = payload.get(VERBOSE)
    if not context.exchange.tells_ids or not isinstance(told, dict):
        return None
    choices, ids = payload.get("choices"), told.get("tokens")
    if not isinstance(choices, list) or len(choices) != 1 or not is_ids(ids):
        return None
    if not context.exchange.keeps(VERBOSE):
        del payload[VERBOSE]
    context.note("token_ids_verbose")
    return ids


def is_ids(given: Any) -> TypeGuard[list[int]]:
    """Say whether a value is a list of token ids; an empty one is."""
    return isinstance(given, list) and set(map(type, given)) <= {int}


def holds_ids(value: Raw) -> bool:
    """Say the same of a value that was not decoded."""
    try:
        _ids(value)
    except DecodeError:
        return False
    return True


def settle_token_ids(events: list[Event], context: Context) -> list[Event]:
    """Return the events of a whole answer with each choice's ids: told, of its entries, or none.

    Ids end with the token that makes a stop string whole, if the text goes on behind it. Entries
    that the client did not ask for go. Counts `token_ids_missing` for a choice without.
    """
    exchange = context.exchange
    if any(type(event) is Fault for event in events):
        return events
    told = {x.choice: x for x in events if type(x) is Extra and x.key == OWN}
    choices = list(dict.fromkeys(x.choice for x in events if isinstance(x, _OF_CHOICE)))
    counts = [x.completion for x in events if type(x) is Usage]
    size = counts[-1] if len(choices) == 1 and counts else None
    found: dict[int | None, Extra] = {}
    for choice in choices:
        texts = [x for x in events if type(x) is Text and x.choice == choice]
        content = "".join(x.text for x in texts)
        entries = [entry for x in texts if x.lp is not None for entry in x.lp.entries]
        extra = told.get(choice)
        ids = _of_entries(entries, content, size, context) if extra is None else _decode(extra)
        made = len(ids or ())
        if ids is not None and not (exchange.echo and not exchange.echoed):
            ids = _until_stop(ids, entries, content, exchange.stops)
        if ids is None:
            context.note("token_ids_missing")
        elif extra is not None and len(ids) == made:
            found[choice] = extra  # its bytes stay
        else:
            found[choice] = Extra("choice", choice, OWN, raw(ids))
    return _with_ids(events, found, context)


def _with_ids(events: list[Event], found: dict[int | None, Extra], context: Context) -> list[Event]:
    """Return the events with these ids where they had them, else before a choice's first event."""
    out: list[Event] = []
    for event in events:
        own = type(event) is Extra and event.key == OWN
        if own or isinstance(event, _OF_CHOICE):
            extra = found.pop(getattr(event, "choice", None), None)
            if extra is not None:
                out.append(extra)
        if own:
            continue
        if isinstance(event, Text | Refusal) and event.lp is not None:
            for entry in event.lp.entries:
                entry.id = UNSET
            if not context.exchange.logprobs:
                event.lp = None
        out.append(event)
    return out


def _decode(extra: Extra) -> list[int] | None:
    try:
        return _ids(extra.value)
    except DecodeError:
        return None


def _of_entries(
    entries: list[Entry], content: str, size: int | None, context: Context
) -> list[int] | None:
    """Return the ids of a choice's entries; None unless they are those of all its tokens.

    They are as many as the backend counts: llama.cpp has one entry for the tokens of a character.
    Where there are alternatives, the entries' texts hold the content too, since mlx-lm then gives
    the best tokens instead of the sampled ones. Counts `token_ids_from_entries`.
    """
    ids = [entry.id for entry in entries if entry.id is not UNSET]
    if not ids or len(ids) != len(entries) or len(ids) != size:
        return None
    if any(entry.top_logprobs for entry in entries):
        if not content or content.encode() not in b"".join(map(_bytes, entries)):
            return None
    context.note("token_ids_from_entries")
    return ids


def _until_stop(
    ids: list[int], entries: list[Entry], content: str, stops: tuple[str, ...]
) -> list[int] | None:
    """Return the ids up to the token that makes the first stop string of the content whole.

    Where that is not known for sure, all of them if the content ends there, else None.
    """
    ends = [at + len(stop) for stop in stops if (at := content.find(stop)) >= 0]
    if not ends:
        return ids
    end = min(ends)
    cut = _cut(ids, entries, content, len(content[:end].encode()))
    return ids if cut is None and end == len(content) else cut


def _cut(ids: list[int], entries: list[Entry], content: str, size: int) -> list[int] | None:
    """Return the ids of the tokens that begin in the content's first `size` bytes, or before it.

    The entries tell where that is. They may be fewer than the tokens: those that begin a character
    have none, and come before the entry of the one that ends it.
    """
    texts = list(map(_bytes, entries))
    joined, data = b"".join(texts), content.encode()
    if any(entry.id is UNSET for entry in entries) or joined.count(data) != 1:
        return None
    left = joined.index(data) + size
    place = 0
    while left > len(texts[place]):
        left -= len(texts[place])
        place += 1
    first = _match(ids, [entry.id for entry in entries[: place + 1]])
    rest = _match(ids[::-1], [entry.id for entry in entries[:place:-1]])
    if first is None or rest is None:
        return None
    # Between the two are tokens without entries: they begin the character that follows.
    return None if entries[place].id in ids[first : len(ids) - rest] else ids[:first]


def _match(ids: list[int], wanted: list[Any]) -> int | None:
    """Return how many of the ids hold all that are wanted, in their order; None if they do not."""
    place = 0
    for one in wanted:
        try:
            place = ids.index(one, place) + 1
        except ValueError:
            return None
    return place


def _bytes(entry: Entry) -> bytes:
    """Return an entry's bytes, none where they are not known."""
    try:
        return bytes(_ids(entry.bytes))
    except (DecodeError, ValueError):
        return b""
