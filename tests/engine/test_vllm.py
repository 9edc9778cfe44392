"""vLLM as an engine: how it is found and started, and what it says of itself.

Its log is tested in test_vllm_log.py, its checks in test_vllm_check.py, and the real one in
tests/live/vllm/test_engine.py.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Facts, Kind
from wellspoken.engine.unix_http import Client
from wellspoken.engine.vllm.vllm_kind import VLLM, version

MODEL = "org/name"
SHIM = "#!/bin/sh\nexit 0\n"


def install(prefix: Path, release: str | None = "0.32.0+cpu") -> Path:
    """Make a folder look like a Python with a vLLM, and return its executable."""
    executable = prefix / "bin" / "vllm"
    executable.parent.mkdir(parents=True)
    executable.write_text(SHIM)
    executable.chmod(0o755)
    packages = prefix / "lib" / "python3.12" / "site-packages"
    (packages / "vllm_flash_attn-2.7.2.dist-info").mkdir(parents=True)
    if release is not None:
        (packages / f"vllm-{release}.dist-info").mkdir()
    return executable


def kind(executable: Path | str, **settings: Any) -> VLLM:
    environ = settings.pop("environ", {"PATH": "/usr/bin:/bin", "HOME": "/home/someone"})
    return VLLM(MODEL, executable=str(executable), environ=environ, **settings)


def argv(engine: VLLM, seconds: float = 300.0) -> list[str]:
    command = engine.command(Path("/run/x/api.sock"), Path("/run/x"), seconds)
    assert not command.reports
    return list(command.argv)


def environment(engine: VLLM) -> dict[str, str]:
    command = engine.command(Path("/run/x/api.sock"), Path("/run/x"), 1.0)
    return dict(command.environment)


def test_it_is_a_kind(tmp_path: Path) -> None:
    engine: Kind = kind(install(tmp_path))
    assert (engine.name, engine.title) == ("vllm", "vLLM")
    assert engine.start_timeout == 1800


def test_the_command(tmp_path: Path) -> None:
    executable = install(tmp_path)
    engine = kind(executable, arguments=["--max-model-len", "512"], alias="mine")
    assert argv(engine) == [
        str(executable), "serve", MODEL, "--max-model-len", "512", "--served-model-name", "mine",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--uds", "/run/x/api.sock", "--shutdown-timeout", "300",
    ]  # fmt: skip


def test_an_alias_yields_to_the_names_in_the_arguments(tmp_path: Path) -> None:
    engine = kind(install(tmp_path), arguments=["--served_model_name=a"], alias="mine")
    assert "mine" not in argv(engine)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "1"), (0.4, "1"), (1.6, "2"), (300.0, "300"), (299.5, "300")]
)
def test_the_time_to_drain_is_whole_seconds_and_never_0(
    tmp_path: Path, seconds: float, said: str
) -> None:
    assert argv(kind(install(tmp_path)), seconds)[-1] == said


@pytest.mark.parametrize(
    ("release", "drains"),
    [
        ("0.17.1", False),
        ("0.18.0", True),
        ("0.18.0rc1", True),
        ("0.32.0+cpu", True),
        ("1.0", True),
        ("0.1.dev1+g1234", True),
        (None, True),
    ],
)
def test_only_a_version_that_drains_is_told_to(
    tmp_path: Path, release: str | None, drains: bool
) -> None:
    assert ("--shutdown-timeout" in argv(kind(install(tmp_path, release)))) is drains


@pytest.mark.parametrize(
    ("release", "arguments", "quiet"),
    [
        ("0.15.1", [], False),
        ("0.16.0", [], True),
        ("0.32.0", ["--disable-access-log-for-endpoints", "/ping"], False),
        ("0.32.0", ["--disable_uvicorn_access_log"], False),
    ],
)
def test_the_watchdogs_questions_stay_out_of_the_log(
    tmp_path: Path, release: str, arguments: list[str], quiet: bool
) -> None:
    assert (
        "/health,/metrics" in argv(kind(install(tmp_path, release), arguments=arguments))
    ) is quiet


def test_a_version_that_does_not_drain_is_warned_of(tmp_path: Path) -> None:
    assert "0.18" in kind(install(tmp_path, "0.17.1+cpu")).check()[0]
    assert kind(install(tmp_path / "new")).check() == []


def test_a_version_without_unix_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"0\.10\.1 or later") as raised:
        kind(install(tmp_path, "0.10.0")).check()
    assert raised.value.lasting


# How the version is found.


def test_the_version_beside_the_executable(tmp_path: Path) -> None:
    assert version(install(tmp_path)) == "0.32.0+cpu"


def test_the_version_is_unknown_without_a_package(tmp_path: Path) -> None:
    assert version(install(tmp_path, None)) == ""
    assert version(tmp_path / "none") == ""


@pytest.mark.parametrize(
    "begin",
    [
        "#!{}/bin/python3.12\nimport sys\n",
        "#!/bin/sh\n'''exec' \"{}/bin/python\" \"$0\" \"$@\"\n' '''\n",  # pip's, for a long path
    ],
    ids=["shebang", "exec"],
)
def test_the_version_beside_the_interpreter_of_the_script(tmp_path: Path, begin: str) -> None:
    install(tmp_path / "venv", "0.26.0")
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(begin.format(tmp_path / "venv"))
    assert version(script) == "0.26.0"


def test_the_version_behind_a_link(tmp_path: Path) -> None:
    link = tmp_path / "vllm"
    link.symlink_to(install(tmp_path / "venv"))
    assert version(link) == "0.32.0+cpu"


# How the executable is found.


def test_the_executable_beside_this_python_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, other = install(tmp_path / "a"), install(tmp_path / "b")
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    environ = {"PATH": str(other.parent)}
    assert argv(kind("vllm", environ=environ))[0] == str(beside)
    beside.chmod(0o644)
    assert argv(kind("vllm", environ=environ))[0] == str(other)


@pytest.mark.parametrize("name", ["no-such-vllm", "./no-such/vllm", "/etc"])
def test_a_missing_executable_says_how_to_install_it(name: str) -> None:
    engine = kind(name)
    with pytest.raises(EngineError, match=r'pip install "vllm>=0.26"') as raised:
        engine.check()
    assert raised.value.lasting
    with pytest.raises(EngineError):
        argv(engine)


# Its environment.


def test_its_files_are_private_and_its_caches_are_not(tmp_path: Path) -> None:
    got = environment(kind(install(tmp_path), environ={"HOME": "/home/a", "TMPDIR": "/var/tmp"}))
    assert got["TMPDIR"] == got["VLLM_RPC_BASE_PATH"] == "/run/x"
    assert got["RAY_TMPDIR"] == "/var/tmp"
    assert got["VLLM_NO_USAGE_STATS"] == got["DO_NOT_TRACK"] == "1"
    assert int(got["VLLM_ENGINE_READY_TIMEOUT_S"]) > VLLM.start_timeout
    assert got["TORCHINDUCTOR_CACHE_DIR"].endswith("/.cache/vllm/inductor")
    assert not got["TORCHINDUCTOR_CACHE_DIR"].startswith(("~", "/run/x"))


def test_path_is_the_first_variable(tmp_path: Path) -> None:
    environ = {"HOME": "/home/a", "TMPDIR": "/var/tmp", "PATH": "/bin"}
    assert next(iter(environment(kind(install(tmp_path), environ=environ)))) == "PATH"
    assert "PATH" not in environment(kind(install(tmp_path / "b"), environ={}))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c"}, "/c/vllm/inductor"),
        ({"VLLM_CACHE_ROOT": "/v", "XDG_CACHE_HOME": "/c"}, "/v/inductor"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/t", "VLLM_CACHE_ROOT": "/v"}, "/t"),
    ],
)
def test_where_compiled_code_is_kept(
    tmp_path: Path, environ: dict[str, str], expected: str
) -> None:
    got = environment(kind(install(tmp_path), environ=environ))
    assert got["TORCHINDUCTOR_CACHE_DIR"] == expected


def test_what_is_configured_wins(tmp_path: Path) -> None:
    extra = {"TMPDIR": "/mine", "VLLM_NO_USAGE_STATS": "0", "HF_TOKEN": "t"}
    got = environment(kind(install(tmp_path), environment=extra))
    assert {name: got[name] for name in extra} == extra


def test_the_proxys_secrets_do_not_pass(tmp_path: Path) -> None:
    environ = {"HF_TOKEN": "t", "WELLSPOKEN_KEY": "k", "HF_ADMIN": "k", "MY_KEY": "k", "X_Y": "y"}
    engine = kind(install(tmp_path), environ=environ, inherit=["X_*"], own=["HF_ADMIN"])
    got = environment(engine)
    assert {name for name in environ if name in got} == {"HF_TOKEN", "X_Y"}
    assert "HF_TOKEN" not in repr(engine.command(Path("/a"), Path("/b"), 1.0))


def test_a_forbidden_flag_fails_the_check_for_good(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--port cannot") as raised:
        kind(install(tmp_path), arguments=["--port", "80"]).check()
    assert raised.value.lasting


# What a running one says.


class Api(BaseHTTPRequestHandler):
    """Answers as vLLM 0.32.0 did (tests/fixtures/engine), with what a test changes."""

    answers: dict[str, Any]

    def do_GET(self) -> None:
        answer = self.answers.get(self.path)
        body = json.dumps(answer).encode()
        self.send_response(200 if answer is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *args: object) -> None:
        """Say nothing."""


CARD = {"id": "tiny", "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": 512}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[Client, dict[str, Any]]]:
    """A client of a server on a unix socket, and the answers it gives."""
    answers: dict[str, Any] = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"object": "list", "data": [CARD, {**CARD, "id": "small"}]},
    }
    handler = type("Handler", (Api,), {"answers": answers})
    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "api.sock"), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Client(tmp_path / "api.sock"), answers
        server.shutdown()
        thread.join()


async def test_its_facts(api: tuple[Client, dict[str, Any]]) -> None:
    said = ["vllm", "serve", "--tool-call-parser", "hermes", "--reasoning_parser=qwen3"]
    facts = await kind("vllm").facts(api[0], said, ())
    assert facts == Facts("0.32.0", ("tiny", "small"), 512, "hermes", "qwen3")


@pytest.mark.parametrize(
    "models", [None, {}, {"data": None}, {"data": [1, {"id": 2}]}, {"data": []}, [1]]
)
async def test_facts_that_are_missing_stay_empty(
    api: tuple[Client, dict[str, Any]], models: object
) -> None:
    client, answers = api
    answers.update({"/version": {"version": 1}, "/v1/models": models})
    assert await kind("vllm").facts(client, (), ()) == Facts()


def test_facts_of_one_that_is_gone(tmp_path: Path) -> None:
    assert asyncio.run(kind("vllm").facts(Client(tmp_path / "none"), (), ())) == Facts()


def test_the_warm_up_samples_and_computes_logprobs() -> None:
    path, body = kind("vllm").warm_up(Facts(models=("tiny", "small")))
    asked = json.loads(body)
    assert path == "/v1/completions"
    assert (asked["model"], asked["max_tokens"], asked["logprobs"]) == ("tiny", 1, 1)
    assert 0 < asked["top_p"] < 1
    assert json.loads(kind("vllm").warm_up(Facts())[1])["model"] == MODEL


METRICS = b"""# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="tiny"} 1.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 1.0
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny"} 2.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 1.0
process_cpu_seconds_total 21.23
http_requests_total{handler="/metrics",method="GET",status="2xx"} 7.0
"""
"""Lines of GET /metrics of vLLM 0.32.0+cpu."""


def test_progress_is_what_moves_with_tokens_only() -> None:
    engine = kind("vllm")
    before = engine.progress(METRICS)
    assert before.count(b"\n") == 3
    assert engine.progress(METRICS.replace(b"} 7.0", b"} 8.0").replace(b"21.23", b"22")) == before
    for counter in (
        b"iteration_tokens_total_count",
        b"generation_tokens_total{",
        b"prompt_tokens_total{",
    ):
        at = METRICS.index(b"vllm:" + counter)
        moved = METRICS[:at] + METRICS[at:].replace(b"} 1.0", b"} 2.0", 1)
        assert engine.progress(moved) != before
    assert engine.progress(b"process_cpu_seconds_total 21.23\n") == b""


def test_why_it_died() -> None:
    error = kind("vllm").explain_end(2, ["usage: vllm", "vllm: error: unrecognized arguments: --x"])
    assert str(error).startswith(
        "vLLM ended with exit code 2 while it started org/name: unrecognized arguments: --x."
    )
    assert error.lasting
    killed = kind("vllm").explain_end(-9, [])
    assert "SIGKILL" in str(killed) and "memory" in str(killed)
    assert not killed.lasting


def test_a_report_is_read_like_a_log() -> None:
    error = kind("vllm").explain_report({"error": "load", "detail": "ValueError: bad"}, ["x"])
    assert "ValueError: bad" in str(error)


def test_the_phase_of_a_line() -> None:
    assert kind("vllm").phase("INFO 07-25 10:00:00 a.py:1] Loading weights took 1 s") is not None
    assert kind("vllm").phase("x") is None


def test_the_pulse_of_a_download(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--name" / "blobs"
    folder.mkdir(parents=True)
    engine = kind("vllm", environ={"HF_HOME": str(tmp_path)})
    assert engine.pulse() is None
    (folder / "a.incomplete").write_bytes(b"x" * 2_500_000)
    assert engine.pulse() == "downloading org/name, 2.5 MB"
    elsewhere = kind("vllm", arguments=["--download-dir", str(tmp_path)])
    assert elsewhere.pulse() is None
    other = tmp_path / "models--org--name" / "blobs"
    other.mkdir(parents=True)
    (other / "a.incomplete").write_bytes(b"x" * 1_000_000)
    assert elsewhere.pulse() == "downloading org/name, 1.0 MB"


def test_an_executable_in_a_home_that_nobody_has_is_missing() -> None:
    with pytest.raises(EngineError, match="there is no executable ~no-such-user/bin/vllm"):
        VLLM(MODEL, executable="~no-such-user/bin/vllm").check()
