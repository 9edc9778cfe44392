"""Make a release of the last commit: the same bytes each time, wherever the checkout is.

    python deploy/release.py [--into dist] [--no-image] [OPTION OF THE IMAGE'S BUILD...]

Into the folder come the source distribution, the wheel that is built of it, a list of the locked
core dependencies with their hashes (a CycloneDX SBOM), an archive of the image, the version's part
of CHANGELOG.md, and the sums of all these. Whoever has the same Python finds the same sums.

Needs setuptools, build and cyclonedx-bom: `make release` has them in .venv-release.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTES, SUMS = "RELEASE_NOTES.md", "SHA256SUMS"
NO_ENGINE = 3  # of deploy/image.py, where nothing builds images


def run(*words: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints. Exits with what it said where it fails."""
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_out(root: Path, into: Path) -> int:
    """Write the last commit's files into a folder; return the commit's time.

    Exits where there is something that the commit lacks: it would be missing in the release.
    """
    if changed := run("git", "status", "--porcelain", cwd=root):
        raise SystemExit(f"Commit these first, or take them away:\n{changed}")
    packed = into.with_suffix(".tar")
    run("git", "archive", "--output", packed, "HEAD", cwd=root)
    with tarfile.open(packed) as archive:
        archive.extractall(into, filter="data")
    return int(run("git", "log", "-1", "--format=%ct", cwd=root))


def normalize(archive: Path, epoch: int) -> None:
    """Write a .tar.gz anew, of which only names, texts and what may be executed matter."""
    with tarfile.open(archive) as given:
        members = sorted(given.getmembers(), key=lambda member: member.name)
        files = [given.extractfile(member) if member.isfile() else None for member in members]
        data = [file.read() if file else b"" for file in files]
    raw = archive.with_suffix(".part")
    with (
        raw.open("wb") as out,
        gzip.GzipFile("", "wb", 9, out, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as made,
    ):
        for member, text in zip(members, data, strict=True):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, len(text), epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            made.addfile(plain, io.BytesIO(text))
    raw.replace(archive)


def build(tree: Path, into: Path, epoch: int) -> None:
    """Build the source distribution, and of it the wheel."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    words = (sys.executable, "-m", "build", "--no-isolation", "--outdir", into)
    run(*words, "--sdist", tree, cwd=tree, environment=environment)
    (source,) = into.glob("*.tar.gz")
    normalize(source, epoch)
    with tarfile.open(source) as archive:
        archive.extractall(tree.parent / "source", filter="data")
    (unpacked,) = (tree.parent / "source").iterdir()
    run(*words, "--wheel", unpacked, cwd=unpacked, environment=environment)


def list_dependencies(tree: Path, file: Path, epoch: int) -> None:
    """Write the SBOM, of the lines of constraints.txt that the core needs."""
    pins = tree.parent / "core.txt"
    pins.write_text(run(sys.executable, "deploy/pins.py", cwd=tree))
    # It warns that the graph is incomplete: a lock says what is installed, not for whose sake.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONWARNINGS": "ignore"}
    words = (sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible")
    options = ("--pyproject", "pyproject.toml", "--output-file", file)
    run(*words, *options, pins, cwd=tree, environment=environment)


def notes_of(changelog: str, version: str) -> str:
    """Return what a changelog says of a version. Exits where it says nothing."""
    found = re.search(rf"(?ms)^## {re.escape(version)}\b.*?(?=^## |\Z)", changelog)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no part ## {version}")
    return found[0].rstrip() + "\n"


def sums(folder: Path) -> str:
    """Return a line for each file of a folder, as sha256sum writes and checks them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )


def build_image(tree: Path, archive: Path, epoch: int, more: Sequence[str]) -> None:
    """Build the image and write its archive, or say that it is left out. Exits where that fails."""
    words = [sys.executable, "deploy/image.py", "--archive", str(archive), *more]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    code = subprocess.run(words, cwd=tree, env=environment).returncode
    if code == NO_ENGINE:
        print("The image is left out.")
    elif code != 0:
        raise SystemExit("The image could not be built; without it: make release ARGS=--no-image")


def release(options: argparse.Namespace, more: Sequence[str]) -> None:
    """Make the release. Exits where something is wrong."""
    os.umask(0o022)
    into: Path = options.into.absolute()
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        epoch = check_out(ROOT, tree)
        project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        stem = f"{project['name']}-{project['version']}"
        notes = notes_of((tree / "CHANGELOG.md").read_text(), project["version"])
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        build(tree, into, epoch)
        list_dependencies(tree, into / f"{stem}.cdx.json", epoch)
        (into / NOTES).write_text(notes)
        if options.image:
            build_image(tree, into / f"{stem}-image.tar", epoch, more)
        else:
            print("The image is left out, as was asked for.")
    (into / SUMS).write_text(sums(into))
    print((into / SUMS).read_text(), end="")
    if "unreleased" in notes.splitlines()[0]:
        print(f"CHANGELOG.md still calls {project['version']} unreleased.")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-image", dest="image", action="store_false")
    release(*parser.parse_known_args(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
