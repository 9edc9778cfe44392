"""What one choice has that is not written yet: text held back, and entries that wait for theirs.

`TilingStage` has the theory; here is how a piece of text gets its entries.
"""

from __future__ import annotations

from itertools import islice, takewhile

from wellspoken.adapters.alignment.candidates import (
    CONTROL,
    LOOSE,
    READINGS,
    READINGS_OF_ASCII,
    SOME,
    UNCHOSEN,
    blank,
    is_part,
    mark_of,
    own_nothing,
    own_part,
    own_untiled,
    settle_piece,
    trim_alternatives,
    without_bytes,
)
from wellspoken.adapters.alignment.placement import FRONT, PARTIAL, Budget, Cover, Hints
from wellspoken.adapters.alignment.search import Spelling, find_cover, has_too_many_parts
from wellspoken.adapters.events import UNKNOWN, Entry, Event, Logprobs, Reason, Text
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.stages.textless import take_textless
from wellspoken.adapters.stages.tiling_pieces import (
    UNSURE,
    come_early,
    find_waiting,
    has_few_parts,
    has_text,
    is_unsure,
    may_be_ahead,
    trim_front,
)
from wellspoken.adapters.tokens.table import NULL, token_id

LATE = 8  # times that all of what waits is searched: entries far ahead of their text, or behind it
DOUBTS = 8  # times that a text waits to have it told whether entries run ahead of it
AHEAD = 32  # waiting entries looked at beyond one for each byte of the text
LEADING = 16  # characters of leading white space that wait for what follows


class Run:
    """One choice's text and entries; `budget` bounds the alignments of the whole answer."""

    def __init__(self, exchange: Exchange, choice: int, budget: Budget) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.choice = choice
        self.budget = budget
        self.waiting: list[Entry] = []  # entries that have no text yet
        self.held = ""  # text held back: the first waiting entry reaches over its end
        self.bare = ""  # text written without entries since the last covered piece
        self.tail = ""  # U+FFFD at its end, written with what comes next: it may be the end's
        self.reasoning = ""  # shown reasoning that no entries were found for yet
        self.spelling: Spelling = None
        self.late = LATE
        self.doubts = DOUBTS
        self.lags = bool(exchange.stops)  # entries with text may come before their text
        self.ahead = False  # they did
        self.searched = 0  # of those that wait, where the last one owns a part of unknown split
        self.untold = False  # entries tell ids instead of texts
        self.parted = False  # the last entry written owns a part of unknown split
        self.short = False  # of a character that has more bytes than parts
        self.apart = False  # reasoning or a call came since the last covered piece
        self.begun = False  # entries were written
        self.any = False  # entries came
        self.given = False  # a list without entries came
        self.cut = False  # the answer is known to end at a length limit
        self.first = 0  # which of those that wait came first with the last text
        self.recent = 0  # entries of the last event, which had no text: the next text's own

    def add(self, text: str, lp: Logprobs | None, out: list[Event], *, last: bool) -> None:
        """Take a piece of text and the entries that came with it; write what can be written.

        `last`: all entries of the choice are there, and nothing is to stand behind the content.
        """
        if text:
            self._write_tail(out)
        if lp is None or not lp.entries:
            own = min(self.recent, len(self.waiting))
            if not self.waiting:
                self.bare += text
                if text.strip("\ufffd"):
                    out.append(Text(self.choice, text))
                elif text:
                    self.tail = text
                return
        else:
            own = len(lp.entries)
            if not lp.sampled:
                for entry in lp.entries:
                    entry.bytes = UNCHOSEN
            self.waiting += lp.entries
            # Inside the content no reasoning comes alone, so text among entries is of later text.
            if not text and self.begun and not (self.apart or self.ahead):
                self.ahead = has_text(self.waiting)
                self.lags = self.lags or self.ahead
        self.recent = 0 if text else own
        self.held += text
        if text:  # entries that come later are of later text
            self.first = len(self.waiting) - own
            if last or not self._is_untold():
                self._take(out, own, last=last)

    def _is_untold(self) -> bool:
        """Say whether what came since the last search tells no more of the split than that did.

        Of entries that ran ahead to the end of the text, the end of the answer tells it.
        """
        if self.ahead and self.waiting and mark_of(self.waiting[-1]) == "closes":
            return True
        new = self.waiting[self.searched :] if self.searched else []
        return bool(new) and len(self.held.encode()) <= UNSURE and all(map(is_part, new))

    def add_late(self, lp: Logprobs, out: list[Event]) -> None:
        """Write the entries of all text, which was written without, as a body would have them."""
        text, self.bare = self.bare, ""
        covered: list[Event] = []
        self.add(text, lp, covered, last=True)
        if self.held:
            self._take(covered, 0, ends=True)
        found = [event.lp for event in covered if type(event) is Text]
        out += [Text(self.choice, "", each) for each in found if each is not None]

    def pause(self, out: list[Event]) -> None:
        """Write the text that is held: what comes now stands between two runs of content.

        The entries wait on, since those of the next run may be among them.
        """
        self._write_tail(out)
        if self.held:
            self._take(out, 0, ends=True)
            self._write_tail(out)
        self.apart = True

    def reason(self, text: str, given: list[Entry]) -> None:
        """Take a piece of shown reasoning, and the entries that came with it alone."""
        if given and "".join([entry.token for entry in given]) == text:
            del self.waiting[-len(given) :]
            self.notes.add("logprobs_outside_content", len(given))
        else:
            self.reasoning += text

    def finish(self, reason: Reason | None, out: list[Event], *, clean: bool = True) -> None:
        """End the choice; where its content has no text, some entries belong to that."""
        some = self.held or self.bare or self.begun or self.apart or self.exchange.echo
        if clean and self.waiting and not some:
            entries, self.waiting = take_textless(self.waiting, reason, self.exchange), []
            self.emit("", entries, out)
        self.close(out, cut=reason == "length")

    def tell(self, out: list[Event]) -> None:
        """Write that logprobs were given though none belong to the content, which has no text."""
        if (self.given or self.any) and not (self.begun or self.bare):
            out.append(Text(self.choice, "", Logprobs([], False)))

    def close(self, out: list[Event], *, cut: bool) -> None:
        """Write the text that is held, its last entry clipped to it; what still waits is outside.

        Those are the end-of-text token, a stop string, reasoning or markup. `cut`: the answer
        ended at a length limit, or broke off, so they may be parts of a character that never came.
        """
        self.ahead = False  # of nothing that is to come
        if self.held:
            self._take(out, 0, ends=True)
        if self.waiting and self.bare:
            found, self.spelling = self._cover(self.bare.encode(), Hints(), exact=True)
            if found is not None and found.pieces:
                self.held, base = self.tail, self.bare.removesuffix(self.tail)
                self._write(base, found, out, ends=True)
        parts = self._count_parts(cut)
        rest = self.waiting[:parts] + self._apart(self.waiting[parts:])
        for entry in self.waiting[:parts]:
            own_nothing(entry, self.notes)
        self.waiting = []
        told = (self.any and not self.untold) or self.exchange.echo
        if self.bare.strip("\ufffd") == "" != self.bare and told:
            # A token that only begins a character, of which llama.cpp tells nothing.
            if not parts:
                self.notes.add("logprobs_unknown")
                rest.insert(0, Entry("", UNKNOWN, NULL, []))
            own_part(rest[max(parts - 1, 0)], self.bare.encode(), self.notes)
            self.bare = ""
        tail, self.tail = self.tail, ""
        if rest or tail:
            self.emit(tail, rest, out)

    def _count_parts(self, cut: bool) -> int:
        """Return how many entries that wait may be parts of a character of which nothing came.

        Behind them stands what ends the text, unless a character before has fewer parts than bytes.
        Where an answer ended by itself without a control token, one part that tells nothing is what
        ended it; several may be of white space that was stripped, or of a stop string, not ASCII.
        """
        undo = self.spelling[1] if self.spelling else None
        parts = len(list(takewhile(lambda x: is_part(x, undo), self.waiting)))
        behind = self.waiting[parts:]
        if self.parted and (behind or self.lags or parts > 1 or self.short):
            return parts
        stops = () if cut else self.exchange.stops
        if self.apart or not all(stop[:1].isascii() for stop in stops):
            return 0
        if not stops and not all(CONTROL.fullmatch(entry.token) for entry in behind):
            return 0
        ends = parts == 1 and not (cut or behind or self.waiting[-1].token)
        return 0 if ends else parts

    def _take(self, out: list[Event], own: int, *, last: bool = False, ends: bool = False) -> None:
        """Write the held text with the entries that cover it; `ends`: nothing follows it."""
        # With the bare text before it first, a few times (entries may never fit): one may come a
        # chunk after its text ("Hel", then "lo" with "Hello").
        near = islice(self.waiting, len(self.held) + AHEAD)
        if any(entry.bytes == NULL and token_id(entry.token) is not None for entry in near):
            text, entries = self.held, self.waiting
            self.held, self.waiting, self.untold = "", [], True
            self.emit(text, entries, out)  # texts unknown: no aligning
            return
        base, self.searched = "", 0
        found, spelling = None, self.spelling
        if self.bare and self.late:
            self.late -= 1
            content = (self.bare + self.held).encode()
            found, spelling = self._cover(content, Hints(), exact=True, strict=True)
            if found is not None:
                self.late += 1
                base = self.bare
        if found is None:
            found, spelling = self._cover_held(ends=ends, last=last)
        if found is None or not found.pieces:
            self._give_up(own, out)
            return
        leading = len(self.held) < LEADING and self.held.isspace()
        skips = spelling is not None or found.pieces[0].row > 0
        if leading and skips and own and not (ends or last or self.begun):
            return  # a leading space: whether it is content, and whose, the next text tells
        if self.doubts and not (ends or last or base) and self._is_doubtful(found):
            self.doubts -= 1
            return
        self.spelling = spelling
        end = found.pieces[-1]
        untold = is_unsure(end.option) and len(self.waiting) == end.row + 1
        self._write(base, found, out, ends=ends or last)
        self.searched = len(self.waiting) if self.held and untold else 0

    def _cover_held(self, *, ends: bool, last: bool) -> tuple[Cover | None, Spelling]:
        content, hints = self.held.encode(), self._make_hints(ends=ends, last=last)
        found, spelling = self._cover(content, hints)
        end = found.pieces[-1].row + 1 if found and found.pieces else len(self.waiting)
        if self.doubts < DOUBTS and not (ends or self.lags) and has_text(self.waiting[end:]):
            self.lags = True  # text was in doubt, and more has come than it has
            found, spelling = self._cover(content, hints._replace(lags=True))
        if ends and self.ahead and found is not None and come_early(found.pieces, 0):
            # More parts than the text has bytes: some run ahead of what comes behind a call.
            found, spelling = self._cover(content, hints._replace(lags=True, ahead=True))
        return found, spelling

    def _make_hints(self, *, ends: bool = False, last: bool = False) -> Hints:
        """Return what is known of the held text's entries besides their texts."""
        # Only where reasoning or a call may stand before do a text's own entries tell anything.
        first = self.first if self.apart or not self.begun else -1
        return Hints(
            self.reasoning.encode(),
            first,
            lags=self.lags and not (ends or last),
            ahead=self.ahead and not (ends or last),
            last=last,
            cut=self.cut,
            stops=[stop.encode() for stop in self.exchange.stops],
            inner=(self.begun and not self.apart) or self.exchange.kind == "completions",
        )

    def _is_doubtful(self, found: Cover) -> bool:
        """Say whether entries may run ahead of their text, which what follows it would tell.

        So it is where others before a first text's own cover it cheaper, or the last begins so.
        """
        content = self.held.encode()
        if may_be_ahead(found.pieces, content) or has_too_many_parts(found):
            return True
        entries = self.waiting[: found.pieces[0].row]
        if not entries or (self.begun and not self.apart):
            return False
        if found.cost < FRONT:
            return entries[-1].token.startswith(self.held)
        hints = self._make_hints()._replace(own=-1, lags=True)
        other, _ = find_cover(entries, content, hints, READINGS, self.spelling, self.budget)
        return other is not None and other.cost < found.cost

    def _write(self, base: str, found: Cover, out: list[Event], *, ends: bool) -> None:
        # Each entry of the run is outside the content (before the first piece, or between two),
        # goes out with its piece, or waits, with the text it reaches over.
        content = (base + self.held).encode()
        pieces, entries, text = found.pieces, self.waiting, self.held
        if not self.begun:
            pieces = trim_front(pieces, content, entries)
        self.ahead = self.ahead or has_text(entries[found.pieces[-1].row + 1 :])
        self.lags = self.lags or self.ahead or (not ends and come_early(found.pieces, self.first))
        inner, lags = self.begun and not self.apart, self.lags
        first = len(pieces) if ends or base else find_waiting(pieces, content, lags, inner)
        if not first:  # all of the text waits, and what stands before it too
            self.lags = True
            return
        before = self._keep_before(entries[: pieces[0].row])
        end, after = pieces[-1].row + 1, ""
        if between := end - pieces[0].row - len(pieces):
            self.notes.add("logprobs_outside_content", between)
        if first < len(pieces):
            start, end = pieces[first].start, pieces[first].row
            text, after = content[:start].decode(), content[start:].decode()
            pieces = pieces[:first]
        undo = self.spelling[1] if self.spelling else None
        self.parted = bool(pieces) and pieces[-1].option.data is None
        self.short = self.parted and has_few_parts(pieces, content)
        kept = [settle_piece(entries[x.row], x, content, undo, self.notes) for x in pieces]
        self.held, self.waiting = after, entries[end:]
        self.first = max(self.first - end, 0)
        self.apart, self.reasoning = False, ""
        self.lags = self.lags or bool(after)
        self.bare = "" if after else content[found.covered :].decode(errors="ignore")
        if self.bare:
            self.notes.add("logprobs_incomplete")
        self.tail = "" if self.bare.strip("\ufffd") else self.bare
        self.emit(text.removesuffix(self.tail), before + kept, out)

    def _keep_before(self, entries: list[Entry]) -> list[Entry]:
        """Return what stays of the entries before a first piece, without text."""
        if self.apart or not self.begun or not all(CONTROL.fullmatch(x.token) for x in entries):
            # The last character's parts may be more than those that came with it.
            parts = list(takewhile(is_part, entries)) if self.parted else []
            for entry in parts:
                own_nothing(entry, self.notes)
            entries = parts + self._apart(entries[len(parts) :])
        for entry in entries:
            without_bytes(entry)
        return entries

    def _cover(
        self, content: bytes, hints: Hints, *, exact: bool = False, strict: bool = False
    ) -> tuple[Cover | None, Spelling]:
        """Return the cheapest cover and its spelling; `exact`: none that drops entries.

        `strict`: by no reading that takes a token for another's text. Of many waiting entries the
        first few are looked at, and all only if those do not fit, or some came with the text.
        """
        readings = READINGS_OF_ASCII if content.isascii() else READINGS
        if strict:
            readings = tuple(reading for reading in readings if not reading.cost)
        entries = self.waiting if self.apart else self.waiting[: len(content) + AHEAD]
        best: tuple[Cover | None, Spelling] = (None, None)
        alone = hints.own in (-1, len(self.waiting))  # no entries came with the text
        if hints.own < 0 or alone or len(entries) == len(self.waiting):
            best = find_cover(entries, content, hints, readings, self.spelling, self.budget)
        if len(entries) < len(self.waiting) and self.late and (best[0] is None or best[0].cost):
            best = find_cover(self.waiting, content, hints, readings, self.spelling, self.budget)
            self.late -= best[0] is None
        if best[0] is None or (exact and best[0].cost not in (0, SOME, LOOSE, PARTIAL)):
            return None, self.spelling
        if best[1] is not None:
            self.notes.add(best[1][0])
        return best

    def _give_up(self, own: int, out: list[Event]) -> None:
        """Write the entries as they are: nothing tells which of them the text belongs to."""
        if self.apart:  # those of reasoning or a call are not: the text's own alone
            outside = len(self.waiting) - own
            if not own:
                text, self.held = self.held, ""
                self.bare += text
                out.append(Text(self.choice, text))
                return
            self._apart(self.waiting[:outside])
            self.waiting = self.waiting[outside:]
        entries, text = self.waiting, self.held
        self.waiting, self.held = [], ""
        own_untiled(entries, text, self.notes)
        self.emit(text, entries, out)

    def _write_tail(self, out: list[Event]) -> None:
        if self.tail:
            out.append(Text(self.choice, self.tail))
            self.tail = ""

    def emit(self, text: str, entries: list[Entry], out: list[Event]) -> None:
        """Write text and entries, each with no more alternatives than were asked for."""
        if not text and not entries:
            return
        self.trim(entries)
        for entry in () if self.exchange.kind == "completions" else entries:
            blank(entry, self.notes)  # a map's keys tell its numbers apart
        self.begun = self.begun or bool(entries)
        out.append(Text(self.choice, text, Logprobs(entries, False) if entries else None))

    def trim(self, entries: list[Entry]) -> bool:
        """Leave at most k alternatives of each entry; say whether any was more than that."""
        # The completions endpoint's maps hold the sampled token beside the best k.
        beside = self.exchange.kind == "completions"
        return trim_alternatives(entries, self.exchange.k, self.notes, beside=beside)

    def _apart(self, entries: list[Entry]) -> list[Entry]:
        """Return what stays of entries that own no content: all of them with `echo`, else none.

        Clients of an echoed prompt count its tokens, among them one that begins the text and one
        that ends it.
        """
        if not entries:
            return []
        if not self.exchange.echo or self.exchange.stops:
            self.notes.add("logprobs_outside_content", len(entries))
            return []
        for entry in entries:
            without_bytes(entry)
        return entries
