"""Stop (contract, "Requests"): the content ends before the first stop string, whoever enforces it.

Most backends cut there already; some leave the stop string in, some honour only the first few.
Text is held back only while it may be the beginning of a stop string, so a stream waits for less
than the longest one. Entries run ahead of held text; the tiling stage cuts them to what is written.
A reason beside text waits with it, since servers that put one there may put it on every chunk, and
a stop string may go on behind it.

With vLLM's and SGLang's `include_stop_str_in_output` the text ends behind the stop string instead.
Then nothing is held back: all that a stop string may begin with is the client's anyway.
"""

from __future__ import annotations

from wellspoken.adapters.events import End, Event, Extra, Fault, Finish, Text, ToolDelta
from wellspoken.adapters.exchange import Exchange


class StopStage:
    """The stage; one for an answer whose request named stop strings."""

    def __init__(self, exchange: Exchange) -> None:
        self.notes = exchange.notes
        self.stops = tuple(stop for stop in exchange.stops if stop)
        self.n = exchange.n
        self.held: dict[int, str] = {}
        self.waiting: dict[int, Finish] = {}  # reasons that came beside what is held
        self.bare: set[int] = set()  # choices of which what is held came without entries
        self.prompts = Prompts(exchange) if exchange.echo and not exchange.echoed else None
        self.stopped: set[int] = set()
        self.keeps = exchange.keeps_stop
        self.enforced = exchange.enforced
        self.most = max(map(len, self.stops), default=1) - 1  # of a stop string that is not whole
        self.ended: set[int] = set()  # with its stop string, though not told so yet

    @property
    def over(self) -> bool:
        """Whether every choice that was asked for has met a stop string."""
        return len(self.stopped) >= self.n

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events up to each choice's first stop string, which ends it."""
        out: list[Event] = []
        for event in events:
            choice = getattr(event, "choice", None)
            if choice in self.stopped and _goes_on(event):
                continue
            if type(event) is Text:
                (self._keep if self.keeps else self._text)(event, out)
                continue
            if choice in self.ended and isinstance(event, ToolDelta | Finish):
                self._end(event, out)
                continue
            if self.keeps:
                out.append(event)
                continue
            if type(event) is Finish and not event.alone and choice in self.held:
                self.waiting[event.choice] = event
                continue
            if type(event) is Finish or type(event) is ToolDelta:
                self._release(event.choice, out)
            elif type(event) is End or type(event) is Fault:  # a chunk's counts end nothing
                for held in list(self.held):
                    self._release(held, out)
            out.append(event)
        return out

    def _text(self, event: Text, out: list[Event]) -> None:
        if event.lp is not None and event.lp.late:  # they are of what is held too, and came behind
            self._release(event.choice, out)
            out.append(event)
            return
        begin = self.prompts.take(event) if self.prompts is not None else 0
        if begin is None or 0 < begin == len(event.text):
            out.append(event)
            return
        before = self.held.pop(event.choice, "")
        text = before + event.text
        found = self._find(text, begin)
        if found is not None:
            self.notes.add("stop_enforced")
            self.stopped.add(event.choice)
            self.waiting.pop(event.choice, None)
            self._write(event, before, text[: found[1]], out)
            out.append(Finish(event.choice, "stop", False))
            return
        whole = event.lp is not None and event.lp.whole  # a body's: no more text is to come
        size = 0 if whole else opening_size(text[begin:], self.stops)
        if not before and not size:
            out.append(event)
            return
        self._write(event, before, text[: len(text) - size], out)
        if size:
            self.held[event.choice] = text[len(text) - size :]
            if event.lp is None or not event.lp.entries:
                self.bare.add(event.choice)
        else:
            self._release(event.choice, out)

    def _write(self, event: Text, before: str, text: str, out: list[Event]) -> None:
        """Write a piece behind what was held, alone where that is bare: its entries are its own."""
        if event.choice in self.bare:
            self.bare.remove(event.choice)
            if event.lp is not None and len(text) > len(before):
                out.append(Text(event.choice, before))
                text = text[len(before) :]
        out.append(Text(event.choice, text, event.lp))

    def _keep(self, event: Text, out: list[Event]) -> None:
        """Write the text up to the end of the first stop string; `held` is what was written."""
        choice = event.choice
        begin = self.prompts.take(event) if self.prompts is not None else 0
        if begin is None:
            out.append(event)
            return
        if choice in self.ended:
            if event.text:
                self._cut(choice, out)
            else:
                out.append(event)
            return
        before = self.held.get(choice, "")
        text = before + event.text[begin:]
        found = self._find(text, 0)
        if found is None:
            self.held[choice] = text[max(len(text) - self.most, 0) :]
            out.append(event)
            return
        self.ended.add(choice)
        size = found[0] - len(before) + begin
        if size == len(event.text):
            out.append(event)
        else:
            out.append(Text(choice, event.text[:size], event.lp))
        if size < len(event.text) or self.enforced:
            self._cut(choice, out)

    def _cut(self, choice: int, out: list[Event]) -> None:
        """End a choice whose text went on behind its stop string."""
        self.notes.add("stop_enforced")
        self.stopped.add(choice)
        out.append(Finish(choice, "stop", False))

    def _end(self, event: ToolDelta | Finish, out: list[Event]) -> None:
        """Write the end of a choice that its backend ended with its stop string, as a stop."""
        if type(event) is Finish and event.reason == "stop":
            out.append(event)
        else:
            self._cut(event.choice, out)

    def _find(self, text: str, begin: int) -> tuple[int, int] | None:
        """Return the end and the start of the stop string that is the first to be complete."""
        places = ((text.find(stop, begin), stop) for stop in self.stops)
        return min(((at + len(stop), at) for at, stop in places if at >= 0), default=None)

    def _release(self, choice: int, out: list[Event]) -> None:
        held, reason = self.held.pop(choice, ""), self.waiting.pop(choice, None)
        self.bare.discard(choice)
        if held:
            out.append(Text(choice, held))
        if reason is not None:
            out.append(reason)


def _goes_on(event: Event) -> bool:
    """Say whether an event is of what a model went on to write."""
    if type(event) is Extra:
        return event.key == "token_ids"
    return isinstance(event, Text | ToolDelta | Finish)


def opening_size(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that begins a stop string or another mark."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest


class Prompts:
    """What is still to come of the prompts that a backend echoes; stops are none of their affair.

    The text begins with its prompt (stage echo), except for white space that a tokenizer dropped.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.left: dict[int, str] = {}

    def take(self, event: Text) -> int | None:
        """Return how much of a text is its prompt's; None where the prompt's text is not known."""
        prompt = self.exchange.prompt_of(event.choice)
        if prompt is None:
            return None  # token ids: the backend alone can tell, and it was told the stops
        text, lead = event.text, 0
        left = self.left.get(event.choice)
        if left is None:
            left = prompt.lstrip()
            lead = len(text) - len(text.lstrip()) if left else 0
            left = left or prompt
            if lead == len(text):
                return lead
        size = min(len(left), len(text) - lead)
        self.left[event.choice] = left[size:]
        return lead + size
