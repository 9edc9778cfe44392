"""The wheel holds the tree, the pins are whole, and the import rules hold and can fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("adapters", "engine", "proxy")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def copy_packages(to: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, to / name, ignore=NOT_SOURCES)
    shutil.copy(ROOT / "pyproject.toml", to)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the tree, with the pinned setuptools."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    copy_packages(tree)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    argv += ["--disable-pip-version-check", "--wheel-dir", str(out), str(tree)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_holds_exactly_the_tree(wheel: zipfile.ZipFile) -> None:
    """A package that pyproject.toml does not list, or data it does not ship, is missed here."""
    tree = {
        f"wellspoken/{path.relative_to(ROOT).as_posix()}"
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == tree
    # Without py.typed a type checker ignores the annotations; without __init__.py (which the
    # namespace itself must not have) the folder would be another namespace portion.
    folders = {name.rpartition("/")[0] for name in tree if name.endswith(".py")}
    assert {f"{folder}/py.typed" for folder in folders} <= shipped
    assert {f"{folder}/__init__.py" for folder in folders} <= shipped
    assert "wellspoken/__init__.py" not in shipped


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    info = {name.rpartition("dist-info/")[2]: name for name in wheel.namelist()}
    assert wheel.read(info["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()
    assert b"Apache License" in wheel.read(info["licenses/LICENSE"])
    assert b"wellspoken = wellspoken.proxy.cli.main:main" in wheel.read(info["entry_points.txt"])


def test_every_extra_is_there_and_the_core_is_small(project: dict[str, Any]) -> None:
    assert len(project["project"]["dependencies"]) <= 8
    extras = project["project"]["optional-dependencies"]
    assert {"llamacpp", "vllm", "postgres", "test", "dev"} <= extras.keys()


def pins() -> dict[str, str]:
    """Return name -> its whole requirement, hashes included."""
    text = (ROOT / "constraints.txt").read_text().replace("\\\n", " ")
    return {re.split(r"==", line)[0]: line for line in text.splitlines()}


def test_every_pin_has_a_version_and_hashes_and_no_address() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"https?:|file:|--index|--find-links|--trusted-host|#|@|/", text)
    for line in pins().values():
        assert re.fullmatch(
            r"[a-z0-9.-]+==[^\s;]+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line
        ), line[:120]


def test_every_direct_dependency_is_pinned_but_the_heavy_extras(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + project["build-system"]["requires"]
    wanted += extras["llamacpp"] + extras["postgres"]
    wanted += extras["test"] + extras["dev"]
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in wanted}
    assert names <= pins().keys()
    assert not {"vllm", "torch", "wellspoken"} & pins().keys()


LINT = """
import contextlib, io, json, sys
from pathlib import Path

tree, mutants = Path(sys.argv[1]), json.loads(sys.argv[2])
# The installed packages are portions of the same namespace, so they must not be on the path.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [path for path in sys.path if "__editable__" not in path]
sys.path.insert(0, str(tree / "source"))
from importlinter.cli import lint_imports

for file, line in mutants:
    kept = (tree / file).read_text()
    (tree / file).write_text(f"{kept}\\n{line}\\n")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = lint_imports(str(tree / "pyproject.toml"), no_cache=True, no_logo=True)
    (tree / file).write_text(kept)
    print(json.dumps([status, said.getvalue()]))
"""
"""A process of its own, which checks the rules of a tree with each of some lines added to it."""


def lint(tree: Path, mutants: list[tuple[str, str]]) -> list[tuple[int, str]]:
    """Run the import rules over a copy of the packages, once with each line added to its file.

    Returns the linter's exit status and words, for each.
    """
    copy_packages(tree)
    source = tree / "source" / "wellspoken"
    source.mkdir(parents=True)
    for name in PACKAGES:
        (source / name).symlink_to(tree / name)
    argv = [sys.executable, "-c", LINT, str(tree), json.dumps(mutants)]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tree, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(status, said) for status, said in map(json.loads, done.stdout.splitlines())]


def test_the_import_rules_hold(tmp_path: Path) -> None:
    [(status, said)] = lint(tmp_path, [("adapters/events.py", "")])
    assert status == 0, said
    assert " 0 broken" in said


FLOORS = "the floors of proxy/"
UPWARD = [
    ("doctor/__init__.py", "cli.main"),
    ("transfer/converter.py", "doctor"),  # nor sideways
    ("lifecycle/build.py", "workers"),
    ("server.py", "lifecycle.build"),
    ("endpoints/chat.py", "server"),
    ("logs/lines.py", "endpoints.chat"),
    ("relay/plan.py", "logs"),
    ("upstream/client.py", "relay.call"),
    ("store/completions.py", "http.responses"),
    ("metrics/service.py", "upstream.client"),
    ("config/values.py", "metrics.service"),
]
"""For each floor a module of it, and what it must not import."""

MUTANTS = [
    ("adapters/readers/sse.py", "import asyncio", "adapters are pure"),
    ("adapters/readers/sse.py", "from time import monotonic", "adapters are pure"),
    ("adapters/readers/near_openai.py", "import aiohttp", "adapters are pure"),
    (
        "adapters/tokens/table.py",
        "import wellspoken.proxy",
        "adapters and engine stand alone: adapters",
    ),
    (
        "adapters/tokens/table.py",
        "import wellspoken.engine",
        "adapters and engine stand alone: adapters",
    ),
    ("engine/child.py", "import wellspoken.adapters", "adapters and engine stand alone: engine"),
    ("engine/child.py", "import wellspoken.proxy", "adapters and engine stand alone: engine"),
    ("engine/child.py", "import msgspec", "the engine is stdlib only"),
    ("engine/llamacpp/llamacpp_kind.py", "import xllamacpp", "the engine is stdlib only"),
    ("adapters/stages/tiling.py", "import wellspoken.adapters.readers", "readers, stages"),
    ("adapters/writers/chat_body.py", "import wellspoken.adapters.stages", "readers, stages"),
    ("adapters/readers/near_openai.py", "import wellspoken.adapters.writers", "readers, stages"),
    ("adapters/repairs/finish_reasons.py", "import wellspoken.adapters.stages", "repairs serve"),
    (
        "adapters/tokens/table.py",
        "import wellspoken.adapters.exchange",
        "the floors of adapters/",
    ),
    (
        "adapters/requests/shapes.py",
        "if TYPE_CHECKING:\n    import wellspoken.adapters.servers.backend",
        "the floors of adapters/",
    ),
    ("proxy/config/values.py", "import vllm", "nothing else imports xllamacpp, and nothing vllm"),
    (
        "proxy/config/values.py",
        "import xllamacpp",
        "nothing else imports xllamacpp, and nothing vllm",
    ),
    ("proxy/store/completions.py", "import asyncpg", "the store's extras"),
    ("proxy/relay/send.py", "import opentelemetry", "OpenTelemetry is imported"),
    ("proxy/endpoints/stored.py", "import sqlite3", "a database is asked through the store"),
    (
        "proxy/server.py",
        "import wellspoken.proxy.upstream.wire",
        "only proxy/upstream/client.py owns",
    ),
    ("proxy/store/queue.py", "import wellspoken.proxy.server", "the store knows no HTTP"),
    *((f"proxy/{lower}", f"import wellspoken.proxy.{upper}", FLOORS) for lower, upper in UPWARD),
    (
        "proxy/relay/send.py",
        "if TYPE_CHECKING:\n    import wellspoken.proxy.server",  # types count too
        FLOORS,
    ),
]


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """What the linter says of each mutant."""
    mutants = [(file, line) for file, line, _ in MUTANTS]
    return dict(zip(mutants, lint(tmp_path_factory.mktemp("mutants"), mutants), strict=True))


@pytest.mark.parametrize(("file", "line", "rule"), MUTANTS)
def test_an_import_rule_catches_its_violation(
    file: str, line: str, rule: str, linted: dict[tuple[str, str], tuple[int, str]]
) -> None:
    status, said = linted[file, line]
    assert status == 1
    broken = re.findall(r"^(.+) BROKEN", said, re.MULTILINE)
    assert any(name.startswith(rule) for name in broken), said
