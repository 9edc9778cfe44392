"""OpenAI's embeddings: the request, its bounds, and what a backend is sent for it."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final, Self

from msgspec import Raw, Struct, field, json, structs

from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import type_of
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.requests.shapes import OUR_KEYS, Bounds
from wellspoken.adapters.requests.vendor import Policy, not_openai

Input = str | list[int]
"""One text to embed, or its token ids."""

EMBEDDINGS: Final = ("/v1/embeddings", "/embeddings")
"""Where clients ask for embeddings; a backend is asked at the first that it has."""

MOST_INPUTS: Final = 2048
FORMATS: Final = ("float", "base64")
LITERAL: Final = frozenset({"embed_dtype", "endianness"})
"""vLLM's keys by which the numbers are other than float32, little-endian; such an answer stays."""

_NULL: Final = b"null"
_encode = json.Encoder().encode


class EmbeddingRequest(Struct, kw_only=True):
    """The body of POST /v1/embeddings: the typed parameters, None where absent or null.

    `fields` is every top-level key as sent, in the client's order; the decoder sets it.
    """

    model: str = ""
    input: Any = None
    dimensions: int | None = None
    encoding_format: str | None = None
    user: str | None = None
    oai_compat: bool | None = True  # our own key; False: this answer passes through untouched
    fields: dict[str, Raw] = field(name="wellspoken.fields", default_factory=dict)

    def drop_text(self) -> Self:
        """Return the request without its input, which `fields` have as it was sent."""
        return structs.replace(self, input=None)

    def read_text(self) -> Self:
        """Return the request with its input, read again where it was dropped."""
        if self.input is not None:
            return self
        return structs.replace(self, input=json.decode(self.fields.get("input", b"null")))

    @property
    def base64(self) -> bool:
        """Whether the client wants base64."""
        return self.encoding_format == "base64"

    @property
    def untouched(self) -> bool:
        """Whether the answer leaves as it comes: so asked for, or in a form that only vLLM has."""
        other = self.encoding_format not in (None, *FORMATS)
        return self.oai_compat is False or other or not LITERAL.isdisjoint(self.fields)


EMBEDDING_KEYS: Final = frozenset(EmbeddingRequest.__struct_fields__) - OUR_KEYS - {"fields"}
"""The top-level keys of OpenAI's request; every other one is a vendor's."""

_decode = json.Decoder(EmbeddingRequest).decode


def decode_embeddings(body: bytes, *, bounds: Bounds = "openai") -> EmbeddingRequest:
    """Return the request in `body`; raise `RequestError` 400 for what OpenAI would refuse.

    `bounds="backend"` checks types alone and leaves the rest to the backend: other forms of input
    (vLLM's `messages`, llama.cpp's `content`), empty texts, more than 2048 of them.
    """
    request, fields = parse(body, _decode, '{"model": ..., "input": ...}')
    request.fields = fields
    check(request, strict=bounds == "openai")
    return request


def check(request: EmbeddingRequest, strict: bool) -> None:
    """Raise `RequestError` for the first value out of bounds."""
    if strict and isinstance(request.input, list) and len(request.input) > MOST_INPUTS:
        raise errors.too_long("input", "array", MOST_INPUTS, len(request.input))
    given = inputs(request)
    low = min(chain.from_iterable(one for one in given if isinstance(one, list)), default=0)
    if low < 0:
        raise errors.out_of_range("input", "integer", str(low), 0, None)
    if not strict:
        return
    if not request.model:
        raise errors.no_model()
    if request.input is None:
        raise errors.missing("input", "Send a text, an array of texts, or token ids.")
    if request.input == []:
        raise errors.empty("input", "array")
    if not given or len({type(one) for one in given}) > 1:
        forms = "a string, an array of strings, of integers or of arrays of integers"
        raise errors.wrong_type("input", forms, _describe(request.input))
    for one in given:
        if not one:
            raise errors.empty("input", "string" if isinstance(one, str) else "array")
    if request.dimensions is not None and request.dimensions < 1:
        raise errors.out_of_range("dimensions", "integer", str(request.dimensions), 1, None)
    if request.encoding_format not in (None, *FORMATS):
        raise errors.wrong_value("encoding_format", str(request.encoding_format), FORMATS)


def _describe(value: Any) -> str:
    if not isinstance(value, list):
        return type_of(value)
    kinds = sorted({type_of(item) for item in value})
    return f"an array with {' and '.join(kinds)}"


def inputs(request: EmbeddingRequest) -> list[Input]:
    """Return what is to be embedded, in order; empty where the form is not OpenAI's."""
    given = request.input
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        return []
    kinds = set(map(type, given))  # without a step of Python for each: there may be millions
    if kinds == {int}:
        return [given]
    ids = chain.from_iterable(one for one in given if isinstance(one, list))
    return given if kinds <= {str, list} and set(map(type, ids)) <= {int} else []


def prepare_embeddings(
    request: EmbeddingRequest,
    *,
    model: str | None,
    vendor: Policy = "pass",
    floats: bool = False,
) -> bytes:
    """Return the JSON for a backend, its values in the client's order, byte for byte.

    `model` is the route's name for the model, None to keep the client's. `vendor`: what becomes of
    keys that are not OpenAI's; "reject" raises `RequestError` 400. `floats`: the backend has
    refused base64, so no format is asked for; floats are every server's default.
    """
    sent: dict[str, Any] = {}
    for key, value in request.fields.items():
        ours = key in EMBEDDING_KEYS
        if key in OUR_KEYS or (floats and key == "encoding_format"):
            continue
        if ours and (request.oai_compat is False or bytes(value) != _NULL):
            sent[key] = value
        elif not ours and vendor == "reject":
            raise not_openai(key)
        elif not ours and vendor == "pass":
            sent[key] = value
    if model is not None:
        sent["model"] = model
    return _encode(sent)


_OTHER_REASONS: Final = frozenset({401, 403, 404, 408, 429})


def refuses_base64(notes: Notes, status: int, data: bytes) -> bool:
    """Say whether an error is about the encoding, so that floats are to be asked for.

    vLLM <= 0.5.0 says "base64 encoding is not currently supported". Counts
    `embedding_base64_refused`.
    """
    if not 400 <= status <= 501 or status in _OTHER_REASONS:
        return False
    said = data.lower()
    if b"base64" not in said and b"encoding_format" not in said:
        return False
    notes.add("embedding_base64_refused")
    return True
