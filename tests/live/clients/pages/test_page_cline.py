"""Cline's command line gets whole answers through the proxy, and knows a full context for one."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.clients.conftest import CLIENT_SECONDS, client_environment
from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

KEPT_ALIVE, ABORTED = "constructed/chunks-of-nothing", "vllm/0.32-stream-abort"
FULL = "no conversation history to compact"
SHORT = ("--system", "Answer.")
Ask = Callable[..., tuple[str, str]]


def run_cline(program: Path, folder: Path, *argv: str) -> str:
    """Run Cline with data of its own, so that it starts no daemon; return what it writes."""
    done = subprocess.run(
        [program, *argv, "--data-dir", str(folder / "data")],
        cwd=folder,
        env=client_environment(folder) | {"CLINE_NO_AUTO_UPDATE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,  # what it says tells more than its status
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def ask(npm_packages: Path, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """A function (base URL, model, more arguments) that asks; returns how it ended, and the text.

    The guide's first command is run once; what it writes is changed for the other servers.
    """
    [program] = npm_packages.glob("@cline/cli-*/bin/cline")
    folder = tmp_path_factory.mktemp("cline")
    [text] = shown("cline.md", "sh", servers.proxy)
    setting, question = map(shlex.split, text.splitlines())
    assert setting[0] == question[0] == "cline"
    assert "my-model" in run_cline(program, folder, *setting[1:])
    file = folder / "data" / "settings" / "providers.json"
    settings = file.read_text()
    assert f"{servers.proxy}/v1" in settings

    def ask_model(url: str, model: str, *more: str) -> tuple[str, str]:
        file.write_text(settings.replace(servers.proxy, url))
        asked = [model if word == "my-model" else word for word in question[1:]]
        out = run_cline(program, folder, *asked, *more, "--json", "--retries", "1")
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        [result] = [event for event in events if event["type"] == "run_result"]
        return result["finishReason"], result["text"]

    return ask_model


def test_the_guides_commands(ask: Ask, servers: Servers) -> None:
    assert ask(servers.proxy, "long", *SHORT) == ("completed", TEXT)


def test_a_full_context(ask: Ask, servers: Servers) -> None:
    alone, behind = ask(servers.llamacpp, "my-model"), ask(servers.proxy, "my-model")
    assert alone[0] == behind[0] == "error"
    assert "exceeds the available context size" in alone[1] and FULL not in alone[1]
    assert FULL in behind[1]


def test_chunks_that_are_none(ask: Ask, servers: Servers) -> None:
    reason, text = ask(servers.replay, KEPT_ALIVE)
    assert reason == "error" and "Type validation failed" in text
    assert ask(servers.proxy, KEPT_ALIVE) == ("completed", "Paris.")


def test_an_aborted_answer_is_no_answer(ask: Ask, servers: Servers) -> None:
    assert ask(servers.replay, ABORTED) == ("completed", "Par")
    reason, text = ask(servers.proxy, ABORTED)
    assert reason == "error" and "backend aborted the request" in text
