"""The chat stream: `chat.completion.chunk`s in OpenAI's key order (contract, "Emission")."""

from __future__ import annotations

from wellspoken.adapters.events import Finish, Open, Reasoning, Refusal, Start, Text, ToolDelta
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.base_writers import Piece, StreamWriter, encode, encode_into

FIRST = "prompt_token_ids"
"""An extension of the answer's that goes with its first chunk, as vLLM's does."""

TextFrame = tuple[bytes, bytes, bytes, bytes]


class ChatStream(StreamWriter):
    """Events in, SSE bytes out."""

    object = b"chat.completion.chunk"

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.opened: set[int] = set()
        self.text_frames: dict[int, TextFrame] = {}
        self.roles: dict[int, Open] = {}  # held until it is known whether a call opens the choice

    def _begin(self, start: Start) -> None:
        super()._begin(start)
        self.text_frames.clear()
        if self.exchange.service_tier:
            self.top += b'"service_tier":"default",'
        if start.system_fingerprint is not None:
            self.top += b'"system_fingerprint":' + encode(start.system_fingerprint) + b","

    def _frame(self, choice: int) -> tuple[bytes, bytes]:
        return self.top + b'"choices":[{"index":%d,"delta":' % choice, b',"logprobs":'

    def _begin_choice(self, event: Open, out: bytearray) -> None:
        if event.now:
            self._open(event.choice, out)
        elif event.raw is not None and event.choice not in self.opened:
            self.roles[event.choice] = event

    def _open(self, choice: int, out: bytearray, call: bool = False) -> None:
        """Write the role chunk of a choice once, as its first: content null before a call."""
        if choice in self.opened:
            return
        self.opened.add(choice)
        held = self.roles.pop(choice, None)
        if held is not None and held.null == call and self._pass_raw(held.raw, out):
            return
        extras, self.extras = self.extras, []  # they go with what the choice says
        if extras:
            self.extras = [x for x in extras if x.key == FIRST]
            extras = [x for x in extras if x.key != FIRST]
        content = b"null" if call else b'""'
        self._chunk(choice, b'{"role":"assistant","content":%b,"refusal":null}' % content, out)
        self.extras = extras

    def text(self, event: Text, out: bytearray) -> None:
        """Write a piece of content. Hot."""
        choice, lp, raw = event.choice, event.lp, event.raw
        if choice not in self.opened:
            self._open(choice, out)
        if self.extras or not event.text:
            self._text_with_keys(event, out)
            return
        if raw is not None:
            out += b"data: "
            out += raw
            out += b"\n\n"
            return
        front, unscored, scored, tail = self.text_frames.get(choice) or self._add_text_frame(choice)
        out += front
        encode_into(event.text, out, -1)
        if lp is None:
            out += unscored
            return
        out += scored
        encode_into(lp.entries, out, -1)
        out += tail

    def _add_text_frame(self, choice: int) -> TextFrame:
        """Return what stands around a chunk's text, if it has no entries, and around those."""
        front, behind, tail = self.frames.get(choice) or self._add_frame(choice)
        behind = b"}" + behind
        frame = self.text_frames[choice] = (
            front + b'{"content":',
            behind + b"null" + tail,
            behind + b'{"content":',
            b',"refusal":null}' + tail,
        )
        return frame

    def _text_with_keys(self, event: Text, out: bytearray) -> None:
        """Write a piece of content where keys wait for it, or entries that came without a text."""
        if self._pass_raw(event.raw, out):
            return
        logprobs = b"null"
        if event.lp is not None:
            logprobs = b'{"content":' + encode(event.lp.entries) + b',"refusal":null}'
        said = event.text or (event.lp is not None and event.lp.entries)
        content = b'{"content":' + encode(event.text) + b"}" if said else b"{}"
        self._chunk(event.choice, content, out, logprobs)

    def _piece(self, event: Piece, out: bytearray) -> None:
        if type(event) is Reasoning:
            if self.exchange.keeps("reasoning_content"):
                self._open(event.choice, out)
                delta = b'{"reasoning_content":' + encode(event.text) + b"}"
                self._chunk(event.choice, delta, out)
        elif type(event) is Refusal:
            self._open(event.choice, out)
            if not self._pass_raw(event.raw, out):
                logprobs = b"null"
                if event.lp is not None:
                    logprobs = b'{"content":null,"refusal":' + encode(event.lp.entries) + b"}"
                self._chunk(event.choice, b'{"refusal":' + encode(event.text) + b"}", out, logprobs)
        elif type(event) is ToolDelta:
            self._call(event, out)

    def _call(self, event: ToolDelta, out: bytearray) -> None:
        if event.opens and event.choice not in self.opened and self._pass_raw(event.raw, out):
            self.opened.add(event.choice)
            return
        self._open(event.choice, out, call=True)
        if self._pass_raw(event.raw, out):
            return
        function = {"name": event.name, "arguments": event.arguments}
        if event.name is None:
            del function["name"]
        if self.exchange.functions:
            self._chunk(event.choice, b'{"function_call":' + encode(function) + b"}", out)
            return
        head = {"index": event.n, "id": event.id, "type": "function", "function": function}
        call = head if event.name is not None else {"index": event.n, "function": function}
        self._chunk(event.choice, b'{"tool_calls":[' + encode(call) + b"]}", out)

    def _finish(self, event: Finish, out: bytearray) -> None:
        self._open(event.choice, out)
        if not self._pass_raw(event.raw, out):
            self._chunk(
                event.choice, b"{}", out, reason=b'"%b"' % (event.reason or "stop").encode()
            )
