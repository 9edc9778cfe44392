"""Asks a proxy (its /v1 address is the argument) through HELM's clients; prints one JSON line.

The line is {name: {"error", "completions": [{"text", "logprob", "tokens", "finish_reason"}]}};
each token is [text, logprob]. "raised" stands for an exception that left HELM.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from helm.benchmark.model_metadata_registry import (  # type: ignore[import-not-found]
    get_unknown_model_metadata,
    register_model_metadata,
)
from helm.clients.openai_client import (  # type: ignore[import-not-found]
    OpenAIClient,
    OpenAILegacyCompletionsClient,
)
from helm.clients.vllm_client import (  # type: ignore[import-not-found]
    VLLMChatClient,
    VLLMClient,
)
from helm.common.cache import BlackHoleCacheConfig  # type: ignore[import-not-found]
from helm.common.request import Request  # type: ignore[import-not-found]

MODEL = "wellspoken/tiny"


class LogprobsClient(OpenAIClient):  # type: ignore[misc]
    """HELM's chat client with logprobs asked for, which only its subclasses for others do."""

    def _make_chat_raw_request(self, request: Any) -> dict[str, Any]:
        asked: dict[str, Any] = super()._make_chat_raw_request(request)
        return {**asked, "logprobs": True, "top_logprobs": 1}


def vllm_client(**settings: Any) -> Any:
    """Return a VLLMClient.

    Its own constructor of 0.5.14 to 0.5.16 hands `tokenizer` on to openai's, which refuses it; so
    its parent's makes the object. What it sends and reads is its own.
    """
    client = VLLMClient.__new__(VLLMClient)
    OpenAILegacyCompletionsClient.__init__(client, **settings)
    return client


def answered(client: Any, **asked: Any) -> dict[str, Any]:
    wanted = {"model": MODEL, "model_deployment": MODEL, "temperature": 0.0, "max_tokens": 16}
    try:
        result = client.make_request(Request(**{**wanted, **asked}))
    except (KeyError, TypeError) as error:
        return {"raised": repr(error)}
    return {
        "error": result.error,
        "completions": [
            {
                "text": one.text,
                "logprob": one.logprob,
                "tokens": [[token.text, token.logprob] for token in one.tokens],
                "finish_reason": (one.finish_reason or {}).get("reason"),
            }
            for one in result.completions
        ],
    }


def main() -> None:
    register_model_metadata(get_unknown_model_metadata(MODEL))
    settings = {"cache_config": BlackHoleCacheConfig(), "base_url": sys.argv[1]}
    settings |= {"api_key": "none", "openai_model_name": "tiny", "max_retries": 0}
    legacy, vllm = OpenAILegacyCompletionsClient(**settings), vllm_client(**settings)
    chat = VLLMChatClient(
        BlackHoleCacheConfig(), base_url=sys.argv[1], vllm_model_name="tiny", max_retries=0
    )
    plain, scored, stop = "Say this:\n", "hello world! tool", [" caf"]
    found = {
        "chat": answered(OpenAIClient(**settings), prompt="Say hello."),
        "vllm chat": answered(chat, prompt="Say hello."),
        "chat of two": answered(chat, prompt="Say hello.", num_completions=2),
        "chat with logprobs": answered(LogprobsClient(**settings), prompt="Say hello."),
        "legacy": answered(legacy, prompt=plain),
        "vllm": answered(vllm, prompt=plain),
        "top 5": answered(vllm, prompt=plain, top_k_per_token=5),
        "legacy of two": answered(legacy, prompt=plain, num_completions=2, top_k_per_token=2),
        "short": answered(vllm, prompt=plain, max_tokens=3),
        "stopped": answered(vllm, prompt=plain, stop_sequences=stop),
        "scored": answered(vllm, prompt=scored, echo_prompt=True, max_tokens=0),
        "echoed": answered(vllm, prompt="hello world", echo_prompt=True, max_tokens=2),
        "refused": answered(vllm, prompt=plain, temperature=3.0),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
