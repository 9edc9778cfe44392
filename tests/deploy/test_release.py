"""deploy/release.py: what is released has the same bytes each time, installs, and goes again.

uv and pipx are those of .venv-deploy; what they install comes from the index that pip uses here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest

from tests.deploy.tools import ROOT, VENV, absent, run, said, tool, version
from tests.test_packaging import list_tree

AUTHOR = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "A"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "a@example.invalid"),
    **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2026-11-20T10:00:00Z"),
}
EPOCH = datetime.fromisoformat("2026-11-20T10:00:00+00:00").timestamp()
STEM = f"wellspoken-{version()}"
TOOLS = ("cache", "logs")
WHEEL, SOURCE = f"{STEM}-py3-none-any.whl", f"{STEM}.tar.gz"


def commit_checkout(folder: Path) -> Path:
    """Commit a copy of this checkout, as it would be committed."""
    for name in list_tree():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "All.")):
        status, out = run("git", *words, folder=folder, environ={**os.environ, **AUTHOR})
        assert status == 0, out
    return folder


def make_release(
    checkout: Path, *words: str, umask: str = "022", environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the command in a checkout; return its exit status and what it says."""
    python = VENV.with_name(".venv-release") / "bin" / "python"
    if not python.exists():
        absent("there is no .venv-release: make .venv-release/.installed")
    command = f'umask {umask}; exec "$0" deploy/release.py "$@"'
    return run("sh", "-c", command, python, *words, folder=checkout, environ=environ)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release has, made with an umask that is not everybody's."""
    checkout = commit_checkout(tmp_path_factory.mktemp("one"))
    status, out = make_release(checkout, "--no-image", umask="077")
    assert status == 0, out
    assert "The image is left out, as was asked for." in out
    return checkout / "dist"


def test_a_release_has_the_same_bytes_each_time(released: Path, tmp_path: Path) -> None:
    """In another folder and time zone, by another umask, over what lay there before.

    Where nothing builds images, it says that the image is left out.
    """
    checkout = commit_checkout(tmp_path / "elsewhere" / "two")
    into = tmp_path / "into"
    into.mkdir()
    (into / "old.whl").touch()
    for name in ("docker", "podman", "buildah"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "TZ": "Asia/Tokyo"}
    status, out = make_release(checkout, "--into", str(into), environ=environ)
    assert status == 0, out
    assert "or works.\nThe image is left out.\n" in out
    one, two = ({each.name: each.read_bytes() for each in at.iterdir()} for at in (released, into))
    assert one == two
    assert one.keys() == {WHEEL, SOURCE, f"{STEM}.cdx.json", "RELEASE_NOTES.md", "SHA256SUMS"}


def test_the_sums_are_those_of_the_files(released: Path) -> None:
    lines = (released / "SHA256SUMS").read_text().splitlines()
    found = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in released.iterdir()
        if each.name != "SHA256SUMS"
    }
    assert {name: sum for sum, name in (line.split("  ") for line in lines)} == found
    assert said("sha256sum", "--check", "--strict", "SHA256SUMS", folder=released).count("OK") == 4


def test_the_bill_of_materials_is_what_the_core_locks(released: Path) -> None:
    text = (released / f"{STEM}.cdx.json").read_text()
    bill = json.loads(text)
    assert (bill["bomFormat"], "serialNumber" in bill) == ("CycloneDX", False)
    assert bill["metadata"]["timestamp"] == "2026-11-20T10:00:00+00:00"
    assert bill["metadata"]["component"]["version"] == version()
    found = {each["name"]: each for each in bill["components"]}
    assert {"aiohttp", "msgspec", "uvloop", "tiktoken", "prometheus-client", "yarl"} <= found.keys()
    assert not {"pytest", "asyncpg", "xllamacpp", "setuptools"} & found.keys()
    constraints = (ROOT / "constraints.txt").read_text()
    for name, each in found.items():
        assert f"\n{name}=={each['version']} " in f"\n{constraints}"
        assert each["purl"] == f"pkg:pypi/{name}@{each['version']}"
        hashes = [one["content"] for one in each["externalReferences"][0]["hashes"]]
        assert hashes and all(f"sha256:{one}" in constraints for one in hashes)
    assert str(ROOT) not in text and "/tmp/" not in text


def test_the_source_distribution_is_nobodys_machine(released: Path) -> None:
    with tarfile.open(released / SOURCE) as archive:
        members = archive.getmembers()
    assert {each.mtime for each in members} == {EPOCH}
    assert {(each.uid, each.gid, each.uname, each.gname) for each in members} == {(0, 0, "", "")}
    modes = {each.name.partition("/")[2]: each.mode for each in members}
    assert set(modes.values()) == {0o755, 0o644}
    assert modes[".ci/run"] == 0o755 and modes["pyproject.toml"] == 0o644


def test_the_notes_are_the_changelogs(released: Path) -> None:
    notes = (released / "RELEASE_NOTES.md").read_text()
    assert notes.startswith(f"## {version()}") and notes.count("\n## ") == 0
    assert notes.rstrip() in (ROOT / "CHANGELOG.md").read_text()


def test_what_is_not_committed_is_not_released(released: Path) -> None:
    more = released.parent / "adapters" / "more.py"
    more.touch()
    try:
        status, out = make_release(more.parents[1], "--no-image")
    finally:
        more.unlink()
    assert status == 1 and "Commit these first" in out and "adapters/more.py" in out
    assert (released / WHEEL).exists()  # what lies there stays


def check_command(*words: str | Path, environ: Mapping[str, str]) -> None:
    """Hold a command that was installed to what it says of itself."""
    status, out = run(*words, "version", environ=environ)
    assert status == 0 and f"wellspoken{' ' * 9}{version()}" in out, out
    status, example = run(*words, "config", "example", environ=environ)
    assert (status, example) == (0, (ROOT / "config.example.toml").read_text())
    check = (*words, "check", "--file-only", "/dev/stdin")
    status, out = run(*check, stdin=example, environ=environ)
    assert status == 0 and "/dev/stdin: good" in out, out


@pytest.fixture
def home(environment_as_given: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has installed nothing, with the caller's index."""
    given = {
        **dict.fromkeys(("HOME", "XDG_DATA_HOME", "PIPX_HOME"), str(tmp_path)),
        **dict.fromkeys(("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR"), str(tmp_path / "bin")),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    return {**environment_as_given, **given}


def succeed(*words: str | Path, environ: Mapping[str, str]) -> None:
    status, out = run(*words, environ=environ, seconds=600)
    assert status == 0, out


def left_over(folder: Path) -> list[Path]:
    """Return what still bears the project's name, but the tools' own locks, logs and caches."""
    found = (path.relative_to(folder) for path in folder.rglob("*wellspoken*"))
    return [each for each in found if each.suffix != ".lock" and each.parts[0] not in TOOLS]


def test_uv_installs_it_as_a_tool(released: Path, home: dict[str, str], tmp_path: Path) -> None:
    uv, wheel = tool("uv"), released / WHEEL
    succeed(uv, "tool", "install", wheel, environ=home)
    check_command(tmp_path / "bin" / "wellspoken", environ=home)
    succeed(uv, "tool", "uninstall", "wellspoken", environ=home)
    assert left_over(tmp_path) == []
    check_command(
        uv, "tool", "run", "--quiet", "--from", wheel, "wellspoken", environ=home
    )  # as uvx does


def test_uv_installs_it_into_an_environment(
    released: Path, home: dict[str, str], tmp_path: Path
) -> None:
    uv, there = tool("uv"), tmp_path / "there"
    succeed(uv, "venv", there, environ=home)
    succeed(uv, "pip", "install", "--python", there, released / WHEEL, environ=home)
    check_command(there / "bin" / "python", "-m", "wellspoken", environ=home)
    succeed(uv, "pip", "uninstall", "--python", there, "wellspoken", environ=home)
    assert left_over(tmp_path) == []


def test_pipx_installs_it(released: Path, home: dict[str, str], tmp_path: Path) -> None:
    pipx = tool("pipx")
    succeed(pipx, "install", released / WHEEL, environ=home)
    check_command(tmp_path / "bin" / "wellspoken", environ=home)
    succeed(pipx, "uninstall", "wellspoken", environ=home)
    assert left_over(tmp_path) == []
