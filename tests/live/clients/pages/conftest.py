"""What the pages of proxy/guides say of clients, run as it is written; see `make live-clients`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.documents import blocks
from tests.live.clients.conftest import CLIENTS, run_client, run_program
from tests.live.clients.pages.servers import Servers, serving_all

CLIENTS_OPENAI2 = "WELLSPOKEN_LIVE_CLIENTS_OPENAI2"
CLIENTS_NODE = "WELLSPOKEN_LIVE_CLIENTS_NODE"

collect_ignore_glob = [] if os.environ.get(CLIENTS) else ["test_page_*.py"]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The proxy, and what is behind it."""
    with serving_all(tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.fixture(scope="session")
def client_openai2(environment_as_given: dict[str, str]) -> Callable[..., str]:
    """As `client`, with the clients that want the openai package below 3."""
    return partial(run_client, environment_as_given, CLIENTS_OPENAI2)


@pytest.fixture(scope="session")
def npm_packages(environment_as_given: dict[str, str]) -> Path:
    """The folder node_modules with npm's clients."""
    found = Path(environment_as_given.get(CLIENTS_NODE, "")) / "node_modules"
    if not environment_as_given.get(CLIENTS_NODE) or not found.is_dir():
        pytest.fail(f"{CLIENTS_NODE} names no folder with node_modules: run make live-clients")
    return found


@pytest.fixture(scope="session")
def client_node(npm_packages: Path) -> Callable[..., str]:
    """A function (folder, *argv) that runs a program of npm's there, and returns its stdout.

    Fails with what it said if its exit status is not 0. A .mjs file in the folder finds the
    packages.
    """

    def run(folder: Path, *argv: str) -> str:
        modules = folder / "node_modules"
        if not modules.exists():
            modules.symlink_to(npm_packages)
        return run_program(folder, argv, modules / ".bin")

    return run


def shown(name: str, language: str, proxy: str, *, anywhere: bool = False) -> list[str]:
    """Return a guide's blocks in a language, each with this proxy in place of the one it shows.

    `anywhere`: the proxy may stand in another block.
    """
    found = [block.text for block in blocks(language) if block.document.name == name]
    assert anywhere or any("http://127.0.0.1:8010" in text for text in found)
    return [text.replace("http://127.0.0.1:8010", proxy) for text in found]
