"""The usage in answers that pass through, read on the way for the metrics; no byte is changed.

OpenAI's names (chat, completions, embeddings, responses), Anthropic's, and what rerankers say,
whose only count is the total. In a stream the last counts hold: Anthropic's `message_start` has
those of the prompt and `message_delta` those of the completion so far, OpenAI's responses end with
all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from msgspec import DecodeError, Raw, Struct, json

from wellspoken.adapters.events import Usage

LARGE: Final = 131_072
"""Bytes beyond which nothing is looked for in a stream's line, and in a body only at its end."""
_END: Final = 4096
_MARK: Final = b'"usage"'
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class _Counts(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None  # Anthropic's input_tokens are without these
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: Raw = Raw()
    completion_tokens_details: Raw = Raw()
    input_tokens_details: Raw = Raw()
    output_tokens_details: Raw = Raw()


class _Inner(Struct):
    usage: _Counts | None = None


class _WithUsage(Struct):
    usage: _Counts | None = None
    response: _Inner | None = None  # of OpenAI's events
    message: _Inner | None = None  # of Anthropic's


_answer_of = json.Decoder(_WithUsage).decode


@dataclass(slots=True)
class PassingUsage:
    """What an answer tells of its tokens; `usage` is None while it has told nothing.

    Give it either a whole `body`, or a stream's bytes as they come (`feed`, split anywhere).
    `pieces`: how many events, or lines of JSON, a stream has had, which have a token each at least.
    """

    usage: Usage | None = None
    pieces: int = 0
    _line: bytes = b""

    def body(self, data: bytes) -> None:
        """Read a whole answer."""
        if len(data) < LARGE:
            if _MARK in data:
                self._read(data)
        elif found := _USAGE.findall(data, len(data) - _END):
            self._read(b'{"usage":%b}' % found[-1])

    def feed(self, data: bytes) -> None:
        """Read a piece of a stream: events, or a JSON object a line."""
        if b"\n" not in data:
            self._line = (self._line + data)[:LARGE]
            return
        lines, _, rest = data.rpartition(b"\n")
        lines = self._line + lines
        self._line = rest[:LARGE]
        self.pieces += (b"\n" + lines).count(b"\ndata:") + (b"\n" + lines).count(b"\n{")
        if _MARK in lines:
            for line in lines.split(b"\n"):
                if _MARK in line:
                    self._read(line.removeprefix(b"data:"))

    def _read(self, data: bytes) -> None:
        try:
            answer = _answer_of(data)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            return  # cut, or a backend's own idea of it
        inner = answer.response or answer.message
        counts = answer.usage or (inner.usage if inner is not None else None)
        if counts is not None:
            self.usage = _later(self.usage, _usage(counts))


def _usage(counts: _Counts) -> Usage:
    """Return the counts under their one name."""
    prompt = counts.prompt_tokens
    details = counts.prompt_tokens_details
    read = counts.cache_read_input_tokens
    if counts.input_tokens is not None:
        prompt = counts.input_tokens + (read or 0) + (counts.cache_creation_input_tokens or 0)
        details = counts.input_tokens_details
        if read:
            details = Raw(b'{"cached_tokens":%d}' % read)
    elif prompt is None and counts.completion_tokens is None:
        prompt = counts.total_tokens
    completion = counts.completion_tokens
    if completion is None:
        completion = counts.output_tokens
    reasoning = counts.completion_tokens_details
    if not bytes(reasoning):
        reasoning = counts.output_tokens_details
    return Usage(prompt, completion, details, reasoning)


def _later(known: Usage | None, usage: Usage) -> Usage:
    """Return what a stream has told so far: the latest of each count."""
    if known is not None:
        if not usage.prompt:  # of a message_delta it is 0 or missing
            usage.prompt, usage.prompt_details = known.prompt, known.prompt_details
        if usage.completion is None:
            usage.completion = known.completion
        if not bytes(usage.completion_details):
            usage.completion_details = known.completion_details
    return usage
