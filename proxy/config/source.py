"""Where a configuration came from, so that it can be read from there again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wellspoken.proxy.config import Config, load


class ConfigSource(NamedTuple):
    """A configuration file, flags and environment: what a configuration is made of.

    `file` None: there are flags and environment alone. `environ` None: the process's own, which
    nobody changes from outside, so what a reload finds anew is in files.
    """

    file: Path | None
    flags: Mapping[str, Any] | None = None
    environ: Mapping[str, str] | None = None

    def load(self) -> Config:
        """Return the configuration as it is now; it reads a file. Raises ConfigError."""
        return load(self.file, self.flags, self.environ)
