"""The translation alone: microseconds a stream event, megabytes of body a second.

Every case is checked once by the conformance checker before it is timed, so that a kernel which
loses entries or numbers cannot look fast. Beside each stands msgspec's decode of the same bytes,
into the reader's own strict Structs (`typed`) and into dicts and lists (`generic`): the floor that
no translation in Python goes below, and what makes numbers of two machines comparable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.bench.data import Answer, Source
from tests.bench.forms import CREATED, FORMS, MODEL, Form, Stream, asked
from tests.bench.measure import interleaved, median, ratio
from tests.conformance import check_body, check_stream
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.readers import strict
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.translate import StreamTranslator, translate_body

READ = 64 * 1024
"""Bytes of one read in a burst: what uvloop's and asyncio's transports read at most."""

KS = (0, 5, 20)
BODIES: dict[str, tuple[int, int]] = {"b": (100, 5), "c": (4000, 20)}
"""name -> tokens and alternatives: 18 KB and 2.4 MB as arrays."""


class WrongAnswer(Exception):
    """A translation broke the contract, so its speed means nothing."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds; of each, streams of so many events, and small bodies.

    `large` are the forms in which the large body is measured too.
    """

    rounds: int = 7
    streams: int = 4
    events: int = 500
    bodies: int = 40
    ks: tuple[int, ...] = KS
    large: tuple[str, ...] = ("vllm-0.4.2", "vllm-0.32", "openai")


FULL = Effort()
QUICK = Effort(rounds=5, streams=2, events=200, bodies=10, large=("vllm-0.4.2",))


@dataclass(frozen=True)
class EventCost:
    """CPU microseconds an event: fed one by one, in reads of 64 KiB, and the two decodes."""

    form: str
    k: int
    size: int  # bytes of an event
    single: float
    burst: float
    typed: float
    generic: float
    over_typed: float


@dataclass(frozen=True)
class BodySpeed:
    """Megabytes of input a second."""

    form: str
    name: str
    size: int
    ours: float
    typed: float
    generic: float
    over_typed: float


def exchange(answer: Answer, table: TokenTable, stream: bool) -> Exchange:
    """Return the exchange of a request for this answer."""
    return Exchange(
        model=MODEL,
        now=CREATED,
        new_id=lambda: "7Qb1d4vXn2LkW0sTzR5yHc",
        tokens=table,
        stream=stream,
        logprobs=answer.k > 0,
        k=answer.k,
        prompt_size=40,
    )


def translated(made: Exchange, reads: list[bytes]) -> bytes:
    """Return the client's stream for these reads of the backend's."""
    translator = StreamTranslator(made)
    return b"".join([*map(translator.feed, reads), translator.close()])


def reads_of(events: list[bytes]) -> list[bytes]:
    """Return the stream as a backend's burst is read."""
    data = b"".join(events)
    return [data[at : at + READ] for at in range(0, len(data), READ)]


def verify_stream(form: Form, answer: Answer, data: bytes, model: str = MODEL) -> None:
    """Raise WrongAnswer unless `data` is the contract's stream for the answer."""
    facts = form.facts(answer, usage=False)
    _raise(form, answer, check_stream(data, asked(answer, model), facts))


def verify_body(form: Form, answer: Answer, data: bytes, model: str = MODEL) -> None:
    """Raise WrongAnswer unless `data` is the contract's body for the answer."""
    _raise(form, answer, check_body(data, asked(answer, model), form.facts(answer)))


def _raise(form: Form, answer: Answer, violations: list[Any]) -> None:
    if violations:
        what = f"{form.name}, k={answer.k}, {len(answer.positions)} tokens"
        raise WrongAnswer(f"{what}: {len(violations)} violations, the first: {violations[0]}")


def events(source: Source, effort: Effort) -> list[EventCost]:
    """Return what an event costs, for every form and number of alternatives."""
    return [
        event_cost(form, [source.answer(effort.events, k) for _ in range(effort.streams)], effort)
        for form, k in itertools.product(FORMS.values(), effort.ks)
    ]


def event_cost(form: Form, answers: list[Answer], effort: Effort) -> EventCost:
    """Return what an event of these answers costs in this form."""
    table = TokenTable()
    streams = [form.stream(answer) for answer in answers]
    bursts = [reads_of(stream.events) for stream in streams]
    for answer, stream, burst in zip(answers, streams, bursts, strict=True):
        verify_stream(form, answer, translated(exchange(answer, table, True), stream.events))
        verify_stream(form, answer, translated(exchange(answer, table, True), burst))
    first = answers[0]
    rounds = interleaved(
        {
            "single": lambda: _feed(first, table, [stream.events for stream in streams]),
            "burst": lambda: _feed(first, table, bursts),
            "typed": _decoding(strict.WireChunk, streams),
            "generic": _decoding(Any, streams),
        },
        effort.rounds,
    )
    count = sum(stream.size for stream in streams)
    sent = sum(len(chunk) for stream in streams for chunk in stream.chunks)
    cost = {name: median(rounds, name) / count * 1e6 for name in rounds[0]}
    over = ratio(rounds, "single", "typed")
    return EventCost(form.name, first.k, round(sent / count), **cost, over_typed=over)


def _feed(answer: Answer, table: TokenTable, streams: list[list[bytes]]) -> None:
    for reads in streams:
        translator = StreamTranslator(exchange(answer, table, True))
        feed = translator.feed
        for data in reads:
            feed(data)
        translator.close()


def _decoding(kind: Any, streams: list[Stream]) -> Callable[[], None]:
    decode = msgspec.json.Decoder(kind).decode
    chunks = [chunk for stream in streams for chunk in stream.chunks]

    def work() -> None:
        for chunk in chunks:
            decode(chunk)

    return work


def bodies(source: Source, effort: Effort) -> list[BodySpeed]:
    """Return how fast bodies are translated: b in every form, c in some of them."""
    found = []
    size, k = BODIES["b"]
    answers = [source.answer(size, k) for _ in range(effort.bodies)]
    for form in FORMS.values():
        found.append(body_speed("b", form, answers, effort))
    if effort.large:
        large = [source.answer(*BODIES["c"])]
        found += [body_speed("c", FORMS[name], large, effort) for name in effort.large]
    return found


def body_speed(name: str, form: Form, answers: list[Answer], effort: Effort) -> BodySpeed:
    """Return how fast the bodies of these answers are translated from this form."""
    table = TokenTable()
    given = [form.body(answer) for answer in answers]
    for answer, body in zip(answers, given, strict=True):
        verify_body(form, answer, _translate(answer, table, body))
    first = answers[0]

    def ours() -> None:
        for body in given:
            _translate(first, table, body)

    rounds = interleaved(
        {"ours": ours, "typed": _parsing(strict.WireBody, given), "generic": _parsing(Any, given)},
        effort.rounds,
    )
    size = sum(map(len, given))
    speed = {kind: size / 1e6 / median(rounds, kind) for kind in rounds[0]}
    over = ratio(rounds, "ours", "typed")
    return BodySpeed(form.name, name, round(size / len(given)), **speed, over_typed=over)


def _translate(answer: Answer, table: TokenTable, body: bytes) -> bytes:
    made = exchange(answer, table, False)
    return translate_body(made, 200, "application/json", body).body


def _parsing(kind: Any, given: list[bytes]) -> Callable[[], None]:
    decode = msgspec.json.Decoder(kind).decode

    def work() -> None:
        for body in given:
            decode(body)

    return work
