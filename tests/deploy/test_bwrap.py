"""The proxy runs as a user without a name or a home, on a read-only root, without capabilities.

What Kubernetes' "restricted" asks for, shown without a container engine: bubblewrap around the
proxy of this checkout, in front of a real llama.cpp.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.deploy.sandbox import SECONDS, Ran, asked, body, ran, running, sandboxed, status
from tests.ports import free_port

KEY = "sk-canary"
MEMORY = 64 * 2**20
BARE = {"PATH": "/usr/bin:/bin"}
WHO = "import os; print(os.getuid(), os.getgid(), open('/proc/self/status').read())"
WRITES = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('x')"


async def test_the_sandbox_is_one(tmp_path: Path) -> None:
    inside = [*sandboxed(Path("/"), BARE), sys.executable, "-c"]
    told = await ran([*inside, WHO])
    assert told.out.startswith("65532 65532 "), told.out
    assert all(f"Cap{each}:\t{0:016x}" in told.out for each in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert "NoNewPrivs:\t1" in told.out
    refused = await ran([*inside, WRITES, str(Path(__file__).parent / "written")])
    assert refused.status == 1 and "Read-only file system" in refused.out
    assert (await ran([*inside, WRITES, "/tmp/written"])).status == 0


async def test_the_proxy_answers_from_a_read_only_root(llama_server: str) -> None:
    port, ended = free_port(), list[Ran]()
    words = [sys.executable, "-m", "wellspoken.proxy.cli", llama_server]
    words += ["--listen", f"0.0.0.0:{port}", "--key", "env:CLIENT_KEYS"]
    # Not even /tmp: the overlays mount none for the proxy where it has no engine.
    inside = sandboxed(Path("/"), {**BARE, "CLIENT_KEYS": KEY}, "--remount-ro", "/tmp")
    refused = await ran([*inside, sys.executable, "-c", WRITES, "/tmp/written"])
    assert refused.status == 1 and "Read-only file system" in refused.out
    async with running([*inside, *words], port, ended) as served:
        assert served.memory < MEMORY  # what the overlays request, idle: 46 MiB on Python 3.11
        code, answer = await asked(served.url, KEY, logprobs=True)
        assert code == 200, answer
        assert answer["choices"][0]["logprobs"]["content"]
        assert (await asked(served.url, "sk-other"))[0] == 401
        assert await status(f"{served.url}/readyz") == 200
        assert await status(f"{served.url}/metrics") == 200
    assert ended[0].status == 0, ended[0].out
    assert "Traceback" not in ended[0].out and KEY not in ended[0].out


async def test_an_engine_of_its_own_needs_tmp_and_shm_alone(tiny_model: Path) -> None:
    """What the overlay vllm-engine mounts, here with llama.cpp: its socket lies in /tmp."""
    port, ended = free_port(), list[Ran]()
    words = [sys.executable, "-m", "wellspoken.proxy.cli", "serve", "--engine", "llamacpp"]
    words += ["--model", "/tmp/models/tiny.gguf", "--context", "2048", "--threads", "1"]
    words += ["--listen", f"127.0.0.1:{port}"]
    bound = ["--ro-bind", str(tiny_model), "/tmp/models/tiny.gguf", "--tmpfs", "/dev/shm"]
    inside = sandboxed(Path("/"), {**BARE, "HOME": "/tmp/home"}, *bound)
    async with running([*inside, *words], port, ended) as served:
        async with asyncio.timeout(SECONDS):
            while await status(f"{served.url}/readyz") != 200:
                await asyncio.sleep(0.1)
        code, answer = await asked(served.url, "")
        assert code == 200, answer
    assert ended[0].status == 0, ended[0].out
    assert "Traceback" not in ended[0].out


async def test_the_store_writes_where_it_is_told_alone(llama_server: str, tmp_path: Path) -> None:
    """A volume for the database is enough: nothing else on the way to an answer is written."""
    port, ended = free_port(), list[Ran]()
    words = [sys.executable, "-m", "wellspoken.proxy.cli", llama_server]
    words += ["--listen", f"127.0.0.1:{port}"]
    environ = {**BARE, "WELLSPOKEN_STORE_PATH": "/tmp/volume/completions.db"}
    environ["WELLSPOKEN_STORE_DURABILITY"] = "commit"
    (tmp_path / "volume").mkdir()
    inside = sandboxed(Path("/"), environ, "--bind", str(tmp_path / "volume"), "/tmp/volume")
    async with running([*inside, *words], port, ended) as served:
        code, answer = await asked(served.url, KEY, store=True)
        assert code == 200, answer
        assert await status(f"{served.url}/v1/chat/completions/{answer['id']}") == 200
    assert ended[0].status == 0, ended[0].out
    assert (tmp_path / "volume" / "completions.db").stat().st_size > 0


async def test_a_place_that_cannot_be_written_to_is_named() -> None:
    """What a user sees whose volume is missing."""
    words = [sys.executable, "-m", "wellspoken.proxy.cli", "http://127.0.0.1:9"]
    path = "/var/lib/wellspoken/completions.db"
    environ = {**BARE, "WELLSPOKEN_STORE_PATH": path}
    port, ended = free_port(), list[Ran]()
    words += ["--listen", f"127.0.0.1:{port}"]
    async with running([*sandboxed(Path("/"), environ), *words], port, ended) as served:
        async with asyncio.timeout(SECONDS):
            while path not in (await body(f"{served.url}/readyz")).get("store", ""):
                await asyncio.sleep(0.05)
    assert path in ended[0].out, ended[0].out
    assert "Traceback" not in ended[0].out
