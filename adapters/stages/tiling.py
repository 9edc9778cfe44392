"""Tiling (contract rule 7): the entries of a choice are those that cover its content, exactly.

Theory. A choice's content arrives in pieces, and so do its entries, not always together: a server
holds text back that may open a stop string, or until a character is whole, while its entries run
ahead; or it sends entries of reasoning, tool markup or the end-of-text token, which are no
content. So a *run* keeps the entries that have no text yet. Each piece of text takes from the run
the entries that cover it; what stands before them, or between two, is outside the content and is
dropped, by name; what stands behind them waits. An entry that reaches beyond the text waits with
the text that it covers, since a stop string may end the answer inside it: then its front is kept
and the rest clipped. Other text is held back only where the next piece tells whose it is: white
space before a first one, a U+FFFD that no entry shows, and, where entries run ahead, up to `UNSURE`
bytes whose split nobody told. A piece in a raw spelling, which only the undone text covers, makes
the spelling the run's.

    state         text covered        reaches over  entries alone  call, reasoning  finish, end
    idle          emit                hold both     wait           -                -
    entries wait  emit, drop outside  hold both     wait           wait             drop (`close`)
    text held     emit both           hold again    wait           clip, emit       clip, emit
"""

from __future__ import annotations

from msgspec import Struct

from wellspoken.adapters.alignment.placement import Budget
from wellspoken.adapters.events import (
    End,
    Event,
    Fault,
    Finish,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.stages.tiling_run import Run
from wellspoken.adapters.tokens.table import NULL

BUDGET = 100_000  # states that all alignments of an answer may look at: about half a second
FLOOR = 16_000  # of those, how many may be looked at however short it is
EACH = 32  # and how many more for each entry and for each byte of text


class EntryCounts(Struct, eq=False):
    """How many entries came, those outside the content too; of them those of reasoning alone."""

    entries: int = 0
    reasoned: int = 0


class TilingStage:
    """The stage; one for an answer whose request asked for logprobs."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.runs: dict[int, Run] = {}
        self.budget = Budget(FLOOR)
        self.granted = FLOOR  # states, spent or not
        self.counts = EntryCounts()
        self.k = exchange.k

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with every `Text` carrying just the entries that cover it."""
        out: list[Event] = []
        alone: Text | None = None  # the event before, if it was entries without text
        for event in events:
            if type(event) is Text:
                alone = None if event.text else event
                self._text(event, events, out)
                continue
            if type(event) is Finish:
                self._run(event.choice).finish(event.reason, out)
                if event.alone and event.reason is not None:
                    self._run(event.choice).tell(out)
            elif type(event) is ToolDelta or type(event) is Refusal:
                self._run(event.choice).pause(out)
            elif type(event) is Reasoning:
                self._reason(event, alone, out)
            elif type(event) is End or type(event) is Fault:
                self._end(event, out)
            alone = None
            out.append(event)
        return out

    def is_plain(self) -> bool:
        """Say whether `plain` may be asked of the first choice's text."""
        run = self.runs.get(0)
        return run is not None and _is_idle(run) and run.begun and not (run.apart or run.reasoning)

    def plain(self, event: Text) -> int:
        """Take a text whose choice is idle, if the entries are the text as they stand. Hot.

        Of an entry whose own token is not known the alternative that is the text is it. Returns how
        many entries there are, 0 if they are not the text.
        """
        text, lp = event.text, event.lp
        if lp is None or not lp.entries:
            return 0
        entries, entry, size = lp.entries, lp.entries[0], len(lp.entries)
        if lp.sampled:
            token = entry.token if size == 1 else "".join([each.token for each in entries])
            if token != text or not lp.plain:
                return 0
        else:
            for row in entry.top_logprobs if size == 1 else ():
                if row.token == text and row.bytes != NULL:
                    entry.token, entry.logprob, entry.bytes = text, row.logprob, row.bytes
                    break
            else:
                return 0
        self.counts.entries += size
        for each in entries:
            if len(each.top_logprobs) > self.k:
                if self.runs[event.choice].trim(entries):
                    event.raw = None
                break
        return size

    def _run(self, choice: int) -> Run:
        run = self.runs.get(choice)
        if run is None:
            run = self.runs[choice] = Run(self.exchange, choice, self.budget)
        return run

    def _text(self, event: Text, events: list[Event], out: list[Event]) -> None:
        run = self._run(event.choice)
        lp = event.lp
        if lp is not None and lp.late and run.any:
            return  # they came with the text
        if _is_idle(run) and self.plain(event):
            run.any = run.begun = True
            run.apart, run.reasoning = False, ""
            out.append(event)
            return
        if lp is None or not lp.entries:
            run.given = run.given or lp is not None
            event.lp = lp = None
            if not run.waiting and not run.any:
                run.bare += event.text
                if event.text:
                    out.append(event)
                return
        else:
            run.any = True
            self.counts.entries += len(lp.entries)
        alone = lp is not None and not run.waiting and not run.held
        if lp is not None and lp.late:
            self._grant(len(run.bare.encode()) + len(lp.entries))
            run.add_late(lp, out)
            return
        self._grant(len(event.text.encode()) + (len(lp.entries) if lp is not None else 0))
        before, size = self.notes.changes, len(out)
        whole = lp is not None and lp.whole
        run.cut = whole and any(
            type(x) is Finish and x.choice == event.choice and x.reason == "length" for x in events
        )
        run.add(event.text, lp, out, last=whole)
        if alone and self.notes.changes == before and len(out) > size and not run.waiting:
            event.lp = out[-1].lp  # type: ignore[union-attr]
            out[-1] = event  # its bytes may still go out as they are

    def _grant(self, size: int) -> None:
        """Let the alignments look at so many more states as text and entries of a size may take."""
        more = min(EACH * size, BUDGET - self.granted)
        self.granted += more
        self.budget.left += more

    def _reason(self, event: Reasoning, alone: Text | None, out: list[Event]) -> None:
        run = self._run(event.choice)
        run.pause(out)
        given = alone.lp.entries if alone and alone.lp and alone.choice == event.choice else []
        self.counts.reasoned += len(given)
        run.reason(event.text, given)

    def _end(self, event: End | Fault, out: list[Event]) -> None:
        # Told once an answer: a choice that had entries lacks some, or no choice had any at all.
        had = bare = lacking = False
        for run in self.runs.values():
            if type(event) is End:
                run.finish(None, out, clean=event.clean)
                run.tell(out)
            else:
                run.close(out, cut=True)
            had = had or run.any
            bare = bare or run.bare != ""
            lacking = lacking or (run.any and run.bare != "")
        if lacking:
            self.notes.add("logprobs_incomplete")
        if bare and not had:
            self.notes.add("logprobs_missing")


def _is_idle(run: Run) -> bool:
    """Say whether nothing that came before may be of the next text, or tells how to read it."""
    return run.spelling is None and not run.waiting and not run.bare
