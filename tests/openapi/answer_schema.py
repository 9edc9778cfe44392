"""Every answer's shape, for the document: those that the product knows, and health's.

Nothing is encoded through these Structs. They are what proxy/endpoints/openapi.json is made of, and
the tests decode with them every answer that the fixtures expect, so the published document cannot
drift from what is sent.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

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
    "BackendState",
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


class BackendState(Strict, kw_only=True):
    """One of several servers: whether it gets requests (trial: one decides), and how many it has.

    `reason`: why it gets none.
    """

    name: Text
    state: Literal["in", "out", "trial"]
    outstanding: Annotated[int, Meta(ge=0)]
    reason: Text | UnsetType = UNSET


class Ready(Strict, kw_only=True):
    """The proxy runs, or is ready.

    `warning`: why requests pass uncounted; `store`: why completions cannot be stored now;
    `backends`: how each server is, where there are several.
    """

    status: Literal["ok"]
    warning: Text | UnsetType = UNSET
    store: Text | UnsetType = UNSET
    backends: list[BackendState] | UnsetType = UNSET


class Unready(Strict, kw_only=True):
    """Requests should not come, and why."""

    status: Literal["unavailable"]
    reason: Text
    warning: Text | UnsetType = UNSET
    store: Text | UnsetType = UNSET
    backends: list[BackendState] | UnsetType = UNSET
