"""Furiosa-LLM's server (`furiosa-llm serve`) at 2026.4.0; its API follows vLLM's.

Known deviations of /v1/chat/completions:

- `logprobs` without `refusal`, and none where `top_logprobs` is absent; `tool_calls: []` and a null
  `reasoning`, `stop_reason` and `token_ids` on plain answers.
- a character that is split over tokens is U+FFFD with that character's bytes; with
  `return_tokens_as_token_ids` a token's bytes are those of the text `token_id:N`.
- the end-of-text token has an entry of its own.
- `prompt_logprobs` is a map keyed by token id in which ids are strings; `return_token_ids` adds
  `prompt_token_ids`, in a stream to the role chunk, and a choice's `token_ids`, in a stream to each
  chunk. They pass as they are, being asked for by name. A stream has no `prompt_logprobs`.
- `n` above 1 is refused. `seed`, `logit_bias`, both penalties, `user` and the like are ignored.
- errors are flat objects with an int `code`, in a stream within `error`; usage and [DONE] follow.

Of /v1/completions: the same, with the prompt's keys on the choice; `echo` and `suffix` are ignored,
`text_offset` counts from 0 in every chunk, one alternative more than was asked for, and
`max_tokens` 0 is refused.

Sources: furiosa-llm 2026.4.0, server/protocol.py, serving_chat.py, serving_completions.py and
sampling_params.py; the page "OpenAI-Compatible API with Logprobs" of the Furiosa SDK's
documentation; the samples of 2026.4.0.
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
    many=False,
    least_tokens=1,
    unstreamed=frozenset({"prompt_logprobs"}),
    versions="2026.4",
)
