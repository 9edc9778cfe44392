"""The shapes of a response, strict, as `answer_schema` has those of the other answers.

The published document is made of them, too. What an item or a part may be is told by its `type`:
`ITEMS` and `PARTS`. Source: openai-python's types (3.57) and the Open Responses specification; what
OpenAI's response has and its specification does not ask for may be missing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from wellspoken.adapters.answer_schema import Bytes, Count, Created, Logprob, Strict, Text, Tier

ResponseId = Annotated[str, Meta(pattern=r"^resp_[A-Za-z0-9_-]{8,}$")]
Status = Literal["in_progress", "completed", "incomplete"]


class ItemAlternative(Strict, kw_only=True):
    """One of the likeliest tokens of a position; `bytes` is empty where they are not known."""

    token: str
    logprob: Logprob
    bytes: Bytes


class ItemLogprob(ItemAlternative, kw_only=True):
    """One token of a text; the bytes of all of them, joined, are the text."""

    top_logprobs: list[ItemAlternative]


class OutputTextContent(Strict, kw_only=True):
    """A text of the answer; `logprobs` is empty unless the request includes them."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ItemLogprob]


class RefusalContent(Strict, kw_only=True):
    """What the model says in place of an answer."""

    type: Literal["refusal"]
    refusal: Text


class ReasoningTextContent(Strict, kw_only=True):
    """What the model thought."""

    type: Literal["reasoning_text"]
    text: str


class MessageItem(Strict, kw_only=True):
    """A message of the answer."""

    id: Annotated[str, Meta(pattern="^msg_")]
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    phase: str | UnsetType | None = UNSET


class FunctionCallItem(Strict, kw_only=True):
    """A call of a function; `arguments` is JSON as the model wrote it, which may be invalid."""

    id: Annotated[str, Meta(pattern="^fc_")]
    type: Literal["function_call"]
    status: Status
    call_id: Text
    name: Text
    arguments: str
    namespace: Text | UnsetType = UNSET


class CustomToolCallItem(Strict, kw_only=True):
    """A call of a custom tool; `input` is plain text."""

    id: Annotated[str, Meta(pattern="^ctc_")]
    type: Literal["custom_tool_call"]
    status: Status
    call_id: Text
    name: Text
    input: str
    namespace: Text | UnsetType = UNSET


class ReasoningItem(Strict, kw_only=True):
    """What the model thought before it answered; summaries are empty here."""

    id: Annotated[str, Meta(pattern="^rs_")]
    type: Literal["reasoning"]
    summary: list[dict[str, Any]]
    content: list[ReasoningTextContent] | UnsetType | None = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: Status | UnsetType | None = UNSET


class InputTokensDetails(Strict, kw_only=True):
    """What the input's tokens were."""

    cached_tokens: Count
    cache_write_tokens: Count | UnsetType = UNSET


class OutputTokensDetails(Strict, kw_only=True):
    """What the generated tokens were."""

    reasoning_tokens: Count


class ResponseTokens(Strict, kw_only=True):
    """Token counts; the total is the sum."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class ResponseError(Strict, kw_only=True):
    """Why a response failed."""

    code: Text
    message: Text


class IncompleteReason(Strict, kw_only=True):
    """Why a response ends before its end."""

    reason: Literal["max_output_tokens", "content_filter"]


class ModelResponse(Strict, kw_only=True):
    """A response. `completed_at` is null unless it is completed; `usage` null where it failed.

    The keys behind `output` repeat the request, with OpenAI's defaults where it says nothing.
    """

    id: ResponseId
    object: Literal["response"]
    created_at: Created
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    completed_at: Created | None
    error: ResponseError | None
    incomplete_details: IncompleteReason | None
    model: Text
    output: list[dict[str, Any]]
    usage: ResponseTokens | None
    background: bool
    instructions: str | list[dict[str, Any]] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    presence_penalty: float
    frequency_penalty: float
    prompt_cache_key: str | None
    reasoning: dict[str, Any] | None
    safety_identifier: str | None
    service_tier: Tier
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: Count
    top_p: float
    truncation: Literal["auto", "disabled"]
    metadata: dict[str, str]
    user: str | UnsetType | None = UNSET
    conversation: dict[str, Any] | UnsetType | None = UNSET
    moderation: dict[str, Any] | UnsetType | None = UNSET
    prompt: dict[str, Any] | UnsetType | None = UNSET
    prompt_cache_options: dict[str, Any] | UnsetType | None = UNSET
    prompt_cache_retention: str | UnsetType | None = UNSET


ITEMS: Final[dict[str, type[Struct]]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "custom_tool_call": CustomToolCallItem,
    "reasoning": ReasoningItem,
}
"""The type of an item of `output` -> its shape."""

PARTS: Final[dict[str, type[Struct]]] = {
    "output_text": OutputTextContent,
    "refusal": RefusalContent,
}
"""The type of a part of a message's content -> its shape."""

_ITEM: Final = ("item_id", "output_index")
_PART: Final = (*_ITEM, "content_index")
EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "response.created": ("response",),
    "response.in_progress": ("response",),
    "response.output_item.added": ("output_index", "item"),
    "response.content_part.added": (*_PART, "part"),
    "response.output_text.delta": (*_PART, "delta", "logprobs"),
    "response.output_text.done": (*_PART, "text", "logprobs"),
    "response.refusal.delta": (*_PART, "delta"),
    "response.refusal.done": (*_PART, "refusal"),
    "response.reasoning_text.delta": (*_PART, "delta"),
    "response.reasoning_text.done": (*_PART, "text"),
    "response.content_part.done": (*_PART, "part"),
    "response.function_call_arguments.delta": (*_ITEM, "delta"),
    "response.function_call_arguments.done": (*_ITEM, "name", "arguments"),
    "response.custom_tool_call_input.delta": (*_ITEM, "delta"),
    "response.custom_tool_call_input.done": (*_ITEM, "input"),
    "response.output_item.done": ("output_index", "item"),
    "response.completed": ("response",),
    "response.incomplete": ("response",),
    "error": ("code", "message", "param", "error"),
    "response.failed": ("response",),
}
"""The type of a stream's event -> its keys, behind `type` and `sequence_number`."""
