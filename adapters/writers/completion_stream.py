"""The completions stream: events as `text_completion` chunks in OpenAI's key order."""

from __future__ import annotations

from wellspoken.adapters.events import Finish, Open, Start, Text
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.arrays import ArrayWriter
from wellspoken.adapters.writers.base_writers import Piece, StreamWriter, encode
from wellspoken.adapters.writers.completion_body import drop, text_reason


class CompletionStream(StreamWriter):
    """Events in, SSE bytes out."""

    object = b"text_completion"

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.arrays: dict[int, ArrayWriter] = {}

    def _begin(self, start: Start) -> None:
        super()._begin(start)
        if start.system_fingerprint is not None:
            self.fingerprint = b',"system_fingerprint":' + encode(start.system_fingerprint)

    def _frame(self, choice: int) -> tuple[bytes, bytes]:
        return self.top + b'"choices":[{"text":', b',"index":%d,"logprobs":' % choice

    def _begin_choice(self, event: Open, out: bytearray) -> None:
        if event.now:  # a higher choice is about to be written, and they appear in order
            self._chunk(event.choice, b'""', out)

    def text(self, event: Text, out: bytearray) -> None:
        logprobs = b"null"
        if self.exchange.logprobs:
            arrays = self.arrays.get(event.choice)
            if arrays is None:
                arrays = self.arrays[event.choice] = ArrayWriter(self.exchange, event.choice)
            logprobs = encode(arrays.write(event.text, event.lp))  # for a raw one: offsets go on
        if not self._pass_raw(event.raw, out):
            self._chunk(event.choice, encode(event.text), out, logprobs)

    def _piece(self, event: Piece, out: bytearray) -> None:
        drop(event, self.exchange)

    def _finish(self, event: Finish, out: bytearray) -> None:
        if not self._pass_raw(event.raw, out):
            reason = b'"%b"' % text_reason(event.reason).encode()
            self._chunk(event.choice, b'""', out, reason=reason)
