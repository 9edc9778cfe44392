"""Asks servers through LlamaIndex; each argument is "NAME URL MODEL".

Prints a JSON object, NAME -> MODEL -> the logprobs of a body, and the last call of a stream or what
was raised.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from llama_index.core.llms import ChatMessage  # type: ignore[import-not-found]
from llama_index.core.tools import FunctionTool  # type: ignore[import-not-found]
from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-not-found]


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"rain in {city}"


def ask_logprobs(llm: Any) -> Any:
    try:
        found = llm.chat([ChatMessage(content="Say hello.")]).logprobs
    except Exception as error:
        return _explain(error)
    return found and [[one.logprob for one in best] for best in found]


def ask_call(llm: Any) -> dict[str, Any]:
    tools = [FunctionTool.from_defaults(get_weather)]
    try:
        *_, last = llm.stream_chat_with_tools(tools, user_msg="How is the weather?")
        calls = llm.get_tool_calls_from_response(last, error_on_no_tool_call=False)
    except Exception as error:
        return _explain(error)
    if not calls:
        return {}
    return {"id": calls[-1].tool_id, "name": calls[-1].tool_name, "kwargs": calls[-1].tool_kwargs}


def _explain(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def main(*servers: str) -> None:
    found: dict[str, dict[str, Any]] = {}
    for name, url, model in (server.split() for server in servers):
        llm = OpenAILike(
            model=model,
            api_base=url,
            api_key="unused",
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
            logprobs=True,
            top_logprobs=2,
        )
        said = {"logprobs": ask_logprobs(llm), "call": ask_call(llm)}
        found.setdefault(name, {})[model] = said
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
