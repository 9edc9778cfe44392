"""Recovery: tool calls and thinking that the backend left in the text become what they are.

Only where the backend's `recover` names them; `markup/scanner.py` says what is one. Entries of
logprobs go on with the text they came with, or at once where that is held; those of markup and
thoughts so are outside the content (stage tiling). A thought that came as reasoning too is told
once.
"""

from __future__ import annotations

from msgspec import json

from wellspoken.adapters.events import (
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
from wellspoken.adapters.markup.scanner import Output, Scanner
from wellspoken.adapters.tokens.table import NULL


class RecoverStage:
    """The stage; one for an answer whose backend's `recover` is in effect."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.choices: dict[int, _Choice] = {}

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with what leaked into the text recovered."""
        out: list[Event] = []
        for event in events:
            if type(event) is Text and event.text:
                self._choice(event.choice).take(event, out)
                continue
            if type(event) is End or type(event) is Fault:
                for choice in self.choices.values():
                    choice.end(out)
            elif isinstance(event, ToolDelta | Refusal) or (type(event) is Finish and event.alone):
                if event.choice in self.choices:
                    self.choices[event.choice].end(out)
            elif type(event) is Reasoning:
                self._choice(event.choice).hear(event.text)
            out.append(event)
        return out

    def _choice(self, number: int) -> _Choice:
        choice = self.choices.get(number)
        if choice is None:
            choice = self.choices[number] = _Choice(self.exchange, number)
        return choice


class _Choice:
    """One choice; `heard`: reasoning that no thought said, without white space."""

    def __init__(self, exchange: Exchange, number: int) -> None:
        self.exchange = exchange
        self.number = number
        self.scanner = Scanner(exchange)
        self.heard: list[str] = []

    def take(self, event: Text, out: list[Event]) -> None:
        """Add what becomes of a piece of text."""
        text, outputs = self.scanner.feed(event.text)
        if outputs == [(event.text, False, len(event.text))]:
            out.append(event)  # its bytes may still go out as they are
        else:
            self._write(outputs, _Entries(event, text), out)

    def hear(self, reasoning: str) -> None:
        """Remember reasoning that came apart; MiniMax-M3 tells it in the text too."""
        self.scanner.expect_content()
        self.heard.append("".join(reasoning.split()))

    def _was_heard(self, thought: str) -> bool:
        """Say whether the backend told a thought as reasoning."""
        self.heard = ["".join(self.heard)]
        squeezed = "".join(thought.split())
        if not self.heard[0].startswith(squeezed):
            return False
        self.heard = [self.heard[0][len(squeezed) :]]
        return True

    def end(self, out: list[Event]) -> None:
        """Add what becomes of the text that is held, since nothing follows it."""
        self._write(self.scanner.end(), None, out)

    def _write(self, outputs: list[Output], entries: _Entries | None, out: list[Event]) -> None:
        """Write what was recovered and the content between, each with its entries."""
        for what, recovered, end in outputs:
            lp = entries.take(end, not recovered) if entries is not None else None
            if not recovered and isinstance(what, str):
                out.append(Text(self.number, what, lp))
                continue
            if lp is not None:
                out.append(Text(self.number, "", lp))
            if isinstance(what, str):
                if self._was_heard(what):
                    self.exchange.notes.add("thinking_repeated")
                    continue
                if not self.exchange.keeps("reasoning_content"):
                    self.exchange.notes.drop("reasoning_content")  # the writer leaves it out
                out.append(Reasoning(self.number, what))
                continue
            for name, arguments in what:
                own = "call_" + self.exchange.new_id()
                out.append(ToolDelta(self.number, None, own, name, arguments, leaked=True))
        rest = entries.take() if entries is not None else None
        if rest is not None:
            out.append(Text(self.number, "", rest))


class _Entries:
    """The entries of a text at hand, which came with what it ends with.

    Those whose bytes are not the text's go with its first content.
    """

    def __init__(self, event: Text, text: str) -> None:
        self.lp = event.lp
        self.text = text
        self.at = len(text[: len(text) - len(event.text)].encode())
        self.rest: list[tuple[Entry, int]] = []
        if event.lp is not None:
            spelled = [_bytes_of(entry, event.lp.plain) for entry in event.lp.entries]
            self.rest = list(zip(event.lp.entries, map(len, spelled), strict=True))
            self.apart = b"".join(spelled).startswith(event.text.encode())

    def take(self, end: int | None = None, content: bool = False) -> Logprobs | None:
        """Return the entries that begin before a place in the text; without one all the rest."""
        if self.lp is None:
            return None
        size = len(self.rest)
        if end is not None and (self.apart or not content):
            size = 0
            place = len(self.text[:end].encode()) if self.apart else 0
            while size < len(self.rest) and self.at < place:
                self.at += self.rest[size][1]
                size += 1
        part, self.rest = self.rest[:size], self.rest[size:]
        entries = [entry for entry, _ in part]
        return Logprobs(entries, self.lp.plain, self.lp.sampled) if entries else None


def _bytes_of(entry: Entry, plain: bool) -> bytes:
    if plain or entry.bytes == NULL:
        return entry.token.encode()
    return bytes(_ids(entry.bytes))


_ids = json.Decoder(list[int]).decode
