"""Lists of models of every form, and which model's length a name has."""

from __future__ import annotations

import json

import pytest

from wellspoken.adapters.requests.shapes import Model
from wellspoken.adapters.servers.model_list import Listed, read_models


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data": [{"id": "a", "created": "now", "owned_by": null}]}', ["a"]),
        (b'[{"id": "a", "created": 1e300}, {"id": "b", "created": true}]', ["a", "b"]),
        (b'{"data": [{"id": "a", "size": NaN}, {"id": "b\\ud83d"}]}', ["a", "b\ufffd"]),
        (b'{"data": null}', []),
        (b"{", []),
        (b"\xff", []),
        (b"[" * 100_000, []),
        (b"3", []),
        (b'{"value": 8192}', []),
    ],
)
def test_model_lists_of_every_form(body: bytes, names: list[str]) -> None:
    found = read_models(body)
    assert list(found.models) == names and found.lengths == {}
    assert all(model.created == 0 for model in found.models.values())
    assert all(model.owned_by == "backend" for model in found.models.values())


def test_a_list_has_its_models_lengths() -> None:
    body = {"data": [{"id": "a", "max_model_len": 512}, {"id": "b"}]}
    found = read_models(json.dumps(body).encode())
    assert {name: found.length(name) for name in ("a", "b", "c")} == {
        "a": 512,
        "b": None,
        "c": None,
    }
    assert not found.complete


def test_a_list_says_which_models_are_loaded() -> None:
    """As llama.cpp's router does (tools/server/README.md, GET /models)."""
    said = {"a": {"value": "loaded", "args": ["llama-server", "-c", "4096"]}, "b": "loaded"}
    said |= {"c": {"value": "unloaded"}, "d": {"value": ["loaded"]}}
    body = {"data": [{"id": name, "status": status} for name, status in said.items()]}
    found = read_models(json.dumps(body).encode())
    assert found.loaded == found.add({"a": 5}).loaded == {"a"}


A, B = {"a": Model(id="a")}, {"b": Model(id="b")}


@pytest.mark.parametrize(
    ("listed", "lengths", "complete"),
    [
        (Listed(A, {"a": 5}), {"a": 5, "other": 5}, True),
        (Listed(A, {"a": 5, "": 9}), {"a": 5, "other": 5}, True),
        (Listed(A, {"": 9}), {"a": 9, "other": 9}, True),
        (Listed(A, {}), {"a": None, "other": None}, False),
        (Listed(A | B, {"a": 5}), {"a": 5, "b": None, "other": None}, False),
        (Listed(A | B, {"a": 5, "": 9}), {"a": 5, "b": 9, "other": 9}, True),
        (Listed(A, {"alias": 7}), {"a": None, "alias": 7}, False),
        (Listed({}, {"": 9}), {"any": 9}, True),
        (Listed(), {"any": None}, False),
    ],
)
def test_a_sole_models_length_is_that_of_every_name(
    listed: Listed, lengths: dict[str, int | None], complete: bool
) -> None:
    """Mutants: the sole model's only under its own name; that of the first of several."""
    assert {name: listed.length(name) for name in lengths} == lengths
    assert listed.complete is complete


def test_what_a_list_tells_stays() -> None:
    """Mutant: what is added takes its place."""
    added = Listed(A, {"a": 5}).add({"a": 6, "b": 7})
    assert added.lengths == {"a": 5, "b": 7}
