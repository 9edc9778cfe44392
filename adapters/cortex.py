r"""cortex.llamacpp (janhq/cortex.llamacpp), the engine of Jan and Cortex, to 2025-05.

Known deviations of /v1/chat/completions:

- streams: finish_reason is "" on every chunk before the end, `id` is new in every chunk, `model` is
  "_", every delta repeats the role, an empty chunk precedes the end.
- with `include_usage` no chunk has a finish_reason: the usage chunk takes the last one's place.
- finish_reason is "stop" where the limit was reached too; before 9f3429d (2024-11-01) a body's is
  null.
- logprobs since 9f3429d: those of probabilities up to 48db294 (2024-11-12), since then
  log(p + 2.2e-16), so none is below -36. Before 9f3429d a stream that is asked for `n_probs` has
  JSON of them as its content, so they are asked for by OpenAI's names alone.
- an entry's own value is that of the best candidate, whichever token was sampled.
- a token of one byte above 0x7f reads `byte: \xa9`, with the bytes of that text; the tokens before
  the last one of a character have no entry. A body has an entry of the end-of-text token.
- the text's leading spaces are trimmed off, not those of its first entry.
- no `refusal`; `logprobs` only where there are data.
- `n` is for bodies alone, and their usage is that of the first choice.
- errors are {"message": ...}, in a failed inference with status 200; a failed stream just ends.

Of the request it reads `max_tokens` (500 if absent, -1 for no limit), `logprobs` and
`top_logprobs`, and `stop` as a list alone; `max_completion_tokens` is not read.

Sources: src/llama_engine.cc, src/llama_server_context.cc and src/chat_completion_request.h at
9f3429d, 48db294 and a73aa5a (2025-03); the sample of a stream.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.backend import Backend

CORTEX: Final = Backend(
    name="cortex",
    title="cortex.llamacpp",
    deviations='finish_reason "" in streams, a new id a chunk, the best value for every token',
    aliases=("cortex.llamacpp", "jan"),
    limit="max_tokens",
    many=False,
    no_limit=-1,  # else 500
    pairs_best=True,
    versions="2024-11 to 2025-05",
    completions=None,
)
