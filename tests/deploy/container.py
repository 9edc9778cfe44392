"""deploy/Containerfile, read and built.

buildah runs its steps one by one, on an image made of this machine's own packages (base_image.py),
since CI reaches no registry of images; package registries it reaches as pip here does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.deploy.base_image import NoPackages, make_root
from tests.deploy.tools import DEPLOY, ROOT, Document, absent, run, system_tool

FILE = DEPLOY / "Containerfile"
IGNORED = DEPLOY / "Containerfile.dockerignore"
_PIP = ("index-url", "extra-index-url", "trusted-host", "proxy", "cert", "default-timeout")
_SECONDS = 600
EPOCH = 1795000000  # the time of an image's files


def instructions(text: str) -> list[tuple[str, str]]:
    """Return a Containerfile's instructions, each with its words on one line."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text))
    parted = (line.partition(" ") for line in joined.splitlines() if line)
    return [(name, words.strip()) for name, _, words in parted]


def arguments(text: str) -> dict[str, str]:
    """Return the defaults of a Containerfile's ARGs."""
    found = [words for name, words in instructions(text) if name == "ARG"]
    return {name: value for name, _, value in (each.partition("=") for each in found)}


@dataclass
class Image:
    """An image that was built: its settings, and the folder where its files can be seen."""

    config: Document
    root: Path

    @property
    def environ(self) -> dict[str, str]:
        return dict(each.split("=", 1) for each in self.config["config"]["Env"])

    @property
    def health(self) -> list[str]:
        """The words of its health check."""
        test: list[str] = self.config["config"]["Healthcheck"]["Test"]
        return test[1:] if test[:1] == ["CMD"] else []


class Builder:
    """buildah with a store of its own, which goes with it."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = dict(environ)
        self._numbers = count()
        self._words = [system_tool("buildah", "buildah"), "--storage-driver", "vfs"]
        self._words += ["--root", str(folder / "store"), "--runroot", str(folder / "run")]

    @cached_property
    def _base(self) -> str:
        """Return an image with Python and a shell. Skips the test where it cannot be made."""
        root = self._folder / "base"
        root.mkdir()
        try:
            make_root(root)
        except NoPackages as error:
            absent(f"no base image can be made: {error} (apt-get install python3-venv)")
        container = self("from", "scratch").strip()
        self("copy", "--quiet", container, str(root), "/")
        self("commit", "--quiet", "--rm", container, "localhost/base:1")
        return "localhost/base:1"

    def archive(self, context: Path) -> Path:
        """Build the image of a checkout by the command that people use; return its archive."""
        file = self._folder / f"{next(self._numbers)}.tar"
        options = ["--layers=false", "--quiet", "--build-arg", f"BASE={self._base}"]
        for name in self._environ:
            if name.upper().endswith("_PROXY"):
                options += ["--build-arg", name]
        for here, there in self._mounts():
            options += ["-v", f"{here}:{there}:ro"]
        words = (sys.executable, "deploy/image.py", "--archive", str(file), *options)
        status, out = run(*words, folder=context, environ=self._settings(), seconds=_SECONDS)
        assert status == 0, out
        return file

    def open(self, archive: Path) -> Image:
        """Return the image that an archive holds, as a program that loads it sees it."""
        name = self("pull", "--quiet", f"docker-archive:{archive}").strip()
        container = self("from", name).strip()
        config: Document = json.loads(self("inspect", "--type", "image", name))
        return Image(config["Docker"], Path(self("mount", container).strip()))

    def _settings(self) -> dict[str, str]:
        """Return the variables by which deploy/image.py builds in the same store, with buildah."""
        folder, file = self._folder, self._folder / "storage.conf"
        for name in ("docker", "podman"):  # which would be asked first
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text("#!/bin/sh\nexit 1\n")
            (folder / "bin" / name).chmod(0o755)
        file.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
        )
        given = {"CONTAINERS_STORAGE_CONF": str(file), "BUILDAH_ISOLATION": "chroot"}
        given |= {"SOURCE_DATE_EPOCH": str(EPOCH), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        return {**self._environ, **given}

    def _mounts(self) -> Iterator[tuple[str, str]]:
        """Yield what pip has to know to reach its index: its settings, and a certificate."""
        pip = [sys.executable, "-m", "pip", "config", "list"]
        said = subprocess.run(pip, env=self._environ, capture_output=True, text=True, check=True)
        found: dict[str, str] = {}
        for key, value in re.findall(r"(?m)^[\w:]+\.([\w-]+)='(.*)'$", said.stdout):
            values = [each for each in value.split() if not each.startswith("file:")]
            if key in _PIP and values:
                found[key] = " ".join(values)
        settings = self._folder / "pip.conf"
        settings.write_text("\n".join(["[global]", *(f"{k} = {v}" for k, v in found.items())]))
        yield str(settings), "/etc/pip.conf"
        if "cert" in found:
            yield found["cert"], found["cert"]

    def __call__(self, *words: str) -> str:
        """Run one of buildah's commands, which has to succeed; return what it prints."""
        done = subprocess.run(
            [*self._words, *words],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            cwd=ROOT,
        )
        assert done.returncode == 0, f"buildah {words[0]}: {done.stdout}\n{done.stderr}"
        return done.stdout


@contextmanager
def builder(environ: Mapping[str, str]) -> Iterator[Builder]:
    """Yield a builder, whose images go with it. Skips the test without buildah, or without root."""
    if os.geteuid() != 0:
        absent("buildah's chroot, and a look at what it has made, need root here")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Builder(Path(folder), environ)
        try:
            yield made
        finally:
            subprocess.run([*made._words, "rm", "--all"], capture_output=True)
