"""What a llama.cpp's preStop waits for: the slots that have work, and no longer."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.deploy.manifests import KUBERNETES, Manifests
from tests.deploy.tools import documents, kustomized, system_tool

TOKENS = 4000  # more than the context has: half a second of work
MANY = 400  # prompts, a few at a time, so that the work goes on until the client leaves


async def test_it_ends_as_soon_as_no_slot_has_work(llama_server: str) -> None:
    curl = system_tool("curl", "curl")
    given = Manifests(documents(kustomized(KUBERNETES / "overlays" / "llamacpp-sidecar")))
    (server,) = given.beside
    *limit, script = server["lifecycle"]["preStop"]["exec"]["command"]
    assert limit == ["timeout", "120", "sh", "-c"] and script.startswith("sleep 10; while curl")
    shorter = script.replace("sleep 10;", "echo begun;").replace(
        "sleep 1;", "echo busy; sleep 0.01;"
    )
    script = shorter.replace("curl", curl).replace("http://127.0.0.1:8080", llama_server)
    prompts = ["Once", "Once upon a time"] * (MANY // 2)  # of which no two end in one moment
    body: dict[str, object] = {"model": "tiny", "prompt": prompts, "max_tokens": TOKENS}
    body |= {"stream": True, "ignore_eos": True}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{llama_server}/v1/completions", json=body) as answer:
            assert await answer.content.readany()
            hook = await asyncio.create_subprocess_exec(
                *limit, script, stdout=asyncio.subprocess.PIPE
            )
            assert hook.stdout is not None
            assert await hook.stdout.readline() == b"begun\n"
            assert await hook.stdout.readline() == b"busy\n"
            assert hook.returncode is None
        # The client has left, so the slot is free in a moment.
        assert await hook.wait() == 0
