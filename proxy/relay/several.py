"""Answers that are made of several of the backend's, or of a stream where a body is wanted.

The requests go out together, a few at a time; the first failure fails the answer and cancels the
rest, so that no backend computes on for nobody.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from wellspoken.adapters.events import Fault
from wellspoken.adapters.rest import Rest
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import counting
from wellspoken.proxy.relay.headers import broken, explained, with_repairs
from wellspoken.proxy.relay.send import KEY_REFUSED, LARGE, clients_key, opened, send
from wellspoken.proxy.relay.storing import keep, keep_stream
from wellspoken.proxy.relay.waiting import doubt
from wellspoken.proxy.upstream.failures import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from wellspoken.adapters.translate import StreamTranslator
    from wellspoken.proxy.relay.call import Call
    from wellspoken.proxy.relay.plan import Ask, Plan
    from wellspoken.proxy.upstream.client import Answer
    from wellspoken.proxy.upstream.target import Target


class _Gathering:
    """The requests of one answer, under way; `write` takes what the client gets of them."""

    def __init__(
        self,
        call: Call,
        target: Target,
        translator: StreamTranslator,
        write: Callable[[bytes], Awaitable[None]] | None,
    ) -> None:
        self.call = call
        self.target = target
        self.translator = translator
        self.write = write
        self.slots = asyncio.Semaphore(target.backend.together)
        self.counter = counting.Counter(call, target)
        self.lock = asyncio.Lock()  # the translator's: a large body goes through it in a thread
        self.failed: Answer | None = None
        self.last = b""  # what the last event makes, with which the reply ends

    async def all(self, plan: Plan) -> None:
        """Send what is planned and translate what comes; return at the end of the answer."""
        await self._together(list(plan.asks), 0)
        rest = plan.merge
        if isinstance(rest, Rest) and rest.missing and plan.more is not None:
            self.failed = None  # a refusal of `n` alone; what comes now decides
            asks, sources = plan.more(rest.missing)
            rest.expect([source.exchange for source in sources])
            self.translator.sources = (*self.translator.sources, *sources)
            await self._together(asks, 1)
            if self.translator.fault is None and len(rest.seen) < 2:
                self.target.lone = True

    async def _together(self, asks: list[Ask], first: int) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for place, ask in enumerate(asks, first):
                    group.create_task(self._one(place, ask))
        except BaseExceptionGroup as errors:
            others: BaseException | None = errors.split(_Over)[1]
            while isinstance(others, BaseExceptionGroup):
                others = others.exceptions[0]
            if others is not None:
                raise others from None

    async def _one(self, place: int, ask: Ask) -> None:
        async with self.slots:
            if self.translator.done:
                return
            try:
                if ask.nothing is not None:
                    out = self.translator.nothing(ask.nothing, place, ask.source)
                    await self._given(out, perf_counter())
                else:
                    await self._asked(place, ask)
                    await self._count(place, ask)
            except UpstreamError as error:
                self.call.upstream_failed(error)
                async with self.lock:
                    out = self.translator.fail(error.fault, place)
                await self._given(out, perf_counter())

    async def _asked(self, place: int, ask: Ask) -> None:
        answer = await send(self.call, self.target, ask)
        source = self.translator.sources[place]
        try:
            limit = self.call.state.config.limits.response
            events, data = await opened(answer, limit) if ask.stream else (False, b"")
            if events:
                await self._streamed(place, answer, data)
            else:
                data = data or await answer.read(limit)
                await self._whole(place, answer, data)
        finally:
            if source.clean:
                answer.finish()
            else:
                answer.close()

    async def _whole(self, place: int, answer: Answer, data: bytes) -> None:
        status, kind = answer.status, answer.content_type
        if status >= 300:
            self.failed = answer
        async with self.lock:
            began = perf_counter()
            if self.target.auth_pass and status in KEY_REFUSED:
                out = self.translator.fail(clients_key(status), place)
            elif len(data) < LARGE:
                out = self.translator.whole(status, kind, data, place)
            else:
                whole = self.translator.whole
                out = await asyncio.to_thread(whole, status, kind, data, place)
        await self._given(out, began)

    async def _streamed(self, place: int, answer: Answer, data: bytes) -> None:
        """Translate a stream as it comes, until it or the whole answer is over."""
        source = self.translator.sources[place]
        while not source.ended:
            data = data or await answer.chunk()
            async with self.lock:
                began, translator = perf_counter(), self.translator
                out = translator.feed(data, place) if data else translator.close(place)
            await self._given(out, began)
            if not data:
                return
            data = b""

    async def _count(self, place: int, ask: Ask) -> None:
        """Let an answer end that waits for its counts, once the backend was asked for them."""
        wanted = self.translator.missing_counts(place)
        if wanted is None:
            return
        found = await self.counter.counted(ask, wanted)
        async with self.lock:
            began = perf_counter()
            out = self.translator.add_counts(found, place)
        await self._given(out, began)

    async def _given(self, out: bytes, began: float) -> None:
        """Write what was made of something that came, work on which began then."""
        if self.translator.done:
            self.last = self.last or out  # of those that find it over, one has made the end
            raise _Over
        if out and self.write is not None:
            self.call.leaves(began)
            await self.write(out)
            self.call.first_token()
        else:
            self.call.worked += perf_counter() - began


class _Over(Exception):
    """The answer is complete, or has failed: whatever else is under way is of no use."""


async def folded(call: Call, target: Target, plan: Plan) -> Reply:
    """Answer a body from all the answers of the plan."""
    exchange, translator = plan.exchange, plan.translator(fold=True)
    gathering = _Gathering(call, target, translator, None)
    await gathering.all(plan)
    result = translator.answer()
    counting.told(call, plan)
    if result.status < 300:
        await keep(call, result.body)
    body = call.hide(result.body) if result.status >= 400 else result.body
    lines = explained(exchange, result.retry, gathering.failed)
    return call.reply(result.status, body, lines)


async def interleaved(
    call: Call, target: Target, plan: Plan, stream: EventStream
) -> Reply | EventStream:
    """Answer a stream from all the answers of the plan, as they come."""
    exchange, translator = plan.exchange, plan.translator()
    gathering = _Gathering(call, target, translator, stream.write)
    await gathering.all(plan)
    counting.told(call, plan)
    fault: Fault | None = translator.fault
    doubt(target, fault)
    if fault is not None and not translator.started:
        lines = explained(exchange, fault.retry, gathering.failed)
        return await broken(call, stream, fault, lines)
    out = gathering.last
    if fault is not None:
        call.told = fault
        out = call.hide(out)
    out = await keep_stream(call, translator, out)
    if call.request.headers.get("x-wellspoken-explain") == "1":
        out = with_repairs(out, exchange)
    await stream.end(out)
    call.first_token()
    return stream
