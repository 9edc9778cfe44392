"""A text as it comes, read for the calls and thoughts in it.

Text passes as it comes until a mark may begin; from there it is held until the markup is whole.
What turns out to be none (never closed, no JSON, a tool that is not offered) is content, untouched.
What is decided depends on the text alone, so a body and every cut of its stream are read alike.

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

White space around a thought, and beside a call where there is nothing else, is no content.
"""

from __future__ import annotations

import re

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.markup.call_json import ENDS, FENCE, Calls, Unfinished
from wellspoken.adapters.markup.markups import (
    AFTER_CALL,
    AFTER_THOUGHT,
    BARE,
    CLOSINGS,
    INVOKES,
    MARKS,
    THOUGHTS,
    Markup,
    may_be_bare,
    read_beginning,
    read_calls,
)

_OPENED = "<think>"  # what a template writes at the end of a prompt, so that the answer lacks it
UNDECIDED = 512  # characters after which what may still be a call without a mark is taken for none
TRIES = 64  # marks of an answer that may turn out to be none; what comes after them is content

Output = tuple[str | Calls, bool, int]
"""Content, a thought (True) or calls, and where in the text at hand it ends."""


class Scanner:
    """Reads one choice's text: `held` of it, where `lead` characters of space precede the markup.

    `tail`: the end of what is held, in which a closing mark may begin. `thinking`: the mark that
    closes the thought at hand; `thought`: some of it was told; `marked`: a mark opened it.
    `fresh`: since the beginning, a call or a thought (`found`) no content came but white space.
    `line`: the content so far ends one; `fences`: how many code fences it has, and `ticks`: what of
    another it ends with. `broken`: what stands around `<invoke>`s, or one of them, was no call.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        thinks = exchange.recover & {"thinking", "opened_thinking"}
        self.marks = MARKS[bool(exchange.schemas), bool(thinks)]
        self.held: list[str] = []
        self.tail = ""
        self.lead = 0
        self.markup: Markup | None = None
        self.viable = False
        self.thinking = THOUGHTS[_OPENED] if "opened_thinking" in exchange.recover else ""
        self.thought = False
        self.marked = False
        self.fresh = True
        self.found = False
        self.line = True
        self.fences = 0
        self.ticks = ""
        self.called = False
        self.broken = False
        self.tries = TRIES
        self.outputs: list[Output] = []

    def feed(self, text: str) -> tuple[str, list[Output]]:
        """Return the text at hand, which ends with this one, and what is known of it by now."""
        if self._only_waits(text):
            return text, []
        if not (self.held or self.thinking or self.fresh) and not self._may_mark(text):
            self._follow(text)
            return text, [(text, False, len(text))]
        text = "".join([*self.held, text])
        return text, self._read(text, False)

    def end(self) -> list[Output]:
        """Return what the text that is held is, since nothing follows it."""
        return self._read("".join(self.held), True) if self.held or self.thinking else []

    def expect_content(self) -> None:
        """Take the text for content, since the thought that was to begin it came apart."""
        if not self.thought and not self.held:
            self.thinking = ""

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

    def _read(self, text: str, last: bool) -> list[Output]:
        """Read all of a text, but for what has to wait; `last`: nothing follows it."""
        self.held = []
        self.outputs = []
        at = 0
        while at >= 0:
            if self.thinking:
                at = self._think(text, at, last)
            elif self.markup is not None:
                at = self._close(self.markup, text, at, last)
            else:
                at = self._open(text, at, last)
        return self.outputs

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
            self._follow(text)
        return end

    def _follow(self, content: str) -> None:
        """Remember what content ends with."""
        self.line = content.endswith("\n")
        content = self.ticks + content
        self.fences += content.count(FENCE)
        self.ticks = "`" * ((len(content) - len(content.rstrip("`"))) % len(FENCE))

    def _recover(self, what: str | Calls, end: int) -> int:
        """Add a thought or calls that end there."""
        if what:
            self.outputs.append((what, True, end))
        self.fresh = self.found = True
        self.markup = None
        self.lead = 0
        return end

    def _open(self, text: str, at: int, last: bool) -> int:
        """Tell content up to the next mark, and begin what it opens."""
        found = self._next_mark(text, at) if self.tries else None
        begin = found.start() if found is not None else len(text)
        rest = text[at:].lstrip() if self.fresh and self.tries else ""
        if (
            rest.startswith(("{", "[", "`"))
            and self.exchange.schemas
            and begin > len(text) - len(rest)
        ):
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
        if found[0] in AFTER_CALL or found[0] in AFTER_THOUGHT:
            known = self.fresh and (self.called if found[0] in AFTER_CALL else self.found)
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
        """Return the next mark; one of a thought begins a line, and so does a lone `<invoke>`."""
        for found in self.marks.pattern.finditer(text, at):
            begin, lone = found.start(), found[0] == INVOKES[0]
            line = text[begin - 1] == "\n" if begin else self.line
            begins = line or (self.fresh and not text[at:begin].strip())
            if lone and (self.broken or self._is_fenced(text[at:begin])):
                continue
            if begins or not (lone or found[0] in THOUGHTS):
                return found
        return None

    def _is_fenced(self, content: str) -> bool:
        """Say whether what is behind this content, which is still to be told, is in a fence."""
        return (self.fences + (self.ticks + content).count(FENCE)) % 2 > 0

    def _close(self, markup: Markup, text: str, at: int, last: bool) -> int:
        """Recover the markup that stands there, if it is whole; tell what is none."""
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
        """Tell the opening of what is no markup, and go on behind it."""
        end = at + self.lead + max(len(markup.opening), 1)
        self.tries = max(self.tries - 1, 0)
        self.broken = self.broken or markup.opening in INVOKES
        self.markup = None
        self.lead = 0
        return self._add(text[at:end], end)

    def _think(self, text: str, at: int, last: bool) -> int:
        """Tell a thought as far as it is known, without the white space around it."""
        if not self.thought:
            at = len(text) - len(text[at:].lstrip())
            if _OPENED.startswith(text[at:]) and not last:
                return self._hold(text[at:])
            if text.startswith(_OPENED, at):  # said by the model too
                at = at + len(_OPENED)
                at = len(text) - len(text[at:].lstrip())
        end = text.find(self.thinking, at)
        size = 0 if end >= 0 or last else CLOSINGS[self.thinking].begins(text[at:])
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
