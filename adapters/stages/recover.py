"""Recovery: tool calls and thinking that the backend left in the text become what they are.

Only where the backend's `recover` names them. Text passes as it comes until a mark may begin; from
there it is held until the markup is whole, and then it is a call, or reasoning; what turns out to
be neither (never closed, no JSON, a tool that is not offered) is content, untouched. What is
decided depends on the text alone, so a body and every cut of its stream come out alike.

    state      text                              mark of a call or thought     the answer's end
    text       write it, hold what may begin     -> markup                     write it
               a mark, and leading white space   `<think>` first: -> thinking
    markup     hold it until its closing mark:   -                             read it: a call, or
               a call or a thought, or content                                 content
    thinking   reasoning as it comes, until its  -                             reasoning
               closing mark

Thinking that begins the answer is reasoning even if the limit cuts it. With `opened_thinking` an
answer begins within it, since the template opened it and the text has a closing mark alone; without
that such text stays content, as a stream cannot know what it has written before.

White space around a thought, and beside a call where there is nothing else, is no content. Entries
of logprobs go on with the text they came with, or at once where that is held; those of markup and
thoughts so are outside the content (stage tiling).
"""

from __future__ import annotations

import re

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
from wellspoken.adapters.markup.call_json import ENDS, Calls, Unfinished
from wellspoken.adapters.markup.markups import (
    AFTER_CALL,
    AFTER_THOUGHT,
    BARE,
    MARKS,
    THOUGHTS,
    Markup,
    may_be_bare,
    read_beginning,
    read_calls,
)
from wellspoken.adapters.stages.stop import opening_size
from wellspoken.adapters.tokens.table import NULL

_OPENED = "<think>"  # what a template writes at the end of a prompt, so that the answer lacks it
UNDECIDED = 512  # characters after which what may still be a call without a mark is taken for none
TRIES = 64  # marks of an answer that may turn out to be none; what comes after them is content

Output = tuple[str | Calls, bool, int]
"""Content, a thought (True) or calls, and where in the text at hand it ends."""


class RecoverStage:
    """The stage; one for an answer whose backend's `recover` is in effect."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        thinks = exchange.recover & {"thinking", "opened_thinking"}
        self.marks = MARKS[bool(exchange.schemas), bool(thinks)]
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
            choice = self.choices[number] = _Choice(self, number)
        return choice


class _Choice:
    """One choice: `held` text, of which `lead` characters of white space come before the markup.

    `tail`: the end of what is held, in which a closing mark may begin. `thinking`: the mark that
    closes the thought at hand; `thought`: some of it was written; `marked`: a mark opened it.
    `fresh`: since the beginning, a call or a thought (`found`) no content came but white space.
    `line`: what was written ends one. `heard`: reasoning that no thought said, without white space.
    """

    def __init__(self, stage: RecoverStage, number: int) -> None:
        self.exchange = stage.exchange
        self.marks = stage.marks
        self.number = number
        self.held: list[str] = []
        self.tail = ""
        self.lead = 0
        self.markup: Markup | None = None
        self.viable = False
        opened = "opened_thinking" in stage.exchange.recover
        self.thinking = THOUGHTS[_OPENED] if opened else ""
        self.thought = False
        self.marked = False
        self.fresh = True
        self.found = False
        self.line = True
        self.called = False
        self.tries = TRIES
        self.outputs: list[Output] = []
        self.heard: list[str] = []

    def take(self, event: Text, out: list[Event]) -> None:
        """Add what becomes of a piece of text."""
        text = event.text
        if self._only_waits(text):
            if event.lp is not None:
                out.append(Text(self.number, "", event.lp))
            return
        if not (self.held or self.thinking or self.fresh) and not self._may_mark(text):
            self.line = text.endswith("\n")
            out.append(event)
            return
        before = "".join(self.held)
        self._read(before + text, False)
        if len(self.outputs) == 1 and self.outputs[0] == (text, False, len(text)):
            out.append(event)  # its bytes may still go out as they are
        else:
            self._write(_Entries(event, before + text, len(before)), out)
        self.outputs = []

    def hear(self, reasoning: str) -> None:
        """Take the text for content, since reasoning came apart; MiniMax-M3 tells it in both."""
        if not self.thought and not self.held:
            self.thinking = ""
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
        if self.held or self.thinking:
            self._read("".join(self.held), True)
            self._write(None, out)
            self.outputs = []

    def _only_waits(self, text: str) -> bool:
        """Hold a text that does not end the markup at hand."""
        markup = self.markup
        if markup is None or (markup is BARE and not self.viable):
            return False
        if markup.closing:
            window = self.tail + text
            if markup.closing in window:
                return False
            self.tail = window[1 - len(markup.closing) :]
        self.held.append(text)
        return True

    def _may_mark(self, text: str) -> bool:
        return bool(self.marks.pattern.search(text) or self.marks.begins(text))

    def _read(self, text: str, last: bool) -> None:
        """Read all of a text, but for what has to wait; `last`: nothing follows it."""
        self.held = []
        at = 0
        while at >= 0:
            if self.thinking:
                at = self._think(text, at, last)
            elif self.markup is not None:
                at = self._close(self.markup, text, at, last)
            else:
                at = self._open(text, at, last)

    def _hold(self, text: str) -> int:
        if text:
            self.held = [text]
        self.tail = text[1 - len(self.markup.closing) :] if self.markup is not None else ""
        return -1

    def _add(self, text: str, end: int) -> int:
        """Add content that ends there."""
        if self.fresh and self.found:
            text = text.lstrip()
        if text:
            before = ""
            if self.outputs and not self.outputs[-1][1]:
                before = str(self.outputs.pop()[0])
            self.outputs.append((before + text, False, end))
            self.fresh = False
            self.line = text.endswith("\n")
        return end

    def _recover(self, what: str | Calls, end: int) -> int:
        """Add a thought or calls that end there."""
        if what:
            self.outputs.append((what, True, end))
        self.fresh = self.found = True
        self.markup = None
        self.lead = 0
        return end

    def _open(self, text: str, at: int, last: bool) -> int:
        """Write content up to the next mark, and begin what it opens."""
        found = self._next_mark(text, at) if self.tries else None
        begin = found.start() if found is not None else len(text)
        rest = text[at:].lstrip() if self.fresh and self.tries else ""
        if rest.startswith(("{", "[")) and self.exchange.schemas and begin > len(text) - len(rest):
            if last or rest not in self.marks.beginnings:
                self.markup, self.viable = BARE, False
                self.lead = len(text) - len(rest) - at
                return at
        if found is None and not last and self.tries:
            begin -= self.marks.begins(text[at:])
        if self.fresh and not text[at:begin].strip():
            if found is None:
                if last and not self.found:
                    self._add(text[at:begin], begin)
                return -1 if last else self._hold(text[at:])
            self.lead = begin - at
        else:
            at = self._add(text[at:begin], begin)
            self.lead = 0
        if found is None:
            return self._hold(text[begin:])
        if found[0] in ENDS:
            return self._pass_end(text, at, found, last)
        if found[0] == AFTER_CALL or found[0] in AFTER_THOUGHT:
            known = self.fresh and (self.called if found[0] == AFTER_CALL else self.found)
            return found.end() if known else self._add(text[at : found.end()], found.end())
        if found[0] in THOUGHTS and self.fresh:
            self.thinking, self.thought, self.lead = THOUGHTS[found[0]], False, 0
            self.marked = True
            return found.end()
        self.markup = self.marks.markups[found[0]]
        return at

    def _pass_end(self, text: str, at: int, found: re.Match[str], last: bool) -> int:
        """Leave out what ends a turn in which something was found, unless content is behind it."""
        if self.found and self.fresh:
            return found.end()
        if self.found and not text[found.end() :].strip():
            return len(text) if last else self._hold(text[found.start() :])
        return self._add(text[at : found.end()], found.end())

    def _next_mark(self, text: str, at: int) -> re.Match[str] | None:
        """Return the next mark; one of a thought begins a line."""
        for found in self.marks.pattern.finditer(text, at):
            begin = found.start()
            line = text[begin - 1] == "\n" if begin else self.line
            if found[0] not in THOUGHTS or line or (self.fresh and not text[at:begin].strip()):
                return found
        return None

    def _close(self, markup: Markup, text: str, at: int, last: bool) -> int:
        """Recover the markup that stands there, if it is whole; write what is none."""
        begin = at + self.lead
        if markup is BARE and not self.viable:
            known = may_be_bare(text[begin:], self.exchange.schemas)
            if known is None and not last and len(text) - begin < UNDECIDED:
                return self._hold(text[at:])
            self.viable = bool(known)
            if not known:
                return self._give_back(markup, text, at)
        end = text.find(markup.closing, begin) if markup.closing else -1
        while end >= 0:
            end += len(markup.closing)
            if markup.opening in THOUGHTS:
                inner = text[begin + len(markup.opening) : end - len(markup.closing)]
                self.exchange.notes.add("thinking_recovered")
                return self._recover(inner.strip(), end)
            try:
                calls = read_calls(markup, text[begin:end], self.exchange.schemas)
            except Unfinished:
                self.tries -= 1
                end = text.find(markup.closing, end) if self.tries else -1
                continue
            return self._call(calls, end) if calls else self._give_back(markup, text, at)
        if not last and self.tries:
            return self._hold(text[at:])
        try:
            calls = read_calls(markup, text[begin:], self.exchange.schemas)
        except Unfinished:
            calls = []
        end = len(text)
        if not calls and markup is not BARE:
            calls, end = read_beginning(markup, text[begin:], self.exchange.schemas)
            end += begin
        return self._call(calls, end) if calls else self._give_back(markup, text, at)

    def _call(self, calls: Calls, end: int) -> int:
        self.exchange.notes.add("tool_calls_recovered", len(calls))
        self.called = True
        return self._recover(calls, end)

    def _give_back(self, markup: Markup, text: str, at: int) -> int:
        """Write the opening of what is no markup, and go on behind it."""
        end = at + self.lead + max(len(markup.opening), 1)
        self.tries = max(self.tries - 1, 0)
        self.markup = None
        self.lead = 0
        return self._add(text[at:end], end)

    def _think(self, text: str, at: int, last: bool) -> int:
        """Write a thought as far as it is known, without the white space around it."""
        if not self.thought:
            at = len(text) - len(text[at:].lstrip())
            if _OPENED.startswith(text[at:]) and not last:
                return self._hold(text[at:])
            if text.startswith(_OPENED, at):  # said by the model too
                at = at + len(_OPENED)
                at = len(text) - len(text[at:].lstrip())
        end = text.find(self.thinking, at)
        size = 0 if end >= 0 or last else opening_size(text[at:], (self.thinking,))
        part = text[at : end if end >= 0 else len(text) - size].rstrip()
        self.thought = self.thought or bool(part)
        if part:
            self.outputs.append((part, True, at + len(part)))
        if end < 0 and not last:
            return self._hold(text[at + len(part) :])
        if end >= 0 or self.thought or self.marked:
            self.exchange.notes.add("thinking_recovered")
        self.marked = False
        end = end + len(self.thinking) if end >= 0 else -1
        self.thinking, self.thought = "", False
        self.fresh = self.found = True
        return end

    def _write(self, entries: _Entries | None, out: list[Event]) -> None:
        """Write what was recovered and the content between, each with its entries."""
        for what, recovered, end in self.outputs:
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
    """The entries of a text at hand, of which the first `held` characters came before.

    Those whose bytes are not the text's go with its first content.
    """

    def __init__(self, event: Text, text: str, held: int) -> None:
        self.lp = event.lp
        self.text = text
        self.at = len(text[:held].encode())
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
