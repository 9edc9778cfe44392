"""Server-sent events from bytes as they arrive: feed and finish, any split, any line ending.

Three decisions carry this module:

- CRLF and CR become LF before anything looks for lines, so there is one line machine. A CR that
  ends a read counts as a line end at once (the event is not delayed) and an LF that opens the next
  read is then its second half.
- What servers really send, whole `data: {...}\\n\\n` blocks, is cut with one memchr an event
  (`bytes.find` of one byte, ten times as fast as a split); only what is not of that shape goes
  through the line machine. Both give the same events.
- Lines end in CR and LF alone: U+2028, U+0085 and form feeds are text (`splitlines` cuts there).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

CAP: Final = 16 * 1024 * 1024
"""Largest event in bytes; prompt_logprobs of a long prompt reach several MiB in one event."""

_BOM: Final = b"\xef\xbb\xbf"
_LF: Final = 10
_CR: Final = 13


class ServerEvent(Struct, gc=False):
    """One event: its `data` lines joined by LF, its `event` name, and llama.cpp's `error` field.

    `data` is b"" if the event had none, which only an event with an `error` field may. `error` is
    the value of the nonstandard `error: {...}` line that llama.cpp sends in place of `data`.
    """

    data: bytes
    event: str | None = None
    error: bytes | None = None


class EventTooLarge(ValueError):
    """An event passed `cap` bytes; `events` are those that the same read completed before it.

    The decoder is of no use afterwards: the rest of the stream cannot be told apart.
    """

    def __init__(self, cap: int, events: list[ServerEvent]) -> None:
        super().__init__(
            f"a server-sent event is larger than {cap} bytes; ask for less in one answer "
            "(fewer prompt_logprobs or top_logprobs) or raise the cap"
        )
        self.cap = cap
        self.events = events


class SSEDecoder:
    """Bytes of a `text/event-stream` in, events out; the split of the bytes does not matter.

    The size of an event is the bytes of all its lines without their ends, comments included; what
    is buffered never passes it. Field rules are the WHATWG HTML standard's (section 9.2.6) with two
    exceptions: `finish` gives an event that lacks its empty line, since servers omit the last
    newline, and the field `error` is kept. `id` and `retry` are ignored.
    """

    __slots__ = (
        "_between",
        "_data",
        "_error",
        "_event",
        "_open",
        "_parts",
        "_size",
        "_skip_lf",
        "_start",
        "cap",
    )

    def __init__(self, cap: int = CAP) -> None:
        self.cap = cap
        self._between = True  # nothing of an event is held: a read may take the shortest way
        self._start: bytes | None = b""  # what came while a byte order mark was still possible
        self._skip_lf = False  # the last read ended in CR, already taken as a line end
        self._parts: list[bytes] = []  # the unfinished line, or lines, in pieces without LF
        self._size = 0  # bytes of the open event: its lines so far and `_parts`
        self._open = False  # the line machine has seen a line of the event
        self._data: list[bytes] = []
        self._event: str | None = None
        self._error: list[bytes] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return the events that `data` completes; raise `EventTooLarge`."""
        values = self.split_plain(data)
        if values is not None:
            return list(map(ServerEvent, values))
        self._between = False
        events = self._feed(data)
        self._between = not (self._open or self._parts or self._skip_lf or self._start is not None)
        return events

    def split_plain(self, data: bytes) -> list[bytes] | None:
        """Return the data of the events that a read completes, each of one `data: ` line.

        None for any other read, of which nothing was taken: it is one for `feed`.
        """
        if _CR in data:
            data = b"\r" if data[-1] == _CR else data.replace(b"\r\n", b"\n")
            if _CR in data:
                return None
        if self._between and data.find(b"\n") == len(data) - 2 <= self.cap and data[-1] == _LF:
            if data[:6] == b"data: ":  # one event, as it usually is
                self._start = None
                return [data[6:-2]]
            return None
        if self._open or self._skip_lf or self._start or b"\n\n" not in data:
            return None  # where no event ends, what is held is not joined: it may be large
        data = b"".join((*self._parts, data))
        end = data.rfind(b"\n\n") + 2
        rest = data[end:]
        if _LF in rest or len(rest) > self.cap:
            return None
        values = self._plain(data[:end])
        if values is not None:
            self._start = None
            self._parts = [rest] if rest else []
            self._size = len(rest)
            self._between = not rest
        return values

    def _plain(self, data: bytes) -> list[bytes] | None:
        """Return the values if `data` is nothing but `data: ` lines, each with LF LF after it."""
        size = len(data)
        if not data.startswith(b"data: ") or size > self.cap:
            return None
        values: list[bytes] = []
        find, follows, append = data.find, data.startswith, values.append
        start = 6
        while True:
            end = find(b"\n", start)
            append(data[start:end])
            if follows(b"\n\ndata: ", end):
                start = end + 8
            elif end == size - 2:
                return values
            else:
                return None

    def _feed(self, data: bytes) -> list[ServerEvent]:
        if self._start is not None:
            data = self._after_bom(self._start + data)
        if self._skip_lf and data:
            self._skip_lf = False
            if data[0] == _LF:
                data = data[1:]
        if _CR in data:
            self._skip_lf = data[-1] == _CR
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerEvent] = []
        if _LF not in data:
            if data:
                self._hold(data, events)
            return events
        if self._parts:
            self._size -= sum(map(len, self._parts))
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts = []
        if self._open:
            data = self._close_open(data, events)
        end = data.rfind(b"\n\n")
        if end >= 0:
            self._blocks(data[: end + 2], events)
            data = data[end + 2 :]
        if _LF in data:  # whole lines of the open event: joined again later they would cost twice
            lines, data = data.rsplit(b"\n", 1)
            self._lines(lines, events)
        if data:
            self._hold(data, events)
        return events

    def finish(self) -> list[ServerEvent]:
        """Return the last event if the stream ended without its empty line; raise `EventTooLarge`.

        A half-sent event is returned as well: whoever parses its data sees that it is cut.
        """
        events: list[ServerEvent] = []
        if self._start:  # the whole stream was a piece of a byte order mark
            self._start = None
        if self._parts:
            line = b"".join(self._parts)
            self._parts = []
            self._size -= len(line)
            self._line(line, events)
        self._dispatch(events)
        return events

    def _after_bom(self, data: bytes) -> bytes:
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._start = data
            return b""
        self._start = None
        return data.removeprefix(_BOM)

    def _hold(self, data: bytes, events: list[ServerEvent]) -> None:
        """Keep a piece of a line for the next read."""
        self._size += len(data)
        if self._size > self.cap:
            raise EventTooLarge(self.cap, events)
        self._parts.append(data)

    def _blocks(self, data: bytes, events: list[ServerEvent]) -> None:
        """Append the events of whole blocks; `data` ends in LF LF."""
        plain = self._plain(data)
        if plain is not None:
            events += map(ServerEvent, plain)
            return
        for block in data[:-2].split(b"\n\n"):
            self._lines(block, events)
            self._dispatch(events)

    def _close_open(self, data: bytes, events: list[ServerEvent]) -> bytes:
        """Read the lines of the event that an earlier read opened; return what follows it."""
        if data[0] == _LF:
            self._dispatch(events)
            return data[1:]
        end = data.find(b"\n\n")
        if end < 0:
            return data  # still open: `feed` reads its lines as a tail
        self._lines(data[:end], events)
        self._dispatch(events)
        return data[end + 2 :]

    def _lines(self, data: bytes, events: list[ServerEvent]) -> None:
        for line in data.split(b"\n"):
            self._line(line, events)

    def _line(self, line: bytes, events: list[ServerEvent]) -> None:
        if not line:
            self._dispatch(events)
            return
        self._open = True
        self._size += len(line)
        if self._size > self.cap:
            raise EventTooLarge(self.cap, events)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._error.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")

    def _dispatch(self, events: list[ServerEvent]) -> None:
        """The empty line: give the event if it has data or an error, and begin a new one."""
        if not self._open:
            return
        if self._data or self._error:
            error = b"\n".join(self._error) if self._error else None
            events.append(ServerEvent(b"\n".join(self._data), self._event, error))
            self._data = []
            self._error = []
        self._event = None
        self._size = 0
        self._open = False
