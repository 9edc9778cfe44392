"""The backends by name: what `--adapter` and a route's `adapter` may say."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.known.cortex import CORTEX
from wellspoken.adapters.servers.known.furiosa import FURIOSA
from wellspoken.adapters.servers.known.llama_cpp_python import LLAMA_CPP_PYTHON
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.known.llamacpp_native import LLAMACPP_NATIVE
from wellspoken.adapters.servers.known.lmstudio import LMSTUDIO
from wellspoken.adapters.servers.known.mlx_lm import MLX_LM
from wellspoken.adapters.servers.known.ollama import OLLAMA
from wellspoken.adapters.servers.known.sglang import SGLANG
from wellspoken.adapters.servers.known.tgi import TGI
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.parameters import (
    AS_TOOLS,
    BEST_OF,
    ONLY_ALLOWED,
    OURS,
    TOLD,
    Support,
    rows,
)

CHAT: Final = (
    rows("model messages stream n stop max_tokens max_completion_tokens temperature top_p seed")
    | rows("frequency_penalty presence_penalty logit_bias logprobs top_logprobs stream_options")
    | rows("tools tools.custom tool_choice tool_choice.none tool_choice.required")
    | rows("tool_choice.function tool_choice.allowed_tools parallel_tool_calls reasoning_effort")
    | rows("response_format response_format.json_object response_format.json_schema verbosity")
    | rows("messages.developer messages.image_url messages.input_audio messages.file")
    | rows("messages.reasoning_content", note="as the client sends it; `past_reasoning` names it")
    | rows("modalities audio web_search_options")
    | OURS
    | rows("user safety_identifier prediction")
    | rows("prompt_cache_key prompt_cache_options prompt_cache_retention")
    | AS_TOOLS
    | {"return_token_ids": TOLD}
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream n stop max_tokens temperature top_p seed logit_bias echo")
    | rows("frequency_penalty presence_penalty logprobs suffix user stream_options")
    | {"best_of": BEST_OF, "return_token_ids": TOLD}
)

OPENAI: Final = Backend(
    name="openai",
    title="a server that speaks OpenAI's API",
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    passes=("/v1/embeddings", "/v1/responses"),
    versions="any",
)
"""OpenAI's own requests, and the general repairs alone."""

GENERAL: Final = Backend(
    name="general",
    title="an unknown server",
    chat_table=CHAT
    | OURS
    | {
        "max_completion_tokens": Support(key="max_tokens", note="the name that all servers know"),
        "stream_options": Support(form=forms.usage_alone),
        "tool_choice.allowed_tools": ONLY_ALLOWED,
        "n": Support(note="what is missing is asked for in further requests"),
    }
    | rows("modalities audio web_search_options", "refused"),
    completion_table=COMPLETIONS
    | rows("user", "accepted")
    | rows("n", note="what is missing is asked for in further requests"),
    tops_up=True,
    # KoboldCpp's and TabbyAPI's; others answer 404, once a minute.
    lengths=("/api/extra/true_max_context_length", "/v1/model"),
    passes=(
        *("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/tokenize", "/detokenize", "/rerank", "/v1/rerank"),
    ),
    versions="any",
)
"""What is asked of a server that was not recognised."""

BACKENDS: Final = {
    backend.name: backend
    for backend in (
        OPENAI,
        GENERAL,
        VLLM,
        FURIOSA,
        LLAMACPP,
        LLAMACPP_NATIVE,
        LLAMA_CPP_PYTHON,
        CORTEX,
        SGLANG,
        TGI,
        OLLAMA,
        MLX_LM,
        LMSTUDIO,
    )
}

_BY_NAME: Final = {
    "auto": GENERAL,  # until the server is asked what it is
    **{alias: backend for backend in BACKENDS.values() for alias in backend.aliases},
    **BACKENDS,
}


def find(name: str) -> Backend:
    """Return the backend of this name or alias; raise ValueError that lists the names."""
    found = _BY_NAME.get(name.strip().lower())
    if found is not None:
        return found
    near = get_close_matches(name.strip().lower(), _BY_NAME, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown adapter {name!r}.{hint} Known: {', '.join(('auto', *BACKENDS))}")
