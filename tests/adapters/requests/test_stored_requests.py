"""What a request for stored completions may ask, and how a wrong one is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.stored import (
    Page,
    decode_completions,
    decode_messages,
    decode_update,
)

Json = dict[str, Any]


def completions(query: str, **more: Any) -> Page:
    return decode_completions(parse_qsl(query, keep_blank_values=True), **more)


def messages(query: str) -> Page:
    return decode_messages(parse_qsl(query, keep_blank_values=True))


def test_nothing_asked_is_the_first_twenty_oldest_first() -> None:
    assert completions("") == Page(None, 20, False, None, {})
    assert messages("") == Page(None, 20, False, None, {})


@pytest.mark.parametrize(
    ("query", "page"),
    [
        # as openai-python 3.52 and openai-node 6.49 write them
        ("after=chatcmpl-1&limit=2&order=desc", Page("chatcmpl-1", 2, True, None, {})),
        ("metadata%5Btopic%5D=a+b&metadata%5Bx%5D=%C3%A9", {"topic": "a b", "x": "é"}),
        # as OpenAI's reference writes them
        ("metadata[key1]=value1&metadata[key2]=value2", {"key1": "value1", "key2": "value2"}),
        ("metadata[a[b]]=c&metadata[]]=d&metadata[%0A]=%00", {"a[b]": "c", "]": "d", "\n": "\0"}),
        ("model=org%2Fname&order=asc&limit=100", Page(None, 100, False, "org/name", {})),
        ("after=&limit=1&api-version=preview", Page(None, 1, False, None, {})),
        ("metadata[]=a", {"": "a"}),
        ("model=", Page(None, 20, False, "", {})),  # no model is called so: an empty page
    ],
)
def test_what_is_asked(query: str, page: Page | dict[str, str]) -> None:
    wanted = page if isinstance(page, Page) else Page(None, 20, False, None, page)
    assert completions(query) == wanted


LONG = "&".join(f"metadata[k{n}]=v" for n in range(17))
WRONG = [
    ("order=newest", "order", "invalid_value", "'asc' and 'desc'"),
    ("order=", "order", "invalid_value", "'asc' and 'desc'"),
    ("limit=0", "limit", "integer_below_min_value", ">= 1, but got 0"),
    ("limit=-3", "limit", "integer_below_min_value", "got -3"),
    ("limit=101", "limit", "integer_above_max_value", "<= 100, but got 101"),
    ("limit=" + "9" * 5000, "limit", "integer_above_max_value", "9..."),
    ("limit=-" + "9" * 5000, "limit", "integer_below_min_value", "9..."),
    ("limit=abc", "limit", "invalid_type", "expected an integer"),
    ("limit=1.5", "limit", "invalid_type", "expected an integer"),
    ("limit=", "limit", "invalid_type", "expected an integer"),
    ("limit=%D9%A3", "limit", "invalid_type", "expected an integer"),  # a digit, but not ASCII
    ("limit=1&limit=2", "limit", "duplicate_parameter", "once"),
    ("after=a&after=a", "after", "duplicate_parameter", "once"),
    ("oder=desc", "oder", "unknown_parameter", "Did you mean 'order'?"),
    ("metdata[a]=b", "metdata[a]", "unknown_parameter", "Known here: after, limit, metadata"),
    ("before=x", "before", "unknown_parameter", "Known here"),
    ("%20=", " ", "unknown_parameter", "Known here"),
    ("metadata=a", "metadata", "invalid_value", "metadata[topic]=weather"),
    ("metadata[a=b", "metadata", "invalid_value", "metadata[topic]=weather"),
    ("metadata[=a", "metadata", "invalid_value", "metadata[topic]=weather"),
    ("metadata[a]x=b", "metadata", "invalid_value", "metadata[topic]=weather"),
    ("metadata.a=b", "metadata", "invalid_value", "metadata[topic]=weather"),
    ("metadata[a]=1&metadata%5Ba%5D=2", "metadata[a]", "duplicate_parameter", "once"),
    (LONG, "metadata", "object_above_max_properties", "at most 16"),
    (f"metadata[{'k' * 65}]=v", "metadata", "property_name_above_max_length", "64"),
    (f"metadata[k]={'v' * 513}", "metadata.k", "string_above_max_length", "512"),
]


def refusal(decode: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        decode()
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(("query", "param", "code", "said"), WRONG)
def test_a_wrong_query_is_told(query: str, param: str | None, code: str, said: str) -> None:
    error = refusal(lambda: completions(query))
    assert (error.param, error.code) == (param, code)
    assert said in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize("query", ["model=m", "metadata[a]=b", "metadata=b"])
def test_messages_have_no_filters(query: str) -> None:
    error = refusal(lambda: messages(query))
    assert error.code == "unknown_parameter"
    assert "Known here: after, limit, order." in error.message


def test_a_filter_may_be_as_large_as_metadata() -> None:
    pairs = {f"{n:064}": "é" * 512 for n in range(16)}
    query = "&".join(f"metadata[{key}]={value}" for key, value in pairs.items())
    assert completions(query).metadata == pairs


@pytest.mark.parametrize(
    ("body", "metadata"),
    [
        (b'{"metadata": {"a": "b", "c": ""}}', {"a": "b", "c": ""}),
        (b'{"metadata": {}}', {}),
        (b' {"metadata": null} ', {}),
    ],
)
def test_an_update(body: bytes, metadata: dict[str, str]) -> None:
    assert decode_update(body) == metadata


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "metadata", "missing_required_parameter"),
        ({"metdata": {}}, "metadata", "missing_required_parameter"),
        ({"metadata": {}, "model": "m"}, "model", "unknown_parameter"),
        ([], None, "invalid_type"),
    ],
)
def test_an_update_that_is_none(body: Any, param: str | None, code: str) -> None:
    error = refusal(lambda: decode_update(json.dumps(body).encode()))
    assert (error.param, error.code) == (param, code)


WRONG_METADATA: list[Any] = [
    "text",
    ["a"],
    {"a": 1},
    {"a": None},
    {"a": {"b": "c"}},
    {f"k{n}": "v" for n in range(17)},
    {"k" * 65: "v"},
    {"k": "v" * 513},
]


@pytest.mark.parametrize("metadata", WRONG_METADATA)
def test_an_update_is_refused_in_the_words_of_the_request_that_creates(metadata: Any) -> None:
    updated = refusal(lambda: decode_update(json.dumps({"metadata": metadata}).encode()))
    chat: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "store": True}
    created = refusal(lambda: decode_chat(json.dumps({**chat, "metadata": metadata}).encode()))
    assert updated.body() == created.body()
    assert (updated.param or "").startswith("metadata")


def test_a_route_without_openais_bounds_takes_more() -> None:
    pairs = {f"{'k' * 80}{n}": "v" * 600 for n in range(20)}
    body = json.dumps({"metadata": pairs}).encode()
    assert decode_update(body, bounds="backend") == pairs
    assert refusal(lambda: decode_update(body)).code == "object_above_max_properties"
    query = f"metadata[k]={'v' * 600}"
    assert completions(query, bounds="backend").metadata == {"k": "v" * 600}


@pytest.mark.parametrize("body", [b"", b"{", b'{"metadata": {"a": "\xff"}}', b'{"metadata":"\\ud8'])
def test_an_update_that_is_no_json(body: bytes) -> None:
    assert refusal(lambda: decode_update(body)).code == "invalid_json"
