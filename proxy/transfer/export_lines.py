"""Stored completions as lines of a file: OpenAI's fine-tuning and eval formats, and a lossless one.

`chat`: a training example of supervised fine-tuning, FineTuneChatRequestInput of OpenAI's published
OpenAPI document (API 2.3.0). `evals`: a row of an eval's JSONL data source (EvalJsonlFileContent of
the same), in which graders find what they find in OpenAI's own stored completions:
`{{item.input}}` and `{{sample.output_text}}` (OpenAI's cookbook, "completion monitoring"; guide
"Graders"). `full`: all that the store has, a completion as a record {"request", "response"}. It
alone has the responses of the Responses API, as {"history", "input", "response"}: what they hold is
no chat that a model could be trained on as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from wellspoken.proxy.store.database import Unreadable
from wellspoken.proxy.store.kept_responses import is_response, response_of
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.transfer.jsonl import Fields, encode, fields_of, is_given, objects_of

Format = Literal["chat", "evals", "full"]

CUT: Final = ("length", "content_filter")
"""Finish reasons of answers that are not whole: a model would learn to break off."""
KEYS: Final = {
    "system": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "refusal", "name", "tool_calls", "function_call", "weight"),
    "tool": ("role", "content", "tool_call_id"),
    "function": ("role", "content", "name"),
}
"""What the messages of a training example may hold; the validator refuses any other key."""
PARTS: Final = {"user": ("text", "image_url"), "assistant": ("text", "refusal")}
"""The parts that a message's content may have; other roles' have text alone."""
SAID: Final = ("content", "refusal", "tool_calls", "function_call")

RESPONSES: Final = "responses"
"""Why responses are left out of formats that are for completions alone."""

_EMPTY: Final = (b"null", b"[]", b'""')
_REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, Unreadable)


class LeftOut(ValueError):
    """A completion that a format has no place for; the text says why, in a few words."""


class _Answer(Struct):
    model: str
    choices: list[Fields]
    usage: Raw = Raw(b"null")


_answer_of = msgspec.json.Decoder(_Answer).decode
_text_of = msgspec.json.Decoder(str).decode


def lines_of(
    row: Row, format: Format, left_out: Callable[[str], object], *, everything: bool = False
) -> list[bytes]:
    """Return the lines of one stored completion or response, each without its end.

    `chat` and `evals` have a line a choice of a completion, `full` has one of each. `left_out` is
    told why there is none, once for each that is missing. `everything` keeps answers that were cut
    or are empty in `chat`.
    """
    try:
        if is_response(row):
            if format != "full":
                raise LeftOut(RESPONSES)
            return [_full_response(row)]
        if format == "full":
            return [_full(row)]
        answer = _answer_of(row.answer)
        if format == "evals":
            return [_eval(row, answer, choice) for choice in answer.choices]
        asked = _training(row)
    except LeftOut as error:
        left_out(str(error))
        return []
    except _REFUSED:
        left_out("unreadable")
        return []
    lines = []
    for choice in answer.choices:
        try:
            lines.append(_example(asked, choice, everything))
        except LeftOut as error:
            left_out(str(error))
    return lines


def _line(value: Any) -> bytes:
    """Return JSON in one line: what the client sent may have line ends between its tokens."""
    line = encode(value)
    if b"\n" in line or b"\r" in line:
        line = msgspec.json.format(line, indent=-1)
    return line


def _full(row: Row) -> bytes:
    request = fields_of(row.parameters) | {"messages": Raw(row.messages)}
    owner = {"owner": row.owner} if row.owner else {}
    return _line(
        {
            "id": row.id,
            "created": row.created,
            "request_id": row.request_id,
            **owner,
            "metadata": row.metadata,
            "request": request,
            "response": Raw(row.answer),
        }
    )


def _full_response(row: Row) -> bytes:
    kept = response_of(row)
    return _line(
        {
            "id": kept.id,
            "created": kept.created,
            "request_id": kept.request_id,
            **({"owner": kept.owner} if kept.owner else {}),
            "metadata": row.metadata,
            "history": Raw(kept.history),
            "input": Raw(kept.input),
            "response": Raw(kept.answer),
        }
    )


def _eval(row: Row, answer: _Answer, choice: Fields) -> bytes:
    message = fields_of(choice["message"])
    text = _text_of(message["content"]) if is_given(message.get("content")) else ""
    parameters = fields_of(row.parameters)
    sample: dict[str, Any] = {
        "model": answer.model,
        "choices": [choice],
        "output_text": text,
        "output_tools": message.get("tool_calls", []),
        "finish_reason": choice["finish_reason"],
    }
    if is_given(parameters.get("response_format")):
        with suppress(*_REFUSED):  # the model was to write an object, which it may not have done
            sample["output_json"] = fields_of(text)
    if len(answer.choices) == 1:
        sample["usage"] = answer.usage  # what all choices took is no single sample's
    item = {
        "input": Raw(row.messages),
        "id": row.id,
        "created": row.created,
        "metadata": row.metadata,
        "parameters": parameters,
    }
    return _line({"item": item, "sample": sample})


def _training(row: Row) -> tuple[list[Fields], Fields]:
    """Return the messages and the tools of a training example, before the answer."""
    parameters = fields_of(row.parameters)
    messages = [_message(message) for message in objects_of(row.messages)]
    tools = {
        key: parameters[key] for key in ("tools", "functions") if is_given(parameters.get(key))
    }
    if any(_is(tool, "type", "custom") for tool in objects_of(tools.get("tools", b"[]"))):
        raise LeftOut("custom tools")
    if "tools" in tools and is_given(parameters.get("parallel_tool_calls")):
        tools["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    return messages, tools


def _example(asked: tuple[list[Fields], Fields], choice: Fields, everything: bool) -> bytes:
    messages, tools = asked
    reason = _text_of(choice["finish_reason"])
    if reason in CUT and not everything:
        raise LeftOut(reason)
    message = fields_of(choice["message"])
    answer = {key: message[key] for key in KEYS["assistant"] if _is_said(message, key)}
    if not any(key in answer for key in SAID):
        if not everything:
            raise LeftOut("empty")
        answer["content"] = Raw(b'""')
    return _line({"messages": [*messages, answer], **tools})


def _message(message: Fields) -> Fields:
    """Return a message of the request as the validator takes it.

    It knows no developer, no key beside `KEYS`, no audio and no files, and no parts in what a tool
    said ("Input should be a valid string", OpenAI's forum, thread 965584).
    """
    role = _text_of(message["role"])
    if role == "developer":
        role = "system"
        message = message | {"role": Raw(b'"system"')}
    if role not in KEYS:
        raise LeftOut("a role of no training example")
    kept = {key: message[key] for key in KEYS[role] if is_given(message.get(key))}
    content = bytes(kept.get("content", b"null"))
    if content[:1] == b"[":
        parts = objects_of(content)
        if not all(_is(part, "type", *PARTS.get(role, ("text",))) for part in parts):
            raise LeftOut("audio, files or a misplaced image")
        if role in ("tool", "function"):
            texts = [_text_of(part["text"]) for part in parts if "text" in part]
            kept["content"] = Raw(encode("\n".join(texts)))
    if role == "assistant" and not any(key in kept for key in SAID):
        raise LeftOut("an empty message")
    if role != "assistant":
        kept.setdefault("content", Raw(b'""'))
    return kept


def _is_said(message: Fields, key: str) -> bool:
    value = message.get(key)
    return value is not None and bytes(memoryview(value)[:5]) not in _EMPTY


def _is(fields: Fields, key: str, *values: str) -> bool:
    value = fields.get(key)
    return value is not None and bytes(value)[1:-1].decode() in values
