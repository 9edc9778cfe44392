"""openai-node gets responses as it expects them; the package is the one that the pages pin."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.pages.conftest import client_node, npm_packages
from tests.live.clients.responses.fronts import KEY, MODEL, Fronts
from tests.models.tiny import TEXT

__all__ = ["client_node", "npm_packages"]

PROGRAM = Path(__file__).parent / "ask_responses.mjs"
Said = dict[str, Any]


@pytest.fixture(scope="module", params=["storing", "forgetting"])
def said(
    fronts: Fronts,
    client_node: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Said:
    """What openai-node made of the proxy's answers."""
    folder = tmp_path_factory.mktemp("node")
    (folder / PROGRAM.name).write_text(PROGRAM.read_text())  # beside the packages
    url = getattr(fronts, request.param)
    out = client_node(folder, "node", PROGRAM.name, f"{url}/v1", KEY, MODEL)
    found: Said = json.loads(out.splitlines()[-1])
    return found


def test_a_body_and_its_stream(said: Said) -> None:
    body, events = said["body"], said["events"]
    assert body["output_text"] == TEXT and body["status"] == "completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == TEXT
    rows = [row for event in deltas for row in event["logprobs"]]
    [message] = body["output"]
    assert rows == message["content"][0]["logprobs"] != []
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"] == body["usage"]


def test_what_the_helper_gathers(said: Said) -> None:
    assert [item["type"] for item in said["helped"]["output"]] == ["reasoning", "message"]
    assert said["helped"]["output_text"] == "Yes indeed"
    [call] = said["called"]["output"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_time", {"tz": "UTC"})
    assert said["parsed"] == {"city": "Paris", "people": 2}


def test_what_was_kept(said: Said) -> None:
    assert said["retrieved"] == said["body"]
    assert said["replayed"][-1]["type"] == "response.completed"
    assert said["replayed"][-1]["response"]["output"] == said["body"]["output"]
    assert said["next"]["previous_response_id"] == said["body"]["id"]
    assert said["next"]["usage"]["input_tokens"] > said["body"]["usage"]["input_tokens"]
    assert said["next"]["output_text"] == TEXT
    assert len(said["items"]) >= 1


def test_a_refusal_names_the_parameter(said: Said) -> None:
    assert said["refused"] == {"name": "BadRequestError", "status": 400, "param": "background"}
