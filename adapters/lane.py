"""The hot lane of a stream: pieces of text that no stage has anything to do to.

Nearly all events of a stream are one choice's text alone, with the entries that spell it. Once the
answer has begun, such an event goes from the reader to the writer without a walk over the stages.
That is theirs to say: reader, stages and writer each have an `is_plain`, which holds until they are
called with something else; and what a call with such an event would change, the lane does by the
same functions of theirs. So the lane opens only behind a lone piece of text that went the whole
way, and closes with the first event that is anything else; for good where piece after piece is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wellspoken.adapters.events import Event, Text
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.readers.near_openai import NearOpenAI
from wellspoken.adapters.readers.sse import ServerEvent
from wellspoken.adapters.stages.finish import FinishStage
from wellspoken.adapters.stages.order import OrderStage
from wellspoken.adapters.stages.tiling import TilingStage
from wellspoken.adapters.stages.tool_calls import ToolCallStage
from wellspoken.adapters.stages.usage import UsageStage
from wellspoken.adapters.writers.chat_stream import ChatStream

KNOWN = (ToolCallStage, TilingStage, FinishStage, UsageStage, OrderStage)
"""Stages that let a piece of text pass; what any other has to do is known with the text alone."""


MISSES = 8  # pieces of text in a row that were not plain: the next are not either (Ollama's role)
MOST = 256  # events of a read that go the whole way between two looks at the lane


class Lane:
    """The lane of one answer's first choice; closed it is looked at behind 1, 2, 4, ... events."""

    def __init__(self, reader: NearOpenAI, stages: Sequence[Any], writer: ChatStream) -> None:
        self.reader = reader
        self.stages = stages
        self.split, self.read, self.write = reader.sse.split_plain, reader.plain, writer.text
        self.is_open = False
        self.patience = 1
        self.misses = 0
        self.fits: Callable[[Text], int] | None = None
        for stage in stages:
            if type(stage) is TilingStage:
                self.fits = stage.plain
            elif type(stage) is FinishStage:
                self.finish = stage
            elif type(stage) is UsageStage:
                self.usage = stage

    def follow(self, events: list[Event]) -> None:
        """Open or close the lane behind events that went the whole way."""
        self.is_open = (
            self.misses < MISSES
            and bool(events)
            and type(events[-1]) is Text
            and self.reader.is_plain()
            and all(stage.is_plain() for stage in self.stages)
        )
        self.patience = 1 if self.is_open else min(2 * self.patience, MOST)

    def take(self, values: list[bytes], at: int) -> tuple[int, list[Event]]:
        """Return up to where these events go the whole way now, and what the reader makes of them.

        It is all of them if there is one that is no JSON: behind [DONE] one is read with that.
        """
        taken = values[at : at + self.patience]
        if not all(value.startswith(b"{") for value in taken):
            taken = values[at:]
        return at + len(taken), self.read_all(taken)

    def read_all(self, values: list[bytes]) -> list[Event]:
        """Return what the reader makes of all of these events."""
        self.reader.take(list(map(ServerEvent, values)))
        return self.reader.pieces.take()

    def run(self, values: list[bytes], begin: int, out: bytearray) -> tuple[int, Text | None]:
        """Add what the client gets for these events from `begin` to the first not plain one. Hot.

        Returns its place, and the event that it is if the reader has read it.
        """
        event: Text | None = None
        if not self.is_open:
            return begin, event
        read, fits, write = self.read, self.fits, self.write
        keep = self.usage.texts[0].pieces.append
        tokens = 0
        for place in range(begin, len(values)):
            event = read(values[place])
            if event is None:
                break
            if fits is not None:
                size = fits(event)
                if not size:
                    break
                tokens += size
            keep(event.text)
            write(event, out)
        else:
            place, event = len(values), None
        self.misses = 0 if place > begin else self.misses + 1
        if place > begin:
            self.finish.keep(tokens or place - begin, scored=fits is not None)
        return place, event


def lane_of(
    exchange: Exchange, reader: object, stages: Sequence[Any], writer: ChatStream
) -> Lane | None:
    """Return the hot lane of an answer that may have one."""
    if type(reader) is not NearOpenAI or exchange.n != 1:
        return None
    if not all(type(stage) in KNOWN for stage in stages):
        return None
    return Lane(reader, stages, writer)
