"""The answers' shapes, strict: what contract.md lets the proxy emit, and not a key more.

Nothing is encoded through these Structs. They are what proxy/endpoints/openapi.json is made of, and
the tests decode with them every answer that the fixtures expect, so the published document cannot
drift from what is sent. Key order is OpenAI's. Source: OpenAI's published OpenAPI document
(API 2.3.0).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from wellspoken.adapters.answer_schema import (
    Capabilities,
    ChatCompletion,
    ChatId,
    ChoiceLogprobs,
    CompletionUsage,
    Count,
    Created,
    Logprob,
    Strict,
    Switched,
    Text,
    Tier,
)
from wellspoken.adapters.events import Reason
from wellspoken.adapters.requests.shapes import Model, ModelList

__all__ = [
    "Capabilities",
    "ChatCompletion",
    "ChatCompletionChunk",
    "Completion",
    "CompletionChunk",
    "CreateEmbeddingResponse",
    "ErrorResponse",
    "Model",
    "ModelList",
    "Ready",
    "Unready",
]

TextId = Annotated[str, Meta(pattern=r"^cmpl-[!-~]{8,}$")]
TextReason = Literal["stop", "length", "content_filter"]


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


class ErrorResponse(Strict, kw_only=True):
    """OpenAI's error envelope: every failure, and the last event of a stream that fails."""

    error: ErrorBody


class Ready(Strict, kw_only=True):
    """The proxy runs, or is ready."""

    status: Literal["ok"]


class Unready(Strict, kw_only=True):
    """Requests should not come, and why."""

    status: Literal["unavailable"]
    reason: Text
