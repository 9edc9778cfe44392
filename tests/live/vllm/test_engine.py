"""The engine on a real vLLM on the CPU: `wellspoken serve` starts, watches and ends it.

A start takes a minute or two, so most tests share one proxy, and what a test breaks has to be whole
again for the next one. They are not coroutines: the folder's time limit is too short for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.engine_process import (
    START_SECONDS,
    Hosting,
    check_answers,
    core_killed,
    core_stopped,
    ended_in_order,
    phases_until_ready,
    proxy_killed,
    question,
)
from tests.live.vllm.server import CPU, MODEL, quick_environment
from tests.models.tiny_hf import CONTEXT
from tests.waiting import block_until

STALL = 20.0
ARGUMENTS = (
    "--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", str(CONTEXT),
    "--max-num-seqs", "8", "--enforce-eager", "--no-enable-prefix-caching",
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
)  # fmt: skip


def hosting(executable: Path, model: Path, **engine: object) -> Hosting:
    """Return a proxy with vLLM on the CPU."""
    environment = quick_environment(executable) | {
        "VLLM_API_KEY": "would make every request a 401",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
    }
    made = Hosting(model, executable, ARGUMENTS, environment, **engine)
    with made.config.open("a") as config:
        config.write("[engine.environment]\n")
        config.writelines(f"{name} = {json.dumps(value)}\n" for name, value in CPU.items())
    return made


@pytest.fixture(scope="module")
def victim(executable: Path, model_folder: Path) -> Iterator[Hosting]:
    """A proxy with a vLLM of its own, which a test may kill; not started yet."""
    made = hosting(executable, model_folder, stall_timeout=STALL)
    yield made
    made.clear()


def test_a_start_says_how_far_it_is(victim: Hosting) -> None:
    """Each request meanwhile is a 503 that names the phase, and says when to come again.

    Of the phases these are the long ones, which somebody who asks five times a second cannot miss.
    """
    phases = phases_until_ready(victim)
    told = "\n".join(phases)
    for phase in ("starting the process", "checking the model", "starting its workers"):
        assert phase in told, told
    assert len({phase.partition(",")[0] for phase in phases}) >= 5, told


def test_it_answers(victim: Hosting) -> None:
    victim.ready()
    check_answers(victim)


def test_it_says_what_it_is(victim: Hosting) -> None:
    victim.ready()
    _, _, data = victim.get("/v1/models")
    (card,) = json.loads(data)["data"]
    assert card["id"] == MODEL
    assert f"vLLM 0.32.0, {MODEL}, context {CONTEXT}, tools hermes" in victim.log
    status, _, own = victim.get("/backend/metrics")
    assert status == 200
    assert b"vllm:generation_tokens_total{" in own
    assert b"\nwellspoken_engine_up{" in victim.get("/metrics")[2]


def test_its_environment_is_clean_and_its_files_are_private(victim: Hosting) -> None:
    """Nobody else may reach the socket; what would break vLLM has not come through."""
    victim.ready()
    (socket,) = (path for path in victim.files() if path.name == "api.sock")
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    core = victim.pid("VLLM::EngineCore")
    environ = Path(f"/proc/{core}/environ").read_bytes().split(b"\0")
    names = {line.partition(b"=")[0] for line in environ}
    assert not {b"VLLM_API_KEY", b"VLLM_PORT"} & names
    assert f"TMPDIR={socket.parent}".encode() in environ
    assert b"VLLM_CPU_KVCACHE_SPACE=1" in environ


def test_a_killed_engine_core_is_an_error_and_a_restart(victim: Hosting) -> None:
    victim.ready()
    core_killed(victim)
    check_answers(victim)


def test_a_hung_engine_core_is_killed_and_started_again(victim: Hosting) -> None:
    """Stopped, it lets GET /health answer 200 all the while (vLLM 0.32.0)."""
    victim.ready()
    assert STALL / 2 < core_stopped(victim, 10 * STALL) < 3 * STALL
    block_until(lambda: "worked on nothing" in victim.log, lambda: victim.log[-4000:])
    victim.ready()
    check_answers(victim)


def test_a_killed_proxy_leaves_nothing(victim: Hosting) -> None:
    """Also in the middle of an answer: no process, shared memory, socket or folder after 5 s."""
    victim.ready()
    for title in ("resource_tracker", "VLLM::EngineCore", "VLLM::Worker"):
        assert victim.pid(title)
    assert any("/dev/shm/psm_" in name for name in victim.left())
    proxy_killed(victim)


@pytest.fixture
def unloading(victim: Hosting, executable: Path, model_folder: Path) -> Iterator[Hosting]:
    """A proxy that unloads its engine after some idle seconds; the other one is ended first."""
    victim.end()
    made = hosting(executable, model_folder, idle_unload=4)
    yield made
    made.clear()


def test_it_is_unloaded_and_loaded_again_and_ends_in_order(unloading: Hosting) -> None:
    unloading.ready()
    block_until(lambda: unloading.state() == "stopped", lambda: unloading.log[-4000:])
    assert unloading.left() == []  # all its memory is given back
    assert unloading.get("/readyz")[0] == 200
    status, _, body = unloading.post(question())
    assert status == 200, body

    ended_in_order(unloading)


def test_a_flag_that_does_not_exist_is_said_once(
    victim: Hosting, executable: Path, model_folder: Path, tmp_path: Path
) -> None:
    """It would be met again, so nobody waits for another start."""
    command = [sys.executable, "-m", "wellspoken.proxy.cli", "serve", "--engine", "vllm"]
    command += ["--model", str(model_folder), "--listen", "127.0.0.1:0", "--", "--no-such-flag"]
    environment = os.environ | {"PATH": f"{executable.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 1, done.stderr
    assert "unrecognized arguments: --no-such-flag" in done.stderr.splitlines()[-1]
    assert "Correct `arguments`" in done.stderr
    assert "starts again" not in done.stderr
    assert not done.stdout
