"""The whole proxy on loopback, beside a bare pass-through in front of the same upstream.

The measured process has a core to itself; load and upstream share the other one. A round measures
both, one after the other in turning order, and a ratio is taken within its round: what an idle
moment or a neighbour does to the numbers, it does to both.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import load
from tests.bench.data import Answer, Source
from tests.bench.forms import FORMS, MODEL
from tests.bench.kernels import verify_body, verify_stream
from tests.bench.measure import Round, median, ratio
from tests.bench.process import Child, child, cores, cost, pinned

FORM = FORMS["vllm-0.4.2"]


@dataclass(frozen=True)
class Effort:
    """How much is measured: `seconds` of load a case, tokens of a stream."""

    rounds: int = 5
    seconds: float = 1.0
    burst: int = 400
    paced: int = 300
    large: bool = True


FULL = Effort()
QUICK = Effort(seconds=0.2, paced=60, large=False)


@dataclass(frozen=True)
class Compared:
    """One load through both: answers (or events) a second, CPU microseconds and switches of each.

    `rate` and `cpu` are ours over bare. A paced stream has no rate: the pace sets it. Where the
    kernel does not tell the CPU time it is NaN.
    """

    name: str
    unit: str
    bare: float
    ours: float
    rate: float | None
    cpu_bare: float
    cpu_ours: float
    cpu: float
    switches_bare: float
    switches_ours: float


@dataclass(frozen=True)
class Case:
    """A load, and the answer that comes back; `kind` is the upstream's file suffix."""

    job: load.Job
    answer: Answer
    kind: str


def cases(source: Source, effort: Effort) -> list[Case]:
    """Return the loads: a small body, b, c, a burst and paced streams."""
    found = [
        _case("small", source.answer(20, 0), "json"),
        _case("b", source.answer(100, 5), "json"),
    ]
    if effort.large:
        found.append(_case("c", source.answer(4000, 20), "json", connections=1))
    found.append(_case("burst", source.answer(effort.burst, 5), "sse"))
    found.append(_case("paced", source.answer(effort.paced, 5), "paced", once=True))
    return found


def _case(name: str, answer: Answer, kind: str, connections: int = 16, once: bool = False) -> Case:
    streamed = kind != "json"
    ask = load.asking(name, answer.k, streamed)
    return Case(load.Job(name, ask, connections, 0, once), answer, kind)


@contextmanager
def upstream(found: list[Case], where: set[int] | None) -> Iterator[str]:
    """Run the upstream with these cases' answers; its `model` says what the client asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for case in found:
            data = (
                FORM.body(case.answer)
                if case.kind == "json"
                else b"".join(FORM.stream(case.answer).events)
            )
            named = data.replace(f'"{MODEL}"'.encode(), f'"{case.job.name}"'.encode())
            (Path(folder) / f"{case.job.name}.{case.kind}").write_bytes(named)
        with child(["-m", "tests.bench.upstream", folder], where) as server:
            yield server.url


@dataclass(frozen=True)
class Side:
    """One of the two servers, and the jobs it was checked with."""

    name: str
    server: Child
    jobs: list[load.Job]


def compare(source: Source, effort: Effort) -> list[Compared]:
    """Return every load's numbers. Raises WrongAnswer, LoadError, StartError."""
    found = cases(source, effort)
    split = cores()
    alone, rest = split if split else (None, None)
    with upstream(found, rest) as backend:
        serve = ["-m", "wellspoken.proxy.cli", backend, "--adapter", "vllm"]
        with (
            child(["-m", "tests.bench.passthrough", backend], alone) as bare,
            child([*serve, "--listen", "127.0.0.1:0"], alone) as ours,
            pinned(rest),
            load.runner() as loop,
        ):
            sides = [
                Side("bare", bare, [loop.run(_seen(case, bare.url)) for case in found]),
                Side("ours", ours, [loop.run(_checked(case, ours.url)) for case in found]),
            ]
            _round(loop, sides, found, effort.seconds / 4)  # warms up
            rounds = []
            for _ in range(effort.rounds):
                sides.reverse()
                rounds.append(_round(loop, sides, found, effort.seconds))
    return [_compared(case, [each[n] for each in rounds]) for n, case in enumerate(found)]


async def _seen(case: Case, url: str) -> load.Job:
    """Return the job, knowing how many events answer it."""
    data = await load.fetch(url, case.job)
    return replace(case.job, events=data.count(b"data: "))


async def _checked(case: Case, url: str) -> load.Job:
    """Return the job after the answer was found to be the contract's."""
    data = await load.fetch(url, case.job)
    verify = verify_body if case.kind == "json" else verify_stream
    verify(FORM, case.answer, data, case.job.name)
    return replace(case.job, events=data.count(b"data: "))


def _round(
    loop: asyncio.Runner, sides: list[Side], found: list[Case], seconds: float
) -> list[Round]:
    """Put every load on both, one after the other; return the numbers of each load."""
    numbers: list[Round] = []
    for n, case in enumerate(found):
        each: Round = {}
        for side in sides:
            before = cost(side.server.pid)
            done = loop.run(load.run(side.server.url, side.jobs[n], seconds))
            after = cost(side.server.pid)
            count = done.answers * (1 if case.kind == "json" else len(case.answer.positions))
            each[f"{side.name}.rate"] = count / done.seconds
            each[f"{side.name}.cpu"] = (after.cpu - before.cpu) / count * 1e6
            each[f"{side.name}.switches"] = (after.switches - before.switches) / count
        numbers.append(each)
    return numbers


def _compared(case: Case, rounds: list[Round]) -> Compared:
    paced = case.kind == "paced"
    return Compared(
        name=case.job.name,
        unit="request" if case.kind == "json" else "event",
        bare=median(rounds, "bare.rate"),
        ours=median(rounds, "ours.rate"),
        rate=None if paced else ratio(rounds, "ours.rate", "bare.rate"),
        cpu_bare=median(rounds, "bare.cpu"),
        cpu_ours=median(rounds, "ours.cpu"),
        cpu=ratio(rounds, "ours.cpu", "bare.cpu"),
        switches_bare=median(rounds, "bare.switches"),
        switches_ours=median(rounds, "ours.switches"),
    )
