"""The Agents SDK hands over, calls a tool and answers, with its default model class."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
THINKING = "vllm/0.32-stream-reasoning"  # what it is replayed for has no /v1/responses


@pytest.fixture(scope="module")
def behind(
    servers: Servers, client: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What became of the runs in front of the proxy, by model."""
    folder = tmp_path_factory.mktemp("behind")
    return ask(client, folder, servers.proxy, "long", "structured", THINKING)


def ask(client: Callable[..., str], folder: Path, url: str, *models: str) -> dict[str, Any]:
    out = client(folder, str(HERE / "ask_agents.py"), f"{url}/v1", *models)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_the_guides_programs(servers: Servers, client: Callable[..., str], tmp_path: Path) -> None:
    first, second = shown("agents-sdk.md", "python", servers.proxy)
    assert 'model="my-model"' in first
    (tmp_path / "shown.py").write_text((first + second).replace("my-model", "long"))
    assert client(tmp_path, "shown.py").splitlines() == [f"Clock {TEXT}", TEXT]


def test_a_streamed_run(behind: dict[str, Any]) -> None:
    said = behind["long"]["run"]
    assert said["kinds"] == [
        "handoff_requested",
        "handoff_occured",  # as the SDK spells it
        "tool_called",
        "tool_output",
        "message_output_created",
    ]
    assert (said["agent"], said["answer"], said["text"]) == ("Clock", TEXT, TEXT)
    assert said["requests"] == 3 and said["output_tokens"] > 10


def test_a_server_without_responses(behind: dict[str, Any]) -> None:
    assert (behind[THINKING]["run"]["answer"], behind[THINKING]["run"]["agent"]) == (
        "Paris",
        "Desk",
    )


def test_an_answer_with_a_type_and_one_that_is_continued(behind: dict[str, Any]) -> None:
    assert behind["structured"]["typed"]["city"] in ("Paris", "London")
    assert behind["long"]["continued"] == TEXT


def test_the_servers_alone(servers: Servers, client: Callable[..., str], tmp_path: Path) -> None:
    alone = ask(client, tmp_path, servers.structured, "structured")["structured"]
    assert "Invalid JSON" in alone["typed"]
    assert "does not support 'previous_response_id'" in alone["continued"]
    assert "404" in ask(client, tmp_path, servers.replay, THINKING)[THINKING]["run"]
