r"""cortex.llamacpp (janhq/cortex.llamacpp), the engine of Jan and Cortex, to 2025-05.

Known deviations of /v1/chat/completions:

- streams: finish_reason is "" on every chunk before the end, `id` is new in every chunk, `model` is
  "_", every delta repeats the role, an empty chunk precedes the end.
- with `include_usage` no chunk has a finish_reason: the usage chunk takes the last one's place.
- finish_reason is "stop" where the limit was reached too, which the count tells; before 9f3429d
  (2024-11-01) a body's is null. A limit of 1 or 2 gives 3 tokens.
- logprobs since 9f3429d: those of probabilities up to 48db294 (2024-11-12), since then
  log(p + 2.2e-16), so none is below -36. Before 9f3429d a stream that is asked for `n_probs` has
  JSON of them as its content, so they are asked for by OpenAI's names alone.
- an entry's own value is that of the best candidate, whichever token was sampled.
- a token of one byte above 0x7f reads `byte: \xa9`, with the bytes of that text; the tokens before
  the last one of a character have no entry. A body has an entry of the end-of-text token.
- the text's leading spaces are trimmed off, not those of its first entry.
- no `refusal`; `logprobs` only where there are data.
- `n` is for bodies alone, their usage is that of the first choice, and a choice that failed is left
  out; hence it is never sent.
- tools (cortex.cpp 1.0.1 to 1.0.12) are a prompt in words and a pattern in a body's text; a stream
  with tools is empty. Bodies name the tool_choice beside `choices`.
- errors are {"message": ...}, in a failed inference with status 200; a failed stream just ends.

Of the request it reads `max_tokens` (500 if absent, -1 for no limit), `logprobs` and
`top_logprobs`, `stop` as a list alone, of which "" ends the answer at once, `seed` within 32 bits,
of a content of parts the first text, and `response_format` (since a51c2c5, 2024-12), whose
json_object is any object; `max_completion_tokens` is not read.

cortex.cpp 1.0.13 and later (2025-04) runs llama-server instead and hands it the request, with these
keys and `logit_bias` as before; a route to that server's own port does more. Asked for logprobs,
its body is empty, which is an error here, and its stream has none and no chat template. Streams
lack the chunk that has the counts.

Sources: src/llama_engine.cc, src/llama_server_context.cc and src/chat_completion_request.h at
9f3429d, 48db294, a51c2c5, a73aa5a (2025-03) and 045c8e7 (2025-05); of janhq/cortex.cpp
engine/services/inference_service.cc and engine/utils/function_calling/common.h at 1.0.12 and
engine/extensions/local-engine/local_engine.cc at ee9e0ad (2025-07); the sample of a stream.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import forms_narrow as narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows

WORDS: Final = "It only asks the model in words. Offer the tool alone, with tool_choice 'auto'."
CHAT: Final = (
    rows("stream", form=narrow.ask_usage)  # before the form of stream_options
    | rows("model max_tokens temperature top_p frequency_penalty presence_penalty")
    | rows("logprobs top_logprobs", note="since 2024-11 (0.1.37)")
    | rows("response_format", note="since 2024-12 (0.1.40)")
    | rows("response_format.json_object response_format.json_schema", note="since 2024-12 (0.1.40)")
    | usual.CHAT
    | {
        "messages.reasoning_content": usual.WITHOUT_REASONING,
        "messages": Support(note="texts joined", form=narrow.join_texts),
        "stop": Support(form=narrow.texts_to_stop),
        "seed": Support(note="its lowest 31 bits", form=narrow.small_seed),
        "logit_bias": Support(note="since 2024-10 (0.1.37)", form=narrow.bias_by_id),
        "tools": Support(note="cortex.cpp 1.0.1 to 1.0.12, in words; a stream is made of a body"),
        "tool_choice": Support(),
        "tool_choice.allowed_tools": Support(
            "emulated", note="only these are offered; mode auto alone", form=forms.offer_allowed
        ),
    }
    | rows("tool_choice.required tool_choice.function", "refused", note=WORDS)
    | rows("reasoning_effort", "refused", note="Its templates take no variables: leave it out.")
    | rows("messages.image_url messages.input_audio messages.file", "refused", note="Send text.")
    | rows("tools.custom", "refused", note="Offer a function with one string as parameter.")
    | rows("verbosity", "refused", note="Ask for it in the system message.")
    | rows("modalities audio web_search_options", "refused")
)

CORTEX: Final = Backend(
    name="cortex",
    title="cortex.llamacpp",
    aliases=("cortex.llamacpp", "jan"),
    chat_table=CHAT,
    no_limit=-1,  # else 500
    pairs_best=True,
    unstreamed=frozenset({"tools", "functions"}),
    passes=("/v1/embeddings",),
    versions="2024-11 to 2025-05",
    completions=None,
)
