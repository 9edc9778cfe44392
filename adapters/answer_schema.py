"""The shapes of answers, strict: what the proxy may emit, and not a key more.

Nothing is encoded through these Structs: `wellspoken doctor` holds answers against them, stored and
imported completions are read with them, and the published document is made of them. Key order is
OpenAI's, from its published OpenAPI document (API 2.3.0).
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


TextId = Annotated[str, Meta(pattern=r"^cmpl-[!-~]{8,}$")]
TextReason = Literal["stop", "length", "content_filter"]


class Strict(Struct, kw_only=True, forbid_unknown_fields=True):
    """What every object of an answer is: known keys alone."""


class TokenAlternative(Strict, kw_only=True):
    """One of the likeliest tokens of a position."""

    token: str
    logprob: Logprob
    bytes: Bytes | None


class TokenLogprob(TokenAlternative, kw_only=True):
    """One token of the answer; the bytes of all of them, joined, are its text."""

    top_logprobs: Annotated[
        list[TokenAlternative], Meta(description="Descending; at most as many as asked for.")
    ]


class ChoiceLogprobs(Strict, kw_only=True):
    """A choice's tokens, in the body or in one chunk of a stream; none of an answer without text.

    Null in the choice means that the server gave none at all.
    """

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


class FunctionDelta(Strict, kw_only=True):
    """A piece of a function call; the name comes with the first one."""

    name: Text | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Strict, kw_only=True):
    """A piece of a tool call; id, type and name come with its first one."""

    index: Count
    id: Text | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class Delta(Strict, kw_only=True):
    """A piece of an answer; the role comes with a choice's first one."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: Text | UnsetType = UNSET
    tool_calls: Annotated[list[ToolCallDelta], Meta(min_length=1)] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChunkChoice(Strict, kw_only=True):
    """A piece of one choice; its finish reason comes last, on an empty delta."""

    index: Count
    delta: Delta
    logprobs: ChoiceLogprobs | None
    finish_reason: Reason | None
    token_ids: Any = UNSET


class ChatCompletionChunk(Switched, kw_only=True):
    """One event of a stream of POST /v1/chat/completions.

    With stream_options.include_usage the last one has the usage and no choices, the others null.
    """

    id: ChatId
    object: Literal["chat.completion.chunk"]
    created: Created
    model: Text
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    service_tier: Tier | UnsetType = UNSET
    system_fingerprint: Text | UnsetType = UNSET


class TextLogprobs(Strict, kw_only=True):
    """Four arrays with one item a token; offsets count characters from the prompt's start."""

    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[Count]


class _TextPart(Strict, kw_only=True):
    text: str
    index: Count
    logprobs: TextLogprobs | None
    prompt_logprobs: Any = UNSET
    prompt_token_ids: Any = UNSET
    token_ids: Any = UNSET


class TextChoice(_TextPart, kw_only=True):
    """One of the answers to one of the prompts."""

    finish_reason: TextReason


class TextChunkChoice(_TextPart, kw_only=True):
    """A piece of one choice."""

    finish_reason: TextReason | None


class Completion(Switched, kw_only=True):
    """A whole answer of POST /v1/completions."""

    id: TextId
    object: Literal["text_completion"]
    created: Created
    model: Text
    choices: list[TextChoice]
    usage: CompletionUsage
    system_fingerprint: Text | UnsetType = UNSET


class CompletionChunk(Switched, kw_only=True):
    """One event of a stream of POST /v1/completions."""

    id: TextId
    object: Literal["text_completion"]
    created: Created
    model: Text
    choices: list[TextChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: Text | UnsetType = UNSET


class Embedding(Strict, kw_only=True):
    """One vector: numbers, or with encoding_format base64 its little-endian float32s."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingUsage(Strict, kw_only=True):
    """Token counts of the inputs."""

    prompt_tokens: Count
    total_tokens: Count


class CreateEmbeddingResponse(Strict, kw_only=True):
    """The answer of POST /v1/embeddings, one vector an input."""

    object: Literal["list"]
    data: list[Embedding]
    model: Text
    usage: EmbeddingUsage


class ErrorBody(Strict, kw_only=True):
    """What went wrong, and what to do about it."""

    message: Text
    type: Text
    param: str | None
    code: str | None


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
    backend lacks has no parameters. `responses`: who answers POST /v1/responses, whose table,
    `response_parameters`, is empty where that is passed through. `engine` is null where the proxy
    does not run the backend.
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
    responses: Literal["translate", "pass"]
    response_parameters: dict[str, Capability]
    endpoints: list[str]
    engine: EngineState | None


class Capabilities(Strict, kw_only=True):
    """The answer of GET /v1/capabilities."""

    object: Literal["list"] = "list"
    data: list[ModelCapabilities]
