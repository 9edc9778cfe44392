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
- before 0.6.4 `max_completion_tokens` is unknown (vllm-project/vllm pull request #9837, 2024-10-31)
  and several of those versions refuse unknown keys; every version up to 0.32 takes `max_tokens`.

Known deviations of /v1/completions, 0.32:

- `text_offset` counts from the answer's start, and does not move over parts of characters; a part
  is "" in `tokens`, and all parts among the alternatives share that one key.
- `echo` beside `return_token_ids` leaves the prompt out of the text, not out of the logprobs.
- `echo` with `n` above 1, streamed: the second choice fails, its error's message a token id.
- `echo` with `max_tokens: 0` counts one completion token.

Sources: captures of 0.3.3 and 0.4.2 (their serving code over a stub engine) and of 0.32.0 on a CPU,
the project's issues and release notes, and `make live-vllm` (tests/live/vllm, 0.32.0) for all that
says 0.32.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.backend import Backend

VLLM: Final = Backend(
    name="vllm",
    title="vLLM",
    deviations="legacy chat logprobs (<= 0.4.2), stop_reason, token_id:N, abort, flat errors",
    limit="max_tokens",
    detokenize="/detokenize",
    unstreamed=frozenset({"prompt_logprobs", "echo"}),  # a 400; with n an error in mid-stream
    knows=frozenset({"user"}),
    versions="0.2 to 0.33",
    several=True,
    scores="backend",
)
