"""What the command line says of itself: help, versions, the example of a configuration."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.cli.options import COMMANDS

ROOT = Path(__file__).parents[3]
HELPED = ("", "serve", "check", "config", "config show", "version", "completion")
HELPS = [[*words.split(), "--help"] for words in HELPED]


@pytest.mark.parametrize("arguments", HELPS)
def test_help_begins_with_examples(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[2] == "examples:"
    assert lines[3].startswith("  wellspoken ")


@pytest.mark.parametrize("command", ["", *COMMANDS, "config show"])
def test_no_line_of_the_help_is_wider_than_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 8 and [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("words", [["help"], ["help", "serve"], ["help", "config"]])
def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    said: list[tuple[Any, str]] = []
    for arguments in (words, [*words[1:], "--help"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        said.append((caught.value.code, capsys.readouterr().out))
    assert said[0] == said[1] and "examples:" in said[0][1]


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("wellspoken 0.")


def test_the_version_of_all_that_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    said = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == said
    assert said["Python"].split() == [platform.python_version(), "(CPython)"]
    for name in ("wellspoken", "aiohttp", "uvloop", "msgspec", "asyncpg", "xllamacpp"):
        assert said[name] == importlib.metadata.version(name)
    assert said.keys().isdisjoint({"pytest", "vllm", "ruff"})  # no part of it, or not installed
    assert (Path(said["folder"]) / "proxy" / "guides" / "troubleshooting.md").is_file()


def test_the_example_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "example"]) == 0
    assert capsys.readouterr().out == (ROOT / "config.example.toml").read_text()


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "wellspoken", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()[0]) == (0, "wellspoken"), done.stderr


@pytest.mark.parametrize("arguments", [*HELPS, ["doctor", "--help"], ["convert", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """The target is 150 ms; what costs the time is imports, which do not depend on the machine."""
    code = (
        "import sys; from wellspoken.proxy.cli.main import main\n"
        f"try: main({arguments})\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'msgspec', 'prometheus_client', 'tiktoken', 'asyncio', 'uvloop'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
