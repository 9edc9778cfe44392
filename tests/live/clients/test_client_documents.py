"""What the guides show for LangChain, LiteLLM and HELM, run as it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import blocks
from tests.live.clients.serving import Served
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
SHOWN = {
    "langchain.md": (TEXT.split()[0], "'logprob': ", "'output_tokens': "),
    "litellm.md": ("Hello\n",),
}
"""Guide -> what its program prints, among other things."""


@pytest.mark.parametrize("name", SHOWN)
def test_a_guides_program(
    name: str, served: Served, client: Callable[..., str], tmp_path: Path
) -> None:
    (block,) = [block for block in blocks("python") if block.document.name == name]
    assert "http://127.0.0.1:8010/v1" in block.text
    (tmp_path / "shown.py").write_text(block.text.replace("http://127.0.0.1:8010", served.proxy))
    out = client(tmp_path, "shown.py")
    assert [text for text in SHOWN[name] if text not in out] == [], out


def test_helms_configuration(served: Served, client: Callable[..., str], tmp_path: Path) -> None:
    """Both deployments that the guide shows are made by HELM, and answer."""
    deployments, tokenizers = shown("helm.md", "yaml")
    (credentials,) = shown("helm.md", "")
    assert "http://127.0.0.1:8010/v1" in deployments
    (tmp_path / "model_deployments.yaml").write_text(
        deployments.replace("http://127.0.0.1:8010", served.proxy)
    )
    (tmp_path / "tokenizer_configs.yaml").write_text(tokenizers)
    (tmp_path / "credentials.conf").write_text(credentials)
    out = client(tmp_path, str(HERE / "ask_helm_guide.py"), str(tmp_path))
    found = json.loads(out.splitlines()[-1])
    assert found == {"local/my-model": TEXT, "local/my-model-completions": TEXT}


def test_litellms_configuration(served: Served, client: Callable[..., str], tmp_path: Path) -> None:
    (configuration,) = shown("litellm.md", "yaml")
    assert "http://127.0.0.1:8010/v1" in configuration
    file = tmp_path / "config.yaml"
    file.write_text(configuration.replace("http://127.0.0.1:8010", served.proxy))
    out = client(tmp_path, str(HERE / "ask_litellm_guide.py"), str(file))
    assert out.splitlines()[-1] == TEXT


def shown(name: str, language: str) -> list[str]:
    """Return the guide's blocks in a language."""
    return [block.text for block in blocks(language) if block.document.name == name]
