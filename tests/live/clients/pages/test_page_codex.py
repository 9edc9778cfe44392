"""Codex gets answers of llama.cpp's /v1/responses through the proxy, and errors it can read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.conftest import CLIENT_SECONDS, client_environment
from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

SHORT = 'model_instructions_file = "short.md"\n'  # its own are longer than the tests have time for
WITHOUT = "tgi/2.4.1-stream-tool-calls-object"  # what it is replayed for has no /v1/responses
Events = list[dict[str, Any]]
Run = Callable[..., Events]


@pytest.fixture
def run(npm_packages: Path, tmp_path: Path) -> Run:
    """A function (base URL, model, more configuration) that runs the guide's; gives its events."""
    home = tmp_path / ".codex"
    home.mkdir()
    (home / "short.md").write_text("Answer.")

    def ask(url: str, model: str, more: str = "") -> Events:
        [configuration] = shown("codex.md", "toml", url)
        [command] = shown("codex.md", "sh", url, anywhere=True)
        assert 'model = "my-model"' in configuration and command.startswith("PROXY_KEY=unused ")
        text = more + configuration.replace("my-model", model)
        (home / "config.toml").write_text(
            text + "request_max_retries = 0\nstream_max_retries = 0\n"
        )
        environment = client_environment(tmp_path)
        done = subprocess.run(
            ["sh", "-c", command.strip() + " --skip-git-repo-check --json"],
            cwd=tmp_path,
            env=environment | {"PATH": f"{npm_packages}/.bin:{environment['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,  # what it says tells more than its status
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr
        return [json.loads(line) for line in lines]

    return ask


def failure(events: Events) -> str:
    """Return why the turn failed."""
    assert events[-1]["type"] == "turn.failed"
    return str(events[-1]["error"]["message"])


def test_the_guides_configuration(run: Run, servers: Servers) -> None:
    events = run(servers.proxy, "long", SHORT)
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] == 10
    said = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["text"] for item in said if item["type"] == "agent_message"] == [TEXT]


def test_a_context_that_is_too_short(run: Run, servers: Servers) -> None:
    assert "exceed_context_size_error" in failure(run(servers.llamacpp, "my-model"))
    assert "ran out of room in the model's context" in failure(run(servers.proxy, "my-model"))


def test_a_server_without_responses(run: Run, servers: Servers) -> None:
    assert "<!DOCTYPE HTML>" in failure(run(servers.replay, WITHOUT))
    assert "has no endpoint /v1/responses" in failure(run(servers.proxy, WITHOUT))
