"""Runs agents against a server (its /v1 address and models are the arguments).

Prints one JSON line: a model to what became of a streamed run with a handoff and a call ("run"), of
one whose answer has a type ("typed") and of one that another continues ("continued"); a failure is
the text of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any, Literal

from agents import (  # type: ignore[import-not-found]
    Agent,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

QUESTION = "What time is it in UTC?"


@function_tool  # type: ignore[untyped-decorator]
def get_time(tz: str) -> str:
    """Tell the time in a zone."""
    return f"12:00 {tz}"


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "London"]


async def run_typed(model: Any) -> dict[str, Any]:
    result = await Runner.run(Agent(name="Guide", model=model, output_type=City), "Which one?")
    found: dict[str, Any] = result.final_output.model_dump()
    return found


async def run_continued(model: Any) -> str:
    agent = Agent(name="Talker", model=model)
    first = await Runner.run(agent, "Say hello.")
    again = Runner.run(agent, "Again.", previous_response_id=first.last_response_id)
    return str((await again).final_output)


async def run_streamed(model: Any) -> dict[str, Any]:
    clock = Agent(name="Clock", model=model, tools=[get_time])
    desk = Agent(name="Desk", model=model, handoffs=[clock])
    result = Runner.run_streamed(desk, QUESTION)
    kinds, text = [], ""
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            kinds.append(event.name)
        elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return {
        "kinds": kinds,
        "text": text,
        "agent": result.last_agent.name,
        "answer": result.final_output,
        "requests": result.context_wrapper.usage.requests,
        "output_tokens": result.context_wrapper.usage.output_tokens,
    }


async def attempt(run: Awaitable[Any]) -> Any:
    try:
        return await run
    except Exception as error:  # whatever the SDK makes of what the server sent
        return f"{type(error).__name__}: {error}"


async def main() -> None:
    url, *models = sys.argv[1:]
    client = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0)
    set_default_openai_client(client)
    set_tracing_disabled(True)
    found = {}
    for name in models:
        # What stands before a slash would be a provider's name.
        model = OpenAIResponsesModel(name, client) if "/" in name else name
        found[name] = {
            "run": await attempt(run_streamed(model)),
            "typed": await attempt(run_typed(model)),
            "continued": await attempt(run_continued(model)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
