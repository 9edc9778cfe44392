"""A real llama.cpp, new and old, whose template takes one system message, as the first, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
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


ALTERNATE = (
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("
    "'Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif -%}"
)
GEMMA = (
    "{%- if messages[0]['role'] == 'system' -%}"
    "{{ raise_exception('System role not supported') }}{%- endif -%}"
    "{%- for message in messages -%}" + ALTERNATE + "{%- set role = message['role'] -%}"
    "{%- if role == 'assistant' -%}{%- set role = 'model' -%}{%- endif -%}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
"""What Gemma 2's template does, as its model card documents it (tokenizer_config.json)."""

MISTRAL = (
    "{%- for message in messages -%}" + ALTERNATE + "{%- if message['role'] == 'user' -%}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ message['content'] + '</s>' }}{%- else -%}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{%- endif -%}"
    "{%- endfor -%}"
)
"""What that of Mistral 7B Instruct 0.1 and 0.2 does."""

SILENT = (
    "{%- for message in messages -%}{%- if message['role'] == 'user' -%}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{%- elif message['role'] == 'assistant' -%}{{ message['content'] + '</s>' }}{%- endif -%}"
    "{%- endfor -%}"
)
"""One that leaves a system message out, and says nothing."""


@contextmanager
def serving(build: str, template: str, model: Path) -> Iterator[str]:
    """Serve the model under a template by the newest llama.cpp, or an older one."""
    python = Path(sys.executable) if build == "newest" else own.OLD / "bin" / "python"
    if not python.exists():
        pytest.skip("no older llama.cpp here: make .venv-llamacpp-old/.installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "TEMPLATE", template)
        with own.serving(python, model) as url:
            yield url


@pytest.fixture(params=["newest", "older"])
def strict(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[str]:
    with serving(request.param, TEMPLATE, tiny_model) as url:
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


@pytest.mark.parametrize("build", ["newest", "older"])
@pytest.mark.parametrize("template", [GEMMA, MISTRAL], ids=["gemma", "mistral"])
async def test_where_a_template_takes_none_the_user_says_it(
    build: str, template: str, tiny_model: Path
) -> None:
    """llama.cpp helps itself where the user's message follows; b7376 elsewhere too, b11549 not."""
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}
    said, alone = {"role": "assistant", "content": "yo"}, {**user, "content": "Be brief."}
    texts = [{"type": "text", "text": "there"}, {"type": "text", "text": "friend"}]
    begun = {"type": "text", "text": "Be brief."}
    more: dict[str, Any] = {"max_tokens": 3}
    same = (
        ([system, user], [{**user, "content": "Be brief.\n\nhi"}]),
        ([system, {**user, "content": texts}], [{**user, "content": [begun, *texts]}]),
        ([system], [alone]),
    )
    with serving(build, template, tiny_model) as url:
        for adapter, stream in product(("llamacpp", "llamacpp-native"), (False, True)):
            async with own.asking(url, CHAT, stream, adapter=adapter) as ask:
                await ask(messages=[system, user], **more)
                await ask(messages=[system, user, {**system, "role": "developer"}], **more)
                given = await ask(messages=[system, said, user], **more)
                assert given.usage == (await ask(messages=[alone, said, user], **more)).usage
            async with own.asking(url, CHAT, stream, adapter=adapter, system="user") as ask:
                for messages, expected in same:
                    given, plain = [await ask(messages=x, **more) for x in (messages, expected)]
                    assert (given.text, given.usage) == (plain.text, plain.usage)


@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("template", [GEMMA, MISTRAL, SILENT], ids=["gemma", "mistral", "silent"])
async def test_nothing_is_left_out_without_a_word(
    template: str, adapter: str, tiny_model: Path
) -> None:
    """Mutant: the template is not looked at. (b7376 puts such messages into the user's.)"""
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}
    said, alone = {"role": "assistant", "content": "yo"}, {**user, "content": "Be brief."}
    both = {**user, "content": "Be brief.\n\nBe brief.\n\nhi"}
    same = (
        ([system], [alone]),
        ([system, said, user], [alone, said, user]),
        ([system, user, said, system, user], [both, said, user]),
    )
    with serving("newest", template, tiny_model) as url:
        async with own.asking(url, CHAT, False, adapter=adapter) as ask:
            for messages, expected in same:
                given, plain = [await ask(messages=x, max_tokens=3) for x in (messages, expected)]
                assert (given.text, given.usage) == (plain.text, plain.usage)
