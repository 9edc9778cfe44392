"""Text Generation Inference (huggingface/text-generation-inference), from 1.4 to 3.3.

Known deviations of /v1/chat/completions:

- 1.4.0: `logprobs` is a list of numbers, streamed one number, and the end-of-text token is content.
  To 1.4.3 a stream's `index`, that of a choice and of its call, is the token's number, from 1.
  By 1.4.5 they have OpenAI's form without `bytes` and `refusal`; special tokens have an entry and
  no text.
- finish_reason is "stop_sequence" where a stop string was met, and "eos_token" before 2.3.
- 2.0 to 3.1: a streamed `tool_calls` is an object; from 3.2 an array of one, its name null but in
  the first piece. A call's id is "0"; a body's has a null `description`. It makes one at most.
- `id` is "", and a role stands in every delta; no [DONE] before 2.2.
- errors are {"error": text, "error_type": ...} with 422 or 424, a request that does not fit its
  types is plain text; from 2.4.1 a stream tells an `http_status_code` within `error`, before it
  nothing.
- without `max_tokens` answers are cut at 100 tokens before 3.0. No number would mean "no limit":
  what is above the server's --max-total-tokens is refused.
- a `model` other than "tgi" is taken for the name of a LoRA adapter, an unknown one for none.
- an assistant's message with both text and calls loses the calls.
- no token's id, in logprobs either (ChatCompletionLogprob in router/src/lib.rs).

Known deviations of /v1/completions: the same id; a stream's finish_reason is "" before the end and
`eos_token` there; no logprobs; the last chunk tells the usage, asked for or not; the end-of-text
token's name is the last chunk's text.

Of the request it does not read n, best_of, logit_bias, echo, user, parallel_tool_calls and what is
newer; `logit_bias` has to be an array. `presence_penalty` sets a repetition penalty of 2 more than
it says, which is another thing; so did `frequency_penalty` in 1.4.0. `top_p` has to be between 0
and 1, `stop` a list, `seed` not negative, `top_logprobs` 5 at most (that is --max-top-n-tokens),
`max_tokens` 1 at least. A grammar is a schema with `properties`, and goes with no tools. From 3.0.2
it knows `max_completion_tokens`, from 2.3 `stream_options`, from 2.4.1 `tool_choice` "required",
from 2.1 `response_format`, as a grammar. Before 2.4 tools that are offered have to be called, or
the function `notify_error` that it adds.

Sources: router/src/lib.rs, server.rs, chat.rs, validation.rs, infer/mod.rs, infer/chat_template.rs
and infer/tool_grammar.rs of the repository from v1.4.0 to v3.3.7, launcher/src/main.rs; the samples
of 1.4, 2.4.1 and 3.3.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows
from wellspoken.adapters.tokens.tokenize import Tokenize

UNREAD: Final = "TGI does not read it. Leave it out."
NO_IDS: Final = Support(
    "refused",
    note="TGI tells ids at POST /generate alone, as details.tokens. Name it in the backend's "
    "`endpoints` and ask there, or leave the parameter out.",
)
OTHER: Final = "TGI makes a repetition penalty of it. Send frequency_penalty."

FREQUENCY: Final = Support(since="1.4.1")
CUT: Final = Support("emulated", note="cut by the proxy")
STOP: Final = Support(form=forms.stop_list, since="1.4.4", older=CUT)
SEED: Final = Support(form=forms.natural_seed)
TOP_P: Final = Support(
    note="0 is sent as 1e-6 and 1 not at all, since TGI refuses both", form=forms.inner_top_p
)

CHAT: Final = (
    rows("model stream temperature logprobs tool_choice tool_choice.function")
    | usual.CHAT
    | {
        "messages.reasoning_content": usual.WITHOUT_REASONING,
        "messages": Support(form=forms.calls_alone),
        "seed": SEED,
        "stop": STOP,
        "top_p": TOP_P,
        "frequency_penalty": FREQUENCY,
        "max_tokens": Support(note="without it 100, before 3.0"),
        "top_logprobs": Support(note="5 at most, or --max-top-n-tokens"),
        "stream_options": Support(form=forms.usage_alone, since="2.3.0", older=usual.COUNTED),
        "response_format": Support(form=forms.schema_as_grammar),
        "response_format.json_schema": Support(note="not beside tools", since="2.1.0"),
        "tools": Support(form=forms.describe_tools, since="1.4.3"),
        "tool_choice.required": Support(since="2.4.1"),
        "parallel_tool_calls": Support("accepted", note="it makes one call at most"),
        "messages.image_url": Support(since="2.0.2"),
    }
    | {"return_token_ids": NO_IDS}
    | rows("presence_penalty", "refused", note=OTHER)
    | rows("logit_bias reasoning_effort", "refused", note=UNREAD)
    | rows("response_format.json_object", "refused", note="Send a json_schema with properties.")
    | rows("messages.input_audio messages.file tools.custom", "refused")
    | rows("verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt stream max_tokens temperature")
    | {"seed": SEED, "stop": STOP, "top_p": TOP_P, "frequency_penalty": FREQUENCY}
    | usual.TEXTS_ALONE
    | rows("stream_options", "emulated", note="its last chunk tells the usage, asked or not")
    | rows("suffix", "refused", note="Put it into the prompt, in the model's own form.")
    | {"return_token_ids": NO_IDS}
    | rows("presence_penalty", "refused", note="Send frequency_penalty.")
    | rows("logit_bias", "refused", note=UNREAD)
)
TOKENIZE: Final = Tokenize(path="/tokenize", text="inputs", ends=True)

TGI: Final = Backend(
    name="tgi",
    title="TGI",
    aliases=("text-generation-inference",),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    least_tokens=1,
    tokenize=TOKENIZE,
    lengths=("/info",),
    passes=("/tokenize", "/chat_tokenize"),
    versions="1.4 to 3.3",
)
