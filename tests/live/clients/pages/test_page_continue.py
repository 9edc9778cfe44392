"""Continue's command line gets whole answers through the proxy, where servers alone stop it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

KEPT_ALIVE, MESSAGE = "constructed/chunks-of-nothing", "constructed/portkey-message-in-chunk"
OBJECT, ABORTED = "tgi/2.4.1-stream-tool-calls-object", "vllm/0.32-stream-abort"
Ask = Callable[[str, str], str]


@pytest.fixture
def ask(client_node: Callable[..., str], tmp_path: Path) -> Ask:
    """A function (base URL, model) that runs the guide's command with its configuration."""

    def run(url: str, model: str) -> str:
        [configuration] = shown("continue.md", "yaml", url)
        [command] = shown("continue.md", "sh", url, anywhere=True)
        text = configuration.replace("model: my-model", f"model: {model}")
        (tmp_path / "config.yaml").write_text(text)
        return client_node(tmp_path, *shlex.split(command)).strip()

    return run


def test_the_guides_configuration(ask: Ask, servers: Servers) -> None:
    assert ask(servers.proxy, "long") == TEXT


def test_chunks_that_are_none(ask: Ask, servers: Servers) -> None:
    with pytest.raises(AssertionError, match="Cannot read properties of null"):
        ask(servers.replay, KEPT_ALIVE)
    assert ask(servers.proxy, KEPT_ALIVE) == "Paris."


def test_a_message_where_a_delta_belongs(ask: Ask, servers: Servers) -> None:
    assert ask(servers.replay, MESSAGE) == ""
    assert ask(servers.proxy, MESSAGE) == "Paris."


def test_tgis_streamed_call(ask: Ask, servers: Servers) -> None:
    with pytest.raises(AssertionError, match=r"delta\.tool_calls is not iterable"):
        ask(servers.replay, OBJECT)


def test_an_aborted_answer_alone_is_taken_for_whole(ask: Ask, servers: Servers) -> None:
    assert ask(servers.replay, ABORTED) == "Par"
