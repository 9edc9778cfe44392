"""A backend's embeddings in OpenAI's form, floats or base64 as the client asked.

The SDKs ask for base64 unless they are told otherwise, and many servers answer lists of floats all
the same. So an answer is read in whichever form it has and leaves in the one that was asked for:
base64 is that of little-endian float32 (OpenAI's documentation of `encoding_format`). To float32
each number goes to its nearest; from it, to the float64 of the same value.

An answer that is OpenAI's already leaves as the backend's own bytes.
"""

from __future__ import annotations

import binascii
import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any, Final

from msgspec import DecodeError, json

from wellspoken.adapters.backend_answer import error_of
from wellspoken.adapters.events import Fault, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs import counts, faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.envelope import model_not_requested
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.requests.embeddings import EmbeddingRequest, inputs
from wellspoken.adapters.stages.usage import BYTES_PER_TOKEN
from wellspoken.adapters.translate import BodyAnswer, fault_answer

_UNUSED: Final = ("completion_tokens", "prompt_tokens_details", "completion_tokens_details")
"""Counts of a completion's usage that an embedding's does not have."""

_encode = json.Encoder().encode
_decode = json.Decoder().decode


class _Failed(Exception):
    """The answer holds no embeddings that the client could be given."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def translate_embeddings(
    exchange: Exchange, request: EmbeddingRequest, status: int, data: bytes
) -> BodyAnswer:
    """Return the client's answer for a backend's whole answer of any kind.

    Shapes: OpenAI's; llama.cpp's list of {index, embedding: [[...]]} (its /embeddings), Ollama's
    {"embeddings": [[...]]}, TEI's bare [[...]]; floats or base64 in each. Sets the exchange's
    `result.usage_source` and counts repairs by name.
    """
    if status >= 300:
        return fault_answer(error_of(exchange, status, data))
    context = Context(exchange)
    before = exchange.notes.changes
    try:
        payload = _parse(data, context)
        made = _answer(payload, request, context)
    except _Failed as failed:
        return fault_answer(failed.fault)
    if exchange.notes.changes == before and _same(made["usage"], payload["usage"]):
        return BodyAnswer(200, data)
    return BodyAnswer(200, _encode(made))


def _same(made: dict[str, int], given: dict[str, Any]) -> bool:
    """Say whether the usage is as the backend wrote it; 2.0 is no integer to every client."""
    return made == given and {type(count) for count in given.values()} == {int}


def _parse(data: bytes, context: Context) -> Any:
    try:
        payload = _decode(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        try:
            payload = parse(data)
        except ValueError:
            text = data[:80].decode("utf-8", "replace")
            raise _no_embeddings(f"it is not JSON ({text!r})", context) from None
        context.note("shape_unusual")
    if faults.is_error(payload) and not _has_rows(payload):
        raise _Failed(faults.fault_from(payload, 200, context))
    return payload


def _has_rows(payload: Any) -> bool:
    return isinstance(payload, dict) and bool(payload.get("data") or payload.get("embeddings"))


def _answer(payload: Any, request: EmbeddingRequest, context: Context) -> dict[str, Any]:
    """Return OpenAI's list; raise `_Failed`."""
    rows = _order(_rows(payload, context), context)
    wanted = len(inputs(request))
    if wanted and len(rows) != wanted:
        raise _no_embeddings(f"it holds {len(rows)} of them for {wanted} inputs", context)
    outer = payload if isinstance(payload, dict) and "data" in payload else {}
    if outer and outer.get("object") != "list":
        context.note("object_wrong")
    made: dict[str, Any] = {"object": "list", "data": []}
    for place, row in enumerate(rows):
        value = _embedding(row.get("embedding"), place, request, context)
        entry = {"object": "embedding", "index": place, "embedding": value}
        made["data"].append(entry | _extras(row, {"object", "index", "embedding"}, context))
    named = outer.get("model") if outer else context.exchange.model
    made["model"] = model_not_requested(named if isinstance(named, str) else "", context)
    made["usage"] = _usage(payload, request, context)
    return made | _extras(outer, {"object", "data", "model", "usage"}, context)


def _rows(payload: Any, context: Context) -> list[dict[str, Any]]:
    """Return the entries as objects; counts `embedding_list_bare`."""
    data: Any = payload.get("data") if isinstance(payload, dict) else None
    named = isinstance(data, list)
    if not named:
        context.note("embedding_list_bare")
        data = payload
        if isinstance(payload, dict):
            data = next((payload[x] for x in ("embeddings", "embedding") if x in payload), None)
        if isinstance(data, list) and data and isinstance(data[0], int | float):
            data = [data]  # the one vector itself
    if not isinstance(data, list) or not data:
        raise _no_embeddings("it has no list of them", context)
    if all(isinstance(row, dict) for row in data):
        return data if named else [row | {"object": "embedding"} for row in data]
    if named:
        context.note("embedding_list_bare")
    return [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(data)]


def _order(rows: list[dict[str, Any]], context: Context) -> list[dict[str, Any]]:
    """Return the entries by their index, or as they came where that tells no order.

    Counts `object_wrong`, `embeddings_out_of_order` and `embedding_index_wrong`.
    """
    if any(row.get("object") != "embedding" for row in rows):
        context.note("object_wrong")
    places: list[Any] = [row.get("index") for row in rows]
    if set(map(type, places)) != {int} or set(places) != set(range(len(rows))):
        context.note("embedding_index_wrong")
        return rows
    if places == sorted(places):
        return rows
    context.note("embeddings_out_of_order")
    return sorted(rows, key=lambda row: int(row["index"]))


def _embedding(
    value: Any, place: int, request: EmbeddingRequest, context: Context
) -> str | Sequence[float]:
    """Return one embedding in the form that was asked for.

    Counts `embedding_nested` (llama.cpp's /embeddings), `embedding_base64_missing` and
    `embedding_base64_unasked`.
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list | str):
        context.note("embedding_nested")
        value = value[0]
    numbers: Sequence[float] | None = _unpack(value) if isinstance(value, str) else None
    if isinstance(value, list) and set(map(type, value)) <= {float, int, type(None)}:
        numbers = value
    if not numbers:
        several = isinstance(value, list) and bool(value) and isinstance(value[0], list)
        raise _no_embeddings(
            "it has one vector for each token, so start the server with pooling (llama.cpp: "
            "--pooling mean)"
            if several
            else f"entry {place} is no list of numbers and no base64 of float32",
            context,
        )
    dimensions = request.dimensions or 0  # with the backend's bounds 0 is for it to read
    if 0 < dimensions != len(numbers):
        raise _Failed(_dimensions_ignored(dimensions, len(numbers)))
    if not _finite(numbers):
        raise _Failed(_not_finite(place))
    if isinstance(value, str):
        if request.base64:
            return value
        context.note("embedding_base64_unasked")
        return numbers
    if not request.base64:
        return numbers
    context.note("embedding_base64_missing")
    return _pack(numbers, place)


def _unpack(text: str) -> tuple[float, ...] | None:
    """Return the numbers of base64 of little-endian float32, None where it is something else."""
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return struct.unpack(f"<{len(data) // 4}f", data) if len(data) % 4 == 0 else None


def _finite(numbers: Sequence[float | None]) -> bool:
    """Say whether each is a finite number; llama.cpp writes null for NaN."""
    try:
        return all(map(math.isfinite, numbers))  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False


def _pack(numbers: Sequence[float], place: int) -> str:
    """Return base64 of the nearest float32 numbers; raise `_Failed` for one beyond their range."""
    try:
        return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode("ascii")
    except OverflowError:
        raise _Failed(_not_finite(place)) from None


def _extras(given: dict[str, Any], known: set[str], context: Context) -> dict[str, Any]:
    """Return the keys beside OpenAI's that the client gets; the others are counted."""
    kept = {}
    for key, value in given.items():
        if key in known:
            continue
        if value is not None and context.exchange.keeps(key):
            kept[key] = value
        elif value is None:
            context.note("null_key_omitted")
        else:
            context.notes.drop(key)
    return kept


def _usage(payload: Any, request: EmbeddingRequest, context: Context) -> dict[str, int]:
    """Return the usage: the backend's, else counted. Sets the exchange's `result.usage_source`."""
    exchange = context.exchange
    given = payload.get("usage") if isinstance(payload, dict) else None
    found = counts.usage(given, context)
    if found is None and isinstance(payload, dict):
        found = counts.from_timings(payload)
        if found is not None:
            context.note("usage_from_timings")
    prompt = found.prompt if found is not None else None
    if isinstance(given, dict):
        if prompt is None:  # no token is made, so the total is the prompt's
            prompt = counts.count(given.get("total_tokens"))
        for key in _UNUSED:
            if given.get(key) is not None:
                context.notes.drop(f"usage.{key}")
    if prompt == 0 and any(inputs(request)):
        context.note("usage_constant")  # llama-cpp-python and llama.cpp before 2024-12 say 0
        prompt = None
    exchange.result.usage_source = "backend"
    if prompt is None:
        context.note("usage_missing")
        prompt, exchange.result.usage_source = _count(request, exchange)
    exchange.result.usage = Usage(prompt, None)
    return {"prompt_tokens": prompt, "total_tokens": prompt}


def _count(request: EmbeddingRequest, exchange: Exchange) -> tuple[int, str]:
    """Return how many tokens the inputs have, and by what that is known."""
    given = inputs(request)
    ids = sum(len(one) for one in given if isinstance(one, list))
    texts = [one for one in given if isinstance(one, str)]
    if given and not texts:
        return ids, "tokens"
    vocabulary = exchange.tokens.vocabulary
    if vocabulary is not None and vocabulary.counts:
        return ids + sum(vocabulary.count(text) or 0 for text in texts), "tokenizer"
    size = sum(-(-len(text.encode()) // BYTES_PER_TOKEN) for text in texts)
    return ids + (size if given else -(-exchange.prompt_size // BYTES_PER_TOKEN)), "estimate"


def _no_embeddings(why: str, context: Context) -> _Failed:
    origin = context.exchange.origin
    where = f" ({origin})" if origin else ""
    return _Failed(
        Fault(
            502,
            f"The backend's answer{where} is no list of embeddings: {why}. Check that its URL "
            "names an OpenAI-compatible server with an embedding model.",
            code="upstream_no_embeddings",
            retry=False,
        )
    )


def _not_finite(place: int) -> Fault:
    return Fault(
        502,
        f"The backend's embedding of input {place} holds a number that is no finite float32 "
        "(null, NaN or beyond its range), so its model has overflowed. Run it in bfloat16 or "
        "float32.",
        code="embedding_not_finite",
        retry=False,
    )


def _dimensions_ignored(wanted: int, got: int) -> Fault:
    return Fault(
        400,
        f"The 'dimensions' parameter is not supported by this model's server: it answered vectors "
        f"of {got} numbers where {wanted} were asked for. Leave it out, or ask for a model whose "
        "server supports it.",
        "invalid_request_error",
        "dimensions",
        "unsupported_parameter",
    )
