"""Repairs of finish_reason: every spelling of every server as the contract's five, or a failure.

`REASONS` and `FAILURES` are the spellings; each is a repair named `finish_reason_<spelling>`. One
that is in neither is read by its words (`LIKE`).
"""

from __future__ import annotations

import re
from typing import Any, Final, get_args

from wellspoken.adapters.events import Event, Fault, Finish, Reason, Start, Text, Usage
from wellspoken.adapters.repairs.context import Context

NO_FINGERPRINT = "_"
_ANSWER_LOST = Fault(
    400,
    "The 'logprobs' parameter is not supported by this version of the backend: it lost the "
    "answer, as cortex.cpp from 1.0.13 on does. Leave the parameter out, or set the backend's "
    "URL to the llama-server that it runs.",
    "invalid_request_error",
    "logprobs",
    "unsupported_parameter",
    retry=False,
)

CONTRACT: frozenset[str] = frozenset(get_args(Reason))

REASONS: dict[str, Reason] = {
    "eos_token": "stop",  # TGI, all versions, on /generate and /v1/completions
    "eos": "stop",  # Together; llama.cpp's stop_type
    "stop_sequence": "stop",  # TGI
    "stop_token": "stop",
    "stop_str": "stop",  # LMDeploy, RTP-LLM
    "end_turn": "stop",  # servers that pass Anthropic's reasons on
    "word": "stop",  # llama.cpp's stop_type
    "max_tokens": "length",  # servers that pass Anthropic's reasons on; instructor is misled by it
    "max_new_tokens": "length",
    "max_length": "length",
    "limit": "length",  # llama.cpp's stop_type
    "model_length": "length",  # Mistral
    "repetition": "length",  # vLLM 0.1x and later: it cut a repeating loop
    "tool_call": "tool_calls",  # mlx-lm 0.30.0-0.30.4
    "tool_use": "tool_calls",
    "function": "function_call",
    "content_filtered": "content_filter",
    "safety": "content_filter",
}
"""Spelling, lower case -> reason."""

FAILURES: dict[str, str] = {
    "abort": "the backend aborted the request",  # vLLM V1, SGLang: shutdown, a dead engine
    "aborted": "the backend aborted the request",
    "error": "the backend reported an error",
    "canceled": "the backend cancelled the request",  # mistral.rs
    "cancelled": "the backend cancelled the request",
    "timeout": "the backend ran out of time",  # TensorRT-LLM
    "parse_error": "the backend could not parse what the model wrote",  # LMDeploy
    "insufficient_system_resource": "the backend ran out of resources",  # DeepSeek
}
"""Spelling, lower case -> what happened. Never "stop" (contract rule 1)."""


class Failure(str):
    """A finish reason that says the answer failed, as the backend spelled it."""

    __slots__ = ()


def _words(beginnings: str) -> re.Pattern[str]:
    """Return what finds a word that begins so, among words that "_" joins."""
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(beginnings.split())})")


_DENIED: Final = re.compile(r"(?<![a-z0-9])(?:no|non|not|without)_[a-z0-9]+")
_CAUSES: Final = _words(
    "time(?:d_?)?_?out deadline network connection disconnect overload quota rate_?limit "
    "retr(?:y|ies) unavailable crash preempt memory oom(?![a-z]) resource_exhaust kill fatal panic "
    "shut_?down evict unloaded(?![a-z]) dead(?![a-z]) died"
)
_FILTERS: Final = _words(
    "(?:content)?filter safety unsafe sensitiv guardrail refus prohibit recitation toxic moderat "
    "blocked blocklist policy violat harm(?:ful)?(?![a-z]) s?pii(?![a-z]) copyright model_armor "
    "flagged profan nsfw jailbreak censor hate(?![a-z]) violence sexual abus inappropriate"
)
_LIMITS: Final = _words("length max limit window overflow exceed truncat budget exhaust too_long")
_ERRORS: Final = _words("error fail abort cancel interrupt exception malformed invalid unexpected")
LIKE: Final = (
    ("failure", _CAUSES),
    ("content_filter", _FILTERS),
    ("length", _LIMITS),
    ("failure", _ERRORS),
    ("length", _words("context")),
)
"""What a reason that is in no table is like, by its words; the first that has one of them.

First the causes that are no limit of the answer's, though their words say one ("rate_limit",
"deadline_exceeded", "guardrail_timeout"). What kind of error it was says more than that it was one
(Cohere's ERROR_TOXIC and ERROR_LIMIT, "safety_check_failed"), but a bare "context" says less than
that (Go's "context canceled").
"""


def find_like(words: str) -> str:
    """Return what a reason is like by its words, which "_" joins; "" if none of them is known.

    A word that is denied says nothing ("no_error").
    """
    told = _DENIED.sub("", words)
    return next((kind for kind, pattern in LIKE if pattern.search(told)), "")


_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_GAPS: Final = re.compile(r"[\W_]+")


def split_words(text: str) -> str:
    """Return a text's words in lower case, joined by "_", however they were told apart.

    "MaxTokens", "MAX-TOKENS", "FinishReason.MAX_TOKENS".
    """
    return _GAPS.sub("_", _HUMPS.sub("_", text)).strip("_").lower()


def finish_reason(value: Any, context: Context) -> Reason | Failure | None:
    """Return the contract's reason for whatever a server put there; None if it gives none.

    Counts `finish_reason_empty`, `finish_reason_object` and `finish_reason_<spelling>`; for one
    that is in no table by what its words are like `finish_reason_like_content_filter`,
    `finish_reason_like_length` or `finish_reason_like_failure`; for one that nobody knows
    `finish_reason_unknown`: the finish stage then decides from the answer. Sources: contract rule
    1; Gemini's FinishReason, Cohere's finish_reason, Amazon Bedrock's and Anthropic's stop reasons,
    LM Studio's (modelUnloaded), gRPC's status (RESOURCE_EXHAUSTED).
    """
    if isinstance(value, dict):  # SGLang /generate: {"type": "stop", "matched": 151645}
        context.note("finish_reason_object")
        value = value.get("type", value.get("reason"))
    if value is None:
        return None
    if not isinstance(value, str):
        context.note("finish_reason_unknown")
        return None
    if value in CONTRACT:
        return value  # type: ignore[return-value]
    key = split_words(value)
    if key in ("", "null", "none"):  # TGI 1.4.5-3.3, Ollama 0.1.3x, cortex: "" on every chunk
        context.note("finish_reason_empty")
        return None
    if key in FAILURES:
        return Failure(key)
    if key in CONTRACT:
        context.note("finish_reason_case")
        return key  # type: ignore[return-value]
    if key in REASONS:
        context.note(f"finish_reason_{key}")
        return REASONS[key]
    return _reason_like(key, context)


def _reason_like(key: str, context: Context) -> Reason | Failure | None:
    """Return what a reason that is in no table tells by its words."""
    kind = find_like(key)
    if kind == "failure":
        return Failure(key)
    if kind == "length":
        context.note("finish_reason_like_length")
        return "length"
    if kind == "content_filter":
        context.note("finish_reason_like_content_filter")
        return "content_filter"
    context.note("finish_reason_unknown")
    return None


_SPELLED = ("finish_reason", "stop_type", "done_reason")
_FLAGS: dict[str, Reason] = {
    "stopped_eos": "stop",
    "stopped_word": "stop",
    "stopped_limit": "length",
}
ELSEWHERE = (*_SPELLED, *_FLAGS)
"""Keys that tell a reason beside a finish_reason that is null or absent."""


def finish_reason_elsewhere(holder: dict[str, Any], context: Context) -> Reason | Failure | None:
    """Return the reason that an object without finish_reason tells by llama.cpp's or Ollama's keys.

    `holder` is a choice, its delta, or what stands beside `choices`. Reads `stop_type`,
    `done_reason` and the `stopped_eos`, `stopped_word`, `stopped_limit` booleans (llama.cpp <=
    b4273), in a delta `finish_reason` too (`finish_reason_misplaced`), and removes them all. A
    null, "" or "none" says nothing: it is on every chunk.
    """
    said = {key: holder.pop(key) for key in ELSEWHERE if key in holder}
    for key in _SPELLED:
        value = said.get(key)
        if not isinstance(value, str | dict) or _is_blank(value):
            continue
        if key == "finish_reason":
            context.note("finish_reason_misplaced")
        else:
            context.note(f"finish_reason_{key}")
        return finish_reason(value, context)
    found = [reason for key, reason in _FLAGS.items() if said.get(key) is True]
    if found:
        context.note("finish_reason_stopped_flags")
    return found[0] if found else None


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in ("", "none", "null")


def repair_made_body(events: list[Event], context: Context) -> list[Event]:
    """Return the events of a whole answer, put right if cortex made it; changes the list.

    Such a body is known by its constant `system_fingerprint` "_". Sources: CreateFullReturnJson in
    src/llama_engine.cc of cortex.llamacpp (2024-11 to 2025-05), and in
    engine/extensions/local-engine/local_engine.cc of cortex.cpp (1.0.13, 2025-04, and later).

    It says "stop" however an answer ended. A count that has reached the limit is "length"
    (`finish_reason_stop_at_limit`), which is true too where the last token allowed was the end's. A
    stop string that is found in the text is a stop all the same, since its stage comes later. Asked
    for logprobs, cortex.cpp 1.0.13 reads llama-server's answer by keys that it has not, which
    leaves no text and no counts: a failure (`error_answer_lost`).
    """
    if not any(type(x) is Start and x.system_fingerprint == NO_FINGERPRINT for x in events):
        return events
    usages = [x for x in events if type(x) is Usage]
    ends = [at for at, x in enumerate(events) if type(x) is Finish]
    if len(usages) != 1 or len(ends) != 1:
        return events
    usage, end = usages[0], events[ends[0]]
    said = any(type(x) is Text and x.text for x in events)
    if context.exchange.logprobs and usage.prompt == usage.completion == 0 and not said:
        context.note("error_answer_lost")
        return [_ANSWER_LOST]
    limit, count = context.exchange.max_tokens, usage.completion
    if limit is None or count is None or count < limit:
        return events
    if type(end) is Finish and end.reason == "stop":
        context.note("finish_reason_stop_at_limit")
        events[ends[0]] = Finish(end.choice, "length", end.alone)
    return events
