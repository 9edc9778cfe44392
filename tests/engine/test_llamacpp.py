"""The embedded llama.cpp: a real server in a real child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import uvloop

from wellspoken.engine import llamacpp_child
from wellspoken.engine.llamacpp import EngineError, LlamaCpp


def get(url: str) -> object:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def engine(model: Path, log: list[str] | None = None, **settings: object) -> LlamaCpp:
    keep = log if log is not None else []
    return LlamaCpp(model, context=512, parallel=1, threads=1, log=keep.append, **settings)  # type: ignore[arg-type]


def gone(pid: int, within: float) -> bool:
    """Say whether no process has this id any more, or only a dead one that nobody reaped."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def imitation(folder: Path, code: str) -> None:
    """Put a module named xllamacpp in front of the real one for child processes."""
    (folder / "xllamacpp.py").write_text(code)


async def test_starts_answers_and_stops(tiny_model: Path) -> None:
    server = engine(tiny_model)
    assert server.state == "stopped" and server.pid is None
    url = await server.start()
    pid = server.pid
    assert pid is not None
    try:
        assert server.state == "ready"
        assert url.startswith("http://127.0.0.1:") and not url.endswith("/")
        assert await asyncio.to_thread(get, url + "/health") == {"status": "ok"}
        models = await asyncio.to_thread(get, url + "/v1/models")
        assert isinstance(models, dict)
        # The file's stem: its whole path is nobody's business.
        assert [model["id"] for model in models["data"]] == [tiny_model.stem]
        assert models["data"][0]["meta"]["n_ctx"] == 512
    finally:
        await server.stop()
    assert server.state == "stopped" and server.pid is None
    assert await server.wait() == -signal.SIGTERM
    assert gone(pid, 0.5)


async def test_can_be_started_again_after_a_stop(tiny_model: Path) -> None:
    server = engine(tiny_model, alias="again")
    for _ in range(2):
        url = await server.start()
        models = await asyncio.to_thread(get, url + "/v1/models")
        assert isinstance(models, dict) and models["data"][0]["id"] == "again"
        await server.stop()
    await server.stop()  # nothing runs: nothing to do


def test_runs_on_uvloop(tiny_model: Path) -> None:
    async def run() -> int:
        server = engine(tiny_model)
        await server.start()
        await server.stop()
        return await server.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == -signal.SIGTERM


async def test_a_second_start_is_refused(tiny_model: Path) -> None:
    server = engine(tiny_model)
    await server.start()
    with pytest.raises(EngineError, match="already runs"):
        await server.start()
    assert server.state == "ready"
    await server.stop()


async def test_a_killed_child_is_noticed(tiny_model: Path) -> None:
    log: list[str] = []
    server = engine(tiny_model, log)
    await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL
    assert server.state == "failed" and server.pid is None
    assert log[-1] == "llamacpp: llama.cpp was ended by SIGKILL, and nobody asked it to"
    await server.start()
    await server.stop()


async def test_wait_without_start_is_refused(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match=r"start\(\) it"):
        await engine(tiny_model).wait()


async def test_relays_llama_cpps_log(tiny_model: Path) -> None:
    log: list[str] = []
    server = engine(tiny_model, log, verbosity=3)
    await server.start()
    await server.stop()
    assert any("loading model" in line for line in log)
    assert all(line.startswith("llamacpp: ") for line in log)


async def refused(server: LlamaCpp) -> str:
    with pytest.raises(EngineError) as caught:
        await server.start()
    assert server.state == "failed" and server.pid is None
    return str(caught.value)


async def test_a_missing_model_is_named(tmp_path: Path) -> None:
    said = await refused(engine(tmp_path / "none.gguf"))
    assert "no model file" in said and "none.gguf" in said and "--model" in said
    assert "no model file" in await refused(engine(tmp_path))


async def test_a_file_that_is_no_model_gives_llama_cpps_own_reason(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_text("garbage")
    said = await refused(engine(bad))
    assert "bad.gguf" in said and "invalid magic" in said and "GGUF" in said


async def test_a_taken_port_is_refused(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = await refused(engine(tiny_model, port=taken.getsockname()[1]))
    assert "could not load" in said and "the port is free" in said


async def test_a_stuck_load_is_ended_at_the_limit(tmp_path: Path) -> None:
    pipe = tmp_path / "never.gguf"
    os.mkfifo(pipe)  # opening it blocks until somebody writes
    said = await refused(engine(pipe, start_timeout=0.5))
    assert "not ready after 0.5 s" in said and "start_timeout" in said


async def test_a_cancelled_start_leaves_no_child(tmp_path: Path) -> None:
    pipe = tmp_path / "never.gguf"
    os.mkfifo(pipe)
    server = engine(pipe)
    start = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    pid = server.pid
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert server.state == "failed" and gone(pid, 0.5)


async def test_a_stop_during_the_start_ends_it(tmp_path: Path) -> None:
    pipe = tmp_path / "never.gguf"
    os.mkfifo(pipe)
    server = engine(pipe)
    start = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    with pytest.raises(EngineError, match="already runs"):
        await server.start()
    await server.stop()
    with pytest.raises(EngineError, match="SIGTERM while it loaded"):
        await start
    assert server.state == "stopped" and server.pid is None


PARAMS = """
class CommonParams:
    def __init__(self):
        self.model = self.cpuparams = type("Part", (), {})()
"""


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "raise ModuleNotFoundError('no xllamacpp', name='xllamacpp')",
            'pip install "wellspoken[llamacpp]"',
        ),
        (
            "raise ImportError('libgomp.so.1: cannot open shared object file')",
            "libgomp.so.1: cannot open shared object file",
        ),
        ("raise ImportError('libgomp.so.1')", "apt-get install libgomp1"),
        ("class CommonParams: __slots__ = ()", "pip install --upgrade"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL while it loaded"),
        ("import os; os.kill(os.getpid(), 9)", "smaller model or context"),
        ("import os; os._exit(3)", "exit code 3 while it loaded"),
        (
            PARAMS + "class Server:\n"
            "    def __init__(self, params): self.listening_address = 'http://127.0.0.1:9/'\n"
            "import threading, os\n"
            "threading.Timer(0.3, os._exit, [4]).start()",
            "exit code 4",
        ),
    ],
)
async def test_what_the_child_lacks_is_said_with_its_remedy(
    code: str, expected: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitation(tmp_path, code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert expected in await refused(engine(tiny_model))


async def test_the_working_directory_is_not_imported_from(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitation(tmp_path, "raise ImportError('a stranger')")
    monkeypatch.chdir(tmp_path)
    server = engine(tiny_model)
    await server.start()
    await server.stop()


PARENT = """
import asyncio, sys
from pathlib import Path
from wellspoken.engine.llamacpp import LlamaCpp

async def main():
    server = LlamaCpp(Path(sys.argv[1]), context=512, parallel=1, threads=1)
    start = asyncio.create_task(server.start())
    while server.pid is None:
        await asyncio.sleep(0.01)
    if sys.argv[2] == "ready":
        await start
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["ready", "loading"])
def test_the_child_dies_with_a_killed_parent(moment: str, tiny_model: Path, tmp_path: Path) -> None:
    model = tiny_model
    if moment == "loading":
        model = tmp_path / "never.gguf"
        os.mkfifo(model)
    argv = [sys.executable, "-c", PARENT, str(model), moment]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not gone(child, 0.3)
        parent.kill()
    assert gone(child, 5)


def test_the_child_module_ends_when_its_stdin_is_closed_already(tiny_model: Path) -> None:
    argv = [sys.executable, "-m", llamacpp_child.__name__, "--model", str(tiny_model)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"")
