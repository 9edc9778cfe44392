"""A response's output items, folded from the events of its only choice.

    open item     reasoning      text, refusal              a call's head    a call's piece
    none          new item       new item                   new item         -
    reasoning     same part      new item                   new item         -
    message       new item       same item, part by kind    new item         -
    a call        waits          waits                      new item         same item

One item is open at a time, as in OpenAI's streams. What is said while a call is open waits for the
call's end, which the next one's head or the answer's end tells: servers put text between a call's
pieces. Body and stream are one fold: a stream's events are written as the fold goes on, from what
it keeps.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, DecodeError, Raw, Struct, field, json

from wellspoken.adapters.events import Reason, Reasoning, Refusal, Text, ToolDelta
from wellspoken.adapters.exchange import Notes, OfferedTool, ResponseFacts
from wellspoken.adapters.writers.base_writers import encode
from wellspoken.adapters.writers.response_events import (
    REASONING,
    REFUSAL,
    TEXT,
    PartKind,
    ResponseEvents,
)
from wellspoken.adapters.writers.response_objects import (
    EMPTY,
    NOTHING,
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputMessage,
    OutputReasoning,
    OutputReasoningPart,
    OutputRefusalPart,
    OutputTextPart,
)

Said = Text | Reasoning | Refusal

CUT: Final = ("length", "content_filter")
"""Reasons for which an answer is incomplete."""

PREFIXES: Final = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


NO_BYTES: Final = b'"bytes":null'
"""Of an entry whose bytes are not known; here they are a list, so there are none.

It cannot stand in a string, in which a quotation mark has a backslash before it.
"""


MANY: Final = 512
"""Pieces of a text after which they are joined: single ones take several times their size."""


class OpenString(Struct, eq=False):
    """A text that is being said: JSON strings of what was `joined`, and of the `last` pieces."""

    joined: list[bytes] = []
    last: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Keep a piece. Hot."""
        last = self.last
        last.append(piece)
        if len(last) >= MANY:
            self.joined.append(join_strings(last))
            self.last = []

    def write(self) -> bytes:
        """Return the JSON of the text."""
        return join_strings([*self.joined, *self.last])


class OpenPart(Struct, eq=False):
    """A part that is being said; `scores`: lists of its entries, as JSON."""

    kind: PartKind
    text: OpenString
    scores: list[bytes]

    def write(self) -> tuple[bytes, bytes, bytes]:
        """Return the JSON of the text, of the entries, and of the part."""
        entries = b",".join([scores[1:-1] for scores in self.scores])
        text, scores = self.text.write(), b"".join((b"[", entries, b"]"))
        return text, scores, write_part(self.kind, text, scores)


def join_strings(pieces: list[bytes]) -> bytes:
    """Return the JSON of a text, which the strings of these are the pieces of."""
    return b"".join((b'"', *[piece[1:-1] for piece in pieces], b'"'))


class OpenItem(Struct, eq=False):
    """An item that is being said.

    Of a call: `name` is the backend's, and `tool` what the client calls it, if that is another.
    """

    id: str
    type: str
    content: list[Raw] = []
    call_id: str = ""
    name: str = ""
    tool: OfferedTool | None = None
    arguments: OpenString = field(default_factory=OpenString)

    @property
    def is_call(self) -> bool:
        """Whether it calls a tool."""
        return self.type in ("function_call", "custom_tool_call")


def write_part(kind: PartKind, text: bytes, scores: bytes) -> bytes:
    """Return the JSON of a content part; `text` a JSON string, `scores` a list."""
    if kind is TEXT:
        return encode(OutputTextPart(Raw(text), NOTHING, Raw(scores)))
    return encode((OutputRefusalPart if kind is REFUSAL else OutputReasoningPart)(Raw(text)))


def write_item(item: OpenItem, status: ItemStatus, said: Raw = EMPTY) -> bytes:
    """Return the JSON of an item; `said`: a call's arguments, or a custom one's input."""
    if item.type == "message":
        return encode(OutputMessage(item.id, item.type, status, "assistant", item.content))
    if item.type == "reasoning":
        return encode(OutputReasoning(item.id, item.type, NOTHING, item.content, status))
    name = item.tool.name if item.tool is not None else item.name
    namespace = (item.tool.namespace if item.tool is not None else None) or UNSET
    kind = OutputCall if item.type == "function_call" else OutputCustomCall
    return encode(kind(item.id, item.type, status, item.call_id, name, said, namespace))


class OutputItems:
    """Events in; `finish` or `cut_off` gives the items. `events`: where each step is written."""

    def __init__(
        self, facts: ResponseFacts, notes: Notes, events: ResponseEvents | None = None
    ) -> None:
        self.facts = facts
        self.notes = notes
        self.events = events
        self.output: list[Raw] = []  # items that are over
        self.item: OpenItem | None = None
        self.part: OpenPart | None = None
        self.waiting: list[Said] = []
        self.answered = False  # by more than reasoning

    def add(self, event: Said | ToolDelta) -> None:
        """Fold a piece."""
        if isinstance(event, ToolDelta):
            self._call(event)
        elif self.part is None and self.item is not None and self.item.is_call:
            if event.text or _has_entries(event):
                self.waiting.append(event)
        else:
            self._say(event)

    def add_text(self, event: Text) -> None:
        """Fold a piece of text. Hot."""
        part = self.part
        if part is None or part.kind is not TEXT:
            self.add(event)
            return
        entries = event.lp.entries if event.lp is not None else None
        if not event.text and not entries:
            return
        text = encode(event.text)
        part.text.add(text)
        if entries:
            scores = encode(entries)
            if b"u" in scores and NO_BYTES in scores:  # to look for one character is much faster
                scores = scores.replace(NO_BYTES, b'"bytes":[]')
            part.scores.append(scores)
            if self.events is not None:
                self.events.delta_scored(text, scores)
        elif self.events is not None:
            self.events.delta(text)

    def _say(self, event: Said) -> None:
        if type(event) is Text:
            if event.text or _has_entries(event):
                self._make_part(TEXT)
                self.add_text(event)
            return
        kind = REASONING if type(event) is Reasoning else REFUSAL
        if _has_entries(event):
            self.notes.drop("logprobs.refusal")  # that part has none
        if event.text:
            text = encode(event.text)
            self._make_part(kind).text.add(text)
            if self.events is not None:
                self.events.delta(text)

    def _make_part(self, kind: PartKind) -> OpenPart:
        """Return the open part if it is of this kind, else a new one."""
        part = self.part
        return part if part is not None and part.kind is kind else self._open_part(kind)

    def _call(self, event: ToolDelta) -> None:
        """Fold a piece of a call, which with a name is its first one."""
        if event.name is not None:
            self._release()
            self._close("completed")
            self._open_call(event.name, event.id or "")
        item = self.item
        assert item is not None and item.is_call  # the calls stage gives one call after another
        if event.arguments:
            arguments = encode(event.arguments)
            item.arguments.add(arguments)
            if self.events is not None and item.type == "function_call":
                self.events.delta(arguments)
            elif self.events is not None:
                self.events.said += len(arguments)

    def _open_call(self, name: str, call_id: str) -> None:
        tool = self.facts.tools.get(name)
        item = self._open_item("custom_tool_call" if tool and tool.custom else "function_call")
        item.call_id, item.name, item.tool = call_id, name, tool
        self._tell_item(item)
        if self.events is not None and item.type == "function_call":
            self.events.add_call()

    def _open_item(self, type: str) -> OpenItem:
        id = self.facts.item_id(PREFIXES[type], len(self.output))
        self.answered = self.answered or type != "reasoning"
        self.item = OpenItem(id, type)
        return self.item

    def _tell_item(self, item: OpenItem) -> None:
        if self.events is not None:
            self.events.add_item(item.id, len(self.output), write_item(item, "in_progress"))

    def _open_part(self, kind: PartKind) -> OpenPart:
        type = "reasoning" if kind is REASONING else "message"
        item = self.item
        if item is None or item.type != type:
            self._close("completed")
            item = self._open_item(type)
            self._tell_item(item)
        else:
            self._close_part(item)
        self.part = OpenPart(kind, OpenString(), [])
        if self.events is not None:
            empty = write_part(kind, b'""', b"[]")
            self.events.add_part(kind, len(item.content), empty)
        return self.part

    def _close_part(self, item: OpenItem, *, tell: bool = True) -> None:
        part, self.part = self.part, None
        if part is None:
            return
        text, scores, data = part.write()
        item.content.append(Raw(data))
        if tell and self.events is not None:
            self.events.end_part(part.kind, text, scores, data)

    def _close(self, status: ItemStatus, *, tell: bool = True) -> None:
        """End the open item, if there is one; `tell` False: its end is not written."""
        item, self.item = self.item, None
        if item is None:
            return
        self._close_part(item, tell=tell)
        said = EMPTY
        if item.is_call:
            said = self._said(item)
        data = write_item(item, status, said)
        self.output.append(Raw(data))
        if self.events is not None:
            self._tell_end(item, data, bytes(said), self.events, tell=tell)

    def _tell_end(
        self, item: OpenItem, data: bytes, said: bytes, events: ResponseEvents, *, tell: bool
    ) -> None:
        """Write an item's end if that is to be told, and what of it was not written before."""
        if item.type == "custom_tool_call":
            events.give_input(said)
        if not tell:
            return
        if item.type == "custom_tool_call":
            events.end_custom_call(said)
        elif item.type == "function_call":
            name = item.tool.name if item.tool is not None else item.name
            events.end_call(encode(name), said)
        events.end_item(data)

    def _said(self, item: OpenItem) -> Raw:
        """Return what a call says, as a JSON string: its arguments, or a custom one's input."""
        arguments = Raw(item.arguments.write())
        if item.type == "function_call" or arguments == EMPTY:
            return arguments
        try:
            given = json.decode(json.decode(arguments, type=str), type=dict[str, Raw])
            said = json.decode(given.pop("input", b""), type=str) if given else ""
        except DecodeError:
            self.notes.add("custom_tool_input_not_json")
            return arguments
        for key in given:
            self.notes.drop(key)
        return Raw(encode(said))

    def _release(self, *, cut: bool = False) -> None:
        """End the open call and say what waited for that; `cut`: the answer is, here."""
        waiting, self.waiting = self.waiting, []
        if waiting and self.item is not None:
            broken = cut and not _is_json(self.item.arguments.write())
            self._close("incomplete" if broken else "completed")
        for event in waiting:
            self._say(event)

    def finish(self, reason: Reason) -> list[Raw]:
        """End what is open, and return all items; there is a message or a call among them.

        But where the limit came while the model was still thinking.
        """
        cut = reason in CUT
        self._release(cut=cut)
        nothing = self.item is None and not self.output
        if not self.answered and (nothing or reason != "length"):
            self._close("completed")
            self._open_part(TEXT)
        self._close("incomplete" if cut else "completed")
        return self.output

    def cut_off(self) -> list[Raw]:
        """Return all items of an answer that has failed; of the open one no end is written."""
        self._release(cut=True)
        self._close("incomplete", tell=False)
        return self.output


def _has_entries(event: Said) -> bool:
    return not isinstance(event, Reasoning) and event.lp is not None and bool(event.lp.entries)


def _is_json(text: bytes) -> bool:
    """Say whether arguments, themselves a JSON string, are JSON."""
    try:
        json.decode(json.decode(text, type=str))
    except DecodeError:
        return False
    return True
