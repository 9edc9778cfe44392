"""System messages in front of templates that take one alone, as the first message, or none.

Agents send several, and some in the middle of a conversation; OpenAI takes them all. Many templates
raise an exception instead (Qwen 3.5 and 3.6, later Mistrals, Gemma 3, Llama 2), some at any system
message (Gemma 1 and 2, Mistral 7B 0.1 and 0.2), which the server tells before it computes anything:
llama.cpp b11549 and vLLM with 400, llama.cpp b7376 with 500, others in a 200's first event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Raw, json, structs

from wellspoken.adapters.requests.shapes import ChatRequest, Message

SystemForm = Literal["pass", "fold", "user"]
"""How system messages are sent: as they are, as one, which is the first, or as the user's."""

ROLES: Final = ("system", "developer")
_NULL: Final = Raw(b"null")
_encode = json.Encoder().encode
_TAKES_ONE: Final = re.compile(
    rb"system.{0,3}(message|role|prompt|instruction)s?\b((?!not (supported|allowed)).){0,60}\b"
    rb"(begin|beginning|first|start|once|one|single|multiple|only)\b"
    rb"|\b(only|one|first|multiple|several|second|more than|initial|optional)\b.{0,40}"
    rb"\bsystem.{0,3}(message|role|prompt|instruction)",
    re.IGNORECASE | re.DOTALL,
)
"""A refusal that tells that the template takes a system message, as the first."""

_TAKES_NONE: Final = re.compile(
    rb"system.{0,3}(message|role|prompt|instruction)s?\b.{0,60}\bnot (supported|allowed)\b"
    rb"|\broles? (must|should) alternate"
    rb"|\b(unexpected|unsupported|unknown|invalid) role\b.{0,20}\bsystem"
    rb"|\bonly\b.{0,20}\buser\b.{0,40}\broles? (are|is) (supported|allowed)",
    re.IGNORECASE | re.DOTALL,
)
"""One that leaves open whether it takes any."""


def has_late_system(messages: Sequence[Message]) -> bool:
    """Say whether a message of the system or the developer comes after the first message."""
    for place, message in enumerate(messages):
        if place and message.role in ROLES:
            return True
    return False


def has_system(messages: Sequence[Message]) -> bool:
    """Say whether any message is of the system or the developer."""
    return any(message.role in ROLES for message in messages)


def begins_with_user(messages: Sequence[Message]) -> bool:
    """Say whether the first message of a conversation, not of its system, is the user's."""
    first = next((message for message in messages if message.role not in ROLES), None)
    return first is not None and first.role == "user"


def fold_system(request: ChatRequest) -> ChatRequest:
    """Return the request with its system and developer messages as one, which is the first.

    They stay in order, so a prompt that begins alike still does. Texts are joined by an empty line;
    where one is an array of parts, the parts stay as they are (`cache_control` and all). The first
    of them says the role, and each other key that it has.
    """
    if not has_late_system(request.messages):
        return request
    system, others = _divide(request)
    folded: dict[str, Any] = {}
    for fields in reversed(system):
        folded.update(fields)
    folded["role"] = system[0]["role"]
    folded["content"] = _join([fields.get("content", _NULL) for fields in system])
    return _with_messages(request, [folded, *others])


def send_as_user(request: ChatRequest) -> ChatRequest:
    """Return the request without system and developer messages: the user says first what they do.

    Their contents, joined as `fold_system` does, come before that of the first message, which keeps
    its other keys; where that is not the user's, they are a message of the user before it.
    """
    if not has_system(request.messages):
        return request
    system, others = _divide(request)
    first: dict[str, Any] = {"role": "user"}
    if begins_with_user(request.messages):
        first = {**others.pop(0)}
    contents = [fields.get("content", _NULL) for fields in (*system, first)]
    return _with_messages(request, [{**first, "content": _join(contents)}, *others])


def _divide(request: ChatRequest) -> tuple[list[dict[str, Raw]], list[dict[str, Any]]]:
    """Return the messages of the system and the developer, and the others, each in order."""
    messages = json.decode(request.fields["messages"], type=list[dict[str, Raw]])
    system, others = list[dict[str, Raw]](), list[dict[str, Any]]()
    for fields, message in zip(messages, request.messages, strict=True):
        if message.role in ROLES:
            system.append(fields)
        else:
            others.append({**fields})
    return system, others


def _with_messages(request: ChatRequest, messages: list[dict[str, Any]]) -> ChatRequest:
    raw = Raw(_encode(messages))
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
    return _is_refusal(status, said) and (
        _TAKES_ONE.search(said) is not None or _TAKES_NONE.search(said) is not None
    )


def refuses_role(status: int, said: bytes) -> bool:
    """Say whether it is one of a template that may take no system message at all."""
    return (
        _is_refusal(status, said)
        and _TAKES_ONE.search(said) is None
        and _TAKES_NONE.search(said) is not None
    )


def _is_refusal(status: int, said: bytes) -> bool:
    """Say whether an answer is an error: that of a stream may come in its first event."""
    return status >= 400 or (b'"choices"' not in said and b"error" in said)
