"""The fixtures: answers of real servers (or made after them), as raw bytes with their provenance.

tests/fixtures/chat/<server>/index.json       name -> provenance, request, status, content type
tests/fixtures/chat/<server>/<name>           the backend's answer, byte for byte
tests/fixtures/chat/<server>/<name>.expected  what the client gets, byte for byte
tests/fixtures/chat/<server>/expected.json    name -> status, repairs and how the answer ended
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance import Request

ROOT = Path(__file__).parent / "fixtures" / "chat"
# keys of OpenAI's own requests; every other key is a vendor's switch
OWN = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "n",
        "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
        "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop",
        "store", "stream", "stream_options", "temperature", "tool_choice", "tools", "top_logprobs",
        "top_p", "user", "verbosity", "web_search_options",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Fixture:
    """One answer. `request` is the client's JSON; `raw` what the backend answered to it."""

    name: str
    server: str
    request: dict[str, Any]
    status: int
    content_type: str
    raw: bytes
    provenance: str
    expected_path: Path

    @property
    def streamed(self) -> bool:
        """Whether the answer is an event stream."""
        return self.content_type.startswith("text/event-stream")

    @property
    def asked(self) -> Request:
        """The request as the conformance checker sees it."""
        return checked_request(self.request)


def checked_request(request: dict[str, Any], **more: Any) -> Request:
    """Return what an OpenAI request means to the conformance checker; `more` are its other fields.

    The extensions are the default ones, `known`.
    """
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
