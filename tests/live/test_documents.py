"""The commands and programs that the documents show, run as they are written.

A real llama.cpp stands where a document says that a server is. What another program does is not
run, but each is named in ELSEWHERE, with where it is or why it cannot be.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.documents import ROOT, Command, blocks, commands
from tests.live.test_openai_node import HERE as NODE
from tests.live.test_openai_node import node, run
from tests.waiting import until

__all__ = ["node"]  # a fixture

SECONDS = 600  # that end a hang

ELSEWHERE = {
    "{": "tests/deploy/test_kubernetes_readme.py",
    "apt-get": "needs root",
    "bwrap": "tests/deploy/test_bwrap.py",
    "claude": "make live-clients",
    "cline": "make live-clients",
    "cn": "make live-clients",
    "codex": "make live-clients",
    "curl": "test_a_command_that_serves runs the banner's own",
    "docker": "needs a container engine; tests/deploy/test_container.py runs the steps",
    "helm-run": "make live-clients has HELM's clients",
    "inspect": "make live-clients",
    "kubectl": "tests/deploy/test_kubernetes.py",
    "open-webui": "make live-open-webui",
    "llama-server": "xllamacpp has the same server",
    "lm_eval": "make live-clients",
    "make": "the Makefile's own targets",
    "ollama": "needs a model from the network",
    "pip": "test_the_project_can_be_installed",
    "prometheus": "tests/deploy/test_prometheus.py",
    "promptfoo": "make live-promptfoo",
    "promtool": "tests/deploy/test_alerts.py",
    "ray": "needs several machines",
    "sglang": "needs a GPU",
    "sed": "tests/deploy/test_kubernetes_readme.py",
    "systemctl": "needs systemd as the first process; tests/deploy/test_systemd.py",
    "text-generation-launcher": "needs a GPU",
    "vllm": "make live-vllm",
}
OWN = ("check", "config", "convert", "doctor", "export", "import", "version")
SERVER = re.compile(r"(http://)?localhost:(8000|8080|11434|30000)\b")
LISTEN = re.compile(r"\b(127\.0\.0\.1|0\.0\.0\.0):8010\b")


def serving() -> list[Command]:
    """Return the commands that listen, but for what needs a vLLM, or a model that sees."""
    return [
        command
        for command in commands()
        if command.words[0] == "wellspoken" and command.words[1] not in OWN
        if not {"vllm", "--mmproj"} & set(command.words) and "unix:" not in command.line
    ]


def ending() -> list[Command]:
    """Return the other commands of the project's own."""
    return [
        command
        for command in commands()
        if command.words[0] == "wellspoken" and command.words[1] in OWN
    ]


def test_no_program_is_overlooked() -> None:
    programs = {command.words[0] for command in commands()}
    assert programs - {"wellspoken"} - set(ELSEWHERE) == set()
    assert len(serving()) >= 8 and len(ending()) >= 5


@pytest.fixture
def folder(tiny_model: Path, llama_server: str, tmp_path: Path) -> Path:
    """A folder with the files that the documents speak of."""
    (tmp_path / "model.gguf").symlink_to(tiny_model)
    text = f'[[backend]]\nurl = "{llama_server}"\n'
    (tmp_path / "wellspoken.toml").write_text(text)
    shutil.copy(ROOT / "config.example.toml", tmp_path)
    legacy = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "eos_token"}],
    }
    (tmp_path / "legacy.jsonl").write_text(json.dumps(legacy) + "\n")
    return tmp_path


def there(command: Command, server: str) -> str:
    """Return a command's line with the llama.cpp that is there, and a free port to listen on."""
    urls = dict.fromkeys(found[2] for found in SERVER.finditer(command.line))
    for port, url in zip(urls, (server, server.replace("127.0.0.1", "localhost")), strict=False):
        urls[port] = url  # the second one of a command has another address
    line = SERVER.sub(lambda found: str(urls[found[2]]), command.line)
    line = LISTEN.sub(lambda found: f"{found[1]}:0", line)
    return re.sub(r"^((?:[A-Z_]+=\S+ )*)wellspoken\b", rf"\1{_program()}", line)


def _program() -> str:
    return f"{shlex.quote(sys.executable)} -m wellspoken.proxy.cli"


def environment() -> dict[str, str]:
    keys = ("BACKEND_KEY", "VLLM_KEY", "SGLANG_KEY", "MY_KEY", "LLM_KEY", "CLIENT_KEY")
    return {
        **os.environ,
        **{name: f"sk-{name.lower()}" for name in keys},
        "WELLSPOKEN_LISTEN": "127.0.0.1:0",
        "OPENAI_API_KEY": "sk-my_key",
    }


@asynccontextmanager
async def started(line: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    errors = (folder / "stderr").open("wb")
    process = await asyncio.create_subprocess_shell(
        f"exec env {line}" if not line.startswith("exec") else line,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    errors.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def printed(process: asyncio.subprocess.Process, folder: Path) -> str:
    """Return the banner, up to the last line of the request to copy."""
    lines: list[str] = []
    assert process.stdout is not None
    while not (lines and lines[-1].lstrip().startswith("-d '")):
        line = await process.stdout.readline()
        assert line, "".join(lines) + (folder / "stderr").read_text()
        lines.append(line.decode())
    return "".join(lines)


@pytest.mark.parametrize("command", serving(), ids=str)
async def test_a_command_that_serves(command: Command, folder: Path, llama_server: str) -> None:
    """It listens, and the request that its banner shows to copy is answered."""
    async with asyncio.timeout(SECONDS), started(there(command, llama_server), folder) as process:
        banner = await printed(process, folder)
        shown = banner[banner.index("  curl ") :]
        asked = await run(folder, environment(), "sh", "-c", shown.replace("curl", "curl -sS", 1))
        if "config.example.toml" in command.line:  # its backends are not there
            assert json.loads(asked)["error"]["code"] == "backend_unavailable"
        else:
            assert json.loads(asked)["object"] == "chat.completion", asked
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0, (folder / "stderr").read_text()


@pytest.mark.parametrize("command", ending(), ids=str)
async def test_a_command_that_ends(
    command: Command,
    folder: Path,
    llama_server: str,
    storing: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    line = f"set -o pipefail; {there(command, llama_server)}"
    if re.search(r"\b(export|import)\b", line):
        await _filled(storing)
        line = line.replace("completions.db", str(tmp_path / "store.db"))
    if "postgresql:" in line:
        server = request.getfixturevalue("postgres")
        given = f"{_program()} export --store {tmp_path}/store.db --format full > all.jsonl"
        url = await asyncio.to_thread(server.database)
        line = f"{given}; {re.sub(r'postgresql:[^ ]+', url, line)}"
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", line],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    # What a model says to one question asked twice may differ, which a comparison tells by 1.
    fine = (0, 1) if "--compare" in command.words else (0,)
    assert done.returncode in fine, done.stdout + done.stderr
    written = re.search(r"> (\S+)$", line)
    if written is not None:
        made = (folder / written[1]).read_text()
        first = made.splitlines()[0] if written[1].endswith(".jsonl") else made
        assert (tomllib if written[1].endswith(".toml") else json).loads(first)


async def _filled(proxy: str) -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{proxy}/v1", api_key="unused") as client:
        await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hi"}],
            store=True,
            metadata={"run": "7"},
        )

        async def is_listed() -> bool:
            return len((await client.chat.completions.list()).data) > 0

        await until(is_listed, "the completion is listed")


def test_the_project_can_be_installed(tmp_path: Path) -> None:
    """`pip install .` makes the command; the extras that are named exist."""
    lines = [" ".join(command.words) for command in commands() if command.words[0] == "pip"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(re.findall(r"\[(\w+)\]", " ".join(lines)))
    assert "pip install ." in lines and extras <= set(project["optional-dependencies"])
    # What other tests' processes compile meanwhile has names that are gone at once.
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=left_out)
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--target", str(tmp_path / "made"))
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *options, "."]
    subprocess.run(pip, cwd=source, check=True, timeout=SECONDS)
    assert (tmp_path / "made" / "bin" / "wellspoken").exists()


async def test_the_readmes_python(storing: str, folder: Path) -> None:
    """That, and of stored completions, as one program: what it keeps it finds again."""
    documents = [ROOT / "README.md", ROOT / "proxy" / "guides" / "stored-completions.md"]
    shown = [block.text for block in blocks("python") if block.document in documents]
    before = 'messages = [{"role": "user", "content": "Hi"}]\n'
    program = before + "\n".join(shown).replace("http://127.0.0.1:8010", storing)
    assert "http://127.0.0.1:8010" in "".join(shown)
    out = await run(folder, environment(), sys.executable, "-c", program)
    assert "ChatCompletionTokenLogprob" in out and "Hello world" in out
    assert re.search(r"^chatcmpl-\w+ Hello world", out, re.MULTILINE), out


async def test_the_guides_javascript(
    node: str, storing: str, tmp_path: Path, environment_as_given: dict[str, str]
) -> None:
    (block,) = [block for block in blocks("js") if block.document.name == "openai-node.md"]
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, tmp_path)
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    await run(tmp_path, environment_as_given, *install)
    (tmp_path / "shown.mjs").write_text(block.text.replace("http://127.0.0.1:8010", storing))
    out = await run(tmp_path, dict(os.environ), node, "shown.mjs")
    assert out.splitlines()[-1] == "stop"
