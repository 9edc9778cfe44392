"""Repairs of an answer's envelope: id, created, model and what stands beside them."""

from __future__ import annotations

import re
from typing import Any

from wellspoken.adapters.events import Start
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.tokens.table import digits

PREFIXES = {"chat": "chatcmpl-", "completions": "cmpl-"}
SHORTEST = 8  # characters of a backend's own suffix that make it worth keeping
_PREFIXES = re.compile(r"(chatcmpl|cmpl|chat|gen|resp)-")
_CONTROL = re.compile(r"<[^<>\s]+>")
_SUFFIX = re.compile(r"[A-Za-z0-9_\-]{8,128}")
DAY = 86_400
EPOCH = range(1_000_000_000, 100_000_000_000)  # seconds: 2001 to far beyond; not milliseconds


def start(
    answer_id: str, created: Any, model: str, fingerprint: str | None, context: Context
) -> Start:
    """Return the envelope that the client gets."""
    return Start(
        id_not_chatcmpl(answer_id, context),
        created_not_epoch(created, context),
        model_not_requested(model, context),
        fingerprint,
    )


def id_not_chatcmpl(answer_id: str, context: Context) -> str:
    """Return "chatcmpl-" or "cmpl-" and the backend's own suffix if that has 8 characters or more.

    vLLM <= 0.4 says "cmpl-7f3c" of a chat, llama.cpp "chatcmpl-" of a completion, SGLang a bare hex
    string, mistral.rs "0", TGI "", KoboldCpp always "chatcmpl-A1". Counts `id_not_chatcmpl`,
    `id_not_cmpl`. A stored answer always gets an id of its own, which is no repair: what finds it
    again must not be guessed, nor be another server's too.
    """
    prefix = PREFIXES[context.exchange.kind]
    if context.exchange.stored:
        context.notes.changes += 1  # so that the backend's own bytes do not go out
        return prefix + context.exchange.new_id()
    suffix = _PREFIXES.sub("", answer_id, count=1)
    if not _SUFFIX.fullmatch(suffix):
        suffix = context.exchange.new_id()
    if answer_id != prefix + suffix:
        context.note("id_not_chatcmpl" if prefix == "chatcmpl-" else "id_not_cmpl")
    return prefix + suffix


def created_not_epoch(created: Any, context: Context) -> int:
    """Return epoch seconds: the backend's if it sent some, else the exchange's clock.

    vLLM <= 0.3.3 and OpenLLM send `time.monotonic()`; others milliseconds, a float or a string. A
    stored answer, which is listed and one day deleted by it, keeps none that is a day off.
    """
    value: Any = created
    if isinstance(value, str):
        value = digits(value)
    if isinstance(value, float) and abs(value) < 1e15:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value not in EPOCH:
        value = context.exchange.now
    if context.exchange.stored and abs(value - context.exchange.now) > DAY:
        value = context.exchange.now
    if value is not created:
        context.note("created_not_epoch")
    return int(value)


def model_not_requested(model: str, context: Context) -> str:
    """Return the model that the client asked for; cortex says "_", others a file's path."""
    wanted = context.exchange.model or model
    if model != wanted:
        context.note("model_not_requested")
    return wanted


def without_end_token(part: dict[str, Any], finish_reason: Any, context: Context) -> dict[str, Any]:
    """Return a completion's last piece without the end-of-text token as its text.

    TGI streams the token's name ("</s>") with the reason "eos_token"; its bodies have none. Counts
    `text_end_token`.
    """
    text = part.get("content")
    if finish_reason != "eos_token" or not isinstance(text, str) or not _CONTROL.fullmatch(text):
        return part
    context.note("text_end_token")
    return {**part, "content": ""}


REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
"""Names of the reasoning: DeepSeek and most, vLLM >= 0.16, Ollama, others."""
STRUCTURED = ("reasoning_details", "thinking_blocks")
"""Names of it as a list of parts: OpenRouter and MiniMax, LiteLLM."""
_THOUGHT = re.compile(r"reason|think|thought", re.IGNORECASE)
_HOLDING = (*REASONING, "reasoningContent", "reasoningText")
_TEXTS = (*_HOLDING, "text", "summary", "content")


def is_thought(part: Any) -> bool:
    """Say whether a part of a content is reasoning.

    Mistral's {"type": "thinking", "thinking"}, Databricks' {"type": "reasoning", "summary"},
    OpenRouter's "reasoning.text", Amazon Bedrock's {"reasoningContent"}, Gemini's {"thought"}.
    """
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if isinstance(kind, str) and kind != "text":
        return _THOUGHT.search(kind) is not None
    return part.get("thought") is True or any(key in part for key in _HOLDING)


def text_in(value: Any) -> str:
    """Return the text of what a part or a list of parts holds, however deep it stands there.

    What is encrypted or only signed has none.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = []
        for part in value:  # in loops: a generator would be a second call for each level
            texts.append(text_in(part))
        return "".join(texts)
    if isinstance(value, dict):
        for key in _TEXTS:
            if text := text_in(value.get(key)):
                return text
    return ""


def reasoning_in(part: dict[str, Any]) -> tuple[str, str]:
    """Return the reasoning of a message or delta, and the key that holds it, "" if none does.

    Under several names it is one text. Parts are read where no name tells it as text.
    """
    for key in (*REASONING, "content", *STRUCTURED):
        value = part.get(key)
        if key == "content":
            value = [x for x in value if is_thought(x)] if isinstance(value, list) else None
        if found := text_in(value):
            return found, key
    return "", ""


def content_text(value: Any, context: Context) -> str:
    """Return the text of a message's content: a string, null, or a list of parts (Mistral)."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        context.note("content_parts")
        texts = (x.get("text") if isinstance(x, dict) else x for x in value if not is_thought(x))
        return "".join(text for text in texts if isinstance(text, str))
    if value is not None:
        context.note("content_not_text")
        return str(value)
    return ""


def refusal_in(value: Any) -> str:
    """Return the refusal that stands among a content's parts, as OpenAI's own requests have it."""
    parts = value if isinstance(value, list) else []
    given = [x.get("refusal") for x in parts if isinstance(x, dict) and x.get("type") == "refusal"]
    return "".join(text for text in given if isinstance(text, str))
