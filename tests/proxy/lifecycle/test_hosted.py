"""A configured engine as a target: its address, names and version, its log, and a real process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.clock import skip
from tests.conforming import body
from tests.fakes import engine_server
from tests.fakes.engine import EngineProxy, Kind, engine_proxy
from tests.fakes.upstream import Script, whole
from tests.proxy.conftest import MESSAGES, envelope
from tests.waiting import until
from wellspoken.adapters.servers.registry import find
from wellspoken.adapters.servers.versions import for_version
from wellspoken.engine.attempt import attempt
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command, Facts
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.tables import Engine
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.hosted import kind_of

Make = Callable[..., AbstractAsyncContextManager[EngineProxy]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Run a proxy with an engine: `async with make(script, ...) as running`."""

    def of(*scripts: Script, **more: Any) -> AbstractAsyncContextManager[EngineProxy]:
        return engine_proxy(monkeypatch, *scripts, **more)

    return of


async def test_what_runs_has_an_address_a_version_and_names(make: Make) -> None:
    facts = Facts(version="0.5.4", models=("base", "lora"))
    async with make(whole(body()), facts=facts) as running:
        target = running.target
        assert target.upstream is None and target.engine is running.supervisor
        assert running.hosted.last_heard() == 0.0
        target.lone = True
        await running.ready()
        upstream = target.upstream
        assert upstream is not None and upstream.url == f"unix:{running.upstream.path}"
        assert target.backend == for_version(find("vllm"), "0.5.4") != find("vllm")
        assert list(target.names) == ["base", "lora"] and not target.lone
        await upstream.probe("/health")
        assert running.hosted.last_heard() == 0.0  # a model that hangs would not show there
        async with await running.proxy.chat() as response:
            assert response.status == 200
        assert running.hosted.last_heard() > 0.0
        await running.hosted.down()
        assert target.upstream is None and running.hosted.last_heard() == 0.0


async def test_the_alias_comes_first(make: Make) -> None:
    async with make(facts=Facts(models=("m", "lora")), alias="mine") as running:
        assert list(running.target.names) == ["mine"]
        await running.ready()
        assert list(running.target.names) == ["mine", "m", "lora"]


async def test_an_engine_that_lists_nothing_keeps_its_configured_name(make: Make) -> None:
    async with make(facts=Facts()) as running:
        await running.ready()
        assert running.target.names == ("m",)


async def test_what_it_lists_is_routed_to_it_among_several(make: Make) -> None:
    other = {"name": "other", "url": "http://127.0.0.1:9", "models": ["x"], "adapter": "openai"}
    facts = Facts(models=("listed", "x"))
    async with make(whole(body()), backends=(other,), facts=facts) as running:
        router = running.proxy.service.state.router
        assert router.find("m").alone is running.target
        await running.ready()
        assert router.find("listed").alone is running.target
        # A configured name is not taken away.
        assert [each.name for each in router.find("x").servers] == ["other"]
        assert router.label("listed") == "listed" and router.label("m") == "_other"
        async with await running.proxy.chat(model="listed") as response:
            assert response.status == 200
        assert (await running.proxy.error(404, model="y"))["code"] == "model_not_found"


async def test_alone_it_gets_every_name(make: Make) -> None:
    async with make(whole(body())) as running:
        await running.ready()
        async with await running.proxy.chat(model="whatever") as response:
            assert response.status == 200
        assert running.upstream.requests[0].json()["model"] == "whatever"


async def test_each_change_of_the_state_is_one_line(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    facts = Facts(version="0.32.0", models=("m",))
    async with make(facts=facts, idle_unload=100, health_interval=0, restarts=3) as running:
        await running.ready()
        await running.end()
        running.failing = EngineError("no luck")
        running.gate.set()
        await until(lambda: running.supervisor.restarts >= 2)
        running.failing = None
        await running.state("ready")
        skip(100)
        await running.state("stopped")
        running.failing = EngineError("no memory")
        status = await running.proxy.error(503)
        assert "no memory" in status["message"]
        await running.state("failed")
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "wellspoken"]
    expected = (
        ("INFO", "engine: vLLM is being started"),
        ("INFO", "engine: vLLM 0.32.0 is ready, with m, after "),
        ("WARNING", "engine: vLLM was ended by SIGKILL, and nobody asked it to; it starts again"),
        ("WARNING", "engine: no luck; it starts again in "),
        ("INFO", "engine: vLLM 0.32.0 is ready, with m, after "),
        ("INFO", "engine: vLLM is ending: it was unloaded after "),
        ("INFO", "engine: vLLM has ended"),
        ("INFO", "engine: vLLM is being started"),
        ("ERROR", "engine: vLLM stays down: it ended 3 times"),
    )
    assert len(lines) == len(expected), lines
    for (level, line), (wanted, beginning) in zip(lines, expected, strict=True):
        assert level == wanted and line.startswith(beginning), lines


async def test_a_scrape_tells_its_state(make: Make) -> None:
    async with make() as running:
        found = await running.proxy.metrics()
        assert found['wellspoken_engine_up{backend="engine"}'] == 0.0
        await running.ready()
        found = await running.proxy.metrics()
        assert found['wellspoken_engine_up{backend="engine"}'] == 1.0


async def test_the_settings_arrive(make: Make) -> None:
    given = {
        "start_timeout": 7.0, "grace": 1.0, "wait": 2.0, "queue": 3, "idle_unload": 4.0,
        "health_interval": 5.0, "health_timeout": 6.0, "health_failures": 8, "stall_timeout": 9.0,
        "restarts": 10,
    }  # fmt: skip
    async with make(tables={"server": {"drain_timeout": 11.0}}, **given) as running:
        settings = running.supervisor.settings
        assert {name: getattr(settings, name) for name in given} == given
        assert settings.shutdown_timeout == 11.0
    async with make(start_timeout=0.0) as running:
        assert running.supervisor.settings.start_timeout is None


def configured(**engine: Any) -> Engine:
    config: Config = load(None, {"engine": engine}, {})
    assert not isinstance(config.engine, msgspec.UnsetType)
    return config.engine


def test_llama_cpp_is_made_of_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from a file\n")
    monkeypatch.setenv("A_SECRET", "from here")
    monkeypatch.setenv("LET_IN", "yes")
    kind = kind_of(
        configured(
            kind="llamacpp",
            model=str(tmp_path / "a.gguf"),
            alias="mine",
            context=512,
            environment={"ONE": "env:A_SECRET", "TWO": f"file:{tmp_path / 'token'}", "THREE": "3"},
            inherit=["LET_*"],
        )
    )
    assert (kind.name, kind.title) == ("llamacpp", "llama.cpp")
    command = kind.command(tmp_path / "api.sock", tmp_path, 1.0)
    environment = command.environment
    wanted = {"ONE": "from here", "TWO": "from a file", "THREE": "3", "LET_IN": "yes"}
    assert {name: environment.get(name) for name in wanted} == wanted
    assert "A_SECRET" not in environment
    line = " ".join(command.argv)
    assert "mine" in line and "512" in line and str(tmp_path / "a.gguf") in line
    assert "from here" not in line


def test_vllm_is_made_of_its_settings(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    settings = {"executable": str(program), "arguments": ["--max-num-seqs", "3"]}
    kind = kind_of(configured(kind="vllm", model="org/model", alias="mine", **settings))
    assert (kind.name, kind.title) == ("vllm", "vLLM")
    argv = kind.command(tmp_path / "api.sock", tmp_path, 1.0).argv
    assert argv[0] == str(program) and "org/model" in argv and "mine" in argv
    assert argv[argv.index("--max-num-seqs") + 1] == "3"


def test_an_environment_that_cannot_be_read_is_named() -> None:
    given = configured(kind="llamacpp", model="m", environment={"TOKEN": "env:NOT_THERE"})
    with pytest.raises(ConfigError, match=r"engine\.environment\.TOKEN: .*NOT_THERE"):
        kind_of(given)


class Process(Kind):
    """A real process that answers on its socket."""

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        argv = (sys.executable, "-I", "-S", engine_server.__file__, str(socket))
        return Command(argv, {"PATH": os.environ["PATH"]})


async def test_a_real_process_dies_in_mid_answer_and_is_there_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wellspoken.engine import supervisor

    async with make(kind=Process) as running:
        monkeypatch.setattr(supervisor, "attempt", attempt)
        await running.hosted.supervisor.start()
        first = running.supervisor.pid
        die = [{"role": "user", "content": "die"}]
        error = await running.proxy.error(502, messages=die)
        assert "engine (vLLM)" in error["message"]
        async with await running.proxy.chat() as response:  # waits for the restart
            assert response.status == 200
            assert (await response.json())["choices"][0]["message"]["content"] == "Hi"
        assert running.supervisor.pid != first and running.supervisor.restarts == 1
        async with await running.proxy.chat(messages=die, stream=True) as response:
            events = (await response.text()).split("\n\n")
        assert "Hi" in events[0] + events[1] and envelope(events[-2].removeprefix("data: "))
        async with await running.proxy.chat(messages=MESSAGES, stream=True) as response:
            assert (await response.text()).endswith("data: [DONE]\n\n")
        await running.settled()
        await running.hosted.supervisor.stop()
        assert running.supervisor.state == "stopped" and running.target.upstream is None


async def test_a_real_process_that_is_killed_costs_waiting_requests_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the requests fall around the end, each is answered, or its failure is told."""
    from wellspoken.engine import supervisor

    async with make(kind=Process) as running:
        monkeypatch.setattr(supervisor, "attempt", attempt)
        await running.hosted.supervisor.start()

        begun: list[float] = []

        async def asked(seconds: float) -> int:
            await asyncio.sleep(seconds)
            begun.append(seconds)
            async with await running.proxy.chat() as response:
                await response.read()
                return response.status

        asking = [asyncio.create_task(asked(place * 0.01)) for place in range(60)]
        await asyncio.sleep(0.2)
        pid = running.supervisor.pid
        assert pid is not None
        answered = sum(task.done() for task in asking)
        os.killpg(pid, signal.SIGKILL)
        await until(lambda: running.supervisor.pid != pid)  # a slow machine notices it later
        open_by_then = len(begun) - answered
        statuses = await asyncio.gather(*asking)
        assert set(statuses) <= {200, 502}
        assert statuses.count(502) <= open_by_then
        assert await asked(0) == 200  # the last of them may have begun before the end
        await running.settled()
