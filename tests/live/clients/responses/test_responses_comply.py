"""llm-comply's cases pass through wellspoken, save what a model that reads text alone cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.clients.conftest import CLIENTS
from tests.live.clients.responses.comply import (
    DIRECT,
    OURS,
    Verdict,
    Verdicts,
    ask_cases,
    draw_table,
    serving,
)

ROOT = Path(__file__).parents[4]
IMAGE, SUMMARY = "image-input", "reasoning-summary"


@pytest.fixture(scope="module")
def columns(
    tmp_path_factory: pytest.TempPathFactory, environment_as_given: dict[str, str]
) -> dict[str, Verdicts]:
    """What llm-comply says of llama.cpp itself and of wellspoken in front of it."""
    folder = tmp_path_factory.mktemp("comply")
    python = Path(environment_as_given[CLIENTS])
    with serving(folder, peers=False) as urls:
        return {name: ask_cases(python, url, folder) for name, url in urls.items()}


def test_every_case_passes_that_a_text_model_can(columns: dict[str, Verdicts]) -> None:
    found = columns[OURS]
    assert len(found) == 13
    others = {name: one for name, one in found.items() if one.status != "passed"}
    # The model has no eyes: llama.cpp refuses the image, and the refusal is passed on.
    assert others.pop(IMAGE).reasons[0] in (
        "HTTP 400 (expected [200])",
        "HTTP 500 (expected [200])",
    )
    # llm-comply asks only models of certain names.
    assert others.pop(SUMMARY).status == "skipped"
    assert others == {}


def test_llamacpp_alone_passes_two(columns: dict[str, Verdicts]) -> None:
    passed = [name for name, one in columns[DIRECT].items() if one.status == "passed"]
    assert passed == ["compact-response", "compact-missing-model"]  # by their 404


def test_the_guides_table_says_the_same(columns: dict[str, Verdicts]) -> None:
    guide = (ROOT / "proxy" / "guides" / "responses.md").read_text()
    table = guide.partition("tests.live.clients.responses.comply -->\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    said = [row[:3] for row in rows]
    drawn = draw_table(columns).partition("\n\n")[0].splitlines()
    assert said == [[cell.strip() for cell in row.split("|")[1:-1]] for row in drawn]


def test_a_table_has_a_row_for_each_case() -> None:
    good, bad = Verdict("passed"), Verdict("failed", ("it", "is", "so"))
    said = draw_table({DIRECT: {"a": bad, "b": bad}, OURS: {"a": good, "b": bad}})
    assert said.splitlines() == [
        "| case | llama.cpp | wellspoken |",
        "|---|---|---|",
        "| `a` | **fails** | passes |",
        "| `b` | **fails** | **fails** |",
        "| of 2 | 0 | 1 |",
        "",
        "`b`: it; is",
    ]
