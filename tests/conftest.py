"""Fixtures that several test modules share: the tiny scripted model and a real llama.cpp on it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import is_hypothesis_test

from tests.complaints import note_complaints
from tests.examples import load_profile
from tests.models.tiny import Tokenizer, write_model
from tests.postgres import pgbouncer, postgres

__all__ = ["pgbouncer", "postgres"]  # fixtures

load_profile()

# What waits or builds comes first, so that beside its last files the others still keep the workers
# of `make check` busy.
FIRST = ("deploy", "demo", "live", "bench", "proxy", "engine")
HERE = Path(__file__).parent
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what was collected: it stays until the end.

    15,000 tests with their modules are half a million objects. A whole round over them takes a
    quarter of a second, and many tests and benchmarks begin with one.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the folders, where several are run, and the files, whichever a worker began with.

    Property tests run without the tracing of coverage, which makes them three times as slow; what
    they reach, examples reach as well.
    """
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.no_cover)
    rank = {path: _rank(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: rank[item.path])


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted: a shell that runs this behind `&` has SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if WORKER and config.args == config.getini("testpaths"):
        config.args[:0] = _begin_elsewhere()
    if WORKER and (first := Coverage.current()) is not None:
        # pytest-cov begins once more in each worker. The first beginning, whose data it forgets,
        # would go on wherever `no_cover` stops the second.
        first.stop()


def _rank(path: Path) -> tuple[int, tuple[str, ...]]:
    parts = path.relative_to(HERE).parts if path.is_relative_to(HERE) else ("",)
    rank = FIRST.index(parts[0]) if parts[0] in FIRST else len(FIRST)
    return rank, () if parts[0] == "live" else parts  # which has an order of its own


def _begin_elsewhere() -> list[str]:
    """Return the test files so that each worker begins with others, and goes round.

    In a fresh clone pytest rewrites the assertions of every file, which takes longer than all else
    of the collection; it keeps what it has done beside the file. So each worker meets the others'
    work instead of doing the whole as well. Those of tests/live come last as always: some of its
    folders are collected only where they are named.
    """
    files = sorted(map(str, HERE.rglob("test_*.py")))
    files = [name for name in files if not name.startswith(str(HERE / "live"))]
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    first = len(files) * int(WORKER.removeprefix("gw")) // count
    return files[first:] + files[:first]


@pytest.fixture(scope="session", autouse=True)
def environment_as_given() -> Iterator[dict[str, str]]:
    """Take the caller's proxies and settings away, since all the servers here are local ones.

    Yields the environment as it was, for what does have to reach a package registry.
    """
    given = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        for name in given:
            upper = name.upper()
            if upper.startswith(("OPENAI_", "WELLSPOKEN_")) or upper.endswith("_PROXY"):
                patch.delenv(name)
        yield given


@pytest.fixture(autouse=True)
def nothing_failed_unseen(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a callback failed, be it a fake's: asyncio logs that and goes on."""
    with note_complaints() as said:
        yield
    if request.node.get_closest_marker("complains") is None:
        assert not said


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted model with a sentencepiece tokenizer (tests/models/tiny.py)."""
    return _model(tmp_path_factory, "spm")


@pytest.fixture(scope="session")
def tiny_model_bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same scripts with a byte-level BPE tokenizer."""
    return _model(tmp_path_factory, "bpe")


@pytest.fixture(scope="session")
def llama_server(tiny_model: Path) -> Iterator[str]:
    """The base URL, without a final slash, of a real llama.cpp server in this process (spm)."""
    yield from _serve(tiny_model)


@pytest.fixture(scope="session")
def llama_server_bpe(tiny_model_bpe: Path) -> Iterator[str]:
    """The same server on the byte-level BPE model."""
    yield from _serve(tiny_model_bpe)


def _model(factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return write_model(factory.mktemp("models") / f"tiny-{tokenizer}.gguf", tokenizer)


def _serve(model: Path) -> Iterator[str]:
    import xllamacpp  # native: only the tests that ask for a server pay for it

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"tiny"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 2048
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.ui = False
    params.endpoint_metrics = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    yield str(server.listening_address).rstrip("/")
    del server


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let a report leave its worker: half a pair of surrogates, which a test logs, is no UTF-8."""
    return _writable((yield))


def _writable(data: Any) -> Any:
    match data:
        case str():
            return data.encode(errors="backslashreplace").decode()
        case dict():
            return {_writable(key): _writable(value) for key, value in data.items()}
        case list() | tuple():
            return type(data)(map(_writable, data))
    return data
