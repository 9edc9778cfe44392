"""The command line where stdout and stderr are closed, full, or read by nobody, and at Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli"]
SAYING = ["--help", "--version", "config schema", "check w.toml", "config show w.toml"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    Path("w.toml").write_text("[server]\nlisten = '127.0.0.1:0'\n[[backend]]\nurl = 'http://é'\n")


def ran(words: str, redirected: str) -> tuple[int, str]:
    """Run the command in a shell; return its exit code and what it says on stderr."""
    line = f'"$@" {redirected}'
    done = subprocess.run(
        ["bash", "-c", line, "sh", *COMMAND, *words.split()],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("words", SAYING)
def test_nobody_reads_the_output(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *words.split()], stdout=writer, stderr=subprocess.PIPE, timeout=120
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", SAYING)
def test_there_is_no_room_for_the_output(words: str) -> None:
    said = "wellspoken: cannot write to stdout: No space left on device.\n"
    assert ran(words, ">/dev/full") == (1, said)


@pytest.mark.parametrize("words", SAYING)
def test_stdout_is_closed(words: str) -> None:
    assert ran(words, ">&-") == (0, "")


@pytest.mark.parametrize("words", SAYING)
def test_everything_is_closed(words: str) -> None:
    assert ran(words, "<&- >&- 2>&-") == (0, "")


def test_what_is_converted_has_to_go_somewhere() -> None:
    code, said = ran("convert w.toml", ">&-")
    assert (code, said) == (2, "wellspoken: stdout is closed. Write > NEW behind the command.\n")


def test_an_encoding_that_lacks_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, said = ran("check --file-only w.toml", ">&2")
    assert code == 0 and r"http://\xe9" in said


def test_ctrl_c_while_a_file_is_waited_for() -> None:
    os.mkfifo("waits")
    work = subprocess.Popen([*COMMAND, "check", "waits"], stderr=subprocess.PIPE)
    with open("waits", "wb"):  # opened by both: now it reads
        work.send_signal(signal.SIGINT)
        _, said = work.communicate(timeout=120)
    assert (work.returncode, said) == (130, b"")
