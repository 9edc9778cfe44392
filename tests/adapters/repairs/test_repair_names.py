"""Every repair has one name: in the code, in what is counted, and in adapters/README.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.corpus import fixtures
from tests.replay import replay
from wellspoken.adapters.alignment.spelling import SPELLINGS
from wellspoken.adapters.repairs.finish_reasons import FAILURES, REASONS

ADAPTERS = Path(__file__).parents[3] / "adapters"
README = ADAPTERS / "README.md"

# The names that are made, by the expression that makes them.
MADE: dict[str, set[str]] = {
    "f'finish_reason_{key}'": {
        *(f"finish_reason_{spelling}" for spelling in REASONS),
        "finish_reason_stop_type",
        "finish_reason_done_reason",
    },
    "f'finish_reason_{reason}'": {f"finish_reason_{spelling}" for spelling in FAILURES},
    "f'{name}_changes'": {"id_changes", "created_changes", "model_changes"},
    "best[1][0]": {name for name, _ in SPELLINGS},
}


def _calls(tree: ast.AST, file: str) -> Iterator[ast.expr]:
    """Give the first argument of every call that counts a repair."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        on = ast.unparse(node.func.value).rpartition(".")[2]
        adds = node.func.attr == "add" and (on == "notes" or (on, file) == ("self", "exchange.py"))
        if adds or node.func.attr == "note":
            yield node.args[0]


def _names(given: ast.expr) -> set[str]:
    if isinstance(given, ast.Constant) and isinstance(given.value, str):
        return {given.value}
    if isinstance(given, ast.IfExp):
        return _names(given.body) | _names(given.orelse)
    return set(MADE[ast.unparse(given)])  # KeyError: say in MADE which names it makes


@functools.cache
def used() -> set[str]:
    """Return every name that the translation can count."""
    found: set[str] = set()
    for path in sorted(ADAPTERS.rglob("*.py")):
        if path.name == "context.py":
            continue  # `Context.note` hands its argument on
        for given in _calls(ast.parse(path.read_text()), path.name):
            found |= _names(given)
    return found


def rows() -> list[list[str]]:
    """Return the cells of each row of the table of repairs."""
    section = README.read_text().partition("\n## Repairs\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def documented() -> list[str]:
    return [row[0].strip("` ") for row in rows()]


def test_the_collector_finds_each_way_a_name_is_given() -> None:
    code = "context.note('a')\nself.notes.add('b' if x else 'c')\nself.roles.add('d')\nseen.add(1)"
    found = set().union(*map(_names, _calls(ast.parse(code), "x.py")))
    assert found == {"a", "b", "c"}
    with pytest.raises(KeyError):
        _names(ast.parse("f'{unheard_of}_x'", mode="eval").body)


def test_a_name_is_snake_case_and_has_its_row() -> None:
    odd = [name for name in used() if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)]
    assert odd == []
    assert used() - set(documented()) == set(), f"add a row for each to {README.name}"


def test_a_row_has_its_name_once() -> None:
    names = documented()
    assert set(names) - used() == set()
    assert len(names) == len(set(names))
    assert names == sorted(names)


def test_every_row_is_full() -> None:
    for row in rows():
        assert len(row) == 4 and all(row), row


def test_every_made_name_is_made() -> None:
    """What `MADE` lists still stands in the code."""
    made = {
        ast.unparse(given)
        for path in ADAPTERS.rglob("*.py")
        if path.name != "context.py"
        for given in _calls(ast.parse(path.read_text()), path.name)
    }
    assert set(MADE) <= made


def test_what_the_fixtures_count_is_documented() -> None:
    counted = {name for fixture in fixtures() for name in replay(fixture).repairs}
    assert counted <= set(documented())
    assert counted.isdisjoint(row[0].strip("` ") for row in rows() if row[3] == "none yet")
