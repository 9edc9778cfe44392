"""The servers' table in adapters/README.md says what the backends and the fixtures say."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.servers.servers_table import (
    BEGIN,
    END,
    KINDS,
    MIXED,
    README,
    Shown,
    rewritten,
    section,
    shown,
)
from tests.corpus import FIXTURES
from wellspoken.adapters.servers.registry import BACKENDS

ALL = shown()
VLLM = ("chat", "vllm", True)


def test_the_table_is_fresh() -> None:
    text = README.read_text()
    assert text == rewritten(text, section(ALL)), "run: make tables"


def rows(text: str) -> list[list[str]]:
    """Return the cells of every row, heads left out."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "server"]


def test_each_backend_and_each_other_server_has_one_row() -> None:
    found = rows(section(ALL))
    named = [row[1].strip("`") for row in found if len(row) == 6]
    assert named == list(BACKENDS)
    others = {one.server for one in ALL if one.owner is None}
    assert len(found) == len(named) + len(others)
    assert all(all(row) for row in found)


def test_every_fixture_is_counted_once() -> None:
    files = sum(len(json.loads(path.read_text())) for path in FIXTURES.glob("*/*/index.json"))
    counts = [part.split()[0] for row in rows(section(ALL)) for part in row[-1].split(", ")]
    assert sum(int(count) for count in counts if count.isdigit()) == files
    assert {path.parents[1].name for path in FIXTURES.glob("*/*/index.json")} == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "server", "owner"),
    [
        ("chat", "vllm", "vllm"),
        ("completions", "vllm-0.4", "vllm"),
        ("native", "llamacpp", "llamacpp-native"),
        ("chat", "llamacpp", "llamacpp"),
        ("chat", "vllmish", None),
    ],
)
def test_a_fixture_belongs_to_a_backend(kind: str, server: str, owner: str | None) -> None:
    assert Shown(kind, server, "", frozenset()).owner == owner


@pytest.mark.parametrize(
    "change",
    [
        {"provenance": "constructed after vLLM 9"},
        {"repairs": frozenset({"a_new_one"})},
        {"kind": "completions", "server": "sglang"},
    ],
)
def test_a_changed_fixture_makes_it_stale(change: dict[str, Any]) -> None:
    at = next(n for n, one in enumerate(ALL) if (one.kind, one.source[0]) == ("chat", "captured"))
    changed = [*ALL[:at], replace(ALL[at], **change), *ALL[at + 1 :]]
    assert section(changed) != section(ALL)
    assert section(ALL[:at] + ALL[at + 1 :]) != section(ALL)


def test_a_changed_file_is_read(tmp_path: Path) -> None:
    for name in ("index.json", "expected.json"):
        copy = tmp_path / "chat" / "vllm" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FIXTURES / "chat" / "vllm" / name, copy)
    before = shown(tmp_path)
    assert before == [one for one in ALL if (one.kind, one.server, one.own) == VLLM]
    expected = json.loads(copy.read_text())
    expected[next(iter(json.loads((copy.parent / "index.json").read_text())))]["repairs"] = {"a": 1}
    copy.write_text(json.dumps(expected))
    after = shown(tmp_path)
    assert after == [replace(before[0], repairs=frozenset({"a"})), *before[1:]]


def test_in_the_mixed_folder_the_file_names_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "chat" / MIXED
    folder.mkdir(parents=True)
    names = {"vllm-x.json": "vllm", "lmdeploy-y.sse": "lmdeploy", "vllmish.json": MIXED}
    entry = {"provenance": "constructed after X 1: y"}
    (folder / "index.json").write_text(json.dumps(dict.fromkeys(names, entry)))
    (folder / "expected.json").write_text(json.dumps({key: {"repairs": {}} for key in names}))
    found = shown(tmp_path)
    assert [one.server for one in found] == list(names.values())
    assert not any(one.own for one in found)
    assert [row[1] for row in rows(section(found)) if len(row) == 5] == ["various", "various"]


def test_only_the_section_is_rewritten() -> None:
    text = f"# a\n\n## Servers\n\n{BEGIN}\nold | row\n{END}\n\n## Repairs\n"
    new = rewritten(text, f"{BEGIN}\nnew\n{END}")
    assert new == f"# a\n\n## Servers\n\n{BEGIN}\nnew\n{END}\n\n## Repairs\n"
    with pytest.raises(ValueError, match="lacks the marks"):
        rewritten(text.replace(END, ""), "")


def test_a_server_nobody_named_is_refused() -> None:
    """KeyError names the folder, which then needs its name in OTHERS."""
    unknown = Shown("chat", "newserver", "captured from New 1: x", frozenset())
    with pytest.raises(KeyError, match="newserver"):
        section([unknown])
    unsourced = Shown("chat", "tgi", "seen somewhere", frozenset())
    with pytest.raises(ValueError, match="no provenance"):
        section([unsourced])
