"""The fixtures: answers of real servers (or made after them), as raw bytes with their provenance.

tests/fixtures/<kind>/<server>/index.json       name -> provenance, request, status, content type,
                                                dialect, recover
tests/fixtures/<kind>/<server>/<name>           the backend's answer, byte for byte
tests/fixtures/<kind>/<server>/<name>.expected  what the client gets, byte for byte
tests/fixtures/<kind>/<server>/expected.json    name -> status, repairs and how the answer ended

<kind> is what the backend was asked: chat; completions, at /v1/completions; native, at llama.cpp's
/completion. `dialect` (chat if absent) says how the answer is read: chat, completions, llamacpp.
The request is always the one that the proxy's client sends: OpenAI's, of chat or of completions.
A provenance begins with "captured from", or with "constructed after" and the source of the shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tests.conformance import Request

Dialect = Literal["chat", "completions", "llamacpp"]

FIXTURES = Path(__file__).parent / "fixtures"
ROOT = FIXTURES / "chat"
TEXT_ROOTS = (FIXTURES / "completions", FIXTURES / "native")
# keys of OpenAI's own requests; every other key is a vendor's switch
OWN = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model",
        "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort",
        "response_format", "safety_identifier", "seed", "service_tier", "stop",
        "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs",
        "top_p", "user", "verbosity", "web_search_options",
    }
)  # fmt: skip
OWN_TEXT = frozenset(
    {
        "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model",
        "n", "presence_penalty", "prompt", "seed", "stop", "stream", "stream_options", "suffix",
        "temperature", "top_p", "user",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Fixture:
    """One answer. `request` is the client's JSON; `raw` what the backend answered to it.

    `vocabulary`: the configured tokenizer's tokens and their ids, where the proxy has one.
    `recover`: as the backend's table in the configuration has it.
    """

    name: str
    server: str
    request: dict[str, Any]
    status: int
    content_type: str
    raw: bytes
    provenance: str
    expected_path: Path
    dialect: Dialect = "chat"
    vocabulary: Mapping[str, int] | None = None
    recover: Sequence[str] = ()

    @property
    def key(self) -> str:
        """The name within its folder, as index.json and expected.json have it."""
        return self.expected_path.name.removesuffix(".expected")

    @property
    def streamed(self) -> bool:
        """Whether the answer is an event stream."""
        return self.content_type.startswith("text/event-stream")

    @property
    def for_stream(self) -> bool:
        """Whether the client asked for a stream; `streamed` tells what the backend gave."""
        return bool(self.request.get("stream"))

    @property
    def asked(self) -> Request:
        """The request as the conformance checker sees it."""
        return checked_request(self.request)


def checked_request(request: dict[str, Any], **more: Any) -> Request:
    """Return what an OpenAI request means to the conformance checker; `more` are its other fields.

    The extensions are the default ones, `known`.
    """
    if "prompt" in request:
        return _checked_completion(request, **more)
    stop = request.get("stop") or ()
    choice = request.get("tool_choice")
    return Request(
        model=request["model"],
        logprobs=bool(request.get("logprobs")),
        k=request.get("top_logprobs") or 0,
        include_usage=bool((request.get("stream_options") or {}).get("include_usage")),
        n=request.get("n") or 1,
        tools=tuple(tool["function"]["name"] for tool in request.get("tools") or ()),
        forced_tool=isinstance(choice, dict),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        service_tier=request.get("service_tier") is not None,
        switches=frozenset(k for k, v in request.items() if k not in OWN and v),
        **more,
    )


def _checked_completion(request: dict[str, Any], **more: Any) -> Request:
    stop, prompt = request.get("stop") or (), request["prompt"]
    many = isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt)
    prompts = prompt if many else [prompt]
    return Request(
        model=request["model"],
        logprobs=request.get("logprobs") is not None,
        k=request.get("logprobs") or 0,
        include_usage=bool((request.get("stream_options") or {}).get("include_usage")),
        n=(request.get("n") or 1) * len(prompts),
        stops=(stop,) if isinstance(stop, str) else tuple(stop),
        switches=frozenset(k for k, v in request.items() if k not in OWN_TEXT and v),
        echo=bool(request.get("echo")),
        prompts=tuple(one if isinstance(one, str) else None for one in prompts),
        **more,
    )


def text_fixtures() -> list[Fixture]:
    """Return the fixtures whose client asked for a completion; their names begin with the kind."""
    return [
        replace(fixture, name=f"{root.name}/{fixture.name}")
        for root in TEXT_ROOTS
        for fixture in fixtures(root)
    ]


def fixtures(root: Path = ROOT) -> list[Fixture]:
    """Return all fixtures, by server and name; a file without an entry, or the reverse, raises."""
    found = []
    for index in sorted(root.glob("*/index.json")):
        entries = json.loads(index.read_text())
        there = {p.name for p in index.parent.iterdir() if p.suffix != ".expected"}
        there -= {"index.json", "expected.json"}
        if there != entries.keys():
            raise ValueError(f"{index}: entries and files differ: {sorted(there ^ entries.keys())}")
        for name, entry in sorted(entries.items()):
            path = index.parent / name
            found.append(
                Fixture(
                    name=f"{index.parent.name}/{name}",
                    server=index.parent.name,
                    raw=path.read_bytes(),
                    expected_path=path.with_name(f"{name}.expected"),
                    **entry,
                )
            )
    return found
