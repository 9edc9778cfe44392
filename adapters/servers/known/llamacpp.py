"""llama.cpp's HTTP server (`llama-server`; xllamacpp holds the same code), from b4240 to b11549.

Known deviations of /v1/chat/completions:

- no `refusal`; `logprobs` only where there are data; extra `timings` and a token's `id`;
  `__verbose` when asked; `content: null` in a stream's role chunk.
- `logprobs: true` alone gives 20 alternatives, `top_logprobs: 0` none and no entries.
- a character that is cut over tokens is one entry that holds all its bytes.
- a body's last entry may be the end-of-text token (token "", bytes []).
- with a stop string as many entries are dropped as that string has tokens.
- a stream holds text back that may begin a stop string, and where the limit ends the answer it is
  never sent; so at /v1/completions and /completion too. A body has it.
- `verbose` in a request adds `__verbose`, its own answer with the `tokens` (pull request #24864 of
  2026-06; b11549); a server of b7376 has it by its command line alone. Its /completion tells the
  `tokens` of every build since 2024-12, so that is asked instead of /v1/completions.
- past calls whose arguments are no JSON are a 500 (b11549, not b7376).
- tools, `stream` and `logprobs` together are a 400, whatever `tool_choice` says.
- a part of a message that the model cannot read (an image) is a 500.
- a seed is taken modulo 2**32, of which the greatest means a random one.
- penalties look at the last 64 tokens, the prompt's too.
- `parallel_tool_calls: false` does not bind (b11549; the calls stage keeps one).
- `reasoning_effort` is known since 2026 (b11549); b7376 ignores it, and takes
  `chat_template_kwargs`.
- b7376: JSON without a schema is any value; beside tools it is put into an object of its own, which
  is content at `tool_choice: "none"` and else, where it is no call, a 500 "Content path".
- 2024-04 to mid-2025: usage and timings, unrequested, on the finish chunk; `created` differs
  between chunks.
- what a broken character leaves at an answer's end is U+FFFD in the text, without an entry.
- a stream's connection is closed after its end, although the head says keep-alive (b7376, b11549).
- errors have an int `code` and no `param`; up to late 2025 a failure in a stream is a nonstandard
  SSE field `error:` after the 200, and a context overflow may be its first event.
- a grammar names tokens by id since 2025-12 (pull request #17816); one that cannot be followed ends
  the whole server (b7376), or is a 500 (b11549).
- before pull request ggml-org/llama.cpp#19831 (2026-02) `max_completion_tokens` is ignored and the
  answer is unlimited (issue #13700); `max_tokens` works in every version.

Known deviations of /v1/embeddings: `dimensions` is ignored; a base64 entry says `encoding_format`
too; NaN is null (issue #14812); before 2024-12 base64 is ignored (issue #10887) and usage is zeros
(issue #5987). Its own /embeddings answers a bare list, each vector in a list of its own (without
pooling one vector for each token), without usage. Errors of /v1/messages are not Anthropic's.

Sources: captures of b11549, the samples of b4240 and later, the issues named above.
"""

from __future__ import annotations

import re
from typing import Final

from wellspoken.adapters.servers import forms, forms_narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows
from wellspoken.adapters.tokens.tokenize import COMMON, Tokenize

PAGE: Final = re.compile(
    r"/(_app/[\w./-]+|props|([\w-]+\.)+(css|html|ico|js|png|svg|webmanifest))?", re.ASCII
)
"""The web page of 2023 to b11549: /, files beside it, SvelteKit's /_app/; it reads /props."""

TOKEN_IDS: Final = Support(
    note="from its own answer, which `verbose` puts beside; the prompt's by /tokenize",
    form=forms_narrow.verbose_ids,
)
CHAT: Final = (
    rows("model stream stop max_tokens temperature top_p")
    | rows("messages", form=forms_narrow.json_arguments)
    | rows("frequency_penalty presence_penalty", note="over the last 64 tokens, the prompt's too")
    | rows("logprobs top_logprobs tool_choice tool_choice.required response_format")
    | rows("response_format.json_object response_format.json_schema", form=forms.schema_of_object)
    | rows("messages.image_url messages.input_audio")
    | usual.CHAT
    | {
        "seed": Support(form=forms.never_random),
        "logit_bias": Support(form=forms.bias_pairs),
        "tools": Support(form=forms.describe_tools),  # b7376 answers 500 without
        "tool_choice.none": Support(form=forms.no_tools_beside_format),
        "parallel_tool_calls": Support(note="further calls are dropped at false"),
        "tool_choice.function": Support("emulated", form=forms.only_named_tool),
        "reasoning_effort": Support(form=forms.effort_for_template),
        "return_token_ids": TOKEN_IDS,
    }
    | rows("messages.file tools.custom verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream stop max_tokens temperature top_p logprobs")
    | rows("frequency_penalty presence_penalty", note="over the last 64 tokens, the prompt's too")
    | usual.COMPLETIONS
    | {
        "seed": Support(form=forms.never_random),
        "echo": Support("emulated", note="computed from the prompt's tokens"),
        "logit_bias": Support(form=forms.bias_pairs),
        "return_token_ids": Support(key="return_tokens", note="by /completion and /tokenize"),
    }
    | rows("suffix", "refused", note="Leave it out; llama.cpp fills in at POST /infill.")
)
TOKENIZE: Final = Tokenize(
    path="/tokenize",
    text="content",
    special="add_special",
    chat="/apply-template",
    templates=True,
    reads=(
        *COMMON,
        *("tool_choice", "parallel_tool_calls", "response_format", "json_schema", "grammar"),
        *("enable_thinking", "reasoning_format", "reasoning_effort"),
    ),
    ends=True,
)

PASSES: Final = (
    *("/v1/embeddings", "/embeddings", "/v1/responses", "/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"),
    *("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"),
)
"""As of 2026-07 (tools/server/server.cpp at 00dd081); an older one answers 404 to what it lacks."""

ROUTES: Final = "/props?autoload=false&model="
"""Where a router (2025-12) tells of one of its models; it is asked of loaded ones alone, since the
first routers loaded whatever model was asked about."""

LLAMACPP: Final = Backend(
    name="llamacpp",
    title="llama.cpp",
    aliases=("llama.cpp", "llama-cpp", "llama-server"),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    detokenize="/detokenize",
    computes=True,
    sizes="/v1/models",
    lengths=("/props",),
    routes=ROUTES,
    tokenize=TOKENIZE,
    versions="b4240 to b11549",
    native="/completion",
    loses_entries=True,
    withholds_text=True,
    counting="timings_per_token",
    unstreamed=frozenset({"return_token_ids"}),  # what begins a character has no event
    apart=(frozenset({"tools", "logprobs"}), frozenset({"functions", "logprobs"})),
    passes=PASSES,
    ui=PAGE,
)
