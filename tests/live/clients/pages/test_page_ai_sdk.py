"""Vercel's AI SDK takes every answer of the proxy's, and refuses those of servers alone."""

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
FORCED, OBJECT = "vllm/0.5.5-named-tool", "tgi/2.4.1-stream-tool-calls-object"
ABORTED = "vllm/0.32-stream-abort"
Said = dict[str, dict[str, Any]]


def test_the_guides_program(
    servers: Servers, client_node: Callable[..., str], tmp_path: Path
) -> None:
    [text] = shown("ai-sdk.md", "js", servers.proxy)
    assert "What time is it in UTC?" in text  # for which the tiny model knows another word
    text = text.replace("What time is it in UTC?", "@tool")
    held = 'local("my-model"),\n  prompt: "How'
    assert held in text
    (tmp_path / "shown.mjs").write_text(text.replace(held, held.replace("my-model", "structured")))
    time, city, answer = client_node(tmp_path, "node", "shown.mjs").splitlines()
    assert time == "12:00 UTC" and city in ("London", "Paris")
    assert answer == f"{TEXT} 10"


@pytest.fixture(scope="module")
def asked(
    servers: Servers, client_node: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Said:
    """What the SDK makes of models' answers, by server and model."""
    folder = tmp_path_factory.mktemp("ai-sdk")
    program = folder / "ask.mjs"  # beside the packages, where node looks for them
    program.write_text((HERE / "ask_ai_sdk.mjs").read_text())
    arguments = [
        f"{name} {url}/v1 {model}"
        for name, url in (("alone", servers.replay), ("behind", servers.proxy))
        for model in (FORCED, OBJECT, ABORTED)
    ]
    arguments += [f"alone {servers.llamacpp}/v1 tiny", f"behind {servers.proxy}/v1 tiny"]
    out = client_node(folder, "node", program.name, *arguments)
    found: Said = json.loads(out.splitlines()[-1])
    return found


def test_llamacpp_alone_is_not_bound_to_the_tool(asked: Said) -> None:
    assert asked["alone"]["tiny"]["forced"]["error"] == "AI_ToolChoiceViolationError"
    assert asked["behind"]["tiny"]["forced"] == {"calls": [{"tz": "UTC"}]}


def test_tgis_streamed_call(asked: Said) -> None:
    alone, behind = asked["alone"][OBJECT]["stream"], asked["behind"][OBJECT]["stream"]
    assert alone["calls"] == [] and "Type validation failed" in alone["errors"][0]["message"]
    assert behind["errors"] == [] and behind["calls"] == [{"city": "Rome"}]
    assert behind["reason"] == "tool-calls"


def test_a_forced_tools_stream_is_one_call(asked: Said) -> None:
    alone, behind = asked["alone"][FORCED]["stream"], asked["behind"][FORCED]["stream"]
    assert len(alone["calls"]) > 10 and "city" in alone["calls"]
    assert behind["calls"] == [{"city": "Zürich", "days": 2}]


def test_an_aborted_stream_is_no_answer(asked: Said) -> None:
    alone, behind = asked["alone"][ABORTED]["stream"], asked["behind"][ABORTED]["stream"]
    assert (alone["text"], alone["reason"], alone["errors"]) == ("Par", "other", [])
    assert behind["reason"] == "error" and behind["errors"] != []
