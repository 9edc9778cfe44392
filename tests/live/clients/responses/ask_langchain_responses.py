"""Asks a proxy (its /v1 address, a key and a model) for responses through LangChain.

Prints one JSON line: messages as LangChain dumps them, a stream as what its chunks add up to.
"""

from __future__ import annotations

import json
import sys
from functools import reduce
from operator import add
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "London"]
    people: int


@tool  # type: ignore[untyped-decorator]
def get_time(tz: str) -> str:
    """Tell the time in a zone."""
    return f"12:00 {tz}"


def streamed(model: Any, content: str) -> Any:
    return reduce(add, model.stream(content)).model_dump()


def looped(model: Any) -> list[Any]:
    """Return the messages of a conversation with a call, its output and the answer."""
    said: list[Any] = [HumanMessage("@tool")]
    said.append(model.invoke(said))
    said += [
        ToolMessage(get_time.invoke(call["args"]), tool_call_id=call["id"])
        for call in said[-1].tool_calls
    ]
    said.append(model.invoke(said))
    return [message.model_dump() for message in said]


def main() -> None:
    url, key, name = sys.argv[1:]
    settings = {"base_url": url, "api_key": key, "model": name, "max_retries": 0}
    plain = ChatOpenAI(**settings, temperature=0, use_responses_api=True)
    scored = ChatOpenAI(
        **settings,
        temperature=0,
        use_responses_api=True,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    chained = ChatOpenAI(
        **settings, temperature=0, use_responses_api=True, use_previous_response_id=True
    )
    first = chained.invoke("Say hello.")
    found = {
        "invoked": scored.invoke("Say hello.").model_dump(),
        "streamed": streamed(scored, "Say hello."),
        "called": streamed(plain.bind_tools([get_time]), "@tool"),
        "looped": looped(plain.bind_tools([get_time])),
        "thought": plain.invoke("@think").model_dump(),
        "city": plain.with_structured_output(City).invoke("Which city?").model_dump(),
        "chained": [
            first.model_dump(),
            chained.invoke(
                [HumanMessage("Say hello."), first, HumanMessage("Again.")]
            ).model_dump(),
        ],
    }
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
