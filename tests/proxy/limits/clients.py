"""Clients with names before a proxy: their keys in files, and what they ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Table = dict[str, Any]
MakeClient = Callable[..., Table]


@pytest.fixture
def client(tmp_path: Path) -> MakeClient:
    """Make an [[auth.client]] with the key NAME-key: `client("team-a", models=[...])`."""

    def make(name: str, **more: Any) -> Table:
        file = tmp_path / f"{name}.keys"
        file.write_text(f"{name}-key")
        return {"name": name, "keys": [f"file:{file}"], **more}

    return make


def key_of(name: str) -> dict[str, str]:
    """Return the header with that client's key."""
    return {"Authorization": f"Bearer {name}-key"}
