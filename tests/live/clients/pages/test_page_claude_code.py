"""Claude Code gets answers of llama.cpp's /v1/messages through the proxy, by names and a key."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.conftest import CLIENT_SECONDS, client_environment
from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

# The tiny model's context is shorter than the prompt that Claude Code has of its own.
SHORT = ' --tools "" --system-prompt "Answer." --output-format json'
Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(npm_packages: Path, tmp_path: Path) -> Run:
    """A function that runs a command line and returns the result that Claude Code writes."""
    # Its program is in a package of the platform's own; a script that is not run would copy it.
    [program] = npm_packages.glob("@anthropic-ai/claude-code-*/claude")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "claude").symlink_to(program)
    environment = client_environment(tmp_path) | {
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }

    def run_line(line: str) -> dict[str, Any]:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,  # what it says tells more than its status
        )
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run_line


@pytest.fixture
def command(servers: Servers) -> str:
    """The guide's, with this proxy."""
    [line] = shown("claude-code.md", "sh", servers.proxy)
    assert line.endswith(" --model my-model\n")
    return line.strip()


@pytest.mark.parametrize("name", ["my-model", "claude-sonnet-4-5"])
def test_the_guides_command(run: Run, command: str, name: str) -> None:
    said = run(command.replace("my-model", name) + SHORT)
    assert (said["result"], said["is_error"]) == (TEXT, False)
    assert said["stop_reason"] == "end_turn" and said["usage"]["output_tokens"] == 10


def test_a_key_that_the_proxy_does_not_know(run: Run, command: str) -> None:
    said = run(command.replace("=unused", "=other") + SHORT)
    assert said["is_error"] and said["api_error_status"] == 401


def test_a_server_without_messages(run: Run, command: str) -> None:
    said = run(command.replace("my-model", "tgi/2.4.1-stream-tool-calls-object") + SHORT)
    assert said["is_error"] and "There's an issue with the selected model" in said["result"]


def test_its_own_prompt_needs_a_long_context(run: Run, command: str) -> None:
    said = run(f"{command} --output-format json")
    assert said["is_error"] and "exceeds the available context size" in said["result"]
