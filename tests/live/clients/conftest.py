"""A running proxy for each tokenizer, and the clients that ask it, in a venv of their own.

`make live-clients` makes that venv and names its Python in CLIENTS; without it the tests that need
it are not collected. Nothing here skips: what is missing fails.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.live.clients.direct import Direct
from tests.live.clients.serving import Served, serving
from tests.models.tiny import Tokenizer

CLIENTS = "WELLSPOKEN_LIVE_CLIENTS"
CLIENT_SECONDS = 240

collect_ignore_glob = [] if os.environ.get(CLIENTS) else ["test_client_*.py"]

# Where a library would otherwise look at the network first.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LANGSMITH_TRACING": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONNOUSERSITE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "none",
}


def _served(tokenizer: Tokenizer, model: Path, factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = factory.mktemp(f"served-{tokenizer}")
    named = folder / "tiny.gguf"
    named.symlink_to(model)
    with serving(named, folder / "log") as (proxy, llamacpp):
        yield Served(proxy, llamacpp, Direct(tokenizer))


@pytest.fixture(scope="session")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The proxy on the model with a sentencepiece tokenizer."""
    yield from _served("spm", tiny_model, tmp_path_factory)


@pytest.fixture(scope="session")
def served_bpe(tiny_model_bpe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The proxy on the model with a byte-level tokenizer."""
    yield from _served("bpe", tiny_model_bpe, tmp_path_factory)


@pytest.fixture(scope="session")
def client(environment_as_given: dict[str, str]) -> Callable[..., str]:
    """A function (folder, *argv) that runs the clients' Python there, offline, and returns stdout.

    Fails with what the client said if its exit status is not 0.
    """
    return partial(run_client, environment_as_given, CLIENTS)


def run_client(given: Mapping[str, str], variable: str, folder: Path, *argv: str) -> str:
    """Run the Python that a variable names, as the fixtures of clients say it."""
    python = given.get(variable)
    if not python:
        pytest.fail(f"{variable} names no Python with the clients: run make live-clients")
    return run_program(folder, [python, *argv])


def run_program(folder: Path, argv: Sequence[str], binaries: Path | None = None) -> str:
    """Run a program in a folder that is its home; return its stdout. `binaries`: where it may lie.

    Fails with what it said if its exit status is not 0.
    """
    environment = client_environment(folder)
    if binaries is not None:
        environment["PATH"] = f"{binaries}:{environment['PATH']}"
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{argv} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def client_environment(folder: Path) -> dict[str, str]:
    """Return what a client sees: nothing of the caller's settings, and `folder` as its home."""
    return {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        **OFFLINE,
        "HOME": str(folder),
        "HF_HOME": str(folder / "hf"),
    }
