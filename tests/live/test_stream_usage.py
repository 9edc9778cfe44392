"""A real llama.cpp, new and old: what its streams say of counts is logged and stored."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.fold import fold, payloads
from tests.live import test_parameters_own as own
from tests.live.effects import CHAT, TEXTS
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.relay.call import Call

Json = dict[str, Any]
QUESTION: Json = {
    "model": "tiny",
    "temperature": 0,
    "seed": 1,
    "messages": [{"role": "user", "content": "What is it that you say?"}],
}
PROMPT: Json = {"model": "tiny", "temperature": 0, "seed": 1, "prompt": "hello", "max_tokens": 6}


@pytest.fixture(scope="module", params=["newest", "older"])
def server(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[str]:
    python = Path(sys.executable) if request.param == "newest" else own.OLD / "bin" / "python"
    if not python.exists():
        pytest.skip("no older llama.cpp here: make .venv-llamacpp-old/.installed")
    with own.serving(python, tiny_model) as url:
        yield url


class Front:
    """The proxy, what it answers, and what it notes of each request."""

    def __init__(self, session: ClientSession, calls: list[Call]) -> None:
        self.session = session
        self.calls = calls

    async def ask(self, path: str, asked: Json) -> bytes:
        async with self.session.post(path, json=asked) as response:
            data = await response.read()
            assert response.status == 200, data
            return data

    def counts(self) -> tuple[int | None, int | None, str]:
        """Return what the log has of the last answer, and who said it."""
        exchange = self.calls[-1].results.exchange
        assert exchange is not None and exchange.result.usage is not None
        usage = exchange.result.usage
        return usage.prompt, usage.completion, exchange.result.usage_source


@pytest.fixture(params=["llamacpp", "llamacpp-native", "openai", "auto"])
async def front(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Front]:
    tables = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": server, "adapter": request.param}],
        "store": {"path": str(tmp_path / "store.db")},
    }
    service = build(load(None, tables, {}))
    assert service.state.store is not None
    service.state.store.start()
    calls: list[Call] = []
    service.hooks.observers.append(lambda call, _: calls.append(call))
    host, port = await service.start()
    async with ClientSession(f"http://{host}:{port}") as session:
        yield Front(session, calls)
    await service.stop()
    await service.state.store.close()


def told(body: bytes) -> tuple[int, int]:
    usage = json.loads(body)["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


@pytest.mark.parametrize(("path", "asked"), [(CHAT, QUESTION), (TEXTS, PROMPT)])
async def test_a_stream_counts_as_its_body(front: Front, path: str, asked: Json) -> None:
    counts = told(await front.ask(path, asked))
    data = await front.ask(path, {**asked, "stream": True})
    assert front.counts() == (*counts, "backend")
    assert not any("usage" in json.loads(x) for x in payloads(data) if x != b"[DONE]")
    text = "".join(piece.get("text", "") for x in payloads(data) if x != b"[DONE]"
                   for piece in json.loads(x)["choices"])  # fmt: skip
    assert path == CHAT or text == json.loads(await front.ask(path, asked))["choices"][0]["text"]
    told_too = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    last = json.loads([x for x in payloads(await front.ask(path, told_too)) if x != b"[DONE]"][-1])
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == counts


async def test_choices_add_up(front: Front) -> None:
    prompt, completion = told(await front.ask(CHAT, QUESTION))
    await front.ask(CHAT, {**QUESTION, "stream": True, "n": 2})
    assert front.counts() == (prompt, 2 * completion, "backend")
    assert told(await front.ask(CHAT, {**QUESTION, "n": 2})) == (prompt, 2 * completion)
    assert front.counts()[:2] == (prompt, 2 * completion)  # choices that are alike take as much


async def test_what_is_stored(front: Front) -> None:
    counts = told(await front.ask(CHAT, QUESTION))
    data = await front.ask(CHAT, {**QUESTION, "stream": True, "store": True})
    async with front.session.get(f"{CHAT}/{fold(data)['id']}") as response:
        assert told(await response.read()) == counts
