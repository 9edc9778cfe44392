"""An image with Python to build deploy/Containerfile on where no registry can be reached.

It holds what Debian's or Ubuntu's own packages of python3, its venv module and a shell put on this
machine, with all that they depend on and nothing else: what `python:3-slim` is, of another
distribution. It takes seconds, and no network.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGES = ("base-files", "ca-certificates", "coreutils", "dash", "python3", "python3-venv")
_LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/")


class NoPackages(Exception):
    """This machine is not one of Debian's kind, or a package is missing or too old."""


def closure(wanted: Iterable[str], listing: str) -> list[str]:
    """Return these packages and what they depend on, of those that are installed.

    `listing` has a line for each: name, what it depends on, what it provides, with tabs between. Of
    alternatives the first that is installed counts. Raises NoPackages where one of `wanted` is not.
    """
    depends: dict[str, str] = {}
    provided: dict[str, str] = {}
    for line in listing.splitlines():
        name, needs, provides = line.split("\t")
        depends[name] = needs
        for each in _names(provides):
            provided.setdefault(each, name)
    open_ones, found = list(wanted), set[str]()
    while open_ones:
        name = open_ones.pop()
        if name not in depends:
            raise NoPackages(f"the package {name} is not installed")
        if name in found:
            continue
        found.add(name)
        for alternatives in depends[name].split(","):
            names = (provided.get(each, each) for each in _names(alternatives, "|"))
            names = (each for each in names if each in depends)
            open_ones += list(names)[:1]
    return sorted(found)


def _names(text: str, separator: str = ",") -> Iterator[str]:
    for each in text.split(separator):
        if name := re.split(r"[\s(:]", each.strip(), maxsplit=1)[0]:
            yield name


def files(packages: Iterable[str]) -> list[str]:
    """Return the paths that packages have put here, folders and links included."""
    found = dict.fromkeys(
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for path in _asked("dpkg", "-L", *packages).splitlines()
        if path.startswith("/") and path != "/."
    )
    return [path for path in found if os.path.lexists(path) and not path.startswith(_LEFT_OUT)]


def too_old(version: str) -> bool:
    """Say whether a package's version is of a Python that the proxy does not run on."""
    major, minor = re.findall(r"\d+", version.rpartition(":")[2])[:2]
    return (int(major), int(minor)) < (3, 11)


def make_root(folder: Path) -> None:
    """Fill a folder with the image's files. Raises NoPackages."""
    query = "${Package}\t${Depends}, ${Pre-Depends}\t${Provides}\n"
    names = closure(PACKAGES, _asked("dpkg-query", "-W", "-f", query))
    version = _asked("dpkg-query", "-W", "-f", "${Version}", "python3")
    if too_old(version):
        raise NoPackages(f"the package python3 is {version}, and the proxy needs 3.11")
    listed = "\n".join(path.removeprefix("/") for path in files(names))
    for each in ("lib", "lib64", "bin", "sbin"):  # what links in / point to, before the files in it
        (folder / "usr" / each).mkdir(parents=True, exist_ok=True)
    pack = ["tar", "-C", "/", "--no-recursion", "-cf", "-", "-T", "-"]
    packed = subprocess.run(pack, input=listed.encode(), capture_output=True)
    if packed.returncode > 1:  # 1: something changed while it was read
        raise RuntimeError(packed.stderr.decode())
    subprocess.run(["tar", "-C", str(folder), "-xf", "-"], input=packed.stdout, check=True)
    for name, line in (("passwd", "root:x:0:0:root:/root:/bin/sh"), ("group", "root:x:0:")):
        (folder / "etc" / name).write_text(line + "\n")


def _asked(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoPackages(f"{argv[0]} does not answer: {error}") from error
    return done.stdout
