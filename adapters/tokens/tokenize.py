"""Asking a server how many tokens a text has: what it is sent, and what its answer tells.

The answers are read by their shape, so a server needs a `Tokenize` in its own file and no more:

    {"count": 3}, {"count": 3, "tokens": [...]}   vLLM, SGLang, llama-cpp-python
    {"tokens": [1, 2, 3]}                         llama.cpp, of ids or of {id, piece}
    {"value": 3, "ids": [...]}                    KoboldCpp
    {"length": 3, "tokens": [...]}                TabbyAPI, text-generation-webui
    [{"id": 1, "text": ...}, ...]                 text-generation-inference

Sources: vLLM's entrypoints/serve/tokenize/protocol.py (2026) and its protocol.py of 0.5 and 0.8;
SGLang's serving_tokenize.py; llama-cpp-python's server/app.py; llama.cpp b11549, asked; clients of
KoboldCpp; text-generation-inference's router/src/server.rs.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import DecodeError, Meta, Raw, Struct, json

COMMON: Final = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""What of a chat request says which prompt it becomes, at every server that tells."""

MOST: Final = 10**15
_NULL: Final = b"null"
_encode = json.Encoder().encode


class Tokenize(Struct, frozen=True, kw_only=True):
    """Where and how a server counts tokens.

    `path` takes a text under the key `text`. `special` is the key that says whether the tokens that
    begin or end a prompt count too; without one they always do, and the empty text tells how many
    they are. `chat` is the path that takes a chat's messages, "" if none does: it answers a count,
    or (`templates`) the prompt's text. `reads` are the keys of a chat request that it is sent.
    `names_model`: a request has to name the model. `ends`: the server's own usage counts the
    end-of-text token, which no text shows.
    """

    path: str
    text: str
    special: str = ""
    chat: str = ""
    templates: bool = False
    reads: tuple[str, ...] = COMMON
    names_model: bool = False
    ends: bool = False


class Wanted(Struct, frozen=True):
    """What an answer's usage lacks.

    `prompt`: the prompt's count. `texts` and `reasoning`: what each choice said, without empty
    ones. `total` False: the completion's count is known, and only that of the reasoning is not.
    """

    prompt: bool
    total: bool
    texts: tuple[str, ...]
    reasoning: tuple[str, ...]


class Counted(Struct, frozen=True):
    """What was found of it, None for what was not; `texts` and `reasoning` are sums."""

    prompt: int | None = None
    texts: int | None = None
    reasoning: int | None = None


NOTHING: Final = Counted()

_Count = Annotated[int, Meta(ge=0, le=MOST)]


class _CountAnswer(Struct):
    count: _Count | None = None
    value: _Count | None = None
    length: _Count | None = None
    tokens: list[Raw] | None = None


class _Prompt(Struct):
    prompt: str


def request_fields(payload: bytes) -> dict[str, Raw]:
    """Return the top-level values of a request that was made for a backend."""
    return json.decode(payload, type=dict[str, Raw])


def text_request(form: Tokenize, text: str, model: Raw | None, *, prompt: bool) -> bytes:
    """Return the body that asks for a text's count.

    `prompt`: it is a whole prompt, so the tokens that begin or end one count. `model` is the
    server's name for it, None if the request named none.
    """
    body: dict[str, Any] = {}
    if form.names_model and model is not None:
        body["model"] = model
    body[form.text] = text
    if form.special:
        body[form.special] = prompt
    return _encode(body)


def chat_request(form: Tokenize, fields: dict[str, Raw]) -> bytes | None:
    """Return the body that asks for a chat's prompt, None where its count could not be right.

    That is so where messages have parts that are no text: a template shows a mark in their place,
    and the model sees many tokens.
    """
    if not form.chat or _has_media(fields.get("messages", Raw(_NULL))):
        return None
    names = (*(("model",) if form.names_model else ()), *form.reads)
    return _encode({key: fields[key] for key in names if key in fields})


def _has_media(messages: Raw) -> bool:
    """Say whether a part of a message is no text, or whether that cannot be told."""
    found = json.decode(messages)
    if not isinstance(found, list):
        return True
    contents = [x.get("content") if isinstance(x, dict) else None for x in found]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(not isinstance(part, dict) or part.get("type") != "text" for part in parts)


def prompts_in(value: Raw) -> list[str | int] | None:
    """Return the prompts of a completions request: a text, or the number of token ids."""
    found = json.decode(value)
    if isinstance(found, str) or (found and _are_ids(found)):
        found = [found]
    if not isinstance(found, list) or not found:
        return None
    if not all(isinstance(item, str) or _are_ids(item) for item in found):
        return None
    return [item if isinstance(item, str) else len(item) for item in found]


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int}


def read_count(data: bytes) -> int:
    """Return the count that an answer tells; raises ValueError for what tells none."""
    try:
        if data.lstrip()[:1] == b"[":
            return len(json.decode(data, type=list[Raw]))
        found = json.decode(data, type=_CountAnswer)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("a count, or a list of tokens") from error
    for told in (found.count, found.value, found.length):
        if told is not None:
            return told
    if found.tokens is None:
        raise ValueError("a count, or a list of tokens")
    return len(found.tokens)


def read_ids(data: bytes) -> tuple[int, ...] | None:
    """Return the ids of a text's tokens; None for an answer that tells none, only how many."""
    try:
        found = json.decode(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(found, dict):
        found = found.get("tokens", found.get("ids"))
    if not isinstance(found, list):
        return None
    ids: list[Any] = [each.get("id") if isinstance(each, dict) else each for each in found]
    return tuple(ids) if _are_ids(ids) and ids else None


def read_prompt(data: bytes) -> str:
    """Return the text that a template made of messages; raises ValueError for what tells none."""
    try:
        return json.decode(data, type=_Prompt).prompt
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("a text as prompt") from error
