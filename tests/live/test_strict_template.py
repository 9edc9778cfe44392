"""A real llama.cpp, new and old, whose template takes one system message alone, as the first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import test_parameters_own as own
from tests.live.effects import CHAT

TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role == 'system' and not loop.first -%}"
    "{{ raise_exception('System message must be at the beginning.') }}{%- endif -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
LATE = [
    {"role": "system", "content": "one"},
    {"role": "user", "content": "hi"},
    {"role": "developer", "content": "two"},
]
ONE = [{"role": "system", "content": "one\n\ntwo"}, LATE[1]]


@pytest.fixture(params=["newest", "older"])
def strict(
    request: pytest.FixtureRequest, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    python = Path(sys.executable) if request.param == "newest" else own.OLD / "bin" / "python"
    if not python.exists():
        pytest.skip("no older llama.cpp here: make .venv-llamacpp-old/.installed")
    monkeypatch.setattr(own, "TEMPLATE", TEMPLATE)
    with own.serving(python, tiny_model) as url:
        yield url


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
async def test_several_system_messages_are_one_in_the_prompt(
    strict: str, adapter: str, stream: bool
) -> None:
    more: dict[str, Any] = {"max_tokens": 3}
    async with own.asking(strict, CHAT, stream, adapter=adapter) as ask:
        answers = [await ask(messages=given, **more) for given in (LATE, ONE, LATE)]
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.body["usage"]["prompt_tokens"] for answer in answers}) == 1
