"""What llama.cpp's own server tests find right of llama.cpp holds through the proxy as well.

Each case runs against the server alone, and if it passes there, through the proxy. Those that need
another model than the tiny one fail alone, and say nothing. FORBIDDEN lists the ones that the
contract forbids to pass, with its rule.
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.live.llamacpp.conftest import SOURCES
from tests.live.llamacpp.own_tests import OwnTests, complaints

FOLDER = Path(os.environ.get(SOURCES, ""))
FILES = sorted(path.name for path in (FOLDER / "unit").glob("test_*.py"))
FORBIDDEN = tomllib.loads(Path(__file__).with_name("forbidden.toml").read_text())
"""File -> case -> the rule of the contract that it contradicts."""

UNSTEADY = {"test_completion_unified"}
"""Functions that pass when their requests happen not to overlap, so that nothing can be said."""


@pytest.mark.parametrize("file", FILES)
def test_own_tests(file: str, tiny_model: Path, tmp_path: Path) -> None:
    own = OwnTests(FOLDER, FOLDER.parent / "bin" / "python", tiny_model, tmp_path)
    forbidden = FORBIDDEN.get(file, {})
    direct = own.run(file, "direct")
    direct = {x: why for x, why in direct.items() if x.partition("[")[0] not in UNSTEADY}
    passing = [case for case, why in direct.items() if not why]
    proxied = own.run(file, "proxied", only=passing) if passing else {}
    print(file, dict(Counter("direct" if why else "both" for why in direct.values())))
    found = complaints(direct, proxied, forbidden)
    assert not found, "\n".join(found)


def test_each_listed_file_is_one() -> None:
    assert FILES
    assert set(FORBIDDEN) <= set(FILES)
