"""llama.cpp's own endpoint, POST /completion: its Backend, and what it is sent.

Known deviations (readers/llamacpp_answer.py reads them all):

- native keys: content, stop_type (stopped_eos, stopped_word, stopped_limit up to b4273),
  tokens_evaluated, tokens_predicted; no id, no created, no [DONE].
- logprobs in `completion_probabilities`: {id, token, bytes, logprob, top_logprobs} since pull
  request #10783 (2024-12), {prob, top_probs} with `post_sampling_probs`, and {content, probs:
  [{tok_str, prob}]} up to b4273, where a stream's last event repeats them all.
- with a stop string text is held back and comes under a later token; as many entries are dropped in
  a body as the string has tokens; a stream that reaches its limit meanwhile loses what it holds.
- several prompts are answered by a list ({"results": [...]} in early 2024), or a mixed stream.
- builds of pull request #10627 put `choices` beside the native keys, with the best alternative's
  logprob as the sampled token's and offsets that count from 0.
- `n_predict: 0` gives one token (b11549).
- a seed is taken modulo 2**32, of which the greatest means a random one.

A chat is asked in two steps: POST /apply-template makes the prompt. Tools need the server's own
parser, which is behind its chat endpoint alone (adapter llamacpp).

Sources: captures of b11549, the samples of b4240; tools/server/server-task.cpp, server-schema.cpp
and, of 2024, examples/server/server.cpp; the pull requests named above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import DecodeError, Raw, Struct, json

from wellspoken.adapters.requests.errors import RequestError, invalid, wrong_value
from wellspoken.adapters.requests.shapes import (
    ALL_ALTERNATIVES,
    COMPLETION_KEYS,
    OFF,
    OPENAI_KEYS,
    OUR_KEYS,
    ChatRequest,
    CompletionRequest,
)
from wellspoken.adapters.servers import forms, forms_narrow
from wellspoken.adapters.servers import parameters as usual
from wellspoken.adapters.servers.backend import Backend, Endpoint
from wellspoken.adapters.servers.known.llamacpp import PAGE, PASSES, ROUTES, TOKENIZE
from wellspoken.adapters.servers.parameters import Support, find_rows, refuse, rows
from wellspoken.adapters.servers.prepare import translate_chat

if TYPE_CHECKING:
    Request = ChatRequest | CompletionRequest
    Prompt = str | Sequence[int]

_CALLS: Final = (
    "Its chat endpoint does this: set adapter llamacpp for this backend, or leave the parameter "
    "out."
)
_TEXT: Final = "Send text only, or set adapter llamacpp for this backend."
TOKEN_IDS: Final = Support(key="return_tokens", note="the prompt's by /tokenize")
CHAT: Final = (
    rows("messages", form=forms_narrow.json_arguments)
    | rows("model stream stop temperature top_p seed logit_bias")
    | rows("frequency_penalty presence_penalty", note="over the last 64 tokens, the prompt's too")
    | rows("response_format.json_object response_format.json_schema", form=forms.schema_of_object)
    | usual.OURS
    | {
        "n": usual.ONE_EACH,
        "max_tokens": Support(key="n_predict"),
        "max_completion_tokens": Support(key="n_predict"),
        "logprobs": Support(key="n_probs"),
        "top_logprobs": Support(key="n_probs"),
        "response_format": Support(note="as json_schema"),
        "stream_options": Support("emulated", note="from the answer's counts"),
        "tool_choice.none": usual.WITHOUT_TOOLS,
        "parallel_tool_calls": Support("accepted", note="there are no calls"),
        "messages.developer": usual.AS_SYSTEM,
        "messages.reasoning_content": usual.AS_REASONING_CONTENT,
        "reasoning_effort": Support(form=forms.effort_for_template),
        "return_token_ids": TOKEN_IDS,
    }
    | rows("tools tool_choice tool_choice.required tool_choice.function", "refused", note=_CALLS)
    | rows("tool_choice.allowed_tools tools.custom", "refused", note=_CALLS)
    | rows("functions function_call", "refused", note=_CALLS)
    | rows("messages.image_url messages.input_audio messages.file", "refused", note=_TEXT)
    | rows("verbosity modalities audio web_search_options", "refused")
)
COMPLETIONS: Final = (
    rows("model prompt prompt.ids stream stop temperature top_p seed logit_bias")
    | rows("frequency_penalty presence_penalty", note="over the last 64 tokens, the prompt's too")
    | usual.COMPLETIONS
    | {
        "max_tokens": Support(key="n_predict"),
        "logprobs": Support(key="n_probs"),
        "echo": Support("emulated", note="computed from the prompt's tokens"),
        "stream_options": Support("emulated", note="from the answer's counts"),
        "return_token_ids": TOKEN_IDS,
    }
    | rows("suffix", "refused", note="Leave it out; llama.cpp fills in at POST /infill.")
)

LLAMACPP_NATIVE: Final = Backend(
    name="llamacpp-native",
    title="llama.cpp (native /completion)",
    aliases=("llama.cpp-native",),
    chat_table=CHAT,
    completion_table=COMPLETIONS,
    versions="b4240 to b11549",
    chat=Endpoint("/completion", "llamacpp"),
    completions=Endpoint("/completion", "llamacpp"),
    native="/completion",
    detokenize="/detokenize",
    computes=True,
    sizes="/v1/models",
    lengths=("/props",),
    routes=ROUTES,
    tokenize=TOKENIZE,
    loses_entries=True,
    withholds_text=True,
    unstreamed=frozenset({"return_token_ids"}),  # what begins a character has no event
    passes=PASSES,
    ui=PAGE,
)

SAME: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Parameters that llama.cpp has under OpenAI's name and with its meaning."""

TEMPLATE: Final = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls"),
    *("response_format", "json_schema", "grammar"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    *("enable_thinking", "reasoning_format", "reasoning_effort"),
)
"""Keys that /apply-template reads."""

WITHHELD: Final = frozenset(
    (
        *("prompt", "stream", "n_predict", "n_probs", "n_cmpl", "response_fields"),
        *set(TEMPLATE) - {"json_schema", "grammar", "reasoning_format"},
    )
)
"""Vendor keys that are ours to set, would hide what is read, or are the template's."""

_NULL: Final = b"null"
_RAW_NULL: Final = Raw(_NULL)
_encode = json.Encoder().encode


def prepare_native(
    request: Request,
    *,
    prompt: Prompt | Sequence[Prompt] | None = None,
    model: str = "",
    stream: bool | None = None,
    stops: bool = True,
    seed: int | None = None,
    n: int | None = None,
    n_probs: int | None = None,
    limit: int | None = None,
) -> bytes:
    """Return the JSON for POST /completion; raise `RequestError` for what it cannot do.

    `prompt` is a text, token ids, or several of these; None takes a completions request's own.
    `model` goes along where there is one, by which a router finds the server that has it. The
    others say in the place of the request's own value: whether to `stream`, whether to forward its
    `stops`, the `seed`, the number of choices, that of alternatives (0: no logprobs), and the
    `limit` of tokens (None: the request's own). With `"oai_compat": false` none has an effect.
    """
    fields = request.fields
    if request.oai_compat is False:
        return _encode({key: value for key, value in fields.items() if key not in OUR_KEYS})
    refuse_unsupported(request)
    sent: dict[str, Any] = {"prompt": request_prompt(request) if prompt is None else prompt}
    if model:
        sent["model"] = model
    sent |= _same_keys(fields)
    most = _limit(request) if limit is None else limit
    if most is not None:
        sent["n_predict"] = most
    count = _n_probs(request) if n_probs is None else n_probs
    if count:
        sent["n_probs"] = count
    own_seed = request.seed if seed is None else seed
    if own_seed is not None:
        sent["seed"] = forms.seed_of(own_seed)
    if stops and request.stop:
        sent["stop"] = [request.stop] if isinstance(request.stop, str) else request.stop
    if request.logit_bias:
        sent["logit_bias"] = forms.pairs_of(request.logit_bias)
    if n is None and isinstance(request, ChatRequest):
        n = request.n  # a completions request's choices are the proxy's to ask for, one by one
    if n is not None and n > 1:
        sent["n_cmpl"] = n
    _constrain(fields, sent)
    if request.stream if stream is None else stream:
        sent["stream"] = True
    return _encode(sent)


def _same_keys(fields: dict[str, Raw]) -> dict[str, Any]:
    """Return the keys that go as they are, its own and some of OpenAI's, and what asks for ids."""
    known = OPENAI_KEYS | COMPLETION_KEYS | OUR_KEYS | WITHHELD
    sent: dict[str, Any] = {}
    for key, value in fields.items():
        if key not in known or (key in SAME and bytes(value) != _NULL):
            sent[key] = value
    if bytes(sent.pop("return_token_ids", _RAW_NULL)) not in OFF:
        sent["return_tokens"] = True
    sent.setdefault("cache_prompt", True)  # off by default up to 2024-11
    return sent


def request_prompt(request: Request) -> Any:
    """Return a completions request's prompt as it was sent; a chat has none without a template."""
    if isinstance(request, ChatRequest):
        raise ValueError("a chat request has no prompt: POST /apply-template makes it")
    return request.prompt


def refuse_unsupported(request: Request) -> None:
    """Raise `RequestError` 400 for what /completion does not do; tools above all."""
    table = CHAT if isinstance(request, ChatRequest) else COMPLETIONS
    refuse(find_rows(request, table), table, LLAMACPP_NATIVE.title)


def _limit(request: Request) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.limit
    return (
        request.max_tokens
        if request.max_completion_tokens is None
        else request.max_completion_tokens
    )


def _n_probs(request: Request) -> int:
    """Return how many alternatives to ask for; at 0 llama.cpp gives no logprobs at all."""
    if isinstance(request, ChatRequest):
        wanted = (request.top_logprobs or 1) if request.logprobs else 0
    else:
        wanted = 0 if request.logprobs is None else request.logprobs or 1
    return ALL_ALTERNATIVES if wanted < 0 else wanted


def _constrain(fields: dict[str, Raw], sent: dict[str, Any]) -> None:
    """Say `response_format` by `json_schema`, which is what the chat endpoint makes of it."""
    given = _fields_of(fields.get("response_format", Raw(_NULL)))
    kind = json.decode(given["type"]) if "type" in given else "text"
    if kind == "text":
        return
    if kind == "json_object":
        schema = given.get("schema", Raw(_NULL))  # llama.cpp's own
    elif kind == "json_schema":
        schema = _fields_of(given.get("json_schema", Raw(_NULL))).get("schema", Raw(_NULL))
    else:
        allowed = ("text", "json_object", "json_schema")
        raise wrong_value("response_format.type", str(kind), allowed)
    for key in ("grammar", "json_schema"):
        if key in sent:
            raise invalid(
                key,
                f"'response_format' and '{key}' both say what form the answer has. Send one.",
            )
    sent["json_schema"] = Raw(b'{"type":"object"}') if bytes(schema) == _NULL else schema


def _fields_of(value: Raw) -> dict[str, Raw]:
    return json.decode(value, type=dict[str, Raw] | None) or {}


def template_request(backend: Backend, request: ChatRequest) -> bytes:
    """Return the JSON for POST /apply-template; raise `RequestError` as `prepare` does.

    Tools are in it, since a prompt that is scored has them; `functions` are rewritten to tools.
    """
    whole = translate_chat(backend, request)
    return _encode({key: whole[key] for key in TEMPLATE if key in whole})


class _Templated(Struct):
    prompt: str


def read_template(data: bytes) -> str:
    """Return the prompt that POST /apply-template answered; raise `RequestError` 502 for another.

    The shape is {"prompt": text}, of llama.cpp since 2025-01 (pull request #11489).
    """
    try:
        return json.decode(data, type=_Templated).prompt
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(
            'The backend\'s POST /apply-template did not answer {"prompt": ...}. Check that its '
            "URL names a llama.cpp server of 2025 or later.",
            status=502,
            type="server_error",
            code="upstream_not_a_prompt",
        ) from None
