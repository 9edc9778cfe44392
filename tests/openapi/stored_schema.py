"""The answers of the stored completions' API, strict, as answer_schema.py has those of the others.

Source: OpenAI's published OpenAPI document (ChatCompletionList, ChatCompletionMessageList,
ChatCompletionDeleted) and, for the parameters that a stored completion shows, its examples.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from wellspoken.adapters.answer_schema import ChatCompletion, Strict, Text


class StoredChatCompletion(ChatCompletion, kw_only=True):
    """A chat completion that was stored, with parameters of its request; null: not sent.

    `input_user` is the request's `user` or `safety_identifier`.
    """

    request_id: str
    metadata: dict[str, str]
    tool_choice: str | dict[str, Any] | None
    seed: int | None
    top_p: float | None
    temperature: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    input_user: str | None
    tools: list[dict[str, Any]] | None
    response_format: dict[str, Any] | None


class ChatCompletionList(Strict, kw_only=True):
    """One page of stored chat completions; `after` with `last_id` gives the next."""

    object: Literal["list"]
    data: list[StoredChatCompletion]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredMessage(Strict, kw_only=True):
    """A message of a stored request; `content_parts` where its content was parts."""

    id: Text
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | None
    name: str | None
    content_parts: list[dict[str, Any]] | None
    tool_calls: list[dict[str, Any]] | UnsetType | None = UNSET
    tool_call_id: str | UnsetType | None = UNSET
    function_call: dict[str, Any] | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    audio: Any = UNSET


class ChatCompletionMessageList(Strict, kw_only=True):
    """One page of the messages that a stored chat completion answers."""

    object: Literal["list"]
    data: list[StoredMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ChatCompletionDeleted(Strict, kw_only=True):
    """The answer of DELETE /v1/chat/completions/{completion_id}."""

    object: Literal["chat.completion.deleted"]
    id: Text
    deleted: Literal[True]
