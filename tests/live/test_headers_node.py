"""What openai-node, with its default of two retries, makes of the proxy's headers."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

from tests.fakes.upstream import Script, Upstream, whole
from tests.live.test_openai_node import HERE, node, run
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

__all__ = ["node"]

SOON = [("retry-after-ms", "5")]
SCRIPTS: dict[str, tuple[Script, int]] = {
    "no-completion": (whole({"hello": 1}), 1),
    "unsupported": (whole({"error": "not supported"}, 501), 1),
    "key": (whole({"error": "who are you"}, 401), 1),
    "bad": (whole({"error": "bad"}, 400), 1),
    "busy": (whole({"error": "busy"}, 429, headers=SOON), 3),
    "loading": (whole({"error": "loading"}, 503, headers=SOON), 3),
    "odd": (whole({"error": "odd"}, 500, headers=SOON), 3),
}
"""Model -> what its backend answers, and how often openai-node should have asked it."""


async def test_openai_node_tries_again_only_where_it_helps(
    node: str, tmp_path: Path, environment_as_given: dict[str, str]
) -> None:
    for name in ("package.json", "package-lock.json", "retry.mjs"):
        shutil.copy(HERE / name, tmp_path)
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    await run(tmp_path, environment_as_given, *install)
    async with Upstream() as upstream:
        backends = []
        for name, (script, _) in SCRIPTS.items():
            upstream.script(f"/{name}/v1/chat/completions", script)
            url = f"{upstream.url}/{name}"
            backends.append({"name": name, "url": url, "adapter": "openai", "models": [name]})
        tables = {"server": {"listen": "127.0.0.1:0"}, "backend": backends}
        service = build(load(None, tables, {}))
        host, port = await service.start()
        try:
            argv = (node, "retry.mjs", f"http://{host}:{port}/v1", *SCRIPTS)
            out = json.loads((await run(tmp_path, dict(os.environ), *argv)).splitlines()[-1])
        finally:
            await service.stop()
        times = Counter(x.target.split("/")[1] for x in upstream.requests if x.method == "POST")
    assert times == {name: expected for name, (_, expected) in SCRIPTS.items()}
    assert out["request_id"].startswith("req_")
    for name, ended in out["ended"].items():
        assert ended["requestID"].startswith("req_"), name
        assert ended["status"] == {"no-completion": 502, "unsupported": 501, "key": 502, "bad": 400,
                                   "busy": 429, "loading": 503, "odd": 500}[name]  # fmt: skip
