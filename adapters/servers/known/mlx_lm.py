"""mlx-lm's server (`mlx_lm.server`, ml-explore/mlx-lm), from 0.31.3 to 0.32.2.

Known deviations of /v1/chat/completions:

- no logprobs in streams. In a body the entries are {id, logprob} of the sampled tokens, or, where
  `top_logprobs` was asked for (0.30.6 and later), the first of the best tokens, which need not be
  the sampled one, spelled as the vocabulary does and without bytes.
- to 0.30.4 the arrays of the completions endpoint instead, of ids; finish_reason "tool_call".
- a role in every delta; `reasoning`; an id is a UUID; no `refusal`; arguments that the model broke
  pass as they are.
- a stream waits as comments that tell the prompt's progress.
- errors are {"error": text}, 400 for what it cannot read and 404 for a model that it cannot load: a
  `model` that it does not have it tries to fetch, so a route should say its name for it.

Known deviations of /v1/completions: the same; logprobs have the form of the chat endpoint, and are
asked for as there. A prompt is one text.

Of the request it does not read n, best_of, echo, suffix, user, tool_choice, parallel_tool_calls,
response_format, reasoning_effort and what is newer. Without `max_tokens` an answer is cut at 512
tokens (--max-tokens), and nothing cuts it at the model's context. `top_logprobs` is 11 at most.
`stream_options` without `include_usage` breaks its stream.

Sources: mlx_lm/server.py of the wheels 0.24.0, 0.26.0, 0.28.0, 0.30.4, 0.31.0, 0.31.3 and 0.32.2;
the samples of 0.30.4 and 0.31.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import forms_narrow as narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows

UNREAD: Final = "mlx-lm does not read it. Leave it out."
NO_LIMIT: Final = 32_768
"""What is asked for where the client sets no limit: it has to be a number, and 512 is too few."""

PENALTY: Final = Support(since="0.31.3")
TOKEN_IDS: Final = Support(
    note="`token_ids` alone, and not beside logprobs", form=narrow.sampled_ids, since="0.31.3"
)
SEED: Final = Support(form=forms.natural_seed, since="0.28.0")

CHAT: Final = (
    rows("model messages stream stop max_tokens temperature top_p logit_bias logprobs tool_choice")
    | usual.CHAT
    | {
        "messages.reasoning_content": usual.AS_BOTH,
        "return_token_ids": TOKEN_IDS,
        "seed": SEED,
        "frequency_penalty": PENALTY,
        "presence_penalty": PENALTY,
        "top_logprobs": Support(note="11 at most", since="0.31.3"),
        "reasoning_effort": Support(
            note="as a variable of the template",
            form=forms.effort_for_template,
            since="0.31.0",
        ),
        "tools": Support(form=forms.describe_tools),
        "tool_choice.allowed_tools": Support("emulated", form=forms.offer_allowed_if_auto),
        "messages.image_url": Support(since="0.32.0"),
    }
    | rows("tool_choice.required tool_choice.function", "refused", note='Send "auto".')
    | rows("response_format response_format.json_object", "refused", note=UNREAD)
    | rows("response_format.json_schema", "refused", note=UNREAD)
    | rows("messages.input_audio messages.file tools.custom", "refused")
    | rows("verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt stream stop max_tokens temperature top_p logit_bias")
    | {"seed": SEED, "frequency_penalty": PENALTY, "presence_penalty": PENALTY}
    | usual.TEXTS_ALONE
    | {"return_token_ids": TOKEN_IDS}
    | rows("suffix", "refused", note="Put it into the prompt, in the model's own form.")
)

MLX_LM: Final = Backend(
    name="mlx-lm",
    title="mlx-lm",
    aliases=("mlx_lm", "mlx"),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    no_limit=NO_LIMIT,
    least_tokens=1,
    unstreamed=frozenset({"logprobs", "return_token_ids"}),
    versions="0.31.3 to 0.32.2",
)
