"""How far a download from the Hugging Face Hub has come, by the files in its cache.

vLLM switches the progress bars of its downloads off, so its log says nothing for as long as they
take. The hub's client writes `models--ORG--NAME/blobs/HASH.incomplete` and renames it when whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

RECENT: Final = 120.0
"""Seconds after which a file that no longer grows belongs to a download that was given up."""


def cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of the models that were downloaded, as huggingface_hub finds it."""
    home = environ.get("HOME") or "~"
    kept = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    root = environ.get("HF_HOME") or f"{kept}/huggingface"
    return Path(os.path.expanduser(environ.get("HF_HUB_CACHE") or f"{root}/hub"))


def downloading(model: str, folder: Path, now: float | None = None) -> int | None:
    """Return the bytes that are there of a model under download; None while none is.

    `folder`: the cache. `now`: seconds since the epoch, the present if None.
    """
    size, grows = 0, False
    limit = (time.time() if now is None else now) - RECENT
    try:
        entries = list(os.scandir(folder / f"models--{model.replace('/', '--')}" / "blobs"))
    except OSError:
        return None
    for entry in entries:
        try:
            about = entry.stat()
        except OSError:
            continue  # renamed since
        # Xet's client makes a file as long as it will be before it has what goes in.
        size += min(about.st_size, about.st_blocks * 512)
        grows = grows or (entry.name.endswith(".incomplete") and about.st_mtime > limit)
    return size if grows else None
