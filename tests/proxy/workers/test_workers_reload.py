"""Another configuration for all workers: all of them take it over, or none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.workers.test_workers import RESTARTS, Workers, alive, workers
from tests.waiting import until
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.workers.channel import Message, Prepare, Prepared, Take, Taken, ToParent
from wellspoken.proxy.workers.hub import Hub, Worker

GOOD = "wellspoken_config_last_reload_success"


async def models(running: Workers) -> set[str]:
    """Return what several connections, and so workers, list, each list as one text."""

    async def listed() -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{running.url}/v1/models") as response,
        ):
            return ",".join(model["id"] for model in (await response.json())["data"])

    return set(await asyncio.gather(*(listed() for _ in range(8))))


def write(file: Path, upstream: Upstream, model: str, more: str = "") -> None:
    """Write a configuration with one model."""
    table = f'url = "{upstream.url}"\nadapter = "openai"\nmodels = ["{model}"]\n{more}\n'
    file.write_text(f"[[backend]]\n{table}")


async def test_all_workers_take_over_a_good_file_and_none_a_bad_one(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"data": []}))
    file, key = tmp_path / "w.toml", tmp_path / "key"
    key.write_text("sk-canary")
    write(file, upstream, "first")
    async with workers(upstream, config=file) as running:
        pids = await running.all(2)
        assert await models(running) == {"first"}

        write(file, upstream, "second", f'key = "file:{key}"')
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: has(running, "configuration read again"), "it is read")
        assert await models(running) == {"second"}

        write(file, upstream, "third", 'key = "file:/nowhere"')  # what only workers look at
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: has(running, "cannot read /nowhere"), "it is refused")
        assert await models(running) == {"second"}
        assert (await running.metrics())[GOOD] == 0

        file.write_text("[[backend]\n")  # and what the parent sees
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: has(running, "is not TOML"), "it is refused")
        os.kill(pids[1], signal.SIGKILL)
        await until(lambda: not alive(pids[1]), "a worker is gone")
        await running.all(2)  # one that starts now has the last good one
        assert await models(running) == {"second"}
        assert (await running.metrics())[GOOD] == 0

        write(file, upstream, "fourth", f'key = "file:{key}"')
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: good(running), "it is read")
        assert await models(running) == {"fourth"}
        assert (await running.metrics())[RESTARTS] == 1
    said = "\n".join(running.said)
    assert said.count("configuration read again") == 2  # once, however many workers
    assert said.count("cannot read /nowhere") == 1
    assert "canary" not in said


async def test_where_to_listen_has_not_changed_when_only_its_words_differ(
    upstream: Upstream, tmp_path: Path
) -> None:
    """The workers have the whole address and the port that 0 became."""
    upstream.script("/health", whole({}))
    file = tmp_path / "w.toml"
    write(file, upstream, "first")
    async with workers(upstream, config=file) as running:
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: has(running, "configuration read again: nothing"), "it is read")
        write(file, upstream, "first", "[log]\nlevel = 'debug'")
        running.process.send_signal(signal.SIGHUP)
        await until(lambda: has(running, "a change needs a restart"), "a change is told")
    assert not has(running, "server.listen")


def has(running: Workers, words: str) -> bool:
    """Say whether it was said."""
    return any(words in line for line in running.said)


async def good(running: Workers) -> bool:
    """Say whether the last reading was good."""
    return (await running.metrics())[GOOD] == 1


class Told(Worker):
    """A worker without a process, which remembers what it was told, and answers as it is made to.

    `answers` by kind of question; a kind that is missing gets no answer.
    """

    def __init__(self, hub: Hub, **answers: Callable[[int], ToParent]) -> None:
        self.index, self.begun, self._hub = len(hub.workers), True, hub
        self.heard: list[str] = []
        self.killed = False
        self._given = answers
        self.process: Any = self
        self.pid = 4711
        hub.workers.add(self)

    def kill(self) -> None:
        """Only remember it."""
        self.killed = True

    async def ask(self, question: Callable[[int], Message], seconds: float) -> ToParent | None:
        message = question(7)
        kind = type(message).__name__
        self.heard.append(kind)
        return self._given[kind](7) if kind in self._given else None


def config_for(model: str) -> Config:
    """Return a configuration with one model."""
    return load(None, {"backend": [{"url": "http://127.0.0.1:9", "models": [model]}]}, {})


OLD, NEW = config_for("old"), config_for("new")


def fine(config: Config = NEW) -> dict[str, Callable[[int], ToParent]]:
    """Return the answers of a worker that takes a configuration over."""
    return {
        Prepare.__name__: lambda number: Prepared(number, ""),
        Take.__name__: lambda number: Taken(number, config, ["a warning"], "changed", ""),
    }


async def test_one_that_cannot_read_what_it_needs_stops_all() -> None:
    hub = Hub(OLD)
    able = Told(hub, **fine())
    unable = Told(hub, Prepare=lambda number: Prepared(number, "key: cannot read x."))
    with pytest.raises(ConfigError, match="key: cannot read x"):
        await hub.reload(NEW)
    assert able.heard == unable.heard == ["Prepare"]
    assert hub.config is OLD and not able.killed and not unable.killed


async def test_one_that_does_not_answer_stops_all() -> None:
    hub = Hub(OLD)
    able, hangs = Told(hub, **fine()), Told(hub)
    with pytest.raises(ConfigError, match=r"worker 2 \(process 4711\) does not answer"):
        await hub.reload(NEW)
    assert able.heard == ["Prepare"]
    assert hub.config is OLD and not hangs.killed


async def test_one_that_ends_meanwhile_stops_nobody() -> None:
    hub = Hub(OLD)
    able, ends = Told(hub, **fine()), Told(hub)

    async def ask(question: Callable[[int], Message], seconds: float) -> None:
        hub.workers.discard(ends)

    ends.ask = ask  # type: ignore[method-assign]
    assert await hub.reload(NEW) == ["a warning"]
    assert able.heard == ["Prepare", "Take"]
    assert (hub.config, hub.described) == (NEW, "changed")


@pytest.mark.parametrize("answers", [True, False])
async def test_one_that_fails_after_all_could_is_started_again(answers: bool) -> None:
    hub = Hub(OLD)
    able, fails = Told(hub, **fine()), Told(hub, **fine())
    if answers:
        fails._given["Take"] = lambda number: Taken(number, OLD, [], "", "not now")
    else:
        del fails._given["Take"]
    assert await hub.reload(NEW) == ["a warning"]
    assert fails.killed and not able.killed
    assert hub.config == NEW  # which its successor begins with


async def test_without_workers_nothing_is_taken_over() -> None:
    hub = Hub(OLD)
    with pytest.raises(ConfigError, match="no worker runs"):
        await hub.reload(NEW)
    assert hub.config is OLD
