"""When keys are read again: always when a file of them has changed, without a look at the rest."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream
from tests.proxy.lifecycle.test_reload_watching import _level as _level
from tests.proxy.lifecycle.test_reload_watching import mounted, replaced, text, watched
from tests.waiting import until

KEY = "sk-canary-77"
READER = "wellspoken-reload"  # the name of the threads that look at files


async def test_key_files_are_watched_without_watch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted(tmp_path, "keys", "sk-1\nsk-2")
    flags: dict[str, object] = {
        "backend": [{"url": "http://127.0.0.1:9"}],
        "auth": {"keys": [f"file:{tmp_path}/keys"]},
    }
    async with watched(None, flags) as it:
        mounted(tmp_path, "keys", "sk-2\nsk-3\nsk-4")
        await until(lambda: it.knows("sk-3"))
        assert not it.knows("sk-1") and it.knows("sk-2")
        (tmp_path / "keys").unlink()
        await until(lambda: it.good == 0)
        await it.look()
        assert it.knows("sk-3")
        replaced(tmp_path / "keys", f"{KEY} x")  # in one step: what is wrong is read all the time
        await until(lambda: "line 1, is no key" in caplog.text)
        assert it.knows("sk-3")
        replaced(tmp_path / "keys", "sk-5")
        await until(lambda: it.knows("sk-5"))
        assert not it.knows("sk-3") and it.good == 1
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "ERROR", "ERROR", "INFO"]
    assert "client keys: 3 (2 new, 1 gone)" in caplog.text
    assert "keys and certificates stay as before: auth.keys: " in caplog.text
    assert "sk-" not in caplog.text


async def test_the_key_files_of_named_clients_are_watched(tmp_path: Path) -> None:
    mounted(tmp_path, "keys", "sk-1")
    client = {"name": "a", "keys": [f"file:{tmp_path}/keys"], "concurrent": 1}
    flags: dict[str, object] = {
        "backend": [{"url": "http://127.0.0.1:9"}],
        "auth": {"client": [client]},
    }
    async with watched(None, flags) as it:
        counters = it.service.state.counters
        mounted(tmp_path, "keys", "sk-1\nsk-2")
        await until(lambda: it.knows("sk-2"))
        assert it.knows("sk-1")
        assert it.service.state.counters is counters  # what was counted stays


@pytest.mark.parametrize("name", ["Authorization", "x-gateway-key"])
async def test_a_backends_key_file_is_watched(
    upstream: Upstream, tmp_path: Path, name: str
) -> None:
    key, where = tmp_path / "key", f"file:{tmp_path / 'key'}"
    key.write_text("sk-1")
    own = {"key": where} if name == "Authorization" else {"headers": {name: where}}
    backend = {"url": upstream.url, "adapter": "openai", **own}
    async with watched(None, {"backend": [backend]}) as it:
        (target,) = it.service.state.router.targets
        assert target.upstream is not None
        await until(lambda: bool(it.applied))
        replaced(key, KEY)
        await until(lambda: len(it.applied) == 2)
        await target.upstream.probe("/health")
        sent = upstream.requests[-1].header(name) or ""
        assert sent.removeprefix("Bearer ") == KEY
        assert it.service.state.router.targets == (target,)


async def test_a_bad_configuration_is_not_made_good_by_good_keys(tmp_path: Path) -> None:
    file, keys = tmp_path / "w.toml", tmp_path / "keys"
    keys.write_text("sk-1")
    more = f'[auth]\nkeys = ["file:{keys}"]\n'
    file.write_text(text("a", watch=False, more=more))
    async with watched(file) as it:
        file.write_text("[")
        await it.ask()
        await until(lambda: it.good == 0)
        replaced(keys, "sk-2")
        await until(lambda: it.knows("sk-2"))
        await it.look()
        assert it.good == 0


async def test_a_pipe_is_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second reading would find nothing, or wait without end."""
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    flags: dict[str, object] = {
        "backend": [{"url": "http://127.0.0.1:9"}],
        "auth": {"keys": [f"file:{pipe}"]},
    }
    threading.Thread(target=pipe.write_text, args=("sk-1",)).start()
    async with watched(None, flags) as it:
        await it.look()
        await until(lambda: not [t for t in threading.enumerate() if t.name == READER])
        assert it.knows("sk-1")
    assert caplog.records == []
