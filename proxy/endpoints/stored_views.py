"""A stored row as OpenAI's API shows it: a chat completion with its parameters, and its messages.

Nothing is decoded that can be spliced, so every number leaves as it was stored. The keys and their
order are those of the examples in OpenAI's reference (GET /chat/completions/{completion_id} and
.../messages). What it does not say: a parameter that was not sent is null, since what a backend
takes instead is not known; a key of the answer that is not OpenAI's stays, unless it bears the name
of one of the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Raw, json

from wellspoken.proxy.store.rows import Row

NULL = Raw(b"null")
OPENING = b'{"object":"list","data":['
"""What a page begins with; its items follow, with commas between them, and then `closing`."""

_ORDER = (
    "object", "id", "model", "created", "request_id", "tool_choice", "usage", "seed", "top_p",
    "temperature", "presence_penalty", "frequency_penalty", "system_fingerprint", "input_user",
    "service_tier", "tools", "metadata", "choices", "response_format",
)  # fmt: skip
"""OpenAI's keys of a stored completion, in its order."""

_SENT = (
    "tool_choice", "seed", "top_p", "temperature", "presence_penalty", "frequency_penalty",
    "tools", "response_format",
)  # fmt: skip
"""The parameters among them, under their own names."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


class Messages(NamedTuple):
    """One page of a conversation: the messages as JSON, their ids, and whether more follow."""

    items: list[bytes]
    ids: list[str]
    more: bool


_fields_of = json.Decoder(dict[str, Raw]).decode
_items_of = json.Decoder(list[Raw]).decode
_encode = json.Encoder().encode


def completion(row: Row) -> bytes:
    """Return a row as OpenAI's stored chat completion, JSON. A thread's work on a large one."""
    answer, sent = _fields_of(row.answer), _fields_of(row.parameters)
    user = sent.get("user", NULL)
    if bytes(user) == b"null":  # OpenAI replaced `user` by `safety_identifier`, and not this name
        user = sent.get("safety_identifier", NULL)
    known: dict[str, Any] = answer | {key: sent.get(key, NULL) for key in _SENT}
    known |= {"request_id": row.request_id, "input_user": user, "metadata": row.metadata}
    shown = {key: known[key] for key in _ORDER if key in known}
    return _encode(shown | {key: value for key, value in answer.items() if key not in shown})


def completions(rows: Sequence[Row], more: bool) -> bytes:
    """Return rows as one page of OpenAI's ChatCompletionList, JSON."""
    return page([completion(row) for row in rows], [row.id for row in rows], more)


def page(items: Sequence[bytes], ids: Sequence[str], more: bool) -> bytes:
    """Return a list object of OpenAI's."""
    return OPENING + b",".join(items) + closing(ids, more)


def closing(ids: Sequence[str], more: bool) -> bytes:
    """Return what follows the items of a page; an empty one has null as its first and last id."""
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return b'],"first_id":%b,"last_id":%b,"has_more":%b}' % (
        _encode(first),
        _encode(last),
        b"true" if more else b"false",
    )


def messages(row: Row, after: str | None, limit: int, descending: bool) -> Messages | None:
    """Return at most `limit` messages behind the one whose id is `after`; None: no message has it.

    They are those of the request, as in OpenAI's example: the answer is in the completion.
    """
    found = _items_of(row.messages)
    places = range(len(found))
    if descending:
        places = places[::-1]
    if after is not None:
        prefix, _, number = after.rpartition("-")
        known = prefix == row.id and _NUMBER.fullmatch(number) and int(number) < len(found)
        if not known:
            return None
        places = places[places.index(int(number)) + 1 :]
    ids = [f"{row.id}-{place}" for place in places[:limit]]
    items = [_message(found[place], id) for place, id in zip(places, ids, strict=False)]
    return Messages(items, ids, len(places) > limit)


def _message(sent: Raw, id: str) -> bytes:
    """Return one message as stored, with an id, and its parts beside the text that it lacks."""
    fields = _fields_of(sent)
    content = fields.get("content", NULL)
    in_parts = bytes(content).startswith(b"[")
    shown: dict[str, Any] = {
        "id": id,
        "role": fields.get("role", NULL),
        "content": NULL if in_parts else content,
        "name": fields.get("name", NULL),
        "content_parts": content if in_parts else NULL,
    }
    return _encode(shown | {key: value for key, value in fields.items() if key not in shown})
