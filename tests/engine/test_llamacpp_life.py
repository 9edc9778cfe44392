"""The whole life of a real llama.cpp under the supervisor: kills, hangs, bad models, unloads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.engine import processes
from tests.engine.scripted import Host
from tests.waiting import block_until, until
from wellspoken.engine import child as children
from wellspoken.engine import shim
from wellspoken.engine import supervisor as module
from wellspoken.engine.failure import EngineError, NotReady
from wellspoken.engine.kind import Facts, Settings
from wellspoken.engine.llamacpp import llamacpp_child
from wellspoken.engine.llamacpp.llamacpp_kind import LlamaCpp
from wellspoken.engine.supervisor import Supervisor
from wellspoken.engine.unix_http import Client, Silent

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
TEXT = "Hello world! café 😀 done."  # what the tiny model says


@pytest.fixture
def root() -> Iterator[Path]:
    """The folder in which this test's places are, and nobody else's."""
    with processes.runtime() as folder:
        yield folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let restarts follow each other, and reads of the log, without a pause people would want.

    A read that is late, and rests for three times as long, meets the next phase when it is over.
    """
    monkeypatch.setattr(module, "BACKOFF", (0.02, 0.1))
    monkeypatch.setattr(children, "REST", 0.0)


def commands(root: Path) -> dict[int, list[str]]:
    """Return the arguments of each process that names something in `root`, by its id."""
    found = {}
    for pid in shim.look_around():
        try:
            said = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if f"{root}/".encode() in said:
            found[pid] = said.decode().split("\0")
    return found


def left(root: Path) -> list[str]:
    """Return what is there of engines whose places are in `root`: processes and folders."""
    return [str(path) for path in root.glob("*")] + list(map(" ".join, commands(root).values()))


async def freeze(pid: int) -> None:
    """Let a process do nothing more, SIGTERM included; return once that is so."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: (process := shim.look(pid)) is not None and process.state == "T")


class Unchecked(LlamaCpp):
    """Takes any file, since llama.cpp hangs (with the GIL held) while it opens a pipe."""

    def check(self) -> list[str]:
        return []


class Engine(Host):
    """A supervised llama.cpp and what it said; itself who sends requests to it."""

    def __init__(self, kind: LlamaCpp, settings: Settings) -> None:
        super().__init__()
        self.client = Client(Path("nowhere"))
        self.log: list[str] = []
        self.reasons: list[str] = []
        self.supervisor = Supervisor(kind, settings, self, self.log.append)

    async def up(self, socket: Path, facts: Facts) -> None:
        await super().up(socket, facts)
        self.client = Client(socket)

    def note_change(self) -> None:
        if self.supervisor.reason not in self.reasons:
            self.reasons.append(self.supervisor.reason)

    @property
    def pid(self) -> int:
        """The process that holds the model."""
        assert self.supervisor.pid is not None
        [engine] = shim.below(
            shim.look_around(), {self.supervisor.pid}, spared={self.supervisor.pid}
        )
        return engine.pid

    async def chat(self) -> str:
        """Ask it for its text as a request does that comes at any time."""
        await self.supervisor.enter()
        try:
            body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
            asked = json.dumps(body).encode()
            status, answer = await self.client.request("/v1/chat/completions", SECONDS, asked)
        finally:
            self.supervisor.leave()
        assert status == 200
        text: str = json.loads(answer)["choices"][0]["message"]["content"]
        return text

    async def reaches(self, state: str) -> None:
        await until(lambda: self.supervisor.state == state)

    async def restarted(self, times: int) -> None:
        await until(lambda: self.supervisor.restarts >= times)
        await self.reaches("ready")
        assert self.supervisor.restarts == times, self.reasons


Make = Callable[..., Awaitable[Engine]]


@pytest.fixture
async def make(tiny_model: Path, root: Path) -> AsyncIterator[Make]:
    """Make engines that end with the test and leave nothing; started unless `start` is False."""
    made: list[Engine] = []

    async def of(
        model: Path = tiny_model,
        start: bool = True,
        kind: type[LlamaCpp] = LlamaCpp,
        verbosity: int = 1,
        **settings: Any,
    ) -> Engine:
        llama = kind(model, context=512, parallel=2, threads=1, verbosity=verbosity)
        made.append(Engine(llama, Settings(**settings)))
        if start:
            await made[-1].supervisor.start()
        return made[-1]

    yield of
    for engine in made:
        await engine.supervisor.stop()
    assert left(root) == []


@pytest.fixture
def never(short: Path) -> Path:
    """A model whose load never ends."""
    os.mkfifo(short / "never.gguf")
    return short / "never.gguf"


async def test_it_starts_answers_and_stops(make: Make, root: Path, tiny_model: Path) -> None:
    engine = await make(verbosity=4)
    supervisor = engine.supervisor
    assert (supervisor.state, supervisor.reason, supervisor.first) == ("ready", "", False)
    assert supervisor.facts.models == (tiny_model.stem,) and supervisor.facts.context == 256
    assert await engine.chat() == TEXT
    phases = " ".join(engine.reasons)
    for phase in ("loading llama.cpp", "loading the model", "warming up"):
        assert f"llama.cpp is starting: {phase}," in phases
    # On a busy machine the line that says so is read when the engine is ready already.
    read = supervisor.kind.phase
    await until(lambda: "loading weights" in [read(line.partition(" ")[2]) for line in engine.log])
    assert len(left(root)) == 3  # a folder, the shim, the engine
    pid = engine.pid
    await supervisor.stop()
    assert (supervisor.state, supervisor.pid) == ("stopped", None)
    assert not processes.lives(pid) and left(root) == []
    assert not any("killed" in line for line in engine.log)
    with pytest.raises(Silent):
        await engine.client.request("/health", 1.0)


@pytest.mark.parametrize("victim", ["engine", "shim"])
async def test_killed_it_starts_again(victim: str, make: Make, root: Path) -> None:
    engine = await make()
    shims, pid = engine.supervisor.pid, engine.pid
    assert shims is not None
    os.kill(pid if victim == "engine" else shims, signal.SIGKILL)
    await engine.restarted(1)
    assert engine.told == ["up", "down", "up"]
    assert not processes.lives(pid) and not processes.lives(shims) and engine.pid != pid
    assert len(left(root)) == 3
    assert await engine.chat() == TEXT
    ended = "llama.cpp was ended by SIGKILL, and nobody asked it to; it starts again in 0.02 s"
    assert ended in engine.reasons


async def test_a_request_that_comes_in_between_waits(make: Make) -> None:
    engine = await make()
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.supervisor.state != "ready")
    assert await asyncio.gather(*(engine.chat() for _ in range(4))) == [TEXT] * 4
    assert engine.supervisor.restarts == 1, engine.reasons


async def test_an_answer_that_a_crash_cuts_off_is_no_answer(make: Make) -> None:
    engine = await make()
    pid = engine.pid
    await freeze(pid)  # so that the crash comes before the answer
    asked = asyncio.create_task(engine.chat())
    await until(lambda: engine.supervisor.open == 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Silent):
        await asked
    await engine.restarted(1)
    assert await engine.chat() == TEXT


async def test_hung_it_is_ended_and_started_again(make: Make) -> None:
    engine = await make(health_interval=0.1, health_timeout=2.0, health_failures=2)
    pid = engine.pid
    await freeze(pid)
    await engine.restarted(1)
    assert not processes.lives(pid)
    assert await engine.chat() == TEXT
    assert any("did not answer GET /health 2 times in a row" in line for line in engine.reasons)


async def test_hung_with_requests_open_it_is_ended(make: Make) -> None:
    engine = await make(health_interval=0.0, stall_timeout=3.0)
    pid = engine.pid
    await freeze(pid)
    with pytest.raises(Silent):
        await engine.chat()
    await engine.restarted(1)
    assert not processes.lives(pid)
    assert await engine.chat() == TEXT
    assert any("worked on nothing for" in line for line in engine.reasons)


async def test_sigterm_by_somebody_else_is_an_end_too(make: Make) -> None:
    engine = await make()
    os.kill(engine.pid, signal.SIGTERM)
    await engine.restarted(1)
    assert await engine.chat() == TEXT


async def test_one_that_sigterm_does_not_reach_is_killed(make: Make, root: Path) -> None:
    engine = await make(grace=0.2)
    await freeze(engine.pid)  # SIGTERM waits until it goes on
    await engine.supervisor.stop()
    assert left(root) == []
    assert "llamacpp: did not end 0.2 s after SIGTERM, killed" in engine.log


def bad(kind: str, folder: Path, good: Path) -> Path:
    file = folder / f"{kind}.gguf"
    if kind == "truncated":
        file.write_bytes(good.read_bytes()[:300_000])
    elif kind == "other":
        file.write_text("garbage")
    return file


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("truncated", "model is corrupted or incomplete"),
        ("other", "is not a GGUF model"),
        ("missing", "there is no model file"),
    ],
)
async def test_a_bad_model_is_final(
    kind: str, expected: str, make: Make, root: Path, tmp_path: Path, tiny_model: Path
) -> None:
    engine = await make(bad(kind, tmp_path, tiny_model), start=False)
    with pytest.raises(EngineError, match=expected) as failed:
        await asyncio.wait_for(engine.supervisor.start(), SECONDS)
    assert failed.value.lasting and f"{kind}.gguf" in str(failed.value)
    assert (engine.supervisor.state, engine.supervisor.restarts) == ("failed", 0)
    assert left(root) == []
    with pytest.raises(NotReady, match=expected) as refused:
        await engine.supervisor.enter()
    assert refused.value.retry_after is None


async def test_five_ends_are_too_many(make: Make, root: Path) -> None:
    engine = await make()
    for number in range(5):
        await engine.restarted(number)
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: engine.supervisor.state != "ready")
    await engine.reaches("failed")
    assert engine.supervisor.reason.startswith(
        "it ended 5 times within 10 minutes, and is tried again 1 minute later"
    )
    assert "llama.cpp was ended by SIGKILL" in engine.supervisor.reason
    assert left(root) == []
    with pytest.raises(NotReady, match="5 times"):
        await engine.supervisor.enter()


async def test_unused_it_is_unloaded_and_loaded_for_those_who_come(make: Make, root: Path) -> None:
    engine = await make(idle_unload=1.0)
    for turn in range(1, 3):
        await engine.reaches("stopped")
        assert engine.supervisor.reason.startswith("it was unloaded after")
        assert left(root) == []
        assert await asyncio.gather(*(engine.chat() for _ in range(5))) == [TEXT] * 5
        assert engine.told == ["up", *(["down", "up"] * turn)]
    assert engine.supervisor.restarts == 0  # nobody counts these as ends


async def test_a_stop_in_the_middle_of_a_load_leaves_nothing(
    make: Make, root: Path, never: Path
) -> None:
    engine = await make(never, start=False, kind=Unchecked)
    starting = asyncio.create_task(engine.supervisor.start())
    await until(lambda: "loading the model" in engine.supervisor.reason)
    assert len(left(root)) == 3
    await asyncio.wait_for(engine.supervisor.stop(), SECONDS)
    assert engine.supervisor.state == "stopped" and left(root) == []
    with pytest.raises(EngineError, match="shutting down"):
        await starting


async def test_a_load_without_end_is_ended_at_the_limit(
    make: Make, root: Path, never: Path
) -> None:
    engine = await make(never, start=False, kind=Unchecked, start_timeout=1.5, restarts=2)
    with pytest.raises(EngineError, match="2 times") as failed:
        await asyncio.wait_for(engine.supervisor.start(), SECONDS)
    assert "llama.cpp was not ready after 1.5 s (" in str(failed.value)
    assert "raise start_timeout" in str(failed.value) and not failed.value.lasting
    assert left(root) == []


async def test_a_crash_in_the_middle_of_a_load_is_told(make: Make, root: Path, never: Path) -> None:
    engine = await make(never, start=False, kind=Unchecked, restarts=1)
    starting = asyncio.create_task(engine.supervisor.start())
    await until(lambda: "loading the model" in engine.supervisor.reason)
    [pid] = [pid for pid, argv in commands(root).items() if llamacpp_child.__name__ == argv[3]]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="was ended by SIGKILL while it loaded"):
        await starting
    assert left(root) == []


def test_it_runs_on_uvloop(tiny_model: Path, root: Path) -> None:
    async def run() -> str:
        kind = LlamaCpp(tiny_model, context=512, parallel=1, threads=1)
        engine = Engine(kind, Settings())
        await engine.supervisor.start()
        os.kill(engine.pid, signal.SIGKILL)
        await engine.restarted(1)
        try:
            return await engine.chat()
        finally:
            await engine.supervisor.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == TEXT
    assert left(root) == []


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.engine.test_llamacpp_life import Engine, Unchecked
from wellspoken.engine.kind import Settings

async def main():
    kind = Unchecked(Path(sys.argv[1]), context=512, parallel=1, threads=1)
    engine = Engine(kind, Settings())
    starting = asyncio.create_task(engine.supervisor.start())
    while not starting.done() and (not sys.argv[2] or sys.argv[2] not in engine.supervisor.reason):
        await asyncio.sleep(0.01)
    if starting.done():
        starting.result()
    print("there", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["", "loading the model"])
def test_a_killed_owner_takes_it_along(
    moment: str, tiny_model: Path, never: Path, root: Path
) -> None:
    """No engine process, socket or folder is left soon after `kill -9` of the proxy."""
    model = never if moment else tiny_model
    argv = [sys.executable, "-c", OWNER, str(model), moment]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"there\n"
        assert len(left(root)) == 3
        owner.kill()
        owner.wait()
        block_until(lambda: left(root) == [], lambda: "\n".join(left(root)))
