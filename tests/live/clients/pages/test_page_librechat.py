"""LibreChat's schema takes the guide's file, and thoughts come under the name that it reads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml  # type: ignore[import-untyped]

from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers

HERE = Path(__file__).parent
THINKING = "vllm/0.32-stream-reasoning"


def test_the_guides_file_is_what_librechat_reads(
    servers: Servers, client_node: Callable[..., str], tmp_path: Path
) -> None:
    [text] = shown("librechat.md", "yaml", servers.proxy)
    given = yaml.safe_load(text)
    wrong, unknown = copy.deepcopy(given), given | {"endpoint": {}}
    wrong["endpoints"]["custom"][0]["models"] = "my-model"
    (tmp_path / "check.mjs").write_text((HERE / "check_librechat.mjs").read_text())
    configurations = [json.dumps(one) for one in (given, wrong, unknown)]
    taken, *refused = json.loads(client_node(tmp_path, "node", "check.mjs", *configurations))
    assert refused == [None, None]
    [endpoint] = taken
    assert endpoint == given["endpoints"]["custom"][0]  # nothing was left out
    assert endpoint["baseURL"] == f"{servers.proxy}/v1"


def test_a_vllms_thought_has_the_name_that_librechat_reads(servers: Servers) -> None:
    alone, behind = deltas(servers.replay), deltas(servers.proxy)
    thought = "".join(delta.get("reasoning") or "" for delta in alone)
    assert thought and not any("reasoning_content" in delta for delta in alone)
    assert "".join(delta.get("reasoning_content") or "" for delta in behind) == thought


def deltas(url: str) -> list[dict[str, Any]]:
    """Return the deltas of the stream that a server answers."""
    asked = {"model": THINKING, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer unused"}
    request = Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    with urlopen(request) as answer:
        lines = [line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: {")]
    chunks = [json.loads(line) for line in lines]
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
