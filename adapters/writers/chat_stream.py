"""The chat stream: events as `chat.completion.chunk`s in OpenAI's key order (contract, "Emission").

An event that still carries the backend's own chunk goes out as that; any other is written here.
"""

from __future__ import annotations

from msgspec import json

from wellspoken.adapters.events import (
    Event,
    Extra,
    Finish,
    Logprobs,
    Open,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.base_writers import StreamWriter
from wellspoken.adapters.writers.objects import extra_keys, usage_object

_encode = json.Encoder().encode


class ChatStream(StreamWriter):
    """Events in, SSE bytes out; `fault` and `done` tell how the answer ended."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.opened: set[int] = set()
        self.roles: dict[int, Open] = {}  # held until it is known whether a call opens the choice
        self.heads: dict[int, bytes] = {}
        self.fingerprint: str | None = None
        self.top = b""
        self.tail = b',"logprobs":null,"finish_reason":null}]' + self.usage_null + b"}\n\n"
        self.lp_tail = b',"refusal":null},"finish_reason":null}]' + self.usage_null + b"}\n\n"

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
            self._begin(event)
        elif type(event) is Open:
            if event.now:
                self._open(event.choice, out)
            elif event.raw is not None and event.choice not in self.opened:
                self.roles[event.choice] = event
        elif type(event) is Extra:
            self.extras.append(event)
        elif type(event) is Reasoning:
            if not self.exchange.keeps("reasoning_content"):
                return
            self._open(event.choice, out)
            self._delta(event.choice, b'{"reasoning_content":' + _encode(event.text) + b"}", out)
        elif type(event) is Refusal:
            self._open(event.choice, out)
            if not self._raw(event.raw, out):
                self._refusal(event, out)
        elif type(event) is ToolDelta:
            self._call(event, out)
        elif type(event) is Usage:
            self._usage(event, out)
        else:
            self._end(event, out)

    def _raw(self, raw: bytes | None, out: list[bytes]) -> bool:
        if raw is None or self.extras:
            return False
        out.append(b"data: " + raw + b"\n\n")
        return True

    def _head(self, choice: int) -> bytes:
        head = self.heads[choice] = self.top + b'"choices":[{"index":%d,"delta":' % choice
        return head

    def _begin(self, start: Start) -> None:
        """Take the envelope of all chunks; of a later one its fingerprint alone is new."""
        if start.system_fingerprint == self.fingerprint and self.top:
            return
        self.fingerprint = start.system_fingerprint
        self.heads.clear()
        top = (
            b'data: {"id":'
            + _encode(start.id)
            + b',"object":"chat.completion.chunk","created":%d,"model":' % start.created
            + _encode(start.model)
            + b","
        )
        if self.exchange.service_tier:
            top += b'"service_tier":"default",'
        if start.system_fingerprint is not None:
            top += b'"system_fingerprint":' + _encode(start.system_fingerprint) + b","
        self.top = top

    def _open(self, choice: int, out: list[bytes], call: bool = False) -> None:
        """Write the role chunk of a choice once, as its first: content null before a call."""
        if choice in self.opened:
            return
        self.opened.add(choice)
        held = self.roles.pop(choice, None)
        if held is not None and held.null == call and self._raw(held.raw, out):
            return
        content = b"null" if call else b'""'
        role = b'{"role":"assistant","content":' + content + b',"refusal":null}'
        out.append(self._head(choice) + role + self.tail)

    def _text(self, event: Text, out: list[bytes]) -> None:
        choice = event.choice
        if choice not in self.opened:
            self._open(choice, out)
        if event.raw is not None and not self.extras:
            out.append(b"data: " + event.raw + b"\n\n")
            return
        self._delta(choice, b'{"content":' + _encode(event.text) + b"}", out, event.lp)

    def _delta(
        self, choice: int, delta: bytes, out: list[bytes], lp: Logprobs | None = None
    ) -> None:
        if self.extras:
            self._with_extras(choice, delta, lp, b"null", out)
        elif lp is None:
            out.append((self.heads.get(choice) or self._head(choice)) + delta + self.tail)
        else:
            entries = _encode(lp.entries)
            head = self.heads.get(choice) or self._head(choice)
            out.append(head + delta + b',"logprobs":{"content":' + entries + self.lp_tail)

    def _with_extras(
        self, choice: int, delta: bytes, lp: Logprobs | None, reason: bytes, out: list[bytes]
    ) -> None:
        """Write a chunk with the keys that wait for it: of its choice, its delta, the answer."""
        mine = [extra for extra in self.extras if extra.choice in (None, choice)]
        self.extras = [extra for extra in self.extras if extra.choice not in (None, choice)]
        message = extra_keys([extra for extra in mine if extra.where == "message"], line=True)
        if message:
            inner = delta[1:-1]
            delta = b"{" + (inner + message if inner else message[1:]) + b"}"
        entries = b"null"
        if lp is not None:
            entries = b'{"content":' + _encode(lp.entries) + b',"refusal":null}'
        out.append(
            self._head(choice)
            + delta
            + b',"logprobs":'
            + entries
            + b',"finish_reason":'
            + reason
            + extra_keys([extra for extra in mine if extra.where == "choice"], line=True)
            + b"}]"
            + self.usage_null
            + extra_keys([extra for extra in mine if extra.where == "answer"], line=True)
            + b"}\n\n"
        )

    def _refusal(self, event: Refusal, out: list[bytes]) -> None:
        delta = b'{"refusal":' + _encode(event.text) + b"}"
        if event.lp is None:
            self._delta(event.choice, delta, out)
            return
        entries = b',"logprobs":{"content":null,"refusal":' + _encode(event.lp.entries)
        tail = b'},"finish_reason":null}]' + self.usage_null + b"}\n\n"
        out.append(self._head(event.choice) + delta + entries + tail)

    def _call(self, event: ToolDelta, out: list[bytes]) -> None:
        if event.opens and event.choice not in self.opened and self._raw(event.raw, out):
            self.opened.add(event.choice)
            return
        self._open(event.choice, out, call=True)
        if self._raw(event.raw, out):
            return
        if self.exchange.functions:
            function = {"name": event.name, "arguments": event.arguments}
            if event.name is None:
                del function["name"]
            self._delta(event.choice, b'{"function_call":' + _encode(function) + b"}", out)
            return
        call: dict[str, object] = {"index": event.n}
        if event.name is not None:
            function = {"name": event.name, "arguments": event.arguments}
            call |= {"id": event.id, "type": "function", "function": function}
        else:
            call["function"] = {"arguments": event.arguments}
        self._delta(event.choice, b'{"tool_calls":[' + _encode(call) + b"]}", out)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        self._open(event.choice, out)
        if self._raw(event.raw, out):
            return
        reason = b'"' + (event.reason or "stop").encode() + b'"'
        if self.extras:
            self._with_extras(event.choice, b"{}", None, reason, out)
            return
        out.append(
            self._head(event.choice)
            + b'{},"logprobs":null,"finish_reason":'
            + reason
            + b"}]"
            + self.usage_null
            + b"}\n\n"
        )

    def _usage(self, event: Usage, out: list[bytes]) -> None:
        if not self.exchange.include_usage:
            return
        if event.raw is not None and not self.extras:
            self._raw(event.raw, out)
            return
        extras = extra_keys([extra for extra in self.extras if extra.where == "answer"], line=True)
        self.extras = [extra for extra in self.extras if extra.where != "answer"]
        usage = _encode(usage_object(event))
        out.append(self.top + b'"choices":[],"usage":' + usage + extras + b"}\n\n")
