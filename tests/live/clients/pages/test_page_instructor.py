"""instructor gets objects of its classes, also where the server alone gives it none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers

HERE = Path(__file__).parent
Ask = Callable[[str, str, str], str]

# The tiny model calls one tool only, and only for this word.
TOLD = {"class Time": "class get_time", "=Time": "=get_time", "What time is it?": "@tool"}


def test_the_guides_tool(
    servers: Servers, client_openai2: Callable[..., str], tmp_path: Path
) -> None:
    text, _ = shown("instructor.md", "python", servers.proxy)
    for word, other in TOLD.items():
        assert word in text
        text = text.replace(word, other)
    (tmp_path / "shown.py").write_text(text)
    assert client_openai2(tmp_path, "shown.py") == "tz='UTC'\n"


def test_the_guides_schema(
    servers: Servers, client_openai2: Callable[..., str], tmp_path: Path
) -> None:
    _, text = shown("instructor.md", "python", servers.proxy)
    (tmp_path / "shown.py").write_text(text.replace("my-model", "structured"))
    first, *_, last = client_openai2(tmp_path, "shown.py").splitlines()
    assert first == "city=None sky=None"
    assert last in [f"city='{c}' sky='{s}'" for c in ("London", "Paris") for s in SKIES]


SKIES = ("clear", "cloudy")


@pytest.fixture
def ask(client_openai2: Callable[..., str], tmp_path: Path) -> Ask:
    """A function (base URL, model, method) that returns the object, or the failure."""

    def run(url: str, model: str, method: str) -> str:
        out = client_openai2(tmp_path, str(HERE / "ask_instructor.py"), f"{url}/v1", model, method)
        return str(json.loads(out.splitlines()[-1]))

    return run


def test_llamacpp_alone_is_not_bound_to_the_tool(ask: Ask, servers: Servers) -> None:
    said = ask(servers.llamacpp, "tiny", "create")
    assert "No tool calls or function call found in response" in said
    assert ask(servers.proxy, "tiny", "create") == "tz='UTC'"


def test_tgis_streamed_call(ask: Ask, servers: Servers) -> None:
    model = "tgi/2.4.1-stream-tool-calls-object"
    assert ask(servers.replay, model, "create_partial") == "InstructorRetryException: 0"
    assert ask(servers.proxy, model, "create_partial") == "city='Rome'"


def test_an_empty_refusal(ask: Ask, servers: Servers) -> None:
    model = "constructed/refusal-empty"
    said = ask(servers.replay, model, "create")
    assert said == "InstructorRetryException: Unable to generate a response due to "
    # What the fixture says is no call; that it is looked for at all shows that nothing was refused.
    assert "No tool calls" in ask(servers.proxy, model, "create")
