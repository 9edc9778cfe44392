"""`wellspoken completion`: typed in a shell of each kind, at a terminal, with the tab key."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wellspoken.proxy.cli import completion
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.cli.options import COMMANDS

SECONDS = 60  # that end a hang
BEGIN_OF_LINE = "\x01"
SHELLS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "-i"],
}
PREPARED = {
    "bash": "source <(wellspoken completion bash)",
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(wellspoken completion zsh)"',
    "fish": "wellspoken completion fish | source",
}
TYPED = {
    "wellspoken comp": "wellspoken completion",
    "wellspoken config sch": "wellspoken config schema",
    "wellspoken --adap": "wellspoken --adapter",
    "wellspoken serve --eng": "wellspoken serve --engine",
    "wellspoken serve --engine ll": "wellspoken serve --engine llamacpp",
    "wellspoken serve --config sett": "wellspoken serve --config settings.toml",
    "wellspoken check sett": "wellspoken check settings.toml",
    "wellspoken config show --watc": "wellspoken config show --watch",
    "wellspoken export --format ev": "wellspoken export --format evals",
    "wellspoken help doc": "wellspoken help doctor",
}
"""What is typed before the tab key, and what stands there after it."""


class Terminal:
    """A shell at a terminal of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def type(self, keys: str) -> None:
        os.write(self._number, keys.encode())

    def read_until(self, pattern: str) -> re.Match[str]:
        """Return where the shell has written this, which is waited for."""
        seen, last = "", time.monotonic() + SECONDS
        while (found := re.search(pattern, seen)) is None:
            ready = select.select([self._number], [], [], max(0.0, last - time.monotonic()))[0]
            assert ready, f"{pattern} did not come: {seen!r}"
            seen += os.read(self._number, 65536).decode(errors="replace")
        return found


@contextmanager
def run_shell(name: str, folder: Path) -> Iterator[Terminal]:
    """Yield a shell that knows the command. Skips the test where there is no such shell."""
    program = shutil.which(name)
    if program is None:
        assert "WELLSPOKEN_REQUIRE_SHELLS" not in os.environ, f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    command = folder / "wellspoken"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wellspoken "$@"\n')
    command.chmod(0o755)
    (folder / "settings.toml").touch()
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "xterm"}
    outer, inner = pty.openpty()
    # Who opens a terminal as the first of a session has it as its own, with job control.
    opening = 'terminal=$1; shift; exec "$@" <>"$terminal" >&0 2>&0'
    process = subprocess.Popen(
        ["sh", "-c", opening, "sh", os.ttyname(inner), program, *SHELLS[name]],
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    try:
        terminal = Terminal(outer)
        terminal.type(f"{PREPARED[name]}; echo rea''dy\r")
        terminal.read_until("ready")
        yield terminal
    finally:
        process.kill()
        process.wait()
        os.close(outer)
        os.close(inner)


@pytest.mark.parametrize("name", SHELLS)
def test_the_tab_key_completes(name: str, tmp_path: Path) -> None:
    with run_shell(name, tmp_path) as terminal:
        for number, (line, whole) in enumerate(TYPED.items(), 10):
            # The shell says itself what then stands in the line: with quotes that only its answer
            # lacks, so that it is not taken for what was typed.
            terminal.type(f"{line}\t{BEGIN_OF_LINE}echo {number}''{number}:\r")
            said = terminal.read_until(rf"{number}{number}:(.*?)[\r\n]")
            assert said[1].strip() == whole


def test_every_command_is_completed_with_what_it_is_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert completion.PURPOSE.keys() == COMMANDS.keys()
    for name, text in completion.PURPOSE.items():
        assert f"{name}:{shlex.quote(text)}" in script


def test_without_shtab_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert 'pip install "shtab>=1.13"' in capsys.readouterr().err
