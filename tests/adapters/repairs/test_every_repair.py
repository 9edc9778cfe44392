"""Every repair is exercised by a fixture with provenance, and each fixture names its repairs.

A fixture's repairs stand in expected.json beside it; test_fixtures.py replays each of them and
compares, so what is read here is what the translation counts now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.adapters.embeddings import ROOT as EMBEDDINGS
from tests.adapters.embeddings import fixtures as embeddings_fixtures
from tests.adapters.repairs.test_repair_names import documented, rows
from tests.corpus import FIXTURES, Fixture, fixtures, text_fixtures

ALL = [*fixtures(), *text_fixtures()]
ROOT = Path(__file__).parents[3]

# What an answer alone does not tell: name -> where it is counted or tested instead. Some need
# several answers, others a request to another endpoint, or what the server's own file says.
BESIDE = {
    "custom_tool_input_not_json": "tests/adapters/writers/test_response_writers.py",
    "embedding_base64_refused": "tests/proxy/endpoints/test_embeddings.py",
    "n_ignored": "tests/proxy/relay/test_rest.py",
    "n_refused": "tests/proxy/relay/test_rest.py",
    "prompt_logprobs_computed": "proxy/relay/helping/scoring.py",
    "prompt_text_unknown": "proxy/relay/helping/scoring.py",
    "prompt_token_ids_missing": "adapters/prompt_scores.py",
    "logprobs_own_unknown": "tests/adapters/servers/test_cortex.py",
}


def counted(found: Iterable[Fixture] = ALL) -> dict[str, dict[str, int]]:
    """Return what each fixture's expected.json says was repaired: fixture -> repair -> times."""
    summaries = {}
    for fixture in found:
        index = fixture.expected_path.with_name("expected.json")
        summaries[fixture.name] = json.loads(index.read_text())[fixture.key]["repairs"]
    return summaries


def counted_of_embeddings() -> dict[str, dict[str, int]]:
    """Return the same of the embeddings' fixtures."""
    return {f"{one.server}/{one.name}": one.outcome["repairs"] for one in embeddings_fixtures()}


def unseen(names: Iterable[str], seen: Mapping[str, Mapping[str, int]]) -> set[str]:
    """Return the names that no fixture counts."""
    return set(names) - {name for repairs in seen.values() for name in repairs}


def test_every_documented_repair_is_counted_by_a_fixture() -> None:
    seen = counted() | counted_of_embeddings()
    assert unseen(documented(), seen) - BESIDE.keys() == set()


def test_a_repair_without_a_fixture_would_be_seen() -> None:
    assert unseen([*documented(), "never_repaired"], counted()) >= {"never_repaired"}
    alone = {"finish_reason_aborted", "logprobs_bytes_signed", "native_text_restored"}
    rest = [f for f in ALL if not alone & counted([f])[f.name].keys()]
    assert unseen(documented(), counted(rest)) >= alone


@pytest.mark.parametrize(("name", "where"), BESIDE.items())
def test_what_an_answer_alone_does_not_tell_is_counted_there(name: str, where: str) -> None:
    assert name in (ROOT / where).read_text()
    assert unseen([name], counted()) == {name}


@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_a_fixture_has_its_provenance(fixture: Fixture) -> None:
    kind, _, source = fixture.provenance.partition(" ")
    assert kind in ("captured", "constructed")
    assert source.split(" ")[0] in ("from", "after") and len(source) > 10


def test_no_expected_output_is_left_of_a_fixture_that_is_gone() -> None:
    there = {f.expected_path for f in ALL}
    embedded = {EMBEDDINGS / x.server / f"{x.name}.expected" for x in embeddings_fixtures()}
    assert set(FIXTURES.rglob("*.expected")) == there | embedded
    for index in {path.with_name("expected.json") for path in there}:
        keys = {f.key for f in ALL if f.expected_path.parent == index.parent}
        assert json.loads(index.read_text()).keys() == keys, index


def test_the_table_says_where_each_was_seen() -> None:
    assert [row[0] for row in rows() if row[3] == "none yet"] == []
