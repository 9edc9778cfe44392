"""LlamaIndex gets logprobs and calls, where the servers alone give it none, or make it fail."""

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
LEGACY, FORCED = "vllm/0.3.3-legacy-stop", "vllm/0.5.5-named-tool"
OBJECT = "tgi/2.4.1-stream-tool-calls-object"
Said = dict[str, dict[str, Any]]


def test_the_guides_program(
    servers: Servers, client_openai2: Callable[..., str], tmp_path: Path
) -> None:
    [text] = shown("llamaindex.md", "python", servers.proxy)
    assert "What time is it?" in text  # for which the tiny model knows another word
    (tmp_path / "shown.py").write_text(text.replace("What time is it?", "@tool"))
    answer, call = client_openai2(tmp_path, "shown.py").splitlines()
    assert answer.startswith(f"{TEXT} [-0.") and answer.count(",") == 7  # é is one entry
    assert call == "get_time {'tz': 'UTC'}"


@pytest.fixture(scope="module")
def asked(
    servers: Servers, client_openai2: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Said:
    """What LlamaIndex makes of models' answers, by server and model."""
    models = (LEGACY, FORCED, OBJECT)
    pairs = {"alone": servers.replay, "behind": servers.proxy, "llamacpp": servers.llamacpp}
    arguments = [f"{name} {url}/v1 {model}" for name, url in pairs.items() for model in models]
    folder = tmp_path_factory.mktemp("llamaindex")
    out = client_openai2(folder, str(HERE / "ask_llamaindex.py"), *arguments)
    found: Said = json.loads(out.splitlines()[-1])
    return found


def test_llamacpp_alone_streams_no_calls_beside_logprobs(asked: Said) -> None:
    # It takes any model's name, and the request is refused before the model is asked.
    refused = asked["llamacpp"][FORCED]["call"]
    assert refused["error"] == "BadRequestError"
    assert "logprobs is not supported with tools + stream" in refused["message"]


def test_an_old_vllms_logprobs(asked: Said) -> None:
    assert asked["alone"][LEGACY]["logprobs"] is None
    assert asked["behind"][LEGACY]["logprobs"] == [[-0.1, -2.5], [-0.9, -2.5], [-0.2, -1.5]]


def test_a_forced_tools_stream_has_one_id(asked: Said) -> None:
    alone, behind = asked["alone"][FORCED]["call"], asked["behind"][FORCED]["call"]
    assert behind["kwargs"] == {"city": "Zürich", "days": 2} == alone["kwargs"]
    assert behind["id"].count("chatcmpl-tool-") == 1 and alone["id"].count("chatcmpl-tool-") > 10


def test_tgis_streamed_call(asked: Said) -> None:
    assert asked["alone"][OBJECT]["call"] == {"error": "KeyError", "message": "0"}
    assert asked["behind"][OBJECT]["call"]["kwargs"] == {"city": "Rome"}
