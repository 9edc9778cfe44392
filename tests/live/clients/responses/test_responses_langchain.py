"""LangChain's newer mode, use_responses_api, gets texts, calls, thoughts and counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.responses.fronts import KEY, MODEL, Fronts
from tests.models.tiny import TEXT

PROGRAM = Path(__file__).parent / "ask_langchain_responses.py"
Message = dict[str, Any]


@pytest.fixture(scope="module", params=["storing", "forgetting"])
def said(
    fronts: Fronts,
    client: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> dict[str, Any]:
    """What LangChain made of the proxy's answers."""
    folder = tmp_path_factory.mktemp("langchain")
    url = getattr(fronts, request.param)
    out = client(folder, str(PROGRAM), f"{url}/v1", KEY, MODEL)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def text_of(message: Message) -> str:
    """Return the text of a message's blocks."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


@pytest.mark.parametrize("name", ["invoked", "streamed"])
def test_an_answer_has_text_usage_and_an_id(said: dict[str, Any], name: str) -> None:
    message = said[name]
    assert text_of(message) == TEXT
    assert message["usage_metadata"]["output_tokens"] == 10
    assert message["response_metadata"]["id"].startswith("resp_")
    assert message["response_metadata"]["status"] == "completed"


def test_a_call_its_output_and_the_answer(said: dict[str, Any]) -> None:
    [call] = said["called"]["tool_calls"]
    assert (call["name"], call["args"]) == ("get_time", {"tz": "UTC"})
    _, asked, output, answer = said["looped"]
    assert asked["tool_calls"][0]["id"] == output["tool_call_id"]
    assert output["content"] == "12:00 UTC" and text_of(answer) == TEXT


def test_a_thought(said: dict[str, Any]) -> None:
    assert [block["type"] for block in said["thought"]["content"]] == ["reasoning", "text"]
    assert text_of(said["thought"]) == "Yes indeed"


def test_structured_output(said: dict[str, Any]) -> None:
    assert said["city"] == {"city": "Paris", "people": 2}


def test_a_conversation_by_the_previous_response(said: dict[str, Any]) -> None:
    first, second = said["chained"]
    assert text_of(second) == TEXT
    counts = [message["usage_metadata"]["input_tokens"] for message in (first, second)]
    assert counts[1] > counts[0] + 10  # the first turn, and not the second's text alone
