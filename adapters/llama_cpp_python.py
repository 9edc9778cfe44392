"""llama-cpp-python's server (`python -m llama_cpp.server`), seen from 0.2.58 to 0.3.36.

Known deviations of /v1/chat/completions:

- 0.2.58 to 0.3.2: a choice's `logprobs` have the form of the completions endpoint, in streams too
  (abetlen/llama-cpp-python pull request #1788 ended that).
- 0.3.3 and later: OpenAI's form, but `bytes` is always null though the text is known.
- a token is decoded alone and what is no UTF-8 is left out: a part of a character reads "", and
  alternatives that print alike are one. A stream with logprobs decodes its text so too, and a
  character that is split over tokens is lost; without logprobs it is whole.
- `max_completion_tokens` is ignored and the answer goes on to its end (issue #1907, open).
- no `refusal`; the role chunk has no content; streams have no usage; `n` is ignored and gives one
  choice.
- a request interrupts another's stream (issue #867), which then ends in [DONE] without a
  finish_reason, unless the server runs with --interrupt_requests false.
- logprobs need a server with --logits_all true; without, a body is a 500 and a stream is cut.
- a request that does not fit its types is a 500; an error in a stream cuts it.

Of /v1/completions: one text a prompt, no token ids, `n` and `best_of` ignored; `echo` is ignored in
streams; `max_tokens` 0 is no limit and -1 refused; `text_offset` counts bytes in a stream's end.
With `echo` the leading BOS is left out and the first token has no logprob. Of a model without BOS
each logprob is then that of the token in the place of the next one (issue #1276), which the answer
does not show.

Sources: captures of 0.3.36 with pull request #1788 undone; llama_cpp/llama.py, llama_chat_format.py
and server/app.py, errors.py, types.py at 0.3.35; the sample of 0.3.5; the issues named above.
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
    many=False,
    together=1,  # another request ends the one that runs (its issue #867)
    token_ids=False,
    least_tokens=1,  # 0 means no limit
    unstreamed=frozenset({"logprobs", "echo"}),
    knows=frozenset({"suffix", "user"}),
    versions="0.2.58 to 0.3.36",
    scores="backend",
)
