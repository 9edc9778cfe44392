"""The shapes of answers that the product itself reads or makes, strict: not a key more.

A chat completion as it is stored and imported, and what GET /v1/capabilities tells. The published
document takes them from here; those of the other answers stand beside its generator, since they
serve nothing else. Key order is OpenAI's, from its published OpenAPI document (API 2.3.0).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from wellspoken.adapters.events import UNKNOWN, Reason
from wellspoken.adapters.servers.parameters import How

ChatId = Annotated[str, Meta(pattern=r"^chatcmpl-[!-~]{8,}$")]
Created = Annotated[int, Meta(ge=10**9, le=10**11, description="Epoch seconds.")]
Count = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]
Logprob = Annotated[float, Meta(ge=UNKNOWN, le=0, description="-9999.0 where it is not known.")]
Bytes = Annotated[
    list[Annotated[int, Meta(ge=0, le=255)]],
    Meta(description="The token's UTF-8, of which a character may have a part only."),
]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class Strict(Struct, kw_only=True, forbid_unknown_fields=True):
    """What every object of an answer is: known keys alone."""


class TokenAlternative(Strict, kw_only=True):
    """One of the likeliest tokens of a position."""

    token: str
    logprob: Logprob
    bytes: Bytes | None


class TokenLogprob(Strict, kw_only=True):
    """One token of the answer; the bytes of all of them, joined, are its text."""

    token: str
    logprob: Logprob
    bytes: Bytes | None
    top_logprobs: Annotated[
        list[TokenAlternative], Meta(description="Descending; at most as many as asked for.")
    ]


class ChoiceLogprobs(Strict, kw_only=True):
    """A choice's tokens, in the body or in one chunk of a stream."""

    content: list[TokenLogprob] | None
    refusal: list[TokenLogprob] | None


class CalledFunction(Strict, kw_only=True):
    """What a call calls; `arguments` is JSON text as the model wrote it, which may be invalid."""

    name: Text
    arguments: str


class MessageToolCall(Strict, kw_only=True):
    """One tool call of the answer."""

    id: Text
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Strict, kw_only=True):
    """The answer; `content` is null only beside tool calls or a refusal."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: Text | UnsetType = UNSET
    tool_calls: Annotated[list[MessageToolCall], Meta(min_length=1)] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    annotations: list[Any] | UnsetType = UNSET
    audio: dict[str, Any] | UnsetType = UNSET


class ChatChoice(Strict, kw_only=True):
    """One of the `n` answers."""

    index: Count
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: Reason
    token_ids: Any = UNSET


class PromptTokensDetails(Strict, kw_only=True):
    """What the prompt's tokens were."""

    audio_tokens: Count | UnsetType = UNSET
    cached_tokens: Count | UnsetType = UNSET
    cache_write_tokens: Count | UnsetType = UNSET
    image_tokens: Count | UnsetType = UNSET
    text_tokens: Count | UnsetType = UNSET


class CompletionTokensDetails(Strict, kw_only=True):
    """What the generated tokens were."""

    accepted_prediction_tokens: Count | UnsetType = UNSET
    audio_tokens: Count | UnsetType = UNSET
    reasoning_tokens: Count | UnsetType = UNSET
    rejected_prediction_tokens: Count | UnsetType = UNSET
    text_tokens: Count | UnsetType = UNSET


class CompletionUsage(Strict, kw_only=True):
    """Token counts; the total is the sum."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Switched(Strict, kw_only=True):
    """What a request's own switch adds to an answer (`prompt_logprobs: 3` and its like)."""

    prompt_logprobs: Any = UNSET
    prompt_token_ids: Any = UNSET
    timings: Any = UNSET
    prompt_progress: Any = UNSET


class ChatCompletion(Switched, kw_only=True):
    """A whole answer of POST /v1/chat/completions."""

    id: ChatId
    object: Literal["chat.completion"]
    created: Created
    model: Text
    choices: list[ChatChoice]
    usage: CompletionUsage
    service_tier: Tier | UnsetType = UNSET
    system_fingerprint: Text | UnsetType = UNSET


class Capability(Strict, kw_only=True):
    """What becomes of one parameter.

    native: the backend does it. emulated: the proxy does it. answered: the proxy answers for
    itself. accepted: it changes nothing in the answer, so it is not sent. refused: a 400.
    """

    how: How
    key: str = ""
    note: str = ""


class EngineState(Strict, kw_only=True):
    """The engine that the proxy runs for a model, as it was last started; null: not known.

    stopped: unloaded, and the next request loads it. starting: requests wait, or are refused while
    it starts for the first time. draining: it ends when what is open has ended. failed: it stays
    down. `context_length`: the most tokens of prompt and answer together. The parsers are those of
    the backend's own settings, null too where none is set.
    """

    state: Literal["stopped", "starting", "ready", "draining", "failed"]
    version: Text | None
    context_length: Annotated[int, Meta(ge=1)] | None
    tool_parser: Text | None
    reasoning_parser: Text | None


class ModelCapabilities(Strict, kw_only=True):
    """One model: for each parameter of each endpoint what becomes of it.

    `backend` is the configured name, `adapter` what it is spoken with as; `server` what it is, as
    far as it told. `vendor`: what becomes of keys that are not OpenAI's. An endpoint that the
    backend lacks has no parameters. `engine` is null where the proxy does not run the backend.
    """

    id: str
    object: Literal["model.capabilities"] = "model.capabilities"
    backend: str
    adapter: str
    server: str
    bounds: Literal["openai", "backend"]
    vendor: Literal["pass", "strip", "reject"]
    chat_completions: dict[str, Capability]
    completions: dict[str, Capability]
    endpoints: list[str]
    engine: EngineState | None


class Capabilities(Strict, kw_only=True):
    """The answer of GET /v1/capabilities."""

    object: Literal["list"] = "list"
    data: list[ModelCapabilities]
