"""promptfoo itself, which `make live-promptfoo` installs and whose folder it names in PROMPTFOO."""

from __future__ import annotations

import os

PROMPTFOO = "WELLSPOKEN_LIVE_PROMPTFOO"

collect_ignore_glob = [] if os.environ.get(PROMPTFOO) else ["test_*.py"]
