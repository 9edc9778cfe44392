"""What is built holds the tree, the pins are whole, and the import rules hold and can fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = ("adapters", "engine", "proxy")
SHIPPED = ("adapters/", "engine/", "proxy/", "deploy/", "config.example.toml", "__main__.py")
NOT_SHIPPED = (  # since only a checkout can use them
    "deploy/Containerfile.dockerignore",
    "deploy/image.py",
    "deploy/pins.py",
    "deploy/release-tools.txt",
    "deploy/release.py",
    "deploy/prometheus/alerts_day_test.yml",
    "deploy/prometheus/alerts_servers_test.yml",
    "deploy/prometheus/alerts_test.yml",
)
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def copy_packages(to: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, to / name, ignore=NOT_SOURCES)
    shutil.copy(ROOT / "pyproject.toml", to)


def list_tree() -> list[str]:
    """Return the files of the checkout that are committed, or would be."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout, so nothing says what belongs to it")
    # Whoever owns the folder: git refuses one of another user's.
    trusting = ("git", "-c", "safe.directory=*")
    words = (*trusting, "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A wheel, a source distribution, built of a copy by the pinned setuptools; what it said."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("built")
    for name in list_tree():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    build = (
        "import sys; from setuptools import build_meta as it\n"
        "_, out = sys.argv; it.build_sdist(out); it.build_wheel(out)"
    )
    argv = [sys.executable, "-c", build, str(out)]  # as pip does without a build of its own
    # What setuptools says when it may not compile, which a wheel is not for, is no news.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tree, env=environment)
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path, str]) -> zipfile.ZipFile:
    return zipfile.ZipFile(built[0])


def test_nothing_is_wrong_with_what_is_built(built: tuple[Path, Path, str]) -> None:
    found = re.findall(r"(?i).*(?:warn|deprecat|\*\*\*\*).*", built[2])
    assert found == []


def test_the_wheel_holds_exactly_the_tree(wheel: zipfile.ZipFile) -> None:
    """A package that pyproject.toml does not list, or data it does not ship, is missed here."""
    tree = {f"wellspoken/{name}" for name in list_tree() if name.startswith(SHIPPED)}
    tree -= {f"wellspoken/{name}" for name in NOT_SHIPPED}
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == tree
    # Without py.typed a type checker ignores the annotations; without __init__.py (which the
    # namespace itself must not have) the folder would be another namespace portion.
    folders = {name.rpartition("/")[0] for name in tree if name.endswith(".py")} - {"wellspoken"}
    assert {f"{folder}/py.typed" for folder in folders} <= shipped
    assert {f"{folder}/__init__.py" for folder in folders} <= shipped
    assert "wellspoken/__init__.py" not in shipped


def test_the_pages_of_the_wheel_lead_to_what_it_holds(wheel: zipfile.ZipFile) -> None:
    shipped = set(wheel.namelist())
    shipped |= {name[: at.end() - 1] for name in shipped for at in re.finditer("/", name)}
    pages = [name for name in shipped if name.endswith(".md")]
    lost = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", wheel.read(page).decode())
        if "://" not in link
        if os.path.normpath(f"{os.path.dirname(page)}/{link}") not in shipped
    ]
    assert len(pages) > 15 and lost == []


def test_the_source_distribution_is_the_repository(built: tuple[Path, Path, str]) -> None:
    with tarfile.open(built[1]) as archive:
        files = {each.name.partition("/")[2] for each in archive if each.isfile()}
    made = {name for name in files if name.startswith("wellspoken.egg-info/")}
    assert files - made - {"PKG-INFO", "setup.cfg"} == set(list_tree())


def test_an_installed_wheel_runs_and_goes(built: tuple[Path, Path, str], tmp_path: Path) -> None:
    """The command, `python -m wellspoken` and the example work; uninstalled, no folder is left."""
    venv.create(tmp_path / "venv", symlinks=True)
    program = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(program), "--disable-pip-version-check"]
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # The dependencies are this environment's; its editable wellspoken does not come with them.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    before = sorted(tmp_path.rglob("*"))

    def run(*words: str, given: str = "") -> str:
        # No bytecode, so that what stands there before and after can be compared.
        argv = ("env", "PYTHONDONTWRITEBYTECODE=1", *words)
        done = subprocess.run(argv, input=given, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = f"{program.parent}/wellspoken"
    # A copy of the project in this environment would do for pip.
    options = ("--no-deps", "--no-index", "--no-compile", "--ignore-installed")
    run(*pip, "install", *options, str(built[0]))
    version = run(command, "--version")
    assert version == run(str(program), "-m", "wellspoken", "--version") != ""
    example = run(command, "config", "example")
    assert example == (ROOT / "config.example.toml").read_text()
    assert "/dev/stdin: good" in run(command, "check", "--file-only", "/dev/stdin", given=example)
    run(*pip, "uninstall", "--yes", "wellspoken")
    assert sorted(tmp_path.rglob("*")) == before


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
    text = re.sub(r"\n +# via .*", "", text)  # for whose sake a pin is there: deploy/pins.py
    return {re.split(r"==", line)[0]: line for line in text.splitlines()}


def test_every_pin_has_a_version_and_hashes_and_no_address() -> None:
    text = re.sub(r"(?m)^    # via [\w(). ,-]+$", "", (ROOT / "constraints.txt").read_text())
    assert not re.search(r"https?:|file:|--index|--find-links|--trusted-host|#|@|/", text)
    for line in pins().values():
        assert re.fullmatch(
            r"[a-z0-9.-]+==[^\s;]+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line
        ), line[:120]


def test_every_direct_dependency_is_pinned_but_the_heavy_extras(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + project["build-system"]["requires"]
    wanted += extras["llamacpp"] + extras["postgres"]
    wanted += extras["otel"] + extras["test"] + extras["dev"]
    versions = {name: re.split(r"==| ", line)[1] for name, line in pins().items()}
    for each in map(Requirement, wanted):
        assert each.specifier.contains(versions[each.name]), f"{each}: run make constraints"
    assert not {"vllm", "torch", "wellspoken"} & pins().keys()


LINT = """
import contextlib, io, json, sys
from pathlib import Path

tree, additions = Path(sys.argv[1]), json.loads(sys.argv[2])
# The installed packages are portions of the same namespace, so they must not be on the path.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [path for path in sys.path if "__editable__" not in path]
sys.path.insert(0, str(tree / "source"))
from importlinter.cli import lint_imports

def lint():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = lint_imports(str(tree / "pyproject.toml"), no_cache=True, no_logo=True)
    return status, said.getvalue()

before = lint()
for file, text in additions.items():
    with (tree / file).open("a") as source:
        source.write(text)
print(json.dumps([before, lint()]))
"""
"""A process of its own, which checks the rules of a tree before and after it adds to its files."""


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """The linter's exit status and words for the tree as it is, and for it with all mutants.

    All at once, since the graph of the imports takes the time, and the linter names every line.
    """
    tree = tmp_path_factory.mktemp("mutants")
    copy_packages(tree)
    source = tree / "source" / "wellspoken"
    source.mkdir(parents=True)
    for name in PACKAGES:
        (source / name).symlink_to(tree / name)
    additions: dict[str, str] = {}
    for file, line, _ in MUTANTS:
        additions[file] = additions.get(file, "") + f"{line}\n"
    argv = [sys.executable, "-c", LINT, str(tree), json.dumps(additions)]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tree, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(status, said) for status, said in json.loads(done.stdout)]


def test_the_import_rules_hold(linted: list[tuple[int, str]]) -> None:
    status, said = linted[0]
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
    ("relay/planning/plan.py", "logs"),
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
        "import wellspoken.proxy.upstream.link.wire",
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


def broken(said: str) -> dict[str, str]:
    """Return what the linter says of each broken rule, by the rule's name."""
    _, _, details = said.partition("\nBroken contracts\n")
    parts = re.split(r"(?m)^(\S.*)\n-{3,}$", details)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("file", "line", "rule"), MUTANTS)
def test_an_import_rule_catches_its_violation(
    file: str, line: str, rule: str, linted: list[tuple[int, str]]
) -> None:
    status, said = linted[1]
    assert status == 1
    importer = ".".join(("wellspoken", *Path(file).with_suffix("").parts))
    imported = line.split()[-3 if line.startswith("from") else -1]
    arrow = re.escape(f"{importer.removesuffix('.__init__')} -> {imported}")
    alone = re.compile(rf"^- +{arrow} \(l\.\d+\)\n\n", re.MULTILINE)  # no step of a longer way
    found = [name for name, words in broken(said).items() if alone.search(words)]
    assert any(name.startswith(rule) for name in found), said
