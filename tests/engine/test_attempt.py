"""One start of an engine, with a real process on a real socket that a small program stands for."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clock import skip
from tests.engine.scripted import Host, ScriptedKind
from tests.waiting import SECONDS, until
from wellspoken.engine import attempt as module
from wellspoken.engine import run_folder as places
from wellspoken.engine.attempt import Running, attempt
from wellspoken.engine.child import Child
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command, Facts, Settings
from wellspoken.engine.run_folder import RunFolder
from wellspoken.engine.unix_http import Client

PROGRAM = Path(__file__).with_name("program.py")


class Small(ScriptedKind):
    """The program with some steps."""

    def __init__(self, *steps: str, reports: bool = False, problem: EngineError | None = None):
        self.steps, self.reports, self.problem = steps, reports, problem
        self.folder = Path()

    def check(self) -> list[str]:
        if self.problem is not None:
            raise self.problem
        return ["it is small"]

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        self.folder = folder
        argv = (sys.executable, str(PROGRAM), str(socket), *self.steps)
        return Command(argv, {"PATH": os.environ["PATH"]}, self.reports)

    def phase(self, line: str) -> str | None:
        return line.removeprefix("phase ") if line.startswith("phase ") else None

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        return EngineError(f"died with {code}: {' | '.join(tail)}")

    def explain_report(self, report: Mapping[str, str], tail: Sequence[str]) -> EngineError:
        return EngineError(f"refused with {report['error']}: {' | '.join(tail)}")

    async def facts(self, client: Client, argv: Sequence[str], tail: Sequence[str]) -> Facts:
        status, _ = await client.request("/v1/models", 60)
        assert status == 200
        return Facts(version=tail[0] if tail else "")  # a line may be read after the answer


class Trying:
    """An attempt, and what it told meanwhile."""

    def __init__(self, kind: Small, **settings: Any) -> None:
        self.kind, self.host = kind, Host()
        self.log: list[str] = []
        self.phases: list[str] = []
        self.settings = Settings(**settings)

    async def run(self) -> Running:
        return await attempt(
            self.kind, self.settings, self.host, self.log.append, self.phases.append
        )

    async def fails(self) -> str:
        """Let it fail; return why. Nothing is left of it."""
        with pytest.raises(EngineError) as failed:
            await asyncio.wait_for(self.run(), 600)
        assert self.host.told == [] and not self.kind.folder.joinpath("api.sock").exists()
        return str(failed.value)


@pytest.mark.parametrize("reports", [False, True])
async def test_until_it_answers(tmp_path: Path, reports: bool) -> None:
    steps = ["report:" + '{"ready": "yes"}'] if reports else []
    steps += ["say:one", "say:phase loading", "say:phase compiling"]
    trying = Trying(Small(*steps, f"until:{tmp_path}/go", "listen:200", "forever", reports=reports))
    starting = asyncio.create_task(trying.run())
    await until(lambda: "compiling" in trying.phases)  # a log may be read later than it answers
    (tmp_path / "go").touch()
    running = await starting
    assert trying.phases[:2] == ["checking what it needs", "starting the process"]
    assert trying.phases[2:] == ["loading", "compiling", "warming up"]
    assert trying.host.told == ["up"] and running.facts.version == "one"
    assert trying.log[:2] == ["scripted: it is small", "scripted: one"]
    await until(lambda: list(running.child.tail)[-1] == "asked POST /v1/completions")
    pid = running.child.pid
    assert await running.end() != 0
    assert not trying.kind.folder.exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


async def test_one_that_dies_while_it_loads() -> None:
    text = await Trying(Small("say:no memory", "exit:3")).fails()
    assert text == "died with 3: no memory"


async def test_one_that_dies_of_its_first_request() -> None:
    trying = Trying(Small("deaf", "wait:0.3", "exit:4"))
    assert "died with 4" in await trying.fails()


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (['report:{"error": "load"}', "say:what", "exit:1"], "refused with load: what"),
        (["exit:5"], "died with 5: "),
        (["say:no JSON", "forever"], "died with -9"),
        (["report:1", "forever"], "died with -9"),
    ],
    ids=["error", "none", "other", "no object"],
)
async def test_reports(steps: list[str], text: str) -> None:
    assert text in await Trying(Small(*steps, reports=True)).fails()


async def test_a_report_that_is_read_later_than_the_end_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Child.status_line

    async def read_late(child: Child) -> bytes:
        await child.wait()
        await asyncio.sleep(0.1)
        return await read(child)

    monkeypatch.setattr(Child, "status_line", read_late)
    steps = ['report:{"error": "load"}', "say:what", "exit:1"]
    assert await Trying(Small(*steps, reports=True)).fails() == "refused with load: what"


async def test_the_checks_come_first() -> None:
    problem = EngineError("no such model", lasting=True)
    trying = Trying(Small("forever", problem=problem))
    assert await trying.fails() == "no such model"
    assert trying.phases == ["checking what it needs"]


@pytest.mark.parametrize("last", ["forever", "deaf"])
async def test_one_that_is_never_ready(last: str) -> None:
    steps = ["say:phase loading", last, *(["forever"] if last == "deaf" else [])]
    trying = Trying(Small(*steps), start_timeout=60.0)
    failing = asyncio.create_task(trying.fails())
    await until(lambda: "loading" in trying.phases)
    skip(60)
    assert (await failing).startswith("Scripted was not ready after 60 s (loading) and was ended.")


async def test_a_download_takes_as_long_as_it_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = [f"downloading {n}" for n in range(4)]
    says = [step for n in range(4) for step in (f"say:phase {phases[n]}", f"until:{tmp_path}/{n}")]
    trying = Trying(Small(*says, "listen:200", "forever"), start_timeout=60.0)
    running = asyncio.create_task(trying.run())
    for n, phase in enumerate(phases):
        await until(lambda phase=phase: trying.phases[-1:] == [phase])  # type: ignore[misc]
        skip(40)
        await asyncio.sleep(1.5 * module.LOOK_SECONDS)
        (tmp_path / str(n)).touch()
    await (await running).end()
    monkeypatch.setattr(module, "ALIVE_SECONDS", 0.1)
    trying = Trying(Small("say:phase downloading", "forever"), start_timeout=60.0)
    failing = asyncio.create_task(trying.fails())
    await until(lambda: "downloading" in trying.phases)
    skip(60)
    assert "(downloading)" in await failing


async def test_a_download_of_which_the_log_says_nothing(tmp_path: Path) -> None:
    trying = Trying(Small(f"until:{tmp_path}/go", "listen:200", "forever"), start_timeout=600.0)
    pulses = iter(["downloading 1 GB", "downloading 2 GB"])
    trying.kind.pulse = lambda: next(pulses, None)  # type: ignore[method-assign]
    running = asyncio.create_task(trying.run())
    await until(lambda: "loading the model" in trying.phases)
    (tmp_path / "go").touch()
    await (await running).end()
    told = ["downloading 1 GB", "downloading 2 GB", "loading the model", "warming up"]
    assert trying.phases[-4:] == told


async def test_a_file_system_that_hangs_holds_up_no_start() -> None:
    gate = threading.Event()
    trying = Trying(Small("wait:1.5", "listen:200", "forever"), start_timeout=60.0)
    trying.kind.pulse = lambda: str(gate.wait(SECONDS))  # type: ignore[method-assign]
    began = asyncio.get_running_loop().time()
    await (await trying.run()).end()
    assert asyncio.get_running_loop().time() - began < SECONDS / 2
    gate.set()


async def test_a_warm_up_that_is_refused_is_no_failure() -> None:
    """A pooling model has no /v1/completions."""
    trying = Trying(Small("listen:404", "forever"))
    await (await trying.run()).end()
    assert "scripted: not warmed up, since POST /v1/completions answered 404: {}" in trying.log


async def test_a_start_that_is_given_up_leaves_nothing() -> None:
    trying = Trying(Small("say:phase loading", "forever"))
    running = asyncio.create_task(trying.run())
    await until(lambda: "loading" in trying.phases)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not trying.kind.folder.exists() and trying.host.told == []


async def test_a_start_that_is_given_up_while_its_place_is_made_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, short: Path
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(places, "_bases", lambda: [short])
    make = RunFolder.make

    def slowly(name: str) -> RunFolder:
        begun.set()
        go_on.wait(SECONDS)
        return make(name)

    monkeypatch.setattr(RunFolder, "make", slowly)
    running = asyncio.create_task(Trying(Small("forever")).run())
    await until(begun.is_set)
    running.cancel()
    await asyncio.sleep(0.02)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [list(root.iterdir()) for root in short.iterdir()] == [[]]
