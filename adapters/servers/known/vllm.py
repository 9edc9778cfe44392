"""vLLM (vllm-project/vllm), from 0.3.3 to 0.33.

Known deviations of /v1/chat/completions:

- 0.3.3 to 0.4.2: a choice's `logprobs` have the form of the completions endpoint (`text_offset`,
  `tokens`, `token_logprobs`, `top_logprobs` as maps), streamed only the maps; 0.3.3 spells tokens
  as the vocabulary does; `logprobs: true` without `top_logprobs` is refused.
- up to 0.3.3: `created` is a monotonic clock, not epoch seconds.
- from 0.4.0: `stop_reason` on every choice, a stop string or a token id.
- 0.4.3 to 0.11: `tool_calls: []` on plain answers; up to 0.6.2 a streamed call ends in "stop".
- 0.5.4 and later with --return-tokens-as-token-ids: tokens are `token_id:N`.
- all: a character split over tokens is U+FFFD with that character's bytes, or "" with none. 0.32:
  its last token tells the whole character (" café" for the second byte of é), a part that the
  limit kept from becoming whole is an entry and not in the text, and so is a control token that was
  sampled, in the middle of the others.
- all: the stop string's and the end's tokens are entries; the alternatives begin with the sampled
  token, whatever its rank.
- 0.7 to 0.11: `reasoning_content`, about 0.16 and later `reasoning`, between them both.
- V1 engine: finish_reason `abort` in a 200 when a request is aborted; `repetition` for a cut loop.
- 0.32: what the engine refuses after a stream began (`logit_bias`, `top_logprobs`) is a 200 with
  one error event, and so ends a stream whose engine died; [DONE] follows both, and `abort`.
  A server ended by SIGTERM may kill its engine before that told of the aborted requests: then
  nothing more comes and the connections stay open.
- 0.32: a forced call that the limit cut is markup in a body's content, and a call in a stream; the
  arguments are spaced in a body only; a named call ends in "stop".
- up to about 0.10: errors are flat objects with an int `code`; before 0.4.1 a logprob of -inf is a
  plain-text 500.
- a model that reads text alone: "... is not a multimodal model", 400. 0.32 names a parameter of a
  wrong type or value from the body on (`body.tools.0.type`).

What its versions know of a request (vllm-project/vllm, pull requests): unknown keys are ignored up
to 0.4.1 and from 0.6.5, refused in between (#4355, #10463). `seed` from 0.3.2 (#2514), `logit_bias`
and a chat's logprobs 0.3.3 (#3027, #2918), `response_format` json_object 0.4.0 (#3211) and
json_schema 0.6.0 (#7654; before, `guided_json`), `stream_options` 0.5.0 (#5135, #5319), tools 0.5.0
if named (#5032), 0.6.0 with parsers (#5649), `tool_choice` none 0.6.4, required 0.8.3 (#13483),
`max_completion_tokens` 0.6.4 (#9837), `parallel_tool_calls` taken from 0.6.0 and heeded from 0.12.0
(#26233). `reasoning_effort` from 0.10.1 for gpt-oss alone (#22342), then for templates (#31956,
2026-01; "none" #36238; enable_thinking #43401, 2026-05). A template that does not know the role
developer gets system from 0.28 at the latest (#43590); before, most of them dropped the message.
`return_token_ids` from 0.10.2 (#22587).
Past `reasoning_content` is read from 0.12 (#28531), from 0.16 as `reasoning` alone (#27752,
#33402), later by both names (#42664).
`best_of` and `guided_*` went in 0.12 (#29090, #29326), and are ignored since. `use_beam_search`
gives `n` beams in every version, the best first, and no stream of completions.

Known deviations of /v1/completions, 0.32:

- `text_offset` counts from the answer's start, and does not move over parts of characters; a part
  is "" in `tokens`, and all parts among the alternatives share that one key.
- `echo` beside `return_token_ids` leaves the prompt out of the text, not out of the logprobs.
- `echo` with `n` above 1, streamed: the second choice fails, its error's message a token id.
- `echo` with `max_tokens: 0` counts one completion token; the answer has none.

Known deviations of /v1/embeddings: `id`, `created` and a completion's usage (0.32); base64 is
refused up to 0.5.0 (pull request #5935).

Sources: captures of 0.3.3 and 0.4.2 (their serving code over a stub engine) and of 0.32.0 on a CPU,
the project's history, issues and release notes, and `make live-vllm` (tests/live/vllm, 0.32.0) for
all that says 0.32.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows
from wellspoken.adapters.tokens.tokenize import Tokenize

CALLS_DROPPED: Final = "the calls after the first are dropped, as vLLM does from 0.12 on"

TOOLS: Final = Support(
    note="with --enable-auto-tool-choice and a parser that knows the model's calls",
    since="0.6.5",
    older=Support(
        note="without `strict`, which these versions refuse",
        form=forms.lax_tools,
        since="0.6.0",
        older=Support(
            note="only beside a tool_choice that names one",
            form=forms.refuse_unnamed_tool,
            since="0.5.0",
        ),
    ),
)
EFFORT: Final = Support(
    note="for models whose template knows it",
    since="0.24.0",  # from 0.14 to 0.23 template by template: none, minimal, enable_thinking
    older=Support(
        note="also as a variable of the template",
        form=forms.effort_in_both,
        since="0.6.5",
        older=Support(
            note="as a variable of the template",
            form=forms.effort_for_template,
            since="0.5.1",
        ),
    ),
)
USAGE: Final = Support(
    note="include_obfuscation is not sent",
    form=forms.usage_alone,
    since="0.5.0",
    older=usual.COUNTED,
)
TOKEN_IDS: Final = structs.replace(usual.TOLD, since="0.10.2")
USER: Final = Support(note="taken and ignored")

CHAT: Final = (
    rows("model messages stream stop max_tokens temperature top_p")
    | rows("frequency_penalty presence_penalty tool_choice tool_choice.function")
    | rows("messages.image_url messages.input_audio", note="400 for a model that reads text alone")
    | usual.CHAT
    | {
        "n": Support(),
        "user": USER,
        "seed": Support(since="0.3.2"),
        "logit_bias": Support(since="0.3.3"),
        "logprobs": Support(since="0.3.3"),
        "top_logprobs": Support(since="0.3.3"),
        "stream_options": USAGE,
        "tools": TOOLS,
        "tool_choice.none": Support(since="0.6.4", older=usual.WITHOUT_TOOLS),
        "tool_choice.required": Support(since="0.8.3"),
        "parallel_tool_calls": Support(
            since="0.12.0", older=Support("emulated", note=CALLS_DROPPED)
        ),
        "reasoning_effort": EFFORT,
        "response_format": Support(since="0.4.0"),
        "response_format.json_object": Support(since="0.4.0"),
        "response_format.json_schema": Support(
            since="0.6.0",
            older=Support(note="as guided_json", form=forms.schema_as_guide),
        ),
        "messages.developer": Support(
            note="as system, for a template that does not know it",
            since="0.28.0",
            older=usual.AS_SYSTEM,
        ),
        "messages.reasoning_content": structs.replace(
            usual.AS_REASONING, since="0.16.0", older=usual.AS_REASONING_CONTENT
        ),
        "return_token_ids": TOKEN_IDS,
    }
    | rows("messages.file tools.custom verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream n stop max_tokens temperature top_p")
    | rows("frequency_penalty presence_penalty logprobs")
    | {
        "user": USER,
        "seed": Support(since="0.3.2"),
        "logit_bias": Support(since="0.3.3"),
        "echo": Support(since="0.3.0"),
        "best_of": usual.BEST_OF,
        "stream_options": USAGE,
        "return_token_ids": TOKEN_IDS,
        "suffix": Support(note="400 by vLLM for a model that fills no gaps, and by older versions"),
    }
)
TOKENIZE: Final = Tokenize(
    path="/tokenize",
    text="prompt",
    special="add_special_tokens",
    chat="/tokenize",
    names_model=True,
    ends=True,
)

VLLM: Final = Backend(
    name="vllm",
    title="vLLM",
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    detokenize="/detokenize",
    passes=(
        *("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/tokenize", "/detokenize"),
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    tokenize=TOKENIZE,
    greedy_alone=True,  # "n must be 1 when using greedy sampling", in every version
    # a 400, the last for completions alone; echo with n an error in mid-stream
    unstreamed=frozenset({"prompt_logprobs", "echo", "use_beam_search"}),
    versions="0.2 to 0.33",
)
