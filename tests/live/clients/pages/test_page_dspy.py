"""DSPy gets what a signature says and every choice's logprobs; the servers alone give less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.clients.pages.conftest import shown
from tests.live.clients.pages.servers import Servers
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
LEGACY = "vllm/0.3.3-legacy-stop"


def test_the_guides_program(servers: Servers, client: Callable[..., str], tmp_path: Path) -> None:
    [text] = shown("dspy.md", "python", servers.proxy)
    (tmp_path / "shown.py").write_text(text.replace("my-model", "structured"))
    *_, topic, first, second, third = client(tmp_path, "shown.py").splitlines()
    assert topic in ("yes", "no")
    assert first.startswith(f"{TEXT} [-0.") and first.count(",") == 7  # é is one entry
    assert first == second == third


@pytest.fixture(scope="module")
def asked(
    servers: Servers, client: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What DSPy makes of each server's answers, by where and model."""
    folder = tmp_path_factory.mktemp("dspy")
    pairs = [(servers.llamacpp, "tiny"), (servers.replay, LEGACY), (servers.proxy, LEGACY)]
    arguments = [f"{url}/v1 {model}" for url, model in pairs]
    out = client(folder, str(HERE / "ask_dspy.py"), *arguments)
    said = json.loads(out.splitlines()[-1])
    return dict(zip(("llamacpp", "vllm", "vllm behind the proxy"), said, strict=True))


def test_llamacpp_alone_has_fewer_slots(asked: dict[str, str]) -> None:
    assert "LMInvalidRequestError" in asked["llamacpp"]
    assert "Value must be between 1 <= value <= 2, but got 3" in asked["llamacpp"]


def test_an_old_vllms_logprobs(asked: dict[str, str]) -> None:
    assert asked["vllm"] == "[None]"
    assert asked["vllm behind the proxy"] == f"{[[-0.1, -4.0, -0.2]] * 3}"
