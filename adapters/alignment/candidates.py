"""What an entry may stand for in the content, and what it becomes once the content tells."""

from __future__ import annotations

import html
import re
from typing import NamedTuple
from unicodedata import normalize

from msgspec import Raw, json

from wellspoken.adapters.alignment.placement import ANY, Mark, Option, Piece
from wellspoken.adapters.alignment.spelling import Undo
from wellspoken.adapters.events import UNKNOWN, Alternative, Entry
from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.tokens.table import NULL, bytes_json, escape, spell, token_id

LOOSE = 16  # a cover with a gap is better, one with two is worse
SOME = 7  # a cover with rows before it is better
CONTROL = re.compile(r"<(?!0x[0-9A-Fa-f]{2}>)[^<>\s]+>|\[[A-Z_/]+\]")
"""What names a control token, such as `<s>`, `<|im_end|>` or `[INST]`, but no byte (`<0x0A>`)."""
_OPENS = re.compile(r"(?i)[<\[](?!/).*(tool|func|python|action|think|reason)(?!.*end)")
_REPLACED = re.compile("\ufffd+")
UNCHOSEN = Raw()
"""`bytes` of an entry whose own token is still to be chosen among its alternatives."""

_ids = json.Decoder(list[int]).decode


def bytes_of(row: Entry | Alternative, undo: Undo | None) -> bytes | None:
    """Return a row's bytes, of an undone raw spelling if `undo` knows it; None if unknown."""
    if row.bytes == NULL:
        return None
    data = bytes(_ids(row.bytes))
    if undo is not None and data == row.token.encode():
        undone = undo(row.token)
        return data if undone is None else undone
    return data


class Reading(NamedTuple):
    """How far a token's text is trusted; each reading is tried where the ones before it fail.

    `empty`: a token without text has none, since the last part of a character brings all of it
    (vLLM now).
    `control`: a control token may be left out of the text (vLLM's `<s>`).
    `lossy`: a text may lack the bytes that end the character before it, as where a server decodes
    each token alone and leaves out what is not UTF-8 (llama-cpp-python). `most`: characters that a
    token without text may complete. `spaced`: a text may lack the space that it begins with, as
    where each token is decoded alone with a sentencepiece vocabulary (TensorRT-LLM, FastChat).
    `alternatives`: the token may be one of its alternatives. `textless`: a token without text may
    stand for any, as where a server leaves a token out that is not all UTF-8 (Rust's from_utf8).
    """

    empty: bool = False
    control: bool = False
    lossy: bool = False
    most: int = 1
    spaced: bool = False
    alternatives: bool = False
    textless: bool = False

    @property
    def cost(self) -> int:
        """How much it is worse than rows left out."""
        if self.lossy or self.spaced or self.alternatives or self.textless:
            return LOOSE
        return SOME if self.most > 1 else 0

    @property
    def exact(self) -> bool:
        """Whether it counts only where it leaves out no entry: it finds room for nearly any."""
        return self.control or self.alternatives


# From the reading that trusts most to the one that trusts least: a loose one finds room for nearly
# any entry, and would give tokens to bytes that are another's, so it comes last. "é" in rows
# "", "é" is covered by the first reading: the part owns nothing, the last one all. Rows "", "" need
# the second, since one of them has to own it, and one "" for "éé" needs the third.
READINGS = (
    Reading(empty=True),
    Reading(),
    Reading(most=4),
    Reading(empty=True, control=True),
    Reading(control=True, most=4),
    Reading(lossy=True),
    Reading(lossy=True, most=4),
    Reading(empty=True, spaced=True),
    Reading(alternatives=True),
    Reading(textless=True),
)
READINGS_OF_ASCII = tuple(x for x in READINGS if x.empty or x.alternatives or x.textless)
"""The others differ in parts of characters alone, and ASCII text has none."""


def options(entry: Entry, undo: Undo | None, reading: Reading) -> list[Option]:
    """Return what the entry may stand for: its own token, then (if so read) its alternatives."""
    found = [] if entry.bytes is UNCHOSEN else [_option(entry, undo, -1, reading)]
    if reading.control and found and mark_of(entry) == "closes":
        found.append(Option(b""))
    if reading.spaced and found and found[0].data:
        found.append(Option(b" " + found[0].data))
    unchosen = entry.bytes is UNCHOSEN
    if unchosen or (reading.alternatives and _may_be_another(entry)):
        # A number that came with a text is none of a token that tells nothing.
        named = [(n, x) for n, x in enumerate(entry.top_logprobs) if unchosen or x.token]
        found += [_option(row, undo, n, reading) for n, row in named]
    if reading.alternatives:  # the entry's own spellings first: of two ways the first one stays
        found = [x for each in found for x in (each, *_respelled(each))]
    return found or [Option(None)]  # nothing is known of it but that it stood there


def _respelled(option: Option) -> list[Option]:
    data = option.data
    return [option._replace(data=x) for x in respell(data) if x not in (b"", data)] if data else []


def respell(data: bytes) -> list[bytes]:
    """Return what a server that changes its text may make of a token's.

    Normalized (NFC, NFD, NFKC), without the white space around it, its HTML entities read, or
    written as Python's html, Go's html/template or MarkupSafe do. Constructed: contract rule 7.
    """
    text = data.decode(errors="surrogateescape")
    escaped = html.escape(text)
    found = [normalize(form, text) for form in ("NFC", "NFD", "NFKC")]
    found += [text.strip(), html.unescape(text), escaped, html.escape(text, quote=False)]
    found.append(escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    return [x.encode(errors="surrogateescape") for x in dict.fromkeys(found)]


def _may_be_another(entry: Entry) -> bool:
    """Say whether the entry may be a copy of an alternative that was not sampled (mlx-lm).

    A number that is no alternative's was given for this very entry, and stays.
    """
    known = entry.token or entry.logprob != UNKNOWN
    same = (entry.token, entry.logprob)
    if not known or not entry.token:
        return not known
    return any((x.token, x.logprob) == same for x in entry.top_logprobs)


def _option(row: Entry | Alternative, undo: Undo | None, pick: int, reading: Reading) -> Option:
    data = bytes_of(row, undo)
    if data is not None:
        return (
            Option(None, (b"", data), pick, firm=True) if reading.lossy else Option(data, pick=pick)
        )
    if reading.empty and not row.token:
        return Option(b"", pick=pick)
    if not row.token:
        return Option(None, pick=pick, most=ANY if reading.textless else reading.most)
    texts = tuple(text.encode() for text in _REPLACED.split(row.token))
    holes = tuple(map(len, _REPLACED.findall(row.token)))
    return Option(None, texts, pick, reading.most, holes=holes)


def settle_piece(
    entry: Entry, piece: Piece, content: bytes, undo: Undo | None, notes: Notes
) -> Entry:
    """Make the entry what its piece of the content says, and return it.

    Counts `logprobs_sampled_inferred`, `logprobs_sampled_mismatch`, `logprobs_bytes_from_content`,
    `logprobs_space_restored`, `logprobs_content_respelled` and `logprobs_clipped`.
    """
    # First which token it is, then which bytes: what is an alternative takes that one's token, and
    # alternatives that read as the entry did (`was`) are the same token and go with it.
    pick(entry, piece.option.pick, notes)
    was = (entry.token, entry.logprob, entry.bytes)
    data = piece.option.data
    told = content[piece.start : piece.end]
    if data is None and entry.bytes is not UNCHOSEN and bytes_of(entry, None) == told:
        data = told
    own = bytes_of(entry, None) if data and undo is None else None
    if own is not None and data and own != data:
        spaced = data == b" " + own
        notes.add("logprobs_space_restored" if spaced else "logprobs_content_respelled")
        _set(entry, data)
        _mirror(entry, was)
    if piece.cut < 0:
        own_part(entry, told, notes)  # the end of a character whose beginning has gone out
    elif data == b"":
        without_bytes(entry)  # a part of a character, or a control token that is not in the text
    elif data is None:
        own_part(entry, told, notes)
        _mirror(entry, was)
    elif piece.cut or piece.over:
        notes.add("logprobs_clipped")
        clipped = data[piece.cut : len(data) - piece.over]
        _set(entry, clipped)
        rows = entry.top_logprobs
        if any(row.token == entry.token or bytes_of(row, undo) == clipped for row in rows):
            _mirror(entry, was)  # else the entry would read as that other token
    elif bytes_of(entry, None) != data:
        _set(entry, data)
    if undo is not None:
        for alternative in entry.top_logprobs:
            undone = bytes_of(alternative, undo)
            mirrored = (alternative.bytes, alternative.logprob) == (entry.bytes, entry.logprob)
            if undone is not None and undone != bytes_of(alternative, None) and not mirrored:
                _set(alternative, undone)
    return entry


def without_bytes(entry: Entry) -> None:
    """Let an entry own nothing of the content, and the alternative that it is likewise."""
    entry.bytes = NULL
    for row in entry.top_logprobs:
        if row.token == entry.token and row.logprob == entry.logprob:
            row.bytes = NULL


def pick(entry: Entry, index: int, notes: Notes) -> None:
    """Give the entry the token and value of its alternative `index`; -1 leaves its own."""
    if index < 0:
        return
    inferred = entry.bytes is UNCHOSEN
    notes.add("logprobs_sampled_inferred" if inferred else "logprobs_sampled_mismatch")
    row = entry.top_logprobs[index]
    entry.token, entry.logprob, entry.bytes = row.token, row.logprob, row.bytes


def own_part(entry: Entry, owned: bytes, notes: Notes) -> None:
    """Give a part of a character the bytes it owns: the last part all of them, earlier ones none.

    Where the content itself only shows U+FFFD, its bytes are escaped: they stand for no known text.
    """
    if not owned:
        entry.token, entry.bytes = "", NULL
        return
    notes.add("logprobs_bytes_from_content")
    spelled = escape("\ufffd".encode())
    entry.token = spell(owned).replace("\ufffd", spelled)
    entry.bytes = bytes_json(owned)


def own_text(entry: Entry, owned: bytes, notes: Notes) -> None:
    """Give an entry the bytes it owns, and the alternative that it is likewise."""
    was = (entry.token, entry.logprob, entry.bytes)
    own_part(entry, owned, notes)
    _mirror(entry, was)


def own_nothing(entry: Entry, notes: Notes) -> None:
    """Let an entry that may be a part of a character stay without text and bytes."""
    if token_id(entry.token) is not None:
        return
    if entry.token or entry.bytes != NULL:
        notes.add("logprobs_bytes_unknown")
    own_text(entry, b"", notes)


def set_text(entry: Entry, text: str, notes: Notes) -> None:
    """Give the entry the text that was written with it; its number stays, if it has one.

    Where only alternatives came and none of them is that text, it is unknown.
    """
    if entry.bytes is UNCHOSEN:
        notes.add("logprobs_sampled_unknown")
        entry.logprob = UNKNOWN
    else:
        notes.add("logprobs_content_respelled")
    own_text(entry, text.encode(), notes)


def own_untiled(entries: list[Entry], text: str, notes: Notes) -> None:
    """Give a text to entries of which nothing tells how they share it."""
    if all(not entry.token and entry.bytes is not UNCHOSEN for entry in entries):
        for entry in entries:  # nothing is known of any: as parts of one piece
            own_text(entry, text.encode() if entry is entries[-1] else b"", notes)
    elif len(entries) == 1:
        set_text(entries[0], text, notes)
    else:
        notes.add("logprobs_untiled")
        for entry in entries:
            if entry.bytes is UNCHOSEN:
                set_text(entry, "", notes)
            elif entry.bytes == NULL:
                own_nothing(entry, notes)


def mark_of(entry: Entry) -> Mark:
    """Return what a control token opens or closes, "" for any other token."""
    if not CONTROL.fullmatch(entry.token):
        return ""
    return "opens" if _OPENS.match(entry.token) else "closes"


def is_part(entry: Entry, undo: Undo | None = None) -> bool:
    """Say whether the entry may be a part of a character: it tells no text that is whole."""
    data = bytes_of(entry, undo) if entry.bytes is not UNCHOSEN else None
    if data is None:
        return not _REPLACED.sub("", entry.token) or token_id(entry.token) is not None
    return ("\ufffd" in data.decode(errors="replace") and not data.isascii()) or not data


def blank(entry: Entry, notes: Notes) -> None:
    """Leave no U+FFFD in tokens whose bytes are unknown: they are parts of a character."""
    if entry.bytes == NULL and "\ufffd" in entry.token:
        own_nothing(entry, notes)
    for row in entry.top_logprobs:
        if row.bytes == NULL and "\ufffd" in row.token:
            notes.add("logprobs_alternative_blank")
            row.token = ""


def trim_alternatives(entries: list[Entry], k: int, notes: Notes, *, beside: bool) -> bool:
    """Leave at most k alternatives of each entry; say whether any was more than that.

    `beside`: the sampled token may stand beside the best k, and is none too many.
    """
    trimmed = False
    for entry in entries:
        rows = entry.top_logprobs
        if len(rows) > k:
            own = beside and len(rows) == k + 1 and rows[k].token == entry.token
            del rows[k:]
            trimmed = trimmed or not own
    if trimmed:
        notes.add("logprobs_trimmed")
    return trimmed


def _mirror(entry: Entry, was: tuple[str, float, Raw]) -> None:
    """Let the alternative that is the sampled token read as the entry does."""
    for row in entry.top_logprobs:
        if (row.token, row.logprob, row.bytes) == was:
            row.token, row.bytes = entry.token, entry.bytes
            return


def _set(row: Entry | Alternative, data: bytes) -> None:
    row.token, row.bytes = spell(data), bytes_json(data)
