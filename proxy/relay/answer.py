"""A planned request's way to the backend, and its answer's back: as a body or as a stream.

What leaves is either a whole reply with a status, or a stream whose head says 200. The head leaves
with the first event or the first heartbeat. What a failure becomes depends on that alone, and not
on whether the answer is made of one source or of several:

    what happens                      a body      head not left  head left
    the backend is not reached        502         502            event
    the backend answers an error      its status  its status     event
    an error inside a 200             its status  its status     event
    the client's own key is refused   its status  its status     event
    a helping request is refused      its status  its status     event
    the backend breaks off            502         502            event
    the backend is too slow           504         504            event
    a bug of the proxy's              500         500            event
    the client leaves                 closed      closed         closed
    the proxy stops                   closed      closed         closed

A status is a reply in OpenAI's envelope; an event is the stream's last, the same envelope, without
a [DONE] behind it; closed: both connections end where they are. Neither holds the backend's key,
and whatever else was asked of the backend for the same answer is closed at once. A test walks every
cell of this table, read from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from time import perf_counter

from msgspec import Struct

from wellspoken.adapters.events import Fault
from wellspoken.adapters.requests.errors import RequestError, error_json
from wellspoken.adapters.rest import CHOICES_MISSING, Rest
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.balance.server_order import ABORTED, Failure
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.headers import explain_headers, with_repairs
from wellspoken.proxy.relay.helping import counting
from wellspoken.proxy.relay.planning.plan import BackendRequest, Plan
from wellspoken.proxy.relay.send import (
    LARGE,
    ClientKeyRefused,
    send_accepted,
    suspect_server,
)
from wellspoken.proxy.relay.storing import keep, keep_stream
from wellspoken.proxy.upstream.client import MayLeave, UpstreamResponse
from wellspoken.proxy.upstream.failures import OUR_FAULT, UpstreamError
from wellspoken.proxy.upstream.target import Target

SLOW = 0.02  # seconds for a small body, after which those of its server are a thread's affair


def note_failure(call: Call, error: Exception) -> Fault:
    """Note on the call why it failed; return what the client is told."""
    if isinstance(error, RequestError):
        return call.note_refusal(error)
    if isinstance(error, UpstreamError):
        call.note_failure(error)
        return error.fault
    if isinstance(error, ClientKeyRefused):
        return error.fault
    call.state.log.error("a request failed in the proxy itself", exc_info=error)
    return OUR_FAULT


def error_event(call: Call, fault: Fault) -> bytes:
    """Return the last of a stream that failed before it began, without the backend's key."""
    if call.routing.form is not None:
        return call.routing.hide(call.routing.form.tell_failure(fault))
    body = error_json(fault.message, fault.type, fault.param, fault.code)
    return b"data: " + call.routing.hide(body) + b"\n\n"


class Relay(Struct, eq=False):
    """One answer on its way: its requests to the backend, its translation, its end.

    A single request runs in the task of the call, without a lock. Several run in tasks of a group,
    a few at a time; the first failure, like the end of the whole answer, cancels the others, so
    that no backend computes on for nobody. All of them use one translator: what is translated in
    the loop awaits nothing meanwhile, and waits while a large body is translated in a thread.
    """

    call: Call
    target: Target
    plan: Plan
    stream: EventStream | None  # None where the client wants a body
    translator: StreamTranslator
    counter: counting.Counter | None = None
    slots: asyncio.Semaphore | None = None
    lock: asyncio.Lock | None = None  # held by who translates in a thread
    in_thread: bool = False
    size: int = 0  # bytes of whole bodies that came
    heads: int = 0  # answers of the backend's that were no refusals
    error: UpstreamError | None = None  # the first that ended a request
    failed: UpstreamResponse | None = None  # the backend's refusal, whose delays are told on
    last: bytes = b""  # what the last event makes, with which the answer ends

    @property
    def failure(self) -> Failure | None:
        """What ended the answer before any of it had come; None where it did not."""
        translator = self.translator
        if translator.fault is None or translator.started:
            return None
        if self.heads and len(translator.sources) > 1:
            return None  # of several requests some were answered
        if translator.fault.code in ABORTED and translator.has_text:
            return None  # of a body, none of which has left
        return self.error or translator.fault

    def relay(self, requests: Sequence[BackendRequest], first: int) -> Awaitable[None]:
        """Send requests, whose sources begin at `first`, and translate what comes, to its end."""
        if len(requests) == 1:
            return self._relay_one(first, requests[0])
        return self._relay_several(requests, first)

    async def relay_missing(self) -> None:
        """Ask for the choices that the first answer turned out to lack."""
        plan, rest = self.plan, self.plan.merge
        if not isinstance(rest, Rest) or not rest.missing or plan.more is None:
            return
        self.failed = None  # a refusal of `n` alone; what comes now decides
        requests, sources = plan.more(rest.missing)
        rest.expect([source.exchange for source in sources])
        self.translator.sources = (*self.translator.sources, *sources)
        await self.relay(requests, 1)
        if self.translator.fault is None and len(rest.seen) < 2:
            self.target.lone = True

    async def _relay_several(self, requests: Sequence[BackendRequest], first: int) -> None:
        routing = self.call.routing
        if routing.may_leave is not None:  # all of them do together, or none
            routing.let_leave(partial(self._may_leave, routing.may_leave))
        self.slots = asyncio.Semaphore(self.target.backend.together)
        self.lock = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as group:
                for place, request in enumerate(requests, first):
                    group.create_task(self._relay_in_turn(place, request))
        except BaseExceptionGroup as errors:
            others: BaseException | None = errors.split(_Over)[1]
            while isinstance(others, BaseExceptionGroup):
                others = others.exceptions[0]
            if others is not None:
                raise others from None

    def _may_leave(self, may_leave: MayLeave) -> bool:
        return not self.heads and not self.translator.started and may_leave()

    async def _relay_in_turn(self, place: int, request: BackendRequest) -> None:
        assert self.slots is not None
        async with self.slots:
            if not self.translator.done:
                await self._relay_one(place, request)
        if self.translator.done:
            raise _Over  # cancels the others of the group

    async def _relay_one(self, place: int, request: BackendRequest) -> None:
        """Send one request and translate its answer as it comes.

        All complete events of one read leave in one write. The connection is closed before the last
        of them: the backend must not compute on while a slow client reads.
        """
        call, translator = self.call, self.translator
        response: UpstreamResponse | None = None
        try:
            response, data, began = await self._open(place, request)
            if response is None:
                self._give(data, began)
            else:
                await self._pump(place, response, data)
        except (UpstreamError, ClientKeyRefused) as error:
            if isinstance(error, UpstreamError):
                call.note_failure(error)
                self.error = self.error or error
            if self.in_thread:
                await self._turn()
            self._give(translator.fail(error.fault, place), 0.0)  # no work on an answer
        finally:
            if response is not None and translator.sources[place].clean:
                response.finish()
            elif response is not None:
                response.close()
        await self._drain()
        if not translator.done and translator.missing_counts(place) is not None:
            await self._count(place, request)

    async def _pump(self, place: int, response: UpstreamResponse, data: bytes) -> None:
        """Translate a stream, `data` of which was read, to its end.

        What comes is translated and written in the step of the loop in which it comes (`Step`); the
        task wakes for the end, and where it has to wait for a client that reads slower.
        """
        step = Step(self, place, data)
        response.measure(self.translator.sources[place].take_move)
        while True:
            if self.in_thread:
                await self._turn()
            if not (step.held and step(b"")) and not await response.pump(step):
                break
            if step.over:
                return
            await self._drain()
        began = perf_counter()
        if self.in_thread:
            await self._turn()
        self._give(self.translator.close(place), began)

    async def _open(
        self, place: int, request: BackendRequest
    ) -> tuple[UpstreamResponse | None, bytes, float]:
        """Send a request; return its answer if that is a stream, and what of it was read.

        Of any other, None, what the client gets of it, and when work on that began.
        """
        call = self.call
        if request.nothing is not None:
            began = perf_counter()
            return None, self.translator.nothing(request.nothing, place, request.source), began
        streams = request.stream or self.stream is not None
        response, streamed, data = await send_accepted(call, self.target, request, streams)
        self.heads += response.status < 300
        if streamed:
            return response, data, 0.0
        began = perf_counter()
        return None, await self._translate_whole(place, response, data), began

    async def _translate_whole(self, place: int, response: UpstreamResponse, data: bytes) -> bytes:
        if response.status >= 300:
            self.failed = response
        self.size += len(data)
        translate = self.translator.whole
        arguments = (response.status, response.content_type, data, place)
        if len(data) < LARGE and not (self.target.slow and self.plan.exchange.logprobs):
            if self.in_thread:
                await self._turn()
            began = perf_counter()
            made = translate(*arguments)
            if perf_counter() - began > SLOW:  # its entries had to be sought for their text
                self.target.slow = True
            return made
        async with self.call.state.large:  # one at a time: others wait no longer for their turn
            for _ in self.translator.steps(response.status, response.content_type, data):
                await asyncio.sleep(0)
        if self.translator.done:
            return b""
        # A thread gives the interpreter back every few milliseconds, so the loop stays answerable.
        if self.lock is None:
            return await asyncio.to_thread(translate, *arguments, large=True)
        async with self.lock:
            self.in_thread = True
            try:
                return await asyncio.to_thread(translate, *arguments, large=True)
            finally:
                self.in_thread = False

    async def _turn(self) -> None:
        """Wait while a thread translates; what follows must not await before it has translated."""
        assert self.lock is not None
        while self.in_thread:
            async with self.lock:
                pass

    async def _count(self, place: int, request: BackendRequest) -> None:
        """Let an answer end that waits for its counts, once the backend was asked for them."""
        wanted = self.translator.missing_counts(place)
        assert wanted is not None
        if self.counter is None:
            self.counter = counting.Counter(self.call, self.target)
            self.call.routing.let_leave(None)
        found = await self.counter.count_tokens(request, wanted)
        began = perf_counter()
        if self.in_thread:
            await self._turn()
        self._give(self.translator.add_counts(found, place), began)
        await self._drain()

    def _give(self, out: bytes, began: float) -> None:
        """Write what was made of the last that came of one source, work on which began then.

        `began` 0.0: nothing came.
        """
        call, stream = self.call, self.stream
        done = self.translator.done
        if done:
            self.last = self.last or out  # of those that find it over, one has made the end
        if began:  # an end is no token, whose time would count, unless nothing else came
            writer = self.translator.stream
            told = writer is not None and len(out) > writer.closing
            leaves = told or (writer is not None and bool(out) and call.timing.gaps is None)
            call.timing.end_work(began, leaves=leaves)
        if stream is not None and out and not done:
            stream.put(out)
            call.note_first_piece()

    async def _drain(self) -> None:
        """Wait for a client that reads slower than the answer comes."""
        if self.stream is not None and self.stream.paused:
            await self.stream.drain()

    async def finish(self) -> Reply | EventStream:
        """End the answer: count it, suspect an engine that broke off, store it, let it leave."""
        call, translator, stream = self.call, self.translator, self.stream
        exchange, fault = self.plan.exchange, self.translator.fault
        body = b""
        if stream is None and fault is None:
            began = perf_counter()
            body = await self._body()  # before the count, since folding repairs too
            call.timing.end_work(began)
        if self.plan.merge is None and self.plan.sources:  # else the merging has set the whole's
            part, result = self.plan.sources[0].exchange.result, exchange.result
            result.usage, result.usage_source = part.usage, part.usage_source
        if fault is not None and translator.started:
            translator.count_so_far()
        call.count_answer(exchange)
        if fault is not None:
            suspect_server(call, self.target, fault)
            if fault.code == CHOICES_MISSING and len(exchange.prompts) < 2:
                self.target.lone = True  # the next one is asked for choice by choice
            if not translator.started and (stream is None or not stream.left):
                if stream is not None:
                    stream.stop()
                return call.fail(fault, explain_headers(exchange, fault.retry, self.failed))
        if stream is None:
            if call.routing.keep is not None:
                await keep(call, body)
            return call.reply(200, body, explain_headers(exchange, None, None))
        out = self.last
        if fault is not None:
            call.note_fault(fault)
            out = call.routing.hide(out) if translator.started else error_event(call, fault)
        elif call.routing.keep is not None:
            out = await keep_stream(call, translator, out)
        if call.request.headers.get("x-wellspoken-explain") == "1":
            out = with_repairs(out, exchange)
        call.note_end()
        await stream.end(out)
        if translator.started and not call.results.streamed:
            call.note_first_piece()
        return stream

    def count_so_far(self) -> None:
        """Count what has come of an answer whose client has left, unless it was counted."""
        exchange = self.plan.exchange
        if self.call.results.exchange is None:
            self.translator.count_so_far()
            if exchange.result.usage is not None:
                self.call.count_answer(exchange)

    async def _body(self) -> bytes:
        if self.size < LARGE or self.translator.given is not None:
            return self.translator.answer().body
        return (await asyncio.to_thread(self.translator.answer)).body


class Step:
    """Translates each piece of a stream, and writes what that makes, as it comes.

    It says True where no more may be read for now: at the stream's end (`over`), and where the
    client or a thread must be waited for. A piece that came while a thread had the translator is
    `held`. What a piece makes has left when the step ends: the task may be cancelled before it
    wakes, by another source that ends the answer.
    """

    __slots__ = ("_call", "_keeps", "_place", "_relay", "_source", "held", "over")

    def __init__(self, relay: Relay, place: int, held: bytes) -> None:
        self._relay = relay
        self._call = relay.call
        self._place = place
        self._source = relay.translator.sources[place]
        self.held = held
        self.over = False
        # Until the end, since it becomes a body or is stored.
        self._keeps = relay.stream is None or relay.translator.kept is not None

    def __call__(self, data: bytes) -> bool:
        """Take what was held and then this; say whether to stop."""
        relay = self._relay
        if self.held:
            data, self.held = self.held + data, b""
        if relay.in_thread:
            self.held = data
            return True
        call, translator, stream = self._call, relay.translator, relay.stream
        began = perf_counter()
        out = translator.feed(data, self._place)
        if self._keeps:
            call.hold_kept(translator.kept_growth(len(data)))
        if self._source.ended or (not out and translator.done):
            self.over = True
            relay._give(out, began)
            return True
        if not out or stream is None:
            call.timing.end_work(began)
            return False
        call.timing.end_work(began, leaves=True)
        paused = stream.put(out)
        if not call.results.streamed:
            call.note_first_piece()
        return paused


class _Over(Exception):
    """The answer is complete, or has failed: whatever else is under way is of no use."""
