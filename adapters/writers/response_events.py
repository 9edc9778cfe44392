"""The events of a response's stream: their names, keys and numbers, in OpenAI's order.

One item is open at a time, and one part of it. An event is its name's line, and a line of data
with the name as its first key and the number as the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from wellspoken.adapters.events import Fault
from wellspoken.adapters.writers.base_writers import encode
from wellspoken.adapters.writers.response_objects import ResponseFailure, clean

END: Final = b"}\n\n"
CUSTOM: Final = b"response.custom_tool_call_input"
LISTED: Final = b',"logprobs":'


class PartKind(NamedTuple):
    """A kind of content part: its type, the key of its text, its events' name, if it is scored."""

    type: str
    key: bytes
    name: bytes
    scored: bool = False


TEXT: Final = PartKind("output_text", b"text", b"response.output_text", True)
REFUSAL: Final = PartKind("refusal", b"refusal", b"response.refusal")
REASONING: Final = PartKind("reasoning_text", b"text", b"response.reasoning_text")


class ResponseEvents:
    """Writes the events one by one into `out`, in pieces; `number` is the next one's.

    `opening` gives the response's JSON at its begin, with which the stream begins before its first
    item, so nothing is written before there is something to tell.
    """

    def __init__(self, opening: Callable[[], bytes]) -> None:
        self.out: list[bytes] = []
        self.number = 0
        self.opening = opening
        self.item = b""  # keys of the open item's events
        self.place = 0
        self.part = b""  # keys of the open part's
        self.front = b""  # what stands before a delta's number
        self.behind = b""  # and between that and its text
        self.unscored = b""  # behind a text that has no entries
        self.said = 0  # bytes of texts and entries since `take_growth`, which are kept to the end

    def take(self) -> bytes:
        """Return what was written since it was last taken."""
        out, self.out = self.out, []
        return b"".join(out)

    def size(self) -> int:
        """Return how many bytes that would be."""
        return sum(map(len, self.out))

    def begin(self) -> None:
        """Write that the response was made, and that it is being answered, unless that was."""
        if not self.number:
            response = self.opening()
            self.write_response(b"response.created", response)
            self.write_response(b"response.in_progress", response)

    def write_response(self, name: bytes, response: bytes) -> None:
        """Write an event with the whole response."""
        self._write(name, b',"response":', response)

    def write_error(self, fault: Fault, failure: ResponseFailure) -> None:
        """Write a failure: the keys of the response's own event and, as an object, any error's."""
        param = encode(clean(fault.param) if fault.param is not None else None)
        code, message = encode(failure.code), encode(failure.message)
        said = b'"code":%b,"message":%b,"param":%b' % (code, message, param)
        type = encode(clean(fault.type))
        self._write(b"error", b",", said, b',"error":{"type":', type, b",", said, b"}")

    def add_item(self, id: str, place: int, item: bytes) -> None:
        """Write that an item begins, as it is then."""
        self.begin()
        self.place = place
        self.item = b',"item_id":%b,"output_index":%d' % (encode(id), place)
        self._write(b"response.output_item.added", b',"output_index":%d,"item":' % place, item)

    def add_call(self) -> None:
        """Make the deltas those of the open item's arguments."""
        self._frame(b"response.function_call_arguments", self.item)

    def add_part(self, kind: PartKind, index: int, part: bytes) -> None:
        """Write that a part of the open item begins."""
        self.part = self.item + b',"content_index":%d' % index
        self._write(b"response.content_part.added", self.part, b',"part":', part)
        self._frame(kind.name, self.part, scored=kind.scored)

    def _frame(self, name: bytes, keys: bytes, *, scored: bool = False) -> None:
        name += b".delta"
        self.front = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name)
        self.behind = keys + b',"delta":'
        self.unscored = LISTED + b"[]" + END if scored else END

    def delta(self, text: bytes) -> None:
        """Write a piece of what is open, a JSON string. Hot."""
        number = self.number
        self.number = number + 1
        self.said += len(text)
        self.out.append(b"%b%d%b%b%b" % (self.front, number, self.behind, text, self.unscored))

    def delta_scored(self, text: bytes, entries: bytes) -> None:
        """Write a piece of text with its entries, a list's JSON. Hot."""
        number = self.number
        self.number = number + 1
        self.said += len(text) + len(entries)
        keys = (self.front, number, self.behind, text, LISTED, entries, END)
        self.out.append(b"%b%d%b%b%b%b%b" % keys)

    def end_part(self, kind: PartKind, text: bytes, scores: bytes, part: bytes) -> None:
        """Write that the open part is over: its whole text, a JSON string, its entries, itself."""
        logprobs = (LISTED, scores) if kind.scored else ()
        self._write(kind.name + b".done", self.part, b',"%b":' % kind.key, text, *logprobs)
        self._write(b"response.content_part.done", self.part, b',"part":', part)

    def end_call(self, name: bytes, arguments: bytes) -> None:
        """Write a call's whole arguments; both are JSON strings."""
        keys = (b',"name":', name, b',"arguments":', arguments)
        self._write(b"response.function_call_arguments.done", self.item, *keys)

    def give_input(self, said: bytes) -> None:
        """Write a custom call's input, which is known as a whole only; a JSON string."""
        if said != b'""':
            self._write(CUSTOM + b".delta", self.item, b',"delta":', said)

    def end_custom_call(self, said: bytes) -> None:
        """Write that a custom call's input was all of it."""
        self._write(CUSTOM + b".done", self.item, b',"input":', said)

    def end_item(self, item: bytes) -> None:
        """Write that the open item is over, with all of it."""
        place = b',"output_index":%d,"item":' % self.place
        self._write(b"response.output_item.done", place, item)

    def _write(self, name: bytes, *rest: bytes) -> None:
        begin = b'event: %b\ndata: {"type":"%b","sequence_number":%d' % (name, name, self.number)
        self.out += (begin, *rest, END)
        self.number += 1
