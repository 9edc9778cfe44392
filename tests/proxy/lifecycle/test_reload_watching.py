"""When a configuration and its keys are read again: SIGHUP, and files that have changed."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from tests.waiting import until
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config import Config, ConfigSource
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.lifecycle.watch import Watcher
from wellspoken.proxy.server import Service

HEAD = '[server]\nlisten = "127.0.0.1:0"\nwatch = {}\n'
BACKEND = '[[backend]]\nname = "{0}"\nmodels = ["{0}"]\nurl = "http://127.0.0.1:9"\n'


def text(*names: str, watch: bool = True, more: str = "") -> str:
    """Return a configuration file with these backends."""
    return HEAD.format(str(watch).lower()) + more + "".join(BACKEND.format(name) for name in names)


def replaced(file: Path, content: str) -> None:
    """Put another file in one's place, as careful editors do."""
    new = file.with_name("new")
    new.write_text(content)
    new.rename(file)


def mounted(folder: Path, name: str, content: str) -> None:
    """Change a file as Kubernetes does: its name is a link to a link, and that is swapped."""
    fresh = folder / f"..{time.monotonic_ns()}"
    fresh.mkdir()
    (fresh / name).write_text(content)
    link = folder / "..new"
    link.symlink_to(fresh.name)
    link.rename(folder / "..data")
    if not (folder / name).is_symlink():
        (folder / name).symlink_to(f"..data/{name}")


class Watched:
    """A service whose file and keys are watched, and what was said of it."""

    def __init__(
        self, file: Path | None, flags: dict[str, object] | None = None, settled: float = 0.03
    ) -> None:
        self.source = ConfigSource(file, flags)
        config = self.source.load()
        self.service: Service = build(config)
        self.reloader = Reloader(self.service)
        self.asked = asyncio.Event()
        self.applied: list[Config] = []
        self.watcher = Watcher(
            config,
            self.source.load,
            self._apply,
            self.asked,
            file=file,
            told=self.service.state.metrics.reloaded.set,
            describe=lambda: self.reloader.described,
            every=0.02,
            settled=settled,
        )
        self.looks = 0
        look = self.watcher._look

        def count_look() -> dict[Path, bytes]:
            found = look()
            self.looks += 1
            return found

        self.watcher._look = count_look  # type: ignore[method-assign]

    async def look(self, times: int = 3) -> None:
        """Return when the files have been looked at so often, from now on."""
        wanted = self.looks + times
        await until(lambda: self.looks >= wanted)

    async def _apply(self, config: Config) -> list[str]:
        warnings = await self.reloader.apply(config)
        self.applied.append(config)
        return warnings

    @property
    def names(self) -> list[str]:
        """The backends in use."""
        return [target.name for target in self.service.state.router.targets]

    @property
    def good(self) -> float:
        """The metric that says whether the configuration was good when it was last read."""
        value = self.service.state.metrics.registry.get_sample_value(
            "wellspoken_config_last_reload_success"
        )
        assert value is not None
        return value

    def knows(self, key: str) -> bool:
        """Say whether a key is let in."""
        headers = CIMultiDictProxy(CIMultiDict({"Authorization": f"Bearer {key}"}))
        try:
            self.service.state.keys.owner(headers)
        except RequestError:
            return False
        return True

    async def ask(self) -> None:
        """Do what SIGHUP does."""
        self.asked.set()
        await until(lambda: not self.asked.is_set())


@asynccontextmanager
async def watched(
    file: Path | None, flags: dict[str, object] | None = None, settled: float = 0.03
) -> AsyncIterator[Watched]:
    """Watch until the test is over."""
    made = Watched(file, flags, settled)
    made.watcher.start()
    try:
        yield made
    finally:
        await made.watcher.stop()
        await made.reloader.close()
        await made.service.stop()


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


async def test_a_changed_file_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file) as it:
        for names in (["a", "b"], ["b"], ["b", "c"]):
            replaced(file, text(*names))
            await until(lambda: it.names == names)  # noqa: B023
        assert it.good == 1
    assert said(caplog) == [
        "INFO configuration read again: backends: 2 (1 new)",
        "INFO configuration read again: backends: 1 (1 gone)",
        "INFO configuration read again: backends: 2 (1 new)",
    ]


async def test_a_swapped_link_is_seen(tmp_path: Path) -> None:
    mounted(tmp_path, "w.toml", text("a"))
    async with watched(tmp_path / "w.toml") as it:
        for name in "bcd":
            mounted(tmp_path, "w.toml", text(name))
            await until(lambda: it.names == [name])  # noqa: B023


async def test_the_same_content_is_no_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file) as it:
        await until(lambda: bool(it.applied))  # it may have changed between its load and the watch
        for _ in range(5):
            replaced(file, text("a"))
            await it.look()
        assert len(it.applied) == 1
    assert said(caplog) == []


async def test_without_watch_only_sighup_reads(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a", watch=False))
    async with watched(file) as it:
        replaced(file, text("b", watch=False))
        await it.look()
        assert it.names == ["a"]
        await it.ask()
        await until(lambda: it.names == ["b"])
        replaced(file, text("b"))  # which begins to watch
        await it.ask()
        await until(lambda: it.service.state.config.server.watch)
        replaced(file, text("c", watch=False))
        await until(lambda: it.names == ["c"])
        replaced(file, text("d"))
        await it.look()
        assert it.names == ["c"]


async def test_a_file_that_is_being_written_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of it is a configuration too, with other backends."""
    file = tmp_path / "w.toml"
    file.write_text(text("a", "b"))
    whole, half = text("a", "b", "c", "d"), text("a")
    assert whole.startswith(half)
    pieces = [whole[at : at + 20] for at in range(0, len(whole), 20)]
    async with watched(file) as it:
        look = it.watcher._look
        with file.open("w") as writing:

            def write_and_look() -> dict[Path, bytes]:
                """Between any two looks, however late the watcher or the writer is."""
                if pieces:
                    writing.write(pieces.pop(0))
                    writing.flush()
                return look()

            it.watcher._look = write_and_look  # type: ignore[method-assign]
            await until(lambda: not pieces)
        await until(lambda: len(it.names) == 4)
        assert [len(config.backend) for config in it.applied if len(config.backend) < 2] == []
    assert not [line for line in said(caplog) if line.startswith("ERROR")]


async def test_a_file_that_is_gone_for_a_moment_is_no_trouble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file, settled=0.5) as it:  # so long is a moment
        await it.look()
        file.unlink()
        await it.look(1)
        file.write_text(text("b"))
        await until(lambda: it.names == ["b"])
    assert said(caplog) == ["INFO configuration read again: backends: 1 (1 new, 1 gone)"]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("[server\n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("", "no backend"),
        (text("a", more="lisen = 1\n"), "Did you mean listen?"),
        (text("a", "a"), "two are named 'a'"),
        (text("a") + 'key = "env:NO_SUCH_VARIABLE"\n', "NO_SUCH_VARIABLE"),
        (text("a") + 'adapter = "nothing"\n', "unknown adapter"),
        (None, "cannot read"),
    ],
)
@pytest.mark.parametrize("watch", [True, False])
async def test_a_bad_file_changes_nothing_and_says_so_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    bad: str | bytes | None,
    words: str,
    watch: bool,
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a", watch=watch))
    async with watched(file) as it:
        if watch:
            await until(lambda: bool(it.applied))  # as it was found at the first look
        before = it.service.state.config
        if bad is None:
            file.unlink()
        else:
            file.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
        if not watch:
            await it.ask()
        await until(lambda: it.good == 0)
        await it.look()
        assert it.service.state.config is before
        (line,) = said(caplog)
        assert line.startswith("ERROR the configuration stays as before: ") and words in line
        await it.ask()
        await until(lambda: len(caplog.records) == 2)  # said again when it is asked for
        replaced(file, text("b", watch=watch))  # in one step: what is wrong is read all the time
        if not watch:
            await it.ask()
        await until(lambda: it.names == ["b"] and it.good == 1)
        assert len(caplog.records) == 3


async def test_what_was_wrong_elsewhere_is_tried_again(tmp_path: Path) -> None:
    """The file is right, but what it names is not there yet."""
    file, key = tmp_path / "w.toml", tmp_path / "key"
    file.write_text(text("a"))
    async with watched(file) as it:
        replaced(file, text("b") + f'key = "file:{key}"\n')
        await until(lambda: it.good == 0)
        key.write_text("sk-1")
        await until(lambda: it.names == ["b"] and it.good == 1)


async def test_restarts_are_asked_for_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file) as it:
        other = text("a").replace("127.0.0.1:0", "127.0.0.1:8")
        replaced(file, other)
        await until(lambda: bool(caplog.records))
        replaced(file, other + BACKEND.format("b"))
        await until(lambda: it.names == ["a", "b"])
        assert it.good == 1
        await it.ask()
        await until(lambda: len(caplog.records) >= 4)
    warning = "WARNING server.listen: a change needs a restart, so the old one holds until then."
    assert said(caplog) == [
        warning,
        "INFO configuration read again: backends: 2 (1 new)",
        "INFO configuration read again: nothing has changed",
        warning,
    ]


def open_for_writing(pipe: Path, writers: list[int]) -> bool:
    """Open a named pipe that somebody reads; say whether one does."""
    with suppress(OSError):
        writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(writers)


async def test_what_is_slow_holds_up_nothing(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file) as it:
        await it.look()
        file.unlink()
        os.mkfifo(file)  # read, it waits until somebody writes
        it.asked.set()
        writers: list[int] = []
        await until(lambda: open_for_writing(file, writers))
        await asyncio.wait_for(it.watcher.stop(), 60)  # and what reads has not ended by then
        os.close(*writers)


async def test_a_failure_of_our_own_does_not_end_the_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    async with watched(file) as it:
        original: Callable[[Config], Awaitable[list[str]]] = it.reloader.apply

        async def fails(config: Config) -> list[str]:
            raise ZeroDivisionError

        monkeypatch.setattr(it.reloader, "apply", fails)
        await it.ask()
        await until(lambda: "failed in the proxy itself" in caplog.text)
        assert it.good == 0
        monkeypatch.setattr(it.reloader, "apply", original)
        file.write_text(text("b"))
        await until(lambda: it.names == ["b"] and it.good == 1)


def test_a_source_is_read_as_it_is_then(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(text("a"))
    source = ConfigSource(file, {"limits": {"inflight": 3}}, {"WELLSPOKEN_DRAIN_DELAY": "2"})
    config = source.load()
    assert (config.backend[0].name, config.limits.inflight, config.server.drain_delay) == (
        "a",
        3,
        2,
    )
    file.write_text(text("b"))
    assert source.load().backend[0].name == "b"
    file.unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        source.load()
