"""The loads: what is asked, what comes back, how many at once; and the upstream that answers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import load
from tests.bench.data import Answer, Source
from tests.bench.forms import FORMS, MODEL, Form
from tests.bench.kernels import verify_body, verify_stream
from tests.bench.process import Child, child

OLD = FORMS["vllm-0.4.2"]
CONFORMING = FORMS["openai"]


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds; `seconds` of load a case; events and tokens of the answers."""

    rounds: int = 5
    seconds: float = 1.0
    burst: int = 400
    paced: int = 300
    large: int = 4000
    starts: int = 5


FULL = Effort()
QUICK = Effort(rounds=2, seconds=0.15, paced=40, large=1000, starts=1)


@dataclass(frozen=True)
class Case:
    """A load, and the answer that comes back; `kind` is the upstream's file suffix.

    `untouched`: it is asked for a second time with `"oai_compat": false`.
    """

    title: str
    job: load.Job
    answer: Answer
    kind: str
    form: Form = OLD
    untouched: bool = False

    @property
    def name(self) -> str:
        """The model that stands for it."""
        return self.job.name

    @property
    def units(self) -> int:
        """What an answer counts: a body one, a stream its tokens."""
        return 1 if self.kind == "json" else len(self.answer.positions)

    def data(self) -> bytes:
        """Return the backend's answer."""
        if self.kind == "json":
            found = self.form.body(self.answer)
        else:
            found = b"".join(self.form.stream(self.answer).events)
        return found.replace(f'"{MODEL}"'.encode(), f'"{self.name}"'.encode())

    def asked_untouched(self) -> load.Job:
        """Return the same load for the backend's own answer."""
        ask = load.asking(self.name, self.answer.k, self.kind != "json", oai_compat=False)
        return replace(self.job, ask=ask)


def case(
    name: str, title: str, answer: Answer, kind: str, connections: int = 16, form: Form = OLD
) -> Case:
    """Return a load for this answer; where the upstream keeps a pace, each stream is asked once."""
    ask = load.asking(name, answer.k, kind != "json")
    once = kind not in ("json", "sse")
    return Case(title, load.Job(name, ask, connections, 0, once), answer, kind, form)


def cases(source: Source, effort: Effort) -> list[Case]:
    """Return all loads."""
    paced, large = effort.paced, effort.large
    five = source.answer(paced, 5)
    plain = source.answer(20, 0)
    conforming = "conforming body, 20 tokens, no logprobs"
    return [
        case("small", "body, 20 tokens, no logprobs", plain, "json"),
        case("b", "body, 100 tokens x 5", source.answer(100, 5), "json"),
        case(
            "c", f"body, {large:,} tokens x 20, one at a time", source.answer(large, 20), "json", 1
        ),
        case("burst", "stream x 5, sent at once", source.answer(effort.burst, 5), "sse"),
        case("paced64", "64 streams x 5, an event every 5 ms", five, "paced", 64),
        case("paced16", "16 streams x 5, an event every 5 ms", five, "paced", 16),
        case("wide16", "16 streams x 20, likewise", source.answer(paced, 20), "paced", 16),
        replace(case("same", conforming, plain, "json", form=CONFORMING), untouched=True),
        case("same16", "16 conforming streams x 5, likewise", five, "paced", 16, CONFORMING),
    ]


@contextmanager
def upstream(found: Iterable[Case], where: set[int] | None) -> Iterator[Child]:
    """Run the upstream with these cases' answers; its `model` says what the client asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for each in found:
            (Path(folder) / f"{each.name}.{each.kind}").write_bytes(each.data())
        with child(["-m", "tests.bench.upstream", folder], where) as server:
            yield server


async def look(each: Case, url: str, job: load.Job | None = None) -> load.Job:
    """Return the job, knowing how many events answer it. Raises LoadError."""
    wanted = job or each.job
    data = await load.fetch(url, wanted)
    return replace(wanted, events=data.count(b"data: "))


async def verify(each: Case, url: str) -> load.Job:
    """Return the job after its answer was found to be the contract's. Raises WrongAnswer."""
    data = await load.fetch(url, each.job)
    check = verify_body if each.kind == "json" else verify_stream
    check(each.form, each.answer, data, each.name)
    return replace(each.job, events=data.count(b"data: "))
