"""llama.cpp's own server tests, in a virtual environment and a folder of theirs.

`make live-llamacpp` makes both and names the folder; without it these tests are not collected.
"""

from __future__ import annotations

import os

SOURCES = "WELLSPOKEN_LIVE_LLAMACPP"

collect_ignore_glob = [] if os.environ.get(SOURCES) else ["test_*.py"]
