"""The README's table of endpoints and servers: made from the backends, and fresh."""

from __future__ import annotations

from msgspec import structs

from tests.adapters.servers.endpoints_table import COLUMNS, LEFT_OUT, MARKS, README, section
from tests.adapters.servers.servers_table import rewritten
from wellspoken.adapters.servers.registry import BACKENDS, find


def test_the_table_is_fresh() -> None:
    text = README.read_text()
    assert text == rewritten(text, section(BACKENDS.values()), MARKS), "run: make tables"


def test_what_a_server_loses_makes_it_stale() -> None:
    vllm = find("vllm")
    row = "| vLLM | exact | exact | exact | exact | passes | passes | passes |"
    assert row in section([vllm])
    assert "| vLLM | exact |  |  | exact |  |" in section(
        [structs.replace(vllm, completions=None, passes=())]
    )


def test_every_path_that_passes_is_in_a_column() -> None:
    """Or it is no more than another one's spelling or help."""
    known = {path for paths in COLUMNS.values() for path in paths} | {"/v1/responses"}
    kinds = ("/count_tokens", "tokenize", "/count", "score", "classify", "rerank", "reranking")
    for backend in BACKENDS.values():
        if backend.name not in LEFT_OUT:
            for path in backend.passes:
                same = f"/v1{path}" in known
                assert path in known or same or path.endswith(kinds), (backend.name, path)
