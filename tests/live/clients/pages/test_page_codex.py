"""Codex runs on every backend: it answers, and it runs a command and answers after it."""

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
CALLING = "tgi/3.2-stream-tool-calls"  # what it is replayed for has no /v1/responses
THINKING = "vllm/0.32-stream-reasoning"
Events = list[dict[str, Any]]
Run = Callable[..., Events]


@pytest.fixture
def run(npm_packages: Path, tmp_path: Path) -> Run:
    """A function (base URL, model, more configuration) that runs the guide's; gives its events.

    `ask`, `command`: what it is asked in place of the guide's question, and how.
    """
    home = tmp_path / ".codex"
    home.mkdir()
    (home / "short.md").write_text("Answer.")
    # In a bubblewrap of the system's, which it takes if there is one, Codex does not find itself.
    links = tmp_path / "bin"
    links.mkdir()
    for binary in npm_packages.glob("@openai/codex-linux-*/vendor/*/bin/codex"):
        (links / "codex-linux-sandbox").symlink_to(binary)

    def run_codex(
        url: str, model: str, more: str = SHORT, ask: str = "Say hello.", command: str = "exec"
    ) -> Events:
        [configuration] = shown("codex.md", "toml", url)
        [line] = shown("codex.md", "sh", url, anywhere=True)
        assert 'model = "my-model"' in configuration
        assert line == 'PROXY_KEY=unused codex exec "Say hello."\n'
        line = line.strip().replace("Say hello.", ask).replace("codex exec", f"codex {command}")
        text = more + configuration.replace("my-model", model)
        (home / "config.toml").write_text(
            text + "request_max_retries = 0\nstream_max_retries = 0\n"
        )
        environment = client_environment(tmp_path)
        done = subprocess.run(
            ["sh", "-c", f"{line} --skip-git-repo-check --json"],
            cwd=tmp_path,
            env=environment | {"PATH": f"{npm_packages}/.bin:{links}:{environment['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,  # what it says tells more than its status
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr
        return [json.loads(line) for line in lines]

    return run_codex


def completed(events: Events, kind: str) -> Events:
    """Return the items of a kind of a turn that was completed."""
    assert events[-1]["type"] == "turn.completed", events
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == kind]


def failure(events: Events) -> str:
    """Return why the turn failed."""
    assert events[-1]["type"] == "turn.failed", events
    return str(events[-1]["error"]["message"])


def test_the_guides_configuration(run: Run, servers: Servers) -> None:
    events = run(servers.proxy, "long")
    assert [item["text"] for item in completed(events, "agent_message")] == [TEXT]
    assert events[-1]["usage"]["output_tokens"] == 10


@pytest.mark.parametrize(("model", "text"), [("long", TEXT), (CALLING, "Paris.")])
def test_it_runs_a_command_and_answers_after_it(
    run: Run, servers: Servers, model: str, text: str
) -> None:
    events = run(servers.proxy, model, ask="Run echo.")
    [command] = completed(events, "command_execution")
    assert "echo over" in command["command"] and command["exit_code"] == 0
    assert command["aggregated_output"] == "over\n"
    assert [item["text"] for item in completed(events, "agent_message")] == [text]


def test_it_runs_a_command_with_full_access(run: Run, servers: Servers) -> None:
    """Then it offers a search that may leave, too, which OpenAI's own servers would run."""
    events = run(servers.proxy, CALLING, SHORT + 'sandbox_mode = "danger-full-access"\n')
    assert [item["exit_code"] for item in completed(events, "command_execution")] == [0]


def test_it_thinks_and_goes_on(run: Run, servers: Servers) -> None:
    for command in ("exec", "exec resume --last"):  # which gives the thought back
        events = run(servers.proxy, THINKING, command=command)
        assert [item["text"] for item in completed(events, "agent_message")] == ["Paris"]


def test_a_context_that_is_too_short(run: Run, servers: Servers) -> None:
    assert "exceed_context_size_error" in failure(run(servers.llamacpp, "my-model", ""))
    assert "ran out of room in the model's context" in failure(run(servers.proxy, "my-model", ""))


def test_a_server_without_responses(run: Run, servers: Servers) -> None:
    assert "<!DOCTYPE HTML>" in failure(run(servers.replay, CALLING))
    assert completed(run(servers.proxy, CALLING, ask="Run echo."), "command_execution")


def test_an_aborted_stream_is_no_answer(run: Run, servers: Servers) -> None:
    assert failure(run(servers.proxy, "vllm/0.32-stream-abort"))
