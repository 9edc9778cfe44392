"""The table [store]."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy import config
from wellspoken.proxy.config.values import ConfigError

URL = "postgresql://me:canary@127.0.0.1/d"


def test_a_url_is_read_from_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text(URL + "\n")
    monkeypatch.setenv("STORE", URL)
    for text in (URL, "env:STORE", f"file:{tmp_path / 'url'}"):
        assert config.store_url(config.Store(url=text)) == URL


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "a.db", "url": URL}, "path and url exclude each other"),
        ({"path": " "}, "store.path: it is empty"),
        ({"path": URL}, "write url instead of path"),
        ({"url": "mysql://me:canary@h/d"}, "store.url: write postgresql://"),
        ({"url": "me:canary@h/d"}, "store.url: write postgresql://"),
        ({"path": "a.db", "spool": "b.db"}, "store.spool: only PostgreSQL"),
        ({"path": "a.db", "full": "wait"}, "store.full"),
        ({"path": "a.db", "durability": "fsync"}, "store.durability"),
        ({"path": "a.db", "queue": 0}, "store.queue"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], says: str) -> None:
    wanted = {"backend": [{"url": "http://localhost"}], "store": keys}
    with pytest.raises(ConfigError, match=says) as caught:
        config.load(None, wanted, {})
    assert "canary" not in str(caught.value)
