"""Requests that pass through: only the model's name changes, whatever the JSON looks like."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.renaming import asks_stream, decode_named, with_values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.just('"model": "x"'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "a", "}", ":"]) | st.text(max_size=3), inner)
    ),
    max_leaves=12,
)
SPACES = st.text(" \t\r\n", max_size=3)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=5), VALUES), max_size=4),
    st.text(min_size=1),
    st.text(min_size=1),
    st.data(),
)
def test_only_the_models_value_changes(
    pairs: list[tuple[str, Any]], old: str, new: str, data: st.DataObject
) -> None:
    """The bytes before and after stay, as the one text of the request that names the model."""
    place = data.draw(st.integers(0, len(pairs)))
    others = list({key: (key, value) for key, value in pairs if key != "model"}.values())
    place = min(place, len(others))
    spelled = json.dumps(old, ensure_ascii=data.draw(st.booleans()))

    def joined(model: str) -> bytes:
        parts = [f"{json.dumps(key)}{space}:{space}{json.dumps(value)}" for key, value in others]
        parts.insert(place, f'"model"{space}:{space}{model}')
        return f"{space}{{{space}{(space + ',').join(parts)}}}{space}".encode()

    space = data.draw(SPACES)
    body = joined(spelled)
    found, fields = decode_named(body)
    assert found == old
    assert with_values(body, fields, {"model": new}) == joined(json.dumps(new, ensure_ascii=False))
    twice = body.rstrip()[:-1] + b',"\\u006dodel":' + json.dumps(new).encode() + b"}"
    with pytest.raises(RequestError, match="'model' stands twice"):
        decode_named(twice)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a"}', b'{"model":"n"}'),
        (b'{"m\\u006fdel" : "a"}', b'{"m\\u006fdel" : "n"}'),
        (b'{"x":{"model":"a"},"model":"b"}', b'{"x":{"model":"a"},"model":"n"}'),
        (b'{"x":["model","a"],"y":"model"}', b'{"x":["model","a"],"y":"model","model":"n"}'),
        (b'{"x":"model","y":"a"} ', b'{"x":"model","y":"a","model":"n"} '),
        (b'{"model":null}', b'{"model":"n"}'),
        (b'{"x":"\\\\","model":"a\\"}"}', b'{"x":"\\\\","model":"n"}'),
        (b" { }\n", b' { "model":"n"}\n'),
        (b'{"":-1e5 ,"model":"b" }', b'{"":-1e5 ,"model":"n" }'),
    ],
)
def test_the_value_is_found_at_the_top_alone(body: bytes, expected: bytes) -> None:
    assert with_values(body, decode_named(body)[1], {"model": "n"}) == expected


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","model":"a"}', "model"),
        (b'{"model":"a","mo\\u0064el":null}', "model"),
        (b'{"n":1,"n":12}', "n"),
        (b'{"n":12,"n":1}', "n"),
        (b'{"n":1,"x":{"n":1},"n":1}', "n"),
        (b'{"x":{"a":[]},"y":2,"x":{"a":[]}}', "x"),
    ],
)
def test_a_key_that_stands_twice_is_refused(body: bytes, name: str) -> None:
    """Servers differ in which of the two counts, so no cap would hold."""
    with pytest.raises(RequestError, match=f"'{name}' stands twice") as caught:
        decode_named(body)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_megabytes_of_any_json_take_no_second() -> None:
    escapes = b'{"x":"' + b'\\"[{' * 250_000 + b'","ids":[' + b"1," * 200_000 + b'1],"model":"a"}'
    brackets = b'{"x":[' + b"[]," * 3_000_000 + b'[]],"model":"a"}'
    for body in (escapes, brackets):
        fields = decode_named(body)[1]
        began = time.process_time()
        assert with_values(body, fields, {"model": "n"}) == body[:-4] + b'"n"}'
        assert time.process_time() - began < 0.5  # 0.01 s; a step of Python for each takes 2 s


@pytest.mark.parametrize(
    ("body", "streams"),
    [(b'{"stream": true}', True), (b'{"stream":false}', False), (b"{}", False)],
)
def test_who_asks_for_a_stream(body: bytes, streams: bool) -> None:
    model, fields = decode_named(body)
    assert model is None and asks_stream(fields) == streams


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"[]", "invalid_type"), (b"", "invalid_json"), (b'{"model": 5}', "invalid_type")],
)
def test_what_names_no_model_by_its_form_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_named(body)
    assert caught.value.code == code
