"""The proxy in front of a real llama.cpp, asked through openai-node."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny import TEXT

HERE = Path(__file__).parent / "node"
REQUIRE = "WELLSPOKEN_REQUIRE_NODE"
SECONDS = 600  # that end a hang


async def run(folder: Path, environment: dict[str, str], *argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode()
    return out.decode()


@pytest.fixture(scope="module")
def node(environment_as_given: dict[str, str]) -> str:
    """The path of node; skips where it or npm is not installed, unless it is required."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        if environment_as_given.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and node or npm is missing: install nodejs and npm")
        pytest.skip("node or npm is not installed")
    return found


async def test_openai_node_gets_what_it_expects(
    node: str, llama_server: str, tmp_path: Path, environment_as_given: dict[str, str]
) -> None:
    from wellspoken.proxy.config import load
    from wellspoken.proxy.lifecycle.build import build

    for name in ("package.json", "package-lock.json", "ask.mjs"):
        shutil.copy(HERE / name, tmp_path)
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    await run(tmp_path, environment_as_given, *install)
    backend = {"url": llama_server, "adapter": "llamacpp"}
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}, {}))
    host, port = await service.start()
    try:
        out = await run(tmp_path, dict(os.environ), node, "ask.mjs", f"http://{host}:{port}/v1")
    finally:
        await service.stop()
    check(json.loads(out.splitlines()[-1]))


def check(said: dict[str, Any]) -> None:
    body = said["body"]["choices"][0]
    assert body["message"]["content"] == TEXT
    assert joined(body["logprobs"]["content"]) == TEXT
    parts = [chunk["choices"][0] for chunk in said["chunks"]]
    streamed = [
        entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]
    ]
    assert streamed == body["logprobs"]["content"]
    helped = said["helped"]["choices"][0]
    assert (helped["message"]["role"], helped["message"]["content"]) == ("assistant", TEXT)
    assert helped["logprobs"]["content"] == body["logprobs"]["content"]
    called = said["called"]["choices"][0]
    assert called["finish_reason"] == "tool_calls"
    (call,) = called["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
    assert json.loads(call["function"]["arguments"]) == {"tz": "UTC"}
    assert said["refused"] == {"name": "BadRequestError", "status": 400, "param": "temperature"}


def joined(entries: list[dict[str, Any]]) -> str:
    return b"".join(bytes(entry["bytes"]) for entry in entries).decode()
