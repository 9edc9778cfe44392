"""A plugin of pytest for llama.cpp's own server tests: no model is downloaded before them.

They would start each of their presets once to fetch its model, and import wget for that.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

sys.modules.setdefault("wget", ModuleType("wget"))


def pytest_collection_finish() -> None:
    utils: Any = sys.modules["utils"]
    utils.ServerPreset.load_all = staticmethod(lambda: None)
