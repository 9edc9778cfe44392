"""The known shapes of a near-OpenAI answer as strict Structs: their types are the guard.

What they refuse (an unknown key, a positive logprob, a spelling) takes the tolerant path, which
repairs it into these same Structs; so there is one way from a Struct to events.

Vendor keys that come with every chunk or body of vLLM, llama.cpp and SGLang are fields here, so
that those servers stay on the fast path; the reader turns what they hold into `Extra` events.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import fields

from wellspoken.adapters.events import Entry, Lp, Reason

NONE = Raw()
"""The default of a vendor key: it is absent. Compared by identity."""
Count = Annotated[int, Meta(ge=0, le=10**15)]
Index = Annotated[int, Meta(ge=0, le=127)]


class WireLogprobs(Struct, gc=False, forbid_unknown_fields=True):
    """Chat logprobs, or the completions endpoint's arrays in their place.

    vLLM 0.3.3-0.4.2 and llama-cpp-python 0.2.58-0.3.2 send the arrays; vLLM of that time streams
    `top_logprobs` alone.
    """

    content: list[Entry] | UnsetType | None = UNSET
    refusal: list[Entry] | UnsetType | None = UNSET
    tokens: list[str] | UnsetType = UNSET
    token_logprobs: list[Lp] | UnsetType = UNSET
    top_logprobs: list[dict[str, Lp]] | UnsetType = UNSET
    text_offset: list[int] | UnsetType = UNSET


class WireArrays(Struct, gc=False, forbid_unknown_fields=True):
    """The completions endpoint's arrays, or chat logprobs in their place (llama.cpp).

    With `echo` a prompt's first token has null, since nothing comes before it.
    """

    tokens: list[str] | UnsetType = UNSET
    token_logprobs: list[Lp | None] | UnsetType = UNSET
    top_logprobs: list[dict[str, Lp] | None] | UnsetType | None = UNSET
    text_offset: list[int] | UnsetType = UNSET
    content: list[Entry] | UnsetType | None = UNSET
    refusal: list[Entry] | UnsetType | None = UNSET


class WireFunction(Struct, gc=False, forbid_unknown_fields=True):
    name: str | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET


class WireToolCall(Struct, gc=False, forbid_unknown_fields=True):
    index: int | UnsetType = UNSET
    id: str | UnsetType | None = UNSET
    type: Literal["function"] | UnsetType | None = UNSET
    function: WireFunction | UnsetType = UNSET


class WirePart(Struct, gc=False, forbid_unknown_fields=True):
    """A delta or a message."""

    role: Literal["assistant"] | UnsetType | None = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    tool_calls: list[WireToolCall] | UnsetType | None = UNSET
    function_call: WireFunction | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    annotations: Raw = NONE
    audio: Raw = NONE


class WireChoice(Struct, gc=False, forbid_unknown_fields=True):
    """A choice of a body or chunk; a subclass has its message or delta."""

    index: Index
    logprobs: WireLogprobs | UnsetType | None = UNSET
    finish_reason: Reason | UnsetType | None = UNSET
    stop_reason: Raw = NONE
    matched_stop: Raw = NONE
    token_ids: Raw = NONE
    routed_experts: Raw = NONE


class WireMessageChoice(WireChoice):
    message: WirePart | UnsetType = UNSET


class WireDeltaChoice(WireChoice):
    delta: WirePart | UnsetType = UNSET


class WireTextChoice(Struct, gc=False, forbid_unknown_fields=True):
    """A choice of the completions endpoint, in a body or chunk."""

    index: Index
    text: str
    logprobs: WireArrays | UnsetType | None = UNSET
    finish_reason: Reason | UnsetType | None = UNSET
    stop_reason: Raw = NONE
    matched_stop: Raw = NONE
    token_ids: Raw = NONE
    prompt_token_ids: Raw = NONE
    prompt_logprobs: Raw = NONE
    routed_experts: Raw = NONE


class WireUsage(Struct, gc=False, forbid_unknown_fields=True):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: Raw = NONE
    completion_tokens_details: Raw = NONE


Choice = TypeVar("Choice", WireMessageChoice, WireDeltaChoice, WireTextChoice)


class WireAnswer(Struct, Generic[Choice], gc=False, forbid_unknown_fields=True):
    """What every answer has, a whole one or a chunk; a subclass says which `object` it is."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: WireUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    service_tier: str | UnsetType | None = UNSET


class WireChunk(WireAnswer[WireDeltaChoice]):
    """One chunk of a stream, but for the vendor keys of a first or last one: those are few."""

    object: Literal["chat.completion.chunk"]
    service_tier: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class WireBody(WireAnswer[WireMessageChoice]):
    object: Literal["chat.completion"]
    prompt_logprobs: Raw = NONE
    prompt_token_ids: Raw = NONE
    prompt_text: Raw = NONE
    kv_transfer_params: Raw = NONE
    ec_transfer_params: Raw = NONE
    metrics: Raw = NONE
    timings: Raw = NONE


class PlainDelta(Struct, gc=False, forbid_unknown_fields=True):
    content: Annotated[str, Meta(min_length=1)]


class PlainChoice(Struct, gc=False, forbid_unknown_fields=True):
    index: Literal[0]
    delta: PlainDelta
    logprobs: WireLogprobs | UnsetType | None = UNSET
    finish_reason: UnsetType | None = UNSET
    token_ids: UnsetType | None = UNSET  # null on every chunk of vLLM >= 0.10.2


class PlainChunk(Struct, gc=False, forbid_unknown_fields=True):
    """A `WireChunk` of the first choice's content alone, as nearly all of a stream are."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[PlainChoice]
    usage: UnsetType | None = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET


class WireColumns(Struct, gc=False, forbid_unknown_fields=True):
    """The completions endpoint's arrays in a long answer; the alternatives are yet to be read."""

    tokens: list[str]
    token_logprobs: list[Lp]
    top_logprobs: list[Raw]
    text_offset: list[int] | UnsetType = UNSET


class WireLongChoice(WireMessageChoice):
    logprobs: WireColumns  # type: ignore[assignment]


class WireLongBody(WireBody):
    choices: list[WireLongChoice]  # type: ignore[assignment]


class WireSplit(Struct, gc=False, forbid_unknown_fields=True):
    """The entries of a long answer, which are yet to be read."""

    content: list[Raw]
    refusal: list[Entry] | UnsetType | None = UNSET


class WireSplitChoice(WireMessageChoice):
    logprobs: WireSplit | UnsetType | None = UNSET  # type: ignore[assignment]


class WireSplitBody(WireBody):
    choices: list[WireSplitChoice]  # type: ignore[assignment]


class WireTextChunk(WireAnswer[WireTextChoice]):
    object: Literal["text_completion"]
    service_tier: str | UnsetType = UNSET


class WireTextBody(WireAnswer[WireTextChoice]):
    object: Literal["text_completion"]
    kv_transfer_params: Raw = NONE
    ec_transfer_params: Raw = NONE
    metrics: Raw = NONE
    timings: Raw = NONE


def _vendor_keys(wire: type[Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(wire) if field.type is Raw)


TEXT_EXTRAS = _vendor_keys(WireTextBody)
TEXT_CHOICE_EXTRAS = _vendor_keys(WireTextChoice)
BODY_EXTRAS = _vendor_keys(WireBody)
CHOICE_EXTRAS = _vendor_keys(WireChoice)
