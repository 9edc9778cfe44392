"""System messages in front of templates that take one alone, as the first message.

Agents send several, and some in the middle of a conversation; OpenAI takes them all. Many templates
raise an exception instead (Qwen 3.5 and 3.6, Mistral, Gemma, Llama 2), which the server tells
before it computes anything: llama.cpp b11549 and vLLM with 400, llama.cpp b7376 with 500, others
in a 200's first event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw, json, structs

from wellspoken.adapters.requests.shapes import ChatRequest, Message

ROLES: Final = ("system", "developer")
_NULL: Final = Raw(b"null")
_encode = json.Encoder().encode
_REFUSED: Final = re.compile(
    rb"system.{0,3}(message|role|prompt|instruction)s?\b.{0,60}\b"
    rb"(begin|beginning|first|start|once|one|single|multiple|only|not supported)\b"
    rb"|\b(only|one|first|multiple|several|second|more than|initial|optional)\b.{0,40}"
    rb"\bsystem.{0,3}(message|role|prompt|instruction)"
    rb"|\broles? (must|should) alternate"
    rb"|\b(unexpected|unsupported|unknown|invalid) role\b.{0,20}\bsystem"
    rb"|\bonly\b.{0,20}\buser\b.{0,40}\broles? (are|is) (supported|allowed)",
    re.IGNORECASE | re.DOTALL,
)


def has_late_system(messages: Sequence[Message]) -> bool:
    """Say whether a message of the system or the developer comes after the first message."""
    for place, message in enumerate(messages):
        if place and message.role in ROLES:
            return True
    return False


def fold_system(request: ChatRequest) -> ChatRequest:
    """Return the request with its system and developer messages as one, which is the first.

    They stay in order, so a prompt that begins alike still does. Texts are joined by an empty line;
    where one is an array of parts, the parts stay as they are (`cache_control` and all). The first
    of them says the role, and each other key that it has.
    """
    if not has_late_system(request.messages):
        return request
    messages = json.decode(request.fields["messages"], type=list[dict[str, Raw]])
    pairs = list(zip(messages, request.messages, strict=True))
    system = [fields for fields, message in pairs if message.role in ROLES]
    folded: dict[str, Any] = {}
    for fields in reversed(system):
        folded.update(fields)
    folded["role"] = system[0]["role"]
    folded["content"] = _join([fields.get("content", _NULL) for fields in system])
    others = [fields for fields, message in pairs if message.role not in ROLES]
    raw = Raw(_encode([folded, *others]))
    fields = {**request.fields, "messages": raw}
    return structs.replace(request, messages=json.decode(raw, type=list[Message]), fields=fields)


def _join(contents: list[Raw]) -> Any:
    """Return the contents of several messages as one: a text, or an array of parts."""
    given = [json.decode(content, type=str | list[Raw] | None) for content in contents]
    texts = [content for content in given if isinstance(content, str) and content]
    if not any(isinstance(content, list) for content in given):
        return "\n\n".join(texts)
    parts: list[Any] = []
    for content in given:
        if isinstance(content, list):
            parts += content
        elif content:
            parts.append({"type": "text", "text": content})
    return parts


def refuses_system(status: int, said: bytes) -> bool:
    """Say whether an answer is a template's refusal of how system messages stand.

    `said`: its body, or of a stream what came first. Words alone tell: templates write their own.
    """
    if status < 400 and (b'"choices"' in said or b"error" not in said):
        return False
    return _REFUSED.search(said) is not None
