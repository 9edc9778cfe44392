"""deploy/pins.py: an image takes what constraints.txt pins, by its hashes, and no more."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.tools import DEPLOY, ROOT, run

PINS = DEPLOY / "pins.py"
BOTH: tuple[dict[str, str], ...] = ({}, {"python_version": "3.11", "python_full_version": "3.11.0"})


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
    blocks = re.findall(r"^[\w.-]+==.*(?:\n[ \t]+--hash.*)*", text, re.MULTILINE)
    return {block.partition("==")[0]: block for block in blocks}


def printed(project: Path, *arguments: str) -> str:
    status, said = run(sys.executable, PINS, *arguments, folder=project)
    assert status == 0, said
    return said


def needed(requirement: Requirement) -> Iterator[str]:
    """Yield the names of all that a requirement pulls in, as the packages themselves say.

    Here or under the oldest Python: constraints.txt does not tell for which of them a pin is there.
    """
    yield canonicalize_name(requirement.name)
    places = [{"extra": extra, **python} for extra in ("", *requirement.extras) for python in BOTH]
    for each in map(Requirement, requires(requirement.name) or ()):
        if each.marker is None or any(map(each.marker.evaluate, places)):
            yield from needed(each)


@pytest.mark.parametrize("extras", ["", "postgres,otel", "llamacpp"])
def test_all_that_the_proxy_needs_is_printed_and_no_more(extras: str) -> None:
    found = {
        Requirement(line.strip(" \\")) for line in re.findall(r"(?m)^\w.*", printed(ROOT, extras))
    }
    here = {each.name for each in found if each.marker is None or each.marker.evaluate()}
    assert here == {*needed(Requirement(f"wellspoken[{extras}]"))} - {"wellspoken"}


def test_what_is_printed_is_pinned_with_hashes(project: Path) -> None:
    found = pinned(printed(project, "names"))
    all_pins = pinned((project / "constraints.txt").read_text())
    assert {"aiosignal", "frozenlist", "idna"} <= found.keys()
    assert found.keys() & {"attrs", "pytest", "setuptools"} == set()
    assert {name: all_pins[name] for name in found} == found
    assert all("--hash=sha256:" in block for block in found.values())


def test_a_name_that_is_pinned_for_each_python_is_printed_for_each(project: Path) -> None:
    pins = project / "constraints.txt"
    text = pins.read_text()
    idna = re.search(r"(?m)^idna==\S+ .*(?:\n[ \t].*)*\n", text)
    assert idna is not None
    older = re.sub(r"^idna==\S+", "idna==3.0 ; python_full_version < '3.12'", idna[0])
    newer = re.sub(r"^(idna==\S+)", r"\1 ; python_full_version >= '3.12'", idna[0])
    pins.write_text(text.replace(idna[0], older + newer))
    said = printed(project, "names")
    assert re.findall(r"(?m)^idna==.* ; .* \W+([\d.]+)'", said) == ["3.12", "3.12"]
    assert len(re.findall(r"(?m)^frozenlist==", said)) == 1


def test_what_builds_it_is_pinned_too(project: Path) -> None:
    assert pinned(printed(project, "--build")).keys() == {"setuptools"}


def test_an_extra_that_there_is_not_is_refused(project: Path) -> None:
    status, said = run(sys.executable, PINS, "oracle", folder=project)
    assert status != 0 and "no extra 'oracle'; there are more, names" in said


def test_what_is_not_pinned_is_refused(project: Path) -> None:
    pins = project / "constraints.txt"
    pins.write_text(pins.read_text().replace(pinned(pins.read_text())["aiosignal"], ""))
    status, said = run(sys.executable, PINS, "", folder=project)
    assert status != 0 and "not in constraints.txt: aiosignal" in said


def test_another_file_than_the_pinned_one_is_refused(
    project: Path, environment_as_given: dict[str, str]
) -> None:
    """The step of the Containerfile that installs: with one hash changed it does not."""
    text = printed(project, "--build")
    (project / "build.txt").write_text(re.sub(r"sha256:[0-9a-f]{8}", "sha256:00000000", text))
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps"]
    pip += ["--require-hashes", "--only-binary", ":all:", "-r", "build.txt"]
    status, said = run(*pip, folder=project, environ=environment_as_given)
    assert status != 0 and "DO NOT MATCH THE HASHES" in said, said
