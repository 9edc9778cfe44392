"""How far a download has come, by the files in a cache like that of huggingface_hub 2.4."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wellspoken.engine.vllm import hub_cache

MODEL = "org/name"


def blobs(cache: Path) -> Path:
    folder = cache / "models--org--name" / "blobs"
    folder.mkdir(parents=True)
    return folder


def test_a_download_is_what_grows_in_the_cache(tmp_path: Path) -> None:
    folder = blobs(tmp_path)
    assert hub_cache.downloading(MODEL, tmp_path) is None
    (folder / "aa").write_bytes(b"x" * 10_000)
    assert hub_cache.downloading(MODEL, tmp_path) is None
    part = folder / "bb.1234.incomplete"
    part.write_bytes(b"x" * 5_000)
    assert hub_cache.downloading(MODEL, tmp_path) == 15_000
    now = part.stat().st_mtime + hub_cache.RECENT
    assert hub_cache.downloading(MODEL, tmp_path, now - 1) == 15_000
    assert hub_cache.downloading(MODEL, tmp_path, now + 1) is None
    assert hub_cache.downloading("org/other", tmp_path) is None


def test_a_file_with_holes_counts_by_what_is_in_it(tmp_path: Path) -> None:
    with (blobs(tmp_path) / "bb.incomplete").open("wb") as part:
        part.truncate(1 << 30)
    size = hub_cache.downloading(MODEL, tmp_path)
    assert size is not None and size < 1 << 20


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": "/f", "XDG_CACHE_HOME": "/c"}, "/f/hub"),
        ({"HF_HUB_CACHE": "/x", "HF_HOME": "/f"}, "/x"),
        ({"HF_HOME": "~/f"}, os.path.expanduser("~/f/hub")),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert hub_cache.cache(environ) == Path(expected)
