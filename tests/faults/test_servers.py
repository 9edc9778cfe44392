"""What happens to the servers does happen to them: real llama.cpp, killed, stopped, slow.

It closes the connection of each stream and does not say so, so some requests to it itself fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.process import cpu_seconds
from tests.faults import report
from tests.faults.clients import Load, Record, Sample
from tests.faults.fronts import FRONTS, Front, Running
from tests.faults.script import Fault, Measured, Plan, measure
from tests.faults.servers import Server, serve
from tests.waiting import SECONDS, until

ALL_OF_IT = 1.0


@contextmanager
def nothing(servers: Sequence[Server], folder: Path) -> Iterator[Running]:
    """Put nothing in front of the first server."""
    yield Running(servers[0].url, lambda head: servers[0].name)


async def wait_for(load: Load, end: str, count: int = 1) -> None:
    """Wait until so many requests more have ended so."""
    before = len(load.record.samples)

    def has_ended(record: Record) -> bool:
        return sum(each.end == end for each in record.samples[before:]) >= count

    async with asyncio.timeout(SECONDS):
        await load.wait_for(has_ended)


async def test_a_server_is_killed_and_starts_again_where_it_was(tiny_model: Path) -> None:
    async with serve(tiny_model, [ALL_OF_IT]) as [server]:
        load = Load(server.url, 4, lambda head: "")
        load.begin()
        await wait_for(load, "whole", 20)
        await server.kill()
        await wait_for(load, "unstarted", 8)
        assert "Connect call failed" in load.record.samples[-1].why
        await server.start()
        await wait_for(load, "whole", 20)
        await load.stop(SECONDS)


async def test_a_paused_server_answers_nothing_until_it_goes_on(tiny_model: Path) -> None:
    async with serve(tiny_model, [ALL_OF_IT]) as [server]:
        await server.pause()
        load = Load(server.url, 4, lambda head: "")
        load.begin()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await load.wait_for(lambda record: record.samples)
        await server.resume()
        await wait_for(load, "whole", 20)
        await load.stop(SECONDS)


async def test_a_server_has_no_more_of_a_core_than_its_share(tiny_model: Path) -> None:
    async with serve(tiny_model, [0.1]) as [server]:
        load = Load(server.url, 4, lambda head: "")
        load.begin()
        for _ in range(3):  # also after it was stopped
            await wait_for(load, "whole", 4)
            await server.pause()
            await server.resume()
        took = [await _seconds_to_use(server, 0.2) for _ in range(3)]
        # 2 s less what was saved up; who keeps it down may be late once, and makes up for that.
        assert max(took) > 1.0
        await load.stop(SECONDS)


async def _seconds_to_use(server: Server, cpu: float) -> float:
    """Return how long a server takes to use so many seconds of a core."""
    begin, used = time.monotonic(), cpu_seconds(server.pid)
    await until(lambda: cpu_seconds(server.pid) > used + cpu, "CPU that is used")
    return time.monotonic() - begin


async def test_a_run_is_measured_and_shown(tiny_model: Path, tmp_path: Path) -> None:
    # A second without an answer.
    faults = (Fault(0.2, 1, "kill"), Fault(0.4, 0, "pause"), Fault(0.8, 0, "resume"))
    plan = Plan(2.5, 4, (ALL_OF_IT, 0.5), faults, warm=0.1)
    measured = await measure(Front("none", "none", nothing), plan, tiny_model, tmp_path)
    assert measured.seconds >= 2.5
    assert measured.servers == ["A", "B"]
    assert measured.record.served("A") == len(measured.record.ended("whole")) > 0
    assert max(each.seconds for each in measured.record.samples) > 0.25


@pytest.mark.parametrize("front", [each for each in FRONTS if each.family == "nginx"])
async def test_nginx_says_which_server_answered(
    tiny_model: Path, tmp_path: Path, front: Front
) -> None:
    if why := front.missing():
        pytest.skip(why)
    plan = Plan(1.0, 6, (ALL_OF_IT, ALL_OF_IT), (), warm=0.1)
    measured = await measure(front, plan, tiny_model, tmp_path)
    served = [measured.record.served(name) for name in measured.servers]
    assert min(served) > 0 and sum(served) == len(measured.record.samples)


def test_the_table_counts_what_failed_and_times_what_was_whole() -> None:
    whole = [Sample(True, "whole", n / 10, 0.0, n / 100, "AAB"[n % 3]) for n in range(1, 31)]
    failed = [Sample(True, "unstarted", 9.0, 0.0), Sample(False, "broken", 1.0, 0.0)]
    found = {
        "one": Measured(Record([*whole, *failed]), 10.0, ["A", "B"]),
        "other": Measured(Record(whole[:15]), 10.0, ["A", "B"]),
    }
    head, _, *rows = (line.split("|")[1:-1] for line in report.table(found).splitlines())
    assert len({len(row) for row in [head, *rows]}) == 1
    one, other = ([cell.strip() for cell in row] for row in rows)
    assert one[1:] == "32 1 1 3.0 1.00 1.50 3.00 9.0 0.15 0.30 66.7 33.3".split()
    assert other[4:6] == ["1.5", "0.50"]
    assert report.shares(found).count("66.7") == 2
