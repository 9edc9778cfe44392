"""Asks a proxy (its /v1 address is the argument) through LangChain; prints one JSON line.

Messages are as LangChain dumps them; a stream also as the message that its chunks add up to.
"""

from __future__ import annotations

import json
import sys
from functools import reduce
from operator import add
from typing import Any

from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI, OpenAI  # type: ignore[import-not-found]

SETTINGS = {"model": "tiny", "api_key": "none", "temperature": 0, "max_retries": 0}
SAY, PLAIN = "Say hello.", "Say this:\n"


@tool  # type: ignore[untyped-decorator]
def get_time(tz: str) -> str:
    """Tell the time in a zone."""
    return f"12:00 {tz}"


def streamed(model: Any, content: str) -> dict[str, Any]:
    chunks = list(model.stream(content))
    return {
        "whole": reduce(add, chunks).model_dump(),
        "chunks": [chunk.model_dump() for chunk in chunks],
    }


def main() -> None:
    settings = {**SETTINGS, "base_url": sys.argv[1]}
    scored = ChatOpenAI(**settings, logprobs=True, top_logprobs=2, stream_usage=True)
    plain = ChatOpenAI(**settings, stream_usage=True)
    tools = plain.bind_tools([get_time])
    completions = OpenAI(**settings, max_tokens=16, logprobs=2)
    said = completions.generate([PLAIN, "hello world"])
    found = {
        "invoked": scored.invoke(SAY).model_dump(),
        "streamed": streamed(scored, SAY),
        "plain": plain.invoke(SAY).model_dump(),
        "called": tools.invoke("@tool").model_dump(),
        "called in a stream": streamed(tools, "@tool"),
        "completed": [one.model_dump() for (one,) in said.generations],
        "completion usage": (said.llm_output or {})["token_usage"],
        "completion chunks": list(OpenAI(**settings, max_tokens=16).stream(PLAIN)),
    }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
