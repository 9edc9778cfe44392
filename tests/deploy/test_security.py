"""deploy/SECURITY.md names tests that exist, and can be found from the first page."""

from __future__ import annotations

import ast
import re

from tests.documents import ROOT

PAGE = ROOT / "deploy" / "SECURITY.md"
NAMED = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")


def missing(page: str) -> list[str]:
    """Return the tests that a page names and that are not there."""
    found = []
    for file, name in NAMED.findall(page):
        path = ROOT / file
        nodes = ast.walk(ast.parse(path.read_text())) if path.exists() else ()
        names = {getattr(node, "name", "") for node in nodes}
        if not path.exists() or (name and name not in names):
            found.append(f"{file}::{name}")
    return found


def test_each_threat_names_tests_that_exist() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if not NAMED.search(row)] == []
    assert missing(PAGE.read_text()) == []


def test_a_test_that_is_gone_is_found() -> None:
    assert missing("`tests/deploy/test_security.py::test_gone` `tests/gone.py`") == [
        "tests/deploy/test_security.py::test_gone",
        "tests/gone.py::",
    ]


def test_it_is_reached_from_the_readme() -> None:
    assert "deploy/README.md" in (ROOT / "README.md").read_text()
    assert "(SECURITY.md)" in (ROOT / "deploy" / "README.md").read_text()
