"""deploy/Containerfile: its steps run, and the image answers as a container would have it."""

from __future__ import annotations

import re
import shutil
import stat
import tomllib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.base_image import too_old
from tests.deploy.container import (
    EPOCH,
    FILE,
    IGNORED,
    Builder,
    Image,
    arguments,
    builder,
    instructions,
)
from tests.deploy.sandbox import Ran, asked, ran, running, sandboxed, status
from tests.deploy.tools import DEPLOY, ROOT, run, said, tool, version
from tests.ports import free_port

KEY = "sk-canary"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COPIED = ("adapters", "engine", "proxy", "deploy")
FILES = (
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE"),
    *("__main__.py", "config.example.toml"),
)
SECRETS = (".env", "keys.txt", "proxy/keys.txt", ".git/config", ".venv/bin/thing")


@pytest.fixture(scope="module")
def buildah(environment_as_given: dict[str, str]) -> Iterator[Builder]:
    with builder(environment_as_given) as made:
        yield made


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout, with things in it that are nobody's business."""
    context = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        shutil.copytree(ROOT / name, context / name)
    for name in FILES:
        shutil.copy(ROOT / name, context)
    for name in SECRETS:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(KEY)
    return context


@pytest.fixture(scope="module")
def archive(buildah: Builder, context: Path) -> Path:
    return buildah.archive(context)


@pytest.fixture(scope="module")
def image(buildah: Builder, archive: Path) -> Image:
    return buildah.open(archive)


def test_the_same_files_make_the_same_archive(
    buildah: Builder, context: Path, archive: Path, tmp_path: Path
) -> None:
    """Wherever they are, and whenever they were written."""
    other = shutil.copytree(context, tmp_path / "other", copy_function=shutil.copy)
    assert buildah.archive(other).read_bytes() == archive.read_bytes()


def test_the_image_says_what_it_is(image: Image) -> None:
    config = image.config["config"]
    assert datetime.fromisoformat(image.config["created"]).timestamp() == EPOCH
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/wellspoken/bin/wellspoken"]
    assert config["Labels"]["org.opencontainers.image.version"] == version()
    assert config["Labels"]["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert list(config["ExposedPorts"]) == ["8010/tcp"]
    assert image.health[0] == "/opt/wellspoken/bin/python"


def test_the_image_holds_what_runs_and_nothing_else(image: Image) -> None:
    packages = next((image.root / "opt/wellspoken/lib").glob("python3*/site-packages"))
    installed = {each.name.partition("-")[0] for each in packages.glob("*.dist-info")}
    assert {"wellspoken", "aiohttp", "asyncpg", "opentelemetry_sdk"} <= installed
    assert installed & {"pip", "setuptools", "pytest", "xllamacpp", "mypy"} == set()
    assert not (image.root / "build").exists()
    names = {Path(name).name for name in SECRETS} - {"config", "thing"}
    assert [each for each in (image.root / "opt").rglob("*") if each.name in names] == []
    assert not any((image.root / name).exists() for name in SECRETS)


def test_its_user_can_read_all_and_write_nothing_but_its_home(image: Image) -> None:
    home = image.root / "var/lib/wellspoken"
    assert (home.stat().st_uid, home.stat().st_gid) == (65532, 65532)
    for path in (image.root / "opt/wellspoken").rglob("*"):
        if path.is_symlink():
            continue
        found = path.stat()
        assert found.st_uid != 65532 and not found.st_mode & stat.S_IWOTH, path
        assert found.st_mode & (stat.S_IXOTH if path.is_dir() else stat.S_IROTH), path


async def test_the_image_answers(image: Image, llama_server: str) -> None:
    port, ended = free_port(), list[Ran]()
    environ = {**image.environ, "WELLSPOKEN_LISTEN": f"0.0.0.0:{port}", "CLIENT_KEYS": KEY}
    inside = sandboxed(image.root, environ)
    words = [*image.config["config"]["Entrypoint"], llama_server, "--key", "env:CLIENT_KEYS"]
    async with running([*inside, *words], port, ended) as served:
        code, answer = await asked(served.url, KEY, logprobs=True)
        assert code == 200, answer
        assert answer["choices"][0]["logprobs"]["content"]
        assert (await asked(served.url, "sk-other"))[0] == 401
        assert await status(f"{served.url}/readyz") == 200
        assert (await ran([*inside, *image.health])).status == 0
    assert ended[0].status == 0, ended[0].out
    assert "Traceback" not in ended[0].out
    assert (await ran([*inside, *image.health])).status != 0  # nobody is there any more


async def test_it_prints_the_example_configuration(image: Image) -> None:
    inside = sandboxed(image.root, image.environ)
    printed = await ran([*inside, *image.config["config"]["Entrypoint"], "config", "example"])
    assert (printed.status, printed.out) == (0, (ROOT / "config.example.toml").read_text())


async def test_without_keys_it_does_not_let_everybody_in(image: Image) -> None:
    inside = sandboxed(image.root, image.environ)
    words = [*image.config["config"]["Entrypoint"], "http://127.0.0.1:9"]
    told = await ran([*inside, *words])
    assert told.status == 2 and "keys" in told.out, told.out


async def test_its_command_is_the_configuration_that_is_mounted(
    image: Image, llama_server: str, tmp_path: Path
) -> None:
    (tmp_path / "wellspoken.toml").write_text(
        f'[auth]\nkeys = ["env:CLIENT_KEYS"]\n[[backend]]\nurl = "{llama_server}"\n'
    )
    port, ended = free_port(), list[Ran]()
    environ = {**image.environ, "WELLSPOKEN_LISTEN": f"0.0.0.0:{port}", "CLIENT_KEYS": KEY}
    inside = sandboxed(image.root, environ, "--ro-bind", str(tmp_path), "/etc/wellspoken")
    config = image.config["config"]
    async with running([*inside, *config["Entrypoint"], *config["Cmd"]], port, ended) as served:
        assert (await asked(served.url, KEY))[0] == 200
    assert ended[0].status == 0, ended[0].out


# ---- the file itself


def faults(text: str) -> list[str]:
    """Return what is wrong with a Containerfile, as the rules of this project have it."""
    found, steps = [], instructions(text)
    given = arguments(text)
    bases = [words.partition(" ")[0] for name, words in steps if name == "FROM"]
    pinned = re.search(r":\d[\w.-]*@sha256:[0-9a-f]{64}$", given["BASE"])
    if set(bases) != {"${BASE}"} or pinned is None:
        found.append("the base cannot be chosen, or is not one image for all time")
    if given["VERSION"] != version():
        found.append(f"its version is not {version()}")
    if not set(given["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys():
        found.append("an extra that there is not")
    for each in re.findall(r"pip (?:--python \S+ )?install\b[^&]*", text.replace("\\\n", "")):
        if "wheel/wellspoken" not in each and "--require-hashes" not in each:
            found.append(f"without hashes: {each.strip()}")
    if "pip --python /opt/wellspoken/bin/python check" not in text:
        found.append("what is missing of what it needs is not seen")
    if [words for name, words in steps if name == "USER"][-1:] != ["65532:65532"]:
        found.append("it runs as root")
    health = next((words for name, words in steps if name == "HEALTHCHECK"), "")
    if 'CMD ["/opt/wellspoken/bin/python"' not in health or "/livez" not in health:
        found.append("its health check needs more than is there, or depends on a backend")
    if any(name in ("ADD", "VOLUME", "MAINTAINER") for name, _ in steps):
        found.append("ADD fetches, VOLUME leaves things behind")
    if re.search(r"curl|wget|apt-get|https?://", text):
        found.append("it fetches what no hash is known of")
    return found


def test_the_file_keeps_to_the_rules() -> None:
    assert faults(FILE.read_text()) == []
    assert said(tool("hadolint"), "--no-color", FILE) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("python:3.13-slim-trixie@", "python:latest@"),
        ("@sha256:", "-"),
        ("FROM ${BASE}\n", "FROM docker.io/library/python:3.13\n"),
        ("VERSION=0.1.0", "VERSION=0.0.9"),
        ("EXTRAS=postgres", "EXTRAS=oracle"),
        ("install --no-cache-dir --disable-pip-version-check --require-hashes", "install"),
        (" check --disable", " list --disable"),
        ("USER 65532:65532\n", ""),
        ('CMD ["/opt/wellspoken/bin/python", "-c"', 'CMD ["/bin/sh", "-c"'),
        ("'/livez'", "'/readyz'"),
        ("COPY proxy proxy", "ADD proxy proxy"),
        ("WORKDIR /build", "WORKDIR /build\nRUN apt-get install curl"),
    ],
)
def test_a_mutant_of_the_file_is_found(old: str, new: str) -> None:
    text = FILE.read_text()
    assert old in text
    assert faults(text.replace(old, new)) != []


def test_hadolint_finds_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "Containerfile"
    bad.write_text(FILE.read_text().replace("WORKDIR /build", "WORKDIR build"))
    code, out = run(tool("hadolint"), "--no-color", bad)
    assert code != 0 and "DL3000" in out


def test_the_build_sees_what_is_copied_and_no_more() -> None:
    """Docker and podman send only this much of a checkout, which has keys and environments."""
    lines = [line for line in IGNORED.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    seen = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = [words for name, words in instructions(FILE.read_text()) if name == "COPY"]
    wanted = {each for words in copied if "--from" not in words for each in words.split()[:-1]}
    assert seen == wanted
    assert all((ROOT / each).exists() for each in seen)


NAMED = re.compile(
    r"\b(wellspoken(?:-vllm)?|vllm-openai|llama\.cpp|python|prometheus|grafana):"
    r"(?!\d{4,5}\b(?!\.))((?:v|server-b)?\d[\w.-]*)"  # host:port is no image
)


def test_images_are_of_one_version_everywhere() -> None:
    """An image has one version in all files of deploy/, and the proxy's is the project's."""
    found: dict[str, set[str]] = {}
    for file in DEPLOY.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            for name, tag in NAMED.findall(file.read_text()):
                found.setdefault(name, set()).add(tag)
    assert found.keys() >= {"wellspoken", "wellspoken-vllm", "vllm-openai", "llama.cpp", "python"}
    assert found["wellspoken"] == found["wellspoken-vllm"] == {version()}
    assert {name: tags for name, tags in found.items() if len(tags) != 1} == {}


@pytest.mark.parametrize(
    ("version", "old"),
    [("3.11.2-1+b1", False), ("3.13.5-1", False), ("3.10.6-1~22.04.1", True), ("1:3.9.2-3", True)],
)
def test_a_machine_s_python_may_be_too_old_for_an_image(version: str, old: bool) -> None:
    assert too_old(version) == old


def test_a_host_and_its_port_are_no_image() -> None:
    text = "wellspoken:8010 wellspoken:0.1.0 llama.cpp:server-b11549 prometheus:9090 python:3.13"
    tags = [tag for _, tag in NAMED.findall(text)]
    assert tags == ["0.1.0", "server-b11549", "3.13"]
