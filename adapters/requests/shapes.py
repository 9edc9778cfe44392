"""What clients send: the Structs of chat and completions requests, and the keys they know.

A request is decoded twice, by C: once into these Structs, whose types are checked by that, and once
into `fields`, every top-level value as the client sent it. Those are forwarded, so no vendor's key
is lost or reformatted.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, Literal, Self

from msgspec import UNSET, Raw, Struct, UnsetType, field, json, structs

Bounds = Literal["openai", "backend"]

ALL_ALTERNATIVES: Final = 1 << 20
"""`k` of a request whose top_logprobs is negative (vLLM: the whole vocabulary)."""


class Part(Struct, gc=False):
    """One part of a message's content; what is not text stays as the client sent it."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class FunctionCall(Struct, gc=False):
    """The function a past answer called; `arguments` is JSON text where the client is exact."""

    name: str | None = None
    arguments: Any = None


class ToolCall(Struct, gc=False):
    """One call of a past answer."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: Any = None


class Message(Struct, gc=False):
    """One message of the conversation."""

    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    audio: Any = None
    reasoning_content: Any = None  # of a past answer, as our own answers call it
    reasoning: Any = None  # as vLLM and Ollama do


class TextMessage(Struct, gc=False, forbid_unknown_fields=True):
    """A message that is a text and nothing else."""

    role: Literal["system", "user", "assistant"]
    content: str


class Function(Struct, gc=False):
    """A function the model may call; `parameters` is a JSON schema, unread."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Raw] | None = None
    strict: bool | None = None


class Tool(Struct, gc=False):
    """A tool the model may call."""

    type: str | None = None
    function: Function | None = None
    custom: Any = None


class ToolChoice(Struct, gc=False):
    """A tool choice that names its tool or tools."""

    type: str | None = None
    function: FunctionCall | None = None
    custom: FunctionCall | None = None
    allowed_tools: Any = None


class JsonSchema(Struct, gc=False):
    """The schema of `response_format`; `schema` is unread."""

    name: str | None = None
    description: str | None = None
    schema: Raw = Raw()
    strict: bool | None = None


class ResponseFormat(Struct, gc=False):
    """What form the answer's text has to have."""

    type: str | None = None
    json_schema: JsonSchema | None = None


class StreamOptions(Struct, gc=False):
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's and SGLang's own


class GenerationRequest(Struct, kw_only=True):
    """What chat and completions requests share: typed parameters, None where absent or null.

    `fields` is every top-level key as sent, in the client's order, typed ones included; the decoder
    always sets it (a client's own key of its wire name is overwritten).
    """

    model: str = ""
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    max_tokens: int | None = None
    n: int | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    oai_compat: bool | None = True  # our own key; False: this answer passes through untouched
    fields: dict[str, Raw] = field(name="wellspoken.fields", default_factory=dict)


class ChatRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = []
    audio: dict[str, Raw] | None = None
    function_call: str | FunctionCall | None = None
    functions: list[Function] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    modalities: list[str] | None = None
    moderation: dict[str, Raw] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Raw] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Raw] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    tool_choice: str | ToolChoice | None = None
    tools: list[Tool] | None = None
    top_logprobs: int | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Raw] | None = None

    def drop_text(self) -> Self:
        """Return the request without its text, which `fields` have as it was sent."""
        return structs.replace(self, messages=[])

    def read_text(self) -> Self:
        """Return the request with its text, read again where it was dropped."""
        if self.messages:
            return self
        messages = json.decode(self.fields.get("messages", b"[]"), type=list[Message])
        return structs.replace(self, messages=messages)


OUR_KEYS: Final = frozenset({"oai_compat"})
"""Keys that speak to the proxy and never reach a backend."""

OFF: Final = (b"null", b"false")
"""Values of a key by which nothing is asked for."""

OPENAI_KEYS: Final = frozenset(ChatRequest.__struct_fields__) - OUR_KEYS - {"fields"}
"""The top-level keys of OpenAI's request; every other one is a vendor's."""


class Variable(Struct, frozen=True):
    """The text of a request that is another each time, while all else is as a program sends it.

    `raw`: the value of `key` as a payload has it, whose content nothing depends on but what is said
    of it here: its `kind`, and the `facts` of the answer's exchange.
    """

    key: str
    raw: bytes
    kind: str
    facts: dict[str, Any]


class ModelMeta(Struct, kw_only=True):
    """What llama.cpp tells of a model; `n_ctx`: its context length, in tokens."""

    n_ctx: int


class Model(Struct, kw_only=True):
    """One model of GET /v1/models; `created` in epoch seconds.

    Its context length, in tokens of prompt and answer, stands under every name that clients read,
    since none is OpenAI's: `max_model_len` (vLLM, SGLang), `context_length` (OpenRouter, Ollama),
    `context_window` (Groq) and `meta.n_ctx` (llama.cpp). Without one it is OpenAI's four keys.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "wellspoken"
    max_model_len: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    context_window: int | UnsetType = UNSET
    meta: ModelMeta | UnsetType = UNSET

    def with_length(self, tokens: int) -> Model:
        """Return the model with its context length."""
        return structs.replace(
            self,
            max_model_len=tokens,
            context_length=tokens,
            context_window=tokens,
            meta=ModelMeta(n_ctx=tokens),
        )


class ModelList(Struct, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model] = []


class TokenIds(array):  # type: ignore[type-arg]  # which Python 3.11 has not
    """One long prompt's token ids of 32 bits, none of them negative, and the `most` of them.

    They may be millions, which as a list take as many objects, and long to be let go.
    """

    most = 0

    def add(self, ids: list[int]) -> None:
        """Add more of them. Raises ValueError, OverflowError."""
        if ids:
            if min(ids) < 0:
                raise ValueError("a negative token id")
            self.most = max(self.most, max(ids))
            self.fromlist(ids)


Prompt = str | tuple[int, ...] | TokenIds
"""One prompt: its text, or its token ids."""


DEFAULT_LIMIT: Final = 16
"""OpenAI's `max_tokens` of a request that has none."""


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of POST /v1/completions.

    `prompt` is a string, an array of strings, of token ids, or of arrays of token ids; `prompts`
    gives it typed. The decoder sets `native`, whether llama.cpp's own names are read, and
    `unlimited`, whether one of them took the limit away.
    """

    prompt: Any = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    native: bool = field(name="wellspoken.native", default=False)
    unlimited: bool = field(name="wellspoken.unlimited", default=False)

    def drop_text(self) -> Self:
        """Return the request without its text, which `fields` have as it was sent."""
        return self if type(self.prompt) is TokenIds else structs.replace(self, prompt=None)

    def read_text(self) -> Self:
        """Return the request with its text, read again where it was dropped."""
        if self.prompt is not None:
            return self
        return structs.replace(self, prompt=json.decode(self.fields.get("prompt", b"null")))

    @property
    def limit(self) -> int | None:
        """The most tokens of a choice, None where there is no limit."""
        if self.max_tokens is None:
            return None if self.unlimited else DEFAULT_LIMIT
        return self.max_tokens if self.max_tokens >= 0 else None


class NativeRequest(CompletionRequest, kw_only=True):
    """The same with llama.cpp's own names, as its clients send them to /completion."""

    n_predict: int | None = None
    n_probs: int | None = None


_OWN: Final = frozenset({"fields", "native", "unlimited"})
COMPLETION_KEYS: Final = frozenset(CompletionRequest.__struct_fields__) - OUR_KEYS - _OWN
"""The top-level keys of OpenAI's request; every other one is a vendor's."""

NATIVE: Final = {"max_tokens": "n_predict", "logprobs": "n_probs"}
"""OpenAI's key -> llama.cpp's own name for it."""

NATIVE_KEYS: Final = frozenset(NATIVE.values())
