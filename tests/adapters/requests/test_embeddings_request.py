"""The request for embeddings: its bounds, and what a backend is sent for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.requests.embeddings import (
    decode_embeddings,
    inputs,
    prepare_embeddings,
    refuses_base64,
)
from wellspoken.adapters.requests.errors import RequestError

REFUSED: list[tuple[str, str | None, str | None]] = [
    ('{"input": "x"}', None, None),
    ('{"model": "m"}', "input", "missing_required_parameter"),
    ('{"model": "m", "input": null}', "input", "missing_required_parameter"),
    ('{"model": "m", "input": ""}', "input", "empty_string"),
    ('{"model": "m", "input": []}', "input", "empty_array"),
    ('{"model": "m", "input": [[]]}', "input", "empty_array"),
    ('{"model": "m", "input": ["a", ""]}', "input", "empty_string"),
    ('{"model": "m", "input": 5}', "input", "invalid_type"),
    ('{"model": "m", "input": {"a": 1}}', "input", "invalid_type"),
    ('{"model": "m", "input": [true]}', "input", "invalid_type"),
    ('{"model": "m", "input": ["a", 1]}', "input", "invalid_type"),
    ('{"model": "m", "input": ["a", [1]]}', "input", "invalid_type"),
    ('{"model": "m", "input": [1.5]}', "input", "invalid_type"),
    ('{"model": "m", "input": [-1]}', "input", "integer_below_min_value"),
    ('{"model": "m", "input": [[3], [-1]]}', "input", "integer_below_min_value"),
    ('{"model": "m", "input": "x", "dimensions": 0}', "dimensions", "integer_below_min_value"),
    ('{"model": "m", "input": "x", "dimensions": "8"}', "dimensions", "invalid_type"),
    ('{"model": "m", "input": "x", "encoding_format": "f16"}', "encoding_format", "invalid_value"),
    ('{"model": "m", "input": "x", "user": 1}', "user", "invalid_type"),
    ('{"model": 1, "input": "x"}', "model", "invalid_type"),
    ("[]", None, "invalid_type"),
    ('{"model"', None, "invalid_json"),
]


@pytest.mark.parametrize(("body", "param", "code"), REFUSED)
def test_a_request_out_of_bounds_is_refused(body: str, param: str | None, code: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        decode_embeddings(body.encode())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


def test_at_most_2048_inputs() -> None:
    def sent(count: int, one: Any) -> bytes:
        return json.dumps({"model": "m", "input": [one] * count}).encode()

    for one in ("x", 7, [7]):
        decode_embeddings(sent(2048, one))
        with pytest.raises(RequestError, match="maximum length 2048"):
            decode_embeddings(sent(2049, one))
        decode_embeddings(sent(2049, one), bounds="backend")


@pytest.mark.parametrize(
    "body",
    ['{"content": "x"}', '{"input": ""}', '{"messages": [{}]}', '{"input": [{}]}'],
)
def test_other_forms_pass_where_the_backends_bounds_hold(body: str) -> None:
    wanted = decode_embeddings(body.encode(), bounds="backend")
    assert prepare_embeddings(wanted, model=None) == body.replace(" ", "").encode()


@pytest.mark.parametrize(
    ("given_input", "count"), [("a", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2], [3]], 3)]
)
def test_inputs_are_counted(given_input: Any, count: int) -> None:
    body = json.dumps({"model": "m", "input": given_input}).encode()
    assert len(inputs(decode_embeddings(body))) == count


BODY = (
    b'{"truncate": {"at" : 1e2},"model": "m", "oai_compat": true, "user": null,'
    b' "encoding_format": "base64", "input": "\\u0041b"}'
)


def test_what_is_sent_is_the_clients_byte_for_byte() -> None:
    wanted = decode_embeddings(BODY)
    assert prepare_embeddings(wanted, model=None) == (
        b'{"truncate":{"at" : 1e2},"model":"m","encoding_format":"base64","input":"\\u0041b"}'
    )
    assert prepare_embeddings(wanted, model="other", vendor="strip", floats=True) == (
        b'{"model":"other","input":"\\u0041b"}'
    )
    with pytest.raises(RequestError) as caught:
        prepare_embeddings(wanted, model=None, vendor="reject")
    assert (caught.value.param, caught.value.code) == ("truncate", "unknown_parameter")


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (400, b"base64 encoding is not currently supported", True),
        (422, b'[{"loc": ["body", "encoding_format"], "msg": "extra fields"}]', True),
        (500, b"Base64 is not implemented", True),
        (400, b"the input is too long", False),
        (401, b"base64", False),
        (404, b"base64", False),
        (429, b"base64", False),
        (503, b"base64", False),
        (200, b"base64", False),
    ],
)
def test_only_an_error_about_base64_asks_for_floats(
    status: int, said: bytes, refused: bool
) -> None:
    notes = Notes()
    assert refuses_base64(notes, status, said) == refused
    assert notes.counts == ({"embedding_base64_refused": 1} if refused else {})


def test_answers_in_forms_of_vllm_alone_are_not_looked_at() -> None:
    for more in ('"encoding_format": "bytes"', '"embed_dtype": "float16"', '"oai_compat": false'):
        body = f'{{"model": "m", "input": "x", {more}}}'.encode()
        assert decode_embeddings(body, bounds="backend").untouched
    assert not decode_embeddings(BODY).untouched
