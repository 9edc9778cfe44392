"""`.ci/newest-python`: which Python the packages are tested on beside .venv's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "newest-python"


def place(folder: Path, name: str, script: str) -> Path:
    """Make a program that stands for a Python; what it prints is its minor version."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / name
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o755)
    return made


def newest(tmp_path: Path, known: Path) -> str:
    """Return what the script prints where these Pythons alone are."""
    env = {"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}", "PYENV_ROOT": str(tmp_path / "pyenv")}
    done = subprocess.run(
        ["/bin/bash", SCRIPT, known], env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_newest_that_runs_is_found(tmp_path: Path) -> None:
    known = place(tmp_path / "a", "python3", "echo 11")
    assert newest(tmp_path, known) == ""
    place(tmp_path / "b", "python3.13", "echo no such version is selected >&2; exit 127")
    place(tmp_path / "b", "python3.12-config", "echo 99")
    assert newest(tmp_path, known) == ""
    place(tmp_path / "b", "python3.9", "exit 1")
    other = place(tmp_path / "b", "python3.12", "echo 12")
    assert newest(tmp_path, known) == str(other)
    inner = place(tmp_path / "pyenv" / "versions" / "3.13.0" / "bin", "python3", "echo 13")
    assert newest(tmp_path, known) == str(inner)
    assert newest(tmp_path, inner) == str(other)


def test_a_real_one_is_asked(tmp_path: Path) -> None:
    """Of the Python of these tests alone there is no other one; beside an older one it is."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "python3").symlink_to(os.path.realpath(sys.executable))
    assert newest(tmp_path, Path(sys.executable)) == ""
    known = place(tmp_path / "known", "python3", "echo 10")
    assert newest(tmp_path, known) == str(tmp_path / "a" / "python3")
