"""LM Studio's local server, from 0.3.15 to 0.4; its source is closed.

Known deviations of /v1/chat/completions:

- no logprobs: null, whatever was asked for (lmstudio-ai/lms issue #60, open in 2026-06).
- `tool_choice` is "none", "auto" or "required"; an object is a 400 (lmstudio-bug-tracker issue
  #670, open; the documentation's issue #177 of 2026-02).
- `response_format` is a json_schema; json_object is a 400 (issue #189), and text was one before
  about 0.3.9 (issue #307).
- a streamed call's id may be "".
- errors are {"error": text}; one in a stream follows a line `event: error`.

Its documentation names model, messages, stream, stop, max_tokens, temperature, top_p, both
penalties, logit_bias and seed as what it reads; tools and json_schema have pages of their own. What
is not named is refused here, or done by the proxy. It is known to ignore reasoning_effort at this
endpoint for some models.

Sources: https://lmstudio.ai/docs/developer/openai-compat/chat-completions (2026-04), the issues
named above, the samples of 0.2 to 0.4. Nothing here was tried against it.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows

UNNAMED: Final = "LM Studio's documentation does not name it. Leave it out."
SILENT: Final = "LM Studio tells none. Leave it out."

SEED: Final = Support(note="-1 is a seed like others", form=forms.never_random)

CHAT: Final = (
    rows("model messages stream stop max_tokens temperature top_p logit_bias")
    | rows("frequency_penalty presence_penalty tools tool_choice")
    | usual.CHAT
    | rows("tool_choice.none tool_choice.required response_format.json_schema")
    | {
        "messages.reasoning_content": usual.AS_BOTH,
        "seed": SEED,
        "response_format": Support(form=forms.object_by_schema),
        "response_format.json_object": Support("emulated", note="as a schema of any object"),
        "tool_choice.function": Support("emulated", form=forms.only_named_tool),
        "messages.image_url": Support(note="data: URLs"),
    }
    | rows("logprobs top_logprobs", "refused", note=SILENT)
    | rows("reasoning_effort", "refused", note=UNNAMED)
    | rows("messages.input_audio messages.file tools.custom", "refused")
    | rows("verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt stream stop max_tokens temperature top_p logit_bias")
    | rows("frequency_penalty presence_penalty")
    | {"seed": SEED}
    | usual.TEXTS_ALONE
    | rows("logprobs", "refused", note=SILENT)
    | rows("suffix", "refused", note="Put it into the prompt, in the model's own form.")
)

LMSTUDIO: Final = Backend(
    name="lmstudio",
    title="LM Studio",
    aliases=("lm-studio", "lm_studio"),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    least_tokens=1,
    lengths=("/api/v0/models",),
    passes=("/v1/embeddings", "/v1/responses", "/v1/messages"),
    versions="0.3.15 to 0.4",
)
