"""The documents are what they are called, as Python's own parser sees it."""

from __future__ import annotations

import json

import pytest

from tests.json_classes import invalid, undecided, valid


def refuse_constant(name: str) -> None:
    raise ValueError(name)  # Infinity and NaN, which Python takes


def decode(document: bytes) -> object:
    return json.loads(document.decode("utf-8"), parse_constant=refuse_constant)


def test_what_is_valid_is() -> None:
    for document in valid():
        decode(document)


def test_what_is_invalid_is() -> None:
    found = set(invalid())
    assert len(found) > 400
    for document in found:
        with pytest.raises((ValueError, RecursionError)):
            decode(document)
            raise AssertionError(document[:100])


def test_what_is_undecided_is_among_neither() -> None:
    assert set(undecided()).isdisjoint({*valid(), *invalid()})
