"""deploy/image.py: the image by one command, whoever builds it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY, ROOT, run, version

SEEN = """\
#!/bin/sh
if [ "$1" = info ]; then exit {works}; fi
echo "{name}" "$@"
"""


def pretend(folder: Path, **engines: bool) -> dict[str, str]:
    """Return an environment in which these engines are, and whether each works."""
    folder.mkdir()
    for name, works in engines.items():
        (folder / name).write_text(SEEN.format(name=name, works=int(not works)))
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


DOCKER = "docker build -f deploy/Containerfile -t wellspoken:{version}"
OTHER = f"{DOCKER} --format docker --ignorefile deploy/Containerfile.dockerignore"


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ({"docker": True, "podman": True, "buildah": True}, DOCKER),
        ({"docker": False, "podman": True, "buildah": True}, OTHER.replace("docker", "podman", 1)),
        ({"docker": False, "buildah": True}, OTHER.replace("docker", "buildah", 1)),
    ],
)
def test_the_first_engine_that_works_builds(
    engines: dict[str, bool], said: str, tmp_path: Path
) -> None:
    environ = pretend(tmp_path / "bin", **engines)
    words = (sys.executable, DEPLOY / "image.py", "--build-arg", "BASE=localhost/base:1")
    status, out = run(*words, environ=environ)
    line = f"{said.format(version=version())} --build-arg BASE=localhost/base:1 ."
    assert (status, out.splitlines()) == (0, [f"+ {line}", line])


def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    environ = pretend(tmp_path / "bin", docker=False)
    status, out = run(sys.executable, DEPLOY / "image.py", environ=environ)
    assert status == 3
    assert out == "No image: none of docker, podman, buildah is here, or works.\n"


def test_make_runs_it() -> None:
    status, out = run("make", "-n", "image", "ARGS=--build-arg EXTRAS=otel", folder=ROOT)
    assert status == 0 and "deploy/image.py --build-arg EXTRAS=otel" in out
