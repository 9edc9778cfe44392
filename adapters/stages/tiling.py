"""Tiling (contract rule 7): the entries of a choice are those that cover its content, exactly.

Theory. A choice's content arrives in pieces, and so do its entries, not always together: a server
holds text back that may open a stop string, or until a character is whole, while its entries run
ahead; or it sends entries of reasoning, tool markup or the end-of-text token, which are no
content. So a *run* keeps the entries that have no text yet. Each piece of text takes from the run's
front the entries that cover it; what stands before them is outside the content and is dropped, by
name; what stands behind them waits. An entry that reaches beyond the text waits with the text that
it covers (the only text ever held back, less than one token), since a stop string may end the
answer inside it: then its front is kept and the rest clipped. A piece in a raw spelling, which only
the undone text covers, makes the spelling the run's.

    state          text covered        entry reaches over   entries, no text   finish, call, end
    idle           emit                hold text + entry    keep waiting       -
    entries wait   emit, drop before   hold text + entry    keep waiting       drop (see `_close`)
    text held      emit both           hold again           keep waiting       clip, emit, drop
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

from msgspec import Struct

from wellspoken.adapters.events import (
    UNKNOWN,
    End,
    Entry,
    Event,
    Fault,
    Finish,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.stages.alignment import PARTIAL, STEPS, Budget, Cover, Piece, cover
from wellspoken.adapters.stages.candidates import (
    CONTROL,
    READINGS,
    READINGS_OF_ASCII,
    UNCHOSEN,
    blank,
    options,
    own_part,
    set_text,
    settle_piece,
    without_bytes,
)
from wellspoken.adapters.stages.spelling import SPELLINGS, Undo
from wellspoken.adapters.stages.textless import take_textless
from wellspoken.adapters.tokens.table import NULL, token_id

Spelling = tuple[str, Undo] | None

LATE = 8  # times that all of what waits is searched: entries far ahead of their text, or behind it
AHEAD = 32  # waiting entries looked at beyond one for each byte of the text
LEADING = 16  # characters of leading white space that wait for what follows
BUDGET = 400_000  # states that all alignments of an answer may look at, about half a second


class Run(Struct, eq=False):
    """What one choice has that is not written yet, and what was learned of its spelling."""

    waiting: list[Entry] = []  # entries that have no text yet
    held: str = ""  # text held back: the first waiting entry reaches over its end
    bare: str = ""  # text written without entries since the last covered piece
    reasoning: str = ""
    spelling: Spelling = None
    late: int = LATE
    begun: bool = False  # entries were written
    any: bool = False  # entries came
    given: bool = False  # a list without entries came
    apart: bool = False  # it called, reasoned or refused, and entries may be of that


class EntryCounts(Struct, eq=False):
    """How many entries came, those outside the content too; of them those of reasoning alone."""

    entries: int = 0
    reasoned: int = 0


class TilingStage:
    """The stage; one for an answer whose request asked for logprobs."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.k = exchange.k
        self.text = exchange.kind == "completions"
        self.runs: defaultdict[int, Run] = defaultdict(Run)
        self.left = BUDGET
        self.counts = EntryCounts()

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with every `Text` carrying just the entries that cover it."""
        out: list[Event] = []
        alone: Text | None = None  # the event before, if it was entries without text
        for event in events:
            if type(event) is Text:
                alone = None if event.text else event
                self._text(event, out)
                continue
            if type(event) is Finish:
                self._finish(event, out)
                if event.alone and event.reason is not None:
                    self._tell(event.choice, out)
            elif type(event) is ToolDelta or type(event) is Refusal:
                self._close(event.choice, out)
                self.runs[event.choice].apart = True
            elif type(event) is Reasoning:
                if alone is not None and alone.lp is not None and alone.choice == event.choice:
                    self.counts.reasoned += len(alone.lp.entries)
                self._close(event.choice, out)
                self.runs[event.choice].reasoning += event.text
                self.runs[event.choice].apart = True
            elif type(event) is End or type(event) is Fault:
                self._end(event, out)
            alone = None
            out.append(event)
        return out

    def _text(self, event: Text, out: list[Event]) -> None:
        run = self.runs[event.choice]
        lp = event.lp
        if lp is None or not lp.entries:
            run.given = run.given or lp is not None
            event.lp = None
            if not run.waiting:
                run.bare += event.text
                if event.text:
                    out.append(event)
                return
        else:
            run.any = True
            self.counts.entries += len(lp.entries)
            if run.spelling is None and not run.waiting and _fits(event.text, lp):
                run.begun = True
                if run.bare:
                    self.notes.add("logprobs_incomplete")
                    run.bare = ""
                if self._trim(lp.entries):
                    event.raw = None
                out.append(event)
                return
            if not lp.sampled:
                for entry in lp.entries:
                    entry.bytes = UNCHOSEN
            run.waiting += lp.entries
        alone = not run.held and lp is not None and len(run.waiting) == len(lp.entries)
        run.held += event.text
        if not run.held:
            return
        before, size = self.notes.changes, len(out)
        self._take(run, event.choice, False, out)
        if alone and self.notes.changes == before and len(out) > size and not run.waiting:
            event.lp = out[-1].lp  # type: ignore[union-attr]
            out[-1] = event  # its bytes may still go out as they are

    def _trim(self, entries: list[Entry]) -> bool:
        """Leave at most k alternatives of each entry; say whether any was more than that."""
        k, trimmed = self.k, False
        for entry in entries:
            rows = entry.top_logprobs
            if len(rows) > k:
                # The completions endpoint's maps hold the sampled token beside the best k.
                own = self.text and len(rows) == k + 1 and rows[k].token == entry.token
                del rows[k:]
                trimmed = trimmed or not own
        if trimmed:
            self.notes.add("logprobs_trimmed")
        return trimmed

    def _take(self, run: Run, choice: int, last: bool, out: list[Event]) -> None:
        """Write the held text with the entries that cover it; `last`: nothing follows it."""
        # The order of what is tried: the text at hand first; then, if that is not covered exactly,
        # with the bare text before it, since an entry may come a chunk after its text ("Hel" alone,
        # then "lo" with the entry "Hello"). That is tried a few times an answer, so that a server
        # whose entries never fit costs no more than that.
        near = islice(run.waiting, len(run.held) + AHEAD)
        if any(entry.bytes == NULL and token_id(entry.token) is not None for entry in near):
            self._emit(run, choice, run.held, run.waiting, out)  # texts unknown: no aligning
            run.held, run.waiting = "", []
            return
        base = ""
        found, spelling = self._cover(run, run.held.encode())
        if run.bare and run.late and (found is None or found.cost in (1, 2)):
            run.late -= 1
            late = self._cover(run, (run.bare + run.held).encode(), exact=True)
            if late[0] is not None:
                base, (found, spelling) = run.bare, late
        if found is None or not found.pieces:
            self._give_up(run, choice, out)
            return
        leading = len(run.held) < LEADING and run.held.isspace()
        if leading and not (last or run.begun or spelling is None):
            return  # the tokenizer's leading space: whether it is content, the next text tells
        run.spelling = spelling
        self._write(run, choice, base, found, last, out)

    def _write(
        self, run: Run, choice: int, base: str, found: Cover, last: bool, out: list[Event]
    ) -> None:
        # Each entry of the run is outside the content (before the first piece), goes out with its
        # piece, or waits (from `end` on). Where the last one reaches over the text, it waits with
        # the text from its first whole character on.
        content = (base + run.held).encode()
        pieces, entries, text = found.pieces, run.waiting, run.held
        if not run.begun:
            pieces = _without_front(pieces, content)
        before = entries[: pieces[0].row]
        if not (run.begun and all(CONTROL.fullmatch(entry.token) for entry in before)):
            before = self._apart(before)
        for entry in before:
            without_bytes(entry)
        end, after = pieces[-1].row + 1, ""
        if pieces[-1].over and not last and not base:
            first = _first_held(pieces, content)
            start, end = pieces[first].start, pieces[first].row
            text, after = content[:start].decode(), content[start:].decode()
            pieces = pieces[:first]
        undo = run.spelling[1] if run.spelling else None
        kept = [settle_piece(entries[x.row], x, content, undo, self.notes) for x in pieces]
        run.held, run.waiting = after, entries[end:]
        self._emit(run, choice, text, before + kept, out)
        run.bare = "" if after else content[found.covered :].decode(errors="ignore")
        if run.bare:
            self.notes.add("logprobs_incomplete")

    def _cover(
        self, run: Run, content: bytes, exact: bool = False
    ) -> tuple[Cover | None, Spelling]:
        """Return the cheapest cover and its spelling; `exact`: none that drops entries.

        Of many waiting entries the first few are looked at, and all only if those do not fit.
        """
        entries = run.waiting[: len(content) + AHEAD]
        best = self._search(run, entries, content)
        if len(entries) < len(run.waiting) and run.late and (best[0] is None or best[0].cost):
            run.late -= 1
            best = self._search(run, run.waiting, content)
        if best[0] is None or (exact and best[0].cost not in (0, PARTIAL)):
            return None, run.spelling
        if best[1] is not None:
            self.notes.add(best[1][0])
        return best

    def _search(
        self, run: Run, entries: list[Entry], content: bytes
    ) -> tuple[Cover | None, Spelling]:
        """Return the cheapest cover by the first reading that has one."""
        # Readings outside, spellings inside: a looser reading is worse than another spelling, since
        # it finds room for nearly anything. A cover without cost ends the search; one that cut at
        # its front (cost 1 or 2) may be bettered by another spelling, but not by a looser reading.
        after = run.reasoning.encode() if not run.begun else b""
        budget = Budget(min(STEPS, self.left))
        best: tuple[Cover | None, Spelling] = (None, None)
        used = (x for x in SPELLINGS if any(_is_spelled(entry, x[1]) for entry in entries))
        spellings = tuple(dict.fromkeys((run.spelling, None, *used)))
        for reading in READINGS_OF_ASCII if content.isascii() else READINGS:
            for spelling in spellings:
                undo = spelling[1] if spelling else None
                rows = [options(entry, undo, reading) for entry in entries]
                found = cover(rows, content, after, budget)
                if reading.exact and found is not None and found.cost:
                    continue
                if found is not None and (best[0] is None or found.cost < best[0].cost):
                    best = (found, spelling or run.spelling)
                if best[0] is not None and best[0].cost == 0:
                    break
            if best[0] is not None and best[0].cost < PARTIAL:
                break
        self.left -= min(STEPS, self.left) - max(budget.left, 0)
        return best

    def _give_up(self, run: Run, choice: int, out: list[Event]) -> None:
        """Write the entries as they are: nothing tells which of them the text belongs to."""
        entries, text = run.waiting, run.held
        run.waiting, run.held = [], ""
        if all(not entry.token and entry.bytes is not UNCHOSEN for entry in entries):
            for entry in entries:  # nothing is known of any: as parts of one piece
                own_part(entry, text.encode() if entry is entries[-1] else b"", self.notes)
        elif len(entries) == 1:
            set_text(entries[0], text, self.notes)
        else:
            self.notes.add("logprobs_untiled")
            for entry in entries:
                if entry.bytes is UNCHOSEN:
                    set_text(entry, "", self.notes)
                elif entry.bytes == NULL:
                    own_part(entry, b"", self.notes)
        self._emit(run, choice, text, entries, out)

    def _emit(
        self, run: Run, choice: int, text: str, entries: list[Entry], out: list[Event]
    ) -> None:
        if not text and not entries:
            return
        self._trim(entries)
        for entry in () if self.text else entries:  # a map's keys tell its numbers apart
            blank(entry, self.notes)
        run.begun = run.begun or bool(entries)
        out.append(Text(choice, text, Logprobs(entries, False) if entries else None))

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

    def _finish(self, event: Finish, out: list[Event]) -> None:
        """Close a choice; where its content has no text, some entries belong to that."""
        run = self.runs[event.choice]
        some = run.held or run.bare or run.begun or run.apart or self.exchange.echo
        if run.waiting and not some:
            entries, run.waiting = take_textless(run.waiting, event.reason, self.exchange), []
            self._emit(run, event.choice, "", entries, out)
        self._close(event.choice, out)

    def _tell(self, choice: int, out: list[Event]) -> None:
        """Write that logprobs were given though none belong to the content, which has no text."""
        run = self.runs[choice]
        if (run.given or run.any) and not (run.begun or run.bare):
            out.append(Text(choice, "", Logprobs([], False)))

    def _close(self, choice: int, out: list[Event]) -> None:
        """Write the text that is held, its last entry clipped to it; what still waits is outside.

        Those are the end-of-text token, a stop string, reasoning, markup, or at a length limit
        the parts of a character that never came.
        """
        run = self.runs[choice]
        if run.held:
            self._take(run, choice, True, out)
        if run.waiting and run.bare:
            found, run.spelling = self._cover(run, run.bare.encode(), exact=True)
            if found is not None and found.pieces:
                self._write(run, choice, run.bare, found, True, out)
        rest = self._apart(run.waiting) if run.waiting else []
        run.waiting = []
        if run.bare.strip("\ufffd") == "" != run.bare and (run.any or self.exchange.echo):
            # A token that only begins a character, of which llama.cpp tells nothing.
            self.notes.add("logprobs_unknown")
            rest.insert(0, Entry("", UNKNOWN, NULL, []))
            own_part(rest[0], run.bare.encode(), self.notes)
            run.bare = ""
        if rest:
            self._emit(run, choice, "", rest, out)

    def _end(self, event: End | Fault, out: list[Event]) -> None:
        # Told once an answer: a choice that had entries lacks some, or no choice had any at all.
        had = bare = lacking = False
        for choice, run in self.runs.items():
            if type(event) is End and event.clean:
                self._finish(Finish(choice, None), out)
            self._close(choice, out)
            if type(event) is End:
                self._tell(choice, out)
            had = had or run.any
            bare = bare or run.bare != ""
            lacking = lacking or (run.any and run.bare != "")
        if lacking:
            self.notes.add("logprobs_incomplete")
        if bare and not had:
            self.notes.add("logprobs_missing")


def _is_spelled(entry: Entry, undo: Undo) -> bool:
    return undo(entry.token) is not None or any(
        undo(row.token) is not None for row in entry.top_logprobs
    )


def _first_held(pieces: list[Piece], content: bytes) -> int:
    """Return the first of the last pieces that has to wait: it begins with a whole character."""
    first = len(pieces) - 1
    while first and (
        content[pieces[first].start] & 0xC0 == 0x80 or pieces[first - 1].end > pieces[first].start
    ):
        first -= 1
    return first


def _without_front(pieces: list[Piece], content: bytes) -> list[Piece]:
    """Return the pieces without empty ones before ASCII text, which has no parts of characters."""
    owner = next((n for n, piece in enumerate(pieces) if piece.end > piece.start), 0)
    return pieces[owner:] if content[: pieces[owner].end].isascii() else pieces


def _fits(text: str, lp: Logprobs) -> bool:
    """Say whether the entries are the text as they stand; choose the sampled one if it is plain."""
    entries = lp.entries
    if not lp.sampled:
        for row in entries[0].top_logprobs if len(entries) == 1 else ():
            if row.token == text and row.bytes != NULL:
                entries[0].token, entries[0].logprob, entries[0].bytes = (
                    text,
                    row.logprob,
                    row.bytes,
                )
                return True
        return False
    if not lp.plain:
        return False
    if len(entries) == 1:
        return entries[0].token == text
    return "".join([entry.token for entry in entries]) == text
