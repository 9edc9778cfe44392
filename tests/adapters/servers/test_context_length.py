"""Context lengths: what each server's answers tell, and what is no length.

tests/fixtures/models says of each body where it comes from; none is made to fit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wellspoken.adapters.servers.context_length import (
    MOST,
    positive,
    read_lengths,
    read_shown_length,
)
from wellspoken.adapters.servers.registry import BACKENDS

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"
SAMPLES: list[dict[str, Any]] = json.loads((FIXTURES / "lengths.json").read_text())
SHOWN: list[dict[str, Any]] = json.loads((FIXTURES / "shown.json").read_text())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: str(sample["name"]))
def test_lengths_of_every_server(sample: dict[str, Any]) -> None:
    """Mutants: n_ctx_train, LM Studio's maximum or OpenRouter's own before what is served."""
    assert sample["provenance"]
    assert read_lengths(json.dumps(sample["body"]).encode()) == sample["lengths"]


@pytest.mark.parametrize("sample", SHOWN, ids=lambda sample: str(sample["name"]))
def test_lengths_of_models_that_are_not_loaded(sample: dict[str, Any]) -> None:
    """Mutants: what it was trained for, num_ctx beyond that, a line within another value."""
    assert sample["provenance"]
    assert read_shown_length(json.dumps(sample["body"]).encode()) == sample["length"]


@pytest.mark.parametrize("key", ["parameters", "model_info", "details"])
def test_what_shows_no_length(key: str) -> None:
    (whole,) = (sample["body"] for sample in SHOWN if sample["name"] == "num-ctx")
    values: list[Any] = [None, 5, [], {"format": 5}]
    for value in values:
        assert read_shown_length(json.dumps({**whole, key: value}).encode()) is None
    for body in (b"", b"[]", b"null", b"[" * 100_000):
        assert read_shown_length(body) is None


def test_every_path_that_is_asked_has_a_sample() -> None:
    asked = {path for backend in BACKENDS.values() for path in backend.lengths}
    assert asked <= {sample["path"] for sample in SAMPLES if sample["lengths"]}


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (1, 1),
        (MOST, MOST),
        ("32768", 32768),
        (" 4096 ", 4096),
        (0, None),
        (-1, None),
        (MOST + 1, None),
        (2**32 - 1, None),
        (10**30, None),
        (True, None),
        (4096.5, None),
        (1e300, None),
        ("", None),
        ("4k", None),
        ("-1", None),
        ("4_096", None),
        ("٤٠٩٦", None),
        ("9" * 5000, None),
        (None, None),
        ([4096], None),
        ({"n_ctx": 4096}, None),
    ],
    ids=lambda value: repr(value)[:12],
)
def test_a_length_is_a_positive_number(value: Any, length: int | None) -> None:
    """Mutants: bools are ints, no greatest number, digits that are not ASCII's."""
    assert positive(value) == length
    listed = json.dumps({"data": [{"id": "m", "max_model_len": value}]}).encode()
    assert read_lengths(listed) == ({} if length is None else {"m": length})


def test_nonsense_under_one_name_hides_no_other() -> None:
    entry = {"id": "m", "max_model_len": None, "meta": {"n_ctx": 0}, "context_length": "8192"}
    assert read_lengths(json.dumps([entry]).encode()) == {"m": 8192}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"4096",
        b"null",
        b'{"data": 3, "models": {}}',
        b'{"data": [3, null, {"max_model_len": 7}, {"id": 5, "max_model_len": 7}]}',
        b'{"data": [{"id": "m", "meta": 7, "loaded_instances": [7, {"config": []}]}]}',
        b'{"data": [{"id": "m", "parent": ["m"], "aliases": 7}]}',
        b'{"default_generation_settings": 4096}',
        b'{"id": 0, "parameters": {"max_seq_len": 7}}',
        b'{"data": [{"id": "m", "owned_by": ["xinference"]}]}',
    ],
    ids=lambda body: repr(body)[:40],
)
def test_what_tells_none(body: bytes) -> None:
    assert read_lengths(body) == {}
