"""The command line: what it turns into, what it says, and how quickly."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.clock import own_time
from tests.ports import free_port
from wellspoken.proxy import workers
from wellspoken.proxy.cli import options
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.cli.options import COMMANDS
from wellspoken.proxy.config import ConfigSource
from wellspoken.proxy.config.tables import Config, Engine
from wellspoken.proxy.http import sockets as listening
from wellspoken.proxy.lifecycle import run

ROOT = Path(__file__).parents[3]
LLAMA = ["serve", "--engine", "llamacpp", "--model", "m.gguf"]
VLLM = ["serve", "--engine", "vllm", "--model", "ORG/NAME"]
COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli"]


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that would have been run."""
    seen: list[Config] = []

    def remember(config: Config, source: ConfigSource, sockets: list[socket.socket]) -> int:
        assert source.load() == config
        assert sockets == []
        seen.append(config)
        return 0

    monkeypatch.setattr(run, "run", remember)
    monkeypatch.setattr(workers, "run", lambda config, source: remember(config, source, []))
    monkeypatch.setattr(listening, "listening", lambda listen, mode: [])  # no port is taken
    return seen


def test_a_url_is_a_backend(configs: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WELLSPOKEN_LISTEN", raising=False)
    assert main(["localhost:8000/v1"]) == 0
    options = ["--listen", "localhost:9", "--adapter", "vllm", "--upstream-key", "env:K"]
    assert main(["http://x", *options, "--tokenizer", "t.json"]) == 0
    first, second = configs
    assert first.server.listen == "127.0.0.1:8010"
    assert first.backend[0].url == "localhost:8000/v1"
    assert second.server.listen == "localhost:9"
    backend = second.backend[0]
    found = (backend.adapter, backend.key, backend.tokenizer)
    assert found == ("vllm", "env:K", "t.json")


def test_several_urls_are_servers_of_one_backend(configs: list[Config]) -> None:
    assert main(["gpu1:8000", "--adapter", "vllm", "gpu2:8000"]) == 0
    (backend,) = configs[0].backend
    assert (backend.urls, backend.adapter) == (("gpu1:8000", "gpu2:8000"), "vllm")


def test_serve_reads_a_file_and_flags(configs: list[Config], tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[server]\nlisten = 'localhost:1'\n[[backend]]\nurl = 'x'\n")
    assert main(["serve", "--config", str(file)]) == 0
    assert main(["serve", "--config", str(file), "--listen", "localhost:2"]) == 0
    assert main(["serve", "--engine", "llamacpp", "--model", "m.gguf"]) == 0
    assert [config.server.listen for config in configs[:2]] == ["localhost:1", "localhost:2"]
    engine: Any = configs[2].engine
    assert (engine.kind, engine.model) == ("llamacpp", "m.gguf")


def test_an_engines_settings(configs: list[Config], tmp_path: Path) -> None:
    common = ["--alias", "a", "--idle-unload", "15m", "--start-timeout", "90"]
    sizes = ["--context", "512", "--threads", "1", "--gpu-layers", "-1", "--parallel", "2"]
    files = ["--chat-template", "c.jinja", "--mmproj", "p.gguf"]
    assert main([*LLAMA, *common, *sizes, *files]) == 0
    assert main([*VLLM, *common, "--", "--tensor-parallel-size", "2", "--", "-x"]) == 0
    assert main([*VLLM, "--"]) == 0
    file = tmp_path / "w.toml"
    file.write_text('[engine]\nkind = "vllm"\nmodel = "a/b"\narguments = ["-tp", "4"]\n')
    assert main(["serve", "--config", str(file), "--alias", "b", "--", "-pp", "2"]) == 0
    assert main(["serve", "--config", str(file), "--"]) == 0
    engines: list[Any] = [config.engine for config in configs]
    assert engines[0] == Engine(
        kind="llamacpp",
        model="m.gguf",
        alias="a",
        idle_unload=900.0,
        start_timeout=90.0,
        context=512,
        threads=1,
        gpu_layers=-1,
        parallel=2,
        chat_template="c.jinja",
        mmproj="p.gguf",
    )
    assert engines[1].arguments == ("--tensor-parallel-size", "2", "--", "-x")
    assert (engines[1].alias, engines[1].idle_unload) == ("a", 900.0)
    assert engines[2] == Engine(kind="vllm", model="ORG/NAME")
    assert (engines[3].model, engines[3].alias) == ("a/b", "b")
    assert [engine.arguments for engine in engines[3:]] == [("-pp", "2"), ("-tp", "4")]


def shown(document: str) -> list[list[str]]:
    """Return the arguments of each `wellspoken` that listens in a document's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    calls = [words[words.index("wellspoken") + 1 :] for words in commands if "wellspoken" in words]
    quiet = {*COMMANDS} - {"serve"}
    return [words for words in calls if words[0] not in quiet]


@pytest.mark.parametrize(("document", "least"), [("README.md", 1), ("engine/README.md", 7)])
def test_the_commands_in_the_documents_are_understood(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, document: str, least: int
) -> None:
    monkeypatch.chdir(ROOT)
    calls = shown(document)
    assert [call for call in calls if main(call) != 0] == []
    assert len(configs) == len(calls) >= least


def test_the_examples_of_the_help_are_understood(
    configs: list[Config],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wellspoken.toml").write_text("[[backend]]\nurl = 'x'\n")
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    lines = capsys.readouterr().out.splitlines()
    calls = [shlex.split(line)[1:] for line in lines if line.startswith("  wellspoken ")]
    assert [call for call in calls if main(call) != 0] == []
    assert len(configs) == len(calls) >= 6


def test_variables_may_name_the_engine(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLSPOKEN_ENGINE_KIND", "vllm")
    monkeypatch.setenv("WELLSPOKEN_ENGINE_MODEL", "a/b")
    assert main(["serve", "--", "-tp", "2"]) == 0
    assert configs[0].engine == Engine(kind="vllm", model="a/b", arguments=("-tp", "2"))
    assert main(["serve", "--context", "5"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://x"], "no http(s) URL"),
        (["http://u:secret@x"], "credentials"),
        (["x", "--upstream-key", "sk-secret"], "env:NAME"),
        (["x", "--listen", "nowhere"], "Write it like"),
        (["serve"], "no backend"),
        (["serve", "--config", "/nowhere.toml"], "cannot read"),
        (["serve", "--engine", "llamacpp"], "--model FILE.gguf"),
        (["serve", "--model", "m.gguf"], "--engine llamacpp"),
        (["serve", "--engine", "vllm"], "--model ORG/NAME"),
        (["serve", "--model", "org/name"], "--engine vllm --model ORG/NAME"),
        (["serve", "--context", "9"], "go together: wellspoken serve --engine llamacpp"),
        (["serve", "--idle-unload", "9m", "--", "-tp", "2"], "go together"),
        ([*LLAMA, "--", "-tp", "2"], "llama.cpp's settings are --context, --threads,"),
        ([*VLLM, "--context", "0"], "--context is llama.cpp's. Write wellspoken serve --engine"),
        ([*VLLM, "--context", "512"], "ORG/NAME -- --max-model-len 8192"),
        ([*VLLM, "--threads", "2"], "ORG/NAME --, with OMP_NUM_THREADS=8 in the environment"),
        ([*VLLM, "--gpu-layers", "-1"], "--cpu-offload-gb"),
        ([*VLLM, "--parallel", "2"], "--max-num-seqs"),
        ([*VLLM, "--chat-template", "f"], "-- --chat-template FILE"),
        ([*VLLM, "--mmproj", "f"], "in the model itself"),
        (
            [*VLLM, "-tp", "8"],
            "behind --: wellspoken serve --engine vllm --model ORG/NAME -- -tp 8",
        ),
        ([*VLLM, "--", "--port", "1"], "engine.arguments: --port cannot be"),
        ([*VLLM, "--api-key", "sk-secret"], "wellspoken: --api-key cannot be among vLLM's"),
        ([*VLLM, "--port", "1"], "`listen` says where clients connect. wellspoken serve --help"),
        (
            [*LLAMA, "--ctx", "5"],
            "unknown: --ctx 5. wellspoken serve --help lists what there is.\n",
        ),
        (["serve", "http://h:1"], "a server that runs already: wellspoken http://h:1\n"),
        (["serve", "check"], "unknown: check. wellspoken serve --help lists what there is.\n"),
        ([*VLLM, "--idle-unload", "soon"], "engine.idle_unload: 'soon' is no length of time"),
        ([*LLAMA, "--parallel", "0"], "engine.parallel"),
    ],
)
def test_errors_say_what_to_do(
    configs: list[Config], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("wellspoken: ")
    assert words in said
    assert "secret" not in said
    assert configs == []


def test_serve_says_everything_that_is_wrong_with_a_file(
    configs: list[Config], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[timeouts]\nprobe = 'x'\n[log]\nlevl = 1\n[[backend]]\nurl = 'ftp://x'\n")
    file.write_text(f"{file.read_text()}key = 'env:WELLSPOKEN_NO_KEY'\n")
    assert main(["serve", "--config", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:3] for line in lines[:-1]] == [
        ["wellspoken", f"{file}:2:9", "timeouts.probe"],
        ["wellspoken", f"{file}:4:1", "log.levl"],
        ["wellspoken", f"{file}:6:7", "backend[0]"],
        ["wellspoken", f"{file}:7:7", "backend[0].key"],
    ]
    assert lines[-1].endswith(f"without starting anything: wellspoken check {file}")
    assert configs == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serv"], "serv is no command. Did you mean wellspoken serve? For a host of that name"),
        (["docter", "http://x"], "Did you mean wellspoken doctor?"),
        (["chek", "w.toml"], "Did you mean wellspoken check?"),
        (["convrt"], "Did you mean wellspoken convert?"),
        (["my.toml"], "is a file, no address. Write wellspoken serve --config my.toml"),
        (["./M.GGUF"], "Write wellspoken serve --engine llamacpp --model ./M.GGUF"),
        (["-"], "'-' is no address."),
        (["--listen", "1", "serve"], "serve is a command, so it comes first"),
        (["http://x", "--lisen", "1"], "unknown: --lisen 1. Did you mean --listen?"),
        (["http://x", "8000"], "8000 is no address. Write the port behind its host, as in: local"),
        (["http://x", "--workers", "2", "serv"], "serv is no command. Did you mean wellspoken ser"),
        (["convert", "--reject", "x", "--adaptr", "y"], "Did you mean --adapter?"),
        (["http://x", "--workers", "two"], "invalid int value: 'two'."),
    ],
)
def test_what_was_probably_meant(
    configs: list[Config], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("wellspoken: ") and words in said
    assert said.endswith(" --help\n") and said.count("\n") == 1
    assert configs == []


@pytest.mark.parametrize(
    "word",
    ["serv.lan", "serve:8000", "http://serv", "http://my.toml", "[::1]", "gpu", "localhost"],
)
def test_a_host_may_have_any_name(configs: list[Config], word: str) -> None:
    assert main([word]) == 0
    assert configs[0].backend[0].url == word


def test_an_endpoint_that_is_taken_off_is_told(
    configs: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["http://localhost:8000/v1/chat/completions"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("wellspoken: backend[0]: url: /v1/chat/completions is an endpoint")
    assert main(["http://localhost:8000/v1"]) == 0
    assert not capsys.readouterr().err


def test_a_variable_that_nothing_reads_is_told(
    configs: list[Config], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLSPOKEN_LISTN", "127.0.0.1:1")
    assert main(["http://x"]) == 0
    said = capsys.readouterr().err
    assert "WELLSPOKEN_LISTN: nothing reads this variable. Did you mean WELLSPOKEN_LISTEN?" in said
    assert len(configs) == 1


def test_an_option_of_serve_that_was_probably_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--confg", "w.toml"]) == 2
    assert "unknown: --confg w.toml. Did you mean --config?" in capsys.readouterr().err


def test_the_command_serves_and_ends(tmp_path: Path) -> None:
    command = [*COMMAND, "http://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("wellspoken 0.")
        began = own_time()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    finally:
        process.kill()
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert process.returncode == 0, err
    assert own_time() - began < 60  # a drain may take 300 s
    assert "curl" in out
    assert "Traceback" not in err


def test_a_taken_port_ends_the_command() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [*COMMAND, "http://127.0.0.1:9", "--listen", where, "--log-format", "text"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"error: {where} is taken" in done.stderr
    assert "Traceback" not in done.stderr


BARE = "import uvloop, aiohttp.web_protocol"
WHOLE = "import wellspoken.proxy.lifecycle.run"
EARLY = "import wellspoken.proxy.config, wellspoken.proxy.http.sockets"


def load(*steps: str) -> list[float]:
    """Return the user and system time that a Python has taken after each of these steps."""
    code = "\n".join(f"{step}\ntimes.append(process_time())" for step in steps)
    code = f"from time import process_time\ntimes = []\n{code}\nprint(*times)"
    compiled = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=compiled, capture_output=True, check=True, timeout=120)
    return [float(each) for each in done.stdout.split()]


def test_loading_the_proxy_takes_little_more_than_loading_aiohttp() -> None:
    """A ratio, since it is the same on any machine; of 650 ms here aiohttp's server took 500.

    The least of several, since what else the machine does makes a start dearer, never cheaper.
    """
    load(BARE, WHOLE)  # which leaves bytecode behind
    bare, whole = map(min, zip(*(load(BARE, WHOLE) for _ in range(3)), strict=True))
    (early,) = min(load(EARLY) for _ in range(3))
    assert whole < 1.9 * bare
    assert early < 0.6 * bare


def test_it_listens_before_the_rest_is_loaded() -> None:
    """What is needed until then does not include what takes the time."""
    code = (
        "import sys; from wellspoken.proxy.http import sockets as listening\n"
        "from wellspoken.proxy.cli.main import main\n"
        "heavy = {'aiohttp', 'asyncio', 'prometheus_client', 'tiktoken', 'uvloop', 'ssl'}\n"
        "def at_once(listen, mode): sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
        "listening.listening = at_once\n"
        "main(['http://127.0.0.1:9'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_client_that_connects_at_once_is_answered() -> None:
    """The connection waits in the system's queue until the proxy is loaded."""
    port = free_port()
    command = [*COMMAND, "http://127.0.0.1:9", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        client = socket.socket()
        while client.connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline and process.poll() is None
            client.close()
            time.sleep(0.005)
            client = socket.socket()
        with client:
            client.settimeout(120)
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("given", [None, "/etc/ssl/mine.pem"])
def test_loading_leaves_the_environment_and_the_collector_as_they_were(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    else:
        monkeypatch.setenv("SSL_CERT_FILE", given)
    for failure in (None, ImportError("broken")):
        with contextlib.suppress(ImportError), options._loading():
            assert os.environ["SSL_CERT_FILE"] == os.devnull and not gc.isenabled()
            if failure is not None:
                raise failure
        assert os.environ.get("SSL_CERT_FILE") == given and gc.isenabled()
