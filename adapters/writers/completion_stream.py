"""The completions stream: events as `text_completion` chunks in OpenAI's key order.

An event that still carries the backend's own chunk goes out as that; any other is written here.
"""

from __future__ import annotations

from msgspec import json

from wellspoken.adapters.events import (
    Event,
    Extra,
    Finish,
    Open,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.arrays import ArrayWriter
from wellspoken.adapters.writers.base_writers import StreamWriter
from wellspoken.adapters.writers.completion_body import drop, text_reason
from wellspoken.adapters.writers.objects import extra_keys, usage_object

_encode = json.Encoder().encode


class CompletionStream(StreamWriter):
    """Events in, SSE bytes out; `fault` and `done` tell how the answer ended."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.arrays: dict[int, ArrayWriter] = {}
        self.head = b""
        self.fingerprint = b""

    def __call__(self, events: list[Event]) -> bytes:
        """Return the bytes that these events are; b"" for what only changes the state."""
        out: list[bytes] = []
        for event in events:
            if self.done:
                break
            if type(event) is Text:
                self._text(event, out)
            elif type(event) is Finish:
                self._finish(event, out)
            else:
                self._other(event, out)
        if out:
            self.started = True
        return b"".join(out)

    def _other(self, event: Event, out: list[bytes]) -> None:
        if type(event) is Start:
            self._start(event)
        elif type(event) is Open:
            if event.now:  # a higher choice is about to be written, and they appear in order
                self._chunk(event.choice, b'""', b"null", b"null", out)
        elif type(event) is Extra:
            self.extras.append(event)
        elif isinstance(event, Reasoning | Refusal | ToolDelta):
            drop(event, self.exchange)
        elif type(event) is Usage:
            self._usage(event, out)
        else:
            self._end(event, out)

    def _start(self, start: Start) -> None:
        self.start = start
        self.head = (
            b'data: {"id":'
            + _encode(start.id)
            + b',"object":"text_completion","created":%d,"model":' % start.created
            + _encode(start.model)
            + b',"choices":['
        )
        if start.system_fingerprint is not None:
            self.fingerprint = b',"system_fingerprint":' + _encode(start.system_fingerprint)

    def _raw(self, raw: bytes | None, out: list[bytes]) -> bool:
        if raw is None or self.extras:
            return False
        out.append(b"data: " + raw + b"\n\n")
        return True

    def _text(self, event: Text, out: list[bytes]) -> None:
        logprobs = b"null"
        if event.lp is not None and event.lp.entries:
            arrays = self.arrays.get(event.choice)
            if arrays is None:
                arrays = self.arrays[event.choice] = ArrayWriter(self.exchange, event.choice)
            logprobs = _encode(arrays(event.lp.entries))  # for a raw one too: offsets go on
        if not self._raw(event.raw, out):
            self._chunk(event.choice, _encode(event.text), logprobs, b"null", out)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        if not self._raw(event.raw, out):
            reason = b'"' + text_reason(event.reason).encode() + b'"'
            self._chunk(event.choice, b'""', b"null", reason, out)

    def _chunk(
        self, choice: int, text: bytes, logprobs: bytes, reason: bytes, out: list[bytes]
    ) -> None:
        """Write a chunk, with the keys that wait for it: of its choice and of the answer."""
        assert self.start is not None
        mine = beside = b""
        if self.extras:
            mine = extra_keys(self._take(choice), line=True)
            beside = extra_keys(self._take(None), line=True)
        parts = (
            self.head,
            b'{"text":',
            text,
            b',"index":%d,"logprobs":' % choice,
            logprobs,
            b',"finish_reason":',
            reason,
            mine,
            b"}]",
            self.usage_null,
            self.fingerprint,
            beside,
            b"}\n\n",
        )
        out.append(b"".join(parts))

    def _take(self, choice: int | None) -> list[Extra]:
        taken = [extra for extra in self.extras if extra.choice == choice]
        self.extras = [extra for extra in self.extras if extra.choice != choice]
        return taken

    def _usage(self, event: Usage, out: list[bytes]) -> None:
        if not self.exchange.include_usage or self._raw(event.raw, out):
            return
        assert self.start is not None
        usage = _encode(usage_object(event))
        beside = extra_keys(self._take(None), line=True)
        out.append(self.head + b'],"usage":' + usage + self.fingerprint + beside + b"}\n\n")
