"""What one choice of a completions answer holds, as events; the rest is as in a chat answer."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from wellspoken.adapters.events import Finish, Logprobs, Text
from wellspoken.adapters.readers import legacy, strict
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.streamed import Streamed


def text_choice(pieces: Pieces, choice: strict.WireTextChoice, raw: bytes | None) -> None:
    """Emit a strict choice; `raw` is its chunk where that may go out as it is."""
    notes, index, text = pieces.notes, choice.index, choice.text
    before = notes.changes
    if pieces.extras("choice", index, choice, strict.TEXT_CHOICE_EXTRAS):
        raw = None
    finish = choice.finish_reason
    if finish is UNSET:
        notes.add("finish_reason_absent")
        finish = None
    lp = _logprobs(pieces, choice)
    given = choice.logprobs
    offset = given.text_offset if isinstance(given, strict.WireArrays) else None
    if finish is not None and lp is not None and is_all_again(pieces, index, text, lp, offset):
        text = ""
    lp = drop_repeated(pieces, index, text, lp)
    if text:
        pieces.written[index].texts.pieces.append(text)
    if raw is None or lp is not None or before != notes.changes:
        pieces.piece(index, "", text, lp, "", [], finish)
    elif text and finish is None:
        pieces.out.append(Text(index, text, None, raw))
    elif finish is not None and not text:
        pieces.out.append(Finish(index, finish, True, raw))
    else:
        pieces.piece(index, "", text, lp, "", [], finish)


def _logprobs(pieces: Pieces, choice: strict.WireTextChoice) -> Logprobs | None:
    """Return the entries of strict arrays, settled; None where the client asked for none."""
    given, notes = choice.logprobs, pieces.notes
    if given is None:
        return None
    if given is UNSET:
        notes.add("logprobs_key_missing")
        return None
    if not (pieces.exchange.logprobs or pieces.context.ids):
        notes.add("logprobs_unasked")
        return None
    before = notes.changes
    lp = _entries(pieces, choice, given)
    if choice.text and lp is not None and not lp.entries and notes.changes == before:
        notes.add("logprobs_empty")
    return lp


def _entries(
    pieces: Pieces, choice: strict.WireTextChoice, given: strict.WireArrays
) -> Logprobs | None:
    notes = pieces.notes
    if isinstance(given.content, list):
        notes.add("logprobs_chat_shaped")
        return pieces.settle_entries(given.content, True)
    tokens, numbers, tops = given.tokens, given.token_logprobs, given.top_logprobs
    if (
        not isinstance(tokens, list)
        or not isinstance(numbers, list)
        or len(numbers) != len(tokens)
        or (isinstance(tops, list) and len(tops) != len(tokens))
    ):
        return legacy.repair_unaligned(given, choice.text, pieces.context)
    if given.text_offset is not UNSET and tokens:
        offsets(pieces, choice.index, given.text_offset)
    if not isinstance(tops, list):
        notes.add("logprobs_top_missing")
        tops = [None] * len(tokens)
    unscored = 0
    if pieces.exchange.echo:  # nothing precedes the tokens at the prompt's front
        unscored = next((n for n, x in enumerate(numbers) if x is not None), len(numbers))
    return legacy.entries(tokens, numbers, tops, pieces.context, unscored)


def is_all_again(pieces: Pieces, index: int, text: str, lp: Logprobs, offset: Any) -> bool:
    """Say whether a last chunk has all of the text once more, for the logprobs that none had.

    Its offsets, where it has any, begin where those of the text do.
    """
    written, streamed = pieces.written[index].texts, pieces.streamed.get(index)
    written.fold()
    if pieces.whole or written.count < 2 or (streamed is not None and streamed.size):
        return False
    prompt = pieces.exchange.prompt_of(index) or ""
    begins = not (isinstance(offset, list) and offset) or offset[0] in (0, len(prompt))
    if len(lp.entries) < 2 or not begins or not written.begins(text) or len(text) > written.size:
        return False
    pieces.notes.add("message_repeated")
    lp.late = True
    return True


def drop_repeated(pieces: Pieces, index: int, text: str, lp: Logprobs | None) -> Logprobs | None:
    """Return a chunk's entries without those of the chunks before (`logprobs_repeated`).

    FastChat's chunks have the arrays of all the answer so far. Several entries that begin with all
    that came before are taken for such if they are more than the chunk's own text.
    """
    if lp is None or not lp.sampled or pieces.whole:
        return lp
    entries = lp.entries
    streamed = pieces.streamed.get(index)
    if streamed is None:
        streamed = pieces.streamed[index] = Streamed()
    elif len(entries) > 1 and entries[0].token and streamed.again(entries, text):
        pieces.notes.add("logprobs_repeated")
        lp.entries = entries = entries[streamed.size :]
    streamed.add(entries)
    return lp


def offsets(pieces: Pieces, index: int, given: Any) -> None:
    """Count offsets that are not from the prompt's start; the writer makes its own."""
    if index in pieces.roles:
        return
    pieces.roles.add(index)
    prompt = pieces.exchange.prompt_of(index)
    begin = 0 if pieces.exchange.echo or prompt is None else len(prompt)
    if not isinstance(given, list) or given[:1] != [begin]:
        pieces.notes.add("text_offset_shifted")
