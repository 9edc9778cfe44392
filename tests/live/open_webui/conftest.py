"""Open WebUI itself, which `make live-open-webui` installs and names in OPEN_WEBUI."""

from __future__ import annotations

import os

OPEN_WEBUI = "WELLSPOKEN_LIVE_OPEN_WEBUI"

collect_ignore_glob = [] if os.environ.get(OPEN_WEBUI) else ["test_*.py"]
