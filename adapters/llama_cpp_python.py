"""llama-cpp-python's server (`python -m llama_cpp.server`), seen from 0.2.58 to 0.3.36.

Known deviations of /v1/chat/completions:

- 0.2.58 to 0.3.2: a choice's `logprobs` have the form of the completions endpoint (abetlen's
  llama-cpp-python pull request #1788 ended that).
- 0.3.3 and later: OpenAI's form, but `bytes` is always null though the text is known, and
  alternatives that print alike are one.
- `max_completion_tokens` is ignored and the answer goes on to its end (issue #1907, open).
- no `refusal`; `n` is ignored and gives one choice.

Sources: captures of 0.3.36 with pull request #1788 undone, the sample of 0.3.5, the issue
named above.
"""

from __future__ import annotations

from typing import Final

from wellspoken.adapters.backend import Backend

LLAMA_CPP_PYTHON: Final = Backend(
    name="llama-cpp-python",
    title="llama-cpp-python",
    deviations="legacy chat logprobs (0.2.58 to 0.3.2), bytes null (later), max_tokens alone",
    aliases=("llama_cpp_python", "llamacpp-python"),
    limit="max_tokens",
    knows=frozenset({"user"}),
)
