"""SGLang (sgl-project/sglang), from 0.4 to 0.5.23.

Known deviations of /v1/chat/completions:

- 0.4: a null role, reasoning_content and tool_calls in every delta; a stream may end without a
  finish_reason.
- from 0.3.4: `matched_stop` on every choice, a stop string or a token id; 0.5 adds `metadata` and
  `sglext` to bodies and `reasoning_tokens` at the top of the usage. An id is 32 hex digits alone.
- 0.5: a streamed call's later pieces have a null id and name.
- logprobs are those of the distribution that was sampled from: of the logits divided by the
  temperature (unless that is 0), unless the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1. That
  cannot be undone here, since only some tokens of it are told.
- up to 0.5.9: the bytes of a part of a character are those of U+FFFD.
- from 0.5.17: `return_token_ids` gives both lists on each choice of a body, in 0.5.23 the answer's
  as `response_token_ids`; a stream refuses it (pull request #30917).
- without `logprobs` where there are none; no `refusal`.
- errors are flat objects with an int `code`, in a stream within `error`, and [DONE] follows. A
  request that was aborted from elsewhere ends in finish_reason "abort" within a 200.

Known deviations of /v1/completions:

- `text_offset` is -1 everywhere; with `echo` the prompt begins with its BOS token, whose logprob is
  null, as is that of a prompt's first token.
- `max_tokens` of 0 is refused, and so is null, so there is no way to set no limit.
- `best_of` and `user` are ignored; `suffix` is too, but for a server with --completion-template.

Of the request: `logit_bias` is ignored before 0.4.8, `reasoning_effort` before 0.5.3, `seed` before
0.5.9 and later without --enable-deterministic-inference, `parallel_tool_calls` before 0.5.12.
`max_completion_tokens` is unknown before 0.4.7 and the role developer before 0.5.9; `input_audio`
before 0.5.16, but `audio_url` is older. Tools need a server with --tool-call-parser.

Sources: entrypoints/openai/protocol.py, serving_chat.py, serving_completions.py, utils.py,
serving_base.py and layers/sampler.py of the wheels 0.4.7 to 0.5.23; openai_api/protocol.py and
adapter.py of those of 0.3.4 and 0.4.6; the samples of 0.4.4 and 0.5.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows
from wellspoken.adapters.tokens.tokenize import COMMON, Tokenize

SEED: Final = Support(note="with --enable-deterministic-inference", since="0.5.9")
BIAS: Final = Support(since="0.4.8")
TOKEN_IDS: Final = structs.replace(usual.TOLD, since="0.5.17")

CHAT: Final = (
    rows("model messages stream stop max_tokens temperature top_p")
    | rows("frequency_penalty presence_penalty logprobs top_logprobs tools tool_choice")
    | rows("response_format response_format.json_object response_format.json_schema")
    | usual.CHAT
    | rows("n tool_choice.none messages.image_url")
    | {
        "seed": SEED,
        "logit_bias": BIAS,
        "tool_choice.required": Support(since="0.4.7"),
        "tool_choice.function": Support(since="0.4.7"),
        "parallel_tool_calls": Support(since="0.5.12", older=usual.FIRST_CALL),
        "reasoning_effort": Support(
            note="for models whose template knows it",
            since="0.5.3",
            older=Support(form=forms.effort_for_template, since="0.4.7"),
        ),
        "return_token_ids": TOKEN_IDS,
        "messages.input_audio": Support(
            note="as audio_url", form=forms.audio_as_url, since="0.4.6"
        ),
    }
    | rows("messages.file tools.custom verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream stop max_tokens temperature top_p echo")
    | rows("frequency_penalty presence_penalty logprobs")
    | usual.COMPLETIONS
    | {"n": Support(), "seed": SEED, "logit_bias": BIAS, "return_token_ids": TOKEN_IDS}
    | rows("suffix", "refused", note="Put it into the prompt, in the model's own form.")
)
TOKENIZE: Final = Tokenize(
    path="/tokenize",
    text="prompt",
    special="add_special_tokens",
    chat="/tokenize",
    reads=(*COMMON, "tool_choice", "reasoning_effort"),
    ends=True,
)
PASSES: Final = (
    *("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/rerank", "/v1/score", "/v1/classify"),
    *("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize"),
)
"""As of 0.5.23 (entrypoints/http_server.py); an older one answers 404 where it has none."""

SGLANG: Final = Backend(
    name="sglang",
    title="SGLang",
    aliases=("sgl", "sglang-srt"),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    least_tokens=1,
    detokenize="/detokenize",
    tokenize=TOKENIZE,
    lengths=("/get_server_info",),
    apart=(frozenset({"messages", "return_token_ids"}),),  # a chat's stream alone
    passes=PASSES,
    versions="0.4 to 0.5.23",
)
