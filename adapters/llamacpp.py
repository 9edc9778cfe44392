"""llama.cpp's HTTP server (`llama-server`; xllamacpp holds the same code), from b4240 to b11549.

Known deviations of /v1/chat/completions:

- no `refusal`; `logprobs` only where there are data; extra `timings` and a token's `id`;
  `__verbose` when asked; `content: null` in a stream's role chunk.
- `logprobs: true` alone gives 20 alternatives, `top_logprobs: 0` none and no entries.
- a character that is cut over tokens is one entry that holds all its bytes.
- a body's last entry may be the end-of-text token (token "", bytes []).
- with a stop string as many entries are dropped as that string has tokens.
- tools, `stream` and `logprobs` together are a 400.
- 2024-04 to mid-2025: usage and timings, unrequested, on the finish chunk; `created` differs
  between chunks.
- errors have an int `code` and no `param`; up to late 2025 a failure in a stream is a nonstandard
  SSE field `error:` after the 200, and a context overflow may be its first event.
- before pull request ggml-org/llama.cpp#19831 (2026-02) `max_completion_tokens` is ignored and the
  answer is unlimited (issue #13700); `max_tokens` works in every version.

Sources: captures of b11549, the samples of b4240 and later, the issues named above.
"""

from __future__ import annotations

import re
from typing import Final

from wellspoken.adapters.backend import Backend

PAGE: Final = re.compile(
    r"/(_app/[\w./-]+|props|([\w-]+\.)+(css|html|ico|js|png|svg|webmanifest))?", re.ASCII
)
"""The web page of 2023 to b11549: /, files beside it, SvelteKit's /_app/; it reads /props."""

LLAMACPP: Final = Backend(
    name="llamacpp",
    title="llama.cpp",
    deviations="no refusal, timings and ids, EOS entry, entries lost to stop strings, error: field",
    aliases=("llama.cpp", "llama-cpp", "llama-server"),
    limit="max_tokens",
    detokenize="/detokenize",
    versions="b4240 to b11549",
    native="/completion",
    scores="proxy",
    loses_entries=True,
    counting="timings_per_token",
    describes=True,  # b7376 answers 500 without
    ui=PAGE,
)
