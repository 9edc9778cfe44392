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
- a request that does not fit its types is a 500; an error in a stream cuts it. They know no null
  `tool_calls` or `description`, no content parts but a user's, no assistant without content.
- `stop: ""` ends the answer at once; `seed: -1` is a random one.
- tools: a named one is forced by a grammar in every chat format. `auto` gives calls with
  --chat_format chatml-function-calling or functionary; others give the model's markup as text. The
  former then has no limit, seed, bias or stop, leaves the tools out where no tool_choice is sent,
  and tells the model of them in a system message alone, so there has to be one.
  "required" is taken for "auto", and by chatml-function-calling refused with a 500.
- its own chat formats take the first system message and leave the others out without a word.
- a JSON schema that it cannot make a grammar of is any JSON.

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

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import forms_narrow as narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows
from wellspoken.adapters.tokens.tokenize import Tokenize

AUTO: Final = (
    "auto: with --chat_format functionary, or chatml-function-calling and a system message"
)
SEED: Final = Support(note="-1 is a seed like others", form=forms.never_random)
CHAT: Final = (
    rows("model stream max_tokens temperature top_p logit_bias frequency_penalty presence_penalty")
    | rows("tool_choice response_format response_format.json_object")
    | rows("logprobs top_logprobs", note="with --logits_all true")
    | usual.CHAT
    | {
        "messages.reasoning_content": usual.WITHOUT_REASONING,
        "messages": Support(note="texts joined", form=narrow.plain_messages),
        "stop": Support(form=narrow.texts_to_stop),
        "seed": SEED,
        "stream_options": usual.COUNTED,
        "response_format.json_schema": Support(
            note="since 0.2.34, as json_object with a schema", form=forms.schema_in_object
        ),
        "tools": Support(note=AUTO, form=narrow.auto_tools),
        "tool_choice.function": Support(note="in every chat format"),
        "tool_choice.required": Support(
            "emulated", note="one tool by its name; 400 for several", form=narrow.only_tool_named
        ),
        "messages.image_url": Support(note="with the --chat_format of a model that reads images"),
    }
    | rows("reasoning_effort", "refused", note="Its templates take no variables: leave it out.")
    | rows("messages.input_audio messages.file", "refused", note="Send text or images.")
    | rows("tools.custom", "refused", note="Offer a function with one string as parameter.")
    | rows("verbosity", "refused", note="Ask for it in the system message.")
    | rows("modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt stream max_tokens temperature top_p logit_bias")
    | rows("frequency_penalty presence_penalty")
    | rows("logprobs echo", note="logprobs with --logits_all true")
    | usual.COMPLETIONS
    | {"stop": Support(form=narrow.texts_to_stop), "seed": SEED}
    | {"stream_options": usual.COUNTED}
    | rows("prompt.ids", "refused", note="Send its text.")
    | rows(
        "suffix",
        "refused",
        note="Since 0.3.7 its infill tokens are wrong: put the model's infill prompt together.",
    )
)

LLAMA_CPP_PYTHON: Final = Backend(
    name="llama-cpp-python",
    title="llama-cpp-python",
    aliases=("llama_cpp_python", "llamacpp-python"),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    one_system=True,
    together=1,  # another request ends the one that runs (its issue #867)
    tokenize=Tokenize(path="/extras/tokenize/count", text="input"),
    least_tokens=1,  # 0 means no limit
    unstreamed=frozenset({"logprobs", "echo"}),
    passes=("/v1/embeddings", "/extras/tokenize", "/extras/tokenize/count", "/extras/detokenize"),
    versions="0.2.58 to 0.3.36",
)
