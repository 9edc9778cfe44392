"""Ollama (ollama/ollama), from 0.1.24 to 0.33: its endpoints under /v1.

Known deviations of /v1/chat/completions:

- 0.1: finish_reason is "" on every chunk before the end. To 0.32.5 every delta repeats the role and
  the finish_reason stands on a chunk with text.
- to 0.5: a streamed call ends in "stop". All: a call comes whole, in one delta.
- a model that was only loaded or unloaded (no messages) ends in "load" or "unload".
- an id is "chatcmpl-" and a number below 1000; no `refusal`; `reasoning` from 0.11.1.
- logprobs come with 0.12.11, `top_logprobs` absent where there are none. `bytes` are those of the
  token's text, so U+FFFD's for a part of a character, and absent for "". From 0.30, which runs
  llama.cpp's server, a token whose text is held back may lack its entry, as for a stop string.
- a message of several parts becomes several messages of its role.
- an answer that repeats one token 30 times is broken off: a body's finish_reason is null, a stream
  just ends. So does one that fails, with an empty chunk in the error's place.
- errors are OpenAI's, but for their `type`.

Known deviations of /v1/completions:

- the prompt goes through the model's template, as one message of a user.
- no logprobs though it reads `logprobs`; `echo` is ignored; a prompt is one string.
- a stream with `include_usage` has a usage of zeros on every chunk; no chunk before 0.5.2.

Of the request it does not read n, best_of, logit_bias, user, tool_choice, parallel_tool_calls,
max_completion_tokens, nor what is newer; of a message it reads `reasoning`, no `reasoning_content`
(issue #18534). `reasoning_effort` is read from 0.11.5, `json_schema` from
0.5.0, `tools` from 0.2.6 and `suffix` too, `input_audio` from 0.20.0; images are data: URLs alone.
To 0.3.9 the temperature and the frequency penalty count twice and `presence_penalty` is misspelt;
from 0.6 to 0.29 Ollama's own engine (gemma3, gpt-oss, qwen3 and others) ignores both penalties.
`max_tokens` of 0 was no limit to 0.29, and a `seed` of -1 is a random one.

Sources: openai/openai.go, middleware/openai.go, server/routes.go, server/logprob.go,
llm/llama_server.go, runner/ and sample/ of the repository from v0.1.24 to v0.33.0-rc2; its issue
#5259 (prompts); the samples of 0.1.34 and 0.5.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from wellspoken.adapters.servers import forms
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, rows

UNREAD: Final = "Ollama does not read it. Leave it out."
PENALTY: Final = "Ollama's own engine ignores it from 0.6 to 0.29"

SEED: Final = Support(note="-1 is a seed like others", form=forms.never_random)
LOGPROBS: Final = Support(since="0.12.11")
PRESENCE: Final = Support(note=PENALTY, since="0.3.10")
USAGE: Final = Support(form=forms.usage_alone, since="0.5.2", older=usual.COUNTED)

CHAT: Final = (
    rows("model messages stream stop max_tokens temperature top_p")
    | rows("response_format response_format.json_object")
    | usual.CHAT
    | {
        "seed": SEED,
        "frequency_penalty": Support(note=PENALTY),
        "presence_penalty": PRESENCE,
        "logprobs": LOGPROBS,
        "top_logprobs": LOGPROBS,
        "stream_options": USAGE,
        "reasoning_effort": Support(form=forms.effort_from_low, since="0.11.5"),
        "response_format.json_schema": Support(since="0.5.0"),
        "tools": Support(form=forms.describe_tools, since="0.2.6"),
        "tool_choice": Support(note='"auto" is what it does, whatever it is told'),
        "tool_choice.allowed_tools": Support("emulated", form=forms.offer_allowed_if_auto),
        "messages.reasoning_content": structs.replace(
            usual.AS_REASONING, since="0.11.1", older=usual.WITHOUT_REASONING
        ),
        "messages.image_url": Support(note="data: URLs of jpeg, png or webp alone", since="0.2.6"),
        "messages.input_audio": Support(since="0.20.0"),
    }
    | rows("tool_choice.required tool_choice.function", "refused", note='Send "auto".')
    | rows("logit_bias", "refused", note=UNREAD)
    | rows("messages.file tools.custom verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt stream stop max_tokens temperature top_p")
    | {
        "seed": SEED,
        "frequency_penalty": CHAT["frequency_penalty"],
        "presence_penalty": PRESENCE,
        "suffix": Support(note="models whose template has a place for it", since="0.2.6"),
    }
    | usual.TEXTS_ALONE
    | {"stream_options": USAGE}
    | rows("logit_bias", "refused", note=UNREAD)
)

OLLAMA: Final = Backend(
    name="ollama",
    title="Ollama",
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    least_tokens=1,  # 0 was no limit to 0.29
    loses_entries=True,
    lengths=("/api/ps",),
    shows="/api/show",
    passes=("/v1/embeddings", "/v1/responses", "/v1/messages"),
    versions="0.1.24 to 0.33",
)
