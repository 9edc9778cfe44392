"""Embeddings: the fixtures, and exact numbers in either form."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.json import decode as json_decode
from openai.types import CreateEmbeddingResponse

from tests.adapters.embeddings import ROOT, Fixture, Replayed, fixtures, replay
from tests.conformance.embeddings import check_embeddings
from tests.examples import examples
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.embeddings import (
    decode_embeddings,
)
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.vocabulary import from_tiktoken_file
from wellspoken.adapters.translate_embeddings import translate_embeddings

Json = dict[str, Any]
FIXTURES = fixtures()
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(st.lists(FLOAT32, min_size=1, max_size=6), min_size=1, max_size=4)


def encoded(vector: list[float]) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def answer(vectors: list[Any], **more: Any) -> Json:
    data = [{"object": "embedding", "index": at, "embedding": x} for at, x in enumerate(vectors)]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return {"object": "list", "data": data, "model": "m", "usage": usage, **more}


def asked(count: int, encoding: str = "float", **more: Any) -> Json:
    return {"model": "m", "input": ["x"] * count, "encoding_format": encoding, **more}


def replayed(payload: Any, request: Json) -> Replayed:
    return replay(200, request, json.dumps(payload).encode())


def numbers_of(raw: bytes) -> list[list[float]]:
    """Return the vectors in any shape of a good fixture, read without the translation."""
    payload = json.loads(raw)
    rows = payload
    if isinstance(payload, dict):
        rows = payload.get("data") or payload.get("embeddings") or [payload["embedding"]]
    if isinstance(rows[0], dict):
        places = [row.get("index") for row in rows]
        if sorted(places, key=str) == list(range(len(rows))):
            rows = sorted(rows, key=lambda row: int(row["index"]))
        rows = [row["embedding"] for row in rows]
    found = []
    for row in rows:
        if isinstance(row, str):
            found.append(np.frombuffer(base64.b64decode(row), "<f4").tolist())
        else:
            found.append(row[0] if isinstance(row[0], list) else row)
    return found


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda x: f"{x.server}/{x.name}")
def test_a_fixture_becomes_what_is_expected(fixture: Fixture) -> None:
    assert fixture.provenance.startswith(("captured from ", "constructed"))
    made = replay(fixture.status, fixture.request, fixture.raw)
    assert made.outcome == fixture.outcome
    assert made.body == fixture.expected


def test_what_is_expected_is_of_these_fixtures() -> None:
    for outcomes in ROOT.glob("*/expected.json"):
        names = [x.name for x in FIXTURES if x.server == outcomes.parent.name]
        assert sorted(json.loads(outcomes.read_text())) == sorted(names)
    assert len(FIXTURES) == len({(x.server, x.name) for x in FIXTURES}) > 30


@pytest.mark.parametrize(
    "fixture",
    [x for x in FIXTURES if x.outcome["status"] == 200],
    ids=lambda x: f"{x.server}/{x.name}",
)
def test_a_good_answer_conforms_and_no_number_is_lost(fixture: Fixture) -> None:
    made = replay(fixture.status, fixture.request, fixture.raw)
    encoding = fixture.request.get("encoding_format", "float")
    vectors = numbers_of(fixture.raw)
    found = check_embeddings(
        made.body, model=fixture.request["model"], encoding=encoding, vectors=vectors
    )
    assert found == []
    if encoding == "float":
        CreateEmbeddingResponse.model_validate_json(made.body, strict=True)


def test_an_answer_of_openais_own_form_leaves_as_it_came() -> None:
    raw = next(x.raw for x in FIXTURES if (x.server, x.name) == ("llamacpp", "float.json"))
    assert replay(200, {"model": "tiny", "input": "hello"}, raw).body is raw
    again = replay(200, {"model": "other", "input": "hello"}, raw)
    assert again.body is not raw and again.repairs == {"model_not_requested": 1}


GOOD = json.dumps(answer([[0.5, -0.1], [2.0, 3.0]])).encode()
MUTANTS: list[Callable[[Json], Any]] = [
    lambda body: body.pop("usage"),
    lambda body: body["usage"].update(total_tokens=4),
    lambda body: body["usage"].update(prompt_tokens=0, total_tokens=0),
    lambda body: body["usage"].update(completion_tokens=0),
    lambda body: body.update(object="embeddings"),
    lambda body: body.update(model="other"),
    lambda body: body.update(id="embd-1"),
    lambda body: body["data"].pop(),
    lambda body: body["data"].reverse(),
    lambda body: body["data"][0].update(index=1),
    lambda body: body["data"][0].update(index=0.0),
    lambda body: body["data"][0].pop("object"),
    lambda body: body["data"][1].update(embedding=[2.0, 3.0000001]),
    lambda body: body["data"][1].update(embedding=[2.0, None]),
    lambda body: body["data"][1].update(embedding=encoded([2.0, 3.0])),
    lambda body: body["data"][1].update(embedding=[[2.0, 3.0]]),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_check_rejects_a_mutant(mutant: Callable[[Json], Any]) -> None:
    facts: Json = {"model": "m", "encoding": "float", "vectors": [[0.5, -0.1], [2.0, 3.0]]}
    assert check_embeddings(GOOD, **facts, tokens=3) == []
    body = json.loads(GOOD)
    mutant(body)
    assert check_embeddings(json.dumps(body).encode(), **facts, tokens=3)


@pytest.mark.parametrize(
    "wrong",
    [
        [0.5, -0.1],
        base64.b64encode(np.asarray([0.5, -0.1], ">f4").tobytes()).decode(),
        base64.b64encode(np.asarray([0.5, -0.1], "<f8").tobytes()).decode(),
        encoded([0.5, float(np.nextafter(np.float32(-0.1), np.float32(0)))]),
    ],
)
def test_the_check_rejects_other_base64(wrong: Any) -> None:
    facts: Json = {"model": "m", "encoding": "base64", "vectors": [[0.5, -0.1]]}
    good = json.dumps(answer([encoded([0.5, -0.1])])).encode()
    assert check_embeddings(good, **facts) == []
    assert check_embeddings(json.dumps(answer([wrong])).encode(), **facts)


@settings(deadline=None)
@given(VECTORS)
def test_floats_and_base64_are_one_another_exactly(vectors: list[list[float]]) -> None:
    count = len(vectors)
    there = replayed(answer(vectors), asked(count, "base64"))
    assert there.repairs == {"embedding_base64_missing": count}
    assert check_embeddings(there.body, model="m", encoding="base64", vectors=vectors) == []
    back = replay(200, asked(count), there.body)
    assert back.repairs == {"embedding_base64_unasked": count}
    found = [row["embedding"] for row in json.loads(back.body)["data"]]
    assert [list(map(math.copysign, x, x)) for x in found] == vectors
    again = replay(200, asked(count, "base64"), back.body)
    assert json.loads(again.body) == json.loads(there.body)


@settings(deadline=None)
@given(st.lists(st.floats(-3e38, 3e38), min_size=1, max_size=8))
def test_a_number_goes_to_its_nearest_float32(vector: list[float]) -> None:
    made = replayed(answer([vector]), asked(1, "base64"))
    assert check_embeddings(made.body, model="m", encoding="base64", vectors=[vector]) == []


@settings(deadline=None)
@given(st.permutations(range(5)))
def test_entries_come_in_order_of_their_index(order: list[int]) -> None:
    body = answer([[float(at), 1.0] for at in range(5)])
    body["data"] = [body["data"][at] for at in order]
    made = replayed(body, asked(5))
    assert [row["embedding"][0] for row in json.loads(made.body)["data"]] == [0, 1, 2, 3, 4]
    assert ("embeddings_out_of_order" in made.repairs) == (order != sorted(order))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("form", ["float", "base64"])
def test_what_is_not_finite_is_an_error_in_each_form(bad: float | None, form: str) -> None:
    given_forms: list[Any] = [[0.5, bad]]
    if bad is not None:
        given_forms.append(encoded([0.5, bad]))
    for value in given_forms:
        made = replayed(answer([[1.0, 2.0], value]), asked(2, form))
        error = json.loads(made.body)["error"]
        assert (made.status, error["code"]) == (502, "embedding_not_finite")
        assert "input 1" in error["message"]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["data", "embedding", "embeddings", "index", "usage", "object"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ),
    st.sampled_from(["float", "base64"]),
)
def test_nonsense_is_an_error_of_the_envelope_or_embeddings(payload: Any, form: str) -> None:
    made = replayed(payload, {"model": "m", "input": "x", "encoding_format": form})
    body = json.loads(made.body)
    if made.status == 200:
        (row,) = body["data"]
        value = row["embedding"]
        vector = value if form == "float" else np.frombuffer(base64.b64decode(value), "<f4")
        assert (
            check_embeddings(
                made.body, model="m", encoding=form, vectors=[[float(x) for x in vector]]
            )
            == []
        )
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}


def exchange(**more: Any) -> Exchange:
    return Exchange(model="m", now=1, new_id=lambda: "0" * 24, **more)


def test_missing_usage_is_counted_by_the_tokenizer() -> None:
    ranks = "\n".join(f"{base64.b64encode(bytes([x])).decode()} {x}" for x in range(256))
    vocabulary = from_tiktoken_file(ranks.encode())
    wanted = decode_embeddings(b'{"model": "m", "input": ["abc", "de"]}')
    context = exchange(tokens=TokenTable(vocabulary))
    body = answer([[1.0], [2.0]])
    del body["usage"]
    made = json.loads(translate_embeddings(context, wanted, 200, json.dumps(body).encode()).body)
    assert made["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert context.result.usage_source == "tokenizer"


@pytest.mark.parametrize(
    ("usage", "prompt"),
    [
        ({"total_tokens": 3}, 3),
        ({"total_tokens": 3, "prompt_tokens": None}, 3),
        ({"total_tokens": 3.0, "prompt_tokens": 3.0}, 3),
        ({"total_tokens": "3", "prompt_tokens": "3"}, 3),
        ({"total_tokens": 3, "prompt_tokens": 2, "completion_tokens": 1}, 2),
    ],
)
def test_the_backends_count_survives_as_an_integer(usage: Json, prompt: int) -> None:
    """An embedding makes no tokens, so its total is the prompt's; 3.0 is no integer to a client."""
    wanted, context = decode_embeddings(b'{"model": "m", "input": "x"}'), exchange()
    body = json.dumps(answer([[1.0]], usage=usage)).encode()
    made = json.loads(translate_embeddings(context, wanted, 200, body).body)
    assert made["usage"] == {"prompt_tokens": prompt, "total_tokens": prompt}
    assert all(type(count) is int for count in made["usage"].values())
    assert context.result.usage_source == "backend"


@pytest.mark.parametrize("dimensions", [0, -1])
def test_dimensions_that_only_the_backend_understands_are_its_affair(dimensions: int) -> None:
    body = json.dumps({"model": "m", "input": "x", "dimensions": dimensions}).encode()
    wanted = decode_embeddings(body, bounds="backend")
    made = translate_embeddings(exchange(), wanted, 200, json.dumps(answer([[1.0]])).encode())
    assert made.status == 200


@pytest.mark.no_cover
def test_megabytes_of_inputs_take_no_longer_than_their_decoding() -> None:
    body = b'{"model":"m","input":[' + b"[1]," * 1_000_000 + b"[1]]}"
    began = time.process_time()
    json_decode(body)
    plain = time.process_time() - began
    began = time.process_time()
    with pytest.raises(RequestError, match="maximum length 2048"):
        decode_embeddings(body)
    assert time.process_time() - began < 2 * plain + 0.4  # a step of Python for each: 4 times


def test_extensions_keep_what_the_contract_lacks() -> None:
    wanted = decode_embeddings(b'{"model": "m", "input": "x"}')
    body = answer([[1.0]], id="embd-1", created=7)
    body["data"][0]["truncated"] = True
    raw = json.dumps(body).encode()
    kept = exchange(extensions="all")
    assert translate_embeddings(kept, wanted, 200, raw).body is raw
    one = exchange(keep=frozenset({"id"}))
    made = json.loads(translate_embeddings(one, wanted, 200, raw).body)
    assert made["id"] == "embd-1" and "created" not in made
    assert one.notes.fields == {"created": 1, "truncated": 1}
