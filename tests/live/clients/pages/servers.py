"""The servers that the pages' clients are pointed at, and the proxy in front of them all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.clients.pages.replay import replaying
from tests.live.clients.serving import running_proxy
from tests.models import agent
from tests.models.tiny import write_model

SERVE = Path(__file__).parents[2] / "serve_xllamacpp.py"

# A template without markers of tools and thoughts: what follows it is held to a schema from its
# first token on, so that the tiny model, which knows nothing, still answers what a schema says.
PLAIN_TEMPLATE = (
    "{%- for message in messages -%}{{ message.content + '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant\\n' }}{%- endif -%}"
)

REPLAYED = {
    "vllm": [
        "vllm/0.3.3-legacy-stop",
        "vllm/0.5.5-named-tool",
        "vllm/0.32-finish-abort",
        "vllm/0.32-stream-abort",
        "vllm/0.32-stream-reasoning",
    ],
    "tgi": ["tgi/2.4.1-stream-tool-calls-object", "tgi/3.2-stream-tool-calls"],
    "general": [
        "constructed/chunks-of-nothing",
        "constructed/portkey-message-in-chunk",
        "constructed/refusal-empty",
    ],
}
"""Adapter -> the answers of such servers that are replayed; each is a model's name."""

LONG = 32_768  # tokens, for what agents say before the question
ALIASES = '{ "claude-sonnet-4-5" = "tiny" }'


@dataclass(frozen=True)
class Servers:
    """Base URLs. The proxy has each server's models.

    llamacpp: "my-model", "tiny"; structured: "structured", held to schemas (PLAIN_TEMPLATE); long:
    "long", with a context of LONG tokens and what tests/models/agent.py has; replay: those of
    REPLAYED, by a server that has chat alone.
    """

    proxy: str
    llamacpp: str
    structured: str
    long: str
    replay: str


@contextmanager
def serving_llamacpp(
    model: Path, template: str = "", context: int = 2048, slots: int = 2
) -> Iterator[str]:
    """Run a real llama.cpp until the block ends; gives its base URL. Slots share the context."""
    numbers = (f"n_ctx={context}", f"n_parallel={slots}")
    command = [sys.executable, str(SERVE), str(model), template, *numbers]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.stdin.close()  # which ends it


@contextmanager
def serving_all(folder: Path) -> Iterator[Servers]:
    """Run them all until the block ends; `folder` is for the model, the configuration, the log.

    The proxy takes no key but "unused", which is what the pages have their clients send.
    """
    model = write_model(folder / "tiny.gguf")
    with ExitStack() as stack:
        llamacpp = stack.enter_context(serving_llamacpp(model))
        structured = stack.enter_context(serving_llamacpp(model, PLAIN_TEMPLATE))
        wide = agent.write_model(folder / "long.gguf", context=LONG)
        long = stack.enter_context(serving_llamacpp(wide, context=LONG, slots=1))
        replay = stack.enter_context(replaying())
        tables = [
            _backend("llamacpp", llamacpp, "llamacpp", ["my-model", "tiny"]),
            f"aliases = {ALIASES}\n",
            _backend("structured", structured, "llamacpp", ["structured"]),
            _backend("long", long, "llamacpp", ["long"]),
            *[_backend(name, replay, name, models) for name, models in REPLAYED.items()],
        ]
        config = folder / "wellspoken.toml"
        config.write_text('[server]\nlisten = "127.0.0.1:0"\n' + "".join(tables))
        arguments = ("--config", str(config), "--key", "env:CLIENT_KEY")
        given = {"CLIENT_KEY": "unused"}
        proxy = stack.enter_context(running_proxy(arguments, folder / "log", given))
        yield Servers(proxy, llamacpp, structured, long, replay)


def _backend(name: str, url: str, adapter: str, models: list[str]) -> str:
    """Return the table of a backend; JSON's strings and lists are TOML's."""
    keys = {"name": name, "url": url, "adapter": adapter, "models": models}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(["\n[[backend]]", *lines, ""])
