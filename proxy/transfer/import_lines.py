"""A line of a file as a stored completion or response: what export writes, and convert's records.

What a line lacks of an answer is made as `wellspoken convert` makes it, so that what is stored is a
chat completion in every case. Only `full` lines have an id of their own. The others get one that is
a digest of the line, so that the same file, imported again, adds nothing; for the same reason two
lines that are the same are one completion.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from wellspoken.adapters.answer_schema import ChatCompletion, ChatId, Count, Created, Text
from wellspoken.adapters.nesting import is_too_deep
from wellspoken.adapters.servers import registry
from wellspoken.proxy.store.kept_responses import KeptResponse, has_responses
from wellspoken.proxy.store.rows import BESIDE, Row
from wellspoken.proxy.transfer.converter import NO_MODEL, Converter
from wellspoken.proxy.transfer.jsonl import (
    Fields,
    RejectedLine,
    encode,
    fields_of,
    is_given,
    objects_of,
)

SHAPES: Final = (
    'a line is {"messages": [..., the answer]}, {"item": {"input": ...}, "sample": ...} or '
    '{"request": ..., "response": ...}, or a response\'s {"history", "input", "response"}'
)

ResponseId = Annotated[str, Meta(pattern=r"^resp_[!-~]{8,}\Z")]
_REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Message(Struct):
    role: Literal["assistant"]
    content: str | None


class _Choice(Struct):
    index: Count
    message: _Message
    finish_reason: Text


class _Usage(Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class _Answer(Struct):
    """What every stored answer has; with `extensions = "all"` it may have any key beside."""

    id: ChatId
    object: Literal["chat.completion"]
    created: Created
    model: Text
    choices: list[_Choice]
    usage: _Usage


class _Response(Struct):
    """What every stored response has; the keys that repeat its request are a client's affair."""

    id: ResponseId
    object: Literal["response"]
    created_at: Created
    model: Text
    output: list[Fields]


class _Sample(Struct):
    """What an eval's sample tells of an answer, as a model grader or an export writes it."""

    model: str | None = None
    choices: list[Fields] | None = None
    output_text: str | None = None
    output_tools: list[Fields] | None = None
    finish_reason: str | None = None
    usage: Raw = Raw(b"null")


_conforming_of = msgspec.json.Decoder(ChatCompletion).decode
_answer_of = msgspec.json.Decoder(_Answer).decode
_response_of = msgspec.json.Decoder(_Response).decode
_sample_of = msgspec.json.Decoder(_Sample).decode
_pairs_of = msgspec.json.Decoder(dict[str, str]).decode


class RowReader:
    """Makes rows of lines.

    `now`: epoch seconds, when an answer was made whose line does not say it. `owner`: whose the
    rows are; None leaves `full` lines with their owners, and gives the others none. `model`: of
    answers whose lines name none.
    """

    def __init__(self, *, now: int, owner: str | None = None, model: str | None = None) -> None:
        self.now = now
        self.owner = owner
        self.model = model or NO_MODEL
        self._digest = b""
        self._ids = 0
        self._converter = Converter(now=now, new_id=self._new_id, backend=registry.find("auto"))

    def row(self, line: bytes) -> Row:
        """Return the row of a line (without its end); raise RejectedLine if it holds none."""
        fields = _object(line, "the line")
        # Of what a line wraps, each part may be as deep as a request or an answer.
        if any(is_too_deep(bytes(value)) for value in fields.values()):
            raise RejectedLine("the line is no JSON object: it nests too deeply")
        try:
            line.decode()  # what is kept as it is was looked through, but not for UTF-8
            if "request" in fields and "response" in fields:
                return _full(fields, self.owner) if _is_full(fields) else self._record(line, fields)
            if "messages" in fields:
                return self._example(line, fields)
            if {"history", "input", "response"} <= fields.keys():
                return _response_row(fields, self.owner)
            if "item" in fields:
                return self._eval(line, fields)
        except _REFUSED as error:
            raise RejectedLine(f"the line cannot be read: {error}") from None
        if "choices" in fields:
            raise RejectedLine(f"an answer without its request; {SHAPES}")
        raise RejectedLine(f"not a shape that is known: {SHAPES}")

    def _record(self, line: bytes, fields: Fields) -> Row:
        request = _object(fields["request"], "the request")
        if "body" in request:  # a line of OpenAI's batch input
            request = _object(request["body"], "the request")
        if "messages" not in request:
            raise RejectedLine("the request has no messages: only chat completions are stored")
        response = _object(fields["response"], "the response")
        if "body" in response and "choices" not in response:
            response = _object(response["body"], "the response")
        return self._made(line, request, response, _pairs(fields, request))

    def _example(self, line: bytes, fields: Fields) -> Row:
        messages = objects_of(fields.pop("messages"))
        if not messages or bytes(messages[-1].get("role", b"")) != b'"assistant"':
            raise RejectedLine("the last message is not the assistant's, so there is no answer")
        answer = messages.pop()
        answer.pop("weight", None)
        request = fields | {"messages": Raw(encode(messages))}
        return self._made(line, request, self._response(answer), _pairs(fields))

    def _eval(self, line: bytes, fields: Fields) -> Row:
        item = _object(fields["item"], "the item")
        if not is_given(fields.get("sample")):
            raise RejectedLine("a line without a sample, so there is no answer")
        if "input" not in item:
            raise RejectedLine("the item has no input, so there are no messages")
        sample = _sample_of(fields["sample"])
        request = _object(item["parameters"], "item.parameters") if "parameters" in item else {}
        request["messages"] = _input(item["input"])
        if sample.choices:
            numbered: list[dict[str, Any]] = [
                choice | {"index": at} for at, choice in enumerate(sample.choices)
            ]
            response: Fields = {"choices": Raw(encode(numbered))}
        else:
            response = self._response(_message_of(sample), sample.finish_reason)
        if sample.model:
            response["model"] = Raw(encode(sample.model))
        if "created" in item:
            response["created"] = item["created"]
        if is_given(sample.usage):
            response["usage"] = sample.usage
        if "n" in request or len(sample.choices or ()) > 1:
            request["n"] = Raw(b"%d" % len(sample.choices or [0]))
        return self._made(line, request, response, _pairs(item))

    def _response(self, message: Fields, reason: str | None = None) -> Fields:
        calls = next((key for key in ("tool_calls", "function_call") if key in message), "stop")
        choice = {"index": 0, "message": message, "finish_reason": reason or calls}
        return {"choices": Raw(encode([choice]))}

    def _made(self, line: bytes, request: Fields, response: Fields, pairs: dict[str, str]) -> Row:
        """Return the row of a request and an answer that may lack anything."""
        owner = self.owner or ""
        self._digest, self._ids = sha256(b"%b\n%b" % (owner.encode(), line)).digest(), 0
        model = response.get("model", request.get("model", Raw(encode(self.model))))
        request.setdefault("model", model)
        made = {
            "id": Raw(encode(f"chatcmpl-{self._new_id()}")),
            "object": Raw(b'"chat.completion"'),
            "created": response.get("created", Raw(b"%d" % self.now)),
            "model": model,
        }
        response = made | response | made
        return _row(owner, "", self._conforming(request, response), request, pairs)

    def _conforming(self, request: Fields, response: Fields) -> bytes:
        """Return an answer as it is if it is one of OpenAI's, else what convert makes of it."""
        answer = encode(response)
        try:
            _conforming_of(answer)
            return answer
        except _REFUSED:
            pass
        asked = {key: value for key, value in request.items() if key not in ("store", "metadata")}
        record = self._converter.convert(encode({"request": asked, "response": response})).line
        return bytes(fields_of(record)["response"])

    def _new_id(self) -> str:
        self._ids += 1
        return sha256(b"%b%d" % (self._digest, self._ids)).hexdigest()[:24]


def _is_full(fields: Fields) -> bool:
    """Say whether a record is what export wrote: then its id is the answer's."""
    response = _object(fields["response"], "the response")
    return "request_id" in fields and fields.get("id") == response.get("id") is not None


def _full(fields: Fields, owner: str | None) -> Row:
    request = _object(fields["request"], "the request")
    if owner is None:
        owner = _owner(fields)
    request_id = msgspec.json.decode(fields["request_id"], type=str)
    return _row(owner, request_id, bytes(fields["response"]), request, _pairs(fields, request))


def _response_row(fields: Fields, owner: str | None) -> Row:
    """Return the row of a response, which only the full format has."""
    try:
        found = _response_of(fields["response"])
    except _REFUSED as error:
        raise RejectedLine(f"the response is none of the Responses API: {error}") from None
    lists = {name: bytes(fields[name]) for name in ("input", "history")}
    for name, items in lists.items():
        try:
            objects_of(items)
        except _REFUSED as error:
            raise RejectedLine(f"the response's {name} cannot be read: {error}") from None
    kept = KeptResponse(
        found.id,
        _owner(fields) if owner is None else owner,
        msgspec.json.decode(fields.get("request_id", b'""'), type=str),
        found.created_at,
        found.model,
        bytes(fields["response"]),
        **lists,
    )
    return kept.make_row()


def _owner(fields: Fields) -> str:
    """Return whose a line of the full format is."""
    owner = msgspec.json.decode(fields.get("owner", b'""'), type=str)
    if has_responses(owner):
        raise RejectedLine("its owner is none that a key stands for")
    return owner


def _row(owner: str, request_id: str, answer: bytes, request: Fields, pairs: dict[str, str]) -> Row:
    try:
        found = _answer_of(answer)
    except _REFUSED as error:
        raise RejectedLine(f"the response is no chat completion: {error}") from None
    if found.id.endswith("\n"):  # which the $ of its pattern lets through
        raise RejectedLine("the response is no chat completion: its id ends with a line")
    messages = bytes(request.get("messages", b"[]"))
    try:
        objects_of(messages)
    except _REFUSED as error:
        raise RejectedLine(f"the request's messages cannot be read: {error}") from None
    parameters = encode({key: value for key, value in request.items() if key not in BESIDE})
    return Row(
        found.id, owner, found.created, found.model, request_id, pairs, answer, parameters, messages
    )


def _object(data: bytes | Raw, what: str) -> Fields:
    try:
        return fields_of(data)
    except _REFUSED as error:
        raise RejectedLine(f"{what} is no JSON object: {error}") from None


def _pairs(*places: Fields) -> dict[str, str]:
    """Return the metadata of the first that has it."""
    for fields in places:
        if is_given(fields.get("metadata")):
            try:
                return _pairs_of(fields["metadata"])
            except _REFUSED:
                raise RejectedLine("metadata has to be an object whose values are texts") from None
    return {}


def _input(value: Raw) -> Raw:
    """Return messages; a text is what a user said."""
    if bytes(memoryview(value)[:1]) != b'"':
        return value
    return Raw(encode([{"role": "user", "content": value}]))


def _message_of(sample: _Sample) -> Fields:
    """Return the message of a sample that has no choices."""
    if sample.output_text is None and not sample.output_tools:
        raise RejectedLine("the sample has neither choices nor output_text")
    message = {"role": Raw(b'"assistant"'), "content": Raw(encode(sample.output_text or None))}
    if sample.output_tools:
        message["tool_calls"] = Raw(encode(sample.output_tools))
    elif not sample.output_text:
        message["content"] = Raw(b'""')
    return message
