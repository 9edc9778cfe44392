"""One stored answer, as a line of a file holds it, and what it becomes.

A line is a bare answer, a record {"request", "response"} or a line of OpenAI's batch output
({"custom_id", "response": {"status_code", "body"}}). What wraps an answer stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from wellspoken.adapters.exchange import SWITCHED, Exchange
from wellspoken.adapters.repairs.loose_json import parse, raw
from wellspoken.adapters.requests.chat import decode_chat, exchange_for
from wellspoken.adapters.requests.completions import decode_completion, exchange_for_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ALL_ALTERNATIVES
from wellspoken.adapters.servers.backend import Backend, Dialect
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.translate import translate_body
from wellspoken.proxy.transfer.jsonl import Fields, RejectedLine, encode, fields_of, objects_of

SWITCHES: Final = frozenset(SWITCHED.values()) - {"return_token_ids"}
KEPT: Final = frozenset(SWITCHED)  # token ids too, but none is missed that nobody asked for
NATIVE: Final = ("stop", "stop_type", "tokens_predicted", "generation_settings")
"""Keys of llama.cpp's /completion, one of which stands beside its `content`."""
NO_MODEL: Final = "unknown"  # the model of an answer that names none, nor does its request
NO_MESSAGES: Final = b'[{"role":"user","content":""}]'
LONGEST_PROMPT: Final = 1 << 24  # characters; an offset beyond is taken for nonsense

_EMPTY: Final = (b"null", b"{}", b"[]", b'""')
_READ: Final = frozenset({"response", "body", "choices", "logprobs"})  # NaN in them is repaired
_REFUSED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_values_of = msgspec.json.Decoder(list[Any]).decode


class Converted(Struct):
    """A line's conversion: the new `line` without its end, and the repairs with their counts."""

    line: bytes
    changed: bool
    repairs: dict[str, int]


@dataclass(slots=True, kw_only=True)
class Converter:
    """Converts lines one at a time.

    `now`: the epoch seconds that replace a `created` which is none. `new_id`: a fresh suffix of at
    least 8 url-safe characters each call. `backend` says what an answer is whose shape does not.
    `chat`: a completions answer becomes a chat completion too.
    """

    now: int
    new_id: Callable[[], str]
    backend: Backend
    chat: bool = False
    tokens: TokenTable = field(default_factory=TokenTable)

    def convert(self, line: bytes) -> Converted:
        """Return what a line (without its end) becomes; raise RejectedLine if it is no answer."""
        outer, strict = _read(line, "the line")
        if "response" not in outer or "choices" in outer:
            answer, repairs = self._answer(None, 200, line, outer)
            return Converted(answer, answer != line, repairs)
        status, body, inner = _response(outer)
        fields = _fields(body, "the response")
        answer, repairs = self._answer(outer.get("request"), status, body, fields)
        changed = answer != body
        if not changed and strict:
            return Converted(line, False, repairs)
        if inner is not None:
            inner["body"] = Raw(answer)
            answer = encode(inner)
        outer["response"] = Raw(answer)
        if not changed:
            repairs = {**repairs, "shape_unusual": 1}  # what wraps it was not strict JSON
        return Converted(encode(outer), True, repairs)

    def _answer(
        self, request: Raw | None, status: int, body: bytes, fields: Fields
    ) -> tuple[bytes, dict[str, int]]:
        dialect = _dialect(fields, self.backend)
        asked = _fields(bytes(request), "the request") if request and _is_given(request) else {}
        if "body" in asked:  # a line of OpenAI's batch input
            asked = _fields(bytes(asked["body"]), "the request")
        if asked:
            exchange = self._exchange_of_request(fields, asked, dialect)
        else:
            exchange = self._infer_exchange(fields, dialect)
        if self.chat or dialect == "llamacpp":
            exchange = replace(exchange, kind="chat")
        answer = translate_body(exchange, status, "application/json", body, dialect)
        if answer.status >= 400:
            said = msgspec.json.decode(answer.body)["error"]["message"]
            raise RejectedLine(f"no answer but an error ({answer.status}): {said}")
        return answer.body.replace(b"\r", b" "), exchange.notes.counts

    def _exchange_of_request(self, fields: Fields, asked: Fields, dialect: Dialect) -> Exchange:
        """Return the exchange of a stored request, which may be as short as its logprobs."""
        given = {key: value for key, value in asked.items() if bytes(value) != b"null"}
        for key in ("stream", "stream_options", "oai_compat"):
            given.pop(key, None)  # however it came, it is a whole answer here
        given.setdefault("model", Raw(encode(_model(fields))))
        try:
            if "messages" in given or ("prompt" not in given and dialect == "chat"):
                given.setdefault("messages", Raw(NO_MESSAGES))
                chat = decode_chat(encode(given), bounds="backend")
                return exchange_for(chat, now=self.now, new_id=self.new_id, tokens=self.tokens)
            given.setdefault("prompt", Raw(b'""'))
            text = decode_completion(encode(given), bounds="backend", native_names=True)
        except RequestError as error:
            raise RejectedLine(f"the request cannot be read: {error.message}") from None
        exchange = exchange_for_completion(
            text, now=self.now, new_id=self.new_id, tokens=self.tokens
        )
        if not text.prompt:
            exchange = replace(exchange, prompts=_prompts(_choices(fields)))
        return exchange

    def _infer_exchange(self, fields: Fields, dialect: Dialect) -> Exchange:
        """Return the exchange of an answer whose request was not kept: it got all it holds."""
        choices = _choices(fields)
        text = dialect == "completions"
        echo = text and any(_has_echo(choice) for choice in choices)
        messages = [_object(choice.get("message")) for choice in choices]
        return Exchange(
            kind="completions" if text else "chat",
            echo=echo,
            prompts=_prompts(choices) if text and not echo else (),
            model=_model(fields),
            now=self.now,
            new_id=self.new_id,
            tokens=self.tokens,
            logprobs=_is_given(fields.get("completion_probabilities"))
            or any(_is_given(choice.get("logprobs")) for choice in choices),
            k=ALL_ALTERNATIVES,
            n=max(len(choices), 1),
            functions=any(_is_given(message.get("function_call")) for message in messages)
            and not any(_is_given(message.get("tool_calls")) for message in messages),
            service_tier=bytes(fields.get("service_tier", b"")) == b'"default"',
            switches=SWITCHES,
            keep=KEPT,
        )


def _response(outer: Fields) -> tuple[int, bytes, Fields | None]:
    """Return status and answer of a record, and for a batch line the object that holds them."""
    response = outer["response"]
    if not _is_given(response):
        error = outer.get("error")
        why = f": {bytes(error).decode()}" if error is not None and _is_given(error) else ""
        raise RejectedLine(f"a record without a response{why}")
    inner = _fields(bytes(response), "the response")
    if "body" not in inner or "choices" in inner:
        return 200, bytes(response), None
    status = inner.get("status_code", Raw(b"200"))
    code = bytes(status)
    return int(code) if code.isdigit() and len(code) == 3 else 200, bytes(inner["body"]), inner


def _dialect(fields: Fields, backend: Backend) -> Dialect:
    """Return what an answer is read as, by its shape; the backend tells where that does not."""
    if "choices" in fields:
        first = next(iter(_choices(fields)), {})
        if "message" in first or "delta" in first:
            return "chat"  # TGI 1.4 says "text_completion" of a chat
        of = bytes(fields.get("object", b""))
        text = "text" in first and of != b'"chat.completion"'
        return "completions" if text or of == b'"text_completion"' else "chat"
    native = backend.native == "/completion" or any(key in fields for key in NATIVE)
    return "llamacpp" if native and "content" in fields else "chat"


def _fields(data: bytes, what: str) -> Fields:
    """Return an object's values; raise RejectedLine if `data` is none."""
    return _read(data, what)[0]


def _read(data: bytes, what: str) -> tuple[Fields, bool]:
    """Return an object's values, and whether they stand as they were in `data`.

    Where the JSON is not strict (NaN, bytes that are not UTF-8), they are written anew.
    """
    try:
        if not data.isascii():
            data.decode()
        return fields_of(data), True
    except _REFUSED:
        pass
    try:
        value = parse(data)
    except ValueError as error:
        why = str(error).removeprefix("JSON is malformed: ")
        raise RejectedLine(
            f"{what} is not JSON: {why}. One JSON object a line is expected (jq -c . writes that)"
        ) from None
    if not isinstance(value, dict):
        name = "a list" if isinstance(value, list) else json.dumps(value)[:40]
        raise RejectedLine(f"{what} is {name}, not a JSON object")
    return {key: _raw(item) if key in _READ else raw(item) for key, item in value.items()}, False


def _raw(value: Any) -> Raw:
    """Return JSON that keeps NaN and the infinities, which the answer's own reader repairs."""
    return Raw(json.dumps(value, ensure_ascii=False).encode())


def _is_given(value: Raw | None) -> bool:
    """Say whether a key stands there with a value that is not empty."""
    return value is not None and bytes(memoryview(value)[:5]) not in _EMPTY


def _choices(fields: Fields) -> list[Fields]:
    """Return the choices' values; what is no list of objects has none."""
    given = fields.get("choices")
    if given is None:
        return []
    try:
        return objects_of(given)
    except _REFUSED:
        value = parse(bytes(given))
    items = value if isinstance(value, list) else [value]
    return [
        {key: _raw(item) for key, item in choice.items()}
        for choice in items
        if isinstance(choice, dict)
    ]


def _object(value: Raw | None) -> Fields:
    """Return an object's values, none where it is something else."""
    try:
        return {} if value is None else fields_of(value)
    except _REFUSED:
        return {}


def _model(fields: Fields) -> str:
    """Return the model an answer names."""
    try:
        return msgspec.json.decode(fields.get("model", b""), type=str) or NO_MODEL
    except _REFUSED:
        return NO_MODEL


def _first_of(choice: Fields, name: str) -> tuple[Any, ...]:
    """Return the first value of one of a completions choice's arrays, () where it has none."""
    try:
        return tuple(_values_of(_object(choice.get("logprobs"))[name])[:1])
    except (*_REFUSED, KeyError):
        return ()


def _has_echo(choice: Fields) -> bool:
    """Say whether the arrays begin with a prompt: nothing precedes its first token to score it."""
    return _first_of(choice, "token_logprobs") == (None,)


def _prompts(choices: list[Fields]) -> tuple[str | None, ...]:
    """Return texts as long as the prompts that were not kept: offsets count from their start."""
    firsts = [next(iter(_first_of(choice, "text_offset")), None) for choice in choices]
    return tuple(
        " " * first if isinstance(first, int) and 0 < first <= LONGEST_PROMPT else None
        for first in firsts
    )
