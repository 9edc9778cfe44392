"""Every answer's shape, for the document: those that the product knows, and health's.

Nothing is encoded through these Structs. They are what proxy/endpoints/openapi.json is made of, and
the tests decode with them every answer that the fixtures expect, so the published document cannot
drift from what is sent.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from wellspoken.adapters.answer_schema import (
    Capabilities,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    CreateEmbeddingResponse,
    ErrorBody,
    Strict,
    Text,
)
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


class ErrorResponse(Strict, kw_only=True):
    """OpenAI's error envelope: every failure, and the last event of a stream that fails."""

    error: ErrorBody


class Ready(Strict, kw_only=True):
    """The proxy runs, or is ready.

    `warning`: why requests pass uncounted; `store`: why completions cannot be stored now.
    """

    status: Literal["ok"]
    warning: Text | UnsetType = UNSET
    store: Text | UnsetType = UNSET


class Unready(Strict, kw_only=True):
    """Requests should not come, and why."""

    status: Literal["unavailable"]
    reason: Text
    warning: Text | UnsetType = UNSET
    store: Text | UnsetType = UNSET
