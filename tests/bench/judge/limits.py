"""What is no ratio of CPU: start, memory, how long the loop is held, an event's way, workers."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.bench import load
from tests.bench.data import Source
from tests.bench.judge import latency, servers, workers
from tests.bench.judge.loads import Case, Effort, case, upstream, verify
from tests.bench.measure import Round, median
from tests.bench.process import (
    START_SECONDS,
    Child,
    StartError,
    cores,
    forget_peak,
    memory,
    pinned,
    run,
    start,
)

AT_ONCE = 8  # large answers


@dataclass(frozen=True)
class Limits:
    """Medians over the rounds: seconds, MB, milliseconds.

    `held`: the longest wait of a cheap question while large answers pass one at a time, by the
    clock of the server's CPU; `held_many` while eight pass at once; `waited` and `waited_many`: the
    same by the clock on the wall, with whatever else ran on the core. `growth`: of resident memory
    by those eight, up to `peak`. `direct`, `bare`, `ours`: p99 of an event's way, with the streams'
    events at the same moment; `added` is ours without direct, in the same round; `added_spread`
    with the events spread. `scaling`: see tests.bench.judge.workers.
    """

    start: float
    idle: float
    held: float
    held_many: float
    waited: float
    waited_many: float
    growth: float
    peak: float
    direct: float
    bare: float
    ours: float
    added: float
    added_bare: float
    added_spread: float
    scaling: workers.Scaling


def measure(source: Source, effort: Effort, tell: Callable[[str], None] = lambda _: None) -> Limits:
    """Return all of them. Raises WrongAnswer, LoadError, StartError."""
    small = case("small", "", source.answer(20, 0), "json")
    large = case("c", "", source.answer(effort.large, 20), "json", 1)
    middle = case("b", "", source.answer(100, 5), "json", 32)
    streams = latency.streams(source, effort.paced)
    split = cores()
    alone, rest = split if split else (None, None)
    with (
        upstream([small, large, middle, *streams], rest) as backend,
        pinned(rest),
        load.runner() as loop,
    ):
        tell("starts")
        starts = [_start(loop, small, backend.url, alone) for _ in range(effort.starts)]
        with (
            run(servers.ours(backend.url), alone) as ours,
            run(servers.bare(backend.url), alone) as bare,
        ):
            job = loop.run(verify(large, ours.url))
            tell("large answers")
            rounds = [_hold(loop, ours, job, effort) for _ in range(effort.rounds)]
            paths = [
                latency.Path("direct", backend.url),
                latency.Path("bare", bare.url),
                latency.Path("ours", ours.url),
            ]
            loop.run(verify(streams[0], ours.url))
            tell("latency")
            loop.run(latency.measure(streams, paths, backend.url, True))  # warms up
            for each in rounds:
                each |= loop.run(latency.measure(streams, paths, backend.url, True))
                spread = loop.run(latency.measure(streams, paths, backend.url, False))
                each |= {f"{name}.spread": value for name, value in spread.items()}
                paths = paths[1:] + paths[:1]
        tell("workers")
        scaling = workers.measure(loop, middle, backend, effort)
    return _limits(starts, rounds, scaling)


def _limits(starts: list[Round], rounds: list[Round], scaling: workers.Scaling) -> Limits:
    def added(name: str, direct: str) -> float:
        return statistics.median(each[name] - each[direct] for each in rounds)

    names = ("held", "held_many", "waited", "waited_many", "growth", "peak")
    return Limits(
        start=median(starts, "start"),
        idle=median(starts, "idle"),
        **{name: median(rounds, name) for name in names},
        direct=median(rounds, "direct.p99"),
        bare=median(rounds, "bare.p99"),
        ours=median(rounds, "ours.p99"),
        added=added("ours.p99", "direct.p99"),
        added_bare=added("bare.p99", "direct.p99"),
        added_spread=added("ours.p99.spread", "direct.p99.spread"),
        scaling=scaling,
    )


def _start(loop: asyncio.Runner, small: Case, backend: str, where: set[int] | None) -> Round:
    """Return seconds from the start to the first answer, and what is resident a while later."""
    program = servers.ours(backend)
    with tempfile.TemporaryFile() as log, pinned(where):
        began = time.perf_counter()
        process = start(program, log.fileno())
    try:
        while True:
            try:
                loop.run(load.fetch(program.url, small.job))
                break
            except ConnectionRefusedError:
                if process.poll() is not None or time.perf_counter() > began + START_SECONDS:
                    raise StartError(f"{program.command} did not answer") from None
                time.sleep(0.002)
        seconds = time.perf_counter() - began
        time.sleep(0.5)  # what a start puts off is done by then
        return {"start": seconds, "idle": memory(process.pid).now}
    finally:
        process.kill()
        process.wait()


def _hold(loop: asyncio.Runner, ours: Child, job: load.Job, effort: Effort) -> Round:
    """Return the longest waits of a cheap question, and what eight large answers take."""
    seconds = max(effort.seconds, 0.3)
    many = replace(job, connections=AT_ONCE)
    numbers: Round = {}
    for name, what in (("", job), ("_many", many)):
        before = memory(ours.pid).now
        forget_peak(ours.pid)
        with _probe(ours, seconds) as found:
            loop.run(load.run(ours.url, what, seconds * 1.2))
        numbers[f"held{name}"], numbers[f"waited{name}"] = found["worked"], found["longest"]
        numbers["peak"] = memory(ours.pid).peak
        numbers["growth"] = numbers["peak"] - before
    return numbers


@contextmanager
def _probe(server: Child, seconds: float) -> Iterator[dict[str, float]]:
    """Run the probe beside the block; the dictionary is filled at its end."""
    found: dict[str, float] = {}
    command = [sys.executable, "-m", "tests.bench.judge.probe", server.url]
    command += [str(server.pid), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield found
        said, _ = process.communicate()
        if process.returncode:
            raise load.LoadError(f"the probe failed: {said}")
        found.update(json.loads(said))
