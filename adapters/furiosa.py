"""Furiosa-LLM's server (`furiosa-llm serve`), seen at 2026.4.0; its API follows vLLM's.

Known deviations of /v1/chat/completions:

- `logprobs` without `refusal`; `top_logprobs` is [] when it was asked with 0.
- a token that is part of a character has a placeholder text or bytes, as vLLM's has.
- `prompt_logprobs` is a map keyed by token id in which ids are strings; `return_token_ids` adds
  `prompt_token_ids` and a choice's `token_ids`. Both pass as they are, being asked for by name.
- errors are flat objects with an int `code`.

Source: the samples of 2026.4.0 and the "OpenAI-Compatible Server" page of the Furiosa SDK's
documentation.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.backend import Backend

FURIOSA: Final = Backend(
    name="furiosa",
    title="Furiosa-LLM",
    deviations="logprobs without refusal, placeholder bytes, flat errors with an int code",
    aliases=("furiosa-llm", "furiosallm"),
    limit="max_tokens",
)
