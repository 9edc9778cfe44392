"""cortex.llamacpp (janhq/cortex.llamacpp), the engine of Jan and Cortex, in its state of 2025.

Known deviations of /v1/chat/completions:

- streams: finish_reason is "" until the end, `id` is new in every chunk, `model` is "_", every
  delta repeats the role.
- a logprob is log(p + 2.2e-16), so none is below -36; an entry's own value may be that of its best
  alternative instead of the sampled token's.
- of the request it reads `max_tokens` (500 if absent) and `n_probs`; `max_completion_tokens`,
  `logprobs` and `top_logprobs` are not read.

Sources: the sample of a stream, and the request's parser in src/chat_completion_request.h.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.backend import Backend

CORTEX: Final = Backend(
    name="cortex",
    title="cortex.llamacpp",
    deviations='finish_reason "" in streams, a new id a chunk, n_probs in place of top_logprobs',
    aliases=("cortex.llamacpp", "jan"),
    limit="max_tokens",
    alternatives="n_probs",
    asks_logprobs=False,
)
