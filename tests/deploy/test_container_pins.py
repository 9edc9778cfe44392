"""deploy/pins.py: an image takes what constraints.txt pins, by its hashes, and no more."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, ROOT, run

PINS = DEPLOY / "pins.py"


PROJECT = """
[build-system]
requires = ["setuptools>=78"]
[project]
dependencies = ["aiosignal>=1"]
optional-dependencies = {names = ["idna"], more = ["attrs"]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project, with the pins of this one. test_container.py has the whole one built."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    return tmp_path


def pinned(text: str) -> dict[str, str]:
    """Return each requirement with all that stands for it, by name."""
    blocks = re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", text, re.MULTILINE)
    return {block.partition("==")[0]: block for block in blocks}


def printed(project: Path, environ: dict[str, str], *arguments: str) -> str:
    status, said = run(sys.executable, PINS, *arguments, folder=project, environ=environ)
    assert status == 0, said
    return "\n".join(line for line in said.splitlines() if not line.startswith("WARNING: "))


def test_what_is_printed_is_pinned_with_hashes(
    project: Path, environment_as_given: dict[str, str]
) -> None:
    found = pinned(printed(project, environment_as_given, "names"))
    all_pins = pinned((project / "constraints.txt").read_text())
    assert {"aiosignal", "frozenlist", "idna"} <= found.keys()
    assert found.keys() & {"attrs", "pytest", "setuptools"} == set()
    assert {name: all_pins[name] for name in found} == found
    assert all("--hash=sha256:" in block for block in found.values())


def test_what_builds_it_is_pinned_too(project: Path, environment_as_given: dict[str, str]) -> None:
    assert pinned(printed(project, environment_as_given, "--build")).keys() == {"setuptools"}


def test_an_extra_that_there_is_not_is_refused(
    project: Path, environment_as_given: dict[str, str]
) -> None:
    status, said = run(sys.executable, PINS, "oracle", folder=project, environ=environment_as_given)
    assert status != 0 and "no extra 'oracle'; there are more, names" in said


def test_what_is_not_pinned_is_refused(project: Path, environment_as_given: dict[str, str]) -> None:
    pins = project / "constraints.txt"
    pins.write_text(pins.read_text().replace(pinned(pins.read_text())["frozenlist"], ""))
    status, said = run(sys.executable, PINS, "", folder=project, environ=environment_as_given)
    assert status != 0 and "not in constraints.txt: frozenlist" in said


def test_another_file_than_the_pinned_one_is_refused(
    project: Path, environment_as_given: dict[str, str]
) -> None:
    """The step of the Containerfile that installs: with one hash changed it does not."""
    text = printed(project, environment_as_given, "--build")
    (project / "build.txt").write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", text))
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    pip += ["--require-hashes", "--only-binary", ":all:", "-r", "build.txt"]
    status, said = run(*pip, folder=project, environ=environment_as_given)
    assert status != 0 and "DO NOT MATCH THE HASHES" in said, said
