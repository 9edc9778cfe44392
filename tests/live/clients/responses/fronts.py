"""A real llama.cpp with the agents' model, a chat-only server, and the proxies in front of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.clients.pages.replay import replaying
from tests.live.clients.pages.servers import serving_llamacpp
from tests.live.clients.serving import running_proxy
from tests.models.agent import write_model

MODEL = "agent"
CONTEXT = 8192
KEY, OTHER_KEY = "key-one", "key-two"
CHAT_ONLY = {
    "vllm": ["vllm/0.3.3-legacy-stop", "vllm/0.32-stream-reasoning", "vllm/0.32-stream-abort"],
    "tgi": ["tgi/2.4.1-stream-tool-calls-object"],
}
"""Adapter -> the answers that are replayed, each a model's name, by a server without responses."""


@dataclass(frozen=True)
class Fronts:
    """Base URLs of the proxies and of what is behind them.

    storing: a proxy with [store], in front of MODEL and CHAT_ONLY; it takes KEY and OTHER_KEY.
    forgetting: the same without [store]. llamacpp: the server of MODEL.
    """

    storing: str
    forgetting: str
    llamacpp: str


def configure(folder: Path, llamacpp: str, replay: str, *, store: bool) -> Path:
    """Write a proxy's configuration and return its path; JSON's strings and lists are TOML's."""
    backends = [(MODEL, llamacpp, "llamacpp", [MODEL])]
    backends += [(name, replay, name, models) for name, models in CHAT_ONLY.items()]
    lines = ["[server]", 'listen = "127.0.0.1:0"', "[auth]", 'keys = ["env:ONE", "env:TWO"]']
    if store:
        lines += ["[store]", f"path = {json.dumps(str(folder / 'store.db'))}"]
    for name, url, adapter, models in backends:
        values = {"name": name, "url": url, "adapter": adapter, "models": models}
        lines += ["[[backend]]", *(f"{key} = {json.dumps(of)}" for key, of in values.items())]
    path = folder / ("storing.toml" if store else "forgetting.toml")
    path.write_text("\n".join([*lines, ""]))
    return path


@contextmanager
def serving_fronts(folder: Path) -> Iterator[Fronts]:
    """Run them all until the block ends; `folder` is for what they need and write."""
    model = write_model(folder / "agent.gguf", context=CONTEXT)
    keys = {"ONE": KEY, "TWO": OTHER_KEY}
    with ExitStack() as stack:
        llamacpp = stack.enter_context(serving_llamacpp(model, context=CONTEXT))
        replay = stack.enter_context(replaying())
        proxies = []
        for store in (True, False):
            config = configure(folder, llamacpp, replay, store=store)
            run = running_proxy(["--config", str(config)], config.with_suffix(".log"), keys)
            proxies.append(stack.enter_context(run))
        storing, forgetting = proxies
        yield Fronts(storing, forgetting, llamacpp)
