"""Makes the environment of `make demo`: what it needs and no more.

    python -m tests.demo.install FOLDER

Needs nothing but Python. Each package is one whose hash stands in constraints.txt. What only
installs goes again, pip included.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.demo.progress import Progress

ROOT = Path(__file__).parents[2]
PIP = ("-B", "-m", "pip", "--disable-pip-version-check", "--no-input")
PINNED = ("--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:")
NO_ENGINE = """\
The embedded llama.cpp does not load. If libgomp is missing: apt-get install libgomp1 (Debian,
Ubuntu), dnf install libgomp (Fedora), then make demo again."""
HELP = """\
The packages could not be installed; pip says why above. No network or no index: set PIP_INDEX_URL
or HTTPS_PROXY. No matching distribution: there is no wheel for this platform; use CPython 3.11 to
3.13 on Linux (glibc) or macOS."""


def run_pip(python: Path, progress: Progress, *words: str) -> None:
    """Run pip, and note what it does. Exits where it fails, with what it said last."""
    argv = [str(python), *PIP, *words]
    out = subprocess.PIPE
    said = list[str]()
    with subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            said.append(line)
            if found := re.match(r"Collecting ([\w.-]+)", line):
                number = sum(each.startswith("Collecting ") for each in said)
                progress.note(f"fetching {found[1]}, number {number}")
            elif line.startswith("Installing collected"):
                progress.note("unpacking the packages")
    if pip.returncode != 0:
        raise SystemExit("".join(said[-20:]) + HELP)


def read_pins() -> str:
    """Return the lines of constraints.txt for what the demo needs, and for what builds.

    Without uvloop's: 14 MB for speed, and asyncio has a loop of its own.
    """
    pins = [sys.executable, "deploy/pins.py"]
    text = "".join(
        subprocess.run(
            [*pins, wanted], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for wanted in ("--build", "demo")
    )
    return re.sub(r"(?m)^uvloop==.*\n(?:[ \t].*\n)*", "", text)


def check_engine(python: Path) -> None:
    """Exit where the embedded llama.cpp does not load, saying what it lacks."""
    done = subprocess.run([python, "-B", "-c", "import xllamacpp"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr + NO_ENGINE)


def install(folder: Path, progress: Progress) -> None:
    """Make the environment. Exits where that fails."""
    shutil.rmtree(folder, ignore_errors=True)
    progress.say(f"creating {folder.name} with {sys.executable}")
    venv.create(folder, symlinks=True, with_pip=True)
    python = folder / "bin" / "python"
    pins = folder / "pins.txt"
    pins.write_text(read_pins())
    progress.say("fetching packages")
    run_pip(python, progress, "install", *PINNED, "-r", str(pins))
    check_engine(python)
    progress.say("installing wellspoken")
    run_pip(python, progress, "install", "--no-deps", "--no-build-isolation", "-e", ".")
    progress.say("removing what only installs")
    run_pip(python, progress, "uninstall", "--yes", "setuptools", "pip")
    size = sum(each.lstat().st_size for each in folder.rglob("*"))
    progress.say(f"{size >> 20} MB installed")


def main() -> None:
    with Progress() as progress:
        install(Path(sys.argv[1]), progress)


if __name__ == "__main__":
    main()
