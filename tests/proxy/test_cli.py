"""The command line: what it turns into, what it says, and how quickly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy import run
from wellspoken.proxy.cli import main
from wellspoken.proxy.config import Config

COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli"]


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that would have been run."""
    seen: list[Config] = []

    def remember(config: Config) -> int:
        seen.append(config)
        return 0

    monkeypatch.setattr(run, "run", remember)
    return seen


def test_a_url_is_a_backend(configs: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WELLSPOKEN_LISTEN", raising=False)
    assert main(["localhost:8000/v1"]) == 0
    options = ["--listen", "localhost:9", "--adapter", "vllm", "--upstream-key", "env:K"]
    assert main(["http://x", *options, "--tokenizer", "t.json"]) == 0
    first, second = configs
    assert first.server.listen == "127.0.0.1:8010"
    assert first.backend[0].url == "localhost:8000/v1"
    assert second.server.listen == "localhost:9"
    backend = second.backend[0]
    found = (backend.adapter, backend.key, backend.tokenizer)
    assert found == ("vllm", "env:K", "t.json")


def test_serve_reads_a_file_and_flags(configs: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[server]\nlisten = 'localhost:1'\n[[backend]]\nurl = 'x'\n")
    assert main(["serve", "--config", str(file)]) == 0
    assert main(["serve", "--config", str(file), "--listen", "localhost:2"]) == 0
    assert main(["serve", "--engine", "llamacpp", "--model", "m.gguf"]) == 0
    assert [config.server.listen for config in configs[:2]] == ["localhost:1", "localhost:2"]
    engine: Any = configs[2].engine
    assert (engine.kind, engine.model) == ("llamacpp", "m.gguf")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://x"], "no http(s) URL"),
        (["http://u:secret@x"], "credentials"),
        (["x", "--upstream-key", "sk-secret"], "env:NAME"),
        (["x", "--listen", "nowhere"], "Write it like"),
        (["serve"], "no backend"),
        (["serve", "--config", "/nowhere.toml"], "cannot read"),
        (["serve", "--engine", "llamacpp"], "--model FILE.gguf"),
        (["serve", "--model", "m.gguf"], "--engine llamacpp"),
    ],
)
def test_errors_say_what_to_do(
    configs: list[Config], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("wellspoken: ")
    assert words in said
    assert "secret" not in said
    assert configs == []


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"]])
def test_help_begins_with_examples(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[2] == "examples:"
    assert lines[3].startswith("  wellspoken ")


def test_without_arguments_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("wellspoken 0.")


def test_help_imports_nothing_heavy() -> None:
    """The target is 150 ms; what costs the time is imports, which do not depend on the machine."""
    code = (
        "import sys; from wellspoken.proxy.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'aiohttp', 'msgspec', 'prometheus_client', 'tiktoken', 'asyncio', 'uvloop'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr


def test_the_command_serves_and_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("wellspoken 0.")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
    finally:
        process.kill()
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.returncode == 0, err
    assert time.monotonic() - began < 5
    assert "curl" in out
    assert "Traceback" not in err


def test_a_taken_port_ends_the_command() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*COMMAND, "http://127.0.0.1:9", "--listen", where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert f"wellspoken: {where} is taken" in done.stderr
    assert "Traceback" not in done.stderr
