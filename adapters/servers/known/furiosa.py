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
- `n` above 1 is refused. `seed`, `logit_bias`, both penalties, `parallel_tool_calls`, `user` and
  the like are ignored, and so is `reasoning_effort` but for gpt-oss.
- 400 for `top_p` 0, a forced call beside a response_format, and a tool_choice without tools.
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

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import forms_narrow as narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows

NO_SAMPLING: Final = "Its sampler has none: leave it out"
CHAT: Final = (
    rows("model messages stream stop max_tokens temperature logprobs top_logprobs")
    | rows(
        "tools",
        note="auto: with --enable-auto-tool-choice and --tool-call-parser",
        form=forms.describe_tools,  # a named one without a schema would be any text
    )
    | rows("response_format response_format.json_object response_format.json_schema")
    | rows(
        "tool_choice.required tool_choice.function",
        note="without response_format, which is refused beside it",
        form=narrow.call_without_format,
    )
    | usual.CHAT
    | rows("tool_choice tool_choice.none")
    | {
        "messages.reasoning_content": usual.AS_BOTH,
        "return_token_ids": usual.TOLD,
        "top_p": Support(form=narrow.above_zero),
        "reasoning_effort": Support(
            note="low, medium or high for gpt-oss, else a variable of the template",
            form=narrow.nearest_effort,
        ),
        "messages.image_url": Support(note="400 for a model that reads text alone"),
    }
    | rows("seed logit_bias", "refused", note=f"{NO_SAMPLING}.")
    | rows(
        "frequency_penalty presence_penalty",
        "refused",
        note=f"{NO_SAMPLING}, or send its own repetition_penalty (above 0, to 2).",
    )
    | rows("messages.input_audio messages.file", "refused", note="Send text or images.")
    | rows("tools.custom", "refused", note="Offer a function with one string as parameter.")
    | rows("verbosity", "refused", note="Ask for it in the system message.")
    | rows("modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream stop max_tokens temperature logprobs")
    | usual.COMPLETIONS
    | {"top_p": Support(form=narrow.above_zero), "return_token_ids": usual.TOLD}
    | rows("seed logit_bias", "refused", note=f"{NO_SAMPLING}.")
    | rows(
        "frequency_penalty presence_penalty",
        "refused",
        note=f"{NO_SAMPLING}, or send its own repetition_penalty (above 0, to 2).",
    )
    | rows("echo", "refused", note="Send its own prompt_logprobs for the prompt's logprobs.")
    | rows("suffix", "refused", note="Put the model's own infill prompt together yourself.")
)

FURIOSA: Final = Backend(
    name="furiosa",
    title="Furiosa-LLM",
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    aliases=("furiosa-llm", "furiosallm"),
    least_tokens=1,
    unstreamed=frozenset({"prompt_logprobs"}),
    passes=(
        *("/v1/embeddings", "/v1/responses"),
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    versions="2026.4",
)
